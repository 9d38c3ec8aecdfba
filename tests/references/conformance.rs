//! Every case of every operator on every device, against `Op::eval`.
//!
//! A trial is named `softmax/3x130/.../f16@opencl`, so that filters work. Operators write only the
//! cases; what is added to each of them says the engine's module `validate::case`. Here buffers
//! have guard zones besides, and kernels by way of local memory run in each size of their tiles.
//!
//! A backend without a device is an ignored trial, or a failing one when `REQUIRE_BACKENDS` names
//! it. `tests/references/expected_failures.txt` lists known failures; one that passes fails. With
//! `CONFORMANCE_ERRORS` set, each comparison prints its error and its bound. With
//! `CONFORMANCE_SAMPLE` set, one case of each operator runs in each storage type; the others are
//! listed as ignored. In the tier `ci`, devices with compilers and lower instruction sets run one
//! case in three and one tuned set in six, and at least one of each operator and storage type.

mod expected;
mod symbolic;
mod tuned;

use expected::Expectations;
use std::sync::Arc;
use tlite_testing::suite::Suite;
use tlite_testing::{Device, Text, Tier};
use transformer_lite::unstable::backend::isa::Isa;
use transformer_lite::unstable::graph::op::{self, case::Case};
use transformer_lite::unstable::tensor::DType;
use transformer_lite::unstable::validate::case::{self, Depth, Scenario};

pub fn trials(suite: &mut Suite) {
    if std::env::var_os("CONFORMANCE_ERRORS").is_some() {
        let mut log = env_logger::Builder::new();
        log.filter_module("transformer_lite::internal::validate", log::LevelFilter::Debug)
            .init();
    }
    let mut devices = suite.devices();
    devices.extend(tlite_testing::lower_instruction_sets());
    let expectations = Arc::new(Expectations::load());
    let all = std::env::var_os("CONFORMANCE_SAMPLE").is_none();
    let sparse = Tier::of_environment() == Tier::Ci;
    let own = |device: &Device| device.caps.driver == Isa::best().name();
    let (mut device_cases, mut host_cases) = (0, 0);
    for def in op::all() {
        let (on_host, on_device): (Vec<Case>, Vec<Case>) = (def.cases)()
            .into_iter()
            .partition(|case| case.host_only.is_some());
        host_cases += on_host.len();
        device_cases += on_device.len();
        for case in on_host {
            suite.add_if(all, SAMPLE, format!("{}@reference", case.name()), move || {
                host_only(&case)
            });
        }
        let last = on_device.len().saturating_sub(1);
        for (i, case) in on_device.into_iter().enumerate() {
            for device in &devices {
                let taken = all && (!sparse || own(device) || i.is_multiple_of(3));
                // The first case in f16, and the last in f32.
                let runs = |storage| taken || i == if storage == DType::F16 { 0 } else { last };
                let (name, case) = (case.name(), case.clone());
                let make = move || Scenario::of(&case);
                add(suite, &expectations, device, &devices, &name, runs, make);
            }
        }
    }
    for (name, make) in symbolic::scenarios() {
        for device in &devices {
            let name = format!("symbolic/{name}");
            add(suite, &expectations, device, &devices, &name, |_| all, make);
        }
    }
    for device in &devices {
        for &storage in device.caps.profile.storage_types() {
            let name = format!("symbolic/kv_append/{storage}@{}", device.label(&devices));
            let device = device.clone();
            suite.add_if(all, SAMPLE, name, move || symbolic::kv_append(&device, storage));
        }
    }
    for device in &devices {
        for (i, tuned) in tuned::trials(device).into_iter().enumerate() {
            let name = format!("{}@{}", tuned.name, device.label(&devices));
            let device = device.clone();
            let taken = all && (!sparse || i.is_multiple_of(6));
            suite.add_if(taken, SAMPLE, name, move || tuned.run(&device));
        }
    }
    let names = suite.names();
    let present: Vec<_> = devices
        .iter()
        .map(|d| (d.kind.to_string(), d.caps.driver.clone()))
        .collect();
    suite.add("expected_failures", move || expectations.check(&names, &present));
    for d in &devices {
        eprintln!("{}: {} ({})", d.kind, d.caps.device, d.caps.driver);
    }
    eprintln!("{device_cases} cases for devices, {host_cases} for the host only");
}

/// Operators of which the CPU backend has no kernel for some cases; these run in the interpreter.
const WITHOUT_NATIVE: &[&str] = &[];

/// Kind of the trials that are not in a sample.
const SAMPLE: &str = "not in the sample";

/// One trial for each storage type, which runs if `runs` says so.
fn add(
    suite: &mut Suite,
    expectations: &Arc<Expectations>,
    device: &Device,
    all: &[Device],
    name: &str,
    runs: impl Fn(DType) -> bool,
    make: impl Fn() -> Result<Scenario, String> + Clone + Send + 'static,
) {
    for &storage in device.caps.profile.storage_types() {
        let operator = name.split('/').next().unwrap_or_default().to_owned();
        let name = format!("{name}/{storage}@{}", device.label(all));
        let expected = expectations.find(&device.kind.to_string(), &device.caps.driver, &name);
        let (device, make) = (device.clone(), make.clone());
        suite.add_if(runs(storage), SAMPLE, name, move || {
            let _turn = device.turn();
            let run = |s| {
                if device.caps.profile.language().is_none()
                    && case::runs_on_host(&s, &device.caps, storage).text()?
                {
                    return match WITHOUT_NATIVE.contains(&operator.as_str()) {
                        true => Ok(()),
                        false => Err(format!("{operator} has no native kernel")),
                    };
                }
                case::run(&device, &s, storage, Depth::Every).map_err(|e| e.to_string())
            };
            let result = make().and_then(run);
            match (result, expected) {
                (result, None) => result,
                (Err(e), Some(reason)) => {
                    eprintln!("expected failure ({reason}): {e}");
                    Ok(())
                }
                (Ok(()), Some(reason)) => Err(format!("passes, but expected_failures.txt has it: {reason}")),
            }
        });
    }
}

/// The reference runs; planning refuses with an error of its own or emits nothing.
fn host_only(case: &Case) -> Result<(), String> {
    let scenario = Scenario::of(case)?;
    scenario.reference(&scenario.runs[0].1)?;
    match case::plan(&scenario, &tlite_testing::fake_caps()) {
        Ok(steps) if steps > 0 => Err(format!(
            "marked `host_only`, yet planning emits {steps} dispatches"
        )),
        Ok(_) | Err(transformer_lite::unstable::error::Error::Node { .. }) => Ok(()),
        Err(e) => Err(format!("planning fails without naming the node: {e}")),
    }
}
