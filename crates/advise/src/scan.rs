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
use crate::jobs::{FilePart, Outcome, Piece, read_job};
use crate::kind::Kind;
use crate::prints::{COUNT, LONGEST};
use crate::read::Source;
use crate::sample::{Sample, Seen, mix};
use crate::walk::{Folders, Found, Left, Room, walk};
use crate::{Options, Watch};
use larder_device::{Clock, Workers};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Bytes of a file that are read in one go; records cut by content end there.
const PIECE: u64 = 32 << 20;
/// Small files that make one job.
const JOB_PIECES: usize = 128;
const JOB_BYTES: u64 = 4 << 20;
/// Memory for a job that is being read: what it holds of a file, and the codecs' own.
const JOB_MEMORY: usize = 6 << 20;
/// Jobs that are read together, at most.
const MOST_LANES: usize = 256;
/// Jobs that are taken together for each of those, so that few wait for the last one. What comes of one has some
/// hundred KiB.
const JOBS_A_LANE: usize = 8;
/// Files of fewer cells are small.
const SMALL_CELLS: u64 = 64;
/// Of everything, one cluster has at most a part of this.
const MOST_CLUSTER: u64 = 512;
/// Places of a large file that are looked at to tell whether it is a copy.
const PROBES: u64 = 16;
/// Bytes between two draws, at least.
const LEAST_STRIDE: u64 = 16 << 10;
const PROBE: u64 = 4 << 10;

/// Sums over a folder's own files.
#[derive(Debug, Clone, Default)]
pub struct Read {
    /// Bytes read.
    pub read: u64,
    /// Bytes that could not be.
    pub failed: u64,
    /// Bytes of data that the scan has passed, read or not.
    pub passed: u64,
    /// Number of records that are not zeros, by scheme.
    pub records: [u64; COUNT],
    /// By stratum.
    pub strata: [Stratum; STRATA],
}

/// That which was seen of one kind of clusters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stratum {
    /// Bytes of all clusters, read or not.
    pub all: u64,
    /// Bytes of records that are not zeros, by scheme.
    pub bytes: [u64; COUNT],
    /// Bytes of records that are zeros.
    pub zeros: [u64; COUNT],
}

impl Read {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.read += other.read;
        self.failed += other.failed;
        self.passed += other.passed;
        self.records.iter_mut().zip(other.records).for_each(|(sum, one)| *sum += one);
        for (sum, one) in self.strata.iter_mut().zip(&other.strata) {
            sum.all += one.all;
            sum.bytes.iter_mut().zip(one.bytes).for_each(|(sum, one)| *sum += one);
            sum.zeros.iter_mut().zip(one.zeros).for_each(|(sum, one)| *sum += one);
        }
    }
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
    /// Whether all was counted.
    pub counted: bool,
    /// Whether it came to its end.
    pub complete: bool,
}

/// A file that is given to be read.
struct File {
    base: Piece,
    /// Whether it is the last is known when another comes, or none.
    waiting: Option<Piece>,
}

/// Counts of the first walk that decide about clusters.
struct Sizes {
    by_size: Vec<u64>,
    mates: Vec<u8>,
    /// Files by the binary logarithm of their size.
    by_order: [u64; 64],
}

/// Kinds of clusters: small files that no other has the size of, other small ones, cells. A key's lowest bits tell.
pub const STRATA: usize = 3;

const SIZES: usize = 1 << 18;

impl Sizes {
    fn slot(size: u64) -> usize {
        mix(size) as usize % SIZES
    }

    /// Large files with a cell of this number, or some more.
    fn with_cell(&self, cell: u64, number: u64) -> u64 {
        let order = cell.ilog2() + number.max(SMALL_CELLS).ilog2();
        self.by_order[order as usize..].iter().sum()
    }
}

struct Plan {
    sizes: Sizes,
    /// Part of the clusters that is taken.
    p: f64,
    cell: u64,
    total: u64,
    stride: u64,
    seed: u64,
    /// Bytes to be read at most.
    most: u64,
    /// Jobs that are read together.
    lanes: usize,
}

