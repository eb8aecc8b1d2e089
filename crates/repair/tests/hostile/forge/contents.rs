//! Plain contents of blocks, changed by kind: records, pages, commit and log records, nodes and what is in them.

use super::Forge;
use larder_format::block::BlockKind;
use larder_format::bookmark::BookmarkHead;
use larder_format::checksum::plain64;
use larder_format::commit_record::{CommitRecordHead, CommitRecordRow};
use larder_format::field::Field;
use larder_format::index::{PartHead, PrintsHead};
use larder_format::items::{self, ExtentRecord, InodeRecord};
use larder_format::label::LabelHead;
use larder_format::ledger::{CommandHead, DamageRecord, EventHead};
use larder_format::log::{LogHead, OpHead};
use larder_format::node::{InnerEntry, Key, LeafEntry, NODE_MAX, NodeHead, is_clear};
use larder_format::property::PropertyHead;
use larder_format::run::{Delta, Marks, PageBuilder, PageHead, Places, RunHead, RunPage, Target};
use larder_format::segment::SegmentHead;
use larder_format::tables::{
    BadSlotRecord, DatasetHead, FreeingRecord, HoldHead, ReceivingHead, RemainsRecord, SnapshotHead, Table,
};
use larder_format::trash::TrashHead;
use larder_format::{BlockId, BlockPtr, Place};
use std::collections::BTreeSet;

const NAMES_TO_TRY: [&[u8]; 9] =
    [b"..", b".", b"", b"a/b", b"nul\0", b"/", b".zfs", b"\xff\xfe", &[b'n'; 255]];

impl Forge<'_> {
    /// Changes the plain content of a block of this kind.
    pub(super) fn change_contents(&mut self, kind: BlockKind, plain: &mut Vec<u8>) {
        match kind {
            BlockKind::Node | BlockKind::Table => self.change_node(kind, plain),
            BlockKind::Run => self.change_page(plain),
            BlockKind::CommitRecord => self.change_commit_record(plain),
            BlockKind::Log => self.change_log(plain),
            BlockKind::Record => self.change_record(plain),
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
