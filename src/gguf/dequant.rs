//! GGML block formats and their decoding to `f32`.

use half::{bf16, f16};
use std::fmt;

/// Code of a GGML tensor type, which may be unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GgmlType(pub u32);

#[allow(missing_docs, reason = "the names are those of the format")]
impl GgmlType {
    pub const F32: Self = Self(0);
    pub const F16: Self = Self(1);
    pub const Q4_0: Self = Self(2);
    pub const Q4_1: Self = Self(3);
    pub const Q5_0: Self = Self(6);
    pub const Q5_1: Self = Self(7);
    pub const Q8_0: Self = Self(8);
    pub const Q4_K: Self = Self(12);
    pub const Q5_K: Self = Self(13);
    pub const Q6_K: Self = Self(14);
    pub const BF16: Self = Self(30);
}

/// Types that [`dequantize`] decodes.
pub const SUPPORTED: [GgmlType; 11] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

/// Elements of a k-quant block.
const QK_K: usize = 256;
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

fn half(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

/// Decodes whole blocks of `BYTES` bytes into `N` elements each.
fn blocks<const BYTES: usize, const N: usize>(
    data: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; N]),
) {
    for (block, values) in data.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<N>().0) {
        decode(block, values);
    }
}

/// Splits the 16 bytes of packed nibbles of an older block: the low ones are the first half.
fn nibbles(packed: &[u8], y: &mut [f32; QK], value: impl Fn(usize, u8) -> f32) {
    let (first, second) = y.split_at_mut(QK / 2);
    for (j, ((q, a), b)) in packed.iter().zip(first).zip(second).enumerate() {
        *a = value(j, q & 15);
        *b = value(j + QK / 2, q >> 4);
    }
}

fn q4_0(b: &[u8; 18], y: &mut [f32; QK]) {
    let d = half(b[0], b[1]);
    nibbles(&b[2..], y, |_, q| d * (f32::from(q) - 8.0));
}

fn q4_1(b: &[u8; 20], y: &mut [f32; QK]) {
    let (d, m) = (half(b[0], b[1]), half(b[2], b[3]));
    nibbles(&b[4..], y, |_, q| d * f32::from(q) + m);
}

fn q5_0(b: &[u8; 22], y: &mut [f32; QK]) {
    let d = half(b[0], b[1]);
    let high = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
    nibbles(&b[6..], y, |j, q| d * (f32::from(q | fifth(high, j)) - 16.0));
}

fn q5_1(b: &[u8; 24], y: &mut [f32; QK]) {
    let (d, m) = (half(b[0], b[1]), half(b[2], b[3]));
    let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    nibbles(&b[8..], y, |j, q| d * f32::from(q | fifth(high, j)) + m);
}

fn fifth(high: u32, j: usize) -> u8 {
    if high >> j & 1 == 1 { 16 } else { 0 }
}

fn q8_0(b: &[u8; 34], y: &mut [f32; QK]) {
    let d = half(b[0], b[1]);
    for (q, v) in b[2..].iter().zip(y) {
        *v = d * f32::from(q.cast_signed());
    }
}

/// Scale and minimum of part `j` (0 to 7) of a `Q4_K` or `Q5_K` block: six bits each, packed in twelve bytes.
fn scale_min(j: usize, q: &[u8; 12]) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        (q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// Decodes the 4 low bits of a `Q4_K` or `Q5_K` block; `high(part, l)` is the fifth bit, worth 16.
fn k4(head: &[u8; 16], low: &[u8], y: &mut [f32; QK_K], high: impl Fn(usize, usize) -> u8) {
    let (d, dmin) = (half(head[0], head[1]), half(head[2], head[3]));
    let mut scales = [0u8; 12];
    scales.copy_from_slice(&head[4..]);
    for (j, (q, part)) in low.chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
        for (half, values) in part.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_min(2 * j + half, &scales);
            let (scale, min) = (d * scale, dmin * min);
            for (l, (q, v)) in q.iter().zip(values).enumerate() {
                let bits = q >> (4 * half) & 15 | high(2 * j + half, l);
                *v = scale * f32::from(bits) - min;
            }
        }
    }
}

fn head(b: &[u8]) -> [u8; 16] {
    let mut head = [0; 16];
    head.copy_from_slice(&b[..16]);
    head
}

fn q4_k(b: &[u8; 144], y: &mut [f32; QK_K]) {
    k4(&head(b), &b[16..], y, |_, _| 0);
}

fn q5_k(b: &[u8; 176], y: &mut [f32; QK_K]) {
    let high = &b[16..48];
    k4(&head(b), &b[48..], y, |part, l| (high[l] >> part & 1) << 4);
}

fn q6_k(b: &[u8; 210], y: &mut [f32; QK_K]) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = half(b[208], b[209]);
    for (i, v) in y.iter_mut().enumerate() {
        // Halves of 128 elements; each byte of high bits serves the four quarters of a half.
        let (n, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        let nibble = low[64 * n + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15;
        let top = high[32 * n + l] >> (2 * quarter) & 3;
        let q = f32::from(nibble | top << 4) - 32.0;
        *v = d * f32::from(scales[i / 16].cast_signed()) * q;
    }
}

/// Decodes blocks of `ggml_type` into `out`. False when the type is not one of [`SUPPORTED`] or the lengths
/// do not belong together; `out` is then unspecified.
#[must_use]
pub fn dequantize(ggml_type: GgmlType, data: &[u8], out: &mut [f32]) -> bool {
    let fits = ggml_type.block().is_some_and(|(elements, bytes)| {
        out.len().is_multiple_of(elements) && (out.len() / elements).checked_mul(bytes) == Some(data.len())
    });
    if !fits {
        return false;
    }
    match ggml_type {
        GgmlType::F32 => blocks::<4, 1>(data, out, |b, y| y[0] = f32::from_le_bytes(*b)),
        GgmlType::F16 => blocks::<2, 1>(data, out, |b, y| y[0] = f16::from_le_bytes(*b).to_f32()),
        GgmlType::BF16 => blocks::<2, 1>(data, out, |b, y| y[0] = bf16::from_le_bytes(*b).to_f32()),
        GgmlType::Q4_0 => blocks(data, out, q4_0),
        GgmlType::Q4_1 => blocks(data, out, q4_1),
        GgmlType::Q5_0 => blocks(data, out, q5_0),
        GgmlType::Q5_1 => blocks(data, out, q5_1),
        GgmlType::Q8_0 => blocks(data, out, q8_0),
        GgmlType::Q4_K => blocks(data, out, q4_k),
        GgmlType::Q5_K => blocks(data, out, q5_k),
        GgmlType::Q6_K => blocks(data, out, q6_k),
        _ => return false,
    }
    true
}
