//! Receiving a snapshot: chunk by chunk into the staging dataset, each in one operation.
//!
//! Nothing that came is believed. Keys ascend; values decode, and say what can be; records decode to the length that
//! they say, and are summed anew; extents do not overlap; names hash to their keys; and at the end names and inodes
//! agree with each other ([`crate::agreement`]). Numbers that this pool counts (stored bytes of files) are counted
//! here. Until all of that is so nobody sees any of it.

use crate::agreement::{Agreement, Change};
use crate::error::{StreamError, Wrong};
use crate::wire::{BEGIN_RESUMED, Begin, Cover, Decoder, End, Frame, Item, Place, Stored};
use larder_format::items::{
    ENTRY, EXTENT, Entry, Extent, FileKind, INODE, Inode, LAST_INODE, MAX_COLLISIONS, MAX_INODE, MAX_TARGET,
    NameKey, ORPHAN, ROOT_INODE, SYMLINK, XATTR, XATTR_PIECE, XATTR_PIECES, Xattr, XattrValue,
};
use larder_format::node::Key;
use larder_format::tables::ReceivingRecord;
use larder_format::{BlockId, BlockPtr, InodeId};
use larder_pool::{Ahead, Dataset, Incoming, Look, NewRecord, Pool, PoolError, SnapshotView, Update, codec};
use std::collections::HashMap;
use std::io::Read;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Inode ids of a stream are below this one, so that as many are left here.
const NEXT_INODE_MAX: u64 = LAST_INODE / 2;
/// Changes that are made in one operation, at least, where a stream clears.
const CHANGES: usize = 2048;
/// Extents of a file that are looked at while its tree is held.
const WALKED: usize = 1 << 14;
/// Numbers of values of attributes are below this one.
const PIECES_END: u64 = 1 << 40;

/// A snapshot on its way in.
pub struct Receive {
    pool: Arc<Pool>,
    incoming: Incoming,
    base: Option<SnapshotView>,
    names: NameKey,
    state: ReceivingRecord,
    /// The last extent up to `position`, if the file there has one: its inode, and where it ends.
    last_extent: Option<(u64, u64)>,
    /// Inode ids are below this one.
    next_inode: u64,
    received: End,
    /// The item before, as far as the next one has to do with it.
    before: Option<(Key, bool)>,
    /// From here on nothing stays but what comes.
    clears: Option<Key>,
}

/// An item whose record is stored.
enum Ready {
    Remove(Key),
    Put(Key, bytes::Bytes),
    Extent(Key, Extent, Came),
}

/// Origin of an extent's record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// The stream.
    New,
    /// The base, which has it under the same key, and nobody else.
    Stays,
    /// Another extent, which has it too.
    Shared,
}

impl Ready {
    fn key(&self) -> Key {
        match self {
            Self::Remove(key) | Self::Put(key, _) | Self::Extent(key, ..) => *key,
        }
    }
}

impl Receive {
    /// The record of a snapshot of which nothing came yet: what `begin` says, under this name; `base` is the `high` of
    /// the snapshot that it builds upon, `seed` a random number.
    pub fn record(
        begin: &Begin,
        name: &str,
        base: Option<BlockId>,
        seed: u64,
        resumable: bool,
        made: bool,
    ) -> ReceivingRecord {
        ReceivingRecord {
            base,
            to: begin.to,
            from: begin.from,
            created: begin.created,
            resumable,
            made,
            position: None,
            bytes: 0,
            stored: (0, 0),
            data: (0, 0),
            seed,
            sums: [0; 5],
            offsets: 0,
            longest: 0,
            inner: false,
            name: name.to_owned(),
            sender: begin.name.clone(),
        }
    }

