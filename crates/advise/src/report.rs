//! That which is told: figures of the whole and of the folders that matter.

use crate::estimate::{Estimate, Sampled, Weight};
use crate::gain::{self, CODECS, Draw};
use crate::kind::Kind;
use crate::prints::{COUNT, FIXED, SCHEMES, Scheme};
use crate::sample::Seen;
use crate::scan::{Read, STRATA, Scan, Stratum};
use crate::verdict::{self, Verdict, Why};
use crate::walk::Folder;
use serde::{Serialize, Serializer};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes of memory of Larder's index a fingerprint (`docs/engine.md`, "Dedup index": 1.6 to 2.1 from 10^8 on).
const INDEX_MEMORY: u64 = 2;
/// Bytes on disk a fingerprint, of index and block map together, by the same table.
const INDEX_DISK: u64 = 34;
/// Bytes of memory an entry of a dedup table of ZFS takes (the "320 bytes" of its handbooks).
const ZFS_MEMORY: u64 = 320;

/// As text, whatever bytes are in it: JSON has no others.
fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

fn all_lossy<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

fn failures_lossy<S: Serializer>(failures: &[(PathBuf, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(failures.iter().map(|(path, reason)| (path.to_string_lossy(), reason)))
}

/// All that is known.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Paths that were looked at.
    #[serde(serialize_with = "all_lossy")]
    pub paths: Vec<PathBuf>,
    /// Whether everything was to be read.
    pub exact: bool,
    /// Whether the scan came to its end.
    pub complete: bool,
    /// Whether all files were counted; if not, there may be more of everything.
    pub counted: bool,
    /// Bytes read.
    pub read: u64,
    /// Bytes of data there are, without holes.
    pub data: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Number of files and folders that could not be read.
    pub unreadable: u64,
    /// The first of them, with the reason.
    #[serde(serialize_with = "failures_lossy")]
    pub failures: Vec<(PathBuf, String)>,
    /// Further names of files that were counted already.
    pub hard_links: u64,
    /// Sockets, devices and the like.
    pub special: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Other file systems that were left out.
    pub mounts: u64,
    /// Names of files that may have been counted before, for want of memory.
    pub unsure_links: u64,
    /// Whether some folders are not told apart for want of memory.
    pub merged: bool,
    /// The whole first, then folders by the walk.
    pub folders: Vec<FolderReport>,
}

/// Figures of a folder with all below it.
#[derive(Debug, Clone, Serialize)]
pub struct FolderReport {
    /// Its path; empty for several paths together.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Steps below the first.
    pub depth: u32,
    /// Files.
    pub files: u64,
    /// Lengths of files, bytes.
    pub size: u64,
    /// Bytes that are no holes.
    pub data: u64,
    /// Part of those that the scan came to, read or passed by in a sample: less than 1 when it was interrupted.
    pub seen: f64,
    /// Most of it is of this kind.
    pub kind: Kind,
    /// Gain by codec, of records of 128 KiB.
    pub codecs: Vec<CodecReport>,
    /// Part that is in whole copies of files, which clones or hard links would save.
    pub whole_copies: Estimate,
    /// Gain of deduplication by length of records.
    pub dedup: Vec<DedupReport>,
    /// In words, and what to do.
    pub verdict: Verdict,
}

/// That which a codec gains.
#[derive(Debug, Clone, Serialize)]
pub struct CodecReport {
    /// Its name, as the property `compression` has it.
    pub codec: String,
    /// Part of the bytes that it saves.
    pub gain: Estimate,
    /// The same with records of 16 KiB.
    pub gain_short: Estimate,
    /// Processor seconds a GiB.
    pub seconds_per_gib: f64,
}

/// That which deduplication gains.
#[derive(Debug, Clone, Serialize)]
pub struct DedupReport {
    /// `recordsize`, bytes.
    pub record: u32,
    /// `chunking`: whether content says where records end.
    pub by_content: bool,
    /// Part of the bytes that it saves. A wide range says little.
    pub gain: Estimate,
    /// Of that, beyond what whole copies are.
    pub beyond: Estimate,
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
        Some(self.beyond).filter(Estimate::is_known)
    }

    /// Length of records as people name it.
    pub fn name(&self) -> String {
        let size = verdict::size(self.record);
        if self.by_content { format!("{size} by content") } else { size }
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
pub fn report(scan: Scan, paths: Vec<PathBuf>, exact: bool, depth: u32, seconds: f64) -> Report {
    let sorted = |(seen, threshold)| Sorted { seen, threshold };
    let merged = scan.folders.depth() < depth;
    let Scan { folders, left, reads, samples, small_files, large_files, mut draws, .. } = scan;
    if scan.p < 1.0 {
        draws.sort_by_key(|draw| draw.cluster);
    }
    let all = folders.all;
    let total = all.first().map_or(0, |folder| folder.data);
    let figures = Figures {
        samples: samples.into_iter().map(|sample| sorted(sample.into_sorted())).collect(),
        small: sorted(small_files.into_sorted()),
        large: sorted(large_files.into_sorted()),
        reads,
        draws,
        p: scan.p,
        cell: scan.cell,
        why: match () {
            () if !scan.complete => Why::Interrupted,
            () if scan.p < 1.0 => Why::Sampled,
            () => Why::Memory,
        },
    };
    let matters = |at: &usize| {
        let folder = &all[*at];
        let above = &all[folder.above as usize];
        // One that is all there is in the folder above says nothing new.
        *at == 0
            || (folder.depth <= depth
                && folder.data as f64 >= MATTERS * total as f64
                && folder.data < above.data)
    };
    let mut told: Vec<usize> = (0..all.len()).filter(matters).collect();
    if told.len() > MOST_TOLD {
        let mut sizes: Vec<u64> = told.iter().map(|&at| all[at].data).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        told.retain(|&at| at == 0 || all[at].data > sizes[MOST_TOLD]);
    }
    let folders = told
        .into_iter()
        .map(|at| figures.folder(&all[at], at as u32..all[at].end.max(at as u32 + 1)))
        .collect();
    Report {
        paths,
        exact,
        complete: scan.complete,
        counted: scan.counted,
        read: scan.read,
        data: total,
        seconds,
        unreadable: left.unreadable,
        failures: left.failures,
        hard_links: left.hard_links,
        special: left.special,
        symlinks: left.symlinks,
        mounts: left.mounts,
        unsure_links: left.unsure_links,
        merged,
        folders,
    }
}

/// That which a scan found, sorted.
struct Figures {
    samples: Vec<Sorted>,
    small: Sorted,
    large: Sorted,
    reads: Vec<Read>,
    draws: Vec<Draw>,
    p: f64,
    cell: u64,
    why: Why,
}

impl Figures {
    fn folder(&self, folder: &Folder, within: Range<u32>) -> FolderReport {
        let mut read = Read::default();
        let here = self.reads.iter().take(within.end as usize).skip(within.start as usize);
        here.for_each(|one| read.add(one));
        let data = folder.data as f64;
        // That which was not come to, and what cannot be read, may be anything.
        let seen = match folder.data {
            0 => 1.0,
            _ => {
                let failed = read.failed as f64 / (read.read + read.failed).max(1) as f64;
                (read.passed as f64 / data).min(1.0) * if self.p < 1.0 { 1.0 - failed } else { 1.0 }
            }
        };
        let draws: Vec<&Draw> = self.draws.iter().filter(|draw| within.contains(&draw.folder)).collect();
        let mean_of = |value: &dyn Fn(&Draw) -> f32| {
            gain::mean(&draws.iter().map(|draw| (draw.cluster, value(draw))).collect::<Vec<_>>())
        };
        let gain_of = |ratio: &dyn Fn(&Draw) -> f32| {
            if draws.is_empty() && folder.data > 0 {
                return Estimate::UNKNOWN;
            }
            let (mean, error) = mean_of(ratio);
            Estimate::around(1.0 - mean, 2.0 * error).clamp(0.0, 1.0).of_part(seen)
        };
        let codecs: Vec<CodecReport> = CODECS
            .iter()
            .enumerate()
            .map(|(number, codec)| CodecReport {
                codec: codec.to_string(),
                gain: gain_of(&|draw| draw.ratios[number]),
                gain_short: gain_of(&|draw| draw.shorts[number]),
                seconds_per_gib: mean_of(&|draw| draw.costs[number]).0 * 1.073_741_824,
            })
            .collect();
        let whole_copies = self.whole_copies(&within, &read, folder.data).of_part(seen);
        let mut dedup: Vec<DedupReport> =
            (0..COUNT).map(|scheme| self.dedup(scheme, &within, &read, folder.data, seen)).collect();
        bound(&mut dedup[..FIXED]);
        for one in &mut dedup {
            // That which was not read of a file is not read of its copies either.
            one.beyond = one.gain.less(whole_copies);
        }
        let mut told = FolderReport {
            path: folder.path.clone(),
            depth: folder.depth,
            files: folder.files,
            size: folder.size,
            data: folder.data,
            seen,
            kind: Kind::of_most(&folder.kinds),
            codecs,
            whole_copies,
            dedup,
            verdict: Verdict::default(),
        };
        told.verdict = verdict::of(&told, self.why);
        told
    }

    fn dedup(&self, scheme: usize, within: &Range<u32>, read: &Read, data: u64, seen: f64) -> DedupReport {
        let Scheme { record, by_content } = SCHEMES[scheme];
        let sum = |of: &dyn Fn(&Stratum) -> u64| read.strata.iter().map(of).sum::<u64>();
        let (bytes, zeros) = (sum(&|one| one.bytes[scheme]), sum(&|one| one.zeros[scheme]));
        let gain = if data > 0 && read.read == 0 {
            Estimate::UNKNOWN
        } else if self.p < 1.0 {
            // Cells are too short for the longest records.
            let fits = u64::from(record) * if by_content { 4 } else { 1 } <= self.cell;
            let mut weights = read.strata.map(|one| {
                let seen = one.bytes[scheme] + one.zeros[scheme];
                let part = if seen > 0 { one.bytes[scheme] as f64 / seen as f64 } else { 1.0 };
                Weight { all: one.all as f64, part }
            });
            let all: f64 = weights.iter().map(|weight| weight.all).sum();
            if !fits {
                weights[2].all = 0.0;
            }
            let here: f64 = weights.iter().map(|weight| weight.all).sum();
            // Cells at the edges of data have holes in them, which are not.
            let scale = (all / (read.passed as f64).max(1.0)).max(1.0);
            let estimate = self.ask(&self.samples[scheme], within, weights);
            let cover = if all > 0.0 { here / all } else { 1.0 };
            let gain = estimate.times(cover * scale);
            Estimate { high: gain.high + 1.0 - cover, ..gain }.clamp(0.0, 1.0)
        } else {
            let sorted = &self.samples[scheme];
            // Of the zeros some are holes within records.
            let part = (bytes as f64 / read.passed.max(1) as f64).min(1.0);
            let sampled = Sampled {
                seen: &sorted.seen,
                threshold: sorted.threshold,
                p: 1.0,
                cell: self.cell,
                weights: Default::default(),
            };
            sampled.counted(within, bytes).times(part)
        };
        let gain = gain.of_part(seen);
        let scale = data as f64 / read.read.max(1) as f64;
        let part = bytes as f64 / (bytes + zeros).max(1) as f64;
        let repeated = (gain.value / part.max(1e-9)).min(1.0);
        let records = (read.records[scheme] as f64 * scale * (1.0 - repeated)) as u64;
        DedupReport {
            record,
            by_content,
            gain,
            beyond: gain,
            records,
            index_memory: INDEX_MEMORY * records,
            index_disk: INDEX_DISK * records,
            zfs_memory: ZFS_MEMORY * records,
        }
    }

    fn ask(&self, sorted: &Sorted, within: &Range<u32>, weights: [Weight; STRATA]) -> Estimate {
        let Sorted { seen, threshold } = sorted;
        Sampled { seen, threshold: *threshold, p: self.p, cell: self.cell, weights }.estimated(within)
    }

    /// Part of the data of a folder that is in whole copies.
    fn whole_copies(&self, within: &Range<u32>, read: &Read, data: u64) -> Estimate {
        if data == 0 {
            return Estimate::around(0.0, 0.0);
        }
        if read.read == 0 {
            return Estimate::UNKNOWN;
        }
        let share = |bytes: f64| (bytes / read.passed.max(1) as f64).min(1.0);
        let counted = |sorted: &Sorted| {
            let here = sorted.seen.iter().filter(|seen| within.contains(&seen.folder));
            let weight = |seen: &Seen| seen.len().max(sorted.threshold) as f64 * f64::from(seen.count);
            let bytes: f64 = here.map(weight).sum();
            let sampled = Sampled {
                seen: &sorted.seen,
                threshold: sorted.threshold,
                p: 1.0,
                cell: self.cell,
                weights: Default::default(),
            };
            (sampled.counted(within, bytes as u64).times(share(bytes)), share(bytes))
        };
        if self.p >= 1.0 {
            let (copies, share) = counted(&self.small);
            // A file that was not read to its end may be a copy.
            return Estimate { high: copies.high + 1.0 - share, ..copies };
        }
        // Of small files copies are in one cluster, so that the part of them is known from the clusters alone. Large
        // ones are in the table if there are others of their size, all of them.
        let mut weights = read.strata.map(|one| Weight { all: one.all as f64, part: 1.0 });
        weights[2].all = 0.0;
        let small = share(weights[0].all + weights[1].all);
        let (a, b) = (self.ask(&self.small, within, weights).times(small), counted(&self.large).0);
        Estimate { value: a.value + b.value, low: a.low + b.low, high: a.high + b.high }.clamp(0.0, 1.0)
    }
}

/// Records of one length that are equal have halves that are: the gain of shorter ones bounds that of longer ones, but
/// for halves that are zeros, which count as holes.
fn bound(fixed: &mut [DedupReport]) {
    for at in 1..fixed.len() {
        let shorter = fixed[at - 1].gain;
        let gain = &mut fixed[at].gain;
        if !gain.is_known() && gain.high > shorter.high {
            gain.high = shorter.high.max(gain.low);
            gain.value = gain.value.min(gain.high);
        }
    }
}
