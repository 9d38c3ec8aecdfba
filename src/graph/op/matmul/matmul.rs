//! Matrix multiplication over the last two axes with broadcast leading axes.
//!
//! ONNX `MatMul` from opset 1. A pass sets `trans_b` if the second operand is transposed only for
//! the matmul. A constant second operand of rank 2 is stored once, in the plan's float type, and
//! split by columns if it exceeds a kernel's binding limit.

use crate::backend::kernel::ROUNDS;
use crate::graph::op::case::{Case, input};
use crate::graph::op::local_tile::{Extent, LocalTile};
use crate::graph::op::parts::Parts;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, count, filled, onnx, operand,
    pointwise,
};
use crate::graph::{ValueId, rules};
use crate::kernels::matmul::{Args, KERNEL, PANELS, PanelArgs, TILED, TRANS_B};
use crate::lower::{Call, LowerCx, Operand, Pack};
use crate::num;
use crate::quota::{self, Exceeded};
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::product::gemm;
use crate::tensor::{DType, HostTensor, PANEL};

/// Rows per work-item if there are many rows.
const ROWS: i64 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatMul {
    /// The second operand is stored `[.., N, K]`.
    pub trans_b: bool,
}

impl MatMul {
    /// The matmul of operands of which one has a single axis.
    fn with_vector(&self, a: &HostTensor, b: &HostTensor) -> OpResult<Vec<HostTensor>> {
        let shape = rules::matmul(
            &Shape::fixed(a.shape()),
            &Shape::fixed(b.shape()),
            self.trans_b,
            &rules::equal,
        )?;
        let row = if let [k] = a.shape() {
            a.reshape(&[1, *k])?
        } else {
            a.clone()
        };
        let column = match b.shape() {
            [k] if self.trans_b => b.reshape(&[1, *k])?,
            [k] => b.reshape(&[*k, 1])?,
            _ => b.clone(),
        };
        let full = self.eval(&[Some(&row), Some(&column)])?;
        full.iter().map(|y| Ok(y.reshape(&shape.sizes()?)?)).collect()
    }
}

/// Calls `product` for each batch with `[rows, k]`, `[k, n]` and the slice to fill.
fn each<T>(
    [rows, n, k]: [usize; 3],
    a: &[T],
    b: &[T],
    mut y: Vec<T>,
    product: impl Fn(&[T], &[T], &mut [T]) -> Result<(), Exceeded>,
) -> OpResult<Vec<T>> {
    let size = rows.saturating_mul(n).max(1);
    for (i, y) in y.chunks_exact_mut(size).enumerate() {
        if let (Some(a), Some(b)) = (a.get(i * rows * k..), b.get(i * k * n..)) {
            product(a, b, y)?;
        }
    }
    Ok(y)
}

