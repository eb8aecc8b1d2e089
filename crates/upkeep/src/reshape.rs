//! Groups that change their shape: a mirror gets a copy more or less, a pool gets another group.
//!
//! The layout belongs to the segment. So a group's rule changes at the boundary of a commit, and what is written from
//! then on is as the new rule says; segments of another layout, or with a slot on a device that is to leave, *do not
//! fit* and are emptied: records and nodes are moved by the cleaner, the block map's and the index's runs are merged
//! anew, tables are written anew, and the log goes on in new segments. No file and no snapshot is touched. A device on
//! its way out is no column of the rule any more; it leaves when no segment has a slot on it.
//!
//! Nothing needs to be kept of how far this is: what does not fit shows it, after a crash as well.
//!
//! Blocks that cannot be read, or be found, cannot be moved, and moving takes room. Where nothing comes of some tries
//! in a row, an event tells that, and the next try comes after a rest; it keeps nobody else waiting.

use crate::devices::{Devices, Place, wipe};
use crate::resilver::Resilver;
use larder_device::Device;
use larder_format::label::{GroupRule, Label, LayoutKind, MIN_DEVICE};
use larder_format::root::NO_GROUP;
use larder_format::run::RunId;
use larder_format::segment::{Layout, SegmentKind};
use larder_format::{DeviceGuid, DeviceIndex, GroupIndex, SegmentId};
use larder_pool::Pool;
use larder_pool::create::{
    GroupSpec, MAX_DEVICES, data_start, slot_count, slot_size_beside, write_label_areas,
};
use larder_store::Refusal;
use larder_store::Store;
use larder_store::member::{Member, MemberState};
use larder_store::space::GroupSpace;
use larder_store::{Class, Event};
use larder_store::{PoolError, Result};
use larder_sync::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Commits after which nobody has a use for a segment of the log: it is left with the first of them, closed and freed
/// by the next, and its slots are free two commits later.
const COMMITS_TO_EMPTY: usize = 8;

/// Tries in a row, of which nothing comes, before it rests; and the rest before each further one.
const TRIES: u32 = 32;
const REST: Duration = Duration::from_secs(10);

/// The rule of a mirror of so many devices; one device is none.
fn mirror_of(copies: usize) -> Result<GroupRule> {
    let word = if copies == 1 { LayoutKind::Single } else { LayoutKind::Mirror };
    let copies = u8::try_from(copies).map_err(|_| PoolError::Invalid("so many copies cannot be".into()))?;
    let layout =
        Layout::new(1, copies, 0).map_err(|_| PoolError::Invalid("so many copies cannot be".into()))?;
    Ok(GroupRule { word, layout })
}

fn is_mirror(rule: &GroupRule) -> bool {
    matches!(rule.word, LayoutKind::Single | LayoutKind::Mirror)
}

/// See the module's text.
pub struct Reshape {
    pool: Arc<Pool>,
    store: Arc<Store>,
    devices: Arc<Devices>,
    resilver: Arc<Resilver>,
    course: Mutex<Course>,
}

#[derive(Default)]
struct Course {
    /// State at the last progress.
    left: Left,
    /// Steps since then.
    vain: u32,
    /// When it is tried again.
    due: Duration,
    /// Reason why it cannot go on, which an event told.
    stuck: Option<String>,
}

#[derive(Default)]
struct Left {
    misfits: HashSet<SegmentId>,
    live_bytes: u64,
    /// Runs of the block map with pages there that are being written anew, and the bytes written of each.
    rewritten: BTreeMap<RunId, u64>,
}

impl Course {
    /// After a step that moved so many bytes of records and nodes: whether it is tried again at once. A merge that is
    /// abandoned for want of room is planned anew, and comes as far as before: only one that brings a run further than
    /// ever is progress.
    fn goes_on(&mut self, moved: u64, now: Left) -> bool {
        let is_less = now.misfits.len() < self.left.misfits.len() || now.live_bytes < self.left.live_bytes;
        let is_other = !now.misfits.is_subset(&self.left.misfits);
        let furthest = |run| self.left.rewritten.get(run).copied().unwrap_or(0);
        let is_further = now.rewritten.iter().any(|(run, &written)| written > furthest(run));
        if moved > 0 || is_less || is_other || is_further {
            *self = Self { left: now.after(&self.left), ..Self::default() };
            return true;
        }
        self.vain = self.vain.saturating_add(1);
        self.vain < TRIES
    }
}

impl Left {
    /// This state, which knows how far each run came before.
    fn after(mut self, before: &Self) -> Self {
        for (run, &written) in &before.rewritten {
            let of = self.rewritten.entry(*run).or_default();
            *of = written.max(*of);
        }
        self
    }
}

