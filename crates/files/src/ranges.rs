//! Sets of ranges, and the bytes written to one record.

use larder_pool::cache::Record;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A set of numbers, kept as disjoint ranges that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((&at, &to)) = self.0.range(..=end).next_back() {
            if to < start {
                break;
            }
            start = start.min(at);
            end = end.max(to);
            self.0.remove(&at);
        }
        self.0.insert(start, end);
    }

    /// Takes a range away.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&at, &to)) = self.0.range(..range.end).next_back() {
            if to <= range.start {
                break;
            }
            self.0.remove(&at);
            if to > range.end {
                self.0.insert(range.end, to);
            }
            if at < range.start {
                self.0.insert(at, range.start);
            }
        }
    }

    /// The parts of `range` that are in the set.
    pub fn within(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let first = self.0.range(..=range.start).next_back().map_or(range.start, |(&at, _)| at);
        (self.0.range(first..range.end.max(first)))
            .map(|(&at, &to)| at.max(range.start)..to.min(range.end))
            .filter(|part| !part.is_empty())
            .collect()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&at, &to)| at..to)
    }

    /// Number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Count of the numbers in the set.
    pub fn len(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }
}

/// Ranges that may touch; those that overlap are one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// A range together with all that overlap it.
    pub fn with(&self, range: Range<u64>) -> Range<u64> {
        let Range { mut start, mut end } = range;
        for (&at, &to) in self.0.range(..range.end).rev().take_while(|(_, to)| **to > range.start) {
            (start, end) = (start.min(at), end.max(to));
        }
        start..end
    }

    /// Whether one of them overlaps `range`.
    pub fn meets(&self, range: &Range<u64>) -> bool {
        self.0.range(..range.end).next_back().is_some_and(|(_, &to)| to > range.start)
    }

    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        let all = self.with(range);
        // One by one: to split the whole set and join it again takes as long as it is large.
        while let Some((&at, _)) = self.0.range(all.clone()).next() {
            self.0.remove(&at);
        }
        self.0.insert(all.start, all.end);
    }

    /// The one that begins before `at` and ends behind it.
    pub fn across(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.0.range(..at).next_back()?;
        (end > at).then_some(start..end)
    }

    /// The one that ends at `at`.
    pub fn ending_at(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.0.range(..at).next_back()?;
        (end == at).then_some(start..end)
    }

    /// Takes out those that begin in `range`.
    pub fn take(&mut self, range: Range<u64>) -> Self {
        let mut taken = self.0.split_off(&range.start);
        self.0.append(&mut taken.split_off(&range.end));
        Self(taken)
    }

    /// Forgets everything from `len` on.
    pub fn cut(&mut self, len: u64) {
        self.0.split_off(&len);
        if let Some((_, end)) = self.0.iter_mut().next_back() {
            *end = len.min(*end);
        }
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&at, &to)| at..to)
    }
}

/// Bytes written to a record and not stored yet: pieces by their offset in the record, which neither
/// overlap nor touch. What lies between them is whatever the file's tree says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pieces {
    pieces: BTreeMap<u32, Arc<Vec<u8>>>,
    /// Bytes in all pieces: each write asks, and there may be a piece for every other byte.
    bytes: u64,
}

impl Pieces {
    /// Writes `data` at `at`; what was there is replaced.
    pub fn write(&mut self, at: u32, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = at + data.len() as u32;
        // The piece that begins before and reaches here takes the data in; so appending copies little.
        let (start, mut piece) = match self.pieces.range(..=at).next_back() {
            Some((&start, piece)) if start + piece.len() as u32 >= at => {
                (start, self.pieces.remove(&start).expect("it was just found"))
            }
            _ => (at, Arc::new(Vec::with_capacity(data.len()))),
        };
        let mut before = piece.len();
        let grown = Arc::make_mut(&mut piece);
        let from = (at - start) as usize;
        let overlap = data.len().min(grown.len() - from);
        grown[from..from + overlap].copy_from_slice(&data[..overlap]);
        grown.extend_from_slice(&data[overlap..]);
        while let Some((&next, _)) = self.pieces.range(start..=end).next() {
            let later = self.pieces.remove(&next).expect("it was just found");
            before += later.len();
            let keep = (start as usize + grown.len() - next as usize).min(later.len());
            grown.extend_from_slice(&later[keep..]);
        }
        self.bytes += (grown.len() - before) as u64;
        self.pieces.insert(start, piece);
    }

