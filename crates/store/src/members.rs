//! All members of a store.
//!
//! Each has a number, which segment records name and which stays with the *place* in the group: a device that takes
//! the place of another gets its number. Until then it has one of its own and stands for the other: what is written
//! to the other's slots goes to it as well.
//!
//! Membership changes under the commit lock, with the gate closed, at the moment between two commits.

use crate::error::Result;
use crate::member::{Member, Written};
use crate::refusal::Refusal;
use larder_device::{AlignedBuf, DeviceError};
use larder_format::root::RootDevice;
use larder_format::{CommitId, DeviceGuid, DeviceIndex, DeviceOffset, GroupIndex, Incarnation};
use larder_mutants::point;
use larder_sync::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Refuses more devices than a root can tell of.
pub fn room_for_devices(count: usize, most: usize) -> Result<()> {
    if count <= most {
        return Ok(());
    }
    Err(Refusal::TooManyDevices { count, most }.into())
}

/// See the module's text.
pub struct Members(RwLock<ByIndex>);

#[derive(Default)]
struct ByIndex {
    /// All but spares.
    members: BTreeMap<DeviceIndex, Arc<Member>>,
    /// By the number of whom they stand for.
    stand_ins: BTreeMap<DeviceIndex, Arc<Member>>,
    /// Devices that hold nothing yet.
    spares: BTreeMap<DeviceIndex, Arc<Member>>,
    /// Devices with copies of blocks, which count for nothing.
    caches: BTreeMap<DeviceIndex, Arc<Member>>,
    /// The number that the next new device gets: no number is given twice, so that what a record or a stale label
    /// says of one is never understood of another.
    next: u16,
}

impl ByIndex {
    fn other(&self, index: DeviceIndex) -> Option<&Arc<Member>> {
        self.spares.get(&index).or_else(|| self.caches.get(&index))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values().chain(self.spares.values()).chain(self.caches.values())
    }

    fn gave(&mut self, index: DeviceIndex) {
        self.next = self.next.max(index.get().saturating_add(1));
    }
}

impl Members {
    /// The members given, and devices of no group; the next new device gets number `next`, or the one after theirs.
    pub fn new(
        members: impl IntoIterator<Item = Member>,
        others: impl IntoIterator<Item = Member>,
        next: u16,
    ) -> Self {
        let all = Self(RwLock::new(ByIndex { next, ..ByIndex::default() }));
        members.into_iter().for_each(|member| drop(all.put(Arc::new(member))));
        others.into_iter().for_each(|other| drop(all.put_other(Arc::new(other))));
        all
    }

    /// The member `index`.
    ///
    /// # Panics
    /// When there is none: segment records are checked against the members when they are read.
    pub fn get(&self, index: DeviceIndex) -> Arc<Member> {
        Arc::clone(&self.0.read().members[&index])
    }

    /// The device `index`, of whatever use, if there is one.
    pub fn find(&self, index: DeviceIndex) -> Option<Arc<Member>> {
        let all = self.0.read();
        all.members.get(&index).or_else(|| all.other(index)).cloned()
    }

    /// The member, spare or cache whose device has this GUID.
    pub fn by_guid(&self, guid: DeviceGuid) -> Option<Arc<Member>> {
        self.all().find(|member| member.guid == guid)
    }

    /// All devices, of whatever use: those of groups first.
    pub fn all(&self) -> std::vec::IntoIter<Arc<Member>> {
        self.0.read().all().cloned().collect::<Vec<_>>().into_iter()
    }

    /// The members that receive writes to the slots of member `index`: itself, and a stand-in.
    pub fn writers(&self, index: DeviceIndex) -> impl Iterator<Item = Arc<Member>> + use<> {
        let all = self.0.read();
        let stand_in = all.stand_ins.get(&index).cloned();
        std::iter::once(Arc::clone(&all.members[&index])).chain(stand_in)
    }

    /// The stand-in of member `index`.
    pub fn stand_in(&self, index: DeviceIndex) -> Option<Arc<Member>> {
        self.0.read().stand_ins.get(&index).cloned()
    }

    /// Whether there is a member `index`.
    pub fn has(&self, index: DeviceIndex) -> bool {
        self.0.read().members.contains_key(&index)
    }

    /// All members in the order of their numbers, those who stand for others among them, without devices of no group.
    pub fn iter(&self) -> std::vec::IntoIter<Arc<Member>> {
        self.0.read().members.values().cloned().collect::<Vec<_>>().into_iter()
    }

