//! Several pictures: found in folders, run in batches.

use super::picture::{PictureOptions, Prepared, is_picture, prepare};
use crate::cancel::Cancel;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::num::part;
use crate::runner::{Named, Runner};
use crate::tensor::HostTensor;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Pictures that are run together at most.
const BATCH: usize = 8;
/// Bytes of pictures that are run together at most; a larger one is run alone.
const BATCH_BYTES: usize = 256 << 20;
/// Nesting of folders that are searched.
const MAX_DEPTH: usize = 32;

/// A picture of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Name in the set: of the file, or its path in the folder.
    pub name: PathBuf,
    /// The file.
    pub file: PathBuf,
}

/// The files in a folder and its subfolders by path, without hidden ones.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(folder, 0, &mut found)?;
    Ok(found)
}

/// The files and folders in a folder by name, without hidden ones, which are those of the system.
pub fn entries_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::io("cannot read", folder, e);
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        entries.push(entry.map_err(failed)?.path());
    }
    entries.retain(|e| {
        let name = e.file_name().unwrap_or_default();
        !name.as_encoded_bytes().starts_with(b".")
    });
    entries.sort();
    Ok(entries)
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    if depth > MAX_DEPTH {
        let what = format!("folders are nested deeper than {MAX_DEPTH}");
        return Err(Error::file(Stage::Run, folder, what));
    }
    for entry in entries_of(folder)? {
        match entry.is_dir() {
            true => collect(&entry, depth + 1, found)?,
            false => found.push(entry),
        }
    }
    Ok(())
}

/// The pictures of `paths`, files or folders, in order. Usage errors: a folder without pictures;
/// two pictures with the same name in the set.
pub fn pictures(paths: &[&Path]) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for path in paths {
        if !path.is_dir() {
            let name = path.file_name().unwrap_or(path.as_os_str());
            items.push(Item {
                name: name.into(),
                file: (*path).to_owned(),
            });
            continue;
        }
        let before = items.len();
        for file in files_in(path)?.into_iter().filter(|f| is_picture(f)) {
            let name = file.strip_prefix(path).unwrap_or(&file).to_owned();
            items.push(Item { name, file });
        }
        if items.len() == before {
            let what = format!("no pictures ({})", super::picture::ENDINGS.join(", "));
            return Err(Error::usage(path.display().to_string(), what));
        }
    }
    let mut seen: HashMap<&Path, &Path> = HashMap::new();
    for item in &items {
        if let Some(other) = seen.insert(&item.name, &item.file) {
            let what = format!(
                "has the same name as {}; run them one after the other, or give a folder that holds both",
                other.display()
            );
            return Err(Error::usage(item.file.display().to_string(), what));
        }
    }
    Ok(items)
}

/// Called with a picture and its outputs, those of a batch of one, or what is wrong with it.
pub type OnOutputs<'a> = &'a mut dyn FnMut(&Item, Result<(&Prepared, Vec<Named>)>) -> Result<()>;

/// Runs a model with one input on pictures, in batches where it can, and calls `on_outputs` for
/// each in order. A picture that cannot be read or run is passed on as an error, and the next one
/// runs.
///
/// Errors: the model has no or several inputs; an interrupted run; an error of `on_outputs`.
pub fn run<'a>(
    runner: &'a mut Runner,
    items: &'a [Item],
    options: &PictureOptions,
    cancel: &'a Cancel,
    on_outputs: OnOutputs<'_>,
) -> Result<()> {
    let inputs: Vec<&str> = runner.inputs().map(|(name, _)| name).collect();
    let ([input], Some(fact)) = (inputs.as_slice(), runner.inputs().next().map(|(_, f)| f.clone())) else {
        let what = format!(
            "several pictures need a model with one input; this one has {}: {}",
            inputs.len(),
            inputs.join(", ")
        );
        return Err(Error::usage("--input", what));
    };
    let mut batches = Batches {
        input: (*input).to_owned(),
        most: if runs_batches(runner) { BATCH } else { 1 },
        runner,
        cancel,
        open: Vec::new(),
    };
    for item in items {
        let prepared = prepare(&item.file, &fact, options);
        if !prepared.as_ref().is_ok_and(|p| batches.has_room(p)) {
            batches.run(on_outputs)?;
        }
        match prepared {
            Ok(prepared) => batches.open.push((item, prepared)),
            Err(e) => on_outputs(item, Err(e))?,
        }
    }
    batches.run(on_outputs)
}

