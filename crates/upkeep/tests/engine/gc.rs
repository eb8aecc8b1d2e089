//! Garbage collection: what it finds, beside traffic, within its memory, and after a crash.

use crate::common::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{ByteLen, DatasetId};
use larder_pool::pins::Phase;
use larder_pool::{Look, Pool, PoolError, ROOT_DATASET};
use larder_sim::{Fault, SimWorld, Survival};
use larder_upkeep::gc::{Findings, Outcome};
use std::collections::BTreeMap;

fn world_of(size: u64) -> SimWorld {
    SimWorld::new(&[ByteLen::new(size << 20)])
}

/// Traces to the end; what was found.
fn trace(pool: &Kept) -> Findings {
    assert!(pool.upkeep.gc.start().unwrap());
    while pool.upkeep.gc.step(8).unwrap() {}
    let findings = pool.upkeep.gc.findings().unwrap();
    assert_eq!(findings.outcome, Outcome::Done);
    assert!(pool.upkeep.gc.progress().is_none());
    // The findings are kept with the next commit.
    pool.commit().unwrap();
    findings
}

/// Works the free queue off and commits.
fn settle(pool: &Pool) {
    while pool.free_step(64).unwrap() {}
    pool.commit().unwrap();
}

/// Gives file `to` the content of file `from` by a second reference.
fn share(pool: &Pool, from: u64, to: u64) {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let op = pool.enter().unwrap();
    dataset
        .update(&op, |tree| {
            let value = tree.get(&Key::new(from, EXTENT, 0))?.expect("the file is there");
            let extent = Extent::decode(&value)?;
            let key = Key::new(to, EXTENT, 0);
            if let Some(old) = tree.get(&key)? {
                let old = Extent::decode(&old)?;
                tree.drop_block(&old);
            }
            tree.insert(key, &value)?;
            tree.share_block(&extent);
            Ok::<_, PoolError>(())
        })
        .unwrap();
}

fn remove(pool: &Pool, inode: u64) {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let op = pool.enter().unwrap();
    dataset
        .update(&op, |tree| {
            let key = Key::new(inode, EXTENT, 0);
            if let Some(old) = tree.get(&key)? {
                let old = Extent::decode(&old)?;
                tree.remove(&key)?;
                tree.drop_block(&old);
            }
            Ok::<_, PoolError>(())
        })
        .unwrap();
}

#[test]
fn a_pool_without_waste_is_all_live() {
    let sim = world_of(64);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    let files: Vec<_> = (10..1200).map(|inode| (inode, 1, 300)).collect();
    commit(&pool, &mut model, &files);
    let found = trace(&pool);
    let report = pool.upkeep.check().unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(found.live.blocks, report.blocks - tables(&pool));
    assert_eq!((found.dead.blocks, found.unreachable.blocks, found.queued.blocks), (0, 0, 0));
    assert_eq!((found.missing, found.lost), (0, 0));
    let [once] = found.histogram[..] else { panic!("{:?}", found.histogram) };
    assert_eq!((once.blocks, once.logical, once.referenced), (1190, 1190 * 300, 1190));
}

/// Nodes of the pool's tables, which a check counts as blocks and a collection does not.
fn tables(pool: &Kept) -> u64 {
    let found = trace(pool);
    let report = pool.upkeep.check().unwrap();
    report.blocks - found.live.blocks
}

