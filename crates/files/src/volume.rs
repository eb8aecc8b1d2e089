//! A volume: one dataset as a tree of files.
//!
//! This module has the cache of inodes, opening and closing, and what the other modules share; they
//! add to [`Volume`]: `names` (directories), `attr` (attributes, length), `xattr`, `data` (reading and
//! writing), `flush` (storing, fsync), `orphan` (removal), `replay`.

use crate::error::{FsError, Result};
use crate::inode::{Inode, State, UnderWay};
use crate::lookups::Lookups;
use crate::posix::{Attr, Handle, NodeId};
use larder_format::items::{self, FileKind, INODE_LEASE, ROOT_INODE};
use larder_format::node::Key;
use larder_format::{CommitId, Corrupt, DatasetId, InodeId, Reason, Timestamp};
use larder_pool::{Ahead, Dataset, Look, Op, Pool, PoolError};
use larder_sync::{Mutex, RwLockReadGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Parts of the inode cache, each with a lock of its own.
const SHARDS: usize = 32;
/// Inodes that a shard of the cache holds before it looks for some to drop.
const SHARD_CAPACITY: usize = 1024;
/// Ids that callers may take together after each of them has looked at the lease.
const ID_MARGIN: u64 = 1 << 12;
/// Most space that a change of names or attributes is taken to need when the pool is nearly full, bytes.
const CHANGE_SPACE: u64 = 64 << 10;
/// Extents of removed files that a writer at its quota drops before it tries again.
const REAP_STEP: usize = 1024;

/// A part of the inode cache.
#[derive(Default)]
struct Shard {
    inodes: BTreeMap<InodeId, Arc<Inode>>,
    /// Inodes that could not be dropped the last time.
    needed: usize,
}

/// One dataset as a tree of files.
pub struct Volume {
    pub(crate) pool: Arc<Pool>,
    pub(crate) dataset: Arc<Dataset>,
    /// Stands for the dataset in the numbers of nodes.
    number: DatasetId,
    cache: Vec<Mutex<Shard>>,
    /// Held by whoever changes names. See [`crate::inode`] for the order of locks.
    pub(crate) names: Mutex<()>,
    /// Inodes with something that the tree does not have.
    pub(crate) dirty: Mutex<BTreeSet<InodeId>>,
    /// Inodes with data that is in the log and perhaps not stored.
    pub(crate) logged: Mutex<BTreeSet<InodeId>>,
    /// Inodes that nobody needs any more, to be removed, with the bytes that are stored of them;
    /// and those that have a tail.
    pub(crate) orphans: Mutex<BTreeMap<InodeId, u64>>,
    /// Look-ups by the kernel that shows it.
    pub(crate) lookups: Lookups,
    /// Stand-ins for lost inodes whose names were looked up: kind, owner and directory.
    pub(crate) lost: Mutex<BTreeMap<InodeId, items::Inode>>,
    /// Where writers that wait for room look for the next inode to flush.
    pub(crate) flush_from: Mutex<InodeId>,
    pub(crate) ids: IdLease,
    /// The file that is being cut anew.
    pub(crate) under_way: Mutex<Option<UnderWay>>,
    /// It was detached: whoever has it still removes no orphan any more.
    pub(crate) is_retired: AtomicBool,
}

/// Which inode ids may be given out. Import after a crash passes over [`INODE_LEASE`] ids, counted from what
/// the last commit has as the next one; so no more than those are given out before another commit is
/// durable. Ids that somebody has seen do not come back, though their files be lost.
#[derive(Debug, Default)]
pub(crate) struct IdLease {
    /// The next id, as the commit under way has it; 0 before the first.
    noted: AtomicU64,
    /// The first id that must not be given out yet.
    end: AtomicU64,
}

impl IdLease {
    /// A commit takes `next` along.
    pub fn note_commit(&self, next: InodeId) {
        self.noted.store(next.get(), Ordering::Relaxed);
    }

    /// That commit is durable.
    pub fn renew(&self) {
        let noted = self.noted.load(Ordering::Relaxed);
        if noted > 0 {
            self.end.store(noted + INODE_LEASE, Ordering::Relaxed);
        }
    }
}

/// The key of an inode's value.
pub(crate) fn inode_key(id: InodeId) -> Key {
    Key::new(id.get(), items::INODE, 0)
}

/// The mark that an inode has no name left.
pub(crate) fn orphan_key(id: InodeId) -> Key {
    Key::new(0, items::ORPHAN, id.get())
}

/// A fresh inode's value.
pub(crate) fn new_item(kind: FileKind, perm: u16, (uid, gid): (u32, u32), time: Timestamp) -> items::Inode {
    items::Inode {
        kind,
        perm,
        flags: 0,
        uid,
        gid,
        nlink: if kind == FileKind::Directory { 2 } else { 1 },
        rdev: 0,
        size: 0,
        generation: 0,
        project: 0,
        record_size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        stored: 0,
        parent: ROOT_INODE,
        entries: 0,
        data: 0,
    }
}

/// Reaches these keys before a change is made.
pub(crate) fn reaching<const N: usize>(keys: [Key; N]) -> impl Fn(&Ahead<'_>) -> Result<()> {
    move |tree| Ok(keys.iter().try_for_each(|key| tree.reach(key))?)
}

impl Volume {
    /// Opens a dataset. An empty one gets its root directory, which belongs to `owner`: user and group. Nothing is
    /// changed in a snapshot.
    ///
    /// # Errors
    /// When its tree cannot be read, or not be written though it is empty; [`FsError::NotFound`] for an empty snapshot.
    pub fn open(pool: Arc<Pool>, dataset: Arc<Dataset>, owner: (u32, u32)) -> Result<Arc<Self>> {
        let number = dataset.id();
        Self::open_as(number, pool, dataset, owner)
    }

    /// As [`Volume::open`]; `number` stands for the dataset in the numbers of nodes.
    pub(crate) fn open_as(
        number: DatasetId,
        pool: Arc<Pool>,
        dataset: Arc<Dataset>,
        owner: (u32, u32),
    ) -> Result<Arc<Self>> {
        let volume = Arc::new(Self {
            pool,
            dataset,
            number,
            cache: (0..SHARDS).map(|_| Mutex::default()).collect(),
            names: Mutex::default(),
            dirty: Mutex::default(),
            logged: Mutex::default(),
            orphans: Mutex::default(),
            lookups: Lookups::new(),
            lost: Mutex::default(),
            flush_from: Mutex::new(ROOT_INODE),
            ids: IdLease::default(),
            under_way: Mutex::default(),
            is_retired: AtomicBool::new(false),
        });
        if volume.dataset.is_snapshot() {
            volume.inode(ROOT_INODE)?;
            return Ok(volume);
        }
        match volume.pool.enter() {
            // One id is given up, so that the next commit has the others: import may have moved them.
            Ok(op) => volume.dataset.update_after(&op, reaching([]), |tree| {
                tree.allocate_inode();
                Ok(())
            })?,
            Err(PoolError::ReadOnly) => {}
            Err(error) => return Err(error.into()),
        }
        let empty = volume.dataset.view()?.get(&inode_key(ROOT_INODE))?.is_none();
        if empty {
            let root = new_item(FileKind::Directory, 0o755, owner, volume.now());
            let op = volume.pool.enter()?;
            let reads = |tree: &Ahead<'_>| tree.reach(&inode_key(ROOT_INODE));
            volume.dataset.update_after(&op, reads, |tree| {
                tree.note_inode(ROOT_INODE);
                tree.insert(inode_key(ROOT_INODE), &root.encode())
            })?;
        }
        volume.find_orphans()?;
        Ok(volume)
    }

    /// The dataset's id.
    pub fn id(&self) -> DatasetId {
        self.dataset.id()
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Stands for the dataset in the numbers of nodes: its id, or what the mount has given to a snapshot.
    pub(crate) fn number(&self) -> DatasetId {
        self.number
    }

    /// An inode's number as the mount shows it.
    pub(crate) fn node(&self, id: InodeId) -> NodeId {
        NodeId::pack(self.number, id)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.pool.store().clock().now()
    }

    /// Refuses to change what nobody may.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.dataset.settings().readonly { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Enters an operation that changes the dataset on a user's behalf.
    pub(crate) fn enter(&self) -> Result<Op<'_>> {
        self.check_writable()?;
        self.pool.make_changes_fit()?;
        Ok(self.pool.enter()?)
    }

    /// The same for what takes data away, which a commit may have to get ahead of.
    pub(crate) fn enter_removing(&self) -> Result<(RwLockReadGuard<'_, ()>, Op<'_>)> {
        self.check_writable()?;
        self.pool.make_changes_fit()?;
        let removing = self.pool.removing();
        Ok((removing, self.pool.enter()?))
    }

    /// Sees to it that inode ids may be given out. Not under an operation: it may have to commit.
    pub(crate) fn lease_ids(&self) -> Result<()> {
        if self.dataset.next_inode().get() + ID_MARGIN > self.ids.end.load(Ordering::Relaxed) {
            self.pool.commit()?;
        }
        Ok(())
    }

    /// Places of each block that is written now.
    pub(crate) fn copies(&self) -> u64 {
        self.dataset.settings().copies.into()
    }

    /// Places that what is dirty of an inode is stored at: those that it was accepted for, for which there was room and
    /// quota then, unless fewer are asked for by now.
    pub(crate) fn copies_of(&self, state: &State) -> u8 {
        let now = self.dataset.settings().copies;
        if state.data.bytes == 0 { now } else { now.min(state.copies) }
    }

    /// Bytes that can be stored now, all places counted.
    pub(crate) fn storable_now(&self) -> u64 {
        let settings = self.dataset.settings();
        self.pool.store().storable_now(settings.record_size, settings.copies)
    }

    /// Stores what is dirty at one place only: more were asked for after it had been accepted, and there is no room.
    pub(crate) fn store_once(&self) {
        let dirty: Vec<InodeId> = self.dirty.lock().iter().copied().collect();
        for inode in dirty.into_iter().filter_map(|id| self.inode(id).ok()) {
            let mut state = inode.state.lock();
            state.copies = 1;
            let bytes = state.data.bytes;
            if bytes > 0 {
                self.meter(bytes, &mut state);
            }
        }
    }

    /// Refuses to make anything when the pool is full or a quota is used up.
    pub(crate) fn check_space(&self) -> Result<()> {
        self.within_quota(|| Ok(self.pool.check_quota(self.id(), 1)?))?;
        Ok(self.pool.check_room(&self.dataset, CHANGE_SPACE, || false)?)
    }

    /// Does what a quota may refuse. Claims are by plain bytes, and what was removed goes in steps: what was
    /// refused is tried again when what was claimed has been stored, and while something goes. Nothing of
    /// this crate is locked.
    pub(crate) fn within_quota<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        let mut outcome = attempt();
        let claimants = match outcome {
            Err(FsError::Quota) => self.pool.claimants(self.id()),
            done => return done,
        };
        if claimants.iter().any(|&claimant| claimant != self.id()) {
            self.pool.flush_front()?;
            outcome = attempt();
        } else if !claimants.is_empty() {
            self.flush_all()?;
            outcome = attempt();
        }
        while matches!(outcome, Err(FsError::Quota)) && !self.orphans.lock().is_empty() {
            match self.reap_step(REAP_STEP) {
                // Of another file, which is on the list no more.
                Err(FsError::Damaged(_)) => {}
                reaped => drop(reaped?),
            }
            outcome = attempt();
        }
        outcome
    }

    fn shard(&self, id: InodeId) -> &Mutex<Shard> {
        &self.cache[(id.get() % SHARDS as u64) as usize]
    }

    /// The inode, from the cache or the tree.
    pub(crate) fn inode(&self, id: InodeId) -> Result<Arc<Inode>> {
        // The lock is kept while the tree is read: two images of one inode must not exist.
        let mut shard = self.shard(id).lock();
        if let Some(inode) = shard.inodes.get(&id) {
            return Ok(Arc::clone(inode));
        }
        let value = self.dataset.look(|view| view.get(&inode_key(id)))?.ok_or(FsError::NotFound)?;
        if id.get() > items::MAX_INODE {
            return Err(Corrupt::new("inode", Reason::Range).into());
        }
        let inode = Inode::new(id, items::Inode::decode(&value)?);
        shard.shrink(self.pool.store().durable_commit());
        shard.inodes.insert(id, Arc::clone(&inode));
        Ok(inode)
    }

    /// Puts an inode that is about to be made into the cache.
    pub(crate) fn adopt(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.id).lock();
        shard.shrink(self.pool.store().durable_commit());
        shard.inodes.insert(inode.id, Arc::clone(inode));
    }

    /// Drops an inode that is not in the tree from the cache.
    pub(crate) fn disown(&self, id: InodeId) {
        self.shard(id).lock().inodes.remove(&id);
    }

    /// The directory, which must be one and have a name.
    pub(crate) fn directory(&self, id: InodeId) -> Result<Arc<Inode>> {
        let inode = self.inode(id)?;
        let state = inode.lock()?;
        if state.live.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if state.live.nlink == 0 {
            return Err(FsError::NotFound);
        }
        drop(state);
        Ok(inode)
    }

    /// The most bytes of a record here, a power of two: the pool's limit need not be one.
    pub(crate) fn record_limit(&self) -> u32 {
        1 << self.pool.store().max_record().ilog2()
    }

    /// Attributes of an inode, as `stat` shows them.
    pub(crate) fn attr(&self, id: InodeId, state: &State) -> Attr {
        let item = &state.live;
        let directory = item.kind == FileKind::Directory;
        let record_size =
            if item.record_size == 0 { self.dataset.settings().record_size } else { item.record_size };
        Attr {
            node: self.node(id),
            generation: item.generation.wrapping_add(self.dataset.generation()),
            size: if directory { item.entries } else { item.size },
            blocks: (item.data + state.data.bytes).div_ceil(512),
            atime: item.atime,
            mtime: item.mtime,
            ctime: item.ctime,
            btime: item.btime,
            kind: item.kind,
            perm: u32::from(item.perm),
            nlink: item.nlink,
            uid: item.uid,
            gid: item.gid,
            rdev: item.rdev,
            blksize: if directory { 4096 } else { record_size },
        }
    }

    /// Counts a handle in; an inode without a name can be opened only while it is open or the kernel knows it.
    pub fn acquire(&self, id: InodeId, handle: Handle) -> Result<()> {
        let inode = self.inode(id)?;
        let mut state = inode.lock()?;
        if !self.is_needed(id, &state) {
            return Err(FsError::NotFound);
        }
        state.open += 1;
        state.failures.opened(handle);
        Ok(())
    }

    /// Counts a handle out. The last one of an inode without a name starts its removal.
    pub fn release(&self, id: InodeId, handle: Handle) -> Result<()> {
        let inode = self.inode(id)?;
        let mut state = inode.lock()?;
        state.open = state.open.checked_sub(1).ok_or(FsError::BadHandle)?;
        state.failures.closed(handle);
        let needed = self.is_needed(id, &state);
        drop(state);
        if !needed {
            self.bury(id);
        }
        Ok(())
    }

    /// Number of open files and directories.
    pub fn open_count(&self) -> usize {
        // Not under a shard's lock: states are locked before it.
        let cached = |shard: &Mutex<Shard>| shard.lock().inodes.values().cloned().collect::<Vec<_>>();
        let inodes = self.cache.iter().flat_map(cached);
        inodes.filter(|inode| inode.state.lock().open > 0).count()
    }

    /// Whether everything that was written is in the tree.
    pub fn is_clean(&self) -> bool {
        self.dirty.lock().is_empty()
    }

    /// Puts an inode into the set of dirty ones.
    pub(crate) fn queue(&self, id: InodeId, state: &mut State) {
        if !state.queued {
            state.queued = true;
            self.dirty.lock().insert(id);
        }
    }

    /// Tells the pool's meter that an inode's dirty bytes are no longer `before`, and its quotas what they
    /// will take now.
    pub(crate) fn meter(&self, before: u64, state: &mut State) {
        let asked = self.dataset.settings().copies;
        state.copies = if before == 0 { asked } else { asked.min(state.copies) };
        let copies = u64::from(state.copies);
        let claimed = std::mem::replace(&mut state.claimed, state.data.room * copies);
        self.pool.adjust_claim(self.id(), claimed, state.claimed);
        let needed = state.built_bytes() * copies;
        self.pool.store().dirty().need(std::mem::replace(&mut state.needed, needed), needed);
        let now = state.data.bytes;
        if now >= before {
            self.pool.add_dirty(now - before);
        } else {
            self.pool.store().dirty().sub(before - now);
        }
    }
}

