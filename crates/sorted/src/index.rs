//! The dedup index: fingerprint → block id.
//!
//! **What it promises.** Little: an answer is a candidate, and a no may be wrong. The caller looks the candidate up in
//! the block map, which has the block's full fingerprint, before it shares anything. So whatever is lost here (a
//! table at a power cut, a page to bit rot, an entry to a collision of 64 bits) costs a duplicate and never data. A
//! caller that finds a candidate gone may [`Index::remove`] it.
//!
//! **Shape.** A memtable takes changes. When it is full, [`Index::flush`] freezes it and it is written as a
//! *run*: entries in order of fingerprint, never changed. A run is a sequence of *parts* of at most [`PART_PRINTS`]
//! entries, each with its own pages, filter and descriptor. The oldest run is the *base* and has nearly everything;
//! it is rewritten part by part, so that a merge into it needs the room of one part. The runs above it (*upper* runs)
//! are merged among themselves when there are more than [`UPPER_RUNS`], the smaller and newer ones first; when they
//! have an eighth of the base's entries they are *folded* into it, all at once. An entry is one upper half of a
//! fingerprint, 32 bits of the lower half as a check, and an id; there is one a run. An entry of a block that is
//! *gone* hides the same block in older runs and no other, and disappears in the base.
//!
//! **Look-ups** ask first whether anything newer than the base may have the fingerprint ([`recent`]): one line of
//! memory for the memtables and all upper runs together. Then they ask a filter a run, and read one page for each
//! filter that says yes: the first fingerprints of all pages are in memory (0.03 bytes an entry). Interpolation with a
//! fence now and then, as a design of ours had it, would save that and cost a fifth of a read more. So a new
//! fingerprint costs one or two lines of memory, two of the base's filter (nine bits an entry), and in one of some 240
//! cases a read, however many runs there are. A [`Probe`] takes the filters of a whole batch first and then has all its
//! pages in flight together; it holds parts by `Arc` and needs no lock.
//!
//! **Folding** goes in order of fingerprint. Each new part of the base says by `newest` up to which run it has taken
//! the upper ones in. Upper parts that lie below leave, newer ones not before older ones, and those that reach beyond
//! are not asked there any more. So a fold goes on after a restart where it was.
//!
//! **Memory** is what [`Limits`] say, at most, and 6 MiB while a part is written. When filters pass their share,
//! the *sampling* doubles: fingerprints count only if their lowest bits are zero, others are neither taken nor
//! looked for; parts are rewritten, one by one, without them. It does not fall again: build a new index for that.
//! An index into which nothing was put has no memory and does no I/O.
//!
//! **Writes.** An entry is written about 12 times until it rests (once from the memtable, 1 to 3 times among upper
//! runs, 9 times with the base) at 15 bytes, and read as often: with 16 pages of [`Index::merge_step`] for each
//! thousand entries the merges keep up. A memtable that is full while the one before is not written yet takes nothing
//! more, and counts what it did not take.
//!
//! **A crash** loses the memtable: [`Index::covered`] says from which id on the map has to be walked for what was in
//! it. It loses unfinished parts, which no descriptor names ([`Index::unfinished`] does). Parts that cannot be opened
//! are left out, pages that cannot be read are skipped; both are counted.

mod filter;
mod memtable;
mod merge;
mod part;
mod probe;
mod recent;
#[cfg(test)]
mod tests;

pub use probe::Probe;

use crate::pages::{PageReader, PageWriter};
use larder_format::index::{PartDescriptor, PrintEntry};
use larder_format::run::{Footprint, RunId};
use larder_format::{BlockId, Fingerprint, SegmentId};
use memtable::Memtable;
use merge::{Inputs, Merge, Outcome};
use part::{IndexRun, Part, Stamp};
use probe::Ask;
use recent::Recent;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most entries of a part, about.
pub const PART_PRINTS: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };
/// Upper runs that stay unmerged, but for those that are being folded.
const UPPER_RUNS: usize = 3;
/// Upper runs at which the memtable is not written before some are merged.
const UPPER_RUNS_MOST: usize = 12;
/// Upper runs are folded into the base when they have one entry to so many of it.
const FOLD_RATIO: u64 = 8;
/// The check has so many bits, and sampling goes by them.
const MAX_SAMPLING: u8 = 32;

