//! Reading from a terminal with line editing and history.

use super::complete::{Completion, complete, is_completed};
use super::history::{CAPACITY, HistoryFile, clean};
use super::input::{Draft, INDENT, Input, PROMPT};
use super::terminal::{QuietTerminal, suspend};
use crate::cli::interrupt::{Held, Interrupt, lock};
use crate::cli::output::printable;
use reedline::{
    Color, EditCommand, EditMode, Emacs, FileBackedHistory, Highlighter, History, HistoryItem, HistoryItemId,
    HistorySessionId, KeyCode, KeyModifiers, Prompt, PromptEditMode, PromptHistorySearch,
    PromptHistorySearchStatus, Reedline, ReedlineEvent, ReedlineRawEvent, SearchQuery, Signal,
    SimpleMatchHighlighter, StyledText, ValidationResult, Validator, default_emacs_keybindings,
};
use std::borrow::Cow;
use std::io::Write;
use std::sync::{Arc, Mutex};

/// Host commands of the keys Ctrl-C, Ctrl-Z and Tab. They end `read_line` and keep the text.
const INTERRUPT: &str = "interrupt";
const SUSPEND: &str = "suspend";
const COMPLETE: &str = "complete";

type Shared<T> = Arc<Mutex<T>>;

/// A line editor. While it exists, keys that are pressed during an answer are not echoed; they are
/// kept for the next entry.
pub struct Editor<'a> {
    /// `None` before an entry that starts on a new line of the screen.
    line: Option<Reedline>,
    draft: Shared<Draft>,
    /// The text that the screen shows.
    shown: Shared<String>,
    recall: Recall,
    prompt: Marks,
    colour: bool,
    terminal: QuietTerminal,
    _parting: Held<'a>,
}

impl<'a> Editor<'a> {
    /// An editor that reads from and appends to `history`. The terminal's settings are restored
    /// when the editor is dropped and when `interrupt` ends the program.
    pub fn new(history: Option<HistoryFile>, colour: bool, interrupt: &'a Interrupt) -> Self {
        let terminal = QuietTerminal::enter();
        let parting = interrupt.parting(terminal.restorer());
        let draft = Shared::default();
        Self {
            line: None,
            recall: Recall::new(history, draft.clone()),
            draft,
            shown: Shared::default(),
            prompt: Marks,
            colour,
            terminal,
            _parting: parting,
        }
    }

    fn fresh(&self) -> Reedline {
        let mut keys = default_emacs_keybindings();
        // History search does not handle `Multiple`; there `Esc` ends the search.
        let end_with = |word: &str| {
            let end = ReedlineEvent::ExecuteHostCommand(word.to_owned());
            ReedlineEvent::UntilFound(vec![ReedlineEvent::Multiple(vec![end]), ReedlineEvent::Esc])
        };
        keys.add_binding(KeyModifiers::CONTROL, KeyCode::Char('c'), end_with(INTERRUPT));
        keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, end_with(COMPLETE));
        if cfg!(unix) {
            keys.add_binding(KeyModifiers::CONTROL, KeyCode::Char('z'), end_with(SUSPEND));
        }
        let keys = Keys {
            emacs: Emacs::new(keys),
            draft: self.draft.clone(),
            shown: self.shown.clone(),
        };
        Reedline::create()
            .with_ansi_colors(self.colour)
            .with_edit_mode(Box::new(keys))
            .with_validator(Box::new(Lines(self.draft.clone())))
            .with_highlighter(Box::new(Plain {
                plain: SimpleMatchHighlighter::default(),
                shown: self.shown.clone(),
            }))
            .with_history(Box::new(self.recall.clone()))
            // On Unix, `QuietTerminal` turns it on for the whole chat.
            .use_bracketed_paste(cfg!(not(unix)))
    }

    /// Reads the next entry. Ctrl-C clears a line that contains text. Fails if the terminal does
    /// not support the editor.
    pub fn read(&mut self) -> std::io::Result<Input> {
        *lock(&self.draft) = Draft::default();
        let mut line = self.line.take().unwrap_or_else(|| self.fresh());
        loop {
            let signal = line.read_line(&self.prompt);
            self.terminal.apply();
            match signal? {
                Signal::Success(text) => {
                    self.line = Some(line);
                    let (text, quoted) = lock(&self.draft).finish(&text);
                    return Ok(Input::Text { text, quoted });
                }
                Signal::CtrlD => return Ok(Input::End),
                Signal::HostCommand(word) if word == SUSPEND => {
                    line = self.beside(line, |editor| {
                        editor.terminal.leave();
                        suspend();
                        editor.terminal.apply();
                    });
                }
                Signal::HostCommand(word) if word == COMPLETE => line = self.completed(line),
                Signal::HostCommand(_) if !line.current_buffer_contents().is_empty() => {
                    line.run_edit_commands(&[EditCommand::Clear]);
                    *lock(&self.draft) = Draft::default();
                }
                Signal::HostCommand(_) | Signal::CtrlC => {
                    next_line();
                    return Ok(Input::Interrupt);
                }
                _ => self.line = None,
            }
        }
    }
}

