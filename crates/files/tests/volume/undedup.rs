//! The way back from sharing: live files get blocks of their own, and nothing else changes.

use crate::bed::{Bed, ROOT};
use crate::quota::{dataset, show};
use crate::share::{file, trace};
use larder_device::SeededEntropy;
use larder_files::*;
use larder_format::DatasetId;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_pool::{Look, ROOT_DATASET};
use larder_upkeep::{Pass, PassState, Task};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

const RECORD: usize = 4096;

fn noise(seed: u64, records: usize) -> Vec<u8> {
    SeededEntropy::new(seed).bytes(records * RECORD)
}

/// Runs a pass to its end.
fn pass(bed: &Bed, task: Task, datasets: &[DatasetId]) -> Pass {
    bed.pool.commit().unwrap();
    bed.upkeep.passes.start(task, datasets.to_vec(), 0).unwrap();
    for _ in 0..1000 {
        if bed.upkeep.passes.step(64 << 10).unwrap().is_none() {
            break;
        }
    }
    bed.upkeep.passes.last().unwrap()
}

/// The blocks that extents of a dataset's head name, each as often as it is named.
fn named(bed: &Bed, id: DatasetId) -> Vec<u64> {
    let (dataset, mut found) = (bed.pool.dataset(id).unwrap(), Vec::new());
    let view = dataset.view().unwrap();
    view.scan(&Key::MIN, &mut |key, value| {
        if key.kind == EXTENT {
            found.push(Extent::decode(value).unwrap().ptr.id.get());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

#[test]
fn what_is_shared_by_hits_copies_and_aliases_is_not_any_more_and_a_snapshot_keeps_it() {
    let bed = Bed::new(&[("recordsize", "4096"), ("dedup", "on"), ("compression", "gzip-9")]);
    let text: Vec<u8> = (0..20 * RECORD).map(|at| (at / 64) as u8).collect();
    let all = [
        file(&bed, ROOT, "first", &noise(1, 30)),
        file(&bed, ROOT, "hit", &noise(1, 30)),
        file(&bed, ROOT, "text", &text),
        file(&bed, ROOT, "again", &text),
        bed.file(ROOT, "copy"),
        bed.file(ROOT, "part"),
    ];
    // As a copy, and a part of a record.
    bed.mount.copy_range((all[0], 0), (all[4], 0), u64::MAX).unwrap();
    bed.mount.copy_range((all[2], 0), (all[5], 0), RECORD as u64 + 77).unwrap();
    bed.pool.commit().unwrap();
    bed.pool.set_property(ROOT_DATASET, "dedup", "off").unwrap();
    // By an alias.
    let late = file(&bed, ROOT, "late", &noise(1, 30));
    let shared = pass(&bed, Task::Dedup, &[ROOT_DATASET]);
    assert!(shared.tally.changed >= 30, "{shared:?}");
    bed.pool.snapshot(ROOT_DATASET, "before").unwrap();
    let before: BTreeSet<u64> = named(&bed, ROOT_DATASET).into_iter().collect();
    let contents: Vec<_> = all.iter().chain([&late]).map(|node| bed.content(*node)).collect();
    let times: Vec<_> = all.iter().map(|node| bed.mount.getattr(*node).unwrap()).collect();

    let told = bed.upkeep.passes.estimate_undedup(&[ROOT_DATASET]).unwrap().tally;
    let done = pass(&bed, Task::Undedup, &[ROOT_DATASET]);
    assert_eq!((done.state, done.tally.unread), (PassState::Done, 0), "{done:?}");
    assert_eq!((done.tally.changed, done.tally.before), (told.changed, told.before));
    assert!(done.tally.after <= told.after && told.after <= done.tally.after + 8192, "{done:?}, {told:?}");
    let after = named(&bed, ROOT_DATASET);
    let each: BTreeSet<u64> = after.iter().copied().collect();
    assert_eq!(each.len(), after.len(), "no block is named twice");
    assert!(each.is_disjoint(&before), "all of these were shared");
    let same = |bed: &Bed| {
        let now = all.iter().chain([&late]).map(|node| bed.content(*node));
        assert!(now.eq(contents.iter().cloned()), "files are what they were");
    };
    same(&bed);
    for (node, before) in all.iter().zip(&times) {
        let now = bed.mount.getattr(*node).unwrap();
        assert_eq!((now.size, now.mtime, now.ctime), (before.size, before.mtime, before.ctime));
        // A part of a record had the whole of its block.
        assert!(now.blocks == before.blocks || *node == all[5] && now.blocks < before.blocks);
    }
    trace(&bed);
    let bed = bed.reopen(2);
    same(&bed);
    bed.pool.destroy_snapshot(ROOT_DATASET, "before").unwrap();
    bed.pool.commit().unwrap();
    trace(&bed);
    assert_eq!(bed.upkeep.gc.findings().unwrap().fingerprinted, (0, 0), "no record is in the index");
    assert_eq!(bed.pool.index_footprints().all().count(), 0, "nor is there one");
    same(&bed);
    bed.check_tree();
}

#[test]
fn another_dataset_goes_on_finding_what_it_has() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    let (first, second) =
        (dataset(&bed, "tank/first", &[("dedup", "on")]), dataset(&bed, "tank/second", &[("dedup", "on")]));
    file(&bed, first.1, "shared", &noise(1, 20));
    file(&bed, first.1, "own", &noise(2, 20));
    file(&bed, second.1, "shared", &noise(1, 20));
    bed.pool.commit().unwrap();
    bed.pool.set_property(first.0.id(), "dedup", "off").unwrap();
    assert_eq!(pass(&bed, Task::Undedup, &[first.0.id()]).tally.changed, 20);
    let stored = || {
        bed.pool.commit().unwrap();
        bed.pool.writes().stored
    };
    let before = stored();
    file(&bed, second.1, "again", &noise(1, 20));
    let found = stored() - before;
    assert!(found < 20_000, "{found} bytes were stored of what it has");
    file(&bed, second.1, "not there", &noise(2, 20));
    assert!(stored() - before - found > 80_000, "what was not shared is found no more");
    let mut all = named(&bed, first.0.id());
    all.extend(named(&bed, second.0.id()).into_iter().collect::<BTreeSet<_>>());
    let count = all.len();
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), count, "nothing is shared between them");
    trace(&bed);
}

#[test]
fn it_waits_for_a_dataset_that_is_not_mounted_for_now_and_ends_where_dedup_is_on_again() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    let (made, top) = dataset(&bed, "tank/first", &[("dedup", "on")]);
    file(&bed, top, "one", &noise(1, 40));
    file(&bed, top, "two", &noise(1, 40));
    bed.pool.commit().unwrap();
    bed.pool.set_property(made.id(), "dedup", "off").unwrap();
    let passes = &bed.upkeep.passes;
    passes.start(Task::Undedup, vec![made.id()], 0).unwrap();
    assert!(passes.step(20 * RECORD as u64).unwrap().is_some());
    bed.mount.detach(made.id()).unwrap();
    for _ in 0..10 {
        assert_eq!(passes.step(20 * RECORD as u64).unwrap(), None);
    }
    assert_eq!(passes.last().unwrap().state, PassState::Active);
    bed.pool.commit().unwrap();
    show(&bed, &made);
    assert!(passes.step(20 * RECORD as u64).unwrap().is_some());
    bed.pool.set_property(made.id(), "dedup", "on").unwrap();
    passes.step(20 * RECORD as u64).unwrap();
    assert_eq!(passes.last().unwrap().state, PassState::Stopped);
    bed.pool.set_property(made.id(), "dedup", "off").unwrap();
    assert_eq!(pass(&bed, Task::Undedup, &[made.id()]).state, PassState::Done);
    let all = named(&bed, made.id());
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 80);
    trace(&bed);
}

