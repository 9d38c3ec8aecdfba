//! Every case of every operator on every device, against `Op::eval`.
//!
//! A trial is named `softmax/3x130/.../f16@opencl`, so that filters work. Operators write only the
//! cases; what is added to each of them says the engine's module `selftest::case`. Here buffers
//! have guard zones besides, and kernels by way of local memory run in each size of their tiles.
//!
//! A backend without a device is an ignored trial, or a failing one when `REQUIRE_BACKENDS` names
//! it. `tests/expected_failures.txt` lists known failures; one that passes fails. With
//! `CONFORMANCE_ERRORS` set, each comparison prints its error and its bound.

#[path = "conformance/expected.rs"]
mod expected;
#[path = "conformance/symbolic.rs"]
mod symbolic;
#[path = "conformance/tuned.rs"]
mod tuned;

use expected::Expectations;
use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;
use std::sync::Arc;
use tlite_testing::Device;
use transformer_lite::unstable::graph::op::{ALL, case::Case};
use transformer_lite::unstable::selftest::case::{self, Depth, Scenario};
use transformer_lite::unstable::tensor::DType;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if std::env::var_os("CONFORMANCE_ERRORS").is_some() {
        let mut log = env_logger::Builder::new();
        log.filter_module("transformer_lite::internal::selftest", log::LevelFilter::Debug)
            .init();
    }
    let (devices, missing) = tlite_testing::devices();
    let expectations = Arc::new(Expectations::load());
    let mut trials = Vec::new();
    let (mut device_cases, mut host_cases) = (0, 0);
    for case in ALL.iter().flat_map(|def| (def.cases)()) {
        if case.host_only.is_some() {
            host_cases += 1;
            let name = format!("{}@host", case.name());
            trials.push(Trial::test(name, move || Ok(host_only(&case)?)).with_kind("host only"));
            continue;
        }
        device_cases += 1;
        for device in &devices {
            let (name, case) = (case.name(), case.clone());
            add(&mut trials, &expectations, device, &devices, &name, move || {
                Scenario::of(&case)
            });
        }
    }
    for (name, make) in symbolic::scenarios() {
        for device in &devices {
            add(
                &mut trials,
                &expectations,
                device,
                &devices,
                &format!("symbolic/{name}"),
                make,
            );
        }
    }
    for device in &devices {
        for storage in [DType::F16, DType::F32] {
            let name = format!("symbolic/kv_append/{storage}@{}", device.label(&devices));
            let device = device.clone();
            trials.push(Trial::test(name, move || {
                Ok(symbolic::kv_append(&device, storage)?)
            }));
        }
    }
    for device in &devices {
        for tuned in tuned::trials(device) {
            let name = format!("{}@{}", tuned.name, device.label(&devices));
            let device = device.clone();
            trials.push(Trial::test(name, move || Ok(tuned.run(&device)?)));
        }
    }
    trials.extend(tlite_testing::missing_trials(missing));
    let lists = expectations.clone();
    let names: Vec<String> = trials.iter().map(|t| t.name().to_owned()).collect();
    let present: Vec<_> = devices
        .iter()
        .map(|d| (d.kind.to_string(), d.caps.driver.clone()))
        .collect();
    trials.push(Trial::test("expected_failures", move || {
        Ok(lists.check(&names, &present)?)
    }));
    if !arguments.list {
        for d in &devices {
            eprintln!("{}: {} ({})", d.kind, d.caps.device, d.caps.driver);
        }
        eprintln!("{device_cases} cases for devices, {host_cases} for the host only");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// One trial for each storage type.
fn add(
    trials: &mut Vec<Trial>,
    expectations: &Arc<Expectations>,
    device: &Device,
    all: &[Device],
    name: &str,
    make: impl Fn() -> Result<Scenario, String> + Clone + Send + 'static,
) {
    for storage in [DType::F16, DType::F32] {
        let name = format!("{name}/{storage}@{}", device.label(all));
        let expected = expectations.find(&device.kind.to_string(), &device.caps.driver, &name);
        let (device, make) = (device.clone(), make.clone());
        trials.push(Trial::test(name, move || {
            let _turn = device.turn();
            let run = |s| case::run(&device, &s, storage, Depth::Every).map_err(|e| e.to_string());
            let result = make().and_then(run);
            match (result, expected) {
                (result, None) => Ok(result?),
                (Err(e), Some(reason)) => {
                    eprintln!("expected failure ({reason}): {e}");
                    Ok(())
                }
                (Ok(()), Some(reason)) => {
                    Err(format!("passes, but tests/expected_failures.txt has it: {reason}").into())
                }
            }
        }));
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
