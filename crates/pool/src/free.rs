//! Freeing what was dropped: at commits, and from the free queue. What becomes of a block: see [`crate::freeing`].

use crate::pool::Pool;
use larder_format::run::{Delta, Marks};
use larder_format::{BlockId, BlockPtr, Place};
use larder_mutants::{Mutant, mutated};
use larder_sorted::map::{BlockMap, Entry, Finder, Location, Update};
use larder_store::error::Result;
use larder_store::run_io::RunIo;

/// Ids that are decided at once, under the map's lock.
const BATCH: usize = 1024;
/// Ids that a step looks at, at most: some 5 µs each, which commits wait for.
const IDS_PER_STEP: usize = 1 << 15;
/// Pages of the map that freeing may read after each commit.
pub(crate) const PAGES_PER_COMMIT: usize = 64;

impl Pool {
    /// A collection that began when `before` bytes were left to it has ended: what was left then is free, or known to
    /// be in use.
    pub fn clear_left(&self, before: u64) {
        self.freeing.clear_left(before);
    }

    /// Garbage collection has judged all ids below `next`; `left` bytes had been left to it when it began. With 0 none
    /// is under way.
    pub fn note_judged(&self, next: BlockId, left: u64) {
        self.freeing.note_judged(next, left);
    }

    /// Note by [`Pool::note_judged`] of a collection that was cut short.
    pub(crate) fn judged(&self) -> Option<(BlockId, u64)> {
        self.freeing.judged()
    }

    /// A further extent names this block: from now on only GC can say that it is dead.
    pub fn note_shared(&self, id: BlockId) {
        self.mark_shared(&mut self.store.map.lock(), id);
    }

    /// As [`Pool::note_shared`], under the map's lock.
    pub(crate) fn mark_shared(&self, map: &mut BlockMap, id: BlockId) {
        // First: a collection that has not heard of it may take the mark away, but only before it is set.
        self.pins.touched(id);
        if !mutated(Mutant::SharedNotMarked) {
            map.apply(Update::Mark { id, marks: Marks::SHARED });
        }
        let mut freeing = self.freeing.lock();
        freeing.changed |= freeing.record.shared == 0;
        freeing.record.shared = 1;
    }

    /// Garbage collection found one reference to an id that was shared, and none was made since it began. A mark `DEAD`
    /// was for another reference, and goes too.
    pub fn note_sole(&self, map: &mut BlockMap, id: BlockId) {
        self.freeing.note_sole(map, id);
    }

    /// Garbage collection found no reference to a block of `bytes`, and none was made since it began: it joins the
    /// queue.
    pub fn condemn(&self, map: &mut BlockMap, id: BlockId, bytes: u64) {
        self.freeing.condemn(map, id, bytes);
    }

    /// Garbage collection found that no id is shared any more. Nobody may be inside.
    pub fn nothing_is_shared(&self) {
        self.freeing.nothing_is_shared();
    }

    /// Ids that find room in the queue's memory.
    pub fn queue_room(&self) -> usize {
        self.freeing.queue_room()
    }

    /// The map forgets a block, and whoever looks for duplicates never names it again.
    fn forget_block(&self, map: &mut BlockMap, id: BlockId) {
        map.apply(Update::Delete { id });
        self.duplicates.forget(id);
    }

