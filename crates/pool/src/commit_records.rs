//! Commit records, as the pool knows them: those that exist, rows that they lack, and the position of slices.
//!
//! A commit record repeats in clear what the tables say of datasets and snapshots ([`larder_format::commit_record`]),
//! for the repair of a pool that has lost tables, roots or labels. The pool itself never reads one to go on.
//! [`crate::recording`] writes them.
//!
//! # When
//! A row of the recorded tables that changes is noted. A commit writes records
//! - when a change is more than the root and the figures of a dataset, or a note of the pool's own: so names, snapshots
//!   and properties are told with the commit that has them;
//! - when a dataset went back to a snapshot, and at export;
//! - after [`RECORD_EVERY`] commits that changed roots and figures.
//!
//! A commit that changes no row writes none.
//!
//! # Turns
//! A record has the rows that changed, and a slice of all others, in the order of keys ([`Slices`]). A turn is done
//! when slices have gone through all rows. Records from before it are not needed then: their blocks are dropped with
//! the next records, when those that say so are durable. The last two commits' records always stay. In a pool with few
//! rows each slice has all of them, so that each record is a turn.
//!
//! # Crashes
//! The table of records is as the commit has it. It has the position of slices too, so turns end, however short imports
//! are. Noted changes are forgotten: figures, notes of the pool's own, and changes that found no room in a record. The
//! first commit of an import that changes a row writes records, and slices bring the rest.
//!
//! # Room
//! Records are optional. Without room above the reserve that commits and removals live on, or with rows that cannot be
//! read now, the next commit tries again.
//!
//! The lock is taken last, and alone.

use larder_format::commit_record::{CommitRecordEntry, Slices};
use larder_format::node::Key;
use larder_format::tables::{DatasetRecord, Table};
use larder_format::{BlockId, BlockPtr, CommitId};
use std::collections::{BTreeMap, BTreeSet};

/// So many commits that change nothing but roots and figures of datasets go by without a record: with one each five
/// seconds, some twenty minutes. What so many commits write at least (roots on all devices, the nodes on the way to a
/// leaf, a run, tables) comes to 7 MiB a device; a record then to [`SLICE_LEAST`] and what changed, which lz4 halves: a
/// thousandth of a pool that is all but idle, and less the more is written.
pub(crate) const RECORD_EVERY: u32 = 256;
/// Bytes of rows that a commit tells which tells some at once, about, unless more have changed.
const ROWS: usize = 64 << 10;
/// Those of rows that have not changed, in any case: so that turns are done.
const SLICE_LEAST: usize = 16 << 10;
/// Records that one commit drops, at most: the gate is closed.
const DROPPED: usize = 256;

/// Contents of a commit's records.
pub(crate) struct ToTell {
    /// Rows that changed.
    pub(crate) changed: BTreeSet<Key>,
    /// Position of the slice.
    pub(crate) slices: Slices,
    /// Bytes of rows, about.
    rows: usize,
}

impl ToTell {
    /// Bytes of rows that a slice may have, where those that changed take so many.
    pub(crate) fn slice(&self, changed: usize) -> usize {
        self.rows.saturating_sub(changed).max(SLICE_LEAST)
    }
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Records {
    /// Those that are not free, as the table has them.
    alive: BTreeMap<BlockId, CommitRecordEntry>,
    /// Those of them that cannot be read.
    lost: BTreeSet<BlockId>,
    /// Rows that changed since the last ones.
    changed: BTreeSet<Key>,
    /// The next commit that changes a row is to write some.
    is_due: bool,
    /// The commit that comes changes a dataset's row.
    is_counted: bool,
    /// Commits since the last ones that did.
    commits: u32,
    slices: Slices,
}

impl Records {
    /// As the tables have them.
    pub(crate) fn open(entries: Vec<CommitRecordEntry>) -> Self {
        let newest = entries.iter().max_by_key(|one| one.commit);
        let slices = newest.map_or_else(Slices::default, |newest| newest.slices);
        let alive = entries.into_iter().map(|one| (one.ptr.id, one)).collect();
        Self { alive, is_due: true, slices, ..Self::default() }
    }

    /// Those that are not free, oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &CommitRecordEntry> {
        self.alive.values()
    }

