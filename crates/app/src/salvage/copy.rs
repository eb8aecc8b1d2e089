//! Files of a pool that was put together, copied into a folder.
//!
//! A range of a file that cannot be read is a hole in its copy, and told. Everything is made below one folder that is
//! held open, and nothing there is followed: names and links come from a damaged pool.

use crate::api::{ApiError, ErrorKind, Result};
use larder_files::{Attr, FileKind, FsError, Handle, NodeId, OpenFlags, Ops, Seek};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are read at once, and where that fails.
const AT_ONCE: u32 = 1 << 20;
const PIECE: u32 = 4 << 10;

/// A file that could not be copied whole.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct InPart {
    /// Its path in the folder.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Ranges of it that are lost: holes in the copy.
    pub lost: Vec<Range<u64>>,
}

/// Tally of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    /// Files, folders, links and special files.
    pub objects: u64,
    /// Bytes of files, without holes.
    pub bytes: u64,
    /// Files of which something is lost.
    pub in_part: Vec<InPart>,
    /// Objects of which nothing can be read, with the reason.
    pub failed: Vec<(String, String)>,
    /// Owners could not be given: only root can.
    pub is_owner_lost: bool,
}

/// Copies under way into one folder.
pub struct Copy<'a> {
    ops: &'a dyn Ops,
    top: &'a File,
    /// Files with several names: where the first was made, below the folder.
    linked: HashMap<NodeId, PathBuf>,
    /// Folders that were copied, or are being.
    entered: HashSet<NodeId>,
    copied: Copied,
    shown: &'a dyn Fn(u64),
}

impl<'a> Copy<'a> {
    /// Of what these operations show.
    pub fn new(ops: &'a dyn Ops, top: &'a File, shown: &'a dyn Fn(u64)) -> Self {
        Self { ops, top, linked: HashMap::new(), entered: HashSet::new(), copied: Copied::default(), shown }
    }

    /// Copies all that is below the root into `folder`, which is `at` below the top; the folder's own attributes are
    /// left to [`Copy::finish`].
    ///
    /// # Errors
    /// When nothing more can be made there.
    pub fn all(&mut self, folder: &File, at: &Path) -> Result<()> {
        self.entries(NodeId::ROOT, folder, at)
    }

    /// Gives the folder the root's attributes: nothing more is made in it.
    ///
    /// # Errors
    /// As [`Copy::all`].
    pub fn finish(mut self, folder: &File, at: &Path) -> Result<Copied> {
        if let Ok(attr) = self.ops.getattr(NodeId::ROOT) {
            let done = self.attributes(&attr, NodeId::ROOT, folder, at);
            self.made(at, done)?;
        }
        Ok(self.copied)
    }

