//! Structures that are intact, sums included, but cannot be: decoders refuse them, so that nobody
//! behind them computes with nonsense.

use larder_format::block::{self, BlockHeader, BlockInfo, BlockKind, CodecKind, Stamp};
use larder_format::checksum::{self, ChecksumKind, KEY_LEN, PoolKey, Sums};
use larder_format::items::{Entry, Extent, FileKind, Inode};
use larder_format::label::{Features, GroupRule, LABEL_AREA, Label, LayoutKind, label_areas};
use larder_format::log::{decode_op, encode_op};
use larder_format::node::{Inner, Key, Node};
use larder_format::ops::{Link, LogOp};
use larder_format::property::{PropertyRecord, PropertySource};
use larder_format::root::{
    DeviceKind, DeviceState, GroupRole, Identity, Root, RootDevice, RootGroup, RootGroupEntry, RootHead,
    RootImport,
};
use larder_format::run::{Footprint, PageRef, RunDescriptor, RunId, decode_index_page, encode_index_page};
use larder_format::segment::{
    CLASSES, DESCRIPTOR_LEN, Layout, MAX_SLOT, SegmentKind, SegmentRecord, SegmentState, Slot, StripeHeader,
    stripe_header_len,
};
use larder_format::tables::{
    ATTACHED_MAX, BadSlotRecord, DatasetRecord, HoldRecord, SnapshotRecord, TABLE_KIND, Table,
};
use larder_format::*;

const POOL: PoolGuid = PoolGuid::new(0x9001);
const KEY: PoolKey = PoolKey::new([3; KEY_LEN]);

fn sums() -> Sums {
    Sums::new(POOL, KEY)
}

fn layout(k: u8, r: u8, m: u8) -> Layout {
    Layout::new(k, r, m).unwrap()
}

fn ptr(stored: u32) -> BlockPtr {
    let place = Place { segment: SegmentId::new(1), column: 0, offset: 4096, stored };
    BlockPtr { id: BlockId::new(9), place }
}

fn segment() -> SegmentRecord {
    let slot = |i| Slot { device: DeviceIndex::new(i), index: SlotIndex::new(7) };
    SegmentRecord {
        id: SegmentId::new(3),
        kind: SegmentKind::Table,
        state: SegmentState::Open,
        group: GroupIndex::new(0),
        layout: layout(1, 2, 0),
        height: DESCRIPTOR_LEN,
        live_blocks: 1,
        live_bytes: 160,
        birth: CommitId::new(2),
        freed: CommitId::new(0),
        incarnation: Incarnation::new(4),
        placed: 320,
        closed_at: BlockId::new(0),
        class: 0,
        copy: 0,
        unnamed: false,
        filled: CommitId::new(0),
        verified: 0,
        slots: vec![slot(0), slot(1)],
    }
}

fn root() -> Root {
    let rule = GroupRule { word: LayoutKind::Mirror, layout: layout(1, 2, 0) };
    let device = |i| RootDevice {
        index: DeviceIndex::new(i),
        group: GroupIndex::new(0),
        state: DeviceState::Current,
        leaving: false,
        slot_count: 60,
        partial: false,
        guid: DeviceGuid::new(u64::from(i)),
        is_cache: false,
        good_through: CommitId::new(5),
        since: CommitId::new(0),
        cursor: SegmentId::new(0),
        stands_for: None,
        incarnation: Incarnation::new(8),
        kind: DeviceKind::Unknown,
    };
    let incarnation = Incarnation::new(8);
    Root {
        pool: POOL,
        commit: CommitId::new(5),
        incarnation,
        time: Timestamp::default(),
        exported: false,
        destroyed: false,
        log_open: true,
        host: HostId::new(1),
        block_lease: BlockId::new(100),
        segment_lease: SegmentId::new(100),
        oldest: CommitId::new(3),
        applied: OpSeq::new(0),
        log_offset: 4096,
        log_sequence: 1,
        log_previous: 0,
        log_incarnation: incarnation,
        features: Features::default(),
        next_device: 2,
        next_group: 1,
        traced: CommitId::new(1),
        identity: Identity::of(POOL),
        tables: ptr(300),
        groups: vec![RootGroup {
            index: GroupIndex::new(0),
            rule,
            role: GroupRole::Data,
            ashift: 12,
            slot_size: 1 << 20,
            leaving: false,
            narrow: false,
        }],
        devices: vec![device(0), device(1)],
        history: vec![RootImport {
            incarnation,
            first: CommitId::new(1),
            first_block: BlockId::new(1),
            skipped: 0,
        }],
        segments: vec![segment()],
    }
}