    /// Bytes of the smallest slot of them.
    pub fn smallest_slot(&self) -> Option<u32> {
        self.0.read().members.values().map(|member| member.slot_size).min()
    }

    /// The spares, in the order of their numbers.
    pub fn spares(&self) -> Vec<Arc<Member>> {
        self.0.read().spares.values().cloned().collect()
    }

    /// The devices with copies of blocks, in the order of their numbers.
    pub fn caches(&self) -> Vec<Arc<Member>> {
        self.0.read().caches.values().cloned().collect()
    }

    /// The members that have a place in `group`, in the order of their numbers: the columns of its rule. Those on
    /// their way out are none of them.
    pub fn of_group(&self, group: GroupIndex) -> impl Iterator<Item = Arc<Member>> + use<> {
        self.iter().filter(move |member| {
            member.group == group && member.stands_for.is_none() && !member.is_leaving()
        })
    }

    /// A number that no device has or had.
    ///
    /// # Errors
    /// When `more` would make them more than `most`, of which a root can tell; when there is no number left.
    pub fn next_index(&self, more: usize, most: usize) -> Result<DeviceIndex> {
        let all = self.0.read();
        room_for_devices(all.all().count() + more, most)?;
        if usize::from(all.next) + more.max(1) >= usize::from(u16::MAX) {
            return Err(Refusal::NoDeviceNumbers.into());
        }
        Ok(DeviceIndex::new(all.next))
    }

    /// Entries of all of them in the root of `commit`, which this import writes; and the next free number.
    pub fn to_root(&self, commit: CommitId, incarnation: Incarnation) -> (Vec<RootDevice>, u16) {
        let all = self.0.read();
        let mut devices: Vec<_> = all.all().map(|member| member.to_root(commit, incarnation)).collect();
        devices.sort_by_key(|device| device.index);
        (devices, all.next)
    }

    /// Adds a member, or puts it in the place of the one of its number, which is returned.
    pub fn put(&self, member: Arc<Member>) -> Option<Arc<Member>> {
        let mut all = self.0.write();
        if let Some(place) = member.stands_for {
            all.stand_ins.insert(place, Arc::clone(&member));
        }
        all.gave(member.index);
        all.members.insert(member.index, member)
    }

    /// Adds a device of no group: a spare, or one with copies of blocks.
    pub fn put_other(&self, other: Arc<Member>) -> Option<Arc<Member>> {
        let mut all = self.0.write();
        all.gave(other.index);
        let others = if other.is_cache { &mut all.caches } else { &mut all.spares };
        others.insert(other.index, other)
    }

    /// Takes a device out, of whatever use.
    pub fn take(&self, index: DeviceIndex) -> Option<Arc<Member>> {
        let mut all = self.0.write();
        all.stand_ins.retain(|_, member| member.index != index);
        let all = &mut *all;
        let others = |all: &mut ByIndex| all.spares.remove(&index).or_else(|| all.caches.remove(&index));
        all.members.remove(&index).or_else(|| others(all))
    }

    /// Flushes every member that is written; a member that fails is faulted.
    pub fn flush_all(&self) {
        point("devices are about to be flushed");
        let pending: Vec<_> =
            self.iter().map(|member| (member.take_repairs(), member.start_flush(), member)).collect();
        for (repairs, flush, member) in pending {
            let is_flushed = flush.is_some() && member.complete_flush(flush);
            if !is_flushed {
                member.doubt(repairs);
            }
        }
    }

    /// Writes `data` at the same place, relative to label area `area` (0 or 1), of every member that is written; those
    /// that refuse it there.
    pub fn write_labels(
        &self,
        area: usize,
        within: impl Fn(DeviceOffset) -> DeviceOffset,
        data: &[u8],
    ) -> Vec<(Arc<Member>, DeviceError)> {
        point("labels are about to be written");
        let data = Arc::new(AlignedBuf::padded(data));
        let pending: Vec<_> = self
            .iter()
            .map(|member| (member.start_write(within(member.label_areas()[area]), Arc::clone(&data)), member))
            .collect();
        let completed = pending.into_iter().filter(|(write, _)| write.is_some());
        let refused = completed.filter_map(|(write, member)| match member.complete_write(write) {
            Written::Refused(error) => Some((member, error)),
            Written::Done | Written::Lost => None,
        });
        refused.collect()
    }
}
