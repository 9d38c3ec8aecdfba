//! The calibration set of `--calibration`: pictures, `.npy` files, or lines of text.

use super::super::Args;
use crate::cli::options::read_text;
use crate::files::{self, npy};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::fmt::count_text;
use transformer_lite::unstable::graph::Graph;
use transformer_lite::unstable::llm::Tokenizer;
use transformer_lite::unstable::num;
use transformer_lite::unstable::shape::Fact;
use transformer_lite::unstable::tensor::HostTensor;
use transformer_lite::unstable::vision::picture::{PictureOptions, is_picture};
use transformer_lite::unstable::vision::set::{entries_of, files_in};
use transformer_lite_convert::int8::Item;

const OPTION: &str = "--calibration";
/// Maximum number of tokens used from a line.
const MAX_TOKENS: usize = 512;

/// Where an item is.
enum Source {
    /// A file for the only input.
    File(PathBuf),
    /// A folder with NAME.npy for each input.
    Folder(PathBuf),
    /// A row of the first axis of a tensor for the only input.
    Row(usize),
    /// A line of text.
    Line(String),
}

/// The items of a set, in order.
pub struct Items<'a> {
    args: &'a Args,
    /// How pictures are prepared.
    options: PictureOptions,
    inputs: Vec<(String, Fact)>,
    /// The tensor of [`Source::Row`].
    rows: Option<HostTensor>,
    /// The tokenizer for [`Source::Line`].
    tokenizer: Option<Tokenizer>,
    /// Names and sources.
    all: Vec<(String, Source)>,
    pictures: bool,
    /// Files in folders that are not items.
    ignored: usize,
}

fn refused(what: impl Into<String>) -> Error {
    Error::usage(OPTION, what)
}

impl<'a> Items<'a> {
    /// Finds at most `at_most` items for the model, spread evenly over the set. Usage errors: no
    /// set is given; the set is empty; the model has inputs that it cannot fill.
    pub fn find(graph: &Graph, args: &'a Args, at_most: usize) -> Result<Self> {
        let path = args.calibration.calibration.as_deref().ok_or_else(|| {
            refused("--format int8 needs calibration data: pictures or .npy files (a file or a folder), or a text file")
        })?;
        let mut inputs = Vec::new();
        for v in graph.inputs() {
            inputs.push((graph.value(*v).name.clone(), graph.fact(*v)?.clone()));
        }
        let mut items = Self {
            args,
            options: args.pictures.over(&PictureOptions::default()),
            inputs,
            rows: None,
            tokenizer: None,
            all: Vec::new(),
            pictures: false,
            ignored: 0,
        };
        if path.is_dir() {
            items.folder(path)?;
        } else if !path.exists() {
            return Err(refused(format!("{} does not exist", path.display())));
        } else if path.extension().is_some_and(|e| e == "npy") {
            items.tensor(path)?;
        } else if is_picture(path) {
            items
                .all
                .push((path.display().to_string(), Source::File(path.to_owned())));
        } else {
            items.text(path)?;
        }
        if items.all.is_empty() {
            return Err(refused(items.nothing(path)));
        }
        let pictured = |(_, s): &&(String, Source)| matches!(s, Source::File(f) if is_picture(f));
        items.pictures = items.all.iter().any(|i| pictured(&i));
        if let Some((name, _)) = items.all.iter().find(|i| items.pictures && !pictured(i)) {
            let what = format!(
                "{} holds pictures and also {name}; use either pictures or tensors",
                path.display()
            );
            return Err(refused(what));
        }
        if let Some(option) = args.pictures.given().filter(|_| !items.pictures) {
            return Err(Error::usage(
                option,
                "has no effect: the calibration set has no pictures (.png, .jpg, .webp, .bmp)",
            ));
        }
        let found = items.all.len();
        if found > at_most {
            let mut i = 0;
            items.all.retain(|_| {
                // The item after which another one is due.
                let kept = (i + 1) * at_most / found > i * at_most / found;
                i += 1;
                kept
            });
        }
        Ok(items)
    }

