//! Where devices are: which are looked at, what they turned out to be, where they were last seen.
//!
//! A device is known by its GUID, never by its path. Paths are kept ([`super::remembered`]) for two purposes only: to
//! look first where pools have been before, and to tell people which disk a missing GUID was.
//!
//! A path with `fault:` before it is the device behind it, opened so that it fails to order ([`FaultDevice`]).
//! The prefix is part of the path wherever that is kept.

use super::remembered::Remembered;
use crate::api::name::printable;
use crate::api::{ApiError, ErrorKind, Result};
use larder_app::fuse;
use larder_device::{Device, FaultDevice, FileDevice, OpenError, OpenMode};
use larder_format::label::MIN_DEVICE;
use larder_pool::foreign;
use larder_pool::open::{Found, Scan, Unsupported, scan};
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// Names of disks that do not change, with model and serial number.
const BY_ID: &str = "/dev/disk/by-id";

/// Loop devices over loop devices that are looked through.
const LOOPS: usize = 8;

/// Result of looking at some devices.
#[derive(Default)]
pub struct Search {
    /// Devices of pools.
    pub found: Vec<Found>,
    /// Devices of pools that a newer build wrote.
    pub unsupported: Vec<Unsupported>,
    /// Problems of others, a sentence each: damaged labels, read errors. Devices named one by one all get one; in
    /// folders, only those that seem to be ours.
    pub remarks: Vec<String>,
}

/// Identity of a device, whatever its path: the number of a block device, else file system and inode.
pub fn identity(meta: &Metadata) -> (bool, u64, u64) {
    if meta.file_type().is_block_device() { (true, meta.rdev(), 0) } else { (false, meta.dev(), meta.ino()) }
}

/// The [`identity`] of the device itself or, for a loop device or a part of one, of the file behind it.
pub fn beneath(meta: &Metadata) -> (bool, u64, u64) {
    beneath_in(Path::new("/sys"), identity(meta))
}

fn beneath_in(sys: &Path, mut device: (bool, u64, u64)) -> (bool, u64, u64) {
    // A loop over a loop over …: each is one step.
    for _ in 0..LOOPS {
        let (true, number, _) = device else { break };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device_dir = sys.join(format!("dev/block/{major}:{minor}"));
        let file = ["loop/backing_file", "../loop/backing_file"]
            .iter()
            .find_map(|name| fs::read_to_string(device_dir.join(name)).ok());
        let Some(meta) = file.and_then(|file| fs::metadata(file.trim_end_matches('\n')).ok()) else { break };
        device = identity(&meta);
    }
    device
}

/// The file or block device that a path means, without what stands before it.
pub fn file_of(path: &str) -> &Path {
    Path::new(path.strip_prefix(FaultDevice::PREFIX).unwrap_or(path))
}

/// Opens what a path means, as it says.
fn open_as_told(
    path: &str,
    mode: OpenMode,
    threads: usize,
) -> std::result::Result<Arc<dyn Device>, OpenError> {
    let file = file_of(path);
    if file == Path::new(path) {
        return Ok(Arc::new(FileDevice::open_with_threads(file, mode, threads)?));
    }
    Ok(Arc::new(FaultDevice::open(file, mode, |complaint| warn!("{complaint}"))?))
}