    /// Drops everything from `len` on.
    pub fn cut(&mut self, len: u32) {
        self.pieces.split_off(&len);
        if let Some((&start, piece)) = self.pieces.iter_mut().next_back() {
            Arc::make_mut(piece).truncate((len - start) as usize);
        }
        self.count();
    }

    /// Drops everything before `at`.
    pub fn cut_before(&mut self, at: u32) {
        let later = self.pieces.split_off(&at);
        let reaching_over = self.pieces.pop_last().filter(|(start, piece)| start + piece.len() as u32 > at);
        self.pieces = later;
        if let Some((start, piece)) = reaching_over {
            self.pieces.insert(at, Arc::new(piece[(at - start) as usize..].to_vec()));
        }
        self.count();
    }

    fn count(&mut self) {
        self.bytes = self.pieces.values().map(|piece| piece.len() as u64).sum();
    }

    /// Takes out everything from `at` on.
    pub fn split_off(&mut self, at: u32) -> Self {
        let mut later = self.clone();
        later.cut_before(at);
        self.cut(at);
        later
    }

    /// The piece that begins before `at` and ends behind it.
    pub fn across(&self, at: u32) -> Option<Range<u32>> {
        let (&start, piece) = self.pieces.range(..at).next_back()?;
        let end = start + piece.len() as u32;
        (end > at).then_some(start..end)
    }

    /// Writes all pieces of `newer` over these.
    pub fn overlay(&mut self, newer: &Pieces) {
        for (&at, piece) in &newer.pieces {
            self.write(at, piece);
        }
    }

    /// Whether all of `range` was written.
    pub fn covers(&self, range: Range<u32>) -> bool {
        (self.pieces.range(..=range.start).next_back())
            .is_some_and(|(&at, piece)| at + piece.len() as u32 >= range.end)
    }

    /// Copies what was written within `range` of the record onto `out`, which stands for that range.
    pub fn copy_onto(&self, range: Range<u32>, out: &mut [u8]) {
        for part in self.parts(range.clone()) {
            let (&at, piece) = self.pieces.range(..=part.start).next_back().expect("a part lies in a piece");
            let from = (part.start - at) as usize;
            let len = part.len();
            out[(part.start - range.start) as usize..][..len].copy_from_slice(&piece[from..from + len]);
        }
    }

    /// Appends `range` of the record, all of which was written by one and the same piece, to `out`.
    pub fn append_to(&self, range: Range<u32>, out: &mut Vec<u8>) {
        let (&at, piece) = self.pieces.range(..=range.start).next_back().expect("it was written");
        out.extend_from_slice(&piece[(range.start - at) as usize..(range.end - at) as usize]);
    }

    /// The written parts of `range`, ascending.
    pub fn parts(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
        let first = self.pieces.range(..=range.start).next_back().map_or(0, |(&at, _)| at);
        self.pieces
            .range(first..range.end.max(first))
            .map(move |(&at, piece)| at.max(range.start)..(at + piece.len() as u32).min(range.end))
            .filter(|part| !part.is_empty())
    }

