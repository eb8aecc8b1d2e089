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
    /// The number that the next new device gets: no number is given twice, so that what a record or a stale label
    /// says of one is never understood of another.
    next: u16,
}

impl ByIndex {
    fn gave(&mut self, index: DeviceIndex) {
        self.next = self.next.max(index.get().saturating_add(1));
    }
}

impl Members {
    /// The members given; the next new device gets number `next`, or the one after theirs.
    pub fn new(
        members: impl IntoIterator<Item = Member>,
        spares: impl IntoIterator<Item = Member>,
        next: u16,
    ) -> Self {
        let all = Self(RwLock::new(ByIndex { next, ..ByIndex::default() }));
        members.into_iter().for_each(|member| drop(all.put(Arc::new(member))));
        spares.into_iter().for_each(|spare| drop(all.put_spare(Arc::new(spare))));
        all
    }

    /// The member `index`.
    ///
    /// # Panics
    /// When there is none: segment records are checked against the members when they are read.
    pub fn get(&self, index: DeviceIndex) -> Arc<Member> {
        Arc::clone(&self.0.read().members[&index])
    }

    /// The member or spare `index`, if there is one.
    pub fn find(&self, index: DeviceIndex) -> Option<Arc<Member>> {
        let all = self.0.read();
        all.members.get(&index).or_else(|| all.spares.get(&index)).cloned()
    }

    /// The member or spare whose device has this GUID.
    pub fn by_guid(&self, guid: DeviceGuid) -> Option<Arc<Member>> {
        let all = self.0.read();
        all.members.values().chain(all.spares.values()).find(|member| member.guid == guid).cloned()
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

    /// All members in the order of their numbers, those who stand for others among them, without spares.
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
        room_for_devices(all.members.len() + all.spares.len() + more, most)?;
        if usize::from(all.next) + more.max(1) >= usize::from(u16::MAX) {
            return Err(Refusal::NoDeviceNumbers.into());
        }
        Ok(DeviceIndex::new(all.next))
    }

    /// Entries of all of them in the root of `commit`, which this import writes; and the next free number.
    pub fn to_root(&self, commit: CommitId, incarnation: Incarnation) -> (Vec<RootDevice>, u16) {
        let all = self.0.read();
        let members = all.members.values().chain(all.spares.values());
        let mut devices: Vec<_> = members.map(|member| member.to_root(commit, incarnation)).collect();
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

    /// Adds a spare.
    pub fn put_spare(&self, spare: Arc<Member>) -> Option<Arc<Member>> {
        let mut all = self.0.write();
        all.gave(spare.index);
        all.spares.insert(spare.index, spare)
    }

    /// Takes a member or a spare out.
    pub fn take(&self, index: DeviceIndex) -> Option<Arc<Member>> {
        let mut all = self.0.write();
        all.stand_ins.retain(|_, member| member.index != index);
        let all = &mut *all;
        all.members.remove(&index).or_else(|| all.spares.remove(&index))
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