fn label() -> Label {
    let device_size = ByteLen::new(64 << 20);
    Label {
        sequence: 1,
        pool: POOL,
        name: "tank".into(),
        device: DeviceGuid::new(2),
        index: DeviceIndex::new(0),
        group: GroupIndex::new(0),
        rule: GroupRule { word: LayoutKind::Mirror, layout: layout(1, 2, 0) },
        slot_size: 1 << 20,
        slot_count: 62,
        data_start: DeviceOffset::new(1 << 20),
        device_size,
        created: Timestamp::default(),
        ashift: 12,
        features: Features::default(),
        key: KEY,
    }
}

fn dataset() -> DatasetRecord {
    DatasetRecord {
        id: DatasetId::new(1),
        parent: DatasetId::new(1),
        guid: 1,
        root: Some(ptr(300)),
        destroyed: false,
        protected_below: BlockId::new(0),
        referenced: 1,
        logical: 1,
        stored: 1,
        next_inode: 2,
        created: Timestamp::default(),
        birth: 1,
        held: 0,
        origin: None,
        inherited: 0,
        name_salt: [9; 16],
        name: "tank".into(),
    }
}

fn descriptor() -> RunDescriptor {
    RunDescriptor {
        run: RunId::new(3),
        oldest: RunId::new(1),
        newest: RunId::new(3),
        entries: 10,
        shadows: 1,
        bytes: 90,
        first: BlockId::new(9),
        last: BlockId::new(18),
        pages: 1,
        height: 0,
        refs: vec![PageRef { first: BlockId::new(9), ptr: ptr(234) }],
        footprints: vec![Footprint { segment: SegmentId::new(1), blocks: 1, bytes: 240 }],
    }
}

/// The base is accepted; with `change` it is not.
fn refused<T: Clone, R>(
    base: &T,
    decode: impl Fn(&T) -> Result<R, Corrupt>,
    what: &str,
    change: impl FnOnce(&mut T),
) {
    if let Err(corrupt) = decode(base) {
        panic!("the base of {what} is refused: {corrupt}");
    }
    let mut changed = base.clone();
    change(&mut changed);
    assert!(decode(&changed).is_err(), "{what} is accepted");
}

#[test]
fn places_outside_every_slot_are_refused_wherever_they_stand() {
    let bad = u32::MAX - 3;
    assert!(ptr(bad).checked().is_err() && ptr(0).checked().is_err());
    let node =
        |stored: &u32| Node::decode(&Node::Inner(Inner::new(1, vec![Key::MIN], vec![ptr(*stored)])).encode());
    refused(&300, node, "a child", |stored| *stored = bad);
    let extent = |stored: &u32| {
        Extent::decode(
            &Extent { ptr: ptr(*stored), len: 1, block_offset: 0, logical: 1, placed: 0, copies: 1 }.encode(),
        )
    };
    refused(&300, extent, "an extent", |stored| *stored = bad);
    let index = |stored: &u32| {
        let page = PageRef { first: BlockId::new(1), ptr: ptr(*stored) };
        decode_index_page(&encode_index_page(RunId::new(1), 1, 0, &[page]), RunId::new(1), 1, 0)
    };
    refused(&300, index, "a page", |stored| *stored = bad);
    refused(
        &dataset(),
        |d| DatasetRecord::decode(&d.encode()),
        "a dataset's root",
        |d| d.root = Some(ptr(bad)),
    );
    refused(&root(), check_root, "the tables' root", |r| r.tables = ptr(bad));
}

fn check_root(root: &Root) -> Result<Root, Corrupt> {
    Root::check(&sums(), &root.encode(&sums()).unwrap())
}

