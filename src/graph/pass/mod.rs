//! Graph passes: each changes the graph through [`Edit`], names what it refuses, and is checked afterwards.

mod attention;
mod conv_norm;
mod decompose;
mod duplicates;
mod epilogue;
mod fold;
mod fuse;
mod gated_product;
mod gemm;
mod greedy;
mod identity;
mod inline_if;
mod int8_activations;
mod joint_matmul_e0m;
mod kv_cache;
mod kv_q8;
mod last_row;
mod moves;
mod neighbours;
mod norm;
mod normed_product;
mod outer;
pub mod pattern;
mod pick;
mod rotary;
mod rotary_append;
mod split;
mod trans_b;
mod window;

pub(crate) use decompose::keeps_cache;
pub use greedy::TOKEN;
pub use last_row::ROWS;

use super::{Edit, Graph, derive};
use crate::backend::Caps;
use crate::error::Result;

/// One rewrite of a graph.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name in reports and options.
    pub name: &'static str,
    /// Makes all its rewrites.
    pub run: fn(&mut Edit<'_>) -> Result<()>,
}

/// Branches of known conditions take the place of their `If`.
pub const INLINE_IF: Pass = Pass {
    name: "inline_if",
    run: inline_if::run,
};
/// Constants are computed, shape arithmetic becomes known.
pub const FOLD: Pass = Pass {
    name: "fold",
    run: fold::run,
};
/// Operators become those that they are made of; see [`super::Op::parts`].
pub const DECOMPOSE: Pass = Pass {
    name: "decompose",
    run: decompose::run,
};
/// Operators that keep a cache become those that they are made of.
pub const CACHES: Pass = Pass {
    name: "caches",
    run: decompose::caches,
};
/// A matrix product over one element becomes a multiplication.
pub const OUTER: Pass = Pass {
    name: "outer",
    run: outer::run,
};
/// The parts of a split are slices.
pub const SPLIT: Pass = Pass {
    name: "split",
    run: split::run,
};
/// One known place of an inner axis is sliced, not gathered.
pub const PICK: Pass = Pass {
    name: "pick",
    run: pick::run,
};
/// Operators that change nothing go away.
pub const IDENTITY: Pass = Pass {
    name: "identity",
    run: identity::run,
};
/// `Gemm` becomes a product of matrices with elementwise operators around it.
pub const GEMM: Pass = Pass {
    name: "gemm",
    run: gemm::run,
};
/// Nodes that compute the same become one.
pub const DUPLICATES: Pass = Pass {
    name: "duplicates",
    run: duplicates::run,
};
/// A batch normalisation joins the convolution before it.
pub const CONV_NORM: Pass = Pass {
    name: "conv_norm",
    run: conv_norm::run,
};
/// `x / sqrt(mean(x^2) + e) * w` becomes [`super::op::rms_norm::RmsNorm`]; of `x - mean(x)` it becomes [`super::op::norm::Norm`].
pub const NORM: Pass = Pass {
    name: "norm",
    run: norm::run,
};
/// `x * cos + rotate_half(x) * sin` becomes [`super::op::rotary::Rotary`].
pub const ROTARY: Pass = Pass {
    name: "rotary",
    run: rotary::run,
};
/// Neighbours that are taken apart, turned and put together become [`super::op::rotary::Rotary`].
pub const NEIGHBOURS: Pass = Pass {
    name: "neighbours",
    run: neighbours::run,
};
/// Transposes, reshapes, slices and concatenations cancel or join.
pub const MOVES: Pass = Pass {
    name: "moves",
    run: moves::run,
};
/// A product with a transposed operand reads it transposed.
pub const TRANS_B: Pass = Pass {
    name: "trans_b",
    run: trans_b::run,
};
/// Pairs of past and present become state that is appended to in place.
pub const KV_CACHE: Pass = Pass {
    name: "kv_cache",
    run: kv_cache::run,
};
/// States that only attention reads become rows of 8 bits.
pub const KV_Q8: Pass = Pass {
    name: "kv_q8",
    run: kv_q8::run,
};
/// Products with E0M weights take their activations in bytes.
pub const INT8_ACTIVATIONS: Pass = Pass {
    name: "int8_activations",
    run: int8_activations::run,
};
/// Scores, softmax and weighted sum become [`super::op::attention::Attention`].
pub const ATTENTION: Pass = Pass {
    name: "attention",
    run: attention::run,
};
/// Attention learns of the window that its mask leaves, and caches keep no more.
pub const WINDOW: Pass = Pass {
    name: "window",
    run: window::run,
};
/// Elementwise chains become one operator.
pub const FUSE: Pass = Pass {
    name: "fuse",
    run: fuse::run,
};
/// Elementwise operators join the operator before them.
pub const EPILOGUE: Pass = Pass {
    name: "epilogue",
    run: epilogue::run,
};
/// Products of one operand with E0M weights become one node.
pub const JOINT_MATMUL_E0M: Pass = Pass {
    name: "joint_matmul_e0m",
    run: joint_matmul_e0m::run,
};
/// Two products of one row, of which an elementwise function makes one value a place, become one node.
pub const GATED_PRODUCT: Pass = Pass {
    name: "gated_product",
    run: gated_product::run,
};
/// A normalisation of one row joins the products that read it.
pub const NORMED_PRODUCT: Pass = Pass {
    name: "normed_product",
    run: normed_product::run,
};
/// What comes between new queries, keys and values and their attention becomes one node, for devices that want few dispatches.
pub const ROTARY_APPEND: Pass = Pass {
    name: "rotary_append",
    run: rotary_append::run,
};
/// Only the last row of the output `logits` is computed.
pub const LAST_ROW: Pass = Pass {
    name: "last_row",
    run: last_row::run,
};

