//! Segments, by the descriptors in the slots, and where a descriptor is lost by the first stripe.
//!
//! Of the slots that a descriptor names only its own is certain: others may have been retired, or given to a later
//! segment. So a column is where its own descriptor is; where none is left, where others say, unless that slot is known
//! to be another's. A column can have several such places: a slot that refused a write, a device that stood in.

use crate::identify::{Identified, Source};
use crate::read::{Column, Unread, read_all_there_is};
use larder_device::{Device, Workers};
use larder_format::block::{self, BlockKind, CheckedHeader};
use larder_format::checksum::Sums;
use larder_format::segment::{
    DESCRIPTOR_LEN, Layout, STRIPE_STEP, SegmentKind, SegmentRecord, SegmentState, Slot, StripeHeader,
    check_descriptor, stripe_header_len,
};
use larder_format::{BlockId, CommitId, DeviceIndex, DeviceOffset, GroupIndex, Place, SegmentId, SlotIndex};
use larder_pool::create::data_start;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// A segment that was found.
pub(crate) struct Found {
    /// As it was opened, but closed, with a slot for each column.
    pub(crate) record: SegmentRecord,
    /// Slots of each column, the likeliest first; none where nothing tells.
    pub(crate) columns: Vec<Vec<Slot>>,
}

impl Found {
    /// The same, of which no column is known.
    pub(crate) fn again(&self) -> Self {
        Self { record: self.record.clone(), columns: vec![Vec::new(); self.columns.len()] }
    }

    /// The same with the other slots of its columns.
    pub(crate) fn without(&self, slots: &[Slot]) -> Self {
        let others =
            |(of, taken): (&Vec<Slot>, &Slot)| of.iter().filter(|slot| *slot != taken).copied().collect();
        Self { columns: self.columns.iter().zip(slots).map(others).collect(), ..self.again() }
    }
}

/// A device, and its slots.
struct Lies {
    device: Arc<dyn Device>,
    group: GroupIndex,
    slot_size: u32,
    slots: u32,
}

/// All segments, and how their bytes are read.
pub(crate) struct Segments {
    pub(crate) found: BTreeMap<SegmentId, Found>,
    devices: HashMap<DeviceIndex, Lies>,
    data_start: DeviceOffset,
    pub(crate) unread: Unread,
    /// Slots that were looked at.
    pub(crate) slots: u64,
}

/// Start of a slot.
enum Start {
    /// A descriptor: the segment, and the column.
    Descriptor(Box<SegmentRecord>, usize),
    /// No descriptor, but a stripe, and the kind of the first block in it.
    Stripe(StripeHeader, Option<BlockKind>),
}

impl Segments {
    /// Looks at the start of each slot of all devices.
    pub(crate) fn find(of: &Identified, workers: &Arc<dyn Workers>, shown: &(dyn Fn(u64) + Sync)) -> Self {
        let unread = Unread::default();
        let there: Vec<&Source> = of.sources.iter().filter(|source| source.device.is_some()).collect();
        let starts = workers.map(there.len(), |i| starts_of(of, there[i], &unread, shown));
        let mut all = Self {
            found: BTreeMap::new(),
            devices: HashMap::new(),
            data_start: data_start(of.ashift),
            unread,
            slots: 0,
        };
        for source in &there {
            let slot_size = of.group(source.group).map_or(0, |group| group.slot_size);
            all.slots += u64::from(source.slots);
            let lies = |device| Lies { device, group: source.group, slot_size, slots: source.slots };
            all.devices.extend(source.device.clone().map(|device| (source.index, lies(device))));
        }
        let mut owned = HashSet::new();
        let mut headless = Vec::new();
        for (source, starts) in there.iter().zip(starts) {
            for (index, start) in starts {
                let slot = Slot { device: source.index, index: SlotIndex::new(index) };
                match start {
                    Start::Descriptor(record, column) => {
                        owned.insert(slot);
                        all.add(*record, column, slot);
                    }
                    Start::Stripe(header, kind) => headless.push((source.group, slot, header, kind)),
                }
            }
        }
        for (group, slot, header, kind) in headless {
            owned.insert(slot);
            let record = all.found.get(&header.segment).map(|found| found.record.clone());
            let rule = of.group(group).map(|group| group.rule.layout);
            let record = record.or_else(|| record_by_stripe(&header, kind, slot, group, rule?));
            if let Some(record) = record.filter(|record| usize::from(header.column) < record.slots.len()) {
                all.add(record, header.column.into(), slot);
            }
        }
        for found in all.found.values_mut() {
            for (column, slots) in found.columns.iter_mut().enumerate() {
                let told = found.record.slots[column];
                let lies = all.devices.get(&told.device);
                let may_be =
                    lies.is_some_and(|on| on.group == found.record.group && told.index.get() < on.slots);
                if slots.is_empty() && !owned.contains(&told) && may_be {
                    slots.push(told);
                }
            }
        }
        all
    }

    fn add(&mut self, record: SegmentRecord, column: usize, slot: Slot) {
        let found = self.found.entry(record.id).or_insert_with(|| Found {
            columns: vec![Vec::new(); record.slots.len()],
            record: SegmentRecord { state: SegmentState::Closed, ..record.clone() },
        });
        let is_own = record.slots.get(column) == Some(&slot);
        if let Some(slots) = found.columns.get_mut(column) {
            slots.insert(if is_own { 0 } else { slots.len() }, slot);
        }
    }