/// Memory that the index may use, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For filters; beyond it the index keeps a sample only.
    pub filters: usize,
    /// For the memtable: half of it for what comes in, half for what is being written.
    pub memtable: usize,
}

/// Changes that the caller must write to the pool's tables, and whose space comes and goes. A descriptor's key there is
/// its run's number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Parts that now belong to the index.
    pub added: Vec<PartDescriptor>,
    /// Parts that do not any more; their footprints are free.
    pub removed: Vec<PartDescriptor>,
}

/// Result of [`Index::merge_step`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Parts that came and went.
    pub changes: Changes,
    /// Pages read and written.
    pub pages: usize,
    /// Whether there is more to do.
    pub pending: bool,
}

/// Sizes and counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Entries on disk and in the memtable; one that is in two runs counts twice.
    pub entries: u64,
    /// Bytes on disk, filters included.
    pub disk_bytes: u64,
    /// Bytes of memory of the filters.
    pub filter_bytes: u64,
    /// Bytes of memory of the memtable, and of the one that is being written.
    pub memtable_bytes: u64,
    /// Bytes of memory of the page indexes and of whatever else there is a part.
    pub page_index_bytes: u64,
    /// Bytes of memory of merges under way.
    pub merge_bytes: u64,
    /// Runs that a look-up may have to ask.
    pub runs: usize,
    /// Of so many fingerprints one is kept: a power of two.
    pub sampling: u64,
    /// Look-ups that were answered with no because no page might be read.
    pub refused: u64,
    /// Pages and filters that could not be read or made no sense.
    pub damaged: u64,
    /// Entries that were not taken because the memtable was full and could not be written in time.
    pub dropped: u64,
}

/// Counters that look-ups and merges update without holding the index.
#[derive(Debug, Default)]
struct Counters {
    next_run: AtomicU64,
    refused: AtomicU64,
    damaged: AtomicU64,
    /// The last merge could read nothing at all, and was given up.
    missed: AtomicBool,
}

impl Counters {
    fn take_run_id(&self) -> RunId {
        RunId::new(1 + self.next_run.fetch_add(1, Ordering::Relaxed))
    }
}

/// The runs, as look-ups see them.
#[derive(Debug, Clone, Default)]
struct Runs {
    /// Newest first.
    uppers: Vec<IndexRun>,
    /// Every part says by its own `newest` which upper runs are in it.
    base: IndexRun,
}

impl Runs {
    fn newest_first(&self) -> impl Iterator<Item = &IndexRun> {
        self.uppers.iter().chain([&self.base])
    }

    fn newest_first_mut(&mut self) -> impl Iterator<Item = &mut IndexRun> {
        self.uppers.iter_mut().chain([&mut self.base])
    }

    fn parts(&self) -> impl Iterator<Item = &Arc<Part>> {
        self.newest_first().flat_map(IndexRun::parts)
    }
}

/// Inputs that a job's output replaces.
#[derive(Debug)]
enum Replaces {
    /// The frozen memtable.
    Memtable,
    /// Whole upper runs.
    Uppers,
    /// Parts of the base, and all of the upper runs below `to`.
    Base { parts: BTreeSet<RunId>, to: u64 },
    /// One part.
    Part(RunId),
}

#[derive(Debug)]
struct Job {
    replaces: Replaces,
    merge: Merge,
}

/// Jobs that can be under way together: the memtable's, one among upper runs, one with the base or of a single part.
const LANES: usize = 3;
const TABLE: usize = 0;
const UPPER: usize = 1;
const BASE: usize = 2;

/// A bounded step of the index's work, to be done without holding the index: [`Index::begin`], [`Work::run`],
/// [`Index::end`].
#[derive(Debug)]
pub struct Work {
    lane: usize,
    job: Job,
    outcome: Option<Outcome>,
    pages: usize,
}

