//! Commits that are sealed and not finished, and changes that the tables lack. For the steps see [`crate::commit`].

use larder_format::node::Key;
use larder_format::root::Root;
use larder_format::{OpSeq, SegmentId};
use larder_sorted::map::Changes;
use larder_store::member::Member;
use larder_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Result of step 2, input of step 3.
pub(crate) struct Sealed {
    pub(crate) root: Root,
    pub(crate) applied: OpSeq,
    /// Progress of devices being rebuilt, taken before: losses found on the way are in the tables.
    pub(crate) rebuilt: Vec<(Arc<Member>, SegmentId)>,
}

/// State that commits keep between them.
#[derive(Default)]
pub(crate) struct Sealing {
    /// Changes of the block map's runs that the tables lack. Locked under the tables.
    pub(crate) unnoted: Mutex<Changes>,
    /// Changes of the dedup index's parts that the tables lack. Likewise.
    pub(crate) unnoted_parts: Mutex<larder_sorted::index::Changes>,
    /// Keys that lead to nodes of the tables that the next commit writes anew ([`crate::scattered`]).
    pub(crate) scattered: Mutex<Vec<Key>>,
    /// A commit that devices refused; see [`crate::Pool::resume`].
    unfinished: Mutex<Option<Sealed>>,
    /// Bytes of nodes of datasets that commits have stored since import.
    node_bytes: AtomicU64,
}

impl Sealing {
    /// Keeps a commit that devices refused.
    pub(crate) fn keep(&self, sealed: Sealed) {
        *self.unfinished.lock() = Some(sealed);
    }

    /// The commit that was kept, if there is one.
    pub(crate) fn take(&self) -> Option<Sealed> {
        self.unfinished.lock().take()
    }

    /// Whether a commit was kept.
    pub(crate) fn has_kept(&self) -> bool {
        self.unfinished.lock().is_some()
    }

    /// A commit has stored so many bytes of nodes of datasets.
    pub(crate) fn add_node_bytes(&self, bytes: u64) {
        self.node_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of nodes of datasets that commits have stored since import.
    pub(crate) fn node_bytes(&self) -> u64 {
        self.node_bytes.load(Ordering::Relaxed)
    }
}
