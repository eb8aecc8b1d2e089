//! Reconstruction: every column of a segment brought in order, from what the others prove.
//!
//! A stripe that a durable commit holds is final: each of its columns has one right content, and the header of any of
//! them tells the sums of all. So reconstruction is reading columns, holding them against their sums, and writing those
//! that are wrong, or that a device lacks, at their own place: copied from a replica, else computed by parity, and in
//! any case proven by their sum before they are written. What was wrong is read once more afterwards. Nothing moves: a
//! repaired block that moved would leave its stripe's neighbours one loss poorer.
//!
//! The same [`Reconstruction`] serves reads that met something wrong ([`crate::read_repair`]), the scrub
//! ([`crate::scrub`]) and members that are being rebuilt ([`crate::resilver`]); they differ in what they read and want
//! ([`Targets`]).
//!
//! # Flow
//! Columns are read in large chunks, several of each on their way at any time ([`Readahead`]). Stripes are taken out of
//! them in batches; sums and parity of a batch run on the workers; writes are submitted and completed behind. What goes
//! wrong is done by itself: columns of the stripe that nobody asked for are read as well, and what no whole column
//! gives is put together block by block ([`stripe::Stripe::salvage`]); what is left even so is kept as it is
//! ([`remains`]). Where no header of a stripe is left, the next one is looked for, and what lies between is rebuilt
//! ([`headless`]), or told as lost, as far as no block in it is sound. When all reads of a segment were sent, those of
//! the next are: its driver [`Reconstruction::start`]s it, and the devices are not idle in between.
//!
//! # Beside traffic
//! The segment is pinned, so its slots stay what they are. Stripes of commits that are not durable may be under way;
//! they are left alone, and told from lost ones by the commit that the segment was filled in. The log has its end
//! under a lock of its own. No lock is held over I/O.
//!
//! # Crash
//! A write that was cut leaves its column as wrong as it was, or half of it right: the next one reconstructs it.

mod headless;
mod output;
mod remains;
mod stripe;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use larder_device::{ALIGN, AlignedBuf, DeviceError, Outcome, Pending};
use larder_format::root::RootImport;
use larder_format::segment::{
    DESCRIPTOR_LEN, MAX_SLOT, STRIPE_STEP, SegmentKind, StripeHeader, check_descriptor, encode_descriptor,
};
use larder_format::{CommitId, Place, SegmentId};
use larder_mutants::{Mutant, mutated};
use larder_pool::{Lost, Pool};
use larder_store::Result;
use larder_store::Retired;
use larder_store::is_same_descriptor;
use larder_store::member::Member;
use larder_store::segments::Segment;
use larder_store::space::STRIPE_TARGET;
use larder_store::{Class, Event};
use larder_store::{Parts, Readahead};
use larder_sync::Mutex;
use output::{Run, WriteQueue};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stripe::{Column, Expected, Salvage, Stripe};

/// Bytes of one read, at least and at most.
const CHUNK: Range<u32> = 64 << 10..2 << 20;
/// Bytes of one write at most, unless a stripe has more: many files take one write at a time, so it should be a large
/// one.
const LARGEST_WRITE: u32 = 4 << 20;
/// Stripes that are treated together at most.
const BATCH_STRIPES: usize = 64;
/// Range behind a stripe without headers in which the log is searched for the next, bytes: more than any record takes.
const LOG_GAP: u32 = 2 << 20;
/// Bytes of a column that a stripe has at most.
const LARGEST_STRIPE: u32 = STRIPE_TARGET + MAX_SLOT / 4;
/// Bytes of a column that are looked through at once for sound blocks where no stripe is known.
const GAP: u32 = 8 << 20;
/// Bytes of a column that are read at once to skip stripes.
const SKIM: u32 = 64 << 10;

/// Columns of a segment to reconstruct.
pub(crate) enum Targets {
    /// Every column on a device in use: read, proven, rewritten when it is wrong.
    All,
    /// Columns that a device lacks.
    Missing(Missing),
}

/// Columns on members that lack stripes: nothing is read from these members.
#[derive(Clone)]
pub(crate) struct Missing {
    /// Each column with the member that gets it, be that the slot's own or one that stands in for it.
    pub columns: Vec<(usize, Arc<Member>)>,
    /// They hold the stripes of commits up to this one.
    pub after: CommitId,
    /// They get the stripes of later commits themselves.
    pub through: CommitId,
}

