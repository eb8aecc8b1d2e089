//! Garbage collection: finds out what is live, by walking all trees, and frees the rest.
//!
//! No counts of references are kept on disk. Most blocks are freed by the commit that drops them; those that may be
//! shared, or held by a snapshot, stay when they are dropped, and the collection finds them. It is the checker, too:
//! blocks that the block map knows and no tree refers to have leaked, those that trees refer to and the map does not
//! know are lost.
//!
//! # Life
//! 1. **Pin.** A commit that is asked to, when everything it writes has its id and nobody is inside, notes the
//!    roots of all trees and the highest id in use, the *horizon*. Blocks above it are none of this collection's
//!    business.
//! 2. **Mark** ([`mark`]): every node below the pinned roots is read once; the ids of nodes and records go into
//!    a set that spills ([`spill`]). So do those of commit records, which the pool's tables name, and which are read as
//!    well: one that is lost is told, and hides nothing.
//! 3. **Aliases** ([`aliases`]), where there may be any: the map is read beside that set, and what a live alias names
//!    joins it.
//! 4. **Sweep** ([`sweep`]): that set and the block map are read side by side, in order of id. Blocks that the map
//!    knows and nobody refers to die; marks of second references that are gone are cleared.
//! 5. Ids that are live and have no entry are *missing*, unless they were freed since the pin. Files that name some of
//!    them are looked for, to be reported as damaged.
//!
//! # Live traffic
//! Each step is short, and between steps everything goes on. What happens since the pin cannot make a block of
//! before the pin live again that no pinned tree refers to, but for three things, which are told to the collection:
//! - [`Pins::holds`]: a node that the walk may still have to read is not freed yet;
//! - [`Pins::freed`]: a block was freed, so that its entry is not missing. Told under the commit lock;
//! - [`Pins::touched`]: somebody made a second reference, so the block is retained and its mark stays. Told
//!   before the mark is set: the sweep looks at what was touched, and changes the map, under one lock. What was
//!   touched joins a set that spills; the sweep, which reads that, halts for it when memory has had its share.
//!
//! [`Pins::holds`]: larder_pool::pins::Pins::holds
//! [`Pins::freed`]: larder_pool::pins::Pins::freed
//! [`Pins::touched`]: larder_pool::pins::Pins::touched
//!
//! Ids in the free queue are left to it; those that the sweep finds dead join it, and are freed by it
//! (`larder_pool::freeing`).
//!
//! # Locks
//! The collection's own, for a step; below it the commit lock, while spilled pages are written and while the sweep
//! judges (then nothing moves and nothing is freed); never a dataset's, never the gate alone, and the map's
//! only for a moment. What the outside tells goes to a list behind a lock of its own, innermost of all.
//!
//! # Crash
//! The sets of the walk are in memory and in pages that no descriptor names: a crash or an export leaves nothing of
//! them but segments without live blocks, which the next commit frees, and a note ([`Collector::was_cut`]), so that it
//! begins anew. Blocks that the sweep freed or unmarked are updates of the map like any other, and the same commit
//! keeps the id through which it has judged. The next collection takes up from there: it pins anew, with a horizon of
//! its own, and leaves alone all ids below. No tree needs to be walked for those: a node is newer than the blocks it
//! names, so that nodes below that id name nothing above it. Earlier findings are kept with it, but for missing blocks:
//! the findings say from which id on it looked ([`Findings::from`]). One that failed is taken up in the same way.
//!
//! # Memory
//! [`larder_store::cache::GC_SHARE_PERCENT`] of the budget, whatever the number of blocks: half for the set of what
//! is live, a quarter for the walk, the rest for the other sets. One that counts by parts of datasets ([`shares`]) has
//! an eighth for knowing them, and that much less for what is live.

mod aliases;
mod findings;
mod mark;
mod shares;
mod spill;
mod sweep;
#[cfg(test)]
mod tests;

/// Parts that a check is made of.
pub(crate) mod deep {
    pub(crate) use super::aliases::AliasWalk;
    pub(crate) use super::mark::{Met, TreeWalk, Visitor};
    pub(crate) use super::spill::{Spill, Tag};
    pub(crate) use super::sweep::{Sweep, Verdict};
    pub(crate) use super::{MemoryPages, expects};
}

