//! Cutting live files anew: what they hold, and all that anybody sees of them, stays.

use crate::bed::{Bed, ROOT};
use crate::damage::rot_record;
use crate::model::Run;
use crate::quota::{dataset, show};
use crate::share::{file, trace};
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_format::items::{EXTENT, Extent, INODE, Inode};
use larder_format::node::Key;
use larder_format::{ByteLen, DatasetId};
use larder_pool::{Look, ROOT_DATASET};
use larder_sim::{SimWorld, Survival};
use larder_upkeep::{Pass, PassState, Task};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const KIB: usize = 1 << 10;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    SeededEntropy::new(seed).bytes(len)
}

fn below(dice: &SeededEntropy, most: u64) -> u64 {
    dice.next_u64() % most
}

fn set(bed: &Bed, (size, chunking): (u32, &str)) {
    bed.pool.set_property(ROOT_DATASET, "recordsize", &size.to_string()).unwrap();
    bed.pool.set_property(ROOT_DATASET, "chunking", chunking).unwrap();
}

fn start(bed: &Bed) {
    bed.upkeep.passes.start(Task::Records, vec![ROOT_DATASET], 0).unwrap();
}

/// Goes on with the pass to its end, in steps of so many bytes.
fn finish(bed: &Bed, bytes: u64) -> Pass {
    for _ in 0..100_000 {
        if bed.upkeep.passes.step(bytes).unwrap().is_none() {
            return bed.upkeep.passes.last().unwrap();
        }
    }
    panic!("the pass does not end");
}

fn pass(bed: &Bed, bytes: u64) -> Pass {
    start(bed);
    finish(bed, bytes)
}

