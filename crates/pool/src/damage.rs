//! The damage ledger: what can neither be read nor rebuilt, by the files that it belongs to.
//!
//! # Where entries come from
//! A read that fails tells at once: the layer above knows file and range ([`Pool::note_unreadable`]), the tree knows
//! the node ([`Pool::note_lost_node`]). What a scrub or a collection finds lost has no name: ranges of columns and ids
//! of blocks wait until [`Pool::name_lost_step`] has gone through all datasets and snapshots, leaf by leaf, and has
//! read what lies there. A node that is lost takes with it objects of which nothing is known but that directories
//! name them; so a second pass looks at names for inodes within such nodes.
//!
//! # How they go
//! An entry is *doubtful* when it is new, and when the block that it names was dropped by the dataset's head; then it
//! is looked up, and goes when the file does not name that block any more. The walk looks at all entries at its end,
//! and reads what they name: what can be read again goes, too. What belongs to a snapshot or dataset goes with it.
//!
//! # Bounds
//! [`ENTRIES_AT_MOST`] entries are kept, all of them in memory and, with the next commit, in the table `Damage`; beyond
//! that they are counted. The walk keeps a key and what it looks for. A crash forgets that, but segments of which
//! something is lost are marked in the table, no later than that whoever found it has got past them, until what the
//! walk came to is durable: import has it look at all that lies in them. Reads find again what they found.
//!
//! # Locks
//! The ledger's is a last one, after the core's: nothing is read under it. The walk's is taken before everything but
//! GC.

use crate::dataset::Look;
use crate::pool::Pool;
use crate::reconstruct::Lost;
use larder_format::block::BlockKind;
use larder_format::items::{self, ENTRY, EXTENT, Entry, Extent, FileKind, INODE};
use larder_format::ledger::{DamageKind, DamageRecord};
use larder_format::node::{Key, Leaf, Node};
use larder_format::segment::SegmentRecord;
use larder_format::tables::Table;
use larder_format::{BlockId, BlockPtr, DatasetId, Place, SegmentId};
use larder_sorted::tree::{LostNode, Met, NodeStore, Tree};
use larder_store::decode::decode_node;
use larder_store::error::{PoolError, Result};
use larder_store::read::{DatasetNodes, TableNodes};
use larder_store::{Class, Event};
use larder_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries that are kept.
pub const ENTRIES_AT_MOST: usize = 4096;
/// Lost ranges and blocks that are looked for one by one; with more, whole columns are.
const LOST_AT_MOST: usize = 64 << 10;
/// Blocks that the walk keeps before it reads them, about.
const SUSPECTS: usize = 1024;
/// Entries that a commit writes.
const PER_COMMIT: usize = 512;

/// The head of a dataset, where a snapshot has its highest block id.
pub const HEAD: BlockId = BlockId::new(0);

/// Identity of an entry.
type Name = (DatasetId, BlockId, u64, DamageKind, u64, BlockId);