impl Plan {
    /// Where a cluster stands among all, from 0 to 1.
    fn rank(&self, key: u64) -> f64 {
        (mix(key ^ self.seed) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn is_small(&self, size: u64) -> bool {
        size < self.cell * SMALL_CELLS
    }

    fn has_mates(&self, size: u64) -> bool {
        self.sizes.mates[Sizes::slot(size)] > 1
    }

    fn stratum(&self, size: u64) -> usize {
        if self.is_small(size) { usize::from(self.has_mates(size)) } else { 2 }
    }

    /// Cells of a large file that have data, with their keys, until `each` wants no more.
    fn cells(&self, found: &Found<'_>, left: &mut Left, each: &mut dyn FnMut(u64, Range<u64>) -> bool) {
        let mut next = 0;
        data_of(found, left, &mut |range| {
            for cell in (range.start / self.cell).max(next)..range.end.div_ceil(self.cell) {
                let start = cell * self.cell;
                next = cell + 1;
                if !each(self.cell_key(found.size, cell), start..(start + self.cell).min(found.size)) {
                    return false;
                }
            }
            true
        });
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
        if self.sizes.with_cell(self.cell, cell) * self.cell <= self.total / MOST_CLUSTER {
            return key;
        }
        mix(key ^ size)
    }
}

/// Bytes for one table of fingerprints, of all that it works in.
pub fn table_memory(memory: usize) -> usize {
    memory / 2 / (COUNT + 3)
}

/// Scans all below `roots`.
pub fn scan(
    roots: &[PathBuf],
    options: &Options,
    clock: &dyn Clock,
    workers: &dyn Workers,
    watch: &dyn Watch,
) -> Scan {
    // Half for fingerprints, one table being made anew; a quarter for what is being read, an eighth for what came of
    // it, an eighth for the walk.
    let tables = table_memory(options.memory);
    let room =
        Room { folders: options.memory / 16, links: options.memory / 32, entries: options.memory / 32 };
    let (mut folders, mut left) = (Folders::new(room.folders, options.depth), Left::default());
    let mut sizes = Sizes { by_size: vec![0; SIZES], mates: vec![0; SIZES], by_order: [0; 64] };
    let mut total = 0u64;
    let mut counted = true;
    walk(roots, options.cross, room, &mut folders, &mut left, &mut |folders, left, found| {
        let mut data = 0;
        data_of(found, left, &mut |range| {
            data += range.end - range.start;
            true
        });
        let folder = &mut folders.all[found.folder as usize];
        folder.files += 1;
        folder.size += found.size;
        folder.data += data;
        folder.kinds[Kind::of(found.path) as usize] += data;
        total += data;
        let slot = Sizes::slot(found.size);
        sizes.by_size[slot] += data;
        sizes.mates[slot] = sizes.mates[slot].saturating_add(1);
        sizes.by_order[found.size.max(1).ilog2() as usize] += 1;
        watch.counted(1, data);
        counted = !watch.stopped();
        counted
    });
    folders.close();
    folders.sum_up();
    let cell = if options.cell > 0 {
        options.cell
    } else if total < 1 << 40 {
        256 << 10
    } else {
        LONGEST as u64
    };
    // The part that is read grows with the root of what is there: what is seen of duplicates across clusters goes with
    // the square of the part that is read, so the error stays.
    let beyond = (total as f64 / (options.whole_below as f64 / options.rate)).max(1.0).sqrt();
    let is_sampled = !options.exact && total > options.whole_below;
    let most = if is_sampled { (options.whole_below as f64 * beyond) as u64 } else { u64::MAX };
    let lanes = (options.memory / 4 / JOB_MEMORY).clamp(1, MOST_LANES);
    let mut plan = Plan { sizes, p: 1.0, cell, total, stride: 0, seed: mix(options.seed), most, lanes };
    let mut complete = counted;
    if counted && is_sampled {
        complete = weigh(roots, options, room, &mut folders, &mut plan, watch);
    }
    let expected = ((total as f64 * plan.p) as u64).min(most);
    // Of little data each record may be drawn several times, but not none.
    plan.stride = (expected / options.draws.max(1)).max(LEAST_STRIDE.min(expected / 64)).max(1);
    let mut scan = Scan {
        reads: vec![Read::default(); folders.all.len()],
        samples: (0..COUNT).map(|_| Sample::new(tables)).collect(),
        small_files: Sample::new(tables),
        large_files: Sample::new(tables),
        draws: Vec::new(),
        p: plan.p,
        cell,
        read: 0,
        counted,
        complete,
        folders,
        left,
    };
    if !complete {
        return scan;
    }
    watch.planned(expected, is_sampled);
    let mut again = Left::default();
    let mut numbers = std::mem::replace(&mut scan.folders, Folders::new(0, 0));
    let mut run = Run {
        scan: &mut scan,
        plan: &plan,
        clock,
        workers,
        watch,
        jobs: Vec::new(),
        job: Vec::new(),
        job_bytes: 0,
        file: 0,
        passed: 0,
        pushed: 0,
        hashing: (0, 0, 0),
    };
    let mut going = true;
    walk(roots, options.cross, room, &mut numbers, &mut again, &mut |_, left, found| {
        going = run.take(found, left);
        going
    });
    if going {
        run.close_job();
        going = run.flush(&mut again);
    }
    scan.folders = numbers;
    scan.left = again;
    scan.complete = going;
    scan
}

/// Finds how many clusters can be taken: as many, in the order of their ranks, as do not exceed what may be read. Says
/// whether it came to its end.
fn weigh(
    roots: &[PathBuf],
    options: &Options,
    room: Room,
    folders: &mut Folders,
    plan: &mut Plan,
    watch: &dyn Watch,
) -> bool {
    const STEPS: usize = 8192;
    // Ranks up to twice the expected share, in steps.
    let top = (2.0 * plan.most as f64 / plan.total as f64).min(1.0);
    let mut bytes = vec![0u64; STEPS];
    let mut probes = 0;
    let mut going = true;
    let mut weight = |rank: f64, len: u64| {
        let step = (rank / top * STEPS as f64) as usize;
        if let Some(sum) = bytes.get_mut(step) {
            *sum += len;
        }
    };
    walk(roots, options.cross, room, folders, &mut Left::default(), &mut |_, left, found| {
        if plan.is_small(found.size) {
            let mut len = 0;
            data_of(found, left, &mut |range| {
                len += rounded(&range, found.size);
                true
            });
            weight(plan.rank(plan.small_key(found)), len);
        } else {
            if plan.has_mates(found.size) {
                probes += PROBES * PROBE;
            }
            plan.cells(found, left, &mut |key, range| {
                weight(plan.rank(key), range.end - range.start);
                true
            });
        }
        going = !watch.stopped();
        going
    });
    let mut left = plan.most.saturating_sub(probes);
    let mut steps = 0;
    while steps < STEPS && bytes[steps] <= left {
        left -= bytes[steps];
        steps += 1;
    }
    plan.p = top * steps as f64 / STEPS as f64;
    going
}

/// Bytes that are read of a range of data: records begin at multiples of the longest.
fn rounded(range: &Range<u64>, size: u64) -> u64 {
    let long = LONGEST as u64;
    range.end.next_multiple_of(long).min(size) - range.start / long * long
}

/// Ranges of data of a file, until `each` wants no more.
fn data_of(found: &Found<'_>, left: &mut Left, each: &mut dyn FnMut(Range<u64>) -> bool) {
    if !found.sparse {
        if found.size > 0 {
            each(0..found.size);
        }
        return;
    }
    match Source::open(found.path, true) {
        Ok(source) => {
            let mut at = 0;
            while let Some(range) = source.next_data(at, found.size) {
                at = range.end;
                if !each(range) {
                    break;
                }
            }
        }
        Err(error) => left.fail(found.path, &error),
    }
}

struct Run<'a> {
    scan: &'a mut Scan,
    plan: &'a Plan,
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
    /// Bytes that were given to be read.
    pushed: u64,
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
        let (plan, sampled) = (self.plan, self.plan.most < u64::MAX);
        let small = plan.is_small(found.size);
        let stratum = if sampled { plan.stratum(found.size) } else { 0 };
        let keyed = |key: u64| (key as u32) << 2 | stratum as u32;
        let mut file = File {
            base: Piece {
                path: Arc::new(found.path.to_owned()),
                folder: found.folder,
                key: 0,
                range: 0..0,
                data: 0,
                size: found.size,
                file: FilePart { number: self.file, last: false, hashed: Some(false) },
                draws: Vec::new(),
                probe: false,
                most: usize::MAX,
            },
            waiting: None,
        };
        let (mut data, mut all) = (0, 0);
        if sampled && !small {
            file.base.file.hashed = plan.has_mates(found.size).then_some(true);
            if file.base.file.hashed.is_some() {
                for probe in 0..PROBES {
                    let at = mix(mix(found.size) ^ probe) % (found.size / PROBE) * PROBE;
                    let range = at..(at + PROBE).min(found.size);
                    let piece = Piece { range, probe: true, ..file.base.clone() };
                    self.put(&mut file, piece, left);
                }
            }
            plan.cells(found, left, &mut |key, range| {
                all += range.end - range.start;
                if plan.rank(key) < plan.p {
                    let piece =
                        Piece { range, key: keyed(key), most: plan.cell as usize, ..file.base.clone() };
                    // Those that cannot be read are told of once.
                    return self.put(&mut file, piece, &mut Left::default());
                }
                true
            });
            data = all;
        } else {
            let key = if sampled { plan.small_key(found) } else { 0 };
            let is_taken = !sampled || plan.rank(key) < plan.p;
            file.base.key = if sampled { keyed(key) } else { 0 };
            // Ranges are widened to whole records of the longest kind, and joined where they meet.
            let mut done = 0;
            let mut open: Option<Range<u64>> = None;
            let mut held = 0;
            let long = LONGEST as u64;
            let mut going = true;
            data_of(found, left, &mut |range| {
                let len = range.end - range.start;
                data += len;
                let wide =
                    (range.start / long * long).max(done)..range.end.next_multiple_of(long).min(found.size);
                done = wide.end.max(done);
                match &mut open {
                    Some(last) if last.end >= wide.start => {
                        last.end = last.end.max(wide.end);
                        held += len;
                    }
                    _ => {
                        let before = std::mem::replace(&mut held, len);
                        if let Some(last) = open.replace(wide) {
                            all += last.end - last.start;
                            going =
                                !is_taken || self.put_range(&mut file, last, before, &mut Left::default());
                        }
                    }
                }
                going
            });
            if going && let Some(last) = open {
                all += last.end - last.start;
                if is_taken {
                    self.put_range(&mut file, last, held, left);
                }
            }
        }
        self.put_last(&mut file, left);
        if self.watch.stopped() {
            return false;
        }
        if let Some(read) = self.scan.reads.get_mut(found.folder as usize) {
            read.strata[stratum].all += all;
            if sampled {
                read.passed += data;
            }
        }
        true
    }

