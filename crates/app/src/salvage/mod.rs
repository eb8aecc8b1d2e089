//! `larder repair`: what is left of a damaged pool, shown, and copied to a folder or sent to another pool. Only the
//! latter needs the daemon; nothing is written to the damaged pool's devices.

mod copy;
mod send;
mod target;

pub use copy::Copied;
pub use send::Sent;
pub use target::{Place, Target, check_folder, make_folder};

use crate::api::{ApiError, ErrorKind, Result};
use crate::host::{identity, system_world};
use copy::{Copy, open_folder};
use larder_device::{Device, FileDevice, OpenError, OpenMode};
use larder_files::{Mount, View};
use larder_format::{ByteLen, CommitId, DatasetId, InodeId};
use larder_pool::{Pool, PoolError};
use larder_repair::{Options, Progress, RepairError, Repaired, Report, repair};
use rustix::fs::Mode;
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Threads of a device.
const THREADS: usize = 2;

/// Request.
pub struct Wanted<'a> {
    /// Devices, and folders of such.
    pub devices: &'a [String],
    /// The pool's name or number, where there are several.
    pub pool: Option<&'a str>,
    /// The commit to go back to.
    pub commit: Option<u64>,
    /// Whether what the log holds is done again.
    pub log: bool,
    /// Whether lost records become holes, for the pool is to be sent.
    pub cut: bool,
    /// Where sparse files may be made.
    pub scratch: &'a Path,
    /// Is shown how far it is.
    pub shown: &'a (dyn Fn(Progress) + Sync),
}

/// A pool that was put together, to be read as long as this is there.
pub struct Salvaged {
    /// Findings.
    pub report: Report,
    pool: Arc<Pool>,
    mount: Arc<Mount>,
}

/// Puts together what is left of a pool.
///
/// # Errors
/// When devices cannot be opened, are in use, or have no pool.
pub fn salvage(wanted: &Wanted<'_>) -> Result<Salvaged> {
    let (devices, twice) = open_all(wanted.devices)?;
    let internal =
        |error: std::io::Error| ApiError::new(ErrorKind::Internal, format!("cannot start: {error}"));
    let world = system_world().map_err(internal)?;
    let make = |size: ByteLen| {
        let made = sparse(wanted.scratch, size);
        made.map_err(|error| {
            let place = wanted.scratch.display();
            PoolError::Invalid(format!(
                "cannot make files in '{place}' ({error}): --scratch DIR names another folder"
            ))
        })
    };
    let options = Options {
        pool: wanted.pool,
        commit: wanted.commit.map(CommitId::new),
        log: wanted.log,
        cut: wanted.cut,
        scratch: &make,
        shown: wanted.shown,
    };
    let Repaired { pool, report } = repair(world, &devices, &options).map_err(told)?;
    let mount = Mount::new(Arc::clone(&pool), (0, 0));
    let mount = mount.map_err(|error| {
        ApiError::from(error).within("the intent log cannot be done again").hint("--no-log leaves it out")
    })?;
    let mut report = report;
    report.remarks.extend(twice.into_iter().map(|name| format!("{name}: named twice, and one device")));
    for dataset in pool.datasets() {
        // Each by itself: a parent may be as damaged as a child.
        let name = pool.full_name(dataset.id());
        if let Err(error) = mount.attach(dataset, None) {
            report.remarks.push(format!("{name} cannot be read: {error}"));
        }
    }
    Ok(Salvaged { report, pool, mount })
}

/// The name of the pool that these devices are of.
///
/// # Errors
/// As [`salvage`].
pub fn name_of(devices: &[String], pool: Option<&str>, shown: &dyn Fn(Progress)) -> Result<String> {
    larder_repair::name_of(&open_all(devices)?.0, pool, shown).map_err(told)
}

/// An error of a repair, as people are told.
fn told(error: RepairError) -> ApiError {
    match error {
        RepairError::Pool(error) => error.into(),
        error @ (RepairError::NoPool { .. }
        | RepairError::NoSuchCommit { .. }
        | RepairError::OtherPools { .. }) => ApiError::new(ErrorKind::NotFound, error.to_string()),
        error @ RepairError::SeveralPools(_) => {
            ApiError::usage(error.to_string()).hint("larder repair --pool NAME DEVICE...")
        }
    }
}

impl Salvaged {
    /// The path of a file below its dataset, by its inode.
    pub fn path(&self, dataset: &str, inode: u64) -> Option<String> {
        let dataset = self.pool.dataset_by_name(dataset).ok()?;
        self.mount.volume(dataset.id())?.path_of(InodeId::new(inode)).ok()?
    }