fn name(of: &DamageRecord) -> Name {
    // A node is one however its range is known; an object has one entry for each node that it lost.
    let offset = if of.what() == DamageKind::Data { of.offset } else { 0 };
    let inode = if of.what() == DamageKind::Node { 0 } else { of.inode };
    (of.dataset, of.snapshot, inode, of.what(), offset, of.block)
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Damage {
    /// Entries, so that whoever writes need not take the lock where there are none.
    count: AtomicU64,
    ledger: Mutex<Ledger>,
    walk: Mutex<Option<DamageWalk>>,
}

#[derive(Default)]
struct Ledger {
    entries: BTreeMap<Name, (u64, DamageRecord)>,
    next: u64,
    /// Findings that found no room.
    beyond: u64,
    /// Entries that the tables do not have as they are.
    changed: BTreeSet<Name>,
    /// Numbers that the tables have and should not.
    removed: BTreeSet<u64>,
    beyond_changed: bool,
    doubtful: BTreeSet<Name>,
    wanted: Wanted,
    /// Segments that the walk has named all of, still marked.
    named: BTreeSet<SegmentId>,
}

/// Targets of the walk.
#[derive(Default)]
struct Wanted {
    ranges: BTreeMap<(SegmentId, u8), Vec<Range<u32>>>,
    count: usize,
    blocks: BTreeSet<BlockId>,
    /// Trees with lost nodes, or of which it is not known where they are lost.
    trees: BTreeSet<(DatasetId, BlockId)>,
    /// All entries are to be looked at again.
    again: bool,
}

impl Wanted {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.blocks.is_empty() && self.trees.is_empty() && !self.again
    }

    fn add(&mut self, lost: Lost) {
        let ranges = self.ranges.entry((lost.segment, lost.column)).or_default();
        if let Some(last) = ranges.last_mut().filter(|last| last.end == lost.range.start) {
            last.end = lost.range.end;
        } else if self.count < LOST_AT_MOST || ranges.is_empty() {
            ranges.push(lost.range);
            self.count += 1;
        } else {
            let last = ranges.last_mut().expect("it is not empty");
            *last = last.start.min(lost.range.start)..last.end.max(lost.range.end);
        }
    }

    /// Whether the walk has to look at what lies there.
    fn meets(&self, id: BlockId, place: Place) -> bool {
        let within = |ranges: &Vec<Range<u32>>| {
            ranges.iter().any(|lost| lost.start < place.offset + place.stored && place.offset < lost.end)
        };
        self.blocks.contains(&id) || self.ranges.get(&(place.segment, place.column)).is_some_and(within)
    }
}

/// Position of the walk.
struct DamageWalk {
    wanted: Wanted,
    /// What is to be read before it goes on, and the entry that each is if it cannot be.
    suspects: Vec<(DamageRecord, BlockPtr)>,
    /// Trees to be gone through, the current one last.
    trees: Vec<(DatasetId, BlockId)>,
    at: Key,
    stage: WalkStage,
}

enum WalkStage {
    /// Leaves and extents.
    Blocks,
    /// Names of inodes in lost nodes, in the trees that have some.
    Names,
    /// Entries, after this one.
    Entries(Option<Name>),
}

impl Ledger {
    fn add(&mut self, found: DamageRecord) -> bool {
        let name = name(&found);
        if let Some((_, known)) = self.entries.get_mut(&name) {
            let found = DamageRecord { found: known.found, ..found };
            if *known != found {
                *known = found;
                self.changed.insert(name);
            }
            return false;
        }
        if self.entries.len() >= ENTRIES_AT_MOST {
            self.beyond += 1;
            self.beyond_changed = true;
            return false;
        }
        self.next = self.next.max(1);
        self.entries.insert(name, (self.next, found));
        self.next += 1;
        self.changed.insert(name);
        // Who found it may have looked at a tree of before the block was dropped.
        self.doubtful.insert(name);
        true
    }

    fn remove(&mut self, name: &Name) {
        self.doubtful.remove(name);
        self.changed.remove(name);
        if let Some((number, _)) = self.entries.remove(name) {
            self.removed.insert(number);
        }
    }
}

/// State of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryStanding {
    /// It is as it says, unless this block can be read.
    Damaged(Option<(BlockPtr, BlockKind)>),
    /// Nothing names that block there any more.
    Over,
}

/// Nodes; those that may be lost past the cache.
struct Suspicious<'a> {
    pool: &'a Pool,
    wanted: &'a Wanted,
}

impl NodeStore for Suspicious<'_> {
    type Error = PoolError;
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>> {
        let suspect = self.pool.place_of(ptr).is_ok_and(|place| self.wanted.meets(ptr.id, place));
        if !suspect {
            return DatasetNodes(&self.pool.store).load(ptr);
        }
        let (header, plain) = self.pool.store.read_plain(ptr, BlockKind::Node)?;
        decode_node(&header, &plain)
    }
}

