//! Vocabularies of GGUF files against the ids that their authors' tokenizers give.
//!
//! `TLITE_TEST_MODELS` names a folder with one folder for each model, as `tools/fetch_model.py`
//! makes them; that of `vocabularies` holds these. Without the variable one ignored trial says so,
//! which fails when `REQUIRE_BACKENDS` is set.

use std::path::{Path, PathBuf};
use tlite_testing::suite::Suite;
use tlite_testing::{Outcome, Text};
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::llm::Tokenizer;
use transformer_lite_convert::gguf;

/// A vocabulary, and the token that it puts before a text.
const VOCABULARIES: &[(&str, Option<u32>)] = &[
    ("bert-bge", Some(101)),
    ("command-r", Some(5)),
    ("deepseek-coder", Some(32013)),
    ("deepseek-llm", Some(100_000)),
    ("falcon", None),
    ("gemma-4", Some(2)),
    ("gpt-2", None),
    ("llama-bpe", Some(128_000)),
    ("llama-spm", Some(1)),
    ("mpt", None),
    ("phi-3", Some(1)),
    ("qwen2", None),
    ("refact", None),
    ("starcoder", None),
];

/// Its text has no accents and no capitals, and words of signs it does not know are one token.
const LOSSY: &str = "bert-bge";

/// Vocabularies that do not say how text is cut, so that the default applies. They have no cases.
const DEFAULT: [&str; 2] = ["aquila", "gpt-neox"];

/// Vocabularies that are refused, the kind of the error, and the values that it carries.
const REFUSED: &[(&str, ErrorKind, &[&str])] = &[
    // Unigram, for encoders.
    (
        "nomic-bert-moe",
        ErrorKind::Unsupported,
        &["t5", "gpt2, llama, gemma4, bert"],
    ),
];

pub fn trials(suite: &mut Suite) {
    let Some(folder) = std::env::var_os("TLITE_TEST_MODELS") else {
        suite.not_set("TLITE_TEST_MODELS names no folder with models");
        return;
    };
    let folder = PathBuf::from(folder).join("vocabularies");
    let file = |name: &str| folder.join(format!("{name}.gguf"));
    for (name, start) in VOCABULARIES {
        let path = file(name);
        suite.add(format!("{name}: ids"), move || ids(&path, name, *start));
        let path = file(name);
        suite.add(format!("{name}: streams"), move || streams(&path, &cases(&path)?));
    }
    for name in DEFAULT {
        let path = file(name);
        suite.add(format!("{name}: streams"), move || streams(&path, &[]));
    }
    let path = file("baichuan");
    suite.add("baichuan: its pieces", move || pieces(&path));
    for (name, kind, values) in REFUSED {
        let path = file(name);
        suite.add(format!("{name}: refused"), move || refused(&path, *kind, values));
    }
}

fn tokenizer(path: &Path) -> Result<Tokenizer, String> {
    let dir = tempfile::tempdir().text()?;
    gguf::write_tokenizer(path, dir.path()).text()?;
    Tokenizer::load(dir.path()).text()
}

/// Texts, and their ids.
fn cases(path: &Path) -> Result<Vec<(String, Vec<u32>)>, String> {
    let read = |end: &str| std::fs::read_to_string(format!("{}{end}", path.display())).text();
    let (texts, ids) = (read(".inp")?, read(".out")?);
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let ids: Vec<&str> = ids.lines().collect();
    // Most files end with a separator.
    let cases = texts.iter().zip(&ids);
    let cases: Vec<_> = cases
        .map(|(text, line)| {
            let ids: Result<_, _> = line.split_whitespace().map(str::parse).collect();
            Ok(((*text).to_owned(), ids.text()?))
        })
        .collect::<Result<_, String>>()?;
    if cases.len() != 46 || texts.len() - cases.len() > 1 {
        return Err(format!("{} texts and {} lines of ids", texts.len(), ids.len()));
    }
    Ok(cases)
}

/// The ids of every text, which give the text back.
fn ids(path: &Path, name: &str, start: Option<u32>) -> Outcome {
    let tokenizer = tokenizer(path)?;
    for (text, wanted) in cases(path)? {
        let found = tokenizer.encode(&text, false).text()?;
        if found != wanted {
            return Err(format!("{text:?}: expected {wanted:?}, found {found:?}"));
        }
        let back = tokenizer.decode(&found).text()?;
        // What is lost once is lost for good.
        let same = if name == LOSSY {
            let again = tokenizer.encode(&back, false).text()?;
            tokenizer.decode(&again).text()? == back
        } else {
            back == text
        };
        if !same {
            return Err(format!("{text:?} came back as {back:?}"));
        }
    }
    let found = tokenizer.start().text()?;
    if found.as_slice() != start.as_slice() {
        return Err(format!("expected the start {start:?}, found {found:?}"));
    }
    Ok(())
}

/// Tokens one at a time give what all give together, in whole characters, whether they come from a
/// text or not.
fn streams(path: &Path, cases: &[(String, Vec<u32>)]) -> Outcome {
    let tokenizer = tokenizer(path)?;
    let mut held = 0;
    let mut compare = |ids: &[u32]| -> Outcome {
        let mut stream = tokenizer.stream();
        let mut joined = String::new();
        for id in ids {
            let piece = stream.push(*id).text()?;
            held += usize::from(piece.is_empty());
            joined += &piece;
        }
        joined += &stream.finish().text()?;
        let whole = tokenizer.decode(ids).text()?;
        if joined == whole {
            Ok(())
        } else {
            Err(format!("{ids:?}: {whole:?} came one by one as {joined:?}"))
        }
    };
    for (_, ids) in cases {
        compare(ids)?;
        // Parts of characters at both ends.
        for cut in 1..ids.len().min(12) {
            compare(&ids[cut..])?;
            compare(&ids[..ids.len() - cut])?;
        }
    }
    let count = u64::try_from(tokenizer.vocab()).text()?;
    let mut state = 1u64;
    for _ in 0..300 {
        let ids: Vec<u32> = (0..12)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                u32::try_from((state >> 33) % count).unwrap()
            })
            .collect();
        compare(&ids)?;
    }
    if held == 0 {
        return Err("no character was held back".to_owned());
    }
    Ok(())
}

/// A SentencePiece vocabulary without expected ids: texts come back, and its own pieces are single
/// tokens.
fn pieces(path: &Path) -> Outcome {
    let tokenizer = tokenizer(path)?;
    for text in ["Hello world", " 天气 很好", "naïve 🦙\n\tx  y"] {
        let ids = tokenizer.encode(text, false).text()?;
        let back = tokenizer.decode(&ids).text()?;
        if back != text {
            return Err(format!("{text:?} came back as {back:?}"));
        }
    }
    let id = tokenizer.token_id("\u{2581}world");
    let found = tokenizer.encode("world", false).text()?;
    if id.is_none() || found.as_slice() != id.as_slice() {
        return Err(format!("expected {id:?}, found {found:?}"));
    }
    Ok(())
}

fn refused(path: &Path, kind: ErrorKind, values: &[&str]) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    match gguf::write_tokenizer(path, dir.path()) {
        Ok(_) => Err("it is supported now".to_owned()),
        Err(e) => tlite_testing::refusal(&e, kind, values),
    }
}
