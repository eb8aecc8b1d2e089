//! The first half of a run: walks, reads what is new or has changed, and brings the hash file up to date.

use crate::error::DedupeError;
use crate::hashfile::{FileRecord, Fixed, HashFile, Stamp};
use crate::items::{self, Cutting};
use crate::report::Report;
use crate::walk::{self, Found, Walk};
use crate::{Phase, Watch, kernel};
use larder_device::Workers;
use rustix::fs::{Advice, AtFlags, IFlags, StatVfsMountFlags, StatxFlags, fadvise, fstatvfs, ioctl_getflags, statx};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files and bytes that are taken up together; as many files are open at once.
const BATCH_FILES: usize = 256;
const BATCH_BYTES: u64 = 256 << 20;
/// Segments whose items are held in memory until they are noted.
const SEGMENTS: usize = 32;
/// So much is read, or so many files, between two commits: a crash loses no more.
const COMMIT_BYTES: u64 = 1 << 30;
const COMMIT_FILES: u64 = 20_000;
/// Smaller files are asked for ahead, all of a batch.
const AHEAD: u64 = 2 << 20;

/// Which ids of the hash file belong to files that were found.
#[derive(Debug, Default)]
pub struct Seen(Vec<u64>);

impl Seen {
    /// Whether it was.
    pub fn has(&self, id: u32) -> bool {
        self.0.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 != 0)
    }
    /// Notes one; whether it is the first time.
    fn add(&mut self, id: u32) -> bool {
        let word = id as usize / 64;
        self.0.resize(self.0.len().max(word + 1), 0);
        let is_new = !self.has(id);
        self.0[word] |= 1 << (id % 64);
        is_new
    }
    fn remove(&mut self, id: u32) {
        self.0[id as usize / 64] &= !(1 << (id % 64));
    }
}

/// A file that is to be read.
struct Wanted {
    handle: Vec<u8>,
    stamp: Stamp,
    path: Vec<u8>,
    known: Option<u32>,
}

/// One of them, open.
struct Opened {
    at: usize,
    file: OwnedFd,
    place: u64,
    is_shared: bool,
    fixed: Option<Fixed>,
}

/// Context of a scan.
pub struct Scan<'a> {
    /// Absolute paths without links.
    pub roots: &'a [PathBuf],
    /// Of the file system; whether it is an XFS.
    pub identity: ([u8; 16], bool),
    /// Whether to go into mounts of the same file system.
    pub crosses_mounts: bool,
    /// Ways of cutting.
    pub cutting: Cutting,
    /// Hands that help.
    pub workers: &'a (dyn Workers + 'static),
    /// Whoever watches.
    pub watch: &'a dyn Watch,
}

