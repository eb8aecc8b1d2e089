//! Reading many ids of the map in ascending order, without holding the map: a page is read and decoded once.
//!
//! Both readers see the runs as they were when they were made. What the memtable says since is laid over it by
//! [`BlockMap::now`], under the map's lock. The caller keeps the space of runs removed meanwhile from being
//! written again, as for a [`super::LookUp`].

use super::merge::{MergedRuns, Outcome};
use super::run::SortedRun;
use super::{BlockMap, Entry};
use crate::pages::PageReader;
use larder_format::BlockId;
use larder_format::run::{Delta, Marks, RunId, RunPage};
use std::collections::BTreeSet;
use std::ops::RangeBounds;
use std::sync::Arc;

/// Ids on either side that belong to a neighbourhood, at most: entries with fingerprints fill a page with fewer.
pub const NEIGHBOURS: u64 = 2048;

/// Finds chosen ids.
#[derive(Debug)]
pub struct Finder {
    runs: Arc<Vec<Arc<SortedRun>>>,
    /// Of each run, the page at hand and its number.
    at: Vec<Option<(usize, RunPage)>>,
    pages: usize,
    /// The page that was read last, and its last id.
    last_read: Option<(RunId, usize, BlockId)>,
}

/// Pages of which an error said that they are lost: nobody tries them again.
#[derive(Debug, Default)]
pub struct LostPages(BTreeSet<(RunId, usize)>);

impl LostPages {
    /// Number of pages.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Finder {
    /// The runs' delta for `id`. Ids that ascend read each page at most once.
    pub fn find<R: PageReader>(&mut self, id: BlockId, reader: &R) -> Result<Delta, R::Error> {
        let found = self.find_without(id, &LostPages::default(), reader)?;
        Ok(found.expect("no page is known to be lost"))
    }

    /// As [`Finder::find`]; nothing for an id that needs a lost page.
    fn find_without<R: PageReader>(
        &mut self,
        id: BlockId,
        lost: &LostPages,
        reader: &R,
    ) -> Result<Option<Delta>, R::Error> {
        let mut delta = Delta::NONE;
        for (run, at) in self.runs.iter().zip(&mut self.at) {
            if delta.is_final() {
                break;
            }
            if !run.covers(id) {
                continue;
            }
            let number = run.page_of(id);
            let page = match at {
                Some((have, page)) if *have == number => page,
                _ => {
                    if lost.0.contains(&(run.descriptor.run, number)) {
                        return Ok(None);
                    }
                    self.pages += 1;
                    self.last_read = Some((run.descriptor.run, number, run.page_span(number).1));
                    &mut at.insert((number, run.page(number, reader)?)).1
                }
            };
            if let Some(older) = page.find(id) {
                delta = delta.over(older);
            }
        }
        Ok(Some(delta))
    }

    /// As [`Finder::find`]; nothing for ids that need a page of which an error says that it is lost: it is tried once,
    /// since that may take a dying disk seconds, and is one of `lost` from then on.
    pub fn find_past<R: PageReader>(
        &mut self,
        id: BlockId,
        lost: &mut LostPages,
        is_lost: impl Fn(&R::Error) -> bool,
        reader: &R,
    ) -> Result<Option<Delta>, R::Error> {
        match self.find_without(id, lost, reader) {
            Err(error) if is_lost(&error) => {
                lost.0.extend(self.last_read.map(|(run, page, _)| (run, page)));
                Ok(None)
            }
            found => found,
        }
    }

    /// Pages read so far.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// After an error of [`Finder::find`]: the last id that may be on the page that could not be read.
    pub fn lost_until(&self) -> BlockId {
        self.last_read.map_or(BlockId::new(0), |(_, _, last)| last)
    }
}

/// Goes through all ids.
#[derive(Debug)]
pub struct Walk {
    merged: MergedRuns,
    allowed: usize,
    left: usize,
}

impl Walk {
    /// The next id and what the runs say of it.
    ///
    /// # Errors
    /// When a page cannot be read. The next call goes on without it: what it says is missing in what the runs say.
    pub fn next<R: PageReader>(&mut self, reader: &R) -> Result<Step, R::Error> {
        Ok(match self.merged.lowest(&mut self.left, reader)? {
            (Outcome::Paused, _) => Step::Paused,
            (Outcome::Complete, None) => Step::End,
            (Outcome::Complete, Some(id)) => Step::Entry(id, self.merged.take(id)),
        })
    }

    /// Pages read so far.
    pub fn pages(&self) -> usize {
        self.allowed - self.left
    }
}

