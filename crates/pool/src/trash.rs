//! Trash: destroyed snapshots and datasets that stay for a while, and can be brought back.
//!
//! # A snapshot
//! in the trash is *hidden*, as one that a clone needs: it has no name, and stays in its dataset's lineage, so that
//! nothing it holds is freed. An entry of the tables keeps it, by its high id: a promote or a branch moves it like any
//! other. Without the entry it is as all hidden ones that nobody needs, and [`Pool::destroy_step`] takes it.
//!
//! # A dataset
//! in the trash has all that it had: tree, snapshots, bookmarks, properties. It is not among those with a name, its
//! account is closed, and its parent is the pool's root dataset, since its own may go before it. Its entry tells where
//! it was. To be let go of, it is first marked as going, then destroyed as any other: its snapshots, then itself; if
//! clones need these, by handing them on.
//!
//! # When it goes
//! [`Pool::trash_step`] lets go of what is over its time, and of the oldest while little is free; who finds no room
//! does the latter himself ([`Pool::let_go_oldest`]). Its bytes count as available. A clock that jumps is given an hour
//! before anything is let go of for its time.
//!
//! A rollback lets go of the snapshots in the trash that are newer: what goes back on its line cannot keep them.
//!
//! # Crashes
//! Entry and hidden snapshot, or entry and dataset's record, are in one commit. One that was marked as going goes on.

use crate::attached::Change;
use crate::clones::TRIES;
use crate::create::{check_name, check_snapshot_name};
use crate::dataset::{Dataset, ROOT_DATASET};
use crate::pool::Pool;
use crate::snapshot::KeptSnapshot;
use crate::snapshots::Snapshot;
use larder_format::tables::{SnapshotRecord, Table};
use larder_format::trash::{TrashKey, TrashRecord};
use larder_format::{BlockId, DatasetId, Timestamp};
use larder_store::{PoolError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// While less than this part of a pool is free, the oldest goes.
const FREE_SHARE: u64 = 16;
/// A clock that is this far from the one that never goes back has jumped.
const JUMP: Duration = Duration::from_secs(300);
/// So long after an import, or a jump of the clock, nothing goes for its time.
const CALM: Duration = Duration::from_secs(3600);
/// Bytes in the trash are measured this often, at most.
const MEASURES: Duration = Duration::from_secs(60);
/// Commits until what was let go of is free, when its tree is down.
const COMMITS_TO_FREE: u64 = 4;

/// Something in the trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trashed {
    /// Its place in the tables.
    pub key: TrashKey,
    /// Its full name: of a snapshot, with the name that its dataset has now.
    pub name: String,
    /// When it was destroyed, until when it is kept, and where it was.
    pub record: TrashRecord,
}

impl Pool {
    /// A dataset that has a name, or is in the trash.
    pub(crate) fn alive(&self, id: DatasetId) -> Option<Arc<Dataset>> {
        self.dataset(id).or_else(|| self.trashed.lock().get(&id).map(|(dataset, _)| Arc::clone(dataset)))
    }

    /// The full name that a dataset in the trash had.
    pub(crate) fn trashed_name(&self, id: DatasetId) -> Option<String> {
        self.trashed.lock().get(&id).map(|(_, name)| name.clone())
    }