#[test]
fn what_snapshots_and_second_references_leave_is_found_and_freed() {
    let sim = world_of(64);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &(10..60).map(|inode| (inode, 1, 9000)).collect::<Vec<_>>());
    let before = pool.dataset(ROOT_DATASET).unwrap().usage().referenced;
    pool.snapshot(ROOT_DATASET, "a").unwrap();
    // Ten records that only the snapshot holds.
    commit(&pool, &mut model, &(10..20).map(|inode| (inode, 2, 9000)).collect::<Vec<_>>());
    let found = trace(&pool);
    let [once] = found.histogram[..] else { panic!("{:?}", found.histogram) };
    assert_eq!((once.blocks, once.referenced), (60, 60), "what the head carries on is one reference");
    assert_eq!(found.dead.blocks, 0);
    pool.destroy_snapshot(ROOT_DATASET, "a").unwrap();
    // Three references to one record, two of which go; and two to another, both of which go.
    share(&pool, 30, 70);
    share(&pool, 30, 71);
    share(&pool, 31, 72);
    pool.commit().unwrap();
    let found = trace(&pool);
    assert_eq!(found.histogram[1].blocks, 2);
    assert_eq!((found.histogram[1].referenced, found.histogram[0].blocks), (5, 48));
    // One dataset has them all.
    let [of] = found.sharing[..] else { panic!("{:?}", found.sharing) };
    assert_eq!((of.dataset, of.references), (ROOT_DATASET, 53));
    let twice = found.histogram[1];
    assert!(of.saved().abs_diff(twice.referenced_allocated - twice.allocated) <= 5, "{of:?}");
    assert_eq!(found.unreachable.blocks, 0);
    assert!(found.dead.blocks >= 10 && found.dead.bytes >= before / 5, "{found:?}");
    settle(&pool);
    // As long as anything remains of the snapshot, none is said to have one reference.
    while pool.destroy_step(1).unwrap() {}
    [70, 71, 31, 72].into_iter().for_each(|inode| remove(&pool, inode));
    model.remove(&31);
    pool.commit().unwrap();
    settle(&pool);
    let found = trace(&pool);
    assert_eq!(
        (found.dead.blocks, found.unshared),
        (1, 1),
        "the record of 31 and 72; that of 30 has one left"
    );
    settle(&pool);
    let found = trace(&pool);
    assert_eq!((found.dead.blocks, found.queued.blocks, pool.freeing().left_bytes()), (0, 0, 0));
    assert!(!pool.freeing().has_shared());
    assert_whole(&pool, "after all");
    assert_eq!(pool.upkeep.check().unwrap().unreachable, 0);
    verify(&pool, &model);
    // The head may free at once again.
    let free = pool.store().space(4096).available;
    remove(&pool, 30);
    settle(&pool);
    assert!(pool.store().space(4096).available >= free);
    assert_eq!(trace(&pool).dead.blocks, 0);
}

#[test]
fn a_trace_beside_traffic_finds_what_is_dead_and_nothing_else() {
    let seeds = repeats(12, 300);
    let mut dead = 0;
    for seed in 0..seeds {
        let sim = world_of(64);
        let pool = create(&sim, "single");
        pool.set_pool_property("memory", "8000000").unwrap();
        let entropy = SeededEntropy::new(seed);
        let next = |n: u64| entropy.next_u64() % n;
        let mut model = Model::new();
        let mut snapshots: BTreeMap<String, Model> = BTreeMap::new();
        commit(&pool, &mut model, &(10..400).map(|inode| (inode, 1, 300)).collect::<Vec<_>>());
        let mut traces = 0;
        for step in 0..400u64 {
            match next(20) {
                0..5 => {
                    let inode = 10 + next(400);
                    let file = (inode, step + 2, 2 + next(4000) as usize);
                    put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &[file]);
                    model.insert(inode, (file.1, file.2));
                }
                5..8 => {
                    let Some((&from, &what)) = model.iter().nth(next(model.len() as u64) as usize) else {
                        continue;
                    };
                    let to = 10 + next(400);
                    if from != to {
                        share(&pool, from, to);
                        model.insert(to, what);
                    }
                }
                8..10 => {
                    let inode = 10 + next(400);
                    remove(&pool, inode);
                    model.remove(&inode);
                }
                10 => {
                    let name = format!("s{step}");
                    pool.snapshot(ROOT_DATASET, &name).unwrap();
                    snapshots.insert(name, model.clone());
                }
                11 => {
                    let Some(name) = snapshots.keys().nth(next(3) as usize).cloned() else { continue };
                    pool.destroy_snapshot(ROOT_DATASET, &name).unwrap();
                    snapshots.remove(&name);
                }
                12..14 => drop(pool.commit().unwrap()),
                14 => _ = pool.free_step(1).unwrap(),
                15 => {
                    if pool.upkeep.gc.start().unwrap() {
                        traces += 1;
                    }
                }
                _ => _ = pool.upkeep.gc.step(1 + next(3) as usize).unwrap(),
            }
            if let Some(found) = pool.upkeep.gc.findings() {
                let bad = (found.missing, found.lost, found.unreachable.blocks);
                assert_eq!(bad, (0, 0, 0), "seed {seed}, step {step}: {found:?}");
            }
        }
        assert!(traces > 0, "seed {seed}");
        while pool.upkeep.gc.step(1).unwrap() {}
        pool.commit().unwrap();
        assert_whole(&pool, &format!("seed {seed}"));
        // With nobody else, one trace finds everything: each block in the map is one that the model can name.
        dead += trace(&pool).dead.blocks;
        settle(&pool);
        let found = trace(&pool);
        assert_eq!(
            (found.dead.blocks, found.queued.blocks, pool.freeing().left_bytes()),
            (0, 0, 0),
            "seed {seed}"
        );
        let report = pool.upkeep.check().unwrap();
        assert_eq!((report.unreachable, report.dead), (0, 0), "seed {seed}");
        assert!(report.problems.is_empty(), "seed {seed}: {:#?}", report.problems);
        assert_eq!(
            versions(&pool.dataset(ROOT_DATASET).unwrap().view().unwrap(), &pool),
            model,
            "seed {seed}"
        );
        for (name, model) in &snapshots {
            let view = pool.snapshot_view(ROOT_DATASET, name).unwrap();
            assert_eq!(versions(&view, &pool), *model, "seed {seed}, snapshot {name}");
        }
        // So often is each version of a file referred to.
        let trees = snapshots.values().chain([&model]);
        let records: std::collections::BTreeSet<_> =
            trees.flat_map(|model| model.values().map(|what| what.0)).collect();
        assert!(found.histogram.iter().map(|class| class.blocks).sum::<u64>() >= records.len() as u64);
    }
    assert!(dead > 0);
}

