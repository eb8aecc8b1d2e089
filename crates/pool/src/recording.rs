//! Writing commit records, a part of commits: see [`crate::commit_records`].

use crate::commit::root_groups;
use crate::commit_records::ToTell;
use crate::dataset::ROOT_DATASET;
use crate::pool::Pool;
use larder_format::block::{BlockInfo, BlockKind};
use larder_format::commit_record::{CommitRecord, CommitRecordEntry, RECORDED, Row, Slices, is_recorded};
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr, CommitId, Corrupt, DatasetId, Reason};
use larder_sorted::tree::Tree;
use larder_store::codec::Codec;
use larder_store::space::GroupSpace;
use larder_store::{Appender, Class, Event, PoolError, Result, TableNodes, Watermark, own_info};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Rows that were read, and the position of slices behind them.
struct Gathered {
    rows: Vec<Row>,
    slices: Slices,
}

impl Pool {
    /// The commit records that are not free, oldest first.
    pub fn commit_records(&self) -> Vec<CommitRecordEntry> {
        self.records.lock().entries().copied().collect()
    }

    /// Reads a commit record.
    ///
    /// # Errors
    /// When it cannot be read, or is another one.
    pub fn read_commit_record(&self, entry: &CommitRecordEntry) -> Result<CommitRecord> {
        let (header, plain) = self.shared.store.read_plain(entry.ptr, BlockKind::CommitRecord)?;
        let record = CommitRecord::check(&plain)?;
        let is_it = (record.pool, record.commit, record.turn)
            == (self.shared.store.guid(), entry.commit, entry.slices.turn)
            && (header.info.dataset, header.info.object) == (DatasetId::new(0), entry.commit.get());
        if is_it { Ok(record) } else { Err(Corrupt::new("commit record", Reason::Identity).into()) }
    }

    /// Reads a commit record, and tells if it is lost: the next ones do without it.
    pub fn look_at_commit_record(&self, entry: &CommitRecordEntry) {
        let Err(error) = self.read_commit_record(entry) else { return };
        // Nothing is lost for a device that does not answer now.
        let is_lost = error.is_loss() && self.shared.store.silence().is_none();
        if is_lost && self.records.lock().lose(entry.ptr.id) {
            let text = format!("a commit record is lost, and the next ones do without it: {error}");
            self.shared.store.event(Event::new(Class::Data).text(text));
        }
    }

    /// All rows of the tables that commit records have, and which of them changed since the last ones: for tests, which
    /// know what must be told.
    ///
    /// # Errors
    /// When the tables cannot be read.
    #[doc(hidden)]
    pub fn recorded_rows(&self) -> Result<(Vec<Row>, BTreeSet<Key>)> {
        let _commits_wait = self.commit_turn();
        let (tables, nodes, mut rows) = (self.tables.lock(), TableNodes(&self.shared.store), Vec::new());
        slice_of(&tables, &nodes, (Key::MIN, None, usize::MAX), &BTreeSet::new(), &mut rows)?;
        Ok((rows, self.records.lock().noted().clone()))
    }

    /// A row of the tables has changed, if it has: one that commit records have is told at once.
    pub(crate) fn note_row(&self, key: &Key, before: Option<&[u8]>, now: Option<&[u8]>) {
        if before != now && is_recorded(key) {
            self.records.lock().note(*key, true);
        }
    }

    /// Brings what the next commit tells into memory, as far as that is known.
    pub(crate) fn look_ahead_in_rows(&self, is_last: bool) {
        let takes_snapshots = !self.snapshots.lock().due.is_empty();
        let to_come = self.records.lock().to_come(is_last || takes_snapshots);
        let Some(to_come) = to_come.filter(|_| self.has_room_for_records()) else { return };
        let outlived = self.records.lock().outlived(self.shared.store.durable_commit());
        let nodes = TableNodes(&self.shared.store);
        // The table of records is the last, and those that come are the last in it.
        let gone = outlived.iter().map(|ptr| ptr.id).chain([BlockId::new(u64::MAX)]);
        let mut leaves = Vec::new();
        {
            let (tables, gone) = (self.tables.lock(), gone.map(CommitRecordEntry::key));
            let changed = to_come.changed.iter().copied();
            leaves.extend(tables.leaves_of(&nodes, changed, false).unwrap_or_default());
            leaves.extend(tables.leaves_of(&nodes, gone, true).unwrap_or_default());
        }
        nodes.bring(&leaves);
        // The commit reads again if this fails.
        drop(self.gather(&to_come, self.shared.store.open_commit()));
    }

