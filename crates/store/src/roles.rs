//! Roles of groups: what lies where, and which groups promises rest on.
//!
//! Records lie in groups of data. Nodes, runs and tables go to groups that are there for them first, the log's segments
//! to the log's; to data where those have no room. *Small* records, as long as their dataset says, go where nodes go,
//! while more than a quarter of such a group is free: metadata comes first. They are promised nothing there: what a
//! writer is accepted for has room in groups of data. So what is there stays there when it is moved, until its group
//! leaves: room of data that nobody was refused for is not taken by what lay elsewhere. A group of the *log* holds
//! nothing that is not in memory, but for what was acknowledged since the last durable commit. So a pool goes on
//! without it: its log is opened elsewhere, and the commit that opens it has all that the lost one had.

use crate::core::Core;
use crate::space::GroupSpace;
use crate::store::Store;
use crate::watermark::Watermark;
use larder_format::root::GroupRole;
use larder_format::segment::SegmentKind;
use larder_format::{DatasetId, GroupIndex, SegmentId};
use std::time::Duration;

/// A device of the log is given this long at least.
const LOG_TIMEOUT_LEAST: Duration = Duration::from_secs(5);

/// Of the segments of a group for metadata small records leave so many parts, all but the last of which they may have.
const PARTS: u64 = 4;

/// Use of a stream of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Purpose {
    /// Their content.
    pub kind: SegmentKind,
    /// Records that go where metadata does.
    pub small: bool,
}

impl From<SegmentKind> for Purpose {
    fn from(kind: SegmentKind) -> Self {
        Self { kind, small: false }
    }
}

/// The order in which groups of a role come for segments of a kind: the least first. None: they never get one.
fn turn_of(role: GroupRole, of: Purpose) -> Option<u8> {
    use GroupRole::{Cache, Data, Fast, Front, Log, Special};
    match (of.kind, role) {
        (_, Cache | Front) => None,
        (SegmentKind::Data | SegmentKind::Small, Special | Fast) => of.small.then_some(0),
        (SegmentKind::Log, Log) => Some(0),
        (SegmentKind::Log, Fast) => Some(1),
        (SegmentKind::Node | SegmentKind::Run | SegmentKind::Table, Special | Fast) => Some(0),
        (_, Data) => Some(2),
        (_, Log | Special) => None,
    }
}

/// Whether a pool holds more in a group of this role than memory does.
pub fn is_vital(role: GroupRole) -> bool {
    role != GroupRole::Log
}

impl GroupSpace {
    /// Whether records lie here as of right.
    pub fn has_records(&self) -> bool {
        self.role == GroupRole::Data
    }

    /// Free segments of a group for metadata that new small records leave to that.
    pub fn kept_from_small(&self) -> u64 {
        self.total_segments() / PARTS
    }

    /// Whether small records that are new may lie here, though metadata comes first.
    fn has_room_for_small(&self) -> bool {
        self.free_segments() > self.kept_from_small()
    }

    /// See [`is_vital`].
    pub fn is_vital(&self) -> bool {
        is_vital(self.role)
    }
}

impl Core {
    /// The groups that hold more than the log, those on their way out among them.
    pub fn vital_groups(&self) -> impl Iterator<Item = &GroupSpace> {
        self.groups.values().filter(|group| group.is_vital())
    }

    /// Of those, the ones that stay.
    pub fn staying_groups(&self) -> impl Iterator<Item = &GroupSpace> {
        self.vital_groups().filter(|group| !group.leaving)
    }

    /// The groups that records go to.
    pub fn record_groups(&self) -> impl Iterator<Item = &GroupSpace> {
        self.groups.values().filter(|group| group.has_records() && !group.leaving)
    }

    /// Groups in the order in which a stream of `kind` should use them: those that come `last` behind others, by role,
    /// most free first; each with the mark that is kept there. Where metadata has groups of its own these keep their
    /// reserve, and groups of data what the cleaner works with, as long as another has room: what is dead there is won
    /// back by moving what lives.
    ///
    /// Small records that are new come to groups of metadata while these have room, and to data then; those that the
    /// cleaner moves stay, and those whose group gets another shape stay as long as there is room.
    pub(crate) fn groups_for(
        &self,
        of: Purpose,
        mark: Watermark,
        last: impl Fn(GroupIndex) -> bool,
    ) -> Vec<(GroupIndex, Watermark)> {
        let kind = of.kind;
        // Moved by the cleaner, or since it has to leave where it is.
        let is_moved = matches!(mark, Watermark::Clean | Watermark::Accept);
        let takes = |group: &GroupSpace| match (of.small, group.has_records()) {
            (false, _) => true,
            (true, true) => mark != Watermark::Clean,
            (true, false) => is_moved || group.has_room_for_small(),
        };
        let mut groups: Vec<_> = (self.groups.values())
            .filter(|group| !group.leaving && takes(group))
            .filter_map(|group| Some((turn_of(group.role, of)?, group)))
            .collect();
        groups.sort_by_key(|(turn, space)| {
            let total = space.total(0).columns.max(1);
            let free = space.free_above(Watermark::Promised).columns * 1024 / total;
            (last(space.index), *turn, std::cmp::Reverse(free), space.index)
        });
        let is_apart =
            kind != SegmentKind::Log && !of.small && groups.iter().any(|(_, group)| !group.has_records());
        let kept = |group: &GroupSpace| match group.has_records() {
            _ if !is_apart || mark == Watermark::Clean => mark,
            true => mark.min(Watermark::Changes),
            false => mark.min(Watermark::Available),
        };
        let first = groups.iter().map(|(_, group)| (group.index, kept(group)));
        let then = groups.iter().filter(|(_, group)| kept(group) != mark);
        first.chain(then.map(|(_, group)| (group.index, mark))).collect()
    }

