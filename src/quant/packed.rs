//! Quantized matrices in the packed layout, and quantization error.

use super::format::{Bits, QuantError, decode};
use super::method::{ColumnMethod, Scratch};
use half::f16;

/// Group sizes are multiples of this number of weights.
pub const GROUP_STEP: usize = 8;
/// Group size that requests one group per column.
pub const PER_CHANNEL: usize = usize::MAX;
/// Weights per block of rows of words.
const BLOCK: usize = 32;

/// A quantized matrix in the layout of the [module documentation](super).
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    pub bits: Bits,
    pub group: usize,
    pub k: usize,
    pub n: usize,
    /// `[K * x / 32][N]` words.
    pub codes: Vec<u32>,
    /// `[ceil(K / group)][N]` pairs of scale and bias.
    pub scales: Vec<[f16; 2]>,
}

/// A quantized column, as a [`ColumnMethod`] makes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Column {
    /// Scale and bias of each group along K.
    pub scales: Vec<[f16; 2]>,
    /// A quantized value per weight.
    pub codes: Vec<u8>,
}

/// The group size for a matrix of `k` rows if `asked` is requested: that size, or one group per
/// column for [`PER_CHANNEL`]. The last group of a column may be shorter.
pub fn group_size(asked: usize, k: usize) -> usize {
    if asked == PER_CHANNEL {
        k.next_multiple_of(GROUP_STEP)
    } else {
        asked
    }
}

/// Error of quantized weights against the original ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    pub count: u64,
    pub max: f32,
    /// Sum of absolute differences.
    pub absolute: f64,
    /// Sum of squared differences.
    pub squared: f64,
    /// Sum of squares of the original weights.
    pub weights_squared: f64,
}

impl Loss {
    /// Adds the sums of other weights.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.max = self.max.max(other.max);
        self.absolute += other.absolute;
        self.squared += other.squared;
        self.weights_squared += other.weights_squared;
    }

    /// Adds one weight and its quantized version.
    pub fn note(&mut self, given: f32, found: f32) {
        let off = f64::from(given) - f64::from(found);
        self.count += 1;
        self.max = self.max.max((given - found).abs());
        self.absolute += off.abs();
        self.squared += off * off;
        self.weights_squared += f64::from(given) * f64::from(given);
    }

    /// Mean absolute difference; 0 if there are no weights.
    pub fn mean_absolute(&self) -> f64 {
        self.mean(self.absolute)
    }

    /// Mean squared difference; 0 if there are no weights.
    pub fn mean_squared(&self) -> f64 {
        self.mean(self.squared)
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of weights in memory")]
    fn mean(&self, sum: f64) -> f64 {
        sum / self.count.max(1) as f64
    }

    /// Relative RMS error: norm of the differences divided by norm of the original weights; 0 if
    /// those are all 0.
    pub fn relative_rms(&self) -> f64 {
        if self.squared == 0.0 {
            0.0
        } else {
            (self.squared / self.weights_squared).sqrt()
        }
    }
}

impl Packed {
    /// A matrix of zero values, scales and biases, to be filled by column or group. This and
    /// [`Packed::set_group`] convert an existing grid, such as that of another format.
    ///
    /// An error if K is not a positive multiple of [`Bits::k_step`], N is not even and positive,
    /// `group` is not a positive multiple of [`GROUP_STEP`], or memory is short.
    pub fn empty(bits: Bits, group: usize, k: usize, n: usize) -> Result<Self, QuantError> {
        Self::check(bits, group, k, n)?;
        let too_large = || QuantError::Memory { k, n };
        Ok(Self {
            bits,
            group,
            k,
            n,
            codes: filled(bits.rows(k), n, 0).ok_or_else(too_large)?,
            scales: filled(k.div_ceil(group), n, [f16::ZERO; 2]).ok_or_else(too_large)?,
        })
    }

