//! The folder of a model: its paths and its small JSON files.

mod lenient;

use super::load::OTHERS;
use super::sampler::SamplerConfig;
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result, Stage};
use crate::files::kind::is_gguf;
use crate::files::read::{if_exists, read_config};
use crate::limits::Limits;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The argument that commands convert models of other forms for.
const MODEL: &str = "MODEL";
/// The folder of a model.
const FOLDER: &str = "a folder with model.onnx and tokenizer.json";
/// What [`MODEL`] may be.
const FORMS: &str = "a GGUF file, a Hugging Face checkpoint (config.json and .safetensors files), or a folder with \
    model.onnx and tokenizer.json";

/// Context used when none is asked for, if the model was made for more: a cache of this length fits
/// small devices.
pub const DEFAULT_CONTEXT: usize = 4096;

/// One token id or several, as `eos_token_id` is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenIds {
    /// A number.
    One(u32),
    /// A list of numbers.
    Many(Vec<u32>),
}

impl TokenIds {
    /// The ids in the order of the file.
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        }
    }
}

/// The entries of `config.json` that generation needs. Others are ignored. Numbers may be strings,
/// and whole numbers may have a fraction of zeros.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Architecture, such as `llama`.
    pub model_type: Option<String>,
    /// Classes of transformers, such as `LlamaForCausalLM`.
    pub architectures: Option<Vec<String>>,
    /// A part of a model that reads one text and writes another.
    #[serde(deserialize_with = "lenient::flag")]
    pub is_encoder_decoder: Option<bool>,
    /// Number of entries of a logits row.
    #[serde(deserialize_with = "lenient::size")]
    pub vocab_size: Option<usize>,
    /// Largest number of tokens that the model was made for.
    #[serde(deserialize_with = "lenient::size")]
    pub max_position_embeddings: Option<usize>,
    /// Ids that end a text. A negative id stands for none, as null does.
    #[serde(deserialize_with = "lenient::ids")]
    pub eos_token_id: Option<TokenIds>,
    /// Keys that a query sees in layers with a window.
    #[serde(deserialize_with = "lenient::integer")]
    pub sliding_window: Option<i64>,
    /// Whether there are such layers.
    #[serde(deserialize_with = "lenient::flag")]
    pub use_sliding_window: Option<bool>,
    /// What each layer sees.
    pub layer_types: Option<Vec<String>>,
    /// Elements of a token's vector.
    #[serde(deserialize_with = "lenient::size")]
    pub hidden_size: Option<usize>,
    /// Elements between the matmuls of a feed-forward network.
    #[serde(deserialize_with = "lenient::size")]
    pub intermediate_size: Option<usize>,
    /// Number of layers.
    #[serde(deserialize_with = "lenient::size")]
    pub num_hidden_layers: Option<usize>,
}

/// Sliding-window attention, as described by [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Keys that a query sees, its own included.
    pub length: usize,
    /// All layers have it.
    pub everywhere: bool,
}

impl Config {
    /// Number of parameters of a dense decoder of these sizes, to within a factor of about 1.5;
    /// `None` if a size is missing or too large.
    pub fn parameters(&self) -> Option<usize> {
        let hidden = self.hidden_size?;
        // Three matrices of a feed-forward network, and about three square ones of attention.
        let rows = hidden.checked_add(self.intermediate_size?)?.checked_mul(3)?;
        let rows = rows.checked_mul(self.num_hidden_layers?)?;
        hidden.checked_mul(rows.checked_add(self.vocab_size?)?)
    }

    /// The class, where it is that of models which do not predict the next token, such as
    /// `BertForMaskedLM`.
    pub fn other_purpose(&self) -> Option<&str> {
        let all = self.architectures.as_deref().unwrap_or_default();
        let predicts = |name: &&String| {
            let ends = ["ForCausalLM", "LMHeadModel"];
            let whole = !self.is_encoder_decoder.unwrap_or(false);
            whole && ends.iter().any(|end| name.ends_with(end))
        };
        let first = all.first()?;
        (!all.iter().any(|a| predicts(&a)) && first.contains("For")).then_some(first)
    }

