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

/// How the budget is divided: the cache has at least two fifths, dirty data and rows a quarter.
pub const CACHE_SHARE_PERCENT: u64 = 45;
/// Share of the budget for dirty data, percent.
pub const DIRTY_SHARE_PERCENT: u64 = 15;
/// Share of the budget for rows on their way to devices, percent.
pub const ROWS_SHARE_PERCENT: u64 = 10;

/// The RAM cache.
pub struct Cache {
    records: Shards<BlockId, Record, ByLength>,
    nodes: Shards<BlockId, Arc<Node>, ByLength>,
    memory: AtomicU64,
    metadata_percent: AtomicU64,
}

/// What the cache did since import.
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
    /// Record look-ups answered.
    pub record_hits: u64,
    /// Record look-ups not answered.
    pub record_misses: u64,
    /// Node look-ups answered.
    pub node_hits: u64,
    /// Node look-ups not answered.
    pub node_misses: u64,
}

impl Cache {
    /// A cache in a budget of `memory` bytes, `metadata_percent` of the cache's share for nodes.
    pub fn new(memory: u64, metadata_percent: u64) -> Self {
        let cache = Self {
            records: Shards::with_weighter(1024, 1 << 20, ByLength),
            nodes: Shards::with_weighter(1024, 1 << 20, ByLength),
            memory: AtomicU64::new(memory),
            metadata_percent: AtomicU64::new(metadata_percent),
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

    /// Bytes of rows on their way to devices that the budget allows.
    pub fn rows_limit(&self) -> u64 {
        self.memory() / 100 * ROWS_SHARE_PERCENT
    }

    fn limits(&self) -> (u64, u64) {
        let cache = self.memory() / 100 * CACHE_SHARE_PERCENT;
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

    /// What it did and holds.
    pub fn stats(&self) -> CacheStats {
        let (record_limit, node_limit) = self.limits();
        CacheStats {
            record_bytes: self.records.weight(),
            node_bytes: self.nodes.weight(),
            record_limit,
            node_limit,
            record_hits: self.records.hits(),
            record_misses: self.records.misses(),
            node_hits: self.nodes.hits(),
            node_misses: self.nodes.misses(),
        }
    }
}