#[test]
fn counters_that_arithmetic_would_overflow_are_refused() {
    let most = u64::MAX;
    refused(&root(), check_root, "commit", |r| r.commit = CommitId::new(most));
    refused(&root(), check_root, "block lease", |r| r.block_lease = BlockId::new(most));
    refused(&root(), check_root, "segment lease", |r| r.segment_lease = SegmentId::new(most));
    refused(&root(), check_root, "applied", |r| r.applied = OpSeq::new(most));
    refused(&root(), check_root, "log sequence", |r| r.log_sequence = most);
    refused(&root(), check_root, "freed", |r| {
        r.segments[0].state = SegmentState::Freed;
        r.segments[0].freed = CommitId::new(most);
    });
    refused(&label(), |l| Label::check(&l.encode()), "label sequence", |l| l.sequence = most);
    let decode = |d: &DatasetRecord| DatasetRecord::decode(&d.encode());
    refused(&dataset(), decode, "next inode", |d| d.next_inode = most);
    refused(&dataset(), decode, "referenced", |d| d.referenced = most);
    refused(&dataset(), decode, "dataset id", |d| d.id = DatasetId::new(most));
    let op = |inode: &u64| {
        let (inode, parent) = (InodeId::new(*inode), InodeId::new(1));
        LogOp::decode(
            &LogOp::Link(Link { inode, parent, name: b"x".to_vec(), time: Timestamp::default() }).encode(),
        )
    };
    refused(&2, op, "logged inode", |inode| *inode = most);
    let entry = |inode: &u64| {
        let entry = Entry { inode: InodeId::new(*inode), kind: FileKind::Regular, name: b"x" };
        Entry::decode(&entry.encode()).map(|entry| entry.inode)
    };
    refused(&2, entry, "named inode", |inode| *inode = most);
}

#[test]
fn a_root_whose_devices_make_no_groups_is_refused() {
    refused(&root(), check_root, "one device twice", |r| r.devices[1].index = DeviceIndex::new(0));
    refused(&root(), check_root, "a device of no group", |r| r.devices[1].group = GroupIndex::new(9));
    refused(&root(), check_root, "one group twice", |r| r.groups.push(r.groups[0].clone()));
    refused(&root(), check_root, "a device from the future", |r| {
        r.devices[0].good_through = CommitId::new(6)
    });
    refused(&root(), check_root, "oldest after newest", |r| r.oldest = CommitId::new(6));
    refused(&root(), check_root, "a number that was not given", |r| r.next_device = 1);
    refused(&root(), check_root, "a group's, too", |r| r.next_group = 0);
    refused(&root(), check_root, "slots of odd size", |r| r.groups[0].slot_size = 3 << 20);
    refused(&root(), check_root, "sectors of 512 bytes", |r| r.groups[0].ashift = 9);
}

#[test]
fn what_this_version_does_not_do_is_refused_by_name() {
    let check = |at: usize, byte: u8| {
        let mut bytes = root().encode(&sums()).unwrap();
        bytes[at] = byte;
        bytes[RootHead::SIZE - 8..RootHead::SIZE].fill(0);
        let sum = checksum::fast64(&sums(), &bytes);
        bytes[RootHead::SIZE - 8..RootHead::SIZE].copy_from_slice(&sum.to_le_bytes());
        Root::check(&sums(), &bytes).map_err(|corrupt| corrupt.to_string())
    };
    let (group, device) = (RootHead::SIZE, RootHead::SIZE + RootGroupEntry::SIZE);
    assert!(check(group + 6, 1).is_ok(), "as it is");
    let named = [
        (group + 6, 2, "role of a group"),
        (group + 6, 5, "role of a group"),
        (group + 6, 77, "role of a group"),
        (group + 12, 2, "flags of a group"),
        (group + 16, 2, "narrow segments in a group"),
        (device + 13, 3, "kind of a device"),
        (device + 14, 2, "flags of a device"),
        (160 + 16, 128, "root record"),
    ];
    for (at, byte, name) in named {
        let told = check(at, byte).expect_err("it is not of this version");
        assert!(told.contains(name) && told.contains("feature"), "{told}");
    }
}

