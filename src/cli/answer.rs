//! Answers of a model as they are streamed, and the options that they take beside sampling.

use super::fields::{in_file_of, option_of};
use super::load::load;
use super::options::{ExecOptions, check_writable, read_text, whole};
use super::output::{count, note, put};
use super::sampling::some_text;
use crate::error::{Error, Result, Stage};
use crate::llm::load::{Loading, MOST_DRAFTS, Purpose};
use crate::llm::{
    Codec, Draft, Finish, GenerateOptions, Grammar, LoadOptions, Metrics, Model, ModelDraft, ModelFolder,
    NgramDraft, Piece, Progress, Prompt, Sampler, Session, StopStrings, Tokenizer,
};
use crate::units::count_text;
use clap::ValueEnum;
use indicatif::ProgressBar;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// Guess tokens ahead; the model verifies them in one run and keeps those that it would choose. Where two logits differ by no more
    /// than rounding, another of these tokens may be taken than without
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "draft_model")]
    pub draft: Option<DraftKind>,
    /// The same with the guesses of a smaller model, a folder with the same tokenizer
    #[arg(long, value_name = "DIR")]
    pub draft_model: Option<PathBuf>,
    /// Guess at most N tokens ahead, 1 to 64 [default: 8]
    #[arg(long, value_name = "N", value_parser = draft_tokens, allow_negative_numbers = true)]
    pub draft_tokens: Option<usize>,
    /// Keep to the grammar in FILE, in the notation of Lark; its rule `start` is a whole answer
    #[arg(long, value_name = "FILE", conflicts_with = "json_schema")]
    pub grammar: Option<PathBuf>,
    /// Answer with JSON as the schema in FILE describes it
    #[arg(long, value_name = "FILE")]
    pub json_schema: Option<PathBuf>,
    /// Begin with the cache in FILE, if there is one, and write it there in the end; the messages of a chat are not kept
    #[arg(long, value_name = "FILE")]
    pub prompt_cache: Option<PathBuf>,
}

fn draft_tokens(text: &str) -> Result<usize, String> {
    whole(text, 1, MOST_DRAFTS)
}

/// Tokens that are guessed ahead unless another number is asked for.
const DRAFT_TOKENS: usize = 8;

impl AnswerOptions {
    /// Most tokens that are guessed ahead; 0 without a draft.
    fn drafts(&self) -> usize {
        match self.draft.is_some() || self.draft_model.is_some() {
            true => self.draft_tokens.unwrap_or(DRAFT_TOKENS),
            false => 0,
        }
    }