    /// Notes on ignored files, and on options for pictures that the model probably needs.
    pub fn suggestions(&self, graph: &Graph) -> Result<Vec<String>> {
        let ignored = (self.ignored > 0).then(|| {
            let files = count_text(self.ignored, "file");
            format!("{files} ignored in the calibration set; pictures and .npy are read")
        });
        if !self.pictures {
            return Ok(ignored.into_iter().collect());
        }
        let mut outputs = Vec::new();
        for v in graph.outputs() {
            let mut shape = Vec::new();
            for size in &graph.fact(*v)?.shape.0 {
                // A symbolic size, such as the batch size, is 1 for a single item.
                shape.push(match size.as_const() {
                    Some(n) => num::exact(n, "a size").map_err(|e| Error::internal(Stage::Quantize, e))?,
                    None => 1,
                });
            }
            outputs.push(shape);
        }
        let (_, input) = self.only_input()?;
        let pictures = &self.args.pictures;
        let notes = [
            ignored,
            pictures.suggestion(input, &outputs),
            pictures.open_size(input).map(str::to_owned),
        ];
        Ok(notes.into_iter().flatten().collect())
    }

    /// How pictures were prepared, for the model's metadata; nothing for other items.
    pub fn preparation(&self) -> Result<Vec<(String, String)>> {
        self.pictures.then(|| self.options.entry()).into_iter().collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.all.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The error message for a set without items.
    fn nothing(&self, path: &Path) -> String {
        let (folder, path) = (path.is_dir(), path.display());
        match self.inputs.as_slice() {
            _ if !folder => format!("{path} has no calibration items"),
            [_] => format!("{path} has no pictures (.png, .jpg, .webp, .bmp) or .npy files"),
            _ => format!("{path} has no subfolders; expected one per item, with NAME.npy for each input"),
        }
    }

    fn only_input(&self) -> Result<&(String, Fact)> {
        match self.inputs.as_slice() {
            [only] => Ok(only),
            all => {
                let names: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).collect();
                Err(refused(format!(
                    "the model has {} inputs ({}); give a folder with one folder per item that holds NAME.npy \
                     for each input",
                    all.len(),
                    names.join(", ")
                )))
            }
        }
    }

    /// Files in a folder and its subfolders; or, for a model with several inputs, its subfolders.
    fn folder(&mut self, path: &Path) -> Result<()> {
        let single = self.inputs.len() == 1;
        let found = if single {
            files_in(path)?
        } else {
            entries_of(path)?
        };
        for entry in found {
            let usable = is_picture(&entry) || entry.extension().is_some_and(|e| e == "npy" || e == "pb");
            let name = entry.display().to_string();
            match (entry.is_dir(), single) {
                (true, _) => self.all.push((name, Source::Folder(entry))),
                (false, true) if usable => self.all.push((name, Source::File(entry))),
                (false, false) if usable => {
                    self.only_input()?;
                }
                (false, _) => self.ignored += 1,
            }
        }
        Ok(())
    }

    /// A tensor: one item, or one for each row of its first axis.
    fn tensor(&mut self, path: &Path) -> Result<()> {
        let (_, fact) = self.only_input()?;
        let fixed = fact.shape.0.first().and_then(|d| d.as_const());
        let tensor = npy::read(path)?;
        let name = path.display().to_string();
        match tensor.shape() {
            [rows, rest @ ..] if rest.len() + 1 == fact.shape.rank() && fixed.is_none_or(|n| n == 1) => {
                self.all
                    .extend((0..*rows).map(|i| (format!("{name}[{i}]"), Source::Row(i))));
                self.rows = Some(tensor);
            }
            _ => self.all.push((name, Source::File(path.to_owned()))),
        }
        Ok(())
    }

