//! The intent log: what makes `fsync` cheap between commits.
//!
//! Operations are noted in memory in the pool's order, each with a number. An fsync appends all that
//! are noted and not yet logged to the log, then flushes the devices that hold it; callers that wait
//! for the lock meanwhile find their operations logged by whoever held it (group commit). A commit
//! holds every operation noted before it: its root says up to which number, and where in the log what
//! comes after begins. So import replays the log's operations above that number, in order, on the
//! trees of the root.
//!
//! Records are chained by sequence and by the predecessor's checksum; the chain ends where the next
//! record is not found in the current segment nor at the start of the next. The root names the
//! segments in the order in which they are used. A segment is used when a durable root names it, not before: import
//! would not look into it. When no such segment has room, an fsync becomes a commit.
//!
//! When a file is written anew and the old one then removed, by whatever name and in whatever dataset, one of them must
//! be there after a crash, though somebody else's fsync logs the removal. So an operation that takes data away goes
//! into one record with all that was written before and is not durable. Where that is much, or in the trees already, an
//! fsync becomes a commit.
//!
//! A crash while a record is written loses that record, which nobody was told of. A crash between the
//! sealing of a commit and its root replays from the older root: therefore notes are dropped only once
//! they are logged or their commit is durable.

use larder_device::ALIGN;
use larder_format::block::{self, BLOCK_OVERHEAD, BlockKind, Stamp};
use larder_format::checksum::{Sums, fast64};
use larder_format::log::{LogRecord, decode_op, encode_op};
use larder_format::root::Root;
use larder_format::segment::{
    DESCRIPTOR_LEN, SegmentKind, SegmentRecord, SegmentState, StripeHeader, stripe_header_len,
};
use larder_format::{CommitId, Corrupt, DatasetId, Incarnation, OpSeq, SegmentId};
use larder_mutants::{Mutant, mutated, point};
use larder_store::member::{MemberState, Written};
use larder_store::own_info;
use larder_store::segments::{Listed, Segment, StripeImage};
use larder_store::stripe;
use larder_store::{PoolError, Refusal, Result, Retired, Store, draft, frame};
use larder_sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Segments that the log is given at each commit.
pub(crate) const LOG_SEGMENTS: usize = 3;
/// The part of these that one fsync may take, where they lie on devices that are there for the log.
const SHARE_OF_ONE: u64 = 8;

/// An operation that waits for an fsync or a commit.
struct Note {
    seq: u64,
    /// It takes data away: the last name of a file, or a part of its content.
    removes: bool,
    /// It goes into the record of the one before it.
    is_joined: bool,
    framed: Vec<u8>,
}

/// Operations noted since the last durable commit and not yet logged.
#[derive(Default)]
pub(crate) struct Notes {
    pending: VecDeque<Note>,
    bytes: usize,
    next: u64,
    logged: u64,
    /// Number of operations that removed something, those included that the log does not get.
    removals: u64,
    /// Data written before any removal up to the first of these is noted, by operations up to the second.
    covered: (u64, u64),
}

/// Waiting operations that may go into one record.
enum LogBatch {
    /// All up to this one.
    Ops(u64, Vec<Vec<u8>>),
    /// One removes data, and what was written before is not noted.
    Uncovered,
    /// They do not fit.
    TooMuch,
}

/// Where a record is durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// On all devices that count, or that a root tells of.
    Everywhere,
    /// A copy is lacking of which no root tells yet.
    Untold,
    Nowhere,
}

/// Progress of the log.
pub(crate) enum Logged {
    All,
    /// Earlier writes must be noted first.
    Uncovered,
    /// The log has no room.
    Full,
}

impl Notes {
    /// Notes whose numbers go on after `applied`.
    pub(crate) fn after(applied: OpSeq) -> Self {
        Self { next: applied.get() + 1, logged: applied.get(), ..Self::default() }
    }

    /// Notes an operation and returns its number.
    pub(crate) fn note(&mut self, dataset: DatasetId, op: Vec<u8>, removes: bool) -> OpSeq {
        let seq = self.next;
        self.next += 1;
        self.removals += u64::from(removes);
        let framed = encode_op(OpSeq::new(seq), dataset, &op);
        self.bytes += framed.len();
        self.pending.push_back(Note { seq, removes, is_joined: false, framed });
        OpSeq::new(seq)
    }