    /// Copies all datasets into `folder`, which is [made](make_folder), a folder each, and if wanted their snapshots
    /// beside them.
    ///
    /// # Errors
    /// When something cannot be made in the folder.
    pub fn copy_to(
        &self,
        folder: &Path,
        snapshots: bool,
        shown: &dyn Fn(u64),
    ) -> Result<Vec<(String, Copied)>> {
        let failed = |error| cannot_use(folder, &error);
        let top = File::open(folder).map_err(failed)?;
        let mut copies = Vec::new();
        for dataset in self.pool.datasets() {
            let name = self.pool.full_name(dataset.id());
            let mut trees: Vec<(String, Option<String>)> = vec![(name.clone(), None)];
            if snapshots {
                let of = self.pool.snapshots(dataset.id()).into_iter().filter(|one| !one.hidden);
                trees.extend(of.map(|one| (format!("{name}@{}", one.name), Some(one.name))));
            }
            for (name, snapshot) in trees {
                if let Some(view) = self.view(dataset.id(), snapshot.as_deref())? {
                    copies.push((name, view));
                }
            }
        }
        let mut copying = Vec::new();
        for (name, view) in &copies {
            let at = PathBuf::from(name);
            let below = folders(&top, name).map_err(|error| failed(error.into()))?;
            let mut copy = Copy::new(view, &top, shown);
            copy.all(&below, &at)?;
            copying.push((name, copy, below, at));
        }
        // The last of all, for a folder may not let anything be made in it.
        let mut copied = Vec::new();
        for (name, copy, below, at) in copying {
            copied.push((name.clone(), copy.finish(&below, &at)?));
        }
        rustix::fs::syncfs(&top).map_err(|error| failed(error.into()))?;
        Ok(copied)
    }

    /// A dataset or a snapshot of it; nothing where it is empty.
    fn view(&self, dataset: DatasetId, snapshot: Option<&str>) -> Result<Option<View>> {
        let mount = Arc::clone(&self.mount);
        match snapshot {
            None => Ok(Some(View::new(mount, dataset))),
            Some(name) => match View::of_snapshot(mount, dataset, name) {
                Err(larder_files::FsError::NotFound) => Ok(None),
                view => Ok(Some(view?)),
            },
        }
    }
}

fn cannot_use(folder: &Path, error: &std::io::Error) -> ApiError {
    ApiError::new(ErrorKind::Denied, format!("cannot use '{}': {error}", folder.display()))
}

/// The folder of a dataset below another one, made where it is missing; no link is followed.
fn folders(top: &File, dataset: &str) -> rustix::io::Result<File> {
    let mut at: File = rustix::io::dup(top)?.into();
    for name in dataset.split('/').map(OsStr::new) {
        if matches!(name.as_bytes(), b"" | b"." | b"..") {
            return Err(Errno::INVAL);
        }
        match rustix::fs::mkdirat(&at, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        at = open_folder(&at, name)?;
    }
    Ok(at)
}

/// A file of `size` bytes that takes no room and has no name: nothing is left behind, however this ends.
fn sparse(folder: &Path, size: ByteLen) -> std::io::Result<Arc<dyn Device>> {
    let file = tempfile::tempfile_in(folder)?;
    file.set_len(size.get())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let device = FileDevice::open_with_threads(&path, OpenMode::Exclusive, THREADS);
    Ok(Arc::new(device.map_err(std::io::Error::other)?))
}

/// Devices, and names of those that were named more than once.
type Opened = (Vec<Arc<dyn Device>>, Vec<String>);

/// Opens devices to be read, each once, and files in folders that are as large as a device is.
fn open_all(named: &[String]) -> Result<Opened> {
    let (mut devices, mut seen): (Vec<Arc<dyn Device>>, _) = (Vec::new(), HashSet::new());
    let mut twice = Vec::new();
    let mut is_new = |path: &Path| path.metadata().map_or(true, |meta| seen.insert(identity(&meta)));
    for name in named {
        let path = Path::new(name);
        if !path.is_dir() {
            match is_new(path) {
                true => devices.push(open(path)?),
                false => twice.push(name.clone()),
            }
            continue;
        }
        let failed = |error: std::io::Error| {
            ApiError::new(ErrorKind::Denied, format!("cannot read '{}': {error}", path.display()))
        };
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        files.sort();
        for file in files.iter().filter(|file| file.is_file() && is_new(file)) {
            match open(file) {
                Ok(device) => devices.push(device),
                // Whatever else lies there is no device.
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    if devices.is_empty() {
        let message = format!("there is no device in {}", named.join(", "));
        return Err(ApiError::new(ErrorKind::NotFound, message));
    }
    Ok((devices, twice))
}

/// Opens a device to be read, unless somebody uses it: what changes meanwhile cannot be put together.
fn open(path: &Path) -> Result<Arc<dyn Device>> {
    match FileDevice::open_with_threads(path, OpenMode::Exclusive, THREADS) {
        // It is held, so that nobody imports the pool meanwhile; nothing writes to it.
        Ok(device) => return Ok(Arc::new(device)),
        Err(error @ (OpenError::Busy { .. } | OpenError::InUse { .. })) => {
            return Err(ApiError::new(ErrorKind::Busy, error.to_string())
                .hint("larder pool export lets go of the devices of an imported pool"));
        }
        Err(error @ OpenError::TooSmall { .. }) => {
            return Err(ApiError::new(ErrorKind::NotFound, error.to_string()));
        }
        Err(_) => {}
    }
    match FileDevice::open_with_threads(path, OpenMode::Probe, THREADS) {
        Ok(device) => Ok(Arc::new(device)),
        Err(error) => Err(ApiError::new(ErrorKind::NotFound, error.to_string())),
    }
}

/// The folder for scratch files where nobody names another.
pub fn scratch() -> PathBuf {
    let temporary = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
    temporary.map_or_else(|| Path::new(OsStr::new("/var/tmp")).to_owned(), PathBuf::from)
}