impl Scan<'_> {
    /// Does it; which files there are.
    ///
    /// # Errors
    /// When the hash file cannot be written.
    pub fn run(&self, hashes: &mut HashFile, report: &mut Report) -> Result<Seen, DedupeError> {
        let (mut seen, mut fresh) = (Seen::default(), HashSet::new());
        let (mut wanted, mut length): (Vec<Wanted>, u64) = (Vec::new(), 0);
        let mut changed_paths: Vec<FileRecord> = Vec::new();
        let mut since = (0, 0);
        let own = std::fs::metadata(hashes.path()).map(|found| (found.dev(), found.ino())).ok();
        let swaps = swap_files();
        let mut reading = hashes.read()?;
        // Found are taken up after each folder: what the walk calls cannot fail.
        let queue = std::cell::RefCell::new(Vec::new());
        let mut push = |found| queue.borrow_mut().push(found);
        let mut walk = Walk::new(self.roots, self.identity, self.crosses_mounts, &mut push);
        let mut more = true;
        while more && !self.watch.is_stopped() {
            more = walk.step();
            let found: Vec<Found> = queue.borrow_mut().drain(..).collect();
            for found in found {
                let (handle, stamp, path) = match found {
                    Found::Mount => {
                        report.mounts += 1;
                        continue;
                    }
                    Found::Unreadable(path, error) => {
                        unreadable(report, path, error);
                        continue;
                    }
                    Found::File(handle, stamp, path) => (handle, stamp, path),
                };
                if own.is_some_and(|(_, ino)| ino == stamp.ino && is_same_file(&path, own)) {
                    continue;
                }
                let known = reading.get(&handle)?;
                let is_first = match &known {
                    Some(known) => seen.add(known.id),
                    None => fresh.insert(handle.clone()),
                };
                if !is_first {
                    report.links += 1;
                    continue;
                }
                report.files += 1;
                report.bytes += stamp.size;
                match known {
                    Some(mut known) if known.stamp == stamp => {
                        self.watch.progress(Phase::Read, stamp.size, 0);
                        if known.path != path {
                            known.path = path;
                            changed_paths.push(known);
                        }
                    }
                    known => {
                        length += stamp.size;
                        wanted.push(Wanted { handle, stamp, path, known: known.map(|known| known.id) });
                    }
                }
                if wanted.len() >= BATCH_FILES || length >= BATCH_BYTES || changed_paths.len() >= 4096 {
                    self.take_up(hashes, &mut wanted, &mut changed_paths, &mut seen, &swaps, report, &mut since)?;
                    // Those are found by their records from now on.
                    fresh.clear();
                    length = 0;
                    reading = hashes.read()?;
                }
            }
        }
        self.take_up(hashes, &mut wanted, &mut changed_paths, &mut seen, &swaps, report, &mut since)?;
        if !self.watch.is_stopped() {
            self.forget(hashes, &seen, report)?;
        }
        Ok(seen)
    }

    /// Forgets files that are nowhere any more. Others that were not found may be below another path.
    fn forget(&self, hashes: &HashFile, seen: &Seen, report: &mut Report) -> Result<(), DedupeError> {
        let reading = hashes.read()?;
        let write = hashes.write()?;
        let mut gone = 0;
        reading.each_handle(|handle, id| {
            if seen.has(id) {
                return Ok(());
            }
            let path = reading.record(id)?.map_or_else(Vec::new, |record| record.path);
            let now = CString::new(path).ok().and_then(|path| kernel::handle(rustix::fs::CWD, &path).ok());
            if now.is_none_or(|now| now != handle) {
                write.remove(handle, id)?;
                gone += 1;
            }
            Ok(())
        })?;
        drop(reading);
        report.forgotten = gone;
        if gone > 0 { write.commit_ids(hashes.ids()) } else { Ok(()) }
    }

    /// Reads files and notes them, in the order in which they lie on the device.
    #[expect(clippy::too_many_arguments, reason = "the state of one loop")]
    fn take_up(
        &self,
        hashes: &mut HashFile,
        wanted: &mut Vec<Wanted>,
        changed_paths: &mut Vec<FileRecord>,
        seen: &mut Seen,
        swaps: &[(u64, u64)],
        report: &mut Report,
        since: &mut (u64, u64),
    ) -> Result<(), DedupeError> {
        if wanted.is_empty() && changed_paths.is_empty() {
            return Ok(());
        }
        let opened = self.workers.map(wanted.len(), |at| open(&wanted[at], at, swaps));
        let mut ready = Vec::new();
        for (at, opened) in opened.into_iter().enumerate() {
            match opened {
                Ok(opened) => ready.push(opened),
                Err(Errno::NOENT | Errno::STALE) => report.restless += 1,
                Err(error) => unreadable(report, wanted[at].path.clone(), error),
            }
        }
        ready.sort_by_key(|opened| opened.place);
        for opened in &ready {
            let size = wanted[opened.at].stamp.size;
            if size <= AHEAD {
                let _ = fadvise(&opened.file, 0, None, Advice::WillNeed);
            } else {
                let _ = fadvise(&opened.file, 0, None, Advice::Sequential);
            }
        }
        let ids: Vec<u32> = (ready.iter())
            .map(|opened| wanted[opened.at].known.unwrap_or_else(|| hashes.fresh_id()))
            .collect();
        let write = hashes.write()?;
        for (opened, id) in ready.iter().zip(&ids) {
            if wanted[opened.at].known.is_some() {
                write.remove_items(*id)?;
            }
        }
        let segment = self.cutting.segment();
        let mut pieces = ready.iter().enumerate().flat_map(|(index, opened)| {
            let holds = !matches!(opened.fixed, Some(Fixed::NoCow | Fixed::Swap | Fixed::Inline));
            let count = if holds { wanted[opened.at].stamp.size.div_ceil(segment) } else { 0 };
            (0..count).map(move |number| (index, number))
        });
        let mut failed: HashSet<usize> = HashSet::new();
        loop {
            let some: Vec<(usize, u64)> = pieces.by_ref().take(SEGMENTS).collect();
            if some.is_empty() || self.watch.is_stopped() {
                break;
            }
            let read = self.workers.map(some.len(), |at| {
                let (index, number) = some[at];
                let size = wanted[ready[index].at].stamp.size;
                let result = items::segment(&ready[index].file, number * segment, size, self.cutting);
                self.watch.progress(Phase::Read, segment.min(size - number * segment), 0);
                result
            });
            for ((index, number), result) in some.iter().zip(read) {
                match result {
                    Ok((items, bytes)) => {
                        report.read += bytes;
                        since.0 += bytes;
                        write.put_items(ids[*index], *number as u32, &items)?;
                    }
                    Err(error) => {
                        if failed.insert(*index) {
                            unreadable(report, wanted[ready[*index].at].path.clone(), error);
                        }
                    }
                }
            }
        }
        let is_stopped = self.watch.is_stopped();
        for (index, (opened, id)) in ready.iter().zip(&ids).enumerate() {
            let file = &wanted[opened.at];
            let is_same = walk::look(opened.file.as_fd()).is_ok_and(|found| walk::stamp(&found) == file.stamp);
            if is_stopped || failed.contains(&index) || !is_same {
                if !is_stopped && !failed.contains(&index) {
                    report.restless += 1;
                }
                write.remove(&file.handle, *id)?;
                if file.known.is_some() {
                    seen.remove(*id);
                }
                continue;
            }
            report.read_files += 1;
            since.1 += 1;
            write.put(
                &file.handle,
                &FileRecord {
                    id: *id,
                    stamp: file.stamp,
                    is_settled: false,
                    is_shared: opened.is_shared,
                    fixed: opened.fixed,
                    path: file.path.clone(),
                },
            )?;
            seen.add(*id);
        }
        for record in changed_paths.drain(..) {
            write.put_record(&record)?;
        }
        wanted.clear();
        let keeps = since.0 >= COMMIT_BYTES || since.1 >= COMMIT_FILES;
        if keeps {
            *since = (0, 0);
        }
        write.commit_as(hashes.ids(), keeps)
    }
}

