//! Decoding on a Mali from command buffers, which are the driver's own.

use super::fake_driver::extensions;
use super::play::{Outcome, Run};
use super::{Model, Refused, UNCUT, of, refusing};
use tlite_fake_driver::Profile;

/// Tokens that cross a multiple of the padding.
const TOKENS: usize = 40;

/// Whether the driver has command buffers, and can change their dispatches.
fn offered() -> Result<(bool, bool), String> {
    let list = extensions(Profile::Mali)?;
    let has = |name: &str| list.split(' ').any(|e| e == name);
    let recorded = has("cl_khr_command_buffer");
    Ok((
        recorded,
        recorded && has("cl_khr_command_buffer_mutable_dispatch"),
    ))
}

/// Calls about command buffers.
fn about(run: &Run) -> impl Iterator<Item = &str> {
    let calls = [
        "CommandBufferKHR ",
        "clCommandNDRangeKernelKHR ",
        "clUpdateMutableCommandsKHR ",
    ];
    run.lines("cl")
        .filter(move |l| calls.iter().any(|call| l.contains(call)))
}

/// Each step but the first ones comes from a command buffer: from one, which is changed where a
/// length crosses a multiple of the padding, or where the driver cannot change any, from another
/// one then. Where the driver has none all commands are queued one by one.
pub fn decode(model: &Model) -> Outcome {
    let plain = model.run(
        &of(Profile::Mali),
        TOKENS,
        &[&UNCUT[..], &["--recording", "off"]].concat(),
    )?;
    let run = model.run(&of(Profile::Mali), TOKENS, &UNCUT)?;
    run.quiet()?;
    let (wanted, found) = (plain.tokens()?, run.tokens()?);
    if found != wanted || found.len() != TOKENS {
        return Err(format!("tokens {wanted:?} wanted, {found:?} found"));
    }
    let (recorded, mutable) = offered()?;
    if let Some(refused) = about(&run).find(|l| !l.ends_with(" = 0")) {
        return Err(refused.to_owned());
    }
    if let Some(changed) = run
        .lines("clUpdateMutableCommandsKHR ")
        .find(|l| l.contains(" running=true"))
    {
        return Err(format!("{changed} while it runs"));
    }
    let [made, queued, changed] = [
        "clCreateCommandBufferKHR ",
        "clEnqueueCommandBufferKHR ",
        "clUpdateMutableCommandsKHR ",
    ]
    .map(|call| run.count(call));
    let dispatches = |run: &Run| run.count("clEnqueueNDRangeKernel ");
    let (one_by_one, recorded_ones) = (dispatches(&run), run.count("clCommandNDRangeKernelKHR "));
    let right = if mutable {
        made == 1 && changed > 0
    } else if recorded {
        made > 1 && changed == 0
    } else {
        (made, queued, changed, recorded_ones) == (0, 0, 0, 0) && one_by_one == dispatches(&plain)
    };
    let steps = !recorded || queued >= TOKENS - 4 && recorded_ones > 0 && 4 * one_by_one < dispatches(&plain);
    if right && steps {
        return Ok(());
    }
    Err(format!(
        "command buffers: {recorded}, that can be changed: {mutable}; {made} were made of {recorded_ones} dispatches, queued {queued} times and \
         changed {changed} times; {one_by_one} dispatches came one by one, {} without recordings",
        dispatches(&plain)
    ))
}

pub fn refused_calls() -> [(&'static str, Refused); 6] {
    let refused = |call, nth| Refused { call, nth };
    [
        ("create", refused("clCreateCommandBufferKHR", 1)),
        ("dispatch", refused("clCommandNDRangeKernelKHR", 9)),
        ("finalize", refused("clFinalizeCommandBufferKHR", 1)),
        ("enqueue", refused("clEnqueueCommandBufferKHR", 1)),
        ("enqueue_of_the_fifth", refused("clEnqueueCommandBufferKHR", 5)),
        ("update", refused("clUpdateMutableCommandsKHR", 1)),
    ]
}

/// A driver that lists command buffers and refuses one is worked with without them, and that is
/// said once. Where the driver beneath has none, or cannot change any, nothing is refused.
pub fn refused(model: &Model, refused: &Refused) -> Outcome {
    let run = model.run(
        &refusing(Profile::Mali, refused.call, refused.nth),
        TOKENS,
        &UNCUT,
    )?;
    let (wanted, found) = (model.plain()?.tokens()?, run.tokens()?);
    if found.len() != TOKENS || !found.starts_with(&wanted) {
        return Err(format!("tokens {wanted:?} and more wanted, {found:?} found"));
    }
    let (recorded, mutable) = offered()?;
    let asked = if refused.call == "clUpdateMutableCommandsKHR" {
        mutable
    } else {
        recorded
    };
    if !asked {
        run.unharmed()?;
        return run.quiet();
    }
    // That of a shorter answer, each token of which takes some time.
    run.recovered(4 * model.phone(Profile::Mali)?.took)?;
    let warnings: Vec<_> = run.errors.lines().filter(|l| l.contains("WARN")).collect();
    let told = run.warnings("backend::opencl::replay", &[refused.call]);
    if (warnings.len(), told) != (1, 1) {
        return Err(format!("one warning wanted, {warnings:?} found"));
    }
    // Behind the refusal they are only given up.
    let refusal = about(&run).position(|l| !l.ends_with(" = 0"));
    let behind = about(&run).skip(refusal.ok_or("no refusal")? + 1);
    match behind
        .into_iter()
        .find(|l| !l.starts_with("clReleaseCommandBufferKHR "))
    {
        Some(line) => Err(format!("{line} after the refusal")),
        None => Ok(()),
    }
}
