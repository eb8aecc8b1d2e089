//! State of pools, as `pool status` and other verbs show it.

use crate::api::dedup::DedupStatus;
use crate::api::figures::Waits;
use crate::api::pass::PassStatus;
use crate::api::trace::TraceStatus;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Reads the whole state of pools; what `status`, `list -v` and `check` show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Which pools; empty for all.
    pub names: Vec<String>,
}

/// Pools in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statuses {
    /// One for each.
    pub pools: Vec<PoolStatus>,
    /// Pools that were imported when the last daemon ended, and are not; only where no names were given.
    #[serde(default)]
    pub absent: Vec<Absent>,
}

/// A pool that was imported when the last daemon ended, and is not now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Why it is not, a sentence.
    pub reason: String,
    /// The way to bring it back, where there is anything to do.
    pub action: Option<String>,
}

/// The state of a pool, group or device; the words of zpool(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// All is well.
    Online,
    /// Redundancy is reduced; everything can be read and written.
    Degraded,
    /// Too much is wrong to go on.
    Faulted,
    /// Taken out by a person.
    Offline,
    /// It was there and is gone.
    Removed,
    /// It cannot be opened.
    Unavail,
    /// Writes fail: the pool waits for its devices.
    Suspended,
    /// A spare that waits.
    Avail,
    /// A spare that stands in for another device.
    InUse,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Online => "ONLINE",
            Self::Degraded => "DEGRADED",
            Self::Faulted => "FAULTED",
            Self::Offline => "OFFLINE",
            Self::Removed => "REMOVED",
            Self::Unavail => "UNAVAIL",
            Self::Suspended => "SUSPENDED",
            Self::Avail => "AVAIL",
            Self::InUse => "INUSE",
        })
    }
}

/// The whole state of a pool: text, JSON, metrics and the dashboard are views of this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its state, space, errors and traffic all together; `path` is nothing, children are the groups.
    pub root: Vdev,
    /// The newest durable commit.
    pub commit: u64,
    /// The problem, in a sentence.
    pub status: Option<String>,
    /// Its remedy: a command to paste.
    pub action: Option<String>,
    /// Where to read on.
    pub see: Option<String>,
    /// Scrubs and resilvers that are under way; else the newest of each, the newest first.
    pub scans: Vec<Scan>,
    /// Devices that stand in for those that are lost.
    pub spares: Vec<Vdev>,
    /// Groups and devices that are there for something, by that, in zpool's order.
    #[serde(default)]
    pub classes: Vec<Class>,
    /// Device losses that the log survives, if it has devices of its own.
    #[serde(default)]
    pub log_survives: Option<u32>,
    /// Figures of these together, when there are any in use.
    pub read_cache: Option<ReadCache>,
    /// Bytes that deleted files and destroyed datasets still hold.
    pub freeing: u64,
    /// Bytes that destroyed datasets and snapshots hold which can be brought back.
    pub trash: u64,
    /// Bytes that the cleaner moved since import.
    pub cleaned: u64,
    /// Bytes written for each byte stored since import, percent.
    pub write_amplification: u64,
    /// The newest trace, when there was one.
    pub trace: Option<TraceStatus>,
    /// The dedup index, when there is one.
    pub dedup: Option<DedupStatus>,
    /// The pass over what is stored that is under way, or was stopped.
    pub pass: Option<PassStatus>,
    /// Bytes, one copy of them, that still have to move since groups changed their shape.
    pub reshaping: u64,
    /// Reason why none of it moves now, when nothing came of some tries.
    pub reshaping_stuck: Option<String>,
    /// The rebalance that is under way, or the last one.
    #[serde(default)]
    pub rebalance: Option<RebalanceStatus>,
    /// Bytes that a rebalance would give files.
    #[serde(default)]
    pub to_gain: u64,
    /// Devices that are larger than what the pool uses of them, where that is of use.
    #[serde(default)]
    pub to_expand: Vec<String>,
    /// Bytes that files could take more if all of those were used.
    #[serde(default)]
    pub expand_gain: u64,
    /// Further device losses survived, whichever devices they hit.
    pub survives: u32,
    /// Files (or `dataset:inode`) with data that could not be healed.
    pub damaged: Vec<String>,
    /// Nanoseconds that the pool had been imported when this was read, by a clock that never goes back.
    pub uptime_ns: u64,
}

/// A rebalance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebalanceStatus {
    /// Its state.
    pub state: RebalanceState,
    /// Seconds since 1970.
    pub started: i64,
    /// Seconds since 1970; nothing while it runs.
    pub finished: Option<i64>,
    /// Bytes moved, before copies and parity.
    pub moved: u64,
    /// Bytes that are still to be moved, as it looks now.
    pub left: u64,
    /// Bytes a second over the last stretch; nothing while that cannot be told.
    pub rate: Option<u64>,
}

