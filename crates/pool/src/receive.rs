//! Receiving a snapshot: it arrives in a dataset of its own, and is taken over when it is whole.
//!
//! The *staging* dataset is a child of the one that the stream is for, which nobody is shown. It begins as the snapshot
//! that the stream builds upon, as a clone does, or empty. When all has arrived its tree becomes the head of the
//! dataset, and a snapshot of it, with the GUID, the name and the time that the stream says: in one commit. What the
//! head had of its own becomes a note of remains, as after a rollback. Whoever receives next uses the same staging
//! dataset: ids of datasets are few.
//!
//! # Crashes
//! The place that a stream came to is an entry in the tables, changed in the operation that changes the tree. So after
//! a crash the rest may come. One that is not to be resumed is dropped by [`Pool::destroy_step`], and with it the
//! dataset if it was made for the stream.

use crate::bookmarks;
use crate::clones::{TRIES, high_of};
use crate::create::check_snapshot_name;
use crate::dataset::{Dataset, Look, STAGING, State};
use crate::op::Op;
use crate::pool::Pool;
use crate::receiving::Received;
use crate::snapshots::is_momentary;
use larder_format::items::{EXTENT, INODE, Inode, NAME_SALT_LEN, ORPHAN};
use larder_format::node::Key;
use larder_format::tables::{DatasetRecord, ReceivingRecord, SnapshotRecord, Table};
use larder_format::{BlockId, BlockPtr, DatasetId};
use larder_mutants::{Mutant, mutated};
use larder_sorted::tree::{Difference, Differs, Tree};
use larder_store::{DatasetNodes, PoolError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The most bytes of a record: those of two long names, and more.
const RECORD_MAX: usize = 2048;

/// Orphans of a snapshot that may have been removed since without that being a change.
const ORPHANS: usize = 1 << 16;

/// Bearing of a received snapshot on what the dataset has got since the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveAs {
    /// It comes only if there is nothing newer.
    Next,
    /// Newer snapshots and changes are dropped.
    Replacement,
}

/// A stream on its way in; nobody else receives into its dataset meanwhile.
pub struct Incoming {
    pool: Arc<Pool>,
    target: DatasetId,
    staging: Arc<Dataset>,
    used: Arc<()>,
}

impl Incoming {
    /// The dataset that it goes into first.
    pub fn staging(&self) -> &Arc<Dataset> {
        &self.staging
    }
    /// The dataset that it is for.
    pub fn target(&self) -> DatasetId {
        self.target
    }
    /// The snapshot that it begins as.
    pub fn base(&self) -> Option<SnapshotRecord> {
        self.pool.origin(self.staging.id())
    }
    /// The place that it came to; none when it was dropped meanwhile.
    pub fn record(&self) -> Option<ReceivingRecord> {
        let receiving = self.pool.receiving.lock();
        let own = receiving.get(&self.staging.id()).filter(|one| Arc::ptr_eq(&one.used, &self.used));
        own.map(|one| one.record.clone())
    }

    /// Notes how far it came, in the operation that changes the staging dataset, before it does.
    ///
    /// # Errors
    /// When it was dropped meanwhile, or the tables cannot be read or changed: then nothing may be changed.
    pub fn note(&self, _op: &Op<'_>, record: ReceivingRecord) -> Result<()> {
        if self.record().is_none() {
            return Err(PoolError::NotFound("the stream that is received".into()));
        }
        let id = self.staging.id();
        self.pool.change_tables(&[(Table::Receiving.key(id.get()), Some(record.encode()))])?;
        if let Some(one) = self.pool.receiving.lock().get_mut(&id) {
            one.record = record;
        }
        Ok(())
    }

    /// It is whole: the dataset holds it from now on, and has the snapshot. Nobody may have anything of the dataset's
    /// head in memory: it is not shown. Durable when this returns.
    ///
    /// # Errors
    /// [`PoolError::Busy`] when the dataset was changed since the snapshot before, or has newer ones, and they are not
    /// to go, or cannot; [`PoolError::Exists`] when it has a snapshot of that name.
    pub fn finish(&self, with: ReceiveAs) -> Result<SnapshotRecord> {
        for _ in 0..TRIES {
            if let Some(record) = self.pool.try_finish(self, with)? {
                self.pool.commit()?;
                return Ok(record);
            }
        }
        Err(PoolError::Busy(format!("{} is being written to", self.pool.full_name(self.target))))
    }
}