impl Work {
    /// Goes on by about `max_pages` pages, read and written. After an error the work is lost, and planned anew when
    /// it was handed back.
    pub fn run<W: PageWriter>(&mut self, io: &mut W, max_pages: usize) -> Result<(), W::Error> {
        let mut budget = max_pages;
        let outcome = self.job.merge.run(&mut budget, io);
        self.pages = max_pages - budget;
        self.outcome = outcome.as_ref().ok().copied();
        outcome.map(drop)
    }
}

/// The dedup index. See the module's comment.
#[derive(Debug)]
pub struct Index {
    limits: Limits,
    sampling: u8,
    covered: BlockId,
    memtable: Memtable,
    /// The memtable that is being written, and what will then be covered.
    frozen: Option<(Arc<Memtable>, Stamp)>,
    runs: Arc<Runs>,
    /// Filter over the memtables and the upper runs, but for those of an earlier import.
    recent: Recent,
    /// The upper runs up to this one are being folded.
    folding: Option<RunId>,
    /// Parts to be rewritten for the sake of their places.
    leaving: BTreeSet<RunId>,
    jobs: [Option<Job>; LANES],
    at_work: bool,
    /// Something changed since there was nothing to be planned.
    unplanned: bool,
    unreported: Changes,
    counters: Arc<Counters>,
    dropped: u64,
}

