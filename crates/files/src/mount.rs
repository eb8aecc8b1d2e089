//! A mount: the volumes of a pool as one tree.
//!
//! The root dataset's root directory is the mount's root. Every other dataset that is attached shows as
//! a directory in the *root directory* of its parent, by its name; such a junction hides an entry of
//! that name, and cannot be removed or replaced through the tree. Handles are numbers without state of
//! their own: an inode counts how often it is open, and which of them know of its failures.

use crate::error::{FsError, Result};
use crate::flush::LOG_AT_MOST;
use crate::names::{NewInode, check_name, name_in, path_in};
use crate::ops::*;
use crate::read_data::ReadData;
use crate::share::Copied;
use crate::volume::Volume;
use larder_format::items::{FIRST_COOKIE, ROOT_INODE};
use larder_format::ledger::{DamageKind, DamageRecord};
use larder_format::{CommitId, DatasetId, InodeId};
use larder_pool::damage::HEAD;
use larder_pool::{Class, Dataset, Event, FrontEnd, Look, Op, Pool, PoolError};
use larder_sync::RwLock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Cookies of `.` and `..`; those of junctions follow, by dataset.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// What `statfs` counts in, bytes.
const STATFS_UNIT: u32 = 4096;
/// More inodes than anybody makes.
const FILES: u64 = 1 << 40;
/// Damaged files whose paths are looked for.
const NAMED_AT_MOST: usize = 1000;
/// Set in the handle of an open file that is appended to.
const APPEND: u64 = 1;
/// The handle of directories.
const DIRECTORY: Handle = Handle(0);

fn is_appended_to(handle: Handle) -> bool {
    handle.0 & APPEND != 0
}

/// The volumes of a pool as one tree.
pub struct Mount {
    pool: Arc<Pool>,
    /// User and group of new datasets' root directories.
    owner: (u32, u32),
    /// The number of the next file to be opened: the upper bits of its handle.
    opened: AtomicU64,
    tree: RwLock<Tree>,
}

#[derive(Default)]
struct Tree {
    volumes: BTreeMap<DatasetId, Attached>,
    /// The first dataset attached without a parent.
    root: Option<DatasetId>,
    /// Detached, but perhaps still used by a call that began before.
    leaving: Vec<Arc<Volume>>,
}

struct Attached {
    volume: Arc<Volume>,
    parent: Option<(DatasetId, Vec<u8>)>,
}

/// A file that cannot be read in part or at all, or metadata of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// The dataset.
    pub dataset: DatasetId,
    /// The snapshot of it, when it is in one.
    pub snapshot: Option<String>,
    /// The inode; none for metadata of the dataset.
    pub inode: Option<InodeId>,
    /// Its path below the dataset's root, when a name leads to it.
    pub path: Option<String>,
    /// The ranges of the file that cannot be read, bytes, ascending.
    pub ranges: Vec<Range<u64>>,
    /// More than these ranges cannot be read: attributes, names, or where data is.
    pub whole: bool,
}

/// What a name in a directory is.
enum Step {
    Junction(Arc<Volume>),
    Entry(Arc<Volume>, InodeId),
}

impl Tree {
    fn volume(&self, id: DatasetId) -> Result<&Arc<Volume>> {
        self.volumes.get(&id).map(|attached| &attached.volume).ok_or(FsError::Stale)
    }

    /// Forgets detached volumes that nobody uses any more.
    fn let_go(&mut self) {
        self.leaving.retain(|volume| Arc::strong_count(volume) > 1 || !volume.is_clean());
    }

    /// Refuses to attach a dataset twice, where another one is, or below one that is not attached.
    fn check_place(&self, id: DatasetId, parent: Option<&(DatasetId, Vec<u8>)>) -> Result<()> {
        let taken = match parent {
            None => false,
            Some((parent, name)) => {
                check_name(name)?;
                self.volume(*parent)?;
                self.children(*parent).any(|(_, taken, _)| taken == name)
            }
        };
        if taken || self.volumes.contains_key(&id) {
            return Err(FsError::Exists);
        }
        if self.leaving.iter().any(|volume| volume.id() == id) {
            return Err(FsError::Busy);
        }
        Ok(())
    }

