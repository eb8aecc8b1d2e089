//! Which segment the cleaner empties next; see [`crate::victims`].

use crate::core::Core;
use crate::heat;
use crate::segments::Segments;
use crate::victims::{Rank, Rung, STEP};
use larder_format::{BlockId, GroupIndex, SegmentId};

/// Of a stream's segments with most to win at once, so many are looked at.
const URGENT: usize = 4;

impl Core {
    /// Of the segments of these groups that are worth cleaning, the one that is worth it most, within a step.
    pub fn worthiest(&self, groups: impl Iterator<Item = GroupIndex>) -> Option<SegmentId> {
        let now = self.next_block;
        let serves = |group, rank: Rank| self.has_room_to_move(group, rank.is_of_records());
        worthiest(&self.entries, groups, serves, |closed_at| self.clock.age(closed_at, now))
    }

    /// The one that gives most at once, within a step.
    pub fn thinnest(&self, groups: impl Iterator<Item = GroupIndex>) -> Option<SegmentId> {
        thinnest(&self.entries, groups, |group, rank| self.has_room_to_move(group, rank.is_of_records()))
    }
}

fn worthiest(
    entries: &Segments,
    groups: impl Iterator<Item = GroupIndex>,
    serves: impl Fn(GroupIndex, Rank) -> bool,
    age_of: impl Fn(BlockId) -> u64,
) -> Option<SegmentId> {
    // The first of each rung, by what it is worth at most: only the best of these are looked up.
    let bound = |rank: Rank, rung: &Rung| heat::cube_of_worth(rank.most(), age_of(rung.oldest));
    let serves = &serves;
    let rungs =
        groups.flat_map(|group| entries.victims().of(group).filter(move |(rank, _)| serves(group, *rank)));
    let mut firsts: Vec<(f64, &Rung)> = rungs.map(|(rank, rung)| (bound(rank, rung), rung)).collect();
    let most = firsts.iter().map(|(bound, _)| *bound).fold(0.0, f64::max);
    // Others are worth less at most than that one is at least.
    firsts.retain(|(bound, _)| *bound * STEP.powi(3) >= most);
    let mut best: Option<(f64, SegmentId)> = None;
    for (_, rung) in firsts {
        let Some(&first) = rung.ids.first() else { continue };
        let worth = heat::worth(&entries[&first], age_of(rung.oldest));
        if best.is_none_or(|(most, other)| worth > most || worth == most && first < other) {
            best = Some((worth, first));
        }
    }
    best.map(|(_, id)| id)
}