pub use findings::{Amount, CLASSES, Findings, Outcome, References, Sharing};
pub use shares::Parts;

use crate::damage::trees_of;
use aliases::AliasWalk;
use findings::SAMPLE;
use larder_format::commit_record::CommitRecordEntry;
use larder_format::items::Extent;
use larder_format::node::Key;
use larder_format::run::Marks;
use larder_format::{BlockId, BlockPtr, Corrupt, DatasetId, Place, SegmentId};
use larder_mutants::{Mutant, mutated};
use larder_pool::pins::{Phase, Pinned, PinnedTree, Progress};
use larder_pool::{CommitTurn, Pool, Split};
use larder_sorted::map::{Entry, Location};
use larder_sorted::{PageReader, PageWriter};
use larder_store::RunIo;
use larder_store::Store;
use larder_store::{Class, Event};
use larder_store::{PoolError, Result};
use larder_sync::Mutex;
use mark::{Met, TreeWalk, Visitor};
use shares::{SPLIT_SHARE, Shares};
use spill::{Merged, Spill, Tag};
use std::collections::HashSet;
use std::sync::Arc;
use sweep::{Sweep, Verdict};

/// Entries of the map that are judged for each node that a step may read.
const ENTRIES_PER_NODE: usize = 64;
/// Pages of spilled sets that are merged for each node that a step may read.
const PAGES_PER_NODE: usize = 1;
/// Free segments that a group must have for the collection to write pages.
const FREE_SEGMENTS_LEAST: u64 = 4;
/// Live ids that are in memory twice while aliases are looked at: 12 bytes each.
const PERUSED_AT_MOST: usize = 64 << 10;
/// Touched blocks that the sweep leaves in memory: some 16 bytes each.
const TOUCHED_AT_MOST: usize = 64 << 10;
/// Of the collection's memory, they take at most this part.
const TOUCHED_SHARE: usize = 256;

/// See the module's text.
pub struct Collector {
    pool: Arc<Pool>,
    store: Arc<Store>,
    collection: Mutex<Option<Collection>>,
    /// For the next collection.
    split: Mutex<Option<Arc<dyn Split>>>,
    /// Findings of the last one by parts.
    parts: Mutex<Option<Arc<Parts>>>,
}

/// The sets of ids.
struct Sets {
    live: Spill,
    /// Blocks that live aliases refer to.
    aliased: Spill,
    freed: Spill,
    retained: Spill,
    suspects: Spill,
}

impl Sets {
    /// Sets in `memory`, of which something else takes so much.
    fn new(memory: usize, taken: usize) -> Self {
        let small = || Spill::new(memory / 12);
        let live = Spill::new(memory / 2 - taken);
        Self { live, aliased: small(), freed: small(), retained: small(), suspects: small() }
    }

    fn all(&mut self) -> [&mut Spill; 5] {
        [&mut self.live, &mut self.aliased, &mut self.freed, &mut self.retained, &mut self.suspects]
    }

