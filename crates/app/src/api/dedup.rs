//! Requests about the dedup index, and what is known of it.

use serde::{Deserialize, Serialize};

/// Forgets the index of pools and makes it anew, of what the blocks say; how it goes on is part of
/// [`super::pool::PoolStatus`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebuildIndex {
    /// Which pools.
    pub names: Vec<String>,
}

/// State of the dedup index; counters are since import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupStatus {
    /// Whether it is in use: some dataset has `dedup` on.
    pub awake: bool,
    /// Whether it still takes up what was stored before.
    pub catching_up: bool,
    /// Progress of a rebuild; nothing when none runs.
    pub rebuild: Option<Rebuild>,
    /// Fingerprints in it.
    pub entries: u64,
    /// Bytes that it takes on the devices, one copy of it.
    pub disk: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// One in so many fingerprints is kept; 1 unless memory is short.
    pub sampling: u64,
    /// Records looked up.
    pub looked_up: u64,
    /// Of those, found.
    pub hits: u64,
    /// Of the hits, answered without asking the index.
    pub near_hits: u64,
    /// Look-ups that were not made, as reading for them would have taken too long; those records are stored as new.
    pub refused: u64,
    /// Of what the index named, what was gone or had other content.
    pub stale: u64,
    /// Hits that comparing bytes did not bear out.
    pub refuted: u64,
    /// Pages that could not be read: what they told is stored again.
    pub damaged: u64,
    /// Fingerprints that the index had no room for.
    pub dropped: u64,
    /// Stored bytes of what was found: they were not written.
    pub saved: u64,
}

/// Progress of a rebuild of the index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuild {
    /// Extents of files looked at.
    pub extents: u64,
    /// Records that were read, having had no fingerprint.
    pub records: u64,
}
