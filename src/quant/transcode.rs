//! Repacks weights that another format stores on uniform grids, without decoding and requantizing
//! them.

use super::format::{Bits, Format, QuantError, Scales, affine, encode};
use super::method::{Method, Scratch, constant};
use super::nested::{self, Nested};
use super::packed::{Loss, Packed};
use crate::parallel;
use half::f16;

/// A uniform grid: value q decodes to `scale * q + offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grid {
    /// Distance between levels, of either sign.
    pub scale: f64,
    /// The weight of value 0.
    pub offset: f64,
}

impl Grid {
    /// The grid whose level `zero`, not necessarily an integer, is the weight 0.
    pub fn around(scale: f64, zero: f64) -> Self {
        Self {
            scale,
            offset: -scale * zero,
        }
    }

    /// The weight of a value, rounded once.
    #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
    pub fn weight(self, code: u8) -> f32 {
        (self.scale * f64::from(code) + self.offset) as f32
    }
}

/// A column of a matrix as another format stores it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GridColumn {
    /// The grid of each group along K.
    pub grids: Vec<Grid>,
    /// The nested scales that the grids are made of, if they are.
    pub blocks: Vec<nested::Block>,
    /// A quantized value per weight.
    pub codes: Vec<u8>,
}

impl GridColumn {
    pub fn clear(&mut self) {
        self.grids.clear();
        self.blocks.clear();
        self.codes.clear();
    }

    /// Appends the weights, in groups of `group`, to `out`.
    pub fn weights(&self, group: usize, out: &mut Vec<f32>) {
        for (codes, grid) in self.codes.chunks(group.max(1)).zip(&self.grids) {
            out.extend(codes.iter().map(|q| grid.weight(*q)));
        }
    }
}

/// Appends column j of a matrix to an empty one.
pub type ReadColumn<'a> = Box<dyn Fn(usize, &mut GridColumn) + Sync + 'a>;

/// A matrix whose columns are stored as [`GridColumn`]s.
pub struct Grids<'a> {
    /// Format with the same number of levels; with nested scales, columns have them too.
    pub format: Format,
    pub k: usize,
    pub n: usize,
    /// Reads a column: K values up to [`Bits::top`].
    pub column: ReadColumn<'a>,
}

impl std::fmt::Debug for Grids<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { format, k, n, .. } = self;
        write!(f, "{k} x {n} of {format}")
    }
}

