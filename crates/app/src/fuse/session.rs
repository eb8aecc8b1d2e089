//! Mounting, and the life of a mount.
//!
//! Root mounts by mount(2) itself, so that no fusermount3 is needed; others go by fusermount3. A handle unmounts
//! only what it mounted: the mount is known by its device number, which is unique while the mount lives.

use super::mountpoint::{self, Mounted, copies_that_stay, mounted_at};
use super::server::Server;
use super::{MountError, MountOptions, Ops, SUBTYPE};
use larder_files::NodeId;
use larder_fuse::mount::{Mount, open_device};
use larder_fuse::{Notifier, Options, Session, Transport};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::env;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Requests that the kernel keeps under way without a process waiting for each: read-ahead and asynchronous
/// direct I/O. Enough for read-ahead to keep several disks busy.
const MAX_BACKGROUND: u16 = 64;
/// Time limit for a mount that was taken away to end: the kernel lets go of it a moment after umount(2).
const LAST_MOMENTS: Duration = Duration::from_secs(3);
/// Names a transport, if one is to be forced.
const TRANSPORT_VARIABLE: &str = "LARDER_FUSE";

/// Mounts `ops` and serves it on threads of its own, until it is unmounted.
pub fn mount(ops: Arc<dyn Ops>, options: MountOptions) -> Result<MountHandle, MountError> {
    let transport = options.transport.map_or_else(wished_transport, |one| Ok(Some(one)))?;
    let place = mountpoint::find(&options)?;
    let direct = rustix::process::geteuid().is_root();
    // fusermount3 looks for itself, as the user.
    let target = if direct { place.by_descriptor() } else { place.path.clone() };
    let mountpoint = place.path.clone();
    let broken = Arc::new(AtomicBool::new(false));
    let server = Server::new(ops, Arc::clone(&broken));
    let what = Mount {
        mountpoint: &target,
        source: &options.source,
        subtype: SUBTYPE,
        read_only: options.read_only,
        allow_other: options.allow_other,
        dev: options.dev,
        suid: options.suid,
        exec: options.exec,
        atime: options.atime,
    };
    let fuse = if direct { mount_directly(&what, &mountpoint)? } else { mount_by_fusermount(&what)? };
    let serving = Options {
        transport,
        threads: options.threads.max(1),
        max_write: options.max_write,
        max_readahead: options.max_readahead,
        max_background: MAX_BACKGROUND,
    };
    let session = larder_fuse::serve(fuse, Arc::new(server), &serving).map_err(|source| {
        // Nobody can be in it yet, but a busybody who looks in must not keep it.
        let _ = take_away(&mountpoint, direct, true);
        MountError::Io { doing: "starting to serve the mount".into(), source }
    })?;
    let invalidator = Invalidator(session.notifier());
    let device = match mounted_at(&mountpoint) {
        Ok(mounted) => mounted.map(|mount| mount.device),
        Err(source) => return Err(MountError::Io { doing: "reading the table of mounts".into(), source }),
    };
    if let Some(device) = device.as_deref().filter(|_| direct) {
        read_ahead(device, options.max_readahead);
    }
    let device = device.unwrap_or_default();
    Ok(MountHandle { session: Some(Arc::new(session)), mountpoint, device, direct, invalidator, broken })
}

/// The transport that the environment forces.
fn wished_transport() -> Result<Option<Transport>, MountError> {
    match env::var_os(TRANSPORT_VARIABLE) {
        None => Ok(None),
        Some(word) if word.is_empty() => Ok(None),
        Some(word) if word == "classic" => Ok(Some(Transport::Classic)),
        Some(word) if word == "io_uring" => Ok(Some(Transport::IoUring)),
        Some(word) => {
            let said = format!("{} is neither classic nor io_uring", word.to_string_lossy());
            let source = io::Error::new(io::ErrorKind::InvalidInput, said);
            Err(MountError::Io { doing: TRANSPORT_VARIABLE.into(), source })
        }
    }
}

