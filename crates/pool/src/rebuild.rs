//! A pool put together of parts that somebody found, where no root can be read: repair does that.
//!
//! It is made as a new one is ([`crate::create`]). Labels and roots go to the devices that are found, so whoever must
//! not write to the pool's own hands in overlays; all else goes to one new device, in a group of its own: those that
//! are there are on their way out, and get nothing. What is there already is told before it is a pool:
//! [`Rebuilding::put`] says where blocks are, [`Rebuilding::change_tree`] mends a tree, and [`Rebuilding::finish`]
//! takes the rows of the tables and commits.
//!
//! Such a pool is read, not lived in: all blocks that are there count as alive, a block may count in two segments, and
//! snapshots may refer to nodes that are younger than they are. No collection, cleaner or reshape may run on it.

use crate::assemble::Parts;
use crate::commit::NodeBlocks;
use crate::contents::{Contents, InPieces};
use crate::create::{data_start, random, rule_for, slot_count, write_label_areas};
use crate::event_log::EventLog;
use crate::found::adopt_segment;
use crate::intent_log::{Intent, IntentLog, LogCopy, read_chain};
use crate::ledger::Damage;
use crate::pool::Pool;
use larder_device::Device;
use larder_format::block::BlockKind;
use larder_format::checksum::Sums;
use larder_format::label::{Features, GroupRule, Label};
use larder_format::node::Key;
use larder_format::root::{GroupRole, Identity, MAX_HISTORY, NO_GROUP, Root, RootImport};
use larder_format::run::Places;
use larder_format::segment::{MIN_SLOT, SegmentKind, SegmentRecord};
use larder_format::tables::Table;
use larder_format::{
    BlockId, BlockPtr, CommitId, DatasetId, DeviceGuid, DeviceIndex, GroupIndex, Incarnation, OpSeq, Place,
    SegmentId, Timestamp,
};
use larder_sorted::map::{Changes, Update};
use larder_sorted::tree::Tree;
use larder_store::core::Core;
use larder_store::member::{Member, MemberState};
use larder_store::members::Members;
use larder_store::space::GroupSpace;
use larder_store::{
    Appender, EventSink, Groups, PoolError, Refusal, Result, RunIo, Store, StoreParts, TableNodes, World,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of places of blocks that are held in memory at most, before they are written as a run.
const UNWRITTEN: u64 = 64 << 20;

/// A device of a pool that is put together.
#[derive(Clone)]
pub struct FoundDevice {
    /// Its number.
    pub index: DeviceIndex,
    /// Its group.
    pub group: GroupIndex,
    /// Its GUID.
    pub guid: DeviceGuid,
    /// The device, which is written.
    pub device: Arc<dyn Device>,
}

/// A group of such a pool.
#[derive(Debug, Clone, Copy)]
pub struct FoundGroup {
    /// Its number.
    pub index: GroupIndex,
    /// Its rule.
    pub rule: GroupRule,
    /// Its role.
    pub role: GroupRole,
    /// Bytes of a slot.
    pub slot_size: u32,
}

/// Facts about a pool before its trees are looked at.
pub struct FoundPool {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Timestamp,
    /// Its checksums.
    pub sums: Sums,
    /// log2 of the alignment of its stripes.
    pub ashift: u8,
    /// Feature flags.
    pub features: Features,
    /// Its groups.
    pub groups: Vec<FoundGroup>,
    /// Their devices, at least one of each group.
    pub devices: Vec<FoundDevice>,
    /// Takes what is written.
    pub scratch: Arc<dyn Device>,
    /// No commit, block and segment that is there has this number or a greater one.
    pub next: (CommitId, BlockId, SegmentId),
}

/// Operations of the intent log that no tree has.
pub struct FoundLog {
    ops: Vec<(DatasetId, Vec<u8>)>,
    /// The number of the last one.
    last: OpSeq,
    /// All of it could be read.
    pub is_whole: bool,
}

impl FoundLog {
    /// Number of operations.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// See the module's text.
pub struct Rebuilding {
    store: Arc<Store>,
    events: Arc<EventLog>,
    damage: Damage,
    name: String,
    created: Timestamp,
    /// Runs of the block map that no table has yet.
    unnoted: Vec<Changes>,
}

/// Whether a row of the pool's tables says something: one that does not is none.
pub fn is_row(key: &Key, value: &[u8]) -> bool {
    Contents::default().take(key, value, &mut InPieces::default()).is_ok()
}

impl Rebuilding {
    /// Writes labels onto the devices: what they held beside segments is gone.
    ///
    /// # Errors
    /// When a device cannot be written.
    pub fn begin(world: World, found: FoundPool) -> Result<Self> {
        let FoundPool { name, created, sums, ashift, features, groups, devices, scratch, next } = found;
        let incarnation = Incarnation::new(world.entropy.next_u64());
        let (commit, first_block, _) = next;
        let history = vec![RootImport { incarnation, first: commit, first_block, skipped: 0 }];
        let (mut groups, mut devices) = (groups, devices);
        // The devices found may have the greatest numbers there are.
        let is_free = |number: &u16| groups.iter().all(|group| group.index.get() != *number);
        let own = (0..NO_GROUP.get()).find(is_free).ok_or(Refusal::NoGroupNumbers)?;
        let is_free = |number: &u16| devices.iter().all(|one| one.index.get() != *number);
        let own_device = (0..u16::MAX).find(is_free).ok_or(Refusal::NoDeviceNumbers)?;
        let own = FoundGroup {
            index: GroupIndex::new(own),
            rule: rule_for("single", 1).map_err(PoolError::Invalid)?,
            role: GroupRole::Data,
            slot_size: groups.iter().map(|group| group.slot_size).max().unwrap_or(MIN_SLOT),
        };
        devices.push(FoundDevice {
            index: DeviceIndex::new(own_device),
            group: own.index,
            guid: DeviceGuid::new(world.entropy.next_u64()),
            device: scratch,
        });
        groups.push(own);
        let mut members = Vec::new();
        for FoundDevice { index, group, guid, device } in devices {
            let of =
                groups.iter().find(|one| one.index == group).expect("devices are of groups that are told");
            let size = device.size();
            let label = Label {
                sequence: 1,
                pool: sums.pool(),
                name: name.clone(),
                device: guid,
                index,
                group,
                rule: of.rule,
                slot_size: of.slot_size,
                slot_count: slot_count(size, of.slot_size, ashift),
                data_start: data_start(ashift),
                device_size: size,
                created,
                ashift,
                features,
                key: sums.key(),
            };
            write_label_areas(&*device, &label)?;
            members.push(Member::labelled(device, label, MemberState::Online, None, &world.clock));
        }
        let space = |group: &FoundGroup| {
            let of = members.iter().filter(|member| member.group == group.index);
            let slots: Vec<_> = of.map(|member| (member.index, member.slot_count())).collect();
            let mut space =
                GroupSpace::new(group.index, group.rule, group.slot_size, ashift, &slots).of_role(group.role);
            (space.narrow, space.leaving) = (true, group.index != own.index);
            (group.index, space)
        };
        let groups: BTreeMap<_, _> = groups.iter().map(space).collect();
        let core = Core {
            features,
            // All that is mended goes into one commit: no lease ends before it.
            block_lease: BlockId::new(u64::MAX),
            ..Core::beginning(Groups::new(groups, 0), &history, next, Identity::of(sums.pool()))
        };
        let events = Arc::new(EventLog::new(Arc::clone(&world.clock)));
        let store = Store::new(StoreParts {
            sums,
            world,
            read_only: false,
            members: Members::new(members, [], 0),
            core,
            history,
            durable: CommitId::new(commit.get() - 1),
            events: Arc::clone(&events) as Arc<dyn EventSink>,
        });
        let damage = Damage::new(&store);
        Ok(Self { store, events, damage, name, created, unnoted: Vec::new() })
    }

    /// The store, which reads blocks that were told of.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The imports that what is there is of, the latest first.
    pub fn set_history(&self, imports: &[RootImport]) {
        let mut history = self.store.history.lock();
        history.truncate(1);
        history.extend(imports.iter().take(MAX_HISTORY - 1).cloned());
    }

    /// A segment is there, with these slots.
    ///
    /// # Errors
    /// When it does not fit the devices, or another has one of its slots.
    pub fn adopt(&self, record: &SegmentRecord) -> Result<()> {
        let lease = self.store.core.lock().segment_lease;
        adopt_segment(&self.store, &self.damage, record, lease, CommitId::new(0))?;
        self.store.core.lock().entries.change(record.id, |entry| entry.dirty = true);
        Ok(())
    }

    /// A block is at this place.
    ///
    /// # Errors
    /// When what was told before cannot be written.
    pub fn put(&mut self, id: BlockId, place: Place) -> Result<()> {
        self.note(Update::Put { id, places: Places::new(&[place])? })
    }

    /// A block's content is that of another one.
    ///
    /// # Errors
    /// As [`Rebuilding::put`].
    pub fn alias(&mut self, id: BlockId, to: BlockId) -> Result<()> {
        self.note(Update::Alias { id, to })
    }

    fn note(&mut self, update: Update) -> Result<()> {
        let mut map = self.store.map.lock();
        map.apply(update);
        if map.memtable_bytes() > UNWRITTEN {
            let mut pages = RunIo::new(&self.store);
            let changes = map.checkpoint(&mut pages)?;
            pages.finish()?;
            drop(map);
            self.unnoted.push(changes);
            self.store.complete_all_stripes()?;
        }
        Ok(())
    }

    /// A number for a snapshot: greater than those of all blocks up to now.
    pub fn take_id(&self) -> BlockId {
        self.store.core.lock().take_ids(1)
    }

    /// Nothing more is put: merges runs of the map, so that each look-up asks few.
    ///
    /// # Errors
    /// As [`Rebuilding::put`].
    pub fn settle(&mut self) -> Result<()> {
        let mut map = self.store.map.lock();
        let mut pages = RunIo::new(&self.store);
        self.unnoted.push(map.checkpoint(&mut pages)?);
        loop {
            let progress = map.merge_step(&mut pages, usize::MAX)?;
            self.unnoted.push(progress.changes);
            if !progress.pending {
                break;
            }
        }
        pages.finish()?;
        drop(map);
        self.store.complete_all_stripes()
    }

    /// Changes a tree of a dataset, and stores what is new of it; gives its root.
    ///
    /// # Errors
    /// Those of `change`, and when nodes cannot be stored.
    pub fn change_tree(
        &self,
        dataset: DatasetId,
        root: Option<BlockPtr>,
        change: impl FnOnce(&mut Tree, &Store) -> Result<()>,
    ) -> Result<Option<BlockPtr>> {
        let mut tree = root.map_or_else(Tree::empty, Tree::open);
        change(&mut tree, &self.store)?;
        if !tree.is_dirty() {
            return Ok(tree.committed_root());
        }
        let mut blocks = Appender::new(&self.store, SegmentKind::Node);
        let mut sink = NodeBlocks {
            store: &self.store,
            blocks: &mut blocks,
            further: &mut [],
            kind: BlockKind::Node,
            dataset,
        };
        let root = tree.flush(&mut sink)?;
        blocks.submit()?;
        self.store.complete_all_stripes()?;
        Ok(Some(root))
    }

    /// The operations that the intent log holds above a root whose trees are whole. Where it cannot be read on it ends,
    /// and that is told.
    ///
    /// # Errors
    /// When the log is of a later root, or an intact record holds no operation.
    pub fn log_of(&self, root: &Root) -> Result<FoundLog> {
        if !root.log_open {
            return Ok(FoundLog { ops: Vec::new(), last: root.applied, is_whole: true });
        }
        let store = &self.store;
        let slot_size = |segment: &SegmentRecord| {
            store.core.lock().groups.get(&segment.group).map_or(0, |group| group.slot_size)
        };
        let copy =
            |segment: &SegmentRecord, column: usize| match store.members.has(segment.slots[column].device) {
                true => LogCopy::Whole,
                false => LogCopy::Older,
            };
        let chain = read_chain(&store.sums, root, slot_size, copy, |segment, column, offset, len| {
            let slot = segment.slots[column];
            let member = store.members.find(slot.device)?;
            let bytes = member.read_anyway(member.slot_offset(slot.index, offset), len)?;
            Some(bytes.ok()?.to_vec())
        })?;
        Ok(FoundLog { is_whole: chain.unread.is_none(), ops: chain.ops, last: chain.last })
    }

    /// The pool with these rows of its tables, committed. A row that does not decode is an error, and so are rows that
    /// do not belong together. With operations of a log the commit is left to who does them again
    /// ([`Pool::take_replay`]).
    ///
    /// # Errors
    /// As said, and when the commit cannot be.
    pub fn finish(self, rows: &[(Key, Vec<u8>)], log: Option<FoundLog>) -> Result<Arc<Pool>> {
        let Self { store, events, damage, name, created, unnoted } = self;
        let (secret, mut tables) = (random(&*store.world.entropy), Tree::empty());
        let (mut contents, mut pieces) = (Contents { secret, ..Contents::default() }, InPieces::default());
        tables.insert(&TableNodes(&store), Table::Secret.key(0), &secret)?;
        for (key, value) in rows {
            contents.take(key, value, &mut pieces)?;
            tables.insert(&TableNodes(&store), *key, value)?;
        }
        let began = Intent { sequence: 1, ..Intent::default() };
        let (last, ops) = log.map_or((OpSeq::new(0), Vec::new()), |log| (log.last, log.ops));
        let is_over = ops.is_empty();
        let intent = IntentLog::new(&store, began, last, ops);
        let pool = Pool::assemble(Parts { name, created, store, events, damage, intent, tables, contents })?;
        for changes in unnoted {
            pool.take_changes(changes)?;
        }
        pool.apply_device_timeout();
        pool.beat()?;
        if is_over {
            pool.commit()?;
        }
        Ok(pool)
    }
}
