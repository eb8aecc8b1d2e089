//! Mending: every column of a segment brought in order, from what the others prove.
//!
//! A row that a durable commit holds is final: each of its columns has one right content, and the header of any of
//! them tells the sums of all. So mending is reading columns, holding them against their sums, and writing those that
//! are wrong, or that a device lacks, at their own place: copied from a twin, else computed by parity, and in any case
//! proven by their sum before they are written. What was wrong is read once more afterwards. Nothing moves: a healed
//! block that moved would leave its row's neighbours one loss poorer.
//!
//! The same [`Mend`] serves reads that met something wrong ([`crate::heal`]), the scrub ([`crate::scrub`]) and
//! members that are being rebuilt ([`crate::resilver`]); they differ in what they read and want ([`Targets`]).
//!
//! # Flow
//! Columns are read in large chunks, several of each on their way at any time ([`Ahead`]). Rows are taken out of them
//! in batches; sums and parity of a batch run on the workers; writes are submitted and settled behind. What goes
//! wrong is done by itself: columns of the row that nobody asked for are read as well, and what no whole column gives
//! is put together block by block ([`row::Row::salvage`]); what is left even so is kept as it is ([`remains`]). Where
//! no header of a row is left, the next one is looked for, and what lies between is rebuilt ([`headless`]), or told
//! as lost, as far as no block in it is sound. When all reads of a segment were sent, those of the next are: its
//! driver [`Mend::start`]s it, and the devices are not idle in between.
//!
//! # Beside traffic
//! The segment is pinned, so its slots stay what they are. Rows of commits that are not durable may be under way;
//! they are left alone, and told from lost ones by the commit that the segment was filled in. The log has its end
//! under a lock of its own. No lock is held over I/O.
//!
//! # Crash
//! A write that was cut leaves its column as wrong as it was, or half of it right: the next one mends it.

mod headless;
mod output;
mod remains;
mod row;
#[cfg(test)]
mod tests;

use crate::pool::Pool;
use bytes::Bytes;
use larder_device::{ALIGN, AlignedBuf, DeviceError, Outcome, Pending};
use larder_format::root::RootImport;
use larder_format::segment::{
    DESCRIPTOR_LEN, MAX_SLOT, ROW_STEP, RowHeader, SegmentKind, check_descriptor, encode_descriptor,
};
use larder_format::{CommitId, Place, SegmentId};
use larder_mutants::{Bug, planted};
use larder_store::ahead::{Ahead, Parts};
use larder_store::badslots::is_same_descriptor;
use larder_store::error::Result;
use larder_store::member::Member;
use larder_store::retired::Retired;
use larder_store::segments::Segment;
use larder_store::space::ROW_TARGET;
use larder_store::{Class, Event};
use larder_sync::Mutex;
use output::{Run, Writes};
use row::{Column, Expected, Row, Salvage};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of one read, at least and at most.
const CHUNK: Range<u32> = 64 << 10..2 << 20;
/// Bytes of one write at most, unless a row has more: many files take one write at a time, so it should be a large one.
const LARGEST_WRITE: u32 = 4 << 20;
/// Rows that are treated together at most.
const BATCH_ROWS: usize = 64;
/// How far behind a row without headers the log is searched for the next, bytes: more than any record of it takes.
const LOG_GAP: u32 = 2 << 20;
/// Bytes of a column that a row has at most.
const LARGEST_ROW: u32 = ROW_TARGET + MAX_SLOT / 4;
/// Bytes of a column that are looked through at once for sound blocks where no row is known.
const GAP: u32 = 8 << 20;
/// Bytes of a column that are read at once to skip rows.
const SKIM: u32 = 64 << 10;

/// What of a segment's columns is brought in order.
pub(crate) enum Targets {
    /// Every column on a device in use: read, proven, rewritten when it is wrong.
    All,
    /// Columns that a device lacks.
    Missing(Missing),
}

/// Columns on members that lack rows: nothing is read from these members.
#[derive(Clone)]
pub(crate) struct Missing {
    /// Each column with the member that gets it, be that the slot's own or one that stands in for it.
    pub columns: Vec<(usize, Arc<Member>)>,
    /// They hold the rows of commits up to this one.
    pub after: CommitId,
    /// They get the rows of later commits themselves.
    pub through: CommitId,
}

