//! Seeds from the environment, two at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Whether every count is wanted in full.
pub fn full() -> bool {
    std::env::var_os("LARDER_FULL").is_some()
}

/// Does `work` for each of `count` numbers, two at once, and adds up what comes of it. The first that panics is told
/// with what replays it.
pub fn on_two_threads<T: Default + Send>(
    count: usize,
    work: impl Fn(usize, &mut T) + Sync,
    add: impl Fn(&mut T, T) + Sync,
    replay: impl Fn(usize) -> String + Sync,
) -> T {
    let next = AtomicUsize::new(0);
    let sum = Mutex::new(T::default());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut mine = T::default();
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        break;
                    }
                    if catch_unwind(AssertUnwindSafe(|| work(i, &mut mine))).is_err() {
                        next.store(count, Ordering::Relaxed);
                        failure.lock().unwrap().get_or_insert(i);
                    }
                }
                add(&mut sum.lock().unwrap(), mine);
            });
        }
    });
    if let Some(i) = failure.into_inner().unwrap() {
        panic!("see above; replay: {}", replay(i));
    }
    sum.into_inner().unwrap()
}
