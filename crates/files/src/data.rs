//! Reading and writing.
//!
//! A file is cut into records at multiples of its record size, or by content; its first write fixes both.
//! Written data stays in memory, by multiples of the record size, as the pieces that were written; the bytes
//! between them are read only when somebody reads them, or when the record is stored. A read lays over each
//! other, for each extent and each hole between: the extent (or zeros), the pieces being stored, the
//! pieces written since.

use crate::attr::{check_regular, killed};
use crate::error::{FsError, Result};
use crate::extents::{Cut, extent_end, extents_over};
use crate::flush::SPAN_MAX;
use crate::inode::{Inode, State};
use crate::origin::Origin;
use crate::orphan::meets_tail;
use crate::posix::{Seek, SetAttr};
use crate::ranges::Pieces;
use crate::read_data::ReadData;
use crate::volume::Volume;
use larder_format::items::{self, EXTENT, Extent, FileKind, MAX_FILE};
use larder_format::node::Key;
use larder_format::{BlockId, InodeId, Timestamp};
use larder_mutants::point;
use larder_pool::cache::Record;
use larder_pool::{Atime, Look, PoolError, Store};
use larder_sync::MutexGuard;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Times that a read looks extents up again when a block that they name is gone.
const READ_TRIES: usize = 8;
/// An access time this much older than now is brought up to date, seconds.
const STALE_ATIME_SECS: i64 = 24 * 60 * 60;

impl Volume {
    /// Writes all of `data` at `offset`, or at the end of the file; gives its length.
    pub fn write(&self, id: InodeId, offset: Option<u64>, data: &[u8], kill_suidgid: bool) -> Result<u32> {
        self.check_writable()?;
        self.pool.store().check_writable()?;
        self.make_room(data.len() as u64)?;
        let inode = self.inode(id)?;
        let replaces = || {
            let end = offset.and_then(|offset| offset.checked_add(data.len() as u64));
            let size = inode.lock().map_or(0, |state| state.live.size);
            end.is_some_and(|end| end <= size)
        };
        self.pool.check_room(&self.dataset, data.len() as u64, replaces)?;
        if kill_suidgid {
            let perm = inode.lock()?.live.perm;
            if killed(perm) != perm {
                self.setattr(id, &SetAttr { kill_suidgid, ..SetAttr::default() })?;
            }
        }
        self.within_quota(|| {
            loop {
                let mut state = inode.lock()?;
                let _watch = self.pool.store().watch("a write");
                if !self.is_needed(id, &state) {
                    return Err(FsError::NotFound);
                }
                let offset = offset.unwrap_or(state.live.size);
                let range = offset..offset.saturating_add(data.len() as u64);
                self.check_whole(id, &state.live, range.clone())?;
                let span = state.data.spans.with(range.clone());
                if meets_tail(&state, range.end) {
                    drop(state);
                    self.drop_tail(&inode)?;
                } else if state.data.bytes > 0 && state.copies < self.dataset.settings().copies {
                    // Dirty data was accepted for fewer places.
                    drop(state);
                    self.flush_or_commit(id)?;
                } else if span != range && span.end - span.start > SPAN_MAX {
                    drop(state);
                    self.flush_or_commit(id)?;
                } else {
                    return self.accept(id, &mut state, offset, data, self.now(), Origin::Live);
                }
            }
        })?;
        Ok(data.len() as u32)
    }

