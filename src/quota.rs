//! What a call that loads or runs a model may still consume: memory of host tensors, time and
//! iterations of loops.
//!
//! Such a call enters its [`Quota`] on its thread. Whatever creates host tensors or repeats work on
//! that thread then draws on the quota, so that neither operators nor passes pass it around.
//! Without a quota only the size of each list of elements is limited.

use crate::cancel::Cancel;
use crate::num;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The advice in a message about an exceeded limit; `limit` is one of `Limits::NAMES`.
pub(crate) fn raise(limit: &str) -> String {
    format!("raise `{limit}` in `limits` (`--limits`) if you trust the model")
}

/// Why a call must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// A tensor in host memory would exceed the limit.
    #[error(
        "cannot allocate {wanted} bytes of host memory: {used} of {limit} bytes are in use; {}",
        raise("memory")
    )]
    Memory { wanted: u64, used: u64, limit: u64 },
    /// The call took too long.
    #[error("the time limit of {0:?} is exceeded; {hint}", hint = raise("time"))]
    Time(Duration),
    /// Loops ran too many iterations.
    #[error("loops exceed the limit of {0} iterations; {hint}", hint = raise("iterations"))]
    Iterations(u64),
    /// The caller cancelled the call.
    #[error("cancelled")]
    Cancelled,
}

/// The memory that the tensors of one model share, in bytes.
#[derive(Debug)]
struct Memory {
    limit: u64,
    used: AtomicU64,
}

impl Memory {
    fn exceeded(&self, wanted: u64, used: u64) -> Exceeded {
        Exceeded::Memory {
            wanted,
            used,
            limit: self.limit,
        }
    }

    fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, Exceeded> {
        let after = |used: u64| used.checked_add(bytes).filter(|n| *n <= self.limit);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after)
            .map_err(|used| self.exceeded(bytes, used))?;
        Ok(Reservation(Some((self.clone(), bytes))))
    }
}

/// Bytes drawn from a quota; dropping it returns them.
#[derive(Debug, Default)]
pub struct Reservation(Option<(Arc<Memory>, u64)>);

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some((memory, bytes)) = &self.0 {
            memory.used.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }
}

/// What the calls of one model may consume. Calls share the memory; time and iterations are for
/// each call.
#[derive(Clone, Debug)]
pub struct Quota {
    memory: Arc<Memory>,
    time: Option<Duration>,
    iterations: u64,
}

/// What applies to a thread.
#[derive(Clone, Debug, Default)]
struct Current {
    quota: Option<Quota>,
    /// When the call began, if its time is limited.
    since: Option<Instant>,
    /// Iterations that ran in the call.
    iterations: u64,
    cancel: Option<Cancel>,
    /// Quotas that are entered do not limit time.
    untimed: bool,
}

thread_local! {
    static CURRENT: RefCell<Current> = RefCell::default();
}

/// The time during which a quota or a [`Cancel`] applies to its thread; dropping it restores what
/// applied before.
#[must_use = "it applies until this is dropped"]
#[derive(Debug)]
pub struct Entered {
    previous: Current,
    /// It belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let previous = std::mem::take(&mut self.previous);
        // A thread that ends has nothing to restore.
        let _ = CURRENT.try_with(|current| current.replace(previous));
    }
}

/// Replaces parts of what applies to this thread.
fn enter(change: impl FnOnce(&mut Current)) -> Entered {
    let previous = with(|current| {
        let previous = current.clone();
        change(current);
        previous
    });
    Entered {
        previous: previous.unwrap_or_default(),
        not_send: PhantomData,
    }
}

impl Quota {
    pub fn new(memory: u64, time: Option<Duration>, iterations: u64) -> Self {
        let memory = Memory {
            limit: memory,
            used: AtomicU64::new(0),
        };
        Self {
            memory: Arc::new(memory),
            time,
            iterations,
        }
    }

    /// The quota that applies to this thread.
    pub fn current() -> Option<Self> {
        with(|current| current.quota.clone()).flatten()
    }

    /// Applies the quota to this thread. A call begins: its time and iterations count from now.
    pub fn enter(&self) -> Entered {
        enter(|current| {
            let timed = self.time.filter(|_| !current.untimed);
            current.since = timed.map(|_| Instant::now());
            current.iterations = 0;
            current.quota = Some(self.clone());
        })
    }

    /// Bytes that further tensors may take.
    pub fn left(&self) -> u64 {
        self.memory.limit.saturating_sub(self.used())
    }

    /// Maximum duration of a call.
    pub fn time(&self) -> Option<Duration> {
        self.time
    }