    /// Part of a commit: what was dropped since the last one is freed, or marked. Nobody is inside.
    pub(crate) fn seal_dropped(&self) {
        let (records, nodes, shared) = {
            let mut freeing = self.freeing.lock();
            let (records, nodes) = (std::mem::take(&mut freeing.records), std::mem::take(&mut freeing.nodes));
            freeing.dropped_bytes = 0;
            (records, nodes, freeing.record.shared != 0)
        };
        let (mut dead, mut unsure) = (Vec::new(), Vec::new());
        let (held, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| self.pins.holds(node.id));
        if !mutated(Mutant::Leak) {
            let core = self.store.core.lock();
            for ptr in records.into_iter().chain(nodes) {
                let certain = !shared && !core.has_copies() && !core.hint_is_stale(ptr.place.segment);
                if certain { &mut dead } else { &mut unsure }.push(ptr);
            }
        }
        {
            let mut map = self.store.map.lock();
            dead.iter().for_each(|ptr| self.forget_block(&mut map, ptr.id));
            for ptr in unsure.iter().chain(&held) {
                map.apply(Update::Mark { id: ptr.id, marks: Marks::DEAD });
            }
        }
        self.give_back(dead.iter().map(|ptr| (ptr.id, ptr.place)));
        let limit = self.freeing.queue_limit();
        let mut freeing = self.freeing.lock();
        for ptr in unsure {
            freeing.enqueue(ptr.id, u64::from(ptr.place.footprint()), limit);
        }
        for ptr in held {
            freeing.hold(ptr.id, u64::from(ptr.place.footprint()));
        }
    }

    /// Blocks that the map has forgotten: their bytes are not live any more.
    fn give_back(&self, freed: impl Iterator<Item = (BlockId, Place)> + Clone) {
        let mut core = self.store.core.lock();
        freed.clone().for_each(|(_, place)| core.release(place));
        drop(core);
        for (id, _) in freed {
            self.store.cache.forget(id);
            self.pins.freed(id);
        }
    }

    /// Frees a block at once, before any commit.
    pub(crate) fn free_now(&self, ptr: BlockPtr) {
        if self.store.core.lock().has_copies() {
            // Only the map knows all of its places.
            self.store.map.lock().apply(Update::Mark { id: ptr.id, marks: Marks::DEAD });
            let bytes = u64::from(ptr.place.footprint());
            return self.freeing.lock().enqueue(ptr.id, bytes, self.freeing.queue_limit());
        }
        self.forget_block(&mut self.store.map.lock(), ptr.id);
        self.give_back(std::iter::once((ptr.id, ptr.place)));
    }

    /// Works off a part of the free queue: reads about `pages` pages of the block map at most, and no more than some
    /// tenths of a second. Returns whether there is more. What it frees can be written again some commits later.
    ///
    /// # Errors
    /// When nothing may be written, or the map cannot be read.
    pub fn free_step(&self, pages: usize) -> Result<bool> {
        let _commits_wait = self.commit_turn();
        self.store.check_writable()?;
        self.free_some(pages)
    }

    /// As [`Pool::free_step`]; the commit lock is held, so that no block moves and no run goes.
    pub fn free_some(&self, pages: usize) -> Result<bool> {
        self.let_go();
        let mut pages = pages.max(1);
        let mut ids_left = IDS_PER_STEP;
        let mut finder = self.store.map.lock().finder();
        while pages > 0 && ids_left > 0 {
            let batch: Vec<BlockId> = {
                let freeing = self.freeing.lock();
                freeing.queue.iter().take(BATCH.min(ids_left)).copied().collect()
            };
            let read = if batch.is_empty() {
                let from = self.freeing.lock().unswept;
                let Some(from) = from else { break };
                self.freeing.sweep(from, pages)?
            } else {
                ids_left -= batch.len();
                self.decide_batch(&batch, &mut finder)?
            };
            pages = pages.saturating_sub(read);
        }
        let freeing = self.freeing.lock();
        Ok(!freeing.queue.is_empty() || freeing.unswept.is_some())
    }

    /// Queues ids that no collection holds any more.
    fn let_go(&self) {
        let first = self.freeing.lock().held.first().copied();
        // What it still needs of the oldest it needs of the others.
        if first.is_some_and(|first| !self.pins.holds(first)) {
            let limit = self.freeing.queue_limit();
            let mut freeing = self.freeing.lock();
            for id in std::mem::take(&mut freeing.held) {
                freeing.remember(id, limit);
            }
        }
    }

