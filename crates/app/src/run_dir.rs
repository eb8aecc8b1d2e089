//! The folder where daemon and commands find each other: socket, lock, log.

use crate::api::{ApiError, ErrorKind, Result};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind as IoKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

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
            return Ok(Self("/run/larder".into()));
        }
        set("XDG_RUNTIME_DIR").map(|dir| Self(dir.join("larder"))).ok_or_else(|| {
            ApiError::new(ErrorKind::Daemon, "cannot tell where the daemon lives: XDG_RUNTIME_DIR is not set")
                .hint("export LARDER_RUN_DIR=DIR with a folder of yours")
        })
    }

    /// A given folder.
    #[cfg(test)]
    pub fn at(dir: &Path) -> Self {
        Self(dir.to_owned())
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
            let message =
                format!("the run folder {} is not used: {} {why}", self.0.display(), folder.display());
            Err(ApiError::new(ErrorKind::Denied, message)
                .hint("export LARDER_RUN_DIR=DIR with a folder of your own, where only you can write"))
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