    fn children(&self, of: DatasetId) -> impl Iterator<Item = (DatasetId, &[u8], &Arc<Volume>)> {
        self.volumes.iter().filter_map(move |(&id, attached)| match &attached.parent {
            Some((parent, name)) if *parent == of => Some((id, name.as_slice(), &attached.volume)),
            _ => None,
        })
    }
}

/// Where a damaged inode is: its entry tells of a directory that names it where it cannot do so itself.
fn path_in_tree(tree: &impl Look, entry: &DamageRecord, inode: InodeId) -> Option<String> {
    if inode == ROOT_INODE {
        return Some("/".into());
    }
    if entry.parent == 0 {
        return path_in(tree, inode).ok().flatten();
    }
    let parent = InodeId::new(entry.parent);
    let dir = path_in(tree, parent).ok().flatten()?;
    let name = name_in(tree, parent, entry.cookie).ok().flatten()?;
    Some(format!("{}/{name}", dir.trim_end_matches('/')))
}

impl Mount {
    /// A mount without volumes. Does again what the pool's intent log holds and commits it; becomes the
    /// pool's front end. Root directories of new datasets will belong to `owner`: user and group.
    ///
    /// # Errors
    /// When a logged operation does not fit, or the pool fails. [`FsError::NoSpace`] when what is done again finds no
    /// room; the log is as it was, for the next import.
    pub fn new(pool: Arc<Pool>, owner: (u32, u32)) -> Result<Arc<Self>> {
        let mut tree = Tree::default();
        let replay = pool.take_replay();
        let replayed = !replay.is_empty();
        let count = replay.len();
        for (number, (id, bytes)) in replay.into_iter().enumerate() {
            let volume = match tree.leaving.iter().find(|volume| volume.id() == id) {
                Some(volume) => Arc::clone(volume),
                // A call that had begun before it was destroyed.
                None if pool.destroyed().contains(&id) => continue,
                None => {
                    let dataset = pool.dataset(id).ok_or(FsError::Stale)?;
                    let volume = Volume::open(Arc::clone(&pool), dataset, owner)?;
                    tree.leaving.push(Arc::clone(&volume));
                    volume
                }
            };
            match volume.replay(&bytes, count - number - 1) {
                // What it is about is lost, and so is this change of it; the rest is there.
                Err(FsError::Damaged(why)) => {
                    let lost = Event::new(Class::Data).text(format!("a logged change is lost: {why}"));
                    pool.event(lost.file(id, 0));
                }
                replayed => replayed?,
            }
        }
        let mount = Arc::new(Self { pool, owner, opened: AtomicU64::new(1), tree: RwLock::new(tree) });
        let front: Weak<dyn FrontEnd> = Arc::downgrade(&(Arc::clone(&mount) as Arc<dyn FrontEnd>));
        mount.pool.set_front_end(front);
        mount.pool.replayed();
        if replayed {
            mount.pool.commit()?;
        }
        mount.tree.write().leaving.clear();
        Ok(mount)
    }

    /// What of the datasets can neither be read nor rebuilt, as far as it is known: each file once, by dataset. A file
    /// that was removed is not among it, though its space may still be to come.
    pub fn damaged(&self) -> Vec<Damaged> {
        let mut found: Vec<Damaged> = Vec::new();
        let mut at = BTreeMap::new();
        for entry in self.pool.damage() {
            let (dataset, snapshot, kind) = (entry.dataset, entry.snapshot, entry.what());
            let inode = if kind == DamageKind::Node { None } else { Some(InodeId::new(entry.inode)) };
            let leaves = |inode| self.volume(dataset).is_some_and(|volume| volume.is_leaving(inode));
            if snapshot == HEAD && inode.is_some_and(leaves) {
                continue;
            }
            let index = *at.entry((dataset, snapshot, inode)).or_insert_with(|| {
                let snapshots = if snapshot == HEAD { Vec::new() } else { self.pool.snapshots(dataset) };
                let of = snapshots.into_iter().find(|of| of.high == snapshot);
                let snapshot = of.map(|of| of.name);
                let path = inode
                    .filter(|_| found.len() < NAMED_AT_MOST)
                    .and_then(|inode| self.path_of(&entry, snapshot.as_deref(), inode));
                found.push(Damaged { dataset, snapshot, inode, path, ranges: Vec::new(), whole: false });
                found.len() - 1
            });
            match kind {
                DamageKind::Data => found[index].ranges.push(entry.offset..entry.offset + entry.len),
                DamageKind::Object | DamageKind::Node => found[index].whole = true,
            }
        }
        found
    }

