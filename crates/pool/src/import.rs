//! Import: a plan of [`crate::open`] becomes a pool.
//!
//! Before anything is replayed, a root is published that is the old one in all but the import: the
//! new incarnation, fresh leases of ids, and the devices as they are. So ids never come back, however
//! often an import is cut short; the log stays that of the import before until it is replayed.

use crate::contents::Contents;
use crate::create::{Parts, ROOT_DATASET};
use crate::dataset::Dataset;
use crate::intent_log::{Intent, Notes, read_chain};
use crate::open::{Importable, Standing, holds};
use crate::pool::Pool;
use larder_device::{AlignedBuf, Entropy};
use larder_format::checksum::Sums;
use larder_format::items::INODE_LEASE;
use larder_format::label::Label;
use larder_format::root::{DeviceState, MAX_HISTORY, Root, RootImport, SEGMENT_STRIDE, STRIDE, ring_slot};
use larder_format::run::RunDescriptor;
use larder_format::segment::{MIN_SLOT, SegmentKind, SegmentRecord, SegmentState};
use larder_format::tables::Table;
use larder_format::{BlockId, Corrupt, DatasetId, DeviceIndex, Incarnation, MAX_COUNT, Reason, SegmentId};
use larder_mutants::{Mutant, mutated};
use larder_sorted::map::BlockMap;
use larder_sorted::tree::Tree;
use larder_store::Groups;
use larder_store::Refusal;
use larder_store::RunIo;
use larder_store::World;
use larder_store::core::{Core, LEASE};
use larder_store::heat::Clock;
use larder_store::member::{Member, MemberState};
use larder_store::members::Members;
use larder_store::segments::{SegmentEntry, Segments};
use larder_store::space::GroupSpace;
use larder_store::{Class, Event};
use larder_store::{PoolError, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The import after `root`. Its ids begin at a random distance behind the lease, for somebody may import another copy
/// of the pool that ends with the same root.
fn beginning(root: &Root, incarnation: Incarnation, entropy: &dyn Entropy) -> RootImport {
    let lease = root.block_lease.get();
    let first_block = if mutated(Mutant::IdsComeBack) {
        root.tables.id.get() + 1
    } else {
        lease + entropy.next_u64() % STRIDE
    };
    // As far as the root knows, ids were given out to the beginning of its lease.
    let before = root.history.first().map_or(0, |import| import.skipped);
    let skipped = (before + first_block.saturating_sub(lease.saturating_sub(LEASE))).min(first_block);
    RootImport { incarnation, first: root.commit.next(), first_block: BlockId::new(first_block), skipped }
}

/// Options of an import.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Write nothing.
    pub read_only: bool,
    /// The caller made sure that the host whose heartbeat was found is not alive.
    pub host_is_gone: bool,
    /// A new name for the pool.
    pub rename: Option<String>,
}

