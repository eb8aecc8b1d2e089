//! Walking: regular files below some folders, once each, of one file system.
//!
//! Symbolic links are neither followed nor opened. What is mounted below a folder is not entered unless told, and then
//! only where it is the same file system; subvolumes of btrfs are part of it, but for read-only snapshots: nothing in
//! them can be changed, and there can be many of each file. One that is named is gone through. Folders are opened by
//! their path, of which no part may have become a link meanwhile (`RESOLVE_NO_SYMLINKS`).

use crate::hashfile::Stamp;
use crate::kernel;
use crate::wanted::Wanted;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::fs::{Dir, FileType, accessat, makedev, openat2, statx};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Flags with which files are looked at.
const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// Things that a walk finds.
#[derive(Debug)]
pub enum Found {
    /// A regular file that is not empty, and its device.
    File(Wanted, u64),
    /// A mount that is not entered.
    Mount,
    /// A read-only snapshot that is not entered.
    Snapshot,
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

/// The answer of statx(2) about an open file.
///
/// # Errors
/// Those of the call.
pub fn look(file: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// Device of what statx(2) was asked about.
pub fn device(found: &Statx) -> u64 {
    makedev(found.stx_dev_major, found.stx_dev_minor)
}

/// A folder that waits.
struct Folder {
    path: PathBuf,
    /// Of the folder that it was found in: its device, and whether that is read-only.
    above: Option<(u64, bool)>,
}

/// Inode of the root of a btrfs subvolume.
const SUBVOLUME: u64 = 256;

/// A walk.
pub struct Walk<'a> {
    /// Folders that wait, the last first.
    waiting: Vec<Folder>,
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
        let waiting = roots.iter().rev().map(|root| Folder { path: root.clone(), above: None }).collect();
        Self { waiting, uuid, is_xfs, crosses_mounts, each }
    }

    /// Goes through one folder; `false` when there is none left.
    pub fn step(&mut self) -> bool {
        let Some(Folder { path, above }) = self.waiting.pop() else { return false };
        if let Err(error) = self.enter(&path, above) {
            // One that has gone since is none.
            if error != Errno::NOENT || above.is_none() {
                (self.each)(Found::Unreadable(path.as_os_str().as_bytes().to_vec(), error));
            }
        }
        true
    }

    fn enter(&mut self, path: &Path, above: Option<(u64, bool)>) -> Result<(), Errno> {
        let fd = open(path.as_os_str().as_bytes())?;
        let found = look(fd.as_fd())?;
        let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if is_mount && above.is_some() {
            let is_same =
                || kernel::identity(fd.as_fd(), self.is_xfs).is_ok_and(|(uuid, _)| uuid == self.uuid);
            if !self.crosses_mounts || !is_same() {
                (self.each)(Found::Mount);
                return Ok(());
            }
        }
        if FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile {
            let parent = path.parent().unwrap_or(Path::new("/"));
            let parent = open(parent.as_os_str().as_bytes())?;
            let is_read_only = is_read_only(parent.as_fd());
            let name =
                CString::new(path.file_name().unwrap_or_default().as_bytes()).map_err(|_| Errno::INVAL)?;
            return self.file(parent.as_fd(), &name, path.as_os_str().as_bytes().to_vec(), is_read_only);
        }
        let device = device(&found);
        let is_read_only = match above {
            Some((its, is_read_only)) if its == device && !is_mount => is_read_only,
            _ => is_read_only(fd.as_fd()),
        };
        if is_read_only && above.is_some() && !is_mount && !self.is_xfs && found.stx_ino == SUBVOLUME {
            (self.each)(Found::Snapshot);
            return Ok(());
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
                    if let Err(error) = self.file(fd.as_fd(), name, whole.clone(), is_read_only)
                        && error != Errno::NOENT
                    {
                        (self.each)(Found::Unreadable(whole, error));
                    }
                }
                _ => {}
            }
        }
        let above = Some((device, is_read_only));
        self.waiting.extend(folders.into_iter().rev().map(|path| Folder { path, above }));
        Ok(())
    }

    fn file(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &CStr,
        path: Vec<u8>,
        is_read_only: bool,
    ) -> Result<(), Errno> {
        let found = statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
        // A file can be what something is mounted on.
        if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !self.crosses_mounts {
            (self.each)(Found::Mount);
            return Ok(());
        }
        if FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile && found.stx_size > 0 {
            let handle = kernel::handle(folder, name)?;
            let wanted = Wanted { handle, stamp: stamp(&found), path, is_read_only };
            (self.each)(Found::File(wanted, device(&found)));
        }
        Ok(())
    }
}

/// Whether nobody can write in a folder: it is in a read-only snapshot, or on a read-only mount.
fn is_read_only(folder: BorrowedFd<'_>) -> bool {
    accessat(folder, c".", Access::WRITE_OK, AtFlags::empty()) == Err(Errno::ROFS)
}
