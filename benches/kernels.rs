//! Kernels at the sizes of real models, on every device of this build: products, and what a layer
//! of a decoder does beside.
//!
//! `cargo bench --bench kernels -- matvec`: criterion reports time and, from the bytes of weights
//! read (vector), the multiply-adds (matrix, attention) or the elements (others), throughput.
//! Device time is taken as submit-to-done of batches of runs.

#[path = "support/devices.rs"]
mod devices;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transformer_lite::unstable::backend::{self, BackendKind};
use transformer_lite::unstable::executor::Executor;
use transformer_lite::unstable::graph::op::Op;
use transformer_lite::unstable::graph::op::attention::Attention;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::matmul_e0m::{ActivationType, QuantizedMatMul};
use transformer_lite::unstable::graph::op::pointwise::{Binary, Expr, Unary};
use transformer_lite::unstable::graph::op::rms_norm::RmsNorm;
use transformer_lite::unstable::graph::op::rotary::Pairs;
use transformer_lite::unstable::graph::op::rotary_append::RotaryAppend;
use transformer_lite::unstable::graph::{Edit, Graph, State, derive};
use transformer_lite::unstable::plan::{Options, Plan};
use transformer_lite::unstable::quant::{Bits, Format};
use transformer_lite::unstable::shape::{Bindings, Dim, Fact, Shape, Symbol};
use transformer_lite::unstable::tensor::{DType, HostTensor};

type AnyError = Box<dyn std::error::Error>;

/// An operand of a node.
enum Operand {
    /// Activations of this shape.
    Input(Vec<usize>),
    Const(HostTensor),
    /// Rows of a cache, so many of which are there: `[1, past, heads, dim]`. The results behind the
    /// first are these with new rows.
    State(usize, [usize; 2]),
}

/// The rows that a cache has room for behind those that are there.
const ROOM: usize = 256;

/// A node that is run again and again.
struct Bench {
    executor: Executor,
    bindings: Bindings,
}

/// An executor over one node with so many results.
fn node(
    kind: BackendKind,
    op: Box<dyn Op>,
    operands: Vec<Operand>,
    results: usize,
    float: DType,
) -> Result<Bench, AnyError> {
    let backend = transformer_lite::unstable::devices::open(kind, &backend::OpenOptions::default())?;
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let (mut inputs, mut states, mut writes, mut rows) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for (i, operand) in operands.into_iter().enumerate() {
        let name = format!("x{i}");
        let fact = |shape| Some(Fact::new(DType::F32, shape));
        inputs.push(Some(match operand {
            Operand::Input(shape) => {
                let x = edit.add_value(&name, fact(Shape::fixed(&shape)));
                edit.add_input(x);
                let data: Vec<f32> = (0..shape.iter().product::<usize>())
                    .map(|i| (i % 17) as f32 / 16.0 - 0.5)
                    .collect();
                writes.push((name, HostTensor::from_f32(&shape, &data)?));
                x
            }
            Operand::Const(tensor) => edit.add_const(&name, Arc::new(tensor)),
            Operand::State(past, sizes) => {
                let [heads, dim] = sizes.map(Dim::from_usize);
                let shape = vec![Dim::from(1), Dim::from(&Symbol::new("past")), heads, dim];
                let state = edit.add_value(&name, fact(Shape(shape)));
                states.push(state);
                rows = past;
                state
            }
        }));
    }
    let outputs: Vec<_> = (0..results)
        .map(|i| edit.add_value(&format!("y{i}"), None))
        .collect();
    edit.add_node("node", Vec::new(), op, inputs, outputs.clone());
    for y in outputs.iter().take(results - states.len()) {
        edit.add_output(*y);
    }
    for (input, output) in states.iter().zip(&outputs[results - states.len()..]) {
        edit.add_state(State {
            input: *input,
            output: *output,
            axis: 1,
            past: Symbol::new("past"),
            window: None,
        });
    }
    derive::derive(&mut graph)?;
    let mut bindings = Bindings::new();
    if !states.is_empty() {
        bindings.set(&Symbol::new("past"), i64::try_from(rows)?);
    }
    let options = Options {
        float,
        bounds: bindings.clone(),
        state_rows: i64::try_from(rows + ROOM)?,
        ..Options::default()
    };
    let plan = Plan::compile(&graph, backend.caps(), &options)?;
    let mut executor = Executor::new(backend, &graph, vec![plan])?;
    for (name, tensor) in &writes {
        executor.write(0, name, tensor)?;
    }
    Ok(Bench { executor, bindings })
}

/// A product of `rows` rows.
fn product(
    kind: BackendKind,
    op: Box<dyn Op>,
    rows: usize,
    k: usize,
    weights: Vec<HostTensor>,
    float: DType,
) -> Result<Bench, AnyError> {
    let weights = weights.into_iter().map(Operand::Const);
    let operands = std::iter::once(Operand::Input(vec![rows, k])).chain(weights);
    node(kind, op, operands.collect(), 1, float)
}

