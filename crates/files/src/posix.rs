//! Arguments and results of operations: plain values.

use larder_format::{DatasetId, InodeId, Timestamp};

pub use larder_format::items::FileKind;
use larder_format::items::{MAX_DATASET, MAX_INODE};
pub use larder_posix::{SetAttr, SetTime, StatFs};

/// Set in the handle of an open file that is appended to.
pub(crate) const APPEND: u64 = 1;

/// An object of a mount: dataset and inode in one number, so that no table of nodes is needed and
/// inode numbers are unique over all datasets of a mount. The mount's own root is [`NodeId::ROOT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u64);

impl NodeId {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
    /// Bits of the number that hold the inode; the rest is the dataset.
    pub const INODE_BITS: u32 = (MAX_INODE + 1).ilog2();

    /// Wraps a number that the kernel gave back.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The number, as the kernel and `st_ino` have it.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The number of `inode` in `dataset`.
    ///
    /// # Panics
    /// When an id is more than [`MAX_DATASET`] or [`MAX_INODE`]: such are neither given out nor read.
    pub fn pack(dataset: DatasetId, inode: InodeId) -> Self {
        assert!(dataset.get() <= MAX_DATASET && inode.get() <= MAX_INODE, "ids have an end");
        Self((dataset.get() << Self::INODE_BITS) | inode.get())
    }

    /// Dataset and inode. Not for [`NodeId::ROOT`], which only a mount can resolve.
    pub const fn unpack(self) -> (DatasetId, InodeId) {
        (DatasetId::new(self.0 >> Self::INODE_BITS), InodeId::new(self.0 & ((1 << Self::INODE_BITS) - 1)))
    }
}

/// An open file or directory: a number below 2^62.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// Attributes, as `stat` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The object; `st_ino` is its number.
    pub node: NodeId,
    /// Tells a reused number from the one before; numbers are never reused, so it changes only when a
    /// dataset is rolled back.
    pub generation: u64,
    /// Bytes of a file or of a link's target; for a directory the number of entries.
    pub size: u64,
    /// Its data without holes, in units of 512 bytes, before compression: a program that finds less here than in
    /// `size` takes the file for sparse (cp does, and does not share it then).
    pub blocks: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// File type.
    pub kind: FileKind,
    /// The permission bits, with set-user-id, set-group-id and sticky: 12 bits.
    pub perm: u32,
    /// Names it has; for a directory 2 and one for each subdirectory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the kernel's encoding.
    pub rdev: u32,
    /// Bytes that it is best read and written by.
    pub blksize: u32,
}

/// On whose behalf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process; for messages.
    pub pid: u32,
    /// Taken off the permissions of what is created, unless its directory has a default access list. 0 when
    /// the transport has applied it.
    pub umask: u32,
}

/// Flags of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// It will be read.
    pub read: bool,
    /// It will be written.
    pub write: bool,
    /// Writes go to its end, whatever offset they name.
    pub append: bool,
    /// Cut to length 0 first.
    pub truncate: bool,
    /// `create`: an existing name is an error. `tmpfile`: it can never get a name.
    pub exclusive: bool,
    /// With `truncate`: take set-user-id and set-group-id away.
    pub kill_suidgid: bool,
}

impl OpenFlags {
    /// To be read, as it is.
    pub const READ: Self = Self {
        read: true,
        write: false,
        append: false,
        truncate: false,
        exclusive: false,
        kill_suidgid: false,
    };
    /// To be read and written, as it is.
    pub const READ_WRITE: Self = Self { write: true, ..Self::READ };
}

/// A file that was asked for by a name that may have been free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// The file.
    pub attr: Attr,
    /// Handle of the open file.
    pub handle: Handle,
    /// The name was free: nobody has opened the file before.
    pub made: bool,
}

/// Flags of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameFlags {
    /// An existing target is an error.
    pub noreplace: bool,
    /// Swap the two names; both must exist.
    pub exchange: bool,
}

/// Mode of `setxattr`: whether the name must exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Either.
    #[default]
    Set,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
    /// Either; and an access list that is set takes set-group-id away, since the caller may not keep it.
    KillSetgid,
}

/// Mode of `fallocate`: its effect on the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Makes the file at least as long as the range's end. Space is not reserved: writes never go to
    /// the place of what was there before, so a reservation could not be honoured.
    Extend,
    /// Changes nothing that can be seen.
    KeepSize,
    /// Makes the range a hole; the length stays.
    Punch,
    /// Makes the range zero; the file grows to its end unless `keep_size`.
    Zero {
        /// Do not grow the file.
        keep_size: bool,
    },
}

/// Target of an `lseek`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is data.
    Data,
    /// The next byte in a hole; the end of the file counts as one.
    Hole,
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The object.
    pub node: NodeId,
    /// File type.
    pub kind: FileKind,
    /// Its name: 1 to 255 bytes, any but `/` and NUL.
    pub name: &'a [u8],
    /// Reading on from this cookie gives the entries after this one. Stable, below 2^63.
    pub next_cookie: u64,
    /// Its attributes, when asked for; never for `.` and `..`.
    pub attr: Option<&'a Attr>,
}
