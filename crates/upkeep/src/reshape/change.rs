//! Changes of a group's shape: each is made at the boundary of a commit.

use super::Reshape;
use crate::devices::{Place, wipe};
use larder_device::Device;
use larder_format::label::{GroupRule, LABEL_AREA, Label, MIN_DEVICE};
use larder_format::root::NO_GROUP;
use larder_format::{ByteLen, DeviceGuid, DeviceIndex, GroupIndex};
use larder_pool::create::{
    GroupSpec, MAX_DEVICES, SLOTS_LEAST, data_start, rule_for, slot_count, slot_size_beside,
    write_label_areas,
};
use larder_store::member::{Member, MemberState};
use larder_store::space::GroupSpace;
use larder_store::{Class, Event, PoolError, Refusal, Result};
use std::sync::Arc;

/// Commits after which nobody has a use for a segment of the log: it is left with the first of them, closed and freed
/// by the next, and its slots are free two commits later.
const COMMITS_TO_EMPTY: usize = 8;

/// The rule that a group of `devices` devices has by the word of `rule`; a mirror of one device is none.
///
/// # Errors
/// When the word is for more, or fewer, or another kind of number.
pub fn rule_of(rule: &GroupRule, devices: usize) -> Result<GroupRule> {
    let name = rule.name();
    let word = match (rule.layout.is_mirror(), devices) {
        (true, 0 | 1) => "single",
        (true, _) => "mirror",
        (false, _) => &name,
    };
    rule_for(word, devices).map_err(PoolError::Invalid)
}

impl Reshape {
    /// Gives the group of `to` other devices: a mirror more copies, a single device some for the first time; a group
    /// with parity, or of mirrors, more columns. Whatever the new devices hold is overwritten. Copies are made by
    /// [`Reshape::step`]; segments with less columns stay: see [`crate::rebalance`].
    ///
    /// # Errors
    /// When the layout does not take so many; when a device leaves the group; when a new one is too small, or fails.
    pub fn attach(&self, to: DeviceIndex, new: Vec<Arc<dyn Device>>) -> Result<Vec<DeviceIndex>> {
        let _mine = self.pool.change_turn();
        let member = self.pool.known(to)?;
        if member.group == NO_GROUP || member.stands_for.is_some() {
            return Err(Refusal::NoPlace(member.name()).into());
        }
        let space = self.space_of(member.group)?;
        let rule = rule_of(&space.rule, space.rule.layout.columns() + new.len())?;
        self.change_shape(member.group, rule, new, &[])
    }

    /// Gives a group another layout, with more devices if there are any `new` ones. What is stored is moved by
    /// [`Reshape::step`].
    ///
    /// # Errors
    /// When the word does not take so many devices; when what is stored does not fit; as [`Reshape::attach`].
    pub fn change_layout(
        &self,
        group: GroupIndex,
        word: &str,
        new: Vec<Arc<dyn Device>>,
    ) -> Result<Vec<DeviceIndex>> {
        let _mine = self.pool.change_turn();
        let space = self.space_of(group)?;
        let rule = rule_for(word, space.rule.layout.columns() + new.len()).map_err(PoolError::Invalid)?;
        self.change_shape(group, rule, new, &[])
    }

    /// Ends the replacing of a device: the one that stands for it leaves. A mirror gets one copy less, and the device
    /// leaves when everything is where it stays: see [`crate::reshape`].
    ///
    /// # Errors
    /// When `device` neither stands for another nor is a mirror's, or holds the last copy.
    pub fn detach(&self, device: DeviceIndex) -> Result<()> {
        let _mine = self.pool.change_turn();
        let member = self.pool.known(device)?;
        if member.stands_for.is_some() {
            return self.leave(&member);
        }
        let why = match self.store.members.stand_in(device) {
            Some(other) if other.state() == MemberState::Waiting => {
                format!("has something that {}, which is to replace it, could not be given", other.name())
            }
            Some(other) => format!("is being replaced by {}, and leaves when that is rebuilt", other.name()),
            None if member.is_leaving() => "is on its way out already".to_owned(),
            None if self.is_spare_copy(&member) => {
                // A commit finds out whether the others live.
                self.pool.commit()?;
                if self.is_spare_copy(&member) {
                    return self.narrow(&member);
                }
                return Err(Refusal::LastCopy(member.name()).into());
            }
            None => return Err(Refusal::LastCopy(member.name()).into()),
        };
        Err(Refusal::CannotDetach { device: member.name(), why }.into())
    }

