//! Host values: element types and dense tensors, for import, the interpreter and tests.

use half::f16;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Element type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// 64-bit signed integer; on devices it travels as range-checked [`DType::I32`].
    I64,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer; packed weights.
    U32,
    /// 8-bit unsigned integer.
    U8,
    /// 8-bit signed integer.
    I8,
    /// Truth value, one byte on the host.
    Bool,
}

impl DType {
    /// Bytes of one element on the host.
    pub fn size(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 => 2,
            Self::U8 | Self::I8 | Self::Bool => 1,
        }
    }

    /// True for `f32` and `f16`.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16)
    }

    /// True for the integer types; `bool` is none.
    pub fn is_int(self) -> bool {
        matches!(self, Self::I64 | Self::I32 | Self::U32 | Self::U8 | Self::I8)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::Bool => "bool",
        })
    }
}

/// Why a host tensor cannot be made or read as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The byte length does not fit the shape.
    #[error("{dtype}{shape:?} needs {expected} bytes, got {found}")]
    Length {
        /// Element type.
        dtype: DType,
        /// Asked shape.
        shape: Vec<usize>,
        /// Bytes that the shape needs.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The elements are of another type.
    #[error("expected elements of type {expected}, found {found}")]
    Type {
        /// What the caller can take.
        expected: &'static str,
        /// What the tensor holds.
        found: DType,
    },
    /// The bytes were not loaded; see [`HostTensor::absent`].
    #[error("{0} is not loaded: the model was read without its weights")]
    Absent(Arc<str>),
    /// The shape has more elements than this machine can address.
    #[error("shape {0:?} is too large")]
    TooLarge(Vec<usize>),
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
enum Storage {
    /// Eight-byte words, so that any element type is aligned.
    Owned(Arc<Vec<u64>>),
    /// A part of a shared byte source; may be unaligned.
    Shared { source: Arc<dyn Bytes>, start: usize },
    /// None; the text says which bytes these would be. Two texts are equal when the bytes are.
    Absent(Arc<str>),
}

/// A dense row-major tensor in host memory. Cloning shares the data.
#[derive(Clone)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
    storage: Storage,
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

macro_rules! typed {
    ($make:ident, $view:ident, $t:ty, $dtype:expr) => {
        /// A tensor of the given elements, row-major.
        pub fn $make(shape: &[usize], data: &[$t]) -> Result<Self, TensorError> {
            Self::from_bytes($dtype, shape, bytemuck::cast_slice(data))
        }

        /// The elements; copied only when the bytes are not aligned. An error for another element type.
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

    fn view<T: bytemuck::Pod>(&self, dtype: DType, name: &'static str) -> Result<Cow<'_, [T]>, TensorError> {
        if self.dtype != dtype {
            return Err(TensorError::Type {
                expected: name,
                found: self.dtype,
            });
        }
        let bytes = self.bytes()?;
        Ok(bytemuck::try_cast_slice(bytes).map_or_else(
            |_| {
                Cow::Owned(
                    bytes
                        .chunks_exact(size_of::<T>())
                        .map(bytemuck::pod_read_unaligned)
                        .collect(),
                )
            },
            Cow::Borrowed,
        ))
    }

    /// A tensor over a copy of little-endian `bytes`.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self, TensorError> {
        let expected = byte_len(dtype, shape)?;
        if bytes.len() != expected {
            return Err(TensorError::Length {
                dtype,
                shape: shape.to_vec(),
                expected,
                found: bytes.len(),
            });
        }
        let mut words = vec![0u64; expected.div_ceil(8)];
        if let Some(target) = bytemuck::cast_slice_mut::<u64, u8>(&mut words).get_mut(..expected) {
            target.copy_from_slice(bytes);
        }
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes: expected,
            storage: Storage::Owned(Arc::new(words)),
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
        if found < expected {
            return Err(TensorError::Length {
                dtype,
                shape: shape.to_vec(),
                expected,
                found,
            });
        }
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes: expected,
            storage: Storage::Shared { source, start },
        })
    }

    /// A truth-value tensor.
    pub fn from_bool(shape: &[usize], data: &[bool]) -> Result<Self, TensorError> {
        let bytes: Vec<u8> = data.iter().map(|b| u8::from(*b)).collect();
        Self::from_bytes(DType::Bool, shape, &bytes)
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Self, TensorError> {
        let bytes = byte_len(dtype, shape)?;
        let mut words = Vec::new();
        words
            .try_reserve_exact(bytes.div_ceil(8))
            .map_err(|_| TensorError::TooLarge(shape.to_vec()))?;
        words.resize(bytes.div_ceil(8), 0u64);
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes,
            storage: Storage::Owned(Arc::new(words)),
        })
    }

    /// A tensor of which only type and shape are known, for work that needs no more. `what` names the bytes for errors and
    /// tells them from others: tensors of one `what`, type and shape are equal. Every access to elements is
    /// [`TensorError::Absent`].
    pub fn absent(dtype: DType, shape: &[usize], what: &str) -> Result<Self, TensorError> {
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            bytes: byte_len(dtype, shape)?,
            storage: Storage::Absent(what.into()),
        })
    }

    /// True when the elements cannot be read; see [`HostTensor::absent`].
    pub fn is_absent(&self) -> bool {
        matches!(self.storage, Storage::Absent(_))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes / self.dtype.size()
    }

    /// True when a size is zero.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Number of bytes of the elements.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// The little-endian bytes; an error for an [absent](HostTensor::absent) tensor.
    pub fn bytes(&self) -> Result<&[u8], TensorError> {
        let (all, start) = match &self.storage {
            Storage::Owned(words) => (bytemuck::cast_slice::<u64, u8>(words), 0),
            Storage::Shared { source, start } => (source.bytes(), *start),
            Storage::Absent(what) => return Err(TensorError::Absent(what.clone())),
        };
        Ok(all.get(start..start + self.bytes).unwrap_or(&[]))
    }

    /// The same data under another shape of equal element count.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, TensorError> {
        let expected = byte_len(self.dtype, shape)?;
        if expected != self.bytes {
            return Err(TensorError::Length {
                dtype: self.dtype,
                shape: shape.to_vec(),
                expected,
                found: self.bytes,
            });
        }
        Ok(Self {
            shape: shape.to_vec(),
            ..self.clone()
        })
    }

    /// Float elements as `f32`.
    pub fn to_f32(&self) -> Result<Cow<'_, [f32]>, TensorError> {
        match self.dtype {
            DType::F32 => self.f32s(),
            DType::F16 => Ok(Cow::Owned(self.f16s()?.iter().map(|v| v.to_f32()).collect())),
            found => Err(TensorError::Type {
                expected: "f32 or f16",
                found,
            }),
        }
    }

    /// Integer or truth-value elements as `i64`.
    pub fn to_i64(&self) -> Result<Vec<i64>, TensorError> {
        Ok(match self.dtype {
            DType::I64 => self.i64s()?.into_owned(),
            DType::I32 => self.i32s()?.iter().map(|v| i64::from(*v)).collect(),
            DType::U32 => self.u32s()?.iter().map(|v| i64::from(*v)).collect(),
            DType::U8 | DType::Bool => self.bytes()?.iter().map(|v| i64::from(*v)).collect(),
            DType::I8 => self
                .bytes()?
                .iter()
                .map(|v| i64::from(i8::from_le_bytes([*v])))
                .collect(),
            found => {
                return Err(TensorError::Type {
                    expected: "an integer type",
                    found,
                });
            }
        })
    }

    /// A tensor of `dtype` (a float type) from `f32` elements.
    pub fn from_floats(dtype: DType, shape: &[usize], data: &[f32]) -> Result<Self, TensorError> {
        match dtype {
            DType::F32 => Self::from_f32(shape, data),
            DType::F16 => {
                let halves: Vec<f16> = data.iter().map(|v| f16::from_f32(*v)).collect();
                Self::from_f16(shape, &halves)
            }
            found => Err(TensorError::Type {
                expected: "f32 or f16",
                found,
            }),
        }
    }

    /// A tensor of `dtype` (an integer type or `bool`) from `i64` elements, keeping the low bits; a
    /// truth value is `!= 0`.
    pub fn from_ints(dtype: DType, shape: &[usize], data: &[i64]) -> Result<Self, TensorError> {
        let mut bytes = Vec::with_capacity(data.len() * dtype.size());
        for v in data {
            let le = v.to_le_bytes();
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
}

impl PartialEq for HostTensor {
    fn eq(&self, other: &Self) -> bool {
        // The errors of absent tensors say what is absent.
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