/// The inode in the tree, and its extents.
fn stored(bed: &Bed, node: NodeId) -> (Inode, Vec<(u64, Extent)>) {
    let (dataset, id) = node.unpack();
    let (mut found, mut inode) = (Vec::new(), None);
    let dataset = bed.pool.dataset(dataset).unwrap();
    let view = dataset.view().unwrap();
    view.scan(&Key::new(id.get(), EXTENT, 0), &mut |key, value| {
        match (key.object == id.get(), key.kind) {
            (true, EXTENT) => found.push((key.offset, Extent::decode(value).unwrap())),
            (true, INODE) => inode = Some(Inode::decode(value).unwrap()),
            _ => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    (inode.unwrap(), found)
}

/// Whether a file is cut as asked for, and as a file that is written anew would be.
fn check_cut(bed: &Bed, node: NodeId, (size, chunking): (u32, &str)) {
    let (inode, extents) = stored(bed, node);
    assert_eq!((inode.record_size, inode.by_content()), (size, chunking == "content"));
    for (offset, extent) in &extents {
        let is_whole = extent.block_offset == 0 && extent.logical <= size && extent.len <= size;
        assert!(inode.by_content() || is_whole && offset % u64::from(size) == 0, "{extent:?} at {offset}");
    }
}

fn read_snapshot(bed: &Bed, name: &str, node: NodeId) -> Vec<u8> {
    let snapshot = bed.pool.snapshot_dataset(ROOT_DATASET, name).unwrap();
    let volume = Volume::open(Arc::clone(&bed.pool), snapshot, (0, 0)).unwrap();
    volume.read(node.unpack().1, 0, u32::MAX).unwrap().to_vec()
}

const CUTS: [(u32, &str); 8] = [
    (128 << 10, "fixed"),
    (4 << 10, "fixed"),
    (256 << 10, "fixed"),
    (64 << 10, "content"),
    (512, "fixed"),
    (16 << 10, "content"),
    (16 << 10, "fixed"),
    (256 << 10, "content"),
];

#[test]
fn files_of_any_shape_are_cut_anew_up_and_down_and_by_content_and_back() {
    for (codec, bytes) in [("off", 64 << 10), ("lz4", 16 << 20), ("off", 1)] {
        let bed = Bed::new(&[("recordsize", "16384"), ("compression", codec)]);
        let sparse = bed.file(ROOT, "sparse");
        for at in [0, 5_000, 300_000, 1_048_576, 2_000_001, 2_400_000] {
            bed.write(sparse, at, &noise(at, 3000));
        }
        bed.resize(sparse, 4 << 20);
        let short = file(&bed, ROOT, "short", b"a few bytes");
        // Shorter than its last record was, and longer again.
        let cut = file(&bed, ROOT, "cut", &noise(1, 700 * KIB));
        bed.pool.commit().unwrap();
        bed.resize(cut, 333_333);
        bed.resize(cut, 500_000);
        let holes = file(&bed, ROOT, "holes", &noise(2, 600 * KIB));
        bed.pool.commit().unwrap();
        bed.mount.fallocate(holes, Handle(0), 100_000, 250_000, Allocate::Punch).unwrap();
        let empty = bed.file(ROOT, "empty");
        bed.resize(empty, 100_000);
        let all = [
            sparse,
            short,
            cut,
            holes,
            empty,
            file(&bed, ROOT, "large", &noise(3, 3 << 20)),
            file(&bed, ROOT, "zeros", &vec![0; 1 << 20]),
        ];
        bed.pool.commit().unwrap();
        let contents: Vec<_> = all.iter().map(|node| bed.content(*node)).collect();
        let times: Vec<_> = all.iter().map(|node| bed.mount.getattr(*node).unwrap()).collect();
        let mut bed = bed;
        for (turn, cut) in CUTS.into_iter().enumerate() {
            bed.tick();
            set(&bed, cut);
            let done = pass(&bed, bytes);
            assert_eq!((done.state, done.tally.unread, done.tally.kept), (PassState::Done, 0, 0), "{done:?}");
            assert!(done.tally.changed > 0);
            for ((node, content), before) in all.iter().zip(&contents).zip(&times) {
                if *node != empty {
                    check_cut(&bed, *node, cut);
                }
                assert!(bed.content(*node) == *content);
                let now = bed.mount.getattr(*node).unwrap();
                assert_eq!((now.size, now.mtime, now.ctime), (before.size, before.mtime, before.ctime));
            }
            // As if it had been written like that.
            let (anew, large) = (file(&bed, ROOT, "anew", &contents[5]), all[5]);
            bed.pool.commit().unwrap();
            let ends = |node| stored(&bed, node).1.iter().map(|(at, one)| (*at, one.len)).collect::<Vec<_>>();
            assert_eq!(ends(large), ends(anew), "{cut:?}");
            bed.mount.unlink(ROOT, b"anew").unwrap();
            assert_eq!(pass(&bed, bytes).tally.changed, 0, "there is no more to do");
            while bed.mount.reap_step(100).unwrap() {}
            trace(&bed);
            bed.check_tree();
            if turn == 3 {
                bed = bed.reopen(7);
            }
        }
    }
}

#[test]
fn what_snapshots_hold_is_told_before_and_afterwards_and_they_have_what_they_had() {
    let bed = Bed::new(&[("recordsize", "131072"), ("compression", "off")]);
    let (old, new) = (file(&bed, ROOT, "old", &noise(1, 2 << 20)), bed.file(ROOT, "new"));
    let content = bed.content(old);
    bed.pool.snapshot(ROOT_DATASET, "taken").unwrap();
    bed.write(new, 0, &noise(2, 1 << 20));
    bed.pool.commit().unwrap();
    let properties = BTreeMap::from([("recordsize".to_owned(), "16384".to_owned())]);
    let told = bed.upkeep.passes.estimate_records(&[ROOT_DATASET], &properties).unwrap().tally;
    let none = bed.upkeep.passes.estimate_records(&[ROOT_DATASET], &BTreeMap::new()).unwrap().tally;
    assert_eq!((none.changed, none.kept), (0, 0));
    assert_eq!(stored(&bed, old).0.record_size, 128 << 10, "nothing was changed by that");
    set(&bed, (16 << 10, "fixed"));
    let done = pass(&bed, 16 << 20);
    assert_eq!((told.changed, told.before, told.kept), (24, done.tally.before, done.tally.kept));
    let kept = done.tally.kept;
    assert!((2 << 20..(2 << 20) + 100_000).contains(&kept), "{kept}: the blocks of the old file");
    bed.pool.commit().unwrap();
    // Some nodes as well.
    let held = bed.pool.dataset(ROOT_DATASET).unwrap().usage().held;
    assert!((kept..kept + 16_384).contains(&held), "{held}, {kept}");
    assert!(read_snapshot(&bed, "taken", old) == content);
    let bed = bed.reopen(3);
    assert!(read_snapshot(&bed, "taken", old) == content && bed.content(old) == content);
    bed.pool.destroy_snapshot(ROOT_DATASET, "taken").unwrap();
    trace(&bed);
}

#[test]
fn each_record_is_counted_once_however_small_the_steps() {
    for (from, to) in
        [(16 << 10, (64 << 10, "fixed")), (64 << 10, (4 << 10, "fixed")), (16 << 10, (16 << 10, "content"))]
    {
        let done = [1, 16 << 20].map(|bytes| {
            let bed = Bed::new(&[("recordsize", "16384"), ("compression", "off")]);
            set(&bed, (from, "fixed"));
            file(&bed, ROOT, "file", &noise(1, 900 * KIB));
            bed.pool.commit().unwrap();
            set(&bed, to);
            let done = pass(&bed, bytes).tally;
            (done.records, done.changed, done.before, done.after)
        });
        assert_eq!(done[0], done[1], "{from} to {to:?}");
    }
}

#[test]
fn what_other_files_hold_is_told_before_and_afterwards() {
    let bed = Bed::new(&[("recordsize", "131072"), ("compression", "off"), ("dedup", "on")]);
    let one = file(&bed, ROOT, "one", &noise(1, 1 << 20));
    bed.pool.commit().unwrap();
    let (_, top) = dataset(&bed, "tank/other", &[]);
    let copy = bed.file(top, "copy");
    assert_eq!(bed.mount.copy_range((one, 0), (copy, 0), 512 << 10).unwrap().shared, 512 << 10);
    bed.pool.commit().unwrap();
    let properties = BTreeMap::from([("recordsize".to_owned(), "16384".to_owned())]);
    let told = bed.upkeep.passes.estimate_records(&[ROOT_DATASET], &properties).unwrap().tally;
    set(&bed, (16 << 10, "fixed"));
    let done = pass(&bed, 16 << 20);
    assert_eq!((told.changed, told.kept), (8, done.tally.kept));
    assert!(((512 << 10)..(512 << 10) + 20_000).contains(&told.kept), "{told:?}");
    assert!(bed.content(copy) == noise(1, 1 << 20)[..512 << 10]);
    trace(&bed);
}

#[test]
fn nothing_is_shared_into_a_file_that_is_under_way() {
    let cut = (16 << 10, "content");
    let bed = Bed::new(&[("recordsize", "16384"), ("chunking", "content"), ("compression", "off")]);
    let [target, source] = [1, 2].map(|seed| file(&bed, ROOT, &format!("{seed}"), &noise(seed, 900 * KIB)));
    bed.pool.commit().unwrap();
    set(&bed, (16 << 10, "fixed"));
    start(&bed);
    for _ in 0..6 {
        bed.upkeep.passes.step(50_000).unwrap();
    }
    let is = |node| (stored(&bed, node).0.record_size, stored(&bed, node).0.by_content());
    assert_eq!(
        (is(target), is(source)),
        ((cut.0, true), (cut.0, true)),
        "the one is not done, the other not begun"
    );
    let copied = bed.mount.copy_range((source, 0), (target, 0), u64::MAX).unwrap();
    let mut content = noise(1, 900 * KIB);
    content[..copied.bytes as usize].copy_from_slice(&noise(2, copied.bytes as usize));
    assert!(finish(&bed, 50_000).state == PassState::Done);
    check_cut(&bed, target, (16 << 10, "fixed"));
    assert!(bed.content(target) == content);
}

#[test]
fn records_of_the_new_size_are_found_to_be_there_already() {
    let bed = Bed::new(&[("recordsize", "131072"), ("dedup", "on"), ("compression", "off")]);
    let first = file(&bed, ROOT, "first", &noise(1, 1 << 20));
    bed.pool.commit().unwrap();
    set(&bed, (16 << 10, "fixed"));
    file(&bed, ROOT, "second", &noise(1, 1 << 20));
    bed.pool.commit().unwrap();
    let before = bed.pool.writes().stored;
    assert_eq!(pass(&bed, 16 << 20).tally.changed, 8);
    bed.pool.commit().unwrap();
    let more = bed.pool.writes().stored - before;
    assert!(more < 100_000, "{more} bytes were stored of what it has");
    check_cut(&bed, first, (16 << 10, "fixed"));
    trace(&bed);
}

#[test]
fn dirty_data_moves_to_the_new_records_and_no_write_is_torn() {
    for (old, new) in [(128, 4), (4, 128), (16, 64)] {
        for turn in 0..2_u64 {
            let bed = Bed::new(&[("recordsize", &(old << 10).to_string()), ("compression", "off")]);
            let node = file(&bed, ROOT, "file", &noise(1, 600 * KIB));
            bed.pool.commit().unwrap();
            set(&bed, (new << 10, "fixed"));
            let mut content = bed.content(node);
            let mut write = |at: usize, len: usize| {
                let data = noise(at as u64, len);
                bed.write(node, at as u64, &data);
                content[at..at + len].copy_from_slice(&data);
            };
            // Within a record, over its end, and to what the first step does not take.
            for (at, len) in [(100, 5000), (130_000, 3000), (300_000, 200_000), (7, 1)] {
                write(at, len);
            }
            start(&bed);
            let bytes = if turn == 0 { 1 } else { 16 << 20 };
            bed.upkeep.passes.step(bytes).unwrap();
            write(20_000, 90_000);
            assert!(bed.content(node) == content);
            finish(&bed, bytes);
            assert!(bed.content(node) == content);
            bed.fsync(node);
            let bed = bed.crash(5);
            let node = bed.find("file").unwrap().node;
            assert!(bed.content(node) == content, "what was synced is there");
            finish(&bed, bytes);
            bed.pool.commit().unwrap();
            check_cut(&bed, node, (new << 10, "fixed"));
            assert!(bed.content(node) == content);
            bed.check_tree();
        }
    }
}

#[test]
fn what_was_logged_is_stored_though_the_file_is_cut_anew_between_two_batches() {
    // From so small records to so large ones that numbers of the one are places of no record of the other.
    let bed = Bed::new(&[("recordsize", "512"), ("compression", "off")]);
    bed.pool.set_pool_property("memory", "2097152").unwrap();
    let node = file(&bed, ROOT, "file", &noise(1, 300 * KIB));
    bed.pool.commit().unwrap();
    set(&bed, (256 << 10, "fixed"));
    let mut content = bed.content(node);
    for at in (0..300 * KIB - 600).step_by(9_000) {
        bed.write(node, at as u64, &[7; 600]);
        content[at..at + 600].fill(7);
    }
    bed.fsync(node);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            start(&bed);
            finish(&bed, 16 << 20)
        });
        bed.pool.commit().unwrap();
    });
    let bed = bed.crash(3);
    assert!(bed.content(bed.find("file").unwrap().node) == content);
}

