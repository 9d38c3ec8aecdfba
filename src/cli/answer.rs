//! Answers of a model as they are streamed, and the options that they take beside sampling.

use super::load::{Wanted, load_wanted, open_folder};
use super::options::{ExecOptions, check_writable, read_text};
use super::output::put;
use super::sampling::some_text;
use crate::error::{Error, Result};
use crate::llm::draft::reuse;
use crate::llm::engine::Logits;
use crate::llm::{
    Draft, Finish, Generator, Grammar, Limits, Metrics, Model, ModelDraft, NgramDraft, Sampler, StopStrings,
    Tokenizer, prompt_cache,
};
use clap::ValueEnum;
use std::io::Write;
use std::path::PathBuf;

/// How tokens are guessed ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DraftKind {
    /// As the context went on where its last tokens stood before.
    Ngram,
}

/// Options of every command that answers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Generation")]
pub struct AnswerOptions {
    /// End an answer before TEXT, wherever its tokens are cut; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = some_text, allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Slide when the context is full: what must stay is kept, the oldest of the rest is forgotten, and what is left is fed again
    #[arg(long)]
    pub context_shift: bool,
    /// Guess tokens ahead and verify them in one run; what is generated stays the same
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "draft_model")]
    pub draft: Option<DraftKind>,
    /// The same with the guesses of a smaller model, a folder with the same tokenizer
    #[arg(long, value_name = "DIR")]
    pub draft_model: Option<PathBuf>,
    /// Guess at most N tokens ahead, 1 to 64
    #[arg(long, value_name = "N", default_value = "8", value_parser = draft_tokens, allow_negative_numbers = true)]
    pub draft_tokens: usize,
    /// Keep to the grammar in FILE, in the notation of Lark; its rule `start` is a whole answer
    #[arg(long, value_name = "FILE", conflicts_with = "json_schema")]
    pub grammar: Option<PathBuf>,
    /// Answer with JSON as the schema in FILE describes it
    #[arg(long, value_name = "FILE")]
    pub json_schema: Option<PathBuf>,
    /// Begin with the cache in FILE, if there is one, and write it there in the end
    #[arg(long, value_name = "FILE")]
    pub prompt_cache: Option<PathBuf>,
}

fn draft_tokens(text: &str) -> Result<usize, String> {
    let value = text.parse().ok().filter(|n| (1..=64).contains(n));
    value.ok_or_else(|| "must be a whole number from 1 to 64".to_owned())
}

impl AnswerOptions {
    /// `sampler` with the constraint that is asked for. A usage error for a file that holds none.
    pub fn constrain(&self, sampler: Sampler, tokenizer: &Tokenizer, eos: &[u32]) -> Result<Sampler> {
        let (option, path) = match (&self.grammar, &self.json_schema) {
            (Some(path), _) => ("--grammar", path),
            (_, Some(path)) => ("--json-schema", path),
            _ => return Ok(sampler),
        };
        let text = read_text(option, path)?;
        let grammar = match self.grammar {
            Some(_) => Grammar::lark(&text, tokenizer, eos),
            None => Grammar::json_schema(&text, tokenizer, eos),
        };
        let grammar =
            grammar.map_err(|e| Error::usage(option, format!("{}: {}", path.display(), e.chain())))?;
        Ok(sampler.constrained(Box::new(grammar)))
    }

    /// Usage errors, before a model is loaded: a draft that is no model's folder, a cache that could not be written.
    pub fn check(&self) -> Result<()> {
        if let Some(dir) = &self.draft_model {
            open_folder("--draft-model", dir, &["tokenizer.json", "model.onnx"])?;
        }
        match &self.prompt_cache {
            Some(path) => check_writable("--prompt-cache", path),
            None => Ok(()),
        }
    }

    /// What the model is to compute for tokens that `sampler` chooses.
    pub fn wanted(&self, sampler: &Sampler) -> Wanted<'static> {
        let drafts = self.draft.is_some() || self.draft_model.is_some();
        Wanted {
            logits: if drafts { Logits::Tail } else { Logits::Last },
            rows: if drafts { self.draft_tokens + 1 } else { 0 },
            token: sampler.is_greedy(),
            watched: &[],
        }
    }

    /// The draft, if one is asked for. A usage error for a model with other tokens than those of `tokenizer`.
    pub fn load_draft(&self, exec: &ExecOptions, tokenizer: &Tokenizer) -> Result<Option<Box<dyn Draft>>> {
        if let Some(dir) = &self.draft_model {
            if !Tokenizer::load(dir)?.has_tokens_of(tokenizer) {
                let what = format!(
                    "{} has another vocabulary than the model; a draft needs the same",
                    dir.display()
                );
                return Err(Error::usage("--draft-model", what));
            }
            let wanted = Wanted {
                token: true,
                ..Wanted::of(Logits::Last)
            };
            let loaded = load_wanted(dir, exec, &wanted)?;
            return Ok(Some(Box::new(ModelDraft::new(loaded.model))));
        }
        Ok(self
            .draft
            .map(|DraftKind::Ngram| -> Box<dyn Draft> { Box::new(NgramDraft::default()) }))
    }
}

