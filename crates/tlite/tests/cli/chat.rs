//! `tlite chat` at a terminal: a pseudo-terminal with an emulator behind it.
#![cfg(target_os = "linux")]

use rustix::process::{Pid, Signal, ioctl_tiocsctty, kill_process, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tlite_testing::gguf::{self, Traits};
use transformer_lite_convert::gguf::Value;

/// A machine may be slow; nothing takes that long otherwise.
const PATIENCE: Duration = Duration::from_secs(120);

const CTRL_C: &[u8] = b"\x03";
const CTRL_D: &[u8] = b"\x04";
const LEFT: &[u8] = b"\x1b[D";
const UP: &[u8] = b"\x1b[A";
const ALT_ENTER: &[u8] = b"\x1b\r";
/// Favours the token of `A`: the first tokens are three special ones and the bytes.
const A: &str = "68=1000";
/// Favours that of the control character Escape.
const ESCAPE: &str = "30=2000";
/// Asks for the position of the cursor.
const WHERE: &[u8] = b"\x1b[6n";

/// A model that answers with the byte that `--logit-bias` favours, whose prompts are short however
/// long messages are.
fn model() -> (TempDir, PathBuf) {
    let mut file = gguf::tiny("llama", Traits::default());
    file.set("llama.context_length", Value::U32(4096));
    let (dir, model) = tlite_testing::converted(&file);
    let template = "{% for m in messages %}{{ m.role[0] }}{{ m.content | length }}{% endfor %}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    (dir, model)
}

/// How a chat is started.
struct Start<'a> {
    rows: u16,
    columns: u16,
    term: &'a str,
    no_color: Option<&'a str>,
    /// It tells where the cursor is.
    answers: bool,
    /// Answers of three tokens unless told otherwise.
    options: &'a [&'a str],
    /// Holds the history, and what is saved.
    home: &'a Path,
    stdout: Option<File>,
}

impl<'a> Start<'a> {
    fn at(home: &'a Path) -> Self {
        Self {
            rows: 24,
            columns: 80,
            term: "xterm-256color",
            no_color: None,
            answers: true,
            options: &["-n", "3"],
            home,
            stdout: None,
        }
    }
}

/// A chat in a terminal.
struct Chat {
    child: Child,
    keyboard: File,
    /// Kept open: its settings are looked at.
    terminal: File,
    output: Receiver<Vec<u8>>,
    /// Not yet shown, as it may be a part of a question.
    pending: Vec<u8>,
    screen: vt100::Parser,
    answers: bool,
    /// All that was shown.
    shown: Vec<u8>,
    home: PathBuf,
    saves: usize,
    /// Holds the model.
    _folder: TempDir,
}