impl Pool {
    /// Keeps what was found, with the time; what is known already is brought up to date. Whether it is new.
    fn note_damage(&self, found: DamageRecord) -> bool {
        let found = DamageRecord { found: self.store.world.clock.now(), ..found };
        let mut ledger = self.damage.ledger.lock();
        let new = ledger.add(found);
        self.damage.count.store(ledger.entries.len() as u64, Ordering::Release);
        drop(ledger);
        if new {
            let text = match found.what() {
                DamageKind::Data => {
                    format!("{} bytes from {}, block {}", found.len, found.offset, found.block)
                }
                DamageKind::Object => "metadata".to_owned(),
                DamageKind::Node => format!("node {} of the tree", found.block),
            };
            self.store.event(Event::new(Class::Data).file(found.dataset, found.inode).text(text));
        }
        new
    }

    /// A range of a file can neither be read nor rebuilt: that of the extent at `offset`, whose block is `block`.
    pub fn note_unreadable(&self, dataset: DatasetId, inode: u64, offset: u64, len: u64, block: BlockId) {
        self.note_damage(data(dataset, HEAD, inode, offset, len, block));
    }

    /// A tree could not be gone through from `key` on: `error` says why. Under the tree's lock.
    pub(crate) fn note_lost_node(&self, of: (DatasetId, BlockId), tree: &Tree, key: &Key, error: &PoolError) {
        let PoolError::Unreadable { id, .. } = error else {
            if matches!(error, PoolError::Corrupt(_)) {
                self.damage.ledger.lock().wanted.trees.insert(of);
            }
            return;
        };
        let nodes = DatasetNodes(&self.store);
        let on_way = |key: &Key| tree.on_way(&nodes, key, |ptr| ptr.id == *id);
        let next = || tree.leaf_end(&nodes, key).and_then(|next| on_way(&next));
        // What is known has been walked for.
        if on_way(key).or_else(next).is_none_or(|lost| self.note_damage(node(of, &lost))) {
            self.damage.ledger.lock().wanted.trees.insert(of);
        }
    }

    /// A part of a tree cannot be read. Under the tree's lock.
    pub(crate) fn note_lost_part(&self, of: (DatasetId, BlockId), lost: &LostNode) {
        if self.note_damage(node(of, lost)) {
            self.damage.ledger.lock().wanted.trees.insert(of);
        }
    }

    /// Whether a range of a file is known to be damaged, or the tree near it; at once where nothing is.
    pub fn is_damaged(&self, dataset: DatasetId, inode: u64, range: Range<u64>) -> bool {
        if self.damage.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let all = |inode| {
            let (none, most) = (BlockId::new(0), BlockId::new(u64::MAX));
            (dataset, HEAD, inode, DamageKind::Data, 0, none)
                ..=(dataset, HEAD, inode, DamageKind::Node, u64::MAX, most)
        };
        let ledger = self.damage.ledger.lock();
        let mut nodes = ledger.entries.range(all(0));
        let mut of_file = ledger.entries.range(all(inode));
        nodes.any(|(_, (_, node))| {
            node.what() == DamageKind::Node && (node.inode..=node.last).contains(&inode)
        }) || of_file.any(|(_, (_, entry))| {
            entry.what() == DamageKind::Data
                && entry.offset < range.end
                && range.start < entry.offset.saturating_add(entry.len)
        })
    }

    /// Whether the extent of a file at `offset`, of which this is the block, is known to be damaged.
    pub fn is_damaged_block(&self, dataset: DatasetId, inode: u64, offset: u64, block: BlockId) -> bool {
        let name = (dataset, HEAD, inode, DamageKind::Data, offset, block);
        self.damage.ledger.lock().entries.contains_key(&name)
    }

    /// Whether a block is known to be damaged, whoever refers to it; at once where nothing is.
    pub(crate) fn is_block_lost(&self, block: BlockId) -> bool {
        self.damage.count.load(Ordering::Acquire) > 0
            && self.damage.ledger.lock().entries.keys().any(|name| name.5 == block)
    }

