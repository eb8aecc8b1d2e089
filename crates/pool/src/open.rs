//! From devices to pools that can be imported: [`crate::import`] does it.
//!
//! Every device tells its label and the newest root that it holds. The newest root of all is the
//! pool's state; what it says of the devices, and what they say of themselves, tells which are
//! current, stale, copies, strangers or missing. A device that the root calls current must hold the
//! root or the one before it, since its predecessor was flushed to it before; if not, it is an old
//! image. Devices whose histories do not contain each other were written apart: import refuses.

use crate::create::rule_for;
use larder_device::{ALIGN, AlignedBuf, Device, DeviceError, Request, TIMEOUT};
use larder_format::checksum::{PoolKey, Sums};
use larder_format::label::{
    FORMAT_VERSION, Features, HEARTBEAT_OFFSET, Heartbeat, LABEL_AREA, Label, LabelHead, RING_OFFSET,
    RING_SLOT, RING_SLOTS, label_areas,
};
use larder_format::root::{DeviceState, MAX_HISTORY, NO_GROUP, Root, RootDevice, RootHead, RootImport};
use larder_format::{
    ByteLen, CommitId, Corrupt, DeviceIndex, DeviceOffset, Incarnation, PoolGuid, Reason, is_zero,
};
use larder_mutants::{Mutant, mutated};
use larder_store::Refusal;
use larder_store::roles::is_vital;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device with a pool's label.
#[derive(Clone)]
pub struct Found {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The newer of its intact labels.
    pub label: Label,
    /// The newest root on it; none when no copy is intact.
    pub root: Option<Root>,
    /// Heartbeat of the last importer.
    pub heartbeat: Option<Heartbeat>,
    /// Contents of each place of the ring of roots, in the first and second label area.
    pub ring: Vec<[RingPlace; 2]>,
}

/// Contents of a place in the ring of roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingPlace {
    /// Nothing was ever written here.
    Blank,
    /// An intact root.
    Root(CommitId),
    /// Something else: a torn write, or rot.
    Damaged,
    /// Its area cannot be read.
    Unread,
}

impl RingPlace {
    /// Contents of the place with these bytes.
    pub fn of(sums: &Sums, bytes: &[u8]) -> Self {
        match Root::check(sums, bytes) {
            Ok(root) => Self::Root(root.commit),
            Err(_) if is_zero(bytes) => Self::Blank,
            Err(_) => Self::Damaged,
        }
    }
}

impl Found {
    /// Whether the root of `commit`, of which no copy is intact, was durable here. A root is written to
    /// the second area only after it was durable in the first, so a power cut damages at most one of its
    /// places, and leaves the other as it was a round of the ring before. `None` when that cannot be told.
    fn held(&self, commit: CommitId) -> Option<bool> {
        match self.ring[(commit.get() % RING_SLOTS) as usize] {
            [RingPlace::Damaged, RingPlace::Damaged] => Some(true),
            [RingPlace::Blank | RingPlace::Root(_), _] => Some(false),
            _ => None,
        }
    }

    /// Whether the only copy of the root of `commit` may be where this device cannot be read. A power cut may leave
    /// such a place as well, of a root that nobody was told of: then nothing is lost. Not looked for: a first place
    /// that refused the root and can be read, beside a second that cannot.
    fn may_hide(&self, commit: CommitId) -> bool {
        let places = self.ring[(commit.get() % RING_SLOTS) as usize];
        matches!(places, [RingPlace::Unread, _] | [RingPlace::Damaged, RingPlace::Unread])
            && !places.contains(&RingPlace::Root(commit))
    }

    /// Which label areas lack the root of `commit`.
    pub(crate) fn lacks(&self, commit: CommitId) -> [bool; 2] {
        self.ring[(commit.get() % RING_SLOTS) as usize].map(|place| place != RingPlace::Root(commit))
    }
}

