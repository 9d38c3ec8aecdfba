//! GGML block formats: their grids and codes, and their decoding to `f32`.

use half::{bf16, f16};
use std::fmt;
use transformer_lite::unstable::quant::nested::{BLOCK as QK_K, Block, MOST_GROUPS};
use transformer_lite::unstable::quant::{Bits, Format, Grid, GridColumn};

/// Code of a GGML tensor type, which may be unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GgmlType(pub u32);

#[expect(missing_docs, reason = "the names are those of the format")]
impl GgmlType {
    pub const F32: Self = Self(0);
    pub const F16: Self = Self(1);
    pub const Q4_0: Self = Self(2);
    pub const Q4_1: Self = Self(3);
    pub const Q5_0: Self = Self(6);
    pub const Q5_1: Self = Self(7);
    pub const Q8_0: Self = Self(8);
    pub const Q2_K: Self = Self(10);
    pub const Q3_K: Self = Self(11);
    pub const Q4_K: Self = Self(12);
    pub const Q5_K: Self = Self(13);
    pub const Q6_K: Self = Self(14);
    pub const BF16: Self = Self(30);
}

/// Types that [`dequantize`] decodes.
pub const SUPPORTED: [GgmlType; 13] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

/// Elements of a block of the older formats.
const QK: usize = 32;

impl GgmlType {
    fn known(self) -> Option<(&'static str, usize, usize)> {
        Some(match self.0 {
            0 => ("F32", 1, 4),
            1 => ("F16", 1, 2),
            2 => ("Q4_0", QK, 18),
            3 => ("Q4_1", QK, 20),
            6 => ("Q5_0", QK, 22),
            7 => ("Q5_1", QK, 24),
            8 => ("Q8_0", QK, 34),
            9 => ("Q8_1", QK, 36),
            10 => ("Q2_K", QK_K, 84),
            11 => ("Q3_K", QK_K, 110),
            12 => ("Q4_K", QK_K, 144),
            13 => ("Q5_K", QK_K, 176),
            14 => ("Q6_K", QK_K, 210),
            15 => ("Q8_K", QK_K, 292),
            16 => ("IQ2_XXS", QK_K, 66),
            17 => ("IQ2_XS", QK_K, 74),
            18 => ("IQ3_XXS", QK_K, 98),
            19 => ("IQ1_S", QK_K, 50),
            20 => ("IQ4_NL", QK, 18),
            21 => ("IQ3_S", QK_K, 110),
            22 => ("IQ2_S", QK_K, 82),
            23 => ("IQ4_XS", QK_K, 136),
            24 => ("I8", 1, 1),
            25 => ("I16", 1, 2),
            26 => ("I32", 1, 4),
            27 => ("I64", 1, 8),
            28 => ("F64", 1, 8),
            29 => ("IQ1_M", QK_K, 56),
            30 => ("BF16", 1, 2),
            34 => ("TQ1_0", QK_K, 54),
            35 => ("TQ2_0", QK_K, 66),
            39 => ("MXFP4", QK, 17),
            _ => return None,
        })
    }

    /// Elements and bytes of a block; none for an unknown type.
    pub fn block(self) -> Option<(usize, usize)> {
        self.known().map(|(_, elements, bytes)| (elements, bytes))
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((name, ..)) => f.write_str(name),
            None => write!(f, "{} (unknown)", self.0),
        }
    }
}

impl fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn half(low: u8, high: u8) -> f64 {
    f16::from_le_bytes([low, high]).to_f64()
}

/// Appends the scales of a k-quant block with these halves: an integer scale and an integer minimum
/// for each of `groups` groups.
fn nested(halves: [[u8; 2]; 2], groups: usize, integers: impl Fn(usize) -> (i8, u8), out: &mut GridColumn) {
    let mut block = Block {
        halves: halves.map(f16::from_le_bytes),
        ..Block::default()
    };
    for g in 0..groups.min(MOST_GROUPS) {
        (block.scales[g], block.minima[g]) = integers(g);
    }
    out.blocks.push(block);
}

/// The 32 codes of packed nibbles of an older block: the low ones are the first half.
fn nibbles(packed: &[u8], high: u32, out: &mut GridColumn) {
    let mut codes = [0; QK];
    let (low, top) = codes.split_at_mut(QK / 2);
    for ((low, top), q) in low.iter_mut().zip(top).zip(packed) {
        (*low, *top) = (q & 15, q >> 4);
    }
    for (codes, high) in codes.as_chunks_mut::<8>().0.iter_mut().zip(high.to_le_bytes()) {
        // Bit i is left in byte i, and becomes the highest bit there, then that worth 16.
        let own = u64::from_le_bytes([high; 8]) & 0x8040_2010_0804_0201;
        let fifth = ((own + 0x7F7F_7F7F_7F7F_7F7F) & 0x8080_8080_8080_8080) >> 3;
        *codes = (u64::from_le_bytes(*codes) | fifth).to_le_bytes();
    }
    out.codes.extend_from_slice(&codes);
}

