//! Walking: regular files below some folders, once each, of one file system.
//!
//! Symbolic links are neither followed nor opened. What is mounted below a folder is not entered unless told, and then
//! only where it is the same file system; subvolumes of btrfs are part of it. Folders are opened by their path,
//! none of which may have become a link meanwhile (`RESOLVE_NO_SYMLINKS`).

use crate::hashfile::Stamp;
use crate::kernel;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::fs::{Dir, FileType, openat2, statx};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Flags with which files are looked at.
const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// What a walk finds.
#[derive(Debug)]
pub enum Found {
    /// A regular file that is not empty: its handle, its stamp and its absolute path.
    File(Vec<u8>, Stamp, Vec<u8>),
    /// A mount that is not entered.
    Mount,
    /// Something that cannot be looked at.
    Unreadable(Vec<u8>, Errno),
}

/// Opens a file for reading where no part of `path` is a symbolic link; without noting that it was read, if it may.
///
/// # Errors
/// Those of openat2(2).
pub fn open(path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let open = |flags| openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    match open(FILE | OFlags::NOATIME) {
        Err(Errno::PERM) => open(FILE),
        other => other,
    }
}

/// By what a file is known to be as it was.
pub fn stamp(found: &Statx) -> Stamp {
    let nanos = |time: rustix::fs::StatxTimestamp| {
        time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec))
    };
    Stamp {
        size: found.stx_size,
        mtime: nanos(found.stx_mtime),
        ctime: nanos(found.stx_ctime),
        ino: found.stx_ino,
    }
}

/// What statx(2) says of an open file.
///
/// # Errors
/// Those of the call.
pub fn look(file: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// A walk.
pub struct Walk<'a> {
    /// Folders that wait, the last first, and whether each was named.
    waiting: Vec<(PathBuf, bool)>,
    uuid: [u8; 16],
    is_xfs: bool,
    crosses_mounts: bool,
    each: &'a mut dyn FnMut(Found),
}

impl<'a> Walk<'a> {
    /// A walk below `roots`, absolute paths without symbolic links, which tells `each` what it finds.
    pub fn new(
        roots: &[PathBuf],
        (uuid, is_xfs): ([u8; 16], bool),
        crosses_mounts: bool,
        each: &'a mut dyn FnMut(Found),
    ) -> Self {
        let waiting = roots.iter().rev().map(|root| (root.clone(), true)).collect();
        Self { waiting, uuid, is_xfs, crosses_mounts, each }
    }

    /// Goes through one folder; `false` when there is none left.
    pub fn step(&mut self) -> bool {
        let Some((path, is_named)) = self.waiting.pop() else { return false };
        if let Err(error) = self.enter(&path, is_named) {
            // What has gone since is none.
            if error != Errno::NOENT || is_named {
                (self.each)(Found::Unreadable(path.as_os_str().as_bytes().to_vec(), error));
            }
        }
        true
    }

    fn enter(&mut self, path: &Path, is_named: bool) -> Result<(), Errno> {
        let fd = open(path.as_os_str().as_bytes())?;
        let found = look(fd.as_fd())?;
        let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if is_mount && !is_named {
            let is_same = || kernel::identity(fd.as_fd(), self.is_xfs).is_ok_and(|(uuid, _)| uuid == self.uuid);
            if !self.crosses_mounts || !is_same() {
                (self.each)(Found::Mount);
                return Ok(());
            }
        }
        if FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile {
            let parent = path.parent().unwrap_or(Path::new("/"));
            let parent = open(parent.as_os_str().as_bytes())?;
            let name = CString::new(path.file_name().unwrap_or_default().as_bytes()).map_err(|_| Errno::INVAL)?;
            return self.file(parent.as_fd(), &name, path.as_os_str().as_bytes().to_vec());
        }
        let mut folders = Vec::new();
        let mut entries = Dir::read_from(&fd)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    match statx(&fd, name, flags, StatxFlags::TYPE) {
                        Ok(found) => FileType::from_raw_mode(found.stx_mode.into()),
                        Err(_) => continue,
                    }
                }
                known => known,
            };
            match kind {
                FileType::Directory => folders.push(path.join(std::ffi::OsStr::from_bytes(name.to_bytes()))),
                FileType::RegularFile => {
                    let mut whole = path.as_os_str().as_bytes().to_vec();
                    if whole.last() != Some(&b'/') {
                        whole.push(b'/');
                    }
                    whole.extend_from_slice(name.to_bytes());
                    if let Err(error) = self.file(fd.as_fd(), name, whole.clone())
                        && error != Errno::NOENT
                    {
                        (self.each)(Found::Unreadable(whole, error));
                    }
                }
                _ => {}
            }
        }
        self.waiting.extend(folders.into_iter().rev().map(|path| (path, false)));
        Ok(())
    }

    fn file(&mut self, folder: BorrowedFd<'_>, name: &std::ffi::CStr, path: Vec<u8>) -> Result<(), Errno> {
        let found = statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
        // A file can be what something is mounted on.
        if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !self.crosses_mounts {
            (self.each)(Found::Mount);
            return Ok(());
        }
        if FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile && found.stx_size > 0 {
            let handle = kernel::handle(folder, name)?;
            (self.each)(Found::File(handle, stamp(&found), path));
        }
        Ok(())
    }
}
