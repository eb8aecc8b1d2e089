//! The whole way from devices to a pool that can be read.

use crate::count::count;
use crate::cut::cut_lost;
use crate::error::{RepairError, Result};
use crate::identify::{Identified, Source, identify};
use crate::mend::{self, Named, Orphaned, Plan};
use crate::nodes::{Aliases, NodeReader, Nodes, pointer};
use crate::report::{DeviceReport, LogReport, Report, TreeReport};
use crate::rows::Rows;
use crate::slots::{Found, Segments};
use crate::stripes::{Scanned, scan};
use crate::trees::{self, Fences, Lines, Span, Survey};
use bytes::Bytes;
use larder_device::{Device, Overlay};
use larder_format::block::{BlockKind, CheckedHeader};
use larder_format::checksum::Sums;
use larder_format::commit_record::CommitRecord;
use larder_format::items::{EXTENT, MAX_INODE};
use larder_format::label::{LABEL_AREA, MIN_DEVICE};
use larder_format::node::Key;
use larder_format::root::{Root, RootImport};
use larder_format::segment::{SegmentKind, SegmentRecord, Slot, StripeHeader};
use larder_format::{
    BlockId, BlockPtr, ByteLen, CommitId, DatasetId, DeviceGuid, DeviceIndex, GroupIndex, Incarnation, Place,
    SegmentId, SlotIndex,
};
use larder_pool::create::{data_start, slot_count};
use larder_pool::rebuild::{FoundDevice, FoundLog, FoundPool, Rebuilding};
use larder_pool::{Pool, ROOT_DATASET, World};
use larder_store::{PoolError, is_of_history, plain_of};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Commits, blocks and segments of the pool that is put together have these numbers and greater ones. What is there has
/// not: ids are skipped by 2^40 an import.
const NEXT: u64 = 1 << 61;
/// Bytes of the device that takes what is written, at least, and what part of all devices' it has: a sparse file.
const SCRATCH: (u64, u64) = (4 << 30, 4);
/// Segments that are gone through side by side.
const AT_ONCE: usize = 8;

/// Stages of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It looks through all bytes for the pool's key, since no label is left.
    Key,
    /// It looks at the starts of slots.
    Slots,
    /// It goes through segments.
    Segments,
    /// It puts trees together.
    Trees,
    /// It goes through segments again, for blocks of files that no tree has.
    Orphaned,
    /// It counts the files of trees.
    Files,
}

/// Progress of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// Done of it.
    pub done: u64,
    /// Of so many.
    pub of: u64,
}

/// Needs of a repair besides devices.
pub struct Options<'a> {
    /// The pool's name, or the GUID that its blocks name in decimal, where devices are of several.
    pub pool: Option<&'a str>,
    /// The commit to go back to, if its root is left.
    pub commit: Option<CommitId>,
    /// Does again what the intent log holds above the newest commit, where all trees are whole: whoever mounts the pool
    /// does.
    pub log: bool,
    /// Makes holes of records that are lost, so that whoever sends the pool meets none.
    pub cut: bool,
    /// Makes a device of this size that holds nothing: a sparse file.
    pub scratch: &'a dyn Fn(ByteLen) -> std::result::Result<Arc<dyn Device>, PoolError>,
    /// Is shown how far it is.
    pub shown: &'a (dyn Fn(Progress) + Sync),
}

/// A pool that was put together.
pub struct Repaired {
    /// To be read, not to be written or kept well. Its devices are not the damaged pool's.
    pub pool: Arc<Pool>,
    /// Findings.
    pub report: Report,
}

/// The name of the pool that these devices are of.
///
/// # Errors
/// When no pool is found, or several.
pub fn name_of(devices: &[Arc<dyn Device>], pool: Option<&str>, shown: &dyn Fn(Progress)) -> Result<String> {
    Ok(identify(devices, pool, &|done, of| shown(Progress { stage: Stage::Key, done, of }))?.name)
}

