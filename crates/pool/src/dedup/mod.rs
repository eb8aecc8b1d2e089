//! Deduplication: a record whose content the pool has is shared instead of being stored.
//!
//! A record's *fingerprint* is 128 bits of the BLAKE3 of its plain bytes, keyed by the pool's secret. So it is the same
//! in every dataset, with every codec, and tells nobody outside anything. The block map keeps it with the block
//! ([`larder_sorted::map`]); the *index* ([`larder_sorted::index`]) leads from a fingerprint to an id that may have it.
//!
//! # What is believed
//! The map alone. The index may be stale, incomplete or lost: each id that it names is looked up in the map, and
//! shared only when it is there and has that very fingerprint. So nothing has to be written to the index in time, and
//! no crash can spoil it: what it lacks costs duplicates.
//!
//! # Neighbourhoods
//! Ids are given out in the order of writing. What was written together has neighbouring ids, stands on one page of the
//! map, and is met again together. Around a hit that page is read, and all of it goes into the *locality cache*: one
//! read answers for some thousand records of a stream, and finds those too of which a sampled index knows nothing.
//!
//! # New data
//! is what most data is. A record that is likely to be new is compressed and summed right after it was hashed, while
//! it is in the processor's cache; that is in vain if it is found after all. Each batch is expected to be as the one
//! before.
//!
//! # A hit
//! is decided under the map's lock: an id in the locality cache is alive, since whoever deletes a block takes it out of
//! it under the same lock ([`crate::freeing`]); a neighbourhood enters it under that lock too, with what the map's
//! table says laid over what its runs said, and no checkpoint comes between the two, because an operation is under way.
//! The id gets the mark `SHARED` at once, which the free queue respects ([`crate::free`]) and a collection hears of
//! first. So a hit on a block that was just dropped brings it back. `verify` compares the bytes after that: if they
//! differ, the mark was for nothing, and GC takes it away.
//!
//! # Index and commit
//! Stored records go into the index's table in memory. When that is full it is written beside the commits
//! ([`Pool::tick_index`]), with the id below which all is in it; import walks the map from there on.
//! Ids that the map forgets leave the index by tombstones; an id whose tombstone a crash lost is found stale when met.
//!
//! # Asleep
//! While no dataset has `dedup` on, there is no index in memory, and nothing is read or written for it.
//!
//! # Locks
//! The index is never locked over I/O, but while it is opened.

mod absent;
mod check;
mod find;
mod rebuild;
mod share;
mod undo;
mod upkeep;

pub use crate::duplicates::IndexFootprints;
pub use crate::duplicates::{DedupFigures, RebuildProgress, index_limits};
use crate::pool::Pool;
use larder_format::Fingerprint;
pub(crate) use share::{Known, is_dead, is_shared};
pub use share::{TreeOf, TreeRecords};

impl Pool {
    /// The fingerprint of a record's plain bytes in this pool.
    pub fn fingerprint(&self, plain: &[u8]) -> Fingerprint {
        self.shared.duplicates.fingerprint(plain)
    }

    /// Figures of deduplication since import.
    pub fn dedup_figures(&self) -> DedupFigures {
        self.shared.duplicates.figures()
    }
}
