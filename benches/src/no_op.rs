//! A file system that keeps names and sizes and no content: what FUSE itself costs, or FUSE and hashing.

use larder_app::fuse::{self, MountHandle, MountOptions};
use larder_files::*;
use larder_format::Timestamp;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are hashed together.
const RECORD: usize = 128 << 10;

/// Writes are accepted and forgotten; reads give zeros.
#[derive(Default)]
pub struct NoOp {
    files: Mutex<Files>,
    /// Key that writes are hashed with, as fingerprints are; `None` for no hashing.
    key: Option<[u8; 32]>,
}

#[derive(Default)]
struct Files {
    /// By folder and name.
    names: HashMap<(u64, Vec<u8>), u64>,
    sizes: HashMap<u64, u64>,
    folders: HashSet<u64>,
    last: u64,
}

impl NoOp {
    /// One that hashes every write, by BLAKE3 with a key.
    pub fn hashing() -> Self {
        Self { key: Some([7; 32]), ..Self::default() }
    }
}

impl Files {
    fn attr(&self, id: u64) -> Result<Attr> {
        let node = NodeId::from_raw(id);
        let folder = node == NodeId::ROOT || self.folders.contains(&id);
        let size = if folder { 0 } else { self.sizes.get(&id).copied().ok_or(FsError::NotFound)? };
        Ok(attr(node, size, folder))
    }

    fn make(&mut self, parent: NodeId, name: &[u8]) -> u64 {
        self.last += 1;
        let id = self.last + NodeId::ROOT.raw();
        self.names.insert((parent.raw(), name.to_vec()), id);
        id
    }
}

/// Mounts one with the settings that the daemon uses.
pub fn mount(mountpoint: &Path) -> MountHandle {
    fuse::mount(Arc::new(NoOp::default()), MountOptions::new(mountpoint, "no-op")).expect("FUSE works here")
}

/// Mounts one that hashes every write, by BLAKE3 with a key, says so on standard output and serves until standard
/// input ends: to be called in a process of its own, as the daemon is one.
pub fn serve_hashing(mountpoint: &Path) {
    let mounted = fuse::mount(Arc::new(NoOp::hashing()), MountOptions::new(mountpoint, "no-op"))
        .expect("FUSE works here");
    println!("mounted");
    io::copy(&mut io::stdin(), &mut io::sink()).expect("a pipe can be read");
    mounted.unmount().expect("nobody is in it");
}

fn attr(node: NodeId, size: u64, folder: bool) -> Attr {
    let time = Timestamp { secs: 1_700_000_000, nanos: 0 };
    Attr {
        node,
        generation: 0,
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        kind: if folder { FileKind::Directory } else { FileKind::Regular },
        perm: if folder { 0o755 } else { 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 128 << 10,
    }
}

impl Ops for NoOp {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr> {
        let files = self.files.lock();
        let id = files.names.get(&(parent.raw(), name.to_vec())).ok_or(FsError::NotFound)?;
        files.attr(*id)
    }
    fn forget(&self, _: NodeId, _: u64) {}
    fn getattr(&self, node: NodeId) -> Result<Attr> {
        self.files.lock().attr(node.raw())
    }
    fn setattr(&self, node: NodeId, set: &SetAttr, _: &Caller) -> Result<Attr> {
        if let Some(size) = set.size {
            self.files.lock().sizes.insert(node.raw(), size);
        }
        self.getattr(node)
    }
    fn mkdir(&self, parent: NodeId, name: &[u8], _: u32, _: &Caller) -> Result<Attr> {
        let mut files = self.files.lock();
        let id = files.make(parent, name);
        files.folders.insert(id);
        files.attr(id)
    }
    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let mut files = self.files.lock();
        let id = files.names.remove(&(parent.raw(), name.to_vec())).ok_or(FsError::NotFound)?;
        files.sizes.remove(&id);
        Ok(())
    }
    fn open(&self, _: NodeId, _: OpenFlags) -> Result<Handle> {
        Ok(Handle(1))
    }
    fn create(&self, parent: NodeId, name: &[u8], _: u32, _: OpenFlags, _: &Caller) -> Result<Created> {
        let mut files = self.files.lock();
        let id = files.make(parent, name);
        files.sizes.insert(id, 0);
        Ok(Created { attr: files.attr(id)?, handle: Handle(1), made: true })
    }
    fn read(&self, node: NodeId, _: Handle, offset: u64, len: u32) -> Result<ReadData> {
        let len = u64::from(len).min(self.getattr(node)?.size.saturating_sub(offset));
        let mut data = ReadData::default();
        data.push_zeros(len as usize);
        Ok(data)
    }
    fn write(&self, node: NodeId, _: Handle, offset: u64, data: &[u8], _: bool) -> Result<u32> {
        if let Some(key) = &self.key {
            for record in data.chunks(RECORD) {
                std::hint::black_box(blake3::keyed_hash(key, record));
            }
        }
        let mut files = self.files.lock();
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
    fn statfs(&self, _: NodeId) -> Result<StatFs> {
        Ok(StatFs { block_size: 4096, name_max: 255, ..StatFs::default() })
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
