//! Images created from the memory of buffers, through which kernels read operands.
//!
//! Values stay in buffers. A kernel that reads an operand only in aligned vectors of four may read
//! it as pixels of an image over the operand's view. The GPU's texture units and their caches then
//! serve the loads (paper, section 2.1), and halves arrive as floats without conversion
//! instructions. The image is another name for the memory: created once, never copied.
//!
//! [`KernelSpec::images`](super::KernelSpec::images) lists the operands that a kernel reads
//! this way; only the generated accessors differ. The width, height and pitch of an image follow
//! from its kind and the length of the view ([`Images::shape`]).

use super::Ty;
use crate::tensor::DType;
use serde::Serialize;
use std::fmt;

/// Pixels per row of an [`ImageKind::Image2d`]: a multiple of every known device's pitch alignment,
/// and a power of two, so that an index takes a mask and a shift.
pub const ROW_PIXELS: u64 = 256;

/// Kind of image over a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ImageKind {
    /// `image1d_buffer_t` of OpenCL 1.2: a single row.
    #[serde(rename = "1d")]
    Image1dBuffer,
    /// `image2d_t` by `cl_khr_image2d_from_buffer` (part of OpenCL 2): rows of [`ROW_PIXELS`].
    #[serde(rename = "2d")]
    Image2d,
}

impl ImageKind {
    /// All values, most widely supported first.
    pub const ALL: [Self; 2] = [Self::Image1dBuffer, Self::Image2d];

    /// Its OpenCL C type.
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

/// What a pixel holds: four values of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pixel {
    /// Halves, read as floats.
    Halves,
    Floats,
    /// 32-bit words.
    Words,
}

impl Pixel {
    pub const ALL: [Self; 3] = [Self::Halves, Self::Floats, Self::Words];

    /// The pixels of an operand; `None` if images do not support them.
    pub fn of(ty: Ty, dtype: DType) -> Option<Self> {
        match (ty, dtype) {
            (Ty::Uint4, _) => Some(Self::Words),
            (Ty::Elem, DType::F16) => Some(Self::Halves),
            (Ty::Elem, DType::F32) => Some(Self::Floats),
            _ => None,
        }
    }

    pub fn bytes(self) -> u64 {
        match self {
            Self::Halves => 8,
            Self::Floats | Self::Words => 16,
        }
    }
}

/// The images over buffers that a device offers; by default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Images {
    /// Maximum number of pixels of a one-dimensional image; 0 if not supported.
    pub max_pixels: u64,
    /// Maximum number of rows of a two-dimensional image; 0 if not supported.
    pub max_rows: u64,
    /// Required alignment of the rows of a two-dimensional image, in pixels: a power of two.
    pub pitch_align: u32,
    /// Required alignment of the first row of a two-dimensional image, in pixels: a power of two.
    pub base_align: u32,
    /// The kind through which plans let kernels read operands if that is faster.
    pub reads: Option<ImageKind>,
}

/// An image over a view, starting at its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageShape {
    /// Pixels per row.
    pub width: u64,
    pub height: u64,
    /// Bytes of all rows, which are contiguous: those of the view, rounded up to a whole row or
    /// pixel.
    pub bytes: u64,
}

impl Images {
    /// Whether images of this kind can be created.
    pub fn offers(&self, kind: ImageKind) -> bool {
        match kind {
            ImageKind::Image1dBuffer => self.max_pixels > 0,
            ImageKind::Image2d => self.max_rows > 0,
        }
    }

    /// These capabilities without images of this kind.
    #[must_use]
    pub fn without(mut self, kind: ImageKind) -> Self {
        match kind {
            ImageKind::Image1dBuffer => self.max_pixels = 0,
            ImageKind::Image2d => self.max_rows = 0,
        }
        self.reads = self.reads.filter(|reads| *reads != kind);
        self
    }

    /// The image over a view of `bytes`; `None` if the view is too large for an image.
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

    /// Alignment that the offset of a view needs besides
    /// [`DeviceProfile::view_align`](crate::backend::DeviceProfile::view_align), in bytes.
    pub fn align(&self, kind: ImageKind, pixel: Pixel) -> u64 {
        match kind {
            ImageKind::Image1dBuffer => pixel.bytes(),
            ImageKind::Image2d => u64::from(self.base_align.max(1)) * pixel.bytes(),
        }
    }

    /// Buffer sizes are a multiple of this, in bytes, so that the last row of an image stays inside
    /// its buffer.
    pub fn room(&self) -> u64 {
        let row = if self.offers(ImageKind::Image2d) {
            ROW_PIXELS
        } else {
            1
        };
        row * 16
    }

    /// View alignment with which the rows of an image of this kind, including the last one, hold
    /// nothing but the view.
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
        assert_eq!(Pixel::of(Ty::Uint4, DType::U32), Some(Pixel::Words));
        assert_eq!(Pixel::of(Ty::Elem, DType::I32), None);
        assert_eq!(Pixel::of(Ty::Uint, DType::U32), None);
        assert_eq!(Pixel::ALL.map(Pixel::bytes), [8, 16, 16]);
    }
}