/// A part of a data column that nothing can give back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The segment.
    pub segment: SegmentId,
    /// The data column.
    pub column: u8,
    /// Bytes from the start of the slot.
    pub range: Range<u32>,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes of rows and descriptors gone through, over all columns.
    pub examined: u64,
    /// Bytes written.
    pub written: u64,
    /// Of those, bytes that were wrong before and are right now.
    pub repaired: u64,
    /// Rows gone through.
    pub rows: u64,
    /// Columns of rows, and descriptors, that were wrong.
    pub wrong: u64,
    /// Columns of rows, and descriptors, that a device did not take, or did not keep.
    pub refused: u64,
    /// What cannot be given back.
    pub lost: Vec<Lost>,
}

/// Rows, and what was read of the columns that are read ahead.
type Batch = Vec<(Row, Vec<Option<Parts>>)>;

/// A segment that is being mended.
pub(crate) struct Mend {
    segment: Arc<Segment>,
    targets: Targets,
    /// The next row begins here, and nothing is looked at from `end` on.
    offset: u32,
    end: u32,
    /// What it began with of both, and [`Segment::moves`] then.
    begun: (Range<u32>, u64),
    /// That rows end at `end` is certain: what is missing before is lost.
    end_is_known: bool,
    /// All rows up to `end` have settled, later ones too.
    settled: bool,
    /// Rows ended here, but whether those that no header tells of were under way was not to be told.
    unclear: Option<u32>,
    /// Rows of later commits are left alone.
    through: CommitId,
    history: Vec<RootImport>,
    /// Columns that are read ahead, as soon as it has begun, and how.
    sources: Vec<usize>,
    ahead: Option<Ahead>,
    /// Descriptors that are being read.
    descriptors: Vec<(usize, Arc<Member>, Pending<Outcome>)>,
    /// Bytes of a batch, and of writes under way, at most.
    batch_limit: u64,
    writes_limit: u64,
    writes: Writes,
    /// Refusals that led to a look at who is left.
    refusals_seen: u64,
    /// Columns, by bit, whose errors were counted when a read met them.
    counted: u64,
    /// Only rows, without the descriptors.
    rows_only: bool,
    /// Something was not read, since its device did not answer.
    left_out: bool,
    tally: Tally,
}

impl Mend {
    /// Of `segment`, whose rows end at `height`.
    pub(crate) fn new(segment: Arc<Segment>, height: u32, targets: Targets) -> Self {
        Self {
            begun: (DESCRIPTOR_LEN..height, 0),
            segment,
            targets,
            offset: DESCRIPTOR_LEN,
            end: height,
            end_is_known: false,
            settled: false,
            unclear: None,
            through: CommitId::new(0),
            history: Vec::new(),
            sources: Vec::new(),
            ahead: None,
            descriptors: Vec::new(),
            batch_limit: 0,
            writes_limit: 0,
            writes: Writes::default(),
            refusals_seen: 0,
            counted: 0,
            rows_only: false,
            left_out: false,
            tally: Tally::default(),
        }
    }

    /// Of the rows in `range` of `segment` alone; errors of the columns `counted` were counted when they were met.
    pub(crate) fn of_rows(segment: Arc<Segment>, range: Range<u32>, counted: u64) -> Self {
        let mut new = Self::new(segment, range.end, Targets::All);
        (new.offset, new.rows_only, new.counted) = (range.start, true, counted);
        new.begun.0 = range;
        new
    }

    /// What was left out since no header tells of it and it may have been under way: to be gone through after a commit.
    pub(crate) fn left_over(&self) -> Option<Self> {
        let (end, Targets::Missing(missing)) = (self.unclear?, &self.targets) else { return None };
        let mut rest = Self::new(Arc::clone(&self.segment), end, Targets::Missing(missing.clone()));
        (rest.offset, rest.rows_only, rest.settled) = (self.offset, true, true);
        rest.begun.0.start = self.offset;
        Some(rest)
    }

    /// What came of it so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Its segment.
    pub(crate) fn segment_id(&self) -> SegmentId {
        self.segment.id
    }

