//! Copying between files, by reference where that can be.
//!
//! A copy shares extents: the target's tree names the blocks that the source's tree names, and each block is marked
//! as shared in the same operation, so that nobody but GC frees it (see `larder_pool`'s `free`). No data is
//! read or written.
//!
//! # What can be shared
//! Whole records: both files are cut alike, the distance of the two offsets is a multiple of the record size, and
//! the record lies in the range; the last one needs to lie in it only up to where the target will end. A file that
//! has no record size yet takes the source's, unless its dataset asks for smaller ones. Where the source has a hole
//! the target gets one. All else goes through memory, as any write.
//!
//! Between files that are cut by content distance does not matter: shared is every record that lies in the range, as
//! long as the end of the range divides no record of the target.
//!
//! # Dirty data
//! The source's is stored first, since what has no block cannot be shared. The target's goes where the range covers
//! it. What of it lies before a range that makes the file longer is stored first, so that a crash never shows the
//! copy with less before it than there was.
//!
//! # Durability
//! Nothing of it goes to the intent log: an fsync of the target takes a commit, as for all that was stored without
//! having been logged. The log's older writes to the range do no harm: they are replayed only on a commit that does
//! not have the copy. A copy of many extents is done in operations of [`SHARE_STEP`], from its beginning on, so that
//! commits do not wait; a crash leaves as many of them as were committed.
//!
//! # Locks
//! Both turns, in the order of dataset and inode, for one operation: whoever holds a file's turn knows its extents.
//! The states are locked one after the other, so that what is copied is what the source had when it was looked at.

use crate::attr::check_regular;
use crate::error::{FsError, Result};
use crate::extents::{Cut, extent_end, extents, extents_over};
use crate::inode::Inode;
use crate::orphan::meets_tail;
use crate::posix::{Allocate, Seek};
use crate::volume::{Volume, inode_key};
use larder_format::InodeId;
use larder_format::items::{self, EXTENT, Extent, MAX_FILE};
use larder_format::node::Key;
use larder_pool::{Ahead, Chunking, Look};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Extents that one operation shares.
const SHARE_STEP: usize = 1024;
/// Operations of one call: some tens of milliseconds.
const STEPS_PER_CALL: usize = 16;
/// Bytes that one call copies through memory at most.
const COPY_PER_CALL: u64 = 64 << 20;
/// Bytes that are copied through memory at a time.
const COPY_STEP: u64 = 1 << 20;
/// Shorter holes are copied as zeros where nothing can be shared.
const HOLE_MIN: u64 = 64 << 10;
/// Times that a step stores dirty data before it copies through memory instead.
const TRIES: usize = 8;

/// Result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// Bytes copied; fewer than were asked for at the end of the source, and when more would take long.
    pub bytes: u64,
    /// Those of them that did not go through memory: shared, or in holes.
    pub shared: u64,
}

/// A file of a volume.
struct File<'a> {
    volume: &'a Volume,
    inode: Arc<Inode>,
}

impl<'a> File<'a> {
    fn new(volume: &'a Volume, id: InodeId) -> Result<Self> {
        let inode = volume.inode(id)?;
        check_regular(&*inode.lock()?)?;
        Ok(Self { volume, inode })
    }

    fn id(&self) -> InodeId {
        self.inode.id
    }

    /// Where its turn comes.
    fn order(&self) -> (u64, InodeId) {
        (self.volume.number().get(), self.id())
    }

    /// As many extents over a range as one operation shares, and one more; `item` is the inode.
    fn extents(&self, item: &items::Inode, from: u64, len: u64) -> Result<Extents> {
        if item.record_size == 0 {
            return Ok(Vec::new());
        }
        let view = self.volume.dataset.view()?;
        extents_over(&view, self.id(), item, from..from + len, SHARE_STEP + 1)
    }
}

/// By their offset.
type Extents = Vec<(u64, Extent)>;

/// A stretch of the two files.
#[derive(Clone, Copy)]
struct Stretch {
    from: u64,
    to: u64,
    len: u64,
}

impl Stretch {
    fn source(&self) -> Range<u64> {
        self.from..self.from + self.len
    }
}

/// Outcome of an attempt at sharing.
enum Attempt {
    /// So many bytes are shared now.
    Shared(u64),
    /// So many must go through memory.
    Plain(u64),
    /// The source has no more.
    End,
    /// The source has dirty data in the range.
    SourceDirty,
    /// The target has dirty data before a range that makes it longer.
    TargetDirty,
    /// The target has a tail in the way.
    Tail,
}

