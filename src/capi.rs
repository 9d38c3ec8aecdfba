//! The C interface, whose header is `include/tlite.h`.
//!
//! Every function may be called from any thread, takes NULL where a pointer is expected without harm, and lets no panic out. What
//! fails says so by what it returns, and leaves a message and a code for [`tlite_last_error`] and [`tlite_last_error_code`]. They and
//! who is told lines of the log ([`tlite_set_log`]) are the only state outside of what callers hold.
//!
//! Structs of options begin with their size, so that they can grow at their end.
#![expect(
    clippy::missing_safety_doc,
    reason = "the comments become those of the header, which says in its head and in plain sentences what callers promise"
)]

mod listener;

use crate::backend::{ImageUse, OpenOptions, RecordingWay};
use crate::cache::{DEFAULT_LIMIT, Store};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::llm::sampler::Penalties;
use crate::llm::template::Values;
use crate::llm::{
    Activations, Cancel, Conversation, Finish, GenerateOptions, KvType, LoadOptions, Message, Model, Piece,
    Sampler, SamplerConfig, StopStrings,
};
use crate::placement::{BackendChoice, Placement};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, TryLockError};

/// A loaded model: weights, compiled kernels, tokenizer and chat template. Any number of sessions may share it, in any threads.
pub struct TliteModel(Model);

/// A sequence of tokens in a cache of its own. One call at a time generates with it; only `tlite_cancel` and `tlite_cancel_clear` may be called
/// meanwhile.
pub struct TliteSession {
    conversation: Mutex<Conversation>,
    cancel: Cancel,
}

/// Where and how a model is loaded. Begin with what `tlite_load_defaults` writes. Strings are UTF-8 and read during the call only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TliteLoadOptions {
    /// The size of this struct, in bytes, as the program was compiled with it.
    pub size: usize,
    /// "auto", "opencl", "wgpu" or "host"; NULL is "auto", the best device there is.
    pub backend: *const c_char,
    /// The device of this name, else the one whose name or driver contains this text; NULL is the best one.
    pub device: *const c_char,
    /// Tokens that the cache of a session holds; 0 is what the model was made for, at most 4096.
    pub context: usize,
    /// Storage of the cache on a device, "f16" or "q8"; NULL is "f16".
    pub kv: *const c_char,
    /// Lengths of decoding are padded to multiples of this, 32 to 256; 0 is 64.
    pub padding: usize,
    /// Whose work the device does first, "low", "normal" or "high"; NULL is low on GPUs that share the host's memory, else the driver's.
    pub priority: *const c_char,
    /// Folder where compiled kernels are kept for the next start, 4 GB of them at most. One of somebody else, or that others can write, is not
    /// used, as drivers run what is in it. NULL keeps none.
    pub kernel_cache: *const c_char,
    /// Activation precision of matmuls with E0M weights of 4 and 8 bits on a device: "auto", "float" or "int8".
    /// NULL is "auto", which keeps the answers of the float model ("float" on every backend). "int8" is faster on
    /// some CPUs, and its answers can differ.
    pub act: *const c_char,
    /// How products of matrices read activations on an OpenCL device, "auto", "1d" or "2d" through images of one or two axes, or "off"; NULL is
    /// "auto", through images on Adreno.
    pub images: *const c_char,
    /// How commands that repeat reach an OpenCL device, "auto", "persistent", "command-buffer", "qcom" or "off"; NULL is "auto", recorded on
    /// GPUs whose driver can, and in persistent kernels on CPUs.
    pub recording: *const c_char,
    /// Milliseconds that queued work may hold an OpenCL device before other work gets its turn, 10000 at most; 0 is no limit, and -1 is 8 on GPUs
    /// that share the host's memory, else 0.
    pub slice_ms: isize,
}

