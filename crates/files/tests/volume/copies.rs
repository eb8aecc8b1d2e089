//! Datasets that ask for several places of their records, as those meet them who write files.

use crate::bed::{Bed, ROOT};
use crate::quota::{dataset, show};
use crate::share::{file, trace};
use larder_device::SeededEntropy;
use larder_files::*;
use larder_format::ByteLen;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_pool::{Dataset, Look, ROOT_DATASET};
use larder_sim::{SimWorld, Survival};
use std::ops::ControlFlow;
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn noise(seed: u64, len: u64) -> Vec<u8> {
    SeededEntropy::new(seed).bytes(len as usize)
}

fn extents(dataset: &Dataset) -> Vec<Extent> {
    let mut found = Vec::new();
    let mut visit = |key: &Key, value: &[u8]| {
        if key.kind == EXTENT {
            found.push(Extent::decode(value).unwrap());
        }
        ControlFlow::Continue(())
    };
    dataset.view().unwrap().scan(&Key::MIN, &mut visit).unwrap();
    found
}

/// Number of places of each record, and what its extent is charged for, once each.
fn places(bed: &Bed, dataset: &Dataset) -> Vec<(usize, u8)> {
    bed.pool.commit().unwrap();
    let of = |extent: &Extent| (bed.pool.store().places_of(extent.ptr.id).unwrap().len(), extent.copies);
    let mut found: Vec<_> = extents(dataset).iter().map(of).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn set(bed: &Bed, dataset: &Arc<Dataset>, copies: u8) {
    bed.pool.set_property(dataset.id(), "copies", &copies.to_string()).unwrap();
}

#[test]
fn quotas_and_sizes_count_all_places_and_a_removal_gives_all_back() {
    let bed = Bed::new(&[("recordsize", "16384")]);
    let mut room = Vec::new();
    for copies in 1..=3u8 {
        let name = format!("tank/d{copies}");
        let (home, root) = dataset(&bed, &name, &[("refquota", "6291456"), ("copies", &copies.to_string())]);
        let node = bed.file(root, "file");
        let mut written = 0;
        let refused = loop {
            match bed.mount.write(node, Handle(0), written, &noise(written, 64 * KIB), false) {
                Ok(len) => written += u64::from(len),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused, FsError::Quota);
        bed.pool.commit().unwrap();
        // Nothing comes later that was not said at the write.
        bed.mount.flush(node, Handle(0)).unwrap();
        let used = bed.pool.share(home.id()).used;
        assert!(used <= 6 * MIB && used > 6 * MIB - 512 * KIB, "{used}");
        assert_eq!(places(&bed, &home), [(copies.into(), copies)]);
        room.push(written);
        bed.mount.unlink(root, b"file").unwrap();
        while bed.mount.reap_step(1000).unwrap() {}
        bed.pool.commit().unwrap();
        assert_eq!(bed.pool.share(home.id()).used, 0);
    }
    assert!(
        room[0].abs_diff(2 * room[1]) < 256 * KIB && room[0].abs_diff(3 * room[2]) < 256 * KIB,
        "{room:?}"
    );
    trace(&bed);
}

#[test]
fn all_that_was_accepted_of_a_full_pool_is_stored_at_all_places() {
    for copies in 1..=3u8 {
        let bed = Bed::with_layout("single", &[ByteLen::new(96 << 20)], &[("recordsize", "16384")]);
        let home = bed.pool.dataset(ROOT_DATASET).unwrap();
        set(&bed, &home, copies);
        let node = bed.file(ROOT, "file");
        let mut written = 0;
        while let Ok(len) = bed.mount.write(node, Handle(0), written, &noise(written, 48 * KIB), false) {
            written += u64::from(len);
        }
        bed.pool.commit().unwrap();
        bed.mount.fsync(node, Handle(0), false).unwrap();
        let expected = 75 * MIB / u64::from(copies);
        assert!(written < expected && written > expected * 6 / 10, "{written} at {copies} places");
        assert_eq!(places(&bed, &home), [(copies.into(), copies)]);
        bed.check();
        // It can be written again, and goes.
        for at in (0..written).step_by(1 << 20) {
            bed.write(node, at, &noise(at + 1, 16 * KIB));
        }
        bed.pool.commit().unwrap();
        bed.mount.unlink(ROOT, b"file").unwrap();
        while bed.mount.reap_step(1000).unwrap() {}
        for _ in 0..4 {
            bed.pool.commit().unwrap();
            while bed.pool.free_step(1000).unwrap() {}
        }
        bed.check();
        assert_eq!(home.usage().referenced, 0);
    }
}

#[test]
fn data_that_an_fsync_logged_is_stored_at_all_places_after_a_crash() {
    let bed =
        Bed::with_layout("single", &[ByteLen::new(128 << 20)], &[("copies", "3"), ("recordsize", "16384")]);
    let node = bed.file(ROOT, "file");
    bed.fsync(node);
    let content = noise(1, 100_000);
    bed.write(node, 0, &content);
    bed.fsync(node);
    let trace = bed.sim.trace();
    let clock = Arc::clone(&bed.clock);
    drop(bed);
    let sim = SimWorld::from_images(trace.crash_images(trace.len(), Survival::DropAll));
    let bed = Bed::import(sim, clock, 7);
    assert!(bed.content(bed.find("file").unwrap().node) == content);
    let home = bed.pool.dataset(ROOT_DATASET).unwrap();
    assert_eq!(places(&bed, &home), [(3, 3)]);
    bed.check();
}

#[test]
fn a_copy_goes_through_memory_where_the_target_asks_for_more_places() {
    let bed = Bed::new(&[("recordsize", "16384")]);
    let (once, from) = dataset(&bed, "tank/once", &[]);
    let (twice, to) = dataset(&bed, "tank/twice", &[("copies", "2")]);
    let content = noise(1, 200_000);
    let node = file(&bed, from, "a", &content);
    bed.pool.commit().unwrap();
    let target = bed.file(to, "b");
    let mut done = 0;
    while done < content.len() as u64 {
        let copied = bed.mount.copy_range((node, done), (target, done), u64::MAX).unwrap();
        assert!(copied.bytes > 0 && copied.shared == 0, "{copied:?}");
        done += copied.bytes;
    }
    assert!(bed.content(target) == content);
    assert_eq!((places(&bed, &once), places(&bed, &twice)), (vec![(1, 1)], vec![(2, 2)]));
    // The other way, and within: shared, and charged as it is stored.
    let (back, again) = (bed.file(from, "c"), bed.file(to, "d"));
    for target in [back, again] {
        let copied = bed.mount.copy_range((self::at(&bed, "twice/b"), 0), (target, 0), u64::MAX).unwrap();
        assert_eq!(copied.shared, content.len() as u64);
        assert!(bed.content(target) == content);
    }
    assert_eq!((places(&bed, &once), places(&bed, &twice)), (vec![(1, 1), (2, 2)], vec![(2, 2)]));
    bed.check();
    let bed = bed.reopen(3);
    bed.check();
}

#[test]
fn a_copy_asks_the_map_for_places_and_not_the_extent() {
    let bed = Bed::new(&[("recordsize", "16384")]);
    let (home, root) = dataset(&bed, "tank/home", &[("copies", "2")]);
    let content = noise(1, 10 * 16 * KIB);
    let node = file(&bed, root, "a", &content);
    bed.pool.commit().unwrap();
    set(&bed, &home, 1);
    bed.upkeep.passes.start(larder_upkeep::Task::Rewrite, vec![home.id()], 0).unwrap();
    while bed.upkeep.passes.step(1 << 20).unwrap().is_some() {}
    assert_eq!(places(&bed, &home), [(1, 2)], "charged as it was written");
    let (twice, to) = dataset(&bed, "tank/twice", &[("copies", "2")]);
    let target = bed.file(to, "b");
    let copied = bed.mount.copy_range((node, 0), (target, 0), content.len() as u64).unwrap();
    assert_eq!(copied.shared, 0);
    assert!(copied.bytes > 0);
    assert_eq!(places(&bed, &twice), [(2, 2)]);
    bed.check();
}

fn at(bed: &Bed, path: &str) -> NodeId {
    bed.find(path).unwrap().node
}

#[test]
fn duplicates_are_shared_with_what_has_as_many_places() {
    for word in ["on", "verify"] {
        let bed = Bed::new(&[("recordsize", "16384"), ("dedup", word)]);
        let (home, root) = dataset(&bed, "tank/home", &[]);
        let content = noise(1, 10 * 16 * KIB);
        file(&bed, root, "once", &content);
        bed.pool.commit().unwrap();
        let one = extents(&home)[0].ptr.place.footprint();
        set(&bed, &home, 2);
        for (name, stored) in [("twice", 20), ("again", 0)] {
            let before = bed.pool.writes().stored;
            file(&bed, root, name, &content);
            bed.pool.commit().unwrap();
            let wanted = stored * u64::from(one);
            assert!((bed.pool.writes().stored - before).abs_diff(wanted) < 200, "{name} with {word}");
        }
        assert_eq!(places(&bed, &home), [(1, 1), (2, 2)]);
        set(&bed, &home, 1);
        file(&bed, root, "later", &content);
        let found = bed.pool.dataset(home.id()).unwrap();
        // A record that has more is as good.
        let before = bed.pool.blocks().unwrap().len();
        bed.pool.commit().unwrap();
        assert!(bed.pool.blocks().unwrap().len() <= before + 2);
        drop(found);
        trace(&bed);
        for name in ["once", "twice", "again", "later"] {
            assert!(bed.content(at(&bed, &format!("home/{name}"))) == content);
            bed.mount.unlink(root, name.as_bytes()).unwrap();
        }
        while bed.mount.reap_step(1000).unwrap() {}
        trace(&bed);
        assert_eq!(bed.pool.dataset(home.id()).unwrap().usage().referenced, 0);
    }
}

#[test]
fn rewriting_brings_older_records_to_what_is_asked_for_now() {
    let bed = Bed::new(&[("recordsize", "16384")]);
    let (home, root) = dataset(&bed, "tank/home", &[]);
    let content = noise(1, 40 * 16 * KIB);
    file(&bed, root, "old", &content);
    bed.pool.commit().unwrap();
    bed.pool.snapshot(home.id(), "before").unwrap();
    let rewrite = || {
        bed.upkeep.passes.start(larder_upkeep::Task::Rewrite, vec![home.id()], 0).unwrap();
        while bed.upkeep.passes.step(1 << 20).unwrap().is_some() {}
        let tally = bed.upkeep.passes.last().unwrap().tally;
        bed.pool.commit().unwrap();
        bed.check();
        (tally.changed, tally.unread)
    };
    for copies in [2, 3, 1, 3, 2, 1] {
        set(&bed, &home, copies);
        let used = home.usage().referenced;
        assert_eq!(rewrite(), (40, 0), "to {copies}");
        assert_eq!(places(&bed, &home), [(copies.into(), 1)], "charged as it was written");
        assert_eq!((home.usage().referenced, rewrite()), (used, (0, 0)));
        assert!(bed.content(at(&bed, "home/old")) == content);
    }
    // Records that others may name keep the places that these may count on.
    set(&bed, &home, 2);
    rewrite();
    let (_, other) = dataset(&bed, "tank/other", &[]);
    let target = bed.file(other, "b");
    let copied = bed.mount.copy_range((at(&bed, "home/old"), 0), (target, 0), 16 * KIB).unwrap();
    assert_eq!(copied.shared, 16 * KIB);
    bed.pool.commit().unwrap();
    set(&bed, &home, 1);
    assert_eq!(rewrite(), (39, 0));
    assert_eq!(places(&bed, &home), [(1, 1), (2, 1)]);
    let bed = bed.reopen(5);
    bed.check();
    show(&bed, &bed.pool.dataset(home.id()).unwrap());
    assert!(bed.content(at(&bed, "home/old")) == content);
}

#[test]
fn what_was_accepted_for_one_place_is_stored_at_one_when_more_are_asked_for_later() {
    let bed = Bed::with_layout("single", &[ByteLen::new(96 << 20)], &[("recordsize", "16384")]);
    let (home, root) = dataset(&bed, "tank/home", &[("refquota", "9437184")]);
    let node = bed.file(root, "file");
    bed.pool.commit().unwrap();
    let content = noise(1, 8 * MIB);
    bed.write(node, 0, &content);
    set(&bed, &home, 2);
    bed.pool.commit().unwrap();
    assert_eq!(places(&bed, &home), [(1, 1)]);
    let used = bed.pool.share(home.id()).used;
    assert!(used <= 9 * MIB, "{used} are more than the quota");
    // A write beside dirty data stores that first, and gets as many places as are asked for by then.
    set(&bed, &home, 1);
    bed.write(node, 0, &noise(2, 16 * KIB));
    set(&bed, &home, 3);
    bed.write(node, 16 * KIB, &noise(3, 16 * KIB));
    assert_eq!(places(&bed, &home), [(1, 1), (3, 3)]);
    // And the fewer that are asked for.
    bed.write(node, 0, &noise(4, 16 * KIB));
    set(&bed, &home, 1);
    bed.pool.commit().unwrap();
    let first = extents(&home)[0];
    assert_eq!(first.copies, 1);
    bed.check();
}

#[test]
fn a_neighbourhood_does_not_hide_the_twin_that_has_enough_places() {
    for word in ["on", "verify"] {
        let bed = Bed::new(&[("recordsize", "16384"), ("dedup", word)]);
        let (home, root) = dataset(&bed, "tank/home", &[]);
        let (content, beside) = (noise(1, 10 * 16 * KIB), noise(2, 16 * KIB));
        file(&bed, root, "once", &content);
        file(&bed, root, "beside", &beside);
        bed.pool.commit().unwrap();
        set(&bed, &home, 2);
        file(&bed, root, "twice", &content);
        bed.pool.commit().unwrap();
        let bed = bed.reopen(3);
        let home = bed.pool.dataset(home.id()).unwrap();
        let root = show(&bed, &home);
        while bed.pool.catch_up().unwrap().is_some() {}
        for turn in 0..3 {
            // Around the duplicate lie records of which there is another with more places.
            set(&bed, &home, 1);
            let before = bed.pool.writes().stored;
            file(&bed, root, &format!("beside{turn}"), &beside);
            bed.pool.commit().unwrap();
            assert!(bed.pool.writes().stored - before < 200, "turn {turn} with {word}");
            set(&bed, &home, 2);
            let before = bed.pool.writes().stored;
            file(&bed, root, &format!("again{turn}"), &content);
            bed.pool.commit().unwrap();
            let stored = bed.pool.writes().stored - before;
            assert!(stored < 200, "{stored} bytes are there twice, turn {turn} with {word}");
        }
        assert_eq!(places(&bed, &home), [(1, 1), (2, 2)]);
        bed.check();
    }
}

fn rewrite_step(bed: &Bed) -> bool {
    bed.upkeep.passes.step(64 * KIB).unwrap().is_some()
}

#[test]
fn a_rewrite_meets_what_was_accepted_before_and_begins_anew_when_more_is_asked_for() {
    let bed = Bed::new(&[("recordsize", "16384")]);
    let (home, root) = dataset(&bed, "tank/home", &[]);
    let (other, beside) = dataset(&bed, "tank/other", &[]);
    let both = vec![home.id(), other.id()];
    let start = || bed.upkeep.passes.start(larder_upkeep::Task::Rewrite, both.clone(), 0).unwrap();
    file(&bed, root, "first", &noise(1, 20 * 16 * KIB));
    file(&bed, beside, "second", &noise(2, 20 * 16 * KIB));
    bed.pool.commit().unwrap();
    [&home, &other].into_iter().for_each(|of| set(&bed, of, 2));
    start();
    while places(&bed, &other) == [(1, 1)] {
        assert!(rewrite_step(&bed));
    }
    assert_eq!(places(&bed, &home), [(2, 1)]);
    assert_eq!(places(&bed, &other), [(1, 1), (2, 1)]);
    bed.upkeep.passes.stop().unwrap();
    // The same is asked for: it goes on.
    let before = bed.upkeep.passes.last().unwrap();
    start();
    assert_eq!(bed.upkeep.passes.last().unwrap().examined, before.examined);
    bed.upkeep.passes.stop().unwrap();
    [&home, &other].into_iter().for_each(|of| set(&bed, of, 3));
    let bed = bed.reopen(3);
    bed.upkeep.passes.start(larder_upkeep::Task::Rewrite, both, 0).unwrap();
    while rewrite_step(&bed) {}
    let [home, other] = [&home, &other].map(|of| bed.pool.dataset(of.id()).unwrap());
    assert_eq!(places(&bed, &home), [(3, 1)]);
    assert_eq!(places(&bed, &other), [(3, 1)]);
    set(&bed, &home, 1);
    file(&bed, show(&bed, &home), "third", &noise(3, 40 * 16 * KIB));
    set(&bed, &home, 3);
    bed.upkeep.passes.start(larder_upkeep::Task::Rewrite, vec![home.id()], 0).unwrap();
    while rewrite_step(&bed) {}
    assert_eq!(places(&bed, &home), [(3, 1)]);
    bed.check();
}
