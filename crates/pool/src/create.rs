//! Making a pool: groups from devices, labels, and the first commit.

use crate::assemble::Parts;
use crate::contents::Contents;
use crate::dataset::ROOT_DATASET;
use crate::event_log::EventLog;
use crate::intent_log::{Intent, IntentLog};
use crate::ledger::Damage;
use crate::pool::Pool;
use larder_device::{AlignedBuf, Device, Entropy, Request, TIMEOUT};
use larder_format::checksum::{PoolKey, Sums};
use larder_format::label::{
    Features, GroupRule, LABEL_AREA, Label, LayoutKind, MAX_ASHIFT, MAX_NAME, MIN_ASHIFT, MIN_DEVICE,
    label_areas,
};
use larder_format::root::{GroupRole, Identity, RootImport};
use larder_format::segment::{DESCRIPTOR_LEN, Layout, MAX_SLOT, MIN_SLOT};
use larder_format::tables::{DatasetRecord, Table};
use larder_format::{
    BlockId, ByteLen, CommitId, DeviceGuid, DeviceIndex, DeviceOffset, GroupIndex, Incarnation, OpSeq,
    PoolGuid, SegmentId,
};
use larder_sorted::tree::Tree;
use larder_store::core::Core;
use larder_store::member::{Member, MemberState};
use larder_store::members::Members;
use larder_store::members::room_for_devices;
use larder_store::space::GroupSpace;
use larder_store::{
    Class, Event, EventSink, Groups, PoolError, Refusal, Result, Store, StoreParts, TableNodes, Watermark,
    World,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Slots are a device's size divided by this, rounded down to a power of two, within limits: enough of
/// them for a fine reserve, few enough that their table is small.
const SLOTS_PER_DEVICE: u64 = 1024;
pub use larder_store::DEFAULT_ASHIFT;

/// A group to be made.
#[derive(Clone)]
pub struct GroupSpec {
    /// Its rule.
    pub rule: GroupRule,
    /// Its role.
    pub role: GroupRole,
    /// Its devices.
    pub devices: Vec<Arc<dyn Device>>,
}

/// A pool to be made.
#[derive(Clone)]
pub struct PoolSpec {
    /// Its name.
    pub name: String,
    /// Its groups.
    pub groups: Vec<GroupSpec>,
    /// log2 of the alignment of stripes, 12 to 16.
    pub ashift: u8,
}

/// Devices of groups: what a root tells of them, and of as many groups, leaves room for the segments that it names.
pub const MAX_DEVICES: usize = 384;
/// With spares, and with devices that are to take the place of others.
pub const MAX_WITH_OTHERS: usize = MAX_DEVICES + 32;

/// Refuses a record size that blocks of the pool cannot hold: a block is at most a quarter of a slot.
pub(crate) fn check_record_size(value: &str, most: u32) -> Result<()> {
    match value.parse::<u32>() {
        Ok(size) if size > most => Err(PoolError::Invalid(format!(
            "recordsize={}: records of this pool have at most {}, a quarter of a slot of its smallest group",
            crate::property::format_size(size.into()),
            crate::property::format_size(most.into()),
        ))),
        _ => Ok(()),
    }
}

/// A group that is not of data has this many slots at least, of the size that data has.
pub const SLOTS_LEAST: u32 = 24;

/// Bytes of a slot of `group`, in a pool whose smallest slots have `smallest`: a block of the pool fits in each.
///
/// # Errors
/// [`Refusal::TooSmall`] where a device has too few.
pub fn slot_size_beside(group: &GroupSpec, smallest: u32, ashift: u8) -> Result<u32> {
    let slot_size = group.slot_size().max(smallest);
    let least = if group.role == GroupRole::Data { 1 } else { SLOTS_LEAST };
    let few = group.devices.iter().find(|device| slot_count(device.size(), slot_size, ashift) < least);
    few.map_or(Ok(slot_size), |device| {
        let needed = data_start(ashift).get() + u64::from(least) * u64::from(slot_size) + LABEL_AREA;
        Err(Refusal::TooSmall { device: device.name(), has: device.size().get(), needed }.into())
    })
}

impl PoolSpec {
    /// Bytes of a slot of each of its groups.
    ///
    /// # Errors
    /// [`Refusal::TooSmall`] where a device has too few.
    pub fn slot_sizes(&self) -> Result<Vec<u32>> {
        let of_data = self.groups.iter().filter(|group| group.role == GroupRole::Data);
        let smallest = of_data.map(GroupSpec::slot_size).min().unwrap_or(MIN_SLOT);
        let size_of = |group: &GroupSpec| match group.role {
            GroupRole::Data => Ok(group.slot_size()),
            _ => slot_size_beside(group, smallest, self.ashift),
        };
        self.groups.iter().map(size_of).collect()
    }

    /// Refuses properties of the root dataset that such a pool cannot have.
    ///
    /// # Errors
    /// [`PoolError::Invalid`] with the reason.
    pub fn check_property(&self, name: &str, value: &str) -> Result<()> {
        let slot = self.slot_sizes()?.into_iter().min().unwrap_or(MAX_SLOT);
        if name == "recordsize" { check_record_size(value, (slot / 4).min(1 << 20)) } else { Ok(()) }
    }

    /// Space for files in such a pool while it is empty, in records of `record_size` bytes.
    pub fn available(&self, record_size: u32) -> u64 {
        let of_data = self.groups.iter().filter(|group| group.role == GroupRole::Data);
        let groups = of_data.map(|group| {
            let sizes: Vec<ByteLen> = group.devices.iter().map(|device| device.size()).collect();
            available(group.rule, &sizes, self.ashift, record_size)
        });
        groups.sum()
    }
}

/// Space for files in an empty group of data over devices of these sizes, in records of `record_size` bytes. Of several
/// groups the sum is what their pool has.
pub fn available(rule: GroupRule, sizes: &[ByteLen], ashift: u8, record_size: u32) -> u64 {
    let slot_size = slot_size(sizes.iter().map(|size| size.get()).min().unwrap_or(0));
    let slots: Vec<_> = (0u16..)
        .zip(sizes)
        .map(|(index, &size)| (DeviceIndex::new(index), slot_count(size, slot_size, ashift)))
        .collect();
    let space = GroupSpace::new(GroupIndex::new(0), rule, slot_size, ashift, &slots);
    let free = space.free_above(Watermark::Available).columns;
    space.available(free, 0, record_size.min(slot_size / 4))
}

impl GroupSpec {
    /// A group of data.
    pub fn data(rule: GroupRule, devices: Vec<Arc<dyn Device>>) -> Self {
        Self { rule, role: GroupRole::Data, devices }
    }

    /// Bytes of a slot, by the smallest device.
    pub fn slot_size(&self) -> u32 {
        slot_size(self.devices.iter().map(|device| device.size().get()).min().unwrap_or(0))
    }
}

/// The rule that a layout word asks for over `devices` devices.
///
/// # Errors
/// A sentence that says how many devices the word needs.
pub fn rule_for(word: &str, devices: usize) -> Result<GroupRule, String> {
    let rule = |kind, k: usize, r: usize, m: usize| {
        let too_many = format!("{word} takes at most 64 devices in one group");
        let [k, r, m] = [k, r, m].map(|n| u8::try_from(n).unwrap_or(u8::MAX));
        Layout::new(k, r, m).map(|layout| GroupRule { word: kind, layout }).map_err(|_| too_many)
    };
    let least = |count: usize| {
        if devices < count {
            Err(format!("{word} needs at least {count} devices, {devices} given"))
        } else {
            Ok(())
        }
    };
    match word {
        "single" => {
            if devices != 1 {
                return Err(format!("single takes one device, {devices} given"));
            }
            rule(LayoutKind::Single, 1, 1, 0)
        }
        "mirror" => least(2).and_then(|()| rule(LayoutKind::Mirror, 1, devices, 0)),
        "raidz" | "raidz1" => least(2).and_then(|()| rule(LayoutKind::Raidz, devices - 1, 1, 1)),
        "raidz2" => least(3).and_then(|()| rule(LayoutKind::Raidz, devices - 2, 1, 2)),
        "raidz3" => least(4).and_then(|()| rule(LayoutKind::Raidz, devices - 3, 1, 3)),
        "raid10" => {
            least(4)?;
            if !devices.is_multiple_of(2) {
                return Err(format!("raid10 needs an even number of devices, {devices} given"));
            }
            rule(LayoutKind::Raid10, devices / 2, 2, 0)
        }
        "raid14" => {
            least(5)?;
            if devices.is_multiple_of(2) {
                return Err(format!(
                    "raid14 needs an odd number of devices (pairs and one), {devices} given"
                ));
            }
            rule(LayoutKind::Raid14, (devices - 1) / 2, 2, 1)
        }
        _ => Err(format!("{word} is not a layout: use mirror, raidz1, raidz2, raidz3, raid10 or raid14")),
    }
}

/// Whether a pool or a dataset's last part may have this name.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let reserved = ["mirror", "raidz", "raid10", "raid14", "spare", "log", "cache", "single"];
    check_characters(name)?;
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || name.ends_with(' ') {
        return Err("a name starts with a letter or digit and does not end with a space".into());
    }
    if reserved.iter().any(|word| name.eq_ignore_ascii_case(word)) {
        return Err(format!("{name} is a reserved word"));
    }
    Ok(())
}

