//! A mount as seen from one of its datasets: what a kernel mount of its own shows.
//!
//! Most datasets are reached through their parents. One whose mount point lies elsewhere is attached
//! without a parent and shown by a view, in which it is the root. All else is the mount's: one pool has one
//! mount, whatever number of views.

use crate::error::{FsError, Result};
use crate::mount::Mount;
use crate::ops::*;
use crate::read_data::ReadData;
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

    /// A node as the mount knows it. File handles let programs ask for any number: what this view does not show is
    /// [`FsError::Stale`].
    fn inner(&self, node: NodeId) -> Result<NodeId> {
        let ((root, _), (dataset, _)) = (self.root.unpack(), node.unpack());
        match node {
            NodeId::ROOT => Ok(self.root),
            _ if dataset == root || self.mount.is_below(dataset, root) => Ok(node),
            _ => Err(FsError::Stale),
        }
    }

    /// A node as it is shown.
    fn outer(&self, node: NodeId) -> NodeId {
        if node == self.root { NodeId::ROOT } else { node }
    }

    fn show(&self, attr: Attr) -> Attr {
        Attr { node: self.outer(attr.node), ..attr }
    }

    /// As [`View::show`], of what an answer tells of, which is counted as a look-up. What was made may be removed
    /// already: then the answer is right all the same, and there is nothing to keep.
    fn show_held(&self, attr: Attr) -> Attr {
        let _ = self.mount.hold(attr.node);
        self.show(attr)
    }
}

impl Ops for View {
    fn panicked(&self) {
        self.mount.panicked();
    }

    fn serves_less(&self, why: &str) {
        self.mount.serves_less(why);
    }

    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr> {
        let mut gone = None;
        loop {
            let attr = self.mount.lookup(self.inner(parent)?, name)?;
            match self.mount.hold(attr.node) {
                // It was removed after it was found: the name leads elsewhere by now, or nowhere.
                Err(FsError::NotFound) if gone != Some(attr.node) => gone = Some(attr.node),
                // What is lost can be looked up to be removed, and needs no keeping.
                Ok(()) | Err(FsError::Damaged(_)) => return Ok(self.show(attr)),
                Err(error) => return Err(error),
            }
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if let Ok(node) = self.inner(node) {
            self.mount.forget(node, lookups);
        }
    }

    fn getattr(&self, node: NodeId) -> Result<Attr> {
        Ok(self.show(self.mount.getattr(self.inner(node)?)?))
    }

    fn setattr(&self, node: NodeId, set: &SetAttr, caller: &Caller) -> Result<Attr> {
        Ok(self.show(self.mount.setattr(self.inner(node)?, set, caller)?))
    }

    fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        self.mount.readlink(self.inner(node)?)
    }

    fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        perm: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        Ok(self.show_held(self.mount.mknod(self.inner(parent)?, name, kind, perm, rdev, caller)?))
    }

    fn mkdir(&self, parent: NodeId, name: &[u8], perm: u32, caller: &Caller) -> Result<Attr> {
        Ok(self.show_held(self.mount.mkdir(self.inner(parent)?, name, perm, caller)?))
    }

    fn symlink(&self, parent: NodeId, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        Ok(self.show_held(self.mount.symlink(self.inner(parent)?, name, target, caller)?))
    }

    fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr> {
        Ok(self.show_held(self.mount.link(self.inner(node)?, self.inner(new_parent)?, new_name)?))
    }

    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.mount.unlink(self.inner(parent)?, name)
    }

    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.mount.rmdir(self.inner(parent)?, name)
    }

    fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.mount.rename(self.inner(parent)?, name, self.inner(new_parent)?, new_name, flags)
    }

    fn open(&self, node: NodeId, flags: OpenFlags) -> Result<Handle> {
        self.mount.open(self.inner(node)?, flags)
    }

    fn create(
        &self,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<Created> {
        let created = self.mount.create(self.inner(parent)?, name, perm, flags, caller)?;
        Ok(Created { attr: self.show_held(created.attr), ..created })
    }

    fn tmpfile(
        &self,
        parent: NodeId,
        perm: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<(Attr, Handle)> {
        let (attr, handle) = self.mount.tmpfile(self.inner(parent)?, perm, flags, caller)?;
        Ok((self.show_held(attr), handle))
    }

    fn read(&self, node: NodeId, handle: Handle, offset: u64, len: u32) -> Result<ReadData> {
        self.mount.read(self.inner(node)?, handle, offset, len)
    }

    fn write(
        &self,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Result<u32> {
        self.mount.write(self.inner(node)?, handle, offset, data, kill_suidgid)
    }

    fn flush(&self, node: NodeId, handle: Handle) -> Result<()> {
        self.mount.flush(self.inner(node)?, handle)
    }

    fn release(&self, node: NodeId, handle: Handle) -> Result<()> {
        self.mount.release(self.inner(node)?, handle)
    }

    fn fsync(&self, node: NodeId, handle: Handle, datasync: bool) -> Result<()> {
        self.mount.fsync(self.inner(node)?, handle, datasync)
    }

    fn fallocate(&self, node: NodeId, handle: Handle, offset: u64, len: u64, mode: Allocate) -> Result<()> {
        self.mount.fallocate(self.inner(node)?, handle, offset, len, mode)
    }

    fn lseek(&self, node: NodeId, handle: Handle, offset: u64, seek: Seek) -> Result<u64> {
        self.mount.lseek(self.inner(node)?, handle, offset, seek)
    }

    fn copy_file_range(
        &self,
        (from, from_handle, from_offset): (NodeId, Handle, u64),
        (to, to_handle, to_offset): (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let from = (self.inner(from)?, from_handle, from_offset);
        self.mount.copy_file_range(from, (self.inner(to)?, to_handle, to_offset), len)
    }

    fn opendir(&self, node: NodeId) -> Result<Handle> {
        self.mount.opendir(self.inner(node)?)
    }

    fn readdir(
        &self,
        node: NodeId,
        handle: Handle,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.mount.readdir(self.inner(node)?, handle, cookie, plus, &mut |entry| {
            // Without attributes it is no look-up, and the caller looks it up when somebody wants it.
            let held = entry.attr.filter(|attr| self.mount.hold(attr.node).is_ok());
            let attr = held.map(|attr| self.show(*attr));
            let taken = emit(DirEntry { node: self.outer(entry.node), attr: attr.as_ref(), ..entry });
            if let Some(held) = held.filter(|_| !taken) {
                self.mount.forget(held.node, 1);
            }
            taken
        })
    }

    fn releasedir(&self, node: NodeId, handle: Handle) -> Result<()> {
        self.mount.releasedir(self.inner(node)?, handle)
    }

    fn fsyncdir(&self, node: NodeId, handle: Handle, datasync: bool) -> Result<()> {
        self.mount.fsyncdir(self.inner(node)?, handle, datasync)
    }

    fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.mount.getxattr(self.inner(node)?, name)
    }

    fn setxattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.mount.setxattr(self.inner(node)?, name, value, mode)
    }

    fn listxattr(&self, node: NodeId) -> Result<Vec<u8>> {
        self.mount.listxattr(self.inner(node)?)
    }

    fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.mount.removexattr(self.inner(node)?, name)
    }

    fn statfs(&self, node: NodeId) -> Result<StatFs> {
        self.mount.statfs(self.inner(node)?)
    }

    fn sync(&self) -> Result<()> {
        self.mount.sync()
    }
}
