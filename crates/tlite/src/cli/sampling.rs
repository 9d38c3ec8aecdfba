//! Options that choose how tokens are sampled, and their defaults.

use super::options::{from_one, from_zero};
use super::output::note;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::llm::folder::GENERATION_CONFIG;
use transformer_lite::unstable::llm::sampler::{
    DRY_BASE, DRY_MULTIPLIER, Dry, FREQUENCY, MIN_P, PRESENCE, Penalties, REPETITION, SamplerConfig, Setting,
    TEMPERATURE, TOP_P, TYPICAL_P,
};
use transformer_lite::unstable::llm::{ModelFolder, Sampler, Tokenizer};

/// Options of every command that samples tokens, in the order in which they take effect.
///
/// Without an option, [`ModelFolder::sampling`] decides.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// Randomness; 0 is greedy
    ///
    /// Greedy decoding always takes the most likely token. By default, temperature, top-k, top-p
    /// and min-p come from the model's `generation_config.json`. If it sets none of them, models
    /// with fewer than a billion parameters are greedy, unless one of these options asks for
    /// sampling; all other models use 0.8, 40, 0.95 and 0.05.
    #[arg(long, visible_alias = "temp", value_name = "F", value_parser = number(TEMPERATURE))]
    pub temperature: Option<f32>,
    /// Sample from the N most likely tokens; 0 is off
    #[arg(long, value_name = "N", value_parser = from_zero::<usize>)]
    pub top_k: Option<usize>,
    /// Sample from the most likely tokens whose probabilities sum to F; 1 is off
    #[arg(long, value_name = "F", value_parser = number(TOP_P))]
    pub top_p: Option<f32>,
    /// Sample from tokens at least F times as likely as the most likely one; 0 is off
    #[arg(long, value_name = "F", value_parser = number(MIN_P), hide_short_help = true)]
    pub min_p: Option<f32>,
    /// Random seed [default: random]
    ///
    /// The same seed, device and options give the same text, unless a reused KV cache rounds
    /// differently.
    #[arg(long, value_name = "N", value_parser = from_zero::<u64>)]
    pub seed: Option<u64>,
    /// Sample from the most typical tokens whose probabilities sum to F; 1 is off [default: 1]
    #[arg(long, value_name = "F", value_parser = number(TYPICAL_P), hide_short_help = true)]
    pub typical_p: Option<f32>,
    /// Penalize repeated tokens: divide positive logits by F, from 0.01 to 100, and multiply
    /// negative ones by F; 1 is off
    ///
    /// Default: the value in `generation_config.json` when tokens are sampled, else 1.
    #[arg(long, value_name = "F", value_parser = number(REPETITION), hide_short_help = true)]
    pub repetition_penalty: Option<f32>,
    /// Subtract F, from -2 to 2, from a token's logit for each time it occurred [default: 0]
    #[arg(long, value_name = "F", value_parser = number(FREQUENCY), hide_short_help = true)]
    pub frequency_penalty: Option<f32>,
    /// Subtract F, from -2 to 2, from the logit of every token that occurred [default: 0]
    #[arg(long, value_name = "F", value_parser = number(PRESENCE), hide_short_help = true)]
    pub presence_penalty: Option<f32>,
    /// Number of latest tokens that the repetition, frequency and presence penalties consider; 0
    /// turns them off [default: 64]
    #[arg(long, value_name = "N", value_parser = from_zero::<usize>, hide_short_help = true)]
    pub penalty_last_n: Option<usize>,
    /// DRY: subtract F * base ^ (length - allowed length) from tokens that extend a repeated
    /// sequence; 0 is off [default: 0]
    #[arg(long, value_name = "F", value_parser = number(DRY_MULTIPLIER), hide_short_help = true)]
    pub dry_multiplier: Option<f32>,
    /// DRY: base [default: 1.75]
    #[arg(long, value_name = "F", value_parser = number(DRY_BASE), hide_short_help = true)]
    pub dry_base: Option<f32>,
    /// DRY: longest repeated sequence, in tokens, that is not penalized [default: 2]
    #[arg(long, value_name = "N", value_parser = from_one, hide_short_help = true)]
    pub dry_allowed_length: Option<NonZeroUsize>,
    /// DRY: number of last tokens to search for repeats [default: all]
    #[arg(long, value_name = "N", value_parser = from_one, hide_short_help = true)]
    pub dry_last_n: Option<NonZeroUsize>,
    /// DRY: a token that contains TEXT ends a repeated sequence; can be given more than once
    /// [default: line feed, :, ", *]
    #[arg(long, value_name = "TEXT", value_parser = some_text, allow_hyphen_values = true, hide_short_help = true)]
    pub dry_breaker: Vec<String>,
    /// Add BIAS to the logit of token ID; -inf forbids the token
    #[arg(long, value_name = "ID=BIAS,...", value_delimiter = ',', value_parser = logit_bias, hide_short_help = true)]
    pub logit_bias: Vec<(u32, f32)>,
}

