//! Groups that disks can make: every layout word, one group or several as safe as one another.

use crate::disk::Disk;
use larder_format::ByteLen;
use larder_format::label::GroupRule;
use larder_format::segment::Layout;
use larder_pool::create::{available, rule_for};
use serde::Serialize;

/// Layout words, the least safe first.
pub const WORDS: [&str; 7] = ["single", "mirror", "raidz1", "raidz2", "raidz3", "raid10", "raid14"];
/// Records that space is told in, as by `pool create`.
const RECORD: u32 = 128 << 10;
/// Disks that may be left beside groups of equal width; of more, another number of groups is better.
const MOST_LEFT: usize = 2;

/// A group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its word.
    pub word: &'static str,
    /// Its disks, by number, in the order in which they are given to `pool create`.
    pub disks: Vec<usize>,
}

/// Groups and what is beside them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Groups, all of one word.
    pub groups: Vec<Group>,
    /// Disks that wait until another one is lost.
    pub spares: Vec<usize>,
    /// Disks that are not used.
    pub left_out: Vec<usize>,
}

impl Group {
    /// Its rule.
    ///
    /// # Panics
    /// When its disks are too few or too many for the word: [`shapes`] makes none such.
    pub fn rule(&self) -> GroupRule {
        rule_for(self.word, self.disks.len()).expect("groups are made as words ask")
    }

    /// Its layout.
    pub fn layout(&self) -> Layout {
        self.rule().layout
    }

    /// Bytes of each of its disks that the layout can use: beside smaller ones a disk may have a part that has nothing
    /// to be safe with.
    pub fn reachable(&self, disks: &[Disk]) -> Vec<u64> {
        let layout = self.layout();
        let sizes: Vec<u64> = self.disks.iter().map(|&at| disks[at].size).collect();
        if layout.r() == 1 {
            let mut sorted = sizes.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            return sizes.iter().map(|&size| size.min(sorted[layout.m()])).collect();
        }
        let (data, parity) = sizes.split_at(layout.k() * layout.r());
        let least = |unit: &[u64]| unit.iter().copied().min().unwrap_or(0);
        let most = data.chunks(layout.r()).map(least).max().unwrap_or(0);
        let units = data.chunks(layout.r()).flat_map(|unit| vec![least(unit); layout.r()]);
        units.chain(parity.iter().map(|&size| size.min(most))).collect()
    }
}

impl Shape {
    /// Bytes that files can take: what `pool create -n` shows.
    pub fn usable(&self, disks: &[Disk], ashift: u8) -> u64 {
        let of = |group: &Group| {
            let sizes: Vec<ByteLen> = group.disks.iter().map(|&at| ByteLen::new(disks[at].size)).collect();
            available(group.rule(), &sizes, ashift, RECORD)
        };
        self.groups.iter().map(of).sum()
    }

    /// The word of its groups.
    pub fn word(&self) -> &'static str {
        self.groups[0].word
    }

    /// Name for people: `2 × raidz2 of 6`.
    pub fn name(&self) -> String {
        let widths: Vec<usize> = self.groups.iter().map(|group| group.disks.len()).collect();
        let (least, most) = (widths.iter().min().unwrap_or(&0), widths.iter().max().unwrap_or(&0));
        let word = self.word();
        let groups = match widths.len() {
            count if word == "single" => format!("stripe of {count}"),
            1 => format!("{word} of {most}"),
            2 if least != most => format!("{word} of {most} and {least}"),
            count if least != most => format!("{count} x {word} of {least} to {most}"),
            count => format!("{count} x {word} of {most}"),
        };
        let spare = match self.spares.len() {
            0 => String::new(),
            1 => " + spare".to_owned(),
            count => format!(" + {count} spares"),
        };
        groups + &spare
    }

    /// Words behind `larder pool create NAME`.
    pub fn words(&self, disks: &[Disk]) -> Vec<String> {
        let mut words = Vec::new();
        for group in &self.groups {
            words.extend((group.word != "single").then(|| group.word.to_owned()));
            words.extend(group.disks.iter().map(|&at| disks[at].name.clone()));
        }
        if !self.spares.is_empty() {
            words.push("spare".into());
            words.extend(self.spares.iter().map(|&at| disks[at].name.clone()));
        }
        words
    }
}

