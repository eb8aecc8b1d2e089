//! Names for what is lost: the files and directories of ranges and blocks that nothing can give back.
//!
//! Losses found by a scrub or a collection have no name: ranges of columns and ids of blocks wait in the ledger
//! ([`larder_pool::ledger`]) until [`DamageWalker::step`] has gone through all datasets and snapshots, leaf by leaf,
//! and has read what lies there. A node that is lost takes with it objects of which nothing is known but that
//! directories name them; so a second pass looks at names for inodes within such nodes.
//!
//! Extents of aliases tell nothing of their targets: before, the map is asked for aliases of what is lost
//! ([`crate::lost_aliases`]).
//!
//! At its end the walk looks at all entries, and reads the blocks they name: entries whose block can be read again go.
//! It keeps a key and the losses it looks for, which a crash forgets; import has all of a segment of which something is
//! lost looked at again.
//!
//! # Locks
//! The walk's is taken before everything but GC's.

use crate::heal::Healing;
use crate::lost_aliases::AliasSearch;
use crate::read_repair::ReadRepair;
use larder_format::block::BlockKind;
use larder_format::items::{self, ENTRY, EXTENT, Entry, Extent, FileKind, INODE};
use larder_format::ledger::{DamageKind, DamageRecord};
use larder_format::node::{Key, Leaf, Node};
use larder_format::run::MAX_PLACES;
use larder_format::tables::SnapshotRecord;
use larder_format::{BlockId, BlockPtr, DatasetId, SegmentId};
use larder_mutants::{Mutant, mutated};
use larder_pool::Look;
use larder_pool::Lost;
use larder_pool::Pool;
use larder_pool::ledger::{Damage, HEAD, Name, Wanted, data, node};
use larder_sorted::tree::{Met, NodeStore, Tree};
use larder_store::DatasetNodes;
use larder_store::Store;
use larder_store::decode_node;
use larder_store::{PoolError, Result};
use larder_sync::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Blocks that the walk keeps before it reads them, about.
const SUSPECTS: usize = 1024;
/// Ranges that are postponed, at most, for how long at least, and the records by which room for them is told: what
/// packs worse lacks room again, and waits again.
const POSTPONED: usize = 4096;
const PAUSE: Duration = Duration::from_secs(60);
const RECORD: u32 = 128 << 10;
/// Bytes of what was postponed for which a walk is worth it.
const ENOUGH: u64 = 1 << 30;

/// Position of the walk.
struct DamageWalk {
    wanted: Wanted,
    /// Aliases of what is lost.
    aliases: HashSet<BlockId>,
    /// Blocks to be read before it goes on, and the entry for each if it cannot be read.
    suspects: Vec<(DamageRecord, BlockPtr)>,
    /// Trees to be gone through, the current one last.
    trees: Vec<(DatasetId, BlockId)>,
    at: Key,
    stage: WalkStage,
}

enum WalkStage {
    /// Blocks with several places.
    Healing(Box<Healing>),
    /// Aliases.
    Aliases(AliasSearch),
    /// Leaves and extents.
    Blocks,
    /// Names of inodes in lost nodes, in the trees that have some.
    Names,
    /// Entries, after this one.
    Entries(Option<Name>),
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
        let suspect = self.pool.store().place_of(ptr).is_ok_and(|place| self.wanted.meets(ptr.id, place));
        if !suspect {
            return DatasetNodes(self.pool.store()).load(ptr);
        }
        let (header, plain) = self.pool.store().read_plain(ptr, BlockKind::Node)?;
        decode_node(&header, &plain)
    }
}

/// Ranges with something that can be healed and for which there was no room.
#[derive(Default)]
struct Postponed {
    ranges: Vec<Lost>,
    /// Bytes that it takes, by copy.
    bytes: [u64; MAX_PLACES],
    /// When that was found, by the clock that never goes back.
    since: Duration,
    /// The least that could be stored since, by copy.
    least: [u64; MAX_PLACES],
}

impl Postponed {
    /// Whether there is room by now for all of it, or for a part that is worth a walk, if so much can be stored.
    fn has_room(&mut self, storable: [u64; MAX_PLACES]) -> bool {
        let mut healable = 0;
        for ((least, storable), bytes) in self.least.iter_mut().zip(storable).zip(self.bytes) {
            *least = storable.min(*least);
            healable += bytes.min(storable - *least);
        }
        healable >= self.bytes.iter().sum::<u64>().min(ENOUGH)
    }
}