impl Pool {
    /// The dataset that streams for another go into first.
    fn staging_of(&self, target: DatasetId) -> Option<Arc<Dataset>> {
        let all = self.datasets.read();
        all.values().find(|one| one.is_staging() && one.parent() == target).cloned()
    }

    /// Record of the stream for a dataset that is being received, or may be resumed.
    pub fn received(&self, target: DatasetId) -> Option<ReceivingRecord> {
        let all: Vec<_> = self.receiving.lock().keys().copied().collect();
        let is_for = |id: &DatasetId| self.dataset(*id).is_some_and(|staging| staging.parent() == target);
        let staging = all.into_iter().find(is_for)?;
        self.receiving.lock().get(&staging).map(|one| one.record.clone())
    }

    /// Begins to receive a snapshot for a dataset; of a stream that builds upon nothing, `salt` is what its names are
    /// hashed with. What had been received of another stream is dropped.
    ///
    /// # Errors
    /// When the dataset or the snapshot that the stream builds upon is not there; [`PoolError::Busy`] when another
    /// stream is being received.
    pub fn receive(
        self: &Arc<Self>,
        target: DatasetId,
        record: ReceivingRecord,
        salt: [u8; NAME_SALT_LEN],
    ) -> Result<Incoming> {
        check_snapshot_name(&record.name).map_err(PoolError::Invalid)?;
        // It comes from outside, and is to be read back.
        let encoded = record.encode();
        if encoded.len() > RECORD_MAX || ReceivingRecord::decode(&encoded).as_ref() != Ok(&record) {
            return Err(PoolError::Invalid("the stream has a name that cannot be".into()));
        }
        if record.base.is_none() && self.origin_key(target).is_some() {
            // Its names are hashed otherwise than those of its origin's lineage.
            return Err(PoolError::Busy(format!("{} is a clone", self.full_name(target))));
        }
        for turn in 0..TRIES {
            // A dataset that was just made for the stream becomes durable together with the record that says so: alone
            // it would stay when the power fails.
            if turn > 0 || !record.made {
                self.commit()?;
            }
            let _op = self.enter()?;
            let _complete = self.destroying.lock();
            let head =
                self.dataset(target).ok_or_else(|| PoolError::NotFound(format!("dataset {target}")))?;
            let base = record.base.map(|high| self.snapshot_at(target, high)).transpose()?;
            let staging = match self.staging_of(target) {
                Some(staging) => {
                    self.check_not_received(target)?;
                    if !self.drop_received(&staging)? {
                        continue;
                    }
                    staging
                }
                None => self.add_child(&head, STAGING, BTreeMap::new(), |new| new)?,
            };
            let id = staging.id();
            self.change_tables(&[(Table::Receiving.key(id.get()), Some(record.encode()))])?;
            {
                let mut state = staging.state.write();
                if let Some(base) = &base {
                    state.tree = base.root.map_or_else(Tree::empty, Tree::open);
                    state.was_protected_below = base.high;
                    state.record = DatasetRecord {
                        root: base.root,
                        protected_below: base.high,
                        referenced: base.referenced,
                        logical: base.logical,
                        stored: base.stored,
                        next_inode: base.next_inode,
                        origin: Some((base.dataset, base.high)),
                        inherited: base.referenced,
                        ..state.record.clone()
                    };
                }
                let salt = if base.is_some() { head.name_salt() } else { salt };
                staging.set_name_salt(&mut state, salt);
                state.changed = true;
            }
            let base = base.map(|base| (base.dataset, base.high));
            self.snapshots.lock().set_origin(id, base);
            let used = Arc::new(());
            let entry = Received { record, used: Arc::clone(&used) };
            self.receiving.lock().insert(id, entry);
            return Ok(Incoming { pool: Arc::clone(self), target, staging, used });
        }
        Err(PoolError::Busy("the pool is being written to".into()))
    }

