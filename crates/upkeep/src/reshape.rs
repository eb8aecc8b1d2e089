//! Groups that change their shape: another device more or less, another layout, a group more or less.
//!
//! The layout belongs to the segment. So a group's rule changes at the boundary of a commit, and what is written from
//! then on is as the new rule says; segments that survive less than that, or other losses, or with a slot on a device
//! or group that is to leave, *do not fit* and are emptied: records and nodes are moved by the cleaner, the block map's
//! and the index's runs are merged anew, tables are written anew, and the log goes on in new segments. No file and no
//! snapshot is touched. A device on its way out is no column of the rule any more; it leaves when no segment has a slot
//! on it, and a group when none is on it. Segments that are only narrower than the rule fit: see [`crate::rebalance`].
//!
//! Nothing needs to be kept of how far this is: what does not fit shows it, after a crash as well.
//!
//! Blocks that cannot be read, or be found, cannot be moved, and moving takes room. Where nothing comes of some tries
//! in a row, an event tells that, and the next try comes after a rest; it keeps nobody else waiting.

mod change;

pub use change::rule_of;

use crate::devices::Devices;
use crate::resilver::Resilver;
use larder_format::run::RunId;
use larder_format::segment::SegmentKind;
use larder_format::{DeviceIndex, GroupIndex, SegmentId};
use larder_pool::Pool;
use larder_store::Store;
use larder_store::member::Member;
use larder_store::{Class, Event, PoolError, Result};
use larder_sync::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Tries in a row, of which nothing comes, before it rests; and the rest before each further one.
const TRIES: u32 = 32;
const REST: Duration = Duration::from_secs(10);

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

    /// Goes on with moving what does not fit the shape of its group, about `bytes`; true while there is more to do, and
    /// something comes of it: see [`Reshape::is_due`].
    ///
    /// # Errors
    /// When the pool is suspended, or a commit fails.
    pub fn step(&self, bytes: u64) -> Result<bool> {
        let misfits = self.misfits();
        if misfits.is_empty() {
            // With this turn nobody is let go who is told to stay just now.
            let _mine = self.pool.change_turn();
            *self.course.lock() = Course::default();
            if !self.misfits().is_empty() {
                return Ok(true);
            }
            for member in self.leaving_for_good() {
                self.leave(&member)?;
            }
            self.leaving_groups().into_iter().try_for_each(|group| self.let_group_go(group))?;
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
            match self.pool.commit() {
                // Nothing comes of it then, which is told.
                Err(PoolError::NoSpace) => {}
                committed => drop(committed?),
            }
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

    /// Groups on their way out on which no segment is.
    fn leaving_groups(&self) -> Vec<GroupIndex> {
        let core = self.store.core.lock();
        let leaving = core.groups.values().filter(|group| group.leaving).map(|group| group.index);
        let is_empty = |group: &GroupIndex| core.entries.values().all(|entry| entry.segment.group != *group);
        leaving.filter(is_empty).collect()
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
        if self.store.is_read_only() {
            return false;
        }
        let rests = {
            let course = self.course.lock();
            course.vain >= TRIES && self.store.world.clock.monotonic() < course.due
        };
        match self.misfits().is_empty() {
            true => !self.leaving_for_good().is_empty() || !self.leaving_groups().is_empty(),
            false => !rests,
        }
    }

    /// The segments that do not fit.
    fn misfits(&self) -> HashSet<SegmentId> {
        let core = self.store.core.lock();
        core.misfits().map(|entry| entry.segment.id).collect()
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
