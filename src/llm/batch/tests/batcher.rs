//! Requests and tickets.

use super::threads::hooked;
use super::{CONFIG, FakeRows, VOCAB, steps};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::llm::batch::batcher::{Batcher, Request, Sessions};
use crate::llm::batch::steps::StepRunner;
use crate::llm::codec::Codec;
use crate::llm::constraint::Constraint;
use crate::llm::load::PlaceName;
use crate::llm::testing::byte_codec;
use crate::llm::{Cancel, DefaultBound, Draft, Finish, GenerateOptions, NgramDraft, Session, StopStrings};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A batcher of `threads` requests at a time, over a model that fails in step `fails_in`, if any.
fn batcher(threads: usize, fails_in: Option<usize>) -> (tempfile::TempDir, Batcher) {
    over(threads, steps(fails_in))
}

fn over(threads: usize, steps: StepRunner) -> (tempfile::TempDir, Batcher) {
    let (dir, codec) = byte_codec("{}");
    let sessions = Sessions::Batch(steps);
    let batcher = Batcher::start(
        sessions,
        Arc::new(codec),
        threads,
        PlaceName::default(),
        Vec::new(),
    );
    (dir, batcher)
}

fn request(max_tokens: usize) -> Request {
    Request {
        options: GenerateOptions {
            max_tokens,
            ..GenerateOptions::default()
        },
        ..Request::default()
    }
}

fn prompt(seed: u32) -> Vec<u32> {
    (0..60 + seed * 5).map(|i| (i + seed) % VOCAB).collect()
}

/// What a session alone generates.
fn alone(codec: &Arc<Codec>, seed: u32, max_tokens: usize) -> String {
    let mut session = Session::new(Box::new(steps(None).sequence()), codec.clone());
    let options = request(max_tokens).options;
    session
        .generate(prompt(seed).as_slice(), &options)
        .unwrap()
        .text()
        .unwrap()
}

#[test]
fn requests_get_what_they_get_alone() {
    let (_dir, batcher) = batcher(5, None);
    let mut tickets: Vec<_> = (0..20)
        .map(|seed| {
            let mut request = request(30);
            request.draft = (seed % 3 == 0).then(|| (Box::new(NgramDraft::default()) as _, 3));
            batcher.submit(prompt(seed).as_slice(), request).unwrap()
        })
        .collect();
    for (seed, ticket) in (0..).zip(&mut tickets) {
        assert_eq!(ticket.text().unwrap(), alone(batcher.codec(), seed, 30), "{seed}");
        assert_eq!(ticket.finish(), Some(Finish::MaxTokens));
        let metrics = ticket.metrics();
        let fed = metrics.prompt_tokens + metrics.reused_tokens;
        assert_eq!((fed, metrics.tokens), (prompt(seed).len(), 30));
    }
    let again = || {
        let mut ticket = batcher.submit(prompt(19).as_slice(), request(1)).unwrap();
        ticket.text().unwrap();
        ticket.metrics()
    };
    again();
    let metrics = again();
    assert_eq!((metrics.prompt_tokens, metrics.reused_tokens), (27, 128));
}

/// Allows every token, and always reports a bound.
struct Full;

