//! The driver boundary: owned handles, the calls that the backend makes, and error codes.
//!
//! The safe wrappers of `opencl3` panic if a release fails, as it does on a lost device, so this
//! module defines its own handles.

/// The function `name` of the given type, of which `find` returns the address. If it is missing,
/// the caller returns an error with its name.
macro_rules! load {
    ($find:ident, $device:expr, $name:literal, $type:ty) => {{
        let address = $find($device, $name)
            .ok_or_else(|| format!("the driver lacks the function {}", $name.to_string_lossy()))?;
        // SAFETY: the address is that of the function of this name, whose type the extension
        // defines.
        unsafe { std::mem::transmute::<*mut c_void, $type>(address.as_ptr()) }
    }};
}

mod binary;
pub(super) mod command_buffer;
pub(super) mod recordable;

use crate::backend::BackendError;
use crate::backend::kernel::BUILD_OPTIONS;
use crate::backend::kernel::image::{ImageKind, ImageShape, Pixel};
use cl3::ext;
use opencl3::command_queue as queue_api;
use opencl3::context::context as context_api;
use opencl3::device as device_api;
use opencl3::error_codes as codes;
use opencl3::event as event_api;
use opencl3::kernel as kernel_api;
use opencl3::memory as memory_api;
use opencl3::program as program_api;
use opencl3::types::{
    CL_BLOCKING, cl_command_queue, cl_context, cl_context_properties, cl_device_id, cl_event, cl_int,
    cl_kernel, cl_mem, cl_program, cl_queue_properties,
};
use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr;

/// NVIDIA's error code after a kernel has accessed memory out of bounds. Not in any header.
const NV_ILLEGAL_ACCESS: cl_int = -9999;

/// An OpenCL error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) cl_int);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NV_ILLEGAL_ACCESS => write!(f, "illegal read or write by a kernel ({NV_ILLEGAL_ACCESS})"),
            code => write!(f, "{} ({code})", codes::error_text(code)),
        }
    }
}

impl Code {
    /// The driver could not allocate memory. Only meaningful for calls that allocate memory or use
    /// it first.
    pub(super) fn is_out_of_memory(self) -> bool {
        matches!(
            self.0,
            codes::CL_MEM_OBJECT_ALLOCATION_FAILURE | codes::CL_OUT_OF_HOST_MEMORY
        )
    }

    /// The compiler or linker rejects the program, and would do so again.
    pub(super) fn is_of_program(self) -> bool {
        matches!(
            self.0,
            codes::CL_BUILD_PROGRAM_FAILURE
                | codes::CL_COMPILE_PROGRAM_FAILURE
                | codes::CL_LINK_PROGRAM_FAILURE
                | codes::CL_INVALID_KERNEL_NAME
                | codes::CL_INVALID_KERNEL_DEFINITION
        )
    }

    /// The device or its context is lost, whatever the call. Our handles are valid by construction,
    /// so a driver that reports an invalid one has torn down its context.
    pub(super) fn is_lost(self) -> bool {
        matches!(
            self.0,
            NV_ILLEGAL_ACCESS
                | codes::CL_DEVICE_NOT_AVAILABLE
                | codes::CL_INVALID_COMMAND_QUEUE
                | codes::CL_INVALID_CONTEXT
                | codes::CL_CONTEXT_TERMINATED_KHR
                | codes::CL_COMMAND_TERMINATED_ITSELF_WITH_FAILURE_ARM
                | ext::CL_PAGE_FAULT_IMG
                | ext::CL_ECC_UNRECOVERED_IMG
                | ext::CL_GENERAL_FAULT_IMG
                | ext::CL_SAFETY_FAULT_IMG
        )
    }

    /// The error for a failed `call` that only queues or creates.
    pub(super) fn at(self, call: impl Into<String>) -> BackendError {
        let call = call.into();
        if self.is_lost() {
            BackendError::Lost(format!("{call}: {self}"))
        } else {
            BackendError::Driver {
                call,
                why: self.to_string(),
            }
        }
    }

    /// The error for a failed `call` that waits; a command queued before may be the cause.
    pub(super) fn while_waiting(self, call: impl Into<String>) -> BackendError {
        match self.0 {
            codes::CL_OUT_OF_RESOURCES | codes::CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST => {
                BackendError::Lost(format!("{}: {self}", call.into()))
            }
            _ => self.at(call),
        }
    }
}