/// Widths of `count` groups of a word over `disks` disks, as equal as they can be; none when they are too few or many.
fn widths(word: &str, disks: usize, count: usize) -> Option<Vec<usize>> {
    let even = disks / count;
    let widths: Vec<usize> = match word {
        "single" => vec![1; disks],
        // Mirrors of different width survive different numbers of losses, and pairs want pairs.
        "mirror" => vec![even; count],
        "raid10" | "raid14" => {
            let odd = usize::from(word == "raid14");
            let least = (even.checked_sub(odd)? / 2) * 2 + odd;
            let more = (disks - least * count) / 2;
            (0..count).map(|at| least + if at < more { 2 } else { 0 }).collect()
        }
        _ => (0..count).map(|at| even + usize::from(at < disks % count)).collect(),
    };
    let left = disks - widths.iter().sum::<usize>();
    let rules: Option<Vec<GroupRule>> = widths.iter().map(|&width| rule_for(word, width).ok()).collect();
    // Parity over one disk is a mirror that computes, and pairs are as safe in one group.
    let is_vain = |rule: &GroupRule| word.starts_with("raidz") && rule.layout.k() == 1;
    let in_one = || word == "raid10" && rule_for(word, disks / 2 * 2).is_ok();
    let made = rules.is_some_and(|rules| count == 1 || !in_one() && !rules.iter().any(is_vain));
    (made && left <= MOST_LEFT).then_some(widths)
}

/// All shapes over disks, with at least so many of them as spares.
pub fn shapes(disks: &[Disk], spares: usize) -> Vec<Shape> {
    let mut all: Vec<Shape> = Vec::new();
    for chosen in choices(disks) {
        // A spare stands in for any other: it is as large as the largest.
        let Some((spare, rest)) = chosen.split_at_checked(spares) else { continue };
        for word in WORDS.into_iter().filter(|_| !rest.is_empty()) {
            let groups = if word == "single" { 1 } else { rest.len() / 2 };
            for count in 1..=groups {
                let Some(widths) = widths(word, rest.len(), count) else { continue };
                let shape = arrange(disks, &chosen, spare, rest, (word, &widths));
                if !all.contains(&shape) {
                    all.push(shape);
                }
            }
        }
    }
    all
}