impl Op for MatMul {
    fn name(&self) -> &str {
        "MatMul"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (a, b) = (cx.fact(0)?, cx.fact(1)?);
        let is_wide = matches!(a.dtype, DType::I32 | DType::I64 | DType::U32 | DType::U64);
        if a.dtype != b.dtype || !(a.dtype.is_float() || is_wide) {
            let types = "element types (both f64, f32, f16, i32, i64, u32 or u64)";
            return Err(OpError::mismatch(types, a.dtype, b.dtype));
        }
        Ok(vec![Fact::new(
            a.dtype,
            rules::matmul(&a.shape, &b.shape, self.trans_b, &|what, a, b| {
                cx.same(what, a, b)
            })?,
        )])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (a, b) = (operand(inputs, 0)?, operand(inputs, 1)?);
        if let (None, _) | (_, None) = (a.shape().get(1), b.shape().get(1)) {
            return self.with_vector(a, b);
        }
        let shape = rules::matmul(
            &Shape::fixed(a.shape()),
            &Shape::fixed(b.shape()),
            self.trans_b,
            &rules::equal,
        )?;
        let shape = shape.sizes()?;
        let (batch, m, n) = match shape.as_slice() {
            [batch @ .., m, n] => (batch, *m, *n),
            _ => return Err(OpError::expected("rank", "2 or more", shape.len())),
        };
        let k = *num::at(a.shape(), a.shape().len() - 1)?;
        let with_tail = |x: &HostTensor| {
            let mut full = batch.to_vec();
            full.extend(num::part(x.shape(), x.shape().len() - 2..)?);
            // Only leading axes are broadcast, so the matmul sees equal batches.
            pointwise::broadcast_to(x, &full)
        };
        let (fa, fb) = if b.shape().len() == 2 {
            (a.clone(), b.clone())
        } else {
            (with_tail(a)?, with_tail(b)?)
        };
        // A single matrix on the right: all rows on the left form one matmul.
        let all = count(&shape)?;
        let rows = if b.shape().len() == 2 {
            all.checked_div(n).unwrap_or(0)
        } else {
            m
        };
        let sizes = [rows, n, k];
        if a.dtype() == DType::F64 {
            let y = each(
                sizes,
                &fa.to_f64()?,
                &fb.to_f64()?,
                filled(&shape, 0f64)?,
                |a, b, y| gemm(rows, n, k, a, b, self.trans_b, y),
            )?;
            return Ok(vec![HostTensor::from_f64s(DType::F64, &shape, &y)?]);
        }
        if a.dtype().is_float() {
            let y = each(
                sizes,
                &fa.to_f32()?,
                &fb.to_f32()?,
                filled(&shape, 0f32)?,
                |a, b, y| gemm(rows, n, k, a, b, self.trans_b, y),
            )?;
            return Ok(vec![HostTensor::from_floats(a.dtype(), &shape, &y)?]);
        }
        let y = each(
            sizes,
            &fa.to_bits()?,
            &fb.to_bits()?,
            filled(&shape, 0i64)?,
            |a, b, y| integers(sizes, a, b, self.trans_b, y),
        )?;
        Ok(vec![HostTensor::from_ints(a.dtype(), &shape, &y)?])
    }

    fn supports_epilogue(&self) -> bool {
        true
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let (mut a, mut b) = (cx.input(0)?, cx.input(1)?);
        let ranks = [a, b].map(|v| cx.fact(v).map(|f| f.shape.rank()));
        let [left, right] = ranks;
        let mut added = Vec::new();
        if left? == 1 {
            a = cx.unsqueeze("row", a, &[0])?;
            added.push(-2);
        }
        if right? == 1 {
            b = cx.unsqueeze("column", b, &[if self.trans_b { 0 } else { 1 }])?;
            added.push(-1);
        }
        if added.is_empty() {
            return Ok(None);
        }
        let y = cx.node("matrix", self.clone(), &[Some(a), Some(b)])?;
        let axes = cx.ints("added", &added)?;
        Ok(Some(vec![cx.node(
            "vector",
            Reshape::Squeeze,
            &[Some(y), Some(axes)],
        )?]))
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (out, a, b) = (cx.out_fact(0)?.shape.clone(), cx.shape(0)?, cx.fact(1)?.clone());
        if a.rank() < 2 || b.shape.rank() < 2 {
            return Err(OpError::NoKernel(format!(
                "a matmul of {a} and {} with a 1-D operand",
                b.shape
            )));
        }
        let ([batch_out @ .., m, n], [batch_a @ .., _, k]) = (out.0.as_slice(), a.0.as_slice()) else {
            return Err(OpError::expected("rank", "2 or more", out.rank()));
        };
        if !b.dtype.is_float() {
            return Err(OpError::NoKernel(format!("a matmul of {}", b.dtype)));
        }
        let one_matrix = b.shape.rank() == 2;
        // A single matrix on the right: the rows of all batches are rows of one matmul.
        let rows = if one_matrix {
            product(batch_out)?.mul(m)?
        } else {
            m.clone()
        };
        let walk = if one_matrix {
            BatchWalk::default()
        } else {
            let (batch_b, tail_b) = b.shape.0.split_at(b.shape.rank() - 2);
            BatchWalk::new(batch_out, batch_a, &m.mul(k)?, batch_b, &product(tail_b)?)?
        };
        let constant = one_matrix && b.as_const().is_some();
        if let (true, Some(columns), true) = (constant, as_usize(n), cx.device().runs(&PANELS)) {
            return self.emit_panels(cx, [&rows, n, k], columns, b.dtype);
        }
        // A work-item of the plain form computes two sums.
        cx.loops("sums", &k.mul(&2.into())?)?;
        let form = MatrixForm::of(cx, [&rows, n, &walk.count]);
        let parts = match (constant, as_usize(n), as_usize(k)) {
            (true, Some(columns), Some(depth)) => self.packed_columns(cx, form, columns, depth)?,
            _ => {
                cx.countable("second operand", &b.shape.count()?)?;
                let stride = if self.trans_b { k } else { n };
                vec![(cx.input(1)?, 0, n.clone(), stride.clone())]
            }
        };
        let odd = n.exact_div(&2.into()).is_none();
        if odd && form == MatrixForm::Plain && parts.len() > 1 {
            return Err(OpError::NoKernel(format!(
                "a weight that exceeds the binding limit and has an odd number of columns ({n})"
            )));
        }
        cx.countable("first operand", &a.count()?)?;
        cx.countable("result", &out.count()?)?;
        for (weight, first, count, stride) in parts {
            let transposed = self.trans_b && !constant;
            let matmul = SubMatmul {
                rows: &rows,
                columns: &count,
                depth: k,
                stride: &stride,
                all: n,
                batches: &walk.count,
            };
            let mut call = match form {
                MatrixForm::Tiled(tile) => matmul.tiled(cx, tile)?,
                MatrixForm::Plain => matmul.plain(cx)?,
            };
            if transposed {
                call = call.define(TRANS_B, 1);
                if call.is_defined("BY4") {
                    call = call.reads_vec4(Args::b);
                }
            }
            let BatchWalk {
                count: batches,
                sizes: [n1, n2],
                a: [a0, a1, a2],
                b: [b0, b1, b2],
            } = walk.clone();
            let args = Args {
                a: cx.input(0)?,
                b: weight,
                y: cx.output(0)?,
                m: rows.clone(),
                n: count,
                k: k.clone(),
                b_stride: stride,
                y_stride: n.clone(),
                column: Dim::from_usize(first),
                n1,
                n2,
                a0,
                a1,
                a2,
                b0,
                b1,
                b2,
                batches,
            };
            cx.emit(call, args)?;
        }
        Ok(())
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.row_products()
    }
}