    /// Whether a stream of `kind` has a choice of groups.
    pub(crate) fn has_choice(&self, kind: SegmentKind) -> bool {
        let takes = |group: &&GroupSpace| !group.leaving && turn_of(group.role, kind.into()).is_some();
        self.groups.values().filter(takes).count() > 1
    }

    /// The number of a group whose reserve metadata has reached, if there is one: what follows goes to data.
    pub fn full_of_metadata(&self) -> Option<GroupIndex> {
        let is_full = |group: &&GroupSpace| {
            !group.has_records()
                && group.is_vital()
                && !group.leaving
                && group.free_above(Watermark::Available).segments == 0
        };
        self.groups.values().find(is_full).map(|group| group.index)
    }

    /// The number of a group whose room for small records is used up, if some of those went to data for that.
    pub fn full_of_small(&self) -> Option<GroupIndex> {
        let takes = |group: &&GroupSpace| {
            !group.leaving && turn_of(group.role, Purpose { kind: SegmentKind::Data, small: true }) == Some(0)
        };
        let mut groups = self.groups.values().filter(takes);
        if !self.small_went_elsewhere || groups.clone().any(GroupSpace::has_room_for_small) {
            return None;
        }
        groups.next().map(|group| group.index)
    }

    /// Whether the cleaner may find room for what lives in a segment: small records stay where metadata is.
    pub fn has_room_to_move(&self, group: GroupIndex, are_records: bool) -> bool {
        let group = &self.groups[&group];
        !are_records || group.has_records() || group.free_above(Watermark::Clean).segments > 0
    }

    /// Whether what lies in a segment is to stay with metadata when it moves.
    pub fn is_with_metadata(&self, segment: SegmentId) -> bool {
        self.entries.get(&segment).is_some_and(|entry| !self.groups[&entry.segment.group].has_records())
    }
}

impl Store {
    /// Says up to how many stored bytes records of a dataset are small; 0: none are.
    pub fn set_small(&self, dataset: DatasetId, bytes: u32) {
        let mut core = self.core.lock();
        match bytes {
            0 => drop(core.small.remove(&dataset)),
            _ => drop(core.small.insert(dataset, bytes)),
        }
        core.small_went_elsewhere &= !core.small.is_empty();
    }

    /// Bytes of records that lie with metadata: when they go nobody has more room for data.
    pub fn small_bytes(&self) -> u64 {
        let core = self.core.lock();
        let guests = core.groups.values().filter(|group| !group.has_records());
        guests.map(|group| core.entries.usage(group.index).data.1).sum()
    }

    /// Forgets what was said of datasets that are not there.
    pub fn forget_small(&self, is_there: impl Fn(DatasetId) -> bool) {
        self.core.lock().small.retain(|dataset, _| is_there(*dataset));
    }

    /// Whether a group can do without those of its members that are out of use.
    pub fn can_go_on(&self, group: GroupIndex) -> bool {
        let rule = self.core.lock().groups.get(&group).map(|space| space.rule);
        let members: Vec<_> = self.members.of_group(group).collect();
        // It may be on its way out of the pool.
        let is_lost = |column: usize| members.get(column).is_none_or(|member| !member.is_online());
        rule.is_none_or(|rule| rule.layout.survives(is_lost))
    }

    /// Whether the log may lie on a group: one that is vital suspends the pool when it cannot go on.
    pub fn takes_log(&self, group: GroupIndex) -> bool {
        let space = |of: fn(&GroupSpace) -> bool| self.core.lock().groups.get(&group).is_some_and(of);
        space(|group| !group.leaving) && (space(GroupSpace::is_vital) || self.can_go_on(group))
    }

    /// Whether the log stays on a group: it takes it, and none that is rather there for it has room.
    pub fn keeps_log(&self, group: GroupIndex) -> bool {
        let turn = |space: &GroupSpace| turn_of(space.role, SegmentKind::Log.into());
        let better: Vec<GroupIndex> = {
            let core = self.core.lock();
            let mine = core.groups.get(&group).and_then(turn);
            let is_better = |space: &&GroupSpace| {
                space.has_free_segment() && turn(space).zip(mine).is_some_and(|(other, mine)| other < mine)
            };
            core.groups.values().filter(is_better).map(|space| space.index).collect()
        };
        self.takes_log(group) && !better.into_iter().any(|other| self.takes_log(other))
    }

    /// Sets after how long a device that does not answer is given up. One of the log, behind which every fsync and
    /// commit waits, and which nobody needs, is in a third of that, but not in less than five seconds because of it.
    pub fn set_timeouts(&self, timeout: Duration) {
        let logs: Vec<_> =
            self.core.lock().groups.values().filter(|of| !of.is_vital()).map(|of| of.index).collect();
        for member in self.members.all() {
            let of_log = (timeout / 3).max(timeout.min(LOG_TIMEOUT_LEAST));
            member.set_timeout(if logs.contains(&member.group) { of_log } else { timeout });
        }
    }

    /// Whether a group holds more than the log.
    pub fn is_vital(&self, group: GroupIndex) -> bool {
        self.core.lock().groups.get(&group).is_none_or(GroupSpace::is_vital)
    }
}
