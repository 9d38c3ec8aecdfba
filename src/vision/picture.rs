//! Pictures as inputs of vision models: decoded, resized, normalised, in the model's layout.

use super::resample::window;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::files::read::read_file;
use crate::files::room;
use crate::shape::{Dim, Fact};
use crate::tensor::{DType, HostTensor};
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, RgbImage};
use serde::{Deserialize, Serialize};
use std::io::Cursor;
use std::path::Path;

/// Pixels of a picture, and of the input that it is scaled to.
pub const MAX_PIXELS: u64 = 64 << 20;
/// Pixels of a side.
pub const MAX_SIDE: u32 = 1 << 16;
/// Bytes of a file with a picture.
const MAX_FILE: u64 = 256 << 20;
/// Bytes that decoding a picture may take.
const MAX_DECODED: u64 = 4 * MAX_PIXELS;

/// Endings of the names of picture files.
pub const ENDINGS: [&str; 5] = [".png", ".jpg", ".jpeg", ".webp", ".bmp"];

/// The ending of a file's name in lower case, without the dot.
pub fn ending(path: &Path) -> Option<String> {
    path.extension().map(|e| e.to_string_lossy().to_lowercase())
}

/// True for the name of a picture file.
pub fn is_picture(path: &Path) -> bool {
    let found = ending(path);
    found.is_some_and(|found| ENDINGS.iter().any(|e| e.strip_prefix('.') == Some(&found)))
}

/// How a picture of other proportions fits the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// It is stretched.
    #[default]
    Stretch,
    /// It is scaled to cover the input and cut at the middle.
    Crop,
    /// It is scaled to fit into the input, at its upper left; the rest is grey (114).
    Pad,
}

/// The key under which a model's metadata holds its [`PictureOptions`].
pub const METADATA: &str = "transformer_lite.pictures";

/// From a picture to numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
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

impl PictureOptions {
    /// The number of a channel, by its value of 0 to 255.
    fn normalised(&self) -> impl Fn(usize, f32) -> f32 {
        |c, v| (v / 255.0 - self.mean[c]) / self.deviation[c]
    }

    /// The options as an entry of a model's metadata.
    pub fn entry(&self) -> Result<(String, String)> {
        let text = serde_json::to_string(self);
        let text = text.map_err(|e| Error::caused(Stage::Quantize, "options of pictures", e))?;
        Ok((METADATA.to_owned(), text))
    }

    /// Reads the value of an entry. An error for what [`PictureOptions::entry`] never writes: other
    /// fields, numbers that are not finite, a deviation or multiple of 0.
    pub fn of_entry(text: &str) -> Result<Self> {
        let place = || format!("the model's metadata \"{METADATA}\"");
        let options: Self = serde_json::from_str(text)
            .map_err(|e| Error::caused(Stage::Import, place(), e).of_kind(ErrorKind::InvalidFile))?;
        let finite = options
            .mean
            .iter()
            .chain(&options.deviation)
            .all(|v| v.is_finite());
        if finite && !options.deviation.contains(&0.0) && options.multiple > 0 {
            return Ok(options);
        }
        let what = format!(
            "{}: expected finite means, and deviations and a multiple other than 0",
            place()
        );
        Err(Error::other(Stage::Import, what).of_kind(ErrorKind::InvalidFile))
    }
}

impl std::fmt::Display for PictureOptions {
    /// As options of the command line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |v: [f32; 3]| v.map(|v| v.to_string()).join(",");
        let fit = match self.fit {
            Fit::Stretch => "stretch",
            Fit::Crop => "crop",
            Fit::Pad => "pad",
        };
        write!(f, "--image-fit {fit} --image-mean {}", list(self.mean))?;
        write!(f, " --image-std {}", list(self.deviation))?;
        if let Some((width, height)) = self.size {
            write!(f, " --image-size {width}x{height}")?;
        }
        if self.multiple > 1 {
            write!(f, " --image-multiple {}", self.multiple)?;
        }
        f.write_str(if self.bgr { " --image-bgr" } else { "" })
    }
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
        let channels = |d: &Dim| match d.as_const() {
            Some(1) => Some(1),
            Some(3) => Some(3),
            _ => None,
        };
        let size = |d: &Dim| d.as_const().and_then(|v| u32::try_from(v).ok());
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

