//! The mount table, `/proc/self/mountinfo`, and mounts left by a dead daemon.

use super::{FS_TYPE, MountError, MountOptions};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstatfs, mkdirat, open, openat, readlinkat, statat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// `f_type` of a FUSE mount in statfs(2).
const FUSE_SUPER_MAGIC: rustix::fs::FsWord = 0x6573_5546;

/// One line of mountinfo.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    id: u64,
    /// Root of the mount within its filesystem.
    root: PathBuf,
    /// Id of the mount that it is mounted on.
    parent: u64,
    /// The peers to which what is mounted below it propagates, and those from which it comes.
    shared: Option<u64>,
    master: Option<u64>,
    /// `major:minor` of the mounted filesystem; unique while it lives.
    pub(super) device: String,
    /// Where.
    pub(super) path: PathBuf,
    /// Filesystem type, with its subtype.
    pub(super) fs_type: String,
}

/// The mount at `path` (absolute, without links); the topmost of several.
pub(super) fn mounted_at(path: &Path) -> io::Result<Option<Mounted>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(parse(&table).filter(|mount| mount.path == path).last())
}

/// Where else the filesystem of `here` is mounted and stays when that is taken away: in this process' tree and in those
/// of others, as people read it. What came by propagation goes by it.
pub(super) fn copies_that_stay(here: &Mounted) -> io::Result<Vec<String>> {
    let own = fs::read("/proc/self/mountinfo")?;
    let mut stay = staying(&own, &own, here);
    let tree = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen = vec![tree(Path::new("/proc/self"))];
    for entry in fs::read_dir("/proc")?.flatten() {
        let process = entry.path();
        let is_process = entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        if !is_process || tree(&process).is_none() || seen.contains(&tree(&process)) {
            continue;
        }
        seen.push(tree(&process));
        let table = fs::read(process.join("mountinfo")).unwrap_or_default();
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let of = format!("{} ({})", name.trim(), entry.file_name().to_string_lossy());
        stay.extend(staying(&table, &own, here).into_iter().map(|path| format!("{path} as {of} sees it")));
    }
    Ok(stay)
}

/// Of a table of mounts, the copies of `here`, which is in the table `own`, that do not go with it.
fn staying(table: &[u8], own: &[u8], here: &Mounted) -> Vec<String> {
    // Unmounting reaches what is mounted at the same place of each peer and slave of what it is mounted on.
    let on = |table: &[u8], of: &Mounted| {
        let above = parse(table).find(|mount| mount.id == of.parent)?;
        let place = above.root.join(of.path.strip_prefix(&above.path).ok()?);
        Some((place, above.shared, above.master))
    };
    let origin = on(own, here).filter(|(_, shared, _)| shared.is_some());
    let goes = |copy: &Mounted| match (&origin, on(table, copy)) {
        (Some((place, group, _)), Some((other, shared, master))) => {
            *place == other && (shared == *group || master == *group)
        }
        _ => false,
    };
    parse(table)
        .filter(|copy| copy.device == here.device && copy.id != here.id && !goes(copy))
        .map(|copy| copy.path.display().to_string())
        .collect()
}