    /// Begins, or goes on, with what `begin` says.
    ///
    /// # Errors
    /// When the stream does not go on where what was received ends.
    pub fn new(pool: &Arc<Pool>, incoming: Incoming, begin: &Begin) -> Result<Self, StreamError> {
        let gone = || PoolError::NotFound("the stream that is received".into());
        let state = incoming.record().ok_or_else(gone)?;
        let resumes = begin.flags & BEGIN_RESUMED != 0;
        let is_next = state.position == resumes.then_some(begin.position);
        if (state.to, state.from) != (begin.to, begin.from) || !is_next {
            return Err(StreamError::Bad { at: 0, wrong: Wrong::Order });
        }
        let missing = || PoolError::NotFound("the snapshot that the stream builds upon".into());
        let base = match incoming.base() {
            Some(base) if base.guid == state.from => {
                Some(pool.snapshot_view_of(base.dataset, base.high).ok_or_else(missing)?)
            }
            // It would take what it refers to from another one.
            Some(_) => return Err(missing().into()),
            None if state.base.is_some() => return Err(missing().into()),
            None => None,
        };
        let names = incoming.staging().name_key();
        let next_inode = begin.next_inode.clamp(2, NEXT_INODE_MAX);
        let before = state.position.map(|position| (position, false));
        let mut receive = Self {
            pool: Arc::clone(pool),
            incoming,
            base,
            names,
            state,
            last_extent: None,
            next_inode,
            received: End::default(),
            before,
            clears: None,
        };
        receive.last_extent = receive.extent_at_position()?;
        Ok(receive)
    }

    /// The stream is where what was received before ends: the last extent of the file there, if that is not past them.
    fn extent_at_position(&self) -> Result<Option<(u64, u64)>, StreamError> {
        let Some(key) = self.state.position.filter(|key| key.kind == EXTENT) else { return Ok(None) };
        let last = self.incoming.staging().view()?.last_before(&key)?;
        let Some((at, value)) = last.filter(|(at, _)| (at.object, at.kind) == (key.object, EXTENT)) else {
            return Ok(None);
        };
        let extent = Extent::decode(&value).map_err(PoolError::from)?;
        Ok(Some((at.object, at.offset + u64::from(extent.len))))
    }

    /// Receives up to the end of the snapshot.
    ///
    /// # Errors
    /// When the stream is bad, or ends early, or the pool refuses. What came before stays.
    pub fn run<R: Read>(&mut self, stream: &mut Decoder<R>) -> Result<(), StreamError> {
        loop {
            let begins_at = stream.at();
            let frame = stream.frame()?;
            let refuse = |wrong| StreamError::Bad { at: begins_at, wrong };
            match frame {
                Frame::Chunk(items) => {
                    let bytes = stream.at() - begins_at;
                    self.chunk(items, bytes, &refuse)?;
                }
                Frame::End(end) => {
                    if end != self.received || self.clears.is_some() {
                        return Err(refuse(Wrong::Order));
                    }
                    return self.end(&refuse);
                }
                _ => return Err(refuse(Wrong::Order)),
            }
        }
    }

    /// It is whole, and may be taken over.
    pub fn into_incoming(self) -> Incoming {
        self.incoming
    }

    fn chunk(
        &mut self,
        items: Vec<Item>,
        bytes: u64,
        refuse: &impl Fn(Wrong) -> StreamError,
    ) -> Result<(), StreamError> {
        let count = items.len() as u64;
        let mut changes = Vec::with_capacity(items.len());
        for item in items {
            if self.before.is_some_and(|before| !item.may_follow(before)) {
                return Err(refuse(Wrong::Order));
            }
            self.before = Some(item.as_before());
            match item {
                Item::Clear(from) => {
                    let may_clear = self.clears.is_none() && self.base.is_some();
                    self.clears = may_clear.then_some(Some(from)).ok_or_else(|| refuse(Wrong::Order))?;
                }
                Item::Keep(to) => {
                    let from = self.clears.take().ok_or_else(|| refuse(Wrong::Order))?;
                    self.clear(from, to, &mut changes, refuse)?;
                }
                item => {
                    self.check(&item).map_err(refuse)?;
                    if let Some(from) = self.clears {
                        self.clear(from, item.key(), &mut changes, refuse)?;
                        self.clears = item.key().successor();
                    }
                    changes.push(item);
                }
            }
        }
        self.change(changes, bytes, refuse)?;
        self.received.items += count;
        Ok(())
    }