    /// The window that some layers have, if any has.
    pub fn window(&self) -> Option<SlidingWindow> {
        let kind = self.model_type.as_deref().unwrap_or_default();
        // These have a window only where they say so.
        let asked = kind.starts_with("qwen2") || kind.starts_with("qwen3");
        if !self.use_sliding_window.unwrap_or(!asked) {
            return None;
        }
        let length = usize::try_from(self.sliding_window?).ok().filter(|n| *n > 0)?;
        let everywhere = match &self.layer_types {
            Some(types) => {
                let near = types.iter().filter(|t| *t == "sliding_attention").count();
                if near == 0 {
                    return None;
                }
                near == types.len()
            }
            None => matches!(kind, "mistral" | "mixtral" | "phi3" | "starcoder2"),
        };
        Some(SlidingWindow { length, everywhere })
    }
}

/// Name of the file that [`GenerationConfig`] is read from.
pub const GENERATION_CONFIG: &str = "generation_config.json";

/// The entries of `generation_config.json` that generation needs, read as those of [`Config`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GenerationConfig {
    /// Ids that end a text; used instead of those of [`Config`].
    #[serde(deserialize_with = "lenient::ids")]
    pub eos_token_id: Option<TokenIds>,
    /// False: the most likely token is always taken.
    #[serde(deserialize_with = "lenient::flag")]
    pub do_sample: Option<bool>,
    /// As [`SamplerConfig::temperature`].
    #[serde(deserialize_with = "lenient::float")]
    pub temperature: Option<f32>,
    /// As [`SamplerConfig::top_k`]; a negative number is off.
    #[serde(deserialize_with = "lenient::integer")]
    pub top_k: Option<i64>,
    /// As [`SamplerConfig::top_p`].
    #[serde(deserialize_with = "lenient::float")]
    pub top_p: Option<f32>,
    /// As [`SamplerConfig::min_p`].
    #[serde(deserialize_with = "lenient::float")]
    pub min_p: Option<f32>,
    /// As [`Penalties::repetition`](super::sampler::Penalties::repetition).
    #[serde(deserialize_with = "lenient::float")]
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Whether the file does not say how to sample.
    pub fn is_silent(&self) -> bool {
        self.do_sample.is_none() && !self.names_setting()
    }

    fn names_setting(&self) -> bool {
        self.temperature.is_some() || self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some()
    }

    /// The sampler settings that the file asks for, without a seed. If it names any of temperature,
    /// top-k, top-p and min-p, those it does not name are off; if it names none,
    /// [`SamplerConfig::sampling`] decides. Greedy if `do_sample` is false; a repetition penalty
    /// counts otherwise. Values are as in the file: [`Sampler::new`](super::Sampler::new) checks
    /// them.
    pub fn sampling(&self) -> SamplerConfig {
        if self.do_sample == Some(false) {
            return SamplerConfig::default();
        }
        let mut config = SamplerConfig::sampling();
        if self.names_setting() {
            config.temperature = self.temperature.unwrap_or(1.0);
            config.top_k = self
                .top_k
                .and_then(|k| usize::try_from(k).ok())
                .unwrap_or_default();
            config.top_p = self.top_p.unwrap_or(1.0);
            config.min_p = self.min_p.unwrap_or(0.0);
        }
        config.penalties.repetition = self.repetition_penalty.unwrap_or(config.penalties.repetition);
        config
    }
}

/// A special token in `tokenizer_config.json`: its text, or an object that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a token's text or an object with `content`")]
pub enum TokenText {
    /// The text.
    Plain(String),
    /// An object with the text.
    Object {
        /// The text.
        content: String,
    },
}

impl TokenText {
    /// The token's text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Plain(text) | Self::Object { content: text } => text,
        }
    }
}

/// `chat_template` in `tokenizer_config.json`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a template or a list of objects with `name` and `template`"
)]
pub enum TemplateSource {
    /// One template.
    One(String),
    /// Templates with names, of which `default` is the one for plain chats.
    Named(Vec<NamedTemplate>),
}

/// One entry of a list of templates.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NamedTemplate {
    /// Name, such as `default` or `tool_use`.
    pub name: String,
    /// Jinja text.
    pub template: String,
}

