//! What is told: figures of the whole and of the folders that matter.

use crate::estimate::{Estimate, Sampled};
use crate::gain::{self, CODECS, Draw};
use crate::kind::Kind;
use crate::prints::{COUNT, SCHEMES};
use crate::sample::Seen;
use crate::scan::{Read, Scan};
use crate::verdict::{self, Verdict};
use serde::Serialize;
use std::path::PathBuf;

/// Bytes of memory of Larder's index a fingerprint (`docs/engine.md`, "Dedup index": 1.6 to 2.1 from 10^8 on).
const INDEX_MEMORY: u64 = 2;
/// Bytes on disk a fingerprint, of index and block map together, by the same table.
const INDEX_DISK: u64 = 34;
/// Bytes of memory an entry of a dedup table of ZFS takes (the "320 bytes" of its handbooks).
const ZFS_MEMORY: u64 = 320;

/// All that is known.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Paths that were looked at.
    pub paths: Vec<PathBuf>,
    /// Whether everything was read.
    pub exact: bool,
    /// Whether the scan came to its end.
    pub complete: bool,
    /// Bytes read.
    pub read: u64,
    /// Bytes of data there are, without holes.
    pub data: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Number of files and folders that could not be read.
    pub unreadable: u64,
    /// The first of them, with the reason.
    pub failures: Vec<(PathBuf, String)>,
    /// Further names of files that were counted already.
    pub hard_links: u64,
    /// Sockets, devices and the like.
    pub special: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Other file systems that were left out.
    pub mounts: u64,
    /// The whole first, then folders by the walk.
    pub folders: Vec<FolderReport>,
}

/// Figures of a folder with all below it.
#[derive(Debug, Clone, Serialize)]
pub struct FolderReport {
    /// Its path; empty for several paths together.
    pub path: PathBuf,
    /// Steps below the first.
    pub depth: u32,
    /// Files.
    pub files: u64,
    /// Lengths of files, bytes.
    pub size: u64,
    /// Bytes that are no holes.
    pub data: u64,
    /// Most of it is of this kind.
    pub kind: Kind,
    /// Gain by codec, of records of 128 KiB.
    pub codecs: Vec<CodecReport>,
    /// Gain of lz4 with records of 16 KiB.
    pub short_records: Estimate,
    /// Part that is in whole copies of files, which clones or hard links would save.
    pub whole_copies: Estimate,
    /// Gain of deduplication by length of records.
    pub dedup: Vec<DedupReport>,
    /// In words, and what to do.
    pub verdict: Verdict,
}

/// What a codec gains.
#[derive(Debug, Clone, Serialize)]
pub struct CodecReport {
    /// Its name, as the property `compression` has it.
    pub codec: String,
    /// Part of the bytes that it saves.
    pub gain: Estimate,
    /// Processor seconds a GiB.
    pub seconds_per_gib: f64,
}

/// What deduplication gains.
#[derive(Debug, Clone, Serialize)]
pub struct DedupReport {
    /// `recordsize`, bytes.
    pub record: u32,
    /// `chunking`: whether content says where records end.
    pub by_content: bool,
    /// Part of the bytes that it saves; nothing when that is not known. A wide range says little.
    pub gain: Option<Estimate>,
    /// Of that, beyond what whole copies are.
    pub beyond: Option<Estimate>,
    /// Distinct records.
    pub records: u64,
    /// Bytes of memory that Larder's index would take.
    pub index_memory: u64,
    /// Bytes on disk.
    pub index_disk: u64,
    /// Bytes of memory that a dedup table of ZFS would take.
    pub zfs_memory: u64,
}

impl DedupReport {
    /// The gain beyond whole copies, where its range says something.
    pub fn known(&self) -> Option<Estimate> {
        self.beyond.filter(|_| self.gain.is_some_and(|gain| gain.is_known()))
    }
}

/// Samples in order, as they are asked for each folder.
struct Sorted {
    seen: Vec<Seen>,
    threshold: u64,
}

/// Part of everything from which on a folder matters.
const MATTERS: f64 = 0.01;
/// Folders that are told at most.
const MOST_TOLD: usize = 400;

