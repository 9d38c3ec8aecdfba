//! Program binaries.

use super::{Code, Context, DeviceHandle, Program, codes, done, library, program_api};
use std::ffi::c_void;
use std::ptr;

impl Context {
    /// Creates a program from what [`Program::binary`] returned, to be built for `device`, the
    /// context's own.
    pub(in super::super) fn program_of(&self, device: DeviceHandle, binary: &[u8]) -> Result<Program, Code> {
        let (mut code, mut of_binary) = (codes::CL_SUCCESS, codes::CL_SUCCESS);
        let (length, start) = (binary.len(), binary.as_ptr());
        // One device, one length, one pointer, one status; the driver copies the bytes.
        let made = library()?.clCreateProgramWithBinary(
            self.0,
            1,
            &raw const device.0,
            &raw const length,
            &raw const start,
            &raw mut of_binary,
            &raw mut code,
        );
        done(made.map(|_| code))?;
        let program = made.map(Program).ok_or(Code(codes::CL_INVALID_BINARY))?;
        done(Some(of_binary)).map(|()| program)
    }
}

impl Program {
    /// The binary of a program built for its only device; empty if the driver returns none.
    pub(in super::super) fn binary(&self) -> Result<Vec<u8>, Code> {
        let library = library()?;
        let mut length = 0usize;
        done(library.clGetProgramInfo(
            self.0,
            program_api::CL_PROGRAM_BINARY_SIZES,
            size_of::<usize>(),
            (&raw mut length).cast::<c_void>(),
            ptr::null_mut(),
        ))?;
        let mut bytes = vec![0u8; length];
        let mut place = bytes.as_mut_ptr();
        if length > 0 {
            // The value is a list of one pointer, to a buffer of the size that the driver has
            // reported.
            done(library.clGetProgramInfo(
                self.0,
                program_api::CL_PROGRAM_BINARIES,
                size_of::<*mut u8>(),
                (&raw mut place).cast::<c_void>(),
                ptr::null_mut(),
            ))?;
        }
        Ok(bytes)
    }
}