impl Volume {
    /// Copies up to `len` bytes from `source`, a file of a volume of the same pool and an offset, to `offset` of the
    /// file `id`; see [`Copied`]. The file grows when it has to.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when the two ranges overlap in one file; else those of reading and writing, when they come
    /// before anything was copied.
    pub fn copy_range(
        &self,
        source: (&Volume, InodeId, u64),
        id: InodeId,
        offset: u64,
        len: u64,
    ) -> Result<Copied> {
        self.check_writable()?;
        let pair = Pair { source: File::new(source.0, source.1)?, target: File::new(self, id)? };
        let size = pair.source.inode.lock()?.live.size;
        let all = Stretch { from: source.2, to: offset, len: len.min(size.saturating_sub(source.2)) };
        if all.len == 0 {
            return Ok(Copied::default());
        }
        offset.checked_add(all.len).filter(|&end| end <= MAX_FILE).ok_or(FsError::TooBig)?;
        let one = pair.source.order() == pair.target.order();
        if one && all.from < all.to + all.len && all.to < all.from + all.len {
            return Err(FsError::Invalid);
        }
        let mut copied = Copied::default();
        match pair.copy(all, &mut copied) {
            Err(_) if copied.bytes > 0 => Ok(copied),
            done => done.map(|()| copied),
        }
    }
}

struct Pair<'a> {
    source: File<'a>,
    target: File<'a>,
}

