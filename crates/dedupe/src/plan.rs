//! From items to runs: which ranges of which files are to share the blocks of which others.
//!
//! Files have ranks; whoever comes first in rank is what the others share. All items are sorted by what they are, so
//! that the same ones meet; each but the first of its kind is then noted at its place, with the place of the first,
//! and all places are sorted. Neighbours whose firsts are neighbours, too, become one run. Where the firsts jump
//! though the items go on alike, the run goes on: what it shares has been made to share the first before, since it is
//! of a lower rank, or earlier in the same file. So runs are done in the order in which they come, or files of
//! one [`level`](Levels) side by side.
//!
//! Both sorts are of 16 bytes a block in bounded memory ([`Sorter`]).

use crate::error::DedupeError;
use crate::items::Item;
use crate::sort::{Sorted, Sorter};
use std::collections::HashMap;
use std::path::Path;

/// In place of a rank: the hole that blocks of zeros become.
pub const ZEROS: u32 = u32::MAX;

/// A range of a file that is to share that of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Rank of the file that changes its blocks.
    pub rank: u32,
    /// First unit of it.
    pub at: u32,
    /// Rank of the file whose blocks they become, or [`ZEROS`].
    pub source: u32,
    /// First unit there.
    pub from: u32,
    /// Length.
    pub units: u32,
}

/// Facts of files by rank, of which the plan depends.
pub trait Ranked {
    /// Whether its blocks may be changed.
    fn may_change(&self, rank: u32) -> bool;
    /// Whether all was done for it that could be done with other such files.
    fn is_settled(&self, rank: u32) -> bool;
    /// Its length in units.
    fn units(&self, rank: u32) -> u32;
    /// Told of so many more items that are sorted; whether to go on.
    fn sorted(&self, items: u64) -> bool;
    /// Whether the items of two places are the same; `false` where that is not known.
    ///
    /// # Errors
    /// When they cannot be read.
    fn is_same(&mut self, a: (u32, u32), b: (u32, u32)) -> Result<bool, DedupeError>;
}

/// Takes all items.
pub struct Planner {
    by_item: Sorter,
    by_place: Sorter,
}

/// Items that are sorted between two looks whether to go on.
const LOOK: u64 = 1 << 16;

fn four(a: u32, b: u32, c: u32, d: u32) -> u128 {
    u128::from(a) << 96 | u128::from(b) << 64 | u128::from(c) << 32 | u128::from(d)
}

impl Planner {
    /// One that sorts in `memory` bytes, with temporary files in `folder`.
    pub fn new(folder: &Path, memory: u64) -> Self {
        Self {
            by_item: Sorter::new(folder.to_owned(), memory / 2),
            by_place: Sorter::new(folder.to_owned(), memory / 2),
        }
    }

    /// Notes an item of a file at a unit.
    ///
    /// # Errors
    /// When the temporary folder cannot be written.
    pub fn note(&mut self, item: Item, rank: u32, unit: u32, files: &impl Ranked) -> Result<(), DedupeError> {
        if item.is_hole() {
            return Ok(());
        }
        if !item.is_zeros() {
            return self
                .by_item
                .push(u128::from(item.bits()) << 64 | u128::from(rank) << 32 | u128::from(unit));
        }
        if files.may_change(rank) && !files.is_settled(rank) {
            for unit in unit..unit + item.units() {
                self.by_place.push(four(rank, unit, ZEROS, 0))?;
            }
        }
        Ok(())
    }

    /// All runs of at least `least` units, or up to a file's end.
    ///
    /// # Errors
    /// When the temporary folder cannot be written or read.
    pub fn runs<R: Ranked>(self, least: u32, files: R) -> Result<Runs<R>, DedupeError> {
        let mut by_place = self.by_place;
        let mut first = None;
        for (at, number) in self.by_item.sorted().enumerate() {
            let number = number?;
            if (at as u64 + 1).is_multiple_of(LOOK) && !files.sorted(LOOK) {
                break;
            }
            let (item, rank, unit) = ((number >> 64) as u64, (number >> 32) as u32, number as u32);
            let (first_rank, first_unit) = match first {
                Some((its, rank, unit)) if its == item => (rank, unit),
                _ => {
                    first = Some((item, rank, unit));
                    continue;
                }
            };
            if !files.may_change(rank) || files.is_settled(rank) && files.is_settled(first_rank) {
                continue;
            }
            for ahead in 0..Item::from_bits(item).units() {
                by_place.push(four(rank, unit + ahead, first_rank, first_unit + ahead))?;
            }
        }
        let (found, places) = (by_place.len(), by_place.sorted());
        Ok(Runs { places, files, least, current: None, found, dropped: 0 })
    }
}