/// Thousands of small files, in a pool whose trace has room for some hundreds of ids.
fn crowded(sim: &SimWorld, model: &mut Model) -> Kept {
    let pool = create(sim, "single");
    pool.set_pool_property("memory", "400000").unwrap();
    for chunk in 0..6 {
        let files: Vec<_> = (0..1000).map(|i| (10 + chunk * 1000 + i, 1, 40)).collect();
        commit(&pool, model, &files);
    }
    pool
}

#[test]
fn what_does_not_fit_in_memory_is_spilled_and_its_space_comes_back() {
    let sim = world_of(64);
    let mut model = Model::new();
    let pool = crowded(&sim, &mut model);
    for _ in 0..8 {
        pool.commit().unwrap();
    }
    let before = pool.store().raw_space().0;
    assert!(pool.upkeep.gc.start().unwrap());
    let (mut steps, mut most) = (0, 0);
    while pool.upkeep.gc.step(1).unwrap() {
        steps += 1;
        if steps % 3 == 0 {
            commit(&pool, &mut model, &[(10 + steps % 6000, 2 + steps, 50)]);
            most = most.max(pool.store().raw_space().0);
            assert_whole(&pool, &format!("step {steps}"));
        }
    }
    let found = pool.upkeep.gc.findings().unwrap();
    assert_eq!((found.missing, found.lost, found.unreachable.blocks), (0, 0, 0), "{found:?}");
    let overwritten = steps / 3;
    assert!((6000 - overwritten..=6000).contains(&found.histogram[0].blocks), "{found:?}");
    for _ in 0..8 {
        pool.commit().unwrap();
    }
    println!(
        "{steps} steps; {before} bytes of slots before, {most} meanwhile, {} after",
        pool.store().raw_space().0
    );
    assert!(pool.store().raw_space().0 <= before + (4 << 20), "spilled pages are gone");
    verify(&pool, &model);
}