    /// As [`Pool::destroy_snapshots`], but they can be brought back until then, or until space is needed.
    ///
    /// # Errors
    /// As there.
    pub fn trash_snapshots(&self, going: &[(DatasetId, String)], until: Timestamp) -> Result<()> {
        let _removing = self.removing();
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let going: BTreeSet<_> = going.iter().cloned().collect();
        let mut hidden = Vec::new();
        let kept = {
            let snapshots = self.snapshots.lock();
            let found = going.iter().map(|(dataset, name)| snapshots.named(*dataset, name));
            let found = found.collect::<Result<Vec<_>>>()?;
            hidden.extend(found.iter().map(|one| {
                let record = SnapshotRecord { hidden: true, deferred: false, ..one.record.clone() };
                (one.record.clone(), record)
            }));
            found.iter().find_map(|snapshot| KeptSnapshot::of(snapshot))
        };
        if let Some(kept) = kept {
            return Err(kept.refusal(&self.full_name(kept.dataset)));
        }
        let destroyed = self.shared.store.world.clock.now();
        let entry = |of: &SnapshotRecord| {
            let name = format!("{}@{}", self.full_name(of.dataset), of.name);
            TrashRecord { destroyed, until, parent: DatasetId::new(0), going: false, name }
        };
        let entries: Vec<_> = hidden.iter().map(|(_, record)| entry(record)).collect();
        let changes: Vec<Change> = hidden
            .iter()
            .zip(&entries)
            .flat_map(|((_, record), entry)| {
                let snapshot = Table::snapshot_key(record.dataset, record.high);
                let trash = TrashKey::Snapshot(record.high).key();
                [(snapshot, Some(record.encode())), (trash, Some(entry.encode()))]
            })
            .collect();
        self.change_tables(&changes)?;
        let mut snapshots = self.snapshots.lock();
        for ((_, record), entry) in hidden.into_iter().zip(entries) {
            let key = (record.dataset, record.high);
            snapshots.trash.insert(TrashKey::Snapshot(record.high), entry);
            if let Some(snapshot) = snapshots.take(key) {
                snapshots.put_back(Snapshot { record, ..snapshot });
            }
        }
        drop(snapshots);
        self.shared.intent.notes.lock().note_removal();
        self.forget_measure();
        Ok(())
    }

    /// As [`Pool::destroy_dataset`], with its snapshots; but it can be brought back with them until then, or until
    /// space is needed. Durable with the next commit.
    ///
    /// # Errors
    /// [`PoolError::Busy`] when it has children or is the pool's root, or somebody looks into it or one of its
    /// snapshots, or holds one.
    pub fn trash_dataset(&self, id: DatasetId, until: Timestamp) -> Result<()> {
        for _ in 0..TRIES {
            // Half a stream goes for good: it can be sent again.
            self.destroy_staging(id)?;
            if self.try_trash(id, until)? {
                return Ok(());
            }
        }
        Err(PoolError::Busy(format!("streams are being received into {}", self.full_name(id))))
    }

    /// The same, unless a stream has come for it.
    fn try_trash(&self, id: DatasetId, until: Timestamp) -> Result<bool> {
        let dataset = self.dataset(id).ok_or_else(|| PoolError::NotFound(format!("dataset {id}")))?;
        self.check_no_moment(id)?;
        let name = self.full_name(id);
        let _removing = self.removing();
        let _op = self.enter()?;
        let _complete = self.destroying.lock();
        self.check_childless(id)?;
        if self.has_staging(id) {
            return Ok(false);
        }
        let (kept, comes) = {
            let snapshots = self.snapshots.lock();
            let kept = snapshots.of(id).find_map(KeptSnapshot::of);
            (kept, snapshots.to_come().any(|(of, _)| *of == id))
        };
        if let Some(kept) = kept {
            return Err(kept.refusal(&name));
        }
        if comes {
            return Err(PoolError::Busy(format!("a snapshot of {name} is being taken")));
        }
        let (destroyed, parent) = (self.shared.store.world.clock.now(), dataset.parent());
        let entry = TrashRecord { destroyed, until, parent, going: false, name: name.clone() };
        let key = TrashKey::Dataset(id);
        self.change_tables(&[(key.key(), Some(entry.encode()))])?;
        {
            let mut state = dataset.state.write();
            state.record.parent = ROOT_DATASET;
            state.changed = true;
        }
        self.shared.intent.notes.lock().note_removal();
        self.datasets.write().remove(&id);
        self.trashed.lock().insert(id, (dataset, name));
        self.snapshots.lock().trash.insert(key, entry);
        self.shared.accounts.close(id);
        self.forget_measure();
        Ok(true)
    }

