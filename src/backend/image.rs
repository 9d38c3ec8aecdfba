//! Images that are made from the memory of buffers, for kernels to read operands through.
//!
//! Values stay in buffers. A kernel that reads an operand by aligned fours alone may read them as pixels of an image that is made from the
//! operand's view, through a GPU's texture units and their caches (paper, section 2.1): floats of halves come without instructions. The image
//! is another name of the memory, made once and never copied.
//!
//! [`KernelSpec::images`](super::kernel::KernelSpec::images) says which operands a kernel's text reads so; the accessors that are generated for
//! them are the only difference. Width, height and pitch of an image follow from its kind and the length of the view ([`Images::shape`]).

use super::kernel::Ty;
use crate::tensor::DType;
use serde::Serialize;
use std::fmt;

/// Pixels of a row of an [`ImageKind::Image2d`]: a multiple of every device's pitch that is known, and a power of two, so that places in it cost
/// a mask and a shift.
pub const ROW_PIXELS: u64 = 256;

/// How an image in a buffer is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
pub enum ImageKind {
    /// `image1d_buffer_t`, of OpenCL 1.2: one row.
    #[serde(rename = "1d")]
    Image1dBuffer,
    /// `image2d_t` of `cl_khr_image2d_from_buffer`, in OpenCL 2 without it: rows of [`ROW_PIXELS`].
    #[serde(rename = "2d")]
    Image2d,
}

impl ImageKind {
    /// All of them; those that more devices have first.
    pub const ALL: [Self; 2] = [Self::Image1dBuffer, Self::Image2d];

    /// Its type in OpenCL C.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image1dBuffer => "image1d_buffer_t",
            Self::Image2d => "image2d_t",
        }
    }
}

impl fmt::Display for ImageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a pixel holds: four of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pixel {
    /// Halves, read as floats.
    Halves,
    /// Floats.
    Floats,
    /// 32-bit words.
    Words,
}

impl Pixel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Halves, Self::Floats, Self::Words];

    /// Those of an operand; `None` where images have no such pixels.
    pub fn of(ty: Ty, dtype: DType) -> Option<Self> {
        match (ty, dtype) {
            (Ty::Words4, _) => Some(Self::Words),
            (Ty::Elem, DType::F16) => Some(Self::Halves),
            (Ty::Elem, DType::F32) => Some(Self::Floats),
            _ => None,
        }
    }

    /// Its size.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Halves => 8,
            Self::Floats | Self::Words => 16,
        }
    }
}

/// The images in buffers that a device offers. By default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Images {
    /// Most pixels of an [`ImageKind::Image1dBuffer`]; 0 where there are none.
    pub max_pixels: u64,
    /// Most rows of an [`ImageKind::Image2d`]; 0 where there are none.
    pub max_rows: u64,
    /// Pixels that the rows of an [`ImageKind::Image2d`] begin at multiples of; a power of two, at most [`ROW_PIXELS`].
    pub pitch_align: u32,
    /// Pixels that the first row begins at a multiple of; a power of two, at most [`ROW_PIXELS`].
    pub base_align: u32,
    /// The kind that plans let kernels read operands through, where it is worth it.
    pub reads: Option<ImageKind>,
}

/// An image over a view, from its first byte on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageShape {
    /// Pixels of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Bytes of all rows, which follow one another without gaps: those of the view, up to a whole row or pixel.
    pub bytes: u64,
}

impl Images {
    /// Images of this kind can be made.
    pub fn offers(&self, kind: ImageKind) -> bool {
        match kind {
            ImageKind::Image1dBuffer => self.max_pixels > 0,
            ImageKind::Image2d => self.max_rows > 0,
        }
    }

    /// The same device without images of this kind.
    #[must_use]
    pub fn without(mut self, kind: ImageKind) -> Self {
        match kind {
            ImageKind::Image1dBuffer => self.max_pixels = 0,
            ImageKind::Image2d => self.max_rows = 0,
        }
        self.reads = self.reads.filter(|reads| *reads != kind);
        self
    }