#[test]
fn what_was_accepted_has_room_in_the_new_records_as_well() {
    let bed = Bed::new(&[("recordsize", "4096"), ("compression", "off")]);
    let (node, filler) = (bed.file(ROOT, "large"), bed.file(ROOT, "filler"));
    let (part, available) = (noise(1, 1 << 20), || bed.pool.store().space(4096).available);
    (0..100).for_each(|at| bed.write(node, at << 20, &part));
    bed.pool.commit().unwrap();
    for at in 0.. {
        if available() < 50 << 20 {
            break;
        }
        bed.write(filler, at << 20, &part);
        bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap();
    }
    bed.pool.commit().unwrap();
    let places = (0..100_u64 << 20).step_by(64 << 10);
    places.clone().for_each(|at| bed.write(node, at, &[7; 10]));
    bed.fsync(node);
    set(&bed, (256 << 10, "fixed"));
    start(&bed);
    bed.upkeep.passes.step(1).unwrap();
    assert!(stored(&bed, node).0.by_content(), "it is under way");
    bed.pool.commit().unwrap();
    let bed = bed.crash(3);
    places.for_each(|at| assert_eq!(bed.read(node, at, 10), [7; 10]));
    bed.check_tree();
}

#[test]
fn a_file_that_is_between_two_cuts_is_not_done_when_the_settings_become_its_own() {
    let bed = Bed::new(&[("recordsize", "16384"), ("compression", "off")]);
    let content = noise(1, 600 * KIB);
    let node = file(&bed, ROOT, "file", &content);
    bed.pool.commit().unwrap();
    set(&bed, (4 << 10, "fixed"));
    start(&bed);
    bed.upkeep.passes.step(50_000).unwrap();
    let cut = (16 << 10, "content");
    check_cut(&bed, node, cut);
    set(&bed, cut);
    finish(&bed, 50_000);
    let anew = file(&bed, ROOT, "anew", &content);
    bed.pool.commit().unwrap();
    let ends = |node| stored(&bed, node).1.iter().map(|(at, one)| (*at, one.len)).collect::<Vec<_>>();
    assert_eq!(ends(node), ends(anew));
    assert!(bed.content(node) == content);
}

