//! Valid encodings of everything.

use larder_format::acl::{ACL_NO_ID, Acl, AclEntry, AclTag};
use larder_format::block::{self, BlockInfo, BlockKind, CodecKind, Stamp};
use larder_format::bookmark::BookmarkRecord;
use larder_format::cached::{CachedBlock, SlotCounts, SlotSummary};
use larder_format::checksum::{ChecksumKind, payload_sum};
use larder_format::checksum::{KEY_LEN, PoolKey, Sums};
use larder_format::commit_record::{CommitRecord, CommitRecordEntry, Row, Slices};
use larder_format::index::{FilterShape, PartDescriptor, PrintEntry, PrintsBuilder, encode_filter_page};
use larder_format::items::{Entry, Extent, FileKind, Inode, Xattr, XattrValue};
use larder_format::label::{Features, GroupRule, Heartbeat, Label, LayoutKind};
use larder_format::ledger::{CommandRecord, DamageKind, DamageRecord, EventRecord};
use larder_format::log::LogRecord;
use larder_format::node::{Inner, Key, Leaf, Node};
use larder_format::ops::{Create, Link, LogOp, Rename, Resize, SetAttr, SetXattr, Unlink, Write, Zero};
use larder_format::property::{PropertyRecord, PropertySource};
use larder_format::root::{
    DeviceKind, DeviceState, GroupRole, Identity, NO_GROUP, Root, RootDevice, RootGroup, RootImport,
};
use larder_format::run::{
    Delta, Footprint, Marks, PageBuilder, PageRef, Places, RunDescriptor, RunId, Target, encode_index_page,
};
use larder_format::segment::{
    CLASSES, DESCRIPTOR_LEN, Layout, SegmentKind, SegmentRecord, SegmentState, Slot, StripeHeader,
    encode_descriptor, stripe_header_len,
};
use larder_format::tables::{
    BadSlotRecord, DatasetRecord, FreeingRecord, ReceivingRecord, RemainsRecord, SnapshotRecord, Table,
};
use larder_format::trash::TrashRecord;
use larder_format::*;
use larder_pool::codec::{self, Codec};
use std::sync::LazyLock;

/// The pool that everything here belongs to.
pub const POOL: PoolGuid = PoolGuid::new(0x1a4de4);
/// Key of its checksums.
pub const KEY: PoolKey = PoolKey::new([0x5e; KEY_LEN]);
/// Its sums.
pub static SUMS: LazyLock<Sums> = LazyLock::new(|| Sums::new(POOL, KEY));

const TIME: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 5 };
const LAYOUTS: [(LayoutKind, u8, u8, u8); 5] = [
    (LayoutKind::Single, 1, 1, 0),
    (LayoutKind::Mirror, 1, 2, 0),
    (LayoutKind::Raidz, 4, 1, 2),
    (LayoutKind::Raid10, 2, 2, 0),
    (LayoutKind::Raid14, 2, 2, 1),
];

fn rules() -> impl Iterator<Item = GroupRule> {
    LAYOUTS.iter().map(|&(word, k, r, m)| GroupRule { word, layout: Layout::new(k, r, m).expect("a layout") })
}

fn ptr(n: u64) -> BlockPtr {
    let place = Place {
        segment: SegmentId::new(1 + n / 7),
        column: (n % 4) as u8,
        offset: 4096 + (n as u32 % 1000) * 8,
        stored: 144 + n as u32 % 999,
    };
    BlockPtr { id: BlockId::new(100 + n), place }
}

pub fn labels() -> Vec<Vec<u8>> {
    let label = |rule| Label {
        sequence: 3,
        pool: POOL,
        name: "tank".into(),
        device: DeviceGuid::new(2),
        index: DeviceIndex::new(1),
        group: GroupIndex::new(0),
        rule,
        slot_size: 1 << 20,
        slot_count: 62,
        data_start: DeviceOffset::new(1 << 20),
        device_size: ByteLen::new(64 << 20),
        created: TIME,
        ashift: 12,
        features: Features::default(),
        key: KEY,
    };
    rules().map(|rule| label(rule).encode()).collect()
}

pub fn heartbeats() -> Vec<Vec<u8>> {
    let beat = |host_name: &str| Heartbeat {
        pool: POOL,
        host: HostId::new(7),
        host_name: host_name.into(),
        incarnation: Incarnation::new(9),
        beats: 11,
    };
    vec![beat("").encode(), beat("nas").encode(), beat(&"\u{fc}".repeat(300)).encode()]
}

