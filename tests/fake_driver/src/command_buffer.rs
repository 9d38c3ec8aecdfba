//! `cl_khr_command_buffer` and `cl_khr_command_buffer_mutable_dispatch`, which are the real
//! driver's. Each call is logged, can fail, and is checked as the extensions define it before the
//! driver sees it: drivers leave out some of that, and take what others refuse.

use crate::images;
use crate::info::max_workgroup;
use crate::properties::pairs;
use crate::queue::sizes;
use crate::real::real;
use crate::recording::list;
use crate::state::{Arg, after, before, id, made, released, with};
use crate::{Bits, Code, Handle, Uint, cl};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;

/// `CL_KERNEL_NUM_ARGS`.
const KERNEL_NUM_ARGS: Uint = 0x1191;
/// `CL_EVENT_COMMAND_EXECUTION_STATUS`, which is 0 or an error at the end.
const EVENT_STATUS: Uint = 0x11d3;
/// `CL_STRUCTURE_TYPE_MUTABLE_DISPATCH_CONFIG_KHR`, the only type of changes.
const DISPATCH_CONFIG: Uint = 0;

#[derive(Debug)]
pub(crate) struct CommandBuffer {
    mutable: bool,
    simultaneous: bool,
    finalized: bool,
    /// Those with a handle, by it.
    commands: HashMap<usize, Command>,
    dispatches: usize,
    /// The event of the last time that it was queued.
    event: Option<usize>,
}

/// A dispatch that can be changed.
#[derive(Clone, Debug)]
struct Command {
    rank: Uint,
    /// What can be changed.
    fields: Bits,
    /// Sizes of its arguments.
    args: BTreeMap<Uint, usize>,
}

/// `cl_mutable_dispatch_arg_khr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DispatchArg {
    pub index: Uint,
    /// Bytes.
    pub size: usize,
    pub value: *const c_void,
}

/// `cl_mutable_dispatch_config_khr`: what is changed of a dispatch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DispatchConfig {
    pub command: Handle,
    pub arg_count: Uint,
    pub svm_count: Uint,
    pub info_count: Uint,
    /// As it was recorded, where sizes are given.
    pub rank: Uint,
    pub args: *const DispatchArg,
    pub svm: *const DispatchArg,
    pub infos: *const c_void,
    pub offset: *const usize,
    pub global: *const usize,
    pub local: *const usize,
}

