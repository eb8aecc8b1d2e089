//! The folder where daemon and commands find each other: socket, lock, log.

use crate::api::{ApiError, ErrorKind, Result};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
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

    /// What a daemon that a command started prints.
    pub fn log(&self) -> PathBuf {
        self.0.join("daemon.log")
    }

    /// Makes the folder, for its owner alone: who can reach the socket can do everything.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(&self) -> Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
            .map_err(|error| unusable(&self.0, &error))
    }

    /// Takes the lock that makes the daemon single; nothing when another holds it.
    ///
    /// # Errors
    /// When the lock file cannot be opened.
    pub fn try_lock(&self) -> Result<Option<File>> {
        let path = self.lock();
        let file = OpenOptions::new()
            .create(true)
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
