//! Streams on their way in, as the pool remembers them: see [`crate::receive`].

use larder_format::DatasetId;
use larder_format::tables::ReceivingRecord;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A stream on its way into a dataset of its own.
pub(crate) struct Received {
    pub(crate) record: ReceivingRecord,
    /// Counts who receives it.
    pub(crate) used: Arc<()>,
}

impl Received {
    /// Whether somebody receives it now.
    pub(crate) fn is_used(&self) -> bool {
        Arc::strong_count(&self.used) > 1
    }
}

/// Those of a pool, by the dataset that they go into first.
pub(crate) type Receiving = BTreeMap<DatasetId, Received>;