    /// Where its rows end.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Whether every column of every row was read and is right now.
    pub(crate) fn is_proven(&self) -> bool {
        let whole =
            self.sources.len() == self.segment.layout.columns() && matches!(self.targets, Targets::All);
        let through = self.end_is_known && self.offset >= self.end && self.writes.is_empty();
        whole && through && !self.left_out && self.tally.refused == 0 && self.tally.lost.is_empty()
    }

    /// Goes on for about `bytes` read or written; true when the segment is done and every write has settled.
    ///
    /// # Errors
    /// When members refused writes and too few are left.
    pub(crate) fn step(&mut self, pool: &Pool, bytes: u64) -> Result<bool> {
        let sent = self.advance(pool, bytes)?;
        if sent {
            self.finish(pool)?;
        }
        Ok(sent)
    }

    /// The same, but true as soon as every write was sent: [`Mend::finish`] waits for them.
    ///
    /// # Errors
    /// As [`Mend::step`].
    pub(crate) fn advance(&mut self, pool: &Pool, bytes: u64) -> Result<bool> {
        let before = self.cost();
        self.start(pool);
        self.mend_descriptors(pool);
        while self.offset < self.end && self.cost() - before < bytes {
            let batch = self.load(pool, bytes);
            self.mend(pool, batch);
        }
        self.look_back(pool, self.writes_limit)?;
        Ok(self.offset >= self.end)
    }

    /// Waits until every write has settled.
    ///
    /// # Errors
    /// As [`Mend::step`].
    pub(crate) fn finish(&mut self, pool: &Pool) -> Result<()> {
        self.look_back(pool, 0)?;
        // What was written before a column was copied elsewhere may not have been copied.
        while self.ahead.is_some() && !self.is_unmoved() {
            self.begin_again();
            while !self.advance(pool, u64::MAX)? {}
            self.look_back(pool, 0)?;
        }
        Ok(())
    }

    /// Whether all columns have been where they are since it began.
    fn is_unmoved(&self) -> bool {
        let (_, moves) = self.begun;
        moves.is_multiple_of(2) && moves == self.segment.moves()
    }

    fn begin_again(&mut self) {
        let range = self.begun.0.clone();
        (self.offset, self.end, self.end_is_known, self.unclear) = (range.start, range.end, false, None);
        (self.ahead, self.left_out) = (None, false);
        self.descriptors.clear();
    }

    /// Waits until at most `limit` bytes are being written, and tells what came of the others.
    fn look_back(&mut self, pool: &Pool, limit: u64) -> Result<()> {
        self.writes.settle(limit, &mut self.tally);
        for (member, columns) in self.writes.healed() {
            pool.store.event(Event::new(Class::Healed).device(member.guid, member.name()).times(columns));
        }
        for refusal in self.writes.refusals() {
            let (member, column) = (&refusal.member, refusal.column);
            match pool.store.retire_slot(&self.segment, column, refusal.slot, member, &refusal.error) {
                // It is gone through once more.
                Retired::Moved => self.tally.refused -= refusal.rows,
                Retired::Noted => {}
                // What is right on it can be read.
                Retired::Failed if refusal.heals => {}
                Retired::Failed => member.refuse(&refusal.error),
            }
        }
        self.refusals_seen = self.refusals_seen.min(self.tally.refused);
        if std::mem::replace(&mut self.refusals_seen, self.tally.refused) < self.tally.refused {
            pool.store.check_tolerance()?;
        }
        Ok(())
    }

    /// What was read, about, and written.
    fn cost(&self) -> u64 {
        let columns = self.segment.layout.columns() as u64;
        self.tally.examined * self.sources.len() as u64 / columns + self.tally.written
    }

    fn expected<'a>(&'a self, pool: &'a Pool) -> Expected<'a> {
        Expected { sums: &pool.store.sums, segment: &self.segment, end: self.end, history: &self.history }
    }

    /// The columns asked for that are not on `column`'s own device, or are and must not be read.
    fn is_target(&self, column: usize, member: &Arc<Member>) -> bool {
        match &self.targets {
            Targets::All => false,
            Targets::Missing(missing) => {
                missing.columns.iter().any(|(of, target)| *of == column && Arc::ptr_eq(target, member))
            }
        }
    }

