//! `cl_qcom_recordable_queues`: dispatches on a recordable queue are kept, and a recording is
//! queued as often as wanted, with other arguments and numbers of work-items. Other offsets and
//! work-group sizes, which the extension has too, are refused.
//!
//! As strict as a driver may be: a recordable queue takes dispatches only, between the begin and
//! the end of a recording, without events; and what is changed for one replay is as recorded in the
//! next, so that a caller that counts on either finds out.

use crate::objects::{arg, real_kernel, real_set_arg};
use crate::queue::{Events, Grid, dispatch, sizes};
use crate::real::real;
use crate::state::{Arg, Kernel, after, before, id, made, released, with};
use crate::{Code, Handle, Uint, cl};
use std::ffi::{CString, c_char, c_void};

/// Maximum number of dispatches in a recording.
pub(crate) const MAX_DISPATCHES: Uint = 2048;

/// A dispatch with a kernel object of its own.
#[derive(Clone, Debug)]
struct Recorded {
    object: usize,
    kernel: Kernel,
    grid: Grid,
}

#[derive(Clone, Debug)]
pub(crate) struct Recording {
    queue: usize,
    steps: Vec<Recorded>,
    ended: bool,
}

/// `cl_array_arg_qcom`: another value for an argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArgUpdate {
    /// Which of the dispatches.
    pub dispatch: Uint,
    /// Which of its arguments.
    pub index: Uint,
    /// Bytes.
    pub size: usize,
    pub value: *const c_void,
}

/// `cl_workgroup_qcom`: another number of work-items.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SizeUpdate {
    /// Which of the dispatches.
    pub dispatch: Uint,
    /// As many as its rank.
    pub sizes: *const usize,
}

/// Begins a recording on a recordable queue that makes none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clNewRecordingQCOM(queue: Handle, place: *mut Code) -> Handle {
    let call = "clNewRecordingQCOM";
    let mut number = 0;
    let code = before(call, None).unwrap_or_else(|| {
        with(|s| match s.recordable.get(&id(queue)) {
            Some(None) => {
                // Numbers are never used twice, and are no addresses.
                s.made_recordings += 1;
                number = s.made_recordings;
                s.recordable.insert(id(queue), Some(number));
                let recording = Recording {
                    queue: id(queue),
                    steps: Vec::new(),
                    ended: false,
                };
                s.recordings.insert(number, recording);
                cl::SUCCESS
            }
            Some(Some(_)) => cl::INVALID_OPERATION,
            _ => cl::INVALID_COMMAND_QUEUE,
        })
    });
    // SAFETY: the caller's pointer.
    unsafe {
        made(
            call,
            &format!(" recording={number}"),
            number as Handle,
            code,
            place,
        )
    }
}

/// A dispatch on a recordable queue, which makes the recording `open`.
pub(crate) fn add(open: Option<usize>, kernel: Handle, grid: Grid, events: Events) -> Code {
    let Some(open) = open else {
        return cl::INVALID_OPERATION;
    };
    if events.count > 0 || !events.event.is_null() {
        return cl::INVALID_OPERATION;
    }
    let Some(known) = with(|s| s.kernels.get(&id(kernel)).cloned()) else {
        return cl::INVALID_VALUE;
    };
    let Ok(name) = CString::new(known.name.clone()) else {
        return cl::INVALID_VALUE;
    };
    let name: *const c_char = name.as_ptr();
    let (object, code) = real_kernel(known.program as Handle, name);
    if code != cl::SUCCESS {
        return code;
    }
    let set = known
        .args
        .iter()
        .map(|(index, arg)| real_set_arg(object, *index, arg));
    if let Some(code) = set.into_iter().find(|code| *code != cl::SUCCESS) {
        return code;
    }
    with(|s| {
        // For what spoils results.
        s.add_kernel(id(object), known.program, known.name.clone(), known.args.clone());
        match s.recordings.get_mut(&open) {
            Some(recording) if recording.steps.len() >= MAX_DISPATCHES as usize => cl::OUT_OF_RESOURCES,
            Some(recording) => {
                recording.steps.push(Recorded {
                    object: id(object),
                    kernel: known,
                    grid,
                });
                cl::SUCCESS
            }
            None => cl::INVALID_OPERATION,
        }
    })
}

/// Ends a recording: from here on it can be queued, and its queue can begin another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clEndRecordingQCOM(recording: Handle) -> Code {
    let call = "clEndRecordingQCOM";
    let (mut steps, mut by_image) = (0, 0);
    let code = before(call, None).unwrap_or_else(|| {
        with(|s| match s.recordings.get_mut(&id(recording)) {
            Some(r) if !r.ended => {
                r.ended = true;
                steps = r.steps.len();
                let image = |arg: &Arg| arg.object().is_some_and(|o| s.images.contains_key(&o));
                by_image = r
                    .steps
                    .iter()
                    .filter(|step| step.kernel.args.values().any(image))
                    .count();
                s.recordable.insert(r.queue, None);
                cl::SUCCESS
            }
            _ => cl::INVALID_OPERATION,
        })
    });
    after(
        call,
        &format!(
            " recording={} dispatches={steps} by_image={by_image}",
            id(recording)
        ),
        code,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clReleaseRecordingQCOM(recording: Handle) -> Code {
    let gone = with(|s| {
        let gone = s.recordings.remove(&id(recording))?;
        for step in &gone.steps {
            s.release_kernel(step.object);
        }
        if s.recordable.get(&gone.queue) == Some(&Some(id(recording))) {
            s.recordable.insert(gone.queue, None);
        }
        Some(gone)
    });
    let code = match gone {
        Some(gone) => {
            for step in gone.steps {
                let kernel = step.object as Handle;
                let _code = real!(clReleaseKernel(kernel: Handle) -> Code);
            }
            cl::SUCCESS
        }
        None => cl::INVALID_VALUE,
    };
    let call = "clReleaseRecordingQCOM";
    let code = released(call, code);
    after(call, &format!(" recording={}", id(recording)), code)
}

/// The elements of an array of a call; none where it is null.
///
/// # Safety
///
/// `start` is null or leads to `count` elements.
pub(crate) unsafe fn list<'a, T>(count: usize, start: *const T) -> &'a [T] {
    if start.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(start, count) }
}

