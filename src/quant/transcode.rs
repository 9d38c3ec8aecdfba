//! Repacks weights that another format stores on uniform grids, without decoding and requantizing
//! them.

use super::format::{Bits, Format, QuantError, Scales, affine, encode};
use super::method::{Method, Scratch, constant};
use super::nested::{self, Nested};
use super::packed::{Loss, Packed, above};
use crate::parallel;
use crate::tensor::PANEL;
use half::f16;
use std::collections::BTreeMap;

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
    /// The grid of each group along K; empty if scales are nested.
    pub grids: Vec<Grid>,
    /// The nested scales of each block.
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

    /// The number of groups whose grids are known.
    fn groups(&self, format: Format) -> usize {
        match format.scales {
            Scales::Pairs => self.grids.len(),
            Scales::Nested(nested) => self.blocks.len() * nested.groups(),
        }
    }

    /// The grid of group `g`.
    fn grid(&self, format: Format, g: usize) -> Grid {
        match format.scales {
            Scales::Pairs => self.grids[g],
            Scales::Nested(nested) => self.blocks[g / nested.groups()].grid(nested, g % nested.groups()),
        }
    }

    /// Appends the weights to `out`.
    pub fn weights(&self, format: Format, out: &mut Vec<f32>) {
        let groups = 0..self.groups(format);
        for (codes, g) in self.codes.chunks(format.group.max(1)).zip(groups) {
            let grid = self.grid(format, g);
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
    /// Packs the matrix and returns the error. It is 0 for nested scales, where weights are counted
    /// and not squared. Otherwise it comes only from rounding scales and biases to f16, and is 0
    /// for grids that [`affine`] calls exact. Only groups whose grid f16 cannot hold are quantized
    /// again, with the default method. No scale of a pair is negative.
    ///
    /// Errors: sizes or groups that do not fit the layout, scales or offsets that are not finite,
    /// columns of the wrong length.
    pub fn pack(&self) -> Result<(Packed, Loss), QuantError> {
        let mut out = Packed::empty(self.format, self.k, self.n)?;
        let mut first = 0;
        let loss = self.panels(|panel| {
            out.place(panel, first);
            first += panel.n;
        })?;
        Ok((out, loss))
    }

    /// Like [`Grids::pack`], but passes panels of [`PANEL`] columns to `take`, in order. The last
    /// panel may have fewer. Other threads pack the following panels meanwhile.
    pub fn panels(&self, mut take: impl FnMut(&Packed)) -> Result<Loss, QuantError> {
        /// Panels that a core processes at a time.
        const AT_ONCE: usize = 4;
        Packed::check(self.format, self.k, self.n)?;
        let parts = self.n.div_ceil(AT_ONCE * PANEL);
        let part = |room: &mut ColumnBuffers, part: usize| {
            let columns = part * AT_ONCE * PANEL..self.n.min((part + 1) * AT_ONCE * PANEL);
            let panels = columns.clone().step_by(PANEL);
            let panels = panels.map(|first| self.panel(first, PANEL.min(columns.end - first), room));
            panels.collect::<Result<Vec<_>, _>>()
        };
        let (mut loss, mut next, mut early) = (Loss::default(), 0, BTreeMap::new());
        parallel::for_each(
            parallel::cores(),
            parts,
            ColumnBuffers::default,
            part,
            |at, part| {
                early.insert(at, part);
                while let Some(part) = early.remove(&next) {
                    next += 1;
                    for (panel, its_loss) in &part {
                        take(panel);
                        loss.add(its_loss);
                    }
                }
            },
        )?;
        Ok(loss)
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
            let (codes, found) = (&room.source.codes, room.source.groups(self.format));
            if codes.len() != self.k || found != groups {
                return Err(QuantError::Codes {
                    group: groups,
                    column: first + j,
                    expected: format!("{groups} grids and {} values", self.k),
                    found: format!("{found} and {}", codes.len()),
                });
            }
            if let Some(code) = above(bits, codes) {
                return Err(QuantError::Codes {
                    group: 0,
                    column: first + j,
                    expected: format!("values up to {}", bits.top()),
                    found: code.to_string(),
                });
            }
            match scales {
                Scales::Pairs => self.set_pairs(&mut packed, j, first + j, room, &mut loss)?,
                Scales::Nested(nested) => {
                    self.set_blocks(&mut packed, nested, j, first + j, &room.source)?;
                    loss.count += self.k as u64;
                }
            }
        }
        Ok((packed, loss))
    }

    /// Sets column `j` of a panel from column `at`, with a scale and bias per group.
    fn set_pairs(
        &self,
        packed: &mut Packed,
        j: usize,
        at: usize,
        room: &mut ColumnBuffers,
        loss: &mut Loss,
    ) -> Result<(), QuantError> {
        let Format { bits, group, .. } = self.format;
        let GridColumn { grids, codes, .. } = &mut room.source;
        for (g, (codes, grid)) in codes.chunks_mut(group).zip(grids).enumerate() {
            self.check_grid(*grid, g, at)?;
            let pair = fit(bits, *grid, codes, &mut room.weights, &mut room.scratch, loss)?;
            packed.put_group(g, j, pair, codes);
        }
        Ok(())
    }

    /// Sets column `j` of a panel from column `at`, with nested scales. They are stored as they
    /// are, so weights do not change.
    fn set_blocks(
        &self,
        packed: &mut Packed,
        nested: Nested,
        j: usize,
        at: usize,
        source: &GridColumn,
    ) -> Result<(), QuantError> {
        for (b, block) in source.blocks.iter().enumerate() {
            if let Some(half) = block.beyond() {
                let grid = Grid {
                    scale: half.to_f64(),
                    offset: 0.0,
                };
                self.check_grid(grid, b * nested.groups(), at)?;
                return Err(QuantError::Grid {
                    scale: grid.scale,
                    zero: f64::from(nested.zero()),
                });
            }
            if !nested.set(&mut packed.scales, packed.n, self.k, (b, j), block) {
                return Err(QuantError::Codes {
                    group: b * nested.groups(),
                    column: at,
                    expected: format!("scales of {} bits", nested.scale_bits()),
                    found: format!("{:?} and minima {:?}", block.scales, block.minima),
                });
            }
        }
        let codes = source.codes.chunks(nested::BLOCK).enumerate();
        codes.for_each(|(b, codes)| packed.set_codes(b * nested::BLOCK, j, codes));
        Ok(())
    }

    /// An error if the grid of group `g` in column `j` is not finite.
    fn check_grid(&self, grid: Grid, g: usize, j: usize) -> Result<(), QuantError> {
        let bad = [grid.scale, grid.offset].into_iter().find(|v| !v.is_finite());
        bad.map_or(Ok(()), |value| {
            Err(QuantError::NotFinite {
                index: g * self.format.group * self.n + j,
                value: value.to_string(),
            })
        })
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

/// Scale and bias of a group, whose values become those of this format. Adds the error to `loss`.
fn fit(
    bits: Bits,
    grid: Grid,
    codes: &mut [u8],
    weights: &mut Vec<f32>,
    scratch: &mut Scratch,
    loss: &mut Loss,
) -> Result<[f16; 2], QuantError> {
    let (mut scale, mut zero) = (grid.scale, -grid.offset / grid.scale);
    let negative = scale < 0.0;
    if negative {
        // The same levels, counted from the other end.
        (scale, zero) = (-scale, f64::from(bits.top()) - zero);
    }
    let found = affine(bits, scale, zero).ok().filter(|_| scale != 0.0);
    weights.clear();
    if found.is_none_or(|found| !found.exact) {
        weights.extend(codes.iter().map(|q| grid.weight(*q)));
    }
    let pair = if let Some(found) = found {
        if negative {
            codes.iter_mut().for_each(|q| *q = bits.top().saturating_sub(*q));
        }
        if found.exact {
            loss.note_exact(scale, zero, codes);
        }
        [found.scale, found.bias]
    } else if grid.scale == 0.0
        && let Some((scale, bias)) = constant(weights.first().copied().unwrap_or_default())
    {
        codes.fill(0);
        [scale, bias]
    } else {
        let (scale, bias) = Method::default().fit(bits, weights, None, scratch)?;
        for (q, w) in codes.iter_mut().zip(&*weights) {
            *q = encode(bits, scale, bias, *w);
        }
        [scale, bias]
    };
    loss.note_group(bits, pair, codes, weights);
    Ok(pair)
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
            source.weights(grids.format, &mut wanted);
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