impl Reshape {
    pub(crate) fn new(pool: &Arc<Pool>, devices: &Arc<Devices>, resilver: &Arc<Resilver>) -> Self {
        Self {
            pool: Arc::clone(pool),
            store: Arc::clone(pool.store()),
            devices: Arc::clone(devices),
            resilver: Arc::clone(resilver),
            course: Mutex::default(),
        }
    }

    /// Makes a mirror of the group of `to`, or gives that mirror a copy more. Whatever the new device holds is
    /// overwritten. [`Reshape::step`] brings what is stored already to the new device.
    ///
    /// # Errors
    /// When the group is neither a single device nor a mirror; when the device is too small, or fails.
    pub fn attach(&self, to: DeviceIndex, new: Arc<dyn Device>) -> Result<DeviceIndex> {
        let _mine = self.pool.change_turn();
        let member = self.pool.known(to)?;
        let rule = self.store.core.lock().groups.get(&member.group).map(|group| group.rule);
        let Some(rule) = rule.filter(is_mirror).filter(|_| member.stands_for.is_none()) else {
            return Err(Refusal::NoMirror(member.name()).into());
        };
        let leaves =
            |other: &Arc<Member>| other.group == member.group && other.is_leaving() && other.is_written();
        if self.store.members.iter().any(|other| leaves(&other)) {
            return Err(Refusal::GroupShrinks.into());
        }
        let rule = mirror_of(rule.layout.r() + 1)?;
        let place = Place { rule, ..self.devices.place_of_member(&member, 1, MAX_DEVICES)? };
        let label = self.devices.label_for(&*new, &place, None)?;
        self.store.event(Event::new(Class::DeviceAdd).device(label.device, new.name()).text("another copy"));
        let clock = Arc::clone(&self.store.world.clock);
        let index = place.index;
        self.pool.change_members(move |pool, commit| {
            let joining = Member::labelled(new, label, MemberState::Online, None, &clock);
            joining.joined_after(commit);
            joining.completed(commit, pool.incarnation());
            pool.store().members.put(Arc::new(joining));
            let mut core = pool.store().core.lock();
            if let Some(group) = core.groups.change(place.group) {
                group.join(place.index, place.slot_count);
                group.rule = rule;
            }
            core.close_streams(place.group);
        })?;
        self.relabel_group(member.group, rule);
        Ok(index)
    }

