//! What is known of the dedup index.

use serde::{Deserialize, Serialize};

/// How the index stands; figures since import where they count what happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupStatus {
    /// Fingerprints in it.
    pub entries: u64,
    /// Bytes that it takes on the devices, one copy of it.
    pub disk: u64,
    /// Bytes of the block map that fingerprints take, one copy of it.
    pub map: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// One in so many fingerprints is kept; 1 unless memory is short.
    pub sampling: u64,
    /// Records looked up.
    pub looked_up: u64,
    /// Of those, found.
    pub hits: u64,
    /// Of those, stored as new because reading the index would have taken too long.
    pub refused: u64,
    /// Pages that could not be read: what they told is stored again.
    pub damaged: u64,
    /// Plain bytes that were not stored, being there already.
    pub saved: u64,
}
