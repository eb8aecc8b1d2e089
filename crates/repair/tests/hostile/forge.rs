//! Structures changed on purpose, with every sum made right again: who does this knows the pool's key.

use crate::survey::{Block, HEAD, Survey};
use larder_device::{Entropy, SeededEntropy};
use larder_format::block::{BlockHeader, BlockKind, CodecKind};
use larder_format::bookmark::BookmarkHead;
use larder_format::checksum::{self, plain64};
use larder_format::commit_record::{CommitRecordHead, CommitRecordRow};
use larder_format::field::{Field, FieldInfo};
use larder_format::index::{PartHead, PrintsHead};
use larder_format::items::{self, ExtentRecord, InodeRecord};
use larder_format::label::{
    HEARTBEAT_OFFSET, HeartbeatHead, LABEL_LEN, LabelHead, RING_OFFSET, RING_SLOT, RING_SLOTS, label_areas,
};
use larder_format::ledger::{CommandHead, DamageRecord, EventHead};
use larder_format::log::{LogHead, OpHead};
use larder_format::node::{InnerEntry, Key, LeafEntry, NODE_MAX, NodeHead, is_clear};
use larder_format::property::PropertyHead;
use larder_format::root::{Root, RootDeviceEntry, RootGroupEntry, RootHead, RootImport, ring_slot};
use larder_format::run::{Delta, Marks, PageBuilder, PageHead, Places, RunHead, RunPage, Target};
use larder_format::segment::{DESCRIPTOR_LEN, DescriptorHead, SegmentHead, StripeHead, stripe_header_len};
use larder_format::tables::{
    BadSlotRecord, DatasetHead, FreeingRecord, HoldHead, ReceivingHead, RemainsRecord, SnapshotHead, Table,
};
use larder_format::trash::TrashHead;
use larder_format::{BlockId, BlockPtr, DeviceOffset, Place};
use larder_sim::DeviceImage;
use larder_store::parity;
use std::collections::BTreeSet;

/// Draws by seed.
pub struct Dice(SeededEntropy);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(SeededEntropy::new(seed))
    }

    pub fn below(&self, n: usize) -> usize {
        (self.0.next_u64() % n.max(1) as u64) as usize
    }

    pub fn one_in(&self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn one<'a, T>(&self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}

/// An image on its way to being hostile.
pub struct Forge<'a> {
    survey: &'a Survey,
    pub devices: Vec<DeviceImage>,
    dice: &'a Dice,
    /// The changes, in words.
    pub told: Vec<String>,
}

impl<'a> Forge<'a> {
    pub fn new(survey: &'a Survey, dice: &'a Dice) -> Self {
        Self { survey, devices: survey.devices.clone(), dice, told: Vec::new() }
    }

    /// Changes one structure.
    pub fn strike(&mut self) {
        let kind = match self.dice.below(100) {
            0..4 => return self.label(),
            4..16 => return self.root(),
            16..17 => return self.heartbeat(),
            17..20 => return self.descriptor(),
            20..24 => return self.stripe_header(),
            24..30 => return self.block_header(),
            30..53 => BlockKind::Table,
            53..74 => BlockKind::Node,
            74..84 => BlockKind::Run,
            84..89 => BlockKind::CommitRecord,
            89..97 => BlockKind::Log,
            _ => BlockKind::Record,
        };
        if self.one_block(|block| block.header.info.kind == kind).is_none() {
            return self.strike();
        }
        self.payload(kind);
        // Commit records count where nothing else is left.
        if kind == BlockKind::CommitRecord && self.dice.one_in(2) || self.dice.one_in(20) {
            self.zero_roots();
        }
    }

    fn zero_roots(&mut self) {
        self.told.push("no roots".into());
        for image in &mut self.devices {
            for area in label_areas(image.size()) {
                let at = DeviceOffset::new(area.get() + RING_OFFSET);
                image.write(at, &vec![0; RING_SLOTS as usize * RING_SLOT]);
            }
        }
    }

    /// A number that breaks things, or one that is right elsewhere.
    fn number(&self, was: u64) -> u64 {
        const ODD: [u64; 14] = [
            0,
            1,
            2,
            u64::MAX,
            u64::MAX - 1,
            1 << 63,
            (1 << 63) - 1,
            (1 << 62) - 1,
            1 << 62,
            1 << 40,
            (1 << 40) - 1,
            u32::MAX as u64,
            1 << 24,
            4096,
        ];
        match self.dice.below(8) {
            0..3 => ODD[self.dice.below(ODD.len())],
            3 => was ^ 1 << self.dice.below(64),
            4 => was.wrapping_add([1, 2, 8, 4096, u64::MAX, u64::MAX - 7][self.dice.below(6)]),
            5..7 => self.dice.one(&self.survey.numbers).copied().unwrap_or(7),
            _ => was << self.dice.below(16),
        }
    }

    fn change_number(&self, bytes: &mut [u8]) {
        let len = bytes.len().min(8);
        let mut was = [0; 8];
        was[..len].copy_from_slice(&bytes[..len]);
        let mut new = self.number(u64::from_le_bytes(was)).to_le_bytes();
        if len < 8 && self.dice.one_in(4) {
            new[..len].fill(0xff);
        }
        bytes[..len].copy_from_slice(&new[..len]);
    }

