//! Streams made by hand, from the layouts that OpenZFS documents: for what no program here can make.
#![allow(dead_code)]

pub mod lies;

use larder_zfs_stream::Order;

pub const PLAIN: u32 = 19;
pub const DIRECTORY: u32 = 20;
pub const ZNODE: u32 = 17;
pub const SA: u32 = 44;

/// A record and its payload.
pub type Piece = ([u8; 312], Vec<u8>);

#[derive(Clone)]
pub struct Build {
    pub order: Order,
    pub pieces: Vec<Piece>,
    /// Each record carries the sum of all before it.
    pub sums_each: bool,
}

pub fn u16s(order: Order, value: u16) -> [u8; 2] {
    if order == Order::Little { value.to_le_bytes() } else { value.to_be_bytes() }
}

pub fn u32s(order: Order, value: u32) -> [u8; 4] {
    if order == Order::Little { value.to_le_bytes() } else { value.to_be_bytes() }
}

pub fn u64s(order: Order, value: u64) -> [u8; 8] {
    if order == Order::Little { value.to_le_bytes() } else { value.to_be_bytes() }
}

pub struct Fields<'a> {
    order: Order,
    bytes: &'a mut [u8],
}

impl Fields<'_> {
    pub fn u8(&mut self, at: usize, value: u8) -> &mut Self {
        self.bytes[at] = value;
        self
    }

    pub fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.bytes[at..at + 4].copy_from_slice(&u32s(self.order, value));
        self
    }

    pub fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        self.bytes[at..at + 8].copy_from_slice(&u64s(self.order, value));
        self
    }
}

fn sum(sum: &mut [u64; 4], bytes: &[u8], order: Order) {
    for word in bytes.chunks_exact(4) {
        let word = word.try_into().unwrap();
        let word = if order == Order::Little { u32::from_le_bytes(word) } else { u32::from_be_bytes(word) };
        sum[0] = sum[0].wrapping_add(u64::from(word));
        for place in 1..4 {
            sum[place] = sum[place].wrapping_add(sum[place - 1]);
        }
    }
}

/// Writes records down with the sums that they should have.
pub fn serialize(pieces: &[Piece], order: Order, sums_each: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sums = [0; 4];
    for (record, payload) in pieces {
        let mut record = *record;
        let kind = if order == Order::Little { record[0] } else { record[3] };
        let put = |record: &mut [u8; 312], at: usize, sums: &[u64; 4]| {
            for (place, sum) in sums.iter().enumerate() {
                record[at + 8 * place..][..8].copy_from_slice(&u64s(order, *sum));
            }
        };
        match kind {
            0 => sums = [0; 4],
            5 => put(&mut record, 8, &sums),
            _ => {}
        }
        sum(&mut sums, &record[..280], order);
        if kind != 0 && sums_each {
            put(&mut record, 280, &sums);
        }
        sum(&mut sums, &record[280..], order);
        sum(&mut sums, payload, order);
        out.extend(record);
        out.extend(payload);
    }
    out
}

impl Build {
    pub fn new(order: Order) -> Self {
        Self { order, pieces: Vec::new(), sums_each: true }
    }

    pub fn bytes(&self) -> Vec<u8> {
        serialize(&self.pieces, self.order, self.sums_each)
    }

