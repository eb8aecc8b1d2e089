//! The index's life beside the commits: it wakes and sleeps with the property, takes up what the map knows, is written
//! and merged.

use super::{Dedup, Indexed, count};
use crate::error::{PoolError, Result};
use crate::index::{Changes, Index};
use crate::pool::Pool;
use crate::runs::RunIo;
use larder_format::index::PartDescriptor;
use larder_format::run::Footprint;
use larder_format::tables::Table;
use larder_format::{BlockId, Fingerprint, SegmentId};
use std::ops::ControlFlow;

/// Blocks of the map that a step takes up at most, for each page that it may write.
const BLOCKS_PER_PAGE: usize = 256;
/// The note that says from which id on blocks may have fingerprints.
pub(super) const SINCE: &str = "dedup-since";

impl Pool {
    /// What the tables say of the index, while nobody needs it.
    pub(crate) fn lay_index_down(&self, parts: Vec<PartDescriptor>) {
        self.duplicates.indexed.lock().parts = parts;
    }

    /// Opens the index when some dataset has `dedup` on, and lets go of it when none has.
    pub(crate) fn wake_or_lay_down(&self) {
        let wanted = !self.read_only && self.datasets().iter().any(|of| of.settings().dedup != Dedup::Off);
        let mut indexed = self.duplicates.indexed.lock();
        match (wanted, indexed.index.is_some()) {
            (true, false) => self.wake(&mut indexed),
            (false, true) => {
                let index = indexed.index.take();
                *indexed = Indexed {
                    parts: index.iter().flat_map(Index::descriptors).cloned().collect(),
                    ..Indexed::default()
                };
                let _map = self.map.lock();
                self.duplicates.near.lock().clear();
            }
            _ => {}
        }
    }

    fn wake(&self, indexed: &mut Indexed) {
        let parts = std::mem::take(&mut indexed.parts);
        let (index, lost) = Index::open(parts, self.duplicates.limits(), &RunIo::new(self));
        count(&self.duplicates.counts.lost_parts, lost.len());
        // When this fails the next import meets them again.
        let _ = self.install_parts(Changes { added: Vec::new(), removed: lost });
        let since = self.note(SINCE).and_then(|since| since.parse().ok());
        let since = since.unwrap_or_else(|| {
            let next = self.next_block().get();
            // Without the note more has to be walked.
            let _ = self.keep_note(SINCE, &next.to_string());
            next
        });
        indexed.refill = Some(index.covered().max(BlockId::new(since)));
        indexed.index = Some(index);
    }

    /// The map has forgotten these.
    pub(crate) fn forget_prints(&self, forgotten: Vec<(Fingerprint, BlockId)>) {
        if forgotten.is_empty() {
            return;
        }
        if let Some(index) = &mut self.duplicates.indexed.lock().index {
            forgotten.into_iter().for_each(|(print, id)| index.remove(print, id));
        }
    }

    /// Segments with pages of the index that no descriptor names yet.
    pub(crate) fn unfinished_index(&self) -> Vec<SegmentId> {
        let indexed = self.duplicates.indexed.lock();
        let unfinished = indexed.index.as_ref().map(Index::unfinished).unwrap_or_default();
        unfinished.into_iter().map(|footprint| footprint.segment).collect()
    }

    /// What the index's parts take.
    pub(crate) fn index_footprints(&self) -> Vec<Footprint> {
        let indexed = self.duplicates.indexed.lock();
        let awake = indexed.index.iter().flat_map(Index::descriptors);
        awake.chain(&indexed.parts).flat_map(|part| part.run.footprints.clone()).collect()
    }

    /// Goes on with what the index needs: takes up what only the map knows, writes its table when that is full, and
    /// merges; about `pages` pages of each. The commit lock is held. Whether there is more to do.
    pub(crate) fn tend_index(&self, pages: usize) -> Result<bool> {
        let mut indexed = self.duplicates.indexed.lock();
        let indexed = &mut *indexed;
        let Some(index) = &mut indexed.index else { return Ok(false) };
        let mut next = {
            let core = self.core.lock();
            let storing = self.duplicates.storing.lock();
            storing.first().copied().unwrap_or(core.next_block)
        };
        if let Some(from) = indexed.refill {
            // A page of the map that cannot be read is told by whoever needs it.
            let refill = self.take_up(index, from, next, pages * BLOCKS_PER_PAGE).unwrap_or(Some(from));
            indexed.refill = refill;
            next = indexed.refill.map_or(next, |refill| next.min(refill));
        }
        if index.is_full() {
            index.flush(next);
        }
        let mut io = RunIo::new(self);
        let progress = index.merge_step(&mut io, pages);
        io.finish()?;
        let progress = match progress {
            // What has no room is tried again.
            Err(error @ (PoolError::Suspended(_) | PoolError::ReadOnly)) => return Err(error),
            // What has no room is tried again; what cannot be read costs duplicates.
            Err(_) => return Ok(false),
            Ok(progress) => progress,
        };
        self.install_parts(progress.changes)?;
        self.cache.lend(index.figures().filter_bytes);
        Ok(progress.pending || indexed.refill.is_some())
    }

    /// A step of [`Pool::tend_index`] between commits, when it is due.
    pub(crate) fn tend_index_beside(&self, pages: usize) -> Result<bool> {
        let due = {
            let indexed = self.duplicates.indexed.lock();
            indexed.refill.is_some() || indexed.index.as_ref().is_some_and(Index::is_full)
        };
        if !due {
            return Ok(false);
        }
        let _commits_wait = self.commit_lock.lock();
        self.tend_index(pages)
    }

    /// Has the index take up blocks from `from` on, at most so many; where to go on, if there are more. What has
    /// the id `next` or a later one may be about to get into the map.
    fn take_up(
        &self,
        index: &mut Index,
        from: BlockId,
        next: BlockId,
        blocks: usize,
    ) -> Result<Option<BlockId>> {
        let (window, mut left) = (self.map.lock().window(from, blocks), blocks);
        let mut full = None;
        let rest = window.visit(&RunIo::new(self), |id, entry| {
            if let Some(print) = entry.print {
                if index.is_full() && !index.flush(id.min(next)) {
                    full = Some(id);
                    return Ok(ControlFlow::Break(()));
                }
                index.insert(print, id);
            }
            left -= 1;
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(full.or(rest))
    }

    /// Brings changed parts into the tables.
    pub(super) fn install_parts(&self, changes: Changes) -> Result<()> {
        let Changes { added, removed } = changes;
        if added.is_empty() && removed.is_empty() {
            return Ok(());
        }
        let mut tables = self.tables.lock();
        let mut value = Vec::new();
        for part in removed {
            value.clear();
            part.encode(&mut value);
            self.drop_run(&mut tables, Table::Index, &part.run, value.len())?;
        }
        for part in added {
            value.clear();
            part.encode(&mut value);
            self.keep_run(&mut tables, Table::Index, &part.run, &value)?;
        }
        Ok(())
    }
}
