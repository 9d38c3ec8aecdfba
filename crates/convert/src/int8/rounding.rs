//! Weights that minimize the error of a product's results over a calibration set. They are first
//! fitted by damped least squares to make up for the errors of the inputs. Then they are rounded,
//! and each weight compensates for the errors of those before it (GPTQ).

use super::observe::floats;
use super::products::{FloatProduct, IntProduct, LARGEST};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::Node;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::gemm::Gemm;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::window::Axis;
use transformer_lite::unstable::num;
use transformer_lite::unstable::quant::Hessian;
use transformer_lite::unstable::quant::gptq::{CholeskyFactor, DAMPING};
use transformer_lite::unstable::tensor::HostTensor;
use transformer_lite::unstable::tensor::product::{Before, Matrix, multiply};

/// Maximum number of positions that are used, over all items.
const POSITIONS: usize = 8192;
/// Maximum number of elements in the Hessians of a product.
const ELEMENTS: usize = 2304 * 2304;
/// Share of the mean square of an item's results that is added to the square of each position.
const FLOOR: f64 = 0.03;
/// Damping of the least squares, as a multiple of the mean square of the inputs. With less, weights
/// overfit the set.
const CAUTION: f64 = 100.0;
/// The fractional part of the golden ratio: multiples of it are spread evenly between 0 and 1.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// How the elements of a product's result map to channels and positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    channels: usize,
    /// Contiguous elements of each channel.
    inner: usize,
}

impl Layout {
    /// Channels of a convolution are at axis 1, others at the last axis.
    pub fn of(shape: &[usize], convolves: bool) -> Self {
        let axis = if convolves {
            1
        } else {
            shape.len().saturating_sub(1)
        };
        Self {
            channels: shape.get(axis).copied().unwrap_or(1).max(1),
            inner: shape.iter().skip(axis + 1).product::<usize>().max(1),
        }
    }

    /// The channel of an element, and its position among all elements of that channel.
    pub fn place(self, element: usize) -> (usize, usize) {
        let row = element / self.inner;
        let position = row / self.channels * self.inner + element % self.inner;
        (row % self.channels, position)
    }

