//! Time, randomness and helping hands.

use larder_format::Timestamp;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// Wall-clock time, for stamps that people see.
    fn now(&self) -> Timestamp;
    /// Time since some fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// Processor time of the calling thread since some fixed point.
    fn processor_time(&self) -> Duration {
        self.monotonic()
    }
}

/// Where randomness comes from: GUIDs and incarnations.
pub trait Entropy: Send + Sync {
    /// 64 fresh random bits.
    fn next_u64(&self) -> u64;
}

/// Runs independent pieces of work, perhaps on several cores: hashing, codecs, parity.
pub trait Workers: Send + Sync {
    /// Calls `job(i)` once for every `i` below `count`; returns when all are done.
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync));
    /// Does `job` when there is time for it; nobody waits.
    fn later(&self, job: Box<dyn FnOnce() + Send>);
}

impl dyn Workers {
    /// Results of `make(i)` for every `i` below `count`, in order.
    pub fn map<T: Send + Sync>(&self, count: usize, make: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let made: Vec<OnceLock<T>> = (0..count).map(|_| OnceLock::new()).collect();
        self.for_each(count, &|i| assert!(made[i].set(make(i)).is_ok(), "each number comes once"));
        made.into_iter().map(|made| made.into_inner().expect("each number comes")).collect()
    }
}

/// Does the work where it is asked for; what simulations use.
#[derive(Debug, Default, Clone, Copy)]
pub struct Inline;

impl Workers for Inline {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(job);
    }
    fn later(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

/// Repeatable randomness: SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub struct SeededEntropy(AtomicU64);

impl SeededEntropy {
    /// The stream that `seed` names.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Random bytes: content that does not compress.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
        (0..len.div_ceil(8)).for_each(|_| bytes.extend_from_slice(&self.next_u64().to_le_bytes()));
        bytes.truncate(len);
        bytes
    }
}

impl Entropy for SeededEntropy {
    fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
