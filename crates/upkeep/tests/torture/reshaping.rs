//! Groups of a tortured pool change their shape: a group gets a device more or less, or another layout, the pool gets
//! another group or loses one, old segments are rebalanced, a device that was to take another's place is sent away;
//! with the power failing in the middle of it.

use crate::bed::Bed;
use larder_device::Device;
use larder_format::label::LayoutKind;
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::create::rule_for;
use larder_pool::member::Member;
use larder_pool::{GroupSpec, GroupUse, PoolError};
use std::sync::Arc;

/// Copies that a mirror gets at most, and groups that a pool gets.
const COPIES: usize = 4;
const GROUPS: usize = 3;
/// Columns that a group grows to at most.
const WIDEST: usize = 9;
/// Bytes that a device grows to at most.
const LARGEST: u64 = 96 << 20;
/// Steps that moving everything takes at most.
const STEPS: usize = 5_000;

impl Bed {
    fn new_device(&self) -> Arc<dyn Device> {
        Arc::new(self.sim.add_device(self.largest()))
    }

    /// A size that does for the place of any device.
    pub fn largest(&self) -> ByteLen {
        let slots = |member: Arc<Member>| u64::from(member.slot_count()) * u64::from(member.slot_size);
        let most = self.pool().store().members().iter().map(slots).max().unwrap_or(0);
        // Label areas, and what lies before slots of larger sectors.
        let needed = most.next_multiple_of(1 << 20) + (3 << 20);
        ByteLen::new(needed.max(self.shape.device_size().get()))
    }

    /// A device gets larger, and all of it is used, or not yet.
    pub fn expand(&mut self) {
        let Some(seat) = self.some_place(|_| true) else { return };
        let since = self.sim.trace().len();
        let (pool, device) = (self.pool(), self.sim_of(seat));
        let size = device.size().get() + (self.next(3) << 20) * (1 + self.next(3));
        if size <= LARGEST {
            device.grow_to(ByteLen::new(size));
        }
        let done = match pool.upkeep.devices.expand(seat) {
            // It is one of those that fail, and is as large as before.
            Err(PoolError::Device { .. }) => Ok(None),
            done => done.map(Some),
        };
        self.came_to("expand", done, since);
    }

    /// The copies that the mirror of `seat` has, if it is in one that stays as it is.
    fn mirror_of(&self, seat: DeviceIndex) -> Option<Vec<DeviceIndex>> {
        let pool = self.pool();
        let group = pool.store().members().get(seat).group;
        let rule = pool.store().groups().into_iter().find(|of| of.index == group && !of.leaving)?.rule;
        matches!(rule.word, LayoutKind::Single | LayoutKind::Mirror).then(|| self.columns(group))
    }

    /// Whether a device is on its way out of the group of `seat`.
    fn one_leaves(&self, seat: DeviceIndex) -> bool {
        let pool = self.pool();
        let group = pool.store().members().get(seat).group;
        pool.store()
            .members()
            .iter()
            .any(|member| member.group == group && member.is_leaving() && member.is_written())
    }

    /// A mirror gets another copy.
    pub fn attach(&mut self) {
        let few = |seat| self.mirror_of(seat).is_some_and(|copies| copies.len() < COPIES);
        let Some(seat) = self.some_place(few) else { return };
        let since = self.sim.trace().len();
        let (pool, new) = (self.pool(), self.new_device());
        if self.one_leaves(seat) {
            assert!(
                matches!(pool.upkeep.reshape.attach(seat, vec![new]), Err(PoolError::Refused(_))),
                "one leaves"
            );
            return;
        }
        let index = pool.upkeep.reshape.attach(seat, vec![new]).unwrap()[0];
        // It has the number of nobody who may come back.
        self.left.remove(&index);
        self.settle_in();
        self.count("attach");
        self.reshape_and_cut(since);
    }

    /// A device of a mirror is sent away; what is left can do without those that are harmed.
    pub fn detach(&mut self) {
        let spare = |seat| {
            let copies = self.mirror_of(seat).unwrap_or_default();
            copies.contains(&seat) && copies.iter().any(|&other| other != seat && !self.harmed(other))
        };
        let Some(seat) = self.some_place(spare) else { return };
        let since = self.sim.trace().len();
        let pool = self.pool();
        if pool.store().members().stand_in(seat).is_some() {
            assert!(
                matches!(pool.upkeep.reshape.detach(seat), Err(PoolError::Refused(_))),
                "it is being replaced"
            );
            return;
        }
        pool.upkeep.reshape.detach(seat).unwrap();
        assert!(self.survives(|other| self.harmed(other)), "what is harmed can be done without");
        self.count("detach of a copy");
        self.reshape_and_cut(since);
    }

