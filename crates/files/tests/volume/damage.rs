//! Damage beyond repair: exactly that gives errors and is named, all else is served and can be written.

use crate::bed::*;
use larder_files::*;
use larder_format::block::{BLOCK_MAGIC, BlockKind, CheckedHeader};
use larder_format::items;
use larder_format::node::Key;
use larder_format::{BlockId, ByteLen, DeviceOffset};
use larder_pool::ledger::HEAD;
use larder_pool::{Look, ROOT_DATASET};
use std::collections::{BTreeMap, BTreeSet};

pub const SIZE: ByteLen = ByteLen::new(64 << 20);
pub const RECORD: u64 = 4096;

/// A block as a device has it.
#[derive(Debug, Clone, Copy)]
pub struct Stored {
    device: usize,
    at: u64,
    len: usize,
    id: BlockId,
    level: u8,
    first: Key,
}

pub fn bed() -> Bed {
    Bed::with_layout(
        "mirror",
        &[SIZE; 2],
        &[("recordsize", "4096"), ("compression", "off"), ("atime", "off")],
    )
}

/// All blocks of a kind, on all devices.
fn blocks(bed: &Bed, kind: BlockKind) -> Vec<Stored> {
    let mut found = Vec::new();
    for device in 0..bed.sim.devices().len() {
        let image = bed.sim.device(device).image();
        let bytes = image.read(DeviceOffset::new(0), SIZE.get() as usize);
        for at in (0..bytes.len() - 256).step_by(8) {
            if bytes[at..at + 4] != BLOCK_MAGIC.to_le_bytes() {
                continue;
            }
            let Ok(header) = CheckedHeader::check(bed.pool.store().sums(), &bytes[at..]) else { continue };
            let info = header.info;
            if info.kind == kind {
                let first = Key { object: info.object, kind: info.key_kind, offset: info.offset };
                let (at, len) = (at as u64, header.stored() as usize);
                found.push(Stored { device, at, len, id: header.id, level: info.level, first });
            }
        }
    }
    found
}

/// The newest nodes of this level, by their first key: those that the tree has, where it was written once.
pub fn nodes(bed: &Bed, level: u8) -> BTreeMap<Key, Vec<Stored>> {
    let mut newest: BTreeMap<Key, Vec<Stored>> = BTreeMap::new();
    for node in blocks(bed, BlockKind::Node).into_iter().filter(|node| node.level == level) {
        let copies = newest.entry(node.first).or_default();
        copies.retain(|other| other.id >= node.id);
        if copies.first().is_none_or(|other| other.id == node.id) {
            copies.push(node);
        }
    }
    newest
}

/// Every copy of a block becomes noise.
pub fn rot(bed: &Bed, copies: &[Stored]) {
    assert_eq!(copies.len(), 2, "{copies:?}");
    for copy in copies {
        bed.sim.device(copy.device).flip_bits(DeviceOffset::new(copy.at + 100), copy.len - 100, 7);
    }
}

/// Rots the record of a file that begins at `offset`.
pub fn rot_record(bed: &Bed, node: NodeId, offset: u64) {
    let dataset = bed.pool.dataset(id_of(bed, node).0).unwrap();
    rot_record_in(bed, &dataset.view().unwrap(), node, offset);
}

/// Rots the record that a file has in a dataset or snapshot.
pub fn rot_record_in(bed: &Bed, view: &impl Look, node: NodeId, offset: u64) {
    let (_, inode) = id_of(bed, node);
    let value = view.get(&Key::new(inode.get(), items::EXTENT, offset)).unwrap().expect("an extent");
    let id = items::Extent::decode(&value).unwrap().ptr.id;
    let all = blocks(bed, BlockKind::Record);
    rot(bed, &all.into_iter().filter(|block| block.id == id).collect::<Vec<_>>());
}

/// Files `f0` to `f599` of a folder `many`: they fill some leaves.
pub fn many(bed: &Bed) -> Vec<NodeId> {
    let dir = bed.dir(ROOT, "many");
    let files: Vec<_> = (0..600).map(|i| bed.file(dir, &format!("f{i}"))).collect();
    files.iter().for_each(|node| bed.write(*node, 0, b"before"));
    files
}