impl Index {
    /// An empty index, which takes no memory.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            sampling: 0,
            covered: BlockId::new(0),
            memtable: Memtable::default(),
            frozen: None,
            runs: Arc::default(),
            recent: Recent::default(),
            folding: None,
            leaving: BTreeSet::new(),
            jobs: Default::default(),
            at_work: false,
            unplanned: true,
            unreported: Changes::default(),
            counters: Arc::default(),
            dropped: 0,
        }
    }

    /// The index that `descriptors`, in any order, describe; reads their index pages and filters. Parts that cannot
    /// be read or do not fit the others are left out: the second value has their descriptors, for the caller to
    /// drop. Filters that are beyond twice their limit are not read: their parts are not asked before they are
    /// rewritten with a sample of their entries.
    pub fn open<R: PageReader>(
        mut descriptors: Vec<PartDescriptor>,
        limits: Limits,
        reader: &R,
    ) -> (Self, Vec<PartDescriptor>) {
        let (mut index, mut lost) = (Self::new(limits), Vec::new());
        // The base, whose filters are the densest, first; then upper runs, newest first.
        descriptors.sort_by_key(|part| {
            let age = if part.base { 0 } else { u64::MAX - part.run.newest.get() };
            (age, part.run.first)
        });
        let mut filter_bytes = 0;
        let mut parts: Vec<Arc<Part>> = Vec::new();
        for descriptor in descriptors {
            let run = &descriptor.run;
            index.counters.next_run.fetch_max(run.newest.max(run.run).get(), Ordering::Relaxed);
            let same_run = |last: &&Arc<Part>| {
                let last = &last.descriptor;
                last.base == descriptor.base && (last.base || last.run.newest == run.newest)
            };
            let fits = match parts.last() {
                Some(last) if same_run(&last) => {
                    let same = descriptor.base || last.descriptor.run.oldest == run.oldest;
                    same && last.last() < run.first.get()
                }
                Some(last) if !last.descriptor.base => last.descriptor.run.oldest > run.newest,
                _ => true,
            };
            let with_filter =
                filter_bytes + descriptor.filter.bytes() <= (limits.filters as u64).saturating_mul(2);
            let part = if fits { Part::open(descriptor.clone(), with_filter, reader).ok() } else { None };
            let Some(part) = part else {
                index.counters.damaged.fetch_add(1, Ordering::Relaxed);
                lost.push(descriptor);
                continue;
            };
            if with_filter && part.filter.is_none() {
                index.counters.damaged.fetch_add(1, Ordering::Relaxed);
            }
            filter_bytes += part.filter_bytes();
            index.sampling = index.sampling.max(descriptor.sampling);
            index.covered = index.covered.max(descriptor.covered);
            parts.push(Arc::new(part));
        }
        index.arrange(parts);
        (index, lost)
    }

    /// Makes runs of parts that [`Index::open`] has sorted.
    fn arrange(&mut self, parts: Vec<Arc<Part>>) {
        let (base, uppers): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.descriptor.base);
        let newest = |part: &Arc<Part>| part.descriptor.run.newest;
        let (least, most) = (base.iter().map(newest).min(), base.iter().map(newest).max());
        if let (Some(least), Some(most)) = (least, most)
            && least < most
        {
            self.folding = Some(most);
        }
        let of = |parts: &[Arc<Part>]| {
            let run = &parts[0].descriptor.run;
            IndexRun::new(run.oldest, run.newest, parts.to_vec())
        };
        let uppers = uppers.chunk_by(|a, b| newest(a) == newest(b)).map(of).collect();
        let base = if base.is_empty() { IndexRun::default() } else { of(&base) };
        self.runs = Arc::new(Runs { uppers, base });
    }

    /// Says that the block `id` has this fingerprint. Nothing is read or written.
    pub fn insert(&mut self, print: Fingerprint, id: BlockId) {
        self.put(PrintEntry::new(print, id, false));
    }

    /// Says that the block `id`, which had this fingerprint, is gone. Nothing is read or written.
    pub fn remove(&mut self, print: Fingerprint, id: BlockId) {
        let entry = PrintEntry::new(print, id, true);
        if self.memtable.get(entry.high).is_some_and(|newer| !newer.gone && newer.id != id) {
            return;
        }
        let nowhere = self.runs.uppers.is_empty()
            && self.runs.base.parts().is_empty()
            && self.frozen.is_none()
            && self.memtable.len() == 0;
        if !nowhere {
            self.put(entry);
        }
    }

    fn put(&mut self, entry: PrintEntry) {
        if !self.keeps(entry.check) {
            return;
        }
        if self.is_full() && self.frozen.is_some() && self.memtable.get(entry.high).is_none() {
            self.dropped += 1;
            return;
        }
        if self.recent.is_full() {
            self.begin_generation(0);
        }
        self.recent.put(entry.high);
        self.memtable.put(entry);
    }

    /// From now on what comes belongs to the next fold; `taken` entries are about to go into the base.
    fn begin_generation(&mut self, taken: u64) {
        let frozen = self.frozen.as_ref();
        let next = || RunId::new(1 + self.counters.next_run.load(Ordering::Relaxed));
        let from = frozen.map_or_else(next, |(_, stamp)| stamp.newest);
        let memtables = || frozen.map(|(memtable, _)| &**memtable).into_iter().chain([&self.memtable]);
        // As many as will be worth a fold, and those that come while they are taken in.
        let expected = (self.runs.base.entries() + taken) / FOLD_RATIO * 9 / 8;
        let expected = expected as usize + 2 * memtables().map(Memtable::len).sum::<usize>();
        let room = self.limits.filters.saturating_sub(self.part_filters() as usize);
        self.recent.begin(from, expected, room / recent::MOST, memtables().flat_map(Memtable::highs));
        self.forget_generations();
    }

    fn forget_generations(&mut self) {
        // A memtable that is not frozen yet is in the newest.
        let frozen = self.frozen.iter().map(|(_, stamp)| stamp.newest);
        let uppers = self.runs.uppers.iter().map(|run| run.oldest);
        self.recent.forget_before(uppers.chain(frozen).min().unwrap_or(RunId::new(u64::MAX)));
    }

    fn keeps(&self, check: u32) -> bool {
        u64::from(check) & (self.sampling() - 1) == 0
    }

    /// The start of a look-up of several fingerprints, to be finished without holding the index: it sees the index
    /// as it is now. The caller keeps the space of parts removed since from being written again until then.
    pub fn probe(&self, prints: &[Fingerprint]) -> Probe {
        let ask = |print: &Fingerprint| {
            let check = print.low() as u32;
            Ask::new(print.high(), check, self.keeps(check))
        };
        let mut asks: Vec<_> = prints.iter().map(ask).collect();
        self.recent.tell(&mut asks);
        let asked = asks.iter_mut().filter(|ask| ask.recent && !ask.answered);
        asked.for_each(|ask| ask.hear(self.memtable.get(ask.high)));
        Probe {
            asks,
            frozen: self.frozen.as_ref().map(|(memtable, _)| Arc::clone(memtable)),
            runs: Arc::clone(&self.runs),
            recent_from: self.recent.from(),
            counters: Arc::clone(&self.counters),
        }
    }

    /// Whether the memtable should be written: see [`Index::flush`].
    pub fn is_full(&self) -> bool {
        self.memtable.memory_bytes() >= self.limits.memtable / 2
    }

    /// Freezes the memtable, if there is anything in it, so that merge steps write it. Every block with a fingerprint
    /// and an id below `next` must have been inserted. Does nothing and says `false` while the one before is not
    /// written.
    pub fn flush(&mut self, next: BlockId) -> bool {
        if self.frozen.is_some() {
            return false;
        }
        self.covered = next;
        if self.memtable.len() > 0 {
            let run = self.counters.take_run_id();
            let sampling = self.sampling;
            let stamp = Stamp { oldest: run, newest: run, covered: next, sampling, base: false };
            self.frozen = Some((Arc::new(std::mem::take(&mut self.memtable)), stamp));
            self.unplanned = true;
        }
        true
    }

    /// Writes what was flushed and merges what is due, by about `max_pages` pages read and written. After an error
    /// what was under way is begun anew by the next step, and nothing is lost.
    pub fn merge_step<W: PageWriter>(&mut self, io: &mut W, max_pages: usize) -> Result<Progress, W::Error> {
        let mut pages = 0;
        while pages < max_pages
            && let Some(mut work) = self.begin()
        {
            let outcome = work.run(io, max_pages - pages);
            // Whatever was done counts, so that this ends.
            pages += work.pages.max(1);
            self.end(work);
            outcome?;
        }
        Ok(Progress { pages, ..self.progress() })
    }

    /// Takes out what is to be done next, if anything is; only one at a time.
    pub fn begin(&mut self) -> Option<Work> {
        if self.at_work {
            return None;
        }
        self.plan();
        let lane = self.jobs.iter().position(Option::is_some)?;
        self.at_work = true;
        Some(Work { lane, job: self.jobs[lane].take()?, outcome: None, pages: 0 })
    }

    /// Takes work back and puts what it completed in its place.
    pub fn end(&mut self, work: Work) {
        self.at_work = false;
        self.unplanned |= work.outcome != Some(Outcome::Paused);
        match work.outcome {
            Some(Outcome::Paused) => self.jobs[work.lane] = Some(work.job),
            Some(Outcome::Complete) => self.install(work.job),
            None => {}
        }
    }

    /// Added and removed parts, and whether there is more to do; pages are not counted.
    pub fn progress(&mut self) -> Progress {
        self.plan();
        let pending = self.at_work || self.jobs.iter().any(Option::is_some);
        Progress { changes: std::mem::take(&mut self.unreported), pages: 0, pending }
    }

    /// After [`Index::open`]: blocks with ids below this are in the index, from it on the map has to be walked.
    pub fn covered(&self) -> BlockId {
        self.covered
    }

    /// Of so many fingerprints one is kept: 1, 2, 4, ….
    pub fn sampling(&self) -> u64 {
        1 << self.sampling
    }

    /// Other limits from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.unplanned = true;
    }

    /// Plans to rewrite every part with pages in a segment that `leaves`; returns how many are still there. Call it
    /// again after merge steps until that is 0.
    pub fn evacuate(&mut self, leaves: impl Fn(SegmentId) -> bool) -> usize {
        let there = |part: &&Arc<Part>| part.descriptor.run.footprints.iter().any(|f| leaves(f.segment));
        self.leaving = self.runs.parts().filter(there).map(|part| part.run()).collect();
        self.unplanned = true;
        self.leaving.len()
    }

    /// Output of unfinished parts so far, which no descriptor names yet, in order of segment. Work that is
    /// taken out is not in it.
    pub fn unfinished(&self) -> Vec<Footprint> {
        let mut sum = BTreeMap::new();
        let jobs = self.jobs.iter().flatten().flat_map(|job| job.merge.footprints());
        let unreported = self.unreported.added.iter().flat_map(|part| part.run.footprints.iter().copied());
        for footprint in jobs.chain(unreported) {
            let of: &mut Footprint =
                sum.entry(footprint.segment).or_insert(Footprint { blocks: 0, bytes: 0, ..footprint });
            of.blocks += footprint.blocks;
            of.bytes += footprint.bytes;
        }
        sum.into_values().collect()
    }

    /// The parts of the index.
    pub fn descriptors(&self) -> impl Iterator<Item = &PartDescriptor> {
        self.runs.parts().map(|part| &part.descriptor)
    }

    /// Sizes and counts.
    pub fn figures(&self) -> Figures {
        let frozen = self.frozen.as_ref().map(|(memtable, _)| memtable);
        let memtables = || [Some(&self.memtable), frozen.map(|memtable| &**memtable)].into_iter().flatten();
        let sum = |of: fn(&Part) -> u64| self.runs.parts().map(|part| of(part)).sum::<u64>();
        let merges = self.jobs.iter().flatten().map(|job| job.merge.memory_bytes() as u64);
        Figures {
            entries: sum(Part::entries) + memtables().map(|memtable| memtable.len() as u64).sum::<u64>(),
            disk_bytes: sum(Part::disk_bytes),
            filter_bytes: sum(Part::filter_bytes) + self.recent.memory_bytes() as u64,
            memtable_bytes: memtables().map(|memtable| memtable.memory_bytes() as u64).sum(),
            page_index_bytes: sum(Part::memory_bytes),
            merge_bytes: merges.sum(),
            runs: self.runs.newest_first().filter(|run| !run.parts().is_empty()).count(),
            sampling: self.sampling(),
            refused: self.counters.refused.load(Ordering::Relaxed),
            damaged: self.counters.damaged.load(Ordering::Relaxed),
            dropped: self.dropped,
        }
    }
}

