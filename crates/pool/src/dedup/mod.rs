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
//! map, and is met again together. Around a hit that page is read, and all of it goes into the *locality cache*
//! ([`locality`]): one read answers for some thousand records of a stream, and finds those too of which a sampled index
//! knows nothing.
//!
//! # New data
//! is what most data is. A record that is likely to be new is compressed and summed right after it was hashed, while
//! it is in the processor's cache; that is in vain if it is found after all. Each batch is expected to be as the one
//! before.
//!
//! # A hit
//! is decided under the map's lock: an id in the locality cache is alive, since whoever deletes a block takes it out of
//! it under the same lock ([`Pool::forget_block`]); a neighbourhood enters it under that lock too, with what the map's
//! table says laid over what its runs said, and no checkpoint comes between the two, because an operation is under way.
//! The id gets the mark `SHARED` at once, which the free queue respects ([`crate::free`]) and a collection hears of
//! first. So a hit on a block that was just dropped brings it back. `verify` compares the bytes after that: if they
//! differ, the mark was for nothing, and GC takes it away.
//!
//! # Index and commit
//! What is stored goes into the index's table in memory. When that is full it is written beside the commits
//! ([`Pool::tick_index`]), with the id below which all is in it; import walks the map from there on.
//! What the map forgets leaves the index by tombstones; what a crash keeps from it is found stale when it is met.
//!
//! # Asleep
//! While no dataset has `dedup` on, there is no index in memory, and nothing is read or written for it.
//!
//! # Locks
//! The index is never locked over I/O, but while it is opened.

mod absent;
mod check;
mod find;
mod locality;
mod rebuild;
mod tokens;
mod upkeep;

use crate::pool::Pool;
use larder_format::checksum::fingerprint;
use larder_format::index::PartDescriptor;
use larder_format::tables::{SECRET_LEN, Table};
use larder_format::{BlockId, Fingerprint};
use larder_mutants::{Mutant, mutated};
use larder_sorted::index::{Index, Limits};
use larder_store::error::Result;
use larder_store::read::TableNodes;
use larder_sync::Mutex;
use locality::LocalityCache;
use rebuild::Rebuild;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokens::Tokens;

pub use rebuild::RebuildProgress;
pub(crate) use upkeep::IndexFootprints;

/// Share of the budget for the index's filters, percent.
const FILTERS_SHARE_PERCENT: u64 = 25;
/// Share of the budget for the index's table, per mille, the one that is being written included: half of what merges
/// have.
const TABLE_SHARE_PER_MILLE: u64 = 25;
/// The table never takes more bytes: larger ones save hardly any merges.
const TABLE_MOST: u64 = 64 << 20;
/// Share of the budget for neighbourhoods, percent.
pub const LOCALITY_SHARE_PERCENT: u64 = 2;

/// Limits of the index in a pool with a budget of `memory` bytes.
pub fn index_limits(memory: u64) -> Limits {
    Limits {
        filters: (memory / 100 * FILTERS_SHARE_PERCENT) as usize,
        memtable: (memory / 1000 * TABLE_SHARE_PER_MILLE).min(TABLE_MOST) as usize,
    }
}

/// Figures of deduplication.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DedupFigures {
    /// Whether the index is in use: some dataset has `dedup` on.
    pub awake: bool,
    /// Whether the index still takes up what was stored before the import.
    pub catching_up: bool,
    /// Entries of the index; one that is in two runs counts twice.
    pub entries: u64,
    /// Bytes of the index on disk, one copy.
    pub disk_bytes: u64,
    /// Bytes of memory of index and neighbourhoods.
    pub memory_bytes: u64,
    /// Of so many fingerprints the index keeps one.
    pub sampling: u64,
    /// Runs that a look-up may have to ask.
    pub runs: u64,
    /// Records looked for since import.
    pub looked_up: u64,
    /// Of those, found.
    pub hits: u64,
    /// Of the hits, answered by neighbourhoods without asking the index.
    pub locality_hits: u64,
    /// Of those looked for, not found.
    pub misses: u64,
    /// Look-ups that were not made because reading for them was not worth it.
    pub refused: u64,
    /// Ids that the index named and that had other content, or none any more.
    pub stale: u64,
    /// Hits that `verify` found to be other bytes, or could not read.
    pub refuted: u64,
    /// Pages of the index that could not be read.
    pub damaged: u64,
    /// Entries that the index had no room for.
    pub dropped: u64,
    /// Stored bytes of the records that were found, since import: what was not written.
    pub saved_bytes: u64,
}

