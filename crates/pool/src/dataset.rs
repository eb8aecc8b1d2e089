//! Datasets: a tree, what it amounts to, and the properties that apply to it.

use crate::ledger::HEAD;
use crate::op::Op;
use crate::own::OwnProperties;
use crate::shared::Shared;
use larder_format::checksum::ChecksumKind;
use larder_format::items::{Extent, LAST_INODE, NAME_SALT_LEN, NameKey, valid_record_size};
use larder_format::node::Key;
use larder_format::run::MAX_PLACES;
use larder_format::tables::{DatasetRecord, SnapshotRecord};
use larder_format::{BlockId, BlockPtr, CommitId, DatasetId, InodeId, Timestamp};
use larder_mutants::{Mutant, mutated, point};
use larder_sorted::tree::{LostNode, Met, Tree};
use larder_store::codec::Codec;
use larder_store::{Class, Dedup, Event, KeptNodes, LookNodes, PoolError, Result};
use larder_sync::{RwLock, RwLockWriteGuard, brief, patient};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, Deref, DerefMut, RangeBounds, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The pool's root dataset.
pub const ROOT_DATASET: DatasetId = DatasetId::new(1);

/// Name of the dataset that streams for its parent go into first; people's names do not begin with a space.
pub(crate) const STAGING: &str = " receiving";

/// When reading updates a file's access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    Off,
    /// At every read.
    On,
    /// When it is older than the modification time, or than a day.
    Relatime,
}

/// Method of cutting a file into records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunking {
    /// At multiples of the record size.
    Fixed,
    /// Where its bytes say.
    Content,
}

/// Settings of a dataset for the write path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Codec of records.
    pub codec: Codec,
    /// Checksum of records.
    pub checksum: ChecksumKind,
    /// Bytes of a record of new files.
    pub record_size: u32,
    /// Method of cutting new files into records.
    pub chunking: Chunking,
    /// Whether writes are refused.
    pub readonly: bool,
    /// When reading updates access times.
    pub atime: Atime,
    /// Whether access control lists are in force.
    pub acl: bool,
    /// Whether extended attributes can be set.
    pub xattr: bool,
    /// Whether records that are there already are stored again.
    pub dedup: Dedup,
    /// Whether the root directory lists `.zfs`.
    pub snapdir: bool,
    /// Places of each of its blocks.
    pub copies: u8,
}

/// Usage of a dataset, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Space of its blocks, before replication and parity.
    pub referenced: u64,
    /// The same without blocks that are the origin's of a clone.
    pub own: u64,
    /// Plain bytes of its records.
    pub logical: u64,
    /// Stored bytes of its records.
    pub stored: u64,
    /// Space of what its head has dropped and its snapshots hold, at most.
    pub held: u64,
}

pub(crate) struct State {
    pub tree: Tree,
    /// Looks that hold it see the tree as some change since the last commit has it.
    pub era: Arc<()>,
    pub record: DatasetRecord,
    /// Changed since it was last written to the tables.
    pub changed: bool,
    /// `protected_below` when nodes that were dropped were last freed.
    pub was_protected_below: BlockId,
    /// The highest id that what remains of a snapshot may hold.
    pub remains_below: BlockId,
}

/// A dataset of an imported pool, or a snapshot of one, which nobody can change.
pub struct Dataset {
    id: DatasetId,
    /// The high id of a snapshot; of a dataset [`HEAD`].
    high: BlockId,
    /// Of a snapshot, which cannot be destroyed while somebody has this.
    _viewed: Option<Arc<()>>,
    guid: u64,
    created: Timestamp,
    birth: u64,
    shared: Weak<Shared>,
    pub(crate) state: RwLock<State>,
    names: RwLock<NameKey>,
    pub(crate) own: RwLock<OwnProperties>,
    pub(crate) settings: RwLock<Settings>,
    stuck: AtomicBool,
    /// Of a snapshot its high id; of a head the commit of its last rollback since import, else 0.
    generation: AtomicU64,
    /// A panic left it half changed.
    torn: AtomicBool,
}

/// Text of the event that bookmarks are of no use any more.
const NO_LONGER_SENDABLE: &str = "a part of a dataset's tree could not be read as what was beside it went: what changed \
    since any bookmark of before is not known for certain, so that none of them can be sent from; snapshots can";

