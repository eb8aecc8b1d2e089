//! The operating system's time, randomness and threads.

use crate::world::{Clock, Entropy, Workers};
use larder_format::Timestamp;
use rayon_core::{ThreadPool, ThreadPoolBuilder};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[expect(clippy::disallowed_methods, reason = "this is where time enters")]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is where time enters")]
    fn now(&self) -> Timestamp {
        timestamp(SystemTime::now())
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }

    fn processor_time(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

fn timestamp(time: SystemTime) -> Timestamp {
    const NANOS_PER_SEC: u32 = 1_000_000_000;
    let secs = |duration: Duration| i64::try_from(duration.as_secs()).expect("a clock of this age");
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => Timestamp { secs: secs(after), nanos: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => Timestamp { secs: -secs(before), nanos: 0 },
                nanos => Timestamp { secs: -secs(before) - 1, nanos: NANOS_PER_SEC - nanos },
            }
        }
    }
}

/// The kernel's random numbers.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    /// Blocks only in the first seconds after boot, until the kernel has gathered randomness.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        // Requests of up to 256 bytes are never cut short.
        let got = rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, flags))
            .expect("every supported kernel has getrandom");
        assert_eq!(got, bytes.len());
        u64::from_ne_bytes(bytes)
    }
}

/// The fewest threads: hashing can then go on beside compressing on small machines too.
const LEAST_THREADS: usize = 2;

/// Threads that stay. Whoever brings work takes part in it, so that it is done even when all are busy.
pub struct SystemWorkers {
    threads: ThreadPool,
    count: usize,
}

impl SystemWorkers {
    /// As many threads as there are cores.
    ///
    /// # Errors
    /// When threads cannot be made.
    pub fn new() -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count = cores.max(LEAST_THREADS);
        let threads = ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|_| "larder-worker".to_owned())
            // Of what nobody waits for: it has said so, and whoever handed it in watches it where that matters.
            .panic_handler(|_| {})
            .build()
            .map_err(std::io::Error::other)?;
        Ok(Self { threads, count })
    }
}

impl Workers for SystemWorkers {
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
        if helpers == 0 {
            return work();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_takes_no_processor_time() {
        let clock = SystemClock::new();
        let (began, busy) = (clock.monotonic(), clock.processor_time());
        let (held, waited) = std::sync::mpsc::channel::<()>();
        let _ = waited.recv_timeout(Duration::from_millis(60));
        drop(held);
        let idle = clock.processor_time() - busy;
        assert!(
            clock.monotonic() - began >= Duration::from_millis(60) && idle < Duration::from_millis(30),
            "{idle:?}"
        );
        let mut sum = 0u64;
        while clock.processor_time() == busy + idle {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }

    #[test]
    fn times_before_1970_count_nanoseconds_upwards() {
        let before = |millis| timestamp(SystemTime::UNIX_EPOCH - Duration::from_millis(millis));
        assert_eq!(before(0), Timestamp { secs: 0, nanos: 0 });
        assert_eq!(before(250), Timestamp { secs: -1, nanos: 750_000_000 });
        assert_eq!(before(2000), Timestamp { secs: -2, nanos: 0 });
    }

    #[test]
    fn the_system_clock_is_past_2020_and_monotonic_time_does_not_go_back() {
        let clock = SystemClock::new();
        assert!(clock.now().secs > 1_577_836_800);
        assert!(clock.monotonic() <= clock.monotonic());
    }

    #[test]
    fn system_entropy_does_not_repeat() {
        assert_ne!(SystemEntropy.next_u64(), SystemEntropy.next_u64());
    }

    #[test]
    fn every_piece_of_work_is_done_once_also_when_many_bring_some() {
        let hands = SystemWorkers::new().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for count in [0, 1, 2, 100] {
                        let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                        hands.for_each(count, &|piece| {
                            done[piece].fetch_add(1, Ordering::Relaxed);
                        });
                        assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
                    }
                });
            }
        });
    }
}
