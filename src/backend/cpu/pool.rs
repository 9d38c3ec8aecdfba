//! Threads that share the pieces of dispatches.
//!
//! A thread that is free takes the next piece. The caller waits for pieces, not for threads, so a
//! thread that the system has suspended delays nothing unless it is inside a piece. Threads without
//! work spin for some microseconds, because the next dispatch usually follows at once, then sleep.
//!
//! Dispatches of several callers run at the same time, each in a slot. Threads of the pool take
//! pieces from all slots in turn; a caller takes only its own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A wait that spins before the thread sleeps. After some rounds, each offers the core to others:
/// one of them may be the thread that it waits for.
#[derive(Default)]
struct Spin(u32);

impl Spin {
    /// Rounds that only spin: some microseconds.
    const QUIET: u32 = 500;
    /// Rounds until the thread should sleep.
    const ALL: u32 = 1500;

    /// Does a round; false if the thread should sleep.
    fn round(&mut self) -> bool {
        self.0 += 1;
        match self.0 {
            ..Self::QUIET => std::hint::spin_loop(),
            _ => std::thread::yield_now(),
        }
        self.0 < Self::ALL
    }
}

/// Bits of each of the ticket's two numbers of pieces.
const PIECES: u32 = 32;
/// Number of dispatches that share the threads. Callers beyond it keep cores busy by themselves.
const SLOTS: usize = 4;

/// The work of a piece, with its index.
type PieceFn<'a> = dyn Fn(usize) + Sync + 'a;

/// A pool of threads.
pub struct Pool {
    shared: Arc<Shared>,
    /// The threads besides the caller.
    workers: Vec<JoinHandle<()>>,
}

/// A piece panicked with this message. This is a bug in a kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct Panicked(pub String);

impl Panicked {
    fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|t| (*t).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self(text.unwrap_or_else(|| "no message".to_owned()))
    }
}

/// A dispatch of one caller, then of another. Slots are on different cache lines.
#[repr(align(128))]
#[derive(Default)]
struct Slot {
    /// A caller uses the slot.
    taken: AtomicBool,
    /// The dispatch's number of pieces in the high bits, and the next piece in the low bits. A
    /// thread that takes a piece of a later dispatch than it looked at does the work of that one.
    ticket: AtomicU64,
    /// Pieces of the dispatch that are done.
    done: AtomicUsize,
    /// The address of the dispatch's work, valid until all pieces are done.
    work: AtomicPtr<&'static PieceFn<'static>>,
    /// The first panic of the dispatch.
    panicked: Mutex<Option<Panicked>>,
    caller_sleeps: AtomicBool,
    lock: Mutex<()>,
    /// Signaled when all pieces are done.
    finished: Condvar,
}

struct Shared {
    slots: [Slot; SLOTS],
    stop: AtomicBool,
    sleeping: AtomicUsize,
    lock: Mutex<()>,
    /// Signaled when there is work or the pool stops.
    wake: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    fn total(ticket: u64) -> u64 {
        ticket >> PIECES
    }

    fn next(ticket: u64) -> u64 {
        ticket & ((1 << PIECES) - 1)
    }

    /// Makes the slot the caller's; false if another uses it.
    fn claim(&self) -> bool {
        !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Acquire)
    }

    /// Takes the next piece.
    fn take(&self) -> Option<usize> {
        let mut ticket = self.ticket.load(Ordering::Acquire);
        loop {
            if Self::next(ticket) >= Self::total(ticket) {
                return None;
            }
            match self
                .ticket
                .compare_exchange_weak(ticket, ticket + 1, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(Self::next(ticket) as usize),
                Err(now) => ticket = now,
            }
        }
    }

    fn has_work(&self) -> bool {
        let ticket = self.ticket.load(Ordering::SeqCst);
        Self::next(ticket) < Self::total(ticket)
    }

    /// Runs the next piece; false if none is left.
    fn help(&self) -> bool {
        let Some(piece) = self.take() else {
            return false;
        };
        let work = self.work.load(Ordering::Acquire);
        // SAFETY: the caller keeps the work alive until all pieces are done, and this piece is not
        // done. Until then, no other dispatch begins in this slot.
        let work = unsafe { *work };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(piece))) {
            lock(&self.panicked).get_or_insert_with(|| Panicked::new(payload.as_ref()));
        }
        let total = Self::total(self.ticket.load(Ordering::Relaxed)) as usize;
        let done = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        if done == total && self.caller_sleeps.load(Ordering::SeqCst) {
            let _guard = lock(&self.lock);
            self.finished.notify_one();
        }
        true
    }

    /// Waits until all pieces are done.
    fn wait(&self, pieces: usize) {
        let is_done = || self.done.load(Ordering::SeqCst) == pieces;
        let mut spin = Spin::default();
        while !is_done() {
            if spin.round() {
                continue;
            }
            let mut guard = lock(&self.lock);
            self.caller_sleeps.store(true, Ordering::SeqCst);
            while !is_done() {
                guard = self.finished.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.caller_sleeps.store(false, Ordering::SeqCst);
        }
    }
}

