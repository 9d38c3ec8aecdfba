//! Compiled programs carry their source where a phone is played, so that what is known of a program
//! is known of one made of its binary too, in another process as well.

use crate::real::real;
use crate::state::{after, id, refused_query, with};
use crate::{Code, Handle, Uint, cl};
use std::ffi::c_void;

/// What such a binary begins with. The length of the source in 8 bytes and the source follow, then
/// the driver's own.
const MARK: &[u8] = b"tlite-fake-driver\n";

const PROGRAM_BINARY_SIZES: Uint = 0x1165;
const PROGRAM_BINARIES: Uint = 0x1166;

/// What stands before the driver's own bytes.
fn header(source: &str) -> Vec<u8> {
    let length = source.len() as u64;
    [MARK, &length.to_le_bytes(), source.as_bytes()].concat()
}

/// Source and the driver's own bytes of a binary that this library gave away.
pub(crate) fn split(binary: &[u8]) -> Option<(String, &[u8])> {
    let (length, rest) = binary.strip_prefix(MARK)?.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (source, own) = rest.split_at_checked(length)?;
    Some((String::from_utf8_lossy(source).into_owned(), own))
}

fn real_info(program: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize) -> Code {
    real!(clGetProgramInfo(program: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize) -> Code)
        .unwrap_or(cl::MISSING)
}

/// Bytes of the driver's own binary; 0 where it gives none away.
fn real_bytes(program: Handle) -> usize {
    let mut bytes = 0usize;
    let place = (&raw mut bytes).cast();
    match real_info(
        program,
        PROGRAM_BINARY_SIZES,
        size_of::<usize>(),
        place,
        std::ptr::null_mut(),
    ) {
        cl::SUCCESS => bytes,
        _ => 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetProgramInfo(
    program: Handle,
    name: Uint,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> Code {
    let (call, words) = ("clGetProgramInfo", format!(" name={name:#x}"));
    if let Some(code) = refused_query(call) {
        return after(call, &words, code);
    }
    let source = with(|s| {
        let known = s.programs.get(&id(program))?;
        s.config.profile.map(|_| known.source.clone())
    });
    let marked = matches!(name, PROGRAM_BINARY_SIZES | PROGRAM_BINARIES) && size >= size_of::<usize>();
    let header = source
        .filter(|_| marked && !value.is_null())
        .filter(|_| real_bytes(program) > 0)
        .map(|source| header(&source));
    let code = match (header, name) {
        (Some(header), PROGRAM_BINARY_SIZES) => {
            let code = real_info(program, name, size, value, size_ret);
            if code == cl::SUCCESS {
                // SAFETY: the real library has written the size for the one device there.
                unsafe { *value.cast::<usize>() += header.len() };
            }
            code
        }
        (Some(header), _) => {
            // SAFETY: the value is a list of one pointer, to room for as many bytes as were told,
            // or null.
            let mut place = unsafe { *value.cast::<*mut u8>() };
            if !place.is_null() {
                // SAFETY: as above, the header is a part of these bytes.
                place = unsafe {
                    std::ptr::copy_nonoverlapping(header.as_ptr(), place, header.len());
                    place.add(header.len())
                };
            }
            real_info(
                program,
                name,
                size_of::<*mut u8>(),
                (&raw mut place).cast(),
                size_ret,
            )
        }
        (None, _) => real_info(program, name, size, value, size_ret),
    };
    after(call, &words, code)
}
