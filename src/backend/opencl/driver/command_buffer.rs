//! `cl_khr_command_buffer` and `cl_khr_command_buffer_mutable_dispatch`.
//!
//! Both are or were provisional. Of the first, only dispatches are recorded, since their signature
//! is the same from 0.9.0 to 1.0; those of copies and fills changed in 0.9.5. The second updates
//! commands by a list of configurations from 0.9.2 on. Earlier versions used a chain of other
//! structures; a driver with one of these counts as not having the extension.

use super::super::device::{function, listed_version};
use super::{Change, Code, DeviceHandle, Event, Queue, Ready, Refusal, done, number, queued};
use cl3::ext as api;
use opencl3::error_codes as codes;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

const NAME: &str = "cl_khr_command_buffer";
const MUTABLE: &str = "cl_khr_command_buffer_mutable_dispatch";
/// The fields of a recorded dispatch that are updated.
const FIELDS: api::cl_mutable_dispatch_fields_khr =
    api::CL_MUTABLE_DISPATCH_GLOBAL_SIZE_KHR | api::CL_MUTABLE_DISPATCH_ARGUMENTS_KHR;

type Update = unsafe extern "C" fn(
    api::cl_command_buffer_khr,
    api::cl_uint,
    *const api::cl_command_buffer_update_type_khr,
    *const *const c_void,
) -> api::cl_int;

/// The extensions of one device.
#[derive(Debug)]
pub(crate) struct CommandBuffers {
    create: api::clCreateCommandBufferKHR_t,
    dispatch: api::clCommandNDRangeKernelKHR_t,
    finalize: api::clFinalizeCommandBufferKHR_t,
    enqueue: api::clEnqueueCommandBufferKHR_t,
    release: api::clReleaseCommandBufferKHR_t,
    update: Option<Update>,
    simultaneous: bool,
}

impl CommandBuffers {
    /// The extension of `device`; `None` if it is not listed, an error if it is listed but not
    /// usable.
    pub(crate) fn of(device: DeviceHandle) -> Result<Option<Arc<Self>>, String> {
        let Some(version) = listed_version(device, NAME) else {
            return Ok(None);
        };
        if !matches!(version, (0, 9, _) | (1, ..)) {
            return Err(format!("version {version:?} of {NAME} is not supported"));
        }
        let capabilities = |name| device.info(name).map_or(0, |bytes| number(&bytes));
        let update = match listed_version(device, MUTABLE) {
            Some((0, 9, 2..) | (1, ..))
                if capabilities(api::CL_DEVICE_MUTABLE_DISPATCH_CAPABILITIES_KHR) & FIELDS == FIELDS =>
            {
                Some(load!(function, device, c"clUpdateMutableCommandsKHR", Update))
            }
            Some(version) => {
                log::debug!("opencl: {MUTABLE} {version:?} is not used");
                None
            }
            None => None,
        };
        Ok(Some(Arc::new(Self {
            create: load!(
                function,
                device,
                c"clCreateCommandBufferKHR",
                api::clCreateCommandBufferKHR_t
            ),
            dispatch: load!(
                function,
                device,
                c"clCommandNDRangeKernelKHR",
                api::clCommandNDRangeKernelKHR_t
            ),
            finalize: load!(
                function,
                device,
                c"clFinalizeCommandBufferKHR",
                api::clFinalizeCommandBufferKHR_t
            ),
            enqueue: load!(
                function,
                device,
                c"clEnqueueCommandBufferKHR",
                api::clEnqueueCommandBufferKHR_t
            ),
            release: load!(
                function,
                device,
                c"clReleaseCommandBufferKHR",
                api::clReleaseCommandBufferKHR_t
            ),
            update,
            simultaneous: capabilities(api::CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR)
                & api::CL_COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR
                != 0,
        })))
    }

    /// Whether recorded dispatches can be updated.
    pub(crate) fn are_mutable(&self) -> bool {
        self.update.is_some()
    }

