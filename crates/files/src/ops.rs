//! The operations that stand above any transport.
//!
//! A transport (FUSE today) turns requests into calls of [`Ops`] and results into replies, and knows
//! nothing else of this crate. Access rights are the kernel's to check; what is left here is what
//! POSIX says an operation does.

use crate::error::Result;
use crate::read_data::ReadData;
use larder_format::{DatasetId, InodeId, Timestamp};

pub use larder_format::items::FileKind;
use larder_format::items::{MAX_DATASET, MAX_INODE};

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

/// What `stat` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The object; `st_ino` is its number.
    pub node: NodeId,
    /// Tells a reused number from the one before; numbers are never reused, so it changes only when a
    /// dataset is rolled back.
    pub generation: u64,
    /// Bytes of a file or of a link's target; for a directory the number of entries.
    pub size: u64,
    /// What of it is data, not holes, in units of 512 bytes, before compression: who finds less here than `size` has
    /// of them takes the file for sparse (cp does, and does not share it then).
    pub blocks: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// What it is.
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

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The pool's clock.
    Now,
    /// This one.
    To(Timestamp),
}

/// What to change; `None` leaves a field alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits; only the lower 12 count.
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes: truncates or grows a file.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of anything; without it, now.
    pub ctime: Option<Timestamp>,
    /// Birth.
    pub btime: Option<Timestamp>,
    /// Take set-user-id and (from executables) set-group-id away, as after a write or change of owner.
    pub kill_suidgid: bool,
    /// With that: take set-group-id from what the group may not execute, too.
    pub kill_setgid: bool,
}

/// How a file is opened.
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

/// A file that was asked for by a name that may have been free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// The file.
    pub attr: Attr,
    /// How it is called while it is open.
    pub handle: Handle,
    /// The name was free: nobody has opened the file before.
    pub made: bool,
}

/// How to rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameFlags {
    /// An existing target is an error.
    pub noreplace: bool,
    /// Swap the two names; both must exist.
    pub exchange: bool,
}

/// How `setxattr` treats a name that exists or does not.
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

/// What `fallocate` does to the range.
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

/// What `lseek` looks for.
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
    /// What it is.
    pub kind: FileKind,
    /// Its name: 1 to 255 bytes, any but `/` and NUL.
    pub name: &'a [u8],
    /// Reading on from this cookie gives the entries after this one. Stable, below 2^63.
    pub next_cookie: u64,
    /// Its attributes, when asked for; never for `.` and `..`.
    pub attr: Option<&'a Attr>,
}

/// The space of a dataset, as `statfs` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Bytes of a unit.
    pub block_size: u32,
    /// Units in all.
    pub blocks: u64,
    /// Units free.
    pub free: u64,
    /// Units available to users.
    pub available: u64,
    /// Inodes in all (a bound: they are made as needed).
    pub files: u64,
    /// Inodes free.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// A mounted tree of files. Calls may come from any number of threads.
///
/// Names are bytes without `/` and NUL. What returns without an error is visible to every call that
/// starts later; it is durable after `fsync`, `fsyncdir` or `sync`, or when the pool commits by itself.
pub trait Ops: Send + Sync {
    /// A call has panicked: what it changed in memory may be half done.
    fn panicked(&self) {}

    /// A thread that passed requests on has ended, for this reason; others go on.
    fn serves_less(&self, _why: &str) {}
    /// The object named `name` in `parent`. `.` is `parent` itself, whatever it is.
    ///
    /// [`View`](crate::View), which is what a kernel sees, counts each answer of this and of what makes something,
    /// and each entry that [`Ops::readdir`] gives with attributes, as a look-up of the object, which stays, with or
    /// without a name, until all of them are forgotten.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr>;
    /// The kernel forgets `lookups` references to `node`.
    fn forget(&self, node: NodeId, lookups: u64);
    /// Attributes.
    fn getattr(&self, node: NodeId) -> Result<Attr>;
    /// Changes attributes and gives the new ones.
    fn setattr(&self, node: NodeId, set: &SetAttr, caller: &Caller) -> Result<Attr>;
    /// A symbolic link's target.
    fn readlink(&self, node: NodeId) -> Result<Vec<u8>>;