    /// Takes a device out of the pool: a spare or a cache at once; one of a group with parity leaves when what it holds
    /// is where it stays, and the group is narrower from now on.
    ///
    /// # Errors
    /// When the group cannot do without it, or what is stored does not fit into the rest.
    pub fn remove(&self, device: DeviceIndex) -> Result<()> {
        let _mine = self.pool.change_turn();
        let member = self.pool.known(device)?;
        if member.group == NO_GROUP {
            return self.leave(&member);
        }
        if member.is_leaving() {
            return Err(Refusal::Leaving(member.name()).into());
        }
        if let Some(other) = self.store.members.stand_in(device) {
            return Err(Refusal::BeingReplaced { old: member.name(), new: other.name() }.into());
        }
        let rule = self.space_of(member.group)?.rule;
        if member.stands_for.is_some() || rule.layout.r() > 1 || rule.layout.m() == 0 {
            return Err(Refusal::HoldsData(member.name()).into());
        }
        let rule = rule_of(&rule, rule.layout.columns() - 1)?;
        let text = "on its way out of its group";
        self.change_shape(member.group, rule, Vec::new(), &[Arc::clone(&member)])?;
        self.store.event(Event::new(Class::DeviceRemove).device(member.guid, member.name()).text(text));
        Ok(())
    }

    /// A device of a group with parity that is on its way out stays.
    ///
    /// # Errors
    /// When it is not on its way out, or of another kind of group.
    pub fn keep(&self, device: DeviceIndex) -> Result<()> {
        let _mine = self.pool.change_turn();
        let member = self.pool.known(device)?;
        let none = || PoolError::NotFound(format!("a removal of {} that can be stopped", member.name()));
        let rule = self.space_of(member.group).map_err(|_| none())?.rule;
        if !member.is_leaving() || rule.layout.r() > 1 || rule.layout.m() == 0 {
            return Err(none());
        }
        let rule = rule_of(&rule, rule.layout.columns() + 1)?;
        let (staying, group) = (Arc::clone(&member), member.group);
        // It finds out who lives.
        self.pool.commit()?;
        self.check_survives(group, &rule, &[], Some(&member))?;
        self.pool.change_members(move |pool, _| {
            let mut core = pool.store().core.lock();
            let all = core.entries.values().flat_map(|entry| &entry.segment.slots);
            let of = all.filter(|slot| slot.device == staying.index);
            let used: Vec<_> = of.map(|slot| slot.index()).collect();
            staying.set_leaving(false);
            core.change_shape(group, |space| {
                space.keep(staying.index, staying.slot_count(), used.into_iter());
                space.set_rule(rule);
            });
            drop(core);
            pool.store().retire_known_slots();
        })?;
        self.devices.relabel_group(group, rule);
        Ok(())
    }

    /// Takes a group out of the pool, with all of its devices. One of the log goes at once; any other when all that is
    /// there is elsewhere.
    ///
    /// # Errors
    /// When files can lie on no other, or what is stored does not fit on the rest; when a commit fails, or somebody
    /// reads the log's old segments for too long.
    pub fn remove_group(&self, group: GroupIndex) -> Result<()> {
        let _mine = self.pool.change_turn();
        let space = self.space_of(group)?;
        if !space.is_vital() {
            self.set_leaving(group, true)?;
            let removed = self.empty_log(group).and_then(|()| self.let_group_go(group));
            if removed.is_err() {
                self.set_leaving(group, false)?;
            }
            return removed;
        }
        self.check_removal(group)?;
        self.set_leaving(group, true)?;
        if !self.space_of(group)?.leaving {
            // More was accepted meanwhile.
            self.store.check_room(group, None)?;
            return Err(PoolError::Busy("much was written just now: try again".into()));
        }
        for member in self.store.members.of_group(group) {
            let event = Event::new(Class::DeviceRemove).device(member.guid, member.name());
            self.store.event(event.text("on its way out with its group"));
        }
        Ok(())
    }

