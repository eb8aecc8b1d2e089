//! The root record: the one thing that a commit replaces, and all that import starts from.

use crate::checksum::{self, Sums};
use crate::error::ensure;
use crate::ids::ensure_countable;
use crate::label::{
    FORMAT_VERSION, Features, GroupRule, MAX_ASHIFT, MIN_ASHIFT, RING_OFFSET, RING_SLOT, RING_SLOTS,
};
use crate::segment::{MAX_SLOT, MIN_SLOT, SegmentRecord};
use crate::{
    BlockId, BlockPtr, CommitId, Corrupt, DeviceGuid, DeviceIndex, DeviceOffset, GroupIndex, HostId,
    Incarnation, OpSeq, PoolGuid, Reason, SegmentId, Timestamp, layout,
};

/// `LARDERRT`.
pub const ROOT_MAGIC: u64 = u64::from_le_bytes(*b"LARDERRT");
/// Where the sum of a root record lies in it.
const SUM_AT: usize = RootHead::SIZE - 8;
/// Imports that a root remembers, newest first, to tell a stale device from a diverged one.
pub const MAX_HISTORY: usize = 32;

/// An import that writes skips less block ids than this, at random. Two that begin with the same root and give out
/// 2^24 ids each, 2 TiB of records of 128 KiB, meet once in 2^15 times; a pool lives for 2^22 imports.
pub const STRIDE: u64 = 1 << 40;
/// The same of segment ids.
pub const SEGMENT_STRIDE: u64 = 1 << 32;

/// Where commit `commit`'s root lies in the label area that starts at `area`.
pub fn ring_slot(area: DeviceOffset, commit: CommitId) -> DeviceOffset {
    DeviceOffset::new(area.get() + RING_OFFSET + commit.get() % RING_SLOTS * RING_SLOT as u64)
}

layout! {
    /// The fixed part of a root record. Groups, devices, history and segments follow in that order.
    pub struct RootHead[256] {
        /// [`ROOT_MAGIC`].
        magic: u64 = 0,
        /// [`FORMAT_VERSION`].
        version: u32 = 8,
        /// Bytes of the whole record.
        length: u32 = 12,
        /// The pool.
        pool: PoolGuid = 16,
        /// The commit that this root completes.
        commit: CommitId = 24,
        /// The import under which it was written.
        incarnation: Incarnation = 32,
        /// When.
        time: Timestamp = 40,
        /// 1 after a clean export, 2 when the pool was destroyed.
        exported: u8 = 52,
        /// 1 when the log may hold operations after this root.
        log_open: u8 = 53,
        /// The host that wrote it.
        host: HostId = 56,
        /// End of the lease of block ids: the next import starts behind this.
        block_lease: BlockId = 64,
        /// End of the lease of segment ids.
        segment_lease: SegmentId = 72,
        /// The oldest commit whose blocks are all still in place.
        oldest: CommitId = 80,
        /// Operations up to this one are in the trees; the log's are after it.
        applied: OpSeq = 88,
        /// Where the log starts, in the first of its segments.
        log_offset: u32 = 96,
        /// Sequence of the log's first record.
        log_sequence: u64 = 104,
        /// Root of the pool's tables.
        tables: BlockPtr = 112,
        /// Number of groups.
        groups: u16 = 136,
        /// Number of devices.
        devices: u16 = 138,
        /// Number of history entries.
        history: u16 = 140,
        /// Number of segments named here.
        segments: u16 = 142,
        /// `previous` of the log's first record.
        log_previous: u64 = 144,
        /// The import whose log follows; an older one than `incarnation` until the log is replayed.
        log_incarnation: Incarnation = 152,
        /// Features in use.
        features: Features = 160,
        /// The number that the next new device gets.
        next_device: u16 = 184,
        /// The number that the next new group gets.
        next_group: u16 = 186,
        /// From this commit on ids tell of datasets what they had before; 0 if a build wrote it that does not care.
        traced: CommitId = 192,
        /// The GUID that the pool is known by; 0: `pool`.
        known_as: PoolGuid = 200,
        /// The one before; 0 as well then.
        former: PoolGuid = 208,
        /// XXH3-64 of the whole record with this field as zero.
        sum: u64 = 248,
    }
}