    /// Checks the sizes as [`Packed::empty`] does.
    pub fn check(bits: Bits, group: usize, k: usize, n: usize) -> Result<(), QuantError> {
        let step = bits.k_step();
        if !k.is_multiple_of(step) || !n.is_multiple_of(2) || k == 0 || n == 0 {
            return Err(QuantError::Size { k, n, step });
        }
        if group == 0 || !group.is_multiple_of(GROUP_STEP) {
            let step = GROUP_STEP;
            return Err(QuantError::Group { group, step });
        }
        Ok(())
    }

    /// Quantizes a `k` x `n` matrix given by `at(k, n)`.
    pub fn quantize(
        bits: Bits,
        group: usize,
        k: usize,
        n: usize,
        method: &dyn ColumnMethod,
        at: &(dyn Fn(usize, usize) -> f32 + Sync),
    ) -> Result<Self, QuantError> {
        let mut columns = vec![0.0; k * n];
        for (c, w) in columns.iter_mut().enumerate() {
            *w = at(c % k, c / k);
        }
        Ok(Self::from_columns(bits, group, k, &columns, method)?.0)
    }

    /// Quantizes a matrix of `k` rows, given column by column, and returns the error too.
    pub fn from_columns(
        bits: Bits,
        group: usize,
        k: usize,
        columns: &[f32],
        method: &dyn ColumnMethod,
    ) -> Result<(Self, Loss), QuantError> {
        let n = columns.len() / k.max(1);
        let mut out = Self::empty(bits, group, k, n)?;
        if let Some(at) = columns.iter().position(|w| !w.is_finite()) {
            return Err(QuantError::NotFinite {
                index: at % k * n + at / k,
                value: columns[at].to_string(),
            });
        }
        let (mut loss, mut given) = (Loss::default(), columns.chunks_exact(k).enumerate());
        method.columns(bits, group, k, columns, &mut Scratch::default(), &mut |made| {
            let Some((j, column)) = given.next() else {
                return Ok(());
            };
            out.set_column(j, made)?;
            for ((weights, codes), [scale, bias]) in column
                .chunks(group)
                .zip(made.codes.chunks(group))
                .zip(&made.scales)
            {
                for (w, code) in weights.iter().zip(codes) {
                    loss.note(*w, decode(bits, *scale, *bias, *code));
                }
            }
            Ok(())
        })?;
        Ok((out, loss))
    }

    /// Sets column `j`. An error unless it has a scale and bias per group and a value per weight.
    pub fn set_column(&mut self, j: usize, column: &Column) -> Result<(), QuantError> {
        let groups = self.k.div_ceil(self.group);
        if column.codes.len() != self.k || column.scales.len() != groups {
            return Err(QuantError::Codes {
                group: groups,
                column: j,
                expected: format!("{groups} scales and {} values", self.k),
                found: format!("{} and {}", column.scales.len(), column.codes.len()),
            });
        }
        for (g, (codes, [scale, bias])) in column.codes.chunks(self.group).zip(&column.scales).enumerate() {
            self.set_group(g, j, *scale, *bias, codes)?;
        }
        Ok(())
    }

    /// Sets group `g` along K of column `j`; weight i of the group becomes [`decode`] of
    /// `codes[i]`. An error if the group does not exist, the number of values is wrong, or one is
    /// above [`Bits::top`].
    pub fn set_group(
        &mut self,
        g: usize,
        j: usize,
        scale: f16,
        bias: f16,
        codes: &[u8],
    ) -> Result<(), QuantError> {
        let bad = |expected: String, found: String| QuantError::Codes {
            group: g,
            column: j,
            expected,
            found,
        };
        let first = g.saturating_mul(self.group);
        if first >= self.k || j >= self.n {
            let sizes = format!(
                "a group below {} and column below {}",
                self.k.div_ceil(self.group),
                self.n
            );
            return Err(bad(sizes, format!("group {g}, column {j}")));
        }
        let length = self.group.min(self.k - first);
        if codes.len() != length {
            return Err(bad(format!("{length} values"), codes.len().to_string()));
        }
        if let Some(code) = codes.iter().find(|c| **c > self.bits.top()) {
            return Err(bad(format!("values up to {}", self.bits.top()), code.to_string()));
        }
        self.scales[g * self.n + j] = [scale, bias];
        let (x, n) = (self.bits.count(), self.n);
        for (k, code) in (first..).zip(codes) {
            let block = k / BLOCK * x as usize;
            let mut left = x;
            for plane in self.bits.planes() {
                left -= plane.width;
                let (row, bit) = plane.place(k % BLOCK);
                let mask = (1u32 << plane.width) - 1;
                let word = &mut self.codes[(block + row) * n + j];
                *word = *word & !(mask << bit) | (u32::from(*code) >> left & mask) << bit;
            }
        }
        Ok(())
    }

