//! Values in a dataset's tree: what a file, a folder or a link is made of.
//!
//! `SPEC.md` has the keys and the bytes ("A dataset's tree").
//! Kinds below 128 stay in clear when a dataset is encrypted; the others are sealed.
//!
//! A name's key is made of 56 bits of its hash and 7 bits that tell names of one hash apart, so an
//! entry's key is also its directory cookie: stable, and below 2^63. The hash has no key of its own,
//! because a clone keeps its origin's entries.

use crate::error::ensure;
use crate::field::Field;
use crate::ids::{MAX_PLACES, ensure_countable};
use crate::{BlockId, BlockPtr, CommitId, Corrupt, InodeId, Reason, Timestamp, layout};

/// Key kind of an extent.
pub const EXTENT: u8 = 1;
/// Key kind of an orphan's mark; its object is 0.
pub const ORPHAN: u8 = 2;
/// Key kind of an inode.
pub const INODE: u8 = 128;
/// Key kind of a directory's entry.
pub const ENTRY: u8 = 129;
/// Key kind of an extended attribute.
pub const XATTR: u8 = 130;
/// Key kind of a piece of an extended attribute's value.
pub const XATTR_PIECE: u8 = 131;
/// Key kind of a symbolic link's target.
pub const SYMLINK: u8 = 132;

/// The inode of a dataset's root directory.
pub const ROOT_INODE: InodeId = InodeId::new(1);
/// The greatest inode id: it shares a number of 64 bits with the dataset's.
pub const MAX_INODE: u64 = (1 << 40) - 1;
/// The last inode id that is given out; those above stand for directories that are not stored.
pub const LAST_INODE: u64 = MAX_INODE - 2;
/// Inode ids that may be given out beyond what a commit says is the next: import after a crash passes over as many.
pub const INODE_LEASE: u64 = 1 << 16;
/// The greatest dataset id. Ids are not reused: a dataset a second for half a year.
pub const MAX_DATASET: u64 = (1 << 24) - 1;
/// Bytes of a tree's value, at most.
pub const MAX_VALUE: usize = 4096;
/// Bytes of a name, at most.
pub const MAX_NAME: usize = 255;
/// Bytes of a symbolic link's target, at most.
pub const MAX_TARGET: usize = 4095;
/// Bytes of an extended attribute's value, at most.
pub const MAX_XATTR: usize = 64 << 10;
/// Bytes of a file, at most.
pub const MAX_FILE: u64 = i64::MAX as u64;
/// Bytes of a record, at most.
pub const MAX_RECORD: u32 = 1 << 20;
/// Bytes of a record size that a file may have, at least.
pub const MIN_RECORD_SIZE: u32 = 512;
/// Names of one hash that a directory can hold.
pub const MAX_COLLISIONS: u64 = 128;
/// Pieces of one extended attribute's value, at most; also the step between value numbers in keys.
pub const XATTR_PIECES: u64 = 32;
/// Cookies below this belong to no name: `.`, `..` and mounted datasets use them.
pub const FIRST_COOKIE: u64 = 1 << 21;

/// Bytes of the salt that a dataset's names are hashed with.
pub const NAME_SALT_LEN: usize = 16;

/// The key that a dataset's names are hashed with. Nobody who does not know it can make names of one hash, of which a
/// directory holds [`MAX_COLLISIONS`].
#[derive(Clone, Copy)]
pub struct NameKey([u8; 32]);

impl NameKey {
    /// The key that a dataset's salt gives.
    pub fn new(salt: &[u8; NAME_SALT_LEN]) -> Self {
        Self(blake3::derive_key("larder: names in directories, and of attributes", salt))
    }

    /// The first key offset that an entry or attribute named `name` can have: the upper 56 of the first 64 bits of
    /// its keyed BLAKE3, shifted left by 7, and out of the range below [`FIRST_COOKIE`].
    pub fn cookie(&self, name: &[u8]) -> u64 {
        let hash = blake3::keyed_hash(&self.0, name);
        let first = hash.as_bytes().first_chunk().expect("a hash has 32 bytes");
        let cookie = u64::from_le_bytes(*first) >> 8 << 7;
        if cookie < FIRST_COOKIE { cookie + FIRST_COOKIE } else { cookie }
    }
}