#[test]
fn a_trace_can_be_cut_at_any_event_and_begins_anew() {
    let sim = world_of(64);
    let mut model = Model::new();
    let pool = crowded(&sim, &mut model);
    pool.snapshot(ROOT_DATASET, "a").unwrap();
    commit(&pool, &mut model, &(10..200).map(|inode| (inode, 2, 50)).collect::<Vec<_>>());
    pool.destroy_snapshot(ROOT_DATASET, "a").unwrap();
    pool.commit().unwrap();
    let begun = sim.trace().len();
    assert!(pool.upkeep.gc.start().unwrap());
    let mut steps = 0;
    while pool.upkeep.gc.step(2).unwrap() {
        steps += 1;
        if steps % 20 == 0 {
            pool.commit().unwrap();
        }
    }
    settle(&pool);
    drop(pool);
    let trace_of = sim.trace();
    let mut was_cut = 0;
    let mut sweep = trace_of.sweep();
    let stride = (trace_of.len() - begun) / repeats(8, u64::MAX) as usize;
    for cut in (begun..=trace_of.len()).step_by(stride.max(1)) {
        sweep.advance_to(cut);
        let after = SimWorld::from_images(sweep.images(Survival::Random { seed: cut as u64 }));
        let pool = import(&after, cut as u64).unwrap();
        assert!(pool.upkeep.gc.progress().is_none(), "nothing of it is left");
        was_cut += usize::from(pool.upkeep.gc.was_cut());
        // Enough for the model to be looked up in the cache.
        pool.set_pool_property("memory", "64000000").unwrap();
        pool.commit().unwrap();
        assert_whole(&pool, &format!("cut {cut}"));
        verify(&pool, &model);
        let found = trace(&pool);
        assert_eq!((found.missing, found.lost, found.unreachable.blocks), (0, 0, 0), "cut {cut}");
        settle(&pool);
        let found = trace(&pool);
        assert_eq!((found.dead.blocks, found.queued.blocks), (0, 0), "cut {cut}");
        assert_whole(&pool, &format!("cut {cut}, traced"));
        assert!(!pool.upkeep.gc.was_cut());
    }
    assert!(was_cut > 2, "{was_cut} cuts were told");
}

#[test]
fn a_trace_that_is_cut_again_and_again_goes_on_where_it_had_judged() {
    const STEPS_A_LIFE: usize = 8;
    let mut sim = world_of(64);
    let mut model = Model::new();
    let mut pool = crowded(&sim, &mut model);
    pool.snapshot(ROOT_DATASET, "a").unwrap();
    commit(&pool, &mut model, &(10..2000).map(|inode| (inode, 2, 50)).collect::<Vec<_>>());
    pool.destroy_snapshot(ROOT_DATASET, "a").unwrap();
    pool.commit().unwrap();
    let dead = 1990;
    assert_eq!(pool.remaining(), 1);
    assert!(pool.upkeep.gc.start().unwrap());
    let (mut lives, mut walks) = (0, Vec::new());
    'lives: loop {
        let mut walk = 0;
        while pool.upkeep.gc.progress().unwrap().phase == Phase::Mark {
            assert!(pool.upkeep.gc.step(1).unwrap());
            walk += 1;
        }
        walks.push(walk);
        for _ in 0..STEPS_A_LIFE {
            if !pool.upkeep.gc.step(1).unwrap() {
                break 'lives;
            }
        }
        // Lives that end by a power cut are lived beside others, the rest end by an export.
        if lives % 2 == 0 {
            commit(&pool, &mut model, &[(10 + lives * 500 % 6000, 3 + lives, 50), (7000 + lives, 1, 50)]);
            share(&pool, 11 + lives * 300 % 6000, 8000 + lives);
        }
        pool.commit().unwrap();
        if lives % 2 == 1 {
            pool.commit_export().unwrap();
        }
        drop(pool);
        let trace_of = sim.trace();
        let mut sweep = trace_of.sweep();
        sweep.advance_to(trace_of.len());
        sim = SimWorld::from_images(sweep.images(Survival::Random { seed: lives }));
        pool = import(&sim, 100 + lives).unwrap();
        lives += 1;
        assert!(lives < 60, "it makes no way: {walks:?}");
        assert!(pool.upkeep.gc.was_cut());
        assert!(pool.upkeep.gc.start().unwrap());
    }
    println!("{lives} lives, walks of {walks:?} steps");
    assert!(lives > 5, "it was hardly cut");
    assert!(walks.last().unwrap() * 4 < walks[0], "what was judged is not walked again: {walks:?}");
    let found = pool.upkeep.gc.findings().unwrap();
    assert_eq!((found.missing, found.lost, found.unreachable.blocks), (0, 0, 0), "{found:?}");
    assert!(found.dead.blocks >= dead, "all lives are told of: {found:?}");
    assert!(found.from.get() > 0, "the last life looked at the rest only, and says so");
    pool.set_pool_property("memory", "64000000").unwrap();
    settle(&pool);
    assert_whole(&pool, "in the end");
    verify(&pool, &model);
    let found = trace(&pool);
    let left = found.dead.blocks;
    assert!(left <= lives, "nothing but what was copied and replaced since: {left}");
    assert_eq!(found.from.get(), 0, "the next one looks at all");
}