impl Dataset {
    pub(crate) fn new(
        shared: Weak<Shared>,
        record: DatasetRecord,
        own: OwnProperties,
        settings: Settings,
    ) -> Self {
        Self {
            id: record.id,
            high: HEAD,
            _viewed: None,
            guid: record.guid,
            created: record.created,
            birth: record.birth,
            names: RwLock::new(NameKey::new(&record.name_salt)),
            shared,
            state: brief(RwLock::new(State {
                tree: record.root.map_or_else(Tree::empty, Tree::open),
                era: Arc::default(),
                was_protected_below: record.protected_below,
                remains_below: BlockId::new(0),
                record,
                changed: false,
            })),
            own: RwLock::new(own),
            settings: RwLock::new(settings),
            stuck: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            torn: AtomicBool::new(false),
        }
    }

    /// The snapshot `record` of `head`; `viewed` keeps it.
    pub(crate) fn of_snapshot(head: &Self, record: &SnapshotRecord, viewed: Arc<()>) -> Self {
        let settings = Settings { readonly: true, atime: Atime::Off, ..head.settings() };
        let before = head.state.read().record.clone();
        let as_head = DatasetRecord {
            guid: record.guid,
            root: record.root,
            referenced: record.referenced,
            logical: record.logical,
            stored: record.stored,
            next_inode: record.next_inode,
            created: record.created,
            birth: record.commit.get(),
            name: record.name.clone(),
            origin: None,
            inherited: 0,
            ..before
        };
        let dataset = Self::new(Weak::clone(&head.shared), as_head, OwnProperties::default(), settings);
        let generation = AtomicU64::new(record.high.get());
        Self { high: record.high, _viewed: Some(viewed), generation, ..dataset }
    }

    /// Another number whenever files of the same numbers may be others: after a rollback, and in each snapshot.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
    /// The head was rolled back, in this commit.
    pub(crate) fn note_rollback(&self, commit: CommitId) {
        self.generation.store(commit.get(), Ordering::Relaxed);
    }

    /// Whose tree it is: a dataset, and a snapshot's high id or [`HEAD`].
    pub fn owner(&self) -> (DatasetId, BlockId) {
        (self.id, self.high)
    }

    /// Whether it is a snapshot, which nobody can change.
    pub fn is_snapshot(&self) -> bool {
        self.high != HEAD
    }

    /// The key that the names in it are hashed with.
    pub fn name_key(&self) -> NameKey {
        *self.names.read()
    }
    /// Its names are hashed with another salt from now on: it is empty, or what it holds is another dataset's.
    pub(crate) fn set_name_salt(&self, state: &mut State, salt: [u8; NAME_SALT_LEN]) {
        state.record.name_salt = salt;
        *self.names.write() = NameKey::new(&salt);
    }
    /// The salt that the names in it are hashed with: who knows it can make names of one hash.
    pub fn name_salt(&self) -> [u8; NAME_SALT_LEN] {
        self.state.read().record.name_salt
    }
    /// Whether it is the one that streams for its parent go into first, which nobody is shown.
    pub fn is_staging(&self) -> bool {
        self.state.read().record.name == STAGING
    }
    /// Its id.
    pub fn id(&self) -> DatasetId {
        self.id
    }
    /// Its GUID.
    pub fn guid(&self) -> u64 {
        self.guid
    }
    /// When it was made.
    pub fn created(&self) -> Timestamp {
        self.created
    }
    /// The commit that made it.
    pub fn birth(&self) -> u64 {
        self.birth
    }
    /// The dataset it is inside of; itself for the pool's root dataset.
    pub fn parent(&self) -> DatasetId {
        self.state.read().record.parent
    }
    /// The last part of its name.
    pub fn last_name(&self) -> String {
        self.state.read().record.name.clone()
    }
    /// The next inode id to be given out.
    pub fn next_inode(&self) -> InodeId {
        InodeId::new(self.state.read().record.next_inode)
    }
    /// Its settings for the write path.
    pub fn settings(&self) -> Settings {
        *self.settings.read()
    }
    /// The same, if these properties were set.
    pub fn settings_with(&self, properties: &BTreeMap<String, String>) -> Settings {
        settings_from(self.settings(), properties)
    }
    /// The properties that it has itself, not inherited: set on it, and brought by streams.
    pub fn own_properties(&self) -> OwnProperties {
        self.own.read().clone()
    }

    /// Its usage.
    pub fn usage(&self) -> Usage {
        let state = self.state.read();
        let record = &state.record;
        Usage {
            referenced: record.referenced,
            own: record.own(),
            logical: record.logical,
            stored: record.stored,
            held: record.held,
        }
    }

