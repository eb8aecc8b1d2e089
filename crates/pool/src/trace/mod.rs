//! The trace: finds out what is live, by walking all trees, and frees the rest.
//!
//! No counts of references are kept on disk. Most blocks are freed by the commit that drops them; what may be
//! shared, or held by a snapshot, stays when it is dropped, and the trace finds it. It is the checker, too:
//! what the block map knows and no tree refers to has leaked, what trees refer to and the map does not know is
//! lost.
//!
//! # Life
//! 1. **Pin.** A commit that is asked to, when everything it writes has its id and nobody is inside, notes the
//!    roots of all trees and the highest id in use, the *horizon*. Blocks above it are none of this trace's
//!    business.
//! 2. **Walk** ([`walk`]): every node below the pinned roots is read once; the ids of nodes and records go into
//!    a set that spills ([`spill`]).
//! 3. **Sweep** ([`sweep`]): that set and the block map are read side by side, in order of id. What the map knows
//!    and nobody refers to dies; marks of second references that are gone are cleared.
//! 4. Ids that are live and have no entry are *missing*, unless they were freed since the pin. Files that name some of
//!    them are looked for, to be told of as damaged.
//!
//! # Live traffic
//! Each step is short, and between steps everything goes on. What happens since the pin cannot make a block of
//! before the pin live again that no pinned tree refers to, but for three things, which are told to the trace:
//! - [`Pool::trace_holds`]: a node that the walk may still have to read is not freed yet;
//! - [`Pool::trace_freed`]: a block was freed, so that its entry is not missing. Told under the commit lock;
//! - [`Pool::trace_touched`]: somebody made a second reference, so the block is spared and its mark stays. Told
//!   before the mark is set: the sweep looks at what was touched, and changes the map, under one lock. What was
//!   touched joins a set that spills; the sweep, which reads that, halts for it when memory has had its share.
//!
//! What waits in the free queue is left to it; what the sweep finds dead joins it, and is freed by it
//! ([`crate::free`]).
//!
//! # Locks
//! The trace's own, for a step; below it the commit lock, while spilled pages are written and while the sweep
//! judges (then nothing moves and nothing is freed); never a dataset's, never the gate alone, and the map's
//! only for a moment. What the outside tells goes to a list behind a lock of its own, innermost of all.
//!
//! # Crash
//! What the walk found is in memory and in pages that no descriptor names: a crash or an export leaves nothing of it
//! but segments without live blocks, which the next commit frees, and a note ([`Pool::trace_was_cut`]), so that it
//! begins anew. What the sweep freed or unmarked is an update of the map like any other, and the same commit keeps
//! the id through which it has judged. The next trace takes up from there: it pins anew, with a horizon of its own,
//! and leaves alone all ids below. No tree needs to be walked for those: what a node names was there before it, so
//! that nodes below that id name nothing above it. What was found before is kept with it, but for missing blocks: what
//! it finds says from which id on it looked ([`Findings::from`]). One that failed is taken up in the same way.
//!
//! # Memory
//! [`larder_store::cache::TRACE_SHARE_PERCENT`] of the budget, whatever the number of blocks: half for the set of what
//! is live, a quarter for the walk, the rest for the other sets.

mod findings;
mod spill;
mod sweep;
#[cfg(test)]
mod tests;
mod walk;

/// What a check is made of.
pub(crate) mod deep {
    pub(crate) use super::spill::{Spill, Tag};
    pub(crate) use super::sweep::{Sweep, Verdict};
    pub(crate) use super::walk::{Member, Met, Visitor, Walk};
    pub(crate) use super::{MemoryPages, Pinned};
}

pub use findings::{Amount, CLASSES, Findings, Outcome, References, Sharing};

