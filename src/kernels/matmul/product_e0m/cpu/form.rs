//! The forms of the kernel.

#[cfg(target_arch = "aarch64")]
use super::arm;
use super::dot::Multiply;
use super::layout::{Layout, Words};
use super::portable;
use super::scales::Meaning;
use super::tile::Tile;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::backend::cpu::isa::Isa;
use crate::quant::{Bits, Format, Scales};

/// What a tile function is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub format: Format,
    pub planes: usize,
}

impl Form {
    pub fn bits(self) -> usize {
        self.format.bits.count() as usize
    }

    /// True for widths that are unpacked to bytes before several rows are multiplied.
    pub fn is_unpacked(self) -> bool {
        !matches!(self.format.bits, Bits::Four | Bits::Eight)
    }

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
        if height == 1 {
            return Some(self.row::<A, PLANES>());
        }
        match self.format.bits {
            Bits::Four => A::tile::<4, PLANES>(height),
            Bits::Eight => A::tile::<8, PLANES>(height),
            Bits::Six if A::NARROW > 0 => A::tile::<6, PLANES>(height),
            Bits::Five if A::NARROW > 0 => A::tile::<5, PLANES>(height),
            _ if A::NARROW > 0 || A::FLIP != 0 => A::tile::<3, PLANES>(height),
            _ => A::tile::<8, PLANES>(height),
        }
    }

    fn row<A: Multiply, const PLANES: usize>(self) -> Tile {
        match (self.format.bits, self.format.scales) {
            (Bits::Two, Scales::Pairs) => A::row::<2, false, PLANES>(),
            (Bits::Three, Scales::Pairs) => A::row::<3, false, PLANES>(),
            (Bits::Four, Scales::Pairs) => A::row::<4, false, PLANES>(),
            (Bits::Five, Scales::Pairs) => A::row::<5, false, PLANES>(),
            (Bits::Six, Scales::Pairs) => A::row::<6, false, PLANES>(),
            (Bits::Eight, _) => A::row::<8, false, PLANES>(),
            (Bits::Two, Scales::Nested(_)) => A::row::<2, true, PLANES>(),
            (Bits::Three, Scales::Nested(_)) => A::row::<3, true, PLANES>(),
            (Bits::Four, Scales::Nested(_)) => A::row::<4, true, PLANES>(),
            (Bits::Five, Scales::Nested(_)) => A::row::<5, true, PLANES>(),
            (Bits::Six, Scales::Nested(_)) => A::row::<6, true, PLANES>(),
        }
    }

    /// What integers of weights stand for. Signed dot products subtract 128 from weights of 8 bits.
    pub fn meaning(self, isa: Isa) -> Meaning {
        let signed = matches!(isa, Isa::NeonDot | Isa::NeonI8mm);
        let bits = self.format.bits;
        Meaning {
            unit: bits.step(),
            level: if signed && bits == Bits::Eight { 3.0 } else { 2.0 },
        }
    }
}
