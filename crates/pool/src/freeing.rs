//! Freeing: what becomes of a block that a tree has stopped naming.
//!
//! There are no reference counts, so a dropped reference says only that the block *may* be dead. The drop asks, in
//! this order:
//! 1. Is the id at or below its head's `protected_below`? Then a snapshot holds it. Nothing happens; the dataset counts
//!    the bytes as held, and when that snapshot is destroyed they are found: see [`crate::remains`].
//! 2. Is no id of the pool shared, has none several places, and is the place in the hint still the place? Then the
//!    block is dead for certain and freed in the commit that drops it: the map forgets it, its segment has less to
//!    live for.
//! 3. Else the map must be asked, whether the id is shared or where it went, and a commit must not wait for reads
//!    of the map. The id gets the mark `DEAD`, blindly, and joins the *free queue*. [`crate::Pool::free_step`] works
//!    that off in the order of ids, so that each page of the map is read once. It frees the block, or, when the id is
//!    shared, takes the mark away: another reference may exist, and only GC can tell.
//!
//! # Second references
//! need a call of [`crate::Update::share_block`], which sets the mark `SHARED` in the same commit, and the pool-wide
//! flag. Both, and the decisions of the queue, are made under the map's lock. Marks in the map stay with an id when its
//! block is moved. Only GC may take `SHARED` away, and takes `DEAD` away with it: the drop that set `DEAD` was that of
//! another reference. It leaves it where the one reference is younger than a snapshot that is younger than the block:
//! that snapshot seems to hold what it does not, and only `SHARED` tells that nobody frees it.
//!
//! # The queue
//! It is the set of ids with the mark `DEAD`, hence as durable as the commits that set and clear them. In memory
//! it is a sorted set with a bound. Ids that find no room are found again by sweeping the map, as all are after an
//! import; the freeing record tells whether there are any. Ids on a page of the map that cannot be read leave the
//! queue until the next import, so that they hold up no others.
//!
//! # Aliases
//! are freed as any block is, and give back no space: their target is left to GC, which alone knows who else names it.
//!
//! # A collection under way
//! needs the nodes that its roots reach. Nodes that are dropped meanwhile and that it holds get the mark `DEAD` and
//! wait, whatever case they are; they join the queue when it has ended. Records need not wait: it does not read them.
//!
//! # Crashes
//! Every change is to the map, the segments' counts and the freeing record, which one commit makes durable
//! together, with the trees that dropped the references. A cut leaves a block named by a tree, or marked, or free.

use crate::duplicates::Duplicates;
use crate::pins::Pins;
use larder_format::run::{Delta, Marks};
use larder_format::tables::{FreeingRecord, Table};
use larder_format::{BlockId, BlockPtr, Place, SegmentId};
use larder_mutants::{Mutant, mutated};
use larder_sorted::map::{BlockMap, Entry, Finder, Location, Step, Update};
use larder_sorted::tree::Tree;
use larder_store::{PoolError, Result, RunIo, Store, TableNodes};
use larder_sync::{Mutex, RwLockWriteGuard};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Ids that the queue keeps in memory, at most: some 16 MiB.
const QUEUE_MAX: usize = 1 << 20;
/// Of the pool's memory, the queue takes at most this part.
const QUEUE_SHARE: u64 = 32;
/// Memory of an id in a sorted set, bytes: its nodes are six elevenths full at worst.
const QUEUE_ENTRY: u64 = 15;

/// Ids that are decided at once, under the map's lock.
const BATCH: usize = 1024;
/// Ids that a step looks at, at most: some 5 µs each, which commits wait for.
const IDS_PER_STEP: usize = 1 << 15;
/// Pages of the map that freeing may read after each commit.
pub(crate) const PAGES_PER_COMMIT: usize = 64;

/// Blocks that were dropped and are not free yet.
#[derive(Debug, Default)]
struct Dropped {
    /// Records above their head's `protected_below`, dropped since the last commit.
    records: Vec<BlockPtr>,
    /// Nodes, likewise.
    nodes: Vec<BlockPtr>,
    /// The footprints of both.
    dropped_bytes: u64,
    /// Ids with the mark `DEAD`.
    queue: BTreeSet<BlockId>,
    /// From this id on there may be some that are not in the queue.
    unswept: Option<BlockId>,
    /// Ids with the mark `DEAD` that a collection holds.
    held: BTreeSet<BlockId>,
    /// Some with the mark `DEAD` are in neither, for a page of the map could not be read: the next import tries again.
    left_out: bool,
    /// As of now; durable with the next commit.
    record: FreeingRecord,
    changed: bool,
}

