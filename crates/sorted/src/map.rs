//! The block map: block id → one to three places, or an alias, with marks.
//!
//! **Shape.** A memtable takes updates; [`BlockMap::checkpoint`] writes it as a sorted immutable
//! run; runs are merged when there are [`RATIO`] of one level (a run's level is the logarithm, base
//! [`RATIO`], of its size). Runs are kept in order of age, newest first, and only neighbours are merged.
//!
//! **Updates are blind**: none reads first. Each is a [`Delta`], and what is known of an id is the
//! composition of all its deltas, newest over oldest:
//! - `Put` and `Alias` replace the target and keep the marks (so a move keeps *shared*);
//! - `Mark` and `Unmark` change marks and keep the target; they may come before the `Put`;
//! - `Print` says the fingerprint of the content, and sets the mark that stands for it;
//! - `Delete` removes target, marks and fingerprint, and shadows everything older.
//!
//! Composition is associative, so merging any neighbours at any time changes no answer. Where no older
//! run's range of ids covers an id, its delta is reduced to what it says on nothing: deletions vanish.
//! As ids ascend, a block that is born and dies within the inputs of one merge leaves no trace at once,
//! long before the oldest run takes part. When there is more than one shadowing entry to two others, all
//! runs are merged into one.
//!
//! **Life of a run.** Pages are written through [`PageWriter`]; the descriptor goes to the caller in
//! [`Changes`], who writes it to the pool's tables in the same commit. A merge may take many
//! [`BlockMap::merge_step`]s over many commits; its inputs stay in place and answer until its output is
//! complete, then one `Changes` swaps them. Space in use is the sum of the descriptors' footprints.
//! While a merge is under way its output is in no descriptor: [`BlockMap::unfinished`] names it, so that
//! its segments are not taken for empty.
//!
//! **Fingerprints that are gone.** Whoever indexes blocks by fingerprint wants to hear when one goes: whatever drops
//! an entry over one that has a fingerprint (an update in the memtable, a merge) puts both into
//! [`Changes::forgotten`]. That may be long after the `Delete`, and twice, and is lost with a crash.
//!
//! **A crash** loses the memtable (the log and the open commit hold those updates) and all output of
//! unfinished merges, which no descriptor names. **A failed checkpoint** leaves the memtable as it was; a
//! failed merge is abandoned and planned anew. Changes that were not handed out because of an error are
//! handed out by the next call that succeeds.
//!
//! **Memory**: about 200 B an update in the memtable (checkpoint when that is too much; several checkpoints
//! may share one commit), 40 B a page for the page indexes, and the newest runs' pages, as they are on
//! disk, up to a limit ([`BlockMap::set_resident_limit`]); a page a run while runs are merged.
//!
//! **Measured** with 10^6 puts of a stream of 128 KiB records, by `benches --bin map`: 2.6 B an
//! entry when incompressible and in one column, 5.3 B when compressed and over four; 2.6, 3.4 and 5.0
//! bytes written for each that remains, with 10,000, 1,000 and 100 puts a checkpoint; 1.3 µs a `get`
//! without I/O.

mod cursor;
mod merge;
mod run;
#[cfg(test)]
mod tests;

use crate::pages::{PageReader, PageWriter};
pub use cursor::{Around, Finder, LostPages, NEIGHBOURS, Neighbourhood, Step, Walk};
use larder_format::run::{Delta, Footprint, Marks, Places, RunDescriptor, RunId, Target};
use larder_format::{BlockId, Corrupt, Fingerprint, Place, Reason, SegmentId};
use larder_mutants::point;
pub use merge::Budget;
use merge::{Merge, MergedRuns, Outcome};
use run::SortedRun;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Runs of one level that are merged into one, and the ratio of sizes between levels.
pub const RATIO: usize = 8;
/// The largest run of level 0, bytes of payload.
const LEVEL_0_BYTES: u64 = 4 << 10;
/// Merges of at most this many bytes of input are done at once, within the checkpoint.
const SMALL_MERGE_BYTES: u64 = 256 << 10;
/// Shadowing entries below which a merge of all runs is not worth a thought.
const MIN_SHADOWS: u64 = 4096;
/// Bytes of the newest runs' pages that are kept in memory unless told otherwise.
const RESIDENT_BYTES: u64 = 4 << 20;
/// Memory of an update in the memtable, bytes: ascending ids leave the tree's nodes six elevenths full.
const MEMTABLE_ENTRY_BYTES: usize = (size_of::<BlockId>() + size_of::<Delta>()) * 11 / 6;

