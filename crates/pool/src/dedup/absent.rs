//! A large index without the records: for benchmarks.

use crate::pool::Pool;
use larder_format::{BlockId, Fingerprint};
use larder_store::Result;

/// Fingerprints between two steps of writing and merging, and the pages of a step, with which merges keep up.
const AT_ONCE: usize = 4096;
const PAGES: usize = 128;
/// Pages between two commits where nothing else is done.
const PAGES_A_COMMIT: usize = 4096;

impl Pool {
    /// Has the index take up fingerprints as if records with them had just been stored, of which the map knows nothing:
    /// so a benchmark has an index of 10^8 in minutes, without 10^8 records. Each takes an id; the caller commits
    /// every few million. Where the index leads to one of them it is stale, which costs a read and no more.
    ///
    /// # Errors
    /// When nothing may be written, or there is no room.
    #[doc(hidden)]
    pub fn index_absent(&self, prints: &[Fingerprint]) -> Result<()> {
        self.shared.store.check_writable()?;
        for prints in prints.chunks(AT_ONCE) {
            let first = self.shared.store.core.lock().take_ids(prints.len()).get();
            if let Some(index) = &mut self.shared.duplicates.indexed.lock().index {
                (first..).zip(prints).for_each(|(id, &print)| index.insert(print, BlockId::new(id)));
            }
            let _commits_wait = self.commit_turn();
            self.tick_index(PAGES)?;
        }
        Ok(())
    }

    /// Goes on until nothing of the index waits to be merged.
    ///
    /// # Errors
    /// When nothing may be written, or there is no room.
    #[doc(hidden)]
    pub fn drain_index(&self) -> Result<()> {
        loop {
            let goes_on = {
                let _commits_wait = self.commit_turn();
                self.tick_index(PAGES_A_COMMIT)?
            };
            self.commit()?;
            if !goes_on {
                return Ok(());
            }
        }
    }
}
