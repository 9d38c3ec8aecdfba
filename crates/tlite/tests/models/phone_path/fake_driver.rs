//! What the fake driver does itself, by calls of its functions in this process. What the engine
//! makes of it is tested beside this.

mod phone;
mod recordings;

use super::play::Outcome;
use phone::{
    COUNT, DEVICE_EXTENSIONS, DEVICE_EXTENSIONS_WITH_VERSION, DEVICE_NAME, DEVICE_TYPE, DEVICE_VERSION,
    PROFILING, Phone, Work, dispatch, ok, same, set,
};
use recordings::{command_buffers, command_buffers_are_checked, recordings_are_checked, replays};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};
use tlite_fake_driver as fake_driver;
use tlite_fake_driver::{Config, Delay, Fault, Handle, ImageDesc, Profile, cl};

/// A trial and its name.
type Named = (&'static str, fn() -> Outcome);

pub const TRIALS: [Named; 14] = [
    ("says_what_a_phone_says", says_what_a_phone_says),
    ("properties_of_contexts_are_checked", contexts),
    ("properties_of_queues_are_checked", queues),
    ("one_kernel_is_wrong", one_kernel_is_wrong),
    ("recordings_are_replayed_with_changes", replays),
    ("recordings_are_checked", recordings_are_checked),
    ("faults_come_at_their_call", faults),
    ("memory_is_limited", memory),
    ("images_of_buffers_are_aligned", images),
    ("command_buffers_are_logged_and_fail", command_buffers),
    // By its name it runs where trials of a model on a Mali do.
    ("mali_command_buffers_are_checked", command_buffers_are_checked),
    ("requests_for_waves_are_checked", waves),
    ("binaries_are_known_by_their_source", binaries),
    ("programs_are_forgotten", forgotten),
];

/// Extensions that a phone lists over the driver of this machine.
pub fn extensions(profile: Profile) -> Result<String, String> {
    Phone::of(profile)?.words(DEVICE_EXTENSIONS)
}

fn says_what_a_phone_says() -> Outcome {
    let real = Phone::new(Config::default())?;
    let (real_name, real_list) = (real.words(DEVICE_NAME)?, real.words(DEVICE_EXTENSIONS)?);
    drop(real);
    for (profile, name, version, own) in [
        (
            Profile::Adreno,
            "QUALCOMM Adreno(TM)",
            "Adreno(TM) 750",
            &[
                "cl_khr_image2d_from_buffer",
                "cl_qcom_perf_hint",
                "cl_qcom_priority_hint",
                "cl_qcom_recordable_queues",
                "cl_qcom_reqd_sub_group_size",
            ][..],
        ),
        (
            Profile::Mali,
            "Mali-G720",
            "v1.r49p1-fake",
            &["cl_khr_priority_hints"],
        ),
    ] {
        let phone = Phone::of(profile)?;
        let said = phone.words(DEVICE_NAME)?;
        same("name", said.as_str(), name)?;
        if said == real_name {
            return Err(format!("the driver's own device is a {name}"));
        }
        let said = phone.words(DEVICE_VERSION)?;
        if !said.ends_with(version) {
            return Err(format!("the version of a {name} is {said}"));
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
    let finish = || unsafe { fake_driver::clFinish(work.queue) };
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
    ok("release", unsafe { fake_driver::clReleaseMemObject(first) })?;
    ok("room again", phone.buffer(context, 2000).1)
}

/// 32 KiB of a buffer.
fn part_of(buffer: Handle, origin: usize) -> Result<Handle, String> {
    let (mut code, region) = (cl::SUCCESS, [origin, 1 << 15]);
    // SAFETY: CL_BUFFER_CREATE_TYPE_REGION takes an origin and a size.
    let part =
        unsafe { fake_driver::clCreateSubBuffer(buffer, 1, 0x1220, region.as_ptr().cast(), &raw mut code) };
    ok("sub-buffer", code).map(|()| part)
}

fn images() -> Outcome {
    use cl::{INVALID_IMAGE_DESCRIPTOR, INVALID_IMAGE_SIZE, INVALID_MEM_OBJECT};
    let phone = Phone::of(Profile::Adreno)?;
    let (context, code) = phone.context(&[0]);
    ok("context", code)?;
    let (buffer, code) = phone.buffer(context, 1 << 16);
    ok("buffer", code)?;
    // CL_RGBA, CL_HALF_FLOAT: 8 bytes.
    let format = [0x10b5, 0x10dd];
    let make = |kind, object, width, height, row_pitch| {
        let desc = ImageDesc {
            kind,
            width,
            height,
            depth: 0,
            layers: 0,
            row_pitch,
            slice_pitch: 0,
            levels: 0,
            samples: 0,
            object,
        };
        let mut code = cl::SUCCESS;
        // SAFETY: format and description are complete, and no pointer of the host is given.
        unsafe {
            fake_driver::clCreateImage(
                context,
                4,
                &raw const format,
                &raw const desc,
                null_mut(),
                &raw mut code,
            )
        };
        code
    };
    let (line, near, far) = (0x10f6, part_of(buffer, 128)?, part_of(buffer, 512)?);
    let rows = |object, width, height, pitch| make(0x10f1, object, width, height, pitch);
    for (what, code, wanted) in [
        (
            "rows of 32 pixels",
            rows(buffer, 32, 4, 0),
            INVALID_IMAGE_DESCRIPTOR,
        ),
        (
            "the same, given",
            rows(buffer, 32, 4, 32 * 8),
            INVALID_IMAGE_DESCRIPTOR,
        ),
        ("65 pixels", rows(buffer, 32, 4, 65 * 8), INVALID_IMAGE_DESCRIPTOR),
        ("64 pixels", rows(buffer, 32, 4, 64 * 8), cl::SUCCESS),
        (
            "shorter than a row",
            rows(buffer, 128, 4, 64 * 8),
            INVALID_IMAGE_DESCRIPTOR,
        ),
        (
            "from byte 128 on",
            rows(near, 64, 4, 64 * 8),
            INVALID_IMAGE_DESCRIPTOR,
        ),
        ("from byte 512 on", rows(far, 64, 4, 64 * 8), cl::SUCCESS),
        ("all of a part", rows(far, 64, 64, 64 * 8), cl::SUCCESS),
        ("a row more", rows(far, 64, 65, 64 * 8), INVALID_IMAGE_SIZE),
        ("one axis", make(line, near, 4096, 0, 0), cl::SUCCESS),
        ("a pixel more", make(line, near, 4097, 0, 0), INVALID_IMAGE_SIZE),
        (
            "with a pitch",
            make(line, near, 64, 0, 1024),
            INVALID_IMAGE_DESCRIPTOR,
        ),
        ("of no buffer", make(line, context, 64, 0, 0), INVALID_MEM_OBJECT),
    ] {
        same(what, code, wanted)?;
    }
    Ok(())
}

fn waves() -> Outcome {
    let pragma = "#pragma OPENCL EXTENSION cl_qcom_reqd_sub_group_size : enable";
    let text = |pragma: &str, wave: &str| {
        format!(
            "{pragma}\n__kernel __attribute__((qcom_reqd_sub_group_size({wave}))) void f(__global int *x) {{ x[0] = 1; }}"
        )
    };
    for (profile, text, wanted) in [
        (Profile::Adreno, text(pragma, "\"half\""), cl::SUCCESS),
        (Profile::Adreno, text(pragma, "\"full\""), cl::SUCCESS),
        (
            Profile::Adreno,
            text(pragma, "\"third\""),
            cl::BUILD_PROGRAM_FAILURE,
        ),
        (Profile::Adreno, text("", "\"half\""), cl::BUILD_PROGRAM_FAILURE),
        (Profile::Mali, text(pragma, "\"half\""), cl::BUILD_PROGRAM_FAILURE),
    ] {
        same(&text, Phone::of(profile)?.builds(&text)?, wanted)?;
    }
    Ok(())
}

/// The binary of a built program.
fn binary(program: Handle) -> Result<Vec<u8>, String> {
    let mut length = 0usize;
    let place = (&raw mut length).cast();
    // SAFETY: the place takes a size.
    let code =
        unsafe { fake_driver::clGetProgramInfo(program, 0x1165, size_of::<usize>(), place, null_mut()) };
    ok("its size", code)?;
    let mut bytes = vec![0u8; length];
    let mut start = bytes.as_mut_ptr();
    let place = (&raw mut start).cast();
    // SAFETY: the place holds a pointer to as many bytes as were told.
    let code =
        unsafe { fake_driver::clGetProgramInfo(program, 0x1166, size_of::<*mut u8>(), place, null_mut()) };
    ok("its bytes", code).map(|()| bytes)
}

/// The program is that of `work`, in a new process as it were: by its binary alone.
fn binaries() -> Outcome {
    let spoiling = || Config {
        corrupt: Some("add".to_owned()),
        corrupt_text: Some("get_global_id".to_owned()),
        ..super::of(Profile::Adreno)
    };
    let phone = Phone::new(spoiling())?;
    let work = phone.work()?;
    let bytes = binary(work.program)?;
    drop(phone);
    let phone = Phone::new(spoiling())?;
    let (context, code) = phone.context(&[0]);
    ok("context", code)?;
    let (queue, code) = phone.queue(context, &[0]);
    ok("queue", code)?;
    let (x, code) = phone.buffer(context, COUNT * 4);
    ok("buffer", code)?;
    let (length, start) = (bytes.len(), bytes.as_ptr());
    let mut codes = [cl::SUCCESS; 4];
    let [status, made, built, named] = &mut codes;
    // SAFETY: one device, one length, one pointer, one status.
    let (program, add) = unsafe {
        let program = fake_driver::clCreateProgramWithBinary(
            context,
            1,
            &raw const phone.device,
            &raw const length,
            &raw const start,
            status,
            made,
        );
        *built = fake_driver::clBuildProgram(program, 1, &raw const phone.device, null(), null(), null_mut());
        (
            program,
            fake_driver::clCreateKernel(program, c"add".as_ptr(), named),
        )
    };
    same("program", codes, [cl::SUCCESS; 4])?;
    same("the same binary", binary(program)?, bytes)?;
    ok("operand", set(add, 0, &x))?;
    let work = Work {
        context,
        queue,
        program,
        add,
        other: add,
        x,
    };
    work.write(&[0.0; COUNT])?;
    work.run(add, 2.0)?;
    let found = work.read()?;
    if found[..4].contains(&2.0) || found[4..] != [2.0; COUNT - 4] {
        return Err(format!("{found:?}"));
    }
    Ok(())
}

/// One whose build was made to fail, and then one by the same number.
fn forgotten() -> Outcome {
    let mut config = super::of(Profile::Mali);
    config.faults = vec![Fault {
        call: "clBuildProgram".to_owned(),
        kernel: None,
        nth: 1,
        code: cl::BUILD_PROGRAM_FAILURE,
        lost: false,
    }];
    let phone = Phone::new(config)?;
    let (context, code) = phone.context(&[0]);
    ok("context", code)?;
    let (first, code) = phone.program(context, c"__kernel void f(__global int *x) { x[0] = 1; }");
    same("the first", code, cl::BUILD_PROGRAM_FAILURE)?;
    same("known", fake_driver::knows_program(first), true)?;
    // SAFETY: a program, with two references that are given up.
    let codes = unsafe {
        [
            fake_driver::clRetainProgram(first),
            fake_driver::clReleaseProgram(first),
        ]
    };
    same("a reference more", codes, [cl::SUCCESS; 2])?;
    same("known still", fake_driver::knows_program(first), true)?;
    // SAFETY: as above.
    ok("the last reference", unsafe {
        fake_driver::clReleaseProgram(first)
    })?;
    same("known", fake_driver::knows_program(first), false)?;
    let (second, code) = phone.program(context, c"__kernel void g(__global int *x) { x[0] = 1; }");
    ok("the second", code)?;
    let mut code = cl::SUCCESS;
    // SAFETY: a name with a closing zero.
    let kernel = unsafe { fake_driver::clCreateKernel(second, c"g".as_ptr(), &raw mut code) };
    ok("a kernel", code)?;
    // SAFETY: a program, which its kernel keeps, and the kernel.
    unsafe {
        ok("release", fake_driver::clReleaseProgram(second))?;
        same("known by its kernel", fake_driver::knows_program(second), true)?;
        ok("release", fake_driver::clReleaseKernel(kernel))?;
    }
    same("known", fake_driver::knows_program(second), false)
}