/// Texts that end a repeated sequence for DRY by default.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// A sampler, and what to show of it.
#[derive(Debug)]
pub struct Chosen {
    pub sampler: Sampler,
    /// Its settings in words, such as `greedy` or `temperature 0.8, top-k 40, seed 5`.
    pub words: String,
    /// Its seed; `None` if no random number decides.
    pub seed: Option<u64>,
}

impl SamplingOptions {
    /// The sampler for the model in `folder`: the options, else its `generation_config.json`, else
    /// the defaults. A usage error for a value in that file that is out of range.
    pub fn sampler(&self, folder: &ModelFolder, tokenizer: &Tokenizer) -> Result<Chosen> {
        let mut config = self.config(folder)?;
        if config.dry.multiplier > 0.0 {
            config.dry.breakers = self.breakers(tokenizer);
        }
        let seed = match (config.is_random(), self.seed) {
            (false, _) => None,
            (true, Some(seed)) => Some(seed),
            (true, None) => Some(drawn()?),
        };
        if seed.is_none() && self.seed.is_some() {
            note("--seed has no effect on greedy decoding; --temp 0.8 samples");
        }
        config.seed = seed.unwrap_or(0);
        Ok(Chosen {
            words: described(&config, seed),
            sampler: Sampler::new(config)?,
            seed,
        })
    }

    /// Whether an option asks for random choices.
    fn asks_for_sampling(&self) -> bool {
        let filters = [self.top_p, self.min_p, self.typical_p];
        self.temperature.is_some_and(|t| t > 0.0)
            || self.top_k.is_some_and(|k| k != 1)
            || filters.iter().any(Option::is_some)
    }

    /// The settings without seed and breakers.
    fn config(&self, folder: &ModelFolder) -> Result<SamplerConfig> {
        let file = match self.asks_for_sampling() {
            true => folder.generation.sampling(),
            false => folder.sampling(),
        };
        // A file of another model family may hold anything; an option in its place is a way out.
        let checked = |(name, range): Setting, option: Option<f32>, found: f32| match option {
            Some(value) => Ok(value),
            None if range.holds(found) => Ok(found),
            None => {
                let what = format!(
                    "{name} is {found}: expected {range}; give --{}",
                    name.replace('_', "-")
                );
                let file = folder.dir().join(GENERATION_CONFIG);
                Err(Error::file(Stage::Text, &file, what))
            }
        };
        let temperature = checked(TEMPERATURE, self.temperature, file.temperature)?;
        let repetition = match (self.repetition_penalty, temperature == 0.0) {
            (None, true) => Penalties::default().repetition,
            (option, _) => checked(REPETITION, option, file.penalties.repetition)?,
        };
        let (penalties, dry) = (file.penalties, file.dry);
        Ok(SamplerConfig {
            logit_bias: self.logit_bias.clone(),
            penalties: Penalties {
                last_n: self.penalty_last_n.unwrap_or(penalties.last_n),
                repetition,
                frequency: self.frequency_penalty.unwrap_or(penalties.frequency),
                presence: self.presence_penalty.unwrap_or(penalties.presence),
            },
            dry: Dry {
                multiplier: self.dry_multiplier.unwrap_or(dry.multiplier),
                base: self.dry_base.unwrap_or(dry.base),
                allowed_length: self
                    .dry_allowed_length
                    .map_or(dry.allowed_length, NonZeroUsize::get),
                last_n: self.dry_last_n.map_or(dry.last_n, NonZeroUsize::get),
                breakers: dry.breakers,
            },
            top_k: self.top_k.unwrap_or(file.top_k),
            typical_p: self.typical_p.unwrap_or(file.typical_p),
            top_p: checked(TOP_P, self.top_p, file.top_p)?,
            min_p: checked(MIN_P, self.min_p, file.min_p)?,
            temperature,
            seed: 0,
        })
    }

