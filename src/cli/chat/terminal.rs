//! The terminal between entries: what is typed during an answer is neither shown nor lost.

#[cfg(unix)]
mod unix {
    use rustix::stdio::stdin;
    use rustix::termios::{
        InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
    };
    use std::io::Write;

    /// Has pastes marked at their start and end.
    const PASTES_ON: &[u8] = b"\x1b[?2004h";
    const PASTES_OFF: &[u8] = b"\x1b[?2004l";

    /// The terminal's settings before and after; it gets those before back when this is dropped.
    pub struct QuietTerminal {
        original: Option<Termios>,
    }

    fn set(settings: &Termios, pastes: &[u8]) {
        // A terminal that is gone needs no settings.
        let _gone = tcsetattr(stdin(), OptionalActions::Now, settings);
        let _gone = std::io::stderr().write_all(pastes);
    }

    impl QuietTerminal {
        /// Changes the settings of the terminal that standard input is.
        pub fn enter() -> Self {
            let terminal = Self {
                original: tcgetattr(stdin()).ok(),
            };
            terminal.apply();
            terminal
        }

        /// The same again, after something else changed them.
        pub fn apply(&self) {
            let Some(original) = &self.original else { return };
            let mut quiet = original.clone();
            // Whole lines are limited to 4095 bytes. Ctrl-C stays a signal, which discards nothing.
            quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            quiet.local_modes.insert(LocalModes::NOFLSH);
            // The key Enter stays different from a line feed.
            quiet.input_modes.remove(InputModes::ICRNL);
            quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
            quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
            set(&quiet, PASTES_ON);
        }

        /// Gives the terminal its own settings back.
        pub fn leave(&self) {
            if let Some(original) = &self.original {
                set(original, PASTES_OFF);
            }
        }

        /// What does the same when the program ends at once.
        pub fn restorer(&self) -> impl FnOnce() + Send + 'static {
            let original = self.original.clone();
            move || {
                if let Some(original) = &original {
                    set(original, PASTES_OFF);
                }
            }
        }
    }

    impl Drop for QuietTerminal {
        fn drop(&mut self) {
            self.leave();
        }
    }

    /// Stops the job, as Ctrl-Z does, until the shell continues it.
    pub fn suspend() {
        let _refused = rustix::process::kill_current_process_group(rustix::process::Signal::TSTP);
    }
}

#[cfg(not(unix))]
mod other {
    /// Nothing: consoles have no such settings.
    pub struct QuietTerminal;

    impl QuietTerminal {
        /// Changes nothing.
        pub fn enter() -> Self {
            Self
        }

        /// Changes nothing.
        pub fn apply(&self) {}

        /// Changes nothing.
        pub fn leave(&self) {}

        /// Does nothing.
        pub fn restorer(&self) -> impl FnOnce() + Send + 'static {
            || {}
        }
    }

    /// There are no jobs.
    pub fn suspend() {}
}

#[cfg(not(unix))]
pub use other::{QuietTerminal, suspend};
#[cfg(unix)]
pub use unix::{QuietTerminal, suspend};