fn segment(rule: GroupRule, n: u64) -> SegmentRecord {
    let kinds = [SegmentKind::Data, SegmentKind::Table, SegmentKind::Log];
    let freed = n % 4 == 3;
    SegmentRecord {
        id: SegmentId::new(10 + n),
        kind: kinds[n as usize % 3],
        state: if freed { SegmentState::Freed } else { SegmentState::Open },
        group: GroupIndex::new(0),
        layout: rule.layout,
        height: DESCRIPTOR_LEN * (1 + n as u32),
        live_blocks: n as u32,
        live_bytes: n * 160,
        birth: CommitId::new(2),
        freed: CommitId::new(if freed { 3 } else { 0 }),
        incarnation: Incarnation::new(4),
        placed: n * 320,
        closed_at: BlockId::new(n * 1000),
        class: n as u8 % CLASSES,
        copy: n as u8 % 3,
        unnamed: n % 2 == 1,
        filled: CommitId::new(3 + n),
        verified: n << 32,
        slots: (0..rule.layout.columns() as u16)
            .map(|i| Slot { device: DeviceIndex::new(i), index: SlotIndex::new(n as u32) })
            .collect(),
    }
}

pub fn roots() -> Vec<Vec<u8>> {
    let root = |rule: GroupRule, segments: u64| Root {
        pool: POOL,
        commit: CommitId::new(500),
        incarnation: Incarnation::new(8),
        time: TIME,
        exported: segments == 0,
        destroyed: false,
        log_open: segments > 0,
        host: HostId::new(1),
        block_lease: BlockId::new(1 << 30),
        segment_lease: SegmentId::new(1 << 20),
        oldest: CommitId::new(498),
        applied: OpSeq::new(33),
        log_offset: 4096,
        log_sequence: 12,
        log_previous: 0x1234,
        log_incarnation: Incarnation::new(8),
        features: Features::default(),
        next_device: 92,
        next_group: 1,
        traced: CommitId::new(1),
        identity: Identity::of(POOL),
        tables: ptr(4),
        groups: vec![RootGroup {
            index: GroupIndex::new(0),
            rule,
            role: GroupRole::Data,
            ashift: 12,
            slot_size: 1 << 20,
            leaving: false,
            narrow: false,
        }],
        devices: (0..rule.layout.columns() as u16)
            .map(|i| RootDevice {
                index: DeviceIndex::new(i),
                group: GroupIndex::new(0),
                state: DeviceState::Current,
                leaving: false,
                slot_count: 62,
                partial: false,
                guid: DeviceGuid::new(u64::from(i)),
                good_through: CommitId::new(500),
                since: CommitId::new(0),
                cursor: SegmentId::new(0),
                stands_for: None,
                incarnation: Incarnation::new(8),
                kind: DeviceKind::Unknown,
                is_cache: false,
            })
            .chain([of_no_group(90, false), of_no_group(91, true)])
            .collect(),
        history: (1..4)
            .map(|i| RootImport {
                incarnation: Incarnation::new(i),
                first: CommitId::new(i),
                first_block: BlockId::new(1 << i),
                skipped: i,
            })
            .collect(),
        segments: (0..segments).map(|n| segment(rule, n)).collect(),
    };
    rules().zip(0..).filter_map(|(rule, n)| root(rule, n).encode(&SUMS)).collect()
}

pub fn segments() -> Vec<Vec<u8>> {
    let encode = |(rule, n): (GroupRule, u64)| {
        let mut out = Vec::new();
        segment(rule, n).encode(&mut out);
        out
    };
    rules().zip(0..).map(encode).collect()
}

pub fn descriptors() -> Vec<Vec<u8>> {
    rules().zip(0..).map(|(rule, n)| encode_descriptor(&SUMS, &segment(rule, n), 0)).collect()
}

pub fn stripes() -> Vec<Vec<u8>> {
    let encode = |columns: u64| {
        let mut out = vec![0; stripe_header_len(columns as usize) as usize];
        let header = StripeHeader {
            segment: SegmentId::new(1),
            offset: DESCRIPTOR_LEN,
            height: 16 << 10,
            commit: CommitId::new(5),
            incarnation: Incarnation::new(6),
            column: 0,
            used: 1600,
            sums: (0..columns).map(|sum| u128::from(sum) << 77).collect(),
        };
        header.put(&SUMS, &mut out);
        out
    };
    [1, 3, 64].into_iter().map(encode).collect()
}

