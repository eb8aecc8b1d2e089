//! A commit: the atomic step from one root record to the next.
//!
//! 1. The front end stores its dirty data; traffic goes on.
//! 2. With the gate closed, at a moment at which nothing has been removed since 1: data that the log holds is stored;
//!    dirty nodes of datasets become blocks; commit records tell of datasets, if it is time;
//!    dropped blocks die; the block map's updates become a run; segments, datasets and runs go into the
//!    tables, and the tables' dirty nodes become blocks. All of this is submitted, not waited for.
//! 3. With the gate open again: every stripe written so far is waited for; all devices are flushed; the
//!    root goes to the first label area of every device; all devices are flushed: the commit is
//!    durable. The root's second copy is written then, and is durable with the next flush.
//!
//! A crash before the flush after the root leaves the last commit, and the log on top of it; nothing
//! that it refers to has been overwritten, since slots freed by commit N are given back only when root
//! N+2 is durable. An error in step 2 suspends the pool: memory and disk have parted.

use crate::dataset::is_free_to_die;
use crate::fence::FenceCheck;
use crate::freeing::PAGES_PER_COMMIT;
use crate::pool::{FrontEnd, Pool};
use crate::sealing::Sealed;
use larder_format::block::BlockKind;
use larder_format::node::Node;
use larder_format::root::{Root, RootGroup, ring_slot};
use larder_format::run::{MAX_PLACES, RunDescriptor, RunId};
use larder_format::segment::{SegmentKind, SegmentState};
use larder_format::tables::{PIECE_MAX, Table, pieces};
use larder_format::{BlockId, BlockPtr, CommitId, DatasetId, OpSeq, SegmentId};
use larder_mutants::{Mutant, mutated};
use larder_sorted::map::{Budget, Changes};
use larder_sorted::tree::{NodeSink, Tree};
use larder_store::codec::Codec;
use larder_store::core::{Core, LEASE};
use larder_store::segments::{Listed, SegmentEntry};
use larder_store::space::GroupSpace;
use larder_store::{Appender, Class, Event, PoolError, Refusal, Result, RunIo, Store, TableNodes, own_info};
use larder_sync::RwLockWriteGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Attempts at a commit that has no room for all that was accepted, as long as each brings some.
const ROUNDS: usize = 1024;
/// Pages of a large merge of the block map that one commit goes on with.
const MERGE_PAGES: usize = 256;
/// Times that a commit has dirty data stored beside traffic at most; then those who remove something wait.
const FLUSH_ROUNDS: usize = 3;

type GateGuard<'a> = RwLockWriteGuard<'a, ()>;

/// Purpose of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// All that was accepted becomes durable.
    Whole,
    /// That, and the root says that the pool was left in order.
    Export,
    /// That, and that it was destroyed.
    Destroy,
    /// Store what finds room, so that what it replaces gets free.
    WhatFits,
}

impl How {
    /// Nothing of this import follows.
    fn is_last(self) -> bool {
        matches!(self, Self::Export | Self::Destroy)
    }
}

/// The groups as a root has them.
pub(crate) fn root_groups(core: &Core) -> Vec<RootGroup> {
    let told = |group: &GroupSpace| RootGroup {
        index: group.index,
        rule: group.rule,
        role: group.role,
        ashift: group.ashift,
        slot_size: group.slot_size,
        leaving: group.leaving,
        narrow: group.narrow,
    };
    core.groups.values().map(told).collect()
}

/// Turns dirty nodes into blocks.
pub(crate) struct NodeBlocks<'p, 'a> {
    pub(crate) store: &'p Store,
    pub(crate) blocks: &'a mut Appender<'p>,
    /// For further places.
    pub(crate) further: &'a mut [Appender<'p>],
    pub(crate) kind: BlockKind,
    pub(crate) dataset: DatasetId,
}