    /// The device of a slot, where on it that begins, and its bytes.
    fn at(&self, slot: Slot) -> Option<(&Arc<dyn Device>, u64, u32)> {
        let Lies { device, slot_size, .. } = self.devices.get(&slot.device)?;
        Some((
            device,
            self.data_start.get() + u64::from(slot.index.get()) * u64::from(*slot_size),
            *slot_size,
        ))
    }

    /// A column of a segment, to be read from the front.
    pub(crate) fn column(&self, slot: Slot) -> Option<Column<'_>> {
        let (device, start, slot_size) = self.at(slot)?;
        Some(Column::new(device, start, slot_size, &self.unread))
    }

    /// Bytes of a slot of a segment.
    pub(crate) fn slot_size(&self, found: &Found) -> u32 {
        let sizes = found.columns.iter().flatten().filter_map(|slot| self.at(*slot));
        sizes.map(|(_, _, slot_size)| slot_size).min().unwrap_or(0)
    }

    /// The block at `place`, proven, of any copy; what parity would give is not tried.
    pub(crate) fn block(&self, sums: &Sums, id: BlockId, place: Place) -> Option<(CheckedHeader, Vec<u8>)> {
        let found = self.found.get(&place.segment)?;
        let layout = found.record.layout;
        if usize::from(place.column) >= layout.k() {
            return None;
        }
        let from = place.offset / STRIPE_STEP * STRIPE_STEP;
        let end = (place.offset.checked_add(place.stored)?).next_multiple_of(STRIPE_STEP);
        if end > self.slot_size(found) {
            return None;
        }
        (0..layout.r()).find_map(|replica| {
            let column = layout.replica(place.column.into(), replica);
            found.columns[column].iter().find_map(|slot| {
                let (device, start, _) = self.at(*slot)?;
                let bytes =
                    read_all_there_is(device, start + u64::from(from), (end - from) as usize, &self.unread);
                let bytes = bytes.get((place.offset - from) as usize..)?.get(..place.stored as usize)?;
                let (header, _) = block::check_any(sums, bytes).ok()?;
                (header.id == id).then(|| (header, bytes.to_vec()))
            })
        })
    }
}

/// Starts of a device's slots, by slot.
fn starts_of(
    of: &Identified,
    source: &Source,
    unread: &Unread,
    shown: &(dyn Fn(u64) + Sync),
) -> Vec<(u32, Start)> {
    let (Some(device), Some(group)) = (&source.device, of.group(source.group)) else { return Vec::new() };
    let mut starts = Vec::new();
    for slot in 0..source.slots {
        let at = data_start(of.ashift).get() + u64::from(slot) * u64::from(group.slot_size);
        // The descriptor, and as much of the first stripe as has a header.
        let bytes = read_all_there_is(device, at, 2 * DESCRIPTOR_LEN as usize, unread);
        starts.extend(start_of(&of.sums, &bytes).map(|start| (slot, start)));
        shown(1);
    }
    starts
}

fn start_of(sums: &Sums, bytes: &[u8]) -> Option<Start> {
    let (descriptor, stripe) = bytes.split_at(DESCRIPTOR_LEN as usize);
    if let Ok((record, column)) = check_descriptor(sums, descriptor) {
        return Some(Start::Descriptor(Box::new(record), column));
    }
    let header = StripeHeader::check(sums, stripe).ok().filter(|header| header.offset == DESCRIPTOR_LEN)?;
    let first = stripe.get(stripe_header_len(header.sums.len()) as usize..)?;
    let kind = CheckedHeader::check(sums, first).ok().map(|block| block.info.kind);
    Some(Start::Stripe(header, kind))
}

/// The record that a segment without a descriptor must have had.
fn record_by_stripe(
    header: &StripeHeader,
    kind: Option<BlockKind>,
    slot: Slot,
    group: GroupIndex,
    rule: Layout,
) -> Option<SegmentRecord> {
    let columns = header.sums.len();
    let replicated = Layout::new(1, u8::try_from(columns).ok()?, 0).ok()?;
    // Records lie in stripes of the rule, and where these have as many columns as copies, both are the same.
    let is_of_rule = columns == rule.columns() && kind.is_none_or(|kind| kind == BlockKind::Record);
    let (kind, layout) = match kind {
        _ if is_of_rule => (SegmentKind::Data, rule),
        Some(BlockKind::Record) | None => (SegmentKind::Small, replicated),
        Some(BlockKind::Node | BlockKind::CommitRecord) => (SegmentKind::Node, replicated),
        Some(BlockKind::Table) => (SegmentKind::Table, replicated),
        Some(BlockKind::Run) => (SegmentKind::Run, replicated),
        Some(BlockKind::Log) => (SegmentKind::Log, replicated),
    };
    Some(SegmentRecord {
        id: header.segment,
        kind,
        state: SegmentState::Closed,
        group,
        layout,
        height: DESCRIPTOR_LEN,
        live_blocks: 0,
        live_bytes: 0,
        birth: header.commit,
        freed: CommitId::new(0),
        incarnation: header.incarnation,
        placed: 0,
        closed_at: BlockId::new(0),
        class: 0,
        copy: 0,
        unnamed: false,
        filled: header.commit,
        verified: 0,
        slots: vec![slot; columns],
    })
}
