//! The RAM cache: plain records and decoded nodes, each with its share of the budget, both live.

use larder_format::BlockId;
use larder_format::node::Node;
use quick_cache::Weighter;
use quick_cache::sync::Cache as Shards;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A record's plain content, shared between the cache and its readers; often a part of the buffer that it was
/// read into.
pub type Record = bytes::Bytes;

#[derive(Clone)]
struct ByLength;

impl Weighter<BlockId, Record> for ByLength {
    fn weight(&self, _: &BlockId, record: &Record) -> u64 {
        // The slack of the buffer that it may lie in.
        (record.len() + record.len() / 8) as u64 + 64
    }
}

impl Weighter<BlockId, Arc<Node>> for ByLength {
    fn weight(&self, _: &BlockId, node: &Arc<Node>) -> u64 {
        node.memory_bytes() as u64 + 64
    }
}

/// Shares of the memory budget: at least two fifths for the cache, a quarter for dirty data and stripes, a tenth for
/// GC and the merges of the block map.
pub const CACHE_SHARE_PERCENT: u64 = 45;
/// Of that the filters of the dedup index take up to so much, percent of the budget; what else they have nobody else
/// uses.
pub const LENT_SHARE_PERCENT: u64 = 5;
/// Share of the budget for dirty data, percent.
pub const DIRTY_SHARE_PERCENT: u64 = 15;
/// Share of the budget for stripes on their way to devices, percent.
pub const STRIPES_SHARE_PERCENT: u64 = 10;
/// Share of the budget for GC, percent; merges have as much again.
pub const GC_SHARE_PERCENT: u64 = 5;
/// Share of the budget that knowing copies on faster devices may take, percent: of the cache's.
pub const COPIES_SHARE_PERCENT: u64 = 10;

/// The RAM cache.
pub struct Cache {
    records: Shards<BlockId, Record, ByLength>,
    nodes: Shards<BlockId, Arc<Node>, ByLength>,
    memory: AtomicU64,
    metadata_percent: AtomicU64,
    /// Bytes that the dedup index would have of the cache's share.
    lent: AtomicU64,
    /// Bytes that knowing copies on faster devices takes.
    copies: AtomicU64,
    /// Of the look-ups that the records' shards count, those of [`Cache::record_ahead`].
    ahead_hits: AtomicU64,
    ahead_misses: AtomicU64,
}

/// Look-ups since import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Answered.
    pub hits: u64,
    /// Not answered.
    pub misses: u64,
}

/// Counters of the cache since import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes of records held.
    pub record_bytes: u64,
    /// Bytes of nodes held.
    pub node_bytes: u64,
    /// The most bytes of records.
    pub record_limit: u64,
    /// The most bytes of nodes.
    pub node_limit: u64,
    /// Look-ups of records that somebody waited for.
    pub demand_data: Lookups,
    /// Look-ups of nodes; nodes are not prefetched.
    pub demand_metadata: Lookups,
    /// Look-ups of records by [`crate::Store::prefetch`]: a miss is a read.
    pub prefetch_data: Lookups,
}

impl Cache {
    /// A cache in a budget of `memory` bytes, `metadata_percent` of the cache's share for nodes.
    pub fn new(memory: u64, metadata_percent: u64) -> Self {
        let cache = Self {
            records: Shards::with_weighter(1024, 1 << 20, ByLength),
            nodes: Shards::with_weighter(1024, 1 << 20, ByLength),
            memory: AtomicU64::new(memory),
            metadata_percent: AtomicU64::new(metadata_percent),
            lent: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            ahead_hits: AtomicU64::new(0),
            ahead_misses: AtomicU64::new(0),
        };
        cache.resize();
        cache
    }

    /// Changes the whole budget, bytes.
    pub fn set_memory(&self, memory: u64) {
        self.memory.store(memory, Ordering::Relaxed);
        self.resize();
    }

    /// Changes the share of nodes, percent of the cache.
    pub fn set_metadata_percent(&self, percent: u64) {
        self.metadata_percent.store(percent.min(100), Ordering::Relaxed);
        self.resize();
    }

    /// The dedup index takes `bytes` of memory; the cache makes room for some of them.
    pub fn lend(&self, bytes: u64) {
        if self.lent.swap(bytes, Ordering::Relaxed) != bytes {
            self.resize();
        }
    }