    /// Writes out what is full and carries merges on; whether something was to be done.
    fn spill_step<W: PageWriter<Error = PoolError>>(
        &mut self,
        io: &mut W,
        soon: usize,
        pages: usize,
        is_perused: bool,
    ) -> Result<bool> {
        for (i, set) in self.all().into_iter().enumerate() {
            // Pages that are being read stay.
            if is_perused && i == 0 {
                continue;
            }
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
    Mark,
    /// Merge the sets, to be read side by side.
    Join,
    Aliases(Box<AliasWalk>),
    Sweep(Box<Sweep>),
    /// Suspects are held against what was freed.
    Suspects(Option<Box<(Merged, Merged)>>),
}

/// A collection under way.
pub(crate) struct Collection {
    pinned: Pinned,
    /// Commit records to be marked.
    records: Vec<CommitRecordEntry>,
    walk: TreeWalk,
    sets: Sets,
    stage: Stage,
    /// Aliases were looked at, or there are none.
    has_followed: bool,
    findings: Findings,
    walked: u64,
    swept: u64,
    /// Marks of second references that stay.
    shared: u64,
    shares: Shares,
    touched_limit: usize,
}

/// Tag that a record has beside those of its references when one of them is late: see [`PinnedTree::is_late`]. Or is by
/// an alias: either way it stays marked as shared.
const LATE: Tag = Tag::NONE;

/// Marks blocks as a walk of the trees finds them.
struct Marker<'a> {
    sets: &'a mut Sets,
    findings: &'a mut Findings,
    shares: &'a mut Shares,
    walked: &'a mut u64,
}

impl Visitor for Marker<'_> {
    fn node(&mut self, _: &PinnedTree, ptr: BlockPtr, _: bool) -> Result<()> {
        self.sets.live.push(ptr.id, Tag::default());
        *self.walked += 1;
        Ok(())
    }
    fn extent(&mut self, member: &PinnedTree, key: &Key, extent: &Extent, met: Met) -> Result<()> {
        if met == Met::Reference {
            let part = self.shares.part(member, key.object);
            self.sets.live.push(extent.ptr.id, Tag::new(extent.logical, part));
            if member.is_late(extent.ptr.id) {
                self.sets.live.push(extent.ptr.id, LATE);
            }
            *self.walked += 1;
        }
        Ok(())
    }
    fn lost(&mut self, member: &PinnedTree, _: String) {
        let findings = &mut *self.findings;
        findings.lost += 1;
        if findings.lost_in.len() < SAMPLE && !findings.lost_in.contains(&member.lineage) {
            findings.lost_in.push(member.lineage);
        }
    }
}

impl Collection {
    /// A collection of what is pinned; `before` is what it had found when it was cut short. That knows of no parts: who
    /// takes up from there counts by dataset alone.
    fn new(mut pinned: Pinned, before: Option<Findings>, split: Option<Arc<dyn Split>>, memory: u64) -> Self {
        let memory = memory as usize;
        let split = split.filter(|_| pinned.from == BlockId::new(0));
        let for_split = if split.is_some() { memory / SPLIT_SHARE } else { 0 };
        let sets = Sets::new(memory, for_split);
        let (commit, from, started) = (pinned.commit, pinned.from, pinned.started);
        let findings = before.map_or_else(
            || Findings { commit, from, started, ..Findings::default() },
            |before| Findings { commit, from, ..before },
        );
        let shares = Shares::new(&pinned, &findings.sharing, split, for_split);
        let walk = TreeWalk::new(std::mem::take(&mut pinned.members), pinned.from, memory / 4, false);
        let mut records = std::mem::take(&mut pinned.records);
        records.retain(|record| record.ptr.id >= pinned.from);
        let stage = Stage::Mark;
        let touched_limit = TOUCHED_AT_MOST.min(memory / TOUCHED_SHARE);
        let swept = findings.judged_blocks();
        Self {
            pinned,
            records,
            walk,
            sets,
            stage,
            has_followed: false,
            findings,
            walked: 0,
            swept,
            shared: 0,
            shares,
            touched_limit,
        }
    }

    fn progress(&self) -> Progress {
        let phase = if matches!(self.stage, Stage::Mark) { Phase::Mark } else { Phase::Sweep };
        let blocks = self.pinned.blocks;
        // The rest of the walk is an estimate: after it, the sweep's half is known better.
        let examined =
            if phase == Phase::Mark { self.walked.min(blocks) } else { blocks + self.swept.min(blocks) };
        Progress { started: self.pinned.started, phase, examined, total: 2 * blocks.max(1) }
    }

