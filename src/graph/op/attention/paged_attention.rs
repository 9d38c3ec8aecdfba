//! [`crate::graph::op::attention`] of rows of several sequences, whose keys and values share a
//! cache in pages (own domain, made by the pass `rows`).
//!
//! Operands: q `[1, rows, heads, d]`; k and v `[1, pool, kv_heads, d]`, or 8-bit rows of
//! [`crate::graph::op::kv_append_q8`]; tiles, integers `[tiles, 4]`; pages, integers `[n]`. The
//! result is `[1, rows, heads, d]`.
//!
//! A *tile* is up to [`TILE_ROWS`] consecutive rows of one sequence. Its four integers are: the
//! first row; the number of rows (0 for an unused tile); the index `t` in `pages` where the page
//! table of its sequence begins; and the number of keys that the first row sees (without a window).
//! Each further row sees one key more. Key j of the sequence is row `j % PAGE` of page `pages[t + j
//! / PAGE]`, where page p is the [`PAGE`] rows of the cache from `p * PAGE` on. Rows in no tile
//! have unspecified results.

use crate::graph::op::attention::{Attention, check_facts};
use crate::graph::op::case::{Case, given, input};
use crate::graph::op::kv_append_q8::encoded;
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files, operand};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::Fact;
use crate::tensor::{DType, HostTensor};

/// Rows of a page.
pub const PAGE: usize = 64;

/// On native devices, the rows of a page can be split between runs without changing results: at
/// multiples of this many positions, with at least this many rows of the page on either side.
pub const CUT: usize = 16;

/// Integers of a tile.
pub const TILE: usize = 4;

/// Maximum rows of a tile.
pub const TILE_ROWS: usize = PAGE;

#[derive(Clone, Debug, PartialEq)]
pub struct PagedAttention {
    /// Must be causal. Kernels do not read pages that lie before the windows of all rows of a tile.
    pub attention: Attention,
}

/// Copies the first `keys` keys of a sequence from its pages, in order.
fn gathered(cache: &HostTensor, pages: &[i64], keys: usize) -> OpResult<HostTensor> {
    let data = cache.bytes()?;
    let &[_, pool, heads, dim] = cache.shape() else {
        return Err(OpError::expected("rank of a cache", 4, cache.shape().len()));
    };
    let row = data.len().checked_div(pool).unwrap_or(0);
    let mut out = Vec::with_capacity(row * keys.min(pool));
    for key in 0..keys {
        let page = pages.get(key / PAGE).and_then(|p| usize::try_from(*p).ok());
        let at = page.and_then(|p| p.checked_mul(PAGE)?.checked_add(key % PAGE)?.checked_mul(row));
        let from = at.and_then(|at| data.get(at..at.checked_add(row)?));
        let wrong = || OpError::expected("the page of a key", format!("one of a cache of {pool} rows"), key);
        out.extend_from_slice(from.ok_or_else(wrong)?);
    }
    Ok(HostTensor::from_bytes(
        cache.dtype(),
        &[1, keys, heads, dim],
        &out,
    )?)
}