    /// Refuses to remove a group that holds more than the log, as [`Reshape::remove_group`] does.
    ///
    /// # Errors
    /// When files can lie on no other, or what is stored does not fit on the rest.
    pub fn check_removal(&self, group: GroupIndex) -> Result<()> {
        let space = self.space_of(group)?;
        if space.leaving {
            return Err(Refusal::GroupLeaves.into());
        }
        let is_last = self.store.core.lock().record_groups().all(|other| other.index == group);
        if is_last {
            return Err(Refusal::LastGroup(format!("{}-{group}", space.rule.name())).into());
        }
        self.store.check_room(group, None)
    }

    /// A group that is on its way out stays.
    ///
    /// # Errors
    /// When it is not; when a commit fails.
    pub fn keep_group(&self, group: GroupIndex) -> Result<()> {
        let _mine = self.pool.change_turn();
        if !self.space_of(group)?.leaving {
            return Err(PoolError::NotFound(format!("a removal of group {group} that can be stopped")));
        }
        self.set_leaving(group, false)
    }

    /// The group as it would be with this rule, with devices of these sizes more, and without those `leaving`: free is
    /// what would be free at once.
    ///
    /// # Errors
    /// When a new device is too small; when what is stored would not fit.
    pub fn shaped(
        &self,
        group: GroupIndex,
        rule: GroupRule,
        new: &[(String, ByteLen)],
        leaving: &[DeviceIndex],
    ) -> Result<GroupSpace> {
        let before = self.space_of(group)?;
        if before.leaving {
            return Err(Refusal::GroupLeaves.into());
        }
        let leaves = |other: &Arc<Member>| other.group == group && other.is_leaving() && other.is_written();
        let only_less = new.is_empty() && before.rule.layout.is_mirror() && rule.layout.is_mirror();
        if !only_less {
            if self.store.members.iter().any(|other| leaves(&other)) {
                return Err(Refusal::GroupShrinks.into());
            }
            self.check_survives(group, &rule, leaving, None)?;
        }
        // A group whose devices are all needed for each segment has no use for a small one.
        let smallest = before.devices().map(|(.., count)| count as u32).min().unwrap_or(0);
        let least = if rule.layout.r() == 1 && rule.layout.m() > 0 { SLOTS_LEAST } else { smallest };
        let first = self.store.members.next_index(new.len(), MAX_DEVICES)?.get();
        let mut after = before.clone();
        leaving.iter().for_each(|&device| after.retire(device, false));
        for ((name, size), index) in new.iter().zip(first..) {
            let slots = slot_count(*size, before.slot_size, before.ashift);
            if slots < least {
                let needed = u64::from(least) * u64::from(before.slot_size);
                let needed =
                    (data_start(before.ashift).get() + needed).next_multiple_of(LABEL_AREA) + LABEL_AREA;
                return Err(Refusal::TooSmall { device: name.clone(), has: size.get(), needed }.into());
            }
            after.join(DeviceIndex::new(index), slots);
        }
        after.set_rule(rule);
        // A mirror has as much room as before, and who only gets columns has more.
        let (old, new) = (before.rule.layout, rule.layout);
        let grows = (old.r(), old.m()) == (new.r(), new.m()) && old.k() <= new.k();
        if before.has_records() && !grows && !(before.rule.layout.is_mirror() && rule.layout.is_mirror()) {
            self.store.check_room(group, Some(&after))?;
        }
        Ok(after)
    }

    fn space_of(&self, group: GroupIndex) -> Result<GroupSpace> {
        let space = self.store.core.lock().groups.get(&group).cloned();
        space.ok_or_else(|| PoolError::NotFound(format!("group {group}")))
    }

