//! Graph passes. Each one changes the graph through [`Edit`] and logs why it skips a candidate; the
//! graph is checked after each.

mod cleanup;
mod decoder;
mod fuse;
pub mod pattern;

pub(crate) use cleanup::decompose::keeps_cache;
pub use decoder::greedy::TOKEN;
pub use decoder::last_row::ROWS;

use super::{Edit, Graph, derive};
use crate::backend::Caps;
use crate::error::Result;

/// A named transformation of a graph.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name in reports and options.
    pub name: &'static str,
    /// Performs all its rewrites.
    pub run: fn(&mut Edit<'_>) -> Result<()>,
}

/// Inlines the branch of an `If` whose condition is known.
pub const INLINE_IF: Pass = Pass {
    name: "inline_if",
    run: cleanup::inline_if::run,
};
/// Computes constants and known shape arithmetic.
pub const FOLD: Pass = Pass {
    name: "fold",
    run: cleanup::fold::run,
};
/// Replaces operators by their parts; see [`super::Op::parts`].
pub const DECOMPOSE: Pass = Pass {
    name: "decompose",
    run: cleanup::decompose::run,
};
/// Replaces operators that keep a cache by their parts.
pub const CACHES: Pass = Pass {
    name: "caches",
    run: cleanup::decompose::caches,
};
/// Replaces a matmul with an inner size of 1 by a multiplication.
pub const OUTER: Pass = Pass {
    name: "outer",
    run: cleanup::outer::run,
};
/// Replaces a split by slices.
pub const SPLIT: Pass = Pass {
    name: "split",
    run: cleanup::split::run,
};
/// Replaces a gather of one known index of an inner axis by a slice.
pub const PICK: Pass = Pass {
    name: "pick",
    run: cleanup::pick::run,
};
/// Removes operators that change nothing.
pub const IDENTITY: Pass = Pass {
    name: "identity",
    run: cleanup::identity::run,
};
/// Replaces `Gemm` by a matmul with elementwise operators around it.
pub const GEMM: Pass = Pass {
    name: "gemm",
    run: cleanup::gemm::run,
};
/// Merges nodes that compute the same.
pub const DUPLICATES: Pass = Pass {
    name: "duplicates",
    run: cleanup::duplicates::run,
};
/// Folds a batch normalization into the convolution before it.
pub const CONV_NORM: Pass = Pass {
    name: "conv_norm",
    run: cleanup::conv_norm::run,
};
/// Fuses `x / sqrt(mean(x^2) + e) * w` into [`super::op::rms_norm::RmsNorm`], and the same with
/// `x - mean(x)` into [`super::op::norm::Norm`].
pub const NORM: Pass = Pass {
    name: "norm",
    run: fuse::norm::run,
};
/// Fuses `x * cos + rotate_half(x) * sin` into [`super::op::rotary::Rotary`].
pub const ROTARY: Pass = Pass {
    name: "rotary",
    run: fuse::rotary::run,
};
/// Fuses the rotary embedding of interleaved pairs into [`super::op::rotary::Rotary`].
pub const NEIGHBOURS: Pass = Pass {
    name: "neighbours",
    run: fuse::neighbours::run,
};
/// Cancels or merges transposes, reshapes, slices and concatenations.
pub const MOVES: Pass = Pass {
    name: "moves",
    run: cleanup::moves::run,
};
/// Makes matmuls read a transposed operand without the transpose.
pub const TRANS_B: Pass = Pass {
    name: "trans_b",
    run: cleanup::trans_b::run,
};
/// Turns pairs of past and present into state that is appended to in place.
pub const KV_CACHE: Pass = Pass {
    name: "kv_cache",
    run: decoder::kv_cache::run,
};
/// Stores states that only attention reads in 8 bits.
pub const KV_Q8: Pass = Pass {
    name: "kv_q8",
    run: decoder::kv_q8::run,
};
/// Makes matmuls with E0M weights use int8 activations.
pub const INT8_ACTIVATIONS: Pass = Pass {
    name: "int8_activations",
    run: decoder::int8_activations::run,
};
/// Fuses scores, softmax and weighted sum into [`super::op::attention::Attention`].
pub const ATTENTION: Pass = Pass {
    name: "attention",
    run: fuse::attention::run,
};
/// Sets the sliding window of attention from its mask, and limits caches to it.
pub const WINDOW: Pass = Pass {
    name: "window",
    run: decoder::window::run,
};
/// Fuses elementwise chains into one operator.
pub const FUSE: Pass = Pass {
    name: "fuse",
    run: fuse::elementwise::run,
};
/// Fuses elementwise operators into the operator before them.
pub const EPILOGUE: Pass = Pass {
    name: "epilogue",
    run: fuse::epilogue::run,
};
/// Fuses matmuls of one operand with E0M weights into one node.
pub const JOINT_MATMUL_E0M: Pass = Pass {
    name: "joint_matmul_e0m",
    run: fuse::joint_matmul_e0m::run,
};
/// Fuses a gate-up pair (SwiGLU) of matmuls of one row into one node.
pub const GATED_PRODUCT: Pass = Pass {
    name: "gated_product",
    run: fuse::gated_product::run,
};
/// Fuses a normalization of one row into the matmuls that read it.
pub const NORMED_PRODUCT: Pass = Pass {
    name: "normed_product",
    run: fuse::normed_product::run,
};
/// Fuses rotary embedding and cache appends before an attention into one node, for devices that
/// benefit from fewer dispatches.
pub const ROTARY_APPEND: Pass = Pass {
    name: "rotary_append",
    run: fuse::rotary_append::run,
};
/// Computes only the last row of the output `logits`.
pub const LAST_ROW: Pass = Pass {
    name: "last_row",
    run: decoder::last_row::run,
};