/// Puts together what is left of a pool on these devices, of which nothing is written.
///
/// # Errors
/// When no pool is found, or the new one cannot be written.
pub fn repair(world: World, devices: &[Arc<dyn Device>], options: &Options<'_>) -> Result<Repaired> {
    let looked = |done, of| (options.shown)(Progress { stage: Stage::Key, done, of });
    let mut found = identify(devices, options.pool, &looked)?;
    let of = found.sources.iter().filter(|one| one.device.is_some()).map(|one| u64::from(one.slots)).sum();
    let done = AtomicU64::new(0);
    let looked = |more| {
        let done = done.fetch_add(more, Ordering::Relaxed) + more;
        if done.is_multiple_of(256) || done == of {
            (options.shown)(Progress { stage: Stage::Slots, done, of });
        }
    };
    let segments = Segments::find(&found, &world.workers, &looked);
    found.note_missing(segments.found.values().map(|found| &found.record));
    let found = found;
    let mut slots = SlotsTaken::new(&found, &segments);
    let mut rebuilding = begin(&world, &found, &slots, options)?;
    let mut looked = look_through(&world, &found, &segments, &mut slots, &mut rebuilding, options)?;
    rebuilding.settle()?;
    let history = looked.history(found.roots.first());
    looked.nodes.retain(|node| is_of_history(&history, node.birth, node.incarnation));
    looked.nodes.sort();
    rebuilding.set_history(&history);
    looked.records.retain(|(_, record)| is_of_history(&history, record.commit, record.incarnation));
    let records = std::mem::take(&mut looked.records);
    let reader = NodeReader { nodes: &looked.nodes, segments: &segments, sums: &found.sums };
    let last_commit = looked.last_commit(&history);
    let root = root_of(reader, &found, (options.commit, last_commit))?;
    let mut rows = Rows::find(reader, root.map(|root| root.tables.id), last_commit, records);
    rows.settle(&found.name, world.clock.now(), looked.nodes.datasets());
    let mending = Mending {
        world: &world,
        found: &found,
        segments: &segments,
        reader,
        rebuilding: &rebuilding,
        options,
        exact: rows.are_of_one_commit,
        last_commit,
        history: &history,
    };
    let mut trees = mending.trees(&mut rows)?;
    mending.count(&mut trees, &mut rows)?;
    if trees.iter().any(|tree| tree.of.1.is_some() && (tree.is_new || tree.is_cut)) {
        rows.renumber(|| rebuilding.take_id());
    }
    if options.cut {
        rows.show_origins();
    }
    let unknown_tables = rows.unknown as u64;
    let log = log_of(&found, root, &trees, &rebuilding, options)?;
    let told = match (&log, found.roots.first()) {
        (Some(log), _) if log.is_whole => LogReport::Again(log.len() as u64),
        (Some(log), _) => LogReport::InPart(log.len() as u64),
        (None, Some(root)) if !root.log_open => LogReport::Again(0),
        (None, _) => LogReport::LeftOut,
    };
    let pool = rebuilding.finish(&rows.into_entries(), log)?;
    let reports = trees.into_iter().filter_map(|tree| tree.is_shown.then_some(tree.report)).collect();
    let report = Report {
        pool: found.name.clone(),
        guid: found.sums.pool().get(),
        devices: found.sources.iter().map(device_report).collect(),
        newest_root: found.roots.first().map(|root| (root.commit, root.time)),
        root: root.map(|root| (root.commit, root.time)),
        newer: root.filter(|root| last_commit > root.commit).map(|_| last_commit),
        slots: segments.slots,
        segments: segments.found.len() as u64,
        blocks: looked.blocks,
        bytes: looked.bytes,
        rebuilt_columns: looked.rebuilt,
        lost_columns: looked.wrong,
        unread: segments.unread.bytes(),
        unknown_tables,
        log: told,
        remarks: found.remarks.clone(),
        trees: reports,
    };
    Ok(Repaired { pool, report })
}

/// Operations of the intent log above the newest root, if what it is to be done to is as it was: all trees are whole.
fn log_of(
    found: &Identified,
    root: Option<&Root>,
    trees: &[Mended],
    rebuilding: &Rebuilding,
    options: &Options<'_>,
) -> Result<Option<FoundLog>> {
    let newest = found.roots.first().map(|root| root.commit);
    let root = root.filter(|root| options.log && options.commit.is_none() && newest == Some(root.commit));
    let are_whole = trees.iter().all(|tree| !tree.is_new && !tree.report.guessed);
    match root.filter(|_| are_whole) {
        Some(root) => Ok(Some(rebuilding.log_of(root)?)),
        None => Ok(None),
    }
}

