//! Aliases of lost blocks: extents name an alias by its own id, and nothing in it tells of the place that is lost.
//!
//! The map is gone through for targets that may be lost, which are read, and once more for aliases of those that cannot
//! be; that second time is left out where there are none. Whoever goes through trees then takes an extent of such an
//! alias for one that may be lost.
//!
//! # Bounds
//! Both sets have [`AT_MOST`] ids, about: each target that an alias has is named by a file at least, so with more of
//! them the ledger is full long before.

use larder_format::block::BlockKind;
use larder_format::run::{Marks, Places};
use larder_format::{BlockId, BlockPtr};
use larder_pool::Pool;
use larder_pool::ledger::{ENTRIES_AT_MOST, Wanted};
use larder_sorted::map::{Entry, Location};
use larder_store::{PoolError, Result, RunIo};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Entries of the map that a step looks at.
const ENTRIES: usize = 16 << 10;
/// Targets and aliases that are kept.
const AT_MOST: usize = 16 * ENTRIES_AT_MOST;

/// Two ways through the map, and what was met on them.
pub(crate) struct AliasSearch {
    /// Where to go on; nothing when all of the map was seen.
    next: Option<BlockId>,
    /// Targets that were met and not read yet.
    met: Vec<(BlockId, Places)>,
    /// Targets that cannot be read, or are not there.
    lost: HashSet<BlockId>,
    /// Their aliases, once all targets were looked at.
    found: Option<HashSet<BlockId>>,
}

impl AliasSearch {
    /// From the first block on.
    pub(crate) fn new(wanted: &Wanted) -> Self {
        let lost = wanted.blocks.iter().copied().collect();
        Self { next: Some(BlockId::new(0)), met: Vec::new(), lost, found: None }
    }

    /// The aliases that were found.
    pub(crate) fn take_found(&mut self) -> HashSet<BlockId> {
        self.found.take().unwrap_or_default()
    }

    /// Looks at some entries of the map, or reads `effort` blocks, or up to one that cannot be read; false when there
    /// is nothing more to do.
    ///
    /// # Errors
    /// When the map cannot be read for now.
    pub(crate) fn step(&mut self, pool: &Pool, wanted: &Wanted, effort: usize) -> Result<bool> {
        if !self.met.is_empty() {
            for _ in 0..effort {
                let Some((id, places)) = self.met.pop() else { break };
                if pool.store().read_plain(BlockPtr { id, place: places[0] }, BlockKind::Record).is_err() {
                    self.lost.insert(id);
                    break;
                }
            }
            return Ok(true);
        }
        if let Some(from) = self.next {
            self.next = self.look(pool, wanted, from)?;
            return Ok(true);
        }
        if self.found.is_none() && !self.lost.is_empty() {
            (self.next, self.found) = (Some(BlockId::new(0)), Some(HashSet::new()));
            return Ok(true);
        }
        Ok(false)
    }

    /// Looks for targets that may be lost, or for aliases of those that are.
    fn look(&mut self, pool: &Pool, wanted: &Wanted, from: BlockId) -> Result<Option<BlockId>> {
        let window = pool.store().map.lock().window(from, ENTRIES);
        let Self { met, lost, found, .. } = self;
        let mut left = ENTRIES;
        let visit = |id: BlockId, entry: Entry| {
            let is_there = !entry.marks.contains(Marks::DEAD) || entry.marks.contains(Marks::SHARED);
            match (entry.location, &mut *found) {
                (Location::Places(places), None)
                    if is_there
                        && entry.marks.contains(Marks::ALIASED)
                        && places.iter().any(|&place| wanted.meets(id, place)) =>
                {
                    met.push((id, places));
                }
                (Location::Alias(to), Some(found)) if is_there && lost.contains(&to) => {
                    found.insert(id);
                }
                _ => {}
            }
            left -= 1;
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        let next = window.visit_past(&RunIo::new(pool.store()), PoolError::is_loss, visit)?;
        let count = found.as_ref().unwrap_or(lost).len();
        Ok(next.filter(|_| count < AT_MOST))
    }
}