/// Converts the code of a call; `None` means that the library lacks the function.
fn done(code: Option<cl_int>) -> Result<(), Code> {
    match code {
        Some(codes::CL_SUCCESS) => Ok(()),
        Some(code) => Err(Code(code)),
        None => Err(Code(codes::DLOPEN_FUNCTION_NOT_AVAILABLE)),
    }
}

/// The library's function table.
fn library() -> Result<&'static cl3::OpenCl, Code> {
    match cl3::load_library() {
        Ok(library) => Ok(library),
        Err(_) => Err(Code(codes::DLOPEN_RUNTIME_LOAD_FAILED)),
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $raw:ty, $release:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name($raw);

        // SAFETY: OpenCL objects are not bound to a thread. The one call that is not thread-safe,
        // setting kernel arguments, takes `&mut`.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: this value owns one reference to a live object and releases it here.
                if let Err(code) = unsafe { $release(self.0) } {
                    log::warn!(concat!("opencl: error while releasing ", stringify!($name), ": {}"), Code(code));
                }
            }
        }
    };
}

handle!(
    /// A context of one device.
    Context, cl_context, context_api::release_context
);
handle!(Queue, cl_command_queue, queue_api::release_command_queue);
handle!(
    /// A buffer, a sub-buffer, or an image over either.
    Mem, cl_mem, memory_api::release_mem_object
);
handle!(Program, cl_program, program_api::release_program);
handle!(
    /// A kernel object: an entry point and its argument values.
    KernelObject, cl_kernel, kernel_api::release_kernel
);
handle!(
    /// The state of one queued command.
    Event, cl_event, event_api::release_event
);

/// A device of a platform. Root devices live as long as the library is loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceHandle(pub(super) cl_device_id);

// SAFETY: a root device is an identifier that every thread may use.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceHandle {}

impl DeviceHandle {
    /// The bytes of a device property.
    pub(super) fn info(self, name: device_api::cl_device_info) -> Result<Vec<u8>, Code> {
        device_api::get_device_data(self.0, name).map_err(Code)
    }
}

impl Context {
    /// Creates a context with `properties`: names and values in turn, without the terminating 0.
    pub(super) fn new(device: DeviceHandle, properties: &[cl_context_properties]) -> Result<Self, Code> {
        let list = [properties, &[0]].concat();
        let start = if properties.is_empty() {
            ptr::null()
        } else {
            list.as_ptr()
        };
        context_api::create_context(&[device.0], start, None, ptr::null_mut())
            .map(Self)
            .map_err(Code)
    }

    /// Creates a queue; `profiling` enables timing of its commands. `properties` as for
    /// [`Context::new`]; they require OpenCL 2.0.
    pub(super) fn queue(
        &self,
        device: DeviceHandle,
        profiling: bool,
        properties: &[cl_queue_properties],
    ) -> Result<Queue, Code> {
        let bits = if profiling {
            queue_api::CL_QUEUE_PROFILING_ENABLE
        } else {
            0
        };
        if properties.is_empty() {
            return self.queue_with(device, bits);
        }
        let own = [queue_api::CL_QUEUE_PROPERTIES.into(), bits];
        let list = [&own[..], properties, &[0]].concat();
        let mut code = codes::CL_SUCCESS;
        let queue =
            library()?.clCreateCommandQueueWithProperties(self.0, device.0, list.as_ptr(), &raw mut code);
        match (queue, code) {
            (Some(queue), codes::CL_SUCCESS) => Ok(Queue(queue)),
            (Some(_), code) => Err(Code(code)),
            (None, _) => Err(Code(codes::DLOPEN_FUNCTION_NOT_AVAILABLE)),
        }
    }

    /// Creates a queue with property bits of the standard or of an extension.
    pub(super) fn queue_with(&self, device: DeviceHandle, bits: u64) -> Result<Queue, Code> {
        // SAFETY: the context was created for this device.
        unsafe { queue_api::create_command_queue(self.0, device.0, bits) }
            .map(Queue)
            .map_err(Code)
    }

    pub(super) fn buffer(&self, bytes: usize) -> Result<Mem, Code> {
        // SAFETY: the flags are those of a plain device buffer, which takes no host pointer.
        unsafe { memory_api::create_buffer(self.0, memory_api::CL_MEM_READ_WRITE, bytes, ptr::null_mut()) }
            .map(Mem)
            .map_err(Code)
    }

