//! From runs to shared blocks: what is shared already is passed over, the kernel compares the rest and shares it.
//!
//! The kernel locks both files, compares what they have *then*, and shares only what is the same; nothing that is
//! read here decides about a byte of a file. So whatever changes meanwhile is safe, and a difference is no error.

use crate::hashfile::{FileRecord, Stamp};
use crate::kernel::{self, Answer, Extent};
use crate::plan::{Run, ZEROS};
use crate::report::{Reason, Report};
use crate::walk;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// The most that one call is asked for: it holds both files' locks, and the kernel has limits of its own.
const AT_ONCE: u64 = 16 << 20;
/// When more than that differs, its halves are tried; less is let be.
const TRY_HALVES: u64 = 256 << 10;
/// Halves are multiples of it: of the largest block that a file system has.
const GRAIN: u64 = 64 << 10;
/// Extents that are looked at together; what has more of them in [`AT_ONCE`] is compared whole.
const EXTENTS: usize = 4096;

/// Facts that all files of a run have in common.
pub struct Site<'a> {
    /// Bytes of a unit.
    pub unit: u64,
    /// Whether to do it, or only to tell.
    pub applies: bool,
    /// A file of [`AT_ONCE`] bytes that is a hole, where there could be one; needed to do it alone.
    pub hole: Option<&'a OwnedFd>,
    /// Asked before each call of the kernel.
    pub is_stopped: &'a (dyn Fn() -> bool + Sync),
    /// Told bytes that are done with.
    pub done: &'a (dyn Fn(u64) + Sync),
}

/// Length of the hole that zeros are compared with.
pub const HOLE: u64 = AT_ONCE;

/// Does all runs of one file, in order; `sources` gives the record of a rank. Tells what became of it, and whether it
/// is settled: another run would do no more.
pub fn file(
    site: &Site<'_>,
    target: &FileRecord,
    runs: &[Run],
    sources: &(dyn Fn(u32) -> Option<FileRecord> + Sync),
) -> (Report, bool) {
    let mut work = Work { site, target, report: Report::default(), is_settled: true, source: None };
    let size = target.stamp.size;
    let length = |run: &Run| {
        let at = u64::from(run.at) * site.unit;
        (at, (u64::from(run.units) * site.unit).min(size.saturating_sub(at)))
    };
    let opened = walk::open(&target.path).and_then(|file| {
        let is_same = walk::stamp(&walk::look(file.as_fd())?) == target.stamp;
        if is_same { Ok(file) } else { Err(Errno::STALE) }
    });
    for run in runs {
        let (at, length) = length(run);
        work.report.found += length;
        match &opened {
            _ if (site.is_stopped)() => work.is_settled = false,
            Err(error) => work.note(Reason::of(*error), length),
            Ok(file) => {
                if let Err(error) = work.run(file, run, at, length, sources) {
                    work.note(Reason::of(error), length);
                }
            }
        }
        (site.done)(length);
    }
    work.report.shared_files = u64::from(work.report.shared + work.report.zeros > 0);
    (work.report, work.is_settled)
}

struct Work<'a> {
    site: &'a Site<'a>,
    target: &'a FileRecord,
    report: Report,
    is_settled: bool,
    source: Option<Source>,
}

/// The file that is shared with.
struct Source {
    rank: u32,
    file: OwnedFd,
    stamp: Stamp,
}