    /// Rows that changed since the last ones.
    pub(crate) fn noted(&self) -> &BTreeSet<Key> {
        &self.changed
    }

    /// A row changed; whether that is to be told at once.
    pub(crate) fn note(&mut self, key: Key, at_once: bool) {
        self.changed.insert(key);
        self.is_due |= at_once;
    }

    /// The next commit is to write some, be it for figures alone.
    pub(crate) fn want(&mut self) {
        self.is_due = true;
    }

    /// A dataset's row has another value in the tables than it had.
    pub(crate) fn note_dataset(&mut self, before: Option<&[u8]>, record: &DatasetRecord) {
        let before = before.map(DatasetRecord::decode);
        if before.as_ref().is_some_and(|before| before.as_ref() == Ok(record)) {
            return;
        }
        self.is_counted = true;
        let is_alike = before.is_some_and(|before| before.is_ok_and(|before| has_figures_of(before, record)));
        self.note(Table::dataset_key(record.id), !is_alike);
    }

    /// Whether this commit is to write records, which is the last one or not.
    pub(crate) fn take_due(&mut self, is_last: bool) -> bool {
        self.commits += u32::from(std::mem::take(&mut self.is_counted));
        (self.is_due || is_last || self.commits >= RECORD_EVERY) && !self.changed.is_empty()
    }

    /// Contents of the next commit's records, if it may have to write some, as far as they are known.
    pub(crate) fn to_come(&self, at_once: bool) -> Option<ToTell> {
        let may_be = self.is_due || at_once || self.commits + 1 >= RECORD_EVERY;
        may_be.then(|| self.to_tell(self.changed.clone(), at_once))
    }

    /// Contents of this commit's records.
    pub(crate) fn begin(&mut self, at_once: bool) -> ToTell {
        let changed = std::mem::take(&mut self.changed);
        self.to_tell(changed, at_once)
    }

    fn to_tell(&self, changed: BTreeSet<Key>, at_once: bool) -> ToTell {
        ToTell { changed, slices: self.slices, rows: if self.is_due || at_once { ROWS } else { 0 } }
    }

    /// They could not be told.
    pub(crate) fn put_back(&mut self, mut changed: BTreeSet<Key>) {
        self.changed.append(&mut changed);
    }

    /// They were, in these records, and slices have come so far.
    pub(crate) fn told(&mut self, entries: Vec<CommitRecordEntry>, slices: Slices) {
        self.alive.extend(entries.into_iter().map(|one| (one.ptr.id, one)));
        (self.is_due, self.commits, self.slices) = (false, 0, slices);
    }

    /// Some of those that are not needed any more, as commits up to this one say.
    pub(crate) fn outlived(&self, durable: CommitId) -> Vec<BlockPtr> {
        let mut newest = self.alive.values().rev().filter(|one| one.commit <= durable);
        let Some(last) = newest.next() else { return Vec::new() };
        let Some(before) = newest.find(|one| one.commit < last.commit) else { return Vec::new() };
        let needed = last.slices.turn.min(before.commit);
        let outlived = self.alive.values().filter(|one| one.commit < needed);
        outlived.take(DROPPED).map(|one| one.ptr).collect()
    }

    /// One was dropped.
    pub(crate) fn forget(&mut self, id: BlockId) {
        self.alive.remove(&id);
        self.lost.remove(&id);
    }

    /// One cannot be read: the next ones begin a turn, which does without it, unless the one under way does. False if
    /// it is gone, or that is known.
    pub(crate) fn lose(&mut self, id: BlockId) -> bool {
        let Some(commit) = self.alive.get(&id).map(|one| one.commit).filter(|_| self.lost.insert(id)) else {
            return false;
        };
        self.is_due = true;
        self.slices.next = self.slices.next.filter(|(_, began)| commit < *began);
        true
    }
}

