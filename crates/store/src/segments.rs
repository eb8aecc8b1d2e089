//! Segments in memory: who reads them, what is on its way to them, and what of them is alive.
//!
//! A reader holds an `Arc<Segment>`: as long as it does, the segment's slots are not given to another
//! segment. Stripes that were submitted but are not yet confirmed are served from memory.

use crate::room::Room;
use crate::victims::{Rank, Victims};
use larder_device::AlignedBuf;
use larder_format::segment::{DESCRIPTOR_LEN, Layout, SegmentKind, SegmentRecord, SegmentState, Slot};
use larder_format::{BlockId, CommitId, DeviceIndex, GroupIndex, Incarnation, SegmentId, SlotIndex};
use larder_sync::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where a column lies. The device never changes; the slot does when it refuses a write ([`crate::bad_slots`]).
pub struct ColumnSlot {
    /// The device.
    pub device: DeviceIndex,
    index: AtomicU32,
}

impl ColumnSlot {
    fn new(slot: Slot) -> Self {
        Self { device: slot.device, index: AtomicU32::new(slot.index.get()) }
    }

    /// The slot on it.
    pub fn index(&self) -> SlotIndex {
        SlotIndex::new(self.index.load(Ordering::Acquire))
    }

    /// Both.
    pub fn get(&self) -> Slot {
        Slot { device: self.device, index: self.index() }
    }

    /// The column lies in another slot from now on.
    pub fn set(&self, index: SlotIndex) {
        self.index.store(index.get(), Ordering::Release);
    }
}

/// The immutable part of a segment, but for the slots of its columns.
pub struct Segment {
    /// Its id.
    pub id: SegmentId,
    /// Kind of its contents.
    pub kind: SegmentKind,
    /// The group it lies on.
    pub group: GroupIndex,
    /// Its layout.
    pub layout: Layout,
    /// One slot a column.
    pub slots: Vec<ColumnSlot>,
    /// The commit that opened it.
    pub birth: CommitId,
    /// The import under which it was opened.
    pub incarnation: Incarnation,
    /// Lifetime class of its contents; see [`crate::heat`].
    pub class: u8,
    /// Which place of its blocks is here: 0 for the first.
    pub copy: u8,
    in_flight: Mutex<Vec<Arc<StripeImage>>>,
    /// Odd while a column is brought to another slot.
    moves: AtomicU64,
}

/// A stripe's columns in memory while they are written.
pub struct StripeImage {
    /// Bytes from the start of the slot.
    pub offset: u32,
    /// One buffer a column.
    pub columns: Vec<Arc<AlignedBuf>>,
}

impl StripeImage {
    fn part(&self, column: usize, offset: u32, len: usize) -> Option<&[u8]> {
        let start = offset.checked_sub(self.offset)? as usize;
        self.columns[column].get(start..start + len)
    }
}

impl Segment {
    /// The record that its descriptors hold: as it was when it was opened.
    pub fn as_opened(&self) -> SegmentRecord {
        SegmentRecord {
            id: self.id,
            kind: self.kind,
            state: SegmentState::Open,
            group: self.group,
            layout: self.layout,
            height: DESCRIPTOR_LEN,
            live_blocks: 0,
            live_bytes: 0,
            birth: self.birth,
            freed: CommitId::new(0),
            incarnation: self.incarnation,
            placed: 0,
            closed_at: BlockId::new(0),
            class: self.class,
            copy: self.copy,
            unnamed: false,
            filled: self.birth,
            verified: 0,
            slots: self.slots(),
        }
    }

    /// The devices that have data column `column`.
    pub fn devices_of(&self, column: usize) -> impl Iterator<Item = DeviceIndex> {
        (0..self.layout.r()).map(move |j| self.slots[self.layout.replica(column, j)].device)
    }

    /// The slots as they are now.
    pub fn slots(&self) -> Vec<Slot> {
        self.slots.iter().map(ColumnSlot::get).collect()
    }