/// How work-items share the work of a matmul.
#[derive(Clone, Copy, PartialEq)]
enum MatrixForm {
    /// Work-groups share blocks of both operands in local memory.
    Tiled(LocalTile),
    Plain,
}

impl MatrixForm {
    fn of(cx: &LowerCx<'_>, [rows, columns, batches]: [&Dim; 3]) -> Self {
        let extent = Extent {
            rows: cx.upper_bound(rows),
            columns: cx.upper_bound(columns),
            plane: false,
            batches: cx.upper_bound(batches),
        };
        LocalTile::of(&TILED, cx.device(), extent).map_or(Self::Plain, Self::Tiled)
    }

    /// Columns that are read together.
    const fn together(self) -> usize {
        match self {
            Self::Tiled(_) => 4,
            Self::Plain => 2,
        }
    }
}

impl MatMul {
    /// Emits the matmul of `rows` rows by a constant, on a device with native kernels.
    fn emit_panels(
        &self,
        cx: &mut LowerCx<'_>,
        [m, n, k]: [&Dim; 3],
        columns: usize,
        stored: DType,
    ) -> OpResult<()> {
        let pack = Pack::Columns {
            // Halves stay halves: the kernel converts them exactly.
            dtype: if stored == DType::F16 { stored } else { DType::F32 },
            transpose: self.trans_b,
            first: 0,
            count: columns,
            stride: columns.next_multiple_of(PANEL),
            panel: PANEL,
        };
        let args = PanelArgs {
            x: cx.input(0)?,
            w: cx.weight(1, pack)?,
            y: cx.output(0)?,
            m: m.clone(),
            n: n.clone(),
            k: k.clone(),
        };
        cx.emit(Call::new(&PANELS, 1).may_be_padded(), args)
    }

    /// The constant right operand in ranges of columns that a kernel can bind: operand, first
    /// column, count, and distance between rows.
    fn packed_columns(
        &self,
        cx: &mut LowerCx<'_>,
        form: MatrixForm,
        columns: usize,
        depth: usize,
    ) -> OpResult<Vec<(Operand, usize, Dim, Dim)>> {
        let size = cx.float().device_bytes();
        let mut parts = Vec::new();
        for (first, count) in cx.split(columns, (depth, size), form.together())? {
            let stride = count.next_multiple_of(form.together());
            let pack = Pack::Columns {
                dtype: cx.float(),
                transpose: self.trans_b,
                first,
                count,
                stride,
                panel: stride,
            };
            let (count, stride) = (Dim::from_usize(count), Dim::from_usize(stride));
            parts.push((cx.weight(1, pack)?, first, count, stride));
        }
        Ok(parts)
    }
}

