//! What a root names, read into the store before there is a pool: segments, tables, block map, log.

use crate::contents::Contents;
use crate::event_log::EventLog;
use crate::intent_log::{Intent, IntentLog, read_chain};
use crate::ledger::Damage;
use larder_format::items::INODE_LEASE;
use larder_format::root::Root;
use larder_format::run::RunDescriptor;
use larder_format::segment::{SegmentKind, SegmentRecord, SegmentState};
use larder_format::tables::Table;
use larder_format::{Corrupt, Reason, SegmentId};
use larder_sorted::map::BlockMap;
use larder_sorted::tree::Tree;
use larder_store::segments::SegmentEntry;
use larder_store::{PoolError, Result, RunIo, Store};
use std::collections::HashMap;
use std::sync::Arc;

/// See the module's text.
pub(crate) struct Found {
    pub(crate) damage: Damage,
    pub(crate) intent: IntentLog,
    pub(crate) tables: Tree,
    pub(crate) contents: Contents,
}

impl Found {
    /// Reads everything that `root` names. After a crash (`unclean`), inode ids that were given out behind the last
    /// commit are passed over.
    ///
    /// # Errors
    /// When something cannot be read, says what cannot be, or belongs to a later version.
    pub(crate) fn read(store: &Arc<Store>, events: &EventLog, root: &Root, unclean: bool) -> Result<Self> {
        let damage = Damage::new(store);
        for record in &root.segments {
            adopt_segment(store, &damage, record, root)?;
        }
        let tables = Tree::open(root.tables);
        let mut contents = Contents::read(&tables, store)?;
        for (table, number, value) in std::mem::take(&mut contents.kept) {
            match table {
                Table::Damage => damage.adopt(number, &value),
                Table::BadSlots => store.adopt_bad_slot(number, &value),
                _ => events.met(table, number),
            }
        }
        // Of some the root knows better where they lie.
        let moved = |id: SegmentId| root.segments.iter().any(|record| record.id == id);
        for record in std::mem::take(&mut contents.segments) {
            if moved(record.id) {
                store.move_is_untold(record.id);
            } else {
                adopt_segment(store, &damage, &record, root)?;
            }
        }
        store.retire_known_slots();
        let runs = std::mem::take(&mut contents.runs);
        recount_runs(store, runs.iter().chain(contents.parts.iter().map(|part| &part.run)))?;
        let map = BlockMap::open(runs, &RunIo::new(store))?;
        *store.map.lock() = map;
        if unclean {
            for record in &mut contents.datasets {
                record.next_inode = record.next_inode.saturating_add(INODE_LEASE);
            }
        }
        let intent = read_log(store, root)?;
        Ok(Self { damage, intent, tables, contents })
    }
}

/// The log of `root`, from which nothing was taken yet.
fn read_log(store: &Arc<Store>, root: &Root) -> Result<IntentLog> {
    let (mut ops, mut last) = (Vec::new(), root.applied);
    if root.log_open {
        let slot_size = |segment: &SegmentRecord| store.members.get(segment.slots[0].device).slot_size;
        let chain = read_chain(&store.sums, root, slot_size, |segment, column, offset, len| {
            let slot = segment.slots[column];
            let member = store.members.get(slot.device);
            let pending = member.read(member.slot_offset(slot.index, offset), len)?;
            let bytes = member.wait(pending).ok()?;
            Some(bytes.to_vec())
        });
        match chain {
            // Whoever only reads is shown the commit, without the log.
            Err(_) if store.read_only => {}
            chain => (ops, last) = chain?,
        }
    }
    Ok(IntentLog::new(store, Intent { sequence: 1, ..Intent::default() }, last, ops))
}

/// Takes a segment from the tables or the root into memory, and its slots out of the free ones.
fn adopt_segment(store: &Store, damage: &Damage, record: &SegmentRecord, root: &Root) -> Result<()> {
    let bad = |reason| PoolError::from(Corrupt::new("segment record", reason));
    // Else a segment that is opened would get its id.
    if record.id >= root.segment_lease {
        return Err(bad(Reason::Range));
    }
    if record.state == SegmentState::Freed && record.freed.get() + 2 <= root.commit.get() {
        if !record.kind.is_rooted() {
            store.core.lock().gone.push(record.id);
        }
        return Ok(());
    }
    let mut core = store.core.lock();
    let core = &mut *core;
    let group = core.groups.change(record.group).ok_or_else(|| bad(Reason::Identity))?;
    if record.height > group.slot_size {
        return Err(bad(Reason::Range));
    }
    for &slot in &record.slots {
        if !store.members.has(slot.device) || store.members.get(slot.device).group != record.group {
            return Err(bad(Reason::Identity));
        }
        if !group.take(slot) {
            return Err(bad(Reason::Order));
        }
    }
    if record.unnamed {
        damage.adopt_unnamed(record);
    }
    let entry = SegmentEntry::from_record(record);
    store.readable.insert(&entry.segment);
    core.entries.insert(entry);
    if record.state == SegmentState::Open && record.kind != SegmentKind::Log {
        if core.fits(record.id) {
            core.streams.insert((record.kind, record.class, record.group), record.id);
        } else {
            core.close_segment(record.id);
        }
    }
    Ok(())
}

/// What lives in run segments follows from the runs: pages of a merge that was cut short do not.
fn recount_runs<'r>(store: &Store, runs: impl Iterator<Item = &'r RunDescriptor>) -> Result<()> {
    let mut live: HashMap<SegmentId, (u32, u64)> = HashMap::new();
    for footprint in runs.flat_map(|run| &run.footprints) {
        let entry = live.entry(footprint.segment).or_default();
        let sums = (entry.0.checked_add(footprint.blocks)).zip(entry.1.checked_add(footprint.bytes));
        *entry = sums.ok_or(Corrupt::new("run descriptor", Reason::Range))?;
    }
    let mut core = store.core.lock();
    for id in core.entries.select(|entry| entry.segment.kind == SegmentKind::Run) {
        let (blocks, bytes) = live.remove(&id).unwrap_or_default();
        core.entries.change(id, |entry| {
            entry.dirty |= (entry.live_blocks, entry.live_bytes) != (blocks, bytes);
            (entry.live_blocks, entry.live_bytes) = (blocks, bytes);
            entry.placed = entry.placed.max(bytes);
        });
    }
    if live.is_empty() { Ok(()) } else { Err(Corrupt::new("run descriptor", Reason::Identity).into()) }
}