    /// Changes a field of a structure at the start of `bytes`.
    fn change_field(&mut self, fields: &[FieldInfo], bytes: &mut [u8], skip: &[&str]) {
        let fields: Vec<_> = fields
            .iter()
            .filter(|of| of.offset + of.size <= bytes.len() && !skip.contains(&of.name))
            .collect();
        let Some(field) = self.dice.one(&fields) else { return };
        let bytes = &mut bytes[field.offset..field.offset + field.size];
        self.told.push(field.name.to_owned());
        self.change_value(bytes);
    }

    fn change_value(&mut self, bytes: &mut [u8]) {
        if bytes.len() == 24 && self.dice.one_in(2) {
            return self.change_pointer(bytes);
        }
        if bytes.is_empty() {
            return;
        }
        match bytes.len() {
            0..=8 => self.change_number(bytes),
            len => {
                let at =
                    if self.dice.one_in(2) { self.dice.below(len / 8) * 8 } else { self.dice.below(len) };
                let width = [1, 2, 4, 8][self.dice.below(4)].min(len - at);
                self.change_number(&mut bytes[at..at + width]);
            }
        }
    }

    fn change_pointer(&mut self, bytes: &mut [u8]) {
        if let Some(other) = self.dice.one(&self.survey.pointers) {
            let mut pointer = [0; 24];
            other.store(&mut pointer);
            match self.dice.below(3) {
                0 => bytes.copy_from_slice(&pointer),
                1 => bytes[..8].copy_from_slice(&pointer[..8]),
                _ => bytes[8..].copy_from_slice(&pointer[8..]),
            }
        }
    }

