//! The first half of a run: walks, reads what is new or has changed, and brings the hash file up to date.
//!
//! The walk goes first, and what is to be read waits in a temporary file, so that it is known how much that is. A file
//! is noted when it was read whole and is as it was before; of a long one, how far it was read is kept with each commit
//! that outlasts a crash, and the next run goes on there.

use crate::error::DedupeError;
use crate::hashfile::{FileRecord, Fixed, HashFile, Reading, Stamp};
use crate::items::{self, Cutting};
use crate::report::Report;
use crate::walk::{self, Found, Walk};
use crate::wanted::{Waiting, Wanted};
use crate::{Phase, Watch, kernel};
use larder_device::Workers;
use rustix::fs::{Advice, AtFlags, IFlags, StatxFlags, fadvise, ioctl_getflags, statx};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
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
/// New paths of known files that are noted together.
const PATHS: usize = 4096;

#[derive(Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, id: u32) -> bool {
        self.0.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 != 0)
    }
    fn set(&mut self, id: u32, to: bool) {
        let word = id as usize / 64;
        if to && self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        if let Some(bits) = self.0.get_mut(word) {
            *bits = *bits & !(1 << (id % 64)) | u64::from(to) << (id % 64);
        }
    }
}

/// Which ids of the hash file belong to files that were found.
#[derive(Debug, Default)]
pub struct Seen {
    found: Bits,
    read_only: Bits,
}

impl Seen {
    /// Whether it was.
    pub fn has(&self, id: u32) -> bool {
        self.found.has(id)
    }
    /// Whether nobody can write where it is.
    pub fn is_read_only(&self, id: u32) -> bool {
        self.read_only.has(id)
    }
    fn add(&mut self, id: u32, is_read_only: bool) {
        self.found.set(id, true);
        self.read_only.set(id, is_read_only);
    }
}

/// One file of a batch.
struct Taken {
    file: Wanted,
    /// Its id, and the segments that were read of what it is now.
    known: Option<(u32, u32)>,
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
    /// For temporary files.
    pub folder: &'a Path,
    /// Of the file system; whether it is an XFS.
    pub identity: ([u8; 16], bool),
    /// Whether to go into mounts of the same file system.
    pub crosses_mounts: bool,
    /// Ways of cutting.
    pub cutting: Cutting,
    /// Hands that help.
    pub workers: &'a (dyn Workers + 'static),
    /// The observer.
    pub watch: &'a dyn Watch,
}

/// Bytes and files that were noted since the last commit that outlasts a crash.
#[derive(Debug, Default)]
struct Since {
    bytes: u64,
    files: u64,
}