/// How tokens are chosen, and when an answer ends. Begin with what `tlite_generate_defaults` writes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TliteGenerateOptions {
    /// The size of this struct, in bytes, as the program was compiled with it.
    pub size: usize,
    /// Largest number of tokens to generate; 0 generates none.
    pub max_tokens: usize,
    /// Choose among so many of the most likely tokens; 0 is off.
    pub top_k: usize,
    /// Start of the random sequence; equal seeds give equal texts.
    pub seed: u64,
    /// 0 takes the most likely token always; higher values take others more often.
    pub temperature: f32,
    /// Choose among the fewest tokens whose probabilities sum to this; 1 is off.
    pub top_p: f32,
    /// Choose among the tokens at least this many times as likely as the most likely one; 0 is off.
    pub min_p: f32,
    /// Divide logits of tokens that occurred lately by this; 1 is off.
    pub repetition_penalty: f32,
    /// Not 0: a full context slides. A conversation forgets its oldest turns, but for the system's messages; a text goes on with the prompt
    /// and the latter half of what followed it.
    pub context_shift: c_int,
    /// `stop_count` texts in UTF-8 that end the answer and are not part of it; none may be empty. NULL where there are none.
    pub stop: *const *const c_char,
    /// How many texts `stop` has.
    pub stop_count: usize,
    /// A JSON object in UTF-8 with what the chat template is given beside the messages, such as `{"tools": [...], "enable_thinking": false}`; or
    /// NULL.
    pub template_values: *const c_char,
}

/// A message of a conversation.
#[repr(C)]
pub struct TliteMessage {
    /// "system", "user", "assistant" or "tool".
    pub role: *const c_char,
    /// What was said, in UTF-8.
    pub content: *const c_char,
    /// A JSON object in UTF-8 with what the chat template knows beside these, such as `tool_calls`, `tool_call_id` or `name`; or NULL. A `content`
    /// in it, which may be null, takes the place of that above.
    pub extra: *const c_char,
}

/// Why an answer ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TliteFinish {
    /// It failed; `tlite_last_error` says why. Text that came before is valid.
    Error = -1,
    /// The model ended it.
    EndOfText = 0,
    /// A stop string came up.
    StopString = 1,
    /// The largest number of tokens was generated.
    MaxTokens = 2,
    /// The cache has no room for another token.
    ContextFull = 3,
    /// `tlite_cancel` was called.
    Cancelled = 4,
    /// The callback asked for it.
    Callback = 5,
}

/// What kind of failure an error is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TliteError {
    /// No call of this thread has failed.
    #[default]
    None = 0,
    /// Anything without a code of its own.
    Other = 1,
    /// An argument or a member of options has a value that cannot be used.
    Usage = 2,
    /// A prompt or conversation has more tokens than the context holds.
    ContextExceeded = 3,
    /// A conversation for a model that has no chat template.
    NoTemplate = 4,
    /// The chat template refuses the messages.
    TemplateRefused = 5,
    /// A token that the model does not have.
    TokenOutOfRange = 6,
    /// The file of a prompt cache is damaged, or is none.
    PromptCacheDamaged = 7,
    /// A prompt cache is that of another model, or of another storage of the cache.
    PromptCacheMismatch = 8,
    /// No driver, or no device of that name.
    NoDevice = 9,
    /// A device or the host has too little memory.
    OutOfMemory = 10,
    /// The device is gone; models and sessions on it are of no use any more.
    DeviceLost = 11,
    /// The operating system refused an operation on a file.
    Io = 12,
    /// A file's content is not what its format demands.
    InvalidFile = 13,
    /// The work was interrupted.
    Interrupted = 14,
    /// A mistake in the library.
    Internal = 15,
}

impl From<ErrorKind> for TliteError {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Usage => Self::Usage,
            ErrorKind::ContextExceeded => Self::ContextExceeded,
            ErrorKind::NoTemplate => Self::NoTemplate,
            ErrorKind::TemplateRefused => Self::TemplateRefused,
            ErrorKind::TokenOutOfRange => Self::TokenOutOfRange,
            ErrorKind::PromptCacheDamaged => Self::PromptCacheDamaged,
            ErrorKind::PromptCacheMismatch => Self::PromptCacheMismatch,
            ErrorKind::NoDevice => Self::NoDevice,
            ErrorKind::OutOfMemory => Self::OutOfMemory,
            ErrorKind::DeviceLost => Self::DeviceLost,
            ErrorKind::Io => Self::Io,
            ErrorKind::InvalidFile => Self::InvalidFile,
            ErrorKind::Interrupted => Self::Interrupted,
            ErrorKind::Other => Self::Other,
        }
    }
}