    /// Knowing copies on faster devices takes `bytes`, which the cache does without.
    pub(crate) fn make_room_for_copies(&self, bytes: u64) {
        if self.copies.swap(bytes, Ordering::Relaxed) != bytes {
            self.resize();
        }
    }

    /// The whole budget, bytes.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// The share of nodes, percent of the cache.
    pub fn metadata_percent(&self) -> u64 {
        self.metadata_percent.load(Ordering::Relaxed)
    }

    /// Bytes of dirty data that the budget allows.
    pub fn dirty_limit(&self) -> u64 {
        self.memory() / 100 * DIRTY_SHARE_PERCENT
    }

    /// Bytes of stripes on their way to devices that the budget allows.
    pub fn stripes_limit(&self) -> u64 {
        self.memory() / 100 * STRIPES_SHARE_PERCENT
    }

    /// Bytes of memory that the budget allows GC.
    pub fn gc_limit(&self) -> u64 {
        self.memory() / 100 * GC_SHARE_PERCENT
    }

    /// Bytes of memory for knowing copies on faster devices.
    pub fn copies_limit(&self) -> u64 {
        self.memory() / 100 * COPIES_SHARE_PERCENT
    }

    /// The most bytes of records.
    pub fn record_limit(&self) -> u64 {
        self.limits().0
    }

    fn limits(&self) -> (u64, u64) {
        let part = self.memory() / 100;
        let lent = self.lent.load(Ordering::Relaxed).min(part * LENT_SHARE_PERCENT);
        let copies = self.copies.load(Ordering::Relaxed).min(part * COPIES_SHARE_PERCENT);
        let cache = part * CACHE_SHARE_PERCENT - lent - copies;
        let nodes = cache / 100 * self.metadata_percent();
        (cache - nodes, nodes)
    }

    fn resize(&self) {
        let (records, nodes) = self.limits();
        self.records.set_capacity(records);
        self.nodes.set_capacity(nodes);
    }

    /// A record's plain content.
    pub fn record(&self, id: BlockId) -> Option<Record> {
        self.records.get(&id)
    }

    /// Whether a record need not be fetched ahead of its reader.
    pub fn record_ahead(&self, id: BlockId) -> bool {
        let found = self.records.get(&id).is_some();
        let counter = if found { &self.ahead_hits } else { &self.ahead_misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Whether a record is not there; counts as no look-up.
    pub fn lacks_record(&self, id: BlockId) -> bool {
        !self.records.contains_key(&id)
    }

    /// Whether a node is not there; counts as no look-up.
    pub fn lacks_node(&self, id: BlockId) -> bool {
        !self.nodes.contains_key(&id)
    }

    /// Keeps a record's plain content.
    pub fn keep_record(&self, id: BlockId, record: Record) {
        self.records.insert(id, record);
    }

    /// A decoded node.
    pub fn node(&self, id: BlockId) -> Option<Arc<Node>> {
        self.nodes.get(&id)
    }

    /// A decoded node, when it happens to be there: no look-up that counts.
    pub fn peek_node(&self, id: BlockId) -> Option<Arc<Node>> {
        self.nodes.peek(&id)
    }

    /// Keeps a decoded node.
    pub fn keep_node(&self, id: BlockId, node: &Arc<Node>) {
        self.nodes.insert(id, Arc::clone(node));
    }

    /// Forgets a block that is dead.
    pub fn forget(&self, id: BlockId) {
        self.records.remove(&id);
        self.nodes.remove(&id);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.records.clear();
        self.nodes.clear();
    }

    /// Counters and contents of the cache.
    pub fn stats(&self) -> CacheStats {
        let (record_limit, node_limit) = self.limits();
        let ahead = Lookups {
            hits: self.ahead_hits.load(Ordering::Relaxed),
            misses: self.ahead_misses.load(Ordering::Relaxed),
        };
        CacheStats {
            record_bytes: self.records.weight(),
            node_bytes: self.nodes.weight(),
            record_limit,
            node_limit,
            demand_data: Lookups {
                hits: self.records.hits().saturating_sub(ahead.hits),
                misses: self.records.misses().saturating_sub(ahead.misses),
            },
            demand_metadata: Lookups { hits: self.nodes.hits(), misses: self.nodes.misses() },
            prefetch_data: ahead,
        }
    }
}
