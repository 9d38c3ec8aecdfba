//! The device's clock: work-groups of some kernels take longer by it than they do, so that a test
//! knows what it sees.
//!
//! All events of later commands are as much later. Recordings tell the start of their last
//! dispatch.

use crate::config::Slow;
use crate::real::real;
use crate::state::{State, after, id, refused_query, released, with};
use crate::{Code, Handle, Uint, cl};
use std::ffi::c_void;

/// `CL_PROFILING_COMMAND_END`.
const END: Uint = 0x1283;

impl State {
    /// A kernel object was dispatched over so many work-groups; `event` is its event, where it has
    /// one.
    pub(crate) fn took(&mut self, object: usize, kernel: &str, groups: u64, event: Option<usize>) {
        let source = self.program(object).map_or("", |p| p.source.as_str());
        let told = |s: &&Slow| s.without.as_ref().is_none_or(|text| !source.contains(text));
        let slow = self.config.clock.iter().filter(told).find(|s| s.kernel == kernel);
        let begun = self.ahead;
        self.ahead += slow.map_or(0, |s| s.ns.saturating_mul(groups));
        if let Some(event) = event {
            self.events.insert(event, (begun, self.ahead));
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetEventProfilingInfo(
    event: Handle,
    name: Uint,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> Code {
    let call = "clGetEventProfilingInfo";
    if let Some(code) = refused_query(call) {
        return after(call, "", code);
    }
    let code = real!(clGetEventProfilingInfo(event: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize) -> Code)
        .unwrap_or(cl::MISSING);
    if code == cl::SUCCESS && !value.is_null() && size >= size_of::<u64>() {
        let (begun, ended) = with(|s| s.events.get(&id(event)).copied().unwrap_or((s.ahead, s.ahead)));
        let time = value.cast::<u64>();
        let later = if name == END { ended } else { begun };
        // SAFETY: the call has written a time there, perhaps at any address.
        unsafe { time.write_unaligned(time.read_unaligned() + later) };
    }
    after(call, "", code)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clReleaseEvent(event: Handle) -> Code {
    with(|s| s.events.remove(&id(event)));
    let code = real!(clReleaseEvent(event: Handle) -> Code).unwrap_or(cl::MISSING);
    after("clReleaseEvent", "", released("clReleaseEvent", code))
}
