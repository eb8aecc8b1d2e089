//! The whole check: every block, every reference, every row on every device, every slot.
//!
//! It holds against the committed state, so it must run on a pool without uncommitted changes: after
//! import, or after a commit with nobody inside. It reads everything, past the cache.

use crate::dataset::State;
use crate::error::Result;
use crate::map::Location;
use crate::pool::Pool;
use crate::read::{DatasetNodes, TableNodes};
use crate::runs::RunIo;
use crate::tree::Tree;
use larder_device::ALIGN;
use larder_format::block::BlockKind;
use larder_format::checksum::fast128;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Node;
use larder_format::run::Marks;
use larder_format::segment::{
    DESCRIPTOR_LEN, RowHeader, SegmentKind, SegmentRecord, SegmentState, Slot, check_descriptor,
    row_header_len,
};
use larder_format::{BlockId, BlockPtr, Place, SegmentId, SlotIndex};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;

/// What a check found.
#[derive(Debug, Default)]
pub struct Report {
    /// Sentences, one a problem; none when all is well.
    pub problems: Vec<String>,
    /// Blocks read and verified.
    pub blocks: u64,
    /// Records that trees refer to, each once.
    pub records: u64,
    /// Blocks that wait in the free queue.
    pub dead: u64,
    /// Blocks that nothing refers to and that are left to the trace.
    pub unreachable: u64,
    /// Rows verified, each on all its devices.
    pub rows: u64,
    /// Slots accounted for.
    pub slots: u64,
}

#[derive(Default)]
struct Live {
    /// Every live place by segment: blocks and bytes, and the ranges to find overlaps.
    by_segment: HashMap<SegmentId, Vec<Place>>,
    /// Blocks that trees refer to.
    referred: HashMap<BlockId, Place>,
    /// Those with references that no snapshot explains.
    shared: HashSet<BlockId>,
    /// Blocks of the dataset, and of the tree of it, that is looked at.
    lineage: HashSet<BlockId>,
    tree: HashSet<BlockId>,
}

impl Live {
    fn add(&mut self, ptr: BlockPtr, place: Place, report: &mut Report) {
        let known = self.referred.insert(ptr.id, place).is_some();
        let again = !self.tree.insert(ptr.id);
        let in_lineage = !self.lineage.insert(ptr.id);
        if known && (again || !in_lineage) {
            self.shared.insert(ptr.id);
        }
        if !known {
            self.by_segment.entry(place.segment).or_default().push(place);
        } else if !self.by_segment.get(&place.segment).is_some_and(|places| places.contains(&place)) {
            report.problems.push(format!("block {} is at two places", ptr.id));
        }
    }
}

impl Pool {
    /// Checks the whole pool; see the module's text.
    ///
    /// # Errors
    /// Only when the check itself cannot go on; damage is in the report.
    pub fn check(&self) -> Result<Report> {
        let _commits_wait = self.commit_lock.lock();
        let _nobody_enters = self.gate.write();
        self.settle_all_rows()?;
        self.cache.clear();
        let mut report = Report::default();
        let mut live = Live::default();
        for dataset in self.datasets() {
            let name = self.full_name(dataset.id());
            live.lineage.clear();
            for snapshot in self.snapshots(dataset.id()) {
                let tree = snapshot.root.map_or_else(Tree::empty, Tree::open);
                let name = format!("{name}@{}", snapshot.name);
                self.check_tree(&name, &tree, snapshot.referenced, &mut live, &mut report)?;
            }
            let state = dataset.state.read();
            self.check_dataset(&name, &state, &mut live, &mut report)?;
        }
        live.lineage.clear();
        live.tree.clear();
        self.check_map(&mut live, &mut report)?;
        self.check_tables(&mut live, &mut report)?;
        self.check_segments(&live, &mut report);
        Ok(report)
    }

