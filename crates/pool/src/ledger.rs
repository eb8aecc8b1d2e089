//! The damage ledger: what can neither be read nor rebuilt, by the files that it belongs to.
//!
//! # Where entries come from
//! A read that fails tells at once: the layer above knows file and range ([`Damage::note_unreadable`]), the tree knows
//! the node ([`Damage::note_lost_node`]). What a scrub or a collection finds lost has no name: ranges of columns and
//! ids of blocks are *wanted* until somebody has gone through all trees for them and has noted what they are.
//!
//! # How they go
//! An entry is *doubtful* when it is new, and when the block that it names was dropped by the dataset's head; then it
//! is looked up before it is shown, and goes when the file does not name that block any more. What belongs to a
//! snapshot or dataset goes with it.
//!
//! # Bounds
//! [`ENTRIES_AT_MOST`] entries are kept, all of them in memory and, with the next commit, in the table `Damage`; beyond
//! that they are counted. A crash forgets what is wanted, but segments of which something is lost are marked in the
//! table, no later than that whoever found it has got past them, until their names are durable: import wants all that
//! lies in them. Reads find again what they found.
//!
//! # Locks
//! The ledger's is a last one, after the core's: nothing is read under it.

use larder_format::items::EXTENT;
use larder_format::ledger::{DamageKind, DamageRecord};
use larder_format::node::Key;
use larder_format::segment::SegmentRecord;
use larder_format::tables::Table;
use larder_format::{BlockId, DatasetId, Place, SegmentId};
use larder_sorted::tree::{LostNode, Tree};
use larder_store::segments::Listed;
use larder_store::{Class, Event, LookNodes, PoolError, Store, TableNodes};
use larder_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries that are kept.
pub const ENTRIES_AT_MOST: usize = 4096;
/// Lost ranges and blocks that are looked for one by one; with more, whole columns are.
const LOST_AT_MOST: usize = 64 << 10;
/// Entries that a commit writes.
const PER_COMMIT: usize = 512;

/// The head of a dataset, where a snapshot has its highest block id.
pub const HEAD: BlockId = BlockId::new(0);

/// A part of a data column that nothing can give back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The segment.
    pub segment: SegmentId,
    /// The data column.
    pub column: u8,
    /// Bytes from the start of the slot.
    pub range: Range<u32>,
}

/// Identity of an entry.
pub type Name = (DatasetId, BlockId, u64, DamageKind, u64, BlockId);

fn name(of: &DamageRecord) -> Name {
    // A node is one however its range is known; an object has one entry for each node that it lost.
    let offset = if of.what() == DamageKind::Data { of.offset } else { 0 };
    let inode = if of.what() == DamageKind::Node { 0 } else { of.inode };
    (of.dataset, of.snapshot, inode, of.what(), offset, of.block)
}

/// See the module's text.
pub struct Damage {
    store: Arc<Store>,
    /// Entries, so that whoever writes need not take the lock where there are none.
    count: AtomicU64,
    ledger: Mutex<Ledger>,
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

/// Losses that have no name yet.
#[derive(Default)]
pub struct Wanted {
    /// Ranges of columns.
    pub ranges: BTreeMap<(SegmentId, u8), Vec<Range<u32>>>,
    count: usize,
    /// Blocks that are referred to and not there.
    pub blocks: BTreeSet<BlockId>,
    /// Trees with lost nodes, or of which it is not known where they are lost.
    pub trees: BTreeSet<(DatasetId, BlockId)>,
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

    /// Whether what lies there may be lost.
    pub fn meets(&self, id: BlockId, place: Place) -> bool {
        let within = |ranges: &Vec<Range<u32>>| {
            ranges.iter().any(|lost| lost.start < place.offset + place.stored && place.offset < lost.end)
        };
        self.blocks.contains(&id) || self.ranges.get(&(place.segment, place.column)).is_some_and(within)
    }
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
        // It may have been found in a tree of before the block was dropped.
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

impl Damage {
    /// A ledger without entries.
    pub fn new(store: &Arc<Store>) -> Self {
        Self { store: Arc::clone(store), count: AtomicU64::new(0), ledger: Mutex::default() }
    }

