//! Table 1 of the paper: E0M4 against classic INT4 weights, whose codes are converted from integers
//! to floats, on every device.
//!
//! `cargo bench --bench int4 -- [--device TEXT] [--float f16|f32] [--rows N] [--group N]`. One row
//! unless told otherwise. A line a shape: the median of at least 50 dispatches by the device's
//! clock, their ratio, the bandwidth at which E0M4 weights are read and its share of what a copy
//! reaches. The twin is the kernel's own text with the other conversion, the faster one where there
//! are two, and gets the same codes with scales and zero points of the same weights; results are
//! compared before anything is measured. Products in turn read other weights, more in all than
//! caches hold. With `--test`, or run by `cargo test`, each is measured once, in one small shape.

#[path = "support/devices.rs"]
mod devices;
#[path = "support/int4_twin.rs"]
mod int4_twin;

use half::f16;
use int4_twin::twins;
use std::process::ExitCode;
use std::sync::Arc;
use transformer_lite::unstable::backend::{self, BackendKind, DeviceKind};
use transformer_lite::unstable::executor::Executor;
use transformer_lite::unstable::graph::op::matmul_e0m::QuantizedMatMul;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Pointwise};
use transformer_lite::unstable::graph::{Edit, Graph, derive};
use transformer_lite::unstable::plan::{Options, Plan};
use transformer_lite::unstable::quant::{Bits, Format};
use transformer_lite::unstable::shape::{Bindings, Fact, Shape};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// K and N, as the paper's table has them.
const SHAPES: [(usize, usize); 3] = [(4096, 4096), (4096, 11008), (11008, 4096)];
const RUNS: usize = 50;
/// What `--test` runs in their place.
const SHORT: [(usize, usize); 1] = [(256, 512)];

type AnyError = Box<dyn std::error::Error>;

#[derive(Clone)]
struct Arguments {
    device: Option<String>,
    float: DType,
    rows: usize,
    group: usize,
    short: bool,
}

impl Arguments {
    fn parse() -> Result<Self, AnyError> {
        let mut out = Self {
            device: None,
            float: DType::F16,
            rows: 1,
            group: 128,
            // As criterion has it: `cargo bench` says so, `cargo test` says nothing.
            short: std::env::args().any(|a| a == "--test") || !std::env::args().any(|a| a == "--bench"),
        };
        let mut words = std::env::args()
            .skip(1)
            .filter(|a| a != "--bench" && a != "--test");
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            match option.as_str() {
                "--device" => out.device = Some(value),
                "--rows" => out.rows = value.parse()?,
                "--group" => out.group = value.parse()?,
                "--float" if value == "f32" => out.float = DType::F32,
                "--float" if value == "f16" => out.float = DType::F16,
                _ => return Err(format!("unknown option: {option} {value}").into()),
            }
        }
        Ok(out)
    }
}

/// Codes, and scale and bias of each group; for the twin scale and zero point of the same weights:
/// `s * (2 + q / 8 - b)` is `s / 8 * (q - (b - 2) * 8)`.
fn weight(group: usize, k: usize, n: usize, seed: usize, int4: bool) -> Result<[HostTensor; 2], AnyError> {
    let word = |i: usize| {
        u32::try_from((i + seed) & 0xFFFF_FFFF)
            .unwrap_or(0)
            .wrapping_mul(0x9E37_79B9)
            .rotate_left(11)
    };
    let codes: Vec<u32> = (0..Bits::Four.rows(k) * n).map(word).collect();
    let pair = |i: usize| {
        let (scale, zero) = (
            f16::from_f32(((i % 13) as f32 + 3.0) / 64.0),
            (i % 5) as f32 + 5.0,
        );
        if int4 {
            [scale / f16::from_f32(8.0), f16::from_f32(zero)]
        } else {
            [scale, f16::from_f32(2.0 + zero / 8.0)]
        }
    };
    let scales: Vec<f16> = (0..k.div_ceil(group) * n).flat_map(pair).collect();
    Ok([
        HostTensor::from_u32(&[Bits::Four.rows(k), n], &codes)?,
        HostTensor::from_f16(&[k.div_ceil(group), n, 2], &scales)?,
    ])
}

/// An executor over `count` products of the same rows, by the kernel or one of its twins; `None`
/// where it has fewer.
fn products(
    kind: BackendKind,
    a: &Arguments,
    (k, n): (usize, usize),
    count: usize,
    twin: Option<usize>,
) -> Result<Option<Executor>, AnyError> {
    let backend =
        transformer_lite::unstable::devices::open(kind, &backend::OpenOptions::of(a.device.as_deref()))?;
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let x = edit.add_value("x", Some(Fact::new(DType::F32, Shape::fixed(&[a.rows, k]))));
    edit.add_input(x);
    for i in 0..count {
        let mut inputs = vec![Some(x)];
        for (j, w) in weight(a.group, k, n, i * 7919, twin.is_some())?
            .into_iter()
            .enumerate()
        {
            inputs.push(Some(edit.add_const(&format!("w{i}.{j}"), Arc::new(w))));
        }
        let y = edit.add_value(&format!("y{i}"), None);
        let op = QuantizedMatMul::new(Format::new(Bits::Four, a.group));
        edit.add_node(&format!("product{i}"), Vec::new(), Box::new(op), inputs, vec![y]);
        edit.add_output(y);
    }
    derive::derive(&mut graph)?;
    let options = Options {
        float: a.float,
        ..Options::default()
    };
    let mut plan = Plan::compile(&graph, backend.caps(), &options)?;
    if let Some(form) = twin {
        for spec in plan
            .kernels
            .iter_mut()
            .filter(|s| s.kernel.name.ends_with("_e0m"))
        {
            let forms = twins(spec.kernel, spec.defines.contains_key("PAIRS"))?;
            let Some(kernel) = forms.get(form) else {
                return Ok(None);
            };
            spec.kernel = kernel;
        }
    }
    let mut executor = Executor::new(backend, &graph, vec![plan])?;
    let data: Vec<f32> = (0..a.rows * k)
        .map(|i| (i * 31 % 17) as f32 / 16.0 - 0.5)
        .collect();
    executor.write(0, "x", &HostTensor::from_f32(&[a.rows, k], &data)?)?;
    Ok(Some(executor))
}

