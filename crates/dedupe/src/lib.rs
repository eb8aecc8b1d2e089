//! Deduplication of files that are there, on file systems that can share extents: XFS and btrfs.
//!
//! Walk, read what is new, compare hashes, and have the kernel share: it locks both files and compares bytes, so
//! nothing here can change a byte of a file, whatever changes meanwhile. Nothing is held open or locked between two
//! requests. The hash file is a cache: a run that ends anywhere leaves whole files and a hash file that is as of its
//! last commit, and the next run goes on from there.

mod hash_file;
mod kernel;
mod scan;
mod share;
mod walk;

use hash_file::HashFile;
use larder_device::Workers;
use rustix::fs;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const XFS: i64 = 0x5846_5342;
const BTRFS: i64 = 0x9123_683e;
const FUSE: i64 = 0x6573_5546;
/// Names that are kept of each reason.
const EXAMPLES: usize = 5;

/// Errors, by what can be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path that was named cannot be opened.
    #[error("cannot open '{}': {}", .0.display(), .1)]
    Open(PathBuf, std::io::Error),
    /// The kernel shares nothing there.
    #[error("cannot deduplicate '{}': {}", .0.display(), .1)]
    Unsupported(PathBuf, &'static str),
    /// Paths of several file systems.
    #[error("'{}' and '{}' are on different file systems, which cannot share", .0.display(), .1.display())]
    Apart(PathBuf, PathBuf),
    /// Another run has the hash file.
    #[error("the hash file '{}' is in use by another run", .0.display())]
    InUse(PathBuf),
    /// The hash file is foreign, damaged, or cannot be written.
    #[error("the hash file '{}' cannot be used: {}", .0.display(), .1)]
    HashFile(PathBuf, String),
    /// An option out of its range.
    #[error("{0}")]
    Usage(String),
}

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of a block: a power of two from 4 KiB to 1 MiB.
    pub block: u64,
    /// Bytes of memory for indexes and the hash file's cache.
    pub memory: usize,
    /// Whether to share, or only to say what could be.
    pub apply: bool,
    /// Whether to go into what is mounted below.
    pub crosses_mounts: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { block: 4096, memory: 256 << 20, apply: false, crosses_mounts: false }
    }
}

impl Options {
    fn block_log2(&self) -> u8 {
        self.block.trailing_zeros() as u8
    }
}

/// Steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Files are read.
    Read,
    /// Hashes are compared.
    Compare,
    /// The kernel shares.
    Share,
}

/// Told how far a run is, from several threads.
pub trait Progress: Sync {
    /// A step begins, of so many bytes.
    fn begin(&self, phase: Phase, bytes: u64);
    /// So many bytes of the step are done.
    fn at(&self, bytes: u64);
}

/// Outcome of a run; all in bytes unless it says otherwise.
#[derive(Debug, Default, Clone)]
pub struct Report {
    /// Free space before, measured.
    pub free_before: u64,
    /// Free space after, measured.
    pub free_after: u64,
    /// Files met.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files read: new or changed.
    pub files_read: u64,
    /// Their bytes.
    pub bytes_read: u64,
    /// Files that the hash file forgot.
    pub forgotten: u64,
    /// Blocks compared.
    pub blocks: u64,
    /// Found equal, of what no earlier run has settled.
    pub equal: u64,
    /// Equal, and in one place already.
    pub shared_before: u64,
    /// Equal, and could be shared; counted when nothing is applied.
    pub could_share: u64,
    /// Asked of the kernel.
    pub tried: u64,
    /// Shared by this run.
    pub shared: u64,
    /// Not what was read any more.
    pub changed: u64,
    /// Refused by the kernel, with some names, by reason.
    pub refused: BTreeMap<&'static str, (u64, Vec<PathBuf>)>,
    /// Files that are written in place (nocow) and passed over.
    pub nocow: u64,
    /// Files and folders that could not be read.
    pub unreadable: u64,
    /// Folders passed over, on which something is mounted.
    pub other_mounts: u64,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
}

impl Report {
    fn refuse(&mut self, error: Errno, bytes: u64, name: impl Fn() -> PathBuf) {
        let reason = match error {
            Errno::AGAIN | Errno::NOENT | Errno::INVAL | Errno::LOOP => {
                self.changed += bytes;
                return;
            }
            Errno::PERM | Errno::ACCESS => "immutable, or of another user",
            Errno::ROFS => "read-only",
            Errno::TXTBSY => "swap file, or running",
            Errno::NOSPC | Errno::DQUOT => "no space for metadata",
            Errno::XDEV => "on another file system",
            Errno::OPNOTSUPP => "the file system has no shared extents",
            _ => "the kernel refused",
        };
        let (all, names) = self.refused.entry(reason).or_default();
        *all += bytes;
        let name = name();
        if names.len() < EXAMPLES && names.last() != Some(&name) {
            names.push(name);
        }
    }
}