    /// Takes written data into memory. What is replayed was within the quotas, or is let in regardless.
    pub(crate) fn accept(
        &self,
        id: InodeId,
        state: &mut State,
        offset: u64,
        data: &[u8],
        time: Timestamp,
        origin: Origin,
    ) -> Result<()> {
        check_regular(state)?;
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= MAX_FILE);
        let end = end.ok_or(FsError::TooBig)?;
        let mut cut = Cut::of(&state.live);
        if cut.record_size == 0 {
            cut = self.cut_by(&self.dataset.settings());
        }
        let record_size = cut.record_size;
        if origin == Origin::Live {
            let growth = state.data.growth(record_size, offset, data.len() as u64);
            let growth = growth * u64::from(self.copies_of(state));
            self.pool.claim(self.id(), growth)?;
            state.claimed += growth;
        }
        state.change(|item| cut.put(item));
        let before = state.data.bytes;
        if state.live.by_content() {
            state.data.keep_whole(offset..end);
        }
        state.data.write(record_size, offset, data);
        point("data was written and not counted");
        state.grown |= end > state.live.size;
        state.live.size = state.live.size.max(end);
        self.meter(before, state);
        (state.live.mtime, state.live.ctime) = (time, time);
        state.used = true;
        self.queue(id, state);
        Ok(())
    }

    /// Up to `len` bytes from `offset`; less only at the end of the file.
    pub fn read(&self, id: InodeId, offset: u64, len: u32) -> Result<ReadData> {
        let inode = self.inode(id)?;
        let mut state = inode.lock()?;
        check_regular(&state)?;
        let record_size = state.live.record_size;
        let range = offset..offset.saturating_add(u64::from(len)).min(state.live.size);
        state.used = true;
        let mut data = ReadData::default();
        if range.is_empty() {
            return Ok(data);
        }
        self.touch_atime(id, &mut state);
        let len = (range.end - range.start) as usize;
        if record_size == 0 {
            data.push_zeros(len);
            return Ok(data);
        }
        let layers = Layers::of(&state, &range);
        let found = self.extents_now(&inode, state, &range)?;
        for (part, extent) in self.below(found, &range, &layers) {
            let written = layers.meet(&part);
            match extent {
                Some(extent) if !written => data.push(self.read_part(&inode, &part, extent)?),
                None if !written => data.push_zeros((part.end - part.start) as usize),
                below => {
                    let mut out = match below {
                        Some(extent) => Vec::from(self.read_part(&inode, &part, extent)?),
                        None => vec![0; (part.end - part.start) as usize],
                    };
                    layers.copy_onto(&part, &mut out);
                    data.push(out.into());
                }
            }
        }
        Ok(data)
    }

    /// Of the extents over `range` those that a read needs and the holes between, with the blocks on the way into the
    /// cache; what `layers` cover is a hole.
    fn below(
        &self,
        found: Vec<FoundExtent>,
        range: &Range<u64>,
        layers: &Layers,
    ) -> Vec<(Range<u64>, Option<FoundExtent>)> {
        let (mut parts, mut wanted, mut at) = (Vec::new(), Vec::new(), range.start);
        for (i, &(offset, extent)) in found.iter().enumerate() {
            let next = found.get(i + 1).map_or(range.end, |(next, _)| *next);
            let part = offset.max(at)..extent_end(offset, &extent).min(next).min(range.end);
            if part.is_empty() {
                continue;
            }
            if at < part.start {
                parts.push((at..part.start, None));
            }
            at = part.end;
            let needed = !layers.cover(&part);
            wanted.extend(needed.then_some(extent.ptr));
            parts.push((part, needed.then_some((offset, extent))));
        }
        if at < range.end {
            parts.push((at..range.end, None));
        }
        if wanted.len() > 1 {
            self.pool.store().prefetch(&wanted);
        }
        parts
    }

    /// The extents over a range of a file whose state is locked. The lock is let go once the look into the tree has
    /// begun: a moment later its records may be cut otherwise.
    fn extents_now(
        &self,
        inode: &Inode,
        state: MutexGuard<'_, State>,
        range: &Range<u64>,
    ) -> Result<Vec<FoundExtent>> {
        let mut state = Some(state);
        loop {
            let (item, view) = {
                let state = state.take().unwrap_or_else(|| inode.state.lock());
                (state.live, self.dataset.view()?)
            };
            match extents_over(&view, inode.id, &item, range.clone(), usize::MAX) {
                Err(_) if view.was_outrun() => {}
                found => return found,
            }
        }
    }

    /// The bytes of `part`, which lies in an extent. The extent may have been replaced, and its block freed, since
    /// it was looked up.
    fn read_part(&self, inode: &Inode, part: &Range<u64>, found: FoundExtent) -> Result<Record> {
        let id = inode.id;
        let mut now = vec![found];
        for _ in 0..READ_TRIES {
            let whole = |extent: &Extent, range| Ok(self.pool.store().part_of(extent, range)?);
            let (failed, error) = match self.put_together(part, &now, whole) {
                Ok(plain) => return Ok(plain),
                Err(failure) => failure,
            };
            now = self.extents_now(inode, inode.state.lock(), part)?;
            if let Some(again) = now.iter().find(|(_, again)| again.ptr.id == failed) {
                self.note_damage(id, again);
                // Not all of it need be damaged.
                let sound = |extent: &Extent, range| {
                    let is_damaged = extent.ptr.id == failed;
                    let read = if is_damaged { Store::sound_part_of } else { Store::part_of };
                    Ok(read(self.pool.store(), extent, range)?)
                };
                return self.put_together(part, &now, sound).map_err(|_| error);
            }
        }
        Err(FsError::Io(format!("inode {id} changes too fast to be read")))
    }

    /// Notes that an extent of a file can neither be read nor rebuilt.
    pub(crate) fn note_damage(&self, id: InodeId, (offset, extent): &FoundExtent) {
        self.pool.damage().note_unreadable(
            self.dataset.owner(),
            id.get(),
            *offset,
            extent.len.into(),
            extent.ptr.id,
        );
    }

    /// Refuses to write to a part of a record that is known to be damaged: its rest could not be completed.
    fn check_whole(&self, id: InodeId, item: &items::Inode, range: Range<u64>) -> Result<()> {
        if !self.pool.damage().is_damaged(self.dataset.owner(), id.get(), range.clone()) {
            return Ok(());
        }
        if item.record_size == 0 {
            // Nothing is there to be completed, but what is written must find its place.
            return Ok(self.dataset.view()?.reach(&Key::new(id.get(), EXTENT, range.start))?);
        }
        // Records overwritten since are not damaged any more.
        let found = extents_over(&self.dataset.view()?, id, item, range.clone(), usize::MAX)?;
        let partly = |(offset, extent): &&FoundExtent| {
            let whole = range.start <= *offset && range.end >= extent_end(*offset, extent).min(item.size);
            !whole && self.pool.damage().is_damaged_block(self.id(), id.get(), *offset, extent.ptr.id)
        };
        match found.iter().find(partly) {
            None => Ok(()),
            Some((offset, extent)) => Err(FsError::Damaged(format!(
                "{} bytes of inode {id} from {offset} can only be written as a whole",
                extent.len
            ))),
        }
    }

    /// The bytes of `part`, put together from extents; else the block that cannot be read.
    fn put_together(
        &self,
        part: &Range<u64>,
        found: &[FoundExtent],
        read: impl Fn(&Extent, Range<u32>) -> Result<Record>,
    ) -> std::result::Result<Record, (BlockId, FsError)> {
        let shown = |offset: u64, extent: &Extent, range: Range<u64>| {
            let [from, to] = [range.start, range.end].map(|at| (at - offset) as u32 + extent.block_offset);
            read(extent, from..to).map_err(|error| (extent.ptr.id, error))
        };
        let len = (part.end - part.start) as usize;
        if let [(offset, extent)] = found
            && *offset <= part.start
            && extent_end(*offset, extent) >= part.end
        {
            return shown(*offset, extent, part.clone());
        }
        let mut out = vec![0; len];
        for (offset, extent) in found {
            let shared = part.start.max(*offset)..part.end.min(extent_end(*offset, extent));
            if !shared.is_empty() {
                let to = (shared.start - part.start) as usize..(shared.end - part.start) as usize;
                out[to].copy_from_slice(&shown(*offset, extent, shared)?);
            }
        }
        Ok(out.into())
    }

    /// The bytes that an extent covers.
    pub(crate) fn plain(&self, extent: &Extent) -> Result<Record> {
        covered(extent, self.pool.store().read(extent.ptr)?)
    }

    /// As [`Volume::plain`], of blocks some of which are at hand.
    pub(crate) fn plain_among(&self, extent: &Extent, blocks: &HashMap<BlockId, Record>) -> Result<Record> {
        match blocks.get(&extent.ptr.id) {
            Some(block) => covered(extent, block.clone()),
            None => self.plain(extent),
        }
    }

    /// Brings the access time up to date in memory; it is stored with whatever is stored next.
    pub(crate) fn touch_atime(&self, id: InodeId, state: &mut State) {
        let settings = self.dataset.settings();
        if settings.readonly || settings.atime == Atime::Off {
            return;
        }
        let (now, item) = (self.now(), &mut state.live);
        let stale = item.atime <= item.mtime
            || item.atime <= item.ctime
            || item.atime.secs.saturating_add(STALE_ATIME_SECS) <= now.secs;
        if settings.atime == Atime::On || stale {
            item.atime = now;
            self.queue(id, state);
        }
    }

    /// The next data or hole at or after `offset`.
    pub fn seek(&self, id: InodeId, offset: u64, seek: Seek) -> Result<u64> {
        let inode = self.inode(id)?;
        let state = inode.lock()?;
        if state.live.kind != FileKind::Regular {
            return Err(FsError::Invalid);
        }
        let size = state.live.size;
        if offset >= size {
            return Err(FsError::NoExtent);
        }
        let step = u64::from(state.live.record_size);
        if step == 0 {
            return if seek == Seek::Data { Err(FsError::NoExtent) } else { Ok(offset) };
        }
        let mut at = offset;
        loop {
            let data = self.next_data(id, &state, step, at)?.filter(|data| data.start < size);
            match (seek, data) {
                (Seek::Data, None) => return Err(FsError::NoExtent),
                (Seek::Data, Some(data)) => return Ok(data.start),
                (Seek::Hole, Some(data)) if data.start == at && data.end < size => at = data.end,
                (Seek::Hole, Some(data)) if data.start == at => return Ok(size),
                (Seek::Hole, _) => return Ok(at),
            }
        }
    }

    /// The first stretch of data that ends after `at`, from `at` on if it begins earlier.
    fn next_data(&self, id: InodeId, state: &State, step: u64, at: u64) -> Result<Option<Range<u64>>> {
        let found = extents_over(&self.dataset.view()?, id, &state.live, at..u64::MAX, 1)?;
        let stored = found.first().map(|(offset, extent)| *offset..extent_end(*offset, extent));
        let mut written = [&state.data.flushing, &state.data.records].into_iter().filter_map(|layer| {
            let parts = layer.range(at / step..).take(2).flat_map(|(&record, pieces)| {
                let base = record * step;
                pieces
                    .parts(0..u32::MAX)
                    .map(move |part| base + u64::from(part.start)..base + u64::from(part.end))
            });
            parts.into_iter().find(|data| data.end > at)
        });
        let candidates = [stored, written.next(), written.next()];
        let first = candidates.into_iter().flatten().min_by_key(|data| data.start);
        Ok(first.map(|data| data.start.max(at)..data.end))
    }
}

