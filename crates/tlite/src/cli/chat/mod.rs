//! `tlite chat`: the conversation and its commands.

mod command;
mod complete;
mod console;
mod editor;
mod history;
mod input;
mod saved;
mod settings;
mod system;
mod terminal;
mod wrap;

use super::answer::{AnswerOptions, Facts, Outcome, Reading, stream};
use super::interrupt::Interrupt;
use super::load::{model_folder, print_loaded, waiting};
use super::options::{ExecOptions, ModelArg, Verbosity};
use super::output::{Sanitized, is_verbose, put, shortened, terminal_columns};
use super::sampling::{Chosen, SamplingOptions};
use super::template::TemplateOptions;
use command::{COMMANDS, Entry, INPUT};
use console::{Console, Looks, is_dumb};
use editor::Editor;
use history::HistoryFile;
use input::{HINT, Input, Lines, PROMPT, Source, Terminal};
use saved::Saved;
use settings::Resample;
use std::io::{IsTerminal, Write};
use std::path::Path;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::fmt::count_text;
use transformer_lite::unstable::llm::conversation::MESSAGE;
use transformer_lite::unstable::llm::load::Loading;
use transformer_lite::unstable::llm::template::Values;
use transformer_lite::unstable::llm::{
    Cancel, Conversation, Finish, GenerateOptions, LoadOptions, Message, Metrics, Model, ModelFolder,
    StopStrings,
};
use wrap::WordWrap;

const EXAMPLES: &str = "\
Examples:
  tlite chat MODEL
  tlite chat -m model.gguf --system \"Answer in one sentence\" -c 8192
  printf 'What is the capital of France?\\n' | tlite chat MODEL -q --temp 0";

/// Chat with a model
///
/// On a terminal, chat has line editing and a history, and pasted text is one message. Type `/help`
/// for the commands of a chat. Ctrl-C stops an answer. If standard input is not a terminal, each
/// line is a message or a command, and Ctrl-C ends the chat.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite chat [OPTIONS] MODEL", after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Neither read nor write the history of earlier chats
    ///
    /// The history is the file `history` in the folder `$TLITE_HISTORY_DIR`, by default in
    /// `transformer-lite/chat` in the user's cache folder.
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    answers: AnswerOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    exec: ExecOptions,
}

/// A conversation and the settings of its answers.
struct Talk<'a> {
    conversation: Conversation,
    stop: StopStrings,
    max_tokens: usize,
    facts: Facts,
    template_values: Values,
    interrupt: &'a Interrupt,
    /// The model supports a longer context.
    may_grow: bool,
    about: About,
    /// Counts and times of the last answer.
    last: Option<Metrics>,
    /// Entries that were not sent.
    unsent: usize,
    sampling: SamplingOptions,
    resample: Resample<'a>,
}

/// What `/stats` shows of the model.
#[derive(Debug, Default)]
struct About {
    model: String,
    place: String,
    /// Memory use; unknown for the interpreter.
    memory: Option<String>,
}

/// Why a chat ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// `/exit` or the end of the input.
    Done,
    /// Ctrl-C, twice at the prompt, or once if the input is not a terminal.
    Interrupted,
}