pub fn blocks() -> Vec<Vec<u8>> {
    let sums = [ChecksumKind::Fast, ChecksumKind::Blake3, ChecksumKind::Sha256];
    let encode = |(payload, checksum): (Vec<u8>, ChecksumKind)| {
        let stamp = Stamp { id: BlockId::new(77), incarnation: Incarnation::new(1), birth: CommitId::new(2) };
        let info = BlockInfo {
            kind: BlockKind::Record,
            codec: CodecKind::Off,
            checksum,
            framed: false,
            level: 0,
            logical: payload.len() as u32,
            dataset: DatasetId::new(1),
            object: 2,
            offset: 3,
            key_kind: 4,
        };
        let sum = payload_sum(checksum, &SUMS, &payload);
        let mut out = vec![0; block::BLOCK_OVERHEAD as usize + payload.len()];
        block::encode(&SUMS, &stamp, &info, sum, &payload, &mut out);
        out
    };
    let payloads = [vec![], b"plain".to_vec(), vec![7; 1000]];
    let framed = [1, 9000].map(|len| framed_block(&vec![5; len]));
    payloads.into_iter().zip(sums).map(encode).chain(framed).collect()
}

fn framed_block(content: &[u8]) -> Vec<u8> {
    let stamp = Stamp { id: BlockId::new(78), incarnation: Incarnation::new(1), birth: CommitId::new(2) };
    let info = BlockInfo {
        kind: BlockKind::Record,
        codec: CodecKind::Off,
        checksum: ChecksumKind::Fast,
        framed: true,
        level: 0,
        logical: content.len() as u32,
        dataset: DatasetId::new(1),
        object: 2,
        offset: 3,
        key_kind: 0,
    };
    let frames = block::frame_sums(&SUMS, content);
    let payload = [&frames[..], content].concat();
    let mut out = vec![0; block::BLOCK_OVERHEAD as usize + payload.len()];
    block::encode(&SUMS, &stamp, &info, payload_sum(ChecksumKind::Fast, &SUMS, &frames), &payload, &mut out);
    out
}

/// Bytes that a block with this payload takes.
pub fn footprint(payload: &[u8]) -> usize {
    (block::BLOCK_OVERHEAD as usize + payload.len()).next_multiple_of(BLOCK_STEP as usize)
}

/// Puts block `id` at the start of `out`.
pub fn put_block(id: u64, payload: &[u8], out: &mut [u8]) {
    let stamp = Stamp { id: BlockId::new(id), incarnation: Incarnation::new(1), birth: CommitId::new(2) };
    let info = BlockInfo {
        kind: BlockKind::Record,
        codec: CodecKind::Off,
        checksum: ChecksumKind::Fast,
        framed: false,
        level: 0,
        logical: payload.len() as u32,
        dataset: DatasetId::new(1),
        object: 2,
        offset: 3,
        key_kind: 4,
    };
    let sum = payload_sum(ChecksumKind::Fast, &SUMS, payload);
    block::encode(&SUMS, &stamp, &info, sum, payload, out);
}

/// Contents of files that hold blocks.
pub fn windows() -> Vec<Vec<u8>> {
    let blocks = |sizes: &[usize]| {
        let mut out = Vec::new();
        for &size in sizes {
            let payload = vec![0x5a; size];
            let at = out.len();
            out.resize(at + footprint(&payload), 0);
            put_block(9, &payload, &mut out[at..]);
        }
        out
    };
    vec![vec![], blocks(&[0, 8, 100]), blocks(&[3000, 1, 5000])]
}

pub fn logs() -> Vec<Vec<u8>> {
    let record = |ops: Vec<Vec<u8>>| LogRecord {
        incarnation: Incarnation::new(8),
        base: CommitId::new(5),
        sequence: 1,
        previous: 2,
        ops,
    };
    vec![record(vec![]).encode(), record(vec![vec![], vec![0; 20]]).encode(), record(ops()).encode()]
}

fn acl() -> Acl {
    let entry = |tag: AclTag, id| AclEntry { tag, perm: 6, id };
    let entries = vec![
        entry(AclTag::Owner, ACL_NO_ID),
        entry(AclTag::User, 1000),
        entry(AclTag::User, 7),
        entry(AclTag::Group, ACL_NO_ID),
        entry(AclTag::NamedGroup, 100),
        entry(AclTag::Mask, ACL_NO_ID),
        entry(AclTag::Other, ACL_NO_ID),
    ];
    Acl::new(entries).expect("a sound list")
}