impl Chat {
    fn start(start: Start<'_>) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let main: OwnedFd = openpt(flags).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let size = Winsize {
            ws_row: start.rows,
            ws_col: start.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&main, size).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let name = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let no_tty = i32::try_from(OpenptFlags::NOCTTY.bits()).unwrap();
        let mut options = OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, no_tty);
        let terminal = options.read(true).write(true).open(name).unwrap();
        let stream = || Stdio::from(terminal.try_clone().unwrap());
        let (folder, model) = model();
        let mut command = tlite_testing::command();
        command
            .arg("chat")
            .arg(model)
            .args(["--backend", "reference", "--temp", "0", "--logit-bias", A])
            .args(start.options)
            .current_dir(start.home)
            .env("HOME", start.home)
            .env("XDG_CACHE_HOME", start.home.join("cache"))
            .env("TERM", start.term)
            .env_remove("TLITE_HISTORY_DIR")
            .env_remove("NO_COLOR")
            .envs(start.no_color.map(|value| ("NO_COLOR", value)))
            .env_remove("CLICOLOR_FORCE")
            .stdin(stream())
            .stdout(start.stdout.map_or_else(stream, Stdio::from))
            .stderr(stream());
        // SAFETY: between fork and exec only two system calls are made.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            })
        };
        let child = command.spawn().unwrap();
        let keyboard = File::from(main);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n) = reader.read(&mut bytes) {
                if n == 0 || sender.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            keyboard,
            terminal,
            output,
            pending: Vec::new(),
            screen: vt100::Parser::new(start.rows, start.columns, 10_000),
            answers: start.answers,
            shown: Vec::new(),
            home: start.home.to_owned(),
            saves: 0,
            _folder: folder,
        }
    }

    /// Starts and waits for the prompt.
    fn ready(start: Start<'_>) -> Self {
        let mut chat = Self::start(start);
        chat.prompted();
        chat
    }

    /// Shows what comes within a moment, and tells where the cursor is when asked.
    fn turn(&mut self) {
        match self.output.recv_timeout(Duration::from_millis(20)) {
            Ok(bytes) => self.pending.extend(bytes),
            Err(RecvTimeoutError::Timeout) => {}
            // Nobody has the terminal open: the end shows elsewhere.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(20)),
        }
        while let Some(at) = self.pending.windows(WHERE.len()).position(|w| w == WHERE) {
            let shown: Vec<u8> = self.pending.drain(..at + WHERE.len()).collect();
            self.show(&shown[..at]);
            if self.answers {
                let (row, column) = self.screen.screen().cursor_position();
                let position = format!("\x1b[{};{}R", row + 1, column + 1);
                self.keyboard.write_all(position.as_bytes()).unwrap();
            }
        }
        // A question may be cut.
        let cut = (1..WHERE.len())
            .rev()
            .find(|n| self.pending.ends_with(&WHERE[..*n]));
        let whole = self.pending.len() - cut.unwrap_or(0);
        let shown: Vec<u8> = self.pending.drain(..whole).collect();
        self.show(&shown);
    }

    fn show(&mut self, bytes: &[u8]) {
        self.screen.process(bytes);
        self.shown.extend(bytes);
    }

    fn text(&self) -> String {
        self.screen.screen().contents()
    }

    /// Waits until the screen is as `seen` says.
    #[track_caller]
    fn wait(&mut self, what: &str, seen: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !seen(self) {
            self.turn();
            assert!(start.elapsed() < PATIENCE, "no {what}:\n{}", self.text());
        }
    }

    /// Waits for an empty prompt with the cursor behind it.
    #[track_caller]
    fn prompted(&mut self) {
        self.wait("prompt", |chat| chat.line() == ">");
    }

    /// The line of the cursor, without white space at its end.
    fn line(&self) -> String {
        let screen = self.screen.screen();
        let (row, _) = screen.cursor_position();
        let (_, columns) = screen.size();
        let line = screen.contents_between(row, 0, row, columns);
        line.trim_end().to_owned()
    }

    fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Types `text`, waits until it stands there, and presses Enter.
    #[track_caller]
    fn enter(&mut self, text: &str) {
        self.press(text.as_bytes());
        self.wait(text, |chat| chat.line().ends_with(text.trim_end()));
        self.press(b"\r");
    }

    fn paste(&mut self, text: &str) {
        // Terminals send the key Enter for the end of a line. A large paste is written while output
        // is read.
        let bytes = [b"\x1b[200~", text.replace('\n', "\r").as_bytes(), b"\x1b[201~"].concat();
        let mut keyboard = self.keyboard.try_clone().unwrap();
        let writer = std::thread::spawn(move || keyboard.write_all(&bytes).unwrap());
        while !writer.is_finished() {
            self.turn();
        }
        writer.join().unwrap();
    }

    /// Waits until an answer is finished and the next prompt is there.
    #[track_caller]
    fn answered(&mut self) {
        self.wait("status line", |chat| chat.text().contains(" tokens"));
        self.prompted();
    }

    /// The conversation's messages as `/save` writes them, without roles.
    #[track_caller]
    fn messages(&mut self) -> Vec<String> {
        self.saves += 1;
        let name = format!("chat{}.json", self.saves);
        let path = self.home.join(&name);
        self.enter(&format!("/save {name}"));
        let start = Instant::now();
        while !path.exists() {
            self.turn();
            assert!(
                start.elapsed() < PATIENCE,
                "{name} is not written:\n{}",
                self.text()
            );
        }
        self.prompted();
        let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let messages = saved["messages"].as_array().unwrap();
        let content = |m: &serde_json::Value| m["content"].as_str().unwrap().to_owned();
        messages.iter().map(content).collect()
    }

    /// Waits for the end of the program.
    #[track_caller]
    fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            self.turn();
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "no end:\n{}", self.text());
        }
    }

    #[track_caller]
    fn ends_with(&mut self, code: i32) {
        let status = self.ended();
        assert_eq!(status.code(), Some(code), "{}", self.text());
        assert!(self.is_sane(), "the terminal is left as it was");
        // What was written last may still be on its way.
        self.wait("end of marked pastes", |chat| {
            !chat.screen.screen().bracketed_paste()
        });
    }

    /// True where the terminal shows and edits lines itself.
    fn is_sane(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        // It has ended, unless a test failed.
        let _ended = (self.child.kill(), self.child.wait());
    }
}