    /// Known damage that cannot be rebuilt, by dataset and inode. What was overwritten or
    /// removed meanwhile is not among it.
    pub fn damage(&self) -> Vec<DamageRecord> {
        let there: BTreeSet<_> = self.all_trees().into_iter().collect();
        let doubtful: Vec<_> = {
            let ledger = &mut *self.damage.ledger.lock();
            // What belongs to a snapshot or a dataset went with it.
            let gone = ledger.entries.keys().filter(|name| !there.contains(&(name.0, name.1)));
            ledger.doubtful.extend(gone);
            let doubtful = std::mem::take(&mut ledger.doubtful);
            doubtful.iter().filter_map(|name| Some((*name, ledger.entries.get(name)?.1))).collect()
        };
        for (name, entry) in doubtful {
            if self.standing(&entry) == EntryStanding::Over {
                self.forget_damage(&name);
            }
        }
        let ledger = self.damage.ledger.lock();
        ledger.entries.values().map(|(_, entry)| *entry).collect()
    }

    /// Findings that [`Pool::damage`] does not show because there were too many.
    pub fn damage_beyond(&self) -> u64 {
        self.damage.ledger.lock().beyond
    }

    /// Segments of which something is lost whose files [`Pool::damage`] may not show yet.
    pub fn damage_unnamed(&self) -> usize {
        let core = self.store.core.lock();
        let named = &self.damage.ledger.lock().named;
        core.entries.values().filter(|entry| entry.unnamed && !named.contains(&entry.segment.id)).count()
    }

    /// Forgets all damage; what is still damaged is found again.
    pub fn clear_damage(&self) {
        let ledger = &mut *self.damage.ledger.lock();
        let numbers: Vec<_> = ledger.entries.values().map(|(number, _)| *number).collect();
        ledger.removed.extend(numbers);
        ledger.entries.clear();
        ledger.changed.clear();
        ledger.doubtful.clear();
        ledger.beyond_changed |= std::mem::take(&mut ledger.beyond) > 0;
        self.damage.count.store(0, Ordering::Release);
    }

    fn forget_damage(&self, name: &Name) {
        let mut ledger = self.damage.ledger.lock();
        ledger.remove(name);
        self.damage.count.store(ledger.entries.len() as u64, Ordering::Release);
    }

    /// A dataset's head dropped a block.
    pub(crate) fn doubt_damage(&self, dataset: DatasetId, block: BlockId) {
        if self.damage.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let ledger = &mut *self.damage.ledger.lock();
        let met = ledger.entries.keys().filter(|name| name.0 == dataset && name.1 == HEAD && name.5 == block);
        ledger.doubtful.extend(met);
    }

    /// Import: the table has this entry. What does not decode is passed over.
    pub(crate) fn adopt_damage(&self, number: u64, value: &[u8]) {
        let ledger = &mut *self.damage.ledger.lock();
        ledger.next = ledger.next.max(number + 1);
        if number == 0 {
            ledger.beyond = value.try_into().map_or(0, u64::from_le_bytes);
        } else if let Ok(entry) = DamageRecord::decode(value) {
            let name = name(&entry);
            ledger.entries.insert(name, (number, entry));
            // What a crash kept the ledger from learning is learned now.
            ledger.doubtful.insert(name);
            if entry.what() == DamageKind::Node {
                ledger.wanted.trees.insert((entry.dataset, entry.snapshot));
            }
        }
        self.damage.count.store(ledger.entries.len() as u64, Ordering::Release);
    }

    /// Whether a commit would write what the ledger has.
    pub(crate) fn has_new_damage(&self) -> bool {
        let ledger = self.damage.ledger.lock();
        !(ledger.changed.is_empty() && ledger.removed.is_empty() && ledger.named.is_empty())
            || ledger.beyond_changed
    }

