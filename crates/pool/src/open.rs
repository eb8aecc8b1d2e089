//! Import: from devices to a pool.
//!
//! Every device tells its label and the newest root that it holds. The newest root of all is the
//! pool's state; what it says of the devices, and what they say of themselves, tells which are
//! current, stale, copies, strangers or missing. A device that the root calls current must hold the
//! root or the one before it, since its predecessor was flushed to it before; if not, it is an old
//! image. Devices whose histories do not contain each other were written apart: import refuses.
//!
//! Before anything is replayed, a root is published that is the old one in all but the import: the
//! new incarnation, fresh leases of ids, and the devices as they are. So ids never come back, however
//! often an import is cut short; the log stays that of the import before until it is replayed.

use crate::core::{Core, LEASE};
use crate::create::{Parts, ROOT_DATASET};
use crate::dataset::Dataset;
use crate::error::{PoolError, Result};
use crate::events::{Class, Event};
use crate::free::Freeing;
use crate::intent::{Intent, Notes, read_chain};
use crate::map::BlockMap;
use crate::member::{Member, MemberState};
use crate::members::Members;
use crate::planted::{Bug, planted};
use crate::pool::{Pool, World};
use crate::read::TableNodes;
use crate::runs::RunIo;
use crate::segments::{SegmentEntry, Segments};
use crate::space::GroupSpace;
use crate::tree::Tree;
use larder_device::{AlignedBuf, Device, DeviceError, Request, TIMEOUT};
use larder_format::index::PartDescriptor;
use larder_format::label::{
    FORMAT_VERSION, HEARTBEAT_OFFSET, Heartbeat, LABEL_AREA, Label, LabelHead, RING_OFFSET, RING_SLOT,
    RING_SLOTS, label_areas,
};
use larder_format::root::{DeviceState, MAX_HISTORY, Root, RootImport, ring_slot};
use larder_format::run::RunDescriptor;
use larder_format::segment::{SegmentKind, SegmentRecord, SegmentState};
use larder_format::tables::{
    DatasetRecord, FreeingRecord, PIECE_MAX, PropertyRecord, SECRET_LEN, SnapshotRecord, Table,
};
use larder_format::{
    BlockId, ByteLen, CommitId, Corrupt, DatasetId, DeviceIndex, Incarnation, PoolGuid, Reason, SegmentId,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A device with a pool's label.
#[derive(Clone)]
pub struct Found {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The newer of its intact labels.
    pub label: Label,
    /// The newest root on it; none when no copy is intact.
    pub root: Option<Root>,
    /// Who had the pool imported.
    pub heartbeat: Option<Heartbeat>,
    /// What each place of the ring of roots holds, in the first label area and in the second.
    pub ring: Vec<[RingPlace; 2]>,
}

/// What a place in the ring of roots holds.
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
    pub(crate) fn of(pool: PoolGuid, bytes: &[u8]) -> Self {
        match Root::check(pool, bytes) {
            Ok(root) => Self::Root(root.commit),
            Err(_) if bytes.iter().all(|byte| *byte == 0) => Self::Blank,
            Err(_) => Self::Damaged,
        }
    }
}

impl Found {
    /// Whether the root of `commit`, of which no copy is intact, was durable here. A root is written to
    /// the second area only after it was durable in the first, so a power cut damages at most one of its
    /// places, and leaves the other as it was 15 commits before. `None` when that cannot be told.
    fn held(&self, commit: CommitId) -> Option<bool> {
        match self.ring[(commit.get() % RING_SLOTS) as usize] {
            [RingPlace::Damaged, RingPlace::Damaged] => Some(true),
            [RingPlace::Blank | RingPlace::Root(_), _] => Some(false),
            _ => None,
        }
    }

    /// Which label areas lack the root of `commit`.
    fn lacks(&self, commit: CommitId) -> [bool; 2] {
        self.ring[(commit.get() % RING_SLOTS) as usize].map(|place| place != RingPlace::Root(commit))
    }
}

