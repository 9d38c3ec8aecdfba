//! Lengths: padded ones, constraints that runs must keep to, memory that grows, values of symbols
//! from shapes.

use super::*;
use tlite_testing::carries;
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::plan::{NoPadding, Padding};
use transformer_lite::unstable::shape::{Constraints, Symbol};

/// Options for lengths of `p` up to 100, padded to 64.
fn padded() -> Options {
    Options {
        padding: Some(Padding {
            symbol: Symbol::new("p"),
            beyond: 1,
            multiple: 64,
        }),
        ..options(&[("p", 100)])
    }
}

/// Runs a graph over `x`, of this shape for a length, with padding asked for, at lengths within and
/// across blocks.
#[track_caller]
fn run_padded(
    graph: &Arc<Graph>,
    shape: impl Fn(usize) -> Vec<usize>,
    expected: fn(&Result<Padding, NoPadding>) -> bool,
) {
    let place = std::panic::Location::caller();
    for device in devices() {
        let _turn = device.turn();
        let plan = Plan::compile(graph, &device.caps, &padded()).unwrap();
        assert!(expected(&plan.padding), "{place}: {:?}", plan.padding);
        let mut executor = Executor::new(Box::new(device.share()), graph, vec![plan]).unwrap();
        for n in [5, 6, 63, 64, 100, 7, 1] {
            check(&mut executor, graph, &[("x", random(&shape(n), 9))]);
        }
    }
}

#[test]
fn padding_keeps_known_values_exact() {
    // A position that follows from the shape of the cache and is read as data.
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "p 8");
    let sizes = b.node(ShapeOf { start: 0, end: None }, &[x]);
    let zero = b.ints(&[0]);
    let length = b.node(Gather { axis: 0 }, &[sizes, zero]);
    let twice = b.node(Pointwise::binary("Add", Binary::Add), &[length, length]);
    let y = b.node(unary(Unary::Neg), &[x]);
    run_padded(&b.finish(&[y, twice]), |n| vec![n, 8], Result::is_ok);
}

#[test]
fn padding_is_refused_where_elements_would_lie_elsewhere() {
    // Row 1 of a transposed tensor begins at the length.
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "p 8");
    let turned = b.node(Transpose { perm: None }, &[x]);
    let lists = [b.ints(&[1]), b.ints(&[2]), b.ints(&[0])];
    let row = b.node(Slice, &[turned, lists[0], lists[1], lists[2]]);
    let graph = b.finish(&[row]);
    run_padded(
        &graph,
        |n| vec![n, 8],
        |p| matches!(p, Err(NoPadding::Kernel { .. })),
    );
    // Two sizes that grow.
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "p p");
    let turned = b.node(Transpose { perm: None }, &[x]);
    run_padded(
        &b.finish(&[turned]),
        |n| vec![n, n],
        |p| matches!(p, Err(NoPadding::Inner { .. })),
    );
    // Blocks of the length, merged.
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "p");
    let sizes = b.ints(&[4, 1]);
    let wide = b.node(Expand, &[x, sizes]);
    let flat = b.ints(&[-1]);
    let flat = b.node(Reshape::Reshape { allow_zero: false }, &[wide, flat]);
    run_padded(
        &b.finish(&[flat]),
        |n| vec![n],
        |p| matches!(p, Err(NoPadding::Moved { .. })),
    );
    // A reshape within the elements of one place keeps them.
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "p 8");
    let list = b.ints(&[-1, 2, 4]);
    let shaped = b.node(Reshape::Reshape { allow_zero: false }, &[x, list]);
    let y = b.node(unary(Unary::Neg), &[shaped]);
    run_padded(&b.finish(&[y]), |n| vec![n, 8], Result::is_ok);
    // The last row, wherever the length ends.
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "p 8");
    let lists = [b.ints(&[-1]), b.ints(&[i64::MAX]), b.ints(&[0])];
    let last = b.node(Slice, &[x, lists[0], lists[1], lists[2]]);
    run_padded(&b.finish(&[last]), |n| vec![n, 8], Result::is_ok);
}

