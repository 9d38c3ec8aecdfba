//! Many requests at the same time.

use crate::args::{object, text};
use crate::error::{TliteError, guarded, last, remember};
use crate::generate::{
    Receiver, Settings, TliteCallback, TliteFinish, TliteGenerateOptions, TliteMessage, TliteMetrics, finish,
    messages_of,
};
use crate::model::{TliteLoadOptions, load_options};
use crate::options::write;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use transformer_lite::{
    BatchOptions, Batcher, Cancel, Codec, Error, ErrorKind, Metrics, Prompt, Request, Result, Stage, Ticket,
};

/// A loaded model that answers many requests at the same time (continuous batching).
pub struct TliteBatcher(Batcher);

/// A request to a batcher.
pub struct TliteRequest {
    cancel: Cancel,
    thread: Mutex<Option<JoinHandle<()>>>,
    id: ThreadId,
    outcome: Arc<OnceLock<Outcome>>,
}

struct Outcome {
    finish: TliteFinish,
    /// Code and message, if there is an error.
    error: Option<(TliteError, String)>,
    metrics: Metrics,
}

/// Loads the model folder `path`, as `tlite_model_load` does, for up to `sequences` requests at the
/// same time; 0 means 8. Requests are batched into the same forward passes, and common prefixes
/// share KV cache pages. If the model cannot do this, requests run one after another, and the log
/// says so. Returns a batcher, to be freed with `tlite_batcher_free`, or NULL on failure.
/// `on_progress` must be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_batcher_load(
    path: *const c_char,
    options: *const TliteLoadOptions,
    sequences: usize,
) -> *mut TliteBatcher {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let (path, (options, progress)) = unsafe { (text("path", path)?, load_options(options)?) };
        progress.refuse("a batcher reports no progress")?;
        let mut batch = BatchOptions::default();
        if sequences > 0 {
            batch.sequences = sequences;
        }
        let batcher = Batcher::load(path, &options, &batch)?;
        Ok(Box::into_raw(Box::new(TliteBatcher(batcher))))
    })
}

/// Frees a batcher, which cancels its requests; each must still be freed. NULL is allowed.
///
/// `batcher` is NULL or from `tlite_batcher_load`, is not freed yet, and no other call is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_batcher_free(batcher: *mut TliteBatcher) {
    guarded((), || {
        if !batcher.is_null() {
            // SAFETY: the pointer is from `Box::into_raw` and is returned once.
            drop(unsafe { Box::from_raw(batcher) });
        }
        Ok(())
    });
}

/// Queues a request to continue the text `prompt` and returns at once. Callbacks are called with
/// `user` on a thread of the library, until the request has ended; they must not wait for it or
/// free it. Options are those of `tlite_generate`. Returns a request, to be freed with
/// `tlite_request_free`, or NULL on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_batcher_generate(
    batcher: *const TliteBatcher,
    prompt: *const c_char,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> *mut TliteRequest {
    // SAFETY: as the caller promises.
    guarded(std::ptr::null_mut(), || unsafe {
        let prompt = text("prompt", prompt)?;
        submit(batcher, Prompt::Text(prompt), options, callback, user)
    })
}

/// Like `tlite_batcher_generate`, but answers a conversation of `count` messages, as `tlite_chat`
/// does. The option `context_shift` must be 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_batcher_chat(
    batcher: *const TliteBatcher,
    messages: *const TliteMessage,
    count: usize,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> *mut TliteRequest {
    // SAFETY: as the caller promises.
    guarded(std::ptr::null_mut(), || unsafe {
        let messages = messages_of(messages, count)?;
        submit(batcher, Prompt::Chat(&messages), options, callback, user)
    })
}