    /// `sampler` with the constraint that is asked for. A usage error for a file that holds none.
    pub fn constrain(&self, sampler: Sampler, codec: &Codec) -> Result<Sampler> {
        let (tokenizer, eos) = (codec.tokenizer(), codec.eos());
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

    /// What ends an answer.
    pub fn stop_strings(&self) -> Result<StopStrings> {
        StopStrings::new(self.stop.clone())
    }

    /// Usage errors, before a model is loaded: a draft that is no model's folder, tokens to guess without a draft, a cache that could not be written.
    pub fn check(&self) -> Result<()> {
        if self.draft_tokens.is_some() && self.drafts() == 0 {
            let what = "has no effect without --draft or --draft-model";
            return Err(Error::usage("--draft-tokens", what));
        }
        if let Some(dir) = &self.draft_model {
            ModelFolder::holding("--draft-model", dir, &["tokenizer.json", "model.onnx"])?;
        }
        match &self.prompt_cache {
            Some(path) => check_writable("--prompt-cache", path),
            None => Ok(()),
        }
    }

    /// How the model is to be loaded for tokens that `sampler` chooses.
    pub fn load_options(&self, exec: &ExecOptions, sampler: &Sampler) -> LoadOptions {
        LoadOptions {
            drafts: self.drafts(),
            greedy: sampler.is_greedy(),
            ..exec.load_options()
        }
    }

    /// The draft, if one is asked for. `hear` and errors as of [`load_draft_model`].
    fn load_draft(
        &self,
        exec: &ExecOptions,
        tokenizer: &Tokenizer,
        hear: &mut dyn FnMut(Loading<'_>),
    ) -> Result<Option<Box<dyn Draft>>> {
        if let Some(dir) = &self.draft_model {
            let draft = load_draft_model(dir, exec, tokenizer, &mut |step| match step {
                Loading::Memory(memory) => {
                    note(&mut std::io::stderr(), &format!("draft model: memory {memory}"));
                }
                step => hear(step),
            });
            return match draft {
                Ok(draft) => Ok(Some(Box::new(draft))),
                Err(Error::Usage { name, what, kind }) => {
                    let what = format!("{}: {}: {what}", dir.display(), option_of(&name));
                    Err(Error::usage("--draft-model", what).of_kind(kind))
                }
                Err(e) => {
                    let (kind, what) = (e.kind(), format!("--draft-model {}", dir.display()));
                    Err(Error::caused(Stage::Run, what, e).of_kind(kind))
                }
            };
        }
        Ok(self
            .draft
            .map(|DraftKind::Ngram| -> Box<dyn Draft> { Box::new(NgramDraft::default()) }))
    }

    /// A session of `model` with these options, whose tokens `sampler` chooses. `hear` hears of what a draft model takes.
    pub fn session(
        &self,
        model: &Model,
        sampler: Sampler,
        exec: &ExecOptions,
        hear: &mut dyn FnMut(Loading<'_>),
    ) -> Result<Session> {
        let draft = self.load_draft(exec, model.codec().tokenizer(), hear)?;
        let mut session = model.session()?;
        session.set_sampler(sampler);
        if let Some(draft) = draft {
            session.set_draft(draft, self.drafts());
        }
        if let Some(path) = &self.prompt_cache {
            session
                .load_cache(path)
                .map_err(|e| in_file_of("--prompt-cache", e))?;
        }
        Ok(session)
    }

    /// Writes the cache of `session` to the file of `--prompt-cache`, if it was given.
    pub fn save(&self, session: &mut Session) -> Result<()> {
        match &self.prompt_cache {
            Some(path) => session.save_cache(path),
            None => Ok(()),
        }
    }
}

/// The model in `dir` as a draft for one with the tokens of `tokenizer`. Its context is that of the command, as far as the draft model was made
/// for so much. `hear` as in [`load`]. A usage error for a model with other tokens, and errors of loading.
fn load_draft_model(
    dir: &Path,
    exec: &ExecOptions,
    tokenizer: &Tokenizer,
    hear: &mut dyn FnMut(Loading<'_>),
) -> Result<ModelDraft> {
    if !Tokenizer::load(dir)?.has_tokens_of(tokenizer) {
        let what = "another vocabulary than that of the model; a draft needs the same";
        return Err(Error::usage("tokenizer.json", what));
    }
    let folder = ModelFolder::open(dir)?;
    let options = exec.load_options();
    let most = folder.config.max_position_embeddings;
    let options = LoadOptions {
        context: options
            .context
            .map(|asked| most.map_or(asked, |most| asked.min(most))),
        greedy: true,
        ..options
    };
    let loaded = load(&folder, &options, Purpose::Generation, hear)?;
    Ok(ModelDraft::new(loaded.model()?))
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
        let tokens = count_text(self.tokens.len(), "token");
        format!("[{}, {tokens} generated{why}]", self.metrics)
    }
}

/// A bar over the tokens of a long prompt on standard error, while it is read; nothing when that is no terminal. It goes when it is dropped.
#[derive(Default)]
pub struct Reading(Arc<Mutex<Option<ProgressBar>>>);

impl Reading {
    /// What moves the bar.
    pub fn progress(&self) -> Progress {
        let bar = self.0.clone();
        Progress::of(move |done, all| {
            let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
            if done < all {
                count(
                    bar.get_or_insert_with(|| ProgressBar::new(0)),
                    done,
                    all,
                    "reading the prompt",
                );
            } else if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(bar) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
    }
}

/// Writes what follows `prompt` to `out` as it comes.
pub fn answer<'p>(
    session: &mut Session,
    prompt: impl Into<Prompt<'p>>,
    options: &GenerateOptions,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let mut answer = session.generate(prompt, options)?;
    let (tokens, text) = stream(&mut answer, out)?;
    Ok(Outcome {
        tokens,
        text,
        finish: answer.finish(),
        reused: answer.reused(),
        metrics: answer.metrics(),
    })
}

/// Writes pieces of an answer to `out` as they come, and returns their tokens and text.
pub fn stream(
    pieces: &mut dyn Iterator<Item = Result<Piece>>,
    out: &mut dyn Write,
) -> Result<(Vec<u32>, String)> {
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for piece in pieces {
        let piece = piece?;
        tokens.extend(piece.token.map(|t| t.id));
        text.push_str(&piece.text);
        if !piece.text.is_empty() {
            put(out, &piece.text)?;
        }
    }
    Ok((tokens, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing::{FakeModel, Lent, byte_codec};

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
    fn pieces_are_written_as_they_come() {
        let mut model = saying("aé!", 2);
        let (_dir, codec) = byte_codec("{}");
        let mut session = Session::new(Box::new(Lent::of(&mut model)), Arc::new(codec));
        let mut out = Pieces::default();
        let outcome = answer(
            &mut session,
            [1, 2].as_slice(),
            &GenerateOptions::default(),
            &mut out,
        )
        .unwrap();
        assert_eq!(out.0, ["a", "é", "!"]);
        assert_eq!((outcome.text.as_str(), outcome.tokens.len()), ("aé!", 4));
        let line = outcome.speed_line();
        assert!(line.ends_with("4 tokens generated (end of text)]"), "{line}");
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
        let mut model = saying("abc", 1);
        let lent = Lent::of(&mut model);
        let (_dir, codec) = byte_codec("{}");
        let mut session = Session::new(Box::new(lent.clone()), Arc::new(codec));
        let options = GenerateOptions::default();
        let e = answer(&mut session, [1].as_slice(), &options, &mut Closed).unwrap_err();
        assert!(super::super::is_broken_pipe(&e), "{e}");
        lent.give_back(&mut model);
        assert_eq!(model.calls.len(), 1);
    }
}