use crate::pool::{CommitTurn, Pool};
use findings::SAMPLE;
use larder_format::items::Extent;
use larder_format::node::Key;
use larder_format::run::Marks;
use larder_format::segment::SegmentKind;
use larder_format::{BlockId, BlockPtr, CommitId, Corrupt, DatasetId, SegmentId, Timestamp};
use larder_mutants::{Bug, planted};
use larder_sorted::map::Entry;
use larder_sorted::{PageReader, PageWriter};
use larder_store::error::{PoolError, Result};
use larder_store::runs::RunIo;
use larder_store::{Class, Event};
use larder_sync::Mutex;
use spill::{Merged, Spill, Tag};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sweep::{Sweep, Verdict};
use walk::{Member, Met, Visitor, Walk};

/// Entries of the map that are judged for each node that a step may read.
const ENTRIES_PER_NODE: usize = 64;
/// Pages of spilled sets that are merged for each node that a step may read.
const PAGES_PER_NODE: usize = 1;
/// Free segments that a group must have for the trace to write pages.
const SPARE_SEGMENTS: u64 = 4;
/// What the outside may tell between two steps, entries; when it is more, the trace gives up.
const TOLD_AT_MOST: usize = 4 << 20;
/// Touched blocks that the sweep leaves in memory: some 16 bytes each.
const TOUCHED_AT_MOST: usize = 64 << 10;
/// Of the trace's memory, they take at most this part.
const TOUCHED_SHARE: usize = 256;

/// How far a trace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// When it began.
    pub started: Timestamp,
    /// Whether the trees are walked, or already the block map.
    pub phase: Phase,
    /// Blocks looked at: once in the trees, once in the map.
    pub examined: u64,
    /// Blocks to be looked at, estimated; never less than `examined`.
    pub total: u64,
}

/// See [`Progress::phase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Trees are walked.
    Walk,
    /// The block map is.
    Sweep,
}

/// The pool's place for a trace.
#[derive(Default)]
pub(crate) struct Slot {
    trace: Mutex<Option<Trace>>,
    told: Mutex<Told>,
    /// The horizon of the trace under way, and as long as nodes must be held; 0 without.
    horizon: AtomicU64,
    holds: AtomicU64,
}

/// What the outside tells, and what it may see.
#[derive(Default)]
struct Told {
    /// The next commit is to pin its roots.
    wanted: bool,
    pinned: Option<Pinned>,
    freed: Vec<BlockId>,
    touched: HashSet<BlockId>,
    /// Some block was, be it above the horizon.
    any_touched: bool,
    /// More was told than is kept.
    overrun: bool,
    segments: Vec<SegmentId>,
    progress: Option<Progress>,
}

/// What a commit leaves for a trace to begin with.
pub(crate) struct Pinned {
    pub(crate) commit: CommitId,
    pub(crate) started: Timestamp,
    pub(crate) members: Vec<Member>,
    /// The datasets, by [`Member::origin`]; the last number may stand for more than one.
    origins: Vec<DatasetId>,
    pub(crate) horizon: BlockId,
    /// What is below was judged before a crash or an export.
    from: BlockId,
    /// Bytes that were left to a trace.
    left: u64,
    /// Those that are not any more when this one ends: what was left when it first began.
    settles: u64,
    /// Bytes that were dropped under a floor. Snapshots hold them, or nobody does: an older block may have been
    /// referred to anew.
    held: u64,
    /// Blocks that are counted as live.
    pub(crate) blocks: u64,
}

/// The sets of ids.
struct Sets {
    live: Spill,
    freed: Spill,
    spared: Spill,
    suspects: Spill,
}

impl Sets {
    fn new(memory: usize) -> Self {
        let small = || Spill::new(memory / 12);
        Self { live: Spill::new(memory / 2), freed: small(), spared: small(), suspects: small() }
    }

    fn all(&mut self) -> [&mut Spill; 4] {
        [&mut self.live, &mut self.freed, &mut self.spared, &mut self.suspects]
    }