impl Dropped {
    /// As the tables have it.
    fn open(record: FreeingRecord) -> Self {
        let queued = record.queued_blocks > 0 && !mutated(Mutant::QueueLost);
        Self { record, unswept: queued.then_some(BlockId::new(0)), ..Self::default() }
    }

    /// Whether nothing carries the mark `DEAD`.
    fn is_idle(&self) -> bool {
        self.is_waiting_for_nothing() && !self.left_out
    }

    /// Whether all that carries the mark `DEAD` was left out.
    fn is_waiting_for_nothing(&self) -> bool {
        self.queue.is_empty() && self.held.is_empty() && self.unswept.is_none()
    }

    /// An id got the mark `DEAD`.
    fn enqueue(&mut self, id: BlockId, bytes: u64, limit: usize) {
        self.count(bytes);
        self.remember(id, limit);
    }

    /// As [`Dropped::enqueue`], for one that a collection holds.
    fn hold(&mut self, id: BlockId, bytes: u64) {
        self.count(bytes);
        self.held.insert(id);
    }

    fn count(&mut self, bytes: u64) {
        self.record.queued_blocks += 1;
        self.record.queued_bytes += bytes;
        self.changed = true;
    }

    /// Keeps an id in memory, or that it must be swept for.
    fn remember(&mut self, id: BlockId, limit: usize) {
        if self.queue.len() < limit {
            self.queue.insert(id);
        } else {
            self.unswept = Some(self.unswept.map_or(id, |from| from.min(id)));
        }
    }

    /// The mark `DEAD` of an id of so many bytes is gone.
    fn dequeued(&mut self, id: BlockId, bytes: u64) {
        self.queue.remove(&id);
        self.record.queued_blocks = self.record.queued_blocks.saturating_sub(1);
        self.record.queued_bytes = self.record.queued_bytes.saturating_sub(bytes);
        self.changed = true;
    }

    /// The record for the tables, when it changed. The counts were kept without reading the map and may be off;
    /// they are right again whenever nothing is left.
    fn seal(&mut self) -> Option<FreeingRecord> {
        if self.is_idle() {
            self.changed |= self.record.queued_blocks > 0;
            (self.record.queued_blocks, self.record.queued_bytes) = (0, 0);
        } else {
            let known = self.queue.len() + self.held.len();
            self.record.queued_blocks = self.record.queued_blocks.max(known.max(1) as u64);
        }
        std::mem::take(&mut self.changed).then_some(self.record)
    }
}

/// Dropped blocks that a pool has still to free. The lock is taken last, and alone.
pub struct Freeing {
    store: Arc<Store>,
    duplicates: Arc<Duplicates>,
    pins: Arc<Pins>,
    dropped: Mutex<Dropped>,
    /// Last figure given of the space that will be free by itself, bytes.
    told: AtomicU64,
    /// Since the last commit some were dropped that may be dropped by that as well.
    is_twice: AtomicBool,
}

impl Freeing {
    /// Nothing.
    pub(crate) fn new(store: &Arc<Store>, duplicates: &Arc<Duplicates>, pins: &Arc<Pins>) -> Self {
        Self {
            store: Arc::clone(store),
            duplicates: Arc::clone(duplicates),
            pins: Arc::clone(pins),
            dropped: Mutex::default(),
            told: AtomicU64::new(0),
            is_twice: AtomicBool::new(false),
        }
    }

    /// Import: as the tables have it.
    pub(crate) fn open(&self, record: FreeingRecord) {
        *self.dropped.lock() = Dropped::open(record);
    }

    /// Last figure given of the space that will be free by itself, bytes.
    pub(crate) fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// So much was told.
    pub(crate) fn tell(&self, bytes: u64) {
        self.told.store(bytes, Ordering::Relaxed);
    }

    /// References to records were dropped, all above their head's `protected_below`: they are dealt with at the commit.
    pub(crate) fn drop_records(&self, dropped: impl IntoIterator<Item = BlockPtr>) {
        let freeing = &mut *self.dropped.lock();
        let bytes = &mut freeing.dropped_bytes;
        freeing.records.extend(dropped.into_iter().inspect(|ptr| *bytes += u64::from(ptr.place.footprint())));
    }

