//! One body a decoder.

use crate::samples::SUMS;
use crate::{Decoder, samples};
use larder_format::acl::Acl;
use larder_format::block::{
    self, BLOCK_MAGIC, BlockHeader, CheckedHeader, CodecKind, FRAME, check_frames, frame_sums, frame_sums_len,
};
use larder_format::bookmark::BookmarkRecord;
use larder_format::cached::{SlotCounts, SlotSummary};
use larder_format::checksum::{ChecksumKind, fast64, payload_sum, plain64};
use larder_format::commit_record::{CommitRecord, CommitRecordEntry, CommitRecordHead, together};
use larder_format::field::{Field, FieldInfo};
use larder_format::index::{
    PartDescriptor, PrintsBuilder, PrintsPage, decode_filter_page, encode_filter_page,
};
use larder_format::items::{Entry, Extent, Inode, MAX_RECORD, Xattr};
use larder_format::label::{Heartbeat, LABEL_LEN, Label, label_areas};
use larder_format::ledger::{CommandRecord, DamageRecord, EventRecord};
use larder_format::log::LogRecord;
use larder_format::node::Node;
use larder_format::ops::LogOp;
use larder_format::property::PropertyRecord;
use larder_format::root::{Root, RootHead};
use larder_format::run::{
    LazyPage, PageCursor, PageHead, RunDescriptor, RunPage, decode_index_page, encode_index_page,
};
use larder_format::segment::{
    DESCRIPTOR_LEN, STRIPE_STEP, SegmentRecord, StripeHead, StripeHeader, check_descriptor,
    encode_descriptor, stripe_header_len,
};
use larder_format::tables::{
    BadSlotRecord, DatasetRecord, FreeingRecord, ReceivingRecord, RemainsRecord, SnapshotRecord,
};
use larder_format::trash::TrashRecord;
use larder_format::{BLOCK_STEP, BlockId, CommitId, DeviceGuid, Incarnation, Place, SegmentId};
use larder_fuse::{Operation, Request};
use larder_store::walk_blocks;
use larder_stream::wire::{Decoder as StreamDecoder, Encoder, Frame, repair_sums as repair_frames};
use larder_zfs_stream::{Memory, ReceiveError, Streams, receive, repair_sums};
use std::fmt::Debug;

/// Every decoder.
pub const ALL: &[Decoder] = &[
    decoder("label", samples::labels, sum_label, label),
    decoder("heartbeat", samples::heartbeats, sum_label, heartbeat),
    decoder("root", samples::roots, sum_root, root),
    decoder("segment_record", samples::segments, unsummed, segment_record),
    decoder("descriptor", samples::descriptors, sum_descriptor, descriptor),
    decoder("stripe_header", samples::stripes, sum_stripe, stripe_header),
    decoder("block", samples::blocks, sum_block, whole_block),
    decoder("log_record", samples::logs, unsummed, log_record),
    decoder("operation", samples::ops, unsummed, operation),
    decoder("node", samples::nodes, unsummed, node),
    decoder("run_page", samples::run_pages, unsummed, run_page),
    decoder("index_page", samples::index_pages, unsummed, index_page),
    decoder("run_descriptor", samples::run_descriptors, unsummed, run_descriptor),
    decoder("prints_page", samples::prints_pages, unsummed, prints_page),
    decoder("filter_page", samples::filter_pages, unsummed, filter_page),
    decoder("part_descriptor", samples::part_descriptors, unsummed, part_descriptor),
    decoder("item", samples::items, unsummed, item),
    decoder("acl", samples::acls, unsummed, acl),
    decoder("dataset_record", samples::datasets, unsummed, dataset_record),
    decoder("snapshot_record", samples::snapshots, unsummed, snapshot_record),
    decoder("bookmark_record", samples::bookmarks, unsummed, bookmark_record),
    decoder("slot_summary", samples::summaries, unsummed, slot_summary),
    decoder("slot_counts", samples::slot_counts, unsummed, slot_counts),
    decoder("trash_record", samples::trash, unsummed, trash_record),
    decoder("bad_slot_record", samples::bad_slots, unsummed, bad_slot_record),
    decoder("remains_record", samples::remains, unsummed, remains_record),
    decoder("receiving_record", samples::receiving, unsummed, receiving_record),
    decoder("commit_record", samples::commit_records, sum_commit_record, commit_record),
    decoder("commit_record_entry", samples::commit_record_entries, unsummed, commit_record_entry),
    decoder("freeing_record", samples::freeings, unsummed, freeing_record),
    decoder("event_record", samples::events, unsummed, event_record),
    decoder("command_record", samples::commands, unsummed, command_record),
    decoder("damage_record", samples::damages, unsummed, damage_record),
    decoder("property_record", samples::properties, unsummed, property_record),
    decoder("fuse_request", samples::requests, unsummed, fuse_request),
    decoder("window", samples::windows, sum_blocks, window),
    Decoder {
        name: "stream",
        seeds: samples::streams,
        // A frame of 16 MiB whose length alone is there.
        spare: 40 << 20,
        resum: repair_frames,
        decode: stream,
    },
    Decoder {
        name: "zfs_stream",
        seeds: samples::zfs_streams,
        // A block of 16 MiB, made of few bytes, and the file that it is written to.
        spare: 256 << 20,
        resum: repair_sums,
        decode: zfs_stream,
    },
    Decoder {
        name: "payload",
        seeds: samples::payloads,
        spare: 2 * MAX_RECORD as u64 + 4096,
        resum: unsummed,
        decode: payload,
    },
];