/// Number of pictures of `bytes` each that are run together, up to `most`.
fn batch_of(bytes: usize, most: usize) -> usize {
    most.min(BATCH_BYTES / bytes.max(1)).max(1)
}

/// Runs pictures together.
struct Batches<'a> {
    runner: &'a mut Runner,
    cancel: &'a Cancel,
    /// Name of the input.
    input: String,
    /// Pictures of a batch at most.
    most: usize,
    /// Pictures of the next batch; their tensors have one shape.
    open: Vec<(&'a Item, Prepared)>,
}

impl Batches<'_> {
    fn has_room(&self, next: &Prepared) -> bool {
        let Some((_, last)) = self.open.last() else {
            return true;
        };
        last.tensor.shape() == next.tensor.shape()
            && batch_of(next.tensor.byte_len(), self.most) > self.open.len()
    }

    /// The outputs for each of some pictures that run together.
    fn outputs(&mut self, parts: &[&Prepared]) -> Result<Vec<Vec<Named>>> {
        let tensors: Vec<&HostTensor> = parts.iter().map(|p| &p.tensor).collect();
        let input = (self.input.clone(), joined(&tensors)?);
        let outputs = self.runner.run(&[input], self.cancel)?;
        match parts.len() {
            1 => Ok(vec![outputs]),
            n => divided(&outputs, n),
        }
    }

    /// Runs the open batch; if that fails, each of its pictures alone.
    fn run(&mut self, on_outputs: OnOutputs<'_>) -> Result<()> {
        let open = std::mem::take(&mut self.open);
        let all: Vec<&Prepared> = open.iter().map(|(_, p)| p).collect();
        if all.len() > 1 {
            match self.outputs(&all) {
                Ok(outputs) => {
                    for ((item, prepared), outputs) in open.iter().zip(outputs) {
                        on_outputs(item, Ok((prepared, outputs)))?;
                    }
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
                Err(e) => {
                    log::warn!(
                        "{} pictures at once: {}; running them one by one",
                        all.len(),
                        e.chain()
                    );
                    self.most = 1;
                }
            }
        }
        for (item, prepared) in &open {
            let outputs = match self.outputs(&[prepared]) {
                Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
                outputs => outputs.and_then(|all| match all.into_iter().next() {
                    Some(all) => Ok((prepared, all)),
                    None => Err(Error::internal(Stage::Run, "a picture without outputs")),
                }),
            };
            on_outputs(item, outputs)?;
        }
        Ok(())
    }
}

/// Whether a model with one input can run several pictures at once: the first axis of the input and
/// of each output is the same symbol.
fn runs_batches(runner: &Runner) -> bool {
    let mut inputs = runner.inputs();
    let (Some((_, input)), None) = (inputs.next(), inputs.next()) else {
        return false;
    };
    let batch = input.shape.0.first().and_then(|d| d.as_symbol());
    let mut outputs = runner.outputs().peekable();
    batch.is_some()
        && outputs.peek().is_some()
        && outputs.all(|(_, f)| f.shape.0.first().and_then(|d| d.as_symbol()) == batch)
}