    /// Goes on with a stream that broke off.
    ///
    /// # Errors
    /// [`PoolError::NotFound`] when there is none; [`PoolError::Busy`] when it is being received.
    pub fn resume_receive(self: &Arc<Self>, target: DatasetId) -> Result<Incoming> {
        let none = || PoolError::NotFound("a stream that can be resumed".into());
        // Nobody drops it meanwhile.
        let _complete = self.destroying.lock();
        let staging = self.staging_of(target).ok_or_else(none)?;
        self.check_not_received(target)?;
        let used = {
            let receiving = self.receiving.lock();
            let one = receiving.get(&staging.id()).filter(|one| one.record.resumable);
            Arc::clone(&one.ok_or_else(none)?.used)
        };
        Ok(Incoming { pool: Arc::clone(self), target, staging, used })
    }

    /// Drops what was received of a stream for a dataset; false when there is nothing. Durable with the next commit.
    ///
    /// # Errors
    /// [`PoolError::Busy`] when it is being received.
    pub fn abort_receive(&self, target: DatasetId) -> Result<bool> {
        let Some(staging) = self.staging_of(target) else { return Ok(false) };
        self.check_not_received(target)?;
        if !self.receiving.lock().contains_key(&staging.id()) {
            return Ok(false);
        }
        self.drop_all_received(&staging)?;
        Ok(true)
    }

    /// Refuses when somebody receives a stream for a dataset.
    pub(crate) fn check_not_received(&self, target: DatasetId) -> Result<()> {
        let Some(staging) = self.staging_of(target) else { return Ok(()) };
        let is_used = self.receiving.lock().get(&staging.id()).is_some_and(Received::is_used);
        if is_used { Err(being_received(&self.full_name(target))) } else { Ok(()) }
    }

    /// A dataset goes: so does what was received for it.
    pub(crate) fn destroy_staging(&self, target: DatasetId) -> Result<()> {
        let Some(staging) = self.staging_of(target) else { return Ok(()) };
        self.check_not_received(target)?;
        self.drop_all_received(&staging)?;
        let _removing = self.removing();
        let _op = self.enter()?;
        let _complete = self.destroying.lock();
        self.check_not_received(target)?;
        let begun_anew = self.receiving.lock().contains_key(&staging.id());
        if !begun_anew {
            self.destroy_within(&staging)?;
        }
        Ok(())
    }

    /// Whether a dataset is one that streams go into first, or has one.
    pub(crate) fn has_staging(&self, target: DatasetId) -> bool {
        self.staging_of(target).is_some()
    }

    /// Drops a stream that broke off and is not to be resumed, and the dataset that was made for it. True when there
    /// was one.
    pub(crate) fn drop_broken_off(&self) -> Result<bool> {
        let broken = || {
            let receiving = self.receiving.lock();
            let mut all = receiving.iter().filter(|(_, one)| !one.record.resumable && !one.is_used());
            all.next().map(|(id, one)| (*id, one.record.made))
        };
        let Some((staging, made)) = broken() else { return Ok(false) };
        let Some(staging) = self.dataset(staging) else { return Ok(false) };
        let target = staging.parent();
        {
            // Somebody who needs room may be at it: nothing is committed here.
            let _op = self.enter()?;
            let _complete = self.destroying.lock();
            if broken() != Some((staging.id(), made)) || !self.drop_received(&staging)? {
                return Ok(false);
            }
        }
        // Somebody may have taken a liking to it meanwhile, and then it stays.
        if made && self.is_untouched(target)? && self.children(target).is_empty() {
            // An empty dataset that cannot go now harms nobody, and must not stop whoever wants room.
            let _ = self.destroy_dataset(target);
        }
        Ok(true)
    }

