//! The C interface, whose header is `include/tlite.h`.
//!
//! Every function may be called from any thread, takes NULL where a pointer is expected without harm, and lets no panic out. What
//! fails says so by what it returns, and leaves a message for [`tlite_last_error`]. The message is the only state outside of what callers
//! hold.

use crate::backend::OpenOptions;
use crate::cache::{DEFAULT_LIMIT, Store};
use crate::error::{Error, Result, Stage};
use crate::llm::sampler::Penalties;
use crate::llm::{
    Cancel, Finish, GenerateOptions, KvType, LoadOptions, Message, Model, Prompt, Sampler, SamplerConfig,
    Session, StopStrings,
};
use crate::placement::{BackendChoice, Placement};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, TryLockError};

/// A loaded model: weights, compiled kernels, tokenizer and chat template. Any number of sessions may share it, in any threads.
pub struct TliteModel(Model);

/// A sequence of tokens in a cache of its own. One call at a time generates with it; only `tlite_cancel` may be called meanwhile.
pub struct TliteSession {
    session: Mutex<Session>,
    cancel: Cancel,
}

/// Where and how a model is loaded. Strings are UTF-8 and read during the call only.
#[repr(C)]
pub struct TliteLoadOptions {
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
    /// Folder where compiled kernels are kept for the next start, 4 GB of them at most; nobody else should be able to write it. NULL keeps none.
    pub kernel_cache: *const c_char,
}

/// How tokens are chosen, and when an answer ends. Begin with what `tlite_generate_defaults` returns.
#[repr(C)]
pub struct TliteGenerateOptions {
    /// Largest number of tokens to generate; 0 generates none.
    pub max_tokens: usize,
    /// 0 takes the most likely token always; higher values take others more often.
    pub temperature: f32,
    /// Choose among so many of the most likely tokens; 0 is off.
    pub top_k: usize,
    /// Choose among the fewest tokens whose probabilities sum to this; 1 is off.
    pub top_p: f32,
    /// Choose among the tokens at least this many times as likely as the most likely one; 0 is off.
    pub min_p: f32,
    /// Divide logits of tokens that occurred lately by this; 1 is off.
    pub repetition_penalty: f32,
    /// Start of the random sequence; equal seeds give equal texts.
    pub seed: u64,
    /// `stop_count` texts in UTF-8 that end the answer and are not part of it; none may be empty. NULL where there are none.
    pub stop: *const *const c_char,
    /// How many texts `stop` has.
    pub stop_count: usize,
}

/// A message of a conversation.
#[repr(C)]
pub struct TliteMessage {
    /// "system", "user" or "assistant".
    pub role: *const c_char,
    /// What was said, in UTF-8.
    pub content: *const c_char,
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

/// Takes a piece of text: `length` bytes of UTF-8 in whole characters, and a 0 behind them; a text may hold zero bytes, too. `text` is valid
/// during the call only. Returns 0 to go on and anything else to end the answer. It must return normally: no `longjmp`, no exception. It may
/// not generate with, clear or free the session.
pub type TliteCallback =
    Option<unsafe extern "C" fn(text: *const c_char, length: usize, user: *mut c_void) -> c_int>;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn remember(message: &str) {
    // A message with a zero byte in it ends there for C.
    let bytes: Vec<u8> = message.bytes().take_while(|b| *b != 0).collect();
    let message = CString::new(bytes).unwrap_or_default();
    LAST_ERROR.with(|last| last.replace(message));
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
            remember(&e.chain());
            failed
        }
        Err(payload) => {
            remember(&panicked(payload.as_ref()));
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
    let message = LAST_ERROR.try_with(|last| last.try_borrow().map(|m| m.as_ptr()));
    match message {
        Ok(Ok(pointer)) => pointer,
        _ => c"".as_ptr(),
    }
}

/// Loads the model in the folder `path`: `model.onnx`, `tokenizer.json` and the configuration files that exporters write beside them.
/// `options` may be NULL. Returns a model to be freed by `tlite_model_free`, or NULL.
///
/// # Safety
///
/// Each pointer is NULL or points to what the header says.
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
    let Some(given) = (unsafe { options.as_ref() }) else {
        return Ok(all);
    };
    // SAFETY: as the caller promises.
    let (backend, device, kv, priority, cache) = unsafe {
        (
            text_or_none("backend", given.backend)?,
            text_or_none("device", given.device)?,
            text_or_none("kv", given.kv)?,
            text_or_none("priority", given.priority)?,
            text_or_none("kernel_cache", given.kernel_cache)?,
        )
    };
    all.place = Placement {
        backend: backend.map_or(Ok(BackendChoice::default()), str::parse)?,
        options: OpenOptions {
            priority: priority.map(str::parse).transpose()?,
            cache: cache.map(|folder| Arc::new(Store::new(folder.into(), DEFAULT_LIMIT))),
            ..OpenOptions::of(device)
        },
    };
    all.kv = kv.map_or(Ok(KvType::default()), str::parse)?;
    all.context = (given.context > 0).then_some(given.context);
    if given.padding > 0 {
        all.padding = given.padding;
    }
    Ok(all)
}

