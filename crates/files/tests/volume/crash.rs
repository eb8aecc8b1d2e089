//! Power cuts: what was promised is there, and what was not is there whole or not at all.

use crate::bed::{Bed, ROOT};
use crate::model::{Model, Run, compare};
use larder_files::*;
use larder_sim::{SimWorld, Survival};
use std::sync::Arc;

#[test]
fn a_power_cut_loses_no_promise_and_leaves_no_half() {
    for seed in 0..6 {
        let mut run = Run::new(seed, &[("recordsize", "4096")]);
        run.bed.pool.set_pool_property("memory", "2097152").unwrap();
        run.bed.pool.commit().unwrap();
        let start = run.bed.sim.trace().len();
        // Each state is taken when something makes it durable; the mark says that it is.
        let mut states = vec![Model::new()];
        for _ in 0..500 {
            let before = run.synced;
            run.step();
            if run.synced > before {
                states.push(run.durable.clone());
                run.bed.sim.mark(states.len() as u64 - 1);
            }
        }
        assert!(states.len() > 5, "nothing to lose");
        let (sim, clock) = (run.bed.sim.clone(), Arc::clone(&run.bed.clock));
        drop(run);
        let trace = sim.trace();
        let mut sweep = trace.sweep();
        for cut in start..=trace.len() {
            sweep.advance_to(cut);
            let promised = trace.marks_before(cut).last().unwrap_or(0) as usize;
            let survival = match cut % 2 {
                0 => Survival::DropAll,
                _ => Survival::Random { seed: cut as u64 },
            };
            let images = SimWorld::from_images(sweep.images(survival));
            let bed = Bed::import(images, Arc::clone(&clock), 1000 + cut as u64);
            let found: Vec<_> = (promised..states.len())
                .map(|state| {
                    let mut model = states[state].clone();
                    model.close_all();
                    compare(&bed, &model).map(drop)
                })
                .collect();
            assert!(found.contains(&Ok(())), "seed {seed}, cut {cut}, promise {promised}: {found:#?}");
            while bed.mount.reap_step(100).unwrap() {}
            bed.pool.commit().unwrap();
            bed.check();
        }
    }
}

#[test]
fn a_replaced_file_has_its_old_or_new_content_though_nobody_synced() {
    let bed = Bed::new(&[]);
    let old = bed.file(ROOT, "settings");
    bed.write(old, 0, b"old");
    bed.pool.commit().unwrap();
    let new = bed.file(ROOT, "settings.tmp");
    bed.write(new, 0, b"new and longer");
    bed.mount.rename(ROOT, b"settings.tmp", ROOT, b"settings", RenameFlags::default()).unwrap();
    let other = bed.file(ROOT, "other");
    bed.fsync(other);
    let bed = bed.crash(2);
    assert_eq!(bed.content(bed.find("settings").unwrap().node), b"new and longer");
}

#[test]
fn an_orphan_is_removed_after_a_crash() {
    let bed = Bed::new(&[("recordsize", "4096"), ("compression", "off")]);
    let node = bed.file(ROOT, "big");
    bed.mount.open(node, crate::bed::READ_WRITE).unwrap();
    for i in 0..300 {
        bed.write(node, i * 4096, &[i as u8; 4096]);
    }
    bed.mount.unlink(ROOT, b"big").unwrap();
    assert_eq!(bed.read(node, 299 * 4096, 1), [299u32 as u8]);
    bed.pool.commit().unwrap();
    let bed = bed.crash(2);
    let usage = || bed.pool.dataset(larder_pool::ROOT_DATASET).unwrap().usage().logical;
    assert_eq!(usage(), 300 * 4096);
    let mut steps = 0;
    while bed.mount.reap_step(100).unwrap() {
        steps += 1;
    }
    assert!(steps >= 2, "a big file goes in steps");
    assert_eq!(usage(), 0);
    bed.pool.commit().unwrap();
    bed.check();
}
