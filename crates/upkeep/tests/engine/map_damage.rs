//! Pages of the block map that cannot be read: each costs its range of ids, and nothing else.

use crate::common::hooked::hooked;
use crate::common::*;
use larder_device::Request;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::run::{PageRef, RunDescriptor};
use larder_format::{BlockId, BlockPtr, ByteLen, DeviceIndex, GroupIndex};
use larder_pool::{Look, Pool, PoolError, ROOT_DATASET};
use larder_sim::{Fault, SimClock, SimWorld};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// First sector of a block on the only device.
fn sector_of(pool: &Pool, ptr: BlockPtr) -> Range<u64> {
    let segments = pool.store().segments();
    let segment = segments.iter().find(|segment| segment.id == ptr.place.segment).unwrap();
    let slot = segment.slots[usize::from(ptr.place.column)];
    let at = pool.store().members().get(slot.device).slot_offset(slot.index, ptr.place.offset).get();
    let at = at & !4095;
    at..at + 4096
}

/// First entry page of each run, newest first; the runs are so small that their descriptors name all their pages.
fn entry_pages(pool: &Pool) -> Vec<PageRef> {
    let map = pool.store().map.lock();
    map.descriptors().map(|run| (run.height == 0).then(|| run.refs[0]).expect("a small run")).collect()
}

fn written() -> (SimWorld, Kept, Model) {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (pool, mut model) = (create(&sim, "single"), Model::new());
    for round in 0..3 {
        commit(&pool, &mut model, &files(10 + 10 * round, 5, 1));
    }
    (sim, pool, model)
}

#[test]
fn an_import_goes_on_without_a_page_of_the_newest_run() {
    let (sim, pool, model) = written();
    pool.commit_export().unwrap();
    let lost = sector_of(&pool, entry_pages(&pool)[0].ptr);
    drop(pool);
    sim.device(0).inject(Fault::FailReads(lost));
    verify(&open(&sim, 2), &model);
}

#[test]
fn commits_go_on_when_a_page_that_a_merge_needs_cannot_be_read() {
    let (sim, pool, mut model) = written();
    pool.commit_export().unwrap();
    let (page, lost) = (entry_pages(&pool)[1], sector_of(&pool, entry_pages(&pool)[1].ptr));
    drop(pool);
    sim.device(0).inject(Fault::FailReads(lost));
    let pool = open(&sim, 2);
    for round in 0..80 {
        commit(&pool, &mut model, &files(100 + 5 * round, 3, 1));
    }
    assert!(entry_pages(&pool).iter().any(|other| other.ptr == page.ptr), "its run stays");
    assert!(entry_pages(&pool).len() < 24, "the others are merged: {}", entry_pages(&pool).len());
    verify(&pool, &model);
    drop(pool);
    verify(&open(&sim, 3), &model);
}

fn extent_of(pool: &Pool, inode: u64) -> Extent {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let view = dataset.view().unwrap();
    Extent::decode(&view.get(&Key::new(inode, EXTENT, 0)).unwrap().expect("the file is there")).unwrap()
}

fn remove(pool: &Pool, inodes: &[u64]) {
    let extents: Vec<_> = inodes.iter().map(|&inode| extent_of(pool, inode)).collect();
    let (dataset, op) = (pool.dataset(ROOT_DATASET).unwrap(), pool.enter().unwrap());
    let update = dataset.update(&op, |tree| {
        for (&inode, extent) in inodes.iter().zip(&extents) {
            tree.remove(&Key::new(inode, EXTENT, 0))?;
            tree.drop_block(extent);
        }
        Ok::<_, PoolError>(())
    });
    update.unwrap();
}

/// Names the content of a file once more.
fn share(pool: &Pool, inode: u64, as_inode: u64) {
    let extent = extent_of(pool, inode);
    let (dataset, op) = (pool.dataset(ROOT_DATASET).unwrap(), pool.enter().unwrap());
    let update = dataset.update(&op, |tree| {
        tree.insert(Key::new(as_inode, EXTENT, 0), &extent.encode())?;
        tree.share_block(&extent);
        Ok::<_, PoolError>(())
    });
    update.unwrap();
}

