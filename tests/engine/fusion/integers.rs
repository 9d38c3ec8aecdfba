//! Quantized operators: the pass preserves the results of the model, even where it is unusual.

use super::*;
use transformer_lite::unstable::graph::derive;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::gemm::Gemm;
use transformer_lite::unstable::graph::op::pad::{self, Pad};
use transformer_lite::unstable::graph::op::quantize_linear::{DequantizeLinear, Grid, QuantizeLinear};
use transformer_lite::unstable::graph::op::resize::{Coordinates, Mode, Nearest, Resize};
use transformer_lite::unstable::graph::op::scatter::{Reduction, Scatter};
use transformer_lite::unstable::graph::op::slice::Slice;
use transformer_lite::unstable::graph::op::split::Split;
use transformer_lite::unstable::graph::op::trilu::Trilu;
use transformer_lite::unstable::graph::op::window::Window;
use transformer_lite::unstable::graph::pass::integer::{INTEGER_FIXED, INTEGER_FLOAT, coverage};
use transformer_lite::unstable::quant::fixed::Arithmetic;

const GRID: Grid = Grid { axis: 0, block: 0 };

impl Build {
    fn map(&mut self, dtype: DType, scale: f32, zero: i64) -> [ValueId; 2] {
        let scale = HostTensor::from_floats(dtype, &[], &[scale]).unwrap();
        let scale = Edit::new(&mut self.0).add_const("scale", Arc::new(scale));
        [scale, self.bytes(&[], &[zero])]
    }

    fn quantized(&mut self, x: ValueId, [scale, zero]: [ValueId; 2]) -> ValueId {
        let op = QuantizeLinear {
            grid: GRID,
            dtype: None,
            saturate: true,
        };
        self.node(op, &[x, scale, zero])
    }

    fn dequantized(&mut self, x: ValueId, [scale, zero]: [ValueId; 2]) -> ValueId {
        let op = DequantizeLinear {
            grid: GRID,
            dtype: None,
        };
        self.node(op, &[x, scale, zero])
    }

    /// `x`, rounded to steps of `scale`.
    fn rounded(&mut self, x: ValueId, scale: f32, zero: i64) -> ValueId {
        let map = self.map(DType::F32, scale, zero);
        let q = self.quantized(x, map);
        self.dequantized(q, map)
    }

    /// A constant of 8-bit integers.
    fn bytes(&mut self, shape: &[usize], data: &[i64]) -> ValueId {
        let data = HostTensor::from_ints(DType::I8, shape, data).unwrap();
        Edit::new(&mut self.0).add_const("bytes", Arc::new(data))
    }

    fn gemm(&mut self, x: ValueId, w: ValueId, bias: ValueId) -> ValueId {
        let op = Gemm {
            alpha: 1.0,
            beta: 1.0,
            trans_a: false,
            trans_b: false,
        };
        self.node(op, &[x, w, bias])
    }

    /// Weights of these integers, in steps of 0.01.
    fn weights(&mut self, shape: &[usize], data: &[i64]) -> ValueId {
        let data = self.bytes(shape, data);
        let map = self.map(DType::F32, 0.01, 0);
        self.dequantized(data, map)
    }

    /// Checks that the graph computes the same after the pass, and that the pass makes no integer
    /// operators if `stays`, and some otherwise.
    fn in_integers(mut self, y: ValueId, stays: bool, bindings: &[(&str, i64)]) {
        self.output(y);
        self.pass(INTEGER_FLOAT, bindings);
        let integers = self.0.nodes().any(|(_, n)| n.op.name().starts_with("Int8"));
        assert_eq!(integers, !stays, "operators on integers");
    }
}

fn numbers(count: usize) -> Vec<i64> {
    (0..count).map(|i| (i * 37 % 255) as i64 - 127).collect()
}