/// A change to the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// The block is at these places: it was born, moved or recompressed.
    Put {
        /// The block.
        id: BlockId,
        /// Its new places.
        places: Places,
    },
    /// The block's content is that of another block, which is no alias itself.
    Alias {
        /// The block.
        id: BlockId,
        /// The block that holds the content.
        to: BlockId,
    },
    /// Sets marks, which stay until an `Unmark` or `Delete`.
    Mark {
        /// The block.
        id: BlockId,
        /// The marks; not the one that stands for a fingerprint.
        marks: Marks,
    },
    /// Says what the fingerprint of the block's content is.
    Print {
        /// The block.
        id: BlockId,
        /// The fingerprint.
        print: Fingerprint,
    },
    /// Clears marks.
    Unmark {
        /// The block.
        id: BlockId,
        /// The marks.
        marks: Marks,
    },
    /// The block is gone.
    Delete {
        /// The block.
        id: BlockId,
    },
}

impl Update {
    /// The block that the update is about.
    pub fn id(&self) -> BlockId {
        match *self {
            Self::Put { id, .. }
            | Self::Alias { id, .. }
            | Self::Mark { id, .. }
            | Self::Print { id, .. }
            | Self::Unmark { id, .. }
            | Self::Delete { id } => id,
        }
    }

    fn delta(&self) -> Delta {
        match *self {
            Self::Put { places, .. } => Delta { target: Target::Places(places), ..Delta::NONE },
            Self::Alias { to, .. } => Delta { target: Target::Alias(to), ..Delta::NONE },
            Self::Mark { marks, .. } => Delta { set: marks, ..Delta::NONE },
            Self::Print { print, .. } => Delta::of_print(print),
            Self::Unmark { marks, .. } => Delta { clear: marks, ..Delta::NONE },
            Self::Delete { .. } => Delta::DELETE,
        }
    }
}

/// Location of a block's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// At these places.
    Places(Places),
    /// This block's places.
    Alias(BlockId),
}

/// Entry of a block in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Location of its content.
    pub location: Location,
    /// Its marks.
    pub marks: Marks,
    /// The fingerprint of its content, when it is known.
    pub print: Option<Fingerprint>,
}

impl Entry {
    /// The places; none when it is an alias.
    pub fn places(&self) -> &[Place] {
        match &self.location {
            Location::Places(places) => places,
            Location::Alias(_) => &[],
        }
    }

    /// Entry that `delta` amounts to when nothing is older; `None` when the block is gone, or only marks wait for it.
    pub fn of(delta: &Delta) -> Option<Self> {
        let location = match delta.target {
            Target::Places(places) => Location::Places(places),
            Target::Alias(to) => Location::Alias(to),
            Target::Keep | Target::Deleted => return None,
        };
        Some(Self { location, marks: delta.set, print: delta.print })
    }
}

/// Changes that the caller must write to the pool's tables, and whose space comes and goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Runs that are now part of the map.
    pub added: Vec<RunDescriptor>,
    /// Runs that are not any more; their footprints are free.
    pub removed: Vec<RunDescriptor>,
    /// Fingerprints that the map has forgotten, with the blocks that had them.
    pub forgotten: Vec<(Fingerprint, BlockId)>,
}

/// Result of [`BlockMap::merge_step`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Runs swapped by merges that were completed.
    pub changes: Changes,
    /// Entry pages read and written.
    pub pages: usize,
    /// Whether there is more to do.
    pub pending: bool,
}

/// The block map. See the module's comment.
#[derive(Debug)]
pub struct BlockMap {
    memtable: BTreeMap<BlockId, Delta>,
    /// Newest first; their spans of checkpoints are disjoint.
    runs: Arc<Vec<Arc<SortedRun>>>,
    merges: Vec<Merge>,
    /// The inputs of the merge that is out; see [`BlockMap::take_merge`].
    out: Vec<RunId>,
    /// Runs with a page that could not be read: no merge is planned that would need it.
    aside: BTreeSet<RunId>,
    next_run: RunId,
    resident_limit: u64,
    unreported: Changes,
}