    /// Writes out what is full and carries merges on; whether something was to be done.
    fn tend<W: PageWriter<Error = PoolError>>(
        &mut self,
        io: &mut W,
        soon: usize,
        pages: usize,
    ) -> Result<bool> {
        for (i, set) in self.all().into_iter().enumerate() {
            let soon = if i == 0 { soon } else { 0 };
            if set.is_full(soon) && !set.is_spilled() {
                set.spill(io)?;
                return Ok(true);
            }
            if set.join_step(io, pages)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

enum Stage {
    Walk,
    /// What was found is made ready to be read side by side.
    Settle,
    Sweep(Box<Sweep>),
    /// Suspects are held against what was freed.
    Suspects(Option<Box<(Merged, Merged)>>),
}

/// A trace under way.
pub(crate) struct Trace {
    pinned: Pinned,
    walk: Walk,
    sets: Sets,
    stage: Stage,
    findings: Findings,
    walked: u64,
    swept: u64,
    /// Marks of second references that stay.
    shared: u64,
    /// By [`Member::origin`].
    sharing: Vec<Sharing>,
    touched_limit: usize,
}

/// What the trace notes of the trees.
struct Marker<'a> {
    sets: &'a mut Sets,
    findings: &'a mut Findings,
    walked: &'a mut u64,
}

impl Visitor for Marker<'_> {
    fn node(&mut self, _: &Member, ptr: BlockPtr, _: bool) -> Result<()> {
        self.sets.live.push(ptr.id, Tag::default());
        *self.walked += 1;
        Ok(())
    }
    fn extent(&mut self, member: &Member, _: &Key, extent: &Extent, met: Met) -> Result<()> {
        if met == Met::Reference {
            self.sets.live.push(extent.ptr.id, Tag::new(extent.logical, member.origin));
            *self.walked += 1;
        }
        Ok(())
    }
    fn lost(&mut self, member: &Member, _: String) {
        let findings = &mut *self.findings;
        findings.lost += 1;
        if findings.lost_in.len() < SAMPLE && !findings.lost_in.contains(&member.lineage) {
            findings.lost_in.push(member.lineage);
        }
    }
}

impl Trace {
    /// A trace of what is pinned; `before` is what it had found when it was cut short.
    fn new(mut pinned: Pinned, before: Option<Findings>, memory: u64) -> Self {
        let memory = memory as usize;
        let sets = Sets::new(memory);
        let (commit, from, started) = (pinned.commit, pinned.from, pinned.started);
        let findings = before.map_or_else(
            || Findings { commit, from, started, ..Findings::default() },
            |before| Findings { commit, from, ..before },
        );
        let walk = Walk::new(std::mem::take(&mut pinned.members), pinned.from, memory / 4, false);
        let of = |dataset: &DatasetId| {
            let before = findings.sharing.iter().find(|of| of.dataset == *dataset);
            before.copied().unwrap_or(Sharing { dataset: *dataset, ..Sharing::default() })
        };
        // The last number stands for too many to be told.
        let sharing = pinned.origins.iter().take(Tag::MAX_ORIGIN as usize).map(of).collect();
        let stage = Stage::Walk;
        let touched_limit = TOUCHED_AT_MOST.min(memory / TOUCHED_SHARE);
        let swept = findings.judged_blocks();
        Self { pinned, walk, sets, stage, findings, walked: 0, swept, shared: 0, sharing, touched_limit }
    }

    fn progress(&self) -> Progress {
        let phase = if matches!(self.stage, Stage::Walk) { Phase::Walk } else { Phase::Sweep };
        let blocks = self.pinned.blocks;
        // What is left of the walk is an estimate: after it, the sweep's half is known better.
        let examined =
            if phase == Phase::Walk { self.walked.min(blocks) } else { blocks + self.swept.min(blocks) };
        Progress { started: self.pinned.started, phase, examined, total: 2 * blocks.max(1) }
    }