/// Looks for pools' devices at `given` folders and devices; with none given, where pools were last
/// seen and at all block devices.
///
/// # Errors
/// When one of those given does not exist.
pub fn search(given: &[String], remembered: &Remembered) -> Result<Search> {
    let mut result = Search::default();
    let mut seen = HashSet::new();
    let mut look = |prefix: &str, path: &Path, named: bool| {
        let Ok(meta) = fs::metadata(path) else { return };
        if seen.insert(identity(&meta)) {
            result.look_at(&format!("{prefix}{}", path.display()), named);
        }
    };
    let list_files = |folder: &Path| list(folder, Take::FilesToo);
    if given.is_empty() {
        for path in remembered.paths().filter(|path| path.starts_with(FaultDevice::PREFIX)) {
            look(FaultDevice::PREFIX, file_of(path), false);
        }
        for folder in folders(remembered) {
            list_files(&folder).iter().for_each(|path| look("", path, false));
        }
        for folder in [BY_ID, "/dev"] {
            list(Path::new(folder), Take::BlockDevices).iter().for_each(|path| look("", path, false));
        }
        return Ok(result);
    }
    for text in given {
        let path = file_of(text);
        let prefix = if path == Path::new(text) { "" } else { FaultDevice::PREFIX };
        let meta = fs::metadata(path).map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                return ApiError::new(ErrorKind::NotFound, format!("there is no folder or device '{text}'"));
            }
            ApiError::new(ErrorKind::Denied, format!("cannot look at '{text}': {error}"))
        })?;
        if meta.is_dir() {
            list_files(path).iter().for_each(|path| look(prefix, path, false));
        } else {
            look(prefix, path, true);
        }
    }
    Ok(result)
}

/// Where [`search`] looks, in words.
pub fn looked(given: &[String], remembered: &Remembered) -> String {
    if !given.is_empty() {
        return given.join(", ");
    }
    let disks = list(Path::new("/dev"), Take::BlockDevices).len();
    let folders: Vec<_> = folders(remembered).iter().map(|folder| folder.display().to_string()).collect();
    match folders.as_slice() {
        [] => format!("{disks} block devices in /dev, and no folder, for no pool was seen in one"),
        _ => format!("{disks} block devices in /dev, and {}, where pools were last seen", folders.join(", ")),
    }
}

/// Where an import looked for devices. One that it did not find is taken back only if it turns up there: at another
/// place where the pool once was lies what somebody left out on purpose, as the originals do of whoever works on
/// copies.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Folders, and devices that were named one by one.
    places: Vec<PathBuf>,
    /// Every block device.
    disks: bool,
}

impl Scope {
    /// Of a search for what was `given`; see [`search`].
    pub fn of(given: &[String], remembered: &Remembered) -> Self {
        let mut places: Vec<PathBuf> = given.iter().map(|text| file_of(text).to_owned()).collect();
        if given.is_empty() {
            places.extend(folders(remembered));
        }
        let real =
            |place: PathBuf| if place.is_dir() { place.canonicalize().ok() } else { real_place(&place) };
        Self { places: places.into_iter().filter_map(real).collect(), disks: given.is_empty() }
    }

    /// The places, where it looked at nothing else.
    pub fn only(&self) -> Vec<PathBuf> {
        if self.disks { Vec::new() } else { self.places.clone() }
    }

    /// Whether it looked at this path, or would have if something had been there.
    pub fn holds(&self, path: &str) -> bool {
        let path = file_of(path);
        let is_disk = || fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
        let is_place = |real: PathBuf| {
            self.places.iter().any(|place| *place == real || Some(place.as_path()) == real.parent())
        };
        real_place(path).is_some_and(is_place) || self.disks && is_disk()
    }
}

/// A path by the real name of its folder: the last part may be a link, whose end changes when a disk comes back.
fn real_place(path: &Path) -> Option<PathBuf> {
    Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
}

/// Folders that devices were last seen in.
fn folders(remembered: &Remembered) -> BTreeSet<PathBuf> {
    remembered.paths().filter_map(|path| file_of(path).parent().map(Path::to_owned)).collect()
}

/// Entries of a folder to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Take {
    BlockDevices,
    FilesToo,
}

/// Possible devices in a folder, in the order of names: block devices, files that are large enough.
fn list(folder: &Path, take: Take) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            fs::metadata(path).is_ok_and(|meta| {
                let file = meta.is_file() && meta.len() >= MIN_DEVICE;
                meta.file_type().is_block_device() || (file && take == Take::FilesToo)
            })
        })
        .collect();
    paths.sort();
    paths
}