const fn decoder(
    name: &'static str,
    seeds: fn() -> Vec<Vec<u8>>,
    resum: fn(&mut [u8]),
    decode: fn(&[u8]) -> bool,
) -> Decoder {
    Decoder { name, seeds, spare: 64 << 10, resum, decode }
}

/// An accepted value must mean the same when it is written and read again.
fn same<T: PartialEq + Debug, E: Debug>(value: T, again: Result<T, E>) -> bool {
    assert_eq!(again.expect("what was accepted can be encoded"), value);
    true
}

fn unsummed(_: &mut [u8]) {}

fn at(fields: &[FieldInfo], name: &str) -> usize {
    fields.iter().find(|field| field.name == name).expect("a field of this name").offset
}

/// Puts the sum of `bytes`, with the field at `hole` as zero, there.
fn sum_hole(bytes: &mut [u8], hole: usize) {
    bytes[hole..hole + 8].fill(0);
    let sum = fast64(&SUMS, bytes);
    sum.store(&mut bytes[hole..]);
}

/// Puts the sum of the first `len` − 8 bytes behind them.
fn sum_end(bytes: &mut [u8], len: usize, sum: impl Fn(&[u8]) -> u64) {
    if let Some(bytes) = bytes.get_mut(..len) {
        sum(&bytes[..len - 8]).store(&mut bytes[len - 8..]);
    }
}

fn sum_label(bytes: &mut [u8]) {
    sum_end(bytes, LABEL_LEN, plain64);
}

fn sum_descriptor(bytes: &mut [u8]) {
    sum_end(bytes, DESCRIPTOR_LEN as usize, |bytes| fast64(&SUMS, bytes));
}

fn sum_root(bytes: &mut [u8]) {
    let Some(head) = RootHead::get(bytes) else { return };
    let len = (head.length as usize).clamp(RootHead::SIZE, bytes.len());
    sum_hole(&mut bytes[..len], at(RootHead::FIELDS, "sum"));
}

fn sum_commit_record(bytes: &mut [u8]) {
    let hole = at(CommitRecordHead::FIELDS, "sum");
    if bytes.len() >= CommitRecordHead::SIZE {
        bytes[hole..hole + 8].fill(0);
        let sum = plain64(bytes);
        sum.store(&mut bytes[hole..]);
    }
}

fn sum_stripe(bytes: &mut [u8]) {
    let Some(head) = StripeHead::get(bytes) else { return };
    let len = (stripe_header_len(head.columns.into()) as usize).min(bytes.len());
    sum_hole(&mut bytes[..len], at(StripeHead::FIELDS, "header_sum"));
}

