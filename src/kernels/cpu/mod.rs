//! The native kernels, and what they share.

#[cfg(test)]
mod fits;
pub mod gemm;
#[cfg(test)]
pub mod harness;
#[cfg(test)]
pub mod int8_testing;
pub mod int8_tile;
pub mod moves;
#[cfg(test)]
pub mod testing;
pub mod window;

use super::{
    arg_max, attention, check_indices, concat, conv, cumulative, dynamic_quantize, gather, gather_e0m,
    gather_places, grid_sample, int8_binary, int8_conv, int8_layout, int8_matmul, int8_pool, int8_quantize,
    int8_softmax, int8_table, kv_append, kv_append_q8, lrn, matmul, matmul_integer, norm, pad, pointwise,
    pool, probe, product_e0m, range, reduce, resize, rotary, rotary_append, softmax, strided, top_k, trilu,
};
use crate::backend::cpu::dispatch::{Entry, Table, compile};
use crate::backend::isa::Isa;

/// All native kernels.
pub static TABLE: Table = Table {
    entries: ENTRIES,
    has: |spec| compile(ENTRIES, spec, Isa::best()).is_some(),
    runs: |kernel| ENTRIES.iter().any(|e| e.is_of(kernel)),
};

static ENTRIES: &[Entry] = &[
    Entry::new::<arg_max::cpu::ArgMax>(&arg_max::KERNEL),
    Entry::new::<attention::cpu::Attention>(&attention::KERNEL),
    Entry::new::<check_indices::cpu::CheckIndices>(&check_indices::KERNEL),
    Entry::new::<concat::cpu::Concat>(&concat::KERNEL),
    Entry::new::<conv::cpu::Conv>(&conv::KERNEL),
    Entry::new::<conv::cpu_depthwise::ConvDepthwise>(&conv::DEPTHWISE),
    Entry::new::<conv::cpu_panels::ConvPanels>(&conv::PANELS),
    Entry::new::<cumulative::cpu::Cumulative>(&cumulative::KERNEL),
    Entry::new::<dynamic_quantize::cpu::DynamicQuantize>(&dynamic_quantize::KERNEL),
    Entry::new::<gather::cpu::Gather>(&gather::KERNEL),
    Entry::new::<gather_e0m::cpu::GatherE0m>(&gather_e0m::KERNEL),
    Entry::new::<gather_places::cpu::GatherPlaces>(&gather_places::KERNEL),
    Entry::new::<grid_sample::cpu::GridSample>(&grid_sample::KERNEL),
    Entry::new::<int8_binary::cpu::Int8Binary>(&int8_binary::KERNEL),
    Entry::new::<int8_conv::cpu::Int8Conv>(&int8_conv::KERNEL),
    Entry::new::<int8_conv::cpu_depthwise::Int8Depthwise>(&int8_conv::DEPTHWISE),
    Entry::new::<int8_quantize::cpu::Int8Dequantize>(&int8_quantize::DEQUANTIZE),
    Entry::new::<int8_layout::cpu::Int8Enter>(&int8_layout::ENTER),
    Entry::new::<int8_layout::cpu::Int8Leave>(&int8_layout::LEAVE),
    Entry::new::<int8_matmul::cpu::Int8MatMul>(&int8_matmul::KERNEL),
    Entry::new::<int8_pool::cpu::Int8Pool>(&int8_pool::KERNEL),
    Entry::new::<int8_quantize::cpu::Int8Quantize>(&int8_quantize::QUANTIZE),
    Entry::new::<int8_softmax::cpu::Int8Softmax>(&int8_softmax::KERNEL),
    Entry::new::<int8_table::cpu::Int8Table>(&int8_table::KERNEL),
    Entry::new::<kv_append::cpu::KvAppend>(&kv_append::KERNEL),
    Entry::new::<kv_append_q8::cpu::KvAppendQ8>(&kv_append_q8::KERNEL),
    Entry::new::<lrn::cpu::Lrn>(&lrn::KERNEL),
    Entry::new::<matmul::cpu::MatMul>(&matmul::KERNEL),
    Entry::new::<matmul_integer::cpu::MatMulInteger>(&matmul_integer::KERNEL),
    Entry::new::<matmul::cpu_panels::MatMulPanels>(&matmul::PANELS),
    Entry::new::<norm::cpu::Norm>(&norm::KERNEL),
    Entry::new::<pad::cpu::Pad>(&pad::KERNEL),
    Entry::new::<pointwise::cpu::Pointwise>(&pointwise::KERNEL),
    Entry::new::<pool::cpu::Pool>(&pool::KERNEL),
    Entry::new::<probe::cpu::Copy>(&probe::COPY),
    Entry::new::<probe::cpu::Dots>(&probe::DOT),
    Entry::new::<probe::cpu::Floats>(&probe::SINGLE),
    Entry::new::<probe::cpu::Read>(&probe::READ),
    Entry::new::<product_e0m::cpu::ProductE0m>(&product_e0m::PRODUCT),
    Entry::new::<product_e0m::cpu_float::ProductE0mFloat>(&product_e0m::FLOAT_PRODUCT),
    Entry::new::<product_e0m::cpu_quantize::Quantize>(&product_e0m::QUANTIZE),
    Entry::new::<probe::cpu::Random>(&probe::RANDOM),
    Entry::new::<range::cpu::Range>(&range::KERNEL),
    Entry::new::<reduce::cpu::Reduce>(&reduce::KERNEL),
    Entry::new::<resize::cpu::Resize>(&resize::KERNEL),
    Entry::new::<rotary::cpu::Rotary>(&rotary::KERNEL),
    Entry::new::<rotary_append::cpu::RotaryAppend>(&rotary_append::KERNEL),
    Entry::new::<gather_places::cpu::Scatter>(&gather_places::SCATTER),
    Entry::new::<softmax::cpu::Softmax>(&softmax::LAST),
    Entry::new::<softmax::cpu_axis::SoftmaxAxis>(&softmax::INNER),
    Entry::new::<strided::cpu::Strided>(&strided::KERNEL),
    Entry::new::<top_k::cpu::TopK>(&top_k::KERNEL),
    Entry::new::<trilu::cpu::Trilu>(&trilu::KERNEL),
];

/// A spec without defines and operands.
#[cfg(test)]
pub fn blank() -> crate::backend::kernel::KernelSpec {
    crate::backend::kernel::KernelSpec {
        kernel: &softmax::LAST,
        workgroup: 1,
        defines: std::collections::BTreeMap::new(),
        operands: Vec::new(),
        in_place: None,
        epilogue: None,
        images: std::collections::BTreeMap::new(),
    }
}