/// Takes a piece of text: `length` bytes of UTF-8 in whole characters, and a 0 behind them; a text may hold zero bytes, too. `text` is valid
/// during the call only. Returns 0 to go on and anything else to end the answer. It must return normally: no `longjmp`, no exception. It may
/// not generate with, clear or free the session.
pub type TliteCallback =
    Option<unsafe extern "C" fn(text: *const c_char, length: usize, user: *mut c_void) -> c_int>;

/// How much a line of the log matters.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TliteLogLevel {
    /// Something failed that no call returns as its own failure.
    Error = 1,
    /// Something is done otherwise than asked for or than it could be: notes of loading, refusals of drivers.
    Warning = 2,
    /// How much memory is taken, and the like.
    Info = 3,
}

/// Takes a line of the log, in UTF-8 and valid during the call only. It is called from any thread, from several at a time, must return
/// normally, and may call no function of this library.
pub type TliteLogCallback =
    Option<unsafe extern "C" fn(level: TliteLogLevel, text: *const c_char, user: *mut c_void)>;

thread_local! {
    static LAST_ERROR: RefCell<(TliteError, CString)> = RefCell::default();
}

/// A text for C, which ends at a zero byte in it.
fn c_text(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().take_while(|b| *b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

fn remember(code: TliteError, message: &str) {
    let message = c_text(message);
    LAST_ERROR.with(|last| last.replace((code, message)));
}

fn panicked(payload: &(dyn Any + Send)) -> String {
    let words = payload.downcast_ref::<&str>().copied();
    let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("internal error: {}", words.unwrap_or("a panic without words"))
}

/// What `work` returns; `failed` after an error or a panic, whose message is then remembered.
fn guarded<T>(failed: T, work: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(e)) => {
            remember(e.kind().into(), &e.chain());
            failed
        }
        Err(payload) => {
            remember(TliteError::Internal, &panicked(payload.as_ref()));
            failed
        }
    }
}

fn null(what: &str) -> Error {
    Error::usage(what, "is NULL")
}

/// The object behind a pointer of the caller.
///
/// # Safety
///
/// `pointer` is NULL or points to a live object, which is not changed while the result lives.
unsafe fn object<'a, T>(what: &str, pointer: *const T) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// The text behind a pointer of the caller. Errors for NULL and for what is not UTF-8.
///
/// # Safety
///
/// `pointer` is NULL or points to a string that ends with a 0 and is not changed while the result lives.
unsafe fn text<'a>(what: &str, pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: it is not NULL, the rest is as the caller promises.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes
        .to_str()
        .map_err(|e| Error::usage(what, format!("is not UTF-8 at byte {}", e.valid_up_to())))
}

/// As [`text`], `None` for NULL.
///
/// # Safety
///
/// As for [`text`].
unsafe fn text_or_none<'a>(what: &str, pointer: *const c_char) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    unsafe { text(what, pointer) }.map(Some)
}

/// The array behind a pointer of the caller. NULL is an empty one, and an error where elements are promised.
///
/// # Safety
///
/// `pointer` is NULL or points to `count` elements that are not changed while the result lives.
unsafe fn array<'a, T>(what: &str, pointer: *const T, count: usize) -> Result<&'a [T]> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: it is not NULL, the rest is as the caller promises.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// The version of the library, as in "0.1.0". It is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// What went wrong in the last call of this thread that failed, in UTF-8; empty before any did. It is valid until the next call of this
/// thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_last_error() -> *const c_char {
    // A thread that is about to end has none any more.
    let message = LAST_ERROR.try_with(|last| last.try_borrow().map(|l| l.1.as_ptr()));
    match message {
        Ok(Ok(pointer)) => pointer,
        _ => c"".as_ptr(),
    }
}

