//! Facts about disks of this machine, for plans: what the kernel says in sysfs, what smartctl says where it is
//! installed, and what is on them. Nothing is written.

mod measure;
mod smart;

pub use measure::{in_turn, measure};

use crate::api::{ApiError, ErrorKind, Result};
use crate::host::{by_id, free_device};
use larder_device::OpenMode;
use larder_plan::{Disk, Kind, known_shingled};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Kinds of block devices that are no disks, by the start of their names.
const NO_DISKS: [&str; 9] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "mtdblock"];
/// Bytes of a sector in sysfs, whatever those of the disk are.
const SECTOR: u64 = 512;

/// Paths of all disks of the machine, without those that can be pulled out while they turn.
pub fn all() -> Vec<String> {
    all_in(Path::new("/sys/block"))
}

fn all_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| number(&entry.path().join("size")).is_some_and(|size| size > 0))
        .filter(|entry| number(&entry.path().join("removable")) != Some(1))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !NO_DISKS.iter().any(|kind| name.starts_with(kind)))
        .collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    names.iter().map(|name| format!("/dev/{name}")).collect()
}

/// Facts about the disk, partition or file at an absolute path.
///
/// # Errors
/// When it is not there, or is neither.
pub fn look(path: &str) -> Result<Disk> {
    let meta = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            ApiError::new(ErrorKind::NotFound, format!("there is no device '{path}'"))
                .hint("name a device, or sizes as in: larder plan 6x16T")
        }
        _ => ApiError::new(ErrorKind::Denied, format!("cannot look at '{path}': {error}")),
    })?;
    let mut disk = Disk::of_size(path, meta.len());
    disk.short = path.strip_prefix("/dev/").unwrap_or(path).to_owned();
    if meta.file_type().is_block_device() {
        let place = place_of(meta.rdev()).map_err(|error| {
            ApiError::new(ErrorKind::Denied, format!("the kernel does not tell of '{path}' in /sys: {error}"))
        })?;
        kernel(&mut disk, &place);
        if let Some(name) = by_id(Path::new(path)) {
            disk.name = format!("/dev/disk/by-id/{name}");
        }
        if let Some(report) = smart::ask(path) {
            smart::add(&mut disk, &report);
        }
        disk.taken = in_use(&place);
    } else if !meta.is_file() {
        return Err(ApiError::usage(format!("'{path}' is neither a device nor a file")));
    }
    if disk.size < larder_format::label::MIN_DEVICE {
        return Err(ApiError::usage(format!("'{path}' is too small: a device has 64M or more")));
    }
    if disk.shingled.is_none() {
        disk.shingled = disk.model.as_deref().and_then(known_shingled).map(str::to_owned);
    }
    if disk.taken.is_none()
        && let Err(error) = free_device(path, OpenMode::Probe)
    {
        let said = error.message.strip_prefix(path).unwrap_or(&error.message).trim_start_matches([':', ' ']);
        match error.kind {
            ErrorKind::Denied => disk.hidden = true,
            _ => disk.taken = Some(said.to_owned()),
        }
    }
    Ok(disk)
}

fn place_of(device: u64) -> std::io::Result<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))
}

fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn number(path: &Path) -> Option<u64> {
    word(path)?.parse().ok()
}

/// Adds what the kernel says of the device whose folder in sysfs this is.
fn kernel(disk: &mut Disk, place: &Path) {
    if let Some(sectors) = number(&place.join("size")) {
        disk.size = sectors * SECTOR;
    }
    // The disk that a partition is on.
    let whole = if place.join("partition").exists() { place.parent().unwrap_or(place) } else { place };
    let queue = |name: &str| whole.join("queue").join(name);
    let name = whole.file_name().unwrap_or_default().to_string_lossy();
    disk.kind = if number(&queue("rotational")) == Some(0) { Kind::Ssd } else { Kind::Hdd };
    disk.nvme = name.starts_with("nvme");
    let sector = |name: &str| number(&queue(name)).and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
    disk.sectors = (sector("logical_block_size"), sector("physical_block_size"));
    disk.usb = whole.components().any(|part| part.as_os_str().to_string_lossy().starts_with("usb"));
    if let Some(zoned) = word(&queue("zoned")).filter(|zoned| zoned != "none") {
        disk.shingled = Some(format!("the kernel says {zoned}"));
    }
    disk.model = word(&whole.join("device/model")).or_else(|| word(&whole.join("device/name")));
    disk.serial = word(&whole.join("device/serial")).or_else(|| word(&whole.join("serial")));
}