fn q4_0(b: &[u8; 18], out: &mut GridColumn) {
    out.grids.push(Grid::around(half(b[0], b[1]), 8.0));
    nibbles(&b[2..], 0, out);
}

fn q4_1(b: &[u8; 20], out: &mut GridColumn) {
    let (scale, offset) = (half(b[0], b[1]), half(b[2], b[3]));
    out.grids.push(Grid { scale, offset });
    nibbles(&b[4..], 0, out);
}

fn q5_0(b: &[u8; 22], out: &mut GridColumn) {
    out.grids.push(Grid::around(half(b[0], b[1]), 16.0));
    nibbles(&b[6..], u32::from_le_bytes([b[2], b[3], b[4], b[5]]), out);
}

fn q5_1(b: &[u8; 24], out: &mut GridColumn) {
    let (scale, offset) = (half(b[0], b[1]), half(b[2], b[3]));
    out.grids.push(Grid { scale, offset });
    nibbles(&b[8..], u32::from_le_bytes([b[4], b[5], b[6], b[7]]), out);
}

fn q8_0(b: &[u8; 34], out: &mut GridColumn) {
    out.grids.push(Grid::around(half(b[0], b[1]), 128.0));
    // Two's complement, moved to 0 to 255.
    out.codes.extend(b[2..].iter().map(|q| q ^ 0x80));
}

/// Appends the codes of a k-quant block, of two halves of four parts. `code` makes one of its half,
/// its part and the place in the part, which is also the place of its byte in the planes.
fn parts(out: &mut GridColumn, code: impl Fn(usize, usize, usize) -> u8) {
    for half in 0..2 {
        for part in 0..4 {
            // An array of known length: the loop becomes vector operations.
            let mut codes = [0; QK];
            codes
                .iter_mut()
                .enumerate()
                .for_each(|(l, to)| *to = code(half, part, l));
            out.codes.extend_from_slice(&codes);
        }
    }
}

fn q2_k(b: &[u8; 84], out: &mut GridColumn) {
    let scales = &b[..16];
    let halves = [[b[80], b[81]], [b[82], b[83]]];
    nested(
        halves,
        16,
        |g| ((scales[g] & 15).cast_signed(), scales[g] >> 4),
        out,
    );
    let codes = &b[16..80];
    parts(out, |half, part, l| codes[QK * half + l] >> (2 * part) & 3);
}

fn q3_k(b: &[u8; 110], out: &mut GridColumn) {
    let (high, low, scales) = (&b[..32], &b[32..96], &b[96..108]);
    let integers = |j: usize| {
        // Six bits: nibbles of eight bytes, the low ones first, and pairs of bits of four more.
        let bottom = scales[j % 8] >> (4 * (j / 8)) & 15;
        let top = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
        ((bottom | top << 4).cast_signed() - 32, 0)
    };
    nested([[b[108], b[109]], [0; 2]], 16, integers, out);
    parts(out, |half, part, l| {
        let top = high[l] >> (4 * half + part) & 1;
        low[QK * half + l] >> (2 * part) & 3 | top << 2
    });
}

/// Scale and minimum of part `j` (0 to 7) of a `Q4_K` or `Q5_K` block: six bits each, packed in
/// twelve bytes.
fn scale_min(j: usize, q: &[u8]) -> (i8, u8) {
    let (scale, min) = if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        (q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4)
    };
    (scale.cast_signed(), min)
}

/// The scales of a `Q4_K` or `Q5_K` block and its codes, whose 4 low bits are in `low`;
/// `high(part, l)` is the fifth bit, worth 16.
fn k4(head: &[u8], low: &[u8], out: &mut GridColumn, high: impl Fn(usize, usize) -> u8) {
    let halves = [[head[0], head[1]], [head[2], head[3]]];
    nested(halves, QK_K / QK, |g| scale_min(g, &head[4..16]), out);
    parts(out, |half, part, l| {
        let nibble = low[64 * half + QK * (part / 2) + l] >> (4 * (part % 2)) & 15;
        nibble | high(4 * half + part, l)
    });
}

fn q4_k(b: &[u8; 144], out: &mut GridColumn) {
    let (head, low) = b.split_at(16);
    k4(head, low, out, |_, _| 0);
}

