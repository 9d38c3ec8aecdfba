//! The IDX format of MNIST and of sets like it.

use super::{Label, Pictures, bytes, named};
use crate::error::{Error, Result};
use std::path::Path;

const IMAGES: &str = "images-idx3-ubyte";
const LABELS: &str = "labels-idx1-ubyte";

/// True for a folder with training pictures in this format.
pub(super) fn is_set(folder: &Path) -> bool {
    named(folder, &format!("train-{IMAGES}")).is_some()
}

/// The sizes and bytes of a file with `axes` axes.
fn parse(path: &Path, axes: u8) -> Result<(Vec<usize>, Vec<u8>)> {
    let mut data = bytes(path)?;
    let header = 4 + 4 * usize::from(axes);
    let (Some(magic), Some(sizes)) = (data.get(..4), data.get(4..header)) else {
        return Err(Error::data(path, format!("is cut off: {} bytes", data.len())));
    };
    // Zeros, then the code of bytes without sign.
    if magic != [0, 0, 8, axes] {
        return Err(Error::data(
            path,
            format!("is not an IDX file of bytes with {axes} axes"),
        ));
    }
    let size = |b: &[u8]| b.iter().fold(0usize, |n, b| n << 8 | usize::from(*b));
    let sizes: Vec<usize> = sizes.chunks_exact(4).map(size).collect();
    let expected = sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s));
    data.drain(..header);
    if expected != Some(data.len()) {
        let what = format!(
            "has {} bytes of data; its sizes {sizes:?} need others",
            data.len()
        );
        return Err(Error::data(path, what));
    }
    Ok((sizes, data))
}

/// The pictures of one part of a set: `train` or `t10k`.
pub(super) fn read(folder: &Path, part: &str) -> Result<Pictures> {
    let find = |rest: &str| {
        let name = format!("{part}-{rest}");
        named(folder, &name).ok_or_else(|| Error::data(folder, format!("has no file {name}.gz")))
    };
    let (images, labels) = (find(IMAGES)?, find(LABELS)?);
    let (sizes, pixels) = parse(&images, 3)?;
    let (_, labels_read) = parse(&labels, 1)?;
    let [count, height, width] = sizes.as_slice() else {
        return Err(Error::data(&images, "does not have three axes"));
    };
    if *count != labels_read.len() {
        let what = format!(
            "has {} labels; {} has {count} pictures",
            labels_read.len(),
            images.display()
        );
        return Err(Error::data(&labels, what));
    }
    let label = |class: u8| Label {
        class: usize::from(class),
        ..Label::default()
    };
    Ok(Pictures {
        size: [1, *height, *width],
        pixels,
        labels: labels_read.into_iter().map(label).collect(),
    })
}