/// What a device turned out to be.
pub enum Scan {
    /// A pool's.
    Member(Box<Found>),
    /// Not a pool's; whether somebody else's is [`crate::foreign`]'s matter.
    NotOurs,
    /// It has our magic number, but no intact label.
    Damaged(Corrupt),
    /// Its label is intact and of a format that this build does not know; a sentence that says which.
    Unsupported(String),
    /// It cannot be read.
    Failed(larder_device::DeviceError),
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
    let read_area = |offset| {
        let request = Request::Read { offset, len: ByteLen::new(LABEL_AREA) };
        // One that hangs must not hold up whoever lets go of it, either.
        device.submit(request).within(TIMEOUT).inspect_err(|error| {
            if *error == DeviceError::Overdue {
                device.abandon();
            }
        })
    };
    let mut areas = label_areas(size).map(|area| match read_area(area) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            failure = Some(error);
            None
        }
    });
    for bytes in areas.iter().flatten() {
        match Label::check(bytes) {
            Ok(found) if label.as_ref().is_none_or(|label| label.sequence < found.sequence) => {
                label = Some(found)
            }
            Ok(_) => {}
            Err(Corrupt { reason: Reason::Version | Reason::Feature, .. }) => return unsupported(bytes),
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
    // A device that grew has its second area where it ended when it was labelled.
    if label.device_size < size {
        areas[1] = read_area(label_areas(label.device_size)[1]).ok();
    }
    let ring_place = |area: &AlignedBuf, i: usize| -> std::ops::Range<usize> {
        let start = RING_OFFSET as usize + i * RING_SLOT;
        debug_assert!(start + RING_SLOT <= area.len());
        start..start + RING_SLOT
    };
    let ring = (0..RING_SLOTS as usize).map(|i| {
        areas.each_ref().map(|area| match area {
            Some(area) => RingPlace::of(label.pool, &area[ring_place(area, i)]),
            None => RingPlace::Unread,
        })
    });
    let ring = ring.collect();
    let roots = areas.iter().flatten().flat_map(|area| {
        (0..RING_SLOTS as usize).filter_map(|i| Root::check(label.pool, &area[ring_place(area, i)]).ok())
    });
    let root = if planted(Bug::StaleRoot) {
        roots.min_by_key(|root| root.commit)
    } else {
        roots.max_by_key(|root| root.commit)
    };
    // Beats go to the first area only; one of a pool that the device was part of before is none.
    let beat = areas[0].as_ref().and_then(|area| Heartbeat::check(&area[HEARTBEAT_OFFSET as usize..]).ok());
    let heartbeat = beat.filter(|beat| beat.pool == label.pool);
    Scan::Member(Box::new(Found { device: Arc::clone(device), label, root, heartbeat, ring }))
}

/// Why an intact label is refused.
fn unsupported(bytes: &[u8]) -> Scan {
    let Some(head) = LabelHead::get(bytes) else { return Scan::NotOurs };
    Scan::Unsupported(if head.version == FORMAT_VERSION {
        let bits = head.features.incompatible;
        format!("its pool uses features (bits {bits:#x}) that this build does not have")
    } else {
        format!("its pool has format version {}, this build reads version {FORMAT_VERSION}", head.version)
    })
}

/// What a device is to the pool that its label names.
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
    /// What it is to the pool.
    pub standing: Standing,
}

/// A pool that could be imported.
pub struct Importable {
    /// Its GUID.
    pub guid: PoolGuid,
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
    /// Why it cannot be imported as it is, in plain words.
    pub refusal: Option<String>,
    /// Why it can be imported for reading only, in plain words.
    pub only_reading: Option<String>,
    /// The host that has, or had, it imported; none after an export.
    pub held_by: Option<Heartbeat>,
}

/// Sorts devices into pools.
pub fn assemble(found: Vec<Found>) -> Vec<Importable> {
    let mut pools: BTreeMap<PoolGuid, Vec<Found>> = BTreeMap::new();
    for device in found {
        pools.entry(device.label.pool).or_default().push(device);
    }
    pools.into_iter().filter_map(|(guid, found)| importable(guid, found)).collect()
}