impl Default for BlockMap {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockMap {
    /// An empty map.
    pub fn new() -> Self {
        Self {
            memtable: BTreeMap::new(),
            runs: Arc::default(),
            merges: Vec::new(),
            out: Vec::new(),
            aside: BTreeSet::new(),
            next_run: RunId::new(1),
            resident_limit: RESIDENT_BYTES,
            unreported: Changes::default(),
        }
    }

    /// The map that `descriptors`, in any order, describe; reads their index pages and the newest runs.
    ///
    /// Fails with `Corrupt` when two runs claim the same checkpoints.
    pub fn open<R: PageReader>(mut descriptors: Vec<RunDescriptor>, reader: &R) -> Result<Self, R::Error> {
        let mut map = Self::new();
        descriptors.sort_by_key(|d| std::cmp::Reverse(d.newest));
        let mut resident = map.resident_limit;
        let mut runs: Vec<Arc<SortedRun>> = Vec::with_capacity(descriptors.len());
        for descriptor in descriptors {
            let newest = descriptor.newest;
            if runs.last().is_some_and(|newer| newer.descriptor.oldest <= newest) {
                let why = Corrupt::new("run descriptor", Reason::Order);
                return Err(reader.refused(descriptor.refs[0].ptr, why));
            }
            map.next_run = map.next_run.max(newest.next()).max(descriptor.run.next());
            let keep = descriptor.bytes <= resident;
            resident = if keep { resident - descriptor.bytes } else { 0 };
            runs.push(Arc::new(SortedRun::open(descriptor, keep, reader)?));
        }
        map.runs = Arc::new(runs);
        Ok(map)
    }

    /// Takes a change; nothing is read or written.
    ///
    /// # Panics
    /// When a block is made an alias of itself, or gets the mark of a fingerprint without one.
    pub fn apply(&mut self, update: Update) {
        let id = update.id();
        assert!(!matches!(update, Update::Alias { to, .. } if to == id), "an alias names another block");
        let delta = update.delta();
        assert_eq!(delta.print.is_some(), delta.set.contains(Marks::INDEXED), "a fingerprint has its mark");
        let older = self.memtable.get(&id).copied().unwrap_or(Delta::NONE);
        if let Some(print) = older.print.filter(|_| delta.drops_print()) {
            self.unreported.forgotten.push((print, id));
        }
        let delta = delta.over(older);
        let delta = if delta.target == Target::Deleted { self.reduced(id, delta) } else { Some(delta) };
        match delta.filter(|delta| *delta != Delta::NONE) {
            Some(delta) => self.memtable.insert(id, delta),
            None => self.memtable.remove(&id),
        };
    }

    /// The map's entry for `id`.
    pub fn get<R: PageReader>(&self, id: BlockId, reader: &R) -> Result<Option<Entry>, R::Error> {
        self.look_up(id).entry(reader)
    }

    /// The start of a look-up, to be finished without holding the map: it sees the map as it is now.
    /// The caller keeps the space of runs removed since from being written again until then.
    pub fn look_up(&self, id: BlockId) -> LookUp {
        let delta = self.memtable.get(&id).copied().unwrap_or(Delta::NONE);
        LookUp { id, delta, runs: Arc::clone(&self.runs) }
    }

    /// Writes the changes since the last checkpoint as a run, folding in the newest runs when that is
    /// due and little work, and does the small merges that then are due. Belongs to each commit.
    ///
    /// After an error nothing is lost: what was not written is still in the memtable.
    pub fn checkpoint<W: PageWriter>(&mut self, io: &mut W) -> Result<Changes, W::Error> {
        if !self.memtable.is_empty() {
            let folded = self.runs_to_fold();
            match self.write_memtable(folded, io) {
                // Perhaps an old page cannot be read. A commit must not depend on it.
                Err(_) if folded > 0 => self.write_memtable(0, io)?,
                outcome => outcome?,
            }
        }
        while let Some(mut merging) = self.take_merge() {
            let small =
                matches!(&merging.stage, Stage::Merge(merge) if merge.input_bytes() <= SMALL_MERGE_BYTES);
            let outcome = if small { merging.go_on(&mut Budget::unlimited(), io) } else { Ok(false) };
            // Nor on this; the next merge step will meet the error again and report it.
            if !self.put_back(merging, outcome).unwrap_or(false) {
                break;
            }
        }
        Ok(std::mem::take(&mut self.unreported))
    }