/// Queues a recording on a queue that runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clEnqueueRecordingQCOM(
    queue: Handle,
    recording: Handle,
    arg_count: usize,
    args: *const ArgUpdate,
    offset_count: usize,
    _offsets: *const c_void,
    global_count: usize,
    globals: *const SizeUpdate,
    local_count: usize,
    _locals: *const SizeUpdate,
    count: Uint,
    wait: *const Handle,
    event: *mut Handle,
) -> Code {
    let call = "clEnqueueRecordingQCOM";
    // SAFETY: the caller's arrays.
    let (args, globals) = unsafe { (list(arg_count, args), list(global_count, globals)) };
    let events = Events { count, wait, event };
    let found = with(|s| s.recordings.get(&id(recording)).filter(|r| r.ended).cloned());
    let code = match (before(call, None), &found) {
        (Some(code), _) => code,
        (None, None) => cl::INVALID_OPERATION,
        _ if offset_count + local_count > 0 => cl::INVALID_OPERATION,
        (None, Some(_)) if with(|s| s.recordable.contains_key(&id(queue))) => cl::INVALID_COMMAND_QUEUE,
        (None, Some(recording)) => {
            // SAFETY: the caller's values.
            let steps = unsafe { updated(recording, args, globals) };
            steps.map_or_else(|code| code, |steps| replay(queue, recording, &steps, events))
        }
    };
    let words = format!(
        " recording={} dispatches={} args={} global={}",
        id(recording),
        found.map_or(0, |r| r.steps.len()),
        args.len(),
        globals.len()
    );
    after(call, &words, code)
}

/// The dispatches with what is changed for one replay. Nothing is queued where one of the changes
/// is wrong.
///
/// # Safety
///
/// The values have the sizes that are said.
unsafe fn updated(
    recording: &Recording,
    args: &[ArgUpdate],
    globals: &[SizeUpdate],
) -> Result<Vec<Recorded>, Code> {
    let mut steps = recording.steps.clone();
    for update in args {
        let step = steps.get_mut(update.dispatch as usize).ok_or(cl::INVALID_VALUE)?;
        let known = step.kernel.args.get_mut(&update.index).ok_or(cl::INVALID_VALUE)?;
        // SAFETY: as the caller promises.
        let value = unsafe { arg(update.size, update.value) };
        match (&*known, &value) {
            (Arg::Bytes(old), Arg::Bytes(new)) if old.len() != new.len() => return Err(cl::INVALID_VALUE),
            _ => *known = value,
        }
    }
    for update in globals {
        let step = steps.get_mut(update.dispatch as usize).ok_or(cl::INVALID_VALUE)?;
        let rank = step.grid.global.len() as Uint;
        // SAFETY: as the caller promises.
        step.grid.global = unsafe { sizes(rank, update.sizes) }.ok_or(cl::INVALID_VALUE)?;
    }
    Ok(steps)
}

/// Queues the dispatches, the first of which waits and the last of which has the event.
fn replay(queue: Handle, recorded: &Recording, steps: &[Recorded], events: Events) -> Code {
    if steps.is_empty() {
        return cl::INVALID_OPERATION;
    }
    for (i, (step, old)) in steps.iter().zip(&recorded.steps).enumerate() {
        let object = step.object as Handle;
        let changed: Vec<_> = step
            .kernel
            .args
            .iter()
            .zip(old.kernel.args.values())
            .filter(|((_, new), old)| !same(new, old))
            .collect();
        for ((index, new), _) in &changed {
            match real_set_arg(object, **index, new) {
                cl::SUCCESS => {}
                code => return code,
            }
        }
        let events = Events {
            count: if i == 0 { events.count } else { 0 },
            wait: if i == 0 { events.wait } else { std::ptr::null() },
            event: if i + 1 == steps.len() {
                events.event
            } else {
                std::ptr::null_mut()
            },
        };
        with(|s| {
            if let Some(known) = s.kernels.get_mut(&step.object) {
                known.args.clone_from(&step.kernel.args);
            }
        });
        let code = dispatch(queue, object, &step.kernel.name, &step.grid, events);
        for ((index, _), old) in &changed {
            real_set_arg(object, **index, old);
        }
        if code != cl::SUCCESS {
            return code;
        }
    }
    cl::SUCCESS
}

fn same(a: &Arg, b: &Arg) -> bool {
    match (a, b) {
        (Arg::Bytes(a), Arg::Bytes(b)) => a == b,
        (Arg::Local(a), Arg::Local(b)) => a == b,
        _ => false,
    }
}
