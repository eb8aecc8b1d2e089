//! Making a mount: by mount(2), or by the set-user-id program fusermount3.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketFlags, SocketType,
};
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

/// A mount to be made. The kernel always checks permissions (`default_permissions`).
#[derive(Debug, Clone, Copy)]
pub struct Mount<'a> {
    /// Where.
    pub mountpoint: &'a Path,
    /// Source column of the mount table.
    pub source: &'a str,
    /// The type is `fuse.` and this.
    pub subtype: &'a str,
    /// Let nothing be changed.
    pub read_only: bool,
    /// Let users other than the one that mounts in.
    pub allow_other: bool,
    /// Let device nodes work.
    pub dev: bool,
    /// Honour set-user-id and set-group-id bits.
    pub suid: bool,
    /// Let programs be run.
    pub exec: bool,
    /// Access times in the mount table; without it, `noatime`.
    pub atime: bool,
}

/// Opens `/dev/fuse`.
///
/// # Errors
/// As open(2): ENOENT, ENODEV or ENXIO where there is no FUSE.
pub fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

impl Mount<'_> {
    /// Mounts by mount(2), with `device` freshly opened.
    ///
    /// # Errors
    /// As mount(2).
    pub fn directly(&self, device: &OwnedFd) -> Result<(), Errno> {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NODEV, !self.dev);
        flags.set(MountFlags::NOSUID, !self.suid);
        flags.set(MountFlags::NOEXEC, !self.exec);
        flags.set(MountFlags::NOATIME, !self.atime);
        let mut data = format!(
            "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
            device.as_raw_fd(),
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        if self.allow_other {
            data.push_str(",allow_other");
        }
        let data = CString::new(data).expect("numbers and words");
        let fs_type = format!("fuse.{}", self.subtype);
        rustix::mount::mount(self.source, self.mountpoint, fs_type.as_str(), flags, data.as_c_str())
    }

    /// Lets fusermount3 mount, which sends the device back.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] without the program; its own words when it refuses.
    pub fn by_fusermount(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // As standard input it is handed over to this one child, whoever else starts programs meanwhile.
        let child = Command::new("fusermount3")
            .env("_FUSE_COMMFD", "0")
            .args(["-o", &self.words(), "--"])
            .arg(self.mountpoint)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let device = receive(&ours);
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let kind = match said.contains("ermission denied") || said.contains("not permitted") {
                true => io::ErrorKind::PermissionDenied,
                false => io::ErrorKind::Other,
            };
            return Err(io::Error::new(kind, said));
        }
        device?.ok_or_else(|| io::Error::other("fusermount3 has sent no device"))
    }

    fn words(&self) -> String {
        let word = |on, yes, no| if on { yes } else { no };
        // fusermount3 splits at commas.
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        let mut words = vec![
            format!("fsname={source}"),
            format!("subtype={}", self.subtype),
            "default_permissions".to_owned(),
            word(self.read_only, "ro", "rw").to_owned(),
            word(self.dev, "dev", "nodev").to_owned(),
            word(self.suid, "suid", "nosuid").to_owned(),
            word(self.exec, "exec", "noexec").to_owned(),
            word(self.atime, "atime", "noatime").to_owned(),
        ];
        if self.allow_other {
            words.push("allow_other".to_owned());
        }
        words.join(",")
    }
}

/// A descriptor that is sent over a socket; None when the other end is closed.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = loop {
        let mut data = [io::IoSliceMut::new(&mut byte)];
        match rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("fusermount3 has sent more than a device"));
    }
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}
