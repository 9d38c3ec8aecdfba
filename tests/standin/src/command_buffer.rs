//! `cl_khr_command_buffer`, which is the real driver's: what makes, ends and queues a command buffer is logged and can fail. Commands
//! and their changes go to the driver directly, as their parameters differ between versions of the extension.

use crate::state::{after, before, id, made, with};
use crate::{Code, Handle, Uint, cl};
use std::ffi::c_void;

/// The functions that stand before the driver's.
pub(crate) fn wrapper(name: &str) -> Option<*const ()> {
    Some(match name {
        "clCreateCommandBufferKHR" => clCreateCommandBufferKHR as *const (),
        "clFinalizeCommandBufferKHR" => clFinalizeCommandBufferKHR as *const (),
        "clReleaseCommandBufferKHR" => clReleaseCommandBufferKHR as *const (),
        "clEnqueueCommandBufferKHR" => clEnqueueCommandBufferKHR as *const (),
        _ => return None,
    })
}

/// The driver's function of that name, as it was asked for.
///
/// # Safety
///
/// `T` is the type that the interface gives the function, a pointer.
unsafe fn driver<T: Copy>(name: &str) -> Option<T> {
    let address = with(|s| s.addresses.get(name).copied())?;
    // SAFETY: the address is a function of that type, as the caller promises, and both are pointers.
    Some(unsafe { std::mem::transmute_copy(&address) })
}

type Create = unsafe extern "C" fn(Uint, *const Handle, *const c_void, *mut Code) -> Handle;
type OfOne = unsafe extern "C" fn(Handle) -> Code;
type Enqueue = unsafe extern "C" fn(Uint, *const Handle, Handle, Uint, *const Handle, *mut Handle) -> Code;

unsafe extern "C" fn clCreateCommandBufferKHR(
    count: Uint,
    queues: *const Handle,
    properties: *const c_void,
    place: *mut Code,
) -> Handle {
    let call = "clCreateCommandBufferKHR";
    let mut code = before(call, None).unwrap_or(cl::SUCCESS);
    let mut object = std::ptr::null_mut();
    if code == cl::SUCCESS {
        // SAFETY: the type is the function's, the arguments are the caller's.
        let buffer = unsafe { driver::<Create>(call).map(|f| f(count, queues, properties, &raw mut code)) };
        object = buffer.unwrap_or_else(|| {
            code = cl::MISSING;
            std::ptr::null_mut()
        });
    }
    // SAFETY: the caller's pointer.
    unsafe { made(call, &format!(" buffer={:x}", id(object)), object, code, place) }
}

/// A call about one command buffer.
///
/// # Safety
///
/// The buffer is live.
unsafe fn of_one(call: &str, buffer: Handle) -> Code {
    // SAFETY: the type is that of both functions that are called so.
    let code = unsafe { driver::<OfOne>(call).map(|f| f(buffer)) };
    after(
        call,
        &format!(" buffer={:x}", id(buffer)),
        code.unwrap_or(cl::MISSING),
    )
}

unsafe extern "C" fn clFinalizeCommandBufferKHR(buffer: Handle) -> Code {
    let call = "clFinalizeCommandBufferKHR";
    match before(call, None) {
        Some(code) => after(call, &format!(" buffer={:x}", id(buffer)), code),
        // SAFETY: the caller's buffer.
        None => unsafe { of_one(call, buffer) },
    }
}

unsafe extern "C" fn clReleaseCommandBufferKHR(buffer: Handle) -> Code {
    // SAFETY: the caller's buffer.
    unsafe { of_one("clReleaseCommandBufferKHR", buffer) }
}

unsafe extern "C" fn clEnqueueCommandBufferKHR(
    count: Uint,
    queues: *const Handle,
    buffer: Handle,
    waits: Uint,
    wait: *const Handle,
    event: *mut Handle,
) -> Code {
    let call = "clEnqueueCommandBufferKHR";
    let code = before(call, None).unwrap_or_else(|| {
        // SAFETY: the type is the function's, the arguments are the caller's.
        let code = unsafe { driver::<Enqueue>(call).map(|f| f(count, queues, buffer, waits, wait, event)) };
        code.unwrap_or(cl::MISSING)
    });
    after(call, &format!(" buffer={:x}", id(buffer)), code)
}