fn thinnest(
    entries: &Segments,
    groups: impl Iterator<Item = GroupIndex>,
    serves: impl Fn(GroupIndex, Rank) -> bool,
) -> Option<SegmentId> {
    let serves = &serves;
    let part = |&id: &SegmentId| {
        let entry = &entries[&id];
        (entry.dead_bytes() as f64 / entry.placed.max(1) as f64, id)
    };
    let of = |group| {
        let mut rungs = entries.victims().of(group).filter(move |(rank, _)| serves(group, *rank)).peekable();
        let step = rungs.peek().map(|(rank, _)| rank.step());
        rungs
            .take_while(move |(rank, _)| Some(rank.step()) == step)
            .flat_map(|(_, rung)| rung.ids.iter().take(URGENT))
    };
    let best = groups.flat_map(of).map(part).max_by(|(a, x), (b, y)| a.total_cmp(b).then(y.cmp(x)));
    best.map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::SegmentEntry;
    use larder_device::{Entropy, SeededEntropy};
    use larder_format::segment::{Layout, SegmentKind, SegmentRecord, SegmentState, Slot};
    use larder_format::{CommitId, DeviceIndex, Incarnation, SlotIndex};
    use std::collections::BTreeMap;

    const GROUPS: u64 = 3;
    const PLACED: u64 = 1 << 20;

    /// An open segment of one of a few streams.
    fn opened(id: u64, rng: &SeededEntropy) -> SegmentEntry {
        let kinds = [SegmentKind::Data, SegmentKind::Small, SegmentKind::Node, SegmentKind::Run];
        SegmentEntry::from_record(&SegmentRecord {
            id: SegmentId::new(id),
            kind: kinds[(rng.next_u64() % 4) as usize],
            state: SegmentState::Open,
            group: GroupIndex::new((rng.next_u64() % GROUPS) as u16),
            layout: Layout::new(1, 1, 0).unwrap(),
            height: 2 << 20,
            live_blocks: 100,
            live_bytes: PLACED,
            birth: CommitId::new(id),
            freed: CommitId::new(0),
            incarnation: Incarnation::new(1),
            placed: PLACED,
            closed_at: BlockId::new(0),
            class: (rng.next_u64() % 3) as u8,
            copy: 0,
            unnamed: false,
            filled: CommitId::new(id),
            verified: 0,
            slots: vec![Slot { device: DeviceIndex::new(0), index: SlotIndex::new(id as u32) }],
        })
    }

    #[test]
    fn what_is_chosen_is_worth_what_the_best_is_within_a_step_and_all_is_kept_up() {
        for seed in 0..20 {
            let (rng, mut segments) = (SeededEntropy::new(seed), Segments::default());
            let (mut open, mut clock) = (BTreeMap::new(), 0);
            let mut chosen = 0;
            for id in 0..3_000 {
                let entry = opened(id, &rng);
                let stream = (entry.segment.kind as u8, entry.segment.class, entry.segment.group);
                segments.insert(entry);
                clock += rng.next_u64() % 1_000;
                // Of a stream one is open at a time.
                if let Some(before) = open.insert(stream, SegmentId::new(id)) {
                    segments.change(before, |entry| {
                        (entry.state, entry.closed_at) = (SegmentState::Closed, BlockId::new(clock));
                    });
                }
                for _ in 0..4 {
                    let at = SegmentId::new(rng.next_u64() % (id + 1));
                    let (dies, how) = (rng.next_u64() % (PLACED / 2), rng.next_u64() % 50);
                    segments.change(at, |entry| {
                        entry.live_bytes = entry.live_bytes.saturating_sub(dies);
                        match how {
                            0 => entry.dirty = !entry.dirty,
                            1 => entry.damaged = !entry.damaged,
                            2 => entry.unnamed = !entry.unnamed,
                            3 if entry.is_complete() => entry.live_blocks = 0,
                            4 if entry.is_complete() => entry.state = SegmentState::Freed,
                            5 if entry.is_complete() => entry.state = SegmentState::Emptying,
                            _ => {}
                        }
                    });
                }
                if rng.next_u64() % 20 == 0 {
                    segments.remove(SegmentId::new(rng.next_u64() % (id + 1)));
                    open.retain(|_, open| segments.contains_key(open));
                }
                if id % 50 > 0 {
                    continue;
                }
                assert!(segments.is_kept_up());
                let groups = || (0..1 + id % GROUPS).map(|group| GroupIndex::new(group as u16));
                let all = || {
                    let of = segments.values().filter(|entry| entry.is_worth_cleaning());
                    of.filter(|entry| groups().any(|group| group == entry.segment.group))
                };
                let worth = |entry: &SegmentEntry| heat::worth(entry, clock - entry.closed_at.get());
                let dead = |entry: &SegmentEntry| entry.dead_bytes() as f64;
                for (found, value) in [
                    (
                        worthiest(&segments, groups(), |_, _| true, |closed| clock - closed.get()),
                        &worth as &dyn Fn(&SegmentEntry) -> f64,
                    ),
                    (thinnest(&segments, groups(), |_, _| true), &dead),
                ] {
                    let best = all().map(value).fold(0.0, f64::max);
                    assert_eq!(found.is_some(), all().next().is_some());
                    if let Some(found) = found {
                        assert!(all().any(|entry| entry.segment.id == found));
                        assert!(value(&segments[&found]) * STEP * 1.000_001 >= best);
                        chosen += 1;
                    }
                }
            }
            assert!(chosen > 50, "{chosen}");
            segments.pack();
            assert!(segments.is_kept_up());
        }
    }
}
