//! The folder where daemon and commands find each other: socket, lock, log. And the state folder, which outlives a
//! boot.

use crate::api::{ApiError, ErrorKind, Result};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind as IoKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The run folder of the system's daemon.
const SYSTEM: &str = "/run/larder";

/// A run folder's paths.
#[derive(Debug, Clone)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// `$LARDER_RUN_DIR`; unset, `/run/larder` for root and `$XDG_RUNTIME_DIR/larder` for others.
    ///
    /// # Errors
    /// When none of these is known.
    pub fn from_environment() -> Result<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(dir) = set("LARDER_RUN_DIR") {
            let dir = std::path::absolute(&dir).map_err(|error| unusable(&dir, &error))?;
            return Ok(Self(dir));
        }
        if rustix::process::geteuid().is_root() {
            return Ok(Self(SYSTEM.into()));
        }
        set("XDG_RUNTIME_DIR").map(|dir| Self(dir.join("larder"))).ok_or_else(|| {
            ApiError::new(ErrorKind::Daemon, "cannot tell where the daemon lives: XDG_RUNTIME_DIR is not set")
                .hint("export LARDER_RUN_DIR=DIR with a folder of yours")
        })
    }

    /// The folder for what the next daemon is to know, also after a boot: `$LARDER_STATE_DIR`; unset, `/var/lib/larder`
    /// for the system's daemon, `~/.local/state/larder` for a user's, else `DIR.state` beside the run folder. Made, and
    /// locked for as long as the file is kept.
    ///
    /// # Errors
    /// When it cannot be made, is not safe (as [`RunDir::check`]), or another daemon has it.
    pub fn state(&self) -> Result<(PathBuf, File)> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let of_user = || Some(set("XDG_RUNTIME_DIR")?.join("larder") == self.0).filter(|&is_his| is_his);
        let home = || Some(set("XDG_STATE_HOME").or(Some(set("HOME")?.join(".local/state")))?.join("larder"));
        let mut beside = self.0.clone().into_os_string();
        beside.push(".state");
        let dir = match set("LARDER_STATE_DIR") {
            Some(dir) => std::path::absolute(&dir).map_err(|error| unusable(&dir, &error))?,
            None if self.is_of_system() => "/var/lib/larder".into(),
            None => of_user().and_then(|_| home()).unwrap_or_else(|| beside.into()),
        };
        let state = Self(dir);
        state.create()?;
        match state.try_lock()? {
            Some(lock) => Ok((state.0, lock)),
            None => {
                let message = format!(
                    "another daemon, of another run folder, keeps its state in {}",
                    state.0.display()
                );
                Err(ApiError::new(ErrorKind::Exists, message)
                    .hint("export LARDER_STATE_DIR=DIR with another folder"))
            }
        }
    }

    /// A given folder.
    #[cfg(test)]
    pub fn at(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// Whether it is the system's daemon's.
    pub fn is_of_system(&self) -> bool {
        self.0 == Path::new(SYSTEM)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join("daemon.sock")
    }

    /// The file that a running daemon holds locked.
    pub fn lock(&self) -> PathBuf {
        self.0.join("daemon.lock")
    }

    /// Log file: the output of a daemon that a command started.
    pub fn log(&self) -> PathBuf {
        self.0.join("daemon.log")
    }

    /// Makes the folder, for its owner alone: who can reach the socket can do everything.
    ///
    /// # Errors
    /// When it cannot be made; as [`RunDir::check`].
    pub fn create(&self) -> Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
            .map_err(|error| unusable(&self.0, &error))?;
        self.check().map(drop)
    }

    /// Makes sure that nobody else can put anything into the folder, or another one in its place: what is there is
    /// written and believed. False when there is none.
    ///
    /// # Errors
    /// When it is a symbolic link, or somebody else can.
    pub fn check(&self) -> Result<bool> {
        let meta = match fs::symlink_metadata(&self.0) {
            Err(error) if error.kind() == IoKind::NotFound => return Ok(false),
            meta => meta.map_err(|error| unusable(&self.0, &error))?,
        };
        let me = rustix::process::geteuid().as_raw();
        let refuse = |folder: &Path, why: &str| {
            let message = format!("the folder {} is not used: {} {why}", self.0.display(), folder.display());
            Err(ApiError::new(ErrorKind::Denied, message).hint(
                "export LARDER_RUN_DIR=DIR, or LARDER_STATE_DIR, with a folder of your own, where only you can write",
            ))
        };
        if !meta.is_dir() {
            return refuse(&self.0, "is a symbolic link, or no folder");
        }
        if meta.uid() != me {
            return refuse(&self.0, "belongs to another user");
        }
        if meta.mode() & 0o022 != 0 {
            return refuse(&self.0, "can be written by others");
        }
        let above = self.0.parent().unwrap_or(Path::new("/"));
        let above = above.canonicalize().map_err(|error| unusable(above, &error))?;
        for folder in above.ancestors() {
            let meta = fs::metadata(folder).map_err(|error| unusable(folder, &error))?;
            // In a folder with the sticky bit everybody renames only what is his own.
            if meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0 {
                return refuse(folder, "can be written by others");
            }
            if meta.uid() != 0 && meta.uid() != me {
                return refuse(folder, "belongs to another user");
            }
        }
        Ok(true)
    }

    /// Opens the log to append to it; only its owner may read it.
    ///
    /// # Errors
    /// When it cannot be opened, or is not a plain file.
    pub fn open_log(&self) -> Result<File> {
        let path = self.log();
        let open = || {
            let log = self.options().append(true).open(&path)?;
            // One of an earlier version was open to all.
            log.set_permissions(fs::Permissions::from_mode(0o600))?;
            Ok(log)
        };
        open().map_err(|error| unusable(&path, &error))
    }

    /// Options to open a file here: made when missing, for its owner alone, no symbolic link.
    fn options(&self) -> OpenOptions {
        let no_follow = rustix::fs::OFlags::NOFOLLOW.bits();
        let mut options = OpenOptions::new();
        options.create(true).mode(0o600).custom_flags(no_follow.cast_signed());
        options
    }

    /// The daemon that has the lock, as a process that is sure to be it; nothing when it cannot be told.
    pub fn holder(&self) -> Option<OwnedFd> {
        let pid = fs::read_to_string(self.lock()).ok()?.trim().parse().ok().and_then(Pid::from_raw)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The number may be of a daemon that died, and another's now.
        let lock = fs::metadata(self.lock()).ok()?;
        let mut files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let is_lock = |file: Metadata| (file.dev(), file.ino()) == (lock.dev(), lock.ino());
        files.any(|file| fs::metadata(file.path()).is_ok_and(is_lock)).then_some(process)
    }

    /// Takes the lock that makes the daemon single; nothing when another holds it.
    ///
    /// # Errors
    /// When the lock file cannot be opened.
    pub fn try_lock(&self) -> Result<Option<File>> {
        let path = self.lock();
        let file = self
            .options()
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| unusable(&path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(unusable(&path, &error)),
        }
    }
}

