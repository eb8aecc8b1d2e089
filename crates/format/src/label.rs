//! Labels: what a device says of itself, at both of its ends, and the heartbeat beside them.

use crate::checksum::{self, PoolKey, Sums};
use crate::error::ensure;
use crate::field::Field;
use crate::ids::ensure_countable;
use crate::segment::{DESCRIPTOR_LEN, Layout, MAX_SLOT, MIN_SLOT};
use crate::{
    ByteLen, Corrupt, DeviceGuid, DeviceIndex, DeviceOffset, GroupIndex, HostId, Incarnation, PoolGuid,
    Reason, Timestamp, layout,
};

/// Bytes of the label area at each end of a device.
pub const LABEL_AREA: u64 = 1 << 20;
/// Bytes of a label, and of a heartbeat.
pub const LABEL_LEN: usize = 4096;
/// Where the heartbeat lies in the label area: in no sector with the label, whatever the device's.
pub const HEARTBEAT_OFFSET: u64 = 1 << MAX_ASHIFT;
/// Where the ring of root records starts in the label area.
pub const RING_OFFSET: u64 = 2 << MAX_ASHIFT;
/// Bytes of one place in the ring: a sector at least.
pub const RING_SLOT: usize = 1 << MAX_ASHIFT;
/// Places in the ring.
pub const RING_SLOTS: u64 = 14;
/// The least alignment of stripes, log2: 512-byte sectors are never believed.
pub const MIN_ASHIFT: u8 = 12;
/// The greatest alignment of stripes, log2.
pub const MAX_ASHIFT: u8 = 16;
/// The smallest device that can be a pool's.
pub const MIN_DEVICE: u64 = 64 << 20;
/// The version of the whole format; a pool of another version is refused.
pub const FORMAT_VERSION: u32 = 9;
/// `LARDERPL`.
pub const LABEL_MAGIC: u64 = u64::from_le_bytes(*b"LARDERPL");
/// `LARDERHB`.
pub const HEARTBEAT_MAGIC: u64 = u64::from_le_bytes(*b"LARDERHB");
/// The longest pool name, bytes.
pub const MAX_NAME: usize = 255;

/// Where the two label areas start on a device of `size` bytes.
///
/// # Panics
/// When the device is smaller than one area.
pub fn label_areas(size: ByteLen) -> [DeviceOffset; 2] {
    let end = size.get() / LABEL_AREA * LABEL_AREA;
    [DeviceOffset::new(0), DeviceOffset::new(end - LABEL_AREA)]
}

/// The word by which people ask for a group's redundancy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LayoutKind {
    /// One device.
    Single = 1,
    /// Copies on every device.
    Mirror = 2,
    /// Parity over single columns; the number of parity columns is the layout's `m`.
    Raidz = 3,
    /// A stripe of two-way mirrors in one group.
    Raid10 = 4,
    /// Mirrored columns and one parity column over them.
    Raid14 = 5,
}

/// The rule under which some devices make a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupRule {
    /// The word people use.
    pub word: LayoutKind,
    /// The layout of the group's full-width segments.
    pub layout: Layout,
}

impl Field for GroupRule {
    const SIZE: usize = 4;
    fn store(&self, out: &mut [u8]) {
        out[0] = self.word as u8;
        self.layout.store(&mut out[1..]);
    }
    /// Unchecked: the word of an unknown number reads as single; see [`GroupRule::load_checked`].
    fn load(from: &[u8]) -> Self {
        Self { word: word(from[0]).unwrap_or(LayoutKind::Single), layout: Layout::load(&from[1..]) }
    }
}

fn word(byte: u8) -> Option<LayoutKind> {
    Some(match byte {
        1 => LayoutKind::Single,
        2 => LayoutKind::Mirror,
        3 => LayoutKind::Raidz,
        4 => LayoutKind::Raid10,
        5 => LayoutKind::Raid14,
        _ => return None,
    })
}