/// The entries of `tokenizer_config.json` that chats need. Others are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct TokenizerConfig {
    /// Token at the start of a text.
    pub bos_token: Option<TokenText>,
    /// Token at the end of a text or of a turn.
    pub eos_token: Option<TokenText>,
    /// Chat template.
    pub chat_template: Option<TemplateSource>,
}

/// A model's folder with its small JSON files read. A missing JSON file counts as one without
/// entries.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    dir: PathBuf,
    /// `config.json`.
    pub config: Config,
    /// `generation_config.json`.
    pub generation: GenerationConfig,
    /// `tokenizer_config.json`.
    pub tokenizer: TokenizerConfig,
    /// What reading the tokenizer and rendering the chat template may take.
    pub limits: Limits,
}

/// Models with fewer parameters answer greedily unless they ask for something else: sampling makes
/// them wander.
const SAMPLED: usize = 1_000_000_000;

impl ModelFolder {
    /// The sampler settings for this model, without a seed: those of
    /// [`GenerationConfig::sampling`]; greedy if that file is silent and the model has fewer than a
    /// billion parameters.
    pub fn sampling(&self) -> SamplerConfig {
        let is_small = self.config.parameters().is_some_and(|n| n < SAMPLED);
        match self.generation.is_silent() && is_small {
            true => SamplerConfig::default(),
            false => self.generation.sampling(),
        }
    }