    /// All that is in the trash and can be brought back, what was destroyed first first.
    pub fn trash(&self) -> Vec<Trashed> {
        let entries: Vec<_> = {
            let snapshots = self.snapshots.lock();
            let all = snapshots.trash.iter().filter(|(_, record)| !record.going);
            let own = |key: &TrashKey| match key {
                TrashKey::Snapshot(high) => {
                    snapshots.hidden_of(*high).map(|one| (one.dataset, one.name.clone()))
                }
                TrashKey::Dataset(_) => None,
            };
            all.map(|(key, record)| (*key, record.clone(), own(key))).collect()
        };
        let mut all: Vec<_> = entries
            .into_iter()
            .map(|(key, record, own)| {
                // In a dataset that is in the trash itself, it has the name that it had.
                let now = own.filter(|(dataset, _)| self.dataset(*dataset).is_some());
                let now = now.map(|(dataset, own)| format!("{}@{own}", self.full_name(dataset)));
                Trashed { key, name: now.unwrap_or_else(|| record.name.clone()), record }
            })
            .collect();
        all.sort_by_key(|one| (one.record.destroyed, one.key));
        all
    }

    /// Bytes that come back when one of these alone is let go of.
    ///
    /// # Errors
    /// When it is not there, or a tree cannot be read.
    pub fn space_of_trashed(&self, key: TrashKey) -> Result<u64> {
        match key {
            TrashKey::Snapshot(high) => {
                let record = self.snapshots.lock().hidden_of(high).cloned();
                record.map_or(Ok(0), |record| self.space_of_snapshot(&record))
            }
            TrashKey::Dataset(id) => {
                let dataset = self.alive(id).ok_or_else(|| PoolError::NotFound(format!("dataset {id}")))?;
                Ok(dataset.usage().own + self.space_of_snapshots(id)?)
            }
        }
    }

    /// Brings a snapshot back, by its high id, under its name or another one. Durable with the next commit.
    ///
    /// # Errors
    /// When it is not in the trash, or its dataset is; when the name cannot be, or is taken.
    pub fn restore_snapshot(&self, high: BlockId, name: Option<&str>) -> Result<SnapshotRecord> {
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let key = TrashKey::Snapshot(high);
        let missing = || PoolError::NotFound("it is not in the trash".into());
        let hidden = {
            let snapshots = self.snapshots.lock();
            let there = snapshots.trash.get(&key).is_some_and(|entry| !entry.going);
            snapshots.hidden_of(high).filter(|_| there).cloned().ok_or_else(missing)?
        };
        let name = name.unwrap_or(&hidden.name).to_owned();
        check_snapshot_name(&name).map_err(PoolError::Invalid)?;
        let dataset = hidden.dataset;
        if self.dataset(dataset).is_none() {
            let of = self.trashed_name(dataset).unwrap_or_default();
            return Err(PoolError::Invalid(format!("{of} is in the trash itself: bring that back before")));
        }
        let is_taken = {
            let snapshots = self.snapshots.lock();
            let comes = snapshots.to_come().any(|(of, other)| *of == dataset && *other == name);
            comes || snapshots.named(dataset, &name).is_ok()
        };
        if is_taken {
            return Err(PoolError::Exists(format!("snapshot {}@{name}", self.full_name(dataset))));
        }
        let record = SnapshotRecord { hidden: false, name, ..hidden };
        let entry = (Table::snapshot_key(dataset, high), Some(record.encode()));
        self.change_tables(&[entry, (key.key(), None)])?;
        let mut snapshots = self.snapshots.lock();
        snapshots.trash.remove(&key);
        if let Some(snapshot) = snapshots.take((dataset, high)) {
            snapshots.put_back(Snapshot { record: record.clone(), ..snapshot });
        }
        drop(snapshots);
        self.forget_measure();
        Ok(record)
    }

