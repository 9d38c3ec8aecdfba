//! Models that are split into several GGUF files.

use super::read::Gguf;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::Result;

/// Metadata of a part: its number, from 0 on; how many there are; tensors of all parts.
const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The name of a part, such as `model-00001-of-00003.gguf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartName<'a> {
    stem: &'a str,
    extension: &'a str,
    /// From 1 on.
    pub number: usize,
    pub count: usize,
}

impl<'a> PartName<'a> {
    /// `None` for another name.
    pub(crate) fn of(name: &'a str) -> Option<Self> {
        let (whole, extension) = name.rsplit_once('.')?;
        let (rest, count) = whole.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |t: &str| t.len() == 5 && t.bytes().all(|b| b.is_ascii_digit());
        let number: usize = number.parse().ok().filter(|_| digits(number))?;
        let count: usize = count.parse().ok().filter(|_| digits(count))?;
        let valid = (1..=count).contains(&number) && extension.eq_ignore_ascii_case("gguf");
        valid.then_some(Self {
            stem,
            extension,
            number,
            count,
        })
    }

    /// The name without its number.
    pub(crate) fn stem(&self) -> &'a str {
        self.stem
    }

    /// The name of another part.
    pub(crate) fn with(&self, number: usize) -> String {
        let Self {
            stem,
            extension,
            count,
            ..
        } = self;
        format!("{stem}-{number:05}-of-{count:05}.{extension}")
    }

    /// The names of the parts after the first.
    pub(crate) fn others(&self) -> impl Iterator<Item = String> + use<'_, 'a> {
        (2..=self.count).map(|number| self.with(number))
    }
}

/// The files that a model consists of, by the name of the first: those of them that exist.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let part = PartName::of(name).filter(|part| part.number == 1);
    let others = part
        .iter()
        .flat_map(PartName::others)
        .map(|name| path.with_file_name(name));
    let others: Vec<_> = others.filter(|path| path.is_file()).collect();
    [path.to_owned()].into_iter().chain(others).collect()
}

impl Gguf {
    /// Maps the file `path` into memory and reads its header; of a model that is split, the first
    /// part and all others, which lie beside it. An error names the part that is missing or is
    /// another one than its name says.
    pub fn open(path: &Path) -> Result<Self> {
        let mut first = Self::open_one(path)?;
        let count = first.opt_usize(COUNT)?.unwrap_or(1);
        if count <= 1 {
            return Ok(first);
        }
        let number = first
            .required(NUMBER, first.opt_usize(NUMBER)?)?
            .saturating_add(1);
        let name = path.file_name().and_then(|n| n.to_str()).and_then(PartName::of);
        let Some(name) = name.filter(|n| (n.number, n.count) == (number, count)) else {
            return Err(first.bad(format!(
                "it is part {number} of {count} of a model; expected a file name that ends in \
                 -{number:05}-of-{count:05}.gguf"
            )));
        };
        if number != 1 {
            let first_name = path.with_file_name(name.with(1));
            let first_name = first_name.display();
            return Err(first.bad(format!(
                "it is part {number} of {count} of a model; give the first part, {first_name}"
            )));
        }
        for (number, other) in (2_usize..).zip(name.others()) {
            let other = path.with_file_name(other);
            if !other.is_file() {
                let other = other.display();
                return Err(first.bad(format!(
                    "it is part 1 of {count} of a model; part {number}, {other}, is missing"
                )));
            }
            let part = Self::open_one(&other)?;
            let found = (part.opt_usize(NUMBER)?, part.opt_usize(COUNT)?);
            if found != (Some(number - 1), Some(count)) {
                let [no, of] = [found.0.map(|n| n.saturating_add(1)), found.1]
                    .map(|n| n.map_or_else(|| "?".to_owned(), |n| n.to_string()));
                return Err(part.bad(format!(
                    "expected part {number} of {count} of a model, found part {no} of {of}"
                )));
            }
            first.append(part)?;
        }
        let expected = first.opt_usize(TENSORS)?;
        let found = first.tensors().len();
        match expected.filter(|n| *n != found) {
            Some(expected) => Err(first.bad(format!(
                "metadata \"{TENSORS}\": expected {expected} tensors in all parts, found {found}"
            ))),
            None => Ok(first),
        }
    }
}
