//! Measuring snapshots and clones: space that only they have, or that they have in common.
//!
//! Each figure is a walk of one tree beside another, at a cost that depends on their differences: [`crate::remains`].
//! Committed trees do not change, so what two of them gave is kept in memory: snapshots are measured once, and of many
//! only the newest again, which is compared with the head.

use crate::pool::Pool;
use crate::remains::Alone;
use crate::snapshots::Snapshot;
use crate::trashed::AloneCursor;
use larder_format::node::Key;
use larder_format::tables::SnapshotRecord;
use larder_format::{BlockId, BlockPtr, DatasetId, InodeId};
use larder_sorted::tree::Remains as Walk;
use larder_store::{PoolError, Result};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Times that a measure looks for a head anew, some nodes of which are gone with later commits.
const TRIES: u32 = 100;

/// Files that are tallied at once: some 10 MiB.
const TALLIED: usize = 1 << 17;

/// Results that are kept: some 4 MiB.
const MEASURED_AT_MOST: usize = 1 << 16;

/// Roots of snapshots, by their high ids.
type Roots = BTreeMap<BlockId, Option<BlockPtr>>;

/// A file of which snapshots hold something that nothing else does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldFile {
    /// Its number.
    pub inode: InodeId,
    /// Bytes of its records.
    pub bytes: u64,
    /// High id of the newest of the snapshots that hold some of it.
    pub newest: BlockId,
}

/// Sums by files. Of very many the small ones are forgotten.
#[derive(Default)]
struct Tally(HashMap<u64, (u64, BlockId)>);

impl Tally {
    /// A snapshot holds these blocks; older snapshots come before newer ones.
    fn add(&mut self, high: BlockId, alone: &Alone) {
        for (owner, charged) in &alone.charges {
            let (bytes, newest) = self.0.entry(*owner).or_default();
            *bytes += charged;
            *newest = high;
        }
        if self.0.len() > TALLIED {
            let mut all: Vec<_> = self.0.drain().collect();
            all.select_nth_unstable_by_key(TALLIED / 2, |(_, (bytes, _))| Reverse(*bytes));
            all.truncate(TALLIED / 2);
            self.0.extend(all);
        }
    }

    fn largest(self, most: usize) -> Vec<HeldFile> {
        let file = |(owner, (bytes, newest))| HeldFile { inode: InodeId::new(owner), bytes, newest };
        let mut all: Vec<_> = self.0.into_iter().map(file).collect();
        all.sort_by_key(|one| (Reverse(one.bytes), one.inode));
        all.truncate(most);
        all
    }
}

impl Pool {
    /// Bytes that destroying these snapshots of a dataset frees; shared blocks are counted, though GC decides of them.
    /// Nothing comes back that clones hold. Reads the differences between them and their neighbours.
    ///
    /// # Errors
    /// When there is no such snapshot, or a tree cannot be read.
    pub fn snapshot_space(&self, dataset: DatasetId, names: &[String]) -> Result<u64> {
        self.snapshot_space_without(dataset, names, &BTreeSet::new())
    }

    /// As [`Pool::snapshot_space`], once these clones are gone.
    ///
    /// # Errors
    /// As [`Pool::snapshot_space`].
    pub fn snapshot_space_without(
        &self,
        dataset: DatasetId,
        names: &[String],
        without: &BTreeSet<DatasetId>,
    ) -> Result<u64> {
        self.held_by(dataset, &self.named_roots(dataset, names, without)?)
    }

    /// The files with most bytes that only these snapshots of a dataset refer to, `most` at most, the largest first.
    /// Things that several of the snapshots have in common count once.
    ///
    /// # Errors
    /// As [`Pool::snapshot_space`].
    pub fn held_files(&self, dataset: DatasetId, names: &[String], most: usize) -> Result<Vec<HeldFile>> {
        let of = self.named_roots(dataset, names, &BTreeSet::new())?;
        let mut tally = Tally::default();
        let head = self.alive(dataset);
        for (high, root, floor) in self.with_floors(dataset, &of) {
            let roots = || (root, self.after(dataset, head.as_deref(), high));
            self.alone_each(floor, roots, &mut |alone| tally.add(high, alone))?;
        }
        Ok(tally.largest(most))
    }

