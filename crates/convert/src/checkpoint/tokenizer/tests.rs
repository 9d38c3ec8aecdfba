use super::*;
use serde_json::json;
use tlite_testing::{assert_carries, assert_error};
use tokenizers::Tokenizer;

/// A vocabulary that merges by score, with a token for each byte.
fn model() -> Model {
    let piece = |text: &str, score: f32, kind: i64| Piece {
        text: Some(text.to_owned()),
        score: Some(score),
        kind: i32::try_from(kind).ok(),
    };
    let mut pieces = vec![
        piece("<unk>", 0.0, 2),
        piece("<s>", 0.0, CONTROL),
        piece("</s>", 0.0, CONTROL),
        piece("<|im_start|>", 0.0, USER_DEFINED),
    ];
    pieces.extend((0..256).map(|b| piece(&format!("<0x{b:02X}>"), 0.0, 6)));
    let texts = ["▁", "a", "b", "c", "bc", "ab", "▁a", "abc"];
    let scores = [-10.0, -11.0, -12.0, -13.0, -1.0, -2.0, -3.0, -4.0];
    pieces.extend(texts.iter().zip(scores).map(|(text, score)| Piece {
        kind: None,
        ..piece(text, score, NORMAL)
    }));
    Model {
        pieces,
        trainer: Some(Trainer {
            model_type: Some(2),
            ..Trainer::default()
        }),
        normalizer: Some(Normalizer {
            name: Some("identity".to_owned()),
            removes_spaces: Some(false),
            ..Normalizer::default()
        }),
    }
}

fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn text(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// The tokenizer that is written for the files of a folder.
fn written(from: &tempfile::TempDir) -> (tempfile::TempDir, Tokenizer) {
    let to = tempfile::tempdir().unwrap();
    write(from.path(), to.path(), 64).unwrap();
    let tokenizer = Tokenizer::from_file(to.path().join(TOKENIZER)).unwrap();
    (to, tokenizer)
}

fn encode(t: &Tokenizer, text: &str) -> Vec<String> {
    t.encode(text, true).unwrap().get_tokens().to_vec()
}

#[test]
fn sentence_piece_models_are_read() {
    let bytes = model().encode_to_vec();
    let (to, t) = written(&folder(&[(SENTENCE_PIECE, bytes.clone())]));
    assert!(to.path().join(CONFIG).is_file());
    assert_eq!(encode(&t, "abc"), ["<s>", "▁a", "bc"]);
    assert_eq!(encode(&t, "é"), ["<s>", "▁", "<0xC3>", "<0xA9>"]);
    assert_eq!(encode(&t, "<|im_start|>"), ["<s>", "<|im_start|>"]);
    let ids = t.encode("abc a", true).unwrap();
    assert_eq!(t.decode(ids.get_ids(), true).unwrap(), "abc a");
    // Files beside it add tokens and say which are put around a text.
    let config = json!({"add_bos_token": false, "add_eos_token": true, "eos_token": {"content": "<end>"},
        "added_tokens_decoder": {"270": {"content": "<end>", "special": true}}});
    let (to, t) = written(&folder(&[
        (SENTENCE_PIECE, bytes),
        (CONFIG, text(&config)),
        ("added_tokens.json", text(&json!({"<more>": 268}))),
    ]));
    assert!(!to.path().join(CONFIG).exists(), "the file that exists is copied");
    assert_eq!(encode(&t, "a<more>"), ["▁a", "<more>", "<end>"]);
    assert_eq!(t.token_to_id("<end>"), Some(270));
}

#[test]
fn vocabularies_with_merges_are_read() {
    let entries = ["h", "e", "l", "o", "he", "ll", "Ġ", "1", "2", "<|endoftext|>"];
    let vocab: Map<String, Value> = (0..)
        .zip(entries)
        .map(|(i, t)| (t.to_owned(), Value::from(i)))
        .collect();
    let files = |class: &str| {
        folder(&[
            (VOCABULARY, text(&Value::Object(vocab.clone()))),
            (MERGES, b"#version: 0.2\nh e\nl l\n".to_vec()),
            (CONFIG, text(&json!({"tokenizer_class": class}))),
        ])
    };
    let (_to, t) = written(&files("GPT2Tokenizer"));
    assert_eq!(
        encode(&t, "hello<|endoftext|> 12"),
        ["he", "ll", "o", "<|endoftext|>", "Ġ", "1", "2"]
    );
    let (_to, _) = written(&files("Qwen2TokenizerFast"));
    let e = check(files("BloomTokenizer").path()).unwrap_err();
    assert_error(&e, ErrorKind::Unsupported, &[CONFIG, "BloomTokenizer", TOKENIZER]);
    let bad = files("GPT2Tokenizer");
    std::fs::write(bad.path().join(MERGES), "h q\n").unwrap();
    assert_carries(check(bad.path()).unwrap_err(), &[MERGES, "\"h q\"", "\"q\""]);
}

#[test]
fn tokenizers_that_cannot_be_read_are_refused() {
    let e = check(folder(&[(VOCABULARY, b"{}".to_vec())]).path()).unwrap_err();
    assert_error(
        &e,
        ErrorKind::InvalidFile,
        &["tokenizer.json", "tokenizer.model", "merges.txt"],
    );
    check(folder(&[(TOKENIZER, b"{}".to_vec())]).path()).unwrap();
    let refused = |model: &Model| {
        let folder = folder(&[(SENTENCE_PIECE, model.encode_to_vec())]);
        check(folder.path()).unwrap_err()
    };
    let mut unigram = model();
    unigram.trainer = None;
    assert_error(
        &refused(&unigram),
        ErrorKind::Unsupported,
        &[SENTENCE_PIECE, "unigram"],
    );
    let mut normalized = model();
    normalized.normalizer = Some(Normalizer {
        name: Some("nmt_nfkc".to_owned()),
        characters: Some(vec![1, 2, 3]),
        ..Normalizer::default()
    });
    assert_error(&refused(&normalized), ErrorKind::Unsupported, &["nmt_nfkc"]);
    let mut spaces = model();
    spaces.normalizer = None;
    assert_error(
        &refused(&spaces),
        ErrorKind::Unsupported,
        &["remove_extra_whitespaces"],
    );
    let damaged = folder(&[(SENTENCE_PIECE, b"\xff\xff\xff".to_vec())]);
    assert_error(
        &check(damaged.path()).unwrap_err(),
        ErrorKind::InvalidFile,
        &[SENTENCE_PIECE],
    );
}