#[test]
fn integers_are_read_as_each_reader_says() {
    let mut b = Build::default();
    let x = b.input("x", "2,5");
    let x = b.rounded(x, 0.01, 3);
    let y = b.unary(Unary::Relu, x);
    let (written, read) = (b.map(DType::F32, 0.01, -5), b.map(DType::F32, 0.02, 7));
    let q = b.quantized(y, written);
    let (y, z) = (b.dequantized(q, written), b.dequantized(q, read));
    b.output(y);
    b.in_integers(z, false, &[]);
    // The same at the entry.
    let mut b = Build::default();
    let x = b.input("x", "2,5");
    let (written, read) = (b.map(DType::F32, 0.01, -5), b.map(DType::F32, 0.02, 7));
    let q = b.quantized(x, written);
    let x = b.dequantized(q, read);
    let y = b.unary(Unary::Relu, x);
    let y = b.rounded(y, 0.02, 1);
    b.in_integers(y, false, &[]);
}

#[test]
fn results_keep_their_float_type() {
    let mut b = Build::default();
    let x = b.input("x", "2,5");
    let x = b.rounded(x, 0.01, 3);
    let y = b.unary(Unary::Relu, x);
    let (written, read) = (b.map(DType::F32, 0.01, -5), b.map(DType::F16, 0.01, -5));
    let q = b.quantized(y, written);
    let y = b.dequantized(q, read);
    let half = HostTensor::from_floats(DType::F16, &[], &[0.5]).unwrap();
    let half = Edit::new(&mut b.0).add_const("half", Arc::new(half));
    let y = b.binary(Binary::Mul, y, half);
    b.in_integers(y, false, &[]);
}

#[test]
fn functions_store_an_axis_of_constant_size() {
    for (sizes, stays) in [("1,1,t", false), ("t,3", false), ("t,u", true), ("", true)] {
        let mut b = Build::default();
        let x = match sizes {
            "" => {
                let x = b.input("x", "1");
                b.reshape(x, &[])
            }
            _ => b.input("x", sizes),
        };
        let x = b.rounded(x, 0.01, 3);
        let y = b.unary(Unary::Relu, x);
        let y = b.rounded(y, 0.01, -5);
        b.in_integers(y, stays, &[("t", 5), ("u", 3)]);
    }
}

#[test]
fn what_writes_zeros_or_other_values_is_no_move() {
    let mut b = Build::default();
    let x = b.input("x", "5,5");
    let x = b.rounded(x, 0.01, 30);
    let y = b.node(Trilu { upper: true }, &[x]);
    let y = b.rounded(y, 0.01, 30);
    b.in_integers(y, true, &[]);
    let mut b = Build::default();
    let (x, updates) = (b.input("x", "5,4"), b.input("updates", "1,4"));
    let (x, updates) = (b.rounded(x, 0.01, 30), b.rounded(updates, 0.01, 30));
    let at = HostTensor::from_i64(&[1, 1], &[2]).unwrap();
    let at = Edit::new(&mut b.0).add_const("at", Arc::new(at));
    let scatter = Scatter {
        axis: None,
        reduction: Reduction::Replace,
    };
    let y = b.node(scatter, &[x, at, updates]);
    let y = b.rounded(y, 0.01, 30);
    b.in_integers(y, true, &[]);
}

/// Elements after the end of a row do not count, whatever values functions give to them.
#[test]
fn sums_have_as_many_terms_as_the_model_says() {
    for fixed in [false, true] {
        let mut b = Build::default();
        let (x, w) = (b.input("x", "1,5,10"), b.input("w", "1,6,10"));
        let [x, w] = [x, w].map(|v| {
            let v = b.rounded(v, 0.01, 3);
            let v = b.unary(Unary::Sigmoid, v);
            b.rounded(v, 1.0 / 256.0, -128)
        });
        let w = b.swap(w, &[0, 2, 1]);
        let w = b.rounded(w, 1.0 / 256.0, -128);
        let y = b.node(MatMul { trans_b: false }, &[x, w]);
        let y = b.rounded(y, 0.02, 0);
        b.output(y);
        if fixed {
            let before = b.pass(INTEGER_FIXED, &[]);
            assert!(before > 0);
        } else {
            b.pass(INTEGER_FLOAT, &[]);
        }
        assert!(b.has("Int8MatMul"));
    }
}