pub fn id_of(_: &Bed, node: NodeId) -> (larder_format::DatasetId, larder_format::InodeId) {
    match node {
        NodeId::ROOT => (ROOT_DATASET, items::ROOT_INODE),
        node => node.unpack(),
    }
}

pub fn content(seed: u64, records: u64) -> Vec<u8> {
    (0..records * RECORD).map(|i| (i / 8 * 31 + i + seed * 7 + 1) as u8 | 1).collect()
}

pub fn name_lost(bed: &Bed) {
    while bed.upkeep.damage.step(8).unwrap() {}
}

/// Paths of what is damaged, behind `@` and the snapshot that they are in; `<metadata>` for nodes.
pub fn named(bed: &Bed) -> BTreeSet<String> {
    let name = |of: Damaged| {
        let path = match (of.path, of.inode) {
            (Some(path), _) => path,
            (None, Some(inode)) => format!("<{inode}>"),
            (None, None) => "<metadata>".into(),
        };
        of.snapshot.map_or(path.clone(), |snapshot| format!("@{snapshot}:{path}"))
    };
    bed.mount.damaged(&bed.upkeep.damage.known()).into_iter().map(name).collect()
}

pub fn is_eio<T>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(FsError::Damaged(_)))
}

/// Everything is there but these records, which give errors.
pub fn assert_served(bed: &Bed, node: NodeId, content: &[u8], lost: &[u64]) {
    for record in 0..content.len() as u64 / RECORD {
        let read = bed.mount.read(node, Handle(0), record * RECORD, RECORD as u32);
        if lost.contains(&record) {
            assert!(is_eio(read), "record {record} is rotten");
        } else {
            let wanted = &content[(record * RECORD) as usize..][..RECORD as usize];
            assert_eq!(read.unwrap().to_vec(), wanted, "record {record}");
        }
    }
}

/// The pool's own check finds nothing but the stripes that are rotten, where nothing is live any more.
fn check(bed: &Bed) {
    let mut problems = bed.upkeep.check().unwrap().problems;
    problems.retain(|problem| !problem.ends_with("does not match its checksum"));
    assert!(problems.is_empty(), "{problems:#?}");
}

pub fn settle(bed: &Bed) {
    while bed.mount.reap_step(1000).unwrap() {}
    for _ in 0..4 {
        bed.pool.commit().unwrap();
    }
}

#[test]
fn rotten_records_give_errors_alone_and_are_named_until_they_are_overwritten() {
    let bed = bed();
    let (wanted, other) = (content(1, 8), content(2, 8));
    let dir = bed.dir(ROOT, "letters");
    let (node, neighbour) = (bed.file(dir, "a"), bed.file(dir, "b"));
    bed.write(node, 0, &wanted);
    bed.write(neighbour, 0, &other);
    let bed = bed.reopen(2);
    for record in [1, 4, 6] {
        rot_record(&bed, node, record * RECORD);
    }
    assert_served(&bed, node, &wanted, &[1, 4, 6]);
    assert_served(&bed, neighbour, &other, &[]);
    let damaged = bed.mount.damaged(&bed.upkeep.damage.known());
    assert_eq!((damaged.len(), damaged[0].path.as_deref(), damaged[0].whole), (1, Some("/letters/a"), false));
    let ranges = [1, 4, 6].map(|record| record * RECORD..(record + 1) * RECORD);
    assert_eq!(damaged[0].ranges, ranges);

    // It is remembered.
    let bed = bed.reopen(3);
    assert_eq!(named(&bed), ["/letters/a".to_owned()].into());

    // A part cannot be written, the whole can; neighbours take both.
    assert!(is_eio(bed.mount.write(node, Handle(0), RECORD + 5, &[9; 10], false)));
    assert!(is_eio(bed.mount.write(node, Handle(0), RECORD / 2, &vec![9; RECORD as usize], false)));
    bed.write(node, 2 * RECORD + 5, &[9; 10]);
    bed.write(node, RECORD, &vec![8; RECORD as usize]);
    bed.pool.commit().unwrap();
    assert_eq!(bed.read(node, RECORD, 4096), [8; RECORD as usize]);
    assert_eq!(bed.mount.damaged(&bed.upkeep.damage.known())[0].ranges, ranges[1..]);

    // The file can be cut in the middle of what is rotten, and grows again.
    bed.resize(node, 6 * RECORD + 100);
    bed.resize(node, 6 * RECORD);
    bed.pool.commit().unwrap();
    assert_eq!(bed.mount.damaged(&bed.upkeep.damage.known())[0].ranges, ranges[1..2]);
    // It can be renamed, and removed.
    bed.mount.rename(dir, b"a", ROOT, b"c", RenameFlags::default()).unwrap();
    assert_eq!(named(&bed), ["/c".to_owned()].into());
    bed.mount.unlink(ROOT, b"c").unwrap();
    settle(&bed);
    assert_eq!(named(&bed), BTreeSet::new());
    assert_served(&bed, neighbour, &other, &[]);
    check(&bed);
    let bed = bed.reopen(4);
    assert_eq!(named(&bed), BTreeSet::new());
    bed.check_tree();
}

