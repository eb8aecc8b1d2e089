//! Losses that a layout survives: all single devices, pairs and triples, asked one by one of the function that an
//! import asks ([`Layout::survives`]). Groups are independent, so that what several survive together is counted by the
//! parts that fall into each.

use larder_format::segment::Layout;
use serde::Serialize;

/// A number of sets of devices, of all that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Share {
    /// That are survived.
    pub survived: u64,
    /// That there are.
    pub of: u64,
}

impl Share {
    /// As a part of 1; 1 when there are none.
    pub fn part(self) -> f64 {
        if self.of == 0 { 1.0 } else { self.survived as f64 / self.of as f64 }
    }
}

/// Losses that are survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Survival {
    /// Losses that are survived whichever devices they hit.
    pub any: u64,
    /// Single devices.
    pub singles: Share,
    /// Pairs.
    pub pairs: Share,
    /// Triples.
    pub triples: Share,
}

/// Sets of 0 to 3 devices of one group: how many are survived.
fn survived(layout: Layout) -> [u64; 4] {
    let count = layout.columns();
    let survives = |lost: &[usize]| u64::from(layout.survives(|column| lost.contains(&column)));
    let mut sums = [1, 0, 0, 0];
    for a in 0..count {
        sums[1] += survives(&[a]);
        for b in a + 1..count {
            sums[2] += survives(&[a, b]);
            sums[3] += (b + 1..count).map(|c| survives(&[a, b, c])).sum::<u64>();
        }
    }
    sums
}

/// Sets of 0 to 3 of so many.
fn choose(count: u64) -> [u64; 4] {
    let pairs = count * count.saturating_sub(1) / 2;
    [1, count, pairs, pairs * count.saturating_sub(2) / 3]
}

/// Losses that are survived by groups which are all needed.
pub fn survival(layouts: &[Layout]) -> Survival {
    let mut all = [1, 0, 0, 0];
    let mut last: Option<(Layout, [u64; 4])> = None;
    for &layout in layouts {
        let one = last.filter(|(of, _)| *of == layout).map_or_else(|| survived(layout), |(_, one)| one);
        last = Some((layout, one));
        all = std::array::from_fn(|size| (0..=size).map(|part| all[part] * one[size - part]).sum());
    }
    let of = choose(layouts.iter().map(|layout| layout.columns() as u64).sum());
    let share = |size: usize| Share { survived: all[size], of: of[size] };
    Survival {
        any: layouts.iter().map(|layout| layout.tolerance() as u64).min().unwrap_or(0),
        singles: share(1),
        pairs: share(2),
        triples: share(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_pool::create::rule_for;

    fn layout(word: &str, count: usize) -> Layout {
        rule_for(word, count).unwrap().layout
    }

    fn parts(layouts: &[Layout]) -> [(u64, u64); 3] {
        let of = survival(layouts);
        [of.singles, of.pairs, of.triples].map(|share| (share.survived, share.of))
    }

    #[test]
    fn shares_are_those_that_are_known() {
        assert_eq!(parts(&[layout("raidz2", 6)]), [(6, 6), (15, 15), (0, 20)]);
        // A pair is fatal when it is one of the three; a triple unless it takes one of each.
        assert_eq!(parts(&[layout("raid10", 6)]), [(6, 6), (12, 15), (8, 20)]);
        // Fatal is one of the three pairs with the parity.
        assert_eq!(parts(&[layout("raid14", 7)]), [(7, 7), (21, 21), (32, 35)]);
        assert_eq!(parts(&[layout("single", 1); 3]), [(0, 3), (0, 3), (0, 1)]);
    }

    #[test]
    fn groups_together_are_counted_as_if_all_their_devices_were() {
        let groups = [layout("raidz1", 4), layout("raid10", 4), layout("mirror", 3)];
        let mut place = Vec::new();
        for (group, layout) in groups.iter().enumerate() {
            place.extend((0..layout.columns()).map(|column| (group, column)));
        }
        let mut sums = [0; 4];
        for bits in 0u32..1 << place.len() {
            let size = bits.count_ones() as usize;
            let is_lost = |device: usize| bits >> device & 1 == 1;
            let lost = |group: usize, column: usize| {
                place.iter().enumerate().any(|(at, &of)| of == (group, column) && is_lost(at))
            };
            let all =
                || groups.iter().enumerate().all(|(at, layout)| layout.survives(|column| lost(at, column)));
            if size <= 3 && all() {
                sums[size] += 1;
            }
        }
        assert_eq!(parts(&groups).map(|(survived, _)| survived), sums[1..]);
        assert_eq!(parts(&groups).map(|(_, of)| of), [11, 55, 165]);
    }
}