impl Pair<'_> {
    fn copy(&self, all: Stretch, copied: &mut Copied) -> Result<()> {
        let mut steps = 0;
        while copied.bytes < all.len && steps < STEPS_PER_CALL {
            let done = copied.bytes;
            let rest = Stretch { from: all.from + done, to: all.to + done, len: all.len - done };
            match self.share(rest)? {
                Attempt::Shared(bytes) => {
                    copied.shared += bytes;
                    copied.bytes += bytes;
                    steps += 1;
                }
                Attempt::Plain(bytes) => {
                    let room = COPY_PER_CALL.saturating_sub(copied.bytes - copied.shared);
                    if room == 0 || !self.copy_plain(Stretch { len: bytes.min(room), ..rest }, copied)? {
                        break;
                    }
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Shares what one operation can of the beginning of a stretch, once what is in the way is gone.
    fn share(&self, rest: Stretch) -> Result<Attempt> {
        let (source, target) = (&self.source, &self.target);
        let theirs = source.inode.lock()?.live;
        let ours = target.inode.lock()?.live;
        // Nothing is stored first, nor locked, for what cannot be shared.
        if let Err(plain) = self.reach(rest, &theirs, &ours) {
            return Ok(Attempt::Plain(plain));
        }
        // Nodes are read before the operation, on which a commit may wait.
        source.extents(&theirs, rest.from, rest.len)?;
        target.extents(&ours, rest.to, rest.len)?;
        target.volume.check_space()?;
        for _ in 0..TRIES {
            match target.volume.within_quota(|| self.attempt(rest))? {
                Attempt::SourceDirty => source.volume.flush_one(source.id())?,
                Attempt::TargetDirty => target.volume.flush_one(target.id())?,
                Attempt::Tail => target.volume.drop_tail(&target.inode)?,
                done => return Ok(done),
            }
        }
        // Somebody writes to it all the time.
        Ok(Attempt::Plain(rest.len.min(COPY_STEP)))
    }

    /// The target's cut and the end of the range that it can share; or the bytes that must go through memory before
    /// that may be asked again. `theirs` is the source's inode, `ours` the target's.
    fn reach(
        &self,
        rest: Stretch,
        theirs: &items::Inode,
        ours: &items::Inode,
    ) -> std::result::Result<(Cut, u64), u64> {
        let settings = self.target.volume.dataset.settings();
        let (from, to) = (Cut::of(theirs), Cut::of(ours));
        let wanted = Cut { by_content: settings.chunking == Chunking::Content, ..from };
        let cut = match (from.record_size, to.record_size) {
            // A source without a record size is one hole, whatever the target's records are.
            (0, _) => to,
            (size, 0) if size <= settings.record_size && from == wanted => from,
            _ if from == to => to,
            _ => return Err(rest.len),
        };
        let end = rest.to + rest.len;
        if cut.record_size == 0 || cut.by_content {
            return Ok((cut, end));
        }
        let step = u64::from(cut.record_size);
        if from.record_size > 0 && rest.from % step != rest.to % step {
            return Err(rest.len);
        }
        let within = rest.to % step;
        if within > 0 {
            return Err(rest.len.min(step - within));
        }
        // Bytes behind the range in its last record are not the source's.
        let beyond = if ours.size > end { end % step } else { 0 };
        if beyond < rest.len { Ok((cut, end - beyond)) } else { Err(rest.len) }
    }

    fn attempt(&self, mut rest: Stretch) -> Result<Attempt> {
        let (source, target) = (&self.source, &self.target);
        let op = target.volume.enter()?;
        let mut order = [source, target];
        order.sort_by_key(|file| file.order());
        let _first = order[0].inode.turn.lock();
        let _second = (order[0].order() != order[1].order()).then(|| order[1].inode.turn.lock());
        let theirs = {
            let mut state = source.inode.lock()?;
            rest.len = rest.len.min(state.live.size.saturating_sub(rest.from));
            if rest.len == 0 {
                return Ok(Attempt::End);
            }
            let cut = u64::from(state.live.record_size);
            let records = |range: Range<u64>| range.start / cut..range.end.div_ceil(cut);
            if cut > 0 && state.data.records.range(records(rest.source())).next().is_some() {
                return Ok(Attempt::SourceDirty);
            }
            source.volume.touch_atime(source.id(), &mut state);
            state.live
        };
        let mut new = source.extents(&theirs, rest.from, rest.len)?;
        let copies = target.volume.dataset.settings().copies;
        let mut few = None;
        for (at, extent) in new.iter().take(SHARE_STEP) {
            if extent.copies < copies || !target.volume.pool.keep_places(&op, extent.ptr.id, copies)? {
                few = Some((at, extent));
                break;
            }
        }
        if let Some((at, few)) = few {
            // The target's are to be stored more often.
            match at.saturating_sub(rest.from) {
                0 => return Ok(Attempt::Plain(rest.len.min(at + u64::from(few.len) - rest.from))),
                before => rest.len = rest.len.min(before),
            }
        }
        let ours = target.inode.lock()?.live;
        let old = target.extents(&ours, rest.to, rest.len)?;
        // As many extents as one operation should take, of either file.
        for at in [
            new.get(SHARE_STEP).map(|(at, _)| at - rest.from),
            old.get(SHARE_STEP).map(|(at, _)| at - rest.to),
        ] {
            rest.len = at.map_or(rest.len, |at| rest.len.min(at));
        }
        let mut guard = target.inode.lock()?;
        let state = &mut *guard;
        check_regular(state)?;
        if !target.volume.is_needed(target.id(), state) {
            return Err(FsError::NotFound);
        }
        if meets_tail(state, rest.to + rest.len) {
            return Ok(Attempt::Tail);
        }
        // Its records are to lie at multiples of a size.
        if state.recut.is_some() {
            return Ok(Attempt::Plain(rest.len.min(COPY_STEP)));
        }
        let (cut, mut end) = match self.reach(rest, &theirs, &state.live) {
            Ok(reach) => reach,
            Err(plain) => return Ok(Attempt::Plain(plain)),
        };
        if cut.by_content {
            end = match whole_records(rest, &new, &old, state.live.size) {
                Ok(end) => end,
                Err(plain) => return Ok(Attempt::Plain(plain)),
            };
        }
        // Without a record size there is no data.
        let (from, to, step) = (rest.from, rest.to, u64::from(cut.record_size.max(1)));
        let covered = to / step..end.div_ceil(step);
        let written = &state.data.records;
        let before = end > state.tree.size && written.range(..covered.start).next().is_some();
        if before || (cut.by_content && written.range(covered.clone()).next().is_some()) {
            return Ok(Attempt::TargetDirty);
        }
        let mut old: BTreeMap<u64, Extent> = old.into_iter().filter(|(at, _)| *at < end).collect();
        new.retain_mut(|(at, extent)| {
            *at = *at - from + to;
            if *at >= end {
                return false;
            }
            extent.len = extent.len.min((end - *at) as u32);
            // Extents that were copied before are left as they are.
            let same = old.get(at).is_some_and(|old| old.is_same(extent));
            if same {
                old.remove(at);
            }
            !same
        });
        let added: u64 = new.iter().map(|(_, extent)| extent.charged()).sum();
        let claim = added.saturating_sub(old.values().map(Extent::charged).sum());
        let (pool, dataset) = (&target.volume.pool, &target.volume.dataset);
        pool.claim(dataset.id(), claim)?;
        let time = target.volume.now();
        let mut item = state.tree;
        item.size = item.size.max(end);
        cut.put(&mut item);
        (item.mtime, item.ctime) = (time, time);
        old.values().for_each(|extent| item.forget_extent(extent));
        new.iter().for_each(|(_, extent)| item.count_extent(extent));
        let id = target.id();
        let key = |at: &u64| Key::new(id.get(), EXTENT, *at);
        let (olds, news): (Vec<_>, Vec<_>) =
            (old.keys().map(key).collect(), new.iter().map(|(at, _)| key(at)).collect());
        let reads = |tree: &Ahead<'_>| {
            tree.reach(&inode_key(id))?;
            tree.reach(&Key::new(id.get(), EXTENT, to))?;
            news.iter().try_for_each(|key| tree.reach(key))?;
            tree.reach_removal(&olds)?;
            extents(tree, id, to..end, usize::MAX).map(drop)
        };
        let updated = dataset.update_after(&op, reads, |tree| {
            for (at, extent) in &old {
                tree.remove(&Key::new(id.get(), EXTENT, *at))?;
                tree.drop_block(extent);
            }
            for (at, extent) in &new {
                tree.put_extent(Key::new(id.get(), EXTENT, *at), *extent)?;
                tree.share_block(extent);
            }
            Ok::<_, FsError>(tree.insert(inode_key(id), &item.encode())?)
        });
        pool.adjust_claim(dataset.id(), claim, 0);
        updated?;
        state.tree = item;
        state.live.size = state.live.size.max(end);
        (state.live.record_size, state.live.flags) = (item.record_size, item.flags);
        (state.live.stored, state.live.data) = (item.stored, item.data);
        (state.live.mtime, state.live.ctime) = (time, time);
        let dirty = state.data.bytes;
        let records: Vec<_> = state.data.records.range(covered).map(|(&record, _)| record).collect();
        records.into_iter().for_each(|record| state.data.forget(record));
        state.data.unlogged.remove(to..end);
        target.volume.meter(dirty, state);
        state.stored_in = pool.note_unlogged();
        state.used = true;
        Ok(Attempt::Shared(end - to))
    }

    /// Copies a part of a stretch through memory, or makes a hole of it; false when the source has no more.
    fn copy_plain(&self, rest: Stretch, copied: &mut Copied) -> Result<bool> {
        let (source, target) = (&self.source, &self.target);
        let seek = |at, what| match source.volume.seek(source.id(), at, what) {
            Err(FsError::NoExtent) => Ok(rest.source().end),
            found => found.map(|found| found.min(rest.source().end)),
        };
        let data = seek(rest.from, Seek::Data)?;
        let hole = data - rest.from;
        if hole >= HOLE_MIN {
            let mode = Allocate::Zero { keep_size: false };
            target.volume.allocate(target.id(), rest.to, hole, mode)?;
            copied.bytes += hole;
            copied.shared += hole;
            return Ok(true);
        }
        let end = seek(data, Seek::Hole)?.max(rest.from + HOLE_MIN);
        let len = (end - rest.from).min(rest.len).min(COPY_STEP);
        let buffer = source.volume.read(source.id(), rest.from, len as u32)?.to_vec();
        if buffer.is_empty() {
            return Ok(false);
        }
        let written = target.volume.write(target.id(), Some(rest.to), &buffer, false)?;
        copied.bytes += u64::from(written);
        Ok(true)
    }
}

/// Up to where records of a file that is cut by content can be shared, when the target has `size` bytes; or how many
/// bytes must go through memory. `new` and `old` are the extents over the stretch.
fn whole_records(
    rest: Stretch,
    new: &[(u64, Extent)],
    old: &[(u64, Extent)],
    size: u64,
) -> std::result::Result<u64, u64> {
    let rest_of_first = |extents: &[(u64, Extent)], start| match extents.first() {
        Some((at, extent)) if *at < start => extent_end(*at, extent) - start,
        _ => 0,
    };
    let divided = rest_of_first(new, rest.from).max(rest_of_first(old, rest.to));
    if divided > 0 {
        return Err(divided.min(rest.len));
    }
    let mut end = rest.to + rest.len;
    // Behind the target's end nothing is divided that anybody sees.
    while size > end {
        let new = new.iter().map(|(at, extent)| (at - rest.from + rest.to, extent));
        let old = old.iter().map(|(at, extent)| (*at, extent));
        let mut across = new.chain(old).filter(|(at, extent)| *at < end && extent_end(*at, extent) > end);
        match across.next() {
            Some((at, _)) => end = at,
            None => break,
        }
    }
    if end > rest.to { Ok(end) } else { Err(rest.len) }
}
