//! State of the pool that changes with every write, under one lock: segments, free slots, ids.
//!
//! That lock is never held over I/O.

use crate::headroom::Groups;
use crate::heat::Clock;
use crate::segments::{Listed, Readable, SegmentEntry, Segments};
use crate::space::GroupSpace;
use crate::watermark::Watermark;
use larder_format::label::Features;
use larder_format::root::{Identity, RootImport};
use larder_format::run::MAX_PLACES;
use larder_format::segment::{SegmentKind, SegmentState};
use larder_format::{BlockId, CommitId, DatasetId, GroupIndex, Incarnation, Place, SegmentId};
use larder_mutants::{Mutant, mutated};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Ids are leased this far ahead: more than any commit can use.
pub const LEASE: u64 = 1 << 24;

/// A stream: what its segments hold, how long that is expected to live, which place of its blocks is there, and their
/// group.
pub type StreamKey = (SegmentKind, u8, u8, GroupIndex);

/// See the module's text.
pub struct Core {
    /// All segments.
    pub entries: Segments,
    /// Free slots by group.
    pub groups: Groups,
    /// The open segment of each stream.
    pub streams: HashMap<StreamKey, SegmentId>,
    /// The commit that changes made now belong to.
    pub open_commit: CommitId,
    /// This import.
    pub incarnation: Incarnation,
    /// Ages of block ids, counted in ids given out.
    pub clock: Arc<Clock>,
    /// The next block id.
    pub next_block: BlockId,
    /// Ids below this one may be used: the durable root says so.
    pub block_lease: BlockId,
    /// The next segment id.
    pub next_segment: SegmentId,
    /// As for block ids.
    pub segment_lease: SegmentId,
    /// Segments whose slots were given back, to be taken out of the tables.
    pub gone: Vec<SegmentId>,
    /// Feature flags in use.
    pub features: Features,
    /// The GUID that people and imports know the pool by.
    pub identity: Identity,
    /// From this commit on trees of datasets tell by their ids what they had before.
    pub traced: CommitId,
    /// Some segments may not fit the shape of their groups: [`Core::withhold`] looked at them last.
    pub reshaping: bool,
    /// Bytes of data columns that what has to move takes, beyond what it leaves.
    pub withheld: u64,
    /// Datasets with records that go to groups for metadata: up to so many stored bytes.
    pub small: HashMap<DatasetId, u32>,
    /// Some of those went to groups of data since import, for the others had no room.
    pub small_went_elsewhere: bool,
    /// Segments that do not fit, once they were looked for since a group got its shape.
    pub misfits: Option<BTreeSet<SegmentId>>,
    /// A segment that the tables counted wrong: more was freed than they say is there. No commit may tell of it.
    pub miscounted: Option<SegmentId>,
}

impl Core {
    /// As an import begins: the latest of `history`, whose first commit is open, with the next block and segment.
    pub fn beginning(
        groups: Groups,
        history: &[RootImport],
        (commit, block, segment): (CommitId, BlockId, SegmentId),
        identity: Identity,
    ) -> Self {
        Self {
            entries: Segments::default(),
            groups,
            streams: HashMap::new(),
            open_commit: commit,
            incarnation: history.first().map_or(Incarnation::new(0), |import| import.incarnation),
            clock: Arc::new(Clock::new(history)),
            next_block: block,
            block_lease: BlockId::new(block.get().saturating_add(LEASE)),
            next_segment: segment,
            segment_lease: SegmentId::new(segment.get().saturating_add(LEASE)),
            gone: Vec::new(),
            features: Features::default(),
            identity,
            traced: commit,
            reshaping: false,
            withheld: 0,
            small: HashMap::new(),
            small_went_elsewhere: false,
            misfits: None,
            miscounted: None,
        }
    }

    /// Whether hints into a segment do not tell a block's place any more: it is being emptied, or gone.
    pub fn hint_is_stale(&self, segment: SegmentId) -> bool {
        self.entries.get(&segment).is_none_or(|entry| {
            let emptying = entry.state == SegmentState::Emptying && !mutated(Mutant::HintBelieved);
            entry.live_blocks == 0 || emptying || entry.state == SegmentState::Freed
        })
    }

