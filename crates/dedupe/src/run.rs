//! A run on one file system, from its paths to its report.

use crate::apply::{self, HOLE, Site};
use crate::error::DedupeError;
use crate::hashfile::{FileRecord, Fixed, HashFile, Reading};
use crate::items::{Cutting, Item};
use crate::plan::{Levels, Planner, Ranked, Run};
use crate::report::Report;
use crate::scan::{Scan, Seen};
use crate::{Phase, Settings, Watch, kernel};
use larder_device::Workers;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
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
    is_xfs: bool,
}

/// Which file system a path is on.
///
/// # Errors
/// When it cannot be opened, or cannot share blocks.
pub fn place(path: &Path) -> Result<Place, DedupeError> {
    let failed = |error| DedupeError::Open { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
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
    Ok(Place { uuid, is_xfs: kind == XFS })
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
    let path = match &settings.hash_file {
        Some(path) => path.clone(),
        None => settings.cache.join(format!("{}.redb", hex(&place.uuid))),
    };
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let storage = |error| DedupeError::Storage { path: path.clone(), error };
    std::fs::create_dir_all(&folder).map_err(storage)?;
    let mut hashes = HashFile::open(&path, place.uuid, settings.cutting, (settings.memory / 4).max(1 << 20))?;

    let failed = |error: rustix::io::Errno| DedupeError::Open { path: roots[0].clone(), error: error.into() };
    let system = File::open(&roots[0]).map_err(|error| DedupeError::Open { path: roots[0].clone(), error })?;
    // What is written but has no place yet gets one, and space is counted with it.
    let free = || -> Result<u64, DedupeError> {
        rustix::fs::syncfs(&system).map_err(failed)?;
        let stat = rustix::fs::fstatvfs(&system).map_err(failed)?;
        Ok(stat.f_bfree * stat.f_frsize)
    };
    let mut report = Report { free_before: free()?, ..Report::default() };
    let scan = Scan {
        roots: &roots,
        identity: (place.uuid, place.is_xfs),
        crosses_mounts: settings.crosses_mounts,
        cutting: settings.cutting,
        workers,
        watch,
    };
    let seen = scan.run(&mut hashes, &mut report)?;
    if !watch.is_stopped() {
        share(&hashes, &seen, &roots[0], &folder, settings, workers, watch, &mut report)?;
    }
    // What was noted for less than a crash is kept now.
    hashes.write()?.commit_ids(hashes.ids())?;
    report.is_stopped = watch.is_stopped();
    report.free_after = if settings.applies { free()? } else { report.free_before };
    report.hash_file = hashes.size();
    Ok(report)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the plan must know of each file; ranks are places in these lists.
#[derive(Debug, Default)]
struct Table {
    ids: Vec<u32>,
    units: Vec<u32>,
    marks: Vec<u8>,
}

const CHANGES: u8 = 1;
const SETTLED: u8 = 2;

/// Files as the plan sees them, with the items of the last two segments that it asked for.
struct Files<'a> {
    table: &'a Table,
    reading: &'a Reading,
    cutting: Cutting,
    held: [(u32, u32, Vec<Item>); 2],
}

impl Files<'_> {
    fn item(&mut self, (rank, unit): (u32, u32), slot: usize) -> Result<Option<Item>, DedupeError> {
        let segment = unit / crate::items::SEGMENT as u32;
        let held = &mut self.held[slot];
        if (held.0, held.1) != (rank, segment) {
            *held = (rank, segment, self.reading.items(self.table.ids[rank as usize], segment)?);
        }
        Ok(held.2.get((unit % crate::items::SEGMENT as u32) as usize).copied())
    }
}

impl Ranked for Files<'_> {
    fn may_change(&self, rank: u32) -> bool {
        self.table.marks[rank as usize] & CHANGES != 0
    }
    fn is_settled(&self, rank: u32) -> bool {
        self.table.marks[rank as usize] & SETTLED != 0
    }
    fn units(&self, rank: u32) -> u32 {
        self.table.units[rank as usize]
    }
    fn is_same(&mut self, a: (u32, u32), b: (u32, u32)) -> Result<bool, DedupeError> {
        // Cut by content, items are not where units are.
        if self.cutting.by_content {
            return Ok(false);
        }
        let (a, b) = (self.item(a, 0)?, self.item(b, 1)?);
        Ok(a.is_some() && a == b && a.is_some_and(|item| !item.is_hole()))
    }
}

/// Ranks: first what cannot change its blocks, then what others share already, then the oldest.
fn rank(reading: &Reading, seen: &Seen, settings: &Settings) -> Result<Table, DedupeError> {
    let unit = settings.cutting.unit();
    let mut order = Vec::new();
    reading.each_record(|record| {
        let holds = record.fixed.is_none_or(Fixed::is_source);
        // A longer one has more units than are numbered here.
        let units = u32::try_from(record.stamp.size.div_ceil(unit)).unwrap_or(0);
        if seen.has(record.id) && holds && units > 0 {
            let is_settled = record.is_settled && !settings.again;
            let class = match (record.fixed.is_some(), is_settled, record.is_shared) {
                (true, ..) => 0u8,
                (_, true, _) => 1,
                (_, _, true) => 2,
                _ => 3,
            };
            let marks = u8::from(record.fixed.is_none()) * CHANGES + u8::from(is_settled) * SETTLED;
            order.push((class, record.stamp.mtime, record.id, units, marks));
        }
        Ok(())
    })?;
    order.sort_unstable();
    let mut table = Table::default();
    for (_, _, id, units, marks) in order {
        table.ids.push(id);
        table.units.push(units);
        table.marks.push(marks);
    }
    Ok(table)
}