/// Names what is lost.
pub struct DamageWalker {
    pool: Arc<Pool>,
    store: Arc<Store>,
    repairs: Arc<ReadRepair>,
    walk: Mutex<Option<DamageWalk>>,
    /// At most as many as the ledger keeps.
    postponed: Mutex<Postponed>,
}

impl DamageWalker {
    pub(crate) fn new(pool: &Arc<Pool>, repairs: &Arc<ReadRepair>) -> Self {
        let (pool, store, repairs) = (Arc::clone(pool), Arc::clone(pool.store()), Arc::clone(repairs));
        Self { pool, store, repairs, walk: Mutex::default(), postponed: Mutex::default() }
    }

    fn ledger(&self) -> &Damage {
        self.pool.damage()
    }

    /// Known damage that cannot be rebuilt, by dataset and inode. What was overwritten or
    /// removed meanwhile is not among it.
    pub fn known(&self) -> Vec<DamageRecord> {
        let there: BTreeSet<_> = self.all_trees().into_iter().collect();
        for (name, entry) in self.ledger().take_doubtful(&there) {
            if self.standing(&entry) == EntryStanding::Over {
                self.ledger().forget(&name);
            }
        }
        self.ledger().entries()
    }

    fn all_trees(&self) -> Vec<(DatasetId, BlockId)> {
        let alive = self.pool.trees().into_iter().map(|dataset| dataset.id());
        trees_of(&self.pool, alive.filter(|id| self.pool.alive(*id).is_some()))
    }

    /// Goes on with naming what is lost: `effort` leaves, or as many entries. False when there is nothing to do.
    ///
    /// # Errors
    /// When a dataset cannot be looked into.
    pub fn step(&self, effort: usize) -> Result<bool> {
        let mut walk = self.walk.lock();
        if walk.is_none() {
            self.take_postponed();
            let Some(wanted) = self.ledger().take_wanted() else { return Ok(false) };
            let looks = !wanted.ranges.is_empty() || !wanted.blocks.is_empty();
            self.look_at_commit_records(&wanted);
            let mut trees: Vec<_> = wanted.trees.iter().copied().collect();
            if looks {
                trees = self.all_trees();
            }
            trees.reverse();
            let heals = !wanted.ranges.is_empty() && self.can_heal();
            let stage = match heals {
                true => WalkStage::Healing(Box::new(Healing::new())),
                false => self.stage_before_blocks(&wanted),
            };
            let (aliases, suspects) = (HashSet::new(), Vec::new());
            *walk = Some(DamageWalk { wanted, aliases, suspects, trees, at: Key::MIN, stage });
        }
        let at = walk.as_mut().expect("it was just made");
        let more = match &mut at.stage {
            _ if !at.suspects.is_empty() => self.read_suspects(&mut at.suspects, effort.max(1)),
            WalkStage::Healing(healing) => {
                if !healing.step(&self.pool, &at.wanted, effort.max(1))? {
                    let ranges = &at.wanted.ranges;
                    // Others that were found since are for the next walk.
                    let is_covered = |lost: &Lost| {
                        let ranges = ranges.get(&(lost.segment, lost.column));
                        let covers = |range: &Range<u32>| {
                            range.start <= lost.range.start && lost.range.end <= range.end
                        };
                        ranges.is_some_and(|ranges| ranges.iter().any(covers))
                    };
                    let is_healed = |lost: &Lost| is_covered(lost) && healing.has_healed(&self.pool, lost);
                    self.repairs.healed(is_healed, healing.bytes);
                    self.postpone(healing.postponed(&at.wanted));
                    at.stage = self.stage_before_blocks(&at.wanted);
                }
                true
            }
            WalkStage::Aliases(search) => {
                if !search.step(&self.pool, &at.wanted, effort.max(1))? {
                    at.aliases = search.take_found();
                    at.stage = WalkStage::Blocks;
                }
                true
            }
            WalkStage::Blocks | WalkStage::Names => self.walk_tree(at, effort.max(1))?,
            WalkStage::Entries(after) => self.look_again(after, effort.max(1)),
        };
        if !more && let Some(over) = walk.take() {
            let postponed = self.postponed.lock();
            let waiting: HashSet<SegmentId> = postponed.ranges.iter().map(|lost| lost.segment).collect();
            let is_over = |id: &SegmentId| !waiting.contains(id);
            let segments = over.wanted.ranges.into_keys().map(|(segment, _)| segment);
            self.ledger().named(segments.filter(is_over));
        }
        Ok(more || self.ledger().has_wanted())
    }