    /// Changes when a column begins to be brought to another slot and when it lies there: what was written to columns
    /// between two readings is where it belongs if both are the same even number.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// A column is about to be copied to another slot.
    pub fn begin_move(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// It lies there, or stays where it was.
    pub fn end_move(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes a stripe that is being written.
    pub fn submit(&self, stripe: Arc<StripeImage>) {
        self.in_flight.lock().push(stripe);
    }

    /// Forgets a stripe that has been written.
    pub fn complete(&self, stripe: &Arc<StripeImage>) {
        self.in_flight.lock().retain(|other| !Arc::ptr_eq(other, stripe));
    }

    /// Bytes of a data column that are still on their way, when the whole range is.
    pub fn peek(&self, column: usize, offset: u32, len: usize) -> Option<Vec<u8>> {
        let stripes = self.in_flight.lock();
        stripes.iter().find_map(|stripe| stripe.part(column, offset, len).map(<[u8]>::to_vec))
    }

    /// Whether [`Segment::peek`] would have them.
    pub fn is_in_flight(&self, column: usize, offset: u32, len: usize) -> bool {
        self.in_flight.lock().iter().any(|stripe| stripe.part(column, offset, len).is_some())
    }
}

/// A segment with what changes of it.
pub struct SegmentEntry {
    /// The immutable part.
    pub segment: Arc<Segment>,
    /// Its state.
    pub state: SegmentState,
    /// Bytes of every column that hold descriptor and stripes.
    pub height: u32,
    /// Blocks not freed.
    pub live_blocks: u32,
    /// Their footprints.
    pub live_bytes: u64,
    /// Footprints of all blocks that were put into it.
    pub placed: u64,
    /// The next block id when it was closed.
    pub closed_at: BlockId,
    /// The commit that freed it.
    pub freed: CommitId,
    /// The commit of its last stripe; not kept for the log.
    pub filled: CommitId,
    /// When all of it was read and found sound, or made so: seconds since 1970; 0 never.
    pub verified: u64,
    /// Something of it is lost, and not all files that this belongs to are in the damage ledger yet.
    pub unnamed: bool,
    /// Changed since it was last written to the tables.
    pub dirty: bool,
    /// It holds a block that cannot be read, or be found, or that the map cannot tell of: the cleaner leaves it alone
    /// until it is reconstructed, or the next import.
    pub damaged: bool,
    /// The runs that have pages in it are being written anew elsewhere.
    pub leaving: bool,
    /// Its slots could be given back, but somebody reads it: no commit brings them.
    pub held: bool,
}

/// Of what was put into a segment, at least this part must be dead before moving the rest is worth it: a
/// byte won costs at most 63 moved.
const WORTHWHILE: u64 = 64;

impl SegmentEntry {
    /// The entry that a record tells of.
    pub fn from_record(record: &SegmentRecord) -> Self {
        Self {
            segment: Arc::new(Segment {
                id: record.id,
                kind: record.kind,
                group: record.group,
                layout: record.layout,
                slots: record.slots.iter().copied().map(ColumnSlot::new).collect(),
                birth: record.birth,
                incarnation: record.incarnation,
                class: record.class,
                copy: record.copy,
                in_flight: Mutex::new(Vec::new()),
                moves: AtomicU64::new(0),
            }),
            state: record.state,
            height: record.height,
            live_blocks: record.live_blocks,
            live_bytes: record.live_bytes,
            placed: record.placed,
            closed_at: record.closed_at,
            freed: record.freed,
            filled: record.filled,
            verified: record.verified,
            unnamed: record.unnamed,
            dirty: false,
            damaged: false,
            leaving: false,
            held: false,
        }
    }

    /// The record for the tables or the root.
    pub fn to_record(&self) -> SegmentRecord {
        SegmentRecord {
            id: self.segment.id,
            kind: self.segment.kind,
            state: self.state,
            group: self.segment.group,
            layout: self.segment.layout,
            height: self.height,
            live_blocks: self.live_blocks,
            live_bytes: self.live_bytes,
            birth: self.segment.birth,
            freed: self.freed,
            incarnation: self.segment.incarnation,
            placed: self.placed,
            closed_at: self.closed_at,
            class: self.segment.class,
            copy: self.segment.copy,
            unnamed: self.unnamed,
            filled: self.filled,
            verified: self.verified,
            slots: self.segment.slots(),
        }
    }

    /// Whether it gets no more stripes and is not freed.
    pub fn is_complete(&self) -> bool {
        matches!(self.state, SegmentState::Closed | SegmentState::Emptying)
    }

    /// Whether its blocks can be moved: those that the block map places.
    pub fn is_movable(&self) -> bool {
        matches!(self.segment.kind, SegmentKind::Data | SegmentKind::Small | SegmentKind::Node)
    }

    /// Footprints of its dead blocks.
    pub fn dead_bytes(&self) -> u64 {
        self.placed - self.live_bytes
    }

    /// Whether moving what lives in it wins enough.
    pub fn is_worth_cleaning(&self) -> bool {
        self.is_complete()
            && self.is_movable()
            && !self.damaged
            && self.live_blocks > 0
            && self.dead_bytes() * WORTHWHILE >= self.placed
    }

    /// The part of its [`crate::heat::worth`] that time does not change.
    pub fn benefit(&self) -> f64 {
        let used = self.live_bytes as f64 / self.placed.max(1) as f64;
        (1.0 - used) / (used + 0.1)
    }

    /// Its place among those that are worth cleaning.
    fn rank(&self) -> Option<Rank> {
        let stream = (self.segment.kind as u8, self.segment.class, self.segment.copy);
        self.is_worth_cleaning().then(|| Rank::new(self.benefit(), stream))
    }

    /// Of a segment of runs, what is dead, when that is most of it.
    pub fn thin(&self) -> Option<u64> {
        let held = u64::from(self.height) * self.segment.layout.k() as u64;
        let thin = self.segment.kind == SegmentKind::Run
            && self.is_complete()
            && self.live_blocks > 0
            && 2 * self.live_bytes <= held;
        thin.then(|| held - self.live_bytes)
    }

    /// Space in it that commits alone or the cleaner will bring back.
    fn dead(&self) -> Dead {
        let (slots, columns) = (self.segment.slots.len() as u64, self.segment.layout.k() as u64);
        let is_data = self.segment.kind == SegmentKind::Data;
        if self.held {
            Dead { held: 1, ..Dead::default() }
        } else if self.state == SegmentState::Freed
            || (self.is_complete() && self.is_movable() && self.live_blocks == 0)
        {
            let of_data = if is_data { (slots, columns) } else { (0, 0) };
            Dead { waiting_slots: slots, waiting_of_data: of_data, ..Dead::default() }
        } else {
            let cleaned = if self.is_worth_cleaning() { Some(self.dead_bytes()) } else { None };
            let bytes = cleaned.or_else(|| self.thin().filter(|_| self.leaving)).unwrap_or(0);
            match is_data {
                true => Dead { data_bytes: bytes, ..Dead::default() },
                false => Dead { bytes: bytes * slots / columns, ..Dead::default() },
            }
        }
    }

    /// Records that live in it.
    fn records(&self) -> u64 {
        let holds_records = matches!(self.segment.kind, SegmentKind::Data | SegmentKind::Small);
        if holds_records { u64::from(self.live_blocks) } else { 0 }
    }
}

/// Space in segments that is used for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dead {
    /// Slots of segments in which nothing lives: they are free some commits later.
    pub waiting_slots: u64,
    /// Those of data among them, and data columns of these: narrow segments have fewer for their slots.
    waiting_of_data: (u64, u64),
    /// Bytes over all columns of dead blocks in segments of copies worth cleaning, and in those that runs are leaving.
    bytes: u64,
    /// Bytes of dead blocks in segments of data worth cleaning.
    data_bytes: u64,
    /// Segments that would be free if nobody read them.
    pub held: u64,
}

impl Dead {
    /// Bytes of data columns, in a group of this layout, that cleaning brings back.
    pub fn bytes_in(&self, layout: Layout) -> u64 {
        self.data_bytes + self.bytes / layout.columns() as u64 * layout.k() as u64
    }