impl Talk<'_> {
    /// Runs the chat until one of the reasons of [`Ended`].
    fn run(&mut self, source: &mut dyn Source, console: &mut Console<'_>) -> Result<Ended> {
        let mut hinted = false;
        loop {
            // Nobody is there who could stop the rest of the input.
            if !console.looks.interactive && self.interrupt.stopped() {
                return Ok(Ended::Interrupted);
            }
            let (text, quoted) = match source.read()? {
                Input::End => return Ok(Ended::Done),
                Input::Interrupt if hinted => return Ok(Ended::Interrupted),
                Input::Interrupt => {
                    hinted = true;
                    console.reply(HINT);
                    continue;
                }
                Input::NotText => {
                    self.refuse("the line is not UTF-8; it was not sent", console);
                    continue;
                }
                Input::Text { text, quoted } => (text, quoted),
            };
            hinted = false;
            match Entry::read(&text, quoted) {
                Entry::Exit => return Ok(Ended::Done),
                Entry::Save(path) => self.save(&path, source, console)?,
                entry => self.obey(entry, console)?,
            }
        }
    }

    /// Does what `entry` asks for, unless it needs further input.
    fn obey(&mut self, entry: Entry, console: &mut Console<'_>) -> Result<()> {
        match entry {
            Entry::Nothing | Entry::Exit | Entry::Save(_) => {}
            Entry::Help => help(console),
            Entry::Reset => {
                self.conversation.clear();
                console.note("The conversation is forgotten.");
            }
            Entry::Retry => self.retry(console)?,
            Entry::Stats => self.stats(console),
            Entry::Set(None) => self.settings(console),
            Entry::Set(Some((name, value))) => self.set(name, &value, console),
            Entry::System(None) => match self.system() {
                Some(text) => console.reply(&text),
                None => console.reply("There is no system prompt; /system TEXT sets one."),
            },
            Entry::System(Some(text)) => {
                let system = (!text.is_empty()).then(|| Message::system(text));
                self.conversation.restore(system.into_iter().collect());
                console.note("The system prompt is set, and the conversation starts over.");
            }
            Entry::Load(path) => self.load(&path, console),
            Entry::Refused(why) => self.refuse(&why.to_string(), console),
            Entry::Message(message) if message.role == "tool" && !self.is_answered() => {
                self.refuse(
                    "there is no tool call to answer; the result was not sent",
                    console,
                );
            }
            Entry::Message(message) => {
                let mut messages = self.conversation.messages().to_vec();
                messages.push(message);
                self.answer(messages, console)?;
            }
        }
        Ok(())
    }

    /// True if the last message is an answer of the model.
    fn is_answered(&self) -> bool {
        let last = self.conversation.messages().last();
        last.is_some_and(|m| m.role == "assistant")
    }

    /// Counts an entry that was not sent and prints the reason.
    fn refuse(&mut self, why: &str, console: &mut Console<'_>) {
        self.unsent += 1;
        console.refuse(why);
    }

    /// Answers `messages`, which become the conversation. If the context is too small or the
    /// template refuses them, a note says so and the conversation does not change.
    fn answer(&mut self, messages: Vec<Message>, console: &mut Console<'_>) -> Result<()> {
        let generating = self.interrupt.generating();
        let reading = Reading::default();
        let options = GenerateOptions {
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            cancel: generating.flag(),
            slide: None,
            progress: reading.progress(),
            log_probs: None,
            template_values: self.template_values.clone(),
        };
        let mut reply = match self.conversation.answer(messages, &options) {
            Ok(reply) => reply,
            Err(Error::Usage {
                name,
                what,
                kind: ErrorKind::ContextExceeded,
            }) => {
                let mut why = format!("the {name} {what}; the message was not sent");
                // With a context that shifts only a single message can be too long.
                if name != MESSAGE {
                    why += &format!("; {WAYS_OUT}");
                }
                if self.may_grow {
                    why += "; a larger --context may help";
                }
                self.unsent += 1;
                console.refuse(&why);
                return Ok(());
            }
            Err(e) if e.kind() == ErrorKind::TemplateRefused => {
                self.unsent += 1;
                console.refuse(&format!("{}; the message was not sent", e.chain()));
                return Ok(());
            }
            Err(Error::Interrupted) => {
                self.unsent += 1;
                console.refuse("interrupted; the message was not sent");
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let (tokens, text) = stream(&mut reply, console.out)?;
        let forgotten = reply.forgotten();
        let outcome = Outcome {
            tokens,
            text,
            finish: reply.finish(),
            reused: reply.reused(),
            reached: reply.reached(),
            metrics: reply.metrics(),
        };
        drop((reply, reading, generating));
        put(console.out, "\n")?;
        console.note(&self.status(&outcome, forgotten));
        outcome.notes().for_each(|text| console.note(&text));
        self.last = Some(outcome.metrics);
        Ok(())
    }

    /// The line after an answer.
    fn status(&self, outcome: &Outcome, forgotten: usize) -> String {
        if outcome.tokens.is_empty() && outcome.finish == Some(Finish::Cancelled) {
            return "[stopped before the answer; the message was not kept]".to_owned();
        }
        let mut line = outcome.status_line(&self.facts, !is_verbose());
        if forgotten > 0 {
            line += &format!(" {} forgotten", count_text(forgotten, "old message"));
        }
        if outcome.finish == Some(Finish::ContextFull) {
            line += &format!(" {WAYS_OUT}.");
        }
        line
    }

    /// Answers the last message again. Without a new answer, the old one stays.
    fn retry(&mut self, console: &mut Console<'_>) -> Result<()> {
        let old = self.conversation.messages().to_vec();
        let mut messages = old.clone();
        while messages.last().is_some_and(|m| m.role == "assistant") {
            messages.pop();
        }
        match messages.last() {
            Some(last) if last.role != "system" => {
                self.answer(messages, console)?;
                if !self.is_answered() {
                    self.conversation.restore(old);
                }
                Ok(())
            }
            _ => {
                self.refuse("there is no message to answer again", console);
                Ok(())
            }
        }
    }

    fn stats(&mut self, console: &mut Console<'_>) {
        let session = self.conversation.session();
        let context = format!("{} of {} tokens", session.cached().len(), session.context());
        let mut rows = vec![
            ("model", self.about.model.clone()),
            ("device", self.about.place.clone()),
            ("context", context),
        ];
        if let Some(last) = &self.last {
            let rate = |rate: Option<f64>| rate.map_or_else(String::new, |r| format!(" at {r:.1} tokens/s"));
            let (read, written) = (
                rate(last.prefill_tokens_per_s()),
                rate(last.decode_tokens_per_s()),
            );
            rows.push((
                "prompt",
                format!("{}{read}", count_text(last.prompt_tokens, "token")),
            ));
            rows.push(("answer", format!("{}{written}", count_text(last.tokens, "token"))));
        }
        rows.extend(self.about.memory.clone().map(|memory| ("memory", memory)));
        rows.push(("sampling", self.facts.sampling.clone()));
        if self.facts.int8 {
            rows.push(("activations", "int8".to_owned()));
        }
        console.rows(&rows);
    }

    /// Saves the conversation. Asks before it replaces a file.
    fn save(&mut self, path: &Path, source: &mut dyn Source, console: &mut Console<'_>) -> Result<()> {
        if Saved::read(path).is_ok() {
            let what = format!("{} exists", path.display());
            if !console.looks.interactive {
                self.refuse(&format!("{what}; delete it or choose another name"), console);
                return Ok(());
            }
            console.reply(&format!("{what}. Replace it? [y/N]"));
            let is_yes = |text: &str| ["y", "yes"].contains(&text.trim().to_ascii_lowercase().as_str());
            if !matches!(source.read()?, Input::Text { text, .. } if is_yes(&text)) {
                console.note("The conversation was not saved.");
                return Ok(());
            }
        }
        let saved = Saved {
            model: Some(self.about.model.clone()),
            messages: self.conversation.messages().to_vec(),
        };
        match saved.write(path) {
            Ok(()) => {
                let count = count_text(saved.messages.len(), "message");
                console.note(&format!("{count} saved to {}", path.display()));
            }
            Err(e) => self.refuse(&e.chain(), console),
        }
        Ok(())
    }

    /// Continues a saved conversation. On failure a note says why, and nothing changes.
    fn load(&mut self, path: &Path, console: &mut Console<'_>) {
        match self.saved(path) {
            Err(e) => self.refuse(&e.chain(), console),
            Ok((saved, tokens)) => {
                let count = count_text(saved.messages.len(), "message");
                let other = saved.model.filter(|model| *model != self.about.model);
                let other = other.map_or_else(String::new, |model| format!("; saved with {model}"));
                let tokens = count_text(tokens, "token");
                console.note(&format!(
                    "{count} ({tokens}) loaded from {}{other}",
                    path.display()
                ));
                for message in saved.messages.iter().skip(count_before_last(&saved.messages)) {
                    let text = shortened(&message.content, SHOWN);
                    let mark = if message.role == "user" { PROMPT } else { "" };
                    console.note(&format!("{mark}{text}"));
                }
                self.conversation.restore(saved.messages);
            }
        }
    }

    /// The conversation in the file `path` and its number of tokens. Errors: the file cannot be
    /// read or is not a conversation, the chat template refuses it, or it does not fit the context.
    fn saved(&mut self, path: &Path) -> Result<(Saved, usize)> {
        let saved = Saved::read(path)?;
        let slides = self.conversation.slides();
        let session = self.conversation.session();
        let tokens = session
            .codec()
            .encode(&saved.messages, &self.template_values, &Cancel::default())?
            .len();
        let context = session.context();
        if tokens > context && !slides {
            let what = format!("{tokens} tokens are more than the context of {context}; see --context");
            return Err(Error::usage(path.display().to_string(), what).of_kind(ErrorKind::ContextExceeded));
        }
        Ok((saved, tokens))
    }
}

/// Characters of each message that `/load` shows.
const SHOWN: usize = 400;

/// What to do about a full context.
const WAYS_OUT: &str = "/reset starts over, /set context-shift on drops the oldest messages";

/// Number of messages before the last question.
fn count_before_last(messages: &[Message]) -> usize {
    let last = messages.iter().rposition(|m| m.role == "user");
    last.unwrap_or(messages.len())
}

fn help(console: &mut Console<'_>) {
    let rows = COMMANDS.iter().chain(&INPUT);
    let rows: Vec<(&str, String)> = rows.map(|(name, what)| (*name, (*what).to_owned())).collect();
    console.rows(&rows);
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(false);
    let given = args.model.given()?;
    args.answers.check()?;
    let template_values = args.template.values()?;
    let mut folder = model_folder("MODEL", given, &["tokenizer.json"], interrupt)?;
    folder.limits = args.exec.on.limits.limits.clone();
    let codec = args.template.codec(&folder)?;
    let resample: Resample<'_> = Box::new(|sampling| {
        let Chosen { sampler, words, .. } = sampling.sampler(&folder, codec.tokenizer())?;
        Ok((args.answers.constrain(sampler, &codec)?, words))
    });
    let (sampler, words) = resample(&args.sampling)?;
    if codec.template()?.is_none() {
        let what = format!(
            "{} has no chat template; use `tlite generate --raw`",
            given.display()
        );
        return Err(Error::usage("MODEL", what).of_kind(ErrorKind::NoTemplate));
    }
    let stop = args.answers.stop_strings()?;
    let options = LoadOptions {
        // The sampler may change.
        greedy: true,
        candidates: true,
        ..args.answers.load_options(&args.exec, &sampler)
    };
    let mut memory = None;
    let ((model, session), time) = waiting(&folder, |on_progress| {
        let mut observer = |step: Loading<'_>| {
            if let Loading::Memory(taken) = step {
                memory = Some(taken.to_string());
            }
            on_progress(step);
        };
        let model = Model::with_codec(&folder, codec.clone(), &options, &mut observer)?;
        let session = args.answers.session(&model, sampler, &args.exec, &mut observer)?;
        Ok((model, session))
    })?;
    let place = model.place();
    print_loaded(model.notes(), &place, time);

    let may_grow = may_grow(&folder, session.context());
    let system = args.system.as_deref().map(Message::system);
    let mut conversation = Conversation::new(session, system.into_iter().collect());
    conversation.set_slides(args.answers.context_shift);
    let mut talk = Talk {
        conversation,
        stop,
        max_tokens: args.answers.max_tokens().unwrap_or(usize::MAX),
        facts: Facts::new(words, &model.used()?),
        template_values,
        interrupt,
        may_grow,
        about: About {
            model: folder.name(),
            place: format!("{}, {}", place.backend, place.device),
            memory,
        },
        last: None,
        unsent: 0,
        sampling: args.sampling.clone(),
        resample,
    };
    let looks = Looks::of_process(args.verbosity.quiet);
    let ended = at_streams(&mut talk, looks, args.no_history, interrupt)?;
    args.answers.save(talk.conversation.session())?;
    match (ended, talk.unsent) {
        (Ended::Interrupted, _) => Err(Error::Interrupted),
        // At a terminal the user has seen why.
        (Ended::Done, n) if n > 0 && !looks.interactive => {
            let verb = if n == 1 { "was" } else { "were" };
            let what = format!("{} of the input {verb} not sent", count_text(n, "line"));
            Err(Error::other(Stage::Text, what))
        }
        _ => Ok(()),
    }
}

