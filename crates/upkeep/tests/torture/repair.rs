//! Repair of a tortured pool: devices come back as they are, or others take their places, what they lack is
//! resilvered, and everything is scrubbed; beside traffic, and with the power failing now and then.

use crate::bed::{Bed, verify};
use crate::common::import_from;
use crate::structures::number_of;
use larder_device::Device;
use larder_format::DeviceIndex;
use larder_pool::PoolError;
use larder_pool::member::MemberState;
use larder_pool::open::{Scan, scan};
use larder_sim::SimWorld;
use larder_upkeep::ScrubSince;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Attempts to get every place of the pool filled; devices that fail meanwhile cost one.
const ATTEMPTS: usize = 12;

impl Bed {
    /// Everything is repaired: afterwards no device is harmed.
    pub fn heal(&mut self) {
        self.count("heal");
        self.away.clear();
        for attempt in 0.. {
            for device in 0..self.sim.devices().len() {
                self.sim.device(device).clear_faults();
            }
            assert!(attempt < ATTEMPTS, "the pool does not get whole");
            self.places(|_| true).into_iter().for_each(|seat| self.bring_in(seat));
            let calm = attempt > 1;
            let sound = self.resilver(calm) && self.reshape(calm);
            if sound && self.is_complete() && self.scrub(calm) {
                break;
            }
        }
        self.commit();
        self.assert_clean();
        self.seats.values_mut().for_each(|seat| seat.harmed = false);
        self.left.clear();
        self.count("healed");
    }

    /// Every place has its device, current. One that was sent away when it was gone is but a number.
    fn is_complete(&self) -> bool {
        let members = self.pool().store().members().iter().collect::<Vec<_>>();
        members.len() == self.seats.len()
            && members.iter().all(|member| member.is_online() || member.is_leaving())
    }

    /// A device takes its place again, or another one takes it.
    fn bring_in(&mut self, index: DeviceIndex) {
        let pool = self.pool();
        let member = pool.store().members().get(index);
        if let Some(other) = pool.store().members().stand_in(index) {
            match other.state() {
                MemberState::Rebuilding => return,
                // Data that the old one did not give the others do, in the end.
                MemberState::Waiting if self.harmed(index) && self.next(2) == 0 => {
                    pool.upkeep.devices.accept_loss(index).unwrap();
                    self.settle_in();
                    return self.count("loss accepted");
                }
                MemberState::Waiting if self.next(2) == 0 => {
                    pool.upkeep.resilver.restart().unwrap();
                    return self.count("tried again");
                }
                _ => {}
            }
            // The new one failed: it is tried once more, or given up.
            if self.next(2) == 0 && pool.upkeep.devices.online(other.index, None).is_ok() {
                return self.count("new device comes back");
            }
            pool.upkeep.reshape.detach(other.index).unwrap();
            self.count("detach");
        }
        match member.state() {
            MemberState::Rebuilding => return,
            MemberState::Online if self.harmed(index) && self.next(4) == 0 => return self.replace(index),
            MemberState::Online => return,
            // It can come back, or leave without.
            _ if member.is_leaving() && self.next(2) == 0 => return,
            _ => {}
        }
        let device = Arc::new(self.sim_of(index)) as Arc<dyn Device>;
        let found = match scan(&device) {
            Scan::Member(found) if found.label.device == member.guid => *found,
            _ => return self.replace(index),
        };
        let has_device = !matches!(member.state(), MemberState::Missing);
        let back = match self.next(5) {
            0 => return self.replace(index),
            1 if has_device => pool.upkeep.devices.online(index, None),
            2 if member.state() == MemberState::Faulted => pool.upkeep.devices.clear(Some(index)),
            _ => pool.upkeep.devices.online(index, Some(found)),
        };
        match back {
            Ok(()) => self.count("online"),
            // It was cut short.
            Err(PoolError::Refused(_)) => self.replace(index),
            Err(error) => panic!("{error}"),
        }
    }

    /// A blank device, or a spare, takes the place of another; not of one that is to leave.
    fn replace(&mut self, index: DeviceIndex) {
        let pool = self.pool();
        let new = Arc::new(self.sim.add_device(self.largest()));
        if pool.store().members().get(index).is_leaving() {
            assert!(
                matches!(pool.upkeep.devices.replace(index, new), Err(PoolError::Refused(_))),
                "it is to leave"
            );
            return;
        }
        if pool.store().members().get(index).state() == MemberState::Faulted && self.next(3) == 0 {
            pool.upkeep.devices.add_spare(new).unwrap();
            pool.upkeep.devices.take_spares().unwrap();
            return self.count("spare");
        }
        pool.upkeep.devices.replace(index, new).unwrap();
        self.count("replace");
    }

    /// Rebuilds what is to be rebuilt; more may go wrong meanwhile, unless it is to stay calm.
    /// False when something was harmed.
    fn resilver(&mut self, calm: bool) -> bool {
        let mut sound = true;
        let mut since = self.sim.trace().len();
        loop {
            let bytes = [30_000, 300_000, 3_000_000][self.next(3) as usize];
            let more = self.pool().upkeep.resilver.step(bytes).unwrap();
            self.settle_in();
            if !more {
                return sound;
            }
            self.count("resilver step");
            sound &= self.beside(calm, &mut since);
        }
    }