    /// As [`Freeing::drop_records`], for nodes.
    pub(crate) fn drop_nodes(&self, dropped: impl IntoIterator<Item = BlockPtr>) {
        let freeing = &mut *self.dropped.lock();
        let bytes = &mut freeing.dropped_bytes;
        freeing.nodes.extend(dropped.into_iter().inspect(|ptr| *bytes += u64::from(ptr.place.footprint())));
    }

    /// Segments that hints of what was dropped since the last commit name.
    pub(crate) fn dropped_segments(&self) -> BTreeSet<SegmentId> {
        let freeing = self.dropped.lock();
        freeing.records.iter().chain(&freeing.nodes).map(|ptr| ptr.place.segment).collect()
    }

    /// References to blocks were dropped, perhaps some that had been before. Under the commit lock.
    pub(crate) fn drop_again(&self, records: Vec<BlockPtr>, nodes: Vec<BlockPtr>) {
        let (held, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| self.pins.holds(node.id));
        let unsure: Vec<_> = records.into_iter().chain(nodes).collect();
        self.is_twice.store(true, Ordering::Relaxed);
        self.mark_dead(unsure, held);
    }

    /// The map is told of blocks that may be dead; those that a collection holds wait for its end.
    fn mark_dead(&self, unsure: Vec<BlockPtr>, held: Vec<BlockPtr>) {
        {
            let mut map = self.store.map.lock();
            for ptr in unsure.iter().chain(&held) {
                map.apply(Update::Mark { id: ptr.id, marks: Marks::DEAD });
            }
        }
        let limit = self.queue_limit();
        let mut freeing = self.dropped.lock();
        for ptr in unsure {
            freeing.enqueue(ptr.id, u64::from(ptr.place.footprint()), limit);
        }
        for ptr in held {
            freeing.hold(ptr.id, u64::from(ptr.place.footprint()));
        }
    }

    /// A reference to `bytes` went that another one may stand beside: only a collection can tell.
    pub(crate) fn leave_to_gc(&self, bytes: u64) {
        let mut freeing = self.dropped.lock();
        freeing.record.left_bytes += bytes;
        freeing.changed = true;
    }

    /// A collection that began when `before` bytes were left to it has ended: what was left then is free, or known to
    /// be in use.
    pub fn clear_left(&self, before: u64) {
        let mut freeing = self.dropped.lock();
        freeing.record.left_bytes = freeing.record.left_bytes.saturating_sub(before);
        freeing.changed = true;
    }

    /// Garbage collection has judged all ids below `next`; `left` bytes had been left to it when it began. With 0 none
    /// is under way.
    pub fn note_judged(&self, next: BlockId, left: u64) {
        let mut freeing = self.dropped.lock();
        let record = &mut freeing.record;
        if (record.judged, record.judged_left) != (next, left) {
            (record.judged, record.judged_left) = (next, left);
            freeing.changed = true;
        }
    }

    /// Note by [`Freeing::note_judged`] of a collection that was cut short.
    pub(crate) fn judged(&self) -> Option<(BlockId, u64)> {
        let record = self.dropped.lock().record;
        (record.judged > BlockId::new(0)).then_some((record.judged, record.judged_left))
    }

    /// Garbage collection found one reference to an id that was shared, and none was made since it began. A mark `DEAD`
    /// was for another reference, and goes too.
    pub fn note_sole(&self, map: &mut BlockMap, id: BlockId) {
        map.apply(Update::Unmark { id, marks: Marks::SHARED.with(Marks::ALIASED).with(Marks::DEAD) });
    }

    /// Garbage collection found no reference to a block of `bytes`, and none was made since it began: it joins the
    /// queue.
    pub fn condemn(&self, map: &mut BlockMap, id: BlockId, bytes: u64) {
        map.apply(Update::Unmark { id, marks: Marks::SHARED.with(Marks::ALIASED) });
        map.apply(Update::Mark { id, marks: Marks::DEAD });
        self.dropped.lock().enqueue(id, bytes, self.queue_limit());
    }

    /// Garbage collection found no reference to an alias, and none was made since it began: its target was judged with
    /// that in mind. Under the commit lock.
    pub fn forget_alias(&self, map: &mut BlockMap, id: BlockId) {
        self.forget_block(map, id);
        self.store.cache.forget(id);
        self.pins.freed(id);
    }

    /// Garbage collection found that no id is shared any more. Nobody may be inside.
    pub fn nothing_is_shared(&self, _nobody_enters: &RwLockWriteGuard<'_, ()>) {
        let mut freeing = self.dropped.lock();
        freeing.changed |= freeing.record.shared != 0;
        freeing.record.shared = 0;
    }

