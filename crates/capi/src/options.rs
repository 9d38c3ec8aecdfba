//! Option structs and their versions.

use crate::args::null;
use crate::error::guarded;
use std::ffi::c_int;
use transformer_lite::{Error, Result};

/// An options struct of the C interface. Later versions add members only at the end, without
/// padding, so the struct of a caller compiled with an earlier header is a prefix. Missing members
/// get their defaults.
///
/// # Safety
///
/// The first member is the struct's size, a `usize`. All members are numbers, pointers and
/// functions, so whatever a caller in C writes is valid.
pub(crate) unsafe trait Options: Copy {
    /// Size of the struct in its first version.
    const FIRST: usize;

    /// The default options, with the size set.
    fn defaults() -> Self;
}

fn check_size<T: Options>(size: usize) -> Result<()> {
    if (T::FIRST..=size_of::<T>()).contains(&size) {
        return Ok(());
    }
    let what = format!(
        "is {size}, expected {} to {}: initialize the options with the function for their defaults, and use \
         the header of this library version",
        T::FIRST,
        size_of::<T>()
    );
    Err(Error::usage("size", what))
}

/// A caller's options; `None` for NULL, a usage error for a size that no version has.
///
/// # Safety
///
/// `given` is NULL or points to as many bytes as its size member says.
pub(crate) unsafe fn options_of<T: Options>(given: *const T) -> Result<Option<T>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not NULL; the size comes first.
    let size = unsafe { given.cast::<usize>().read() };
    check_size::<T>(size)?;
    let mut options = T::defaults();
    // SAFETY: both places hold `size` bytes, and every bit pattern is valid.
    unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), size) };
    Ok(Some(options))
}

/// Writes the first `size` bytes of `value`, and their number, to the caller's struct `name`.
///
/// # Safety
///
/// `target` is NULL or points to `size` bytes.
pub(crate) unsafe fn write<T: Options>(name: &str, value: T, target: *mut T, size: usize) -> Result<()> {
    if target.is_null() {
        return Err(null(name));
    }
    check_size::<T>(size)?;
    // SAFETY: both places hold `size` bytes, and each starts with the size.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), target.cast(), size);
        target.cast::<usize>().write(size);
    }
    Ok(())
}

/// Writes the first `size` bytes of the defaults to `options` and sets their size. Returns 0 or -1.
///
/// # Safety
///
/// `options` is NULL or points to `size` bytes.
pub(crate) unsafe fn write_defaults<T: Options>(options: *mut T, size: usize) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        unsafe { write("options", T::defaults(), options, size) }.map(|()| 0)
    })
}