layout! {
    /// A [`RootGroup`] as a root stores it.
    pub struct RootGroupEntry[64] {
        /// Its number.
        index: GroupIndex = 0,
        /// Its rule: word, k, r, m.
        rule: GroupRule = 2,
        /// A [`GroupRole`].
        role: u8 = 6,
        /// log2 of the alignment of its stripes.
        ashift: u8 = 7,
        /// Bytes of a slot on its devices.
        slot_size: u32 = 8,
        /// [`GROUP_LEAVING`] or nothing.
        flags: u32 = 12,
        /// 1 when it has, or had, segments with fewer data columns than its rule says.
        narrowest: u8 = 16,
    }
}

/// Flag of a group that is on its way out of the pool, with all of its devices: nothing new is put on it.
pub const GROUP_LEAVING: u32 = 1;

/// Role of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GroupRole {
    /// Everything, or what no other group is there for.
    Data = 1,
    /// Second copies that no promise rests on. No group of this role is defined.
    Cache = 2,
    /// The intent log, and nothing else.
    Log = 3,
    /// Nodes, runs and tables.
    Special = 4,
    /// New data, before it moves to a slower group. No group of this role is defined.
    Front = 5,
    /// The contents of [`GroupRole::Log`] and [`GroupRole::Special`].
    Fast = 6,
}

impl GroupRole {
    /// The role that a stored number names.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Data,
            2 => Self::Cache,
            3 => Self::Log,
            4 => Self::Special,
            5 => Self::Front,
            6 => Self::Fast,
            _ => return None,
        })
    }
}

/// A group as the root knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootGroup {
    /// Its number.
    pub index: GroupIndex,
    /// Its rule: word, k, r, m.
    pub rule: GroupRule,
    /// Its role.
    pub role: GroupRole,
    /// log2 of the alignment of its stripes.
    pub ashift: u8,
    /// Bytes of a slot on its devices.
    pub slot_size: u32,
    /// It is on its way out of the pool.
    pub leaving: bool,
    /// It may have segments with fewer data columns than its rule says.
    pub narrow: bool,
}

impl RootGroup {
    pub(crate) fn put(&self, out: &mut [u8]) {
        RootGroupEntry {
            index: self.index,
            rule: self.rule,
            role: self.role as u8,
            ashift: self.ashift,
            slot_size: self.slot_size,
            flags: if self.leaving { GROUP_LEAVING } else { 0 },
            narrowest: u8::from(self.narrow),
        }
        .put(out);
    }

    /// Verifies an entry. Groups of copies and of new data, and other flags, are of versions to come.
    pub(crate) fn check(bytes: &[u8]) -> Result<Self, Corrupt> {
        let entry = RootGroupEntry::get(bytes).ok_or(Corrupt::new("root record", Reason::Short))?;
        let role = GroupRole::from_byte(entry.role)
            .filter(|role| !matches!(role, GroupRole::Cache | GroupRole::Front))
            .ok_or(Corrupt::new("role of a group", Reason::Feature))?;
        ensure(entry.flags & !GROUP_LEAVING == 0, "flags of a group", Reason::Feature)?;
        ensure((MIN_ASHIFT..=MAX_ASHIFT).contains(&entry.ashift), "root record", Reason::Range)?;
        let slot_ok = entry.slot_size.is_power_of_two() && (MIN_SLOT..=MAX_SLOT).contains(&entry.slot_size);
        ensure(slot_ok, "root record", Reason::Range)?;
        let rule = GroupRule::load_checked(&bytes[2..])?;
        ensure(entry.narrowest <= 1, "narrow segments in a group", Reason::Feature)?;
        Ok(Self {
            index: entry.index,
            rule,
            role,
            ashift: entry.ashift,
            slot_size: entry.slot_size,
            leaving: entry.flags & GROUP_LEAVING != 0,
            narrow: entry.narrowest != 0,
        })
    }
}