    /// Whether a block is its origin's, if it is there, and charged to that.
    pub fn is_inherited(&self, id: BlockId) -> bool {
        self.state.read().record.is_inherited(id)
    }

    /// Whether a snapshot, or the origin, may have a block, and holds it when this one has it no more.
    pub fn is_protected(&self, id: BlockId) -> bool {
        id <= self.state.read().record.protected_below
    }

    /// The block of its root as it is committed: another with each change.
    pub fn committed_root(&self) -> Option<BlockId> {
        self.state.read().tree.committed_root().map(|root| root.id)
    }

    /// Whether something changed in it since it was first committed that no commit holds.
    pub fn has_uncommitted(&self) -> bool {
        let state = self.state.read();
        state.tree.is_dirty() && state.tree.committed_root().is_some()
    }

    /// Whether its tree could not be taken down.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }
    /// Its tree cannot be taken down before the next import.
    pub(crate) fn set_stuck(&self) {
        self.stuck.store(true, Ordering::Relaxed);
    }

    fn shared(&self) -> Result<Arc<Shared>> {
        self.shared.upgrade().ok_or_else(|| PoolError::Suspended("the pool was exported".into()))
    }

    /// Looks into the tree as it is now. Nobody waits for it: changes that are made meanwhile are not seen.
    ///
    /// # Errors
    /// When the pool is not imported any more.
    pub fn view(&self) -> Result<View<'_>> {
        let shared = self.shared()?;
        let (tree, era) = {
            let state = self.state.read();
            (state.tree.frozen(), Arc::clone(&state.era))
        };
        self.check_whole()?;
        Ok(View { shared, dataset: self, tree, era, was_outrun: Cell::new(false) })
    }

    /// Looks into the tree, and again where commits outran that: what was needed is gone.
    ///
    /// # Errors
    /// Those of `look`, and when the pool is not imported any more.
    pub fn look<T, E: From<PoolError>>(&self, look: impl Fn(&View<'_>) -> Result<T, E>) -> Result<T, E> {
        loop {
            let view = self.view()?;
            match look(&view) {
                Err(_) if view.was_outrun.get() => {}
                found => return found,
            }
        }
    }

    /// Holds the dataset's lock for a change; one that panics leaves it torn, and nobody is shown it any more.
    pub(crate) fn change(&self) -> Changing<'_> {
        Changing { torn: &self.torn, unwinding: std::thread::panicking(), state: self.state.write() }
    }

    fn check_whole(&self) -> Result<()> {
        if self.torn.load(Ordering::Relaxed) {
            return Err(PoolError::Suspended(
                "a bug of Larder left this dataset half changed in memory".into(),
            ));
        }
        Ok(())
    }

    /// As [`Dataset::update_after`], of a change that reads what it needs with the lock held. For tests alone: their
    /// trees are small, and nobody waits.
    ///
    /// # Errors
    /// As [`Dataset::update_after`].
    pub fn update<T, E: From<PoolError>>(
        &self,
        op: &Op<'_>,
        change: impl FnOnce(&mut Update<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        patient("changes that tests make", || self.update_after(op, |_| Ok(()), change))
    }

    /// Changes the tree, alone. `reads` reaches all nodes that the change needs, so that none of them is read with the
    /// dataset's lock held: where one is not in memory it is called again with the lock let go, and what it finds is
    /// kept, and then once more, for the tree may be another by then. No commit comes between, so that each time fewer
    /// are left. It may be called often, and nothing may come of it but the error of what cannot be read.
    ///
    /// An error after the first change suspends the pool, since half an operation must not be committed.
    ///
    /// # Errors
    /// The error of `reads` or `change`; [`PoolError::ReadOnly`] for a snapshot.
    pub fn update_after<T, E: From<PoolError>>(
        &self,
        op: &Op<'_>,
        reads: impl Fn(&Ahead<'_>) -> Result<(), E>,
        change: impl FnOnce(&mut Update<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.is_snapshot() {
            return Err(PoolError::ReadOnly.into());
        }
        let kept = KeptNodes::default();
        let ahead = |tree: &Tree, nodes| reads(&Ahead { shared: op.shared(), dataset: self.id, tree, nodes });
        let store = &op.shared().store;
        let mut state = loop {
            let state = self.change();
            self.check_whole()?;
            let found = ahead(&state.tree, LookNodes::AtHand(store, &kept));
            if !kept.take_lacks() {
                found?;
                break state;
            }
            let tree = state.tree.frozen();
            drop(state);
            ahead(&tree, LookNodes::Keep(store, &kept))?;
        };
        let (before, dirty) = (state.record.own(), state.tree.dirty_bytes());
        let mut update =
            Update { shared: op.shared(), dataset: self.id, state: &mut state, kept: &kept, touched: false };
        let result = change(&mut update);
        let (touched, after) = (update.touched, state.record.own());
        op.shared().accounts.post(self.id, after.wrapping_sub(before) as i64);
        if state.tree.take_blurred() {
            note_blurred(op.shared());
        }
        let more = (state.tree.dirty_bytes() as i64 - dirty as i64) * i64::from(self.settings().copies);
        op.shared().store.unsealed.fetch_add(more, Ordering::Relaxed);
        if result.is_err() && touched {
            drop(op.shared().store.suspend("an operation failed halfway; the last commit is intact".into()));
        }
        result
    }
}

/// A dataset's lock, held for a change.
pub(crate) struct Changing<'a> {
    torn: &'a AtomicBool,
    unwinding: bool,
    state: RwLockWriteGuard<'a, State>,
}

/// A part of a tree could not be read while its neighbour went: ids tell nothing of before the next commit.
fn note_blurred(shared: &Shared) {
    {
        let mut core = shared.store.core.lock();
        core.traced = core.open_commit.next();
    }
    // People who count on a bookmark are to know before it is needed.
    shared.store.event(Event::new(Class::Data).text(NO_LONGER_SENDABLE));
}

impl Deref for Changing<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if !self.unwinding && std::thread::panicking() {
            self.torn.store(true, Ordering::Relaxed);
        }
    }
}