impl GroupRule {
    /// Reads a rule and verifies that it is one.
    pub fn load_checked(from: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "group rule";
        ensure(from.len() >= Self::SIZE, WHAT, Reason::Short)?;
        let word = word(from[0]).ok_or(Corrupt::new(WHAT, Reason::Kind))?;
        let layout = Layout::new(from[1], from[2], from[3])?;
        let (k, r, m) = (layout.k(), layout.r(), layout.m());
        let fits = match word {
            LayoutKind::Single => (k, r, m) == (1, 1, 0),
            LayoutKind::Mirror => (k, m) == (1, 0),
            LayoutKind::Raidz => r == 1 && m > 0,
            LayoutKind::Raid10 => (r, m) == (2, 0),
            LayoutKind::Raid14 => (r, m) == (2, 1),
        };
        ensure(fits, WHAT, Reason::Range)?;
        Ok(Self { word, layout })
    }

    /// Its name in status: `mirror`, `raidz2`, …
    pub fn name(&self) -> String {
        match self.word {
            LayoutKind::Single => "single".into(),
            LayoutKind::Mirror => "mirror".into(),
            LayoutKind::Raidz => format!("raidz{}", self.layout.m()),
            LayoutKind::Raid10 => "raid10".into(),
            LayoutKind::Raid14 => "raid14".into(),
        }
    }
}

/// Features of the format that a pool may use, by what an older build may still do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Unknown bits here do no harm.
    pub compatible: u64,
    /// Unknown bits here allow reading only.
    pub read_compatible: u64,
    /// Unknown bits here forbid everything.
    pub incompatible: u64,
}

impl Features {
    /// Incompatible: blocks may have several places, of which who knows none but the first frees only that; extents say
    /// how many they are charged for.
    pub const COPIES: u64 = 16;
    /// Incompatible: records may begin with the sums of their frames.
    pub const FRAMES: u64 = 2;
    /// Extents may tell in which commit their block was [put where it is](crate::items::Extent::placed).
    pub const PLACED: u64 = 4;
    /// Incompatible: a block may be an alias of another, which whoever frees that one must know.
    pub const ALIASES: u64 = 8;

    /// Incompatible: the pool is known by another GUID than its blocks name ([`crate::root::Identity`]).
    pub const IDENTITY: u64 = 32;

    /// Incompatible features that this build does not know.
    pub fn unknown(self) -> u64 {
        self.incompatible & !(Self::COPIES | Self::FRAMES | Self::PLACED | Self::ALIASES | Self::IDENTITY)
    }

    /// Refuses what this build may not even read.
    pub(crate) fn check(self, what: &'static str) -> Result<Self, Corrupt> {
        ensure(self.unknown() == 0, what, Reason::Feature)?;
        Ok(self)
    }
}

impl Field for Features {
    const SIZE: usize = 24;
    fn store(&self, out: &mut [u8]) {
        self.compatible.store(out);
        self.read_compatible.store(&mut out[8..]);
        self.incompatible.store(&mut out[16..]);
    }
    fn load(from: &[u8]) -> Self {
        Self {
            compatible: u64::load(from),
            read_compatible: u64::load(&from[8..]),
            incompatible: u64::load(&from[16..]),
        }
    }
}

layout! {
    /// The fixed part of a label; the pool's name follows it, and the last eight bytes of the
    /// [`LABEL_LEN`] are the XXH3-64, without a key, of all before.
    pub struct LabelHead[256] {
        /// [`LABEL_MAGIC`].
        magic: u64 = 0,
        /// [`FORMAT_VERSION`].
        version: u32 = 8,
        /// Counts rewrites; the higher of a device's two labels is the newer.
        sequence: u64 = 16,
        /// The pool.
        pool: PoolGuid = 24,
        /// The device.
        device: DeviceGuid = 32,
        /// The device's number in the pool.
        index: DeviceIndex = 40,
        /// The group it belongs to.
        group: GroupIndex = 42,
        /// The group's rule.
        rule: GroupRule = 44,
        /// Bytes of a slot.
        slot_size: u32 = 48,
        /// Number of slots.
        slot_count: u32 = 52,
        /// Where slot 0 starts.
        data_start: DeviceOffset = 56,
        /// The device's size when it was labelled.
        device_size: ByteLen = 64,
        /// When the pool was made.
        created: Timestamp = 72,
        /// log2 of the alignment of stripes.
        ashift: u8 = 84,
        /// Bytes of the pool's name.
        name_len: u8 = 85,
        /// Features in use.
        features: Features = 88,
        /// Key of the pool's checksums.
        key: PoolKey = 112,
    }
}