#[test]
fn a_segment_that_nothing_could_be_stored_in_is_refused() {
    let decode = |s: &SegmentRecord| {
        let mut out = Vec::new();
        s.encode(&mut out);
        SegmentRecord::decode(&out)
    };
    refused(&segment(), decode, "no room for the descriptor", |s| s.height = 0);
    refused(&segment(), decode, "half a stripe", |s| s.height += 8);
    refused(&segment(), decode, "two columns on one device", |s| s.slots[1].device = s.slots[0].device);
    refused(&segment(), decode, "freed by nobody", |s| s.state = SegmentState::Freed);
    refused(&segment(), decode, "freed and open", |s| s.freed = CommitId::new(3));
    refused(&segment(), decode, "more live than placed", |s| s.live_bytes = s.placed + 8);
    refused(&segment(), decode, "an unknown class", |s| s.class = CLASSES);
    refused(&segment(), decode, "more live than stored", |s| s.live_bytes = 1 << 40);
}

#[test]
fn layouts_that_no_parity_covers_are_refused() {
    assert!(Layout::new(61, 1, 3).is_ok());
    assert!(Layout::new(62, 1, 1).is_err());
    assert!(Layout::new(64, 1, 0).is_ok());
    let rule = |word, k, r, m| GroupRule::load_checked(&[word as u8, k, r, m]);
    assert!(rule(LayoutKind::Raidz, 4, 1, 2).is_ok());
    assert!(rule(LayoutKind::Single, 4, 1, 2).is_err());
    assert!(rule(LayoutKind::Raid10, 2, 3, 0).is_err());
}

#[test]
fn a_stripe_over_its_descriptor_or_past_its_slot_is_refused() {
    let header = StripeHeader {
        segment: SegmentId::new(1),
        offset: DESCRIPTOR_LEN,
        height: 8192,
        commit: CommitId::new(1),
        incarnation: Incarnation::new(1),
        column: 0,
        used: 160,
        sums: vec![1, 2],
    };
    let check = |header: &StripeHeader| {
        let mut out = vec![0; stripe_header_len(header.sums.len()) as usize];
        header.put(&sums(), &mut out);
        StripeHeader::check(&sums(), &out)
    };
    refused(&header, check, "a stripe over the descriptor", |h| h.offset = 0);
    refused(&header, check, "a stripe past the slot", |h| h.offset = MAX_SLOT - 4096);
    refused(&header, check, "half a block step", |h| h.used = 161);
}

#[test]
fn slots_that_reach_into_the_second_label_area_are_refused() {
    let check = |label: &Label| Label::check(&label.encode());
    // The area ends at a multiple of its size: of an odd device, the last bytes are nobody's.
    let odd = Label { device_size: ByteLen::new((64 << 20) + LABEL_AREA - 4096), ..label() };
    let last_area = label_areas(odd.device_size)[1].get();
    refused(&odd, check, "slots in the label area", |label| {
        label.data_start = DeviceOffset::new(last_area + 4096 - 62 * (1 << 20));
    });
    refused(&label(), check, "unaligned slots", |label| label.data_start = DeviceOffset::new((1 << 20) + 8));
    refused(&label(), check, "stripes across sectors", |label| label.ashift = 13);
    refused(&label(), check, "sectors of 512 bytes", |label| label.ashift = 9);
    refused(&label(), check, "a feature", |label| label.features.incompatible = 1 << 40);
    refused(&label(), check, "a time that is none", |label| label.created.nanos = u32::MAX);
}

#[test]
fn a_dataset_that_cannot_be_named_is_refused() {
    let decode = |d: &DatasetRecord| DatasetRecord::decode(&d.encode());
    refused(&dataset(), decode, "no name", |d| d.name.clear());
    refused(&dataset(), decode, "a path for a name", |d| d.name = "a/b".into());
    let mut bytes = dataset().encode();
    bytes[24] = 2;
    assert!(DatasetRecord::decode(&bytes).is_err(), "half a root");
}

#[test]
fn a_run_of_more_than_its_pages_hold_is_refused() {
    let decode = |d: &RunDescriptor| {
        let mut out = Vec::new();
        d.encode(&mut out);
        RunDescriptor::decode(&out)
    };
    refused(&descriptor(), decode, "entries", |d| d.entries = 1 << 17);
    refused(&descriptor(), decode, "bytes", |d| d.bytes = 1 << 40);
    refused(&descriptor(), decode, "numbers", |d| d.newest = RunId::new(u64::MAX));
    refused(&descriptor(), decode, "footprint bytes", |d| d.footprints[0].bytes = u64::MAX);
    refused(&descriptor(), decode, "footprint blocks", |d| d.footprints[0].blocks = u32::MAX);
}