layout! {
    /// A [`RootDevice`] as a root stores it.
    pub struct RootDeviceEntry[64] {
        /// Its number.
        index: DeviceIndex = 0,
        /// Its group; [`NO_GROUP`] for spares.
        group: GroupIndex = 2,
        /// A [`DeviceState`].
        state: u8 = 4,
        /// 1 when it is on its way out of the group: nothing new is put on it.
        leaving: u8 = 5,
        /// The device whose place it is to take; [`NOBODY`] for none.
        stands_for: DeviceIndex = 6,
        /// Number of slots.
        slot_count: u32 = 8,
        /// 1 when something of what it is being rebuilt from could not be had.
        partial: u8 = 12,
        /// A [`DeviceKind`].
        kind: u8 = 13,
        /// [`CACHE_DEVICE`] or nothing.
        flags: u16 = 14,
        /// Its GUID.
        guid: DeviceGuid = 16,
        /// The last commit whose writes it is known to hold.
        good_through: CommitId = 24,
        /// It has every write after this commit.
        since: CommitId = 32,
        /// The last segment that is rebuilt.
        cursor: SegmentId = 40,
        /// The import that wrote commit `good_through`; where that is an import's first root, which only repeats, the
        /// import before.
        incarnation: Incarnation = 48,
    }
}

/// Flag of a device in no group: it has [copies of blocks](crate::cached), on which no promise rests, and no roots.
pub const CACHE_DEVICE: u16 = 1;

/// Type of a device, for choosing what is put on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DeviceKind {
    /// Nobody asked.
    Unknown = 0,
    /// A disk that turns.
    Disk = 1,
    /// One that does not.
    Ssd = 2,
    /// A store of immutable objects: a segment is an object, and roots are published under a condition.
    Store = 3,
}

impl DeviceKind {
    fn check(byte: u8) -> Result<Self, Corrupt> {
        match byte {
            0 => Ok(Self::Unknown),
            1 => Ok(Self::Disk),
            2 => Ok(Self::Ssd),
            _ => Err(Corrupt::new("kind of a device", Reason::Feature)),
        }
    }
}

/// The group of devices that belong to none.
pub const NO_GROUP: GroupIndex = GroupIndex::new(u16::MAX);
/// The device that a device which stands for none stands for.
const NOBODY: DeviceIndex = DeviceIndex::new(u16::MAX);

/// State of a device in a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DeviceState {
    /// It has every write of the root's commit.
    Current = 1,
    /// It is away, or failed: it lacks what was written after [`RootDevice::good_through`].
    Behind = 2,
    /// It has every new write, and gets what it lacks.
    Rebuilding = 3,
    /// As [`DeviceState::Behind`], because an administrator said so.
    Offline = 4,
    /// It holds nothing that counts and belongs to no group.
    Spare = 5,
    /// It has every new write, and all that could be had of the device that it stands for. It takes that one's place
    /// as soon as somebody accepts that the rest is lost, or the other one is gone.
    Waiting = 6,
}

