//! Rebuilding the index from the blocks alone.
//!
//! The old index goes; the map is walked from the beginning, as at import; then the files of all datasets with `dedup`
//! on are gone through for records without a fingerprint, which were stored before it was on: those are read.
//! In bounded steps beside traffic. Lost parts of map and trees are passed over. After a crash the index has the
//! entries that were taken up so far.

use crate::dataset::Look;
use crate::duplicates::{Indexed, Rebuild, RebuildProgress};
use crate::pool::Pool;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr, DatasetId};
use larder_sorted::index::{Changes, Index};
use larder_sorted::map::{Entry, LostPages, Update};
use larder_store::{Dedup, PoolError, Result, RunIo};
use std::ops::ControlFlow;

/// Pages that a step reads and writes, about.
const PAGES: usize = 64;
/// Extents that a step looks at for each record that it may read.
const EXTENTS: usize = 16;

impl Pool {
    /// Forgets the index and begins to make it anew; it goes on with [`Pool::rebuild_step`].
    ///
    /// # Errors
    /// When no dataset has `dedup` on, or nothing may be written.
    pub fn rebuild_index(&self) -> Result<()> {
        self.shared.store.check_writable()?;
        let _commits_wait = self.commit_turn();
        let mut indexed = self.shared.duplicates.indexed.lock();
        let Some(index) = &mut indexed.index else {
            return Err(PoolError::Invalid("no dataset has dedup on: there is no index to rebuild".into()));
        };
        self.install_parts(index.progress().changes)?;
        self.keep_note(super::upkeep::SINCE, "0")?;
        let removed = index.descriptors().cloned().collect();
        self.install_parts_or_suspend(Changes { added: Vec::new(), removed });
        let with_dedup = |of: &std::sync::Arc<crate::Dataset>| of.settings().dedup != Dedup::Off;
        let datasets = self.datasets().iter().filter(|of| with_dedup(of)).map(|of| of.id()).collect();
        *indexed = Indexed {
            turn: indexed.turn + 1,
            index: Some(Index::new(self.shared.duplicates.limits())),
            parts: Vec::new(),
            refill: Some(BlockId::new(0)),
            rebuild: Some(Rebuild { datasets, from: Key::MIN, progress: RebuildProgress::default() }),
        };
        Ok(())
    }

    /// Progress of the rebuild under way, if there is one.
    pub fn rebuild_progress(&self) -> Option<RebuildProgress> {
        self.shared.duplicates.rebuild_progress()
    }

    /// Goes on with rebuilding the index, by about `records` records read. False when nothing is left to do.
    ///
    /// # Errors
    /// When nothing may be written, or a page of the map cannot be read for now.
    pub fn rebuild_step(&self, records: usize) -> Result<bool> {
        let (refilling, at) = {
            let indexed = self.shared.duplicates.indexed.lock();
            let Some(rebuild) = &indexed.rebuild else { return Ok(false) };
            (indexed.refill.is_some(), rebuild.datasets.last().map(|&of| (of, rebuild.from)))
        };
        self.shared.store.check_writable()?;
        if refilling {
            let _commits_wait = self.commit_turn();
            return self.tick_index(PAGES).map(|_| true);
        }
        let Some((dataset, from)) = at else {
            self.shared.duplicates.indexed.lock().rebuild = None;
            return Ok(false);
        };
        let (extents, next) = self.some_extents(dataset, from, records.max(1) * EXTENTS)?;
        let looked_at = extents.len();
        let read = self.print_all(extents)?;
        let mut indexed = self.shared.duplicates.indexed.lock();
        if let Some(rebuild) = &mut indexed.rebuild {
            rebuild.progress.extents += looked_at as u64;
            rebuild.progress.records += read as u64;
            match next {
                Some(next) => rebuild.from = next,
                None => {
                    rebuild.datasets.pop();
                    rebuild.from = Key::MIN;
                }
            }
        }
        Ok(true)
    }

    /// Blocks that extents of a dataset name, from `from` on; where to go on, if there are more.
    fn some_extents(&self, id: DatasetId, from: Key, most: usize) -> Result<(Vec<BlockPtr>, Option<Key>)> {
        let Some(dataset) = self.dataset(id) else { return Ok((Vec::new(), None)) };
        let (mut found, mut left, mut last) = (Vec::new(), most, None);
        dataset.view()?.scan_past(from..=Key::MAX, &mut |key, value| {
            if key.kind == EXTENT
                && let Ok(extent) = Extent::decode(value)
            {
                found.push(extent.ptr);
            }
            (left, last) = (left - 1, Some(*key));
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        Ok((found, last.and_then(Key::successor).filter(|_| left == 0)))
    }

    /// Gives blocks a fingerprint that have none; how many had to be read for that.
    fn print_all(&self, mut blocks: Vec<BlockPtr>) -> Result<usize> {
        blocks.sort_unstable_by_key(|ptr| ptr.id);
        blocks.dedup_by_key(|ptr| ptr.id);
        let op = self.enter()?;
        let io = RunIo::new(&self.shared.store);
        let (mut finder, mut lost) = (self.shared.store.map.lock().finder(), LostPages::default());
        let mut without = Vec::new();
        for ptr in blocks {
            let Some(in_runs) = finder.find_past(ptr.id, &mut lost, PoolError::is_loss, &io)? else {
                continue;
            };
            let now = Entry::of(&self.shared.store.map.lock().now(ptr.id, in_runs));
            // An alias has none.
            if now.is_some_and(|entry| entry.print.is_none() && !entry.places().is_empty()) {
                without.push((ptr, in_runs));
            }
        }
        let wanted: Vec<_> = without.iter().map(|(ptr, _)| *ptr).collect();
        let there = self.shared.store.read_from_groups(&wanted);
        // Records that cannot be read stay without.
        let print = |i: usize| Some(self.fingerprint(there.get(&without[i].0.id)?));
        let prints = self.shared.store.world.workers.map(without.len(), print);
        let mut taken = Vec::new();
        {
            // No checkpoint came between, for an operation is under way.
            let mut map = self.shared.store.map.lock();
            for ((ptr, in_runs), print) in without.iter().zip(prints) {
                let now = Entry::of(&map.now(ptr.id, *in_runs));
                let there = now.is_some_and(|entry| !entry.places().is_empty());
                if let Some(print) = print.filter(|_| there) {
                    map.apply(Update::Print { id: ptr.id, print });
                    taken.push((print, ptr.id));
                }
            }
        }
        drop(op);
        let count = taken.len();
        if let Some(index) = &mut self.shared.duplicates.indexed.lock().index {
            taken.into_iter().for_each(|(print, id)| index.insert(print, id));
        }
        Ok(count)
    }
}