#[test]
fn what_is_sound_of_a_damaged_record_is_served_and_the_file_is_named_once_somebody_looked() {
    const LARGE: u64 = 128 << 10;
    let properties = [("recordsize", "131072"), ("compression", "off"), ("atime", "off")];
    let bed = Bed::with_layout("single", &[SIZE], &properties);
    let wanted = content(1, 2 * LARGE / RECORD);
    let node = bed.file(ROOT, "a");
    bed.write(node, 0, &wanted);
    let bed = bed.reopen(2);
    let first = blocks(&bed, BlockKind::Record).into_iter().find(|block| block.first.offset == 0).unwrap();
    // In the middle of the record, somewhere in a piece of 4 KiB.
    let rotten = LARGE / 2 / RECORD * RECORD;
    let before = first.len as u64 - LARGE;
    bed.sim.device(0).flip_bits(DeviceOffset::new(first.at + before + rotten + 50), 9, 1);
    let piece = |at: u64| bed.mount.read(node, Handle(0), at, RECORD as u32).map(|data| data.to_vec());
    let right = |at: u64| wanted[at as usize..][..RECORD as usize].to_vec();
    assert_eq!(piece(0).unwrap(), right(0));
    assert_eq!(named(&bed), BTreeSet::new(), "nobody looked there");
    for at in (0..2 * LARGE).step_by(RECORD as usize) {
        if at == rotten {
            assert!(is_eio(piece(at)));
        } else {
            assert_eq!(piece(at).unwrap(), right(at), "{at}");
        }
    }
    assert!(is_eio(bed.mount.read(node, Handle(0), 0, LARGE as u32)));
    let ahead = rotten - 3 * RECORD;
    let more = bed.mount.read(node, Handle(0), ahead, 3 * RECORD as u32).unwrap().to_vec();
    assert_eq!(more, &wanted[ahead as usize..rotten as usize], "up to where it is rotten");
    assert_eq!(named(&bed), ["/a".to_owned()].into());
    assert_eq!(bed.mount.damaged(&bed.upkeep.damage.known())[0].ranges, vec![0..LARGE; 1]);
    // A part cannot be written, all of it can.
    assert!(is_eio(bed.mount.write(node, Handle(0), 5, &[9; 10], false)));
    bed.write(node, 0, &wanted[..LARGE as usize]);
    bed.pool.commit().unwrap();
    assert_eq!(bed.read(node, 0, LARGE as u32), &wanted[..LARGE as usize]);
    assert_eq!(named(&bed), BTreeSet::new());
    check(&bed);
}