impl Constraint for Full {
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    fn mask(&mut self, _: &mut [f32]) -> Result<()> {
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn reached(&self) -> Vec<DefaultBound> {
        vec![DefaultBound::Items]
    }
}

#[test]
fn a_ticket_has_the_bounds_that_its_text_reached() {
    let (_dir, batcher) = batcher(1, None);
    let mut limited = request(3);
    limited.sampler = std::mem::take(&mut limited.sampler).constrained(Box::new(Full));
    let mut ticket = batcher.submit(prompt(1).as_slice(), limited).unwrap();
    assert_eq!(ticket.reached(), []);
    ticket.text().unwrap();
    assert_eq!(ticket.reached(), [DefaultBound::Items]);
}

#[test]
fn no_more_threads_are_started_than_requests_need() {
    let (_dir, batcher) = batcher(usize::MAX, None);
    let submit = |seed| batcher.submit(prompt(seed).as_slice(), request(5)).unwrap();
    let mut tickets = [1, 2, 3].map(|seed| (seed, submit(seed)));
    for (seed, ticket) in &mut tickets {
        assert_eq!(ticket.text().unwrap(), alone(batcher.codec(), *seed, 5));
    }
}

#[test]
fn a_session_shares_steps_with_requests() {
    let (_dir, batcher) = batcher(2, None);
    let mut ticket = batcher.submit(prompt(1).as_slice(), request(30)).unwrap();
    let mut session = batcher.session().unwrap();
    let options = request(20).options;
    let text = session
        .generate(prompt(2).as_slice(), &options)
        .unwrap()
        .text()
        .unwrap();
    assert_eq!(text, alone(batcher.codec(), 2, 20));
    // A fork goes on from the same tokens.
    let mut fork = session.fork().unwrap();
    let longer = [prompt(2), vec![1, 2, 3]].concat();
    for session in [&mut fork, &mut session] {
        let mut answer = session.generate(longer.as_slice(), &options).unwrap();
        assert_eq!(answer.reused(), prompt(2).len());
        assert_eq!(answer.text().unwrap().chars().count(), 20);
    }
    assert_eq!(ticket.text().unwrap(), alone(batcher.codec(), 1, 30));
}

#[test]
fn cancelled_requests_end_wherever_they_are() {
    // Slow steps, so that no request ends before it is cancelled.
    let model = FakeRows {
        time: Duration::from_millis(2),
        ..FakeRows::new(CONFIG, true)
    };
    let (_dir, batcher) = over(1, StepRunner::start(model).unwrap());
    let mut running = batcher.submit(prompt(1).as_slice(), request(190)).unwrap();
    running.next().unwrap().unwrap();
    let all = Cancel::default();
    let mut shared = request(9);
    shared.options.cancel = all.clone();
    let mut by_flag = batcher.submit(prompt(2).as_slice(), shared).unwrap();
    let mut by_ticket = batcher.submit(prompt(3).as_slice(), request(9)).unwrap();
    drop(batcher.submit(prompt(3).as_slice(), request(9)).unwrap());
    by_ticket.cancel();
    assert!(by_ticket.next().is_none());
    assert_eq!(by_ticket.finish(), Some(Finish::Cancelled));
    all.cancel();
    running.cancel();
    assert!(running.by_ref().all(|piece| piece.is_ok()));
    assert_eq!(running.finish(), Some(Finish::Cancelled));
    assert!(by_flag.next().is_none());
    assert_eq!(by_flag.finish(), Some(Finish::Cancelled));
    // Requests of a batcher that is dropped end as well.
    let mut last = batcher.submit(prompt(1).as_slice(), request(190)).unwrap();
    last.next().unwrap().unwrap();
    let mut waiting = batcher.submit(prompt(1).as_slice(), request(190)).unwrap();
    drop(batcher);
    for ticket in [&mut last, &mut waiting] {
        assert!(ticket.by_ref().all(|piece| piece.is_ok()));
        assert_eq!(ticket.finish(), Some(Finish::Cancelled));
    }
}

#[test]
fn nothing_is_submitted_after_the_last_step() {
    let hook = || Err(Error::other(Stage::Run, "gone").of_kind(ErrorKind::DeviceLost));
    let (_dir, batcher) = over(1, hooked(hook));
    assert!(batcher.is_alive());
    let mut ticket = batcher.submit(&[1u32, 2][..], request(9)).unwrap();
    assert_eq!(ticket.text().unwrap_err().kind(), ErrorKind::DeviceLost);
    assert!(!batcher.is_alive());
    let e = batcher.submit(&[1u32, 2][..], request(9)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DeviceLost);
}

#[test]
fn errors_come_once_and_the_batcher_goes_on() {
    let (_dir, batcher) = batcher(1, Some(2));
    let long = vec![1; 257];
    let e = batcher.submit(long.as_slice(), request(1)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ContextExceeded);
    let mut ticket = batcher.submit(prompt(1).as_slice(), request(9)).unwrap();
    let kinds: Vec<ErrorKind> = ticket.by_ref().filter_map(|p| Some(p.err()?.kind())).collect();
    assert_eq!((kinds, ticket.finish()), (vec![ErrorKind::OutOfMemory], None));
    let mut ticket = batcher.submit(prompt(1).as_slice(), request(9)).unwrap();
    assert_eq!(ticket.text().unwrap(), alone(batcher.codec(), 1, 9));
    let mut empty = batcher.submit(&[][..] as &[u32], request(9)).unwrap();
    assert!(empty.next().unwrap().unwrap_err().is_usage());
}

/// Priorities of the requests whose drafts were asked.
type Asked = Arc<Mutex<Vec<i32>>>;

/// Notes its priority.
struct Asks(i32, Asked);

impl Draft for Asks {
    fn propose(&mut self, _: &[u32], _: usize, _: &Cancel) -> Result<Vec<u32>> {
        self.1.lock().unwrap().push(self.0);
        Ok(Vec::new())
    }
}

struct Panics;

impl Draft for Panics {
    fn propose(&mut self, _: &[u32], _: usize, _: &Cancel) -> Result<Vec<u32>> {
        panic!("a bug")
    }
}

#[test]
fn larger_priorities_go_first() {
    let (_dir, batcher) = batcher(1, None);
    let mut first = batcher.submit(prompt(1).as_slice(), request(150)).unwrap();
    first.next().unwrap().unwrap();
    let asked = Asked::default();
    let submit = |priority| {
        let request = Request {
            priority,
            draft: Some((Box::new(Asks(priority, asked.clone())), 4)),
            ..request(20)
        };
        batcher.submit(prompt(2).as_slice(), request).unwrap()
    };
    let (mut low, mut high) = (submit(0), submit(1));
    first.cancel();
    for ticket in [&mut low, &mut high] {
        assert_eq!(ticket.text().unwrap(), alone(batcher.codec(), 2, 20));
    }
    // One at a time.
    let mut order = asked.lock().unwrap().clone();
    order.dedup();
    assert_eq!(order, [1, 0]);
}

#[test]
fn a_panic_ends_its_request_and_no_other() {
    let (_dir, batcher) = batcher(1, None);
    let panics = Request {
        draft: Some((Box::new(Panics), 4)),
        ..request(20)
    };
    let mut ticket = batcher.submit(prompt(2).as_slice(), panics).unwrap();
    let kinds: Vec<ErrorKind> = ticket.by_ref().filter_map(|p| Some(p.err()?.kind())).collect();
    assert_eq!(kinds, [ErrorKind::Internal]);
    let mut next = batcher.submit(prompt(2).as_slice(), request(20)).unwrap();
    assert_eq!(next.text().unwrap(), alone(batcher.codec(), 2, 20));
}

/// Counts its wakes, and unparks a thread.
struct Sleeper {
    thread: std::thread::Thread,
    wakes: AtomicUsize,
}

impl std::task::Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

fn sleeper() -> Arc<Sleeper> {
    let (thread, wakes) = (std::thread::current(), AtomicUsize::new(0));
    Arc::new(Sleeper { thread, wakes })
}

#[test]
fn polled_tickets_wake_their_task() {
    let (_dir, batcher) = batcher(3, None);
    let sleeper = sleeper();
    let waker = Waker::from(sleeper.clone());
    let mut cx = Context::from_waker(&waker);
    let submit = |seed| batcher.submit(prompt(seed).as_slice(), request(20)).unwrap();
    let mut tickets: Vec<_> = (0..6).map(|seed| (submit(seed), String::new(), false)).collect();
    let (mut polls, mut pieces) = (0, 0);
    while tickets.iter().any(|t| !t.2) {
        let mut pending = true;
        for (ticket, text, ended) in tickets.iter_mut().filter(|t| !t.2) {
            polls += 1;
            match ticket.poll_next(&mut cx) {
                Poll::Ready(Some(piece)) => {
                    text.push_str(&piece.unwrap().text);
                    pieces += 1;
                }
                Poll::Ready(None) => *ended = true,
                Poll::Pending => continue,
            }
            pending = false;
        }
        if pending {
            std::thread::park();
        }
    }
    for (seed, (ticket, text, _)) in (0..).zip(&mut tickets) {
        assert_eq!(*text, alone(batcher.codec(), seed, 20), "{seed}");
        assert_eq!(ticket.finish(), Some(Finish::MaxTokens));
        assert!(matches!(ticket.poll_next(&mut cx), Poll::Ready(None)));
    }
    // Each wake polls all tickets at most twice.
    let wakes = sleeper.wakes.load(Ordering::SeqCst);
    assert!(wakes > 0 && wakes <= pieces + 12, "{wakes} {pieces}");
    assert!(polls <= 12 * (wakes + pieces + 1), "{polls} {wakes} {pieces}");
}

#[test]
fn the_end_of_a_waiting_request_wakes_its_task() {
    // Slow steps, so that the first request keeps the others waiting.
    let model = FakeRows {
        time: Duration::from_millis(20),
        ..FakeRows::new(CONFIG, true)
    };
    let (_dir, batcher) = over(1, StepRunner::start(model).unwrap());
    let sleeper = sleeper();
    let waker = Waker::from(sleeper.clone());
    let mut cx = Context::from_waker(&waker);
    let first = batcher.submit(prompt(1).as_slice(), request(190)).unwrap();
    let submit = |cancel: &Cancel| {
        let mut request = request(5);
        request.options.cancel = cancel.clone();
        batcher.submit(prompt(2).as_slice(), request).unwrap()
    };
    let cancel = Cancel::default();
    let [mut left, mut flagged, mut closed] =
        [Cancel::default(), cancel.clone(), Cancel::default()].map(|c| submit(&c));
    let mut wakes = 0;
    let mut woken = || {
        let now = sleeper.wakes.load(Ordering::SeqCst);
        std::mem::replace(&mut wakes, now) < now
    };
    for ticket in [&mut left, &mut flagged, &mut closed] {
        assert!(ticket.poll_next(&mut cx).is_pending());
    }
    assert!(!woken());
    left.cancel();
    assert!(woken());
    assert!(matches!(left.poll_next(&mut cx), Poll::Ready(None)));
    // The next poll sees the flag.
    cancel.cancel();
    assert!(matches!(flagged.poll_next(&mut cx), Poll::Ready(None)));
    drop(first);
    drop(batcher);
    assert!(woken());
    // The last one ran, or was taken out of the queue.
    while let Poll::Ready(Some(piece)) = closed.poll_next(&mut cx) {
        piece.unwrap();
    }
    for ticket in [left, flagged] {
        assert_eq!(ticket.finish(), Some(Finish::Cancelled));
    }
    assert!(matches!(closed.poll_next(&mut cx), Poll::Ready(None)));
}

#[test]
fn pieces_have_log_probabilities_and_stop_strings_are_named() {
    let (_dir, batcher) = batcher(1, None);
    let text = alone(batcher.codec(), 1, 40);
    let end: String = text.chars().skip(10).take(2).collect();
    let mut request = request(40);
    request.options.log_probs = Some(2);
    request.options.stop = StopStrings::new(vec!["none".to_owned(), end.clone()]).unwrap();
    let mut ticket = batcher.submit(prompt(1).as_slice(), request).unwrap();
    for piece in ticket.by_ref() {
        let piece = piece.unwrap();
        let log_probs = piece.log_probs.unwrap();
        assert_eq!(log_probs.top.len(), 2);
        let (token, first) = (piece.token.unwrap().id, &log_probs.top[0]);
        assert_eq!((first.id, first.log_prob), (token, log_probs.chosen));
        let text = String::from_utf8_lossy(&[u8::try_from(token).unwrap()]).into_owned();
        assert_eq!((&first.text, &log_probs.text), (&text, &text));
        let second = batcher.codec().tokenizer().token(log_probs.top[1].id).unwrap();
        assert_eq!(log_probs.top[1].text, String::from_utf8_lossy(&second.bytes));
    }
    assert_eq!(
        (ticket.finish(), ticket.stop()),
        (Some(Finish::Stop), Some(end.as_str()))
    );
}
