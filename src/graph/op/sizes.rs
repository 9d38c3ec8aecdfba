//! The sizes of a node's operands and results in one run, of which an operator tells what it computes and reads
//! ([`super::Op::flops`], [`super::Op::elements_read`]). Numbers that exceed 64 bits stay at the largest.

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Shape of each operand; `None` where an optional one is left out.
    pub inputs: Vec<Option<Vec<u64>>>,
    /// Shape of each result.
    pub outputs: Vec<Vec<u64>>,
}

/// Number of elements of a shape.
pub fn elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |n, d| n.saturating_mul(*d))
}

impl Sizes {
    /// The shape of operand `i`; empty for one that is left out.
    pub fn input(&self, i: usize) -> &[u64] {
        let given = self.inputs.get(i).and_then(Option::as_deref);
        given.unwrap_or_default()
    }

    /// Elements of operand `i`; 0 for one that is left out.
    pub fn input_elements(&self, i: usize) -> u64 {
        let given = self.inputs.get(i).and_then(Option::as_deref);
        given.map_or(0, elements)
    }

    /// The shape of result `i`; empty where nothing reads it.
    pub fn output(&self, i: usize) -> &[u64] {
        self.outputs.get(i).map(Vec::as_slice).unwrap_or_default()
    }

    /// Elements of all results.
    pub fn results(&self) -> u64 {
        self.outputs
            .iter()
            .fold(0, |n, shape| n.saturating_add(elements(shape)))
    }

    /// Operations of products whose results, all of them, are sums of `summed` products each.
    pub fn multiply_adds(&self, summed: u64) -> u64 {
        self.results().saturating_mul(summed).saturating_mul(2)
    }

    /// The same of a product of rows along the last axis of operand 0.
    pub fn row_products(&self) -> u64 {
        self.multiply_adds(self.input(0).last().copied().unwrap_or(1))
    }

    /// The same of a convolution, whose weights are operand 1: `[m, c / group, kernel..]`.
    pub fn convolution(&self) -> u64 {
        self.multiply_adds(elements(self.input(1).get(1..).unwrap_or_default()))
    }
}