#[test]
fn what_was_removed_is_named_no_more_however_long_that_takes() {
    let bed = bed();
    let node = bed.file(ROOT, "a");
    bed.write(node, 0, &content(1, 200));
    let bed = bed.reopen(2);
    // It is not among those that the remover drops itself.
    rot_record(&bed, node, 150 * RECORD);
    assert!(is_eio(bed.mount.read(node, Handle(0), 150 * RECORD, 10)));
    assert_eq!(named(&bed), set(&["/a"]));
    let (dataset, inode) = id_of(&bed, node);
    let entry = bed.upkeep.damage.known()[0];
    let handle = bed.mount.open(node, READ_WRITE).unwrap();
    bed.mount.unlink(ROOT, b"a").unwrap();
    assert_eq!(named(&bed), set(&[&format!("<{inode}>")]), "who has it open can read it");
    bed.mount.release(node, handle).unwrap();
    assert!(bed.mount.reap_step(1).unwrap(), "some of it is there still");
    assert_eq!(named(&bed), set(&[]));
    settle(&bed);
    assert_eq!(bed.upkeep.damage.known(), []);
    // A reader that began before finds the damage only now.
    bed.pool.damage().note_unreadable((dataset, HEAD), inode.get(), entry.offset, entry.len, entry.block);
    assert_eq!(bed.upkeep.damage.known(), []);
    check(&bed);
}

#[test]
fn a_part_written_before_the_damage_was_known_is_told_by_fsync_and_stops_nobody_else() {
    let bed = bed();
    let node = bed.file(ROOT, "a");
    bed.write(node, 0, &content(1, 4));
    let bed = bed.reopen(2);
    rot_record(&bed, node, RECORD);
    bed.write(node, RECORD + 1, b"unaware");
    bed.write(node, 3 * RECORD + 1, b"sound");
    let other = bed.file(ROOT, "b");
    bed.write(other, 0, b"fine");
    bed.pool.commit().unwrap();
    assert!(is_eio(bed.mount.fsync(node, Handle(0), false)));
    bed.fsync(node);
    assert_eq!(bed.read(node, 3 * RECORD, 6)[1..], *b"sound");
    assert_eq!(bed.read(other, 0, 4), b"fine");
    assert!(is_eio(bed.mount.read(node, Handle(0), RECORD, 10)), "it is not half old, half new");
    assert_eq!(named(&bed), ["/a".to_owned()].into());
}

#[test]
fn a_lost_range_of_a_column_is_named_by_the_files_that_lie_there() {
    let bed = bed();
    let files: Vec<_> = (0..40).map(|i| (bed.file(ROOT, &format!("f{i}")), content(i, 3))).collect();
    files.iter().for_each(|(node, content)| bed.write(*node, 0, content));
    let bed = bed.reopen(2);
    rot_record(&bed, files[7].0, RECORD);
    rot_record(&bed, files[30].0, 0);
    // As a scrub tells it: more than what is rotten.
    let dataset = bed.pool.dataset(ROOT_DATASET).unwrap();
    for (file, offset) in [(7, RECORD), (30, 0)] {
        let (_, inode) = id_of(&bed, files[file].0);
        let value = dataset.view().unwrap().get(&Key::new(inode.get(), items::EXTENT, offset)).unwrap();
        let place = items::Extent::decode(&value.unwrap()).unwrap().ptr.place;
        let range = place.offset.saturating_sub(9000)..place.offset + 20_000;
        bed.pool.damage().note_lost(&[larder_pool::Lost {
            segment: place.segment,
            column: place.column,
            range,
        }]);
    }
    name_lost(&bed);
    assert_eq!(named(&bed), ["/f30".to_owned(), "/f7".to_owned()].into());
    // Damage noted wrongly, or reconstructed since, is forgotten when all is looked at again.
    let bed = bed.reopen(3);
    bed.pool.damage().recheck();
    name_lost(&bed);
    assert_eq!(named(&bed).len(), 2);
    bed.pool.damage().clear();
    assert_eq!(named(&bed), BTreeSet::new());
    let bed = bed.reopen(4);
    assert_eq!(named(&bed), BTreeSet::new());
}

fn scrub(bed: &Bed) {
    bed.upkeep.scrub.start(larder_upkeep::ScrubSince::All).unwrap();
    while bed.upkeep.scrub.step(u64::MAX).unwrap() {}
    name_lost(bed);
}