    /// The first `len` bytes of the record without a copy, when one piece is just that.
    pub fn whole(&self, len: u32) -> Option<Record> {
        struct Whole(Arc<Vec<u8>>);
        impl AsRef<[u8]> for Whole {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let piece = self.pieces.get(&0).filter(|piece| piece.len() == len as usize)?;
        Some(Record::from_owner(Whole(Arc::clone(piece))))
    }

    /// Where the last piece ends; 0 without any.
    pub fn end(&self) -> u32 {
        self.pieces.iter().next_back().map_or(0, |(&at, piece)| at + piece.len() as u32)
    }

    /// Bytes held.
    pub fn len(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_set_holds_what_a_set_of_numbers_does(
            steps in proptest::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 1..60),
            window in (0u64..40, 0u64..40),
        ) {
            let mut set = RangeSet::default();
            let mut model = [false; 64];
            for (add, start, len) in steps {
                if add { set.insert(start..start + len) } else { set.remove(start..start + len) }
                model[start as usize..(start + len) as usize].fill(add);
                prop_assert_eq!(set.len(), model.iter().filter(|&&held| held).count() as u64);
                let mut last = None;
                for range in set.iter() {
                    prop_assert!(last.is_none_or(|last| last < range.start), "ranges touch");
                    prop_assert!(range.clone().all(|i| model[i as usize]));
                    last = Some(range.end);
                }
            }
            let within = set.within(window.0..window.1).into_iter().flatten().collect::<Vec<_>>();
            let expected = (window.0..window.1).filter(|&i| model[i as usize]).collect::<Vec<_>>();
            prop_assert_eq!(within, expected);
        }

        #[test]
        fn spans_are_one_where_they_overlap(
            steps in proptest::collection::vec((0u8..8, 0u64..40, 1u64..12), 1..40),
            window in (0u64..40, 1u64..40),
        ) {
            let mut spans = Spans::default();
            let mut model: Vec<Range<u64>> = Vec::new();
            for (what, start, len) in steps {
                let range = start..start + len;
                let meets = |span: &Range<u64>| span.start < range.end && span.end > range.start;
                prop_assert_eq!(spans.meets(&range), model.iter().any(meets));
                if what == 0 {
                    spans.cut(start);
                    model.retain(|span| span.start < start);
                    model.iter_mut().for_each(|span| span.end = span.end.min(start));
                } else if what == 1 {
                    let within = |span: &Range<u64>| range.contains(&span.start);
                    let taken = spans.take(range.clone());
                    prop_assert_eq!(taken.iter().count(), model.iter().filter(|span| within(span)).count());
                    model.retain(|span| !within(span));
                } else {
                    let all = model.iter().filter(|span| meets(span)).fold(range.clone(), |all, span| {
                        all.start.min(span.start)..all.end.max(span.end)
                    });
                    prop_assert_eq!(spans.with(range.clone()), all.clone());
                    model.retain(|span| !meets(span));
                    model.push(all);
                    spans.insert(range);
                }
                model.sort_by_key(|span| span.start);
                prop_assert_eq!(spans.iter().collect::<Vec<_>>(), model.clone());
            }
            let across = model.into_iter().find(|span| span.start < window.0 && span.end > window.0);
            prop_assert_eq!(spans.across(window.0), across);
            let ending = spans.iter().find(|span| span.end == window.0);
            prop_assert_eq!(spans.ending_at(window.0), ending);
        }

        #[test]
        fn pieces_hold_what_a_buffer_does(
            steps in proptest::collection::vec((0u8..9, 0u32..50, 0usize..14, any::<u8>()), 1..40),
            window in (0u32..70, 0u32..70),
        ) {
            let mut pieces = Pieces::default();
            let mut model = [None; 70];
            for (what, at, len, byte) in steps {
                if what == 0 {
                    pieces.cut(at);
                    model[at as usize..].fill(None);
                } else if what == 8 {
                    pieces.cut_before(at);
                    model[..at as usize].fill(None);
                } else {
                    pieces.write(at, &vec![byte; len]);
                    model[at as usize..at as usize + len].fill(Some(byte));
                }
                prop_assert_eq!(pieces.len(), model.iter().flatten().count() as u64);
                let end = model.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
                prop_assert_eq!(pieces.end() as usize, end);
            }
            let range = window.0..window.1.max(window.0);
            let expected = &model[range.start as usize..range.end as usize];
            let mut out = vec![0xee; range.len()];
            pieces.copy_onto(range.clone(), &mut out);
            let wanted = expected.iter().map(|byte| byte.unwrap_or(0xee)).collect::<Vec<_>>();
            prop_assert_eq!(out, wanted);
            if !range.is_empty() {
                prop_assert_eq!(pieces.covers(range), expected.iter().all(Option::is_some));
            }
        }
    }
}
