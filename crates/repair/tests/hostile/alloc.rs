//! The allocator of this test: it counts, and tells of what no image justifies.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that one allocation may have: those of pools here are of 64 MiB devices.
const MOST_AT_ONCE: usize = 48 << 20;
/// Bytes that a case may take beside what was there before it.
const MOST: usize = 384 << 20;
/// Bytes that are never given: the process ends instead.
const NEVER: usize = 8 << 30;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
static EXCESS: Mutex<Option<String>> = Mutex::new(None);

thread_local! {
    static TELLS: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn note(len: usize) {
    let live = LIVE.fetch_add(len, Ordering::Relaxed) + len;
    if len <= MOST_AT_ONCE && live <= LIMIT.load(Ordering::Relaxed) {
        return;
    }
    let limit = LIMIT.load(Ordering::Relaxed);
    if limit == usize::MAX || TELLS.try_with(|tells| tells.replace(true)).unwrap_or(true) {
        return;
    }
    let told = format!("{len} bytes at once, {live} live of {limit}\n{}", Backtrace::force_capture());
    EXCESS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(told);
    let _ = TELLS.try_with(|tells| tells.set(false));
}

// SAFETY: all is passed on to the system's allocator, which keeps the contract; counting changes nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        if layout.size() > NEVER {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        if layout.size() > NEVER {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// From now on more than a case may take is told.
pub fn begin() {
    *EXCESS.lock().unwrap() = None;
    LIMIT.store(LIVE.load(Ordering::Relaxed) + MOST, Ordering::Relaxed);
}

/// Ends that; what was too much, if anything was.
pub fn end() -> Option<String> {
    LIMIT.store(usize::MAX, Ordering::Relaxed);
    EXCESS.lock().unwrap().take()
}
