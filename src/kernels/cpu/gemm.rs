//! Matrix multiplication in registers: tiles of rows by panels of 16 columns.
//!
//! The right operand comes in panels of [`PANEL`] columns, either packed when the model was loaded
//! or in scratch that a [`Right`] fills. The left operand is read in place. Every result is one
//! chain of multiply-adds in ascending order of k, whatever the sizes are.

use crate::backend::cpu::args::{Store, UNBOUNDED};
use crate::backend::cpu::simd::{self, Simd};
pub use crate::tensor::PANEL;
use half::f16;
use std::ops::Range;

/// Rows of a tile of a packed left operand.
pub const TILE: usize = 6;
/// Columns of a block, whose sums stay in cache. A multiple of [`PANEL`].
pub const COLUMNS: usize = 128;
/// Target number of terms in a k-block, so that its part of a panel stays in the L1 cache.
const TERMS: usize = 320;

/// Number of terms in a k-block for sums of `k` terms; a multiple of `unit`.
pub fn k_step(k: usize, unit: usize) -> usize {
    let (k, unit) = (k.max(1), unit.max(1));
    let units = k.div_ceil(unit);
    let blocks = k.div_ceil(TERMS).min(units);
    units.div_ceil(blocks) * unit
}

/// The left operand.
pub trait Left: Copy {
    /// Distance between the terms of a row, in elements.
    const STEP: usize;
    /// True if tiles start at multiples of [`TILE`].
    const TILED: bool;
    /// Rows of a tile that are addressed from the first of them, so that few addresses change from
    /// term to term.
    const GROUP: usize;
    /// The distance of row `i` of a group from the first one, in elements.
    fn offset(self, i: usize) -> usize;
    /// Term `k` of row `row`.
    /// # Safety
    /// The term is inside the operand.
    unsafe fn at(self, row: usize, k: usize) -> *const f32;
}

/// Rows of a matrix.
#[derive(Clone, Copy)]
pub struct Rows {
    pub at: *const f32,
    /// Distance between rows.
    pub stride: usize,
}

impl Left for Rows {
    const STEP: usize = 1;
    const TILED: bool = false;
    // Processors address one, two, but not three times a register.
    const GROUP: usize = 3;
    #[inline(always)]
    fn offset(self, i: usize) -> usize {
        i * self.stride
    }
    #[inline(always)]
    unsafe fn at(self, row: usize, k: usize) -> *const f32 {
        unsafe { self.at.add(row * self.stride + k) }
    }
}

/// Tiles of [`TILE`] rows whose elements are adjacent, as `Pack::Tiles` makes them.
#[derive(Clone, Copy)]
pub struct Tiles {
    pub at: *const f32,
    /// Number of terms in a row.
    pub depth: usize,
}

impl Left for Tiles {
    const STEP: usize = TILE;
    const TILED: bool = true;
    const GROUP: usize = TILE;
    #[inline(always)]
    fn offset(self, i: usize) -> usize {
        i
    }
    #[inline(always)]
    unsafe fn at(self, row: usize, k: usize) -> *const f32 {
        unsafe { self.at.add((row / TILE * self.depth + k) * TILE + row % TILE) }
    }
}