    /// The image over a view of `bytes`; `None` where that is more than an image holds.
    pub fn shape(&self, kind: ImageKind, pixel: Pixel, bytes: u64) -> Option<ImageShape> {
        let pixels = bytes.div_ceil(pixel.bytes()).max(1);
        let (width, height) = match kind {
            ImageKind::Image1dBuffer => (pixels, 1),
            ImageKind::Image2d => (ROW_PIXELS, pixels.div_ceil(ROW_PIXELS)),
        };
        let fits = match kind {
            ImageKind::Image1dBuffer => width <= self.max_pixels,
            ImageKind::Image2d => height <= self.max_rows,
        };
        fits.then_some(ImageShape {
            width,
            height,
            bytes: width * height * pixel.bytes(),
        })
    }

    /// What the offset of a view must be a multiple of, beside [`Caps::view_align`](super::Caps::view_align), in bytes.
    pub fn align(&self, kind: ImageKind, pixel: Pixel) -> u64 {
        match kind {
            ImageKind::Image1dBuffer => pixel.bytes(),
            ImageKind::Image2d => u64::from(self.base_align.max(1)) * pixel.bytes(),
        }
    }

    /// Bytes that buffers are a multiple of, so that the last row of an image ends in the buffer of its view.
    pub fn room(&self) -> u64 {
        let row = if self.offers(ImageKind::Image2d) {
            ROW_PIXELS
        } else {
            1
        };
        row * 16
    }

    /// The alignment of views with which rows of an image of this kind, the last one too, hold nothing else.
    pub fn view_align(&self, kind: ImageKind) -> u64 {
        match kind {
            ImageKind::Image1dBuffer => 16,
            ImageKind::Image2d => self.room(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERED: Images = Images {
        max_pixels: 1000,
        max_rows: 4,
        pitch_align: 64,
        base_align: 64,
        reads: None,
    };

    #[test]
    fn images_hold_their_view_and_no_more_than_allowed() {
        use ImageKind::{Image1dBuffer, Image2d};
        for bytes in [4, 8, 100, 2048, 2052, 8000, 8192] {
            for kind in ImageKind::ALL {
                let shape = OFFERED.shape(kind, Pixel::Halves, bytes);
                let pixels = bytes.div_ceil(8);
                let most = if kind == Image1dBuffer {
                    1000
                } else {
                    4 * ROW_PIXELS
                };
                assert_eq!(shape.is_some(), pixels <= most, "{kind} of {bytes}");
                let Some(shape) = shape else { continue };
                assert_eq!(shape.bytes, shape.width * shape.height * 8);
                assert!(shape.bytes >= bytes && shape.bytes < bytes + OFFERED.view_align(kind));
            }
        }
        let rows = OFFERED.shape(Image2d, Pixel::Floats, 4097);
        assert_eq!(
            rows.map(|s| (s.width, s.height, s.bytes)),
            Some((ROW_PIXELS, 2, 8192))
        );
        assert_eq!(OFFERED.align(Image2d, Pixel::Halves), 512);
        assert_eq!(OFFERED.without(Image2d).room(), 16);
        let none = Images::default();
        assert!(
            ImageKind::ALL
                .iter()
                .all(|k| !none.offers(*k) && none.shape(*k, Pixel::Words, 16).is_none())
        );
    }

    #[test]
    fn pixels_are_fours_of_what_accessors_read() {
        assert_eq!(Pixel::of(Ty::Elem, DType::F16), Some(Pixel::Halves));
        assert_eq!(Pixel::of(Ty::Words4, DType::U32), Some(Pixel::Words));
        assert_eq!(Pixel::of(Ty::Elem, DType::I32), None);
        assert_eq!(Pixel::of(Ty::Words, DType::U32), None);
        assert_eq!(Pixel::ALL.map(Pixel::bytes), [8, 16, 16]);
    }
}