/// Whether `name` can name an entry: 1 to 255 bytes, no `/`, no NUL, not `.` or `..`.
pub fn valid_name(name: &[u8]) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
        && name != b"."
        && name != b".."
}

/// Whether `name` can name an extended attribute: 1 to 255 bytes, no NUL.
pub fn valid_xattr_name(name: &[u8]) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.contains(&0)
}

/// Kind of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

impl FileKind {
    /// The kind that a stored number names.
    pub fn from_byte(byte: u8) -> Result<Self, Corrupt> {
        Ok(match byte {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::Symlink,
            4 => Self::Fifo,
            5 => Self::Socket,
            6 => Self::CharDevice,
            7 => Self::BlockDevice,
            _ => return Err(Corrupt::new("file kind", Reason::Kind)),
        })
    }
}

layout! {
    /// An inode's value as it is stored; see [`Inode`].
    pub struct InodeRecord[128] {
        /// A [`FileKind`].
        kind: u8 = 0,
        /// Semantics of access lists: 0 is POSIX. Reserved.
        acl: u8 = 1,
        /// Permissions: the lower 12 bits.
        perm: u16 = 2,
        /// See [`Inode::HAS_XATTRS`], [`Inode::HAS_TAIL`], [`Inode::BY_CONTENT`] and [`Inode::HALF_CUT`].
        flags: u32 = 4,
        /// Owner.
        uid: u32 = 8,
        /// Group.
        gid: u32 = 12,
        /// Names; for a directory 2 and one for each subdirectory; 0 for an orphan.
        nlink: u32 = 16,
        /// Device number, in the kernel's encoding.
        rdev: u32 = 20,
        /// Bytes of a file or of a link's target.
        size: u64 = 24,
        /// Generation. Reserved.
        generation: u64 = 32,
        /// Project, for quotas. Reserved.
        project: u32 = 40,
        /// Records are cut at multiples of this many bytes, or at this many on the average; 0 until the first write.
        record_size: u32 = 44,
        /// Last read.
        atime: Timestamp = 48,
        /// Last change of the content.
        mtime: Timestamp = 60,
        /// Last change of anything.
        ctime: Timestamp = 72,
        /// Birth.
        btime: Timestamp = 84,
        /// Stored bytes of its records.
        stored: u64 = 96,
        /// The directory that holds it: exact for directories, a hint for others.
        parent: InodeId = 104,
        /// A directory's entries.
        entries: u64 = 112,
        /// Plain bytes of its records.
        data: u64 = 120,
    }
}

/// A file, directory, link or special file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// Its kind.
    pub kind: FileKind,
    /// The lower 12 bits count.
    pub perm: u16,
    /// Set of [`Inode::HAS_XATTRS`], [`Inode::HAS_TAIL`], [`Inode::BY_CONTENT`] and [`Inode::HALF_CUT`].
    pub flags: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; for a directory 2 and one for each subdirectory; 0 for an orphan.
    pub nlink: u32,
    /// Device number, in the kernel's encoding.
    pub rdev: u32,
    /// Bytes of a file or of a link's target.
    pub size: u64,
    /// Generation.
    pub generation: u64,
    /// Project, for quotas.
    pub project: u32,
    /// Records are cut at multiples of this many bytes, a power of two, or have as many on the average; 0 until
    /// the first write.
    pub record_size: u32,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// Stored bytes of its records.
    pub stored: u64,
    /// The directory that holds it: exact for directories, a hint for others.
    pub parent: InodeId,
    /// A directory's entries.
    pub entries: u64,
    /// Plain bytes of its records: its size but for holes.
    pub data: u64,
}

impl Inode {
    /// Flag: it may have extended attributes.
    pub const HAS_XATTRS: u32 = 1;
    /// Flag: it was cut, and extents beyond its end are still to be dropped. It has an orphan's mark.
    pub const HAS_TAIL: u32 = 2;
    /// Flag: its records are cut by content, and not at multiples of the record size, which is their average.
    pub const BY_CONTENT: u32 = 4;
    /// Flag, beside [`Inode::BY_CONTENT`]: it is being cut anew, and records may be cut in any other way.
    pub const HALF_CUT: u32 = 8;
    /// All of them; an inode with others is refused, since what they stand for is not known.
    const FLAGS: u32 = Self::HAS_XATTRS | Self::HAS_TAIL | Self::BY_CONTENT | Self::HALF_CUT;