/// Result of probing a device.
pub enum Scan {
    /// A pool's.
    Member(Box<Found>),
    /// Not a pool's; whether somebody else's is [`crate::foreign`]'s matter.
    NotOurs,
    /// It has our magic number, but no intact label.
    Damaged(Corrupt),
    /// Its label, or its newest root, is intact and of a format that this build does not know.
    Unsupported(Unsupported),
    /// It cannot be read.
    Failed(larder_device::DeviceError),
}

/// A device that a newer build wrote. It may hold what the pool's other devices lack, so nothing is written to those
/// either: see [`Importable::heed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// The pool.
    pub pool: PoolGuid,
    /// Name of the device for people.
    pub device: String,
    /// The feature that this build does not know: "its pool …".
    pub why: String,
}

/// Bytes of a label area that are read at once where it cannot be read whole.
const PIECE: usize = RING_SLOT;
/// Pieces that fail before the others are left alone: each may take a dying disk seconds.
const VAIN: usize = 3;

/// A label area, as far as it can be read.
struct LabelArea {
    /// With zeros for sectors that cannot be read.
    bytes: AlignedBuf,
    /// Offsets of these.
    unread: Vec<usize>,
    /// Error of the last of them.
    failed: Option<DeviceError>,
}

impl LabelArea {
    /// Reads it at once, or, where a sector fails, sector by sector: the others may have label and roots.
    ///
    /// # Errors
    /// When the device gives none of it.
    fn read(device: &Arc<dyn Device>, at: DeviceOffset) -> Result<Self, DeviceError> {
        let read = |from: usize, len: usize| {
            let (offset, len) = (DeviceOffset::new(at.get() + from as u64), ByteLen::new(len as u64));
            // One that hangs must not hold up whoever lets go of it, either.
            device.submit(Request::Read { offset, len }).within(TIMEOUT).inspect_err(|error| {
                if *error == DeviceError::Overdue {
                    device.abandon();
                }
            })
        };
        let whole = LABEL_AREA as usize;
        let failed = match read(0, whole) {
            Ok(bytes) => return Ok(Self { bytes, unread: Vec::new(), failed: None }),
            Err(error @ DeviceError::Io { .. }) => error,
            Err(error) => return Err(error),
        };
        let mut area =
            Self { bytes: AlignedBuf::zeroed(whole), unread: Vec::new(), failed: Some(failed.clone()) };
        for start in (0..whole).step_by(PIECE) {
            match read(start, PIECE) {
                Ok(bytes) => area.bytes[start..start + PIECE].copy_from_slice(&bytes),
                Err(DeviceError::Io { .. }) => area.unread.extend((start..start + PIECE).step_by(ALIGN)),
                Err(error) => return Err(error),
            }
            if start == (VAIN - 1) * PIECE && area.unread.len() == VAIN * PIECE / ALIGN {
                return Err(failed);
            }
        }
        let retried = std::mem::take(&mut area.unread);
        for start in retried {
            match read(start, ALIGN) {
                Ok(bytes) => area.bytes[start..start + ALIGN].copy_from_slice(&bytes),
                Err(DeviceError::Io { .. }) => area.unread.push(start),
                Err(error) => return Err(error),
            }
        }
        Ok(area)
    }

    /// Whether some of a range could not be read.
    fn lacks(&self, range: std::ops::Range<usize>) -> bool {
        self.unread.iter().any(|at| range.contains(at))
    }
}

/// Bytes of a place of the ring in a label area.
fn ring_place(place: usize) -> std::ops::Range<usize> {
    let start = RING_OFFSET as usize + place * RING_SLOT;
    start..start + RING_SLOT
}

