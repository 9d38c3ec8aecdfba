//! Answers many requests at the same time.

use super::steps::{BatchSequence, StepRunner, device_lost};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::llm::codec::{Codec, Prompt};
use crate::llm::folder::ModelFolder;
use crate::llm::load::{BatchOptions, LoadOptions, LoadedRows, PlaceName};
use crate::llm::{
    Cancel, DefaultBound, Draft, Finish, GenerateOptions, LanguageModel, Metrics, Model, Piece, Progress,
    Sampler, Session, Speculation,
};
use crate::note::Note;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a ticket checks for cancellation.
const POLL: Duration = Duration::from_millis(20);

/// Settings of a request.
#[derive(Default)]
pub struct Request {
    /// When the text ends, and what its pieces contain. `progress` is not called.
    pub options: GenerateOptions,
    /// Chooses tokens.
    pub sampler: Sampler,
    /// For speculative decoding: the draft, and its maximum length in tokens.
    /// [`LoadOptions::drafts`] matters only if requests run one after another.
    pub draft: Option<(Box<dyn Draft>, usize)>,
    /// Requests with larger priorities run first; 0 by default.
    pub priority: i32,
}

/// A request in the queue.
struct Pending {
    prompt: Vec<u32>,
    request: Request,
    events: Events,
}

/// The task that waits for a ticket's next event.
type Task = Arc<Mutex<Option<Waker>>>;

/// The sending end of a ticket's channel.
struct Events {
    /// `None` only while it is dropped.
    sender: Option<Sender<Event>>,
    task: Task,
}

impl Events {
    /// False if the ticket was dropped.
    fn send(&self, event: Event) -> bool {
        let sent = self
            .sender
            .as_ref()
            .is_some_and(|sender| sender.send(event).is_ok());
        self.wake();
        sent
    }

    fn wake(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Drop for Events {
    /// The ticket must find its channel closed when it is woken.
    fn drop(&mut self) {
        drop(self.sender.take());
        self.wake();
    }
}

/// A message to a ticket.
enum Event {
    Piece(Piece, Metrics),
    Failed(Error),
    End(End),
}

#[derive(Clone, Debug, Default)]
struct End {
    finish: Option<Finish>,
    stop: Option<String>,
    reached: Vec<DefaultBound>,
    metrics: Metrics,
}

/// Priority and order of arrival.
type Place = (Reverse<i32>, u64);

#[derive(Default)]
struct Requests {
    waiting: BTreeMap<Place, Pending>,
    running: BTreeMap<Place, Cancel>,
    count: u64,
    closed: bool,
    /// Threads that run requests, and how many of them wait for one.
    threads: Vec<JoinHandle<()>>,
    idle: usize,
}

#[derive(Default)]
struct Queue {
    requests: Mutex<Requests>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a request; `None` if closed.
    fn next(&self) -> Option<(Place, Pending)> {
        let mut requests = self.lock();
        loop {
            if let Some((place, pending)) = requests.waiting.pop_first() {
                let cancel = pending.request.options.cancel.clone();
                requests.running.insert(place, cancel);
                return Some((place, pending));
            }
            if requests.closed {
                return None;
            }
            requests.idle += 1;
            requests = self
                .changed
                .wait(requests)
                .unwrap_or_else(PoisonError::into_inner);
            requests.idle -= 1;
        }
    }

    /// Cancels all requests and closes the queue.
    fn close(&self) {
        let mut requests = self.lock();
        requests.closed = true;
        let waiting = std::mem::take(&mut requests.waiting);
        for cancel in requests.running.values() {
            cancel.cancel();
        }
        drop(requests);
        self.changed.notify_all();
        // Drafts may wait for a device.
        drop(waiting);
    }
}

/// How requests get sessions.
pub(super) enum Sessions {
    /// All at the same time.
    Batch(StepRunner),
    /// One after another, in one session, for the reason `why`. With `reproducible`, it is emptied
    /// in between.
    Turns {
        model: Box<Model>,
        session: Box<Mutex<Session>>,
        reproducible: bool,
        why: String,
        /// The device is lost.
        lost: AtomicBool,
    },
}

impl Sessions {
    /// An error if no request can be answered.
    fn check(&self) -> Result<()> {
        match self {
            Self::Batch(steps) => steps.check(),
            Self::Turns { lost, .. } if lost.load(Ordering::Relaxed) => Err(device_lost()),
            Self::Turns { .. } => Ok(()),
        }
    }

    /// Opens a session.
    fn open(&self, codec: &Arc<Codec>, priority: i32) -> Result<Session> {
        match self {
            Self::Batch(steps) => {
                let mut sequence = steps.sequence();
                sequence.set_priority(priority);
                Ok(Session::new(Box::new(sequence), codec.clone()))
            }
            Self::Turns { model, .. } => model.session(),
        }
    }
}

/// Answers many requests at the same time (continuous batching): their tokens share forward
/// passes, and their common prefixes share memory. If the model cannot do this, requests run one
/// after another, and [`Batcher::notes`] says so. If a step fails, the requests in it fail, each
/// with an error. A batcher may be used from any thread. Dropping it cancels all requests and waits
/// for the current step.
pub struct Batcher {
    queue: Arc<Queue>,
    codec: Arc<Codec>,
    context: usize,
    /// Maximum number of requests that run at the same time. Each has a thread.
    most: usize,
    /// Maximum number of requests that wait.
    waiting: usize,
    sessions: Arc<Sessions>,
    place: PlaceName,
    notes: Vec<Note>,
}

/// What a batcher does at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchState {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that are being answered.
    pub running: usize,
    /// Pages of the cache that sequences use, and pages that only hold prefixes for later
    /// requests; zero if requests run one after another.
    pub pages: [usize; 2],
    /// How long the present step has been running; `None` between steps, and if requests run one
    /// after another.
    pub step: Option<Duration>,
}

impl std::fmt::Debug for Batcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batcher of {} requests at a time", self.most)
    }
}