pub fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[test]
fn what_only_a_snapshot_holds_is_named_with_the_snapshot() {
    let bed = bed();
    let dir = bed.dir(ROOT, "letters");
    let (a, b) = (bed.file(dir, "a"), bed.file(dir, "b"));
    bed.write(a, 0, &content(1, 8));
    bed.write(b, 0, &content(2, 8));
    bed.pool.snapshot(ROOT_DATASET, "monday").unwrap();
    // Of the one a record is another since, the other is gone, and its directory has another name.
    bed.write(a, RECORD, &content(3, 1));
    bed.mount.unlink(dir, b"b").unwrap();
    bed.mount.rename(ROOT, b"letters", ROOT, b"post", RenameFlags::default()).unwrap();
    settle(&bed);
    let bed = bed.reopen(2);
    {
        let monday = bed.pool.snapshot_view(ROOT_DATASET, "monday").unwrap();
        rot_record_in(&bed, &monday, a, RECORD);
        rot_record_in(&bed, &monday, b, 3 * RECORD);
    }
    scrub(&bed);
    assert_eq!(named(&bed), set(&["@monday:/letters/a", "@monday:/letters/b"]));
    let damaged = bed.mount.damaged(&bed.upkeep.damage.known());
    assert_eq!(damaged[0].ranges.first(), Some(&(RECORD..2 * RECORD)));
    assert_eq!(bed.read(a, RECORD, 4096), content(3, 1), "what the head has is sound");
    // A block that both hold is named in both, and is kept.
    rot_record(&bed, a, 5 * RECORD);
    scrub(&bed);
    let all = set(&["/post/a", "@monday:/letters/a", "@monday:/letters/b"]);
    assert_eq!(named(&bed), all);
    let bed = bed.reopen(3);
    assert_eq!(named(&bed), all);
    // Overwritten in the head it is still in the snapshot, and goes with that.
    bed.write(a, 5 * RECORD, &content(4, 1));
    bed.pool.commit().unwrap();
    assert_eq!(named(&bed), set(&["@monday:/letters/a", "@monday:/letters/b"]));
    bed.pool.destroy_snapshot(ROOT_DATASET, "monday").unwrap();
    assert_eq!(named(&bed), BTreeSet::new());
    let bed = bed.reopen(4);
    assert_eq!(named(&bed), BTreeSet::new());
}

#[test]
fn a_lost_leaf_that_only_a_snapshot_holds_names_the_files_in_the_snapshot() {
    let bed = bed();
    let dir = bed.dir(ROOT, "many");
    let files: Vec<_> = (0..400).map(|i| (bed.file(dir, &format!("f{i}")), content(i, 1))).collect();
    files.iter().for_each(|(node, content)| bed.write(*node, 0, content));
    let bed = bed.reopen(2);
    let leaves = nodes(&bed, 0);
    let keys: Vec<_> =
        leaves.keys().copied().filter(|key| key.object > id_of(&bed, files[0].0).1.get()).collect();
    bed.pool.snapshot(ROOT_DATASET, "monday").unwrap();
    // In the head that leaf is another since.
    for (node, wanted) in &files {
        bed.write(*node, 0, &wanted[..10]);
    }
    let bed = bed.reopen(3);
    rot(&bed, &leaves[&keys[1]]);
    let bed = bed.crash(4);
    scrub(&bed);
    let mut named = named(&bed);
    assert!(named.remove("@monday:<metadata>"), "{named:?}");
    let inside =
        |i: &u64| (keys[1].object..keys[2].object).contains(&id_of(&bed, files[*i as usize].0).1.get());
    let mut wanted: BTreeSet<_> = (0..400).filter(inside).map(|i| format!("@monday:/many/f{i}")).collect();
    assert!(wanted.len() > 10);
    // Of the next, data may be in there.
    wanted.extend(named.difference(&wanted).next().cloned());
    assert_eq!(named, wanted);
    for (node, wanted) in &files {
        assert_eq!(bed.read(*node, 0, 4096), *wanted);
    }
}