    /// The group that `wanted` holds for, with its rule.
    fn some_group(&self, wanted: impl Fn(&GroupUse) -> bool) -> Option<GroupUse> {
        let mut groups = self.pool().store().groups();
        groups.retain(wanted);
        (!groups.is_empty()).then(|| groups.swap_remove(self.next(groups.len() as u64) as usize))
    }

    /// After a change; one that is refused changes nothing.
    fn came_to<T>(&mut self, what: &str, done: Result<T, PoolError>, since: usize) {
        match done {
            Ok(_) => {
                self.settle_in();
                self.count(what);
            }
            Err(PoolError::Refused(_) | PoolError::NotFound(_) | PoolError::Invalid(_)) => {
                self.count(format!("{what}: refused"));
            }
            Err(error) => panic!("{what}: {error}"),
        }
        assert!(self.survives(|seat| self.harmed(seat)), "{what}: what is harmed can be done without");
        self.reshape_and_cut(since);
    }

    /// A group with several columns gets more.
    pub fn widen(&mut self) {
        let is_narrow = |group: &GroupUse| {
            let layout = group.rule.layout;
            layout.columns() > layout.quorum() && layout.columns() < WIDEST
        };
        let Some(group) = self.some_group(is_narrow) else { return };
        let since = self.sim.trace().len();
        let count = if group.rule.layout.r() > 1 { 2 } else { 1 + self.next(2) as usize };
        let to = self.columns(group.index)[0];
        let devices = (0..count).map(|_| self.new_device()).collect();
        let done = self.pool().upkeep.reshape.attach(to, devices);
        for index in done.iter().flatten() {
            // It has the number of nobody who may come back.
            self.left.remove(index);
        }
        self.came_to("attach to a wide group", done, since);
    }

    /// A device leaves a group with parity, or is told to stay.
    pub fn shrink(&mut self) {
        let pool = self.pool();
        let leaving: Vec<_> = pool.store().members().iter().filter(|member| member.is_leaving()).collect();
        let since = self.sim.trace().len();
        if let Some(member) = leaving.first().filter(|_| self.next(3) == 0) {
            let rule =
                pool.store().groups().into_iter().find(|group| group.index == member.group).unwrap().rule;
            // With it, those that are harmed may be too many.
            let harmed = self.places(|seat| self.harmed(seat)).len();
            if harmed <= rule.layout.m() {
                let done = pool.upkeep.reshape.keep(member.index);
                return self.came_to("a device is told to stay", done, since);
            }
        }
        let has_more = |group: &GroupUse| {
            group.rule.layout.r() == 1 && group.rule.layout.m() > 0 && group.rule.layout.k() > 1
        };
        let Some(group) = self.some_group(has_more) else { return };
        let columns = self.columns(group.index);
        let seat = columns[self.next(columns.len() as u64) as usize];
        let done = pool.upkeep.reshape.remove(seat);
        self.came_to("a device leaves a wide group", done, since);
    }

    /// A group gets another layout.
    pub fn change_layout(&mut self) {
        let Some(group) = self.some_group(|group| group.rule.layout.columns() > 1) else { return };
        let since = self.sim.trace().len();
        let columns = self.columns(group.index);
        let words = ["mirror", "raidz1", "raidz2", "raidz3", "raid10", "raid14"];
        let Ok(rule) = rule_for(words[self.next(6) as usize], columns.len()) else { return };
        if !rule.layout.survives(|column| self.harmed(columns[column])) || rule == group.rule {
            return;
        }
        let done = self.pool().upkeep.reshape.change_layout(group.index, &rule.name(), Vec::new());
        self.came_to("another layout", done, since);
    }

    /// A group leaves, or is told to stay.
    pub fn remove_group(&mut self) {
        let since = self.sim.trace().len();
        let pool = self.pool();
        if let Some(group) = self.some_group(|group| group.leaving) {
            let done = pool.upkeep.reshape.keep_group(group.index);
            return self.came_to("a group is told to stay", done, since);
        }
        let Some(group) = self.some_group(|_| true) else { return };
        let done = pool.upkeep.reshape.remove_group(group.index);
        self.came_to("a group leaves", done, since);
    }