/// Mounts as root.
fn mount_directly(what: &Mount<'_>, mountpoint: &Path) -> Result<OwnedFd, MountError> {
    let not_allowed = || MountError::NotAllowed(mountpoint.to_owned());
    let device = open_device().map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoFuse,
        Errno::ACCESS | Errno::PERM => not_allowed(),
        _ => MountError::Io { doing: "opening /dev/fuse".into(), source: errno.into() },
    })?;
    what.directly(&device).map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => not_allowed(),
        Errno::NODEV => MountError::NoFuse,
        _ => mounting(mountpoint, errno.into()),
    })?;
    Ok(device)
}

/// Mounts as a user, by the set-user-id program fusermount3.
fn mount_by_fusermount(what: &Mount<'_>) -> Result<OwnedFd, MountError> {
    what.by_fusermount().map_err(|source| match source.kind() {
        _ if source.to_string().contains("user_allow_other") => MountError::OthersNotAllowed,
        _ if !Path::new("/dev/fuse").exists() => MountError::NoFuse,
        // Also when there is no fusermount3: that we could mount by ourselves is ruled out.
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
            MountError::NotAllowed(what.mountpoint.to_owned())
        }
        _ => mounting(what.mountpoint, source),
    })
}

fn mounting(mountpoint: &Path, source: io::Error) -> MountError {
    MountError::Io { doing: format!("mounting at {}", mountpoint.display()), source }
}

/// Lets the kernel read ahead `bytes`. In the handshake it offers its default of 128 KiB as the most; the
/// setting of the mount's backing device goes beyond. Where that cannot be written, the default stays.
fn read_ahead(device: &str, bytes: u32) {
    let _ = std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), (bytes / 1024).to_string());
}

/// Tells the kernel what has changed from below. Never call it from [`Ops`], nor with a lock held that
/// [`Ops`] takes: the kernel may wait for requests under way before it answers.
#[derive(Debug, Clone)]
pub struct Invalidator(Notifier);

impl Invalidator {
    /// `name` in `parent` is another object now, or there, or gone.
    pub fn entry(&self, parent: NodeId, name: &[u8]) -> io::Result<()> {
        self.0.entry(parent.raw(), name)
    }

    /// Attributes and content of `node` are others now.
    pub fn node(&self, node: NodeId) -> io::Result<()> {
        self.0.node(node.raw())
    }

    /// Attributes of `node` are others now; its content is not.
    pub fn attributes(&self, node: NodeId) -> io::Result<()> {
        self.0.attributes(node.raw())
    }
}

/// Whether a mount is still served.
#[derive(Debug, Clone, Default)]
pub struct Life(Weak<Session>);

impl Life {
    /// See [`MountHandle::is_alive`].
    pub fn is_alive(&self) -> bool {
        self.0.upgrade().is_some_and(|session| !session.is_finished())
    }
}

/// A mount that is being served. Dropping it unmounts lazily: nobody finds it any more, who is in it stays
/// served until he leaves.
pub struct MountHandle {
    /// None once it is unmounted.
    session: Option<Arc<Session>>,
    mountpoint: PathBuf,
    device: String,
    /// Mounted by mount(2), not by fusermount3.
    direct: bool,
    invalidator: Invalidator,
    broken: Arc<AtomicBool>,
}