impl Grids<'_> {
    /// Packs the matrix and returns the error. It is 0 for nested scales. Otherwise it comes only
    /// from rounding scales and biases to f16, and is 0 for grids that [`affine`] calls exact. Only
    /// groups whose grid f16 cannot hold are quantized again, with the default method. No scale of
    /// a pair is negative.
    ///
    /// Errors: sizes or groups that do not fit the layout, scales or offsets that are not finite,
    /// columns of the wrong length.
    pub fn pack(&self) -> Result<(Packed, Loss), QuantError> {
        /// Columns that a core processes at a time.
        const PANEL: usize = 32;
        let count = self.n.div_ceil(PANEL);
        let mut out = Packed::empty(self.format, self.k, self.n)?;
        let mut losses = vec![Loss::default(); count];
        let panel = |room: &mut ColumnBuffers, panel: usize| {
            let first = panel * PANEL;
            self.panel(first, PANEL.min(self.n - first), room)
        };
        parallel::for_each(
            parallel::cores(),
            count,
            ColumnBuffers::default,
            panel,
            |panel, (packed, loss)| {
                out.place(&packed, panel * PANEL);
                losses[panel] = loss;
            },
        )?;
        let mut loss = Loss::default();
        losses.iter().for_each(|l| loss.add(l));
        Ok((out, loss))
    }

    /// Columns `first .. first + width` as a separate matrix.
    fn panel(
        &self,
        first: usize,
        width: usize,
        room: &mut ColumnBuffers,
    ) -> Result<(Packed, Loss), QuantError> {
        let mut packed = Packed::empty(self.format, self.k, width)?;
        let mut loss = Loss::default();
        let Format { bits, group, scales } = self.format;
        let groups = self.k.div_ceil(group);
        for j in 0..width {
            room.source.clear();
            (self.column)(first + j, &mut room.source);
            let GridColumn { grids, blocks, codes } = &mut room.source;
            if codes.len() != self.k || grids.len() != groups {
                return Err(QuantError::Codes {
                    group: groups,
                    column: first + j,
                    expected: format!("{groups} grids and {} values", self.k),
                    found: format!("{} and {}", grids.len(), codes.len()),
                });
            }
            if let Some(code) = codes.iter().find(|c| **c > bits.top()) {
                return Err(QuantError::Codes {
                    group: 0,
                    column: first + j,
                    expected: format!("values up to {}", bits.top()),
                    found: code.to_string(),
                });
            }
            if let Scales::Nested(nested) = scales {
                self.set_blocks(&mut packed, nested, j, blocks)?;
            }
            for (g, (codes, grid)) in codes.chunks_mut(group).zip(grids).enumerate() {
                let bad = [grid.scale, grid.offset].into_iter().find(|v| !v.is_finite());
                if let Some(value) = bad {
                    return Err(QuantError::NotFinite {
                        index: g * group * self.n + first + j,
                        value: value.to_string(),
                    });
                }
                room.weights.clear();
                room.weights.extend(codes.iter().map(|q| grid.weight(*q)));
                match scales {
                    Scales::Pairs => {
                        let [scale, bias] = fit(bits, *grid, codes, &room.weights, &mut room.scratch)?;
                        packed.set_group(g, j, scale, bias, codes)?;
                    }
                    Scales::Nested(_) => packed.set_codes(g, j, codes)?,
                }
                packed.view().note(g, j, codes, &room.weights, &mut loss);
            }
        }
        Ok((packed, loss))
    }

    /// Sets the nested scales of column `j`.
    fn set_blocks(
        &self,
        packed: &mut Packed,
        nested: Nested,
        j: usize,
        blocks: &[nested::Block],
    ) -> Result<(), QuantError> {
        let bad = |expected: String, found: String| QuantError::Codes {
            group: 0,
            column: j,
            expected,
            found,
        };
        let count = self.k / nested::BLOCK;
        if blocks.len() != count {
            return Err(bad(format!("{count} blocks of scales"), blocks.len().to_string()));
        }
        for (b, block) in blocks.iter().enumerate() {
            if !nested.set(&mut packed.scales, packed.n, self.k, (b, j), block) {
                return Err(bad(
                    format!("integers of {} bits", nested.entry),
                    format!("{block:?}"),
                ));
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct ColumnBuffers {
    source: GridColumn,
    weights: Vec<f32>,
    scratch: Scratch,
}

/// The order that sorts `k` inputs by group, where `of(i)` is the group of input i; `None` if they
/// are sorted already. Groups have `group` inputs; the last may be shorter. The error is the first
/// group of another size, with its size and the expected one.
pub fn by_group(
    k: usize,
    group: usize,
    of: impl Fn(usize) -> usize,
) -> Result<Option<Vec<usize>>, (usize, usize, usize)> {
    let group = group.max(1);
    if (0..k).all(|i| of(i) == i / group) {
        return Ok(None);
    }
    let mut order: Vec<usize> = (0..k).collect();
    order.sort_by_key(|i| of(*i));
    match order
        .iter()
        .enumerate()
        .find(|(place, i)| of(**i) != place / group)
    {
        None => Ok(Some(order)),
        Some((place, _)) => {
            let g = place / group;
            let found = (0..k).filter(|i| of(*i) == g).count();
            Err((g, found, group.min(k - g * group)))
        }
    }
}

/// Scale and bias of a group, whose values become those of this format.
fn fit(
    bits: Bits,
    grid: Grid,
    codes: &mut [u8],
    weights: &[f32],
    scratch: &mut Scratch,
) -> Result<[f16; 2], QuantError> {
    if grid.scale == 0.0 {
        if let Some((scale, bias)) = constant(weights.first().copied().unwrap_or_default()) {
            codes.fill(0);
            return Ok([scale, bias]);
        }
    } else {
        let (mut scale, mut zero) = (grid.scale, -grid.offset / grid.scale);
        let negative = scale < 0.0;
        if negative {
            // The same levels, counted from the other end.
            (scale, zero) = (-scale, f64::from(bits.top()) - zero);
        }
        if let Ok(found) = affine(bits, scale, zero) {
            if negative {
                codes.iter_mut().for_each(|q| *q = bits.top().saturating_sub(*q));
            }
            return Ok([found.scale, found.bias]);
        }
    }
    let (scale, bias) = Method::default().fit(bits, weights, None, scratch)?;
    for (q, w) in codes.iter_mut().zip(weights) {
        *q = encode(bits, scale, bias, *w);
    }
    Ok([scale, bias])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(bits: Bits, grids: &[Grid], group: usize, codes: &[u8]) -> Result<(Packed, Loss), QuantError> {
        let column = |_: usize, out: &mut GridColumn| {
            out.grids.extend_from_slice(grids);
            out.codes.extend_from_slice(codes);
        };
        let (k, n) = (codes.len(), 2);
        let column = Box::new(column);
        Grids {
            format: Format::new(bits, group),
            k,
            n,
            column,
        }
        .pack()
    }

    #[test]
    fn groups_that_halves_cannot_hold_are_quantized_anew() {
        let codes: Vec<u8> = (0..8).chain(8..16).collect();
        // A zero point beyond halves; all codes near one weight.
        let far = Grid {
            scale: 1e-6,
            offset: 0.7,
        };
        let (packed, loss) = one(Bits::Four, &[far], 16, &codes).unwrap();
        assert!(loss.max < 4e-4, "{loss:?}");
        assert!((packed.get(3, 1) - 0.7).abs() < 4e-4);
        let constant = Grid {
            scale: 0.0,
            offset: -0.3125,
        };
        let (packed, loss) = one(Bits::Four, &[constant], 16, &codes).unwrap();
        assert_eq!((packed.get(5, 0), loss.max), (-0.3125, 0.0));
        let error = one(
            Bits::Four,
            &[Grid {
                scale: f64::NAN,
                offset: 0.0,
            }],
            16,
            &codes,
        )
        .unwrap_err();
        assert_eq!(
            error,
            QuantError::NotFinite {
                index: 0,
                value: "NaN".to_owned()
            }
        );
        assert!(matches!(
            one(Bits::Four, &[far, far], 16, &codes),
            Err(QuantError::Codes { .. })
        ));
        assert!(matches!(
            one(Bits::Three, &[far], 32, &[9; 32]),
            Err(QuantError::Codes { .. })
        ));
    }

    #[test]
    fn inputs_by_group() {
        assert_eq!(by_group(5, 2, |i| i / 2), Ok(None));
        assert_eq!(
            by_group(5, 2, |i| [1, 0, 2, 1, 0][i]),
            Ok(Some(vec![1, 4, 0, 3, 2]))
        );
        assert_eq!(by_group(5, 2, |i| [1, 0, 2, 2, 0][i]), Err((1, 1, 2)));
        assert_eq!(by_group(2, 2, |i| [7, 0][i]), Err((0, 1, 2)));
    }

    #[test]
    fn many_columns_keep_their_places() {
        let (k, n) = (40, 202);
        let column = move |j: usize, out: &mut GridColumn| {
            out.grids
                .extend([Grid::around(0.5, (j % 16) as f64), Grid::around(-0.25, 3.0)]);
            out.codes.extend((0..k).map(|i| ((i * 5 + j * 3) % 16) as u8));
        };
        let grids = Grids {
            format: Format::new(Bits::Four, 32),
            k,
            n,
            column: Box::new(column),
        };
        let (packed, loss) = grids.pack().unwrap();
        assert_eq!((loss.max, loss.count), (0.0, (k * n) as u64));
        let (mut source, mut wanted) = (GridColumn::default(), Vec::new());
        for j in 0..n {
            source.clear();
            wanted.clear();
            (grids.column)(j, &mut source);
            source.weights(32, &mut wanted);
            let found: Vec<f32> = (0..k).map(|i| packed.get(i, j)).collect();
            assert_eq!(found, wanted, "column {j}");
        }
        assert!(packed.pairs().iter().all(|[s, _]| s.to_f32() > 0.0));
    }

    proptest! {
        #[test]
        fn half_scales_and_whole_zeros_are_exact(
            scale in 1u16..0x5FFF, negative in any::<bool>(), zero in 0u8..16, format in 0usize..6,
            codes in proptest::collection::vec(0u8..=255, 32),
        ) {
            let bits = Bits::ALL[format];
            let codes: Vec<u8> = codes.iter().map(|q| q & bits.top()).collect();
            let scale = f16::from_bits(scale).to_f64() * if negative { -1.0 } else { 1.0 };
            let grid = Grid::around(scale, f64::from(zero & bits.top()));
            let (packed, loss) = one(bits, &[grid], 32, &codes).unwrap();
            prop_assert_eq!(loss.max, 0.0);
            for (i, q) in codes.iter().enumerate() {
                prop_assert_eq!(packed.get(i, 1), grid.weight(*q));
            }
        }
    }
}
