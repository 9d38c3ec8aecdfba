//! Labelled pictures: IDX files, CSV files, and folders with a folder for each class.

mod csv;
mod folder;
mod idx;

use crate::error::{Error, Result};
use crate::task::boxes::Object;
use crate::train::checksum;
use flate2::read::GzDecoder;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::llm::sampler::SplitMix64;

pub use folder::Fit;

/// Maximum bytes of a file after decompression.
const LARGEST: u64 = 4 << 30;
/// Where a set has no test pictures of its own, one in this number of pictures is held out.
const HELD_OUT: usize = 5;

/// What is on a picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Label {
    pub class: usize,
    /// The angle by which it is turned, in degrees clockwise.
    pub angle: f32,
    /// The objects of a scene; empty for other pictures.
    pub objects: Vec<Object>,
}

/// Pictures of one size, with their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Pictures {
    /// Channels, height and width.
    pub size: [usize; 3],
    /// Values of 0 to 255 in the order of `size`, picture after picture.
    pixels: Vec<u8>,
    pub labels: Vec<Label>,
}

/// Pictures for training and for tests.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    pub train: Pictures,
    pub test: Pictures,
    /// Names of the classes; empty if the set has only numbers.
    pub classes: Vec<String>,
}

/// How numbers are made of pictures.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Normalization {
    /// Subtracted from each channel, whose values are 0 to 1.
    pub mean: Vec<f32>,
    /// Divides each channel after that.
    pub deviation: Vec<f32>,
}

/// Random changes of training pictures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Augmentation {
    /// Mirrors half of the pictures.
    pub flip: bool,
    /// Moves pictures by up to this number of pixels along both axes.
    pub shift: usize,
}

impl Data {
    /// Reads `path` as pictures of this size for a network with this number of classes.
    ///
    /// Errors, all of which name the file: nothing that is known as a data set; a class without
    /// pictures; a label that is not below `classes`; pictures of another size. With [`Fit::Exact`],
    /// pictures of IDX and CSV files that are smaller are padded with zeros.
    pub fn load(path: &Path, size: [usize; 3], classes: usize, fit: Fit) -> Result<Self> {
        let mut data = if let Some(csv) = csv::file(path) {
            let all = csv::read(&csv)?;
            let (train, test) = all.split();
            Self {
                train,
                test,
                classes: Vec::new(),
            }
        } else if idx::is_set(path) {
            Self {
                train: idx::read(path, "train")?,
                test: idx::read(path, "t10k")?,
                classes: Vec::new(),
            }
        } else if path.is_dir() {
            folder::read(path, size, fit)?
        } else {
            let what = "is neither a folder nor a .csv or .csv.gz file";
            return Err(Error::data(path, what));
        };
        if data.classes.len() > classes {
            let what = format!(
                "has {} classes; the model has {classes} outputs",
                data.classes.len()
            );
            return Err(Error::data(path, what));
        }
        for part in [&mut data.train, &mut data.test] {
            if part.labels.is_empty() {
                return Err(Error::data(path, "has too few pictures for training and tests"));
            }
            let wrong = part.labels.iter().enumerate().find(|(_, l)| l.class >= classes);
            if let Some((i, Label { class: label, .. })) = wrong {
                let what = format!(
                    "picture {i} has label {label}; expected 0 to {}",
                    classes.saturating_sub(1)
                );
                return Err(Error::data(path, what));
            }
            *part = std::mem::replace(part, Pictures::none(size)).fitted(size, path, fit)?;
        }
        Ok(data)
    }
}

