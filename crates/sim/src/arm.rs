//! Devices that answer when a disk with one arm would have, in virtual time.

use crate::clock::SimClock;
use larder_device::{Completion, Disk, DiskShape, DiskWork, Outcome, Pending};
use std::collections::BTreeMap;
use std::time::Duration;

/// The arm of a device, and the answers that wait for it.
pub(crate) struct Arm {
    disk: Disk,
    held: BTreeMap<u64, (Completion<Outcome>, Outcome)>,
}

impl Arm {
    pub(crate) fn new(shape: DiskShape) -> Self {
        Self { disk: Disk::new(shape), held: BTreeMap::new() }
    }

    /// A request was performed; it is answered when the disk has done `work`.
    pub(crate) fn ask(
        &mut self,
        now: Duration,
        number: u64,
        work: DiskWork,
        outcome: Outcome,
    ) -> Pending<Outcome> {
        let (completion, pending) = Pending::new();
        completion.begin();
        self.disk.ask(now, number, work);
        self.held.insert(number, (completion, outcome));
        pending
    }

    /// Gives the answers that are due; their number.
    fn answer(&mut self, now: Duration) -> usize {
        let due = self.disk.answered(now);
        due.iter().filter_map(|number| self.held.remove(number)).for_each(complete);
        due.len()
    }
}

impl Drop for Arm {
    /// Nobody is held back any more.
    fn drop(&mut self) {
        std::mem::take(&mut self.held).into_values().for_each(complete);
    }
}

fn complete((completion, outcome): (Completion<Outcome>, Outcome)) {
    completion.complete(outcome);
}

/// Lets time pass until some arm gives answers, at most for `limit`: see [`larder_device::VirtualTime::pass`]. Answers
/// come in the order of their times, whoever waits for which.
pub(crate) fn pass(clock: &SimClock, arms: &mut [&mut Arm], limit: Duration) -> Option<Duration> {
    let end = clock.elapsed().saturating_add(limit);
    loop {
        let now = clock.elapsed();
        if arms.iter_mut().map(|arm| arm.answer(now)).sum::<usize>() > 0 {
            return Some(end.saturating_sub(now));
        }
        match arms.iter().filter_map(|arm| arm.disk.next()).min() {
            Some(next) if next <= end => clock.advance_to(next),
            _ if limit == Duration::MAX => return None,
            _ => {
                clock.advance_to(end);
                return None;
            }
        }
    }
}