/// Looks at a device.
pub fn scan(device: &Arc<dyn Device>) -> Scan {
    let size = device.size();
    if size.get() < 2 * LABEL_AREA {
        return Scan::NotOurs;
    }
    let mut label: Option<Label> = None;
    let mut damage = None;
    let mut failure = None;
    let mut areas = label_areas(size).map(|area| match LabelArea::read(device, area) {
        Ok(area) => {
            failure = area.failed.clone().or(failure.take());
            Some(area)
        }
        Err(error) => {
            failure = Some(error);
            None
        }
    });
    for (number, LabelArea { bytes, .. }) in
        areas.iter().enumerate().filter_map(|(i, of)| Some((i, of.as_ref()?)))
    {
        match Label::check(bytes) {
            // Space by which a device has grown may have been another's, label and all.
            Ok(found) if label_areas(found.device_size)[number] != label_areas(size)[number] => {}
            Ok(found) if label.as_ref().is_some_and(|first| !is_same_device(first, &found)) => {}
            Err(Corrupt { reason: Reason::Version | Reason::Feature, .. }) if label.is_some() => {}
            Ok(found) if label.as_ref().is_none_or(|label| label.sequence < found.sequence) => {
                label = Some(found)
            }
            Ok(_) => {}
            Err(Corrupt { reason: Reason::Version | Reason::Feature, .. }) => {
                let Some(head) = LabelHead::get(bytes) else { return Scan::NotOurs };
                let why = unknown(head.version, head.features);
                return Scan::Unsupported(Unsupported { pool: head.pool, device: device.name(), why });
            }
            Err(corrupt) if corrupt.reason != Reason::Magic => damage = Some(corrupt),
            Err(_) => {}
        }
    }
    let Some(label) = label else {
        return match (damage, failure) {
            (Some(damage), _) => Scan::Damaged(damage),
            (None, Some(error)) => Scan::Failed(error),
            (None, None) => Scan::NotOurs,
        };
    };
    let sums = Sums::new(label.pool, label.key);
    // A device that grew has its second area where it ended when it was labelled.
    if label.device_size < size {
        areas[1] = LabelArea::read(device, label_areas(label.device_size)[1]).ok();
    }
    let ring = (0..RING_SLOTS as usize).map(|i| {
        areas.each_ref().map(|area| match area {
            Some(area) => match RingPlace::of(&sums, &area.bytes[ring_place(i)]) {
                RingPlace::Blank | RingPlace::Damaged if area.lacks(ring_place(i)) => RingPlace::Unread,
                place => place,
            },
            None => RingPlace::Unread,
        })
    });
    let ring = ring.collect();
    let places = areas.iter().flatten().flat_map(|area| {
        (0..RING_SLOTS as usize).map(|i| {
            let bytes = &area.bytes[ring_place(i)];
            (bytes, Root::check(&sums, bytes))
        })
    });
    let (mut roots, mut strange) = (Vec::new(), None);
    for (bytes, root) in places {
        match root {
            Ok(root) => roots.push(root),
            Err(Corrupt { reason: Reason::Version | Reason::Feature, .. }) => {
                strange = RootHead::get(bytes).into_iter().chain(strange).max_by_key(|head| head.commit);
            }
            Err(_) => {}
        }
    }
    if let Some(head) = strange.filter(|head| roots.iter().all(|root| root.commit < head.commit)) {
        let why = unknown(head.version, head.features);
        return Scan::Unsupported(Unsupported { pool: label.pool, device: device.name(), why });
    }
    let roots = roots.into_iter();
    let root = if mutated(Mutant::StaleRoot) {
        roots.min_by_key(|root| root.commit)
    } else {
        roots.max_by_key(|root| root.commit)
    };
    // Beats go to the first area only; one of a pool that the device was part of before is none.
    let beat =
        areas[0].as_ref().and_then(|area| Heartbeat::check(&area.bytes[HEARTBEAT_OFFSET as usize..]).ok());
    let heartbeat = beat.filter(|beat| beat.pool == label.pool);
    Scan::Member(Box::new(Found { device: Arc::clone(device), label, root, heartbeat, ring }))
}

/// Whether two labels are of one device of one pool.
fn is_same_device(one: &Label, other: &Label) -> bool {
    (one.pool, one.key, one.device) == (other.pool, other.key, other.device)
}

/// Why an intact label or root is refused.
fn unknown(version: u32, features: Features) -> String {
    match features.unknown() {
        _ if version != FORMAT_VERSION => {
            format!("its pool has format version {version}, this build reads version {FORMAT_VERSION}")
        }
        0 => "its pool uses something that this build does not have".to_owned(),
        bits => format!("its pool uses features (bits {bits:#x}) that this build does not have"),
    }
}