#[test]
fn a_bias_of_each_row_is_not_one_of_each_column() {
    for (shape, stays) in [([4, 1], true), ([1, 4], false)] {
        let mut b = Build::default();
        let x = b.input("x", "4,3");
        let x = b.rounded(x, 0.01, 3);
        let w = b.weights(&[3, 4], &numbers(12));
        let bias = b.floats(&shape, &[0.1, -0.2, 0.3, -0.4]);
        let y = b.gemm(x, w, bias);
        let y = b.rounded(y, 0.02, 0);
        b.in_integers(y, stays, &[]);
    }
}

/// The bias of the second channel needs 33 bits at the scale of its sums.
#[test]
fn a_channel_without_weights_keeps_its_bias() {
    let mut b = Build::default();
    let x = b.input("x", "2,3");
    let x = b.rounded(x, 0.001, 3);
    let mut data = numbers(6);
    (0..3).for_each(|i| data[2 * i + 1] = 0);
    let data = b.bytes(&[3, 2], &data);
    let scales = b.floats(&[2], &[0.01, 1.2e-7]);
    let zeros = b.bytes(&[2], &[0, 0]);
    let op = DequantizeLinear {
        grid: Grid { axis: 1, block: 0 },
        dtype: None,
    };
    let w = b.node(op, &[data, scales, zeros]);
    let bias = b.floats(&[2], &[0.1, 1.0]);
    let y = b.gemm(x, w, bias);
    let y = b.rounded(y, 0.01, 0);
    b.in_integers(y, false, &[]);
}

#[test]
fn constants_that_add_axes_stay_float() {
    let mut b = Build::default();
    let x = b.input("x", "2,3");
    let x = b.rounded(x, 0.01, 3);
    let one = b.floats(&[1, 1, 1], &[0.25]);
    let y = b.binary(Binary::Add, x, one);
    let y = b.rounded(y, 0.02, 0);
    b.in_integers(y, true, &[]);
    let mut b = Build::default();
    let x = b.input("x", "2,3");
    let x = b.rounded(x, 0.01, 3);
    let w = b.weights(&[3, 4], &numbers(12));
    let y = b.node(MatMul { trans_b: false }, &[x, w]);
    let bias = b.floats(&[1, 1, 4], &[0.1, -0.2, 0.3, -0.4]);
    let y = b.binary(Binary::Add, y, bias);
    let y = b.rounded(y, 0.02, 0);
    b.in_integers(y, true, &[]);
}

#[test]
fn padding_by_reflection_needs_no_value() {
    for mode in [pad::Mode::Reflect, pad::Mode::Constant] {
        let mut b = Build::default();
        let x = b.input("x", "1,2,4,4");
        let x = b.rounded(x, 0.01, 3);
        let pads = b.list(&[0, 0, 1, 1, 0, 0, 1, 2]);
        let value = b.floats(&[], &[0.5]);
        let op = Pad {
            mode,
            pads: None,
            value: 0.0,
        };
        let y = b.node(op, &[x, pads, value]);
        let y = b.rounded(y, 0.01, 3);
        let relu = b.unary(Unary::Relu, y);
        let y = b.rounded(relu, 0.01, 3);
        b.in_integers(y, false, &[]);
    }
}

/// The number of channels stays the same, but the resize selects other channels.
#[test]
fn a_resize_of_channels_is_not_one_of_words() {
    for (scale, stays) in [(1.1, true), (1.0, false)] {
        let mut b = Build::default();
        let x = b.input("x", "1,8,3,3");
        let x = b.rounded(x, 0.01, 3);
        let scales = b.floats(&[4], &[1.0, scale, 2.0, 2.0]);
        let op = Resize::plain(Mode::Nearest(Nearest::Floor), Coordinates::Asymmetric);
        let y = b.node(op, &[x, scales]);
        let y = b.rounded(y, 0.01, 3);
        b.in_integers(y, stays, &[]);
    }
}