    fn check_dataset(&self, name: &str, state: &State, live: &mut Live, report: &mut Report) -> Result<()> {
        if state.tree.committed_root().is_none() {
            return Ok(());
        }
        if state.tree.is_dirty() {
            report.problems.push(format!("{name} has uncommitted changes: the check needs a quiet pool"));
            return Ok(());
        }
        self.check_tree(name, &state.tree, state.record.referenced, live, report)
    }

    fn check_tree(
        &self,
        name: &str,
        tree: &Tree,
        counted: u64,
        live: &mut Live,
        report: &mut Report,
    ) -> Result<()> {
        if tree.committed_root().is_none() {
            return Ok(());
        }
        live.tree.clear();
        let mut extents = Vec::new();
        let mut nodes = Vec::new();
        let mut problems = Vec::new();
        tree.for_each_node(
            &DatasetNodes(self),
            |ptr| {
                nodes.push(ptr);
                true
            },
            |ptr, node| {
                match node {
                    Ok(Node::Leaf(leaf)) => {
                        for (key, value) in leaf.iter().filter(|(key, _)| key.kind == EXTENT) {
                            match Extent::decode(value) {
                                Ok(extent) => extents.push((*key, extent)),
                                Err(corrupt) => problems.push(format!("{name}: {corrupt} at {key:?}")),
                            }
                        }
                    }
                    Ok(Node::Inner(_)) => {}
                    Err(error) => problems.push(format!("{name}: node {}: {error}", ptr.id)),
                }
                Ok(())
            },
        )?;
        report.problems.append(&mut problems);
        let mut referenced = 0;
        for ptr in nodes {
            let place = self.place_of(ptr)?;
            live.add(ptr, place, report);
            report.blocks += 1;
        }
        for (key, extent) in extents {
            let place = self.place_of(extent.ptr)?;
            report.records += u64::from(!live.referred.contains_key(&extent.ptr.id));
            live.add(extent.ptr, place, report);
            referenced += u64::from(place.footprint());
            report.blocks += 1;
            match self.read_plain(extent.ptr, BlockKind::Record) {
                Ok((_, plain)) => {
                    let covers = u64::from(extent.block_offset) + u64::from(extent.len) <= plain.len() as u64;
                    if !covers || extent.logical as usize != plain.len() {
                        report.problems.push(format!("{name}: extent at {key:?} does not fit its block"));
                    }
                }
                Err(error) => report.problems.push(format!("{name}: {key:?}: {error}")),
            }
        }
        if referenced != counted {
            report
                .problems
                .push(format!("{name} counts {counted} bytes referenced, its extents have {referenced}"));
        }
        Ok(())
    }

    /// Where a block is: as its hint says unless the cleaner moved it.
    fn place_of(&self, ptr: BlockPtr) -> Result<Place> {
        if crate::clean::hint_is_stale(&self.core.lock(), ptr.place.segment) {
            return Ok(crate::core::Core::look_up(self, ptr.id)?.unwrap_or(ptr.place));
        }
        Ok(ptr.place)
    }

    /// The map knows what trees refer to, where it is, and nothing else.
    fn check_map(&self, live: &mut Live, report: &mut Report) -> Result<()> {
        let (queued, left) = (self.has_queued(), self.left_bytes());
        let mut known = HashSet::new();
        let map = self.map.lock();
        let Report { problems, dead, unreachable, .. } = report;
        let _ = map.iterate(&RunIo::new(self), BlockId::new(0), |id, entry| {
            known.insert(id);
            if entry.marks.contains(Marks::DEAD) && !queued {
                problems.push(format!("block {id} is marked as dead, but the free queue is empty"));
            }
            if live.shared.contains(&id) && !entry.marks.contains(Marks::SHARED) {
                problems.push(format!("block {id} is referred to twice, but not marked as shared"));
            }
            let place = match (live.referred.get(&id), entry.location) {
                (None, Location::Places(places)) => places[0],
                _ => Place { segment: SegmentId::new(0), column: 0, offset: 0, stored: 0 },
            };
            let marks = entry.marks;
            match (live.referred.get(&id), entry.location) {
                (None, Location::Places(_))
                    if marks.contains(Marks::DEAD) && !marks.contains(Marks::SHARED) =>
                {
                    *dead += 1;
                    live.by_segment.entry(place.segment).or_default().push(place);
                }
                (None, Location::Places(_)) if left > 0 => {
                    *unreachable += 1;
                    live.by_segment.entry(place.segment).or_default().push(place);
                }
                (Some(_), _) if marks.contains(Marks::DEAD) && !marks.contains(Marks::SHARED) => {
                    problems.push(format!("block {id} is in use, but marked as dead"));
                }
                (None, _) => problems.push(format!("block {id} is in the map, but nothing refers to it")),
                (Some(place), Location::Places(places)) if places.contains(place) => {}
                (Some(place), other) => {
                    problems.push(format!("block {id} is used at {place:?}, the map says {other:?}"));
                }
            }
            ControlFlow::Continue(())
        })?;
        for id in live.referred.keys().filter(|id| !known.contains(id)) {
            report.problems.push(format!("block {id} is referred to, but the map does not know it"));
        }
        Ok(())
    }