/// What kind of failure `tlite_last_error` tells of; `TLITE_ERROR_NONE` before any. Later versions may have more codes.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_last_error_code() -> TliteError {
    let code = LAST_ERROR.try_with(|last| last.try_borrow().map(|l| l.0));
    code.map_or(TliteError::None, |code| code.unwrap_or_default())
}

/// Hands what the library says beside its results to `callback` with `user`, from now on and for all threads: notes of loading a model, which
/// tell what is done otherwise than the options ask for, and warnings. NULL ends that. When this returns, no call of the callback before runs any
/// more. Returns 0, or -1 where the program has a log of its own in Rust, which gets the lines.
///
/// `callback` may be called with `user` until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_set_log(callback: TliteLogCallback, user: *mut c_void) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let listener = callback.map(|callback| unsafe { listener::Listener::new(callback, user) });
        listener::set(listener).map(|()| 0)
    })
}

/// Options of callers. A later version of a struct has more members at its end, and none in padding, so that what a caller compiled with an
/// earlier header gives is a prefix; the rest are the defaults.
///
/// # Safety
///
/// The first member is the struct's size, a `usize`. Any bytes are a value: all members are numbers and pointers.
unsafe trait Options: Copy {
    /// Size of the first version.
    const FIRST: usize;

    /// What is taken unless the caller says otherwise. The first member is the struct's size.
    fn defaults() -> Self;
}

// SAFETY: as the trait demands.
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
        }
    }
}

// SAFETY: as the trait demands.
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
        "is {size}, expected {} to {}: the options are not set by their defaults, or are those of a later version",
        T::FIRST,
        size_of::<T>()
    );
    Err(Error::usage("size", what))
}

/// The options of a caller; `None` for NULL. A usage error for a size that no version has.
///
/// # Safety
///
/// `given` is NULL or points to as many bytes as it says itself.
unsafe fn options_of<T: Options>(given: *const T) -> Result<Option<T>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not NULL; the size comes first.
    let size = unsafe { given.cast::<usize>().read() };
    check_size::<T>(size)?;
    let mut options = T::defaults();
    // SAFETY: there are `size` bytes at both places, which any bytes may fill.
    unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), size) };
    Ok(Some(options))
}

/// Writes the first `size` bytes of the defaults to `options`, and `size` as their size. Returns 0, or -1.
///
/// # Safety
///
/// `options` is NULL or points to `size` bytes.
unsafe fn write_defaults<T: Options>(options: *mut T, size: usize) -> c_int {
    guarded(-1, || {
        if options.is_null() {
            return Err(null("options"));
        }
        check_size::<T>(size)?;
        let defaults = T::defaults();
        // SAFETY: there are `size` bytes at both places, the size at the start of each.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const defaults).cast::<u8>(), options.cast(), size);
            options.cast::<usize>().write(size);
        }
        Ok(0)
    })
}

/// Writes the defaults to `options`, whose `size` is `sizeof *options`: the best device, and what the model was made for. Returns 0, or -1 for
/// a size that this library does not know.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_load_defaults(options: *mut TliteLoadOptions, size: usize) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { write_defaults(options, size) }
}

/// Loads the model in the folder `path`: `model.onnx`, `tokenizer.json` and the configuration files that exporters write beside them.
/// `options` may be NULL. Returns a model to be freed by `tlite_model_free`, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_model_load(
    path: *const c_char,
    options: *const TliteLoadOptions,
) -> *mut TliteModel {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let (path, options) = unsafe { (text("path", path)?, load_options(options)?) };
        let model = Model::load(path, &options)?;
        Ok(Box::into_raw(Box::new(TliteModel(model))))
    })
}