    /// One step; whether there is more. `effort` is in nodes read.
    fn step<W: PageWriter<Error = PoolError>>(
        &mut self,
        pool: &Pool,
        io: &mut W,
        effort: usize,
    ) -> Result<bool> {
        if self.sets.tend(io, self.walk.extents_per_batch(), effort * PAGES_PER_NODE)? {
            return Ok(true);
        }
        match &mut self.stage {
            Stage::Walk => {
                let (sets, findings, walked) = (&mut self.sets, &mut self.findings, &mut self.walked);
                let mut marker = Marker { sets, findings, walked };
                if self.walk.step(pool, &mut marker)? == 0 {
                    self.stage = Stage::Settle;
                }
            }
            Stage::Settle => {
                let pages = effort * PAGES_PER_NODE;
                let (live, spared) = (&mut self.sets.live, &mut self.sets.spared);
                if !live.settle_step(io, pages)? && !spared.settle_step(io, pages)? {
                    let ids = self.pinned.from..=self.pinned.horizon;
                    let sweep = Sweep::new(live.read(io)?, spared.read(io)?, ids);
                    self.stage = Stage::Sweep(Box::new(sweep));
                }
            }
            Stage::Sweep(sweep) if sweep.waits_for_spared() => {
                let spared = &mut self.sets.spared;
                if !spared.settle_step(io, effort * PAGES_PER_NODE)? {
                    sweep.give_spared(spared.read(io)?);
                }
            }
            Stage::Sweep(sweep) => {
                let mut judged = Vec::new();
                let (findings, swept, shared) = (&mut self.findings, &mut self.swept, &mut self.shared);
                let (pinned, sharing) = (&self.pinned, &mut self.sharing);
                let judge = |id, entry: Entry, verdict: Verdict<'_>| {
                    *swept += 1;
                    *shared += u64::from(entry.marks.contains(Marks::SHARED));
                    judged.extend(pinned.judge(findings, sharing, &entry, verdict).map(|act| (id, act)));
                    Ok(())
                };
                let entries = (effort * ENTRIES_PER_NODE).min(pool.queue_room());
                let more = sweep.step(pool, io, entries, &mut self.sets.suspects, judge)?;
                // What is below a node that cannot be read may be needed.
                if self.findings.lost == 0 {
                    let unshared = pool.act(&judged);
                    self.findings.unshared += unshared;
                    self.shared -= unshared;
                    let _op = pool.enter()?;
                    pool.keep_note(FOUND, &self.findings.so_far(&self.sharing).encode())?;
                    pool.note_judged(sweep.next(), self.pinned.settles);
                }
                if !more {
                    self.stage = Stage::Suspects(None);
                }
            }
            Stage::Suspects(reading @ None) => {
                let pages = effort * PAGES_PER_NODE;
                let (suspects, freed) = (&mut self.sets.suspects, &mut self.sets.freed);
                if !suspects.settle_step(io, pages)? && !freed.settle_step(io, pages)? {
                    *reading = Some(Box::new((suspects.read(io)?, freed.read(io)?)));
                }
            }
            Stage::Suspects(Some(reading)) => {
                let (suspects, freed) = &mut **reading;
                for _ in 0..effort * ENTRIES_PER_NODE {
                    let Some(suspect) = suspects.next(io)? else { return Ok(false) };
                    if !freed.contains(suspect.id, io)? {
                        self.findings.missing += 1;
                        pool.note_missing(BlockId::new(suspect.id));
                        if self.findings.missing_sample.len() < SAMPLE {
                            self.findings.missing_sample.push(suspect.id);
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// Whether the next step changes the map or judges by what it says.
    fn is_sweeping(&self) -> bool {
        matches!(&self.stage, Stage::Sweep(sweep) if !sweep.waits_for_spared())
    }

    /// Takes over what was touched since the last step. What the sweep reads already is added to only when memory has
    /// had its share.
    fn spare(&mut self, touched: &mut HashSet<BlockId>) {
        let from = match &mut self.stage {
            Stage::Walk | Stage::Settle => BlockId::new(0),
            Stage::Sweep(_) if touched.len() <= self.touched_limit => return,
            Stage::Sweep(sweep) => {
                let Some(lent) = sweep.lend_spared() else { return };
                self.sets.spared.take_back(lent);
                sweep.next()
            }
            Stage::Suspects(_) => return touched.clear(),
        };
        for id in touched.drain().filter(|&id| id >= from && !planted(Bug::TouchedForgotten)) {
            self.sets.spared.push(id, Tag::default());
        }
    }
}

/// What is done with a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    /// It is dead and was shared, or not, and has this many bytes.
    Condemn(u64),
    /// One reference is left.
    Unshare,
}

impl Pinned {
    /// Whether a block with these marks that nothing refers to may have been left to the trace.
    pub(crate) fn expects(&self, marks: Marks) -> bool {
        marks.contains(Marks::SHARED) || self.left + self.held > 0
    }

    /// Counts a judged block and says what is to be done with it.
    fn judge(
        &self,
        findings: &mut Findings,
        sharing: &mut [Sharing],
        entry: &Entry,
        verdict: Verdict<'_>,
    ) -> Option<Act> {
        let places = entry.places();
        let bytes = places.iter().map(|place| u64::from(place.footprint())).sum();
        let shared = entry.marks.contains(Marks::SHARED);
        match verdict {
            Verdict::Queued => {
                findings.queued.add(bytes);
                None
            }
            Verdict::Spared => {
                findings.live.add(bytes);
                None
            }
            Verdict::Live(references, touched) => {
                findings.live.add(bytes);
                let count = references.iter().map(|one| one.count).sum();
                let logical = references.iter().map(|one| one.tag.logical()).max().unwrap_or(0);
                if logical > 0 {
                    let stored = places.first().map_or(0, |place| u64::from(place.stored));
                    let allocated = bytes;
                    findings.count(&References::of(count, logical.into(), stored, allocated));
                    if entry.print.is_some() {
                        let (once, more) = &mut findings.fingerprinted;
                        *if count > 1 { more } else { once } += 1;
                    }
                    for one in references {
                        let Some(of) = sharing.get_mut(one.tag.origin() as usize) else { continue };
                        of.references += one.count;
                        of.logical += one.count * u64::from(logical);
                        of.allocated += one.count * allocated;
                        of.share += one.count * allocated / count;
                    }
                }
                // A mark `DEAD` beside it may be that of the one reference, dropped since the pin.
                let sole = count == 1 && !touched && !entry.marks.contains(Marks::DEAD);
                (shared && sole).then_some(Act::Unshare)
            }
            Verdict::Dead => {
                let expected = self.expects(entry.marks);
                if expected { &mut findings.dead } else { &mut findings.unreachable }.add(bytes);
                Some(Act::Condemn(bytes))
            }
        }
    }
}

/// Where a step's pages go. The commit lock is taken with the first that is written.
struct SpillPages<'a> {
    pool: &'a Pool,
    io: RunIo<'a>,
    locked: Option<CommitTurn<'a>>,
}

impl PageReader for SpillPages<'_> {
    type Error = PoolError;
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>> {
        self.io.read_page(ptr)
    }
    fn refused(&self, ptr: BlockPtr, why: Corrupt) -> PoolError {
        self.io.refused(ptr, why)
    }
}

impl PageWriter for SpillPages<'_> {
    fn write_page(&mut self, payload: &[u8]) -> Result<BlockPtr> {
        if self.locked.is_none() {
            self.locked = Some(self.pool.commit_turn());
        }
        let spare =
            self.pool.store.core.lock().groups.values().any(|group| group.free_segments() >= SPARE_SEGMENTS);
        if !spare {
            return Err(PoolError::NoSpace);
        }
        self.io.write_page(payload)
    }
}

impl Pool {
    /// Starts a trace of the whole pool, with a commit; false when one is under way already. It goes on with
    /// [`Pool::trace_step`].
    ///
    /// # Errors
    /// When the pool cannot be written, or the commit fails.
    pub fn trace_start(&self) -> Result<bool> {
        self.store.check_writable()?;
        {
            let mut told = self.trace.told.lock();
            if told.progress.is_some() || told.wanted {
                return Ok(false);
            }
            told.wanted = true;
        }
        let begun = self.set_note(BEGUN, "yes").and_then(|()| self.commit());
        begun.inspect_err(|_| self.trace.told.lock().wanted = false)?;
        self.store.event(Event::new(Class::TraceStart));
        Ok(true)
    }