/// The functions that stand before the driver's.
pub(crate) fn wrapper(name: &str) -> Option<*const ()> {
    Some(match name {
        "clCreateCommandBufferKHR" => clCreateCommandBufferKHR as *const (),
        "clCommandNDRangeKernelKHR" => clCommandNDRangeKernelKHR as *const (),
        "clFinalizeCommandBufferKHR" => clFinalizeCommandBufferKHR as *const (),
        "clUpdateMutableCommandsKHR" => clUpdateMutableCommandsKHR as *const (),
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
    // SAFETY: the address is a function of that type, as the caller promises, and both are
    // pointers.
    Some(unsafe { std::mem::transmute_copy(&address) })
}

type Create = unsafe extern "C" fn(Uint, *const Handle, *const Bits, *mut Code) -> Handle;
type OfOne = unsafe extern "C" fn(Handle) -> Code;
type Enqueue = unsafe extern "C" fn(Uint, *const Handle, Handle, Uint, *const Handle, *mut Handle) -> Code;
type Dispatch = unsafe extern "C" fn(
    Handle,
    Handle,
    *const Bits,
    Handle,
    Uint,
    *const usize,
    *const usize,
    *const usize,
    Uint,
    *const Uint,
    *mut Uint,
    *mut Handle,
) -> Code;
type Update = unsafe extern "C" fn(Handle, Uint, *const Uint, *const *const c_void) -> Code;

unsafe extern "C" fn clCreateCommandBufferKHR(
    count: Uint,
    queues: *const Handle,
    properties: *const Bits,
    place: *mut Code,
) -> Handle {
    let call = "clCreateCommandBufferKHR";
    // SAFETY: the caller's list.
    let given = unsafe { pairs(properties) };
    let flags = given.iter().find(|(name, _)| *name == cl::COMMAND_BUFFER_FLAGS);
    let flags = flags.map_or(0, |(_, flags)| *flags);
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
    if code == cl::SUCCESS {
        let buffer = CommandBuffer {
            mutable: flags & cl::COMMAND_BUFFER_MUTABLE != 0,
            simultaneous: flags & cl::COMMAND_BUFFER_SIMULTANEOUS_USE != 0,
            finalized: false,
            commands: HashMap::new(),
            dispatches: 0,
            event: None,
        };
        with(|s| s.command_buffers.insert(id(object), buffer));
    }
    let words = format!(" buffer={:x} flags={flags:x}", id(object));
    // SAFETY: the caller's pointer.
    unsafe { made(call, &words, object, code, place) }
}

/// What `f` says of a command buffer, or the code for one that is not known.
fn known<T>(buffer: Handle, f: impl FnOnce(&mut CommandBuffer) -> Result<T, Code>) -> Result<T, Code> {
    with(|s| match s.command_buffers.get_mut(&id(buffer)) {
        Some(found) => f(found),
        None => Err(cl::INVALID_COMMAND_BUFFER),
    })
}

/// For what can be done with a command buffer only before, or only after its end.
fn finalized(buffer: Handle, wanted: bool) -> Result<(), Code> {
    known(buffer, |b| {
        (b.finalized == wanted).then_some(()).ok_or(cl::INVALID_OPERATION)
    })
}

/// It was queued, and has not ended.
fn is_running(buffer: Handle) -> Result<bool, Code> {
    let Some(event) = known(buffer, |b| Ok(b.event))? else {
        return Ok(false);
    };
    let (event, name, mut status) = (event as Handle, EVENT_STATUS, 0i32);
    let (size, value) = (size_of::<i32>(), (&raw mut status).cast::<c_void>());
    let size_ret = std::ptr::null_mut::<usize>();
    let code = real!(clGetEventInfo(event: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize) -> Code);
    Ok(code == Some(cl::SUCCESS) && status > 0)
}

/// How many arguments a kernel has.
fn arg_count(kernel: Handle) -> Uint {
    let (name, mut count) = (KERNEL_NUM_ARGS, 0 as Uint);
    let (size, value) = (size_of::<Uint>(), (&raw mut count).cast::<c_void>());
    let size_ret = std::ptr::null_mut::<usize>();
    let code = real!(clGetKernelInfo(kernel: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize) -> Code);
    if code == Some(cl::SUCCESS) { count } else { 0 }
}

/// Sizes of the arguments of a kernel, all of which must be set.
fn args_of(kernel: Handle) -> Result<BTreeMap<Uint, usize>, Code> {
    let args = with(|s| s.kernels.get(&id(kernel)).map(|k| k.args.clone()));
    let args = args.ok_or(cl::INVALID_KERNEL)?;
    if (0..arg_count(kernel)).any(|index| !args.contains_key(&index)) {
        return Err(cl::INVALID_KERNEL_ARGS);
    }
    let size = |arg: &Arg| match arg {
        Arg::Bytes(bytes) => bytes.len(),
        Arg::Local(size) => *size,
    };
    Ok(args.iter().map(|(index, arg)| (*index, size(arg))).collect())
}

unsafe extern "C" fn clCommandNDRangeKernelKHR(
    buffer: Handle,
    queue: Handle,
    properties: *const Bits,
    kernel: Handle,
    rank: Uint,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    count: Uint,
    points: *const Uint,
    point: *mut Uint,
    command: *mut Handle,
) -> Code {
    let call = "clCommandNDRangeKernelKHR";
    let name = with(|s| s.kernels.get(&id(kernel)).map(|k| k.name.clone())).unwrap_or_default();
    // SAFETY: the caller's sizes and list.
    let (all, group, given) = unsafe { (sizes(rank, global), sizes(rank, local), pairs(properties)) };
    let words = format!(
        " buffer={:x} kernel={name} global={:?} local={:?} mutable={}",
        id(buffer),
        all.as_deref().unwrap_or_default(),
        group.as_deref().unwrap_or_default(),
        !command.is_null()
    )
    .replace(", ", ",");
    let checked = || {
        finalized(buffer, false)?;
        if !queue.is_null() {
            return Err(cl::INVALID_COMMAND_QUEUE);
        }
        let args = args_of(kernel)?;
        let group = group.as_ref().map_or(1, |l| l.iter().product::<usize>());
        if group > max_workgroup() {
            return Err(cl::INVALID_WORK_GROUP_SIZE);
        }
        // Without the second extension there are no properties, and nothing that could be changed.
        let fixed = command.is_null() && given.is_empty();
        if all.is_none() || !(fixed || known(buffer, |b| Ok(b.mutable))?) {
            return Err(cl::INVALID_VALUE);
        }
        // The copies for it are no commands of the buffer.
        if images::has_shadow(kernel) {
            return Err(cl::INVALID_OPERATION);
        }
        Ok(args)
    };
    let checked = before(call, Some(&name)).map_or_else(checked, Err);
    let code = match checked {
        Err(code) => code,
        Ok(args) => {
            // SAFETY: the type is the function's, the arguments are the caller's.
            let code = unsafe {
                driver::<Dispatch>(call).map(|f| {
                    f(
                        buffer, queue, properties, kernel, rank, offset, global, local, count, points, point,
                        command,
                    )
                })
            };
            let code = code.unwrap_or(cl::MISSING);
            if code == cl::SUCCESS {
                // SAFETY: the caller's place for the handle, which the call has set.
                let handle = (!command.is_null()).then(|| id(unsafe { *command }));
                // All that a device can change where nothing is said.
                let fields = given
                    .iter()
                    .find(|(n, _)| *n == cl::MUTABLE_DISPATCH_UPDATABLE_FIELDS);
                let fields = fields.map_or(Bits::MAX, |(_, fields)| *fields);
                let _known = known(buffer, |b| {
                    b.dispatches += 1;
                    let command = Command { rank, fields, args };
                    Ok(handle.map(|handle| b.commands.insert(handle, command)))
                });
            }
            code
        }
    };
    after(call, &words, code)
}

unsafe extern "C" fn clFinalizeCommandBufferKHR(buffer: Handle) -> Code {
    let call = "clFinalizeCommandBufferKHR";
    let dispatches = known(buffer, |b| Ok(b.dispatches)).unwrap_or_default();
    let checked = before(call, None).map_or_else(|| finalized(buffer, false), Err);
    let code = match checked {
        Err(code) => code,
        // SAFETY: the type is the function's, and the buffer is live.
        Ok(()) => unsafe { driver::<OfOne>(call).map_or(cl::MISSING, |f| f(buffer)) },
    };
    if code == cl::SUCCESS {
        let _known = known(buffer, |b| {
            b.finalized = true;
            Ok(())
        });
    }
    let words = format!(" buffer={:x} dispatches={dispatches}", id(buffer));
    after(call, &words, code)
}

/// The code with which a change of a dispatch is refused, if it is.
///
/// # Safety
///
/// The arrays have the lengths that are said.
unsafe fn refusal(command: Option<&Command>, config: &DispatchConfig) -> Result<(), Code> {
    let command = command.ok_or(cl::INVALID_MUTABLE_COMMAND)?;
    for (given, field) in [
        (
            config.arg_count + config.svm_count > 0,
            cl::MUTABLE_DISPATCH_ARGUMENTS,
        ),
        (config.info_count > 0, cl::MUTABLE_DISPATCH_EXEC_INFO),
        (!config.offset.is_null(), cl::MUTABLE_DISPATCH_GLOBAL_OFFSET),
        (!config.global.is_null(), cl::MUTABLE_DISPATCH_GLOBAL_SIZE),
        (!config.local.is_null(), cl::MUTABLE_DISPATCH_LOCAL_SIZE),
    ] {
        if given && command.fields & field == 0 {
            return Err(cl::INVALID_OPERATION);
        }
    }
    let has_sizes = [config.offset, config.global, config.local]
        .iter()
        .any(|s| !s.is_null());
    if has_sizes && config.rank != command.rank || config.arg_count > 0 && config.args.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    for arg in unsafe { list(config.arg_count as usize, config.args) } {
        match command.args.get(&arg.index) {
            None => return Err(cl::INVALID_ARG_INDEX),
            Some(size) if *size != arg.size => return Err(cl::INVALID_ARG_SIZE),
            Some(_) => {}
        }
    }
    Ok(())
}

unsafe extern "C" fn clUpdateMutableCommandsKHR(
    buffer: Handle,
    count: Uint,
    types: *const Uint,
    configs: *const *const c_void,
) -> Code {
    let call = "clUpdateMutableCommandsKHR";
    // SAFETY: the caller's arrays.
    let (kinds, given) = unsafe { (list(count as usize, types), list(count as usize, configs)) };
    let running = is_running(buffer).unwrap_or(false);
    let checked = || {
        finalized(buffer, true)?;
        let empty = count == 0 || types.is_null() || configs.is_null();
        if empty || kinds.iter().any(|kind| *kind != DISPATCH_CONFIG) || given.iter().any(|c| c.is_null()) {
            return Err(cl::INVALID_VALUE);
        }
        known(buffer, |b| {
            if !b.mutable || running && !b.simultaneous {
                return Err(cl::INVALID_OPERATION);
            }
            given.iter().try_for_each(|config| {
                // SAFETY: by its type it is such a structure, whose arrays are the caller's.
                unsafe {
                    let config = &*config.cast::<DispatchConfig>();
                    refusal(b.commands.get(&id(config.command)), config)
                }
            })
        })
    };
    let checked = before(call, None).map_or_else(checked, Err);
    let code = match checked {
        Err(code) => code,
        // SAFETY: the type is the function's, the arguments are the caller's.
        Ok(()) => unsafe { driver::<Update>(call).map_or(cl::MISSING, |f| f(buffer, count, types, configs)) },
    };
    let words = format!(" buffer={:x} commands={count} running={running}", id(buffer));
    after(call, &words, code)
}

/// Gives up an event that this library keeps.
fn release_event(event: Option<usize>) {
    if let Some(event) = event {
        let event = event as Handle;
        let _code = real!(clReleaseEvent(event: Handle) -> Code);
    }
}

unsafe extern "C" fn clReleaseCommandBufferKHR(buffer: Handle) -> Code {
    let call = "clReleaseCommandBufferKHR";
    let code = match with(|s| s.command_buffers.remove(&id(buffer))) {
        None => cl::INVALID_COMMAND_BUFFER,
        Some(gone) => {
            release_event(gone.event);
            // SAFETY: the type is the function's, and the buffer is live.
            unsafe { driver::<OfOne>(call).map_or(cl::MISSING, |f| f(buffer)) }
        }
    };
    after(call, &format!(" buffer={:x}", id(buffer)), released(call, code))
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
    let checked = || {
        finalized(buffer, true)?;
        let running = is_running(buffer)?;
        match known(buffer, |b| Ok(b.simultaneous))? {
            false if running => Err(cl::INVALID_OPERATION),
            _ => Ok(()),
        }
    };
    let checked = before(call, None).map_or_else(checked, Err);
    let code = checked.map_or_else(
        |code| code,
        |()| {
            let mut own: Handle = std::ptr::null_mut();
            let place = &raw mut own;
            // SAFETY: the type is the function's, the arguments are the caller's but for the place.
            let code =
                unsafe { driver::<Enqueue>(call).map(|f| f(count, queues, buffer, waits, wait, place)) };
            let code = code.unwrap_or(cl::MISSING);
            if code == cl::SUCCESS {
                if !event.is_null() {
                    let _code = real!(clRetainEvent(own: Handle) -> Code);
                    // SAFETY: the caller's place.
                    unsafe { *event = own };
                }
                release_event(known(buffer, |b| Ok(b.event.replace(id(own)))).ok().flatten());
            }
            code
        },
    );
    after(call, &format!(" buffer={:x}", id(buffer)), code)
}
