//! Writing parts: from the memtable, or from parts that are read as one sequence; in bounded steps.

use super::memtable::Memtable;
use super::part::{IndexRun, Part, PartWriter, Stamp};
use super::{Counters, PART_PRINTS};
use crate::pages::{PageReader, PageWriter};
use larder_format::index::PrintEntry;
use larder_format::run::Footprint;
use larder_format::{Corrupt, Reason};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entry pages that are read together.
const READ_AHEAD: usize = 16;

/// Whether a bounded step came to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Paused,
    Complete,
}

/// Combines `newer` with `older`.
fn compose(newer: PrintEntry, older: PrintEntry) -> PrintEntry {
    // A block that is gone says nothing of another one.
    if newer.gone && !older.gone && newer.id != older.id { older } else { newer }
}

#[derive(Debug)]
enum Source {
    Memtable {
        memtable: Arc<Memtable>,
        next: usize,
    },
    /// The pages of `parts` from the `page`-th of the `part`-th on.
    Parts {
        parts: Vec<Arc<Part>>,
        part: usize,
        page: usize,
    },
}

/// One sequence of entries on its way through a merge.
#[derive(Debug)]
struct Input {
    source: Source,
    entries: Vec<PrintEntry>,
    at: usize,
}

/// Result of reading the pages that a merge wanted.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    read: u64,
    damaged: u64,
}

impl Input {
    fn head(&self) -> Option<&PrintEntry> {
        self.entries.get(self.at)
    }

    /// Brings the next entries within the range to the head, if there are any.
    fn fill<R: PageReader>(
        &mut self,
        (from, to): (u64, u64),
        budget: &mut usize,
        tally: &mut Tally,
        reader: &R,
    ) -> Outcome {
        while self.at == self.entries.len() {
            if *budget == 0 {
                return Outcome::Paused;
            }
            self.entries.clear();
            self.at = 0;
            match &mut self.source {
                Source::Memtable { memtable, next } => {
                    if *next == memtable.ranges() {
                        break;
                    }
                    memtable.range(*next, &mut self.entries);
                    *next += 1;
                }
                Source::Parts { parts, part, page } => {
                    while let Some(there) = parts.get(*part)
                        && (there.last() < from || *page == there.index.len())
                    {
                        (*part, *page) = (*part + 1, 0);
                    }
                    let Some(there) = parts.get(*part).filter(|there| there.first() <= to) else { break };
                    let first = (*page).max(there.page_of(from));
                    let end = (there.page_of(to) + 1).min(first + READ_AHEAD.min(*budget));
                    if first >= end {
                        break;
                    }
                    let ptrs: Vec<_> = there.index[first..end].iter().map(|page| page.ptr).collect();
                    for (at, bytes) in (first..).zip(reader.read_pages(&ptrs)) {
                        let good = self.entries.len();
                        let read = bytes.is_ok_and(|b| there.read_page(at, &b, &mut self.entries).is_ok());
                        tally.read += u64::from(read);
                        if !read {
                            self.entries.truncate(good);
                            tally.damaged += 1;
                        }
                    }
                    *page = end;
                    *budget -= end - first;
                    self.entries.truncate(self.entries.partition_point(|entry| entry.high <= to));
                    self.at = self.entries.partition_point(|entry| entry.high < from);
                }
            }
        }
        Outcome::Complete
    }
}

/// Inputs of a merge, and their size.
#[derive(Debug)]
pub(super) struct Inputs {
    inputs: Vec<Input>,
    entries: u64,
    range: (u64, u64),
}

impl Inputs {
    pub(super) fn of_memtable(memtable: Arc<Memtable>) -> Self {
        let entries = memtable.len() as u64;
        let input = Input { source: Source::Memtable { memtable, next: 0 }, entries: Vec::new(), at: 0 };
        Self { inputs: vec![input], entries, range: (0, u64::MAX) }
    }

    /// Runs, newest first, within a range of upper halves.
    pub(super) fn of_runs<'a>(runs: impl Iterator<Item = &'a IndexRun>, range: (u64, u64)) -> Self {
        let mut all = Self { inputs: Vec::new(), entries: 0, range };
        for run in runs {
            all.entries += run.entries_within(range.0, range.1);
            let parts = run.parts().to_vec();
            let source = Source::Parts { parts, part: 0, page: 0 };
            all.inputs.push(Input { source, entries: Vec::new(), at: 0 });
        }
        all
    }
}

/// Parts on their way.
#[derive(Debug)]
pub(super) struct Merge {
    inputs: Inputs,
    stamp: Stamp,
    /// Entries at which a part is complete.
    cut: usize,
    writer: Option<PartWriter>,
    done: Vec<Arc<Part>>,
    tally: Tally,
    counters: Arc<Counters>,
}