    /// Whether `column` can be read at all.
    fn is_readable(&self, pool: &Pool, column: usize) -> bool {
        let member = pool.store.members.get(self.segment.slots[column].device);
        member.is_online() && !self.is_target(column, &member)
    }

    /// Has its first reads sent. Whoever has one segment after the other mended starts the next one when all reads of
    /// the one before were sent ([`Mend::is_asked`]), so that devices are not idle in between.
    pub(crate) fn start(&mut self, pool: &Pool) {
        if self.ahead.is_some() {
            return;
        }
        self.begun.1 = self.segment.moves();
        // Before anything is read: what is durable by now has settled on the devices.
        self.through = pool.store.durable_commit();
        if let Targets::Missing(missing) = &self.targets {
            self.through = self.through.min(missing.through);
        }
        self.history.clone_from(&pool.store.history.lock());
        self.find_end(pool);
        self.sources = self.choose_sources(pool);
        if !self.rows_only {
            self.ask_for_descriptors(pool);
        }
        self.skip_old_rows(pool);
        let budget = pool.store.cache.trace_limit().max(4 << 20);
        (self.batch_limit, self.writes_limit) = (budget / 4, budget / 4);
        let lanes = self.sources.len().max(1) as u64;
        // One of the chunks of each column is being worked on.
        let window = budget / 8 * 5;
        let chunk = (window / lanes / 4).clamp(CHUNK.start.into(), CHUNK.end.into()) as u32;
        let chunk = chunk / ROW_STEP * ROW_STEP;
        let range = self.offset..self.end;
        let mut ahead = Ahead::new(Arc::clone(&self.segment), self.sources.clone(), range, chunk, window);
        ahead.fill(&pool.store);
        self.ahead = Some(ahead);
    }

    /// Whether all reads ahead were sent.
    pub(crate) fn is_asked(&self) -> bool {
        self.ahead.as_ref().is_some_and(Ahead::is_asked)
    }

    /// Where rows end, and whether all of them are durable.
    fn find_end(&mut self, pool: &Pool) {
        if self.segment.kind == SegmentKind::Log {
            // Whoever appends holds the lock: what is below the end has settled, whatever its commit.
            let intent = pool.intent.lock();
            let at = intent.segments.iter().position(|(id, _)| *id == self.segment.id);
            let end = match at {
                Some(0) => intent.offset,
                Some(_) => DESCRIPTOR_LEN,
                None => pool.store.members.get(self.segment.slots[0].device).slot_size,
            };
            self.end = if self.rows_only { self.end } else { end };
            self.end_is_known = at.is_some();
            if matches!(self.targets, Targets::All) {
                self.through = CommitId::new(u64::MAX);
            }
            return;
        }
        let core = pool.store.core.lock();
        let entry = core.entries.get(&self.segment.id);
        self.end_is_known = entry.is_some_and(|entry| entry.filled <= self.through) || self.rows_only;
    }

    /// The columns to be read of every row: all, or as few as give what is missing.
    fn choose_sources(&self, pool: &Pool) -> Vec<usize> {
        let layout = self.segment.layout;
        let readable = |column: &usize| self.is_readable(pool, *column);
        let Targets::Missing(missing) = &self.targets else {
            return (0..layout.columns()).filter(readable).collect();
        };
        // Twins take turns from segment to segment.
        let turn = self.segment.id.get() as usize;
        let replica =
            |i: usize| (0..layout.r()).map(|j| layout.replica(i, (j + turn) % layout.r())).find(readable);
        let mut sources = BTreeSet::new();
        let mut by_parity = false;
        for (column, _) in &missing.columns {
            let i = column / layout.r();
            match (i < layout.k()).then(|| replica(i)).flatten() {
                Some(twin) => drop(sources.insert(twin)),
                // A parity column may be copied as well, from the device that is being replaced.
                None if readable(column) => drop(sources.insert(*column)),
                None => by_parity = true,
            }
        }
        if by_parity {
            let data: Vec<usize> = (0..layout.k()).filter_map(replica).collect();
            let lacking = layout.k() - data.len();
            sources.extend(data);
            sources.extend((0..layout.m()).map(|p| layout.parity(p)).filter(readable).take(lacking));
        }
        sources.into_iter().collect()
    }

