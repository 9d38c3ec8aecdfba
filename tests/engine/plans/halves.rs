//! Results beyond the range of a half.

use super::*;
use transformer_lite::unstable::backend::{BackendKind, DeviceKind};

/// An odd number of columns, so that kernels store runs of them and single ones.
#[test]
fn what_no_half_holds_is_the_last_one_in_all_columns_where_a_cpu_stores_it() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "1 8");
    let weight = HostTensor::from_f32(&[8, 55], &[256.0; 8 * 55]).unwrap();
    let weight = Edit::new(&mut b.graph).add_const("weight", Arc::new(weight));
    let product = b.node(MatMul { trans_b: false }, &[x, weight]);
    // Read by another operator, so that plans store it as they store floats.
    let y = b.node(unary(Unary::Neg), &[product]);
    let graph = b.finish(&[y]);
    let options = Options {
        float: DType::F16,
        ..Options::default()
    };
    for device in devices() {
        let _turn = device.turn();
        let plan = Plan::compile(&graph, &device.caps, &options).unwrap();
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        let given = HostTensor::from_f32(&[1, 8], &[-256.0; 8]).unwrap();
        executor.write(0, "x", &given).unwrap();
        let bindings = executor.bindings(0).unwrap();
        executor.run(0, &bindings).unwrap();
        let name = graph.value(y).name.clone();
        let found = executor.read(0, &name).unwrap();
        let found = found.to_f32().unwrap();
        assert_eq!(found.len(), 55);
        // Such a device converts halves as cl/common/half.cl does.
        let soft = device.kind == BackendKind::OpenCl
            && device.caps.kind == DeviceKind::Cpu
            && !device.caps.profile.f16_math;
        if soft {
            assert!(
                found.iter().all(|v| *v == 65504.0),
                "on {}: {found:?}",
                device.kind
            );
        } else {
            assert!(
                found.iter().all(|v| *v >= 65504.0),
                "on {}: {found:?}",
                device.kind
            );
        }
    }
}
