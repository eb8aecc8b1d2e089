//! What is mounted where: `/proc/self/mountinfo`, and what a dead daemon leaves.

use super::{FS_TYPE, MountError};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One line of mountinfo.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    /// `major:minor` of the mounted filesystem; unique while it lives.
    pub(super) device: String,
    /// Where.
    pub(super) path: PathBuf,
    /// Filesystem type, with its subtype.
    pub(super) fs_type: String,
}

/// What is mounted at `path` (absolute, without links); the topmost when several are.
pub(super) fn mounted_at(path: &Path) -> io::Result<Option<Mounted>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(parse(&table).filter(|mount| mount.path == path).last())
}

/// Reads mountinfo (proc_pid_mountinfo(5)): `id parent dev root mountpoint options tags... - type source ...`
fn parse(table: &[u8]) -> impl Iterator<Item = Mounted> + '_ {
    table.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let device = fields.nth(2)?;
        let path = fields.nth(1)?;
        let fs_type = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(Mounted {
            device: String::from_utf8_lossy(device).into_owned(),
            path: PathBuf::from(OsString::from_vec(unescape(path))),
            fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        })
    })
}

/// Blank, tab, newline and backslash come as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) => {
                out.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                rest = tail;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// The mountpoint without links, once it is known that something can be mounted there.
pub(super) fn check(path: &Path) -> Result<PathBuf, MountError> {
    let named = || path.to_owned();
    let real = fs::canonicalize(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => MountError::NoMountpoint(named()),
        Some(Errno::NOTDIR) => MountError::NotDirectory(named()),
        Some(Errno::ACCESS) => MountError::NotAllowed(named()),
        Some(Errno::NOTCONN | Errno::CONNABORTED) => MountError::Dead(named()),
        _ => MountError::Io { doing: format!("looking at {}", path.display()), source: error },
    })?;
    let inspecting = |error| MountError::Io { doing: "reading the table of mounts".into(), source: error };
    if let Some(mount) = mounted_at(&real).map_err(inspecting)? {
        let dead = mount.fs_type.starts_with("fuse") && is_dead(&real);
        return Err(if dead { MountError::Dead(real) } else { MountError::AlreadyMounted(real) });
    }
    if !fs::metadata(&real).is_ok_and(|meta| meta.is_dir()) {
        return Err(MountError::NotDirectory(real));
    }
    Ok(real)
}

/// Whether the process that served the mount at `path` is gone. Asks for space, which the kernel does
/// not answer from a cache, as it may do with attributes. ECONNABORTED is what it says when the mount dies while we
/// ask: over io_uring, the kernel lets go of it only some time after the process has gone.
fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Takes away the mount that a daemon of ours left at `mountpoint` when it died: everything in it
/// answers ENOTCONN, and nothing can be mounted there. Mounts that are alive or not ours stay. Gives
/// whether one was taken away.
///
/// It goes lazily: who still holds files or a working directory in it keeps the errors.
pub fn clear_stale(mountpoint: &Path) -> io::Result<bool> {
    // The mountpoint itself cannot be resolved when it is dead; its parent can.
    let real = match (mountpoint.parent(), mountpoint.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            fs::canonicalize(parent)?.join(name)
        }
        _ => mountpoint.to_owned(),
    };
    match mounted_at(&real)? {
        Some(mount) if mount.fs_type == FS_TYPE && is_dead(&real) => {
            unmount(&real, UnmountFlags::DETACH)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Whether `path` lies on a mount of ours, whichever process serves it.
pub fn is_ours(path: &Path) -> io::Result<bool> {
    let device = fs::metadata(path)?.dev();
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(parse(&table).any(|mount| mount.device == device && mount.fs_type == FS_TYPE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read_with_its_escapes_and_optional_fields() {
        let table = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
            41 36 0:52 / /mnt/a\\040b\\134 rw - fuse.larder tank/home rw\n\nbroken line\n";
        let mounts: Vec<_> = parse(table).collect();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].fs_type, "ext3");
        assert_eq!(mounts[1].device, "0:52");
        assert_eq!(mounts[1].path, Path::new("/mnt/a b\\"));
        assert_eq!(mounts[1].fs_type, FS_TYPE);
    }
}