const WHAT: &str = "label";

/// A device's label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Counts rewrites.
    pub sequence: u64,
    /// The pool.
    pub pool: PoolGuid,
    /// The pool's name.
    pub name: String,
    /// The device.
    pub device: DeviceGuid,
    /// The device's number in the pool.
    pub index: DeviceIndex,
    /// The group it belongs to.
    pub group: GroupIndex,
    /// The group's rule.
    pub rule: GroupRule,
    /// Bytes of a slot.
    pub slot_size: u32,
    /// Number of slots.
    pub slot_count: u32,
    /// Where slot 0 starts.
    pub data_start: DeviceOffset,
    /// The device's size when it was labelled.
    pub device_size: ByteLen,
    /// When the pool was made.
    pub created: Timestamp,
    /// log2 of the alignment of stripes.
    pub ashift: u8,
    /// Features in use.
    pub features: Features,
    /// Key of the pool's checksums.
    pub key: PoolKey,
}

impl Label {
    /// The label's [`LABEL_LEN`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.encoded_head();
        out.resize(LABEL_LEN, 0);
        put_sum(&mut out);
        out
    }

    /// Those of head and name.
    pub(crate) fn encoded_head(&self) -> Vec<u8> {
        let mut out = vec![0; LabelHead::SIZE];
        LabelHead {
            magic: LABEL_MAGIC,
            version: FORMAT_VERSION,
            sequence: self.sequence,
            pool: self.pool,
            device: self.device,
            index: self.index,
            group: self.group,
            rule: self.rule,
            slot_size: self.slot_size,
            slot_count: self.slot_count,
            data_start: self.data_start,
            device_size: self.device_size,
            created: self.created,
            ashift: self.ashift,
            name_len: self.name.len() as u8,
            features: self.features,
            key: self.key,
        }
        .put(&mut out);
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    /// Whether it is of the pool with these sums. The pool's GUID alone does not say so: everybody knows that.
    pub fn is_of(&self, sums: &Sums) -> bool {
        (self.pool, self.key) == (sums.pool(), sums.key())
    }

    /// Verifies a label.
    pub fn check(bytes: &[u8]) -> Result<Self, Corrupt> {
        Self::check_head(take_summed(bytes, WHAT, LABEL_MAGIC)?).map(|(label, _)| label)
    }

    /// Verifies head and name at the start of `bytes`; how many these are.
    pub(crate) fn check_head(bytes: &[u8]) -> Result<(Self, usize), Corrupt> {
        let head = LabelHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(head.magic == LABEL_MAGIC, WHAT, Reason::Magic)?;
        ensure(head.version == FORMAT_VERSION, WHAT, Reason::Version)?;
        head.features.check(WHAT)?;
        let slot_ok = head.slot_size.is_power_of_two() && (MIN_SLOT..=MAX_SLOT).contains(&head.slot_size);
        ensure(slot_ok, WHAT, Reason::Range)?;
        ensure((MIN_ASHIFT..=MAX_ASHIFT).contains(&head.ashift), WHAT, Reason::Range)?;
        ensure_countable(&[head.sequence, head.device_size.get()], WHAT)?;
        ensure(head.created.nanos < 1_000_000_000, WHAT, Reason::Range)?;
        let start = head.data_start.get();
        let stripes = start.saturating_add(u64::from(DESCRIPTOR_LEN));
        ensure(start >= LABEL_AREA && stripes.is_multiple_of(1 << head.ashift), WHAT, Reason::Range)?;
        let end = start.checked_add(u64::from(head.slot_count) * u64::from(head.slot_size));
        ensure(head.device_size.get() >= 2 * LABEL_AREA, WHAT, Reason::Range)?;
        let last_area = label_areas(head.device_size)[1].get();
        ensure(end.is_some_and(|end| end <= last_area), WHAT, Reason::Range)?;
        let end = LabelHead::SIZE + usize::from(head.name_len);
        let name = bytes.get(LabelHead::SIZE..end).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let name = std::str::from_utf8(name).map_err(|_| Corrupt::new(WHAT, Reason::Range))?;
        ensure(!name.chars().any(char::is_control), WHAT, Reason::Range)?;
        let label = Self {
            sequence: head.sequence,
            pool: head.pool,
            name: name.to_owned(),
            device: head.device,
            index: head.index,
            group: head.group,
            rule: GroupRule::load_checked(&bytes[44..])?,
            slot_size: head.slot_size,
            slot_count: head.slot_count,
            data_start: head.data_start,
            device_size: head.device_size,
            created: head.created,
            ashift: head.ashift,
            features: head.features,
            key: head.key,
        };
        Ok((label, end))
    }
}