    /// The tokens that end a repeated sequence for DRY.
    fn breakers(&self, tokenizer: &Tokenizer) -> HashSet<u32> {
        let texts: Vec<&[u8]> = if self.dry_breaker.is_empty() {
            BREAKERS.iter().map(|t| t.as_bytes()).collect()
        } else {
            self.dry_breaker.iter().map(String::as_bytes).collect()
        };
        let holds = |bytes: &[u8]| texts.iter().any(|t| bytes.windows(t.len()).any(|w| w == *t));
        let tokens = tokenizer.tokens().filter(|(_, t)| holds(&t.bytes));
        tokens.map(|(id, _)| id).collect()
    }
}

/// The settings of `config` that are in force, in words.
fn described(config: &SamplerConfig, seed: Option<u64>) -> String {
    let Some(seed) = seed else {
        return "greedy".to_owned();
    };
    let mut parts = vec![format!("temperature {}", config.temperature)];
    parts.extend((config.top_k > 0).then(|| format!("top-k {}", config.top_k)));
    let filters = [
        ("typical-p", config.typical_p, 1.0),
        ("top-p", config.top_p, 1.0),
        ("min-p", config.min_p, 0.0),
    ];
    for (name, value, off) in filters {
        parts.extend((value != off).then(|| format!("{name} {value}")));
    }
    parts.push(format!("seed {seed}"));
    parts.join(", ")
}

/// A seed that is short enough to type again.
fn drawn() -> Result<u64> {
    let drawn = getrandom::u32().map_err(|e| {
        let what = format!("cannot get a random number from the system: {e}; give --seed");
        Error::other(Stage::Run, what)
    })?;
    Ok(drawn.into())
}

/// A parser of numbers in the range of a setting.
fn number((_, range): Setting) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value = text.parse().ok().filter(|v| range.holds(*v));
        value.ok_or_else(|| format!("must be {range}"))
    }
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').unwrap_or((text, ""));
    let bias = bias
        .trim()
        .parse()
        .ok()
        .filter(|b: &f32| b.is_finite() || *b == f32::NEG_INFINITY);
    match (id.trim().parse(), bias) {
        (Ok(id), Some(bias)) => Ok((id, bias)),
        _ => Err("expected ID=BIAS with a token ID and a finite number or -inf".to_owned()),
    }
}