fn device_report(source: &Source) -> DeviceReport {
    DeviceReport {
        index: source.index.get(),
        name: source.device.as_ref().map(|device| device.name()),
        unlabelled: source.unlabelled,
    }
}

/// Slots of the pool that is put together: those that are there, and, for columns that no device has, those of one
/// device a group that cannot be read.
struct SlotsTaken {
    /// Slots of devices that are there.
    there: HashMap<DeviceIndex, u32>,
    taken: HashSet<Slot>,
    /// For each group the device that is not there, slots of it that are given away, and in all.
    absent: HashMap<GroupIndex, (DeviceIndex, u32, u32)>,
}

impl SlotsTaken {
    fn new(found: &Identified, segments: &Segments) -> Self {
        let mut there = HashMap::new();
        let known: HashSet<u16> = found.sources.iter().map(|source| source.index.get()).collect();
        let mut others = (0..u16::MAX).filter(|number| !known.contains(number));
        for source in &found.sources {
            if let (Some(device), Some(group)) = (&source.device, found.group(source.group)) {
                there.insert(source.index, slot_count(device.size(), group.slot_size, found.ashift));
            }
        }
        let mut absent = HashMap::new();
        for group in &found.groups {
            let of = segments.found.values().filter(|of| of.record.group == group.index);
            let columns = of.map(|of| of.record.slots.len() as u64).sum::<u64>();
            let columns = u32::try_from(columns).unwrap_or(u32::MAX);
            // A pool has fewer devices than there are numbers.
            let number = others.next().unwrap_or(u16::MAX);
            absent.insert(group.index, (DeviceIndex::new(number), 0, columns));
        }
        Self { there, taken: HashSet::new(), absent }
    }

    /// A slot for each column of a segment: the one that was right most often.
    fn choose(&mut self, found: &Found, scanned: &Scanned) -> Option<Vec<Slot>> {
        let mut slots = Vec::new();
        for (of, proven) in found.columns.iter().zip(&scanned.proven) {
            let is_there =
                |slot: &Slot| self.there.get(&slot.device).is_some_and(|slots| slot.index.get() < *slots);
            let free = of.iter().zip(proven).filter(|(slot, _)| is_there(slot) && !self.taken.contains(slot));
            let best = free.rev().max_by_key(|(_, proven)| **proven).map(|(slot, _)| *slot);
            let slot = match best {
                Some(slot) => slot,
                None => {
                    let (device, used, _) = self.absent.get_mut(&found.record.group)?;
                    *used += 1;
                    Slot { device: *device, index: SlotIndex::new(*used - 1) }
                }
            };
            self.taken.insert(slot);
            slots.push(slot);
        }
        Some(slots)
    }
}

fn begin(world: &World, found: &Identified, slots: &SlotsTaken, options: &Options<'_>) -> Result<Rebuilding> {
    let overlay = |name, base, size| -> Result<Arc<dyn Device>> {
        Ok(Arc::new(Overlay::new(name, base, size, (options.scratch)(ByteLen::new(MIN_DEVICE))?)))
    };
    let (mut devices, mut all) = (Vec::new(), 0u64);
    for source in &found.sources {
        let Some(base) = &source.device else { continue };
        all = all.saturating_add(base.size().get());
        let device = overlay(base.name(), Some(Arc::clone(base)), base.size())?;
        devices.push(FoundDevice { index: source.index, group: source.group, guid: source.guid, device });
    }
    for group in &found.groups {
        let (index, _, count) = slots.absent[&group.index];
        let size =
            data_start(found.ashift).get() + u64::from(count) * u64::from(group.slot_size) + 2 * LABEL_AREA;
        let size = ByteLen::new(size.max(MIN_DEVICE).next_multiple_of(LABEL_AREA));
        let device = overlay(format!("what is not there of group {}", group.index.get()), None, size)?;
        let guid = DeviceGuid::new(world.entropy.next_u64());
        devices.push(FoundDevice { index, group: group.index, guid, device });
    }
    let size = (all / SCRATCH.1).max(SCRATCH.0).next_multiple_of(LABEL_AREA);
    Ok(Rebuilding::begin(
        world.clone(),
        FoundPool {
            name: found.name.clone(),
            created: found.created,
            sums: found.sums.clone(),
            ashift: found.ashift,
            features: found.features,
            groups: found.groups.clone(),
            devices,
            scratch: (options.scratch)(ByteLen::new(size))?,
            next: (CommitId::new(NEXT), BlockId::new(NEXT), SegmentId::new(NEXT)),
        },
    )?)
}