    /// Reads the JSON files of `dir`. A usage error if `dir` is not a folder; an error that names
    /// the file if one cannot be read or has an invalid entry.
    pub fn open(dir: &Path) -> Result<Self> {
        let meta = match std::fs::metadata(dir) {
            Ok(meta) => meta,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Err(Error::usage(
                    "folder",
                    format!("there is no folder {}", dir.display()),
                ));
            }
            Err(e) => return Err(Error::io("cannot open", dir, e)),
        };
        if !meta.is_dir() {
            let what = format!(
                "{} is not a folder; expected a folder with model.onnx",
                dir.display()
            );
            return Err(Error::usage("folder", what));
        }
        Ok(Self {
            config: read_json(&dir.join("config.json"))?,
            generation: read_json(&dir.join(GENERATION_CONFIG))?,
            tokenizer: read_json(&dir.join("tokenizer_config.json"))?,
            dir: dir.to_owned(),
            limits: Limits::default(),
        })
    }

    /// As [`ModelFolder::open`], of a language model's folder that errors call `name` and which
    /// holds the files `needed`. Usage errors: no such folder, a file in its place, a file of it
    /// that is missing.
    pub fn holding(name: &str, path: &Path, needed: &[&str]) -> Result<Self> {
        if !path.exists() {
            let what = format!("there is no folder {}", path.display());
            return Err(Error::usage(name, what));
        }
        // Only the model itself may be of any form.
        let forms = if name == MODEL { FORMS } else { FOLDER };
        let refused = |what: &str| {
            let what = format!("{} {what}; expected {forms}; {OTHERS}", path.display());
            Error::usage(name, what)
        };
        if path.is_file() {
            check_form(name, path)?;
            let folder = path
                .parent()
                .filter(|_| path.file_name() == Some("model.onnx".as_ref()));
            return Err(match folder.filter(|dir| dir.join("tokenizer.json").is_file()) {
                Some(dir) => {
                    let dir = if dir.as_os_str().is_empty() {
                        Path::new(".")
                    } else {
                        dir
                    };
                    let what = format!(
                        "{} is a file; give its folder, {}; {OTHERS}",
                        path.display(),
                        dir.display()
                    );
                    Error::usage(name, what)
                }
                None => refused("is a file"),
            });
        }
        let folder = Self::open(path)?;
        if !folder.onnx().is_file()
            && let Some(file) = gguf_in(path)
        {
            if name != MODEL {
                check_form(name, &file)?;
            }
            let what = format!(
                "{} has no model.onnx; give the file {} instead",
                path.display(),
                file.display()
            );
            return Err(Error::usage(name, what));
        }
        match needed.iter().find(|n| !folder.dir.join(n).is_file()) {
            Some(file) => Err(refused(&format!("has no {file}"))),
            None => Ok(folder),
        }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the graph, whether or not it exists.
    pub fn onnx(&self) -> PathBuf {
        self.dir.join("model.onnx")
    }

    /// Name of the model for tables: the last part of the path.
    pub fn name(&self) -> String {
        let full = std::fs::canonicalize(&self.dir).unwrap_or_else(|_| self.dir.clone());
        full.file_name().map_or_else(
            || self.dir.display().to_string(),
            |n| n.to_string_lossy().into_owned(),
        )
    }

    /// Number of tokens to hold: those `asked` for, else what the model was made for, at most
    /// [`DEFAULT_CONTEXT`]. A usage error when more are asked for than the model was made for.
    pub fn context(&self, asked: Option<usize>) -> Result<usize> {
        match (asked, self.config.max_position_embeddings) {
            (Some(asked), Some(most)) if asked > most => Err(Error::usage(
                "context",
                format!("{asked} tokens are too many; the model supports at most {most}"),
            )),
            (Some(asked), _) if asked < 2 => Err(Error::usage(
                "context",
                format!("{asked} is too small; a prompt and its answer need at least 2 tokens"),
            )),
            (Some(asked), _) => Ok(asked),
            (None, most) => Ok(most.unwrap_or(DEFAULT_CONTEXT).min(DEFAULT_CONTEXT)),
        }
    }

    /// Ids at which generation stops, ascending: those of `generation_config.json`, else those of
    /// `config.json`; and the tokenizer's end token, which is the end of a turn in many chat models
    /// whose `config.json` names the end of a document only.
    pub fn eos_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let written = self
            .generation
            .eos_token_id
            .as_ref()
            .or(self.config.eos_token_id.as_ref());
        let mut ids = written.map_or_else(Vec::new, |ids| ids.as_slice().to_vec());
        ids.extend(
            self.tokenizer
                .eos_token
                .as_ref()
                .and_then(|t| tokenizer.token_id(t.as_str())),
        );
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// A usage error where the model that errors call `name` is a GGUF file, of which a folder has to
/// be made first.
pub fn check_form(name: &str, path: &Path) -> Result<()> {
    if !path.is_file() || !is_gguf(path) {
        return Ok(());
    }
    let file = path.display();
    let what = format!("{file} is a GGUF file; make a folder of it first: tlite convert {file} -o DIR");
    Err(Error::usage(name, what))
}

/// What is wrong with a file that ends early.
pub(super) const CUT_OFF: &str = "the file is cut off or damaged; download it again";

/// The first GGUF file of the folder `dir`, by name.
fn gguf_in(dir: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.flatten().map(|e| e.path());
    files.filter(|path| path.is_file() && is_gguf(path)).min()
}

fn read_json<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    let Some(bytes) = if_exists(read_config(path))? else {
        return Ok(T::default());
    };
    let read: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|e| {
        let what = if e.is_eof() {
            CUT_OFF
        } else {
            "not JSON of the expected form"
        };
        Error::parse(Stage::Text, path, what, e)
    })?;
    T::deserialize(&read).map_err(|e| match wrong_entry::<T>(&read) {
        Some(what) => Error::file(Stage::Text, path, what),
        None => Error::parse(Stage::Text, path, "not JSON of the expected form", e),
    })
}

