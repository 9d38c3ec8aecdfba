//! Calls that are passed on as they are.

use crate::command_buffer::wrapper;
use crate::queue::no_dispatch;
use crate::real::real;
use crate::state::{after, before, refused_query, released, with};
use crate::{Bits, Code, Handle, Uint, cl, recording};
use std::ffi::{CStr, c_char, c_void};

/// Functions that return a code and fail as configured; commands fail on recordable queues too, and
/// a release is done even if it fails.
macro_rules! pass {
    (@$kind:ident $($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> Code {
            let call = stringify!($name);
            let code = pass!(@before $kind call $($arg)*).unwrap_or_else(|| {
                real!($name($($arg: $ty),*) -> Code).unwrap_or(cl::MISSING)
            });
            let code = pass!(@after $kind call code);
            after(call, "", code)
        }
    )*};
    (@after release $call:ident $code:ident) => { released($call, $code) };
    (@after $kind:ident $call:ident $code:ident) => { $code };
    (@before query $call:ident $($arg:ident)*) => { refused_query($call) };
    (@before release $call:ident $($arg:ident)*) => { None::<Code> };
    (@before work $call:ident $($arg:ident)*) => { before($call, None) };
    (@before command $call:ident $queue:ident $($arg:ident)*) => {
        before($call, None).or_else(|| no_dispatch($queue))
    };
}

pass! { @query
    clRetainContext(context: Handle);
    clGetContextInfo(context: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize);
    clRetainCommandQueue(queue: Handle);
    clGetCommandQueueInfo(queue: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize);
    clRetainMemObject(object: Handle);
    clGetMemObjectInfo(object: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize);
    clGetImageInfo(image: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize);
    clGetSupportedImageFormats(context: Handle, flags: Bits, kind: Uint, entries: Uint, formats: *mut c_void, count: *mut Uint);
    clUnloadPlatformCompiler(platform: Handle);
    clGetKernelInfo(kernel: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize);
    clGetKernelArgInfo(kernel: Handle, index: Uint, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize);
    clGetKernelWorkGroupInfo(kernel: Handle, device: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize);
    clRetainEvent(event: Handle);
    clGetEventInfo(event: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize);
}

pass! { @release
    clReleaseContext(context: Handle);
}

pass! { @work
    clWaitForEvents(count: Uint, events: *const Handle);
    clFlush(queue: Handle);
    clFinish(queue: Handle);
}

pass! { @command
    clEnqueueReadBuffer(queue: Handle, buffer: Handle, blocking: Uint, offset: usize, bytes: usize, out: *mut c_void, count: Uint, wait: *const Handle, event: *mut Handle);
    clEnqueueWriteBuffer(queue: Handle, buffer: Handle, blocking: Uint, offset: usize, bytes: usize, data: *const c_void, count: Uint, wait: *const Handle, event: *mut Handle);
    clEnqueueCopyBuffer(queue: Handle, src: Handle, dst: Handle, from: usize, to: usize, bytes: usize, count: Uint, wait: *const Handle, event: *mut Handle);
    clEnqueueFillBuffer(queue: Handle, buffer: Handle, pattern: *const c_void, unit: usize, offset: usize, bytes: usize, count: Uint, wait: *const Handle, event: *mut Handle);
    clEnqueueUnmapMemObject(queue: Handle, object: Handle, mapped: *mut c_void, count: Uint, wait: *const Handle, event: *mut Handle);
    clEnqueueMarkerWithWaitList(queue: Handle, count: Uint, wait: *const Handle, event: *mut Handle);
    clEnqueueBarrierWithWaitList(queue: Handle, count: Uint, wait: *const Handle, event: *mut Handle);
}

/// The address of a function of an extension: one of the fake driver, or the real library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetExtensionFunctionAddressForPlatform(
    platform: Handle,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: the caller's string.
    let text = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let call = "clGetExtensionFunctionAddressForPlatform";
    if let Some(code) = refused_query(call) {
        after(call, &format!(" name={text}"), code);
        return std::ptr::null_mut();
    }
    let own: Option<*const ()> = match text.as_ref() {
        "clNewRecordingQCOM" => Some(recording::clNewRecordingQCOM as *const ()),
        "clEndRecordingQCOM" => Some(recording::clEndRecordingQCOM as *const ()),
        "clReleaseRecordingQCOM" => Some(recording::clReleaseRecordingQCOM as *const ()),
        "clEnqueueRecordingQCOM" => Some(recording::clEnqueueRecordingQCOM as *const ()),
        _ => None,
    };
    let address = match own {
        Some(own) => own.cast_mut().cast(),
        None => {
            let real = real!(clGetExtensionFunctionAddressForPlatform(platform: Handle, name: *const c_char) -> *mut c_void)
                .unwrap_or(std::ptr::null_mut());
            match wrapper(&text) {
                Some(wrapper) if !real.is_null() => {
                    with(|s| s.addresses.insert(text.to_string(), real as usize));
                    wrapper.cast_mut().cast()
                }
                _ => real,
            }
        }
    };
    let code = if address.is_null() {
        cl::INVALID_VALUE
    } else {
        cl::SUCCESS
    };
    after(call, &format!(" name={text}"), code);
    address
}