impl Editor<'_> {
    /// A line with the text of `line`, after `work` wrote to the screen below it.
    fn beside(&self, line: Reedline, work: impl FnOnce(&Self)) -> Reedline {
        let at = line.current_insertion_point();
        let text = line.current_buffer_contents().to_owned();
        drop(line);
        next_line();
        work(self);
        let mut line = self.fresh();
        line.run_edit_commands(&[
            EditCommand::InsertString(text),
            EditCommand::MoveToPosition {
                position: at,
                select: false,
            },
        ]);
        line
    }

    /// `line` with the command before its cursor completed; several ways to go on are listed.
    fn completed(&self, mut line: Reedline) -> Reedline {
        let text = line.current_buffer_contents();
        let text = text.get(..line.current_insertion_point()).unwrap_or_default();
        match complete(text) {
            Completion::Append(rest) => line.run_edit_commands(&[EditCommand::InsertString(rest)]),
            Completion::Choice(words) => {
                let words: Vec<&str> = words.iter().map(|w| w.trim_end()).collect();
                let list = printable(&words.join("  ")).into_owned();
                return self.beside(line, |_| {
                    let _closed = std::io::stderr().write_all(format!("{list}\n").as_bytes());
                });
            }
            Completion::Nothing => {}
        }
        line
    }
}

/// Moves the cursor to the next line.
fn next_line() {
    let _closed = std::io::stderr().write_all(b"\n");
}

/// Emacs keys. Control characters are removed from pasted text. Tab completes commands only: a
/// paste contains tabs if the terminal does not mark pastes.
struct Keys {
    emacs: Emacs,
    draft: Shared<Draft>,
    shown: Shared<String>,
}

impl EditMode for Keys {
    fn parse_event(&mut self, event: ReedlineRawEvent) -> ReedlineEvent {
        let mut event = self.emacs.parse_event(event);
        let is_tab = matches!(&event, ReedlineEvent::UntilFound(all)
            if matches!(all.first(), Some(ReedlineEvent::Multiple(one))
                if one.contains(&ReedlineEvent::ExecuteHostCommand(COMPLETE.to_owned()))));
        if is_tab && !is_completed(&lock(&self.shown)) {
            event = ReedlineEvent::Edit(vec![EditCommand::InsertChar('\t')]);
        }
        if let ReedlineEvent::Edit(commands) = &mut event {
            for command in commands {
                if let EditCommand::InsertString(text) = command {
                    *text = clean(text);
                    lock(&self.draft).pasted(text);
                }
            }
        }
        event
    }

    fn edit_mode(&self) -> PromptEditMode {
        self.emacs.edit_mode()
    }
}

/// Decides on Enter whether the entry continues.
struct Lines(Shared<Draft>);

impl Validator for Lines {
    fn validate(&self, line: &str) -> ValidationResult {
        match lock(&self.0).goes_on(line) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Complete,
        }
    }
}

/// No highlighting. Tabs are shown as one space, which is how the editor counts them.
struct Plain {
    plain: SimpleMatchHighlighter,
    shown: Shared<String>,
}

impl Highlighter for Plain {
    fn highlight(&self, line: &str, cursor: usize) -> StyledText {
        line.clone_into(&mut lock(&self.shown));
        self.plain.highlight(&line.replace('\t', " "), cursor)
    }
}

/// The prompt and the indentation of further lines.
struct Marks;

impl Prompt for Marks {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _mode: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed(PROMPT)
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed(INDENT)
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        let failing = match search.status {
            PromptHistorySearchStatus::Passing => "",
            PromptHistorySearchStatus::Failing => "no ",
        };
        Cow::Owned(format!("({failing}history: {}) ", search.term))
    }

    fn get_indicator_color(&self) -> Color {
        Color::Cyan
    }
}