fn q5_k(b: &[u8; 176], out: &mut GridColumn) {
    let (head, low) = b.split_at(48);
    let high = &head[16..48];
    k4(head, low, out, |part, l| (high[l] >> part & 1) << 4);
}

fn q6_k(b: &[u8; 210], out: &mut GridColumn) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let integers = |g: usize| (scales[g].cast_signed(), 0);
    nested([[b[208], b[209]], [0; 2]], 16, integers, out);
    parts(out, |half, part, l| {
        let nibble = low[64 * half + QK * (part % 2) + l] >> (4 * (part / 2)) & 15;
        nibble | (high[QK * half + l] >> (2 * part) & 3) << 4
    });
}

impl GgmlType {
    /// Our format with as many levels as the type's blocks have; none for floats and types that are
    /// not [`SUPPORTED`].
    pub fn grid_format(self) -> Option<Format> {
        match self {
            Self::Q2_K => Format::nested(Bits::Two),
            Self::Q3_K => Format::nested(Bits::Three),
            Self::Q4_K => Format::nested(Bits::Four),
            Self::Q5_K => Format::nested(Bits::Five),
            Self::Q6_K => Format::nested(Bits::Six),
            Self::Q4_0 | Self::Q4_1 => Some(Format::new(Bits::Four, QK)),
            Self::Q5_0 | Self::Q5_1 => Some(Format::new(Bits::Five, QK)),
            Self::Q8_0 => Some(Format::new(Bits::Eight, QK)),
            _ => None,
        }
    }
}

/// Whole blocks of `BYTES` bytes.
fn blocks<const BYTES: usize>(data: &[u8], mut take: impl FnMut(&[u8; BYTES])) {
    data.as_chunks::<BYTES>().0.iter().for_each(&mut take);
}

/// Appends grids and codes of whole blocks of `ggml_type` to `out`. False, with nothing appended,
/// when the type has no [`GgmlType::grid_format`].
#[must_use]
pub fn grids(ggml_type: GgmlType, data: &[u8], out: &mut GridColumn) -> bool {
    match ggml_type {
        GgmlType::Q4_0 => blocks(data, |b| q4_0(b, out)),
        GgmlType::Q4_1 => blocks(data, |b| q4_1(b, out)),
        GgmlType::Q5_0 => blocks(data, |b| q5_0(b, out)),
        GgmlType::Q5_1 => blocks(data, |b| q5_1(b, out)),
        GgmlType::Q8_0 => blocks(data, |b| q8_0(b, out)),
        GgmlType::Q2_K => blocks(data, |b| q2_k(b, out)),
        GgmlType::Q3_K => blocks(data, |b| q3_k(b, out)),
        GgmlType::Q4_K => blocks(data, |b| q4_k(b, out)),
        GgmlType::Q5_K => blocks(data, |b| q5_k(b, out)),
        GgmlType::Q6_K => blocks(data, |b| q6_k(b, out)),
        _ => return false,
    }
    true
}

/// Decodes blocks of `ggml_type` into `out`. False when the type is not one of [`SUPPORTED`] or the
/// lengths do not belong together; `out` is then unspecified.
#[must_use]
pub fn dequantize(ggml_type: GgmlType, data: &[u8], out: &mut [f32]) -> bool {
    let fits = ggml_type.block().is_some_and(|(elements, bytes)| {
        out.len().is_multiple_of(elements) && (out.len() / elements).checked_mul(bytes) == Some(data.len())
    });
    if !fits {
        return false;
    }
    let mut values = out.iter_mut();
    let mut put = |v: f32| values.next().into_iter().for_each(|to| *to = v);
    match ggml_type {
        GgmlType::F32 => blocks(data, |b| put(f32::from_le_bytes(*b))),
        GgmlType::F16 => blocks(data, |b| put(f16::from_le_bytes(*b).to_f32())),
        GgmlType::BF16 => blocks(data, |b| put(bf16::from_le_bytes(*b).to_f32())),
        _ => {
            let (Some(format), Some((elements, bytes))) = (ggml_type.grid_format(), ggml_type.block()) else {
                return false;
            };
            let (mut column, mut weights) = (GridColumn::default(), Vec::new());
            for (block, values) in data.chunks_exact(bytes).zip(out.chunks_exact_mut(elements)) {
                column.clear();
                weights.clear();
                if !grids(ggml_type, block, &mut column) {
                    return false;
                }
                column.weights(format, &mut weights);
                values.iter_mut().zip(&weights).for_each(|(v, w)| *v = *w);
            }
        }
    }
    true
}
