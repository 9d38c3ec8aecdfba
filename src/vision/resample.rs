//! Scaling of pictures, of which only a window is computed.

use crate::error::Result;
use crate::files::room;
use image::RgbImage;

/// The source elements of one element of a row or column, and their weights.
struct Taps {
    first: usize,
    weights: Vec<f32>,
}

/// Triangle-filter taps of the elements `first .. first + count` when `from` elements are scaled to
/// `to`.
fn taps(from: u32, to: u32, first: u32, count: u32) -> Vec<Taps> {
    let ratio = f64::from(from) / f64::from(to);
    let support = ratio.max(1.0);
    let element = |i: u32| {
        let centre = (f64::from(i) + 0.5) * ratio;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded by the size of the source"
        )]
        let bounded = |v: f64, least: u32| v.clamp(f64::from(least), f64::from(from)) as u32;
        let left = bounded((centre - support).floor(), 0).min(from - 1);
        let right = bounded((centre + support).ceil(), left + 1);
        #[expect(clippy::cast_possible_truncation, reason = "weights are 0 to 1")]
        let weight = |i: u32| (1.0 - ((f64::from(i) + 0.5 - centre) / support).abs()).max(0.0) as f32;
        let mut weights: Vec<f32> = (left..right).map(weight).collect();
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= sum);
        Taps {
            first: left as usize,
            weights,
        }
    };
    (first..first + count).map(element).collect()
}

/// The part of `width` by `height` pixels at `(x, y)` of `picture` scaled to `scaled`, its width
/// and height. The part must lie inside; no size may be 0. Memory does not depend on `scaled`.
pub fn window(
    picture: &RgbImage,
    scaled: (u32, u32),
    (x, y): (u32, u32),
    (width, height): (u32, u32),
) -> Result<RgbImage> {
    let columns = taps(picture.width(), scaled.0, x, width);
    let rows = taps(picture.height(), scaled.1, y, height);
    // Only these columns are read.
    let left = columns.first().map_or(0, |c| c.first);
    let right = columns.last().map_or(0, |c| c.first + c.weights.len());
    let (source, stride) = (picture.as_raw(), 3 * picture.width() as usize);
    let mut out = room(3 * width as usize * height as usize)?;
    let mut line = vec![0f32; 3 * (right - left)];
    for row in &rows {
        line.fill(0.0);
        for (y, weight) in (row.first..).zip(&row.weights) {
            let pixels = source.get(y * stride + 3 * left..y * stride + 3 * right);
            for (sum, v) in line.iter_mut().zip(pixels.unwrap_or_default()) {
                *sum += f32::from(*v) * weight;
            }
        }
        for column in &columns {
            let mut sums = [0f32; 3];
            let pixels = line.as_chunks::<3>().0.iter().skip(column.first - left);
            for (pixel, weight) in pixels.zip(&column.weights) {
                for (sum, v) in sums.iter_mut().zip(pixel) {
                    *sum += v * weight;
                }
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "averages of 0 to 255"
            )]
            out.extend(sums.map(|s| s.round() as u8));
        }
    }
    // The buffer has the length of these sizes.
    Ok(RgbImage::from_raw(width, height, out).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::imageops::{FilterType, crop_imm, resize};

    fn picture(width: u32, height: u32) -> RgbImage {
        let noise = |x: u32, y: u32, c: u32| ((x * 7919 + y * 104_729 + c * 31) * 2_654_435) >> 7;
        RgbImage::from_fn(width, height, |x, y| {
            image::Rgb([0, 1, 2].map(|c| noise(x, y, c).to_le_bytes()[0]))
        })
    }

    #[test]
    fn a_window_equals_that_part_of_the_whole() {
        for (from, to) in [
            ((40, 30), (17, 23)),
            ((9, 50), (31, 12)),
            ((12, 12), (12, 12)),
            ((1, 7), (5, 40)),
        ] {
            let source = picture(from.0, from.1);
            let whole = resize(&source, to.0, to.1, FilterType::Triangle);
            let (at, size) = ((to.0 / 3, to.1 / 4), (to.0 / 2, to.1 / 2));
            let expected = crop_imm(&whole, at.0, at.1, size.0, size.1).to_image();
            let found = window(&source, to, at, size).unwrap();
            assert_eq!(found.dimensions(), expected.dimensions());
            let far = found
                .iter()
                .zip(expected.iter())
                .find(|(a, b)| a.abs_diff(**b) > 1);
            assert_eq!(far, None, "{from:?} to {to:?}");
        }
    }

    #[test]
    fn the_size_of_the_whole_costs_nothing() {
        let source = picture(1, 60_000);
        let found = window(&source, (224, 13_440_000), (0, 6_719_888), (224, 224)).unwrap();
        // From the middle of one row to that of the next.
        for (y, row) in [(0, 29_999), (223, 30_000)] {
            let expected = source.get_pixel(0, row).0;
            for x in [0, 100, 223] {
                let pixel = found.get_pixel(x, y).0;
                let near = pixel.iter().zip(expected).all(|(a, b)| a.abs_diff(b) <= 1);
                assert!(near, "{pixel:?} and {expected:?} at {x}, {y}");
            }
        }
        assert_eq!(found.dimensions(), (224, 224));
    }
}