#[test]
fn a_trace_after_one_that_failed_says_that_it_looked_at_the_rest_only() {
    let sim = world_of(64);
    let mut model = Model::new();
    let pool = crowded(&sim, &mut model);
    assert!(pool.upkeep.gc.start().unwrap());
    while pool.upkeep.gc.progress().unwrap().phase == Phase::Mark {
        assert!(pool.upkeep.gc.step(1).unwrap());
    }
    (0..8).for_each(|_| assert!(pool.upkeep.gc.step(1).unwrap()));
    pool.commit().unwrap();
    pool.store().drop_caches();
    sim.device(0).inject(Fault::FailReads(0..u64::MAX));
    assert!(pool.upkeep.gc.step(64).is_err() && pool.upkeep.gc.progress().is_none());
    sim.device(0).clear_faults();
    let found = trace(&pool);
    let last = || {
        let mut texts = pool.events(0).into_iter().map(|(_, event)| event.text);
        texts.rfind(|text| text.contains("errors")).unwrap()
    };
    assert!(found.from.get() > 0 && found.errors() == 0, "{found:?}");
    assert_eq!(last(), format!("0 errors in blocks from {} on", found.from));
    let found = trace(&pool);
    assert_eq!((found.from.get(), found.errors()), (0, 0));
    assert_eq!(last(), "0 errors");
}

#[test]
fn nodes_that_the_walk_still_needs_stay_however_long_it_takes() {
    let sim = world_of(96);
    let mut model = Model::new();
    let pool = crowded(&sim, &mut model);
    assert!(pool.upkeep.gc.start().unwrap());
    // The segments of the pinned trees' nodes are full, and would be free and written again.
    for version in 2..26 {
        for chunk in 0..6 {
            let files: Vec<_> = (0..100).map(|i| (10 + chunk * 1000 + i * 10, version, 40)).collect();
            commit(&pool, &mut model, &files);
        }
    }
    pool.store().drop_caches();
    assert!(pool.freeing().queued_bytes() > 0, "nodes are held");
    while pool.upkeep.gc.step(4).unwrap() {}
    let found = pool.upkeep.gc.findings().unwrap();
    assert_eq!((found.missing, found.lost, found.unreachable.blocks), (0, 0, 0), "{found:?}");
    settle(&pool);
    assert_eq!(pool.freeing().queued_bytes(), 0);
    assert_whole(&pool, "after");
    verify(&pool, &model);
}

#[test]
fn a_node_that_cannot_be_read_keeps_the_trace_from_freeing_anything() {
    let sim = world_of(64);
    let mut model = Model::new();
    let pool = crowded(&sim, &mut model);
    pool.snapshot(ROOT_DATASET, "a").unwrap();
    commit(&pool, &mut model, &(10..200).map(|inode| (inode, 2, 50)).collect::<Vec<_>>());
    pool.destroy_snapshot(ROOT_DATASET, "a").unwrap();
    pool.commit().unwrap();
    pool.store().drop_caches();
    assert_eq!((pool.remaining(), pool.freeing().queued_bytes()), (1, 0));
    // A byte of the first leaf after the others.
    let damaged = (0..200u64).find(|at| {
        let offset = larder_format::DeviceOffset::new((2 << 20) + (at << 17));
        sim.device(0).flip_bits(offset, 16 << 10, *at);
        pool.store().drop_caches();
        pool.upkeep.gc.start().unwrap();
        while pool.upkeep.gc.step(64).unwrap_or(false) {}
        pool.upkeep.gc.findings().unwrap().lost > 0
    });
    if damaged.is_some() {
        assert_eq!((pool.remaining(), pool.freeing().queued_bytes()), (1, 0), "nothing was freed");
        let found = pool.upkeep.gc.findings().unwrap();
        assert!(found.is_bad() && found.lost_in == [ROOT_DATASET], "{found:?}");
    }
}