#[test]
fn an_inode_whose_counters_would_overflow_is_refused() {
    let time = Timestamp::default();
    let inode = Inode {
        kind: FileKind::Directory,
        perm: 0o755,
        flags: 0,
        uid: 0,
        gid: 0,
        nlink: 2,
        rdev: 0,
        size: 0,
        generation: 0,
        project: 0,
        record_size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        stored: 0,
        parent: InodeId::new(1),
        entries: 0,
        data: 0,
    };
    let decode = |inode: &Inode| Inode::decode(&inode.encode());
    refused(&inode, decode, "entries", |i| i.entries = u64::MAX);
    refused(&inode, decode, "stored", |i| i.stored = u64::MAX);
    refused(&inode, decode, "parent", |i| i.parent = InodeId::new(u64::MAX));
    refused(&inode, decode, "data", |i| i.data = u64::MAX);
    refused(&inode, decode, "flags", |i| i.flags |= 16);
}

#[test]
fn a_clone_that_its_origin_does_not_protect_is_refused() {
    let origin = Some((DatasetId::new(2), BlockId::new(7)));
    let clone = DatasetRecord { origin, protected_below: BlockId::new(7), inherited: 1, ..dataset() };
    let decode = |record: &DatasetRecord| DatasetRecord::decode(&record.encode());
    assert_eq!(decode(&clone), Ok(clone.clone()));
    refused(&clone, decode, "a low protection", |c| c.protected_below = BlockId::new(6));
    refused(&clone, decode, "itself", |c| c.origin = Some((c.id, BlockId::new(7))));
    refused(&clone, decode, "no height", |c| c.origin = Some((DatasetId::new(2), BlockId::new(0))));
    refused(&clone, decode, "no dataset", |c| c.origin = Some((DatasetId::new(0), BlockId::new(7))));
    refused(&clone, decode, "more than all", |c| c.inherited = 2);
}

