//! Limits on memory, time and iterations, and cancelling.

use std::sync::Arc;
use std::time::Duration;
use tlite_testing::{assert_error, present as devices, tiny_model};
use transformer_lite::unstable::backend::{BackendKind, OpenOptions};
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::{ErrorKind, Result};
use transformer_lite::unstable::graph::body::Body;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::dft::Dft;
use transformer_lite::unstable::graph::op::loop_body::Loop;
use transformer_lite::unstable::graph::op::one_hot::OneHot;
use transformer_lite::unstable::graph::op::paged_attention::PAGE;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Pointwise};
use transformer_lite::unstable::graph::op::reshape::Reshape;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::graph::{Edit, Graph, ValueId};
use transformer_lite::unstable::limits::Limits;
use transformer_lite::unstable::llm::engine::{Decoder, HostModel, RowModel};
use transformer_lite::unstable::llm::load::{BatchOptions, LoadOptions, Loaded, LoadedRows, Purpose};
use transformer_lite::unstable::llm::{LanguageModel, ModelFolder};
use transformer_lite::unstable::placement::{BackendChoice, Placement};
use transformer_lite::unstable::quota::Quota;
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::shape::{Dim, Fact, Shape};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// A graph of the input `x [1]` and what `build` makes of it.
fn graph(build: impl FnOnce(&mut Edit<'_>, ValueId) -> ValueId) -> Graph {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let x = edit.add_value("x", Some(Fact::new(DType::F32, Shape(vec![Dim::from(1)]))));
    edit.add_input(x);
    let y = build(&mut edit, x);
    edit.add_output(y);
    graph
}

/// A loop without end, or of as many iterations as the input `count` says if `counted`, that
/// carries `x` and stacks a copy of it if `stacks`.
fn endless(stacks: bool, counted: bool) -> Graph {
    let mut body = Graph::default();
    let mut edit = Edit::new(&mut body);
    let [run, go, x] = ["run", "go", "x"].map(|name| edit.add_value(name, None));
    [run, go, x].into_iter().for_each(|v| edit.add_input(v));
    let [next, y] = ["next", "y"].map(|name| edit.add_value(name, None));
    edit.add_node(
        "same",
        vec![],
        Box::new(Reshape::Identity),
        vec![Some(go)],
        vec![next],
    );
    let add = Box::new(Pointwise::binary("Add", Binary::Add));
    edit.add_node("op", vec![], add, vec![Some(x), Some(x)], vec![y]);
    edit.add_output(next);
    for _ in 0..=usize::from(stacks) {
        edit.add_output(y);
    }
    graph(|edit, x| {
        let results = if stacks { vec!["last", "all"] } else { vec!["last"] };
        let results: Vec<_> = results
            .into_iter()
            .map(|name| edit.add_value(name, None))
            .collect();
        let op = Loop {
            body: Body::new(body, 3..3).unwrap(),
            carried: 1,
        };
        let count = counted.then(|| {
            let count = edit.add_value("count", Some(Fact::new(DType::I64, Shape::default())));
            edit.add_input(count);
            count
        });
        edit.add_node(
            "endless",
            vec![],
            Box::new(op),
            vec![count, None, Some(x)],
            results.clone(),
        );
        results[results.len() - 1]
    })
}

/// Concatenates `x` with itself, `times` times over.
fn doubled(times: usize) -> Graph {
    graph(|edit, mut x| {
        for i in 0..times {
            let y = edit.add_value(&format!("y{i}"), None);
            let op = Box::new(Concat { axis: 0 });
            edit.add_node(&format!("double{i}"), vec![], op, vec![Some(x), Some(x)], vec![y]);
            x = y;
        }
        x
    })
}

fn load(graph: Graph, limits: &str) -> Result<Runner> {
    let options = RunnerOptions {
        limits: limits.parse().unwrap(),
        ..RunnerOptions::default()
    };
    Runner::of(graph, None, &options)
}

fn run(runner: &mut Runner, cancel: &Cancel) -> Result<Vec<Named>> {
    let x = HostTensor::from_f32(&[1], &[1.0]).unwrap();
    runner.run(&[("x".to_owned(), x)], cancel)
}

fn failure(graph: Graph, limits: &str) -> ErrorKind {
    let mut runner = load(graph, limits).unwrap();
    run(&mut runner, &Cancel::default()).unwrap_err().kind()
}

#[test]
fn a_loop_without_end_ends() {
    assert_eq!(
        failure(endless(false, false), "iterations=1000"),
        ErrorKind::LimitExceeded
    );
    assert_eq!(
        failure(endless(false, false), "time=50ms"),
        ErrorKind::LimitExceeded
    );
    assert_eq!(
        failure(endless(true, false), "memory=4K"),
        ErrorKind::LimitExceeded
    );
}

#[test]
fn a_loop_without_end_is_cancelled() {
    let mut runner = load(endless(false, false), "iterations=1000000000").unwrap();
    let cancel = Cancel::default();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            cancel.cancel();
        });
        run(&mut runner, &cancel).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Interrupted);
}

