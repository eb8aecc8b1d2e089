//! Structures that a root names, read into the store before there is a pool: segments, tables, block map, log.

use crate::contents::Contents;
use crate::event_log::EventLog;
use crate::intent_log::{Chain, Intent, IntentLog, LogCopy, read_chain};
use crate::ledger::Damage;
use crate::property::device_timeout;
use larder_format::items::INODE_LEASE;
use larder_format::root::Root;
use larder_format::run::RunDescriptor;
use larder_format::segment::{SegmentKind, SegmentRecord, SegmentState};
use larder_format::tables::Table;
use larder_format::{CommitId, Corrupt, DatasetId, Reason, SegmentId};
use larder_sorted::map::BlockMap;
use larder_sorted::tree::Tree;
use larder_store::segments::{Listed, SegmentEntry};
use larder_store::{Class, Event, PoolError, Refusal, Result, RunIo, Store};
use std::collections::HashMap;
use std::sync::Arc;

/// Losses that whoever imports accepts.
#[derive(Clone, Copy)]
pub(crate) struct Accepted {
    /// The rest of a log that cannot be read on.
    pub(crate) log: bool,
    /// The same where it has devices of its own.
    pub(crate) log_alone: bool,
}

/// See the module's text.
pub(crate) struct Found {
    pub(crate) damage: Damage,
    pub(crate) intent: IntentLog,
    pub(crate) tables: Tree,
    pub(crate) contents: Contents,
}

impl Found {
    /// Reads everything that `root` names. After a crash, inode ids that were given out behind the last commit are
    /// passed over. A log that cannot be read on ends there, if the options say so.
    ///
    /// # Errors
    /// When something cannot be read, says what cannot be, or belongs to a later version.
    pub(crate) fn read(
        store: &Arc<Store>,
        events: &EventLog,
        root: &Root,
        accepted: Accepted,
    ) -> Result<Self> {
        let damage = Damage::new(store);
        for record in &root.segments {
            adopt_segment(store, &damage, record, root.segment_lease, root.commit)?;
        }
        let tables = Tree::open(root.tables);
        let mut contents = Contents::read(&tables, store)?;
        // Before more is read.
        let own = contents.properties.get(&DatasetId::new(0));
        let timeout = own.and_then(|own| device_timeout(own.local()));
        store.set_timeouts(timeout.unwrap_or(larder_device::TIMEOUT));
        for (table, number, value) in std::mem::take(&mut contents.kept) {
            match table {
                Table::Damage => damage.adopt(number, &value),
                Table::BadSlots => store.adopt_bad_slot(number, &value),
                _ => events.met(table, number),
            }
        }
        // Of some the root knows better where they lie.
        let moved = |id: SegmentId| root.segments.iter().any(|record| record.id == id);
        // They came in the order in which they lie.
        contents.segments.sort_unstable_by_key(|record| record.id);
        for record in std::mem::take(&mut contents.segments) {
            if moved(record.id) {
                store.move_is_untold(record.id);
            } else {
                adopt_segment(store, &damage, &record, root.segment_lease, root.commit)?;
            }
        }
        store.core.lock().entries.pack();
        store.retire_known_slots();
        let runs = std::mem::take(&mut contents.runs);
        recount_runs(store, runs.iter().chain(contents.parts.iter().map(|part| &part.run)))?;
        let map = BlockMap::open(runs, &RunIo::new(store))?;
        *store.map.lock() = map;
        if !root.exported {
            for record in &mut contents.datasets {
                record.next_inode = record.next_inode.saturating_add(INODE_LEASE);
            }
        }
        let intent = read_log(store, root, accepted)?;
        Ok(Self { damage, intent, tables, contents })
    }
}

