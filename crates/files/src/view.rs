//! A mount as seen from one of its datasets, or a snapshot: what a kernel mount of its own shows.
//!
//! Most datasets are reached through their parents. One whose mount point lies elsewhere is attached
//! without a parent and shown by a view, in which it is the root. All else is the mount's: one pool has one
//! mount, whatever number of views. A view of a snapshot shows that alone, by the numbers that its files had in the
//! dataset: programs that compare snapshots by these, each in a mount of its own, find the same file again.

use crate::error::Result;
use crate::mount::Mount;
use crate::ops::{Ops, Seat};
use crate::posix::NodeId;
use crate::volume::Volume;
use larder_format::DatasetId;
use larder_format::items::ROOT_INODE;
use std::sync::Arc;

/// A mount whose root is the root of `dataset`.
pub struct View {
    mount: Arc<Mount>,
    root: NodeId,
    snapshot: Option<Arc<Volume>>,
}

impl View {
    /// Shows `dataset`, which is attached to `mount` without a parent, and what is attached below it.
    pub fn new(mount: Arc<Mount>, dataset: DatasetId) -> Self {
        Self { mount, root: NodeId::pack(dataset, ROOT_INODE), snapshot: None }
    }

    /// Shows a snapshot of a dataset, attached or not. It is in use as long as the view is there.
    ///
    /// # Errors
    /// [`NotFound`](crate::FsError::NotFound) when there is no such snapshot or it is empty; when its root cannot be
    /// read.
    pub fn of_snapshot(mount: Arc<Mount>, dataset: DatasetId, name: &str) -> Result<Self> {
        let snapshot = mount.snapshots.named(&mount.pool, dataset, name)?;
        Ok(Self { root: snapshot.node(ROOT_INODE), mount, snapshot: Some(snapshot) })
    }
}

impl Ops for View {
    fn seat(&self) -> Result<Seat<'_>> {
        Ok(Seat::new(&self.mount, Some(self.root), self.snapshot.as_ref()))
    }
}