    /// Roots of these snapshots, without those that clones hold.
    fn named_roots(
        &self,
        dataset: DatasetId,
        names: &[String],
        without: &BTreeSet<DatasetId>,
    ) -> Result<Roots> {
        let snapshots = self.snapshots.lock();
        let named = names.iter().map(|name| snapshots.named(dataset, name).map(|one| &one.record));
        let named = named.collect::<Result<Vec<_>>>()?;
        let stays = |one: &&SnapshotRecord| {
            snapshots.clones((one.dataset, one.high)).any(|clone| !without.contains(&clone))
        };
        let going = named.into_iter().filter(|one| !stays(one));
        Ok(going.map(|one| (one.high, one.root)).collect())
    }

    /// Bytes that only a snapshot of a dataset refers to, or its clones.
    ///
    /// # Errors
    /// As [`Pool::snapshot_space`].
    pub fn space_of_snapshot(&self, record: &SnapshotRecord) -> Result<u64> {
        self.held_by(record.dataset, &BTreeMap::from([(record.high, record.root)]))
    }

    /// Bytes that only the snapshots of a dataset refer to, and their clones; hidden ones are counted.
    ///
    /// # Errors
    /// When a tree cannot be read.
    pub fn space_of_snapshots(&self, dataset: DatasetId) -> Result<u64> {
        let all = self.lineage(dataset).taken;
        self.held_by(dataset, &all.iter().map(|one| (one.high, one.root)).collect())
    }

    fn held_by(&self, dataset: DatasetId, of: &Roots) -> Result<u64> {
        let going = self.with_floors(dataset, of);
        let head = self.alive(dataset);
        let of = |(high, root, floor)| {
            self.alone_bytes(floor, || (root, self.after(dataset, head.as_deref(), high)))
        };
        going.into_iter().map(of).sum()
    }

    /// Snapshots, oldest first, each with the id above which its blocks go with it.
    pub(crate) fn with_floors(
        &self,
        dataset: DatasetId,
        of: &Roots,
    ) -> Vec<(BlockId, Option<BlockPtr>, BlockId)> {
        let snapshots = self.snapshots.lock();
        let mut floor = BlockId::new(0);
        let with_floor = of.iter().map(|(high, root)| {
            // Blocks of several in a row go with the last of them.
            match snapshots.before(dataset, *high).map(|before| before.high) {
                Some(before) if of.contains_key(&before) => {}
                _ => floor = snapshots.floor(dataset, *high),
            }
            (*high, *root, floor)
        });
        with_floor.collect()
    }

    /// Bytes that destroying a snapshot of a dataset frees once all older ones are gone that no clone needs.
    ///
    /// # Errors
    /// As [`Pool::snapshot_space`].
    pub fn space_beyond_older(&self, dataset: DatasetId, name: &str) -> Result<u64> {
        let (high, root, floor) = {
            let snapshots = self.snapshots.lock();
            let record = &snapshots.named(dataset, name)?.record;
            // Older ones that clones need stay.
            let stays = |one: &&Snapshot| one.record.hidden || snapshots.is_cloned(&one.record);
            let mut older = snapshots.of(dataset).filter(|one| one.record.high < record.high).rev();
            let floor = older.find(stays).map(|one| one.record.high);
            let floor = floor.unwrap_or_else(|| snapshots.floor(dataset, BlockId::new(0)));
            if snapshots.is_cloned(record) {
                return Ok(0);
            }
            (record.high, record.root, floor)
        };
        let head = self.alive(dataset);
        self.alone_bytes(floor, || (root, self.after(dataset, head.as_deref(), high)))
    }

