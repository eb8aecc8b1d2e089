//! The place of what `larder restore` brings back: the folder that holds it, and a private one in that to make it in.
//!
//! The owner of the folder can rename and link what lies in it at any moment. So all is made in a folder that only its
//! maker may enter, through a descriptor of it, and what is replaced is looked at after it has left its place.

use super::args;
use super::extents::cannot;
use super::restore_copy::remove;
use crate::api::name::printable;
use crate::api::{ApiError, ErrorKind, Result};
use larder_device::{Entropy, SystemEntropy};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of the original name in a temporary one.
const NAME_BYTES: usize = 200;

/// Where something goes.
pub struct Place {
    pub path: PathBuf,
    /// The same as people gave it.
    pub shown: String,
}

/// The looks of a file: a change of it changes them, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    inode: u64,
    size: u64,
    mtime: (i64, i64),
}

impl Seen {
    pub fn of(known: &Metadata) -> Self {
        Self { inode: known.ino(), size: known.size(), mtime: (known.mtime(), known.mtime_nsec()) }
    }
}

impl Place {
    /// The place of `path`, or `to`, where that is given.
    pub fn of(path: &str, to: Option<&str>) -> Result<Self> {
        let mut shown = to.unwrap_or(path).to_owned();
        if let Some(to) = to
            && Path::new(to).is_dir()
            && let Some(name) = Path::new(path).file_name()
        {
            shown = Path::new(to).join(name).to_string_lossy().into_owned();
        }
        Ok(Self { path: args::absolute(&shown)?.into(), shown })
    }

    /// Its name in the folder.
    pub fn name(&self) -> Result<&OsStr> {
        self.path.file_name().ok_or_else(|| ApiError::usage(format!("'{}' names no file", self.shown)))
    }

    /// The folder that it is in.
    pub fn folder(&self) -> Result<File> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        File::open(folder).map_err(|error| {
            let refused = cannot("restore", &self.shown, &error);
            match error.kind() {
                io::ErrorKind::NotFound => {
                    refused.hint(format!("mkdir -p {}; or name another place", folder.display()))
                }
                _ => refused,
            }
        })
    }

    /// Looks at the place. All that was written to a regular file there is on its way to the pool then.
    pub fn there(&self, folder: &File) -> Result<Option<Metadata>> {
        let failed = |error: io::Error| cannot("restore", &self.shown, &error);
        let name = self.name()?;
        // Its own descriptor, which needs no right to read it.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            open => File::from(open.map_err(|error| failed(error.into()))?),
        };
        if open.metadata().map_err(failed)?.is_file() {
            // Writes through mmap may be in the kernel alone.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            if let Ok(file) = rustix::fs::openat(folder, name, flags, Mode::empty()) {
                File::from(file).sync_all().map_err(failed)?;
            }
        }
        open.metadata().map(Some).map_err(failed)
    }

    /// Gives the place to what was made in the private folder; what was there, if something was, comes into that.
    ///
    /// # Errors
    /// When something else is there now than what was seen: that stays.
    pub fn take(&self, folder: &File, private: &mut Private<'_>, there: Option<Seen>) -> Result<()> {
        let failed = |error: Errno| cannot("restore", &self.shown, &error.into());
        let name = self.name()?;
        let rename = |flags| rustix::fs::renameat_with(&private.open, name, folder, name, flags);
        let Some(seen) = there else {
            let moved = match rename(RenameFlags::NOREPLACE) {
                // A folder that its owner may not write to does not move elsewhere.
                Err(Errno::ACCESS) => writable(&private.open, name, || rename(RenameFlags::NOREPLACE)),
                moved => moved,
            };
            return moved.map_err(failed);
        };
        let look = || {
            let found = rustix::fs::statat(&private.open, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let mtime = (found.st_mtime, found.st_mtime_nsec.cast_signed());
            Ok(Seen { inode: found.st_ino, size: found.st_size.cast_unsigned(), mtime })
        };
        let own = look().map_err(failed)?;
        rename(RenameFlags::EXCHANGE).map_err(failed)?;
        let came = look();
        if came == Ok(seen) {
            return Ok(());
        }
        let back = rename(RenameFlags::EXCHANGE).and_then(|()| look());
        let message = format!("cannot restore '{}': it was changed meanwhile", self.shown);
        let error = ApiError::new(ErrorKind::Exists, message);
        if back.is_ok_and(|now| now.inode == own.inode) {
            return Err(error
                .safe("everything: nothing was changed")
                .hint("the same again, when it is quiet"));
        }
        // It changed again: what somebody put there must not be removed.
        private.is_kept = true;
        let kept = self.path.with_file_name(&private.name);
        Err(error.hint(format!("what was there is in {}", printable(&kept.to_string_lossy()))))
    }
}