/// A look into a dataset's tree, as it was when the look began.
pub struct View<'a> {
    shared: Arc<Shared>,
    dataset: &'a Dataset,
    tree: Tree,
    era: Arc<()>,
    /// What could not be read may have been dropped since.
    was_outrun: Cell<bool>,
}

impl View<'_> {
    /// Whether something could not be read that commits may have freed since the look began: look again.
    pub fn was_outrun(&self) -> bool {
        self.was_outrun.get()
    }

    /// Whether a commit has left it behind: nodes that were moved and then dropped may be gone.
    fn is_behind(&self) -> bool {
        !Arc::ptr_eq(&self.era, &self.dataset.state.read().era)
    }
}

/// What a change of a tree needs, before it is made.
pub struct Ahead<'a> {
    shared: &'a Shared,
    dataset: DatasetId,
    tree: &'a Tree,
    nodes: LookNodes<'a>,
}

/// Reading, alike for views and updates.
pub trait Look {
    /// The parts that the pool shares with its datasets, and the tree.
    #[doc(hidden)]
    fn parts(&self) -> (&Shared, &Tree);
    /// Whose tree it is: a dataset, and a snapshot's highest id or [`HEAD`].
    #[doc(hidden)]
    fn owner(&self) -> (DatasetId, BlockId);
    /// Where the tree's nodes come from.
    #[doc(hidden)]
    fn nodes(&self) -> LookNodes<'_> {
        LookNodes::Read(&self.parts().0.store)
    }

    /// Tells the ledger of a node on the way from `key` that cannot be read.
    #[doc(hidden)]
    fn tell(&self, key: &Key, error: &PoolError) {
        let (shared, tree) = self.parts();
        shared.damage.note_lost_node(self.owner(), (tree, &self.nodes()), key, error);
    }

    /// Brings the leaves of ascending keys into memory, all at once, where they have to be read. What cannot be is
    /// left to who needs it.
    fn bring(&self, keys: &[Key]) {
        let nodes = self.nodes();
        if nodes.reads()
            && let Ok(leaves) = self.parts().1.leaves_of(&nodes, keys.iter().copied(), false)
        {
            nodes.bring(&leaves);
        }
    }

    /// The value under `key`.
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let (_, tree) = self.parts();
        tree.get(&self.nodes(), key).inspect_err(|error| self.tell(key, error))
    }

    /// Reads the nodes on the way to `key`, so that what cannot be read is noticed.
    fn reach(&self, key: &Key) -> Result<()> {
        let (_, tree) = self.parts();
        let found = tree.get_with(&self.nodes(), key, |_| ());
        found.map(drop).inspect_err(|error| self.tell(key, error))
    }

    /// As [`Look::reach`], of ascending keys that are to be taken out: see [`Tree::reach_removal`].
    fn reach_removal(&self, keys: &[Key]) -> Result<()> {
        let (_, tree) = self.parts();
        let reached = tree.reach_removal(&self.nodes(), keys.iter().copied());
        reached.or_else(|_| keys.iter().try_for_each(|key| self.reach(key)))
    }

    /// The first node that cannot be read, if all that it can hold lies from `from` up to `to`, which is not among it;
    /// also reaches what its removal needs.
    fn reach_lost(&self, from: &Key, to: &Key) -> Option<LostNode> {
        let (_, tree) = self.parts();
        let (mut lost, mut at) = (None, *from);
        while lost.is_none() && at < *to {
            at = tree.survey(&self.nodes(), at, 1, |met| {
                if let Met::Lost(node) = met {
                    lost = Some(node);
                }
            })?;
        }
        let within = |node: &LostNode| {
            node.low.is_some_and(|low| low >= *from) && node.high.is_some_and(|high| high <= *to)
        };
        let lost = lost.filter(within)?;
        for beside in [lost.low.and_then(Key::predecessor), lost.high].into_iter().flatten() {
            let _ = tree.get_with(&self.nodes(), &beside, |_| ());
        }
        Some(lost)
    }

    /// The entry with the greatest key that is not greater than `key`.
    fn last_before(&self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        let (_, tree) = self.parts();
        tree.last_before(&self.nodes(), key).inspect_err(|error| self.tell(key, error))
    }

    /// Shows entries from `from` on in ascending order until `visit` breaks.
    fn scan(&self, from: &Key, visit: &mut dyn FnMut(&Key, &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.scan_within((Bound::Included(*from), Bound::Unbounded), visit)
    }

    /// As [`Look::scan`], of a range of keys: nodes outside of it need not be readable.
    fn scan_within(
        &self,
        range: (Bound<Key>, Bound<Key>),
        visit: &mut dyn FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let (_, tree) = self.parts();
        let mut last = match range.0 {
            Bound::Included(from) | Bound::Excluded(from) => from,
            Bound::Unbounded => Key::MIN,
        };
        let scanned = tree.scan(&self.nodes(), range, |key, value| {
            last = *key;
            visit(key, value)
        });
        scanned.inspect_err(|error| self.tell(&last, error))
    }

    /// Shows what can be read of a range of keys in ascending order until `visit` breaks; true when some of what was
    /// gone through cannot be.
    fn scan_past(
        &self,
        range: RangeInclusive<Key>,
        visit: &mut dyn FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> bool {
        let (shared, tree) = self.parts();
        let (mut lost, mut over) = (false, false);
        let mut at = Some(*range.start());
        while let Some(from) = at.filter(|from| !over && range.contains(from)) {
            at = tree.survey(&self.nodes(), from, 1, |met| match met {
                Met::Leaf(leaf) => {
                    let mut within = leaf.iter().filter(|(key, _)| range.contains(key));
                    over = within.any(|(key, value)| visit(key, value).is_break());
                }
                Met::Lost(node) => {
                    lost = true;
                    if !self.nodes().lacks() {
                        shared.damage.note_lost_part(self.owner(), &node);
                    }
                }
            });
        }
        lost
    }
}

impl Look for View<'_> {
    fn parts(&self) -> (&Shared, &Tree) {
        (&self.shared, &self.tree)
    }
    fn owner(&self) -> (DatasetId, BlockId) {
        self.dataset.owner()
    }
    fn tell(&self, key: &Key, error: &PoolError) {
        if error.is_loss() && self.is_behind() {
            self.was_outrun.set(true);
        } else {
            self.shared.damage.note_lost_node(self.owner(), (&self.tree, &self.nodes()), key, error);
        }
    }
}