    /// Room that is free some commits later, in a group of this layout.
    pub fn waiting_in(&self, layout: Layout) -> Room {
        let (slots, columns) = self.waiting_of_data;
        let copies = (self.waiting_slots - slots) / layout.columns() as u64;
        let k = layout.k() as u64;
        // Where all are of full width, slots of both kinds together make more.
        let columns = match slots * k == columns * layout.columns() as u64 {
            true => self.waiting_slots / layout.columns() as u64 * k,
            false => copies * k + columns,
        };
        Room { segments: columns / k, columns }
    }
}

/// Slots of a group by use, and what lives in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Slots of segments of records, and footprints of what lives there.
    pub data: (u64, u64),
    /// The same of everything else.
    pub metadata: (u64, u64),
    /// Slots of segments that were freed.
    pub freed: u64,
    /// Bytes over all columns of dead blocks in closed segments.
    pub dead: u64,
    /// Blocks that live in segments that the block map places blocks in.
    pub blocks: u64,
    /// Records that live.
    pub records: u64,
}

/// Everything that a segment adds to the sums of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sums {
    dead: Dead,
    usage: Usage,
}

impl Sums {
    fn of(entry: &SegmentEntry) -> Self {
        let (slots, layout) = (entry.segment.slots.len() as u64, entry.segment.layout);
        let is_of_records = matches!(entry.segment.kind, SegmentKind::Data | SegmentKind::Small);
        let mut usage = Usage { records: entry.records(), ..Usage::default() };
        let part = if is_of_records { &mut usage.data } else { &mut usage.metadata };
        part.1 = entry.live_bytes;
        match entry.state {
            SegmentState::Freed => usage.freed = slots,
            _ => part.0 = slots,
        }
        if entry.is_movable() {
            usage.blocks = u64::from(entry.live_blocks);
        }
        if entry.state == SegmentState::Closed {
            let held = u64::from(entry.height) * layout.k() as u64;
            let dead = held.saturating_sub(entry.live_bytes);
            usage.dead = dead * layout.columns() as u64 / layout.k() as u64;
        }
        Self { dead: entry.dead(), usage }
    }

