//! A run on one file system, from its paths to its report.

use crate::apply::{self, HOLE, Site};
use crate::error::DedupeError;
use crate::hashfile::{FileRecord, Fixed, HashFile, Reading};
use crate::items::{Cutting, Item};
use crate::plan::{Levels, Planner, Ranked, Run};
use crate::report::Report;
use crate::scan::{Scan, Seen};
use crate::sort::Sorter;
use crate::{Phase, Settings, Watch, kernel};
use larder_device::Workers;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const XFS: u32 = 0x5846_5342;
const BTRFS: u32 = 0x9123_683e;
const FUSE: u32 = 0x6573_5546;
/// Bytes of a run in memory.
const RUN: u64 = 32;

/// A file system that can share blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes of its blocks.
    block: u64,
    is_xfs: bool,
}

/// Which file system a path is on.
///
/// # Errors
/// When it cannot be opened, or cannot share blocks.
pub fn place(path: &Path) -> Result<Place, DedupeError> {
    let failed = |error| DedupeError::Open { path: path.to_owned(), error };
    // Not waiting for a FIFO's writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let kind = rustix::fs::fstatfs(&file).map_err(|error| failed(error.into()))?.f_type as u32;
    match kind {
        XFS | BTRFS => {}
        FUSE => return Err(DedupeError::Fuse { path: path.to_owned() }),
        other => return Err(DedupeError::Unable { path: path.to_owned(), kind: name_of(other) }),
    }
    let identity = kernel::identity(file.as_fd(), kind == XFS);
    let (uuid, can_share) = identity.map_err(|error| failed(error.into()))?;
    if !can_share {
        return Err(DedupeError::NoReflink { path: path.to_owned() });
    }
    let space = rustix::fs::fstatvfs(&file).map_err(|error| failed(error.into()))?;
    Ok(Place { uuid, block: space.f_bsize, is_xfs: kind == XFS })
}

