//! Segments: the layout formula, the descriptor at the start of every slot, stripe headers, and the
//! record that the segment table and the root keep of a segment.

use crate::checksum::{self, Sums};
use crate::error::ensure;
use crate::field::Field;
pub use crate::ids::{MAX_COLUMNS, MAX_SLOT};
use crate::ids::{MAX_PLACES, ensure_countable};
use crate::{
    BLOCK_STEP, BlockId, CommitId, Corrupt, DeviceIndex, GroupIndex, Incarnation, PoolGuid, Reason,
    SegmentId, SlotIndex, layout,
};

/// Bytes at the start of every slot that hold the segment's descriptor.
pub const DESCRIPTOR_LEN: u32 = 4096;
/// Stripes start and end on multiples of this many bytes, or of the device's sector when that is larger.
pub const STRIPE_STEP: u32 = 4096;
/// The smallest slot.
pub const MIN_SLOT: u32 = 1 << 20;

/// Classes of segments by how long what they hold is expected to live.
pub const CLASSES: u8 = 6;

/// The most data columns that parity can be computed over.
pub const MAX_PARITY_DATA: usize = 61;

/// `k` data columns × `r` replicas + `m` parity columns.
///
/// Column `i·r + j` is replica `j` of data column `i`; column `k·r + p` is parity `p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    k: u8,
    r: u8,
    m: u8,
}

impl Layout {
    /// A layout, when the numbers make one: `k`, `r` ≥ 1, `m` ≤ 3, at most [`MAX_COLUMNS`] columns, and
    /// with parity at most [`MAX_PARITY_DATA`] data columns.
    pub fn new(k: u8, r: u8, m: u8) -> Result<Self, Corrupt> {
        let columns = usize::from(k) * usize::from(r) + usize::from(m);
        ensure(k >= 1 && r >= 1 && m <= 3 && columns <= MAX_COLUMNS, "layout", Reason::Range)?;
        ensure(m == 0 || usize::from(k) <= MAX_PARITY_DATA, "layout", Reason::Range)?;
        Ok(Self { k, r, m })
    }
    /// Data columns.
    pub fn k(self) -> usize {
        usize::from(self.k)
    }
    /// Copies of each data column.
    pub fn r(self) -> usize {
        usize::from(self.r)
    }
    /// Parity columns.
    pub fn m(self) -> usize {
        usize::from(self.m)
    }
    /// All columns.
    pub fn columns(self) -> usize {
        self.k() * self.r() + self.m()
    }
    /// Whether each column has all of the data: a single device, or copies of one another.
    pub fn is_mirror(self) -> bool {
        self.k() == 1 && self.m() == 0
    }

    /// Losses that are survived whichever columns they are: `r + m − 1`.
    pub fn tolerance(self) -> usize {
        self.r() + self.m() - 1
    }
    /// Whether everything can still be read when `lost` says which columns are gone: a data column that
    /// lost all replicas needs one parity column, and each lost parity column is one less.
    pub fn survives(self, lost: impl Fn(usize) -> bool) -> bool {
        let dead = (0..self.k()).filter(|&i| (0..self.r()).all(|j| lost(self.replica(i, j)))).count();
        let parity = (0..self.m()).filter(|&p| lost(self.parity(p))).count();
        // Without a lost data column, lost parity costs nothing that is stored.
        dead == 0 || dead + parity <= self.m()
    }
    /// Number of further columns, whichever they are, that can be lost without losing data: the least over all
    /// ways of losing it. `None` when too many are lost already.
    ///
    /// To lose data, some number `n` of data columns must be dead with fewer than `n` parity columns left;
    /// the cheapest way to kill `n` takes those with the fewest replicas left.
    pub fn losses_survived(self, lost: impl Fn(usize) -> bool) -> Option<usize> {
        let mut left: Vec<usize> =
            (0..self.k()).map(|i| (0..self.r()).filter(|&j| !lost(self.replica(i, j))).count()).collect();
        left.sort_unstable();
        let parity = (0..self.m()).filter(|&p| !lost(self.parity(p))).count();
        let mut killed = 0;
        let ways = left.iter().enumerate().map(|(at, replicas)| {
            killed += replicas;
            killed + parity.saturating_sub(at)
        });
        ways.min().and_then(|fatal| fatal.checked_sub(1))
    }
    /// Devices that a root or log record must reach before anything is acknowledged: `m + r`.
    pub fn quorum(self) -> usize {
        self.r() + self.m()
    }
    /// The layout for what is less than a stripe: one data column, as many copies as losses survived.
    pub fn replicated(self) -> Self {
        Self { k: 1, r: self.r + self.m, m: 0 }
    }
    /// The column of replica `j` of data column `i`.
    pub fn replica(self, i: usize, j: usize) -> usize {
        i * self.r() + j
    }
    /// The column of parity `p`.
    pub fn parity(self, p: usize) -> usize {
        self.k() * self.r() + p
    }
}

