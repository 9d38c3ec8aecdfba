//! Models on devices against the interpreter.

use crate::files::{inputs, options};
use crate::mutate::EDGES;
use crate::work::{Random, folder, put};
use prost::Message;
use std::sync::{Arc, OnceLock};
use transformer_lite::unstable::backend::{BackendKind, OpenOptions, isa::Isa};
use transformer_lite::unstable::cache::Store;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::devices;
use transformer_lite::unstable::graph::onnx::proto::ModelProto;
use transformer_lite::unstable::runner::{Named, Runner, compare};
use transformer_lite::unstable::tensor::HostTensor;

/// Allowed difference, relative to the range of the expected tensor. Some kernels add in another
/// order.
const TOLERANCE: f32 = 1e-2;

/// Larger results leave no digits to compare after a subtraction.
const LARGEST: f64 = 1e4;

/// Replaces integers by any numbers: they may be indices.
fn wild(given: &mut [Named], random: &mut Random) {
    for (_, t) in given.iter_mut().filter(|(_, t)| t.dtype().is_int()) {
        let count = t.shape().iter().product();
        let values: Vec<i64> = (0..count).map(|_| EDGES[random.below(EDGES.len())]).collect();
        if let Ok(other) = HostTensor::from_ints(t.dtype(), t.shape(), &values) {
            *t = other;
        }
    }
}

/// Whether results can be compared: floats of ordinary size.
fn is_ordinary(t: &HostTensor) -> bool {
    let ordinary = |values: &[f64]| values.iter().all(|v| v.abs() < LARGEST);
    t.dtype().is_float() && t.to_f64().is_ok_and(|values| ordinary(&values))
}

/// Whether results are defined: where elements are scattered to one place, any of them may stay.
fn is_defined(model: &ModelProto) -> bool {
    let nodes = model.graph.iter().flat_map(|g| &g.node);
    nodes
        .map(|n| n.op_type.as_str())
        .all(|op| !op.contains("Scatter"))
}

/// Runs a model on OpenCL and compares the results with the interpreter's.
pub fn opencl(data: &[u8]) {
    against_host(data, BackendKind::OpenCl, &cached());
}

/// The same on the processor, with one of its instruction sets and one or all threads.
pub fn cpu(data: &[u8]) {
    against_host(data, BackendKind::Cpu, &on_processor(data));
}

/// Options with a cache for compiled kernels.
pub fn cached() -> OpenOptions {
    static STORE: OnceLock<Arc<Store>> = OnceLock::new();
    let store = STORE.get_or_init(|| Arc::new(Store::new(folder().join("kernels"), 1 << 30)));
    OpenOptions {
        cache: Some(store.clone()),
        ..Default::default()
    }
}

/// Options with an instruction set of the processor, and one thread or all, chosen by `data`.
pub fn on_processor(data: &[u8]) -> OpenOptions {
    let mut random = Random::new(!crc32fast::hash(data).rotate_left(7));
    let all: Vec<Isa> = Isa::supported().collect();
    OpenOptions {
        isa: Some(all[random.below(all.len())]),
        threads: random.once_in(2).then_some(1),
        ..Default::default()
    }
}

/// Runs a model on a device and compares the results with the interpreter's. If the interpreter
/// fails, for example on an index out of range, nothing is compared.
fn against_host(data: &[u8], kind: BackendKind, open: &OpenOptions) {
    let path = put("model.onnx", data);
    let options = options();
    let Ok(mut host) = Runner::load(&path, None, &options) else {
        return;
    };
    let Some(mut given) = inputs(&host) else { return };
    let mut random = Random::new(crc32fast::hash(data));
    let is_wild = random.once_in(2);
    if is_wild {
        wild(&mut given, &mut random);
    }
    let device = devices::open(kind, open).expect("the device is there");
    let cancel = Cancel::default();
    let found =
        Runner::load(&path, Some(device), &options).and_then(|mut runner| runner.run(&given, &cancel));
    let (Ok(found), Ok(wanted)) = (found, host.run(&given, &cancel)) else {
        return;
    };
    if !ModelProto::decode(data).is_ok_and(|model| is_defined(&model)) {
        return;
    }
    for ((name, found), (_, wanted)) in found.iter().zip(&wanted) {
        if !is_ordinary(wanted) {
            continue;
        }
        let difference = match compare(found, wanted) {
            Ok(difference) => difference,
            // Sizes can come from data, which devices may round in another way.
            Err(_) if is_wild => continue,
            Err(e) => panic!("output {name:?}: {e}"),
        };
        // Subnormal numbers have few digits, and devices may replace them by 0.
        let is_subnormal = difference.max_abs <= f32::MIN_POSITIVE;
        assert!(
            is_subnormal || difference.relative <= TOLERANCE,
            "output {name:?}: {difference:?} between {found:?} and {wanted:?}"
        );
    }
}