fn unreadable(report: &mut Report, path: Vec<u8>, error: Errno) {
    report.unreadable += 1;
    report.first_unreadable.get_or_insert((path, error));
}

fn is_same_file(path: &[u8], own: Option<(u64, u64)>) -> bool {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino())) == own
}

fn open(wanted: &Wanted, at: usize, swaps: &[(u64, u64)]) -> Result<Opened, Errno> {
    let file = walk::open(&wanted.path)?;
    let found = walk::look(file.as_fd())?;
    if walk::stamp(&found) != wanted.stamp {
        return Err(Errno::STALE);
    }
    let (place, is_shared) = items::place(&file);
    let flags = ioctl_getflags(&file).unwrap_or(IFlags::empty());
    let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
    let is_read_only = || fstatvfs(&file).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY));
    let fixed = if swaps.contains(&(device, found.stx_ino)) {
        Some(Fixed::Swap)
    } else if flags.contains(IFlags::NOCOW) {
        Some(Fixed::NoCow)
    } else if kernel::extents(file.as_fd(), 0, 1, 1).is_ok_and(|first| first.iter().any(|one| one.is_inline())) {
        Some(Fixed::Inline)
    } else if flags.contains(IFlags::IMMUTABLE) {
        Some(Fixed::Immutable)
    } else if flags.contains(IFlags::APPEND) {
        Some(Fixed::AppendOnly)
    } else if is_read_only() || is_in_read_only_subvolume(&file) {
        Some(Fixed::ReadOnly)
    } else {
        None
    };
    Ok(Opened { at, file, place, is_shared, fixed })
}

/// A file of a read-only snapshot of btrfs cannot be written by anyone, which access(2) tells.
fn is_in_read_only_subvolume(file: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK) == Err(Errno::ROFS)
}

/// Device and inode of the files that the kernel swaps to.
fn swap_files() -> Vec<(u64, u64)> {
    let listed = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let names = listed.lines().skip(1).filter(|line| line.contains(" file"));
    let paths = names.filter_map(|line| line.split_whitespace().next().map(|name| name.replace("\\040", " ")));
    paths
        .filter_map(|path| File::open(path).ok())
        .filter_map(|file| {
            let found = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()?;
            Some((rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
        })
        .collect()
}