impl Field for Layout {
    const SIZE: usize = 3;
    fn store(&self, out: &mut [u8]) {
        [self.k, self.r, self.m].store(out);
    }
    /// Unchecked: run the result through [`Layout::new`].
    fn load(from: &[u8]) -> Self {
        Self { k: from[0], r: from[1], m: from[2] }
    }
}

impl Layout {
    fn checked(self) -> Result<Self, Corrupt> {
        Self::new(self.k, self.r, self.m)
    }
}

/// Kind of a segment's content: streams are kept apart by age and use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum SegmentKind {
    /// Records in full stripes of the group's layout.
    Data = 1,
    /// Records that did not fill a stripe, replicated.
    Small = 2,
    /// Nodes of datasets' trees, and commit records, replicated.
    Node = 3,
    /// Pages of runs, replicated.
    Run = 4,
    /// Nodes of the pool's tables, replicated. Named by the root alone.
    Table = 5,
    /// The intent log, replicated. Named by the root alone.
    Log = 6,
}

impl SegmentKind {
    /// The kind that a stored number names.
    pub fn from_byte(byte: u8) -> Result<Self, Corrupt> {
        Ok(match byte {
            1 => Self::Data,
            2 => Self::Small,
            3 => Self::Node,
            4 => Self::Run,
            5 => Self::Table,
            6 => Self::Log,
            _ => return Err(Corrupt::new("segment", Reason::Kind)),
        })
    }
    /// Kinds that the segment table leaves to the root.
    pub fn is_rooted(self) -> bool {
        matches!(self, Self::Table | Self::Log)
    }
}

/// One column's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The device.
    pub device: DeviceIndex,
    /// The slot on it.
    pub index: SlotIndex,
}

impl Field for Slot {
    const SIZE: usize = 6;
    fn store(&self, out: &mut [u8]) {
        self.device.store(out);
        self.index.store(&mut out[2..]);
    }
    fn load(from: &[u8]) -> Self {
        Self { device: DeviceIndex::load(from), index: SlotIndex::load(&from[2..]) }
    }
}

/// Where a segment stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SegmentState {
    /// Stripes are being appended.
    Open = 1,
    /// Complete; its blocks are read.
    Closed = 2,
    /// Nothing live in it; its slots are free once the commit after the next is durable.
    Freed = 3,
    /// Complete, and blocks have been moved out of it: only the block map says whether one is still here.
    Emptying = 4,
}

layout! {
    /// The fixed part of a [`SegmentRecord`]; the slots follow it.
    pub struct SegmentHead[96] {
        /// The segment's id.
        id: SegmentId = 0,
        /// A [`SegmentKind`].
        kind: u8 = 8,
        /// A [`SegmentState`].
        state: u8 = 9,
        /// The group whose devices it lies on.
        group: GroupIndex = 10,
        /// The layout: k, r, m.
        layout: Layout = 12,
        /// Number of slots that follow.
        columns: u8 = 15,
        /// Committed height: bytes of every column that hold descriptor and whole stripes.
        height: u32 = 16,
        /// Blocks in it that are not freed.
        live_blocks: u32 = 20,
        /// Footprints of those blocks, bytes.
        live_bytes: u64 = 24,
        /// The commit that opened it.
        birth: CommitId = 32,
        /// The commit that freed it; 0 while it lives.
        freed: CommitId = 40,
        /// The import under which it was opened.
        incarnation: Incarnation = 48,
        /// Footprints of all blocks that were put into it, bytes.
        placed: u64 = 56,
        /// The next block id when it was closed, from which its age is reckoned; 0 while it is open.
        closed_at: BlockId = 64,
        /// Expected lifetime of its content, as a class: 0 is shortest. See the pool's streams.
        class: u8 = 72,
        /// 1 when something of it is lost and not all files that this belongs to have been named yet, else 0.
        unnamed: u8 = 73,
        /// Which place of its blocks is here: 0 for the first. No two of one block are in segments of one copy.
        copy: u8 = 74,
        /// The commit of its last stripe; a device that holds all up to that one holds it whole.
        filled: CommitId = 80,
        /// When all of it was read and found sound, or made so: seconds since 1970; 0 never.
        verified: u64 = 88,
    }
}

