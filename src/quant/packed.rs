//! Quantized matrices in the packed layout, and quantization error.

use super::format::{Bits, Format, QuantError, Scales, decode_with};
use super::method::{ColumnMethod, Scratch};
use crate::tensor::{DType, HostTensor, TensorError};
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
    pub format: Format,
    pub k: usize,
    pub n: usize,
    /// `[K * x / 32][N]` words.
    pub codes: Vec<u32>,
    /// Rows of N words: pairs of scale and bias, or nested scales.
    pub scales: Vec<u32>,
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
    /// Sum of squares of the original weights, except those of matrices with nested scales.
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

    /// Adds a group with this scale and bias.
    pub(super) fn note_group(&mut self, bits: Bits, pair: [f16; 2], codes: &[u8], weights: &[f32]) {
        let [scale, bias] = pair.map(f16::to_f32);
        for (w, code) in weights.iter().zip(codes) {
            self.note(*w, decode_with(bits, scale, bias, *code));
        }
    }

    /// Adds a group of weights `scale * (code - zero)` without an error; `zero` is from 0 to 256.
    #[expect(clippy::cast_possible_truncation, reason = "a small integer")]
    pub(super) fn note_exact(&mut self, scale: f64, zero: f64, codes: &[u8]) {
        let zero = zero as i16;
        for codes in codes.chunks(256) {
            let squares = codes.iter().map(|q| i32::from(i16::from(*q) - zero).pow(2));
            self.weights_squared += scale * scale * f64::from(squares.sum::<i32>());
        }
        self.count += codes.len() as u64;
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
    /// An error if K is not a positive multiple of [`Format::k_step`], N is not even and positive,
    /// the group is not a positive multiple of [`GROUP_STEP`], or memory is short.
    pub fn empty(format: Format, k: usize, n: usize) -> Result<Self, QuantError> {
        Self::check(format, k, n)?;
        let filled = |rows| filled(rows, n).ok_or(QuantError::Memory { k, n });
        Ok(Self {
            format,
            k,
            n,
            codes: filled(format.bits.rows(k))?,
            scales: filled(format.scale_rows(k))?,
        })
    }

    /// Checks the sizes as [`Packed::empty`] does.
    pub fn check(format: Format, k: usize, n: usize) -> Result<(), QuantError> {
        let (step, group) = (format.k_step(), format.group);
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
        let mut out = Self::empty(Format::new(bits, group), k, n)?;
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
            let groups = column.chunks(group).zip(made.codes.chunks(group));
            for ((weights, codes), pair) in groups.zip(&made.scales) {
                loss.note_group(bits, *pair, codes, weights);
            }
            Ok(())
        })?;
        Ok((out, loss))
    }

    /// Sets column `j`. An error unless it has a scale and bias per group and a value per weight.
    pub fn set_column(&mut self, j: usize, column: &Column) -> Result<(), QuantError> {
        let Format { group, .. } = self.format;
        let groups = self.k.div_ceil(group);
        if column.codes.len() != self.k || column.scales.len() != groups {
            return Err(QuantError::Codes {
                group: groups,
                column: j,
                expected: format!("{groups} scales and {} values", self.k),
                found: format!("{} and {}", column.scales.len(), column.codes.len()),
            });
        }
        for (g, (codes, [scale, bias])) in column.codes.chunks(group).zip(&column.scales).enumerate() {
            self.set_group(g, j, *scale, *bias, codes)?;
        }
        Ok(())
    }

    /// Sets group `g` along K of column `j`; weight i of the group becomes
    /// [`decode`](super::decode) of `codes[i]`. An error if the group does not exist, the number of
    /// values is wrong, one is above [`Bits::top`], or scales are nested.
    pub fn set_group(
        &mut self,
        g: usize,
        j: usize,
        scale: f16,
        bias: f16,
        codes: &[u8],
    ) -> Result<(), QuantError> {
        let Format { bits, group, scales } = self.format;
        let bad = |expected: String, found: String| QuantError::Codes {
            group: g,
            column: j,
            expected,
            found,
        };
        if scales != Scales::Pairs {
            return Err(bad(
                "a format with a scale and bias per group".into(),
                self.format.to_string(),
            ));
        }
        let first = g.saturating_mul(group);
        if first >= self.k || j >= self.n {
            let sizes = format!(
                "a group below {} and column below {}",
                self.k.div_ceil(group),
                self.n
            );
            return Err(bad(sizes, format!("group {g}, column {j}")));
        }
        let length = group.min(self.k - first);
        if codes.len() != length {
            return Err(bad(format!("{length} values"), codes.len().to_string()));
        }
        if let Some(code) = above(bits, codes) {
            return Err(bad(format!("values up to {}", bits.top()), code.to_string()));
        }
        self.put_group(g, j, [scale, bias], codes);
        Ok(())
    }

    /// [`Packed::set_group`] for values that fit.
    pub(super) fn put_group(&mut self, g: usize, j: usize, pair: [f16; 2], codes: &[u8]) {
        self.set_codes(g * self.format.group, j, codes);
        let [scale, bias] = pair.map(|h| u32::from(h.to_bits()));
        self.scales[g * self.n + j] = scale | bias << 16;
    }

    /// Sets values of column `j` from row `first` on, a multiple of [`GROUP_STEP`].
    pub(super) fn set_codes(&mut self, first: usize, j: usize, codes: &[u8]) {
        // With constant planes, the fields of a run are a few shifts.
        match self.format.bits {
            Bits::Two => self.set_runs(Bits::Two, first, j, codes),
            Bits::Three => self.set_runs(Bits::Three, first, j, codes),
            Bits::Four => self.set_runs(Bits::Four, first, j, codes),
            Bits::Five => self.set_runs(Bits::Five, first, j, codes),
            Bits::Six => self.set_runs(Bits::Six, first, j, codes),
            Bits::Eight => self.set_runs(Bits::Eight, first, j, codes),
        }
    }

    /// [`Packed::set_codes`] for a constant width.
    #[inline(always)]
    fn set_runs(&mut self, bits: Bits, first: usize, j: usize, codes: &[u8]) {
        let (whole, rest) = match first % BLOCK {
            0 => codes.as_chunks::<BLOCK>(),
            _ => (&[][..], codes),
        };
        let (n, height) = (self.n, bits.count() as usize);
        let mut k = first;
        for block in whole {
            let words = &mut self.codes[k / BLOCK * height * n..];
            for (run, codes) in block.as_chunks::<GROUP_STEP>().0.iter().enumerate() {
                set_run(bits, words, [n, j], run * GROUP_STEP, *codes, GROUP_STEP);
            }
            k += BLOCK;
        }
        for codes in rest.chunks(GROUP_STEP) {
            let words = &mut self.codes[k / BLOCK * height * n..];
            let mut run = [0; GROUP_STEP];
            run.iter_mut().zip(codes).for_each(|(to, code)| *to = *code);
            set_run(bits, words, [n, j], k % BLOCK, run, codes.len());
            k += GROUP_STEP;
        }
    }

    /// Copies a matrix of some columns, with the same format, group size and rows, to column
    /// `first` on.
    pub(super) fn place(&mut self, part: &Self, first: usize) {
        place(&mut self.codes, &part.codes, self.n, first, part.n);
        place(&mut self.scales, &part.scales, self.n, first, part.n);
    }

    /// The scale and the bias of each group, `[ceil(K / group)][N]`; meaningless if they are
    /// nested.
    pub fn pairs(&self) -> &[[f16; 2]] {
        bytemuck::cast_slice(&self.scales)
    }

    pub fn view(&self) -> PackedView<'_> {
        PackedView {
            format: self.format,
            k: self.k,
            n: self.n,
            codes: &self.codes,
            scales: &self.scales,
        }
    }

    /// The weight at row `i`, column `j`.
    pub fn get(&self, i: usize, j: usize) -> f32 {
        self.view().get(i, j)
    }
}