impl Pool {
    /// Imports a pool. The front end must take [`Pool::take_replay`]'s operations, apply them, say so
    /// ([`Pool::replayed`]) and commit before it lets anybody in.
    ///
    /// # Errors
    /// [`PoolError::Refused`], or [`PoolError::Busy`] when another host may have it.
    pub fn import(world: World, plan: Importable, options: &ImportOptions) -> Result<Arc<Pool>> {
        if let Some(refusal) = plan.refusal {
            return Err(refusal.into());
        }
        if let Some(reason) = plan.only_reading.filter(|_| !options.read_only) {
            return Err(reason.into());
        }
        if !plan.complete {
            let present = [Standing::Current, Standing::Spare, Standing::Rebuilding, Standing::Waiting];
            let lost: Vec<_> = plan.devices.iter().filter(|d| !present.contains(&d.standing)).collect();
            return Err(Refusal::TooFewDevices {
                lost: lost.len(),
                all: plan.devices.len(),
                pool: plan.name,
            }
            .into());
        }
        if let Some(holder) = plan.held_by.as_ref().filter(|beat| beat.host != world.host)
            && !options.host_is_gone
        {
            return Err(PoolError::Busy(format!(
                "{} may be imported by host {}",
                plan.name, holder.host_name
            )));
        }
        let root = plan.root;
        let unclean = !root.exported;
        let lacking: Vec<(DeviceIndex, [bool; 2])> = plan
            .devices
            .iter()
            .filter(|device| {
                matches!(device.standing, Standing::Current | Standing::Rebuilding | Standing::Waiting)
            })
            .filter_map(|device| Some((device.index, device.found.as_ref()?.lacks(root.commit))))
            .collect();
        let incarnation = Incarnation::new(world.entropy.next_u64());
        let this = beginning(&root, incarnation, &*world.entropy);
        // Nothing is written with them if this is for reading only.
        let first_segment = root.segment_lease.get() + world.entropy.next_u64() % SEGMENT_STRIDE;
        if !options.read_only && this.first_block.get().max(first_segment) > MAX_COUNT - STRIDE {
            return Err(Refusal::OutOfIds(plan.name).into());
        }
        let first_block = this.first_block;
        let mut history = root.history.clone();
        history.insert(0, this);
        history.truncate(MAX_HISTORY);
        let labels: Vec<Label> =
            plan.devices.iter().filter_map(|d| d.found.as_ref().map(|found| found.label.clone())).collect();
        let any = labels.first().ok_or_else(|| PoolError::Invalid("no device is there".into()))?;
        let created = any.created;
        let slot_size =
            |group| root.groups.iter().find(|it| it.index == group).map_or(MIN_SLOT, |it| it.slot_size);
        let (mut members, mut spares) = (Vec::new(), Vec::new());
        for (candidate, known) in plan.devices.into_iter().zip(&root.devices) {
            let mut holds_less = None;
            let state = match candidate.standing {
                Standing::Current | Standing::Spare => MemberState::Online,
                Standing::Rebuilding => MemberState::Rebuilding,
                Standing::Waiting => MemberState::Waiting,
                Standing::Missing => MemberState::Missing,
                Standing::Stale(_) => MemberState::Stale,
                Standing::Offline(_) => MemberState::Offline,
            };
            if let Standing::Stale(through) | Standing::Offline(through) = candidate.standing
                && through < known.good_through
            {
                let held = candidate.found.as_ref().and_then(|found| found.root.as_ref());
                let writer = held.map_or(Incarnation::new(0), |held| holds(&root.history, held).1);
                holds_less = Some((through, writer));
            }
            let present = candidate.found.map(|found| (found.device, found.label));
            let mut member = Member::new(known, slot_size(known.group), present, state, &world.clock);
            if let Some(holds) = holds_less {
                member = member.of_older_copy(holds);
            }
            if known.state == DeviceState::Spare { spares.push(member) } else { members.push(member) }
        }
        let members = Members::new(members, spares, root.next_device);
        let groups: BTreeMap<_, _> = root
            .groups
            .iter()
            .map(|group| {
                let devices: Vec<_> =
                    members.of_group(group.index).map(|member| (member.index, member.slot_count)).collect();
                let mut space =
                    GroupSpace::new(group.index, group.rule, group.slot_size, group.ashift, &devices);
                let leaving = members.iter().filter(|member| member.is_leaving());
                leaving.for_each(|member| space.retire(member.index, !member.is_written()));
                (group.index, space)
            })
            .collect();
        let core = Core {
            entries: Segments::default(),
            groups: Groups::new(groups, root.next_group),
            streams: HashMap::new(),
            open_commit: root.commit.next(),
            incarnation,
            clock: Arc::new(Clock::new(&history)),
            next_block: first_block,
            block_lease: BlockId::new(first_block.get() + LEASE),
            next_segment: SegmentId::new(first_segment),
            segment_lease: SegmentId::new(first_segment + LEASE),
            gone: Vec::new(),
            features: root.features,
            miscounted: None,
        };
        let parts = Parts {
            sums: Sums::new(plan.guid, plan.key),
            name: plan.name,
            created,
            read_only: options.read_only,
            members,
            core,
            intent: Intent { sequence: 1, ..Intent::default() },
            notes: Notes::after(root.applied),
            history: root.history.clone(),
            durable: root.commit,
        };
        let pool = Pool::assemble(world, parts);
        match (pool.load(&root, unclean), pool.shared.store.out_of_reach()) {
            (Err(PoolError::Unreadable { .. }), Some(lost)) => {
                return Err(Refusal::MapOutOfReach(lost).into());
            }
            (Ok(()), Some(lost)) if !options.read_only => {
                return Err(Refusal::OutOfReach(lost).into());
            }
            (loaded, _) => loaded?,
        }
        if !options.read_only {
            // Before its first root, so that of two who import at once one finds the other, and so does who wakes.
            pool.beat()?;
            pool.adopt(root, history, &lacking)?;
            if let Some(name) = &options.rename {
                pool.rename(name)?;
            }
        }
        pool.shared.store.event(Event::new(Class::PoolImport));
        Ok(pool)
    }