    /// Carries the large merges on, the smallest first, by at most `max_pages` entry pages written and as
    /// many read. With eight times the pages of each checkpoint the merges keep up.
    ///
    /// A merge that meets an error is abandoned; its inputs stay and it is planned anew.
    pub fn merge_step<W: PageWriter>(&mut self, io: &mut W, max_pages: usize) -> Result<Progress, W::Error> {
        let mut budget = Budget::pages(max_pages);
        while let Some(mut merging) = self.take_merge() {
            let outcome = merging.go_on(&mut budget, io);
            if !self.put_back(merging, outcome)? {
                break;
            }
        }
        let Progress { changes, pending, .. } = self.merged();
        Ok(Progress { changes, pages: budget.spent(max_pages), pending })
    }

    /// The smallest merge, to be carried on without holding the map; it must come back by [`BlockMap::put_back`].
    /// Until then no other goes out, no checkpoint is written, and [`BlockMap::unfinished`] knows nothing of it.
    pub fn take_merge(&mut self) -> Option<Merging> {
        assert!(self.out.is_empty(), "one merge is out at a time");
        self.plan();
        let merge = self.merges.swap_remove(self.smallest_merge()?);
        self.out = merge.inputs().iter().map(|run| run.descriptor.run).collect();
        Some(Merging { stage: Stage::Merge(Box::new(merge)), forgotten: Vec::new() })
    }

    /// Takes a merge back; whether it is complete, and its output part of the map. After an error it is abandoned: its
    /// inputs stay and it is planned anew.
    pub fn put_back<E>(&mut self, merging: Merging, outcome: Result<bool, E>) -> Result<bool, E> {
        self.out.clear();
        let complete = outcome?;
        self.unreported.forgotten.extend(merging.forgotten);
        match merging.stage {
            Stage::Merge(merge) => self.merges.push(*merge),
            Stage::Complete { newest, inputs, output } => {
                let first = self.runs.iter().position(|run| run.descriptor.newest == newest);
                let first = first.expect("a merge's inputs stay until it is complete");
                self.install(first..first + inputs, output);
            }
        }
        Ok(complete)
    }

    /// Leaves a run out of all merges, until the map is opened anew, for a page of it cannot be read. False when it
    /// was left out already.
    pub fn set_aside(&mut self, run: RunId) -> bool {
        self.aside.insert(run)
    }

    /// Changes by completed merges since the last call, and whether there is more to merge.
    pub fn merged(&mut self) -> Progress {
        let changes = std::mem::take(&mut self.unreported);
        Progress { changes, pages: 0, pending: !self.merges.is_empty() }
    }

    /// Entries from `from` on, to be read without holding the map: as it is now, up to where the
    /// `most`-th update of the memtable would be. The caller keeps the space of runs removed since from being
    /// written again until then.
    pub fn window(&self, from: BlockId, most: usize) -> Window {
        let mut memtable: Vec<_> =
            self.memtable.range(from..).take(most.saturating_add(1)).map(|(i, d)| (*i, *d)).collect();
        let end = if memtable.len() > most { memtable.pop().map(|(id, _)| id) } else { None };
        Window { from, end, memtable, runs: Arc::clone(&self.runs) }
    }

    /// Plans to rewrite every run with pages in a segment that `leaves`, so that such segments become
    /// free: for the cleaner and for evacuation. Returns how many runs are still there; call it again
    /// after merges were completed until that is 0.
    pub fn evacuate(&mut self, leaves: impl Fn(SegmentId) -> bool) -> usize {
        let there = |run: &SortedRun| run.descriptor.footprints.iter().any(|f| leaves(f.segment));
        let at: Vec<_> = (0..self.runs.len()).filter(|at| there(&self.runs[*at])).collect();
        for &at in &at {
            if !self.is_bound(&self.runs[at]) {
                self.start_merge(at..at + 1);
            }
        }
        at.len()
    }

    /// Output of unfinished merges so far, which no descriptor names yet, in order of segment.
    pub fn unfinished(&self) -> Vec<Footprint> {
        let mut sum = BTreeMap::new();
        for footprint in self.merges.iter().flat_map(Merge::footprints) {
            let of: &mut Footprint =
                sum.entry(footprint.segment).or_insert(Footprint { blocks: 0, bytes: 0, ..footprint });
            of.blocks += footprint.blocks;
            of.bytes += footprint.bytes;
        }
        sum.into_values().collect()
    }