/// An element of a right operand.
pub trait Element: Copy {
    /// Reads a vector.
    /// # Safety
    /// As for [`Simd`].
    unsafe fn load<S: Simd>(at: *const Self) -> S::F;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(at: *const Self) -> S::F {
        unsafe { S::load(at) }
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(at: *const Self) -> S::F {
        unsafe { S::load_f16(at) }
    }
}

/// Panels of a right operand for a k-block.
#[derive(Clone, Copy)]
pub struct Panels<E> {
    pub at: *const E,
    /// Distance between rows.
    pub row: usize,
    /// Distance between panels.
    pub panel: usize,
}

/// A right operand of up to [`COLUMNS`] columns, or of any number if its panels are in memory.
pub trait Right {
    type E: Element;
    /// The terms `k` of `panels` panels. Columns beyond the operand may hold any values.
    /// # Safety
    /// As for [`Simd`]; the terms and panels are inside the operand.
    unsafe fn panels<S: Simd>(&mut self, k: Range<usize>, panels: usize) -> Panels<Self::E>;
}

/// Panels in memory.
#[derive(Clone, Copy)]
pub struct Packed<E> {
    /// The first panel.
    pub at: *const E,
    /// Number of rows in a panel.
    pub depth: usize,
}

impl<E: Element> Right for Packed<E> {
    type E = E;
    #[inline(always)]
    unsafe fn panels<S: Simd>(&mut self, k: Range<usize>, _: usize) -> Panels<E> {
        // SAFETY: inside the operand.
        let at = unsafe { self.at.add(k.start * PANEL) };
        Panels {
            at,
            row: PANEL,
            panel: self.depth * PANEL,
        }
    }
}

/// Panels of halves in memory, converted for each k-block.
pub struct Halves<'a> {
    pub packed: Packed<f16>,
    /// Space for [`COLUMNS`] columns of a k-block.
    pub space: &'a mut [f32],
}

impl Right for Halves<'_> {
    type E = f32;
    #[inline(always)]
    unsafe fn panels<S: Simd>(&mut self, k: Range<usize>, panels: usize) -> Panels<f32> {
        let size = k.len() * PANEL;
        debug_assert!(panels * size <= self.space.len(), "space for {panels} panels");
        let to = self.space.as_mut_ptr();
        for panel in 0..panels {
            // SAFETY: the panels are inside the operand and inside the space.
            unsafe {
                let from = self.packed.at.add((panel * self.packed.depth + k.start) * PANEL);
                let mut i = 0;
                while i < size {
                    S::store(to.add(panel * size + i), S::load_f16(from.add(i)));
                    i += S::LANES;
                }
            }
        }
        Panels {
            at: to,
            row: PANEL,
            panel: size,
        }
    }
}

/// Rows of results: row `r` begins at result `first + r * stride`.
#[derive(Clone, Copy)]
pub struct Results<'a> {
    pub store: &'a Store<'a>,
    pub first: usize,
    pub stride: usize,
}

/// Rows of a matmul.
#[derive(Clone, Copy)]
pub struct Product<'a, L> {
    pub left: L,
    pub rows: usize,
    pub k: usize,
    /// Terms of a k-block.
    pub step: usize,
    /// One element per row, added to all results of the row; may be null.
    pub bias: *const f32,
    pub y: Results<'a>,
}

/// Scratch elements that [`Product::columns`] needs.
pub const fn sums(rows: usize, columns: usize) -> usize {
    rows * columns.next_multiple_of(PANEL)
}

/// A tile of sums.
struct SumTile<L, E> {
    left: L,
    row: usize,
    k: Range<usize>,
    right: Panels<E>,
    bias: *const f32,
    /// Bounds of the sums, with the last terms.
    clamp: Option<[f32; 2]>,
    at: *mut f32,
    stride: usize,
}