    /// Reads everything that the root names: tables, segments, datasets, block map, log.
    fn load(&self, root: &Root, unclean: bool) -> Result<()> {
        for record in &root.segments {
            self.adopt_segment(record, root)?;
        }
        let tables = Tree::open(root.tables);
        let Contents { segments, datasets, runs, parts, secret, snapshots, freeing, mut properties, kept } =
            Contents::read(&tables, &self.shared.store)?;
        for (table, number, value) in kept {
            match table {
                Table::Damage => self.shared.damage.adopt(number, &value),
                Table::BadSlots => self.shared.store.adopt_bad_slot(number, &value),
                _ => self.log.met(table, number),
            }
        }
        self.shared.duplicates.set_secret(secret);
        *self.tables.lock() = tables;
        // Of some the root knows better where they lie.
        let moved = |id: SegmentId| root.segments.iter().any(|record| record.id == id);
        for record in &segments {
            if moved(record.id) {
                self.shared.store.move_is_untold(record.id);
            } else {
                self.adopt_segment(record, root)?;
            }
        }
        self.shared.store.retire_known_slots();
        self.recount_runs(runs.iter().chain(parts.iter().map(|part| &part.run)))?;
        let map = BlockMap::open(runs, &RunIo::new(&self.shared.store))?;
        *self.shared.store.map.lock() = map;
        self.shared.duplicates.lay_down(parts);
        *self.properties.write() = properties.remove(&DatasetId::new(0)).unwrap_or_default();
        self.apply_pool_properties();
        for mut record in datasets {
            if unclean {
                // Inode ids that were given out after the last commit must not be given out again.
                record.next_inode = record.next_inode.saturating_add(INODE_LEASE);
            }
            let local = properties.remove(&record.id).unwrap_or_default();
            let destroyed = record.destroyed;
            let dataset = Dataset::new(Arc::downgrade(&self.shared), record, local, self.default_settings());
            let (id, dataset) = (dataset.id(), Arc::new(dataset));
            match destroyed {
                true => self.destroyed.lock().insert(id, dataset),
                false => self.datasets.write().insert(id, dataset),
            };
        }
        self.check_parents()?;
        self.adopt_snapshots(snapshots)?;
        self.shared.freeing.open(freeing);
        self.open_accounts();
        self.refresh_settings();
        if root.log_open {
            let slot_size =
                |segment: &SegmentRecord| self.shared.store.members.get(segment.slots[0].device).slot_size;
            let chain =
                read_chain(&self.shared.store.sums, root, slot_size, |segment, column, offset, len| {
                    let slot = segment.slots[column];
                    let member = self.shared.store.members.get(slot.device);
                    let pending = member.read(member.slot_offset(slot.index, offset), len)?;
                    let bytes = member.wait(pending).ok()?;
                    Some(bytes.to_vec())
                });
            // Whoever only reads is shown the commit, without the log.
            let (ops, last) = match chain {
                Err(_) if self.shared.store.read_only => (Vec::new(), root.applied),
                chain => chain?,
            };
            self.shared.intent.open(ops, last);
        }
        Ok(())
    }