    fn numbers(&mut self) -> [&mut u64; 14] {
        let Self { dead, usage } = self;
        [
            &mut dead.waiting_slots,
            &mut dead.waiting_of_data.0,
            &mut dead.waiting_of_data.1,
            &mut dead.bytes,
            &mut dead.data_bytes,
            &mut dead.held,
            &mut usage.data.0,
            &mut usage.data.1,
            &mut usage.metadata.0,
            &mut usage.metadata.1,
            &mut usage.freed,
            &mut usage.dead,
            &mut usage.blocks,
            &mut usage.records,
        ]
    }

    fn add(&mut self, mut other: Self) {
        self.numbers().into_iter().zip(other.numbers()).for_each(|(sum, part)| *sum += *part);
    }

    fn take(&mut self, mut other: Self) {
        self.numbers().into_iter().zip(other.numbers()).for_each(|(sum, part)| *sum -= *part);
    }
}

/// Properties by which segments are listed: who needs all that have one looks at no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listed {
    /// Changed since it was last written to the tables.
    Dirty,
    /// Gets no more stripes, and nothing lives in it; not freed yet.
    Empty,
    /// Freed, and its slots are not given back yet.
    Freed,
    /// Something of it is lost, and not all that this belongs to is named.
    Unnamed,
    /// It has pages of runs.
    Run,
    /// It has nodes of the tables.
    Table,
    /// It has a part of the intent log.
    Log,
}

impl Listed {
    const ALL: [Self; 7] =
        [Self::Dirty, Self::Empty, Self::Freed, Self::Unnamed, Self::Run, Self::Table, Self::Log];

    fn has(self, entry: &SegmentEntry) -> bool {
        match self {
            Self::Dirty => entry.dirty,
            Self::Empty => entry.is_complete() && entry.live_blocks == 0,
            Self::Freed => entry.state == SegmentState::Freed,
            Self::Unnamed => entry.unnamed,
            Self::Run => entry.segment.kind == SegmentKind::Run,
            Self::Table => entry.segment.kind == SegmentKind::Table,
            Self::Log => entry.segment.kind == SegmentKind::Log,
        }
    }
}

/// All that is kept up to date about a segment besides itself.
#[derive(PartialEq, Clone, Copy)]
struct Standing {
    sums: Sums,
    lists: [bool; Listed::ALL.len()],
    victim: Option<Rank>,
}