/// A device as the root knows it.
///
/// One that is being rebuilt holds every stripe whose commit is at most `good_through` or above `since`, and all
/// stripes of the segments up to `cursor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootDevice {
    /// Its number.
    pub index: DeviceIndex,
    /// Its group; [`NO_GROUP`] for spares.
    pub group: GroupIndex,
    /// Whether it may be read, and written.
    pub state: DeviceState,
    /// It is on its way out of the group, of whose rule it is no part any more: nothing new is put on it.
    pub leaving: bool,
    /// The device whose place it is to take when it is rebuilt.
    pub stands_for: Option<DeviceIndex>,
    /// Number of slots.
    pub slot_count: u32,
    /// It stands for another, of which something could not be had; for [`DeviceState::Rebuilding`] and
    /// [`DeviceState::Waiting`].
    pub partial: bool,
    /// Its GUID.
    pub guid: DeviceGuid,
    /// The last commit whose writes it is known to hold.
    pub good_through: CommitId,
    /// It has every write after this commit: the one at whose end it joined, or came back.
    pub since: CommitId,
    /// The last segment, in the order of ids, that is rebuilt; for [`DeviceState::Rebuilding`].
    pub cursor: SegmentId,
    /// The import that wrote commit `good_through`.
    pub incarnation: Incarnation,
    /// Its type.
    pub kind: DeviceKind,
    /// It has [copies of blocks](crate::cached); for [`DeviceState::Spare`], which else waits to be needed.
    pub is_cache: bool,
}

impl RootDevice {
    pub(crate) fn put(&self, out: &mut [u8]) {
        RootDeviceEntry {
            index: self.index,
            group: self.group,
            state: self.state as u8,
            leaving: u8::from(self.leaving),
            stands_for: self.stands_for.unwrap_or(NOBODY),
            slot_count: self.slot_count,
            partial: u8::from(self.partial),
            kind: self.kind as u8,
            flags: if self.is_cache { CACHE_DEVICE } else { 0 },
            guid: self.guid,
            good_through: self.good_through,
            since: self.since,
            cursor: self.cursor,
            incarnation: self.incarnation,
        }
        .put(out);
    }

    /// Verifies what of an entry can be verified by itself and the root's `commit`.
    pub(crate) fn check(bytes: &[u8], commit: CommitId) -> Result<Self, Corrupt> {
        const WHAT: &str = "root record";
        let entry = RootDeviceEntry::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let state = match entry.state {
            1 => DeviceState::Current,
            2 => DeviceState::Behind,
            3 => DeviceState::Rebuilding,
            4 => DeviceState::Offline,
            5 => DeviceState::Spare,
            6 => DeviceState::Waiting,
            _ => return Err(Corrupt::new(WHAT, Reason::Kind)),
        };
        ensure(entry.good_through <= commit && entry.since <= commit, WHAT, Reason::Range)?;
        ensure_countable(&[entry.cursor.get()], WHAT)?;
        ensure(entry.index != NOBODY && entry.leaving <= 1 && entry.partial <= 1, WHAT, Reason::Range)?;
        ensure((state == DeviceState::Spare) == (entry.group == NO_GROUP), WHAT, Reason::Identity)?;
        let stands_for = (entry.stands_for != NOBODY).then_some(entry.stands_for);
        ensure(state != DeviceState::Waiting || stands_for.is_some(), WHAT, Reason::Identity)?;
        ensure(entry.flags & !CACHE_DEVICE == 0, "flags of a device", Reason::Feature)?;
        let is_cache = entry.flags & CACHE_DEVICE != 0;
        ensure(!is_cache || state == DeviceState::Spare, WHAT, Reason::Identity)?;
        Ok(Self {
            index: entry.index,
            group: entry.group,
            state,
            leaving: entry.leaving != 0,
            stands_for,
            slot_count: entry.slot_count,
            partial: entry.partial != 0,
            guid: entry.guid,
            good_through: entry.good_through,
            since: entry.since,
            cursor: entry.cursor,
            incarnation: entry.incarnation,
            kind: DeviceKind::check(entry.kind)?,
            is_cache,
        })
    }
}

layout! {
    /// One import in the pool's history.
    pub struct RootImport[32] {
        /// The import.
        incarnation: Incarnation = 0,
        /// Its first commit.
        first: CommitId = 8,
        /// The first block id that it gives out.
        first_block: BlockId = 16,
        /// Block ids below `first_block` that no import gave out, so that ages are not counted in them.
        skipped: u64 = 24,
    }
}