/// Joins tensors of one type and one shape `[1, ...]` along their first axis.
fn joined(parts: &[&HostTensor]) -> Result<HostTensor> {
    let failed = |e| Error::caused(Stage::Run, "a batch of pictures", e);
    let Some(first) = parts.first() else {
        return Err(Error::internal(Stage::Run, "a batch without pictures"));
    };
    let mut shape = first.shape().to_vec();
    let mut bytes = crate::files::room(first.byte_len().saturating_mul(parts.len()))?;
    for part in parts {
        if part.shape() != first.shape() || part.dtype() != first.dtype() {
            return Err(Error::internal(Stage::Run, "a batch of pictures that differ"));
        }
        bytes.extend_from_slice(part.bytes().map_err(failed)?);
    }
    shape.iter_mut().take(1).for_each(|n| *n = parts.len());
    HostTensor::from_bytes(first.dtype(), &shape, &bytes).map_err(failed)
}

/// The outputs of a batch of `count` for each of its pictures. An error if the first axis of an
/// output is not the batch.
fn divided(outputs: &[Named], count: usize) -> Result<Vec<Vec<Named>>> {
    let mut all: Vec<Vec<Named>> = (0..count).map(|_| Vec::new()).collect();
    for (name, tensor) in outputs {
        if tensor.shape().first() != Some(&count) {
            let what = format!(
                "output \"{name}\" has the shape {:?}, but the batch has {count} pictures; run one picture at a time",
                tensor.shape()
            );
            return Err(Error::other(Stage::Run, what));
        }
        let failed = |e| Error::caused(Stage::Run, format!("output \"{name}\""), e);
        let bytes = tensor.bytes().map_err(failed)?;
        let mut shape = tensor.shape().to_vec();
        shape.iter_mut().take(1).for_each(|n| *n = 1);
        let each = bytes.len() / count.max(1);
        for (i, of) in all.iter_mut().enumerate() {
            let part = part(bytes, i * each..(i + 1) * each)?;
            let part = HostTensor::from_bytes(tensor.dtype(), &shape, part).map_err(failed)?;
            of.push((name.clone(), part));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;
    use crate::testing::assert_carries;

    #[test]
    fn pictures_are_found_in_folders_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("set/inner")).unwrap();
        std::fs::create_dir(at("none")).unwrap();
        for name in [
            "set/b.png",
            "set/a.JPG",
            "set/.hidden.png",
            "set/notes.txt",
            "set/inner/b.png",
            "b.png",
        ] {
            std::fs::write(at(name), "").unwrap();
        }
        let set = at("set");
        let names: Vec<_> = pictures(&[&set]).unwrap().into_iter().map(|i| i.name).collect();
        assert_eq!(names, ["a.JPG", "b.png", "inner/b.png"].map(PathBuf::from));
        let e = pictures(&[&set, &at("b.png")]).unwrap_err();
        assert!(e.is_usage());
        assert_carries(e.chain(), &["b.png", "set"]);
        assert_carries(pictures(&[&at("none")]).unwrap_err().chain(), &["none", ".webp"]);
        assert!(pictures(&[&at("missing.png")]).is_ok(), "reading it fails");
    }

    #[test]
    fn batches_are_limited_by_count_and_bytes() {
        let sizes = [0, 1 << 20, 50 << 20, 128 << 20, 200 << 20, usize::MAX];
        assert_eq!(sizes.map(|bytes| batch_of(bytes, 8)), [8, 8, 5, 2, 1, 1]);
        assert_eq!(batch_of(1, 1), 1);
    }

    #[test]
    fn batches_are_joined_and_divided() {
        let row = |v: f32| HostTensor::from_f32(&[1, 2], &[v, v + 1.0]).unwrap();
        let (a, b) = (row(1.0), row(5.0));
        let whole = joined(&[&a, &b]).unwrap();
        assert_eq!((whole.shape(), whole.dtype()), (&[2, 2][..], DType::F32));
        let parts = divided(&[("y".to_owned(), whole.clone())], 2).unwrap();
        assert_eq!(parts[1][0].1.to_f32().unwrap()[..], [5.0, 6.0]);
        assert_eq!(parts[1][0].1.shape(), [1, 2]);
        let e = divided(&[("y".to_owned(), whole)], 3).unwrap_err();
        assert_carries(e.chain(), &["y", "[2, 2]", "3"]);
    }
}