    /// Copies a matrix of some columns, with the same format, group size and rows, to column
    /// `first` on.
    pub(super) fn place(&mut self, part: &Self, first: usize) {
        place(&mut self.codes, &part.codes, self.n, first, part.n);
        place(&mut self.scales, &part.scales, self.n, first, part.n);
    }

    /// The weight at row `i`, column `j`.
    pub fn get(&self, i: usize, j: usize) -> f32 {
        let [scale, bias] = self.scales[i / self.group * self.n + j];
        decode(
            self.bits,
            scale,
            bias,
            code_at(self.bits, self.n, &self.codes, i, j),
        )
    }
}

/// A vector of `rows * n` copies of `value`, if memory allows.
fn filled<T: Copy>(rows: usize, n: usize, value: T) -> Option<Vec<T>> {
    let count = rows.checked_mul(n)?;
    let mut out = Vec::new();
    out.try_reserve_exact(count).ok()?;
    out.resize(count, value);
    Some(out)
}

/// Copies rows of `width` to columns `first..` of rows of `n`.
pub fn place<T: Copy>(to: &mut [T], from: &[T], n: usize, first: usize, width: usize) {
    for (to, from) in to.chunks_exact_mut(n).zip(from.chunks_exact(width)) {
        to[first..first + width].copy_from_slice(from);
    }
}

/// The quantized value at row `i`, column `j` of packed `codes`.
pub fn code_at(bits: Bits, n: usize, codes: &[u32], i: usize, j: usize) -> u8 {
    let block = i / BLOCK * bits.count() as usize;
    let code = bits.planes().iter().fold(0, |code, plane| {
        let (row, bit) = plane.place(i % BLOCK);
        let part = codes[(block + row) * n + j] >> bit & ((1 << plane.width) - 1);
        code << plane.width | part
    });
    let [code, ..] = code.to_le_bytes();
    code
}

/// Dequantizes rows `first .. first + count` of packed `codes` and `scales` into `out`, row-major
/// `count x n`.
#[expect(clippy::too_many_arguments, reason = "the parts of a matrix in a tensor")]
pub fn decode_rows(
    bits: Bits,
    group: usize,
    n: usize,
    codes: &[u32],
    scales: &[[f16; 2]],
    first: usize,
    count: usize,
    out: &mut [f32],
) {
    let x = bits.count();
    let (mut table, mut row_codes) = (vec![(0f32, 0f32); n], vec![0u32; n]);
    let mut group_now = usize::MAX;
    for (i, row) in (first..first + count).zip(out.chunks_exact_mut(n)) {
        if i / group != group_now {
            group_now = i / group;
            for (t, [s, b]) in table.iter_mut().zip(&scales[group_now * n..]) {
                *t = (s.to_f32(), b.to_f32());
            }
        }
        row_codes.fill(0);
        for plane in bits.planes() {
            let (at, bit) = plane.place(i % BLOCK);
            let at = i / BLOCK * x as usize + at;
            let mask = (1u32 << plane.width) - 1;
            for (code, word) in row_codes.iter_mut().zip(&codes[at * n..(at + 1) * n]) {
                *code = *code << plane.width | word >> bit & mask;
            }
        }
        for ((y, code), (s, b)) in row.iter_mut().zip(&row_codes).zip(&table) {
            let w1 = f32::from_bits(0x4000_0000 | code << (23 - x));
            *y = s * (w1 - b);
        }
    }
}