/// Next item of a [`Walk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An id, and what the runs say of it.
    Entry(BlockId, Delta),
    /// The pages that it may read are used up.
    Paused,
    /// The end.
    End,
}

/// Entries of the runs around an id. See [`BlockMap::around`].
#[derive(Debug)]
pub struct Around {
    first: BlockId,
    last: BlockId,
    merged: MergedRuns,
}

/// Entries that an [`Around`] read.
#[derive(Debug)]
pub struct Neighbourhood {
    first: BlockId,
    last: BlockId,
    in_runs: Vec<(BlockId, Delta)>,
    /// Pages that were read for it.
    pub pages: usize,
}

impl Around {
    /// Reads it.
    ///
    /// # Errors
    /// When a page cannot be read.
    pub fn read<R: PageReader>(mut self, reader: &R) -> Result<Neighbourhood, R::Error> {
        let (mut left, mut in_runs) = (usize::MAX, Vec::new());
        while let (_, Some(id)) = self.merged.lowest(&mut left, reader)?
            && id <= self.last
        {
            in_runs.push((id, self.merged.take(id)));
        }
        Ok(Neighbourhood { first: self.first, last: self.last, in_runs, pages: usize::MAX - left })
    }
}

impl Neighbourhood {
    /// Whether it tells of `id`.
    pub fn covers(&self, id: BlockId) -> bool {
        (self.first..=self.last).contains(&id)
    }
}

impl BlockMap {
    /// The neighbourhood of an id: what stands on its page of the map with it, in the run where that says most, but
    /// for what is further away than [`NEIGHBOURS`]. To be read without holding the map, and made current by
    /// [`BlockMap::neighbours`]; no checkpoint may come between.
    pub fn around(&self, id: BlockId) -> Around {
        let of = |reach: u64| {
            (BlockId::new(id.get().saturating_sub(reach)), BlockId::new(id.get().saturating_add(reach)))
        };
        let pages = self.runs.iter().filter(|run| run.covers(id)).map(|run| run.page_span(run.page_of(id)));
        let page = pages.min_by_key(|(first, last)| last.get() - first.get()).unwrap_or(of(NEIGHBOURS));
        let reach = of(NEIGHBOURS);
        let (first, last) = (page.0.max(reach.0).min(id), page.1.min(reach.1).max(id));
        Around { first, last, merged: MergedRuns::within(self.runs.iter().cloned(), first, last) }
    }

    /// The blocks of a neighbourhood as they are now, in order of id.
    pub fn neighbours<'a>(
        &'a self,
        read: &'a Neighbourhood,
    ) -> impl Iterator<Item = (BlockId, Entry)> + use<'a> {
        let mut memtable = self.memtable.range(read.first..=read.last).peekable();
        let mut in_runs = read.in_runs.iter().peekable();
        std::iter::from_fn(move || {
            let (of_memtable, of_runs) = (memtable.peek().map(|of| *of.0), in_runs.peek().map(|of| of.0));
            let id = of_memtable.into_iter().chain(of_runs).min()?;
            let older = in_runs.next_if(|of| of.0 == id).map_or(Delta::NONE, |of| of.1);
            let delta = memtable.next_if(|of| *of.0 == id).map_or(older, |of| of.1.over(older));
            Some((id, delta))
        })
        .filter_map(|(id, delta)| Some((id, Entry::of(&delta)?)))
    }

    /// Looks for chosen ids.
    pub fn finder(&self) -> Finder {
        let at = self.runs.iter().map(|_| None).collect();
        Finder { runs: Arc::clone(&self.runs), at, pages: 0, last_read: None }
    }

    /// Goes through the ids from `from` on; reads at most `pages` pages beyond the first of each run.
    pub fn walk(&self, from: BlockId, pages: usize) -> Walk {
        let merged = MergedRuns::new(self.runs.iter().cloned(), from);
        let allowed = pages.saturating_add(self.runs.len());
        Walk { merged, allowed, left: allowed }
    }

    /// Ids in `range` that got one of `marks` since the last checkpoint, at most so many.
    pub fn newly_marked(&self, range: impl RangeBounds<BlockId>, marks: Marks, most: usize) -> Vec<BlockId> {
        let marked = self.memtable.range(range).filter(|(_, delta)| delta.set.contains(marks));
        marked.take(most).map(|(id, _)| *id).collect()
    }

    /// The map's delta for `id`, given that of its runs.
    pub fn now(&self, id: BlockId, runs: Delta) -> Delta {
        self.memtable.get(&id).map_or(runs, |newest| newest.over(runs))
    }
}
