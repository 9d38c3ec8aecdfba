//! Loops that some devices would end early.

use super::*;
use transformer_lite::unstable::graph::op::arg_max::ArgMax;

/// Elements that one work-item reads twice, more often than lavapipe lets it.
const LONG: usize = 40_000;

/// Zeros, with `last` at the end of each row.
fn rows(count: usize, last: f32) -> HostTensor {
    let mut data = vec![0.0; count * LONG];
    data.chunks_mut(LONG).for_each(|row| row[LONG - 1] = last);
    HostTensor::from_f32(&[count, LONG], &data).unwrap()
}

#[test]
fn loops_reach_their_last_element() {
    let arg_max = ArgMax {
        min: false,
        axis: 1,
        keep: false,
        last: false,
    };
    let softmax = Softmax {
        axis: 0,
        flatten: false,
    };
    let sizes = [("4 40000", None), ("4 n", None), ("4 n", Some(LONG as i64))];
    for (size, bound) in sizes {
        let mut b = Build::default();
        let x = b.input("x", DType::F32, size);
        let turned = b.node(
            Transpose {
                perm: Some(vec![1, 0]),
            },
            &[x],
        );
        let last = b.node(arg_max.clone(), &[x]);
        let sums = b.node(MatMul { trans_b: false }, &[x, turned]);
        let shares = b.node(softmax.clone(), &[turned]);
        let graph = b.finish(&[last, sums, shares]);
        let bounds: Vec<_> = bound.iter().map(|n| ("n", *n)).collect();
        for device in devices() {
            let _turn = device.turn();
            let plan = Plan::compile(&graph, &device.caps, &options(&bounds)).unwrap();
            let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
            let x = rows(4, 9.0);
            let refuses = device.caps.profile.max_loops.is_some() && size == "4 n" && bound.is_none();
            if !refuses {
                check(&mut executor, &graph, &[("x", x)]);
                continue;
            }
            executor.write(0, "x", &x).unwrap();
            let bindings = executor.bindings(0).unwrap();
            let e = executor.run(0, &bindings).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ShapeMismatch, "{e}");
            assert!(e.to_string().contains("iterations"), "{e}");
        }
    }
}