impl Batcher {
    /// Loads the model folder `path`, under the condition of [`Model::load`] on its files. Notes
    /// are logged as warnings and returned by [`Batcher::notes`]. Returns the errors of
    /// [`Model::load`], and usage errors for `batch`: no sequences, a cache smaller than the
    /// context, or one that exceeds the memory of the device or the limit `memory` (kind
    /// [`ErrorKind::OutOfMemory`]).
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions, batch: &BatchOptions) -> Result<Self> {
        let mut folder = ModelFolder::holding("path", path.as_ref(), &["tokenizer.json"])?;
        folder.limits = options.limits.clone();
        let codec = Arc::new(Codec::load(folder.clone())?);
        Self::with_codec(&folder, codec, options, batch)
    }

    /// Like [`Batcher::load`], with a folder and its codec.
    pub fn with_codec(
        folder: &ModelFolder,
        codec: Arc<Codec>,
        options: &LoadOptions,
        batch: &BatchOptions,
    ) -> Result<Self> {
        Self::of(folder, codec, options, batch, None)
    }

    /// Makes a batcher from a loaded model, with the model's codec and load options. The model is
    /// dropped, and its weights are loaded again in the form for several sequences; clones and
    /// sessions of the model keep the old ones in memory. If requests run one after another,
    /// `model` itself is used. Notes and errors are those of [`Batcher::load`].
    pub fn from_model(model: Model, batch: &BatchOptions) -> Result<Self> {
        let (codec, origin) = (model.codec().clone(), model.origin().clone());
        Self::of(&origin.folder, codec, &origin.options, batch, Some(model))
    }

    fn of(
        folder: &ModelFolder,
        codec: Arc<Codec>,
        options: &LoadOptions,
        batch: &BatchOptions,
        mut model: Option<Model>,
    ) -> Result<Self> {
        let mut batcher = Self::made(folder, codec, options, batch, &mut model)?;
        batcher.waiting = batch.queue;
        batcher.notes.iter().for_each(|note| log::warn!("{note}"));
        Ok(batcher)
    }

    fn made(
        folder: &ModelFolder,
        codec: Arc<Codec>,
        options: &LoadOptions,
        batch: &BatchOptions,
        model: &mut Option<Model>,
    ) -> Result<Self> {
        match LoadedRows::replacing(folder, options, batch, &mut || drop(model.take())) {
            Ok(LoadedRows { model, place, notes }) => {
                let sessions = Sessions::Batch(StepRunner::start(model)?);
                Ok(Self::start(sessions, codec, batch.sequences, place, notes))
            }
            Err(e) if e.kind() == ErrorKind::Unsupported && !e.is_usage() => {
                let model = match model.take() {
                    Some(model) => model,
                    None => Model::with_codec(folder, codec.clone(), options, &mut |_| {})?,
                };
                let mut notes = model.notes().to_vec();
                let why = e.chain();
                notes.push(Note::OneSequence { why: why.clone() });
                let (session, place) = (Box::new(Mutex::new(model.session()?)), model.place());
                let sessions = Sessions::Turns {
                    model: Box::new(model),
                    session,
                    reproducible: batch.reproducible,
                    why,
                    lost: AtomicBool::new(false),
                };
                Ok(Self::start(sessions, codec, 1, place, notes))
            }
            Err(e) => Err(e),
        }
    }

    pub(super) fn start(
        sessions: Sessions,
        codec: Arc<Codec>,
        most: usize,
        place: PlaceName,
        notes: Vec<Note>,
    ) -> Self {
        let context = match &sessions {
            Sessions::Batch(steps) => steps.sequence().context(),
            Sessions::Turns { session, .. } => {
                session.lock().unwrap_or_else(PoisonError::into_inner).context()
            }
        };
        Self {
            queue: Arc::default(),
            codec,
            context,
            most,
            waiting: usize::MAX,
            sessions: Arc::new(sessions),
            place,
            notes,
        }
    }

    /// Starts a thread that runs requests.
    fn start_thread(&self) -> Result<JoinHandle<()>> {
        let (queue, codec, sessions) = (self.queue.clone(), self.codec.clone(), self.sessions.clone());
        let run = move || {
            while let Some((place, pending)) = queue.next() {
                // A draft or a callback may panic. The ticket then finds its channel closed.
                let run = AssertUnwindSafe(|| pending.run(&sessions, &codec));
                let _reported = std::panic::catch_unwind(run);
                queue.lock().running.remove(&place);
            }
        };
        let thread = std::thread::Builder::new().name("tlite-request".to_owned());
        let thread = thread.spawn(run);
        thread.map_err(|e| Error::caused(Stage::Run, "cannot start a thread", e))
    }

    /// Warnings raised while loading, one sentence each.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The device.
    pub fn place(&self) -> &PlaceName {
        &self.place
    }

    /// Tokenizer, chat template and end tokens.
    pub fn codec(&self) -> &Arc<Codec> {
        &self.codec
    }

    /// Context length of a request in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// A session, for example for a conversation. It shares runs with requests and may outlive the
    /// batcher. Its cache cannot be saved or loaded. If requests run one after another, this is a
    /// plain session of the model, with the errors of [`Model::session`].
    pub fn session(&self) -> Result<Session> {
        self.sessions.open(&self.codec, 0)
    }

    /// A sequence without tokens, which can be forked. An error of kind [`ErrorKind::Unsupported`]
    /// if requests run one after another.
    pub(super) fn sequence(&self) -> Result<BatchSequence> {
        match &*self.sessions {
            Sessions::Batch(steps) => Ok(steps.sequence()),
            Sessions::Turns { why, .. } => {
                let what = format!("beam search needs a model that runs several sequences at once: {why}");
                Err(Error::other(Stage::Run, what).of_kind(ErrorKind::Unsupported))
            }
        }
    }

    /// An error if requests can no longer be answered, since the device is lost (kind
    /// [`ErrorKind::DeviceLost`]) or a step has panicked. Load the model again.
    pub fn check(&self) -> Result<()> {
        self.sessions.check()
    }

    /// Whether [`Batcher::check`] succeeds.
    pub fn is_alive(&self) -> bool {
        self.check().is_ok()
    }

    /// What it does at present.
    pub fn state(&self) -> BatchState {
        let (pages, step) = match &*self.sessions {
            Sessions::Batch(steps) => (steps.used_pages(), steps.running()),
            Sessions::Turns { .. } => ([0; 2], None),
        };
        let requests = self.queue.lock();
        BatchState {
            waiting: requests.waiting.len(),
            running: requests.running.len(),
            pages,
            step,
        }
    }

    /// Queues a request to continue `prompt`, and returns at once. Returns the errors of
    /// [`Codec::encode`], a usage error for a prompt longer than the context, an error if no thread
    /// can be started, an error of kind [`ErrorKind::Busy`] if [`BatchOptions::queue`] requests
    /// wait already, and an error unless [`Batcher::is_alive`]. The ticket returns all other
    /// errors. Generation does not wait for the ticket, which buffers all pieces until they are
    /// read; [`GenerateOptions::max_tokens`] bounds this memory.
    pub fn submit<'p>(&self, prompt: impl Into<Prompt<'p>>, mut request: Request) -> Result<Ticket> {
        let options = &mut request.options;
        options.cancel = options.cancel.child();
        let cancel = options.cancel.clone();
        let prompt = self.codec.encode(prompt, &options.template_values, &cancel)?;
        if prompt.len() > self.context {
            let what = format!(
                "has {} tokens, but the context holds {}",
                prompt.len(),
                self.context
            );
            return Err(Error::usage("prompt", what).of_kind(ErrorKind::ContextExceeded));
        }
        self.sessions.check()?;
        let (sender, receiver) = channel();
        let task = Task::default();
        let events = Events {
            sender: Some(sender),
            task: task.clone(),
        };
        let mut requests = self.queue.lock();
        let starts = requests.idle <= requests.waiting.len() && requests.threads.len() < self.most;
        // Threads that are idle will take some of those that wait.
        if !starts && requests.waiting.len() >= self.waiting.saturating_add(requests.idle) {
            let what = format!(
                "{} requests wait already; try again later",
                requests.waiting.len()
            );
            return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::Busy));
        }
        if starts {
            match self.start_thread() {
                Ok(thread) => requests.threads.push(thread),
                // A thread that exists runs the request later.
                Err(e) if requests.threads.is_empty() => return Err(e),
                Err(e) => log::warn!("{}", e.chain()),
            }
        }
        requests.count += 1;
        let place = (Reverse(request.priority), requests.count);
        let pending = Pending {
            prompt,
            request,
            events,
        };
        requests.waiting.insert(place, pending);
        drop(requests);
        self.queue.changed.notify_one();
        Ok(Ticket {
            queue: self.queue.clone(),
            place,
            cancel,
            events: receiver,
            task,
            end: End::default(),
            ended: false,
        })
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.queue.close();
        let threads = std::mem::take(&mut self.queue.lock().threads);
        for thread in threads {
            // A panic of the thread has been reported to the ticket.
            let _ = thread.join();
        }
    }
}