    /// Whether a trace was under way when a crash or an export ended it: it should be started anew.
    pub fn trace_was_cut(&self) -> bool {
        self.trace_progress().is_none() && self.note(BEGUN).is_some_and(|begun| begun == "yes")
    }

    /// Goes on with the trace: reads a batch of nodes, or what comes to as much (`effort`, in nodes). False when it is
    /// over, or none is under way.
    ///
    /// # Errors
    /// When it cannot go on: then it is over, and the findings say why.
    pub fn trace_step(&self, effort: usize) -> Result<bool> {
        let mut slot = self.trace.trace.lock();
        self.take_pinned(&mut slot);
        let Some(trace) = &mut *slot else { return Ok(false) };
        match self.step_of(trace, effort.max(1)) {
            Ok(true) => Ok(true),
            Ok(false) => self.end_trace(&mut slot, Outcome::Done).map(|()| false),
            Err(error) => {
                // Why it failed is more important than that this could not be kept.
                let _ = self.end_trace(&mut slot, Outcome::Failed(error.to_string()));
                Err(error)
            }
        }
    }

    /// Begins with what a commit has pinned.
    fn take_pinned(&self, slot: &mut Option<Trace>) {
        if let Some(pinned) = self.trace.told.lock().pinned.take() {
            let is_cut = pinned.from > BlockId::new(0);
            let before = self.note(FOUND).filter(|_| is_cut).and_then(|found| Findings::decode(&found));
            *slot = Some(Trace::new(pinned, before, self.store.cache.trace_limit()));
        }
    }