fn importable(guid: PoolGuid, found: Vec<Found>) -> Option<Importable> {
    let commit_of = |found: &Found| found.root.as_ref().map_or(CommitId::new(0), |root| root.commit);
    let root = found.iter().filter_map(|found| found.root.as_ref()).max_by_key(|root| root.commit)?.clone();
    let name = found.iter().max_by_key(|found| found.label.sequence)?.label.name.clone();
    let mut remarks = Vec::new();
    let mut refusal = None;

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
        if device.device.size() < device.label.device_size {
            remarks.push(format!(
                "{path} was cut short: it had {} bytes and has {}; what it held beyond is not read from it",
                device.label.device_size.get(),
                device.device.size().get()
            ));
            continue;
        }
        if let Some(branch) = device.root.as_ref().filter(|other| !contains(&root.history, other)) {
            refusal = Some(format!(
                "{path} was written apart from the other devices since commit {}: their histories do not contain \
                 each other. Nothing was changed. Import with -d naming only the devices whose data you want",
                branch.history.first().map_or(branch.commit, |import| import.first)
            ));
        }
        match by_index.remove(&known.index) {
            None => {
                by_index.insert(known.index, device);
            }
            Some(other) => {
                let (a, b) = (commit_of(&device), commit_of(&other));
                let (newer, older) = if a > b { (device, other) } else { (other, device) };
                let (new, old) = (newer.device.name(), older.device.name());
                if a == b {
                    refusal = Some(format!(
                        "{new} and {old} are copies of one device (guid {}). Nothing was changed. Move one of \
                         them away, or name the devices with -d",
                        newer.label.device
                    ));
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
            let through = |device: &Found| commit_of(device).min(known.good_through);
            // Who joined at a boundary has nothing to hold from before, nor a root, until the one that tells of it.
            let held = |device: &Found| device.root.as_ref().map_or(known.since, |root| root.commit);
            let missed_none = |device: &Found| held(device).get() + 1 >= root.commit.get();
            let standing = match (&found, known.state) {
                // Nobody is to bring it back unasked.
                (None, DeviceState::Offline) => Standing::Offline(known.good_through),
                (None, _) => Standing::Missing,
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
    let current = || devices.iter().filter(|device| device.standing == Standing::Current);
    let found = || current().filter_map(|device| device.found.as_ref());
    let next = root.commit.next();
    let votes: Vec<bool> = found().filter_map(|found| found.held(next)).collect();
    if !votes.is_empty() && votes.iter().all(|held| *held) {
        only_reading = Some(format!(
            "both copies of the root of commit {next} are damaged on every device: what was written after commit \
             {} would be lost. Nothing was changed. Look for a device that is missing, or import for reading \
             only, which shows commit {}",
            root.commit, root.commit
        ));
    }
    let unknown = found().fold(0, |bits, found| bits | found.label.features.read_compatible);
    if unknown != 0 {
        only_reading = Some(format!(
            "the pool uses features (bits {unknown:#x}) with which this build may only read it. Nothing was \
             changed. Import for reading only, or use a newer build"
        ));
    }
    remarks.extend(only_reading.clone());
    let held_by = (!root.exported).then(|| holder(&root, &devices));
    Some(Importable { guid, name, root, devices, complete, remarks, refusal, only_reading, held_by })
}

/// Whether every group can do without the devices that are not there, or not current.
pub(crate) fn suffice(root: &Root, devices: &[Candidate]) -> bool {
    root.groups.iter().all(|group| {
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

/// Who has the pool: the heartbeat of the root's own import, else of its host at an earlier one. Beats
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

/// Whether a history, newest import first, contains the state that `other` names.
pub(crate) fn contains(history: &[RootImport], other: &Root) -> bool {
    // An import's first root repeats the one before it, and no log follows it: when a cut left only that
    // of an import on a device, the device holds nothing of its own.
    let first = |import: &RootImport| import.incarnation == other.incarnation && import.first == other.commit;
    let (mine, through) = match &other.history[..] {
        [import, before, ..] if first(import) => (before.incarnation, other.commit.get() - 1),
        _ => (other.incarnation, other.commit.get()),
    };
    let Some(at) = history.iter().position(|import| [mine, other.incarnation].contains(&import.incarnation))
    else {
        // Older than the history reaches: stale at worst.
        return history.len() == MAX_HISTORY
            && history.last().is_some_and(|oldest| other.commit < oldest.first);
    };
    // The import that came after took over at its first commit; what was written later is a branch.
    at.checked_sub(1).is_none_or(|next| through < history[next].first.get())
}

/// Values of the tables that come in pieces, by entry.
#[derive(Default)]
struct Pieces(BTreeMap<u64, Vec<u8>>);

impl Pieces {
    /// Adds piece `number` of an entry.
    fn add(&mut self, entry: u64, number: u64, piece: &[u8]) -> Result<(), Corrupt> {
        let value = self.0.entry(entry).or_default();
        let follows = value.len() as u64 == number.saturating_mul(PIECE_MAX as u64);
        value.extend_from_slice(piece);
        if follows { Ok(()) } else { Err(Corrupt::new("run descriptor", Reason::Order)) }
    }

    /// What the values say.
    fn decode<T, F: Fn(&[u8]) -> Result<(T, usize), Corrupt>>(self, decode: F) -> Result<Vec<T>, Corrupt> {
        self.0.values().map(|value| decode(value).map(|(value, _)| value)).collect()
    }
}

/// How to import.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Write nothing.
    pub read_only: bool,
    /// The caller made sure that the host whose heartbeat was found is not alive.
    pub host_is_gone: bool,
    /// A new name for the pool.
    pub rename: Option<String>,
}

impl Pool {
    /// Imports a pool. The front end must take [`Pool::take_replay`]'s operations, apply them and commit
    /// before it lets anybody in.
    ///
    /// # Errors
    /// A sentence in [`PoolError::Invalid`] or [`PoolError::Busy`] when it is refused.
    pub fn import(world: World, plan: Importable, options: &ImportOptions) -> Result<Arc<Pool>> {
        if let Some(refusal) = plan.refusal {
            return Err(PoolError::Invalid(refusal));
        }
        if let Some(reason) = plan.only_reading.filter(|_| !options.read_only) {
            return Err(PoolError::Invalid(reason));
        }
        if !plan.complete {
            let present = [Standing::Current, Standing::Spare, Standing::Rebuilding, Standing::Waiting];
            let lost: Vec<_> = plan.devices.iter().filter(|d| !present.contains(&d.standing)).collect();
            return Err(PoolError::Invalid(format!(
                "{} of {} devices of {} are missing or too old, more than its layout survives. Nothing was changed. \
                 Attach them and import again",
                lost.len(),
                plan.devices.len(),
                plan.name
            )));
        }
        if let Some(holder) = plan.held_by.as_ref().filter(|beat| beat.host != world.host)
            && !options.host_is_gone
        {
            return Err(PoolError::Busy(format!(
                "{} may be imported by host {}",
                plan.name, holder.host_name
            )));
        }
        let root = plan.root;
        let unclean = !root.exported;
        let lacking: Vec<(DeviceIndex, [bool; 2])> = plan
            .devices
            .iter()
            .filter(|device| {
                matches!(device.standing, Standing::Current | Standing::Rebuilding | Standing::Waiting)
            })
            .filter_map(|device| Some((device.index, device.found.as_ref()?.lacks(root.commit))))
            .collect();
        let incarnation = Incarnation::new(world.entropy.next_u64());
        let labels: Vec<Label> =
            plan.devices.iter().filter_map(|d| d.found.as_ref().map(|found| found.label.clone())).collect();
        let any = labels.first().ok_or_else(|| PoolError::Invalid("no device is there".into()))?;
        let (created, ashift) = (any.created, any.ashift);
        let slot_size =
            |group| labels.iter().find(|label| label.group == group).map_or(any.slot_size, |l| l.slot_size);
        let (mut members, mut spares) = (Vec::new(), Vec::new());
        for (candidate, known) in plan.devices.into_iter().zip(&root.devices) {
            let mut known = known.clone();
            let state = match candidate.standing {
                Standing::Current | Standing::Spare => MemberState::Online,
                Standing::Rebuilding => MemberState::Rebuilding,
                Standing::Waiting => MemberState::Waiting,
                Standing::Missing => MemberState::Missing,
                Standing::Stale(through) => {
                    known.good_through = through;
                    MemberState::Stale
                }
                Standing::Offline(through) => {
                    known.good_through = through;
                    MemberState::Offline
                }
            };
            let present = candidate.found.map(|found| (found.device, found.label));
            let member = Member::new(&known, slot_size(known.group), present, state, &world.clock);
            if known.state == DeviceState::Spare { spares.push(member) } else { members.push(member) }
        }
        let members = Members::new(members, spares);
        let groups: BTreeMap<_, _> = root
            .groups
            .iter()
            .map(|group| {
                let devices: Vec<_> =
                    members.of_group(group.index).map(|member| (member.index, member.slot_count)).collect();
                let mut space =
                    GroupSpace::new(group.index, group.rule, slot_size(group.index), ashift, &devices);
                let leaving = members.iter().filter(|member| member.is_leaving());
                leaving.for_each(|member| space.retire(member.index));
                (group.index, space)
            })
            .collect();
        let core = Core {
            entries: Segments::default(),
            groups,
            streams: HashMap::new(),
            open_commit: root.commit.next(),
            incarnation,
            next_block: if planted(Bug::IdsComeBack) {
                BlockId::new(root.tables.id.get() + 1)
            } else {
                root.block_lease
            },
            block_lease: BlockId::new(root.block_lease.get() + LEASE),
            next_segment: root.segment_lease,
            segment_lease: SegmentId::new(root.segment_lease.get() + LEASE),
            gone: Vec::new(),
            spend_reserve: false,
        };
        let parts = Parts {
            guid: plan.guid,
            name: plan.name,
            created,
            read_only: options.read_only,
            members,
            core,
            intent: Intent { sequence: 1, ..Intent::default() },
            notes: Notes::after(root.applied),
            history: root.history.clone(),
            durable: root.commit,
        };
        let pool = Pool::assemble(world, parts);
        pool.load(&root, unclean)?;
        if !options.read_only {
            pool.adopt(root, &lacking)?;
            if let Some(name) = &options.rename {
                pool.rename(name)?;
            }
            pool.beat()?;
        }
        pool.event(Event::new(Class::PoolImport));
        Ok(pool)
    }

    /// Reads everything that the root names: tables, segments, datasets, block map, log.
    fn load(&self, root: &Root, unclean: bool) -> Result<()> {
        for record in &root.segments {
            self.adopt_segment(record, root.commit)?;
        }
        let mut segments = Vec::new();
        let mut datasets = Vec::new();
        let (mut runs, mut parts) = (Pieces::default(), Pieces::default());
        let mut secret = None;
        let mut snapshots = Vec::new();
        let mut freeing = FreeingRecord::default();
        let mut properties: BTreeMap<DatasetId, BTreeMap<String, String>> = BTreeMap::new();
        let tables = Tree::open(root.tables);
        let mut bad = Ok(());
        tables.scan(&TableNodes(self), .., |key, value| {
            let id = key.object & ((1 << 48) - 1);
            let entry: Result<(), Corrupt> = (|| {
                match (key.object >> 48) as u16 {
                    t if t == Table::Segments as u16 => segments.push(SegmentRecord::decode(value)?.0),
                    t if t == Table::Datasets as u16 => datasets.push(DatasetRecord::decode(value)?),
                    t if t == Table::Runs as u16 => runs.add(key.offset, id, value)?,
                    t if t == Table::Index as u16 => parts.add(key.offset, id, value)?,
                    t if t == Table::Secret as u16 => secret = value.try_into().ok(),
                    t if t == Table::Snapshots as u16 => snapshots.push(SnapshotRecord::decode(value)?),
                    t if t == Table::Events as u16 => self.log.lock().met(Table::Events, key.offset),
                    t if t == Table::Commands as u16 => self.log.lock().met(Table::Commands, key.offset),
                    t if t == Table::Damage as u16 => self.adopt_damage(key.offset, value),
                    t if t == Table::Freeing as u16 => freeing = FreeingRecord::decode(value)?,
                    t if t == Table::Properties as u16 => {
                        let property = PropertyRecord::decode(value)?;
                        properties
                            .entry(DatasetId::new(id))
                            .or_default()
                            .insert(property.name, property.value);
                    }
                    _ => {}
                }
                Ok(())
            })();
            match entry {
                Ok(()) => ControlFlow::Continue(()),
                Err(corrupt) => {
                    bad = Err(corrupt);
                    ControlFlow::Break(())
                }
            }
        })?;
        bad?;
        let secret: [u8; SECRET_LEN] = secret.ok_or(Corrupt::new("secret", Reason::Short))?;
        // Nobody else sets it.
        let _ = self.secret.set(secret);
        let runs = runs.decode(RunDescriptor::decode)?;
        let parts = parts.decode(PartDescriptor::decode)?;
        *self.tables.lock() = tables;
        for record in &segments {
            self.adopt_segment(record, root.commit)?;
        }
        self.recount_runs(runs.iter().chain(parts.iter().map(|part| &part.run)))?;
        let map = BlockMap::open(runs, &RunIo::new(self))?;
        *self.map.lock() = map;
        self.lay_index_down(parts);
        *self.properties.write() = properties.remove(&DatasetId::new(0)).unwrap_or_default();
        self.apply_pool_properties();
        for mut record in datasets {
            if unclean {
                // Inode ids that were given out after the last commit must not be given out again.
                record.next_inode += 1 << 16;
            }
            let local = properties.remove(&record.id).unwrap_or_default();
            let destroyed = record.destroyed;
            let dataset = Dataset::new(self.myself.clone(), record, local, self.default_settings());
            let (id, dataset) = (dataset.id(), Arc::new(dataset));
            match destroyed {
                true => self.destroyed.lock().insert(id, dataset),
                false => self.datasets.write().insert(id, dataset),
            };
        }
        self.check_parents()?;
        self.adopt_snapshots(snapshots)?;
        *self.freeing.lock() = Freeing::open(freeing);
        self.open_books();
        self.refresh_settings();
        if root.log_open {
            let slot_size = |segment: &SegmentRecord| self.members.get(segment.slots[0].device).slot_size;
            let chain = read_chain(root, slot_size, |segment, column, offset, len| {
                let slot = segment.slots[column];
                let member = self.members.get(slot.device);
                let pending = member.read(member.slot_offset(slot.index, offset), len)?;
                let bytes = member.wait(pending).ok()?;
                Some(bytes.to_vec())
            });
            // Whoever only reads is shown the commit, without the log.
            let (ops, last) = match chain {
                Err(_) if self.read_only => (Vec::new(), root.applied),
                chain => chain?,
            };
            // Until the commit that ends the replay.
            self.core.lock().spend_reserve = !ops.is_empty();
            *self.replay.lock() = ops;
            *self.notes.lock() = Notes::after(last);
        }
        Ok(())
    }

    /// From every dataset, parents lead to the pool's root dataset.
    fn check_parents(&self) -> Result<()> {
        let bad = |reason| PoolError::from(Corrupt::new("dataset table", reason));
        if self.dataset(ROOT_DATASET).is_none_or(|root| root.parent() != ROOT_DATASET) {
            return Err(bad(Reason::Short));
        }
        let datasets = self.datasets();
        for dataset in &datasets {
            let mut at = dataset.parent();
            // More steps than there are datasets are a circle.
            for step in 0.. {
                if at == ROOT_DATASET {
                    break;
                }
                if step > datasets.len() {
                    return Err(bad(Reason::Order));
                }
                at = self.dataset(at).ok_or_else(|| bad(Reason::Identity))?.parent();
            }
        }
        Ok(())
    }

    /// Takes a segment from the tables or the root into memory, and its slots out of the free ones.
    fn adopt_segment(&self, record: &SegmentRecord, commit: CommitId) -> Result<()> {
        let bad = |reason| PoolError::from(Corrupt::new("segment record", reason));
        if record.state == SegmentState::Freed && record.freed.get() + 2 <= commit.get() {
            if !record.kind.is_rooted() {
                self.core.lock().gone.push(record.id);
            }
            return Ok(());
        }
        let mut core = self.core.lock();
        let core = &mut *core;
        let group = core.groups.get_mut(&record.group).ok_or_else(|| bad(Reason::Identity))?;
        if record.height > group.slot_size {
            return Err(bad(Reason::Range));
        }
        for &slot in &record.slots {
            if !self.members.has(slot.device) || self.members.get(slot.device).group != record.group {
                return Err(bad(Reason::Identity));
            }
            if !group.take(slot) {
                return Err(bad(Reason::Order));
            }
        }
        let entry = SegmentEntry::from_record(record);
        self.readable.insert(&entry.segment);
        core.entries.insert(entry);
        if record.state == SegmentState::Open && record.kind != SegmentKind::Log {
            if core.fits(record.id) {
                core.streams.insert((record.kind, record.class, record.group), record.id);
            } else {
                core.close_segment(record.id);
            }
        }
        Ok(())
    }

    /// What lives in run segments follows from the runs: pages of a merge that was cut short do not.
    fn recount_runs<'r>(&self, runs: impl Iterator<Item = &'r RunDescriptor>) -> Result<()> {
        let mut live: HashMap<SegmentId, (u32, u64)> = HashMap::new();
        for footprint in runs.flat_map(|run| &run.footprints) {
            let entry = live.entry(footprint.segment).or_default();
            let sums = (entry.0.checked_add(footprint.blocks)).zip(entry.1.checked_add(footprint.bytes));
            *entry = sums.ok_or(Corrupt::new("run descriptor", Reason::Range))?;
        }
        let mut core = self.core.lock();
        for id in core.entries.select(|entry| entry.segment.kind == SegmentKind::Run) {
            let (blocks, bytes) = live.remove(&id).unwrap_or_default();
            core.entries.change(id, |entry| {
                entry.dirty |= (entry.live_blocks, entry.live_bytes) != (blocks, bytes);
                (entry.live_blocks, entry.live_bytes) = (blocks, bytes);
                entry.placed = entry.placed.max(bytes);
            });
        }
        if live.is_empty() { Ok(()) } else { Err(Corrupt::new("run descriptor", Reason::Identity).into()) }
    }

    /// Publishes the old root under the new import. `lacking` tells which label areas a cut kept the old
    /// root from: it is completed first, as a commit would have done. Else a cut now would leave devices
    /// two roots behind, which look stale, and a later one, in the same place of the ring, would look like
    /// a root that was lost.
    fn adopt(&self, mut root: Root, lacking: &[(DeviceIndex, [bool; 2])]) -> Result<()> {
        // What the devices show may be in their caches only: nothing may follow it unflushed.
        self.members.flush_all();
        if let Some(bytes) = root.encode().map(|bytes| Arc::new(AlignedBuf::padded(&bytes))) {
            for area in 0..2 {
                let lacking = lacking.iter().filter(|(_, lacks)| lacks[area]);
                let members: Vec<_> = lacking.map(|&(index, _)| self.members.get(index)).collect();
                for member in &members {
                    let at = ring_slot(member.label_areas()[area], root.commit);
                    let write = member.write(at, Arc::clone(&bytes));
                    if write.is_some() {
                        member.settle(write);
                    }
                }
                if !members.is_empty() {
                    self.members.flush_all();
                }
            }
        }
        let mut core = self.core.lock();
        root.commit = core.open_commit;
        root.incarnation = core.incarnation;
        root.time = self.world.clock.now();
        root.exported = false;
        root.host = self.world.host;
        root.block_lease = core.block_lease;
        root.segment_lease = core.segment_lease;
        root.history.insert(0, RootImport { incarnation: core.incarnation, first: root.commit });
        root.history.truncate(MAX_HISTORY);
        core.open_commit = root.commit.next();
        drop(core);
        *self.history.lock() = root.history.clone();
        self.publish(&mut root)?;
        self.durable.store(root.commit.get(), Ordering::Release);
        Ok(())
    }

    /// Gives the pool, and its root dataset, another name.
    pub fn rename(&self, name: &str) -> Result<()> {
        crate::create::check_name(name).map_err(PoolError::Invalid)?;
        for member in self.members.iter().filter(|member| member.is_online()) {
            member
                .relabel(|label| name.clone_into(&mut label.name))
                .map_err(|error| PoolError::Device { device: member.name(), error })?;
        }
        name.clone_into(&mut self.name.write());
        if let Some(root) = self.dataset(ROOT_DATASET) {
            let mut state = root.state.write();
            name.clone_into(&mut state.record.name);
            state.changed = true;
        }
        Ok(())
    }

    /// Shows other hosts that the pool is in use here.
    pub fn beat(&self) -> Result<()> {
        let heartbeat = Heartbeat {
            pool: self.guid,
            host: self.world.host,
            host_name: self.world.host_name.clone(),
            incarnation: self.core.lock().incarnation,
            beats: self.beats.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let at = |area: larder_format::DeviceOffset| area + ByteLen::new(HEARTBEAT_OFFSET);
        self.members.write_labels(0, at, &heartbeat.encode());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::{GroupSpec, PoolSpec, rule_for};
    use larder_device::{Inline, SeededEntropy};
    use larder_format::HostId;
    use larder_format::run::{Footprint, PageRef, RunId};
    use larder_format::tables::pieces;
    use larder_sim::{SimClock, SimWorld};

    fn world(seed: u64) -> World {
        World {
            clock: Arc::new(SimClock::new()),
            entropy: Arc::new(SeededEntropy::new(seed)),
            workers: Arc::new(Inline),
            host: HostId::new(1),
            host_name: "sim".into(),
        }
    }

    #[test]
    fn a_run_of_thousands_of_segments_comes_back_from_its_pieces() {
        let place = larder_format::Place { segment: SegmentId::new(1), column: 0, offset: 4096, stored: 800 };
        let ptr = larder_format::BlockPtr { id: BlockId::new(9), place };
        let footprint = |n| Footprint { segment: SegmentId::new(n), blocks: 20, bytes: 640_000 };
        let run = RunDescriptor {
            run: RunId::new(7),
            oldest: RunId::new(1),
            newest: RunId::new(7),
            entries: 100_000_000,
            shadows: 0,
            bytes: 1_900_000_000,
            first: BlockId::new(1),
            last: BlockId::new(100_000_000),
            pages: 60_000,
            height: 2,
            refs: vec![PageRef { first: BlockId::new(1), ptr }],
            footprints: (1..=5_000).map(footprint).collect(),
        };
        let mut value = Vec::new();
        run.encode(&mut value);
        let mut all = Pieces::default();
        let of: Vec<&[u8]> = pieces(&value).collect();
        assert!(of.len() > 20 && of.iter().all(|piece| piece.len() <= PIECE_MAX));
        for (number, piece) in (0..).zip(&of) {
            all.add(7, number, piece).unwrap();
        }
        assert_eq!(all.decode(RunDescriptor::decode).unwrap(), [run]);
        // One that is missing is noticed.
        let mut lacking = Pieces::default();
        lacking.add(7, 0, of[0]).unwrap();
        assert_eq!(lacking.add(7, 2, of[2]).unwrap_err().reason, Reason::Order);
        assert!(lacking.decode(RunDescriptor::decode).is_err());
    }

    #[test]
    fn datasets_whose_parents_form_a_circle_are_refused() {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let groups = vec![GroupSpec { rule: rule_for("single", 1).unwrap(), devices: sim.devices() }];
        let pool = Pool::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        let above = pool.create_dataset("tank/above", BTreeMap::new()).unwrap();
        let below = pool.create_dataset("tank/above/below", BTreeMap::new()).unwrap();
        {
            let mut state = above.state.write();
            state.record.parent = below.id();
            state.changed = true;
        }
        pool.commit().unwrap();
        drop(pool);
        let Scan::Member(found) = scan(&sim.devices()[0]) else { panic!("a pool's device") };
        let plan = assemble(vec![*found]).remove(0);
        let error = Pool::import(world(2), plan, &ImportOptions::default()).err().expect("a refusal");
        assert_eq!(error.to_string(), "corrupt dataset table: entries out of order");
    }
}
