//! State of the trash in memory: see [`crate::trash`].

use crate::dataset::Dataset;
use larder_format::DatasetId;
use larder_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Datasets in the trash, with the names that they had.
pub(crate) type TrashedDatasets = BTreeMap<DatasetId, (Arc<Dataset>, String)>;

/// Progress of the trash, in memory.
pub(crate) struct TrashWatch {
    /// By the wall clock and by the one that never goes back: how far they were apart, and when they last jumped.
    pub(crate) clocks: Mutex<Option<(i128, Duration)>>,
    pub(crate) measured: Mutex<Option<Duration>>,
    /// Bytes in the trash, when they were last measured.
    pub(crate) bytes: AtomicU64,
    /// The commit after which the oldest was last let go of since little was free.
    pub(crate) gone: AtomicU64,
}

impl Default for TrashWatch {
    fn default() -> Self {
        Self {
            clocks: Mutex::new(None),
            measured: Mutex::new(None),
            bytes: AtomicU64::new(0),
            gone: AtomicU64::new(0),
        }
    }
}