    /// One step; whether there is more. `effort` is in nodes read.
    fn step<W: PageWriter<Error = PoolError>>(
        &mut self,
        collector: &Collector,
        io: &mut W,
        effort: usize,
    ) -> Result<bool> {
        let pool = &*collector.pool;
        // Each may bring a mark besides.
        let ids = 2 * self.walk.extents_per_batch();
        let is_perused = matches!(self.stage, Stage::Aliases(_));
        if self.sets.spill_step(io, ids, effort * PAGES_PER_NODE, is_perused)? {
            return Ok(true);
        }
        match &mut self.stage {
            Stage::Mark if !self.records.is_empty() => {
                let rest = self.records.len().saturating_sub(effort.min(ids));
                for record in self.records.drain(rest..) {
                    self.sets.live.push(record.ptr.id, Tag::default());
                    self.walked += 1;
                    pool.look_at_commit_record(&record);
                }
            }
            Stage::Mark if self.shares.learn(pool, effort) => {}
            Stage::Mark => {
                let (sets, findings, walked) = (&mut self.sets, &mut self.findings, &mut self.walked);
                let mut marker = Marker { sets, findings, shares: &mut self.shares, walked };
                if self.walk.step(pool, &mut marker)? == 0 {
                    self.shares.walked();
                    self.stage = Stage::Join;
                }
            }
            Stage::Join => {
                let pages = effort * PAGES_PER_NODE;
                let (live, retained) = (&mut self.sets.live, &mut self.sets.retained);
                if !live.join_all_step(io, pages)? && !retained.join_all_step(io, pages)? {
                    let ids = self.pinned.from..=self.pinned.horizon;
                    if !self.has_followed && pool.store().core.lock().has_aliases() {
                        if live.buffered() > PERUSED_AT_MOST {
                            live.spill(io)?;
                            return Ok(true);
                        }
                        self.stage = Stage::Aliases(Box::new(AliasWalk::new(live.peruse(io)?, ids)));
                        return Ok(true);
                    }
                    let sweep = Sweep::new(live.read(io)?, retained.read(io)?, ids);
                    self.stage = Stage::Sweep(Box::new(sweep));
                }
            }
            Stage::Aliases(aliases) => {
                let aliased = &mut self.sets.aliased;
                let refer = |id, tag| {
                    aliased.push(id, tag);
                    Ok(())
                };
                let shares = &self.shares;
                let dataset = |part| shares.dataset(part).map(DatasetId::get);
                if !aliases.step(pool, io, effort * ENTRIES_PER_NODE, dataset, refer)? {
                    self.has_followed = true;
                    self.stage = Stage::Join;
                    while self.sets.aliased.join_step(io, usize::MAX)? {}
                    let aliased = std::mem::replace(&mut self.sets.aliased, Spill::new(0));
                    self.sets.live.absorb(aliased);
                }
            }
            Stage::Sweep(sweep) if sweep.waits_for_retained() => {
                let retained = &mut self.sets.retained;
                if !retained.join_all_step(io, effort * PAGES_PER_NODE)? {
                    sweep.give_retained(retained.read(io)?);
                }
            }
            Stage::Sweep(sweep) => {
                let mut judged = Vec::new();
                let (findings, swept, shared) = (&mut self.findings, &mut self.swept, &mut self.shared);
                let (pinned, shares) = (&self.pinned, &mut self.shares);
                let judge_one = |id, entry: Entry, verdict: Verdict<'_>| {
                    *swept += 1;
                    *shared += u64::from(entry.marks.contains(Marks::SHARED));
                    judged.extend(judge(pinned, findings, shares, &entry, verdict).map(|act| (id, act)));
                    Ok(())
                };
                let entries = (effort * ENTRIES_PER_NODE).min(pool.freeing().queue_room());
                let more = sweep.step(pool, io, entries, &mut self.sets.suspects, judge_one)?;
                // Blocks below a node that cannot be read may be needed.
                if self.findings.lost == 0 {
                    let unshared = collector.act(&judged);
                    self.findings.unshared += unshared;
                    self.shared -= unshared;
                    let _op = pool.enter()?;
                    pool.keep_note(FOUND, &self.findings.so_far(self.shares.by_dataset()).encode())?;
                    pool.freeing().note_judged(sweep.next(), self.pinned.left_before);
                }
                if !more {
                    self.stage = Stage::Suspects(None);
                }
            }
            Stage::Suspects(reading @ None) => {
                let pages = effort * PAGES_PER_NODE;
                let (suspects, freed) = (&mut self.sets.suspects, &mut self.sets.freed);
                if !suspects.join_all_step(io, pages)? && !freed.join_all_step(io, pages)? {
                    *reading = Some(Box::new((suspects.read(io)?, freed.read(io)?)));
                }
            }
            Stage::Suspects(Some(reading)) => {
                let (suspects, freed) = &mut **reading;
                for _ in 0..effort * ENTRIES_PER_NODE {
                    let Some(suspect) = suspects.next(io)? else { return Ok(false) };
                    if !freed.contains(suspect.id, io)? {
                        self.findings.missing += 1;
                        pool.damage().note_missing(BlockId::new(suspect.id));
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
        match &self.stage {
            Stage::Aliases(_) => true,
            Stage::Sweep(sweep) => !sweep.waits_for_retained(),
            _ => false,
        }
    }

    /// Takes over what was touched since the last step. What the sweep reads already is added to only when memory has
    /// had its share.
    fn retain(&mut self, touched: &mut HashSet<BlockId>) {
        let from = match &mut self.stage {
            Stage::Mark | Stage::Join | Stage::Aliases(_) => BlockId::new(0),
            Stage::Sweep(_) if touched.len() <= self.touched_limit => return,
            Stage::Sweep(sweep) => {
                let Some(lent) = sweep.lend_retained() else { return };
                self.sets.retained.take_back(lent);
                sweep.next()
            }
            Stage::Suspects(_) => return touched.clear(),
        };
        for id in touched.drain().filter(|&id| id >= from && !mutated(Mutant::TouchedForgotten)) {
            self.sets.retained.push(id, Tag::default());
        }
    }
}

/// Action on a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    /// It is dead and was shared, or not, and has this many bytes.
    Condemn(u64),
    /// It is dead, and was an alias.
    Forget,
    /// One reference is left.
    Unshare,
}

/// Whether a block with these marks that nothing refers to may have been left to the collection.
pub(crate) fn expects(pinned: &Pinned, marks: Marks) -> bool {
    marks.contains(Marks::SHARED) || pinned.left + pinned.held > 0
}

/// Counts a judged block and says what is to be done with it.
fn judge(
    pinned: &Pinned,
    findings: &mut Findings,
    shares: &mut Shares,
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
            let logical = references.iter().map(|one| one.tag.logical()).max().unwrap_or(0);
            // Of a target whose aliases were judged before this one began, no more is known. No node is shared.
            let is_late = (logical > 0 || shared) && references.iter().any(|one| one.tag == LATE);
            let references = || references.iter().filter(|one| !is_late || one.tag != LATE);
            let count = references().map(|one| one.count).sum();
            // Sharing by an alias is counted where its content is.
            let is_alias = matches!(entry.location, Location::Alias(_));
            if logical > 0 && !is_alias {
                let stored = places.first().map_or(0, |place| u64::from(place.stored));
                let allocated = bytes;
                findings.count(&References::of(count, logical.into(), stored, allocated));
                if entry.print.is_some() {
                    let (once, more) = &mut findings.fingerprinted;
                    *if count > 1 { more } else { once } += 1;
                }
                shares.count(references(), count, logical.into(), allocated);
            }
            // A mark `DEAD` beside it may be that of the one reference, dropped since the pin.
            let is_other = touched || pinned.has_remains;
            let sole = count == 1 && !is_late && !is_other && !entry.marks.contains(Marks::DEAD);
            (shared && sole).then_some(Act::Unshare)
        }
        Verdict::Dead => {
            let expected = expects(pinned, entry.marks);
            if expected { &mut findings.dead } else { &mut findings.unreachable }.add(bytes);
            // The queue counts one place of each.
            let one = |place: &Place| Act::Condemn(place.footprint().into());
            Some(places.first().map_or(Act::Forget, one))
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
        let retain = self
            .pool
            .store()
            .core
            .lock()
            .staying_groups()
            .any(|group| group.free_segments() >= FREE_SEGMENTS_LEAST);
        if !retain {
            return Err(PoolError::NoSpace);
        }
        self.io.write_page(payload)
    }
}

impl Collector {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Self {
            pool: Arc::clone(pool),
            store: Arc::clone(pool.store()),
            collection: Mutex::default(),
            split: Mutex::default(),
            parts: Mutex::default(),
        }
    }

