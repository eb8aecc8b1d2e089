//! The classic FUSE transport: [`Ops`] behind `/dev/fuse`, by way of fuser.
//!
//! # How requests are served
//! [`mount`] starts a fixed set of threads, each of which reads one request, calls [`Ops`] and writes the
//! reply; so as many requests are under way as there are threads, and one that waits for a disk holds up
//! nobody else. The threads share one descriptor: one for each (`clone_fd`) brought nothing clear on two
//! cores. A thread costs two buffers of `max_write` bytes once it has read and written that much.
//!
//! # What the kernel keeps
//! The kernel checks permissions (`default_permissions`, always on) and keeps flock and fcntl locks, which
//! therefore hold within this machine. Writes go through to us at once (no write-back cache: it would take
//! mtime and size out of our hands). Names, attributes and pages stay cached, as all changes go through the
//! mount; what changes from below (rollback, receive) is announced by [`Invalidator`], from a thread that
//! holds no lock and serves no request: the kernel may wait in it for requests that are under way.
//!
//! Setting the owner, writing and truncating clear set-user-id bits here and not in the kernel, which
//! otherwise asks for `security.capability` before every write(2).
//!
//! # What does not reach us
//! - sync(2) and syncfs(2): on a `fuse` mount they return at once and the kernel sends nothing. It sends
//!   SYNCFS on `fuseblk` mounts. One needs a block device as its source, which the kernel opens
//!   exclusively; a loop device over a small file will do (tried: it mounts, and SYNCFS arrives). But fuser
//!   0.18 does not know the request and answers ENOSYS, after which the kernel asks no more and lets syncfs
//!   succeed. So nothing is gained until a transport of our own reads the device, and the loop device
//!   would be one more thing to clean up. The pool's commit timer bounds what a sync(2) may lose; `fsync`
//!   is honoured in full.
//! - POSIX ACLs: everything named `system.*` is refused with EOPNOTSUPP. The kernel would let
//!   `system.posix_acl_access` be stored as any attribute, and nobody would enforce it.
//! - Birth times (statx), O_TMPFILE: fuser 0.18 does not know the requests; statx shows no birth time, and
//!   O_TMPFILE is EOPNOTSUPP. File handles for NFS live as long as the kernel has the inode cached.
//!
//! # When something dies
//! A panic in [`Ops`] is a broken invariant: that request and all after it answer EIO, nothing more reaches
//! the engine, and [`MountHandle::is_broken`] says so. When the process dies, the mount stays and
//! everything in it answers ENOTCONN; [`clear_stale`] takes it away. At unmount the kernel may drop the last
//! releases and forgets: when [`MountHandle::unmount`] returns, no call is under way and every handle that
//! is still open counts as closed.

mod convert;
mod errno;
mod mountpoint;
mod server;
mod session;
#[cfg(test)]
mod tests;

pub use errno::errno;
pub use mountpoint::{clear_stale, is_ours};
pub use session::{Invalidator, MountHandle, NotUnmounted, mount};

use larder_files::Ops;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// The type of our mounts in `/proc/mounts`.
const FS_TYPE: &str = "fuse.larder";

/// What to mount where, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Where; an existing directory.
    pub mountpoint: PathBuf,
    /// What `/proc/mounts` and `df` name as the source: pool and dataset.
    pub source: String,
    /// Let nothing be changed.
    pub read_only: bool,
    /// Let users other than the one that mounts in; permissions are checked in any case.
    pub allow_other: bool,
    /// Let device nodes work.
    pub dev: bool,
    /// Honour set-user-id and set-group-id bits.
    pub suid: bool,
    /// Let programs be run.
    pub exec: bool,
    /// Whether reads set access times. Only shown in the table of mounts: the engine does the setting.
    pub atime: bool,
    /// Requests served at once.
    pub threads: usize,
    /// Bytes that the kernel reads ahead. More than it offers by itself (128 KiB) takes root.
    pub max_readahead: u32,
    /// Largest read or write request in bytes; kernels take up to 1 MiB unless told otherwise.
    pub max_write: u32,
}

impl MountOptions {
    /// The defaults: writable, everybody let in, no devices, no set-user-id.
    pub fn new(mountpoint: impl Into<PathBuf>, source: impl Into<String>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            source: source.into(),
            read_only: false,
            allow_other: true,
            dev: false,
            suid: false,
            exec: true,
            atime: true,
            threads: 16,
            max_readahead: 1 << 20,
            max_write: 1 << 20,
        }
    }
}

/// Why nothing was mounted.
#[derive(Debug, Error)]
pub enum MountError {
    /// The kernel has no FUSE, or it is not to be had here.
    #[error(
        "there is no /dev/fuse: load the kernel module (modprobe fuse), or give the container the device"
    )]
    NoFuse,
    /// Neither root nor able to use fusermount3.
    #[error("no permission to mount at {0}: be root, or install fuse3 and own the mountpoint")]
    NotAllowed(PathBuf),
    /// Not root, and other users are to be let in.
    #[error("letting other users in takes root, or the line user_allow_other in /etc/fuse.conf")]
    OthersNotAllowed,
    /// The mountpoint does not exist.
    #[error("the mountpoint {0} does not exist")]
    NoMountpoint(PathBuf),
    /// The mountpoint is a file.
    #[error("the mountpoint {0} is not a directory")]
    NotDirectory(PathBuf),
    /// Something is mounted there.
    #[error("something is mounted at {0} already")]
    AlreadyMounted(PathBuf),
    /// A mount whose process died is there.
    #[error("a dead mount is at {0}: unmount it first (umount -l)")]
    Dead(PathBuf),
    /// Anything else.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What went wrong.
        source: io::Error,
    },
}