/// A segment, as the segment table or the root records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRecord {
    /// The segment's id.
    pub id: SegmentId,
    /// Kind of content.
    pub kind: SegmentKind,
    /// Where it stands in its life.
    pub state: SegmentState,
    /// The group whose devices it lies on.
    pub group: GroupIndex,
    /// Its layout.
    pub layout: Layout,
    /// Committed height, bytes of every column.
    pub height: u32,
    /// Blocks that are not freed.
    pub live_blocks: u32,
    /// Footprints of those blocks, bytes.
    pub live_bytes: u64,
    /// The commit that opened it.
    pub birth: CommitId,
    /// The commit that freed it; 0 while it lives.
    pub freed: CommitId,
    /// The import under which it was opened.
    pub incarnation: Incarnation,
    /// Footprints of all blocks that were put into it, bytes.
    pub placed: u64,
    /// The next block id when it was closed; 0 while it is open.
    pub closed_at: BlockId,
    /// Expected lifetime of its content, as a class below [`CLASSES`]; 0 is shortest.
    pub class: u8,
    /// Something of it is lost, and not all files that this belongs to are in the damage ledger yet.
    pub unnamed: bool,
    /// Which place of its blocks is here, below [`MAX_PLACES`].
    pub copy: u8,
    /// The commit of its last stripe; not kept for the log.
    pub filled: CommitId,
    /// When all of it was read and found sound, or made so: seconds since 1970; 0 never.
    pub verified: u64,
    /// One slot a column.
    pub slots: Vec<Slot>,
}

impl SegmentRecord {
    /// Appends the record to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.resize(at + SegmentHead::SIZE + self.slots.len() * Slot::SIZE, 0);
        SegmentHead {
            id: self.id,
            kind: self.kind as u8,
            state: self.state as u8,
            group: self.group,
            layout: self.layout,
            columns: self.slots.len() as u8,
            height: self.height,
            live_blocks: self.live_blocks,
            live_bytes: self.live_bytes,
            birth: self.birth,
            freed: self.freed,
            incarnation: self.incarnation,
            placed: self.placed,
            closed_at: self.closed_at,
            class: self.class,
            unnamed: u8::from(self.unnamed),
            copy: self.copy,
            filled: self.filled,
            verified: self.verified,
        }
        .put(&mut out[at..]);
        for (i, slot) in self.slots.iter().enumerate() {
            slot.store(&mut out[at + SegmentHead::SIZE + i * Slot::SIZE..]);
        }
    }

    /// Reads a record from the start of `bytes`; returns it and its length.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), Corrupt> {
        const WHAT: &str = "segment record";
        let head = SegmentHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let layout = head.layout.checked()?;
        ensure(usize::from(head.columns) == layout.columns(), WHAT, Reason::Range)?;
        let heights = DESCRIPTOR_LEN..=MAX_SLOT;
        let height_ok = heights.contains(&head.height) && head.height.is_multiple_of(STRIPE_STEP);
        ensure(height_ok, WHAT, Reason::Range)?;
        ensure(head.live_bytes <= layout.columns() as u64 * u64::from(MAX_SLOT), WHAT, Reason::Range)?;
        ensure(head.placed <= layout.columns() as u64 * u64::from(MAX_SLOT), WHAT, Reason::Range)?;
        ensure(head.live_bytes <= head.placed && head.class < CLASSES, WHAT, Reason::Range)?;
        let counted =
            [head.id.get(), head.birth.get(), head.freed.get(), head.closed_at.get(), head.filled.get()];
        ensure_countable(&counted, WHAT)?;
        ensure(head.verified <= i64::MAX as u64 && head.unnamed <= 1, WHAT, Reason::Range)?;
        ensure(usize::from(head.copy) < MAX_PLACES, WHAT, Reason::Range)?;
        let len = SegmentHead::SIZE + layout.columns() * Slot::SIZE;
        let slots = bytes.get(SegmentHead::SIZE..len).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let state = match head.state {
            1 => SegmentState::Open,
            2 => SegmentState::Closed,
            3 => SegmentState::Freed,
            4 => SegmentState::Emptying,
            _ => return Err(Corrupt::new(WHAT, Reason::Kind)),
        };
        ensure((state == SegmentState::Freed) == (head.freed.get() > 0), WHAT, Reason::Range)?;
        let slots: Vec<Slot> = slots.chunks_exact(Slot::SIZE).map(Slot::load).collect();
        let mut devices: Vec<_> = slots.iter().map(|slot| slot.device).collect();
        devices.sort_unstable();
        ensure(devices.is_sorted_by(|a, b| a < b), WHAT, Reason::Order)?;
        let record = Self {
            id: head.id,
            kind: SegmentKind::from_byte(head.kind)?,
            state,
            group: head.group,
            layout,
            height: head.height,
            live_blocks: head.live_blocks,
            live_bytes: head.live_bytes,
            birth: head.birth,
            freed: head.freed,
            incarnation: head.incarnation,
            placed: head.placed,
            closed_at: head.closed_at,
            class: head.class,
            unnamed: head.unnamed == 1,
            copy: head.copy,
            filled: head.filled,
            verified: head.verified,
            slots,
        };
        Ok((record, len))
    }
}

