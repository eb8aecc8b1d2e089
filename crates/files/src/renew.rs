//! Blocks of their own for live files, in place of those that they share with others.
//!
//! An extent that names a shared block gets one with the same bytes that nobody else names. The file stays as it is,
//! times included; what was written to it and not stored yet stays dirty above. A step goes through some extents in the
//! order of their keys, so that one that was done is not shared any more when it is met again: whoever walks goes on
//! anywhere.
//!
//! # Locks
//! As a flush: the inode's turn from the look at the extents on, under which nobody else changes them; its state while
//! the tree changes.

use crate::error::{FsError, Result};
use crate::extents::{Cut, extents};
use crate::inode::{Inode, Progress};
use crate::volume::{Volume, inode_key};
use larder_format::block::{BlockKind, CheckedHeader, CodecKind};
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr, InodeId};
use larder_pool::cache::Record;
use larder_pool::{Ahead, Dedup, Look, NewRecord, Op, Renewal, Renewed, Tally, plain_of, record_claim};
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

/// Extents that a step looks at, at most, and items of any kind.
const EXTENTS: usize = 1024;
const ITEMS: usize = 16 << 10;
/// Plain bytes that a step stores, at most.
const BYTES: u64 = 16 << 20;

/// Extents by inode and offset.
type ByInode = BTreeMap<InodeId, Vec<(u64, Extent)>>;
/// Blocks as they are stored.
type Blocks = HashMap<BlockId, (CheckedHeader, Record)>;
/// Content as some codec made it.
type Encoded = (CodecKind, Record);

impl Volume {
    /// See [`larder_pool::Renew::Own`].
    pub(crate) fn renew(&self, renewal: &Renewal) -> Result<Renewed> {
        if !renewal.dry_run {
            self.check_writable()?;
        }
        let (found, mut renewed) = self.extents_from(renewal)?;
        renewed.tally.records = found.len() as u64;
        renewed.examined = found.iter().map(|(_, extent)| u64::from(extent.ptr.place.stored)).sum();
        let ids = found.iter().map(|(_, extent)| extent.ptr.id).collect();
        let (shared, unknown) = self.pool.shared_among(ids, renewal.dry_run)?;
        renewed.tally.unread += unknown;
        let mut by_inode = ByInode::new();
        for (key, extent) in found.into_iter().filter(|(_, extent)| shared.contains(&extent.ptr.id)) {
            if renewal.dry_run {
                renewed.tally.changed += 1;
                renewed.tally.after += room_of(&extent);
            } else {
                by_inode.entry(InodeId::new(key.object)).or_default().push((key.offset, extent));
            }
        }
        let wanted: Vec<_> = by_inode.values().flatten().map(|(_, extent)| extent.ptr).collect();
        let blocks = self.pool.store().read_all_stored(&wanted);
        for (id, extents) in by_inode {
            let first = Key::new(id.get(), EXTENT, extents[0].0);
            if let Err(error) = self.renew_extents(id, extents, &blocks, &mut renewed.tally) {
                if renewed.tally.changed == 0 {
                    return Err(error);
                }
                // It is met again, with what was done before told.
                renewed.next = Some(first);
                break;
            }
        }
        Ok(renewed)
    }

    /// Some extents of any files from a key on, and where there may be more.
    fn extents_from(&self, renewal: &Renewal) -> Result<(Vec<(Key, Extent)>, Renewed)> {
        let (mut found, mut renewed) = (Vec::new(), Renewed::default());
        let (mut items, mut bytes, most) = (0, 0, renewal.bytes.min(BYTES));
        let view = self.dataset.view()?;
        let lost = view.scan_past(renewal.from..=Key::MAX, &mut |key, value| {
            if items == ITEMS || found.len() == EXTENTS || (bytes >= most && !found.is_empty()) {
                renewed.next = Some(*key);
                return ControlFlow::Break(());
            }
            items += 1;
            if key.kind == EXTENT
                && let Ok(extent) = Extent::decode(value)
            {
                bytes += u64::from(extent.len.max(extent.logical));
                found.push((*key, extent));
            }
            ControlFlow::Continue(())
        });
        drop(view);
        if lost {
            self.check_silence()?;
        }
        renewed.tally.unread += u64::from(lost);
        Ok((found, renewed))
    }

    /// Gives extents of a file blocks of their own, those that are still as they were.
    fn renew_extents(
        &self,
        id: InodeId,
        olds: Vec<(u64, Extent)>,
        blocks: &Blocks,
        tally: &mut Tally,
    ) -> Result<()> {
        let room: u64 = olds.iter().map(|(_, old)| room_of(old)).sum();
        // The origin goes on being charged for what was its own; all else is given back as it is taken.
        let copies = self.copies();
        let more = |old: &Extent| {
            let charged = if self.dataset.is_inherited(old.ptr.id) { 0 } else { u64::from(old.copies) };
            room_of(old) * copies.saturating_sub(charged)
        };
        let growth = olds.iter().map(|(_, old)| more(old)).sum();
        self.within_quota(|| Ok(self.pool.check_quota(self.id(), growth)?))?;
        self.pool.check_room(&self.dataset, room, || false)?;
        let op = self.enter()?;
        let (count, before) = (olds.len() as u64, tally.changed);
        match self.put_own(&op, id, olds, blocks, tally) {
            // A node above them cannot be read.
            Err(FsError::Damaged(_)) => {
                self.check_silence()?;
                tally.unread += count - (tally.changed - before);
                Ok(())
            }
            done => done,
        }
    }

