//! Stands in for the daemon beside writers: commits, flushes dirty data in between, cleans.

use larder_files::Mount;
use larder_pool::{FrontEnd, Pool, PoolError};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// As the daemon has it.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// As the daemon has it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Stands in for the daemon, with [`Committer::work`] in a thread of its own.
#[derive(Default)]
pub struct Committer {
    stop: AtomicBool,
    lock: Mutex<()>,
    dirty: Condvar,
}

impl Committer {
    /// One that `pool` rings when there is much to store.
    pub fn of(pool: &Pool) -> Arc<Self> {
        let committer = Arc::new(Self::default());
        let waker = Arc::clone(&committer);
        pool.on_dirty(Box::new(move || {
            let _ = waker.dirty.notify_one();
        }));
        committer
    }

    /// Works until [`Committer::stop`].
    ///
    /// # Panics
    /// When the pool fails.
    pub fn work(&self, pool: &Pool, mount: &Mount) {
        let mut last = pool.store().clock().monotonic();
        while !self.stop.load(Ordering::Acquire) {
            self.dirty.wait_for(&mut self.lock.lock(), POLL_INTERVAL);
            let due = |last| pool.store().clock().monotonic().saturating_sub(last) >= COMMIT_INTERVAL;
            if due(last) {
                last = pool.store().clock().monotonic();
                pool.commit().expect("a commit");
            }
            while pool.store().dirty().get() >= pool.stream_from() && !due(last) {
                match FrontEnd::flush(mount) {
                    Err(PoolError::NoSpace) => drop(pool.commit().expect("a commit")),
                    flushed => flushed.expect("it is stored"),
                }
            }
            pool.tick().expect("it is cleaned");
        }
    }

    /// Has [`Committer::work`] return.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}