/// Frees a model. Its sessions keep what they need of it. NULL is allowed.
///
/// # Safety
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
/// # Safety
///
/// `model` is NULL or from `tlite_model_load` and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_new(model: *const TliteModel) -> *mut TliteSession {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let model = unsafe { object("model", model) }?;
        let session = TliteSession {
            session: Mutex::new(model.0.session()?),
            cancel: Cancel::default(),
        };
        Ok(Box::into_raw(Box::new(session)))
    })
}

/// Frees a session. NULL is allowed.
///
/// # Safety
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
/// # Safety
///
/// `session` is NULL or from `tlite_session_new` and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_clear(session: *const TliteSession) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let session = unsafe { object("session", session) }?;
        session.with(|s| {
            s.clear();
            Ok(0)
        })
    })
}

/// Ends the answer that the session generates at this moment, within one step; without one it does nothing. For any thread.
///
/// # Safety
///
/// `session` is NULL or from `tlite_session_new` and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_cancel(session: *const TliteSession) {
    guarded((), || {
        // SAFETY: as the caller promises.
        unsafe { object("session", session) }?.cancel.cancel();
        Ok(())
    });
}

/// 256 tokens, of which each is the most likely one.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_generate_defaults() -> TliteGenerateOptions {
    let (answer, sampling) = (GenerateOptions::default(), SamplerConfig::default());
    TliteGenerateOptions {
        max_tokens: answer.max_tokens,
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.penalties.repetition,
        seed: sampling.seed,
        stop: std::ptr::null(),
        stop_count: 0,
    }
}

/// Goes on with the text `prompt`, in UTF-8, and hands what comes to `callback` with `user`. `options` may be NULL. What the prompt shares with
/// the session's cache from its start on is not computed again.
///
/// # Safety
///
/// Each pointer is NULL or points to what the header says; `session` is not freed before the call ends.
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
            generate(session, Prompt::Text(prompt), options, callback, user)
        }
    })
}

/// As `tlite_generate`, with the answer to a conversation of `count` messages, in the form that the model's chat template gives it.
///
/// # Safety
///
/// Each pointer is NULL or points to what the header says; `session` is not freed before the call ends.
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
            generate(session, Prompt::Chat(&messages), options, callback, user)
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
    let (role, content) = unsafe { (text("role", given.role)?, text("content", given.content)?) };
    match role {
        "system" => Ok(Message::system(content)),
        "user" => Ok(Message::user(content)),
        "assistant" => Ok(Message::assistant(content)),
        _ => {
            let what = format!("\"{role}\" is none of system, user, assistant");
            Err(Error::usage("role", what))
        }
    }
}

impl TliteSession {
    /// Runs `work` with the session. An error where another call does.
    fn with<T>(&self, work: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        match self.session.try_lock() {
            Ok(mut session) => work(&mut session),
            Err(TryLockError::WouldBlock) => Err(Error::usage("session", "is in use by another call")),
            Err(TryLockError::Poisoned(_)) => {
                let what = "the session is unusable after an internal error; free it";
                Err(Error::other(Stage::Run, what))
            }
        }
    }
}

