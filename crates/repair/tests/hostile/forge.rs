//! Structures changed on purpose, with every sum made right again: who does this knows the pool's key.

mod contents;

use crate::survey::{Block, HEAD, Survey};
use larder_device::{Entropy, SeededEntropy};
use larder_format::DeviceOffset;
use larder_format::block::{BlockHeader, BlockKind, CodecKind};
use larder_format::checksum::{self, plain64};
use larder_format::field::{Field, FieldInfo};
use larder_format::label::{
    HEARTBEAT_OFFSET, HeartbeatHead, LABEL_LEN, LabelHead, RING_OFFSET, RING_SLOT, RING_SLOTS, label_areas,
};
use larder_format::log::LogHead;
use larder_format::root::{Root, RootDeviceEntry, RootGroupEntry, RootHead, RootImport, ring_slot};
use larder_format::segment::{DESCRIPTOR_LEN, DescriptorHead, SegmentHead, StripeHead, stripe_header_len};
use larder_sim::DeviceImage;
use larder_store::parity;

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
            self.change_contents(kind, &mut changed);
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
}

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