impl Pending {
    /// Generates the text and sends it to the ticket.
    fn run(self, sessions: &Sessions, codec: &Arc<Codec>) {
        let Self {
            prompt,
            request,
            events,
        } = self;
        let result = match sessions {
            Sessions::Batch(_) => sessions
                .open(codec, request.priority)
                .and_then(|mut session| generate(&mut session, &prompt, request, &events)),
            Sessions::Turns {
                session,
                reproducible,
                lost,
                ..
            } => {
                let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
                if *reproducible {
                    session.clear();
                }
                let result = generate(&mut session, &prompt, request, &events);
                if result.as_ref().is_err_and(|e| e.kind() == ErrorKind::DeviceLost) {
                    lost.store(true, Ordering::Relaxed);
                }
                result
            }
        };
        // The ticket may have been dropped.
        let _ = events.send(result.map_or_else(Event::Failed, Event::End));
    }
}

fn generate(session: &mut Session, prompt: &[u32], request: Request, events: &Events) -> Result<End> {
    session.set_sampler(request.sampler);
    let options = GenerateOptions {
        progress: Progress::default(),
        ..request.options
    };
    let draft = request.draft;
    session.speculate(draft.map(|(draft, most)| Speculation::adaptive(draft, most)));
    let mut answer = session.generate(prompt, &options)?;
    while let Some(piece) = answer.next().transpose()? {
        if !events.send(Event::Piece(piece, answer.metrics())) {
            break;
        }
    }
    Ok(End {
        finish: answer.finish(),
        stop: answer.stop().map(str::to_owned),
        reached: answer.reached(),
        metrics: answer.metrics(),
    })
}