    /// Whether a command buffer can be queued while it runs.
    pub(crate) fn run_again(&self) -> bool {
        self.simultaneous
    }
}

#[derive(Debug)]
pub(crate) struct CommandBuffer {
    raw: api::cl_command_buffer_khr,
    api: Arc<CommandBuffers>,
    /// Its dispatches; null if they cannot be updated.
    commands: Vec<api::cl_mutable_command_khr>,
}

// SAFETY: OpenCL objects are not bound to a thread; calls that change one take `&mut`.
unsafe impl Send for CommandBuffer {}
// SAFETY: as above.
unsafe impl Sync for CommandBuffer {}

impl Drop for CommandBuffer {
    fn drop(&mut self) {
        // SAFETY: this value owns one reference to a live object and releases it here.
        let code = self
            .api
            .release
            .map_or(codes::CL_SUCCESS, |f| unsafe { f(self.raw) });
        if code != codes::CL_SUCCESS {
            log::warn!("opencl: error while releasing a command buffer: {}", Code(code));
        }
    }
}

impl CommandBuffer {
    /// Records dispatches for `queue`.
    pub(crate) fn new(
        api: &Arc<CommandBuffers>,
        queue: &Queue,
        dispatches: &[Ready<'_>],
    ) -> Result<Self, Refusal> {
        let mut buffer = Self::empty(api, queue).map_err(|code| ("clCreateCommandBufferKHR", code))?;
        for ready in dispatches {
            buffer
                .dispatch(ready)
                .map_err(|code| ("clCommandNDRangeKernelKHR", code))?;
        }
        // SAFETY: the buffer is live.
        let finalized = done(api.finalize.map(|f| unsafe { f(buffer.raw) }));
        finalized.map_err(|code| ("clFinalizeCommandBufferKHR", code))?;
        Ok(buffer)
    }

    fn empty(api: &Arc<CommandBuffers>, queue: &Queue) -> Result<Self, Code> {
        let mut flags = 0;
        if api.simultaneous {
            flags |= api::CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR;
        }
        if api.update.is_some() {
            flags |= api::CL_COMMAND_BUFFER_MUTABLE_KHR;
        }
        let properties = [api::CL_COMMAND_BUFFER_FLAGS_KHR, flags, 0];
        let given = if flags == 0 {
            ptr::null()
        } else {
            properties.as_ptr()
        };
        let mut code = codes::CL_SUCCESS;
        // SAFETY: one live queue, and a list of properties that ends with a zero.
        let raw = api
            .create
            .map(|f| unsafe { f(1, &raw const queue.0, given, &raw mut code) });
        done(raw.map(|_| code))?;
        match raw {
            Some(raw) if !raw.is_null() => Ok(Self {
                raw,
                api: Arc::clone(api),
                commands: Vec::new(),
            }),
            _ => Err(Code(api::CL_INVALID_COMMAND_BUFFER_KHR)),
        }
    }

    fn dispatch(&mut self, ready: &Ready<'_>) -> Result<(), Code> {
        let properties = [api::CL_MUTABLE_DISPATCH_UPDATABLE_FIELDS_KHR, FIELDS, 0];
        let mut command = ptr::null_mut();
        let mutable = self.api.update.is_some();
        let (properties, handle) = if mutable {
            (properties.as_ptr(), &raw mut command)
        } else {
            (ptr::null(), ptr::null_mut())
        };
        // SAFETY: the buffer and the kernel are live, sizes have the announced three numbers, and
        // properties end with a zero. A buffer created for one queue takes no queue here.
        done(self.api.dispatch.map(|f| unsafe {
            f(
                self.raw,
                ptr::null_mut(),
                properties,
                ready.kernel.0,
                3,
                ptr::null(),
                ready.global.as_ptr(),
                ready.local.as_ptr(),
                0,
                ptr::null(),
                ptr::null_mut(),
                handle,
            )
        }))?;
        if mutable && command.is_null() {
            return Err(Code(api::CL_INVALID_MUTABLE_COMMAND_KHR));
        }
        self.commands.push(command);
        Ok(())
    }

    /// Queues the recorded commands. Returns an event only if `timed`.
    pub(crate) fn enqueue(&self, timed: bool) -> Result<Option<Event>, Code> {
        queued(timed, |event| {
            let enqueue = self.api.enqueue?;
            // SAFETY: the buffer is live and holds its queue.
            Some(unsafe { enqueue(0, ptr::null_mut(), self.raw, 0, ptr::null(), event) })
        })
    }

    /// Updates dispatches. The buffer must not be running.
    pub(crate) fn update(&mut self, changes: &[Change<'_>]) -> Result<(), Code> {
        let args: Vec<api::cl_mutable_dispatch_arg_khr> = changes
            .iter()
            .map(|c| api::cl_mutable_dispatch_arg_khr {
                arg_index: c.param.0,
                arg_size: c.param.1.len(),
                arg_value: c.param.1.as_ptr().cast::<c_void>(),
            })
            .collect();
        let configs: Vec<api::cl_mutable_dispatch_config_khr> = changes
            .iter()
            .zip(&args)
            .map(|(c, arg)| api::cl_mutable_dispatch_config_khr {
                command: self.commands[c.dispatch as usize],
                num_args: 1,
                num_svm_args: 0,
                num_exec_infos: 0,
                work_dim: 3,
                arg_list: arg,
                arg_svm_list: ptr::null(),
                exec_info_list: ptr::null(),
                global_work_offset: ptr::null(),
                global_work_size: c.global.as_ptr(),
                local_work_size: ptr::null(),
            })
            .collect();
        // The only configuration type.
        let types = vec![0; configs.len()];
        let list: Vec<*const c_void> = configs.iter().map(|c| ptr::from_ref(c).cast()).collect();
        let count = api::cl_uint::try_from(list.len()).map_err(|_| Code(codes::CL_INVALID_VALUE))?;
        // SAFETY: both lists have `count` entries, which point to structures that outlive the call.
        done(
            self.api
                .update
                .map(|f| unsafe { f(self.raw, count, types.as_ptr(), list.as_ptr()) }),
        )
    }
}

#[cfg(test)]
impl CommandBuffers {
    /// The same, where a call fails from the start: that which creates, ends or queues a buffer.
    pub(crate) fn failing(&self, call: &str) -> Arc<Self> {
        unsafe extern "C" fn create(
            _: api::cl_uint,
            _: *const opencl3::types::cl_command_queue,
            _: *const api::cl_command_buffer_properties_khr,
            code: *mut api::cl_int,
        ) -> api::cl_command_buffer_khr {
            // SAFETY: the caller gives a place for the code.
            unsafe { *code = codes::CL_INVALID_VALUE };
            ptr::null_mut()
        }
        unsafe extern "C" fn finalize(_: api::cl_command_buffer_khr) -> api::cl_int {
            codes::CL_OUT_OF_HOST_MEMORY
        }
        unsafe extern "C" fn enqueue(
            _: api::cl_uint,
            _: *mut opencl3::types::cl_command_queue,
            _: api::cl_command_buffer_khr,
            _: api::cl_uint,
            _: *const opencl3::types::cl_event,
            _: *mut opencl3::types::cl_event,
        ) -> api::cl_int {
            codes::CL_INVALID_OPERATION
        }
        Arc::new(Self {
            create: if call == "create" {
                Some(create)
            } else {
                self.create
            },
            finalize: if call == "finalize" {
                Some(finalize)
            } else {
                self.finalize
            },
            enqueue: if call == "enqueue" {
                Some(enqueue)
            } else {
                self.enqueue
            },
            ..*self
        })
    }
}