impl Search {
    fn look_at(&mut self, path: &str, named: bool) {
        if let Err(error) = check_path(path) {
            self.remarks.push(error.message);
            return;
        }
        let device = match open_as_told(path, OpenMode::Probe, 1) {
            Ok(device) => device,
            Err(error) => {
                if named {
                    self.remarks.push(error.to_string());
                }
                return;
            }
        };
        match scan(&device) {
            Scan::Member(found) => self.found.push(*found),
            Scan::Damaged(corrupt) => self.remarks.push(format!("{path} has a damaged label ({corrupt})")),
            Scan::Unsupported(other) => {
                self.remarks.push(format!("{path} is left alone: {}", other.why));
                self.unsupported.push(other);
            }
            Scan::Failed(error) if named => self.remarks.push(format!("{path} cannot be read: {error}")),
            Scan::NotOurs if named => self.remarks.push(match foreign::identify(&*device) {
                Ok(Some(foreign)) => format!("{path} is not a pool's: it holds {}", foreign.what),
                _ => format!("{path} is not a pool's: it has no label"),
            }),
            Scan::Failed(_) | Scan::NotOurs => {}
        }
    }
}

/// A device's path stands in logs, events and what people are told, a line each.
fn check_path(path: &str) -> Result<()> {
    if path.chars().any(char::is_control) {
        return Err(ApiError::usage(format!(
            "'{}' is left alone: its path has control characters",
            printable(path)
        )));
    }
    Ok(())
}

/// Opens a device to use it.
///
/// # Errors
/// Those of [`OpenError`]; also when the device is a file on one of our own mounts, whose writes would wait for
/// themselves.
pub fn open(path: &str, mode: OpenMode) -> Result<Arc<dyn Device>> {
    check_path(path)?;
    let at = file_of(path);
    if at.is_file() && fuse::is_ours(at).unwrap_or(false) {
        return Err(ApiError::new(
            ErrorKind::Unsupported,
            format!("{path} lies on a Larder pool itself: a pool on a pool would wait for itself"),
        )
        .hint("use a file on another file system, or a disk"));
    }
    open_as_told(path, mode, FileDevice::THREADS).map_err(ApiError::from)
}

/// As [`open`]; a device that somebody else has in use is waited for a little, since one that just left a pool may
/// still have a request under way.
///
/// # Errors
/// As [`open`].
pub fn open_when_free(path: &str, mode: OpenMode) -> Result<Arc<dyn Device>> {
    for _ in 0..20 {
        match open(path, mode) {
            Err(error) if error.kind == ErrorKind::Busy => super::pause(Duration::from_millis(50)),
            opened => return opened,
        }
    }
    open(path, mode)
}

/// Opens a device for reading only: locked where that is allowed, so that nobody writes it meanwhile.
///
/// # Errors
/// As [`open`].
pub fn open_to_read(path: &str) -> Result<Arc<dyn Device>> {
    match open(path, OpenMode::Exclusive) {
        Err(error) if error.kind == ErrorKind::Denied => open(path, OpenMode::Probe),
        opened => opened,
    }
}