/// Runs in the order of rank and place.
pub struct Runs<R> {
    places: Sorted,
    files: R,
    least: u32,
    current: Option<Run>,
    /// Units that all runs have together, also those that are too short.
    pub found: u64,
    /// Units of those that were too short until now.
    pub dropped: u64,
}

impl<R: Ranked> Runs<R> {
    /// The next.
    ///
    /// # Errors
    /// When temporary files or the hash file cannot be read.
    pub fn next(&mut self) -> Result<Option<Run>, DedupeError> {
        loop {
            let Some(place) = self.places.next().transpose()? else {
                let last = self.current.take();
                return Ok(last.filter(|run| self.is_long(run)));
            };
            let (rank, at) = ((place >> 96) as u32, (place >> 64) as u32);
            let (source, from) = ((place >> 32) as u32, place as u32);
            let mut new = Run { rank, at, source, from, units: 1 };
            let Some(run) = &mut self.current else {
                self.current = Some(new);
                continue;
            };
            if run.rank == rank && run.at + run.units == at {
                if goes_on(run, source, from, &mut self.files)? {
                    run.units += 1;
                    continue;
                }
                // A few blocks that many files have begin many runs; the longer one takes them over.
                while source != ZEROS && run.source != ZEROS && run.units > 0 && run.units < self.least {
                    let (at, from) = (new.at - 1, new.from.wrapping_sub(1));
                    let apart = source != rank || new.from + new.units <= at;
                    if new.from == 0 || !apart || !self.files.is_same((rank, at), (source, from))? {
                        break;
                    }
                    new = Run { at, from, units: new.units + 1, ..new };
                    run.units -= 1;
                }
            }
            let run = *run;
            self.current = Some(new);
            if self.is_long(&run) {
                return Ok(Some(run));
            }
        }
    }

    fn is_long(&mut self, run: &Run) -> bool {
        // The end of a file is shared with ends alone; left behind, it would hold all of a large extent of btrfs.
        let is_end = run.at + run.units == self.files.units(run.rank);
        let is_long = run.units > 0 && (run.units >= self.least || is_end);
        self.dropped += if is_long { 0 } else { u64::from(run.units) };
        is_long
    }
}

/// Whether a run goes on with the unit behind it, of whose kind the first is at `from` of `source`.
fn goes_on(run: &Run, source: u32, from: u32, files: &mut impl Ranked) -> Result<bool, DedupeError> {
    if run.source == ZEROS {
        return Ok(source == ZEROS);
    }
    let next = run.from + run.units;
    // A file may share itself, but not where both ranges overlap.
    if run.source == run.rank && next + 1 > run.at {
        return Ok(false);
    }
    if (source, from) == (run.source, next) {
        return Ok(true);
    }
    if next >= files.units(run.source) {
        return Ok(false);
    }
    files.is_same((run.rank, run.at + run.units), (run.source, next))
}

/// Which files of a batch can be done side by side: those of a level, when those of lower ones are done.
#[derive(Debug, Default)]
pub struct Levels(HashMap<u32, u32>);

impl Levels {
    /// Notes a run; runs come in order.
    pub fn note(&mut self, run: &Run) {
        let above = match self.0.get(&run.source) {
            Some(level) if run.source != run.rank => level + 1,
            _ => 0,
        };
        let level = self.0.entry(run.rank).or_default();
        *level = (*level).max(above);
    }

