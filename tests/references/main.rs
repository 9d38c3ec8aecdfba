//! What the engine computes, against references: operators against `Op::eval`, and models,
//! tokenizers and templates against what other programs compute.
//!
//! A trial's name begins with the module that adds it, as in `conformance::Softmax/.../f16@opencl`.
//! A filter such as `conformance::Softmax` runs those trials of that module whose names contain the
//! rest.

mod conformance;
mod exports;
mod integer;
mod llm;
mod onnx_nodes;
mod quantization;
mod templates;
mod tokenizers;

use std::process::ExitCode;

fn main() -> ExitCode {
    tlite_testing::suite::run(&[
        ("conformance", conformance::trials),
        ("exports", exports::trials),
        ("integer", integer::trials),
        ("llm", llm::trials),
        ("onnx_nodes", onnx_nodes::trials),
        ("quantization", quantization::trials),
        ("templates", templates::trials),
        ("tokenizers", tokenizers::trials),
    ])
}
