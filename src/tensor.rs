//! Host tensors: element types and dense arrays, for import, the interpreter and tests.
#![warn(missing_docs)]

mod dtype;
pub mod mini;
mod panels;
pub mod product;
pub mod resample;

pub use dtype::DType;
pub use panels::{PANEL, Panels, in_panels};

use crate::num::narrowed;
use crate::quota::{self, Exceeded, Reservation};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use mini::{Codec, Rounding};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Why a host tensor cannot be created or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The byte length does not match the shape.
    #[error("{dtype}{shape:?} expected {expected} bytes, found {found}")]
    Length {
        /// Type of the elements.
        dtype: DType,
        /// Shape that was asked for.
        shape: Vec<usize>,
        /// Bytes that the shape needs.
        expected: usize,
        /// Number of bytes given.
        found: usize,
    },
    /// The elements have another type.
    #[error("expected elements of type {expected}, found {found}")]
    Type {
        /// The type that the caller needs.
        expected: &'static str,
        /// The type that the tensor has.
        found: DType,
    },
    /// The elements were not loaded; see [`HostTensor::absent`].
    #[error("{0} is not loaded: the model was read without its weights")]
    Absent(Arc<str>),
    /// An element exceeds `i64::MAX`.
    #[error("{0} exceeds {max}", max = i64::MAX)]
    TooHigh(u64),
    /// The shape has more elements than this machine can address.
    #[error("shape {0:?} is too large")]
    TooLarge(Vec<usize>),
    /// The host has too little memory.
    #[error("the host has no memory for {0} bytes")]
    OutOfMemory(usize),
    /// A limit of the call was reached.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
}

/// An empty list with room for `count` elements; an error if memory or the quota is too small.
pub fn room<T>(count: usize) -> Result<Vec<T>, TensorError> {
    let bytes = count.saturating_mul(size_of::<T>());
    quota::admit(bytes)?;
    let mut list = Vec::new();
    list.try_reserve_exact(count)
        .map_err(|_| TensorError::OutOfMemory(bytes))?;
    Ok(list)
}

/// `convert` of each item in a list; see [`room`].
fn map<T, U>(items: &[T], convert: impl FnMut(&T) -> U) -> Result<Vec<U>, TensorError> {
    let mut list = room(items.len())?;
    list.extend(items.iter().map(convert));
    Ok(list)
}

/// Bytes owned elsewhere, such as a mapped file.
pub trait Bytes: Send + Sync {
    /// The bytes; the same slice at every call.
    fn bytes(&self) -> &[u8];
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

#[derive(Clone)]
enum TensorStorage {
    /// Bytes of its own, which the quota counts.
    Owned(Arc<Owned>),
    /// A part of a shared byte source; may be unaligned.
    Shared { source: Arc<dyn Bytes>, start: usize },
    /// A part of a shared byte source, with columns in panels.
    Panels(Arc<Panels>),
    /// No bytes; the text identifies them. Equal texts mean equal bytes.
    Absent(Arc<str>),
}

struct Owned {
    /// Eight-byte words, so that any element type is aligned.
    words: Vec<u64>,
    _reservation: Reservation,
}

impl Owned {
    /// Zeros.
    fn new(bytes: usize) -> Result<Self, TensorError> {
        let reservation = quota::reserve(bytes)?;
        let mut words = Vec::new();
        words
            .try_reserve_exact(bytes.div_ceil(8))
            .map_err(|_| TensorError::OutOfMemory(bytes))?;
        words.resize(bytes.div_ceil(8), 0u64);
        Ok(Self {
            words,
            _reservation: reservation,
        })
    }
}

/// A dense row-major tensor in host memory. Cloning shares the data.
#[derive(Clone)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
    storage: TensorStorage,
}

fn byte_len(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(dtype.size(), |n, d| n.checked_mul(*d))
        .filter(|n| isize::try_from(*n).is_ok())
        .ok_or_else(|| TensorError::TooLarge(shape.to_vec()))
}

/// An error if a tensor does not have the expected number of bytes.
fn check_len(dtype: DType, shape: &[usize], expected: usize, found: usize) -> Result<(), TensorError> {
    if expected == found {
        return Ok(());
    }
    Err(TensorError::Length {
        dtype,
        shape: shape.to_vec(),
        expected,
        found,
    })
}

macro_rules! typed {
    ($make:ident, $view:ident, $t:ty, $dtype:expr) => {
        /// A row-major tensor of the given elements.
        pub fn $make(shape: &[usize], data: &[$t]) -> Result<Self, TensorError> {
            Self::from_bytes($dtype, shape, bytemuck::cast_slice(data))
        }

        /// The elements, copied only if the bytes are not aligned. An error for another element
        /// type.
        pub fn $view(&self) -> Result<Cow<'_, [$t]>, TensorError> {
            self.view($dtype, stringify!($t))
        }
    };
}

