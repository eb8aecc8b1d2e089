//! Shared by the benchmarks: timing, and the pools, peers and content that they measure with.

pub mod committer;
pub mod content;
pub mod daemon;
pub mod device;
pub mod disks;
pub mod litter;
pub mod machine;
pub mod no_op;
pub mod pattern;
pub mod peer;
pub mod plot;
pub mod process;
pub mod slow;
pub mod tape;
pub mod tree;
pub mod usage;
pub mod work;

use larder_device::{Device, FileDevice, Inline, OpenMode, SystemClock, SystemEntropy, Workers};
use larder_format::HostId;
use larder_format::checksum::ChecksumKind;
use larder_pool::codec::Codec;
use larder_pool::create::rule_for;
use larder_pool::{Dedup, GroupSpec, NewRecord, Pool, PoolSpec, ROOT_DATASET, World};
use rustix::mm::Advice;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One mebibyte: the block of sequential work.
pub const MIB: usize = 1 << 20;
/// Bytes of a page of memory.
const PAGE: usize = 4096;

/// The world of a pool that a benchmark has in its own process.
pub fn world(workers: Arc<dyn Workers>) -> World {
    World {
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(SystemEntropy),
        workers,
        host: HostId::new(1),
        host_name: "bench".into(),
    }
}

/// A pool in this process, without threads, on new sparse files of `bytes` each in `folder`.
pub fn pool_in(folder: &Path, word: &str, devices: usize, bytes: u64) -> Arc<Pool> {
    let rule = rule_for(word, devices).expect("enough devices");
    let open = |i| {
        let path = folder.join(format!("device{i}"));
        device::sparse_file(&path, bytes);
        Arc::new(FileDevice::open(&path, OpenMode::Exclusive).expect("the file can be used"))
            as Arc<dyn Device>
    };
    let groups = vec![GroupSpec::data(rule, (0..devices).map(open).collect())];
    let spec = PoolSpec { name: "bench".into(), groups, ashift: 12 };
    Pool::create(world(Arc::new(Inline)), spec).expect("a pool")
}

/// A record of a pool's root dataset, of which nothing is shared.
pub fn record(plain: Vec<u8>, codec: Codec) -> NewRecord {
    NewRecord {
        dataset: ROOT_DATASET,
        inode: 2,
        offset: 0,
        plain: plain.into(),
        codec,
        encoded: None,
        checksum: ChecksumKind::Fast,
        dedup: Dedup::Off,
        copies: 1,
        replaces: None,
    }
}

/// Takes `bytes` of memory, three quarters of what is free at most, and gives them back; in huge pages if it can. A
/// virtual machine may have given its free memory to its host, and wait for each page of it when it is next used:
/// that is no part of what is measured.
pub fn wake_memory(bytes: usize) {
    let told = rustix::system::sysinfo();
    let free = told.freeram as usize * told.mem_unit as usize;
    let mut memory = vec![0u8; bytes.min(free / 4 * 3)];
    let first = memory.as_ptr().align_offset(PAGE).min(memory.len());
    let pages = &mut memory[first..];
    // SAFETY: the range lies in the vector's own memory, and this advice changes no byte of it.
    let advised =
        unsafe { rustix::mm::madvise(pages.as_mut_ptr().cast(), pages.len(), Advice::LinuxHugepage) };
    // A kernel without huge pages refuses: with small ones it takes longer, and does the same.
    let _ = advised;
    pages.fill(1);
    std::hint::black_box(pages);
}

/// The time that `work` takes, once.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The result of `work`, and the time it takes.
pub fn timing<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let mut result = None;
    let time = timed(|| result = Some(work()));
    (result.expect("it was done"), time)
}

/// The shortest time of a call of each of `rivals`. They take turns, `rounds` times, so that a noisy
/// neighbour meets them all; in each turn one is called often enough to take about a millisecond.
pub fn race<const N: usize>(rounds: usize, mut rivals: [&mut dyn FnMut(); N]) -> [Duration; N] {
    let mut best = [Duration::MAX; N];
    let mut calls = [1; N];
    for _ in 0..rounds {
        for ((rival, best), calls) in rivals.iter_mut().zip(&mut best).zip(&mut calls) {
            let time = timed(|| (0..*calls).for_each(|_| rival())) / *calls;
            *best = time.min(*best);
            *calls = (1_000_000 / best.as_nanos().max(1)).clamp(1, 10_000) as u32;
        }
    }
    best
}

/// Bytes per nanosecond: GB/s.
pub fn gb_per_s(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_nanos().max(1) as f64
}

/// Millions of bytes a second.
pub fn mb_per_s(bytes: usize, time: Duration) -> f64 {
    1e3 * gb_per_s(bytes, time)
}

/// Times of single operations.
#[derive(Debug, Clone)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Calls `operation` `count` times, with the number of the call.
    pub fn of(count: usize, mut operation: impl FnMut(usize)) -> Self {
        let mut times: Vec<_> = (0..count).map(|i| timed(|| operation(i))).collect();
        times.sort_unstable();
        Self(times)
    }

    /// The time that `percent` of the operations stayed below.
    pub fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }

    /// Operations a second, one after another.
    pub fn per_second(&self) -> f64 {
        self.0.len() as f64 / self.0.iter().sum::<Duration>().as_secs_f64()
    }
}