    /// Ids that find room in the queue's memory.
    pub fn queue_room(&self) -> usize {
        self.queue_limit().saturating_sub(self.dropped.lock().queue.len())
    }

    fn queue_limit(&self) -> usize {
        let share = self.store.cache.memory() / QUEUE_SHARE / QUEUE_ENTRY;
        QUEUE_MAX.min(share as usize)
    }

    /// Part of a commit: the freeing record goes into the tables when it changed.
    pub(crate) fn seal(&self, tables: &Mutex<Tree>) -> Result<()> {
        let Some(record) = self.dropped.lock().seal() else { return Ok(()) };
        let noted = tables.lock().insert(&TableNodes(&self.store), Table::Freeing.key(0), &record.encode());
        self.dropped.lock().changed |= noted.is_err();
        noted.map(drop)
    }

    /// Looks for ids with the mark `DEAD` from `from` on and brings them into the queue; the pages that it read.
    fn sweep(&self, from: BlockId, pages: usize) -> Result<usize> {
        let (limit, io) = (self.queue_limit().max(1), RunIo::new(&self.store));
        // A commit's marks are in the runs by now; what GC has marked since is in the table.
        let (mut found, mut walk) = {
            let map = self.store.map.lock();
            (map.newly_marked(from.., Marks::DEAD, limit), map.walk(from, pages))
        };
        // Where to go on, if there is more.
        let mut rest = found.last().filter(|_| found.len() == limit).map(|last| last.next());
        let mut at = from;
        loop {
            if rest.is_some_and(|rest| at >= rest) {
                break;
            }
            let step = match walk.next(&io) {
                Err(PoolError::Unreadable { .. } | PoolError::Corrupt(_)) => {
                    self.dropped.lock().left_out = true;
                    continue;
                }
                step => step?,
            };
            match step {
                Step::Entry(id, delta) => {
                    at = id.next();
                    if delta.set.contains(Marks::DEAD) {
                        found.push(id);
                        if found.len() >= 2 * limit {
                            rest = Some(at);
                        }
                    }
                }
                Step::Paused => rest = Some(at),
                Step::End => break,
            }
        }
        let mut freeing = self.dropped.lock();
        freeing.unswept = rest;
        for id in found.into_iter().filter(|&id| rest.is_none_or(|rest| id < rest)) {
            if !freeing.held.contains(&id) {
                freeing.queue.insert(id);
            }
        }
        Ok(walk.pages().max(1))
    }

    /// Bytes of blocks that wait in the free queue or for the next commit, about.
    pub fn queued_bytes(&self) -> u64 {
        let freeing = self.dropped.lock();
        let queued = if freeing.is_waiting_for_nothing() { 0 } else { freeing.record.queued_bytes };
        queued + freeing.dropped_bytes
    }

