//! Plain values that a transport and a tree of files exchange, where both mean the same.

/// Seconds and nanoseconds since 1970-01-01 UTC; negative seconds are before it, nanoseconds count upwards there too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Whole seconds.
    pub secs: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// By the clock of who sets it.
    Now,
    /// This one.
    To(Timestamp),
}

/// Which attributes to change; `None` leaves one alone.
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
    /// Take set-user-id and (from executables) set-group-id away, as after a write or change of owner. The kernel says
    /// so at each change of a file's owner, and when one truncates who may not keep the bits.
    pub kill_suidgid: bool,
    /// With that: take set-group-id from what the group may not execute, too.
    pub kill_setgid: bool,
}

/// The space of a file system, as statfs(2) shows it.
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