impl Merge {
    pub(super) fn new(inputs: Inputs, stamp: Stamp, counters: Arc<Counters>) -> Self {
        // Parts of about equal size, with some room, so that no small one is left over.
        let parts = inputs.entries.div_ceil(PART_PRINTS as u64).max(1);
        let cut = (inputs.entries.div_ceil(parts) as usize).max(PART_PRINTS / 8) * 9 / 8;
        Self { inputs, stamp, cut, writer: None, done: Vec::new(), tally: Tally::default(), counters }
    }

    pub(super) fn stamp(&self) -> Stamp {
        self.stamp
    }

    pub(super) fn footprints(&self) -> impl Iterator<Item = Footprint> {
        let done = self.done.iter().flat_map(|part| part.descriptor.run.footprints.iter().copied());
        done.chain(self.writer.iter().flat_map(PartWriter::footprints))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let inputs: usize =
            self.inputs.inputs.iter().map(|input| input.entries.capacity() * size_of::<PrintEntry>()).sum();
        let done: u64 = self.done.iter().map(|part| part.memory_bytes() + part.filter_bytes()).sum();
        inputs + done as usize + self.writer.as_ref().map_or(0, PartWriter::memory_bytes)
    }

    /// Goes on until the budget, of pages, is spent or nothing is left. Pages that cannot be read are left out; but
    /// when none can and there is nothing to be written, that is an error once: perhaps a device is away.
    pub(super) fn run<W: PageWriter>(&mut self, budget: &mut usize, io: &mut W) -> Result<Outcome, W::Error> {
        let mask = (1u64 << self.stamp.sampling) - 1;
        while *budget > 0 {
            let before = self.tally.damaged;
            let Inputs { inputs, range, .. } = &mut self.inputs;
            let filled =
                inputs.iter_mut().all(|i| i.fill(*range, budget, &mut self.tally, io) == Outcome::Complete);
            self.counters.damaged.fetch_add(self.tally.damaged - before, Ordering::Relaxed);
            if !filled {
                break;
            }
            let Some(high) = inputs.iter().filter_map(|input| Some(input.head()?.high)).min() else {
                return self.finish(budget, io);
            };
            let mut said: Option<PrintEntry> = None;
            for input in inputs {
                if let Some(&entry) = input.head().filter(|entry| entry.high == high) {
                    said = Some(said.map_or(entry, |newer| compose(newer, entry)));
                    input.at += 1;
                }
            }
            let kept = said.filter(|entry| {
                let sampled = u64::from(entry.check) & mask == 0;
                sampled && !(self.stamp.base && entry.gone)
            });
            if let Some(entry) = kept {
                self.push(entry, budget, io)?;
            }
        }
        Ok(Outcome::Paused)
    }

    fn push<W: PageWriter>(
        &mut self,
        entry: PrintEntry,
        budget: &mut usize,
        io: &mut W,
    ) -> Result<(), W::Error> {
        if self.writer.as_ref().is_some_and(|writer| writer.len() >= self.cut) {
            self.finish_part(budget, io)?;
        }
        let counters = &self.counters;
        let writer = self.writer.get_or_insert_with(|| PartWriter::new(counters.take_run_id()));
        *budget = budget.saturating_sub(writer.push(entry, io)?);
        Ok(())
    }

    fn finish_part<W: PageWriter>(&mut self, budget: &mut usize, io: &mut W) -> Result<(), W::Error> {
        if let Some(writer) = self.writer.take() {
            let (part, pages) = writer.finish(self.stamp, io)?;
            *budget = budget.saturating_sub(pages);
            self.done.push(Arc::new(part));
        }
        Ok(())
    }

    fn finish<W: PageWriter>(&mut self, budget: &mut usize, io: &mut W) -> Result<Outcome, W::Error> {
        self.finish_part(budget, io)?;
        let nothing = self.done.is_empty() && self.tally.read == 0;
        if self.tally.damaged > 0 && nothing && !self.counters.missed.swap(true, Ordering::Relaxed) {
            let parts = self.inputs.inputs.iter().find_map(|input| match &input.source {
                Source::Parts { parts, .. } => parts.first(),
                Source::Memtable { .. } => None,
            });
            let ptr = parts.expect("a page was damaged").index[0].ptr;
            return Err(io.refused(ptr, Corrupt::new("index page", Reason::Short)));
        }
        self.counters.missed.store(false, Ordering::Relaxed);
        Ok(Outcome::Complete)
    }

    /// The parts of a complete merge.
    pub(super) fn into_parts(self) -> Vec<Arc<Part>> {
        self.done
    }
}