impl NodeSink for NodeBlocks<'_, '_> {
    type Error = crate::PoolError;
    fn write(&mut self, node: &Arc<Node>) -> Result<BlockPtr> {
        let mut info = own_info(self.kind, self.dataset);
        let first = node.first_key();
        info.level = node.level();
        (info.object, info.key_kind, info.offset) = (first.object, first.kind, first.offset);
        let ptr = self.blocks.store_copies(info, Codec::Lz4, &node.encode(), self.further)?;
        self.store.cache.keep_node(ptr.id, node);
        Ok(ptr)
    }
}

impl Pool {
    /// One whole commit; returns its number. Everything done before the call is durable afterwards.
    ///
    /// # Errors
    /// When the pool is suspended or gets so; when the front end cannot store its data.
    pub fn commit(&self) -> Result<CommitId> {
        self.commit_all(How::Whole)
    }

    /// The last commit of this import: the root says that the pool was left in order.
    pub fn commit_export(&self) -> Result<CommitId> {
        self.shared.store.event(Event::new(Class::PoolExport));
        self.commit_all(How::Export)
    }

    /// As [`Pool::commit_export`], and the root says that the pool was destroyed: importing it brings it back, unless
    /// its devices were given to others.
    pub fn commit_destroy(&self) -> Result<CommitId> {
        self.shared.store.event(Event::new(Class::PoolExport));
        self.commit_all(How::Destroy)
    }

    /// Commits what can be stored of the dirty data; the rest stays dirty.
    pub(crate) fn commit_what_fits(&self) -> Result<CommitId> {
        self.commit_with(How::WhatFits)
    }

    fn commit_all(&self, how: How) -> Result<CommitId> {
        for _ in 0..ROUNDS {
            match self.commit_with(how) {
                Err(PoolError::NoSpace) => self.make_commit_fit()?,
                done => return done,
            }
        }
        Err(PoolError::NoSpace)
    }

    /// Commits, unless all up to `target` has become durable while somebody else did.
    pub(crate) fn commit_through(&self, target: OpSeq) -> Result<()> {
        // Writers leave less behind from now on: all of it is waited for.
        self.shared.store.hurried.store(true, Ordering::Relaxed);
        for _ in 0..ROUNDS {
            match self.commit_unless(How::Whole, Some(target)) {
                Err(PoolError::NoSpace) => self.make_commit_fit()?,
                done => return done.map(drop),
            }
        }
        Err(PoolError::NoSpace)
    }

    fn commit_with(&self, how: How) -> Result<CommitId> {
        self.commit_unless(how, None)
    }

    fn commit_unless(&self, how: How, target: Option<OpSeq>) -> Result<CommitId> {
        let export = how.is_last();
        if export {
            self.shared.store.close_read_cache();
        }
        let _one_at_a_time = self.commit_turn();
        let writable = self.shared.store.check_writable();
        let is_there = target.is_some_and(|target| self.shared.intent.notes.lock().has_logged(target));
        match writable {
            // The export's own commit has it.
            Ok(()) | Err(PoolError::Refused(Refusal::Exported)) if is_there => {
                return Ok(self.shared.store.durable_commit());
            }
            writable => writable?,
        }
        if target.is_none() {
            self.shared.store.hurried.store(false, Ordering::Relaxed);
        }
        self.shared.intent.check_replayed()?;
        // Before its stripes go where somebody else's may be.
        self.fence.still_ours(FenceCheck::Briefly)?;
        self.observe_devices();
        self.snapshots.lock().begin_commit();
        let front = self.front_end();
        self.merge_map()?;
        self.tick_index(MERGE_PAGES)?;
        let sealed = {
            let (guard, _nothing_is_removed) = self.close_gate(how, target.is_some(), front.as_deref())?;
            let op = self.exclusive(&guard)?;
            if let Some(front) = &front {
                front.flush_logged(&op)?;
            }
            let mut sealed =
                self.seal(&guard, how).map_err(|error| self.shared.store.suspend_sealing(&error))?;
            self.pin_if_wanted(&guard, sealed.root.commit);
            self.cross_boundary(sealed.root.commit);
            self.tell_groups(&mut sealed.root);
            sealed
        };
        let commit = sealed.root.commit;
        self.finish_or_keep(sealed)?;
        // Others may take it from now on.
        self.shared.store.exported.fetch_or(export, Ordering::AcqRel);
        if let Some(front) = &front {
            front.committed(commit);
        }
        if !export {
            // It can fail at a page of the map that cannot be read; the commit is durable nevertheless, and
            // whoever calls [`Pool::free_step`] is told.
            drop(self.shared.freeing.free_some(PAGES_PER_COMMIT));
        }
        Ok(commit)
    }