    /// Writes descriptors at the slots' starts to whoever lacks them, or has them read.
    fn ask_for_descriptors(&mut self, pool: &Pool) {
        let record = self.segment.as_opened();
        let right =
            |column| Arc::new(AlignedBuf::padded(&encode_descriptor(&pool.store.sums, &record, column)));
        self.tally.examined += u64::from(DESCRIPTOR_LEN) * self.segment.layout.columns() as u64;
        if let Targets::Missing(missing) = &self.targets {
            let born = self.segment.birth;
            if row::is_within(born, missing.after, missing.through) {
                for (column, member) in missing.columns.clone() {
                    self.write(&member, column, 0, right(column), 1);
                }
            }
            return;
        }
        if self.segment.birth > self.through {
            return;
        }
        let readable = (0..record.slots.len()).filter(|column| self.is_readable(pool, *column));
        let reads = readable.filter_map(|column| {
            let (slot, member) = (record.slots[column], pool.store.members.get(record.slots[column].device));
            let read = member.read(member.slot_offset(slot.index, 0), DESCRIPTOR_LEN as usize)?;
            Some((column, member, read))
        });
        self.descriptors = reads.collect();
    }

    /// Holds the descriptors that were read against what they should be.
    fn mend_descriptors(&mut self, pool: &Pool) {
        let record = self.segment.as_opened();
        let is_right = |found: &[u8], column| {
            check_descriptor(&pool.store.sums, found)
                .is_ok_and(|(found, at)| at == column && is_same_descriptor(&found, &record, column))
        };
        for (column, member, read) in std::mem::take(&mut self.descriptors) {
            let found = member.wait(read);
            let right = Arc::new(AlignedBuf::padded(&encode_descriptor(&pool.store.sums, &record, column)));
            match found {
                Ok(found) if is_right(&found, column) => continue,
                Ok(_) => {
                    member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
                    pool.store.event(Event::new(Class::Checksum).device(member.guid, member.name()));
                }
                Err(error) => {
                    member.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                    if matches!(error, DeviceError::Overdue | DeviceError::Gone) {
                        self.left_out = true;
                        continue;
                    }
                }
            }
            self.tally.wrong += 1;
            self.write(&member, column, 0, right, 1);
        }
    }

    /// Passes over rows that the members have.
    fn skip_old_rows(&mut self, pool: &Pool) {
        let Targets::Missing(missing) = &self.targets else { return };
        if missing.after < self.segment.birth {
            return;
        }
        while self.offset < self.end {
            let stored = (self.end - self.offset).min(SKIM);
            let place = Place { segment: self.segment.id, column: 0, offset: self.offset, stored };
            // The first column that knows of a row here.
            let expected = self.expected(pool);
            let known = self.sources.iter().find_map(|&column| {
                let bytes = pool.store.read_part(&self.segment, column, place)?.ok()?;
                expected.header(column, self.offset, &bytes)?;
                Some((column, bytes))
            });
            let Some((column, bytes)) = known else { return };
            let mut next = self.offset;
            while let Some(row) = bytes
                .get((next - self.offset) as usize..)
                .and_then(|bytes| expected.header(column, next, bytes))
            {
                if row.commit > missing.after {
                    self.offset = next;
                    return;
                }
                next += row.height;
            }
            self.offset = next;
        }
    }

    /// The next rows, of about `limit` bytes, with what was read of them, not judged yet; moves on behind them.
    fn load(&mut self, pool: &Pool, limit: u64) -> Batch {
        let limit = limit.min(self.batch_limit);
        let mut batch = Vec::new();
        let mut bytes = 0;
        while self.offset < self.end && bytes < limit && batch.len() < BATCH_ROWS {
            let Some(header) = self.header(pool, self.offset, true) else {
                self.pass_gap(pool);
                continue;
            };
            // Later rows are of later commits.
            if header.commit > self.through {
                self.end = self.offset;
                break;
            }
            let (range, height) = (self.offset..self.offset + header.height, header.height);
            self.offset = range.end;
            self.tally.rows += 1;
            self.tally.examined += u64::from(height) * self.segment.layout.columns() as u64;
            if let Targets::Missing(missing) = &self.targets
                && header.commit <= missing.after
            {
                continue;
            }
            bytes += u64::from(height) * self.sources.len() as u64;
            let ahead = self.ahead.as_mut().expect("it has begun");
            let read =
                (0..self.sources.len()).map(|lane| ahead.parts(&pool.store, lane, range.clone())).collect();
            batch.push((Row::new(&self.segment, header), read));
        }
        batch
    }

