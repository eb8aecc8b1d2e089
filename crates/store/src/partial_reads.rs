//! Records that were partially read of late; see [`crate::partial_read`].

use larder_format::BlockId;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records that are remembered for a part having been read of them.
const REMEMBERED: usize = 16 << 10;
/// Of each, the cache has about so much room: no more are remembered than it would hold.
const ROOM: u64 = 128 << 10;

/// Of which records a part was read, each at a place of its own and its neighbours in the order of ids: old ones make
/// room for new ones.
pub struct PartialReads(Box<[AtomicU64]>);

impl Default for PartialReads {
    fn default() -> Self {
        Self((0..REMEMBERED).map(|_| AtomicU64::new(0)).collect())
    }
}

impl PartialReads {
    /// Notes that a part of `id` is read; whether that is remembered already. A cache of `room` bytes holds the others.
    pub(crate) fn note(&self, id: BlockId, room: u64) -> bool {
        let places = (room / ROOM).clamp(64, self.0.len() as u64);
        self.0[(id.get() % places) as usize].swap(id.get(), Ordering::Relaxed) == id.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_remembered_until_the_cache_would_have_let_go_of_it() {
        let parts = PartialReads::default();
        let id = |n: u64| BlockId::new((7 << 40) + n);
        let note = |n: u64, room: u64| parts.note(id(n), room);
        assert!((0..1000).all(|n| !note(n, 1 << 30)));
        assert!((0..1000).all(|n| note(n, 1 << 30)));
        assert!((0..64).all(|n| !note(5000 + n, 0)));
        assert!((0..64).all(|n| note(5000 + n, 0)));
        assert!((0..64).all(|n| !note(6000 + n, 0)));
        assert!((0..64).all(|n| !note(5000 + n, 0)), "no more than a small cache holds");
    }
}