impl Look for Ahead<'_> {
    fn parts(&self) -> (&Shared, &Tree) {
        (self.shared, self.tree)
    }
    fn owner(&self) -> (DatasetId, BlockId) {
        (self.dataset, HEAD)
    }
    fn nodes(&self) -> LookNodes<'_> {
        self.nodes
    }
}

impl Look for Update<'_> {
    fn parts(&self) -> (&Shared, &Tree) {
        (self.shared, &self.state.tree)
    }
    fn owner(&self) -> (DatasetId, BlockId) {
        (self.dataset, HEAD)
    }
    fn nodes(&self) -> LookNodes<'_> {
        LookNodes::Change(&self.shared.store, self.kept)
    }
}

/// A change of a dataset's tree under way.
pub struct Update<'a> {
    shared: &'a Shared,
    dataset: DatasetId,
    state: &'a mut State,
    kept: &'a KeptNodes,
    touched: bool,
}

impl Update<'_> {
    /// Puts a value of at most 4,096 bytes under `key`.
    pub fn insert(&mut self, key: Key, value: &[u8]) -> Result<()> {
        self.state.tree.insert(&LookNodes::Change(&self.shared.store, self.kept), key, value)?;
        self.touch();
        Ok(())
    }

    /// As [`Update::insert`], of an extent whose block was not at this place, whether it is stored for it or is there
    /// already: each tells whether an older snapshot has it here ([`Extent::was_here`]).
    pub fn put_extent(&mut self, key: Key, extent: Extent) -> Result<()> {
        self.insert(key, &Extent { placed: self.shared.placed(extent.ptr.id), ..extent }.encode())
    }

    /// Takes the value under `key` out; false when there was none.
    pub fn remove(&mut self, key: &Key) -> Result<bool> {
        let old = self.state.tree.remove(&LookNodes::Change(&self.shared.store, self.kept), key)?;
        self.touch();
        Ok(old.is_some())
    }

    /// Takes up to `limit` entries out of `range`, in ascending order, shows each to `removed` and returns
    /// their number; fewer than `limit` means that the range is empty now.
    pub fn remove_range(
        &mut self,
        range: impl RangeBounds<Key>,
        limit: usize,
        mut removed: impl FnMut(&Key, &[u8]),
    ) -> Result<usize> {
        let touched = &mut self.touched;
        let nodes = LookNodes::Change(&self.shared.store, self.kept);
        let taken = self.state.tree.remove_range(&nodes, range, limit, |key, value| {
            *touched = true;
            removed(key, value);
        })?;
        self.state.changed |= taken > 0;
        Ok(taken)
    }

    /// Takes the first node that cannot be read out of the tree, if all that it can hold lies from `from` up to `to`,
    /// which is not among it; false when there is none, or it holds more. The blocks that were named there are left to
    /// GC, and still count as referenced: see [`Update::forget_lost`].
    pub fn excise_lost(&mut self, from: &Key, to: &Key) -> Result<bool> {
        let lost = self.reach_lost(from, to);
        let Some((node, low)) = lost.and_then(|node| Some((node, node.low?))) else { return Ok(false) };
        let nodes = LookNodes::Change(&self.shared.store, self.kept);
        if !self.state.tree.excise(&nodes, &low, node.ptr.id)? {
            return Ok(false);
        }
        self.touch();
        self.shared.freeing.leave_to_gc(1);
        Ok(true)
    }

    /// Of a file that is gone so many stored and plain bytes were named by nodes that were lost: they are not
    /// referred to any more.
    pub fn forget_lost(&mut self, stored: u64, logical: u64) {
        let record = &mut self.state.record;
        record.referenced = record.referenced.saturating_sub(stored);
        record.inherited = record.inherited.min(record.referenced);
        record.stored = record.stored.saturating_sub(stored);
        record.logical = record.logical.saturating_sub(logical);
        self.shared.freeing.leave_to_gc(stored);
        self.touch();
    }

    /// This extent names its block now.
    pub fn link_block(&mut self, extent: &Extent) {
        let record = &mut self.state.record;
        record.referenced += extent.charged();
        if record.is_inherited(extent.ptr.id) {
            record.inherited += extent.charged();
        }
        record.stored += u64::from(extent.ptr.place.stored);
        record.logical += u64::from(extent.logical);
        self.touch();
    }

    /// This extent is a further one, of this dataset or another, that names its block: that is shared from now on, and
    /// nobody but GC frees it.
    pub fn share_block(&mut self, extent: &Extent) {
        self.link_block(extent);
        self.shared.freeing.note_shared(extent.ptr.id);
    }

    /// The extent that names this block has another key from now on. What a snapshot has under the old one, or what
    /// remains of one, is another reference then.
    pub fn move_block(&mut self, ptr: BlockPtr) {
        if ptr.id <= self.state.record.protected_below.max(self.state.remains_below) {
            self.shared.freeing.note_shared(ptr.id);
        }
        self.touch();
    }

    /// This extent names its block no longer; that dies with the commit when neither a snapshot nor another extent can
    /// hold it.
    pub fn drop_block(&mut self, extent: &Extent) {
        let (record, ptr) = (&mut self.state.record, extent.ptr);
        record.referenced = record.referenced.saturating_sub(extent.charged());
        if record.is_inherited(ptr.id) {
            record.inherited = record.inherited.saturating_sub(extent.charged());
        }
        record.inherited = record.inherited.min(record.referenced);
        record.stored = record.stored.saturating_sub(u64::from(ptr.place.stored));
        record.logical = record.logical.saturating_sub(u64::from(extent.logical));
        self.shared.damage.doubt(self.dataset, ptr.id);
        if mutated(Mutant::EarlyReuse) {
            self.shared.freeing.free_now(ptr);
        } else if is_free_to_die(record, ptr.id, extent.charged()) {
            self.shared.freeing.drop_records([ptr]);
        }
        self.touch();
    }

    /// A fresh inode id; none when all have been given out.
    pub fn allocate_inode(&mut self) -> Option<InodeId> {
        let id = Some(self.state.record.next_inode).filter(|&id| id <= LAST_INODE)?;
        self.state.record.next_inode = id + 1;
        self.touch();
        Some(InodeId::new(id))
    }

    /// An inode id is known to be taken: the counter passes it.
    pub fn note_inode(&mut self, id: InodeId) {
        let record = &mut self.state.record;
        record.next_inode = record.next_inode.max(id.get() + 1);
        self.touch();
    }

    /// Notes an operation for the intent log.
    pub fn log(&mut self, op: Vec<u8>) {
        self.shared.intent.notes.lock().note(self.dataset, op, false);
    }

    /// The same for several, of which a crash leaves all or none.
    pub fn log_together(&mut self, ops: impl IntoIterator<Item = Vec<u8>>) {
        let mut notes = self.shared.intent.notes.lock();
        for (number, op) in ops.into_iter().enumerate() {
            notes.note(self.dataset, op, false);
            if number > 0 {
                notes.join_last();
            }
        }
    }

    /// The same for one that takes data away: it is durable no sooner than what was written before it.
    pub fn log_removal(&mut self, op: Vec<u8>) {
        self.shared.intent.notes.lock().note(self.dataset, op, true);
    }

    fn touch(&mut self) {
        self.touched = true;
        self.state.changed = true;
        point("a change of a tree");
    }
}