    fn flip(&self, bytes: &mut [u8]) {
        for _ in 0..=self.dice.below(3) {
            let at = self.dice.below(bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
        }
    }

    /// Changes a structure that stands on some devices, in their label areas.
    fn in_areas(&mut self, at: u64, len: usize, change: impl Fn(&mut [u8]) + Copy) {
        let all = self.dice.below(3) > 0;
        let only = self.dice.below(self.devices.len());
        for (number, image) in self.devices.iter_mut().enumerate() {
            if !all && number != only {
                continue;
            }
            for area in label_areas(image.size()) {
                let at = DeviceOffset::new(area.get() + at);
                let mut bytes = image.read(at, len).to_vec();
                change(&mut bytes);
                image.write(at, &bytes);
            }
        }
    }

    fn label(&mut self) {
        self.told.push("label".into());
        let mut sample = self.devices[0].read(DeviceOffset::new(0), LABEL_LEN).to_vec();
        let before = sample.clone();
        self.change_field(LabelHead::FIELDS, &mut sample, &["magic", "key"]);
        let changed: Vec<(usize, u8)> = differences(&before, &sample);
        self.in_areas(
            0,
            LABEL_LEN,
            move_bytes(&changed, &|bytes: &mut [u8]| {
                let end = bytes.len() - 8;
                let sum = plain64(&bytes[..end]);
                bytes[end..].copy_from_slice(&sum.to_le_bytes());
            }),
        );
    }

    fn heartbeat(&mut self) {
        self.told.push("heartbeat".into());
        let mut sample = self.devices[0].read(DeviceOffset::new(HEARTBEAT_OFFSET), LABEL_LEN).to_vec();
        let before = sample.clone();
        self.change_field(HeartbeatHead::FIELDS, &mut sample, &["magic"]);
        let changed: Vec<(usize, u8)> = differences(&before, &sample);
        self.in_areas(
            HEARTBEAT_OFFSET,
            LABEL_LEN,
            move_bytes(&changed, &|bytes: &mut [u8]| {
                let end = bytes.len() - 8;
                let sum = plain64(&bytes[..end]);
                bytes[end..].copy_from_slice(&sum.to_le_bytes());
            }),
        );
    }

    /// Changes the newest root, wherever it is.
    fn root(&mut self) {
        let sums = &self.survey.sums;
        let image = &self.devices[0];
        let places = (0..RING_SLOTS).map(|place| RING_OFFSET + place * RING_SLOT as u64);
        let newest = places.filter_map(|at| {
            let bytes = image.read(DeviceOffset::new(at), RING_SLOT);
            Some((Root::check(sums, &bytes).ok()?, bytes.to_vec()))
        });
        let Some((root, before)) = newest.max_by_key(|(root, _)| root.commit) else { return };
        let mut bytes = before.clone();
        let len = u32::from_le_bytes(before[12..16].try_into().unwrap()) as usize;
        let groups = RootHead::SIZE;
        let devices = groups + root.groups.len() * RootGroupEntry::SIZE;
        let history = devices + root.devices.len() * RootDeviceEntry::SIZE;
        let segments = history + root.history.len() * RootImport::SIZE;
        self.told.push("root".into());
        match self.dice.below(10) {
            0..4 => self.change_field(RootHead::FIELDS, &mut bytes, &["magic", "pool", "sum"]),
            4 => {
                let at = groups + self.dice.below(root.groups.len()) * RootGroupEntry::SIZE;
                self.change_field(RootGroupEntry::FIELDS, &mut bytes[at..], &[]);
            }
            5..7 => {
                let at = devices + self.dice.below(root.devices.len()) * RootDeviceEntry::SIZE;
                self.change_field(RootDeviceEntry::FIELDS, &mut bytes[at..], &[]);
            }
            7 => {
                let at = history + self.dice.below(root.history.len()) * RootImport::SIZE;
                self.change_field(RootImport::FIELDS, &mut bytes[at..], &[]);
            }
            8 if segments < len => {
                let mut at = segments;
                for _ in 0..self.dice.below(root.segments.len()) {
                    at += SegmentHead::SIZE + 6 * usize::from(bytes[at + 15]);
                }
                let columns = usize::from(bytes[at + 15]);
                if self.dice.one_in(3) {
                    let slot = at + SegmentHead::SIZE + 6 * self.dice.below(columns);
                    self.change_number(&mut bytes[slot + 2..slot + 6]);
                } else {
                    self.change_field(SegmentHead::FIELDS, &mut bytes[at..], &[]);
                }
            }
            _ => self.flip(&mut bytes[RootHead::SIZE..len]),
        }
        let changed = differences(&before, &bytes);
        let at = ring_slot(DeviceOffset::new(0), root.commit).get();
        self.in_areas(
            at,
            RING_SLOT,
            move_bytes(&changed, &|bytes: &mut [u8]| {
                let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
                let len = len.clamp(RootHead::SIZE, RING_SLOT);
                bytes[248..256].fill(0);
                let sum = checksum::fast64(sums, &bytes[..len]);
                bytes[248..256].copy_from_slice(&sum.to_le_bytes());
            }),
        );
    }

    fn descriptor(&mut self) {
        let Some(of) = self.dice.one(&self.survey.segments) else { return };
        self.told.push(format!("descriptor of a {:?} segment", of.record.kind));
        let only = self.dice.one_in(2).then(|| self.dice.below(of.columns.len()));
        let seed = Dice::new(self.dice.below(usize::MAX) as u64);
        let what = (seed.below(3), seed.below(100));
        let mut changed: Option<Vec<(usize, u8)>> = None;
        for (number, column) in of.columns.iter().enumerate() {
            let Some((image, slot)) = *column else { continue };
            if only.is_some_and(|only| only != number) {
                continue;
            }
            let mut bytes =
                self.devices[image].read(DeviceOffset::new(slot), DESCRIPTOR_LEN as usize).to_vec();
            if changed.is_none() {
                let before = bytes.clone();
                match what.0 {
                    0 => self.change_field(DescriptorHead::FIELDS, &mut bytes, &["magic", "pool"]),
                    _ => self.change_field(SegmentHead::FIELDS, &mut bytes[DescriptorHead::SIZE..], &[]),
                }
                changed = Some(differences(&before, &bytes));
            }
            changed.iter().flatten().for_each(|&(at, byte)| bytes[at] = byte);
            let end = bytes.len() - 8;
            let sum = checksum::fast64(&self.survey.sums, &bytes[..end]);
            bytes[end..].copy_from_slice(&sum.to_le_bytes());
            self.devices[image].write(DeviceOffset::new(slot), &bytes);
        }
    }

    fn stripe_header(&mut self) {
        let Some(&stripe) = self.dice.one(&self.survey.stripes) else { return };
        let of = &self.survey.segments[stripe.segment];
        self.told.push(format!("stripe header of a {:?} segment", of.record.kind));
        let only = self.dice.one_in(2).then(|| self.dice.below(of.columns.len()));
        let mut changed: Option<Vec<(usize, u8)>> = None;
        let len = stripe_header_len(of.columns.len()) as usize;
        for (number, column) in of.columns.iter().enumerate() {
            let Some((image, slot)) = *column else { continue };
            if only.is_some_and(|only| only != number) {
                continue;
            }
            let at = DeviceOffset::new(slot + u64::from(stripe.offset));
            let mut bytes = self.devices[image].read(at, len).to_vec();
            if changed.is_none() {
                let before = bytes.clone();
                self.change_field(StripeHead::FIELDS, &mut bytes, &["magic", "header_sum"]);
                changed = Some(differences(&before, &bytes));
            }
            changed.iter().flatten().for_each(|&(at, byte)| bytes[at] = byte);
            bytes[48..56].fill(0);
            let summed = stripe_header_len(usize::from(bytes[4])) as usize;
            if summed > bytes.len() {
                bytes = self.devices[image].read(at, summed).to_vec();
                changed.iter().flatten().for_each(|&(at, byte)| bytes[at] = byte);
                bytes[48..56].fill(0);
            }
            let sum = checksum::fast64(&self.survey.sums, &bytes[..summed]);
            bytes[48..56].copy_from_slice(&sum.to_le_bytes());
            self.devices[image].write(at, &bytes);
        }
    }

    fn one_block(&self, is_wanted: impl Fn(&Block) -> bool) -> Option<&'a Block> {
        let live = !self.dice.one_in(20);
        let wanted: Vec<&Block> =
            self.survey.blocks.iter().filter(|block| (block.live || !live) && is_wanted(block)).collect();
        self.dice.one(&wanted).copied()
    }

    fn block_header(&mut self) {
        let kind = BLOCK_KINDS[self.dice.below(BLOCK_KINDS.len())];
        let Some(block) = self.one_block(|block| block.header.info.kind == kind) else { return };
        let Some(mut stored) = self.survey.stored(block) else { return };
        self.told.push(format!("header of a {kind:?} block {}", block.header.id));
        self.change_field(
            BlockHeader::FIELDS,
            &mut stored,
            &["magic", "header_sum", "payload_sum", "payload"],
        );
        if self.dice.one_in(6) {
            self.change_number(&mut stored[36..40]);
        }
        self.seal(&mut stored);
        self.put(block, &stored);
    }

