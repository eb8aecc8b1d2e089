//! Storing dirty data, and making it durable.
//!
//! A flush takes dirty records of one or several inodes, whose turns it holds, stores them in one call
//! of the pool, and then puts their extents into the tree, inode by inode. Meanwhile writers go on:
//! they write new pieces over those that are being stored. A flush ends with the last record that was dirty when it
//! came to the inode: whoever appends as fast as it stores would lead it on for ever, and a commit with it.
//! Data of one write(2) is taken at one moment and stored in one operation, so that no commit has a part of it: a write
//! that reaches over the end of the last record is taken up to its own end.
//!
//! Data that cannot be stored becomes dirty again, except pieces of a record whose rest cannot be read: as after a
//! failed write-back of any file system they are dropped, and fsync says so, once to each handle of the file.
//!
//! **fsync** of little data puts the bytes into the intent log and leaves them dirty; the commit that ends that
//! stretch of the log stores them first (`flush_logged`). More than [`LOG_AT_MOST`], unless the log has devices of
//! its own, or data that was stored without having been logged, takes a commit.

use crate::cut::Cuts;
use crate::error::{FsError, Result};
use crate::extents::extents;
use crate::inode::{DirtyData, Inode, State, TAKEN_ALONG};
use crate::posix::Handle;
use crate::ranges::{Pieces, Spans};
use crate::recut::{BASES, Rest, Written};
use crate::volume::{Volume, inode_key, reaching};
use larder_format::items::{self, EXTENT, Extent};
use larder_format::node::Key;
use larder_format::ops::{LogOp, Resize, SetAttr, Write};
use larder_format::{BlockId, BlockPtr, InodeId, is_zero};
use larder_mutants::point;
use larder_pool::cache::Record;
use larder_pool::codec::Codec;
use larder_pool::{Ahead, Look, NewRecord, Op, PoolError};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of records that all batches under way store at most, but for one record each: whole ones, however little of
/// each was written. A quarter of the share of dirty data, where that is less.
const BATCH: u64 = 32 << 20;
/// Unlogged bytes of a file that an fsync puts into any log; more only by leave of the pool
/// ([`larder_pool::Pool::admit_large_sync`]), or they take a commit.
pub(crate) const LOG_AT_MOST: u64 = 1 << 20;
/// Inodes with dirty data that are looked at for an fsync of another file; more take a commit.
const LOG_INODES: usize = 1024;
/// Bytes of writes that overlap, which are stored together; before it gets more, what was written is stored.
pub(crate) const SPAN_MAX: u64 = 8 << 20;
/// Bytes of one logged write.
const LOG_PIECE: usize = 64 << 10;
/// Leaves of the tree that are brought into memory together: so few that a reader behind them does not wait for long.
const AHEAD: usize = 32;
/// Bytes that the log takes for a write besides its data, at most.
const LOG_OP: u64 = 128;

/// The bytes of each inode that have not been looked at: between two batches its records may be cut otherwise.
pub(crate) type Todo = BTreeMap<InodeId, Range<u64>>;

/// All bytes of an inode.
const ALL: Range<u64> = 0..u64::MAX;

/// Dirty records taken from an inode, whose turn is held. Dropped before they are settled they are dirty again.
struct Taken<'a> {
    volume: &'a Volume,
    inode: Arc<Inode>,
    /// As its writers saw it.
    item: items::Inode,
    record_size: u64,
    /// Places that it was accepted for.
    copies: u8,
    records: Vec<(u64, Arc<Pieces>)>,
    unlogged: Vec<Range<u64>>,
    /// Writes of more than one record.
    spans: Spans,
    /// Room that was taken for it, bytes.
    room: u64,
    /// Where the next one begins that is to be stored and was not taken.
    more: Option<u64>,
    /// None is to be stored from here on.
    until: u64,
    /// It is being cut anew, like this.
    cuts: Option<Cuts>,
}