    /// Keeps what was found, with the time; what is known already is brought up to date. Whether it is new.
    pub fn note(&self, found: DamageRecord) -> bool {
        let found = DamageRecord { found: self.store.world.clock.now(), ..found };
        let mut ledger = self.ledger.lock();
        let new = ledger.add(found);
        self.count.store(ledger.entries.len() as u64, Ordering::Release);
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

    /// A range of a file of a dataset, or of a snapshot (by its high id; else [`HEAD`]), can neither be read nor
    /// rebuilt: that of the extent at `offset`, whose block is `block`.
    pub fn note_unreadable(
        &self,
        (dataset, snapshot): (DatasetId, BlockId),
        inode: u64,
        offset: u64,
        len: u64,
        block: BlockId,
    ) {
        self.note(data(dataset, snapshot, inode, offset, len, block));
    }

    /// A tree could not be gone through from `key` on: `error` says why. Under the tree's lock.
    pub fn note_lost_node(
        &self,
        of: (DatasetId, BlockId),
        (tree, nodes): (&Tree, &LookNodes<'_>),
        key: &Key,
        error: &PoolError,
    ) {
        let PoolError::Unreadable { id, .. } = error else {
            if matches!(error, PoolError::Corrupt(_)) {
                self.ledger.lock().wanted.trees.insert(of);
            }
            return;
        };
        let on_way = |key: &Key| tree.on_way(nodes, key, |ptr| ptr.id == *id);
        let next = || tree.leaf_end(nodes, key).and_then(|next| on_way(&next));
        // A known loss has been walked for.
        if on_way(key).or_else(next).is_none_or(|lost| self.note(node(of, &lost))) {
            self.ledger.lock().wanted.trees.insert(of);
        }
    }

    /// A part of a tree cannot be read. Under the tree's lock.
    pub fn note_lost_part(&self, of: (DatasetId, BlockId), lost: &LostNode) {
        if self.note(node(of, lost)) {
            self.ledger.lock().wanted.trees.insert(of);
        }
    }

    /// Whether a range of a file is known to be damaged, or the tree near it; at once where nothing is.
    pub fn is_damaged(
        &self,
        (dataset, snapshot): (DatasetId, BlockId),
        inode: u64,
        range: Range<u64>,
    ) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let all = |inode| {
            let (none, most) = (BlockId::new(0), BlockId::new(u64::MAX));
            (dataset, snapshot, inode, DamageKind::Data, 0, none)
                ..=(dataset, snapshot, inode, DamageKind::Node, u64::MAX, most)
        };
        let ledger = self.ledger.lock();
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
        self.ledger.lock().entries.contains_key(&name)
    }

    /// Whether a block is known to be damaged, whoever refers to it; at once where nothing is.
    pub fn is_block_lost(&self, block: BlockId) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.ledger.lock().entries.keys().any(|name| name.5 == block)
    }

    /// Whether anything is known to be lost.
    pub fn has_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Findings that are not kept, because there were too many.
    pub fn beyond(&self) -> u64 {
        self.ledger.lock().beyond
    }

    /// Segments of which something is lost whose files may have no entries yet.
    pub fn unnamed(&self) -> usize {
        let core = self.store.core.lock();
        let named = &self.ledger.lock().named;
        core.entries.ids(Listed::Unnamed).iter().filter(|id| !named.contains(id)).count()
    }

    /// Forgets all damage; what is still damaged is found again.
    pub fn clear(&self) {
        let ledger = &mut *self.ledger.lock();
        let numbers: Vec<_> = ledger.entries.values().map(|(number, _)| *number).collect();
        ledger.removed.extend(numbers);
        ledger.entries.clear();
        ledger.changed.clear();
        ledger.doubtful.clear();
        ledger.beyond_changed |= std::mem::take(&mut ledger.beyond) > 0;
        self.count.store(0, Ordering::Release);
    }

    /// An entry is over.
    pub fn forget(&self, name: &Name) {
        let mut ledger = self.ledger.lock();
        ledger.remove(name);
        self.count.store(ledger.entries.len() as u64, Ordering::Release);
    }

    /// A dataset's head dropped a block.
    pub fn doubt(&self, dataset: DatasetId, block: BlockId) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let ledger = &mut *self.ledger.lock();
        let met = ledger.entries.keys().filter(|name| name.0 == dataset && name.1 == HEAD && name.5 == block);
        ledger.doubtful.extend(met);
    }