    /// Frees the ids of the queue that are not shared; the pages that it read.
    fn decide_batch(&self, ids: &[BlockId], finder: &mut Finder) -> Result<usize> {
        let (io, before) = (RunIo::new(&self.store), finder.pages());
        let in_runs: Vec<(BlockId, Delta)> =
            ids.iter().map(|&id| Ok((id, finder.find(id, &io)?))).collect::<Result<_>>()?;
        let mut freed = Vec::new();
        {
            let mut map = self.store.map.lock();
            let mut freeing = self.freeing.lock();
            for (id, in_runs) in in_runs {
                let delta = map.now(id, in_runs);
                if !delta.set.contains(Marks::DEAD) {
                    freeing.queue.remove(&id);
                    continue;
                }
                let places = match Entry::of(&delta).map(|entry| entry.location) {
                    Some(Location::Places(places)) => places.to_vec(),
                    _ => Vec::new(),
                };
                let bytes = places.iter().map(|place| u64::from(place.footprint())).sum();
                freeing.dequeued(id, bytes);
                if delta.set.contains(Marks::SHARED) {
                    freeing.record.left_bytes += bytes;
                    if !mutated(Mutant::DeadNotCleared) {
                        map.apply(Update::Unmark { id, marks: Marks::DEAD });
                    }
                } else {
                    self.forget_block(&mut map, id);
                    freed.extend(places.into_iter().map(|place| (id, place)));
                }
            }
        }
        self.give_back(freed.iter().copied());
        Ok(finder.pages() - before)
    }

    /// The cleaner met a block: frees it when it is dead, and says so; else it has to be moved. `in_map` is what the
    /// map knew of it when it was looked up under the commit lock, which is still held.
    pub(crate) fn free_dead(&self, id: BlockId, in_map: Entry) -> bool {
        let (Location::Places(places), true) = (in_map.location, in_map.marks.contains(Marks::DEAD)) else {
            return false;
        };
        {
            let mut map = self.store.map.lock();
            let mut freeing = self.freeing.lock();
            let marks = map.now(id, Delta { set: in_map.marks, ..Delta::NONE }).set;
            if marks.contains(Marks::SHARED) || !marks.contains(Marks::DEAD) || freeing.held.contains(&id) {
                return false;
            }
            self.forget_block(&mut map, id);
            freeing.dequeued(id, places.iter().map(|place| u64::from(place.footprint())).sum());
        }
        self.give_back(places.iter().map(|&place| (id, place)));
        true
    }

    /// Bytes of blocks that wait in the free queue or for the next commit, about.
    pub fn queued_bytes(&self) -> u64 {
        self.freeing.queued_bytes()
    }

    /// Blocks that were dropped since the last commit, which has to deal with each of them.
    pub fn dropped_blocks(&self) -> usize {
        self.freeing.dropped_blocks()
    }

    /// Every block that the map knows, in the order of ids: for tests, which know what must be there.
    ///
    /// # Errors
    /// When the map cannot be read.
    #[doc(hidden)]
    pub fn blocks(&self) -> Result<Vec<(BlockId, Entry)>> {
        let _commits_wait = self.commit_turn();
        let (io, mut all) = (RunIo::new(&self.store), Vec::new());
        let window = self.store.map.lock().window(BlockId::new(0), usize::MAX);
        window.visit(&io, |id, entry| {
            all.push((id, entry));
            Ok(std::ops::ControlFlow::Continue(()))
        })?;
        Ok(all)
    }

    /// Bytes that a collection may bring back, at most.
    pub fn left_bytes(&self) -> u64 {
        self.freeing.left_bytes()
    }

    /// Whether an id may be referred to more than once.
    pub fn has_shared(&self) -> bool {
        self.freeing.has_shared()
    }

    /// Whether the next commit frees or marks blocks.
    pub(crate) fn has_dropped(&self) -> bool {
        self.freeing.has_dropped()
    }

    /// Whether the free queue has work.
    pub fn has_queued(&self) -> bool {
        self.freeing.has_queued()
    }
}