fn sum_block(bytes: &mut [u8]) {
    let Some(head) = BlockHeader::get(bytes) else { return };
    let mut end = BlockHeader::SIZE.saturating_add(head.payload as usize).min(bytes.len());
    let content = BlockHeader::SIZE.saturating_add(frame_sums_len(head.logical) as usize);
    if head.frame != 0 && content <= end {
        let sums = frame_sums(&SUMS, &bytes[content..end]);
        let len = sums.len().min(content - BlockHeader::SIZE);
        bytes[BlockHeader::SIZE..][..len].copy_from_slice(&sums[..len]);
        end = content;
    }
    if let Ok(kind) = ChecksumKind::from_byte(head.checksum) {
        let sum = payload_sum(kind, &SUMS, &bytes[BlockHeader::SIZE..end]);
        sum.store(&mut bytes[at(BlockHeader::FIELDS, "payload_sum")..]);
    }
    sum_end(bytes, BlockHeader::SIZE, |bytes| fast64(&SUMS, bytes));
}

/// Seals whatever looks like a block.
fn sum_blocks(bytes: &mut [u8]) {
    for at in (0..bytes.len()).step_by(BLOCK_STEP as usize) {
        if bytes[at..].starts_with(&BLOCK_MAGIC.to_le_bytes()) {
            sum_block(&mut bytes[at..]);
        }
    }
}

fn label(bytes: &[u8]) -> bool {
    let Ok(label) = Label::check(bytes) else { return false };
    let [first, second] = label_areas(label.device_size);
    assert!(first < second);
    let slots = u64::from(label.slot_count) * u64::from(label.slot_size);
    assert!(label.data_start.get() + slots <= second.get());
    let again = Label::check(&label.encode());
    same(label, again)
}

fn heartbeat(bytes: &[u8]) -> bool {
    let Ok(beat) = Heartbeat::check(bytes) else { return false };
    // The name is for people: bytes that are no text may come back as others.
    let again = Heartbeat::check(&beat.encode()).map(|again| again.beats);
    same(beat.beats, again)
}

fn root(bytes: &[u8]) -> bool {
    let Ok(root) = Root::check(&SUMS, bytes) else { return false };
    let _ = (root.commit.next(), root.block_lease.next(), root.segment_lease.next());
    let _ = root.tables.place.footprint();
    let again = Root::check(&SUMS, &root.encode(&SUMS).expect("it came from a ring slot"));
    same(root, again)
}

fn segment_record(bytes: &[u8]) -> bool {
    let Ok((record, len)) = SegmentRecord::decode(bytes) else { return false };
    let mut out = Vec::new();
    record.encode(&mut out);
    assert_eq!(out.len(), len);
    same((record, len), SegmentRecord::decode(&out))
}

fn descriptor(bytes: &[u8]) -> bool {
    let Ok((record, column)) = check_descriptor(&SUMS, bytes) else { return false };
    let again = check_descriptor(&SUMS, &encode_descriptor(&SUMS, &record, column));
    same((record, column), again)
}

fn stripe_header(bytes: &[u8]) -> bool {
    let Ok(header) = StripeHeader::check(&SUMS, bytes) else { return false };
    let mut out = vec![0; stripe_header_len(header.sums.len()) as usize];
    header.put(&SUMS, &mut out);
    let again = StripeHeader::check(&SUMS, &out);
    same(header, again)
}

fn whole_block(bytes: &[u8]) -> bool {
    if let Ok(header) = CheckedHeader::check(&SUMS, bytes) {
        assert!(header.footprint() >= u64::from(header.stored()));
    }
    let Ok((header, content)) = block::check_any(&SUMS, bytes) else { return false };
    assert_eq!(content.len() as u32, header.stored() - header.before_content());
    let sums = header.frame_sums(&SUMS, &bytes[..header.before_content() as usize]).expect("it was checked");
    assert_eq!(sums.is_empty(), !header.info.framed);
    if let Some((rest, sum)) = sums.split_last_chunk::<8>() {
        // The last frame by itself, and nothing else for it.
        let last = &content[(rest.len() / 8) * FRAME as usize..];
        check_frames(&SUMS, rest, &content[..content.len() - last.len()]).expect("all but the last");
        check_frames(&SUMS, sum, last).expect("the last");
    }
    same(header, block::check(&SUMS, header.id, bytes).map(|(header, _)| header))
}

fn log_record(bytes: &[u8]) -> bool {
    let Ok(record) = LogRecord::decode(bytes) else { return false };
    let again = LogRecord::decode(&record.encode());
    same(record, again)
}

fn operation(bytes: &[u8]) -> bool {
    let Ok(op) = LogOp::decode(bytes) else { return false };
    assert_eq!(op.encode(), bytes, "operations have one encoding");
    true
}

