//! Conversion of GGUF files and checkpoints.

use crate::args::text;
use crate::error::guarded;
use crate::progress::{Progress, TliteProgressCallback};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use transformer_lite_convert::{checkpoint, source};

/// Converts the GGUF file `source`, or the folder `source` of a Hugging Face checkpoint, to the
/// model folder `output`, which must be empty or not exist yet. Quantized weights keep their bits.
/// `on_progress` may be NULL; it is called with `user`. Returns 0, or -1 on failure, after which
/// nothing is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_convert(
    source: *const c_char,
    output: *const c_char,
    on_progress: TliteProgressCallback,
    user: *mut c_void,
) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let (from, to, progress) = unsafe {
            (
                text("source", source)?,
                text("output", output)?,
                Progress::new(on_progress, user),
            )
        };
        let mut report = |p: checkpoint::Progress<'_>| progress.report(c"bytes", p.done, p.total);
        progress.during(|| {
            let (from, to) = (Path::new(from), Path::new(to));
            source::convert("source", from, to, false, &mut |_| {}, &mut report)
        })?;
        Ok(0)
    })
}
