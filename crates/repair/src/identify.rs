//! Which pool devices are of, and which they are in it: by their labels, by what others know of them, and where neither
//! is left by the descriptors in their slots.

use crate::error::{RepairError, Result};
use crate::key;
use crate::read::{Unread, read_all_there_is};
use larder_device::Device;
use larder_format::checksum::{PoolKey, Sums};
use larder_format::label::{
    Features, GroupRule, Label, LayoutKind, MAX_ASHIFT, MIN_ASHIFT, RING_OFFSET, RING_SLOT, RING_SLOTS,
    label_areas,
};
use larder_format::root::{DeviceState, GroupRole, NO_GROUP, Root, RootGroup};
use larder_format::segment::{DESCRIPTOR_LEN, Layout, MAX_SLOT, MIN_SLOT, SegmentRecord, check_descriptor};
use larder_format::{DeviceGuid, DeviceIndex, GroupIndex, PoolGuid, Timestamp};
use larder_pool::create::{data_start, slot_count};
use larder_pool::open::{Scan, scan};
use larder_pool::rebuild::FoundGroup;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Slots that are looked at on a device without a label before it is taken for nobody's.
const PROBES: u64 = 1 << 16;
/// No device has this number.
const NO_DEVICE: DeviceIndex = DeviceIndex::new(u16::MAX);

/// A device of the pool.
#[derive(Clone)]
pub(crate) struct Source {
    /// Its number.
    pub(crate) index: DeviceIndex,
    pub(crate) group: GroupIndex,
    pub(crate) guid: DeviceGuid,
    /// None when nobody brought it.
    pub(crate) device: Option<Arc<dyn Device>>,
    pub(crate) slots: u32,
    /// It has no label any more.
    pub(crate) unlabelled: bool,
}

/// A pool and its devices.
pub(crate) struct Identified {
    pub(crate) name: String,
    pub(crate) created: Timestamp,
    pub(crate) sums: Sums,
    pub(crate) ashift: u8,
    pub(crate) features: Features,
    pub(crate) groups: Vec<FoundGroup>,
    pub(crate) sources: Vec<Source>,
    /// Roots that are intact, the newest first.
    pub(crate) roots: Vec<Root>,
    /// Sentences about devices that are set aside.
    pub(crate) remarks: Vec<String>,
}

/// A device, and its label.
type Labelled = (Arc<dyn Device>, Label);

/// A pool: a label that says what all of its labels say, devices that have theirs, and groups that a commit record
/// tells of where none has.
struct Candidate {
    any: Label,
    labelled: Vec<Labelled>,
    groups: Vec<RootGroup>,
}

/// Candidates by their GUIDs and keys.
type Candidates = BTreeMap<(PoolGuid, PoolKey), Candidate>;

/// Identifies the one pool that these devices are of.
///
/// # Errors
/// When there is none, or several and `wanted`, a name or a GUID in decimal, does not choose.
pub(crate) fn identify(
    devices: &[Arc<dyn Device>],
    wanted: Option<&str>,
    shown: &dyn Fn(u64, u64),
) -> Result<Identified> {
    let mut pools = Candidates::new();
    let (mut nameless, mut remarks) = (Vec::new(), Vec::new());
    for device in devices {
        match scan(device) {
            Scan::Member(found) => {
                let key = (found.label.pool, found.label.key);
                let any = found.label.clone();
                let of = pools.entry(key).or_insert(Candidate { any, labelled: vec![], groups: vec![] });
                if found.label.sequence > of.any.sequence {
                    of.any = found.label.clone();
                }
                of.labelled.push((Arc::clone(device), found.label));
            }
            Scan::Unsupported(newer) => remarks.push(format!("{}: {}", newer.device, newer.why)),
            Scan::NotOurs | Scan::Damaged(_) | Scan::Failed(_) => nameless.push(Arc::clone(device)),
        }
    }
    if pools.is_empty() {
        let unread = Unread::default();
        for (key, record) in key::find(&nameless, &unread, shown) {
            let (any, groups) = (record.label, record.groups);
            remarks.push(format!("no label of '{}' is left: a commit record has the pool's key", any.name));
            pools.insert(key, Candidate { any, labelled: vec![], groups });
        }
    }
    let is_wanted = |(guid, _): &(PoolGuid, PoolKey), of: &Candidate| {
        wanted.is_none_or(|wanted| {
            let mut labels = of.labelled.iter().map(|(_, label)| label).chain([&of.any]);
            guid.get().to_string() == wanted || labels.any(|label| label.name == wanted)
        })
    };
    let told = |((guid, _), of): (&(PoolGuid, PoolKey), &Candidate)| (of.any.name.clone(), guid.get());
    let there: Vec<_> = pools.iter().map(told).collect();
    pools.retain(|key, of| is_wanted(key, of));
    if let (true, false, Some(wanted)) = (pools.is_empty(), there.is_empty(), wanted) {
        return Err(RepairError::OtherPools { wanted: wanted.to_owned(), there });
    }
    if pools.len() > 1 {
        return Err(RepairError::SeveralPools(pools.iter().map(told).collect()));
    }
    let Some(((guid, key), candidate)) = pools.pop_first() else {
        return Err(RepairError::NoPool { looked_at: devices.len() });
    };
    Identified::of(Sums::new(guid, key), candidate, nameless, remarks)
}

