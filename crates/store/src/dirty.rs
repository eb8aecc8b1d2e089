//! Data accepted and not stored yet: its bytes, and the space and memory that storing it takes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Dirty bytes in memory, over all front ends, and what storing them takes.
#[derive(Debug, Default)]
pub struct Dirty {
    written: AtomicU64,
    needed: AtomicU64,
    building: AtomicU64,
}

impl Dirty {
    /// More was written; tells how much it was before.
    pub fn add(&self, bytes: u64) -> u64 {
        self.written.fetch_add(bytes, Ordering::Relaxed)
    }
    /// Some was stored or dropped.
    pub fn sub(&self, bytes: u64) {
        self.written.fetch_sub(bytes, Ordering::Relaxed);
    }
    /// Bytes dirty now.
    pub fn get(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
    /// Storing what is dirty of a file will take `now` bytes of space and no longer `before`: records are stored
    /// whole, however little of each was written.
    pub fn need(&self, before: u64, now: u64) {
        if now >= before {
            self.needed.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.needed.fetch_sub(before - now, Ordering::Relaxed);
        }
    }
    /// Bytes of space that storing all of it takes, at most.
    pub fn needed(&self) -> u64 {
        self.needed.load(Ordering::Relaxed)
    }
    /// Memory in which whole records are put together from dirty pieces: what others have left of `most` bytes,
    /// but `least` in any case, so that nobody waits.
    pub fn room(&self, most: u64, least: u64) -> Room<'_> {
        let grant = |building: u64| most.saturating_sub(building).max(least);
        let take = |building| Some(building + grant(building));
        let (Ok(before) | Err(before)) =
            self.building.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Room { dirty: self, bytes: grant(before) }
    }
}

/// Memory for records that are being put together, until it is dropped.
#[derive(Debug)]
pub struct Room<'a> {
    dirty: &'a Dirty,
    bytes: u64,
}

impl Room<'_> {
    /// Size, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Gives back what is not needed beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        self.resize(bytes.min(self.bytes));
    }
    /// It is `bytes` now, whatever others have left: they get less.
    pub fn resize(&mut self, bytes: u64) {
        self.dirty.building.fetch_add(bytes, Ordering::Relaxed);
        self.dirty.building.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::Dirty;

    #[test]
    fn what_a_batch_takes_beyond_its_room_others_have_not() {
        let dirty = Dirty::default();
        let mut first = dirty.room(100, 1);
        first.resize(20);
        let second = dirty.room(100, 1);
        assert_eq!((first.bytes(), second.bytes()), (20, 80));
        drop(second);
        first.resize(130);
        assert_eq!(dirty.room(100, 1).bytes(), 1);
        first.resize(40);
        assert_eq!(dirty.room(100, 1).bytes(), 60);
        drop(first);
        assert_eq!(dirty.room(100, 1).bytes(), 100);
    }
}