    /// Where a damaged inode is below the root of its dataset, or of a snapshot.
    fn path_of(&self, entry: &DamageRecord, snapshot: Option<&str>, inode: InodeId) -> Option<String> {
        if entry.snapshot == HEAD {
            return path_in_tree(&self.pool.dataset(entry.dataset)?.view().ok()?, entry, inode);
        }
        path_in_tree(&self.pool.snapshot_view(entry.dataset, snapshot?).ok()?, entry, inode)
    }

    /// Shows a dataset: by a name in its parent's root directory, or by itself. The first that is attached
    /// by itself is the mount's root; further ones are reached through a [`crate::View`].
    ///
    /// # Errors
    /// [`FsError::Exists`] when the place is taken, [`FsError::Stale`] when the parent is not attached,
    /// [`FsError::Busy`] while calls that began before it was detached go on.
    pub fn attach(&self, dataset: Arc<Dataset>, parent: Option<(DatasetId, Vec<u8>)>) -> Result<Arc<Volume>> {
        let id = dataset.id();
        // Not under the lock: opening waits for commits, which ask for the volumes.
        self.tree.write().let_go();
        self.tree.read().check_place(id, parent.as_ref())?;
        let volume = Volume::open(Arc::clone(&self.pool), dataset, self.owner)?;
        let mut tree = self.tree.write();
        tree.check_place(id, parent.as_ref())?;
        tree.root = tree.root.or(parent.is_none().then_some(id));
        tree.volumes.insert(id, Attached { volume: Arc::clone(&volume), parent });
        Ok(volume)
    }

    /// Shows a dataset no more. What was written to it is stored first.
    ///
    /// # Errors
    /// [`FsError::Busy`] while datasets are attached below it.
    pub fn detach(&self, id: DatasetId) -> Result<()> {
        let volume = {
            let mut tree = self.tree.write();
            if tree.children(id).next().is_some() {
                return Err(FsError::Busy);
            }
            let attached = tree.volumes.remove(&id).ok_or(FsError::NotFound)?;
            tree.root = tree.root.filter(|&root| root != id);
            tree.leaving.push(Arc::clone(&attached.volume));
            attached.volume
        };
        volume.forget_all();
        volume.flush_all()
    }

    /// Counts a look-up of a node, which `forget` takes back; see [`Volume::hold`].
    pub(crate) fn hold(&self, node: NodeId) -> Result<()> {
        let (volume, inode) = self.at(node)?;
        volume.hold(inode)
    }

    /// A volume that is attached.
    pub fn volume(&self, id: DatasetId) -> Option<Arc<Volume>> {
        self.tree.read().volumes.get(&id).map(|attached| Arc::clone(&attached.volume))
    }

    /// Copies between two files of this mount, of one dataset or two; see [`Volume::copy_range`].
    ///
    /// # Errors
    /// As [`Volume::copy_range`].
    pub fn copy_range(
        &self,
        (from, from_offset): (NodeId, u64),
        (to, to_offset): (NodeId, u64),
        len: u64,
    ) -> Result<Copied> {
        let (source, source_inode) = self.at(from)?;
        let (target, inode) = self.at(to)?;
        target.copy_range((&source, source_inode, from_offset), inode, to_offset, len)
    }

