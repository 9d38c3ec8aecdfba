//! Completion of commands and their arguments with Tab.

use super::command::{COMMANDS, file};
use super::settings::SETTINGS;

/// What Tab makes of a text.
#[derive(Debug, PartialEq)]
pub enum Completion {
    /// This belongs after the text.
    Append(String),
    /// Several ways to go on.
    Choice(Vec<String>),
    Nothing,
}

/// True if Tab completes `text` instead of being part of it.
pub fn is_completed(text: &str) -> bool {
    text.starts_with('/') && !text.starts_with("//") && !text.contains('\n')
}

/// Completes `text`, a command up to the cursor.
pub fn complete(text: &str) -> Completion {
    let Some((name, rest)) = text.split_once(' ') else {
        let names = COMMANDS.iter().map(|(usage, _)| match usage.split_once(' ') {
            Some((name, _)) => format!("{name} "),
            None => (*usage).to_owned(),
        });
        return among(text, names.collect());
    };
    match name {
        "/set" => among(rest, SETTINGS.iter().map(|name| format!("{name} ")).collect()),
        "/save" | "/load" => {
            let (folder, start) = rest.rsplit_once('/').map_or(("", rest), |(f, s)| (f, s));
            let shown = match rest.contains('/') {
                true => file(&format!("{folder}/")),
                false => ".".into(),
            };
            among(start, files(&shown, start))
        }
        _ => Completion::Nothing,
    }
}

/// The names in `folder`; hidden ones only if `start` asks for them.
fn files(folder: &std::path::Path, start: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let end = if entry.path().is_dir() { "/" } else { "" };
        (start.starts_with('.') || !name.starts_with('.')).then(|| name + end)
    });
    names.collect()
}

fn among(start: &str, mut words: Vec<String>) -> Completion {
    words.retain(|word| word.starts_with(start));
    words.sort();
    let Some(first) = words.first() else {
        return Completion::Nothing;
    };
    let common = words.iter().fold(first.as_str(), |common, word| {
        let same = common.char_indices().zip(word.chars()).find(|((_, a), b)| a != b);
        let end = same.map_or(common.len().min(word.len()), |((at, _), _)| at);
        common.get(..end).unwrap_or_default()
    });
    match common.get(start.len()..) {
        Some(rest) if !rest.is_empty() => Completion::Append(rest.to_owned()),
        _ if words.len() > 1 => Completion::Choice(words),
        _ => Completion::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_settings_and_files_are_completed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("/load {}/{name}", dir.path().display());
        std::fs::write(dir.path().join("chat one.json"), "").unwrap();
        std::fs::write(dir.path().join("chat two.json"), "").unwrap();
        std::fs::write(dir.path().join(".hidden"), "").unwrap();
        std::fs::create_dir(dir.path().join("old")).unwrap();
        let append = |text: &str| Completion::Append(text.to_owned());
        for (text, expected) in [
            ("/sy", append("stem ")),
            ("/he", append("lp")),
            ("/nothing", Completion::Nothing),
            ("/help", Completion::Nothing),
            ("/set top", append("-")),
            ("/set te", append("mperature ")),
            ("/tool f", Completion::Nothing),
            (&at("c"), append("hat ")),
            (&at("chat o"), append("ne.json")),
            (&at("o"), append("ld/")),
            (&at("none"), Completion::Nothing),
        ] {
            assert_eq!(complete(text), expected, "{text}");
        }
        let choice = |words: &[&str]| Completion::Choice(words.iter().map(|w| (*w).to_owned()).collect());
        assert_eq!(complete("/set top-"), choice(&["top-k ", "top-p "]));
        assert_eq!(
            complete(&at("chat ")),
            choice(&["chat one.json", "chat two.json"])
        );
        assert!(is_completed("/s") && !is_completed("//s") && !is_completed("a") && !is_completed("/a\n"));
    }
}