#[test]
fn what_is_written_far_apart_to_a_file_that_is_under_way_has_no_records_of_zeros() {
    let bed = Bed::new(&[("recordsize", "4096"), ("compression", "off")]);
    let node = file(&bed, ROOT, "file", &noise(1, 600 * KIB));
    bed.resize(node, 4 << 20);
    bed.pool.commit().unwrap();
    set(&bed, (64 << 10, "fixed"));
    start(&bed);
    bed.upkeep.passes.step(1).unwrap();
    let places = (1_u64 << 20..2 << 20).step_by(64 << 10);
    places.clone().for_each(|at| bed.write(node, at, &noise(at, 4096)));
    bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap();
    assert!(stored(&bed, node).0.by_content(), "it is under way");
    let far = stored(&bed, node).1.into_iter().filter(|(at, _)| *at >= 1 << 20);
    assert_eq!(
        far.map(|(at, one)| (at, one.len)).collect::<Vec<_>>(),
        places.map(|at| (at, 4096)).collect::<Vec<_>>()
    );
    finish(&bed, 1);
    check_cut(&bed, node, (64 << 10, "fixed"));
}

#[test]
fn no_loss_is_told_of_what_is_written_behind_an_unreadable_extent_of_a_file_under_way() {
    let bed = Bed::new(&[("recordsize", "4096"), ("compression", "off")]);
    let node = file(&bed, ROOT, "file", &noise(1, 900 * KIB));
    bed.pool.commit().unwrap();
    let (bad, end) = (640 << 10, 704 << 10);
    bed.mount.fallocate(node, Handle(0), bad + 4096, end - bad - 4096, Allocate::Punch).unwrap();
    bed.pool.commit().unwrap();
    rot_record(&bed, node, bad);
    bed.pool.store().drop_caches();
    set(&bed, (64 << 10, "fixed"));
    start(&bed);
    bed.upkeep.passes.step(1).unwrap();
    bed.write(node, 680 << 10, &[7; 100]);
    bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap();
    bed.fsync(node);
    assert!(stored(&bed, node).0.by_content(), "it is under way");
    assert_eq!(bed.read(node, 680 << 10, 100), [7; 100]);
    let done = finish(&bed, 1);
    assert_eq!((done.state, done.tally.unread), (PassState::Done, 1), "{done:?}");
    assert!(stored(&bed, node).0.by_content(), "it stays between the two");
    assert_eq!(bed.read(node, 680 << 10, 100), [7; 100]);
    assert_eq!(bed.read(node, 0, bad as u32), noise(1, 900 * KIB)[..bad as usize]);
}

