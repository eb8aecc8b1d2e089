//! Segments that are worth cleaning, in the order in which they are worth it, as far as that does not change with time.
//!
//! The worth of a segment ([`crate::heat::worth`]) is a factor that its live bytes give, times a power of its age.
//! By that factor segments lie in steps, each of [`STEP`] times the one below. Of one stream one segment is open at
//! a time, so the later its id the later it was closed: in a step, those of a stream are older the lower their ids.
//! So of each step and stream only the first has to be looked at: no other of them is worth more than [`STEP`] times
//! as much, and the best of the first is worth at least the best of all, over [`STEP`]. There are a few hundred
//! steps, however many segments there are.

use larder_format::segment::SegmentKind;
use larder_format::{BlockId, GroupIndex, SegmentId};
use std::collections::{BTreeMap, BTreeSet};

/// See the module's text.
pub(crate) const STEP: f64 = 1.05;
/// Below the factor of any segment that is worth cleaning: a 64th of it is dead.
const LEAST: f64 = 0.014;
/// Place of a segment among others of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    step: u8,
    /// Its stream: kind, class, copy.
    stream: (u8, u8, u8),
}

impl Rank {
    /// That of a segment with this factor.
    pub(crate) fn new(factor: f64, stream: (u8, u8, u8)) -> Self {
        let steps = (factor / LEAST).max(1.0).ln() / STEP.ln();
        Self { step: steps as u8, stream }
    }

    /// Whether its segments have records.
    pub(crate) fn is_of_records(self) -> bool {
        [SegmentKind::Data, SegmentKind::Small].iter().any(|kind| *kind as u8 == self.stream.0)
    }

    /// Its step: the higher, the greater the factor.
    pub(crate) fn step(self) -> u8 {
        self.step
    }

    /// At least the factor of all in this step.
    pub(crate) fn most(self) -> f64 {
        LEAST * STEP.powi(i32::from(self.step) + 1)
    }
}

/// Segments of one rank.
#[derive(Debug, Default)]
pub(crate) struct Rung {
    /// Never none.
    pub(crate) ids: BTreeSet<SegmentId>,
    /// When the first of them was closed.
    pub(crate) oldest: BlockId,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Victims(BTreeMap<(GroupIndex, Rank), Rung>);

impl Victims {
    pub(crate) fn insert(
        &mut self,
        group: GroupIndex,
        rank: Rank,
        id: SegmentId,
        closed_at: impl Fn(SegmentId) -> BlockId,
    ) {
        let rung = self.0.entry((group, rank)).or_default();
        rung.ids.insert(id);
        if rung.ids.first() == Some(&id) {
            rung.oldest = closed_at(id);
        }
    }

    pub(crate) fn remove(
        &mut self,
        group: GroupIndex,
        rank: Rank,
        id: SegmentId,
        closed_at: impl Fn(SegmentId) -> BlockId,
    ) {
        let Some(rung) = self.0.get_mut(&(group, rank)) else { return };
        let was_first = rung.ids.first() == Some(&id);
        rung.ids.remove(&id);
        match rung.ids.first() {
            None => drop(self.0.remove(&(group, rank))),
            Some(&first) if was_first => rung.oldest = closed_at(first),
            Some(_) => {}
        }
    }

    /// Takes no more memory than it has to.
    pub(crate) fn pack(&mut self) {
        for rung in self.0.values_mut() {
            rung.ids = std::mem::take(&mut rung.ids).into_iter().collect();
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (GroupIndex, Rank, SegmentId)> + '_ {
        self.0.iter().flat_map(|(&(group, rank), rung)| rung.ids.iter().map(move |&id| (group, rank, id)))
    }

    /// Those of a group, what gives most first.
    pub(crate) fn of(&self, group: GroupIndex) -> impl Iterator<Item = (Rank, &Rung)> {
        let (least, most) = (
            Rank { step: 0, stream: (0, 0, 0) },
            Rank { step: u8::MAX, stream: (u8::MAX, u8::MAX, u8::MAX) },
        );
        self.0.range((group, least)..=(group, most)).rev().map(|(&(_, rank), rung)| (rank, rung))
    }
}