impl Shard {
    /// Drops inodes that nobody uses from a full shard, those first that were not used lately. Data stored
    /// after the commit `durable` is not durable, which only the cached inode knows, as how far it has been cut anew.
    fn shrink(&mut self, durable: CommitId) {
        // Looking again before it has doubled would cost a look at all of them for each that comes.
        if self.inodes.len() < SHARD_CAPACITY.max(2 * self.needed) {
            return;
        }
        let mut needed = 0;
        self.inodes.retain(|_, inode| {
            if Arc::strong_count(inode) > 1 {
                needed += 1;
                return true;
            }
            let mut state = inode.state.lock();
            let busy = state.open > 0
                || state.queued
                || state.stored_in > durable
                || state.failures.is_news
                || state.recut.is_some();
            needed += usize::from(busy);
            busy || std::mem::take(&mut state.used)
        });
        self.needed = needed;
    }
}

impl Volume {
    /// Counts a look-up of an inode, which [`Volume::forget`] takes back: it stays until then, name or not.
    ///
    /// # Errors
    /// [`FsError::NotFound`] when it is being removed.
    pub(crate) fn hold(&self, id: InodeId) -> Result<()> {
        let inode = self.inode(id)?;
        let state = inode.lock()?;
        if !self.is_needed(id, &state) {
            return Err(FsError::NotFound);
        }
        self.lookups.add(id);
        Ok(())
    }

    /// Takes look-ups back; the last of an inode without name and handle starts its removal.
    pub(crate) fn forget(&self, id: InodeId, lookups: u64) {
        if self.lookups.forget(id, lookups) {
            self.bury(id);
        }
    }

    /// The kernel that knew the volume does so no more.
    pub(crate) fn forget_all(&self) {
        self.lookups.forget_all().into_iter().for_each(|id| self.bury(id));
    }

    /// Whether an inode has a name, or somebody has it open, or may open it: whoever asks buries it if not. Its
    /// state is locked.
    pub(crate) fn is_needed(&self, id: InodeId, state: &State) -> bool {
        state.live.nlink > 0 || state.open > 0 || self.lookups.keep_orphan(id)
    }
}
