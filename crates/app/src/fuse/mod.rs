//! [`Ops`] as a FUSE mount, by way of `larder-fuse`.
//!
//! # How requests are served
//! [`mount`] starts a fixed set of threads, each of which takes one request, calls [`Ops`] and hands in the answer;
//! so as many requests are under way as there are threads, and one that waits for a disk holds up nobody else. How
//! requests come, through `/dev/fuse` or by io_uring, is `larder-fuse`'s to know. A thread costs a buffer of
//! `max_write` bytes once that much came through it; what is read goes out from where it lies in the cache.
//!
//! # What the kernel keeps
//! The kernel checks permissions and POSIX ACLs (`default_permissions`, always on) and keeps flock and fcntl
//! locks, which therefore hold within this machine. Writes go through to us at once (no write-back cache: it would
//! take mtime and size out of our hands). Names, attributes and pages stay cached, as all changes go through the
//! mount; what changes from below (rollback, receive) is announced by [`Invalidator`], from a thread that
//! holds no lock and serves no request: the kernel may wait in it for requests that are under way.
//!
//! Writes to a file that a program has just made, by a handle that cannot read, go around the kernel's pages (Linux
//! 6.18.3 and later): data comes from where the program has it. Pages are filled when somebody reads, and nobody can
//! have them mapped for writing meanwhile (see `around`). The kernel's work for a write through pages is done here
//! then: O_DSYNC, and taking `security.capability` away.
//!
//! Set-user-id and set-group-id bits are cleared here (see `privilege`), when the kernel says so: otherwise it would
//! ask for `security.capability` before every write(2). It does not look whether they are when a write is answered,
//! so attributes of files with such bits are not kept by it at all. The umask, too, is taken off here, where a
//! default ACL may stand in its place.
//!
//! The kernel opens, asks about and changes by number what it has looked up, also when the name is gone by then: each
//! answer that names a node counts, until it is forgotten (see `larder_files::View`).
//!
//! # What does not reach us
//! - close(2): no file is flushed, so close reports no trouble with earlier writes. fsync does.
//! - sync(2) and syncfs(2): on a `fuse` mount they return at once and the kernel sends nothing. It sends
//!   SYNCFS, which we honour, on `fuseblk` mounts. One needs a block device as its source, which the kernel opens
//!   exclusively: a loop device over a small file would do, and would be one more thing to clean up. The pool's
//!   commit timer bounds what a sync(2) may lose; `fsync` is honoured in full.
//! - Of extended attributes in `system` only POSIX ACLs are let through; the others are refused with EOPNOTSUPP.
//!
//! # When something dies
//! A panic in [`Ops`] is a broken invariant: that request and all after it answer EIO, nothing more reaches the
//! engine, which is told ([`Ops::panicked`]), and [`MountHandle::is_broken`] says so. When the process dies, the
//! mount stays and everything in it answers ENOTCONN; [`clear_stale`] takes it away. At unmount the kernel may drop
//! the last releases and forgets: when [`MountHandle::unmount`] returns, no call is under way and every handle that
//! is still open counts as closed.

mod around;
mod convert;
mod errno;
mod mountpoint;
mod privilege;
mod server;
mod session;
#[cfg(test)]
mod tests;

pub use errno::errno;
pub use larder_fuse::Transport;
pub use mountpoint::{clear_stale, is_ours};
pub use session::{Invalidator, Life, MountHandle, NotUnmounted, mount};

use larder_files::Ops;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// The type of our mounts in `/proc/mounts`.
const FS_TYPE: &str = "fuse.larder";
/// Its subtype.
const SUBTYPE: &str = "larder";

/// Place, source and options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Where; an absolute path.
    pub mountpoint: PathBuf,
    /// Source column of `/proc/mounts` and `df`: pool and dataset.
    pub source: String,
    /// Below this, no symbolic link leads to it.
    pub root: Option<PathBuf>,
    /// Mount over a directory that is not empty.
    pub overlay: bool,
    /// Make the directory, and those above it, where they are missing.
    pub make: bool,
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
    /// Transport of requests. None takes the one in the environment's `LARDER_FUSE` (`classic` or `io_uring`), and else
    /// the better of those available.
    pub transport: Option<Transport>,
    /// Requests served at once; with io_uring, for each processor.
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
            root: None,
            overlay: false,
            make: false,
            read_only: false,
            allow_other: true,
            dev: false,
            suid: false,
            exec: true,
            atime: true,
            transport: None,
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
    /// Something is in the mountpoint.
    #[error("the mountpoint {0} is not empty")]
    NotEmpty(PathBuf),
    /// A link leads to the mountpoint that is not to be believed.
    #[error(
        "{0} is a symbolic link that is not followed: it belongs to somebody else, lies on a FUSE mount or below an \
         alternate root, or leads nowhere"
    )]
    StrangeLink(PathBuf),
    /// Something is mounted there.
    #[error("something is mounted at {0} already")]
    AlreadyMounted(PathBuf),
    /// A mount whose process died is there.
    #[error("a dead mount is at {0}: unmount it first (umount -l)")]
    Dead(PathBuf),
    /// Anything else.
    #[error("{doing}: {source}")]
    Io {
        /// The step that failed.
        doing: String,
        /// The error.
        source: io::Error,
    },
}