impl Scan<'_> {
    /// Does it; which files there are.
    ///
    /// # Errors
    /// When the hash file or temporary files cannot be written.
    pub fn run(&self, hashes: &mut HashFile, report: &mut Report) -> Result<Seen, DedupeError> {
        let mut seen = Seen::default();
        let swaps = swap_files();
        let waiting = self.find(hashes, &mut seen, &swaps, report)?;
        self.watch.progress(Phase::Read, 0, waiting.bytes);
        let mut next = waiting.all()?;
        let mut since = Since::default();
        let mut more = true;
        while more && !self.watch.is_stopped() {
            let (mut batch, mut length, mut fresh) = (Vec::new(), 0, HashSet::new());
            let reading = hashes.read()?;
            while batch.len() < BATCH_FILES && length < BATCH_BYTES {
                let Some(file) = next()? else {
                    more = false;
                    break;
                };
                let known = reading.get(&file.handle)?;
                let is_done = known.as_ref().is_some_and(|known| {
                    seen.has(known.id) && known.stamp == file.stamp && self.is_whole(known)
                });
                // Another name of one that was read, or is about to be.
                if is_done || !fresh.insert(file.handle.clone()) {
                    report.links += 1;
                    self.watch.progress(Phase::Read, file.stamp.size, 0);
                    continue;
                }
                report.files += 1;
                report.bytes += file.stamp.size;
                let known = known.map(|known| {
                    let goes_on = known.stamp == file.stamp && known.fixed != Some(Fixed::Swap);
                    (known.id, if goes_on && !self.is_whole(&known) { known.segments } else { 0 })
                });
                length += file.stamp.size;
                batch.push(Taken { file, known });
            }
            drop(reading);
            if !batch.is_empty() {
                self.take_up(hashes, &batch, &mut seen, &swaps, report, &mut since)?;
            }
        }
        if !self.watch.is_stopped() {
            self.forget(hashes, &seen, report)?;
        }
        Ok(seen)
    }

    fn segments(&self, stamp: &Stamp) -> u32 {
        u32::try_from(stamp.size.div_ceil(self.cutting.segment())).unwrap_or(u32::MAX)
    }

    fn is_whole(&self, record: &FileRecord) -> bool {
        record.segments >= self.segments(&record.stamp)
    }

    /// Walks: which files are as they were, and which are to be read.
    fn find(
        &self,
        hashes: &HashFile,
        seen: &mut Seen,
        swaps: &[(u64, u64)],
        report: &mut Report,
    ) -> Result<Waiting, DedupeError> {
        let own = std::fs::metadata(hashes.path()).map(|found| (found.dev(), found.ino())).ok();
        let reading = hashes.read()?;
        let mut waiting = Waiting::new(self.folder)?;
        let mut moved: Vec<FileRecord> = Vec::new();
        let mut outcome = Ok(());
        let mut each = |found: Found| {
            let (file, device) = match found {
                Found::Mount => {
                    report.mounts += 1;
                    return;
                }
                Found::Snapshot => {
                    report.snapshots += 1;
                    return;
                }
                Found::Unreadable(path, error) => return unreadable(report, path, error),
                Found::File(file, device) => (file, device),
            };
            if outcome.is_err() || own == Some((device, file.stamp.ino)) {
                return;
            }
            outcome = (|| {
                self.watch.progress(Phase::Find, file.stamp.size, 0);
                let is_swap = swaps.contains(&(device, file.stamp.ino));
                let known = reading.get(&file.handle)?.filter(|known| {
                    known.stamp == file.stamp
                        && self.is_whole(known)
                        && (known.fixed == Some(Fixed::Swap)) == is_swap
                });
                let Some(mut known) = known else { return waiting.push(&file) };
                if seen.has(known.id) {
                    report.links += 1;
                    return Ok(());
                }
                seen.add(known.id, file.is_read_only);
                report.files += 1;
                report.bytes += file.stamp.size;
                if known.path != file.path {
                    known.path = file.path;
                    moved.push(known);
                    if moved.len() >= PATHS {
                        note_paths(hashes, &mut moved)?;
                    }
                }
                Ok(())
            })();
        };
        let mut walk = Walk::new(self.roots, self.identity, self.crosses_mounts, &mut each);
        while !self.watch.is_stopped() && walk.step() {}
        outcome?;
        note_paths(hashes, &mut moved)?;
        Ok(waiting)
    }

    /// Forgets files that are nowhere any more. Others that were not found may be below another path.
    fn forget(&self, hashes: &HashFile, seen: &Seen, report: &mut Report) -> Result<(), DedupeError> {
        let reading = hashes.read()?;
        let write = hashes.write()?;
        reading.each_handle(|handle, id| {
            if !seen.has(id) && !is_there(&reading, handle, id)? {
                write.remove(handle, id)?;
                report.forgotten += 1;
            }
            Ok(())
        })?;
        drop(reading);
        if report.forgotten > 0 { write.commit_ids(hashes.ids()) } else { Ok(()) }
    }

    /// Reads files and notes them, in the order in which they lie on the device.
    fn take_up(
        &self,
        hashes: &mut HashFile,
        batch: &[Taken],
        seen: &mut Seen,
        swaps: &[(u64, u64)],
        report: &mut Report,
        since: &mut Since,
    ) -> Result<(), DedupeError> {
        let opened = self.workers.map(batch.len(), |at| open(&batch[at].file, at, swaps));
        let mut ready = Vec::new();
        for (at, opened) in opened.into_iter().enumerate() {
            match opened {
                Ok(opened) => {
                    ready.push(opened);
                    continue;
                }
                Err(Errno::NOENT | Errno::STALE) => report.restless += 1,
                Err(error) => unreadable(report, batch[at].file.path.clone(), error),
            }
            self.watch.progress(Phase::Read, batch[at].file.stamp.size, 0);
        }
        ready.sort_by_key(|opened| opened.place);
        for opened in &ready {
            let advice =
                if batch[opened.at].file.stamp.size <= AHEAD { Advice::WillNeed } else { Advice::Sequential };
            let _ = fadvise(&opened.file, 0, None, advice);
        }
        let (segment, size) = (self.cutting.segment(), |opened: &Opened| batch[opened.at].file.stamp.size);
        let known = |opened: &Opened| batch[opened.at].known;
        let ids: Vec<u32> = (ready.iter())
            .map(|opened| known(opened).map_or_else(|| hashes.fresh_id(), |(id, _)| id))
            .collect();
        let mut write = hashes.write()?;
        let mut pieces = Vec::new();
        for (index, opened) in ready.iter().enumerate() {
            let Taken { file, known } = &batch[opened.at];
            let holds = !matches!(opened.fixed, Some(Fixed::NoCow | Fixed::Swap | Fixed::Inline));
            let from = known.map_or(0, |(_, from)| from);
            if let Some((id, _)) = known.filter(|(_, from)| *from == 0) {
                write.remove_items(id)?;
            }
            let read = if holds { u64::from(from) * segment } else { file.stamp.size };
            self.watch.progress(Phase::Read, read, 0);
            if holds {
                pieces.extend((from..self.segments(&file.stamp)).map(|number| (index, number)));
            }
        }
        let record = |index: usize, segments: u32| {
            let opened: &Opened = &ready[index];
            let file = &batch[opened.at].file;
            let (is_shared, fixed, path) = (opened.is_shared, opened.fixed, file.path.clone());
            FileRecord { id: ids[index], stamp: file.stamp, settled: 0, segments, is_shared, fixed, path }
        };
        let is_same = |index: usize| {
            let opened: &Opened = &ready[index];
            walk::look(opened.file.as_fd())
                .is_ok_and(|found| walk::stamp(&found) == batch[opened.at].file.stamp)
        };
        let mut failed: HashSet<usize> = HashSet::new();
        // The file that is cut short, and its segments until there.
        let mut cut = None;
        for (at, some) in pieces.chunks(SEGMENTS).enumerate() {
            if self.watch.is_stopped() {
                break;
            }
            let read = self.workers.map(some.len(), |at| {
                let (index, number) = some[at];
                let (start, size) = (u64::from(number) * segment, size(&ready[index]));
                let result = items::segment(&ready[index].file, start, size, self.cutting);
                self.watch.progress(Phase::Read, segment.min(size - start), 0);
                result
            });
            for ((index, number), result) in some.iter().zip(read) {
                match result {
                    Ok((items, bytes)) => {
                        report.read += bytes;
                        since.bytes += bytes;
                        write.put_items(ids[*index], *number, &items)?;
                    }
                    Err(error) => {
                        if failed.insert(*index) {
                            unreadable(report, batch[ready[*index].at].file.path.clone(), error);
                        }
                    }
                }
            }
            let Some((index, number)) = some.last().copied() else { break };
            let goes_on = pieces.get((at + 1) * SEGMENTS).is_some_and(|(next, _)| *next == index);
            cut = (goes_on && !failed.contains(&index)).then_some((index, number + 1));
            if since.bytes >= COMMIT_BYTES
                && let Some((index, segments)) = cut
                && is_same(index)
            {
                write.put(&batch[ready[index].at].file.handle, &record(index, segments))?;
                write.commit_ids(hashes.ids())?;
                *since = Since::default();
                write = hashes.write()?;
            }
        }
        let is_stopped = self.watch.is_stopped();
        for (index, opened) in ready.iter().enumerate() {
            let file = &batch[opened.at].file;
            let is_same = !failed.contains(&index) && is_same(index);
            if is_same && !is_stopped {
                report.read_files += 1;
                since.files += 1;
                write.put(&file.handle, &record(index, self.segments(&file.stamp)))?;
                seen.add(ids[index], file.is_read_only);
                continue;
            }
            match cut.filter(|(at, _)| *at == index && is_same) {
                Some((_, segments)) => write.put(&file.handle, &record(index, segments))?,
                None => write.remove(&file.handle, ids[index])?,
            }
            report.restless += u64::from(!is_stopped && !failed.contains(&index));
        }
        let keeps = is_stopped || since.bytes >= COMMIT_BYTES || since.files >= COMMIT_FILES;
        if keeps {
            *since = Since::default();
        }
        write.commit_as(hashes.ids(), keeps)
    }
}

