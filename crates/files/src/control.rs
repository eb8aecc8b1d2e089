//! `.zfs`: directories that are not stored; and what a node is.
//!
//! The root directory of every attached dataset has `.zfs` in it, which has `snapshot` in it, which has a directory for
//! each snapshot of the dataset: the root of its tree, opened when somebody looks it up (see [`crate::snapshots`]).
//! `.zfs` and `snapshot` take the two inode numbers of the dataset that no file gets. Nothing is changed in them.

use crate::error::{FsError, Result};
use crate::posix::{Attr, DirEntry, FileKind, Handle, NodeId};
use crate::snapshots::Snapshots;
use crate::volume::Volume;
use larder_format::items::{LAST_INODE, MAX_NAME, ROOT_INODE};
use larder_format::{BlockId, DatasetId, InodeId};
use larder_pool::is_momentary;
use std::sync::Arc;

/// The name of the upper one, in the root directory of a dataset.
pub(crate) const ZFS: &[u8] = b".zfs";
/// The name of the lower one.
pub(crate) const SNAPSHOT: &[u8] = b"snapshot";
const SNAPSHOT_INODE: InodeId = InodeId::new(LAST_INODE + 1);
const ZFS_INODE: InodeId = InodeId::new(LAST_INODE + 2);
/// The cookie of `..`; those of snapshots follow, by their high ids.
pub(crate) const DOT_DOT: u64 = 2;
/// Snapshots that are taken from the pool's list at a time.
const LISTING: usize = 256;

/// A node of a mount.
pub(crate) enum Object {
    Inode(Arc<Volume>, InodeId),
    Control(Control),
}

/// One of the two directories of a dataset that are not stored.
pub(crate) struct Control {
    volume: Arc<Volume>,
    level: Level,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Zfs,
    Snapshot,
}

impl NodeId {
    /// The directory `.zfs/snapshot` of a dataset.
    pub fn of_snapshots(dataset: DatasetId) -> Self {
        Self::pack(dataset, SNAPSHOT_INODE)
    }
}

/// Whether an inode number of an attached dataset is that of a directory which is not stored.
pub(crate) fn is_control(inode: InodeId) -> bool {
    inode == ZFS_INODE || inode == SNAPSHOT_INODE
}

impl Object {
    /// An inode of an attached dataset.
    pub fn of(volume: Arc<Volume>, inode: InodeId) -> Self {
        match inode {
            ZFS_INODE => Self::zfs(volume),
            SNAPSHOT_INODE => Self::snapshots(volume),
            inode => Self::Inode(volume, inode),
        }
    }

    /// `.zfs` of an attached dataset.
    pub fn zfs(volume: Arc<Volume>) -> Self {
        Self::Control(Control { volume, level: Level::Zfs })
    }

    /// `.zfs/snapshot` of an attached dataset.
    pub fn snapshots(volume: Arc<Volume>) -> Self {
        Self::Control(Control { volume, level: Level::Snapshot })
    }

    pub fn node(&self) -> NodeId {
        match self {
            Self::Inode(volume, inode) => volume.node(*inode),
            Self::Control(control) => control.node(),
        }
    }

    /// Volume and inode, of what a volume stores.
    pub fn stored(self) -> Result<(Arc<Volume>, InodeId)> {
        match self {
            Self::Inode(volume, inode) => Ok((volume, inode)),
            Self::Control(_) => Err(FsError::IsDirectory),
        }
    }

    /// The same of what is to be changed.
    pub fn changing(self) -> Result<(Arc<Volume>, InodeId)> {
        match self {
            Self::Inode(volume, inode) => volume.check_writable().map(|()| (volume, inode)),
            Self::Control(_) => Err(FsError::ReadOnly),
        }
    }

    /// The volume that it is in, or stands beside.
    pub fn volume(&self) -> &Arc<Volume> {
        match self {
            Self::Inode(volume, _) => volume,
            Self::Control(control) => &control.volume,
        }
    }

    pub fn getattr(&self) -> Result<Attr> {
        match self {
            Self::Inode(volume, inode) => volume.getattr(*inode),
            Self::Control(control) => Ok(control.attr()),
        }
    }