#[test]
fn lines_are_edited_and_recalled() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::ready(Start::at(home.path()));
    chat.press(b"helo");
    chat.wait("text", |chat| chat.line() == "> helo");
    chat.press(LEFT);
    chat.press(b"l");
    chat.wait("edit", |chat| chat.line() == "> hello");
    chat.press(b"\r");
    chat.answered();
    chat.press(UP);
    chat.wait("recall", |chat| chat.line() == "> hello");
    chat.press(b"!\r");
    chat.answered();
    assert_eq!(chat.messages(), ["hello", "AAA", "hello!", "AAA"]);
    chat.enter("/exit");
    chat.ends_with(0);

    let history = home.path().join("cache/transformer-lite/chat/history");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&history).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let mut chat = Chat::ready(Start::at(home.path()));
    for recalled in ["/exit", "/save chat1.json", "hello!", "hello"] {
        chat.press(UP);
        chat.wait(recalled, |chat| chat.line() == format!("> {recalled}"));
    }
    chat.press(CTRL_C);
    chat.prompted();
    chat.press(CTRL_D);
    chat.ends_with(0);

    std::fs::remove_file(&history).unwrap();
    let mut chat = Chat::ready(Start {
        options: &["--no-history"],
        ..Start::at(home.path())
    });
    chat.enter("/exit");
    chat.ends_with(0);
    assert!(!history.exists());
}

/// Text of several lines, as a person would paste it.
fn long_text() -> String {
    let line = |n: usize| format!("{n}: {}\n", "日本 emoji 🎉\tx \\".repeat(n % 5));
    let mut text: String = (0..).map(line).take(300).collect();
    text += &"one long line ".repeat(100);
    assert!(
        text.chars().count() > 6000,
        "more than a line of a terminal holds"
    );
    text.trim_end().to_owned()
}

#[test]
fn paste_of_any_length_is_one_message() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::ready(Start {
        rows: 12,
        columns: 40,
        ..Start::at(home.path())
    });
    let text = long_text();
    chat.paste(&text);
    chat.wait("paste", |chat| chat.text().trim_end().ends_with("long line"));
    chat.press(b" end");
    chat.wait("typed text", |chat| chat.text().trim_end().ends_with(" end"));
    chat.press(b"\r");
    chat.answered();
    assert_eq!(chat.messages(), [text + " end", "AAA".to_owned()]);
    chat.paste("a\x1b[31mb\x07c");
    chat.wait("paste", |chat| chat.line() == "> abc");
    chat.press(CTRL_C);
    chat.prompted();
    chat.press(CTRL_D);
    chat.ends_with(0);
}

#[test]
fn messages_have_several_lines() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::ready(Start::at(home.path()));
    chat.press(b"one");
    chat.press(ALT_ENTER);
    chat.enter("two \\");
    chat.enter("three");
    chat.answered();
    chat.enter("\"\"\"");
    chat.enter("/exit");
    chat.enter("\"\"\"");
    chat.answered();
    assert_eq!(chat.messages(), ["one\ntwo \nthree", "AAA", "/exit", "AAA"]);
    chat.enter("/bye");
    chat.ends_with(0);
}

