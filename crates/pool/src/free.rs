//! Freeing what was dropped, for those who free beside commits. What becomes of a block: see [`crate::freeing`].

use crate::pool::{CommitTurn, Pool};
use larder_format::block::BlockKind;
use larder_format::run::Marks;
use larder_format::{BlockId, BlockPtr};
use larder_sorted::map::Entry;
use larder_store::{Result, RunIo};
use std::collections::BTreeSet;

impl Pool {
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

    /// Every block that the map knows, in the order of ids, but for commit records: for tests, which know what must be
    /// there.
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
        let records: BTreeSet<_> = self.commit_records().iter().map(|one| one.ptr.id).collect();
        // One that was dropped is in no table any more.
        let is_dropped = |id: BlockId, entry: &Entry| {
            let place = entry.places().first().filter(|_| entry.marks.contains(Marks::DEAD));
            let read = place.and_then(|&place| self.shared.store.read_at(BlockPtr { id, place }).ok());
            read.is_some_and(|(header, _)| header.info.kind == BlockKind::CommitRecord)
        };
        all.retain(|(id, entry)| !records.contains(id) && !is_dropped(*id, entry));
        Ok(all)
    }
}