pub fn acls() -> Vec<Vec<u8>> {
    let plain = [AclTag::Owner, AclTag::Group, AclTag::Other];
    let plain = plain.map(|tag| AclEntry { tag, perm: 5, id: ACL_NO_ID }).to_vec();
    vec![acl().encode(), Acl::new(plain).expect("a sound list").encode()]
}

pub fn ops() -> Vec<Vec<u8>> {
    let (inode, parent, name) = (InodeId::new(9), InodeId::new(1), b"name".to_vec());
    let create = |kind, target: &[u8]| {
        LogOp::Create(Create {
            inode,
            parent,
            name: name.clone(),
            kind,
            perm: 0o644,
            uid: 1,
            gid: 2,
            rdev: 3,
            target: target.to_vec(),
            acl: Some(acl()).filter(|_| kind == FileKind::Directory),
            time: TIME,
        })
    };
    let set_attr = |resize, atime| {
        LogOp::SetAttr(SetAttr {
            inode,
            perm: Some(0o600),
            uid: None,
            gid: Some(1),
            resize,
            atime,
            mtime: Some(TIME),
            btime: None,
            ctime: TIME,
        })
    };
    let set_xattr =
        |value, perm| LogOp::SetXattr(SetXattr { inode, name: b"user.x".to_vec(), value, perm, time: TIME });
    let ops = [
        create(FileKind::Regular, b""),
        create(FileKind::Symlink, b"there"),
        create(FileKind::Directory, b""),
        LogOp::Link(Link { inode, parent, name: name.clone(), time: TIME }),
        LogOp::Unlink(Unlink { parent, name: name.clone(), directory: true, time: TIME }),
        LogOp::Rename(Rename {
            parent,
            name: name.clone(),
            new_parent: inode,
            new_name: b"other".to_vec(),
            exchange: false,
            time: TIME,
        }),
        set_attr(None, None),
        set_attr(Some(Resize::Cut(7)), Some(TIME)),
        set_attr(Some(Resize::Grow(7)), None),
        set_xattr(None, Some(0o640)),
        set_xattr(Some(b"value".to_vec()), None),
        LogOp::Write(Write { inode, offset: 1, data: b"data".to_vec(), size: 5, mtime: TIME }),
        LogOp::Zero(Zero { inode, offset: 1, len: 2, time: TIME }),
    ];
    ops.iter().map(LogOp::encode).collect()
}

pub fn nodes() -> Vec<Vec<u8>> {
    let mut leaf = Leaf::new();
    for i in 0..40u8 {
        leaf.put(
            Key::new(u64::from(i / 8), [1, 64, 128, 129][usize::from(i % 4)], i.into()),
            &vec![i; i.into()],
        );
    }
    let keys = (0..90).map(|i| Key::new(i, 128, 0)).collect();
    let inner = Inner::new(2, keys, (0..90).map(ptr).collect());
    [Node::Leaf(Leaf::new()), Node::Leaf(leaf), Node::Inner(inner)].iter().map(Node::encode).collect()
}

pub fn run_pages() -> Vec<Vec<u8>> {
    let target = |i: u64| match i % 5 {
        0 => Target::Keep,
        1 => Target::Alias(BlockId::new(3)),
        2 => Target::Places(Places::new(&[ptr(i).place, ptr(i + 9).place]).expect("places")),
        _ => Target::Places(Places::new(&[ptr(i).place]).expect("places")),
    };
    let build = |count: u64, step: u64| {
        let mut page = PageBuilder::new(RunId::new(5));
        for i in 0..count {
            let delta = match i % 7 {
                6 => Delta::DELETE,
                3 => Delta { target: target(i), ..Delta::of_print(Fingerprint::new([i as u8; 16])) },
                _ => Delta { target: target(i), set: Marks::SHARED, ..Delta::NONE },
            };
            page.push(BlockId::new(100 + i * step), &delta);
        }
        page.finish()
    };
    vec![build(1, 1), build(70, 1), build(300, 1 << 33)]
}

fn page_ref(n: u64) -> PageRef {
    PageRef { first: BlockId::new(100 + 50 * n), ptr: ptr(n) }
}

