//! Finding and sharing.
//!
//! Files are in one order: those that cannot be changed first, then by size, largest first. The first block of a
//! content, in that order, is the source of all later ones; a match grows from there, forwards and backwards, as far as
//! hashes agree. Destinations are worked off in the order of files, so that a source has already become what it shares
//! itself. Large ones are sources because an extent of btrfs is freed only when nothing of it is referred to.
//!
//! Memory: the index has 16 bytes a block, and is made for a part of all hashes at a time when it would be larger than
//! half of what is allowed; a bit a block says what an earlier part has seen to.

use crate::hash_file::{Kind, Record};
use crate::kernel::{self, Answer, Extent};
use crate::scan::path;
use crate::walk::{Found, Root, stamp_of};
use crate::{Error, Phase, Report, Run};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Bytes of one request: btrfs takes no more at once.
const REQUEST: u64 = 16 << 20;

/// Blocks of one file that are those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    source: u32,
    from: u64,
    to: u64,
    blocks: u64,
}

/// A file among those that are compared.
struct Member<'a> {
    found: &'a Found,
    record: Record,
}

/// Finds what is equal and, when that is asked for, shares it.
pub fn share(
    run: &Run<'_>,
    roots: &[Root],
    found: &[Found],
    records: &[Option<Record>],
    report: &mut Report,
) -> Result<(), Error> {
    let mut members: Vec<Member<'_>> = Vec::new();
    for (found, record) in found.iter().zip(records) {
        match record {
            Some(record) if record.kind == Kind::NoCow => report.nocow += 1,
            Some(record) => members.push(Member { found, record: *record }),
            None => {}
        }
    }
    members.sort_by_key(|member| {
        let record = member.record;
        (record.kind != Kind::Immutable, std::cmp::Reverse(record.stamp.size), record.stamp.inode)
    });
    let block = run.options.block;
    let mut starts = vec![0_u64];
    for member in &members {
        starts.push(starts[starts.len() - 1] + member.record.stamp.size.div_ceil(block));
    }
    let blocks = starts[members.len()];
    report.blocks = blocks;
    let mut seen = vec![0_u64; blocks.div_ceil(64) as usize];
    let mut failed = vec![false; members.len()];
    let parts = (blocks * 16).div_ceil((run.options.memory as u64 / 2).max(1 << 20)).max(1);
    run.progress.begin(if run.options.apply { Phase::Share } else { Phase::Compare }, blocks * parts * block);
    for part in 0..parts {
        let index = Index::build(run, &members, part, parts)?;
        let mut held: Option<(u32, Vec<u64>)> = None;
        for (number, member) in members.iter().enumerate() {
            if run.is_stopped() {
                return Ok(());
            }
            run.progress.at((part * blocks + starts[number]) * block);
            let hashes = run.file.hashes(member.record.id)?;
            let bits = Bits { seen: &mut seen, start: starts[number] };
            let matches = find(run, &members, number as u32, &hashes, &index, &mut held, bits)?;
            if matches.is_empty() {
                continue;
            }
            failed[number] |= !apply(run, roots, &members, number, &matches, report);
        }
    }
    if run.options.apply && !run.is_stopped() {
        let settled =
            members.iter().zip(&failed).filter(|(member, failed)| !**failed && !member.record.is_settled);
        run.file.settle(settled.map(|(member, _)| (path(roots, member.found), member.record)))?;
    }
    Ok(())
}

/// The first block of each content that there is more than once, of a part of all contents: hash, file, block.
struct Index(Vec<(u64, u32, u32)>);

impl Index {
    fn build(run: &Run<'_>, members: &[Member<'_>], part: u64, parts: u64) -> Result<Self, Error> {
        let mut all = Vec::new();
        for (number, member) in members.iter().enumerate() {
            let hashes = run.file.hashes(member.record.id)?;
            let places =
                hashes.iter().enumerate().filter(|&(_, &hash)| hash != 0 && part_of(hash, parts) == part);
            all.extend(places.map(|(at, &hash)| (hash, number as u32, at as u32)));
            if run.is_stopped() {
                return Ok(Self(Vec::new()));
            }
        }
        all.sort_unstable();
        let mut kept = 0;
        let mut at = 0;
        while at < all.len() {
            let hash = all[at].0;
            let end = at + all[at..].iter().take_while(|entry| entry.0 == hash).count();
            if end - at > 1 {
                all[kept] = all[at];
                kept += 1;
            }
            at = end;
        }
        all.truncate(kept);
        Ok(Self(all))
    }

    fn first(&self, hash: u64) -> Option<(u32, u32)> {
        let at = self.0.binary_search_by_key(&hash, |entry| entry.0).ok()?;
        Some((self.0[at].1, self.0[at].2))
    }
}