    /// The head of a dataset is another tree: all that is known of it is looked at again.
    pub fn doubt_head(&self, dataset: DatasetId) {
        let ledger = &mut *self.ledger.lock();
        let of_head = ledger.entries.keys().filter(|name| name.0 == dataset && name.1 == HEAD);
        ledger.doubtful.extend(of_head);
        ledger.wanted.trees.insert((dataset, HEAD));
    }

    /// A tree has another name from now on, or one besides: so has what is damaged in it.
    pub(crate) fn moved(&self, from: (DatasetId, BlockId), to: (DatasetId, BlockId), is_gone: bool) {
        let ledger = &mut *self.ledger.lock();
        let of_it = ledger.entries.iter().filter(|(name, _)| (name.0, name.1) == from);
        let of_it: Vec<_> = of_it.map(|(name, (_, entry))| (*name, *entry)).collect();
        for (name, entry) in of_it {
            ledger.add(DamageRecord { dataset: to.0, snapshot: to.1, ..entry });
            if is_gone {
                ledger.remove(&name);
            }
        }
        let is_wanted = ledger.wanted.trees.contains(&from);
        if is_gone {
            ledger.wanted.trees.remove(&from);
        }
        if is_wanted {
            ledger.wanted.trees.insert(to);
        }
        self.count.store(ledger.entries.len() as u64, Ordering::Release);
    }

    /// Import: the table has this entry. What does not decode is passed over.
    pub fn adopt(&self, number: u64, value: &[u8]) {
        let ledger = &mut *self.ledger.lock();
        ledger.next = ledger.next.max(number.saturating_add(1));
        if number == 0 {
            ledger.beyond = value.try_into().map_or(0, u64::from_le_bytes);
        } else if let Ok(entry) = DamageRecord::decode(value) {
            let name = name(&entry);
            ledger.entries.insert(name, (number, entry));
            // A crash may have kept the ledger from learning that it is gone: it is looked at again.
            ledger.doubtful.insert(name);
            if entry.what() == DamageKind::Node {
                ledger.wanted.trees.insert((entry.dataset, entry.snapshot));
            }
        }
        self.count.store(ledger.entries.len() as u64, Ordering::Release);
    }

    /// Whether a commit would write what the ledger has.
    pub fn has_news(&self) -> bool {
        let ledger = self.ledger.lock();
        !(ledger.changed.is_empty() && ledger.removed.is_empty() && ledger.named.is_empty())
            || ledger.beyond_changed
    }

