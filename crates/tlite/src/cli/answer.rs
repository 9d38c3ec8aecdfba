//! Streaming of a model's answers, and their options other than sampling.

use super::choices;
use super::draft::DraftOptions;
use super::fields::in_file_of;
use super::interrupt::lock;
use super::options::{ExecOptions, check_writable, from_zero, read_text};
use super::output::{count, is_verbose, put};
use super::sampling::some_text;
use indicatif::ProgressBar;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::fmt::count_text;
use transformer_lite::unstable::llm::load::{Loading, Used};
use transformer_lite::unstable::llm::{
    Codec, DefaultBound, Finish, GenerateOptions, Grammar, LoadOptions, Metrics, Model, Piece, Progress,
    Prompt, Sampler, SamplerNeeds, SchemaOptions, Session, StopStrings, WhiteSpace,
};

/// Options of every command that answers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Generation")]
pub struct AnswerOptions {
    /// Maximum number of tokens; -1 is no limit
    ///
    /// The default is 1024 for `generate`, and no limit for `chat`. Without a limit, an answer ends
    /// when the model ends it or the context is full.
    #[arg(short = 'n', long, value_name = "N", value_parser = token_limit)]
    max_tokens: Option<usize>,
    /// Stop before TEXT; can be given more than once
    ///
    /// TEXT may span several tokens and contain special ones.
    #[arg(long, value_name = "TEXT", value_parser = some_text, allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Constrain the answer to this JSON schema
    ///
    /// FILE may also be the schema itself, as in `--json-schema '{"type": "integer"}'`.
    #[arg(long, value_name = "FILE")]
    pub json_schema: Option<PathBuf>,
    /// White space between the tokens of constrained JSON
    #[arg(
        long,
        value_parser = choices::json_space(),
        value_name = "KIND",
        default_value = "bounded",
        requires = "json_schema",
        hide_short_help = true
    )]
    json_space: WhiteSpace,
    /// Lift the default bounds of constrained JSON: 40 digits, 4096 characters, 256 items
    #[arg(long, requires = "json_schema", hide_short_help = true)]
    json_unbounded: bool,
    /// Constrain the answer to the grammar in FILE: Lark (entry rule `start`) or GBNF (`root`)
    ///
    /// FILE may also be the grammar itself, as in `--grammar 'root ::= "yes" | "no"'`.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "json_schema",
        hide_short_help = true
    )]
    pub grammar: Option<PathBuf>,
    /// When the context is full, drop the oldest text but keep the system prompt, and continue
    #[arg(long, hide_short_help = true)]
    pub context_shift: bool,
    /// Load the KV cache from FILE if it exists and save it on exit; chat messages are not saved
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub prompt_cache: Option<PathBuf>,
    #[command(flatten)]
    drafts: DraftOptions,
}

/// A maximum number of tokens; -1 is none.
pub fn token_limit(text: &str) -> Result<usize, String> {
    if text == "-1" {
        return Ok(usize::MAX);
    }
    from_zero(text).map_err(|what| what + ", or -1 for no limit")
}

impl AnswerOptions {
    /// Maximum number of tokens of an answer, if it is given.
    pub fn max_tokens(&self) -> Option<usize> {
        self.max_tokens
    }

    /// `sampler` with the grammar or schema. A usage error for a file that has neither.
    pub fn constrain(&self, sampler: Sampler, codec: &Codec) -> Result<Sampler> {
        let (tokenizer, eos) = (codec.tokenizer(), codec.eos());
        let (option, path) = match (&self.grammar, &self.json_schema) {
            (Some(path), _) => ("--grammar", path),
            (_, Some(path)) => ("--json-schema", path),
            _ => return Ok(sampler),
        };
        let marks: &[&str] = match option {
            "--grammar" => &["::=", "start:"],
            _ => &["{"],
        };
        let inline = path
            .to_str()
            .filter(|text| marks.iter().any(|mark| text.contains(mark)));
        let text = match inline.filter(|_| !path.is_file()) {
            Some(text) => text.to_owned(),
            None => read_text(option, path)?,
        };
        let grammar = match self.grammar {
            Some(_) => Grammar::lark(&text, tokenizer, eos),
            None => {
                let (json_space, json_unbounded) = (self.json_space, self.json_unbounded);
                let options = SchemaOptions {
                    json_space,
                    json_unbounded,
                };
                Grammar::json_schema_with(&text, &options, tokenizer, eos)
            }
        };
        let grammar =
            grammar.map_err(|e| Error::usage(option, format!("{}: {}", path.display(), e.chain())))?;
        Ok(sampler.constrained(Box::new(grammar)))
    }