impl Identified {
    fn of(
        sums: Sums,
        candidate: Candidate,
        nameless: Vec<Arc<dyn Device>>,
        mut remarks: Vec<String>,
    ) -> Result<Self> {
        let unread = Unread::default();
        let Candidate { any, labelled, groups: recorded } = candidate;
        let mut roots: BTreeMap<_, Root> = BTreeMap::new();
        let mut note = |root: Root| {
            // A copy that went on alone has roots of its own: of two of one commit the later is kept.
            let known = roots.get(&root.commit).is_some_and(|known| known.time.secs >= root.time.secs);
            if !known {
                roots.insert(root.commit, root);
            }
        };
        for (device, label) in &labelled {
            roots_of(device, &sums, Some(label), &unread).into_iter().for_each(&mut note);
        }
        for device in &nameless {
            roots_of(device, &sums, None, &unread).into_iter().for_each(&mut note);
        }
        let roots: Vec<Root> = roots.into_values().rev().collect();
        let mut groups: BTreeMap<GroupIndex, FoundGroup> = BTreeMap::new();
        // A spare is of no group, and holds nothing.
        for (_, label) in labelled.iter().filter(|(_, label)| label.group < NO_GROUP) {
            let role = GroupRole::Data;
            let group = FoundGroup { index: label.group, rule: label.rule, role, slot_size: label.slot_size };
            groups.entry(label.group).or_insert(group);
        }
        // The newest root counts more than a record.
        for of in [Some(&recorded), roots.first().map(|root| &root.groups)].into_iter().flatten() {
            for one in of {
                let (index, rule, role, slot_size) = (one.index, one.rule, one.role, one.slot_size);
                groups.insert(index, FoundGroup { index, rule, role, slot_size });
            }
        }
        let mut sources: BTreeMap<DeviceIndex, Source> = BTreeMap::new();
        let told = roots.first().map_or(&[][..], |root| &root.devices);
        for (device, label) in labelled {
            let known = told.iter().find(|known| known.index == label.index);
            let is_other = known.is_some_and(|known| known.guid != label.device);
            if is_other || known.is_none() && !told.is_empty() {
                remarks.push(format!("{}: set aside, it was taken out of the pool", device.name()));
                continue;
            }
            if known.is_some_and(|known| matches!(known.state, DeviceState::Spare)) {
                continue;
            }
            if label.index == NO_DEVICE || known.is_none() && label.group == NO_GROUP {
                remarks.push(format!("{}: set aside, it has no place in the pool", device.name()));
                continue;
            }
            let source = Source {
                index: label.index,
                // Import goes by the root, too.
                group: known.map_or(label.group, |known| known.group),
                guid: label.device,
                slots: label.slot_count,
                device: Some(Arc::clone(&device)),
                unlabelled: false,
            };
            if let Some(other) = sources.get(&label.index) {
                let other = other.device.as_ref().map_or_else(String::new, |other| other.name());
                remarks.push(format!("{}: set aside, {other} has the same label", device.name()));
                continue;
            }
            sources.insert(label.index, source);
        }
        for device in nameless {
            let of = place_of(&device, &sums, &groups, &unread);
            let is_free = |of: &Place| of.index < NO_DEVICE && !sources.contains_key(&of.index);
            let Some(Place { index, group }) = of.filter(is_free) else {
                remarks.push(format!("{}: nothing of this pool was found on it", device.name()));
                continue;
            };
            groups.entry(group.index).or_insert(group);
            let (slots, group) = (slot_count(device.size(), group.slot_size, any.ashift), group.index);
            let guid = told.iter().find(|known| known.index == index).map(|known| known.guid);
            let guid = guid.unwrap_or(DeviceGuid::new(1 + u64::from(index.get())));
            remarks.push(format!(
                "{}: its label is lost; by its segments it is device {}",
                device.name(),
                index.get()
            ));
            sources
                .insert(index, Source { index, group, guid, slots, device: Some(device), unlabelled: true });
        }
        for known in told.iter().filter(|known| groups.contains_key(&known.group)) {
            sources.entry(known.index).or_insert(Source {
                index: known.index,
                group: known.group,
                guid: known.guid,
                device: None,
                slots: known.slot_count,
                unlabelled: false,
            });
        }
        let used: BTreeSet<_> = sources.values().map(|source| source.group).collect();
        groups.retain(|index, _| used.contains(index));
        Ok(Self {
            name: any.name.clone(),
            created: any.created,
            sums,
            ashift: any.ashift,
            features: roots.first().map_or(any.features, |root| root.features),
            groups: groups.into_values().collect(),
            sources: sources.into_values().collect(),
            roots,
            remarks,
        })
    }