    /// Ends the replacing of a device: the one that stands for it leaves. A mirror gets one copy less, and the device
    /// leaves when everything is where it stays: see [`crate::reshape`].
    ///
    /// # Errors
    /// When `device` neither stands for another nor is a mirror's, or holds the last copy.
    pub fn detach(&self, device: DeviceIndex) -> Result<()> {
        let _mine = self.pool.change_turn();
        let member = self.pool.known(device)?;
        if member.stands_for.is_none() {
            let why = match self.store.members.stand_in(device) {
                Some(other) if other.state() == MemberState::Waiting => {
                    format!("has something that {}, which is to replace it, could not be given", other.name())
                }
                Some(other) => {
                    format!("is being replaced by {}, and leaves when that is rebuilt", other.name())
                }
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
            return Err(Refusal::CannotDetach { device: member.name(), why }.into());
        }
        self.leave(&member)
    }

    /// Takes a spare out of the pool.
    ///
    /// # Errors
    /// When `device` is no spare.
    pub fn remove(&self, device: DeviceIndex) -> Result<()> {
        let _mine = self.pool.change_turn();
        let member = self.pool.known(device)?;
        if member.group != NO_GROUP {
            return Err(Refusal::HoldsData(member.name()).into());
        }
        self.leave(&member)
    }

    /// Takes a group of the log out of the pool, with all of its devices: the log goes on elsewhere.
    ///
    /// # Errors
    /// [`Refusal::HoldsData`] when it holds more than the log; when a commit fails, or somebody reads the log's old
    /// segments for too long.
    pub fn remove_log(&self, group: GroupIndex) -> Result<()> {
        let _mine = self.pool.change_turn();
        let of_group = || self.store.members.iter().filter(|member| member.group == group);
        if self.store.is_vital(group) {
            let name = of_group().next().map_or_else(|| format!("group {group}"), |member| member.name());
            return Err(Refusal::HoldsData(name).into());
        }
        self.set_leaving(group, true);
        let emptied = self.empty_log(group);
        if emptied.is_err() {
            self.set_leaving(group, false);
        }
        emptied?;
        let leaving: Vec<_> = of_group().collect();
        for member in &leaving {
            let event = Event::new(Class::DeviceRemove).device(member.guid, member.name());
            self.store.event(event.text("with the log's group"));
        }
        let gone: Vec<_> = leaving.iter().map(|member| member.index).collect();
        let removed = self.pool.change_members(move |pool, _| {
            pool.store().core.lock().groups.remove(group);
            gone.into_iter().for_each(|index| drop(pool.store().members.take(index)));
        });
        if removed.is_err() {
            self.set_leaving(group, false);
        }
        removed?;
        self.resilver.forget();
        leaving.iter().for_each(|member| wipe(member));
        Ok(())
    }

    fn set_leaving(&self, group: GroupIndex, leaving: bool) {
        if let Some(space) = self.store.core.lock().groups.change(group) {
            space.leaving = leaving;
        }
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
    pub(crate) fn leave(&self, member: &Member) -> Result<()> {
        let index = member.index;
        self.store.event(Event::new(Class::DeviceRemove).device(member.guid, member.name()));
        self.pool.change_members(move |pool, _| drop(pool.store().members.take(index)))?;
        self.store.detach_cache(index);
        self.resilver.forget();
        wipe(member);
        Ok(())
    }

    /// Whether a mirror holds what is on `member` on another device too.
    pub(crate) fn is_spare_copy(&self, member: &Member) -> bool {
        let rule = self.store.core.lock().groups.get(&member.group).map(|group| group.rule);
        let others = self.store.members.of_group(member.group).filter(|other| other.index != member.index);
        rule.is_some_and(|rule| is_mirror(&rule) && rule.layout.r() > 1)
            && others.filter(|other| other.is_online()).count() > 0
    }

    /// Sends a mirror's device on its way out.
    pub(crate) fn narrow(&self, member: &Arc<Member>) -> Result<()> {
        let group = member.group;
        let rule = mirror_of(self.store.members.of_group(group).count() - 1)?;
        self.store
            .event(Event::new(Class::DeviceRemove).device(member.guid, member.name()).text("on its way out"));
        let leaving = Arc::clone(member);
        let gone = !member.is_written();
        self.pool.change_members(move |pool, _| {
            leaving.set_leaving();
            let mut core = pool.store().core.lock();
            if let Some(space) = core.groups.change(group) {
                space.retire(leaving.index, gone);
                space.rule = rule;
            }
            core.close_streams(group);
        })?;
        self.relabel_group(group, rule);
        Ok(())
    }

    /// The labels of a group tell its rule; the root does as well, and is believed.
    fn relabel_group(&self, group: GroupIndex, rule: GroupRule) {
        for member in self.store.members.of_group(group).filter(|member| member.is_written()) {
            drop(member.relabel(|label| label.rule = rule));
        }
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

    /// Goes on with moving what does not fit the shape of its group, about `bytes`; true while there is more to do, and
    /// something comes of it: see [`Reshape::is_due`].
    ///
    /// # Errors
    /// When the pool is suspended, or a commit fails.
    pub fn step(&self, bytes: u64) -> Result<bool> {
        let misfits = self.misfits();
        if misfits.is_empty() {
            *self.course.lock() = Course::default();
            for member in self.leaving_for_good() {
                self.leave(&member)?;
            }
            return Ok(false);
        }
        let (mut left, mut moved) = (bytes, 0);
        while left > 0 {
            let Some(some) = self.pool.clean_misfits()? else { break };
            moved += some;
            left = left.saturating_sub(some.max(4096));
        }
        if left > 0 {
            // Records and nodes are all moved, or wait for room; pages of runs are what is left, and tables.
            self.store.map.lock().evacuate(|id| misfits.contains(&id));
            self.pool.evacuate_index(|id| misfits.contains(&id));
            self.pool.commit()?;
        }
        Ok(self.is_moving(moved))
    }

    /// Whether something came of the last steps, of which this one moved so many bytes.
    fn is_moving(&self, moved: u64) -> bool {
        let misfits = self.misfits();
        let rewritten = self.store.map.lock().rewriting(|id| misfits.contains(&id));
        let left = Left { misfits, live_bytes: self.left(), rewritten };
        let mut course = self.course.lock();
        if course.goes_on(moved, left) {
            return true;
        }
        course.due = self.store.world.clock.monotonic().saturating_add(REST);
        if course.stuck.is_none() {
            let text = self.why_stuck(&course.left.misfits);
            course.stuck = Some(text.clone());
            self.store.event(Event::new(Class::StateChange).text(text));
        }
        false
    }

    /// Reason why nothing moves, when nothing came of the last tries.
    pub fn stuck(&self) -> Option<String> {
        self.course.lock().stuck.clone()
    }

    /// Reason why segments keep what lives in them.
    fn why_stuck(&self, misfits: &HashSet<SegmentId>) -> String {
        let core = self.store.core.lock();
        let entries = misfits.iter().filter_map(|id| core.entries.get(id));
        let unread = entries.filter(|entry| entry.damaged || entry.segment.kind == SegmentKind::Run).count();
        let why = match unread {
            0 => "there is no room".to_owned(),
            _ => format!("{unread} hold something that cannot be read, or that the block map cannot tell of"),
        };
        format!("{} segments that have to go elsewhere cannot be emptied: {why}", misfits.len())
    }

    /// Devices on their way out that no segment names any more.
    fn leaving_for_good(&self) -> Vec<Arc<Member>> {
        let mut leaving: Vec<_> = self.store.members.iter().filter(|member| member.is_leaving()).collect();
        if !leaving.is_empty() {
            let core = self.store.core.lock();
            let named: HashSet<DeviceIndex> = core
                .entries
                .values()
                .flat_map(|entry| &entry.segment.slots)
                .map(|slot| slot.device)
                .collect();
            leaving.retain(|member| !named.contains(&member.index));
        }
        leaving
    }

    /// Whether [`Reshape::step`] has something to do now: not while it rests, since nothing came of it.
    pub fn is_due(&self) -> bool {
        let rests = {
            let course = self.course.lock();
            course.vain >= TRIES && self.store.world.clock.monotonic() < course.due
        };
        match self.misfits().is_empty() {
            true => !self.leaving_for_good().is_empty(),
            false => !rests,
        }
    }

    /// The segments that do not fit.
    fn misfits(&self) -> HashSet<SegmentId> {
        let core = self.store.core.lock();
        let groups = &core.groups;
        let misfit =
            |entry: &larder_store::segments::SegmentEntry| !groups[&entry.segment.group].fits(&entry.segment);
        core.entries.select(misfit).into_iter().collect()
    }

    /// Bytes, before copies, that still have to move to fit the shape of their group.
    pub fn left(&self) -> u64 {
        let misfits = self.misfits();
        let core = self.store.core.lock();
        misfits.iter().filter_map(|id| core.entries.get(id)).map(|entry| entry.live_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(misfits: u64, live_bytes: u64, runs: &[u64]) -> Left {
        let rewritten = (0..).map(RunId::new).zip(runs.iter().copied()).collect();
        Left { misfits: (0..misfits).map(SegmentId::new).collect(), live_bytes, rewritten }
    }

    /// Steps until it rests, with these states one after another, again and again.
    fn steps(course: &mut Course, states: &[(u64, u64, &[u64])]) -> u32 {
        let mut states = states.iter().copied().cycle();
        let mut goes_on = || {
            let (misfits, live_bytes, runs) = states.next().unwrap();
            course.goes_on(0, left(misfits, live_bytes, runs))
        };
        (0..1000).find(|_| !goes_on()).expect("it rests")
    }

    #[test]
    fn merges_that_are_abandoned_again_and_again_are_no_progress() {
        let mut course = Course::default();
        assert_eq!(steps(&mut course, &[(3, 1000, &[10]), (3, 1000, &[20]), (3, 1000, &[])]), 1 + TRIES);
        course.stuck = Some("there is no room".into());
        assert_eq!(steps(&mut course, &[(3, 1000, &[20]), (3, 1000, &[10])]), 0, "a try after a rest");
        assert!(course.stuck.is_some());
        // A merge that comes further, less that lives, fewer segments, others: it goes on, and tells again.
        let better: [&[(u64, u64, &[u64])]; 4] = [
            &[(3, 1000, &[30]), (3, 1000, &[])],
            &[(3, 900, &[]), (3, 900, &[10])],
            &[(2, 900, &[]), (2, 900, &[10])],
            &[(4, 900, &[])],
        ];
        for states in better {
            assert!(steps(&mut course, states) >= TRIES);
            assert!(course.stuck.replace("there is no room".into()).is_none());
        }
    }

    #[test]
    fn a_run_goes_on_while_another_is_complete_and_more_lives_than_before() {
        let mut course = Course::default();
        assert!(course.goes_on(0, left(3, 1000, &[500, 10])));
        for written in 11..11 + 2 * u64::from(TRIES) {
            assert!(course.goes_on(0, left(3, 1100, &[0, written])), "at {written}");
        }
        for _ in 0..2 * TRIES {
            assert!(course.goes_on(4096, left(3, 1100, &[])), "blocks move");
        }
        assert_eq!(steps(&mut course, &[(3, 1100, &[500, 20])]), TRIES - 1);
    }
}
