//! Look-up counts of a volume: how often a kernel looked each inode up and has not forgotten it.
//!
//! A path walk ends with a number, which the kernel opens, asks about or changes a moment later, when the name may
//! be gone. So an inode without a name stays while it is open or counted here, and its last FORGET buries it. The
//! counts live as long as the volume is attached: a kernel that unmounts it need not forget anything. An inode
//! costs some 25 bytes here, of the kilobyte and more that the kernel keeps of it.

use larder_format::InodeId;
use larder_sync::Mutex;
use std::collections::BTreeMap;

/// Parts, with a lock each; leaves in the order of locks.
const SHARDS: u64 = 32;
/// Set in a count: the inode has neither name nor handle any more.
const ORPHAN: u64 = 1 << 63;

/// Look-ups by inode.
pub(crate) struct Lookups(Vec<Mutex<BTreeMap<InodeId, u64>>>);

impl Lookups {
    pub fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    pub(crate) fn shard(&self, id: InodeId) -> &Mutex<BTreeMap<InodeId, u64>> {
        &self.0[(id.get() % SHARDS) as usize]
    }

    pub(crate) fn add(&self, id: InodeId) {
        let mut shard = self.shard(id).lock();
        let count = shard.entry(id).or_insert(0);
        // The kernel counts in 64 bits; what stops short of them is never all forgotten.
        if *count & !ORPHAN < ORPHAN - 1 {
            *count += 1;
        }
    }

    /// Whether an inode is counted; if so its last FORGET is to bury it.
    pub(crate) fn keep_orphan(&self, id: InodeId) -> bool {
        let mut shard = self.shard(id).lock();
        shard.get_mut(&id).is_some_and(|count| {
            *count |= ORPHAN;
            true
        })
    }

    /// Counts down; whether the inode is to be buried. A kernel may forget what a volume attached before was asked
    /// for, so more than there are.
    pub(crate) fn forget(&self, id: InodeId, lookups: u64) -> bool {
        let mut shard = self.shard(id).lock();
        let Some(count) = shard.get_mut(&id) else { return false };
        if *count & !ORPHAN > lookups {
            *count -= lookups;
            return false;
        }
        shard.remove(&id).is_some_and(|count| count & ORPHAN != 0)
    }

    /// Forgets everything; gives what is to be buried.
    pub(crate) fn forget_all(&self) -> Vec<InodeId> {
        let all = self.0.iter().flat_map(|shard| std::mem::take(&mut *shard.lock()));
        all.filter(|(_, count)| count & ORPHAN != 0).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_is_buried_by_the_last_that_forgets_it() {
        let (lookups, id) = (Lookups::new(), InodeId::new(7));
        (0..3).for_each(|_| lookups.add(id));
        assert!(!lookups.forget(id, 1));
        assert!(lookups.keep_orphan(id));
        lookups.add(id);
        assert!(!lookups.forget(id, 2));
        assert!(lookups.forget(id, 1));
        assert!(!lookups.forget(id, 1) && !lookups.keep_orphan(id));
    }

    #[test]
    fn more_than_there_are_can_be_forgotten() {
        let (lookups, id) = (Lookups::new(), InodeId::new(7));
        lookups.add(id);
        assert!(!lookups.forget(id, u64::MAX), "it has a name");
        lookups.add(id);
        lookups.keep_orphan(id);
        assert_eq!(lookups.forget_all(), [id]);
        assert!(!lookups.forget(id, 1));
    }
}