    fn check_tables(&self, live: &mut Live, report: &mut Report) -> Result<()> {
        let tables = self.tables.lock();
        let mut nodes = Vec::new();
        tables.for_each_node(
            &TableNodes(self),
            |ptr| {
                nodes.push(ptr);
                true
            },
            |_, node| node.map(drop),
        )?;
        for ptr in nodes {
            live.add(ptr, ptr.place, report);
            report.blocks += 1;
        }
        Ok(())
    }

    fn check_segments(&self, live: &Live, report: &mut Report) {
        let mut runs: BTreeMap<SegmentId, (u32, u64)> = BTreeMap::new();
        for footprint in self.map.lock().descriptors().flat_map(|run| &run.footprints) {
            let entry = runs.entry(footprint.segment).or_default();
            entry.0 += footprint.blocks;
            entry.1 += footprint.bytes;
        }
        let core = self.core.lock();
        let records: Vec<SegmentRecord> = core.entries.values().map(|entry| entry.to_record()).collect();
        let mut owners: HashMap<Slot, SegmentId> = HashMap::new();
        for record in &records {
            for &slot in &record.slots {
                if let Some(other) = owners.insert(slot, record.id) {
                    report.problems.push(format!("segments {other} and {} share {slot:?}", record.id));
                }
            }
        }
        for group in core.groups.values() {
            for member in self.members.of_group(group.index) {
                for index in 0..member.slot_count {
                    let slot = Slot { device: member.index, index: SlotIndex::new(index) };
                    report.slots += 1;
                    if group.is_free(slot) == owners.contains_key(&slot) {
                        report.problems.push(format!("{slot:?} is neither free nor used by one segment"));
                    }
                }
            }
        }
        drop(core);
        let empty = Vec::new();
        for record in &records {
            let places = live.by_segment.get(&record.id).unwrap_or(&empty);
            let counted = match record.kind {
                SegmentKind::Run => runs.get(&record.id).copied().unwrap_or_default(),
                _ => (places.len() as u32, places.iter().map(|place| u64::from(place.footprint())).sum()),
            };
            if counted != (record.live_blocks, record.live_bytes) {
                report.problems.push(format!(
                    "segment {} ({:?}) counts {} live blocks of {} bytes, {} of {} are referred to",
                    record.id, record.kind, record.live_blocks, record.live_bytes, counted.0, counted.1
                ));
            }
            check_overlaps(record, places, report);
            if record.state != SegmentState::Freed {
                self.check_rows(record, report);
            }
        }
        for id in live.by_segment.keys().filter(|id| !records.iter().any(|record| record.id == **id)) {
            report.problems.push(format!("blocks lie in segment {id}, which does not exist"));
        }
    }