impl<L: Left, E: Element> SumTile<L, E> {
    /// Adds the terms `k` to `R` rows of `V` vectors; if `k` starts at 0, sums start at the bias.
    /// # Safety
    /// As for [`Simd`]; the tile is inside the operands and inside the sums.
    #[inline(always)]
    unsafe fn add<S: Simd, const R: usize, const V: usize>(&self) {
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            let mut groups = [self.left.at(self.row, self.k.start); R];
            for (g, group) in groups.iter_mut().enumerate().take(R.div_ceil(L::GROUP)) {
                *group = self.left.at(self.row + g * L::GROUP, self.k.start);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    if self.k.start > 0 {
                        *sum = S::load(self.at.add(r * self.stride + v * S::LANES));
                    } else if !self.bias.is_null() {
                        *sum = S::splat(*self.bias.add(self.row + r));
                    }
                }
            }
            let mut from = self.right.at;
            for _ in 0..self.k.len() {
                let mut w = [S::splat(0.0); V];
                for (v, w) in w.iter_mut().enumerate() {
                    let column = v * S::LANES;
                    *w = E::load::<S>(from.add(column / PANEL * self.right.panel + column % PANEL));
                }
                for r in 0..R {
                    let x = S::splat(*groups[r / L::GROUP].add(self.left.offset(r % L::GROUP)));
                    for v in 0..V {
                        sums[r][v] = S::fma(x, w[v], sums[r][v]);
                    }
                }
                for group in groups.iter_mut().take(R.div_ceil(L::GROUP)) {
                    *group = group.wrapping_add(L::STEP);
                }
                from = from.add(self.right.row);
            }
            if let Some(bounds) = self.clamp {
                // `flatten` would keep the sums in memory.
                for row in &mut sums {
                    for sum in row {
                        *sum = simd::clamp::<S>(*sum, bounds);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    S::store(self.at.add(r * self.stride + v * S::LANES), *sum);
                }
            }
        }
    }

    /// As [`add`](Self::add) for `rows` rows of `panels` panels, which [`together`] allows.
    /// # Safety
    /// As for [`add`](Self::add).
    #[inline(always)]
    unsafe fn add_rows<S: Simd>(&self, rows: usize, panels: usize) {
        macro_rules! by_rows {
            ($vectors:literal: $($rows:literal)*) => {
                match rows {
                    $($rows => unsafe { self.add::<S, $rows, $vectors>() },)*
                    _ => {}
                }
            };
        }
        match (S::LANES, panels) {
            (16, 1) => by_rows!(1: 1 2 3 4 5 6 7 8 9 10 11 12),
            (16, 2) => by_rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12),
            (16, 4) => by_rows!(4: 2 3),
            (16, _) => by_rows!(8: 1),
            (8, 1) => by_rows!(2: 1 2 3 4 5 6),
            (8, 2) => by_rows!(4: 2 3),
            (8, _) => by_rows!(8: 1),
            (_, 1) => by_rows!(4: 1 2 3 4 5 6),
            (_, 2) => by_rows!(8: 2 3),
            (_, _) => by_rows!(16: 1),
        }
    }
}

/// Rows of a tile.
const fn tile_rows<S: Simd>() -> usize {
    if S::LANES == 16 { 2 * TILE } else { TILE }
}

/// Number of panels that a tile of `rows` rows takes together when `left` panels remain: enough
/// sums at once to hide the latency of multiply-adds.
const fn together<S: Simd>(rows: usize, left: usize) -> usize {
    let double = if S::LANES == 16 { 2 } else { 1 };
    let most = match rows {
        1 => 4 * double,
        2 | 3 => 2 * double,
        _ => double,
    };
    // Tiles of few rows have forms only for `most` panels and for one.
    if left >= most { most } else { 1 }
}

