//! Where the cached blocks lie: eight bytes each, by a hash of their id.
//!
//! A bucket is a sorted vector that grows by a sixteenth, so that nearly all of its memory is in use whatever the
//! number of blocks. An entry has no id, only a tag of it: one that finds another block's entry costs a read, which
//! the id in the block's header ends. Of two cached blocks with one tag in one bucket the later one is kept.
//!
//! Entry, from the highest bit: tag (20 bits, never all that tells blocks apart), place (34), units less 1 (8, of which
//! the highest number stands for the longest blocks), count (2).

/// Bytes of a unit, in which places and lengths are counted.
pub const UNIT: u64 = 4096;
/// The longest block, in units: 1 MiB and what stands before it.
pub const LONGEST: u32 = 257;
/// Places are below it: 64 TiB.
pub const PLACES: u64 = 1 << PLACE_BITS;
/// A count that goes no higher.
pub(crate) const MOST_HITS: u8 = 3;

const TAG_BITS: u32 = 20;
const PLACE_BITS: u32 = 34;
const TAG_SHIFT: u32 = 64 - TAG_BITS;
const PLACE_SHIFT: u32 = 10;
const UNITS_SHIFT: u32 = 2;
/// Blocks of a bucket when there are as many as was said; four times and a quarter as many do as well.
const EXPECTED: u64 = 256;
/// Bytes of an empty bucket: the vector, and what the allocator adds.
const BUCKET: usize = size_of::<Vec<u64>>() + 16;

/// Units that a block of so many bytes takes; none for one that is too long.
pub fn units_of(bytes: u64) -> Option<u32> {
    match bytes.div_ceil(UNIT).max(1) {
        units if units > u64::from(LONGEST) => None,
        units if units + 1 == u64::from(LONGEST) => Some(LONGEST),
        units => Some(units as u32),
    }
}

/// Whether blocks can have so many units: [`units_of`] gives no others.
pub fn is_length(units: u32) -> bool {
    (1..=LONGEST).contains(&units) && units != LONGEST - 1
}

pub(crate) fn pack_units(units: u32) -> u8 {
    (units - 1).min(255) as u8
}

pub(crate) fn unpack_units(code: u8) -> u32 {
    if code == u8::MAX { LONGEST } else { u32::from(code) + 1 }
}

/// A cached block as the table knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// In units from the cache's beginning.
    pub place: u64,
    pub units: u32,
    /// Hits since it was appended, three at most, and what it was appended with.
    pub count: u8,
}

impl Entry {
    fn pack(self, tag: u64) -> u64 {
        debug_assert!(self.place < PLACES && is_length(self.units) && self.count <= MOST_HITS);
        let length = u64::from(pack_units(self.units)) << UNITS_SHIFT;
        tag << TAG_SHIFT | self.place << PLACE_SHIFT | length | u64::from(self.count)
    }