#[test]
fn a_trace_that_is_stopped_lets_go_of_everything() {
    let sim = world_of(64);
    let mut model = Model::new();
    let pool = crowded(&sim, &mut model);
    assert!(pool.upkeep.gc.start().unwrap());
    assert!(!pool.upkeep.gc.start().unwrap(), "one at a time");
    (0..9).for_each(|_| assert!(pool.upkeep.gc.step(2).unwrap()));
    let progress = pool.upkeep.gc.progress().unwrap();
    assert!(progress.examined > 0 && progress.examined <= progress.total);
    commit(&pool, &mut model, &(10..900).map(|inode| (inode, 2, 50)).collect::<Vec<_>>());
    pool.upkeep.gc.stop().unwrap();
    assert_eq!(pool.upkeep.gc.findings().unwrap().outcome, Outcome::Stopped);
    assert!(!pool.upkeep.gc.step(1).unwrap());
    settle(&pool);
    settle(&pool);
    let found = trace(&pool);
    assert_eq!((found.missing, found.dead.blocks, found.queued.blocks), (0, 0, 0));
    assert_whole(&pool, "after");
}

#[test]
fn trees_of_many_datasets_are_walked_together() {
    let sim = world_of(96);
    let pool = create(&sim, "single");
    let mut ids: Vec<DatasetId> = Vec::new();
    for i in 0..40 {
        let dataset = pool.create_dataset(&format!("tank/d{i}"), Default::default()).unwrap();
        put(&pool, &dataset, &[(7, 1, 500), (8, 1, 500)]);
        ids.push(dataset.id());
    }
    pool.commit().unwrap();
    let records = pool.commit_records().len() as u64;
    let found = trace(&pool);
    assert_eq!(found.histogram[0].blocks, 80);
    assert_eq!(found.live.blocks, 80 + 41 + records, "and a leaf each, with that of the root");
}

#[test]
fn a_reference_made_after_a_snapshot_to_an_older_block_is_not_forgotten_when_both_are_gone() {
    for is_empty in [false, true] {
        let sim = world_of(64);
        let pool = create(&sim, "single");
        let mut model = Model::new();
        commit(&pool, &mut model, &[(10, 1, 9000), (12, 1, 500)]);
        let other = pool.create_dataset("tank/d", BTreeMap::new()).unwrap();
        if !is_empty {
            put(&pool, &other, &[(20, 1, 700)]);
        }
        pool.commit().unwrap();
        pool.snapshot(other.id(), "before").unwrap();
        let key = Key::new(30, EXTENT, 0);
        let value = pool.dataset(ROOT_DATASET).unwrap().view().unwrap().get(&Key::new(10, EXTENT, 0));
        let value = value.unwrap().unwrap();
        let extent = Extent::decode(&value).unwrap();
        let change = |change: &dyn Fn(&mut larder_pool::Update<'_>) -> Result<(), PoolError>| {
            let op = pool.enter().unwrap();
            other.update(&op, change).unwrap();
        };
        change(&|tree| {
            tree.insert(key, &value)?;
            tree.share_block(&extent);
            Ok(())
        });
        remove(&pool, 10);
        pool.commit().unwrap();
        settle(&pool);
        // One reference is left, and the snapshot seems to hold it.
        trace(&pool);
        change(&|tree| {
            tree.remove(&key)?;
            tree.drop_block(&extent);
            Ok(())
        });
        pool.commit().unwrap();
        pool.destroy_snapshot(other.id(), "before").unwrap();
        for _ in 0..2 {
            pool.commit().unwrap();
            while pool.destroy_step(64).unwrap() {}
        }
        settle(&pool);
        assert_whole(&pool, "nobody refers to it");
        let found = trace(&pool);
        assert_eq!((found.unreachable.blocks, found.dead.blocks), (0, 1), "{found:?}");
        settle(&pool);
        assert!(pool.blocks().unwrap().iter().all(|(id, _)| *id != extent.ptr.id));
    }
}