#[test]
fn what_later_versions_keep_in_tables_logs_and_blocks_is_refused_by_name() {
    fn told<T: std::fmt::Debug>(result: Result<T, Corrupt>) -> String {
        result.expect_err("it is not of this version").to_string()
    }
    let with = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] = 2;
        bytes
    };
    let dataset = |at| told(DatasetRecord::decode(&with(dataset().encode(), at)));
    assert_eq!(dataset(168), "datasets with a key: unsupported feature");
    assert_eq!(dataset(172), "flags of datasets: unsupported feature");
    let snapshot = SnapshotRecord {
        dataset: DatasetId::new(1),
        guid: 5,
        high: BlockId::new(9),
        root: None,
        referenced: 0,
        logical: 0,
        stored: 0,
        next_inode: 2,
        created: Timestamp::default(),
        commit: CommitId::new(3),
        deferred: false,
        hidden: false,
        name: "monday".into(),
    };
    let snapshot = |at| told(SnapshotRecord::decode(&with(snapshot.encode(), at)));
    assert_eq!(snapshot(136), "holds of snapshots: unsupported feature");
    assert_eq!(snapshot(140), "clones of snapshots: unsupported feature");
    assert_eq!(snapshot(145), "flags of snapshots: unsupported feature");
    let property = PropertyRecord::local("atime", "off").encode();
    let property = |source: u8| PropertyRecord::decode(&[&property[..2], &[source], &property[3..]].concat());
    assert_eq!(property(PropertySource::Received as u8).unwrap().source, PropertySource::Received);
    let masked = property(PropertySource::Masked as u8).unwrap_err();
    assert_eq!(masked.reason, Reason::Range, "a mask has no value");
    for source in [0, 4, 255] {
        assert_eq!(told(property(source)), "a source of properties: unsupported feature");
    }
    let op = encode_op(OpSeq::new(7), DatasetId::new(1), b"op");
    assert_eq!(decode_op(&op), Ok((OpSeq::new(7), DatasetId::new(1), &b"op"[..])));
    assert_eq!(told(decode_op(&with(op, 16))), "sealed operations in the log: unsupported feature");
    for (table, name) in [
        (5, "a table that is not known"),
        (18, "usage by users"),
        (20, "keys of datasets"),
        (23, "a table that is not known"),
        (0xffff, "a table that is not known"),
    ] {
        let key = Key { object: table << 48 | 1, kind: TABLE_KIND, offset: 1 };
        assert_eq!(told(Table::of(&key)), format!("{name}: unsupported feature"));
    }
    assert_eq!(Table::of(&Table::Runs.piece_key(9, 3)), Ok((Table::Runs, 3)));
    let key = Table::Holds.attached_key(DatasetId::new(7), BlockId::new(9), ATTACHED_MAX - 1);
    let (table, within) = Table::of(&key).unwrap();
    assert_eq!((table, key.offset), (Table::Holds, 9));
    assert_eq!(Table::attached(within), (DatasetId::new(7), ATTACHED_MAX - 1));

    let hold = |tag: &str| HoldRecord { created: Timestamp::default(), tag: tag.into() };
    let kept = hold("keep").encode();
    assert_eq!(HoldRecord::decode(&kept), Ok(hold("keep")));
    let bad = "corrupt hold record: value out of range";
    for bytes in
        [hold("").encode(), hold("a\nb").encode(), hold(&"a".repeat(256)).encode(), kept[..19].to_vec()]
    {
        assert_eq!(HoldRecord::decode(&bytes).unwrap_err().to_string(), bad);
    }
    let mut late = kept.clone();
    late[11] = 0x80;
    assert!(HoldRecord::decode(&kept[..15]).is_err() && HoldRecord::decode(&late).is_err());

    let block = |at: usize| {
        let info = BlockInfo {
            kind: BlockKind::Record,
            codec: CodecKind::Off,
            checksum: ChecksumKind::Fast,
            framed: false,
            level: 0,
            logical: 4,
            dataset: DatasetId::new(1),
            object: 2,
            offset: 0,
            key_kind: 0,
        };
        let stamp = Stamp { id: BlockId::new(5), incarnation: Incarnation::new(8), birth: CommitId::new(2) };
        let mut bytes = vec![0; BlockHeader::SIZE + 4];
        let sum = checksum::payload_sum(ChecksumKind::Fast, &sums(), b"data");
        block::encode(&sums(), &stamp, &info, sum, b"data", &mut bytes);
        bytes[at] = 13;
        let sum = checksum::fast64(&sums(), &bytes[..BlockHeader::SIZE - 8]);
        bytes[BlockHeader::SIZE - 8..BlockHeader::SIZE].copy_from_slice(&sum.to_le_bytes());
        told(block::check_any(&sums(), &bytes))
    };
    assert_eq!(block(97), "such frames in blocks: unsupported feature");
    assert_eq!(block(100), "a cipher of blocks: unsupported feature");
}

/// A record with frames and this content, changed and its header and its frames' sums summed anew.
fn framed(content: &[u8], change: impl Fn(&mut BlockInfo, &mut Vec<u8>)) -> Vec<u8> {
    let mut info = BlockInfo {
        kind: BlockKind::Record,
        codec: CodecKind::Off,
        checksum: ChecksumKind::Fast,
        framed: true,
        level: 0,
        logical: content.len() as u32,
        dataset: DatasetId::new(1),
        object: 2,
        offset: 0,
        key_kind: 0,
    };
    let stamp = Stamp { id: BlockId::new(5), incarnation: Incarnation::new(8), birth: CommitId::new(2) };
    let frames = block::frame_sums(&sums(), content);
    let mut payload = [&frames[..], content].concat();
    change(&mut info, &mut payload);
    let mut bytes = vec![0; BlockHeader::SIZE + payload.len()];
    let sum = checksum::payload_sum(info.checksum, &sums(), &payload[..frames.len().min(payload.len())]);
    block::encode(&sums(), &stamp, &info, sum, &payload, &mut bytes);
    bytes
}