    /// Goes on with removing orphans: at most `max_extents` extents. True while there is more to do.
    ///
    /// # Errors
    /// As [`Volume::reap_step`].
    pub fn reap_step(&self, max_extents: usize) -> Result<bool> {
        for volume in self.all() {
            if volume.reap_step(max_extents)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Inodes in memory with something that the trees do not have: written data, or no more than that
    /// they were read.
    pub fn unstored(&self) -> usize {
        self.all().iter().map(|volume| volume.dirty.lock().len()).sum()
    }

    fn all(&self) -> Vec<Arc<Volume>> {
        let tree = self.tree.read();
        tree.volumes.values().map(|attached| &attached.volume).chain(&tree.leaving).map(Arc::clone).collect()
    }

    /// A handle that nobody has.
    fn new_handle(&self, flags: OpenFlags) -> Handle {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        Handle(number << 1 | if flags.append { APPEND } else { 0 })
    }

    pub(crate) fn at(&self, node: NodeId) -> Result<(Arc<Volume>, InodeId)> {
        let tree = self.tree.read();
        let (dataset, inode) = match node {
            NodeId::ROOT => (tree.root.ok_or(FsError::Stale)?, ROOT_INODE),
            node => node.unpack(),
        };
        Ok((Arc::clone(tree.volume(dataset)?), inode))
    }

    /// Whether a dataset shows in a folder of another, or of one that does.
    pub(crate) fn is_below(&self, dataset: DatasetId, above: DatasetId) -> bool {
        let tree = self.tree.read();
        let parent = |id: &DatasetId| Some(tree.volumes.get(id)?.parent.as_ref()?.0);
        // Nobody attaches a dataset below one that is not attached yet, so these do not go round.
        std::iter::successors(parent(&dataset), parent).any(|id| id == above)
    }

    fn show_node(&self, node: NodeId) -> NodeId {
        let (dataset, inode) = node.unpack();
        let is_root = inode == ROOT_INODE && self.tree.read().root == Some(dataset);
        if is_root { NodeId::ROOT } else { node }
    }

    fn show(&self, attr: Attr) -> Attr {
        Attr { node: self.show_node(attr.node), ..attr }
    }

    /// What `name` in the directory `parent` is, if it leaves the volume or may not be changed.
    fn step(&self, parent: NodeId, name: &[u8]) -> Result<Step> {
        let (volume, dir) = self.at(parent)?;
        if dir == ROOT_INODE {
            let tree = self.tree.read();
            if let Some((_, _, child)) = tree.children(volume.id()).find(|(_, taken, _)| *taken == name) {
                return Ok(Step::Junction(Arc::clone(child)));
            }
            let above = tree.volumes.get(&volume.id()).and_then(|attached| attached.parent.as_ref());
            if let (b"..", Some((above, _))) = (name, above) {
                return Ok(Step::Junction(Arc::clone(tree.volume(*above)?)));
            }
        }
        Ok(Step::Entry(volume, dir))
    }

    /// The directory, for a name that is to be made there.
    fn making(&self, parent: NodeId, name: &[u8]) -> Result<(Arc<Volume>, InodeId)> {
        match self.step(parent, name)? {
            Step::Junction(_) => Err(FsError::Exists),
            Step::Entry(volume, dir) => Ok((volume, dir)),
        }
    }

    /// The directory, for a name that is to be moved or removed.
    fn taking(&self, parent: NodeId, name: &[u8]) -> Result<(Arc<Volume>, InodeId)> {
        match self.step(parent, name)? {
            Step::Junction(_) => Err(FsError::Busy),
            Step::Entry(volume, dir) => Ok((volume, dir)),
        }
    }
}

impl Mount {
    /// Stores most of what is dirty, between commits: what would leave rows half empty stays, for more may follow.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn flush_rows(&self) -> Result<(), PoolError> {
        self.all().iter().try_for_each(|volume| Ok(volume.flush_rows()?))
    }
}

impl FrontEnd for Mount {
    fn flush(&self) -> Result<(), PoolError> {
        self.all().iter().try_for_each(|volume| Ok(volume.flush_all()?))
    }