impl Standing {
    fn of(entry: &SegmentEntry) -> Self {
        let lists = Listed::ALL.map(|list| list.has(entry));
        Self { sums: Sums::of(entry), lists, victim: entry.rank() }
    }
}

/// All segments, in the order of their ids, and sums and lists of them that are kept up to date: nobody has to look at
/// all of them for what is done often.
#[derive(Default)]
pub struct Segments {
    entries: BTreeMap<SegmentId, SegmentEntry>,
    sums: BTreeMap<GroupIndex, Sums>,
    lists: [BTreeSet<SegmentId>; Listed::ALL.len()],
    victims: Victims,
}

impl std::ops::Deref for Segments {
    type Target = BTreeMap<SegmentId, SegmentEntry>;
    fn deref(&self) -> &Self::Target {
        &self.entries
    }
}

impl Segments {
    fn keep_up(&mut self, id: SegmentId, group: GroupIndex, old: Option<Standing>, new: Option<Standing>) {
        if old == new {
            return;
        }
        let sums = self.sums.entry(group).or_default();
        old.into_iter().for_each(|old| sums.take(old.sums));
        new.into_iter().for_each(|new| sums.add(new.sums));
        for (at, list) in self.lists.iter_mut().enumerate() {
            match (old.is_some_and(|old| old.lists[at]), new.is_some_and(|new| new.lists[at])) {
                (false, true) => drop(list.insert(id)),
                (true, false) => drop(list.remove(&id)),
                _ => {}
            }
        }
        let (old, new) = (old.and_then(|old| old.victim), new.and_then(|new| new.victim));
        if old != new {
            let closed_at = |id| self.entries.get(&id).map_or(BlockId::new(0), |entry| entry.closed_at);
            old.into_iter().for_each(|rank| self.victims.remove(group, rank, id, closed_at));
            new.into_iter().for_each(|rank| self.victims.insert(group, rank, id, closed_at));
        }
    }

    /// Adds a segment.
    pub fn insert(&mut self, entry: SegmentEntry) {
        let (id, group, standing) = (entry.segment.id, entry.segment.group, Standing::of(&entry));
        self.remove(id);
        self.entries.insert(id, entry);
        self.keep_up(id, group, None, Some(standing));
    }

    /// Takes a segment out.
    pub fn remove(&mut self, id: SegmentId) -> Option<SegmentEntry> {
        let entry = self.entries.remove(&id)?;
        self.keep_up(id, entry.segment.group, Some(Standing::of(&entry)), None);
        Some(entry)
    }

    /// Takes no more memory than it has to, after many were added: nodes that were filled one by one are half empty.
    pub fn pack(&mut self) {
        self.entries = std::mem::take(&mut self.entries).into_iter().collect();
        self.victims.pack();
    }

    /// Changes a segment, if it is there.
    pub fn change<T>(&mut self, id: SegmentId, change: impl FnOnce(&mut SegmentEntry) -> T) -> Option<T> {
        let entry = self.entries.get_mut(&id)?;
        let (group, old) = (entry.segment.group, Standing::of(entry));
        let result = change(entry);
        let new = Standing::of(entry);
        self.keep_up(id, group, Some(old), Some(new));
        Some(result)
    }

    fn sums(&self, group: GroupIndex) -> Sums {
        self.sums.get(&group).copied().unwrap_or_default()
    }

    /// Unused space of a group.
    pub fn dead(&self, group: GroupIndex) -> Dead {
        self.sums(group).dead
    }

    /// Usage of a group.
    pub fn usage(&self, group: GroupIndex) -> Usage {
        self.sums(group).usage
    }