    /// Makes the header's sums right.
    fn seal(&self, stored: &mut [u8]) {
        let header = BlockHeader::get(stored).expect("a header");
        let payload = &stored[HEAD..];
        let frames = match header.frame {
            0 => payload,
            _ => &payload[..(header.logical.div_ceil(4096) as usize * 8).min(payload.len())],
        };
        if let Ok(kind) = checksum::ChecksumKind::from_byte(header.checksum) {
            let sum = checksum::payload_sum(kind, &self.survey.sums, frames);
            stored[40..72].copy_from_slice(&sum);
        }
        let sum = checksum::fast64(&self.survey.sums, &stored[..HEAD - 8]);
        stored[HEAD - 8..HEAD].copy_from_slice(&sum.to_le_bytes());
    }

    /// Writes a block in all of its replicas, and makes parity and sums of its stripe right.
    fn put(&mut self, block: &Block, stored: &[u8]) {
        let stripe = self.survey.stripes[block.stripe];
        let of = &self.survey.segments[stripe.segment];
        let layout = of.record.layout;
        let (k, r) = (layout.k(), layout.r());
        let header_len = stripe_header_len(layout.columns()) as usize;
        let read = |devices: &[DeviceImage], (image, slot): (usize, u64)| {
            let at = DeviceOffset::new(slot + u64::from(stripe.offset));
            devices[image].read(at, stripe.height as usize).to_vec()
        };
        for (image, slot) in of.columns[block.column * r..(block.column + 1) * r].iter().flatten() {
            let at = slot + u64::from(stripe.offset) + u64::from(block.at);
            self.devices[*image].write(DeviceOffset::new(at), stored);
        }
        let mut columns: Vec<Option<Vec<u8>>> =
            of.columns.iter().map(|column| column.map(|column| read(&self.devices, column))).collect();
        let data: Option<Vec<Vec<u8>>> = (0..k)
            .map(|data| {
                let found = columns[data * r..(data + 1) * r].iter().flatten().next();
                found.map(|column| column[header_len..].to_vec())
            })
            .collect();
        if let Some(data) = data.filter(|_| layout.m() > 0) {
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let mut made = vec![vec![0; stripe.height as usize - header_len]; layout.m()];
            let mut into: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
            parity::encode(&data, &mut into);
            for (column, made) in columns[k * r..].iter_mut().zip(made) {
                if let Some(column) = column {
                    column[header_len..].copy_from_slice(&made);
                }
            }
        }
        let sums: Vec<Option<u128>> = columns
            .iter()
            .map(|column| Some(checksum::fast128(&self.survey.sums, &column.as_ref()?[header_len..])))
            .collect();
        for (column, place) in columns.iter_mut().zip(&of.columns) {
            let (Some(bytes), Some((image, slot))) = (column, place) else { continue };
            for (at, sum) in sums.iter().enumerate() {
                if let Some(sum) = sum {
                    bytes[StripeHead::SIZE + 16 * at..][..16].copy_from_slice(&sum.to_le_bytes());
                }
            }
            bytes[48..56].fill(0);
            let sum = checksum::fast64(&self.survey.sums, &bytes[..header_len]);
            bytes[48..56].copy_from_slice(&sum.to_le_bytes());
            self.devices[*image].write(DeviceOffset::new(slot + u64::from(stripe.offset)), bytes);
        }
    }

    /// The bytes of a block as they are by now.
    fn current(&self, block: &Block) -> Option<Vec<u8>> {
        let stripe = self.survey.stripes[block.stripe];
        let of = &self.survey.segments[stripe.segment];
        let r = of.record.layout.r();
        let (image, slot) = *of.columns[block.column * r..(block.column + 1) * r].iter().flatten().next()?;
        let at = DeviceOffset::new(slot + u64::from(stripe.offset) + u64::from(block.at));
        Some(self.devices[image].read(at, block.header.stored() as usize).to_vec())
    }

    /// Changes the plain content of a block of a kind.
    fn payload(&mut self, kind: BlockKind) {
        let Some(block) = self.one_block(|block| block.header.info.kind == kind) else { return };
        let Some(plain) = self.survey.plain(block) else { return };
        self.told.push(format!("{kind:?} block {} at level {}:", block.header.id, block.header.info.level));
        let told = self.told.len();
        for _ in 0..12 {
            self.told.truncate(told);
            let mut changed = plain.clone();
            match kind {
                BlockKind::Node | BlockKind::Table => self.change_node(kind, &mut changed),
                BlockKind::Run => self.change_page(&mut changed),
                BlockKind::CommitRecord => self.change_commit_record(&mut changed),
                BlockKind::Log => self.change_log(&mut changed),
                BlockKind::Record => self.change_record(&mut changed),
            }
            if changed != plain && self.replace(block, &changed) {
                return;
            }
        }
        self.told.push("nothing that fits".into());
    }