/// A run: what all of its steps need.
struct Run<'a> {
    options: &'a Options,
    workers: &'a (dyn Workers + 'static),
    progress: &'a dyn Progress,
    stop: &'a AtomicBool,
    file: HashFile,
}

impl Run<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The id of the file system at a path, in hexadecimal: the name of its hash file.
///
/// # Errors
/// When there is no such path, or the kernel shares nothing there.
pub fn file_system_id(path: &Path) -> Result<String, Error> {
    let flags = fs::OFlags::PATH | fs::OFlags::CLOEXEC;
    let open =
        fs::open(path, flags, fs::Mode::empty()).and_then(|fd| Ok((fs::fstatfs(&fd)?, fs::fstatvfs(&fd)?)));
    let (kind, space) = open.map_err(|error| Error::Open(path.to_owned(), error.into()))?;
    match kind.f_type {
        // On btrfs it is that of the subvolume.
        XFS | BTRFS => Ok(format!("{:016x}", space.f_fsid)),
        FUSE => Err(Error::Unsupported(
            path.to_owned(),
            "FIDEDUPERANGE never reaches a FUSE file system; stored data of larder's own datasets is deduplicated by \
             larder fs dedup DATASET",
        )),
        _ => Err(Error::Unsupported(
            path.to_owned(),
            "the kernel offers no FIDEDUPERANGE there, on XFS and btrfs alone",
        )),
    }
}

fn is_btrfs(path: &Path) -> bool {
    fs::statfs(path).is_ok_and(|found| found.f_type == BTRFS)
}

/// Finds duplicates below the paths, and shares them if that is asked for.
///
/// # Errors
/// When a path or the hash file cannot be used. What cannot be read or shared of single files is in the report.
pub fn run(
    paths: &[PathBuf],
    hash_file: &Path,
    options: &Options,
    workers: &(dyn Workers + 'static),
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<Report, Error> {
    if !options.block.is_power_of_two() || !(4096..=1 << 20).contains(&options.block) {
        return Err(Error::Usage("a block is a power of two from 4K to 1M".into()));
    }
    for path in paths {
        let (id, first) = (file_system_id(path)?, &paths[0]);
        let device = |path: &Path| fs::stat(path).map_err(|error| Error::Open(path.to_owned(), error.into()));
        // Subvolumes of one btrfs have ids and device numbers of their own; there the kernel tells.
        if id != file_system_id(first)? && !is_btrfs(path) && device(path)?.st_dev != device(first)?.st_dev {
            return Err(Error::Apart(first.clone(), path.clone()));
        }
    }
    let run = Run { options, workers, progress, stop, file: HashFile::open(hash_file, options.memory / 4)? };
    let mut report = Report::default();
    let (roots, found) = walk::walk(paths, options.crosses_mounts, &mut report)?;
    let free = |root: &walk::Root| measure(&root.fd, options.apply);
    let cannot = |path: &Path, error: Errno| Error::Open(path.to_owned(), error.into());
    if let Some(first) = roots.first() {
        report.free_before = free(first).map_err(|error| cannot(&first.path, error))?;
    }
    report.files = found.len() as u64;
    report.bytes = found.iter().map(|file| file.stamp.size).sum();
    let records = scan::scan(&run, &roots, &found, &mut report)?;
    if !run.is_stopped() {
        let live: HashSet<u64> = records.iter().flatten().map(|record| record.id).collect();
        let named: Vec<PathBuf> = roots.iter().map(|root| root.named.clone()).collect();
        report.forgotten = run.file.forget(&named, &live)?;
        share::share(&run, &roots, &found, &records, &mut report)?;
    }
    report.is_stopped = run.is_stopped();
    if let Some(first) = roots.first() {
        report.free_after = free(first).map_err(|error| cannot(&first.path, error))?;
    }
    Ok(report)
}

/// Free bytes, after all that is under way when that is asked for.
fn measure(fd: impl AsFd, syncs: bool) -> Result<u64, Errno> {
    if syncs {
        fs::syncfs(&fd)?;
    }
    let space = fs::fstatvfs(&fd)?;
    Ok(space.f_bfree * space.f_frsize)
}