    fn step_of(&self, trace: &mut Trace, effort: usize) -> Result<bool> {
        let locked = trace.is_sweeping().then(|| self.commit_turn());
        let mut io = SpillPages { pool: self, io: RunIo::new(&self.store), locked };
        self.hear(trace)?;
        if io.locked.is_some() && self.queue_room() < effort * ENTRIES_PER_NODE {
            self.free_some(effort * PAGES_PER_NODE)?;
            // What finds no room in it is looked for in the map's runs, where it is not before the next commit.
            if self.queue_room() == 0 {
                return Ok(true);
            }
        }
        let more = trace.step(self, &mut io, effort)?;
        let SpillPages { io, locked, .. } = io;
        io.finish()?;
        let mut told = self.trace.told.lock();
        told.segments.clear();
        told.segments.extend(trace.sets.all().iter().flat_map(|set| set.segments()));
        told.progress = Some(trace.progress());
        if !matches!(trace.stage, Stage::Walk) {
            self.trace.holds.store(0, Ordering::Release);
        }
        drop(told);
        drop(locked);
        Ok(more)
    }

    /// Takes over what was told since the last step.
    fn hear(&self, trace: &mut Trace) -> Result<()> {
        let mut told = self.trace.told.lock();
        if told.overrun {
            return Err(PoolError::Invalid("more was freed at once than the trace can keep".into()));
        }
        told.freed.drain(..).for_each(|id| trace.sets.freed.push(id, Tag::default()));
        trace.spare(&mut told.touched);
        Ok(())
    }