    fn unpack(entry: u64) -> Self {
        Self {
            place: entry >> PLACE_SHIFT & (PLACES - 1),
            units: unpack_units((entry >> UNITS_SHIFT) as u8),
            count: (entry & 3) as u8,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    buckets: Vec<Vec<u64>>,
    blocks: u64,
    /// Entries that there is memory for.
    room: usize,
}

impl Table {
    /// For about so many blocks; more and fewer do as well.
    pub fn new(expected: u64) -> Self {
        let buckets = (expected / EXPECTED).clamp(1, 1 << 24) as usize;
        Self { buckets: vec![Vec::new(); buckets], blocks: 0, room: 0 }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes.
    pub fn memory(&self) -> usize {
        self.buckets.capacity() * BUCKET + self.room * size_of::<u64>()
    }

    pub fn find(&self, hash: u64) -> Option<Entry> {
        let (bucket, tag) = self.bucket_and_tag(hash);
        let bucket = &self.buckets[bucket];
        search(bucket, tag).ok().map(|at| Entry::unpack(bucket[at]))
    }

    /// The entry that had the same tag goes, and is returned.
    pub fn insert(&mut self, hash: u64, entry: Entry) -> Option<Entry> {
        let (bucket, tag) = self.bucket_and_tag(hash);
        let bucket = &mut self.buckets[bucket];
        match search(bucket, tag) {
            Ok(at) => Some(Entry::unpack(std::mem::replace(&mut bucket[at], entry.pack(tag)))),
            Err(at) => {
                if bucket.len() == bucket.capacity() {
                    self.room -= bucket.capacity();
                    bucket.reserve_exact(bucket.len() / 16 + 1);
                    self.room += bucket.capacity();
                }
                bucket.insert(at, entry.pack(tag));
                self.blocks += 1;
                None
            }
        }
    }

    /// Removes the entry of this tag if it is of this place.
    pub fn remove(&mut self, hash: u64, place: u64) -> Option<Entry> {
        let (bucket, tag) = self.bucket_and_tag(hash);
        let bucket = &mut self.buckets[bucket];
        let at = search(bucket, tag).ok()?;
        let entry = Entry::unpack(bucket[at]);
        if entry.place != place {
            return None;
        }
        bucket.remove(at);
        self.blocks -= 1;
        self.room -= give_room_back(bucket);
        Some(entry)
    }

    /// Looks at all that is there: for segments whose blocks nobody can name any more.
    pub fn remove_places(&mut self, places: std::ops::Range<u64>) {
        for bucket in &mut self.buckets {
            let before = bucket.len();
            bucket.retain(|entry| !places.contains(&Entry::unpack(*entry).place));
            self.blocks -= (before - bucket.len()) as u64;
            self.room -= give_room_back(bucket);
        }
    }

    /// Buckets, each with the entries of some hashes.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// All entries of some buckets.
    pub fn entries(&self, buckets: std::ops::Range<usize>) -> impl Iterator<Item = Entry> + '_ {
        let end = buckets.end.min(self.buckets.len());
        self.buckets[buckets.start.min(end)..end].iter().flatten().map(|entry| Entry::unpack(*entry))
    }

    fn bucket_and_tag(&self, hash: u64) -> (usize, u64) {
        let scaled = u128::from(hash) * self.buckets.len() as u128;
        ((scaled >> 64) as usize, scaled as u64 >> TAG_SHIFT)
    }
}

/// Where the tag is, or would be inserted. Tags are spread evenly, so the first guess is near.
fn search(bucket: &[u64], tag: u64) -> Result<usize, usize> {
    let tag_at = |at: usize| bucket[at] >> TAG_SHIFT;
    let mut at = ((tag * bucket.len() as u64) >> TAG_BITS) as usize;
    while at < bucket.len() && tag_at(at) < tag {
        at += 1;
    }
    while at > 0 && tag_at(at - 1) >= tag {
        at -= 1;
    }
    if at < bucket.len() && tag_at(at) == tag { Ok(at) } else { Err(at) }
}

/// Keeps a sixteenth, as growth does; returns by how many entries there is less room.
fn give_room_back(bucket: &mut Vec<u64>) -> usize {
    let before = bucket.capacity();
    if before - bucket.len() > bucket.len() / 8 + 2 {
        bucket.shrink_to(bucket.len() + bucket.len() / 16 + 1);
    }
    before - bucket.capacity()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::hash;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// A map of bucket and tag says the same, whatever the number of blocks.
        #[test]
        fn what_was_inserted_is_found_and_what_was_removed_is_not(
            expected in 0..4_000_u64,
            steps in prop::collection::vec((0..4_u8, 0..3_000_u64, 0..PLACES, 1..LONGEST - 1), 1..4_000),
        ) {
            let mut table = Table::new(expected);
            let mut model = HashMap::new();
            for (step, id, place, units) in steps {
                let hash = hash(1, id);
                let key = table.bucket_and_tag(hash);
                let entry = Entry { place, units, count: (id % 4) as u8 };
                match step {
                    0 => {
                        let there = model.get(&key).map_or(place, |entry: &Entry| entry.place);
                        prop_assert_eq!(table.remove(hash, there), model.remove(&key));
                    }
                    1 if model.get(&key).is_some_and(|entry| entry.place != place) => {
                        prop_assert_eq!(table.remove(hash, place), None);
                    }
                    _ => prop_assert_eq!(table.insert(hash, entry), model.insert(key, entry)),
                }
                prop_assert_eq!(table.find(hash), model.get(&key).copied());
            }
            let places = PLACES / 4..PLACES / 2;
            table.remove_places(places.clone());
            model.retain(|_, entry| !places.contains(&entry.place));
            prop_assert_eq!(table.blocks(), model.len() as u64);
            for id in 0..3_000 {
                prop_assert_eq!(table.find(hash(1, id)), model.get(&table.bucket_and_tag(hash(1, id))).copied());
            }
            let room: usize = table.buckets.iter().map(Vec::capacity).sum();
            prop_assert_eq!(room, table.room);
        }
    }
}