    /// Part of a commit, when the tables have all rows of it: drops records that nobody needs any more, and writes new
    /// ones if it is time. Before what was dropped dies. Nobody is inside.
    pub(crate) fn seal_records(&self, is_last: bool) -> Result<()> {
        if !self.records.lock().take_due(is_last) {
            return Ok(());
        }
        self.drop_outlived_records();
        let to_tell = self.records.lock().begin(is_last);
        let told = self.tell(&to_tell);
        if told.is_err() {
            self.records.lock().put_back(to_tell.changed);
        }
        match told {
            Err(PoolError::NoSpace | PoolError::Unreadable { .. } | PoolError::Corrupt(_)) => Ok(()),
            told => told,
        }
    }

    /// Whether more is free than what commits and removals live on. What the segment that nodes go to has is theirs.
    fn has_room_for_records(&self) -> bool {
        let has_room = |group: &GroupSpace| group.free_above(Watermark::Accept).segments > 0;
        self.shared.store.core.lock().record_groups().any(has_room)
    }

    fn drop_outlived_records(&self) {
        let outlived = self.records.lock().outlived(self.shared.store.durable_commit());
        let mut dropped = Vec::new();
        for ptr in outlived {
            let key = CommitRecordEntry::key(ptr.id);
            // Where the table cannot be read it stays.
            if self.tables.lock().remove(&TableNodes(&self.shared.store), &key).is_err() {
                break;
            }
            self.records.lock().forget(ptr.id);
            dropped.push(ptr);
        }
        self.shared.freeing.drop_nodes(dropped);
    }

    /// Writes records of these rows and a slice of the others: all of them, or none.
    fn tell(&self, to_tell: &ToTell) -> Result<()> {
        if !self.has_room_for_records() {
            return Err(PoolError::NoSpace);
        }
        let commit = self.shared.store.open_commit();
        let Gathered { rows, slices } = self.gather(to_tell, commit)?;
        let Some(blank) = self.blank_record(commit, slices.turn) else { return Err(PoolError::NoSpace) };
        let room = blank.room(self.shared.store.max_record() as usize);
        let mut parts: Vec<Vec<Row>> = vec![Vec::new()];
        let mut taken = 0;
        for row in rows {
            taken += row.encoded_len();
            if taken > room {
                taken = row.encoded_len();
                parts.push(Vec::new());
            }
            parts.last_mut().expect("the first is there").push(row);
        }
        let Ok(count) = u16::try_from(parts.len()) else { return Err(PoolError::NoSpace) };
        let records = (0..).zip(parts).map(|(part, rows)| {
            let bytes = CommitRecord { part, parts: count, rows, ..blank.clone() }.encode();
            debug_assert!(CommitRecord::check(&bytes).is_ok(), "what is written can be read");
            bytes
        });
        let stored = self.store_records_of_commit(commit, records)?;
        let entry = |ptr: &BlockPtr| CommitRecordEntry { ptr: *ptr, commit, slices };
        let entries: Vec<_> = stored.iter().map(entry).collect();
        if let Err(error) = self.enter_records(&entries) {
            self.shared.freeing.drop_nodes(stored);
            return Err(error);
        }
        self.records.lock().told(entries, slices);
        Ok(())
    }

    /// Stores payloads of records, or none of them: each at as many places as nodes of the root dataset.
    fn store_records_of_commit(
        &self,
        commit: CommitId,
        mut records: impl Iterator<Item = Vec<u8>>,
    ) -> Result<Vec<BlockPtr>> {
        let info = BlockInfo { object: commit.get(), ..own_info(BlockKind::CommitRecord, DatasetId::new(0)) };
        let copies = self.dataset(ROOT_DATASET).map_or(1, |root| root.settings().copies);
        let appender = |copy| Appender::of_further_nodes(&self.shared.store, copy);
        let (mut blocks, mut stored) = (appender(0), Vec::new());
        let mut further: Vec<_> = (1..copies).map(appender).collect();
        let all = records.try_for_each(|record| {
            let ptr = blocks.store_copies(info, Codec::Lz4, &record, &mut further)?;
            stored.push(ptr);
            Ok(())
        });
        // With a segment's first stripe go its descriptors.
        let submitted = blocks.submit();
        let submitted = further.iter_mut().map(Appender::submit).fold(submitted, Result::and);
        match all.and(submitted) {
            Ok(()) => Ok(stored),
            Err(error) => {
                self.shared.freeing.drop_nodes(stored);
                Err(error)
            }
        }
    }

