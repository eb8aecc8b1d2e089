//! Structures of a pool's image, found as its readers find them.

use larder_device::SeededEntropy;
use larder_format::block::{BLOCK_OVERHEAD, BlockKind, CheckedHeader};
use larder_format::checksum::Sums;
use larder_format::field::Field;
use larder_format::label::{Label, label_areas};
use larder_format::node::{Key, Node};
use larder_format::root::Root;
use larder_format::segment::{DESCRIPTOR_LEN, SegmentKind, SegmentRecord, StripeHeader, stripe_header_len};
use larder_format::tables::Table;
use larder_format::{BlockId, BlockPtr, DeviceGuid, DeviceOffset, HostId};
use larder_pool::codec;
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::{ImportOptions, Pool, World};
use larder_sim::{DeviceImage, SimClock, SimWorld};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where a column of a segment lies: the device's image, and the start of the slot.
pub type Column = Option<(usize, u64)>;

pub struct Segment {
    pub record: SegmentRecord,
    pub columns: Vec<Column>,
}

#[derive(Clone, Copy)]
pub struct Stripe {
    pub segment: usize,
    pub offset: u32,
    pub height: u32,
}

/// A block in a stripe.
#[derive(Clone)]
pub struct Block {
    pub stripe: usize,
    /// Its data column.
    pub column: usize,
    /// Bytes from the start of the stripe.
    pub at: u32,
    pub header: CheckedHeader,
    /// Whether the newest state reaches it.
    pub live: bool,
}

/// A sound image and all that is in it.
pub struct Survey {
    pub devices: Vec<DeviceImage>,
    pub sums: Sums,
    pub root: Root,
    pub segments: Vec<Segment>,
    pub stripes: Vec<Stripe>,
    pub blocks: Vec<Block>,
    /// Ids, keys and numbers of all kinds.
    pub numbers: Vec<u64>,
    pub pointers: Vec<BlockPtr>,
}

pub fn world(seed: u64) -> World {
    World {
        clock: Arc::new(SimClock::new()),
        entropy: Arc::new(SeededEntropy::new(seed)),
        workers: Arc::new(larder_device::Inline),
        host: HostId::new(1),
        host_name: "sim".into(),
    }
}

/// The pools on some devices.
pub fn plans(sim: &SimWorld) -> Vec<larder_pool::Importable> {
    let found = sim.devices().into_iter().filter_map(|device| match scan(&device) {
        Scan::Member(found) => Some(*found),
        _ => None,
    });
    assemble(found.collect())
}

impl Survey {
    pub fn new(devices: Vec<DeviceImage>) -> Self {
        let label = |image: &DeviceImage| Label::check(&image.read(label_areas(image.size())[0], 4096)).ok();
        let labels: Vec<Option<Label>> = devices.iter().map(label).collect();
        let any = labels.iter().flatten().next().expect("a label");
        let sums = Sums::new(any.pool, any.key);
        let image_of = |guid: DeviceGuid| {
            labels.iter().position(|label| label.as_ref().is_some_and(|label| label.device == guid))
        };
        let sim = SimWorld::from_images(devices.clone());
        let plan = plans(&sim).pop().expect("a pool");
        let root = plan.root.clone();
        let options = ImportOptions { read_only: true, ..ImportOptions::default() };
        let pool = Pool::import(world(1), plan, &options).unwrap();
        let column = |slot: &larder_format::segment::Slot| {
            let member = pool.store().members().find(slot.device)?;
            let image = image_of(member.label()?.device)?;
            Some((image, member.slot_offset(slot.index, 0).get()))
        };
        let segments = pool.store().segments().into_iter().map(|record| {
            let columns = record.slots.iter().map(column).collect();
            Segment { record, columns }
        });
        let segments = segments.collect();
        drop(pool);
        let mut survey = Self {
            devices,
            sums,
            root,
            segments,
            stripes: Vec::new(),
            blocks: Vec::new(),
            numbers: Vec::new(),
            pointers: Vec::new(),
        };
        (0..survey.segments.len()).for_each(|segment| survey.walk(segment));
        survey.reach();
        survey.collect_numbers();
        survey
    }

    pub fn read(&self, (image, slot): (usize, u64), at: u32, len: usize) -> Vec<u8> {
        self.devices[image].read(DeviceOffset::new(slot + u64::from(at)), len).to_vec()
    }

