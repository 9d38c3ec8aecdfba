//! Random graphs, for which all backends must give the same results: integers up to the ends of
//! their types, NaN, infinities, empty axes, broadcast axes of size 1, symbolic sizes.

mod maker;

use crate::devices::{cached, on_processor};
use crate::work::{Random, put};
use maker::Made;
use prost::Message;
use std::path::Path;
use std::sync::OnceLock;
use transformer_lite::unstable::backend::{BackendKind, OpenOptions};
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::devices;
use transformer_lite::unstable::graph::onnx::proto::TensorProto;
use transformer_lite::unstable::graph::onnx::type_code;
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Allowed difference of floats, relative to the expected one, or to 1 if that is smaller. Only the
/// last operator of a graph rounds.
const TOLERANCE: f64 = 1e-3;

/// One in this many models is kept for a comparison with ONNX Runtime.
const KEPT: u32 = 20;

/// Compares the native kernels with the interpreter. Uses a random instruction set of the
/// processor, and one thread or all.
pub fn cpu(data: &[u8]) {
    against_host(data, BackendKind::Cpu, &on_processor(data));
}

/// Compares OpenCL with the interpreter.
pub fn opencl(data: &[u8]) {
    against_host(data, BackendKind::OpenCl, &cached());
}

/// Compares WGSL with the interpreter.
pub fn wgpu(data: &[u8]) {
    against_host(data, BackendKind::Wgpu, &cached());
}

fn against_host(data: &[u8], kind: BackendKind, open: &OpenOptions) {
    let made = Made::new(&mut Random::new(crc32fast::hash(data)));
    let path = put("model.onnx", &made.model.encode_to_vec());
    let options = RunnerOptions {
        float: DType::F32,
        ..Default::default()
    };
    let cancel = Cancel::default();
    let run = |device| Runner::load(&path, device, &options)?.run(&made.inputs, &cancel);
    let wanted = run(None);
    let device = devices::open(kind, open).expect("the device is there");
    let found = run(Some(device));
    let operators = || made.operators().join(", ");
    match (found, wanted) {
        (Ok(found), Ok(wanted)) => {
            keep(&made, &wanted);
            for ((name, found), (_, wanted)) in found.iter().zip(&wanted) {
                let why = difference(found, wanted);
                assert!(
                    why.is_none(),
                    "{}: output {name:?}: {}; inputs {:?}",
                    operators(),
                    why.unwrap_or_default(),
                    made.inputs
                );
            }
        }
        (Err(e), Ok(_)) if !(made.may_fail && made.is_empty) => {
            panic!("{}: only the device fails: {}", operators(), e.chain())
        }
        (Ok(_), Err(e)) if !(made.may_fail && made.is_empty) => {
            panic!("{}: only the host fails: {}", operators(), e.chain())
        }
        (Err(e), _) | (_, Err(e)) => {
            // An index out of range is the only error that a graph may cause.
            assert!(made.may_fail, "{}: {}", operators(), e.chain());
        }
    }
}

/// The difference; `None` if there is none.
fn difference(found: &HostTensor, wanted: &HostTensor) -> Option<String> {
    if found.dtype() != wanted.dtype() || found.shape() != wanted.shape() {
        return Some(format!("expected {wanted:?}, found {found:?}"));
    }
    if !wanted.dtype().is_float() {
        let (a, b) = (found.to_bits().ok()?, wanted.to_bits().ok()?);
        return (a != b).then(|| format!("expected {b:?}, found {a:?}"));
    }
    let (a, b) = (found.to_f64().ok()?, wanted.to_f64().ok()?);
    let is_near = |(a, b): (&f64, &f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= TOLERANCE * b.abs().max(1.0)
    };
    let near = a.iter().zip(b.iter()).all(is_near);
    (!near).then(|| format!("expected {b:?}, found {a:?}"))
}

/// Writes one in [`KEPT`] models with its inputs and results into a new folder in `FUZZ_GRAPHS`,
/// for `tools/compare_graphs.py`. The files are laid out like ONNX's test cases. Models whose
/// results the standard leaves open are skipped.
fn keep(made: &Made, results: &[Named]) {
    static FOLDER: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    let Some(all) = FOLDER.get_or_init(|| std::env::var_os("FUZZ_GRAPHS")) else {
        return;
    };
    let model = made.model.encode_to_vec();
    let hash = crc32fast::hash(&model);
    if !made.is_defined || !hash.is_multiple_of(KEPT) {
        return;
    }
    let case = Path::new(all).join(format!("{hash:08x}"));
    let set = case.join("test_data_set_0");
    std::fs::create_dir_all(&set).expect("FUZZ_GRAPHS can be written");
    let write = |path: &Path, bytes: &[u8]| std::fs::write(path, bytes).expect("FUZZ_GRAPHS can be written");
    write(&case.join("model.onnx"), &model);
    for (kind, list) in [("input", made.inputs.as_slice()), ("output", results)] {
        for (i, (name, tensor)) in list.iter().enumerate() {
            write(
                &set.join(format!("{kind}_{i}.pb")),
                &proto(name, tensor).encode_to_vec(),
            );
        }
    }
}

/// The ONNX message of a tensor.
fn proto(name: &str, tensor: &HostTensor) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: tensor.shape().iter().map(|n| *n as i64).collect(),
        data_type: type_code(tensor.dtype()),
        raw_data: tensor.bytes().expect("a tensor of whole bytes").to_vec(),
        ..Default::default()
    }
}