    /// Segments that could be wider, or elsewhere, are written anew.
    pub fn rebalance(&mut self) {
        let since = self.sim.trace().len();
        let pool = self.pool();
        if !pool.upkeep.rebalance.is_active() {
            pool.upkeep.rebalance.start(0).unwrap();
        } else if self.next(5) == 0 {
            pool.upkeep.rebalance.stop().unwrap();
        }
        for _ in 0..self.next(6) {
            let bytes = [30_000, 300_000][self.next(2) as usize];
            if pool.upkeep.rebalance.step(bytes).unwrap().is_none() {
                self.count("rebalanced");
                break;
            }
            match self.next(6) {
                0 => self.sync(),
                1 => self.commit(),
                2 | 3 => self.put(),
                _ => {}
            }
        }
        self.count("rebalance");
        self.reshape_and_cut(since);
    }

    /// The pool gets another group.
    pub fn add_group(&mut self) {
        let pool = self.pool();
        if pool.store().groups().len() >= GROUPS {
            return;
        }
        let since = self.sim.trace().len();
        let (word, width) = [("mirror", 2), ("raidz1", 3), ("mirror", 3)][self.next(3) as usize];
        let devices = (0..width).map(|_| self.new_device()).collect();
        let first = pool.store().members().iter().map(|member| member.index).max();
        pool.upkeep.reshape.add_group(GroupSpec::data(rule_for(word, width).unwrap(), devices)).unwrap();
        self.left.retain(|index, _| Some(*index) <= first);
        self.settle_in();
        self.count("another group");
        self.reshape_and_cut(since);
    }

    /// A device begins to take another's place, whatever is wrong with that one; by chance it is sent away again.
    pub fn replace_and_detach(&mut self) {
        let pool = self.pool();
        let free = |seat| {
            !pool.store().members().get(seat).is_leaving() && pool.store().members().stand_in(seat).is_none()
        };
        let Some(seat) = self.some_place(free) else { return };
        let since = self.sim.trace().len();
        let new = pool.upkeep.devices.replace(seat, self.new_device()).unwrap();
        self.count("replace beside work");
        for _ in 0..self.next(4) {
            pool.upkeep.resilver.step(30_000).unwrap();
            self.settle_in();
            match self.next(4) {
                0 => self.sync(),
                1 => self.commit(),
                _ => self.put(),
            }
        }
        if self.next(2) == 0 && pool.store().members().find(new).is_some_and(|new| new.stands_for.is_some()) {
            pool.upkeep.reshape.detach(new).unwrap();
            self.count("detach of a new device");
        }
        self.reshape_and_cut(since);
    }

    /// Moves some of the segments that do not fit.
    pub fn reshape_some(&mut self) {
        let since = self.sim.trace().len();
        self.count("reshape");
        self.reshape_and_cut(since);
    }

    /// Some of what does not fit is moved, with traffic between; by chance the power fails at some moment since
    /// `since`.
    fn reshape_and_cut(&mut self, since: usize) {
        for _ in 0..self.next(5) {
            let more = self.pool().upkeep.reshape.step([30_000, 300_000][self.next(2) as usize]).unwrap();
            self.settle_in();
            match self.next(6) {
                0 => self.sync(),
                1 => self.commit(),
                2 | 3 => self.put(),
                4 => self.remove(),
                _ => {}
            }
            if !more {
                self.count("reshaped");
                break;
            }
        }
        if self.next(3) == 0 {
            self.cut(since);
            self.count("power cut in a change of shape");
        }
    }

    /// Everything fits, and who was sent away has left. False when something was harmed meanwhile.
    pub fn reshape(&mut self, calm: bool) -> bool {
        let mut sound = true;
        let mut since = self.sim.trace().len();
        for step in 0.. {
            assert!(
                step < STEPS,
                "{} bytes do not come to where they fit",
                self.pool().upkeep.reshape.left()
            );
            let bytes = [30_000, 300_000, 3_000_000][self.next(3) as usize];
            let more = self.pool().upkeep.reshape.step(bytes).unwrap();
            self.settle_in();
            if !more {
                break;
            }
            self.count("reshape step");
            // A segment that could not be read as it is.
            self.pool().upkeep.read_repair.step().unwrap();
            sound &= self.beside(calm, &mut since);
        }
        sound
    }
}