/// Checks the content of a file but for these ranges, which fail to be read.
fn check_but(bed: &Bed, node: NodeId, content: &[u8], bad: &[(u64, u64)]) {
    bed.pool.store().drop_caches();
    let mut at = 0;
    for &(from, to) in bad.iter().chain(&[(content.len() as u64, 0)]) {
        assert!(
            bed.read(node, at, (from - at) as u32) == content[at as usize..from as usize],
            "{at} to {from}"
        );
        if to > 0 {
            assert!(
                bed.mount.read(node, Handle(0), from, (to - from) as u32).is_err(),
                "{from} is unreadable"
            );
        }
        at = to;
    }
}

#[test]
fn all_of_a_file_is_cut_anew_but_the_records_that_cannot_be_read() {
    const LEN: usize = 900 * KIB;
    let cuts = [
        ((4 << 10, "fixed"), (64 << 10, "fixed")),
        ((64 << 10, "fixed"), (16 << 10, "fixed")),
        ((16 << 10, "content"), (32 << 10, "fixed")),
        ((16 << 10, "fixed"), (64 << 10, "content")),
    ];
    for ((old, new), step) in cuts.into_iter().flat_map(|of| [(of, 1), (of, 200 << 10), (of, u64::MAX)]) {
        let case = format!("{old:?} to {new:?}, steps of {step}");
        let bed = Bed::new(&[("compression", "off")]);
        set(&bed, old);
        let mut content = noise(7, LEN);
        let node = file(&bed, ROOT, "file", &content);
        let whole = file(&bed, ROOT, "whole", &content);
        bed.pool.commit().unwrap();
        // Two that lie beside each other, one alone and the last.
        let (_, extents) = stored(&bed, node);
        let n = extents.len();
        let bad: Vec<(u64, u64)> = [n / 4, n / 4 + 1, n / 2, n - 1]
            .map(|i| (extents[i].0, extents[i].0 + u64::from(extents[i].1.len)))
            .to_vec();
        bad.iter().for_each(|(at, _)| rot_record(&bed, node, *at));
        bed.pool.store().drop_caches();
        set(&bed, new);
        start(&bed);
        bed.upkeep.passes.step(step).unwrap();
        if step < u64::MAX {
            // Somebody writes beside them while the file is under way.
            let beside = bad[2].0 - 100;
            bed.write(node, beside, &[9; 50]);
            content[beside as usize..][..50].fill(9);
            bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap();
        }
        let done = finish(&bed, step);
        // The last one may be as it should be.
        let size = u64::from(new.0);
        let is_last_whole = new.1 == "fixed" && bad[3].0.is_multiple_of(size) && bad[3].1 - bad[3].0 <= size;
        let unread = 4 - u64::from(is_last_whole);
        assert_eq!((done.state, done.tally.unread), (PassState::Done, unread), "{case}: {done:?}");
        check_cut(&bed, whole, new);
        check_but(&bed, node, &content, &bad);
        let (inode, now) = stored(&bed, node);
        assert_eq!(inode.flags & Inode::HALF_CUT != 0, new.1 == "fixed", "{case}");
        let near = |offset: u64| {
            bad.iter().any(|(from, to)| from / size * size <= offset && offset < to.next_multiple_of(size))
        };
        for (offset, extent) in now.iter().filter(|(offset, _)| new.1 == "fixed" && !near(*offset)) {
            let is_record =
                offset % size == 0 && (u64::from(extent.len) == size || offset + size > LEN as u64);
            assert!(is_record, "{case}: {extent:?} at {offset}");
        }
        // A second pass changes nothing.
        let again = pass(&bed, step);
        let unread = if new.1 == "fixed" { unread } else { 0 };
        assert_eq!((again.tally.unread, again.tally.changed), (unread, 0), "{case}: {again:?}");
        assert_eq!(stored(&bed, node).1, now, "{case}");
        // Once they can be read it is done.
        for (from, to) in &bad {
            bed.write(node, *from, &vec![5; (to - from) as usize]);
            content[*from as usize..*to as usize].fill(5);
        }
        bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap();
        let last = pass(&bed, step);
        assert_eq!((last.state, last.tally.unread), (PassState::Done, 0), "{case}: {last:?}");
        check_cut(&bed, node, new);
        check_but(&bed, node, &content, &[]);
        trace(&bed);
    }
}

