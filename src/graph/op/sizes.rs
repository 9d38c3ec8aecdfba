//! The sizes of a node's operands and results in one run, from which an operator computes its cost
//! ([`super::Op::flops`], [`super::Op::elements_read`]). Numbers saturate at 64 bits.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Shape of each operand; `None` for an omitted one.
    pub inputs: Vec<Option<Vec<u64>>>,
    /// Shape of each result.
    pub outputs: Vec<Vec<u64>>,
}

/// Number of elements of a shape.
pub fn elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |n, d| n.saturating_mul(*d))
}

impl Sizes {
    /// The shape of operand `i`; empty if it is omitted.
    pub fn input(&self, i: usize) -> &[u64] {
        let given = self.inputs.get(i).and_then(Option::as_deref);
        given.unwrap_or_default()
    }

    /// Elements of operand `i`; 0 if it is omitted.
    pub fn input_elements(&self, i: usize) -> u64 {
        let given = self.inputs.get(i).and_then(Option::as_deref);
        given.map_or(0, elements)
    }

    /// The shape of result `i`; empty if it is unused.
    pub fn output(&self, i: usize) -> &[u64] {
        self.outputs.get(i).map(Vec::as_slice).unwrap_or_default()
    }

    /// Elements of all results.
    pub fn results(&self) -> u64 {
        self.outputs
            .iter()
            .fold(0, |n, shape| n.saturating_add(elements(shape)))
    }

    /// Operations of a matmul-like operator: `summed` multiply-adds for each result.
    pub fn multiply_adds(&self, summed: u64) -> u64 {
        self.results().saturating_mul(summed).saturating_mul(2)
    }

    /// Operations of a matmul over the last axis of operand 0.
    pub fn row_products(&self) -> u64 {
        self.multiply_adds(self.input(0).last().copied().unwrap_or(1))
    }

    /// The shape of the weights in operand 1 after the first axis; empty if they are omitted.
    pub fn taps(&self) -> &[u64] {
        self.input(1).split_first().map_or(&[], |(_, taps)| taps)
    }

    /// Operations of a convolution with weights `[m, c / group, kernel..]` in operand 1.
    pub fn convolution(&self) -> u64 {
        self.multiply_adds(elements(self.taps()))
    }
}