    fn flush_logged(&self, op: &Op<'_>) -> Result<(), PoolError> {
        self.all().iter().try_for_each(|volume| {
            volume.ids.seal(volume.dataset().next_inode());
            Ok(volume.flush_logged(op)?)
        })
    }

    fn note_dirty(&self) -> Result<bool, PoolError> {
        let mut left = LOG_AT_MOST;
        for volume in self.all() {
            if !volume.note_dirty(&mut left)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn reap_step(&self, max: usize) -> Result<bool, PoolError> {
        Ok(Mount::reap_step(self, max)?)
    }

    fn freeing_bytes(&self) -> u64 {
        self.all().iter().map(|volume| volume.freeing_bytes()).sum()
    }

    fn committed(&self, _commit: CommitId) {
        self.all().iter().for_each(|volume| volume.ids.renew());
        if !self.tree.read().leaving.is_empty() {
            self.tree.write().let_go();
        }
    }
}

impl Ops for Mount {
    fn panicked(&self) {
        self.pool.panicked("a request");
    }

    fn serves_less(&self, why: &str) {
        let text = format!("a thread that served a mount has ended: {why}");
        self.pool.event(Event::new(Class::MountThread).text(text));
    }

    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr> {
        if name == b"." {
            return self.getattr(parent);
        }
        Ok(self.show(match self.step(parent, name)? {
            Step::Junction(volume) => volume.getattr(ROOT_INODE)?,
            Step::Entry(volume, dir) => volume.lookup(dir, name)?,
        }))
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        // What is not attached any more has forgotten everything.
        if let Ok((volume, inode)) = self.at(node) {
            volume.forget(inode, lookups);
        }
    }

    fn getattr(&self, node: NodeId) -> Result<Attr> {
        let (volume, inode) = self.at(node)?;
        Ok(self.show(volume.getattr(inode)?))
    }

    fn setattr(&self, node: NodeId, set: &SetAttr, _caller: &Caller) -> Result<Attr> {
        let (volume, inode) = self.at(node)?;
        Ok(self.show(volume.setattr(inode, set)?))
    }

    fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        let (volume, inode) = self.at(node)?;
        volume.readlink(inode)
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
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid);
        }
        let (volume, dir) = self.making(parent, name)?;
        Ok(self.show(volume.make(dir, name, NewInode { rdev, ..NewInode::plain(kind, perm) }, caller)?))
    }

    fn mkdir(&self, parent: NodeId, name: &[u8], perm: u32, caller: &Caller) -> Result<Attr> {
        let (volume, dir) = self.making(parent, name)?;
        Ok(self.show(volume.make(dir, name, NewInode::plain(FileKind::Directory, perm), caller)?))
    }

    fn symlink(&self, parent: NodeId, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        let (volume, dir) = self.making(parent, name)?;
        // A link's permissions mean nothing; no umask applies to them.
        let caller = Caller { umask: 0, ..*caller };
        Ok(self.show(volume.make(
            dir,
            name,
            NewInode { target, ..NewInode::plain(FileKind::Symlink, 0o777) },
            &caller,
        )?))
    }

    fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr> {
        let (volume, dir) = self.making(new_parent, new_name)?;
        let (from, inode) = self.at(node)?;
        if from.id() != volume.id() {
            return Err(FsError::CrossDevice);
        }
        Ok(self.show(volume.link(inode, dir, new_name)?))
    }

    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let (volume, dir) = self.taking(parent, name)?;
        volume.unlink(dir, name, false)
    }

    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let (volume, dir) = self.taking(parent, name)?;
        volume.unlink(dir, name, true)
    }

    fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let (volume, dir) = self.taking(parent, name)?;
        let (to, new_dir) = self.taking(new_parent, new_name)?;
        if volume.id() != to.id() {
            return Err(FsError::CrossDevice);
        }
        volume.rename(dir, name, new_dir, new_name, flags)
    }

    fn open(&self, node: NodeId, flags: OpenFlags) -> Result<Handle> {
        let (volume, inode) = self.at(node)?;
        if volume.getattr(inode)?.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        let handle = self.new_handle(flags);
        volume.acquire(inode, handle)?;
        if flags.truncate {
            let set = SetAttr { size: Some(0), kill_suidgid: flags.kill_suidgid, ..SetAttr::default() };
            if let Err(error) = volume.setattr(inode, &set) {
                volume.release(inode, handle)?;
                return Err(error);
            }
        }
        Ok(handle)
    }

    fn create(
        &self,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<Created> {
        let (volume, dir) = self.making(parent, name)?;
        let new = NewInode { open: true, ..NewInode::plain(FileKind::Regular, perm) };
        let mut gone = None;
        loop {
            match volume.make(dir, name, new, caller) {
                Err(FsError::Exists) if !flags.exclusive => {}
                made => {
                    let handle = self.new_handle(flags);
                    return Ok(Created { attr: self.show(made?), handle, made: true });
                }
            }
            let found = volume.find(dir, name)?.map(|found| volume.node(found.inode));
            let open = |node| match self.getattr(node)?.kind {
                FileKind::Regular => Ok((node, self.open(node, flags)?)),
                FileKind::Directory => Err(FsError::IsDirectory),
                // The kernel takes files alone for an answer, and opens all else by itself.
                _ => Err(FsError::Stale),
            };
            match found.map_or(Err(FsError::NotFound), open) {
                // It was removed after it was found: so the name is free, or leads elsewhere.
                Err(FsError::NotFound) if found.is_none() || gone != found => gone = found,
                opened => {
                    let (node, handle) = opened?;
                    return Ok(Created { attr: self.getattr(node)?, handle, made: false });
                }
            }
        }
    }

    fn tmpfile(
        &self,
        parent: NodeId,
        perm: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<(Attr, Handle)> {
        let (volume, dir) = self.at(parent)?;
        let attr = volume.tmpfile(dir, perm, !flags.exclusive, caller)?;
        Ok((self.show(attr), self.new_handle(flags)))
    }

    fn read(&self, node: NodeId, _handle: Handle, offset: u64, len: u32) -> Result<ReadData> {
        let (volume, inode) = self.at(node)?;
        volume.read(inode, offset, len)
    }

    fn write(
        &self,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Result<u32> {
        let (volume, inode) = self.at(node)?;
        let offset = (!is_appended_to(handle)).then_some(offset);
        volume.write(inode, offset, data, kill_suidgid)
    }

    fn flush(&self, node: NodeId, handle: Handle) -> Result<()> {
        let (volume, inode) = self.at(node)?;
        volume.report(inode, handle)
    }

    fn release(&self, node: NodeId, handle: Handle) -> Result<()> {
        let (volume, inode) = self.at(node)?;
        volume.release(inode, handle)
    }

    fn fsync(&self, node: NodeId, handle: Handle, _datasync: bool) -> Result<()> {
        let (volume, inode) = self.at(node)?;
        volume.fsync(inode, handle)
    }

    fn fallocate(&self, node: NodeId, _handle: Handle, offset: u64, len: u64, mode: Allocate) -> Result<()> {
        let (volume, inode) = self.at(node)?;
        volume.allocate(inode, offset, len, mode)
    }

    fn lseek(&self, node: NodeId, _handle: Handle, offset: u64, seek: Seek) -> Result<u64> {
        let (volume, inode) = self.at(node)?;
        volume.seek(inode, offset, seek)
    }

    fn copy_file_range(
        &self,
        (from, _, from_offset): (NodeId, Handle, u64),
        (to, handle, to_offset): (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64> {
        if is_appended_to(handle) {
            return Err(FsError::BadHandle);
        }
        Ok(self.copy_range((from, from_offset), (to, to_offset), len)?.bytes)
    }

    fn opendir(&self, node: NodeId) -> Result<Handle> {
        let (volume, inode) = self.at(node)?;
        if volume.getattr(inode)?.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        match volume.acquire(inode, DIRECTORY) {
            // What can be read of its names is told, so that they can be removed.
            Err(FsError::Damaged(_)) => {}
            acquired => acquired?,
        }
        Ok(DIRECTORY)
    }

    fn readdir(
        &self,
        node: NodeId,
        _handle: Handle,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (volume, dir) = self.at(node)?;
        if cookie == 0 {
            volume.listing_begins(dir)?;
        }
        let mut special = Vec::new();
        if cookie < FIRST_COOKIE {
            let above = self.lookup(node, b"..")?.node;
            special.push((DOT, self.show_node(volume.node(dir)), b".".to_vec(), None));
            special.push((DOT_DOT, above, b"..".to_vec(), None));
        }
        if cookie < FIRST_COOKIE && dir == ROOT_INODE {
            for (id, name, child) in self.tree.read().children(volume.id()) {
                let junction = NodeId::pack(id, ROOT_INODE);
                special.push((DOT_DOT + 1 + id.get(), junction, name.to_vec(), Some(Arc::clone(child))));
            }
        }
        for (next_cookie, node, name, junction) in &special {
            if *next_cookie <= cookie {
                continue;
            }
            let attr = match junction {
                Some(child) if plus => Some(child.getattr(ROOT_INODE)?),
                _ => None,
            };
            let (kind, next_cookie) = (FileKind::Directory, *next_cookie);
            let entry = DirEntry { node: *node, kind, name, next_cookie, attr: attr.as_ref() };
            if !emit(entry) {
                return Ok(());
            }
        }
        let hidden = |name: &[u8]| {
            dir == ROOT_INODE && self.tree.read().children(volume.id()).any(|(_, taken, _)| taken == name)
        };
        let mut at = cookie;
        loop {
            let entries = volume.list(dir, at)?;
            let Some(last) = entries.last() else { return Ok(()) };
            at = last.cookie;
            for entry in entries.into_iter().filter(|entry| !hidden(&entry.name)) {
                // Removed since it was listed: without attributes the caller looks it up, and sees.
                let attr = if plus { volume.getattr(entry.inode).ok() } else { None };
                let taken = emit(DirEntry {
                    node: volume.node(entry.inode),
                    kind: entry.kind,
                    name: &entry.name,
                    next_cookie: entry.cookie,
                    attr: attr.as_ref(),
                });
                if !taken {
                    return Ok(());
                }
            }
        }
    }

    fn releasedir(&self, node: NodeId, handle: Handle) -> Result<()> {
        match self.release(node, handle) {
            Err(FsError::Damaged(_)) => Ok(()),
            released => released,
        }
    }

    fn fsyncdir(&self, node: NodeId, handle: Handle, _datasync: bool) -> Result<()> {
        let (volume, inode) = self.at(node)?;
        volume.fsync(inode, handle)
    }

    fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let (volume, inode) = self.at(node)?;
        volume.getxattr(inode, name)
    }

    fn setxattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let (volume, inode) = self.at(node)?;
        volume.setxattr(inode, name, value, mode)
    }

    fn listxattr(&self, node: NodeId) -> Result<Vec<u8>> {
        let (volume, inode) = self.at(node)?;
        volume.listxattr(inode)
    }

    fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        let (volume, inode) = self.at(node)?;
        volume.removexattr(inode, name)
    }

    fn statfs(&self, node: NodeId) -> Result<StatFs> {
        let (volume, _) = self.at(node)?;
        let space = self.pool.space_of(volume.dataset());
        let unit = u64::from(STATFS_UNIT);
        Ok(StatFs {
            block_size: STATFS_UNIT,
            blocks: space.size / unit,
            free: space.available / unit,
            available: space.available / unit,
            files: FILES,
            files_free: FILES,
            name_max: larder_format::items::MAX_NAME as u32,
        })
    }

    fn sync(&self) -> Result<()> {
        self.pool.commit()?;
        Ok(())
    }
}