impl RootImport {
    pub(crate) fn check(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "root record";
        let import = Self::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure_countable(&[import.first.get(), import.first_block.get(), import.skipped], WHAT)?;
        Ok(import)
    }
}

/// Verifies what of groups and devices can be verified by each other, and the numbers that come next.
pub(crate) fn check_members(
    groups: &[RootGroup],
    devices: &[RootDevice],
    next_group: u16,
    next_device: u16,
) -> Result<(), Corrupt> {
    const WHAT: &str = "root record";
    let is_grouped = |device: &RootDevice| {
        device.group == NO_GROUP || groups.iter().any(|group| group.index == device.group)
    };
    ensure(devices.iter().all(is_grouped), WHAT, Reason::Identity)?;
    // A stand-in stands for a device of its group that has a place of its own.
    let stand_ins: Vec<_> =
        devices.iter().filter_map(|device| Some((device.stands_for?, device.group))).collect();
    let real = |&(index, group): &(DeviceIndex, GroupIndex)| {
        let mut held = devices.iter().filter(|device| (device.index, device.group) == (index, group));
        held.next().is_some_and(|device| device.stands_for.is_none())
    };
    let once = (1..stand_ins.len()).all(|i| !stand_ins[..i].contains(&stand_ins[i]));
    ensure(once && stand_ins.iter().all(real), WHAT, Reason::Identity)?;
    let ascending = groups.is_sorted_by(|a, b| a.index < b.index)
        && devices.is_sorted_by(|a: &RootDevice, b| a.index < b.index);
    ensure(ascending, WHAT, Reason::Order)?;
    let numbered = devices.last().is_none_or(|last| last.index.get() < next_device)
        && groups.last().is_none_or(|last| last.index.get() < next_group);
    ensure(numbered, WHAT, Reason::Range)?;
    // Records have somewhere to go.
    let has_room = |group: &RootGroup| group.role == GroupRole::Data && !group.leaving;
    ensure(groups.iter().any(has_room), WHAT, Reason::Identity)
}

/// The GUID that people and imports know a pool by: the one that its labels, sums and blocks name, until it got
/// another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The GUID now.
    pub guid: PoolGuid,
    /// The one before: a device that missed the change still goes by it.
    pub former: PoolGuid,
}

impl Identity {
    /// That of a pool as it was made.
    pub fn of(pool: PoolGuid) -> Self {
        Self { guid: pool, former: pool }
    }

    /// That of the same pool known by another GUID.
    #[must_use]
    pub fn changed(self, guid: PoolGuid) -> Self {
        Self { guid, former: self.guid }
    }

    /// Both GUIDs as records of a pool have them: 0 while it is known as it was made.
    pub(crate) fn told(self, pool: PoolGuid) -> [PoolGuid; 2] {
        if self == Self::of(pool) { [PoolGuid::new(0); 2] } else { [self.guid, self.former] }
    }

    /// The same from such a record, whose features say whether there is another.
    pub(crate) fn of_told(
        pool: PoolGuid,
        features: Features,
        [guid, former]: [PoolGuid; 2],
    ) -> Result<Self, Corrupt> {
        let is_as_made = features.incompatible & Features::IDENTITY == 0;
        let told = [guid, former].map(|guid| guid.get() != 0);
        ensure(told == [!is_as_made; 2], "root record", Reason::Identity)?;
        Ok(if is_as_made { Self::of(pool) } else { Self { guid, former } })
    }
}