pub fn index_pages() -> Vec<Vec<u8>> {
    let build = |count, height| {
        let refs: Vec<_> = (0..count).map(page_ref).collect();
        encode_index_page(RunId::new(5), height, 2, &refs)
    };
    vec![build(1, 1), build(50, 3)]
}

pub fn run_descriptors() -> Vec<Vec<u8>> {
    let build = |refs: u64, height, pages| {
        let descriptor = RunDescriptor {
            run: RunId::new(5),
            oldest: RunId::new(2),
            newest: RunId::new(5),
            entries: 5000,
            shadows: 3,
            bytes: 9000,
            first: BlockId::new(100),
            last: BlockId::new(1 << 20),
            pages,
            height,
            refs: (0..refs).map(page_ref).collect(),
            footprints: (1..4)
                .map(|i| Footprint { segment: SegmentId::new(i), blocks: 1, bytes: 4000 })
                .collect(),
        };
        let mut out = Vec::new();
        descriptor.encode(&mut out);
        out
    };
    vec![build(1, 0, 1), build(4, 0, 4), build(2, 1, 1800)]
}

pub fn prints_pages() -> Vec<Vec<u8>> {
    let build = |count: u64, gap: u64, gone: u64| {
        let mut page = PrintsBuilder::new(RunId::new(5));
        for i in 0..count {
            let id = BlockId::new(1000 + i * 7919 % 4001);
            page.push(PrintEntry { high: 9 + i * gap, check: i as u32, id, gone: i % gone == 1 });
        }
        page.finish().1
    };
    vec![build(1, 1, 9), build(70, 1 << 37, 3), build(900, 1 << 20, u64::MAX)]
}

pub fn filter_pages() -> Vec<Vec<u8>> {
    vec![encode_filter_page(RunId::new(5), 0, &[7]), encode_filter_page(RunId::new(5), 3, &[9; 3000])]
}

pub fn part_descriptors() -> Vec<Vec<u8>> {
    let build = |run: Vec<u8>, filter: FilterShape| {
        let (run, _) = RunDescriptor::decode(&run).expect("a sample");
        let mut out = Vec::new();
        PartDescriptor {
            run,
            covered: BlockId::new(99),
            sampling: 2,
            base: matches!(filter, FilterShape::Ribbon { .. }),
            filter,
            filter_pages: (0..filter.pages()).map(ptr).collect(),
        }
        .encode(&mut out);
        out
    };
    let filters = [
        FilterShape::Ribbon { seed: 77, values: 6144 },
        FilterShape::Bloom { lines: 12 },
        FilterShape::Bloom { lines: 250 },
    ];
    run_descriptors().into_iter().zip(filters).map(|(run, filter)| build(run, filter)).collect()
}

pub fn items() -> Vec<Vec<u8>> {
    let inode = Inode {
        kind: FileKind::Regular,
        perm: 0o644,
        flags: Inode::HAS_XATTRS | Inode::HAS_TAIL | Inode::BY_CONTENT,
        uid: 1,
        gid: 2,
        nlink: 3,
        rdev: 4,
        size: 5,
        generation: 6,
        project: 7,
        record_size: 128 << 10,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        btime: TIME,
        stored: 8,
        parent: InodeId::new(9),
        entries: 10,
        data: 11,
    };
    let extent = Extent { ptr: ptr(3), len: 4000, block_offset: 96, logical: 4096, placed: 7, copies: 1 };
    let entry = Entry { inode: InodeId::new(9), kind: FileKind::Fifo, name: b"\xff name" };
    let xattr = |value| Xattr { name: b"user.a", value };
    vec![
        inode.encode().to_vec(),
        extent.encode().to_vec(),
        entry.encode(),
        xattr(XattrValue::Inline(b"value")).encode(),
        xattr(XattrValue::Pieces { number: 4, len: 65536 }).encode(),
    ]
}

pub fn datasets() -> Vec<Vec<u8>> {
    let record = |root, destroyed, origin| DatasetRecord {
        id: DatasetId::new(2),
        parent: DatasetId::new(1),
        guid: 3,
        root,
        destroyed,
        protected_below: BlockId::new(4),
        referenced: 5,
        logical: 6,
        stored: 7,
        next_inode: 8,
        created: TIME,
        birth: 9,
        held: 10,
        origin,
        inherited: 2,
        name_salt: [11; 16],
        name: "home".into(),
    };
    vec![
        record(None, false, None).encode(),
        record(Some(ptr(1)), false, None).encode(),
        record(Some(ptr(1)), false, Some((DatasetId::new(3), BlockId::new(4)))).encode(),
        record(Some(ptr(1)), true, None).encode(),
    ]
}