/// Reads mountinfo (proc_pid_mountinfo(5)): `id parent dev root mountpoint options tags... - type source ...`
fn parse(table: &[u8]) -> impl Iterator<Item = Mounted> + '_ {
    table.split(|&byte| byte == b'\n').filter_map(|line| {
        let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<u64>().ok();
        let mut fields = line.split(|&byte| byte == b' ');
        let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
        let device = fields.next()?;
        let [root, path] = [fields.next()?, fields.next()?].map(|field| OsString::from_vec(unescape(field)));
        let mut tags = fields.by_ref().skip(1).take_while(|field| *field != b"-");
        let (mut shared, mut master) = (None, None);
        for tag in &mut tags {
            shared = shared.or(tag.strip_prefix(b"shared:").and_then(number));
            master = master.or(tag.strip_prefix(b"master:").and_then(number));
        }
        drop(tags);
        let fs_type = fields.next()?;
        Some(Mounted {
            id,
            parent,
            shared,
            master,
            device: String::from_utf8_lossy(device).into_owned(),
            root: root.into(),
            path: path.into(),
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

/// A folder that something can be mounted on, held open: whoever renames parts of its path meanwhile moves the mount
/// along, and cannot lead it elsewhere.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folder: OwnedFd,
    /// Without links.
    pub(super) path: PathBuf,
}

impl Place {
    /// A path that the kernel follows to just this folder.
    pub(super) fn by_descriptor(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.folder.as_raw_fd()).into()
    }
}

/// More links than anybody means.
const MOST_LINKS: usize = 40;

/// Walks to the mountpoint, makes what is missing, and makes sure that something can be mounted there.
///
/// Links are followed where only root or we could have made them: on a FUSE mount, which may be of a pool
/// that came from elsewhere, anybody could. Below `options.root` there are none at all.
pub(super) fn find(options: &MountOptions) -> Result<Place, MountError> {
    let place = walk(&options.mountpoint, options.root.as_deref(), options.make)?;
    let inspecting = |error| MountError::Io { doing: "reading the table of mounts".into(), source: error };
    if let Some(mount) = mounted_at(&place.path).map_err(inspecting)? {
        let dead = mount.fs_type.starts_with("fuse") && is_dead(&place.path);
        return Err(match dead {
            true => MountError::Dead(place.path),
            false => MountError::AlreadyMounted(place.path),
        });
    }
    if !options.overlay && !is_empty(&place)? {
        return Err(MountError::NotEmpty(place.path));
    }
    Ok(place)
}

fn is_empty(place: &Place) -> Result<bool, MountError> {
    let listing = |errno| refused(&place.path, errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(&place.folder, ".", flags, Mode::empty()).map_err(listing)?;
    for entry in Dir::new(folder).map_err(listing)? {
        let entry = entry.map_err(listing)?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            return Ok(false);
        }
    }
    Ok(true)
}

fn refused(path: &Path, errno: Errno) -> MountError {
    match errno {
        Errno::NOENT => MountError::NoMountpoint(path.to_owned()),
        Errno::NOTDIR => MountError::NotDirectory(path.to_owned()),
        Errno::ACCESS | Errno::PERM => MountError::NotAllowed(path.to_owned()),
        Errno::NOTCONN | Errno::CONNABORTED => MountError::Dead(path.to_owned()),
        // Somebody put a link where a folder was a moment ago.
        Errno::LOOP => MountError::StrangeLink(path.to_owned()),
        errno => MountError::Io { doing: format!("looking at {}", path.display()), source: errno.into() },
    }
}

/// The parts of a path that are still to be walked, the next one last.
fn parts(path: &Path) -> Vec<OsString> {
    let walked = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    let mut parts: Vec<_> =
        path.components().filter(walked).map(|part| part.as_os_str().to_owned()).collect();
    parts.reverse();
    parts
}

fn walk(path: &Path, root: Option<&Path>, make: bool) -> Result<Place, MountError> {
    const FOLDER: OFlags =
        OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    let here = |folder: &OwnedFd| {
        std::fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd()))
            .map_err(|source| MountError::Io { doing: "looking at /proc/self/fd".into(), source })
    };
    let mut at = open("/", FOLDER, Mode::empty()).map_err(|errno| refused(path, errno))?;
    let below = root.and_then(|root| path.strip_prefix(root).ok());
    let mut left = parts(if below.is_some() { root.unwrap_or(path) } else { path });
    // The part of the path below the root, taken once the root is reached.
    let mut strict = below.map(parts);
    let (mut links, mut is_strict) = (0, false);
    loop {
        let Some(name) = left.pop() else {
            match strict.take() {
                Some(more) => (left, is_strict) = (more, true),
                None => return Ok(Place { path: here(&at)?, folder: at }),
            }
            continue;
        };
        let failed = |errno| refused(&here(&at).unwrap_or_default().join(&name), errno);
        if is_strict && name == ".." {
            return Err(MountError::StrangeLink(path.to_owned()));
        }
        let stat = match statat(&at, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) if make => {
                match mkdirat(&at, &name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(failed(errno)),
                }
                statat(&at, &name, AtFlags::SYMLINK_NOFOLLOW)
            }
            stat => stat,
        };
        let stat = stat.map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            at = openat(&at, &name, FOLDER, Mode::empty()).map_err(failed)?;
            continue;
        }
        let ours = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
        let on_fuse = fstatfs(&at).map_err(failed)?.f_type == FUSE_SUPER_MAGIC;
        links += 1;
        if is_strict || !ours || on_fuse || links > MOST_LINKS {
            return Err(MountError::StrangeLink(here(&at)?.join(&name)));
        }
        let end = readlinkat(&at, &name, Vec::new()).map_err(failed)?;
        let end = PathBuf::from(OsString::from_vec(end.into_bytes()));
        if end.is_absolute() {
            at = open("/", FOLDER, Mode::empty()).map_err(failed)?;
        }
        left.extend(parts(&end));
    }
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
    use std::os::unix::fs::{chown, lchown, symlink};

    fn found(path: &Path, root: Option<&Path>, change: impl FnOnce(&mut MountOptions)) -> String {
        let mut options = MountOptions { root: root.map(Path::to_owned), ..MountOptions::new(path, "tank") };
        change(&mut options);
        match find(&options) {
            Ok(place) => place.path.to_str().unwrap().to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_mountpoint_is_an_empty_folder_that_no_strange_link_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let path = |name: &str| dir.join(name);
        let text = |name: &str| path(name).to_str().unwrap().to_owned();
        fs::create_dir_all(path("etc/empty")).unwrap();
        fs::write(path("file"), "").unwrap();
        symlink("etc", path("link")).unwrap();
        symlink(path("link/empty/.."), path("absolute")).unwrap();
        symlink("circle", path("circle")).unwrap();
        let at = |name: &str| found(&path(name), None, |_| {});
        assert_eq!(at("etc/empty"), text("etc/empty"));
        assert_eq!(at("link/empty"), text("etc/empty"), "whoever runs the daemon may make links");
        assert_eq!(at("absolute/empty"), text("etc/empty"));
        assert!(at("etc").contains("is not empty"), "{}", at("etc"));
        assert_eq!(found(&path("etc"), None, |options| options.overlay = true), text("etc"));
        assert!(at("file").contains("is not a directory") && at("file/x").contains("is not a directory"));
        assert!(at("circle").contains("a symbolic link"), "{}", at("circle"));
        assert!(at("new/deep").contains("does not exist"));
        assert_eq!(found(&path("link/new/deep"), None, |options| options.make = true), text("etc/new/deep"));

        // Below another root there are no links at all, and nothing leads out of it.
        let below =
            |name: &str| found(&path("link").join(name), Some(&path("link")), |options| options.make = true);
        assert_eq!(below("srv/tank"), text("etc/srv/tank"));
        symlink("/", path("etc/out")).unwrap();
        assert!(below("out/tmp").contains("a symbolic link"), "{}", below("out/tmp"));
        assert!(below("srv/../../file").contains("a symbolic link"), "{}", below("srv/../../file"));
        assert!(!path("tmp").exists());

        if rustix::process::geteuid().is_root() {
            lchown(path("link"), Some(65534), None).unwrap();
            assert!(at("link/empty").contains("belongs to somebody else"), "{}", at("link/empty"));
            chown(path("etc"), Some(65534), None).unwrap();
            assert_eq!(at("etc/empty"), text("etc/empty"), "a folder of somebody else is where it is");
        }
    }

    #[test]
    fn mountinfo_is_read_with_its_escapes_and_optional_fields() {
        let table =
            b"36 35 98:0 /mnt1 /mnt2 rw,noatime shared:7 master:1 - ext3 /dev/root rw,errors=continue\n\
            41 36 0:52 / /mnt/a\\040b\\134 rw - fuse.larder tank/home rw\n\nbroken line\n";
        let mounts: Vec<_> = parse(table).collect();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].fs_type, "ext3");
        assert_eq!(mounts[1].device, "0:52");
        assert_eq!(mounts[1].path, Path::new("/mnt/a b\\"));
        assert_eq!(mounts[1].fs_type, FS_TYPE);
        assert_eq!((mounts[0].id, mounts[0].shared, mounts[0].master), (36, Some(7), Some(1)));
        assert_eq!((mounts[1].parent, mounts[1].shared, mounts[1].master), (36, None, None));
    }

    #[test]
    fn a_copy_that_does_not_go_by_propagation_is_in_the_way() {
        let own = b"1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n\
            2 1 0:52 / /tank rw shared:2 - fuse.larder tank rw\n\
            3 1 8:1 / /again rw shared:1 - ext4 /dev/sda rw\n\
            4 3 0:52 / /again/tank rw shared:2 - fuse.larder tank rw\n\
            5 1 0:52 / /bound rw - fuse.larder tank rw\n";
        let here = parse(own).find(|mount| mount.id == 2).unwrap();
        assert_eq!(staying(own, own, &here), ["/bound"]);
        let slave = b"21 0 8:1 / / rw master:1 - ext4 /dev/sda rw\n\
            22 21 0:52 / /tank rw master:2 - fuse.larder tank rw\n";
        assert!(staying(slave, own, &here).is_empty(), "a service with a tree of its own");
        let private = b"31 0 8:1 / / rw - ext4 /dev/sda rw\n\
            32 31 0:52 / /tank rw - fuse.larder tank rw\n";
        assert_eq!(staying(private, own, &here), ["/tank"]);
    }
}
