//! The forms of the kernel.

use super::layout::Layout;
use super::tile::Tile;
use super::{layout::Words, portable};
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
        let height = layout.height;
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::pick(self, height),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => super::vnni256::pick(self, height),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => super::vnni512::pick(self, height),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => super::neon::pick(self, height),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot | Isa::NeonI8mm => {
                super::neon_dot::pick(self, layout.words == Words::RowPairs, height)
            }
            _ => portable::pick(self, layout.words == Words::Int16, height),
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
