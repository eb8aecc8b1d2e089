//! Mounting, and the life of a mount.
//!
//! Root mounts by mount(2) itself, so that the mount's type is `fuse.larder` and no fusermount3 is needed;
//! others go through fuser's way with fusermount3. A handle unmounts only what it mounted: the mount is
//! known by its device number, which is unique while the mount lives.

use super::mountpoint::{check, mounted_at};
use super::server::Server;
use super::{FS_TYPE, MountError, MountOptions, Ops};
use fuser::{BackgroundSession, Config, INodeNo, MountOption, Notifier, Session, SessionACL};
use larder_files::NodeId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsStr};
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Mounts `ops` and serves it on threads of its own, until it is unmounted.
pub fn mount(ops: Arc<dyn Ops>, options: MountOptions) -> Result<MountHandle, MountError> {
    let mountpoint = check(&options.mountpoint)?;
    let broken = Arc::new(AtomicBool::new(false));
    let server = Server {
        ops,
        max_readahead: options.max_readahead,
        max_write: options.max_write,
        broken: broken.clone(),
    };
    let direct = rustix::process::geteuid().is_root();
    let session = if direct {
        mount_directly(server, &mountpoint, &options)?
    } else {
        mount_by_fusermount(server, &mountpoint, &options)?
    };
    let invalidator = Invalidator(session.notifier());
    let device = match mounted_at(&mountpoint) {
        Ok(mounted) => mounted.map(|mount| mount.device),
        Err(source) => return Err(MountError::Io { doing: "reading the table of mounts".into(), source }),
    };
    if let Some(device) = device.as_deref().filter(|_| direct) {
        read_ahead(device, options.max_readahead);
    }
    let device = device.unwrap_or_default();
    Ok(MountHandle { session: Some(session), mountpoint, device, direct, invalidator, broken })
}

fn acl(options: &MountOptions) -> SessionACL {
    if options.allow_other { SessionACL::All } else { SessionACL::Owner }
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.acl = acl(options);
    config.n_threads = Some(options.threads.max(1));
    config
}

/// Mounts as root: opens the device, mounts it, shakes hands.
fn mount_directly(
    server: Server,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<BackgroundSession, MountError> {
    let device =
        rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
            match errno {
                Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoFuse,
                Errno::ACCESS | Errno::PERM => MountError::NotAllowed(mountpoint.to_owned()),
                _ => MountError::Io { doing: "opening /dev/fuse".into(), source: errno.into() },
            }
        })?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::NOATIME, !options.atime);
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("numbers and words");
    rustix::mount::mount(options.source.as_str(), mountpoint, FS_TYPE, flags, data.as_c_str()).map_err(
        |errno| match errno {
            Errno::PERM | Errno::ACCESS => MountError::NotAllowed(mountpoint.to_owned()),
            Errno::NODEV => MountError::NoFuse,
            _ => MountError::Io {
                doing: format!("mounting at {}", mountpoint.display()),
                source: errno.into(),
            },
        },
    )?;
    Session::from_fd(server, device, acl(options), config(options)).and_then(Session::spawn).map_err(
        |source| {
            // Nobody can be in it yet, but a busybody who looks in must not keep it.
            let _ = rustix::mount::unmount(mountpoint, UnmountFlags::DETACH);
            MountError::Io { doing: "starting to serve the mount".into(), source }
        },
    )
}

/// Mounts as a user, by the set-user-id program fusermount3.
fn mount_by_fusermount(
    server: Server,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<BackgroundSession, MountError> {
    let mut config = config(options);
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("larder".into()),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
        if options.dev { MountOption::Dev } else { MountOption::NoDev },
        if options.suid { MountOption::Suid } else { MountOption::NoSuid },
        if options.exec { MountOption::Exec } else { MountOption::NoExec },
        if options.atime { MountOption::Atime } else { MountOption::NoAtime },
    ];
    let refused = |source: io::Error| match source.kind() {
        _ if source.to_string().contains("user_allow_other") => MountError::OthersNotAllowed,
        _ if !Path::new("/dev/fuse").exists() => MountError::NoFuse,
        // Also when there is no fusermount3: that we could mount by ourselves is ruled out.
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
            MountError::NotAllowed(mountpoint.to_owned())
        }
        _ => MountError::Io { doing: format!("mounting at {}", mountpoint.display()), source },
    };
    Session::new(server, mountpoint, &config).and_then(Session::spawn).map_err(refused)
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
        self.0.inval_entry(INodeNo(parent.raw()), OsStr::from_bytes(name))
    }

    /// Attributes and content of `node` are others now.
    pub fn node(&self, node: NodeId) -> io::Result<()> {
        self.0.inval_inode(INodeNo(node.raw()), 0, 0)
    }

    /// Attributes of `node` are others now; its content is not.
    pub fn attributes(&self, node: NodeId) -> io::Result<()> {
        self.0.inval_inode(INodeNo(node.raw()), -1, 0)
    }
}

/// A mount that is being served. Dropping it unmounts lazily: nobody finds it any more, who is in it stays
/// served until he leaves.
pub struct MountHandle {
    /// None once it is unmounted.
    session: Option<BackgroundSession>,
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

    /// Whether requests are still served; false after somebody has unmounted it from outside.
    pub fn is_alive(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.guard.is_finished())
    }

    /// Whether a request has panicked; everything answers EIO since.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// What tells the kernel about changes from below.
    pub fn invalidator(&self) -> Invalidator {
        self.invalidator.clone()
    }

    /// Returns when the mount is gone, by whomever, and no request is under way.
    pub fn wait(mut self) -> io::Result<()> {
        self.session.take().expect("a handle has its session").join()
    }

    /// Unmounts; returns when no request is under way. A mount in use stays and comes back in the error.
    pub fn unmount(mut self) -> Result<(), NotUnmounted> {
        if let Err(error) = self.take_away(false) {
            return Err(NotUnmounted { handle: Box::new(self), error });
        }
        // What the threads say at their end no longer matters.
        let _ = self.session.take().expect("a handle has its session").join();
        Ok(())
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
            Some(_) if self.direct => {
                let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
                Ok(rustix::mount::unmount(&self.mountpoint, flags)?)
            }
            Some(_) => {
                let mut command = Command::new("fusermount3");
                command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(&self.mountpoint);
                let output = command.output()?;
                if output.status.success() {
                    return Ok(());
                }
                Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
            }
        }
    }
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
    /// What was in the way.
    pub error: io::Error,
}