#[test]
fn a_lost_leaf_of_extents_costs_its_range_of_its_file() {
    let bed = bed();
    let wanted = content(3, 2000);
    let (big, small) = (bed.file(ROOT, "big"), bed.file(ROOT, "small"));
    bed.write(small, 0, &wanted[..3 * RECORD as usize]);
    bed.write(big, 0, &wanted);
    let bed = bed.reopen(2);
    let (_, inode) = id_of(&bed, big);
    let leaves = nodes(&bed, 0);
    let of_big: Vec<_> =
        leaves.iter().filter(|(key, _)| (key.object, key.kind) == (inode.get(), items::EXTENT)).collect();
    let (low, high) = (of_big[2].0.offset / RECORD, of_big[3].0.offset / RECORD);
    assert!(of_big.len() > 4 && high - low > 50, "{low}..{high}");
    rot(&bed, of_big[2].1);
    let bed = bed.crash(3);
    let lost: Vec<u64> = (low..high).collect();
    assert_served(&bed, big, &wanted, &lost);
    assert_served(&bed, small, &wanted[..3 * RECORD as usize], &[]);
    name_lost(&bed);
    assert_eq!(named(&bed), ["/big".to_owned(), "<metadata>".to_owned()].into());
    let entries = bed.upkeep.damage.known();
    assert!(
        entries.iter().all(|entry| entry.inode == inode.get() && entry.last == inode.get()),
        "{entries:?}"
    );

    // Neither there nor of the file can anything be written in the lost range; everywhere else it can.
    assert!(is_eio(bed.mount.write(big, Handle(0), low * RECORD, &vec![5; RECORD as usize], false)));
    bed.write(big, (high + 1) * RECORD, &vec![5; RECORD as usize]);
    bed.write(small, 0, b"still");
    bed.fsync(big);
    bed.pool.commit().unwrap();
    assert_eq!(bed.read(big, (high + 1) * RECORD, 4096), [5; RECORD as usize]);
    assert!(bed.mount.statfs(ROOT).is_ok());
    assert_eq!(bed.pool.store().suspended(), None);

    // Removing the file removes what cannot be read of it; what that held comes back with a trace.
    bed.mount.unlink(ROOT, b"big").unwrap();
    settle(&bed);
    assert_eq!(named(&bed), BTreeSet::new());
    bed.upkeep.gc.start().unwrap();
    while bed.upkeep.gc.step(64).unwrap() {}
    settle(&bed);
    check(&bed);
    let bed = bed.reopen(4);
    bed.check_tree();
    check(&bed);
}

#[test]
fn a_lost_leaf_of_small_files_names_these_files() {
    let bed = bed();
    let dir = bed.dir(ROOT, "many");
    let files: Vec<_> = (0..400).map(|i| (bed.file(dir, &format!("f{i}")), content(i, 1))).collect();
    files.iter().for_each(|(node, content)| bed.write(*node, 0, content));
    let bed = bed.reopen(2);
    let leaves = nodes(&bed, 0);
    let keys: Vec<_> =
        leaves.keys().copied().filter(|key| key.object > id_of(&bed, files[0].0).1.get()).collect();
    let (low, high) = (keys[1], keys[2]);
    rot(&bed, &leaves[&low]);
    let bed = bed.crash(3);
    let mut lost = BTreeSet::new();
    for (i, (node, wanted)) in files.iter().enumerate() {
        let inode = id_of(&bed, *node).1.get();
        let all = inode >= low.object && inode < high.object;
        let attr = bed.mount.lookup(dir, format!("f{i}").as_bytes()).unwrap();
        assert_eq!(attr.perm == 0, all, "nobody may read f{i}");
        match bed.mount.read(*node, Handle(0), 0, 4096) {
            Ok(read) => assert!(!all && read.to_vec() == *wanted),
            // Its data may be in the leaf, and its attributes in the next.
            outcome => {
                assert!(is_eio(outcome) && (all || inode == high.object), "f{i} is in the leaf");
                assert!(!all || is_eio(bed.mount.open(*node, READ_WRITE)));
                lost.insert(format!("/many/f{i}"));
            }
        }
    }
    assert!(lost.len() > 10 && lost.len() < 200, "{lost:?}");
    name_lost(&bed);
    let mut named = named(&bed);
    assert!(named.remove("<metadata>"));
    assert_eq!(named, lost);
    // Others come and go.
    bed.mount.unlink(dir, b"f0").unwrap();
    let new = bed.file(dir, "new");
    bed.write(new, 0, b"content");
    bed.fsync(new);
    bed.pool.commit().unwrap();
    assert_eq!(bed.pool.store().suspended(), None);
    let bed = bed.reopen(4);
    assert_eq!(bed.read(bed.find("many/new").unwrap().node, 0, 7), b"content");
}