    /// Starts a collection of the whole pool, with a commit; false when one is under way already. It goes on with
    /// [`Collector::step`].
    ///
    /// # Errors
    /// When the pool cannot be written, or the commit fails.
    pub fn start(&self) -> Result<bool> {
        self.store.check_writable()?;
        if !self.pool.pins().want() {
            return Ok(false);
        }
        self.begin().map(|()| true)
    }

    /// As [`Collector::start`], of one that counts by parts of datasets as well. It takes up nothing: of what another
    /// has judged before it was cut short, no parts are known.
    ///
    /// # Errors
    /// As [`Collector::start`].
    pub fn start_split(&self, split: Arc<dyn Split>) -> Result<bool> {
        self.store.check_writable()?;
        {
            // Nothing that is pinned is taken meanwhile.
            let _slot = self.collection.lock();
            if !self.pool.pins().want() {
                return Ok(false);
            }
            self.pool.freeing().note_judged(BlockId::new(0), 0);
            *self.split.lock() = Some(split);
        }
        self.begin().map(|()| true)
    }

    /// Has a commit pin what is to be collected.
    fn begin(&self) -> Result<()> {
        let begun = self.pool.set_note(BEGUN, "yes").and_then(|()| self.pool.commit());
        begun.inspect_err(|_| {
            self.pool.pins().unwant();
            *self.split.lock() = None;
        })?;
        self.store.event(Event::new(Class::TraceStart));
        Ok(())
    }