    /// Creates an image of four-component pixels over the start of `buffer`, for kernels to read.
    /// The driver keeps the buffer alive.
    pub(super) fn image(
        &self,
        buffer: &Mem,
        kind: ImageKind,
        pixel: Pixel,
        shape: ImageShape,
    ) -> Result<Mem, Code> {
        let too_large = |_| Code(codes::CL_INVALID_IMAGE_SIZE);
        let width = usize::try_from(shape.width).map_err(too_large)?;
        let height = usize::try_from(shape.height).map_err(too_large)?;
        let bytes = usize::try_from(pixel.bytes()).map_err(too_large)?;
        let format = memory_api::cl_image_format {
            image_channel_order: memory_api::CL_RGBA,
            image_channel_data_type: match pixel {
                Pixel::Halves => memory_api::CL_HALF_FLOAT,
                Pixel::Floats => memory_api::CL_FLOAT,
                Pixel::Words => memory_api::CL_UNSIGNED_INT32,
            },
        };
        let (image_type, image_height, image_row_pitch) = match kind {
            ImageKind::Image1dBuffer => (memory_api::CL_MEM_OBJECT_IMAGE1D_BUFFER, 0, 0),
            ImageKind::Image2d => (memory_api::CL_MEM_OBJECT_IMAGE2D, height, width * bytes),
        };
        let desc = memory_api::cl_image_desc {
            image_type,
            image_width: width,
            image_height,
            image_depth: 0,
            image_array_size: 0,
            image_row_pitch,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            buffer: buffer.0,
        };
        // SAFETY: format and description are complete, the buffer is live and belongs to this
        // context, and no host pointer is passed.
        unsafe {
            memory_api::create_image(
                self.0,
                memory_api::CL_MEM_READ_ONLY,
                &raw const format,
                &raw const desc,
                ptr::null_mut(),
            )
        }
        .map(Mem)
        .map_err(Code)
    }

    pub(super) fn program(&self, source: &str) -> Result<Program, Code> {
        program_api::create_program_with_source(self.0, &[source])
            .map(Program)
            .map_err(Code)
    }
}

impl Mem {
    /// Creates a sub-buffer of this buffer, which must not be one itself. The driver keeps the
    /// parent alive.
    pub(super) fn sub_buffer(&self, offset: usize, bytes: usize) -> Result<Self, Code> {
        let region = memory_api::cl_buffer_region {
            origin: offset,
            size: bytes,
        };
        // SAFETY: the creation type says that the last argument points to a region.
        unsafe {
            memory_api::create_sub_buffer(
                self.0,
                memory_api::CL_MEM_READ_WRITE,
                memory_api::CL_BUFFER_CREATE_TYPE_REGION,
                ptr::from_ref(&region).cast::<c_void>(),
            )
        }
        .map(Self)
        .map_err(Code)
    }
}

impl Program {
    pub(super) fn build(&self, device: DeviceHandle) -> Result<(), Code> {
        program_api::build_program(self.0, &[device.0], BUILD_OPTIONS, None, ptr::null_mut()).map_err(Code)
    }

    /// The compiler's log; may be empty.
    pub(super) fn build_log(&self, device: DeviceHandle) -> Result<String, Code> {
        program_api::get_program_build_data(self.0, device.0, program_api::CL_PROGRAM_BUILD_LOG)
            .map(|bytes| text(&bytes))
            .map_err(Code)
    }

    pub(super) fn kernel(&self, name: &CStr) -> Result<KernelObject, Code> {
        kernel_api::create_kernel(self.0, name)
            .map(KernelObject)
            .map_err(Code)
    }
}

/// A kernel whose arguments are all set, and the sizes of its dispatch.
pub(super) struct Ready<'a> {
    pub(super) kernel: &'a KernelObject,
    pub(super) global: [usize; 3],
    pub(super) local: [usize; 3],
}

/// New values of a recorded dispatch.
pub(super) struct Change<'a> {
    /// Index of the dispatch in the recording.
    pub(super) dispatch: u32,
    /// Index and bytes of the parameter argument.
    pub(super) param: (u32, &'a [u8]),
    pub(super) global: [usize; 3],
}