impl Work<'_> {
    fn note(&mut self, reason: Reason, bytes: u64) {
        // Refused today is refused tomorrow.
        self.is_settled &= matches!(reason, Reason::Refused | Reason::ReadOnly);
        self.report.unshared.entry(reason).or_default().add(bytes, &self.target.path);
    }

    fn run(
        &mut self,
        file: &OwnedFd,
        run: &Run,
        at: u64,
        length: u64,
        sources: &(dyn Fn(u32) -> Option<FileRecord> + Sync),
    ) -> Result<(), Errno> {
        if run.source == ZEROS {
            return match (self.site.hole, self.site.applies) {
                (Some(hole), _) => self.range(file, at, length, Some(hole), None),
                (None, false) => self.range(file, at, length, None, None),
                (None, true) => Err(Errno::OPNOTSUPP),
            };
        }
        if self.source.as_ref().is_none_or(|source| source.rank != run.source) {
            let record = sources(run.source).ok_or(Errno::STALE)?;
            let file = walk::open(&record.path)?;
            // It may have changed: the kernel looks what is the same. It may not be another.
            if walk::look(file.as_fd())?.stx_ino != record.stamp.ino {
                return Err(Errno::STALE);
            }
            self.source = Some(Source { rank: run.source, file, stamp: record.stamp });
        }
        let Some(source) = self.source.take() else { return Err(Errno::STALE) };
        let from = u64::from(run.from) * self.site.unit;
        let result = self.range(file, at, length, Some(&source.file), Some((from, source.stamp)));
        self.source = Some(source);
        result
    }

    /// Shares a range with that of another file from a place on, or with a hole.
    fn range(
        &mut self,
        file: &OwnedFd,
        at: u64,
        length: u64,
        source: Option<&OwnedFd>,
        from: Option<(u64, Stamp)>,
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < length {
            let part = (length - done).min(AT_ONCE);
            let (at, from) = (at + done, from.map(|(from, stamp)| (from + done, stamp)));
            done += part;
            let target = kernel::extents(file.as_fd(), at, part, EXTENTS)?;
            let origin = match (source, from) {
                (Some(source), Some((from, _))) => kernel::extents(source.as_fd(), from, part, EXTENTS)?,
                _ => Vec::new(),
            };
            let begin = from.map_or(0, |(from, _)| from);
            let apart = if target.len() < EXTENTS && origin.len() < EXTENTS {
                apart(&target, at, &origin, begin, part)
            } else {
                vec![(0, part)]
            };
            let rest = part - apart.iter().map(|(_, length)| length).sum::<u64>();
            // Zeros that take no blocks of their own are reserved.
            *(if from.is_none() { &mut self.report.holes } else { &mut self.report.already }) += rest;
            for (behind, length) in apart {
                if (self.site.is_stopped)() {
                    self.is_settled = false;
                    return Ok(());
                }
                let ranges = Ranges {
                    source,
                    from: from.map_or(0, |(from, _)| from + behind),
                    expected: from.map(|(_, stamp)| stamp),
                    file,
                    at: at + behind,
                };
                self.share(&ranges, 0, length);
            }
        }
        Ok(())
    }

    /// Shares what is from `done` to `length` of two ranges.
    fn share(&mut self, ranges: &Ranges<'_>, mut done: u64, length: u64) {
        while done < length {
            let left = length - done;
            let answer = match ranges.source {
                Some(source) if self.site.applies => kernel::share(
                    source.as_fd(),
                    ranges.from + done,
                    ranges.file.as_fd(),
                    ranges.at + done,
                    left,
                ),
                _ => Ok(Answer::Shared(left)),
            };
            match answer {
                Ok(Answer::Shared(shared)) if shared > 0 => {
                    let shared = shared.min(left);
                    let is_hole = ranges.expected.is_none();
                    *(if is_hole { &mut self.report.zeros } else { &mut self.report.shared }) += shared;
                    done += shared;
                }
                Ok(Answer::Shared(_)) => return self.note(Reason::Refused, left),
                Ok(Answer::Differs) if left > TRY_HALVES => {
                    let half = (left / 2).next_multiple_of(GRAIN);
                    self.share(ranges, done, done + half);
                    done += half;
                }
                Ok(Answer::Differs) => return self.note(Reason::Changed, left),
                Err(Errno::INTR) => {}
                // Since then one of them became shorter, perhaps.
                Err(Errno::INVAL) if self.have_changed(ranges) => return self.note(Reason::Changed, left),
                Err(error) => return self.note(Reason::of(error), left),
            }
        }
    }

    /// Whether one of both files is not as it was when it was read.
    fn have_changed(&self, ranges: &Ranges<'_>) -> bool {
        let is = |file: Option<&OwnedFd>, stamp: Stamp| {
            file.is_none_or(|file| walk::look(file.as_fd()).is_ok_and(|found| walk::stamp(&found) == stamp))
        };
        let is_source = ranges.expected.is_none_or(|stamp| is(ranges.source, stamp));
        !is_source || !is(Some(ranges.file), self.target.stamp)
    }
}

/// Two ranges that are to be the same: one of the source, and one of the file that changes its blocks.
struct Ranges<'a> {
    /// None when a hole is only thought of.
    source: Option<&'a OwnedFd>,
    from: u64,
    /// The source as it was when it was read; none of a hole.
    expected: Option<Stamp>,
    file: &'a OwnedFd,
    at: u64,
}

/// Parts of a range, as offsets in it and lengths, that take blocks of their own: not those that are holes, that are
/// within the inode, or that lie where those of the source lie.
fn apart(target: &[Extent], at: u64, origin: &[Extent], from: u64, length: u64) -> Vec<(u64, u64)> {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    let mut behind = 0;
    for extent in target {
        if extent.is_inline() || extent.is_unwritten() {
            continue;
        }
        let mut begin = extent.logical.max(at) - at;
        let end = extent.end().min(at + length).saturating_sub(at);
        while begin < end {
            while origin.get(behind).is_some_and(|other| other.end() <= from + begin) {
                behind += 1;
            }
            let next = origin.get(behind);
            // Until there it is one thing or the other.
            let (until, is_same) = match next {
                Some(other) if other.logical > from + begin => (other.logical - from, false),
                Some(other) => (other.end() - from, lies_with(extent, at + begin, other, from + begin)),
                None => (end, false),
            };
            let until = until.min(end);
            if !is_same {
                match parts.last_mut() {
                    Some((start, length)) if *start + *length == begin => *length += until - begin,
                    _ => parts.push((begin, until - begin)),
                }
            }
            begin = until;
        }
    }
    parts
}

/// Whether a byte of each lies at the same place.
fn lies_with(a: &Extent, at: u64, b: &Extent, from: u64) -> bool {
    if !a.is_placed() || !b.is_placed() || a.is_encoded() != b.is_encoded() {
        return false;
    }
    let (ahead, behind) = (at - a.logical.min(at), from - b.logical.min(from));
    if a.is_encoded() {
        return a.physical == b.physical && ahead == behind && a.length == b.length;
    }
    a.physical + ahead == b.physical + behind
}