/// Sets `count` values of column `j` from row `k` on in the rows of `n` words of a block.
#[inline(always)]
fn set_run(bits: Bits, words: &mut [u32], [n, j]: [usize; 2], k: usize, run: [u8; GROUP_STEP], count: usize) {
    let run = u64::from_le_bytes(run);
    let mut left = bits.count();
    for plane in bits.planes() {
        left -= plane.width;
        let (row, bit) = plane.place(k);
        let (fields, mask) = plane.fields(run >> left);
        for (r, fields) in fields.iter().take(count.div_ceil(plane.per_word())).enumerate() {
            let word = &mut words[(row + r) * n + j];
            *word = *word & !(mask << bit) | fields << bit;
        }
    }
}

/// A value that is too large for the format, if there is one.
pub(super) fn above(bits: Bits, codes: &[u8]) -> Option<u8> {
    // All bits together first: that is a vector operation.
    let any = codes.iter().fold(0, |any, code| any | code);
    (any > bits.top()).then(|| codes.iter().copied().find(|c| *c > bits.top()))?
}

/// A vector of `rows * n` zeros, if memory allows.
fn filled(rows: usize, n: usize) -> Option<Vec<u32>> {
    let count = rows.checked_mul(n)?;
    let mut out = Vec::new();
    out.try_reserve_exact(count).ok()?;
    out.resize(count, 0);
    Some(out)
}

