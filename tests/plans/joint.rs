//! Products of one operand in one dispatch: their results are views of one place, or have places of their own.

use super::*;
use transformer_lite::graph::op::joint_e0m::JointE0m;
use transformer_lite::graph::op::matmul_e0m::MatMulE0m;
use transformer_lite::quant::{Bits, ByGroup, Method, Packed};

/// Products of `x [n, 64]` with weights of so many columns; each result is read once.
fn products(columns: &[usize]) -> Arc<Graph> {
    let product = MatMulE0m {
        bits: Bits::Four,
        group: 32,
    };
    let mut b = Build::default();
    let mut operands = vec![b.input("x", DType::F32, "n 64")];
    for (which, n) in columns.iter().enumerate() {
        let at = |i: usize, j: usize| ((i * 7 + j * 3 + which) % 17) as f32 / 8.0 - 1.0;
        let packed = Packed::quantize(
            product.bits,
            product.group,
            64,
            *n,
            &ByGroup::from(Method::Mse),
            &at,
        )
        .unwrap();
        let scales: Vec<half::f16> = packed.scales.iter().flatten().copied().collect();
        let mut edit = Edit::new(&mut b.graph);
        for (name, t) in [
            ("codes", HostTensor::from_u32(&[8, *n], &packed.codes).unwrap()),
            ("scales", HostTensor::from_f16(&[2, *n, 2], &scales).unwrap()),
        ] {
            operands.push(edit.add_const(&format!("{name}{which}"), Arc::new(t)));
        }
    }
    let results = b.nodes(JointE0m { product }, &operands, columns.len());
    let read: Vec<ValueId> = results.iter().map(|v| b.node(unary(Unary::Neg), &[*v])).collect();
    b.finish(&read)
}

#[test]
fn joint_products_are_one_dispatch_where_views_can_begin() {
    // The third result of the second graph begins at no multiple of what views are aligned to; without a bound nothing does.
    for (columns, most, dispatches) in [
        (&[128, 64, 64][..], Some(40), 1),
        (&[128, 66, 10], Some(39), 3),
        (&[128, 64], None, 2),
        (&[128, 32, 96], Some(1), 1),
    ] {
        let graph = products(columns);
        for device in devices() {
            let _turn = device.turn();
            let bounds: Vec<_> = most.map(|m| ("n", m)).into_iter().collect();
            let plan = Plan::compile(&graph, &device.caps, &options(&bounds)).unwrap();
            let kernels = plan.steps.iter().map(|s| plan.kernels[s.kernel].kernel.name);
            let products = kernels.filter(|k| k.starts_with("mat")).count();
            assert_eq!(
                products, dispatches,
                "{columns:?} up to {most:?} on {}",
                device.kind
            );
            let mut session = Session::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
            for n in [1, 2, 9, 39, 40] {
                if most.is_none_or(|m| n <= m) {
                    let n = usize::try_from(n).unwrap();
                    check(&mut session, &graph, &[("x", random(&[n, 64], 7))]);
                }
            }
        }
    }
}
