//! Masks as pictures.

use crate::error::{Error, ErrorKind, Result, Stage};
use crate::files::room;
use crate::tensor::HostTensor;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// The mask of an output as a grey PNG file, in its own size. A mask of one channel, `[1, 1, h,
/// w]`, `[1, h, w, 1]` or `[1, h, w]`, becomes brightness: 0 is black, 1 is white, and values up to
/// 0.01 outside of that are clamped. Whole numbers, of which one is above 1, are classes: each
/// pixel becomes its number. Other values are logits and mapped by a sigmoid. With several
/// channels, `[1, c, h, w]`, each pixel becomes the index of the largest one.
///
/// An error of kind [`ErrorKind::Unsupported`] for another shape or type, and for more than 256
/// channels; of kind [`ErrorKind::NotFinite`] for values that are not finite; of kind
/// [`ErrorKind::LimitExceeded`] for classes above 255.
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
        return Err(refused(format!("it holds {v}")).of_kind(ErrorKind::NotFinite));
    }
    let pixels = w * h;
    let mut grey: Vec<u8> = room(pixels)?;
    if channels == 1 {
        let are_parts = values.iter().all(|v| (-0.01..=1.01).contains(v));
        let are_classes = !are_parts && values.iter().all(|v| *v >= 0.0 && v.fract() == 0.0);
        if let Some(v) = values.iter().find(|v| are_classes && **v > 255.0) {
            let what = format!("the class {v}; a picture holds classes up to 255");
            return Err(refused(what).of_kind(ErrorKind::LimitExceeded));
        }
        let level = |v: f32| match (are_parts, are_classes) {
            (true, _) => 255.0 * v,
            (_, true) => v,
            _ => 255.0 / (1.0 + (-v).exp()),
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        grey.extend(values.iter().map(|v| level(*v).clamp(0.0, 255.0).round() as u8));
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
        assert_eq!(grey(&[1, 1, 3], &[0.0, 0.5, 50.0]).2, [128, 159, 255], "logits");
        assert_eq!(
            grey(&[1, 1, 3], &[-1e-3, 0.5, 1.000_1]).2,
            [0, 128, 255],
            "rounded"
        );
        assert_eq!(grey(&[1, 1, 3], &[0.0, 2.0, 21.0]).2, [0, 2, 21], "classes");
    }

    #[test]
    fn channels_become_their_numbers() {
        // Two pixels in three channels.
        let found = grey(&[1, 3, 1, 2], &[0.1, 5.0, 0.2, 5.0, 0.3, 4.0]);
        assert_eq!(found, (2, 1, vec![2, 0]));
    }

    #[test]
    fn other_outputs_are_named() {
        for (shape, data, kind) in [
            (&[1, 2][..], &[0.0; 2][..], ErrorKind::Unsupported),
            (&[2, 1, 1, 1], &[0.0; 2], ErrorKind::Unsupported),
            (&[1, 1, 1, 1], &[f32::NAN], ErrorKind::NotFinite),
            (&[1, 1, 1, 2], &[0.0, 256.0], ErrorKind::LimitExceeded),
            (&[1, 1, 0, 4], &[], ErrorKind::Unsupported),
        ] {
            let e = png("seg", &HostTensor::from_f32(shape, data).unwrap()).unwrap_err();
            assert_error(&e, kind, &["seg"]);
        }
    }
}
