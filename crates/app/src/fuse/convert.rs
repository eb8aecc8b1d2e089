//! Between the kernel's values, as fuser shows them, and those of `files`.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use larder_files::{Allocate, Attr, FileKind, FsError, RenameFlags, Result, SetTime, XattrMode};
use larder_format::Timestamp;
use rustix::fs::{FallocateFlags, FileType as Mode, XattrFlags};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind that the type bits of `mode` ask `mknod` for.
pub(super) fn kind_to_make(mode: u32) -> Result<FileKind> {
    match Mode::from_raw_mode(mode) {
        Mode::RegularFile => Ok(FileKind::Regular),
        Mode::Fifo => Ok(FileKind::Fifo),
        Mode::Socket => Ok(FileKind::Socket),
        Mode::CharacterDevice => Ok(FileKind::CharDevice),
        Mode::BlockDevice => Ok(FileKind::BlockDevice),
        Mode::Unknown if mode >> 12 == 0 => Ok(FileKind::Regular),
        Mode::Directory | Mode::Symlink | Mode::Unknown => Err(FsError::Invalid),
    }
}

pub(super) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.node.raw()),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: (attr.perm & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Attributes that stand for none: only the number and the kind are looked at.
pub(super) fn bare_attr(ino: u64, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let whole = if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    whole.and_then(|t| t.checked_add(Duration::from_nanos(time.nanos.into()))).unwrap_or(UNIX_EPOCH)
}

/// The time that the kernel sent. fuser reads a time before 1970 as `-(secs + nanos)` where the kernel
/// means `-secs + nanos`; taking seconds and nanoseconds apart again gives what was sent.
fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            secs: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanos: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Timestamp { secs: 0i64.saturating_sub_unsigned(before.as_secs()), nanos: before.subsec_nanos() }
        }
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(timestamp(time)),
    }
}

pub(super) fn change_time(time: SystemTime) -> Timestamp {
    timestamp(time)
}

pub(super) fn rename_flags(flags: fuser::RenameFlags) -> Result<RenameFlags> {
    use fuser::RenameFlags as Kernel;
    let (noreplace, exchange) = (Kernel::RENAME_NOREPLACE, Kernel::RENAME_EXCHANGE);
    // RENAME_WHITEOUT is overlayfs's; like any flag of a later kernel it is refused.
    if !(noreplace | exchange).contains(flags) || flags.contains(noreplace | exchange) {
        return Err(FsError::Invalid);
    }
    Ok(RenameFlags { noreplace: flags.contains(noreplace), exchange: flags.contains(exchange) })
}

pub(super) fn xattr_mode(flags: i32) -> Result<XattrMode> {
    match XattrFlags::from_bits_retain(flags as u32) {
        f if f.is_empty() => Ok(XattrMode::Set),
        XattrFlags::CREATE => Ok(XattrMode::Create),
        XattrFlags::REPLACE => Ok(XattrMode::Replace),
        _ => Err(FsError::Invalid),
    }
}

pub(super) fn allocate(mode: i32) -> Result<Allocate> {
    let (keep, punch, zero) =
        (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
    match FallocateFlags::from_bits_retain(mode as u32) {
        f if f.is_empty() => Ok(Allocate::Extend),
        f if f == keep => Ok(Allocate::KeepSize),
        f if f == keep | punch => Ok(Allocate::Punch),
        f if f == zero => Ok(Allocate::Zero { keep_size: false }),
        f if f == zero | keep => Ok(Allocate::Zero { keep_size: true }),
        _ => Err(FsError::NotSupported),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_leave_as_they_are_stored_also_before_1970_and_at_the_ends() {
        for (secs, nanos) in
            [(0, 0), (1, 999_999_999), (-1, 0), (-2, 800_000_000), (i64::MAX, 0), (i64::MIN, 0)]
        {
            let shown = system_time(Timestamp { secs, nanos });
            // Floor division: what `stat` shows as seconds and nanoseconds.
            let (got_secs, got_nanos) = match shown.duration_since(UNIX_EPOCH) {
                Ok(d) => (d.as_secs() as i64, d.subsec_nanos()),
                Err(e) if e.duration().subsec_nanos() == 0 => {
                    (0i64.saturating_sub_unsigned(e.duration().as_secs()), 0)
                }
                Err(e) => (-(e.duration().as_secs() as i64) - 1, 1_000_000_000 - e.duration().subsec_nanos()),
            };
            assert_eq!((got_secs, got_nanos), (secs, nanos));
        }
    }

    #[test]
    fn flags_that_are_not_understood_are_refused() {
        assert!(rename_flags(fuser::RenameFlags::RENAME_WHITEOUT).is_err());
        assert!(rename_flags(fuser::RenameFlags::from_bits_retain(3)).is_err());
        assert!(rename_flags(fuser::RenameFlags::from_bits_retain(8)).is_err());
        assert!(rename_flags(fuser::RenameFlags::RENAME_EXCHANGE).unwrap().exchange);
        assert!(xattr_mode(3).is_err());
        assert_eq!(xattr_mode(2), Ok(XattrMode::Replace));
        assert_eq!(allocate(8), Err(FsError::NotSupported), "collapsing a range");
        assert_eq!(allocate(2), Err(FsError::NotSupported), "a hole that changes the size");
        assert_eq!(allocate(3), Ok(Allocate::Punch));
        assert_eq!(kind_to_make(0o040_755), Err(FsError::Invalid));
        assert_eq!(kind_to_make(0o644), Ok(FileKind::Regular));
    }
}