    /// Puts another plain content in a block's place, in as many bytes; and in all others of its id.
    fn replace(&mut self, block: &Block, plain: &[u8]) -> bool {
        let Some(stored) = self.current(block) else { return false };
        let info = &block.header.info;
        if info.framed && plain.len() == info.logical as usize {
            let mut new = stored.clone();
            let frames = larder_format::block::frame_sums(&self.survey.sums, plain);
            new[HEAD..HEAD + frames.len()].copy_from_slice(&frames);
            new[HEAD + frames.len()..].copy_from_slice(plain);
            self.seal(&mut new);
            self.put(block, &new);
            return true;
        }
        let room = stored.len() - HEAD;
        let (codec, payload) = match fit(plain, room) {
            Some(packed) => packed,
            None => return false,
        };
        let mut new = stored;
        new[5] = codec as u8;
        new[32..36].copy_from_slice(&(plain.len() as u32).to_le_bytes());
        new[97] = 0;
        new[HEAD..].copy_from_slice(&payload);
        self.seal(&mut new);
        let same = |other: &&Block| other.header.id == block.header.id;
        let others: Vec<Block> = self.survey.blocks.iter().filter(same).cloned().collect();
        if others.iter().any(|other| other.header.stored() != block.header.stored()) {
            return false;
        }
        others.iter().for_each(|other| self.put(other, &new));
        if info.kind == BlockKind::Log {
            self.relink();
        }
        true
    }

    /// The log's chain holds again: each record has the sum of the one before it.
    fn relink(&mut self) {
        let sums = self.survey.sums.clone();
        let is_log = |block: &&Block| block.header.info.kind == BlockKind::Log && block.live;
        let mut logs: Vec<Block> = self.survey.blocks.iter().filter(is_log).cloned().collect();
        logs.sort_by_key(|block| block.header.id);
        let mut before: Option<(u64, u64)> = None;
        for block in logs {
            let Some(mut stored) = self.current(&block) else { continue };
            let Some(head) = LogHead::get(&stored[HEAD..]).filter(|_| stored[5] == 0) else { return };
            if let Some((sequence, sum)) = before
                && head.sequence == sequence + 1
                && head.previous != sum
            {
                stored[HEAD + 24..HEAD + 32].copy_from_slice(&sum.to_le_bytes());
                self.seal(&mut stored);
                self.put(&block, &stored);
            }
            before = Some((head.sequence, checksum::fast64(&sums, &stored[HEAD..])));
        }
    }

    fn change_record(&mut self, plain: &mut Vec<u8>) {
        match self.dice.below(3) {
            0 => plain.truncate(self.dice.below(plain.len())),
            1 => plain.extend_from_within(..self.dice.below(plain.len())),
            _ => self.flip(plain),
        }
    }

    fn change_page(&mut self, plain: &mut Vec<u8>) {
        let kind = plain[12];
        self.told.push(format!("page of kind {kind}"));
        if kind == 1 && self.dice.one_in(2) {
            return self.change_map_entries(plain);
        }
        match (self.dice.below(6), kind) {
            (0 | 1, _) => self.change_field(PageHead::FIELDS, plain, &[]),
            (2, 3) => self.change_field(PrintsHead::FIELDS, &mut plain[PageHead::SIZE..], &[]),
            (2 | 3, 2) => {
                let count = (plain.len() - PageHead::SIZE) / 32;
                let at = PageHead::SIZE + 32 * self.dice.below(count);
                let at = if self.dice.one_in(2) { at..at + 8 } else { at + 8..at + 32 };
                self.change_value(&mut plain[at]);
            }
            // Entries of the map are varints: one of them becomes long, or another.
            (3 | 4, 1) => {
                let at = PageHead::SIZE + self.dice.below(plain.len() - PageHead::SIZE);
                let len = 1 + self.dice.below(9).min(plain.len() - at - 1);
                plain[at..at + len].fill([0xff, 0x80, 0, 0x7f][self.dice.below(4)]);
            }
            (5, _) => plain.truncate(PageHead::SIZE + self.dice.below(plain.len() - PageHead::SIZE)),
            _ => {
                let at = self.dice.below(plain.len());
                let end = (at + 64).min(plain.len());
                self.flip(&mut plain[at..end]);
            }
        }
    }

    /// Entries of the map that say something else: where a block is, that it is another, or none.
    fn change_map_entries(&mut self, plain: &mut Vec<u8>) {
        let Ok((run, page)) = RunPage::of_any_run(plain.as_slice().into()) else { return };
        let known = self.survey.blocks.iter().map(|block| block.header.id);
        let known = known.chain(self.survey.pointers.iter().map(|pointer| pointer.id));
        let ids: BTreeSet<BlockId> = known.filter(|id| (page.first()..=page.last()).contains(id)).collect();
        let mut entries: Vec<(BlockId, Delta)> =
            ids.into_iter().filter_map(|id| Some((id, page.find(id)?))).collect();
        for _ in 0..=self.dice.below(3) {
            let Some(other) = self.dice.one(&entries).copied() else { return };
            let at = self.dice.below(entries.len());
            let (id, delta) = &mut entries[at];
            match self.dice.below(7) {
                0 => delta.target = Target::Alias(other.0),
                1 => delta.target = Target::Alias(*id),
                2 => delta.target = other.1.target,
                3 => *delta = Delta::DELETE,
                4 => {
                    let mark = [Marks::SHARED, Marks::DEAD, Marks::ALIASED][self.dice.below(3)];
                    (delta.set, delta.clear) = (delta.set.with(mark), delta.clear.without(mark));
                }
                5 => {
                    let Target::Places(places) = delta.target else { continue };
                    let mut bytes = [0; 16];
                    places[0].store(&mut bytes);
                    let at = [0, 8, 11, 12][self.dice.below(4)];
                    let number = self.number(0).to_le_bytes();
                    bytes[at..at + 1 + at / 12].copy_from_slice(&number[..1 + at / 12]);
                    if let Ok(places) = Places::new(&[Place::load(&bytes), places[0]][..1 + at % 2]) {
                        delta.target = Target::Places(places);
                    }
                }
                _ => drop(entries.remove(at)),
            }
        }
        let mut builder = PageBuilder::new(run);
        for (id, delta) in entries.iter().filter(|(_, delta)| *delta != Delta::NONE) {
            if !builder.is_full() {
                builder.push(*id, delta);
            }
        }
        if builder.is_empty() {
            return;
        }
        let number = plain[8..12].to_vec();
        *plain = builder.finish();
        plain[8..12].copy_from_slice(&number);
        self.told.push("entries of the map".into());
    }

