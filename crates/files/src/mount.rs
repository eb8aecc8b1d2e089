//! A mount: the volumes of a pool as one tree.
//!
//! The root dataset's root directory is the mount's root. Every other dataset that is attached shows as
//! a directory in the *root directory* of its parent, by its name; such a junction hides an entry of
//! that name, and cannot be removed or replaced through the tree; nor can `.zfs`. Handles are numbers without state of
//! their own: an inode counts how often it is open, and which of them know of its failures.

use crate::control::{Object, ZFS, is_control};
use crate::error::{FsError, Result};
use crate::flush::LOG_AT_MOST;
use crate::names::{check_name, name_in, path_in};
use crate::posix;
use crate::posix::{Handle, NodeId, OpenFlags};
use crate::replay::Lost;
use crate::share::Copied;
use crate::snapshots::Snapshots;
use crate::volume::Volume;
use larder_format::items::ROOT_INODE;
use larder_format::ledger::{DamageKind, DamageRecord};
use larder_format::{BlockId, CommitId, DatasetId, InodeId};
use larder_pool::ledger::HEAD;
use larder_pool::{Class, Dataset, Event, FrontEnd, Look, Op, Pool, PoolError, Renew, Renewal, Renewed};
use larder_sync::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Damaged files whose paths are looked for.
const NAMED_AT_MOST: usize = 1000;
/// The volumes of a pool as one tree.
pub struct Mount {
    pub(crate) pool: Arc<Pool>,
    /// User and group of new datasets' root directories.
    owner: (u32, u32),
    /// The number of the next file to be opened: the upper bits of its handle.
    opened: AtomicU64,
    tree: RwLock<Tree>,
    pub(crate) snapshots: Snapshots,
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

impl Tree {
    /// Dataset and inode of a node; a snapshot's number stands for it.
    fn unpack(&self, node: NodeId) -> Result<(DatasetId, InodeId)> {
        match node {
            NodeId::ROOT => Ok((self.root.ok_or(FsError::Stale)?, ROOT_INODE)),
            node => Ok(node.unpack()),
        }
    }

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
        let (mut lost, mut unreadable) = (BTreeMap::<_, Lost>::new(), BTreeSet::new());
        let tell = |id, why: String| {
            let event = Event::new(Class::Data).text(format!("a logged change is lost: {why}"));
            pool.store().event(event.file(id, 0));
        };
        // Nothing is lost for a device that does not answer now: the log stays as it is.
        let check_silence =
            || pool.store().silence().map_or(Ok(()), |error| Err(FsError::Io(error.to_string())));
        for (number, (id, bytes)) in replay.into_iter().enumerate() {
            let volume = match tree.leaving.iter().find(|volume| volume.id() == id) {
                Some(volume) => Arc::clone(volume),
                // A call that had begun before it was destroyed.
                None if pool.destroyed().contains(&id) => continue,
                // Told already.
                None if unreadable.contains(&id) => continue,
                None => {
                    // It may have come into the trash since.
                    let dataset = pool.alive(id).ok_or(FsError::Stale)?;
                    match Volume::open(Arc::clone(&pool), dataset, owner) {
                        // All changes of this dataset are lost; the others are there.
                        Err(FsError::Damaged(why)) => {
                            check_silence()?;
                            unreadable.insert(id);
                            tell(id, format!("the dataset cannot be opened: {why}"));
                            continue;
                        }
                        opened => {
                            let volume = opened?;
                            tree.leaving.push(Arc::clone(&volume));
                            volume
                        }
                    }
                }
            };
            match volume.replay(&bytes, count - number - 1, lost.entry(id).or_default()) {
                // The inode concerned is lost, and so is this change of it; the rest is there.
                Err(FsError::Damaged(why)) => {
                    check_silence()?;
                    tell(id, why);
                }
                replayed => replayed?,
            }
        }
        let (opened, tree) = (AtomicU64::new(1), RwLock::new(tree));
        let mount = Arc::new(Self { pool, owner, opened, tree, snapshots: Snapshots::default() });
        let front: Weak<dyn FrontEnd> = Arc::downgrade(&(Arc::clone(&mount) as Arc<dyn FrontEnd>));
        mount.pool.set_front_end(front);
        // Perhaps it was accepted when fewer places were asked for: it must find room nevertheless.
        let needed = mount.pool.store().dirty().needed();
        let has_room = |volume: &Arc<Volume>| needed <= volume.storable_now();
        if !mount.tree.read().leaving.iter().all(has_room) {
            mount.tree.read().leaving.iter().for_each(|volume| volume.store_once());
        }
        mount.pool.replayed();
        if replayed {
            mount.pool.commit()?;
        }
        mount.tree.write().leaving.clear();
        Ok(mount)
    }