/// Contents of the segments.
#[derive(Default)]
struct Looked {
    nodes: Nodes,
    records: Records,
    /// Commits of each import: the first and the last that something was written for.
    imports: HashMap<Incarnation, (CommitId, CommitId)>,
    blocks: u64,
    bytes: u64,
    rebuilt: u64,
    wrong: u64,
}

impl Looked {
    fn note(&mut self, header: &CheckedHeader) {
        let (first, last) = self.imports.entry(header.incarnation).or_insert((header.birth, header.birth));
        (*first, *last) = ((*first).min(header.birth), (*last).max(header.birth));
    }

    /// The last commit that anything was written for, by an import of this history.
    fn last_commit(&self, history: &[RootImport]) -> CommitId {
        let ours = history.iter().filter_map(|import| self.imports.get(&import.incarnation));
        ours.map(|(_, last)| *last).max().unwrap_or(CommitId::new(0))
    }

    /// The imports of the pool, the latest first: as the newest root tells, and where that does not reach, as blocks
    /// do. An import's first root repeats the one before it, so nothing is written for its first commit.
    fn history(&self, root: Option<&Root>) -> Vec<RootImport> {
        let mut history: Vec<RootImport> = root.map_or_else(Vec::new, |root| root.history.clone());
        let known: HashSet<_> = history.iter().map(|import| import.incarnation).collect();
        let oldest = history.last().map(|one| one.first);
        for (incarnation, (first, _)) in &self.imports {
            // An import that overlaps with the root's was apart from it.
            let is_newer = root.is_none_or(|root| *first > root.commit);
            let is_older = oldest.is_some_and(|oldest| *first < oldest);
            if !known.contains(incarnation) && (is_newer || is_older) {
                let first = CommitId::new(first.get().saturating_sub(1).max(1));
                let (first_block, skipped) = (BlockId::new(0), 0);
                history.push(RootImport { incarnation: *incarnation, first, first_block, skipped });
            }
        }
        history.sort_by_key(|import| std::cmp::Reverse(import.first));
        history
    }
}

/// Commit records, by their blocks' ids.
type Records = Vec<(BlockId, CommitRecord)>;

/// A segment that was gone through.
struct Gone {
    scanned: Scanned,
    blocks: Vec<(Place, CheckedHeader)>,
    aliases: Aliases,
    records: Records,
}

fn go_through(
    found: &Identified,
    segments: &Segments,
    segment: &Found,
    is_ours: &(dyn Fn(&StripeHeader) -> bool + Sync),
) -> Gone {
    let (mut blocks, mut aliases, mut records) = (Vec::new(), Aliases::default(), Records::new());
    let scanned = scan(segments, segment, &found.sums, is_ours, &mut |place, header, stored| {
        if header.id.get() >= NEXT {
            return;
        }
        match header.info.kind {
            BlockKind::Run => aliases.add(header, stored),
            BlockKind::CommitRecord => records.extend(record_of(&found.sums, header, stored)),
            _ => {}
        }
        blocks.push((place, *header));
    });
    Gone { scanned, blocks, aliases, records }
}

/// The commit record in a block, if it is one of this pool.
fn record_of(sums: &Sums, header: &CheckedHeader, stored: &[u8]) -> Option<(BlockId, CommitRecord)> {
    let plain = plain_of(header, &Bytes::copy_from_slice(stored), BlockKind::CommitRecord).ok()?;
    let record = CommitRecord::check(&plain).ok()?;
    let is_ours = (record.pool, record.label.key) == (sums.pool(), sums.key());
    is_ours.then_some((header.id, record))
}

