//! Reading many ids of the map in ascending order, without holding the map: a page is read and decoded once.
//!
//! Both readers see the runs as they were when they were made. What the table says since is laid over it by
//! [`BlockMap::now`], under the map's lock. The caller keeps the space of runs removed meanwhile from being
//! written again, as for a [`super::LookUp`].

use super::merge::{MergedRuns, Outcome};
use super::run::Run;
use super::{BlockMap, PageReader};
use larder_format::BlockId;
use larder_format::run::{Delta, Marks, RunPage};
use std::ops::RangeBounds;
use std::sync::Arc;

/// Finds chosen ids.
#[derive(Debug)]
pub struct Finder {
    runs: Arc<Vec<Arc<Run>>>,
    /// Of each run, the page at hand and its number.
    at: Vec<Option<(usize, RunPage)>>,
    pages: usize,
}

impl Finder {
    /// What the runs say of `id`. Ids that ascend read each page at most once.
    pub fn find<R: PageReader>(&mut self, id: BlockId, reader: &R) -> Result<Delta, R::Error> {
        let mut delta = Delta::NONE;
        for (run, at) in self.runs.iter().zip(&mut self.at) {
            if delta.is_settled() {
                break;
            }
            if !run.covers(id) {
                continue;
            }
            let number = run.page_of(id);
            let page = match at {
                Some((have, page)) if *have == number => page,
                _ => {
                    self.pages += 1;
                    &mut at.insert((number, run.page(number, reader)?)).1
                }
            };
            if let Some(older) = page.find(id) {
                delta = delta.over(older);
            }
        }
        Ok(delta)
    }

    /// Pages read so far.
    pub fn pages(&self) -> usize {
        self.pages
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
    /// When a page cannot be read.
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

/// What a [`Walk`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An id, and what the runs say of it.
    Entry(BlockId, Delta),
    /// The pages that it may read are used up.
    Paused,
    /// There are no more ids.
    End,
}

impl BlockMap {
    /// Looks for chosen ids.
    pub fn finder(&self) -> Finder {
        let at = self.runs.iter().map(|_| None).collect();
        Finder { runs: Arc::clone(&self.runs), at, pages: 0 }
    }

    /// Goes through the ids from `from` on; reads at most `pages` pages beyond the first of each run.
    pub fn walk(&self, from: BlockId, pages: usize) -> Walk {
        let merged = MergedRuns::new(self.runs.iter().cloned(), from);
        let allowed = pages.saturating_add(self.runs.len());
        Walk { merged, allowed, left: allowed }
    }

    /// Ids in `range` that got one of `marks` since the last checkpoint, at most so many.
    pub fn newly_marked(&self, range: impl RangeBounds<BlockId>, marks: Marks, most: usize) -> Vec<BlockId> {
        let marked = self.table.range(range).filter(|(_, delta)| delta.set.contains(marks));
        marked.take(most).map(|(id, _)| *id).collect()
    }

    /// What the map knows of `id`, given what its runs say.
    pub fn now(&self, id: BlockId, runs: Delta) -> Delta {
        self.table.get(&id).map_or(runs, |newest| newest.over(runs))
    }
}