    /// Whether its records are cut by content.
    pub fn by_content(&self) -> bool {
        self.flags & Self::BY_CONTENT != 0
    }

    /// An extent of the file was added.
    pub fn count_extent(&mut self, extent: &Extent) {
        self.stored += extent.stored();
        self.data += u64::from(extent.logical);
    }

    /// An extent of the file was dropped.
    pub fn forget_extent(&mut self, extent: &Extent) {
        self.stored = self.stored.saturating_sub(extent.stored());
        self.data = self.data.saturating_sub(u64::from(extent.logical));
    }

    /// The value's bytes.
    pub fn encode(&self) -> [u8; InodeRecord::SIZE] {
        let mut out = [0; InodeRecord::SIZE];
        InodeRecord {
            kind: self.kind as u8,
            acl: 0,
            perm: self.perm,
            flags: self.flags,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            rdev: self.rdev,
            size: self.size,
            generation: self.generation,
            project: self.project,
            record_size: self.record_size,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            stored: self.stored,
            parent: self.parent,
            entries: self.entries,
            data: self.data,
        }
        .put(&mut out);
        out
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "inode";
        let record = InodeRecord::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(bytes.len() == InodeRecord::SIZE, WHAT, Reason::Range)?;
        ensure(record.acl == 0 && record.flags & !Self::FLAGS == 0, WHAT, Reason::Feature)?;
        ensure(record.perm < 1 << 12 && record.size <= MAX_FILE, WHAT, Reason::Range)?;
        ensure(record.record_size == 0 || valid_record_size(record.record_size), WHAT, Reason::Range)?;
        ensure_countable(&[record.stored, record.parent.get(), record.entries, record.data], WHAT)?;
        for time in [record.atime, record.mtime, record.ctime, record.btime] {
            ensure(time.nanos < 1_000_000_000, WHAT, Reason::Range)?;
        }
        Ok(Self {
            kind: FileKind::from_byte(record.kind)?,
            perm: record.perm,
            flags: record.flags,
            uid: record.uid,
            gid: record.gid,
            nlink: record.nlink,
            rdev: record.rdev,
            size: record.size,
            generation: record.generation,
            project: record.project,
            record_size: record.record_size,
            atime: record.atime,
            mtime: record.mtime,
            ctime: record.ctime,
            btime: record.btime,
            stored: record.stored,
            parent: record.parent,
            entries: record.entries,
            data: record.data,
        })
    }
}

/// Whether a file's records can be cut at multiples of `size`.
pub fn valid_record_size(size: u32) -> bool {
    size.is_power_of_two() && (MIN_RECORD_SIZE..=MAX_RECORD).contains(&size)
}

/// Where an extent's number of places begins in the field of the length.
const COPIES_SHIFT: u32 = 30;

layout! {
    /// An extent's value as it is stored; see [`Extent`].
    pub struct ExtentRecord[40] {
        /// The block.
        ptr: BlockPtr = 0,
        /// Plain bytes that the extent covers.
        len: u32 = 24,
        /// Where they start in the block's plain content.
        block_offset: u32 = 28,
        /// The block's whole plain length; in the two highest bits, how many places it is charged for, less one.
        logical: u32 = 32,
        /// The commit in which the block was put here, where it had been stored for another place; 0 where not.
        placed: u32 = 36,
    }
}

/// A range of a file that is not a hole, as the file's tree records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The block.
    pub ptr: BlockPtr,
    /// Plain bytes that the extent covers, at least 1.
    pub len: u32,
    /// Where they start in the block's plain content.
    pub block_offset: u32,
    /// The block's whole plain length, at most [`MAX_RECORD`].
    pub logical: u32,
    /// The commit in which the block was put here, `u32::MAX` for all from that one on; 0 where its id tells by itself
    /// which snapshots have it here.
    pub placed: u32,
    /// Places of the block that it is charged for, 1 to [`MAX_PLACES`]: as many as its dataset had asked for.
    pub copies: u8,
}

