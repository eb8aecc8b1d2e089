//! A file system that keeps names and sizes and no content: what FUSE itself costs.

use larder_app::fuse::{self, MountHandle, MountOptions};
use larder_files::*;
use larder_format::Timestamp;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Writes are accepted and forgotten; reads give zeros. One folder.
#[derive(Default)]
pub struct NoOp(Mutex<Files>);

#[derive(Default)]
struct Files {
    names: HashMap<Vec<u8>, u64>,
    sizes: HashMap<u64, u64>,
    last: u64,
}

/// Mounts one with the settings that the daemon uses.
pub fn mount(mountpoint: &Path) -> MountHandle {
    fuse::mount(Arc::new(NoOp::default()), MountOptions::new(mountpoint, "no-op")).expect("FUSE works here")
}

fn attr(node: NodeId, size: u64) -> Attr {
    let time = Timestamp { secs: 1_700_000_000, nanos: 0 };
    let root = node == NodeId::ROOT;
    Attr {
        node,
        generation: 0,
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        kind: if root { FileKind::Directory } else { FileKind::Regular },
        perm: if root { 0o755 } else { 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 128 << 10,
    }
}

impl NoOp {
    fn size(&self, node: NodeId) -> Result<u64> {
        if node == NodeId::ROOT {
            return Ok(0);
        }
        self.0.lock().sizes.get(&node.raw()).copied().ok_or(FsError::NotFound)
    }
}

impl Ops for NoOp {
    fn lookup(&self, _: NodeId, name: &[u8]) -> Result<Attr> {
        let files = self.0.lock();
        let id = files.names.get(name).ok_or(FsError::NotFound)?;
        Ok(attr(NodeId::from_raw(*id), files.sizes[id]))
    }
    fn forget(&self, _: NodeId, _: u64) {}
    fn getattr(&self, node: NodeId) -> Result<Attr> {
        Ok(attr(node, self.size(node)?))
    }
    fn setattr(&self, node: NodeId, set: &SetAttr, _: &Caller) -> Result<Attr> {
        if let Some(size) = set.size {
            self.0.lock().sizes.insert(node.raw(), size);
        }
        self.getattr(node)
    }
    fn readlink(&self, _: NodeId) -> Result<Vec<u8>> {
        Err(FsError::NotSupported)
    }
    fn mknod(&self, _: NodeId, _: &[u8], _: FileKind, _: u32, _: u32, _: &Caller) -> Result<Attr> {
        Err(FsError::NotSupported)
    }
    fn mkdir(&self, _: NodeId, _: &[u8], _: u32, _: &Caller) -> Result<Attr> {
        Err(FsError::NotSupported)
    }
    fn symlink(&self, _: NodeId, _: &[u8], _: &[u8], _: &Caller) -> Result<Attr> {
        Err(FsError::NotSupported)
    }
    fn link(&self, _: NodeId, _: NodeId, _: &[u8]) -> Result<Attr> {
        Err(FsError::NotSupported)
    }
    fn unlink(&self, _: NodeId, name: &[u8]) -> Result<()> {
        let mut files = self.0.lock();
        let id = files.names.remove(name).ok_or(FsError::NotFound)?;
        files.sizes.remove(&id);
        Ok(())
    }
    fn rmdir(&self, _: NodeId, _: &[u8]) -> Result<()> {
        Err(FsError::NotSupported)
    }
    fn rename(&self, _: NodeId, _: &[u8], _: NodeId, _: &[u8], _: RenameFlags) -> Result<()> {
        Err(FsError::NotSupported)
    }
    fn open(&self, _: NodeId, _: OpenFlags) -> Result<Handle> {
        Ok(Handle(1))
    }
    fn create(&self, _: NodeId, name: &[u8], _: u32, _: OpenFlags, _: &Caller) -> Result<(Attr, Handle)> {
        let mut files = self.0.lock();
        files.last += 1;
        let id = files.last + NodeId::ROOT.raw();
        files.names.insert(name.to_vec(), id);
        files.sizes.insert(id, 0);
        Ok((attr(NodeId::from_raw(id), 0), Handle(1)))
    }
    fn tmpfile(&self, _: NodeId, _: u32, _: OpenFlags, _: &Caller) -> Result<(Attr, Handle)> {
        Err(FsError::NotSupported)
    }
    fn read(&self, node: NodeId, _: Handle, offset: u64, len: u32) -> Result<ReadData> {
        let len = u64::from(len).min(self.size(node)?.saturating_sub(offset));
        let mut data = ReadData::default();
        data.push_zeros(len as usize);
        Ok(data)
    }
    fn write(&self, node: NodeId, _: Handle, offset: u64, data: &[u8], _: bool) -> Result<u32> {
        let mut files = self.0.lock();
        let size = files.sizes.entry(node.raw()).or_default();
        *size = (*size).max(offset + data.len() as u64);
        Ok(data.len() as u32)
    }
    fn flush(&self, _: NodeId, _: Handle) -> Result<()> {
        Ok(())
    }
    fn release(&self, _: NodeId, _: Handle) -> Result<()> {
        Ok(())
    }
    fn fsync(&self, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }
    fn fallocate(&self, _: NodeId, _: Handle, _: u64, _: u64, _: Allocate) -> Result<()> {
        Err(FsError::NotSupported)
    }
    fn lseek(&self, _: NodeId, _: Handle, _: u64, _: Seek) -> Result<u64> {
        Err(FsError::NotSupported)
    }
    fn copy_file_range(&self, _: (NodeId, Handle, u64), _: (NodeId, Handle, u64), _: u64) -> Result<u64> {
        Err(FsError::NotSupported)
    }
    fn opendir(&self, _: NodeId) -> Result<Handle> {
        Ok(Handle(1))
    }
    fn readdir(
        &self,
        _: NodeId,
        _: Handle,
        _: u64,
        _: bool,
        _: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Ok(())
    }
    fn releasedir(&self, _: NodeId, _: Handle) -> Result<()> {
        Ok(())
    }
    fn fsyncdir(&self, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }
    fn getxattr(&self, _: NodeId, _: &[u8]) -> Result<Vec<u8>> {
        Err(FsError::NoAttr)
    }
    fn setxattr(&self, _: NodeId, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        Err(FsError::NotSupported)
    }
    fn listxattr(&self, _: NodeId) -> Result<Vec<u8>> {
        Err(FsError::NotSupported)
    }
    fn removexattr(&self, _: NodeId, _: &[u8]) -> Result<()> {
        Err(FsError::NotSupported)
    }
    fn statfs(&self, _: NodeId) -> Result<StatFs> {
        Ok(StatFs { block_size: 4096, name_max: 255, ..StatFs::default() })
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
