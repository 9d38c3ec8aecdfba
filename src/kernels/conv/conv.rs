//! Convolution and transposed convolution.

#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cpu")]
pub mod cpu_depthwise;
#[cfg(feature = "cpu")]
pub mod cpu_panels;

/// Weights are packed for tiles of [`TILE`] channels.
pub const PACKED: &str = "PACKED";
/// Output channels of a tile.
pub const TILE: &str = "TILE";
/// Computes the transposed convolution.
pub const TRANSPOSED: &str = "TRANSPOSED";

crate::kernel! {
    /// Convolution and transposed convolution.
    pub static KERNEL: TypedKernel<Args> = "conv/conv" {
        in_h, in_w, out_h, out_w, channels, rows, outputs, tiles, first, parts, image: U32;
        total, pad_h, pad_w: I32
    } [x: In, w: In, bias: OptionalIn, y: PartialOut Single]
    .finite_halves()
}

crate::kernel! {
    /// `channels` and `rows` are the input and output channels of a group.
    pub static PANELS: TypedKernel<PanelArgs> = native "conv/conv_panels" {
        images, groups, channels, rows, in_h, in_w, out_h, out_w: U32; pad_h, pad_w: I32
    } [x: In, w: In, bias: OptionalIn, y: Out]
}

crate::kernel! {
    /// One input channel per group; each has `rows` output channels.
    pub static DEPTHWISE: TypedKernel<DepthwiseArgs> = native "conv/conv_depthwise" {
        images, channels, rows, in_h, in_w, out_h, out_w: U32; pad_h, pad_w: I32
    } [x: In, w: In, bias: OptionalIn, y: Out]
}

crate::kernel! {
    /// The kernel; its operands have the names of the tiled matmul.
    pub static TILED: TypedKernel<TiledArgs> = "conv/conv_tiled" {
        m, n, k, b_stride, in_h, in_w, out_w: U32;
        pad_h, pad_w: I32;
        outputs, first, groups, first_group, all_groups, batches: U32
    } [a: In, b: In, bias: OptionalIn, y: PartialOut Single]
    .variant_of(&KERNEL.kernel, |device| device.fast_local)
    .finite_halves()
}
