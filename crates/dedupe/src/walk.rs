//! Which files there are. Every open goes from the root's descriptor with openat2, which follows no link and crosses no
//! mount: a tree that changes under the walk cannot lead it out. A btrfs subvolume is no mount and is walked.

use crate::{Error, Report};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Identity of a file at one time: one of these differs when its bytes have changed. The time of birth stands for the
/// inode's generation, which takes an open file to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Modified, nanoseconds since 1970.
    pub modified: i64,
    /// Changed, nanoseconds since 1970.
    pub changed: i64,
    /// Born, nanoseconds since 1970; 0 where that is not known.
    pub born: i64,
}

/// A folder that was named, or the folder of a file that was.
pub struct Root {
    /// Its descriptor.
    pub fd: OwnedFd,
    /// Its path without links.
    pub path: PathBuf,
    /// The path that was named, without links: the folder, or the file in it.
    pub named: PathBuf,
    resolve: ResolveFlags,
}

impl Root {
    /// Opens a regular file below it for reading, with its access time left alone where the kernel permits.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(&self, below: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = |flags| fs::openat2(&self.fd, below, flags, Mode::empty(), self.resolve);
        open(flags | OFlags::NOATIME)
            .or_else(|error| if error == Errno::PERM { open(flags) } else { Err(error) })
    }

    fn folder(&self, below: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        fs::openat2(&self.fd, below, flags, Mode::empty(), self.resolve)
    }
}

/// A file.
pub struct Found {
    /// Number of its root.
    pub root: usize,
    /// Path below the root.
    pub below: PathBuf,
    /// As it was met.
    pub stamp: Stamp,
}

/// All regular files that are not empty, each inode once.
///
/// # Errors
/// When a root cannot be opened.
pub fn walk(paths: &[PathBuf], crosses: bool, report: &mut Report) -> Result<(Vec<Root>, Vec<Found>), Error> {
    let cannot = |path: &Path, error: std::io::Error| Error::Open(path.to_owned(), error);
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    resolve.set(ResolveFlags::NO_XDEV, !crosses);
    let (mut roots, mut all, mut met) = (Vec::new(), Vec::new(), HashSet::new());
    for path in paths {
        let whole = path.canonicalize().map_err(|error| cannot(path, error))?;
        let is_folder = whole.is_dir();
        let (folder, first) = match (is_folder, whole.parent(), whole.file_name()) {
            (false, Some(parent), Some(name)) => (parent.to_owned(), Some(PathBuf::from(name))),
            _ => (whole.clone(), None),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(&folder, flags, Mode::empty()).map_err(|error| cannot(path, error.into()))?;
        let root = Root { fd, path: folder, named: whole.clone(), resolve };
        let number = roots.len();
        let mut meet = |folder: &OwnedFd, name: &OsStr, below: PathBuf, report: &mut Report| {
            let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
            let Ok(stat) = fs::statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, wanted) else {
                report.unreadable += 1;
                return None;
            };
            match FileType::from_raw_mode(stat.stx_mode.into()) {
                FileType::Directory => return Some(below),
                FileType::RegularFile
                    if stat.stx_size > 0
                        && met.insert((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)) =>
                {
                    all.push(Found { root: number, below, stamp: stamp(&stat) });
                }
                _ => {}
            }
            None
        };
        let mut folders = match first {
            Some(name) => {
                meet(&root.fd, name.as_os_str(), name.clone(), report);
                Vec::new()
            }
            None => vec![PathBuf::new()],
        };
        while let Some(below) = folders.pop() {
            let read = root.folder(&below).and_then(|fd| Ok((fs::Dir::read_from(&fd)?, fd)));
            let (entries, fd) = match read {
                Ok(read) => read,
                Err(Errno::XDEV) => {
                    report.other_mounts += 1;
                    continue;
                }
                Err(_) => {
                    report.unreadable += 1;
                    continue;
                }
            };
            for entry in entries {
                let Ok(entry) = entry else {
                    report.unreadable += 1;
                    break;
                };
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                let is_of_interest = matches!(
                    entry.file_type(),
                    FileType::RegularFile | FileType::Directory | FileType::Unknown
                );
                if is_of_interest && name != "." && name != ".." {
                    folders.extend(meet(&fd, name, below.join(name), report));
                }
            }
        }
        roots.push(root);
    }
    Ok((roots, all))
}

/// The stamp of a file that is open.
///
/// # Errors
/// The kernel's.
pub fn stamp_of(file: &OwnedFd) -> Result<Stamp, Errno> {
    fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
        .map(|stat| stamp(&stat))
}

fn stamp(stat: &fs::Statx) -> Stamp {
    let nanos = |time: fs::StatxTimestamp| {
        time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(i64::from(time.tv_nsec))
    };
    Stamp {
        inode: stat.stx_ino,
        size: stat.stx_size,
        modified: nanos(stat.stx_mtime),
        changed: nanos(stat.stx_ctime),
        born: nanos(stat.stx_btime),
    }
}