    /// At the boundary of the next commit the group has this rule, and `new` devices; those `leaving` are on their way
    /// out. The numbers of the new ones.
    fn change_shape(
        &self,
        group: GroupIndex,
        rule: GroupRule,
        new: Vec<Arc<dyn Device>>,
        leaving: &[Arc<Member>],
    ) -> Result<Vec<DeviceIndex>> {
        let space = self.space_of(group)?;
        if new.is_empty() {
            // It finds out who lives.
            self.pool.commit()?;
        }
        let sizes: Vec<_> = new.iter().map(|device| (device.name(), device.size())).collect();
        let gone: Vec<_> = leaving.iter().map(|member| member.index).collect();
        self.shaped(group, rule, &sizes, &gone)?;
        let (slot_size, ashift) = (space.slot_size, space.ashift);
        let first = self.store.members.next_index(new.len(), MAX_DEVICES)?.get();
        let indexes: Vec<DeviceIndex> = (first..).map(DeviceIndex::new).take(new.len()).collect();
        let mut joining = Vec::new();
        for (device, &index) in new.into_iter().zip(&indexes) {
            let slot_count = slot_count(device.size(), slot_size, ashift);
            let place = Place { index, group, rule, slot_size, slot_count, ashift };
            let label = self.devices.label_for(&*device, &place, None)?;
            joining.push((device, label));
        }
        for (device, label) in &joining {
            let event = Event::new(Class::DeviceAdd).device(label.device, device.name());
            self.store.event(event.text("more for its group"));
        }
        let clock = Arc::clone(&self.store.world.clock);
        let leaving: Vec<_> =
            leaving.iter().map(|member| (Arc::clone(member), !member.is_written())).collect();
        self.pool.change_members(move |pool, commit| {
            // The rule and the members of a group change together, for others look at them with the core locked.
            let mut core = pool.store().core.lock();
            let incarnation = core.incarnation;
            core.change_shape(group, |space| {
                for (device, label) in joining {
                    space.join(label.index, label.slot_count);
                    let member = Member::labelled(device, label, MemberState::Online, None, &clock);
                    member.joined_after(commit);
                    member.completed(commit, incarnation);
                    pool.store().members.put(Arc::new(member));
                }
                for (member, gone) in leaving {
                    member.set_leaving(true);
                    space.retire(member.index, gone);
                }
                space.set_rule(rule);
            });
        })?;
        self.devices.relabel_group(group, rule);
        Ok(indexes)
    }

    /// Refuses a rule that does not survive the devices that are out of use already; without those `leaving`, with one
    /// that is `staying`.
    fn check_survives(
        &self,
        group: GroupIndex,
        rule: &GroupRule,
        leaving: &[DeviceIndex],
        staying: Option<&Arc<Member>>,
    ) -> Result<()> {
        let stays = |member: &Arc<Member>| !leaving.contains(&member.index);
        let mut columns: Vec<_> = self.store.members.of_group(group).filter(stays).collect();
        columns.extend(staying.cloned());
        columns.sort_by_key(|member| member.index);
        // Those that are new are there.
        let is_out = |column: usize| columns.get(column).is_some_and(|member| !member.is_online());
        if rule.layout.survives(is_out) {
            return Ok(());
        }
        let out = columns.iter().filter(|member| !member.is_online()).map(|member| member.name());
        Err(Refusal::TooManyOut { layout: rule.name(), out: out.collect::<Vec<_>>().join(", ") }.into())
    }

    /// A group on which nothing lies leaves, with all of its devices.
    pub(super) fn let_group_go(&self, group: GroupIndex) -> Result<()> {
        let leaving: Vec<_> = self.store.members.iter().filter(|member| member.group == group).collect();
        let gone: Vec<_> = leaving.iter().map(|member| member.index).collect();
        self.pool.change_members(move |pool, _| {
            pool.store().core.lock().groups.remove(group);
            gone.into_iter().for_each(|index| drop(pool.store().members.take(index)));
        })?;
        for member in &leaving {
            let event = Event::new(Class::DeviceRemove).device(member.guid, member.name());
            self.store.event(event.text("with its group"));
        }
        self.resilver.forget();
        self.wipe_later(&leaving);
        Ok(())
    }

    /// Wipes members that left, once no root names them that an import could go back to; where the pool cannot come to
    /// that, they keep their labels.
    fn wipe_later(&self, gone: &[Arc<Member>]) {
        let had_data = gone.iter().any(|member| member.group != NO_GROUP);
        if !had_data || (0..2).all(|_| self.pool.commit().is_ok()) {
            gone.iter().for_each(|member| wipe(member));
        }
    }

    /// Nothing is put on a group any more from the next commit on, or again.
    fn set_leaving(&self, group: GroupIndex, leaving: bool) -> Result<()> {
        self.pool.change_members(move |pool, _| {
            // Nobody writes now.
            if leaving && pool.store().is_vital(group) && pool.store().check_room(group, None).is_err() {
                return;
            }
            pool.store().core.lock().change_shape(group, |space| space.leaving = leaving);
        })
    }

