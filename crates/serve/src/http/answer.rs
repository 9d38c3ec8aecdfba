//! Runs a job and delivers its answers.

use super::metrics::Ended;
use super::{ApiError, Engine, Server, blocking};
use crate::wire::{FinishReason, Job, LogProb, Output, Part, Parts, ToolCall, Usage};
use axum::response::sse::{Event as Sse, KeepAlive, Sse as SseResponse};
use axum::response::{IntoResponse, Response};
use futures_util::future::poll_fn;
use futures_util::stream;
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use transformer_lite::{Cancel, Metrics, Ticket, Tokenizer};

/// Events of an answer that may wait for their client.
const WAITING: usize = 256;
/// How often a stream without events sends a comment, so that proxies keep it.
const COMMENT: Duration = Duration::from_secs(15);

/// What happens to an answer.
enum Event {
    Part(Part),
    End(FinishReason, Metrics),
    Failed(ApiError),
}

/// The answers of a job. Dropping them cancels those that are not complete.
pub(super) struct Answers {
    /// With the number of the answer: all answers to the first prompt come first.
    events: mpsc::Receiver<(usize, Event)>,
    /// Tokens of each prompt.
    prompts: Vec<usize>,
    /// Answers to each prompt.
    n: usize,
}

/// An answer as a whole.
#[derive(Default)]
pub(super) struct Whole {
    pub text: String,
    pub thought: String,
    pub calls: Vec<ToolCall>,
    pub log_probs: Vec<LogProb>,
    pub finish: Option<FinishReason>,
    pub metrics: Metrics,
}

/// The form that a route gives answers.
pub(super) trait Form: Send + 'static {
    type Chunk: Serialize;

    /// The first event of an answer.
    fn first(&mut self, index: usize) -> Option<Self::Chunk>;
    /// More of an answer.
    fn part(&mut self, index: usize, part: Part) -> Self::Chunk;
    /// The end of an answer.
    fn end(&mut self, index: usize, finish: FinishReason) -> Self::Chunk;
    /// The counts of tokens.
    fn usage(&mut self, usage: Usage) -> Self::Chunk;
}

/// Ends work on a thread when the request ends that waits for it.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Queues all answers of `job`.
pub(super) async fn submit(server: &Arc<Server>, engine: Arc<Engine>, job: Job) -> Result<Answers, ApiError> {
    let job = Arc::new(job);
    let compile = {
        let (job, engine) = (job.clone(), engine.clone());
        blocking(move || job.grammar(engine.batcher.codec()))
    };
    let most = server.options.compile;
    let grammar = match tokio::time::timeout(most, compile).await {
        Ok(grammar) => grammar?,
        Err(_) => {
            let what =
                format!("compiling the grammar or schema takes more than {most:?}; expected a simpler one");
            return Err(ApiError::new(400, what).with_code("invalid_grammar"));
        }
    };
    let cancel = CancelOnDrop(Cancel::default());
    let (inner, owner, runs) = (cancel.0.clone(), engine.clone(), job.clone());
    let (prompts, tickets) = blocking(move || {
        let prompts = runs.prompts(owner.batcher.codec(), &inner)?;
        let mut tickets: Vec<Ticket> = Vec::new();
        for prompt in &prompts {
            for at in 0..runs.n {
                let request = runs.request(at, grammar.as_ref())?;
                tickets.push(owner.batcher.submit(prompt.as_slice(), request)?);
            }
        }
        Ok((prompts, tickets))
    })
    .await?;
    let (sender, events) = mpsc::channel(WAITING);
    let tokenizer = engine.batcher.codec().tokenizer();
    for (index, ticket) in tickets.into_iter().enumerate() {
        let prompt = prompts.get(index / job.n.max(1)).map_or(&[][..], Vec::as_slice);
        let pump = Pump {
            index,
            ticket,
            parts: Parts::new(job.marks, &end_of(prompt, tokenizer), tokenizer),
            engine: engine.clone(),
            server: server.clone(),
            events: sender.clone(),
        };
        tokio::spawn(pump.run());
    }
    Ok(Answers {
        events,
        prompts: prompts.iter().map(Vec::len).collect(),
        n: job.n,
    })
}