fn packed(bits: Bits, group: usize, k: usize, n: usize) -> Vec<HostTensor> {
    let words: Vec<u32> = (0..bits.rows(k) * n)
        .map(|i| u32::try_from(i & 0xFFFF).unwrap().wrapping_mul(0x9E37_79B9))
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

fn run(c: &mut Criterion, group: &str, throughput: &Throughput, bench: Result<Bench, AnyError>, name: &str) {
    let Bench {
        mut executor,
        bindings,
    } = bench.unwrap_or_else(|e| panic!("{group}/{name}: {e}"));
    let mut g = c.benchmark_group(group);
    g.warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(10);
    g.throughput(throughput.clone());
    g.bench_function(name, |b| {
        b.iter_custom(|n| {
            let start = Instant::now();
            for _ in 0..n {
                executor.run(0, &bindings).expect("the plan binds");
            }
            executor.wait().expect("the device answers");
            start.elapsed()
        });
    });
    g.finish();
}

/// Products of floats: rows, terms and columns. CLIP ViT-B/32's image encoder, whose 50 rows are
/// few for a large GPU, its text encoder, `MobileNetV2`'s classifier, and the plain convolutions of
/// `YOLO11n` at 640 pixels, as products.
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

/// A value of a gate, times the sigmoid of the gate, times another: `SwiGLU`.
fn swiglu() -> Expr {
    let of = |f, a, b| Expr::Binary(f, Box::new(a), Box::new(b));
    let sigmoid = Expr::Unary(Unary::Sigmoid, Box::new(Expr::Input(1)));
    of(
        Binary::Mul,
        Expr::Input(0),
        of(Binary::Mul, Expr::Input(1), sigmoid),
    )
}

/// What a layer of `SmolLM2` does beside single products, for one row behind 1024 others and for 64
/// rows.
fn layer(c: &mut Criterion, kind: BackendKind) {
    let (width, inner, heads, kv_heads, dim, depth) = (576, 1536, 9, 3, 64, 1024);
    let weights = |columns: &[usize]| {
        let all = columns.iter().flat_map(|n| packed(Bits::Four, 32, width, *n));
        all.map(Operand::Const).collect::<Vec<_>>()
    };
    let gain = || HostTensor::from_f32(&[width], &[1.0; 576]).map(Operand::Const);
    for rows in [1usize, 64] {
        let name = format!("{kind}/{rows} rows");
        let mut case = |group: &str, throughput: u64, op: Box<dyn Op>, operands: Vec<Operand>, results| {
            let bench = node(kind, op, operands, results, DType::F16);
            run(c, group, &Throughput::Elements(throughput), bench, &name);
        };
        let x = || Operand::Input(vec![1, rows, width]);
        let row = |heads: usize, dim: usize| Operand::Input(vec![1, rows, heads, dim]);
        for activations in [ActivationType::Float, ActivationType::Int8] {
            let product = || QuantizedMatMul {
                activations,
                ..QuantizedMatMul::new(Format::new(Bits::Four, 32))
            };
            let act = activations;
            // Queries, keys and values of a normalised row; gate and value of the feed-forward
            // part.
            let normed = QuantizedMatMul {
                norm: (rows == 1).then_some(1e-5),
                ..product()
            };
            let columns = [heads * dim, kv_heads * dim, kv_heads * dim];
            let with_gain = |mut operands: Vec<Operand>| {
                operands.extend((rows == 1).then(|| gain().expect("as many as its shape says")));
                operands
            };
            let operands = std::iter::once(x()).chain(weights(&columns)).collect();
            let macs = (rows * width * columns.iter().sum::<usize>()) as u64;
            let joint = Box::new(QuantizedMatMul {
                weights: columns.len(),
                ..normed.clone()
            });
            case(&format!("joint_e0m4_{act}"), macs, joint, with_gain(operands), 3);
            let operands = std::iter::once(x()).chain(weights(&[inner, inner])).collect();
            let gated = Box::new(normed.gated(swiglu()));
            let macs = (2 * rows * width * inner) as u64;
            case(&format!("gated_e0m4_{act}"), macs, gated, with_gain(operands), 1);
            if activations == ActivationType::Int8 {
                let operands = std::iter::once(x()).chain(weights(&[inner])).collect();
                let macs = (rows * width * inner) as u64;
                case("product_e0m4_int8", macs, Box::new(product()), operands, 1);
            }
        }
        let (keys, window) = match rows {
            1 => (depth, None),
            rows => (rows, i64::try_from(rows).ok()),
        };
        let cached = || Operand::Input(vec![1, keys, kv_heads, dim]);
        let op = Attention {
            window,
            ..Attention::scaled(0.125)
        };
        let macs = (2 * rows * keys * heads * dim) as u64;
        case(
            "attention",
            macs,
            Box::new(op),
            vec![row(heads, dim), cached(), cached()],
            1,
        );
        let op = Box::new(RmsNorm { epsilon: 1e-5 });
        let operands = vec![x(), gain().expect("as many as its shape says")];
        case("rms_norm", (rows * width) as u64, op, operands, 1);
        let op = Box::new(RotaryAppend {
            pairs: Pairs::Halves,
            axis: 1,
        });
        let state = || Operand::State(depth, [kv_heads, dim]);
        let new = [heads, kv_heads, kv_heads].map(|heads| row(heads, dim));
        let operands = new
            .into_iter()
            .chain([row(1, dim), row(1, dim), state(), state()]);
        let elements = (rows * (heads + 2 * kv_heads) * dim) as u64;
        case("rotary_append", elements, op, operands.collect(), 3);
    }
}

fn benches(c: &mut Criterion) {
    // SmolLM2's layers and head, and one layer of a 7B model.
    let sizes = [(576, 576), (576, 1536), (1536, 576), (4096, 4096)];
    for kind in &devices::backends() {
        for (k, n) in sizes {
            let bytes = Throughput::Bytes((k * n / 2) as u64);
            let op = || Box::new(QuantizedMatMul::new(Format::new(Bits::Four, 32)));
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
        let op = Box::new(QuantizedMatMul::new(Format::new(Bits::Eight, 32)));
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
        layer(c, *kind);
    }
}

criterion_group!(all, benches);
criterion_main!(all);
