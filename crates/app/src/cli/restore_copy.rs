//! A copy of a file or folder out of a snapshot: all that it has, its content shared.
//!
//! Everything is made below one folder that is held open, and nothing there is followed: a user who can write to that
//! folder cannot lead a restore of root's elsewhere. What a folder holds is made while only its maker may enter it.

use super::clone::fill;
use super::extents::{cannot, open};
use super::{Session, out};
use crate::api::Result;
use crate::api::name::printable;
use crate::api::pool::Sync;
use rustix::fs::{AtFlags, Dev, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes that are asked for at a time.
const AT_ONCE: usize = 1 << 30;

/// A copy under way.
pub struct Copy<'a> {
    session: &'a Session,
    top: &'a File,
    /// Files with several names, by their numbers: the name below `top` that is there already.
    linked: HashMap<u64, PathBuf>,
    /// The file that was made last.
    filled: Option<File>,
    /// Objects that were made.
    made: u64,
    is_owner_told: bool,
}

impl<'a> Copy<'a> {
    /// Nothing is copied yet.
    pub fn new(session: &'a Session, top: &'a File) -> Self {
        Self { session, top, linked: HashMap::new(), filled: None, made: 0, is_owner_told: false }
    }

    /// Makes `name` in the folder a copy of what is at `from`; `shown` is its name for messages.
    ///
    /// # Errors
    /// When something cannot be read or made; what was made stays.
    pub fn object(&mut self, from: &Path, folder: &File, name: &OsStr, shown: &str) -> Result<()> {
        self.below(from, folder, name, Path::new(name), shown)
    }

    /// The same; `at` is the place below the top.
    fn below(&mut self, from: &Path, folder: &File, name: &OsStr, at: &Path, shown: &str) -> Result<()> {
        let failed = |error: Errno| cannot("restore", shown, &error.into());
        let known = fs::symlink_metadata(from).map_err(|error| cannot("restore", shown, &error))?;
        let kind = FileType::from_raw_mode(known.mode());
        if !known.is_dir() && known.nlink() > 1 {
            if let Some(first) = self.linked.get(&known.ino()) {
                return rustix::fs::linkat(self.top, first, folder, name, AtFlags::empty()).map_err(failed);
            }
            self.linked.insert(known.ino(), at.to_owned());
        }
        self.made += 1;
        match kind {
            FileType::Directory => {
                rustix::fs::mkdirat(folder, name, Mode::RWXU).map_err(failed)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made: File =
                    rustix::fs::openat(folder, name, flags, Mode::empty()).map_err(failed)?.into();
                let entries = fs::read_dir(from).map_err(|error| cannot("restore", shown, &error))?;
                for entry in entries {
                    let own = entry.map_err(|error| cannot("restore", shown, &error))?.file_name();
                    let below = format!("{shown}/{}", printable(&own.to_string_lossy()));
                    self.below(&from.join(&own), &made, &own, &at.join(&own), &below)?;
                }
                let source = File::open(from).map_err(|error| cannot("restore", shown, &error))?;
                self.attributes(&source, &known, &made, shown)
            }
            FileType::RegularFile => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made =
                    rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
                let made: File = made.into();
                let source = File::open(from).map_err(|error| cannot("restore", shown, &error))?;
                self.content(&source, from, &made, shown)?;
                self.attributes(&source, &known, &made, shown)?;
                self.filled = Some(made);
                Ok(())
            }
            FileType::Symlink => {
                let target = fs::read_link(from).map_err(|error| cannot("restore", shown, &error))?;
                rustix::fs::symlinkat(target, folder, name).map_err(failed)?;
                self.own(&known, folder, name, shown)
            }
            kind => {
                let mode = Mode::from_raw_mode(known.mode());
                rustix::fs::mknodat(folder, name, kind, mode, known.rdev() as Dev).map_err(failed)?;
                self.own(&known, folder, name, shown)
            }
        }
    }

    fn content(&self, source: &File, from: &Path, made: &File, shown: &str) -> Result<()> {
        let failed = |error: std::io::Error| cannot("restore", shown, &error);
        let (old, new) = (source.metadata().map_err(failed)?, made.metadata().map_err(failed)?);
        if old.dev() != new.dev() {
            let from = from.to_string_lossy();
            let (source, id) = open(&from)?;
            return fill(self.session, (&source, id), made, shown)
                .map(drop)
                .map_err(|error| error.hint(format!("cp -a {from} copies it anywhere")));
        }
        loop {
            let copied = rustix::fs::copy_file_range(source, None, made, None, AT_ONCE);
            if copied.map_err(|error| failed(error.into()))? == 0 {
                break;
            }
        }
        // Nothing more to copy is no proof that all was.
        if made.metadata().map_err(failed)?.len() != old.len() {
            return Err(failed(std::io::Error::other("its content ends before its length")));
        }
        Ok(())
    }

    /// Owner, extended attributes, mode and times of a file or folder.
    fn attributes(&mut self, source: &File, known: &Metadata, made: &File, shown: &str) -> Result<()> {
        let failed = |error: Errno| cannot("restore", shown, &error.into());
        let (user, group) = (Uid::from_raw(known.uid()), Gid::from_raw(known.gid()));
        let is_theirs = self.owner_set(rustix::fs::fchown(made, Some(user), Some(group)), shown)?;
        for (name, value) in extended(source).map_err(failed)? {
            rustix::fs::fsetxattr(made, &name, &value, XattrFlags::empty()).map_err(failed)?;
        }
        // Nobody gets a program that runs as somebody else.
        let bits = if is_theirs { 0o7777 } else { 0o1777 };
        rustix::fs::fchmod(made, Mode::from_raw_mode(known.mode() & bits)).map_err(failed)?;
        rustix::fs::futimens(made, &times(known)).map_err(failed)
    }

    /// Owner and times of what is not opened.
    fn own(&mut self, known: &Metadata, folder: &File, name: &OsStr, shown: &str) -> Result<()> {
        let (user, group) = (Uid::from_raw(known.uid()), Gid::from_raw(known.gid()));
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        self.owner_set(rustix::fs::chownat(folder, name, Some(user), Some(group), nofollow), shown)?;
        rustix::fs::utimensat(folder, name, &times(known), nofollow)
            .map_err(|error| cannot("restore", shown, &error.into()))
    }

    /// Owners can be given by root alone, which is told once. Whether it was.
    fn owner_set(&mut self, outcome: std::result::Result<(), Errno>, shown: &str) -> Result<bool> {
        match outcome {
            Err(Errno::PERM) => {
                if !std::mem::replace(&mut self.is_owner_told, true) {
                    out::complain(&format!("'{shown}' is yours now: only root gives files to others"));
                }
                Ok(false)
            }
            outcome => outcome.map(|()| true).map_err(|error| cannot("restore", shown, &error.into())),
        }
    }

    /// Returns when all of it is durable. Syncing a file does that for its own content alone, so that of several
    /// objects the pool is committed.
    ///
    /// # Errors
    /// When it cannot be made so.
    pub fn sync(&self, pool: &str, shown: &str) -> Result<()> {
        if self.made > 1 {
            self.session.client.call(Sync { names: vec![pool.to_owned()] })?;
            return Ok(());
        }
        let synced = self.filled.as_ref().map_or(Ok(()), File::sync_all);
        synced.map_err(|error| cannot("restore", shown, &error))
    }
}