/// Role of a device in the pool that its label names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It holds everything.
    Current,
    /// It gets every write, and what it lacks; it does not count yet.
    Rebuilding,
    /// It gets every write, and has what could be had of the device that it stands for.
    Waiting,
    /// It missed commits: the last it holds is told.
    Stale(CommitId),
    /// It was taken out of use, and missed commits since: the last it holds is told.
    Offline(CommitId),
    /// It holds nothing and waits to be needed.
    Spare,
    /// It has copies of blocks, which nothing rests on.
    Cache,
    /// No device was found for it.
    Missing,
}

/// A device in the plan of an import.
#[derive(Clone)]
pub struct Candidate {
    /// Its number.
    pub index: DeviceIndex,
    /// The device, when one was found.
    pub found: Option<Found>,
    /// Its role in the pool.
    pub standing: Standing,
}

/// A pool that could be imported.
pub struct Importable {
    /// The GUID that it is known by.
    pub guid: PoolGuid,
    /// Key of its checksums.
    pub key: PoolKey,
    /// Its name.
    pub name: String,
    /// Its newest root.
    pub root: Root,
    /// All of its devices, as the root has them.
    pub devices: Vec<Candidate>,
    /// Whether the devices that are there suffice.
    pub complete: bool,
    /// Sentences about devices that are set aside, or that stand in the way.
    pub remarks: Vec<String>,
    /// Why it cannot be imported as it is.
    pub refusal: Option<Refusal>,
    /// Why it can be imported for reading only.
    pub only_reading: Option<Refusal>,
    /// The host that has, or had, it imported; none after an export.
    pub held_by: Option<Heartbeat>,
}

/// Sorts devices into pools. A pool is known by its GUID and its key: a GUID is shown to everybody, so whoever can
/// offer a device, or a file that is looked at as one, could else write a newer root of somebody's pool on it.
pub fn assemble(found: Vec<Found>) -> Vec<Importable> {
    let mut pools: BTreeMap<(PoolGuid, PoolKey), Vec<Found>> = BTreeMap::new();
    for device in found {
        pools.entry((device.label.pool, device.label.key)).or_default().push(device);
    }
    let apart = pools.into_values().flat_map(by_identity);
    let mut all: Vec<Importable> = apart.filter_map(importable).collect();
    for i in 0..all.len() {
        if all.iter().filter(|other| other.guid == all[i].guid).count() > 1 {
            all[i].refusal = Some(Refusal::TwoPools(all[i].guid));
        }
    }
    all
}

/// Pools that were one until part of it, or a copy, got another GUID ([`larder_format::root::Identity`]). A device that
/// only missed the change belongs to those that have it.
fn by_identity(found: Vec<Found>) -> Vec<Vec<Found>> {
    let mut pools: BTreeMap<PoolGuid, Vec<Found>> = BTreeMap::new();
    let (rooted, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.root.is_some());
    for device in rooted {
        let known_as = device.root.as_ref().map(|root| root.identity.guid).expect("it was asked for");
        pools.entry(known_as).or_default().push(device);
    }
    let all: Vec<PoolGuid> = pools.keys().copied().collect();
    for now in all {
        let Some(root) = pools.get(&now).and_then(|found| newest(found)).cloned() else { continue };
        let former = root.identity.former;
        let missed_it = |found: &Found| {
            let known = root.devices.iter().find(|known| known.guid == found.label.device);
            let held = found.root.as_ref();
            // One that is older than the root says is a copy.
            let missed_little = |known: &RootDevice, held: &Root| held.commit.next() >= known.good_through;
            known.zip(held).is_some_and(|(known, held)| {
                missed_little(known, held) && !is_branch(&root.history, known, held)
            })
        };
        let is_also_there =
            |found: &Found| pools[&now].iter().any(|other| other.label.device == found.label.device);
        let older = pools.get(&former).filter(|_| former != now);
        if older.is_some_and(|older| older.iter().all(|found| missed_it(found) && !is_also_there(found))) {
            let older = pools.remove(&former).unwrap_or_default();
            pools.entry(now).or_default().extend(older);
        }
    }
    // One that just joined has no root, and neither have spares and caches: of those it is not known whose they are
    // where several pools have them.
    let mut pools: Vec<_> = pools.into_values().collect();
    let roots: Vec<Option<Root>> = pools.iter().map(|pool| newest(pool).cloned()).collect();
    for device in others {
        let is_its = |root: &Root| {
            root.devices.iter().any(|known| known.guid == device.label.device && !known.leaving)
        };
        let mut its = (0..roots.len()).filter(|&at| roots[at].as_ref().is_some_and(is_its));
        match (its.next(), its.next()) {
            (Some(_), Some(_)) => {}
            (at, _) if !pools.is_empty() => pools[at.unwrap_or(0)].push(device),
            _ => pools.push(vec![device]),
        }
    }
    pools
}

