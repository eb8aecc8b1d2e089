//! From runs to shared blocks: what is shared already is passed over, the kernel compares the rest and shares it.
//!
//! The kernel locks both files, compares what they have *then*, and shares only what is the same; nothing that is
//! read here decides about a byte of a file. So whatever changes meanwhile is safe, and a difference is no error.

use crate::hashfile::FileRecord;
use crate::items::LEAST_UNIT;
use crate::kernel::{self, Answer, Extent};
use crate::plan::{Run, ZEROS};
use crate::report::{Reason, Report};
use crate::walk;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// The most that one call is asked for: it holds both files' locks, and the kernel has limits of its own.
const AT_ONCE: u64 = 16 << 20;
/// When so much differs, its halves are tried; less is let be.
const TRY_HALVES: u64 = 256 << 10;
/// Extents that are looked at together; what has more of them in [`AT_ONCE`] is compared whole.
const EXTENTS: usize = 4096;

/// Facts that all files of a run have in common.
pub struct Site<'a> {
    /// Bytes of a unit.
    pub unit: u64,
    /// Whether to do it, or only to tell.
    pub applies: bool,
    /// A file of [`AT_ONCE`] bytes that is a hole, where there could be one.
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
    let mut work = Work { site, report: Report::default(), is_settled: true, source: None };
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
    report: Report,
    is_settled: bool,
    source: Option<(u32, OwnedFd)>,
}

impl Work<'_> {
    fn note(&mut self, reason: Reason, bytes: u64) {
        // What the file system refuses today it refuses tomorrow.
        self.is_settled &= matches!(reason, Reason::Refused | Reason::ReadOnly);
        *self.report.unshared.entry(reason).or_default() += bytes;
    }

    fn run(
        &mut self,
        file: &OwnedFd,
        run: &Run,
        at: u64,
        length: u64,
        sources: &(dyn Fn(u32) -> Option<FileRecord> + Sync),
    ) -> Result<(), Errno> {
        let is_zeros = run.source == ZEROS;
        if !is_zeros && self.source.as_ref().is_none_or(|(rank, _)| *rank != run.source) {
            let record = sources(run.source).ok_or(Errno::STALE)?;
            self.source = Some((run.source, walk::open(&record.path)?));
        }
        let source = self.source.take();
        let result = (|| match (is_zeros, self.site.hole, &source) {
            (true, Some(hole), _) => self.range(file, at, length, hole, None),
            (true, None, _) => Err(Errno::OPNOTSUPP),
            (false, _, Some((_, from))) => {
                self.range(file, at, length, from, Some(u64::from(run.from) * self.site.unit))
            }
            (false, _, None) => Err(Errno::STALE),
        })();
        self.source = source;
        result
    }

    /// Shares a range with `from` of another file, or with a hole.
    fn range(
        &mut self,
        file: &OwnedFd,
        at: u64,
        length: u64,
        source: &OwnedFd,
        from: Option<u64>,
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < length {
            let part = (length - done).min(AT_ONCE);
            let (at, from) = (at + done, from.map(|from| from + done));
            done += part;
            let target = kernel::extents(file.as_fd(), at, part, EXTENTS)?;
            let origin = match from {
                Some(from) => kernel::extents(source.as_fd(), from, part, EXTENTS)?,
                None => Vec::new(),
            };
            let apart = if target.len() < EXTENTS && origin.len() < EXTENTS {
                apart(&target, at, &origin, from.unwrap_or(0), part)
            } else {
                vec![(0, part)]
            };
            self.report.already += part - apart.iter().map(|(_, length)| length).sum::<u64>();
            for (behind, length) in apart {
                if (self.site.is_stopped)() {
                    self.is_settled = false;
                    return Ok(());
                }
                let from = from.map_or(0, |from| from + behind);
                self.share(source, from, file, at + behind, length, from_hole(&target, &origin));
            }
        }
        Ok(())
    }

    fn share(&mut self, source: &OwnedFd, from: u64, file: &OwnedFd, at: u64, length: u64, is_hole: bool) {
        let mut done = 0;
        while done < length {
            let answer = if self.site.applies {
                kernel::share(source.as_fd(), from + done, file.as_fd(), at + done, length - done)
            } else {
                Ok(Answer::Shared(length - done))
            };
            match answer {
                Ok(Answer::Shared(shared)) if shared > 0 => {
                    let shared = shared.min(length - done);
                    *(if is_hole { &mut self.report.zeros } else { &mut self.report.shared }) += shared;
                    done += shared;
                }
                Ok(Answer::Shared(_)) => return self.note(Reason::Refused, length - done),
                Ok(Answer::Differs) if length - done > TRY_HALVES => {
                    let half = ((length - done) / 2).next_multiple_of(LEAST_UNIT.max(self.site.unit));
                    self.share(source, from + done, file, at + done, half, is_hole);
                    done += half;
                }
                Ok(Answer::Differs) => return self.note(Reason::Changed, length - done),
                Err(Errno::INTR) => {}
                // Since then one of them became shorter.
                Err(Errno::INVAL) if length % LEAST_UNIT != 0 => return self.note(Reason::Changed, length - done),
                Err(error) => return self.note(Reason::of(error), length - done),
            }
        }
    }
}

/// Whether blocks are to become a hole.
fn from_hole(target: &[Extent], origin: &[Extent]) -> bool {
    origin.is_empty() && !target.is_empty()
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