/// The text of the last tokens of a prompt.
fn end_of(prompt: &[u32], tokenizer: &Tokenizer) -> String {
    let last = prompt.iter().skip(prompt.len().saturating_sub(8));
    let bytes = last.flat_map(|id| tokenizer.token(*id).unwrap_or_default().bytes);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Moves the pieces of an answer to its client's channel.
struct Pump {
    index: usize,
    ticket: Ticket,
    parts: Parts,
    /// Held, because a batcher that is dropped cancels its requests.
    engine: Arc<Engine>,
    server: Arc<Server>,
    events: mpsc::Sender<(usize, Event)>,
}

impl Pump {
    async fn run(mut self) {
        let start = Instant::now();
        let mut last = None;
        let why = loop {
            let piece = tokio::select! {
                piece = poll_fn(|cx| self.ticket.poll_next(cx)) => piece,
                () = self.events.closed() => break Ended::ClientLeft,
            };
            let tokenizer = self.engine.batcher.codec().tokenizer();
            let part = match piece {
                Some(Ok(piece)) => {
                    self.server.figures.token(start, &mut last);
                    self.parts.part(piece, tokenizer)
                }
                Some(Err(e)) => {
                    let sent = self.send(Event::Failed(e.into())).await;
                    break sent.unwrap_or(Ended::Failed);
                }
                None => break self.end().await,
            };
            if !part.is_empty()
                && let Some(why) = self.send(Event::Part(part)).await
            {
                break why;
            }
        };
        self.server.figures.end(why, start, &self.ticket.metrics());
    }

    /// Sends what is left of an answer, and its end.
    async fn end(&mut self) -> Ended {
        let rest = self.parts.rest();
        if !rest.is_empty()
            && let Some(why) = self.send(Event::Part(rest)).await
        {
            return why;
        }
        let finish = self.ticket.finish().and_then(|finish| self.parts.finish(finish));
        let (event, ended) = match finish {
            Some(finish) => (Event::End(finish, self.ticket.metrics()), Ended::Complete),
            None => (
                Event::Failed(ApiError::new(503, "the server is being stopped")),
                Ended::Failed,
            ),
        };
        self.send(event).await.unwrap_or(ended)
    }

    /// Sends an event. Returns why the answer ends, if nobody takes it.
    async fn send(&mut self, event: Event) -> Option<Ended> {
        // A client that does not read must not hold its place for ever.
        let sent = self.events.send((self.index, event));
        match tokio::time::timeout(self.server.options.stall, sent).await {
            Ok(Ok(())) => None,
            Ok(Err(_)) => Some(Ended::ClientLeft),
            Err(_) => Some(Ended::ClientStalled),
        }
    }
}

impl Answers {
    /// Number of answers.
    pub fn count(&self) -> usize {
        self.prompts.len() * self.n
    }

    fn usage(&self, metrics: &[Metrics]) -> Usage {
        let prompts = self.prompts.iter().zip(metrics.chunks(self.n.max(1)));
        prompts.fold(Usage::default(), |usage, (prompt, answers)| {
            usage.plus(Usage::of(*prompt, answers))
        })
    }

    /// All answers when they are complete, and the counts of tokens.
    pub async fn whole(mut self) -> Result<(Vec<Whole>, Usage), ApiError> {
        let mut all: Vec<Whole> = (0..self.count()).map(|_| Whole::default()).collect();
        let mut open = self.count();
        while open > 0 {
            let Some((index, event)) = self.events.recv().await else {
                return Err(closed());
            };
            let Some(whole) = all.get_mut(index) else {
                return Err(closed());
            };
            match event {
                Event::Part(part) => {
                    whole.log_probs.extend(part.log_prob);
                    for output in part.outputs {
                        match output {
                            Output::Text(text) => whole.text += &text,
                            Output::Thought(thought) => whole.thought += &thought,
                            Output::Call(call) => whole.calls.push(call),
                        }
                    }
                }
                Event::End(finish, metrics) => {
                    (whole.finish, whole.metrics) = (Some(finish), metrics);
                    open -= 1;
                }
                Event::Failed(e) => return Err(e),
            }
        }
        let metrics: Vec<Metrics> = all.iter().map(|whole| whole.metrics).collect();
        let usage = self.usage(&metrics);
        Ok((all, usage))
    }

    /// The answers as events while they are generated.
    pub fn stream(self, with_usage: bool, form: impl Form) -> Response {
        let mut events = Events {
            open: self.count(),
            metrics: vec![Metrics::default(); self.count()],
            answers: self,
            with_usage,
            form,
            ready: VecDeque::new(),
            ended: false,
        };
        for index in 0..events.open {
            if let Some(chunk) = events.form.first(index) {
                events.push(&chunk);
            }
        }
        let body = stream::unfold(events, |mut events| async {
            let event = events.next().await?;
            Some((Ok::<_, Infallible>(event), events))
        });
        let response = SseResponse::new(body).keep_alive(KeepAlive::new().interval(COMMENT));
        response.into_response()
    }
}

/// The error of a channel that ended without a last event.
fn closed() -> ApiError {
    ApiError::new(
        500,
        "the answer ended without a reason (a bug in this server; please report it)",
    )
}

/// The events of a stream.
struct Events<F: Form> {
    answers: Answers,
    /// Answers that are not complete.
    open: usize,
    metrics: Vec<Metrics>,
    with_usage: bool,
    form: F,
    ready: VecDeque<Sse>,
    ended: bool,
}

impl<F: Form> Events<F> {
    fn push(&mut self, chunk: &impl Serialize) {
        match serde_json::to_string(chunk) {
            Ok(text) => self.ready.push_back(Sse::default().data(text)),
            Err(e) => log::error!("cannot write an event: {e}"),
        }
    }

    /// The next event; `None` after the last.
    async fn next(&mut self) -> Option<Sse> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let event = self.answers.events.recv().await;
            self.take(event);
        }
    }

    fn take(&mut self, event: Option<(usize, Event)>) {
        match event {
            Some((index, Event::Part(part))) => {
                let chunk = self.form.part(index, part);
                self.push(&chunk);
            }
            Some((index, Event::End(finish, metrics))) => {
                if let Some(slot) = self.metrics.get_mut(index) {
                    *slot = metrics;
                }
                let chunk = self.form.end(index, finish);
                self.push(&chunk);
                self.open -= 1;
                if self.open == 0 {
                    self.end();
                }
            }
            Some((_, Event::Failed(e))) => self.fail(e),
            None => self.fail(closed()),
        }
    }

    /// What comes after all answers.
    fn end(&mut self) {
        if self.with_usage {
            let usage = self.answers.usage(&self.metrics);
            let chunk = self.form.usage(usage);
            self.push(&chunk);
        }
        self.ready.push_back(Sse::default().data("[DONE]"));
        self.ended = true;
    }

    /// An error ends the stream with all its answers.
    fn fail(&mut self, e: ApiError) {
        self.push(&crate::wire::ErrorResponse { error: e.body });
        self.ended = true;
    }
}