/// Does something while the owner of a folder may write to it.
fn writable(
    above: &File,
    name: &OsStr,
    doing: impl FnOnce() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::openat(above, name, flags, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&open)?.st_mode);
    rustix::fs::fchmod(&open, mode | Mode::WUSR)?;
    let done = doing();
    done.and(rustix::fs::fchmod(&open, mode)).and(rustix::fs::fsync(&open))
}

/// A folder in another one that only its maker may enter. It goes when it is dropped, with all that is in it.
pub struct Private<'a> {
    folder: &'a File,
    name: OsString,
    open: File,
    is_kept: bool,
}

impl<'a> Private<'a> {
    /// Makes one, for something of this name.
    pub fn new(folder: &'a File, of: &OsStr, shown: &str) -> Result<Self> {
        let failed = |error: Errno| cannot("restore", shown, &error.into());
        let name = hidden(of, SystemEntropy.next_u64());
        rustix::fs::mkdirat(folder, &name, Mode::RWXU).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open: File = rustix::fs::openat(folder, &name, flags, Mode::empty()).map_err(failed)?.into();
        // Another may lie there by now.
        let known = open.metadata().map_err(|error| cannot("restore", shown, &error))?;
        let is_own = known.uid() == rustix::process::geteuid().as_raw() && known.mode() & 0o777 == 0o700;
        let entries = rustix::fs::Dir::read_from(&open).map_err(failed)?;
        let is_empty =
            entries.flatten().all(|entry| [&b"."[..], b".."].contains(&entry.file_name().to_bytes()));
        if !is_own || !is_empty {
            let message = format!("cannot restore '{shown}': somebody else changes its folder");
            return Err(ApiError::new(ErrorKind::Denied, message).safe("everything: nothing was changed"));
        }
        // Access lists are those of the version: the folder must hand down none.
        match rustix::fs::fremovexattr(&open, "system.posix_acl_default") {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(Self { folder, name, open, is_kept: false })
    }

    /// The folder itself.
    pub fn open(&self) -> &File {
        &self.open
    }

    fn clear(&self) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.open) else { return };
        let names: Vec<_> = entries.flatten().map(|entry| entry.file_name().to_owned()).collect();
        for name in names.iter().map(|name| OsStr::from_bytes(name.to_bytes())) {
            if name != "." && name != ".." {
                remove(&self.open, name);
            }
        }
        let _ = rustix::fs::unlinkat(self.folder, &self.name, AtFlags::REMOVEDIR);
    }
}

impl Drop for Private<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.clear();
        }
    }
}

/// A name that nobody has and nobody can foresee.
fn hidden(name: &OsStr, random: u64) -> OsString {
    let short = &name.as_bytes()[..name.len().min(NAME_BYTES)];
    let suffix = format!(".larder-restore-{random:016x}");
    OsString::from_vec([b".", short, suffix.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_temporary_name_is_hidden_and_never_too_long() {
        let name = hidden(OsStr::new(&"x".repeat(255)), u64::MAX);
        assert!(name.len() <= 255 && name.as_bytes().starts_with(b".xx"));
    }

    #[test]
    fn only_what_was_seen_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(dir.path().join("a").to_str().unwrap(), None).unwrap();
        let folder = place.folder().unwrap();
        fs::write(&place.path, "seen").unwrap();
        let seen = place.there(&folder).unwrap().map(|there| Seen::of(&there));
        let made = |text: &str| {
            let private = Private::new(&folder, place.name().unwrap(), "a").unwrap();
            fs::write(dir.path().join(&private.name).join("a"), text).unwrap();
            private
        };
        fs::write(&place.path, "another").unwrap();
        let refused = place.take(&folder, &mut made("new"), seen).unwrap_err();
        assert!(refused.message.ends_with("changed meanwhile") && refused.safe.is_some(), "{refused:?}");
        assert_eq!(fs::read(&place.path).unwrap(), b"another");
        assert!(place.take(&folder, &mut made("new"), None).is_err());
        let seen = place.there(&folder).unwrap().map(|there| Seen::of(&there));
        place.take(&folder, &mut made("new"), seen).unwrap();
        assert_eq!(fs::read(&place.path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