#[test]
fn constraints_are_checked_in_every_run() {
    let mut b = Build::default();
    let known = Constraints::parse("total == past + N, N >= 1, N % 2 == 0").unwrap();
    Edit::new(&mut b.graph).set_constraints(known);
    let (past, now) = (
        b.input("past", DType::F32, "past 8"),
        b.input("now", DType::F32, "N 8"),
    );
    let all = b.node(Concat { axis: 0 }, &[past, now]);
    let mask = b.input("mask", DType::F32, "total 8");
    let sum = b.node(Pointwise::binary("Add", Binary::Add), &[all, mask]);
    let graph = b.finish(&[sum]);
    let bounds = options(&[("past", 8), ("N", 8), ("total", 16)]);
    let plan = Plan::compile(&graph, &fake_caps(), &bounds).unwrap();
    let bind = |past: i64, n: i64, total: i64| {
        let at = Bindings::from([("past", past), ("N", n), ("total", total)]);
        plan.bind(&at, &mut LaunchState::default())
    };
    bind(2, 4, 6).unwrap();
    for ((past, n, total), values) in [
        ((2, 4, 9), &["total == N + past", "total = 9"][..]),
        ((2, 0, 2), &["N >= 1", "N = 0"]),
        ((2, 3, 5), &["N", "N = 3"]),
    ] {
        let e = bind(past, n, total).unwrap_err();
        tlite_testing::assert_error(&e, ErrorKind::ShapeMismatch, values);
    }
}

#[test]
fn memory_that_cannot_grow_leaves_all_as_it_was() {
    let graph = mixed();
    for device in devices() {
        let _turn = device.turn();
        let plan = |bounds: &[(&str, i64)]| Plan::compile(&graph, &device.caps, &options(bounds)).unwrap();
        let plans = vec![plan(&[]), plan(&[("n", 4), ("m", 4)])];
        let small = device.share().with_caps(|c| c.max_buffer_bytes = 1 << 16);
        let mut executor = Executor::new(Box::new(small), &graph, plans).unwrap();
        let given = |n, m| [("x", random(&[1, n, 8], 1)), ("y", random(&[1, m, 8], 2))];
        check(&mut executor, &graph, &given(20, 30));
        for (name, t) in given(4000, 2) {
            executor.write(0, name, &t).unwrap();
        }
        let bindings = executor.bindings(0).unwrap();
        let e = executor.run(0, &bindings).unwrap_err();
        tlite_testing::assert_error(&e, ErrorKind::OutOfMemory, &["arena"]);
        let e = executor.run(0, &Bindings::from([("n", 1 << 60), ("m", 2)]));
        tlite_testing::assert_carries(e.unwrap_err(), &["\"x\""]);
        check(&mut executor, &graph, &given(20, 30));
        check(&mut executor, &graph, &given(31, 30));
        for (name, t) in given(3, 4) {
            executor.write(1, name, &t).unwrap();
        }
        executor.run(1, &Bindings::from([("n", 3), ("m", 4)])).unwrap();
    }
}

#[test]
fn a_grid_beyond_the_device_is_refused_each_time() {
    let graph = mixed();
    let Some(device) = devices().into_iter().next() else {
        return;
    };
    let _turn = device.turn();
    let plan = Plan::compile(&graph, &device.caps, &options(&[("n", 400), ("m", 4)])).unwrap();
    let plan_nodes: Vec<String> = plan.steps.iter().flat_map(|s| s.nodes.clone()).collect();
    let small = device.share().with_caps(|c| c.profile.max_grid = 2);
    let mut executor = Executor::new(Box::new(small), &graph, vec![plan]).unwrap();
    for (name, t) in [("x", random(&[1, 400, 8], 1)), ("y", random(&[1, 2, 8], 2))] {
        executor.write(0, name, &t).unwrap();
    }
    let bindings = executor.bindings(0).unwrap();
    for _ in 0..3 {
        let e = executor.run(0, &bindings).unwrap_err();
        let nodes = plan_nodes.iter().filter(|n| carries(&e.to_string(), n));
        assert!(nodes.count() > 0, "no node of {plan_nodes:?} in: {e}");
        tlite_testing::assert_carries(e, &["2"]);
    }
}