    /// Commits until no segment is on the group.
    fn empty_log(&self, group: GroupIndex) -> Result<()> {
        let is_there = || {
            let core = self.store.core.lock();
            core.entries.values().any(|entry| entry.segment.group == group)
        };
        for _ in 0..COMMITS_TO_EMPTY {
            if !is_there() {
                return Ok(());
            }
            self.pool.commit()?;
        }
        Err(PoolError::Busy(format!("the log's old segments on group {group} are still read: try again")))
    }

    /// A member that holds nothing which only it has leaves.
    pub(crate) fn leave(&self, member: &Arc<Member>) -> Result<()> {
        let index = member.index;
        self.pool.change_members(move |pool, _| drop(pool.store().members.take(index)))?;
        self.store.event(Event::new(Class::DeviceRemove).device(member.guid, member.name()));
        self.store.detach_cache(index);
        self.resilver.forget();
        self.wipe_later(&[Arc::clone(member)]);
        Ok(())
    }

    /// Whether a mirror holds what is on `member` on another device too.
    fn is_spare_copy(&self, member: &Member) -> bool {
        let rule = self.store.core.lock().groups.get(&member.group).map(|group| group.rule);
        let others = self.store.members.of_group(member.group).filter(|other| other.index != member.index);
        rule.is_some_and(|rule| rule.layout.is_mirror() && rule.layout.r() > 1)
            && others.filter(|other| other.is_online()).count() > 0
    }

    /// Sends a mirror's device on its way out.
    fn narrow(&self, member: &Arc<Member>) -> Result<()> {
        let rule = self.space_of(member.group)?.rule;
        let rule = rule_of(&rule, rule.layout.columns() - 1)?;
        self.change_shape(member.group, rule, Vec::new(), &[Arc::clone(member)])?;
        let event = Event::new(Class::DeviceRemove).device(member.guid, member.name());
        self.store.event(event.text("on its way out"));
        Ok(())
    }

    /// Adds a group of devices. Whatever they hold is overwritten. What is stored already stays where it is; what is
    /// written goes where most is free.
    ///
    /// # Errors
    /// When a device is too small, or fails.
    pub fn add_group(&self, spec: GroupSpec) -> Result<()> {
        let _mine = self.pool.change_turn();
        let (number, features) = {
            let core = self.store.core.lock();
            (GroupIndex::new(core.groups.next()), core.features)
        };
        let ashift = self.store.ashift();
        if number >= NO_GROUP {
            return Err(Refusal::NoGroupNumbers.into());
        }
        let smallest = self.store.members.smallest_slot().unwrap_or(0);
        let slot_size = slot_size_beside(&spec, smallest, ashift)?;
        let first = self.store.members.next_index(spec.devices.len(), MAX_DEVICES)?.get();
        let mut joining = Vec::new();
        for (device, index) in spec.devices.into_iter().zip(first..) {
            let size = device.size();
            if size.get() < MIN_DEVICE {
                let (device, has) = (device.name(), size.get());
                return Err(Refusal::TooSmall { device, has, needed: MIN_DEVICE }.into());
            }
            let label = Label {
                sequence: 1,
                pool: self.store.guid(),
                name: self.pool.name(),
                device: DeviceGuid::new(self.store.world.entropy.next_u64()),
                index: DeviceIndex::new(index),
                group: number,
                rule: spec.rule,
                slot_size,
                slot_count: slot_count(size, slot_size, ashift),
                data_start: data_start(ashift),
                device_size: size,
                created: self.pool.created(),
                ashift,
                features,
                key: self.store.sums.key(),
            };
            joining.push((device, label));
        }
        for (device, label) in &joining {
            write_label_areas(&**device, label)?;
            self.store
                .event(Event::new(Class::DeviceAdd).device(label.device, device.name()).text("a new group"));
        }
        let clock = Arc::clone(&self.store.world.clock);
        self.pool.change_members(move |pool, commit| {
            let slots: Vec<_> = joining.iter().map(|(_, label)| (label.index, label.slot_count)).collect();
            for (device, label) in joining {
                let member = Member::labelled(device, label, MemberState::Online, None, &clock);
                member.joined_after(commit);
                member.completed(commit, pool.incarnation());
                pool.store().members.put(Arc::new(member));
            }
            let group = GroupSpace::new(number, spec.rule, slot_size, ashift, &slots).of_role(spec.role);
            pool.store().core.lock().groups.insert(group);
        })
    }
}
