//! Reductions over axes.

#[cfg(feature = "cpu")]
pub mod cpu;

/// The function that is applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    Same,
    Absolute,
    Squared,
    /// `exp(x - max)`; max is added at the end.
    Exponential,
}

impl Map {
    pub const ALL: [Self; 4] = [Self::Same, Self::Absolute, Self::Squared, Self::Exponential];
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    Sum,
    Largest,
    Smallest,
    Product,
}

impl Join {
    pub const ALL: [Self; 4] = [Self::Sum, Self::Largest, Self::Smallest, Self::Product];
}

/// The function that is applied to the combined elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Same,
    Mean,
    Root,
    Logarithm,
}

impl Finish {
    pub const ALL: [Self; 4] = [Self::Same, Self::Mean, Self::Root, Self::Logarithm];
}

/// Index of the [`Map`].
pub const MAP: &str = "MAP";
/// Index of the [`Join`].
pub const JOIN: &str = "JOIN";
/// Index of the [`Finish`].
pub const FINISH: &str = "FINISH";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "reduce/reduce" {
        rows, cols, n1, n2, k0, k1, k2, m1, m2, r0, r1, r2: U32
    } [x: In, y: Out]
    .wide()
}