    /// Level of a file.
    pub fn of(&self, rank: u32) -> u32 {
        self.0.get(&rank).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Debug, Clone)]
    struct Model {
        files: Vec<Vec<u64>>,
        fixed: Vec<bool>,
        settled: Vec<bool>,
    }

    impl Model {
        fn item(&self, (rank, unit): (u32, u32)) -> Option<Item> {
            let kind = *self.files[rank as usize].get(unit as usize)?;
            Some(Item::from_bits(kind << 8 | 1))
        }

        fn runs(&self, least: u32, memory: u64) -> Vec<Run> {
            let mut planner = Planner::new(&std::env::temp_dir(), memory);
            for (rank, items) in self.files.iter().enumerate() {
                for unit in 0..items.len() {
                    let at = (rank as u32, unit as u32);
                    planner.note(self.item(at).unwrap(), at.0, at.1, &self).unwrap();
                }
            }
            let mut runs = planner.runs(least, self).unwrap();
            std::iter::from_fn(|| runs.next().unwrap()).collect()
        }
    }

    impl Ranked for &Model {
        fn may_change(&self, rank: u32) -> bool {
            !self.fixed[rank as usize]
        }
        fn is_settled(&self, rank: u32) -> bool {
            self.settled[rank as usize]
        }
        fn units(&self, rank: u32) -> u32 {
            self.files[rank as usize].len() as u32
        }
        fn sorted(&self, _: u64) -> bool {
            true
        }
        fn is_same(&mut self, a: (u32, u32), b: (u32, u32)) -> Result<bool, DedupeError> {
            Ok(self.item(a).is_some() && self.item(a) == self.item(b))
        }
    }

    fn models() -> impl Strategy<Value = Model> {
        let file = prop::collection::vec(0u64..14, 0..40);
        (prop::collection::vec((file, 0u8..8), 1..8)).prop_map(|files| Model {
            fixed: files.iter().map(|(_, how)| *how == 7).collect(),
            settled: files.iter().map(|_| false).collect(),
            files: files.into_iter().map(|(items, _)| items).collect(),
        })
    }

    /// Places on the device after all runs were done, level by level as it happens side by side.
    fn after(model: &Model, runs: &[Run]) -> Vec<Vec<u64>> {
        let mut next = 100;
        let mut places: Vec<Vec<u64>> = (model.files.iter())
            .map(|items| {
                items
                    .iter()
                    .map(|kind| {
                        if *kind == 0 {
                            0
                        } else {
                            next += 1;
                            next
                        }
                    })
                    .collect()
            })
            .collect();
        let mut levels = Levels::default();
        runs.iter().for_each(|run| levels.note(run));
        let mut order: Vec<&Run> = runs.iter().collect();
        // Of one level whichever comes first: here the last.
        order.sort_by_key(|run| (levels.of(run.rank), u32::MAX - run.rank, run.at));
        for run in order {
            for unit in 0..run.units {
                let place = match run.source {
                    ZEROS => 0,
                    source => places[source as usize][(run.from + unit) as usize],
                };
                places[run.rank as usize][(run.at + unit) as usize] = place;
            }
        }
        places
    }

    proptest! {
        #[test]
        fn every_block_is_stored_once_and_none_becomes_another(model in models(), memory in 1u64..200_000) {
            let runs = model.runs(1, memory);
            for run in &runs {
                prop_assert!(!model.fixed[run.rank as usize]);
                for unit in 0..run.units {
                    let target = model.item((run.rank, run.at + unit)).unwrap();
                    match run.source {
                        ZEROS => prop_assert!(target.is_zeros()),
                        source => prop_assert_eq!(Some(target), model.item((source, run.from + unit))),
                    }
                }
                let apart = run.source != run.rank || run.from + run.units <= run.at;
                prop_assert!(apart, "{:?} overlaps itself", run);
            }
            if model.fixed.iter().any(|fixed| *fixed) {
                return Ok(());
            }
            let places: BTreeSet<u64> = after(&model, &runs).into_iter().flatten().filter(|at| *at != 0).collect();
            let kinds: BTreeSet<u64> = model.files.iter().flatten().copied().filter(|kind| *kind > 1).collect();
            prop_assert_eq!(places.len(), kinds.len());
        }

        #[test]
        fn short_runs_are_left_alone_unless_a_file_ends_there(model in models(), least in 2u32..6) {
            for run in model.runs(least, 1 << 20) {
                let is_end = (run.at + run.units) as usize == model.files[run.rank as usize].len();
                prop_assert!(run.units >= least || is_end, "{:?}", run);
            }
        }

        #[test]
        fn among_settled_files_nothing_is_done_and_new_ones_share_theirs(model in models()) {
            let old = Model { settled: vec![true; model.files.len()], ..model.clone() };
            prop_assert!(old.runs(1, 1 << 20).is_empty());
            let mut new = old.clone();
            let copy = new.files[0].clone();
            new.files.push(copy);
            new.fixed.push(false);
            new.settled.push(false);
            let last = new.files.len() as u32 - 1;
            let covered: u32 = new.runs(1, 1 << 20).iter().filter(|run| run.rank == last).map(|run| run.units).sum();
            let stored = new.files[0].iter().filter(|kind| **kind != 0).count();
            prop_assert!(covered as usize >= stored);
        }
    }

    #[test]
    fn a_copy_is_one_run_though_its_blocks_repeat() {
        let file: Vec<u64> = [5, 6, 5, 7, 5, 8, 6, 9].into();
        let other = vec![5, 99, 98];
        let model =
            Model { files: vec![other, file.clone(), file], fixed: vec![false; 3], settled: vec![false; 3] };
        let runs = model.runs(4, 1 << 20);
        assert_eq!(runs, [Run { rank: 2, at: 0, source: 1, from: 0, units: 8 }]);
    }

    #[test]
    fn the_end_of_a_copy_goes_with_it_though_only_another_copy_has_it() {
        let (image, file): (Vec<u64>, Vec<u64>) = ((10..20).collect(), (12..18).chain([40]).collect());
        let model =
            Model { files: vec![image, file.clone(), file], fixed: vec![false; 3], settled: vec![false; 3] };
        let of_copy: u32 =
            model.runs(4, 1 << 20).iter().filter(|run| run.rank == 2).map(|run| run.units).sum();
        assert_eq!(of_copy, 7);
    }
}
