//! Quantized operators and networks against TensorFlow Lite and ONNX Runtime, on the host and on
//! every device. All integers must be equal, except for [`DIFFERENCES`]. See
//! `tests/data/integer/README.md`.

use std::path::{Path, PathBuf};
use tlite_testing::Device;
use tlite_testing::suite::Suite;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::graph::pass::integer;
use transformer_lite::unstable::graph::{derive, onnx};
use transformer_lite::unstable::quant::fixed::Arithmetic;
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// The arithmetics and their names in file names.
const ARITHMETICS: [(&str, Arithmetic); 2] = [("fixed", Arithmetic::Fixed), ("float", Arithmetic::Float)];

/// Known differences from a reference: the arithmetic, the prefix of the case names, and the
/// largest difference.
const DIFFERENCES: &[(&str, &str, i64)] = &[
    // Where the exact mean is halfway between two integers, the result of the reference depends on
    // the rounding errors of its float sums.
    ("float", "average_pool", 1),
    ("float", "global_average_pool", 1),
    ("float", "reduce_mean", 1),
    // TensorFlow Lite computes this function in fixed point; the engine uses a table.
    ("fixed", "hardswish", 1),
    // TensorFlow Lite rounds ties away from zero; the engine follows ONNX in both arithmetics.
    ("fixed", "quantize", 1),
];

/// Whole networks with a batch size of 8.
const NETWORKS: [&str; 2] = ["resnet8", "mobilenet_v1"];
/// Number of random batches for each network on each device.
const BATCHES: u64 = 125;

pub fn trials(suite: &mut Suite) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/integer");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    cases.sort();
    let devices = suite.devices();
    let places: Vec<(String, Option<Device>)> = std::iter::once(("reference".to_owned(), None))
        .chain(devices.iter().map(|d| (d.label(&devices), Some(d.clone()))))
        .collect();
    for case in &cases {
        let name = case
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        for (label, arithmetic) in ARITHMETICS {
            if !case.join(format!("test_data_set_0/{label}_0.pb")).exists() {
                continue;
            }
            for (place, device) in &places {
                let (case, device, name) = (case.clone(), device.clone(), name.clone());
                suite.add(format!("{name}/{label}@{place}"), move || {
                    check(&case, &name, (label, arithmetic), device.as_ref())
                });
            }
        }
    }
    for network in NETWORKS {
        for (label, arithmetic) in ARITHMETICS {
            for device in &devices {
                let (model, device) = (folder.join(network).join("model.onnx"), device.clone());
                let place = device.label(&devices);
                suite.add(format!("{network}/{label}/random@{place}"), move || {
                    equal_to_host(&model, arithmetic, &device)
                });
            }
        }
    }
    let count = cases.len();
    suite.add("all_cases_are_there", move || {
        if count == 129 {
            Ok(())
        } else {
            Err(format!("found {count} cases, expected 129"))
        }
    });
}

fn read(path: &Path) -> Result<HostTensor, String> {
    onnx::read_tensor(path).map_err(|e| e.chain())
}

fn check(
    case: &Path,
    name: &str,
    (label, arithmetic): (&str, Arithmetic),
    device: Option<&Device>,
) -> Result<(), String> {
    let options = RunnerOptions {
        integer: Some(arithmetic),
        ..RunnerOptions::default()
    };
    if device.is_none() {
        float_nodes(case, arithmetic)?;
    }
    let backend = device.map(|d| Box::new(d.share()) as _);
    let mut runner = Runner::load(&case.join("model.onnx"), backend, &options).map_err(|e| e.chain())?;
    let data = case.join("test_data_set_0");
    let names: Vec<String> = runner.inputs().map(|(n, _)| n.to_owned()).collect();
    let mut given: Vec<Named> = Vec::new();
    for (i, input) in names.into_iter().enumerate() {
        given.push((input, read(&data.join(format!("input_{i}.pb")))?));
    }
    let results = runner.run(&given, &Cancel::default()).map_err(|e| e.chain())?;
    for (i, (output, found)) in results.iter().enumerate() {
        let expected = read(&data.join(format!("{label}_{i}.pb")))?;
        if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
            return Err(format!("\"{output}\": found {found:?}, expected {expected:?}"));
        }
        if found.dtype().is_float() {
            if found.to_f32().ok() != expected.to_f32().ok() {
                return Err(format!("\"{output}\" differs"));
            }
            continue;
        }
        let [found, expected] = [found, &expected].map(|t| t.to_i64().map_err(|e| e.to_string()));
        let (found, expected) = (found?, expected?);
        let far = found.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
        let (most, count) = (far.clone().max().unwrap_or(0), far.filter(|d| *d > 0).count());
        let listed = DIFFERENCES
            .iter()
            .find(|(arithmetic, case, _)| *arithmetic == label && name.starts_with(case));
        let bound = listed.map_or(0, |(_, _, bound)| *bound);
        if most > bound.unsigned_abs() {
            let all = expected.len();
            return Err(format!(
                "\"{output}\": {count} of {all} differ, by {most} at most; expected {bound}"
            ));
        }
    }
    let host: Vec<String> = runner
        .plan()
        .map(|p| {
            p.host
                .iter()
                .map(|h| format!("{}: {}", h.work.name(), h.why))
                .collect()
        })
        .unwrap_or_default();
    if !host.is_empty() {
        return Err(format!("nodes on the host: {}", host.join("; ")));
    }
    Ok(())
}

/// Fails if any node stays float.
fn float_nodes(case: &Path, arithmetic: Arithmetic) -> Result<(), String> {
    let mut graph = onnx::import(&case.join("model.onnx")).map_err(|e| e.chain())?;
    derive::derive(&mut graph).map_err(|e| e.chain())?;
    let found = integer::coverage(&graph, arithmetic)
        .map_err(|e| e.chain())?
        .float_nodes;
    if found.is_empty() {
        Ok(())
    } else {
        Err(format!("nodes stay float: {found:?}"))
    }
}

/// Runs a network on random inputs. Fails unless every byte of the results equals the host's.
fn equal_to_host(model: &Path, arithmetic: Arithmetic, device: &Device) -> Result<(), String> {
    let options = RunnerOptions {
        integer: Some(arithmetic),
        ..RunnerOptions::default()
    };
    let mut host = Runner::load(model, None, &options).map_err(|e| e.chain())?;
    let backend = Box::new(device.share());
    let mut runner = Runner::load(model, Some(backend), &options).map_err(|e| e.chain())?;
    let inputs: Vec<(String, Vec<usize>, DType)> = host
        .inputs()
        .map(|(name, fact)| {
            (
                name.to_owned(),
                fact.shape.as_fixed().unwrap_or_default(),
                fact.dtype,
            )
        })
        .collect();
    let mut state = 1u64;
    for batch in 0..BATCHES {
        let mut given: Vec<Named> = Vec::new();
        for (name, shape, dtype) in &inputs {
            let bytes: Vec<u8> = (0..shape.iter().product())
                .map(|_| {
                    // A linear congruential generator (Knuth's MMIX constants).
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            let tensor = HostTensor::from_bytes(*dtype, shape, &bytes).map_err(|e| e.to_string())?;
            given.push((name.clone(), tensor));
        }
        let expected = host.run(&given, &Cancel::default()).map_err(|e| e.chain())?;
        let found = runner.run(&given, &Cancel::default()).map_err(|e| e.chain())?;
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            if found.bytes().ok() != expected.bytes().ok() {
                return Err(format!("batch {batch}: \"{name}\" differs from the host"));
            }
        }
    }
    Ok(())
}
