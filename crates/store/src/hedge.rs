//! Hedged reads: a block from wherever it comes first, when it did not come from where it was looked for.
//!
//! All that a block can be had from is asked in three stages, each of which keeps what the ones before have under
//! way: other replicas, one after the other; as few columns of its stripes as rebuild it, of devices that are prompt;
//! everything else. A stage ends when all that it asked for is here, or when that is late. Whatever arrives is tried
//! at once, and the first content that is accepted wins; requests still in flight are left to themselves. So a
//! device that errs, is slow or hangs costs its own part of the work and no more than the time until it is late.
//!
//! Columns may be rotten themselves. When all is here and nothing was accepted, other replicas of columns are taken
//! and up to [`MAX_SUSPECTS`] columns are left out, as many choices as [`MAX_WORK`] allows.

use crate::decode::stored;
use crate::events::{Class, Event};
use crate::latency::LATE_MOST;
use crate::parity;
use crate::segments::Segment;
use crate::store::Store;
use bytes::Bytes;
use larder_device::{Outcome, Pending, wait_any};
use larder_format::segment::Layout;
use larder_format::{DatasetId, Place};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Columns that a rebuild mistrusts at once: more than parity can replace is of no use.
const MAX_SUSPECTS: usize = 3;
/// Bytes of columns that such a search goes through at most, about half a second of one core; each column is left out
/// by itself in any case. What is given up are pairs and triples in wide groups (of 61+3 there are 43,745 choices, 512
/// are tried for 128 KiB): a read fails then that might not, and reconstruction, which knows by their sums which
/// columns are wrong, need not search.
const MAX_WORK: usize = 4 << 30;

/// A block that is looked for everywhere.
pub struct HedgedRead<'a> {
    store: &'a Store,
    segment: &'a Segment,
    place: Place,
    /// The same range in whole steps of parity.
    wide: Place,
    /// By column on the devices.
    asked: Vec<bool>,
    pending_reads: Vec<PendingRead>,
    /// The stripes' other columns as they arrived: data, then parity; different replicas of a column in the order of
    /// their arrival.
    versions: Vec<Vec<Bytes>>,
    /// Content of a replica that was not accepted.
    first: Option<Bytes>,
    /// Replicas, by bit, that gave what was not accepted; their errors are counted.
    wrong: u64,
}

struct PendingRead {
    /// Column on the devices.
    column: usize,
    pending: Pending<Outcome>,
    /// Where in the answer the range begins.
    from: usize,
    /// It was asked for in the present stage.
    fresh: bool,
}

/// Nothing was accepted.
pub struct Lost {
    /// Too few columns are there to rebuild anything.
    pub short: bool,
    /// Content of some replica.
    pub first: Option<Bytes>,
}

impl<'a> HedgedRead<'a> {
    /// For the range of `place`, of which nothing has been asked yet.
    pub fn new(store: &'a Store, segment: &'a Segment, place: Place) -> Self {
        let layout = segment.layout;
        // Parity works on multiples of its step; blocks start on one.
        let stored =
            if layout.m() > 0 { place.stored.next_multiple_of(parity::STEP as u32) } else { place.stored };
        Self {
            store,
            segment,
            place,
            wide: Place { stored, ..place },
            asked: vec![false; segment.slots.len()],
            pending_reads: Vec::new(),
            versions: vec![Vec::new(); layout.k() + layout.m()],
            first: None,
            wrong: 0,
        }
    }

    /// Column `column` was read and did not do.
    pub fn without(mut self, column: usize) -> Self {
        self.asked[column] = true;
        self
    }

    /// Replica `column` was read and is not what was written.
    pub fn with_wrong(mut self, column: usize) -> Self {
        self.asked[column] = true;
        self.count_wrong(column);
        self
    }

    fn count_wrong(&mut self, column: usize) {
        let member = self.store.members.get(self.segment.slots[column].device);
        member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
        self.wrong |= 1 << column;
    }

    /// Column `column` was asked for and is late.
    pub fn with_late(mut self, column: usize, pending: Pending<Outcome>, from: usize) -> Self {
        self.asked[column] = true;
        self.pending_reads.push(PendingRead { column, pending, from, fresh: false });
        self
    }

