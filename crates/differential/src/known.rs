//! Where a mount is not like a local disk: the one list of it, each with its reason. What is not in it is a
//! difference, and a failure.

use crate::op::{Op, Step};
use crate::side::Outcome;
use libc::*;

/// A known difference in what an operation answers.
pub struct Known {
    pub name: &'static str,
    /// The mount's errno, for operations that are then not done on the disk.
    pub alone: Option<fn(&Op) -> Option<i32>>,
    /// Whether both outcomes are as expected, for operations that change nothing on either side.
    pub both: Option<fn(&Step, &Outcome, &Outcome) -> bool>,
}

const fn alone(name: &'static str, is: fn(&Op) -> Option<i32>) -> Known {
    Known { name, alone: Some(is), both: None }
}

const fn both(name: &'static str, is: fn(&Step, &Outcome, &Outcome) -> bool) -> Known {
    Known { name, alone: None, both: Some(is) }
}

pub static KNOWN: &[Known] = &[
    // Few use it, and most files are cut at fixed offsets.
    alone("collapse and insert range", |op| {
        let Op::Allocate { mode, .. } = op else { return None };
        (*mode == FALLOC_FL_COLLAPSE_RANGE || *mode == FALLOC_FL_INSERT_RANGE).then_some(EOPNOTSUPP)
    }),
    // A file is written around the kernel's pages by who makes it and cannot read it; others then cannot map it so.
    alone("shared mapping of what is being made", |op| {
        matches!(op, Op::Map { shared: true, .. }).then_some(ENODEV)
    }),
    // FS_IOC_GETFLAGS and GETVERSION: there are none to show.
    both("file flags", |step, mount, _| {
        let Op::Ioctl { request, .. } = step.op else { return false };
        matches!(request, 0x8008_6601 | 0x8008_7601) && mount.answer == Err(ENOTTY)
    }),
    // Both flags at once: a disk says whether the attribute is there, the mount that this makes no sense.
    both("XATTR_CREATE with XATTR_REPLACE", |step, mount, disk| {
        let (Op::SetXattr { flags, .. } | Op::SetXattrOpen { flags, .. }) = step.op else { return false };
        flags == 3 && mount.answer == Err(EINVAL) && disk.answer.is_err()
    }),
];

/// The kernel serves a read from its cache without telling a FUSE file system, whose access times so stay.
pub const CACHED_READS: &str = "atime of cached reads";

/// Setting an extended attribute to the value that it has moves ctime here, as on xfs; ext4 sees that nothing changes.
pub const SAME_VALUE: &str = "attributes set to what they are";

/// Reads by a descriptor with O_NOATIME move access times: the engine is not told of the flag.
pub const NOATIME: &str = "O_NOATIME";

/// Data that goes through a pipe or to a device moves its times on a disk; the kernel tells no FUSE file system.
pub const PIPES: &str = "times of pipes and devices";
