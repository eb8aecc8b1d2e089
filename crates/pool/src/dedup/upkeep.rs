//! The index's life beside the commits: it wakes and sleeps with the property, takes up what the map knows, is written
//! and merged.

use crate::duplicates::{IndexFootprints, Indexed, count};
use crate::pool::Pool;
use larder_format::index::PartDescriptor;
use larder_format::tables::Table;
use larder_format::{BlockId, SegmentId};
use larder_sorted::index::{Changes, Index};
use larder_store::{Dedup, PoolError, Result, RunIo};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Blocks of the map that a step takes up at most, for each page that it may write.
const BLOCKS_PER_PAGE: usize = 256;
/// Pages of the index that are read and written before anything else is looked at.
const PAGES_AT_ONCE: usize = 16;
/// The note that says from which id on blocks may have fingerprints.
pub(super) const SINCE: &str = "dedup-since";

impl Pool {
    /// Opens the index when some dataset has `dedup` on, and lets go of it when none has.
    pub(crate) fn wake_or_lay_down(&self) {
        let mut indexed = self.shared.duplicates.indexed.lock();
        let wanted = !self.shared.store.read_only
            && (self.shared.duplicates.in_use.load(Ordering::Relaxed) || self.wants_index());
        match (wanted, indexed.index.is_some()) {
            (true, false) => self.wake(&mut indexed),
            (false, true) => {
                let Some(mut index) = indexed.index.take() else { return };
                // Changes that were completed and not reported yet.
                self.install_parts_or_suspend(index.progress().changes);
                let parts = index.descriptors().cloned().collect();
                *indexed = Indexed { parts, turn: indexed.turn + 1, ..Indexed::default() };
                let _map = self.shared.store.map.lock();
                self.shared.duplicates.locality.lock().clear();
            }
            _ => {}
        }
    }

    /// Whether some dataset has `dedup` on.
    pub(super) fn wants_index(&self) -> bool {
        self.datasets().iter().any(|of| of.settings().dedup != Dedup::Off)
    }

    fn wake(&self, indexed: &mut Indexed) {
        let parts = std::mem::take(&mut indexed.parts);
        let (index, lost) =
            Index::open(parts, self.shared.duplicates.limits(), &RunIo::new(&self.shared.store));
        count(&self.shared.duplicates.counts.lost_parts, lost.len());
        self.install_parts_or_suspend(Changes { added: Vec::new(), removed: lost });
        let since = self.note(SINCE).and_then(|since| since.parse().ok());
        let since = since.unwrap_or_else(|| {
            let next = self.shared.store.next_block().get();
            // Without the note more has to be walked.
            let _ = self.keep_note(SINCE, &next.to_string());
            next
        });
        indexed.refill = Some(index.covered().max(BlockId::new(since)));
        indexed.index = Some(index);
        indexed.turn += 1;
    }

    /// Footprint of each of the index's parts.
    pub fn index_footprints(&self) -> IndexFootprints {
        self.shared.duplicates.footprints()
    }

    /// Has the index give up all segments that `leave`, by and by. One that sleeps is forgotten: it can be rebuilt.
    pub fn evacuate_index(&self, leave: impl Fn(SegmentId) -> bool) {
        let mut indexed = self.shared.duplicates.indexed.lock();
        if let Some(index) = &mut indexed.index {
            index.evacuate(leave);
            return;
        }
        let leaves = |part: &PartDescriptor| part.run.footprints.iter().any(|f| leave(f.segment));
        let (removed, kept) = std::mem::take(&mut indexed.parts).into_iter().partition(leaves);
        indexed.parts = kept;
        drop(indexed);
        self.install_parts_or_suspend(Changes { added: Vec::new(), removed });
    }

