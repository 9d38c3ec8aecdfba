//! Elements at places that an operand gives, read or written.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Number of indices of a place, if it has several.
pub const TUPLE: &str = "TUPLE";

crate::kernel! {
    /// Gathers the elements that indices point to.
    pub static KERNEL: TypedKernel<Args> = "movement/gather_places" {
        count, row: U32;
        n0, n1, n2, n3: I32;
        s0, s1, s2, s3, m1, m2, m3, m4, t0, t1, t2, t3, t4: U32
    } [x: In, index: In, y: Out]
    .linear()
}

crate::kernel! {
    pub static SCATTER: TypedKernel<Args> = "movement/scatter" with [y: PartialOut Single]
    .linear()
}