    /// Makes a file, pipe, socket or device node; `rdev` counts for devices only.
    fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        perm: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<Attr>;
    /// Makes a directory.
    fn mkdir(&self, parent: NodeId, name: &[u8], perm: u32, caller: &Caller) -> Result<Attr>;
    /// Makes a symbolic link to `target` (1 to 4095 bytes).
    fn symlink(&self, parent: NodeId, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr>;
    /// Gives `node` another name, or its first one: a file from [`Ops::tmpfile`] that is open.
    fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr>;
    /// Takes a name away; the last one takes the file, once nobody has it open and its look-ups are forgotten.
    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()>;
    /// Renames, replacing what may be replaced.
    fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()>;

    /// Opens a file.
    fn open(&self, node: NodeId, flags: OpenFlags) -> Result<Handle>;
    /// Makes a file and opens it; opens an existing one unless `flags.exclusive`. What exists and is no file is
    /// [`Stale`](crate::FsError::Stale): whoever looks the name up again sees it.
    fn create(
        &self,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<Created>;
    /// Makes a file without a name in the dataset of the directory `parent`, whose group and default access
    /// list it inherits, and opens it: it goes with its last descriptor unless `link` gives it a name, which
    /// `flags.exclusive` forbids.
    fn tmpfile(&self, parent: NodeId, perm: u32, flags: OpenFlags, caller: &Caller)
    -> Result<(Attr, Handle)>;
    /// Up to `len` bytes from `offset`; less only at the end of the file.
    fn read(&self, node: NodeId, handle: Handle, offset: u64, len: u32) -> Result<ReadData>;
    /// Writes all of `data` and gives its length. `kill_suidgid`: the writer may not keep those bits.
    fn write(
        &self,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Result<u32>;
    /// A descriptor of the file was closed; says what went wrong with earlier writes, as `fsync` does.
    fn flush(&self, node: NodeId, handle: Handle) -> Result<()>;
    /// The last descriptor of `handle` is closed.
    fn release(&self, node: NodeId, handle: Handle) -> Result<()>;
    /// Returns when the file's data and size (and, unless `datasync`, all else of it) are durable. What was written
    /// earlier and is lost is an error, once to each handle.
    fn fsync(&self, node: NodeId, handle: Handle, datasync: bool) -> Result<()>;
    /// Changes what a range of the file occupies.
    fn fallocate(&self, node: NodeId, handle: Handle, offset: u64, len: u64, mode: Allocate) -> Result<()>;
    /// The next data or hole at or after `offset`.
    fn lseek(&self, node: NodeId, handle: Handle, offset: u64, seek: Seek) -> Result<u64>;
    /// Copies up to `len` bytes between files of this mount, by reference where that can be; gives the number
    /// copied, which is less at the end of the source, and where more would take long.
    fn copy_file_range(
        &self,
        from: (NodeId, Handle, u64),
        to: (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64>;

    /// Opens a directory.
    fn opendir(&self, node: NodeId) -> Result<Handle>;
    /// Emits the entries after `cookie` (0: from the start), `.` and `..` first, until `emit` returns
    /// false: that entry was not taken and comes again with the cookie before it. `plus` asks for
    /// attributes.
    fn readdir(
        &self,
        node: NodeId,
        handle: Handle,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;
    /// Closes a directory.
    fn releasedir(&self, node: NodeId, handle: Handle) -> Result<()>;
    /// Returns when the directory's names are durable.
    fn fsyncdir(&self, node: NodeId, handle: Handle, datasync: bool) -> Result<()>;

    /// The value of an extended attribute. Access lists are those of Linux (`system.posix_acl_access`,
    /// `system.posix_acl_default`), kept in step with the permissions; where the dataset has none, they are
    /// absent ([`crate::FsError::NoAttr`]), and cannot be set ([`crate::FsError::NotSupported`]).
    fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>>;
    /// Sets an extended attribute: name 1 to 255 bytes, value up to 64 KiB.
    fn setxattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    /// The names of all extended attributes, each with a NUL behind it.
    fn listxattr(&self, node: NodeId) -> Result<Vec<u8>>;
    /// Takes an extended attribute away.
    fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()>;

    /// The space of the dataset that the node is in.
    fn statfs(&self, node: NodeId) -> Result<StatFs>;
    /// Makes everything durable (`sync`, `syncfs`).
    fn sync(&self) -> Result<()>;
}