#[test]
fn a_lost_leaf_of_a_directory_leaves_the_other_names() {
    let bed = bed();
    let dir = bed.dir(ROOT, "names");
    let count = 1500;
    for i in 0..count {
        bed.file(dir, &format!("a name that is rather long, so that there are several leaves {i}"));
    }
    let bed = bed.reopen(2);
    let inode = id_of(&bed, dir).1;
    let leaves = nodes(&bed, 0);
    let of_dir: Vec<_> =
        leaves.iter().filter(|(key, _)| (key.object, key.kind) == (inode.get(), items::ENTRY)).collect();
    assert!(of_dir.len() > 4);
    rot(&bed, of_dir[1].1);
    let (low, high) = (of_dir[1].0.offset, of_dir[2].0.offset);
    let bed = bed.crash(3);
    let lost = |i: &i32| {
        let name = format!("a name that is rather long, so that there are several leaves {i}");
        (low..high).contains(&bed.pool.dataset(ROOT_DATASET).unwrap().name_key().cookie(name.as_bytes()))
    };
    for i in 0..count {
        let name = format!("a name that is rather long, so that there are several leaves {i}");
        let found = bed.mount.lookup(dir, name.as_bytes());
        assert_eq!(is_eio(found), lost(&i), "{i}");
    }
    // A listing tells what can be read, then that there is more.
    let (mut told, mut at) = (0, 0);
    let ended = loop {
        let mut any = false;
        let outcome = bed.mount.readdir(dir, Handle(0), at, false, &mut |entry| {
            (told, at, any) = (told + 1, entry.next_cookie, true);
            true
        });
        if outcome.is_err() || !any {
            break outcome;
        }
    };
    let sound = (0..count).filter(|i| !lost(i)).count();
    assert!(is_eio(ended) && told == sound + 2 && at > high, "{told} {at} {low}");
    name_lost(&bed);
    assert_eq!(named(&bed), ["/names".to_owned(), "<metadata>".to_owned()].into());
    // A name can be made in a leaf that can be read.
    let free = (0..).find(|i| !lost(&(count + i))).unwrap() + count;
    bed.file(dir, &format!("a name that is rather long, so that there are several leaves {free}"));
    bed.pool.commit().unwrap();
    assert_eq!(bed.pool.store().suspended(), None);
}

/// Removes a directory and what can be listed of it, as `rm -r` does.
fn remove_all(bed: &Bed, parent: NodeId, name: &str) -> Result<()> {
    let dir = bed.mount.lookup(parent, name.as_bytes())?.node;
    bed.mount.opendir(dir)?;
    let mut inside = Vec::new();
    let mut at = 0;
    loop {
        let before = inside.len();
        let told = bed.mount.readdir(dir, Handle(0), at, true, &mut |entry| {
            inside.push((entry.name.to_vec(), entry.kind));
            at = entry.next_cookie;
            true
        });
        if told.is_err() || inside.len() == before {
            break;
        }
    }
    bed.mount.releasedir(dir, Handle(0))?;
    inside.retain(|(name, _)| ![&b"."[..], b".."].contains(&&name[..]));
    for (name, kind) in inside {
        bed.mount.lookup(dir, &name)?;
        match kind {
            FileKind::Directory => remove_all(bed, dir, std::str::from_utf8(&name).unwrap())?,
            _ => bed.mount.unlink(dir, &name)?,
        }
    }
    bed.mount.rmdir(parent, name.as_bytes())
}