    /// The header of the row at `offset`, from the columns that are read or, when they are to be asked too, the
    /// others.
    fn header(&mut self, pool: &Pool, offset: u32, others: bool) -> Option<RowHeader> {
        let range = offset..offset + ALIGN as u32;
        let ahead = self.ahead.as_mut().expect("it has begun");
        let heads: Vec<Option<Bytes>> =
            (0..self.sources.len()).map(|lane| ahead.get(&pool.store, lane, range.clone())).collect();
        let expected = self.expected(pool);
        // Of what a chunk did not bring, this may be had.
        let came = self.sources.iter().zip(&heads).filter(|(_, bytes)| bytes.is_some());
        let came: Vec<usize> = came.map(|(column, _)| *column).collect();
        let headers = self.sources.iter().zip(heads);
        let found = headers.filter_map(|(&column, bytes)| expected.header(column, offset, &bytes?));
        let elsewhere = || {
            let others = (0..self.segment.layout.columns()).filter(|column| !came.contains(column));
            let place = Place { segment: self.segment.id, column: 0, offset, stored: ALIGN as u32 };
            row::newest(others.filter(|&column| self.is_readable(pool, column)).filter_map(|column| {
                let bytes = pool.store.read_part(&self.segment, column, place)?.ok()?;
                expected.header(column, offset, &bytes)
            }))
        };
        row::newest(found).or_else(|| others.then(elsewhere).flatten())
    }

    /// At the offset no column has a header: goes to the next row that one knows of. What lies between is lost, as
    /// far as no block in it is sound.
    fn pass_gap(&mut self, pool: &Pool) {
        let from = self.offset;
        // It is under way.
        if self.segment.is_in_flight(0, from, ALIGN) {
            return self.end = from;
        }
        let is_log = self.segment.kind == SegmentKind::Log;
        let limit = if is_log && !self.end_is_known { self.end.min(from + LOG_GAP) } else { self.end };
        let next = (from + ROW_STEP..limit)
            .step_by(ROW_STEP as usize)
            .find_map(|offset| self.header(pool, offset, !is_log));
        match next {
            Some(ref header) if header.commit <= self.through || self.settled => self.offset = header.offset,
            None if self.end_is_known => self.offset = self.end,
            // What is missing may be under way.
            _ => {
                self.unclear = (!is_log).then_some(self.end);
                return self.end = from;
            }
        }
        if matches!(self.targets, Targets::All) {
            let filled = pool
                .store
                .core
                .lock()
                .entries
                .get(&self.segment.id)
                .map_or(self.through, |entry| entry.filled);
            let before = next.as_ref().map_or(filled.min(self.through), |next| next.commit);
            if self.rebuild_row(pool, from..self.offset, before) {
                self.tally.examined += u64::from(self.offset - from) * self.segment.layout.columns() as u64;
                return;
            }
        }
        for start in (from..self.offset).step_by(GAP as usize) {
            let stored = (self.offset - start).min(GAP);
            for i in 0..self.segment.layout.k() {
                let mut salvage = Salvage::new(self.segment.kind, stored as usize, stored as usize);
                for j in 0..self.segment.layout.r() {
                    let column = self.segment.layout.replica(i, j);
                    let mut bytes = AlignedBuf::zeroed(stored as usize);
                    if self.read_around(pool, column, start..start + stored, &mut bytes) {
                        salvage.add(&pool.store.sums, &bytes);
                    }
                    if let Some(bytes) = self.read_stand_in(column, &(start..start + stored)) {
                        salvage.add(&pool.store.sums, &bytes);
                    }
                }
                self.tally.lost.extend(salvage.lost(pool, &self.segment, i, start));
            }
            self.leave_as_it_is(pool, &(start..start + stored));
        }
        if matches!(self.targets, Targets::All) {
            for column in self.sources.clone() {
                self.note_wrong(pool, column, true);
            }
        }
        self.tally.examined += u64::from(self.offset - from) * self.segment.layout.columns() as u64;
    }