    /// Has dirty data stored, and closes the gate at a moment at which nothing has been removed since, so that no
    /// removal is in a commit without what was written before it. When that does not come by itself, removals wait
    /// for it: as soon as another round beside them would leave as much, and at once where an fsync waits for little.
    fn close_gate(
        &self,
        how: How,
        is_waited_for: bool,
        front: Option<&dyn FrontEnd>,
    ) -> Result<(GateGuard<'_>, Option<GateGuard<'_>>)> {
        let (mut held, mut before) = (None, u64::MAX);
        for round in 0.. {
            let dirty = self.shared.store.dirty.get();
            let is_little = is_waited_for && dirty <= self.shared.store.dirty_allowed();
            if held.is_none() && (is_little || round == FLUSH_ROUNDS || dirty > before / 2) {
                held = Some(self.shared.intent.hold_removals());
            }
            before = dirty;
            let removals = self.shared.intent.notes.lock().removals();
            let fits = match front.map_or(Ok(()), FrontEnd::flush) {
                Err(PoolError::NoSpace) if how == How::WhatFits => false,
                flushed => flushed.map(|()| true)?,
            };
            self.look_ahead_in_tables();
            self.look_ahead_in_rows(how.is_last());
            let guard = self.gate.write();
            let is_ordered = self.shared.intent.notes.lock().removals() == removals;
            debug_assert!(held.is_none() || is_ordered, "whoever removes something says so before");
            // Dirty data that does not fit waits for room that only a commit brings.
            if is_ordered || !fits || held.is_some() || mutated(Mutant::RestNotStored) {
                return Ok((guard, held));
            }
        }
        unreachable!("what is stored while removals wait is taken as it is")
    }

    /// Goes on with merging large runs of the block map, which is not held over reads and writes: whoever stores or
    /// looks up would wait.
    fn merge_map(&self) -> Result<()> {
        // It takes space before it gives any, and must not take what this commit needs.
        if self.shared.store.core.lock().room_for_nodes() == 0 {
            return Ok(());
        }
        let (mut io, mut budget) = (RunIo::new(&self.shared.store), Budget::pages(MERGE_PAGES));
        let merged = loop {
            let Some(mut merging) = self.shared.store.map.lock().take_merge() else { break Ok(()) };
            let gone_on = merging.go_on(&mut budget, &mut io);
            let outcome = gone_on.and_then(|complete| io.submit().map(|()| complete));
            let unread = merging.unread();
            let put_back = self.shared.store.map.lock().put_back(merging, outcome);
            match (put_back, unread) {
                (Ok(true), _) => {}
                // A merge that has no room is abandoned, and planned anew.
                (Ok(false) | Err(PoolError::NoSpace), _) => break Ok(()),
                // One that meets a lost page is not, and the others go on: the page costs its range alone.
                (Err(error @ (PoolError::Unreadable { .. } | PoolError::Corrupt(_))), Some(run)) => {
                    self.set_run_aside(run, &error);
                }
                (Err(error), _) => break Err(error),
            }
        };
        io.finish()?;
        let changes = self.shared.store.map.lock().merged().changes;
        self.take_changes(changes)?;
        merged
    }