    /// Whether a schema or a grammar constrains answers.
    pub fn is_constrained(&self) -> bool {
        self.json_schema.is_some() || self.grammar.is_some()
    }

    /// Texts that end an answer.
    pub fn stop_strings(&self) -> Result<StopStrings> {
        StopStrings::new(self.stop.clone())
    }

    /// Usage errors that need no model: those of [`DraftOptions::check`], a prompt cache that
    /// cannot be written.
    pub fn check(&self) -> Result<()> {
        self.drafts.check()?;
        match &self.prompt_cache {
            Some(path) => check_writable("--prompt-cache", path),
            None => Ok(()),
        }
    }

    /// Load options for tokens that `sampler` chooses.
    pub fn load_options(&self, exec: &ExecOptions, sampler: &Sampler) -> LoadOptions {
        LoadOptions {
            drafts: self.drafts.most(),
            greedy: sampler.is_greedy(),
            candidates: sampler.needs() == SamplerNeeds::Candidates,
            ..exec.load_options()
        }
    }

    /// A session of `model` with these options, whose tokens `sampler` chooses. `on_progress` is
    /// called while a draft model is loaded.
    pub fn session(
        &self,
        model: &Model,
        sampler: Sampler,
        exec: &ExecOptions,
        on_progress: &mut dyn FnMut(Loading<'_>),
    ) -> Result<Session> {
        let draft = self.drafts.load(exec, model.codec().tokenizer(), on_progress)?;
        let mut session = model.session()?;
        session.set_sampler(sampler);
        if let Some(draft) = draft {
            session.set_draft(draft, self.drafts.most());
        }
        if let Some(path) = &self.prompt_cache {
            session
                .load_cache(path)
                .map_err(|e| in_file_of("--prompt-cache", e))?;
        }
        Ok(session)
    }

    /// Writes the KV cache of `session` to the file of `--prompt-cache`, if given.
    pub fn save(&self, session: &mut Session) -> Result<()> {
        match &self.prompt_cache {
            Some(path) => session.save_cache(path),
            None => Ok(()),
        }
    }
}

#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// Generated IDs, without an end token.
    pub tokens: Vec<u32>,
    /// Their text, up to a stop string.
    pub text: String,
    pub finish: Option<Finish>,
    /// Tokens of the prompt that were already in the cache.
    pub reused: usize,
    /// Default bounds at which values of constrained JSON ended.
    pub reached: Vec<DefaultBound>,
    pub metrics: Metrics,
}

/// Facts about a run that its status lines show beside the figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// How tokens are chosen, the seed included.
    pub sampling: String,
    /// Activations are quantized to 8 bits.
    pub int8: bool,
}

impl Facts {
    /// The facts about a model that uses `used`, whose tokens are chosen by `sampling`.
    pub fn new(sampling: String, used: &Used) -> Self {
        Self {
            sampling,
            int8: used.act == INT8,
        }
    }
}

/// [`Used::act`] of activations in 8 bits.
const INT8: &str = "int8";