/// A request in progress: an iterator over the pieces of its text; `next` blocks until one is
/// ready. Dropping it cancels the request.
pub struct Ticket {
    queue: Arc<Queue>,
    place: Place,
    cancel: Cancel,
    events: Receiver<Event>,
    task: Task,
    end: End,
    ended: bool,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket {} with {:?}", self.place.1, self.end)
    }
}

impl Ticket {
    /// Ends the request after the current step, or at once if it has not started. Pieces that were
    /// already generated can still be read.
    pub fn cancel(&self) {
        self.cancel.cancel();
        let waiting = self.queue.lock().waiting.remove(&self.place);
        // Its draft may wait for a device.
        drop(waiting);
    }

    /// The text of all remaining pieces.
    pub fn text(&mut self) -> Result<String> {
        self.map(|piece| Ok(piece?.text)).collect()
    }

    /// Why the text ended; `None` before the end and after an error.
    pub fn finish(&self) -> Option<Finish> {
        self.end.finish
    }

    /// The stop string that ended the text.
    pub fn stop(&self) -> Option<&str> {
        self.end.stop.as_deref()
    }

    /// The default bounds at which values of the text ended, if a schema constrains it. Known after
    /// the last piece.
    pub fn reached(&self) -> &[DefaultBound] {
        &self.end.reached
    }

