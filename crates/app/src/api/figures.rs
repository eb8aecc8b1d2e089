//! Requests and replies of what people watch: traffic with waits, and the cache. All counters run since
//! import; who asks twice subtracts.

use super::pool::ReadCache;
use larder_device::Counts;
use serde::{Deserialize, Serialize};

/// Reads the state of pools as [`super::pool::Status`] does, with [`super::pool::Vdev::waits`]; what `iostat` shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iostat {
    /// Which pools; empty for all.
    pub names: Vec<String>,
}

/// Latency histograms of one kind of request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// From submission to completion.
    #[serde(with = "counts")]
    pub total: Counts,
    /// From when the device took them up to completion.
    #[serde(with = "counts")]
    pub disk: Counts,
}

/// Latency histograms of requests, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Reads.
    pub read: Wait,
    /// Writes.
    pub write: Wait,
    /// Flushes.
    pub flush: Wait,
}

impl Wait {
    fn with(&self, other: &Self, join: fn(&Counts, &Counts) -> Counts) -> Self {
        Self { total: join(&self.total, &other.total), disk: join(&self.disk, &other.disk) }
    }
}

impl Waits {
    fn with(&self, other: &Self, join: fn(&Counts, &Counts) -> Counts) -> Self {
        Self {
            read: self.read.with(&other.read, join),
            write: self.write.with(&other.write, join),
            flush: self.flush.with(&other.flush, join),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, Counts::plus)
    }

    /// Requests after the sample `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, Counts::since)
    }
}

/// Counts as their sum and their buckets.
mod counts {
    use larder_device::Counts;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(counts: &Counts, serializer: S) -> Result<S::Ok, S::Error> {
        (counts.sum_ns(), counts.buckets()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Counts, D::Error> {
        let (sum_ns, buckets) = Deserialize::deserialize(deserializer)?;
        Ok(Counts::new(sum_ns, buckets))
    }
}

/// Reads what the caches of pools did and hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// Which pools; empty for all.
    pub names: Vec<String>,
}

/// Caches in the order of their pools' names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caches {
    /// One for each pool.
    pub pools: Vec<PoolCache>,
}

/// Look-ups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookups {
    /// Answered.
    pub hits: u64,
    /// Not answered.
    pub misses: u64,
}

/// A pool's cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolCache {
    /// The pool.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Seconds since 1970 when this was read.
    pub time: i64,
    /// Nanoseconds that the pool had been imported.
    pub uptime_ns: u64,
    /// Of records that somebody waited for.
    pub demand_data: Lookups,
    /// Of tree nodes.
    pub demand_metadata: Lookups,
    /// Of records fetched ahead of their reader.
    pub prefetch_data: Lookups,
    /// Bytes of records held.
    pub data_bytes: u64,
    /// The most bytes of records.
    pub data_limit: u64,
    /// Bytes of nodes held.
    pub metadata_bytes: u64,
    /// The most bytes of nodes.
    pub metadata_limit: u64,
    /// Its devices with copies of blocks; nothing but zeros without any.
    #[serde(default)]
    pub read_cache: ReadCache,
}