fn importable(found: Vec<Found>) -> Option<Importable> {
    let commit_of = |found: &Found| found.root.as_ref().map_or(CommitId::new(0), |root| root.commit);
    let root = newest(&found)?.clone();
    let (guid, key) = (root.identity.guid, found.first()?.label.key);
    let is_log = |known: &RootDevice| {
        let group = root.groups.iter().find(|group| group.index == known.group);
        group.is_some_and(|group| !is_vital(group.role))
    };
    let is_vital_device = |found: &&Found| {
        let known = root.devices.iter().find(|known| known.guid == found.label.device);
        known.is_some_and(|known| !is_log(known))
    };
    let name = found.iter().filter(is_vital_device).max_by_key(|found| found.label.sequence);
    let name = name.or(found.first())?.label.name.clone();
    let mut remarks = Vec::new();
    let mut refusal = None;
    let mut apart = Vec::new();

    let mut by_index: BTreeMap<DeviceIndex, Found> = BTreeMap::new();
    for device in found {
        let path = device.device.name();
        // A device that takes another's place gets its number, first in the root and then in its label.
        let Some(known) = root.devices.iter().find(|known| known.guid == device.label.device) else {
            remarks.push(format!(
                "{path} carries this pool's label, but the pool does not know it (it was replaced)"
            ));
            continue;
        };
        let group = root.groups.iter().find(|group| group.index == known.group);
        if group.is_some_and(|group| group.slot_size != device.label.slot_size) {
            remarks.push(format!("{path} has a label that says otherwise of its group than the pool does"));
            continue;
        }
        if device.device.size() < device.label.device_size {
            remarks.push(format!(
                "{path} was cut short: it had {} bytes and has {}; what it held beyond is not read from it",
                device.label.device_size.get(),
                device.device.size().get()
            ));
            continue;
        }
        let group = root.groups.iter().find(|group| group.index == known.group);
        if let Some(text) = group.and_then(|of| lacks_slots(&device.label, of.slot_size, known.slot_count)) {
            remarks.push(format!("{path} {text}; it is not used"));
            continue;
        }
        let holds_roots = !known.is_cache;
        if let Some(branch) =
            device.root.as_ref().filter(|held| holds_roots && is_branch(&root.history, known, held))
        {
            let since = branch.history.first().map_or(branch.commit, |import| import.first);
            if is_log(known) {
                remarks.push(format!(
                    "{path}, of the log, was written apart from the pool: it holds nothing of it"
                ));
                apart.push(path.clone());
            } else {
                refusal = Some(Refusal::WrittenApart { device: path, since });
            }
        }
        match by_index.remove(&known.index) {
            None => {
                by_index.insert(known.index, device);
            }
            Some(other) => {
                let (a, b) = (commit_of(&device), commit_of(&other));
                let (newer, older) = if a > b { (device, other) } else { (other, device) };
                let (new, old) = (newer.device.name(), older.device.name());
                if a == b && !known.is_cache {
                    refusal = Some(Refusal::Copies { one: new, other: old, guid: newer.label.device });
                } else {
                    remarks.push(format!("{old} is an older copy of {new} and is not used"));
                }
                by_index.insert(known.index, newer);
            }
        }
    }
    let devices: Vec<Candidate> = root
        .devices
        .iter()
        .map(|known| {
            let found = by_index.remove(&known.index);
            let through = |device: &Found| {
                let held = device.root.as_ref().map(|held| holds(&root.history, held).0);
                held.unwrap_or(CommitId::new(0)).min(known.good_through)
            };
            // A device that joined at a boundary holds nothing from before, nor a root, until the one that names it.
            let held = |device: &Found| device.root.as_ref().map_or(known.since, |root| root.commit);
            let is_apart = |device: &Found| apart.contains(&device.device.name());
            let strayed = |held: &Root| holds(&root.history, held).0 < held.commit;
            let missed_none = |device: &Found| {
                held(device).get() + 1 >= root.commit.get() && !device.root.as_ref().is_some_and(strayed)
            };
            let standing = match (&found, known.state) {
                // Nobody is to bring it back unasked.
                (None, DeviceState::Offline) => Standing::Offline(known.good_through),
                (None, _) => Standing::Missing,
                (Some(device), DeviceState::Offline) if is_apart(device) => {
                    Standing::Offline(CommitId::new(0))
                }
                (Some(device), _) if is_apart(device) => Standing::Stale(CommitId::new(0)),
                (Some(_), DeviceState::Spare) if known.is_cache => Standing::Cache,
                (Some(_), DeviceState::Spare) => Standing::Spare,
                (Some(device), DeviceState::Offline) => Standing::Offline(through(device)),
                (Some(device), DeviceState::Current) if missed_none(device) => Standing::Current,
                (Some(device), DeviceState::Rebuilding) if missed_none(device) => Standing::Rebuilding,
                (Some(device), DeviceState::Waiting) if missed_none(device) => Standing::Waiting,
                (Some(device), _) => {
                    let through = through(device);
                    remarks.push(format!(
                        "{} is out of date: it holds all up to commit {through}, the pool is at {}",
                        device.device.name(),
                        root.commit
                    ));
                    Standing::Stale(through)
                }
            };
            Candidate { index: known.index, found, standing }
        })
        .collect();
    let complete = suffice(&root, &devices);
    let mut only_reading = None;
    // The log's may have missed a root at no cost.
    let current = || {
        let all = root.devices.iter().zip(&devices).filter(|(known, _)| !is_log(known));
        all.map(|(_, device)| device).filter(|device| device.standing == Standing::Current)
    };
    let found = || current().filter_map(|device| device.found.as_ref());
    let next = root.commit.next();
    let votes: Vec<bool> = found().filter_map(|found| found.held(next)).collect();
    if !votes.is_empty() && votes.iter().all(|held| *held) {
        only_reading = Some(Refusal::RootDamaged { before: root.commit });
    }
    // A pool that was exported and not imported since has no newer root.
    let is_last = |beat: &Heartbeat| root.exported && beat.incarnation == root.incarnation;
    let hiding: Vec<_> = found()
        .filter(|found| found.may_hide(next) && !found.heartbeat.as_ref().is_some_and(is_last))
        .map(|found| found.device.name())
        .collect();
    if !hiding.is_empty() {
        remarks.push(format!(
            "where {} would have the root of commit {next} cannot be read: if that commit was complete when the pool was \
             last used, what came after commit {} is lost",
            hiding.join(", "),
            root.commit
        ));
    }
    let unknown = found().map(|found| found.label.features.read_compatible);
    let unknown = unknown.fold(root.features.read_compatible, |bits, more| bits | more);
    if unknown != 0 {
        only_reading = Some(Refusal::OnlyReading(unknown));
    }
    remarks.extend(only_reading.as_ref().map(Refusal::to_string));
    let held_by = (!root.exported).then(|| holder(&root, &devices));
    Some(Importable { guid, key, name, root, devices, complete, remarks, refusal, only_reading, held_by })
}

