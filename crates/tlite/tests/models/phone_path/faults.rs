//! Calls that fail, and slow ones: each run ends with one error, or endures.

use super::play::Outcome;
use super::{Add, FEW, Model, PROFILES, TOKENS, failing, fault, of, with_faults};
use tlite_fake_driver::{Config, Delay, Profile, cl};

/// The trials of a model.
pub fn trials(add: &mut Add<'_>) {
    type OnPhone = fn(&Model, Profile) -> Outcome;
    let plain: [(&str, OnPhone); 3] = [
        ("slow_device", slow),
        ("out_of_resources_while_generating", fails_while_generating),
        ("memory_limit", memory_limit),
    ];
    for (phone, profile) in PROFILES {
        for (name, run) in plain {
            add(
                &format!("{name}@{phone}"),
                Box::new(move |model: &Model| run(model, profile)),
            );
        }
        for (name, case) in faults() {
            let run = move |model: &Model| fails(model, profile, &case);
            add(&format!("{name}@{phone}"), Box::new(run));
        }
    }
}

/// A dispatch of the last token fails, behind those that were told already.
fn fails_while_generating(model: &Model, profile: Profile) -> Outcome {
    let plain = ["--recording", "off", "--slice-ms", "0"];
    let run = model.run(&of(profile), TOKENS, &plain)?;
    model.agrees(&run, TOKENS)?;
    let nth = run.count("clEnqueueNDRangeKernel ").saturating_sub(50) as u64;
    let refused = fault("clEnqueueNDRangeKernel", nth, cl::OUT_OF_RESOURCES);
    let run = model.run(&with_faults(profile, vec![refused]), TOKENS, &plain)?;
    run.failed("Launch", &["clEnqueueNDRangeKernel", "CL_OUT_OF_RESOURCES"])
}

/// Every dispatch takes 1 ms longer, every wait half a second.
fn slow(model: &Model, profile: Profile) -> Outcome {
    let delay = |call: &str, ms| Delay {
        call: call.to_owned(),
        ms,
    };
    let config = Config {
        delays: vec![
            delay("clEnqueueNDRangeKernel", 1),
            delay("clEnqueueReadBuffer", 500),
            delay("clFinish", 500),
        ],
        ..of(profile)
    };
    let run = model.run(&config, FEW, &[])?;
    model.agrees(&run, FEW)?;
    run.endured(
        &["clEnqueueNDRangeKernel", "clEnqueueReadBuffer", "clFinish"],
        2 * model.phone(profile)?.took,
    )?;
    run.quiet()
}

/// A call that fails, and the error that the run must end with.
#[derive(Clone)]
struct Failing {
    call: &'static str,
    /// Which calls fail; `None`: all about the kernel that a step ends with, or about its program.
    nth: Option<u64>,
    code: i32,
    lost: bool,
    variant: &'static str,
    /// What the error carries.
    values: &'static [&'static str],
}

/// The calls by the names of their trials.
#[rustfmt::skip]
fn faults() -> Vec<(&'static str, Failing)> {
    let case = |name, call, nth, code, lost, variant, values| {
        (name, Failing { call, nth, code, lost, variant, values })
    };
    let (build, launch, read, upload) =
        ("clBuildProgram", "clEnqueueNDRangeKernel", "clEnqueueReadBuffer", "clEnqueueWriteBuffer");
    let (gone, resources) = (cl::DEVICE_NOT_AVAILABLE, cl::OUT_OF_RESOURCES);
    let (context, full) = ("clCreateContext", cl::MEM_OBJECT_ALLOCATION_FAILURE);
    vec![
        case("a_kernel_does_not_build", build, None, cl::BUILD_PROGRAM_FAILURE, false, "Build", &["source.cl:1:1"]),
        case("a_kernel_is_not_launched", launch, None, resources, false, "Launch", &["clEnqueueNDRangeKernel", "CL_OUT_OF_RESOURCES"]),
        case("device_lost_at_a_dispatch", launch, Some(500), gone, true, "Lost", &["CL_DEVICE_NOT_AVAILABLE"]),
        case("device_lost_at_a_read", read, Some(3), resources, true, "Lost", &["clEnqueueReadBuffer", "CL_OUT_OF_RESOURCES"]),
        case("device_lost_at_an_upload", upload, Some(5), gone, true, "Lost", &["clEnqueueWriteBuffer"]),
        case("no_context", context, Some(1), gone, true, "Device", &["clCreateContext", "CL_DEVICE_NOT_AVAILABLE"]),
        case("no_memory", "clCreateBuffer", Some(2), full, false, "OutOfMemory", &["CL_MEM_OBJECT_ALLOCATION_FAILURE"]),
    ]
}

fn fails(model: &Model, profile: Profile, case: &Failing) -> Outcome {
    let (kernel, nths) = match case.nth {
        Some(nth) => (None, nth..=nth),
        // A build that fails is tried again, and a kernel has many forms: all fail.
        None => (Some(model.phone(profile)?.last_kernel()?), 1..=99),
    };
    let mut faults = failing(case.call, kernel.as_deref(), nths, case.code);
    for fault in &mut faults {
        fault.lost = case.lost;
    }
    let run = model.run(&with_faults(profile, faults), TOKENS, &[])?;
    run.failed(case.variant, case.values)
}

/// A limit on all buffers together, which is less than the weights.
fn memory_limit(model: &Model, profile: Profile) -> Outcome {
    let config = Config {
        memory_limit: Some(32 << 20),
        ..of(profile)
    };
    model.run(&config, TOKENS, &[])?.failed("OutOfMemory", &[])
}
