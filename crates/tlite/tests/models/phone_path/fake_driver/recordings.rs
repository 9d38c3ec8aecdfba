//! Recordings: those of Qualcomm's queues, which are the fake driver's, and command buffers, which
//! are the driver's.

use super::phone::{COUNT, DEVICE_EXTENSIONS, Phone, Work, dispatch, ok, same, set};
use crate::phone_path::play::Outcome;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use tlite_fake_driver as fake_driver;
use tlite_fake_driver::{
    ArgUpdate, Code, Config, DispatchArg, DispatchConfig, Fault, Handle, Profile, SizeUpdate, cl,
};

/// A recording of `add` by 1 over all elements, then `add` by 10 over the first half, with the
/// queue that made it.
fn recorded(phone: &Phone, work: &Work) -> Result<(Handle, Handle), String> {
    let (recorder, code) = phone.queue(work.context, &[cl::QUEUE_PROPERTIES, cl::QUEUE_RECORDABLE, 0]);
    ok("recordable queue", code)?;
    let mut code = cl::SUCCESS;
    // SAFETY: the place takes a code.
    let recording = unsafe { fake_driver::clNewRecordingQCOM(recorder, &raw mut code) };
    ok("new recording", code)?;
    for (by, count) in [(1f32, COUNT), (10.0, COUNT / 2)] {
        ok("argument", set(work.add, 1, &by))?;
        ok("dispatch", dispatch(recorder, work.add, count, null_mut()))?;
    }
    // SAFETY: a recording that was begun.
    ok("end", unsafe { fake_driver::clEndRecordingQCOM(recording) })?;
    Ok((recorder, recording))
}

