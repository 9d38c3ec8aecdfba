//! Values that derivation knows as expressions and kernels read as data: ranges of the table of
//! live values, for which nothing runs on the host and nothing is uploaded.

use super::*;
use transformer_lite::unstable::graph::op::range::Range;
use transformer_lite::unstable::plan::{Padding, Storage};
use transformer_lite::unstable::shape::Symbol;

/// The mask of a text encoder as exporters write it, over `x [n, 8]`: positions compared with a
/// length that follows from the shape of `x`, in integers and as a float; a list of lengths beside
/// each position; and with `gathers`, one that is gathered from.
fn masked(gathers: bool) -> Arc<Graph> {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "n 8");
    let sizes = b.node(ShapeOf { start: 0, end: None }, &[x]);
    let zero = b.ints(&[0]);
    let length = b.node(Gather { axis: 0 }, &[sizes, zero]);
    let scalar = {
        let mut edit = Edit::new(&mut b.graph);
        [0, 1].map(|v| {
            edit.add_const(
                &format!("scalar{v}"),
                Arc::new(HostTensor::from_i64(&[], &[v]).unwrap()),
            )
        })
    };
    let limit = b.node(Gather { axis: 0 }, &[sizes, scalar[0]]);
    let positions = b.node(Range, &[scalar[0], limit, scalar[1]]);
    let doubled = b.node(Pointwise::binary("Add", Binary::Add), &[positions, positions]);
    let before = b.node(Pointwise::binary("Less", Binary::Less), &[doubled, length]);
    let column = b.ints(&[-1, 1]);
    let before = b.node(Reshape::Reshape { allow_zero: false }, &[before, column]);
    let cast = Pointwise {
        name: "Cast".to_owned(),
        expr: Expr::Cast(DType::F32, Box::new(Expr::Input(0))),
    };
    let scale = b.node(cast, &[length]);
    let scaled = b.node(Pointwise::binary("Mul", Binary::Mul), &[x, scale]);
    let choose = Pointwise {
        name: "Where".to_owned(),
        expr: Expr::Select(
            Box::new(Expr::Input(0)),
            Box::new(Expr::Input(1)),
            Box::new(Expr::Input(2)),
        ),
    };
    let y = b.node(choose, &[before, x, scaled]);
    let twice = b.node(Pointwise::binary("Add", Binary::Add), &[length, length]);
    let both = b.node(Concat { axis: 0 }, &[length, twice]);
    let column = b.node(Reshape::Reshape { allow_zero: false }, &[positions, column]);
    let list = b.node(Pointwise::binary("Add", Binary::Add), &[both, column]);
    let mut outputs = vec![y, list];
    if gathers {
        let zeros = b.node(Pointwise::binary("Sub", Binary::Sub), &[positions, positions]);
        outputs.push(b.node(Gather { axis: 0 }, &[both, zeros]));
    }
    b.finish(&outputs)
}

#[test]
fn known_numbers_that_kernels_read_take_no_step_on_the_host() {
    let padding = Padding {
        symbol: Symbol::new("n"),
        beyond: 1,
        multiple: 64,
    };
    for device in devices() {
        let _turn = device.turn();
        for padding in [None, Some(padding.clone())] {
            // No length is padded where something is gathered.
            let graph = masked(padding.is_none());
            let asked = Options {
                padding: padding.clone(),
                ..options(&[("n", 200)])
            };
            let plan = Plan::compile(&graph, &device.caps, &asked).unwrap();
            assert!(plan.host.is_empty(), "{:?}", plan.host);
            assert!(matches!(plan.segments.as_slice(), [Segment::Device(_)]));
            let places = plan.steps.iter().flat_map(|s| &s.args);
            let known = places.filter(|p| matches!(p, Storage::Known { .. })).count();
            assert!(known >= 3, "{known} operands are known");
            assert_eq!(plan.padding.is_ok(), padding.is_some(), "{:?}", plan.padding);
            let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
            for n in [5, 6, 63, 64, 65, 200, 1] {
                check(&mut executor, &graph, &[("x", random(&[n, 8], 3))]);
            }
        }
    }
}

#[test]
fn a_known_number_beyond_32_bits_is_computed_on_the_host() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "n 8");
    let sizes = b.node(
        ShapeOf {
            start: 0,
            end: Some(1),
        },
        &[x],
    );
    let large = b.ints(&[1 << 30]);
    let product = b.node(Pointwise::binary("Mul", Binary::Mul), &[sizes, large]);
    let data = b.input("data", DType::I64, "n");
    let y = b.node(Pointwise::binary("Add", Binary::Add), &[data, product]);
    let graph = b.finish(&[y]);
    let plan = Plan::compile(&graph, &fake_caps(), &options(&[("n", 8)])).unwrap();
    let bind = |n: i64| plan.bind(&Bindings::from([("n", n)]), &mut LaunchState::default());
    bind(1).unwrap();
    bind(2).unwrap();
    let nodes: Vec<&str> = plan.host.iter().map(|step| step.work.name()).collect();
    assert_eq!(nodes, ["Add"], "{:?}", plan.host);
}