    /// Bytes of records that wait in the free queue or for the next commit, about.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        let freeing = self.dropped.lock();
        let queued = if freeing.is_waiting_for_nothing() { 0 } else { freeing.record.queued_bytes };
        queued + freeing.records.iter().map(|ptr| u64::from(ptr.place.stored)).sum::<u64>()
    }

    /// Blocks that were dropped since the last commit, which has to deal with each of them.
    pub fn dropped_blocks(&self) -> usize {
        let freeing = self.dropped.lock();
        freeing.records.len() + freeing.nodes.len()
    }

    /// Bytes that a collection may bring back, at most.
    pub fn left_bytes(&self) -> u64 {
        self.dropped.lock().record.left_bytes
    }

    /// Whether an id may be referred to more than once.
    pub fn has_shared(&self) -> bool {
        self.dropped.lock().record.shared != 0
    }

    /// Whether the next commit frees or marks blocks.
    pub(crate) fn has_dropped(&self) -> bool {
        let freeing = self.dropped.lock();
        !freeing.records.is_empty() || !freeing.nodes.is_empty()
    }

    /// Whether the free queue has work.
    pub fn has_queued(&self) -> bool {
        let freeing = self.dropped.lock();
        !freeing.queue.is_empty() || freeing.unswept.is_some()
    }

    /// Whether ids with the mark `DEAD` wait for the next import, for the map cannot be read there.
    pub fn has_left_out(&self) -> bool {
        self.dropped.lock().left_out
    }

    /// A further extent names this block: from now on only GC can say that it is dead.
    pub fn note_shared(&self, id: BlockId) {
        self.mark_shared(&mut self.store.map.lock(), id);
    }

    /// As [`Freeing::note_shared`], under the map's lock.
    pub(crate) fn mark_shared(&self, map: &mut BlockMap, id: BlockId) {
        // First: a collection that has not heard of it may take the mark away, but only before it is set.
        self.pins.touched(id);
        if !mutated(Mutant::SharedNotMarked) {
            map.apply(Update::Mark { id, marks: Marks::SHARED });
        }
        let mut freeing = self.dropped.lock();
        freeing.changed |= freeing.record.shared == 0;
        freeing.record.shared = 1;
    }

    /// The map forgets a block, and whoever looks for duplicates never names it again.
    fn forget_block(&self, map: &mut BlockMap, id: BlockId) {
        map.apply(Update::Delete { id });
        self.duplicates.forget(id);
    }

    /// Part of a commit: what was dropped since the last one is freed, or marked. Nobody is inside. While something
    /// remains of snapshots, the map is asked which is there still.
    pub(crate) fn seal_dropped(&self, has_remains: bool) {
        let is_twice = self.is_twice.swap(false, Ordering::Relaxed) || has_remains;
        let (records, nodes, shared) = {
            let mut freeing = self.dropped.lock();
            let (records, nodes) = (std::mem::take(&mut freeing.records), std::mem::take(&mut freeing.nodes));
            freeing.dropped_bytes = 0;
            (records, nodes, freeing.record.shared != 0)
        };
        let (mut dead, mut unsure) = (Vec::new(), Vec::new());
        let (held, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| self.pins.holds(node.id));
        if !mutated(Mutant::Leak) {
            let core = self.store.core.lock();
            for ptr in records.into_iter().chain(nodes) {
                let is_told = !core.has_copies() && !core.has_aliases();
                let certain = !shared && !is_twice && is_told && !core.hint_is_stale(ptr.place.segment);
                if certain { &mut dead } else { &mut unsure }.push(ptr);
            }
        }
        {
            let mut map = self.store.map.lock();
            dead.iter().for_each(|ptr| self.forget_block(&mut map, ptr.id));
        }
        self.give_back(dead.iter().map(|ptr| (ptr.id, ptr.place)));
        self.mark_dead(unsure, held);
    }

    /// Blocks that the map has forgotten: their bytes are not live any more.
    fn give_back(&self, freed: impl Iterator<Item = (BlockId, Place)> + Clone) {
        let mut core = self.store.core.lock();
        freed.clone().for_each(|(_, place)| core.release(place));
        drop(core);
        for (id, _) in freed {
            self.store.cache.forget(id);
            self.pins.freed(id);
        }
    }

    /// Frees a block at once, before any commit.
    pub(crate) fn free_now(&self, ptr: BlockPtr) {
        if self.store.core.lock().has_copies() {
            // Only the map knows all of its places.
            self.store.map.lock().apply(Update::Mark { id: ptr.id, marks: Marks::DEAD });
            let bytes = u64::from(ptr.place.footprint());
            return self.dropped.lock().enqueue(ptr.id, bytes, self.queue_limit());
        }
        self.forget_block(&mut self.store.map.lock(), ptr.id);
        self.give_back(std::iter::once((ptr.id, ptr.place)));
    }

    /// As [`crate::Pool::free_step`]; the commit lock is held, so that no block moves and no run goes.
    pub(crate) fn free_some(&self, pages: usize) -> Result<bool> {
        self.let_go();
        let mut pages = pages.max(1);
        let mut ids_left = IDS_PER_STEP;
        let mut finder = self.store.map.lock().finder();
        while pages > 0 && ids_left > 0 {
            let batch: Vec<BlockId> = {
                let freeing = self.dropped.lock();
                freeing.queue.iter().take(BATCH.min(ids_left)).copied().collect()
            };
            let read = if batch.is_empty() {
                let from = self.dropped.lock().unswept;
                let Some(from) = from else { break };
                self.sweep(from, pages)?
            } else {
                ids_left -= batch.len();
                self.decide_batch(&batch, &mut finder)?
            };
            pages = pages.saturating_sub(read);
        }
        let freeing = self.dropped.lock();
        Ok(!freeing.queue.is_empty() || freeing.unswept.is_some())
    }

    /// Queues ids that no collection holds any more.
    fn let_go(&self) {
        let first = self.dropped.lock().held.first().copied();
        // The oldest is held as long as any other is.
        if first.is_some_and(|first| !self.pins.holds(first)) {
            let limit = self.queue_limit();
            let mut freeing = self.dropped.lock();
            for id in std::mem::take(&mut freeing.held) {
                freeing.remember(id, limit);
            }
        }
    }

    /// Ids on a page of the map that cannot be read keep their mark, and hold up no others.
    fn leave_out(&self, ids: &[BlockId]) {
        let mut freeing = self.dropped.lock();
        freeing.left_out = true;
        for id in ids {
            freeing.queue.remove(id);
        }
    }

    /// The deltas of the runs for ids of the queue, without those that are left out.
    fn find_batch(&self, mut ids: &[BlockId], finder: &mut Finder) -> Result<Vec<(BlockId, Delta)>> {
        let (io, mut in_runs) = (RunIo::new(&self.store), Vec::with_capacity(ids.len()));
        while let Some((&id, rest)) = ids.split_first() {
            match finder.find(id, &io) {
                Ok(delta) => {
                    in_runs.push((id, delta));
                    ids = rest;
                }
                Err(PoolError::Unreadable { .. } | PoolError::Corrupt(_)) => {
                    let lost = 1 + rest.partition_point(|id| *id <= finder.lost_until());
                    self.leave_out(&ids[..lost]);
                    ids = &ids[lost..];
                }
                Err(error) => return Err(error),
            }
        }
        Ok(in_runs)
    }

    /// Frees the ids of the queue that are not shared; the pages that it read.
    fn decide_batch(&self, ids: &[BlockId], finder: &mut Finder) -> Result<usize> {
        let before = finder.pages();
        let in_runs = self.find_batch(ids, finder)?;
        let (mut freed, mut aliases) = (Vec::new(), Vec::new());
        {
            let mut map = self.store.map.lock();
            let mut freeing = self.dropped.lock();
            for (id, in_runs) in in_runs {
                let delta = map.now(id, in_runs);
                if !delta.set.contains(Marks::DEAD) {
                    freeing.queue.remove(&id);
                    continue;
                }
                let (places, target) = match Entry::of(&delta).map(|entry| entry.location) {
                    Some(Location::Places(places)) => (places.to_vec(), None),
                    Some(Location::Alias(to)) => (Vec::new(), Some(to)),
                    None => (Vec::new(), None),
                };
                // The hint of an alias is not kept: as much as the others, on the average.
                let about = || freeing.record.queued_bytes / freeing.record.queued_blocks.max(1);
                let bytes = match target {
                    Some(_) => about().max(1),
                    // As it was counted, by the hint, which tells of one place.
                    None => places.first().map_or(0, |place| u64::from(place.footprint())),
                };
                freeing.dequeued(id, bytes);
                if delta.set.contains(Marks::SHARED) {
                    freeing.record.left_bytes += bytes;
                    if !mutated(Mutant::DeadNotCleared) {
                        map.apply(Update::Unmark { id, marks: Marks::DEAD });
                    }
                } else {
                    self.forget_block(&mut map, id);
                    freed.extend(places.into_iter().map(|place| (id, place)));
                    if target.is_some() {
                        // Whether it is needed still is left to GC.
                        freeing.record.left_bytes += bytes;
                        aliases.push(id);
                    }
                }
            }
        }
        self.give_back(freed.iter().copied());
        for id in aliases {
            self.store.cache.forget(id);
            self.pins.freed(id);
        }
        Ok(finder.pages() - before)
    }

    /// The cleaner met a block: frees it when it is dead, and says so; else it has to be moved. `in_map` is what the
    /// map knew of it when it was looked up under the commit lock, which is still held.
    pub(crate) fn free_dead(&self, id: BlockId, in_map: Entry) -> bool {
        let (Location::Places(places), true) = (in_map.location, in_map.marks.contains(Marks::DEAD)) else {
            return false;
        };
        {
            let mut map = self.store.map.lock();
            let mut freeing = self.dropped.lock();
            let marks = map.now(id, Delta { set: in_map.marks, ..Delta::NONE }).set;
            if marks.contains(Marks::SHARED) || !marks.contains(Marks::DEAD) || freeing.held.contains(&id) {
                return false;
            }
            self.forget_block(&mut map, id);
            freeing.dequeued(id, places.first().map_or(0, |place| u64::from(place.footprint())));
        }
        self.give_back(places.iter().map(|&place| (id, place)));
        true
    }
}
