//! Inodes in memory.
//!
//! An [`Inode`] is in the cache while anybody uses it, while it is open, and while it holds something
//! that the tree does not. Its state has two images of the stored inode: `tree`, as the dataset's tree
//! has it, and `live`, as callers see it. Names and attributes change both at once; writes change `live`
//! and the dirty data only, and the flush that stores the data brings `tree` up to `live`. So a commit
//! that misses dirty data shows the file as it was before.
//!
//! # Locks
//! Of several inodes the one with the lowest id is locked first: locks of one kind do not check that themselves. A
//! thread that waits for the pool's operation (`Pool::enter`) holds nothing of this crate.
//!
//! Names are never changed with a turn held. Device reads and `Pool::store` go on with at most an operation and turns
//! held.

use crate::cut::Cuts;
use crate::error::{FsError, Result};
use crate::posix::Handle;
use crate::ranges::{Pieces, RangeSet, Spans};
use larder_format::items;
use larder_format::items::Extent;
use larder_format::{CommitId, InodeId};
use larder_pool::record_claim;
use larder_sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A cached inode.
#[derive(Debug)]
pub(crate) struct Inode {
    pub id: InodeId,
    /// Held by whoever moves data from memory to the tree or cuts it there.
    pub turn: Mutex<()>,
    pub state: Mutex<State>,
}

/// State of an inode.
#[derive(Debug)]
pub(crate) struct State {
    /// As the tree has it.
    pub tree: items::Inode,
    /// As callers see it.
    pub live: items::Inode,
    /// Handles.
    pub open: u32,
    /// It was removed from the tree.
    pub gone: bool,
    /// It was made without a name, and may still get its first.
    pub nameless: bool,
    pub data: DirtyData,
    /// Writes made it longer, and the log does not say so; the bytes that did may be zeros by now.
    pub grown: bool,
    /// The newest commit that its data was stored for; 0 when that was before it was cached.
    pub stored_in: CommitId,
    /// Data that could not be stored and is lost.
    pub failures: Failures,
    /// Bytes of space that the pool was told its dirty data needs.
    pub needed: u64,
    /// It is in the volume's set of dirty inodes.
    pub queued: bool,
    /// It was used since the cache last looked for something to drop.
    pub used: bool,
    /// Bytes claimed from the dataset's quotas for `data`.
    pub claimed: u64,
    /// Its records lie back to back while they are cut anew; changes under the turn.
    pub recut: Option<Progress>,
    /// Places that `data` was accepted for, and so is stored at.
    pub copies: u8,
}

/// Progress of cutting a file anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub cuts: Cuts,
    /// Extents that begin before this are as they are to be: the whole of a block within one record, if those lie at
    /// multiples of a size, and none longer than a record else.
    pub done: u64,
    /// But for one that cannot be read, and what lies beside it: so the file stays between its cuts.
    pub is_odd: bool,
}

impl Progress {
    /// An extent was put into the file.
    pub fn note(&mut self, offset: u64, extent: &Extent) {
        match self.cuts {
            // Writers beside what cannot be read would lead the pass on for ever.
            Cuts::Even(_) if self.is_odd => {}
            Cuts::Even(size) => {
                let fits = extent.block_offset == 0 && extent.len.max(extent.logical) <= size;
                if !(fits && offset.is_multiple_of(size.into())) {
                    self.done = self.done.min(offset / u64::from(size) * u64::from(size));
                }
            }
            Cuts::ByContent(cutter) if extent.len as usize > cutter.max() => {
                self.done = self.done.min(offset);
            }
            Cuts::ByContent(_) => {}
        }
    }
}

/// The file that is being cut anew.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnderWay {
    pub id: InodeId,
    /// Where the record lies that the last step made last, and the next one begins with.
    pub again: Option<u64>,
    /// Extents before this have been told of.
    pub told: u64,
}

/// Data that was written and not stored.
#[derive(Debug, Default)]
pub(crate) struct DirtyData {
    /// By number of the record.
    pub records: BTreeMap<u64, Arc<Pieces>>,
    /// Being stored by whoever has the turn; `records` lie over them.
    pub flushing: BTreeMap<u64, Arc<Pieces>>,
    /// Bytes of the file that are in `records` and not in the log.
    pub unlogged: RangeSet,
    /// Writes in `records` that reach over the end of a record, or may since the file is cut by content, each with
    /// those that overlap it: they are stored together. What ends where one of them does has not been written to by
    /// another since.
    pub spans: Spans,
    /// Bytes held.
    pub bytes: u64,
    /// Bytes that its records take when they are stored, if nothing compresses.
    pub room: u64,
    /// Stretches of neighbouring records that were written to.
    pub stretches: usize,
}