#[test]
fn symbols_follow_from_shapes() {
    let solve = |shapes: &[(&str, &[usize])]| {
        let mut b = Build::default();
        let inputs: Vec<ValueId> = shapes
            .iter()
            .enumerate()
            .map(|(i, (dims, _))| b.input(&format!("x{i}"), DType::F32, dims))
            .collect();
        // Nothing reads them: only their shapes matter.
        let other = b.input("other", DType::F32, "4");
        let y = b.node(unary(Unary::Neg), &[other]);
        let graph = b.finish(&[y]);
        assert_eq!(inputs.len(), shapes.len());
        let plan = Plan::compile(&graph, &fake_caps(), &options(&[])).unwrap();
        let ports = plan.unread.iter().zip(shapes);
        let ports = ports.map(|(p, (_, s))| (p.name.as_str(), &p.shape, *s));
        transformer_lite::unstable::plan::bind::solve(ports)
    };
    // A size that several values have says less than the symbol alone.
    let found = solve(&[("floor((N+1)/2)", &[1]), ("N", &[2])]).unwrap();
    assert_eq!(found.get(&Symbol::new("N")), Some(2));
    let found = solve(&[("past+N", &[7]), ("N", &[3])]).unwrap();
    assert_eq!(found.get(&Symbol::new("past")), Some(4));
    let e = solve(&[("2*N", &[7])]).unwrap_err();
    tlite_testing::assert_error(&e, ErrorKind::MissingInput, &["2*N", "x0", "N"]);
    // Nothing that overflows is a solution.
    assert!(solve(&[("-N-9223372036854775807", &[1])]).is_err());
    assert!(solve(&[("9223372036854775807*N", &[1])]).is_err());
}

#[test]
fn lengths_that_data_tells() {
    for device in devices() {
        let _turn = device.turn();
        // The rows of x at which mask is not zero, doubled.
        let mut b = Build::default();
        let (mask, x) = (b.input("mask", DType::I64, "n"), b.input("x", DType::F32, "n 6"));
        let at = b.node(NonZero, &[mask]);
        let minus = b.ints(&[-1]);
        let flat = b.node(Reshape::Reshape { allow_zero: false }, &[at, minus]);
        let rows = b.node(Gather { axis: 0 }, &[x, flat]);
        let twice = b.node(Pointwise::binary("Add", Binary::Add), &[rows, rows]);
        let graph = b.finish(&[twice]);
        let plan = Plan::compile(&graph, &device.caps, &options(&[("n", 16)])).unwrap();
        assert_eq!(
            plan.host.iter().map(|h| h.name.as_str()).collect::<Vec<_>>(),
            ["node1"]
        );
        assert_eq!(plan.host[0].why, HostReason::Data);
        assert_eq!(plan.host[0].read_backs(), 0, "the mask is given, not computed");
        assert!(
            matches!(plan.segments.as_slice(), [Segment::Host(0), Segment::Device(_)]),
            "{:?}",
            plan.segments
        );
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        for mask in [
            vec![0, 1, 1, 0, 5],
            vec![1; 16],
            vec![0, 0, 0, 2],
            vec![0; 7],
            vec![3],
        ] {
            let given = [
                ("mask", HostTensor::from_i64(&[mask.len()], &mask).unwrap()),
                ("x", random(&[mask.len(), 6], 3)),
            ];
            check(&mut executor, &graph, &given);
        }
        // As many of the largest as an input says.
        let mut b = Build::default();
        let (x, k) = (b.input("x", DType::F32, "2 9"), b.input("k", DType::I64, "1"));
        let y = b.node(unary(Unary::Neg), &[x]);
        let top = b.nodes(
            TopK {
                axis: -1,
                k: None,
                largest: true,
            },
            &[y, k],
            2,
        );
        let graph = b.finish(&top);
        let plan = Plan::compile(&graph, &device.caps, &options(&[])).unwrap();
        assert_eq!(plan.host.iter().map(|h| h.read_backs()).sum::<usize>(), 1);
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        for k in [1, 4, 9] {
            check(
                &mut executor,
                &graph,
                &[
                    ("x", random(&[2, 9], 4)),
                    ("k", HostTensor::from_i64(&[1], &[k]).unwrap()),
                ],
            );
        }
        // x expanded to a shape that the device computes.
        let mut b = Build::default();
        let (x, a) = (b.input("x", DType::F32, "1 4"), b.input("a", DType::I64, "2"));
        let sizes = b.node(Pointwise::binary("Add", Binary::Add), &[a, a]);
        let wide = b.node(Expand, &[x, sizes]);
        let out = b.node(unary(Unary::Neg), &[wide]);
        let graph = b.finish(&[out]);
        let plan = Plan::compile(&graph, &device.caps, &options(&[])).unwrap();
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        for n in [1, 3, 8] {
            let a = HostTensor::from_i64(&[2], &[n, 2]).unwrap();
            check(&mut executor, &graph, &[("x", random(&[1, 4], 5)), ("a", a)]);
        }
    }
}