    /// The last operation goes into one record with the one before it.
    pub(crate) fn join_last(&mut self) {
        self.pending.back_mut().expect("one was just noted").is_joined = true;
    }

    /// Something was removed that only a commit tells of.
    pub(crate) fn note_removal(&mut self) {
        self.removals += 1;
    }

    /// Removals so far.
    pub(crate) fn removals(&self) -> u64 {
        self.removals
    }

    /// Whether all up to `seq` is in the log or in a durable commit.
    pub(crate) fn has_logged(&self, seq: OpSeq) -> bool {
        self.logged >= seq.get()
    }

    /// The last number given.
    pub(crate) fn last(&self) -> OpSeq {
        OpSeq::new(self.next - 1)
    }

    /// A commit that holds everything up to `seq` is durable.
    pub(crate) fn committed(&mut self, seq: OpSeq) {
        self.forget(seq);
        self.logged = self.logged.max(seq.get());
    }

    /// Bytes of operations waiting.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the operations up to `seq`.
    fn forget(&mut self, seq: OpSeq) {
        while self.pending.front().is_some_and(|note| note.seq <= seq.get()) {
            let note = self.pending.pop_front().expect("it was just seen");
            self.bytes -= note.framed.len();
        }
    }

    /// The operations up to `target`, and those after it that can go along, or as many of them as one record of `limit`
    /// bytes takes. A removal goes into one record with what covers it, or waits.
    fn next_batch(&self, target: OpSeq, limit: usize) -> LogBatch {
        let (through, by) = self.covered;
        let (mut ops, mut last, mut bytes) = (Vec::new(), self.logged, 0);
        // Last number and count of operations: before the first removal, if any; up to the last whole joined group.
        let (mut before_removal, mut whole) = (None, (last, 0));
        let mut is_covered = true;
        for note in self.pending.iter().filter(|note| note.seq > self.logged) {
            if note.removes && note.seq > through && !mutated(Mutant::RemovalNotCovered) {
                if note.seq <= target.get() {
                    return LogBatch::Uncovered;
                }
                is_covered = false;
                break;
            }
            if note.removes && before_removal.is_none() {
                before_removal = Some((last, ops.len()));
            }
            if !note.is_joined {
                whole = (last, ops.len());
            }
            bytes += note.framed.len() + 4;
            if bytes > limit {
                last = whole.0;
                ops.truncate(whole.1);
                break;
            }
            ops.push(note.framed.clone());
            last = note.seq;
        }
        if let Some((before, count)) = before_removal
            && last < by
        {
            ops.truncate(count);
            last = before;
        }
        match ops.is_empty() {
            false => LogBatch::Ops(last, ops),
            true if is_covered => LogBatch::TooMuch,
            // The operations that cover the first removal come after another one.
            true => LogBatch::Uncovered,
        }
    }
}

/// The log's end.
#[derive(Default)]
pub(crate) struct Intent {
    /// Its segments: the one being filled, then the spares; each with the first commit whose root names it.
    pub segments: VecDeque<(SegmentId, CommitId)>,
    /// Where the next record goes in the first of them.
    pub offset: u32,
    /// The next record's sequence.
    pub sequence: u64,
    /// Sum of the last record's payload.
    pub previous: u64,
    /// Members changed with this commit: until its root is durable, import would look for the log on those before.
    pub changed: CommitId,
}

/// Fsyncs of so much data that only a log on devices of its own takes it: what they note is in memory twice until it is
/// logged, so all that are under way share what one may have.
#[derive(Default)]
pub(crate) struct LargeSyncs {
    /// Bytes that they may note.
    most: AtomicU64,
    taken: AtomicU64,
}

/// Leave to note much data, until it is dropped.
pub struct LargeSync<'a> {
    of: &'a LargeSyncs,
    bytes: u64,
}

impl Drop for LargeSync<'_> {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl LargeSyncs {
    fn admit(&self, bytes: u64) -> Option<LargeSync<'_>> {
        let most = self.most.load(Ordering::Acquire);
        let with = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= most);
        let admitted = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, with);
        admitted.is_ok().then_some(LargeSync { of: self, bytes })
    }
}