    /// A weight for each position: errors count relative to the values there, so that rare large
    /// values do not outweigh all others.
    pub fn weights(self, values: &[f32]) -> Vec<f64> {
        let mut squares = vec![0f64; values.len() / self.channels];
        for (at, v) in values.iter().enumerate() {
            if let Some(s) = squares.get_mut(self.place(at).1) {
                *s += f64::from(*v) * f64::from(*v);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of positions")]
        let floor = FLOOR * squares.iter().sum::<f64>() / squares.len().max(1) as f64;
        let weight = |s: &f64| if floor > 0.0 { floor / (s + floor) } else { 0.0 };
        squares.iter().map(weight).collect()
    }
}

/// How rows of inputs are read from a tensor.
enum Rows {
    /// Windows of a convolution with these kernel sizes.
    Windows(Conv, Vec<i64>),
    /// The last axis.
    Last,
}

/// Second moments of the inputs of a product, for each group.
pub(super) struct Moments {
    rows: Rows,
    /// Number of inputs of each output.
    k: usize,
    convolves: bool,
    /// Mean errors do not count, because biases make up for them.
    centered: bool,
    groups: Vec<Group>,
    /// Sum of the weights of all positions.
    total: f64,
}

/// Weighted sums over positions, for the quantized inputs `x` of a group and their errors `e`,
/// which are the exact inputs minus `x`.
#[derive(Clone)]
struct Group {
    /// Of `x^T x`.
    hessian: Hessian,
    /// Of `e^T x`, row-major.
    cross: Vec<f32>,
    inputs: Vec<f64>,
    errors: Vec<f64>,
}

impl Moments {
    /// Moments for the product `float` that `node` computes. `None` if they would take too much
    /// memory, or if this kind of product is not supported. Mean errors do not count if `centered`.
    pub fn of(node: &Node, float: &FloatProduct, centered: bool) -> Option<Self> {
        let form = &float.form;
        let (rows, groups) = if let Some(conv) = node.op.downcast::<Conv>() {
            let kernel = form.shape.get(2..)?.iter().map(|n| num::signed(*n)).collect();
            (Rows::Windows(conv.clone(), kernel), form.groups)
        } else {
            let plain = node.op.downcast::<MatMul>().is_some()
                || node.op.downcast::<Gemm>().is_some_and(|g| !g.trans_a);
            ((plain && form.shape.len() == 2).then_some(Rows::Last)?, 1)
        };
        let k = float.weights.len() / form.channels.max(1);
        let fits = k.checked_mul(k)?.checked_mul(groups)? <= ELEMENTS;
        (fits && k > 0).then(|| Self {
            rows,
            k,
            convolves: form.convolves,
            centered,
            groups: vec![
                Group {
                    hessian: Hessian::new(k),
                    cross: vec![0.0; k * k],
                    inputs: vec![0.0; k],
                    errors: vec![0.0; k],
                };
                groups
            ],
            total: 0.0,
        })
    }

    /// Adds the input of item `item.0` of `item.1`: `x[0]` in the float model, `x[1]` in the
    /// quantized one. `y` is the result in the float model.
    pub fn add(&mut self, item: (usize, usize), x: [&HostTensor; 2], y: &HostTensor) -> Result<()> {
        let weights = Layout::of(y.shape(), self.convolves).weights(&floats(y, "")?);
        let all = weights.len();
        let count = (POSITIONS / item.1.max(1)).clamp(1, all.max(1));
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a position below their number"
        )]
        let position = |j: usize| {
            let shift = (item.0 as f64 * GOLDEN).fract();
            (((j as f64 + shift) * all as f64 / count as f64) as usize).min(all.saturating_sub(1))
        };
        let (exact, values) = (floats(x[0], "")?, floats(x[1], "")?);
        let picked = (0..count)
            .map(position)
            .filter_map(|p| Some((p, *weights.get(p)?)));
        let picked: Vec<(usize, f64)> = picked.filter(|(_, w)| *w > 0.0).collect();
        self.total += picked.iter().map(|(_, w)| w).sum::<f64>();
        let windows = match &self.rows {
            Rows::Last => None,
            Rows::Windows(conv, kernel) => Some(Windows::of(conv, kernel, x[1].shape(), self.groups.len())?),
        };
        let k = self.k;
        let copy = |group: usize, position: usize, from: &[f32], row: &mut [f32]| match &windows {
            Some(windows) => windows.copy((position, group), from, row),
            None => {
                let from = from.chunks_exact(k).nth(position).unwrap_or_default();
                row.iter_mut().zip(from).for_each(|(to, v)| *to = *v);
            }
        };
        for (index, group) in self.groups.iter_mut().enumerate() {
            let mut rows = vec![0f32; picked.len() * k];
            let mut errors = rows.clone();
            let places = rows.chunks_exact_mut(k).zip(errors.chunks_exact_mut(k));
            for ((p, w), (row, error)) in picked.iter().zip(places) {
                copy(index, *p, &values, row);
                copy(index, *p, &exact, error);
                #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
                let root = w.sqrt() as f32;
                for (i, (x, e)) in row.iter_mut().zip(error).enumerate() {
                    *e -= *x;
                    if let (Some(inputs), Some(errors)) = (group.inputs.get_mut(i), group.errors.get_mut(i)) {
                        *inputs += w * f64::from(*x);
                        *errors += w * f64::from(*e);
                    }
                    (*x, *e) = (*x * root, *e * root);
                }
            }
            let added = group.hessian.add(&rows);
            added.map_err(|e| Error::caused(Stage::Quantize, "inputs of a product", e))?;
            let (left, right) = (matrix(&errors, 1, k), matrix(&rows, k, 1));
            let (size, to) = ((k, k, picked.len()), (group.cross.as_mut_slice(), k));
            multiply(size, left, right, to, Before::Kept, !group.hessian.is_small());
        }
        Ok(())
    }

    /// Removes mean errors, which biases make up for, once all items are added.
    pub fn finish(&mut self) {
        if !self.centered || self.total <= 0.0 {
            return;
        }
        for group in &mut self.groups {
            let mut hessian = group.hessian.sum().to_vec();
            subtract(&mut hessian, &group.inputs, &group.inputs, self.total);
            let Ok(centered) = Hessian::from_sum(self.k, hessian, group.hessian.rows()) else {
                continue;
            };
            group.hessian = centered;
            subtract(&mut group.cross, &group.errors, &group.inputs, self.total);
        }
    }

    /// For each group, the elements of its weights, by output channel.
    fn elements(&self, float: &FloatProduct) -> Option<Vec<Vec<usize>>> {
        let form = &float.form;
        let each = (form.channels / self.groups.len().max(1)).max(1);
        let mut channels: Vec<Vec<usize>> = vec![Vec::with_capacity(self.k); form.channels];
        for e in 0..float.weights.len() {
            channels.get_mut(form.output(e))?.push(e);
        }
        Some(channels.chunks_exact(each).map(<[_]>::concat).collect())
    }