/// A disk that is full, a quota, a dataset that is read-only or not there: it stops, and all is as it was.
#[test]
fn it_stops_where_it_may_not_go_on() {
    let bed = Bed::new(&[("recordsize", "4096"), ("compression", "off")]);
    let (made, top) = dataset(&bed, "tank/first", &[]);
    let node = file(&bed, top, "one", &noise(1, 400 * KIB));
    bed.pool.commit().unwrap();
    let passes = &bed.upkeep.passes;
    let set = |name: &str, value: &str| bed.pool.set_property(made.id(), name, value).unwrap();
    set("recordsize", "65536");
    passes.start(Task::Records, vec![made.id()], 0).unwrap();
    assert!(passes.step(1).unwrap().is_some());
    bed.mount.detach(made.id()).unwrap();
    for _ in 0..10 {
        assert_eq!(passes.step(1).unwrap(), None);
    }
    bed.pool.commit().unwrap();
    show(&bed, &made);
    set("readonly", "on");
    passes.step(1).unwrap();
    assert_eq!(passes.last().unwrap().state, PassState::Stopped);
    assert_eq!(stored(&bed, node).0.record_size, 64 << 10);
    assert!(stored(&bed, node).0.by_content(), "it is between the two");
    set("readonly", "off");
    // Another size meanwhile, and no room for it.
    set("recordsize", "512");
    set("quota", "500000");
    passes.start(Task::Records, vec![made.id()], 0).unwrap();
    assert_eq!(finish(&bed, 16 << 20).state, PassState::Full);
    set("quota", "0");
    passes.start(Task::Records, vec![made.id()], 0).unwrap();
    assert_eq!(finish(&bed, 1).state, PassState::Done);
    check_cut(&bed, node, (512, "fixed"));
    assert!(bed.content(node) == noise(1, 400 * KIB));
    trace(&bed);
}

impl Run {
    /// Cuts files anew, to the end, or not.
    pub fn recut(&mut self) {
        let size = ["512", "4096", "16384", "65536"][self.below(4) as usize];
        let chunking = ["fixed", "fixed", "content"][self.below(3) as usize];
        for (name, value) in [("recordsize", size), ("chunking", chunking)] {
            let set = self.bed.pool.set_property(ROOT_DATASET, name, value).map_err(FsError::from);
            if self.allowed(set).is_none() {
                return;
            }
        }
        let steps = if self.below(2) == 0 { 10_000 } else { self.below(8) };
        let begun = self.bed.upkeep.passes.start(Task::Records, vec![ROOT_DATASET], 0);
        if self.allowed(begun.map_err(FsError::from)).is_none() {
            return;
        }
        self.pass_steps(steps);
        self.commit();
    }
}

/// One thing after the other at random, with the pass in between.
struct Chaos {
    bed: Bed,
    dice: SeededEntropy,
    files: Vec<(NodeId, Vec<u8>)>,
    snapshots: Vec<(String, Vec<Vec<u8>>)>,
}

impl Chaos {
    fn below(&self, most: u64) -> u64 {
        below(&self.dice, most)
    }