    /// From every dataset, parents lead to the pool's root dataset.
    fn check_parents(&self) -> Result<()> {
        let bad = |reason| PoolError::from(Corrupt::new("dataset table", reason));
        if self.dataset(ROOT_DATASET).is_none_or(|root| root.parent() != ROOT_DATASET) {
            return Err(bad(Reason::Short));
        }
        let datasets = self.datasets();
        for dataset in &datasets {
            let mut at = dataset.parent();
            // More steps than there are datasets are a circle.
            for step in 0.. {
                if at == ROOT_DATASET {
                    break;
                }
                if step > datasets.len() {
                    return Err(bad(Reason::Order));
                }
                at = self.dataset(at).ok_or_else(|| bad(Reason::Identity))?.parent();
            }
        }
        Ok(())
    }

    /// Takes a segment from the tables or the root into memory, and its slots out of the free ones.
    fn adopt_segment(&self, record: &SegmentRecord, root: &Root) -> Result<()> {
        let bad = |reason| PoolError::from(Corrupt::new("segment record", reason));
        // Else a segment that is opened would get its id.
        if record.id >= root.segment_lease {
            return Err(bad(Reason::Range));
        }
        if record.state == SegmentState::Freed && record.freed.get() + 2 <= root.commit.get() {
            if !record.kind.is_rooted() {
                self.shared.store.core.lock().gone.push(record.id);
            }
            return Ok(());
        }
        let mut core = self.shared.store.core.lock();
        let core = &mut *core;
        let group = core.groups.change(record.group).ok_or_else(|| bad(Reason::Identity))?;
        if record.height > group.slot_size {
            return Err(bad(Reason::Range));
        }
        for &slot in &record.slots {
            if !self.shared.store.members.has(slot.device)
                || self.shared.store.members.get(slot.device).group != record.group
            {
                return Err(bad(Reason::Identity));
            }
            if !group.take(slot) {
                return Err(bad(Reason::Order));
            }
        }
        if record.unnamed {
            self.shared.damage.adopt_unnamed(record);
        }
        let entry = SegmentEntry::from_record(record);
        self.shared.store.readable.insert(&entry.segment);
        core.entries.insert(entry);
        if record.state == SegmentState::Open && record.kind != SegmentKind::Log {
            if core.fits(record.id) {
                core.streams.insert((record.kind, record.class, record.group), record.id);
            } else {
                core.close_segment(record.id);
            }
        }
        Ok(())
    }

