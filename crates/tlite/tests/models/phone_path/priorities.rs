//! Priorities reach the driver, as properties of the context or of the queue.

use super::devices::relu;
use super::play::{self, Outcome};
use super::{Add, Model, ONE, PROFILES, TOKENS, of};
use tlite_fake_driver::{Config, Profile};
use tlite_testing::Text;
use transformer_lite::unstable::backend::BackendKind;
use transformer_lite::unstable::devices;

/// The trials of a model.
pub fn trials(add: &mut Add<'_>) {
    add("priority_is_chosen", Box::new(priority_is_chosen));
    add("drivers_without_hints_are_told_of", Box::new(no_hints));
    for (name, profile) in PROFILES {
        let run = move |model: &Model| hints_are_refused(model, profile);
        add(&format!("hints_are_refused@{name}"), Box::new(run));
    }
}

/// The queue that measures times, too.
pub fn every_queue() -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let args = [
        "run",
        &model,
        "--random",
        "--profile",
        "--json",
        "--backend",
        "opencl",
        "--no-cache",
    ];
    let queue = "clCreateCommandQueueWithProperties properties=";
    // CL_QUEUE_PROFILING_ENABLE for slices and for profiles.
    for (slice, first) in [("8", 2), ("0", 0)] {
        let run = play::run(&[&args[..], &["--slice-ms", slice]].concat(), &of(Profile::Mali))?;
        run.notes_of_priority("low", 0)?;
        run.has(&format!("{queue}1093:{first},1096:4 = 0"))?;
        run.has(&format!("{queue}1093:2,1096:4 = 0"))?;
    }
    Ok(())
}

/// On backends that have no priorities.
pub fn without_effect() -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let mut backends = vec!["opencl", "reference"];
    if devices::list(BackendKind::Wgpu).is_ok() {
        backends.push("wgpu");
    }
    for backend in backends {
        let base = ["run", &model, "--random", "--json", "--backend", backend];
        let run = play::run_without(&[&base[..], &["--priority", "high"]].concat())?;
        run.notes_of_priority("high", 1)?;
        play::run_without(&base)?.quiet()?;
    }
    Ok(())
}

fn priority_is_chosen(model: &Model) -> Outcome {
    for (profile, priority, line) in [
        // With the highest clocks.
        (
            Profile::Adreno,
            "high",
            "clCreateContext properties=40c9:40ca,40c2:40c3 = 0",
        ),
        (
            Profile::Adreno,
            "normal",
            "clCreateContext properties=40c9:40cb = 0",
        ),
        (
            Profile::Mali,
            "high",
            "clCreateCommandQueueWithProperties properties=1093:2,1096:1 = 0",
        ),
        (
            Profile::Mali,
            "normal",
            "clCreateCommandQueueWithProperties properties=1093:2,1096:2 = 0",
        ),
    ] {
        let run = model.run(&of(profile), ONE, &["--priority", priority])?;
        model.agrees(&run, ONE)?;
        run.quiet()?;
        let call = line.split(' ').next().unwrap_or_default();
        run.all(&format!("{call} "), line)?;
    }
    Ok(())
}

/// A driver that lists none gets none, and a priority that was asked for is said to have no effect,
/// unless it is what drivers do.
fn no_hints(model: &Model) -> Outcome {
    for (priority, told) in [("low", true), ("high", true), ("normal", false)] {
        let more = [&play::FLOAT[..], &["--priority", priority]].concat();
        let run = model.run(&Config::default(), ONE, &more)?;
        model.agrees(&run, ONE)?;
        run.all("clCreateContext ", "clCreateContext properties=none = 0")?;
        run.all("clCreateCommandQueue", "clCreateCommandQueue properties=none = 0")?;
        run.notes_of_priority(priority, usize::from(told))?;
    }
    Ok(())
}

/// A driver that lists hints and refuses them is worked with without them, and that is said once.
fn hints_are_refused(model: &Model, profile: Profile) -> Outcome {
    let config = Config {
        refuse_hints: true,
        ..of(profile)
    };
    let run = model.run(&config, TOKENS, &["--priority", "low"])?;
    model.recovers(&run, profile, TOKENS)?;
    let (code, refusal) = match profile {
        Profile::Adreno => ("-64", "clCreateContext properties=40c9:40cc = -64"),
        Profile::Mali => (
            "-35",
            "clCreateCommandQueueWithProperties properties=1093:2,1096:4 = -35",
        ),
        Profile::Radeon => return Err("a graphics card has no hints".to_owned()),
    };
    run.has(refusal)?;
    run.has("clCreateContext properties=none = 0")?;
    run.has("clCreateCommandQueue properties=1093:2 = 0")?;
    let told = run.warnings("backend::opencl::priority", &[code]);
    if told != 1 {
        return Err(format!("{told} warnings: {}", run.errors));
    }
    run.notes_of_priority("low", 1)
}
