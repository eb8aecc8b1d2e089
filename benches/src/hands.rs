//! Hands for a pool, as the daemon has them.

use larder_device::Workers;
use rayon_core::{ThreadPool, ThreadPoolBuilder};
use std::sync::atomic::{AtomicUsize, Ordering};

/// As many threads as there are cores, at least two. Whoever brings work takes part in it.
pub struct Hands {
    threads: ThreadPool,
    count: usize,
}

impl Default for Hands {
    fn default() -> Self {
        let count = std::thread::available_parallelism().map_or(2, usize::from).max(2);
        let threads = ThreadPoolBuilder::new().num_threads(count).build().expect("threads can be made");
        Self { threads, count }
    }
}

impl Workers for Hands {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= count {
                    return;
                }
                job(piece);
            }
        };
        let helpers = self.count.min(count).saturating_sub(1);
        self.threads.in_place_scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| work());
            }
            work();
        });
    }

    fn later(&self, job: Box<dyn FnOnce() + Send>) {
        self.threads.spawn(job);
    }
}
