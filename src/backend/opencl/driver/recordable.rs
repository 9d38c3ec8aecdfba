//! `cl_qcom_recordable_queues` of Adreno, as declared in Qualcomm's header.
//!
//! Dispatches put into a recordable queue are recorded instead of run. A recording is queued as a
//! whole, with values that replace recorded ones. The header does not say whether these
//! replacements persist, so every call passes all values that have ever differed.

use super::super::device::{function, library_function, listed_version};
use super::{Change, Code, Context, DeviceHandle, Event, Queue, Ready, Refusal, done, number, queued};
use opencl3::error_codes as codes;
use opencl3::types::{cl_command_queue, cl_event, cl_int, cl_uint};
use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

const NAME: &str = "cl_qcom_recordable_queues";
/// `CL_QUEUE_RECORDABLE_QCOM`.
const RECORDABLE: u64 = 1 << 30;
/// `CL_DEVICE_RECORDABLE_QUEUE_MAX_SIZE`: maximum number of dispatches in a recording.
const MAX_SIZE: u32 = 0x41de;

type Raw = *mut c_void;

/// `cl_array_arg_qcom`.
#[repr(C)]
struct ArrayArg {
    dispatch_index: cl_uint,
    arg_index: cl_uint,
    arg_size: usize,
    arg_value: *const c_void,
}

/// `cl_offset_qcom`.
#[repr(C)]
struct Offset {
    dispatch_index: cl_uint,
    offsets: [usize; 3],
}

/// `cl_workgroup_qcom`.
#[repr(C)]
struct Workgroup {
    dispatch_index: cl_uint,
    workgroup_size: *const usize,
}

type New = unsafe extern "C" fn(cl_command_queue, *mut cl_int) -> Raw;
type End = unsafe extern "C" fn(Raw) -> cl_int;
type Enqueue = unsafe extern "C" fn(
    cl_command_queue,
    Raw,
    usize,
    *const ArrayArg,
    usize,
    *const Offset,
    usize,
    *const Workgroup,
    usize,
    *const Workgroup,
    cl_uint,
    *const cl_event,
    *mut cl_event,
) -> cl_int;

/// The extension of one device, with the queue that records.
#[derive(Debug)]
pub(crate) struct RecordableQueue {
    queue: Queue,
    new: New,
    end: End,
    release: End,
    enqueue: Enqueue,
    most: usize,
}

/// Drivers hide these functions from the standard query, so the library's symbols are searched too.
fn address(device: DeviceHandle, name: &CStr) -> Option<NonNull<c_void>> {
    function(device, name).or_else(|| library_function(name))
}

impl RecordableQueue {
    /// The extension of `device`; `None` if it is not listed, an error if it is listed but not
    /// usable.
    pub(crate) fn of(context: &Context, device: DeviceHandle) -> Result<Option<Arc<Self>>, String> {
        if listed_version(device, NAME).is_none() {
            return Ok(None);
        }
        let new = load!(address, device, c"clNewRecordingQCOM", New);
        let end = load!(address, device, c"clEndRecordingQCOM", End);
        let release = load!(address, device, c"clReleaseRecordingQCOM", End);
        let enqueue = load!(address, device, c"clEnqueueRecordingQCOM", Enqueue);
        let most = device.info(MAX_SIZE).map_or(0, |bytes| number(&bytes));
        let queue = context
            .queue_with(device, RECORDABLE)
            .map_err(|code| format!("clCreateCommandQueue with CL_QUEUE_RECORDABLE_QCOM: {code}"))?;
        Ok(Some(Arc::new(Self {
            queue,
            new,
            end,
            release,
            enqueue,
            most: match usize::try_from(most) {
                Ok(0) | Err(_) => usize::MAX,
                Ok(most) => most,
            },
        })))
    }

    /// Maximum number of dispatches in a recording.
    pub(crate) fn most(&self) -> usize {
        self.most
    }
}

#[derive(Debug)]
pub(crate) struct QueueRecording {
    raw: Raw,
    api: Arc<RecordableQueue>,
}

// SAFETY: OpenCL objects are not bound to a thread; a recording is not changed after creation.
unsafe impl Send for QueueRecording {}
// SAFETY: as above.
unsafe impl Sync for QueueRecording {}

impl Drop for QueueRecording {
    fn drop(&mut self) {
        // SAFETY: this value owns one reference to a live object and releases it here.
        let code = unsafe { (self.api.release)(self.raw) };
        if code != codes::CL_SUCCESS {
            log::warn!("opencl: error while releasing a recording: {}", Code(code));
        }
    }
}

impl QueueRecording {
    /// Records dispatches.
    pub(crate) fn new(api: &Arc<RecordableQueue>, dispatches: &[Ready<'_>]) -> Result<Self, Refusal> {
        let begun = |code| ("clNewRecordingQCOM", code);
        let mut code = codes::CL_SUCCESS;
        // SAFETY: the queue is live and was created for recording.
        let raw = unsafe { (api.new)(api.queue.0, &raw mut code) };
        done(Some(code)).map_err(begun)?;
        if raw.is_null() {
            return Err(begun(Code(codes::CL_INVALID_OPERATION)));
        }
        let recording = Self {
            raw,
            api: Arc::clone(api),
        };
        let mut all = dispatches.iter();
        let worked = all.try_for_each(|ready| api.queue.dispatch(ready, false).map(drop));
        // Also after a failure, since a queue has one recording at a time.
        // SAFETY: the recording is live and was begun above.
        let ended = done(Some(unsafe { (api.end)(raw) }));
        worked.map_err(|code| ("clEnqueueNDRangeKernel", code))?;
        ended.map_err(|code| ("clEndRecordingQCOM", code))?;
        Ok(recording)
    }

    /// Queues the recording with `changes`. Returns an event only if `timed`.
    pub(crate) fn enqueue(
        &self,
        queue: &Queue,
        changes: &[Change<'_>],
        timed: bool,
    ) -> Result<Option<Event>, Code> {
        let args: Vec<ArrayArg> = changes
            .iter()
            .map(|c| ArrayArg {
                dispatch_index: c.dispatch,
                arg_index: c.param.0,
                arg_size: c.param.1.len(),
                arg_value: c.param.1.as_ptr().cast(),
            })
            .collect();
        let sizes: Vec<Workgroup> = changes
            .iter()
            .map(|c| Workgroup {
                dispatch_index: c.dispatch,
                workgroup_size: c.global.as_ptr(),
            })
            .collect();
        let list = |empty: bool| if empty { ptr::null() } else { args.as_ptr() };
        let groups = |empty: bool| if empty { ptr::null() } else { sizes.as_ptr() };
        queued(timed, |event| {
            // SAFETY: recording and queue are live; the lists have the announced lengths, and what
            // they point to outlives the call.
            Some(unsafe {
                (self.api.enqueue)(
                    queue.0,
                    self.raw,
                    args.len(),
                    list(args.is_empty()),
                    0,
                    ptr::null(),
                    sizes.len(),
                    groups(sizes.is_empty()),
                    0,
                    ptr::null(),
                    0,
                    ptr::null(),
                    event,
                )
            })
        })
    }
}
