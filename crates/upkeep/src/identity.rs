//! Pools that get another GUID, and mirrors that are split into two pools.
//!
//! Half of a mirror holds all that the pool holds. So a split is two steps. The pool lets go of one device of each
//! mirror, at the boundary of a commit, as of one that died: segments go on naming it, and are as safe as the new rule
//! asks. Then somebody imports what was let go of as a pool of its own ([`larder_pool::open::Importable::split_off`]):
//! under another GUID, with ids far from those that the first pool gives out, and without the devices that stayed
//! there. *Crash* between the two: the devices are on their way out of the first pool, which has everything.

use crate::devices::Devices;
use larder_device::Device;
use larder_format::label::{Features, GroupRule};
use larder_format::root::DeviceState;
use larder_format::segment::SegmentState;
use larder_format::{DeviceIndex, GroupIndex, PoolGuid};
use larder_store::core::Core;
use larder_store::member::{Member, MemberState};
use larder_store::segments::SegmentEntry;
use larder_store::space::GroupSpace;
use larder_store::{Class, Event, Refusal, Result, Store};
use larder_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Devices {
    /// Gives the pool another GUID, so that a copy of its devices can be imported beside it.
    ///
    /// # Errors
    /// When a device is not in use: it would pass for a pool of the old GUID; when a commit fails. After
    /// [`Refusal::Halfway`] the pool has the new one when it goes on.
    pub fn reguid(&self) -> Result<PoolGuid> {
        let _mine = self.pool.change_turn();
        self.store.check_writable()?;
        // It finds out who lives.
        self.pool.commit()?;
        let is_needed = |member: &Arc<Member>| !member.is_cache && !member.is_leaving();
        if let Some(out) = self.store.members.all().filter(is_needed).find(|member| !member.is_written()) {
            return Err(Refusal::NotWhole(out.name()).into());
        }
        let guid = PoolGuid::new(self.store.world.entropy.next_u64().max(1));
        let changed = self.pool.change_members(move |pool, _| {
            let mut core = pool.store().core.lock();
            core.identity = core.identity.changed(guid);
            core.features.incompatible |= Features::IDENTITY;
        });
        if changed.is_err() && self.store.identity() == guid {
            return Err(Refusal::Halfway.into());
        }
        changed?;
        self.store.event(Event::new(Class::StateChange).text(format!("the pool has another guid: {guid}")));
        Ok(guid)
    }

    /// The devices that a split takes: of each mirror the one that is `named`, or the last.
    ///
    /// # Errors
    /// When not all groups are mirrors, or not all of their devices are whole; when a device named is of none, or two
    /// are of one.
    pub fn choose_half(&self, named: &[DeviceIndex]) -> Result<Vec<Arc<Member>>> {
        let groups: Vec<GroupSpace> = self.store.core.lock().groups.values().cloned().collect();
        let mut left = named.to_vec();
        let mut chosen = Vec::new();
        for group in &groups {
            let layout = group.rule.layout;
            if !group.is_vital() || group.leaving || !layout.is_mirror() || layout.r() < 2 {
                let log = if group.is_vital() { "" } else { ", of the log" };
                return Err(Refusal::NoMirror(format!("{}-{}{log}", group.rule.name(), group.index)).into());
            }
            let of: Vec<_> = self.store.members.of_group(group.index).collect();
            let is_named = |member: &&Arc<Member>| left.contains(&member.index);
            let taken = of.iter().find(is_named).or(of.last()).ok_or(Refusal::GroupShrinks)?;
            left.retain(|index| *index != taken.index);
            chosen.push(Arc::clone(taken));
        }
        if let Some(&other) = left.first() {
            let member = self.pool.known(other)?;
            let why = "cannot go with the others: a split takes one device of each mirror".to_owned();
            return Err(Refusal::CannotDetach { device: member.name(), why }.into());
        }
        if self.store.members.iter().any(|member| member.is_leaving() && member.is_written()) {
            return Err(Refusal::GroupShrinks.into());
        }
        if let Some(late) = chosen.iter().find(|member| member.meter().owed() > 0) {
            return Err(Refusal::Hung(late.name()).into());
        }
        check_halves(&self.store, &self.store.core.lock(), &chosen)?;
        Ok(chosen)
    }

    /// Lets go of the devices that [`Devices::choose_half`] chooses, with all that the pool holds on them: they are not
    /// used any more, and not wiped.
    ///
    /// # Errors
    /// As [`Devices::choose_half`]; when a commit fails. After [`Refusal::Halfway`] they are let go of when the pool
    /// goes on.
    pub fn let_half_go(&self, named: &[DeviceIndex]) -> Result<Vec<Arc<dyn Device>>> {
        let _mine = self.pool.change_turn();
        self.store.check_writable()?;
        // All that was written before this is on both halves then; and it finds out who lives.
        self.pool.commit()?;
        let chosen = self.choose_half(named)?;
        let mut rules: BTreeMap<GroupIndex, GroupRule> = BTreeMap::new();
        for member in &chosen {
            let rule = self.store.core.lock().groups[&member.group].rule;
            rules.insert(member.group, crate::reshape::rule_of(&rule, rule.layout.columns() - 1)?);
        }
        let (going, clock) = (chosen.clone(), Arc::clone(&self.store.world.clock));
        let (new_rules, outcome) = (rules.clone(), Arc::new(Mutex::new(None)));
        let told = Arc::clone(&outcome);
        let changed = self.pool.change_members(move |pool, commit| {
            let mut core = pool.store().core.lock();
            // The commit may have found one dead.
            let checked = check_halves(pool.store(), &core, &going);
            let is_done = checked.is_ok();
            *told.lock() = Some(checked);
            if !is_done {
                return;
            }
            for member in &going {
                let mut known = member.to_root(commit, core.incarnation);
                (known.leaving, known.state) = (true, DeviceState::Offline);
                // Nobody who still has the old one writes any more.
                member.take_offline(false);
                let ghost = Member::new(&known, member.slot_size, None, MemberState::Offline, &clock);
                pool.store().members.put(Arc::new(ghost));
                core.change_shape(member.group, |space| {
                    space.retire(member.index, true);
                    space.set_rule(new_rules[&member.group]);
                });
            }
        });
        let outcome = outcome.lock().take();
        match (changed, outcome) {
            (Err(_), Some(Ok(()))) => return Err(Refusal::Halfway.into()),
            (changed, outcome) => {
                changed?;
                outcome.unwrap_or(Ok(()))?;
            }
        }
        rules.into_iter().for_each(|(group, rule)| self.relabel_group(group, rule));
        let mut devices = Vec::new();
        for member in chosen {
            let event = Event::new(Class::DeviceRemove).device(member.guid, member.name());
            self.store.event(event.text("it is split off"));
            devices.extend(member.device());
        }
        Ok(devices)
    }
}

/// Refuses to part devices from the others of their groups unless both have all that is stored.
fn check_halves(store: &Store, core: &Core, going: &[Arc<Member>]) -> Result<()> {
    let goes = |index: DeviceIndex| going.iter().any(|member| member.index == index);
    let is_whole = |index: DeviceIndex| {
        let member = store.members.find(index).filter(|member| member.is_online());
        member.is_some() && store.members.stand_in(index).is_none()
    };
    for member in going.iter().flat_map(|member| store.members.of_group(member.group)) {
        if !is_whole(member.index) {
            return Err(Refusal::NotWhole(member.name()).into());
        }
    }
    let is_on_both = |entry: &SegmentEntry| {
        let there = || entry.segment.slots.iter().map(|slot| slot.device).filter(|&index| is_whole(index));
        entry.state == SegmentState::Freed || there().any(goes) && there().any(|index| !goes(index))
    };
    if core.entries.values().all(is_on_both) { Ok(()) } else { Err(Refusal::NotCopied.into()) }
}