/// Notes files that have moved.
fn note_paths(hashes: &HashFile, moved: &mut Vec<FileRecord>) -> Result<(), DedupeError> {
    if moved.is_empty() {
        return Ok(());
    }
    let write = hashes.write()?;
    moved.drain(..).try_for_each(|record| write.put_record(&record))?;
    write.commit()
}

/// Whether a file is at the path that is known of it.
fn is_there(reading: &Reading, handle: &[u8], id: u32) -> Result<bool, DedupeError> {
    let path = reading.record(id)?.map_or_else(Vec::new, |record| record.path);
    let now = CString::new(path).ok().and_then(|path| kernel::handle(rustix::fs::CWD, &path).ok());
    Ok(now.is_some_and(|now| now == handle))
}

fn unreadable(report: &mut Report, path: Vec<u8>, error: Errno) {
    report.unreadable += 1;
    report.first_unreadable.get_or_insert((path, error));
}

fn open(wanted: &Wanted, at: usize, swaps: &[(u64, u64)]) -> Result<Opened, Errno> {
    let file = walk::open(&wanted.path)?;
    let found = walk::look(file.as_fd())?;
    if walk::stamp(&found) != wanted.stamp {
        return Err(Errno::STALE);
    }
    let (place, is_shared) = items::place(&file);
    let flags = ioctl_getflags(&file).unwrap_or(IFlags::empty());
    let fixed = if swaps.contains(&(walk::device(&found), found.stx_ino)) {
        Some(Fixed::Swap)
    } else if flags.contains(IFlags::NOCOW) {
        Some(Fixed::NoCow)
    } else if kernel::extents(file.as_fd(), 0, 1, 1)
        .is_ok_and(|first| first.iter().any(|one| one.is_inline()))
    {
        Some(Fixed::Inline)
    } else if flags.contains(IFlags::IMMUTABLE) {
        Some(Fixed::Immutable)
    } else if flags.contains(IFlags::APPEND) {
        Some(Fixed::AppendOnly)
    } else {
        None
    };
    Ok(Opened { at, file, place, is_shared, fixed })
}

