//! Parallel loops whose results do not depend on the number of threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// Number of available cores, at least 1.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Runs `work` on a thread of its own with a stack of `stack` bytes. What `work` keeps for its
/// thread is freed with it. The inner result is an error if `work` panics.
pub fn on_thread<T: Send>(
    name: &str,
    stack: usize,
    work: impl FnOnce() -> T + Send,
) -> std::io::Result<std::thread::Result<T>> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(stack);
        Ok(thread.spawn_scoped(scope, work)?.join())
    })
}

/// Calls `work` for each of `0 .. count` on `threads` threads, or fewer if the system refuses so
/// many, each with its own `state`. Calls `take` on this thread with each result, in any order.
/// After an error no new items are started. The error of the lowest index is returned, so the
/// result is the same for any number of threads.
pub fn for_each<S, T: Send, E: Send>(
    threads: usize,
    count: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Result<T, E> + Sync,
    mut take: impl FnMut(usize, T),
) -> Result<(), E> {
    let threads = threads.clamp(1, count.max(1));
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut error: Option<(usize, E)> = None;
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(2 * threads);
        let mut running = 0;
        for _ in 0..threads {
            let send = send.clone();
            let (next, failed, state, work) = (&next, &failed, &state, &work);
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
                let mut state = state();
                // Indices are taken in order: every index below a failed one was started and sends
                // its result.
                while !failed.load(Ordering::Relaxed) {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        break;
                    }
                    let made = work(&mut state, i);
                    if made.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    if send.send((i, made)).is_err() {
                        break;
                    }
                }
            });
            match thread {
                Ok(_) => running += 1,
                Err(e) => log::debug!("{running} of {threads} threads: {e}"),
            }
        }
        drop(send);
        if running == 0 {
            let mut state = state();
            for i in 0..count {
                match work(&mut state, i) {
                    Ok(made) => take(i, made),
                    Err(e) => {
                        error = Some((i, e));
                        break;
                    }
                }
            }
        }
        for (i, made) in receive {
            match made {
                Ok(made) => take(i, made),
                Err(e) if error.as_ref().is_none_or(|(at, _)| i < *at) => error = Some((i, e)),
                Err(_) => {}
            }
        }
    });
    error.map_or(Ok(()), |(_, e)| Err(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_done_once_by_any_number_of_threads() {
        for threads in [0, 1, 3, 50] {
            for count in [0, 1, 20] {
                let mut found = vec![0; count];
                let made = for_each(
                    threads,
                    count,
                    || 0,
                    |calls, i| {
                        *calls += 1;
                        Ok::<_, ()>(i * i + *calls - *calls)
                    },
                    |i, v| found[i] += v + 1,
                );
                assert_eq!(made, Ok(()));
                assert!(
                    found.iter().enumerate().all(|(i, v)| *v == i * i + 1),
                    "{found:?}"
                );
            }
        }
    }

    #[test]
    fn the_first_error_is_told() {
        for threads in [1, 2, 8] {
            for _ in 0..20 {
                let work = |(): &mut (), i| if i % 7 == 5 { Err(i) } else { Ok(()) };
                let made = for_each(threads, 100, || (), work, |_, ()| ());
                assert_eq!(made, Err(5), "{threads}");
            }
        }
    }
}
