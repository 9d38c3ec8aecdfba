//! Changes between the layouts of the integer domain and of ONNX.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static ENTER: TypedKernel<EnterArgs> = "quantized/int8_enter" {
        count, channels, words, inner, flip: U32
    } [x: In, y: Out Uint]
    .linear()
}

crate::kernel! {
    pub static LEAVE: TypedKernel<LeaveArgs> = "quantized/int8_leave" {
        count, channels, stride, inner: U32; offset: I32
    } [x: In Uint, y: Out]
    .linear()
}
