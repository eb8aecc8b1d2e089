//! The scan: which pieces of which files are read, and what comes of them.
//!
//! **Exactly**, everything is read; what does not fit into memory is sampled by fingerprint ([`crate::sample`]).
//!
//! **Sampled**, a part p of the data is read, in clusters that are read whole or not at all:
//! - small files by their *size*: all files of one size, or none;
//! - large files in cells: the cells at one *offset*, of all of them, or none. Where that would be too large a share of
//!   everything, the cells at one offset of files of one size.
//!
//! So copies, versions edited in place, and images that began as one template are read together or not at all, and how
//! much repeats within clusters is known without bias from the clusters that were read. What repeats across them, such
//! as content that was shifted, is seen with probability p² and left to [`crate::unseen`].

use crate::gain::{self, Draw};
use crate::kind::Kind;
use crate::prints::{COUNT, LONGEST, Printer, Prints};
use crate::read::Source;
use crate::sample::{Sample, Seen, mix};
use crate::walk::{Folders, Found, Left, walk};
use crate::{Options, Watch};
use larder_device::{Clock, Workers};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Bytes of a file that are read in one go; records cut by content end there.
const PIECE: u64 = 32 << 20;
/// Bytes that are held at once of a piece.
const STEP: usize = 4 * LONGEST;
/// Small files that make one job.
const JOB_PIECES: usize = 128;
const JOB_BYTES: u64 = 4 << 20;
/// Jobs that are under way together.
const BATCH: usize = 16;
/// Files of fewer cells are small.
const SMALL_CELLS: u64 = 64;
/// Of everything, one cluster has at most a part of this.
const MOST_CLUSTER: u64 = 512;
/// Places of a large file that are looked at to tell whether it is a copy.
const PROBES: u64 = 16;
const PROBE: u64 = 4 << 10;

/// How much of a folder's own files was read.
#[derive(Debug, Clone, Default)]
pub struct Read {
    /// Bytes read.
    pub read: u64,
    /// Bytes of records that are not zeros, by scheme.
    pub bytes: [u64; COUNT],
    /// Number of them.
    pub records: [u64; COUNT],
    /// Bytes of records that are zeros.
    pub zeros: [u64; COUNT],
    /// Bytes of data by stratum, read or not.
    pub strata: [u64; STRATA],
}

/// All that a scan found.
pub struct Scan {
    /// Folders, summed up.
    pub folders: Folders,
    /// Left out.
    pub left: Left,
    /// By number of the folder, without those below it.
    pub reads: Vec<Read>,
    /// Fingerprints by scheme.
    pub samples: Vec<Sample>,
    /// Files read whole, or looked at by one cluster.
    pub small_files: Sample,
    /// Large files of a sampled scan: all of them.
    pub large_files: Sample,
    /// Draws of records.
    pub draws: Vec<Draw>,
    /// Part of the data that was to be read; 1 when all.
    pub p: f64,
    /// Length of the cells, bytes.
    pub cell: u64,
    /// Bytes read in all, probes included.
    pub read: u64,
    /// Whether it came to its end.
    pub complete: bool,
}

/// A piece of a file to be read.
#[derive(Debug, Clone)]
struct Piece {
    path: Arc<PathBuf>,
    folder: u32,
    key: u32,
    range: Range<u64>,
    /// Of the whole file.
    size: u64,
    file: FilePart,
    /// Positions whose records are compressed.
    draws: Vec<u64>,
    /// Nothing but its hash is wanted.
    probe: bool,
    /// Longest records that make sense.
    most: usize,
}

/// Part in the hash of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FilePart {
    number: u64,
    last: bool,
    /// Whether the hash is wanted; in a table for all large files, if so.
    hashed: Option<bool>,
}

/// What came of a piece.
#[derive(Default)]
struct Outcome {
    read: u64,
    prints: Prints,
    draws: Vec<Draw>,
    failed: Option<io::Error>,
    skipped: bool,
}

/// Counts of the first walk that decide about clusters.
struct Sizes {
    by_size: Vec<u64>,
    mates: Vec<u8>,
    /// Large files with more than 2^i cells.
    large: [u64; 64],
}

