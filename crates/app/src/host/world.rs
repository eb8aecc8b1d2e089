//! The world that pools are given: clocks, randomness, hands, and who this host is.

use larder_device::{SystemClock, SystemEntropy, Workers};
use larder_format::HostId;
use larder_pool::World;
use rayon_core::{ThreadPool, ThreadPoolBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The fewest threads: hashing can then go on beside compressing on small machines too.
const LEAST_THREADS: usize = 2;

/// Real clocks, real randomness, as many hands as there are cores.
///
/// # Errors
/// When threads cannot be made.
pub fn system() -> std::io::Result<World> {
    let host_name = host_name();
    Ok(World {
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(SystemEntropy),
        workers: Arc::new(Hands::new()?),
        host: host_id(&host_name),
        host_name,
    })
}

/// Threads that stay. Whoever brings work takes part in it, so that it is done even when all are busy.
struct Hands {
    threads: ThreadPool,
    count: usize,
}

impl Hands {
    fn new() -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count = cores.max(LEAST_THREADS);
        let threads = ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|_| "larder-worker".to_owned())
            .build()
            .map_err(std::io::Error::other)?;
        Ok(Self { threads, count })
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

/// The machine's id, hashed as machine-id(5) asks for; the name's hash where there is none.
fn host_id(host_name: &str) -> HostId {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let source = if machine.trim().is_empty() { host_name } else { machine.trim() };
    let hash = blake3::keyed_hash(blake3::hash(b"larder host id").as_bytes(), source.as_bytes());
    let head = hash.as_bytes()[..8].try_into().expect("eight of 32 bytes");
    HostId::new(u64::from_le_bytes(head))
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_of_work_is_done_once_also_when_many_bring_some() {
        let hands = Hands::new().unwrap();
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

    #[test]
    fn a_host_keeps_its_id() {
        assert_eq!(host_id("a"), host_id("a"));
    }
}
