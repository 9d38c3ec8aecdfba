//! Kernels that give wrong results, do not build or are not launched.

use super::play::{self, Outcome, Run};
use super::{Add, FEW, Model, OnModel, PROFILES, TOKENS, failing, fault, of, with_faults};
use std::time::Duration;
use tlite_fake_driver::{Config, Fault, Profile, cl};
use tlite_testing::Text;

/// The trials of a model.
pub fn trials(add: &mut Add<'_>) {
    let plain: [(&str, OnModel); 6] = [
        ("a_wrong_variant_is_not_used", wrong_variant),
        ("a_wrong_form_is_not_used", wrong_form),
        ("a_lack_of_memory_is_no_verdict", short_of_memory),
        ("a_variant_that_does_not_build_is_not_used", unbuilt_variant),
        ("a_variant_that_is_not_launched_is_not_used", unlaunched_variant),
        ("a_variant_is_launched_at_the_second_try", launched_at_last),
    ];
    for (name, run) in plain {
        add(name, Box::new(run));
    }
    for kernel in [
        "matvec_e0m",
        "matmul_e0m",
        "attention",
        "rotary_append",
        "gather_e0m",
        "pointwise",
        "norm",
    ] {
        let run = move |model: &Model| wrong_kernel(model, kernel);
        add(&format!("a_wrong_kernel_is_an_error/{kernel}"), Box::new(run));
    }
    for (name, profile) in PROFILES {
        let run = move |model: &Model| builds_at_last(model, profile);
        add(
            &format!("a_kernel_builds_at_the_second_try@{name}"),
            Box::new(run),
        );
    }
}

/// The variant of a kernel that a decoder's norms have where local memory is fast.
pub const VARIANT: &str = "norm_row";

/// A compiler that fails once changes nothing.
fn builds_at_last(model: &Model, profile: Profile) -> Outcome {
    let kernel = model.phone(profile)?.last_kernel()?;
    let failed = failing("clBuildProgram", Some(&kernel), 1..=1, cl::BUILD_PROGRAM_FAILURE);
    let run = model.run(&with_faults(profile, failed), FEW, &[])?;
    model.recovers(&run, profile, FEW)?;
    run.quiet()
}

/// One start says that the variant is not used, and uses its twin; the next one knows and says so,
/// and checks nothing.
pub fn quarantined(model: &Model, config: &Config, variant: &str) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let cache = dir.path().join("cache").display().to_string();
    let profile = config.profile.ok_or("no phone")?;
    let run = || play::generate_cached(&model.folder, config, FEW, &cache, &[]);
    let first = run()?;
    model.recovers(&first, profile, FEW)?;
    let notes = first.notes_of_kernel(variant);
    if notes != 1 {
        return Err(format!("{notes} notes: {}", first.errors));
    }
    if first.number("kernels_checked")? == 0 {
        return Err("nothing was checked".to_owned());
    }
    let second = run()?;
    model.agrees(&second, FEW)?;
    second.unharmed()?;
    second.earlier(variant)?;
    let checked = second.number("kernels_checked")?;
    if checked > 0 {
        return Err(format!("{checked} kernels checked"));
    }
    Ok(())
}

fn wrong_variant(model: &Model) -> Outcome {
    let plain = model.phone(Profile::Radeon)?;
    model.agrees(plain, TOKENS)?;
    plain.quiet()?;
    if plain.count(&format!("clEnqueueNDRangeKernel kernel={VARIANT} ")) == 0 {
        return Err(format!("{VARIANT} is not used where it is right"));
    }
    let config = Config {
        corrupt: Some(VARIANT.to_owned()),
        ..of(Profile::Radeon)
    };
    quarantined(model, &config, VARIANT)
}

fn unbuilt_variant(model: &Model) -> Outcome {
    quarantined(
        model,
        &with_faults(Profile::Radeon, refused_builds(VARIANT)),
        VARIANT,
    )
}

/// The first launches of a kernel are refused.
fn launches_refused(kernel: &str, count: u64) -> Vec<Fault> {
    failing(
        "clEnqueueNDRangeKernel",
        Some(kernel),
        1..=count,
        cl::OUT_OF_RESOURCES,
    )
}

/// The first launches of the variant are refused.
fn unlaunched(count: u64) -> Config {
    with_faults(Profile::Radeon, launches_refused(VARIANT, count))
}

/// Compiled, but not launched.
fn unlaunched_variant(model: &Model) -> Outcome {
    quarantined(model, &unlaunched(99), VARIANT)
}