fn name_of(kind: u32) -> String {
    const NAMES: [(u32, &str); 9] = [
        (0xef53, "ext4"),
        (0x0102_1994, "tmpfs"),
        (0x794c_7630, "overlayfs"),
        (0xf2f5_2010, "F2FS"),
        (0x6969, "NFS"),
        (0xff53_4d42, "CIFS"),
        (0x2fc1_2fc1, "ZFS"),
        (0x4d44, "FAT"),
        (0xca45_1a4e, "bcachefs"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == kind);
    known.map_or_else(|| format!("a file system of type {kind:#x}"), |(_, name)| (*name).to_owned())
}

/// Looks for duplicates below `paths`, which are on one file system, and shares them if so set.
///
/// # Errors
/// When it cannot begin, or cannot write its own files. What cannot be done with single files is in the report.
pub fn dedupe(
    paths: &[PathBuf],
    place: Place,
    settings: &Settings,
    workers: &(dyn Workers + 'static),
    watch: &dyn Watch,
) -> Result<Report, DedupeError> {
    let mut roots = Vec::new();
    for path in paths {
        let failed = |error| DedupeError::Open { path: path.clone(), error };
        roots.push(path.canonicalize().map_err(failed)?);
    }
    if settings.cutting.unit() < place.block {
        return Err(DedupeError::SmallBlock { path: roots[0].clone(), block: place.block });
    }
    let path = match &settings.hash_file {
        Some(path) => path.clone(),
        None => settings.cache.join(name_of_hash_file(place, settings)),
    };
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let storage = |error| DedupeError::Storage { path: path.clone(), error };
    std::fs::create_dir_all(&folder).map_err(storage)?;
    let mut hashes = HashFile::open(&path, place.uuid, settings.cutting, (settings.memory / 4).max(1 << 20))?;

    let failed = |error: rustix::io::Errno| DedupeError::Open { path: roots[0].clone(), error: error.into() };
    let system =
        File::open(&roots[0]).map_err(|error| DedupeError::Open { path: roots[0].clone(), error })?;
    // Data without a place yet gets one, and space is counted with it.
    let free = || -> Result<u64, DedupeError> {
        rustix::fs::syncfs(&system).map_err(failed)?;
        let stat = rustix::fs::fstatvfs(&system).map_err(failed)?;
        Ok(stat.f_bfree * stat.f_frsize)
    };
    let mut report = Report { free_before: free()?, ..Report::default() };
    let scan = Scan {
        roots: &roots,
        folder: &folder,
        identity: (place.uuid, place.is_xfs),
        crosses_mounts: settings.crosses_mounts,
        cutting: settings.cutting,
        workers,
        watch,
    };
    let seen = scan.run(&mut hashes, &mut report)?;
    if !watch.is_stopped() {
        let scope = hashes.scope(&scope(&roots, settings))?;
        let shared =
            Sharing { hashes: &hashes, seen: &seen, roots: &roots, folder: &folder, settings, scope };
        shared.run(workers, watch, &mut report)?;
    }
    // Commits that a crash would have undone are kept now.
    hashes.write()?.commit_ids(hashes.ids())?;
    report.is_stopped = watch.is_stopped();
    report.free_after = if settings.applies { free()? } else { report.free_before };
    report.hash_file_bytes = hashes.size();
    report.hash_file = path;
    Ok(report)
}

/// One for each way of cutting: another one reads all files anew.
fn name_of_hash_file(place: Place, settings: &Settings) -> String {
    let uuid: String = place.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let how = if settings.cutting.is_by_content() { "content-" } else { "" };
    format!("{uuid}-{how}{}K.redb", settings.cutting.block() >> 10)
}

/// The scope of the settled files of a run.
fn scope(roots: &[PathBuf], settings: &Settings) -> Vec<u8> {
    let mut words = format!("{}\0{}\0", settings.least, settings.crosses_mounts).into_bytes();
    let mut paths: Vec<&[u8]> = roots.iter().map(|root| root.as_os_str().as_bytes()).collect();
    paths.sort_unstable();
    paths.iter().for_each(|path| {
        words.extend_from_slice(path);
        words.push(0);
    });
    words
}

/// Facts of files for the plan; ranks are places in the first list, the others go by id.
#[derive(Debug, Default)]
struct Table {
    ids: Vec<u32>,
    ranks: Vec<u32>,
    units: Vec<u32>,
    marks: Vec<u8>,
}

const CHANGES: u8 = 1;
const SETTLED: u8 = 2;
/// Rank of what takes no part.
const NONE: u32 = u32::MAX;

impl Table {
    fn rank(&self, id: u32) -> Option<u32> {
        self.ranks.get(id as usize).copied().filter(|rank| *rank != NONE)
    }
    fn id(&self, rank: u32) -> u32 {
        self.ids[rank as usize]
    }
    fn has(&self, rank: u32, mark: u8) -> bool {
        self.marks[self.id(rank) as usize] & mark != 0
    }
    fn units(&self, rank: u32) -> u32 {
        self.units[self.id(rank) as usize]
    }
    fn fresh(&self) -> impl Iterator<Item = u32> {
        (0..self.ids.len() as u32).filter(|rank| !self.has(*rank, SETTLED))
    }
}

/// Files as the plan sees them, with the items of the last two segments that it asked for.
struct Files<'a> {
    table: &'a Table,
    reading: &'a Reading,
    cutting: Cutting,
    watch: &'a dyn Watch,
    held: [(u32, u32, Vec<Item>); 2],
}

impl Files<'_> {
    fn item(&mut self, (rank, unit): (u32, u32), slot: usize) -> Result<Option<Item>, DedupeError> {
        let units = self.cutting.segment_units();
        let segment = unit / units;
        let held = &mut self.held[slot];
        if (held.0, held.1) != (rank, segment) {
            *held = (rank, segment, self.reading.items(self.table.id(rank), segment)?);
        }
        Ok(held.2.get((unit % units) as usize).copied())
    }
}

impl Ranked for Files<'_> {
    fn may_change(&self, rank: u32) -> bool {
        self.table.has(rank, CHANGES)
    }
    fn is_settled(&self, rank: u32) -> bool {
        self.table.has(rank, SETTLED)
    }
    fn units(&self, rank: u32) -> u32 {
        self.table.units(rank)
    }
    fn sorted(&self, items: u64) -> bool {
        self.watch.progress(Phase::Plan, items * self.cutting.unit(), 0);
        !self.watch.is_stopped()
    }
    fn is_same(&mut self, a: (u32, u32), b: (u32, u32)) -> Result<bool, DedupeError> {
        // Cut by content, items are not where units are.
        if self.cutting.is_by_content() {
            return Ok(false);
        }
        let (a, b) = (self.item(a, 0)?, self.item(b, 1)?);
        Ok(a.is_some() && a == b && a.is_some_and(|item| !item.is_hole()))
    }
}

/// Which items the files have that are not settled: what else there is matters only where it is like them. A Bloom
/// filter of one hash, since items are hashes; what it lets through wrongly is sorted in vain.
struct Filter(Option<Vec<u64>>);