/// Copies rows of `width` to columns `first..` of rows of `n`.
pub fn place<T: Copy>(to: &mut [T], from: &[T], n: usize, first: usize, width: usize) {
    for (to, from) in to.chunks_exact_mut(n).zip(from.chunks_exact(width)) {
        to[first..first + width].copy_from_slice(from);
    }
}

/// The words of scales as files have them ([`Format::scale_tensor`]).
pub fn scale_words(scales: &HostTensor) -> Result<Vec<u32>, TensorError> {
    if scales.dtype() == DType::U32 {
        return Ok(scales.u32s()?.into_owned());
    }
    let halves = scales.f16s()?;
    let pairs = halves.as_chunks::<2>().0.iter();
    Ok(pairs.map(|pair| bytemuck::cast(*pair)).collect())
}

/// A quantized matrix in memory of others. The slices have the sizes of the layout.
#[derive(Clone, Copy, Debug)]
pub struct PackedView<'a> {
    pub format: Format,
    pub k: usize,
    pub n: usize,
    pub codes: &'a [u32],
    pub scales: &'a [u32],
}

/// How the values of a group are decoded.
#[derive(Clone, Copy)]
enum Decode {
    /// [`decode_with`] this scale and bias.
    Pair(f32, f32),
    /// `unit * (value - zero) + rest`.
    Nested { unit: f32, zero: f32, rest: f32 },
}

impl PackedView<'_> {
    fn decode_of(&self, g: usize, j: usize) -> Decode {
        match self.format.scales {
            Scales::Pairs => {
                let pair: [f16; 2] = bytemuck::cast(self.scales[g * self.n + j]);
                let [scale, bias] = pair.map(f16::to_f32);
                Decode::Pair(scale, bias)
            }
            Scales::Nested(nested) => {
                let [unit, rest] = nested.get(self.scales, self.n, self.k, (g, j));
                let zero = nested.zero();
                Decode::Nested { unit, zero, rest }
            }
        }
    }

    fn weight(&self, by: Decode, code: u8) -> f32 {
        match by {
            Decode::Pair(scale, bias) => decode_with(self.format.bits, scale, bias, code),
            Decode::Nested { unit, zero, rest } => unit * (f32::from(code) - zero) + rest,
        }
    }

    /// The quantized value at row `i`, column `j`.
    fn code(&self, i: usize, j: usize) -> u8 {
        let bits = self.format.bits;
        let block = i / BLOCK * bits.count() as usize;
        let code = bits.planes().iter().fold(0, |code, plane| {
            let (row, bit) = plane.place(i % BLOCK);
            let part = self.codes[(block + row) * self.n + j] >> bit & ((1 << plane.width) - 1);
            code << plane.width | part
        });
        let [code, ..] = code.to_le_bytes();
        code
    }

    /// The weight at row `i`, column `j`.
    pub fn get(&self, i: usize, j: usize) -> f32 {
        self.weight(self.decode_of(i / self.format.group, j), self.code(i, j))
    }

    /// Dequantizes column `j` into `out`, of K elements.
    pub fn decode_column(&self, j: usize, out: &mut [f32]) {
        let group = self.format.group;
        for (g, part) in out.chunks_mut(group).enumerate() {
            let by = self.decode_of(g, j);
            for (i, y) in part.iter_mut().enumerate() {
                *y = self.weight(by, self.code(g * group + i, j));
            }
        }
    }

    /// Dequantizes rows from `first` on into `out`, row-major `rows x n`.
    pub fn decode_rows(&self, first: usize, out: &mut [f32]) {
        let (n, bits) = (self.n, self.format.bits);
        let mut row_codes = vec![0u32; n];
        let mut table = Vec::with_capacity(n);
        let mut group_now = usize::MAX;
        for (i, row) in (first..).zip(out.chunks_exact_mut(n)) {
            let group = i / self.format.group;
            if group != group_now {
                group_now = group;
                table.clear();
                table.extend((0..n).map(|j| self.decode_of(group, j)));
            }
            row_codes.fill(0);
            for plane in bits.planes() {
                let (at, bit) = plane.place(i % BLOCK);
                let at = i / BLOCK * bits.count() as usize + at;
                let mask = (1u32 << plane.width) - 1;
                for (code, word) in row_codes.iter_mut().zip(&self.codes[at * n..(at + 1) * n]) {
                    *code = *code << plane.width | word >> bit & mask;
                }
            }
            for ((y, code), by) in row.iter_mut().zip(&row_codes).zip(&table) {
                let [code, ..] = code.to_le_bytes();
                *y = self.weight(*by, code);
            }
        }
    }
}