/// Kinds of clusters: small files that no other has the size of, other small ones, cells. A key's lowest bits tell.
pub const STRATA: usize = 3;

const SIZES: usize = 1 << 18;

impl Sizes {
    fn slot(size: u64) -> usize {
        mix(size) as usize % SIZES
    }

    /// Large files with a cell of this number, or some more.
    fn with_cell(&self, cell: u64) -> u64 {
        self.large[cell.max(1).ilog2() as usize]
    }
}

struct Plan<'a> {
    options: &'a Options,
    sizes: Sizes,
    p: f64,
    cell: u64,
    total: u64,
    stride: u64,
    seed: u64,
}

impl Plan<'_> {
    fn chosen(&self, key: u64) -> bool {
        (mix(key ^ self.seed) >> 11) as f64 / (1u64 << 53) as f64 <= self.p
    }

    /// The key of a small file.
    fn small_key(&self, found: &Found<'_>) -> u64 {
        let key = mix(found.size);
        let parts = self.sizes.by_size[Sizes::slot(found.size)].div_ceil((self.total / MOST_CLUSTER).max(1));
        if parts < 2 {
            return key;
        }
        let name = found.path.as_os_str().as_encoded_bytes();
        mix(key ^ mix(twox_hash::XxHash3_64::oneshot(name) % parts))
    }

    /// The key of a cell of a large file.
    fn cell_key(&self, size: u64, cell: u64) -> u64 {
        let key = mix(!cell);
        if self.sizes.with_cell(cell) * self.cell <= self.total / MOST_CLUSTER {
            return key;
        }
        mix(key ^ size)
    }
}

/// Scans all below `roots`.
pub fn scan(
    roots: &[PathBuf],
    options: &Options,
    clock: &dyn Clock,
    workers: &dyn Workers,
    watch: &dyn Watch,
) -> Scan {
    let (mut folders, mut left) = (Folders::default(), Left::default());
    let mut sizes = Sizes { by_size: vec![0; SIZES], mates: vec![0; SIZES], large: [0; 64] };
    let mut total = 0u64;
    let mut counted = true;
    walk(roots, options.cross, &mut folders, &mut left, &mut |folders, left, found| {
        let data = if found.sparse { data_of(found, left).1 } else { found.size };
        let folder = &mut folders.all[found.folder as usize];
        folder.files += 1;
        folder.size += found.size;
        folder.data += data;
        folder.kinds[Kind::of(found.path) as usize] += data;
        total += data;
        let slot = Sizes::slot(found.size);
        sizes.by_size[slot] += data;
        sizes.mates[slot] = sizes.mates[slot].saturating_add(1);
        watch.counted(folder.files.min(1), data);
        counted = !watch.stopped();
        counted
    });
    let cell = if options.cell > 0 {
        options.cell
    } else if total < 1 << 40 {
        256 << 10
    } else {
        LONGEST as u64
    };
    // How much is read grows with the root of what is there: what is seen of duplicates across clusters goes with
    // the square of the part that is read, so the error stays.
    let beyond = (total as f64 / (options.whole_below as f64 / options.rate)).max(1.0).sqrt();
    let p = match options.exact || total <= options.whole_below {
        true => 1.0,
        false => (options.whole_below as f64 * beyond / total as f64).min(1.0),
    };
    let tables = options.memory / 10 * 6 / (COUNT + 2);
    let mut scan = Scan {
        reads: vec![Read::default(); folders.all.len()],
        samples: (0..COUNT).map(|_| Sample::new(tables)).collect(),
        small_files: Sample::new(tables),
        large_files: Sample::new(tables),
        draws: Vec::new(),
        p,
        cell,
        read: 0,
        complete: counted,
        folders,
        left: Left::default(),
    };
    scan.folders.sum_up();
    if !counted {
        scan.left = left;
        return scan;
    }
    let expected = (total as f64 * p) as u64;
    watch.planned(expected, p < 1.0);
    let stride = (expected / options.draws.max(1)).max(16 << 10);
    let mut plan = Plan { options, sizes, p, cell, total, stride, seed: mix(options.seed) };
    if p < 1.0 {
        count_large(roots, &mut plan);
    }
    let mut again = Left::default();
    // Numbers of folders are looked up, not changed.
    let mut numbers = std::mem::take(&mut scan.folders);
    let mut run = Run { scan: &mut scan, plan: &plan, clock, workers, watch, jobs: Vec::new(), job: Vec::new(), job_bytes: 0, file: 0, passed: 0, hashing: (0, 0, 0) };
    let mut going = true;
    walk(roots, options.cross, &mut numbers, &mut again, &mut |_, left, found| {
        going = run.take(found, left);
        going
    });
    if going {
        run.close_job();
        going = run.flush(&mut again);
    }
    scan.folders = numbers;
    // Folders that came since the count have no figures.
    scan.reads.resize(scan.folders.all.len().max(scan.reads.len()), Read::default());
    scan.left = again;
    scan.complete = going;
    scan
}