    /// Bytes that a snapshot of a dataset, or without one its head as it is committed, refers to and an earlier
    /// snapshot does not, or without one that before it; without any, all that it refers to.
    ///
    /// # Errors
    /// When there is no such snapshot, or a tree cannot be read.
    pub fn written(&self, dataset: DatasetId, of: Option<&str>, since: Option<&str>) -> Result<u64> {
        let head = self.dataset(dataset).ok_or_else(|| PoolError::NotFound(format!("dataset {dataset}")))?;
        let (of, of_whole, since) = {
            let snapshots = self.snapshots.lock();
            let of = of.map(|name| snapshots.named(dataset, name).map(|one| &one.record)).transpose()?;
            let high = of.map_or(BlockId::new(u64::MAX), |of| of.high);
            let before = snapshots.visible_before(dataset, high).or_else(|| snapshots.origin(dataset));
            let since =
                since.map(|name| snapshots.named(dataset, name).map(|one| &one.record)).transpose()?;
            let since = since.or(before).map(|since| (since.high, since.root));
            (of.map(|of| of.root), of.map(|of| of.referenced), since)
        };
        let Some((floor, before)) = since else {
            return Ok(of_whole.unwrap_or_else(|| head.usage().referenced));
        };
        match of {
            Some(root) => self.alone_bytes(floor, || (root, before)),
            None => self.alone_bytes(floor, || (head.state.read().tree.committed_root(), before)),
        }
    }

    /// Footprints of the blocks above `floor` of a tree that another does not have; both as they are at each step.
    /// Commits go on meanwhile: what a committed head has is there until the next ones, and is looked for anew.
    fn alone_bytes(
        &self,
        floor: BlockId,
        roots: impl Fn() -> (Option<BlockPtr>, Option<BlockPtr>),
    ) -> Result<u64> {
        let id = |root: Option<BlockPtr>| root.map_or(BlockId::new(0), |root| root.id);
        let first = roots();
        let key = (id(first.0), id(first.1), floor);
        if let Some(known) = self.measured.lock().get(&key) {
            return Ok(*known);
        }
        let mut sum = 0;
        let is_sure = self.alone_each(floor, roots, &mut |alone| sum += alone.bytes() + alone.unread)?;
        if is_sure {
            let mut measured = self.measured.lock();
            if measured.len() >= MEASURED_AT_MOST {
                measured.clear();
            }
            measured.insert(key, sum);
        }
        Ok(sum)
    }

    /// Shows those blocks, step by step. True when all could be read, and neither tree changed meanwhile.
    fn alone_each(
        &self,
        floor: BlockId,
        roots: impl Fn() -> (Option<BlockPtr>, Option<BlockPtr>),
        visit: &mut dyn FnMut(&Alone),
    ) -> Result<bool> {
        let mut at = None;
        while self.alone_step(floor, &roots, &mut at, visit)? {}
        Ok(at.is_some_and(|at| at.is_sure))
    }

    /// Shows some of them; `at` is nothing at the beginning. False when these were the last.
    pub(crate) fn alone_step(
        &self,
        floor: BlockId,
        roots: &dyn Fn() -> (Option<BlockPtr>, Option<BlockPtr>),
        at: &mut Option<AloneCursor>,
        visit: &mut dyn FnMut(&Alone),
    ) -> Result<bool> {
        let (root, other) = roots();
        let at = at.get_or_insert_with(|| AloneCursor {
            first: (root, other),
            from: Key::MIN,
            tries: 0,
            is_sure: true,
        });
        let (mut alone, mut walk) = (Alone::default(), Walk::new(root, other, floor, at.from));
        let found = self.find_alone(&mut walk, floor, &mut alone);
        let is_old = at.tries < TRIES && roots() != (root, other);
        if is_old && (alone.unread > 0 || found.as_ref().is_err_and(PoolError::is_loss)) {
            at.tries += 1;
            return Ok(true);
        }
        at.is_sure &= alone.unread == 0 && (root, other) == at.first;
        visit(&alone);
        let more = found?;
        at.from = walk.cursor();
        Ok(more)
    }

    /// Of what a committed tree refers to, bytes of blocks up to this id; what is lost counts as such.
    pub(crate) fn inherited(&self, root: Option<BlockPtr>, referenced: u64, high: BlockId) -> Result<u64> {
        if high == BlockId::new(0) {
            return Ok(0);
        }
        let (mut own, mut from) = (0, Key::MIN);
        loop {
            let (mut alone, mut walk) = (Alone::default(), Walk::new(root, None, high, from));
            let more = self.find_alone(&mut walk, high, &mut alone)?;
            own += alone.records_bytes();
            if !more {
                return Ok(referenced.saturating_sub(own));
            }
            from = walk.cursor();
        }
    }
}
