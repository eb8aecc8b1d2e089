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
