//! What the stand-in does itself, by calls of its functions in this process.
//!
//! This is also all there is on a kernel with wrong results: that the stand-in makes one. The engine does not look for such kernels.

use super::play::Outcome;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tlite_standin as standin;
use tlite_standin::{ArgUpdate, Code, Config, Delay, Fault, Handle, ImageDesc, Profile, SizeUpdate, cl};

/// A trial and its name.
type Named = (&'static str, fn() -> Outcome);

pub const TRIALS: [Named; 10] = [
    ("says_what_a_phone_says", says_what_a_phone_says),
    ("properties_of_contexts_are_checked", contexts),
    ("properties_of_queues_are_checked", queues),
    ("one_kernel_is_wrong", one_kernel_is_wrong),
    ("recordings_are_replayed_with_changes", recordings),
    ("recordings_are_checked", recordings_are_checked),
    ("faults_come_at_their_call", faults),
    ("memory_is_limited", memory),
    ("images_of_buffers_are_aligned", images),
    ("command_buffers_are_logged_and_fail", command_buffers),
];

/// The stand-in is one for the process.
static TURN: Mutex<()> = Mutex::new(());

const SOURCE: &CStr = c"
__kernel void add(__global float *x, float by) { x[get_global_id(0)] += by; }
__kernel void other(__global float *x, float by) { x[get_global_id(0)] -= by; }
";

const COUNT: usize = 64;

const DEVICE_EXTENSIONS: u32 = 0x1030;
const DEVICE_EXTENSIONS_WITH_VERSION: u32 = 0x1060;
const DEVICE_NAME: u32 = 0x102b;
const DEVICE_TYPE: u32 = 0x1000;
const PROFILING: u64 = 2;
const BLOCKING: u32 = 1;

/// Compares, with both sides in the error.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Outcome {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what}: {wanted:?} wanted, {found:?} found"))
}

fn ok(what: &str, code: Code) -> Outcome {
    same(what, code, cl::SUCCESS)
}

/// The device of a configured stand-in. Objects are left to the end of the process.
struct Phone {
    device: Handle,
    _turn: MutexGuard<'static, ()>,
}

/// A queue with what it works on.
struct Work {
    context: Handle,
    queue: Handle,
    add: Handle,
    other: Handle,
    x: Handle,
}