/// Which items the files have that are not settled: what else there is matters only where it is like them. A Bloom
/// filter of one hash, since items are hashes; what it lets through wrongly is sorted in vain.
struct Filter(Option<Vec<u64>>);

impl Filter {
    fn of(count: u64, memory: u64) -> Self {
        let bits = (count * 16).next_power_of_two().clamp(1 << 16, (memory * 2).max(1 << 16).next_power_of_two());
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
#[expect(clippy::too_many_arguments, reason = "the state of one run")]
fn share(
    hashes: &HashFile,
    seen: &Seen,
    root: &Path,
    folder: &Path,
    settings: &Settings,
    workers: &(dyn Workers + 'static),
    watch: &dyn Watch,
    report: &mut Report,
) -> Result<(), DedupeError> {
    watch.progress(Phase::Plan, 0, 0);
    let reading = hashes.read()?;
    reading.each_record(|record| {
        if let Some(fixed) = record.fixed.filter(|_| seen.has(record.id)) {
            *report.fixed.entry(fixed as u8).or_default() += 1;
        }
        Ok(())
    })?;
    let table = rank(&reading, seen, settings)?;
    let rank_of = {
        let mut ranks = vec![u32::MAX; hashes.ids() as usize];
        for (rank, id) in table.ids.iter().enumerate() {
            ranks[*id as usize] = rank as u32;
        }
        ranks
    };
    let known = |id: u32| rank_of.get(id as usize).copied().filter(|rank| *rank != u32::MAX);
    let files = || Files {
        table: &table,
        reading: &reading,
        cutting: settings.cutting,
        held: [(u32::MAX, 0, Vec::new()), (u32::MAX, 0, Vec::new())],
    };
    let facts = files();
    let mut filter = Filter(None);
    if table.marks.iter().any(|marks| marks & SETTLED != 0) {
        let fresh = |rank: u32| !facts.is_settled(rank);
        let count = table.units.iter().enumerate().filter(|(rank, _)| fresh(*rank as u32));
        filter = Filter::of(count.map(|(_, units)| u64::from(*units)).sum(), settings.memory / 4);
        for rank in (0..table.ids.len() as u32).filter(|rank| fresh(*rank)) {
            for segment in 0..table.units[rank as usize].div_ceil(crate::items::SEGMENT as u32) {
                reading.items(table.ids[rank as usize], segment)?.into_iter().for_each(|item| filter.add(item));
            }
        }
    }
    let mut planner = Planner::new(folder, settings.memory / 2);
    reading.each_segment(|id, segment, items| {
        let Some(rank) = known(id).filter(|_| !watch.is_stopped()) else { return Ok(()) };
        let mut unit = segment.saturating_mul(crate::items::SEGMENT as u32);
        for item in items {
            report.blocks += 1;
            // A damaged length would lead beyond the end.
            if item.units() == 0 || unit.saturating_add(item.units()) > facts.units(rank) {
                break;
            }
            if filter.has(item) {
                planner.note(item, rank, unit, &facts)?;
            }
            unit += item.units();
        }
        Ok(())
    })?;
    drop(facts);
    let unit = settings.cutting.unit();
    let least = u32::try_from(settings.least.div_ceil(unit)).unwrap_or(u32::MAX).max(1);
    let mut runs = planner.runs(least, files())?;

    let hole = hole(root);
    let site = Site {
        unit,
        applies: settings.applies,
        hole: hole.as_ref(),
        is_stopped: &|| watch.is_stopped(),
        done: &|bytes| watch.progress(Phase::Share, bytes, 0),
    };
    let mut unsettled = vec![false; table.ids.len()];
    let most = (settings.memory / 4 / RUN).max(1024) as usize;
    let mut next = runs.next()?;
    while let Some(first) = next.take() {
        let mut batch = vec![first];
        while batch.len() < most {
            match runs.next()? {
                Some(run) => batch.push(run),
                None => break,
            }
        }
        let total = batch.iter().map(|run| u64::from(run.units) * unit).sum();
        watch.progress(Phase::Share, 0, total);
        side_by_side(&batch, &table, &reading, &site, workers, report, &mut unsettled);
        if watch.is_stopped() {
            break;
        }
        next = runs.next()?;
    }
    drop(runs);
    if settings.applies && !watch.is_stopped() {
        settle(hashes, &reading, &table, &unsettled)?;
    }
    Ok(())
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
    let record = |rank: u32| reading.record(table.ids[rank as usize]).ok().flatten();
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

/// Notes which files need no other look as long as they do not change.
fn settle(hashes: &HashFile, reading: &Reading, table: &Table, unsettled: &[bool]) -> Result<(), DedupeError> {
    let write = hashes.write()?;
    for (rank, id) in table.ids.iter().enumerate() {
        let is_settled = !unsettled[rank];
        if is_settled == (table.marks[rank] & SETTLED != 0) {
            continue;
        }
        if let Some(record) = reading.record(*id)? {
            write.put_record(&FileRecord { is_settled, ..record })?;
        }
    }
    write.commit_ids(hashes.ids())
}

/// A file without a name that is a hole, on the file system that is worked on.
fn hole(root: &Path) -> Option<OwnedFd> {
    let folder = if root.is_dir() { root } else { root.parent()? };
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR).ok()?;
    rustix::fs::ftruncate(&file, HOLE).ok()?;
    Some(file)
}