    fn step(&mut self, turn: u64) {
        self.bed.tick();
        let which = self.below(self.files.len() as u64) as usize;
        let (node, size) = (self.files[which].0, self.files[which].1.len() as u64);
        let (at, len) =
            (self.below(size + 20_000), 1 + self.below([50, 5_000, 80_000][self.below(3) as usize]));
        let end = (at + len) as usize;
        let dice = self.below(20);
        let content = &mut self.files[which].1;
        match dice {
            0..5 => {
                let data = noise(turn, len as usize);
                self.bed.write(node, at, &data);
                content.resize(content.len().max(end), 0);
                content[at as usize..end].copy_from_slice(&data);
            }
            5 => {
                let size = at.min(400_000);
                self.bed.resize(node, size);
                content.resize(size as usize, 0);
            }
            6 => {
                self.bed.mount.fallocate(node, Handle(0), at, len, Allocate::Punch).unwrap();
                let (at, end) = ((at as usize).min(content.len()), end.min(content.len()));
                content[at..end].fill(0);
            }
            7 => {
                let other = (which + 1) % self.files.len();
                let (from, source) = (self.files[other].0, self.files[other].1.clone());
                let (start, to) = (below(&self.dice, 3) * 65_536, below(&self.dice, 3) * 65_536);
                let copied =
                    self.bed.mount.copy_range((from, start), (node, to), len * 4).unwrap().bytes as usize;
                let (content, to, start) = (&mut self.files[which].1, to as usize, start as usize);
                content.resize(content.len().max(if copied > 0 { to + copied } else { 0 }), 0);
                if copied > 0 {
                    content[to..to + copied].copy_from_slice(&source[start..start + copied]);
                }
            }
            8 => self.bed.fsync(node),
            9 => self.bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap(),
            10 => drop(self.bed.pool.commit().unwrap()),
            11 => {
                let cut = CUTS[below(&self.dice, CUTS.len() as u64) as usize];
                set(&self.bed, cut);
            }
            12 if self.snapshots.len() < 3 => {
                let name = format!("{turn}");
                self.bed.pool.snapshot(ROOT_DATASET, &name).unwrap();
                let contents = self.files.iter().map(|(_, content)| content.clone()).collect();
                self.snapshots.push((name, contents));
            }
            13 => {
                drop(self.bed.upkeep.passes.start(Task::Records, vec![ROOT_DATASET], 0));
            }
            _ => {
                let bytes = [1, 10_000, 100_000][below(&self.dice, 3) as usize];
                self.bed.upkeep.passes.step(bytes).unwrap();
            }
        }
        let (node, content) = &self.files[which];
        let whole = self.bed.content(*node);
        assert!(
            whole == *content,
            "step {turn}: differs at {:?}",
            whole.iter().zip(content).position(|(a, b)| a != b)
        );
    }

    fn check(&self) {
        self.bed.pool.commit().unwrap();
        while self.bed.mount.reap_step(100).unwrap() {}
        self.bed.pool.commit().unwrap();
        self.bed.check();
        self.bed.check_tree();
        for (name, contents) in &self.snapshots {
            for ((node, _), content) in self.files.iter().zip(contents) {
                assert!(read_snapshot(&self.bed, name, *node) == *content, "{name}");
            }
        }
    }
}

#[test]
fn whatever_else_is_done_to_files_meanwhile_they_hold_what_was_written() {
    let seeds: u64 = std::env::var("LARDER_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let first: u64 = std::env::var("LARDER_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        println!("seed {seed}");
        let (codec, dedup) = (["off", "lz4"][seed as usize % 2], ["off", "on"][seed as usize / 2 % 2]);
        let bed = Bed::new(&[("recordsize", "16384"), ("compression", codec), ("dedup", dedup)]);
        if seed % 3 == 0 {
            bed.pool.set_pool_property("memory", "2097152").unwrap();
        }
        let files = (0..3).map(|i| {
            let content = noise(seed + i, 250_000);
            (file(&bed, ROOT, &format!("{i}"), &content), content)
        });
        let files = files.collect();
        let mut chaos = Chaos { bed, dice: SeededEntropy::new(seed), files, snapshots: Vec::new() };
        for turn in 0..250 {
            chaos.step(turn);
        }
        chaos.check();
        chaos.bed = chaos.bed.crash(seed + 9);
        chaos.check();
        // The rest is finished.
        drop(chaos.bed.upkeep.passes.stop());
        set(&chaos.bed, CUTS[seed as usize % CUTS.len()]);
        let done = pass(&chaos.bed, 50_000);
        assert_eq!((done.state, done.tally.unread), (PassState::Done, 0));
        chaos.check();
        for (node, content) in &chaos.files {
            assert!(chaos.bed.content(*node) == *content);
            if stored(&chaos.bed, *node).0.record_size > 0 {
                check_cut(&chaos.bed, *node, CUTS[seed as usize % CUTS.len()]);
            }
        }
    }
}

