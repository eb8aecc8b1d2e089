//! Reading several runs as one, and writing the result as a new run in bounded steps.

use super::run::{RunWriter, SortedRun};
use crate::pages::{PageReader, PageWriter};
use larder_format::run::{Delta, Footprint, PAGE_MAX, PageCursor, RunId, RunPage};
use larder_format::{BlockId, Fingerprint};
use std::iter::Peekable;
use std::sync::Arc;

/// Entry pages that may still be read and written.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    reads: usize,
    writes: usize,
}

impl Budget {
    /// So many to be read, and as many to be written.
    pub fn pages(pages: usize) -> Self {
        Self { reads: pages, writes: pages }
    }

    pub(super) fn unlimited() -> Self {
        Self::pages(usize::MAX)
    }

    /// Pages used of those that may be read and written.
    pub(super) fn spent(&self, pages: usize) -> usize {
        (pages - self.reads) + (pages - self.writes)
    }
}

fn spend(pages: &mut usize) -> bool {
    *pages > 0 && {
        *pages -= 1;
        true
    }
}

/// Whether a bounded step came to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Paused,
    Complete,
}

/// One run on its way through a merge.
#[derive(Debug)]
struct Input {
    run: Arc<SortedRun>,
    from: BlockId,
    next_page: usize,
    end_page: usize,
    page: Option<(RunPage, PageCursor)>,
    head: Option<(BlockId, Delta)>,
    /// A page of it could not be read.
    unread: bool,
}

impl Input {
    /// The pages of `run` that may have ids from `from` to `to`.
    fn new(run: Arc<SortedRun>, from: BlockId, to: BlockId) -> Self {
        let end_page = if to < run.descriptor.first { 0 } else { run.page_of(to) + 1 };
        let next_page = if from > run.descriptor.last { end_page } else { run.page_of(from).min(end_page) };
        Self { run, from, next_page, end_page, page: None, head: None, unread: false }
    }

    /// Brings the next entry to the head, if there is one. After an error it goes on behind the page.
    fn fill<R: PageReader>(&mut self, reads: &mut usize, reader: &R) -> Result<Outcome, R::Error> {
        while self.head.is_none() {
            if let Some((page, cursor)) = &mut self.page {
                self.head = cursor.next(page);
                if self.head.is_none() {
                    self.page = None;
                }
            } else if self.next_page == self.end_page {
                break;
            } else if spend(reads) {
                let read = self.run.page(self.next_page, reader);
                self.next_page += 1;
                if read.is_err() {
                    self.unread = true;
                    // Else a walk over many such pages would come nowhere.
                    *reads += 1;
                }
                let page = read?;
                let cursor = PageCursor::seek(&page, self.from);
                self.page = Some((page, cursor));
            } else {
                return Ok(Outcome::Paused);
            }
        }
        Ok(Outcome::Complete)
    }
}

/// Runs, newest first, read as one sequence of ids.
#[derive(Debug)]
pub(super) struct MergedRuns {
    inputs: Vec<Input>,
    /// Fingerprints that something newer drops, when they are wanted.
    forgotten: Option<Vec<(Fingerprint, BlockId)>>,
}

/// `newer` after `older`, both of `id`.
fn compose(
    newer: Delta,
    older: Delta,
    id: BlockId,
    forgotten: &mut Option<Vec<(Fingerprint, BlockId)>>,
) -> Delta {
    if let (Some(forgotten), Some(print), true) = (forgotten, older.print, newer.drops_print()) {
        forgotten.push((print, id));
    }
    newer.over(older)
}

impl MergedRuns {
    /// `runs` from `from` on.
    pub(super) fn new(runs: impl Iterator<Item = Arc<SortedRun>>, from: BlockId) -> Self {
        Self::within(runs, from, BlockId::new(u64::MAX))
    }

    /// `runs` from `from` to `to`, and what else is on those pages.
    pub(super) fn within(runs: impl Iterator<Item = Arc<SortedRun>>, from: BlockId, to: BlockId) -> Self {
        Self { inputs: runs.map(|run| Input::new(run, from, to)).collect(), forgotten: None }
    }

    /// Makes the lowest id known; `None` at the end.
    pub(super) fn lowest<R: PageReader>(
        &mut self,
        reads: &mut usize,
        reader: &R,
    ) -> Result<(Outcome, Option<BlockId>), R::Error> {
        let mut lowest = None;
        for input in &mut self.inputs {
            if input.fill(reads, reader)? == Outcome::Paused {
                return Ok((Outcome::Paused, None));
            }
            if let Some((id, _)) = input.head {
                lowest = Some(lowest.map_or(id, |lowest: BlockId| lowest.min(id)));
            }
        }
        Ok((Outcome::Complete, lowest))
    }

    /// Takes what all runs say of `id`, which is the lowest.
    pub(super) fn take(&mut self, id: BlockId) -> Delta {
        let mut delta = Delta::NONE;
        for input in &mut self.inputs {
            if let Some((_, older)) = input.head.take_if(|(found, _)| *found == id) {
                delta = compose(delta, older, id, &mut self.forgotten);
            }
        }
        delta
    }