    /// Takes `count` consecutive block ids and returns the first.
    pub fn take_ids(&mut self, count: usize) -> BlockId {
        let first = self.next_block;
        self.next_block = BlockId::new(first.get() + count as u64);
        assert!(self.next_block <= self.block_lease, "block ids are leased far ahead of their use");
        first
    }

    /// Whether a segment is as its group's rule says, and stays where it is.
    pub fn fits(&self, id: SegmentId) -> bool {
        self.entries.get(&id).is_none_or(|entry| self.groups[&entry.segment.group].fits(&entry.segment))
    }

    /// Whether none of a segment's slots has refused a write.
    pub fn is_sound(&self, id: SegmentId) -> bool {
        self.entries.get(&id).is_none_or(|entry| {
            let group = &self.groups[&entry.segment.group];
            !entry.segment.slots.iter().any(|slot| group.is_bad(slot.get()))
        })
    }

    /// Bytes of incompressible records of `record` bytes that open segments of a group have room for, by copy.
    fn open_rooms(&self, group: &GroupSpace, record: u32) -> [u64; MAX_PLACES] {
        let mut rooms = [0; MAX_PLACES];
        for ((kind, _, copy, at), id) in &self.streams {
            if (*kind, *at) == (SegmentKind::Data, group.index)
                && let Some(room) = rooms.get_mut(usize::from(*copy))
            {
                let entry = &self.entries[id];
                *room +=
                    group.writable(entry.segment.layout, u64::from(group.slot_size - entry.height), record);
            }
        }
        rooms
    }

    /// Bytes of incompressible records of `record` bytes that open segments of a group have room for, in all places of
    /// records that have so many: as many times as the one that has least for its segments.
    fn open_room(&self, group: &GroupSpace, record: u32, copies: u8) -> u64 {
        let rooms = self.open_rooms(group, record).into_iter().take(copies.into());
        rooms.min().unwrap_or(0) * u64::from(copies)
    }

    /// Bytes of incompressible records of `record` bytes, in all of so many places, that a group has room for with so
    /// many free `columns`, when the `dead` bytes were won back.
    pub(crate) fn room_of(
        &self,
        group: &GroupSpace,
        columns: u64,
        dead: u64,
        (record, copies): (u32, u8),
    ) -> u64 {
        group.available(columns, dead, record) + self.open_room(group, record, copies)
    }

    /// Bytes of incompressible records of `record` bytes, in all of so many places, that can be stored before each
    /// group is down to `mark`.
    pub fn storable(&self, record: u32, copies: u8, mark: Watermark) -> u64 {
        let room =
            |group: &GroupSpace| self.room_of(group, group.free_above(mark).columns, 0, (record, copies));
        self.record_groups().map(room).sum()
    }

    /// The same of one place more, by the copy that it is of: each as if all free segments were to be its.
    pub fn storable_by_copy(&self, record: u32, mark: Watermark) -> [u64; MAX_PLACES] {
        let mut storable = [0; MAX_PLACES];
        for group in self.record_groups() {
            let free = group.available(group.free_above(mark).columns, 0, record);
            let open = self.open_rooms(group, record);
            storable.iter_mut().zip(open).for_each(|(sum, open)| *sum += free + open);
        }
        storable
    }

    /// Room for records that nodes of `bytes` take, bytes: they lie as copies on as many devices as a layout
    /// survives losses of, and one.
    pub fn footprint_of_nodes(&self, bytes: u64) -> u64 {
        let worst = self
            .staying_groups()
            .map(|group| group.rule.layout)
            .map(|layout| (layout.quorum() * layout.k()).div_ceil(layout.columns()) as u64);
        bytes * worst.max().unwrap_or(1)
    }

    /// Bytes of nodes that commits can store, whatever of the reserve is used already.
    pub fn room_for_nodes(&self) -> u64 {
        self.staying_groups().map(|group| group.room_for_nodes(Watermark::Changes)).sum()
    }

    /// A block's bytes are not live any more.
    pub fn release(&mut self, place: Place) {
        self.release_many(place.segment, 1, u64::from(place.footprint()));
    }