/// An extent and its offset in the file.
pub(crate) type FoundExtent = (u64, Extent);

/// Data written to a range of a file and not in its tree: by record, older pieces below newer ones.
struct Layers {
    step: u64,
    layers: [Vec<(u64, Arc<Pieces>)>; 2],
}

impl Layers {
    fn of(state: &State, range: &Range<u64>) -> Self {
        let step = u64::from(state.live.record_size);
        let layer = |of: &BTreeMap<u64, Arc<Pieces>>| {
            let records = of.range(range.start / step..range.end.div_ceil(step));
            records.map(|(&record, pieces)| (record, Arc::clone(pieces))).collect()
        };
        Self { step, layers: [layer(&state.data.flushing), layer(&state.data.records)] }
    }

    /// `part` of the file by records: the number of each, and what of it that is.
    fn records(&self, part: &Range<u64>) -> impl Iterator<Item = (u64, Range<u32>)> {
        let (step, part) = (self.step, part.clone());
        (part.start / step..part.end.div_ceil(step)).map(move |record| {
            let base = record * step;
            (record, part.start.saturating_sub(base) as u32..(part.end - base).min(step) as u32)
        })
    }

    /// The pieces of a record, older ones first.
    fn pieces(&self, record: u64) -> impl Iterator<Item = &Pieces> {
        let find =
            move |layer: &'_ Vec<(u64, Arc<Pieces>)>| layer.binary_search_by_key(&record, |(at, _)| *at);
        self.layers.iter().filter_map(move |layer| Some(&*layer[find(layer).ok()?].1))
    }