    /// Puts records into their table, or none of them.
    fn enter_records(&self, entries: &[CommitRecordEntry]) -> Result<()> {
        let (mut tables, nodes) = (self.tables.lock(), TableNodes(&self.shared.store));
        for (at, entry) in entries.iter().enumerate() {
            let key = CommitRecordEntry::key(entry.ptr.id);
            if let Err(error) = tables.insert(&nodes, key, &entry.encode()) {
                let back = entries[..at].iter().map(|one| CommitRecordEntry::key(one.ptr.id));
                // Their leaves were just changed, and are in memory.
                back.for_each(|key| drop(tables.remove(&nodes, &key)));
                return Err(error);
            }
        }
        Ok(())
    }

    /// A record without rows; none when no device has a label, so that nothing can be written.
    fn blank_record(&self, commit: CommitId, turn: CommitId) -> Option<CommitRecord> {
        let store = &self.shared.store;
        let mut online = store.members.iter().filter(|member| member.is_online());
        let label = online.find_map(|member| member.label())?;
        let (devices, next_device) = store.members.to_root(commit, self.incarnation());
        let history = store.history.lock().clone();
        let time = store.world.clock.now();
        let core = store.core.lock();
        Some(CommitRecord {
            pool: store.guid(),
            identity: core.identity,
            commit,
            incarnation: core.incarnation,
            time,
            part: 0,
            parts: 1,
            turn,
            features: core.features,
            next_device,
            next_group: core.groups.next(),
            traced: core.traced,
            label,
            groups: root_groups(&core),
            devices,
            history,
            rows: Vec::new(),
        })
    }

    /// The rows that changed, those that are gone among them, and a slice of the others.
    fn gather(&self, to_tell: &ToTell, commit: CommitId) -> Result<Gathered> {
        let (changed, mut slices) = (&to_tell.changed, to_tell.slices);
        let (tables, nodes) = (self.tables.lock(), TableNodes(&self.shared.store));
        let row = |key: &Key| Ok(Row { key: *key, value: tables.get(&nodes, key)? });
        let mut rows = changed.iter().map(row).collect::<Result<Vec<_>>>()?;
        let taken: usize = rows.iter().map(Row::encoded_len).sum();
        let mut room = to_tell.slice(taken);
        let mut slice = |from: Key, until: Option<Key>| {
            let (stopped, left) = slice_of(&tables, &nodes, (from, until, room), changed, &mut rows)?;
            room = left;
            Ok::<_, PoolError>(stopped)
        };
        let (from, began) = slices.next.unwrap_or((Key::MIN, commit));
        slices.next = slice(from, None)?.map(|next| (next, began));
        if slices.next.is_none() {
            slices.turn = began;
            // Another turn begins with the same record, and is done if that has the rest too.
            if from > Key::MIN {
                slices.next = slice(Key::MIN, Some(from))?.map(|next| (next, commit));
            }
            if slices.next.is_none() {
                slices.turn = commit;
            }
        }
        Ok(Gathered { rows, slices })
    }
}

/// Rows of the recorded tables from a key on, up to another, without those that `told` has, as far as there is room.
/// Gives the first that found none, and the room that is left.
fn slice_of(
    tables: &Tree,
    nodes: &TableNodes<'_>,
    (from, until, mut room): (Key, Option<Key>, usize),
    told: &BTreeSet<Key>,
    rows: &mut Vec<Row>,
) -> Result<(Option<Key>, usize)> {
    let mut stopped = None;
    for table in RECORDED {
        let (first, last) = table.keys().into_inner();
        let is_beyond = |key: &Key| until.is_some_and(|until| *key >= until);
        if last < from || is_beyond(&first) {
            continue;
        }
        tables.scan(nodes, first.max(from)..=last, |key, value| {
            if is_beyond(key) {
                return ControlFlow::Break(());
            }
            if !told.contains(key) {
                let row = Row { key: *key, value: Some(value.to_vec()) };
                let Some(left) = room.checked_sub(row.encoded_len()) else {
                    stopped = Some(*key);
                    return ControlFlow::Break(());
                };
                room = left;
                rows.push(row);
            }
            ControlFlow::Continue(())
        })?;
        if stopped.is_some() {
            break;
        }
    }
    Ok((stopped, room))
}