    /// Brings a dataset back, with its snapshots, under this full name. Durable with the next commit.
    ///
    /// # Errors
    /// When it is not in the trash; when the name cannot be or is taken, or its parent does not exist; when a quota
    /// would be passed, or a reservation is more than is free.
    pub fn restore_dataset(&self, id: DatasetId, name: &str) -> Result<Arc<Dataset>> {
        let _op = self.enter()?;
        let _complete = self.destroying.lock();
        let key = TrashKey::Dataset(id);
        let there = self.snapshots.lock().trash.get(&key).is_some_and(|entry| !entry.going);
        let found = self.trashed.lock().get(&id).filter(|_| there).map(|(dataset, _)| Arc::clone(dataset));
        let dataset = found.ok_or_else(|| PoolError::NotFound("it is not in the trash".into()))?;
        let (parent, last) =
            name.rsplit_once('/').ok_or_else(|| PoolError::Invalid(format!("{name} names a pool")))?;
        check_name(last).map_err(PoolError::Invalid)?;
        let parent = self.dataset_by_name(parent)?;
        if self.children(parent.id()).iter().any(|child| child.last_name() == last) {
            return Err(PoolError::Exists(name.to_owned()));
        }
        let own = dataset.usage().own;
        self.check_quota(parent.id(), own)?;
        self.open_account(&parent, id, &dataset.local_properties())?;
        self.shared.accounts.post(id, own as i64);
        let restored = self.change_tables(&[(key.key(), None)]);
        restored.inspect_err(|_| self.shared.accounts.close(id))?;
        {
            let mut state = dataset.state.write();
            state.record.parent = parent.id();
            last.clone_into(&mut state.record.name);
            state.changed = true;
        }
        self.snapshots.lock().trash.remove(&key);
        self.trashed.lock().remove(&id);
        self.datasets.write().insert(id, Arc::clone(&dataset));
        self.refresh_settings();
        self.forget_measure();
        Ok(dataset)
    }

    /// Lets go of something in the trash: its space comes back by [`Pool::destroy_step`].
    ///
    /// # Errors
    /// When it is not there; [`PoolError::Busy`] when a clone of its snapshots is written to all the time.
    pub fn let_go(&self, key: TrashKey) -> Result<()> {
        self.forget_measure();
        let id = match key {
            TrashKey::Snapshot(_) => return self.drop_entry(key),
            TrashKey::Dataset(id) => id,
        };
        self.mark_going(key)?;
        let (visible, hidden) = {
            let snapshots = self.snapshots.lock();
            let visible = snapshots.visible(id).map(|one| (id, one.name.clone())).collect::<Vec<_>>();
            let hidden = snapshots.of(id).map(|one| TrashKey::Snapshot(one.record.high));
            (visible, hidden.filter(|key| snapshots.trash.contains_key(key)).collect::<Vec<_>>())
        };
        hidden.into_iter().try_for_each(|key| self.drop_entry(key))?;
        self.destroy_snapshots(&visible)?;
        self.destroy_dataset(id)
    }

    fn drop_entry(&self, key: TrashKey) -> Result<()> {
        let _removing = self.removing();
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        self.change_tables(&[(key.key(), None)])?;
        self.snapshots.lock().trash.remove(&key);
        self.shared.intent.notes.lock().note_removal();
        Ok(())
    }

    fn mark_going(&self, key: TrashKey) -> Result<()> {
        let _removing = self.removing();
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let entry = self.snapshots.lock().trash.get(&key).cloned();
        let entry = entry.ok_or_else(|| PoolError::NotFound("it is not in the trash".into()))?;
        let entry = TrashRecord { going: true, ..entry };
        self.change_tables(&[(key.key(), Some(entry.encode()))])?;
        self.snapshots.lock().trash.insert(key, entry);
        Ok(())
    }

    /// Lets go of the snapshots of a dataset above a high id that are in the trash: the dataset is about to be
    /// destroyed, or another one is to follow on that high id.
    pub(crate) fn let_go_of_snapshots(&self, id: DatasetId, above: BlockId) -> Result<()> {
        let keys: Vec<_> = {
            let snapshots = self.snapshots.lock();
            let newer = snapshots.after(id, above).filter(|one| snapshots.is_trash(one));
            newer.map(|one| TrashKey::Snapshot(one.high)).collect()
        };
        keys.into_iter().try_for_each(|key| self.drop_entry(key))
    }

    /// Lets go of what was destroyed first; true when there was something.
    ///
    /// # Errors
    /// As [`Pool::let_go`].
    pub fn let_go_oldest(&self) -> Result<bool> {
        let mut all: Vec<_> = {
            let snapshots = self.snapshots.lock();
            let of = |(key, record): (&TrashKey, &TrashRecord)| (!record.going, record.destroyed, *key);
            snapshots.trash.iter().map(of).collect()
        };
        all.sort();
        for (_, _, key) in all {
            match self.let_go(key) {
                // It is in use, or needs room itself, or somebody was faster: another may go.
                Err(PoolError::Busy(_) | PoolError::NoSpace | PoolError::NotFound(_)) => {}
                gone => return gone.map(|()| true),
            }
        }
        Ok(false)
    }