#[test]
fn a_power_cut_at_any_moment_leaves_every_file_whole_and_the_pass_goes_on() {
    for (from, to) in [
        ((16 << 10, "fixed"), (4 << 10, "fixed")),
        ((4 << 10, "fixed"), (64 << 10, "fixed")),
        ((16 << 10, "fixed"), (16 << 10, "content")),
        ((8 << 10, "content"), (32 << 10, "fixed")),
    ] {
        let bed = Bed::with_layout("mirror", &[ByteLen::new(64 << 20); 2], &[("compression", "off")]);
        set(&bed, from);
        let contents = [noise(1, 300 * KIB), noise(2, 5_000), noise(3, 150 * KIB)];
        let mut nodes = Vec::new();
        for (name, content) in ["large", "small", "other"].iter().zip(&contents) {
            nodes.push(file(&bed, ROOT, name, content));
        }
        bed.pool.commit().unwrap();
        bed.pool.snapshot(ROOT_DATASET, "before").unwrap();
        set(&bed, to);
        start(&bed);
        bed.pool.commit().unwrap();
        let begun = bed.sim.trace().len();
        while bed.upkeep.passes.step(20_000).unwrap().is_some() {
            bed.pool.commit().unwrap();
        }
        let (sim, clock) = (bed.sim.clone(), Arc::clone(&bed.clock));
        drop(bed);
        let trace = sim.trace();
        let (mut sweep, mut between) = (trace.sweep(), 0);
        for cut in begun..=trace.len() {
            sweep.advance_to(cut);
            if cut % 2 != 0 {
                continue;
            }
            let survival = match cut / 2 % 2 {
                0 => Survival::DropAll,
                _ => Survival::Random { seed: cut as u64 },
            };
            let images = sweep.images(survival);
            let bed = Bed::import(SimWorld::from_images(images), Arc::clone(&clock), 1000 + cut as u64);
            let whole = |bed: &Bed| {
                for (node, content) in nodes.iter().zip(&contents) {
                    assert!(bed.content(*node) == *content, "cut {cut}");
                    assert!(read_snapshot(bed, "before", *node) == *content, "cut {cut}");
                }
                bed.check_tree();
                bed.check();
            };
            whole(&bed);
            let is_between = |node: &NodeId| stored(&bed, *node).0.flags & Inode::HALF_CUT != 0;
            between += usize::from(nodes.iter().any(is_between));
            let done = finish(&bed, 20_000);
            assert_eq!(done.state, PassState::Done);
            nodes.iter().for_each(|node| check_cut(&bed, *node, to));
            whole(&bed);
        }
        assert!(between > 5, "{from:?} to {to:?}: {between} cuts came upon a file between the two");
    }
}

#[test]
fn a_file_that_somebody_writes_to_all_the_time_is_done_as_well() {
    for (from, to) in [(256 << 10, 4 << 10), (4 << 10, 256 << 10), (16 << 10, 64 << 10)] {
        let bed = Bed::new(&[("recordsize", &from.to_string()), ("compression", "off")]);
        let node = file(&bed, ROOT, "file", &noise(1, 6 << 20));
        bed.pool.commit().unwrap();
        set(&bed, (to, "fixed"));
        let (mut content, dice) = (bed.content(node), SeededEntropy::new(2));
        start(&bed);
        let mut steps = 0;
        while bed.upkeep.passes.step(200_000).unwrap().is_some() {
            for _ in 0..20 {
                let (at, data) =
                    (below(&dice, (6 << 20) - 9000) as usize, dice.bytes(1 + below(&dice, 9000) as usize));
                bed.write(node, at as u64, &data);
                content[at..at + data.len()].copy_from_slice(&data);
            }
            bed.pool.commit().unwrap();
            steps += 1;
            assert!(steps < 200, "{from} to {to}: writers lead it on");
        }
        check_cut(&bed, node, (to, "fixed"));
        assert!(bed.content(node) == content);
        bed.check_tree();
    }
}

/// Sizes of datasets that nobody named.
#[test]
fn only_the_datasets_that_are_named_are_cut_anew() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    let (made, top) = dataset(&bed, "tank/other", &[]);
    let (mine, other) =
        (file(&bed, ROOT, "one", &noise(1, 50_000)), file(&bed, top, "one", &noise(1, 50_000)));
    bed.pool.commit().unwrap();
    set(&bed, (16 << 10, "fixed"));
    pass(&bed, 16 << 20);
    let size = |node| stored(&bed, node).0.record_size;
    assert_eq!((size(mine), size(other)), (16 << 10, 4096));
    let _: DatasetId = made.id();
}