/// Says in the lock that this process has it.
pub fn sign(lock: &File) {
    // An unsigned daemon is only not asked to end.
    let _ =
        lock.set_len(0).and_then(|()| lock.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0));
}

fn unusable(path: &Path, error: &std::io::Error) -> ApiError {
    let kind = if error.kind() == std::io::ErrorKind::PermissionDenied {
        ErrorKind::Denied
    } else {
        ErrorKind::Daemon
    };
    ApiError::new(kind, format!("cannot use {}: {error}", path.display()))
        .hint("run as root, or export LARDER_RUN_DIR=DIR with a folder of yours")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn a_run_folder_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let at = |name: &str| RunDir::at(&path(name));
        assert_eq!(at("run").check(), Ok(false));
        at("run").create().unwrap();
        assert_eq!(at("run").check(), Ok(true));
        symlink("run", path("link")).unwrap();
        assert!(at("link").create().unwrap_err().message.contains("is a symbolic link"));
        fs::set_permissions(path("run"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(at("run").check().unwrap_err().message.contains("can be written by others"));
        let below = at("run/deep");
        assert!(below.create().unwrap_err().message.contains("can be written by others"));
        fs::set_permissions(path("run"), fs::Permissions::from_mode(0o700)).unwrap();
        below.create().unwrap();
        if rustix::process::geteuid().is_root() {
            chown(path("run"), Some(65534), None).unwrap();
            assert!(at("run").check().unwrap_err().message.contains("belongs to another user"));
            assert!(below.check().unwrap_err().message.contains("belongs to another user"));
        }
    }

    #[test]
    fn logs_are_for_their_owner_and_follow_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::at(&dir.path().join("run"));
        run_dir.create().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "mine").unwrap();
        symlink(&victim, run_dir.log()).unwrap();
        assert!(run_dir.open_log().is_err());
        fs::remove_file(run_dir.log()).unwrap();
        fs::write(run_dir.log(), "old").unwrap();
        let mode = || fs::metadata(run_dir.log()).unwrap().mode() & 0o777;
        run_dir.open_log().unwrap();
        assert_eq!(mode(), 0o600);
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
    }
}