/// Failures to store what was written to a file, which each descriptor is told of once: those that were open, and those
/// opened before anybody was told (as `errseq_t` of Linux).
#[derive(Debug, Default)]
pub(crate) struct Failures {
    last: Option<FsError>,
    /// Number of failures so far.
    count: u64,
    /// Nobody was told of the last.
    pub is_news: bool,
    /// The count up to which each open handle has been told, or need not be; 0 for those that are not here.
    told: BTreeMap<Handle, u64>,
}

impl Failures {
    pub fn note(&mut self, error: FsError) {
        self.last = Some(error);
        self.count += 1;
        self.is_news = true;
    }

    pub fn opened(&mut self, handle: Handle) {
        if self.count > 0 && !self.is_news {
            self.told.insert(handle, self.count);
        }
    }

    pub fn closed(&mut self, handle: Handle) {
        self.told.remove(&handle);
    }

    /// Returns failures that a handle has not been told of: the last one stands for all.
    pub fn tell(&mut self, handle: Handle) -> Result<()> {
        let Some(last) = &self.last else { return Ok(()) };
        if self.told.insert(handle, self.count) == Some(self.count) {
            return Ok(());
        }
        self.is_news = false;
        Err(last.clone())
    }
}

/// Of a file that is cut by content, a stretch of what was written takes as much old content along as so many
/// records: the record that it begins in, and those after it until the cuts are the old ones again.
pub(crate) const TAKEN_ALONG: usize = 3;

/// Writes that are less than so many bytes together are kept as one, in a file that is cut by content.
const TOGETHER: u64 = 4096;

/// Space that a dirty record is taken to need when it is stored, bytes.
fn room(pieces: &Pieces) -> u64 {
    record_claim(pieces.end())
}