/// Decodes the PNG, JPEG, WebP or BMP file in `path`. An error of kind [`ErrorKind::LimitExceeded`]
/// for a picture of more than [`MAX_PIXELS`] pixels or a side of more than [`MAX_SIDE`].
pub fn open(path: &Path) -> Result<RgbImage> {
    let refused = |e: ImageError| {
        let (what, kind) = match &e {
            ImageError::Limits(_) => (
                "the picture exceeds the limits for pictures",
                ErrorKind::LimitExceeded,
            ),
            _ => (
                "not a PNG, JPEG, WebP or BMP picture, or the file is damaged",
                ErrorKind::InvalidFile,
            ),
        };
        Error::parse(Stage::Run, path, what, e).of_kind(kind)
    };
    let bytes = read_file(path, MAX_FILE)?;
    let reader = ImageReader::new(Cursor::new(&bytes)).with_guessed_format();
    let mut reader = reader.map_err(|e| Error::io("cannot read", path, e))?;
    let mut limits = image::Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(refused)?;
    let (width, height) = decoder.dimensions();
    check_pixels(path, "a picture", width, height)?;
    // The decoder and the conversions allocate infallibly: find out first whether they can.
    let pixels = u64::from(width) * u64::from(height);
    let needs = decoder.total_bytes().saturating_add(4 * pixels);
    let needs = usize::try_from(needs).map_err(|e| Error::caused(Stage::Run, "a picture", e))?;
    std::hint::black_box(room::<u8>(needs)?);
    let picture = DynamicImage::from_decoder(decoder).map_err(refused)?;
    if bytes.starts_with(&[MARKER, START]) && !ends_jpeg(&bytes) {
        let what = "the file is cut off: the JPEG picture has no end marker; download it again";
        return Err(Error::file(Stage::Run, path, what));
    }
    Ok(flat(picture))
}

/// Begins the markers of JPEG.
const MARKER: u8 = 0xff;
/// Markers of the start and the end of a picture.
const START: u8 = 0xd8;
const END: u8 = 0xd9;

/// Whether a JPEG picture has its end marker. Decoders paint what is missing in grey instead.
fn ends_jpeg(bytes: &[u8]) -> bool {
    let mut at = 2;
    loop {
        let marker = match bytes.get(at..at + 2) {
            Some(&[MARKER, marker]) => marker,
            // What follows the last scan.
            Some(_) => {
                at += 1;
                continue;
            }
            None => return false,
        };
        match marker {
            END => return true,
            // Stuffed bytes, restarts within a scan, padding.
            0x00 | 0x01 | 0xd0..=START => at += 2,
            MARKER => at += 1,
            _ => {
                let Some(&[high, low]) = bytes.get(at + 2..at + 4) else {
                    return false;
                };
                at += 2 + usize::from(u16::from_be_bytes([high, low]));
            }
        }
    }
}

fn check_pixels(path: &Path, what: &str, width: u32, height: u32) -> Result<()> {
    if u64::from(width) * u64::from(height) <= MAX_PIXELS {
        return Ok(());
    }
    let what = format!("{what} of {width} x {height} pixels; the limit is {MAX_PIXELS} pixels");
    Err(Error::file(Stage::Run, path, what).of_kind(ErrorKind::LimitExceeded))
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

/// Where a picture of `source` pixels lies in an input of `size`: the size to which it is scaled,
/// and the place in it where the input begins.
fn fitted((w, h): (u32, u32), (width, height): (u32, u32), fit: Fit) -> ((u32, u32), (u32, u32)) {
    // Sizes of the picture at the scale of one side of the target.
    let by_width = u32::try_from(u64::from(h) * u64::from(width) / u64::from(w)).unwrap_or(u32::MAX);
    let by_height = u32::try_from(u64::from(w) * u64::from(height) / u64::from(h)).unwrap_or(u32::MAX);
    match fit {
        Fit::Stretch => ((width, height), (0, 0)),
        Fit::Crop => {
            let (w, h) = if by_width >= height {
                (width, by_width)
            } else {
                (by_height.max(width), height)
            };
            ((w, h), ((w - width) / 2, (h - height) / 2))
        }
        Fit::Pad if by_width <= height => ((width, by_width.max(1)), (0, 0)),
        Fit::Pad => ((by_height.clamp(1, width), height), (0, 0)),
    }
}

/// Scales `picture` to `width` by `height` pixels.
pub fn scale(picture: &RgbImage, width: u32, height: u32, fit: Fit) -> Result<RgbImage> {
    let (w, h) = picture.dimensions();
    if [w, h, width, height].contains(&0) {
        return Err(Error::usage("picture", "a side of 0 pixels"));
    }
    let size = (width, height);
    let (scaled, at) = fitted((w, h), size, fit);
    if fit != Fit::Pad {
        return window(picture, scaled, at, size);
    }
    let mut grey = room(3 * width as usize * height as usize)?;
    grey.resize(grey.capacity(), 114);
    let mut out = RgbImage::from_raw(width, height, grey).unwrap_or_default();
    image::imageops::replace(&mut out, &window(picture, scaled, at, scaled)?, 0, 0);
    Ok(out)
}

/// A picture as the input of a model.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The input, a batch of one.
    pub tensor: HostTensor,
    /// Width and height of the picture.
    pub source: (u32, u32),
    /// Width and height of the input.
    pub size: (u32, u32),
    /// How the picture was fitted.
    pub fit: Fit,
}