/// The options in the library's form, without [`GenerateOptions::cancel`].
///
/// # Safety
///
/// As for [`tlite_generate`].
unsafe fn generate_options(options: *const TliteGenerateOptions) -> Result<(GenerateOptions, SamplerConfig)> {
    let (mut answer, mut sampling) = (GenerateOptions::default(), SamplerConfig::default());
    // SAFETY: as the caller promises.
    let Some(given) = (unsafe { options.as_ref() }) else {
        return Ok((answer, sampling));
    };
    // SAFETY: as the caller promises.
    let stop: Vec<String> = unsafe {
        let given = array("stop", given.stop, given.stop_count)?;
        let texts = given.iter().map(|s| Ok(text("stop", *s)?.to_owned()));
        texts.collect::<Result<_>>()?
    };
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
    Ok((answer, sampling))
}

/// What [`tlite_generate`] and [`tlite_chat`] do.
///
/// # Safety
///
/// As for [`tlite_generate`].
unsafe fn generate(
    session: *const TliteSession,
    prompt: Prompt<'_>,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> Result<TliteFinish> {
    // SAFETY: as the caller promises.
    let (handle, (mut options, sampling)) =
        unsafe { (object("session", session)?, generate_options(options)?) };
    let callback = callback.ok_or_else(|| null("callback"))?;
    let sampler = Sampler::new(sampling)?;
    handle.with(|session| {
        handle.cancel.reset();
        options.cancel = handle.cancel.clone();
        session.set_sampler(sampler);
        let mut answer = session.generate(prompt, &options)?;
        let mut bytes = Vec::new();
        while let Some(piece) = answer.next().transpose()? {
            if piece.text.is_empty() {
                continue;
            }
            bytes.clear();
            bytes.extend_from_slice(piece.text.as_bytes());
            bytes.push(0);
            // SAFETY: the bytes live until it returns and end with a 0; the rest is the caller's own.
            let wish = unsafe { callback(bytes.as_ptr().cast(), piece.text.len(), user) };
            if wish != 0 {
                return Ok(TliteFinish::Callback);
            }
        }
        Ok(match answer.finish() {
            Some(Finish::Stop) => TliteFinish::StopString,
            Some(Finish::MaxTokens) => TliteFinish::MaxTokens,
            Some(Finish::ContextFull) => TliteFinish::ContextFull,
            Some(Finish::Cancelled) => TliteFinish::Cancelled,
            Some(Finish::Eos(_) | Finish::Complete) | None => TliteFinish::EndOfText,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the pointer is that of this thread's message, which no call changes meanwhile.
        let message = unsafe { CStr::from_ptr(tlite_last_error()) };
        message.to_str().unwrap().to_owned()
    }

    #[test]
    fn panics_and_errors_become_messages() {
        assert_eq!(last_error(), "");
        assert_eq!(guarded(-1, || -> Result<i32> { panic!("what {}", 7) }), -1);
        assert_eq!(last_error(), "internal error: what 7");
        assert_eq!(guarded(1, || Ok(2)), 2);
        assert_eq!(
            last_error(),
            "internal error: what 7",
            "what works changes nothing"
        );
        assert!(guarded(true, || Err(Error::usage("x", "with a \0 inside"))));
        assert_eq!(last_error(), "x: with a ");
        let other = std::thread::spawn(last_error).join().unwrap();
        assert_eq!(other, "", "each thread has its own");
    }

    #[test]
    fn a_session_in_pieces_is_refused() {
        use crate::llm::testing::{FakeModel, byte_codec};
        let (_dir, codec) = byte_codec("{}");
        let model = Box::new(FakeModel::new(258, 9, |_| panic!("in the model")));
        let handle = TliteSession {
            session: Mutex::new(Session::new(model, std::sync::Arc::new(codec))),
            cancel: Cancel::default(),
        };
        unsafe extern "C" fn ignore(_: *const c_char, _: usize, _: *mut c_void) -> c_int {
            0
        }
        for words in ["internal error: in the model", "unusable"] {
            let user = std::ptr::null_mut();
            // SAFETY: all pointers are live or NULL.
            let finish =
                unsafe { tlite_generate(&handle, c"x".as_ptr(), std::ptr::null(), Some(ignore), user) };
            assert_eq!(finish, TliteFinish::Error);
            assert!(last_error().contains(words), "{}", last_error());
        }
    }
}