/// Choice of the next job.
impl Index {
    fn plan(&mut self) {
        if self.at_work || !std::mem::take(&mut self.unplanned) {
            return;
        }
        self.sample();
        if self.jobs[TABLE].is_none()
            && self.runs.uppers.len() < UPPER_RUNS_MOST
            && let Some((memtable, stamp)) = &self.frozen
        {
            let inputs = Inputs::of_memtable(Arc::clone(memtable));
            self.start(TABLE, Replaces::Memtable, inputs, Stamp { sampling: self.sampling, ..*stamp });
        }
        let of_one_part = matches!(self.jobs[BASE], Some(Job { replaces: Replaces::Part(_), .. }));
        if self.folding.is_none() && self.jobs[UPPER].is_none() && !of_one_part {
            let entries = self.runs.uppers.iter().map(IndexRun::entries).sum();
            if let Some(newest) = self.runs.uppers.first().map(|run| run.newest)
                && entries * FOLD_RATIO >= self.runs.base.entries()
            {
                self.folding = Some(newest);
                self.begin_generation(entries);
            }
        }
        if self.jobs[UPPER].is_none() && !of_one_part {
            self.plan_upper();
        }
        if self.jobs[BASE].is_none() && !self.plan_part() {
            self.plan_fold();
        }
    }