    /// Part of a commit: what changed goes into the tables. What cannot be written waits on.
    pub fn seal(&self, tables: &mut Tree) {
        let (gone, new, beyond) = {
            let ledger = self.ledger.lock();
            let gone: Vec<u64> = ledger.removed.iter().take(PER_COMMIT).copied().collect();
            let new = ledger.changed.iter().take(PER_COMMIT);
            let new: Vec<_> = new.filter_map(|name| Some((*name, *ledger.entries.get(name)?))).collect();
            (gone, new, ledger.beyond_changed.then_some(ledger.beyond))
        };
        let nodes = TableNodes(&self.store);
        for number in gone {
            if tables.remove(&nodes, &Table::Damage.key(number)).is_ok() {
                self.ledger.lock().removed.remove(&number);
            }
        }
        for (name, (number, entry)) in new {
            if tables.insert(&nodes, Table::Damage.key(number), &entry.encode()).is_ok() {
                let ledger = &mut *self.ledger.lock();
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
            let ledger = &mut *self.ledger.lock();
            ledger.beyond_changed = ledger.beyond != beyond;
        }
        let entries = &mut self.store.core.lock().entries;
        let ledger = &mut *self.ledger.lock();
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
        let ledger = &mut *self.ledger.lock();
        for one in lost {
            ledger.wanted.add(one.clone());
            ledger.named.remove(&one.segment);
            entries.change(one.segment, |entry| (entry.unnamed, entry.dirty) = (true, true));
        }
    }

    /// Import: something of this segment is lost, and who knew what is gone.
    pub fn adopt_unnamed(&self, segment: &SegmentRecord) {
        let ledger = &mut *self.ledger.lock();
        for column in 0..segment.layout.k() as u8 {
            ledger.wanted.add(Lost { segment: segment.id, column, range: 0..segment.height });
        }
    }

    /// A block that is referred to is not there: what refers to it is to be named.
    pub fn note_missing(&self, block: BlockId) {
        let ledger = &mut *self.ledger.lock();
        if ledger.wanted.blocks.len() < LOST_AT_MOST {
            ledger.wanted.blocks.insert(block);
        }
    }

    /// All that is known to be damaged is to be read again: a scrub is over, or a device came back.
    pub fn recheck(&self) {
        let ledger = &mut *self.ledger.lock();
        ledger.wanted.again |= !ledger.entries.is_empty();
    }

    /// The entries of lost nodes of a tree.
    pub fn lost_nodes(&self, of: (DatasetId, BlockId)) -> Vec<DamageRecord> {
        let ledger = self.ledger.lock();
        let all = ledger.entries.values().map(|(_, entry)| *entry);
        all.filter(|entry| entry.what() == DamageKind::Node && (entry.dataset, entry.snapshot) == of)
            .collect()
    }

    /// Takes what is to be looked for, unless that is nothing.
    pub fn take_wanted(&self) -> Option<Wanted> {
        let ledger = &mut *self.ledger.lock();
        (!ledger.wanted.is_empty()).then(|| std::mem::take(&mut ledger.wanted))
    }

    /// Whether ranges of columns are to be looked for.
    pub fn has_wanted_ranges(&self) -> bool {
        !self.ledger.lock().wanted.ranges.is_empty()
    }

    /// Whether there is something to be looked for.
    pub fn has_wanted(&self) -> bool {
        !self.ledger.lock().wanted.is_empty()
    }

    /// These trees are to be gone through.
    pub fn want_trees(&self, trees: impl IntoIterator<Item = (DatasetId, BlockId)>) {
        self.ledger.lock().wanted.trees.extend(trees);
    }

    /// All that was lost in these segments has its name, but for what was found meanwhile.
    pub fn named(&self, segments: impl Iterator<Item = SegmentId>) {
        let ledger = &mut *self.ledger.lock();
        let wanted = &ledger.wanted.ranges;
        let is_over = |id: &SegmentId| wanted.range((*id, 0)..=(*id, u8::MAX)).next().is_none();
        ledger.named.extend(segments.filter(is_over));
    }

    /// Takes the entries that are to be looked up before they are shown: doubtful ones, and those of trees that are
    /// not among `there`.
    pub fn take_doubtful(&self, there: &BTreeSet<(DatasetId, BlockId)>) -> Vec<(Name, DamageRecord)> {
        let ledger = &mut *self.ledger.lock();
        // Entries of a snapshot or a dataset that is gone went with it.
        let gone = ledger.entries.keys().filter(|name| !there.contains(&(name.0, name.1)));
        ledger.doubtful.extend(gone);
        let doubtful = std::mem::take(&mut ledger.doubtful);
        doubtful.iter().filter_map(|name| Some((*name, ledger.entries.get(name)?.1))).collect()
    }

    /// All entries.
    pub fn entries(&self) -> Vec<DamageRecord> {
        self.ledger.lock().entries.values().map(|(_, entry)| *entry).collect()
    }

    /// At most `count` entries after one.
    pub fn entries_after(&self, after: Option<Name>, count: usize) -> Vec<(Name, DamageRecord)> {
        let ledger = self.ledger.lock();
        let behind = ledger.entries.iter().filter(|(name, _)| after.is_none_or(|after| **name > after));
        behind.take(count).map(|(name, (_, entry))| (*name, *entry)).collect()
    }

    /// Trees with nodes that are known to be lost.
    pub fn trees_with_lost_nodes(&self) -> BTreeSet<(DatasetId, BlockId)> {
        let ledger = self.ledger.lock();
        let nodes = ledger.entries.values().filter(|(_, entry)| entry.what() == DamageKind::Node);
        nodes.map(|(_, entry)| (entry.dataset, entry.snapshot)).collect()
    }

    /// Whether a node of a tree is known to be lost.
    pub fn is_node_lost(&self, of: (DatasetId, BlockId), block: BlockId) -> bool {
        let name = (of.0, of.1, 0, DamageKind::Node, 0, block);
        self.ledger.lock().entries.contains_key(&name)
    }
}

/// The entry of a range of a file.
pub fn data(
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
pub fn node((dataset, snapshot): (DatasetId, BlockId), lost: &LostNode) -> DamageRecord {
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