    /// No merge needs a run any more of which a page cannot be read.
    fn set_run_aside(&self, run: RunId, error: &PoolError) {
        if self.shared.store.map.lock().set_aside(run) {
            let text =
                format!("run {} of the block map is not merged until the next import: {error}", run.get());
            self.shared.store.event(Event::new(Class::Data).text(&text));
        }
    }

    /// Writes changes of a merge or checkpoint of the block map to the tables, and removes what it forgot from the
    /// dedup index.
    pub(crate) fn take_changes(&self, changes: Changes) -> Result<()> {
        self.shared.duplicates.forget_prints(changes.forgotten);
        let mut tables = self.tables.lock();
        let mut unnoted = self.sealing.unnoted.lock();
        for run in changes.removed {
            // A run that the tables never had need not be removed from them.
            match unnoted.added.iter().position(|added| added.run == run.run) {
                Some(at) => drop(unnoted.added.remove(at)),
                None => unnoted.removed.push(run),
            }
        }
        unnoted.added.extend(changes.added);
        self.install_runs(&mut tables, &mut unnoted)
    }

    /// Brings changed runs into the tables; segments learn what lives in them by the runs alone. What cannot be brought
    /// there now stays for the next time.
    fn install_runs(&self, tables: &mut Tree, unnoted: &mut Changes) -> Result<()> {
        let mut value = Vec::new();
        while let Some(run) = unnoted.removed.last() {
            value.clear();
            run.encode(&mut value);
            self.drop_run(tables, Table::Runs, run, value.len())?;
            unnoted.removed.pop();
        }
        while let Some(run) = unnoted.added.last() {
            value.clear();
            run.encode(&mut value);
            self.keep_run(tables, Table::Runs, run, &value)?;
            unnoted.added.pop();
        }
        Ok(())
    }

    /// Brings the descriptor of a run into its table, in pieces; what it takes is live.
    pub(crate) fn keep_run(
        &self,
        tables: &mut Tree,
        table: Table,
        run: &RunDescriptor,
        value: &[u8],
    ) -> Result<()> {
        for (number, piece) in pieces(value).enumerate() {
            tables.insert(
                &TableNodes(&self.shared.store),
                table.piece_key(run.run.get(), number as u64),
                piece,
            )?;
        }
        let mut core = self.shared.store.core.lock();
        for footprint in &run.footprints {
            core.count_live(footprint.segment, footprint.blocks, footprint.bytes);
        }
        Ok(())
    }

    /// Takes such a descriptor, of `len` bytes, out again; what it takes is free.
    pub(crate) fn drop_run(
        &self,
        tables: &mut Tree,
        table: Table,
        run: &RunDescriptor,
        len: usize,
    ) -> Result<()> {
        for number in 0..len.div_ceil(PIECE_MAX) {
            tables.remove(&TableNodes(&self.shared.store), &table.piece_key(run.run.get(), number as u64))?;
        }
        let mut core = self.shared.store.core.lock();
        for footprint in &run.footprints {
            core.release_many(footprint.segment, footprint.blocks, footprint.bytes);
        }
        Ok(())
    }