    /// Runs with pages in a segment that `leaves` and are being merged, with the bytes that their merge wrote so far.
    pub fn rewriting(&self, leaves: impl Fn(SegmentId) -> bool) -> BTreeMap<RunId, u64> {
        let there = |run: &SortedRun| run.descriptor.footprints.iter().any(|f| leaves(f.segment));
        let of = |merge: &Merge| {
            let written = merge.footprints().map(|footprint| footprint.bytes).sum();
            let inputs = merge.inputs().iter().filter(|input| there(input));
            inputs.map(|input| (input.descriptor.run, written)).collect::<Vec<_>>()
        };
        self.merges.iter().flat_map(of).collect()
    }

    /// The runs of the map, newest first.
    pub fn descriptors(&self) -> impl Iterator<Item = &RunDescriptor> {
        self.runs.iter().map(|run| &run.descriptor)
    }

    /// Updates since the last checkpoint.
    pub fn memtable_len(&self) -> usize {
        self.memtable.len()
    }

    /// Bytes of memory that those take, estimated.
    pub fn memtable_bytes(&self) -> u64 {
        (self.memtable.len() * MEMTABLE_ENTRY_BYTES) as u64
    }

    /// Bytes of memory in use, estimated.
    pub fn memory_bytes(&self) -> usize {
        let runs: usize = self.runs.iter().map(|run| run.memory_bytes()).sum();
        let merges: usize = self.merges.iter().map(Merge::memory_bytes).sum();
        self.memtable_bytes() as usize + runs + merges
    }

    /// Limits the newest runs' pages kept in memory, bytes; older ones are dropped now.
    pub fn set_resident_limit(&mut self, bytes: u64) {
        self.resident_limit = bytes;
        self.trim();
    }

    /// `delta` of `id` in the memtable, reduced when no run can say anything of the id.
    fn reduced(&self, id: BlockId, delta: Delta) -> Option<Delta> {
        if self.runs.iter().any(|run| run.covers(id)) { Some(delta) } else { delta.on_nothing() }
    }

    fn take_run_id(&mut self) -> RunId {
        let run = self.next_run;
        self.next_run = run.next();
        run
    }

    fn ranges_from(&self, at: usize) -> Vec<(BlockId, BlockId)> {
        self.runs[at..].iter().map(|run| (run.descriptor.first, run.descriptor.last)).collect()
    }

    fn is_merging(&self, run: &SortedRun) -> bool {
        let id = run.descriptor.run;
        self.out.contains(&id)
            || self.merges.iter().any(|merge| merge.inputs().iter().any(|input| input.descriptor.run == id))
    }

    /// Whether no merge may be planned with `run`.
    fn is_bound(&self, run: &SortedRun) -> bool {
        self.aside.contains(&run.descriptor.run) || self.is_merging(run)
    }

    /// The runs' levels, newest first; `None` for those with which no merge may be planned.
    fn levels(&self) -> impl Iterator<Item = Option<u32>> {
        self.runs.iter().map(|run| (!self.is_bound(run)).then(|| level(run.descriptor.bytes)))
    }

    /// Writes the memtable and the `folded` newest runs as one run.
    fn write_memtable<W: PageWriter>(&mut self, folded: usize, io: &mut W) -> Result<(), W::Error> {
        let inputs = self.runs[..folded].to_vec();
        let run = self.take_run_id();
        let oldest = inputs.last().map_or(run, |input| input.descriptor.oldest);
        let mut merge = Merge::new(run, inputs, self.ranges_from(folded), self.resident_limit);
        merge.write_all(self.memtable.iter().map(|(id, delta)| (*id, *delta)), io)?;
        self.unreported.forgotten.append(merge.forgotten());
        let output = merge.finish(oldest, run, io)?;
        point("a run of the block map is written and not installed");
        self.memtable.clear();
        self.install(0..folded, output);
        Ok(())
    }