/// A driver that refuses a launch once says nothing of the kernel.
fn launched_at_last(model: &Model) -> Outcome {
    let run = model.run(&unlaunched(1), FEW, &[])?;
    model.recovers(&run, Profile::Radeon, FEW)?;
    run.quiet()
}

/// Every build of a kernel is refused.
pub fn refused_builds(kernel: &str) -> Vec<Fault> {
    failing("clBuildProgram", Some(kernel), 1..=98, cl::BUILD_PROGRAM_FAILURE)
}

/// A form of a kernel that its define makes; without it the kernel is right.
fn wrong_form(model: &Model) -> Outcome {
    let config = Config {
        corrupt: Some("matvec_e0m".to_owned()),
        corrupt_text: Some("#define WHOLE".to_owned()),
        ..of(Profile::Mali)
    };
    quarantined(model, &config, "matvec_e0m WHOLE")
}

/// A compiler that lacks memory once says nothing of the kernel: it is used, in that start and in
/// later ones.
fn short_of_memory(model: &Model) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let cache = dir.path().join("cache").display().to_string();
    let refused = failing("clBuildProgram", Some(VARIANT), 1..=2, cl::OUT_OF_HOST_MEMORY);
    let failing = with_faults(Profile::Radeon, refused);
    for (config, fails) in [(failing, true), (of(Profile::Radeon), false)] {
        let run = play::generate_cached(&model.folder, &config, FEW, &cache, &[])?;
        if fails {
            model.recovers(&run, Profile::Radeon, FEW)?;
        } else {
            model.agrees(&run, FEW)?;
        }
        run.quiet()?;
        if run.count(&format!("clEnqueueNDRangeKernel kernel={VARIANT} ")) == 0 {
            return Err(format!("{VARIANT} is not used"));
        }
    }
    Ok(())
}

/// Quick cases on the card.
fn quick_cases(config: &Config) -> Result<Run, String> {
    let args = [
        "selftest",
        "--quick",
        "--json",
        "--backend",
        "opencl",
        "--no-cache",
    ];
    play::run(&args, config)
}

/// The number of cases that failed, and the variants that are not used for it.
fn left(report: &serde_json::Value) -> Result<(usize, Vec<String>), String> {
    let row = &report["devices"][0];
    let (failed, left) = (row["failed"].as_array(), row["quarantined"].as_array());
    let failed = failed.ok_or_else(|| format!("no list of what failed: {report}"))?;
    let left = left.ok_or_else(|| format!("no list of what is not used: {report}"))?;
    let names = left
        .iter()
        .filter_map(|q| Some(q["variant"].as_str()?.to_owned()));
    Ok((failed.len(), names.collect()))
}

/// The cases blame the variant that is wrong, and no other.
pub fn cases_blame_what_is_wrong() -> Outcome {
    let config = Config {
        corrupt: Some(VARIANT.to_owned()),
        ..of(Profile::Radeon)
    };
    let run = quick_cases(&config)?;
    match left(&run.json()?)? {
        (1.., names) if names == [VARIANT] => Ok(()),
        found => Err(format!("{found:?}")),
    }
}

/// A device that is lost ends the cases, and says nothing of any kernel; neither do refusals of
/// memory.
pub fn cases_blame_no_kernel_for_the_device() -> Outcome {
    let of_variant = |code, lost| Fault {
        kernel: Some(VARIANT.to_owned()),
        lost,
        ..fault("clEnqueueNDRangeKernel", 1, code)
    };
    let lost = of_variant(cl::DEVICE_NOT_AVAILABLE, true);
    let refused = of_variant(cl::MEM_OBJECT_ALLOCATION_FAILURE, false);
    for fault in [lost, refused] {
        let run = quick_cases(&with_faults(Profile::Radeon, vec![fault.clone()]))?;
        let (failed, names) = left(&run.json()?)?;
        if fault.lost {
            run.recovered(Duration::ZERO)?;
        }
        if failed != 1 || !names.is_empty() {
            return Err(format!(
                "{fault:?}: {failed} cases failed, {names:?} are not used"
            ));
        }
    }
    Ok(())
}

/// A kernel without a twin whose results are wrong ends the start.
fn wrong_kernel(model: &Model, kernel: &str) -> Outcome {
    let config = Config {
        corrupt: Some(kernel.to_owned()),
        ..of(Profile::Adreno)
    };
    let run = model.run(&config, TOKENS, &[])?;
    run.failed("Wrong", &[kernel, "Adreno"])
}