/// The first entry that does not make a `T` by itself, and why.
fn wrong_entry<T: DeserializeOwned>(map: &Map<String, Value>) -> Option<String> {
    /// Characters of a value that are shown.
    const SHOWN: usize = 80;
    map.iter().find_map(|(key, value)| {
        let alone: Map<String, Value> = [(key.clone(), value.clone())].into_iter().collect();
        let e = T::deserialize(alone).err()?;
        let mut found = value.to_string();
        if let Some((end, _)) = found.char_indices().nth(SHOWN) {
            found.truncate(end);
            found.push_str("...");
        }
        Some(format!("\"{key}\": {e}, found {found}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing;
    use crate::testing::{assert_carries, assert_usage};

    #[test]
    fn small_models_are_greedy_unless_their_files_say_how_to_sample() {
        let dir = tempfile::tempdir().unwrap();
        let temperature = |sizes: [usize; 4], generation: &str| {
            let [hidden, inner, layers, vocabulary] = sizes;
            let config = format!(
                r#"{{"hidden_size": {hidden}, "intermediate_size": {inner}, "num_hidden_layers": {layers}, "vocab_size": {vocabulary}}}"#
            );
            std::fs::write(dir.path().join("config.json"), config).unwrap();
            std::fs::write(dir.path().join(GENERATION_CONFIG), generation).unwrap();
            ModelFolder::open(dir.path()).unwrap().sampling().temperature
        };
        // SmolLM2 135M, Qwen2.5 0.5B.
        for sizes in [[576, 1536, 30, 49152], [896, 4864, 24, 151_936]] {
            assert_eq!(temperature(sizes, "{}"), 0.0);
            assert_eq!(temperature(sizes, r#"{"do_sample": true}"#), 0.8);
            assert_eq!(temperature(sizes, r#"{"temperature": 0.6}"#), 0.6);
        }
        // Llama 3.2 1B, and sizes that overflow.
        for sizes in [[2048, 8192, 16, 128_256], [1 << 40, 1, 1, 1]] {
            assert_eq!(temperature(sizes, "{}"), 0.8);
        }
    }

    #[test]
    fn missing_folder_and_file_are_usage_errors() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("absent");
        let e = ModelFolder::open(&missing).unwrap_err();
        assert_usage(&e, "folder", &["absent"]);
        let file = dir.path().join("model.onnx");
        std::fs::write(&file, b"x").unwrap();
        let e = ModelFolder::open(&file).unwrap_err();
        assert_usage(&e, "folder", &["model.onnx"]);
    }

    #[test]
    fn files_in_the_place_of_a_folder_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let refused = |name: &str, values: &[&str]| {
            let e = ModelFolder::holding("MODEL", &at(name), &[]).unwrap_err();
            assert_usage(&e, "MODEL", values);
            e.to_string()
        };
        std::fs::write(at("x.gguf"), b"GGUF\x03\0\0\0").unwrap();
        let file = at("x.gguf").display().to_string();
        refused("x.gguf", &["GGUF", &format!("tlite convert {file} -o DIR")]);
        refused("", &["model.onnx", &format!("{file} instead")]);
        let e = ModelFolder::holding("--draft-model", dir.path(), &[]).unwrap_err();
        assert_usage(&e, "--draft-model", &[&format!("tlite convert {file} -o DIR")]);
        std::fs::write(at("model.onnx"), b"x").unwrap();
        refused("model.onnx", &["model.onnx", "tokenizer.json"]);
        std::fs::write(at("tokenizer.json"), b"{}").unwrap();
        let beside = refused("model.onnx", &[]);
        // The folder alone, beside the file in it.
        let folder = dir.path().display().to_string();
        assert_eq!(beside.matches(&folder).count(), 2, "{beside}");
        let other = refused("tokenizer.json", &["model.onnx", "tokenizer.json"]);
        assert_eq!(other.matches(&folder).count(), 1, "{other}");
    }

    #[test]
    fn files_that_end_early_are_told_from_others() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text, cut) in [
            ("config.json", "{\"eos_token_id\": [1", true),
            ("config.json", "\"x\"", false),
            ("tokenizer.json", "{\"version\": \"1.0\", \"mod", true),
            ("tokenizer.json", "\"x\"", false),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            let e = match name {
                "config.json" => ModelFolder::open(dir.path()).map(|_| ()).unwrap_err(),
                _ => Tokenizer::load(dir.path()).map(|_| ()).unwrap_err(),
            };
            std::fs::remove_file(&path).unwrap();
            let text = e.to_string();
            assert!(text.contains(name), "{text}");
            assert_eq!(text.contains(CUT_OFF), cut, "{text}");
        }
    }

    #[test]
    fn eos_ids_take_numbers_lists_and_the_tokenizer() {
        let dir = tempfile::tempdir().unwrap();
        testing::write_byte_level_tokenizer(dir.path());
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let end = tokenizer.token_id("<end>").unwrap();
        let open = || ModelFolder::open(dir.path()).unwrap().eos_ids(&tokenizer);
        assert!(open().is_empty());
        std::fs::write(
            dir.path().join("config.json"),
            r#"{"eos_token_id": 2, "other": []}"#,
        )
        .unwrap();
        assert_eq!(open(), [2]);
        std::fs::write(
            dir.path().join("generation_config.json"),
            r#"{"eos_token_id": [7, 3, 7]}"#,
        )
        .unwrap();
        assert_eq!(open(), [3, 7]);
        let config = r#"{"eos_token": {"content": "<end>", "lstrip": false}}"#;
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        assert_eq!(open(), [3, 7, end]);
    }

    #[test]
    fn windows_are_those_of_layers() {
        let window = |text: &str| {
            let config: Config = serde_json::from_str(text).unwrap();
            config.window().map(|w| (w.length, w.everywhere))
        };
        for (text, wanted) in [
            (r#"{"model_type": "llama"}"#, None),
            (
                r#"{"model_type": "mistral", "sliding_window": 8}"#,
                Some((8, true)),
            ),
            (r#"{"model_type": "mistral", "sliding_window": null}"#, None),
            (r#"{"model_type": "phi3", "sliding_window": -1}"#, None),
            (
                r#"{"model_type": "gemma2", "sliding_window": 8}"#,
                Some((8, false)),
            ),
            (r#"{"model_type": "qwen2", "sliding_window": 8}"#, None),
            (
                r#"{"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": true}"#,
                Some((8, false)),
            ),
            (
                r#"{"sliding_window": 8, "layer_types": ["sliding_attention", "sliding_attention"]}"#,
                Some((8, true)),
            ),
            (
                r#"{"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}"#,
                Some((8, false)),
            ),
            (
                r#"{"sliding_window": 8, "layer_types": ["full_attention"]}"#,
                None,
            ),
        ] {
            assert_eq!(window(text), wanted, "{text}");
        }
    }

    #[test]
    fn bad_entries_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        for (text, values) in [
            ("{", [""; 2]),
            ("\u{feff}{}", [""; 2]),
            (
                r#"{"top_k": 1, "eos_token_id": "two"}"#,
                ["\"eos_token_id\"", "\"two\""],
            ),
            (r#"{"eos_token_id": [2, 1.5]}"#, ["\"eos_token_id\"", "[2,1.5]"]),
            (
                r#"{"eos_token_id": 4294967296}"#,
                ["\"eos_token_id\"", "4294967296"],
            ),
            (r#"{"top_k": 50.5}"#, ["\"top_k\"", "50.5"]),
            (r#"{"temperature": "warm"}"#, ["\"temperature\"", "\"warm\""]),
            (r#"{"do_sample": 3}"#, ["\"do_sample\"", "3"]),
        ] {
            std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
            let e = ModelFolder::open(dir.path()).unwrap_err();
            assert_carries(e, &[&["generation_config.json"][..], &values].concat());
        }
    }

    #[test]
    fn numbers_of_other_forms_are_read_where_they_are_clear() {
        let read = |text: &str| -> GenerationConfig { serde_json::from_str(text).unwrap() };
        let found = read(
            r#"{"temperature": "0.6", "top_k": 50.0, "top_p": "0.9", "min_p": null, "do_sample": "True",
            "repetition_penalty": 1, "eos_token_id": [-1, 2.0, "7"], "pad_token_id": -1}"#,
        );
        assert_eq!((found.temperature, found.top_k), (Some(0.6), Some(50)));
        assert_eq!((found.top_p, found.min_p), (Some(0.9), None));
        assert_eq!(
            (found.do_sample, found.repetition_penalty),
            (Some(true), Some(1.0))
        );
        assert_eq!(found.eos_token_id, Some(TokenIds::Many(vec![2, 7])));
        for none in ["-1", "[-1]", "[]", "null", "[null]", "-1.0"] {
            assert_eq!(
                read(&format!(r#"{{"eos_token_id": {none}}}"#)).eos_token_id,
                None,
                "{none}"
            );
        }
        let config: Config =
            serde_json::from_str(r#"{"vocab_size": "32000", "max_position_embeddings": 4096.0}"#).unwrap();
        assert_eq!(
            (config.vocab_size, config.max_position_embeddings),
            (Some(32000), Some(4096))
        );
    }
}