/// An operation found in the log.
pub(crate) type Replayed = (DatasetId, Vec<u8>);

/// The log of an imported pool. The end is locked before the notes.
pub(crate) struct IntentLog {
    store: Arc<Store>,
    end: Mutex<Intent>,
    pub(crate) notes: Mutex<Notes>,
    /// Held shared by who removes something, and alone by a commit that has to get ahead of them.
    removal: RwLock<()>,
    /// The newest commit that will hold data which the log has not.
    unlogged_in: AtomicU64,
    replay: Mutex<Vec<Replayed>>,
    /// The log holds what the trees do not: a commit would drop it.
    is_replaying: AtomicBool,
    /// Operations replayed from the log are in no commit yet.
    redoes: AtomicBool,
    /// The newest root says that no log follows it: an fsync takes a commit.
    closed: AtomicBool,
    large: LargeSyncs,
    /// Why an import for reading only left it, or its rest, unread.
    left: Option<String>,
}

impl IntentLog {
    pub(crate) fn new(store: &Arc<Store>, end: Intent, last: OpSeq, ops: Vec<Replayed>) -> Self {
        Self {
            store: Arc::clone(store),
            end: Mutex::new(end),
            notes: Mutex::new(Notes::after(last)),
            removal: RwLock::default(),
            unlogged_in: AtomicU64::new(0),
            // Until the commit that ends the replay.
            is_replaying: AtomicBool::new(!ops.is_empty()),
            redoes: AtomicBool::new(!ops.is_empty()),
            replay: Mutex::new(ops),
            closed: AtomicBool::new(false),
            large: LargeSyncs::default(),
            left: None,
        }
    }

    /// The same, which was left for this reason, if there is one.
    pub(crate) fn left_for(self, why: Option<String>) -> Self {
        Self { left: why, ..self }
    }

    /// Why it was left.
    pub(crate) fn left(&self) -> Option<String> {
        self.left.clone()
    }

    /// A commit is sealed whose root says that no log follows it, or one that says the opposite. Nobody appends
    /// meanwhile.
    pub(crate) fn set_closed(&self, _end: &Intent, closed: bool) {
        self.closed.store(closed, Ordering::Release);
    }