impl Shared {
    fn has_work(&self) -> bool {
        self.slots.iter().any(Slot::has_work)
    }

    /// Runs a piece of each slot; false if there was none.
    fn help(&self) -> bool {
        self.slots.iter().fold(false, |helped, slot| slot.help() | helped)
    }

    /// The loop of a worker thread.
    fn serve(&self) {
        let mut spin = Spin::default();
        while !self.stop.load(Ordering::Relaxed) {
            if self.help() {
                spin = Spin::default();
            } else if !spin.round() {
                let guard = lock(&self.lock);
                self.sleeping.fetch_add(1, Ordering::SeqCst);
                if !self.has_work() && !self.stop.load(Ordering::SeqCst) {
                    drop(self.wake.wait(guard));
                }
                self.sleeping.fetch_sub(1, Ordering::SeqCst);
                spin = Spin::default();
            }
        }
    }
}

impl Pool {
    /// A pool of `threads` threads, including the caller of [`Pool::run`]; fewer if the system
    /// cannot start them all.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            slots: Default::default(),
            stop: AtomicBool::new(false),
            sleeping: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let start = |_| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("tlite-cpu".to_owned());
            thread.spawn(move || shared.serve()).ok()
        };
        let workers = (1..threads).map_while(start).collect();
        Self { shared, workers }
    }

    /// Number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work` with each index in `0..pieces`, on several threads. Several callers share the
    /// threads.
    pub fn run(&self, pieces: usize, work: &PieceFn<'_>) -> Result<(), Panicked> {
        let shared = &*self.shared;
        let shares = !self.workers.is_empty() && (2..1 << PIECES).contains(&(pieces as u64));
        let free = || shared.slots.iter().find(|slot| slot.claim());
        let Some(slot) = shares.then(free).flatten() else {
            let all = AssertUnwindSafe(|| (0..pieces).for_each(work));
            return catch_unwind(all).map_err(|payload| Panicked::new(payload.as_ref()));
        };
        // SAFETY: only the lifetime changes; this function returns after all pieces are done, and
        // no thread reads the work after that. It does not unwind before: pieces catch panics.
        let mut work: &'static PieceFn<'static> =
            unsafe { std::mem::transmute::<&PieceFn<'_>, &'static PieceFn<'static>>(work) };
        slot.done.store(0, Ordering::Relaxed);
        slot.work.store(&raw mut work, Ordering::Release);
        slot.ticket.store((pieces as u64) << PIECES, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&shared.lock);
            shared.wake.notify_all();
        }
        while slot.help() {}
        slot.wait(pieces);
        let panicked = lock(&slot.panicked).take();
        // The next dispatch may panic as soon as it has the slot.
        slot.taken.store(false, Ordering::Release);
        panicked.map_or(Ok(()), Err)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _guard = lock(&self.shared.lock);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches panics.
            let _ended = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_runs_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            for pieces in (0..200).chain([1000]) {
                let counts: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                pool.run(pieces, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                assert!(
                    counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                    "{threads}, {pieces}"
                );
            }
        }
    }

    #[test]
    fn callers_share_a_pool() {
        let pool = Pool::new(3);
        std::thread::scope(|scope| {
            for _ in 0..SLOTS + 2 {
                scope.spawn(|| {
                    for pieces in 1..100 {
                        let sum = AtomicUsize::new(0);
                        pool.run(pieces, &|i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        })
                        .unwrap();
                        assert_eq!(sum.load(Ordering::Relaxed), pieces * (pieces - 1) / 2);
                    }
                });
            }
        });
    }

    /// A dispatch that begins during another one is not left to its caller.
    #[test]
    fn dispatches_of_two_callers_share_threads() {
        let pool = Pool::new(4);
        let release = AtomicBool::new(false);
        let begun = AtomicUsize::new(0);
        let until = |done: &dyn Fn() -> bool| {
            let start = std::time::Instant::now();
            while !done() && start.elapsed().as_secs() < 20 {
                std::thread::yield_now();
            }
            done()
        };
        std::thread::scope(|scope| {
            // Occupies its caller and a thread of the pool.
            scope.spawn(|| {
                pool.run(2, &|_| {
                    begun.fetch_add(1, Ordering::SeqCst);
                    until(&|| release.load(Ordering::SeqCst));
                })
            });
            assert!(until(&|| begun.load(Ordering::SeqCst) == 2));
            let inside = AtomicUsize::new(0);
            pool.run(3, &|_| {
                inside.fetch_add(1, Ordering::SeqCst);
                assert!(
                    until(&|| inside.load(Ordering::SeqCst) == 3),
                    "pieces run at the same time"
                );
            })
            .unwrap();
            release.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_goes_on() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            let found = pool.run(8, &|i| assert!(i != 5, "piece {i}"));
            assert_eq!(found, Err(Panicked("piece 5".to_owned())));
            assert!(pool.run(8, &|_| ()).is_ok());
        }
    }
}