impl<L: Left> Product<'_, L> {
    /// Computes `count` columns from `column` on, of all rows. `sums` has [`sums`]`(rows, count)`
    /// elements.
    /// # Safety
    /// As for [`Simd`]; the operands have these rows and columns, and the caller owns the results.
    #[inline(always)]
    pub unsafe fn columns<S: Simd, R: Right>(
        &self,
        column: usize,
        count: usize,
        right: &mut R,
        sums: &mut [f32],
    ) {
        let panels = count.div_ceil(PANEL);
        let stride = panels * PANEL;
        debug_assert!(sums.len() >= self.rows * stride, "{} sums", sums.len());
        let bounds = self.y.store.clamp();
        let first = self.y.first + column;
        let (y, scratch) = (self.y.store.y.as_ptr::<f32>(), sums.as_mut_ptr());
        // Panels whose sums are the results themselves.
        let mut in_place = 0;
        let mut k = 0;
        while k < self.k {
            let terms = k..(k + self.step.max(1)).min(self.k);
            let right = unsafe { right.panels::<S>(terms.clone(), panels) };
            let mut panel = 0;
            while panel < panels {
                let width = together::<S>(self.rows, panels - panel);
                // SAFETY: a whole panel of results, or of sums.
                let (at, stride) = unsafe {
                    if bounds.is_some() && (panel + width) * PANEL <= count {
                        in_place = panel + width;
                        (y.add(first + panel * PANEL), self.y.stride)
                    } else {
                        (scratch.add(panel * PANEL), stride)
                    }
                };
                // SAFETY: inside the operand.
                let at_panel = unsafe { right.at.add(panel * right.panel) };
                unsafe {
                    let right = Panels {
                        at: at_panel,
                        ..right
                    };
                    let clamp = bounds.filter(|b| terms.end == self.k && *b != UNBOUNDED);
                    self.tiles::<S, R::E>(terms.clone(), right, width, clamp, at, stride);
                }
                panel += width;
            }
            k = terms.end;
        }
        if self.k == 0 {
            self.constant(&mut sums[..self.rows * stride], stride);
        }
        let done = in_place * PANEL;
        for (r, sums) in sums.chunks_exact_mut(stride.max(1)).take(self.rows).enumerate() {
            if let Some(sums) = sums.get_mut(done..count).filter(|s| !s.is_empty()) {
                let at = first + r * self.y.stride + done;
                // SAFETY: owned by the caller.
                unsafe {
                    match bounds.filter(|_| self.k > 0) {
                        Some(_) => self
                            .y
                            .store
                            .y
                            .slice_mut(at..at + sums.len())
                            .copy_from_slice(sums),
                        None => self.y.store.put(at, sums, None),
                    }
                }
            }
        }
    }

    /// Sets the sums of no terms: the bias or 0.
    fn constant(&self, sums: &mut [f32], stride: usize) {
        for (r, sums) in sums.chunks_exact_mut(stride.max(1)).enumerate() {
            // SAFETY: a row of this product.
            sums.fill(unsafe { self.bias_of(r) });
        }
    }

    /// The bias of a row; 0 without one.
    /// # Safety
    /// The product has this row.
    #[inline(always)]
    pub unsafe fn bias_of(&self, row: usize) -> f32 {
        if self.bias.is_null() {
            return 0.0;
        }
        // SAFETY: there is an element for each row.
        unsafe { *self.bias.add(row) }
    }

    /// Adds the terms `k` to all rows of `width` panels.
    #[inline(always)]
    unsafe fn tiles<S: Simd, E: Element>(
        &self,
        k: Range<usize>,
        right: Panels<E>,
        width: usize,
        clamp: Option<[f32; 2]>,
        at: *mut f32,
        stride: usize,
    ) {
        let most = tile_rows::<S>();
        let tiles = self.rows.div_ceil(most);
        let mut row = 0;
        for tile in 1..=tiles {
            let end = if L::TILED {
                (tile * most).min(self.rows)
            } else {
                self.rows * tile / tiles
            };
            unsafe {
                let at = at.add(row * stride);
                let (left, k, bias) = (self.left, k.clone(), self.bias);
                SumTile {
                    left,
                    row,
                    k,
                    right,
                    bias,
                    clamp,
                    at,
                    stride,
                }
                .add_rows::<S>(end - row, width);
            }
            row = end;
        }
    }
}

/// The numbers of parts into which the rows and the columns of a matmul are cut for up to `pieces`
/// pieces.
pub fn grid(rows: usize, columns: usize, block: usize, pieces: usize) -> (usize, usize) {
    let down = rows.div_ceil(block.max(1)).clamp(1, pieces.max(1));
    let across = (pieces / down).clamp(1, columns.div_ceil(PANEL).max(1));
    (down, across)
}

/// Number of pieces for `work` multiply-adds: at most 8 per thread, and none too short.
pub fn pieces(work: usize, threads: usize) -> usize {
    const SHORTEST: usize = 400_000;
    (work / SHORTEST).clamp(1, 8 * threads.max(1))
}
