//! Headroom: what is known to be free without a look at the groups.
//!
//! Every write and every change of a name asks whether there is room. To count it takes the core's lock, for which
//! those who store wait as well, and a few thousand instructions; nearly always the answer is that far more is free
//! than is asked for. So a count leaves a note: what whole free segments alone have room for. It holds until a slot is
//! taken or given back, or a group gets another shape; what open segments have room for, and what cleaning would
//! bring, comes on top of it, and is not counted.

use crate::space::GroupSpace;
use larder_format::GroupIndex;
use larder_sync::Mutex;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// The groups of a pool, by number. What is noted of their free slots is forgotten whenever one is changed.
#[derive(Debug)]
pub struct Groups {
    groups: BTreeMap<GroupIndex, GroupSpace>,
    /// The number that the next new group gets: none is given twice.
    next: u16,
    headroom: Arc<Headroom>,
}

impl Groups {
    /// Groups of which nothing is noted; the next new one gets number `next`, or the one after theirs.
    pub fn new(groups: BTreeMap<GroupIndex, GroupSpace>, next: u16) -> Self {
        let highest = groups.keys().next_back();
        let next = next.max(highest.map_or(0, |last| last.get().saturating_add(1)));
        Self { groups, next, headroom: Arc::default() }
    }

    /// The number that the next new group gets.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Their headroom, readable without their lock.
    pub fn headroom(&self) -> &Arc<Headroom> {
        &self.headroom
    }

    /// A group that is about to change.
    pub fn change(&mut self, index: GroupIndex) -> Option<&mut GroupSpace> {
        self.headroom.forget();
        self.groups.get_mut(&index)
    }

    /// Nothing that was noted holds any more.
    pub fn forget_headroom(&self) {
        self.headroom.forget();
    }

    /// Another group.
    pub fn insert(&mut self, group: GroupSpace) {
        self.headroom.forget();
        self.next = self.next.max(group.index.get().saturating_add(1));
        self.groups.insert(group.index, group);
    }

    /// A group goes, with nothing on it any more.
    pub fn remove(&mut self, index: GroupIndex) {
        self.headroom.forget();
        self.groups.remove(&index);
    }
}

impl Deref for Groups {
    type Target = BTreeMap<GroupIndex, GroupSpace>;
    fn deref(&self) -> &Self::Target {
        &self.groups
    }
}

/// Room in whole free segments, if it was counted since they last changed.
#[derive(Debug, Default)]
pub struct Headroom(Mutex<Option<Noted>>);

/// Room in free segments, whatever is written to the open ones.
#[derive(Debug, Clone, Copy)]
pub struct Noted {
    /// Bytes of a record.
    pub record_size: u32,
    /// Bytes of incompressible records of that size, above the reserve.
    pub records: u64,
    /// Bytes of nodes that commits can store.
    pub nodes: u64,
    /// Room for records that a byte of a node takes.
    pub node_footprint: u64,
}

impl Headroom {
    /// Whether there is certainly room for `bytes` of records and `nodes` bytes of nodes.
    pub fn holds(&self, record_size: u32, bytes: u64, nodes: u64) -> bool {
        self.0.lock().is_some_and(|noted| {
            let taken = bytes.saturating_add(nodes.saturating_mul(noted.node_footprint));
            noted.record_size == record_size && noted.records >= taken
        })
    }

    /// Whether commits can certainly store more than `bytes` of nodes.
    pub fn holds_nodes(&self, bytes: u64) -> bool {
        self.0.lock().is_some_and(|noted| noted.nodes > bytes)
    }

    /// Notes what was counted; with the lock on the groups held, so that they are as they were.
    pub fn note(&self, noted: Noted) {
        *self.0.lock() = Some(noted);
    }

    fn forget(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::label::{GroupRule, LayoutKind};
    use larder_format::segment::{Layout, Slot};
    use larder_format::{DeviceIndex, SegmentId, SlotIndex};

    const NOTED: Noted = Noted { record_size: 4096, records: 1000, nodes: 100, node_footprint: 2 };

    #[test]
    fn what_is_noted_is_for_one_record_size_and_counts_nodes_as_often_as_they_are_stored() {
        let headroom = Headroom::default();
        assert!(!headroom.holds(4096, 0, 0) && !headroom.holds_nodes(0), "nothing is noted");
        headroom.note(NOTED);
        assert!(headroom.holds(4096, 800, 100) && !headroom.holds(4096, 801, 100));
        assert!(!headroom.holds(8192, 1, 0), "nothing is noted of that size");
        assert!(!headroom.holds(4096, u64::MAX, u64::MAX));
        assert!(headroom.holds_nodes(99) && !headroom.holds_nodes(100));
    }

    #[test]
    fn a_slot_taken_or_given_back_and_another_group_undo_what_was_noted() {
        let index = GroupIndex::new(0);
        let rule = GroupRule { word: LayoutKind::Single, layout: Layout::new(1, 1, 0).unwrap() };
        let group = |index| GroupSpace::new(index, rule, 1 << 20, 12, &[(DeviceIndex::new(0), 100)]);
        let mut groups = Groups::new(BTreeMap::from([(index, group(index))]), 0);
        let headroom = Arc::clone(groups.headroom());
        let mut undone = |change: &dyn Fn(&mut Groups)| {
            headroom.note(NOTED);
            change(&mut groups);
            assert!(!headroom.holds(4096, 1, 0) && !headroom.holds_nodes(1));
        };
        undone(&|groups| {
            groups.change(index).unwrap().allocate(false, SegmentId::new(1)).unwrap();
        });
        let slot = Slot { device: DeviceIndex::new(0), index: SlotIndex::new(0) };
        undone(&|groups| groups.change(index).unwrap().give_back(slot));
        undone(&|groups| groups.insert(group(GroupIndex::new(1))));
    }
}
