//! The library that does the work.

use crate::state;
use libloading::Library;
use std::sync::OnceLock;

/// The loader where no other library is configured.
const LOADER: &str = if cfg!(target_os = "windows") {
    "OpenCL.dll"
} else if cfg!(target_os = "macos") {
    "/System/Library/Frameworks/OpenCL.framework/OpenCL"
} else {
    "libOpenCL.so.1"
};

/// The library, loaded at the first call; `None` where there is none.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            let path = state::with(|s| s.config.library.clone()).unwrap_or_else(|| LOADER.into());
            // SAFETY: loading a driver runs its initialisers, which a program that uses OpenCL must
            // trust.
            unsafe { Library::new(path) }.ok()
        })
        .as_ref()
}

/// The function called `name`, of the type `T`.
///
/// # Safety
///
/// `T` is the type that the interface gives that function, a pointer.
pub(crate) unsafe fn function<T: Copy>(name: &str) -> Option<T> {
    // SAFETY: as the caller promises; the library is never unloaded.
    unsafe { library()?.get::<T>(name.as_bytes()).ok().map(|f| *f) }
}

/// Calls a function of the real library: `real!(clFlush(queue: Handle) -> Code)`. `None` where
/// there is no such function.
macro_rules! real {
    ($name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty) => {{
        type Function = unsafe extern "C" fn($($ty),*) -> $ret;
        // SAFETY: the type is the one that the interface gives the function, and the arguments are
        // the caller's.
        unsafe { $crate::real::function::<Function>(stringify!($name)).map(|f| f($($arg),*)) }
    }};
}
pub(crate) use real;