fn node(bytes: &[u8]) -> bool {
    let Ok(node) = Node::decode(bytes) else { return false };
    match &node {
        Node::Leaf(leaf) => {
            assert!(leaf.iter().all(|(key, value)| leaf.get(key) == Some(value)));
        }
        Node::Inner(inner) => {
            assert!(inner.children().iter().all(|child| child.place.footprint() >= child.place.stored));
        }
    }
    assert_eq!(node.encode(), bytes, "nodes have one encoding");
    true
}

fn run_page(bytes: &[u8]) -> bool {
    let Some(head) = PageHead::get(bytes) else { return false };
    let ids = [0, head.first.get(), head.first.get().wrapping_add(70), 1 << 40, u64::MAX].map(BlockId::new);
    if let Ok(page) = LazyPage::open(bytes, head.run, head.number) {
        for id in ids {
            let _ = page.find(id);
        }
    }
    let Ok(page) = RunPage::decode(bytes.into(), head.run, head.number) else { return false };
    let mut cursor = PageCursor::seek(&page, BlockId::new(0));
    let mut count = 0;
    while let Some((id, delta)) = cursor.next(&page) {
        if count % 61 == 0 {
            assert_eq!(page.find(id), Some(delta));
        }
        count += 1;
    }
    assert_eq!(count, page.len());
    for id in ids {
        let found = PageCursor::seek(&page, id).next(&page);
        assert_eq!(page.find(id).is_some(), found.is_some_and(|(at, _)| at == id));
    }
    true
}

fn index_page(bytes: &[u8]) -> bool {
    let Some(head) = PageHead::get(bytes) else { return false };
    let Ok(refs) = decode_index_page(bytes, head.run, head.height, head.number) else { return false };
    if !(1..=3).contains(&head.height) {
        return false;
    }
    let out = encode_index_page(head.run, head.height, head.number, &refs);
    same(refs, decode_index_page(&out, head.run, head.height, head.number))
}

fn run_descriptor(bytes: &[u8]) -> bool {
    let Ok((descriptor, len)) = RunDescriptor::decode(bytes) else { return false };
    let _ = (descriptor.run.next(), descriptor.newest.next());
    let mut out = Vec::new();
    descriptor.encode(&mut out);
    assert_eq!(out.len(), len);
    same((descriptor, len), RunDescriptor::decode(&out))
}

fn prints_page(bytes: &[u8]) -> bool {
    let Some(head) = PageHead::get(bytes) else { return false };
    let Ok(page) = PrintsPage::open(bytes, head.run, head.number) else { return false };
    for high in [0, page.first(), page.first().wrapping_add(1 << 40), u64::MAX] {
        let _ = page.find(high);
    }
    let mut entries = Vec::new();
    if page.append_to(&mut entries).is_err() {
        return false;
    }
    assert_eq!(entries.len(), page.len());
    for entry in entries.iter().step_by(61) {
        assert_eq!(page.find(entry.high), Ok(Some(*entry)));
    }
    let mut builder = PrintsBuilder::new(head.run);
    for entry in &entries {
        // Columns may be wider than they need to be; so many entries need not fit then.
        if !builder.has_room(entry) {
            return true;
        }
        builder.push(*entry);
    }
    let mut again = Vec::new();
    let read = PrintsPage::open(&builder.finish().1, head.run, 0).and_then(|page| page.append_to(&mut again));
    same(entries, read.map(|()| again))
}

fn filter_page(bytes: &[u8]) -> bool {
    let Some(head) = PageHead::get(bytes) else { return false };
    let Ok(values) = decode_filter_page(bytes, head.run, head.number) else { return false };
    let again = encode_filter_page(head.run, head.number, values);
    same(values, decode_filter_page(&again, head.run, head.number))
}

fn part_descriptor(bytes: &[u8]) -> bool {
    let Ok((descriptor, len)) = PartDescriptor::decode(bytes) else { return false };
    assert_eq!(descriptor.filter.pages(), descriptor.filter_pages.len() as u64);
    let mut out = Vec::new();
    descriptor.encode(&mut out);
    assert_eq!(out.len(), len);
    same((descriptor, len), PartDescriptor::decode(&out))
}