    /// Number of the newest runs that the next checkpoint rewrites together with the memtable.
    fn runs_to_fold(&self) -> usize {
        // A typical entry takes 6 bytes; a wrong guess costs a merge a little earlier or later.
        let memtable = level(6 * self.memtable.len() as u64);
        let levels: Vec<_> = std::iter::once(Some(memtable)).chain(self.levels()).collect();
        let due = due_merge(&levels).filter(|range| range.start == 0).map_or(0, |range| range.end - 1);
        let bytes: u64 = self.runs[..due].iter().map(|run| run.descriptor.bytes).sum();
        if bytes <= SMALL_MERGE_BYTES { due } else { 0 }
    }

    fn plan(&mut self) {
        loop {
            let sum = |of: fn(&RunDescriptor) -> u64| self.descriptors().map(of).sum::<u64>();
            let (entries, shadows) = (sum(|d| d.entries), sum(|d| d.shadows));
            let much_is_dead = shadows >= MIN_SHADOWS && 3 * shadows > entries;
            let range = if self.merges.is_empty() && self.aside.is_empty() && much_is_dead {
                0..self.runs.len()
            } else {
                let levels: Vec<_> = self.levels().collect();
                let Some(range) = due_merge(&levels) else { return };
                range
            };
            self.start_merge(range);
        }
    }

    fn start_merge(&mut self, range: Range<usize>) {
        let run = self.take_run_id();
        let older = self.ranges_from(range.end);
        let inputs = self.runs[range].to_vec();
        self.merges.push(Merge::new(run, inputs, older, self.resident_limit));
    }

    fn smallest_merge(&self) -> Option<usize> {
        (0..self.merges.len()).min_by_key(|at| self.merges[*at].input_bytes())
    }

    /// Puts `output` in the place of the runs in `range`.
    fn install(&mut self, range: Range<usize>, output: Option<SortedRun>) {
        let runs = Arc::make_mut(&mut self.runs);
        let added = output.map(Arc::new);
        self.unreported.added.extend(added.iter().map(|run| run.descriptor.clone()));
        for run in runs.splice(range, added) {
            // A run that the caller never heard of is not worth mentioning.
            let number = run.descriptor.run;
            match self.unreported.added.iter().position(|d| d.run == number) {
                Some(at) => drop(self.unreported.added.remove(at)),
                None => self.unreported.removed.push(run.descriptor.clone()),
            }
        }
        self.trim();
    }

    /// Keeps pages of the newest runs in memory up to the limit.
    fn trim(&mut self) {
        let mut left = self.resident_limit;
        let drop_from = self.runs.iter().position(|run| {
            let fits = run.descriptor.bytes <= left;
            left = left.saturating_sub(run.descriptor.bytes);
            !fits
        });
        let Some(from) = drop_from else { return };
        if self.runs[from..].iter().any(|run| run.is_resident()) {
            for run in &mut Arc::make_mut(&mut self.runs)[from..] {
                if run.is_resident() {
                    *run = Arc::new(run.without_pages());
                }
            }
        }
    }
}

/// A merge that is carried on; see [`BlockMap::take_merge`].
#[derive(Debug)]
pub struct Merging {
    stage: Stage,
    /// Fingerprints that it has dropped.
    forgotten: Vec<(Fingerprint, BlockId)>,
}

#[derive(Debug)]
enum Stage {
    Merge(Box<Merge>),
    /// So many runs from that of checkpoint `newest` on have become one, if anything is left to be said.
    Complete {
        newest: RunId,
        inputs: usize,
        output: Option<SortedRun>,
    },
}

impl Merging {
    /// The run of which a page could not be read, when that is why it failed.
    pub fn unread(&self) -> Option<RunId> {
        match &self.stage {
            Stage::Merge(merge) => merge.unread(),
            Stage::Complete { .. } => None,
        }
    }