impl Outcome {
    /// The line after an answer: `[14 tokens, 52.1 tokens/s, first token after 0.21 s, greedy]`.
    /// With `--verbose` also the prompt and the cache. If `brief`, it is short enough for a narrow
    /// terminal.
    pub fn status_line(&self, facts: &Facts, brief: bool) -> String {
        let m = &self.metrics;
        let mut parts = vec![count_text(self.tokens.len(), "token")];
        match self.finish {
            None | Some(Finish::Eos(_)) => {}
            Some(other) => parts.push(other.to_string()),
        }
        parts.extend(m.decode_tokens_per_s().map(|rate| format!("{rate:.1} tokens/s")));
        if !brief && m.tokens > 0 {
            parts.push(format!("first token after {:.2} s", m.first_token.as_secs_f64()));
        }
        if !brief && m.drafted > 0 {
            parts.push(format!("{} of {} drafted tokens accepted", m.accepted, m.drafted));
        }
        if m.forgotten > 0 {
            parts.push(format!("context shifted by {}", count_text(m.forgotten, "token")));
        }
        if facts.int8 {
            parts.push("int8 activations".to_owned());
        }
        if !brief {
            parts.push(facts.sampling.clone());
        }
        if is_verbose() {
            let reused = count_text(m.reused_tokens, "token");
            parts.push(format!("prompt {}", count_text(m.prompt_tokens, "token")));
            parts.extend((m.reused_tokens > 0).then(|| format!("{reused} reused")));
            parts.extend(
                m.prefill_tokens_per_s()
                    .map(|rate| format!("prefill {rate:.1} tokens/s")),
            );
        }
        format!("[{}]", parts.join(", "))
    }

    /// Notes on the default bounds at which values ended.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let all = "; --json-unbounded lifts all default bounds";
        self.reached.iter().map(move |bound| format!("{bound}{all}"))
    }
}

/// A progress bar over the tokens of a long prompt, on a terminal. It disappears when dropped.
#[derive(Default)]
pub struct Reading(Arc<Mutex<Option<ProgressBar>>>);

impl Reading {
    /// The callback that moves the bar.
    pub fn progress(&self) -> Progress {
        let bar = self.0.clone();
        Progress::of(move |done, all| {
            let mut bar = lock(&bar);
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
        if let Some(bar) = lock(&self.0).take() {
            bar.finish_and_clear();
        }
    }
}

/// Generates after `prompt` and writes the text to `out` piece by piece.
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
        reached: answer.reached(),
        metrics: answer.metrics(),
    })
}

/// Writes the pieces of an answer to `out` as they arrive. Returns their tokens and text.
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
    use tlite_testing::llm::testing::{FakeModel, Lent, byte_codec};

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
    }

    #[test]
    fn status_line_names_what_matters() {
        let outcome = Outcome {
            tokens: vec![0; 14],
            text: String::new(),
            finish: Some(Finish::Eos(2)),
            reused: 0,
            reached: Vec::new(),
            metrics: Metrics {
                tokens: 14,
                decode_tokens: 10,
                decode: std::time::Duration::from_secs(4),
                first_token: std::time::Duration::from_millis(210),
                ..Metrics::default()
            },
        };
        let facts = |int8| Facts {
            sampling: "greedy".to_owned(),
            int8,
        };
        let parts = |outcome: &Outcome, facts| -> Vec<String> {
            let line = outcome.status_line(&facts, false);
            let inside = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')).unwrap();
            inside.split(", ").map(str::to_owned).collect()
        };
        let figures = ["14 tokens", "2.5 tokens/s", "first token after 0.21 s", "greedy"];
        assert_eq!(parts(&outcome, facts(false)), figures);
        let all = parts(&outcome, facts(true));
        assert_eq!(all[3..], ["int8 activations", "greedy"]);
        let cut = Outcome {
            finish: Some(Finish::MaxTokens),
            ..outcome
        };
        assert_eq!(parts(&cut, facts(false))[1], Finish::MaxTokens.to_string());
    }

    #[test]
    fn minus_one_is_no_limit() {
        assert_eq!((token_limit("-1"), token_limit("0")), (Ok(usize::MAX), Ok(0)));
        assert!(token_limit("-2").is_err() && token_limit("x").is_err());
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