#[test]
fn a_plan_for_the_values_of_a_run_is_limited_too() {
    for device in devices() {
        let _turn = device.turn();
        let options = RunnerOptions {
            limits: "iterations=1000".parse().unwrap(),
            ..RunnerOptions::default()
        };
        let mut runner = Runner::of(endless(false, true), Some(Box::new(device.share())), &options).unwrap();
        let x = HostTensor::from_f32(&[1], &[1.0]).unwrap();
        for (count, expected) in [(1 << 40, Some(ErrorKind::LimitExceeded)), (3, None)] {
            let count = HostTensor::from_i64(&[], &[count]).unwrap();
            let given = [("x".to_owned(), x.clone()), ("count".to_owned(), count)];
            let found = runner.run(&given, &Cancel::default());
            assert_eq!(found.err().map(|e| e.kind()), expected);
        }
    }
}

#[test]
fn one_long_operator_ends_too() {
    // The sums of a transform of 2^18 points have 2^36 terms.
    let mut graph = doubled(18);
    let points = graph.outputs()[0];
    let mut edit = Edit::new(&mut graph);
    let shape = edit.add_const(
        "shape",
        Arc::new(HostTensor::from_i64(&[3], &[1, -1, 1]).unwrap()),
    );
    let [signal, spectrum] = ["signal", "spectrum"].map(|name| edit.add_value(name, None));
    let reshape = Box::new(Reshape::Reshape { allow_zero: false });
    edit.add_node(
        "reshape",
        vec![],
        reshape,
        vec![Some(points), Some(shape)],
        vec![signal],
    );
    let dft = Box::new(Dft {
        inverse: false,
        onesided: false,
        axis: 1,
    });
    edit.add_node("dft", vec![], dft, vec![Some(signal)], vec![spectrum]);
    edit.add_output(spectrum);
    assert_eq!(failure(graph, "time=200ms"), ErrorKind::LimitExceeded);
}

#[test]
fn tensors_stay_within_the_memory() {
    assert_eq!(failure(doubled(40), "memory=1M"), ErrorKind::LimitExceeded);
    let mut runner = load(doubled(10), "memory=64K").unwrap();
    for _ in 0..100 {
        let outputs = run(&mut runner, &Cancel::default()).unwrap();
        assert_eq!(
            outputs[0].1.shape(),
            [1024],
            "the memory of earlier runs is free again"
        );
    }
}