    /// Part of a commit: what changed goes into the tables. What cannot be written waits on.
    pub(crate) fn seal_damage(&self, tables: &mut Tree) {
        let (gone, new, beyond) = {
            let ledger = self.damage.ledger.lock();
            let gone: Vec<u64> = ledger.removed.iter().take(PER_COMMIT).copied().collect();
            let new = ledger.changed.iter().take(PER_COMMIT);
            let new: Vec<_> = new.filter_map(|name| Some((*name, *ledger.entries.get(name)?))).collect();
            (gone, new, ledger.beyond_changed.then_some(ledger.beyond))
        };
        let nodes = TableNodes(&self.store);
        for number in gone {
            if tables.remove(&nodes, &Table::Damage.key(number)).is_ok() {
                self.damage.ledger.lock().removed.remove(&number);
            }
        }
        for (name, (number, entry)) in new {
            if tables.insert(&nodes, Table::Damage.key(number), &entry.encode()).is_ok() {
                let ledger = &mut *self.damage.ledger.lock();
                match ledger.entries.get(&name) {
                    Some((_, now)) if *now == entry => drop(ledger.changed.remove(&name)),
                    Some(_) => {}
                    // It went while it was being written.
                    None => drop(ledger.removed.insert(number)),
                }
            }
        }
        if let Some(beyond) = beyond
            && tables.insert(&nodes, Table::Damage.key(0), &beyond.to_le_bytes()).is_ok()
        {
            let ledger = &mut *self.damage.ledger.lock();
            ledger.beyond_changed = ledger.beyond != beyond;
        }
        let entries = &mut self.store.core.lock().entries;
        let ledger = &mut *self.damage.ledger.lock();
        if ledger.changed.is_empty() {
            for id in std::mem::take(&mut ledger.named) {
                entries.change(id, |entry| (entry.unnamed, entry.dirty) = (false, true));
            }
        }
    }

    /// Ranges of columns are lost: what lies there is to be named, also by whoever imports the pool after the next
    /// commit.
    pub fn note_lost(&self, lost: &[Lost]) {
        let entries = &mut self.store.core.lock().entries;
        let ledger = &mut *self.damage.ledger.lock();
        for one in lost {
            ledger.wanted.add(one.clone());
            ledger.named.remove(&one.segment);
            entries.change(one.segment, |entry| (entry.unnamed, entry.dirty) = (true, true));
        }
    }

    /// Import: something of this segment is lost, and who knew what is gone.
    pub(crate) fn adopt_unnamed(&self, segment: &SegmentRecord) {
        let ledger = &mut *self.damage.ledger.lock();
        for column in 0..segment.layout.k() as u8 {
            ledger.wanted.add(Lost { segment: segment.id, column, range: 0..segment.height });
        }
    }

    /// A block that is referred to is not there: what refers to it is to be named.
    pub(crate) fn note_missing(&self, block: BlockId) {
        let ledger = &mut *self.damage.ledger.lock();
        if ledger.wanted.blocks.len() < LOST_AT_MOST {
            ledger.wanted.blocks.insert(block);
        }
    }

    /// Nodes of datasets, or of their snapshots, cannot be read: which is to be found.
    pub(crate) fn note_lost_in(&self, datasets: &[DatasetId]) {
        let trees = self.trees_of(datasets.iter().copied());
        self.damage.ledger.lock().wanted.trees.extend(trees);
    }

    /// The heads and snapshots of some datasets.
    fn trees_of(&self, datasets: impl Iterator<Item = DatasetId>) -> Vec<(DatasetId, BlockId)> {
        let trees = datasets.flat_map(|dataset| {
            let snapshots = self.snapshots(dataset).into_iter().map(|snapshot| snapshot.high);
            std::iter::once(HEAD).chain(snapshots).map(move |high| (dataset, high)).collect::<Vec<_>>()
        });
        trees.collect()
    }

    fn all_trees(&self) -> Vec<(DatasetId, BlockId)> {
        self.trees_of(self.datasets().iter().map(|dataset| dataset.id()))
    }

    /// All that is known to be damaged is to be read again: a scrub is over, or a device came back.
    pub fn recheck_damage(&self) {
        let ledger = &mut *self.damage.ledger.lock();
        ledger.wanted.again |= !ledger.entries.is_empty();
    }