    /// Has what is dead freed and clears marks, but for what was touched a moment ago; how many marks of second
    /// references that were.
    fn act(&self, judged: &[(BlockId, Act)]) -> u64 {
        let map = &mut *self.store.map.lock();
        let untouched: Vec<_> = {
            let told = self.trace.told.lock();
            judged.iter().filter(|(id, _)| !told.touched.contains(id)).collect()
        };
        // Who touches one of them from now on waits for the map to set the mark.
        let mut unshared = 0;
        for &&(id, act) in &untouched {
            match act {
                Act::Condemn(bytes) => self.condemn(map, id, bytes),
                Act::Unshare => self.note_sole(map, id),
            }
            unshared += u64::from(act == Act::Unshare);
        }
        unshared
    }

    /// Lets go of all that the trace held, and keeps what it found.
    fn end_trace(&self, slot: &mut Option<Trace>, outcome: Outcome) -> Result<()> {
        if let Some(trace) =
            slot.as_ref().filter(|trace| outcome == Outcome::Done && trace.findings.lost == 0)
        {
            self.settle_left(trace.pinned.settles);
            let _nobody_enters = self.gate.write();
            let saw_all = trace.pinned.from == BlockId::new(0);
            if saw_all && trace.shared == 0 && !self.trace.told.lock().any_touched {
                self.nothing_is_shared();
            }
        }
        // One that could not go on is taken up again where it was.
        if !matches!(outcome, Outcome::Failed(_)) {
            self.note_judged(BlockId::new(0), 0);
        }
        self.trace.horizon.store(0, Ordering::Release);
        self.trace.holds.store(0, Ordering::Release);
        *self.trace.told.lock() = Told::default();
        let Some(Trace { mut findings, sharing, .. }) = slot.take() else { return Ok(()) };
        self.note_lost_in(&findings.lost_in);
        let text = match &outcome {
            Outcome::Done if findings.from == BlockId::new(0) => format!("{} errors", findings.errors()),
            Outcome::Done => format!("{} errors in blocks from {} on", findings.errors(), findings.from),
            Outcome::Failed(why) => format!("failed: {why}"),
            _ => "stopped".to_owned(),
        };
        self.store.event(Event::new(Class::TraceFinish).text(text));
        findings.outcome = outcome;
        findings.keep_sharing(sharing);
        findings.finished = self.store.world.clock.now();
        self.set_note(BEGUN, "no")?;
        self.set_note(NOTE, &findings.encode())
    }

    /// Ends the trace that is under way, if one is; what it freed is freed. The next one begins anew.
    ///
    /// # Errors
    /// When it cannot be noted that it was stopped.
    pub fn trace_stop(&self) -> Result<()> {
        let mut slot = self.trace.trace.lock();
        self.take_pinned(&mut slot);
        self.end_trace(&mut slot, Outcome::Stopped)
    }

    /// How far the trace is that is under way, if one is.
    pub fn trace_progress(&self) -> Option<Progress> {
        self.trace.told.lock().progress
    }

    /// What the last trace found.
    pub fn trace_findings(&self) -> Option<Findings> {
        Findings::decode(&self.note(NOTE)?)
    }

    /// Whether a dropped node must not be freed yet, because the trace may have to read it.
    pub(crate) fn trace_holds(&self, id: BlockId) -> bool {
        id.get() <= self.trace.holds.load(Ordering::Acquire)
    }

    /// A block is freed, under the commit lock.
    pub(crate) fn trace_freed(&self, id: BlockId) {
        self.tell(id, |told| told.freed.push(id));
    }

    /// A block that was there before is about to get another reference.
    pub(crate) fn trace_touched(&self, id: BlockId) {
        let horizon = self.trace.horizon.load(Ordering::Acquire);
        if horizon == 0 {
            return;
        }
        self.trace.told.lock().any_touched = true;
        self.tell(id, |told| {
            told.touched.insert(id);
        });
    }