#[test]
fn constants_of_passes_count() {
    // The depth is 2^34, the numbers of which would be a constant of the decomposition.
    let graph = graph(|edit, x| {
        let [index, values] = [[0, 1], [5, 6]].map(|pair| {
            let name = format!("pair{}", pair[0]);
            edit.add_const(&name, Arc::new(HostTensor::from_i64(&[2], &pair).unwrap()))
        });
        let depth = edit.add_const("depth", Arc::new(HostTensor::from_i64(&[], &[1 << 34]).unwrap()));
        let y = edit.add_value("y", None);
        let op = Box::new(OneHot { axis: -1 });
        edit.add_node(
            "hot",
            vec![],
            op,
            vec![Some(index), Some(depth), Some(values)],
            vec![y],
        );
        let z = edit.add_value("z", None);
        let op = Box::new(Reshape::Identity);
        edit.add_node("input", vec![], op, vec![Some(x)], vec![z]);
        edit.add_output(z);
        y
    });
    let limits = Limits::default();
    let options = RunnerOptions {
        limits,
        ..RunnerOptions::default()
    };
    let error = Runner::of(graph, None, &options).and_then(|mut runner| run(&mut runner, &Cancel::default()));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn loading_takes_only_its_time() {
    let error = load(doubled(10), "time=0s").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn a_cache_that_cannot_be_truncated_is_emptied() {
    let (_dir, folder) = tiny_model("llama", Default::default());
    let decoder = Decoder::load(&folder.join("model.onnx"), &Target::HOST).unwrap();
    let mut model = HostModel::new(decoder, 64).unwrap();
    let (mut wanted, mut found) = (Vec::new(), Vec::new());
    model.forward(&[4, 5, 6], &mut wanted).unwrap();
    model.forward(&[7, 8], &mut found).unwrap();
    let none_left = Quota::new(0, None, 0).enter();
    assert_eq!((model.truncate(3), model.len()), (0, 0));
    drop(none_left);
    model.forward(&[4, 5, 6], &mut found).unwrap();
    assert_eq!(found, wanted);
}

/// Loads a language model on the host or on the backend `cpu`.
fn options(backend: BackendChoice, limits: &str) -> LoadOptions {
    LoadOptions {
        place: Placement {
            backend,
            options: OpenOptions::default(),
        },
        limits: limits.parse().unwrap(),
        ..LoadOptions::default()
    }
}

#[test]
fn files_that_are_read_may_change() {
    let (_dir, folder) = tiny_model("llama", Default::default());
    let load = |backend, limits: &str| {
        let folder = ModelFolder::holding("model", &folder, &[])?;
        let options = options(backend, limits);
        Loaded::new(&folder, &options, Purpose::Generation, &mut |_| {})
    };
    for backend in [BackendChoice::Reference, BackendChoice::On(BackendKind::Cpu)] {
        let loaded = load(backend, "files=read").unwrap();
        let (mut wanted, mut found) = (Vec::new(), Vec::new());
        loaded.model().unwrap().forward(&[4, 5], &mut wanted).unwrap();
        let kept: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().contains(".onnx"))
            .map(|path| (std::fs::read(&path).unwrap(), path))
            .collect();
        for (bytes, path) in &kept {
            std::fs::write(path, vec![0; bytes.len() / 2]).unwrap();
        }
        loaded.model().unwrap().forward(&[4, 5], &mut found).unwrap();
        assert_eq!(found, wanted, "{backend:?}");
        for (bytes, path) in &kept {
            std::fs::write(path, bytes).unwrap();
        }
        let e = load(backend, "files=read,memory=16K").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LimitExceeded, "{e}");
    }
}

#[test]
fn the_largest_cache_of_a_batch_is_named_and_loads() {
    let (_dir, folder) = tiny_model("llama", Default::default());
    let folder = ModelFolder::holding("model", &folder, &[]).unwrap();
    let load = |limits: &str, tokens: Option<usize>| {
        let options = LoadOptions {
            context: Some(64),
            ..options(BackendChoice::On(BackendKind::Cpu), limits)
        };
        let batch = BatchOptions {
            tokens,
            ..BatchOptions::default()
        };
        LoadedRows::new(&folder, &options, &batch).map(|rows| rows.model.config().pages)
    };
    for limits in ["memory=4M", "memory=5M", "memory=9M"] {
        let e = load(limits, Some(1 << 24)).unwrap_err();
        assert_error(&e, ErrorKind::OutOfMemory, &["tokens", "`memory`"]);
        let text = e.to_string();
        let most = text
            .split("at most ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let most: usize = most.unwrap().parse().unwrap();
        assert_eq!(load(limits, Some(most)).unwrap(), most / PAGE, "{e}");
        load(limits, None).unwrap();
    }
}