/// Counts large files by their cells.
fn count_large(roots: &[PathBuf], plan: &mut Plan<'_>) {
    let (cell, sizes) = (plan.cell, &mut plan.sizes);
    walk(roots, plan.options.cross, &mut Folders::default(), &mut Left::default(), &mut |_, _, found| {
        if found.size >= cell * SMALL_CELLS {
            let cells = (found.size / cell).max(1).ilog2() as usize;
            sizes.large[..=cells].iter_mut().for_each(|count| *count += 1);
        }
        true
    });
}

/// Ranges of data of a sparse file, and their sum.
fn data_of(found: &Found<'_>, left: &mut Left) -> (Vec<Range<u64>>, u64) {
    match Source::open(found.path, true) {
        Ok(source) => {
            let ranges = source.data(found.size);
            let sum = ranges.iter().map(|range| range.end - range.start).sum();
            (ranges, sum)
        }
        Err(error) => {
            left.fail(found.path, &error);
            (Vec::new(), 0)
        }
    }
}

struct Run<'a> {
    scan: &'a mut Scan,
    plan: &'a Plan<'a>,
    clock: &'a dyn Clock,
    workers: &'a dyn Workers,
    watch: &'a dyn Watch,
    jobs: Vec<Vec<Piece>>,
    job: Vec<Piece>,
    job_bytes: u64,
    /// Number of the file.
    file: u64,
    /// Bytes of data that were passed, for draws.
    passed: u64,
    /// The file that is hashed: its number, what there is, and bytes.
    hashing: (u64, u64, u64),
}