/// The user of the device of this folder, or of a part of it.
fn in_use(place: &Path) -> Option<String> {
    let parts = || {
        let inner = fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
        std::iter::once(place.to_owned()).chain(inner.filter(|inner| inner.join("partition").exists()))
    };
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else {
        return Some("may be mounted, which /proc does not tell".to_owned());
    };
    // A kernel without swap has no such file.
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for part in parts() {
        if let Some(at) = word(&part.join("dev")).and_then(|number| mounted(&mounts, &number)) {
            return Some(format!("is mounted at {at}"));
        }
        let path = format!("/dev/{}", part.file_name().unwrap_or_default().to_string_lossy());
        if swaps.lines().any(|line| line.split_whitespace().next() == Some(&path)) {
            return Some("is swap".to_owned());
        }
        let holders = fs::read_dir(part.join("holders")).into_iter().flatten().flatten().next();
        if let Some(holder) = holders {
            return Some(format!("is part of {}", holder.file_name().to_string_lossy()));
        }
    }
    None
}

/// Where the device of this number is mounted, by the lines of mountinfo.
fn mounted(mounts: &str, number: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        (words.next() == Some(number)).then(|| words.nth(1).unwrap_or_default().to_owned())
    })
}

/// Bytes of memory of this machine; 0 where it is not known.
pub fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plant(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    /// As Linux 6 shows a disk behind a USB bridge, with a partition, and one that is zoned.
    #[test]
    fn what_the_kernel_says_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let usb =
            dir.path().join("pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdb");
        plant(
            &usb,
            &[
                ("size", "7814037168\n"),
                ("queue/rotational", "1\n"),
                ("queue/zoned", "none\n"),
                ("queue/logical_block_size", "512\n"),
                ("queue/physical_block_size", "4096\n"),
                ("device/model", "Elements 25A3    \n"),
                ("sdb1/partition", "1\n"),
                ("sdb1/size", "2097152\n"),
            ],
        );
        let mut disk = Disk::of_size("/dev/sdb", 0);
        kernel(&mut disk, &usb);
        assert_eq!((disk.size, disk.kind, disk.usb), (4_000_787_030_016, Kind::Hdd, true));
        assert_eq!((disk.sectors, disk.model.as_deref()), ((512, 4096), Some("Elements 25A3")));
        assert_eq!((disk.shingled, disk.serial), (None, None));
        let mut part = Disk::of_size("/dev/sdb1", 0);
        kernel(&mut part, &usb.join("sdb1"));
        assert_eq!((part.size, part.usb, part.sectors), (1 << 30, true, (512, 4096)));
        let zoned = dir.path().join("pci0000:00/ata1/block/sdc");
        plant(&zoned, &[("size", "100"), ("queue/zoned", "host-managed"), ("queue/rotational", "0")]);
        let mut disk = Disk::of_size("/dev/sdc", 0);
        kernel(&mut disk, &zoned);
        assert_eq!((disk.usb, disk.kind), (false, Kind::Ssd));
        assert!(disk.shingled.unwrap().contains("host-managed"));
    }

    #[test]
    fn disks_are_listed_without_what_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, size: &str, removable: &str| {
            plant(&dir.path().join(name), &[("size", size), ("removable", removable)]);
        };
        of("sdb", "100", "0");
        of("sda", "100", "0");
        of("sdaa", "100", "0");
        of("nvme0n1", "100", "0");
        of("sdc", "0", "0");
        of("sdd", "100", "1");
        for name in ["loop0", "zram0", "dm-0", "md127", "sr0"] {
            of(name, "100", "0");
        }
        assert_eq!(all_in(dir.path()), ["/dev/sda", "/dev/sdb", "/dev/sdaa", "/dev/nvme0n1"]);
        assert_eq!(all_in(&dir.path().join("nothing")), [""; 0]);
    }

    #[test]
    fn mounts_are_found_by_number() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      40 22 8:17 /sub /srv/my\\040disk rw - ext4 /dev/sdb1 rw\n";
        assert_eq!(mounted(mounts, "254:0").as_deref(), Some("/"));
        assert_eq!(mounted(mounts, "8:17").as_deref(), Some("/srv/my\\040disk"));
        assert_eq!(mounted(mounts, "8:1"), None);
    }
}