impl Data {
    /// A checksum of all pictures and labels.
    pub fn checksum(&self) -> String {
        let classes = |p: &Pictures| p.labels.iter().map(|l| l.class).collect::<Vec<usize>>();
        let labels = |p: &Pictures| {
            classes(p)
                .iter()
                .flat_map(|c| c.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let (train, test) = (labels(&self.train), labels(&self.test));
        checksum(&[&self.train.pixels, &train, &self.test.pixels, &test])
    }
}

impl Pictures {
    /// No pictures, of this size.
    pub fn none(size: [usize; 3]) -> Self {
        Self {
            size,
            pixels: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// The number of pictures.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// True if there are no pictures.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Only the first `count` pictures.
    pub fn truncate(&mut self, count: usize) {
        self.labels.truncate(count);
        self.pixels
            .truncate(count.saturating_mul(self.size.iter().product()));
    }

    /// Adds a picture.
    pub fn push(&mut self, pixels: &[u8], label: Label) {
        self.pixels.extend_from_slice(pixels);
        self.labels.push(label);
    }

    /// The label of a picture.
    pub fn label(&self, i: usize) -> Label {
        self.labels.get(i).cloned().unwrap_or_default()
    }

    fn picture(&self, i: usize) -> &[u8] {
        let each: usize = self.size.iter().product();
        self.pixels.get(i * each..(i + 1) * each).unwrap_or_default()
    }

    /// Every fifth picture, in a random order, is held out for tests.
    fn split(self) -> (Self, Self) {
        let (mut train, mut test) = (Self::none(self.size), Self::none(self.size));
        for (n, i) in shuffled(self.len(), 0).into_iter().enumerate() {
            let to = if n % HELD_OUT == 0 { &mut test } else { &mut train };
            to.push(self.picture(i), self.label(i));
        }
        (train, test)
    }

    /// The pictures in another size.
    fn fitted(self, size: [usize; 3], path: &Path, fit: Fit) -> Result<Self> {
        if self.size == size {
            return Ok(self);
        }
        if fit == Fit::Exact || self.size[0] != size[0] {
            return self.padded(size, path);
        }
        let mut pixels = Vec::with_capacity(self.len() * size.iter().product::<usize>());
        for plane in self.pixels.chunks_exact(self.size[1] * self.size[2]) {
            pixels.extend(folder::fitted_plane(plane, self.size, path, size, fit)?);
        }
        Ok(Self {
            size,
            pixels,
            labels: self.labels,
        })
    }

    /// The pictures with zeros around them.
    fn padded(self, size: [usize; 3], path: &Path) -> Result<Self> {
        let ([channels, height, width], [c, h, w]) = (self.size, size);
        if channels != c || height > h || width > w {
            let what = format!(
                "has pictures of {channels} x {height} x {width} (channels, height, width); the model takes {c} x {h} x {w}"
            );
            return Err(Error::data(path, what));
        }
        let (top, left) = ((h - height) / 2, (w - width) / 2);
        let mut pixels = vec![0; self.len() * c * h * w];
        for (plane, from) in self.pixels.chunks_exact(height * width).enumerate() {
            for (y, row) in from.chunks_exact(width).enumerate() {
                let at = (plane * h + top + y) * w + left;
                if let Some(to) = pixels.get_mut(at..at + width) {
                    to.copy_from_slice(row);
                }
            }
        }
        Ok(Self {
            size,
            pixels,
            labels: self.labels,
        })
    }

    /// A picture with random changes; black where it was moved away.
    pub fn changed(&self, i: usize, augmentation: Augmentation, random: &mut SplitMix64) -> Vec<u8> {
        let [_, height, width] = self.size;
        let change = Change::draw(augmentation, random);
        let picture = self.picture(i);
        let mut out = Vec::with_capacity(picture.len());
        for plane in picture.chunks_exact((height * width).max(1)) {
            for y in 0..height {
                for x in 0..width {
                    let from = change.source(y, x, [height, width]);
                    out.push(from.and_then(|at| plane.get(at)).copied().unwrap_or(0));
                }
            }
        }
        out
    }

    /// The numbers of pictures, `[pictures, channels, height, width]`.
    pub fn batch(&self, indices: &[usize], normalization: &Normalization) -> Vec<f32> {
        let pictures = indices.iter().map(|i| self.picture(*i));
        normalization.numbers(pictures, self.size)
    }
}

impl Normalization {
    /// Values from 0 to 1.
    pub fn none(channels: usize) -> Self {
        Self {
            mean: vec![0.0; channels],
            deviation: vec![1.0; channels],
        }
    }

    /// The numbers of pictures of this size.
    pub fn numbers<'a>(&self, pictures: impl Iterator<Item = &'a [u8]>, size: [usize; 3]) -> Vec<f32> {
        let [channels, height, width] = size;
        let tables: Vec<[f32; 256]> = (0..channels).map(|c| self.table(c)).collect();
        let planes = pictures.flat_map(|p| p.chunks_exact((height * width).max(1)).zip(&tables));
        planes
            .flat_map(|(plane, table)| plane.iter().map(|v| table[usize::from(*v)]))
            .collect()
    }

    /// The number for each value of a channel.
    fn table(&self, channel: usize) -> [f32; 256] {
        let mean = self.mean.get(channel).copied().unwrap_or(0.0);
        let deviation = self.deviation.get(channel).copied().unwrap_or(1.0);
        let mut table = [0.0; 256];
        for (v, to) in (0u8..=255).zip(&mut table) {
            *to = (f32::from(v) / 255.0 - mean) / deviation;
        }
        table
    }
}

/// A change of one picture.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    flip: bool,
    down: isize,
    right: isize,
}

impl Change {
    fn draw(a: Augmentation, random: &mut SplitMix64) -> Self {
        let reach = 2 * a.shift + 1;
        let mut shift = || {
            let drawn = below(random, reach);
            isize::try_from(drawn).unwrap_or(0) - isize::try_from(a.shift).unwrap_or(0)
        };
        let (down, right) = (shift(), shift());
        Self {
            flip: a.flip && random.next_u64() >> 63 == 1,
            down,
            right,
        }
    }

    /// The element that comes to a place; `None` for none.
    fn source(self, y: usize, x: usize, [height, width]: [usize; 2]) -> Option<usize> {
        let y = y.checked_add_signed(-self.down).filter(|y| *y < height)?;
        let x = x.checked_add_signed(-self.right).filter(|x| *x < width)?;
        Some(y * width + if self.flip { width - 1 - x } else { x })
    }
}

/// A random integer below `n`, which is small.
pub fn below(random: &mut SplitMix64, n: usize) -> usize {
    let n = u64::try_from(n.max(1)).unwrap_or(u64::MAX);
    usize::try_from(random.next_u64() % n).unwrap_or(0)
}

/// The numbers below `count` in a random order.
pub fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut random = SplitMix64::new(seed);
    let mut all: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        all.swap(i, below(&mut random, i + 1));
    }
    all
}

/// The bytes of a file, decompressed if its name ends in `.gz`.
fn bytes(path: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::io("read", path, e);
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let mut out = Vec::new();
    let packed = path.extension().is_some_and(|e| e == "gz");
    let mut source: Box<dyn Read> = if packed {
        Box::new(GzDecoder::new(file))
    } else {
        Box::new(file)
    };
    source
        .by_ref()
        .take(LARGEST + 1)
        .read_to_end(&mut out)
        .map_err(failed)?;
    if out.len() as u64 > LARGEST {
        return Err(Error::data(path, format!("has more than {LARGEST} bytes")));
    }
    Ok(out)
}

/// The file with this name in a folder, possibly compressed.
fn named(folder: &Path, name: &str) -> Option<PathBuf> {
    let names = [format!("{name}.gz"), name.to_owned()];
    names.iter().map(|n| folder.join(n)).find(|p| p.is_file())
}