    /// Step 2: everything that changed becomes blocks, and a root that names them.
    fn seal(&self, nobody_enters: &RwLockWriteGuard<'_, ()>, how: How) -> Result<Sealed> {
        let commit = self.shared.store.open_commit();
        let rebuilt = self.rebuilt.so_far(&self.shared.store);
        let applied = self.shared.intent.notes.lock().last();
        self.seal_datasets(how)?;
        let changes = {
            let (mut map, mut pages) = (self.shared.store.map.lock(), RunIo::new(&self.shared.store));
            let changes = map.checkpoint(&mut pages)?;
            // Look-ups find the new runs as soon as they have the map, and must find their pages.
            pages.finish()?;
            changes
        };
        self.take_changes(changes)?;
        let crossed = mutated(Mutant::LocksCrossed).then(|| self.shared.intent.notes.lock());
        let mut intent = self.shared.intent.lock();
        drop(crossed);
        self.shared.intent.rotate(nobody_enters, &mut intent, commit)?;
        self.shared.intent.set_closed(&intent, how.is_last());
        let tables = self.seal_tables(commit)?;
        let time = self.shared.store.world.clock.now();
        let mut core = self.shared.store.core.lock();
        if let Some(segment) = core.miscounted {
            let text = format!("the tables count less in segment {segment} than was freed of it");
            return Err(PoolError::Invalid(text));
        }
        core.free_dead_segments(commit, true, &[]);
        core.withhold();
        core.block_lease = BlockId::new(core.next_block.get() + LEASE);
        core.segment_lease = SegmentId::new(core.next_segment.get() + LEASE);
        core.open_commit = commit.next();
        debug_assert!(core.entries.is_kept_up(), "sums and lists are what all segments together are");
        let rooted = |list| core.entries.listed(list).map(SegmentEntry::to_record);
        let mut segments: Vec<_> = rooted(Listed::Table).collect();
        // The log's segments in the order in which they are used; those that were freed after them.
        segments.extend(intent.segments.iter().map(|(id, _)| core.entries[id].to_record()));
        segments.extend(rooted(Listed::Log).filter(|segment| segment.state != SegmentState::Open));
        let root = Root {
            pool: self.shared.store.guid(),
            commit,
            incarnation: core.incarnation,
            time,
            exported: how.is_last(),
            destroyed: how == How::Destroy,
            log_open: !how.is_last(),
            host: self.shared.store.world.host,
            block_lease: core.block_lease,
            segment_lease: core.segment_lease,
            oldest: CommitId::new(commit.get().saturating_sub(2)),
            applied,
            log_offset: intent.offset + if mutated(Mutant::LogStartsLate) { 4096 } else { 0 },
            log_sequence: intent.sequence,
            log_previous: intent.previous,
            log_incarnation: core.incarnation,
            tables,
            features: core.features,
            traced: core.traced,
            identity: core.identity,
            next_device: 0,
            next_group: 0,
            groups: Vec::new(),
            devices: Vec::new(),
            history: self.shared.store.history.lock().clone(),
            segments,
        };
        Ok(Sealed { root, applied, rebuilt })
    }

    /// Puts the groups into a root, and what the pool is known by: as they are from this boundary on.
    fn tell_groups(&self, root: &mut Root) {
        let core = self.shared.store.core.lock();
        root.groups = root_groups(&core);
        root.next_group = core.groups.next();
        (root.identity, root.features) = (core.identity, core.features);
    }

    /// Dirty nodes of datasets become blocks, snapshots are taken of them, commit records tell of both, and blocks that
    /// were dropped die.
    fn seal_datasets(&self, how: How) -> Result<()> {
        let mut blocks = Appender::new(&self.shared.store, SegmentKind::Node);
        let further = |copy| Appender::of_further_nodes(&self.shared.store, copy);
        let mut further: Vec<Appender<'_>> = (1..MAX_PLACES as u8).map(further).collect();
        for dataset in self.trees() {
            let mut held = dataset.change();
            let state = &mut *held;
            if !state.changed && !state.tree.is_dirty() {
                continue;
            }
            self.shared.store.behind.end_era(&mut state.era, self.shared.store.open_commit());
            if state.tree.is_dirty() {
                let mut sink = NodeBlocks {
                    store: &self.shared.store,
                    blocks: &mut blocks,
                    further: &mut further[..usize::from(dataset.settings().copies) - 1],
                    kind: BlockKind::Node,
                    dataset: dataset.id(),
                };
                state.record.root = Some(state.tree.flush(&mut sink)?);
                // Readers must find the nodes as soon as the tree is theirs again.
                blocks.submit()?;
                further.iter_mut().try_for_each(Appender::submit)?;
            }
            // A snapshot that this commit takes is of the tree as it is now, without them.
            let mut dropped = state.tree.take_dropped();
            dropped.iter().for_each(|ptr| self.shared.damage.doubt(dataset.id(), ptr.id));
            // The remains of a snapshot are found by them.
            let was_protected =
                std::mem::replace(&mut state.was_protected_below, state.record.protected_below);
            dropped.retain(|ptr| {
                let bytes = u64::from(ptr.place.footprint());
                is_free_to_die(&mut state.record, ptr.id, bytes) && ptr.id > was_protected
            });
            self.shared.freeing.drop_nodes(dropped);
            // Until the tables have it. Nobody changes it meanwhile: the gate is closed.
            state.changed = true;
            let record = state.record.clone();
            drop(held);
            let before = self.tables.lock().insert(
                &TableNodes(&self.shared.store),
                Table::dataset_key(dataset.id()),
                &record.encode(),
            )?;
            self.records.lock().note_dataset(before.as_deref(), &record);
            dataset.change().changed = false;
        }
        // Nobody is inside.
        let sealed = self.shared.store.unsealed.swap(0, Ordering::Relaxed);
        self.sealing.add_node_bytes(sealed.max(0) as u64);
        if how != How::WhatFits {
            self.seal_snapshots(self.shared.store.open_commit())?;
        }
        self.seal_records(how.is_last())?;
        self.shared.freeing.seal_dropped(self.remaining() > 0);
        self.shared.freeing.seal(&self.tables)
    }