/// Parses a text of at least one character.
pub fn some_text(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("must not be empty".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};
    use tlite_testing::llm::testing;

    fn options(args: &[&str]) -> SamplingOptions {
        let command = SamplingOptions::augment_args(clap::Command::new("tlite"));
        let matches = command.get_matches_from(std::iter::once(&"tlite").chain(args));
        SamplingOptions::from_arg_matches(&matches).unwrap()
    }

    /// The settings for a model folder with this `generation_config.json`.
    fn config(file: &str, args: &[&str]) -> Result<SamplerConfig> {
        config_of("{}", file, args)
    }

    /// The settings for a model folder with these `config.json` and `generation_config.json`.
    fn config_of(model: &str, file: &str, args: &[&str]) -> Result<SamplerConfig> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), model).unwrap();
        std::fs::write(dir.path().join(GENERATION_CONFIG), file).unwrap();
        options(args).config(&ModelFolder::open(dir.path())?)
    }

    fn values(config: &SamplerConfig) -> (f32, usize, f32, f32, f32) {
        let c = config;
        (c.temperature, c.top_k, c.top_p, c.min_p, c.penalties.repetition)
    }

    #[test]
    fn sampling_defaults_follow_generation_config() {
        for (file, args, expected) in [
            ("{}", &[][..], (0.8, 40, 0.95, 0.05, 1.0)),
            (
                r#"{"eos_token_id": 2, "do_sample": true}"#,
                &[],
                (0.8, 40, 0.95, 0.05, 1.0),
            ),
            // What it does not name is off.
            (
                r#"{"temperature": 0.7, "top_p": 0.8}"#,
                &[],
                (0.7, 0, 0.8, 0.0, 1.0),
            ),
            (r#"{"top_k": 20}"#, &[], (1.0, 20, 1.0, 0.0, 1.0)),
            (r#"{"top_k": null, "min_p": 0.1}"#, &[], (1.0, 0, 1.0, 0.1, 1.0)),
            (
                r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}"#,
                &[],
                (0.7, 20, 0.8, 0.0, 1.1),
            ),
            (r#"{"repetition_penalty": 1.2}"#, &[], (0.8, 40, 0.95, 0.05, 1.2)),
            // Options win.
            (
                "{}",
                &["--temp", "0.3", "--top-k", "0"],
                (0.3, 0, 0.95, 0.05, 1.0),
            ),
            (
                r#"{"temperature": 0.7}"#,
                &["--min-p", "0.2"],
                (0.7, 0, 1.0, 0.2, 1.0),
            ),
        ] {
            assert_eq!(values(&config(file, args).unwrap()), expected, "{file} {args:?}");
        }
    }

    #[test]
    fn small_models_sample_only_if_asked() {
        let small = r#"{"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 99}"#;
        let temperature = |args: &[&str]| config_of(small, "{}", args).unwrap().temperature;
        for args in [&[][..], &["--seed", "5"], &["--top-k", "1"], &["--temp", "0"]] {
            assert_eq!(temperature(args), 0.0, "{args:?}");
        }
        for args in [["--top-p", "0.9"], ["--top-k", "5"], ["--min-p", "0.1"]] {
            assert_eq!(temperature(&args), 0.8, "{args:?}");
        }
        let sampled = config_of(small, "{}", &["--temp", "0.2"]).unwrap();
        assert_eq!(values(&sampled), (0.2, 40, 0.95, 0.05, 1.0));
        let words = described(&sampled, Some(7));
        assert_eq!(words, "temperature 0.2, top-k 40, top-p 0.95, min-p 0.05, seed 7");
    }

    #[test]
    fn greedy_is_asked_for_by_file_or_option() {
        let greedy = |file: &str, args: &[&str]| {
            let config = config(file, args).unwrap();
            Sampler::new(config).unwrap().is_greedy()
        };
        let sampled = r#"{"temperature": 0.6, "repetition_penalty": 1.1}"#;
        assert!(!greedy("{}", &[]));
        assert!(greedy(r#"{"do_sample": false}"#, &[]));
        assert!(greedy(r#"{"do_sample": false, "temperature": 0.6}"#, &[]));
        assert!(greedy(sampled, &["--temperature", "0"]));
        assert!(greedy(r#"{"temperature": 0}"#, &[]));
        assert!(!greedy(
            sampled,
            &["--temperature", "0", "--repetition-penalty", "1.1"]
        ));
        assert!(!greedy(r#"{"do_sample": false}"#, &["--temperature", "0.5"]));
    }

    #[test]
    fn values_out_of_range_name_the_file() {
        for (file, name) in [
            (r#"{"top_p": 0}"#, "top_p"),
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"min_p": 2}"#, "min_p"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
        ] {
            let e = config(file, &[]).unwrap_err();
            assert!(
                matches!(&e, Error::File { path, what, .. } if path.ends_with(GENERATION_CONFIG) && what.contains(name)),
                "{e}"
            );
        }
        assert_eq!(config(r#"{"top_p": 0}"#, &["--top-p", "0.5"]).unwrap().top_p, 0.5);
    }

    #[test]
    fn seeds_are_drawn_unless_given_or_useless() {
        let dir = tempfile::tempdir().unwrap();
        testing::write_byte_level_tokenizer(dir.path());
        let folder = ModelFolder::open(dir.path()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let seed = |args: &[&str]| options(args).sampler(&folder, &tokenizer).unwrap().seed;
        assert_eq!(seed(&["--seed", "7"]), Some(7));
        assert_eq!(seed(&["--temperature", "0", "--seed", "7"]), None);
        assert_eq!(seed(&["--top-k", "1"]), None);
        let drawn: HashSet<_> = (0..8).map(|_| seed(&[])).collect();
        assert!(drawn.len() > 1 && !drawn.contains(&None), "{drawn:?}");
    }
}