#[test]
fn operands_are_repeated_along_leading_axes_only() {
    for (one, other, stays) in [
        ("2,3,4,5", "2,3,4,5", false),
        ("2,3,4,5", "1,3,1,1", false),
        ("2,3,4,5", "2,3,4,1", true),
        ("2,3,4,1", "2,3,1,5", true),
        ("2,1,4,5", "2,3,4,5", false),
    ] {
        for f in [Binary::Add, Binary::Sub, Binary::Mul] {
            let mut b = Build::default();
            let (x, y) = (b.input("x", one), b.input("y", other));
            let (x, y) = (b.rounded(x, 0.01, 3), b.rounded(y, 0.02, -7));
            let y = b.binary(f, x, y);
            let y = b.rounded(y, 0.015, 5);
            b.in_integers(y, stays, &[]);
        }
    }
}

/// A sum keeps the axis that its operands store last.
#[test]
fn sums_of_sequences_store_the_channels_last() {
    let mut b = Build::default();
    let x = b.input("x", "1,4,t");
    let x = b.rounded(x, 0.01, 3);
    let w = b.weights(&[4, 4, 1], &numbers(16));
    let op = Conv {
        window: Window::new(&[1]),
        group: 1,
    };
    let y = b.node(op, &[x, w]);
    let y = b.rounded(y, 0.02, 0);
    let y = b.binary(Binary::Add, x, y);
    let y = b.rounded(y, 0.02, 1);
    b.output(y);
    b.pass(INTEGER_FLOAT, &[("t", 6)]);
    assert!(b.has("Int8Add") && b.has("Int8Conv"));
    assert!(!b.has("Int8Leave") && !b.has("Int8Enter"));
}

#[test]
fn weights_may_be_transposed() {
    // A file may have any number of them, which must not exhaust the stack.
    for (times, stays) in [(1, false), (3, false), (9, true), (10_001, true)] {
        let mut b = Build::default();
        let x = b.input("x", "5,3");
        let x = b.rounded(x, 0.01, 3);
        let mut w = b.weights(&[4, 3], &numbers(12));
        for _ in 0..times {
            w = b.swap(w, &[1, 0]);
        }
        let bias = b.floats(&[4], &[0.0; 4]);
        let y = b.gemm(x, w, bias);
        let y = b.rounded(y, 0.02, 0);
        b.in_integers(y, stays, &[]);
    }
    let mut b = Build::default();
    let x = b.input("x", "2,5,3");
    let x = b.rounded(x, 0.01, 3);
    let w = b.weights(&[4, 3], &numbers(12));
    let w = b.swap(w, &[1, 0]);
    let y = b.node(MatMul { trans_b: false }, &[x, w]);
    let y = b.rounded(y, 0.02, 0);
    b.output(y);
    b.pass(INTEGER_FLOAT, &[]);
    assert!(b.has("Int8Linear"));
}

/// `x * sigmoid(x)` times a constant, or times another activation, between 8-bit values.
fn gated(factor: Option<&[usize]>, inner: bool) -> (Build, ValueId) {
    let mut b = Build::default();
    let x = b.input("x", "2,6");
    let x = b.rounded(x, 0.05, 3);
    let gate = b.unary(Unary::Sigmoid, x);
    let y = b.binary(Binary::Mul, x, gate);
    let factor = match factor {
        Some(shape) => b.floats(shape, &vec![0.5; shape.iter().product()]),
        None => {
            let z = b.input("z", "2,6");
            b.rounded(z, 0.05, 3)
        }
    };
    let y = b.binary(Binary::Mul, y, factor);
    if inner {
        b.output(gate);
    }
    let y = b.rounded(y, 0.02, -20);
    (b, y)
}

#[test]
fn several_nodes_are_one_table() {
    for (shape, inner) in [(&[][..], false), (&[1, 1], false), (&[], true)] {
        let (mut b, y) = gated(Some(shape), inner);
        b.output(y);
        b.pass(INTEGER_FLOAT, &[]);
        let count = |name: &str| b.0.nodes().filter(|(_, n)| n.op.name() == name).count();
        assert_eq!((count("Int8Table"), count("Mul")), (1, 0), "{shape:?}");
    }
    // Functions of two activations, or of the position.
    for factor in [None, Some(&[6][..])] {
        let (b, y) = gated(factor, false);
        b.in_integers(y, true, &[]);
    }
}