/// The log of `root`, from which nothing was taken yet.
fn read_log(store: &Arc<Store>, root: &Root, accepted: Accepted) -> Result<IntentLog> {
    let begin = |last, ops| IntentLog::new(store, Intent { sequence: 1, ..Intent::default() }, last, ops);
    if !root.log_open {
        return Ok(begin(root.applied, Vec::new()));
    }
    let slot_size = |segment: &SegmentRecord| store.members.get(segment.slots[0].device).slot_size;
    let member = |segment: &SegmentRecord, column: usize| store.members.get(segment.slots[column].device);
    // Imports that were cut short before they committed repeat the root that the log belongs to.
    let repeats = (root.history.iter().zip(0..))
        .take_while(|(import, before)| import.first.get() + before == root.commit.get())
        .count() as u64;
    let copy = |segment: &SegmentRecord, column: usize| {
        let member = member(segment, column);
        let is_recent =
            || member.holds().is_none() && member.good_through().get() + 1 + repeats >= root.commit.get();
        match member.is_online() {
            true => LogCopy::Whole,
            false if is_recent() => LogCopy::Recent,
            false => LogCopy::Older,
        }
    };
    let chain = read_chain(&store.sums, root, slot_size, copy, |segment, column, offset, len| {
        let member = member(segment, column);
        let bytes = member.read_anyway(member.slot_offset(segment.slots[column].index, offset), len)?;
        Some(bytes.ok()?.to_vec())
    });
    let Chain { ops, last, unread } = match chain {
        // A read-only import shows the commit, without the log.
        Err(error) if store.read_only => {
            return Ok(begin(root.applied, Vec::new()).left_for(Some(error.to_string())));
        }
        chain => chain?,
    };
    let mut left = None;
    if let Some((segment, offset)) = unread {
        let of = root.segments.iter().find(|record| record.id == segment);
        let is_alone = of.is_some_and(|of| !store.is_vital(of.group));
        let names = of.into_iter().flat_map(|of| &of.slots).map(|slot| store.members.get(slot.device));
        let names: Vec<_> = names.map(|member| member.name()).collect();
        let refusal = Refusal::LogUnread { devices: names.join(" or "), since: root.time, is_alone };
        if store.read_only {
            left = Some(refusal.to_string());
        } else if !(accepted.log || accepted.log_alone && is_alone) {
            return Err(refusal.into());
        } else {
            let text = format!(
                "the intent log goes on unread from {offset} in segment {segment}: its rest is given up"
            );
            store.event(Event::new(Class::Data).text(&text));
        }
    }
    Ok(begin(last, ops).left_for(left))
}

/// Takes a segment from the tables or the root of `commit` into memory, and its slots out of the free ones.
pub(crate) fn adopt_segment(
    store: &Store,
    damage: &Damage,
    record: &SegmentRecord,
    lease: SegmentId,
    commit: CommitId,
) -> Result<()> {
    let bad = |reason| PoolError::from(Corrupt::new("segment record", reason));
    // Else a segment that is opened would get its id.
    if record.id >= lease {
        return Err(bad(Reason::Range));
    }
    if record.state == SegmentState::Freed && record.freed.get() + 2 <= commit.get() {
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
            core.streams.insert((record.kind, record.class, record.copy, record.group), record.id);
        } else {
            core.close_segment(record.id);
        }
    }
    Ok(())
}

/// Live blocks of run segments are counted from the runs: pages of a merge that was cut short are not live.
fn recount_runs<'r>(store: &Store, runs: impl Iterator<Item = &'r RunDescriptor>) -> Result<()> {
    let mut live: HashMap<SegmentId, (u32, u64)> = HashMap::new();
    for footprint in runs.flat_map(|run| &run.footprints) {
        let entry = live.entry(footprint.segment).or_default();
        let sums = (entry.0.checked_add(footprint.blocks)).zip(entry.1.checked_add(footprint.bytes));
        *entry = sums.ok_or(Corrupt::new("run descriptor", Reason::Range))?;
    }
    let mut core = store.core.lock();
    for id in core.entries.ids(Listed::Run).clone() {
        let (blocks, bytes) = live.remove(&id).unwrap_or_default();
        core.entries.change(id, |entry| {
            entry.dirty |= (entry.live_blocks, entry.live_bytes) != (blocks, bytes);
            (entry.live_blocks, entry.live_bytes) = (blocks, bytes);
            entry.placed = entry.placed.max(bytes);
        });
    }
    if live.is_empty() { Ok(()) } else { Err(Corrupt::new("run descriptor", Reason::Identity).into()) }
}