    /// A step of what the trash needs now and then: lets go of what is over its time, or of the oldest where little is
    /// free, and measures what is in it. True when something was let go of.
    ///
    /// # Errors
    /// As [`Pool::let_go`].
    pub fn trash_step(&self) -> Result<bool> {
        if self.snapshots.lock().trash.is_empty() {
            self.trash.bytes.store(0, Ordering::Relaxed);
            return Ok(false);
        }
        let now = self.shared.store.world.clock.now();
        if let Some(key) = self.over(now) {
            self.let_go(key)?;
            return Ok(true);
        }
        if self.is_short() {
            self.trash.gone.store(self.shared.store.durable_commit().get(), Ordering::Relaxed);
            return self.let_go_oldest();
        }
        self.measure_trash();
        Ok(false)
    }

    /// Something that is over its time, or was marked as going.
    fn over(&self, now: Timestamp) -> Option<TrashKey> {
        let calm = self.is_calm(now);
        let snapshots = self.snapshots.lock();
        let is_over = |record: &TrashRecord| record.going || calm && record.until <= now;
        snapshots.trash.iter().find(|(_, record)| is_over(record)).map(|(key, _)| *key)
    }

    /// Whether the clock has not jumped for a while.
    fn is_calm(&self, now: Timestamp) -> bool {
        let steady = self.shared.store.world.clock.monotonic();
        let apart = i128::from(now.secs) * 1_000_000_000 + i128::from(now.nanos) - steady.as_nanos() as i128;
        let mut clocks = self.trash.clocks.lock();
        let since = match *clocks {
            Some((before, since)) if (apart - before).unsigned_abs() < JUMP.as_nanos() => since,
            _ => steady,
        };
        *clocks = Some((apart, since));
        steady.saturating_sub(since) >= CALM
    }

    /// Whether little is free, and nothing that was let go of is about to be.
    fn is_short(&self) -> bool {
        let space = self.shared.store.space(self.shared.store.max_record());
        let gone = self.trash.gone.load(Ordering::Relaxed);
        let is_over = gone == 0 || self.shared.store.durable_commit().get() >= gone + COMMITS_TO_FREE;
        space.available < space.size / FREE_SHARE
            && is_over
            && self.destroyed.lock().is_empty()
            && !self.has_remains()
    }

    /// Bytes in the trash, as they were last measured: they come back when somebody needs them.
    pub fn trash_bytes(&self) -> u64 {
        self.trash.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that only snapshots in the trash refer to, of a dataset that is not there itself.
    ///
    /// # Errors
    /// When a tree cannot be read.
    pub fn trash_of(&self, dataset: DatasetId) -> Result<u64> {
        let of: BTreeMap<_, _> = {
            let snapshots = self.snapshots.lock();
            let all = snapshots.of(dataset).map(|one| &one.record);
            let is_trash = |one: &&SnapshotRecord| {
                one.hidden
                    && snapshots.trash.contains_key(&TrashKey::Snapshot(one.high))
                    && !snapshots.is_cloned(one)
            };
            all.filter(is_trash).map(|one| (one.high, one.root)).collect()
        };
        if of.is_empty() { Ok(0) } else { self.held_by(dataset, &of) }
    }

    fn forget_measure(&self) {
        *self.trash.measured.lock() = None;
    }

    fn measure_trash(&self) {
        let now = self.shared.store.world.clock.monotonic();
        let is_due = |last: Duration| now.saturating_sub(last) >= MEASURES;
        if !self.trash.measured.lock().is_none_or(is_due) {
            return;
        }
        *self.trash.measured.lock() = Some(now);
        let whole: Vec<_> = self.trashed.lock().keys().copied().collect();
        let whole = whole.into_iter().filter_map(|id| self.space_of_trashed(TrashKey::Dataset(id)).ok());
        let parts = self.datasets();
        let parts = parts.iter().filter_map(|dataset| self.trash_of(dataset.id()).ok());
        self.trash.bytes.store(whole.chain(parts).sum(), Ordering::Relaxed);
    }
}