    fn start(&mut self, lane: usize, replaces: Replaces, inputs: Inputs, stamp: Stamp) {
        let merge = Merge::new(inputs, stamp, Arc::clone(&self.counters));
        self.jobs[lane] = Some(Job { replaces, merge });
    }

    /// Doubles the sampling when filters are beyond their share and all parts have followed the last time.
    fn sample(&mut self) {
        let followed = self.runs.parts().all(|part| part.descriptor.sampling == self.sampling);
        let (filters, limit) = (self.part_filters(), self.limits.filters as u64);
        if filters + self.recent.memory_bytes() as u64 > limit {
            // It has what parts leave; the next entry begins it anew.
            self.recent = Recent::default();
        }
        if filters > limit && followed && self.sampling < MAX_SAMPLING {
            self.sampling += 1;
        }
    }

    fn part_filters(&self) -> u64 {
        self.runs.parts().map(|part| part.descriptor.filter.bytes()).sum()
    }

    /// Merges the newest runs, and older ones as long as they are not much larger than those before.
    fn plan_upper(&mut self) {
        let uppers = &self.runs.uppers;
        let free = uppers.iter().take_while(|run| self.folding.is_none_or(|newest| run.newest > newest));
        let free: Vec<_> = free.map(IndexRun::entries).collect();
        if free.len() <= UPPER_RUNS {
            return;
        }
        let (mut take, mut sum) = (1, free[0]);
        while take < free.len() && (take < 2 || free[take] <= 2 * sum) {
            sum += free[take];
            take += 1;
        }
        let taken = &uppers[..take];
        let covered = taken.iter().flat_map(IndexRun::parts).map(|part| part.descriptor.covered).max();
        let stamp = Stamp {
            oldest: taken[take - 1].oldest,
            newest: taken[0].newest,
            covered: covered.unwrap_or_default(),
            sampling: self.sampling,
            base: false,
        };
        let inputs = Inputs::of_runs(taken.iter(), (0, u64::MAX));
        self.start(UPPER, Replaces::Uppers, inputs, stamp);
    }

