//! Sums blocks of elements into an image where they overlap. ONNX `Col2Im` from opset 18.
//!
//! Operands: `[n, c * block, windows]`, the spatial sizes of the image, and those of a block. The
//! result is `[n, c, sizes..]`.

use crate::graph::op::case::{Case, input};
use crate::graph::op::window::{self, Window};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Col2Im {
    /// The window; operand 2 gives its sizes.
    pub window: Window,
}

impl Op for Col2Im {
    fn name(&self) -> &str {
        "Col2Im"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.float(0)?;
        let [n, columns, count] = x.shape.0.as_slice() else {
            return Err(OpError::expected("rank", 3, x.shape.rank()));
        };
        let (sizes, blocks) = (cx.sizes(1)?, cx.sizes(2)?);
        let area = product(&blocks)?;
        let channels = match columns.exact_div(&area) {
            Some(c) => c,
            // Block sizes that are known only in the run.
            None if area.as_const().is_none() => cx.unknown(0, 1, Some(columns.clone())),
            None => {
                return Err(OpError::expected(
                    "columns",
                    format!("a multiple of {area}, the elements of a block"),
                    columns,
                ));
            }
        };
        if let Some(kernel) = blocks.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>() {
            let windows = product(&self.window.derive(cx, &kernel, &sizes)?)?;
            cx.same("numbers of blocks", count, &windows)?;
        }
        let mut out = vec![n.clone(), channels];
        out.extend(sizes);
        Ok(vec![Fact::new(x.dtype, Shape(out))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, kernel) = (operand(inputs, 0)?, operand(inputs, 2)?.to_i64()?);
        let sizes = crate::graph::op::to_sizes(operand(inputs, 1)?)?;
        let axes = self.window.axes(&kernel, &sizes)?;
        let [n, columns, count] = x.shape() else {
            return Err(OpError::expected("rank", 3, x.shape().len()));
        };
        let [block, windows] = window::products(&axes, [|a| a.kernel, |a| a.out])?;
        if block == 0 || !columns.is_multiple_of(block) || *count != windows {
            return Err(OpError::mismatch(
                "blocks (elements per block and number of blocks)",
                format!("{columns} and {count}"),
                format!("{block} and {windows}"),
            ));
        }
        let mut shape = vec![*n, columns / block];
        shape.extend(&sizes);
        let mut y = crate::graph::op::filled(&shape, 0f32)?;
        let area = crate::graph::op::count(&sizes)?;
        let stride = axes.last().map_or(1, |a| a.stride);
        let data = x.to_f32()?;
        if area > 0 && windows > 0 && *columns > 0 {
            let taps: Vec<Vec<usize>> = window::taps(&axes).collect();
            for (plane, blocks) in y
                .chunks_exact_mut(area)
                .zip(data.chunks_exact(taps.len() * windows))
            {
                for (tap, row) in taps.iter().zip(blocks.chunks_exact(windows)) {
                    window::walk(&axes, tap, 0..windows, |from, to, n| {
                        let (Some(row), Some(y)) = (row.get(from..from + n), plane.get_mut(to..)) else {
                            return;
                        };
                        for (v, y) in row.iter().zip(y.iter_mut().step_by(stride)) {
                            *y += v;
                        }
                    });
                }
            }
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Col2Im {
        window: Window::import(a)?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Col2Im", 18, 3)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let list = |v: &[i64]| input(&[v.len()]).values(v).constant();
    let case = |window, x: &[usize], sizes: &[i64], block: &[i64]| {
        Case::new(Col2Im { window }, vec![input(x), list(sizes), list(block)]).host_only("no kernel yet")
    };
    let plain = || Window::new(&[]);
    vec![
        case(plain(), &[1, 10, 20], &[5, 8], &[1, 5]),
        case(
            Window {
                pads: vec![1; 4],
                strides: vec![2, 2],
                ..plain()
            },
            &[2, 18, 9],
            &[5, 5],
            &[3, 3],
        ),
        case(
            Window {
                dilations: vec![1, 2],
                ..plain()
            },
            &[1, 4, 12],
            &[4, 6],
            &[2, 2],
        ),
    ]
}