    /// The product with weights that make up for the errors of its inputs; `None` if the moments
    /// cannot be used.
    pub fn refitted(&self, float: &FloatProduct) -> Option<FloatProduct> {
        let k = self.k;
        let mut out = float.clone();
        for (group, elements) in self.groups.iter().zip(self.elements(float)?) {
            #[expect(clippy::cast_precision_loss, reason = "a number of inputs")]
            let mean = (0..k).map(|i| f64::from(group.hessian.get(i, i))).sum::<f64>() / k as f64;
            if mean <= 0.0 {
                continue;
            }
            let weights = elements.iter().map(|e| float.weights.get(*e).copied());
            let weights: Vec<f32> = weights.collect::<Option<_>>()?;
            let n = weights.len() / k;
            let mut wanted = vec![0f32; weights.len()];
            let (left, right) = (matrix(&weights, k, 1), matrix(&group.cross, k, 1));
            multiply(
                (n, k, k),
                left,
                right,
                (&mut wanted, k),
                Before::Dropped,
                !group.hessian.is_small(),
            );
            #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
            wanted.iter_mut().for_each(|v| *v /= mean as f32);
            let factor = CholeskyFactor::new(&group.hessian, CAUTION).ok()?;
            for (e, change) in elements.iter().zip(factor.solve(&wanted).ok()?) {
                let w = out.weights.get_mut(*e)?;
                *w += change;
                w.is_finite().then_some(())?;
            }
        }
        Some(out)
    }

    /// The integers of the weights for the scales of `int`; `None` if the moments cannot be used.
    pub fn integers(&self, float: &FloatProduct, int: &IntProduct) -> Option<Vec<i8>> {
        let mut codes = int.codes.clone();
        for (group, elements) in self.groups.iter().zip(self.elements(float)?) {
            let factor = CholeskyFactor::new(&group.hessian, DAMPING).ok()?;
            let columns = elements.iter().map(|e| float.weights.get(*e).copied());
            let columns: Vec<f32> = columns.collect::<Option<_>>()?;
            let first = elements.iter().step_by(self.k);
            let steps: Vec<f32> = first.map(|e| int.scale(&float.form, *e)).collect();
            let made = factor.integers(&columns, &steps, LARGEST).ok()?;
            for (e, code) in elements.iter().zip(made) {
                *codes.get_mut(*e)? = code;
            }
        }
        Some(codes)
    }
}

fn matrix(data: &[f32], row: usize, column: usize) -> Matrix<'_, f32> {
    Matrix { data, row, column }
}

/// Subtracts the products of weighted sums, divided by the sum of the weights.
fn subtract(from: &mut [f32], left: &[f64], right: &[f64], total: f64) {
    for (row, a) in from.chunks_exact_mut(right.len().max(1)).zip(left) {
        for (v, b) in row.iter_mut().zip(right) {
            #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
            let rest = (f64::from(*v) - a * b / total) as f32;
            *v = rest;
        }
    }
}

/// The windows of a convolution over one tensor.
struct Windows {
    axes: Vec<Axis>,
    /// Channels of the tensor, and of a group.
    channels: usize,
    each: usize,
    /// Elements of a channel, and windows over it.
    plane: usize,
    area: usize,
}

impl Windows {
    fn of(conv: &Conv, kernel: &[i64], shape: &[usize], groups: usize) -> Result<Self> {
        let sizes = shape.get(2..).unwrap_or_default();
        let axes = conv.window.axes(kernel, sizes);
        let axes = axes.map_err(|e| Error::caused(Stage::Quantize, "windows of a convolution", e))?;
        let channels = shape.get(1).copied().unwrap_or(1);
        Ok(Self {
            channels,
            each: channels / groups.max(1),
            plane: sizes.iter().product::<usize>().max(1),
            area: axes.iter().map(|a| a.out).product::<usize>().max(1),
            axes,
        })
    }

    /// Copies the elements that window `at.0` of group `at.1` reads; zeros outside the tensor.
    fn copy(&self, at: (usize, usize), values: &[f32], to: &mut [f32]) {
        let first = at.0 / self.area * self.channels + at.1 * self.each;
        let channels = values.chunks_exact(self.plane).skip(first).take(self.each);
        let taps = to.len() / self.each.max(1);
        let places: Vec<Option<usize>> = (0..taps).map(|tap| self.place(at.0 % self.area, tap)).collect();
        for (from, to) in channels.zip(to.chunks_exact_mut(taps.max(1))) {
            for (to, place) in to.iter_mut().zip(&places) {
                *to = place.and_then(|p| from.get(p).copied()).unwrap_or_default();
            }
        }
    }

    /// The element of a channel at a tap of a window.
    fn place(&self, mut window: usize, mut tap: usize) -> Option<usize> {
        let (mut place, mut step) = (0, 1);
        for a in self.axes.iter().rev() {
            place += a.element(window % a.out, tap % a.kernel)? * step;
            step *= a.size;
            window /= a.out;
            tap /= a.kernel;
        }
        Some(place)
    }
}
