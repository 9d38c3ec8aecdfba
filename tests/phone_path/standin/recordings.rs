//! Recordings: those of Qualcomm's queues, which are the stand-in's, and command buffers, which are the driver's.

use super::phone::{COUNT, DEVICE_EXTENSIONS, Phone, Work, dispatch, ok, same, set};
use crate::play::Outcome;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use tlite_standin as standin;
use tlite_standin::{ArgUpdate, Code, Config, Fault, Handle, Profile, SizeUpdate, cl};

/// A recording of `add` by 1 over all elements, then `add` by 10 over the first half, with the queue that made it.
fn recorded(phone: &Phone, work: &Work) -> Result<(Handle, Handle), String> {
    let (recorder, code) = phone.queue(work.context, &[cl::QUEUE_PROPERTIES, cl::QUEUE_RECORDABLE, 0]);
    ok("recordable queue", code)?;
    let mut code = cl::SUCCESS;
    // SAFETY: the place takes a code.
    let recording = unsafe { standin::clNewRecordingQCOM(recorder, &raw mut code) };
    ok("new recording", code)?;
    for (by, count) in [(1f32, COUNT), (10.0, COUNT / 2)] {
        ok("argument", set(work.add, 1, &by))?;
        ok("dispatch", dispatch(recorder, work.add, count, null_mut()))?;
    }
    // SAFETY: a recording that was begun.
    ok("end", unsafe { standin::clEndRecordingQCOM(recording) })?;
    Ok((recorder, recording))
}

/// Queues a recording with changes.
fn replay(queue: Handle, recording: Handle, args: &[ArgUpdate], globals: &[SizeUpdate]) -> Code {
    // SAFETY: the arrays have these lengths.
    unsafe {
        standin::clEnqueueRecordingQCOM(
            queue,
            recording,
            args.len(),
            args.as_ptr(),
            0,
            null(),
            globals.len(),
            globals.as_ptr(),
            0,
            null(),
            0,
            null(),
            null_mut(),
        )
    }
}

fn by(dispatch: u32, value: &f32) -> ArgUpdate {
    ArgUpdate {
        dispatch,
        index: 1,
        size: size_of::<f32>(),
        value: std::ptr::from_ref(value).cast(),
    }
}

fn halves(first: f32, second: f32) -> [f32; COUNT] {
    std::array::from_fn(|i| if i < COUNT / 2 { first } else { second })
}

pub fn replays() -> Outcome {
    let phone = Phone::of(Profile::Adreno)?;
    let work = phone.work()?;
    let (_recorder, recording) = recorded(&phone, &work)?;
    same("nothing runs while recording", work.read()?, [0.0; COUNT])?;
    // The kernel's arguments at the time count.
    ok("argument", set(work.add, 1, &100f32))?;
    ok("replay", replay(work.queue, recording, &[], &[]))?;
    same("as recorded", work.read()?, halves(11.0, 1.0))?;

    work.write(&[0.0; COUNT])?;
    let all = COUNT;
    let global = SizeUpdate {
        dispatch: 1,
        sizes: &raw const all,
    };
    ok("replay", replay(work.queue, recording, &[by(0, &5.0)], &[global]))?;
    same("changed", work.read()?, [15.0; COUNT])?;

    work.write(&[0.0; COUNT])?;
    ok("replay", replay(work.queue, recording, &[], &[]))?;
    same("as recorded again", work.read()?, halves(11.0, 1.0))?;
    // SAFETY: a recording, given up once.
    ok("release", unsafe { standin::clReleaseRecordingQCOM(recording) })?;
    same(
        "released",
        replay(work.queue, recording, &[], &[]),
        cl::INVALID_OPERATION,
    )
}

