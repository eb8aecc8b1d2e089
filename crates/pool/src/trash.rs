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
//! does the latter himself ([`Pool::let_go_for`]). Its bytes count as available. A clock that jumps is given an hour
//! before anything is let go of for its time.
//!
//! A rollback, and a stream that is received, let go of what is in the trash and newer: snapshots, and clones of them.
//!
//! # Crashes
//! Entry and hidden snapshot, or entry and dataset's record, are in one commit. One that was marked as going goes on.

use crate::attached::Change;
use crate::clones::TRIES;
use crate::create::{check_name, check_snapshot_name};
use crate::dataset::{Dataset, ROOT_DATASET};
use crate::pool::Pool;
use crate::remains::Alone;
use crate::snapshot::KeptSnapshot;
use crate::snapshots::Snapshot;
use crate::trashed::{AloneCursor, Measured, Part};
use larder_format::tables::{SnapshotRecord, Table};
use larder_format::trash::{TrashKey, TrashRecord};
use larder_format::{BlockId, BlockPtr, DatasetId, Timestamp};
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
/// Bytes in the trash are measured this often, at most, while nothing comes or goes.
const MEASURES: Duration = Duration::from_secs(60);
/// They are measured for so long at once.
const AT_ONCE: Duration = Duration::from_millis(50);
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
    pub fn alive(&self, id: DatasetId) -> Option<Arc<Dataset>> {
        self.dataset(id).or_else(|| self.trashed.lock().get(&id).map(|(dataset, _)| Arc::clone(dataset)))
    }

    /// The full name that a dataset in the trash had.
    pub(crate) fn trashed_name(&self, id: DatasetId) -> Option<String> {
        let name = self.trashed.lock().get(&id).map(|(_, name)| name.clone());
        name.map(|name| self.with_own_name(&name))
    }

    /// A full name that somebody had, below the name that the pool has now.
    fn with_own_name(&self, name: &str) -> String {
        let rest = name.find(['/', '@']).map_or("", |at| &name[at..]);
        format!("{}{rest}", self.name())
    }

    /// Whether a snapshot is in the trash by itself.
    pub fn is_in_trash(&self, record: &SnapshotRecord) -> bool {
        self.snapshots.lock().is_trash(record)
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
        let (hidden, kept) = {
            let snapshots = self.snapshots.lock();
            let found = going.iter().map(|(dataset, name)| snapshots.named(*dataset, name));
            let found = found.collect::<Result<Vec<_>>>()?;
            let hide =
                |one: &&Snapshot| SnapshotRecord { hidden: true, deferred: false, ..one.record.clone() };
            let hidden: Vec<_> = found.iter().map(hide).collect();
            (hidden, found.iter().find_map(|snapshot| KeptSnapshot::of(snapshot)))
        };
        if let Some(kept) = kept {
            return Err(kept.refusal(&self.full_name(kept.dataset)));
        }
        let destroyed = self.shared.store.world.clock.now();
        let entry = |of: &SnapshotRecord| {
            let name = format!("{}@{}", self.full_name(of.dataset), of.name);
            TrashRecord { destroyed, until, parent: DatasetId::new(0), going: false, name }
        };
        let entries: Vec<_> = hidden.iter().map(entry).collect();
        let changes: Vec<Change> = hidden
            .iter()
            .zip(&entries)
            .flat_map(|(record, entry)| {
                let snapshot = Table::snapshot_key(record.dataset, record.high);
                let trash = TrashKey::Snapshot(record.high).key();
                [(snapshot, Some(record.encode())), (trash, Some(entry.encode()))]
            })
            .collect();
        self.change_tables(&changes)?;
        let mut snapshots = self.snapshots.lock();
        for (record, entry) in hidden.into_iter().zip(entries) {
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
                let name = now.unwrap_or_else(|| self.with_own_name(&record.name));
                Trashed { key, name, record }
            })
            .collect();
        all.sort_by_key(|one| (one.record.destroyed, one.key));
        all
    }

    /// Bytes that come back when one of these alone is let go of; not those that clones with a name need.
    ///
    /// # Errors
    /// When it is not there, or a tree cannot be read.
    pub fn space_of_trashed(&self, key: TrashKey) -> Result<u64> {
        self.parts_of(key)?.iter().map(|part| self.space_of_part(part)).sum()
    }

    fn parts_of(&self, key: TrashKey) -> Result<Vec<Part>> {
        let id = match key {
            TrashKey::Snapshot(high) => {
                let record = self.snapshots.lock().hidden_of(high).cloned();
                let record = record.filter(|record| !self.has_named_clone(record.dataset, high));
                return Ok(record.map_or_else(Vec::new, |record| {
                    self.parts_of_snapshots(record.dataset, &BTreeMap::from([(high, record.root)]))
                }));
            }
            TrashKey::Dataset(id) => id,
        };
        let dataset = self.alive(id).ok_or_else(|| PoolError::NotFound(format!("dataset {id}")))?;
        let all: BTreeMap<_, _> = {
            let snapshots = self.snapshots.lock();
            snapshots.of(id).map(|one| (one.record.high, one.record.root)).collect()
        };
        let Some(inherits) = all.keys().rfind(|high| self.has_named_clone(id, **high)).copied() else {
            let mut parts = self.parts_of_snapshots(id, &all);
            parts.push(Part::Known(dataset.usage().own));
            return Ok(parts);
        };
        // All up to there goes on in a clone.
        let above = all.into_iter().filter(|(high, _)| *high > inherits).collect();
        let mut parts = self.parts_of_snapshots(id, &above);
        parts.push(Part::Above(id, inherits));
        Ok(parts)
    }

    /// Whether a clone that is not in the trash itself began as a snapshot.
    fn has_named_clone(&self, dataset: DatasetId, high: BlockId) -> bool {
        let clones: Vec<_> = self.snapshots.lock().clones((dataset, high)).collect();
        clones.into_iter().any(|clone| self.dataset(clone).is_some())
    }

    /// Whether a clone with a name needs all of it: letting go of it would bring nothing, now or with others.
    fn lives_on(&self, key: TrashKey) -> bool {
        match key {
            TrashKey::Snapshot(high) => {
                let of = self.snapshots.lock().hidden_of(high).map(|record| record.dataset);
                of.is_some_and(|of| self.has_named_clone(of, high))
            }
            TrashKey::Dataset(_) => self.parts_of(key).is_ok_and(|parts| {
                let goes_on = parts.iter().any(|part| matches!(part, Part::Above(..)));
                goes_on && parts.iter().all(|part| self.space_of_part(part).is_ok_and(|bytes| bytes == 0))
            }),
        }
    }

    fn parts_of_snapshots(&self, dataset: DatasetId, of: &BTreeMap<BlockId, Option<BlockPtr>>) -> Vec<Part> {
        let all = self.with_floors(dataset, of).into_iter();
        all.map(|(high, root, floor)| Part::Snapshot { dataset, high, root, floor }).collect()
    }

    fn space_of_part(&self, part: &Part) -> Result<u64> {
        let mut at = None;
        let mut sum = 0;
        while self.measure_part(part, &mut at, &mut sum)? {}
        Ok(sum)
    }

    /// A step of measuring a part; false when it was the last.
    fn measure_part(&self, part: &Part, at: &mut Option<AloneCursor>, sum: &mut u64) -> Result<bool> {
        let mut visit = |alone: &Alone| *sum += alone.bytes() + alone.unread;
        match *part {
            Part::Known(bytes) => {
                *sum += bytes;
                Ok(false)
            }
            Part::Snapshot { dataset, high, root, floor } => {
                let head = self.alive(dataset);
                let roots = || (root, self.after(dataset, head.as_deref(), high));
                self.alone_step(floor, &roots, at, &mut visit)
            }
            Part::Above(dataset, floor) => {
                let Some(head) = self.alive(dataset) else { return Ok(false) };
                let roots = || (head.state.read().tree.committed_root(), None);
                self.alone_step(floor, &roots, at, &mut visit)
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
        self.reopen_account(&dataset, parent.id())?;
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
        self.end_trashed(key)
    }

    fn end_trashed(&self, key: TrashKey) -> Result<()> {
        let id = match key {
            TrashKey::Snapshot(_) => return self.drop_entry(key),
            TrashKey::Dataset(id) => id,
        };
        self.mark_going(key)?;
        let visible: Vec<_> = {
            let snapshots = self.snapshots.lock();
            snapshots.visible(id).map(|one| (id, one.name.clone())).collect()
        };
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

    /// Lets go of the snapshots of a dataset that are in the trash, as it is about to be destroyed.
    pub(crate) fn let_go_of_snapshots(&self, id: DatasetId) -> Result<()> {
        let keys: Vec<_> = {
            let snapshots = self.snapshots.lock();
            let all = snapshots.of(id).map(|one| TrashKey::Snapshot(one.record.high));
            all.filter(|key| snapshots.trash.contains_key(key)).collect()
        };
        keys.into_iter().try_for_each(|key| self.drop_entry(key))
    }

    /// A dataset goes back on its line, or another tree is to follow, above a high id: lets go of its snapshots there
    /// that are in the trash, and of clones of those there that are.
    pub(crate) fn let_go_above(&self, id: DatasetId, above: BlockId) -> Result<()> {
        loop {
            let (keys, clones) = {
                let snapshots = self.snapshots.lock();
                let newer = || snapshots.after(id, above);
                let keys: Vec<_> = newer().map(|one| TrashKey::Snapshot(one.high)).collect();
                let clones: Vec<_> = newer().flat_map(|one| snapshots.clones((id, one.high))).collect();
                (keys, clones.into_iter().map(TrashKey::Dataset).collect::<Vec<_>>())
            };
            let trash: Vec<_> = {
                let snapshots = self.snapshots.lock();
                clones.into_iter().chain(keys).filter(|key| snapshots.trash.contains_key(key)).collect()
            };
            // Clones first: what they hand on may be another's.
            let Some(first) = trash.first() else { return Ok(()) };
            match self.let_go(*first) {
                Err(PoolError::NotFound(_)) => {}
                gone => gone?,
            }
        }
    }

    /// Somebody finds no room for so many bytes: lets go of what was destroyed first and brings some, if all of it
    /// together would be enough. True when there was something, or when there is room by now.
    ///
    /// # Errors
    /// When nothing can be written.
    pub(crate) fn let_go_for(&self, bytes: u64, record_size: u32) -> Result<bool> {
        if self.snapshots.lock().trash.is_empty() {
            return Ok(false);
        }
        // One that went may be enough for all who wait.
        let _one_at_a_time = self.trash.letting_go.lock();
        let available = self.shared.store.space(record_size).available;
        if available >= bytes {
            return Ok(true);
        }
        self.measure_trash(true);
        match available.saturating_add(self.trash_of_data()) >= bytes {
            true => self.let_go_oldest(),
            false => Ok(false),
        }
    }

    /// Lets go of what was destroyed first, of that which brings space; true when there was something.
    ///
    /// # Errors
    /// When nothing can be written.
    fn let_go_oldest(&self) -> Result<bool> {
        let mut all: Vec<_> = {
            let snapshots = self.snapshots.lock();
            let of = |(key, record): (&TrashKey, &TrashRecord)| (!record.going, record.destroyed, *key);
            snapshots.trash.iter().map(of).collect()
        };
        all.sort();
        for (stays, _, key) in all {
            if stays && self.lives_on(key) {
                continue;
            }
            let bytes = self.space_of_trashed(key).unwrap_or(0);
            match self.end_trashed(key) {
                Ok(()) => {
                    // Not measured anew for each that goes: the next one may be needed at once.
                    self.trash.bytes.store(self.trash_bytes().saturating_sub(bytes), Ordering::Relaxed);
                    return Ok(true);
                }
                Err(PoolError::NotFound(_)) => return Ok(true),
                // It is in use, or a tree cannot be read: another may go.
                Err(_) => self.shared.store.check_writable()?,
            }
        }
        Ok(false)
    }

    /// A step of what the trash needs now and then: lets go of what is over its time, or of the oldest where little is
    /// free, and measures what is in it. True when something was let go of.
    ///
    /// # Errors
    /// As [`Pool::let_go`], when nothing else could be.
    pub fn trash_step(&self) -> Result<bool> {
        if self.snapshots.lock().trash.is_empty() {
            self.trash.bytes.store(0, Ordering::Relaxed);
            return Ok(false);
        }
        let mut failed = None;
        for key in self.over(self.shared.store.world.clock.now()) {
            match self.let_go(key) {
                Ok(()) | Err(PoolError::NotFound(_)) => return Ok(true),
                Err(error) => failed = Some(error),
            }
        }
        if self.is_short() {
            let _one_at_a_time = self.trash.letting_go.lock();
            self.trash.gone.store(self.shared.store.durable_commit().get(), Ordering::Relaxed);
            if self.let_go_oldest()? {
                return Ok(true);
            }
        }
        self.measure_trash(false);
        failed.map_or(Ok(false), Err)
    }

    /// All that is over its time, or was marked as going.
    fn over(&self, now: Timestamp) -> Vec<TrashKey> {
        let calm = self.is_calm(now);
        let snapshots = self.snapshots.lock();
        let is_over = |record: &TrashRecord| record.going || calm && record.until <= now;
        snapshots.trash.iter().filter(|(_, record)| is_over(record)).map(|(key, _)| *key).collect()
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
            && self.trash_of_data() > 0
            && self.destroyed.lock().values().all(|dataset| dataset.is_stuck())
            && !self.has_remains()
    }

    /// Bytes in the trash that are certain to come back where data goes: all records that lie with metadata may be
    /// among them.
    pub(crate) fn trash_of_data(&self) -> u64 {
        self.trash_bytes().saturating_sub(self.shared.store.small_bytes())
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
        self.parts_in(dataset).iter().map(|part| self.space_of_part(part)).sum()
    }

    /// Parts of what the snapshots of a dataset that are in the trash hold.
    fn parts_in(&self, dataset: DatasetId) -> Vec<Part> {
        let of: BTreeMap<_, _> = {
            let snapshots = self.snapshots.lock();
            let all = snapshots.of(dataset).map(|one| &one.record);
            all.filter(|one| snapshots.is_trash(one)).map(|one| (one.high, one.root)).collect()
        };
        let of = of.into_iter().filter(|(high, _)| !self.has_named_clone(dataset, *high)).collect();
        self.parts_of_snapshots(dataset, &of)
    }

    /// The trash changed: it is measured again soon.
    fn forget_measure(&self) {
        self.trash.changed.store(true, Ordering::Release);
    }

    /// Goes on with measuring what is in the trash, when that is due, for a short while or to the end.
    fn measure_trash(&self, whole: bool) {
        let clock = &self.shared.store.world.clock;
        let began = clock.monotonic();
        let mut measured = self.trash.measured.lock();
        if measured.todo.is_none() {
            let changed = self.trash.changed.swap(false, Ordering::AcqRel);
            if !changed && measured.at.is_some_and(|last| began.saturating_sub(last) < MEASURES) {
                return;
            }
            measured.at = Some(began);
            (measured.todo, measured.sum) = (Some(self.all_parts()), 0);
        }
        while let Some(part) = measured.todo.as_ref().and_then(|todo| todo.last().copied()) {
            let Measured { cursor, sum, .. } = &mut *measured;
            // One that cannot be read, or that somebody brought back, counts as far as it came.
            if !self.measure_part(&part, cursor, sum).unwrap_or(false) {
                measured.cursor = None;
                measured.todo.as_mut().and_then(Vec::pop);
            }
            if !whole && clock.monotonic().saturating_sub(began) >= AT_ONCE {
                return;
            }
        }
        measured.todo = None;
        self.trash.bytes.store(measured.sum, Ordering::Relaxed);
    }

    fn all_parts(&self) -> Vec<Part> {
        let whole: Vec<_> = self.trashed.lock().keys().copied().collect();
        let whole = whole.into_iter().filter_map(|id| self.parts_of(TrashKey::Dataset(id)).ok()).flatten();
        let of: BTreeSet<_> = {
            let snapshots = self.snapshots.lock();
            let highs = snapshots.trash.keys().filter_map(|key| match key {
                TrashKey::Snapshot(high) => snapshots.hidden_of(*high),
                TrashKey::Dataset(_) => None,
            });
            highs.map(|record| record.dataset).collect()
        };
        let named = of.into_iter().filter(|id| self.dataset(*id).is_some());
        whole.chain(named.flat_map(|id| self.parts_in(id))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed;
    use larder_format::ByteLen;
    use larder_sim::SimWorld;

    #[test]
    fn entries_of_what_cannot_be_without_a_name_say_nothing() {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let pool = bed::pool(sim.devices(), "single");
        let make = |name| pool.create_dataset(name, BTreeMap::new()).unwrap().id();
        let (parent, child) = (make("tank/a"), make("tank/a/child"));
        let keys = [parent, child, ROOT_DATASET, DatasetId::new(99)].map(TrashKey::Dataset);
        for key in keys.into_iter().chain([TrashKey::Snapshot(BlockId::new(77))]) {
            let until = Timestamp { secs: 4_000_000_000, nanos: 0 };
            let entry = TrashRecord {
                destroyed: until,
                until,
                parent: ROOT_DATASET,
                going: false,
                name: "tank/x".into(),
            };
            pool.change_tables(&[(key.key(), Some(entry.encode()))]).unwrap();
        }
        pool.commit().unwrap();
        drop(pool);
        let pool = bed::import(sim.devices()).unwrap();
        assert_eq!(
            pool.trash().into_iter().map(|one| one.key).collect::<Vec<_>>(),
            [TrashKey::Dataset(child)]
        );
        // Its parent goes, and the pool can still be imported.
        pool.destroy_dataset(parent).unwrap();
        while pool.destroy_step(100).unwrap() {}
        pool.commit().unwrap();
        drop(pool);
        let pool = bed::import(sim.devices()).unwrap();
        pool.restore_dataset(child, "tank/b").unwrap();
    }
}
