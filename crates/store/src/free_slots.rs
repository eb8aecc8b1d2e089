//! The free slots of a device, as ranges: memory goes by what is in use, not by the number of slots, which is what a
//! root says of a device that may not be there.

use std::collections::BTreeMap;

/// Numbers of slots.
#[derive(Debug, Clone, Default)]
pub struct FreeSlots {
    /// First numbers and ends of ranges that neither overlap nor touch.
    ranges: BTreeMap<u32, u32>,
    len: u64,
}

impl FreeSlots {
    /// All of `count` slots.
    pub fn all(count: u32) -> Self {
        let ranges = (count > 0).then_some((0, count)).into_iter().collect();
        Self { ranges, len: count.into() }
    }

    /// The slots from number `from` to `to` are there from now on, and free.
    pub fn extend(&mut self, from: u32, to: u32) {
        if from >= to {
            return;
        }
        let before = self.ranges.range(..from).next_back().filter(|(_, end)| **end == from);
        let start = before.map_or(from, |(start, _)| *start);
        self.ranges.insert(start, to);
        self.len += u64::from(to - from);
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// The range that `slot` lies in.
    fn around(&self, slot: u32) -> Option<(u32, u32)> {
        let (&start, &end) = self.ranges.range(..=slot).next_back()?;
        (slot < end).then_some((start, end))
    }

    pub fn contains(&self, slot: u32) -> bool {
        self.around(slot).is_some()
    }

    /// The first free slot from `slot` on.
    pub fn next(&self, slot: u32) -> Option<u32> {
        let inside = self.contains(slot).then_some(slot);
        inside.or_else(|| self.ranges.range(slot..).next().map(|(&start, _)| start))
    }

    /// Free slots from `slot` on.
    pub fn count_from(&self, slot: u32) -> u64 {
        self.ranges
            .values()
            .zip(self.ranges.keys())
            .map(|(end, start)| u64::from(end.saturating_sub(*start.max(&slot))))
            .sum()
    }

    /// Takes a slot; false when it was not free.
    pub fn take(&mut self, slot: u32) -> bool {
        let Some((start, end)) = self.around(slot) else { return false };
        self.ranges.remove(&start);
        let rests = [(start, slot), (slot + 1, end)];
        self.ranges.extend(rests.into_iter().filter(|(start, end)| start < end));
        self.len -= 1;
        true
    }

    /// Takes the first.
    pub fn take_first(&mut self) -> Option<u32> {
        let (&first, _) = self.ranges.first_key_value()?;
        self.take(first).then_some(first)
    }

    /// Gives a slot back; false when it was free already.
    pub fn give_back(&mut self, slot: u32) -> bool {
        if self.contains(slot) {
            return false;
        }
        let before = self.ranges.range(..slot).next_back().filter(|(_, end)| **end == slot);
        let start = before.map_or(slot, |(start, _)| *start);
        let end = self.ranges.remove(&(slot + 1)).unwrap_or(slot + 1);
        self.ranges.insert(start, end);
        self.len += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_device::{Entropy, SeededEntropy};
    use std::collections::BTreeSet;

    #[test]
    fn ranges_are_the_set_of_their_numbers() {
        let (mut slots, mut model) = (FreeSlots::all(50), (0..50).collect::<BTreeSet<u32>>());
        let rng = SeededEntropy::new(3);
        for _ in 0..20_000 {
            let slot = (rng.next_u64() % 60) as u32;
            match rng.next_u64() % 3 {
                0 => assert_eq!(slots.take(slot), model.remove(&slot)),
                1 if slot < 50 => assert_eq!(slots.give_back(slot), model.insert(slot)),
                1 => {}
                _ => assert_eq!(slots.take_first(), model.pop_first()),
            }
            assert_eq!(slots.len(), model.len() as u64);
            assert!((0..60).all(|slot| slots.contains(slot) == model.contains(&slot)));
            assert!((0..60).all(|slot| slots.count_from(slot) == model.range(slot..).count() as u64));
            assert!((0..60).all(|slot| slots.next(slot) == model.range(slot..).next().copied()));
            let touch = slots.ranges.values().any(|end| slots.ranges.contains_key(end));
            assert!(!touch, "{:?}", slots.ranges);
        }
        for (from, to) in [(60, 60), (60, 64), (70, 71)] {
            slots.extend(from, to);
            model.extend(from..to);
            assert!((0..80).all(|slot| slots.contains(slot) == model.contains(&slot)));
            assert_eq!(slots.len(), model.len() as u64);
        }
        assert!(slots.ranges.values().all(|end| !slots.ranges.contains_key(end)), "{:?}", slots.ranges);
        assert!(!FreeSlots::all(0).contains(0));
        assert_eq!(FreeSlots::all(u32::MAX).len(), u64::from(u32::MAX));
    }
}
