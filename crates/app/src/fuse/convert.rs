//! Between the kernel's values and those of `files`.

use super::around::Access;
use larder_files::{Allocate, FileKind, FsError, OpenFlags, RenameFlags, Result, XattrMode};
use larder_fuse::Attr;
use rustix::fs::{FallocateFlags, FileType, OFlags, XattrFlags};

/// The type bits of a mode.
pub(super) fn type_bits(kind: FileKind) -> u32 {
    let file_type = match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    };
    file_type.as_raw_mode()
}

/// The kind that the type bits of `mode` ask `mknod` for.
pub(super) fn kind_to_make(mode: u32) -> Result<FileKind> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(FileKind::Regular),
        FileType::Fifo => Ok(FileKind::Fifo),
        FileType::Socket => Ok(FileKind::Socket),
        FileType::CharacterDevice => Ok(FileKind::CharDevice),
        FileType::BlockDevice => Ok(FileKind::BlockDevice),
        FileType::Unknown if mode >> 12 == 0 => Ok(FileKind::Regular),
        FileType::Directory | FileType::Symlink | FileType::Unknown => Err(FsError::Invalid),
    }
}

pub(super) fn attr(attr: &larder_files::Attr) -> Attr {
    Attr {
        node: attr.node.raw(),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
        mode: type_bits(attr.kind) | attr.perm & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
    }
}

/// Open flags for the engine. `append` is left out on purpose: the kernel knows the size, names the offset of every
/// write, and lets a process switch O_APPEND later without a word to us.
pub(super) fn open_flags(flags: u32, kill_suidgid: bool) -> OpenFlags {
    let flags = OFlags::from_bits_retain(flags);
    let mode = flags & OFlags::ACCMODE;
    OpenFlags {
        read: mode != OFlags::WRONLY,
        write: mode != OFlags::RDONLY,
        append: false,
        truncate: flags.contains(OFlags::TRUNC),
        exclusive: flags.contains(OFlags::EXCL),
        kill_suidgid,
    }
}

/// Access that a file is opened for.
pub(super) fn access(flags: u32) -> Access {
    let flags = OFlags::from_bits_retain(flags);
    let mode = flags & OFlags::ACCMODE;
    Access {
        reads: mode != OFlags::WRONLY,
        writes: mode != OFlags::RDONLY,
        appends: flags.contains(OFlags::APPEND),
    }
}

pub(super) fn rename_flags(flags: u32) -> Result<RenameFlags> {
    use rustix::fs::RenameFlags as Kernel;
    let flags = Kernel::from_bits_retain(flags);
    let (noreplace, exchange) = (Kernel::NOREPLACE, Kernel::EXCHANGE);
    // RENAME_WHITEOUT is overlayfs's; like any flag of a later kernel it is refused.
    if !(noreplace | exchange).contains(flags) || flags.contains(noreplace | exchange) {
        return Err(FsError::Invalid);
    }
    Ok(RenameFlags { noreplace: flags.contains(noreplace), exchange: flags.contains(exchange) })
}

pub(super) fn xattr_mode(flags: u32) -> Result<XattrMode> {
    match XattrFlags::from_bits_retain(flags) {
        f if f.is_empty() => Ok(XattrMode::Set),
        XattrFlags::CREATE => Ok(XattrMode::Create),
        XattrFlags::REPLACE => Ok(XattrMode::Replace),
        _ => Err(FsError::Invalid),
    }
}

pub(super) fn allocate(mode: u32) -> Result<Allocate> {
    let (keep, punch, zero) =
        (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
    match FallocateFlags::from_bits_retain(mode) {
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
    fn flags_that_are_not_understood_are_refused() {
        assert!(rename_flags(4).is_err(), "RENAME_WHITEOUT");
        assert!(rename_flags(3).is_err());
        assert!(rename_flags(8).is_err());
        assert!(rename_flags(2).unwrap().exchange);
        assert!(xattr_mode(3).is_err());
        assert_eq!(xattr_mode(2), Ok(XattrMode::Replace));
        assert_eq!(allocate(8), Err(FsError::NotSupported), "collapsing a range");
        assert_eq!(allocate(2), Err(FsError::NotSupported), "a hole that changes the size");
        assert_eq!(allocate(3), Ok(Allocate::Punch));
        assert_eq!(kind_to_make(0o040_755), Err(FsError::Invalid));
        assert_eq!(kind_to_make(0o644), Ok(FileKind::Regular));
    }

    #[test]
    fn opening_says_what_will_be_done() {
        let wrong = OFlags::WRONLY | OFlags::EXCL;
        let flags = open_flags(wrong.bits(), true);
        assert_eq!((flags.read, flags.write, flags.exclusive, flags.kill_suidgid), (false, true, true, true));
        let both = open_flags((OFlags::RDWR | OFlags::APPEND).bits(), false);
        assert_eq!((both.read, both.write, both.append, both.truncate), (true, true, false, false));
    }
}
