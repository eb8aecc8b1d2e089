//! A mount as seen from one of its datasets: what a kernel mount of its own shows.
//!
//! Most datasets are reached through their parents. One whose mount point lies elsewhere is attached
//! without a parent and shown by a view, in which it is the root. All else is the mount's: one pool has one
//! mount, whatever number of views.

use crate::error::Result;
use crate::mount::Mount;
use crate::ops::{Ops, Seat};
use crate::posix::NodeId;
use larder_format::DatasetId;
use larder_format::items::ROOT_INODE;
use std::sync::Arc;

/// A mount whose root is the root of `dataset`.
pub struct View {
    mount: Arc<Mount>,
    root: NodeId,
}

impl View {
    /// Shows `dataset`, which is attached to `mount` without a parent, and what is attached below it.
    pub fn new(mount: Arc<Mount>, dataset: DatasetId) -> Self {
        Self { mount, root: NodeId::pack(dataset, ROOT_INODE) }
    }
}

impl Ops for View {
    fn seat(&self) -> Result<Seat<'_>> {
        Ok(Seat::new(&self.mount, Some(self.root)))
    }
}