/// The options in the library's form.
///
/// # Safety
///
/// As for [`tlite_model_load`].
unsafe fn load_options(options: *const TliteLoadOptions) -> Result<LoadOptions> {
    let mut all = LoadOptions::default();
    // SAFETY: as the caller promises.
    let Some(given) = (unsafe { options_of(options) })? else {
        return Ok(all);
    };
    // SAFETY: as the caller promises.
    let (backend, device, kv, act, priority, cache, images, recording) = unsafe {
        (
            text_or_none("backend", given.backend)?,
            text_or_none("device", given.device)?,
            text_or_none("kv", given.kv)?,
            text_or_none("act", given.act)?,
            text_or_none("priority", given.priority)?,
            text_or_none("kernel_cache", given.kernel_cache)?,
            text_or_none("images", given.images)?,
            text_or_none("recording", given.recording)?,
        )
    };
    all.place = Placement {
        backend: backend.map_or(Ok(BackendChoice::default()), str::parse)?,
        options: OpenOptions {
            priority: priority.map(str::parse).transpose()?,
            cache: cache.map(|folder| Arc::new(Store::new(folder.into(), DEFAULT_LIMIT))),
            images: images.map_or(Ok(ImageUse::default()), str::parse)?,
            recording: recording.map_or(Ok(RecordingWay::default()), str::parse)?,
            slice_ms: slice_ms(given.slice_ms)?,
            ..OpenOptions::of(device)
        },
    };
    all.kv = kv.map_or(Ok(KvType::default()), str::parse)?;
    all.act = act.map_or(Ok(Activations::default()), str::parse)?;
    all.context = (given.context > 0).then_some(given.context);
    if given.padding > 0 {
        all.padding = given.padding;
    }
    Ok(all)
}

/// A number of milliseconds; `None` for -1.
fn slice_ms(given: isize) -> Result<Option<u32>> {
    let known = u32::try_from(given).ok().filter(|ms| *ms <= 10_000);
    if known.is_none() && given != -1 {
        let what = format!("is {given}, expected -1 to 10000");
        return Err(Error::usage("slice_ms", what));
    }
    Ok(known)
}

/// Frees a model. Its sessions keep what they need of it. NULL is allowed.
///
/// `model` is NULL or from `tlite_model_load`, not freed before, and in use by no other call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_model_free(model: *mut TliteModel) {
    guarded((), || {
        if !model.is_null() {
            // SAFETY: the pointer is from `Box::into_raw` and given back once.
            drop(unsafe { Box::from_raw(model) });
        }
        Ok(())
    });
}

/// A session of `model` with an empty cache, to be freed by `tlite_session_free`; or NULL. Sessions share weights and compiled kernels; each
/// takes memory for its cache.
///
/// `model` is NULL or from `tlite_model_load` and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_new(model: *const TliteModel) -> *mut TliteSession {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let model = unsafe { object("model", model) }?;
        let session = TliteSession {
            conversation: Mutex::new(Conversation::new(model.0.session()?, Vec::new())),
            cancel: Cancel::default(),
        };
        Ok(Box::into_raw(Box::new(session)))
    })
}

/// Frees a session. NULL is allowed.
///
/// `session` is NULL or from `tlite_session_new`, not freed before, and in use by no other call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_free(session: *mut TliteSession) {
    guarded((), || {
        if !session.is_null() {
            // SAFETY: the pointer is from `Box::into_raw` and given back once.
            drop(unsafe { Box::from_raw(session) });
        }
        Ok(())
    });
}

/// Empties the cache of a session. Returns 0, or -1 where it is in use.
///
/// `session` is NULL or from `tlite_session_new` and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_clear(session: *const TliteSession) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let session = unsafe { object("session", session) }?;
        session.with(|c| {
            c.clear();
            Ok(0)
        })
    })
}

/// Ends the answer that the session generates at this moment, within one step; without one, the next answer ends before its first token, so
/// that a call that comes just before an answer starts is not lost. For any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_cancel(session: *const TliteSession) {
    guarded((), || {
        // SAFETY: as the caller promises.
        unsafe { object("session", session) }?.cancel.cancel();
        Ok(())
    });
}

