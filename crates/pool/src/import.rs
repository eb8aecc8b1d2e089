//! Import: a plan of [`crate::open`] becomes a pool.
//!
//! Before anything is replayed, a root is published that is the old one in all but the import: the
//! new incarnation, fresh leases of ids, and the devices as they are. So ids never come back, however
//! often an import is cut short; the log stays that of the import before until it is replayed.

use crate::assemble::Parts;
use crate::dataset::ROOT_DATASET;
use crate::event_log::EventLog;
use crate::found::{Accepted, Found};
use crate::open::{Importable, Standing, holds, lacks_slots};
use crate::pool::Pool;
use larder_device::{AlignedBuf, Entropy};
use larder_format::checksum::Sums;
use larder_format::label::Label;
use larder_format::root::{DeviceState, MAX_HISTORY, Root, RootImport, SEGMENT_STRIDE, STRIDE, ring_slot};
use larder_format::segment::MIN_SLOT;
use larder_format::{BlockId, DeviceIndex, Incarnation, MAX_COUNT, SegmentId};
use larder_mutants::{Mutant, mutated};
use larder_store::core::{Core, LEASE};
use larder_store::member::{Member, MemberState};
use larder_store::members::Members;
use larder_store::space::GroupSpace;
use larder_store::{Class, Event, EventSink, Groups, PoolError, Refusal, Result, Store, StoreParts, World};
use std::collections::BTreeMap;
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
    /// Go on without what a place of the intent log that cannot be read may hold.
    pub accept_loss: bool,
    /// The same, where all devices of a group of the log are missing or cannot be read.
    pub without_log: bool,
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
            use Standing::{Current, Rebuilding, Spare, Waiting};
            let present = [Current, Spare, Rebuilding, Waiting];
            let counted = plan.root.devices.iter().zip(&plan.devices).filter(|(known, _)| !known.is_cache);
            let counted: Vec<_> = counted.map(|(_, device)| &device.standing).collect();
            return Err(Refusal::TooFewDevices {
                lost: counted.iter().filter(|standing| !present.contains(standing)).count(),
                all: counted.len(),
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
        let (mut members, mut others) = (Vec::new(), Vec::new());
        for (candidate, known) in plan.devices.into_iter().zip(&root.devices) {
            let mut holds_less = None;
            let state = match candidate.standing {
                Standing::Current | Standing::Spare | Standing::Cache => MemberState::Online,
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
            let mut present = candidate.found.map(|found| (found.device, found.label));
            let mut size = slot_size(known.group);
            if let Some((_, label)) = present.as_ref().filter(|_| known.is_cache) {
                size = label.slot_size;
                present = present.filter(|(_, label)| lacks_slots(label, size, known.slot_count).is_none());
            }
            let state =
                if present.is_none() && state == MemberState::Online { MemberState::Missing } else { state };
            let mut member = Member::new(known, size, present, state, &world.clock);
            if let Some(holds) = holds_less {
                member = member.of_older_copy(holds);
            }
            if known.state == DeviceState::Spare { others.push(member) } else { members.push(member) }
        }
        let members = Members::new(members, others, root.next_device);
        let groups: BTreeMap<_, _> = root
            .groups
            .iter()
            .map(|group| {
                let devices: Vec<_> =
                    members.of_group(group.index).map(|member| (member.index, member.slot_count())).collect();
                let mut space =
                    GroupSpace::new(group.index, group.rule, group.slot_size, group.ashift, &devices)
                        .of_role(group.role);
                (space.leaving, space.narrow) = (group.leaving, group.narrow);
                let leaving = members.iter().filter(|member| member.is_leaving());
                leaving.for_each(|member| space.retire(member.index, !member.is_written()));
                (group.index, space)
            })
            .collect();
        let next = (root.commit.next(), first_block, SegmentId::new(first_segment));
        let groups = Groups::new(groups, root.next_group);
        let core = Core {
            features: root.features,
            // A build that does not see to it may have changed all that is there.
            traced: if root.traced.get() > 0 { root.traced } else { root.commit.next() },
            reshaping: true,
            ..Core::beginning(groups, &history, next, root.identity)
        };
        let events = Arc::new(EventLog::new(Arc::clone(&world.clock)));
        let store = Store::new(StoreParts {
            sums: Sums::new(root.pool, plan.key),
            world,
            read_only: options.read_only,
            members,
            core,
            history: root.history.clone(),
            durable: root.commit,
            events: Arc::clone(&events) as Arc<dyn EventSink>,
        });
        let accepted = Accepted { log: options.accept_loss, log_alone: options.without_log };
        let found = Found::read(&store, &events, &root, accepted);
        let found = match (found, store.out_of_reach()) {
            (Err(PoolError::Unreadable { .. }), Some(lost)) => {
                return Err(Refusal::MapOutOfReach(lost).into());
            }
            (Ok(_), Some(lost)) if !options.read_only => {
                return Err(Refusal::OutOfReach(lost).into());
            }
            (found, _) => found?,
        };
        let Found { damage, intent, tables, contents } = found;
        store.core.lock().withhold();
        let name = plan.name;
        let pool = Pool::assemble(Parts { name, created, store, events, damage, intent, tables, contents })?;
        pool.refresh_settings();
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
        // Data that the devices gave may be in their caches only: nothing may follow it unflushed.
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
        (root.exported, root.destroyed) = (false, false);
        root.host = self.shared.store.world.host;
        root.block_lease = core.block_lease;
        root.segment_lease = core.segment_lease;
        root.traced = core.traced;
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
    use larder_format::tables::Table;
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
        pool.tables.lock().insert(&TableNodes(&pool.shared.store), Table::Usage.key(3), b"a mark").unwrap();
        pool.commit().unwrap();
        drop(pool);
        let before = sim.images();
        let error = bed::import(sim.devices()).err().expect("a refusal");
        let PoolError::Refused(Refusal::Newer(what)) = &error else { panic!("{error}") };
        assert!(what.contains("usage"), "{what}");
        assert!(sim.images() == before, "a refused import wrote");
    }
}