/// Device and inode of the files that the kernel swaps to.
fn swap_files() -> Vec<(u64, u64)> {
    let listed = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let names = listed.lines().skip(1).filter(|line| line.contains(" file"));
    let paths =
        names.filter_map(|line| line.split_whitespace().next().map(|name| name.replace("\\040", " ")));
    paths
        .filter_map(|path| File::open(path).ok())
        .filter_map(|file| {
            let found = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()?;
            Some((walk::device(&found), found.stx_ino))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_device::Inline;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Stops when so much was read.
    struct Stops {
        after: u64,
        done: AtomicU64,
    }

    impl Watch for Stops {
        fn progress(&self, phase: Phase, done: u64, _: u64) {
            if phase == Phase::Read {
                self.done.fetch_add(done, Ordering::Relaxed);
            }
        }
        fn is_stopped(&self) -> bool {
            self.done.load(Ordering::Relaxed) >= self.after
        }
    }

    fn scan(folder: &Path, files: &Path, after: u64) -> (Report, usize) {
        let cutting = Cutting::blocks(4096).unwrap();
        let mut hashes = HashFile::open(&folder.join("hashes"), [1; 16], cutting, 1 << 20).unwrap();
        let watch = Stops { after, done: AtomicU64::new(0) };
        let roots = [files.canonicalize().unwrap()];
        let (identity, workers) = (([1; 16], true), &Inline);
        let scan =
            Scan { roots: &roots, folder, identity, crosses_mounts: false, cutting, workers, watch: &watch };
        let mut report = Report::default();
        let seen = scan.run(&mut hashes, &mut report).unwrap();
        (report, (0..hashes.ids()).filter(|id| seen.has(*id)).count())
    }

    #[test]
    fn a_long_file_is_gone_on_with_where_a_run_was_stopped() {
        let (folder, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let segment = Cutting::blocks(4096).unwrap().segment();
        let file = File::create(files.path().join("long")).unwrap();
        for number in 0..40 {
            file.write_all_at(&[7; 4096], number * segment).unwrap();
        }
        file.set_len(40 * segment).unwrap();
        let (first, found) = scan(folder.path(), files.path(), segment);
        assert_eq!((first.read, first.read_files, found), (SEGMENTS as u64 * 4096, 0, 0), "cut short");
        let (second, found) = scan(folder.path(), files.path(), u64::MAX);
        assert_eq!((second.read, second.read_files, found), (8 * 4096, 1, 1));
        let (third, found) = scan(folder.path(), files.path(), u64::MAX);
        assert_eq!((third.read, third.read_files, found), (0, 0, 1));
        // It changes: its first half is of no use any more.
        std::fs::remove_file(folder.path().join("hashes")).unwrap();
        scan(folder.path(), files.path(), segment);
        file.write_all_at(&[8; 4096], 0).unwrap();
        let (changed, _) = scan(folder.path(), files.path(), u64::MAX);
        assert_eq!((changed.read, changed.read_files), (40 * 4096, 1));
    }

    #[test]
    fn other_names_are_links_and_what_is_gone_is_forgotten() {
        let (folder, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| files.path().join(name);
        std::fs::write(path("a"), [1; 5000]).unwrap();
        std::fs::hard_link(path("a"), path("b")).unwrap();
        std::fs::write(path("c"), [2; 5000]).unwrap();
        std::os::unix::fs::symlink("/", path("d")).unwrap();
        for (read, links) in [(2, 1), (0, 1)] {
            let (report, found) = scan(folder.path(), files.path(), u64::MAX);
            assert_eq!((report.read_files, report.links, report.files, found), (read, links, 2, 2));
        }
        std::fs::rename(path("c"), path("e")).unwrap();
        std::fs::remove_file(path("a")).unwrap();
        let (report, _) = scan(folder.path(), files.path(), u64::MAX);
        assert_eq!((report.forgotten, report.links, report.files), (0, 0, 2));
        std::fs::remove_file(path("b")).unwrap();
        assert_eq!(scan(folder.path(), files.path(), u64::MAX).0.forgotten, 1);
    }
}
