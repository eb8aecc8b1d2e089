//! The engine on simulated devices: what is committed comes back, from every layout.

use larder_device::{Inline, SeededEntropy};
use larder_format::checksum::ChecksumKind;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{ByteLen, HostId};
use larder_pool::codec::Codec;
use larder_pool::create::rule_for;
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::{
    Dataset, GroupSpec, ImportOptions, Look, NewRecord, Pool, PoolError, PoolSpec, ROOT_DATASET, World,
};
use larder_sim::{SimClock, SimWorld};
use std::collections::BTreeMap;
use std::sync::Arc;

fn world(seed: u64) -> World {
    World {
        clock: Arc::new(SimClock::new()),
        entropy: Arc::new(SeededEntropy::new(seed)),
        workers: Arc::new(Inline),
        host: HostId::new(1),
        host_name: "sim".into(),
    }
}

fn create(sim: &SimWorld, word: &str) -> Arc<Pool> {
    let devices = sim.devices();
    let rule = rule_for(word, devices.len()).unwrap();
    let groups = vec![GroupSpec { rule, devices }];
    Pool::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap()
}

fn import(sim: &SimWorld, seed: u64) -> Result<Arc<Pool>, PoolError> {
    let found = sim.devices().into_iter().filter_map(|device| match scan(&device) {
        Scan::Member(found) => Some(*found),
        _ => None,
    });
    let plan = assemble(found.collect()).pop().expect("a pool is there");
    Pool::import(world(seed), plan, &ImportOptions::default())
}

fn content(inode: u64, version: u64, len: usize) -> Vec<u8> {
    let mut state = inode * 1_000_003 + version;
    (0..len)
        .map(|i| {
            if i % 3 == 0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            } else {
                7
            }
        })
        .collect()
}

fn put(pool: &Pool, dataset: &Dataset, files: &[(u64, u64, usize)]) {
    let op = pool.enter().unwrap();
    let record = |&(inode, version, len): &(u64, u64, usize)| NewRecord {
        dataset: dataset.id(),
        inode,
        offset: 0,
        plain: content(inode, version, len),
        codec: Codec::Lz4,
        checksum: ChecksumKind::Fast,
    };
    let ptrs = pool.store(&op, files.iter().map(record).collect()).unwrap();
    dataset
        .update(&op, |tree| {
            for (&(inode, _, len), ptr) in files.iter().zip(&ptrs) {
                let key = Key::new(inode, EXTENT, 0);
                if let Some(old) = tree.get(&key)? {
                    let old = Extent::decode(&old)?;
                    tree.drop_block(old.ptr, old.logical.into());
                }
                let extent = Extent { ptr: *ptr, len: len as u32, block_offset: 0, logical: len as u32 };
                tree.insert(key, &extent.encode())?;
                tree.link_block(*ptr, len as u64);
            }
            Ok::<_, PoolError>(())
        })
        .unwrap();
}

fn verify(pool: &Pool, model: &BTreeMap<u64, (u64, usize)>) {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for (&inode, &(version, len)) in model {
        let value =
            dataset.view().unwrap().get(&Key::new(inode, EXTENT, 0)).unwrap().expect("the file is there");
        let extent = Extent::decode(&value).unwrap();
        assert_eq!(&pool.read(extent.ptr).unwrap()[..], content(inode, version, len), "file {inode}");
    }
}

const LAYOUTS: [(&str, usize); 8] = [
    ("single", 1),
    ("mirror", 2),
    ("mirror", 3),
    ("raidz1", 3),
    ("raidz2", 6),
    ("raidz3", 7),
    ("raid10", 4),
    ("raid14", 5),
];

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

fn open(sim: &SimWorld, seed: u64) -> Arc<Pool> {
    import(sim, seed).unwrap_or_else(|error| panic!("import: {error}"))
}

/// Applies operations found in the log: each is inode, version, length.
fn replay(pool: &Pool) -> usize {
    let ops = pool.take_replay();
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for (_, op) in &ops {
        let number = |i: usize| u64::from_le_bytes(op[i * 8..i * 8 + 8].try_into().unwrap());
        put(pool, &dataset, &[(number(0), number(1), number(2) as usize)]);
    }
    ops.len()
}

fn logged(file: (u64, u64, usize)) -> Vec<u8> {
    [file.0, file.1, file.2 as u64].iter().flat_map(|n| n.to_le_bytes()).collect()
}

type Model = BTreeMap<u64, (u64, usize)>;

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