impl Prepared {
    /// The place in the picture, in pixels, of a place in the input. It may lie outside of the
    /// picture.
    pub fn place(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        let (scaled, at) = fitted(self.source, self.size, self.fit);
        #[expect(clippy::cast_precision_loss, reason = "sides of pictures")]
        let side = |v: f32, at: u32, scaled: u32, source: u32| {
            (v + at as f32) * source as f32 / scaled.max(1) as f32
        };
        [
            side(x, at.0, scaled.0, self.source.0),
            side(y, at.1, scaled.1, self.source.1),
        ]
    }
}

/// The picture as `[1, 3, height, width]` in `f32`, normalised.
pub fn planes(picture: &RgbImage, options: &PictureOptions) -> Result<Vec<f32>> {
    numbers(picture, (3, false), options.bgr, options.normalised())
}

/// The values of a picture of 0 to 255, changed by `value` for each channel, in the order of a
/// layout: 3 channels, or 1 for the brightness, which may come last.
fn numbers(
    picture: &RgbImage,
    (channels, last): (usize, bool),
    bgr: bool,
    value: impl Fn(usize, f32) -> f32,
) -> Result<Vec<f32>> {
    let pixels = picture.as_raw().as_chunks::<3>().0;
    let channel = |p: &[u8; 3], c: usize| value(c, f32::from(p[if bgr { 2 - c } else { c }]));
    let mut out = room(channels * pixels.len())?;
    match (channels, last) {
        (1, _) => out.extend(
            pixels
                .iter()
                .map(|p| 0.299 * channel(p, 0) + 0.587 * channel(p, 1) + 0.114 * channel(p, 2)),
        ),
        (_, false) => (0..3).for_each(|c| out.extend(pixels.iter().map(|p| channel(p, c)))),
        (_, true) => out.extend(pixels.iter().flat_map(|p| [0, 1, 2].map(|c| channel(p, c)))),
    }
    Ok(out)
}

/// Reads a picture for an input `[1, c, h, w]` or `[1, h, w, c]` of floats or `u8` (values stay 0
/// to 255), with 3 channels or with 1, the brightness. An error of kind
/// [`ErrorKind::LimitExceeded`] if the picture or the input has more than [`MAX_PIXELS`] pixels.
pub fn read(path: &Path, fact: &Fact, options: &PictureOptions) -> Result<HostTensor> {
    Ok(prepare(path, fact, options)?.tensor)
}

