//! Terminal settings for the time between prompts: keys are not echoed and not lost.

#[cfg(unix)]
mod unix {
    use rustix::stdio::stdin;
    use rustix::termios::{
        InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
    };
    use std::io::Write;

    /// Bracketed paste: the terminal marks the start and end of a paste.
    const PASTES_ON: &[u8] = b"\x1b[?2004h";
    const PASTES_OFF: &[u8] = b"\x1b[?2004l";

    /// A terminal without echo and line mode. Dropping this restores its settings.
    pub struct QuietTerminal {
        original: Option<Termios>,
    }

    fn set(settings: &Termios, pastes: &[u8]) {
        // Nothing to do if the terminal is gone.
        let _gone = tcsetattr(stdin(), OptionalActions::Now, settings);
        let _gone = std::io::stderr().write_all(pastes);
    }

    impl QuietTerminal {
        /// Changes the settings of the terminal on standard input.
        pub fn enter() -> Self {
            let terminal = Self {
                original: tcgetattr(stdin()).ok(),
            };
            terminal.apply();
            terminal
        }

        /// Changes them again, after another program or the editor did.
        pub fn apply(&self) {
            let Some(original) = &self.original else { return };
            let mut quiet = original.clone();
            // Line mode cuts lines at 4095 bytes. Ctrl-C stays a signal, but discards no input.
            quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            quiet.local_modes.insert(LocalModes::NOFLSH);
            // Enter must differ from a line feed.
            quiet.input_modes.remove(InputModes::ICRNL);
            quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
            quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
            set(&quiet, PASTES_ON);
        }

        /// Restores the original settings.
        pub fn leave(&self) {
            if let Some(original) = &self.original {
                set(original, PASTES_OFF);
            }
        }

        /// A function that does the same, for a signal handler.
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

    /// Stops the process group, as Ctrl-Z does in line mode.
    pub fn suspend() {
        let _refused = rustix::process::kill_current_process_group(rustix::process::Signal::TSTP);
    }
}

#[cfg(not(unix))]
mod other {
    /// Does nothing: there are no such settings.
    pub struct QuietTerminal;

    impl QuietTerminal {
        pub fn enter() -> Self {
            Self
        }

        pub fn apply(&self) {}

        pub fn leave(&self) {}

        pub fn restorer(&self) -> impl FnOnce() + Send + 'static {
            || {}
        }
    }

    /// Does nothing: there is no job control.
    pub fn suspend() {}
}

#[cfg(not(unix))]
pub use other::{QuietTerminal, suspend};
#[cfg(unix)]
pub use unix::{QuietTerminal, suspend};