/// Makes the report; folders at most `depth` steps down.
pub fn report(scan: Scan, paths: Vec<PathBuf>, depth: u32, seconds: f64) -> Report {
    let sorted = |(seen, threshold)| Sorted { seen, threshold };
    let samples: Vec<Sorted> = scan.samples.into_iter().map(|sample| sorted(sample.into_sorted())).collect();
    let small = sorted(scan.small_files.into_sorted());
    let large = sorted(scan.large_files.into_sorted());
    let all = &scan.folders.all;
    let total = all.first().map_or(0, |folder| folder.data);
    let matters = |at: &usize| {
        let folder = &all[*at];
        let above = &all[folder.above as usize];
        // One that is all there is in the folder above says nothing new.
        *at == 0 || (folder.depth <= depth && folder.data as f64 >= MATTERS * total as f64 && folder.data < above.data)
    };
    let mut told: Vec<usize> = (0..all.len()).filter(matters).collect();
    if told.len() > MOST_TOLD {
        let mut sizes: Vec<u64> = told.iter().map(|&at| all[at].data).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        told.retain(|&at| at == 0 || all[at].data > sizes[MOST_TOLD]);
    }
    let folders = told
        .into_iter()
        .map(|at| {
            let within = at as u32..all[at].end.max(at as u32 + 1);
            let read = sum(&scan.reads, &within);
            let ask = |sorted: &Sorted, p: f64, bytes: u64| {
                let cell = scan.cell;
                Sampled { seen: &sorted.seen, threshold: sorted.threshold, p, cell, strata: read.strata }.repeated(&within, bytes)
            };
            let mut draws: Vec<&Draw> = scan.draws.iter().filter(|draw| within.contains(&draw.folder)).collect();
            if scan.p < 1.0 {
                draws.sort_by_key(|draw| draw.cluster);
            }
            let mean_of = |value: &dyn Fn(&Draw) -> f32| {
                gain::mean(&draws.iter().map(|draw| (draw.cluster, value(draw))).collect::<Vec<_>>())
            };
            let gain_of = |ratio: &dyn Fn(&Draw) -> f32| {
                let (mean, error) = mean_of(ratio);
                Estimate::around(1.0 - mean, 2.0 * error).clamp(-0.1, 1.0)
            };
            let codecs: Vec<CodecReport> = CODECS
                .iter()
                .enumerate()
                .map(|(number, codec)| CodecReport {
                    codec: codec.to_string(),
                    gain: gain_of(&|draw| draw.ratios[number]),
                    seconds_per_gib: mean_of(&|draw| draw.costs[number]).0 * 1.073_741_824,
                })
                .collect();
            let whole_copies = whole_copies(&small, &large, &within, scan.p, &read, all[at].data, scan.cell);
            let dedup = (0..COUNT)
                .map(|scheme| {
                    let seen = read.bytes[scheme] + read.zeros[scheme];
                    // Where most of it had no such records, they are not known; `read` has what is in no record.
                    let covered = read.read > 0 && seen as f64 >= 0.7 * read.read as f64;
                    let part = if seen > 0 { read.bytes[scheme] as f64 / seen as f64 } else { 0.0 };
                    let gain = covered.then(|| ask(&samples[scheme], scan.p, read.bytes[scheme]).times(part));
                    let beyond = gain.map(|gain| beyond(gain, whole_copies));
                    let scale = all[at].data as f64 / read.read.max(1) as f64;
                    let repeated = gain.map_or(0.0, |gain| gain.value / part.max(1e-9)).min(1.0);
                    let records = (read.records[scheme] as f64 * scale * (1.0 - repeated)) as u64;
                    DedupReport {
                        record: SCHEMES[scheme].record,
                        by_content: SCHEMES[scheme].by_content,
                        gain,
                        beyond,
                        records,
                        index_memory: INDEX_MEMORY * records,
                        index_disk: INDEX_DISK * records,
                        zfs_memory: ZFS_MEMORY * records,
                    }
                })
                .collect();
            let folder = &all[at];
            let mut told = FolderReport {
                path: folder.path.clone(),
                depth: folder.depth,
                files: folder.files,
                size: folder.size,
                data: folder.data,
                kind: Kind::of_most(&folder.kinds),
                codecs,
                short_records: gain_of(&|draw| draw.short),
                whole_copies,
                dedup,
                verdict: Verdict::default(),
            };
            told.verdict = verdict::of(&told, !draws.is_empty());
            told
        })
        .collect();
    Report {
        paths,
        exact: scan.p >= 1.0,
        complete: scan.complete,
        read: scan.read,
        data: total,
        seconds,
        unreadable: scan.left.unreadable,
        failures: scan.left.failures,
        hard_links: scan.left.hard_links,
        special: scan.left.special,
        symlinks: scan.left.symlinks,
        mounts: scan.left.mounts,
        folders,
    }
}

fn sum(reads: &[Read], within: &std::ops::Range<u32>) -> Read {
    let mut sum = Read::default();
    for read in reads.iter().take(within.end as usize).skip(within.start as usize) {
        sum.read += read.read;
        sum.strata.iter_mut().zip(read.strata).for_each(|(sum, one)| *sum += one);
        for scheme in 0..COUNT {
            sum.bytes[scheme] += read.bytes[scheme];
            sum.records[scheme] += read.records[scheme];
            sum.zeros[scheme] += read.zeros[scheme];
        }
    }
    sum
}

/// Part of the data of a folder that is in whole copies.
fn whole_copies(
    small: &Sorted,
    large: &Sorted,
    within: &std::ops::Range<u32>,
    p: f64,
    read: &Read,
    data: u64,
    cell: u64,
) -> Estimate {
    if data == 0 || read.read == 0 {
        return Estimate::around(0.0, 0.0);
    }
    let of = |sorted: &Sorted, p: f64| {
        let here = sorted.seen.iter().filter(|seen| within.contains(&seen.folder));
        let weight = |seen: &Seen| seen.len().max(sorted.threshold) as f64 * f64::from(seen.count);
        let bytes: f64 = here.map(weight).sum();
        let sampled = Sampled { seen: &sorted.seen, threshold: sorted.threshold, p, cell, strata: read.strata };
        (bytes / p, sampled.repeated(within, bytes as u64))
    };
    // Of small files copies are in one cluster, so that the part of them is known from the clusters alone. Large ones
    // are in the table if there are others of their size, all of them.
    let (large_bytes, large_part) = of(large, 1.0);
    let (small_bytes, small_part) = of(small, p);
    let small_share = (small_bytes / data as f64).min(1.0);
    let large_share = (large_bytes / data as f64).min(1.0);
    let (a, b) = (small_part.times(small_share), large_part.times(large_share));
    Estimate { value: a.value + b.value, low: a.low + b.low, high: a.high + b.high }.clamp(0.0, 1.0)
}

fn beyond(gain: Estimate, copies: Estimate) -> Estimate {
    let half = f64::hypot((gain.high - gain.low) / 2.0, (copies.high - copies.low) / 2.0);
    Estimate::around(gain.value - copies.value, half).clamp(0.0, 1.0)
}