fn with_frame(mut bytes: Vec<u8>, frame: u8) -> Vec<u8> {
    bytes[97] = frame;
    let sum = checksum::fast64(&sums(), &bytes[..BlockHeader::SIZE - 8]);
    bytes[BlockHeader::SIZE - 8..BlockHeader::SIZE].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn frames_are_of_one_size_of_plain_records_and_as_many_as_the_content_has() {
    let content: Vec<u8> = (0..20_000u32).map(|i| ((i * i) >> 7) as u8).collect();
    let same = |_: &mut BlockInfo, _: &mut Vec<u8>| {};
    let sound = framed(&content, same);
    let (header, found) = block::check_any(&sums(), &sound).unwrap();
    assert!(found == content && header.before_content() == 144 + 5 * 8);
    for len in [1, 4095, 4096, 4097, 8192] {
        let (_, found) =
            block::check_any(&sums(), &framed(&content[..len], same)).map(|(h, f)| (h, f.to_vec())).unwrap();
        assert!(found == content[..len]);
    }
    let refused = |bytes: &[u8]| block::check_any(&sums(), bytes).unwrap_err().to_string();
    let unknown = "such frames in blocks: unsupported feature";
    for frame in [1, 11, 13, 63, 64, 255] {
        assert_eq!(refused(&with_frame(sound.clone(), frame)), unknown);
    }
    assert_eq!(refused(&framed(&content, |info, _| info.codec = CodecKind::Lz4)), unknown);
    assert_eq!(refused(&framed(&content, |info, _| info.checksum = ChecksumKind::Blake3)), unknown);
    for kind in [BlockKind::Node, BlockKind::Table, BlockKind::Run, BlockKind::Log, BlockKind::CommitRecord] {
        assert_eq!(refused(&framed(&content, |info, _| info.kind = kind)), unknown);
    }
    for logical in [0, 1, 19_999, 20_001, 20_480, 20_481, u32::MAX - 1, u32::MAX] {
        let reason = Reason::Range;
        let bytes = framed(&content, |info, _| info.logical = logical);
        assert_eq!(block::check_any(&sums(), &bytes).unwrap_err().reason, reason, "{logical}");
    }
    // Sums that are longer than the payload.
    let short = framed(&content, |info, payload| {
        info.logical = 20_000;
        payload.truncate(16);
    });
    assert_eq!(block::check_any(&sums(), &short).unwrap_err().reason, Reason::Range);
    // Cut short, wrong in any frame, or wrong in a frame's sum, even where the sum over those sums is right.
    for len in [0, 143, 144, 183, 184, 5000, sound.len() - 1] {
        assert_eq!(block::check_any(&sums(), &sound[..len]).unwrap_err().reason, Reason::Short);
        assert!(len > 183 || header.frame_sums(&sums(), &sound[..len]).is_err());
    }
    for at in (144..sound.len()).step_by(1009).chain([183, 184, sound.len() - 1]) {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        assert_eq!(block::check_any(&sums(), &bytes).unwrap_err().reason, Reason::Checksum, "{at}");
        assert_eq!(header.frame_sums(&sums(), &bytes).is_err(), at < 184, "{at}");
    }
    let forged = framed(&content, |_, payload| payload[8] ^= 1);
    assert_eq!(block::check_any(&sums(), &forged).unwrap_err().reason, Reason::Checksum);
    // Sums say nothing of another number of frames.
    let stored = header.frame_sums(&sums(), &sound).unwrap();
    block::check_frames(&sums(), &stored[8..24], &content[4096..12_288]).unwrap();
    for (from, to) in [(0, 16), (8, 16), (8, 32)] {
        block::check_frames(&sums(), &stored[from..to], &content[4096..12_288]).unwrap_err();
    }
}

#[test]
fn bad_slots_that_refused_nothing_or_have_another_length_are_refused() {
    let time = Timestamp { secs: -5, nanos: 999_999_999 };
    let record = BadSlotRecord { device: DeviceGuid::new(3), time, errno: 5, errors: 2 };
    assert_eq!(BadSlotRecord::decode(&record.encode()), Ok(record));
    let refused = |bytes: &[u8], reason| assert_eq!(BadSlotRecord::decode(bytes).unwrap_err().reason, reason);
    refused(&record.encode()[..31], Reason::Short);
    refused(&[&record.encode()[..], &[0]].concat(), Reason::Range);
    refused(&BadSlotRecord { errors: 0, ..record }.encode(), Reason::Range);
    let late = Timestamp { nanos: 1_000_000_000, ..time };
    refused(&BadSlotRecord { time: late, ..record }.encode(), Reason::Range);
    let slot = Slot { device: DeviceIndex::new(7), index: SlotIndex::new(1023) };
    assert_eq!(Table::bad_slot(Table::bad_slot_key(slot).offset), Some(slot));
    assert_eq!(Table::bad_slot(1 << 48), None);
}