    /// A range of a file that is read whole, in pieces, with `data` bytes that are no holes.
    fn put_range(&mut self, file: &mut File, range: Range<u64>, data: u64, left: &mut Left) -> bool {
        let mut start = range.start;
        while start < range.end {
            let end = (start + PIECE).min(range.end);
            let part = u128::from(data) * u128::from(end - start) / u128::from(range.end - range.start);
            let piece = Piece { range: start..end, data: part as u64, ..file.base.clone() };
            if !self.put(file, piece, left) {
                return false;
            }
            start = end;
        }
        true
    }

    /// A piece of a file, of which the one before is not the last; whether to go on.
    fn put(&mut self, file: &mut File, piece: Piece, left: &mut Left) -> bool {
        if let Some(before) = file.waiting.replace(piece) {
            self.push(before);
        }
        if self.jobs.len() >= self.plan.lanes * JOBS_A_LANE { self.flush(left) } else { true }
    }

    fn put_last(&mut self, file: &mut File, left: &mut Left) {
        if let Some(mut piece) = file.waiting.take() {
            piece.file.last = true;
            self.push(piece);
        }
        if self.jobs.len() >= self.plan.lanes * JOBS_A_LANE {
            self.flush(left);
        }
    }

    fn push(&mut self, mut piece: Piece) {
        let len = piece.range.end - piece.range.start;
        // Only when files grew since they were weighed.
        if len > self.plan.most - self.pushed {
            return;
        }
        self.pushed += len;
        if !piece.probe {
            let stride = self.plan.stride;
            // Somewhere in each stride, so that nothing regular is met always at one place.
            let (first, last) = (self.passed / stride, (self.passed + len) / stride);
            for number in first..=last {
                let at = number * stride + mix(self.plan.seed ^ number) % stride;
                if (self.passed..self.passed + len).contains(&at) {
                    let at = piece.range.start + at - self.passed;
                    piece.draws.push((at, number % gain::DEAR_EVERY == 0));
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
        let (workers, lanes) = (self.workers, self.plan.lanes);
        let entry = Mutex::new((self, left, 0));
        let taken = AtomicUsize::new(0);
        workers.for_each(lanes.min(jobs.len()), &|_| {
            while let at = taken.fetch_add(1, Ordering::Relaxed)
                && let Some(job) = jobs.get(at)
            {
                outcomes[at].get_or_init(|| read_job(job, &thresholds, clock, watch));
                // One enters what is done, in order, while the others go on reading.
                if let Ok(mut entry) = entry.try_lock() {
                    let (run, left, next) = &mut *entry;
                    while let Some(done) = outcomes.get(*next).and_then(OnceLock::get) {
                        jobs[*next]
                            .iter()
                            .zip(done)
                            .for_each(|(piece, outcome)| run.enter(piece, outcome, left));
                        *next += 1;
                    }
                }
            }
        });
        let (run, left, next) = entry.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (pieces, outcomes) in jobs.iter().zip(&outcomes).skip(next) {
            let done = outcomes.get().into_iter().flatten();
            pieces.iter().zip(done).for_each(|(piece, outcome)| run.enter(piece, outcome, left));
        }
        !watch.stopped()
    }

    fn enter(&mut self, piece: &Piece, outcome: &Outcome, left: &mut Left) {
        if outcome.skipped {
            return;
        }
        let scan = &mut *self.scan;
        if let Some(error) = &outcome.failed {
            left.fail(&piece.path, error);
            if let Some(read) = scan.reads.get_mut(piece.folder as usize) {
                read.failed += piece.range.end - piece.range.start;
            }
        }
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
        let Some(read) = scan.reads.get_mut(piece.folder as usize) else { return };
        read.read += outcome.read;
        if self.plan.most == u64::MAX {
            read.passed += if outcome.failed.is_none() { piece.data } else { 0 };
        }
        let stratum = &mut read.strata[(piece.key & 3) as usize];
        for scheme in 0..COUNT {
            stratum.bytes[scheme] += outcome.prints.bytes[scheme];
            stratum.zeros[scheme] += outcome.prints.zeros[scheme];
            read.records[scheme] += outcome.prints.records[scheme];
            for &(print, len) in &outcome.prints.kept[scheme] {
                scan.samples[scheme].add(Seen::once(print, u64::from(len), piece.key, piece.folder));
            }
        }
        scan.draws.extend(&outcome.draws);
    }
}