    pub fn opendir(&self, handle: Handle) -> Result<()> {
        let Self::Inode(volume, inode) = self else { return Ok(()) };
        if volume.getattr(*inode)?.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        match volume.acquire(*inode, handle) {
            // Names that can be read are listed, so that they can be removed.
            Err(FsError::Damaged(_)) => Ok(()),
            acquired => acquired,
        }
    }

    pub fn release(&self, handle: Handle) -> Result<()> {
        match self {
            Self::Inode(volume, inode) => volume.release(*inode, handle),
            Self::Control(_) => Ok(()),
        }
    }

    pub fn fsync(&self, handle: Handle) -> Result<()> {
        match self {
            Self::Inode(volume, inode) => volume.fsync(*inode, handle),
            Self::Control(_) => Ok(()),
        }
    }

    pub fn getxattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Inode(volume, inode) => volume.getxattr(*inode, name),
            Self::Control(_) => Err(FsError::NoAttr),
        }
    }

    pub fn listxattr(&self) -> Result<Vec<u8>> {
        match self {
            Self::Inode(volume, inode) => volume.listxattr(*inode),
            Self::Control(_) => Ok(Vec::new()),
        }
    }
}

impl Control {
    fn node(&self) -> NodeId {
        let inode = match self.level {
            Level::Zfs => ZFS_INODE,
            Level::Snapshot => SNAPSHOT_INODE,
        };
        NodeId::pack(self.volume.id(), inode)
    }

    /// A client of NFS looks at the times to see whether snapshots were taken.
    fn attr(&self) -> Attr {
        let (dataset, pool) = (self.volume.dataset(), &self.volume.pool);
        let born = dataset.created();
        let changed = pool.newest_snapshot(dataset.id()).map_or(born, |newest| newest.created);
        Attr {
            node: self.node(),
            generation: 0,
            size: 0,
            blocks: 0,
            atime: changed,
            mtime: changed,
            ctime: changed,
            btime: born,
            kind: FileKind::Directory,
            perm: 0o555,
            // No promise about the number of directories in it.
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }

    /// The object that a name in it leads to.
    pub fn find(&self, snapshots: &Snapshots, name: &[u8]) -> Result<Object> {
        if name.len() > MAX_NAME {
            return Err(FsError::NameTooLong);
        }
        let volume = || Arc::clone(&self.volume);
        match (self.level, name) {
            (Level::Zfs, b"..") => Ok(Object::Inode(volume(), ROOT_INODE)),
            (Level::Zfs, SNAPSHOT) => Ok(Object::snapshots(volume())),
            (Level::Zfs, _) => Err(FsError::NotFound),
            (Level::Snapshot, b"..") => Ok(Object::zfs(volume())),
            (Level::Snapshot, name) => {
                let name = str::from_utf8(name).map_err(|_| FsError::NotFound)?;
                if is_momentary(name) {
                    return Err(FsError::NotFound);
                }
                let snapshot = snapshots.named(&self.volume.pool, self.volume.id(), name)?;
                Ok(Object::Inode(snapshot, ROOT_INODE))
            }
        }
    }

    /// The directory in it that is no snapshot.
    pub fn below(&self) -> Option<Object> {
        (self.level == Level::Zfs).then(|| Object::snapshots(Arc::clone(&self.volume)))
    }

    /// Emits the snapshots after `cookie`, without attributes: nothing is opened for a listing.
    pub fn list(&self, snapshots: &Snapshots, mut cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) {
        let dataset = self.volume.id();
        if self.level != Level::Snapshot {
            return;
        }
        loop {
            let after = BlockId::new(cookie.saturating_sub(DOT_DOT));
            let found = self.volume.pool.snapshots_after(dataset, after, LISTING);
            let Some(last) = found.last() else { return };
            cookie = last.high.get() + DOT_DOT;
            for snapshot in &found {
                let number = snapshots.number_of(dataset, snapshot.high);
                let taken = emit(DirEntry {
                    // One that nobody has looked up has no number yet.
                    node: number.map_or(self.node(), |number| NodeId::pack(number, ROOT_INODE)),
                    kind: FileKind::Directory,
                    name: snapshot.name.as_bytes(),
                    next_cookie: snapshot.high.get() + DOT_DOT,
                    attr: None,
                });
                if !taken {
                    return;
                }
            }
        }
    }
}