    /// Whether a dataset has no snapshots, and nothing in it but its root directory.
    ///
    /// # Errors
    /// When its tree cannot be read.
    pub fn is_untouched(&self, dataset: DatasetId) -> Result<bool> {
        let Some(dataset) = self.dataset(dataset) else { return Ok(false) };
        let mut entries = 0;
        dataset.view()?.scan(&Key::MIN, &mut |_, _| {
            entries += 1;
            if entries > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(entries <= 1 && self.newest_snapshot(dataset.id()).is_none())
    }

    /// A dataset goes back to a snapshot: what was received upon a newer one goes.
    pub(crate) fn drop_received_beyond(&self, to: &SnapshotRecord) -> Result<()> {
        let Some(staging) = self.staging_of(to.dataset) else { return Ok(()) };
        let is_beyond =
            self.origin_key(staging.id()).is_some_and(|(of, high)| of == to.dataset && high > to.high);
        if is_beyond { self.drop_all_received(&staging) } else { Ok(()) }
    }

    pub(crate) fn drop_all_received(&self, staging: &Dataset) -> Result<()> {
        for _ in 0..TRIES {
            {
                let _op = self.enter()?;
                let _complete = self.destroying.lock();
                if self.drop_received(staging)? {
                    return Ok(());
                }
            }
            self.commit()?;
        }
        Err(PoolError::Busy("the pool is being written to".into()))
    }

    /// All that the staging dataset has becomes a note of remains, and it is empty; false when somebody changed it
    /// since the last commit. Within an operation.
    fn drop_received(&self, staging: &Dataset) -> Result<bool> {
        let id = staging.id();
        if self.receiving.lock().get(&id).is_some_and(Received::is_used) {
            return Err(being_received(&self.full_name(staging.parent())));
        }
        {
            let mut state = staging.state.write();
            if state.tree.is_dirty() {
                return Ok(false);
            }
            let high = self.shared.store.core.lock().take_ids(1);
            let floor = state.record.protected_below;
            let root = state.tree.committed_root();
            self.leave_remains(&mut state, high, floor, root)?;
            let forgotten = self.change_tables(&[(Table::Receiving.key(id.get()), None)]);
            forgotten.inspect_err(|_| self.forget_remains(high))?;
            self.empty_staging(&mut state);
        }
        self.receiving.lock().remove(&id);
        Ok(true)
    }

    /// It has nothing any more, and is a clone of nothing.
    fn empty_staging(&self, state: &mut State) {
        let before = state.record.own();
        state.tree = Tree::empty();
        state.was_protected_below = BlockId::new(0);
        state.record = DatasetRecord {
            root: None,
            protected_below: BlockId::new(0),
            referenced: 0,
            logical: 0,
            stored: 0,
            held: 0,
            next_inode: 2,
            origin: None,
            inherited: 0,
            ..state.record.clone()
        };
        state.changed = true;
        self.snapshots.lock().set_origin(state.record.id, None);
        self.shared.accounts.post(state.record.id, (before as i64).wrapping_neg());
    }

    /// Takes over what has arrived, unless somebody changed something meanwhile.
    fn try_finish(&self, incoming: &Incoming, with: ReceiveAs) -> Result<Option<SnapshotRecord>> {
        let (target, staging) = (incoming.target, &incoming.staging);
        let gone = || PoolError::NotFound("the stream that is received".into());
        let head = self.dataset(target).ok_or_else(gone)?;
        self.check_no_moment(target)?;
        self.commit()?;
        let receiving = incoming.record().ok_or_else(gone)?;
        self.make_way(&head, &receiving, staging, with)?;
        let (base, above) = (self.origin(staging.id()), self.origin_key(target));
        let base_high = base.as_ref().map_or(high_of(above), |base| base.high);
        self.check_free(target, &receiving.name)?;
        if let Some(refusal) = self.in_the_way(target, base_high) {
            return Err(refusal);
        }
        // Nothing in the trash can come back between the base and this one.
        self.let_go_above(target, base_high)?;
        while self.destroy_unneeded()? {}
        self.commit()?;
        let (root, referenced) = {
            let state = staging.state.read();
            (state.tree.committed_root(), state.record.referenced)
        };
        let head_root = head.state.read().tree.committed_root();
        let inherited = self.inherited(root, referenced, high_of(above))?;

        let _turn = self.commit_turn();
        let _removing = self.removing();
        let _nobody_enters = self.gate.write();
        self.shared.store.check_writable()?;
        let _one_at_a_time = self.destroying.lock();
        let is_as = |dataset: &Dataset, root: Option<BlockPtr>| {
            let state = dataset.state.read();
            !state.tree.is_dirty() && state.tree.committed_root() == root
        };
        let is_same = is_as(staging, root)
            && is_as(&head, head_root)
            && self.origin_key(target) == above
            && self.origin_key(staging.id()) == base.as_ref().map(|base| (base.dataset, base.high))
            && self.snapshots.lock().after(target, base_high).next().is_none();
        if !is_same {
            return Ok(None);
        }
        let (left, high) = {
            let mut core = self.shared.store.core.lock();
            (core.take_ids(1), core.take_ids(1))
        };
        let arrived = staging.state.read().record.clone();
        let record = SnapshotRecord {
            dataset: target,
            guid: receiving.to,
            high,
            root,
            referenced: arrived.referenced,
            logical: arrived.logical,
            stored: arrived.stored,
            next_inode: arrived.next_inode,
            created: receiving.created,
            commit: self.shared.store.open_commit(),
            deferred: false,
            hidden: false,
            name: receiving.name.clone(),
        };
        self.check_free(target, &record.name)?;
        // The head goes another way from the base on: what is marked behind that is not on it.
        let mut marks = self.snapshots.lock().bookmarks_after(target, base_high);
        marks.retain(|_| !mutated(Mutant::BookmarkKept));
        {
            let mut state = head.state.write();
            // The same tree is the snapshot's.
            let old = head_root.filter(|old| base.as_ref().is_none_or(|base| base.root != Some(*old)));
            self.leave_remains(&mut state, left, base_high, old)?;
            let mut changes = bookmarks::changes(target, &marks, false);
            changes.push((Table::snapshot_key(target, high), Some(record.encode())));
            changes.push((Table::Receiving.key(staging.id().get()), None));
            self.change_tables(&changes).inspect_err(|_| self.forget_remains(left))?;
            state.record.protected_below = high;
            state.record.next_inode = state.record.next_inode.max(arrived.next_inode);
            self.become_snapshot(&mut state, &record, inherited);
            head.set_name_salt(&mut state, arrived.name_salt);
        }
        self.empty_staging(&mut staging.state.write());
        self.shared.note_high(high);
        {
            let mut snapshots = self.snapshots.lock();
            snapshots.drop_bookmarks(target, &marks);
            snapshots.insert(record.clone(), Default::default());
        }
        self.receiving.lock().remove(&staging.id());
        self.shared.damage.moved((staging.id(), crate::ledger::HEAD), (target, crate::ledger::HEAD), true);
        self.went_back(&head);
        Ok(Some(record))
    }

    /// Refuses a name that a snapshot of a dataset has, or is to get.
    fn check_free(&self, target: DatasetId, name: &str) -> Result<()> {
        let is_free = {
            let snapshots = self.snapshots.lock();
            let mut to_come = snapshots.to_come();
            snapshots.named(target, name).is_err()
                && to_come.all(|(of, other)| *of != target || other != name)
        };
        if is_free { Ok(()) } else { Err(PoolError::Exists(format!("{}@{name}", self.full_name(target)))) }
    }

    /// Refuses when a dataset is not what the stream builds upon; or has it be that again.
    fn make_way(
        &self,
        head: &Dataset,
        receiving: &ReceivingRecord,
        staging: &Dataset,
        with: ReceiveAs,
    ) -> Result<()> {
        let target = head.id();
        let full = self.full_name(target);
        let Some(base) = self.origin(staging.id()) else {
            if receiving.base.is_some() {
                return Err(PoolError::NotFound("the snapshot that the stream builds upon".into()));
            }
            // It became one meanwhile: names of its origin's lineage are hashed otherwise.
            if self.origin_key(target).is_some() {
                return Err(PoolError::Busy(format!("{full} is a clone")));
            }
            let has_content = self.newest_snapshot(target).is_some();
            if has_content {
                return Err(PoolError::Busy(format!("{full} has snapshots")));
            }
            let is_modified = with == ReceiveAs::Next && self.differs(None, head)?;
            return if is_modified { Err(modified(&full)) } else { Ok(()) };
        };
        if base.guid != receiving.from {
            return Err(PoolError::NotFound("the snapshot that the stream builds upon".into()));
        }
        // A clone's first snapshot builds upon its origin.
        let is_origin = self.origin_key(target) == Some((base.dataset, base.high));
        if base.dataset != target && !is_origin {
            return Err(PoolError::NotFound("the snapshot that the stream builds upon".into()));
        }
        let newer =
            self.snapshots_after(target, base.high, 1).into_iter().find(|one| !is_momentary(&one.name));
        if newer.is_none() && !self.differs(base.root, head)? {
            return Ok(());
        }
        if with == ReceiveAs::Next {
            return Err(modified(&full));
        }
        if base.hidden || is_origin {
            return Err(PoolError::Busy(format!("{full} has lost the snapshot that the stream builds upon")));
        }
        self.rollback(target, &base.name, true)
    }

    /// Whether somebody changed a dataset since it was `old`: reading it is no change, nor is that a file goes which
    /// had no name any more.
    fn differs(&self, old: Option<BlockPtr>, head: &Dataset) -> Result<bool> {
        let new = {
            let state = head.state.read();
            if state.tree.is_dirty() && old.is_some() {
                return Ok(true);
            }
            state.tree.committed_root()
        };
        if old.is_none() {
            return Ok(!self.is_untouched(head.id())?);
        }
        let mut difference = Difference::new(old, new);
        let (mut differs, mut orphans) = (false, BTreeSet::new());
        loop {
            let more = difference.step(&DatasetNodes(&self.shared.store), 64, |one| {
                let Differs::Entry { key, old, new } = one else { return };
                differs |= match (key.kind, old, new) {
                    (ORPHAN, Some(_), None) if orphans.len() < ORPHANS => !orphans.insert(key.offset),
                    (EXTENT, Some(_), None) | (INODE.., Some(_), None) => !orphans.contains(&key.object),
                    (INODE, Some(old), Some(new)) => is_other(old, new, orphans.contains(&key.object)),
                    _ => true,
                };
            })?;
            if differs || !more {
                return Ok(differs);
            }
        }
    }

    /// Whether somebody changed a dataset since the snapshot of it, or its origin, with this `high`; without one,
    /// whether it has anything. What is dirty counts.
    ///
    /// # Errors
    /// When there is no such snapshot, or a tree cannot be read.
    pub fn is_modified_since(&self, target: DatasetId, base: Option<BlockId>) -> Result<bool> {
        self.commit()?;
        let head = self.dataset(target).ok_or_else(|| PoolError::NotFound(format!("dataset {target}")))?;
        let root = match base {
            Some(high) => self.snapshot_at(target, high)?.root,
            None => None,
        };
        self.differs(root, &head)
    }

    /// A snapshot of a dataset, or its origin.
    fn snapshot_at(&self, dataset: DatasetId, high: BlockId) -> Result<SnapshotRecord> {
        let snapshots = self.snapshots.lock();
        let own = snapshots.taken.get(&(dataset, high)).map(|one| &one.record);
        let found = own.or_else(|| snapshots.origin(dataset).filter(|origin| origin.high == high)).cloned();
        found.ok_or_else(|| PoolError::NotFound("the snapshot that the stream builds upon".into()))
    }
}

/// Whether an inode was changed, but for being read, or for losing what was beyond its end.
fn is_other(old: &[u8], new: &[u8], had_tail: bool) -> bool {
    let (Ok(old), Ok(mut new)) = (Inode::decode(old), Inode::decode(new)) else { return true };
    new.atime = old.atime;
    if had_tail {
        new.flags |= old.flags & Inode::HAS_TAIL;
        (new.stored, new.data) = (old.stored, old.data);
    }
    old != new
}

fn being_received(full: &str) -> PoolError {
    PoolError::Busy(format!("a stream is being received into {full}"))
}

fn modified(full: &str) -> PoolError {
    PoolError::Busy(format!("{full} has been modified since most recent snapshot"))
}
