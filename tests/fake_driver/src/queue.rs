//! Commands: dispatches, which are recorded on queues that record, and transfers.

use crate::images;
use crate::info::max_workgroup;
use crate::real::real;
use crate::recording;
use crate::state::{after, before, id, with};
use crate::{Code, Handle, Uint, cl};
use std::ffi::c_void;

/// What a kernel with wrong results writes: halves and floats that are neither zero nor small.
const WRONG: [u8; 16] = [0x51; 16];

/// Three numbers of a dispatch; `rank` of them count.
///
/// # Safety
///
/// `values` is null or leads to `rank` numbers.
pub(crate) unsafe fn sizes(rank: Uint, values: *const usize) -> Option<Vec<usize>> {
    // SAFETY: as the caller promises.
    (!values.is_null()).then(|| unsafe { std::slice::from_raw_parts(values, rank as usize) }.to_vec())
}

fn pointer(values: Option<&Vec<usize>>) -> *const usize {
    values.map_or(std::ptr::null(), Vec::as_ptr)
}

/// A dispatch: where, and how much.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub(crate) offset: Option<Vec<usize>>,
    pub(crate) global: Vec<usize>,
    pub(crate) local: Option<Vec<usize>>,
}

impl Grid {
    /// Its work-groups; its work-items where the driver chooses their size.
    fn groups(&self) -> u64 {
        let product = |list: &[usize]| list.iter().map(|n| *n as u64).product::<u64>();
        product(&self.global) / self.local.as_deref().map_or(1, product).max(1)
    }
}

/// The events that a command waits for, and the place for its own.
#[derive(Clone, Copy)]
pub(crate) struct Events {
    pub(crate) count: Uint,
    pub(crate) wait: *const Handle,
    pub(crate) event: *mut Handle,
}

/// Dispatches a kernel object of the real library, and spoils its results where that is asked for
/// of its name.
pub(crate) fn dispatch(queue: Handle, object: Handle, name: &str, grid: &Grid, events: Events) -> Code {
    let (rank, global) = (grid.global.len() as Uint, grid.global.as_ptr());
    let (offset, local) = (pointer(grid.offset.as_ref()), pointer(grid.local.as_ref()));
    let Events { count, wait, event } = events;
    if let Err(code) = images::refresh(queue, object) {
        return code;
    }
    let code = real!(clEnqueueNDRangeKernel(queue: Handle, object: Handle, rank: Uint, offset: *const usize, global: *const usize, local: *const usize, count: Uint, wait: *const Handle, event: *mut Handle) -> Code)
        .unwrap_or(cl::MISSING);
    if code == cl::SUCCESS {
        // SAFETY: the caller's place for the event, which the call has set.
        let made = (!event.is_null()).then(|| id(unsafe { *event }));
        with(|s| s.took(id(object), name, grid.groups(), made));
    }
    if code != cl::SUCCESS || !with(|s| s.is_spoilt(id(object), name)) {
        return code;
    }
    let Some((buffer, bytes)) = with(|s| s.result(id(object))) else {
        return code;
    };
    let buffer = buffer as Handle;
    let (pattern, unit) = (WRONG.as_ptr().cast::<c_void>(), 4usize);
    let bytes = (bytes as usize).min(WRONG.len()) / unit * unit;
    let (start, none, count, event) = (0usize, std::ptr::null::<Handle>(), 0, std::ptr::null_mut());
    let code = real!(clEnqueueFillBuffer(queue: Handle, buffer: Handle, pattern: *const c_void, unit: usize, start: usize, bytes: usize, count: Uint, none: *const Handle, event: *mut Handle) -> Code)
        .unwrap_or(cl::MISSING);
    with(|s| s.log_injected(&format!("wrong results kernel={name} bytes={bytes}")));
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clEnqueueNDRangeKernel(
    queue: Handle,
    kernel: Handle,
    rank: Uint,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    count: Uint,
    wait: *const Handle,
    event: *mut Handle,
) -> Code {
    let call = "clEnqueueNDRangeKernel";
    let name = with(|s| s.kernels.get(&id(kernel)).map(|k| k.name.clone())).unwrap_or_default();
    // SAFETY: the caller's sizes.
    let (offset, global, local) = unsafe { (sizes(rank, offset), sizes(rank, global), sizes(rank, local)) };
    let records = with(|s| s.recordable.get(&id(queue)).copied());
    let events = Events { count, wait, event };
    let group = local.as_ref().map_or(1, |l| l.iter().product::<usize>());
    let words = format!(
        " kernel={name} global={:?} local={:?} recorded={}",
        global.as_deref().unwrap_or_default(),
        local.as_deref().unwrap_or_default(),
        records.is_some()
    )
    .replace(", ", ",");
    let code = match (before(call, Some(&name)), global) {
        (Some(code), _) => code,
        (None, None) => cl::INVALID_VALUE,
        (None, Some(_)) if group > max_workgroup() => cl::INVALID_WORK_GROUP_SIZE,
        (None, Some(global)) => {
            let grid = Grid {
                offset,
                global,
                local,
            };
            match records {
                None => dispatch(queue, kernel, &name, &grid, events),
                Some(open) => recording::add(open, kernel, grid, events),
            }
        }
    };
    after(call, &words, code)
}

/// The code for a command that recordable queues do not take, on one.
pub(crate) fn no_dispatch(queue: Handle) -> Option<Code> {
    with(|s| s.recordable.contains_key(&id(queue))).then_some(cl::INVALID_OPERATION)
}