    /// Its end; nobody appends meanwhile.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Intent> {
        self.end.lock()
    }

    /// Operations found at import that were not taken yet.
    pub(crate) fn take_replay(&self) -> Vec<Replayed> {
        std::mem::take(&mut self.replay.lock())
    }

    /// All that was found at import is done again.
    pub(crate) fn replayed(&self) {
        self.is_replaying.store(false, Ordering::Release);
    }

    /// Whether operations are still to be done again.
    pub(crate) fn is_replaying(&self) -> bool {
        self.is_replaying.load(Ordering::Acquire)
    }

    /// Whether operations that were done again are in no commit yet.
    pub(crate) fn redoes(&self) -> bool {
        self.redoes.load(Ordering::Acquire)
    }

    /// Refuses a commit that would say of logged operations that the trees have them, while they do not.
    pub(crate) fn check_replayed(&self) -> Result<()> {
        if self.is_replaying() {
            return Err(PoolError::Invalid("nothing can be committed before the log is replayed".into()));
        }
        Ok(())
    }

    /// A commit that holds everything up to `applied` is durable.
    pub(crate) fn committed(&self, applied: OpSeq) {
        let mut notes = self.notes.lock();
        let applied = if mutated(Mutant::WindowForgotten) { notes.last() } else { applied };
        notes.committed(applied);
        drop(notes);
        self.redoes.store(false, Ordering::Release);
    }

    /// Keeps commits that need it from beginning while something is removed.
    pub(crate) fn removing(&self) -> RwLockReadGuard<'_, ()> {
        self.removal.read()
    }

    /// Waits until nobody removes anything, and has others wait.
    pub(crate) fn hold_removals(&self) -> RwLockWriteGuard<'_, ()> {
        self.removal.write()
    }

    /// Data became part of the trees, for the commit that is open, and is not in the log.
    pub(crate) fn note_unlogged(&self) -> CommitId {
        let commit = self.store.open_commit();
        if mutated(Mutant::StoredNotTold) {
            return self.store.durable_commit();
        }
        self.unlogged_in.fetch_max(commit.get(), Ordering::AcqRel);
        commit
    }

    /// Everything that was written before the operation `through` is noted, unless it is in the trees; false then.
    pub(crate) fn cover(&self, through: OpSeq) -> bool {
        if self.unlogged_in.load(Ordering::Acquire) > self.store.durable_commit().get() {
            return false;
        }
        let mut notes = self.notes.lock();
        notes.covered = (through.get(), notes.last().get());
        true
    }

    /// Leave for an fsync to note operations of so many bytes in all, which the log may have no room for.
    pub(crate) fn admit_large(&self, bytes: u64) -> Option<LargeSync<'_>> {
        self.large.admit(bytes)
    }

    /// Bytes of operations that one record takes.
    fn record_limit(&self) -> u32 {
        self.store.max_block() - BLOCK_OVERHEAD - 1024
    }

    /// Bytes that one fsync may log in these segments beyond what it may anywhere: an eighth of them, but no more than
    /// one record takes, since a crash leaves all of it or nothing; 0 where the log lies among the data.
    fn large_allowed(&self, segments: &VecDeque<(SegmentId, CommitId)>) -> u64 {
        let core = self.store.core.lock();
        let bytes_of = |id: SegmentId| {
            let space = &core.groups[&core.entries.get(&id)?.segment.group];
            (!space.has_records()).then_some(u64::from(space.slot_size))
        };
        let all: Option<Vec<u64>> = segments.iter().map(|&(id, _)| bytes_of(id)).collect();
        drop(core);
        let share = all.map_or(0, |all| all.iter().sum::<u64>() / SHARE_OF_ONE);
        share.min(self.record_limit().into())
    }

    /// Logs all up to an operation.
    pub(crate) fn log_through(&self, target: OpSeq) -> Result<Logged> {
        let limit = self.record_limit() as usize;
        let mut intent = self.end.lock();
        let _watch = self.store.watch("an fsync");
        self.store.check_writable()?;
        if self.closed.load(Ordering::Acquire) {
            return Ok(Logged::Full);
        }
        loop {
            let batch = {
                let notes = self.notes.lock();
                if notes.logged >= target.get() {
                    return Ok(Logged::All);
                }
                notes.next_batch(target, limit)
            };
            let (last, ops) = match batch {
                LogBatch::Ops(last, ops) => (last, ops),
                LogBatch::Uncovered => return Ok(Logged::Uncovered),
                LogBatch::TooMuch => return Ok(Logged::Full),
            };
            self.store.check_writable()?;
            if !self.append(&mut intent, ops)? {
                return Ok(Logged::Full);
            }
            let mut notes = self.notes.lock();
            notes.logged = notes.logged.max(last);
            notes.forget(OpSeq::new(last));
        }
    }

    /// Appends one record and makes it durable; false when that takes a commit: the log has no room for it, or a device
    /// missed it that would pass for current without those that have it. A root on them that tells keeps it from that.
    fn append(&self, intent: &mut Intent, ops: Vec<Vec<u8>>) -> Result<bool> {
        let (incarnation, durable) = (self.store.core.lock().incarnation, self.store.durable_commit());
        if durable < intent.changed {
            return Ok(false);
        }
        let record = LogRecord {
            incarnation,
            base: durable,
            sequence: intent.sequence,
            previous: intent.previous,
            ops,
        };
        let payload = record.encode();
        // It may be large, and is not needed beside the block.
        drop(record);
        let sum = fast64(&self.store.sums, &payload);
        let id = self.store.core.lock().take_ids(1);
        let stamp = Stamp { id, incarnation, birth: CommitId::new(durable.get() + 1) };
        let info = own_info(BlockKind::Log, DatasetId::new(0));
        let block = frame(
            &self.store.sums,
            &stamp,
            draft(&self.store.sums, info, larder_store::codec::Codec::Off, payload.into()),
        );
        let footprint = stripe::footprint(block.len());
        let (segment, offset, plan) = loop {
            let Some(&(id, named)) = intent.segments.front() else { return Ok(false) };
            if named > durable && !mutated(Mutant::LogNotNamed) {
                return Ok(false);
            }
            let Some(segment) = self.store.readable.get(id) else { return Ok(false) };
            // A copy of it took no record, or nobody has its group any more: a commit leaves it.
            if !self.store.core.lock().is_sound(id) || !self.store.takes_log(segment.group) {
                return Ok(false);
            }
            let slot_size = self.store.members.get(segment.slots[0].device).slot_size;
            let step = self.store.core.lock().groups[&segment.group].step();
            let room = slot_size - intent.offset;
            if let Some(plan) =
                stripe::plan(segment.layout, step, room, u32::MAX, &[footprint], stripe::anywhere)
            {
                break (segment, intent.offset, plan);
            }
            let next_is_named = intent.segments.get(1).is_some_and(|(_, named)| *named <= durable);
            if !(next_is_named || mutated(Mutant::LogNotNamed) && intent.segments.len() > 1) {
                return Ok(false);
            }
            intent.segments.pop_front();
            intent.offset = DESCRIPTOR_LEN;
        };
        let columns =
            stripe::build(&self.store.sums, &segment, offset, (stamp.birth, incarnation), &plan, &[block]);
        point("a log record is about to be written");
        let kept = self.write_stripe(&segment, StripeImage { offset, columns })?;
        if kept == Kept::Nowhere {
            // An import would take this place for the log's end: nothing may follow it.
            intent.segments.clear();
            return Ok(false);
        }
        point("a log record is written and not noted");
        intent.offset = offset + plan.height;
        intent.sequence += 1;
        intent.previous = sum;
        Ok(kept == Kept::Everywhere)
    }

    /// Writes a stripe of the log to all its copies and flushes them, from this thread, which would only wait
    /// otherwise: all copies are under way before it waits for the first.
    fn write_stripe(&self, segment: &Segment, stripe: StripeImage) -> Result<Kept> {
        let mut members = Vec::with_capacity(segment.slots.len());
        for (slot, column) in segment.slots.iter().zip(&stripe.columns) {
            members
                .extend(self.store.members.writers(slot.device).map(|member| (member, slot.index(), column)));
        }
        let writes: Vec<_> = (members.iter())
            .map(|(member, slot, column)| {
                member.start_write(member.slot_offset(*slot, stripe.offset), Arc::clone(*column))
            })
            .collect();
        let mut refused = vec![None; members.len()];
        for (((member, ..), write), refused) in members.iter().zip(writes).zip(&mut refused) {
            if write.is_some()
                && let Written::Refused(error) = member.complete_write(write)
            {
                *refused = Some(error);
            }
        }
        let mut is_noted = false;
        for ((member, slot, _), error) in members.iter().zip(&refused) {
            let Some(error) = error else { continue };
            let column = segment.slots.iter().position(|other| {
                self.store.members.writers(other.device).any(|writer| Arc::ptr_eq(&writer, member))
            });
            match column.map(|column| self.store.retire_slot(segment, column, *slot, member, error)) {
                Some(Retired::Noted) => is_noted = true,
                _ => member.refuse(error),
            }
        }
        if mutated(Mutant::LogNotFlushed) {
            return Ok(Kept::Everywhere);
        }
        let flushes: Vec<_> = members.iter().map(|(member, ..)| member.start_flush()).collect();
        let (mut copies, mut everywhere, mut lacking) = (0, true, Vec::new());
        for (((member, ..), flush), refused) in members.iter().zip(flushes).zip(&refused) {
            let is_flushed = flush.is_some() && member.complete_flush(flush);
            // Nobody reads what a member has that is being rebuilt.
            if is_flushed && refused.is_none() && member.is_online() {
                copies += 1;
            } else {
                everywhere &= !member.passes_for_current() || mutated(Mutant::LogCopyMissed);
                lacking.push(member);
            }
        }
        // A commit tells of it all, in other segments.
        if is_noted {
            return Ok(Kept::Untold);
        }
        // The pool goes on without the log's own devices: a commit holds what they were to take.
        if copies == 0 && !self.store.is_vital(segment.group) {
            return Ok(if mutated(Mutant::LogLossIgnored) { Kept::Everywhere } else { Kept::Nowhere });
        }
        if copies == 0 {
            let columns: Vec<_> =
                segment.slots.iter().map(|slot| self.store.members.get(slot.device)).collect();
            return Err(self.store.suspend_without(&columns, "the intent log cannot be written"));
        }
        // The record counts as stored from here on, and on a group of the log nothing else tells of that.
        lacking
            .iter()
            .filter(|member| member.state() == MemberState::Faulted)
            .for_each(|it| it.note_missed());
        if copies < segment.slots.len() {
            self.store.check_tolerance()?;
        }
        Ok(if everywhere { Kept::Everywhere } else { Kept::Untold })
    }

    /// A root is about to be published that names segments where no record can be kept any more. If none was since it
    /// was sealed, it says that no log follows: else an import would ask for devices that are gone.
    pub(crate) fn leave_if_lost(&self, root: &mut Root) {
        let is_log = |segment: &&SegmentRecord| {
            segment.kind == SegmentKind::Log && segment.state == SegmentState::Open
        };
        let is_lost = |segment: &SegmentRecord| !self.store.takes_log(segment.group);
        if !root.log_open || !root.segments.iter().filter(is_log).any(is_lost) {
            return;
        }
        let mut intent = self.end.lock();
        if intent.sequence == root.log_sequence {
            // They come back in no later root: a device that is there again would be written to meanwhile.
            intent.segments.clear();
            root.log_open = false;
            self.set_closed(&intent, true);
        }
    }

    /// Whether the newest root names segments where no record can be kept any more: a commit should come.
    pub(crate) fn is_astray(&self) -> bool {
        let segments = match self.end.try_lock() {
            Some(intent) => intent.segments.clone(),
            None => return false,
        };
        let group = |id| self.store.core.lock().entries.get(&id).map(|entry| entry.segment.group);
        segments.iter().filter_map(|&(id, _)| group(id)).any(|group| !self.store.takes_log(group))
    }

    /// At a commit: the log goes on where it is, full segments are closed, and spares are added.
    pub(crate) fn rotate(
        &self,
        _nobody_enters: &RwLockWriteGuard<'_, ()>,
        intent: &mut Intent,
        commit: CommitId,
    ) -> Result<()> {
        let first = intent.segments.front().copied();
        // Where the group has another shape by now, or is lost, or a better one is there, or a slot refused a record,
        // the log begins anew: this commit holds all that is in it.
        let stays = |id: SegmentId| {
            let of = {
                let core = self.store.core.lock();
                core.entries
                    .get(&id)
                    .filter(|_| core.fits(id) && core.is_sound(id))
                    .map(|of| of.segment.group)
            };
            of.is_some_and(|group| self.store.keeps_log(group))
        };
        intent.segments.retain(|&(id, _)| stays(id));
        let mut core = self.store.core.lock();
        if intent.segments.front().copied() != first {
            intent.offset = DESCRIPTOR_LEN;
        }
        let kept: Vec<SegmentId> = intent.segments.iter().map(|&(id, _)| id).collect();
        let of_log = core.entries.listed(Listed::Log);
        let open = of_log.filter(|entry| entry.state == SegmentState::Open).map(|entry| entry.segment.id);
        let open: Vec<SegmentId> = open.collect();
        for id in open.into_iter().filter(|id| !kept.contains(id)) {
            core.close_segment(id);
        }
        drop(core);
        while intent.segments.len() < LOG_SEGMENTS {
            let Some(id) = self.store.open_log_segment()? else { break };
            if intent.segments.is_empty() {
                intent.offset = DESCRIPTOR_LEN;
            }
            intent.segments.push_back((id, commit));
        }
        self.large.most.store(self.large_allowed(&intent.segments), Ordering::Release);
        Ok(())
    }
}

