//! The extents of a file, shown to users.

use crate::attr::check_regular;
use crate::error::Result;
use crate::extents::extents;
use crate::mount::Mount;
use crate::posix::NodeId;
use crate::volume::Volume;
use larder_format::items::Extent;
use larder_format::{DatasetId, InodeId};

/// A file's extents, or a part of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLayout {
    /// The dataset that it is in.
    pub dataset: DatasetId,
    /// Its length, bytes.
    pub size: u64,
    /// Bytes that its records are cut at; 0 for one without data.
    pub record_size: u32,
    /// By their offset in the file, ascending; what lies between them is holes.
    pub extents: Vec<(u64, Extent)>,
}

impl Volume {
    /// Up to `max` extents of a file that begin at `from` or later. What is dirty is stored first.
    ///
    /// # Errors
    /// When it is no file, or cannot be stored or read.
    pub fn layout(&self, id: InodeId, from: u64, max: usize) -> Result<FileLayout> {
        let inode = self.inode(id)?;
        let dirty = {
            let state = inode.lock()?;
            check_regular(&state)?;
            !state.data.is_empty()
        };
        if dirty {
            self.flush_one(id)?;
        }
        let (size, record_size) = {
            let state = inode.lock()?;
            (state.live.size, state.live.record_size)
        };
        // Beyond the end lies at most what is being dropped.
        let extents = extents(&self.dataset.view()?, id, from..size.max(from), max)?;
        Ok(FileLayout { dataset: self.id(), size, record_size, extents })
    }
}

impl Mount {
    /// As [`Volume::layout`].
    ///
    /// # Errors
    /// As [`Volume::layout`].
    pub fn layout(&self, node: NodeId, from: u64, max: usize) -> Result<FileLayout> {
        let (volume, inode) = self.at(node)?;
        volume.layout(inode, from, max)
    }
}
