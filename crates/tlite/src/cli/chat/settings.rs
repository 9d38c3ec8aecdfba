//! `/set`: what can be changed in a chat.

use super::Talk;
use super::console::Console;
use crate::cli::answer::token_limit;
use crate::cli::sampling::SamplingOptions;
use clap::{Args as _, FromArgMatches};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::llm::Sampler;

/// Names of the settings. Most are sampling options.
pub const SETTINGS: [&str; 12] = [
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "typical-p",
    "seed",
    "repetition-penalty",
    "frequency-penalty",
    "presence-penalty",
    "penalty-last-n",
    MAX_TOKENS,
    SHIFT,
];
const MAX_TOKENS: &str = "max-tokens";
const SHIFT: &str = "context-shift";

/// Other names, from Ollama and llama.cpp.
const ALIASES: [(&str, &str); 5] = [
    ("temp", "temperature"),
    ("num-predict", MAX_TOKENS),
    ("n-predict", MAX_TOKENS),
    ("repeat-penalty", "repetition-penalty"),
    ("repeat-last-n", "penalty-last-n"),
];

/// The setting that `text` names.
pub fn setting(text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase().replace('_', "-");
    let alias = ALIASES
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, name)| *name);
    alias.or_else(|| SETTINGS.into_iter().find(|name| *name == text))
}

/// Makes a sampler with these options, and describes it.
pub type Resample<'a> = Box<dyn Fn(&SamplingOptions) -> Result<(Sampler, String)> + 'a>;

impl Talk<'_> {
    /// Shows the settings.
    pub(super) fn settings(&mut self, console: &mut Console<'_>) {
        let limit = match self.max_tokens {
            usize::MAX => "unlimited".to_owned(),
            n => n.to_string(),
        };
        let shift = if self.conversation.slides() { "on" } else { "off" };
        console.rows(&[
            ("sampling", self.facts.sampling.clone()),
            (MAX_TOKENS, limit),
            (SHIFT, shift.to_owned()),
        ]);
    }

    /// Changes the setting `name`, one of [`SETTINGS`], or notes why not.
    pub(super) fn set(&mut self, name: &'static str, value: &str, console: &mut Console<'_>) {
        match self.changed(name, value) {
            Ok(what) => console.note(&what),
            Err(e) => self.refuse(&e.chain(), console),
        }
    }

    fn changed(&mut self, name: &'static str, value: &str) -> Result<String> {
        let wrong = |what: String| Error::usage(format!("/set {name}"), what);
        match name {
            MAX_TOKENS => {
                self.max_tokens = token_limit(value).map_err(wrong)?;
                Ok(format!("Token limit of answers: {value} (-1: unlimited)."))
            }
            SHIFT => {
                let on = ["on", "off"].iter().position(|word| *word == value);
                let on = on.ok_or_else(|| wrong(format!("\"{value}\"; expected on or off")))? == 0;
                self.conversation.set_slides(on);
                Ok(match on {
                    true => "When the context is full, the oldest messages are dropped.".to_owned(),
                    false => "When the context is full, answers end.".to_owned(),
                })
            }
            _ => {
                let mut options = self.sampling.clone();
                let command = SamplingOptions::augment_args(clap::Command::new("set").no_binary_name(true));
                let matches = command.try_get_matches_from([&format!("--{name}={value}")]);
                // The first line names the value and what is expected; the option is that of a
                // command.
                let said = |e: clap::Error| {
                    let text = e.to_string();
                    let why = text
                        .lines()
                        .next()
                        .and_then(|l| l.rsplit_once(": "))
                        .map(|(_, why)| why);
                    wrong(format!("\"{value}\": {}", why.unwrap_or("is not valid")))
                };
                let matches = matches.map_err(said)?;
                options.update_from_arg_matches(&matches).map_err(said)?;
                let (sampler, words) = (self.resample)(&options)?;
                self.conversation.session().set_sampler(sampler);
                self.sampling = options;
                self.facts.sampling = words;
                Ok(format!("Sampling: {}", self.facts.sampling))
            }
        }
    }
}