    /// Whether a collection was under way when a crash or an export ended it: it should be started anew.
    pub fn was_cut(&self) -> bool {
        self.progress().is_none() && self.pool.note(BEGUN).is_some_and(|begun| begun == "yes")
    }

    /// Goes on with the collection: reads a batch of nodes, or what comes to as much (`effort`, in nodes). False when
    /// it is over, or none is under way.
    ///
    /// # Errors
    /// When it cannot go on: then it is over, and the findings say why.
    pub fn step(&self, effort: usize) -> Result<bool> {
        let mut slot = self.collection.lock();
        self.take_pinned(&mut slot);
        let Some(collection) = &mut *slot else { return Ok(false) };
        match self.step_of(collection, effort.max(1)) {
            Ok(true) => Ok(true),
            Ok(false) => self.gc_end(&mut slot, Outcome::Done).map(|()| false),
            Err(error) => {
                // Why it failed is more important than that this could not be kept.
                let _ = self.gc_end(&mut slot, Outcome::Failed(error.to_string()));
                Err(error)
            }
        }
    }

    /// Begins with what a commit has pinned.
    fn take_pinned(&self, slot: &mut Option<Collection>) {
        if let Some(pinned) = self.pool.pins().take_pinned() {
            let is_cut = pinned.from > BlockId::new(0);
            let before = self.pool.note(FOUND).filter(|_| is_cut).and_then(|found| Findings::decode(&found));
            let split = self.split.lock().take();
            *slot = Some(Collection::new(pinned, before, split, self.store.cache.gc_limit()));
        }
    }

    fn step_of(&self, collection: &mut Collection, effort: usize) -> Result<bool> {
        let locked = collection.is_sweeping().then(|| self.pool.commit_turn());
        let mut io = SpillPages { pool: &self.pool, io: RunIo::new(&self.store), locked };
        self.hear(collection)?;
        if let Some(turn) = &io.locked
            && self.pool.freeing().queue_room() < effort * ENTRIES_PER_NODE
        {
            self.pool.free_some(turn, effort * PAGES_PER_NODE)?;
            // Ids that find no room in it are looked for in the map's runs, where they are not before the next commit.
            if self.pool.freeing().queue_room() == 0 {
                return Ok(true);
            }
        }
        let stepped = collection.step(self, &mut io, effort);
        let SpillPages { io, locked, .. } = io;
        // After an error too: with a segment's first stripe go its descriptors.
        let finished = io.finish();
        let more = stepped?;
        finished?;
        let segments = collection.sets.all();
        let segments = segments.iter().flat_map(|set| set.segments()).collect::<Vec<_>>();
        let has_walked = !matches!(collection.stage, Stage::Mark);
        self.pool.pins().stepped(segments.into_iter(), collection.progress(), has_walked);
        drop(locked);
        Ok(more)
    }

