//! Models: loading and its options.

use crate::args::{text, text_or_none};
use crate::error::guarded;
use crate::options::{Options, options_of, write_defaults};
use crate::progress::{Progress, TliteProgressCallback};
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;
use transformer_lite::options::{ImageUse, ReplayMode};
use transformer_lite::{
    Activations, BackendChoice, DEFAULT_CACHE_LIMIT, Error, KernelCache, KvType, Limits, LoadOptions, Model,
    OpenOptions, Placement, Result,
};

/// A loaded model: weights, compiled kernels, tokenizer and chat template. Sessions on any threads
/// may share it.
pub struct TliteModel(pub(crate) Model);

/// Where and how to load a model. Initialize it with `tlite_load_defaults`. Strings are UTF-8 and
/// are read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TliteLoadOptions {
    /// Size of this struct in bytes, as the program was compiled with it.
    pub size: usize,
    /// "auto", "opencl", "wgpu", "cpu" or "reference". NULL means "auto": a GPU if there is one,
    /// else "cpu".
    pub backend: *const c_char,
    /// Device name, or text that the name contains. NULL selects the best device.
    pub device: *const c_char,
    /// Context length in tokens. 0 selects the model's own length, at most 4096.
    pub context: usize,
    /// KV cache type on a device: "f16" or "q8". NULL means "f16".
    pub kv: *const c_char,
    /// Decode lengths are padded to multiples of this, 32 to 256. 0 means 64.
    pub padding: usize,
    /// GPU scheduling priority: "low", "normal" or "high". NULL means "low" on GPUs that share
    /// memory with the host, otherwise the driver's default.
    pub priority: *const c_char,
    /// Folder that caches compiled kernels, at most 4 GB. A folder that another user owns or can
    /// write to is not used, because drivers execute its contents. NULL disables the cache.
    pub kernel_cache: *const c_char,
    /// Activation precision of matmuls with 4-bit and 8-bit E0M weights on a device: "auto",
    /// "float", "int16" or "int8". NULL means "auto", which keeps the answers of the float model:
    /// "int16" on "cpu", else "float". "int8" is faster on some CPUs, and its answers can differ.
    pub act: *const c_char,
    /// How matmuls read activations on an OpenCL device: "1d" or "2d" (through images), "off" (from
    /// buffers) or "auto". NULL means "auto": through images on Adreno.
    pub images: *const c_char,
    /// How repeated commands, such as decode steps, are submitted to an OpenCL device: "auto",
    /// "command-buffer", "qcom" or "off". NULL means "auto": recorded on GPUs whose driver supports
    /// it.
    pub recording: *const c_char,
    /// Longest time in milliseconds that queued work may occupy an OpenCL device before other work
    /// gets a turn, at most 10000. 0 means no limit. -1 means 8 on GPUs that share memory with the
    /// host, otherwise no limit.
    pub slice_ms: isize,
    /// What the model may consume, as a list such as "memory=4G,time=30s": memory (host memory of
    /// tensors), time (of loading, and of each token or part of a prompt), iterations (of all loops
    /// in a run), tokenizer (bytes of tokenizer.json), template-steps and template-output (of the
    /// chat template), files (map, or read to copy the files into memory). NULL or a name left out
    /// means the default: half of the machine's memory, no time limit, bounds that no usual model
    /// reaches, and mapped files.
    pub limits: *const c_char,
    /// Threads of the backend "cpu", at most the cores that the process may use. 0 means all.
    pub threads: usize,
    /// Receives progress of loading: kernels that are ready. It is called on the calling thread.
    /// NULL for none.
    pub on_progress: TliteProgressCallback,
    /// Passed to `on_progress`.
    pub progress_user: *mut c_void,
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
            on_progress: None,
            progress_user: std::ptr::null_mut(),
        }
    }
}

/// The kernel cache in a folder that a caller names.
pub(crate) fn kernel_cache_in(folder: &str) -> KernelCache {
    KernelCache::new(folder.into(), DEFAULT_CACHE_LIMIT)
}