#[test]
fn ctrl_c_clears_hints_and_leaves() {
    let home = tempfile::tempdir().unwrap();
    let hints = |chat: &Chat| chat.text().matches("Ctrl-C again").count();
    let mut chat = Chat::ready(Start::at(home.path()));
    chat.press(b"some text");
    chat.wait("text", |chat| chat.line() == "> some text");
    chat.press(CTRL_C);
    chat.prompted();
    assert_eq!(hints(&chat), 0, "{}", chat.text());
    chat.press(CTRL_C);
    chat.wait("hint", |chat| hints(chat) == 1);
    chat.prompted();
    chat.enter("/stats");
    chat.wait("stats", |chat| chat.text().contains("0 of 4096"));
    chat.prompted();
    chat.press(CTRL_C);
    chat.wait("hint", |chat| hints(chat) == 2);
    chat.prompted();
    chat.press(CTRL_C);
    chat.ends_with(130);

    let mut chat = Chat::ready(Start::at(home.path()));
    chat.press(CTRL_C);
    chat.wait("hint", |chat| hints(chat) == 1);
    chat.prompted();
    chat.enter("/exit");
    chat.ends_with(0);
}

#[test]
fn ctrl_c_stops_an_answer_and_typed_text_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::ready(Start {
        options: &[],
        ..Start::at(home.path())
    });
    chat.enter("hi");
    chat.wait("answer", |chat| chat.text().contains("AAAA"));
    // Neither what is typed nor what is pasted meanwhile disturbs it.
    chat.paste("a\nb");
    chat.press(b"c");
    chat.press(CTRL_C);
    chat.wait("text", |chat| chat.text().contains("> a\n  bc"));
    assert!(chat.text().contains(" tokens"), "{}", chat.text());
    chat.press(CTRL_C);
    chat.prompted();
    let messages = chat.messages();
    assert_eq!((messages.len(), messages[0].as_str()), (2, "hi"));
    assert!((1..4000).contains(&messages[1].len()), "{}", messages[1].len());
    chat.press(CTRL_D);
    chat.ends_with(0);
}

#[test]
fn generated_text_does_not_control_the_terminal() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::ready(Start {
        options: &["-n", "3", "--logit-bias", ESCAPE],
        ..Start::at(home.path())
    });
    chat.enter("hi");
    chat.answered();
    let shown = String::from_utf8_lossy(&chat.shown).into_owned();
    assert!(shown.contains("\u{fffd}\u{fffd}\u{fffd}\r\n"), "{shown:?}");
    assert!(!shown.contains("\u{1b}\u{1b}"), "{shown:?}");
    assert_eq!(chat.messages(), ["hi", "\u{1b}\u{1b}\u{1b}"]);
    chat.press(CTRL_D);
    chat.ends_with(0);
}

#[test]
fn narrow_terminal_and_wide_characters() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::ready(Start {
        rows: 50,
        columns: 40,
        ..Start::at(home.path())
    });
    let text = "日本語テキスト🎉".repeat(4);
    chat.press(text.as_bytes());
    chat.wait("text", |chat| chat.text().replace('\n', "").contains(&text));
    chat.press(LEFT);
    chat.press(b"x");
    chat.wait("edit", |chat| chat.text().contains("x🎉"));
    chat.press(b"\r");
    chat.answered();
    chat.enter("/help");
    chat.wait("help", |chat| {
        chat.text().contains("/exit") && chat.text().contains("Ctrl-D")
    });
    chat.prompted();
    for line in chat.text().lines() {
        assert!(line.chars().count() <= 40, "{line}");
    }
    let message = chat.messages().remove(0);
    assert_eq!(message, text.strip_suffix('🎉').unwrap().to_owned() + "x🎉");
    chat.press(CTRL_D);
    chat.ends_with(0);
}

