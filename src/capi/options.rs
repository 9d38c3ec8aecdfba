//! Option structs: their defaults, their versions, and what the library makes of them.

use super::args::{null, text_or_none};
use super::{TliteGenerateOptions, TliteLoadOptions, guarded};
use crate::backend::{ImageUse, OpenOptions, ReplayMode};
use crate::cache::{DEFAULT_LIMIT, Store};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::llm::{Activations, GenerateOptions, KvType, LoadOptions, SamplerConfig};
use crate::placement::{BackendChoice, Placement};
use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::sync::Arc;

/// An options struct of the C interface. Later versions add members only at the end, without
/// padding, so the struct of a caller compiled with an earlier header is a prefix. Missing members
/// get their defaults.
///
/// # Safety
///
/// The first member is the struct's size, a `usize`. Every bit pattern is valid: all members are
/// numbers and pointers.
pub(super) unsafe trait Options: Copy {
    /// Size of the struct in its first version.
    const FIRST: usize;

    /// The default options, with the size set.
    fn defaults() -> Self;
}

// SAFETY: as the trait requires.
unsafe impl Options for TliteLoadOptions {
    const FIRST: usize = offset_of!(Self, kernel_cache) + size_of::<*const c_char>();

    fn defaults() -> Self {
        Self {
            size: size_of::<Self>(),
            backend: std::ptr::null(),
            device: std::ptr::null(),
            context: 0,
            kv: std::ptr::null(),
            padding: 0,
            priority: std::ptr::null(),
            kernel_cache: std::ptr::null(),
            act: std::ptr::null(),
            images: std::ptr::null(),
            recording: std::ptr::null(),
            slice_ms: -1,
            limits: std::ptr::null(),
            threads: 0,
        }
    }
}

// SAFETY: as the trait requires.
unsafe impl Options for TliteGenerateOptions {
    const FIRST: usize = offset_of!(Self, template_values) + size_of::<*const c_char>();

    fn defaults() -> Self {
        let (answer, sampling) = (GenerateOptions::default(), SamplerConfig::default());
        Self {
            size: size_of::<Self>(),
            max_tokens: answer.max_tokens,
            top_k: sampling.top_k,
            seed: sampling.seed,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition_penalty: sampling.penalties.repetition,
            context_shift: 0,
            stop: std::ptr::null(),
            stop_count: 0,
            template_values: std::ptr::null(),
        }
    }
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
pub(super) unsafe fn options_of<T: Options>(given: *const T) -> Result<Option<T>> {
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

/// Writes the first `size` bytes of the defaults to `options` and sets their size. Returns 0 or -1.
///
/// # Safety
///
/// `options` is NULL or points to `size` bytes.
pub(super) unsafe fn write_defaults<T: Options>(options: *mut T, size: usize) -> c_int {
    guarded(-1, || {
        if options.is_null() {
            return Err(null("options"));
        }
        check_size::<T>(size)?;
        let defaults = T::defaults();
        // SAFETY: both places hold `size` bytes, and each starts with the size.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const defaults).cast::<u8>(), options.cast(), size);
            options.cast::<usize>().write(size);
        }
        Ok(0)
    })
}

/// The kernel cache in a folder that a caller names.
pub(super) fn kernel_cache_in(folder: &str) -> Store {
    Store::new(folder.into(), DEFAULT_LIMIT)
}

/// Converts the options to those of the Rust interface.
///
/// # Safety
///
/// As for [`tlite_model_load`].
pub(super) unsafe fn load_options(options: *const TliteLoadOptions) -> Result<LoadOptions> {
    let mut all = LoadOptions::default();
    // SAFETY: as the caller promises.
    let Some(given) = (unsafe { options_of(options) })? else {
        return Ok(all);
    };
    // SAFETY: as the caller promises.
    let (backend, device, kv, act, priority, cache, images, recording, limits) = unsafe {
        (
            text_or_none("backend", given.backend)?,
            text_or_none("device", given.device)?,
            text_or_none("kv", given.kv)?,
            text_or_none("act", given.act)?,
            text_or_none("priority", given.priority)?,
            text_or_none("kernel_cache", given.kernel_cache)?,
            text_or_none("images", given.images)?,
            text_or_none("recording", given.recording)?,
            text_or_none("limits", given.limits)?,
        )
    };
    all.place = Placement {
        backend: backend.map_or(Ok(BackendChoice::default()), str::parse)?,
        options: OpenOptions {
            priority: priority.map(str::parse).transpose()?,
            cache: cache.map(|folder| Arc::new(kernel_cache_in(folder))),
            images: images.map_or(Ok(ImageUse::default()), str::parse)?,
            recording: recording.map_or(Ok(ReplayMode::default()), str::parse)?,
            slice_ms: slice_ms(given.slice_ms)?,
            threads: (given.threads > 0).then_some(given.threads),
            ..OpenOptions::of(device)
        },
    };
    all.kv = kv.map_or(Ok(KvType::default()), str::parse)?;
    all.act = act.map_or(Ok(Activations::default()), str::parse)?;
    all.context = (given.context > 0).then_some(given.context);
    all.limits = limits.map_or(Ok(Limits::default()), str::parse)?;
    if given.padding > 0 {
        all.padding = given.padding;
    }
    Ok(all)
}

/// A time slice in milliseconds; `None` for -1.
fn slice_ms(given: isize) -> Result<Option<u32>> {
    let known = u32::try_from(given).ok().filter(|ms| *ms <= 10_000);
    if known.is_none() && given != -1 {
        let what = format!("is {given}, expected -1 to 10000");
        return Err(Error::usage("slice_ms", what));
    }
    Ok(known)
}