/// The extended attributes of a file or folder, by their names.
pub fn extended(of: &File) -> rustix::io::Result<BTreeMap<OsString, Vec<u8>>> {
    let mut names = vec![0_u8; rustix::fs::flistxattr_query(of)?];
    let size = rustix::fs::flistxattr(of, names.as_mut_slice())?;
    names.truncate(size);
    let mut found = BTreeMap::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let name = OsStr::from_bytes(name);
        let mut value = vec![0_u8; rustix::fs::fgetxattr_query(of, name)?];
        let size = rustix::fs::fgetxattr(of, name, value.as_mut_slice())?;
        value.truncate(size);
        found.insert(name.to_owned(), value);
    }
    Ok(found)
}

fn times(known: &Metadata) -> Timestamps {
    let time = |secs, nanos| Timespec { tv_sec: secs, tv_nsec: nanos };
    Timestamps {
        last_access: time(known.atime(), known.atime_nsec()),
        last_modification: time(known.mtime(), known.mtime_nsec()),
    }
}

/// Removes a name and all below it, as far as that goes; no link is followed.
pub fn remove(folder: &File, name: &OsStr) {
    if rustix::fs::unlinkat(folder, name, AtFlags::empty()).is_ok() {
        return;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(open) = rustix::fs::openat(folder, name, flags, Mode::empty()) {
        let open = File::from(open);
        let names: Vec<_> = rustix::fs::Dir::read_from(&open).map_or_else(
            |_| Vec::new(),
            |entries| entries.flatten().map(|entry| entry.file_name().to_owned()).collect(),
        );
        for below in names.iter().map(|name| OsStr::from_bytes(name.to_bytes())) {
            if below != "." && below != ".." {
                remove(&open, below);
            }
        }
        let _ = rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR);
    }
}