/// Computes only the last rows of the output `logits`, as many as the input [`ROWS`] has elements.
pub const LAST_ROWS: Pass = Pass {
    name: "last_rows",
    run: decoder::last_row::run_many,
};
/// Adds an output [`TOKEN`] with the index of the largest element in each row of the output
/// `logits`.
pub const GREEDY: Pass = Pass {
    name: "greedy",
    run: decoder::greedy::run,
};

/// Every pass of [`Pipeline::standard`], in order.
pub const STANDARD: &[Pass] = &[
    INLINE_IF,
    FOLD,
    DECOMPOSE,
    IDENTITY,
    DUPLICATES,
    GEMM,
    OUTER,
    PICK,
    SPLIT,
    CONV_NORM,
    NORM,
    ROTARY,
    NEIGHBOURS,
    MOVES,
    TRANS_B,
    KV_CACHE,
    ATTENTION,
    WINDOW,
    FUSE,
    EPILOGUE,
    JOINT_MATMUL_E0M,
];

/// Passes for graphs whose runs have one row, after all others. Decoders have a separate graph for
/// them ([`Pipeline::take_one_row`]).
pub const ONE_ROW: &[Pass] = &[GATED_PRODUCT, NORMED_PRODUCT];

/// Result of one pass.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct PassReport {
    /// Name of the pass.
    pub pass: &'static str,
    /// Rewrites made.
    pub edits: usize,
    /// Nodes before the pass.
    pub nodes_before: usize,
    /// Nodes after the pass and the removal of dead nodes.
    pub nodes_after: usize,
}

/// Passes in order.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The passes.
    pub passes: Vec<Pass>,
    /// Limit on rewrites over all passes, for bisecting a wrong result to one rewrite.
    pub edit_limit: usize,
}

impl Pipeline {
    /// The passes for devices.
    pub fn standard() -> Self {
        Self {
            passes: STANDARD.to_vec(),
            edit_limit: usize::MAX,
        }
    }

    /// Adds the passes that this device benefits from.
    #[must_use]
    pub fn on(mut self, caps: &Caps) -> Self {
        self.passes.push(ROTARY_APPEND);
        // Each work-group normalizes the row itself and uses registers for two weights; GPUs of
        // phones have too few cores and registers (docs/benchmarks/phone-kernels.md).
        if caps.explicit_vectors() || caps.fast_local || caps.lane_broadcast() {
            self.passes.extend([GATED_PRODUCT, NORMED_PRODUCT]);
        }
        self
    }

    /// Moves the passes of [`ONE_ROW`] out, in order.
    #[must_use]
    pub fn take_one_row(&mut self) -> Self {
        let is = |p: &Pass| ONE_ROW.iter().any(|o| o.name == p.name);
        let (passes, others) = std::mem::take(&mut self.passes).into_iter().partition(is);
        self.passes = others;
        Self {
            passes,
            edit_limit: self.edit_limit,
        }
    }

    /// The passes for the host interpreter: only those that caches need, and none for kernels.
    pub fn host() -> Self {
        Self {
            passes: vec![INLINE_IF, FOLD, CACHES, TRANS_B, KV_CACHE],
            edit_limit: usize::MAX,
        }
    }

    /// The same passes without the named ones.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        self.passes.retain(|p| !names.contains(&p.name));
        self
    }

    /// Inserts `pass` before the named pass, or at the end.
    pub fn insert_before(&mut self, name: &str, pass: Pass) {
        let at = self.passes.iter().position(|p| p.name == name);
        self.passes.insert(at.unwrap_or(self.passes.len()), pass);
    }

    /// Runs the passes. Before the first pass and after each, shapes are derived; after each, the
    /// graph is checked.
    pub fn run(&self, graph: &mut Graph) -> Result<Vec<PassReport>> {
        derive::derive(graph)?;
        let mut reports = Vec::new();
        let mut left = self.edit_limit;
        for pass in &self.passes {
            let nodes_before = graph.nodes().count();
            let mut edit = Edit::with_limit(graph, left);
            (pass.run)(&mut edit)?;
            let edits = edit.count();
            left -= edits;
            edit.remove_dead();
            derive::derive(graph)?;
            graph.check()?;
            reports.push(PassReport {
                pass: pass.name,
                edits,
                nodes_before,
                nodes_after: graph.nodes().count(),
            });
        }
        Ok(reports)
    }
}