/// `LSEG`.
pub const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"LSEG");

layout! {
    /// The fixed part of the descriptor at the start of every slot. The [`SegmentHead`] record follows
    /// at 64; the last eight bytes of the [`DESCRIPTOR_LEN`] are the sum of all before.
    pub struct DescriptorHead[64] {
        /// [`SEGMENT_MAGIC`].
        magic: u32 = 0,
        /// The column that this slot holds.
        column: u8 = 4,
        /// The pool.
        pool: PoolGuid = 8,
    }
}

/// The descriptor bytes for column `column` of `segment`, as the segment was when opened.
pub fn encode_descriptor(sums: &Sums, segment: &SegmentRecord, column: usize) -> Vec<u8> {
    let mut out = vec![0; DescriptorHead::SIZE];
    DescriptorHead { magic: SEGMENT_MAGIC, column: column as u8, pool: sums.pool() }.put(&mut out);
    segment.encode(&mut out);
    out.resize(DESCRIPTOR_LEN as usize, 0);
    let end = out.len() - 8;
    checksum::fast64(sums, &out[..end]).store(&mut out[end..]);
    out
}

/// Verifies a slot's descriptor; returns the segment as it was when opened and the slot's column.
pub fn check_descriptor(sums: &Sums, bytes: &[u8]) -> Result<(SegmentRecord, usize), Corrupt> {
    const WHAT: &str = "segment descriptor";
    let bytes = bytes.get(..DESCRIPTOR_LEN as usize).ok_or(Corrupt::new(WHAT, Reason::Short))?;
    let head = DescriptorHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
    ensure(head.magic == SEGMENT_MAGIC, WHAT, Reason::Magic)?;
    let end = bytes.len() - 8;
    ensure(checksum::fast64(sums, &bytes[..end]) == u64::load(&bytes[end..]), WHAT, Reason::Checksum)?;
    ensure(head.pool == sums.pool(), WHAT, Reason::Identity)?;
    let (record, _) = SegmentRecord::decode(&bytes[DescriptorHead::SIZE..end])?;
    ensure(usize::from(head.column) < record.layout.columns(), WHAT, Reason::Range)?;
    Ok((record, usize::from(head.column)))
}

/// `LROW`.
pub const STRIPE_MAGIC: u32 = u32::from_le_bytes(*b"LROW");

layout! {
    /// The fixed part of the header in front of each column of a stripe. The 16-byte XXH3-128 of every
    /// column's bytes behind the header follow it, in column order: data, replicas, padding and
    /// parity alike.
    pub struct StripeHead[64] {
        /// [`STRIPE_MAGIC`].
        magic: u32 = 0,
        /// Number of column sums that follow.
        columns: u8 = 4,
        /// The column that this header stands in.
        column: u8 = 5,
        /// The segment.
        segment: SegmentId = 8,
        /// Where the stripe starts, bytes from the start of the slot.
        offset: u32 = 16,
        /// Bytes of each column, header and padding included.
        height: u32 = 20,
        /// The commit that the stripe was written for.
        commit: CommitId = 24,
        /// The import under which it was written.
        incarnation: Incarnation = 32,
        /// Bytes of blocks behind the header in this column, before padding; 0 in parity columns.
        used: u32 = 40,
        /// XXH3-64 of the whole header, sums included, with this field as zero.
        header_sum: u64 = 48,
    }
}