/// Median time in microseconds of the dispatches of the product kernels.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn microseconds(executor: &mut Executor, kernel: &str) -> Result<Vec<f64>, AnyError> {
    let timings = executor.profile(0, &Bindings::new())?;
    let own = timings
        .iter()
        .filter(|t| t.kernel.as_deref().is_some_and(|k| k.contains(kernel)));
    Ok(own.map(|t| t.nanoseconds as f64 / 1e3).collect())
}

/// Bytes read and written in a second by the best of several copies with a plain kernel.
fn copy_bandwidth(kind: BackendKind, a: &Arguments, bytes: usize) -> Result<f64, AnyError> {
    let backend =
        transformer_lite::unstable::devices::open(kind, &backend::OpenOptions::of(a.device.as_deref()))?;
    let count = bytes / 4;
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let x = edit.add_value("x", Some(Fact::new(DType::F32, Shape::fixed(&[count]))));
    edit.add_input(x);
    let one = edit.add_const("one", Arc::new(HostTensor::from_f32(&[1], &[1.0])?));
    let y = edit.add_value("y", None);
    let op = Box::new(Pointwise::binary("Add", Binary::Add));
    edit.add_node("copy", Vec::new(), op, vec![Some(x), Some(one)], vec![y]);
    edit.add_output(y);
    derive::derive(&mut graph)?;
    let plan = Plan::compile(
        &graph,
        backend.caps(),
        &Options {
            float: DType::F32,
            ..Options::default()
        },
    )?;
    let mut executor = Executor::new(backend, &graph, vec![plan])?;
    executor.write(0, "x", &HostTensor::from_f32(&[count], &vec![0.25; count])?)?;
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        best = microseconds(&mut executor, "pointwise")?
            .into_iter()
            .fold(best, f64::min);
    }
    Ok(2.0 * bytes as f64 / best * 1e6)
}

fn largest(a: &[f32], b: &[f32]) -> f32 {
    let range = a.iter().fold(0f32, |m, v| m.max(v.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / range
}

fn table(kind: BackendKind, a: &Arguments) -> Result<(), AnyError> {
    let caps =
        transformer_lite::unstable::devices::open(kind, &backend::OpenOptions::of(a.device.as_deref()))?
            .caps()
            .clone();
    let cpu = caps.kind == DeviceKind::Cpu;
    let copied = match (a.short, cpu) {
        (true, _) => 1 << 16,
        (false, true) => 32 << 20,
        (false, false) => 120 << 20,
    };
    let copied = copy_bandwidth(kind, a, copied)?;
    println!(
        "{kind}: {} ({}), copies at {:.1} GB/s",
        caps.device,
        caps.driver,
        copied / 1e9
    );
    println!("rows of x {}, group {}, activations {}", a.rows, a.group, a.float);
    println!(
        "{:>14} {:>10} {:>10} {:>8} {:>8} {:>7}",
        "K x N", "E0M4", "INT4", "ratio", "GB/s", "of copy"
    );
    let (shapes, runs) = if a.short {
        (&SHORT[..], 1)
    } else {
        (&SHAPES[..], RUNS)
    };
    for &(k, n) in shapes {
        let bytes = k * n / 2 + k.div_ceil(a.group) * n * 4;
        // Several caches full.
        let count = if cpu || a.short {
            2
        } else {
            (256 << 20) / bytes + 1
        };
        let mut all = Vec::new();
        for form in [None, Some(0), Some(1)] {
            all.extend(products(kind, a, (k, n), count, form)?.map(|e| (e, Vec::new(), Vec::new())));
        }
        for (executor, y, _) in &mut all {
            executor.run(0, &Bindings::new())?;
            *y = vec![0.0; n];
            executor.read_f32(0, "y0", 0, y)?;
        }
        for (_, y, _) in all.iter().skip(1) {
            let apart = largest(&all[0].1, y);
            if apart.is_nan() || apart > 1e-2 {
                return Err(format!("{k}x{n}: the twin's results are {apart:e} apart").into());
            }
        }
        while all[0].2.len() < runs {
            for (executor, _, times) in &mut all {
                times.extend(microseconds(executor, "_e0m")?);
            }
        }
        let mut medians = all.iter_mut().map(|(_, _, times)| median(times));
        let ours = medians.next().unwrap_or(f64::NAN);
        let theirs = medians.fold(f64::INFINITY, f64::min);
        let rate = bytes as f64 / ours * 1e6;
        println!(
            "{:>14} {ours:>7.1} us {theirs:>7.1} us {:>8.3} {:>8.1} {:>6.1}%",
            format!("{k} x {n}"),
            ours / theirs,
            rate / 1e9,
            rate / copied * 100.0
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse() {
        Ok(a) => a,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(2);
        }
    };
    let mut failed = false;
    for kind in devices::backends() {
        if let Err(e) = table(kind, &arguments) {
            eprintln!("error: {kind}: {e}");
            failed = true;
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
