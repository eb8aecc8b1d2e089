//! Reading and writing.
//!
//! A file is cut into records at multiples of its record size, which its first write fixes. What is
//! written stays in memory, by record, as the pieces that were written; what lies between them is read
//! only when somebody reads it, or when the record is stored. A read lays over each other, for each
//! record: its extent (or zeros), the pieces being stored, the pieces written since.

use crate::attr::{check_regular, extents, killed};
use crate::error::{FsError, Result};
use crate::inode::State;
use crate::names::Origin;
use crate::ops::{Seek, SetAttr};
use crate::orphan::meets_tail;
use crate::ranges::Pieces;
use crate::read_data::ReadData;
use crate::volume::Volume;
use larder_format::items::{Extent, FileKind, MAX_FILE};
use larder_format::{BlockId, InodeId, Timestamp};
use larder_pool::cache::Record;
use larder_pool::{Atime, PoolError};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// How often a read looks again when a block that it was sent to is gone.
const READ_TRIES: usize = 8;
/// An access time this much older than now is brought up to date, seconds.
const STALE_ATIME_SECS: i64 = 24 * 60 * 60;

impl Volume {
    /// Writes all of `data` at `offset`, or at the end of the file; gives its length.
    pub fn write(&self, id: InodeId, offset: Option<u64>, data: &[u8], kill_suidgid: bool) -> Result<u32> {
        let settings = self.dataset.settings();
        if settings.readonly {
            return Err(FsError::ReadOnly);
        }
        self.make_room(data.len() as u64)?;
        self.pool.check_room(&self.dataset, data.len() as u64)?;
        let inode = self.inode(id)?;
        if kill_suidgid {
            let perm = inode.lock()?.live.perm;
            if killed(perm) != perm {
                self.setattr(id, &SetAttr { kill_suidgid, ..SetAttr::default() })?;
            }
        }
        self.within_quota(|| {
            loop {
                let mut state = inode.lock()?;
                if state.live.nlink == 0 && state.open == 0 {
                    return Err(FsError::NotFound);
                }
                let offset = offset.unwrap_or(state.live.size);
                if !meets_tail(&state, offset.saturating_add(data.len() as u64)) {
                    return self.accept(id, &mut state, offset, data, self.now(), Origin::Live);
                }
                drop(state);
                self.drop_tail(&inode)?;
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
        let mut record_size = state.live.record_size;
        if record_size == 0 {
            // A power of two: the pool's limit need not be one.
            let limit = 1 << self.pool.max_record().ilog2();
            record_size = self.dataset.settings().record_size.min(limit);
        }
        if origin == Origin::Live {
            let growth = state.data.growth(record_size, offset, data.len() as u64);
            self.pool.claim(self.id(), growth)?;
            state.claimed += growth;
        }
        state.change(|item| item.record_size = record_size);
        let before = state.data.bytes;
        state.data.write(record_size, offset, data);
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
        let step = u64::from(record_size);
        let records = range.start / step..(range.end - 1) / step + 1;
        let pieces = |of: &std::collections::BTreeMap<u64, Arc<Pieces>>| {
            of.range(records.clone())
                .map(|(&record, pieces)| (record, Arc::clone(pieces)))
                .collect::<Vec<_>>()
        };
        let layers = [pieces(&state.data.flushing), pieces(&state.data.records)];
        drop(state);
        let mut stored = self.stored(id, step, &range, &layers)?.into_iter().peekable();
        for record in records {
            let offset = record * step;
            let (part, _) = overlap(&range, offset, step);
            let below = stored.next_if(|(at, _)| *at == offset).and_then(|(_, extent)| extent);
            let below = match below {
                Some(extent) => self.read_extent(id, offset, extent, &part)?,
                None => Record::new(),
            };
            let mut above = layers.iter().flatten().filter(|(at, _)| *at == record).peekable();
            if above.peek().is_some() {
                let mut out = vec![0; part.len()];
                out[..below.len()].copy_from_slice(&below);
                above.for_each(|(_, pieces)| pieces.copy_onto(part.clone(), &mut out));
                data.push(out.into());
            } else {
                let missing = part.len() - below.len();
                data.push(below);
                data.push_zeros(missing);
            }
        }
        Ok(data)
    }

    /// The extents that a read of `range` needs, by offset, with their blocks on the way into the cache;
    /// none where `layers` cover what it wants.
    fn stored(
        &self,
        id: InodeId,
        step: u64,
        range: &Range<u64>,
        layers: &[Vec<(u64, Arc<Pieces>)>],
    ) -> Result<Vec<(u64, Option<Extent>)>> {
        let first = range.start / step * step;
        let found = extents(&self.dataset.view()?, id, first..range.end, usize::MAX)?;
        let needed = |offset: u64, extent: &Extent| {
            let (part, _) = overlap(range, offset, step);
            let mut above = layers.iter().flatten().filter(|(at, _)| *at == offset / step);
            part.start < extent.len && !above.any(|(_, pieces)| pieces.covers(part.clone()))
        };
        let found = found.into_iter().map(|(at, extent)| (at, Some(extent).filter(|e| needed(at, e))));
        let found: Vec<_> = found.collect();
        let wanted: Vec<_> = found.iter().filter_map(|(_, extent)| extent.map(|extent| extent.ptr)).collect();
        if wanted.len() > 1 {
            self.pool.prefetch(&wanted);
        }
        Ok(found)
    }

    /// What `part` of the record at `offset` shows; zeros at its end are left off. The extent may have been
    /// replaced, and its block freed, since it was looked up.
    fn read_extent(&self, id: InodeId, offset: u64, mut extent: Extent, part: &Range<u32>) -> Result<Record> {
        for _ in 0..READ_TRIES {
            let failed = match self.plain(&extent) {
                Ok(plain) => {
                    let end = part.end.min(extent.len);
                    let range = part.start.min(end) as usize..end as usize;
                    return Ok(plain.slice(range));
                }
                Err(error) => error,
            };
            match extents(&self.dataset.view()?, id, offset..offset + 1, 1)?.pop() {
                None => return Ok(Record::new()),
                Some((_, again)) if again.ptr.id == extent.ptr.id => {
                    self.pool.note_damage(self.dataset.id(), id.get());
                    return Err(failed);
                }
                Some((_, again)) => extent = again,
            }
        }
        Err(FsError::Io(format!("inode {id} changes too fast to be read")))
    }

    /// The bytes that an extent covers.
    pub(crate) fn plain(&self, extent: &Extent) -> Result<Record> {
        covered(extent, self.pool.read(extent.ptr)?)
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
        let view = self.dataset.view()?;
        let mut stored = extents(&view, id, at / step * step..u64::MAX, 2)?
            .into_iter()
            .map(|(offset, extent)| offset..offset + u64::from(extent.len))
            .filter(|data| data.end > at);
        let mut written = [&state.data.flushing, &state.data.records].into_iter().filter_map(|layer| {
            let parts = layer.range(at / step..).take(2).flat_map(|(&record, pieces)| {
                let base = record * step;
                pieces
                    .parts(0..u32::MAX)
                    .map(move |part| base + u64::from(part.start)..base + u64::from(part.end))
            });
            parts.into_iter().find(|data| data.end > at)
        });
        let candidates = [stored.next(), written.next(), written.next()];
        let first = candidates.into_iter().flatten().min_by_key(|data| data.start);
        Ok(first.map(|data| data.start.max(at)..data.end))
    }
}

/// What `range` of a file and the record at `offset` share: as a range of the record, and of the range.
fn overlap(range: &Range<u64>, offset: u64, step: u64) -> (Range<u32>, Range<usize>) {
    let start = range.start.max(offset);
    let end = range.end.min(offset + step);
    let part = (start - offset) as u32..(end - offset) as u32;
    (part, (start - range.start) as usize..(end - range.start) as usize)
}

/// What an extent covers of its block.
fn covered(extent: &Extent, block: Record) -> Result<Record> {
    let range = extent.block_offset as usize..(extent.block_offset + extent.len) as usize;
    if block.len() < range.end {
        let id = extent.ptr.id;
        return Err(PoolError::Unreadable { id, cause: "shorter than its extent".into() }.into());
    }
    Ok(block.slice(range))
}
