//! Element types.

use std::fmt;

/// Element type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// 64-bit signed integer. Devices store it as [`DType::I32`] where its bounds allow that.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer; holds packed weights.
    U32,
    /// 8-bit unsigned integer.
    U8,
    /// 8-bit signed integer.
    I8,
    /// Truth value, one byte on the host.
    Bool,
    /// IEEE binary64.
    F64,
    /// bfloat16: the upper half of an IEEE binary32.
    BF16,
    /// 16-bit signed integer.
    I16,
    /// 16-bit unsigned integer.
    U16,
    /// 64-bit unsigned integer.
    U64,
    /// 4-bit signed integer, one byte on the host.
    I4,
    /// 4-bit unsigned integer, one byte on the host.
    U4,
    /// 2-bit signed integer, one byte on the host.
    I2,
    /// 2-bit unsigned integer, one byte on the host.
    U2,
    /// 8-bit float without infinities, ONNX's `float8e4m3fn`; see [`mini`](super::mini).
    F8E4M3,
    /// 8-bit float without infinities or minus zero, ONNX's `float8e4m3fnuz`.
    F8E4M3Uz,
    /// 8-bit float, ONNX's `float8e5m2`.
    F8E5M2,
    /// 8-bit float without infinities or minus zero, ONNX's `float8e5m2fnuz`.
    F8E5M2Uz,
    /// A power of two in 8 bits, ONNX's `float8e8m0`.
    F8E8M0,
    /// 4-bit float, one byte on the host, ONNX's `float4e2m1`.
    F4E2M1,
}

impl DType {
    /// Bytes of one element on the host.
    pub fn size(self) -> usize {
        match self {
            Self::I64 | Self::F64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            _ => 1,
        }
    }

    /// Bytes of one element in device memory. Only meant for the types that elements are
    /// [stored as](crate::graph::op::device_dtype).
    pub fn device_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 => 2,
            Self::I64 => 8,
            _ => 4,
        }
    }

    /// Bytes of which device memory of a tensor is a multiple: two elements, since work-items store
    /// pairs, and four halves, which they load at once.
    pub fn device_padding(self) -> usize {
        (2 * self.device_bytes()).max(8)
    }

    /// Bits of one element in files. Types narrower than 8 bits are packed, first element in the
    /// lowest bits.
    pub fn bits(self) -> usize {
        match self {
            Self::I4 | Self::U4 | Self::F4E2M1 => 4,
            Self::I2 | Self::U2 => 2,
            other => 8 * other.size(),
        }
    }

    /// True for floats of any width.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::F64 | Self::BF16) || self.is_mini()
    }

    /// True for 8-bit and 4-bit floats; see [`mini`](super::mini).
    pub fn is_mini(self) -> bool {
        use DType::*;
        matches!(self, F8E4M3 | F8E4M3Uz | F8E5M2 | F8E5M2Uz | F8E8M0 | F4E2M1)
    }

    /// True for integer types; `bool` is not one.
    pub fn is_int(self) -> bool {
        self.int_range().is_some()
    }

    /// True for types that device memory can hold. Nodes that read or write other types run on the
    /// host.
    pub fn on_devices(self) -> bool {
        use DType::*;
        matches!(
            self,
            F32 | F16 | I64 | U64 | I32 | U32 | U16 | I16 | U8 | I8 | U4 | I4 | U2 | I2 | Bool
        )
    }

    /// The lowest and highest value of an integer type; `None` for other types.
    pub fn int_range(self) -> Option<(i128, i128)> {
        let (signed, bits) = match self {
            Self::I64 => (true, 64),
            Self::I32 => (true, 32),
            Self::I16 => (true, 16),
            Self::I8 => (true, 8),
            Self::I4 => (true, 4),
            Self::I2 => (true, 2),
            Self::U64 => (false, 64),
            Self::U32 => (false, 32),
            Self::U16 => (false, 16),
            Self::U8 => (false, 8),
            Self::U4 => (false, 4),
            Self::U2 => (false, 2),
            _ => return None,
        };
        Some(if signed {
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        } else {
            (0, (1 << bits) - 1)
        })
    }

    /// Bits of an integer type with fewer than `most`, and whether it is signed; `None` for others.
    pub fn bits_below(self, most: usize) -> Option<(usize, bool)> {
        let (low, _) = self.int_range()?;
        (self.bits() < most).then_some((self.bits(), low < 0))
    }

    /// The low bits of `v` as a value of this integer type. For `u64`, all 64 bits are kept.
    pub fn wrap(self, v: i64) -> i64 {
        match self.int_range() {
            Some((low, _)) if self.bits() < 64 => {
                let shift = 64 - self.bits();
                if low < 0 {
                    v << shift >> shift
                } else {
                    v & !(-1 << self.bits())
                }
            }
            _ => v,
        }
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
            Self::F64 => "f64",
            Self::BF16 => "bf16",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::U64 => "u64",
            Self::I4 => "i4",
            Self::U4 => "u4",
            Self::I2 => "i2",
            Self::U2 => "u2",
            Self::F8E4M3 => "f8e4m3fn",
            Self::F8E4M3Uz => "f8e4m3fnuz",
            Self::F8E5M2 => "f8e5m2",
            Self::F8E5M2Uz => "f8e5m2fnuz",
            Self::F8E8M0 => "f8e8m0",
            Self::F4E2M1 => "f4e2m1",
        })
    }
}