impl MountHandle {
    /// Where it is mounted, without links.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The device number that files on it have, as `major:minor`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Whether requests are still served; false after somebody has unmounted it from outside.
    pub fn is_alive(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_finished())
    }

    /// Transport of its requests.
    pub fn transport(&self) -> Transport {
        self.session.as_ref().expect("a handle has its session").transport()
    }

    /// Whether a request has panicked; everything answers EIO since.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// The invalidator, which announces changes from below to the kernel.
    pub fn invalidator(&self) -> Invalidator {
        self.invalidator.clone()
    }

    /// A weak reference that tells whether requests are still served.
    pub fn life(&self) -> Life {
        Life(self.session.as_ref().map(Arc::downgrade).unwrap_or_default())
    }

    /// Returns when the mount is gone, by whomever, and no request is under way.
    pub fn wait(mut self) -> io::Result<()> {
        while !self.has_ended_within(LAST_MOMENTS) {}
        self.session = None;
        Ok(())
    }

    /// Unmounts; returns when no request is under way. A mount in use stays and comes back in the error, and so does
    /// one that is gone from its place and lives on elsewhere: a copy of it, or a file that is open since before it was
    /// detached.
    pub fn unmount(mut self) -> Result<(), NotUnmounted> {
        let copies = match mounted_at(&self.mountpoint) {
            Ok(Some(here)) if here.device == self.device => copies_that_stay(&here).unwrap_or_default(),
            _ => Vec::new(),
        };
        let (error, for_good) = if !copies.is_empty() {
            (io::Error::other(format!("it is also mounted at {}", copies.join(", "))), true)
        } else if let Err(error) = self.take_away(false) {
            (error, false)
        } else if !self.has_ended_within(LAST_MOMENTS) {
            (io::Error::other("it is gone from its place, and somebody still uses it"), true)
        } else {
            self.session = None;
            return Ok(());
        };
        Err(NotUnmounted { handle: Box::new(self), error, for_good })
    }

    /// Ends the mount, whoever is in it: they get errors from then on. False when requests are still under way.
    pub fn abort(mut self) -> bool {
        let here = mounted_at(&self.mountpoint).ok().flatten();
        if self.is_alive() && self.is_this(here.as_ref()) {
            // A mount that is not ended by force is aborted below.
            if self.direct {
                let _ = unmount(&self.mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH);
            } else {
                let _ = take_away(&self.mountpoint, false, true);
            }
        }
        // By its number the kernel knows it wherever it lives on.
        if let Some((_, number)) = self.device.split_once(':') {
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1");
        }
        let ended = self.has_ended_within(LAST_MOMENTS);
        self.session = None;
        ended
    }

    fn is_this(&self, mounted: Option<&Mounted>) -> bool {
        mounted.is_some_and(|mounted| mounted.device == self.device)
    }

    /// Waits for the end of the last request.
    #[expect(clippy::disallowed_methods, reason = "threads are waited for, with a limit")]
    fn has_ended_within(&self, limit: Duration) -> bool {
        let began = Instant::now();
        while self.is_alive() {
            if began.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Unmounts lazily, as dropping does.
    pub fn detach(self) {}

    /// Takes the mount out of the tree, unless that has happened.
    fn take_away(&self, lazily: bool) -> io::Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match mounted_at(&self.mountpoint)? {
            // Somebody has detached it.
            None => Ok(()),
            Some(top) if top.device != self.device => Err(Errno::BUSY.into()),
            Some(_) => take_away(&self.mountpoint, self.direct, lazily),
        }
    }
}

/// Unmounts what is at `mountpoint`.
fn take_away(mountpoint: &Path, direct: bool, lazily: bool) -> io::Result<()> {
    if direct {
        let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return Ok(unmount(mountpoint, flags)?);
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(mountpoint);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

impl Drop for MountHandle {
    fn drop(&mut self) {
        if self.session.is_some() {
            // Nobody is left to tell; a mount that stays is found in the table of mounts.
            let _ = self.take_away(true);
        }
    }
}

impl fmt::Debug for MountHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountHandle").field("mountpoint", &self.mountpoint).finish_non_exhaustive()
    }
}

/// A mount that could not be unmounted, most often because it is in use.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be unmounted: {error}", handle.mountpoint.display())]
pub struct NotUnmounted {
    /// The mount, still served.
    pub handle: Box<MountHandle>,
    /// The error.
    pub error: io::Error,
    /// Trying again in a moment does not help.
    pub for_good: bool,
}