#[test]
fn a_clone_is_charged_for_what_becomes_its_own() {
    let bed = Bed::new(&[("recordsize", "4096"), ("compression", "off")]);
    let (made, top) = dataset(&bed, "tank/first", &[("dedup", "on")]);
    file(&bed, top, "one", &noise(1, 100));
    file(&bed, top, "two", &noise(1, 100));
    bed.pool.snapshot(made.id(), "taken").unwrap();
    let quota = [("quota".to_owned(), "300000".to_owned()), ("dedup".to_owned(), "off".to_owned())];
    let clone =
        bed.pool.clone_snapshot(made.id(), "taken", "tank/clone", quota.into_iter().collect()).unwrap();
    show(&bed, &clone);
    let full = pass(&bed, Task::Undedup, &[clone.id()]);
    assert_eq!(full.state, PassState::Full, "{full:?}");
    let own = clone.usage().own;
    assert!(own < 400_000, "{own} of a quota of 300,000");
    bed.pool.set_property(clone.id(), "quota", "0").unwrap();
    assert_eq!(pass(&bed, Task::Undedup, &[clone.id()]).state, PassState::Done);
    assert!(clone.usage().own > 800_000);
    trace(&bed);
}

#[test]
fn blocks_of_their_own_at_more_places_do_not_pass_a_quota() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    let (home, root) = dataset(&bed, "tank/home", &[("refquota", "1048576")]);
    let node = file(&bed, root, "a", &noise(1, 80));
    let copy = bed.file(root, "b");
    bed.mount.copy_range((node, 0), (copy, 0), u64::MAX).unwrap();
    bed.pool.commit().unwrap();
    bed.pool.set_property(home.id(), "copies", "3").unwrap();
    let done = pass(&bed, Task::Undedup, &[home.id()]);
    let used = bed.pool.share(home.id()).used;
    assert!(used <= 1 << 20, "{used} with {done:?}");
}