/// Common part of [`tlite_batcher_generate`] and [`tlite_batcher_chat`].
///
/// # Safety
///
/// As for [`tlite_batcher_generate`].
unsafe fn submit(
    batcher: *const TliteBatcher,
    prompt: Prompt<'_>,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> Result<*mut TliteRequest> {
    // SAFETY: as the caller promises.
    let (batcher, mut settings) = unsafe { (&object("batcher", batcher)?.0, Settings::new(options)?) };
    // SAFETY: as the caller promises.
    let receiver = unsafe { Receiver::new(callback, &settings, user) }?;
    let codec = batcher.codec().clone();
    let sampler = settings.sampler(&codec)?;
    let options = &mut settings.answer;
    let tokens = codec.encode(prompt, &options.template_values, &options.cancel)?;
    if settings.slides && matches!(prompt, Prompt::Chat(_)) {
        let what = "a conversation in a batch cannot drop its oldest turns; expected 0";
        return Err(Error::usage("context_shift", what));
    }
    options.slide = settings.slides.then_some(tokens.len());
    let cancel = options.cancel.clone();
    let request = Request {
        options: settings.answer,
        sampler,
        ..Request::default()
    };
    let mut ticket = batcher.submit(tokens.as_slice(), request)?;
    let outcome = Arc::new(OnceLock::new());
    let report = outcome.clone();
    let run = move || {
        let receiver = receiver;
        let finish = guarded(TliteFinish::Error, || answer(&mut ticket, &receiver, &codec));
        let failed = matches!(finish, TliteFinish::Error | TliteFinish::Callback);
        // The first value stays; there is only one.
        let _ = report.set(Outcome {
            finish,
            error: failed.then(last),
            metrics: ticket.metrics(),
        });
    };
    let thread = std::thread::Builder::new().name("tlite-callback".to_owned());
    let thread = thread.spawn(run);
    let thread = thread.map_err(|e| Error::caused(Stage::Run, "cannot start a thread", e))?;
    Ok(Box::into_raw(Box::new(TliteRequest {
        cancel,
        id: thread.thread().id(),
        thread: Mutex::new(Some(thread)),
        outcome,
    })))
}

fn answer(ticket: &mut Ticket, receiver: &Receiver, codec: &Codec) -> Result<TliteFinish> {
    let wanted = receiver.receive(ticket, codec)?;
    if !wanted {
        ticket.cancel();
    }
    Ok(finish(wanted, ticket.reached(), ticket.finish()))
}

impl TliteRequest {
    /// Waits for the end.
    fn wait(&self) -> Result<&Outcome> {
        if std::thread::current().id() == self.id {
            let what = "cannot be waited for in its own callback";
            return Err(Error::usage("request", what).of_kind(ErrorKind::Busy));
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // Without an outcome, it has panicked.
            let _ = thread.join();
        }
        let what = "the thread of a request ended without a result";
        self.outcome
            .get()
            .ok_or_else(|| Error::internal(Stage::Run, what))
    }
}

/// Waits for the end of a request and returns why it ended; after `TLITE_FINISH_ERROR` and
/// `TLITE_FINISH_CALLBACK`, `tlite_last_error` says more. May be called again, from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_request_wait(request: *const TliteRequest) -> TliteFinish {
    guarded(TliteFinish::Error, || {
        // SAFETY: as the caller promises.
        let outcome = unsafe { object("request", request) }?.wait()?;
        if let Some((code, message)) = &outcome.error {
            remember(*code, message);
        }
        Ok(outcome.finish)
    })
}

/// Ends a request after the current step, or at once if it has not started. May be called from any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_request_cancel(request: *const TliteRequest) {
    guarded((), || {
        // SAFETY: as the caller promises.
        unsafe { object("request", request) }?.cancel.cancel();
        Ok(())
    });
}

/// Waits for the end of a request and writes its counts and times to `metrics`; `size` is `sizeof
/// *metrics`. Returns 0, or -1 if the library does not know this size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_request_metrics(
    request: *const TliteRequest,
    metrics: *mut TliteMetrics,
    size: usize,
) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let found = unsafe { object("request", request) }?.wait()?.metrics;
        // SAFETY: as the caller promises.
        unsafe { write("metrics", found.into(), metrics, size) }?;
        Ok(0)
    })
}

/// Cancels a request, waits until no callback is running, and frees it. NULL is allowed.
///
/// `request` is NULL or from one of the functions above, is not freed yet, and no other call is
/// using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_request_free(request: *mut TliteRequest) {
    guarded((), || {
        if request.is_null() {
            return Ok(());
        }
        // SAFETY: it is live, as the caller promises.
        let live = unsafe { &*request };
        live.cancel.cancel();
        live.wait()?;
        // SAFETY: the pointer is from `Box::into_raw` and is returned once.
        drop(unsafe { Box::from_raw(request) });
        Ok(())
    });
}
