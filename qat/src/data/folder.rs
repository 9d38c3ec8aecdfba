//! Folders of pictures, with a folder for each class.

use super::{Data, Label, Pictures};
use crate::error::{Error, Result};
use image::imageops::FilterType;
use image::{DynamicImage, GenericImageView, GrayImage, ImageReader, Limits};
use std::path::{Path, PathBuf};

/// Maximum bytes that decoding one picture may take.
const MEMORY: u64 = 512 << 20;

/// How pictures of another size fit the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Fit {
    /// They are refused.
    #[default]
    Exact,
    /// They are scaled, without keeping their proportions.
    Stretch,
    /// They are scaled to cover the model's size and cut at the middle.
    Crop,
}

/// The entries of a folder in the order of their names, without hidden ones.
fn entries(folder: &Path, folders: bool) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::io("read", folder, e);
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let path = entry.path();
        if !hidden && path.is_dir() == folders {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// The set of a folder: with folders `train` and `test` that hold the classes, or with the classes.
pub(super) fn read(folder: &Path, size: [usize; 3], fit: Fit) -> Result<Data> {
    let (train, test) = (folder.join("train"), folder.join("test"));
    if train.is_dir() && test.is_dir() {
        let (train_set, classes) = pictures(&train, size, fit)?;
        let (test_set, names) = pictures(&test, size, fit)?;
        if names != classes {
            let what = format!("has the classes {names:?}; {} has {classes:?}", train.display());
            return Err(Error::data(&test, what));
        }
        return Ok(Data {
            train: train_set,
            test: test_set,
            classes,
        });
    }
    let (all, classes) = pictures(folder, size, fit)?;
    let (train, test) = all.split();
    Ok(Data { train, test, classes })
}

fn pictures(folder: &Path, size: [usize; 3], fit: Fit) -> Result<(Pictures, Vec<String>)> {
    let mut out = Pictures::none(size);
    let mut classes = Vec::new();
    for (label, class) in entries(folder, true)?.into_iter().enumerate() {
        let files = entries(&class, false)?;
        if files.is_empty() {
            return Err(Error::data(&class, "is a class without pictures"));
        }
        for file in files {
            out.pixels.extend(decoded(&file, size, fit)?);
            out.labels.push(Label {
                class: label,
                ..Label::default()
            });
        }
        classes.push(
            class
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
        );
    }
    if classes.is_empty() {
        return Err(Error::data(
            folder,
            "expected IDX files, a .csv file or a folder for each class",
        ));
    }
    Ok((out, classes))
}

/// The values of a picture, channel after channel.
fn decoded(path: &Path, size: [usize; 3], fit: Fit) -> Result<Vec<u8>> {
    let failed = |e| Error::io("read", path, e);
    let mut reader = ImageReader::open(path)
        .map_err(failed)?
        .with_guessed_format()
        .map_err(failed)?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MEMORY);
    reader.limits(limits);
    let image = reader
        .decode()
        .map_err(|e| Error::data(path, format!("is not a usable picture: {e}")))?;
    let [channels, height, width] = size;
    let image = fitted(image, path, [height, width], fit)?;
    match channels {
        1 => Ok(image.to_luma8().into_raw()),
        3 => {
            let pixels = image.to_rgb8().into_raw();
            Ok((0..3)
                .flat_map(|c| pixels.iter().skip(c).step_by(3).copied())
                .collect())
        }
        _ => Err(Error::data(
            path,
            format!("the model takes {channels} channels; pictures have 1 or 3"),
        )),
    }
}

fn fitted(image: DynamicImage, path: &Path, [height, width]: [usize; 2], fit: Fit) -> Result<DynamicImage> {
    let (have_w, have_h) = image.dimensions();
    let sides = (u32::try_from(width), u32::try_from(height));
    let (Ok(w), Ok(h)) = sides else {
        return Err(Error::data(path, "the model's pictures are too large"));
    };
    if (have_w, have_h) == (w, h) {
        return Ok(image);
    }
    match fit {
        Fit::Exact => {
            let what = format!("has {have_w} x {have_h} pixels; the model takes {w} x {h} (see --fit)");
            Err(Error::data(path, what))
        }
        Fit::Stretch => Ok(image.resize_exact(w, h, FilterType::Triangle)),
        Fit::Crop => Ok(image.resize_to_fill(w, h, FilterType::Triangle)),
    }
}

/// A channel of a picture in another size.
pub fn fitted_plane(
    plane: &[u8],
    [_, height, width]: [usize; 3],
    path: &Path,
    [_, h, w]: [usize; 3],
    fit: Fit,
) -> Result<Vec<u8>> {
    let sides = (u32::try_from(width), u32::try_from(height));
    let image = match sides {
        (Ok(width), Ok(height)) => GrayImage::from_raw(width, height, plane.to_vec()),
        _ => None,
    };
    let image = image.ok_or_else(|| Error::data(path, "has pictures that are too large"))?;
    Ok(fitted(image.into(), path, [h, w], fit)?.into_luma8().into_raw())
}