    /// Usage of all groups together.
    pub fn usages(&self) -> impl Iterator<Item = Usage> + '_ {
        self.sums.values().map(|sums| sums.usage)
    }

    /// Records that live in the store.
    pub fn records(&self) -> u64 {
        self.usages().map(|usage| usage.records).sum()
    }

    /// Those of a list, in the order of their ids.
    pub fn listed(&self, list: Listed) -> impl Iterator<Item = &SegmentEntry> + '_ {
        self.lists[list as usize].iter().map(|id| &self.entries[id])
    }

    /// Their ids.
    pub fn ids(&self, list: Listed) -> &BTreeSet<SegmentId> {
        &self.lists[list as usize]
    }

    /// Segments of a group that are worth cleaning, by how much.
    pub(crate) fn victims(&self) -> &Victims {
        &self.victims
    }

    /// Those that `wanted` picks, of all.
    pub fn select(&self, wanted: impl Fn(&SegmentEntry) -> bool) -> Vec<SegmentId> {
        self.entries.values().filter(|entry| wanted(entry)).map(|entry| entry.segment.id).collect()
    }

    /// Whether sums and lists are what a look at all segments gives: for debug builds and tests.
    pub fn is_kept_up(&self) -> bool {
        let (mut sums, mut victims) = (BTreeMap::<GroupIndex, Sums>::new(), BTreeSet::new());
        for (&id, entry) in &self.entries {
            let standing = Standing::of(entry);
            sums.entry(entry.segment.group).or_default().add(standing.sums);
            victims.extend(standing.victim.map(|rank| (entry.segment.group, rank, id)));
        }
        self.sums
            .keys()
            .chain(sums.keys())
            .all(|&group| self.sums(group) == sums.get(&group).copied().unwrap_or_default())
            && Listed::ALL.iter().all(|list| {
                let all = self.entries.values().filter(|entry| list.has(entry)).map(|entry| entry.segment.id);
                all.eq(self.ids(*list).iter().copied())
            })
            && self.victims.all().collect::<BTreeSet<_>>() == victims
    }
}

/// The segments that readers may use; the entries behind are under the core's lock.
#[derive(Default)]
pub struct Readable(RwLock<HashMap<SegmentId, Arc<Segment>>>);

impl Readable {
    /// The segment, pinned, when it is alive.
    pub fn get(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.0.read().get(&id).cloned()
    }
    /// Lets readers see a segment.
    pub fn insert(&self, segment: &Arc<Segment>) {
        self.0.write().insert(segment.id, Arc::clone(segment));
    }
    /// Hides a segment from new readers.
    pub fn remove(&self, id: SegmentId) {
        self.0.write().remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::DeviceIndex;
    use larder_format::SlotIndex;

    /// As docs/engine.md has it, "Memory beside the shares", bytes.
    const A_SEGMENT: u64 = 250;
    const A_COLUMN: u64 = 8;

    /// Bytes that tables of `count` segments take, as import makes them.
    fn measured(count: u64, layout: Layout) -> u64 {
        let record = |id: u64| SegmentRecord {
            id: SegmentId::new(id),
            kind: SegmentKind::Data,
            state: SegmentState::Closed,
            group: GroupIndex::new(0),
            layout,
            height: 64 << 20,
            live_blocks: 500,
            live_bytes: 60 << 20,
            birth: CommitId::new(id),
            freed: CommitId::new(0),
            incarnation: Incarnation::new(1),
            placed: 63 << 20,
            closed_at: BlockId::new(id * 512),
            class: 3,
            copy: 0,
            unnamed: false,
            filled: CommitId::new(id),
            verified: 0,
            slots: (0..layout.columns() as u16)
                .map(|device| Slot { device: DeviceIndex::new(device), index: SlotIndex::new(id as u32) })
                .collect(),
        };
        let (mut segments, readable) = (Segments::default(), Readable::default());
        let info = allocation_counter::measure(|| {
            for id in 0..count {
                let entry = SegmentEntry::from_record(&record(id));
                readable.insert(&entry.segment);
                segments.insert(entry);
            }
            segments.pack();
        });
        assert_eq!(segments.len() as u64, count);
        info.bytes_current.try_into().unwrap()
    }

    #[test]
    fn a_segment_takes_the_memory_that_is_documented() {
        for (k, r, m) in [(1, 1, 0), (8, 1, 2)] {
            let layout = Layout::new(k, r, m).unwrap();
            let stated = A_SEGMENT + A_COLUMN * layout.columns() as u64;
            // Slots of 64 MiB in 1 and in 10 TiB.
            for count in [16 << 10, 160 << 10] {
                let each = measured(count, layout) / count;
                println!("{count} segments of {} columns: {each} B each", layout.columns());
                assert!((stated * 9 / 10..=stated).contains(&each), "{each} B, {stated} are documented");
            }
        }
    }
}