impl Run<'_> {
    /// Takes what is to be read of a file; whether to go on.
    fn take(&mut self, found: &Found<'_>, left: &mut Left) -> bool {
        if found.size == 0 {
            return !self.watch.stopped();
        }
        self.file += 1;
        let (plan, sampled) = (self.plan, self.plan.p < 1.0);
        let small = found.size < plan.cell * SMALL_CELLS;
        let path = Arc::new(found.path.to_owned());
        let base = Piece {
            path,
            folder: found.folder,
            key: 0,
            range: 0..found.size,
            size: found.size,
            file: FilePart { number: self.file, last: false, hashed: Some(false) },
            draws: Vec::new(),
            probe: false,
            most: usize::MAX,
        };
        let mates = plan.sizes.mates[Sizes::slot(found.size)] > 1;
        let stratum = if !small { 2 } else { u32::from(mates) };
        if let Some(read) = self.scan.reads.get_mut(found.folder as usize) {
            read.strata[stratum as usize] += found.size;
        }
        let keyed = |key: u64| (key as u32) << 2 | stratum;
        if sampled && small {
            let key = plan.small_key(found);
            if !plan.chosen(key) {
                return !self.watch.stopped();
            }
            self.push_ranges(Piece { key: keyed(key), ..base }, found, left);
        } else if sampled {
            let ranges = if found.sparse { data_of(found, left).0 } else { std::iter::once(0..found.size).collect() };
            let hashed = mates.then_some(true);
            let mut pieces = Vec::new();
            if hashed.is_some() {
                for probe in 0..PROBES {
                    let at = mix(mix(found.size) ^ probe) % (found.size / PROBE) * PROBE;
                    pieces.push(Piece { range: at..(at + PROBE).min(found.size), probe: true, ..base.clone() });
                }
            }
            let mut last = None;
            for range in ranges {
                for cell in range.start / plan.cell..range.end.div_ceil(plan.cell) {
                    let key = plan.cell_key(found.size, cell);
                    if last == Some(cell) || !plan.chosen(key) {
                        continue;
                    }
                    last = Some(cell);
                    let start = cell * plan.cell;
                    let range = start..(start + plan.cell).min(found.size);
                    pieces.push(Piece { range, key: keyed(key), most: plan.cell as usize, ..base.clone() });
                }
            }
            let count = pieces.len();
            for (at, piece) in pieces.into_iter().enumerate() {
                let file = FilePart { last: at + 1 == count, hashed, ..piece.file };
                self.push(Piece { file, ..piece });
            }
        } else {
            self.push_ranges(base, found, left);
        }
        if self.jobs.len() >= BATCH { self.flush(left) } else { !self.watch.stopped() }
    }

    /// The data of a file that is read whole.
    fn push_ranges(&mut self, base: Piece, found: &Found<'_>, left: &mut Left) {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        if found.sparse {
            for range in data_of(found, left).0 {
                let long = LONGEST as u64;
                let (start, end) = (range.start / long * long, range.end.next_multiple_of(long).min(found.size));
                match ranges.last_mut() {
                    Some(last) if last.end >= start => last.end = end,
                    _ => ranges.push(start..end),
                }
            }
        } else {
            ranges.push(0..found.size);
        }
        let pieces: Vec<_> = ranges
            .into_iter()
            .flat_map(|range| {
                let cuts = range.clone().step_by(PIECE as usize);
                cuts.map(move |start| start..(start + PIECE).min(range.end))
            })
            .collect();
        let count = pieces.len();
        for (at, range) in pieces.into_iter().enumerate() {
            let file = FilePart { last: at + 1 == count, ..base.file };
            self.push(Piece { range, file, ..base.clone() });
            if self.jobs.len() >= BATCH && !self.flush(left) {
                return;
            }
        }
    }

    fn push(&mut self, mut piece: Piece) {
        let len = piece.range.end - piece.range.start;
        if !piece.probe {
            let stride = self.plan.stride;
            // Somewhere in each stride, so that nothing regular is met always at one place.
            let (first, last) = (self.passed / stride, (self.passed + len) / stride);
            for number in first..=last {
                let at = number * stride + mix(self.plan.seed ^ number) % stride;
                if (self.passed..self.passed + len).contains(&at) {
                    piece.draws.push(piece.range.start + at - self.passed);
                }
            }
            self.passed += len;
        }
        self.job.push(piece);
        self.job_bytes += len;
        if self.job_bytes >= JOB_BYTES || self.job.len() >= JOB_PIECES {
            self.close_job();
        }
    }

    fn close_job(&mut self) {
        if !self.job.is_empty() {
            self.jobs.push(std::mem::take(&mut self.job));
            self.job_bytes = 0;
        }
    }

    /// Reads what was taken; whether to go on.
    fn flush(&mut self, left: &mut Left) -> bool {
        let jobs = std::mem::take(&mut self.jobs);
        let thresholds: [u64; COUNT] = std::array::from_fn(|at| self.scan.samples[at].threshold());
        let (clock, watch) = (self.clock, self.watch);
        let outcomes: Vec<OnceLock<Vec<Outcome>>> = jobs.iter().map(|_| OnceLock::new()).collect();
        self.workers.for_each(jobs.len(), &|at| {
            outcomes[at].get_or_init(|| read_job(&jobs[at], &thresholds, clock, watch));
        });
        for (pieces, outcomes) in jobs.iter().zip(outcomes) {
            for (piece, outcome) in pieces.iter().zip(outcomes.into_inner().into_iter().flatten()) {
                self.enter(piece, outcome, left);
            }
        }
        !self.watch.stopped()
    }

    fn enter(&mut self, piece: &Piece, outcome: Outcome, left: &mut Left) {
        if outcome.skipped {
            return;
        }
        if let Some(error) = &outcome.failed {
            left.fail(&piece.path, error);
        }
        let scan = &mut *self.scan;
        scan.read += outcome.read;
        let FilePart { number, last, hashed } = piece.file;
        if let Some(large) = hashed {
            if self.hashing.0 != number {
                self.hashing = (number, mix(piece.size), 0);
            }
            self.hashing.1 = mix(self.hashing.1 ^ outcome.prints.digest ^ mix(piece.range.start));
            self.hashing.2 += outcome.read;
            if last && outcome.failed.is_none() {
                let (_, digest, bytes) = self.hashing;
                let (table, bytes) =
                    if large { (&mut scan.large_files, piece.size) } else { (&mut scan.small_files, bytes) };
                table.add(Seen::once(digest, bytes, piece.key, piece.folder));
            }
        }
        if piece.probe {
            return;
        }
        // A folder that came since the count has no figures.
        let Some(read) = scan.reads.get_mut(piece.folder as usize) else { return };
        read.read += outcome.read;
        for scheme in 0..COUNT {
            read.bytes[scheme] += outcome.prints.bytes[scheme];
            read.records[scheme] += outcome.prints.records[scheme];
            read.zeros[scheme] += outcome.prints.zeros[scheme];
            for &(print, len) in &outcome.prints.kept[scheme] {
                scan.samples[scheme].add(Seen::once(print, u64::from(len), piece.key, piece.folder));
            }
        }
        scan.draws.extend(outcome.draws);
    }
}