    /// The next id of the runs and of `memtable`, which is newer than all of them.
    pub(super) fn next_over<R: PageReader>(
        &mut self,
        memtable: &mut Peekable<impl Iterator<Item = (BlockId, Delta)>>,
        reader: &R,
    ) -> Result<Option<(BlockId, Delta)>, R::Error> {
        let (_, lowest) = self.lowest(&mut usize::MAX.clone(), reader)?;
        let in_memtable = memtable.next_if(|(id, _)| lowest.is_none_or(|lowest| *id <= lowest));
        Ok(match (in_memtable, lowest) {
            (Some((id, newer)), Some(lowest)) if id == lowest => {
                let older = self.take(id);
                Some((id, compose(newer, older, id, &mut self.forgotten)))
            }
            (Some(entry), _) => Some(entry),
            (None, Some(id)) => Some((id, self.take(id))),
            (None, None) => None,
        })
    }
}

/// Neighbouring runs on their way to become one.
#[derive(Debug)]
pub(super) struct Merge {
    inputs: Vec<Arc<SortedRun>>,
    merged: MergedRuns,
    /// First and last ids of the runs that are older than the inputs. Those may be merged meanwhile, but
    /// what they cover only shrinks.
    older: Vec<(BlockId, BlockId)>,
    writer: RunWriter,
}

impl Merge {
    pub(super) fn new(
        run: RunId,
        inputs: Vec<Arc<SortedRun>>,
        older: Vec<(BlockId, BlockId)>,
        resident_limit: u64,
    ) -> Self {
        let mut merged = MergedRuns::new(inputs.iter().cloned(), BlockId::new(0));
        merged.forgotten = Some(Vec::new());
        Self { inputs, merged, older, writer: RunWriter::new(run, resident_limit) }
    }

    pub(super) fn inputs(&self) -> &[Arc<SortedRun>] {
        &self.inputs
    }

    /// The input of which a page could not be read.
    pub(super) fn unread(&self) -> Option<RunId> {
        self.merged.inputs.iter().find(|input| input.unread).map(|input| input.run.descriptor.run)
    }

    /// The newest and the oldest checkpoint in the inputs.
    pub(super) fn span(&self) -> (RunId, RunId) {
        let oldest = self.inputs.last().expect("a merge has inputs").descriptor.oldest;
        (self.inputs[0].descriptor.newest, oldest)
    }

    pub(super) fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|run| run.descriptor.bytes).sum()
    }

    /// Fingerprints that it has dropped so far and nobody has heard of.
    pub(super) fn forgotten(&mut self) -> &mut Vec<(Fingerprint, BlockId)> {
        self.merged.forgotten.get_or_insert_default()
    }

    #[cfg(test)]
    pub(super) fn run(&self) -> RunId {
        self.writer.run()
    }

    pub(super) fn footprints(&self) -> impl Iterator<Item = Footprint> {
        self.writer.footprints()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.inputs.len() * PAGE_MAX + self.writer.memory_bytes()
    }

    /// Adds what is left to say of `id`; the page at hand has room.
    fn push(&mut self, id: BlockId, delta: Delta) {
        let shadow = self.older.iter().any(|(first, last)| (first..=last).contains(&&id));
        let delta = if shadow { Some(delta) } else { delta.on_nothing() };
        if let Some(delta) = delta.filter(|delta| *delta != Delta::NONE) {
            self.writer.push(id, &delta, shadow);
        }
    }

    /// Merges until the budget is spent or nothing is left.
    pub(super) fn write_some<W: PageWriter>(
        &mut self,
        budget: &mut Budget,
        io: &mut W,
    ) -> Result<Outcome, W::Error> {
        loop {
            if self.writer.page_is_full() {
                if !spend(&mut budget.writes) {
                    return Ok(Outcome::Paused);
                }
                self.writer.write_page(io)?;
            }
            match self.merged.lowest(&mut budget.reads, io)? {
                (Outcome::Paused, _) => return Ok(Outcome::Paused),
                (Outcome::Complete, None) => return Ok(Outcome::Complete),
                (Outcome::Complete, Some(id)) => {
                    let delta = self.merged.take(id);
                    self.push(id, delta);
                }
            }
        }
    }

    /// Merges `memtable`, which is newer than the inputs, and the inputs to the end.
    pub(super) fn write_all<W: PageWriter>(
        &mut self,
        memtable: impl Iterator<Item = (BlockId, Delta)>,
        io: &mut W,
    ) -> Result<(), W::Error> {
        let mut memtable = memtable.peekable();
        while let Some((id, delta)) = self.merged.next_over(&mut memtable, io)? {
            if self.writer.page_is_full() {
                self.writer.write_page(io)?;
            }
            self.push(id, delta);
        }
        Ok(())
    }

    /// Writes the rest of the run. `None` when nothing remains to be said.
    pub(super) fn finish<W: PageWriter>(
        &mut self,
        oldest: RunId,
        newest: RunId,
        io: &mut W,
    ) -> Result<Option<SortedRun>, W::Error> {
        self.writer.finish(oldest, newest, io)
    }
}