/// The stable name of a block device: model and serial number.
pub fn by_id(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok().filter(|meta| meta.file_type().is_block_device())?;
    let mut names: Vec<String> = fs::read_dir(BY_ID)
        .ok()?
        .flatten()
        .filter(|entry| fs::metadata(entry.path()).is_ok_and(|other| other.rdev() == meta.rdev()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    // Names by world-wide number say nothing to people.
    names.sort_by_key(|name| (name.starts_with("wwn-") || name.starts_with("nvme-eui"), name.len()));
    names.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::{DeviceGuid, PoolGuid};

    #[test]
    fn a_loop_device_and_a_part_of_it_are_the_file_behind_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk.img");
        fs::write(&file, "").unwrap();
        let its = identity(&fs::metadata(&file).unwrap());
        // As /sys has it: a device's folder, the parts of it inside, and links by number.
        let sys = dir.path().join("sys");
        let disk = sys.join("devices/virtual/block/loop0");
        fs::create_dir_all(disk.join("loop")).unwrap();
        fs::create_dir_all(disk.join("loop0p1")).unwrap();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        fs::write(disk.join("loop/backing_file"), format!("{}\n", file.display())).unwrap();
        for (number, of) in [("7:0", disk.clone()), ("259:3", disk.join("loop0p1"))] {
            std::os::unix::fs::symlink(of, sys.join("dev/block").join(number)).unwrap();
        }
        let device = |major, minor| (true, rustix::fs::makedev(major, minor), 0);
        assert_eq!(beneath_in(&sys, device(7, 0)), its);
        assert_eq!(beneath_in(&sys, device(259, 3)), its);
        assert_eq!(beneath_in(&sys, its), its);
        let disk = device(8, 0);
        assert_eq!(beneath_in(&sys, disk), disk, "what is no loop device is itself");
    }

    #[test]
    fn only_where_an_import_looked_a_device_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        fs::create_dir(path("copies")).unwrap();
        fs::create_dir(path("originals")).unwrap();
        std::os::unix::fs::symlink(path("copies"), path("link")).unwrap();
        let mut remembered = Remembered::default();
        let here = [(DeviceGuid::new(9), path("originals/a"))];
        remembered.note(PoolGuid::new(7), here);
        let holds = |given: &[String]| {
            let scope = Scope::of(given, &remembered);
            ["copies/a", "link/a", "copies/b", "originals/a", "absent/a"].map(|name| scope.holds(&path(name)))
        };
        assert_eq!(holds(&[path("copies")]), [true, true, true, false, false]);
        assert_eq!(holds(&[path("link")]), [true, true, true, false, false]);
        assert_eq!(holds(&[format!("fault:{}", path("copies/a"))]), [true, true, false, false, false]);
        assert_eq!(holds(&[]), [false, false, false, true, false]);
    }

    #[test]
    fn devices_that_were_named_are_all_told_about() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::File::create(&path).unwrap().set_len(MIN_DEVICE).unwrap();
        fs::write(dir.path().join("small"), "x").unwrap();
        let look = |path: &Path| search(&[path.to_string_lossy().into_owned()], &Remembered::default());
        let named = look(&path).unwrap();
        assert_eq!(named.remarks, [format!("{} is not a pool's: it has no label", path.display())]);
        assert!(look(dir.path()).unwrap().remarks.is_empty());
        assert!(look(&dir.path().join("absent")).is_err());
    }

    #[test]
    fn paths_that_would_make_two_lines_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk\nlarder: all is well");
        fs::File::create(&path).unwrap().set_len(MIN_DEVICE).unwrap();
        let text = path.to_str().unwrap();
        let error = open(text, OpenMode::Probe).err().unwrap();
        assert!(error.message.contains("disk\\nlarder: all is well' is left alone"), "{error}");
        let remarks =
            search(&[dir.path().to_str().unwrap().to_owned()], &Remembered::default()).unwrap().remarks;
        assert!(remarks.len() == 1 && !remarks[0].contains('\n'), "{remarks:?}");
    }

    #[test]
    fn a_device_that_is_to_fail_is_found_with_its_prefix_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::File::create(&path).unwrap().set_len(MIN_DEVICE).unwrap();
        let with_faults = format!("fault:{}", path.display());
        let search = |text: String| search(&[text], &Remembered::default()).unwrap().remarks;
        assert_eq!(search(with_faults.clone()), [format!("{with_faults} is not a pool's: it has no label")]);
        fs::write(dir.path().join("disk.faults"), "error read\n").unwrap();
        assert_eq!(search(with_faults.clone()), [format!("{with_faults} cannot be read: I/O error 5")]);
        assert_eq!(search(path.display().to_string()).len(), 1, "the device itself is well");
        let mut remembered = Remembered::default();
        remembered.note(PoolGuid::new(1), [(DeviceGuid::new(2), with_faults)]);
        assert_eq!(folders(&remembered).into_iter().collect::<Vec<_>>(), [dir.path()]);
    }
}
