//! Parsing of what is typed into a chat: commands and messages.

use super::input::QUOTES;
use super::settings::{SETTINGS, setting};
use crate::cli::near::nearest;
use std::path::PathBuf;
use transformer_lite::unstable::llm::Message;

/// The commands, as `/help` lists them.
pub const COMMANDS: [(&str, &str); 10] = [
    ("/help", "list the commands"),
    (
        "/system [TEXT]",
        "show the system prompt, or replace it and start over",
    ),
    (
        "/set [NAME VALUE]",
        "show the settings, or change one (also /temp 0, /seed 5)",
    ),
    ("/reset", "forget the conversation (also /clear)"),
    ("/retry", "answer the last message again"),
    ("/save FILE", "save the conversation as JSON"),
    ("/load FILE", "continue a saved conversation"),
    ("/stats", "show tokens in the context, speed, memory and sampling"),
    ("/tool NAME RESULT", "answer a tool call"),
    ("/exit", "leave (also /quit, /bye, Ctrl-D)"),
];

/// Other input, as `/help` lists it.
pub const INPUT: [(&str, &str); 4] = [
    (QUOTES, "begins and ends a message of several lines"),
    ("\\", "at the end of a line: continue on the next line"),
    ("//TEXT", "send a message that begins with \"/\""),
    ("Ctrl-C", "stop an answer, or clear the line"),
];

#[derive(Debug, PartialEq)]
pub enum Entry {
    /// White space.
    Nothing,
    Help,
    Exit,
    Reset,
    Retry,
    Stats,
    /// Replaces the system prompt, or shows it if `None`.
    System(Option<String>),
    /// Changes the setting of this name, or shows all if `None`.
    Set(Option<(&'static str, String)>),
    Save(PathBuf),
    Load(PathBuf),
    Message(Message),
    /// Looks like a command, but is not one. It is not sent.
    Refused(Refusal),
}

/// Why an entry is refused.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    /// No command has this name.
    Unknown(String),
    /// There is no such setting.
    Setting(String),
    /// This command was given arguments, but takes none.
    Arguments(&'static str),
    /// This setting needs a value.
    Value(&'static str),
    /// An argument is missing; this is the correct form.
    Usage(&'static str),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(name) => {
                let names = COMMANDS.iter().filter_map(|(usage, _)| usage.split(' ').next());
                let tip = nearest(name, names).map_or_else(String::new, |n| format!("; did you mean {n}?"));
                let rest = "; /help lists the commands, //text sends /text";
                write!(
                    f,
                    "unknown command {name}{}",
                    if tip.is_empty() { rest } else { &tip }
                )
            }
            Self::Setting(name) => {
                let tip = nearest(name, SETTINGS).map_or_else(String::new, |n| format!("did you mean {n}? "));
                write!(
                    f,
                    "unknown setting {name}; {tip}expected one of {}",
                    SETTINGS.join(", ")
                )
            }
            Self::Arguments(name) => write!(f, "{name} takes no arguments; //text sends /text"),
            Self::Value(name) => write!(f, "expected /set {name} VALUE"),
            Self::Usage(usage) => write!(f, "expected {usage}"),
        }
    }
}

impl Entry {
    /// Parses `text`. Quoted text is always a message.
    pub fn read(text: &str, quoted: bool) -> Self {
        if text.trim().is_empty() {
            return Self::Nothing;
        }
        if quoted {
            return Self::Message(Message::user(text));
        }
        let text = trimmed(text);
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let Some(name) = word.strip_prefix('/') else {
            return Self::Message(Message::user(text));
        };
        if name.starts_with('/') {
            return Self::Message(Message::user(text.get(1..).unwrap_or_default()));
        }
        // Paths and comments are messages.
        let is_letter = |b: u8| b.is_ascii_alphabetic() || matches!(b, b'?' | b'-' | b'_');
        if name.is_empty() || !name.bytes().all(is_letter) {
            return Self::Message(Message::user(text));
        }
        let alone = |entry: Self, name: &'static str| match rest {
            "" => entry,
            _ => Self::Refused(Refusal::Arguments(name)),
        };
        match name.to_ascii_lowercase().as_str() {
            "help" | "?" => alone(Self::Help, "/help"),
            "exit" => alone(Self::Exit, "/exit"),
            "quit" => alone(Self::Exit, "/quit"),
            "bye" => alone(Self::Exit, "/bye"),
            "reset" => alone(Self::Reset, "/reset"),
            "clear" => alone(Self::Reset, "/clear"),
            "retry" => alone(Self::Retry, "/retry"),
            "stats" => alone(Self::Stats, "/stats"),
            "set" => set(rest),
            "system" if rest.is_empty() => Self::System(None),
            "system" => Self::System(Some(unquoted(rest).to_owned())),
            "save" if rest.is_empty() => Self::Refused(Refusal::Usage("/save FILE")),
            "save" => Self::Save(file(rest)),
            "load" if rest.is_empty() => Self::Refused(Refusal::Usage("/load FILE")),
            "load" => Self::Load(file(rest)),
            "tool" => match rest.split_once(char::is_whitespace) {
                Some((name, result)) => Self::Message(Message::tool(name, result.trim_start())),
                None => Self::Refused(Refusal::Usage("/tool NAME RESULT")),
            },
            name => match setting(name) {
                Some(name) if rest.is_empty() => Self::Refused(Refusal::Value(name)),
                Some(name) => Self::Set(Some((name, rest.to_owned()))),
                None => Self::Refused(Refusal::Unknown(word.to_owned())),
            },
        }
    }
}