/// Goes through all segments: the new pool gets those with records and nodes, and its map each block.
fn look_through(
    world: &World,
    found: &Identified,
    segments: &Segments,
    slots: &mut SlotsTaken,
    rebuilding: &mut Rebuilding,
    options: &Options<'_>,
) -> Result<Looked> {
    let (mut looked, mut aliases, mut further) = (Looked::default(), Aliases::default(), 0);
    let is_ours = is_of_root(found.roots.first());
    // The latest first: where two segments claim a slot, it is the later one's.
    let all: Vec<(&SegmentId, &Found)> =
        segments.found.iter().rev().filter(|(_, of)| of.record.kind != SegmentKind::Log).collect();
    let of = all.len() as u64;
    for (number, batch) in (0..).zip(all.chunks(AT_ONCE)) {
        (options.shown)(Progress { stage: Stage::Segments, done: number * AT_ONCE as u64, of });
        let gone = world.workers.map(batch.len(), |i| go_through(found, segments, batch[i].1, &is_ours));
        for ((id, segment), gone) in batch.iter().zip(gone) {
            let Gone { scanned, blocks, aliases: more, records } = gone;
            aliases.extend(more);
            looked.records.extend(records);
            looked.blocks += blocks.len() as u64;
            looked.bytes += scanned.bytes;
            looked.rebuilt += scanned.rebuilt;
            looked.wrong += scanned.wrong;
            blocks.iter().for_each(|(_, header)| looked.note(header));
            let is_mapped =
                matches!(segment.record.kind, SegmentKind::Data | SegmentKind::Small | SegmentKind::Node);
            if !is_mapped {
                let tables = blocks.iter().filter(|(_, header)| header.info.kind == BlockKind::Table);
                tables.for_each(|(place, header)| looked.nodes.add(header, *place));
                continue;
            }
            if id.get() >= NEXT {
                continue;
            }
            let Some(chosen) = slots.choose(segment, &scanned) else { continue };
            let rest = segment.without(&chosen);
            if rest.columns.iter().all(Vec::is_empty) {
                take_in(&segment.record, **id, (&scanned, &blocks, chosen), &mut looked, rebuilding)?;
                continue;
            }
            // Of several slots of a column the new pool reads one. What only others have is there as a segment more.
            let first = Found { columns: chosen.iter().map(|slot| vec![*slot]).collect(), ..segment.again() };
            let gone = go_through(found, segments, &first, &is_ours);
            take_in(&segment.record, **id, (&gone.scanned, &gone.blocks, chosen), &mut looked, rebuilding)?;
            let has: HashSet<BlockId> = gone.blocks.iter().map(|(_, header)| header.id).collect();
            let mut gone = go_through(found, segments, &rest, &is_ours);
            gone.blocks.retain(|(_, header)| !has.contains(&header.id));
            further += 1;
            let other = SegmentId::new(NEXT - further);
            gone.blocks.iter_mut().for_each(|(place, _)| place.segment = other);
            if let Some(chosen) = slots.choose(&rest, &gone.scanned).filter(|_| !gone.blocks.is_empty()) {
                take_in(
                    &segment.record,
                    other,
                    (&gone.scanned, &gone.blocks, chosen),
                    &mut looked,
                    rebuilding,
                )?;
            }
        }
    }
    for (id, to) in aliases.iter() {
        // One that has a place of its own is none any more, or not yet.
        let is_there = |id| rebuilding.store().places_of(id).map(|places| !places.is_empty());
        if !is_there(id)? && is_there(to)? {
            rebuilding.alias(id, to)?;
        }
    }
    Ok(looked)
}

/// Has the new pool take a segment, as `id` and in these slots, with its records and nodes. One that it refuses is not
/// there.
fn take_in(
    of: &SegmentRecord,
    id: SegmentId,
    (scanned, blocks, slots): (&Scanned, &[(Place, CheckedHeader)], Vec<Slot>),
    looked: &mut Looked,
    rebuilding: &mut Rebuilding,
) -> Result<()> {
    let is_mapped = |(_, header): &&(Place, CheckedHeader)| {
        matches!(header.info.kind, BlockKind::Record | BlockKind::Node)
    };
    let mut record =
        SegmentRecord { id, slots, height: scanned.height, filled: scanned.filled, ..of.clone() };
    for (_, header) in blocks.iter().filter(is_mapped) {
        record.live_blocks = record.live_blocks.saturating_add(1);
        record.live_bytes += header.footprint();
    }
    record.placed = record.live_bytes;
    if rebuilding.adopt(&record).is_err() {
        return Ok(());
    }
    for (place, header) in blocks.iter().filter(is_mapped) {
        if header.info.kind == BlockKind::Node {
            // Nodes are read where they were found.
            looked.nodes.add(header, Place { segment: of.id, ..*place });
        }
        rebuilding.put(header.id, *place)?;
    }
    Ok(())
}