fn is_known(pool: &Pool, id: BlockId) -> bool {
    pool.store().look_up(id, |look_up, io| look_up.entry(io)).unwrap().is_some()
}

#[test]
fn what_is_dropped_is_freed_beside_ids_on_a_lost_page() {
    let (sim, pool, _) = written();
    share(&pool, 30, 50);
    pool.commit_export().unwrap();
    let runs = entry_pages(&pool);
    let lost = sector_of(&pool, runs[runs.len() - 2].ptr);
    drop(pool);
    sim.device(0).inject(Fault::FailReads(lost));
    let pool = open(&sim, 2);
    let ids = |inodes: &[u64]| inodes.iter().map(|&inode| extent_of(&pool, inode).ptr.id).collect::<Vec<_>>();
    let known = |id: BlockId| pool.store().look_up(id, |look_up, io| look_up.entry(io));
    let page: Vec<_> = (10..15).chain(20..25).chain(31..35).collect();
    let (stuck, others): (Vec<u64>, Vec<u64>) =
        page.into_iter().partition(|inode| known(ids(&[*inode])[0]).is_err());
    assert!(!stuck.is_empty() && !others.is_empty(), "{stuck:?}, {others:?}");
    let (stuck_ids, other_ids) = (ids(&stuck), ids(&others));
    remove(&pool, &stuck[..1]);
    remove(&pool, &others);
    pool.commit().unwrap();
    while pool.free_step(64).unwrap() {}
    assert!(other_ids.iter().all(|id| !is_known(&pool, *id)), "they are free");
    pool.commit().unwrap();
    drop(pool);
    // Once more, with none in memory: the map is swept.
    let pool = open(&sim, 3);
    while pool.free_step(64).unwrap() {}
    pool.commit().unwrap();
    drop(pool);
    let mended = SimWorld::from_images(sim.images());
    let pool = open(&mended, 4);
    assert!(is_known(&pool, stuck_ids[0]), "its mark waits");
    while pool.free_step(64).unwrap() {}
    assert!(!is_known(&pool, stuck_ids[0]));
    assert!(stuck_ids[1..].iter().all(|id| is_known(&pool, *id)));
    pool.commit().unwrap();
    assert_whole(&pool, "after all");
}

/// Nobody can read the page of the map that says where a file's content is, from the next import on.
fn lose_page_of(sim: &SimWorld, pool: &Pool, inode: u64) {
    let id = extent_of(pool, inode).ptr.id;
    let page = {
        let map = pool.store().map.lock();
        // Newer ones may have ids before and behind it.
        let covers = map.descriptors().filter(|run| (run.first..=run.last).contains(&id)).last();
        covers.expect("a run has it").refs[0].ptr
    };
    let segments = pool.store().segments();
    let segment = segments.iter().find(|segment| segment.id == page.place.segment).unwrap();
    for slot in &segment.slots {
        let at = pool.store().members().get(slot.device).slot_offset(slot.index, page.place.offset).get();
        let at = at & !4095;
        sim.device(slot.device.get().into()).inject(Fault::FailReads(at..at + 4096));
    }
}