    /// Segments with pages that no descriptor names yet.
    pub(crate) fn unnamed_pages(&self) -> Vec<SegmentId> {
        let mut unfinished = self.shared.pins.segments();
        unfinished
            .extend(self.shared.store.map.lock().unfinished().iter().map(|footprint| footprint.segment));
        unfinished.extend(self.shared.duplicates.unfinished());
        unfinished
    }

    /// Changed segments go into the tables, and the tables' dirty nodes become blocks.
    fn seal_tables(&self, commit: CommitId) -> Result<BlockPtr> {
        let unfinished = self.unnamed_pages();
        let mut tables = self.tables.lock();
        self.shared.damage.seal(&mut tables);
        let (gone, changed) = {
            let mut core = self.shared.store.core.lock();
            core.free_dead_segments(commit, false, &unfinished);
            (core.gone.clone(), core.entries.ids(Listed::Dirty).clone())
        };
        for id in &gone {
            tables.remove(&TableNodes(&self.shared.store), &Table::segment_key(*id))?;
        }
        self.shared.store.core.lock().gone.drain(..gone.len());
        let mut value = Vec::new();
        for id in changed {
            let record = {
                let entries = &mut self.shared.store.core.lock().entries;
                entries.change(id, |entry| entry.dirty = false);
                self.shared.store.move_is_told(id);
                entries[&id].to_record()
            };
            if record.kind.is_rooted() {
                continue;
            }
            value.clear();
            record.encode(&mut value);
            let noted = tables.insert(&TableNodes(&self.shared.store), Table::segment_key(id), &value);
            if let Err(error) = noted {
                self.shared.store.move_is_untold(id);
                return Err(error);
            }
        }
        self.log.seal(&self.shared.store, &mut tables);
        self.shared.store.seal_bad_slots(&mut tables);
        let scattered = std::mem::take(&mut *self.sealing.scattered.lock());
        for key in scattered {
            // A node that cannot be read stays where it is: nobody asked for it.
            let _ = tables.touch(&TableNodes(&self.shared.store), &key);
        }
        let mut blocks = Appender::new(&self.shared.store, SegmentKind::Table);
        let mut sink = NodeBlocks {
            store: &self.shared.store,
            blocks: &mut blocks,
            further: &mut [],
            kind: BlockKind::Table,
            dataset: DatasetId::new(0),
        };
        let root = tables.flush(&mut sink)?;
        blocks.submit()?;
        for ptr in tables.take_dropped() {
            self.shared.store.core.lock().release(ptr.place);
            self.shared.store.cache.forget(ptr.id);
        }
        Ok(root)
    }