/// Counts since import.
#[derive(Debug, Default)]
struct Counts {
    looked_up: AtomicU64,
    hits: AtomicU64,
    locality_hits: AtomicU64,
    stale: AtomicU64,
    refuted: AtomicU64,
    saved_bytes: AtomicU64,
    /// Parts of the index that could not be opened.
    lost_parts: AtomicU64,
}

fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// The index, or what it will be made of.
#[derive(Debug, Default)]
struct Indexed {
    /// None while asleep.
    index: Option<Index>,
    /// While asleep: the parts on disk.
    parts: Vec<PartDescriptor>,
    /// From this id on the map has to be walked for what the index lacks.
    refill: Option<BlockId>,
    rebuild: Option<Rebuild>,
    /// How often the index was made or opened: work that was taken out belongs to one of them.
    turn: u64,
}

/// State for finding duplicates.
#[derive(Debug)]
pub(crate) struct Duplicates {
    indexed: Mutex<Indexed>,
    locality: Mutex<LocalityCache>,
    tokens: Tokens,
    /// First ids of what is being stored and may not be in the index yet. Locked last.
    storing: Mutex<BTreeSet<BlockId>>,
    memory: AtomicU64,
    /// Hardly anything of what was stored last had been there.
    expects_new: AtomicBool,
    counts: Counts,
}

impl Duplicates {
    pub(crate) fn new(memory: u64) -> Self {
        Self {
            indexed: Mutex::default(),
            locality: Mutex::new(LocalityCache::new(memory / 100 * LOCALITY_SHARE_PERCENT)),
            tokens: Tokens::default(),
            storing: Mutex::default(),
            memory: AtomicU64::new(memory),
            expects_new: AtomicBool::new(true),
            counts: Counts::default(),
        }
    }

    fn limits(&self) -> Limits {
        index_limits(self.memory.load(Ordering::Relaxed))
    }

    /// Another budget from now on, bytes.
    pub(crate) fn set_memory(&self, memory: u64) {
        self.memory.store(memory, Ordering::Relaxed);
        self.locality.lock().set_limit(memory / 100 * LOCALITY_SHARE_PERCENT);
        let limits = self.limits();
        if let Some(index) = &mut self.indexed.lock().index {
            index.set_limits(limits);
        }
    }

    /// A block is gone: the map's lock is held.
    pub(crate) fn forget(&self, id: BlockId) {
        if !mutated(Mutant::LocalityRemembers) {
            self.locality.lock().forget(id);
        }
    }
}

impl Pool {
    /// Makes the key of fingerprints, for a pool that is being made.
    pub(crate) fn make_secret(&self) -> Result<()> {
        let mut secret = [0; SECRET_LEN];
        for word in secret.chunks_exact_mut(8) {
            word.copy_from_slice(&self.store.world.entropy.next_u64().to_le_bytes());
        }
        self.tables.lock().insert(&TableNodes(&self.store), Table::Secret.key(0), &secret)?;
        // Nobody else sets it.
        let _ = self.secret.set(secret);
        Ok(())
    }

    /// The fingerprint of a record's plain bytes in this pool.
    pub fn fingerprint(&self, plain: &[u8]) -> Fingerprint {
        let secret = self.secret.get().expect("every pool has a secret from creation or import on");
        fingerprint(secret, plain)
    }

    /// Figures of deduplication since import.
    pub fn dedup_figures(&self) -> DedupFigures {
        let (locality_bytes, counts) =
            (self.duplicates.locality.lock().memory_bytes() as u64, &self.duplicates.counts);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (looked_up, hits) = (of(&counts.looked_up), of(&counts.hits));
        let indexed = self.duplicates.indexed.lock();
        let figures = indexed.index.as_ref().map(Index::figures).unwrap_or_default();
        let asleep = indexed.parts.iter();
        DedupFigures {
            awake: indexed.index.is_some(),
            catching_up: indexed.refill.is_some(),
            entries: figures.entries + asleep.clone().map(|part| part.run.entries).sum::<u64>(),
            disk_bytes: figures.disk_bytes
                + asleep.flat_map(|part| &part.run.footprints).map(|of| of.bytes).sum::<u64>(),
            memory_bytes: locality_bytes
                + figures.filter_bytes
                + figures.memtable_bytes
                + figures.page_index_bytes,
            sampling: figures.sampling.max(1),
            runs: figures.runs as u64,
            looked_up,
            hits,
            locality_hits: of(&counts.locality_hits),
            misses: looked_up.saturating_sub(hits),
            refused: figures.refused,
            stale: of(&counts.stale),
            refuted: of(&counts.refuted),
            damaged: figures.damaged + of(&counts.lost_parts),
            dropped: figures.dropped,
            saved_bytes: of(&counts.saved_bytes),
        }
    }
}
