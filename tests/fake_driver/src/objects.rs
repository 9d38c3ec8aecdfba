//! Memory, programs and kernels: what is known of them, and their faults.

use crate::binaries;
use crate::images;
use crate::info::Words;
use crate::real::real;
use crate::state::{Arg, Memory, after, before, id, made, refused_query, released, with};
use crate::{Bits, Code, Handle, Uint, cl};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};

const PROGRAM_BUILD_STATUS: Uint = 0x1181;
const PROGRAM_BUILD_LOG: Uint = 0x1183;
/// `CL_BUILD_ERROR`.
const BUILD_ERROR: i32 = -2;
/// What the compiler says of a build that is made to fail.
const LOG: &[u8] = b"source.cl:1:1: error: the fake driver refuses this program\n\0";
const BUFFER_CREATE_TYPE_REGION: Uint = 0x1220;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clCreateBuffer(
    context: Handle,
    flags: Bits,
    bytes: usize,
    host: *mut c_void,
    place: *mut Code,
) -> Handle {
    let call = "clCreateBuffer";
    let mut code = before(call, None).unwrap_or(cl::SUCCESS);
    let over = with(|s| {
        let held: u64 = s
            .buffers
            .values()
            .filter(|b| b.part_of.is_none())
            .map(|b| b.bytes)
            .sum();
        s.config
            .memory_limit
            .is_some_and(|limit| held + bytes as u64 > limit)
    });
    if code == cl::SUCCESS && over {
        code = cl::MEM_OBJECT_ALLOCATION_FAILURE;
        with(|s| s.log_fault(call, code));
    }
    let mut object = std::ptr::null_mut();
    if code == cl::SUCCESS {
        let place = &raw mut code;
        let buffer = real!(clCreateBuffer(context: Handle, flags: Bits, bytes: usize, host: *mut c_void, place: *mut Code) -> Handle);
        object = buffer.unwrap_or_else(|| {
            code = cl::MISSING;
            std::ptr::null_mut()
        });
    }
    if code == cl::SUCCESS {
        let memory = Memory {
            bytes: bytes as u64,
            origin: 0,
            part_of: None,
        };
        with(|s| s.buffers.insert(id(object), memory));
    }
    // SAFETY: the caller's pointer.
    unsafe { made(call, &format!(" bytes={bytes}"), object, code, place) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clCreateSubBuffer(
    buffer: Handle,
    flags: Bits,
    kind: Uint,
    region: *const c_void,
    place: *mut Code,
) -> Handle {
    let call = "clCreateSubBuffer";
    let mut code = before(call, None).unwrap_or(cl::SUCCESS);
    let mut object = std::ptr::null_mut();
    let [mut origin, mut bytes] = [0usize; 2];
    if kind == BUFFER_CREATE_TYPE_REGION && !region.is_null() {
        // SAFETY: for this kind the pointer leads to an origin and a size.
        [origin, bytes] = unsafe { *region.cast::<[usize; 2]>() };
    }
    if code == cl::SUCCESS {
        let place = &raw mut code;
        let part = real!(clCreateSubBuffer(buffer: Handle, flags: Bits, kind: Uint, region: *const c_void, place: *mut Code) -> Handle);
        object = part.unwrap_or_else(|| {
            code = cl::MISSING;
            std::ptr::null_mut()
        });
    }
    if code == cl::SUCCESS {
        let memory = Memory {
            bytes: bytes as u64,
            origin: origin as u64,
            part_of: Some(id(buffer)),
        };
        with(|s| s.buffers.insert(id(object), memory));
    }
    let words = format!(" origin={origin} bytes={bytes}");
    // SAFETY: the caller's pointer.
    unsafe { made(call, &words, object, code, place) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clReleaseMemObject(object: Handle) -> Code {
    with(|s| s.buffers.remove(&id(object)));
    images::forget(object);
    let code = real!(clReleaseMemObject(object: Handle) -> Code).unwrap_or(cl::MISSING);
    after("clReleaseMemObject", "", released("clReleaseMemObject", code))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clCreateProgramWithSource(
    context: Handle,
    count: Uint,
    strings: *const *const c_char,
    lengths: *const usize,
    place: *mut Code,
) -> Handle {
    let call = "clCreateProgramWithSource";
    let mut code = before(call, None).unwrap_or(cl::SUCCESS);
    let mut object = std::ptr::null_mut();
    if code == cl::SUCCESS {
        let place = &raw mut code;
        let program = real!(clCreateProgramWithSource(context: Handle, count: Uint, strings: *const *const c_char, lengths: *const usize, place: *mut Code) -> Handle);
        object = program.unwrap_or_else(|| {
            code = cl::MISSING;
            std::ptr::null_mut()
        });
    }
    if code == cl::SUCCESS {
        let mut source = String::new();
        for i in 0..count as usize {
            // SAFETY: so many strings are given, each with a length or a closing zero.
            let part = unsafe {
                let start = *strings.add(i);
                let length = if lengths.is_null() { 0 } else { *lengths.add(i) };
                if length == 0 {
                    CStr::from_ptr(start).to_bytes()
                } else {
                    std::slice::from_raw_parts(start.cast::<u8>(), length)
                }
            };
            source.push_str(&String::from_utf8_lossy(part));
        }
        with(|s| s.add_program(id(object), source));
    }
    // SAFETY: the caller's pointer.
    unsafe { made(call, "", object, code, place) }
}

/// A program from what a driver compiled earlier. Its source is known where this library gave the
/// binary away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clCreateProgramWithBinary(
    context: Handle,
    count: Uint,
    devices: *const Handle,
    lengths: *const usize,
    binaries: *const *const u8,
    status: *mut Code,
    place: *mut Code,
) -> Handle {
    let call = "clCreateProgramWithBinary";
    let mut code = before(call, None).unwrap_or(cl::SUCCESS);
    let mut object = std::ptr::null_mut();
    // SAFETY: there is a length and a pointer for each device, of which phones have one.
    let given = (count == 1).then(|| unsafe { std::slice::from_raw_parts(*binaries, *lengths) });
    let marked = given.and_then(binaries::split);
    if code == cl::SUCCESS {
        let place = &raw mut code;
        let own = marked.as_ref().map(|(_, binary)| (binary.len(), binary.as_ptr()));
        let (lengths, binaries): (*const usize, *const *const u8) = match &own {
            Some((length, start)) => (length, start),
            None => (lengths, binaries),
        };
        let program = real!(clCreateProgramWithBinary(context: Handle, count: Uint, devices: *const Handle, lengths: *const usize, binaries: *const *const u8, status: *mut Code, place: *mut Code) -> Handle);
        object = program.unwrap_or_else(|| {
            code = cl::MISSING;
            std::ptr::null_mut()
        });
    }
    if code == cl::SUCCESS {
        let source = marked.map_or_else(String::new, |(source, _)| source);
        with(|s| s.add_program(id(object), source));
    }
    // SAFETY: the caller's pointer.
    unsafe { made(call, "", object, code, place) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clBuildProgram(
    program: Handle,
    count: Uint,
    devices: *const Handle,
    options: *const c_char,
    notify: *const c_void,
    data: *mut c_void,
) -> Code {
    let call = "clBuildProgram";
    // The one of the configured kernels that the program defines.
    let kernel = with(|s| {
        let source = &s.programs.get(&id(program))?.source;
        let named = s.config.faults.iter().filter_map(|f| f.kernel.as_ref());
        named
            .into_iter()
            .find(|name| source.contains(&format!("void {name}(")))
            .cloned()
    });
    let wave = with(|s| s.programs.get(&id(program)).map(|p| Wave::of(&p.source)));
    let refused = wave
        .is_some_and(Wave::is_refused)
        .then_some(cl::BUILD_PROGRAM_FAILURE);
    let code = match before(call, kernel.as_deref()).or(refused) {
        Some(code) => {
            with(|s| {
                if let Some(known) = s.programs.get_mut(&id(program)) {
                    known.broken = true;
                }
            });
            code
        }
        None => real!(clBuildProgram(program: Handle, count: Uint, devices: *const Handle, options: *const c_char, notify: *const c_void, data: *mut c_void) -> Code)
            .unwrap_or(cl::MISSING),
    };
    after(call, wave.map_or("", Wave::words), code)
}

/// What a program asks of `cl_qcom_reqd_sub_group_size`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wave {
    None,
    Half,
    Full,
    /// Not as the extension has it.
    Wrong,
}

impl Wave {
    fn of(source: &str) -> Self {
        let mut requests = source.split("qcom_reqd_sub_group_size(").skip(1);
        let enabled = source.contains("#pragma OPENCL EXTENSION cl_qcom_reqd_sub_group_size : enable");
        match (requests.next(), requests.next()) {
            (None, _) => Self::None,
            (Some(one), None) if enabled && one.starts_with("\"half\")") => Self::Half,
            (Some(one), None) if enabled && one.starts_with("\"full\")") => Self::Full,
            _ => Self::Wrong,
        }
    }

    /// By the compiler of the phone that is played.
    fn is_refused(self) -> bool {
        let listed = || Words::configured().is_none_or(|w| w.has("cl_qcom_reqd_sub_group_size"));
        self == Self::Wrong || self != Self::None && !listed()
    }

    fn words(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Half => " wave=half",
            Self::Full => " wave=full",
            Self::Wrong => " wave=wrong",
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetProgramBuildInfo(
    program: Handle,
    device: Handle,
    name: Uint,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> Code {
    let call = "clGetProgramBuildInfo";
    let broken = with(|s| s.programs.get(&id(program)).is_some_and(|p| p.broken));
    let status = BUILD_ERROR.to_ne_bytes();
    let own: Option<&[u8]> = match name {
        PROGRAM_BUILD_LOG if broken => Some(LOG),
        PROGRAM_BUILD_STATUS if broken => Some(&status),
        _ => None,
    };
    let code = match (refused_query(call), own) {
        (Some(code), _) => code,
        // SAFETY: the caller's pointers.
        (None, Some(bytes)) => unsafe { crate::info::answer(bytes, size, value, size_ret) },
        (None, None) => real!(clGetProgramBuildInfo(program: Handle, device: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize) -> Code)
            .unwrap_or(cl::MISSING),
    };
    after(call, &format!(" name={name:#x}"), code)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clRetainProgram(program: Handle) -> Code {
    with(|s| s.retain_program(id(program)));
    let code = real!(clRetainProgram(program: Handle) -> Code).unwrap_or(cl::MISSING);
    after("clRetainProgram", "", code)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clReleaseProgram(program: Handle) -> Code {
    with(|s| s.release_program(id(program)));
    let code = real!(clReleaseProgram(program: Handle) -> Code).unwrap_or(cl::MISSING);
    after("clReleaseProgram", "", released("clReleaseProgram", code))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clCreateKernel(program: Handle, name: *const c_char, place: *mut Code) -> Handle {
    let call = "clCreateKernel";
    // SAFETY: the caller's string.
    let text = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let mut code = before(call, Some(&text)).unwrap_or(cl::SUCCESS);
    let mut object = std::ptr::null_mut();
    if code == cl::SUCCESS {
        (object, code) = real_kernel(program, name);
    }
    if code == cl::SUCCESS {
        with(|s| s.add_kernel(id(object), id(program), text.clone(), BTreeMap::new()));
    }
    // SAFETY: the caller's pointer.
    unsafe { made(call, &format!(" kernel={text}"), object, code, place) }
}

/// A kernel object of the real library.
pub(crate) fn real_kernel(program: Handle, name: *const c_char) -> (Handle, Code) {
    let mut code = cl::SUCCESS;
    let place = &raw mut code;
    let kernel = real!(clCreateKernel(program: Handle, name: *const c_char, place: *mut Code) -> Handle);
    match kernel {
        Some(kernel) => (kernel, code),
        None => (std::ptr::null_mut(), cl::MISSING),
    }
}

/// Sets an argument of a kernel object of the real library.
pub(crate) fn real_set_arg(kernel: Handle, index: Uint, arg: &Arg) -> Code {
    let (size, value): (usize, *const c_void) = match arg {
        Arg::Bytes(bytes) => (bytes.len(), bytes.as_ptr().cast()),
        Arg::Local(size) => (*size, std::ptr::null()),
    };
    real!(clSetKernelArg(kernel: Handle, index: Uint, size: usize, value: *const c_void) -> Code)
        .unwrap_or(cl::MISSING)
}

/// An argument as a call gives it.
///
/// # Safety
///
/// `value` is null or leads to `size` bytes.
pub(crate) unsafe fn arg(size: usize, value: *const c_void) -> Arg {
    if value.is_null() {
        return Arg::Local(size);
    }
    // SAFETY: as the caller promises.
    Arg::Bytes(unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size) }.to_vec())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clSetKernelArg(
    kernel: Handle,
    index: Uint,
    size: usize,
    value: *const c_void,
) -> Code {
    let call = "clSetKernelArg";
    // SAFETY: the caller's bytes.
    let arg = unsafe { arg(size, value) };
    let image = if images::is_image(&arg) { " image=true" } else { "" };
    let code = before(call, None).unwrap_or_else(|| real_set_arg(kernel, index, &arg));
    let known = with(|s| {
        let form = s.form(id(kernel));
        let kernel = s.kernels.get_mut(&id(kernel))?;
        if code == cl::SUCCESS {
            kernel.args.insert(index, arg);
        }
        Some((kernel.name.clone(), form))
    });
    let (name, form) = known.unwrap_or_default();
    after(
        call,
        &format!(" kernel={name}{form} index={index} size={size}{image}"),
        code,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clRetainKernel(kernel: Handle) -> Code {
    with(|s| s.retain_kernel(id(kernel)));
    let code = real!(clRetainKernel(kernel: Handle) -> Code).unwrap_or(cl::MISSING);
    after("clRetainKernel", "", code)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clReleaseKernel(kernel: Handle) -> Code {
    with(|s| s.release_kernel(id(kernel)));
    let code = real!(clReleaseKernel(kernel: Handle) -> Code).unwrap_or(cl::MISSING);
    after("clReleaseKernel", "", released("clReleaseKernel", code))
}
