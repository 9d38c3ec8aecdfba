//! Translates what users of llama.cpp, llama-bench and Ollama type, before it is parsed.
//!
//! `table.txt` says for each option and command what it is here. What has no counterpart is
//! explained in one line, or ignored with a note if it cannot change results. Options that ask for
//! what happens anyway are accepted.

use super::output::note;
use clap::Command;
use clap::error::{Error, ErrorKind};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use transformer_lite_convert::models::{ModelStore, hub, is_source};

const TABLE: &str = include_str!("habits/table.txt");
/// Groups of commands in the table.
const GROUPS: [(&str, &[&str]); 2] = [
    ("answer", &["chat", "generate"]),
    (
        "model",
        &["chat", "generate", "bench", "perplexity", "eval", "profile"],
    ),
];
/// Stands for the value of an option.
const VALUE: &str = "VALUE";

type Parsed<T> = Result<T, Error>;

/// A line of the table: commands, options, and what they are here.
struct Row {
    commands: &'static str,
    names: &'static str,
    here: Here,
}

enum Here {
    /// These arguments.
    Is(&'static str),
    /// An error with this text.
    Refused(&'static str),
    /// A note with this text, and whether there is a value.
    Ignored(bool, &'static str),
}

impl Row {
    fn of(line: &'static str) -> Option<Self> {
        let (commands, rest) = line.split_once(':').filter(|_| !line.starts_with('#'))?;
        // Signs between blanks, as values of options have them, too.
        let signed = |sign: &str| rest.split_once(sign);
        let (names, here) = if let Some((names, why)) = signed(" ! ") {
            (names, Here::Refused(why))
        } else if let Some((names, why)) = signed(" ~VALUE ") {
            (names, Here::Ignored(true, why))
        } else if let Some((names, why)) = signed(" ~ ") {
            (names, Here::Ignored(false, why))
        } else {
            let (names, here) = signed(" =")?;
            (names, Here::Is(here.trim()))
        };
        Some(Self {
            commands: commands.trim(),
            names,
            here,
        })
    }

    fn is_about(&self, command: &str, name: &str) -> bool {
        let group = GROUPS.iter().find(|(group, _)| *group == self.commands);
        let holds = group.map_or(self.commands == command, |(_, all)| all.contains(&command));
        holds && self.names.split_whitespace().any(|one| one == name)
    }
}

/// The line about `name`, an option of `command` or, without one, a command.
fn row(command: &str, name: &str) -> Option<Row> {
    TABLE
        .lines()
        .filter_map(Row::of)
        .find(|row| row.is_about(command, name))
}

fn refused(name: &str, why: &str) -> Error {
    Error::raw(ErrorKind::InvalidValue, format!("{name}: {why}\n"))
}

/// The arguments `args` of `root` in the words of this program. An error for what has no
/// counterpart here. `piped` says whether standard input is a pipe or a file.
pub fn translated(root: &Command, mut args: Vec<OsString>, piped: bool) -> Parsed<Vec<OsString>> {
    let Some(name) = args.get(1).and_then(|a| a.to_str()).map(str::to_owned) else {
        return Ok(args);
    };
    if root.find_subcommand(&name).is_none() {
        match row("", &name).map(|row| row.here) {
            Some(Here::Is(here)) => args.splice(1..2, [OsString::from(here)]).for_each(drop),
            Some(Here::Refused(why) | Here::Ignored(_, why)) => return Err(refused(&name, why)),
            None => check_start(&name)?,
        }
    }
    let find = |args: &[OsString]| args.get(1).and_then(|a| root.find_subcommand(a));
    if name == "run" {
        chosen_for_a_language_model(root, &mut args, piped);
    }
    match find(&args) {
        Some(command) => options(command, args),
        None => Ok(args),
    }
}

/// An error for an option or a model where a command is expected.
fn check_start(first: &str) -> Parsed<()> {
    let is_option = first.len() > 1 && first.starts_with('-');
    let is_own = ["-h", "--help", "-V", "--version"].contains(&first);
    if is_option && !is_own || !is_option && is_language_model(first) {
        let why = format!("begin with a command, as in `tlite chat {first}`; `tlite --help` lists them");
        return Err(refused(first, &why));
    }
    Ok(())
}

/// Whether `model` is one that only commands for language models load.
fn is_language_model(model: &str) -> bool {
    let path = Path::new(model);
    let listed = || ModelStore::open_default().ok()?.find(model).ok()?;
    hub::is_address(model) || is_source(path) || (!path.exists() && listed().is_some())
}

/// `run MODEL [PROMPT]` of a language model is `chat` or `generate`, as in Ollama, unless there are
/// options that only `run` has. What is piped in comes before the prompt.
fn chosen_for_a_language_model(root: &Command, args: &mut Vec<OsString>, piped: bool) {
    let takes = |command: &str, option: &str| own(root.find_subcommand(command)?, option);
    let (mut plain, mut named, mut asks) = (Vec::new(), false, false);
    let mut rest = args.iter().skip(2).map(|arg| arg.to_str().unwrap_or_default());
    while let Some(arg) = rest.next() {
        if arg == "--" {
            plain.extend(rest.by_ref());
        } else if arg.len() < 2 || !arg.starts_with('-') {
            plain.push(arg);
        } else if takes("run", arg).is_some() && takes("chat", arg).is_none() {
            return;
        } else {
            let here = row("generate", arg).map(|row| row.here);
            let has_value = takes("generate", arg)
                .unwrap_or_else(|| matches!(here, Some(Here::Is(here)) if here.contains(VALUE)));
            let value = if has_value { rest.next() } else { None };
            match arg {
                "-m" | "--model" => {
                    plain.splice(0..0, value);
                    named = true;
                }
                "-p" | "--prompt" | "-f" | "--file" => asks = true,
                _ => {}
            }
        }
    }
    let is_named = plain
        .first()
        .is_some_and(|model| named || is_language_model(model));
    if !is_named {
        return;
    }
    let has_prompt = asks || plain.len() > 1;
    let more = match (piped, has_prompt) {
        (true, true) => Some("--stdin"),
        (true, false) => Some("-"),
        (false, _) => None,
    };
    if let Some(command) = args.get_mut(1) {
        *command = if has_prompt || piped { "generate" } else { "chat" }.into();
    }
    args.extend(more.map(OsString::from));
}

/// `args` with the options of `command` translated.
fn options(command: &Command, args: Vec<OsString>) -> Parsed<Vec<OsString>> {
    let mut rest = args.into_iter().peekable();
    let mut out: Vec<OsString> = rest.by_ref().take(2).collect();
    while let Some(arg) = rest.next() {
        let Some(text) = arg.to_str().filter(|a| a.len() > 1 && a.starts_with('-')) else {
            out.push(arg);
            continue;
        };
        if text == "--" {
            out.push(arg);
            out.extend(rest.by_ref());
            break;
        }
        let (name, inline) = match text.split_once('=').filter(|_| text.starts_with("--")) {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (text, None),
        };
        let next = inline.as_deref().or(rest.peek().map(OsString::as_os_str));
        let exact = next
            .and_then(OsStr::to_str)
            .and_then(|value| row(command.get_name(), &format!("{name}={value}")));
        let (row, takes) = match (exact, own(command, name)) {
            (Some(row), _) => (row, true),
            (None, Some(takes)) => {
                let value = (takes && inline.is_none()).then(|| rest.next()).flatten();
                out.extend(std::iter::once(arg).chain(value));
                continue;
            }
            (None, None) => match row(command.get_name(), name) {
                Some(row) => {
                    let takes = match row.here {
                        Here::Is(here) => here.contains(VALUE),
                        Here::Ignored(takes, _) => takes,
                        Here::Refused(_) => false,
                    };
                    (row, takes)
                }
                None if is_misread(command, name) => {
                    return Err(refused(name, "there is no such option; --help lists all"));
                }
                None => {
                    out.push(arg);
                    continue;
                }
            },
        };
        let value = inline.or_else(|| takes.then(|| rest.next()).flatten());
        let new = match row.here {
            Here::Is(here) => arguments(name, here, value)?,
            Here::Refused(why) => return Err(refused(name, why)),
            Here::Ignored(_, why) => {
                note(&format!("{name} is ignored: {why}"));
                Vec::new()
            }
        };
        // Two options may be the same one here.
        if new.is_empty() || !out.windows(new.len()).any(|w| w == new) {
            out.extend(new);
        }
    }
    Ok(out)
}

/// The arguments `here` with the value of the option `name`.
fn arguments(name: &str, here: &str, value: Option<OsString>) -> Parsed<Vec<OsString>> {
    let words = here.split_whitespace().map(|word| {
        let Some(before) = word.strip_suffix(VALUE) else {
            return Ok(word.into());
        };
        let value = value
            .as_deref()
            .ok_or_else(|| refused(name, "a value is missing"))?;
        // A prefix that is there is not doubled.
        let doubled = value.to_str().is_some_and(|v| v.starts_with(before));
        let mut whole = OsString::from(if doubled { "" } else { before });
        whole.push(value);
        Ok(whole)
    });
    words.collect()
}

/// Whether the option `name` of `command` takes a value; `None` if there is no such option.
fn own(command: &Command, name: &str) -> Option<bool> {
    let is_called = |arg: &clap::Arg| match (name.strip_prefix("--"), name.strip_prefix('-')) {
        (Some(long), _) => {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || aliases.contains(&long)
        }
        (None, Some(short)) => arg.get_short().is_some_and(|letter| short == letter.to_string()),
        (None, None) => false,
    };
    let arg = command.get_arguments().find(|arg| is_called(arg))?;
    Some(arg.get_action().takes_values())
}

/// Whether clap would read the unknown option `name` as another one: letters after an option with a
/// number, or after `-h`.
fn is_misread(command: &Command, name: &str) -> bool {
    let mut letters = name.chars().skip(1);
    let (Some(first), Some(second)) = (letters.next(), letters.next()) else {
        return false;
    };
    let arg = command.get_arguments().find(|arg| arg.get_short() == Some(first));
    let is_number = arg.is_some_and(clap::Arg::is_allow_negative_numbers_set);
    first == 'h' || is_number && second.is_ascii_alphabetic()
}

#[cfg(test)]
mod tests;