/// `x [4, n]` expanded to sizes that an input states, or that a device computes from it, and
/// negated.
fn expanded_to_data(is_computed: bool) -> Arc<Graph> {
    let mut b = Build::default();
    let (x, a) = (b.input("x", DType::F32, "4 n"), b.input("a", DType::I64, "2"));
    let sizes = if is_computed {
        b.node(Pointwise::binary("Add", Binary::Add), &[a, a])
    } else {
        a
    };
    let wide = b.node(Expand, &[x, sizes]);
    let y = b.node(unary(Unary::Neg), &[wide]);
    b.finish(&[y])
}

#[test]
fn sizes_from_data_are_checked_where_no_shape_has_them() {
    // Widths of x and of the target, and whether the result has the width of x.
    let targets = [
        (8, 8, true),
        (1, 0, false),
        (1, 6, false),
        (8, 2, false),
        (8, 0, false),
        (0, 0, true),
    ];
    for device in devices() {
        let _turn = device.turn();
        for is_computed in [false, true] {
            let graph = expanded_to_data(is_computed);
            let mut optimized = Graph::clone(&graph);
            Pipeline::of(&Target::DEVICE).run(&mut optimized).unwrap();
            for graph in [graph, Arc::new(optimized)] {
                let plan = Plan::compile(&graph, &device.caps, &options(&[])).unwrap();
                let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
                for (width, to, holds) in targets {
                    let by = if is_computed { 2 } else { 1 };
                    let a = HostTensor::from_i64(&[2], &[4 / by, to / by]).unwrap();
                    let given = [("x", random(&[4, width], 5)), ("a", a)];
                    if holds {
                        check(&mut executor, &graph, &given);
                        continue;
                    }
                    for (name, t) in &given {
                        executor.write(0, name, t).unwrap();
                    }
                    let bindings = executor.bindings(0).unwrap();
                    let e = executor.run(0, &bindings).unwrap_err();
                    let [node, data] = if is_computed {
                        ["node2", "v1_0_1"]
                    } else {
                        ["node1", "a_1"]
                    };
                    let [n, to] = [format!("n = {width}"), format!("{data} = {to}")];
                    tlite_testing::assert_error(&e, ErrorKind::ShapeMismatch, &[node, &n, &to]);
                }
            }
        }
        // A target of 1 keeps the width.
        let graph = expanded_to_data(false);
        let plan = Plan::compile(&graph, &device.caps, &options(&[])).unwrap();
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        let one = HostTensor::from_i64(&[2], &[1, 1]).unwrap();
        check(&mut executor, &graph, &[("x", random(&[4, 5], 6)), ("a", one)]);
    }
}

#[test]
fn ten_sizes_through_one_load() {
    let sizes = [
        (5, 9),
        (17, 3),
        (1, 1),
        (40, 40),
        (2, 31),
        (33, 8),
        (7, 7),
        (40, 1),
        (1, 40),
        (12, 20),
    ];
    for device in devices() {
        let _turn = device.turn();
        let graph = mixed();
        let plan = |bounds: &[(&str, i64)]| Plan::compile(&graph, &device.caps, &options(bounds)).unwrap();
        let load = |plan| Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        let run = |executor: &mut Executor, (n, m): (usize, usize)| {
            let given = [("x", random(&[1, n, 8], 1)), ("y", random(&[1, m, 8], 2))];
            check(executor, &graph, &given);
            executor.read(0, &graph.value(graph.outputs()[0]).name).unwrap()
        };
        let (mut bounded, mut open) = (load(plan(&[("n", 40), ("m", 40)])), load(plan(&[])));
        let loaded = bounded.stats();
        for (i, size) in sizes.into_iter().enumerate() {
            let fresh = run(&mut load(plan(&[("n", 40), ("m", 40)])), size);
            let now = bounded.stats();
            let shared = run(&mut bounded, size);
            let after = bounded.stats();
            assert_eq!(
                (now.compiles, now.recordings),
                (after.compiles, after.recordings),
                "run {i}"
            );
            assert!(
                i == 0 || now.allocations == after.allocations,
                "run {i} takes memory"
            );
            assert_eq!(fresh.bytes().unwrap(), shared.bytes().unwrap());
            assert_eq!(run(&mut open, size).bytes().unwrap(), shared.bytes().unwrap());
        }
        assert!(loaded.recordings > 0);
        // Once the largest sizes were met, an open plan takes no more memory either.
        let before = open.stats();
        run(&mut open, (39, 40));
        let after = open.stats();
        assert_eq!(
            (before.allocations, before.recordings),
            (after.allocations, after.recordings)
        );
    }
}