impl HostTensor {
    typed!(from_f32, f32s, f32, DType::F32);
    typed!(from_f16, f16s, f16, DType::F16);
    typed!(from_i64, i64s, i64, DType::I64);
    typed!(from_i32, i32s, i32, DType::I32);
    typed!(from_u32, u32s, u32, DType::U32);
    typed!(from_f64, f64s, f64, DType::F64);
    typed!(from_bf16, bf16s, bf16, DType::BF16);
    typed!(from_u64, u64s, u64, DType::U64);
    typed!(from_i16, i16s, i16, DType::I16);
    typed!(from_u16, u16s, u16, DType::U16);

    fn view<T: bytemuck::Pod>(&self, dtype: DType, name: &'static str) -> Result<Cow<'_, [T]>, TensorError> {
        if self.dtype != dtype {
            return Err(TensorError::Type {
                expected: name,
                found: self.dtype,
            });
        }
        let bytes = self.bytes()?;
        if let Ok(aligned) = bytemuck::try_cast_slice(bytes) {
            return Ok(Cow::Borrowed(aligned));
        }
        let mut copied = room(self.len())?;
        copied.extend(
            bytes
                .chunks_exact(size_of::<T>())
                .map(bytemuck::pod_read_unaligned::<T>),
        );
        Ok(Cow::Owned(copied))
    }

    /// A tensor over a copy of little-endian `bytes`.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self, TensorError> {
        let expected = byte_len(dtype, shape)?;
        check_len(dtype, shape, expected, bytes.len())?;
        let mut owned = Owned::new(expected)?;
        let space = bytemuck::cast_slice_mut::<u64, u8>(&mut owned.words);
        let found = space.len();
        match space.get_mut(..expected) {
            Some(target) => target.copy_from_slice(bytes),
            None => check_len(dtype, shape, expected, found)?,
        }
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes: expected,
            storage: TensorStorage::Owned(Arc::new(owned)),
        })
    }

    /// A tensor over a part of shared little-endian bytes, without copying.
    pub fn from_shared(
        dtype: DType,
        shape: &[usize],
        source: Arc<dyn Bytes>,
        start: usize,
    ) -> Result<Self, TensorError> {
        let expected = byte_len(dtype, shape)?;
        let found = source.bytes().len().saturating_sub(start);
        check_len(dtype, shape, expected, found.min(expected))?;
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes: expected,
            storage: TensorStorage::Shared { source, start },
        })
    }

    /// A matrix of 4-byte items whose shared bytes have its columns in panels.
    pub fn from_panels(dtype: DType, shape: &[usize], panels: Panels) -> Result<Self, TensorError> {
        let expected = byte_len(dtype, shape)?;
        check_len(dtype, shape, expected, panels.stored().len())?;
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes: expected,
            storage: TensorStorage::Panels(Arc::new(panels)),
        })
    }

    /// The panels of a tensor that is stored in them.
    pub fn panels(&self) -> Option<&Panels> {
        match &self.storage {
            TensorStorage::Panels(panels) => Some(panels),
            _ => None,
        }
    }

    /// A row-major tensor of truth values.
    pub fn from_bool(shape: &[usize], data: &[bool]) -> Result<Self, TensorError> {
        Self::from_bytes(DType::Bool, shape, &map(data, |b| u8::from(*b))?)
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Self, TensorError> {
        let bytes = byte_len(dtype, shape)?;
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes,
            storage: TensorStorage::Owned(Arc::new(Owned::new(bytes)?)),
        })
    }

    /// A tensor with a type and a shape but without elements. `what` identifies the bytes in
    /// errors: two tensors with the same `what`, type and shape are equal. Every access to elements
    /// returns [`TensorError::Absent`].
    pub fn absent(dtype: DType, shape: &[usize], what: &str) -> Result<Self, TensorError> {
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes: byte_len(dtype, shape)?,
            storage: TensorStorage::Absent(what.into()),
        })
    }

    /// True if the elements cannot be read; see [`HostTensor::absent`].
    pub fn is_absent(&self) -> bool {
        matches!(self.storage, TensorStorage::Absent(_))
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes, outermost axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements; not of bytes.
    pub fn len(&self) -> usize {
        self.bytes / self.dtype.size()
    }

    /// True if a size is zero.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Size of the elements in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// The little-endian bytes, row-major; an error for an [absent](HostTensor::absent) tensor.
    pub fn bytes(&self) -> Result<&[u8], TensorError> {
        let (all, start) = match &self.storage {
            TensorStorage::Owned(owned) => (bytemuck::cast_slice::<u64, u8>(&owned.words), 0),
            TensorStorage::Shared { source, start } => (source.bytes(), *start),
            TensorStorage::Panels(panels) => (panels.row_major()?, 0),
            TensorStorage::Absent(what) => return Err(TensorError::Absent(what.clone())),
        };
        Ok(all.get(start..start + self.bytes).unwrap_or(&[]))
    }

    /// The bytes as they are stored: row-major, or in [panels](HostTensor::panels).
    pub fn stored(&self) -> Result<&[u8], TensorError> {
        self.panels().map_or_else(|| self.bytes(), |p| Ok(p.stored()))
    }

    /// The same data with another shape of equal element count.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, TensorError> {
        check_len(self.dtype, shape, byte_len(self.dtype, shape)?, self.bytes)?;
        Ok(Self {
            shape: shape.to_vec(),
            ..self.clone()
        })
    }

    /// Float elements as `f32`. An error for `f64`, which would lose precision; use
    /// [`HostTensor::to_f64`].
    pub fn to_f32(&self) -> Result<Cow<'_, [f32]>, TensorError> {
        let wrong = |found| TensorError::Type {
            expected: "a float type of at most 32 bits",
            found,
        };
        Ok(match self.dtype {
            DType::F32 => return self.f32s(),
            DType::F16 => {
                let halves = self.f16s()?;
                let mut floats = room(halves.len())?;
                floats.resize(halves.len(), 0.0);
                halves.convert_to_f32_slice(&mut floats);
                Cow::Owned(floats)
            }
            DType::BF16 => Cow::Owned(map(&self.bf16s()?, |v| v.to_f32())?),
            other => {
                let codec = Codec::new(other).ok_or_else(|| wrong(other))?;
                Cow::Owned(map(self.bytes()?, |v| codec.decode(*v))?)
            }
        })
    }

    /// Float elements of any type, exactly.
    pub fn to_f64(&self) -> Result<Cow<'_, [f64]>, TensorError> {
        match self.dtype {
            DType::F64 => self.f64s(),
            t if t.is_float() => Ok(Cow::Owned(map(&self.to_f32()?, |v| f64::from(*v))?)),
            found => Err(TensorError::Type {
                expected: "a float type",
                found,
            }),
        }
    }

    /// Integer or `bool` elements as `i64`. An error for a `u64` above `i64::MAX`.
    pub fn to_i64(&self) -> Result<Vec<i64>, TensorError> {
        if self.dtype == DType::U64 {
            let all = self.u64s()?;
            if let Some(high) = all.iter().find(|v| i64::try_from(**v).is_err()) {
                return Err(TensorError::TooHigh(*high));
            }
        }
        self.to_bits()
    }

    /// Integer or `bool` elements as 64-bit patterns; a `u64` is reinterpreted as `i64`.
    pub fn to_bits(&self) -> Result<Vec<i64>, TensorError> {
        let signed = |v: &u8| i64::from(i8::from_le_bytes([*v]));
        Ok(match self.dtype {
            DType::I64 => map(&self.i64s()?, |v| *v)?,
            DType::U64 => map(bytemuck::cast_slice(&self.u64s()?), |v| *v)?,
            DType::I32 => map(&self.i32s()?, |v| i64::from(*v))?,
            DType::U32 => map(&self.u32s()?, |v| i64::from(*v))?,
            DType::I16 => map(&self.i16s()?, |v| i64::from(*v))?,
            DType::U16 => map(&self.u16s()?, |v| i64::from(*v))?,
            DType::U8 | DType::Bool | DType::U4 | DType::U2 => map(self.bytes()?, |v| i64::from(*v))?,
            DType::I8 | DType::I4 | DType::I2 => map(self.bytes()?, signed)?,
            found => {
                return Err(TensorError::Type {
                    expected: "an integer type",
                    found,
                });
            }
        })
    }

    /// Integer or `bool` elements of any type, exactly.
    pub fn to_i128(&self) -> Result<Vec<i128>, TensorError> {
        let exact = |v: i64| match self.dtype {
            DType::U64 => i128::from(v.cast_unsigned()),
            _ => i128::from(v),
        };
        Ok(self.to_bits()?.into_iter().map(exact).collect())
    }

    /// A tensor of the float type `dtype` from `f32` elements, rounded to that type.
    pub fn from_floats(dtype: DType, shape: &[usize], data: &[f32]) -> Result<Self, TensorError> {
        match dtype {
            DType::F32 => Self::from_f32(shape, data),
            DType::F16 => {
                let mut halves = room(data.len())?;
                halves.resize(data.len(), f16::ZERO);
                halves.convert_from_f32_slice(data);
                Self::from_f16(shape, &halves)
            }
            other => Self::from_f64s(other, shape, &map(data, |v| f64::from(*v))?),
        }
    }

    /// A tensor of the float type `dtype` from `f64` elements, rounded once.
    pub fn from_f64s(dtype: DType, shape: &[usize], data: &[f64]) -> Result<Self, TensorError> {
        match dtype {
            DType::F64 => Self::from_f64(shape, data),
            #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
            DType::F32 => Self::from_f32(shape, &map(data, |v| *v as f32)?),
            DType::F16 => Self::from_f16(shape, &map(data, |v| f16::from_f32(narrowed(*v)))?),
            DType::BF16 => Self::from_bf16(shape, &map(data, |v| bf16::from_f32(narrowed(*v)))?),
            other => Self::from_rounded(other, shape, data, Rounding::default()),
        }
    }

    /// A tensor of an 8-bit or 4-bit float type from `f64` elements.
    pub fn from_rounded(
        dtype: DType,
        shape: &[usize],
        data: &[f64],
        rounding: Rounding,
    ) -> Result<Self, TensorError> {
        let codec = Codec::new(dtype).ok_or(TensorError::Type {
            expected: "a float type",
            found: dtype,
        })?;
        let codes = map(data, |v| codec.encode(*v, rounding))?;
        Self::from_bytes(dtype, shape, &codes)
    }

    /// A tensor from file bytes; types of fewer than 8 bits are packed in them.
    pub fn from_packed(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self, TensorError> {
        let bits = dtype.bits();
        if bits >= 8 {
            return Self::from_bytes(dtype, shape, bytes);
        }
        let count = byte_len(dtype, shape)?;
        check_len(dtype, shape, count.div_ceil(8 / bits), bytes.len())?;
        let parts = |byte: &u8| {
            let byte = i64::from(*byte);
            (0..8 / bits).map(move |i| byte >> (i * bits) & ((1 << bits) - 1))
        };
        let mut codes: Vec<i64> = room(count)?;
        codes.extend(bytes.iter().flat_map(parts).take(count));
        if dtype.is_int() {
            return Self::from_ints(dtype, shape, &codes);
        }
        let codes = map(&codes, |v| v.to_le_bytes()[0])?;
        Self::from_bytes(dtype, shape, &codes)
    }

    /// The bytes as in a file; types of fewer than 8 bits are packed, first element in the lowest
    /// bits. See [`HostTensor::from_packed`].
    pub fn to_packed(&self) -> Result<Cow<'_, [u8]>, TensorError> {
        let bits = self.dtype.bits();
        let bytes = self.bytes()?;
        if bits >= 8 {
            return Ok(Cow::Borrowed(bytes));
        }
        let mask = (1u8 << bits) - 1;
        let pack = |part: &[u8]| {
            let codes = part.iter().enumerate();
            codes.fold(0u8, |byte, (i, code)| byte | (code & mask) << (i * bits))
        };
        Ok(Cow::Owned(bytes.chunks(8 / bits).map(pack).collect()))
    }

    /// A tensor of `dtype` (an integer type or `bool`) from `i64` elements. Integers keep the low
    /// bits; a `bool` is `element != 0`.
    pub fn from_ints(dtype: DType, shape: &[usize], data: &[i64]) -> Result<Self, TensorError> {
        let mut bytes = room(data.len() * dtype.size())?;
        for v in data {
            let le = dtype.wrap(*v).to_le_bytes();
            match dtype {
                DType::Bool => bytes.push(u8::from(*v != 0)),
                d if d.is_int() => bytes.extend(le.iter().take(d.size())),
                found => {
                    return Err(TensorError::Type {
                        expected: "an integer type",
                        found,
                    });
                }
            }
        }
        Self::from_bytes(dtype, shape, &bytes)
    }

    /// Like [`HostTensor::from_ints`], for wider elements.
    pub fn from_i128s(dtype: DType, shape: &[usize], data: &[i128]) -> Result<Self, TensorError> {
        #[expect(clippy::cast_possible_truncation, reason = "integers keep the low bits")]
        let low: Vec<i64> = match dtype {
            DType::Bool => data.iter().map(|v| i64::from(*v != 0)).collect(),
            _ => data.iter().map(|v| *v as i64).collect(),
        };
        Self::from_ints(dtype, shape, &low)
    }
}

