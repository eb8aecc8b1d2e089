//! State of the trash in memory: see [`crate::trash`].

use crate::dataset::Dataset;
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr, DatasetId};
use larder_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Datasets in the trash, with the names that they had.
pub(crate) type TrashedDatasets = BTreeMap<DatasetId, (Arc<Dataset>, String)>;

/// Something in the trash that is measured by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// So many bytes.
    Known(u64),
    /// Blocks of a snapshot above `floor` that are in nothing that follows on it.
    Snapshot { dataset: DatasetId, high: BlockId, root: Option<BlockPtr>, floor: BlockId },
    /// Blocks of a dataset's head above a high id.
    Above(DatasetId, BlockId),
}

/// A comparison of two trees under way.
pub(crate) struct AloneCursor {
    /// The roots that it began with.
    pub(crate) first: (Option<BlockPtr>, Option<BlockPtr>),
    pub(crate) from: Key,
    /// Times that it looked for a head anew.
    pub(crate) tries: u32,
    /// True while all could be read, and neither tree changed.
    pub(crate) is_sure: bool,
}

/// A measure of the trash.
#[derive(Default)]
pub(crate) struct Measured {
    /// When the last one began.
    pub(crate) at: Option<Duration>,
    /// Parts that are still to be measured, the last one first.
    pub(crate) todo: Option<Vec<Part>>,
    /// Place in that one.
    pub(crate) cursor: Option<AloneCursor>,
    /// Bytes so far.
    pub(crate) sum: u64,
}

/// Progress of the trash, in memory.
#[derive(Default)]
pub(crate) struct TrashWatch {
    /// By the wall clock and by the one that never goes back: how far they were apart, and when they last jumped.
    pub(crate) clocks: Mutex<Option<(i128, Duration)>>,
    pub(crate) measured: Mutex<Measured>,
    /// Something came or went since that began; beside the lock, which is held for as long as a measure takes.
    pub(crate) changed: AtomicBool,
    /// Bytes in the trash, when they were last measured.
    pub(crate) bytes: AtomicU64,
    /// Held by who lets go of the oldest.
    pub(crate) letting_go: Mutex<()>,
    /// The commit after which the oldest was last let go of since little was free.
    pub(crate) gone: AtomicU64,
}
