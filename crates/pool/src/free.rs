//! Freeing what was dropped, for those who free beside commits. What becomes of a block: see [`crate::freeing`].

use crate::pool::{CommitTurn, Pool};
use larder_format::BlockId;
use larder_sorted::map::{BlockMap, Entry};
use larder_store::Result;
use larder_store::RunIo;
use larder_sync::RwLockWriteGuard;

impl Pool {
    /// A collection that began when `before` bytes were left to it has ended: what was left then is free, or known to
    /// be in use.
    pub fn clear_left(&self, before: u64) {
        self.shared.freeing.clear_left(before);
    }

    /// Garbage collection has judged all ids below `next`; `left` bytes had been left to it when it began. With 0 none
    /// is under way.
    pub fn note_judged(&self, next: BlockId, left: u64) {
        self.shared.freeing.note_judged(next, left);
    }

    /// Note by [`Pool::note_judged`] of a collection that was cut short.
    pub(crate) fn judged(&self) -> Option<(BlockId, u64)> {
        self.shared.freeing.judged()
    }

    /// A further extent names this block: from now on only GC can say that it is dead.
    pub fn note_shared(&self, id: BlockId) {
        self.shared.freeing.note_shared(id);
    }

    /// Garbage collection found one reference to an id that was shared, and none was made since it began. A mark `DEAD`
    /// was for another reference, and goes too.
    pub fn note_sole(&self, map: &mut BlockMap, id: BlockId) {
        self.shared.freeing.note_sole(map, id);
    }

    /// Garbage collection found no reference to a block of `bytes`, and none was made since it began: it joins the
    /// queue.
    pub fn condemn(&self, map: &mut BlockMap, id: BlockId, bytes: u64) {
        self.shared.freeing.condemn(map, id, bytes);
    }

    /// Garbage collection found that no id is shared any more. Nobody may be inside.
    pub fn nothing_is_shared(&self, _nobody_enters: &RwLockWriteGuard<'_, ()>) {
        self.shared.freeing.nothing_is_shared();
    }

    /// Ids that find room in the queue's memory.
    pub fn queue_room(&self) -> usize {
        self.shared.freeing.queue_room()
    }

    /// Works off a part of the free queue: reads about `pages` pages of the block map at most, and no more than some
    /// tenths of a second. Returns whether there is more. What it frees can be written again some commits later.
    ///
    /// # Errors
    /// When nothing may be written, or the map cannot be read.
    pub fn free_step(&self, pages: usize) -> Result<bool> {
        let turn = self.commit_turn();
        self.shared.store.check_writable()?;
        self.free_some(&turn, pages)
    }

    /// As [`Pool::free_step`]; the commit lock is held, so that no block moves and no run goes.
    pub fn free_some(&self, _turn: &CommitTurn<'_>, pages: usize) -> Result<bool> {
        self.shared.freeing.free_some(pages)
    }

    /// Bytes of blocks that wait in the free queue or for the next commit, about.
    pub fn queued_bytes(&self) -> u64 {
        self.shared.freeing.queued_bytes()
    }

    /// Blocks that were dropped since the last commit, which has to deal with each of them.
    pub fn dropped_blocks(&self) -> usize {
        self.shared.freeing.dropped_blocks()
    }

    /// Every block that the map knows, in the order of ids: for tests, which know what must be there.
    ///
    /// # Errors
    /// When the map cannot be read.
    #[doc(hidden)]
    pub fn blocks(&self) -> Result<Vec<(BlockId, Entry)>> {
        let _commits_wait = self.commit_turn();
        let (io, mut all) = (RunIo::new(&self.shared.store), Vec::new());
        let window = self.shared.store.map.lock().window(BlockId::new(0), usize::MAX);
        window.visit(&io, |id, entry| {
            all.push((id, entry));
            Ok(std::ops::ControlFlow::Continue(()))
        })?;
        Ok(all)
    }

    /// Bytes that a collection may bring back, at most.
    pub fn left_bytes(&self) -> u64 {
        self.shared.freeing.left_bytes()
    }

    /// Whether an id may be referred to more than once.
    pub fn has_shared(&self) -> bool {
        self.shared.freeing.has_shared()
    }

    /// Whether the next commit frees or marks blocks.
    pub(crate) fn has_dropped(&self) -> bool {
        self.shared.freeing.has_dropped()
    }

    /// Whether the free queue has work.
    pub fn has_queued(&self) -> bool {
        self.shared.freeing.has_queued()
    }
}