impl PartialEq for HostTensor {
    fn eq(&self, other: &Self) -> bool {
        // For absent tensors this compares errors, which hold the identifying text.
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        assert!(HostTensor::from_f32(&[2, 3], &[0.0; 5]).is_err());
        assert!(HostTensor::zeros(DType::F32, &[usize::MAX, 2]).is_err());
        let source: Arc<dyn Bytes> = Arc::new(vec![0u8; 9]);
        assert!(HostTensor::from_shared(DType::F32, &[2], source.clone(), 2).is_err());
        let t = HostTensor::from_shared(DType::F32, &[2], source, 1).unwrap();
        assert_eq!(
            t.f32s().unwrap().as_ref(),
            &[0.0, 0.0],
            "unaligned bytes are copied"
        );
    }

    #[test]
    fn conversions_keep_values() {
        let t = HostTensor::from_ints(DType::I8, &[2], &[-1, 5]).unwrap();
        assert_eq!(t.to_i64().unwrap(), [-1, 5]);
        assert!(t.to_f32().is_err());
        assert_eq!(t.reshape(&[1, 2]).unwrap().shape(), [1, 2]);
        assert!(t.reshape(&[3]).is_err());
    }

    #[test]
    fn narrow_and_wide_types() {
        for (dtype, low, high) in [
            (DType::I4, -8, 7),
            (DType::U4, 0, 15),
            (DType::I2, -2, 1),
            (DType::U2, 0, 3),
        ] {
            let t = HostTensor::from_ints(dtype, &[3], &[low, high, high + 1]).unwrap();
            assert_eq!(
                (t.to_i64().unwrap(), t.byte_len()),
                (vec![low, high, low], 3),
                "{dtype}"
            );
        }
        // Packed, the first element lowest.
        let packed = |dtype, n, bytes: &[u8]| HostTensor::from_packed(dtype, &[n], bytes).unwrap();
        assert_eq!(packed(DType::I4, 3, &[0xf1, 0x08]).to_i64().unwrap(), [1, -1, -8]);
        assert_eq!(
            packed(DType::U2, 5, &[0b11_10_01_00, 2]).to_i64().unwrap(),
            [0, 1, 2, 3, 2]
        );
        assert_eq!(
            packed(DType::F4E2M1, 2, &[0x97]).to_f32().unwrap().as_ref(),
            [6.0, -0.5]
        );
        assert!(HostTensor::from_packed(DType::I4, &[3], &[0]).is_err());
        let large = HostTensor::from_u64(&[1], &[u64::MAX]).unwrap();
        assert_eq!(large.to_i64(), Err(TensorError::TooHigh(u64::MAX)));
        assert_eq!(large.to_bits().unwrap(), [-1]);
        let wide = HostTensor::from_f64(&[1], &[1e300]).unwrap();
        assert!(wide.to_f32().is_err(), "digits are not lost in silence");
        let half = HostTensor::from_f64s(DType::BF16, &[2], &[1.0 + 1.0 / 256.0, -3.5]).unwrap();
        assert_eq!(half.to_f64().unwrap().as_ref(), [1.0, -3.5], "to the even side");
    }