    fn change_commit_record(&mut self, plain: &mut [u8]) {
        self.told.push("commit record".into());
        match self.dice.below(4) {
            0 => self.change_field(CommitRecordHead::FIELDS, plain, &["magic", "pool", "sum"]),
            1 => {
                let at = CommitRecordHead::SIZE;
                self.change_field(LabelHead::FIELDS, &mut plain[at..], &["magic", "key"]);
            }
            _ => {
                let at = CommitRecordHead::SIZE + self.dice.below(plain.len() - CommitRecordHead::SIZE);
                let len = [1, 2, 4, 8][self.dice.below(4)].min(plain.len() - at);
                self.change_number(&mut plain[at..at + len]);
            }
        }
        plain[184..192].fill(0);
        let sum = plain64(plain);
        plain[184..192].copy_from_slice(&sum.to_le_bytes());
    }

    fn change_log(&mut self, plain: &mut [u8]) {
        self.told.push("log record".into());
        let count = u32::from_le_bytes(plain[32..36].try_into().unwrap()) as usize;
        let mut starts = Vec::new();
        let mut at = LogHead::SIZE;
        for _ in 0..count {
            let len = u32::from_le_bytes(plain[at..at + 4].try_into().unwrap()) as usize;
            starts.push((at + 4, len));
            at += 4 + len;
        }
        let Some(&(at, len)) = self.dice.one(&starts) else { return };
        self.told.push(format!("operation {}", plain[at + OpHead::SIZE]));
        match self.dice.below(6) {
            0 => self.change_field(LogHead::FIELDS, plain, &["incarnation", "previous"]),
            1 => self.change_field(OpHead::FIELDS, &mut plain[at..at + len], &[]),
            2 => {
                // Fields of most operations are numbers of eight bytes behind the tag.
                let from = at + OpHead::SIZE + 1 + 8 * self.dice.below(3);
                let end = (from + 8).min(at + len);
                if from < end {
                    self.change_number(&mut plain[from..end]);
                }
            }
            3 => plain[at + OpHead::SIZE] = self.dice.below(10) as u8,
            4 => {
                let other = *self.dice.one(&starts).unwrap_or(&(at, len));
                if other.1 == len {
                    let copy = plain[other.0..other.0 + len].to_vec();
                    plain[at..at + len].copy_from_slice(&copy);
                    plain[at..at + 8].copy_from_slice(&self.number(0).to_le_bytes());
                }
            }
            _ => self.flip(&mut plain[at..at + len]),
        }
    }

    fn change_node(&mut self, kind: BlockKind, plain: &mut Vec<u8>) {
        let Some(mut node) = Raw::decode(plain) else { return self.flip(plain) };
        if self.dice.one_in(12) {
            return self.change_field(NodeHead::FIELDS, plain, &[]);
        }
        if self.dice.one_in(20) {
            return self.flip(plain);
        }
        for _ in 0..=self.dice.below(2) {
            self.change_entries(kind, &mut node);
        }
        if !self.dice.one_in(12) {
            node.entries.sort_by_key(|(key, _)| *key);
            node.entries.dedup_by_key(|(key, _)| *key);
        }
        let bytes = node.encode();
        if bytes.len() <= NODE_MAX {
            *plain = bytes;
        }
    }

    fn change_entries(&mut self, kind: BlockKind, node: &mut Raw) {
        let count = node.entries.len();
        if count == 0 {
            return;
        }
        // Rare kinds are met as often as frequent ones.
        let kinds = |(key, _): &(Key, Vec<u8>)| (key.object >> 48, key.kind);
        let mut all: Vec<_> = node.entries.iter().map(kinds).collect();
        all.dedup();
        let wanted = *self.dice.one(&all).expect("not empty");
        let of_kind: Vec<usize> = (0..count).filter(|&at| kinds(&node.entries[at]) == wanted).collect();
        let at = *self.dice.one(&of_kind).expect("one at least");
        let other = *self.dice.one(&of_kind).expect("one at least");
        self.told.push(format!("{:?}", node.entries[at].0));
        match self.dice.below(12) {
            0 => {
                let (mut key, value) = node.entries[at].clone();
                self.change_key(&mut key);
                node.entries.push((key, value));
                self.told.push("twice".into());
            }
            1 => {
                self.change_key(&mut node.entries[at].0);
                self.told.push("another key".into());
            }
            2 => {
                node.entries.remove(at);
                self.told.push("gone".into());
            }
            3 => {
                let value = node.entries[other].1.clone();
                node.entries[at].1 = value;
                self.told.push("another's value".into());
            }
            4 if node.level == 0 => {
                let value = &mut node.entries[at].1;
                value.truncate(self.dice.below(value.len() + 1));
                self.told.push("cut short".into());
            }
            _ => {
                let (key, mut value) = node.entries[at].clone();
                if node.level > 0 {
                    self.change_value(&mut value);
                } else if kind == BlockKind::Table {
                    self.change_row(&key, &mut value);
                } else {
                    self.change_item(&key, &mut value);
                }
                node.entries[at].1 = value;
            }
        }
    }

