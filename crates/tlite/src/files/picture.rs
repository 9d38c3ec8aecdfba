//! Pictures as inputs of vision models: decoded, resized, normalised, in the model's layout.

use image::imageops::FilterType;
use image::{DynamicImage, RgbImage};
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::shape::Fact;
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// How a picture of other proportions fits the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// It is stretched.
    #[default]
    Stretch,
    /// It is scaled to cover the input and cut at the middle.
    Crop,
    /// It is scaled to fit into the input, at its upper left; the rest is grey (114).
    Pad,
}

/// From a picture to numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureOptions {
    /// Width and height. `None`: those of the input or, if they are not fixed, of the picture.
    pub size: Option<(u32, u32)>,
    /// If the picture gives the size, it is rounded up to a multiple of this.
    pub multiple: u32,
    /// How other proportions are treated.
    pub fit: Fit,
    /// Subtracted from each channel, whose values are 0 to 1.
    pub mean: [f32; 3],
    /// Divides each channel after that.
    pub deviation: [f32; 3],
    /// Channels are blue, green, red.
    pub bgr: bool,
}

impl Default for PictureOptions {
    /// Values of 0 to 1, red first, stretched.
    fn default() -> Self {
        Self {
            size: None,
            multiple: 1,
            fit: Fit::Stretch,
            mean: [0.0; 3],
            deviation: [1.0; 3],
            bgr: false,
        }
    }
}

/// Mean and standard deviation of the pictures of `ImageNet`, on which many models are trained.
pub const IMAGENET: [[f32; 3]; 2] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];

/// Where the axes of an input are.
struct Layout {
    channels: usize,
    height: Option<u32>,
    width: Option<u32>,
    channels_last: bool,
}

impl Layout {
    fn of(fact: &Fact) -> Option<Self> {
        let [_, a, b, c] = fact.shape.0.as_slice() else {
            return None;
        };
        let channels = |d: &transformer_lite::unstable::shape::Dim| match d.as_const() {
            Some(1) => Some(1),
            Some(3) => Some(3),
            _ => None,
        };
        let size =
            |d: &transformer_lite::unstable::shape::Dim| d.as_const().and_then(|v| u32::try_from(v).ok());
        if let Some(n) = channels(a) {
            return Some(Self {
                channels: n,
                height: size(b),
                width: size(c),
                channels_last: false,
            });
        }
        channels(c).map(|n| Self {
            channels: n,
            height: size(a),
            width: size(b),
            channels_last: true,
        })
    }
}

/// Decodes the PNG or JPEG file in `path`.
pub fn open(path: &Path) -> Result<RgbImage> {
    let reader = image::ImageReader::open(path).map_err(|e| Error::io("cannot read", path, e))?;
    let reader = reader
        .with_guessed_format()
        .map_err(|e| Error::io("cannot read", path, e))?;
    let picture = reader.decode().map_err(|e| {
        Error::parse(
            Stage::Run,
            path,
            "not a PNG or JPEG picture, or the file is damaged",
            e,
        )
    })?;
    Ok(flat(picture))
}

/// Transparent parts are white.
fn flat(picture: DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.into_rgb8();
    }
    let rgba = picture.into_rgba8();
    RgbImage::from_fn(rgba.width(), rgba.height(), |x, y| {
        let [r, g, b, a] = rgba.get_pixel(x, y).0;
        let over = |v: u8| {
            u8::try_from((u32::from(v) * u32::from(a) + 255 * (255 - u32::from(a))) / 255).unwrap_or(u8::MAX)
        };
        image::Rgb([over(r), over(g), over(b)])
    })
}

/// Scales `picture` to `width` by `height` pixels.
pub fn scale(picture: &RgbImage, width: u32, height: u32, fit: Fit) -> RgbImage {
    let (w, h) = (picture.width().max(1), picture.height().max(1));
    let resize = |w: u32, h: u32| image::imageops::resize(picture, w.max(1), h.max(1), FilterType::Triangle);
    // Sizes of the picture at the scale of one side of the target.
    let by_width = u32::try_from(u64::from(h) * u64::from(width) / u64::from(w)).unwrap_or(u32::MAX);
    let by_height = u32::try_from(u64::from(w) * u64::from(height) / u64::from(h)).unwrap_or(u32::MAX);
    match fit {
        Fit::Stretch => resize(width, height),
        Fit::Crop => {
            let (w, h) = if by_width >= height {
                (width, by_width)
            } else {
                (by_height.max(width), height)
            };
            let large = resize(w, h);
            image::imageops::crop_imm(&large, (w - width) / 2, (h - height) / 2, width, height).to_image()
        }
        Fit::Pad => {
            let (w, h) = if by_width <= height {
                (width, by_width)
            } else {
                (by_height.min(width), height)
            };
            let mut out = RgbImage::from_pixel(width, height, image::Rgb([114; 3]));
            image::imageops::replace(&mut out, &resize(w, h), 0, 0);
            out
        }
    }
}