/// Why a device cannot be what the pool knows of it: it was not labelled for as many slots. Its label was held
/// against its size.
pub fn lacks_slots(label: &Label, slot_size: u32, slots: u32) -> Option<String> {
    let room = u64::from(label.slot_count) * u64::from(label.slot_size) / u64::from(slot_size);
    (room < u64::from(slots))
        .then(|| format!("has room for {room} slots, and the pool says that it has {slots} slots"))
}

/// Whether every group but the log's can do without the devices that are not there, or not current.
fn suffice(root: &Root, devices: &[Candidate]) -> bool {
    root.groups.iter().filter(|group| is_vital(group.role)).all(|group| {
        let members: Vec<_> = root
            .devices
            .iter()
            .zip(devices)
            .filter(|(known, _)| known.group == group.index && known.stands_for.is_none() && !known.leaving)
            .map(|(_, candidate)| candidate)
            .collect();
        members.len() >= group.rule.layout.columns()
            && group.rule.layout.survives(|column| members[column].standing != Standing::Current)
    })
}

impl Importable {
    /// A pool of its own, of half of its mirrors, known by `guid`: the devices that are not there stay with the other
    /// half.
    pub fn split_off(&mut self, guid: PoolGuid) {
        self.root.identity = self.root.identity.changed(guid);
        self.root.features.incompatible |= Features::IDENTITY;
        self.guid = guid;
        let all = std::mem::take(&mut self.root.devices).into_iter().zip(std::mem::take(&mut self.devices));
        // Spares and caches stay with the other half.
        let has_place =
            |(known, device): &(RootDevice, Candidate)| device.found.is_some() || known.group != NO_GROUP;
        for (mut known, mut device) in all.filter(has_place) {
            if device.found.is_none() {
                // Nobody is to bring it back unasked.
                (known.leaving, known.state) = (true, DeviceState::Offline);
                device.standing = Standing::Offline(known.good_through);
            }
            self.root.devices.push(known);
            self.devices.push(device);
        }
        for group in &mut self.root.groups {
            let stays = |known: &&RootDevice| {
                known.group == group.index && !known.leaving && known.stands_for.is_none()
            };
            let count = self.root.devices.iter().filter(stays).count();
            if let Ok(rule) = rule_for(if count == 1 { "single" } else { "mirror" }, count) {
                group.rule = rule;
            }
        }
    }
}