    /// Proves and reconstructs everything; false when it has to be done again.
    fn scrub(&mut self, calm: bool) -> bool {
        // Stripes written while devices lied are not looked at before they are durable.
        self.commit();
        self.pool().upkeep.scrub.start(ScrubSince::All).unwrap();
        let mut since = self.sim.trace().len();
        let mut sound = true;
        loop {
            let bytes = [30_000, 300_000, 3_000_000][self.next(3) as usize];
            if !self.pool().upkeep.scrub.step(bytes).unwrap() {
                break;
            }
            self.count("scrub step");
            sound &= self.beside(calm, &mut since);
            if self.pool().upkeep.scrub.progress().is_none() {
                // The power failed before it had noted how far it was.
                return false;
            }
        }
        let result = self.pool().upkeep.scrub.result().expect("a scrub ended");
        assert_eq!(
            result.lost,
            0,
            "within tolerance the scrub gave something up: {:?}",
            self.pool().upkeep.read_repair.lost()
        );
        sound && self.is_complete()
    }

    /// Has devices told of some of what is free, because of `autotrim` or because somebody asks for it.
    pub fn trim(&mut self) {
        if !self.pool().upkeep.trim.is_active() && self.next(4) == 0 {
            let pool = self.pool();
            let members = pool.store().members().iter();
            let all: Vec<_> = members
                .filter(|member| member.is_written() && member.discards())
                .map(|member| member.index)
                .collect();
            self.pool().upkeep.trim.start(&all, 0).unwrap();
        }
        if self.pool().upkeep.trim.step().unwrap().is_some() {
            self.count("trim");
        }
    }

    /// A step of traffic or harm beside a repair; false when something was harmed.
    pub fn beside(&mut self, calm: bool, since: &mut usize) -> bool {
        match self.next(20) {
            0..=2 => self.put(),
            3 => self.sync(),
            4 => self.commit(),
            5 => self.verify(),
            6 if !calm => {
                self.cut(*since);
                *since = self.sim.trace().len();
                self.count("power cut beside a repair");
            }
            7 if !calm => {
                let Some(seat) = self.some_place(|seat| self.harmed(seat)) else { return true };
                self.harm_seat(seat);
                return false;
            }
            8 if !calm && self.next(4) == 0 => {
                // A device that is being rebuilt goes away, perhaps when it has just taken its place.
                let members = self.pool().store().members().iter().collect::<Vec<_>>();
                let new = members.iter().find_map(|member| Some((member, member.stands_for?)));
                let Some((new, place)) = new.filter(|(_, place)| self.may_harm(*place)) else {
                    return true;
                };
                if let Some(device) = number_of(&new.name()) {
                    self.sim.device(device).inject_window(larder_sim::Fault::Gone, self.next(5), 20);
                    self.note_harm(place);
                    self.count("new device fails");
                    return false;
                }
            }
            9 => drop(self.pool().clean_step(true).unwrap()),
            10 => drop(self.pool().free_step(1).unwrap()),
            11 => drop(self.pool().upkeep.read_repair.step().unwrap()),
            14 => self.trim(),
            12 if self.next(8) == 0 => {
                self.pool().upkeep.resilver.restart().unwrap();
                self.count("resilver restarted");
            }
            13 if self.pool().upkeep.scrub.progress().is_some() => {
                self.pool().upkeep.scrub.pause().unwrap();
                assert!(!self.pool().upkeep.scrub.step(1).unwrap(), "a scrub that was paused goes on");
                self.pool().upkeep.scrub.start(ScrubSince::All).unwrap();
                self.count("scrub paused");
            }
            _ => {}
        }
        true
    }

    /// Sees which places there are, and which device stands in which.
    pub fn settle_in(&mut self) {
        let pool = self.pool();
        let mut seats = std::mem::take(&mut self.seats);
        for member in pool.store().members().iter().filter(|member| member.stands_for.is_none()) {
            let known = seats.remove(&member.index).or_else(|| self.left.remove(&member.index));
            let mut seat = known.unwrap_or_default();
            if let Some(device) = number_of(&member.name()) {
                seat.device = device;
            }
            self.seats.insert(member.index, seat);
        }
        self.left.extend(seats);
    }

    /// Nothing is wrong any more: a second scrub finds nothing, the check neither, and what was harmed can be relied
    /// on.
    fn assert_clean(&mut self) {
        let pool = self.pool();
        pool.upkeep.scrub.start(ScrubSince::All).unwrap();
        while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
        let result = pool.upkeep.scrub.result().unwrap();
        assert_eq!((result.repaired, result.lost), (0, 0), "a second scrub found something");
        self.assert_whole("after a repair");
        self.verify();
        // The whole tolerance is there again, whichever devices go now.
        let by_rule = pool
            .store()
            .groups()
            .into_iter()
            .filter_map(|group| group.rule.layout.losses_survived(|_| false));
        assert_eq!(Some(pool.store().losses_survived()), by_rule.min(), "what the shape allows");
        let mut order = self.places(|_| true);
        order.rotate_left(self.next(self.seats.len() as u64) as usize);
        if self.next(2) == 0 {
            order.reverse();
        }
        let mut gone = BTreeSet::new();
        for seat in order {
            if self.survives(|other| other == seat || gone.contains(&other)) {
                gone.insert(seat);
            }
        }
        let copy = SimWorld::from_images(self.sim.images());
        let seats = self.seats.iter().filter(|(seat, _)| !gone.contains(seat));
        let left = seats.map(|(_, place)| Arc::new(copy.device(place.device)) as Arc<dyn Device>);
        let pool = import_from(left.collect(), 1).unwrap_or_else(|error| panic!("without {gone:?}: {error}"));
        verify(&pool, self.model());
    }
}