/// A chain of log records, as far as it can be read.
pub(crate) struct Chain {
    /// Operations above the root, in order.
    pub(crate) ops: Vec<Replayed>,
    /// Number of the last one.
    pub(crate) last: OpSeq,
    /// A place where the chain may go on, no copy of which could be read.
    pub(crate) unread: Option<(SegmentId, u32)>,
}

/// The operations that a pool's log holds above its root.
///
/// `read` gives `len` bytes at `offset` of column `column` of a segment, if its device does. A copy that could be read
/// and has no record there ends the segment if its device has all that was acknowledged, or if no copy has one and each
/// was there until the root; what others have proves itself.
///
/// # Errors
/// When the log goes on from a later commit than the root's, whose root must have been lost, or when an
/// intact record holds what is no operation.
pub(crate) fn read_chain(
    sums: &Sums,
    root: &Root,
    slot_size: impl Fn(&SegmentRecord) -> u32,
    copy: impl Fn(&SegmentRecord, usize) -> LogCopy,
    read: impl Fn(&SegmentRecord, usize, u32, usize) -> Option<Vec<u8>>,
) -> Result<Chain> {
    let mut ops = Vec::new();
    let mut last = root.applied;
    let mut sequence = root.log_sequence;
    let mut previous = root.log_previous;
    let mut segments = root
        .segments
        .iter()
        .filter(|segment| segment.kind == SegmentKind::Log)
        .filter(|segment| segment.state == SegmentState::Open);
    let mut current = segments.next();
    let mut offset = root.log_offset;
    while let Some(segment) = current {
        let end = slot_size(segment);
        let (mut found, mut ends, mut all_end) = (None, false, true);
        for column in 0..segment.layout.columns() {
            let expect = (root.log_incarnation, sequence, previous);
            match read_record(sums, segment, column, offset, end, expect, &read) {
                Ok(record) => {
                    found = Some(record);
                    break;
                }
                Err(NoRecord::Unread) => all_end = false,
                Err(NoRecord::Other) => match copy(segment, column) {
                    LogCopy::Whole => ends = true,
                    LogCopy::Recent => {}
                    LogCopy::Older => all_end = false,
                },
            }
        }
        let Some((record, sum, height)) = found else {
            if !ends && !all_end {
                return Ok(Chain { ops, last, unread: Some((segment.id, offset)) });
            }
            current = segments.next();
            offset = DESCRIPTOR_LEN;
            continue;
        };
        if record.base > root.commit {
            return Err(Refusal::LogAhead { log: record.base, root: root.commit }.into());
        }
        for op in record.ops {
            let (seq, dataset, op) = decode_op(&op)?;
            if seq > last {
                last = seq;
                ops.push((dataset, op.to_vec()));
            }
        }
        sequence += 1;
        previous = sum;
        offset += height;
    }
    if mutated(Mutant::ReplayStopsShort) {
        ops.pop();
    }
    Ok(Chain { ops, last, unread: None })
}