    /// Rewrites a part that has to leave its place, has no filter, or is not sampled as it should be.
    fn plan_part(&mut self) -> bool {
        let due = |part: &&Arc<Part>| {
            part.filter.is_none()
                || part.descriptor.sampling < self.sampling
                || self.leaving.contains(&part.run())
        };
        let mut parts = self.runs.base.parts().iter().filter(due);
        let part = match parts.next() {
            Some(part) => part,
            // Whole upper runs are about to go when they are merged.
            None if self.jobs[UPPER].is_some() => return false,
            None => match self.runs.uppers.iter().flat_map(IndexRun::parts).find(due) {
                Some(part) => part,
                None => return false,
            },
        };
        let run = &part.descriptor.run;
        let stamp = Stamp {
            oldest: run.oldest,
            newest: run.newest,
            covered: part.descriptor.covered,
            sampling: self.sampling,
            base: part.descriptor.base,
        };
        let (replaces, range) = (Replaces::Part(run.run), (part.first(), part.last()));
        let alone = IndexRun::new(run.oldest, run.newest, vec![Arc::clone(part)]);
        self.start(BASE, replaces, Inputs::of_runs([&alone].into_iter(), range), stamp);
        true
    }

    /// Takes the next parts of the base together with what the folding runs have in their range.
    fn plan_fold(&mut self) {
        let Some(newest) = self.folding else { return };
        let base = self.runs.base.parts();
        let folding: Vec<_> = self.runs.uppers.iter().filter(|run| run.newest <= newest).collect();
        if folding.is_empty() {
            // They were lost.
            self.folding = None;
            return;
        }
        let is_folded = |part: &Arc<Part>| part.descriptor.run.newest >= newest;
        let first = base.iter().position(|part| !is_folded(part)).unwrap_or(base.len());
        // Right behind what is folded: a part that was rewritten meanwhile may begin later than it did, or may be gone,
        // the last one, too.
        let Some(from) = first.checked_sub(1).map_or(Some(0), |before| base[before].last().checked_add(1))
        else {
            self.finish_fold(u64::MAX);
            return;
        };
        let end_of = |end: usize| base.get(end).map_or(u64::MAX, |part| part.first() - 1);
        let mut end = (first + 1).min(base.len());
        let mut entries: u64 = base[first..end].iter().map(|part| part.entries()).sum();
        let within = |from, to| folding.iter().map(|run| run.entries_within(from, to)).sum::<u64>();
        // Parts that have become small are put together.
        while let Some(next) = base.get(end)
            && !is_folded(next)
            && entries + next.entries() + within(from, end_of(end + 1)) <= PART_PRINTS as u64
        {
            entries += next.entries();
            end += 1;
        }
        let to = end_of(end);
        let taken: Vec<_> = base[first..end].to_vec();
        let covered = taken.iter().chain(folding.iter().flat_map(|run| run.parts()));
        let stamp = Stamp {
            oldest: RunId::new(1),
            newest,
            covered: covered.map(|part| part.descriptor.covered).max().unwrap_or_default(),
            sampling: self.sampling,
            base: true,
        };
        let parts = taken.iter().map(|part| part.run()).collect();
        let taken = IndexRun::new(stamp.oldest, newest, taken);
        let inputs = Inputs::of_runs(folding.into_iter().chain([&taken]), (from, to));
        self.start(BASE, Replaces::Base { parts, to }, inputs, stamp);
    }