/// Whether a stripe may be of the line of a root's imports.
fn is_of_root(root: Option<&Root>) -> impl Fn(&StripeHeader) -> bool + Sync {
    let history = root.map_or_else(Vec::new, |root| root.history.clone());
    let newest = root.map_or(CommitId::new(0), |root| root.commit);
    move |header| header.commit > newest || is_of_history(&history, header.commit, header.incarnation)
}

/// The newest root whose tables are whole; the one of `commit`, if that is asked for. Blocks of the commit after it may
/// be of one that was under way; those of a later one, the `last`, tell of roots that are lost: then what was found
/// counts.
fn root_of<'r>(
    reader: NodeReader<'_>,
    found: &'r Identified,
    (commit, last): (Option<CommitId>, CommitId),
) -> Result<Option<&'r Root>> {
    let mut whole = found.roots.iter().filter(|root| Rows::are_whole(reader, root.tables.id));
    let Some(commit) = commit else {
        return Ok(whole.next().filter(|root| last <= root.commit.next()));
    };
    let whole: Vec<&Root> = whole.collect();
    let there = whole.iter().map(|root| root.commit.get()).collect();
    let root = whole.into_iter().find(|root| root.commit == commit);
    root.map(Some).ok_or(RepairError::NoSuchCommit { wanted: commit.get(), there })
}

struct Mending<'a> {
    world: &'a World,
    found: &'a Identified,
    segments: &'a Segments,
    reader: NodeReader<'a>,
    rebuilding: &'a Rebuilding,
    options: &'a Options<'a>,
    /// The rows are those of one commit, and tell the roots of all trees.
    exact: bool,
    /// The last commit that anything was written for.
    last_commit: CommitId,
    history: &'a [RootImport],
}

/// A tree that was put together.
struct Mended {
    of: TreeKey,
    root: Option<BlockPtr>,
    /// It has new nodes, for some were lost.
    is_new: bool,
    /// Records that were lost are holes.
    is_cut: bool,
    /// It is none of what only clones and the trash have.
    is_shown: bool,
    report: TreeReport,
}

/// A tree to be put together: of a dataset as it is now, or of a snapshot by its `high`.
type TreeKey = (DatasetId, Option<BlockId>);

/// Sources of a tree.
struct Wanted {
    root: Option<BlockId>,
    guessed: bool,
    /// All of it may be an older state.
    is_older: bool,
    plan: Option<Plan>,
}