    pub fn record(&mut self, kind: u32, payload: &[u8], fill: impl FnOnce(&mut Fields<'_>)) -> &mut Self {
        let mut record = [0; 312];
        let mut fields = Fields { order: self.order, bytes: &mut record };
        fields.u32(0, kind);
        fill(&mut fields);
        let mut payload = payload.to_vec();
        payload.resize(payload.len().next_multiple_of(8), 0);
        self.pieces.push((record, payload));
        self
    }

    pub fn begin(&mut self, features: u64, flags: u32, from: u64, to: u64, name: &str) -> &mut Self {
        self.record(0, &[], |fields| {
            fields.u64(8, 0x2_F5BA_CBAC).u64(16, 1 | features << 2).u64(24, 1_700_000_000);
            fields.u32(32, 2).u32(36, flags).u64(40, to).u64(48, from);
            fields.bytes[56..56 + name.len()].copy_from_slice(name.as_bytes());
        })
    }

    pub fn end(&mut self) -> &mut Self {
        self.record(5, &[], |_| {})
    }

    pub fn object(&mut self, object: u64, kind: u32, bonus_kind: u32, block: u32, bonus: &[u8]) -> &mut Self {
        self.object_flagged(object, kind, bonus_kind, block, bonus, 0)
    }

    pub fn object_flagged(
        &mut self,
        object: u64,
        kind: u32,
        bonus_kind: u32,
        block: u32,
        bonus: &[u8],
        flags: u8,
    ) -> &mut Self {
        self.record(1, bonus, |fields| {
            fields
                .u64(8, object)
                .u32(16, kind)
                .u32(20, bonus_kind)
                .u32(24, block)
                .u32(28, bonus.len() as u32);
            fields.u8(34, 1).u8(35, flags);
        })
    }

    pub fn write(&mut self, object: u64, offset: u64, data: &[u8]) -> &mut Self {
        self.record(3, data, |fields| {
            fields.u64(8, object).u64(24, offset).u64(32, data.len() as u64);
        })
    }

    pub fn packed(&mut self, object: u64, offset: u64, len: u64, codec: u8, packed: &[u8]) -> &mut Self {
        let mut packed = packed.to_vec();
        packed.resize(packed.len().next_multiple_of(512), 0);
        self.record(3, &packed, |fields| {
            fields.u64(8, object).u64(24, offset).u64(32, len).u8(50, codec).u64(96, packed.len() as u64);
        })
    }

    pub fn embedded(&mut self, object: u64, len: u64, codec: u8, plain: u32, packed: &[u8]) -> &mut Self {
        self.record(8, packed, |fields| {
            fields.u64(8, object).u64(24, len).u8(40, codec).u32(48, plain).u32(52, packed.len() as u32);
        })
    }

    pub fn spill(&mut self, object: u64, data: &[u8]) -> &mut Self {
        self.record(7, data, |fields| {
            fields.u64(8, object).u64(16, data.len() as u64);
        })
    }

    pub fn free(&mut self, object: u64, offset: u64, len: u64) -> &mut Self {
        self.record(4, &[], |fields| {
            fields.u64(8, object).u64(16, offset).u64(24, len);
        })
    }

    pub fn free_objects(&mut self, first: u64, count: u64) -> &mut Self {
        self.record(2, &[], |fields| {
            fields.u64(8, first).u64(16, count);
        })
    }

    /// A small ZAP of one block.
    pub fn micro(&self, entries: &[(&str, u64)]) -> Vec<u8> {
        let mut block = vec![0; ((entries.len() + 1) * 64).next_multiple_of(512)];
        let mut fields = Fields { order: self.order, bytes: &mut block };
        fields.u64(0, (1 << 63) + 3).u64(8, 0x1234_5678);
        for (number, (name, value)) in entries.iter().enumerate() {
            let at = (number + 1) * 64;
            fields.u64(at, *value);
            fields.bytes[at + 14..at + 14 + name.len()].copy_from_slice(name.as_bytes());
        }
        block
    }

    /// The header of a large ZAP.
    pub fn zap_header(&self, entries: u64) -> Vec<u8> {
        let mut block = vec![0; 4096];
        Fields { order: self.order, bytes: &mut block }
            .u64(0, (1 << 63) + 1)
            .u64(8, 0x2_F52A_B2AB)
            .u64(64, 1)
            .u64(72, entries);
        block
    }

    /// A leaf of a large ZAP: names, and integers of a width.
    pub fn zap_leaf(&self, entries: &[(&str, u8, Vec<u64>)]) -> Vec<u8> {
        let order = self.order;
        let mut block = vec![0; 4096];
        let chunks_at = 48 + block.len() / 16;
        let mut next = 0;
        let mut array = |block: &mut Vec<u8>, bytes: &[u8]| {
            let first = next;
            for part in bytes.chunks(21) {
                let at = chunks_at + next * 24;
                next += 1;
                block[at] = 251;
                block[at + 1..at + 1 + part.len()].copy_from_slice(part);
                let link = if part.len() == 21 { next as u16 } else { 0xffff };
                block[at + 22..at + 24].copy_from_slice(&u16s(order, link));
            }
            first as u16
        };
        let mut heads = Vec::new();
        for (name, width, values) in entries {
            let name = [name.as_bytes(), &[0]].concat();
            let width = usize::from(*width);
            let bytes: Vec<u8> =
                values.iter().flat_map(|value| value.to_be_bytes()[8 - width..].to_vec()).collect();
            let (name_chunk, value_chunk) = (array(&mut block, &name), array(&mut block, &bytes));
            heads.push((width as u8, name_chunk, name.len() as u16, value_chunk, values.len() as u16));
        }
        for (width, name, name_len, value, count) in heads {
            let at = chunks_at + next * 24;
            next += 1;
            block[at] = 252;
            block[at + 1] = width;
            for (field, number) in [0xffff, name, name_len, value, count].into_iter().enumerate() {
                block[at + 2 + 2 * field..][..2].copy_from_slice(&u16s(order, number));
            }
        }
        block[30..32].copy_from_slice(&u16s(order, entries.len() as u16));
        Fields { order, bytes: &mut block }.u64(0, 1 << 63).u32(24, 0x2AB_1EAF);
        block
    }

    /// A znode: of version 4 of the file system and before.
    pub fn znode(&self, file: &File<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (secs, nanos) in file.times {
            bytes.extend(u64s(self.order, secs));
            bytes.extend(u64s(self.order, nanos));
        }
        let numbers = [
            file.birth,
            file.mode,
            file.size,
            file.parent,
            file.links,
            file.xattr,
            file.rdev,
            file.flags,
            file.uid,
            file.gid,
        ];
        numbers.iter().for_each(|number| bytes.extend(u64s(self.order, *number)));
        bytes.resize(264, 0);
        bytes.extend(file.target);
        bytes
    }

    /// System attributes: of version 5. Layout 2 has the fixed ones, 3 a target behind them, 4 extended attributes, 5
    /// the object of such, 6 an access list and extended attributes.
    pub fn sa(&self, layout: u16, file: &File<'_>, varied: &[&[u8]]) -> Vec<u8> {
        let head = (8 + 2 * varied.len().saturating_sub(1)).next_multiple_of(8);
        let mut bytes = u32s(self.order, 0x2F_505A).to_vec();
        bytes.extend(u16s(self.order, layout | (head as u16 / 8) << 10));
        varied.iter().for_each(|varied| bytes.extend(u16s(self.order, varied.len() as u16)));
        bytes.resize(head, 0);
        let mut numbers = vec![file.mode, file.size, file.birth, file.uid, file.gid, file.parent, file.flags];
        file.times.iter().for_each(|(secs, nanos)| numbers.extend([*secs, *nanos]));
        numbers.push(file.links);
        numbers.push(file.rdev);
        numbers.extend((layout == 5).then_some(file.xattr));
        numbers.iter().for_each(|number| bytes.extend(u64s(self.order, *number)));
        for varied in varied {
            bytes.extend(*varied);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes
    }

    /// A spill block with extended attributes alone: layout 7.
    pub fn sa_spill(&self, varied: &[u8]) -> Vec<u8> {
        let mut bytes = u32s(self.order, 0x2F_505A).to_vec();
        bytes.extend(u16s(self.order, 7 | 1 << 10));
        bytes.extend(u16s(self.order, varied.len() as u16));
        bytes.extend(varied);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    /// The objects that say how attributes lie: 1, then these three.
    pub fn master(&mut self, version: u64, root: u64, sa: Option<[u64; 3]>) -> &mut Self {
        let mut entries = vec![("VERSION", version), ("ROOT", root), ("DELETE_QUEUE", 2), ("SHARES", 4)];
        entries.extend(sa.map(|[sa, ..]| ("SA_ATTRS", sa)));
        let block = self.micro(&entries);
        self.object(1, 21, 0, block.len() as u32, &[]).write(1, 0, &block)
    }

    pub fn attributes(&mut self, [sa, registry, layouts]: [u64; 3]) -> &mut Self {
        let block = self.micro(&[("REGISTRY", registry), ("LAYOUTS", layouts)]);
        self.object(sa, 45, 0, 512, &[]).write(sa, 0, &block);
        let named = [
            ("ZPL_ATIME", 16),
            ("ZPL_MTIME", 16),
            ("ZPL_CTIME", 16),
            ("ZPL_CRTIME", 16),
            ("ZPL_GEN", 8),
            ("ZPL_MODE", 8),
            ("ZPL_SIZE", 8),
            ("ZPL_PARENT", 8),
            ("ZPL_LINKS", 8),
            ("ZPL_XATTR", 8),
            ("ZPL_RDEV", 8),
            ("ZPL_FLAGS", 8),
            ("ZPL_UID", 8),
            ("ZPL_GID", 8),
            ("ZPL_PAD", 32),
            ("ZPL_ZNODE_ACL", 88),
            ("ZPL_DACL_COUNT", 8),
            ("ZPL_SYMLINK", 0),
            ("ZPL_SCANSTAMP", 32),
            ("ZPL_DACL_ACES", 0),
            ("ZPL_DXATTR", 0),
            ("ZPL_PROJID", 8),
        ];
        let entries: Vec<_> =
            (0..).zip(named).map(|(number, (name, len))| (name, len << 24 | number)).collect();
        let block = self.micro(&entries);
        self.object(registry, 46, 0, block.len() as u32, &[]).write(registry, 0, &block);
        let fixed = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 10];
        let with = |more: &[u64]| [&fixed[..], more].concat();
        let laid = [
            ("2", 2, with(&[])),
            ("3", 2, with(&[17])),
            ("4", 2, with(&[20])),
            ("5", 2, with(&[9])),
            ("6", 2, with(&[19, 20])),
            ("7", 2, vec![20]),
        ];
        let leaf = self.zap_leaf(&laid);
        let header = self.zap_header(laid.len() as u64);
        self.object(layouts, 47, 0, 4096, &[]).write(layouts, 0, &header).write(layouts, 4096, &leaf)
    }
}

/// Attributes of a file.
#[derive(Clone, Copy)]
pub struct File<'a> {
    pub mode: u64,
    pub size: u64,
    pub birth: u64,
    pub uid: u64,
    pub gid: u64,
    pub parent: u64,
    pub flags: u64,
    pub links: u64,
    pub rdev: u64,
    pub xattr: u64,
    /// Seconds and nanoseconds: access, content, change, birth.
    pub times: [(u64, u64); 4],
    pub target: &'a [u8],
}

impl Default for File<'_> {
    fn default() -> Self {
        Self {
            mode: 0o100_644,
            size: 0,
            birth: 10,
            uid: 0,
            gid: 0,
            parent: 34,
            flags: 4,
            links: 1,
            rdev: 0,
            xattr: 0,
            times: [
                (1_600_000_000, 123_456_789),
                (1_600_000_001, 1),
                (1_600_000_002, 2),
                (1_600_000_003, 999_999_999),
            ],
            target: b"",
        }
    }
}

/// A list of names and bytes, packed as XDR.
pub fn packed_list(pairs: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let padded = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    for (name, value) in pairs {
        let mut pair = (name.len() as u32).to_be_bytes().to_vec();
        pair.extend(padded(name.as_bytes()));
        pair.extend(10_u32.to_be_bytes());
        pair.extend((value.len() as u32).to_be_bytes());
        pair.extend(padded(value));
        out.extend((pair.len() as u32 + 8).to_be_bytes());
        out.extend((pair.len() as u32 + 8).to_be_bytes());
        out.extend(pair);
    }
    out.extend([0; 8]);
    out
}
