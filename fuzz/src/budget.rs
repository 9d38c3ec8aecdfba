//! Ends the process where an input makes the engine allocate more than a fixed budget.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that one input may allocate at a time: room for the largest picture, at 8 bytes per pixel,
/// and a converted copy.
const BUDGET: usize = 1 << 30;

/// No limit, with room for additions.
const UNLIMITED: usize = usize::MAX / 2;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(UNLIMITED);

#[global_allocator]
static ALLOCATOR: Budgeted = Budgeted;

struct Budgeted;

impl Budgeted {
    fn add(bytes: usize) {
        let live = LIVE.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if live > MOST.load(Relaxed) {
            MOST.store(UNLIMITED, Relaxed);
            eprintln!("==ERROR: an allocation of {bytes} bytes exceeds the budget of {BUDGET}");
            eprintln!("{}", std::backtrace::Backtrace::force_capture());
            std::process::abort();
        }
    }
}

// SAFETY: All calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Budgeted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        // SAFETY: The caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        // SAFETY: The caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::add(size.saturating_sub(layout.size()));
        LIVE.fetch_sub(layout.size().saturating_sub(size), Relaxed);
        // SAFETY: The caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: The caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `work` within the budget.
pub fn within(work: impl FnOnce()) {
    MOST.store(LIVE.load(Relaxed).saturating_add(BUDGET), Relaxed);
    work();
    MOST.store(UNLIMITED, Relaxed);
}
