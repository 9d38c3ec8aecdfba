//! Products of one operand in one dispatch: their results are views of one place, or have places of
//! their own.

use super::*;
use transformer_lite::unstable::graph::op::matmul_e0m::QuantizedMatMul;
use transformer_lite::unstable::quant::{Bits, ByGroup, Format, Method, Packed};

/// Products of `x [n, 64]` with weights of so many columns; each result is read once.
fn products(columns: &[usize]) -> Arc<Graph> {
    let product = QuantizedMatMul::new(Format::new(Bits::Four, 32));
    let mut b = Build::default();
    let mut operands = vec![b.input("x", DType::F32, "n 64")];
    for (which, n) in columns.iter().enumerate() {
        let at = |i: usize, j: usize| ((i * 7 + j * 3 + which) % 17) as f32 / 8.0 - 1.0;
        let packed = Packed::quantize(
            product.format.bits,
            product.format.group,
            64,
            *n,
            &ByGroup::from(Method::Mse),
            &at,
        )
        .unwrap();
        let scales: Vec<half::f16> = packed.pairs().iter().flatten().copied().collect();
        let mut edit = Edit::new(&mut b.graph);
        for (name, t) in [
            ("codes", HostTensor::from_u32(&[8, *n], &packed.codes).unwrap()),
            ("scales", HostTensor::from_f16(&[2, *n, 2], &scales).unwrap()),
        ] {
            operands.push(edit.add_const(&format!("{name}{which}"), Arc::new(t)));
        }
    }
    let weights = columns.len();
    let results = b.nodes(QuantizedMatMul { weights, ..product }, &operands, weights);
    let read: Vec<ValueId> = results.iter().map(|v| b.node(unary(Unary::Neg), &[*v])).collect();
    b.finish(&read)
}

/// Matrix products that a plan dispatches.
fn dispatches(plan: &Plan) -> usize {
    let kernels = plan.steps.iter().map(|s| plan.kernels[s.kernel].kernel.name);
    let products = |k: &&str| k.starts_with("mat") || k.starts_with("product");
    kernels.filter(products).count()
}

#[test]
fn joint_products_are_one_dispatch_where_a_kernel_binds_all_results() {
    // Results begin where views may, whatever their sizes are; without a bound there is no such
    // place, and with small views no room.
    for (columns, most, view, expected) in [
        (&[128, 64, 64][..], Some(40), None, 1),
        (&[128, 66, 10], Some(39), None, 1),
        (&[128, 32, 96], Some(1), None, 1),
        (&[128, 64], None, None, 2),
        (&[128, 64, 64], Some(40), Some(30_000), 3),
    ] {
        let graph = products(columns);
        for device in devices() {
            let _turn = device.turn();
            let bounds: Vec<_> = most.map(|m| ("n", m)).into_iter().collect();
            let caps = device.caps.clone().with(|device| {
                device.max_view_bytes = view.unwrap_or(device.max_view_bytes);
            });
            let plan = Plan::compile(&graph, &caps, &options(&bounds)).unwrap();
            assert_eq!(
                dispatches(&plan),
                expected,
                "{columns:?} up to {most:?}, views of {view:?} bytes, on {}",
                device.kind
            );
            let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
            for n in [1, 2, 9, 39, 40] {
                if most.is_none_or(|m| n <= m) {
                    let n = usize::try_from(n).unwrap();
                    check(&mut executor, &graph, &[("x", random(&[n, 64], 7))]);
                }
            }
        }
    }
}

#[test]
fn plans_of_one_row_and_of_many_share_joint_weights() {
    let graph = products(&[144, 66, 10]);
    for view_align in [8, 32, 256, 512, 4096] {
        for float in [DType::F16, DType::F32] {
            let caps = fake_caps().with(|device| device.view_align = view_align);
            let plan =
                |options: Options| Plan::compile(&graph, &caps, &Options { float, ..options }).unwrap();
            let many = plan(options(&[("n", 32)]));
            let one = plan(Options {
                fixed: Bindings::from([("n", 1)]),
                ..Options::default()
            });
            let what = format!("{float}, views at multiples of {view_align} bytes");
            assert_eq!((dispatches(&many), dispatches(&one)), (1, 1), "{what}");
            assert_eq!(many.weights, one.weights, "{what}");
        }
    }
}

#[test]
fn joint_products_beyond_a_view_are_apart() {
    // 16384 rows of 3072 results in f32 are 201 MB.
    let graph = products(&[1024, 1024, 1024]);
    let caps = fake_caps().with(|device| device.max_view_bytes = 1 << 27);
    let plan = |most| {
        let options = Options {
            float: DType::F32,
            ..options(&[("n", most)])
        };
        Plan::compile(&graph, &caps, &options).unwrap()
    };
    assert_eq!(dispatches(&plan(16_384)), 3);
    assert_eq!(dispatches(&plan(10_922)), 1, "the most rows that fit");
    assert_eq!(dispatches(&plan(10_923)), 3);
}
