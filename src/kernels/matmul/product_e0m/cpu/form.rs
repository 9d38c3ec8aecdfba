//! The forms of the kernel.

#[cfg(target_arch = "aarch64")]
use super::arm;
use super::dot::Multiply;
use super::layout::{Layout, Words};
use super::portable;
use super::tile::Tile;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::backend::cpu::isa::Isa;

/// How weights stand in the words that a tile reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    Four,
    Eight,
    /// This many bits, unpacked to bytes.
    Unpacked(usize),
}

/// What a tile function is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub codes: Codes,
    pub planes: usize,
}

impl Codes {
    pub fn new(bits: usize) -> Option<Self> {
        match bits {
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            2 | 3 | 5 | 6 => Some(Self::Unpacked(bits)),
            _ => None,
        }
    }

    pub fn bits(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
            Self::Unpacked(bits) => bits,
        }
    }
}

impl Form {
    /// The function for a layout of rows.
    pub fn tile(self, isa: Isa, layout: Layout) -> Option<Tile> {
        let wide = layout.words == Words::Int16;
        let tile = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if wide => Self::one_plane::<x86::Avx2<16>>,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self::one_plane::<x86::Avx2<8>>,
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Self::planes::<x86::AvxVnni>,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Self::planes::<x86::Avx512Vnni>,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon if wide => Self::one_plane::<arm::Neon<16>>,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Self::one_plane::<arm::Neon<8>>,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm if layout.words == Words::RowPairs => Self::planes::<arm::NeonI8mm>,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot | Isa::NeonI8mm => Self::planes::<arm::NeonDot>,
            _ if wide => Self::one_plane::<portable::Portable<16>>,
            _ => Self::one_plane::<portable::Portable<8>>,
        };
        tile(self, layout.height)
    }

    /// The function for one or two planes of bytes.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn planes<A: Multiply>(self, height: usize) -> Option<Tile> {
        match self.planes {
            1 => self.of::<A, 1>(height),
            _ => self.of::<A, 2>(height),
        }
    }

    /// The function for bytes, or for 16-bit integers instead of two planes.
    fn one_plane<A: Multiply>(self, height: usize) -> Option<Tile> {
        self.of::<A, 1>(height)
    }

    fn of<A: Multiply, const PLANES: usize>(self, height: usize) -> Option<Tile> {
        match self.codes {
            Codes::Four => A::tile::<4, PLANES>(height),
            Codes::Eight => A::tile::<8, PLANES>(height),
            Codes::Unpacked(6) if A::NARROW > 0 => A::tile::<6, PLANES>(height),
            Codes::Unpacked(5) if A::NARROW > 0 => A::tile::<5, PLANES>(height),
            Codes::Unpacked(_) if A::NARROW > 0 || A::FLIP != 0 => A::tile::<3, PLANES>(height),
            Codes::Unpacked(_) => A::tile::<8, PLANES>(height),
        }
    }

    /// The level of an integer 0. Signed dot products subtract 128 from weights of 8 bits.
    pub fn level(self, isa: Isa) -> f32 {
        let signed = matches!(isa, Isa::NeonDot | Isa::NeonI8mm);
        if signed && self.codes == Codes::Eight {
            3.0
        } else {
            2.0
        }
    }
}
