//! State for finding duplicates: the index, the locality cache, and what reading for them may take. What it is for:
//! see [`crate::dedup`].

mod locality;
mod tokens;

use larder_format::checksum::fingerprint;
use larder_format::index::PartDescriptor;
use larder_format::node::Key;
use larder_format::run::Footprint;
use larder_format::tables::SECRET_LEN;
use larder_format::{BlockId, DatasetId, Fingerprint, SegmentId};
use larder_mutants::{Mutant, mutated};
use larder_sorted::index::{Index, Limits};
use larder_store::Store;
use larder_sync::Mutex;
use locality::LocalityCache;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokens::Tokens;

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

/// A rebuild under way.
#[derive(Debug)]
pub(crate) struct Rebuild {
    /// Datasets whose files are still to be gone through, the last at hand.
    pub(crate) datasets: Vec<DatasetId>,
    pub(crate) from: Key,
    pub(crate) progress: RebuildProgress,
}

/// Progress of a rebuild of the index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RebuildProgress {
    /// Extents looked at.
    pub extents: u64,
    /// Records read, which have a fingerprint since.
    pub records: u64,
}

/// Footprints of the index's parts.
pub enum IndexFootprints {
    /// It is in use, and writes parts anew.
    Awake(Vec<Vec<Footprint>>),
    /// Nobody needs it.
    Asleep(Vec<Vec<Footprint>>),
}

impl IndexFootprints {
    /// All of them.
    pub fn all(self) -> impl Iterator<Item = Footprint> {
        let (Self::Awake(parts) | Self::Asleep(parts)) = self;
        parts.into_iter().flatten()
    }
}

/// Counts since import.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) looked_up: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) locality_hits: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) refuted: AtomicU64,
    pub(crate) saved_bytes: AtomicU64,
    /// Parts of the index that could not be opened.
    pub(crate) lost_parts: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// The index, or what it will be made of.
#[derive(Debug, Default)]
pub(crate) struct Indexed {
    /// None while asleep.
    pub(crate) index: Option<Index>,
    /// While asleep: the parts on disk.
    pub(crate) parts: Vec<PartDescriptor>,
    /// From this id on the map has to be walked for what the index lacks.
    pub(crate) refill: Option<BlockId>,
    pub(crate) rebuild: Option<Rebuild>,
    /// Number of times that the index was made or opened: work that was taken out belongs to one of them.
    pub(crate) turn: u64,
}

/// State for finding duplicates.
#[derive(Debug)]
pub(crate) struct Duplicates {
    pub(crate) indexed: Mutex<Indexed>,
    pub(crate) locality: Mutex<LocalityCache>,
    pub(crate) tokens: Tokens,
    /// The key of fingerprints.
    secret: OnceLock<[u8; SECRET_LEN]>,
    /// First ids of what is being stored and may not be in the index yet. Locked last.
    storing: Mutex<BTreeSet<BlockId>>,
    memory: AtomicU64,
    /// Somebody looks for duplicates among what is stored.
    pub(crate) in_use: AtomicBool,
    /// Hardly anything of what was stored last had been there.
    pub(crate) expects_new: AtomicBool,
    pub(crate) counts: Counts,
}

/// Something is being stored: what has this id or a later one may not be in the index yet.
pub(crate) struct Storing<'p> {
    duplicates: &'p Duplicates,
    first: BlockId,
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        self.duplicates.storing.lock().remove(&self.first);
    }
}

impl Duplicates {
    pub(crate) fn new(memory: u64) -> Self {
        Self {
            indexed: Mutex::default(),
            locality: Mutex::new(LocalityCache::new(memory / 100 * LOCALITY_SHARE_PERCENT)),
            tokens: Tokens::default(),
            secret: OnceLock::new(),
            storing: Mutex::default(),
            memory: AtomicU64::new(memory),
            in_use: AtomicBool::new(false),
            expects_new: AtomicBool::new(true),
            counts: Counts::default(),
        }
    }

    /// Limits of the index.
    pub(crate) fn limits(&self) -> Limits {
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

    /// Sets the key of fingerprints, which is done once.
    pub(crate) fn set_secret(&self, secret: [u8; SECRET_LEN]) {
        // Nobody else sets it.
        let _ = self.secret.set(secret);
    }

    /// The fingerprint of a record's plain bytes in this pool.
    pub(crate) fn fingerprint(&self, plain: &[u8]) -> Fingerprint {
        let secret = self.secret.get().expect("every pool has a secret from creation or import on");
        fingerprint(secret, plain)
    }

    /// The first id of what is being stored and may not be in the index yet.
    pub(crate) fn first_storing(&self) -> Option<BlockId> {
        self.storing.lock().first().copied()
    }

    /// Keeps the parts of the index that the tables name, while nobody needs it.
    pub(crate) fn lay_down(&self, parts: Vec<PartDescriptor>) {
        self.indexed.lock().parts = parts;
    }

    /// The map has forgotten these.
    pub(crate) fn forget_prints(&self, forgotten: Vec<(Fingerprint, BlockId)>) {
        if forgotten.is_empty() {
            return;
        }
        if let Some(index) = &mut self.indexed.lock().index {
            forgotten.into_iter().for_each(|(print, id)| index.remove(print, id));
        }
    }

    /// Segments with pages of the index that no descriptor names yet.
    pub(crate) fn unfinished(&self) -> Vec<SegmentId> {
        let indexed = self.indexed.lock();
        let unfinished = indexed.index.as_ref().map(Index::unfinished).unwrap_or_default();
        unfinished.into_iter().map(|footprint| footprint.segment).collect()
    }

    /// Footprint of each of the index's parts.
    pub(crate) fn footprints(&self) -> IndexFootprints {
        let indexed = self.indexed.lock();
        let of = |part: &PartDescriptor| part.run.footprints.clone();
        match &indexed.index {
            Some(index) => IndexFootprints::Awake(index.descriptors().map(of).collect()),
            None => IndexFootprints::Asleep(indexed.parts.iter().map(of).collect()),
        }
    }

    /// From now on ids may be given out that the index does not know yet.
    pub(crate) fn storing(&self, store: &Store) -> Storing<'_> {
        let mut core = store.core.lock();
        // An id of its own, so that each who stores has another.
        let first = core.take_ids(1);
        self.storing.lock().insert(first);
        Storing { duplicates: self, first }
    }

    /// Progress of the rebuild under way, if there is one.
    pub(crate) fn rebuild_progress(&self) -> Option<RebuildProgress> {
        self.indexed.lock().rebuild.as_ref().map(|rebuild| rebuild.progress)
    }

    /// Figures of deduplication since import.
    pub(crate) fn figures(&self) -> DedupFigures {
        let (locality_bytes, counts) = (self.locality.lock().memory_bytes() as u64, &self.counts);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (looked_up, hits) = (of(&counts.looked_up), of(&counts.hits));
        let indexed = self.indexed.lock();
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
