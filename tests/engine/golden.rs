//! Texts that change on purpose only: the graph after the standard passes and the plans of a tiny
//! model. Set `UPDATE_GOLDEN` to write them anew and review the difference.

use std::path::Path;
use tlite_testing::tiny;
use transformer_lite::unstable::graph::onnx::{ImportOptions, import_with};
use transformer_lite::unstable::graph::pass::{Pipeline, Target};
use transformer_lite::unstable::graph::text;
use transformer_lite::unstable::llm::engine::{Decoder, Logits, SequenceConfig};
use transformer_lite::unstable::plan::{self, Options, Plan};
use transformer_lite::unstable::shape::Bindings;
use transformer_lite::unstable::tensor::DType;

/// Compares `found` with `tests/golden/<name>`.
fn golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, found).unwrap();
        return;
    }
    let wanted = std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e}; UPDATE_GOLDEN=1 writes it", path.display()));
    let differs = wanted.lines().zip(found.lines()).position(|(w, f)| w != f);
    let (w, f) = (wanted.lines().count(), found.lines().count());
    if let Some(line) = differs.or((w != f).then_some(w.min(f))) {
        panic!(
            "{}, line {}:\n  wanted: {}\n  found:  {}\nUPDATE_GOLDEN=1 writes it anew",
            path.display(),
            line + 1,
            wanted.lines().nth(line).unwrap_or("(end)"),
            found.lines().nth(line).unwrap_or("(end)"),
        );
    }
}

/// The plans of a decoder for prefill and decode, with short lengths.
fn plans_of(decoder: &Decoder) -> [Plan; 2] {
    let lengths = SequenceConfig {
        chunk: 16,
        ..SequenceConfig::of(48)
    };
    decoder.plans(&tlite_testing::fake_caps(), &lengths).unwrap()
}

#[test]
fn graph_and_plans_of_a_tiny_llama() {
    let (_dir, model) = tlite_testing::tiny_model("llama", Default::default());
    let decoder = Decoder::load(&model.join("model.onnx"), &Target::DEVICE.with(Logits::Last)).unwrap();
    golden("tiny_llama.graph.txt", &text::print(decoder.graph()).unwrap());
    let [prefill, decode] = plans_of(&decoder);
    golden(
        "tiny_llama.prefill.txt",
        &plan::text::print(&prefill, decoder.graph()),
    );
    golden(
        "tiny_llama.decode.txt",
        &plan::text::print(&decode, decoder.graph()),
    );
}

/// Writes a model by `write` and compares its derived graph, that after the standard passes, and
/// the plan for `bounds`.
fn golden_model(
    name: &str,
    write: fn(&Path) -> transformer_lite::unstable::error::Result<()>,
    bounds: &[(&'static str, i64)],
) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path()).unwrap();
    let options = ImportOptions::PLANNING;
    let mut graph = import_with(&dir.path().join("model.onnx"), options).unwrap();
    let passes = Vec::new();
    let edit_limit = usize::MAX;
    Pipeline { passes, edit_limit }.run(&mut graph).unwrap();
    golden(&format!("{name}.derived.txt"), &text::print(&graph).unwrap());
    Pipeline::of(&Target::DEVICE).run(&mut graph).unwrap();
    golden(&format!("{name}.graph.txt"), &text::print(&graph).unwrap());
    let mut sizes = Bindings::new();
    for (symbol, bound) in bounds {
        sizes.set(&transformer_lite::unstable::shape::Symbol::new(symbol), *bound);
    }
    let options = Options {
        float: DType::F16,
        bounds: sizes,
        ..Options::default()
    };
    let plan = Plan::compile(&graph, &tlite_testing::fake_caps(), &options).unwrap();
    golden(&format!("{name}.plan.txt"), &plan::text::print(&plan, &graph));
}

#[test]
fn graph_and_plan_of_a_tiny_classifier() {
    let bounds = [("batch", 2), ("height", 64), ("width", 64)];
    golden_model("tiny_classifier", tiny::classifier, &bounds);
}

#[test]
fn graph_and_plan_of_a_tiny_encoder() {
    golden_model("tiny_encoder", tiny::encoder, &[("batch", 2), ("sequence", 64)]);
}

/// What the standard passes do to each kind of model, so that a pattern cannot stop to fire unseen.
#[test]
fn every_pass_fires() {
    for architecture in ["llama", "qwen2"] {
        let (_dir, model) = tlite_testing::tiny_model(architecture, Default::default());
        let decoder = Decoder::load(&model.join("model.onnx"), &Target::DEVICE.with(Logits::Last)).unwrap();
        let edits = |name| decoder.passes.iter().find(|p| p.pass == name).map(|p| p.edits);
        // Two layers: two normalisations each and one at the end, queries and keys, keys and
        // values.
        assert_eq!(edits("norm"), Some(5), "{architecture}");
        assert_eq!(edits("rotary"), Some(4), "{architecture}");
        assert_eq!(edits("kv_cache"), Some(4), "{architecture}");
        assert_eq!(edits("attention"), Some(2), "{architecture}");
        assert_eq!(edits("last_row"), Some(1), "{architecture}");
        assert!(edits("fuse") > Some(0), "{architecture}");
    }
}

/// The same model converts to the same text: no order of a hash map shows.
#[test]
fn texts_are_stable() {
    let (_dir, model) = tlite_testing::tiny_model("qwen2", Default::default());
    let make = || {
        let decoder = Decoder::load(&model.join("model.onnx"), &Target::DEVICE).unwrap();
        let [prefill, decode] = plans_of(&decoder);
        let graph = decoder.graph();
        [
            text::print(graph).unwrap(),
            plan::text::print(&prefill, graph),
            plan::text::print(&decode, graph),
        ]
    };
    assert_eq!(make(), make());
}