    fn tell(&self, id: BlockId, note: impl FnOnce(&mut Told)) {
        if id.get() <= self.trace.horizon.load(Ordering::Acquire) {
            let mut told = self.trace.told.lock();
            if told.freed.len().max(told.touched.len()) < TOLD_AT_MOST {
                note(&mut told);
            } else {
                told.overrun = true;
            }
        }
    }

    /// Segments with pages that nothing but the trace under way names.
    pub(crate) fn trace_segments(&self) -> Vec<SegmentId> {
        self.trace.told.lock().segments.clone()
    }

    /// Notes for a trace that was asked for what this commit's trees are. All of them are sealed, the gate is
    /// closed.
    pub(crate) fn pin_trace(&self, commit: CommitId) {
        if !std::mem::take(&mut self.trace.told.lock().wanted) {
            return;
        }
        let pinned = self.pin(commit);
        self.trace.horizon.store(pinned.horizon.get(), Ordering::Release);
        self.trace.holds.store(pinned.horizon.get(), Ordering::Release);
        let (started, total) = (pinned.started, 2 * pinned.blocks.max(1));
        let mut told = self.trace.told.lock();
        told.progress = Some(Progress { started, phase: Phase::Walk, examined: 0, total });
        told.pinned = Some(pinned);
    }

    /// What is committed now. Nobody may be inside.
    pub(crate) fn pin(&self, commit: CommitId) -> Pinned {
        let (mut members, mut origins) = (Vec::new(), Vec::new());
        let mut held = 0;
        for dataset in self.trees() {
            let lineage = dataset.id();
            let of: Arc<str> = self.tree_name(&dataset).into();
            let state = dataset.state.read();
            let mut predecessor = None;
            let origin = origins.len() as u32;
            origins.push(lineage);
            let mut add = |name, root, referenced, predecessor| {
                let number = members.len() as u32;
                members.push(Member { number, lineage, origin, name, root, referenced, predecessor });
            };
            for snapshot in self.snapshots(lineage) {
                if let Some(root) = snapshot.root {
                    let name = format!("{of}@{}", snapshot.name).into();
                    add(name, root, snapshot.referenced, predecessor);
                }
                predecessor = snapshot.root.map(|root| (root, snapshot.high));
            }
            held += state.record.held;
            if let Some(root) = state.tree.committed_root() {
                add(of, root, state.record.referenced, predecessor);
            }
        }
        let left = self.left_bytes();
        let (from, settles) = self.judged().unwrap_or((BlockId::new(0), left));
        let core = self.store.core.lock();
        let counted = core.entries.values().filter(|entry| {
            matches!(entry.segment.kind, SegmentKind::Data | SegmentKind::Small | SegmentKind::Node)
        });
        Pinned {
            commit,
            started: self.store.world.clock.now(),
            members,
            origins,
            horizon: BlockId::new(core.next_block.get() - 1),
            from,
            left,
            settles,
            held,
            blocks: counted.map(|entry| u64::from(entry.live_blocks)).sum(),
        }
    }
}

/// The note that findings are kept in.
const NOTE: &str = "trace";
/// The note of what a trace under way has found so far.
const FOUND: &str = "trace-found";
/// The note that says whether a trace is under way.
const BEGUN: &str = "trace-begun";

/// Pages in memory: for a check, which must not write.
#[derive(Default)]
pub(crate) struct MemoryPages(Vec<Arc<[u8]>>);

impl PageReader for MemoryPages {
    type Error = PoolError;
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>> {
        Ok(Arc::clone(&self.0[ptr.id.get() as usize]))
    }
    fn refused(&self, _: BlockPtr, why: Corrupt) -> PoolError {
        why.into()
    }
}

impl PageWriter for MemoryPages {
    fn write_page(&mut self, payload: &[u8]) -> Result<BlockPtr> {
        let id = BlockId::new(self.0.len() as u64);
        self.0.push(payload.into());
        let place = larder_format::Place { segment: SegmentId::new(0), column: 0, offset: 0, stored: 1 };
        Ok(BlockPtr { id, place })
    }
}
