//! Derivation against evaluation: every conformance case with symbols in place of sizes, at random
//! values of them.
//!
//! Where derivation succeeds and its assumptions hold, evaluation must succeed and give the derived
//! shapes.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proptest::{prop_oneof, strategy::Just, strategy::Strategy, strategy::ValueTree};
use std::collections::BTreeSet;
use std::sync::Arc;
use transformer_lite::unstable::graph::op::case::{Case, input};
use transformer_lite::unstable::graph::op::{InferCx, all};
use transformer_lite::unstable::num;
use transformer_lite::unstable::shape::{Bindings, Constraints, Dim, Fact, Known, Shape};
use transformer_lite::unstable::tensor::HostTensor;

/// Operators whose constant integers are data too: places and lengths inside of sizes.
const INDICES: [&str; 9] = [
    "ReverseSequence",
    "Gather",
    "GatherElements",
    "GatherND",
    "ScatterElements",
    "ScatterND",
    "OneHot",
    "Compress",
    "TopK",
];

/// Which axes of the data become symbols.
#[derive(Clone, Copy, Debug)]
enum Axes {
    All,
    Batch,
    Spatial,
}

impl Axes {
    fn has(self, axis: usize) -> bool {
        match self {
            Self::All => true,
            Self::Batch => axis == 0,
            Self::Spatial => axis >= 2,
        }
    }
}

/// One symbol for each size that occurs, so that sizes which must be equal are.
fn symbolic(tensor: &HostTensor, axes: Axes) -> Fact {
    let sizes = tensor.shape().iter().enumerate().map(|(i, n)| {
        if axes.has(i) && *n > 1 {
            Dim::symbol(&format!("d{n}"))
        } else {
            Dim::from_usize(*n)
        }
    });
    Fact::new(tensor.dtype(), Shape(sizes.collect()))
}

/// Operands as derivation sees them: those that are `free` with symbols.
fn operand_facts(case: &Case, tensors: &[HostTensor], axes: Axes, free: impl Fn(usize) -> bool) -> Vec<Fact> {
    let fact = |(i, t): (usize, &HostTensor)| match free(i) {
        true => symbolic(t, axes),
        false if case.inputs[i].is_const => Fact::of(Arc::new(t.clone())),
        false => Fact {
            known: Known::No,
            ..Fact::of(Arc::new(t.clone()))
        },
    };
    tensors.iter().enumerate().map(fact).collect()
}

/// Fails unless the results have the derived shapes.
fn compare(derived: &[Fact], results: &[HostTensor], bindings: &Bindings) -> Result<(), String> {
    for (fact, result) in derived.iter().zip(results) {
        let same = |(d, n): (&Dim, &usize)| match d.eval(bindings) {
            Ok(v) => v == num::signed(*n),
            // A size that only the run tells has no value here.
            Err(_) => true,
        };
        if fact.dtype != result.dtype()
            || fact.shape.rank() != result.shape().len()
            || !fact.shape.0.iter().zip(result.shape()).all(same)
        {
            return Err(format!("derived {fact}, found {result:?}"));
        }
    }
    Ok(())
}

/// Evaluates once under `axes` with the values that `draw` gives; false where derivation refuses or
/// an assumption fails.
fn check(case: &Case, axes: Axes, data: usize, draw: &mut dyn FnMut() -> i64) -> Result<bool, String> {
    let tensors: Vec<HostTensor> = (1..).zip(&case.inputs).map(|(s, i)| i.make(s).unwrap()).collect();
    // The first operands are data; the others keep their sizes, as weights do.
    let free = |i: usize| i < data && !case.inputs[i].is_const && tensors[i].dtype().is_float();
    let facts = operand_facts(case, &tensors, axes, free);
    let inputs: Vec<Option<&Fact>> = facts.iter().map(Some).collect();
    let constraints = Constraints::default();
    let cx = InferCx::new(&inputs, &constraints);
    let Ok(derived) = case.op.infer(&cx) else {
        return Ok(false);
    };
    let mut symbols = BTreeSet::new();
    facts
        .iter()
        .flat_map(|f| &f.shape.0)
        .for_each(|d| d.symbols(&mut symbols));
    let mut bindings = Bindings::new();
    for s in &symbols {
        bindings.set(s, draw());
    }
    let (_, assumed) = cx.finish();
    let holds = |dim: &Dim, equal: bool| {
        dim.eval(&bindings)
            .is_ok_and(|v| if equal { v == 0 } else { v >= 0 })
    };
    if !assumed.iter().all(|a| holds(&a.dim, a.equal)) {
        return Ok(false);
    }
    let made: Vec<HostTensor> = facts
        .iter()
        .zip(&tensors)
        .enumerate()
        .map(|(i, (f, t))| match free(i) {
            // Above 0, as logarithms and variances need it.
            true => input(&f.shape.eval(&bindings).unwrap())
                .range(0.25, 2.0)
                .make(7)
                .unwrap(),
            false => t.clone(),
        })
        .collect();
    let operands: Vec<Option<&HostTensor>> = made.iter().map(Some).collect();
    let what = || {
        format!(
            "{} with {bindings:?} of {}",
            case.name(),
            facts
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        )
    };
    let results = match case.op.eval(&operands) {
        Ok(results) => results,
        // Indices may lie outside of the sizes that were drawn; derivation cannot know.
        Err(_)
            if (0..made.len()).any(|i| {
                let data = !case.inputs[i].is_const || INDICES.contains(&case.op.name());
                data && !made[i].dtype().is_float()
            }) =>
        {
            return Ok(false);
        }
        Err(e) => return Err(format!("{}: {e}", what())),
    };
    compare(&derived, &results, &bindings).map_err(|e| format!("{}: {e}", what()))?;
    Ok(true)
}

#[test]
fn cases_at_random_sizes() {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let sizes = prop_oneof![Just(0i64), Just(1i64), 2i64..8, 8i64..24];
    let mut draw = || sizes.new_tree(&mut runner).unwrap().current();
    let (mut checked, mut never, mut wrong) = (0, Vec::new(), BTreeSet::new());
    for case in all().flat_map(|def| (def.cases)()) {
        let mut seen = false;
        for axes in [Axes::All, Axes::Batch, Axes::Spatial] {
            for data in [1, usize::MAX] {
                for _ in 0..6 {
                    match check(&case, axes, data, &mut draw) {
                        Ok(false) => {}
                        Ok(true) => (seen, checked) = (true, checked + 1),
                        Err(e) => {
                            wrong.insert(e);
                        }
                    }
                }
            }
        }
        if !seen {
            never.push(case.name());
        }
    }
    let wrong: Vec<String> = wrong.into_iter().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    eprintln!("{checked} evaluations; no symbols: {}", never.join(", "));
    assert!(checked > 4000, "{checked} evaluations only");
    let vision = [
        "Conv",
        "MaxPool",
        "AveragePool",
        "Resize",
        "Pad",
        "Gemm",
        "BatchNorm",
        "Softmax",
        "GridSample",
    ];
    let missed: Vec<&String> = never
        .iter()
        .filter(|n| vision.iter().any(|v| n.starts_with(v)))
        .collect();
    assert!(missed.is_empty(), "no symbols in {missed:?}");
}