impl Phone {
    fn new(config: Config) -> Result<Self, String> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        standin::configure(config);
        let (mut platform, mut device) = (null_mut(), null_mut());
        // SAFETY: each place takes one handle.
        let codes = unsafe {
            [
                standin::clGetPlatformIDs(1, &raw mut platform, null_mut()),
                standin::clGetDeviceIDs(platform, u64::from(u32::MAX), 1, &raw mut device, null_mut()),
            ]
        };
        same("platform and device", codes, [cl::SUCCESS; 2])?;
        Ok(Self { device, _turn: turn })
    }

    fn of(profile: Profile) -> Result<Self, String> {
        Self::new(super::of(profile))
    }

    /// Bytes of a property.
    fn info(&self, name: u32) -> Result<Vec<u8>, Code> {
        let mut bytes = vec![0u8; 1 << 16];
        let mut size = 0;
        // SAFETY: the place has that size.
        let code = unsafe {
            standin::clGetDeviceInfo(
                self.device,
                name,
                bytes.len(),
                bytes.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        bytes.truncate(size);
        if code == cl::SUCCESS { Ok(bytes) } else { Err(code) }
    }

    fn words(&self, name: u32) -> Result<String, String> {
        let bytes = self.info(name).map_err(|code| format!("{name:#x}: {code}"))?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// A context with a list of properties that ends with 0.
    fn context(&self, properties: &[isize]) -> (Handle, Code) {
        let mut code = cl::SUCCESS;
        // SAFETY: the list ends with 0, and there is one device.
        let context = unsafe {
            standin::clCreateContext(
                properties.as_ptr(),
                1,
                &raw const self.device,
                null(),
                null_mut(),
                &raw mut code,
            )
        };
        (context, code)
    }

    fn queue(&self, context: Handle, properties: &[u64]) -> (Handle, Code) {
        let mut code = cl::SUCCESS;
        // SAFETY: the list ends with 0.
        let queue = unsafe {
            standin::clCreateCommandQueueWithProperties(
                context,
                self.device,
                properties.as_ptr(),
                &raw mut code,
            )
        };
        (queue, code)
    }

    fn buffer(&self, context: Handle, bytes: usize) -> (Handle, Code) {
        let mut code = cl::SUCCESS;
        // SAFETY: plain memory takes no pointer.
        let buffer = unsafe { standin::clCreateBuffer(context, 1, bytes, null_mut(), &raw mut code) };
        (buffer, code)
    }

    /// Two kernels and their operand, which is all zeros.
    fn work(&self) -> Result<Work, String> {
        let (context, code) = self.context(&[0]);
        ok("context", code)?;
        let (queue, code) = self.queue(context, &[0]);
        ok("queue", code)?;
        let (x, code) = self.buffer(context, COUNT * 4);
        ok("buffer", code)?;
        let mut code = cl::SUCCESS;
        let text = SOURCE.as_ptr();
        // SAFETY: one string with a closing zero; names with one each.
        let (codes, add, other) = unsafe {
            let program =
                standin::clCreateProgramWithSource(context, 1, &raw const text, null(), &raw mut code);
            let built =
                standin::clBuildProgram(program, 1, &raw const self.device, null(), null(), null_mut());
            let mut made = [cl::SUCCESS; 2];
            let add = standin::clCreateKernel(program, c"add".as_ptr(), &raw mut made[0]);
            let other = standin::clCreateKernel(program, c"other".as_ptr(), &raw mut made[1]);
            ([code, built, made[0], made[1]], add, other)
        };
        same("program", codes, [cl::SUCCESS; 4])?;
        let work = Work {
            context,
            queue,
            add,
            other,
            x,
        };
        for kernel in [add, other] {
            ok("operand", set(kernel, 0, &work.x))?;
        }
        work.write(&[0.0; COUNT])?;
        Ok(work)
    }
}

fn set<T>(kernel: Handle, index: u32, value: &T) -> Code {
    // SAFETY: the value has its size.
    unsafe { standin::clSetKernelArg(kernel, index, size_of::<T>(), std::ptr::from_ref(value).cast()) }
}

/// Dispatches over `count` elements.
fn dispatch(queue: Handle, kernel: Handle, count: usize, event: *mut Handle) -> Code {
    // SAFETY: one axis.
    unsafe {
        standin::clEnqueueNDRangeKernel(
            queue,
            kernel,
            1,
            null(),
            &raw const count,
            null(),
            0,
            null(),
            event,
        )
    }
}

impl Work {
    fn write(&self, values: &[f32; COUNT]) -> Outcome {
        let start = values.as_ptr().cast::<c_void>();
        // SAFETY: the array has that size and the call waits.
        let code = unsafe {
            standin::clEnqueueWriteBuffer(
                self.queue,
                self.x,
                BLOCKING,
                0,
                COUNT * 4,
                start,
                0,
                null(),
                null_mut(),
            )
        };
        ok("write", code)
    }

    fn read(&self) -> Result<[f32; COUNT], String> {
        let mut values = [0f32; COUNT];
        let start = values.as_mut_ptr().cast::<c_void>();
        // SAFETY: as for writing.
        let code = unsafe {
            standin::clEnqueueReadBuffer(
                self.queue,
                self.x,
                BLOCKING,
                0,
                COUNT * 4,
                start,
                0,
                null(),
                null_mut(),
            )
        };
        ok("read", code)?;
        Ok(values)
    }

    /// `kernel` over all elements, `by` a number.
    fn run(&self, kernel: Handle, by: f32) -> Outcome {
        ok("argument", set(kernel, 1, &by))?;
        ok("dispatch", dispatch(self.queue, kernel, COUNT, null_mut()))
    }
}

fn says_what_a_phone_says() -> Outcome {
    let real = Phone::new(Config::default())?;
    let (real_name, real_list) = (real.words(DEVICE_NAME)?, real.words(DEVICE_EXTENSIONS)?);
    drop(real);
    for (profile, name, own) in [
        (
            Profile::Adreno,
            "Adreno",
            &[
                "cl_qcom_perf_hint",
                "cl_qcom_priority_hint",
                "cl_qcom_recordable_queues",
            ][..],
        ),
        (Profile::Mali, "Mali", &["cl_khr_priority_hints"]),
    ] {
        let phone = Phone::of(profile)?;
        let said = phone.words(DEVICE_NAME)?;
        if !said.contains(name) || said == real_name {
            return Err(format!("a {name} is called {said}"));
        }
        same("type", phone.info(DEVICE_TYPE), Ok(4u64.to_ne_bytes().to_vec()))?;
        let list = phone.words(DEVICE_EXTENSIONS)?;
        for extension in own {
            if !list.split(' ').any(|e| e == *extension) {
                return Err(format!("{name}: no {extension} in {list}"));
            }
        }
        // Nothing that a kernel could need is promised beyond what the compiler has.
        for extension in list.split(' ') {
            let has = real_list.split_whitespace().any(|e| e == extension);
            if !has && !own.contains(&extension) {
                return Err(format!("{name}: {extension} is not there"));
            }
        }
        // Where the driver is of OpenCL 3.0: a number and 64 letters each.
        if let Ok(entries) = phone.info(DEVICE_EXTENSIONS_WITH_VERSION) {
            same("entries", entries.len(), list.split(' ').count() * 68)?;
        }
    }
    Ok(())
}

fn contexts() -> Outcome {
    let low = [cl::CONTEXT_PRIORITY_HINT, cl::PRIORITY_HINT_LOW, 0];
    let high = [
        cl::CONTEXT_PRIORITY_HINT,
        cl::PRIORITY_HINT_HIGH,
        cl::CONTEXT_PERF_HINT,
        cl::PERF_HINT_HIGH,
        0,
    ];
    let twice = [low[0], low[1], low[0], low[1], 0];
    let wrong_value = [cl::CONTEXT_PRIORITY_HINT, cl::PERF_HINT_HIGH, 0];
    let unknown = [0x40ff, 1, 0];
    let adreno = Phone::of(Profile::Adreno)?;
    for (list, wanted) in [
        (&low[..], cl::SUCCESS),
        (&high, cl::SUCCESS),
        (&[0], cl::SUCCESS),
        (&twice, cl::INVALID_PROPERTY),
        (&wrong_value, cl::INVALID_PROPERTY),
        (&unknown, cl::INVALID_PROPERTY),
    ] {
        let (context, code) = adreno.context(list);
        same(&format!("{list:x?} on an Adreno"), code, wanted)?;
        same("a context", context.is_null(), wanted != cl::SUCCESS)?;
    }
    drop(adreno);
    let mali = Phone::of(Profile::Mali)?;
    same("Adreno's on a Mali", mali.context(&low).1, cl::INVALID_PROPERTY)?;
    drop(mali);
    let refusing = Phone::new(Config {
        refuse_hints: true,
        ..super::of(Profile::Adreno)
    })?;
    same("a refusal", refusing.context(&low).1, cl::INVALID_PROPERTY)
}

fn queues() -> Outcome {
    let recordable = [cl::QUEUE_PROPERTIES, cl::QUEUE_RECORDABLE, 0];
    let timed = [cl::QUEUE_PROPERTIES, cl::QUEUE_RECORDABLE | PROFILING, 0];
    let low = [cl::QUEUE_PRIORITY, 4, 0];
    let timed_low = [cl::QUEUE_PROPERTIES, PROFILING, cl::QUEUE_PRIORITY, 4, 0];
    let both = [cl::QUEUE_PRIORITY, 5, 0];
    let unknown = [0x10ff, 1, 0];
    for (profile, lists) in [
        (
            Profile::Adreno,
            [
                (&recordable[..], cl::SUCCESS),
                (&timed, cl::INVALID_QUEUE_PROPERTIES),
                (&low, cl::INVALID_VALUE),
                (&unknown, cl::INVALID_VALUE),
                (&[0], cl::SUCCESS),
            ],
        ),
        (
            Profile::Mali,
            [
                (&recordable[..], cl::INVALID_VALUE),
                (&low, cl::SUCCESS),
                (&timed_low, cl::SUCCESS),
                (&both, cl::INVALID_VALUE),
                (&unknown, cl::INVALID_VALUE),
            ],
        ),
    ] {
        let phone = Phone::of(profile)?;
        let (context, code) = phone.context(&[0]);
        ok("context", code)?;
        for (list, wanted) in lists {
            let (queue, code) = phone.queue(context, list);
            same(&format!("{list:x?} on {profile:?}"), code, wanted)?;
            same("a queue", queue.is_null(), wanted != cl::SUCCESS)?;
        }
    }
    Ok(())
}

fn one_kernel_is_wrong() -> Outcome {
    let phone = Phone::new(Config {
        corrupt: Some("add".to_owned()),
        ..super::of(Profile::Adreno)
    })?;
    let work = phone.work()?;
    work.run(work.other, -3.0)?;
    same("the other", work.read()?, [3.0; COUNT])?;
    work.run(work.add, 2.0)?;
    let found = work.read()?;
    if found[..4].contains(&5.0) || found[4..] != [5.0; COUNT - 4] {
        return Err(format!("{found:?}"));
    }
    Ok(())
}

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

fn recordings() -> Outcome {
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

fn recordings_are_checked() -> Outcome {
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

fn faults() -> Outcome {
    let fault = |call: &str, kernel: Option<&str>, nth, code, lost| Fault {
        call: call.to_owned(),
        kernel: kernel.map(str::to_owned),
        nth,
        code,
        lost,
    };
    let phone = Phone::new(Config {
        faults: vec![
            fault(
                "clEnqueueNDRangeKernel",
                Some("add"),
                2,
                cl::OUT_OF_RESOURCES,
                false,
            ),
            fault("clFinish", None, 3, cl::DEVICE_NOT_AVAILABLE, true),
        ],
        delays: vec![Delay {
            call: "clFinish".to_owned(),
            ms: 50,
        }],
        ..super::of(Profile::Mali)
    })?;
    let work = phone.work()?;
    work.run(work.add, 1.0)?;
    work.run(work.other, 1.0)?;
    let second = dispatch(work.queue, work.add, COUNT, null_mut());
    same("the second", second, cl::OUT_OF_RESOURCES)?;
    work.run(work.add, 1.0)?;
    // SAFETY: a queue.
    let finish = || unsafe { standin::clFinish(work.queue) };
    let start = Instant::now();
    same("waits", [finish(), finish()], [cl::SUCCESS; 2])?;
    if start.elapsed() < Duration::from_millis(100) {
        return Err(format!("two waits took {:?}", start.elapsed()));
    }
    same("the third wait", finish(), cl::DEVICE_NOT_AVAILABLE)?;
    let after = dispatch(work.queue, work.other, COUNT, null_mut());
    same("lost", after, cl::DEVICE_NOT_AVAILABLE)?;
    same("lost", phone.buffer(work.context, 16).1, cl::DEVICE_NOT_AVAILABLE)
}

fn memory() -> Outcome {
    let phone = Phone::new(Config {
        memory_limit: Some(3000),
        ..super::of(Profile::Adreno)
    })?;
    let (context, code) = phone.context(&[0]);
    ok("context", code)?;
    let (first, code) = phone.buffer(context, 2000);
    ok("first", code)?;
    let over = phone.buffer(context, 1004).1;
    same("over the limit", over, cl::MEM_OBJECT_ALLOCATION_FAILURE)?;
    ok("up to the limit", phone.buffer(context, 1000).1)?;
    // SAFETY: a buffer, given up once.
    ok("release", unsafe { standin::clReleaseMemObject(first) })?;
    ok("room again", phone.buffer(context, 2000).1)
}

fn images() -> Outcome {
    let phone = Phone::of(Profile::Adreno)?;
    let (context, code) = phone.context(&[0]);
    ok("context", code)?;
    let (buffer, code) = phone.buffer(context, 1 << 16);
    ok("buffer", code)?;
    // CL_RGBA, CL_HALF_FLOAT: 8 bytes; rows begin at multiples of 64 pixels.
    let format = [0x10b5, 0x10dd];
    let mut desc = ImageDesc {
        kind: 0x10f1,
        width: 32,
        height: 4,
        depth: 0,
        layers: 0,
        row_pitch: 32 * 8,
        slice_pitch: 0,
        levels: 0,
        samples: 0,
        object: buffer,
    };
    let mut make = |row_pitch| {
        desc.row_pitch = row_pitch;
        let mut code = cl::SUCCESS;
        // SAFETY: format and description are complete, and no pointer of the host is given.
        unsafe {
            standin::clCreateImage(
                context,
                1,
                &raw const format,
                &raw const desc,
                null_mut(),
                &raw mut code,
            )
        };
        code
    };
    for pitch in [0, 32 * 8, 65 * 8] {
        same(
            &format!("{pitch} bytes"),
            make(pitch),
            cl::INVALID_IMAGE_DESCRIPTOR,
        )?;
    }
    // What the driver says of a right one is its own affair: not all make images from buffers.
    if make(64 * 8) == cl::INVALID_IMAGE_DESCRIPTOR {
        return Err("64 pixels are refused".to_owned());
    }
    Ok(())
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
fn command_buffers() -> Outcome {
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
        ..super::of(Profile::Mali)
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
        let mut enqueue = || enqueue(0, null(), buffer, 0, null(), null_mut());
        let [first, second, third] = [enqueue(), enqueue(), enqueue()];
        let finish = standin::clFinish(queue);
        [code, end, first, second, third, finish, release(buffer)]
    };
    let mut wanted = [cl::SUCCESS; 7];
    wanted[3] = cl::OUT_OF_RESOURCES;
    same("codes", codes, wanted)?;
    let log = std::fs::read_to_string(log).map_err(|e| e.to_string())?;
    let queued = log
        .lines()
        .filter(|l| l.starts_with("clEnqueueCommandBufferKHR buffer="));
    same("lines", queued.count(), 3)
}