    /// The first content that `accept` makes something of. When some replica was wrong, that is told with the file
    /// that `owner` knows, and its stripe is reconstructed later.
    pub fn run<T>(
        mut self,
        accept: impl Fn(Bytes) -> Option<T>,
        owner: impl Fn(&T) -> Option<(DatasetId, u64)>,
    ) -> Result<T, Lost> {
        let found = self.find(accept);
        let columns = (0..self.asked.len()).filter(|&column| self.wrong & 1 << column != 0);
        for column in columns {
            let member = self.store.members.get(self.segment.slots[column].device);
            let event = Event::new(Class::Checksum).device(member.guid, member.name());
            let file = found.as_ref().ok().and_then(&owner);
            self.store.event(match file {
                Some((dataset, inode)) => event.file(dataset, inode),
                None => event,
            });
        }
        if found.is_ok() && self.wrong != 0 {
            self.store.suspects.note(self.segment.id, self.place.offset, self.wrong);
        }
        found
    }

    fn find<T>(&mut self, accept: impl Fn(Bytes) -> Option<T>) -> Result<T, Lost> {
        let layout = self.segment.layout;
        let wanted = usize::from(self.place.column);
        for replica in (0..layout.r()).map(|j| layout.replica(wanted, j)) {
            if !self.asked[replica] && self.is_prompt(replica) {
                self.ask(replica);
                if let Some(found) = self.gather(false, &accept) {
                    return Ok(found);
                }
            }
        }
        if layout.m() > 0 {
            self.ask_for_few();
            if let Some(found) = self.gather(false, &accept) {
                return Ok(found);
            }
        }
        self.ask_for_all();
        if let Some(found) = self.gather(true, &accept) {
            return Ok(found);
        }
        self.mistrust(&accept)
    }

    fn is_prompt(&self, column: usize) -> bool {
        self.store.is_prompt(self.segment, column)
    }

    fn ask(&mut self, column: usize) {
        self.asked[column] = true;
        if let Some((pending, from)) = self.store.start_read(self.segment, column, self.wide) {
            self.pending_reads.push(PendingRead { column, pending, from, fresh: true });
        }
    }

    /// Asks for as many of the other columns as rebuild this one, if prompt devices have so many.
    fn ask_for_few(&mut self) {
        let layout = self.segment.layout;
        let others = (0..layout.k()).filter(|&i| i != usize::from(self.place.column));
        let data = others.filter_map(|i| {
            let mut replicas = (0..layout.r()).map(|j| layout.replica(i, j));
            replicas.find(|&column| self.is_prompt(column))
        });
        let data: Vec<usize> = data.collect();
        let lacking = layout.k() - data.len();
        let parities = (0..layout.m()).map(|p| layout.parity(p)).filter(|&column| self.is_prompt(column));
        let parities: Vec<usize> = parities.take(lacking).collect();
        if parities.len() == lacking {
            data.into_iter().chain(parities).for_each(|column| self.ask(column));
        }
    }

    fn ask_for_all(&mut self) {
        let layout = self.segment.layout;
        let wanted = usize::from(self.place.column);
        let replicas = (0..layout.r()).map(|j| layout.replica(wanted, j));
        let columns: Vec<usize> =
            if layout.m() > 0 { (0..self.asked.len()).collect() } else { replicas.collect() };
        for column in columns {
            if !self.asked[column] {
                self.ask(column);
            }
        }
    }

    /// Takes what arrives until `accept` makes something of it, or until all that was asked for in this stage is
    /// here or late; `whole`: until all that was ever asked for is here or overdue.
    fn gather<T>(&mut self, whole: bool, accept: &impl Fn(Bytes) -> Option<T>) -> Option<T> {
        let limit = if whole { self.patience() } else { LATE_MOST };
        while self.pending_reads.iter().any(|read| whole || read.fresh) {
            let pendings: Vec<_> = self.pending_reads.iter().map(|read| &read.pending).collect();
            let Some(done) = wait_any(&pendings, limit) else {
                self.give_up(whole);
                return None;
            };
            let read = self.pending_reads.swap_remove(done);
            if let Some(found) = self.arrived(read, accept) {
                return Some(found);
            }
        }
        None
    }