pub fn snapshots() -> Vec<Vec<u8>> {
    let record = |root| SnapshotRecord {
        dataset: DatasetId::new(2),
        guid: 3,
        high: BlockId::new(1000),
        root,
        referenced: 5,
        logical: 6,
        stored: 7,
        next_inode: 8,
        created: TIME,
        commit: CommitId::new(9),
        deferred: false,
        hidden: false,
        name: "monday".into(),
    };
    vec![record(None).encode(), record(Some(ptr(1))).encode()]
}

fn of_no_group(index: u16, is_cache: bool) -> RootDevice {
    RootDevice {
        index: DeviceIndex::new(index),
        group: NO_GROUP,
        state: DeviceState::Spare,
        leaving: false,
        slot_count: 60,
        partial: false,
        guid: DeviceGuid::new(u64::from(index)),
        good_through: CommitId::new(0),
        since: CommitId::new(0),
        cursor: SegmentId::new(0),
        stands_for: None,
        incarnation: Incarnation::new(0),
        kind: DeviceKind::Unknown,
        is_cache,
    }
}

pub fn summaries() -> Vec<Vec<u8>> {
    let summary = |count: u16| SlotSummary {
        device: DeviceGuid::new(5),
        slot: 3,
        generation: 7,
        pinned: count == 0,
        blocks: (0..count)
            .map(|i| CachedBlock { id: BlockId::new(900 + u64::from(i)), unit: 4 * i, units: 3 })
            .collect(),
    };
    vec![summary(0).encode(&SUMS), summary(20).encode(&SUMS)]
}

pub fn slot_counts() -> Vec<Vec<u8>> {
    let none = SlotCounts::new(DeviceGuid::new(5), 3, 9, 1 << 20);
    let mut some = none.clone();
    (0..200).for_each(|unit| some.set(unit, unit as u8 & 3));
    vec![none.encode(&SUMS), some.encode(&SUMS)]
}

pub fn bookmarks() -> Vec<Vec<u8>> {
    let record = |name: &str| BookmarkRecord {
        guid: 3,
        high: BlockId::new(1000),
        created: TIME,
        commit: CommitId::new(9),
        name: name.into(),
    };
    vec![record("m").encode(), record("monday, before it was upgraded").encode()]
}

pub fn trash() -> Vec<Vec<u8>> {
    let record = |parent, going, name: &str| {
        let parent = DatasetId::new(parent);
        TrashRecord { destroyed: TIME, until: TIME, parent, going, name: name.into() }.encode()
    };
    vec![record(0, false, "tank/a@monday"), record(1, true, "tank/a")]
}

/// Slots that are out of use.
pub fn bad_slots() -> Vec<Vec<u8>> {
    vec![BadSlotRecord { device: DeviceGuid::new(9), time: TIME, errno: 5, errors: 1 }.encode()]
}

/// Trees of which the remains are being freed.
pub fn remains() -> Vec<Vec<u8>> {
    let record = RemainsRecord {
        dataset: DatasetId::new(2),
        high: BlockId::new(900_000),
        floor: BlockId::new(3),
        root: ptr(1),
        from: Key::new(7, 6, 131_072),
    };
    vec![record.encode()]
}

/// Streams on their way in.
pub fn receiving() -> Vec<Vec<u8>> {
    let record = |position, resumable| ReceivingRecord {
        base: Some(BlockId::new(77)),
        to: 12,
        from: 11,
        created: TIME,
        resumable,
        made: !resumable,
        position,
        bytes: 4096,
        stored: (512, 0),
        data: (4096, 8192),
        seed: 5,
        sums: [1, 2, 3, 4, u64::MAX],
        offsets: 131_072,
        longest: 4096,
        inner: resumable,
        name: "monday".into(),
        sender: "tank/home@monday".into(),
    };
    vec![record(None, false).encode(), record(Some(Key::new(7, 1, 131_072)), true).encode()]
}

