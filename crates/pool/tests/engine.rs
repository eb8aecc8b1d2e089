//! The engine on simulated devices: what is committed comes back, from every layout, after any cut.

mod common;

use common::*;
use larder_device::SeededEntropy;
use larder_format::ByteLen;
use larder_format::items::Extent;
use larder_format::node::Key;
use larder_pool::{Look, Pool, PoolError, ROOT_DATASET};
use larder_sim::SimWorld;
use std::collections::BTreeMap;

#[test]
fn what_is_committed_comes_back_in_every_layout() {
    for (word, count) in LAYOUTS {
        let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
        let mut model = BTreeMap::new();
        let pool = create(&sim, word);
        for round in 0..12u64 {
            let dataset = pool.dataset(ROOT_DATASET).unwrap();
            let files: Vec<_> = (0..40)
                .map(|i| (10 + (i * 7 + round) % 90, round, 100 + (i as usize * 3911) % 120_000))
                .collect();
            put(&pool, &dataset, &files);
            model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
            pool.commit().unwrap();
        }
        verify(&pool, &model);
        let report = pool.check().unwrap();
        assert!(report.problems.is_empty(), "{word}: {:#?}", report.problems);
        drop(pool);
        let pool = import(&sim, 2).unwrap();
        verify(&pool, &model);
        let report = pool.check().unwrap();
        assert!(report.problems.is_empty(), "{word}: {:#?}", report.problems);
        assert!(report.blocks > 90 && report.rows > 0);
    }
}

/// Puts, commits and syncs by seed; after each promise a mark with the number of the state it promised.
fn workload(pool: &Pool, sim: &SimWorld, states: &mut Vec<Model>, seed: u64, steps: usize) {
    let entropy = SeededEntropy::new(seed);
    let next = |n: u64| larder_device::Entropy::next_u64(&entropy) % n;
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for _ in 0..steps {
        let mut model = states.last().unwrap().clone();
        let file = (2 + next(30), states.len() as u64, 1 + next(90_000) as usize);
        put(pool, &dataset, &[file]);
        dataset
            .update(&pool.enter().unwrap(), |tree| {
                tree.log(logged(file));
                Ok::<_, PoolError>(())
            })
            .unwrap();
        model.insert(file.0, (file.1, file.2));
        states.push(model);
        match next(6) {
            0 => drop(pool.commit().unwrap()),
            1 | 2 => pool.log_sync(Vec::new()).unwrap(),
            _ => continue,
        }
        sim.mark(states.len() as u64 - 1);
    }
}

#[test]
fn a_power_cut_at_any_write_loses_no_promise() {
    use larder_sim::Survival;
    let mut cuts = 0;
    for (word, count) in LAYOUTS {
        let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
        let pool = create(&sim, word);
        let created = sim.trace().len();
        let mut states = vec![Model::new()];
        workload(&pool, &sim, &mut states, 7 + count as u64, 25);
        drop(pool);
        let trace = sim.trace();
        let mut sweep = trace.sweep();
        for cut in created..=trace.len() {
            sweep.advance_to(cut);
            let promised = trace.marks_before(cut).last().unwrap_or(0) as usize;
            for survival in [Survival::DropAll, Survival::Random { seed: cut as u64 }] {
                cuts += 1;
                let after = SimWorld::from_images(sweep.images(survival));
                let pool = open(&after, 1000 + cut as u64);
                let report = pool.check().unwrap();
                assert!(report.problems.is_empty(), "{word} cut {cut}: {:#?}", report.problems);
                replay(&pool);
                pool.commit().unwrap();
                let dataset = pool.dataset(ROOT_DATASET).unwrap();
                let mut found = Model::new();
                dataset
                    .view()
                    .unwrap()
                    .scan(&Key::MIN, &mut |key, value| {
                        let extent = Extent::decode(value).unwrap();
                        found.insert(key.object, (extent.ptr.id.get(), extent.len as usize));
                        std::ops::ControlFlow::Continue(())
                    })
                    .unwrap();
                let state = (promised..states.len()).find(|&i| {
                    states[i].len() == found.len()
                        && states[i]
                            .iter()
                            .all(|(inode, (_, len))| found.get(inode).is_some_and(|f| f.1 == *len))
                });
                let state = state.unwrap_or_else(|| panic!("{word} cut {cut}: promise {promised} is lost"));
                verify(&pool, &states[state]);
                let report = pool.check().unwrap();
                assert!(report.problems.is_empty(), "{word} cut {cut}: {:#?}", report.problems);
            }
        }
    }
    println!("{cuts} cuts");
}