impl Taken<'_> {
    /// Where to stop: within what is dirty in `all`, where the room ends and no write reaches over, unless that is too
    /// large to be stored at once; where stripes are full as well, if such a place is near.
    fn choose(&mut self, state: &State, all: Range<u64>, share: &mut Share) -> u64 {
        let (step, mut goes_on) = (self.record_size, None);
        // The last place at which stripes are full, and the end of the write that reaches over where the room ends.
        let (mut full, mut end) = (None, None);
        for (&record, pieces) in state.data.records.range(all.start / step..all.end.div_ceil(step)) {
            let base = (record * step).max(all.start);
            let across = state.data.spans.across(base);
            let is_full = across.is_none() && share.taken > 0 && share.taken.is_multiple_of(share.stripe);
            if is_full {
                full = Some(base);
            }
            if share.left == 0 && end.is_none() {
                let Some(span) = across else { return base };
                if full.is_some() || (span.end - base).next_multiple_of(step) > share.headroom {
                    return full.unwrap_or(base);
                }
                end = Some(span.end);
            } else if let Some(end) = end
                && (is_full || share.headroom < step)
            {
                return full.unwrap_or(end);
            }
            let whole = state.live.size.saturating_sub(record * step).min(step);
            let mut bytes = whole.max(pieces.len());
            if state.live.by_content() && goes_on != Some(record) {
                bytes += (TAKEN_ALONG as u64 * step).min(state.tree.size);
            }
            goes_on = Some(record + 1);
            self.room += bytes;
            share.taken += bytes;
            let more = if end.is_some() { &mut share.headroom } else { &mut share.left };
            *more = more.saturating_sub(bytes);
        }
        match (full, end) {
            (_, None) => all.end,
            (Some(full), _) => full,
            (None, Some(_)) if share.taken.is_multiple_of(share.stripe) => all.end,
            // More that is written fills the stripe.
            (None, Some(end)) if share.only_stripes && end.is_multiple_of(step) => all.start,
            (None, Some(end)) => end,
        }
    }

    /// Whether it is in the tree, or given up.
    fn is_stored(&self) -> bool {
        self.inode.state.lock().data.flushing.is_empty() && !self.records.is_empty()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.inode.state.lock();
        if state.data.flushing.is_empty() {
            return;
        }
        let before = state.data.bytes;
        self.spans.iter().for_each(|span| state.data.put_back(self.record_size, span));
        state.data.take_back();
        self.unlogged.iter().for_each(|range| state.data.unlogged.insert(range.clone()));
        self.volume.meter(before, &mut state);
    }
}

/// Budget of a flush.
struct Share {
    /// Bytes of records, unless a write goes on behind them.
    left: u64,
    /// Bytes that may be taken besides to where no write goes on.
    headroom: u64,
    /// Bytes that fill a stripe.
    stripe: u64,
    /// Data that does not fill one is left.
    only_stripes: bool,
    taken: u64,
}

/// An extent as it will be.
struct Built {
    inode: usize,
    offset: u64,
    old: Option<Extent>,
    /// Plain length; 0 when it becomes a hole.
    len: u32,
    /// Places of its block.
    copies: u8,
    ptr: Option<BlockPtr>,
}

impl Built {
    /// The extent that the file gets.
    fn extent(&self) -> Option<Extent> {
        let Self { len, copies, .. } = *self;
        self.ptr.map(|ptr| Extent { ptr, len, block_offset: 0, logical: len, placed: 0, copies })
    }
}

/// Records and holes that are stored together.
#[derive(Default)]
struct Batch {
    built: Vec<Built>,
    /// Of those built that are no holes, in their order.
    records: Vec<NewRecord>,
    /// Parts left to be stored, by the index of the inode.
    rests: BTreeMap<usize, Rest>,
}