    #[test]
    fn absent_elements_are_never_read_as_zeros() {
        let t = HostTensor::absent(DType::F32, &[2, 3], "\"w\"").unwrap();
        let absent = TensorError::Absent("\"w\"".into());
        assert_eq!(
            (t.shape(), t.len(), t.byte_len(), t.is_absent()),
            (&[2, 3][..], 6, 24, true)
        );
        assert_eq!(t.bytes(), Err(absent.clone()));
        assert_eq!(t.f32s(), Err(absent.clone()));
        assert_eq!(t.to_f32(), Err(absent.clone()));
        assert_eq!(t.reshape(&[6]).unwrap().f32s(), Err(absent.clone()));
        for dtype in [
            DType::I64,
            DType::I32,
            DType::U32,
            DType::U8,
            DType::I8,
            DType::Bool,
        ] {
            assert_eq!(
                HostTensor::absent(dtype, &[1], "\"w\"").unwrap().to_i64(),
                Err(absent.clone())
            );
        }
        assert_eq!(t, HostTensor::absent(DType::F32, &[2, 3], "\"w\"").unwrap());
        assert_ne!(t, HostTensor::absent(DType::F32, &[2, 3], "\"v\"").unwrap());
        assert_ne!(t, HostTensor::zeros(DType::F32, &[2, 3]).unwrap());
        assert!(HostTensor::absent(DType::F32, &[usize::MAX, 2], "\"w\"").is_err());
    }
}
