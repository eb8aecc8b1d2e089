//! The way back from deduplication: live files get blocks of their own, and fingerprints are forgotten.
//!
//! Which block an extent names is the business of the layer above, which knows whoever else changes files: it walks
//! the files of a head ([`crate::FrontEnd::renew`]) and asks here which of their blocks others may name as well.
//!
//! # Order
//! The question about a block takes its fingerprint away in the same moment, under the map's lock, under which hits are
//! decided: it has the mark `SHARED` already, or no hit ever gives it one. What is shared keeps its fingerprint while
//! some dataset has `dedup` on, for those to find who share it.

use crate::dedup::is_shared;
use crate::pool::Pool;
use crate::tally::{Renewal, Renewed, Tally};
use larder_format::run::Marks;
use larder_format::{BlockId, BlockPtr};
use larder_sorted::index::Changes;
use larder_sorted::map::{Entry, Location, LostPages, Update};
use larder_store::{PoolError, Result, RunIo};
use std::collections::HashSet;

impl Pool {
    /// Gives live files other blocks with the same bytes, in place of those that they have: a part of a dataset.
    ///
    /// # Errors
    /// [`PoolError::NotFound`] when the dataset's files are not served by anybody; [`PoolError::NoSpace`] when there is
    /// no room; when nothing may be written or read for now.
    pub fn renew(&self, renewal: &Renewal) -> Result<Renewed> {
        match self.front_end() {
            Some(front) => front.renew(renewal),
            None => Err(PoolError::NotFound("a mount".into())),
        }
    }

    /// Those of the blocks that other extents may name as well, by a hit, a copied range or an alias, and the number of
    /// those of which the map cannot tell. The others lose their fingerprints, unless `dry_run`.
    ///
    /// # Errors
    /// When the map cannot be read for now.
    pub fn shared_among(&self, mut ids: Vec<BlockId>, dry_run: bool) -> Result<(HashSet<BlockId>, u64)> {
        ids.sort_unstable();
        ids.dedup();
        let is_wanted = self.wants_index();
        // Nothing is freed and no checkpoint comes, and no collection ends that finds nothing shared.
        let _turn = self.commit_turn();
        let _op = if dry_run { None } else { Some(self.enter()?) };
        let io = RunIo::new(&self.shared.store);
        let (mut finder, mut lost) = (self.shared.store.map.lock().finder(), LostPages::default());
        let (mut shared, mut unknown) = (HashSet::new(), 0);
        for id in ids {
            let Some(in_runs) = finder.find_past(id, &mut lost, PoolError::is_loss, &io)? else {
                self.shared.store.silence().map_or(Ok(()), Err)?;
                unknown += 1;
                continue;
            };
            let mut map = self.shared.store.map.lock();
            let Some(entry) = Entry::of(&map.now(id, in_runs)) else { continue };
            let is_alias = matches!(entry.location, Location::Alias(_));
            let is_shared = is_shared(&entry);
            if is_alias || is_shared {
                shared.insert(id);
            }
            if entry.print.is_some() && !(dry_run || is_shared && is_wanted) {
                map.apply(Update::Unmark { id, marks: Marks::INDEXED });
                self.shared.duplicates.forget(id);
            }
        }
        Ok((shared, unknown))
    }

    /// Takes records out of the index that nobody shares, all when no dataset wants an index.
    ///
    /// # Errors
    /// As [`Pool::shared_among`].
    pub fn forget_fingerprints(&self, records: &[BlockPtr]) -> Result<Tally> {
        self.shared.store.check_writable()?;
        let (_, unread) = self.shared_among(records.iter().map(|ptr| ptr.id).collect(), false)?;
        Ok(Tally { records: records.len() as u64, unread, ..Tally::default() })
    }

    /// Gives back the index's space, when nobody wants it. It would be built again from the fingerprints that the map
    /// has.
    pub fn drop_unwanted_index(&self) {
        self.wake_or_lay_down();
        let _turn = self.commit_turn();
        let parts = {
            let mut indexed = self.shared.duplicates.indexed.lock();
            if indexed.index.is_some() || self.wants_index() {
                return;
            }
            std::mem::take(&mut indexed.parts)
        };
        // A commit goes on with what the tables do not take now.
        drop(self.install_parts(Changes { added: Vec::new(), removed: parts }));
    }
}