/// As [`read`], with what is needed to find a place of the input in the picture.
pub fn prepare(path: &Path, fact: &Fact, options: &PictureOptions) -> Result<Prepared> {
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
        if asked == 0 || asked > MAX_SIDE {
            return Err(bad(format!(
                "a {what} of {asked} pixels is out of range; expected 1 to {MAX_SIDE}"
            )));
        }
    }
    check_pixels(path, "an input", width, height)?;
    let source = picture.dimensions();
    let picture = scale(&picture, width, height, options.fit)?;
    let (w, h) = (width as usize, height as usize);
    let (n, last) = (layout.channels, layout.channels_last);
    let shape = if last { [1, h, w, n] } else { [1, n, h, w] };
    let made = if fact.dtype == DType::U8 {
        let data = numbers(&picture, (n, last), options.bgr, |_, v| v)?;
        let mut bytes = room(data.len())?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
        bytes.extend(data.iter().map(|v| v.round() as u8));
        HostTensor::from_bytes(DType::U8, &shape, &bytes)
    } else {
        let data = numbers(&picture, (n, last), options.bgr, options.normalised())?;
        HostTensor::from_floats(fact.dtype, &shape, &data)
    };
    Ok(Prepared {
        tensor: made.map_err(|e| bad(e.to_string()))?,
        source,
        size: (width, height),
        fit: options.fit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;
    use crate::testing::{assert_carries, assert_error};

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
        let padded = scale(&open(&path).unwrap(), 8, 8, Fit::Pad).unwrap();
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
    fn options_survive_a_models_metadata() {
        let options = PictureOptions {
            size: Some((320, 240)),
            fit: Fit::Crop,
            mean: IMAGENET[0],
            deviation: IMAGENET[1],
            ..PictureOptions::default()
        };
        let (key, text) = options.entry().unwrap();
        assert_eq!(
            (key.as_str(), PictureOptions::of_entry(&text).unwrap()),
            (METADATA, options)
        );
        assert_eq!(PictureOptions::of_entry("{}").unwrap(), PictureOptions::default());
        for bad in [
            "",
            r#"{"gamma": 2}"#,
            r#"{"deviation": [0, 1, 1]}"#,
            r#"{"multiple": 0}"#,
            r#"{"mean": [1e99, 0, 0]}"#,
        ] {
            let e = PictureOptions::of_entry(bad).unwrap_err();
            assert_error(&e, ErrorKind::InvalidFile, &[METADATA]);
        }
    }

    #[test]
    fn places_of_the_input_are_found_in_the_picture() {
        let prepared = |fit: Fit| Prepared {
            tensor: HostTensor::from_f32(&[0], &[]).unwrap(),
            source: (200, 100),
            size: (50, 50),
            fit,
        };
        // Stretched; scaled to 100 x 50 with 25 columns cut off; scaled to 50 x 25.
        for (fit, wanted) in [
            (Fit::Stretch, [40.0, 20.0]),
            (Fit::Crop, [70.0, 20.0]),
            (Fit::Pad, [40.0, 40.0]),
        ] {
            assert_eq!(prepared(fit).place([10.0, 10.0]), wanted, "{fit:?}");
        }
    }

    #[test]
    fn webp_and_bmp_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let png = picture(dir.path());
        for name in ["p.BMP", "p.webp"] {
            let path = dir.path().join(name);
            let format = image::ImageFormat::from_path(&path).unwrap();
            open(&png).unwrap().save_with_format(&path, format).unwrap();
            assert!(is_picture(&path), "{name}");
            assert_eq!(open(&path).unwrap(), open(&png).unwrap(), "{name}");
        }
        assert!(!is_picture(Path::new("a.npy")) && !is_picture(Path::new("png")));
    }

    #[test]
    fn a_jpeg_picture_that_is_cut_off_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.jpg");
        let picture = RgbImage::from_fn(64, 48, |x, y| image::Rgb([(x * y) as u8, x as u8, y as u8]));
        picture.save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        // What follows the end does no harm.
        std::fs::write(&path, [&bytes[..], b"more"].concat()).unwrap();
        assert_eq!(open(&path).unwrap().dimensions(), (64, 48));
        for part in [50, 90, 99] {
            std::fs::write(&path, &bytes[..bytes.len() * part / 100]).unwrap();
            let e = open(&path).unwrap_err();
            assert_error(&e, ErrorKind::InvalidFile, &["p.jpg"]);
        }
    }

    /// A PNG file of which there is only the header.
    fn header(width: u32, height: u32) -> Vec<u8> {
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        let ihdr = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
        for (name, content) in [(b"IHDR", &ihdr[..]), (b"IDAT", &[]), (b"IEND", &[])] {
            let chunk = [&name[..], content].concat();
            out.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
            out.extend(&chunk);
            out.extend(crc32fast::hash(&chunk).to_be_bytes());
        }
        out
    }

    #[test]
    fn pixels_are_limited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.png");
        for (width, height, kind) in [
            (20_000, 20_000, ErrorKind::LimitExceeded),
            (1, 70_000, ErrorKind::LimitExceeded),
            (70_000, 1, ErrorKind::LimitExceeded),
            (8_000, 8_000, ErrorKind::InvalidFile),
        ] {
            std::fs::write(&path, header(width, height)).unwrap();
            let e = open(&path).unwrap_err();
            assert_eq!(e.kind(), kind, "{width}x{height}: {}", e.chain());
        }
        let large = PictureOptions {
            size: Some((65_536, 2_048)),
            ..PictureOptions::default()
        };
        let e = read(&picture(dir.path()), &fact(DType::F32, "1 3 h w"), &large).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LimitExceeded, "{}", e.chain());
    }

    #[cfg(unix)]
    #[test]
    fn a_picture_is_a_regular_file() {
        let e = open(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidFile, "{}", e.chain());
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