pub fn commit_records() -> Vec<Vec<u8>> {
    let label = Label::check(&labels()[0]).expect("it was just made");
    let record = |(root, value): (Vec<u8>, Vec<u8>)| {
        let root = Root::check(&SUMS, &root).expect("it was just made");
        let gone = Row { key: Table::snapshot_key(DatasetId::new(2), BlockId::new(9)), value: None };
        let record = CommitRecord {
            pool: POOL,
            identity: root.identity,
            commit: root.commit,
            incarnation: root.incarnation,
            time: TIME,
            part: 0,
            parts: 2,
            turn: CommitId::new(3),
            features: root.features,
            next_device: root.next_device,
            next_group: root.next_group,
            traced: root.traced,
            label: label.clone(),
            groups: root.groups,
            devices: root.devices,
            history: root.history,
            rows: vec![Row { key: Table::dataset_key(DatasetId::new(2)), value: Some(value) }, gone],
        };
        record.encode()
    };
    roots().into_iter().zip(datasets()).map(record).collect()
}

pub fn commit_record_entries() -> Vec<Vec<u8>> {
    let entry = |next| {
        let slices = Slices { next, turn: CommitId::new(7) };
        CommitRecordEntry { ptr: ptr(5), commit: CommitId::new(9), slices }.encode()
    };
    vec![entry(None), entry(Some((Table::dataset_key(DatasetId::new(2)), CommitId::new(8))))]
}

pub fn freeings() -> Vec<Vec<u8>> {
    let record = FreeingRecord {
        queued_blocks: 1,
        queued_bytes: 4096,
        left_bytes: 8192,
        shared: 1,
        judged: BlockId::new(7),
        judged_left: 512,
    };
    vec![FreeingRecord::default().encode(), record.encode()]
}

pub fn events() -> Vec<Vec<u8>> {
    let about = |device, file, text: &str| EventRecord {
        first: TIME,
        last: TIME,
        count: 3,
        device,
        file,
        class: "checksum".into(),
        device_name: "/dev/sda".into(),
        text: text.into(),
    };
    let full = about(Some(DeviceGuid::new(7)), Some((DatasetId::new(2), 9)), "two copies differ");
    vec![about(None, None, "").encode(), full.encode()]
}

pub fn commands() -> Vec<Vec<u8>> {
    let record = |user: &str, text: &str| CommandRecord {
        time: TIME,
        uid: 1000,
        user: user.into(),
        host: "nas".into(),
        text: text.into(),
    };
    vec![record("", "").encode(), record("root", "larder pool create tank mirror a b").encode()]
}

pub fn damages() -> Vec<Vec<u8>> {
    let record = |kind: DamageKind, last| DamageRecord {
        dataset: DatasetId::new(2),
        snapshot: BlockId::new(0),
        inode: 5,
        offset: 1 << 17,
        len: 1 << 17,
        last,
        block: BlockId::new(77),
        parent: 1,
        cookie: 1 << 20,
        found: TIME,
        kind: kind as u8,
        key_kind: 1,
    };
    vec![record(DamageKind::Data, 5).encode(), record(DamageKind::Node, 12).encode()]
}

pub fn properties() -> Vec<Vec<u8>> {
    let record = |name: &str, value: &str, source| {
        PropertyRecord { name: name.into(), value: value.into(), source }.encode()
    };
    vec![
        record("", "", PropertySource::Local),
        record("compression", "zstd-3", PropertySource::Received),
        record("compression", "", PropertySource::Masked),
    ]
}