impl Op for PagedAttention {
    fn name(&self) -> &str {
        "PagedAttention"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let q = cx.fact(0)?;
        check_facts(q, cx.fact(1)?, cx.fact(2)?, None)?;
        let (tiles, pages) = (cx.fact(3)?, cx.fact(4)?);
        let fits =
            matches!(tiles.shape.0.as_slice(), [_, n] if n.is(num::signed(TILE))) && pages.shape.rank() == 1;
        if !fits || !tiles.dtype.is_int() || !pages.dtype.is_int() {
            return Err(OpError::mismatch(
                "tiles [n, 4] and pages [n], integers",
                tiles,
                pages,
            ));
        }
        Ok(vec![q.clone()])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (q, k, v) = (operand(inputs, 0)?, operand(inputs, 1)?, operand(inputs, 2)?);
        let (tiles, pages) = (operand(inputs, 3)?.to_i64()?, operand(inputs, 4)?.to_i64()?);
        let &[_, rows, heads, dim] = q.shape() else {
            return Err(OpError::expected("rank of q", 4, q.shape().len()));
        };
        let queries = q.to_f32()?;
        let mut y = vec![0f32; queries.len()];
        for tile in tiles.chunks_exact(TILE) {
            let mut numbers = [0usize; TILE];
            for (to, from) in numbers.iter_mut().zip(tile) {
                *to = num::exact(*from, "a number of a tile")?;
            }
            let [first, count, table, seen] = numbers;
            if count == 0 {
                continue;
            }
            let end = first.checked_add(count).filter(|end| *end <= rows);
            let end =
                end.ok_or_else(|| OpError::expected("rows of a tile", format!("up to {rows}"), first))?;
            let keys = seen.saturating_add(count - 1);
            let pages = num::part(&pages, table..)?;
            let own = first * heads * dim..end * heads * dim;
            let part = num::part(&queries, own.clone())?;
            let part = HostTensor::from_floats(q.dtype(), &[1, count, heads, dim], part)?;
            let (k, v) = (gathered(k, pages, keys)?, gathered(v, pages, keys)?);
            let results = self.attention.eval(&[Some(&part), Some(&k), Some(&v)])?;
            let result = results
                .first()
                .ok_or_else(|| OpError::expected("results", 1, 0))?;
            if let Some(y) = y.get_mut(own) {
                y.copy_from_slice(&result.to_f32()?);
            }
        }
        Ok(vec![HostTensor::from_floats(q.dtype(), q.shape(), &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        self.attention.emit_paged(cx)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        // How many keys rows see is known only when they run.
        sizes.input_elements(0).saturating_mul(4)
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        match input {
            1 | 2 => 0,
            _ => sizes.input_elements(input),
        }
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[],
    cases,
};

/// Rows of sequences: for each the number of cached keys and of new rows.
fn case(sequences: &[(usize, usize)], heads: [usize; 2], dim: usize, q8: bool) -> OpResult<Case> {
    tiled(sequences, heads, dim, q8, 16)
}

/// With up to `most` rows of a tile.
fn tiled(
    sequences: &[(usize, usize)],
    heads: [usize; 2],
    dim: usize,
    q8: bool,
    most: usize,
) -> OpResult<Case> {
    let [heads, kv_heads] = heads;
    let needed = |&(past, new): &(usize, usize)| (past + new).div_ceil(PAGE);
    let all: usize = sequences.iter().map(needed).sum();
    // Pages in no order, with one that is free.
    let page = |i: usize| num::signed((i * 3 + 1) % (all + 1));
    let (mut tiles, mut pages, mut rows) = (Vec::new(), Vec::new(), 0);
    let coprime = !(all + 1).is_multiple_of(3);
    for sequence @ &(past, new) in sequences {
        let table = pages.len();
        let own = (0..needed(sequence)).map(|i| match coprime {
            true => page(table + i),
            false => num::signed(all - table - i),
        });
        pages.extend(own);
        let mut done = 0;
        while done < new {
            let count = (new - done).min(most);
            tiles.extend([rows, count, table, past + done + 1].map(num::signed));
            (rows, done) = (rows + count, done + count);
        }
    }
    tiles.extend([0; TILE]);
    let ints = |shape: &[usize], data: &[i64]| HostTensor::from_ints(DType::I32, shape, data).map(given);
    let pool = [1, (all + 1) * PAGE, kv_heads, dim];
    let mut cache = input(&pool);
    if q8 {
        cache = given(encoded(&cache.make(7)?)?);
    }
    let attention = Attention {
        causal: true,
        ..Attention::scaled(0.25)
    };
    let inputs = vec![
        input(&[1, rows, heads, dim]).range(-2.0, 2.0),
        cache.clone(),
        cache,
        ints(&[tiles.len() / TILE, TILE], &tiles)?,
        ints(&[pages.len()], &pages)?,
    ];
    Ok(Case::new(PagedAttention { attention }, inputs))
}

fn cases() -> Vec<Case> {
    let with = |case: OpResult<Case>, softcap, window| {
        let attention = Attention {
            scale: 0.5,
            softcap,
            causal: true,
            window,
        };
        Ok(Case::new(PagedAttention { attention }, case?.inputs))
    };
    let capped = |case| with(case, 2.0, None);
    let windowed = |window, case| with(case, 0.0, Some(window));
    let all: [OpResult<Case>; 22] = [
        case(&[(0, 1)], [4, 2], 16, false),
        case(&[(70, 1), (0, 1), (200, 1)], [9, 3], 64, false),
        case(&[(0, 30), (64, 1), (5, 3)], [9, 3], 64, false),
        case(&[(63, 5), (128, 17), (0, 64)], [4, 1], 128, false),
        case(&[(10, 40), (300, 1)], [2, 2], 10, false),
        case(&[(3, 1), (90, 2)], [8, 1], 256, false),
        case(&[(70, 1), (0, 20)], [4, 2], 32, true),
        case(&[(130, 1), (64, 1), (1, 1)], [9, 3], 64, true),
        capped(case(&[(100, 9), (20, 1)], [4, 2], 12, false)),
        tiled(&[(0, 100), (70, 1), (127, 1), (64, 64)], [9, 3], 64, false, 64),
        tiled(&[(128, 33), (3, 1), (0, 65)], [4, 1], 128, false, 64),
        tiled(&[(64, 40), (90, 2)], [4, 2], 256, false, 64),
        capped(tiled(&[(0, 64), (190, 20)], [4, 2], 64, true, 64)),
        windowed(1, case(&[(0, 3), (128, 1)], [4, 2], 16, false)),
        windowed(5, case(&[(70, 1), (0, 20), (127, 3)], [4, 2], 64, false)),
        windowed(64, case(&[(63, 5), (128, 17), (0, 64)], [4, 1], 128, false)),
        windowed(100, case(&[(300, 1), (163, 1), (164, 1)], [9, 3], 64, false)),
        windowed(130, case(&[(257, 16), (10, 1)], [2, 2], 10, false)),
        windowed(1000, case(&[(70, 1), (10, 40)], [8, 1], 256, false)),
        windowed(20, tiled(&[(192, 64), (64, 40), (90, 2)], [9, 3], 64, false, 64)),
        windowed(20, tiled(&[(130, 1), (64, 60)], [4, 2], 32, true, 64)),
        windowed(90, case(&[(200, 16), (89, 3), (1, 1)], [9, 3], 64, true)),
    ];
    all.into_iter().flatten().collect()
}