/// A driver's refusal: the call that failed, and its code.
pub(super) type Refusal = (&'static str, Code);

impl KernelObject {
    /// Largest work-group with which this kernel can run.
    pub(super) fn max_workgroup(&self, device: DeviceHandle) -> Result<u64, Code> {
        kernel_api::get_kernel_work_group_data(self.0, device.0, kernel_api::CL_KERNEL_WORK_GROUP_SIZE)
            .map(|bytes| number(&bytes))
            .map_err(Code)
    }

    /// Local memory that this kernel needs, in bytes.
    pub(super) fn local_bytes(&self, device: DeviceHandle) -> Result<u64, Code> {
        kernel_api::get_kernel_work_group_data(self.0, device.0, kernel_api::CL_KERNEL_LOCAL_MEM_SIZE)
            .map(|bytes| number(&bytes))
            .map_err(Code)
    }

    /// Number of parameters in the kernel's signature.
    pub(super) fn arg_count(&self) -> Result<u64, Code> {
        kernel_api::get_kernel_data(self.0, kernel_api::CL_KERNEL_NUM_ARGS)
            .map(|bytes| number(&bytes))
            .map_err(Code)
    }

    pub(super) fn set_mem(&mut self, index: u32, mem: &Mem) -> Result<(), Code> {
        // SAFETY: a buffer argument's value is the handle, which is live; the driver checks index
        // and size.
        unsafe {
            kernel_api::set_kernel_arg(
                self.0,
                index,
                size_of::<cl_mem>(),
                ptr::from_ref(&mem.0).cast::<c_void>(),
            )
        }
        .map_err(Code)
    }

    pub(super) fn set_bytes(&mut self, index: u32, bytes: &[u8]) -> Result<(), Code> {
        // SAFETY: the driver copies `bytes.len()` bytes from a slice of that length.
        unsafe { kernel_api::set_kernel_arg(self.0, index, bytes.len(), bytes.as_ptr().cast::<c_void>()) }
            .map_err(Code)
    }
}

impl Queue {
    pub(super) fn flush(&self) -> Result<(), Code> {
        queue_api::flush(self.0).map_err(Code)
    }

    pub(super) fn finish(&self) -> Result<(), Code> {
        queue_api::finish(self.0).map_err(Code)
    }

    /// The error if `kernel`, whose operands take `bytes`, cannot be queued over `global`
    /// work-items, with the `code` of that call. Drivers report a lack of resources for a kernel
    /// that needs too much, and for a lost device, on which waiting fails too.
    pub(super) fn refused_launch(
        &self,
        code: Code,
        kernel: &str,
        bytes: u64,
        global: [usize; 3],
    ) -> BackendError {
        let why = format!("clEnqueueNDRangeKernel over {global:?} work-items: {code}");
        match code.0 {
            _ if code.is_out_of_memory() => BackendError::OutOfMemory {
                label: format!("operands of kernel {kernel}"),
                bytes,
                why,
            },
            codes::CL_OUT_OF_RESOURCES
            | codes::CL_INVALID_WORK_GROUP_SIZE
            | codes::CL_INVALID_WORK_ITEM_SIZE => match self.finish() {
                Err(after) => after.while_waiting("clFinish"),
                Ok(()) => BackendError::Launch {
                    kernel: kernel.to_owned(),
                    why,
                },
            },
            _ => code.at(format!(
                "clEnqueueNDRangeKernel of kernel {kernel} over {global:?} work-items"
            )),
        }
    }

    /// Writes to `mem` at `offset` and waits until `bytes` has been read.
    pub(super) fn write(&self, mem: &Mem, offset: usize, bytes: &[u8]) -> Result<(), Code> {
        // SAFETY: the call blocks, so the slice outlives the driver's use of it. The pointer is
        // only read.
        unsafe {
            queue_api::enqueue_write_buffer(
                self.0,
                mem.0,
                CL_BLOCKING,
                offset,
                bytes.len(),
                bytes.as_ptr().cast_mut().cast::<c_void>(),
                0,
                ptr::null(),
            )
        }
        .map(|event| drop(Event(event)))
        .map_err(Code)
    }

    /// Reads from `mem` at `offset` and waits until `out` is full.
    pub(super) fn read(&self, mem: &Mem, offset: usize, out: &mut [u8]) -> Result<(), Code> {
        // SAFETY: the call blocks, so the slice outlives the driver's use of it.
        unsafe {
            queue_api::enqueue_read_buffer(
                self.0,
                mem.0,
                CL_BLOCKING,
                offset,
                out.len(),
                out.as_mut_ptr().cast::<c_void>(),
                0,
                ptr::null(),
            )
        }
        .map(|event| drop(Event(event)))
        .map_err(Code)
    }

    /// Queues a kernel. Returns an event only if `timed`.
    pub(super) fn dispatch(&self, ready: &Ready<'_>, timed: bool) -> Result<Option<Event>, Code> {
        let cl = library()?;
        queued(timed, |event| {
            cl.clEnqueueNDRangeKernel(
                self.0,
                ready.kernel.0,
                3,
                ptr::null(),
                ready.global.as_ptr(),
                ready.local.as_ptr(),
                0,
                ptr::null(),
                event,
            )
        })
    }

    /// Queues a copy. Returns an event only if `timed`.
    pub(super) fn copy(
        &self,
        src: (&Mem, usize),
        dst: (&Mem, usize),
        bytes: usize,
        timed: bool,
    ) -> Result<Option<Event>, Code> {
        let cl = library()?;
        queued(timed, |event| {
            cl.clEnqueueCopyBuffer(
                self.0,
                src.0.0,
                dst.0.0,
                src.1,
                dst.1,
                bytes,
                0,
                ptr::null(),
                event,
            )
        })
    }

    /// Queues a fill of `bytes` bytes, a multiple of 4. Returns an event only if `timed`.
    pub(super) fn fill(
        &self,
        mem: &Mem,
        offset: usize,
        bytes: usize,
        byte: u8,
        timed: bool,
    ) -> Result<Option<Event>, Code> {
        let pattern = [byte; 4];
        let cl = library()?;
        queued(timed, |event| {
            let start = pattern.as_ptr().cast::<c_void>();
            cl.clEnqueueFillBuffer(
                self.0,
                mem.0,
                start,
                pattern.len(),
                offset,
                bytes,
                0,
                ptr::null(),
                event,
            )
        })
    }
}

/// Queues a command through `call`, which receives the place for the event. `opencl3` creates an
/// event for every command, which is a large part of the cost of queueing on some drivers. This
/// creates one only if `timed`, and not every driver returns it.
fn queued(timed: bool, call: impl FnOnce(*mut cl_event) -> Option<cl_int>) -> Result<Option<Event>, Code> {
    let mut event = ptr::null_mut();
    done(call(if timed { &raw mut event } else { ptr::null_mut() }))?;
    Ok((!event.is_null()).then(|| Event(event)))
}

impl Event {
    fn time(&self, name: event_api::cl_profiling_info) -> Result<u64, Code> {
        event_api::get_event_profiling_data(self.0, name)
            .map(|b| number(&b))
            .map_err(Code)
    }

    /// Nanoseconds from start to end of a finished command.
    pub(super) fn nanoseconds(&self) -> Result<u64, Code> {
        Ok(self.end()?.saturating_sub(self.start()?))
    }

    /// Start of a finished command, by the device's clock.
    pub(super) fn start(&self) -> Result<u64, Code> {
        self.time(event_api::CL_PROFILING_COMMAND_START)
    }

    /// End of a finished command, by the device's clock.
    pub(super) fn end(&self) -> Result<u64, Code> {
        self.time(event_api::CL_PROFILING_COMMAND_END)
    }

    /// Waits until the command is done.
    pub(super) fn wait(&self) -> Result<(), Code> {
        event_api::wait_for_events(&[self.0]).map_err(Code)
    }

    /// Fails with the command's own error code, if it has one.
    pub(super) fn check(&self) -> Result<(), Code> {
        let bytes =
            event_api::get_event_data(self.0, event_api::CL_EVENT_COMMAND_EXECUTION_STATUS).map_err(Code)?;
        let status = bytes.first_chunk::<4>().map_or(0, |b| cl_int::from_ne_bytes(*b));
        if status < 0 { Err(Code(status)) } else { Ok(()) }
    }
}

/// Text of an information query, without the terminating zero and surrounding blanks.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

/// Unsigned number of an information query, up to 8 bytes wide; 0 if there is none.
pub(super) fn number(bytes: &[u8]) -> u64 {
    if let Some(b) = bytes.first_chunk::<8>() {
        u64::from_ne_bytes(*b)
    } else if let Some(b) = bytes.first_chunk::<4>() {
        u64::from(u32::from_ne_bytes(*b))
    } else {
        0
    }
}