fn item(bytes: &[u8]) -> bool {
    let mut accepted = false;
    if let Ok(inode) = Inode::decode(bytes) {
        accepted = same(inode, Inode::decode(&inode.encode()));
    }
    if let Ok(extent) = Extent::decode(bytes) {
        assert!(extent.ptr.place.footprint() >= extent.ptr.place.stored);
        accepted = same(extent, Extent::decode(&extent.encode()));
    }
    if let Ok(entry) = Entry::decode(bytes) {
        assert_eq!(entry.encode(), bytes, "entries have one encoding");
        accepted = true;
    }
    if let Ok(xattr) = Xattr::decode(bytes) {
        assert_eq!(xattr.encode(), bytes, "attributes have one encoding");
        accepted = true;
    }
    accepted
}

fn acl(bytes: &[u8]) -> bool {
    let Ok(acl) = Acl::decode(bytes) else { return false };
    assert_eq!(acl.clone().with_mode(acl.mode()), acl);
    same(acl.clone(), Acl::decode(&acl.encode()))
}

fn dataset_record(bytes: &[u8]) -> bool {
    let Ok(record) = DatasetRecord::decode(bytes) else { return false };
    let again = DatasetRecord::decode(&record.encode());
    same(record, again)
}

fn snapshot_record(bytes: &[u8]) -> bool {
    let Ok(record) = SnapshotRecord::decode(bytes) else { return false };
    let again = SnapshotRecord::decode(&record.encode());
    same(record, again)
}

fn slot_summary(bytes: &[u8]) -> bool {
    let check = |bytes: &[u8]| SlotSummary::check(&SUMS, DeviceGuid::new(5), 3, 1 << 20, bytes);
    let Ok(summary) = check(bytes) else { return false };
    let again = check(&summary.encode(&SUMS));
    same(summary, again)
}

fn slot_counts(bytes: &[u8]) -> bool {
    let check = |bytes: &[u8]| SlotCounts::check(&SUMS, DeviceGuid::new(5), 3, 9, 1 << 20, bytes);
    let Ok(counts) = check(bytes) else { return false };
    let again = check(&counts.encode(&SUMS));
    same(counts, again)
}

fn bookmark_record(bytes: &[u8]) -> bool {
    let Ok(record) = BookmarkRecord::decode(bytes) else { return false };
    let again = BookmarkRecord::decode(&record.encode());
    same(record, again)
}

fn trash_record(bytes: &[u8]) -> bool {
    let Ok(record) = TrashRecord::decode(bytes) else { return false };
    let again = TrashRecord::decode(&record.encode());
    same(record, again)
}

fn bad_slot_record(bytes: &[u8]) -> bool {
    let Ok(record) = BadSlotRecord::decode(bytes) else { return false };
    let again = BadSlotRecord::decode(&record.encode());
    same(record, again)
}

fn remains_record(bytes: &[u8]) -> bool {
    let Ok(record) = RemainsRecord::decode(bytes) else { return false };
    let again = RemainsRecord::decode(&record.encode());
    same(record, again)
}

fn receiving_record(bytes: &[u8]) -> bool {
    let Ok(record) = ReceivingRecord::decode(bytes) else { return false };
    let again = ReceivingRecord::decode(&record.encode());
    same(record, again)
}

fn commit_record(bytes: &[u8]) -> bool {
    let Ok(record) = CommitRecord::check(bytes) else { return false };
    let again = CommitRecord::check(&record.encode());
    let told = together(vec![(BlockId::new(1), record.clone())]).map(|(newest, _)| newest);
    same(record.clone(), told.ok_or("a record")) && same(record, again)
}

fn commit_record_entry(bytes: &[u8]) -> bool {
    let Ok(entry) = CommitRecordEntry::decode(bytes) else { return false };
    let again = CommitRecordEntry::decode(&entry.encode());
    same(entry, again)
}

fn freeing_record(bytes: &[u8]) -> bool {
    let Ok(record) = FreeingRecord::decode(bytes) else { return false };
    let again = FreeingRecord::decode(&record.encode());
    same(record, again)
}

fn event_record(bytes: &[u8]) -> bool {
    let Ok(record) = EventRecord::decode(bytes) else { return false };
    let again = EventRecord::decode(&record.encode());
    same(record, again)
}

fn command_record(bytes: &[u8]) -> bool {
    let Ok(record) = CommandRecord::decode(bytes) else { return false };
    let again = CommandRecord::decode(&record.encode());
    same(record, again)
}