/// Checks the name of a snapshot within its dataset: more is allowed, since it stands for no device.
///
/// # Errors
/// The reason.
pub fn check_snapshot_name(name: &str) -> Result<(), String> {
    check_characters(name)?;
    if matches!(name, "." | "..") || name.ends_with(' ') {
        return Err("the name of a snapshot is not . or .., and does not end with a space".into());
    }
    Ok(())
}

fn check_characters(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("a name has 1 to {MAX_NAME} bytes"));
    }
    match name.chars().find(|c| !c.is_ascii_alphanumeric() && !"_-.: ".contains(*c)) {
        Some(bad) => Err(format!("{bad:?} cannot be part of a name: letters, digits, _ - . : and space can")),
        None => Ok(()),
    }
}

/// Where slots start: behind the label area, so that stripes, which follow the descriptor, lie at multiples of
/// 2^`ashift`. No stripe shares a sector with a descriptor then, for the last sector of a slot has room for none.
pub fn data_start(ashift: u8) -> DeviceOffset {
    DeviceOffset::new(LABEL_AREA + (1 << ashift) - u64::from(DESCRIPTOR_LEN))
}

/// Random bytes, of whole words.
pub(crate) fn random<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&entropy.next_u64().to_le_bytes());
    }
    bytes
}

/// Slots on a device of `size` bytes.
pub fn slot_count(size: ByteLen, slot_size: u32, ashift: u8) -> u32 {
    let room = label_areas(size)[1].get().saturating_sub(data_start(ashift).get());
    u32::try_from(room / u64::from(slot_size)).unwrap_or(u32::MAX)
}