    /// The longest patience of the members that are waited for.
    fn patience(&self) -> Duration {
        let members = &self.store.members;
        let each = self.pending_reads.iter().map(|read| {
            let member = members.get(self.segment.slots[read.column].device);
            member.patience()
        });
        each.max().unwrap_or_default()
    }

    fn give_up(&mut self, whole: bool) {
        for read in &mut self.pending_reads {
            read.fresh = false;
            read.pending.note_late();
            if whole {
                let member = self.store.members.get(self.segment.slots[read.column].device);
                member.counters.read_errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        if whole {
            self.pending_reads.clear();
        }
    }

    fn arrived<T>(&mut self, read: PendingRead, accept: &impl Fn(Bytes) -> Option<T>) -> Option<T> {
        let PendingRead { column, pending, from, .. } = read;
        let layout = self.segment.layout;
        let member = self.store.members.get(self.segment.slots[column].device);
        let Ok(bytes) = pending.wait() else {
            member.counters.read_errors.fetch_add(1, Ordering::Relaxed);
            // A sector that is written anew may be read again.
            self.store.suspects.note(self.segment.id, self.place.offset, 0);
            return None;
        };
        let bytes = stored(bytes, from, self.wide);
        let wanted = usize::from(self.place.column);
        if (0..layout.r()).any(|j| layout.replica(wanted, j) == column) {
            let bytes = bytes.slice(..self.place.stored as usize);
            let found = accept(bytes.clone());
            if found.is_none() {
                self.count_wrong(column);
                self.first.get_or_insert(bytes);
            }
            return found;
        }
        let data = (0..layout.k()).find(|&i| (0..layout.r()).any(|j| layout.replica(i, j) == column));
        let parity = || (0..layout.m()).find(|&p| layout.parity(p) == column).map(|p| layout.k() + p);
        let versions = &mut self.versions[data.or_else(parity).expect("a column is data or parity")];
        if !versions.contains(&bytes) {
            versions.push(bytes);
        }
        let present: Vec<_> = self.versions.iter().map(|of| of.first().map(Bytes::as_ref)).collect();
        self.rebuild(&present, accept).ok()?
    }

    /// Rebuilds the range from these columns and offers it to `accept`; fails when they are too few.
    fn rebuild<T>(
        &self,
        present: &[Option<&[u8]>],
        accept: &impl Fn(Bytes) -> Option<T>,
    ) -> Result<Option<T>, ()> {
        let layout = self.segment.layout;
        if present.iter().flatten().count() < layout.k() {
            return Err(());
        }
        let mut out = vec![0; self.wide.stored as usize];
        let want = [self.place.column.into()];
        parity::reconstruct(layout.k(), layout.m(), present, &want, &mut [&mut out]).map_err(drop)?;
        out.truncate(self.place.stored as usize);
        Ok(accept(out.into()))
    }

    fn mistrust<T>(&self, accept: &impl Fn(Bytes) -> Option<T>) -> Result<T, Lost> {
        let Place { column, stored, .. } = self.place;
        let len = self.wide.stored as usize;
        let attempt = |bytes: &[u8]| accept(Bytes::copy_from_slice(&bytes[..stored as usize]));
        let found = if self.segment.layout.m() == 0 {
            Err(true)
        } else {
            let anyone: Vec<usize> = (0..self.versions.len()).collect();
            search_column(self.segment.layout, &self.versions, column.into(), len, &anyone, attempt)
        };
        found.map_err(|short| Lost { short, first: self.first.clone() })
    }
}

/// Shows `attempt` every choice of columns in which `suspects` of those `suspicious` are not taken as
/// they first were: another version, or none. The first success is returned.
fn vary<'v, T>(
    versions: &'v [Vec<Bytes>],
    present: &mut Vec<Option<&'v [u8]>>,
    suspicious: &[usize],
    suspects: usize,
    attempt: &mut impl FnMut(&[Option<&'v [u8]>]) -> Option<T>,
) -> Option<T> {
    if suspects == 0 {
        return attempt(present);
    }
    for (at, &column) in suspicious.iter().enumerate() {
        let Some((first, others)) = versions[column].split_first() else { continue };
        for other in others.iter().map(|bytes| Some(bytes.as_ref())).chain([None]) {
            present[column] = other;
            if let Some(found) = vary(versions, present, &suspicious[at + 1..], suspects - 1, attempt) {
                return Some(found);
            }
        }
        present[column] = Some(first);
    }
    None
}

/// Rebuilds data column `column` for `accept` from the others, of which there may be several `versions`,
/// by number as parity counts them. Some of those `suspicious` may be rotten: as long as nothing is accepted, other
/// versions are taken and up to [`MAX_SUSPECTS`] columns are left out, within [`MAX_WORK`]. All are `len` bytes long,
/// a multiple of [`parity::STEP`]. The error is true when too few columns are there.
pub fn search_column<T>(
    layout: Layout,
    versions: &[Vec<Bytes>],
    column: usize,
    len: usize,
    suspicious: &[usize],
    mut accept: impl FnMut(&[u8]) -> Option<T>,
) -> Result<T, bool> {
    if layout.m() == 0 {
        return Err(true);
    }
    let mut present: Vec<Option<&[u8]>> =
        versions.iter().map(|versions| versions.first().map(Bytes::as_ref)).collect();
    let mut out = vec![0; len];
    let mut short = true;
    let mut left = (MAX_WORK / (len * versions.len()).max(1)).max(1 + suspicious.len());
    let mut attempt = |present: &[Option<&[u8]>]| {
        left = left.checked_sub(1)?;
        parity::reconstruct(layout.k(), layout.m(), present, &[column], &mut [&mut out]).ok()?;
        short = false;
        accept(&out)
    };
    let found = (0..=MAX_SUSPECTS)
        .find_map(|suspects| vary(versions, &mut present, suspicious, suspects, &mut attempt));
    found.ok_or(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of some bytes with their parity, of which those in `rotten` are wrong, without column `lost`.
    fn versions(layout: Layout, len: usize, lost: usize, rotten: &[usize]) -> (Vec<Vec<Bytes>>, Vec<u8>) {
        let (k, m) = (layout.k(), layout.m());
        let data: Vec<Vec<u8>> =
            (0..k).map(|i| (0..len).map(|at| (at * 7 + i * 31 + at / 256) as u8).collect()).collect();
        let mut parity = vec![vec![0; len]; m];
        parity::encode(
            &data.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        );
        let right = data[lost].clone();
        let mut all: Vec<Vec<Bytes>> =
            data.into_iter().chain(parity).map(|column| vec![Bytes::from(column)]).collect();
        all[lost].clear();
        for &column in rotten {
            let mut bytes = all[column][0].to_vec();
            bytes[len / 2] ^= 0x55;
            all[column] = vec![Bytes::from(bytes)];
        }
        (all, right)
    }

    #[test]
    fn a_search_tries_what_it_can_in_a_bounded_time_and_leaves_out_each_column_at_least() {
        let count = |layout: Layout, len: usize, suspicious: &[usize]| {
            let (all, _) = versions(layout, len, 0, &[]);
            let mut tries = 0;
            let found: Result<(), bool> = search_column(layout, &all, 0, len, suspicious, |_| {
                tries += 1;
                None
            });
            assert_eq!(found, Err(false));
            tries
        };
        let wide = Layout::new(61, 1, 3).unwrap();
        let all: Vec<usize> = (0..64).collect();
        assert_eq!(count(wide, 1 << 20, &all), 65, "none, each that is there, and hardly more");
        assert!((500..=512).contains(&count(wide, 128 << 10, &all)));
        // With few suspects only those are tried.
        assert_eq!(count(wide, 1 << 20, &[1, 5, 60]), 1 + 3 + 3);
        let small = Layout::new(5, 1, 3).unwrap();
        // With column 0 lost, two more of the seven can be done without.
        assert_eq!(count(small, 4096, &(0..8).collect::<Vec<_>>()), 1 + 7 + 21);
    }

    #[test]
    fn two_rotten_columns_are_found_in_a_group_of_usual_width() {
        let layout = Layout::new(9, 1, 3).unwrap();
        let (all, right) = versions(layout, 128 << 10, 2, &[4, 7]);
        let anyone: Vec<usize> = (0..12).collect();
        let found =
            search_column(layout, &all, 2, 128 << 10, &anyone, |bytes| (bytes == right).then_some(()));
        assert_eq!(found, Ok(()));
    }
}