/// Where to run, and what may be consumed, of valid options.
///
/// # Safety
///
/// As for [`tlite_model_load`].
unsafe fn place_and_limits(given: &TliteLoadOptions) -> Result<(Placement, Limits)> {
    // SAFETY: as the caller promises.
    let (backend, device, priority, cache, images, recording, limits) = unsafe {
        (
            text_or_none("backend", given.backend)?,
            text_or_none("device", given.device)?,
            text_or_none("priority", given.priority)?,
            text_or_none("kernel_cache", given.kernel_cache)?,
            text_or_none("images", given.images)?,
            text_or_none("recording", given.recording)?,
            text_or_none("limits", given.limits)?,
        )
    };
    let place = Placement {
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
    Ok((place, limits.map_or(Ok(Limits::default()), str::parse)?))
}

/// Where to run, and what may be consumed, for models of any kind; an error for options that only
/// language models have.
///
/// # Safety
///
/// As for [`tlite_model_load`].
pub(crate) unsafe fn open_options(options: *const TliteLoadOptions) -> Result<(Placement, Limits)> {
    // SAFETY: as the caller promises.
    let given = unsafe { options_of(options) }?.unwrap_or_else(TliteLoadOptions::defaults);
    let others = [
        ("context", given.context > 0),
        ("kv", !given.kv.is_null()),
        ("padding", given.padding > 0),
        ("act", !given.act.is_null()),
        ("on_progress", given.on_progress.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, given)| *given) {
        let what = "is for language models; leave it at its default to load a model of any kind";
        return Err(Error::usage(*name, what));
    }
    // SAFETY: as the caller promises.
    unsafe { place_and_limits(&given) }
}

/// Converts the options to those of the Rust interface, with the progress that the caller wants.
///
/// # Safety
///
/// As for [`tlite_model_load`].
pub(crate) unsafe fn load_options(options: *const TliteLoadOptions) -> Result<(LoadOptions, Progress)> {
    // SAFETY: as the caller promises.
    let given = unsafe { options_of(options) }?.unwrap_or_else(TliteLoadOptions::defaults);
    // SAFETY: as the caller promises.
    let (kv, act, (place, limits), progress) = unsafe {
        (
            text_or_none("kv", given.kv)?,
            text_or_none("act", given.act)?,
            place_and_limits(&given)?,
            Progress::new(given.on_progress, given.progress_user),
        )
    };
    let mut all = LoadOptions {
        place,
        kv: kv.map_or(Ok(KvType::default()), str::parse)?,
        act: act.map_or(Ok(Activations::default()), str::parse)?,
        context: (given.context > 0).then_some(given.context),
        limits,
        ..LoadOptions::default()
    };
    if given.padding > 0 {
        all.padding = given.padding;
    }
    Ok((all, progress))
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

/// Writes the defaults to `options`; `size` is `sizeof *options`. The defaults select the best
/// device and the model's own settings. Returns 0, or -1 if the library does not know this size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_load_defaults(options: *mut TliteLoadOptions, size: usize) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { write_defaults(options, size) }
}

/// Loads the model folder `path`: `model.onnx`, `tokenizer.json` and the configuration files that
/// exporters write next to them. `options` may be NULL. Returns a model, to be freed with
/// `tlite_model_free`, or NULL on failure.
///
/// The files of the model stay mapped into memory until it and its sessions are freed, unless
/// `limits` contains "files=read". Do not change or truncate them meanwhile: that changes the
/// weights, or ends the process with a bus error (SIGBUS). To update a model, write a new file and
/// rename it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_model_load(
    path: *const c_char,
    options: *const TliteLoadOptions,
) -> *mut TliteModel {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let (path, (options, progress)) = unsafe { (text("path", path)?, load_options(options)?) };
        let mut report = |ready, all| progress.report(c"kernels", ready as u64, all as u64);
        let model = progress.during(|| Model::load_with(path, &options, &mut report))?;
        Ok(Box::into_raw(Box::new(TliteModel(model))))
    })
}

/// Frees a model. Its sessions keep what they need of it. NULL is allowed.
///
/// `model` is NULL or from `tlite_model_load`, is not freed yet, and no other call is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_model_free(model: *mut TliteModel) {
    guarded((), || {
        if !model.is_null() {
            // SAFETY: the pointer is from `Box::into_raw` and is returned once.
            drop(unsafe { Box::from_raw(model) });
        }
        Ok(())
    });
}
