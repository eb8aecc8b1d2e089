//! Whether anything newer than the base may hold a fingerprint: one line of memory answers for the memtables and for
//! all upper runs together.
//!
//! A new fingerprint is in none of them, and asking each would cost more the more there are: two hash tables and half
//! a dozen filters, none of which is in a cache when the index is large. What is put into the memtable is put in here
//! as well, and nothing is ever taken out; instead there are *generations*, each for what came until the runs of its
//! time were taken for a fold, and they go as wholes with the last of those runs. There are two while the base is
//! folded and, as a rule, one at other times.
//!
//! All of it is in memory only, and has what the filters of parts leave of their share. Runs of an earlier import are
//! in no generation; they are asked as if this were not there, until they are folded.

use super::filter::{Line, fetch, mix, spot};
use super::probe::Ask;
use larder_format::run::RunId;

/// Keys of a line at its capacity, on the average: about 10 bits a key, of which one in a hundred others seems to be
/// there.
const KEYS_PER_LINE: usize = 50;
/// Generations at most.
pub(super) const MOST: usize = 2;
/// The capacity of the first generation of an index that is new.
const LEAST: usize = if cfg!(test) { 1 << 6 } else { 1 << 16 };

/// See the module's comment. Without an entry it takes no memory.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Oldest first.
    generations: Vec<Generation>,
}

#[derive(Debug)]
struct Generation {
    /// It has all keys of runs from this one on, up to the next generation's.
    from: RunId,
    lines: Vec<Line>,
    keys: usize,
    /// Keys with which the next entry wants a new generation.
    most: usize,
}

impl Generation {
    fn put(&mut self, key: u64) {
        let spot = spot(self.lines.len(), mix(key));
        self.lines[spot.line()].put(&spot);
        self.keys += 1;
    }
}

impl Recent {
    /// Whether the next entry wants a new generation first.
    pub(super) fn is_full(&self) -> bool {
        self.generations.last().is_none_or(|last| last.keys >= last.most)
    }

    /// A new generation for all runs from `from` on, with room for `expected` keys, but for at most `max_bytes`; `keys`
    /// are those that no run below `from` has. One that gets more keys than it has room for says yes more often.
    pub(super) fn begin(
        &mut self,
        from: RunId,
        expected: usize,
        max_bytes: usize,
        keys: impl Iterator<Item = u64>,
    ) {
        let lines = expected.max(LEAST).div_ceil(KEYS_PER_LINE).min(max_bytes / size_of::<Line>());
        let lines = vec![Line::default(); lines.max(1)];
        let mut new = Generation { from, most: lines.len() * KEYS_PER_LINE, lines, keys: 0 };
        keys.for_each(|key| new.put(key));
        // The next one is far, even if there is no room for half of these. A few more do little harm.
        new.most = (new.most + new.most / 4).max(2 * new.keys);
        // One of which no run was written yet: all its keys are here.
        self.generations.pop_if(|last| last.from == from);
        // Runs older than two generations are asked as if they were of an earlier import.
        if self.generations.len() == MOST {
            self.generations.remove(0);
        }
        self.generations.push(new);
    }

    /// The entry has a place in the newest generation, which must be there.
    pub(super) fn put(&mut self, key: u64) {
        self.generations.last_mut().expect("a generation was begun").put(key);
    }

    /// The first run that it knows: about older ones it says nothing.
    pub(super) fn from(&self) -> Option<RunId> {
        self.generations.first().map(|first| first.from)
    }

    /// Notes of each that is asked for whether it may be in a memtable or a run that this knows; without a generation
    /// all may.
    pub(super) fn tell(&self, asks: &mut [Ask]) {
        if self.generations.is_empty() {
            return asks.iter_mut().for_each(|ask| ask.recent = true);
        }
        let mut spots = Vec::with_capacity(asks.len());
        for Generation { lines, .. } in &self.generations {
            spots.clear();
            spots.extend(asks.iter().map(|ask| spot(lines.len(), mix(ask.high))));
            spots.iter().for_each(|spot| fetch((&raw const lines[spot.line()]).cast()));
            for (ask, spot) in asks.iter_mut().zip(&spots) {
                ask.recent |= lines[spot.line()].may_hold(spot);
            }
        }
    }

    /// Generations of which no run is left go. `oldest`: the first run that is an upper one, or will be.
    pub(super) fn forget_before(&mut self, oldest: RunId) {
        let gone = self.generations.iter().skip(1).take_while(|next| next.from <= oldest).count();
        self.generations.drain(..gone);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.generations.iter().map(|generation| size_of_val(&generation.lines[..])).sum()
    }
}