    /// The same, once there is room.
    fn put_own(
        &self,
        op: &Op<'_>,
        id: InodeId,
        olds: Vec<(u64, Extent)>,
        blocks: &Blocks,
        tally: &mut Tally,
    ) -> Result<()> {
        let inode = match self.inode(id) {
            Err(FsError::NotFound) => return Ok(()),
            found => found?,
        };
        let _turn = inode.turn.lock();
        // It does not go while this one has the turn.
        if inode.lock().is_err() {
            return Ok(());
        }
        let settings = self.dataset.settings();
        let (mut still, mut records) = (Vec::new(), Vec::new());
        {
            let view = self.dataset.view()?;
            view.reach(&inode_key(id))?;
            for (offset, old) in olds {
                let now = extents(&view, id, offset..offset + 1, 1)?;
                if !now.first().is_some_and(|(_, now)| now.is_same(&old)) {
                    continue;
                }
                let Some((plain, encoded)) = blocks.get(&old.ptr.id).and_then(|block| content(&old, block))
                else {
                    self.check_silence()?;
                    tally.unread += 1;
                    continue;
                };
                tally.read += u64::from(old.logical);
                records.push(NewRecord {
                    dataset: self.id(),
                    inode: id.get(),
                    offset,
                    plain,
                    codec: settings.codec,
                    encoded,
                    checksum: settings.checksum,
                    dedup: Dedup::Off,
                    copies: settings.copies,
                    replaces: Some(old.ptr.id),
                });
                still.push((offset, old));
            }
        }
        if still.is_empty() {
            return Ok(());
        }
        self.exchange(op, &inode, Exchange { olds: still, news: records, cut: None }, tally)
    }

    /// Puts other blocks in the place of extents, whose inode's turn is held, in one operation.
    pub(crate) fn exchange(
        &self,
        op: &Op<'_>,
        inode: &Inode,
        exchange: Exchange,
        tally: &mut Tally,
    ) -> Result<()> {
        let Exchange { olds, news, cut } = exchange;
        let id = inode.id;
        let key = |offset: u64| Key::new(id.get(), EXTENT, offset);
        let lens: Vec<_> = news.iter().map(|new| (new.offset, new.plain.len() as u32, new.copies)).collect();
        let pointers = if news.is_empty() { Vec::new() } else { self.pool.store_records(op, news)? };
        let extent = |(&(offset, len, copies), ptr): (&(u64, u32, u8), BlockPtr)| {
            (offset, Extent { ptr, len, block_offset: 0, logical: len, placed: 0, copies })
        };
        let news: BTreeMap<u64, Extent> = lens.iter().zip(pointers).map(extent).collect();
        let mut state = inode.lock()?;
        let mut item = state.tree;
        olds.iter().for_each(|(_, old)| item.forget_extent(old));
        news.values().for_each(|new| item.count_extent(new));
        if let Some((cut, _)) = cut {
            cut.put(&mut item);
        }
        if item != state.tree || !olds.is_empty() {
            let gone = olds.iter().map(|(offset, _)| offset).filter(|offset| !news.contains_key(offset));
            let mut gone: Vec<_> = gone.map(|offset| key(*offset)).collect();
            gone.sort_unstable();
            let reads = |tree: &Ahead<'_>| {
                tree.reach(&inode_key(id))?;
                for offset in olds.iter().map(|(offset, _)| offset).chain(news.keys()) {
                    tree.reach(&key(*offset))?;
                }
                tree.reach_removal(&gone)
            };
            self.dataset.update_after(op, reads, |tree| {
                for (&offset, new) in &news {
                    tree.put_extent(key(offset), *new)?;
                    tree.link_block(new);
                }
                for (offset, old) in &olds {
                    if !news.contains_key(offset) {
                        tree.remove(&key(*offset))?;
                    }
                    tree.drop_block(old);
                }
                tree.insert(inode_key(id), &item.encode())
            })?;
        }
        state.tree = item;
        (state.live.stored, state.live.data) = (item.stored, item.data);
        if let Some((cut, progress)) = cut {
            let (dirty, before) = (state.data.bytes, state.live.record_size);
            if Cut::of(&state.live) != cut && !state.data.records.is_empty() {
                state.data.rekey(before, cut.record_size);
            }
            cut.put(&mut state.live);
            state.recut = progress;
            self.meter(dirty, &mut state);
        }
        tally.changed += olds.len() as u64;
        if cut.is_some() {
            tally.before += olds.iter().map(|(_, old)| old.charged()).sum::<u64>();
        }
        tally.after += news.values().map(Extent::charged).sum::<u64>();
        tally.kept += olds.iter().map(|(_, old)| self.kept(old)).sum::<u64>();
        Ok(())
    }
}

/// Extents that go from a file, and the records that take their places.
pub(crate) struct Exchange {
    pub olds: Vec<(u64, Extent)>,
    pub news: Vec<NewRecord>,
    /// The cut that the file has from now on, and how far that is so.
    pub cut: Option<(Cut, Option<Progress>)>,
}

/// Room that a block of its own takes for an extent, at most.
fn room_of(extent: &Extent) -> u64 {
    let is_whole = extent.len == extent.logical;
    if is_whole { extent.ptr.place.footprint().into() } else { record_claim(extent.len) }
}

/// The bytes of an extent, and as some codec made them, where it covers its whole block: what is undone is stored as it
/// was.
fn content(extent: &Extent, (header, stored): &(CheckedHeader, Record)) -> Option<(Record, Option<Encoded>)> {
    let plain = plain_of(header, stored, BlockKind::Record).ok()?;
    let range = extent.block_offset as usize..(extent.block_offset + extent.len) as usize;
    if plain.len() < range.end {
        return None;
    }
    let payload = || (header.info.codec, stored.slice(header.before_content() as usize..));
    let encoded = (range == (0..plain.len())).then(payload);
    Some((plain.slice(range), encoded))
}
