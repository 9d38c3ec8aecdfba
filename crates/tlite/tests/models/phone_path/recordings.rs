//! Decoding on an Adreno from the driver's recordings.

use super::play::Outcome;
use super::{Add, Model, Refused, TOKENS, UNCUT, fault, of, refusing, with_faults};
use tlite_fake_driver::{Fault, Profile, cl};

/// The trials of a model.
pub fn trials(add: &mut Add<'_>) {
    for (name, options) in [
        ("adreno_decodes_from_recordings", UNCUT),
        ("adreno_decodes_from_recordings_in_slices", WIDE),
    ] {
        add(name, Box::new(move |model: &Model| recorded(model, &options)));
    }
    add("device_lost_at_a_recording@adreno", Box::new(lost_at_a_recording));
    for (name, refused) in recordings_refused() {
        let run = move |model: &Model| recordings_are_refused(model, &refused);
        add(&format!("recordings_are_refused/{name}@adreno"), Box::new(run));
    }
}

/// Slices that nothing fills.
const WIDE: [&str; 2] = ["--slice-ms", "5000"];

/// Each step of decoding but the first ones comes from recordings, which are made once.
fn recorded(model: &Model, options: &[&str]) -> Outcome {
    let run = model.run(&of(Profile::Adreno), TOKENS, options)?;
    model.agrees(&run, TOKENS)?;
    run.quiet()?;
    let (queued, made) = (
        run.count("clEnqueueRecordingQCOM "),
        run.count("clNewRecordingQCOM "),
    );
    if queued < TOKENS - 4 || made == 0 || made > queued / 2 {
        return Err(format!(
            "{made} recordings were queued {queued} times for {TOKENS} tokens"
        ));
    }
    Ok(())
}

fn recordings_refused() -> [(&'static str, Refused); 5] {
    let refused = |call, nth| Refused { call, nth };
    [
        // The queue of commands comes first.
        ("queue", refused("clCreateCommandQueue", 2)),
        ("new", refused("clNewRecordingQCOM", 1)),
        ("end", refused("clEndRecordingQCOM", 1)),
        ("enqueue", refused("clEnqueueRecordingQCOM", 1)),
        ("enqueue_of_the_fifth", refused("clEnqueueRecordingQCOM", 5)),
    ]
}

/// A driver that lists recordings and refuses one is worked with without them, and that is said
/// once.
fn recordings_are_refused(model: &Model, refused: &Refused) -> Outcome {
    let run = model.run(
        &refusing(Profile::Adreno, refused.call, refused.nth),
        TOKENS,
        &UNCUT,
    )?;
    model.recovers(&run, Profile::Adreno, TOKENS)?;
    let warnings: Vec<_> = run.errors.lines().filter(|l| l.contains("WARN")).collect();
    let told = run.warnings("backend::opencl::replay", &[refused.call]);
    if (warnings.len(), told) != (1, 1) {
        return Err(format!("one warning wanted, {warnings:?} found"));
    }
    // No call about recordings comes after the refusal, but those that free what was recorded.
    let injected = format!("inject {} ", refused.call);
    let after = run.lines("").skip_while(|l| !l.starts_with(&injected)).skip(2);
    let about = |l: &&str| l.contains("RecordingQCOM") && !l.starts_with("clReleaseRecordingQCOM ");
    match after.into_iter().find(about) {
        Some(line) => Err(format!("{line} after the refusal")),
        None => Ok(()),
    }
}

fn lost_at_a_recording(model: &Model) -> Outcome {
    let lost = Fault {
        lost: true,
        ..fault("clEnqueueRecordingQCOM", 2, cl::OUT_OF_RESOURCES)
    };
    let run = model.run(&with_faults(Profile::Adreno, vec![lost]), TOKENS, &UNCUT)?;
    run.failed("Lost", &["CL_OUT_OF_RESOURCES"])
}