/// Bytes of a stripe's header when the segment has `columns` columns; a multiple of [`crate::BLOCK_STEP`].
pub const fn stripe_header_len(columns: usize) -> u32 {
    (StripeHead::SIZE + 16 * columns) as u32
}

/// A stripe's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripeHeader {
    /// The segment.
    pub segment: SegmentId,
    /// Where the stripe starts, bytes from the start of the slot.
    pub offset: u32,
    /// Bytes of each column, header and padding included.
    pub height: u32,
    /// The commit that the stripe was written for.
    pub commit: CommitId,
    /// The import under which it was written.
    pub incarnation: Incarnation,
    /// The column that this header stands in.
    pub column: u8,
    /// Bytes of blocks in this column.
    pub used: u32,
    /// XXH3-128 of every column behind its header.
    pub sums: Vec<u128>,
}

impl StripeHeader {
    /// Writes the header at the start of `out`, which holds [`stripe_header_len`] bytes.
    pub fn put(&self, sums: &Sums, out: &mut [u8]) {
        let len = stripe_header_len(self.sums.len()) as usize;
        let mut head = StripeHead {
            magic: STRIPE_MAGIC,
            columns: self.sums.len() as u8,
            column: self.column,
            segment: self.segment,
            offset: self.offset,
            height: self.height,
            commit: self.commit,
            incarnation: self.incarnation,
            used: self.used,
            header_sum: 0,
        };
        head.put(out);
        for (i, sum) in self.sums.iter().enumerate() {
            sum.store(&mut out[StripeHead::SIZE + 16 * i..]);
        }
        head.header_sum = checksum::fast64(sums, &out[..len]);
        head.put(out);
    }

    /// Verifies the stripe header at the start of `bytes`.
    pub fn check(sums: &Sums, bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "row header";
        let head = StripeHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(head.magic == STRIPE_MAGIC, WHAT, Reason::Magic)?;
        let columns = usize::from(head.columns);
        ensure((1..=MAX_COLUMNS).contains(&columns), WHAT, Reason::Range)?;
        let header_len = stripe_header_len(columns);
        let bytes = bytes.get(..header_len as usize).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let sum = checksum::fast64_with_hole(sums, bytes, 48);
        ensure(sum == head.header_sum, WHAT, Reason::Checksum)?;
        ensure(head.column < head.columns, WHAT, Reason::Range)?;
        let aligned = head.offset.is_multiple_of(STRIPE_STEP) && head.height.is_multiple_of(STRIPE_STEP);
        ensure(aligned && head.used.is_multiple_of(BLOCK_STEP), WHAT, Reason::Range)?;
        let end = u64::from(head.offset) + u64::from(head.height);
        ensure(head.offset >= DESCRIPTOR_LEN && end <= u64::from(MAX_SLOT), WHAT, Reason::Range)?;
        ensure(u64::from(header_len) + u64::from(head.used) <= u64::from(head.height), WHAT, Reason::Range)?;
        Ok(Self {
            segment: head.segment,
            offset: head.offset,
            height: head.height,
            commit: head.commit,
            incarnation: head.incarnation,
            column: head.column,
            used: head.used,
            sums: bytes[StripeHead::SIZE..].chunks_exact(16).map(u128::load).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least number of further losses that is fatal, by trying all sets.
    fn brute_force(layout: Layout, lost: u32) -> Option<usize> {
        let columns = layout.columns() as u32;
        let survives = |set: u32| layout.survives(|column| set >> column & 1 == 1);
        let fatal = (0..1u32 << columns)
            .filter(|more| more & lost == 0 && !survives(lost | more))
            .map(u32::count_ones)
            .min()
            .expect("losing everything is fatal");
        (fatal as usize).checked_sub(1)
    }

    #[test]
    fn losses_survived_are_those_that_no_choice_of_columns_makes_fatal() {
        for (k, r, m) in
            [(1, 1, 0), (1, 3, 0), (2, 2, 0), (3, 1, 1), (4, 1, 2), (2, 1, 3), (2, 2, 1), (3, 2, 1)]
        {
            let layout = Layout::new(k, r, m).unwrap();
            assert_eq!(layout.losses_survived(|_| false), Some(layout.tolerance()));
            for lost in 0..1u32 << layout.columns() {
                let quick = layout.losses_survived(|column| lost >> column & 1 == 1);
                assert_eq!(quick, brute_force(layout, lost), "{layout:?} without {lost:b}");
            }
        }
    }
}