/// Queues a recording with changes.
fn replay(queue: Handle, recording: Handle, args: &[ArgUpdate], globals: &[SizeUpdate]) -> Code {
    // SAFETY: the arrays have these lengths.
    unsafe {
        fake_driver::clEnqueueRecordingQCOM(
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
    ok("release", unsafe {
        fake_driver::clReleaseRecordingQCOM(recording)
    })?;
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
    unsafe { fake_driver::clNewRecordingQCOM(work.queue, &raw mut code) };
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
    let finish = unsafe { fake_driver::clFinish(recorder) };
    ok("finish", finish)?;
    // SAFETY: buffers that are large enough.
    let fill = unsafe {
        let zero = 0u32;
        let pattern = (&raw const zero).cast::<c_void>();
        fake_driver::clEnqueueFillBuffer(recorder, work.x, pattern, 4, 0, 16, 0, null(), null_mut())
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
    let second = unsafe { fake_driver::clNewRecordingQCOM(recorder, &raw mut code) };
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

/// The driver's function of that name, by way of the fake driver.
///
/// # Safety
///
/// `T` is the type of a pointer to that function.
unsafe fn address<T: Copy>(name: &CStr) -> Result<T, String> {
    // SAFETY: a name with a closing zero; for extensions of devices drivers look at no platform.
    let address = unsafe {
        let mut platform = null_mut();
        fake_driver::clGetPlatformIDs(1, &raw mut platform, null_mut());
        fake_driver::clGetExtensionFunctionAddressForPlatform(platform, name.as_ptr())
    };
    if address.is_null() {
        return Err(format!("no {name:?}"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

/// Where the driver has them.
pub fn command_buffers() -> Outcome {
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
        ..crate::phone_path::of(Profile::Mali)
    })?;
    let list = phone.words(DEVICE_EXTENSIONS)?;
    if !list.split(' ').any(|e| e == "cl_khr_command_buffer") {
        return Ok(());
    }
    let (context, code) = phone.context(&[0]);
    ok("context", code)?;
    let (queue, code) = phone.queue(context, &[0]);
    ok("queue", code)?;
    let api = Buffers::new()?;
    let buffer = api.create(queue, 0)?;
    let end = api.finalize(buffer);
    // One that is still under way cannot be queued again.
    // SAFETY: a queue.
    let turn = || [api.enqueue(buffer), unsafe { fake_driver::clFinish(queue) }];
    let [[first, _], [second, _], [third, _]] = [turn(), turn(), turn()];
    let codes = [end, first, second, third, api.release(buffer)];
    let mut wanted = [cl::SUCCESS; 5];
    wanted[2] = cl::OUT_OF_RESOURCES;
    same("codes", codes, wanted)?;
    let log = std::fs::read_to_string(log).map_err(|e| e.to_string())?;
    let queued = log
        .lines()
        .filter(|l| l.starts_with("clEnqueueCommandBufferKHR buffer="));
    same("lines", queued.count(), 3)
}

type Create = unsafe extern "C" fn(u32, *const Handle, *const u64, *mut Code) -> Handle;
type OfOne = unsafe extern "C" fn(Handle) -> Code;
type Enqueue = unsafe extern "C" fn(u32, *const Handle, Handle, u32, *const Handle, *mut Handle) -> Code;
type Dispatch = unsafe extern "C" fn(
    Handle,
    Handle,
    *const u64,
    Handle,
    u32,
    *const usize,
    *const usize,
    *const usize,
    u32,
    *const u32,
    *mut u32,
    *mut Handle,
) -> Code;
type Update = unsafe extern "C" fn(Handle, u32, *const u32, *const *const c_void) -> Code;

/// What of a dispatch is to be changed in these tests.
const FIELDS: u64 = cl::MUTABLE_DISPATCH_ARGUMENTS | cl::MUTABLE_DISPATCH_GLOBAL_SIZE;

/// The functions of the extension.
struct Buffers {
    create: Create,
    dispatch: Dispatch,
    finalize: OfOne,
    enqueue: Enqueue,
    release: OfOne,
}

impl Buffers {
    fn new() -> Result<Self, String> {
        // SAFETY: the functions have these types.
        unsafe {
            Ok(Self {
                create: address(c"clCreateCommandBufferKHR")?,
                dispatch: address(c"clCommandNDRangeKernelKHR")?,
                finalize: address(c"clFinalizeCommandBufferKHR")?,
                enqueue: address(c"clEnqueueCommandBufferKHR")?,
                release: address(c"clReleaseCommandBufferKHR")?,
            })
        }
    }

    /// A command buffer with these flags.
    fn create(&self, queue: Handle, flags: u64) -> Result<Handle, String> {
        let (list, mut code) = ([cl::COMMAND_BUFFER_FLAGS, flags, 0], cl::SUCCESS);
        let list = if flags == 0 { null() } else { list.as_ptr() };
        // SAFETY: one queue, and a list that ends with 0.
        let buffer = unsafe { (self.create)(1, &raw const queue, list, &raw mut code) };
        ok("command buffer", code).map(|()| buffer)
    }

    /// Records a dispatch over all elements.
    fn dispatch(&self, buffer: Handle, queue: Handle, kernel: Handle, handle: Option<&mut Handle>) -> Code {
        let (list, count) = ([cl::MUTABLE_DISPATCH_UPDATABLE_FIELDS, FIELDS, 0], COUNT);
        let list = if handle.is_some() { list.as_ptr() } else { null() };
        let handle = handle.map_or(null_mut(), std::ptr::from_mut);
        let global = &raw const count;
        // SAFETY: one axis, and a list that ends with 0.
        unsafe {
            (self.dispatch)(
                buffer,
                queue,
                list,
                kernel,
                1,
                null(),
                global,
                null(),
                0,
                null(),
                null_mut(),
                handle,
            )
        }
    }

    fn finalize(&self, buffer: Handle) -> Code {
        // SAFETY: the function checks its argument.
        unsafe { (self.finalize)(buffer) }
    }

    fn enqueue(&self, buffer: Handle) -> Code {
        // SAFETY: it goes to its own queue, and waits for nothing.
        unsafe { (self.enqueue)(0, null(), buffer, 0, null(), null_mut()) }
    }

    fn release(&self, buffer: Handle) -> Code {
        // SAFETY: the function checks its argument.
        unsafe { (self.release)(buffer) }
    }
}

/// What the extensions define, whatever the driver makes of it. Where the driver has them.
pub fn command_buffers_are_checked() -> Outcome {
    let phone = Phone::of(Profile::Mali)?;
    let list = phone.words(DEVICE_EXTENSIONS)?;
    let has = |name: &str| list.split(' ').any(|e| e == name);
    if !has("cl_khr_command_buffer") {
        return Ok(());
    }
    let (work, api) = (phone.work()?, Buffers::new()?);
    let buffer = api.create(work.queue, 0)?;
    let unset = api.dispatch(buffer, null_mut(), work.add, None);
    same("an argument that is not set", unset, cl::INVALID_KERNEL_ARGS)?;
    ok("argument", set(work.add, 1, &1f32))?;
    for (what, code, wanted) in [
        (
            "no buffer",
            api.dispatch(work.x, null_mut(), work.add, None),
            cl::INVALID_COMMAND_BUFFER,
        ),
        (
            "no kernel",
            api.dispatch(buffer, null_mut(), work.x, None),
            cl::INVALID_KERNEL,
        ),
        (
            "a queue",
            api.dispatch(buffer, work.queue, work.add, None),
            cl::INVALID_COMMAND_QUEUE,
        ),
        (
            "a handle where nothing can be changed",
            api.dispatch(buffer, null_mut(), work.add, Some(&mut null_mut())),
            cl::INVALID_VALUE,
        ),
        ("before its end", api.enqueue(buffer), cl::INVALID_OPERATION),
        (
            "a dispatch",
            api.dispatch(buffer, null_mut(), work.add, None),
            cl::SUCCESS,
        ),
        ("its end", api.finalize(buffer), cl::SUCCESS),
        ("a second end", api.finalize(buffer), cl::INVALID_OPERATION),
        (
            "behind its end",
            api.dispatch(buffer, null_mut(), work.add, None),
            cl::INVALID_OPERATION,
        ),
        ("no buffer", api.enqueue(work.x), cl::INVALID_COMMAND_BUFFER),
        ("queued", api.enqueue(buffer), cl::SUCCESS),
    ] {
        same(what, code, wanted)?;
    }
    same("as recorded", work.read()?, [1.0; COUNT])?;
    ok("release", api.release(buffer))?;
    same("released", api.release(buffer), cl::INVALID_COMMAND_BUFFER)?;
    if !has("cl_khr_command_buffer_mutable_dispatch") {
        return Ok(());
    }
    changes_are_checked(&work, &api)
}

fn changes_are_checked(work: &Work, api: &Buffers) -> Outcome {
    // SAFETY: the function has this type.
    let update: Update = unsafe { address(c"clUpdateMutableCommandsKHR")? };
    let change = |buffer: Handle, kind: u32, config: &DispatchConfig| {
        let start = std::ptr::from_ref(config).cast::<c_void>();
        // SAFETY: lists of one, of which the second leads to a whole structure.
        unsafe { update(buffer, 1, &raw const kind, &raw const start) }
    };
    let (buffer, mut command) = (api.create(work.queue, cl::COMMAND_BUFFER_MUTABLE)?, null_mut());
    ok(
        "dispatch",
        api.dispatch(buffer, null_mut(), work.add, Some(&mut command)),
    )?;
    let (by, half) = (5f32, COUNT / 2);
    let arg = DispatchArg {
        index: 1,
        size: size_of::<f32>(),
        value: (&raw const by).cast(),
    };
    let config = DispatchConfig {
        command,
        arg_count: 1,
        svm_count: 0,
        info_count: 0,
        rank: 1,
        args: &raw const arg,
        svm: null(),
        infos: null(),
        offset: null(),
        global: &raw const half,
        local: null(),
    };
    same(
        "before its end",
        change(buffer, 0, &config),
        cl::INVALID_OPERATION,
    )?;
    ok("its end", api.finalize(buffer))?;
    wrong_changes(work, config, |kind, config| change(buffer, kind, config))?;
    work.write(&[0.0; COUNT])?;
    ok("queued", api.enqueue(buffer))?;
    same("as recorded", work.read()?, [1.0; COUNT])?;
    work.write(&[0.0; COUNT])?;
    ok("changed", change(buffer, 0, &config))?;
    ok("queued", api.enqueue(buffer))?;
    same("as changed", work.read()?, halves(5.0, 0.0))?;
    ok("release", api.release(buffer))?;
    same("released", change(buffer, 0, &config), cl::INVALID_COMMAND_BUFFER)?;
    let fixed = api.create(work.queue, 0)?;
    ok("dispatch", api.dispatch(fixed, null_mut(), work.add, None))?;
    ok("its end", api.finalize(fixed))?;
    same(
        "nothing can be changed",
        change(fixed, 0, &config),
        cl::INVALID_OPERATION,
    )?;
    ok("release", api.release(fixed))
}

/// Changes that differ from a right one in one thing.
fn wrong_changes(
    work: &Work,
    config: DispatchConfig,
    change: impl Fn(u32, &DispatchConfig) -> Code,
) -> Outcome {
    // SAFETY: the right one has one argument.
    let arg = unsafe { *config.args };
    let (unknown, small) = (DispatchArg { index: 7, ..arg }, DispatchArg { size: 2, ..arg });
    let half = COUNT / 2;
    let with_args = |args| DispatchConfig { args, ..config };
    for (what, kind, config, wanted) in [
        ("another type", 1, config, cl::INVALID_VALUE),
        (
            "no dispatch of it",
            0,
            DispatchConfig {
                command: work.x,
                ..config
            },
            cl::INVALID_MUTABLE_COMMAND,
        ),
        (
            "no such argument",
            0,
            with_args(&raw const unknown),
            cl::INVALID_ARG_INDEX,
        ),
        (
            "another size",
            0,
            with_args(&raw const small),
            cl::INVALID_ARG_SIZE,
        ),
        ("no arguments", 0, with_args(null()), cl::INVALID_VALUE),
        (
            "what was not said to change",
            0,
            DispatchConfig {
                local: &raw const half,
                ..config
            },
            cl::INVALID_OPERATION,
        ),
        (
            "another rank",
            0,
            DispatchConfig { rank: 2, ..config },
            cl::INVALID_VALUE,
        ),
    ] {
        same(what, change(kind, &config), wanted)?;
    }
    Ok(())
}
