//! Contexts and queues: the properties that extensions add, checked and taken out before the real
//! library sees them.

use crate::info::Words;
use crate::real::real;
use crate::state::{after, before, id, made, released, with};
use crate::{Bits, Code, Handle, Uint, cl};
use std::ffi::c_void;
use std::fmt::Write as _;

/// The pairs of a list that ends with 0.
///
/// # Safety
///
/// `list` is null or such a list.
pub(crate) unsafe fn pairs<T: Copy + Default + PartialEq>(list: *const T) -> Vec<(T, T)> {
    let mut all = Vec::new();
    let mut at = list;
    // SAFETY: as the caller promises, every name but the last is followed by a value.
    while !at.is_null() && unsafe { *at } != T::default() {
        // SAFETY: as above.
        unsafe {
            all.push((*at, *at.add(1)));
            at = at.add(2);
        }
    }
    all
}

/// The pairs as the log has them, `1084:7f01,40c9:40cc`.
fn written<T: std::fmt::LowerHex>(pairs: &[(T, T)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _done = write!(text, "{comma}{name:x}:{value:x}");
    }
    if text.is_empty() { "none".to_owned() } else { text }
}

/// What is left of a context's properties for the real library, or the code with which a driver
/// refuses them.
fn of_context(given: &[(isize, isize)]) -> Result<Vec<isize>, Code> {
    let refused = with(|s| s.config.refuse_hints);
    let has = |extension: &str| !refused && Words::configured().is_some_and(|w| w.has(extension));
    let mut left = Vec::new();
    for (i, (name, value)) in given.iter().enumerate() {
        let hint = match *name {
            cl::CONTEXT_PLATFORM | cl::CONTEXT_INTEROP_USER_SYNC => {
                left.extend([*name, *value]);
                true
            }
            cl::CONTEXT_PERF_HINT => {
                has("cl_qcom_perf_hint") && (cl::PERF_HINT_HIGH..=cl::PERF_HINT_LOW).contains(value)
            }
            cl::CONTEXT_PRIORITY_HINT => {
                has("cl_qcom_priority_hint")
                    && (cl::PRIORITY_HINT_HIGH..=cl::PRIORITY_HINT_LOW).contains(value)
            }
            _ => false,
        };
        if refused && matches!(*name, cl::CONTEXT_PERF_HINT | cl::CONTEXT_PRIORITY_HINT) {
            with(|s| s.log_fault("clCreateContext", cl::INVALID_PROPERTY));
        }
        if !hint || given[..i].iter().any(|(earlier, _)| earlier == name) {
            return Err(cl::INVALID_PROPERTY);
        }
    }
    left.push(0);
    Ok(left)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clCreateContext(
    properties: *const isize,
    count: Uint,
    devices: *const Handle,
    notify: *const c_void,
    data: *mut c_void,
    place: *mut Code,
) -> Handle {
    let call = "clCreateContext";
    // SAFETY: the caller's list.
    let given = unsafe { pairs(properties) };
    let mut code = cl::SUCCESS;
    let mut object = std::ptr::null_mut();
    match before(call, None).map_or_else(|| of_context(&given), Err) {
        Err(refused) => code = refused,
        Ok(left) => {
            let properties = if properties.is_null() {
                std::ptr::null()
            } else {
                left.as_ptr()
            };
            let place = &raw mut code;
            let context = real!(clCreateContext(properties: *const isize, count: Uint, devices: *const Handle, notify: *const c_void, data: *mut c_void, place: *mut Code) -> Handle);
            object = context.unwrap_or_else(|| {
                code = cl::MISSING;
                std::ptr::null_mut()
            });
        }
    }
    // SAFETY: the caller's pointer.
    unsafe {
        made(
            call,
            &format!(" properties={}", written(&given)),
            object,
            code,
            place,
        )
    }
}

/// What is left of a queue's properties for the real library and whether it records, or the code
/// with which a driver refuses them in this call.
fn of_queue(call: &str, given: &[(Bits, Bits)]) -> Result<(Vec<Bits>, bool), Code> {
    let refused = with(|s| s.config.refuse_hints);
    let words = Words::configured();
    let has = |extension: &str| words.is_some_and(|w| w.has(extension));
    let (mut left, mut records) = (Vec::new(), false);
    for (i, (name, value)) in given.iter().enumerate() {
        if given[..i].iter().any(|(earlier, _)| earlier == name) {
            return Err(cl::INVALID_VALUE);
        }
        match *name {
            cl::QUEUE_PROPERTIES if value & cl::QUEUE_RECORDABLE != 0 => {
                if !has("cl_qcom_recordable_queues") {
                    return Err(cl::INVALID_VALUE);
                }
                // Drivers take it alone only.
                if *value != cl::QUEUE_RECORDABLE {
                    return Err(cl::INVALID_QUEUE_PROPERTIES);
                }
                records = true;
            }
            cl::QUEUE_PRIORITY if words.is_some() => {
                if refused {
                    with(|s| s.log_fault(call, cl::INVALID_QUEUE_PROPERTIES));
                    return Err(cl::INVALID_QUEUE_PROPERTIES);
                }
                if !has("cl_khr_priority_hints") || ![1, 2, 4].contains(value) {
                    return Err(cl::INVALID_VALUE);
                }
            }
            cl::QUEUE_PROPERTIES => left.extend([*name, *value]),
            _ if words.is_some() => return Err(cl::INVALID_VALUE),
            _ => left.extend([*name, *value]),
        }
    }
    left.push(0);
    Ok((left, records))
}

/// Makes a queue for either of the calls.
///
/// # Safety
///
/// As for the calls.
unsafe fn queue(
    call: &str,
    context: Handle,
    device: Handle,
    given: &[(Bits, Bits)],
    place: *mut Code,
) -> Handle {
    let mut code = cl::SUCCESS;
    let mut object = std::ptr::null_mut();
    match before(call, None).map_or_else(|| of_queue(call, given), Err) {
        Err(refused) => code = refused,
        Ok((left, records)) => {
            let bits = left.iter().position(|n| *n == cl::QUEUE_PROPERTIES);
            let bits = bits.and_then(|i| left.get(i + 1)).copied().unwrap_or(0);
            let place = &raw mut code;
            let old = call == "clCreateCommandQueue" || left.len() <= 3;
            let made = if old {
                real!(clCreateCommandQueue(context: Handle, device: Handle, bits: Bits, place: *mut Code) -> Handle)
            } else {
                let properties = left.as_ptr();
                real!(clCreateCommandQueueWithProperties(context: Handle, device: Handle, properties: *const Bits, place: *mut Code) -> Handle)
            };
            object = made.unwrap_or_else(|| {
                code = cl::MISSING;
                std::ptr::null_mut()
            });
            if code == cl::SUCCESS && records {
                with(|s| s.recordable.insert(id(object), None));
            }
        }
    }
    // SAFETY: the caller's pointer.
    unsafe {
        made(
            call,
            &format!(" properties={}", written(given)),
            object,
            code,
            place,
        )
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clCreateCommandQueue(
    context: Handle,
    device: Handle,
    bits: Bits,
    place: *mut Code,
) -> Handle {
    let given = if bits == 0 {
        Vec::new()
    } else {
        vec![(cl::QUEUE_PROPERTIES, bits)]
    };
    // SAFETY: the caller's arguments.
    unsafe { queue("clCreateCommandQueue", context, device, &given, place) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clCreateCommandQueueWithProperties(
    context: Handle,
    device: Handle,
    properties: *const Bits,
    place: *mut Code,
) -> Handle {
    // SAFETY: the caller's arguments.
    unsafe {
        let given = pairs(properties);
        queue(
            "clCreateCommandQueueWithProperties",
            context,
            device,
            &given,
            place,
        )
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clReleaseCommandQueue(queue: Handle) -> Code {
    let code = real!(clReleaseCommandQueue(queue: Handle) -> Code).unwrap_or(cl::MISSING);
    with(|s| s.recordable.remove(&id(queue)));
    after(
        "clReleaseCommandQueue",
        "",
        released("clReleaseCommandQueue", code),
    )
}