pub fn recordings_are_checked() -> Outcome {
    let phone = Phone::of(Profile::Adreno)?;
    let work = phone.work()?;
    let mut code = cl::SUCCESS;
    // SAFETY: the place takes a code.
    unsafe { standin::clNewRecordingQCOM(work.queue, &raw mut code) };
    same("a plain queue", code, cl::INVALID_COMMAND_QUEUE)?;
    let (recorder, recording) = recorded(&phone, &work)?;
    let outside = dispatch(recorder, work.add, COUNT, null_mut());
    same(
        "a dispatch outside of a recording",
        outside,
        cl::INVALID_OPERATION,
    )?;
    let there = replay(recorder, recording, &[], &[]);
    same("a replay where it records", there, cl::INVALID_COMMAND_QUEUE)?;
    // SAFETY: a queue.
    let finish = unsafe { standin::clFinish(recorder) };
    ok("finish", finish)?;
    // SAFETY: buffers that are large enough.
    let fill = unsafe {
        let zero = 0u32;
        let pattern = (&raw const zero).cast::<c_void>();
        standin::clEnqueueFillBuffer(recorder, work.x, pattern, 4, 0, 16, 0, null(), null_mut())
    };
    same("a fill", fill, cl::INVALID_OPERATION)?;
    for (what, args) in [
        ("no such dispatch", [by(0, &5.0), by(2, &5.0)]),
        (
            "no such argument",
            [
                by(0, &5.0),
                ArgUpdate {
                    index: 7,
                    ..by(0, &5.0)
                },
            ],
        ),
        (
            "another size",
            [
                by(0, &5.0),
                ArgUpdate {
                    size: 2,
                    ..by(0, &5.0)
                },
            ],
        ),
    ] {
        let code = replay(work.queue, recording, &args, &[]);
        same(what, code, cl::INVALID_VALUE)?;
    }
    same("nothing was queued", work.read()?, [0.0; COUNT])?;
    // SAFETY: the place takes a code.
    let second = unsafe { standin::clNewRecordingQCOM(recorder, &raw mut code) };
    ok("a second recording", code)?;
    let mut event = null_mut();
    let with_event = dispatch(recorder, work.add, COUNT, &raw mut event);
    same("an event while recording", with_event, cl::INVALID_OPERATION)?;
    same(
        "a replay before its end",
        replay(work.queue, second, &[], &[]),
        cl::INVALID_OPERATION,
    )
}

/// The driver's function of that name, by way of the stand-in.
///
/// # Safety
///
/// `T` is the type of a pointer to that function.
unsafe fn address<T: Copy>(name: &CStr) -> Result<T, String> {
    // SAFETY: a name with a closing zero; for extensions of devices drivers look at no platform.
    let address = unsafe {
        let mut platform = null_mut();
        standin::clGetPlatformIDs(1, &raw mut platform, null_mut());
        standin::clGetExtensionFunctionAddressForPlatform(platform, name.as_ptr())
    };
    if address.is_null() {
        return Err(format!("no {name:?}"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

/// Where the driver has them.
pub fn command_buffers() -> Outcome {
    type Create = unsafe extern "C" fn(u32, *const Handle, *const c_void, *mut Code) -> Handle;
    type OfOne = unsafe extern "C" fn(Handle) -> Code;
    type Enqueue = unsafe extern "C" fn(u32, *const Handle, Handle, u32, *const Handle, *mut Handle) -> Code;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let log = dir.path().join("log");
    let phone = Phone::new(Config {
        log: Some(log.clone()),
        faults: vec![Fault {
            call: "clEnqueueCommandBufferKHR".to_owned(),
            kernel: None,
            nth: 2,
            code: cl::OUT_OF_RESOURCES,
            lost: false,
        }],
        ..crate::of(Profile::Mali)
    })?;
    let list = phone.words(DEVICE_EXTENSIONS)?;
    if !list.split(' ').any(|e| e == "cl_khr_command_buffer") {
        return Ok(());
    }
    let (context, code) = phone.context(&[0]);
    ok("context", code)?;
    let (queue, code) = phone.queue(context, &[0]);
    ok("queue", code)?;
    // SAFETY: the functions have these types, and objects are live.
    let codes = unsafe {
        let create: Create = address(c"clCreateCommandBufferKHR")?;
        let finalize: OfOne = address(c"clFinalizeCommandBufferKHR")?;
        let enqueue: Enqueue = address(c"clEnqueueCommandBufferKHR")?;
        let release: OfOne = address(c"clReleaseCommandBufferKHR")?;
        let mut code = cl::SUCCESS;
        let buffer = create(1, &raw const queue, null(), &raw mut code);
        let end = finalize(buffer);
        let enqueue = || enqueue(0, null(), buffer, 0, null(), null_mut());
        // One that is still under way cannot be queued again.
        let turn = || [enqueue(), standin::clFinish(queue)];
        let turns = [turn(), turn(), turn()];
        let [[first, _], [second, _], [third, _]] = turns;
        [code, end, first, second, third, release(buffer)]
    };
    let mut wanted = [cl::SUCCESS; 6];
    wanted[3] = cl::OUT_OF_RESOURCES;
    same("codes", codes, wanted)?;
    let log = std::fs::read_to_string(log).map_err(|e| e.to_string())?;
    let queued = log
        .lines()
        .filter(|l| l.starts_with("clEnqueueCommandBufferKHR buffer="));
    same("lines", queued.count(), 3)
}