    /// Goes on with naming what is lost: `effort` leaves, or as many entries. False when there is nothing to do.
    ///
    /// # Errors
    /// When a dataset cannot be looked into.
    pub fn name_lost_step(&self, effort: usize) -> Result<bool> {
        let mut walk = self.damage.walk.lock();
        if walk.is_none() {
            let wanted = {
                let ledger = &mut *self.damage.ledger.lock();
                if ledger.wanted.is_empty() {
                    return Ok(false);
                }
                std::mem::take(&mut ledger.wanted)
            };
            let looks = !wanted.ranges.is_empty() || !wanted.blocks.is_empty();
            let mut trees: Vec<_> = wanted.trees.iter().copied().collect();
            if looks {
                trees = self.all_trees();
            }
            trees.reverse();
            *walk = Some(DamageWalk {
                wanted,
                suspects: Vec::new(),
                trees,
                at: Key::MIN,
                stage: WalkStage::Blocks,
            });
        }
        let at = walk.as_mut().expect("it was just made");
        let more = match &mut at.stage {
            _ if !at.suspects.is_empty() => self.read_suspects(&mut at.suspects, effort.max(1)),
            WalkStage::Blocks | WalkStage::Names => self.walk_tree(at, effort.max(1))?,
            WalkStage::Entries(after) => self.look_again(after, effort.max(1)),
        };
        if !more && let Some(over) = walk.take() {
            let ledger = &mut *self.damage.ledger.lock();
            let found = over.wanted.ranges.into_keys().map(|(segment, _)| segment);
            // Of some more was found meanwhile.
            let wanted = &ledger.wanted.ranges;
            ledger.named.extend(found.filter(|id| wanted.range((*id, 0)..=(*id, u8::MAX)).next().is_none()));
        }
        Ok(more || !self.damage.ledger.lock().wanted.is_empty())
    }

    /// Goes through some leaves of the walk's current tree.
    fn walk_tree(&self, walk: &mut DamageWalk, effort: usize) -> Result<bool> {
        let Some(&(dataset, high)) = walk.trees.last() else {
            walk.at = Key::MIN;
            walk.stage = match walk.stage {
                WalkStage::Blocks => {
                    let ledger = self.damage.ledger.lock();
                    let nodes = ledger.entries.values().filter(|(_, entry)| entry.what() == DamageKind::Node);
                    let trees: BTreeSet<_> =
                        nodes.map(|(_, entry)| (entry.dataset, entry.snapshot)).collect();
                    walk.trees = trees.into_iter().rev().collect();
                    WalkStage::Names
                }
                _ => WalkStage::Entries(None),
            };
            return Ok(true);
        };
        let next = if high == HEAD {
            match self.dataset(dataset) {
                Some(found) => self.walk_some(walk, (dataset, high), found.view()?.parts().1, effort),
                None => None,
            }
        } else {
            let snapshot = self.snapshots(dataset).into_iter().find(|snapshot| snapshot.high == high);
            // It may have been destroyed since.
            match snapshot.and_then(|snapshot| self.snapshot_view(dataset, &snapshot.name).ok()) {
                Some(view) => self.walk_some(walk, (dataset, high), view.parts().1, effort),
                None => None,
            }
        };
        walk.at = next.unwrap_or(Key::MIN);
        if next.is_none() {
            walk.trees.pop();
        }
        Ok(true)
    }

    fn walk_some(
        &self,
        walk: &mut DamageWalk,
        of: (DatasetId, BlockId),
        tree: &Tree,
        effort: usize,
    ) -> Option<Key> {
        let DamageWalk { wanted, suspects, at, stage, .. } = walk;
        let nodes = Suspicious { pool: self, wanted };
        let by_name = matches!(stage, WalkStage::Names);
        let lost: Vec<DamageRecord> = if by_name { self.lost_nodes(of) } else { Vec::new() };
        let mut next = *at;
        for _ in 0..effort {
            next = tree.survey(&nodes, next, 1, |met| match met {
                Met::Lost(lost) => drop(self.note_damage(node(of, &lost))),
                Met::Leaf(leaf) if by_name => self.name_objects(tree, leaf, &lost),
                Met::Leaf(leaf) => self.suspect(of, leaf, wanted, suspects),
            })?;
            if suspects.len() >= SUSPECTS {
                break;
            }
        }
        Some(next)
    }

    fn lost_nodes(&self, of: (DatasetId, BlockId)) -> Vec<DamageRecord> {
        let ledger = self.damage.ledger.lock();
        let all = ledger.entries.values().map(|(_, entry)| *entry);
        all.filter(|entry| entry.what() == DamageKind::Node && (entry.dataset, entry.snapshot) == of)
            .collect()
    }