fn part_of(hash: u64, parts: u64) -> u64 {
    ((u128::from(hash) * u128::from(parts)) >> 64) as u64
}

/// A bit for each block of a file.
struct Bits<'a> {
    seen: &'a mut [u64],
    start: u64,
}

impl Bits<'_> {
    fn has(&self, block: u64) -> bool {
        let at = self.start + block;
        self.seen[(at / 64) as usize] >> (at % 64) & 1 != 0
    }

    fn set(&mut self, block: u64) {
        let at = self.start + block;
        self.seen[(at / 64) as usize] |= 1 << (at % 64);
    }
}

/// Matches of a file with earlier blocks, in order.
fn find(
    run: &Run<'_>,
    members: &[Member<'_>],
    number: u32,
    hashes: &[u64],
    index: &Index,
    held: &mut Option<(u32, Vec<u64>)>,
    mut bits: Bits<'_>,
) -> Result<Vec<Match>, Error> {
    let is_settled = members[number as usize].record.is_settled;
    let (mut matches, mut at, mut floor) = (Vec::new(), 0, 0);
    while at < hashes.len() {
        let first = Some(hashes[at])
            .filter(|&hash| hash != 0 && !bits.has(at as u64))
            .and_then(|hash| index.first(hash));
        let Some((source, from)) = first.filter(|&first| first != (number, at as u32)) else {
            at += 1;
            continue;
        };
        // Both were there when a run came to its end.
        if is_settled && members[source as usize].record.is_settled {
            bits.set(at as u64);
            at += 1;
            continue;
        }
        let theirs = if source == number {
            hashes
        } else {
            if held.as_ref().is_none_or(|(held, _)| *held != source) {
                *held = Some((source, run.file.hashes(members[source as usize].record.id)?));
            }
            held.as_ref().map_or(&[][..], |(_, hashes)| &hashes[..])
        };
        let from = from as usize;
        // Within one file, source and destination must not overlap.
        let limit = if source == number { at - from } else { usize::MAX };
        let same = |ours: usize, their: usize| {
            ours < hashes.len() && hashes[ours] != 0 && theirs.get(their) == Some(&hashes[ours])
        };
        let forward = (0..).take_while(|&step| step < limit && same(at + step, from + step)).count();
        let room = limit.saturating_sub(forward).min(at - floor).min(from);
        let back = (1..=room)
            .take_while(|&step| !bits.has((at - step) as u64) && same(at - step, from - step))
            .count();
        let blocks = forward + back;
        (at - back..at + forward).for_each(|block| bits.set(block as u64));
        if blocks > 0 {
            matches.push(Match {
                source,
                from: (from - back) as u64,
                to: (at - back) as u64,
                blocks: blocks as u64,
            });
        }
        at += forward.max(1);
        floor = at;
    }
    Ok(matches)
}

/// A file that is open, and its extents.
struct Opened {
    number: u32,
    fd: OwnedFd,
    extents: Vec<Extent>,
}

/// Opens a file unless it is not what it was when it was read.
fn open(roots: &[Root], members: &[Member<'_>], number: u32) -> Result<Opened, Errno> {
    let Member { found, record } = &members[number as usize];
    let fd = roots[found.root].open(&found.below)?;
    if stamp_of(&fd)? != record.stamp {
        return Err(Errno::AGAIN);
    }
    let extents = kernel::extents(&fd)?;
    Ok(Opened { number, fd, extents })
}

/// Shares the matches of a file, or counts what could be; whether all was tried.
fn apply(
    run: &Run<'_>,
    roots: &[Root],
    members: &[Member<'_>],
    number: usize,
    matches: &[Match],
    report: &mut Report,
) -> bool {
    let block = run.options.block;
    let size = members[number].record.stamp.size;
    let bytes = |one: &Match| (one.blocks * block).min(size - one.to * block);
    let ours = match open(roots, members, number as u32) {
        Ok(ours) => ours,
        Err(error) => {
            matches
                .iter()
                .for_each(|one| report.refuse(error, bytes(one), || path(roots, members[number].found)));
            return false;
        }
    };
    let (mut is_whole, mut theirs): (bool, Option<Opened>) = (true, None);
    for one in matches {
        if run.is_stopped() {
            return false;
        }
        let name = || path(roots, members[number].found);
        if theirs.as_ref().is_none_or(|theirs| theirs.number != one.source) {
            theirs = match open(roots, members, one.source) {
                Ok(opened) => Some(opened),
                Err(error) => {
                    report.refuse(error, bytes(one), name);
                    is_whole = false;
                    continue;
                }
            };
        }
        let Some(source) = &theirs else { continue };
        let total = bytes(one);
        let (from, to) = (one.from * block, one.to * block);
        let mut at = 0;
        while at < total {
            let (is_shared, len) = shared(&source.extents, from + at, &ours.extents, to + at, total - at);
            // Pieces between extents that are cut at no block are widened to blocks.
            let len = if at + len < total { len.next_multiple_of(block).min(total - at) } else { len };
            report.equal += len;
            if is_shared {
                report.shared_before += len;
            } else if run.options.apply {
                is_whole &= request(run, source, from + at, &ours, to + at, len, report, name);
            } else {
                report.could_share += len;
            }
            at += len;
        }
    }
    is_whole
}

/// Requests until `len` bytes are shared or refused; whether nothing had changed.
#[expect(clippy::too_many_arguments, reason = "two places, a length, and whom to tell")]
fn request(
    run: &Run<'_>,
    source: &Opened,
    from: u64,
    ours: &Opened,
    to: u64,
    len: u64,
    report: &mut Report,
    name: impl Fn() -> PathBuf + Copy,
) -> bool {
    let mut done = 0;
    while done < len {
        if run.is_stopped() {
            return false;
        }
        let want = (len - done).min(REQUEST);
        report.tried += want;
        match kernel::dedupe(&source.fd, from + done, want, &ours.fd, to + done) {
            Ok(Answer::Shared(0)) => {
                report.refuse(Errno::AGAIN, want, name);
                return false;
            }
            Ok(Answer::Shared(bytes)) => {
                report.shared += bytes.min(want);
                report.tried -= want - bytes.min(want);
                done += bytes.min(want);
            }
            Ok(Answer::Differs) => {
                report.changed += want;
                return false;
            }
            Err(error) => {
                report.refuse(error, len - done, name);
                return !matches!(
                    error,
                    Errno::INVAL | Errno::AGAIN | Errno::INTR | Errno::NOSPC | Errno::IO
                );
            }
        }
    }
    true
}

/// Whether these two places are one on the device, and for how many bytes that holds, `most` of them at most.
fn shared(a: &[Extent], at_a: u64, b: &[Extent], at_b: u64, most: u64) -> (bool, u64) {
    let (place_a, len_a) = place(a, at_a);
    let (place_b, len_b) = place(b, at_b);
    let is_shared = place_a.is_some() && place_a == place_b;
    let mut len = len_a.min(len_b).min(most).max(1);
    // Pieces that are not shared are best asked for in one request.
    while !is_shared && len < most {
        let ((place_a, len_a), (place_b, len_b)) = (place(a, at_a + len), place(b, at_b + len));
        if place_a.is_some() && place_a == place_b {
            break;
        }
        len += len_a.min(len_b).min(most - len).max(1);
    }
    (is_shared, len.min(most))
}

/// The place of a byte on the device, and how many bytes follow it there.
fn place(extents: &[Extent], at: u64) -> (Option<u64>, u64) {
    let next = extents.partition_point(|extent| extent.logical <= at);
    if let Some(extent) = next.checked_sub(1).map(|last| extents[last]) {
        let into = at - extent.logical;
        if into < extent.len {
            let physical = extent.physical.filter(|_| !extent.is_unwritten);
            return (physical.map(|place| place + into), extent.len - into);
        }
    }
    (None, extents.get(next).map_or(u64::MAX, |extent| extent.logical - at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u64, physical: u64, len: u64) -> Extent {
        Extent { logical, physical: Some(physical), len, is_unwritten: false }
    }

    #[test]
    fn what_lies_in_one_place_is_told_from_what_does_not() {
        let a = [extent(0, 1000, 100), extent(100, 5000, 100)];
        let b = [extent(0, 1000, 50), extent(50, 9000, 50), extent(100, 5000, 100)];
        assert_eq!(shared(&a, 0, &b, 0, 200), (true, 50));
        assert_eq!(shared(&a, 50, &b, 50, 150), (false, 50));
        assert_eq!(shared(&a, 100, &b, 100, 100), (true, 100));
        assert_eq!(shared(&a, 10, &b, 60, 30), (false, 30));
        assert_eq!(shared(&[], 0, &[], 0, 10), (false, 10));
    }

    #[test]
    fn every_hash_is_in_one_part() {
        assert_eq!(part_of(1, 3), 0);
        assert_eq!(part_of(u64::MAX / 2, 3), 1);
        assert_eq!(part_of(u64::MAX, 3), 2);
    }
}