impl Mending<'_> {
    /// Mends the trees of all datasets and snapshots, and has the rows tell their roots. Each is planned twice where
    /// something is lost, so that of all plans no more is held than ranges of which nothing is known.
    fn trees(&self, rows: &mut Rows) -> Result<Vec<Mended>> {
        let heads: Vec<TreeKey> = rows.datasets.keys().map(|id| (*id, None)).collect();
        let snapshots = rows.snapshots.keys().map(|(id, high)| (*id, Some(*high)));
        let all: Vec<TreeKey> = snapshots.chain(heads).collect();
        let of = 2 * all.len() as u64;
        let mut fences = None;
        let mut unknown: HashMap<DatasetId, Vec<Span>> = HashMap::new();
        for (done, key) in (0..).zip(&all) {
            (self.options.shown)(Progress { stage: Stage::Trees, done, of });
            let plan = self.plan(rows, *key, &mut fences).plan;
            if let Some(plan) = plan.filter(|plan| key.1.is_none() && !plan.unknown.is_empty()) {
                unknown.insert(key.0, plan.unknown);
            }
        }
        let mut orphaned = self.orphaned(&unknown);
        let mut mended = Vec::new();
        for (done, key) in (all.len() as u64..).zip(all) {
            (self.options.shown)(Progress { stage: Stage::Trees, done, of });
            let wanted = self.plan(rows, key, &mut fences);
            let orphaned = if key.1.is_none() { orphaned.remove(&key.0) } else { None };
            mended.push(self.mend(rows, key, wanted, &orphaned.unwrap_or_default())?);
        }
        Ok(mended)
    }

    /// Losses of a tree, and their substitutes. `held` are the bounds of the lines that were asked for last.
    fn plan(&self, rows: &Rows, (dataset, high): TreeKey, held: &mut Option<(Vec<u64>, Fences)>) -> Wanted {
        let told = match high {
            Some(high) => rows.snapshots.get(&(dataset, high)).and_then(|record| record.root),
            None => rows.datasets.get(&dataset).and_then(|record| record.root),
        };
        let told = told.map(|ptr| ptr.id);
        let mut wanted = Wanted { root: told, guessed: false, is_older: false, plan: None };
        let survey = told.map(|root| trees::survey(self.reader, root));
        let is_exact = self.exact || high.is_some();
        match &survey {
            None if is_exact => return wanted,
            Some(survey) if is_exact && survey.lost.is_empty() => return wanted,
            _ => {}
        }
        let below = high.unwrap_or(BlockId::new(u64::MAX));
        let mut lines = rows.lines(dataset, below);
        for (of, most) in survey.iter().flat_map(|survey| &survey.met) {
            let bound = lines.entry(*of).or_insert(*most);
            *bound = (*bound).max(*most);
        }
        let fences = self.fences(&lines, held);
        let is_lost = |survey: &Survey| survey.lost.iter().any(|lost| Some(lost.id) == told);
        let known = survey.filter(|survey| !is_lost(survey));
        if is_exact {
            wanted.plan = Some(match known {
                Some(survey) => Plan::of(self.reader, survey.lost, &lines, fences),
                None => {
                    // Its children are the newest below it, and older roots say what was beside them.
                    wanted.root = None;
                    Plan::of_nodes(self.reader, told.unwrap_or(below), &lines, fences)
                }
            });
            return wanted;
        }
        // Rows of several commits tell roots of several commits, too: the newest counts, if it is whole.
        let newest = trees::newest_root(self.reader, dataset.get(), fences, (below, self.last_commit));
        let newest = newest.filter(|newest| match (&known, told) {
            (Some(known), Some(told)) => {
                newest.node.id > told && (newest.survey.lost.is_empty() || !known.lost.is_empty())
            }
            _ => true,
        });
        wanted.guessed = newest.is_some() || known.is_none();
        let survey = match newest {
            Some(newest) => {
                wanted.is_older = !newest.is_last || told > Some(newest.node.id);
                wanted.root = Some(newest.node.id);
                Some(newest.survey)
            }
            None => known,
        };
        wanted.plan = match survey {
            Some(survey) if survey.lost.is_empty() => None,
            Some(survey) => Some(Plan::of(self.reader, survey.lost, &lines, fences)),
            None => {
                wanted.root = None;
                Some(Plan::of_nodes(self.reader, below, &lines, fences))
            }
        };
        wanted
    }

    fn fences<'h>(&self, lines: &Lines, held: &'h mut Option<(Vec<u64>, Fences)>) -> &'h Fences {
        let of: Vec<u64> = lines.keys().copied().collect();
        if held.as_ref().is_none_or(|(held, _)| *held != of) {
            let fences = self.reader.fences(of.iter().copied());
            *held = Some((of, fences));
        }
        &held.as_ref().expect("it was made").1
    }

    /// Records whose owners are in ranges of which nothing is known, of datasets as they are now.
    fn orphaned(&self, unknown: &HashMap<DatasetId, Vec<Span>>) -> HashMap<DatasetId, Vec<Orphaned>> {
        let mut orphaned: HashMap<DatasetId, Vec<Orphaned>> = HashMap::new();
        if unknown.is_empty() {
            return orphaned;
        }
        let of = self.segments.found.len() as u64;
        let is_ours = is_of_root(self.found.roots.first());
        for (done, found) in (0..).zip(self.segments.found.values()) {
            (self.options.shown)(Progress { stage: Stage::Orphaned, done, of });
            if !matches!(found.record.kind, SegmentKind::Data | SegmentKind::Small) {
                continue;
            }
            scan(self.segments, found, &self.found.sums, &is_ours, &mut |place, header, _| {
                let (info, id) = (&header.info, header.id);
                let key = Key::new(info.object, EXTENT, info.offset);
                let is_wanted = info.kind == BlockKind::Record
                    && info.object <= MAX_INODE
                    && is_of_history(self.history, header.birth, header.incarnation)
                    && unknown.get(&info.dataset).is_some_and(|spans| mend::has(spans, &key));
                if is_wanted {
                    let (inode, offset, logical) = (info.object, info.offset, info.logical);
                    let of = orphaned.entry(info.dataset).or_default();
                    of.push(Orphaned { inode, offset, id, place, logical });
                }
            });
        }
        orphaned
    }

    fn mend(
        &self,
        rows: &mut Rows,
        (dataset, high): TreeKey,
        wanted: Wanted,
        orphaned: &[Orphaned],
    ) -> Result<Mended> {
        let Wanted { root, guessed, is_older, plan } = wanted;
        let mut report = TreeReport {
            dataset: full_name(rows, dataset),
            snapshot: None,
            nameless: rows.nameless.contains(&dataset),
            lost_nodes: 0,
            guessed,
            unknown: 0,
            older: if is_older { vec![(0, MAX_INODE)] } else { Vec::new() },
            in_lost_and_found: 0,
            only_names: 0,
            folders: 0,
            unread: None,
            files: Default::default(),
        };
        let root = root.and_then(|root| pointer(self.reader.nodes, root));
        let mut is_shown = !rows.trashed().contains(&dataset);
        let (is_new, mut mended) = (plan.is_some(), root);
        let Some(record) = rows.datasets.get_mut(&dataset) else {
            let of = (dataset, high);
            return Ok(Mended { of, root, is_new: false, is_cut: false, is_shown, report });
        };
        let (salt, now) = (record.name_salt, self.world.clock.now());
        let mut next_inode = record.next_inode;
        if let Some(plan) = plan {
            let mut named = Named::default();
            mended = self.rebuilding.change_tree(dataset, root, |tree, store| {
                mend::apply(tree, store, &plan)?;
                named = mend::settle_names(tree, store, (&salt, now), orphaned, &mut next_inode)?;
                Ok(())
            })?;
            report.lost_nodes = plan.lost.len() as u64;
            report.unknown = plan.unknown.len() as u64;
            report.older.extend(plan.older);
            report.in_lost_and_found = named.nameless;
            report.only_names = named.only_names;
            report.folders = named.folders;
        }
        match high.and_then(|high| rows.snapshots.get_mut(&(dataset, high))) {
            Some(snapshot) => {
                is_shown &= !snapshot.hidden;
                report.snapshot = Some(snapshot.name.clone());
                (snapshot.root, snapshot.next_inode) = (mended, snapshot.next_inode.max(next_inode));
            }
            None => (record.root, record.next_inode) = (mended, next_inode),
        }
        Ok(Mended { of: (dataset, high), root: mended, is_new, is_cut: false, is_shown, report })
    }

    /// Counts the files of all trees, and cuts out what is lost of them if that is asked for.
    fn count(&self, trees: &mut [Mended], rows: &mut Rows) -> Result<()> {
        let (store, of) = (self.rebuilding.store(), trees.len() as u64);
        for (done, tree) in (0..).zip(trees) {
            (self.options.shown)(Progress { stage: Stage::Files, done, of });
            match count(store, tree.root) {
                Ok(files) => tree.report.files = files,
                Err(error) => tree.report.unread = Some(error.to_string()),
            }
            if !self.options.cut || tree.report.files.lost == 0 {
                continue;
            }
            tree.root = self.rebuilding.change_tree(tree.of.0, tree.root, cut_lost)?;
            tree.is_cut = true;
            match tree.of {
                (dataset, Some(high)) => {
                    if let Some(snapshot) = rows.snapshots.get_mut(&(dataset, high)) {
                        snapshot.root = tree.root;
                    }
                }
                (dataset, None) => {
                    if let Some(record) = rows.datasets.get_mut(&dataset) {
                        record.root = tree.root;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A dataset's name with those of its parents.
fn full_name(rows: &Rows, dataset: DatasetId) -> String {
    let above = std::iter::successors(rows.datasets.get(&dataset), |record| {
        rows.datasets.get(&record.parent).filter(|_| record.id != ROOT_DATASET)
    });
    let mut parts: Vec<_> = above.take(rows.datasets.len() + 1).map(|record| record.name.as_str()).collect();
    parts.reverse();
    parts.join("/")
}