    /// A block that a leaf names where something is lost.
    fn suspect(
        &self,
        of: (DatasetId, BlockId),
        leaf: &Leaf,
        wanted: &Wanted,
        suspects: &mut Vec<(DamageRecord, BlockPtr)>,
    ) {
        for (key, value) in leaf.iter().filter(|(key, _)| key.kind == EXTENT) {
            let Ok(extent) = Extent::decode(value) else { continue };
            let ptr = extent.ptr;
            if self.place_of(ptr).is_ok_and(|place| wanted.meets(ptr.id, place)) {
                let (inode, offset, len) = (key.object, key.offset, u64::from(extent.len));
                suspects.push((data(of.0, of.1, inode, offset, len, ptr.id), ptr));
            }
        }
    }

    /// Reads `effort` of them, or up to one that cannot be read. Nobody waits for a tree meanwhile: a disk may take
    /// seconds for each bad sector.
    fn read_suspects(&self, suspects: &mut Vec<(DamageRecord, BlockPtr)>, effort: usize) -> bool {
        for _ in 0..effort {
            let Some((found, ptr)) = suspects.pop() else { break };
            if !self.is_there(ptr, BlockKind::Record) {
                // It may have been dropped since.
                if self.standing(&found) != EntryStanding::Over {
                    self.note_damage(found);
                }
                break;
            }
        }
        true
    }

    /// Whether the map knows a block and it can be read.
    fn is_there(&self, ptr: BlockPtr, kind: BlockKind) -> bool {
        self.store.places_of(ptr.id).is_ok_and(|places| !places.is_empty())
            && self.store.read_plain(ptr, kind).is_ok()
    }

    /// Names inodes that were in lost nodes.
    fn name_objects(&self, tree: &Tree, leaf: &Leaf, lost: &[DamageRecord]) {
        for (key, value) in leaf.iter().filter(|(key, _)| key.kind == ENTRY) {
            let Ok(entry) = Entry::decode(value) else { continue };
            let inode = entry.inode.get();
            for node in lost.iter().filter(|node| (node.inode..=node.last).contains(&inode)) {
                if inode == node.last && inode > node.inode && self.has_all_extents(tree, inode) {
                    continue;
                }
                self.note_damage(DamageRecord {
                    inode,
                    last: inode,
                    offset: 0,
                    parent: key.object,
                    cookie: key.offset,
                    kind: DamageKind::Object as u8,
                    key_kind: 0,
                    ..*node
                });
            }
        }
        // A directory without a name: the root.
        let root = items::ROOT_INODE.get();
        for node in lost.iter().filter(|node| (node.inode..=node.last).contains(&root)) {
            let (offset, kind) = (0, DamageKind::Object as u8);
            let (parent, cookie) = (0, 0);
            self.note_damage(DamageRecord {
                inode: root,
                last: root,
                offset,
                parent,
                cookie,
                kind,
                key_kind: 0,
                ..*node
            });
        }
    }

    /// Whether the last object of a lost node has nothing in it: it can be read, and has no extents, which would
    /// come before what can be read of it.
    fn has_all_extents(&self, tree: &Tree, inode: u64) -> bool {
        let found = tree.get(&DatasetNodes(&self.store), &Key::new(inode, INODE, 0));
        let item = found.ok().flatten().and_then(|value| items::Inode::decode(&value).ok());
        item.is_some_and(|item| item.kind != FileKind::Regular || item.data == 0)
    }

    /// Looks at entries after `after`, and forgets those that are over.
    fn look_again(&self, after: &mut Option<Name>, effort: usize) -> bool {
        let some: Vec<_> = {
            let ledger = self.damage.ledger.lock();
            let behind = ledger.entries.iter().filter(|(name, _)| after.is_none_or(|after| **name > after));
            behind.take(effort).map(|(name, (_, entry))| (*name, *entry)).collect()
        };
        for (name, entry) in &some {
            *after = Some(*name);
            match self.standing(entry) {
                EntryStanding::Damaged(Some((ptr, kind))) if self.is_there(ptr, kind) => {
                    self.forget_damage(name)
                }
                // As with suspects.
                EntryStanding::Damaged(Some(_)) => return true,
                EntryStanding::Damaged(None) => {}
                EntryStanding::Over => self.forget_damage(name),
            }
        }
        !some.is_empty()
    }