    /// Bytes of the tensors that exist now.
    pub fn used(&self) -> u64 {
        self.memory.used.load(Ordering::Relaxed)
    }
}

/// Lets `cancel` end the calls on this thread.
pub fn cancellable(cancel: &Cancel) -> Entered {
    enter(|current| current.cancel = Some(cancel.clone()))
}

/// Work for several calls, which neither the time of one of them nor its [`Cancel`] may end. Time
/// is not limited, also by quotas that are entered meanwhile.
pub fn common() -> Entered {
    enter(|current| (current.cancel, current.since, current.untimed) = (None, None, true))
}

/// Applies `f` to what applies to this thread; `None` if the thread ends.
fn with<T>(f: impl FnOnce(&mut Current) -> T) -> Option<T> {
    CURRENT.try_with(|current| f(&mut current.borrow_mut())).ok()
}

/// Fails if the call was cancelled or has no time left.
pub fn check() -> Result<(), Exceeded> {
    with(|current| {
        if current.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
            return Err(Exceeded::Cancelled);
        }
        let limit = current.quota.as_ref().and_then(|q| q.time);
        match current.since.zip(limit) {
            Some((since, limit)) if since.elapsed() > limit => Err(Exceeded::Time(limit)),
            _ => Ok(()),
        }
    })
    .unwrap_or(Ok(()))
}

/// Counts an iteration of a loop; fails like [`check`], and if there were too many.
pub fn iterate() -> Result<(), Exceeded> {
    check()?;
    with(|current| {
        current.iterations += 1;
        match &current.quota {
            Some(quota) if current.iterations > quota.iterations => {
                Err(Exceeded::Iterations(quota.iterations))
            }
            _ => Ok(()),
        }
    })
    .unwrap_or(Ok(()))
}

/// Maximum bytes of one request without a quota. Sizes can come from data.
const MAX_REQUEST: u64 = 1 << 34;

/// Draws `bytes` from the quota.
pub fn reserve(bytes: usize) -> Result<Reservation, Exceeded> {
    let bytes = num::wide(bytes);
    with(|current| match &current.quota {
        Some(quota) => quota.memory.reserve(bytes),
        None if bytes <= MAX_REQUEST => Ok(Reservation::default()),
        None => Err(Exceeded::Memory {
            wanted: bytes,
            used: 0,
            limit: MAX_REQUEST,
        }),
    })
    .unwrap_or_else(|| Ok(Reservation::default()))
}

/// Fails if fewer than `bytes` are left in the quota, but does not reserve them. Use it for memory
/// that is freed before the next tensor is created.
pub fn admit(bytes: usize) -> Result<(), Exceeded> {
    reserve(bytes).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_and_shared_by_calls() {
        let quota = Quota::new(10, None, 0);
        let entered = quota.enter();
        let six = reserve(6).unwrap();
        let five = Exceeded::Memory {
            wanted: 5,
            used: 6,
            limit: 10,
        };
        assert_eq!(reserve(5).unwrap_err(), five);
        admit(4).unwrap();
        drop(entered);
        assert_eq!(quota.used(), 6);
        admit(1 << 30).unwrap();
        let _again = quota.enter();
        assert_eq!(admit(5).unwrap_err(), five);
        drop(six);
        assert_eq!(quota.used(), 0);
        admit(10).unwrap();
    }

    #[test]
    fn the_previous_quota_returns() {
        let (outer, inner) = (Quota::new(1, None, 0), Quota::new(9, None, 0));
        let _outer = outer.enter();
        {
            let _inner = inner.enter();
            admit(9).unwrap();
        }
        assert!(admit(2).is_err());
        std::thread::scope(|s| s.spawn(|| admit(2).unwrap()).join()).unwrap();
    }

    #[test]
    fn calls_end_by_cancel_time_and_iterations() {
        let cancel = Cancel::default();
        check().unwrap();
        let _cancellable = cancellable(&cancel);
        let quota = Quota::new(0, None, 2);
        for _ in 0..2 {
            let _call = quota.enter();
            assert_eq!(
                [iterate(), iterate(), iterate()],
                [Ok(()), Ok(()), Err(Exceeded::Iterations(2))],
                "each call counts anew"
            );
        }
        let _call = quota.enter();
        cancel.cancel();
        assert_eq!([check(), iterate()], [Err(Exceeded::Cancelled); 2]);
        cancel.reset();
        let _call = Quota::new(0, Some(Duration::ZERO), 1).enter();
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(check(), Err(Exceeded::Time(Duration::ZERO)));
    }
}