    /// Counts an error of a column's device.
    fn note_wrong(&mut self, pool: &Pool, column: usize, sums: bool) {
        self.tally.wrong += 1;
        // A failed read was counted when it failed.
        if sums && self.counted & 1 << column == 0 {
            let member = pool.store.members.get(self.segment.slots[column].device);
            member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
            pool.store.event(Event::new(Class::Checksum).device(member.guid, member.name()));
        }
    }

    /// Holds a batch against its sums, and writes what is wanted of it.
    fn mend(&mut self, pool: &Pool, batch: Batch) {
        let mut rows = self.judge(pool, batch);
        let mut wanted: Vec<Vec<usize>> = Vec::with_capacity(rows.len());
        for row in &mut rows {
            wanted.push(self.wanted(pool, row));
        }
        let segment = Arc::clone(&self.segment);
        // What heals is proven by itself.
        let longest = if matches!(self.targets, Targets::All) { 0 } else { LARGEST_WRITE };
        let mut runs = Run::plan(&rows, &wanted, longest);
        let places = Run::places(&mut runs, rows.len());
        let mut given: Vec<BTreeSet<usize>> =
            pool.store.world.workers.map(rows.len(), |i| match wanted[i].is_empty() {
                true => BTreeSet::new(),
                false => rows[i].compute(&pool.store.sums, &segment, &mut places[i].lock()),
            });
        for ((row, places), given) in rows.iter_mut().zip(places).zip(&mut given) {
            let mut lacking = places.into_inner();
            lacking.retain(|(column, _)| !given.contains(column));
            if !lacking.is_empty() {
                given.extend(self.rescue(pool, row, &mut lacking));
            }
        }
        for run in runs {
            let column = run.column;
            for (offset, data, columns) in run.given(&given) {
                self.write_column(pool, column, offset, Arc::new(data), columns);
            }
        }
        self.writes.settle(self.writes_limit, &mut self.tally);
    }

    /// Which columns of a batch are right.
    fn judge(&self, pool: &Pool, batch: Batch) -> Vec<Row> {
        let lanes = self.sources.len();
        let (mut rows, read): (Vec<Row>, Vec<_>) = batch.into_iter().unzip();
        let read: Vec<Mutex<Option<Parts>>> = read.into_iter().flatten().map(Mutex::new).collect();
        let expected = self.expected(pool);
        let judged = pool.store.world.workers.map(read.len(), |at| {
            let (row, column) = (&rows[at / lanes], self.sources[at % lanes]);
            let parts = read[at].lock().take();
            parts.map_or(Column::Unread, |parts| row.judge(&expected, column, parts.join()))
        });
        let mut judged = judged.into_iter();
        for row in &mut rows {
            for (&column, found) in self.sources.iter().zip(judged.by_ref().take(lanes)) {
                row.columns[column] = found;
            }
        }
        rows
    }

    /// The columns of a row that are to be written. What a chunk did not bring is read by itself: of a chunk with a
    /// sector that cannot be read, most rows can.
    fn wanted(&mut self, pool: &Pool, row: &mut Row) -> Vec<usize> {
        for column in self.sources.clone() {
            if matches!(row.columns[column], Column::Unread) {
                self.read_alone(pool, row, column);
                self.left_out |= matches!(row.columns[column], Column::Unread);
            }
        }
        let mut wrong = Vec::new();
        for column in self.sources.clone() {
            if let Column::Wrong(found) = &row.columns[column] {
                self.note_wrong(pool, column, found.is_some());
                wrong.push(column);
            }
        }
        match &self.targets {
            Targets::All if planted(Bug::ParityNotScrubbed) => {
                wrong.retain(|&column| column < self.segment.layout.k() * self.segment.layout.r());
                wrong
            }
            Targets::All => wrong,
            Targets::Missing(missing) => {
                let columns: BTreeSet<usize> = missing.columns.iter().map(|(column, _)| *column).collect();
                columns.into_iter().collect()
            }
        }
    }