/// The entry `/set rest`, also in Ollama's form `/set parameter NAME VALUE`.
fn set(rest: &str) -> Entry {
    let rest = rest.strip_prefix("parameter ").unwrap_or(rest).trim();
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    match (setting(name), value.trim()) {
        _ if rest.is_empty() => Entry::Set(None),
        (None, value) if name == "system" && !value.is_empty() => {
            Entry::System(Some(unquoted(value).to_owned()))
        }
        (None, _) => Entry::Refused(Refusal::Setting(name.to_owned())),
        (Some(name), "") => Entry::Refused(Refusal::Value(name)),
        (Some(name), value) => Entry::Set(Some((name, value.to_owned()))),
    }
}

/// Trims `text`. If it has several lines, the first one keeps its indentation.
fn trimmed(text: &str) -> &str {
    let text = text.trim_end();
    match text.trim_start() {
        one if !one.contains('\n') => one,
        one if one.starts_with('/') => one,
        several => {
            let start = text.len() - several.len();
            let line = text
                .get(..start)
                .and_then(|t| t.rfind('\n'))
                .map_or(0, |at| at + 1);
            text.get(line..).unwrap_or(several)
        }
    }
}

/// Removes one pair of quotation marks around `text`.
fn unquoted(text: &str) -> &str {
    let inner = |mark| text.strip_prefix(mark)?.strip_suffix(mark);
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

/// The path in `text`, with `~/` expanded to the home folder.
pub fn file(text: &str) -> PathBuf {
    let text = unquoted(text);
    let home = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
    match (text.strip_prefix("~/"), std::env::var_os(home)) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Entry {
        Entry::read(text, false)
    }

    fn user(text: &str) -> Entry {
        Entry::Message(Message::user(text))
    }

    #[test]
    fn commands_have_names_and_aliases() {
        for (text, entry) in [
            ("", Entry::Nothing),
            (" \t\n", Entry::Nothing),
            ("/help", Entry::Help),
            ("/?", Entry::Help),
            ("  /EXIT  ", Entry::Exit),
            ("/quit", Entry::Exit),
            ("/bye\n", Entry::Exit),
            ("/reset", Entry::Reset),
            ("/clear", Entry::Reset),
            ("/retry", Entry::Retry),
            ("/stats", Entry::Stats),
            ("/system", Entry::System(None)),
            ("/system  be kind ", Entry::System(Some("be kind".to_owned()))),
            ("/system \"\"", Entry::System(Some(String::new()))),
            ("/set", Entry::Set(None)),
            ("/set top_k 5", Entry::Set(Some(("top-k", "5".to_owned())))),
            (
                "/set parameter temperature 0.5",
                Entry::Set(Some(("temperature", "0.5".to_owned()))),
            ),
            ("/set system be kind", Entry::System(Some("be kind".to_owned()))),
            ("/temp 0", Entry::Set(Some(("temperature", "0".to_owned())))),
            ("/top-p 0.9", Entry::Set(Some(("top-p", "0.9".to_owned())))),
            ("/save a b.json", Entry::Save("a b.json".into())),
            ("/load 'a b.json'", Entry::Load("a b.json".into())),
            ("/tool f  a b", Entry::Message(Message::tool("f", "a b"))),
        ] {
            assert_eq!(read(text), entry, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_command_is_refused_or_sent() {
        use Refusal::{Arguments, Setting, Unknown, Usage, Value};
        assert!(Unknown("/sytem".to_owned()).to_string().contains("/system"));
        for (text, refusal) in [
            ("/set colour 5", Setting("colour".to_owned())),
            ("/set seed", Value("seed")),
            ("/seed", Value("seed")),
            ("/nothing", Unknown("/nothing".to_owned())),
            ("/etc is a folder", Unknown("/etc".to_owned())),
            ("/reset all", Arguments("/reset")),
            ("/exit now", Arguments("/exit")),
            ("/help me", Arguments("/help")),
            ("/tool", Usage("/tool NAME RESULT")),
            ("/tool add", Usage("/tool NAME RESULT")),
            ("/save", Usage("/save FILE")),
            ("/load ", Usage("/load FILE")),
        ] {
            assert_eq!(read(text), Entry::Refused(refusal), "{text:?}");
        }
        for (text, sent) in [
            ("hello", "hello"),
            ("//exit", "/exit"),
            ("// a comment", "/ a comment"),
            ("/", "/"),
            ("/ what", "/ what"),
            ("/usr/bin/env is a file", "/usr/bin/env is a file"),
            ("/* a\n comment */", "/* a\n comment */"),
            ("\n    if x:\n        y\n", "    if x:\n        y"),
        ] {
            assert_eq!(read(text), user(sent), "{text:?}");
        }
        assert_eq!(Entry::read("/exit", true), user("/exit"));
        assert_eq!(Entry::read(" a ", true), user(" a "));
    }
}