/// What an answer gave.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// Generated ids, without an end token.
    pub tokens: Vec<u32>,
    /// Their text, up to a stop string.
    pub text: String,
    /// Why it ended.
    pub finish: Option<Finish>,
    /// Tokens of the prompt that the cache held.
    pub reused: usize,
    /// Counts and times.
    pub metrics: Metrics,
}

impl Outcome {
    /// One line for people.
    pub fn speed_line(&self) -> String {
        let why = self.finish.map_or_else(String::new, |f| format!(" ({f})"));
        format!("[{}, {} tokens generated{why}]", self.metrics, self.tokens.len())
    }
}

/// A model that answers, and what its cache holds.
pub struct Responder<'a> {
    /// The model.
    pub model: &'a mut dyn Model,
    /// Its tokens.
    pub tokenizer: &'a Tokenizer,
    /// How the next one is chosen.
    pub sampler: Sampler,
    /// What ends an answer.
    pub stop: StopStrings,
    /// Guesses, and the most tokens of one.
    pub draft: Option<(Box<dyn Draft>, usize)>,
    /// Tokens in the cache.
    pub cached: Vec<u32>,
}

impl<'a> Responder<'a> {
    /// One with an empty cache, or with that of `--prompt-cache`.
    pub fn new(
        model: &'a mut dyn Model,
        tokenizer: &'a Tokenizer,
        sampler: Sampler,
        options: &AnswerOptions,
        exec: &ExecOptions,
    ) -> Result<Self> {
        let draft = options.load_draft(exec, tokenizer)?;
        let cached = match &options.prompt_cache {
            Some(path) => prompt_cache::load(path, model)?,
            None => Vec::new(),
        };
        Ok(Self {
            model,
            tokenizer,
            sampler,
            stop: StopStrings::new(options.stop.clone())?,
            draft: draft.map(|d| (d, options.draft_tokens)),
            cached,
        })
    }

    /// Writes the cache to the file of `--prompt-cache`, if it was given.
    pub fn save(&mut self, options: &AnswerOptions) -> Result<()> {
        match &options.prompt_cache {
            Some(path) => prompt_cache::save(path, self.model, &self.cached),
            None => Ok(()),
        }
    }