    /// Whether the parity columns of a row are those of its data columns; true when a device is away.
    fn parity_matches(&self, record: &SegmentRecord, row: &RowHeader) -> bool {
        let layout = record.layout;
        let start = row_header_len(row.sums.len()) as usize;
        let column = |column: usize| {
            let slot = record.slots[column];
            let member = self.members.get(slot.device);
            let pending = member.read(member.slot_offset(slot.index, row.offset), row.height as usize)?;
            pending.wait().ok()
        };
        let data: Option<Vec<_>> = (0..layout.k()).map(|i| column(layout.replica(i, 0))).collect();
        let stored: Option<Vec<_>> = (0..layout.m()).map(|p| column(layout.parity(p))).collect();
        let (Some(data), Some(stored)) = (data, stored) else { return true };
        let data: Vec<&[u8]> = data.iter().map(|bytes| &bytes[start..]).collect();
        let mut parity = vec![vec![0; row.height as usize - start]; layout.m()];
        let mut columns: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        crate::parity::encode(&data, &mut columns);
        stored.iter().zip(&parity).all(|(stored, computed)| stored[start..] == computed[..])
    }

    /// Descriptors and rows on every online device of a segment, parity and padding included.
    fn check_rows(&self, record: &SegmentRecord, report: &mut Report) {
        let mut end = None;
        for (column, slot) in record.slots.iter().enumerate() {
            let member = self.members.get(slot.device);
            let read = |offset: u32, len: usize| {
                let pending = member.read(member.slot_offset(slot.index, offset), len)?;
                pending.wait().ok()
            };
            if !member.is_online() {
                continue;
            }
            let mut problem = |text: String| {
                report.problems.push(format!("segment {} on {}: {text}", record.id, member.name()));
            };
            let Some(bytes) = read(0, DESCRIPTOR_LEN as usize) else {
                problem("cannot be read".into());
                continue;
            };
            match check_descriptor(self.guid, &bytes) {
                Ok((found, at)) if found.id == record.id && at == column && found.slots == record.slots => {}
                Ok(_) => problem("the descriptor is another segment's".into()),
                Err(corrupt) => problem(corrupt.to_string()),
            }
            let mut offset = DESCRIPTOR_LEN;
            while offset < record.height {
                let row = read(offset, ALIGN).ok_or_else(|| "cannot be read".to_owned());
                let row = row.and_then(|head| {
                    RowHeader::check(self.guid, &head).map_err(|corrupt| corrupt.to_string())
                });
                let row = match row {
                    Ok(row) if row.segment == record.id && row.offset == offset && row.height > 0 => row,
                    Ok(_) => {
                        problem(format!("the row at {offset} is another one"));
                        break;
                    }
                    Err(text) => {
                        problem(format!("row at {offset}: {text}"));
                        break;
                    }
                };
                let body = read(offset, row.height as usize);
                let start = row_header_len(row.sums.len()) as usize;
                match body {
                    Some(body) if fast128(self.guid, &body[start..]) == row.sums[column] => {}
                    Some(_) => problem(format!("the row at {offset} does not match its checksum")),
                    None => problem(format!("the row at {offset} cannot be read")),
                }
                offset += row.height;
                if column == 0 {
                    report.rows += 1;
                    if record.layout.m() > 0 && !self.parity_matches(record, &row) {
                        problem(format!("the parity of the row at {} is not that of its data", row.offset));
                    }
                }
            }
            if *end.get_or_insert(offset) != offset || offset != record.height {
                problem(format!("rows end at {offset}, the table says {}", record.height));
            }
        }
    }
}

fn check_overlaps(record: &SegmentRecord, places: &[Place], report: &mut Report) {
    let mut sorted = places.to_vec();
    sorted.sort_by_key(|place| (place.column, place.offset));
    for pair in sorted.windows(2) {
        if pair[0].column == pair[1].column && pair[0].offset + pair[0].footprint() > pair[1].offset {
            report.problems.push(format!("{:?} and {:?} overlap", pair[0], pair[1]));
        }
    }
    for place in sorted.iter().filter(|place| place.offset + place.footprint() > record.height) {
        report.problems.push(format!("{place:?} is above its segment's height {}", record.height));
    }
}