fn read_job(pieces: &[Piece], thresholds: &[u64; COUNT], clock: &dyn Clock, watch: &dyn Watch) -> Vec<Outcome> {
    let mut open: Option<(Arc<PathBuf>, Source)> = None;
    let mut buffer = Vec::new();
    let mut outcomes = Vec::with_capacity(pieces.len());
    for piece in pieces {
        if watch.stopped() {
            outcomes.push(Outcome { skipped: true, ..Outcome::default() });
            continue;
        }
        let outcome = (|| {
            if !open.as_ref().is_some_and(|(path, _)| Arc::ptr_eq(path, &piece.path)) {
                let in_part = piece.range != (0..piece.size);
                open = Some((piece.path.clone(), Source::open(&piece.path, in_part)?));
            }
            let (_, source) = open.as_ref().expect("opened above");
            read_piece(piece, source, &mut buffer, thresholds, clock)
        })();
        let outcome = outcome.unwrap_or_else(|error| Outcome { failed: Some(error), ..Outcome::default() });
        watch.read(outcome.read);
        outcomes.push(outcome);
    }
    outcomes
}

fn read_piece(
    piece: &Piece,
    source: &Source,
    buffer: &mut Vec<u8>,
    thresholds: &[u64; COUNT],
    clock: &dyn Clock,
) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    let torn = piece.range.start > 0 && piece.most != usize::MAX;
    let mut printer = Printer::new(thresholds, piece.most, torn);
    let (mut at, end) = (piece.range.start, piece.range.end);
    let mut held = 0;
    while at < end {
        let want = (end - at).min(STEP as u64) as usize;
        if buffer.len() < held + want {
            buffer.resize(held + want, 0);
        }
        let got = source.read(&mut buffer[held..held + want], at)?;
        let fresh = &buffer[held..held + got];
        outcome.read += got as u64;
        if piece.probe {
            outcome.prints.digest = twox_hash::XxHash3_64::oneshot(fresh);
            return Ok(outcome);
        }
        printer.fixed(fresh);
        for &draw in piece.draws.iter().filter(|&&draw| (at..at + got as u64).contains(&draw)) {
            let within = draw - at;
            let part = |record: u64| {
                let start = within / record * record;
                &fresh[start as usize..(start + record).min(got as u64) as usize]
            };
            // Of a scan of everything each is drawn by itself.
            let cluster = if piece.key == 0 { (piece.range.start + draw) as u32 } else { piece.key };
            let place = (piece.folder, cluster);
            outcome.draws.push(gain::draw(clock, place, part(gain::RECORD), part(gain::SHORT)));
        }
        at += got as u64;
        // The file may have become shorter since it was listed.
        let ended = got < want || at >= end;
        let whole = piece.most == usize::MAX || at >= piece.size || got < want;
        let done = printer.cut(&buffer[..held + got], ended, whole);
        buffer.copy_within(done..held + got, 0);
        held = held + got - done;
        if ended {
            break;
        }
    }
    outcome.prints = printer.finish();
    Ok(outcome)
}