    /// The files and directories that entries of the damage ledger belong to: each once, by dataset. A file that was
    /// removed is not among it, though its space may still be to come.
    pub fn damaged(&self, known: &[DamageRecord]) -> Vec<Damaged> {
        let mut found: Vec<Damaged> = Vec::new();
        let mut at = BTreeMap::new();
        for entry in known {
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
                    .and_then(|inode| self.path_of(entry, snapshot.as_deref(), inode));
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
    /// [`FsError::Busy`] while calls that began before it was detached go on, [`FsError::NoSpace`] when its id was
    /// given to a snapshot as a number.
    pub fn attach(&self, dataset: Arc<Dataset>, parent: Option<(DatasetId, Vec<u8>)>) -> Result<Arc<Volume>> {
        let id = dataset.id();
        if self.snapshots.dataset_of(id).is_some() {
            return Err(FsError::NoSpace);
        }
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

    /// Shows a dataset no more, nor its snapshots. What was written to it is stored first.
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
        self.snapshots.close_all(id);
        volume.forget_all();
        volume.is_retired.store(true, Ordering::Release);
        volume.flush_all()
    }

    /// Whether nobody has anything of a dataset in memory: it is not attached, and no call that began before goes on.
    pub fn is_gone(&self, id: DatasetId) -> bool {
        let mut tree = self.tree.write();
        tree.let_go();
        !tree.volumes.contains_key(&id) && tree.leaving.iter().all(|volume| volume.id() != id)
    }

    /// Closes a snapshot that is to be destroyed. Its nodes are [`FsError::Stale`] from then on, unless somebody looks
    /// it up by its name before it is gone. A kernel may know that name in [`NodeId::of_snapshots`] of the dataset.
    ///
    /// # Errors
    /// [`FsError::Busy`] when something in it is open, or a call is in it, or a [`crate::View`] shows it.
    pub fn let_go_of_snapshot(&self, dataset: DatasetId, high: BlockId) -> Result<()> {
        self.snapshots.let_go(dataset, high)
    }

    /// Open files and directories of a dataset that is attached and of its snapshots.
    pub fn open_count(&self, dataset: DatasetId) -> usize {
        self.volume(dataset).map_or(0, |volume| volume.open_count()) + self.snapshots.open_count(dataset)
    }

    /// Volume and inode of a node whose look-ups are counted: of an attached dataset.
    pub(crate) fn counted(&self, node: NodeId) -> Option<(Arc<Volume>, InodeId)> {
        let tree = self.tree.read();
        let (dataset, inode) = tree.unpack(node).ok()?;
        Some((Arc::clone(tree.volume(dataset).ok()?), inode)).filter(|_| !is_control(inode))
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
    pub(crate) fn new_handle(&self, flags: OpenFlags) -> Handle {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        Handle(number << 1 | if flags.append { posix::APPEND } else { 0 })
    }

    pub(crate) fn at(&self, node: NodeId) -> Result<(Arc<Volume>, InodeId)> {
        self.object(node)?.stored()
    }

    /// The object of a node.
    pub(crate) fn object(&self, node: NodeId) -> Result<Object> {
        let (number, inode) = {
            let tree = self.tree.read();
            let (dataset, inode) = tree.unpack(node)?;
            if let Ok(volume) = tree.volume(dataset) {
                return Ok(Object::of(Arc::clone(volume), inode));
            }
            (dataset, inode)
        };
        let dataset = self.snapshots.dataset_of(number).ok_or(FsError::Stale)?;
        self.tree.read().volume(dataset)?;
        Ok(Object::Inode(self.snapshots.numbered(&self.pool, number)?, inode))
    }

    /// Whether what has this number is a dataset, or one that shows in a folder of it, or of one that does, or a
    /// snapshot of such a dataset.
    pub(crate) fn is_within(&self, number: DatasetId, above: DatasetId) -> bool {
        let is_within = |dataset| {
            let tree = self.tree.read();
            let parent = |id: &DatasetId| Some(tree.volumes.get(id)?.parent.as_ref()?.0);
            // Nobody attaches a dataset below one that is not attached yet, so these do not go round.
            std::iter::successors(Some(dataset), parent).any(|id| id == above)
        };
        number == above || is_within(number) || self.snapshots.dataset_of(number).is_some_and(is_within)
    }

    pub(crate) fn show_node(&self, node: NodeId) -> NodeId {
        let (dataset, inode) = node.unpack();
        let is_root = inode == ROOT_INODE && self.tree.read().root == Some(dataset);
        if is_root { NodeId::ROOT } else { node }
    }

    /// The object that the mount puts under a name in a directory, whatever the volume has there.
    pub(crate) fn fixed(&self, volume: &Arc<Volume>, dir: InodeId, name: &[u8]) -> Result<Option<Object>> {
        if dir != ROOT_INODE {
            return Ok(None);
        }
        let tree = self.tree.read();
        if volume.dataset().is_snapshot() {
            return match name {
                b".." => Ok(Some(Object::snapshots(Arc::clone(tree.volume(volume.id())?)))),
                ZFS => match volume.find(dir, name)? {
                    Some(found) if volume.is_own(found.inode) => Err(FsError::NotFound),
                    _ => Ok(None),
                },
                _ => Ok(None),
            };
        }
        if name == ZFS {
            return Ok(Some(Object::zfs(Arc::clone(volume))));
        }
        let above = tree.volumes.get(&volume.id()).and_then(|attached| attached.parent.as_ref());
        let root = match (name, above) {
            (b"..", Some((above, _))) => Some(tree.volume(*above)?),
            _ => {
                let mut children = tree.children(volume.id());
                children.find(|(_, taken, _)| *taken == name).map(|(_, _, child)| child)
            }
        };
        Ok(root.map(|root| Object::Inode(Arc::clone(root), ROOT_INODE)))
    }

    /// The datasets that show in the root directory of another, by name.
    pub(crate) fn junctions(&self, of: DatasetId) -> Vec<(DatasetId, Vec<u8>, Arc<Volume>)> {
        let tree = self.tree.read();
        tree.children(of).map(|(id, name, child)| (id, name.to_vec(), Arc::clone(child))).collect()
    }

    /// Whether something hides an entry of this name in the root directory of a dataset.
    pub(crate) fn hides(&self, of: DatasetId, name: &[u8]) -> bool {
        name == ZFS || self.tree.read().children(of).any(|(_, taken, _)| taken == name)
    }

    /// Stores most of what is dirty, between commits: what would leave stripes half empty stays, for more may follow.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn flush_stripes(&self) -> Result<(), PoolError> {
        self.all().iter().try_for_each(|volume| Ok(volume.flush_stripes()?))
    }
}

impl FrontEnd for Mount {
    fn flush(&self) -> Result<(), PoolError> {
        self.all().iter().try_for_each(|volume| Ok(volume.flush_all()?))
    }

    fn flush_logged(&self, op: &Op<'_>) -> Result<(), PoolError> {
        self.all().iter().try_for_each(|volume| {
            volume.ids.note_commit(volume.dataset().next_inode());
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
        match Mount::reap_step(self, max) {
            // One file, which is on the list no more: there may be others.
            Err(FsError::Damaged(_)) => Ok(true),
            reaped => Ok(reaped?),
        }
    }

    fn renew(&self, renewal: &Renewal) -> Result<Renewed, PoolError> {
        let volume = self.volume(renewal.dataset);
        let volume = volume.ok_or_else(|| PoolError::NotFound("a volume of the dataset".into()))?;
        Ok(match &renewal.what {
            Renew::Own => volume.renew(renewal)?,
            Renew::Records(settings) => volume.cut_anew(renewal, settings)?,
        })
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