    /// Whether anything was written to `part`.
    fn meet(&self, part: &Range<u64>) -> bool {
        let any = |layer: &Vec<_>| !layer.is_empty();
        let written = |(record, within): (u64, Range<u32>)| {
            self.pieces(record).any(|pieces| pieces.parts(within.clone()).next().is_some())
        };
        self.layers.iter().any(any) && self.records(part).any(written)
    }

    /// Whether all of `part` was written; it may say no where it took both layers.
    fn cover(&self, part: &Range<u64>) -> bool {
        let covered = |(record, within): (u64, Range<u32>)| {
            self.pieces(record).any(|pieces| pieces.covers(within.clone()))
        };
        self.records(part).all(covered)
    }

    /// Copies what was written to `part` onto `out`, which stands for it.
    fn copy_onto(&self, part: &Range<u64>, out: &mut [u8]) {
        let mut at = 0;
        for (record, within) in self.records(part) {
            let out = &mut out[at..at + within.len()];
            self.pieces(record).for_each(|pieces| pieces.copy_onto(within.clone(), out));
            at += within.len();
        }
    }
}

/// The part of a block that an extent covers.
fn covered(extent: &Extent, block: Record) -> Result<Record> {
    let range = extent.block_offset as usize..(extent.block_offset + extent.len) as usize;
    if block.len() < range.end {
        let id = extent.ptr.id;
        return Err(PoolError::Unreadable { id, cause: "shorter than its extent".into() }.into());
    }
    Ok(block.slice(range))
}