impl DirtyData {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.flushing.is_empty()
    }

    /// By how much `room` grows when `len` bytes are written at `offset`.
    pub fn growth(&self, record_size: u32, offset: u64, len: u64) -> u64 {
        let size = u64::from(record_size);
        let (mut at, mut growth) = (offset, 0);
        while at < offset + len {
            let record = at / size;
            let next = (offset + len).min((record + 1) * size);
            let held = self.records.get(&record).map_or(0, |pieces| pieces.end());
            growth += record_claim(held.max((next - record * size) as u32)) - record_claim(held);
            at = next;
        }
        growth
    }

    /// Writes `data` at `offset` of a file with records of `record_size` bytes.
    pub fn write(&mut self, record_size: u32, offset: u64, mut data: &[u8]) {
        let (size, range) = (u64::from(record_size), offset..offset + data.len() as u64);
        if range.end > (offset / size + 1) * size || self.spans.meets(&range) {
            self.spans.insert(range.clone());
        }
        self.unlogged.insert(range);
        let mut at = offset;
        while !data.is_empty() {
            let within = at % size;
            let (now, rest) = data.split_at(data.len().min((size - within) as usize));
            let record = at / size;
            if !self.records.contains_key(&record) {
                self.stretches = self.stretches + 1 - self.neighbours(record);
            }
            let pieces = Arc::make_mut(self.records.entry(record).or_default());
            let (before, room_before) = (pieces.len(), room(pieces));
            pieces.write(within as u32, now);
            self.bytes += pieces.len() - before;
            self.room += room(pieces) - room_before;
            at += now.len() as u64;
            data = rest;
        }
    }

    /// Keeps a write to a file that is cut by content together when it is stored: a record may end anywhere.
    /// Small writes one behind the other are one, or there would be as many spans as bytes.
    pub fn keep_whole(&mut self, range: Range<u64>) {
        let before = self.spans.ending_at(range.start).filter(|span| range.end - span.start <= TOGETHER);
        self.spans.insert(before.map_or(range.start, |span| span.start)..range.end);
    }

    /// Number of records next to this one that were written to, 0 to 2.
    fn neighbours(&self, record: u64) -> usize {
        let before = record.checked_sub(1).is_some_and(|before| self.records.contains_key(&before));
        usize::from(before) + usize::from(self.records.contains_key(&(record + 1)))
    }

    /// Forgets everything from `len` on. Nothing is being flushed.
    pub fn cut(&mut self, record_size: u32, len: u64) {
        debug_assert!(self.flushing.is_empty());
        self.unlogged.remove(len..u64::MAX);
        self.spans.cut(len);
        let (boundary, within) = (len / u64::from(record_size), len % u64::from(record_size));
        let mut beyond = self.records.split_off(&boundary);
        if let Some(mut pieces) = beyond.remove(&boundary).filter(|_| within > 0) {
            Arc::make_mut(&mut pieces).cut(within as u32);
            if pieces.len() > 0 {
                self.records.insert(boundary, pieces);
            }
        }
        self.count();
    }

    /// Forgets a whole record. Nothing is being flushed.
    pub fn forget(&mut self, record: u64) {
        if let Some(pieces) = self.records.remove(&record) {
            self.bytes -= pieces.len();
            self.room -= room(&pieces);
            self.stretches = self.stretches + self.neighbours(record) - 1;
        }
    }

    /// A range with the writes that reach over its ends.
    pub fn whole_writes(&self, range: Range<u64>) -> Range<u64> {
        let before = self.spans.across(range.start).map_or(range.start, |span| span.start);
        let after = self.spans.across(range.end).map_or(range.end, |span| span.end);
        before..after
    }

    /// Takes what was written to a range of a record out of `records`, which keep the rest.
    pub fn take(&mut self, record: u64, range: Range<u32>) -> Arc<Pieces> {
        let mut taken = self.records.remove(&record).expect("it was just found");
        let mut rest = Pieces::default();
        if range.start > 0 {
            let pieces = Arc::make_mut(&mut taken);
            let later = pieces.split_off(range.start);
            rest = std::mem::replace(pieces, later);
        }
        if range.end < taken.end() {
            rest.overlay(&Arc::make_mut(&mut taken).split_off(range.end));
        }
        if rest.len() > 0 {
            self.records.insert(record, Arc::new(rest));
        }
        taken
    }

    /// The first byte from `at` on that was written.
    pub fn first_from(&self, at: u64, record_size: u64) -> Option<u64> {
        let written = self.records.range(at / record_size..).flat_map(|(&record, pieces)| {
            pieces.parts(0..u32::MAX).map(move |part| record * record_size + u64::from(part.start))
        });
        written.into_iter().find(|&start| start >= at)
    }

    /// Writes that were taken become dirty again: so does, with them, what was written over their ends since.
    pub fn put_back(&mut self, record_size: u64, span: Range<u64>) {
        let over = |at: u64| {
            let (record, within) = (at / record_size, (at % record_size) as u32);
            let piece = self.records.get(&record).and_then(|pieces| pieces.across(within))?;
            Some(record * record_size + u64::from(piece.start)..record * record_size + u64::from(piece.end))
        };
        let start = over(span.start).map_or(span.start, |piece| piece.start);
        let end = over(span.end).map_or(span.end, |piece| piece.end);
        self.spans.insert(start..end);
    }

    /// The store of `flushing` failed: it becomes dirty again, under what was written since.
    pub fn take_back(&mut self) {
        for (record, mut older) in std::mem::take(&mut self.flushing) {
            if let Some(newer) = self.records.get(&record) {
                Arc::make_mut(&mut older).overlay(newer);
            }
            self.records.insert(record, older);
        }
        self.count();
    }

    /// The store of `flushing` is done, but for what lies from `rest` on: that becomes dirty again, under what was
    /// written since.
    pub fn finish_flush(&mut self, record_size: u64, rest: u64) {
        // A file without a record size (0) has no dirty data either.
        let mut rests = self.flushing.split_off(&(rest / record_size.max(1)));
        self.flushing.clear();
        for (&record, older) in &mut rests {
            let within = rest.saturating_sub(record * record_size) as u32;
            if within > 0 {
                Arc::make_mut(older).cut_before(within);
            }
        }
        rests.retain(|_, older| older.len() > 0);
        self.flushing = rests;
        self.take_back();
    }

    /// Brings what was written into records of another size. Nothing is being flushed. What was one write stays one
    /// where records may end in it now.
    pub fn rekey(&mut self, old: u32, new: u32) {
        debug_assert!(self.flushing.is_empty());
        let (old, new) = (u64::from(old), u64::from(new));
        for (record, pieces) in std::mem::take(&mut self.records) {
            for part in pieces.parts(0..u32::MAX) {
                let mut bytes = Vec::with_capacity(part.len());
                pieces.append_to(part.clone(), &mut bytes);
                let mut at = record * old + u64::from(part.start);
                self.spans.insert(at..at + bytes.len() as u64);
                let mut left = bytes.as_slice();
                while !left.is_empty() {
                    let within = at % new;
                    let (now, rest) = left.split_at(left.len().min((new - within) as usize));
                    Arc::make_mut(self.records.entry(at / new).or_default()).write(within as u32, now);
                    (at, left) = (at + now.len() as u64, rest);
                }
            }
        }
        self.count();
    }

    /// Counts anew; nothing is being flushed.
    fn count(&mut self) {
        if self.records.is_empty() {
            self.spans = Spans::default();
        }
        self.bytes = self.records.values().map(|pieces| pieces.len()).sum();
        self.room = self.records.values().map(|pieces| room(pieces)).sum();
        let mut next = None;
        let mut begins = |record: u64| next.replace(record + 1) != Some(record);
        self.stretches = self.records.keys().filter(|&&record| begins(record)).count();
    }
}