    /// Counts and times so far.
    pub fn metrics(&self) -> Metrics {
        self.end.metrics
    }

    /// Polls for the next piece, for asynchronous programs. Returns `Ready(None)` after the last
    /// one. The task of `cx` is woken when there is more to read, when the request ends or is
    /// cancelled, and when the batcher is dropped; no thread or timer waits meanwhile. A request
    /// that is still in the queue does not notice its [`GenerateOptions::cancel`] before its turn;
    /// [`Ticket::cancel`] ends it at once.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.cancel.is_cancelled() {
            self.cancel();
        }
        // Registered first, so that an event that comes now wakes it.
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        match self.events.try_recv() {
            Err(TryRecvError::Empty) => Poll::Pending,
            event => Poll::Ready(self.take(event.ok())),
        }
    }

    /// The piece or the end that `event` brings; `None` for a closed channel.
    fn take(&mut self, event: Option<Event>) -> Option<Result<Piece>> {
        match event {
            Some(Event::Piece(piece, metrics)) => {
                self.end.metrics = metrics;
                return Some(Ok(piece));
            }
            Some(Event::Failed(e)) => {
                self.ended = true;
                return Some(Err(e));
            }
            Some(Event::End(end)) => self.end = end,
            // It was taken out of the queue.
            None if self.cancel.is_cancelled() || self.queue.lock().closed => {
                self.end.finish = Some(Finish::Cancelled);
            }
            None => {
                self.ended = true;
                let e = Error::internal(Stage::Run, "the thread of a request panicked");
                return Some(Err(e));
            }
        }
        self.ended = true;
        None
    }
}

impl Iterator for Ticket {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = loop {
            match self.events.recv_timeout(POLL) {
                // A request that waits does not look at its flag.
                Err(RecvTimeoutError::Timeout) if self.cancel.is_cancelled() => self.cancel(),
                Err(RecvTimeoutError::Timeout) => {}
                event => break event.ok(),
            }
        };
        self.take(event)
    }
}
impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}