fn damage_record(bytes: &[u8]) -> bool {
    let Ok(record) = DamageRecord::decode(bytes) else { return false };
    let _ = record.what();
    same(record, DamageRecord::decode(&record.encode()))
}

fn property_record(bytes: &[u8]) -> bool {
    let Ok(record) = PropertyRecord::decode(bytes) else { return false };
    let again = PropertyRecord::decode(&record.encode());
    same(record, again)
}

/// Frames are read until one is bad; those before it are the same when they are written and read again.
fn stream(bytes: &[u8]) -> bool {
    fn frames(bytes: &[u8]) -> Vec<Frame> {
        let mut decoder = StreamDecoder::new(bytes);
        std::iter::from_fn(|| decoder.frame().ok()).collect()
    }
    let (read, mut encoder) = (frames(bytes), Encoder::default());
    let again: Vec<u8> = read.iter().flat_map(|frame| encoder.frame(frame)).collect();
    assert!(frames(&again) == read, "what was read comes back");
    !read.is_empty()
}

fn zfs_stream(bytes: &[u8]) -> bool {
    let mut streams = Streams::new(bytes);
    let mut all = || {
        while let Some(begin) = streams.next_stream().ok()? {
            // Each into a place of its own: an increment is refused for its base, and passed over.
            match receive(&mut streams, &begin, &mut Memory::default()) {
                Ok(_) | Err(ReceiveError::WrongBase { .. }) => {}
                Err(_) => return None,
            }
        }
        Some(())
    };
    all().is_some()
}

fn fuse_request(bytes: &[u8]) -> bool {
    let Ok(request) = Request::decode(bytes) else { return false };
    match request.operation {
        Operation::Lookup { name } | Operation::Create { name, .. } | Operation::SetXattr { name, .. } => {
            assert!(!name.is_empty() && !name.contains(&0));
        }
        Operation::BatchForget(forgets) => {
            assert!(forgets.iter().count() * 16 <= bytes.len() && !request.wants_answer());
        }
        Operation::Write { data, .. } => assert!(data.len() < bytes.len()),
        _ => {}
    }
    true
}

/// A column with three blocks in two stripes, of which the second has `bytes` as its content: no others are met.
fn window(bytes: &[u8]) -> bool {
    let start = Place { segment: SegmentId::new(1), column: 0, offset: DESCRIPTOR_LEN, stored: 0 };
    let _ = walk_blocks(&SUMS, start, bytes);
    let mut column = Vec::new();
    let mut stripe = |offset: usize, blocks: &[(u64, &[u8])]| {
        let len = blocks.iter().map(|(_, payload)| samples::footprint(payload)).sum::<usize>();
        let head = stripe_header_len(1) as usize;
        let height = (head + len).next_multiple_of(STRIPE_STEP as usize);
        let header = StripeHeader {
            segment: start.segment,
            offset: DESCRIPTOR_LEN + offset as u32,
            height: height as u32,
            commit: CommitId::new(2),
            incarnation: Incarnation::new(1),
            column: 0,
            used: len as u32,
            sums: vec![0],
        };
        column.resize(offset + height, 0);
        header.put(&SUMS, &mut column[offset..]);
        let mut at = offset + head;
        for &(id, payload) in blocks {
            samples::put_block(id, payload, &mut column[at..]);
            at += samples::footprint(payload);
        }
        offset + height
    };
    let second = stripe(0, &[(1, b"before"), (2, bytes)]);
    stripe(second, &[(3, b"behind")]);
    let head = stripe_header_len(1);
    let start = Place { offset: start.offset + head, ..start };
    let met = walk_blocks(&SUMS, start, &column[head as usize..]);
    let ids: Vec<u64> = met.iter().map(|(_, header)| header.id.get()).collect();
    assert_eq!(ids, [1, 2, 3], "what lies in a payload is content");
    true
}

fn payload(bytes: &[u8]) -> bool {
    let Some((&[kind, a, b, c], payload)) = bytes.split_first_chunk() else { return false };
    let Ok(kind) = CodecKind::from_byte(kind) else { return false };
    let logical = (u32::from_le_bytes([a, b, c, 0]) % (MAX_RECORD + 1)) as usize;
    let Ok(plain) = larder_pool::codec::decompress(kind, payload, logical) else { return false };
    assert_eq!(plain.len(), logical);
    true
}