    /// Notes the stripes and blocks of a segment.
    fn walk(&mut self, segment: usize) {
        let of = &self.segments[segment];
        let (layout, is_log) = (of.record.layout, of.record.kind == SegmentKind::Log);
        let replicas = layout.r();
        let header_len = stripe_header_len(layout.columns());
        let mut offset = DESCRIPTOR_LEN;
        loop {
            let header = of.columns.iter().flatten().find_map(|column| {
                let size = self.devices[column.0].size().get();
                (column.1 + u64::from(offset) + 4096 <= size).then_some(())?;
                let header = StripeHeader::check(&self.sums, &self.read(*column, offset, 4096)).ok()?;
                let is_its = header.segment == of.record.id && header.offset == offset && header.height > 0;
                is_its.then_some(header)
            });
            let Some(header) = header.filter(|_| is_log || offset < of.record.height) else { return };
            let stripe = self.stripes.len();
            self.stripes.push(Stripe { segment, offset, height: header.height });
            for data in 0..layout.k() {
                let copies = &of.columns[data * replicas..(data + 1) * replicas];
                let Some(column) = copies.iter().flatten().next() else { continue };
                let bytes = self.read(*column, offset, header.height as usize);
                let Ok(own) = StripeHeader::check(&self.sums, &bytes) else { continue };
                let mut at = header_len;
                while at < header_len + own.used {
                    let Ok(header) = CheckedHeader::check(&self.sums, &bytes[at as usize..]) else { break };
                    let footprint = header.footprint() as u32;
                    self.blocks.push(Block { stripe, column: data, at, header, live: false });
                    at += footprint;
                }
            }
            offset += header.height;
        }
    }

    /// The whole stored bytes of a block.
    pub fn stored(&self, block: &Block) -> Option<Vec<u8>> {
        let stripe = self.stripes[block.stripe];
        let of = &self.segments[stripe.segment];
        let replicas = of.record.layout.r();
        let copies = &of.columns[block.column * replicas..(block.column + 1) * replicas];
        let column = copies.iter().flatten().next()?;
        Some(self.read(*column, stripe.offset + block.at, block.header.stored() as usize))
    }

    /// Its plain content.
    pub fn plain(&self, block: &Block) -> Option<Vec<u8>> {
        let stored = self.stored(block)?;
        let payload = stored.get(block.header.before_content() as usize..)?;
        codec::decompress(block.header.info.codec, payload, block.header.info.logical as usize).ok()
    }

    /// Marks what the newest root leads to.
    fn reach(&mut self) {
        let mut by_id: BTreeMap<BlockId, Vec<usize>> = BTreeMap::new();
        for (at, block) in self.blocks.iter().enumerate() {
            by_id.entry(block.header.id).or_default().push(at);
        }
        let mut seen = BTreeSet::new();
        let mut open = vec![self.root.tables];
        while let Some(ptr) = open.pop() {
            if !seen.insert(ptr.id) {
                continue;
            }
            self.pointers.push(ptr);
            let Some(all) = by_id.get(&ptr.id) else { continue };
            all.iter().for_each(|&at| self.blocks[at].live = true);
            let block = self.blocks[all[0]].clone();
            let Some(plain) = self.plain(&block) else { continue };
            match block.header.info.kind {
                BlockKind::Node | BlockKind::Table => {
                    let Ok(node) = Node::decode(&plain) else { continue };
                    match node {
                        Node::Inner(inner) => open.extend(inner.children()),
                        Node::Leaf(leaf) => {
                            let is_table = block.header.info.kind == BlockKind::Table;
                            leaf.iter().for_each(|(key, value)| named(is_table, key, value, &mut open));
                        }
                    }
                }
                BlockKind::Run if plain[12] == 2 => {
                    open.extend(plain[32..].chunks_exact(32).map(|of| BlockPtr::load(&of[8..])));
                }
                _ => {}
            }
        }
        for block in &mut self.blocks {
            let segment = &self.segments[self.stripes[block.stripe].segment].record;
            block.live |=
                segment.kind == SegmentKind::Log && block.header.incarnation == self.root.log_incarnation;
        }
    }

    fn collect_numbers(&mut self) {
        let mut all = BTreeSet::new();
        for block in self.blocks.iter().filter(|block| block.live) {
            all.insert(block.header.id.get());
            if !matches!(block.header.info.kind, BlockKind::Node | BlockKind::Table) {
                continue;
            }
            let Some(Ok(Node::Leaf(leaf))) = self.plain(block).map(|plain| Node::decode(&plain)) else {
                continue;
            };
            all.extend(leaf.keys().iter().flat_map(|key| [key.object, key.offset]).step_by(3));
        }
        all.extend(self.segments.iter().map(|of| of.record.id.get()));
        all.extend([self.root.commit.get(), self.root.block_lease.get(), self.root.segment_lease.get()]);
        self.numbers = all.into_iter().collect();
    }
}

/// Blocks that an entry of a leaf names.
fn named(is_table: bool, key: &Key, value: &[u8], open: &mut Vec<BlockPtr>) {
    let mut add = |at: usize| {
        if let Some(bytes) = value.get(at..at + 24) {
            open.push(BlockPtr::load(bytes));
        }
    };
    if !is_table {
        if key.kind == larder_format::items::EXTENT {
            add(0);
        }
        return;
    }
    match Table::of(key).map(|(table, _)| table) {
        Ok(Table::Datasets | Table::Snapshots) => add(32),
        Ok(Table::Remains) => add(24),
        Ok(Table::CommitRecords) => add(0),
        Ok(Table::Runs) => (0..4).for_each(|at| add(80 + 32 * at + 8)),
        Ok(Table::Index) => (0..4).for_each(|at| add(24 + 80 + 32 * at + 8)),
        _ => {}
    }
}

/// The bytes of a block before its payload.
pub const HEAD: usize = BLOCK_OVERHEAD as usize;