#[test]
fn results_of_several_nodes_may_be_quantized_twice() {
    let mut b = Build::default();
    let x = b.input("x", "2,6");
    let map = b.map(DType::F32, 0.05, 3);
    let q = b.quantized(x, map);
    // Each reader has its own conversion.
    let (x, other) = (b.dequantized(q, map), b.dequantized(q, map));
    let gate = b.unary(Unary::Sigmoid, x);
    let y = b.binary(Binary::Mul, other, gate);
    let half = b.floats(&[], &[0.5]);
    let z = b.binary(Binary::Mul, y, half);
    for (v, scale) in [(y, 0.02), (y, 0.04), (z, 0.01)] {
        let rounded = b.rounded(v, scale, -20);
        b.output(rounded);
    }
    derive::derive(&mut b.0).unwrap();
    let found = coverage(&b.0, Arithmetic::Float).unwrap();
    assert_eq!((found.nodes, found.float_nodes.len()), (3, 0));
    b.pass(INTEGER_FLOAT, &[]);
    let count = |name: &str| b.0.nodes().filter(|(_, n)| n.op.name() == name).count();
    assert_eq!((count("Int8Table"), count("Mul")), (3, 0));
}

/// Checks that parts of a convolution's result are what the model says, and whether all of them
/// are moved as words.
fn check_parts(mut b: Build, parts: Vec<ValueId>, as_words: bool) {
    let sums: Vec<ValueId> = parts.into_iter().map(|v| b.unary(Unary::Relu, v)).collect();
    let mut ends: Vec<ValueId> = sums.into_iter().map(|v| b.rounded(v, 0.02, -3)).collect();
    let last = ends.pop().unwrap();
    ends.into_iter().for_each(|v| b.output(v));
    b.output(last);
    b.pass(INTEGER_FLOAT, &[]);
    let leaves = b.has("Int8Leave");
    assert_eq!(leaves, !as_words, "conversions to ordinary tensors");
}

/// A picture `[1, 10, 3, 2]` of 8-bit values that are stored with the channels last.
fn stored_picture(b: &mut Build) -> (ValueId, [ValueId; 2]) {
    let x = b.input("x", "1,10,3,2");
    let x = b.rounded(x, 0.02, 1);
    let y = b.unary(Unary::Tanh, x);
    let map = b.map(DType::F32, 0.01, 4);
    let q = b.quantized(y, map);
    (b.dequantized(q, map), map)
}

#[test]
fn channels_are_split_and_sliced_as_words() {
    for (axis, sizes, as_words) in [
        (1, &[4, 6][..], true),
        (1, &[8, 2], true),
        (1, &[5, 5], false),
        (-2, &[1, 2], true),
    ] {
        let mut b = Build::default();
        let (x, map) = stored_picture(&mut b);
        let split = Split {
            axis,
            sizes: Some(sizes.to_vec()),
            parts: sizes.len(),
            uneven: false,
        };
        let made = b.results(split, &[x], sizes.len());
        let made = made.into_iter().map(|v| {
            let q = b.quantized(v, map);
            b.dequantized(q, map)
        });
        let made = made.collect();
        check_parts(b, made, as_words);
    }
    for (starts, ends, axes, steps, as_words) in [
        ([4, 1], [i64::MAX, 3], [1, 2], [1, 1], true),
        ([-6, -1], [8, -4], [-3, -2], [1, -1], true),
        ([4, 0], [6, 3], [1, 2], [1, 1], false),
        ([0, 0], [8, 3], [1, 2], [2, 1], false),
    ] {
        let mut b = Build::default();
        let (x, map) = stored_picture(&mut b);
        let mut operands = vec![x];
        for list in [starts, ends, axes, steps] {
            let list = HostTensor::from_i64(&[2], &list).unwrap();
            operands.push(Edit::new(&mut b.0).add_const("list", Arc::new(list)));
        }
        let y = b.node(Slice, &operands);
        let q = b.quantized(y, map);
        let y = b.dequantized(q, map);
        check_parts(b, vec![y], as_words);
    }
}