    /// The lines of a text that are not blank.
    fn text(&mut self, path: &Path) -> Result<()> {
        if let Some((name, _)) = self
            .inputs
            .iter()
            .find(|(n, f)| f.dtype.is_float() || role(n).is_none())
        {
            return Err(refused(format!(
                "{} is a text file, but input \"{name}\" does not take tokens; give pictures or .npy files",
                path.display()
            )));
        }
        let text = read_text(OPTION, path)?;
        let model = &self.args.model;
        let folder = match model.is_dir() {
            true => model,
            false => model.parent().unwrap_or(Path::new(".")),
        };
        if !folder.join("tokenizer.json").exists() {
            let what = format!(
                "{} is a text file, but there is no tokenizer.json next to the model",
                path.display()
            );
            return Err(refused(what));
        }
        self.tokenizer = Some(Tokenizer::load(folder)?);
        let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
        let item = |(i, line): (usize, &str)| {
            (
                format!("{}:{}", path.display(), i + 1),
                Source::Line(line.to_owned()),
            )
        };
        self.all.extend(lines.map(item));
        Ok(())
    }

    /// The tensors of item `i`.
    pub fn read(&self, i: usize) -> Result<Item> {
        let Some((name, source)) = self.all.get(i) else {
            return Err(Error::internal(Stage::Quantize, "item index out of range"));
        };
        match source {
            Source::File(file) => {
                let (input, fact) = self.only_input()?;
                let tensor = files::read(file, fact, &self.options)?;
                Ok(vec![(input.clone(), tensor)])
            }
            Source::Folder(folder) => {
                let one = |(input, fact): &(String, Fact)| {
                    let file = folder.join(format!("{input}.npy"));
                    Ok((input.clone(), files::read(&file, fact, &self.options)?))
                };
                self.inputs.iter().map(one).collect()
            }
            Source::Row(row) => {
                let (input, _) = self.only_input()?;
                let Some(all) = &self.rows else {
                    return Err(Error::internal(Stage::Quantize, "a row without a tensor"));
                };
                let failed = |e| Error::caused(Stage::Quantize, name.clone(), e);
                let bytes = all.bytes().map_err(failed)?;
                let mut shape = all.shape().to_vec();
                let rows = shape.first().copied().unwrap_or(1).max(1);
                shape.iter_mut().take(1).for_each(|n| *n = 1);
                let each = bytes.len() / rows;
                let part = bytes.get(row * each..(row + 1) * each).unwrap_or_default();
                let tensor = HostTensor::from_bytes(all.dtype(), &shape, part).map_err(failed)?;
                Ok(vec![(input.clone(), tensor)])
            }
            Source::Line(line) => {
                let Some(tokenizer) = &self.tokenizer else {
                    return Err(Error::internal(Stage::Quantize, "a line without a tokenizer"));
                };
                let mut tokens = tokenizer.encode(line, true)?;
                tokens.truncate(MAX_TOKENS);
                self.inputs.iter().map(|i| filled(i, &tokens)).collect()
            }
        }
    }
}

/// The function that fills an input of an encoder or decoder, from a position and the token there.
fn role(name: &str) -> Option<fn(usize, Option<u32>) -> i64> {
    match name {
        "input_ids" => Some(|_, token| token.map_or(0, i64::from)),
        "attention_mask" => Some(|_, token| i64::from(token.is_some())),
        "token_type_ids" => Some(|_, _| 0),
        "position_ids" => Some(|i, _| num::signed(i)),
        _ => None,
    }
}

/// The tensor of an input for a line, truncated or padded if the input has a fixed length.
fn filled((name, fact): &(String, Fact), tokens: &[u32]) -> Result<(String, HostTensor)> {
    let fixed = fact
        .shape
        .0
        .last()
        .and_then(|d| d.as_const())
        .and_then(|n| usize::try_from(n).ok());
    let length = fixed.unwrap_or(tokens.len());
    let Some(value) = role(name) else {
        return Err(refused(format!("a text has no values for the input \"{name}\"")));
    };
    let data: Vec<i64> = (0..length).map(|i| value(i, tokens.get(i).copied())).collect();
    let tensor = HostTensor::from_ints(fact.dtype, &[1, length], &data);
    let failed = |e| Error::caused(Stage::Quantize, format!("input \"{name}\""), e);
    Ok((name.clone(), tensor.map_err(failed)?))
}