impl Filter {
    fn of(count: u64, memory: u64) -> Self {
        let bits =
            (count * 16).next_power_of_two().clamp(1 << 16, (memory * 2).max(1 << 16).next_power_of_two());
        Self(Some(vec![0; (bits / 64) as usize]))
    }
    fn place(words: &[u64], item: Item) -> (usize, u64) {
        let bit = (item.bits() >> 8) % (words.len() as u64 * 64);
        ((bit / 64) as usize, 1 << (bit % 64))
    }
    fn add(&mut self, item: Item) {
        if let Some(words) = &mut self.0 {
            let (word, bit) = Self::place(words, item);
            words[word] |= bit;
        }
    }
    fn has(&self, item: Item) -> bool {
        self.0.as_ref().is_none_or(|words| {
            let (word, bit) = Self::place(words, item);
            words[word] & bit != 0
        })
    }
}

/// The second half of a run: finds what is the same, and shares it.
struct Sharing<'a> {
    hashes: &'a HashFile,
    seen: &'a Seen,
    roots: &'a [PathBuf],
    folder: &'a Path,
    settings: &'a Settings,
    scope: u32,
}

impl Sharing<'_> {
    fn run(
        &self,
        workers: &(dyn Workers + 'static),
        watch: &dyn Watch,
        report: &mut Report,
    ) -> Result<(), DedupeError> {
        let settings = self.settings;
        let reading = self.hashes.read()?;
        let table = self.rank(&reading, report)?;
        let unit = settings.cutting.unit();
        let files = || Files {
            table: &table,
            reading: &reading,
            cutting: settings.cutting,
            watch,
            held: [(NONE, 0, Vec::new()), (NONE, 0, Vec::new())],
        };
        let planner = self.plan(&reading, &table, &files(), watch, report)?;
        let least = u32::try_from(settings.least.div_ceil(unit)).unwrap_or(u32::MAX).max(1);
        let mut runs = planner.runs(least, files())?;
        watch.progress(Phase::Share, 0, runs.found * unit);

        let hole = settings.applies.then(|| hole(self.roots)).flatten();
        let site = Site {
            unit,
            applies: settings.applies,
            hole: hole.as_ref(),
            is_stopped: &|| watch.is_stopped(),
            done: &|bytes| watch.progress(Phase::Share, bytes, 0),
        };
        let mut unsettled = vec![false; table.ids.len()];
        let most = (settings.memory / 8 / RUN).max(1024) as usize;
        let mut dropped = 0;
        while !watch.is_stopped() {
            let mut batch = Vec::new();
            while batch.len() < most
                && let Some(run) = runs.next()?
            {
                batch.push(run);
            }
            watch.progress(Phase::Share, (runs.dropped - dropped) * unit, 0);
            dropped = runs.dropped;
            if batch.is_empty() {
                break;
            }
            side_by_side(&batch, &table, &reading, &site, workers, report, &mut unsettled);
        }
        report.short = dropped * unit;
        drop(runs);
        if settings.applies && !watch.is_stopped() {
            self.settle(&reading, &table, &unsettled)?;
        }
        Ok(())
    }

    /// Ranks: first what cannot change its blocks, then what others share already, then the longest: btrfs frees an
    /// extent when nothing of it is in use, and what is short goes whole.
    fn rank(&self, reading: &Reading, report: &mut Report) -> Result<Table, DedupeError> {
        let unit = self.settings.cutting.unit();
        let ids = self.hashes.ids() as usize;
        let mut table =
            Table { ids: Vec::new(), ranks: vec![NONE; ids], units: vec![0; ids], marks: vec![0; ids] };
        let mut order = Sorter::new(self.folder.to_owned(), self.settings.memory / 4);
        reading.each_record(|record| {
            if !self.seen.has(record.id) || record.id as usize >= ids {
                return Ok(());
            }
            let is_read_only = self.seen.is_read_only(record.id);
            match record.fixed {
                Some(fixed) => report.fixed.entry(fixed).or_default().add(1, &record.path),
                None if is_read_only => report.read_only.add(1, &record.path),
                None => {}
            }
            let holds = record.fixed.is_none_or(Fixed::is_source);
            // A longer one has more units than are numbered here.
            let units = u32::try_from(record.stamp.size.div_ceil(unit)).unwrap_or(0);
            if !holds || units == 0 {
                return Ok(());
            }
            report.holes += u64::from(units) * unit;
            let changes = record.fixed.is_none() && !is_read_only;
            let is_settled = record.settled == self.scope && !self.settings.again;
            let class = match (changes, is_settled, record.is_shared) {
                (false, ..) => 0u8,
                (_, true, _) => 1,
                (_, _, true) => 2,
                _ => 3,
            };
            let shortness = u64::MAX - record.stamp.size;
            let id = record.id as usize;
            table.units[id] = units;
            table.marks[id] = u8::from(changes) * CHANGES + u8::from(is_settled) * SETTLED;
            order.push(u128::from(class) << 96 | u128::from(shortness) << 32 | u128::from(record.id))
        })?;
        for number in order.sorted() {
            let id = number? as u32;
            table.ranks[id as usize] = table.ids.len() as u32;
            table.ids.push(id);
        }
        Ok(table)
    }

    /// Notes the items of all files, but for those that no file has which is not settled.
    fn plan(
        &self,
        reading: &Reading,
        table: &Table,
        files: &Files<'_>,
        watch: &dyn Watch,
        report: &mut Report,
    ) -> Result<Planner, DedupeError> {
        let (unit, segment_units) = (self.settings.cutting.unit(), self.settings.cutting.segment_units());
        let total: u64 = table.units.iter().map(|units| u64::from(*units)).sum();
        // They are noted, and sorted.
        watch.progress(Phase::Plan, 0, 2 * total * unit);
        let mut filter = Filter(None);
        if table.marks.iter().any(|marks| marks & SETTLED != 0) {
            let units = table.fresh().map(|rank| u64::from(table.units(rank))).sum();
            filter = Filter::of(units, self.settings.memory / 4);
            for rank in table.fresh() {
                for segment in 0..table.units(rank).div_ceil(segment_units) {
                    reading.items(table.id(rank), segment)?.into_iter().for_each(|item| filter.add(item));
                }
            }
        }
        let mut planner = Planner::new(self.folder, self.settings.memory / 2);
        reading.each_segment(|id, segment, items| {
            let Some(rank) = table.rank(id).filter(|_| !watch.is_stopped()) else { return Ok(()) };
            let mut at = segment.saturating_mul(segment_units);
            let mut data = 0;
            for item in items {
                // A damaged length would lead beyond the end.
                if item.units() == 0 || at.saturating_add(item.units()) > table.units(rank) {
                    break;
                }
                if !item.is_hole() {
                    report.blocks += 1;
                    data += u64::from(item.units());
                }
                if filter.has(item) {
                    planner.note(item, rank, at, files)?;
                }
                at += item.units();
            }
            watch.progress(Phase::Plan, data * unit, 0);
            report.holes = report.holes.saturating_sub(data * unit);
            Ok(())
        })?;
        Ok(planner)
    }

    /// Notes which files need no other look as long as they do not change.
    fn settle(&self, reading: &Reading, table: &Table, unsettled: &[bool]) -> Result<(), DedupeError> {
        let write = self.hashes.write()?;
        for rank in 0..table.ids.len() as u32 {
            // Where nobody could write today somebody may tomorrow.
            let is_read_only = self.seen.is_read_only(table.id(rank));
            let settled = if unsettled[rank as usize] || is_read_only { 0 } else { self.scope };
            if table.has(rank, SETTLED) && settled == self.scope {
                continue;
            }
            if let Some(record) = reading.record(table.id(rank))?.filter(|record| record.settled != settled) {
                write.put_record(&FileRecord { settled, ..record })?;
            }
        }
        write.commit_ids(self.hashes.ids())
    }
}

