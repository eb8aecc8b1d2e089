//! From what a scan found to the figures that are told.

use crate::estimate::{Estimate, Sampled, Weight};
use crate::figures::{CodecReport, DedupReport, FolderReport, Report, Verdict};
use crate::gain::{self, CODECS, Draw, Tried};
use crate::kind::Kind;
use crate::prints::{COUNT, SCHEMES, Scheme};
use crate::sample::Seen;
use crate::scan::{Read, STRATA, Scan, Stratum};
use crate::verdict::{self, Why};
use crate::walk::Folder;
use std::ops::Range;
use std::path::PathBuf;

/// Bytes of memory of Larder's index a fingerprint (`docs/engine.md`, "Dedup index": 1.6 to 2.1 from 10^8 on).
const INDEX_MEMORY: u64 = 2;
/// Bytes on disk a fingerprint, of index and block map together, by the same table.
const INDEX_DISK: u64 = 34;
/// Bytes of memory an entry of a dedup table of ZFS takes (the "320 bytes" of its handbooks).
const ZFS_MEMORY: u64 = 320;

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
        let mean_of =
            |codec: usize, figure: &dyn Fn(&Tried) -> f32| gain::mean_of(&draws, &self.draws, codec, figure);
        let gain_of = |codec: usize, length: usize| match mean_of(codec, &|tried| tried.ratios[length]) {
            Some((mean, error)) => Estimate::around(1.0 - mean, 2.0 * error).clamp(0.0, 1.0).of_part(seen),
            None if folder.data == 0 => Estimate::around(0.0, 0.0),
            None => Estimate::UNKNOWN,
        };
        let codecs: Vec<CodecReport> = CODECS
            .iter()
            .enumerate()
            .map(|(number, codec)| CodecReport {
                codec: codec.to_string(),
                gain: gain_of(number, 0),
                gain_16k: gain_of(number, 1),
                gain_4k: gain_of(number, 2),
                seconds_per_gib: mean_of(number, &|tried| tried.cost)
                    .map_or(0.0, |(cost, _)| cost * 1.073_741_824),
            })
            .collect();
        let whole_copies = self.whole_copies(&within, &read, folder.data).of_part(seen);
        let mut dedup: Vec<DedupReport> =
            (0..COUNT).map(|scheme| self.dedup(scheme, &within, &read, folder.data, seen)).collect();
        bound(&mut dedup);
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
            let weight = |seen: &Seen| seen.bytes().max(sorted.threshold) as f64 * f64::from(seen.count);
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

/// Bounds the gain of long records, where it is not known, by that of shorter ones. Fixed records that are equal have
/// halves that are, but for halves that are zeros, which count as holes. Of equal records that are cut by content at
/// least half of the bytes are, on the whole, in equal ones an eighth as long: cuts fall together again soon after
/// their beginning.
fn bound(dedup: &mut [DedupReport]) {
    for at in 1..dedup.len() {
        let of_shorter = match (dedup[at - 1].by_content, dedup[at].by_content) {
            (false, false) => 1.0,
            (true, true) => 2.0,
            _ => continue,
        };
        let most = (of_shorter * dedup[at - 1].gain.high).min(1.0);
        let gain = &mut dedup[at].gain;
        if !gain.is_known() && gain.high > most {
            gain.high = most.max(gain.low);
            gain.value = gain.value.min(gain.high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prints::FIXED;

    #[test]
    fn what_short_records_cannot_share_long_ones_do_not() {
        let mut dedup: Vec<DedupReport> = SCHEMES
            .iter()
            .map(|&Scheme { record, by_content }| DedupReport {
                record,
                by_content,
                gain: Estimate::UNKNOWN,
                beyond: Estimate::UNKNOWN,
                records: 0,
                index_memory: 0,
                index_disk: 0,
                zfs_memory: 0,
            })
            .collect();
        bound(&mut dedup);
        assert!(dedup.iter().all(|one| one.gain == Estimate::UNKNOWN));
        dedup[0].gain = Estimate { value: 0.02, low: 0.01, high: 0.03 };
        dedup[FIXED].gain = Estimate { value: 0.01, low: 0.0, high: 0.02 };
        bound(&mut dedup);
        let highs: Vec<f64> = dedup.iter().map(|one| one.gain.high).collect();
        assert_eq!(highs[..FIXED], [0.03; FIXED]);
        assert_eq!(highs[FIXED..], [0.02, 0.04]);
    }
}
