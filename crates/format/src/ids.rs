//! Ids, places, sizes: newtypes, so that what must not be mixed does not compile.

use crate::error::ensure;
use crate::field::Field;
use crate::{Corrupt, Reason};

/// The most columns a segment may have.
pub const MAX_COLUMNS: usize = 64;
/// The most places a block may have.
pub const MAX_PLACES: usize = 3;
/// The largest slot.
pub const MAX_SLOT: u32 = 64 << 20;
use std::fmt;

macro_rules! id {
    ($($(#[$meta:meta])* $name:ident($inner:ty)),* $(,)?) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a number that is known to be one.
            pub const fn new(value: $inner) -> Self { Self(value) }
            /// The number.
            pub const fn get(self) -> $inner { self.0 }
            /// The id after this one. Ids are never reused, so overflow is a bug.
            #[must_use]
            pub fn next(self) -> Self { Self(self.0.checked_add(1).expect("ids never run out")) }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }

        impl Field for $name {
            const SIZE: usize = size_of::<$inner>();
            fn store(&self, out: &mut [u8]) { self.0.store(out); }
            fn load(from: &[u8]) -> Self { Self(<$inner>::load(from)) }
        }
    )*};
}

id! {
    /// Names a pool for ever.
    PoolGuid(u64),
    /// Names a device for ever, wherever its path is.
    DeviceGuid(u64),
    /// A device's number in its pool; never reused.
    DeviceIndex(u16),
    /// A group's number in its pool; never reused.
    GroupIndex(u16),
    /// A block: monotonic over the pool's life, never reused; the order of ids is the order of birth.
    BlockId(u64),
    /// A segment: never reused.
    SegmentId(u64),
    /// A commit: what zfs calls a txg.
    CommitId(u64),
    /// One import of the pool; random, so that two histories cannot be confused.
    Incarnation(u64),
    /// A dataset; never reused.
    DatasetId(u64),
    /// A file, folder, link or special file within its dataset; never reused.
    InodeId(u64),
    /// A logged operation's place in the pool's order.
    OpSeq(u64),
    /// A host that imports pools.
    HostId(u64),
    /// A slot's number on its device, from 0.
    SlotIndex(u32),
}

/// Bytes from the start of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceOffset(u64);

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteLen(u64);

impl DeviceOffset {
    /// Wraps a byte position.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
    /// The byte position.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl ByteLen {
    /// Wraps a number of bytes.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl std::ops::Add<ByteLen> for DeviceOffset {
    type Output = DeviceOffset;
    fn add(self, rhs: ByteLen) -> DeviceOffset {
        DeviceOffset(self.0 + rhs.0)
    }
}

macro_rules! u64_field {
    ($($t:ident),*) => {$(
        impl Field for $t {
            const SIZE: usize = 8;
            fn store(&self, out: &mut [u8]) { self.0.store(out); }
            fn load(from: &[u8]) -> Self { Self(u64::load(from)) }
        }
    )*};
}
u64_field!(DeviceOffset, ByteLen);

/// No id and no counter on disk is greater. None gets there in a pool's life, so decoders refuse what
/// does, and arithmetic on what they accept cannot overflow.
pub const MAX_COUNT: u64 = (1 << 62) - 1;

/// Refuses counters above [`MAX_COUNT`].
pub(crate) fn ensure_countable(counts: &[u64], what: &'static str) -> Result<(), Corrupt> {
    ensure(counts.iter().all(|&count| count <= MAX_COUNT), what, Reason::Range)
}

/// Blocks start and end on multiples of this many bytes.
pub const BLOCK_STEP: u32 = 8;

/// Where a block is: segment, column of the segment, offset in that column's slot, stored length.
///
/// 16 bytes on disk: segment u64; column u8 and offset / 8 as u24 in one u32; stored length u32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The segment.
    pub segment: SegmentId,
    /// The *data* column, from 0 to `k` − 1; its replicas hold the same bytes.
    pub column: u8,
    /// Bytes from the start of the column's slot; a multiple of [`BLOCK_STEP`], below 64 MiB.
    pub offset: u32,
    /// Bytes stored, header included, before padding to [`BLOCK_STEP`].
    pub stored: u32,
}

impl Place {
    /// The place, when it can be one: a column that a segment may have, and bytes inside the largest slot.
    pub fn checked(self) -> Result<Self, Corrupt> {
        let fits = u64::from(self.offset) + u64::from(self.stored) <= u64::from(MAX_SLOT);
        let aligned = self.offset.is_multiple_of(BLOCK_STEP) && self.stored > 0;
        ensure(fits && aligned && usize::from(self.column) < MAX_COLUMNS, "place", Reason::Range)?;
        Ok(self)
    }

    /// Bytes that the block takes in its column: the stored length rounded up to [`BLOCK_STEP`].
    pub const fn footprint(&self) -> u32 {
        self.stored.next_multiple_of(BLOCK_STEP)
    }
}

impl Field for Place {
    const SIZE: usize = 16;
    fn store(&self, out: &mut [u8]) {
        debug_assert!(self.offset.is_multiple_of(BLOCK_STEP) && self.offset / BLOCK_STEP < 1 << 24);
        self.segment.store(out);
        ((u32::from(self.column) << 24) | (self.offset / BLOCK_STEP)).store(&mut out[8..]);
        self.stored.store(&mut out[12..]);
    }
    fn load(from: &[u8]) -> Self {
        let packed = u32::load(&from[8..]);
        Self {
            segment: SegmentId::load(from),
            column: (packed >> 24) as u8,
            offset: (packed & 0x00ff_ffff) * BLOCK_STEP,
            stored: u32::load(&from[12..]),
        }
    }
}

/// A block's id with the place where it was last known to be. That is a hint, and the block map decides; but for nodes
/// of the pool's tables and pages of runs, which the map does not know: there it is the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockPtr {
    /// The block.
    pub id: BlockId,
    /// Where it was written.
    pub place: Place,
}

impl BlockPtr {
    /// The pointer, when its place can be one: see [`Place::checked`].
    pub fn checked(self) -> Result<Self, Corrupt> {
        Ok(Self { id: self.id, place: self.place.checked()? })
    }
}

impl Field for BlockPtr {
    const SIZE: usize = 24;
    fn store(&self, out: &mut [u8]) {
        self.id.store(out);
        self.place.store(&mut out[8..]);
    }
    fn load(from: &[u8]) -> Self {
        Self { id: BlockId::load(from), place: Place::load(&from[8..]) }
    }
}

/// Hash of a record's plain bytes: 128 bits of BLAKE3, keyed per pool. Ordered as its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// The fingerprint that these bytes are.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
    /// Its bytes.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
    /// Its first eight bytes, as a number in the order of fingerprints: big-endian.
    pub const fn high(&self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }
    /// Its last eight bytes, likewise.
    pub const fn low(&self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }
}

impl Field for Fingerprint {
    const SIZE: usize = 16;
    fn store(&self, out: &mut [u8]) {
        self.0.store(out);
    }
    fn load(from: &[u8]) -> Self {
        Self(<[u8; 16]>::load(from))
    }
}

pub use larder_posix::Timestamp;

impl Field for Timestamp {
    const SIZE: usize = 12;
    fn store(&self, out: &mut [u8]) {
        self.secs.store(out);
        self.nanos.store(&mut out[8..]);
    }
    fn load(from: &[u8]) -> Self {
        Self { secs: i64::load(from), nanos: u32::load(&from[8..]) }
    }
}