/// Slot size for a group whose smallest device has `size` bytes.
pub fn slot_size(size: u64) -> u32 {
    let ideal = (size / SLOTS_PER_DEVICE).max(1);
    let power = 1u64 << ideal.ilog2();
    power.clamp(u64::from(MIN_SLOT), u64::from(MAX_SLOT)) as u32
}

impl Pool {
    /// Makes a pool: writes labels over whatever the devices held, and the first commit.
    ///
    /// # Errors
    /// [`PoolError::Invalid`] for a name or device that cannot be, [`PoolError::Device`] when one fails.
    pub fn create(world: World, spec: PoolSpec) -> Result<Arc<Pool>> {
        check_name(&spec.name).map_err(PoolError::Invalid)?;
        if !(MIN_ASHIFT..=MAX_ASHIFT).contains(&spec.ashift) {
            let text = format!("ashift={}: use {MIN_ASHIFT} to {MAX_ASHIFT}", spec.ashift);
            return Err(PoolError::Invalid(text));
        }
        room_for_devices(spec.groups.iter().map(|group| group.devices.len()).sum(), MAX_DEVICES)?;
        let slot_sizes = spec.slot_sizes()?;
        let guid = PoolGuid::new(world.entropy.next_u64());
        let sums = Sums::new(guid, PoolKey::new(random(&*world.entropy)));
        let incarnation = Incarnation::new(world.entropy.next_u64());
        let created = world.clock.now();
        let mut members = Vec::new();
        let mut groups = BTreeMap::new();
        for (number, (group, slot_size)) in spec.groups.iter().zip(slot_sizes).enumerate() {
            let index = GroupIndex::new(number as u16);
            let mut slots = Vec::new();
            for device in &group.devices {
                let size = device.size();
                if size.get() < MIN_DEVICE {
                    let text = format!("{} has {size:?}, a device has at least 64 MiB", device.name());
                    return Err(PoolError::Invalid(text));
                }
                let label = Label {
                    sequence: 1,
                    pool: guid,
                    name: spec.name.clone(),
                    device: DeviceGuid::new(world.entropy.next_u64()),
                    index: DeviceIndex::new(members.len() as u16),
                    group: index,
                    rule: group.rule,
                    slot_size,
                    slot_count: slot_count(size, slot_size, spec.ashift),
                    data_start: data_start(spec.ashift),
                    device_size: size,
                    created,
                    ashift: spec.ashift,
                    features: Features::default(),
                    key: sums.key(),
                };
                slots.push((label.index, label.slot_count));
                write_label_areas(&**device, &label)?;
                let device = Arc::clone(device);
                members.push(Member::labelled(device, label, MemberState::Online, None, &world.clock));
            }
            let space = GroupSpace::new(index, group.rule, slot_size, spec.ashift, &slots);
            groups.insert(index, space.of_role(group.role));
        }
        let (first, first_block) = (CommitId::new(1), BlockId::new(1));
        let history = vec![RootImport { incarnation, first, first_block, skipped: 0 }];
        let next = (first, first_block, SegmentId::new(1));
        let core = Core::beginning(Groups::new(groups, 0), &history, next, Identity::of(guid));
        let entropy = Arc::clone(&world.entropy);
        let events = Arc::new(EventLog::new(Arc::clone(&world.clock)));
        let store = Store::new(StoreParts {
            sums,
            world,
            read_only: false,
            members: Members::new(members, [], 0),
            core,
            history,
            durable: CommitId::new(0),
            events: Arc::clone(&events) as Arc<dyn EventSink>,
        });
        let root = DatasetRecord {
            id: ROOT_DATASET,
            parent: ROOT_DATASET,
            guid: entropy.next_u64(),
            root: None,
            destroyed: false,
            protected_below: BlockId::new(0),
            referenced: 0,
            logical: 0,
            stored: 0,
            next_inode: 2,
            created,
            birth: 1,
            held: 0,
            origin: None,
            inherited: 0,
            name_salt: random(&*entropy),
            name: spec.name.clone(),
        };
        let (secret, mut tables) = (random(&*entropy), Tree::empty());
        tables.insert(&TableNodes(&store), Table::Secret.key(0), &secret)?;
        let pool = Pool::assemble(Parts {
            name: spec.name,
            created,
            damage: Damage::new(&store),
            intent: IntentLog::new(
                &store,
                Intent { sequence: 1, ..Intent::default() },
                OpSeq::new(0),
                Vec::new(),
            ),
            store,
            events,
            tables,
            contents: Contents { secret, datasets: vec![root], ..Contents::default() },
        })?;
        pool.datasets.read()[&ROOT_DATASET].state.write().changed = true;
        pool.apply_device_timeout();
        pool.beat()?;
        pool.shared.store.event(Event::new(Class::PoolCreate));
        pool.commit()?;
        Ok(pool)
    }
}

/// Clears both label areas, old signatures and old roots included, and writes the label into each.
pub fn write_label_areas(device: &dyn Device, label: &Label) -> Result<()> {
    let failed = |error| PoolError::Device { device: device.name(), error };
    for area in label_areas(device.size()) {
        let mut bytes = AlignedBuf::zeroed(LABEL_AREA as usize);
        let encoded = label.encode();
        bytes[..encoded.len()].copy_from_slice(&encoded);
        device
            .submit(Request::Write { offset: area, data: Arc::new(bytes) })
            .within(TIMEOUT)
            .map_err(failed)?;
        device.submit(Request::Flush).within(TIMEOUT).map_err(failed)?;
    }
    Ok(())
}