/// True if the model in `folder` may support more than `context` tokens.
fn may_grow(folder: &ModelFolder, context: usize) -> bool {
    let most = folder.config.max_position_embeddings;
    most.is_none_or(|most| context < most)
}

/// Runs the chat on the streams of this process.
fn at_streams(talk: &mut Talk<'_>, looks: Looks, no_history: bool, interrupt: &Interrupt) -> Result<Ended> {
    let stdout = std::io::stdout();
    let on_terminal = stdout.is_terminal();
    // Generated text must not control a terminal. The stream is not locked: Ctrl-C flushes it.
    let mut out: Box<dyn Write> = match on_terminal {
        true => Box::new(WordWrap::new(Sanitized::new(stdout), terminal_columns)),
        false => Box::new(stdout),
    };
    let (mut notes, mut prompts) = (std::io::stderr(), std::io::stderr());
    let mut input = std::io::stdin().lock();
    let mut console = Console {
        out: &mut *out,
        notes: &mut notes,
        looks,
    };
    let About { model, place, .. } = &talk.about;
    let sampling = &talk.facts.sampling;
    console.note(&format!("{model} on {place}; {sampling}"));
    if !looks.interactive {
        return talk.run(&mut Lines::new(&mut input), &mut console);
    }
    console.note("/help lists the commands, /exit leaves.");
    let lines = Lines::typed(&mut input, &mut prompts, interrupt);
    // The editor also writes to standard output.
    let editor = (on_terminal && !is_dumb()).then(|| {
        let history = if no_history { None } else { HistoryFile::of_user() };
        Editor::new(history, looks.colour, interrupt)
    });
    talk.run(&mut Terminal::new(editor, lines), &mut console)
}

#[cfg(test)]
mod tests;