/// Part of the log that a device has.
#[derive(Clone, Copy)]
pub(crate) enum LogCopy {
    /// All that was acknowledged.
    Whole,
    /// All that it was asked to take until the commit before the root; then it failed.
    Recent,
    /// Less, or nobody knows.
    Older,
}

/// Why a copy gives no record.
enum NoRecord {
    /// Its device does not give it.
    Unread,
    /// Something else is there.
    Other,
}

impl From<Corrupt> for NoRecord {
    fn from(_: Corrupt) -> Self {
        NoRecord::Other
    }
}

/// One record from one copy, when it is the one expected there.
fn read_record(
    sums: &Sums,
    segment: &SegmentRecord,
    column: usize,
    offset: u32,
    end: u32,
    (incarnation, sequence, previous): (Incarnation, u64, u64),
    read: &impl Fn(&SegmentRecord, usize, u32, usize) -> Option<Vec<u8>>,
) -> Result<(LogRecord, u64, u32), NoRecord> {
    if offset.checked_add(ALIGN as u32).is_none_or(|head| head > end) {
        return Err(NoRecord::Other);
    }
    let head = read(segment, column, offset, ALIGN).ok_or(NoRecord::Unread)?;
    let stripe = StripeHeader::check(sums, &head)?;
    let here = stripe.segment == segment.id
        && (stripe.offset, usize::from(stripe.column)) == (offset, column)
        && stripe.incarnation == incarnation;
    if !here || stripe.height > end - offset {
        return Err(NoRecord::Other);
    }
    let bytes = read(segment, column, offset, stripe.height as usize).ok_or(NoRecord::Unread)?;
    let block = bytes.get(stripe_header_len(stripe.sums.len()) as usize..).ok_or(NoRecord::Other)?;
    let (header, payload) = block::check_any(sums, block)?;
    let record = LogRecord::decode(payload)?;
    let expected = header.info.kind == BlockKind::Log
        && record.incarnation == incarnation
        && record.sequence == sequence
        && record.previous == previous;
    if !expected {
        return Err(NoRecord::Other);
    }
    Ok((record, fast64(sums, payload), stripe.height))
}