    /// As [`Pool::finish`]; a commit that devices refuse is kept, to be finished when they are there again: the root
    /// after next would make devices look stale that lack two.
    fn finish_or_keep(&self, mut sealed: Sealed) -> Result<()> {
        let finished = self.finish(&mut sealed);
        let Err(error) = finished else { return Ok(()) };
        self.sealing.keep(sealed);
        // Whatever it was: no other commit may come before this one.
        if self.shared.store.suspended().is_none() {
            return Err(self.shared.store.suspend_sealing(&error));
        }
        Err(error)
    }

    /// Finishes the commit that was kept, if there is one.
    pub(crate) fn finish_kept(&self) -> Result<()> {
        let kept = self.sealing.take();
        kept.map_or(Ok(()), |sealed| self.finish_or_keep(sealed))
    }

    /// Step 3: what was sealed becomes durable.
    fn finish(&self, sealed: &mut Sealed) -> Result<()> {
        let Sealed { root, applied, rebuilt } = sealed;
        let commit = root.commit;
        if mutated(Mutant::RootBeforeData) {
            self.publish(root)?;
        }
        self.shared.store.complete_all_stripes()?;
        self.shared.store.tell_of_moves(root, &self.tables)?;
        if !mutated(Mutant::DataNotFlushed) {
            self.shared.store.members.flush_all();
        }
        self.shared.store.doubt_lost_repairs();
        self.shared.intent.leave_if_lost(root);
        self.rebuilt.keep(std::mem::take(rebuilt));
        if mutated(Mutant::DurableTooSoon) {
            self.shared.store.durable.store(commit.get(), Ordering::Release);
        }
        self.publish(root)?;
        self.shared.store.durable.store(commit.get(), Ordering::Release);
        self.shared.intent.committed(*applied);
        self.let_go_of_freed();
        let behind = self.shared.store.behind.oldest();
        let mut core = self.shared.store.core.lock();
        core.reap_segments(&self.shared.store.readable, commit, behind);
        Ok(())
    }

    /// Writes a root whose blocks are durable, and makes it durable.
    pub(crate) fn publish(&self, root: &mut Root) -> Result<()> {
        self.shared.store.check_tolerance()?;
        let commit = root.commit;
        self.fence.still_ours(FenceCheck::Briefly)?;
        // The blocks are on whoever is in use, also if it fails at the root: then it need not be resilvered.
        let writer = root.writer();
        self.shared.store.members.iter().for_each(|member| member.completed(commit, writer));
        (root.devices, root.next_device) = self.shared.store.members.to_root(commit, writer);
        let Some(bytes) = root.encode(&self.shared.store.sums) else {
            return Err(self.shared.store.suspend("the root record outgrew its place".into()));
        };
        debug_assert_eq!(
            Root::check(&self.shared.store.sums, &bytes).as_ref(),
            Ok(&*root),
            "what is written can be read"
        );
        let refused = self.shared.store.members.write_labels(0, |area| ring_slot(area, commit), &bytes);
        if !mutated(Mutant::RootNotFlushed) {
            self.shared.store.members.flush_all();
        }
        self.shared.store.check_tolerance()?;
        let told = |index| root.devices.iter().find(|device| device.index == index);
        self.shared.store.members.iter().for_each(|member| member.note_root(told(member.index)));
        let again = self.shared.store.members.write_labels(1, |area| ring_slot(area, commit), &bytes);
        if refused.is_empty() {
            // This commit is durable; whoever reads is told of devices that failed at its second copy.
            let _ = self.shared.store.check_tolerance();
            return Ok(());
        }
        // Of two places one is enough, and where the first was refused it is the second.
        for (member, error) in again {
            if refused.iter().any(|(first, _)| Arc::ptr_eq(first, &member)) {
                member.refuse(&error);
            }
        }
        self.shared.store.members.flush_all();
        self.shared.store.check_tolerance()
    }
}