    /// Commit records are in no tree, and nobody misses one: where they lie in what was lost, the next ones do without.
    fn look_at_commit_records(&self, wanted: &Wanted) {
        for record in self.pool.commit_records() {
            if self.store.place_of(record.ptr).is_ok_and(|place| wanted.meets(record.ptr.id, place)) {
                self.pool.look_at_commit_record(&record);
            }
        }
    }

    /// Goes through the map for aliases, where some block may be one, or goes on with trees at once.
    fn stage_before_blocks(&self, wanted: &Wanted) -> WalkStage {
        let is_some_lost = !wanted.ranges.is_empty() || !wanted.blocks.is_empty();
        let has_aliases = is_some_lost && self.store.core.lock().has_aliases();
        if has_aliases { WalkStage::Aliases(AliasSearch::new(wanted)) } else { WalkStage::Blocks }
    }

    /// Has ranges that lacked room looked for again when there is more.
    fn postpone(&self, (ranges, bytes): (Vec<Lost>, [u64; MAX_PLACES])) {
        if ranges.is_empty() {
            return;
        }
        let mut postponed = self.postponed.lock();
        postponed.ranges.extend(ranges);
        postponed.ranges.truncate(POSTPONED);
        postponed.bytes.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes);
        (postponed.since, postponed.least) = (self.store.world.clock.monotonic(), self.storable());
    }

    /// Has it looked for when as much more can be stored as it takes, or a part that is worth a walk; or together with
    /// what is looked for anyway.
    fn take_postponed(&self) {
        let mut postponed = self.postponed.lock();
        if postponed.ranges.is_empty() || !self.can_heal() {
            return;
        }
        let (now, storable) = (self.store.world.clock.monotonic(), self.storable());
        let has_room = postponed.has_room(storable);
        let is_time = now.saturating_sub(postponed.since) >= PAUSE && has_room;
        if is_time || self.ledger().has_wanted_ranges() {
            self.ledger().note_lost(&std::mem::take(&mut *postponed).ranges);
        }
    }

    /// Bytes of blocks that can be stored now at one place, by the copy that it is of.
    fn storable(&self) -> [u64; MAX_PLACES] {
        self.store.storable_by_copy(RECORD)
    }

    /// Whether what is lost at one place may be at another.
    fn can_heal(&self) -> bool {
        self.store.core.lock().has_copies()
            && self.store.check_writable().is_ok()
            && !mutated(Mutant::CopyNotHealed)
    }

    /// Goes on until it is known what of all that was found lost is at other places; false when it is.
    ///
    /// # Errors
    /// As [`DamageWalker::step`].
    pub(crate) fn heal_step(&self, effort: usize) -> Result<bool> {
        let is_healing = || {
            let walk = self.walk.lock();
            walk.as_ref().is_some_and(|walk| matches!(walk.stage, WalkStage::Healing(_)))
        };
        if self.can_heal() && (is_healing() || self.ledger().has_wanted_ranges()) {
            self.step(effort)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Goes through some leaves of the walk's current tree.
    fn walk_tree(&self, walk: &mut DamageWalk, effort: usize) -> Result<bool> {
        let Some(&(dataset, high)) = walk.trees.last() else {
            walk.at = Key::MIN;
            walk.stage = match walk.stage {
                WalkStage::Blocks => {
                    walk.trees = self.ledger().trees_with_lost_nodes().into_iter().rev().collect();
                    WalkStage::Names
                }
                _ => WalkStage::Entries(None),
            };
            return Ok(true);
        };
        let next = if high == HEAD {
            match self.pool.alive(dataset) {
                Some(found) => self.walk_some(walk, (dataset, high), found.view()?.parts().1, effort),
                None => None,
            }
        } else {
            // It may have been destroyed since, or be another dataset's.
            match self.pool.snapshot_view_of(dataset, high) {
                Some(view) => self.walk_some(walk, view.owner(), view.parts().1, effort),
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
        let DamageWalk { wanted, aliases, suspects, at, stage, .. } = walk;
        let nodes = Suspicious { pool: &self.pool, wanted };
        let by_name = matches!(stage, WalkStage::Names);
        let lost: Vec<DamageRecord> = if by_name { self.ledger().lost_nodes(of) } else { Vec::new() };
        let mut next = *at;
        for _ in 0..effort {
            next = tree.survey(&nodes, next, 1, |met| match met {
                Met::Lost(lost) => drop(self.ledger().note(node(of, &lost))),
                Met::Leaf(leaf) if by_name => self.name_objects(tree, leaf, &lost),
                Met::Leaf(leaf) => self.suspect(of, leaf, (wanted, aliases), suspects),
            })?;
            if suspects.len() >= SUSPECTS {
                break;
            }
        }
        Some(next)
    }

    /// A block that a leaf names where something is lost.
    fn suspect(
        &self,
        of: (DatasetId, BlockId),
        leaf: &Leaf,
        (wanted, aliases): (&Wanted, &HashSet<BlockId>),
        suspects: &mut Vec<(DamageRecord, BlockPtr)>,
    ) {
        for (key, value) in leaf.iter().filter(|(key, _)| key.kind == EXTENT) {
            let Ok(extent) = Extent::decode(value) else { continue };
            let ptr = extent.ptr;
            let may_be_lost = || self.store.place_of(ptr).is_ok_and(|place| wanted.meets(ptr.id, place));
            if aliases.contains(&ptr.id) || may_be_lost() {
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
                    self.ledger().note(found);
                }
                break;
            }
        }
        true
    }

    /// Whether the map knows a block and it can be read. An alias that only its hint gives is lost: with the segment
    /// that it was in before, at the latest.
    fn is_there(&self, ptr: BlockPtr, kind: BlockKind) -> bool {
        let Ok((id, places)) = self.store.content_of(ptr.id) else { return false };
        let Some(&place) = places.first() else { return false };
        let known = if id == ptr.id { ptr } else { BlockPtr { id, place } };
        self.store.read_plain(known, kind).is_ok()
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
                self.ledger().note(DamageRecord {
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
            self.ledger().note(DamageRecord {
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
        let some = self.ledger().entries_after(*after, effort);
        for (name, entry) in &some {
            *after = Some(*name);
            match self.standing(entry) {
                EntryStanding::Damaged(Some((ptr, kind))) if self.is_there(ptr, kind) => {
                    self.ledger().forget(name)
                }
                // As with suspects.
                EntryStanding::Damaged(Some(_)) => return true,
                EntryStanding::Damaged(None) => {}
                EntryStanding::Over => self.ledger().forget(name),
            }
        }
        !some.is_empty()
    }

    /// State of an entry; only trees are read for it.
    fn standing(&self, entry: &DamageRecord) -> EntryStanding {
        if entry.snapshot == HEAD {
            let Some(dataset) = self.pool.alive(entry.dataset) else { return EntryStanding::Over };
            let Ok(view) = dataset.view() else { return EntryStanding::Damaged(None) };
            return self.standing_in(view.parts().1, entry);
        }
        let view = self.pool.snapshot_view_of(entry.dataset, entry.snapshot);
        // Of a hidden one that nobody can bring back it is the clones'.
        let has_name = |record: &SnapshotRecord| !record.hidden || self.pool.is_in_trash(record);
        match view.filter(|view| view.owner().0 == entry.dataset && has_name(view.record())) {
            Some(view) => self.standing_in(view.parts().1, entry),
            None => EntryStanding::Over,
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
                let of = (entry.dataset, entry.snapshot);
                let is_over = !named || !self.ledger().is_node_lost(of, entry.block);
                if is_over { EntryStanding::Over } else { EntryStanding::Damaged(None) }
            }
        }
    }
}

/// The heads and snapshots of some datasets.
pub(crate) fn trees_of(pool: &Pool, datasets: impl Iterator<Item = DatasetId>) -> Vec<(DatasetId, BlockId)> {
    let trees = datasets.flat_map(|dataset| {
        let trash = pool.hidden_snapshots(dataset).into_iter().filter(|record| pool.is_in_trash(record));
        let snapshots = pool.snapshots(dataset).into_iter().chain(trash).map(|snapshot| snapshot.high);
        std::iter::once(HEAD).chain(snapshots).map(move |high| (dataset, high)).collect::<Vec<_>>()
    });
    trees.collect()
}