/// State of a rebalance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RebalanceState {
    /// It goes on.
    Active,
    /// Nothing would gain any more.
    Done,
    /// There is no room to move more to.
    NoRoom,
    /// Somebody stopped it.
    Stopped,
}

/// Figures of a pool's devices with copies of blocks, since import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCache {
    /// Bytes that they can hold.
    pub size: u64,
    /// Bytes of these that were filled.
    pub filled: u64,
    /// Blocks that there are copies of.
    pub blocks: u64,
    /// Reads that memory did not answer, and they did; and that they did not either.
    pub hits: u64,
    /// See [`ReadCache::hits`].
    pub misses: u64,
    /// Bytes of [`ReadCache::hits`] and of [`ReadCache::misses`].
    pub hit_bytes: u64,
    /// See [`ReadCache::hit_bytes`].
    pub missed_bytes: u64,
    /// Hits of a thousand reads, estimated, if the devices were half, twice, and four times as large; nothing until
    /// that can be told.
    pub elsewhere: Option<[u64; 3]>,
    /// Bytes written in the last 24 hours, and those that may be; what fills devices for the first time is in neither.
    pub written_today: u64,
    /// See [`ReadCache::written_today`].
    pub daily: u64,
    /// Bytes of copies written since import.
    pub written_bytes: u64,
    /// Bytes of memory that it takes to know the copies, and the most that it may.
    pub memory: u64,
    /// See [`ReadCache::memory`].
    pub memory_limit: u64,
    /// Copies that were not made, as too much was to be copied at the time.
    pub hurried: u64,
    /// Slots that are still to be looked through for copies of earlier imports.
    pub restoring: u64,
}

/// A pool's root, a group or a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vdev {
    /// `tank`, `raidz2-0`, or a device's path.
    pub name: String,
    /// `root`, `mirror`, `raidz2`, `disk`, `file`.
    pub kind: String,
    /// Names it for ever; 0 for groups.
    pub guid: u64,
    /// A device's number in the pool.
    pub index: Option<u32>,
    /// The device's path, or where it was last seen.
    pub path: Option<String>,
    /// Its state.
    pub state: State,
    /// A remark: `was /dev/sdb`, `resilvering`.
    pub note: Option<String>,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Blocks that were not what had been written.
    pub checksum_errors: u64,
    /// Bytes it can hold, parity and copies included.
    pub size: u64,
    /// Bytes of these that are taken.
    pub allocated: u64,
    /// Per cent of the free space that lies in segments in use.
    pub fragmentation: u8,
    /// Reads and writes since import.
    pub io: Io,
    /// Latencies since import; filled in only for [`crate::api::figures::Iostat`].
    pub waits: Waits,
    /// Its last trim; nothing for groups, spares and devices not in use.
    pub trim: Option<Trim>,
    /// Its parts; empty for a device.
    pub children: Vec<Vdev>,
}

impl Class {
    /// Whether its devices have more than copies for reading.
    pub fn is_vital(&self) -> bool {
        self.head != "cache"
    }
}

/// Groups and devices that are there for the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Its head in tables: `special`, `fast`, `logs`, `cache`.
    pub head: String,
    /// These.
    pub vdevs: Vec<Vdev>,
}

/// State of a device's trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrimState {
    /// Nobody asked for it, or it was cancelled.
    Untrimmed,
    /// It goes on.
    Active,
    /// It waits until it is started again.
    Suspended,
    /// It went through all that was free.
    Complete,
    /// The device does not support it.
    Unsupported,
}

/// The last trim of a device that somebody asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trim {
    /// Its state.
    pub state: TrimState,
    /// When it began; of one that is complete, when it ended. Seconds since 1970.
    pub time: Option<i64>,
    /// Bytes trimmed.
    pub trimmed: u64,
    /// Bytes to be trimmed, estimated.
    pub total: u64,
}

/// Counters since import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl Io {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
        }
    }
}

/// Kind of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanKind {
    /// Verifies everything.
    Scrub,
    /// Rebuilds what a device has missed.
    Resilver,
}

/// A scrub or resilver, running or done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// Scrub or resilver.
    pub kind: ScanKind,
    /// Seconds since 1970.
    pub started: i64,
    /// Seconds since 1970; nothing while it runs.
    pub finished: Option<i64>,
    /// Since when it has been standing still because somebody wants it to.
    pub paused: Option<i64>,
    /// It was stopped before its end.
    pub canceled: bool,
    /// Bytes to look at.
    pub total: u64,
    /// Bytes looked at.
    pub examined: u64,
    /// Bytes healed or rebuilt.
    pub repaired: u64,
    /// Blocks that could not be healed.
    pub errors: u64,
    /// Bytes a second over the last stretch; nothing while that cannot be told.
    pub rate: Option<u64>,
    /// Seconds that are left, where the rate tells.
    pub left: Option<u64>,
    /// Reason for a wait: a resilver, its window.
    pub waits_for: Option<String>,
}