    /// Adds what removes all that is there from `from` up to `to`, which is behind `changes`. What is too much for one
    /// operation goes at once.
    fn clear(
        &mut self,
        mut from: Key,
        to: Key,
        changes: &mut Vec<Item>,
        refuse: &impl Fn(Wrong) -> StreamError,
    ) -> Result<(), StreamError> {
        let staging = Arc::clone(self.incoming.staging());
        loop {
            let (mut last, mut more) = (None, false);
            let range = (Bound::Included(from), Bound::Excluded(to));
            staging.view()?.scan_within(range, &mut |key, _| {
                changes.push(Item::Remove(*key));
                (last, more) = (Some(*key), changes.len() >= CHANGES);
                if more { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            let Some(next) = last.filter(|_| more).and_then(|last| last.successor()) else { return Ok(()) };
            self.change(std::mem::take(changes), 0, refuse)?;
            from = next;
        }
    }

    /// Makes changes, in one operation; so many bytes of the stream came with them.
    fn change(
        &mut self,
        items: Vec<Item>,
        bytes: u64,
        refuse: &impl Fn(Wrong) -> StreamError,
    ) -> Result<(), StreamError> {
        if items.is_empty() {
            return Ok(());
        }
        let records = self.records(&items, refuse)?;
        let staging = Arc::clone(self.incoming.staging());
        let stored: u64 = items
            .iter()
            .map(|item| match item {
                Item::Data(_, _, stored) => stored.payload.len() as u64 + 256,
                Item::Same(..) => 64,
                Item::Put(_, value) => value.len() as u64 + 64,
                Item::Remove(_) | Item::Clear(_) | Item::Keep(_) => 0,
            })
            .sum();
        let pool = Arc::clone(&self.pool);
        pool.check_room(&staging, stored, || false)?;
        pool.make_changes_fit()?;
        let stored = stored * u64::from(staging.settings().copies);
        pool.claim(staging.id(), stored)?;
        let applied = self.apply(&staging, items, records, bytes, refuse);
        pool.adjust_claim(staging.id(), stored, 0);
        applied
    }

    /// Stores the records of a chunk and changes the tree.
    fn apply(
        &mut self,
        staging: &Dataset,
        items: Vec<Item>,
        records: Vec<NewRecord>,
        bytes: u64,
        refuse: &impl Fn(Wrong) -> StreamError,
    ) -> Result<(), StreamError> {
        let pool = Arc::clone(&self.pool);
        self.check_cuts(staging, &items)?.map_err(refuse)?;
        let op = pool.enter()?;
        let copies = records.first().map_or(1, |record| record.copies);
        let pointers = if records.is_empty() { Vec::new() } else { pool.store_records(&op, records)? };
        let stored = pointers.clone();
        let mut state = self.state.clone();
        let mut agreement = Agreement::new(state.seed, state.sums);
        let mut open = Open::of(&state);
        let (mut received, mut last_extent) = (self.received, self.last_extent);
        // Errors that come before the first change, after which none may.
        let plan = || {
            // Nobody else changes it.
            let tree = &staging.view()?;
            let old = self.old_values(tree, &items)?;
            let ready = self.resolve(tree, &items, (pointers, copies))?.map_err(refuse)?;
            last_extent = self.check_extents(tree, &ready, &old)?.map_err(refuse)?;
            let plan = Plan::of(tree, ready, old, &mut open, &mut agreement)?.map_err(refuse)?;
            open.put(&mut state);
            state.position = items.last().map(Item::key);
            state.bytes += bytes;
            state.sums = agreement.sums;
            Ok::<_, StreamError>(plan)
        };
        let applied = plan().and_then(|plan| {
            let reads = plan.reads();
            staging.update_after::<_, StreamError>(&op, reads, |tree| {
                // Before the first change: where it cannot be noted, nothing is changed.
                self.incoming.note(&op, state.clone())?;
                plan.apply(tree)?;
                tree.note_inode(InodeId::new(self.next_inode.saturating_sub(1)));
                Ok(())
            })
        });
        if let Err(error) = applied {
            // Nothing names them.
            staging.update_after::<_, PoolError>(
                &op,
                |_| Ok(()),
                |tree| {
                    for ptr in stored {
                        let extent = Extent { ptr, len: 0, block_offset: 0, logical: 0, placed: 0, copies };
                        tree.link_block(&extent);
                        tree.drop_block(&extent);
                    }
                    Ok(())
                },
            )?;
            return Err(error);
        }
        for item in &items {
            if let Item::Data(_, _, stored) = item {
                received.records += 1;
                received.bytes += stored.payload.len() as u64;
            }
        }
        (self.state, self.received, self.last_extent) = (state, received, last_extent);
        Ok(())
    }

    /// Checks extents that stay in files of which a chunk says that they are cut otherwise now; in one that is cut by
    /// content they may lie anywhere. There may be many, and nobody else changes them: no operation is held.
    fn check_cuts(&self, staging: &Dataset, items: &[Item]) -> Result<Result<(), Wrong>, StreamError> {
        for item in items {
            let Item::Put(key, value) = item else { continue };
            let size = match Inode::decode(value) {
                Ok(inode) if key.kind == INODE && !inode.by_content() => inode.record_size,
                _ => continue,
            };
            let old = staging.view()?.get(key)?;
            let old = old.map(|value| Inode::decode(&value)).transpose().map_err(PoolError::from)?;
            let is_other = |old: Inode| old.by_content() || old.record_size != size;
            if size == 0 || !old.is_some_and(is_other) {
                continue;
            }
            let mut from = Some(Key::new(key.object, EXTENT, 0));
            while let Some(at) = from.take() {
                let (mut left, mut odd) = (WALKED, None);
                let to = Bound::Included(Key::new(key.object, EXTENT, u64::MAX));
                staging.view()?.scan_within((Bound::Included(at), to), &mut |key, value| {
                    let fits = Extent::decode(value).is_ok_and(|extent| {
                        let is_whole = extent.block_offset == 0 && extent.len.max(extent.logical) <= size;
                        is_whole && key.offset.is_multiple_of(size.into())
                    });
                    // Those that come with the chunk are looked at by themselves.
                    let comes = || items.binary_search_by_key(key, Item::key).is_ok();
                    if left == 0 {
                        from = Some(*key);
                    } else if !fits && !comes() {
                        odd = Some(*key);
                    }
                    let is_over = left == 0 || odd.is_some();
                    left = left.saturating_sub(1);
                    if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })?;
                if odd.is_some() {
                    return Ok(Err(Wrong::Disagreement));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Checks what an item says by itself.
    fn check(&self, item: &Item) -> Result<(), Wrong> {
        let key = item.key();
        let is_inode = |id: u64| (1..=MAX_INODE).contains(&id) && id < self.next_inode;
        let value = match item {
            Item::Put(_, value) => value,
            // Of what is not there nothing goes: that is seen later.
            _ => {
                return if is_inode(key.object) || key.kind == ORPHAN { Ok(()) } else { Err(Wrong::Range) };
            }
        };
        let fits = match key.kind {
            ORPHAN => key.object == 0 && is_inode(key.offset) && value.is_empty(),
            _ if !is_inode(key.object) => false,
            INODE => {
                let inode = Inode::decode(value)?;
                let is_dir = inode.kind == FileKind::Directory;
                let root = InodeId::new(key.object) == ROOT_INODE;
                key.offset == 0 && is_inode(inode.parent.get().max(1)) && (is_dir || !root)
            }
            ENTRY => {
                let entry = Entry::decode(value)?;
                self.is_cookie(key.offset, entry.name) && is_inode(entry.inode.get())
            }
            XATTR => {
                let xattr = Xattr::decode(value)?;
                let fits = match xattr.value {
                    XattrValue::Inline(_) => true,
                    XattrValue::Pieces { number, .. } => number < PIECES_END,
                };
                fits && self.is_cookie(key.offset, xattr.name)
            }
            XATTR_PIECE => !value.is_empty() && key.offset / XATTR_PIECES < PIECES_END,
            SYMLINK => key.offset == 0 && (1..=MAX_TARGET).contains(&value.len()) && !value.contains(&0),
            _ => return Err(Wrong::Feature),
        };
        if fits { Ok(()) } else { Err(Wrong::Range) }
    }

    fn is_cookie(&self, at: u64, name: &[u8]) -> bool {
        let first = self.names.cookie(name);
        (first..first.saturating_add(MAX_COLLISIONS)).contains(&at)
    }

    /// The records of a chunk, decoded.
    fn records(
        &self,
        items: &[Item],
        refuse: &impl Fn(Wrong) -> StreamError,
    ) -> Result<Vec<NewRecord>, StreamError> {
        let data: Vec<(Key, Cover, &Stored)> = items
            .iter()
            .filter_map(|item| match item {
                Item::Data(key, cover, stored) => Some((*key, *cover, stored)),
                _ => None,
            })
            .collect();
        let room = self.pool.store().max_record();
        if let Some((_, cover, _)) = data.iter().find(|(_, cover, _)| cover.logical > room) {
            return Err(StreamError::RecordTooLong { found: cover.logical, room });
        }
        let decode = |i: usize| {
            let (_, cover, stored) = &data[i];
            match stored.codec {
                larder_format::block::CodecKind::Off => Ok(stored.payload.clone()),
                kind => codec::decompress(kind, &stored.payload, cover.logical as usize).map(Into::into),
            }
        };
        let plain = self.pool.store().world.workers.map(data.len(), decode);
        let settings = self.incoming.staging().settings();
        let record = |((key, _, stored), plain): (&(Key, Cover, &Stored), Result<_, _>)| {
            Ok(NewRecord {
                dataset: self.incoming.staging().id(),
                inode: key.object,
                offset: key.offset,
                plain: plain.map_err(|_: larder_format::Corrupt| refuse(Wrong::Record))?,
                codec: settings.codec,
                encoded: Some((stored.codec, stored.payload.clone())),
                checksum: settings.checksum,
                dedup: settings.dedup,
                copies: settings.copies,
                replaces: None,
            })
        };
        data.iter().zip(plain).map(record).collect()
    }

    /// The values under the keys of a chunk; reads all nodes that the changes need.
    fn old_values(&self, tree: &impl Look, items: &[Item]) -> Result<Vec<Option<Vec<u8>>>, StreamError> {
        items.iter().map(|item| Ok(tree.get(&item.key())?)).collect()
    }

    /// Gives each extent its record.
    fn resolve(
        &self,
        tree: &impl Look,
        items: &[Item],
        (pointers, copies): (Vec<BlockPtr>, u8),
    ) -> Result<Result<Vec<Ready>, Wrong>, StreamError> {
        let mut pointers = pointers.into_iter();
        let mut here: HashMap<Key, Extent> = HashMap::new();
        let mut ready = Vec::with_capacity(items.len());
        for item in items {
            ready.push(match item {
                // Others have no part in a change.
                Item::Remove(key) | Item::Clear(key) | Item::Keep(key) => Ready::Remove(*key),
                Item::Put(key, value) => Ready::Put(*key, value.clone()),
                Item::Data(key, cover, _) => {
                    let ptr = pointers.next().expect("each record has a pointer");
                    let extent = extent(ptr, cover, copies);
                    here.insert(*key, extent);
                    Ready::Extent(*key, extent, Came::New)
                }
                Item::Same(key, cover, place) => {
                    let at = Key::new(place.object, EXTENT, place.offset);
                    let found = match here.get(&at) {
                        Some(found) if place.snapshot == self.state.to => Some(*found),
                        _ => self.look(tree, key, place, &at)?,
                    };
                    let Some(found) = found.filter(|found| found.logical == cover.logical) else {
                        return Ok(Err(Wrong::Reference));
                    };
                    // Under its own key the base has it, and nobody else.
                    let is_shared = at != *key || place.snapshot != self.state.from;
                    let (came, placed) =
                        if is_shared { (Came::Shared, 0) } else { (Came::Stays, found.placed) };
                    let extent = Extent { placed, ..extent(found.ptr, cover, found.copies) };
                    here.insert(*key, extent);
                    Ready::Extent(*key, extent, came)
                }
            });
        }
        Ok(Ok(ready))
    }

    /// The record of an extent of the snapshot at hand, as far as it came, or of the one that it builds upon.
    fn look(
        &self,
        tree: &impl Look,
        key: &Key,
        place: &Place,
        at: &Key,
    ) -> Result<Option<Extent>, StreamError> {
        let value = if place.snapshot == self.state.to && at < key {
            tree.get(at)?
        } else if place.snapshot == self.state.from
            && let Some(base) = &self.base
        {
            base.get(at)?
        } else {
            None
        };
        Ok(value.map(|value| Extent::decode(&value)).transpose().map_err(PoolError::from)?)
    }

    /// Refuses extents that overlap each other, or what stays. Gives the last extent, if nothing is behind it.
    fn check_extents(
        &self,
        tree: &impl Look,
        ready: &[Ready],
        old: &[Option<Vec<u8>>],
    ) -> Result<Result<Option<(u64, u64)>, Wrong>, StreamError> {
        let mut last = self.last_extent;
        let mut from = self.state.position;
        for (one, old) in ready.iter().zip(old) {
            let key = one.key();
            if matches!(one, Ready::Remove(_)) && old.is_none() {
                return Ok(Err(Wrong::Reference));
            }
            // Extents that stay between the item before and this one.
            if self.base.is_some() {
                last = match self.between(tree, from, &key, last)? {
                    Ok(last) => last,
                    Err(wrong) => return Ok(Err(wrong)),
                };
            }
            if let Ready::Extent(key, extent, _) = one {
                if last.is_some_and(|(object, end)| object == key.object && end > key.offset) {
                    return Ok(Err(Wrong::Disagreement));
                }
                last = Some((key.object, key.offset + u64::from(extent.len)));
            }
            from = Some(key);
        }
        Ok(Ok(last))
    }

    /// Checks the extents that stay between two keys against the one before them: the first alone can overlap it. Gives
    /// the last of them.
    fn between(
        &self,
        tree: &impl Look,
        from: Option<Key>,
        to: &Key,
        last: Option<(u64, u64)>,
    ) -> Result<Result<Option<(u64, u64)>, Wrong>, StreamError> {
        if overlaps_next(tree, from, Bound::Excluded(*to), last)? {
            return Ok(Err(Wrong::Disagreement));
        }
        if to.kind != EXTENT {
            return Ok(Ok(None));
        }
        let Some(before) = to.offset.checked_sub(1) else { return Ok(Ok(None)) };
        let before = tree.last_before(&Key { offset: before, ..*to })?;
        let stays =
            |key: &Key| key.kind == EXTENT && key.object == to.object && from.is_none_or(|from| *key > from);
        match before {
            Some((key, value)) if stays(&key) => {
                let extent = Extent::decode(&value).map_err(PoolError::from)?;
                Ok(Ok(Some((key.object, key.offset + u64::from(extent.len)))))
            }
            _ => Ok(Ok(last)),
        }
    }

    /// The last inode may have no item of its own.
    fn close_last(
        &mut self,
        staging: &Dataset,
        refuse: &impl Fn(Wrong) -> StreamError,
    ) -> Result<(), StreamError> {
        let mut open = Open::of(&self.state);
        if !open.is_changed() {
            return Ok(());
        }
        self.pool.make_changes_fit()?;
        let op = self.pool.enter()?;
        let mut state = self.state.clone();
        let change = adjusted(&staging.view()?, &mut open)?.map_err(refuse)?;
        open.put(&mut state);
        let plan = Plan { changes: vec![change] };
        let reads = plan.reads();
        staging.update_after::<_, StreamError>(&op, reads, |tree| {
            self.incoming.note(&op, state.clone())?;
            Ok(plan.apply(tree)?)
        })?;
        self.state = state;
        Ok(())
    }

    /// All has arrived: does it agree with itself?
    fn end(&mut self, refuse: &impl Fn(Wrong) -> StreamError) -> Result<(), StreamError> {
        let staging = Arc::clone(self.incoming.staging());
        self.close_last(&staging, refuse)?;
        if !Agreement::new(self.state.seed, self.state.sums).holds() {
            return Err(refuse(Wrong::Disagreement));
        }
        let view = staging.view()?;
        if overlaps_next(&view, self.state.position, Bound::Unbounded, self.last_extent)? {
            return Err(refuse(Wrong::Disagreement));
        }
        let mut is_empty = true;
        view.scan(&Key::MIN, &mut |_, _| {
            is_empty = false;
            ControlFlow::Break(())
        })?;
        let root = view.get(&Key::new(ROOT_INODE.get(), INODE, 0))?;
        if !is_empty && root.is_none() {
            return Err(refuse(Wrong::Disagreement));
        }
        Ok(())
    }
}

/// Whether the extent `last` (its inode, and where it ends), which is the last up to a key, overlaps what comes next.
fn overlaps_next(
    tree: &impl Look,
    after: Option<Key>,
    to: Bound<Key>,
    last: Option<(u64, u64)>,
) -> Result<bool, StreamError> {
    let (Some(after), Some((object, end))) = (after, last) else { return Ok(false) };
    let mut next = None;
    tree.scan_within((Bound::Excluded(after), to), &mut |key, _| {
        next = Some(*key);
        ControlFlow::Break(())
    })?;
    Ok(next.is_some_and(|key| key.kind == EXTENT && key.object == object && key.offset < end))
}

fn extent(ptr: BlockPtr, cover: &Cover, copies: u8) -> Extent {
    let Cover { len, block_offset, logical, .. } = *cover;
    Extent { ptr, len, block_offset, logical, placed: 0, copies }
}

/// An inode whose extents change, and its own item did not come yet.
struct Open {
    object: u64,
    stored: (u64, u64),
    data: (u64, u64),
    /// Of the extents that came: all bits of their offsets, the longest record, and whether one begins inside of it.
    offsets: u64,
    longest: u32,
    inner: bool,
}

impl Open {
    fn of(state: &ReceivingRecord) -> Self {
        let object = state.position.map_or(0, |key| key.object);
        let ReceivingRecord { stored, data, offsets, longest, inner, .. } = *state;
        Self { object, stored, data, offsets, longest, inner }
    }

    fn put(&self, state: &mut ReceivingRecord) {
        (state.stored, state.data) = (self.stored, self.data);
        (state.offsets, state.longest, state.inner) = (self.offsets, self.longest, self.inner);
    }

    fn is_changed(&self) -> bool {
        (self.stored, self.data) != ((0, 0), (0, 0))
    }

    /// It is another one from now on.
    fn go_to(&mut self, object: u64) {
        let (stored, data) = ((0, 0), (0, 0));
        *self = Self { object, stored, data, offsets: 0, longest: 0, inner: false };
    }

    fn count(&mut self, key: &Key, new: Option<&Extent>, old: Option<&Extent>) -> Result<(), Wrong> {
        let add = |sum: &mut u64, more: u64| {
            *sum = sum.checked_add(more).filter(|sum| *sum < larder_format::MAX_COUNT).ok_or(Wrong::Range)?;
            Ok::<_, Wrong>(())
        };
        if let Some(new) = new {
            add(&mut self.stored.0, new.stored())?;
            add(&mut self.data.0, new.logical.into())?;
            self.offsets |= key.offset;
            self.longest = self.longest.max(new.logical);
            self.inner |= new.block_offset > 0;
        }
        if let Some(old) = old {
            add(&mut self.stored.1, old.stored())?;
            add(&mut self.data.1, old.logical.into())?;
        }
        Ok(())
    }

    /// The inode goes: so do all its extents.
    fn end(&mut self, was: &Inode) -> Result<(), Wrong> {
        if was.data.saturating_add(self.data.0) != self.data.1 {
            return Err(Wrong::Disagreement);
        }
        self.go_to(self.object);
        Ok(())
    }

    /// The inode, which was there with these figures, as it is to be here. Its extents are cut as it says.
    fn close(&mut self, mut inode: Inode, was: Option<Inode>) -> Result<Inode, Wrong> {
        let (stored, data) = was.map_or((0, 0), |was| (was.stored, was.data));
        let most = larder_format::MAX_COUNT;
        inode.stored = stored.saturating_add(self.stored.0).saturating_sub(self.stored.1).min(most);
        inode.data = data.saturating_add(self.data.0).saturating_sub(self.data.1).min(most);
        let size = u64::from(inode.record_size);
        // A file that was cut to nothing loses its records by and by.
        let is_tail = inode.flags & Inode::HAS_TAIL != 0 && inode.size == 0 && size == 0;
        let is_cut = match (self.longest, inode.by_content()) {
            _ if is_tail => true,
            // Nothing came.
            (0, _) => size > 0 || inode.data == 0,
            (_, true) => size > 0,
            (longest, false) => {
                size > 0 && self.offsets.is_multiple_of(size) && u64::from(longest) <= size && !self.inner
            }
        };
        let is_file = inode.kind == FileKind::Regular || (self.longest == 0 && inode.data == 0);
        if !is_cut || !is_file {
            return Err(Wrong::Disagreement);
        }
        self.go_to(self.object);
        Ok(inode)
    }
}

/// Changes of the tree in the order of keys, and what they count for.
struct Plan {
    changes: Vec<Planned>,
}

/// A key, its new value, and the one that it has.
type Planned = (Key, New, Option<Vec<u8>>);

/// New value under a key.
enum New {
    None,
    Value(bytes::Bytes),
    Extent(Extent, Came),
}

impl Plan {
    /// Of a chunk whose keys have `old` values.
    fn of(
        tree: &impl Look,
        ready: Vec<Ready>,
        old: Vec<Option<Vec<u8>>>,
        open: &mut Open,
        agreement: &mut Agreement,
    ) -> Result<Result<Self, Wrong>, StreamError> {
        let mut plan = Self { changes: Vec::with_capacity(ready.len()) };
        for (one, old) in ready.into_iter().zip(old) {
            let key = one.key();
            if key.object != open.object {
                if open.is_changed() {
                    match adjusted(tree, open)? {
                        Ok(change) => plan.changes.push(change),
                        Err(wrong) => return Ok(Err(wrong)),
                    }
                }
                open.go_to(key.object);
            }
            match planned(key, one, old, open, agreement) {
                Ok(change) => plan.changes.push(change),
                Err(wrong) => return Ok(Err(wrong)),
            }
        }
        Ok(Ok(plan))
    }

    /// What it reads.
    fn reads(&self) -> impl Fn(&Ahead<'_>) -> Result<(), StreamError> + use<> {
        let mut keys: Vec<_> = self.changes.iter().map(|(key, ..)| *key).collect();
        keys.sort_unstable();
        let gone = |(key, new, _): &Planned| matches!(new, New::None).then_some(*key);
        let mut gone: Vec<_> = self.changes.iter().filter_map(gone).collect();
        gone.sort_unstable();
        move |tree| {
            tree.bring(&keys);
            keys.iter().try_for_each(|key| tree.reach(key))?;
            Ok(tree.reach_removal(&gone)?)
        }
    }

    fn apply(self, tree: &mut Update<'_>) -> Result<(), PoolError> {
        for (key, new, old) in self.changes {
            let dropped = (key.kind == EXTENT).then(|| old.as_deref().map(Extent::decode).transpose());
            let dropped = dropped.transpose()?.flatten();
            match new {
                New::None => drop(tree.remove(&key)?),
                // An entry that is told may be as it was.
                New::Value(value) if old.as_deref() == Some(&value) => {}
                New::Extent(extent, Came::Stays) if dropped.is_some_and(|old| old.is_same(&extent)) => {
                    continue;
                }
                New::Value(value) => tree.insert(key, &value)?,
                New::Extent(extent, came) => {
                    match came {
                        Came::Stays => tree.insert(key, &extent.encode())?,
                        Came::New | Came::Shared => tree.put_extent(key, extent)?,
                    }
                    match came {
                        Came::Shared => tree.share_block(&extent),
                        Came::New | Came::Stays => tree.link_block(&extent),
                    }
                }
            }
            if let Some(dropped) = dropped {
                tree.drop_block(&dropped);
            }
        }
        Ok(())
    }
}

/// Change of an inode whose extents changed, and that has no item of its own.
fn adjusted(tree: &impl Look, open: &mut Open) -> Result<Result<Planned, Wrong>, StreamError> {
    let key = Key::new(open.object, INODE, 0);
    let Some(old) = tree.get(&key)? else { return Ok(Err(Wrong::Disagreement)) };
    let inode = Inode::decode(&old).map_err(PoolError::from)?;
    let closed = open.close(inode, Some(inode));
    Ok(closed.map(|inode| (key, New::Value(inode.encode().to_vec().into()), Some(old))))
}

fn planned(
    key: Key,
    ready: Ready,
    old: Option<Vec<u8>>,
    open: &mut Open,
    agreement: &mut Agreement,
) -> Result<Planned, Wrong> {
    if key.kind == EXTENT {
        let before = old.as_deref().map(Extent::decode).transpose()?;
        let new = match ready {
            Ready::Extent(_, extent, came) => New::Extent(extent, came),
            _ => New::None,
        };
        let after = if let New::Extent(extent, _) = &new { Some(extent) } else { None };
        open.count(&key, after, before.as_ref())?;
        return Ok((key, new, old));
    }
    if let Some(old) = &old {
        agreement.entry(Change::Goes, &key, old)?;
    }
    let Ready::Put(_, value) = ready else {
        if key.kind == INODE {
            open.end(&Inode::decode(old.as_deref().unwrap_or_default())?)?;
        }
        return Ok((key, New::None, old));
    };
    agreement.entry(Change::Comes, &key, &value)?;
    if key.kind != INODE {
        return Ok((key, New::Value(value), old));
    }
    let was = old.as_deref().map(Inode::decode).transpose()?;
    let inode = open.close(Inode::decode(&value)?, was)?;
    Ok((key, New::Value(inode.encode().to_vec().into()), old))
}