/// Only the last rows of the output `logits` are computed, as many as the input [`ROWS`] has elements.
pub const LAST_ROWS: Pass = Pass {
    name: "last_rows",
    run: last_row::run_many,
};
/// An output [`TOKEN`] tells the place of the largest of each row of the output `logits`.
pub const GREEDY: Pass = Pass {
    name: "greedy",
    run: greedy::run,
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

/// Passes for graphs whose runs have one row, behind all others: decoders have such a graph of their own ([`Pipeline::take_one_row`]).
pub const ONE_ROW: &[Pass] = &[GATED_PRODUCT, NORMED_PRODUCT];

/// What one pass did.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PassReport {
    /// Its name.
    pub pass: &'static str,
    /// Rewrites made.
    pub edits: usize,
    /// Nodes before it.
    pub nodes_before: usize,
    /// Nodes after it and the removal of dead nodes.
    pub nodes_after: usize,
}

/// Passes in order.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The passes.
    pub passes: Vec<Pass>,
    /// Rewrites allowed over all passes; for bisecting a wrong result to one rewrite.
    pub edit_limit: usize,
}

impl Pipeline {
    /// What devices want.
    pub fn standard() -> Self {
        Self {
            passes: STANDARD.to_vec(),
            edit_limit: usize::MAX,
        }
    }

    /// The same with what this device wants besides.
    #[must_use]
    pub fn on(mut self, caps: &Caps) -> Self {
        self.passes.push(ROTARY_APPEND);
        // Each work-group normalizes the row itself and needs registers for two weights: GPUs of
        // phones have too few cores and registers for that (docs/benchmarks/phone-kernels.md).
        if caps.explicit_vectors() || caps.fast_local || caps.lane_broadcast() {
            self.passes.extend([GATED_PRODUCT, NORMED_PRODUCT]);
        }
        self
    }

    /// Takes those of [`ONE_ROW`] out, in order.
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

    /// What the host interpreter wants: the state form of the cache, nothing that only kernels need.
    pub fn host() -> Self {
        Self {
            passes: vec![INLINE_IF, FOLD, CACHES, TRANS_B, KV_CACHE],
            edit_limit: usize::MAX,
        }
    }

    /// The same passes without those of these names.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        self.passes.retain(|p| !names.contains(&p.name));
        self
    }

    /// Puts `pass` before the one of this name, or last.
    pub fn insert_before(&mut self, name: &str, pass: Pass) {
        let at = self.passes.iter().position(|p| p.name == name);
        self.passes.insert(at.unwrap_or(self.passes.len()), pass);
    }

    /// Runs the passes; before the first and after each the shapes are derived and the graph is checked.
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