#[test]
fn the_cleaner_moves_what_it_knows_beside_ids_on_a_lost_page_and_leaves_the_rest_alone() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (pool, mut model) = (create(&sim, "single"), Model::new());
    for round in 0..3 {
        commit(&pool, &mut model, &files(10 + 10 * round, 9, 1));
    }
    let segment = extent_of(&pool, 10).ptr.place.segment;
    assert_eq!(extent_of(&pool, 30).ptr.place.segment, segment, "all is in one segment");
    pool.commit_export().unwrap();
    lose_page_of(&sim, &pool, 20);
    drop(pool);
    let pool = open(&sim, 2);
    // The segment is worth cleaning.
    commit(&pool, &mut model, &files(30, 4, 2));
    pool.store().core.lock().close_streams(GroupIndex::new(0));
    let live_in = || {
        let segments = pool.store().segments();
        segments.iter().find(|of| of.id == segment).map_or(0, |of| of.live_blocks)
    };
    let before = live_in();
    let mut steps = 0;
    while pool.clean_step(true).unwrap().is_some() || pool.upkeep.read_repair.step().unwrap() > 0 {
        steps += 1;
        assert!(steps < 200, "it chooses the same segment again and again");
    }
    assert!((1..before / 2).contains(&live_in()), "{} of {before} are left", live_in());
    pool.commit().unwrap();
    verify(&pool, &model);
    drop(pool);
    let mended = open(&SimWorld::from_images(sim.images()), 3);
    while mended.clean_step(true).unwrap().is_some() {}
    mended.commit().unwrap();
    verify(&mended, &model);
    assert_whole(&mended, "after all");
}

#[test]
fn the_cleaner_tries_a_lost_page_once_for_all_stripes_of_a_segment() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (pool, mut model) = (create(&sim, "single"), Model::new());
    for round in 0..40 {
        commit(&pool, &mut model, &files(10 + 2 * round, 2, 1));
    }
    let pages = entry_pages(&pool);
    let ids: Vec<_> = (10..90).map(|inode| extent_of(&pool, inode).ptr.id).collect();
    // Of merged runs, the one with most of them.
    let (with_ids, page) = {
        let map = pool.store().map.lock();
        let with = |of: &RunDescriptor| ids.iter().filter(|&&id| (of.first..=of.last).contains(&id)).count();
        let spans = map.descriptors().map(with);
        spans.zip(&pages).map(|(count, page)| (count, page.ptr)).max_by_key(|(count, _)| *count).unwrap()
    };
    assert!(with_ids > 20, "{with_ids} ids are in the run");
    let range = sector_of(&pool, page);
    pool.commit_export().unwrap();
    drop(pool);
    let reads = Arc::new(AtomicU64::new(0));
    sim.device(0).inject(Fault::FailReads(range.clone()));
    let (device, hook) = hooked(Arc::new(sim.device(0)));
    let count = Arc::clone(&reads);
    hook.set(move |request| {
        if let Request::Read { offset, len } = request
            && offset.get() < range.end
            && range.start < offset.get() + len.get()
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let pool = import_from(vec![device], 2).unwrap();
    replay(&pool);
    commit(&pool, &mut model, &files(200, 1, 1));
    let mut unknown = 0;
    reads.store(0, Ordering::Relaxed);
    for id in ids {
        unknown += u64::from(pool.store().look_up(id, |look_up, io| look_up.entry(io)).is_err());
    }
    assert!(unknown > 20, "{unknown} ids cannot be found");
    let once = reads.swap(0, Ordering::Relaxed) / unknown;
    let segments: BTreeSet<_> =
        model.keys().map(|&inode| extent_of(&pool, inode).ptr.place.segment).collect();
    remove(&pool, &[10]);
    pool.commit().unwrap();
    while pool.free_step(64).unwrap() {}
    pool.store().core.lock().close_streams(GroupIndex::new(0));
    reads.store(0, Ordering::Relaxed);
    while pool.clean_step(true).unwrap().is_some() {}
    let reads = reads.load(Ordering::Relaxed);
    assert!(reads > 0, "segments with ids on the page are cleaned");
    assert!(reads <= once * segments.len() as u64, "{reads} reads, {once} of them try it once");
}

#[test]
fn damage_beside_ids_on_a_lost_page_is_looked_into() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (pool, mut model) = (create(&sim, "single"), Model::new());
    for round in 0..3 {
        commit(&pool, &mut model, &files(10 + 10 * round, 9, 1));
    }
    let segment = extent_of(&pool, 20).ptr.place.segment;
    let hidden = extent_of(&pool, 12).ptr;
    assert_eq!(hidden.place.segment, segment, "all is in one segment");
    pool.commit_export().unwrap();
    lose_page_of(&sim, &pool, 20);
    let segments = pool.store().segments();
    let slot = segments.iter().find(|of| of.id == segment).unwrap().slots[usize::from(hidden.place.column)];
    let at = pool.store().members().get(slot.device).slot_offset(slot.index, hidden.place.offset);
    sim.device(0).flip_bits(at, 16, 1);
    drop(pool);
    let pool = open(&sim, 2);
    commit(&pool, &mut model, &files(30, 4, 2));
    pool.store().core.lock().close_streams(GroupIndex::new(0));
    while pool.clean_step(true).unwrap().is_some() {}
    assert_eq!(pool.store().suspects.take_segment(), Some(segment), "its header is lost, nobody met it");
}