fn arrange(
    disks: &[Disk],
    chosen: &[usize],
    spare: &[usize],
    rest: &[usize],
    (word, widths): (&'static str, &[usize]),
) -> Shape {
    let mut at = 0;
    let groups: Vec<Group> = widths
        .iter()
        .map(|&width| {
            let mut members = rest[at..at + width].to_vec();
            at += width;
            if word == "raid14" {
                // The last one has parity over all: the largest.
                members.rotate_left(1);
            }
            Group { word, disks: members }
        })
        .collect();
    let largest = rest.iter().map(|&at| disks[at].size).max().unwrap_or(0);
    let (mut spares, mut left_out) = (spare.to_vec(), Vec::new());
    for &at in &rest[at..] {
        if disks[at].size >= largest { spares.push(at) } else { left_out.push(at) }
    }
    left_out.extend((0..disks.len()).filter(|at| !chosen.contains(at)));
    Shape { groups, spares, left_out }
}

/// Sets of disks that are planned with, each largest first: all, without the smaller ones, one kind alone.
fn choices(disks: &[Disk]) -> Vec<Vec<usize>> {
    let mut all: Vec<usize> = (0..disks.len()).collect();
    all.sort_by_key(|&at| std::cmp::Reverse(disks[at].size));
    let mut sets = Vec::new();
    let mut kinds: Vec<_> = disks.iter().map(|disk| disk.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let of_kinds = std::iter::once(None).chain(kinds.into_iter().map(Some));
    for kind in of_kinds {
        let of: Vec<usize> =
            all.iter().copied().filter(|&at| kind.is_none_or(|kind| disks[at].kind == kind)).collect();
        for end in 1..=of.len() {
            let is_cut = end == of.len() || disks[of[end]].size < disks[of[end - 1]].size;
            let set = of[..end].to_vec();
            if is_cut && !sets.contains(&set) {
                sets.push(set);
            }
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(sizes: &[u64]) -> Vec<Disk> {
        sizes
            .iter()
            .enumerate()
            .map(|(at, &tera)| Disk::of_size(format!("d{at}"), tera * 1_000_000_000_000))
            .collect()
    }

    fn names(sizes: &[u64], spares: usize) -> Vec<String> {
        shapes(&disks(sizes), spares).iter().map(Shape::name).collect()
    }

    #[test]
    fn every_word_is_tried_in_one_group_and_in_several() {
        let six = names(&[16; 6], 0);
        for name in [
            "stripe of 6",
            "mirror of 6",
            "2 x mirror of 3",
            "3 x mirror of 2",
            "raidz1 of 6",
            "2 x raidz1 of 3",
            "raidz2 of 6",
            "raidz3 of 6",
            "raid10 of 6",
            "raid14 of 5 + spare",
        ] {
            assert!(six.contains(&name.to_owned()), "{name} is not in {six:?}");
        }
        let seven = names(&[16; 7], 0);
        for name in ["raidz1 of 4 and 3", "raid10 of 6 + spare", "raid14 of 7", "3 x mirror of 2 + spare"] {
            assert!(seven.contains(&name.to_owned()), "{name} is not in {seven:?}");
        }
        assert!(names(&[16; 7], 1).iter().all(|name| name.contains("spare")));
        assert_eq!(names(&[16], 0), ["stripe of 1"]);
        assert!(names(&[16; 130], 0).iter().all(|name| name != "raidz2 of 130"));
    }

    #[test]
    fn each_disk_has_one_place_and_pairs_are_of_one_size() {
        for sizes in [&[16, 16, 16, 16, 16, 16, 4, 4][..], &[4, 8, 4, 8, 2], &[1; 13], &[10, 10, 10, 20, 20]]
        {
            let disks = disks(sizes);
            for shape in shapes(&disks, 0) {
                let groups = shape.groups.iter().flat_map(|group| &group.disks);
                let mut places: Vec<usize> =
                    groups.chain(&shape.spares).chain(&shape.left_out).copied().collect();
                places.sort_unstable();
                assert_eq!(places, (0..sizes.len()).collect::<Vec<_>>(), "{shape:?}");
                let tolerance = |group: &Group| group.layout().tolerance();
                let first = tolerance(&shape.groups[0]);
                assert!(shape.groups.iter().all(|group| tolerance(group) == first), "{shape:?}");
            }
        }
        let mixed = disks(&[4, 16, 4, 16]);
        let raid10 = shapes(&mixed, 0).into_iter().find(|shape| shape.word() == "raid10").unwrap();
        assert_eq!(raid10.groups[0].disks, [1, 3, 0, 2]);
        assert_eq!(raid10.groups[0].reachable(&mixed), [16, 16, 4, 4].map(|tera| tera * 1_000_000_000_000));
    }

    #[test]
    fn of_disks_of_several_sizes_the_smaller_ones_may_be_left_out() {
        let all = shapes(&disks(&[16, 16, 16, 16, 16, 16, 4, 4]), 0);
        let left =
            |shape: &&Shape| shape.word() == "raidz2" && shape.groups.len() == 1 && shape.left_out == [6, 7];
        assert!(all.iter().any(|shape| left(&shape)));
        assert!(all.iter().any(|shape| shape.word() == "raidz2" && shape.left_out.is_empty()));
    }

    #[test]
    fn a_part_of_a_large_disk_may_be_out_of_reach() {
        let mixed = disks(&[4, 4, 8, 8]);
        let raidz1 = Group { word: "raidz1", disks: vec![0, 1, 2, 3] };
        assert_eq!(raidz1.reachable(&mixed).iter().sum::<u64>(), 24_000_000_000_000);
        let raidz2 = Group { word: "raidz2", disks: vec![0, 1, 2, 3] };
        assert_eq!(raidz2.reachable(&mixed).iter().sum::<u64>(), 16_000_000_000_000);
    }
}