    /// As [`Core::release`], for `blocks` blocks of `bytes` together. What the tables do not count cannot be freed.
    pub fn release_many(&mut self, segment: SegmentId, blocks: u32, bytes: u64) {
        let dead = self.entries.change(segment, |entry| {
            let blocks = entry.live_blocks.checked_sub(blocks);
            let (blocks, bytes) = blocks.zip(entry.live_bytes.checked_sub(bytes))?;
            (entry.live_blocks, entry.live_bytes, entry.dirty) = (blocks, bytes, true);
            Some(blocks == 0 && entry.is_complete())
        });
        if dead == Some(None) {
            self.miscounted.get_or_insert(segment);
        }
        if mutated(Mutant::EarlyReuse) && dead == Some(Some(true)) {
            self.give_slots_back(segment);
            self.gone.push(segment);
        }
    }

    /// Blocks of `segment` are live.
    pub fn count_live(&mut self, segment: SegmentId, blocks: u32, bytes: u64) {
        let counted = self.entries.change(segment, |entry| {
            let sums = entry.live_bytes.checked_add(bytes).zip(entry.placed.checked_add(bytes));
            let (blocks, sums) = entry.live_blocks.checked_add(blocks).zip(sums)?;
            (entry.live_blocks, (entry.live_bytes, entry.placed), entry.dirty) = (blocks, sums, true);
            Some(())
        });
        if counted.expect("what was written has a segment").is_none() {
            self.miscounted.get_or_insert(segment);
        }
    }

    /// Frees closed segments without live blocks, as of `commit`; those the root names, or the others.
    /// Output of an unfinished merge counts as live, though nothing names it yet.
    pub fn free_dead_segments(&mut self, commit: CommitId, rooted: bool, unfinished: &[SegmentId]) {
        let is_dead = |entry: &&SegmentEntry| {
            entry.segment.kind.is_rooted() == rooted && !unfinished.contains(&entry.segment.id)
        };
        let dead = self.entries.listed(Listed::Empty).filter(is_dead).map(|entry| entry.segment.id);
        let dead: Vec<_> = dead.collect();
        for id in dead {
            self.entries.change(id, |entry| {
                entry.state = SegmentState::Freed;
                entry.freed = commit;
                entry.dirty = true;
            });
        }
    }

    /// Gives back the slots of segments freed two commits before `durable` that nobody reads, nor may come to: those
    /// freed before the commit that left a look `behind`.
    pub fn reap_segments(&mut self, readable: &Readable, durable: CommitId, behind: Option<CommitId>) {
        let ripe = |entry: &&SegmentEntry| {
            entry.freed.get() + 2 <= durable.get() && behind.is_none_or(|behind| entry.freed < behind)
        };
        let ripe = self.entries.listed(Listed::Freed).filter(ripe).map(|entry| entry.segment.id);
        for id in ripe.collect::<Vec<_>>() {
            readable.remove(id);
            if Arc::strong_count(&self.entries[&id].segment) > 1 {
                self.entries.change(id, |entry| entry.held = true);
                continue;
            }
            if !self.give_slots_back(id).segment.kind.is_rooted() {
                self.gone.push(id);
            }
        }
    }

    /// Segments that only wait for who reads them.
    pub fn held_segments(&self) -> u64 {
        self.groups.keys().map(|&group| self.entries.dead(group).held).sum()
    }

    /// A segment goes; its slots are free.
    pub fn give_slots_back(&mut self, id: SegmentId) -> SegmentEntry {
        let entry = self.entries.remove(id).expect("it was just found");
        let space = self.groups.change(entry.segment.group).expect("its group exists");
        entry.segment.slots.iter().for_each(|slot| space.give_back(slot.get()));
        entry
    }

    /// Whether so few segments are free that each write should pay.
    pub fn is_tight(&self) -> bool {
        self.record_groups().any(|group| group.free_segments() < group.tight())
    }

    /// Segments that are free as soon as enough commits are durable.
    pub fn waiting_to_be_free(&self) -> bool {
        self.record_groups().any(|group| self.entries.dead(group.index).waiting_slots > 0)
    }

    /// Whether a block may be an alias of another.
    pub fn has_aliases(&self) -> bool {
        self.features.incompatible & Features::ALIASES != 0
    }

    /// Whether a block may have more than one place.
    pub fn has_copies(&self) -> bool {
        self.features.incompatible & Features::COPIES != 0
    }
}
