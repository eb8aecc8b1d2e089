//! Devices that are larger than what the pool has of them: grown, or larger than the one whose place they took.
//!
//! Their slots become more at the boundary between two commits. The second label area lies at a device's end, so that
//! of one that grew moves: its roots first, then the label beside them, then the one in the first area, with a flush
//! after each. So a label is intact at each moment in a place where it is looked for, and whoever finds the new one
//! finds the roots where it says. *Crash*: until the first of the two is there nothing has changed. From then on the
//! label tells of more slots than the root, which is what counts: the next attempt goes on from there. Where the old
//! area was are slots then, given to nobody before the label is durable.

use crate::devices::Devices;
use larder_device::{AlignedBuf, Device, DeviceError, Request};
use larder_format::label::{HEARTBEAT_OFFSET, LABEL_AREA, LABEL_LEN, Label, label_areas};
use larder_format::root::NO_GROUP;
use larder_format::{ByteLen, DeviceIndex, DeviceOffset};
use larder_pool::create::slot_count;
use larder_store::member::Member;
use larder_store::{Class, Event, PoolError, Refusal, Result};
use larder_sync::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Result of [`Devices::expand`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expanded {
    /// Bytes of slots that the device has more.
    pub bytes: u64,
    /// Whether its group makes segments of them; if not, its other devices are too small for that.
    pub is_of_use: bool,
}

/// Devices that have room for more slots, and the bytes of records that their groups would gain from all of them.
#[derive(Default)]
pub struct Expandable {
    /// Those whose groups would gain.
    pub devices: Vec<Arc<Member>>,
    /// Bytes.
    pub gain: u64,
    /// Bytes of slots of all, whether anybody would gain or not.
    pub bytes: u64,
}

impl Devices {
    /// Number of slots that the device of `member` has room for, as large as it was when it was last looked at.
    fn slots_of(&self, member: &Member) -> u32 {
        let ashift = self.store.core.lock().groups.get(&member.group).map(|group| group.ashift);
        let slots =
            ashift.zip(member.size()).map(|(ashift, size)| slot_count(size, member.slot_size, ashift));
        slots.unwrap_or(0).max(member.slot_count())
    }

    /// Devices in use that have room for more slots than the pool has on them, and for how many.
    fn larger(&self) -> Vec<(Arc<Member>, u32)> {
        let leaving: Vec<_> = {
            let core = self.store.core.lock();
            core.groups.values().filter(|group| group.leaving).map(|group| group.index).collect()
        };
        let is_whole = |member: &Arc<Member>| {
            !leaving.contains(&member.group)
                && self.store.members.stand_in(member.index).is_none()
                && member.is_online()
                && member.stands_for.is_none()
                && !member.is_leaving()
                && member.group != NO_GROUP
        };
        let members = self.store.members.iter().filter(is_whole);
        let sized = members.map(|member| (self.slots_of(&member), member));
        sized
            .filter(|(slots, member)| *slots > member.slot_count())
            .map(|(slots, member)| (member, slots))
            .collect()
    }

    /// Devices that could be expanded, in records of `record_size`.
    pub fn expandable(&self, record_size: u32) -> Expandable {
        let larger = self.larger();
        let mut all = Expandable::default();
        if larger.is_empty() {
            return all;
        }
        let groups = self.store.core.lock().groups.values().cloned().collect::<Vec<_>>();
        for before in groups {
            let of: Vec<_> = larger.iter().filter(|(member, _)| member.group == before.index).collect();
            let mut after = before.clone();
            for (member, slots) in &of {
                all.bytes += u64::from(slots - member.slot_count()) * u64::from(member.slot_size);
                after.extend(member.index, *slots);
            }
            let gain = self.store.gain_at_once(record_size, &after);
            if after.total(0).columns > before.total(0).columns {
                all.gain += gain;
                all.devices.extend(of.iter().map(|(member, _)| Arc::clone(member)));
            }
        }
        all
    }

    /// Expands all devices that are larger, where the pool's property `autoexpand` asks for it.
    ///
    /// # Errors
    /// As [`Devices::expand`], of the first that fails.
    pub fn expand_by_itself(&self) -> Result<()> {
        self.look_at_sizes();
        let is_wanted = || self.pool.pool_properties().get("autoexpand").is_some_and(|value| value == "on");
        if self.store.is_read_only() || !is_wanted() {
            return Ok(());
        }
        let mut outcome = Ok(());
        for (member, _) in self.larger() {
            outcome = outcome.and(self.expand(member.index).map(drop));
        }
        outcome
    }

    /// Looks whether devices have grown.
    pub fn look_at_sizes(&self) {
        for device in
            self.store.members.iter().filter(|member| member.is_online()).filter_map(|of| of.device())
        {
            device.grow();
        }
    }

    /// Uses all of a device that is larger than what the pool has of it.
    ///
    /// # Errors
    /// When the device is not in use as a whole, or its new end cannot be written; when a commit fails.
    pub fn expand(&self, device: DeviceIndex) -> Result<Expanded> {
        let _mine = self.pool.change_turn();
        self.store.check_writable()?;
        let member = self.replaceable(device)?;
        if self.store.core.lock().groups.get(&member.group).is_some_and(|group| group.leaving) {
            return Err(Refusal::GroupLeaves.into());
        }
        let Some(file) = member.device().filter(|_| member.is_online()) else {
            return Err(Refusal::NotWhole(member.name()).into());
        };
        file.grow();
        let (before, slots) = (member.slot_count(), self.slots_of(&member));
        if slots == before {
            return Ok(Expanded { bytes: 0, is_of_use: true });
        }
        let columns = || self.store.core.lock().groups.get(&member.group).map(|group| group.total(0).columns);
        let had = columns();
        let outcome = Arc::new(Mutex::new(Ok(())));
        let (told, of) = (Arc::clone(&outcome), Arc::clone(&member));
        self.pool.change_members(move |pool, _| {
            // The commit may have found it dead.
            let Some(label) = of.label().filter(|_| of.is_online()) else { return };
            match label_anew(&*file, label, slots, of.timeout()) {
                Ok((label, rest)) => {
                    let mut core = pool.store().core.lock();
                    of.extend(label, slots);
                    if let Some(space) = core.groups.change(of.group) {
                        space.extend(of.index, slots);
                    }
                    drop(core);
                    rest.unwrap_or_else(|error| refuse(&of, &error));
                }
                Err(Unlabelled { error, is_halfway }) => {
                    if is_halfway {
                        refuse(&of, &error);
                    }
                    *told.lock() = Err(error);
                }
            }
        })?;
        if let Err(error) = outcome.lock().clone() {
            return Err(PoolError::Device { device: member.name(), error });
        }
        if member.slot_count() == before {
            return Err(Refusal::NotWhole(member.name()).into());
        }
        let bytes = u64::from(slots - before) * u64::from(member.slot_size);
        let text = format!("larger: {bytes} bytes more");
        self.store.event(Event::new(Class::DeviceExpand).device(member.guid, member.name()).text(text));
        Ok(Expanded { bytes, is_of_use: columns() > had })
    }
}

/// A device that does not take its label is out of use.
fn refuse(member: &Member, error: &DeviceError) {
    member.fail(&format_args!("it does not take its label: {error}"));
    if *error == DeviceError::Overdue {
        member.abandon();
    }
}

/// Why a device did not get its label, and whether it may have one by now that its member does not know.
struct Unlabelled {
    error: DeviceError,
    is_halfway: bool,
}

/// Writes labels that say that the device is as large as it is, and has so many slots; the label, once one is durable,
/// and whether all else was written. No root and no heartbeat is written meanwhile.
fn label_anew(
    device: &dyn Device,
    mut label: Label,
    slots: u32,
    limit: Duration,
) -> Result<(Label, Result<(), DeviceError>), Unlabelled> {
    let size = device.size();
    let [first, old] = label_areas(label.device_size);
    let new = label_areas(size)[1];
    (label.sequence, label.device_size, label.slot_count) = (label.sequence + 1, size, slots);
    let put = |at: DeviceOffset, data: AlignedBuf| {
        device.submit(Request::Write { offset: at, data: Arc::new(data) }).within(limit)?;
        device.submit(Request::Flush).within(limit).map(drop)
    };
    if new != old {
        // A write that comes late would come over a later attempt.
        let before = |error| Unlabelled { is_halfway: error == DeviceError::Overdue, error };
        let read =
            |at| device.submit(Request::Read { offset: at, len: ByteLen::new(LABEL_AREA) }).within(limit);
        let mut area = read(old).or_else(|_| read(first)).map_err(before)?;
        // A label that was there before is of something else.
        area[..HEARTBEAT_OFFSET as usize].fill(0);
        put(new, area).map_err(before)?;
    }
    let bytes = || AlignedBuf::padded(&label.encode());
    put(new, bytes()).map_err(|error| Unlabelled { error, is_halfway: true })?;
    let rest = put(first, bytes()).and_then(|()| match new == old {
        true => Ok(()),
        // Else it would be found by whoever cuts the device back to where it ended.
        false => put(old, AlignedBuf::zeroed(LABEL_LEN)),
    });
    Ok((label, rest))
}