/// Takes back a `tlite_cancel` that came when no answer was generated. Each answer does so at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_cancel_clear(session: *const TliteSession) {
    guarded((), || {
        // SAFETY: as the caller promises.
        unsafe { object("session", session) }?.cancel.reset();
        Ok(())
    });
}

/// Writes the defaults to `options`, whose `size` is `sizeof *options`: 256 tokens, of which each is the most likely one. Returns 0, or -1 for a
/// size that this library does not know.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_generate_defaults(options: *mut TliteGenerateOptions, size: usize) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { write_defaults(options, size) }
}

/// Goes on with the text `prompt`, in UTF-8, and hands what comes to `callback` with `user`. `options` may be NULL. What the prompt shares with
/// the session's cache from its start on is not computed again.
///
/// The session must not be freed before the call ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_generate(
    session: *const TliteSession,
    prompt: *const c_char,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> TliteFinish {
    guarded(TliteFinish::Error, || {
        // SAFETY: as the caller promises.
        unsafe {
            let prompt = text("prompt", prompt)?;
            generate(session, Asked::Text(prompt), options, callback, user)
        }
    })
}

/// As `tlite_generate`, with the answer to a conversation of `count` messages, in the form that the model's chat template gives it. Turn by turn
/// the caller gives all messages, those that were answered too: what the session said itself keeps its tokens, and only what is new is
/// computed. The session must not be freed before the call ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_chat(
    session: *const TliteSession,
    messages: *const TliteMessage,
    count: usize,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> TliteFinish {
    guarded(TliteFinish::Error, || {
        // SAFETY: as the caller promises.
        unsafe {
            let given = array("messages", messages, count)?;
            let messages: Vec<Message> = given.iter().map(|m| message(m)).collect::<Result<_>>()?;
            generate(session, Asked::Chat(messages), options, callback, user)
        }
    })
}

/// A message in the library's form.
///
/// # Safety
///
/// As for [`tlite_chat`].
unsafe fn message(given: &TliteMessage) -> Result<Message> {
    // SAFETY: as the caller promises.
    let (role, content, extra) = unsafe {
        (
            text("role", given.role)?,
            text("content", given.content)?,
            json_object("extra", given.extra)?,
        )
    };
    if !["system", "user", "assistant", "tool"].contains(&role) {
        let what = format!("\"{role}\" is none of system, user, assistant, tool");
        return Err(Error::usage("role", what));
    }
    Ok(Message {
        extra,
        ..Message::new(role.to_owned(), content)
    })
}

/// The JSON object behind a pointer of the caller; an empty one for NULL.
///
/// # Safety
///
/// As for [`text`].
unsafe fn json_object(what: &str, pointer: *const c_char) -> Result<Values> {
    // SAFETY: as the caller promises.
    let text = unsafe { text_or_none(what, pointer) }?;
    let object = text.map_or_else(|| Ok(Values::new()), serde_json::from_str);
    object.map_err(|e| Error::usage(what, format!("is no JSON object: {e}")))
}

impl TliteSession {
    /// Runs `work` with what is said in the session. An error where another call does.
    fn with<T>(&self, work: impl FnOnce(&mut Conversation) -> Result<T>) -> Result<T> {
        match self.conversation.try_lock() {
            Ok(mut conversation) => work(&mut conversation),
            Err(TryLockError::WouldBlock) => Err(Error::usage("session", "is in use by another call")),
            Err(TryLockError::Poisoned(_)) => {
                let what = "the session is unusable after an internal error; free it";
                Err(Error::other(Stage::Run, what))
            }
        }
    }
}