/// Counts of a reconstruction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes of stripes and descriptors gone through, over all columns.
    pub examined: u64,
    /// Bytes written.
    pub written: u64,
    /// Of those, bytes that were wrong before and are right now.
    pub repaired: u64,
    /// Stripes gone through.
    pub stripes: u64,
    /// Columns of stripes, and descriptors, that were wrong.
    pub wrong: u64,
    /// Columns of stripes, and descriptors, that a device did not take, or did not keep.
    pub refused: u64,
    /// Lost ranges.
    pub lost: Vec<Lost>,
}

/// Stripes, and what was read of the columns that are read ahead.
type Batch = Vec<(Stripe, Vec<Option<Parts>>)>;

/// A segment that is being reconstructed.
pub(crate) struct Reconstruction {
    segment: Arc<Segment>,
    targets: Targets,
    /// The next stripe begins here, and nothing is looked at from `end` on.
    offset: u32,
    end: u32,
    /// Both as it began, and [`Segment::moves`] then.
    begun: (Range<u32>, u64),
    /// That stripes end at `end` is certain: what is missing before is lost.
    end_is_known: bool,
    /// All stripes up to `end` are complete, later ones too.
    completed: bool,
    /// Stripes ended here, but whether those that no header tells of were under way was not to be told.
    unclear: Option<u32>,
    /// Stripes of later commits are left alone.
    through: CommitId,
    history: Vec<RootImport>,
    /// Columns that are read ahead, as soon as it has begun, and how.
    sources: Vec<usize>,
    readahead: Option<Readahead>,
    /// Descriptors that are being read.
    descriptors: Vec<(usize, Arc<Member>, Pending<Outcome>)>,
    /// Bytes of a batch, and of writes under way, at most.
    batch_limit: u64,
    writes_limit: u64,
    writes: WriteQueue,
    /// Refusals that led to a look at who is left.
    refusals_seen: u64,
    /// Columns, by bit, whose errors were counted when a read met them.
    counted: u64,
    /// Only stripes, without the descriptors.
    stripes_only: bool,
    /// Something was not read, since its device did not answer.
    left_out: bool,
    tally: Tally,
}

impl Reconstruction {
    /// Of `segment`, whose stripes end at `height`.
    pub(crate) fn new(segment: Arc<Segment>, height: u32, targets: Targets) -> Self {
        Self {
            begun: (DESCRIPTOR_LEN..height, 0),
            segment,
            targets,
            offset: DESCRIPTOR_LEN,
            end: height,
            end_is_known: false,
            completed: false,
            unclear: None,
            through: CommitId::new(0),
            history: Vec::new(),
            sources: Vec::new(),
            readahead: None,
            descriptors: Vec::new(),
            batch_limit: 0,
            writes_limit: 0,
            writes: WriteQueue::default(),
            refusals_seen: 0,
            counted: 0,
            stripes_only: false,
            left_out: false,
            tally: Tally::default(),
        }
    }

    /// Of the stripes in `range` of `segment` alone; errors of the columns `counted` were counted when they were met.
    pub(crate) fn of_stripes(segment: Arc<Segment>, range: Range<u32>, counted: u64) -> Self {
        let mut new = Self::new(segment, range.end, Targets::All);
        (new.offset, new.stripes_only, new.counted) = (range.start, true, counted);
        new.begun.0 = range;
        new
    }

    /// The part that was left out, having no header and being perhaps in flight: to be redone after a commit.
    pub(crate) fn left_over(&self) -> Option<Self> {
        let (end, Targets::Missing(missing)) = (self.unclear?, &self.targets) else { return None };
        let mut rest = Self::new(Arc::clone(&self.segment), end, Targets::Missing(missing.clone()));
        (rest.offset, rest.stripes_only, rest.completed) = (self.offset, true, true);
        rest.begun.0.start = self.offset;
        Some(rest)
    }

    /// The tally so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Its segment.
    pub(crate) fn segment_id(&self) -> SegmentId {
        self.segment.id
    }

    /// Where its stripes end.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Whether every column of every stripe was read and is right now.
    pub(crate) fn is_proven(&self) -> bool {
        let whole =
            self.sources.len() == self.segment.layout.columns() && matches!(self.targets, Targets::All);
        let through = self.end_is_known && self.offset >= self.end && self.writes.is_empty();
        whole && through && !self.left_out && self.tally.refused == 0 && self.tally.lost.is_empty()
    }

