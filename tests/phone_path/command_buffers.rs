//! Decoding on a Mali from command buffers, which are the driver's own.

use super::play::Outcome;
use super::standin::extensions;
use super::{Model, UNCUT, of};
use tlite_standin::Profile;

/// Tokens that cross a multiple of the padding.
const TOKENS: usize = 40;

/// Each step but the first ones comes from a command buffer: from one, which is changed where a length crosses a multiple of the padding,
/// or where the driver cannot change any, from another one then. Where the driver has none all commands are queued one by one.
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
    let list = extensions(Profile::Mali)?;
    let has = |name: &str| list.split(' ').any(|e| e == name);
    let recorded = has("cl_khr_command_buffer");
    let mutable = recorded && has("cl_khr_command_buffer_mutable_dispatch");
    let about = |l: &&str| {
        ["CommandBufferKHR", "clCommandNDRangeKernelKHR", "clUpdateMutable"]
            .iter()
            .any(|call| l.split(' ').next().is_some_and(|c| c.contains(call)))
    };
    if let Some(refused) = run.lines("cl").filter(about).find(|l| !l.ends_with(" = 0")) {
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
    let dispatches = |run: &super::Run| run.count("clEnqueueNDRangeKernel ");
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
