//! Panics. Locks here are not poisoned by them, so whoever comes next would take what a panic left half done for
//! whole, and commit it. Therefore every section that changes the pool holds a [`Watch`]: when a panic unwinds
//! through it, the pool is suspended *before* the section's locks are free. It is held by operations (the pool's `Op`),
//! by whoever has the turn to commit, by fsyncs, by writes into memory, and by each thread of the daemon over its
//! whole life.
//!
//! Such a suspension is lasting: memory is not to be trusted any more, the last commit and the log are intact.

use crate::store::Store;
use std::cell::RefCell;

thread_local! {
    /// Where and why this thread panicked last.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Has panics remembered in their own words, for the reason of the suspension, beside what is done with them anyway.
/// Once a process.
pub fn note_panics() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let words = info.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = LAST.try_with(|last| last.replace(Some(words)));
        told(info);
    }));
}

/// Suspends its pool when it is dropped by a panic.
pub struct Watch<'a> {
    store: &'a Store,
    what: &'static str,
    /// It began in a drop of somebody else's panic.
    unwinding: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.unwinding && std::thread::panicking() {
            self.store.panicked(self.what);
        }
    }
}

impl Store {
    /// For a section that changes the pool; `what` names it in the reason of a suspension. It must be dropped before
    /// the section's locks.
    pub fn watch(&self, what: &'static str) -> Watch<'_> {
        Watch { store: self, what, unwinding: std::thread::panicking() }
    }

    /// Suspends the pool for good: `what` panicked.
    pub fn panicked(&self, what: &str) {
        let words = LAST.try_with(|last| last.take()).ok().flatten().unwrap_or_else(|| "panicked".to_owned());
        drop(self.suspend(format!("a bug of Larder: {what} {words}")));
    }
}