    /// Goes on for about `bytes` read or written; true when the segment is done and every write is complete.
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

    /// The same, but true as soon as every write was sent: [`Reconstruction::finish`] waits for them.
    ///
    /// # Errors
    /// As [`Reconstruction::step`].
    pub(crate) fn advance(&mut self, pool: &Pool, bytes: u64) -> Result<bool> {
        self.start(pool);
        // That chose what is read: the cost goes by it.
        let before = self.cost();
        self.repair_descriptors(pool);
        while self.offset < self.end && self.cost() - before < bytes {
            let batch = self.load(pool, bytes);
            self.reconstruct(pool, batch);
        }
        self.look_back(pool, self.writes_limit)?;
        Ok(self.offset >= self.end)
    }

    /// Waits until every write is complete.
    ///
    /// # Errors
    /// As [`Reconstruction::step`].
    pub(crate) fn finish(&mut self, pool: &Pool) -> Result<()> {
        self.look_back(pool, 0)?;
        // Writes made before a column was copied elsewhere may not have been copied.
        while self.readahead.is_some() && !self.is_unmoved() {
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
        (self.readahead, self.left_out) = (None, false);
        self.descriptors.clear();
    }

    /// Waits until at most `limit` bytes are being written, and tells what came of the others.
    fn look_back(&mut self, pool: &Pool, limit: u64) -> Result<()> {
        self.writes.complete(limit, &mut self.tally);
        for (member, columns) in self.writes.repaired() {
            member.note_repair(self.segment.id);
            pool.store().event(Event::new(Class::Healed).device(member.guid, member.name()).times(columns));
        }
        for refusal in self.writes.refusals() {
            let (member, column) = (&refusal.member, refusal.column);
            match pool.store().retire_slot(&self.segment, column, refusal.slot, member, &refusal.error) {
                // It is gone through once more.
                Retired::Moved => self.tally.refused -= refusal.stripes,
                Retired::Noted => {}
                // It is not faulted: its sound columns can still be read.
                Retired::Failed if refusal.repairs => {}
                Retired::Failed => member.refuse(&refusal.error),
            }
        }
        self.refusals_seen = self.refusals_seen.min(self.tally.refused);
        if std::mem::replace(&mut self.refusals_seen, self.tally.refused) < self.tally.refused {
            pool.store().check_tolerance()?;
        }
        Ok(())
    }

    /// Bytes read, about, and written.
    fn cost(&self) -> u64 {
        let columns = self.segment.layout.columns() as u64;
        self.tally.examined * self.sources.len() as u64 / columns + self.tally.written
    }

    fn expected<'a>(&'a self, pool: &'a Pool) -> Expected<'a> {
        Expected { sums: &pool.store().sums, segment: &self.segment, end: self.end, history: &self.history }
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
        let member = pool.store().members.get(self.segment.slots[column].device);
        member.is_online() && !self.is_target(column, &member)
    }

    /// Has its first reads sent. Whoever has one segment after the other reconstructed starts the next one when all
    /// reads of the one before were sent ([`Reconstruction::is_asked`]), so that devices are not idle in between.
    pub(crate) fn start(&mut self, pool: &Pool) {
        if self.readahead.is_some() {
            return;
        }
        self.begun.1 = self.segment.moves();
        // Before anything is read: what is durable by now is complete on the devices.
        self.through = pool.store().durable_commit();
        if let Targets::Missing(missing) = &self.targets {
            self.through = self.through.min(missing.through);
        }
        self.history.clone_from(&pool.store().history.lock());
        self.find_end(pool);
        self.sources = self.choose_sources(pool);
        if !self.stripes_only {
            self.ask_for_descriptors(pool);
        }
        self.skip_old_stripes(pool);
        let budget = pool.store().cache.gc_limit().max(4 << 20);
        (self.batch_limit, self.writes_limit) = (budget / 4, budget / 4);
        let lanes = self.sources.len().max(1) as u64;
        // One of the chunks of each column is being worked on.
        let window = budget / 8 * 5;
        let chunk = (window / lanes / 4).clamp(CHUNK.start.into(), CHUNK.end.into()) as u32;
        let chunk = chunk / STRIPE_STEP * STRIPE_STEP;
        let range = self.offset..self.end;
        let mut readahead =
            Readahead::new(Arc::clone(&self.segment), self.sources.clone(), range, chunk, window);
        readahead.fill(pool.store());
        self.readahead = Some(readahead);
    }

    /// Whether all reads ahead were sent.
    pub(crate) fn is_asked(&self) -> bool {
        self.readahead.as_ref().is_some_and(Readahead::is_asked)
    }

    /// Where stripes end, and whether all of them are durable.
    fn find_end(&mut self, pool: &Pool) {
        if self.segment.kind == SegmentKind::Log {
            // Appends hold the lock: everything below the end is complete, whatever its commit.
            let end = pool.log_end_in(self.segment.id);
            self.end_is_known = end.is_some();
            let whole = || pool.store().members.get(self.segment.slots[0].device).slot_size;
            self.end = if self.stripes_only { self.end } else { end.unwrap_or_else(whole) };
            if matches!(self.targets, Targets::All) {
                self.through = CommitId::new(u64::MAX);
            }
            return;
        }
        let core = pool.store().core.lock();
        let entry = core.entries.get(&self.segment.id);
        self.end_is_known = entry.is_some_and(|entry| entry.filled <= self.through) || self.stripes_only;
    }

    /// The columns to be read of every stripe: all, or as few as give what is missing.
    fn choose_sources(&self, pool: &Pool) -> Vec<usize> {
        let layout = self.segment.layout;
        let readable = |column: &usize| self.is_readable(pool, *column);
        let Targets::Missing(missing) = &self.targets else {
            return (0..layout.columns()).filter(readable).collect();
        };
        // Replicas take turns from segment to segment.
        let turn = self.segment.id.get() as usize;
        let replica =
            |i: usize| (0..layout.r()).map(|j| layout.replica(i, (j + turn) % layout.r())).find(readable);
        let mut sources = BTreeSet::new();
        let mut by_parity = false;
        for (column, _) in &missing.columns {
            let i = column / layout.r();
            match (i < layout.k()).then(|| replica(i)).flatten() {
                Some(replica) => drop(sources.insert(replica)),
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
            |column| Arc::new(AlignedBuf::padded(&encode_descriptor(&pool.store().sums, &record, column)));
        self.tally.examined += u64::from(DESCRIPTOR_LEN) * self.segment.layout.columns() as u64;
        if let Targets::Missing(missing) = &self.targets {
            let born = self.segment.birth;
            if stripe::is_within(born, missing.after, missing.through) {
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
            let (slot, member) =
                (record.slots[column], pool.store().members.get(record.slots[column].device));
            let read = member.read(member.slot_offset(slot.index, 0), DESCRIPTOR_LEN as usize)?;
            Some((column, member, read))
        });
        self.descriptors = reads.collect();
    }

    /// Holds the descriptors that were read against what they should be.
    fn repair_descriptors(&mut self, pool: &Pool) {
        let record = self.segment.as_opened();
        let is_right = |found: &[u8], column| {
            check_descriptor(&pool.store().sums, found)
                .is_ok_and(|(found, at)| at == column && is_same_descriptor(&found, &record, column))
        };
        for (column, member, read) in std::mem::take(&mut self.descriptors) {
            let found = member.wait(read);
            let right = Arc::new(AlignedBuf::padded(&encode_descriptor(&pool.store().sums, &record, column)));
            match found {
                Ok(found) if is_right(&found, column) => continue,
                Ok(_) => {
                    member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
                    pool.store().event(Event::new(Class::Checksum).device(member.guid, member.name()));
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

    /// Passes over stripes that the members have.
    fn skip_old_stripes(&mut self, pool: &Pool) {
        let Targets::Missing(missing) = &self.targets else { return };
        if missing.after < self.segment.birth {
            return;
        }
        while self.offset < self.end {
            let stored = (self.end - self.offset).min(SKIM);
            let place = Place { segment: self.segment.id, column: 0, offset: self.offset, stored };
            // The first column that knows of a stripe here.
            let expected = self.expected(pool);
            let known = self.sources.iter().find_map(|&column| {
                let bytes = pool.store().read_part(&self.segment, column, place)?.ok()?;
                expected.header(column, self.offset, &bytes)?;
                Some((column, bytes))
            });
            let Some((column, bytes)) = known else { return };
            let mut next = self.offset;
            while let Some(stripe) = bytes
                .get((next - self.offset) as usize..)
                .and_then(|bytes| expected.header(column, next, bytes))
            {
                if stripe.commit > missing.after {
                    self.offset = next;
                    return;
                }
                next += stripe.height;
            }
            self.offset = next;
        }
    }

    /// The next stripes, of about `limit` bytes, with what was read of them, not judged yet; moves on behind them.
    fn load(&mut self, pool: &Pool, limit: u64) -> Batch {
        let limit = limit.min(self.batch_limit);
        let mut batch = Vec::new();
        let mut bytes = 0;
        while self.offset < self.end && bytes < limit && batch.len() < BATCH_STRIPES {
            let Some(header) = self.header(pool, self.offset, true) else {
                self.pass_gap(pool);
                continue;
            };
            // Later stripes are of later commits.
            if header.commit > self.through {
                self.end = self.offset;
                break;
            }
            let (range, height) = (self.offset..self.offset + header.height, header.height);
            self.offset = range.end;
            self.tally.stripes += 1;
            self.tally.examined += u64::from(height) * self.segment.layout.columns() as u64;
            if let Targets::Missing(missing) = &self.targets
                && header.commit <= missing.after
            {
                continue;
            }
            bytes += u64::from(height) * self.sources.len() as u64;
            let readahead = self.readahead.as_mut().expect("it has begun");
            let read = (0..self.sources.len())
                .map(|lane| readahead.parts(pool.store(), lane, range.clone()))
                .collect();
            batch.push((Stripe::new(&self.segment, header), read));
        }
        batch
    }

    /// The header of the stripe at `offset`, from the columns that are read or, when they are to be asked too, the
    /// others.
    fn header(&mut self, pool: &Pool, offset: u32, others: bool) -> Option<StripeHeader> {
        let range = offset..offset + ALIGN as u32;
        let readahead = self.readahead.as_mut().expect("it has begun");
        let heads: Vec<Option<Bytes>> =
            (0..self.sources.len()).map(|lane| readahead.get(pool.store(), lane, range.clone())).collect();
        let expected = self.expected(pool);
        // Of what a chunk did not bring, this may be had.
        let came = self.sources.iter().zip(&heads).filter(|(_, bytes)| bytes.is_some());
        let came: Vec<usize> = came.map(|(column, _)| *column).collect();
        let headers = self.sources.iter().zip(heads);
        let found = headers.filter_map(|(&column, bytes)| expected.header(column, offset, &bytes?));
        let elsewhere = || {
            let others = (0..self.segment.layout.columns()).filter(|column| !came.contains(column));
            let place = Place { segment: self.segment.id, column: 0, offset, stored: ALIGN as u32 };
            stripe::newest(others.filter(|&column| self.is_readable(pool, column)).filter_map(|column| {
                let bytes = pool.store().read_part(&self.segment, column, place)?.ok()?;
                expected.header(column, offset, &bytes)
            }))
        };
        stripe::newest(found).or_else(|| others.then(elsewhere).flatten())
    }

    /// At the offset no column has a header: goes to the next stripe that one knows of. What lies between is lost, as
    /// far as no block in it is sound.
    fn pass_gap(&mut self, pool: &Pool) {
        let from = self.offset;
        // It is under way.
        if self.segment.is_in_flight(0, from, ALIGN) {
            return self.end = from;
        }
        let is_log = self.segment.kind == SegmentKind::Log;
        let limit = if is_log && !self.end_is_known { self.end.min(from + LOG_GAP) } else { self.end };
        let next = (from + STRIPE_STEP..limit)
            .step_by(STRIPE_STEP as usize)
            .find_map(|offset| self.header(pool, offset, !is_log));
        match next {
            Some(ref header) if header.commit <= self.through || self.completed => {
                self.offset = header.offset
            }
            None if self.end_is_known => self.offset = self.end,
            // The missing stripe may be in flight.
            _ => {
                self.unclear = (!is_log).then_some(self.end);
                return self.end = from;
            }
        }
        if matches!(self.targets, Targets::All) {
            let filled = pool
                .store()
                .core
                .lock()
                .entries
                .get(&self.segment.id)
                .map_or(self.through, |entry| entry.filled);
            let before = next.as_ref().map_or(filled.min(self.through), |next| next.commit);
            if self.rebuild_stripe(pool, from..self.offset, before) {
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
                    if self.read_cluster(pool, column, start..start + stored, &mut bytes) {
                        salvage.add(&pool.store().sums, &bytes);
                    }
                    if let Some(bytes) = self.read_stand_in(column, &(start..start + stored)) {
                        salvage.add(&pool.store().sums, &bytes);
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
            let member = pool.store().members.get(self.segment.slots[column].device);
            member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
            pool.store().event(Event::new(Class::Checksum).device(member.guid, member.name()));
        }
    }

    /// Holds a batch against its sums, and writes what is wanted of it.
    fn reconstruct(&mut self, pool: &Pool, batch: Batch) {
        let mut stripes = self.judge(pool, batch);
        let mut wanted: Vec<Vec<usize>> = Vec::with_capacity(stripes.len());
        for stripe in &mut stripes {
            wanted.push(self.wanted(pool, stripe));
        }
        let segment = Arc::clone(&self.segment);
        // Repairs are read back and proven one by one, so runs are not joined.
        let longest = if matches!(self.targets, Targets::All) { 0 } else { LARGEST_WRITE };
        let mut runs = Run::plan(&stripes, &wanted, longest);
        let places = Run::places(&mut runs, stripes.len());
        let mut given: Vec<BTreeSet<usize>> =
            pool.store().world.workers.map(stripes.len(), |i| match wanted[i].is_empty() {
                true => BTreeSet::new(),
                false => stripes[i].compute(&pool.store().sums, &segment, &mut places[i].lock()),
            });
        for ((stripe, places), given) in stripes.iter_mut().zip(places).zip(&mut given) {
            let mut lacking = places.into_inner();
            lacking.retain(|(column, _)| !given.contains(column));
            if !lacking.is_empty() {
                given.extend(self.rescue(pool, stripe, &mut lacking));
            }
        }
        for run in runs {
            let column = run.column;
            for (offset, data, columns) in run.given(&given) {
                self.write_column(pool, column, offset, Arc::new(data), columns);
            }
        }
        self.writes.complete(self.writes_limit, &mut self.tally);
    }

    /// Which columns of a batch are right.
    fn judge(&self, pool: &Pool, batch: Batch) -> Vec<Stripe> {
        let lanes = self.sources.len();
        let (mut stripes, read): (Vec<Stripe>, Vec<_>) = batch.into_iter().unzip();
        let read: Vec<Mutex<Option<Parts>>> = read.into_iter().flatten().map(Mutex::new).collect();
        let expected = self.expected(pool);
        let judged = pool.store().world.workers.map(read.len(), |at| {
            let (stripe, column) = (&stripes[at / lanes], self.sources[at % lanes]);
            let parts = read[at].lock().take();
            parts.map_or(Column::Unread, |parts| stripe.judge(&expected, column, parts.join()))
        });
        let mut judged = judged.into_iter();
        for stripe in &mut stripes {
            for (&column, found) in self.sources.iter().zip(judged.by_ref().take(lanes)) {
                stripe.columns[column] = found;
            }
        }
        stripes
    }

    /// The columns of a stripe that are to be written. What a chunk did not bring is read by itself: of a chunk with a
    /// sector that cannot be read, most stripes can.
    fn wanted(&mut self, pool: &Pool, stripe: &mut Stripe) -> Vec<usize> {
        for column in self.sources.clone() {
            if matches!(stripe.columns[column], Column::Unread) {
                self.read_alone(pool, stripe, column);
                self.left_out |= matches!(stripe.columns[column], Column::Unread);
            }
        }
        let mut wrong = Vec::new();
        for column in self.sources.clone() {
            if let Column::Wrong(found) = &stripe.columns[column] {
                self.note_wrong(pool, column, found.is_some());
                wrong.push(column);
            }
        }
        match &self.targets {
            Targets::All if mutated(Mutant::ParityNotScrubbed) => {
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

    /// Reads one column of a stripe, if its device is in use.
    fn read_alone(&self, pool: &Pool, stripe: &mut Stripe, column: usize) {
        if !self.is_readable(pool, column) {
            return;
        }
        let range = stripe.range();
        let stored = range.end - range.start;
        let place = Place { segment: self.segment.id, column: 0, offset: range.start, stored };
        stripe.columns[column] = match pool.store().read_part(&self.segment, column, place) {
            Some(Ok(bytes)) => stripe.judge(&self.expected(pool), column, bytes),
            // Nothing is known of what a slow device holds.
            None | Some(Err(DeviceError::Overdue | DeviceError::Gone)) => Column::Unread,
            Some(Err(_)) => Column::Wrong(None),
        };
    }

    /// Columns that the sources did not give: all others are read as well, what cannot be read whole in pieces, and
    /// what is wrong is put together by blocks. What is lost is told.
    fn rescue(
        &mut self,
        pool: &Pool,
        stripe: &mut Stripe,
        lacking: &mut [(usize, &mut [u8])],
    ) -> BTreeSet<usize> {
        for column in 0..self.segment.layout.columns() {
            if matches!(stripe.columns[column], Column::Unread) {
                self.read_alone(pool, stripe, column);
                if let Column::Wrong(found) = &stripe.columns[column] {
                    self.note_wrong(pool, column, found.is_some());
                }
            }
        }
        let segment = Arc::clone(&self.segment);
        let done = stripe.compute(&pool.store().sums, &segment, lacking);
        if done.len() == lacking.len() {
            return done;
        }
        (0..segment.layout.columns()).for_each(|column| self.read_in_pieces(pool, stripe, column));
        let lost = stripe.salvage(pool, &segment);
        self.tally.lost.extend(lost);
        let done = stripe.compute(&pool.store().sums, &segment, lacking);
        let lacking: Vec<usize> = lacking.iter().map(|(column, _)| *column).collect();
        self.leave_remains(pool, stripe, &lacking, &done);
        done
    }

    /// Writes so many stripes of a column to whoever is to get them.
    fn write_column(&mut self, pool: &Pool, column: usize, offset: u32, data: Arc<AlignedBuf>, stripes: u64) {
        let targets: Vec<Arc<Member>> = match &self.targets {
            Targets::All => vec![pool.store().members.get(self.segment.slots[column].device)],
            Targets::Missing(missing) => {
                let targets = missing.columns.iter().filter(|(of, _)| *of == column);
                targets.map(|(_, member)| Arc::clone(member)).collect()
            }
        };
        for member in targets {
            self.write(&member, column, offset, Arc::clone(&data), stripes);
        }
    }

    /// Submits a write.
    fn write(
        &mut self,
        member: &Arc<Member>,
        column: usize,
        offset: u32,
        data: Arc<AlignedBuf>,
        stripes: u64,
    ) {
        let at = (column, self.segment.slots[column].index(), offset);
        let repairs = matches!(self.targets, Targets::All);
        self.writes.submit(member, at, data, stripes, repairs, &mut self.tally);
    }
}

/// The stripe that has byte `offset` of its columns, as a header of it tells.
pub(crate) fn find_stripe(pool: &Pool, segment: &Segment, offset: u32) -> Option<StripeHeader> {
    let history = pool.store().history.lock().clone();
    let end = pool.store().members.get(segment.slots[0].device).slot_size;
    let expected = Expected { sums: &pool.store().sums, segment, end, history: &history };
    let at = offset / STRIPE_STEP * STRIPE_STEP;
    (0..segment.layout.columns()).find_map(|column| {
        let mut above = (at + STRIPE_STEP).min(end);
        // The nearest stripe that begins below, if this column knows of it.
        while above > DESCRIPTOR_LEN && above + LARGEST_STRIPE > at {
            let start = above.saturating_sub(SKIM).max(DESCRIPTOR_LEN);
            let place = Place { segment: segment.id, column: 0, offset: start, stored: above - start };
            let bytes = pool.store().read_part(segment, column, place)?.ok()?;
            let steps = (start..above).step_by(STRIPE_STEP as usize).rev();
            let found = steps
                .filter_map(|stripe| expected.header(column, stripe, &bytes[(stripe - start) as usize..]))
                .next();
            if let Some(stripe) = found {
                return (stripe.offset + stripe.height > offset).then_some(stripe);
            }
            above = start;
        }
        None
    })
}

impl Drop for Reconstruction {
    /// The slots may be another segment's as soon as this one is let go: nothing may be under way to them.
    fn drop(&mut self) {
        self.writes.complete(0, &mut self.tally);
    }
}