/// A matmul, or some of its columns, computed by one dispatch.
struct SubMatmul<'a> {
    rows: &'a Dim,
    columns: &'a Dim,
    depth: &'a Dim,
    /// Distance between the stored rows of the right operand, in elements.
    stride: &'a Dim,
    /// Columns of the whole matmul.
    all: &'a Dim,
    batches: &'a Dim,
}

impl SubMatmul<'_> {
    /// Work-groups share blocks of both operands in local memory.
    fn tiled(&self, cx: &LowerCx<'_>, tile: LocalTile) -> OpResult<Call<Args>> {
        let call = tile.define(
            Call::new(&TILED, tile.items),
            self.depth,
            Some(self.stride),
            self.all,
        );
        let (columns, rows) = (
            self.columns.ceil_div(tile.columns)?,
            self.rows.ceil_div(tile.rows)?,
        );
        over_batches(cx, call, columns, rows, self.batches)
    }

    /// Work-items compute a few rows of two columns; if the number of columns is odd, two results.
    fn plain(&self, cx: &LowerCx<'_>) -> OpResult<Call<Args>> {
        let odd = self.all.exact_div(&2.into()).is_none();
        let rows = if odd || self.rows.is(1) { 1 } else { ROWS };
        let call = Call::new(&KERNEL, 64).define("ROWS", rows);
        if odd {
            let results = self.batches.mul(self.rows)?.mul(self.columns)?;
            return Ok(call.define("ODD", 1).grid(results.ceil_div(2 * 64)?, 1, 1));
        }
        let columns = self.columns.ceil_div(2 * 64)?;
        let call = over_batches(cx, call, columns, self.rows.ceil_div(rows)?, self.batches)?;
        Ok(if self.depth.exact_div(&4.into()).is_some() {
            call.define("BY4", 1).reads_vec4(Args::a)
        } else {
            call
        })
    }
}

/// A grid over `batches`. If these may exceed the device limit of an axis, each work-group loops
/// over batches with the length of that axis as its step.
pub(crate) fn over_batches<A>(
    cx: &LowerCx<'_>,
    call: Call<A>,
    columns: Dim,
    rows: Dim,
    batches: &Dim,
) -> OpResult<Call<A>> {
    let most = i64::from(cx.device().max_grid);
    if cx.upper_bound(batches).is_some_and(|n| n <= most) {
        return Ok(call.grid(columns, rows, batches.clone()));
    }
    let rounds = batches.minimum(&most.into())?;
    Ok(call.define(ROUNDS, 1).grid(columns, rows, rounds))
}

/// Like [`gemm`], for integers; the result type keeps the low bits.
fn integers(
    [m, n, k]: [usize; 3],
    a: &[i64],
    b: &[i64],
    trans_b: bool,
    y: &mut [i64],
) -> Result<(), Exceeded> {
    for (row, y) in (0..m).zip(y.chunks_exact_mut(n.max(1))) {
        quota::check()?;
        for (column, y) in y.iter_mut().enumerate() {
            let at = |i: usize| if trans_b { column * k + i } else { i * n + column };
            let terms = (0..k).filter_map(|i| Some(a.get(row * k + i)?.wrapping_mul(*b.get(at(i))?)));
            *y = terms.fold(0, i64::wrapping_add);
        }
    }
    Ok(())
}

/// How the batch index addresses both operands: up to three merged batch axes.
#[derive(Clone)]
pub(crate) struct BatchWalk {
    pub count: Dim,
    /// Sizes of the two inner axes.
    pub sizes: [Dim; 2],
    /// Strides of the left operand.
    pub a: [Dim; 3],
    /// Strides of the right operand.
    pub b: [Dim; 3],
}

impl Default for BatchWalk {
    fn default() -> Self {
        let zeros = || [0, 0, 0].map(Dim::from);
        Self {
            count: 1.into(),
            sizes: [1, 1].map(Dim::from),
            a: zeros(),
            b: zeros(),
        }
    }
}