    /// Reads one column of a row, if its device is in use.
    fn read_alone(&self, pool: &Pool, row: &mut Row, column: usize) {
        if !self.is_readable(pool, column) {
            return;
        }
        let range = row.range();
        let stored = range.end - range.start;
        let place = Place { segment: self.segment.id, column: 0, offset: range.start, stored };
        row.columns[column] = match pool.store.read_part(&self.segment, column, place) {
            Some(Ok(bytes)) => row.judge(&self.expected(pool), column, bytes),
            // Nothing is known of what a slow device holds.
            None | Some(Err(DeviceError::Overdue | DeviceError::Gone)) => Column::Unread,
            Some(Err(_)) => Column::Wrong(None),
        };
    }

    /// Columns that the sources did not give: all others are read as well, what cannot be read whole in pieces, and
    /// what is wrong is put together by blocks. What is lost is told.
    fn rescue(&mut self, pool: &Pool, row: &mut Row, lacking: &mut [(usize, &mut [u8])]) -> BTreeSet<usize> {
        for column in 0..self.segment.layout.columns() {
            if matches!(row.columns[column], Column::Unread) {
                self.read_alone(pool, row, column);
                if let Column::Wrong(found) = &row.columns[column] {
                    self.note_wrong(pool, column, found.is_some());
                }
            }
        }
        let segment = Arc::clone(&self.segment);
        let done = row.compute(&pool.store.sums, &segment, lacking);
        if done.len() == lacking.len() {
            return done;
        }
        (0..segment.layout.columns()).for_each(|column| self.read_in_pieces(pool, row, column));
        let lost = row.salvage(pool, &segment);
        self.tally.lost.extend(lost);
        let done = row.compute(&pool.store.sums, &segment, lacking);
        let lacking: Vec<usize> = lacking.iter().map(|(column, _)| *column).collect();
        self.leave_remains(pool, row, &lacking, &done);
        done
    }

    /// Writes so many rows of a column to whoever is to get them.
    fn write_column(&mut self, pool: &Pool, column: usize, offset: u32, data: Arc<AlignedBuf>, rows: u64) {
        let targets: Vec<Arc<Member>> = match &self.targets {
            Targets::All => vec![pool.store.members.get(self.segment.slots[column].device)],
            Targets::Missing(missing) => {
                let targets = missing.columns.iter().filter(|(of, _)| *of == column);
                targets.map(|(_, member)| Arc::clone(member)).collect()
            }
        };
        for member in targets {
            self.write(&member, column, offset, Arc::clone(&data), rows);
        }
    }

    /// Submits a write.
    fn write(&mut self, member: &Arc<Member>, column: usize, offset: u32, data: Arc<AlignedBuf>, rows: u64) {
        let at = (column, self.segment.slots[column].index(), offset);
        let heals = matches!(self.targets, Targets::All);
        self.writes.submit(member, at, data, rows, heals, &mut self.tally);
    }
}

/// The row that has byte `offset` of its columns, as a header of it tells.
pub(crate) fn find_row(pool: &Pool, segment: &Segment, offset: u32) -> Option<RowHeader> {
    let history = pool.store.history.lock().clone();
    let end = pool.store.members.get(segment.slots[0].device).slot_size;
    let expected = Expected { sums: &pool.store.sums, segment, end, history: &history };
    let at = offset / ROW_STEP * ROW_STEP;
    (0..segment.layout.columns()).find_map(|column| {
        let mut above = (at + ROW_STEP).min(end);
        // The nearest row that begins below, if this column knows of it.
        while above > DESCRIPTOR_LEN && above + LARGEST_ROW > at {
            let start = above.saturating_sub(SKIM).max(DESCRIPTOR_LEN);
            let place = Place { segment: segment.id, column: 0, offset: start, stored: above - start };
            let bytes = pool.store.read_part(segment, column, place)?.ok()?;
            let steps = (start..above).step_by(ROW_STEP as usize).rev();
            let found =
                steps.filter_map(|row| expected.header(column, row, &bytes[(row - start) as usize..])).next();
            if let Some(row) = found {
                return (row.offset + row.height > offset).then_some(row);
            }
            above = start;
        }
        None
    })
}

impl Drop for Mend {
    /// The slots may be another segment's as soon as this one is let go: nothing may be under way to them.
    fn drop(&mut self) {
        self.writes.settle(0, &mut self.tally);
    }
}