#[test]
fn dumb_terminal_is_read_by_lines() {
    let home = tempfile::tempdir().unwrap();
    let start = || Start {
        term: "dumb",
        ..Start::at(home.path())
    };
    let mut chat = Chat::ready(start());
    assert!(chat.is_sane());
    chat.enter("\"\"\"");
    chat.enter("one");
    chat.enter("two\"\"\"");
    chat.answered();
    chat.press(CTRL_C);
    chat.wait("hint", |chat| chat.text().contains("Ctrl-C again"));
    chat.prompted();
    assert_eq!(chat.messages(), ["one\ntwo", "AAA"]);
    let formatted = String::from_utf8(chat.screen.screen().contents_formatted()).unwrap();
    assert!(
        !formatted.contains("\u{1b}[2m") && !formatted.contains("\u{1b}[3"),
        "{formatted:?}"
    );
    chat.press(CTRL_D);
    chat.ends_with(0);

    let mut chat = Chat::ready(start());
    chat.press(CTRL_C);
    chat.wait("hint", |chat| chat.text().contains("Ctrl-C again"));
    chat.prompted();
    chat.press(CTRL_C);
    chat.ends_with(130);
}

#[test]
fn no_color_is_respected() {
    let home = tempfile::tempdir().unwrap();
    for (no_color, coloured) in [(None, true), (Some("1"), false)] {
        let mut chat = Chat::ready(Start {
            no_color,
            ..Start::at(home.path())
        });
        chat.enter("/nothing");
        chat.wait("note", |chat| chat.text().contains("unknown command"));
        chat.prompted();
        chat.press(CTRL_D);
        chat.ends_with(0);
        let shown = String::from_utf8_lossy(&chat.shown).into_owned();
        let sequences = ["\u{1b}[2m", "\u{1b}[33m", "\u{1b}[38;"];
        let found = sequences.map(|sequence| shown.contains(sequence));
        assert_eq!(found, [coloured; 3], "{shown:?}");
    }
}

#[test]
fn terminal_without_answers_is_read_by_lines() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(Start {
        answers: false,
        ..Start::at(home.path())
    });
    chat.prompted();
    chat.wait("line mode", Chat::is_sane);
    chat.enter("hi");
    chat.answered();
    assert_eq!(chat.messages(), ["hi", "AAA"]);
    chat.press(CTRL_D);
    chat.ends_with(0);
}

#[test]
fn answers_in_a_file_hold_no_control_sequences() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("answers");
    let mut chat = Chat::ready(Start {
        stdout: Some(File::create(&path).unwrap()),
        ..Start::at(home.path())
    });
    chat.enter("hi");
    chat.answered();
    chat.enter("/exit");
    chat.ends_with(0);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "AAA\n");
}

#[test]
fn signals_at_the_prompt_restore_the_terminal() {
    let home = tempfile::tempdir().unwrap();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut chat = Chat::ready(Start::at(home.path()));
        assert!(!chat.is_sane(), "an editor reads keys");
        let id = Pid::from_raw(i32::try_from(chat.child.id()).unwrap()).unwrap();
        kill_process(id, signal).unwrap();
        chat.ends_with(code);
    }
}

#[test]
fn signals_end_a_piped_chat_and_other_answers() {
    let (_dir, model) = model();
    let (chat, generate) = (&["chat", "--no-history"][..], &["generate", "--prompt", "hi"][..]);
    // A process that inherits an ignored SIGHUP, as below `nohup`, goes on ignoring it.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let hup = if ignored.is_some_and(|mask| mask & 1 != 0) {
        (chat, &[Signal::TERM][..], 143)
    } else {
        (chat, &[Signal::HUP][..], 129)
    };
    for (command, signals, code) in [
        (chat, &[Signal::TERM][..], 143),
        hup,
        (chat, &[Signal::INT][..], 130),
        (chat, &[Signal::INT, Signal::INT][..], 130),
        (generate, &[Signal::TERM][..], 143),
        (generate, &[Signal::INT][..], 130),
    ] {
        let mut child = tlite_testing::command()
            .args(command)
            .arg(&model)
            .args(["--backend", "reference", "--temp", "0", "--logit-bias", A])
            .args(["-q", "--context-shift", "-n", "100000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = child.stdin.as_mut().unwrap().write_all(b"one\ntwo\nthree\n");
        lines.unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        for signal in signals {
            kill_process(id, *signal).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command:?} {signals:?}");
        assert!(output.stdout.iter().filter(|b| **b == b'\n').count() <= 1);
    }
}