impl Extent {
    /// Bytes that it is charged for: what the block takes, at all of these places, before replication and parity.
    pub fn charged(&self) -> u64 {
        u64::from(self.ptr.place.footprint()) * u64::from(self.copies)
    }

    /// Bytes that are stored for it, at all of these places.
    pub fn stored(&self) -> u64 {
        u64::from(self.ptr.place.stored) * u64::from(self.copies)
    }

    /// Whether a tree, that this one came of, had the block at this place: it had ids up to `high`, and what was put
    /// into it before the commit `taken`.
    pub fn was_here(&self, high: BlockId, taken: CommitId) -> bool {
        let placed = u64::from(self.placed);
        self.ptr.id <= high && placed < taken.get() && self.placed < u32::MAX
    }

    /// Whether another one is the same part of the same block, wherever that is thought to lie.
    pub fn is_same(&self, other: &Self) -> bool {
        let part = |one: &Self| (one.ptr.id, one.len, one.block_offset, one.logical);
        part(self) == part(other)
    }

    /// The value's bytes.
    pub fn encode(&self) -> [u8; ExtentRecord::SIZE] {
        let mut out = [0; ExtentRecord::SIZE];
        ExtentRecord {
            ptr: self.ptr,
            len: self.len,
            block_offset: self.block_offset,
            logical: self.logical | (u32::from(self.copies) - 1) << COPIES_SHIFT,
            placed: self.placed,
        }
        .put(&mut out);
        out
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "extent";
        let record = ExtentRecord::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(bytes.len() == ExtentRecord::SIZE, WHAT, Reason::Range)?;
        let ExtentRecord { ptr, len, block_offset, logical, placed } = record;
        let copies = (logical >> COPIES_SHIFT) as u8 + 1;
        let logical = logical & ((1 << COPIES_SHIFT) - 1);
        let end = block_offset.checked_add(len);
        let fits = end.is_some_and(|end| end <= logical) && usize::from(copies) <= MAX_PLACES;
        ensure(fits && len > 0 && logical <= MAX_RECORD, WHAT, Reason::Range)?;
        Ok(Self { ptr: ptr.checked()?, len, block_offset, logical, placed, copies })
    }
}

/// A name in a directory. Value: inode u64, kind u8, name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode that it names.
    pub inode: InodeId,
    /// The inode's kind.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        [&self.inode.get().to_le_bytes()[..], &[self.kind as u8], self.name].concat()
    }

    /// Reads a value.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "directory entry";
        let (head, name) = bytes.split_at_checked(9).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let inode = InodeId::load(head);
        ensure(valid_name(name) && (1..=MAX_INODE).contains(&inode.get()), WHAT, Reason::Range)?;
        Ok(Self { inode, kind: FileKind::from_byte(head[8])?, name })
    }
}

/// Where an extended attribute's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrValue<'a> {
    /// Here.
    Inline(&'a [u8]),
    /// In pieces of [`MAX_VALUE`] bytes, the last one shorter, under [`XATTR_PIECE`].
    Pieces {
        /// The value's number among those of its inode; below 2^59.
        number: u64,
        /// Its length in bytes.
        len: u32,
    },
}

/// An extended attribute. Value: name length u8, 1 if the value is elsewhere u8, then the name, then the
/// value or (number u64, length u32).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// The name, with its namespace.
    pub name: &'a [u8],
    /// The value, or where it is.
    pub value: XattrValue<'a>,
}