impl Inode {
    pub fn new(id: InodeId, item: items::Inode) -> Arc<Self> {
        Arc::new(Self {
            id,
            turn: Mutex::new(()),
            state: Mutex::new(State {
                tree: item,
                live: item,
                open: 0,
                gone: false,
                nameless: false,
                data: DirtyData::default(),
                grown: false,
                stored_in: CommitId::new(0),
                failures: Failures::default(),
                needed: 0,
                queued: false,
                used: true,
                claimed: 0,
                recut: None,
                copies: 1,
            }),
        })
    }

    /// Its state, if the inode still exists.
    pub fn lock(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.gone { Err(FsError::NotFound) } else { Ok(state) }
    }
}

impl State {
    /// Changes an attribute, in both images.
    pub fn change(&mut self, change: impl Fn(&mut items::Inode)) {
        change(&mut self.tree);
        change(&mut self.live);
    }

    /// Most bytes of its dirty records once they are whole.
    pub fn built_bytes(&self) -> u64 {
        let mut records = self.data.records.len() + self.data.flushing.len();
        if self.live.by_content() {
            records += TAKEN_ALONG * self.data.stretches;
        }
        let whole = records as u64 * u64::from(self.live.record_size);
        whole.min(self.live.size).max(self.data.bytes)
    }

    /// Bytes that this may be more when the file's records, or the longest by content, have `record_size` bytes.
    pub fn growth_in(&self, record_size: u32) -> u64 {
        let records = (self.data.records.len() + self.data.flushing.len()) * (1 + TAKEN_ALONG);
        let whole = records as u64 * u64::from(record_size);
        whole.min(self.live.size).saturating_sub(self.built_bytes())
    }
}

/// The states of several inodes, locked in ascending order of ids.
pub(crate) struct Locked<'a>(Vec<(InodeId, MutexGuard<'a, State>)>);

impl<'a> Locked<'a> {
    /// Locks each of them once.
    pub fn lock(inodes: impl IntoIterator<Item = &'a Arc<Inode>>) -> Result<Self> {
        let mut inodes = inodes.into_iter().collect::<Vec<_>>();
        inodes.sort_by_key(|inode| inode.id);
        inodes.dedup_by_key(|inode| inode.id);
        inodes.into_iter().map(|inode| Ok((inode.id, inode.lock()?))).collect::<Result<_>>().map(Self)
    }

    /// The state of one of them.
    pub fn of(&mut self, id: InodeId) -> &mut State {
        let found = self.0.iter_mut().find(|(held, _)| *held == id);
        &mut found.expect("only inodes that were locked are asked for").1
    }

    /// All of them, as the tree should have them.
    pub fn items(&self) -> impl Iterator<Item = (InodeId, &items::Inode)> {
        self.0.iter().map(|(id, state)| (*id, &state.tree))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_over_the_end_of_a_write_that_was_taken_back_goes_with_it() {
        let mut data = DirtyData::default();
        data.write(100, 50, &[1; 100]);
        data.write(100, 0, &[1; 30]);
        let spans = data.spans.take(0..150);
        for (record, range) in [(0, 50..100), (1, 0..50)] {
            let taken = data.take(record, range);
            data.flushing.insert(record, taken);
        }
        data.write(100, 140, &[2; 20]);
        data.write(100, 40, &[2; 20]);
        for span in spans.iter() {
            data.put_back(100, span);
        }
        data.take_back();
        assert_eq!(data.whole_writes(100..150), 40..160);
        assert_eq!(data.whole_writes(0..40), 0..40);
        assert_eq!(data.bytes, 30 + 120);
    }

    #[test]
    fn progress_is_taken_back_by_an_extent_that_lies_elsewhere() {
        let place = larder_format::Place {
            segment: larder_format::SegmentId::new(0),
            column: 0,
            offset: 0,
            stored: 1,
        };
        let ptr = larder_format::BlockPtr { id: larder_format::BlockId::new(1), place };
        let fits = Extent { ptr, len: 4096, block_offset: 0, logical: 4096, placed: 0, copies: 1 };
        let after = |is_odd, offset: u64, extent: Extent| {
            let mut progress = Progress { cuts: Cuts::Even(4096), done: 100 * 4096, is_odd };
            progress.note(offset, &extent);
            progress.done / 4096
        };
        let done = |offset, extent| after(false, offset, extent);
        assert_eq!(done(8 * 4096, fits), 100);
        assert_eq!(done(8 * 4096, Extent { len: 10, ..fits }), 100);
        assert_eq!(done(8 * 4096 + 1, fits), 8);
        assert_eq!(done(8 * 4096, Extent { len: 4097, logical: 4097, ..fits }), 8);
        assert_eq!(done(8 * 4096, Extent { len: 10, block_offset: 5, ..fits }), 8);
        assert_eq!(done(200 * 4096 + 1, fits), 100);
        assert_eq!(after(true, 8 * 4096 + 1, fits), 100);
    }
}