impl BatchWalk {
    /// `tail_a` and `tail_b` are the numbers of elements of one matrix.
    pub fn new(out: &[Dim], a: &[Dim], tail_a: &Dim, b: &[Dim], tail_b: &Dim) -> OpResult<Self> {
        let (a, b, out) = (Shape(a.to_vec()), Shape(b.to_vec()), Shape(out.to_vec()));
        let joined = pointwise::join_axes(&out, &[&a, &b])?;
        if joined.sizes.len() > 3 {
            return Err(OpError::NoKernel(format!(
                "{} batch axes that cannot be merged (limit 3)",
                joined.sizes.len()
            )));
        }
        let mut walk = Self {
            count: out.count()?,
            ..Self::default()
        };
        for i in 0..joined.sizes.len() {
            if let Some(size) = walk.sizes.get_mut(i) {
                *size = joined.sizes[i].clone();
            }
            walk.a[i] = joined.strides[0][i].mul(tail_a)?;
            walk.b[i] = joined.strides[1][i].mul(tail_b)?;
        }
        Ok(walk)
    }
}

fn import(_: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(MatMul { trans_b: false }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("MatMul", 1, 2)],
    import,
    kernels: &[&KERNEL.kernel, &TILED.kernel, &PANELS.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |a: &[usize], b: &[usize], trans_b| Case::new(MatMul { trans_b }, vec![input(a), input(b)]);
    let weight = |a: &[usize], b: &[usize], trans_b| {
        Case::new(MatMul { trans_b }, vec![input(a), input(b).constant()])
    };
    vec![
        case(&[5, 33], &[33, 130], false),
        case(&[1, 64], &[64, 66], false),
        case(&[3, 7], &[7, 11], false),
        case(&[2, 3, 5, 13], &[2, 1, 13, 6], false),
        case(&[13, 40], &[40, 48], false),
        case(&[2, 3, 9, 15], &[2, 1, 15, 160], false),
        weight(&[1, 1, 64], &[144, 64], true),
        case(&[1, 3, 2, 4, 16], &[1, 3, 1, 16, 10], false),
        case(&[2, 5, 16], &[2, 9, 16], true),
        case(&[7, 12], &[10, 12], true),
        weight(&[1, 1, 96], &[96, 130], false),
        weight(&[1, 9, 96], &[96, 128], false),
        weight(&[2, 3, 31], &[31, 7], false),
        weight(&[4, 24], &[50, 24], true),
        // Several tiles and blocks, the last ones partial; sums and rows that end within a vector.
        weight(&[70, 150], &[150, 72], false),
        weight(&[3, 260], &[260, 37], false),
        weight(&[35, 131], &[131, 34], false),
        case(&[2, 67, 140], &[2, 140, 66], false),
        case(&[3, 18, 133], &[3, 35, 133], true),
        case(&[2, 1, 36, 132], &[1, 2, 68, 132], true),
        Case::new(
            MatMul { trans_b: false },
            vec![input(&[2, 3, 5]).ints(-9, 9), input(&[5, 4]).ints(-9, 9)],
        )
        .host_only("no kernel for integers"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_integers() {
        let tensor = |shape: &[usize], data: &[i64]| HostTensor::from_ints(DType::I32, shape, data).unwrap();
        let a = tensor(&[2, 1, 2], &[1, -2, i64::from(i32::MAX), 1]);
        let b = tensor(&[2, 2], &[3, 4, 5, 6]);
        let run = |trans_b| {
            MatMul { trans_b }.eval(&[Some(&a), Some(&b)]).unwrap()[0]
                .to_i64()
                .unwrap()
        };
        assert_eq!(
            run(false),
            [-7, -8, -2_147_483_646, 2],
            "the type keeps the low bits"
        );
        assert_eq!(run(true)[..2], [-5, -7]);
        let unsigned =
            |shape: &[usize], data: &[i64]| HostTensor::from_ints(DType::U64, shape, data).unwrap();
        let (a, b) = (unsigned(&[1, 2], &[i64::MAX, 1]), unsigned(&[2, 1], &[2, 5]));
        let y = MatMul { trans_b: false }.eval(&[Some(&a), Some(&b)]).unwrap();
        assert_eq!(y[0].to_i128().unwrap(), [3], "2^64 + 3 without its high bit");
    }
}