    fn entries(&mut self, node: NodeId, folder: &File, at: &Path) -> Result<()> {
        let mut entries = Vec::new();
        let listed = self.ops.opendir(node).and_then(|handle| {
            self.ops.readdir(node, handle, 0, false, &mut |entry| {
                // Snapshots have folders of their own.
                let is_ours = node != NodeId::ROOT || entry.name != b".zfs";
                if entry.name != b"." && entry.name != b".." && is_ours {
                    entries.push((entry.node, entry.kind, entry.name.to_vec()));
                }
                true
            })?;
            self.ops.releasedir(node, handle)
        });
        if let Err(error) = listed {
            self.failed(at, error.to_string());
        }
        for (node, kind, name) in entries {
            // Two states of a folder can have one name in two places.
            let mut name = OsStr::from_bytes(&name).to_owned();
            while rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                name.push("+");
            }
            let at = at.join(&name);
            let done = self.object(node, kind, folder, &name, &at);
            self.made(&at, done)?;
        }
        Ok(())
    }

    /// Goes on after what concerns one object alone.
    fn made(&mut self, at: &Path, done: std::result::Result<(), Stop>) -> Result<()> {
        match done {
            Ok(()) => Ok(()),
            Err(Stop::Here(why)) => {
                self.failed(at, why);
                Ok(())
            }
            Err(Stop::All(error)) => Err(error),
        }
    }

    fn failed(&mut self, at: &Path, why: String) {
        self.copied.failed.push((at.display().to_string(), why));
    }

    fn object(
        &mut self,
        node: NodeId,
        kind: FileKind,
        folder: &File,
        name: &OsStr,
        at: &Path,
    ) -> std::result::Result<(), Stop> {
        let stop = |error| Stop::at(at, error);
        let attr = self.ops.getattr(node)?;
        if kind != FileKind::Directory
            && attr.nlink > 1
            && let Some(first) = self.linked.get(&attr.node)
        {
            return rustix::fs::linkat(self.top, first, folder, name, AtFlags::empty()).map_err(stop);
        }
        match kind {
            FileKind::Directory => {
                if !self.entered.insert(attr.node) {
                    return Err(Stop::Here("it is in itself".into()));
                }
                rustix::fs::mkdirat(folder, name, Mode::RWXU).map_err(stop)?;
                let made = open_folder(folder, name).map_err(stop)?;
                self.entries(node, &made, at).map_err(Stop::All)?;
                self.attributes(&attr, node, &made, at)?;
            }
            FileKind::Regular => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR);
                let made: File = made.map_err(stop)?.into();
                self.content(node, &attr, &made, at)?;
                self.attributes(&attr, node, &made, at)?;
            }
            FileKind::Symlink => {
                let target = self.ops.readlink(node)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), folder, name).map_err(stop)?;
                self.own(&attr, folder, name, at)?;
            }
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                let kind = match kind {
                    FileKind::Fifo => FileType::Fifo,
                    FileKind::Socket => FileType::Socket,
                    FileKind::CharDevice => FileType::CharacterDevice,
                    _ => FileType::BlockDevice,
                };
                let mode = Mode::from_raw_mode(attr.perm);
                rustix::fs::mknodat(folder, name, kind, mode, attr.rdev.into()).map_err(stop)?;
                self.own(&attr, folder, name, at)?;
            }
        }
        if attr.nlink > 1 {
            self.linked.insert(attr.node, at.to_owned());
        }
        self.copied.objects += 1;
        Ok(())
    }

    fn content(
        &mut self,
        node: NodeId,
        attr: &Attr,
        made: &File,
        at: &Path,
    ) -> std::result::Result<(), Stop> {
        let write = |error: std::io::Error| Stop::at(at, Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let (size, record) = (attr.size, attr.blksize.max(PIECE));
        let handle = self.ops.open(node, OpenFlags::READ)?;
        let mut lost: Vec<Range<u64>> = Vec::new();
        let mut offset = 0;
        while offset < size {
            // Where that cannot be told it is read.
            match self.ops.lseek(node, handle, offset, Seek::Data) {
                Ok(data) if data >= size => break,
                Ok(data) => offset = data,
                Err(FsError::NoExtent) => break,
                Err(_) => {}
            }
            let len = u32::try_from(size - offset).unwrap_or(u32::MAX).min(AT_ONCE);
            let (bytes, gap) = self.piece((node, handle), offset, len, record);
            // Zeros are holes, as in most of what is stored sparsely.
            if bytes.iter().any(|byte| *byte != 0) {
                made.write_all_at(&bytes, offset).map_err(write)?;
                self.copied.bytes += bytes.len() as u64;
            }
            for part in gap {
                match lost.last_mut().filter(|last| last.end == part.start) {
                    Some(last) => last.end = part.end,
                    None => lost.push(part),
                }
            }
            offset += u64::from(len);
            (self.shown)(self.copied.bytes);
        }
        made.set_len(size).map_err(write)?;
        drop(self.ops.release(node, handle));
        if !lost.is_empty() {
            self.copied.in_part.push(InPart { path: at.display().to_string(), size, lost });
        }
        Ok(())
    }

    /// `len` bytes, with zeros for what is lost, and what that is: records, or pieces of one of which some can be read.
    fn piece(
        &self,
        (node, handle): (NodeId, Handle),
        offset: u64,
        len: u32,
        record: u32,
    ) -> (Vec<u8>, Vec<Range<u64>>) {
        let mut bytes = vec![0; len as usize];
        let mut lost = Vec::new();
        let mut open = vec![(0, len)];
        while let Some((from, part)) = open.pop() {
            let start = offset + u64::from(from);
            let data = self.ops.read(node, handle, start, part);
            if let Some(data) = data.ok().filter(|data| data.len() == part as usize) {
                data.copy_to(&mut bytes[from as usize..(from + part) as usize]);
                continue;
            }
            let step = match part {
                part if part > record => record,
                part if part > PIECE => PIECE,
                _ => part,
            };
            let is_hopeless = step == PIECE && !self.has_sound_end((node, handle), start, part);
            if step == part || is_hopeless {
                lost.push(start..start + u64::from(part));
            } else {
                open.extend(
                    (from..from + part)
                        .step_by(step as usize)
                        .map(|at| (at, step.min(from + part - at)))
                        .rev(),
                );
            }
        }
        (bytes, lost)
    }

    /// Whether the first or the last piece of a record that cannot be read whole can be read.
    fn has_sound_end(&self, (node, handle): (NodeId, Handle), start: u64, len: u32) -> bool {
        let ends = [start, start + u64::from(len - PIECE)];
        ends.iter()
            .any(|at| self.ops.read(node, handle, *at, PIECE).is_ok_and(|data| data.len() == PIECE as usize))
    }

    /// Owner, extended attributes, mode and times of a file or folder.
    fn attributes(
        &mut self,
        attr: &Attr,
        node: NodeId,
        made: &File,
        at: &Path,
    ) -> std::result::Result<(), Stop> {
        let stop = |error| Stop::at(at, error);
        let (user, group) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
        let is_theirs = self.owner_set(rustix::fs::fchown(made, Some(user), Some(group))).map_err(stop)?;
        let names = self.ops.listxattr(node).unwrap_or_else(|error| {
            self.failed(at, format!("attributes: {error}"));
            Vec::new()
        });
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let set = self.ops.getxattr(node, name).map_err(|error| error.to_string()).and_then(|value| {
                // The folder's file system may have none, or not these.
                rustix::fs::fsetxattr(made, OsStr::from_bytes(name), &value, XattrFlags::empty())
                    .map_err(|error| std::io::Error::from(error).to_string())
            });
            if let Err(why) = set {
                self.failed(at, format!("attribute {}: {why}", String::from_utf8_lossy(name)));
            }
        }
        // Nobody gets a program that runs as somebody else.
        let bits = if is_theirs { 0o7777 } else { 0o1777 };
        rustix::fs::fchmod(made, Mode::from_raw_mode(attr.perm & bits)).map_err(stop)?;
        rustix::fs::futimens(made, &times(attr)).map_err(stop)
    }

    /// Owner and times of what is not opened.
    fn own(&mut self, attr: &Attr, folder: &File, name: &OsStr, at: &Path) -> std::result::Result<(), Stop> {
        let stop = |error| Stop::at(at, error);
        let (user, group) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        self.owner_set(rustix::fs::chownat(folder, name, Some(user), Some(group), nofollow)).map_err(stop)?;
        rustix::fs::utimensat(folder, name, &times(attr), nofollow).map_err(stop)
    }

    /// Owners can be given by root alone. Whether it was.
    fn owner_set(&mut self, outcome: rustix::io::Result<()>) -> rustix::io::Result<bool> {
        match outcome {
            Err(Errno::PERM) => {
                self.copied.is_owner_lost = true;
                Ok(false)
            }
            outcome => outcome.map(|()| true),
        }
    }
}

/// Why an object is not copied, or nothing more is.
enum Stop {
    /// It alone.
    Here(String),
    /// Nothing more can be made.
    All(ApiError),
}

impl Stop {
    fn at(at: &Path, error: Errno) -> Self {
        match is_final(error) {
            true => Self::All(cannot(at, error)),
            false => Self::Here(std::io::Error::from(error).to_string()),
        }
    }
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Self {
        Self::Here(error.to_string())
    }
}

/// A folder in a folder, never a link.
pub fn open_folder(folder: &File, name: &OsStr) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?.into())
}

/// Whether nothing more can be made in the folder.
fn is_final(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO)
}

fn cannot(at: &Path, error: Errno) -> ApiError {
    let kind = if error == Errno::NOSPC { ErrorKind::NoSpace } else { ErrorKind::Denied };
    ApiError::new(kind, format!("cannot make '{}': {}", at.display(), std::io::Error::from(error)))
}

fn times(attr: &Attr) -> Timestamps {
    let time = |at: larder_format::Timestamp| Timespec { tv_sec: at.secs, tv_nsec: i64::from(at.nanos) };
    Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) }
}