impl<'a> Xattr<'a> {
    /// Whether a value of `len` bytes fits next to `name`.
    pub fn fits_inline(name: &[u8], len: usize) -> bool {
        2 + name.len() + len <= MAX_VALUE
    }

    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.name.len() as u8, 0];
        out.extend_from_slice(self.name);
        match self.value {
            XattrValue::Inline(value) => out.extend_from_slice(value),
            XattrValue::Pieces { number, len } => {
                out[1] = 1;
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
            }
        }
        out
    }

    /// Reads a value.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "extended attribute";
        let short = Corrupt::new(WHAT, Reason::Short);
        let (head, rest) = bytes.split_at_checked(2).ok_or(short)?;
        let (name, rest) = rest.split_at_checked(usize::from(head[0])).ok_or(short)?;
        ensure(valid_xattr_name(name), WHAT, Reason::Range)?;
        let value = match head[1] {
            0 => XattrValue::Inline(rest),
            1 => {
                ensure(rest.len() == 12, WHAT, Reason::Short)?;
                let (number, len) = (u64::load(rest), u32::load(&rest[8..]));
                let fits = number < u64::MAX / XATTR_PIECES && len as usize <= MAX_XATTR;
                ensure(fits, WHAT, Reason::Range)?;
                XattrValue::Pieces { number, len }
            }
            _ => return Err(Corrupt::new(WHAT, Reason::Kind)),
        };
        Ok(Self { name, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockId, Place, SegmentId};
    use proptest::prelude::*;

    fn inode() -> Inode {
        let time = |secs| Timestamp { secs, nanos: 999_999_999 };
        Inode {
            kind: FileKind::Regular,
            perm: 0o6755,
            flags: Inode::HAS_XATTRS,
            uid: 1,
            gid: 2,
            nlink: 3,
            rdev: 4,
            size: MAX_FILE,
            generation: 5,
            project: 6,
            record_size: 128 << 10,
            atime: time(-1),
            mtime: time(2),
            ctime: time(3),
            btime: time(4),
            stored: 7,
            parent: InodeId::new(8),
            entries: 9,
            data: 10,
        }
    }

    fn extent() -> Extent {
        let place = Place { segment: SegmentId::new(3), column: 1, offset: 4096, stored: 999 };
        Extent {
            ptr: BlockPtr { id: BlockId::new(77), place },
            len: 4000,
            block_offset: 96,
            logical: 4096,
            placed: 5,
            copies: 2,
        }
    }

    #[test]
    fn values_survive_a_round_trip() {
        assert_eq!(Inode::decode(&inode().encode()), Ok(inode()));
        for copies in 1..=3 {
            let extent = Extent { copies, ..extent() };
            assert_eq!(Extent::decode(&extent.encode()), Ok(extent));
        }
        let entry = Entry { inode: InodeId::new(9), kind: FileKind::Fifo, name: b"\xff name" };
        assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
        for value in [XattrValue::Inline(b""), XattrValue::Pieces { number: 4, len: 65536 }] {
            let xattr = Xattr { name: b"user.a", value };
            assert_eq!(Xattr::decode(&xattr.encode()), Ok(xattr));
        }
    }

    #[test]
    fn an_extent_that_reaches_past_its_block_is_refused() {
        let most = Extent { copies: 4, ..extent() };
        assert!(Extent::decode(&most.encode()).is_err());
        let wrong = Extent { len: 4001, ..extent() };
        assert_eq!(Extent::decode(&wrong.encode()), Err(Corrupt::new("extent", Reason::Range)));
        let overflowing = Extent { len: u32::MAX, block_offset: 2, ..extent() };
        assert!(Extent::decode(&overflowing.encode()).is_err());
    }

    #[test]
    fn a_name_with_a_slash_is_refused() {
        for name in [&b"a/b"[..], b"", b".", b"..", b"a\0", &[b'x'; 256]] {
            let entry = Entry { inode: InodeId::new(9), kind: FileKind::Regular, name };
            assert!(Entry::decode(&entry.encode()).is_err());
        }
    }

    #[test]
    fn cookies_are_positive_and_leave_the_reserved_ones_alone() {
        let key = NameKey::new(&[7; NAME_SALT_LEN]);
        for i in 0..10_000u32 {
            let cookie = key.cookie(&i.to_le_bytes());
            assert!((FIRST_COOKIE..1 << 63).contains(&cookie) && cookie.is_multiple_of(MAX_COLLISIONS));
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_an_error_value(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            let _ = Inode::decode(&bytes);
            let _ = Extent::decode(&bytes);
            let _ = Entry::decode(&bytes);
            let _ = Xattr::decode(&bytes);
        }
    }
}