    /// Puts what a job wrote in the place of what it read.
    fn install(&mut self, job: Job) {
        self.replace(job);
        self.forget_generations();
    }

    fn replace(&mut self, job: Job) {
        let stamp = job.merge.stamp();
        let new = job.merge.into_parts();
        self.unreported.added.extend(new.iter().map(|part| part.descriptor.clone()));
        let runs = Arc::make_mut(&mut self.runs);
        match job.replaces {
            Replaces::Memtable => {
                if !new.is_empty() {
                    runs.uppers.insert(0, IndexRun::new(stamp.oldest, stamp.newest, new));
                }
                self.frozen = None;
            }
            Replaces::Uppers => {
                let taken = |run: &IndexRun| (stamp.oldest..=stamp.newest).contains(&run.newest);
                let at = runs.uppers.iter().position(taken).unwrap_or(0);
                let old: Vec<_> = runs.uppers.extract_if(.., |run| taken(run)).collect();
                if !new.is_empty() {
                    runs.uppers.insert(at, IndexRun::new(stamp.oldest, stamp.newest, new));
                }
                old.iter().for_each(|run| self.forget(run.parts()));
            }
            Replaces::Base { parts, to } => {
                let old = runs.base.replace(|part| parts.contains(&part.run()), new);
                self.forget(&old);
                self.finish_fold(to);
            }
            Replaces::Part(run) => {
                let of = runs.newest_first_mut().find(|r| r.parts().iter().any(|part| part.run() == run));
                let old = of.map(|of| of.replace(|part| part.run() == run, new)).unwrap_or_default();
                runs.uppers.retain(|run| !run.parts().is_empty());
                self.forget(&old);
            }
        }
    }

    /// All up to `to` is folded: what lies there leaves the upper runs.
    fn finish_fold(&mut self, to: u64) {
        let Some(newest) = self.folding else { return };
        let runs = Arc::make_mut(&mut self.runs);
        let mut old = Vec::new();
        // A newer run stays where an older one does, which would say something else.
        let mut leaves = Some(to);
        for run in runs.uppers.iter_mut().rev().filter(|run| run.newest <= newest) {
            let Some(to) = leaves else { break };
            old.extend(run.replace(|part| part.last() <= to, Vec::new()));
            if let Some(left) = run.parts().first() {
                leaves = left.first().checked_sub(1).map(|end| end.min(to));
            }
        }
        runs.uppers.retain(|run| !run.parts().is_empty());
        self.forget(&old);
        if to == u64::MAX {
            self.folding = None;
        }
    }

    fn forget(&mut self, parts: &[Arc<Part>]) {
        for part in parts {
            // A part that the caller never heard of is not worth mentioning.
            match self.unreported.added.iter().position(|added| added.run.run == part.run()) {
                Some(at) => drop(self.unreported.added.remove(at)),
                None => self.unreported.removed.push(part.descriptor.clone()),
            }
            self.leaving.remove(&part.run());
        }
    }
}