/// The history, shared by all line editors of a chat. Entries are stored as they are sent.
#[derive(Clone)]
struct Recall {
    entries: Shared<FileBackedHistory>,
    file: Option<Arc<HistoryFile>>,
    draft: Shared<Draft>,
}

impl Recall {
    fn new(file: Option<HistoryFile>, draft: Shared<Draft>) -> Self {
        let mut entries = FileBackedHistory::new(CAPACITY).unwrap_or_default();
        let read = file.as_ref().map(|file| file.read().map_err(|e| (file, e)));
        match read {
            Some(Ok(read)) => {
                for entry in read {
                    if let Err(e) = entries.save(HistoryItem::from_command_line(entry)) {
                        log::debug!("an entry of the history is left out: {e}");
                    }
                }
            }
            Some(Err((file, e))) => log::warn!("cannot read {}: {e}", file.path().display()),
            None => {}
        }
        Self {
            entries: Arc::new(Mutex::new(entries)),
            file: file.map(Arc::new),
            draft,
        }
    }
}

impl History for Recall {
    fn save(&mut self, item: HistoryItem) -> reedline::Result<HistoryItem> {
        let (text, quoted) = lock(&self.draft).finish(&item.command_line);
        // Recalled, it must be a message again.
        let text = match quoted && text.starts_with('/') {
            true => format!("/{text}"),
            false => text,
        };
        let saved = lock(&self.entries).save(HistoryItem::from_command_line(text))?;
        // A repetition of the last entry gets no number.
        if saved.id.is_some()
            && let Some(file) = &self.file
            && let Err(e) = file.add(&saved.command_line)
        {
            log::warn!("cannot write {}: {e}", file.path().display());
            self.file = None;
        }
        Ok(saved)
    }

    fn load(&self, id: HistoryItemId) -> reedline::Result<HistoryItem> {
        lock(&self.entries).load(id)
    }

    fn count(&self, query: SearchQuery) -> reedline::Result<i64> {
        lock(&self.entries).count(query)
    }

    fn search(&self, query: SearchQuery) -> reedline::Result<Vec<HistoryItem>> {
        lock(&self.entries).search(query)
    }

    fn update(
        &mut self,
        id: HistoryItemId,
        updater: &dyn Fn(HistoryItem) -> HistoryItem,
    ) -> reedline::Result<()> {
        lock(&self.entries).update(id, updater)
    }

    fn clear(&mut self) -> reedline::Result<()> {
        lock(&self.entries).clear()
    }

    fn delete(&mut self, id: HistoryItemId) -> reedline::Result<()> {
        lock(&self.entries).delete(id)
    }

    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn session(&self) -> Option<HistorySessionId> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reedline::SearchDirection;

    fn texts(recall: &Recall) -> Vec<String> {
        let all = SearchQuery::everything(SearchDirection::Forward, None);
        let found = recall.search(all).unwrap();
        found.into_iter().map(|item| item.command_line).collect()
    }

    #[test]
    fn history_keeps_entries_as_they_are_sent() {
        let dir = tempfile::tempdir().unwrap();
        let file = || Some(HistoryFile::at(dir.path().join("history")));
        let draft = Shared::<Draft>::default();
        let mut recall = Recall::new(file(), draft.clone());
        for text in ["one", "one", "\"\"\"\n/exit\n\"\"\"", "a \\\nb"] {
            *lock(&draft) = Draft::default();
            let line = text.find('\\').map(|at| &text[..=at]);
            line.into_iter()
                .for_each(|line| assert!(lock(&draft).goes_on(line)));
            recall.save(HistoryItem::from_command_line(text)).unwrap();
        }
        let sent = ["one", "//exit", "a \nb"];
        assert_eq!(texts(&recall), sent);
        assert_eq!(texts(&Recall::new(file(), Shared::default())), sent);
        let recall = Recall::new(None, Shared::default());
        assert!(texts(&recall).is_empty());
    }

    #[test]
    fn history_that_cannot_be_written_is_kept_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let file = HistoryFile::at(dir.path().join("file/history"));
        let mut recall = Recall::new(Some(file), Shared::default());
        recall.save(HistoryItem::from_command_line("one")).unwrap();
        assert_eq!(texts(&recall), ["one"]);
    }
}