/// A root record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The pool, as labels, sums and blocks name it.
    pub pool: PoolGuid,
    /// As people and imports know it.
    pub identity: Identity,
    /// The commit that this root completes.
    pub commit: CommitId,
    /// The import under which it was written.
    pub incarnation: Incarnation,
    /// When.
    pub time: Timestamp,
    /// After a clean export.
    pub exported: bool,
    /// The pool was destroyed, and exported so.
    pub destroyed: bool,
    /// The log may hold operations after this root.
    pub log_open: bool,
    /// The host that wrote it.
    pub host: HostId,
    /// End of the lease of block ids.
    pub block_lease: BlockId,
    /// End of the lease of segment ids.
    pub segment_lease: SegmentId,
    /// The oldest commit whose blocks are all still in place.
    pub oldest: CommitId,
    /// Operations up to this one are in the trees.
    pub applied: OpSeq,
    /// Where the log starts in the first of its segments, bytes from the start of the slot.
    pub log_offset: u32,
    /// Sequence of the log's first record.
    pub log_sequence: u64,
    /// `previous` of the log's first record.
    pub log_previous: u64,
    /// The import whose log follows; an older one than `incarnation` until the log is replayed.
    pub log_incarnation: Incarnation,
    /// Features in use.
    pub features: Features,
    /// The number that the next new device gets; no number is given twice.
    pub next_device: u16,
    /// The number that the next new group gets; no number is given twice.
    pub next_group: u16,
    /// From this commit on trees of datasets tell by their ids what they had before: nodes kept their keys, and extents
    /// that got an older block say so. 0 when a build wrote it that does not see to it.
    pub traced: CommitId,
    /// Root of the pool's tables.
    pub tables: BlockPtr,
    /// Groups.
    pub groups: Vec<RootGroup>,
    /// Devices.
    pub devices: Vec<RootDevice>,
    /// Imports, newest first, at most [`MAX_HISTORY`].
    pub history: Vec<RootImport>,
    /// The segments that the tables leave to the root: those of the tables themselves, and the log's in
    /// the order in which they are used.
    pub segments: Vec<SegmentRecord>,
}

impl Root {
    /// The import that wrote its commit. An import's first root repeats the one before it: who lacks it holds what the
    /// import before wrote.
    pub fn writer(&self) -> Incarnation {
        match &self.history[..] {
            [import, before, ..] if import.first == self.commit => before.incarnation,
            _ => self.incarnation,
        }
    }

    /// The record's bytes, at most [`RING_SLOT`]; `None` when the pool has too many open segments.
    pub fn encode(&self, sums: &Sums) -> Option<Vec<u8>> {
        let mut out = vec![0; RootHead::SIZE];
        let grow = |out: &mut Vec<u8>, by: usize| {
            let at = out.len();
            out.resize(at + by, 0);
            at
        };
        for group in &self.groups {
            let at = grow(&mut out, RootGroupEntry::SIZE);
            group.put(&mut out[at..]);
        }
        for device in &self.devices {
            let at = grow(&mut out, RootDeviceEntry::SIZE);
            device.put(&mut out[at..]);
        }
        for import in &self.history {
            let at = grow(&mut out, RootImport::SIZE);
            import.put(&mut out[at..]);
        }
        for segment in &self.segments {
            segment.encode(&mut out);
        }
        if out.len() > RING_SLOT {
            return None;
        }
        let [known_as, former] = self.identity.told(self.pool);
        let mut head = RootHead {
            magic: ROOT_MAGIC,
            version: FORMAT_VERSION,
            length: out.len() as u32,
            pool: self.pool,
            commit: self.commit,
            incarnation: self.incarnation,
            time: self.time,
            exported: if self.destroyed { 2 } else { u8::from(self.exported) },
            log_open: u8::from(self.log_open),
            host: self.host,
            block_lease: self.block_lease,
            segment_lease: self.segment_lease,
            oldest: self.oldest,
            applied: self.applied,
            log_offset: self.log_offset,
            log_sequence: self.log_sequence,
            log_previous: self.log_previous,
            log_incarnation: self.log_incarnation,
            features: self.features,
            next_device: self.next_device,
            next_group: self.next_group,
            traced: self.traced,
            known_as,
            former,
            tables: self.tables,
            groups: self.groups.len() as u16,
            devices: self.devices.len() as u16,
            history: self.history.len() as u16,
            segments: self.segments.len() as u16,
            sum: 0,
        };
        head.put(&mut out);
        head.sum = checksum::fast64(sums, &out);
        head.put(&mut out);
        Some(out)
    }