    /// What lives in run segments follows from the runs: pages of a merge that was cut short do not.
    fn recount_runs<'r>(&self, runs: impl Iterator<Item = &'r RunDescriptor>) -> Result<()> {
        let mut live: HashMap<SegmentId, (u32, u64)> = HashMap::new();
        for footprint in runs.flat_map(|run| &run.footprints) {
            let entry = live.entry(footprint.segment).or_default();
            let sums = (entry.0.checked_add(footprint.blocks)).zip(entry.1.checked_add(footprint.bytes));
            *entry = sums.ok_or(Corrupt::new("run descriptor", Reason::Range))?;
        }
        let mut core = self.shared.store.core.lock();
        for id in core.entries.select(|entry| entry.segment.kind == SegmentKind::Run) {
            let (blocks, bytes) = live.remove(&id).unwrap_or_default();
            core.entries.change(id, |entry| {
                entry.dirty |= (entry.live_blocks, entry.live_bytes) != (blocks, bytes);
                (entry.live_blocks, entry.live_bytes) = (blocks, bytes);
                entry.placed = entry.placed.max(bytes);
            });
        }
        if live.is_empty() { Ok(()) } else { Err(Corrupt::new("run descriptor", Reason::Identity).into()) }
    }

    /// Publishes the old root under the new import. `lacking` tells which label areas a cut kept the old
    /// root from: it is completed first, as a commit would have done. Else a cut now would leave devices
    /// two roots behind, which look stale, and a later one, in the same place of the ring, would look like
    /// a root that was lost.
    fn adopt(
        &self,
        mut root: Root,
        history: Vec<RootImport>,
        lacking: &[(DeviceIndex, [bool; 2])],
    ) -> Result<()> {
        // What the devices show may be in their caches only: nothing may follow it unflushed.
        self.shared.store.members.flush_all();
        if let Some(bytes) =
            root.encode(&self.shared.store.sums).map(|bytes| Arc::new(AlignedBuf::padded(&bytes)))
        {
            for area in 0..2 {
                let lacking = lacking.iter().filter(|(_, lacks)| lacks[area]);
                let members: Vec<_> =
                    lacking.map(|&(index, _)| self.shared.store.members.get(index)).collect();
                for member in &members {
                    let at = ring_slot(member.label_areas()[area], root.commit);
                    let write = member.write(at, Arc::clone(&bytes));
                    if write.is_some() {
                        // One of its two places may be bad.
                        member.complete_write(write);
                    }
                }
                if !members.is_empty() {
                    self.shared.store.members.flush_all();
                }
            }
        }
        let mut core = self.shared.store.core.lock();
        root.commit = core.open_commit;
        root.incarnation = core.incarnation;
        root.time = self.shared.store.world.clock.now();
        root.exported = false;
        root.host = self.shared.store.world.host;
        root.block_lease = core.block_lease;
        root.segment_lease = core.segment_lease;
        root.history = history;
        core.open_commit = root.commit.next();
        drop(core);
        *self.shared.store.history.lock() = root.history.clone();
        self.publish(&mut root)?;
        self.shared.store.durable.store(root.commit.get(), Ordering::Release);
        Ok(())
    }

    /// Gives the pool, and its root dataset, another name.
    pub fn rename(&self, name: &str) -> Result<()> {
        crate::create::check_name(name).map_err(PoolError::Invalid)?;
        for member in self.shared.store.members.iter().filter(|member| member.is_online()) {
            member
                .relabel(|label| name.clone_into(&mut label.name))
                .map_err(|error| PoolError::Device { device: member.name(), error })?;
        }
        name.clone_into(&mut self.name.write());
        if let Some(root) = self.dataset(ROOT_DATASET) {
            let mut state = root.state.write();
            name.clone_into(&mut state.record.name);
            state.changed = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed;
    use larder_format::ByteLen;
    use larder_sim::SimWorld;
    use larder_store::TableNodes;

    #[test]
    fn datasets_whose_parents_form_a_circle_are_refused() {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let pool = bed::pool(sim.devices(), "single");
        let above = pool.create_dataset("tank/above", BTreeMap::new()).unwrap();
        let below = pool.create_dataset("tank/above/below", BTreeMap::new()).unwrap();
        {
            let mut state = above.state.write();
            state.record.parent = below.id();
            state.changed = true;
        }
        pool.commit().unwrap();
        drop(pool);
        let error = bed::import(sim.devices()).err().expect("a refusal");
        assert_eq!(error.to_string(), "corrupt dataset table: entries out of order");
    }

    #[test]
    fn a_pool_with_a_table_of_a_later_version_is_refused_by_name() {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let pool = bed::pool(sim.devices(), "single");
        pool.tables.lock().insert(&TableNodes(&pool.shared.store), Table::Holds.key(3), b"a hold").unwrap();
        pool.commit().unwrap();
        drop(pool);
        let before = sim.images();
        let error = bed::import(sim.devices()).err().expect("a refusal");
        let PoolError::Refused(Refusal::Newer(what)) = &error else { panic!("{error}") };
        assert!(what.contains("holds of snapshots"), "{what}");
        assert!(sim.images() == before, "a refused import wrote");
    }
}