/// Whether a dataset differs at most in its tree, and in what that comes to.
fn has_figures_of(before: DatasetRecord, now: &DatasetRecord) -> bool {
    let with_figures = DatasetRecord {
        root: now.root,
        referenced: now.referenced,
        logical: now.logical,
        stored: now.stored,
        next_inode: now.next_inode,
        held: now.held,
        inherited: now.inherited,
        ..before
    };
    with_figures == *now
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::{DatasetId, Place, SegmentId};

    fn entry(id: u64, commit: u64, turn: u64) -> CommitRecordEntry {
        let place = Place { segment: SegmentId::new(1), column: 0, offset: 4096, stored: 200 };
        let ptr = BlockPtr { id: BlockId::new(id), place };
        let slices = Slices { next: None, turn: CommitId::new(turn) };
        CommitRecordEntry { ptr, commit: CommitId::new(commit), slices }
    }

    fn outlived(records: &Records, durable: u64) -> Vec<u64> {
        records.outlived(CommitId::new(durable)).into_iter().map(|ptr| ptr.id.get()).collect()
    }

    #[test]
    fn records_stay_until_a_durable_one_does_without_them_and_the_last_two_commits_stay() {
        // Each is a turn; commit 7 wrote two.
        let mut records = Records::open(vec![entry(1, 5, 5), entry(2, 7, 7), entry(3, 7, 7)]);
        assert_eq!(outlived(&records, 7), [0; 0], "the last two");
        records.told(vec![entry(4, 9, 9)], Slices::default());
        assert_eq!(outlived(&records, 8), [0; 0], "nobody knows of commit 9 yet");
        assert_eq!(outlived(&records, 9), [1]);
        records.forget(BlockId::new(1));
        assert_eq!(outlived(&records, 9), [0; 0]);
        // Turns of several.
        let all = vec![entry(1, 3, 0), entry(2, 4, 0), entry(3, 6, 4), entry(4, 8, 4), entry(5, 9, 4)];
        assert_eq!(outlived(&Records::open(all), 9), [1]);
    }

    #[test]
    fn a_record_that_is_lost_has_a_turn_begun_once() {
        let mut records = Records::open(vec![entry(1, 5, 5)]);
        let slices = Slices { next: Some((Key::MAX, CommitId::new(5))), turn: CommitId::new(5) };
        records.told(Vec::new(), slices);
        assert!(!records.take_due(false) && !records.lose(BlockId::new(2)) && records.slices == slices);
        assert!(records.lose(BlockId::new(1)) && !records.take_due(false), "no row has changed");
        records.note(Key::MIN, false);
        assert!(records.take_due(false));
        assert_eq!(records.slices, Slices { next: None, ..slices });
        assert!(!records.lose(BlockId::new(1)));
    }

    #[test]
    fn roots_and_figures_of_datasets_are_told_now_and_then_and_all_else_at_once() {
        let place = Place { segment: SegmentId::new(1), column: 0, offset: 4096, stored: 200 };
        let record = DatasetRecord {
            id: DatasetId::new(2),
            parent: DatasetId::new(1),
            guid: 3,
            root: None,
            destroyed: false,
            protected_below: BlockId::new(0),
            referenced: 0,
            logical: 0,
            stored: 0,
            next_inode: 2,
            created: larder_format::Timestamp::default(),
            birth: 1,
            held: 0,
            origin: None,
            inherited: 0,
            name_salt: [0; 16],
            name: "a".into(),
        };
        let root = Some(BlockPtr { id: BlockId::new(9), place });
        let written = DatasetRecord { root, referenced: 8, next_inode: 3, ..record.clone() };
        let renamed = DatasetRecord { name: "b".into(), ..written.clone() };
        let mut records = Records::default();
        let mut due = |before: Option<&DatasetRecord>, now: &DatasetRecord| {
            records.note_dataset(before.map(DatasetRecord::encode).as_deref(), now);
            let due = records.take_due(false);
            if due {
                records.begin(false);
                records.told(Vec::new(), Slices::default());
            }
            due
        };
        assert!(due(None, &record));
        assert!(!due(Some(&record), &record) && !due(Some(&record), &written));
        assert!(due(Some(&written), &renamed));
        let commits = (1..).take_while(|_| !due(Some(&record), &written)).count();
        assert_eq!(commits as u32 + 1, RECORD_EVERY);
        records.note_dataset(Some(&record.encode()), &record);
        assert!(!records.take_due(true), "nothing has changed since");
        records.note_dataset(Some(&record.encode()), &written);
        assert!(!records.take_due(false) && records.take_due(true));
    }
}