    /// State of an entry; only trees are read for it.
    fn standing(&self, entry: &DamageRecord) -> EntryStanding {
        if entry.snapshot == HEAD {
            let Some(dataset) = self.dataset(entry.dataset) else { return EntryStanding::Over };
            let Ok(view) = dataset.view() else { return EntryStanding::Damaged(None) };
            return self.standing_in(view.parts().1, entry);
        }
        let snapshots = self.snapshots(entry.dataset);
        let snapshot = snapshots.iter().find(|snapshot| snapshot.high == entry.snapshot);
        let Some(snapshot) = snapshot else { return EntryStanding::Over };
        match self.snapshot_view(entry.dataset, &snapshot.name) {
            Ok(view) => self.standing_in(view.parts().1, entry),
            Err(_) => EntryStanding::Over,
        }
    }

    fn standing_in(&self, tree: &Tree, entry: &DamageRecord) -> EntryStanding {
        let nodes = DatasetNodes(&self.store);
        let named = |ptr: Option<BlockPtr>, kind| match ptr {
            Some(ptr) => EntryStanding::Damaged(Some((ptr, kind))),
            None => EntryStanding::Over,
        };
        match entry.what() {
            DamageKind::Data => match tree.get(&nodes, &Key::new(entry.inode, EXTENT, entry.offset)) {
                Ok(found) => {
                    let extent = found.and_then(|value| Extent::decode(&value).ok());
                    let same = extent.filter(|extent| extent.ptr.id == entry.block);
                    named(same.map(|extent| extent.ptr), BlockKind::Record)
                }
                Err(_) => EntryStanding::Damaged(None),
            },
            DamageKind::Node => {
                let low = Key { object: entry.inode, kind: entry.key_kind, offset: entry.offset };
                let lost = tree.on_way(&nodes, &low, |ptr| ptr.id == entry.block);
                named(lost.map(|lost| lost.ptr), BlockKind::Node)
            }
            DamageKind::Object => {
                let named = if entry.parent == 0 {
                    true
                } else {
                    match tree.get(&nodes, &Key::new(entry.parent, ENTRY, entry.cookie)) {
                        Ok(value) => value.is_some_and(|value| {
                            Entry::decode(&value).is_ok_and(|found| found.inode.get() == entry.inode)
                        }),
                        Err(_) => true,
                    }
                };
                let ledger = self.damage.ledger.lock();
                let of = (entry.dataset, entry.snapshot, 0, DamageKind::Node, 0, entry.block);
                let is_over = !named || !ledger.entries.contains_key(&of);
                if is_over { EntryStanding::Over } else { EntryStanding::Damaged(None) }
            }
        }
    }
}

fn data(
    dataset: DatasetId,
    snapshot: BlockId,
    inode: u64,
    offset: u64,
    len: u64,
    block: BlockId,
) -> DamageRecord {
    let found = larder_format::Timestamp { secs: 0, nanos: 0 };
    let kind = DamageKind::Data as u8;
    DamageRecord {
        dataset,
        snapshot,
        inode,
        offset,
        len,
        last: inode,
        block,
        parent: 0,
        cookie: 0,
        found,
        kind,
        key_kind: 0,
    }
}

/// The entry of a lost node: its objects are those of its keys.
fn node((dataset, snapshot): (DatasetId, BlockId), lost: &LostNode) -> DamageRecord {
    let low = lost.low.unwrap_or(Key::MIN);
    let last = lost.high.map_or(u64::MAX, |high| {
        let begins = high.kind <= EXTENT && high.offset == 0;
        if begins { high.object.saturating_sub(1) } else { high.object }
    });
    DamageRecord {
        last: last.max(low.object),
        key_kind: low.kind,
        kind: DamageKind::Node as u8,
        ..data(dataset, snapshot, low.object, low.offset, 0, lost.ptr.id)
    }
}
