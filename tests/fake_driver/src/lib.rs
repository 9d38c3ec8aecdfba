//! A fake driver for a phone's OpenCL library.
//!
//! It exports what such a library exports and passes every call on to the library of this machine,
//! handles unchanged. On the way it
//!
//! * gives the device the name, the limits and the extensions of a phone's ([`Profile`]); of
//!   extensions that change what compilers accept, only those of the real driver;
//! * implements the extensions that no driver here has: it checks the properties of contexts and
//!   queues and the rows and places of images as strictly as a driver, records and replays
//!   dispatches, and makes images in buffers;
//! * fails, delays or spoils calls, and reports longer times than commands take ([`Config`]);
//! * writes a line for each call.
//!
//! A process loads it by `OPENCL_DYLIB_PATH`, which names libraries in place of the system's;
//! [`CONFIG`] names the file with its configuration. Without one it only passes calls on.
//!
//! The log has a line for each call: its name, what matters of its arguments as `name=value`, and
//! `= code`. A fault that is injected has a line before that of its call, `inject CALL code=CODE
//! ms=MS`, with the milliseconds since 1970; so have results that are spoilt, and delays, `inject
//! CALL delay=DELAY ms=MS`.
#![expect(
    non_snake_case,
    reason = "functions of the C interface have their names there"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "functions of the C interface are described in its specification"
)]

mod binaries;
mod clock;
mod command_buffer;
mod config;
mod images;
mod info;
mod objects;
mod pass;
mod properties;
mod queue;
mod real;
mod recording;
mod state;

pub use binaries::*;
pub use clock::*;
pub use command_buffer::{DispatchArg, DispatchConfig};
pub use config::{CONFIG, Config, Delay, Fault, Profile, Slow};
pub use images::*;
pub use info::*;
pub use objects::*;
pub use pass::*;
pub use properties::*;
pub use queue::*;
pub use recording::*;
pub use state::{configure, knows_program};

use std::ffi::c_void;

/// Any object of OpenCL.
pub type Handle = *mut c_void;
/// `cl_int`: an error code, 0 for success.
pub type Code = i32;
/// `cl_uint`.
pub type Uint = u32;
/// `cl_bitfield`.
pub type Bits = u64;

/// Codes and names of the interface that are used here.
pub mod cl {
    use super::{Bits, Code, Uint};

    pub const SUCCESS: Code = 0;
    pub const DEVICE_NOT_FOUND: Code = -1;
    pub const DEVICE_NOT_AVAILABLE: Code = -2;
    pub const MEM_OBJECT_ALLOCATION_FAILURE: Code = -4;
    pub const OUT_OF_RESOURCES: Code = -5;
    pub const OUT_OF_HOST_MEMORY: Code = -6;
    pub const IMAGE_FORMAT_NOT_SUPPORTED: Code = -10;
    pub const BUILD_PROGRAM_FAILURE: Code = -11;
    pub const INVALID_VALUE: Code = -30;
    pub const INVALID_QUEUE_PROPERTIES: Code = -35;
    pub const INVALID_COMMAND_QUEUE: Code = -36;
    pub const INVALID_MEM_OBJECT: Code = -38;
    pub const INVALID_IMAGE_SIZE: Code = -40;
    pub const INVALID_KERNEL: Code = -48;
    pub const INVALID_ARG_INDEX: Code = -49;
    pub const INVALID_ARG_SIZE: Code = -51;
    pub const INVALID_KERNEL_ARGS: Code = -52;
    pub const INVALID_WORK_GROUP_SIZE: Code = -54;
    pub const INVALID_OPERATION: Code = -59;
    pub const INVALID_PROPERTY: Code = -64;
    pub const INVALID_IMAGE_DESCRIPTOR: Code = -65;
    pub const INVALID_COMMAND_BUFFER: Code = -1138;
    pub const INVALID_MUTABLE_COMMAND: Code = -1141;
    /// The real library has no such function. As `CL_INVALID_OPERATION`, which the specification
    /// allows everywhere that this is met.
    pub const MISSING: Code = INVALID_OPERATION;

    pub const CONTEXT_PLATFORM: isize = 0x1084;
    pub const CONTEXT_INTEROP_USER_SYNC: isize = 0x1085;
    pub const CONTEXT_PERF_HINT: isize = 0x40c2;
    pub const PERF_HINT_HIGH: isize = 0x40c3;
    pub const PERF_HINT_LOW: isize = 0x40c5;
    pub const CONTEXT_PRIORITY_HINT: isize = 0x40c9;
    pub const PRIORITY_HINT_HIGH: isize = 0x40ca;
    pub const PRIORITY_HINT_LOW: isize = 0x40cc;

    pub const QUEUE_PROPERTIES: Bits = 0x1093;
    pub const QUEUE_PRIORITY: Bits = 0x1096;
    pub const QUEUE_RECORDABLE: Bits = 1 << 30;

    pub const DEVICE_RECORDABLE_QUEUE_MAX_SIZE: Uint = 0x41de;

    pub const COMMAND_BUFFER_FLAGS: Bits = 0x1293;
    pub const COMMAND_BUFFER_SIMULTANEOUS_USE: Bits = 1 << 0;
    pub const COMMAND_BUFFER_MUTABLE: Bits = 1 << 1;
    pub const MUTABLE_DISPATCH_UPDATABLE_FIELDS: Bits = 0x12b1;
    pub const MUTABLE_DISPATCH_GLOBAL_OFFSET: Bits = 1 << 0;
    pub const MUTABLE_DISPATCH_GLOBAL_SIZE: Bits = 1 << 1;
    pub const MUTABLE_DISPATCH_LOCAL_SIZE: Bits = 1 << 2;
    pub const MUTABLE_DISPATCH_ARGUMENTS: Bits = 1 << 3;
    pub const MUTABLE_DISPATCH_EXEC_INFO: Bits = 1 << 4;
}
