//! References by aliases: a block lives as long as an alias of it does.
//!
//! Between walk and sweep the block map is read once, beside what the walk found. Each alias that is alive is to its
//! target what its own references are, and one more thing: the target keeps the mark `SHARED`, since whoever frees the
//! alias does not free the target. An alias below the ids that are looked at was judged by the collection that this one
//! takes up: it counts as alive. One that is made from now on touches its target.

use super::spill::{Counted, Merged, Tag};
use larder_format::BlockId;
use larder_mutants::{Mutant, mutated};
use larder_pool::Pool;
use larder_sorted::PageReader;
use larder_sorted::map::Location;
use larder_store::{PoolError, Result, RunIo};
use std::ops::{ControlFlow, RangeInclusive};

/// References of one dataset that are carried over from an alias, at most: they count for figures alone.
const CARRIED_AT_MOST: u64 = 16;

/// State of the look at aliases.
pub(crate) struct AliasWalk {
    live: Merged,
    next: BlockId,
    ids: RangeInclusive<BlockId>,
}

impl AliasWalk {
    /// Of a collection of these blocks that found `live`.
    pub(crate) fn new(live: Merged, ids: RangeInclusive<BlockId>) -> Self {
        Self { live, next: BlockId::new(0), ids }
    }

    /// Looks at some `entries` blocks of the map; `refer` hears of each reference to the target of an alias, and
    /// `dataset` tells by its origin which dataset's it is: those of one come together. Whether there is more. Nobody
    /// may move or free blocks meanwhile.
    ///
    /// # Errors
    /// When a page of the map cannot be read: aliases on it may be alive.
    pub(crate) fn step<R: PageReader<Error = PoolError>>(
        &mut self,
        pool: &Pool,
        io: &R,
        entries: usize,
        dataset: impl Fn(u32) -> Option<u64>,
        mut refer: impl FnMut(BlockId, Tag) -> Result<()>,
    ) -> Result<bool> {
        let Self { live, ids, .. } = self;
        let mut left = entries;
        let window = pool.store().map.lock().window(self.next, entries);
        let next = window.visit(&RunIo::new(pool.store()), |id, entry| {
            if id > *ids.end() {
                return Ok(ControlFlow::Break(()));
            }
            if let Location::Alias(to) = entry.location
                && ids.contains(&to)
                && !mutated(Mutant::AliasOverlooked)
            {
                let is_judged = id < *ids.start();
                let is_alive = live.contains(id.get(), io)?;
                let (mut of, mut room) = (None, 0);
                while live.peek() == Some(id.get()) {
                    let Some(Counted { tag, count, .. }) = live.next(io)? else { break };
                    // A mark that it stays shared is no dataset's.
                    let now = (tag != Tag::NONE).then(|| dataset(tag.origin()));
                    if of.replace(now) != Some(now) {
                        room = CARRIED_AT_MOST;
                    }
                    let carried = count.min(room);
                    room -= carried;
                    for _ in 0..carried {
                        refer(to, tag)?;
                    }
                }
                if is_judged || is_alive {
                    refer(to, Tag::NONE)?;
                }
            }
            left -= 1;
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let behind = ids.end().next();
        self.next = next.unwrap_or(behind).min(behind);
        Ok(self.next < behind)
    }
}
