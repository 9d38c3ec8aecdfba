//! Runs a job and delivers its answers.

use super::metrics::Ended;
use super::tokens::written;
use super::{ApiError, Engine, Server, blocking, now};
use crate::wire::{
    Common, ErrorResponse, FinishReason, Job, LogProb, Output, Part, Parts, ToolCall, Usage, unique,
};
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
use transformer_lite::{Cancel, Grammar, Metrics, Ticket, Tokenizer};

/// Events of an answer that may wait for their client.
const WAITING: usize = 256;
/// How often a stream without events sends a comment, so that proxies keep it.
const COMMENT: Duration = Duration::from_secs(15);

/// What happens to an answer.
enum Event {
    Part(Part),
    End(End),
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
    pub end: Option<End>,
}

impl Whole {
    /// Why it ended.
    pub fn finish(&self) -> Option<FinishReason> {
        self.end.as_ref().map(|end| end.finish)
    }
}

/// How an answer ended.
pub(super) struct End {
    pub finish: FinishReason,
    /// The stop string that ended it.
    pub stop: Option<String>,
    pub metrics: Metrics,
}

/// Events of a stream that can be sent.
#[derive(Default)]
pub(super) struct Out(VecDeque<Sse>);

impl Out {
    /// Adds an event.
    pub fn data(&mut self, chunk: &impl Serialize) {
        self.push(Sse::default(), chunk);
    }

    /// Adds an event with a name.
    pub fn named(&mut self, name: &str, chunk: &impl Serialize) {
        self.push(Sse::default().event(name), chunk);
    }

    /// Adds an event that is not JSON.
    pub fn text(&mut self, text: &str) {
        self.0.push_back(Sse::default().data(text));
    }

    fn push(&mut self, event: Sse, chunk: &impl Serialize) {
        match serde_json::to_string(chunk) {
            Ok(text) => self.0.push_back(event.data(text)),
            Err(e) => log::error!("cannot write an event: {e}"),
        }
    }
}

/// The form that a route gives events.
pub(super) trait Form: Send + 'static {
    /// The beginning of an answer.
    fn first(&mut self, index: usize, out: &mut Out);
    /// More of an answer.
    fn part(&mut self, index: usize, part: Part, out: &mut Out);
    /// The end of an answer.
    fn end(&mut self, index: usize, end: &End, out: &mut Out);
    /// The end of all answers.
    fn close(&mut self, usage: Usage, out: &mut Out);
    /// An error, which ends the stream.
    fn fail(&mut self, e: ApiError, out: &mut Out) {
        out.data(&ErrorResponse { error: e.body });
    }
}

/// What all objects of a response in OpenAI's form name.
pub(super) struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub log_probs: bool,
    /// A stream ends with the counts of tokens.
    pub wants_usage: bool,
}

impl Head {
    /// For a response whose name begins with `prefix`.
    pub fn new(prefix: &str, model: String, common: &Common, job: &Job) -> Self {
        Self {
            id: format!("{prefix}-{:016x}", unique()),
            created: now(),
            model,
            log_probs: job.wants_log_probs(),
            wants_usage: common.wants_usage(),
        }
    }
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
    let grammar = match job.is_constrained() {
        true => compiled(server, &engine, &job).await?,
        false => None,
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

/// The grammar of `job`. Few are compiled at a time, each within a time.
async fn compiled(
    server: &Server,
    engine: &Arc<Engine>,
    job: &Arc<Job>,
) -> Result<Option<Grammar>, ApiError> {
    let place = server.compiling.clone().acquire_owned().await;
    let place = place.map_err(|e| ApiError::new(503, e.to_string()))?;
    let (job, engine) = (job.clone(), engine.clone());
    let compile = blocking(move || {
        // Kept to the end, also if nobody waits any more.
        let _place = place;
        job.grammar(engine.batcher.codec())
    });
    let most = server.options.compile;
    tokio::time::timeout(most, compile).await.unwrap_or_else(|_| {
        let what =
            format!("compiling the grammar or schema takes more than {most:?}; expected a simpler one");
        Err(ApiError::new(400, what).with_code("invalid_grammar"))
    })
}

/// The text of the last tokens of a prompt.
fn end_of(prompt: &[u32], tokenizer: &Tokenizer) -> String {
    let (_, last) = prompt.split_at(prompt.len().saturating_sub(8));
    written(last, tokenizer)
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
            Some(finish) => {
                let end = End {
                    finish,
                    stop: self.ticket.stop().map(str::to_owned),
                    metrics: self.ticket.metrics(),
                };
                (Event::End(end), Ended::Complete)
            }
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
                Event::End(end) => {
                    whole.end = Some(end);
                    open -= 1;
                }
                Event::Failed(e) => return Err(e),
            }
        }
        let metrics = all.iter().flat_map(|whole| &whole.end).map(|end| end.metrics);
        let metrics: Vec<Metrics> = metrics.collect();
        let usage = self.usage(&metrics);
        Ok((all, usage))
    }

    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().sum()
    }

    /// The answers as events while they are generated.
    pub fn stream(self, form: impl Form) -> Response {
        let mut events = Events {
            open: self.count(),
            metrics: vec![Metrics::default(); self.count()],
            answers: self,
            form,
            out: Out::default(),
            ended: false,
        };
        for index in 0..events.open {
            events.form.first(index, &mut events.out);
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
    form: F,
    out: Out,
    ended: bool,
}

impl<F: Form> Events<F> {
    /// The next event; `None` after the last.
    async fn next(&mut self) -> Option<Sse> {
        loop {
            if let Some(event) = self.out.0.pop_front() {
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
            Some((index, Event::Part(part))) => self.form.part(index, part, &mut self.out),
            Some((index, Event::End(end))) => {
                self.form.end(index, &end, &mut self.out);
                if let Some(slot) = self.metrics.get_mut(index) {
                    *slot = end.metrics;
                }
                self.open -= 1;
                if self.open == 0 {
                    let usage = self.answers.usage(&self.metrics);
                    self.form.close(usage, &mut self.out);
                    self.ended = true;
                }
            }
            Some((_, Event::Failed(e))) => self.fail(e),
            None => self.fail(closed()),
        }
    }

    /// An error ends the stream with all its answers.
    fn fail(&mut self, e: ApiError) {
        self.form.fail(e, &mut self.out);
        self.ended = true;
    }
}