/// The current importer: the heartbeat of the root's own import, else of its host at an earlier one. Beats
/// start anew with each import and devices that were away keep old ones, so their number says nothing.
fn holder(root: &Root, devices: &[Candidate]) -> Heartbeat {
    let beats = || devices.iter().filter_map(|device| device.found.as_ref()?.heartbeat.as_ref());
    let own = beats().filter(|beat| beat.incarnation == root.incarnation).max_by_key(|beat| beat.beats);
    own.or_else(|| beats().find(|beat| beat.host == root.host)).cloned().unwrap_or_else(|| Heartbeat {
        pool: root.pool,
        host: root.host,
        host_name: format!("with id {}", root.host),
        incarnation: root.incarnation,
        beats: 0,
    })
}

/// The newest of roots; of two of one commit, the one that a device has which is not of the log: a root that devices of
/// the log alone have was told to nobody. Then the one that is more than the first of an import, which repeats the
/// state before it.
fn newest(found: &[Found]) -> Option<&Root> {
    let repeats = |root: &Root| root.history.first().is_some_and(|import| import.first == root.commit);
    let is_vital_there = |found: &Found, root: &Root| {
        let known = root.devices.iter().find(|known| known.guid == found.label.device);
        let group = known.and_then(|known| root.groups.iter().find(|group| group.index == known.group));
        group.is_none_or(|group| is_vital(group.role))
    };
    let roots = found.iter().filter_map(|found| Some((found, found.root.as_ref()?)));
    let best = roots.max_by_key(|(found, root)| (root.commit, is_vital_there(found, root), !repeats(root)));
    best.map(|(_, root)| root)
}