    /// Whether a device that is not there is only a number in what was written before: it was a copy of a mirror, and
    /// left.
    pub fn is_bygone(&self, device: &RootDevice) -> bool {
        let group = self.groups.iter().find(|group| group.index == device.group);
        device.leaving && group.is_some_and(|group| group.rule.layout.is_mirror())
    }

    /// Verifies the root record of the pool with these `sums` at the start of `bytes`.
    pub fn check(sums: &Sums, bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "root record";
        let head = RootHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(head.magic == ROOT_MAGIC, WHAT, Reason::Magic)?;
        let length = head.length as usize;
        ensure((RootHead::SIZE..=RING_SLOT).contains(&length), WHAT, Reason::Range)?;
        let bytes = bytes.get(..length).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(checksum::fast64_with_hole(sums, bytes, SUM_AT) == head.sum, WHAT, Reason::Checksum)?;
        // Behind the sum: what a newer build wrote is told from rot.
        ensure(head.version == FORMAT_VERSION, WHAT, Reason::Version)?;
        ensure(head.pool == sums.pool(), WHAT, Reason::Identity)?;
        head.features.check(WHAT)?;
        let identity = Identity::of_told(head.pool, head.features, [head.known_as, head.former])?;
        ensure(usize::from(head.history) <= MAX_HISTORY, WHAT, Reason::Range)?;
        ensure(head.oldest <= head.commit && head.exported <= 2 && head.log_open <= 1, WHAT, Reason::Range)?;
        let ids = [head.commit.get(), head.traced.get(), head.block_lease.get(), head.segment_lease.get()];
        ensure_countable(&ids, WHAT)?;
        ensure_countable(&[head.applied.get(), head.log_sequence], WHAT)?;
        let tables = head.tables.checked()?;

        let mut rest = &bytes[RootHead::SIZE..];
        let mut take = |len: usize| -> Result<&[u8], Corrupt> {
            let (taken, left) = rest.split_at_checked(len).ok_or(Corrupt::new(WHAT, Reason::Short))?;
            rest = left;
            Ok(taken)
        };
        let mut groups = Vec::new();
        for _ in 0..head.groups {
            groups.push(RootGroup::check(take(RootGroupEntry::SIZE)?)?);
        }
        let mut devices = Vec::new();
        for _ in 0..head.devices {
            devices.push(RootDevice::check(take(RootDeviceEntry::SIZE)?, head.commit)?);
        }
        check_members(&groups, &devices, head.next_group, head.next_device)?;
        let mut history = Vec::new();
        for _ in 0..head.history {
            history.push(RootImport::check(take(RootImport::SIZE)?)?);
        }
        let mut segments = Vec::new();
        for _ in 0..head.segments {
            let (segment, len) = SegmentRecord::decode(rest)?;
            segments.push(segment);
            rest = &rest[len..];
        }
        ensure(rest.is_empty(), WHAT, Reason::Range)?;
        Ok(Self {
            pool: head.pool,
            identity,
            commit: head.commit,
            incarnation: head.incarnation,
            time: head.time,
            exported: head.exported != 0,
            destroyed: head.exported == 2,
            log_open: head.log_open != 0,
            host: head.host,
            block_lease: head.block_lease,
            segment_lease: head.segment_lease,
            oldest: head.oldest,
            applied: head.applied,
            log_offset: head.log_offset,
            log_sequence: head.log_sequence,
            log_previous: head.log_previous,
            log_incarnation: head.log_incarnation,
            features: head.features,
            next_device: head.next_device,
            next_group: head.next_group,
            traced: head.traced,
            tables,
            groups,
            devices,
            history,
            segments,
        })
    }
}