#[test]
fn a_device_that_is_to_leave_is_tried_after_a_rest_when_a_page_of_the_map_is_lost() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20); 2]);
    let (pool, mut model) = (create(&sim, "mirror"), Model::new());
    for round in 0..3 {
        commit(&pool, &mut model, &files(10 + 10 * round, 5, 1));
    }
    pool.commit_export().unwrap();
    lose_page_of(&sim, &pool, 20);
    drop(pool);
    let clock = Arc::new(SimClock::new());
    let pool = open_by(&clock, &sim, 2);
    pool.upkeep.reshape.detach(DeviceIndex::new(0)).unwrap();
    let until_it_rests = || {
        let mut steps = 0;
        while pool.upkeep.reshape.step(256 << 10).unwrap() {
            steps += 1;
            assert!(steps < 500, "it does not end: {} bytes left", pool.upkeep.reshape.left());
        }
        steps
    };
    until_it_rests();
    assert!(pool.upkeep.reshape.left() > 0);
    assert!(!pool.upkeep.reshape.is_due(), "it rests");
    clock.advance(Duration::from_secs(60));
    assert!(pool.upkeep.reshape.is_due(), "it is tried again");
    assert_eq!(until_it_rests(), 0);
    let told = pool.events(0).into_iter().filter(|(_, event)| event.text.contains("cannot be emptied"));
    assert_eq!(told.count(), 1);
    assert!(pool.upkeep.reshape.stuck().is_some_and(|why| why.contains("cannot be read")));
    verify(&pool, &model);
    pool.commit_export().unwrap();
    drop(pool);
    let pool = open(&SimWorld::from_images(sim.images()), 3);
    while pool.upkeep.reshape.step(256 << 10).unwrap() {}
    assert_eq!((pool.upkeep.reshape.left(), pool.store().members().iter().len()), (0, 1));
    verify(&pool, &model);
    assert_whole(&pool, "without that device");
}

#[test]
fn the_dedup_index_is_filled_and_rebuilt_past_a_lost_page() {
    let (sim, pool, mut model) = written();
    // Records have fingerprints from now on.
    pool.set_property(ROOT_DATASET, "dedup", "on").unwrap();
    for round in 4..6 {
        commit(&pool, &mut model, &files(10 + 10 * round, 5, 1));
    }
    pool.commit_export().unwrap();
    lose_page_of(&sim, &pool, 20);
    lose_page_of(&sim, &pool, 60);
    drop(pool);
    let pool = open(&sim, 2);
    let mut steps = 0;
    while pool.dedup_figures().catching_up {
        pool.tick().unwrap();
        steps += 1;
        assert!(steps < 100, "it comes nowhere");
    }
    pool.rebuild_index().unwrap();
    while pool.rebuild_step(64).unwrap() {
        steps += 1;
        assert!(steps < 200, "it comes nowhere");
    }
    assert!(pool.rebuild_progress().is_none());
    // Records on other pages are in it, also those that had no fingerprint before.
    let known = |inode: &u64| {
        let id = extent_of(&pool, *inode).ptr.id;
        pool.store().look_up(id, |look_up, io| look_up.entry(io)).is_ok()
    };
    let expected = model.keys().filter(|inode| known(inode)).count();
    assert!((5..30).contains(&expected), "{expected}");
    assert_eq!(pool.dedup_figures().entries, expected as u64);
}