    /// Goes on with what the index needs: takes up what only the map knows, writes its table when that is full, and
    /// merges; about `pages` pages of each. The commit lock is held, the index's only for moments. Whether there is
    /// more to do.
    pub(crate) fn tick_index(&self, pages: usize) -> Result<bool> {
        // Blocks with this id or a later one may not be in the map yet.
        let next = {
            let core = self.shared.store.core.lock();
            self.shared.duplicates.first_storing().unwrap_or(core.next_block)
        };
        let refill = self.shared.duplicates.indexed.lock().refill;
        if let Some(from) = refill {
            // A commit must not depend on it.
            drop(self.take_up(from, next, pages * BLOCKS_PER_PAGE));
        }
        let mut io = RunIo::new(&self.shared.store);
        let mut left = pages;
        loop {
            let mut indexed = self.shared.duplicates.indexed.lock();
            let Indexed { index: Some(index), refill, .. } = &mut *indexed else { break };
            if index.is_full() {
                index.flush(refill.map_or(next, |refill| refill.min(next)));
            }
            let Some(mut work) = (if left > 0 { index.begin() } else { None }) else { break };
            let turn = indexed.turn;
            drop(indexed);
            let outcome = work.run(&mut io, left.min(PAGES_AT_ONCE));
            left = left.saturating_sub(PAGES_AT_ONCE);
            let mut indexed = self.shared.duplicates.indexed.lock();
            let same = indexed.turn == turn;
            match &mut indexed.index {
                Some(index) if same => index.end(work),
                // It was put to sleep; nothing names what was written.
                _ => break,
            }
            match outcome {
                Err(error @ (PoolError::Suspended(_) | PoolError::HostFull(_) | PoolError::ReadOnly)) => {
                    return Err(error);
                }
                // Work that found no room is tried again; pages that cannot be read cost duplicates.
                Err(_) => break,
                Ok(()) => {}
            }
        }
        io.finish()?;
        let (progress, refilling, lent) = {
            let mut indexed = self.shared.duplicates.indexed.lock();
            let Indexed { index: Some(index), refill, .. } = &mut *indexed else { return Ok(false) };
            (index.progress(), refill.is_some(), index.figures().filter_bytes)
        };
        self.install_parts(progress.changes)?;
        self.shared.store.cache.lend(lent);
        Ok(progress.pending || refilling)
    }

    /// A step of [`Pool::tick_index`] between commits, when it is due.
    pub(crate) fn tick_index_beside(&self, pages: usize) -> Result<bool> {
        let due = {
            let indexed = self.shared.duplicates.indexed.lock();
            indexed.refill.is_some() || indexed.index.as_ref().is_some_and(Index::is_full)
        };
        if !due {
            return Ok(false);
        }
        let _commits_wait = self.commit_turn();
        self.tick_index(pages)
    }

