//! Groups of a tortured pool change their shape: a mirror gets a copy more or less, the pool gets another group, a
//! device that was to take another's place is sent away; with the power failing in the middle of it.

use crate::bed::Bed;
use larder_device::Device;
use larder_format::DeviceIndex;
use larder_format::label::LayoutKind;
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, PoolError};
use std::sync::Arc;

/// Copies that a mirror gets at most, and groups that a pool gets.
const COPIES: usize = 4;
const GROUPS: usize = 3;
/// Steps that moving everything takes at most.
const STEPS: usize = 5_000;

impl Bed {
    fn new_device(&self) -> Arc<dyn Device> {
        Arc::new(self.sim.add_device(self.shape.device_size()))
    }

    /// The copies that the mirror of `seat` has, if it is in one that stays as it is.
    fn mirror_of(&self, seat: DeviceIndex) -> Option<Vec<DeviceIndex>> {
        let pool = self.pool();
        let group = pool.store().members().get(seat).group;
        let rule = pool.store().groups().into_iter().find(|of| of.index == group)?.rule;
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