    /// Goes on until `budget` is spent; whether it is complete. What it has written then must be readable before the
    /// map gets it back.
    pub fn go_on<W: PageWriter>(&mut self, budget: &mut Budget, io: &mut W) -> Result<bool, W::Error> {
        let Stage::Merge(merge) = &mut self.stage else { return Ok(true) };
        let outcome = merge.write_some(budget, io)?;
        self.forgotten.append(merge.forgotten());
        if outcome == Outcome::Paused {
            return Ok(false);
        }
        let (newest, oldest) = merge.span();
        let inputs = merge.inputs().len();
        let output = merge.finish(oldest, newest, io)?;
        self.stage = Stage::Complete { newest, inputs, output };
        Ok(true)
    }
}

/// A look-up under way; see [`BlockMap::look_up`].
#[derive(Debug, Clone)]
pub struct LookUp {
    id: BlockId,
    delta: Delta,
    runs: Arc<Vec<Arc<SortedRun>>>,
}

impl LookUp {
    /// Whether it reads the same runs as `other`.
    pub fn sees_runs_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.runs, &other.runs)
    }

    /// The block's entry.
    pub fn entry<R: PageReader>(&self, reader: &R) -> Result<Option<Entry>, R::Error> {
        Ok(Entry::of(&self.resolve(reader, Delta::is_final)?))
    }

    /// Where the block's content is: cheaper than [`LookUp::entry`], for it need not find every mark.
    pub fn location<R: PageReader>(&self, reader: &R) -> Result<Option<Location>, R::Error> {
        let delta = self.resolve(reader, |delta| delta.target != Target::Keep)?;
        Ok(Entry::of(&delta).map(|entry| entry.location))
    }

    fn resolve<R: PageReader>(&self, reader: &R, enough: fn(&Delta) -> bool) -> Result<Delta, R::Error> {
        let mut delta = self.delta;
        for run in self.runs.iter() {
            if enough(&delta) {
                break;
            }
            if let Some(older) = run.find(self.id, reader)? {
                delta = delta.over(older);
            }
        }
        Ok(delta)
    }
}

/// A stretch of the map; see [`BlockMap::window`].
#[derive(Debug)]
pub struct Window {
    from: BlockId,
    /// The stretch ends before this id, or with the last one.
    end: Option<BlockId>,
    memtable: Vec<(BlockId, Delta)>,
    runs: Arc<Vec<Arc<SortedRun>>>,
}

impl Window {
    /// Calls `visit` with every block, in order of id, until it breaks or the stretch ends; says from where to go
    /// on, if there is more.
    pub fn visit<R: PageReader>(
        self,
        reader: &R,
        visit: impl FnMut(BlockId, Entry) -> Result<ControlFlow<()>, R::Error>,
    ) -> Result<Option<BlockId>, R::Error> {
        self.visit_past(reader, |_| false, visit)
    }

    /// As [`Window::visit`], past pages of which an error says that they are lost. What those say is missing, so an
    /// older run may show through: for whoever does not depend on it.
    pub fn visit_past<R: PageReader>(
        self,
        reader: &R,
        is_lost: impl Fn(&R::Error) -> bool,
        mut visit: impl FnMut(BlockId, Entry) -> Result<ControlFlow<()>, R::Error>,
    ) -> Result<Option<BlockId>, R::Error> {
        let mut merged = MergedRuns::new(self.runs.iter().cloned(), self.from);
        let mut memtable = self.memtable.into_iter().peekable();
        loop {
            let next = match merged.next_over(&mut memtable, reader) {
                Err(error) if is_lost(&error) => continue,
                next => next?,
            };
            let Some((id, delta)) = next else { break };
            if self.end.is_some_and(|end| id >= end) {
                break;
            }
            if let Some(entry) = Entry::of(&delta)
                && visit(id, entry)?.is_break()
            {
                return Ok(Some(id.next()));
            }
        }
        Ok(self.end)
    }
}

/// The level of a run of `bytes`: each is [`RATIO`] times as large as the one below.
fn level(bytes: u64) -> u32 {
    bytes.div_ceil(LEVEL_0_BYTES).max(1).next_power_of_two().ilog2().div_ceil(RATIO.ilog2())
}

/// The neighbours to merge, if any: a stretch of runs of some level and below, with at least [`RATIO`] of
/// that level. Large levels go first, for their merge takes the smaller ones along.
fn due_merge(levels: &[Option<u32>]) -> Option<Range<usize>> {
    let highest = levels.iter().flatten().max()?;
    (0..=*highest).rev().find_map(|level| {
        let belongs = |at: &Option<u32>| at.is_some_and(|at| at <= level);
        let mut start = 0;
        for stretch in levels.split(|at| !belongs(at)) {
            let end = start + stretch.len();
            if stretch.iter().filter(|at| **at == Some(level)).count() >= RATIO {
                return Some(start..end);
            }
            start = end + 1;
        }
        None
    })
}