    fn change_key(&self, key: &mut Key) {
        match self.dice.below(5) {
            0 => key.object = self.number(key.object),
            1 => key.kind = [0, 1, 2, 64, 128, 129, 130, 131, 132, 133, 255][self.dice.below(11)],
            2 => key.object ^= 1 << self.dice.below(24),
            _ => key.offset = self.number(key.offset),
        }
    }

    /// Changes a row of the pool's tables.
    fn change_row(&mut self, key: &Key, value: &mut Vec<u8>) {
        let Ok((table, _)) = Table::of(key) else { return self.change_value(value) };
        let fields = match table {
            Table::Segments => SegmentHead::FIELDS,
            Table::Datasets => DatasetHead::FIELDS,
            Table::Runs => RunHead::FIELDS,
            Table::Properties | Table::SnapshotProperties => return self.change_property(value),
            Table::Snapshots => SnapshotHead::FIELDS,
            Table::Freeing => FreeingRecord::FIELDS,
            Table::Index if self.dice.one_in(2) => PartHead::FIELDS,
            Table::Index => {
                let from = PartHead::SIZE.min(value.len());
                return self.change_field(RunHead::FIELDS, &mut value[from..], &[]);
            }
            Table::Events => EventHead::FIELDS,
            Table::Commands => CommandHead::FIELDS,
            Table::Damage => DamageRecord::FIELDS,
            Table::BadSlots => BadSlotRecord::FIELDS,
            Table::Holds => HoldHead::FIELDS,
            Table::Bookmarks => BookmarkHead::FIELDS,
            Table::Receiving => ReceivingHead::FIELDS,
            Table::Trash => TrashHead::FIELDS,
            Table::Remains => RemainsRecord::FIELDS,
            Table::CommitRecords => CommitRecordRow::FIELDS,
            _ => return self.change_value(value),
        };
        let head = fields.last().map_or(0, |of| of.offset + of.size).min(value.len());
        // The rest of the row: names, slots, references, footprints.
        if self.dice.one_in(4) && head < value.len() {
            let at = head + self.dice.below(value.len() - head);
            let end = (at + [1, 2, 4, 8][self.dice.below(4)]).min(value.len());
            match self.dice.below(3) {
                0 => value[at] = *self.dice.one(b"/@#%.\0\xff\n ").unwrap(),
                _ => self.change_number(&mut value[at..end]),
            }
            self.told.push("what follows it".into());
            return;
        }
        self.change_field(fields, value, &[]);
    }

    fn change_property(&mut self, value: &mut Vec<u8>) {
        const VALUES: [&str; 12] = [
            "0",
            "1",
            "18446744073709551615",
            "9223372036854775808",
            "4611686018427387904",
            "-1",
            "",
            "on",
            "none",
            "nonsense",
            "4095",
            "/../..",
        ];
        const PROPERTIES: [&str; 16] = [
            "recordsize",
            "quota",
            "refquota",
            "reservation",
            "refreservation",
            "copies",
            "compression",
            "memory",
            "mountpoint",
            "special_small_blocks",
            "larder:last_dataset",
            "chunking",
            "dedup",
            "checksum",
            "larder:scrub",
            "readonly",
        ];
        let Some(head) = PropertyHead::get(value) else { return };
        if self.dice.one_in(4) {
            return self.change_field(PropertyHead::FIELDS, value, &[]);
        }
        let name_end = PropertyHead::SIZE + usize::from(head.name_len);
        let name = match self.dice.one_in(2) {
            true => value[PropertyHead::SIZE..name_end.min(value.len())].to_vec(),
            false => PROPERTIES[self.dice.below(PROPERTIES.len())].as_bytes().to_vec(),
        };
        let new = VALUES[self.dice.below(VALUES.len())];
        self.told.push(format!("{}={new}", String::from_utf8_lossy(&name)));
        let source = value[2];
        value.clear();
        value.resize(PropertyHead::SIZE, 0);
        value[..2].copy_from_slice(&(name.len() as u16).to_le_bytes());
        value[2] = source;
        value.extend_from_slice(&name);
        value.extend_from_slice(new.as_bytes());
    }

    /// Changes an item of a dataset's tree.
    fn change_item(&mut self, key: &Key, value: &mut Vec<u8>) {
        match key.kind {
            items::EXTENT => self.change_field(ExtentRecord::FIELDS, value, &[]),
            items::INODE => self.change_field(InodeRecord::FIELDS, value, &[]),
            items::ENTRY if value.len() > 9 => match self.dice.below(4) {
                // A directory that holds itself, or one above it.
                0 => value[..8].copy_from_slice(&key.object.to_le_bytes()),
                1 => self.change_number(&mut value[..8]),
                2 => value[8] = self.dice.below(9) as u8,
                _ => {
                    value.truncate(9);
                    let names = NAMES_TO_TRY;
                    value.extend_from_slice(names[self.dice.below(names.len())]);
                    self.told.push("another name".into());
                }
            },
            items::XATTR if value.len() > 2 => match self.dice.below(3) {
                0 => value[0] = self.dice.below(256) as u8,
                1 => {
                    let at = self.dice.below(value.len());
                    value[at] ^= 1;
                }
                _ => {
                    let name = usize::from(value[0]);
                    value.truncate((1 + name).min(value.len()));
                    value.push(1);
                    value.extend_from_slice(&self.number(1).to_le_bytes());
                    value.extend_from_slice(&(self.number(9) as u32).to_le_bytes());
                }
            },
            _ => match self.dice.below(3) {
                0 => value.resize(self.dice.below(4097), b'/'),
                _ => self.change_value(value),
            },
        }
    }
}