    /// Notes devices that segments lie on and nobody brought.
    pub(crate) fn note_missing<'s>(&mut self, segments: impl Iterator<Item = &'s SegmentRecord>) {
        let mut known: BTreeSet<_> = self.sources.iter().map(|source| source.index).collect();
        for segment in segments {
            for slot in segment.slots.iter().filter(|slot| known.insert(slot.device)) {
                let (index, group) = (slot.device, segment.group);
                let guid = DeviceGuid::new(1 + u64::from(index.get()));
                self.sources.push(Source { index, group, guid, device: None, slots: 0, unlabelled: false });
            }
        }
        self.sources.sort_by_key(|source| source.index);
    }

    /// A group by its number.
    pub(crate) fn group(&self, index: GroupIndex) -> Option<&FoundGroup> {
        self.groups.iter().find(|group| group.index == index)
    }
}

/// All intact roots on a device.
fn roots_of(device: &Arc<dyn Device>, sums: &Sums, label: Option<&Label>, unread: &Unread) -> Vec<Root> {
    let mut areas: BTreeSet<u64> = label_areas(device.size()).map(|area| area.get()).into();
    if let Some(label) = label {
        areas.extend(label_areas(label.device_size).map(|area| area.get()));
    }
    let places = areas.into_iter().flat_map(|area| {
        (0..RING_SLOTS).map(move |place| area + u64::from(RING_OFFSET as u32) + place * RING_SLOT as u64)
    });
    let roots = places.filter_map(|at| {
        let bytes = read_all_there_is(device, at, RING_SLOT, unread);
        Root::check(sums, &bytes).ok()
    });
    roots.collect()
}

/// Place of a device without a label in the pool, by its descriptors.
struct Place {
    index: DeviceIndex,
    group: FoundGroup,
}

/// The place of a device that has no label: each descriptor says which slot of which device it is in, and of which size
/// slots are that lie so far apart.
fn place_of(
    device: &Arc<dyn Device>,
    sums: &Sums,
    groups: &BTreeMap<GroupIndex, FoundGroup>,
    unread: &Unread,
) -> Option<Place> {
    for ashift in MIN_ASHIFT..=MAX_ASHIFT {
        let start = data_start(ashift).get();
        let slots = device.size().get().saturating_sub(start) / u64::from(MIN_SLOT);
        for slot in 0..slots.min(PROBES) {
            let at = start + slot * u64::from(MIN_SLOT);
            let bytes = read_all_there_is(device, at, DESCRIPTOR_LEN as usize, unread);
            let Ok((record, column)) = check_descriptor(sums, &bytes) else { continue };
            if record.group == NO_GROUP {
                continue;
            }
            let own = record.slots[column];
            let is_here = |size: u32| start + u64::from(own.index.get()) * u64::from(size) == at;
            let group = match groups.get(&record.group) {
                Some(group) => *group,
                None => {
                    let distance = (at - start).checked_div(own.index.get().into());
                    let slot_size = distance.and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
                    let is_size = slot_size.is_power_of_two() && (MIN_SLOT..=MAX_SLOT).contains(&slot_size);
                    if !is_size {
                        continue;
                    }
                    let rule = rule_of(record.layout);
                    FoundGroup { index: record.group, rule, role: GroupRole::Data, slot_size }
                }
            };
            if is_here(group.slot_size) {
                return Some(Place { index: own.device, group });
            }
        }
    }
    None
}

/// A rule under which there is such a layout: nothing is stored by it any more.
fn rule_of(layout: Layout) -> GroupRule {
    let word = match (layout.k(), layout.r(), layout.m()) {
        (1, 1, 0) => LayoutKind::Single,
        (1, _, 0) => LayoutKind::Mirror,
        (_, _, 0) => LayoutKind::Raid10,
        (_, 1, _) => LayoutKind::Raidz,
        _ => LayoutKind::Raid14,
    };
    GroupRule { word, layout }
}