impl Volume {
    /// Flushes until the pool can take `bytes` more of dirty data, or this volume has none.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        self.make_room_by(bytes, |id| self.flush_or_commit(id))
    }

    /// The same while the log is replayed, with so many operations left. Nothing can be committed then, so what is
    /// stored twice takes space twice: where that might not be there all of it stays in memory, which is at most what
    /// the log holds, and is stored once, as when it was accepted.
    pub(crate) fn make_room_in_replay(&self, bytes: u64, left: usize) -> Result<()> {
        let record_size = self.dataset.settings().record_size;
        let record = (TAKEN_ALONG as u64 + 1) * u64::from(record_size) * self.copies();
        let most = (left as u64 + 1).saturating_mul(record);
        let store = |id| {
            let is_plenty = self.pool.store().space(record_size).available >= most;
            if is_plenty { self.flush_one(id) } else { Err(FsError::NoSpace) }
        };
        match self.make_room_by(bytes, store) {
            Err(FsError::NoSpace) => Ok(()),
            made => made,
        }
    }

    fn make_room_by(&self, bytes: u64, store: impl Fn(InodeId) -> Result<()>) -> Result<()> {
        while self.pool.store().dirty().get() + bytes > self.pool.store().dirty_allowed() {
            let next = {
                let (dirty, mut from) = (self.dirty.lock(), self.flush_from.lock());
                let next = dirty.range(*from..).next().or(dirty.first()).copied();
                if let Some(next) = next {
                    *from = next.next();
                }
                next
            };
            let Some(next) = next else { return Ok(()) };
            store(next)?;
        }
        Ok(())
    }

    /// Stores what is dirty of an inode; everything is committed where that does not find room.
    pub(crate) fn flush_or_commit(&self, id: InodeId) -> Result<()> {
        match self.flush_one(id) {
            // Storing a part of what is dirty, and committing it, makes room for the rest.
            Err(FsError::NoSpace) => Ok(self.pool.commit().map(drop)?),
            flushed => flushed,
        }
    }

    /// Stores all that was dirty when it was called.
    pub fn flush_all(&self) -> Result<()> {
        let mut todo = self.dirty.lock().iter().map(|&id| (id, ALL)).collect::<Todo>();
        while !todo.is_empty() {
            self.look_ahead(todo.keys().copied())?;
            self.flush_batch(&self.pool.enter()?, &mut todo)?;
        }
        // With the gate closed everybody waits for what is read.
        let logged = self.logged.lock().clone();
        self.look_ahead(logged)
    }

    /// Brings what storing the dirty data of some inodes needs of the tree into memory, before the operation, on which
    /// a commit may wait. What cannot be read is met again.
    fn look_ahead(&self, ids: impl IntoIterator<Item = InodeId>) -> Result<()> {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for id in ids {
            let Ok(inode) = self.inode(id) else { continue };
            let state = inode.state.lock();
            keys.extend(
                state
                    .data
                    .records
                    .keys()
                    .map(|record| Key::new(id.get(), EXTENT, record * u64::from(state.live.record_size))),
            );
            keys.push(inode_key(id));
            bytes += state.data.bytes;
            if bytes >= BATCH {
                break;
            }
        }
        self.dataset.view()?.bring(&keys);
        Ok(())
    }

    /// Stores most of what was dirty when it was called, in whole stripes: what would leave columns of a stripe empty
    /// stays dirty, for what is written next to fill.
    pub(crate) fn flush_stripes(&self) -> Result<()> {
        let mut todo = self.dirty.lock().iter().map(|&id| (id, ALL)).collect::<Todo>();
        while !todo.is_empty() {
            self.look_ahead(todo.keys().copied())?;
            self.flush_some(&self.pool.enter()?, &mut todo, true)?;
        }
        Ok(())
    }

    /// Stores all that was dirty of one inode.
    pub(crate) fn flush_one(&self, id: InodeId) -> Result<()> {
        let mut todo = Todo::from([(id, ALL)]);
        while !todo.is_empty() {
            self.flush_batch(&self.pool.enter()?, &mut todo)?;
        }
        Ok(())
    }

    /// Stores what is dirty of the inodes whose data is in the log.
    pub fn flush_logged(&self, op: &Op<'_>) -> Result<()> {
        let logged = std::mem::take(&mut *self.logged.lock());
        let mut todo = logged.iter().map(|&id| (id, ALL)).collect::<Todo>();
        while !todo.is_empty() {
            if let Err(error) = self.flush_batch(op, &mut todo) {
                self.logged.lock().extend(logged);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Stores a batch of what is to do, and takes it off the list.
    pub(crate) fn flush_batch(&self, op: &Op<'_>, todo: &mut Todo) -> Result<()> {
        self.flush_some(op, todo, false)
    }

    /// As [`Volume::flush_batch`]; with `whole_stripes` what is not enough for a stripe is taken off the list and stays
    /// dirty.
    fn flush_some(&self, op: &Op<'_>, todo: &mut Todo, whole_stripes: bool) -> Result<()> {
        let record_size = self.dataset.settings().record_size;
        // One batch has data that was accepted for as many places.
        let first = todo.keys().find_map(|&id| self.inode(id).ok());
        let copies = first.map_or(1, |inode| self.copies_of(&inode.state.lock()));
        let storable = self.pool.store().storable_now(record_size, copies) / u64::from(copies);
        // A file that was only read has nothing but an inode to store; each inode and each record may lie in another
        // node of the tree.
        let nodes = self.pool.nodes_storable(op.watermark());
        if nodes == 0 {
            return Err(FsError::NoSpace);
        }
        let storable = storable.min(nodes.saturating_mul(record_size.into()));
        let most = BATCH.min(self.pool.stream_from()).min(storable);
        let mut room = self.pool.store().dirty().room(most, record_size.into());
        // The next batch goes on where this one ends.
        let abreast = self.pool.store().abreast(record_size);
        let whole = |bytes: u64| if bytes < 4 * abreast { bytes } else { bytes / abreast * abreast };
        room.shrink_to(whole(room.bytes()));
        let mut expected = 0;
        let (mut inodes, mut skipped) = (Vec::new(), Vec::new());
        for (&id, within) in todo.iter() {
            if expected >= room.bytes() || inodes.len() as u64 >= nodes {
                break;
            }
            match self.inode(id) {
                // Removed since it was put on the list.
                Err(FsError::NotFound) => skipped.push(id),
                // It cannot have anything that waits to be stored: then it would be in memory.
                Err(FsError::Damaged(_)) => {
                    self.dirty.lock().remove(&id);
                    skipped.push(id);
                }
                found => {
                    let inode = found?;
                    let state = inode.state.lock();
                    if !inodes.is_empty() && self.copies_of(&state) != copies {
                        break;
                    }
                    expected += state.data.bytes;
                    drop(state);
                    inodes.push((inode, within.clone()));
                }
            }
        }
        todo.retain(|id, _| skipped.binary_search(id).is_err());
        let only_stripes = whole_stripes && room.bytes() >= 4 * abreast;
        if only_stripes {
            room.shrink_to(expected / abreast * abreast);
            if room.bytes() == 0 {
                todo.clear();
                return Ok(());
            }
        }
        let _turns = inodes.iter().map(|(inode, _)| inode.turn.lock()).collect::<Vec<_>>();
        // After a panic the next holder of a turn would not find the data that was taken.
        let _watch = self.pool.store().watch("a flush");
        let headroom = storable.saturating_sub(room.bytes()).min(2 * SPAN_MAX);
        let mut share = Share { left: room.bytes(), headroom, stripe: abreast, only_stripes, taken: 0 };
        let mut taken = Vec::new();
        let mut rest = Todo::new();
        for (inode, within) in &inodes {
            // Whole records took more than was written.
            if share.left == 0 {
                rest.insert(inode.id, within.clone());
                continue;
            }
            let (records, next) = self.take(inode, within.clone(), &mut share);
            taken.extend(records);
            if let Some(next) = next {
                rest.insert(inode.id, next);
            }
        }
        room.resize(share.taken);
        point("data was taken to be stored");
        match self.store_taken(op, &taken) {
            Ok(mut not_stored) => rest.append(&mut not_stored),
            // One of them cannot be stored where its tree is damaged: the others can.
            Err(FsError::Damaged(_)) => {
                for one in taken.chunks(1).filter(|one| !one[0].is_stored()) {
                    match self.store_taken(op, one) {
                        Ok(mut not_stored) => rest.append(&mut not_stored),
                        Err(error @ FsError::Damaged(_)) => {
                            self.check_silence()?;
                            self.give_up(&one[0], error);
                        }
                        failed => return failed.map(drop),
                    }
                }
            }
            failed => return failed.map(drop),
        }
        for (inode, _) in &inodes {
            todo.remove(&inode.id);
        }
        todo.append(&mut rest);
        Ok(())
    }

    /// Takes what is dirty of the bytes given while there is room; also says which are left.
    fn take(
        &self,
        inode: &Arc<Inode>,
        within: Range<u64>,
        share: &mut Share,
    ) -> (Option<Taken<'_>>, Option<Range<u64>>) {
        let Ok(mut state) = inode.lock() else { return (None, None) };
        assert!(state.data.flushing.is_empty(), "whoever had the turn before has settled what was taken");
        // An operation still to be replayed may give it its first name.
        if !self.is_needed(inode.id, &state) && !self.pool.is_replaying() {
            self.discard(inode.id, &mut state);
            return (None, None);
        }
        let record_size = u64::from(state.live.record_size);
        let mut taken = Taken {
            volume: self,
            inode: Arc::clone(inode),
            item: state.live,
            record_size,
            copies: self.copies_of(&state),
            records: Vec::new(),
            unlogged: Vec::new(),
            spans: Spans::default(),
            room: 0,
            more: None,
            until: (state.data.records.last_key_value())
                .map_or(0, |(last, _)| within.end.min((last + 1) * record_size)),
            cuts: state.recut.map(|recut| recut.cuts),
        };
        if within.start >= taken.until {
            return (Some(taken), None);
        }
        let all = state.data.whole_writes(within.start..taken.until);
        let stop = taken.choose(&state, all.clone(), share);
        let mut at = all.start;
        while let Some((&record, _)) = state.data.records.range(at / record_size..).next()
            && record * record_size < stop
        {
            let base = record * record_size;
            let part = base.max(all.start)..stop.min(base + record_size);
            let pieces = state.data.take(record, (part.start - base) as u32..(part.end - base) as u32);
            taken.unlogged.extend(state.data.unlogged.within(part.clone()));
            state.data.unlogged.remove(part);
            if pieces.len() > 0 {
                state.data.flushing.insert(record, Arc::clone(&pieces));
                taken.records.push((record, pieces));
            }
            at = base + record_size;
        }
        taken.spans = state.data.spans.take(all.start..stop);
        // One that is too large is torn, and what ends here can be left.
        taken.spans.cut(stop);
        let is_left = share.only_stripes && stop == all.start;
        let next = (stop < all.end && !is_left).then(|| {
            taken.more = state.data.first_from(stop, record_size);
            stop / record_size * record_size..taken.until
        });
        (Some(taken), next)
    }

    /// Forgets an inode's dirty data; nobody can read it any more.
    pub(crate) fn discard(&self, id: InodeId, state: &mut State) {
        let dirty = state.data.bytes;
        state.data = DirtyData::default();
        self.meter(dirty, state);
        state.queued = false;
        self.dirty.lock().remove(&id);
        self.logged.lock().remove(&id);
    }

    /// Gives up data that can never be stored, for nothing can be put into the file's tree any more; all that was
    /// written to the file since is lost with it.
    fn give_up(&self, taken: &Taken<'_>, error: FsError) {
        let mut state = taken.inode.state.lock();
        self.discard(taken.inode.id, &mut state);
        state.live = state.tree;
        state.grown = false;
        state.failures.note(error);
    }

    /// Stores what was taken and brings the trees up to date; tells what is left, and where.
    fn store_taken(&self, op: &Op<'_>, taken: &[Taken<'_>]) -> Result<Todo> {
        let mut batch = Batch::default();
        // Where an inode cannot be read nothing may be stored for it.
        for some in taken.chunks(AHEAD) {
            let keys: Vec<_> = some.iter().map(|taken| inode_key(taken.inode.id)).collect();
            self.dataset.look(|view| {
                view.bring(&keys);
                keys.iter().try_for_each(|key| view.reach(key))
            })?;
        }
        self.build_fixed(taken, &mut batch)?;
        for (index, from) in taken.iter().enumerate() {
            if from.item.by_content() && !from.records.is_empty() {
                self.build_by_content(index, from, &mut batch)?;
            }
        }
        let Batch { mut built, records, rests } = batch;
        let mut pointers =
            if records.is_empty() { Vec::new() } else { self.pool.store_records(op, records)? }.into_iter();
        for record in built.iter_mut().filter(|record| record.len > 0) {
            record.ptr = Some(pointers.next().expect("the pool gives one pointer for each record"));
        }
        built.sort_by_key(|record| record.inode);
        let mut left = built.as_slice();
        let mut todo = Todo::new();
        for (index, from) in taken.iter().enumerate() {
            let (mine, others) = left.split_at(left.partition_point(|record| record.inode == index));
            let rest = rests.get(&index);
            self.put_extents(op, from, mine, rest)?;
            let record = |at: u64| at / from.record_size * from.record_size;
            todo.extend(rest.map(|rest| (from.inode.id, record(rest.from)..from.until)));
            left = others;
        }
        Ok(todo)
    }

    /// An extent, or a hole, will be replaced by a record, or a hole.
    fn build(
        &self,
        batch: &mut Batch,
        mut built: Built,
        from: &Taken<'_>,
        plain: Option<Record>,
        replaces: Option<BlockId>,
    ) {
        let settings = self.dataset.settings();
        let zero = |plain: &Record| settings.codec != Codec::Off && is_zero(plain);
        if let Some(plain) = plain.filter(|plain| !zero(plain)) {
            built.len = plain.len() as u32;
            batch.records.push(NewRecord {
                dataset: self.id(),
                inode: from.inode.id.get(),
                offset: built.offset,
                plain,
                codec: settings.codec,
                encoded: None,
                checksum: settings.checksum,
                dedup: settings.dedup,
                copies: from.copies,
                replaces,
            });
            built.copies = from.copies;
        }
        batch.built.push(built);
    }

    /// Completes the records of files that are cut at multiples of the record size.
    fn build_fixed(&self, taken: &[Taken<'_>], batch: &mut Batch) -> Result<()> {
        let fixed = taken.iter().enumerate().filter(|(_, from)| !from.item.by_content());
        let records: Vec<_> = fixed
            .flat_map(|(index, from)| from.records.iter().map(move |record| (index, from, record)))
            .map(|(index, from, (record, pieces))| (index, record * from.record_size, pieces))
            .collect();
        let mut olds = Vec::new();
        for some in records.chunks(AHEAD) {
            let at = |&(index, offset, _): &(usize, u64, _)| (taken[index].inode.id, offset);
            let key = |record| {
                let (id, offset) = at(record);
                Key::new(id.get(), EXTENT, offset)
            };
            let keys: Vec<_> = some.iter().map(key).collect();
            let found = self.dataset.look(|view| {
                view.bring(&keys);
                let old = |(id, offset)| Ok::<_, FsError>(extents(view, id, offset..offset + 1, 1)?.pop());
                some.iter().map(at).map(old).collect::<Result<Vec<_>>>()
            })?;
            let found = some.iter().zip(found);
            olds.extend(found.map(|(&(index, offset, pieces), old)| {
                (index, offset, pieces, old.map(|(_, extent)| extent))
            }));
        }
        let mut left = olds.as_slice();
        while !left.is_empty() {
            let mut bytes = 0;
            let mut within = |(_, _, _, old): &(_, _, _, Option<Extent>)| {
                bytes += old.map_or(0, |extent| extent.logical as usize);
                bytes <= BASES
            };
            let (some, rest) = left.split_at(left.iter().take_while(|one| within(one)).count().max(1));
            left = rest;
            // The old blocks of records written in part are read first, all at once.
            let partial = some.iter().filter_map(|(_, _, pieces, old)| {
                old.filter(|extent| !pieces.covers(0..extent.len)).map(|extent| extent.ptr)
            });
            let bases = self.pool.store().read_all(&partial.collect::<Vec<_>>());
            for &(index, offset, pieces, old) in some {
                let from = &taken[index];
                let Some(plain) = self.complete(from, offset, pieces, old, &bases)? else { continue };
                let built = Built { inode: index, offset, old, len: 0, copies: 1, ptr: None };
                self.build(batch, built, from, Some(plain), old.map(|old| old.ptr.id));
            }
        }
        Ok(())
    }

    /// Cuts what was taken of a file that is cut by content.
    fn build_by_content(&self, index: usize, from: &Taken<'_>, batch: &mut Batch) -> Result<()> {
        let (id, item, room) = (from.inode.id, from.item, from.room);
        let (records, spans) = (&from.records, &from.spans);
        let (more, cuts) = (from.more, from.cuts);
        let recut = self.recut(&Written { id, item, records, spans, more, room, cuts })?;
        for (offset, change) in recut.changes {
            let built = Built { inode: index, offset, old: change.old, len: 0, copies: 1, ptr: None };
            self.build(batch, built, from, change.new, change.replaces);
        }
        batch.rests.extend(recut.rest.map(|rest| (index, rest)));
        if let Some(lost) = recut.lost {
            from.inode.state.lock().failures.note(lost);
        }
        Ok(())
    }

    /// Fails where data is not damaged but a device does not answer: the flush can be tried again, nothing is given up.
    pub(crate) fn check_silence(&self) -> Result<()> {
        self.pool.store().silence().map_or(Ok(()), |error| Err(FsError::Io(error.to_string())))
    }

    /// The whole content of a record; `None` when the part that was not written cannot be read.
    fn complete(
        &self,
        from: &Taken<'_>,
        offset: u64,
        pieces: &Pieces,
        old: Option<Extent>,
        bases: &HashMap<BlockId, Record>,
    ) -> Result<Option<Record>> {
        let len = pieces.end().max(old.map_or(0, |extent| extent.len));
        if let Some(whole) = pieces.whole(len) {
            return Ok(Some(whole));
        }
        let mut plain = vec![0; len as usize];
        if let Some(extent) = old.filter(|_| !pieces.covers(0..len)) {
            match self.plain_among(&extent, bases) {
                Ok(base) => plain[..base.len()].copy_from_slice(&base),
                Err(error) => {
                    self.check_silence()?;
                    self.note_damage(from.inode.id, &(offset, extent));
                    from.inode.state.lock().failures.note(error);
                    return Ok(None);
                }
            }
        }
        pieces.copy_onto(0..len, &mut plain);
        Ok(Some(plain.into()))
    }

    /// Puts an inode's new extents into the tree; what was taken from it is dirty no more, but for a rest.
    fn put_extents(
        &self,
        op: &Op<'_>,
        taken: &Taken<'_>,
        built: &[Built],
        rest: Option<&Rest>,
    ) -> Result<()> {
        let id = taken.inode.id;
        let mut guard = taken.inode.state.lock();
        let state: &mut State = &mut guard;
        let clean = state.data.records.is_empty() && rest.is_none();
        let mut item = state.live;
        if !clean {
            // Bytes not stored yet must not be promised by the size.
            let last = taken.records.last();
            let end = last.map_or(0, |(record, pieces)| record * taken.record_size + u64::from(pieces.end()));
            let end = rest.map_or(end, |rest| end.min(rest.from));
            item.size = state.tree.size.max(end.min(state.live.size));
        }
        for record in built {
            record.old.iter().for_each(|old| item.forget_extent(old));
            record.extent().iter().for_each(|new| item.count_extent(new));
        }
        let key = |offset| Key::new(id.get(), EXTENT, offset);
        let divided = rest.and_then(|rest| rest.divided.as_ref());
        let offsets = built.iter().map(|record| record.offset);
        let offsets = offsets.chain(divided.into_iter().flat_map(|end| [end.was_at, end.offset]));
        let mut keys: Vec<_> = offsets.map(key).chain([inode_key(id)]).collect();
        keys.sort_unstable();
        let holes = built.iter().filter(|record| record.extent().is_none() && record.old.is_some());
        let holes = holes.map(|record| record.offset).chain(divided.map(|end| end.was_at));
        let mut holes: Vec<_> = holes.map(key).collect();
        holes.sort_unstable();
        let reads = |tree: &Ahead<'_>| {
            tree.bring(&keys);
            keys.iter().try_for_each(|key| tree.reach(key))?;
            tree.reach_removal(&holes)
        };
        self.dataset.update_after(op, reads, |tree| {
            if let Some(end) = divided {
                // The same block, so nothing is dropped.
                tree.remove(&key(end.was_at))?;
                tree.put_extent(key(end.offset), end.extent)?;
                tree.move_block(end.extent.ptr);
            }
            for record in built {
                if let Some(extent) = record.extent() {
                    tree.put_extent(key(record.offset), extent)?;
                    tree.link_block(&extent);
                } else if record.old.is_some() {
                    tree.remove(&key(record.offset))?;
                }
                if let Some(old) = record.old {
                    tree.drop_block(&old);
                }
            }
            tree.insert(inode_key(id), &item.encode())
        })?;
        point("data is stored and not clean");
        state.tree = item;
        if let Some(recut) = &mut state.recut {
            let placed = built.iter().filter_map(|record| Some((record.offset, record.extent()?)));
            placed.for_each(|(offset, extent)| recut.note(offset, &extent));
            divided.into_iter().for_each(|end| recut.note(end.offset, &end.extent));
        }
        (state.live.stored, state.live.data) = (item.stored, item.data);
        let before = state.data.bytes;
        let left = rest.map_or(u64::MAX, |rest| rest.from);
        for span in taken.spans.iter().filter(|span| span.end > left) {
            state.data.put_back(taken.record_size, span);
        }
        state.data.finish_flush(taken.record_size, left);
        for range in &taken.unlogged {
            state.data.unlogged.insert(range.start.max(left)..range.end.max(left));
        }
        self.meter(before, state);
        if !taken.unlogged.is_empty() || (clean && state.grown) {
            state.stored_in = self.pool.note_unlogged();
        }
        if clean {
            state.grown = false;
            state.queued = false;
            self.dirty.lock().remove(&id);
        }
        Ok(())
    }

    /// Tells a handle of failures to store earlier writes, once.
    pub fn report(&self, id: InodeId, handle: Handle) -> Result<()> {
        self.inode(id)?.state.lock().failures.tell(handle)
    }

    /// Returns when everything done to the inode before is durable; tells a handle what never will be.
    pub fn fsync(&self, id: InodeId, handle: Handle) -> Result<()> {
        if self.dataset.is_snapshot() {
            return self.report(id, handle);
        }
        let mut large = None;
        let mut admit = |bytes| {
            // Given back first is what it had before.
            large = None;
            large = self.pool.admit_large_sync(bytes);
            large.is_some()
        };
        let mut is_noted = self.note_data(id, &mut admit)?;
        if !is_noted {
            // The commit under way may be all that it takes.
            self.pool.await_commit();
            is_noted = self.note_data(id, &mut admit)?;
        }
        if !is_noted {
            self.pool.commit()?;
        } else {
            match self.pool.log_sync() {
                // Then nothing was changed either.
                Err(PoolError::ReadOnly) => {}
                synced => synced?,
            }
        }
        drop(large);
        self.report(id, handle)
    }

    /// Notes all dirty data for the log; false when only a commit can make it durable.
    pub(crate) fn note_dirty(&self, left: &mut u64) -> Result<bool> {
        let dirty: Vec<_> = self.dirty.lock().iter().copied().collect();
        if dirty.len() > LOG_INODES {
            return Ok(false);
        }
        for id in dirty {
            let inode = match self.inode(id) {
                // It has nothing that waits to be stored, or it would be in memory.
                Err(FsError::NotFound | FsError::Damaged(_)) => continue,
                found => found?,
            };
            let unlogged = inode.state.lock().data.unlogged.len();
            let noted = if unlogged > *left { Ok(false) } else { self.note_data(id, |_| false) };
            match noted {
                Ok(true) | Err(FsError::NotFound) => *left -= unlogged.min(*left),
                Err(FsError::Damaged(_)) => return Ok(false),
                noted => return noted,
            }
        }
        Ok(true)
    }

    /// Notes an inode's dirty data for the log; false when only a commit can make it durable. What is much is noted if
    /// `admit` says so, with the bytes that it takes.
    fn note_data(&self, id: InodeId, admit: impl FnOnce(u64) -> bool) -> Result<bool> {
        let inode = self.inode(id)?;
        {
            // Nothing to note, and perhaps nothing that may be written to.
            let state = inode.lock()?;
            if state.data.is_empty() && !state.grown && state.stored_in <= self.pool.store().durable_commit()
            {
                return Ok(true);
            }
        }
        let op = self.pool.enter()?;
        let _turn = inode.turn.lock();
        let mut guard = inode.lock()?;
        let state: &mut State = &mut guard;
        if state.stored_in > self.pool.store().durable_commit() {
            return Ok(false);
        }
        let (bytes, ranges) = (state.data.unlogged.len(), state.data.unlogged.count() as u64);
        // A range may begin and end within a record, and has parts of others between.
        let ops = 2 * ranges + bytes / u64::from(state.live.record_size).clamp(1, LOG_PIECE as u64);
        let is_large = bytes > LOG_AT_MOST || ranges * LOG_OP > LOG_AT_MOST;
        if is_large && !admit(bytes + ops * LOG_OP) {
            return Ok(false);
        }
        let record_size = u64::from(state.live.record_size);
        // The commit that stores what is logged cannot be put off; so not more than it has room for.
        if record_size > 0
            && self.pool.store().dirty().needed() / record_size
                > self.pool.nodes_storable(self.pool.watermark())
        {
            return Ok(false);
        }
        let mut ops = Vec::new();
        for range in state.data.unlogged.iter() {
            let mut at = range.start;
            while at < range.end {
                let record = at / record_size;
                let base = record * record_size;
                let end = range.end.min(base + record_size).min(at + LOG_PIECE as u64);
                let mut data = vec![0; (end - at) as usize];
                let pieces = state.data.records.get(&record).expect("what is not logged is in memory");
                pieces.copy_onto((at - base) as u32..(end - base) as u32, &mut data);
                let (size, mtime) = (state.live.size, state.live.mtime);
                ops.push(LogOp::Write(Write { inode: id, offset: at, data, size, mtime }));
                at = end;
            }
        }
        if ops.is_empty() && state.grown {
            ops.push(LogOp::SetAttr(SetAttr {
                inode: id,
                perm: None,
                uid: None,
                gid: None,
                resize: Some(Resize::Grow(state.live.size)),
                atime: None,
                mtime: Some(state.live.mtime),
                btime: None,
                ctime: state.live.ctime,
            }));
        }
        if ops.is_empty() {
            return Ok(true);
        }
        self.dataset.update_after(&op, reaching([]), |tree| {
            tree.log_together(ops.iter().map(LogOp::encode));
            Ok(())
        })?;
        state.data.unlogged = Default::default();
        state.grown = false;
        self.logged.lock().insert(id);
        Ok(true)
    }
}
