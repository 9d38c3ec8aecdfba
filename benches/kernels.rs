//! Matrix kernels at the sizes of real models, on every device of this build.
//!
//! `cargo bench --bench kernels -- matvec`: criterion reports time and, from the bytes of weights read (vector) or the
//! multiply-adds (matrix), throughput. Device time is taken as submit-to-done of batches of runs.

#[path = "support/devices.rs"]
mod devices;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transformer_lite::backend::{self, BackendKind};
use transformer_lite::executor::Executor;
use transformer_lite::graph::op::Op;
use transformer_lite::graph::op::matmul::MatMul;
use transformer_lite::graph::op::matmul_e0m::MatMulE0m;
use transformer_lite::graph::{Edit, Graph, derive};
use transformer_lite::plan::{Options, Plan};
use transformer_lite::quant::Bits;
use transformer_lite::shape::{Bindings, Fact, Shape};
use transformer_lite::tensor::{DType, HostTensor};

type AnyError = Box<dyn std::error::Error>;

/// An executor over one product of `rows` rows.
fn product(
    kind: BackendKind,
    op: Box<dyn Op>,
    rows: usize,
    k: usize,
    weights: Vec<HostTensor>,
    float: DType,
) -> Result<Executor, AnyError> {
    let backend = backend::open(kind, &backend::OpenOptions::default())?;
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let x = edit.add_value("x", Some(Fact::new(DType::F32, Shape::fixed(&[rows, k]))));
    edit.add_input(x);
    let mut inputs = vec![Some(x)];
    for (i, w) in weights.into_iter().enumerate() {
        inputs.push(Some(edit.add_const(&format!("w{i}"), Arc::new(w))));
    }
    let y = edit.add_value("y", None);
    edit.add_node("product", Vec::new(), op, inputs, vec![y]);
    edit.add_output(y);
    derive::derive(&mut graph)?;
    let options = Options {
        float,
        bounds: Bindings::new(),
        ..Options::default()
    };
    let plan = Plan::compile(&graph, backend.caps(), &options)?;
    let mut executor = Executor::new(backend, &graph, vec![plan])?;
    let data: Vec<f32> = (0..rows * k).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect();
    executor.write(0, "x", &HostTensor::from_f32(&[rows, k], &data)?)?;
    Ok(executor)
}

fn packed(bits: Bits, group: usize, k: usize, n: usize) -> Vec<HostTensor> {
    let words: Vec<u32> = (0..bits.rows(k) * n)
        .map(|i| u32::try_from(i & 0xFFFF).unwrap_or(0).wrapping_mul(0x9E37_79B9))
        .collect();
    let scales: Vec<f16> = (0..k.div_ceil(group) * n)
        .flat_map(|_| [f16::from_f32(0.01), f16::from_f32(2.9)])
        .collect();
    [
        HostTensor::from_u32(&[bits.rows(k), n], &words),
        HostTensor::from_f16(&[k.div_ceil(group), n, 2], &scales),
    ]
    .into_iter()
    .filter_map(Result::ok)
    .collect()
}

fn run(
    c: &mut Criterion,
    group: &str,
    throughput: &Throughput,
    executor: Result<Executor, AnyError>,
    name: &str,
) {
    let mut executor = executor.unwrap_or_else(|e| panic!("{group}/{name}: {e}"));
    let mut g = c.benchmark_group(group);
    g.warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(10);
    g.throughput(throughput.clone());
    g.bench_function(name, |b| {
        b.iter_custom(|n| {
            let start = Instant::now();
            for _ in 0..n {
                executor.run(0, &Bindings::new()).expect("the plan binds");
            }
            executor.wait().expect("the device answers");
            start.elapsed()
        });
    });
    g.finish();
}

/// Products of floats: rows, terms and columns. CLIP ViT-B/32's image encoder, whose 50 rows are few for a large GPU, its text
/// encoder, `MobileNetV2`'s classifier, and the plain convolutions of `YOLO11n` at 640 pixels, as products.
const PRODUCTS: [(usize, usize, usize); 10] = [
    (50, 768, 768),
    (50, 768, 3072),
    (50, 3072, 768),
    (77, 512, 2048),
    (1, 1280, 1000),
    (64, 64, 6400),
    (128, 256, 1600),
    (256, 512, 400),
    (512, 768, 3072),
    (1024, 1024, 1024),
];

/// Every product of [`PRODUCTS`] with a constant right operand, stored as `float`.
fn floats(c: &mut Criterion, kind: BackendKind, float: DType) {
    for (rows, k, n) in PRODUCTS {
        let w: Vec<f32> = (0..k * n).map(|i| (i % 13) as f32 / 12.0 - 0.5).collect();
        let w = HostTensor::from_f32(&[k, n], &w).into_iter().collect();
        let op = Box::new(MatMul { trans_b: false });
        run(
            c,
            &format!("matmul_{float}"),
            &Throughput::Elements((rows * k * n) as u64),
            product(kind, op, rows, k, w, float),
            &format!("{kind}/{rows}x{k}x{n}"),
        );
    }
}

fn benches(c: &mut Criterion) {
    // SmolLM2's layers and head, and one layer of a 7B model.
    let sizes = [(576, 576), (576, 1536), (1536, 576), (4096, 4096)];
    for kind in &devices::backends() {
        for (k, n) in sizes {
            let bytes = Throughput::Bytes((k * n / 2) as u64);
            let op = || Box::new(MatMulE0m::new(Bits::Four, 32));
            run(
                c,
                "matvec_e0m4",
                &bytes,
                product(*kind, op(), 1, k, packed(Bits::Four, 32, k, n), DType::F16),
                &format!("{kind}/{k}x{n}"),
            );
            let macs = Throughput::Elements((64 * k * n) as u64);
            run(
                c,
                "matmul_e0m4/64 rows",
                &macs,
                product(*kind, op(), 64, k, packed(Bits::Four, 32, k, n), DType::F16),
                &format!("{kind}/{k}x{n}"),
            );
        }
        let bytes = Throughput::Bytes(576 * 49152);
        let op = Box::new(MatMulE0m::new(Bits::Eight, 32));
        run(
            c,
            "matvec_e0m8",
            &bytes,
            product(*kind, op, 1, 576, packed(Bits::Eight, 32, 576, 49152), DType::F16),
            &format!("{kind}/576x49152"),
        );
        let w = HostTensor::from_f32(&[576, 1536], &vec![0.5; 576 * 1536])
            .into_iter()
            .collect();
        let op = Box::new(MatMul { trans_b: false });
        run(
            c,
            "matvec_f16",
            &Throughput::Bytes(576 * 1536 * 2),
            product(*kind, op, 1, 576, w, DType::F16),
            &format!("{kind}/576x1536"),
        );
        for float in [DType::F32, DType::F16] {
            floats(c, *kind, float);
        }
    }
}

criterion_group!(all, benches);
criterion_main!(all);
