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
use crate::extents::extents;
use crate::volume::{Volume, inode_key};
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{BlockId, InodeId};
use larder_pool::cache::Record;
use larder_pool::{Dedup, Look, NewRecord, Renewal, Renewed};
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

/// Extents that a step looks at, at most, and items of any kind.
const EXTENTS: usize = 1024;
const ITEMS: usize = 16 << 10;
/// Plain bytes that a step stores, at most.
const BYTES: u64 = 16 << 20;

/// Extents by inode and offset.
type ByInode = BTreeMap<InodeId, Vec<(u64, Extent)>>;

impl Volume {
    /// See [`larder_pool::Pool::renew`].
    pub(crate) fn renew(&self, renewal: &Renewal) -> Result<Renewed> {
        if !renewal.dry_run {
            self.check_writable()?;
        }
        let (found, mut renewed) = self.extents_from(renewal)?;
        renewed.tally.records = found.len() as u64;
        renewed.examined = found.iter().map(|(_, extent)| u64::from(extent.ptr.place.stored)).sum();
        let shared = self
            .pool
            .shared_among(found.iter().map(|(_, extent)| extent.ptr.id).collect(), renewal.dry_run)?;
        let mut by_inode = ByInode::new();
        for (key, extent) in found.into_iter().filter(|(_, extent)| shared.contains(&extent.ptr.id)) {
            if renewal.dry_run {
                renewed.tally.changed += 1;
                renewed.tally.after += u64::from(extent.ptr.place.footprint());
            } else {
                by_inode.entry(InodeId::new(key.object)).or_default().push((key.offset, extent));
            }
        }
        let wanted: Vec<_> = by_inode.values().flatten().map(|(_, extent)| extent.ptr).collect();
        let blocks = self.pool.store().read_all(&wanted);
        for (id, extents) in by_inode {
            let count = extents.len() as u64;
            match self.renew_extents(id, extents, &blocks, &mut renewed) {
                Err(FsError::Damaged(_)) => {
                    self.check_silence()?;
                    renewed.tally.unread += count;
                }
                done => done?,
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
                bytes += u64::from(extent.len);
                found.push((*key, extent));
            }
            ControlFlow::Continue(())
        });
        renewed.tally.unread += u64::from(lost);
        Ok((found, renewed))
    }

    /// Gives extents of a file blocks of their own, those that are still as they were.
    fn renew_extents(
        &self,
        id: InodeId,
        mut olds: Vec<(u64, Extent)>,
        blocks: &HashMap<BlockId, Record>,
        renewed: &mut Renewed,
    ) -> Result<()> {
        let mut plain = HashMap::new();
        for (offset, extent) in &olds {
            match self.plain_among(extent, blocks) {
                Ok(bytes) => drop(plain.insert(*offset, bytes)),
                Err(_) => {
                    self.check_silence()?;
                    renewed.tally.unread += 1;
                }
            }
        }
        olds.retain(|(offset, _)| plain.contains_key(offset));
        let bytes: u64 = plain.values().map(|plain| plain.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        renewed.tally.read += bytes;
        // Snapshots are charged for what they go on holding.
        let has_snapshots = self.pool.trees_of(self.id()).len() > 1;
        let given_back: u64 = olds.iter().map(|(_, old)| u64::from(old.ptr.place.footprint())).sum();
        let growth = if has_snapshots { bytes } else { bytes.saturating_sub(given_back) };
        self.within_quota(|| Ok(self.pool.check_quota(self.id(), growth)?))?;
        self.pool.check_room(&self.dataset, bytes, || false)?;
        let op = self.enter()?;
        let inode = match self.inode(id) {
            Err(FsError::NotFound) => return Ok(()),
            found => found?,
        };
        let _turn = inode.turn.lock();
        {
            let view = self.dataset.view()?;
            let is_there = |(offset, old): &(u64, Extent)| -> Result<bool> {
                let now = extents(&view, id, *offset..*offset + 1, 1)?;
                Ok(now.first().is_some_and(|(_, now)| now.is_same(old)))
            };
            let mut still = Vec::new();
            for old in olds {
                if is_there(&old)? {
                    still.push(old);
                }
            }
            olds = still;
        }
        if olds.is_empty() {
            return Ok(());
        }
        let settings = self.dataset.settings();
        let record = |(offset, old): &(u64, Extent)| NewRecord {
            dataset: self.id(),
            inode: id.get(),
            offset: *offset,
            plain: plain[offset].clone(),
            codec: settings.codec,
            encoded: None,
            checksum: settings.checksum,
            dedup: Dedup::Off,
            replaces: Some(old.ptr.id),
        };
        let pointers = self.pool.store_records(&op, olds.iter().map(record).collect())?;
        let Ok(mut state) = inode.lock() else { return Ok(()) };
        let mut item = state.tree;
        let news: Vec<Extent> = olds
            .iter()
            .zip(pointers)
            .map(|((_, old), ptr)| Extent { ptr, len: old.len, block_offset: 0, logical: old.len, placed: 0 })
            .collect();
        olds.iter().for_each(|(_, old)| item.forget_extent(old));
        news.iter().for_each(|new| item.count_extent(new));
        self.dataset.update(&op, |tree| {
            tree.reach(&inode_key(id))?;
            for (offset, _) in &olds {
                tree.reach(&Key::new(id.get(), EXTENT, *offset))?;
            }
            for ((offset, old), new) in olds.iter().zip(&news) {
                tree.put_extent(Key::new(id.get(), EXTENT, *offset), *new)?;
                tree.link_block(new.ptr, u64::from(new.logical));
                tree.drop_block(old.ptr, u64::from(old.logical));
            }
            tree.insert(inode_key(id), &item.encode())
        })?;
        state.tree = item;
        (state.live.stored, state.live.data) = (item.stored, item.data);
        renewed.tally.changed += news.len() as u64;
        renewed.tally.after += news.iter().map(|new| u64::from(new.ptr.place.footprint())).sum::<u64>();
        Ok(())
    }
}