/// Does a batch of runs, files of one level side by side.
fn side_by_side(
    batch: &[Run],
    table: &Table,
    reading: &Reading,
    site: &Site<'_>,
    workers: &(dyn Workers + 'static),
    report: &mut Report,
    unsettled: &mut [bool],
) {
    let mut levels = Levels::default();
    batch.iter().for_each(|run| levels.note(run));
    let mut files: Vec<&[Run]> = batch.chunk_by(|a, b| a.rank == b.rank).collect();
    files.sort_by_key(|runs| levels.of(runs[0].rank));
    let record = |rank: u32| reading.record(table.id(rank)).ok().flatten();
    for level in files.chunk_by(|a, b| levels.of(a[0].rank) == levels.of(b[0].rank)) {
        let results = workers.map(level.len(), |at| {
            let runs = level[at];
            record(runs[0].rank).map(|target: FileRecord| apply::file(site, &target, runs, &record))
        });
        for (runs, result) in level.iter().zip(results) {
            let (its, is_settled) = result.unwrap_or_default();
            report.add_shared(&its);
            unsettled[runs[0].rank as usize] |= !is_settled;
        }
    }
}

/// A file without a name that is a hole, on the file system that is worked on.
fn hole(roots: &[PathBuf]) -> Option<OwnedFd> {
    let make = |root: &PathBuf| {
        let folder = if root.is_dir() { root } else { root.parent()? };
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR).ok()?;
        rustix::fs::ftruncate(&file, HOLE).ok()?;
        Some(file)
    };
    roots.iter().find_map(make)
}
