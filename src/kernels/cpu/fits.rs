//! Operands of exact sizes fit, and those that are one element smaller do not.

use crate::backend::cpu::args::{Bound, Memory, NativeKernel};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::{Arguments, KernelSpec, Signature};
use crate::kernels::cpu::blank;
use crate::kernels::cpu::harness::memory;
use crate::tensor::DType;

const F: DType = DType::F32;
const H: DType = DType::F16;
const I: DType = DType::I32;

/// An operand: its type and number of elements.
type Given = (DType, usize);

/// Checks kernel `K` with parameters `words` and operands of exact sizes. Operands of size 0 are
/// omitted. Those in `checked` must not be smaller.
fn check<K: NativeKernel>(
    defines: &[(&'static str, i64)],
    words: &[usize],
    operands: &[Given],
    checked: &[&str],
) {
    let spec = KernelSpec {
        defines: defines.iter().copied().collect(),
        operands: operands.iter().map(|(t, n)| (*n > 0).then_some(*t)).collect(),
        ..blank()
    };
    let words: Vec<u32> = words.iter().map(|w| *w as u32).collect();
    assert_eq!(words.len(), K::Signature::PARAMS.len());
    let mut data: Vec<Vec<u8>> = operands.iter().map(|(t, n)| vec![0; n * t.size()]).collect();
    let whole: Vec<Option<Memory>> = data
        .iter_mut()
        .map(|d| (!d.is_empty()).then(|| memory(d)))
        .collect();
    for isa in Isa::supported() {
        let kernel = K::new(&spec, isa).expect("a kernel");
        let fits = |operands: &[Option<Memory>]| {
            kernel.fits(&<K::Signature as Signature>::On::<Bound>::read(&words, operands).expect("arguments"))
        };
        assert!(fits(&whole), "{isa:?} {words:?}");
        for name in checked {
            let i = K::Signature::OPERANDS
                .iter()
                .position(|operand| operand.name == *name)
                .expect("an operand");
            let mut less = whole.clone();
            let size = (operands[i].1 - 1) * operands[i].0.size();
            less[i] = less[i].and_then(|m| m.view(0, size));
            assert!(!fits(&less), "{isa:?} {words:?}: less of {name}");
        }
    }
}

#[test]
fn smaller_operands_of_rows_do_not_fit() {
    check::<crate::kernels::softmax::cpu::Softmax>(&[], &[3, 7], &[(F, 21), (F, 21)], &["x", "y"]);
    let sizes = [(F, 30), (F, 30)];
    check::<crate::kernels::softmax::cpu_axis::SoftmaxAxis>(&[], &[2, 5, 3], &sizes, &["x", "y"]);
    // Two sets of scales, each with three runs; then a scale for each column.
    let all = ["x", "scale", "bias", "mean", "variance", "y"];
    let sizes = [(F, 30), (F, 7), (F, 7), (F, 2), (F, 2), (F, 30)];
    check::<crate::kernels::norm::cpu::Norm>(&[], &[5, 6, 2, 4, 2, 0], &sizes, &all);
    let sizes = [(F, 30), (F, 6), (F, 6), (F, 0), (F, 0), (F, 30)];
    check::<crate::kernels::norm::cpu::Norm>(
        &[("BY_COLUMN", 1)],
        &[5, 6, 1, 6, 1, 0],
        &sizes,
        &["x", "scale", "bias", "y"],
    );
    check::<crate::kernels::lrn::cpu::Lrn>(&[], &[30, 3, 5, 1, 1, 0, 0, 0], &[(F, 30), (F, 30)], &["x"]);
    // Products that overflow.
    let most = u32::MAX as usize;
    let spec = blank();
    let kernel = crate::kernels::softmax::cpu_axis::SoftmaxAxis::new(&spec, Isa::Portable).expect("a kernel");
    let mut data = [0f32; 4];
    let some = Some(memory(&mut data));
    let fits = |words: [usize; 3]| {
        let words = words.map(|w| w as u32);
        kernel.fits(&Arguments::read(&words, &[some, some]).expect("arguments"))
    };
    assert!(!fits([most, most, most]) && fits([most, most, 0]) && fits([2, 1, 2]));
}

#[test]
fn smaller_operands_of_attention_do_not_fit() {
    use crate::kernels::attention::cpu::Attention;
    use crate::kernels::rotary::cpu::Rotary;
    use crate::kernels::rotary_append::cpu::RotaryAppend;
    let all = ["x", "cosine", "sine", "y"];
    let sizes = [(F, 48), (F, 12), (F, 12), (F, 48)];
    check::<Rotary>(&[], &[48, 4, 6, 6], &sizes, &all);
    let sizes = [(F, 48), (F, 4), (F, 4), (F, 48)];
    check::<Rotary>(&[("NEIGHBOURS", 1)], &[48, 4, 6, 2], &sizes, &all);
    let sizes = [
        (F, 48),
        (F, 24),
        (F, 24),
        (F, 12),
        (F, 12),
        (I, 2),
        (I, 3),
        (F, 48),
        (H, 24),
        (F, 24),
    ];
    let all = ["q", "k", "v", "cosine", "sine", "places", "live", "y"];
    check::<RotaryAppend>(&[], &[48, 24, 4, 2, 6, 6, 2], &sizes, &all);
    // Two sequences of 3 rows, 4 heads of 6 elements, and a mask of 3 rows.
    let sizes = [
        (F, 144),
        (F, 120),
        (H, 120),
        (F, 6),
        (I, 0),
        (I, 0),
        (I, 1),
        (F, 144),
    ];
    let words = [4, 2, 3, 5, 0, 0, 0, 2, 0, 0, 0, 2];
    check::<Attention>(
        &[("DIM", 6), ("RING", 5)],
        &words,
        &sizes,
        &["q", "k", "v", "live", "y"],
    );
    let sizes = [(F, 20), (I, 5), (I, 1), (H, 12)];
    let all = ["x", "places", "live", "state"];
    check::<crate::kernels::kv_append::cpu::KvAppend>(&[("RING", 12)], &[20, 0, 4], &sizes, &all);
    let sizes = [(F, 24), (I, 2), (I, 1), (I, 15)];
    let defines = [("RING", 5), ("DIM", 8)];
    check::<crate::kernels::kv_append_q8::cpu::KvAppendQ8>(&defines, &[3, 0, 2], &sizes, &all);
}

#[test]
fn masks_have_an_element_for_each_live_key() {
    use crate::kernels::attention::cpu::{Args, Attention};
    let spec = KernelSpec {
        defines: [("DIM", 2)].into_iter().collect(),
        operands: vec![Some(F), Some(F), Some(F), Some(F), None, None, Some(I), Some(F)],
        ..blank()
    };
    let kernel = Attention::new(&spec, Isa::Portable).expect("a kernel");
    let (mut q, mut k, mut v, mut y) = ([0f32; 6], [0f32; 10], [0f32; 10], [0f32; 6]);
    // Three rows of five keys, of which `live` exist.
    for (live, size, fits) in [(5, 15, true), (5, 14, false), (4, 14, true), (9, 15, true)] {
        let (mut mask, mut live) = (vec![0f32; size], [live]);
        let operands = [
            Some(memory(&mut q)),
            Some(memory(&mut k)),
            Some(memory(&mut v)),
            Some(memory(&mut mask)),
            None,
            None,
            Some(memory(&mut live)),
            Some(memory(&mut y)),
        ];
        let words = [1, 1, 3, 5, 0, 0, 0, 5, 1, 0, 0, 1];
        let args: Args = Arguments::read(&words, &operands).expect("arguments");
        assert_eq!(kernel.fits(&args), fits, "{live:?} live keys, mask of {size}");
    }
}

#[test]
fn smaller_operands_of_matmuls_do_not_fit() {
    use crate::kernels::matmul::cpu::MatMul;
    let all = ["a", "b", "y"];
    // Two batches share b. Results are columns 1..8 of 9.
    let words = [3, 7, 5, 7, 9, 1, 2, 1, 15, 0, 0, 0, 0, 0, 2];
    check::<MatMul>(&[], &words, &[(F, 30), (F, 35), (F, 53)], &all);
    check::<MatMul>(&[], &words, &[(F, 30), (H, 35), (F, 53)], &all);
    // b is transposed, with rows 6 elements apart, and each batch has its own.
    let words = [3, 7, 5, 6, 7, 0, 2, 1, 15, 0, 0, 42, 0, 0, 2];
    check::<MatMul>(&[("TRANS_B", 1)], &words, &[(F, 30), (F, 83), (F, 42)], &all);
    for weights in [F, H] {
        let sizes = [(F, 15), (weights, 160), (F, 51)];
        check::<crate::kernels::matmul::cpu_panels::MatMulPanels>(&[], &[3, 17, 5], &sizes, &["x", "w", "y"]);
    }
    let sizes = [
        (F, 96),
        (I, 2 * 16 * 4),
        (I, 2 * 16),
        (I, 2 * 16 * 4),
        (I, 2 * 16),
        (F, 51),
    ];
    let defines = [("BITS", 4), ("GROUP", 32)];
    let all = ["x", "codes", "scales", "codes2", "scales2"];
    let words = [3, 17, 32, 17, 0, 0, 0, 0, 0];
    check::<crate::kernels::product_e0m::cpu_float::ProductE0mFloat>(&defines, &words, &sizes, &all);
    // One quantized row: 8 words and a pair of factors for each 32 activations.
    let defines = [("BITS", 4), ("GROUP", 32), ("BLOCK", 32)];
    let sizes = [(I, 8), (F, 2), (I, 16 * 4), (I, 16), (I, 0), (I, 0), (F, 16)];
    let words = [1, 16, 32, 16, 0, 0, 0, 0, 0];
    let all = ["x", "factors", "codes", "scales"];
    check::<crate::kernels::product_e0m::cpu::ProductE0m>(&defines, &words, &sizes, &all);
}

#[test]
fn smaller_operands_of_windows_do_not_fit() {
    let window = [("KH", 3), ("KW", 2), ("SH", 1), ("SW", 1), ("DH", 1), ("DW", 1)];
    let all = ["x", "w", "bias", "y"];
    // Two images, two groups of 3 input and 7 output channels.
    let words = [2, 2, 3, 7, 4, 5, 2, 4, 0, 0];
    let sizes = [(F, 2 * 6 * 20), (F, 2 * 12 * 18), (F, 14), (F, 2 * 14 * 8)];
    check::<crate::kernels::conv::cpu_panels::ConvPanels>(&window, &words, &sizes, &all);
    let words = [2, 3, 2, 4, 5, 2, 4, 0, 0];
    let sizes = [(F, 2 * 3 * 20), (F, 6 * 6), (F, 6), (F, 2 * 6 * 8)];
    check::<crate::kernels::conv::cpu_depthwise::ConvDepthwise>(&window, &words, &sizes, &all);
    // As the first one.
    let words = [4, 5, 2, 4, 3, 7, 14, 2, 0, 4, 120, 240, 0, 0];
    let sizes = [(F, 240), (F, 14 * 18), (F, 14), (F, 2 * 14 * 8)];
    let defines = [&window[..], &[("TILE", 4)]].concat();
    check::<crate::kernels::conv::cpu::Conv>(&defines, &words, &sizes, &["x", "w", "bias"]);
    let sizes = [(F, 60), (F, 24)];
    check::<crate::kernels::pool::cpu::Pool>(&window, &[24, 4, 5, 2, 4, 0, 0, 0, 0], &sizes, &["x"]);
    let defines = [("COORDINATES", 0), ("TAPS", 2), ("HIGH", 1)];
    let words = [96, 2, 4, 3, 5, 4, 1, 4, 8, 10, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    check::<crate::kernels::resize::cpu::Resize>(&defines, &words, &[(F, 60), (F, 96)], &["x"]);
}

#[test]
fn smaller_operands_of_copies_do_not_fit() {
    let sizes = [(F, 30), (I, 4), (F, 20)];
    check::<crate::kernels::gather::cpu::Gather>(&[], &[20, 5, 4, 6, 0, 6], &sizes, &["y"]);
    check::<crate::kernels::range::cpu::Range>(&[], &[5, 2, 1], &[(I, 3), (I, 5)], &["live"]);
}

#[test]
fn smaller_operands_of_bytes_do_not_fit() {
    let window = [("KH", 2), ("KW", 3), ("SH", 1), ("SW", 1), ("DH", 1), ("DW", 1)];
    let fixed = [&window[..], &[("FIXED", 1)]].concat();
    let all = ["x", "w", "bias", "factors", "y"];
    // Two images of 4 x 5 elements of four words, two groups with a word of results each.
    let words = [4, 5, 3, 3, 2, 4, 1, 2, 18, 0, 0, 0, 0, 0, 9];
    let mut sizes = [(I, 160), (I, 16 * 13), (I, 8), (I, 8), (I, 36)];
    check::<crate::kernels::int8_conv::cpu::Int8Conv>(&window, &words, &sizes, &all);
    sizes[3] = (I, 16);
    check::<crate::kernels::int8_conv::cpu::Int8Conv>(&fixed, &words, &sizes, &all);
    let words = [4, 5, 3, 3, 4, 18, 0, 0, 0, 0, 0, 9];
    let mut sizes = [(I, 160), (I, 24), (I, 16), (I, 16), (I, 72)];
    check::<crate::kernels::int8_conv::cpu_depthwise::Int8Depthwise>(&window, &words, &sizes, &all);
    sizes[3] = (I, 32);
    check::<crate::kernels::int8_conv::cpu_depthwise::Int8Depthwise>(&fixed, &words, &sizes, &all);
    let words = [72, 4, 5, 3, 3, 4, 0, 0, 4, 5, 0, 0, 0, 9];
    let sizes = [(I, 160), (I, 6), (I, 72)];
    let sum = [&window[..], &[("SUM", 1)]].concat();
    check::<crate::kernels::int8_pool::cpu::Int8Pool>(&sum, &words, &sizes, &["x", "factors", "y"]);
    // Two batches of 3 x 8 by 5 x 8; a row of results has two words.
    let words = [3, 5, 7, 2, 0, 2, 6, 10, 2, 0, 0, 0, 0, 0, 0, 9, 0];
    let sizes = [(I, 12), (I, 20), (I, 12)];
    check::<crate::kernels::int8_matmul::cpu::Int8MatMul>(&[], &words, &sizes, &["a", "b", "y"]);
    // Three rows of five words, and a row for all of them.
    let words = [15, 5, 5, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let sizes = [(I, 15), (I, 5), (I, 768), (I, 15)];
    check::<crate::kernels::int8_binary::cpu::Int8Binary>(&[], &words, &sizes, &["a", "b", "y"]);
}

#[test]
fn smaller_operands_of_tables_and_conversions_of_bytes_do_not_fit() {
    let all = ["x", "table", "y"];
    check::<crate::kernels::int8_table::cpu::Int8Table>(&[], &[15], &[(I, 15), (I, 64), (I, 15)], &all);
    let sizes = [(I, 15), (I, 256), (I, 15)];
    check::<crate::kernels::int8_softmax::cpu::Int8Softmax>(&[], &[3, 18, 5], &sizes, &all);
    // Two times 6 channels of 7 elements.
    let sizes = [(F, 84), (F, 256), (I, 28)];
    check::<crate::kernels::int8_quantize::cpu::Int8Quantize>(
        &[],
        &[28, 6, 2, 7, 0, 0, 0, 0, 9],
        &sizes,
        &["x", "y"],
    );
    let sizes = [(I, 28), (F, 84)];
    check::<crate::kernels::int8_quantize::cpu::Int8Dequantize>(&[], &[84, 6, 8, 7, 0, 0], &sizes, &["x"]);
    let sizes = [(I, 84), (I, 28)];
    check::<crate::kernels::int8_layout::cpu::Int8Enter>(&[], &[28, 6, 2, 7, 0], &sizes, &["x", "y"]);
    let sizes = [(I, 28), (I, 84)];
    check::<crate::kernels::int8_layout::cpu::Int8Leave>(&[], &[84, 6, 8, 7, 0], &sizes, &["x"]);
}

#[test]
fn windows_whose_places_have_no_numbers_do_not_fit() {
    use crate::kernels::conv::cpu::Conv;
    use crate::kernels::conv::cpu_depthwise::ConvDepthwise;
    fn fits<K: NativeKernel>(dilation: i64, words: &[u32]) -> bool {
        let names = [("KH", 1), ("SH", 1), ("DH", 1), ("KW", 2), ("SW", 1), ("TILE", 1)];
        let spec = KernelSpec {
            defines: names.into_iter().chain([("DW", dilation)]).collect(),
            operands: vec![Some(F); 4],
            ..blank()
        };
        let mut data = [0f32; 2];
        let operands = [Some(memory(&mut data)); 4];
        let kernel = K::new(&spec, Isa::Portable).expect("a kernel");
        kernel.fits(&<K::Signature as Signature>::On::<Bound>::read(words, &operands).expect("arguments"))
    }
    let words = [1, 1, 1, 1, 1, 1, 1, 0, 0];
    let depthwise = [1, 1 << 32].map(|dilation| fits::<ConvDepthwise>(dilation, &words));
    assert_eq!(depthwise, [true, false], "an offset of 32 bits");
    let conv = [1i32, -1].map(|total| {
        let words = [1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, total.cast_unsigned(), 0, 0];
        fits::<Conv>(1, &words)
    });
    assert_eq!(conv, [true, false], "a number of elements");
}