/// The picture as `[1, 3, height, width]` in `f32`, normalised.
pub fn planes(picture: &RgbImage, options: &PictureOptions) -> Vec<f32> {
    let count = picture.width() as usize * picture.height() as usize;
    let mut out = Vec::with_capacity(3 * count);
    for c in 0..3 {
        let from = if options.bgr { 2 - c } else { c };
        let (mean, deviation) = (options.mean[c], options.deviation[c]);
        out.extend(
            picture
                .pixels()
                .map(|p| (f32::from(p.0[from]) / 255.0 - mean) / deviation),
        );
    }
    out
}

/// Reads a picture for an input `[1, c, h, w]` or `[1, h, w, c]` of floats or `u8` (values stay 0
/// to 255), with 3 channels or with 1, the brightness.
pub fn read(path: &Path, fact: &Fact, options: &PictureOptions) -> Result<HostTensor> {
    let bad = |what: String| Error::file(Stage::Run, path, what);
    let layout = Layout::of(fact).ok_or_else(|| {
        bad(format!(
            "a picture cannot be used for an input of shape {}; expected [1, c, h, w] or [1, h, w, c] with 1 or 3 channels",
            fact.shape
        ))
    })?;
    if !fact.dtype.is_float() && fact.dtype != DType::U8 {
        return Err(bad(format!(
            "a picture cannot be used for an input of type {}; expected floats or u8",
            fact.dtype
        )));
    }
    let picture = open(path)?;
    let round = |n: u32| n.checked_next_multiple_of(options.multiple.max(1)).unwrap_or(n);
    let (width, height) = options.size.unwrap_or((
        layout.width.unwrap_or_else(|| round(picture.width())),
        layout.height.unwrap_or_else(|| round(picture.height())),
    ));
    for (what, asked, fixed) in [("width", width, layout.width), ("height", height, layout.height)] {
        if let Some(fixed) = fixed.filter(|f| *f != asked) {
            return Err(bad(format!(
                "a {what} of {asked} pixels does not match the input's {fixed}"
            )));
        }
        if asked == 0 || asked > 1 << 15 {
            return Err(bad(format!(
                "a {what} of {asked} pixels is out of range; expected 1 to 32768"
            )));
        }
    }
    let picture = scale(&picture, width, height, options.fit);
    let planes = if fact.dtype == DType::U8 {
        let plain = PictureOptions {
            bgr: options.bgr,
            ..PictureOptions::default()
        };
        planes(&picture, &plain).iter().map(|v| v * 255.0).collect()
    } else {
        planes(&picture, options)
    };
    let (w, h) = (width as usize, height as usize);
    let pixel = |c: usize, at: usize| planes.get(c * w * h + at).copied().unwrap_or_default();
    let brightness = |at| 0.299 * pixel(0, at) + 0.587 * pixel(1, at) + 0.114 * pixel(2, at);
    let n = layout.channels;
    let data: Vec<f32> = match (n, layout.channels_last) {
        (1, _) => (0..w * h).map(brightness).collect(),
        (_, false) => planes,
        (_, true) => (0..w * h * n).map(|i| pixel(i % n, i / n)).collect(),
    };
    let shape = if layout.channels_last {
        [1, h, w, n]
    } else {
        [1, n, h, w]
    };
    #[expect(clippy::cast_possible_truncation, reason = "0 to 255")]
    let made = if fact.dtype == DType::U8 {
        let bytes: Vec<i64> = data.iter().map(|v| v.round() as i64).collect();
        HostTensor::from_ints(DType::U8, &shape, &bytes)
    } else {
        HostTensor::from_floats(fact.dtype, &shape, &data)
    };
    made.map_err(|e| bad(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlite_testing::{assert_carries, assert_error};
    use transformer_lite::unstable::error::ErrorKind;
    use transformer_lite::unstable::shape::{Dim, Shape};

    fn fact(dtype: DType, dims: &str) -> Fact {
        Fact::new(
            dtype,
            Shape(dims.split(' ').map(|d| Dim::parse(d).unwrap()).collect()),
        )
    }

    /// 4 x 2 pixels: red, green, blue, white above; black below.
    fn picture(dir: &Path) -> std::path::PathBuf {
        let colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255; 3]];
        let p = RgbImage::from_fn(4, 2, |x, y| {
            image::Rgb(if y == 0 { colours[x as usize] } else { [0; 3] })
        });
        let path = dir.join("p.png");
        p.save(&path).unwrap();
        path
    }

    #[test]
    fn layouts_types_and_channels() {
        let dir = tempfile::tempdir().unwrap();
        let path = picture(dir.path());
        let plain = PictureOptions::default();
        let t = read(&path, &fact(DType::F32, "1 3 h w"), &plain).unwrap();
        assert_eq!(t.shape(), [1, 3, 2, 4]);
        let row = |t: &HostTensor, at: usize| t.to_f32().unwrap()[at..at + 4].to_vec();
        assert_eq!(row(&t, 0), [1.0, 0.0, 0.0, 1.0], "red");
        assert_eq!(row(&t, 16), [0.0, 0.0, 1.0, 1.0], "blue");
        let bgr = PictureOptions {
            bgr: true,
            mean: [0.5; 3],
            deviation: [0.25; 3],
            ..plain.clone()
        };
        let t = read(&path, &fact(DType::F16, "n 3 2 4"), &bgr).unwrap();
        assert_eq!(row(&t, 0), [-2.0, -2.0, 2.0, 2.0], "blue first");
        let t = read(&path, &fact(DType::U8, "1 h w 3"), &plain).unwrap();
        assert_eq!(t.shape(), [1, 2, 4, 3]);
        assert_eq!(t.bytes().unwrap()[..4], [255, 0, 0, 0]);
        let t = read(&path, &fact(DType::F32, "1 1 h w"), &plain).unwrap();
        assert_eq!(t.shape(), [1, 1, 2, 4]);
        assert!((row(&t, 0)[1] - 0.587).abs() < 1e-6);
    }

    #[test]
    fn sizes_and_fits() {
        let dir = tempfile::tempdir().unwrap();
        let path = picture(dir.path());
        let shape = |options: &PictureOptions, dims: &str| {
            let t = read(&path, &fact(DType::F32, dims), options);
            t.map(|t| t.shape().to_vec()).map_err(|e| e.chain())
        };
        let of = |fit| PictureOptions {
            fit,
            size: Some((8, 8)),
            ..PictureOptions::default()
        };
        for fit in [Fit::Stretch, Fit::Crop, Fit::Pad] {
            assert_eq!(shape(&of(fit), "1 3 h w"), Ok(vec![1, 3, 8, 8]), "{fit:?}");
        }
        let multiple = PictureOptions {
            multiple: 32,
            ..PictureOptions::default()
        };
        assert_eq!(shape(&multiple, "1 3 h w"), Ok(vec![1, 3, 32, 32]));
        assert_eq!(shape(&multiple, "1 3 7 9"), Ok(vec![1, 3, 7, 9]));
        let e = shape(&of(Fit::Stretch), "1 3 h 9").unwrap_err();
        assert_carries(e, &["8", "9"]);
        // The lower half of what fits 4 x 2 into 8 x 8 is padding.
        let padded = scale(&open(&path).unwrap(), 8, 8, Fit::Pad);
        assert_eq!(padded.get_pixel(7, 7).0, [114; 3]);
        assert_eq!(padded.get_pixel(0, 3).0, [0; 3]);
        for dims in ["1 3 8", "1 4 8 8"] {
            let e = shape(&PictureOptions::default(), dims).unwrap_err();
            assert_carries(e, &["[1, c, h, w]"]);
        }
        let e = read(&path, &fact(DType::I64, "1 3 h w"), &PictureOptions::default()).unwrap_err();
        assert_carries(e.chain(), &["i64"]);
    }

    #[test]
    fn no_picture() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.png");
        std::fs::write(&path, b"\x89PNG\r\n\x1a\nnothing more").unwrap();
        let e = open(&path).unwrap_err();
        assert_error(&e, ErrorKind::InvalidFile, &["p.png", "PNG", "JPEG"]);
        std::fs::write(&path, b"text").unwrap();
        assert!(open(&path).is_err());
        assert!(open(&dir.path().join("none.jpg")).is_err());
    }
}