/// Whether a block that the head of `record` dropped is held by none of its snapshots; else they hold it, and what was
/// charged for it.
pub(crate) fn is_free_to_die(record: &mut DatasetRecord, id: BlockId, charged: u64) -> bool {
    let free = id > record.protected_below || mutated(Mutant::ProtectionIgnored);
    if !free {
        record.held += charged;
    }
    free
}

/// Effective settings from property values; unknown values keep what `base` has.
pub(crate) fn settings_from(base: Settings, values: &BTreeMap<String, String>) -> Settings {
    let mut settings = base;
    for (name, value) in values.iter() {
        match name.as_str() {
            "compression" => settings.codec = value.parse().unwrap_or(settings.codec),
            "checksum" => {
                settings.checksum = match value.as_str() {
                    "blake3" => ChecksumKind::Blake3,
                    "sha256" => ChecksumKind::Sha256,
                    _ => ChecksumKind::Fast,
                }
            }
            "recordsize" => {
                let size = value.parse().ok().filter(|&size| valid_record_size(size));
                settings.record_size = size.unwrap_or(settings.record_size);
            }
            "chunking" => {
                settings.chunking = if value == "content" { Chunking::Content } else { Chunking::Fixed };
            }
            "readonly" => settings.readonly = value == "on",
            "acltype" => settings.acl = value != "off",
            "dedup" => settings.dedup = value.parse().unwrap_or(settings.dedup),
            "xattr" => settings.xattr = value != "off",
            "snapdir" => settings.snapdir = value == "visible",
            "copies" => {
                let copies =
                    value.parse().ok().filter(|&copies| (1..=MAX_PLACES).contains(&usize::from(copies)));
                settings.copies = copies.unwrap_or(settings.copies);
            }
            "atime" => {
                settings.atime = match value.as_str() {
                    "off" => Atime::Off,
                    "relatime" => Atime::Relatime,
                    _ => Atime::On,
                }
            }
            _ => {}
        }
    }
    settings
}