    /// Has the index take up blocks from `from` on, at most so many. What has the id `next` or a later one may be about
    /// to get into the map. Lost pages of the map are passed over: duplicates of what is on them are not found.
    fn take_up(&self, from: BlockId, next: BlockId, blocks: usize) -> Result<()> {
        let (window, mut left) = (self.shared.store.map.lock().window(from, blocks), blocks);
        let mut found = Vec::new();
        let rest = window.visit_past(&RunIo::new(&self.shared.store), PoolError::is_loss, |id, entry| {
            found.extend(entry.print.map(|print| (print, id)));
            left -= 1;
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let mut indexed = self.shared.duplicates.indexed.lock();
        let Indexed { index: Some(index), refill, .. } = &mut *indexed else { return Ok(()) };
        for (print, id) in found {
            if index.is_full() && !index.flush(id.min(next)) {
                *refill = Some(id);
                return Ok(());
            }
            index.insert(print, id);
        }
        *refill = rest;
        Ok(())
    }

    /// As [`Pool::install_parts`]: memory and tables must not part.
    pub(super) fn install_parts_or_suspend(&self, changes: Changes) {
        if let Err(error) = self.install_parts(changes) {
            self.shared.store.suspend(format!("the dedup index could not be noted: {error}"));
        }
    }

    /// Brings changed parts into the tables. What cannot be brought there now stays for the next time.
    pub(super) fn install_parts(&self, changes: Changes) -> Result<()> {
        let mut tables = self.tables.lock();
        let mut unnoted = self.sealing.unnoted_parts.lock();
        for part in changes.removed {
            // A part that the tables never had need not be removed from them.
            match unnoted.added.iter().position(|added| added.run.run == part.run.run) {
                Some(at) => drop(unnoted.added.remove(at)),
                None => unnoted.removed.push(part),
            }
        }
        unnoted.added.extend(changes.added);
        let mut value = Vec::new();
        while let Some(part) = unnoted.removed.last() {
            value.clear();
            part.encode(&mut value);
            self.drop_run(&mut tables, Table::Index, &part.run, value.len())?;
            unnoted.removed.pop();
        }
        while let Some(part) = unnoted.added.last() {
            value.clear();
            part.encode(&mut value);
            self.keep_run(&mut tables, Table::Index, &part.run, &value)?;
            unnoted.added.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ROOT_DATASET, bed};
    use larder_device::{Entropy, SeededEntropy};
    use larder_format::run::Places;
    use larder_format::{ByteLen, Fingerprint, GroupIndex, Place};
    use larder_sim::SimWorld;
    use larder_sorted::map::Update;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn pool() -> Arc<Pool> {
        let sim = SimWorld::new(&[ByteLen::new(96 << 20)]);
        let pool = bed::pool(sim.devices(), "single");
        pool.set_property(ROOT_DATASET, "dedup", "on").unwrap();
        pool
    }

    #[test]
    fn parts_of_the_index_leave_segments_that_are_mostly_dead() {
        let (pool, rng) = (pool(), SeededEntropy::new(3));
        let thin = |pool: &Pool| -> BTreeSet<SegmentId> {
            let core = pool.shared.store.core.lock();
            core.entries
                .values()
                .filter(|entry| entry.thin().is_some())
                .map(|entry| entry.segment.id)
                .collect()
        };
        let of_parts = |pool: &Pool| -> BTreeSet<SegmentId> {
            pool.index_footprints().all().map(|footprint| footprint.segment).collect()
        };
        // One part, and runs of the map around it, which are soon merged.
        let first = pool.shared.store.core.lock().take_ids(10_000);
        {
            let mut indexed = pool.shared.duplicates.indexed.lock();
            let index = indexed.index.as_mut().unwrap();
            for n in 0..10_000 {
                let print = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
                index.insert(Fingerprint::new(print.to_be_bytes()), BlockId::new(first.get() + n));
            }
            index.flush(BlockId::new(first.get() + 10_000));
        }
        for _ in 0..60 {
            let first = pool.shared.store.core.lock().take_ids(3000).get();
            for id in first..first + 3000 {
                let segment = SegmentId::new((1 << 40) + id % 7);
                let place = Place { segment, column: 0, offset: 4096 + (id % 1000) as u32 * 8, stored: 100 };
                let places = Places::new(&[place]).unwrap();
                pool.shared.store.map.lock().apply(Update::Put { id: BlockId::new(id), places });
            }
            pool.commit().unwrap();
            for id in first..first + 3000 {
                pool.shared.store.map.lock().apply(Update::Delete { id: BlockId::new(id) });
            }
        }
        pool.shared.store.core.lock().close_streams(GroupIndex::new(0));
        for _ in 0..20 {
            pool.commit().unwrap();
        }
        let stuck: Vec<_> = thin(&pool).intersection(&of_parts(&pool)).copied().collect();
        assert!(!stuck.is_empty(), "{:?}, {:?}", thin(&pool), of_parts(&pool));
        let before = pool.shared.store.space(128 << 10).available;
        pool.evacuate_thin();
        assert!(pool.shared.store.space(128 << 10).available > before, "what comes back is counted");
        for _ in 0..40 {
            pool.evacuate_thin();
            pool.commit().unwrap();
        }
        let left: Vec<_> = thin(&pool).intersection(&of_parts(&pool)).copied().collect();
        assert!(left.is_empty(), "{stuck:?} were thin and had parts of the index, {left:?} are and do");
        assert!(pool.shared.store.space(128 << 10).available > before);
    }
}