/// Codec, plain length (u24), payload.
pub fn payloads() -> Vec<Vec<u8>> {
    let plain: Vec<u8> = (0..6000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
    let encode = |codec: Codec| {
        let (kind, payload) = match codec::compress(codec, &plain) {
            Some(payload) => (codec.kind(), payload),
            None => (CodecKind::Off, plain.clone()),
        };
        let mut out = vec![kind as u8];
        out.extend_from_slice(&(plain.len() as u32).to_le_bytes()[..3]);
        out.extend(payload);
        out
    };
    [Codec::Off, Codec::Lz4, Codec::Gzip(1), Codec::Gzip(9), Codec::Zstd(1), Codec::Zstd(9)]
        .map(encode)
        .to_vec()
}

/// A request of the kernel: its kind, its structure in fields of 4 bytes, and what follows.
fn request(opcode: u32, fields: &[u32], rest: &[u8]) -> Vec<u8> {
    let len = 40 + fields.len() * 4 + rest.len();
    // Length, kind; number and node, 8 bytes each; user, group, process; two fields of 2 bytes.
    let header = [len as u32, opcode, 77, 0, 1, 0, 1000, 1000, 4711, 0];
    let words = header.iter().chain(fields).flat_map(|word| word.to_ne_bytes());
    words.chain(rest.iter().copied()).collect()
}

/// Requests of each shape.
/// Streams of snapshots: one of each kind of frame and item.
pub fn streams() -> Vec<Vec<u8>> {
    use larder_format::block::CodecKind;
    use larder_format::items::{ENTRY, EXTENT};
    use larder_stream::wire::{
        BEGIN_RESUMED, Begin, Cover, DatasetFrame, Encoder, End, Frame, Item, Place, Start, Stored,
    };
    let pairs = vec![("compression".to_owned(), "zstd".to_owned())];
    let cover = Cover { len: 512, block_offset: 0, logical: 4096 };
    let stored = Stored { codec: CodecKind::Lz4, payload: vec![7; 100].into() };
    let items = vec![
        Item::Data(Key::new(7, EXTENT, 0), cover, stored),
        Item::Same(Key::new(7, EXTENT, 4096), cover, Place { snapshot: 12, object: 7, offset: 0 }),
        Item::Put(Key::new(7, ENTRY, 1 << 22), vec![1; 20].into()),
        Item::Remove(Key::new(8, EXTENT, 0)),
        Item::Clear(Key::new(8, EXTENT, 1)),
        Item::Keep(Key::new(9, EXTENT, 0)),
    ];
    let begin = Begin {
        to: 12,
        from: 11,
        created: TIME,
        flags: BEGIN_RESUMED,
        next_inode: 9,
        salt: [3; 16],
        position: Key::new(6, EXTENT, 1),
        name: "tank/home@monday".into(),
        properties: pairs.clone(),
        own: pairs.clone(),
        holds: vec!["offsite".into()],
    };
    let dataset =
        DatasetFrame { path: "a/b".into(), properties: pairs, snapshots: vec![(12, "monday".into())] };
    let frames = [
        Frame::Start(Start { flags: 3, name: "tank/home".into() }),
        Frame::Dataset(dataset),
        Frame::Begin(begin),
        Frame::Chunk(items),
        Frame::End(End { items: 6, records: 1, bytes: 100 }),
        Frame::Close,
    ];
    let mut encoder = Encoder::default();
    vec![frames.iter().flat_map(|frame| encoder.frame(frame)).collect()]
}

pub fn zfs_streams() -> Vec<Vec<u8>> {
    let packed: [&[u8]; 2] = [
        include_bytes!("../../../tests/golden/zfs-fuse-small.stream.zst"),
        include_bytes!("../../../tests/golden/zfs-fuse-package.stream.zst"),
    ];
    packed.iter().map(|packed| zstd::decode_all(*packed).expect("it is committed")).collect()
}

pub fn requests() -> Vec<Vec<u8>> {
    let mut set_attr = vec![0; 22];
    set_attr[0] = 0b1101_1111_1111;
    vec![
        request(1, &[], b"name\0"),
        request(3, &[1, 0, 6, 0], b""),
        request(4, &set_attr, b""),
        request(6, &[], b"name\0target\0"),
        request(8, &[0o100_644, 7, 0o22, 0], b"name\0"),
        request(9, &[0o755, 0o22], b"name\0"),
        request(14, &[2, 1], b""),
        request(15, &[6, 0, 4096, 0, 512, 0, 0, 0, 0, 0], b""),
        request(16, &[6, 0, 4096, 0, 9, 4, 0, 0, 0, 0], b"nine of it"),
        request(17, &[], b""),
        request(18, &[6, 0, 0, 0, 0, 0], b""),
        request(20, &[6, 0, 1, 0], b""),
        request(21, &[5, 1, 1, 0], b"user.name\0value"),
        request(22, &[0, 0], b"user.name\0"),
        request(35, &[2, 0o100_644, 0o22, 1], b"name\0"),
        request(36, &[70, 0], b""),
        request(42, &[2, 0], &[7; 32]),
        request(43, &[6, 0, 0, 0, 1, 0, 3, 0], b""),
        request(44, &[6, 0, 0, 0, 4096, 0, 0, 0, 0, 0], b""),
        request(45, &[8, 0, 1, 0], b"old\0new\0"),
        request(47, &[1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 0, 0], b""),
        request(52, &[1, 0, 6, 0, 0, 0xfff], b""),
    ]
}