    /// Writes the text that follows the tokens `prompt` to `out` as it comes. Tokens at its start that the cache holds are not fed
    /// again.
    pub fn answer(&mut self, prompt: &[u32], limits: Limits, out: &mut dyn Write) -> Result<Outcome> {
        let reused = reuse(self.model, &self.cached, prompt);
        self.cached.truncate(reused);
        let new = prompt.get(reused..).unwrap_or_default();
        let mut generator =
            Generator::new(&mut *self.model, &mut self.sampler, new, limits)?.after(&self.cached)?;
        if let Some((draft, most)) = &mut self.draft {
            generator = generator.drafting(draft.as_mut(), *most);
        }
        let mut decoder = self.tokenizer.stream();
        let mut watch = self.stop.watch();
        let (mut tokens, mut text) = (Vec::new(), String::new());
        let mut show = |piece: String| {
            text.push_str(&piece);
            if piece.is_empty() {
                Ok(())
            } else {
                put(out, &piece)
            }
        };
        while let Some(token) = generator.next().transpose()? {
            tokens.push(token.id);
            show(watch.push(&decoder.push(token.id)?))?;
            if watch.found() {
                break;
            }
        }
        if !watch.found() {
            show(watch.push(&decoder.finish()?))?;
        }
        let finish = if watch.found() {
            Some(Finish::Stop)
        } else {
            show(watch.finish())?;
            generator.finish()
        };
        let metrics = generator.metrics();
        self.cached = generator.cached().to_vec();
        Ok(Outcome {
            tokens,
            text,
            finish,
            reused,
            metrics,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::SamplerConfig;
    use crate::llm::testing::{FakeModel, write_byte_level_tokenizer};

    fn bytes() -> (tempfile::TempDir, Tokenizer) {
        let dir = tempfile::tempdir().unwrap();
        write_byte_level_tokenizer(dir.path());
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        (dir, tokenizer)
    }

    fn responder<'a>(model: &'a mut FakeModel, tokenizer: &'a Tokenizer, stop: &[&str]) -> Responder<'a> {
        Responder {
            cached: model.cache.clone(),
            model,
            tokenizer,
            sampler: Sampler::new(SamplerConfig::default()).unwrap(),
            stop: StopStrings::new(stop.iter().map(|s| (*s).to_owned()).collect()).unwrap(),
            draft: None,
        }
    }

    /// Says `text` and the end token after a prompt of `start` tokens.
    fn saying(text: &'static str, start: usize) -> FakeModel {
        FakeModel::new(258, 64, move |cache| {
            text.as_bytes()
                .get(cache.len() - start)
                .map_or(257, |b| u32::from(*b))
        })
    }

    #[derive(Default)]
    struct Pieces(Vec<String>);

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn text_is_streamed_in_whole_characters() {
        let (_dir, tokenizer) = bytes();
        let limits = |max_tokens| Limits {
            max_tokens,
            eos: vec![257],
            ..Limits::default()
        };
        let mut out = Pieces::default();
        let mut model = saying("aé!", 2);
        let outcome = responder(&mut model, &tokenizer, &[])
            .answer(&[1, 2], limits(9), &mut out)
            .unwrap();
        assert_eq!(out.0, ["a", "é", "!"]);
        assert_eq!((outcome.text.as_str(), outcome.tokens.len()), ("aé!", 4));
        assert_eq!(outcome.finish, Some(Finish::Eos(257)));
        assert!(
            outcome
                .speed_line()
                .ends_with("4 tokens generated (end of text)]"),
            "{}",
            outcome.speed_line()
        );

        let mut out = Pieces::default();
        model.truncate(0);
        let outcome = responder(&mut model, &tokenizer, &[])
            .answer(&[1, 2], limits(2), &mut out)
            .unwrap();
        assert_eq!(
            (out.0, outcome.text.as_str()),
            (vec!["a".to_owned(), "\u{fffd}".to_owned()], "a\u{fffd}")
        );
    }

    #[test]
    fn a_closed_output_stops_generation() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (_dir, tokenizer) = bytes();
        let mut model = saying("abc", 1);
        let limits = Limits {
            max_tokens: 9,
            ..Limits::default()
        };
        let e = responder(&mut model, &tokenizer, &[])
            .answer(&[1], limits, &mut Closed)
            .unwrap_err();
        assert!(super::super::is_broken_pipe(&e), "{e}");
        assert_eq!(model.calls.len(), 1);
    }

    #[test]
    fn stop_strings_end_an_answer_wherever_tokens_are_cut() {
        let (_dir, tokenizer) = bytes();
        let limits = || Limits {
            max_tokens: 20,
            eos: vec![257],
            ..Limits::default()
        };
        let (mut model, mut out) = (saying("one</b></s>two", 1), Pieces::default());
        let mut responder = responder(&mut model, &tokenizer, &["</s>", "zzz"]);
        let outcome = responder.answer(&[1], limits(), &mut out).unwrap();
        assert_eq!(
            (outcome.text.as_str(), outcome.finish),
            ("one</b>", Some(Finish::Stop))
        );
        assert_eq!(out.0, ["o", "n", "e", "</b", ">"]);
        assert_eq!(
            outcome.tokens.len(),
            11,
            "the tokens of the stop string came, too"
        );
        // The token that made it complete was not fed.
        assert_eq!((responder.cached.len(), responder.model.len()), (11, 11));

        let (mut model, mut out) = (saying("a<", 1), Pieces::default());
        let outcome = super::tests::responder(&mut model, &tokenizer, &["</s>"])
            .answer(&[1], limits(), &mut out)
            .unwrap();
        assert_eq!(
            (outcome.text.as_str(), outcome.finish),
            ("a<", Some(Finish::Eos(257)))
        );
    }

    #[test]
    fn what_was_drafted_beyond_the_end_is_no_harm() {
        let (_dir, tokenizer) = bytes();
        let text = "abc abc abc abc.";
        let mut model = saying(text, 3);
        let limits = || Limits {
            max_tokens: 40,
            eos: vec![257],
            ..Limits::default()
        };
        let mut responder = responder(&mut model, &tokenizer, &["c abc."]);
        responder.draft = Some((Box::new(NgramDraft::default()), 4));
        let outcome = responder
            .answer(&[1, 2, 3], limits(), &mut std::io::sink())
            .unwrap();
        assert_eq!(outcome.text, "abc abc ab");
        assert!(outcome.metrics.accepted > 3, "{:?}", outcome.metrics);
        assert_eq!(responder.cached.len(), responder.model.len());
        let again = responder
            .answer(&[1, 2, 3], limits(), &mut std::io::sink())
            .unwrap();
        assert_eq!((again.text, again.reused), (outcome.text, 2));
    }
}
