//! Ids that were read, or cached, of late, two bytes each.
//!
//! A bucket has the tags of 64 ids, the latest first. As ids are spread evenly, how deep an id lies in its bucket tells
//! how many came after it in all: so a longer or shorter memory is a matter of how deep one looks, at once.

/// Tags of a bucket; as many as are of twice what is cached.
const DEPTH: usize = 64;
/// Beside the tag: read twice.
const TWICE: u16 = 1 << 15;

/// Number of ids that are remembered, against the blocks that are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GhostLength {
    /// Half as many.
    Half,
    /// As many.
    Same,
    /// Twice as many.
    Twice,
}

impl GhostLength {
    /// All of them, the shortest first.
    pub const ALL: [Self; 3] = [Self::Half, Self::Same, Self::Twice];

    fn depth(self) -> usize {
        match self {
            Self::Half => DEPTH / 4,
            Self::Same => DEPTH / 2,
            Self::Twice => DEPTH,
        }
    }
}

/// Times that an id was read, as far as is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Unknown,
    Once,
    Twice,
}

#[derive(Debug)]
pub(crate) struct Ghost {
    tags: Vec<[u16; DEPTH]>,
}

impl Ghost {
    /// Beside a cache of so many blocks.
    pub fn new(blocks: u64) -> Self {
        Self { tags: vec![[0; DEPTH]; buckets(blocks)] }
    }

    /// Blocks that it was made for.
    pub fn blocks(&self) -> u64 {
        (self.tags.len() * DEPTH / 2) as u64
    }

    /// Bytes.
    pub fn memory(&self) -> usize {
        self.tags.capacity() * DEPTH * size_of::<u16>()
    }

    /// Notes that an id was read, and tells what was known of it before.
    pub fn note(&mut self, hash: u64, length: GhostLength) -> Memory {
        let (bucket, tag) = self.bucket_and_tag(hash);
        match bucket.iter().position(|of| of & !TWICE == tag) {
            Some(at) if at < length.depth() => {
                let memory = if bucket[at] & TWICE == 0 { Memory::Once } else { Memory::Twice };
                bucket[at] |= TWICE;
                memory
            }
            at => {
                push(bucket, at.unwrap_or(DEPTH - 1), tag);
                Memory::Unknown
            }
        }
    }

    /// An id that was cached, so it was read more than once, and is no longer.
    pub fn push(&mut self, hash: u64) {
        let (bucket, tag) = self.bucket_and_tag(hash);
        let at = bucket.iter().position(|of| of & !TWICE == tag);
        push(bucket, at.unwrap_or(DEPTH - 1), tag | TWICE);
    }

    /// An id that is cached now.
    pub fn forget(&mut self, hash: u64) {
        let (bucket, tag) = self.bucket_and_tag(hash);
        if let Some(at) = bucket.iter().position(|of| of & !TWICE == tag) {
            bucket.copy_within(at + 1.., at);
            bucket[DEPTH - 1] = 0;
        }
    }

    fn bucket_and_tag(&mut self, hash: u64) -> (&mut [u16; DEPTH], u16) {
        let scaled = u128::from(hash) * self.tags.len() as u128;
        // No tag is zero, which is nobody's.
        let tag = (scaled as u64 >> 49) as u16;
        (&mut self.tags[(scaled >> 64) as usize], tag.max(1))
    }
}

fn buckets(blocks: u64) -> usize {
    (2 * blocks).div_ceil(DEPTH as u64).max(1) as usize
}

/// Puts a tag in front; what is at `last` makes room.
fn push(bucket: &mut [u16; DEPTH], last: usize, tag: u16) {
    bucket.copy_within(..last, 1);
    bucket[0] = tag;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::hash;

    #[test]
    fn as_many_ids_are_remembered_as_the_length_says() {
        let blocks = 64_000;
        for (length, part) in GhostLength::ALL.into_iter().zip([0.5, 1.0, 2.0]) {
            let known_of = |age: f64| {
                let mut ghost = Ghost::new(blocks);
                (0..3 * blocks).for_each(|id| _ = ghost.note(hash(1, id), length));
                let oldest = 3 * blocks - (age * part * blocks as f64) as u64;
                let is_known = |id: &u64| ghost.note(hash(1, *id), length) == Memory::Once;
                (oldest..oldest + 1_000).filter(is_known).count()
            };
            assert!(known_of(0.5) > 950, "{length:?}: {} of 1,000 ids of half the age", known_of(0.5));
            assert!(known_of(1.5) < 50, "{length:?}: {} of 1,000 ids of half more", known_of(1.5));
            assert!((300..700).contains(&known_of(1.0)), "{length:?}: {} of 1,000 of the age", known_of(1.0));
        }
    }

    #[test]
    fn what_is_cached_is_forgotten_and_what_was_cached_counts_as_read_twice() {
        let mut ghost = Ghost::new(1_000);
        let note = |ghost: &mut Ghost| ghost.note(hash(1, 7), GhostLength::Half);
        assert_eq!([(); 3].map(|()| note(&mut ghost)), [Memory::Unknown, Memory::Once, Memory::Twice]);
        ghost.forget(hash(1, 7));
        assert_eq!(note(&mut ghost), Memory::Unknown);
        ghost.push(hash(1, 7));
        assert_eq!(note(&mut ghost), Memory::Twice);
    }
}