#[test]
fn directories_that_are_lost_can_be_removed_with_what_is_left_in_them() {
    let bed = bed();
    let outer = bed.dir(ROOT, "outer");
    // Directories and files in turn, so that a lost leaf takes some of both.
    let mut dirs = Vec::new();
    for i in 0..200 {
        let dir = bed.dir(outer, &format!("d{i}"));
        bed.write(bed.file(dir, "inside"), 0, &content(i, 1));
        dirs.push(dir);
    }
    // One whose names are in leaves far behind its inode.
    for i in 0..300 {
        bed.file(dirs[50], &format!("a name that is rather long, so that there are several leaves {i}"));
    }
    let bed = bed.reopen(2);
    let leaves = nodes(&bed, 0);
    let inode = id_of(&bed, dirs[50]).1.get();
    let holding = leaves.range(..=Key::new(inode, items::INODE, 0)).next_back().unwrap();
    rot(&bed, holding.1);
    let bed = bed.crash(3);
    let is_lost = |node: &NodeId| is_eio(bed.mount.read(*node, Handle(0), 0, 1));
    let lost: Vec<_> = (0..200).filter(|i| is_lost(&dirs[*i])).collect();
    assert!(lost.len() > 3 && lost.len() < 150 && lost.contains(&50), "{lost:?}");
    assert!(matches!(bed.mount.rmdir(outer, b"d50"), Err(FsError::NotEmpty)), "what can be read is kept");
    let made = bed.mount.mknod(dirs[50], b"new", FileKind::Regular, 0o644, 0, &USER);
    assert!(is_eio(made), "nothing new is put there");
    remove_all(&bed, ROOT, "outer").unwrap();
    settle(&bed);
    assert!(matches!(bed.mount.lookup(ROOT, b"outer"), Err(FsError::NotFound)));
    assert_eq!(bed.mount.getattr(ROOT).unwrap().nlink, 2);
    bed.write(bed.file(ROOT, "after"), 0, b"goes on");
    bed.pool.commit().unwrap();
    assert_eq!(bed.pool.store().suspended(), None);
    let bed = bed.reopen(4);
    assert_eq!(bed.content(bed.find("after").unwrap().node), b"goes on");
}

#[test]
fn a_lost_inner_node_leaves_the_pool_and_what_is_beside_it() {
    let bed = bed();
    let other = bed.file(ROOT, "before");
    let wanted = content(5, 2);
    bed.write(other, 0, &wanted);
    // Enough leaves for two levels above them.
    let fat: Vec<_> = (0..1100).map(|i| bed.file(ROOT, &format!("fat{i}"))).collect();
    for node in &fat {
        bed.mount.setxattr(*node, b"user.a", &[1; 1900], XattrMode::Set).unwrap();
        bed.mount.setxattr(*node, b"user.b", &[2; 1900], XattrMode::Set).unwrap();
        bed.mount.setxattr(*node, b"user.c", &[3; 1900], XattrMode::Set).unwrap();
    }
    let after = bed.file(ROOT, "after");
    bed.write(after, 0, &wanted);
    let bed = bed.reopen(2);
    let inner = nodes(&bed, 1);
    assert!(inner.len() > 1, "there is a level above");
    let (key, copies) = inner.iter().next_back().unwrap();
    rot(&bed, copies);
    let bed = bed.crash(3);
    assert_served(&bed, other, &wanted, &[]);
    let lost: BTreeSet<_> = (0..fat.len()).filter(|i| is_eio(bed.mount.getattr(fat[*i]))).collect();
    assert!(!lost.is_empty() && lost.len() < fat.len(), "from {key:?} on {} are lost", lost.len());
    name_lost(&bed);
    let mut named = named(&bed);
    assert!(named.remove("<metadata>") && named.remove("/after"), "{named:?}");
    let mut wanted: BTreeSet<_> = lost.iter().map(|i| format!("/fat{i}")).collect();
    if let Some(first) = lost.first().filter(|first| **first > 0) {
        // Something of the one before may be in there.
        let before = format!("/fat{}", first - 1);
        if named.contains(&before) {
            wanted.insert(before);
        }
    }
    assert_eq!(named, wanted);
    bed.write(other, 0, b"goes on");
    bed.fsync(other);
    bed.pool.commit().unwrap();
    assert_eq!(bed.pool.store().suspended(), None);
}