const NAMES_TO_TRY: [&[u8]; 9] =
    [b"..", b".", b"", b"a/b", b"nul\0", b"/", b".zfs", b"\xff\xfe", &[b'n'; 255]];

const BLOCK_KINDS: [BlockKind; 6] = [
    BlockKind::Record,
    BlockKind::Node,
    BlockKind::Table,
    BlockKind::Run,
    BlockKind::Log,
    BlockKind::CommitRecord,
];

fn differences(before: &[u8], after: &[u8]) -> Vec<(usize, u8)> {
    let pairs = before.iter().zip(after).enumerate();
    pairs.filter(|(_, (before, after))| before != after).map(|(at, (_, after))| (at, *after)).collect()
}

/// Puts these bytes, then makes sums right.
fn move_bytes<'a>(changed: &'a [(usize, u8)], sum: &'a dyn Fn(&mut [u8])) -> impl Fn(&mut [u8]) + Copy + 'a {
    move |bytes| {
        changed.iter().for_each(|&(at, byte)| bytes[at] = byte);
        sum(bytes);
    }
}

/// A payload of exactly `room` bytes that decodes to `plain`.
fn fit(plain: &[u8], room: usize) -> Option<(CodecKind, Vec<u8>)> {
    if plain.len() == room {
        return Some((CodecKind::Off, plain.to_vec()));
    }
    // The first bytes are stored as they are, as many as fill the room; the rest is packed.
    for level in [9, 12, 6, 1] {
        let level = libdeflater::CompressionLvl::new(level).expect("a level");
        let mut packer = libdeflater::Compressor::new(level);
        let mut pack = |from: usize| {
            let mut out = vec![0; packer.deflate_compress_bound(plain.len() - from)];
            let len = packer.deflate_compress(&plain[from..], &mut out).expect("room for the worst case");
            out.truncate(len);
            out
        };
        let whole = pack(0).len();
        if whole > room {
            continue;
        }
        for first in (0..plain.len().min(room)).step_by((plain.len() / 256).max(1)) {
            let packed = pack(first);
            let stored = if first > 0 { 5 + first } else { 0 };
            let Some(rest) = room.checked_sub(stored + packed.len()) else { break };
            let Some(mut out) = padding(rest) else { continue };
            if first > 0 {
                out.push(0);
                out.extend_from_slice(&(first as u16).to_le_bytes());
                out.extend_from_slice(&(!(first as u16)).to_le_bytes());
                out.extend_from_slice(&plain[..first]);
            }
            out.extend(packed);
            return Some((CodecKind::Gzip, out));
        }
    }
    None
}

/// Deflate blocks of nothing, `len` bytes of them: stored ones of five, some with one of fixed codes before them, six.
fn padding(len: usize) -> Option<Vec<u8>> {
    let six = (0..6).find(|six| len >= six * 6 && (len - six * 6).is_multiple_of(5))?;
    let mut out = Vec::with_capacity(len);
    for _ in 0..six {
        // Bits 0, 01 and seven zeros; then 0, 00, and what fills the byte.
        out.extend([0b0000_0010, 0, 0, 0, 0xff, 0xff]);
    }
    for _ in 0..(len - six * 6) / 5 {
        out.extend([0, 0, 0, 0xff, 0xff]);
    }
    Some(out)
}

/// A node without its rules.
struct Raw {
    level: u8,
    entries: Vec<(Key, Vec<u8>)>,
}

impl Raw {
    fn decode(plain: &[u8]) -> Option<Self> {
        let node = larder_format::node::Node::decode(plain).ok()?;
        let entries = match &node {
            larder_format::node::Node::Leaf(leaf) => {
                leaf.iter().map(|(key, value)| (*key, value.to_vec())).collect()
            }
            larder_format::node::Node::Inner(inner) => {
                let stored = |child: &BlockPtr| {
                    let mut bytes = vec![0; 24];
                    child.store(&mut bytes);
                    bytes
                };
                inner.keys().iter().zip(inner.children()).map(|(key, child)| (*key, stored(child))).collect()
            }
        };
        Some(Self { level: node.level(), entries })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; NodeHead::SIZE];
        let (mut clear, mut sealed) = (Vec::new(), Vec::new());
        for (key, value) in &self.entries {
            let at = out.len();
            if self.level > 0 {
                out.resize(at + InnerEntry::SIZE, 0);
                key.store(&mut out[at..]);
                out[at + Key::SIZE..].copy_from_slice(value);
            } else {
                out.resize(at + LeafEntry::SIZE, 0);
                LeafEntry { key: *key, len: value.len() as u16 }.put(&mut out[at..]);
                if is_clear(key.kind) { &mut clear } else { &mut sealed }.extend_from_slice(value);
            }
        }
        let (count, clear_len, sealed_len) =
            (self.entries.len() as u16, clear.len() as u16, sealed.len() as u16);
        NodeHead { level: self.level, count, clear: clear_len, sealed: sealed_len }.put(&mut out);
        out.extend(clear);
        out.extend(sealed);
        out
    }
}