layout! {
    /// The host that has the pool imported, and a sign of life. The host's name follows; sealed as a label is.
    pub struct HeartbeatHead[64] {
        /// [`HEARTBEAT_MAGIC`].
        magic: u64 = 0,
        /// The pool.
        pool: PoolGuid = 8,
        /// The host.
        host: HostId = 16,
        /// The import.
        incarnation: Incarnation = 24,
        /// Grows while the pool is imported.
        beats: u64 = 32,
        /// Bytes of the host's name.
        name_len: u8 = 40,
    }
}

/// The host that has the pool imported, and a sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The pool.
    pub pool: PoolGuid,
    /// The host.
    pub host: HostId,
    /// The host's name, for people.
    pub host_name: String,
    /// The import.
    pub incarnation: Incarnation,
    /// Grows while the pool is imported.
    pub beats: u64,
}

impl Heartbeat {
    /// The heartbeat's [`LABEL_LEN`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; LABEL_LEN];
        let name = &self.host_name.as_bytes()[..self.host_name.len().min(MAX_NAME)];
        HeartbeatHead {
            magic: HEARTBEAT_MAGIC,
            pool: self.pool,
            host: self.host,
            incarnation: self.incarnation,
            beats: self.beats,
            name_len: name.len() as u8,
        }
        .put(&mut out);
        out[HeartbeatHead::SIZE..HeartbeatHead::SIZE + name.len()].copy_from_slice(name);
        put_sum(&mut out);
        out
    }

    /// Verifies a heartbeat.
    pub fn check(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "heartbeat";
        let bytes = take_summed(bytes, WHAT, HEARTBEAT_MAGIC)?;
        let head = HeartbeatHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let name = &bytes[HeartbeatHead::SIZE..HeartbeatHead::SIZE + usize::from(head.name_len)];
        Ok(Self {
            pool: head.pool,
            host: head.host,
            // It stands in what people are told.
            host_name: String::from_utf8_lossy(name).replace(char::is_control, "\u{fffd}"),
            incarnation: head.incarnation,
            beats: head.beats,
        })
    }
}

/// Sums all but the last eight bytes into them. Without a key: a label must be readable before its pool is known.
fn put_sum(out: &mut [u8]) {
    let end = out.len() - 8;
    checksum::plain64(&out[..end]).store(&mut out[end..]);
}

fn take_summed<'a>(bytes: &'a [u8], what: &'static str, magic: u64) -> Result<&'a [u8], Corrupt> {
    let bytes = bytes.get(..LABEL_LEN).ok_or(Corrupt::new(what, Reason::Short))?;
    ensure(u64::load(bytes) == magic, what, Reason::Magic)?;
    let (body, sum) = bytes.split_at(LABEL_LEN - 8);
    ensure(checksum::plain64(body) == u64::load(sum), what, Reason::Checksum)?;
    Ok(body)
}
