//! Masks as pictures.

use crate::error::{Error, ErrorKind, Result, Stage};
use crate::files::room;
use crate::tensor::HostTensor;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// The mask of an output as a grey PNG file, in its own size. A mask of one channel, `[1, 1, h,
/// w]`, `[1, h, w, 1]` or `[1, h, w]`, becomes brightness: 0 is black, 1 is white; if values are
/// outside of 0 to 1, they are taken as logits and mapped by a sigmoid. With several channels, `[1,
/// c, h, w]`, each pixel becomes the index of the largest one.
///
/// An error of kind [`ErrorKind::Unsupported`] for another shape, for more than 256 channels, and
/// for values that are not finite.
pub fn png(name: &str, tensor: &HostTensor) -> Result<Vec<u8>> {
    let refused = |what: String| {
        Error::other(Stage::Run, format!("output \"{name}\" is not a mask: {what}"))
            .of_kind(ErrorKind::Unsupported)
    };
    let (channels, h, w) = match *tensor.shape() {
        [1, h, w, 1] | [1, h, w] => (1, h, w),
        [1, c, h, w] if (1..=256).contains(&c) => (c, h, w),
        _ => {
            return Err(refused(format!(
                "expected [1, c, h, w] with 1 to 256 channels, [1, h, w, 1] or [1, h, w], found {:?}",
                tensor.shape()
            )));
        }
    };
    let (Ok(width), Ok(height)) = (u32::try_from(w), u32::try_from(h)) else {
        return Err(refused("its sides are too long".to_owned()));
    };
    if width == 0 || height == 0 {
        return Err(refused("it is empty".to_owned()));
    }
    let values = tensor.to_f32().map_err(|e| refused(e.to_string()))?;
    if let Some(v) = values.iter().find(|v| !v.is_finite()) {
        return Err(refused(format!("it holds {v}")));
    }
    let pixels = w * h;
    let mut grey: Vec<u8> = room(pixels)?;
    if channels == 1 {
        let are_logits = values.iter().any(|v| !(0.0..=1.0).contains(v));
        let part = |v: f32| if are_logits { 1.0 / (1.0 + (-v).exp()) } else { v };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
        grey.extend(values.iter().map(|v| (255.0 * part(*v)).round() as u8));
    } else {
        let value = |pixel: usize, c: usize| values.get(c * pixels + pixel).copied().unwrap_or(f32::MIN);
        for pixel in 0..pixels {
            // The first of equal ones.
            let mut best = (0, f32::NEG_INFINITY);
            for (c, number) in (0..channels).zip(0..=u8::MAX) {
                if value(pixel, c) > best.1 {
                    best = (number, value(pixel, c));
                }
            }
            grey.push(best.0);
        }
    }
    let mut out = Vec::new();
    PngEncoder::new(&mut out)
        .write_image(&grey, width, height, ExtendedColorType::L8)
        .map_err(|e| Error::caused(Stage::Run, format!("the mask of \"{name}\""), e))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_error;

    fn grey(shape: &[usize], data: &[f32]) -> (u32, u32, Vec<u8>) {
        let bytes = png("m", &HostTensor::from_f32(shape, data).unwrap()).unwrap();
        let picture = image::load_from_memory(&bytes).unwrap().into_luma8();
        (picture.width(), picture.height(), picture.into_raw())
    }

    #[test]
    fn values_become_brightness() {
        assert_eq!(grey(&[1, 1, 1, 3], &[0.0, 0.5, 1.0]), (3, 1, vec![0, 128, 255]));
        assert_eq!(grey(&[1, 3, 1, 1], &[0.0, 0.5, 1.0]), (1, 3, vec![0, 128, 255]));
        assert_eq!(grey(&[1, 1, 3], &[-50.0, 0.0, 50.0]).2, [0, 128, 255], "logits");
    }

    #[test]
    fn channels_become_their_numbers() {
        // Two pixels in three channels.
        let found = grey(&[1, 3, 1, 2], &[0.1, 5.0, 0.2, 5.0, 0.3, 4.0]);
        assert_eq!(found, (2, 1, vec![2, 0]));
    }

    #[test]
    fn other_outputs_are_named() {
        for (shape, data) in [
            (&[1, 2][..], &[0.0; 2][..]),
            (&[2, 1, 1, 1], &[0.0; 2]),
            (&[1, 1, 1, 1], &[f32::NAN]),
            (&[1, 1, 0, 4], &[]),
        ] {
            let e = png("seg", &HostTensor::from_f32(shape, data).unwrap()).unwrap_err();
            assert_error(&e, ErrorKind::Unsupported, &["seg"]);
        }
    }
}