/// The options in the library's form, without [`GenerateOptions::cancel`], and whether a full context slides.
///
/// # Safety
///
/// As for [`tlite_generate`].
unsafe fn generate_options(
    options: *const TliteGenerateOptions,
) -> Result<(GenerateOptions, SamplerConfig, bool)> {
    let (mut answer, mut sampling) = (GenerateOptions::default(), SamplerConfig::default());
    // SAFETY: as the caller promises.
    let Some(given) = (unsafe { options_of(options) })? else {
        return Ok((answer, sampling, false));
    };
    // SAFETY: as the caller promises.
    let stop: Vec<String> = unsafe {
        let given = array("stop", given.stop, given.stop_count)?;
        let texts = given.iter().map(|s| Ok(text("stop", *s)?.to_owned()));
        texts.collect::<Result<_>>()?
    };
    // SAFETY: as the caller promises.
    answer.template_values = unsafe { json_object("template_values", given.template_values) }?;
    answer.max_tokens = given.max_tokens;
    answer.stop = StopStrings::new(stop)?;
    sampling.temperature = given.temperature;
    sampling.top_k = given.top_k;
    sampling.top_p = given.top_p;
    sampling.min_p = given.min_p;
    sampling.seed = given.seed;
    sampling.penalties = Penalties {
        repetition: given.repetition_penalty,
        ..sampling.penalties
    };
    Ok((answer, sampling, given.context_shift != 0))
}

/// What is to be answered.
enum Asked<'a> {
    Text(&'a str),
    Chat(Vec<Message>),
}

/// What [`tlite_generate`] and [`tlite_chat`] do.
///
/// # Safety
///
/// As for [`tlite_generate`].
unsafe fn generate(
    session: *const TliteSession,
    asked: Asked<'_>,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> Result<TliteFinish> {
    // SAFETY: as the caller promises.
    let (handle, (mut options, sampling, slides)) =
        unsafe { (object("session", session)?, generate_options(options)?) };
    let callback = callback.ok_or_else(|| null("callback"))?;
    let sampler = Sampler::new(sampling)?;
    let mut put = |text: &str| {
        let bytes = [text.as_bytes(), &[0]].concat();
        // SAFETY: the bytes live until it returns and end with a 0; the rest is the caller's own.
        unsafe { callback(bytes.as_ptr().cast(), text.len(), user) == 0 }
    };
    handle.with(|conversation| {
        options.cancel = handle.cancel.clone();
        // What was cancelled is over when the call ends, in whatever way.
        let _over = Over(&handle.cancel);
        let session = conversation.session();
        session.set_sampler(sampler);
        match asked {
            Asked::Text(text) => {
                let tokens = session.codec().encode(text, &options.template_values)?;
                options.slide = slides.then_some(tokens.len());
                let mut answer = session.generate(tokens.as_slice(), &options)?;
                let wanted = stream(&mut answer, &mut put)?;
                Ok(finish(wanted, answer.finish()))
            }
            Asked::Chat(messages) => {
                conversation.set_slides(slides);
                let mut answer = conversation.answer(messages, &options)?;
                let wanted = stream(&mut answer, &mut put)?;
                Ok(finish(wanted, answer.finish()))
            }
        }
    })
}

/// Clears a flag when it is dropped.
struct Over<'a>(&'a Cancel);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.reset();
    }
}

/// Gives the texts of `pieces` to `put` until it wants no more. False where it does not want the rest.
fn stream(
    pieces: &mut dyn Iterator<Item = Result<Piece>>,
    put: &mut dyn FnMut(&str) -> bool,
) -> Result<bool> {
    for piece in pieces {
        let text = piece?.text;
        if !text.is_empty() && !put(&text) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn finish(wanted: bool, finish: Option<Finish>) -> TliteFinish {
    match finish {
        _ if !wanted => TliteFinish::Callback,
        Some(Finish::Stop) => TliteFinish::StopString,
        Some(Finish::MaxTokens) => TliteFinish::MaxTokens,
        Some(Finish::ContextFull) => TliteFinish::ContextFull,
        Some(Finish::Cancelled) => TliteFinish::Cancelled,
        Some(Finish::Eos(_) | Finish::Complete) | None => TliteFinish::EndOfText,
    }
}

#[cfg(test)]
mod tests;