/// The last commit of the pool with this history that a device whose newest root is `held` holds, and the import that
/// wrote it. Where that root is the first of an import that is none of the pool's, it is the one before: what that
/// import wrote, and never committed, may lie where the pool stored the next commit.
pub fn holds(history: &[RootImport], held: &Root) -> (CommitId, Incarnation) {
    let is_ours = history.iter().any(|import| import.incarnation == held.incarnation);
    match &held.history[..] {
        [import, before, ..] if !is_ours && import.first == held.commit => {
            (CommitId::new(held.commit.get() - 1), before.incarnation)
        }
        _ => (held.commit, held.incarnation),
    }
}

/// Whether device `known`, whose newest root is `held`, was written apart from the pool with this history, newest
/// import first.
pub fn is_branch(history: &[RootImport], known: &RootDevice, held: &Root) -> bool {
    // Where the history does not reach back so far, the last commit that the pool itself wrote to it decides. One that
    // was being rebuilt got every root.
    let joined = known.since <= known.good_through;
    !contains(history, joined.then_some((known.good_through, known.incarnation)), held)
}

/// Whether a history contains the state that `other` names; of states older than the history those count that are
/// no newer than `last`, a commit and the import that wrote it, and were written by that, or all.
fn contains(history: &[RootImport], last: Option<(CommitId, Incarnation)>, other: &Root) -> bool {
    // An import's first root repeats the one before it, and no log follows it: when a cut left only that
    // of an import on a device, the device holds nothing of its own.
    let first = |import: &RootImport| import.incarnation == other.incarnation && import.first == other.commit;
    let (mine, through) = match &other.history[..] {
        [import, before, ..] if first(import) => (before.incarnation, other.commit.get() - 1),
        _ => (other.incarnation, other.commit.get()),
    };
    let Some(at) = history.iter().position(|import| [mine, other.incarnation].contains(&import.incarnation))
    else {
        return history.len() == MAX_HISTORY
            && history.last().is_some_and(|oldest| other.commit < oldest.first)
            && last.is_none_or(|(commit, import)| {
                [mine, other.incarnation].contains(&import) && through <= commit.get()
            });
    };
    // The import that came after took over at its first commit; what was written later is a branch.
    at.checked_sub(1).is_none_or(|next| through < history[next].first.get())
}

impl Importable {
    /// Allows reading only where a device of the pool was found that this build cannot use: the pool may have been
    /// written with it since, and what was written here would be a branch.
    pub fn heed(&mut self, found: &[Unsupported]) {
        for other in found.iter().filter(|other| other.pool == self.root.pool) {
            let refusal = Refusal::NewerDevice { device: other.device.clone(), why: other.why.to_string() };
            self.remarks.push(refusal.to_string());
            self.only_reading = Some(refusal);
        }
    }

    /// Which devices wait to take the place of others that are not there, or not current: both numbers.
    pub fn bereft(&self) -> Vec<(DeviceIndex, DeviceIndex)> {
        let all = || self.root.devices.iter().zip(&self.devices);
        let current =
            |index| all().any(|(known, it)| known.index == index && it.standing == Standing::Current);
        let waiting = all().filter(|(_, it)| it.standing == Standing::Waiting);
        let bereft = waiting.filter_map(|(known, _)| Some((known.index, known.stands_for?)));
        bereft.filter(|(_, old)| !current(*old)).collect()
    }

    /// Has those devices take these places, for an import that could not be without: what could not be had of the
    /// devices that they stand for is lost.
    pub fn accept_loss(&mut self) {
        let writer = self.root.writer();
        for (new, old) in self.bereft() {
            let Root { devices: known, commit, .. } = &mut self.root;
            let at = |known: &[RootDevice], index| known.iter().position(|device| device.index == index);
            let (Some(from), Some(to)) = (at(known, new), at(known, old)) else { continue };
            let settled = RootDevice {
                index: old,
                stands_for: None,
                partial: false,
                state: DeviceState::Current,
                good_through: *commit,
                incarnation: writer,
                ..known[from].clone()
            };
            let found = self.devices[from].found.take();
            known[to] = settled;
            self.devices[to] = Candidate { index: old, found, standing: Standing::Current };
            known.remove(from);
            self.devices.remove(from);
        }
        self.complete = suffice(&self.root, &self.devices);
    }
}