    /// Takes over what was told since the last step.
    fn hear(&self, collection: &mut Collection) -> Result<()> {
        let heard = self.pool.pins().hear(|freed, touched| {
            freed.drain(..).for_each(|id| collection.sets.freed.push(id, Tag::default()));
            collection.retain(touched);
        });
        if !heard {
            return Err(PoolError::Invalid("more was freed at once than the trace can keep".into()));
        }
        Ok(())
    }

    /// Has what is dead freed and clears marks, but for what was touched a moment ago; how many marks of second
    /// references that were.
    fn act(&self, judged: &[(BlockId, Act)]) -> u64 {
        let map = &mut *self.store.map.lock();
        let untouched = self.pool.pins().untouched(judged);
        // A touch of one of them from now on waits for the map to set the mark.
        let mut unshared = 0;
        for &(id, act) in &untouched {
            match act {
                Act::Condemn(bytes) => self.pool.freeing().condemn(map, id, bytes),
                Act::Forget => self.pool.freeing().forget_alias(map, id),
                Act::Unshare => self.pool.freeing().note_sole(map, id),
            }
            unshared += u64::from(act == Act::Unshare);
        }
        unshared
    }

    /// Lets go of all that the collection held, and keeps what it found.
    fn gc_end(&self, slot: &mut Option<Collection>, outcome: Outcome) -> Result<()> {
        if let Some(collection) =
            slot.as_ref().filter(|collection| outcome == Outcome::Done && collection.findings.lost == 0)
        {
            self.pool.freeing().clear_left(collection.pinned.left_before);
            let nobody_enters = self.pool.keep_out();
            let saw_all = collection.pinned.from == BlockId::new(0);
            if saw_all && collection.shared == 0 && !self.pool.pins().any_touched() {
                self.pool.freeing().nothing_is_shared(&nobody_enters);
            }
        }
        // One that could not go on is taken up again where it was.
        if !matches!(outcome, Outcome::Failed(_)) {
            self.pool.freeing().note_judged(BlockId::new(0), 0);
        }
        self.pool.pins().clear();
        *self.split.lock() = None;
        let Some(Collection { mut findings, shares, .. }) = slot.take() else { return Ok(()) };
        self.pool.damage().want_trees(trees_of(&self.pool, findings.lost_in.iter().copied()));
        let text = match &outcome {
            Outcome::Done if findings.from == BlockId::new(0) => format!("{} errors", findings.errors()),
            Outcome::Done => format!("{} errors in blocks from {} on", findings.errors(), findings.from),
            Outcome::Failed(why) => format!("failed: {why}"),
            _ => "stopped".to_owned(),
        };
        self.store.event(Event::new(Class::TraceFinish).text(text));
        findings.outcome = outcome;
        findings.keep_sharing(shares.by_dataset());
        let is_done = findings.outcome == Outcome::Done;
        *self.parts.lock() = shares.into_parts().filter(|_| is_done).map(Arc::new);
        findings.finished = self.store.world.clock.now();
        self.pool.set_note(BEGUN, "no")?;
        self.pool.set_note(NOTE, &findings.encode())
    }

    /// Ends the collection that is under way, if one is; what it freed is freed. The next one begins anew.
    ///
    /// # Errors
    /// When it cannot be noted that it was stopped.
    pub fn stop(&self) -> Result<()> {
        let mut slot = self.collection.lock();
        self.take_pinned(&mut slot);
        self.gc_end(&mut slot, Outcome::Stopped)
    }

    /// Progress of the collection under way, if there is one.
    pub fn progress(&self) -> Option<Progress> {
        self.pool.pins().progress()
    }

    /// Findings of the last collection by parts of datasets, when that was since import and was to count by them.
    pub fn parts(&self) -> Option<Arc<Parts>> {
        self.parts.lock().clone()
    }

    /// Findings of the last collection.
    pub fn findings(&self) -> Option<Findings> {
        Findings::decode(&self.pool.note(NOTE)?)
    }
}

/// The note that findings are kept in.
const NOTE: &str = "trace";
/// The note of what a collection under way has found so far.
const FOUND: &str = "trace-found";
/// The note that says whether a collection is under way.
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
