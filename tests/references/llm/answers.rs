//! Greedy answers of a real model to everyday questions: those of the host interpreter, word for
//! word, on every device.

use super::{Outcome, decoder};
use std::path::Path;
use tlite_testing::{Device, Text};
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{DeviceModel, HostModel, Logits, SequenceConfig};
use transformer_lite::unstable::llm::template::Values;
use transformer_lite::unstable::llm::{
    ChatTemplate, DecodeOptions, Generator, LanguageModel, Message, ModelFolder, Sampler, SamplerConfig,
    Tokenizer,
};

/// Lines `question<tab>answer`. The first [`MUST_AGREE`] are those that everybody asks; the answers
/// are the host's, and `UPDATE_ANSWERS=1` writes them anew.
const EXPECTED: &str = include_str!("../../data/answers/smollm2-135m.tsv");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/answers/smollm2-135m.tsv");

/// Answers that must be the host's.
const MUST_AGREE: usize = 10;

/// Of all answers, how many may differ from the host's.
const MAY_DIFFER: usize = 2;

const MAX_TOKENS: usize = 64;

/// Tokens of each answer where a driver runs the kernels of GPUs on the processor.
const FEW_TOKENS: usize = 12;

/// A text that repeats its last words, at most this many tokens, for half of an answer is a loop.
const LONGEST_PERIOD: usize = 16;

/// The model on a device, or on the host.
fn load(dir: &Path, device: Option<&Device>, context: usize) -> Result<Box<dyn LanguageModel>, String> {
    Ok(match device {
        Some(d) => {
            let decoder = decoder(dir, &Target::DEVICE, Logits::Last)?;
            let model = DeviceModel::new(decoder, Box::new(d.share()), &SequenceConfig::of(context));
            Box::new(model.text()?)
        }
        None => Box::new(HostModel::new(decoder(dir, &Target::HOST, Logits::Last)?, context).text()?),
    })
}

/// Compares the answers of the model in `dir` on `device`, or the first ones on the host, with the
/// expected ones.
pub fn agree(dir: &Path, device: Option<&Device>) -> Outcome {
    let _turn = device.map(Device::turn);
    let folder = ModelFolder::open(dir).text()?;
    let tokenizer = Tokenizer::load(dir).text()?;
    let template = ChatTemplate::load(&folder).text()?;
    let lines: Vec<&str> = EXPECTED.lines().collect();
    let update = std::env::var_os("UPDATE_ANSWERS").is_some();
    let asked = if device.is_some() || update {
        lines.len()
    } else {
        MUST_AGREE
    };
    let (context, cancel) = (160, Cancel::default());
    let most = match device.is_some_and(Device::is_slow) {
        true => FEW_TOKENS,
        false => MAX_TOKENS,
    };
    let mut model = load(dir, device, context)?;
    let (mut differ, mut loops, mut anew) = (Vec::new(), Vec::new(), String::new());
    for (i, line) in lines[..asked].iter().enumerate() {
        let (question, expected) = line.split_once('\t').unwrap_or((line, ""));
        let prompt = template
            .render(&[Message::user(question)], &Values::new(), true, &cancel)
            .text()?;
        let prompt = tokenizer.encode(&prompt, false).text()?;
        let options = DecodeOptions {
            max_tokens: most,
            eos: folder.eos_ids(&tokenizer),
            ..DecodeOptions::default()
        };
        model.truncate(0);
        let mut sampler = Sampler::new(SamplerConfig::default()).text()?;
        let ids: Vec<u32> = Generator::new(model.as_mut(), &mut sampler, &prompt, options)
            .text()?
            .map(|t| t.map(|t| t.id))
            .collect::<Result<_, _>>()
            .text()?;
        let answer = tokenizer.decode(&ids).text()?.replace(['\n', '\t'], " ");
        if is_loop(&ids) {
            loops.push(format!("{question} {answer}"));
        }
        // The last character of an answer that was cut short may be incomplete.
        let is_expected = match ids.len() < most || most == MAX_TOKENS {
            true => answer == expected,
            false => expected.starts_with(answer.trim_end_matches(char::REPLACEMENT_CHARACTER)),
        };
        if !is_expected {
            differ.push((
                i,
                format!("{question}\n  expected: {expected}\n  found:    {answer}"),
            ));
        }
        anew += &format!("{question}\t{answer}\n");
    }
    if update && device.is_none() {
        return std::fs::write(FILE, anew).text();
    }
    let important = differ.iter().any(|(i, _)| *i < MUST_AGREE);
    let texts: Vec<&str> = differ.iter().map(|(_, text)| text.as_str()).collect();
    if !texts.is_empty() {
        eprintln!(
            "{} of {asked} answers differ from the host's:\n{}",
            texts.len(),
            texts.join("\n")
        );
    }
    if !loops.is_empty() {
        return Err(format!("answers that repeat themselves: {loops:#?}"));
    }
    if important || differ.len() > MAY_DIFFER {
        return Err(format!(
            "{} of {asked} answers differ:\n{}",
            texts.len(),
            texts.join("\n")
        ));
    }
    Ok(())
}

/// An answer that was cut at its limit and whose second half has a period.
fn is_loop(ids: &[u32]) -> bool {
    let end = &ids[ids.len() / 2..];
    ids.len() >= MAX_TOKENS
        && (1..=LONGEST_PERIOD).any(|period| end.iter().zip(&end[period..]).all(|(a, b)| a == b))
}
