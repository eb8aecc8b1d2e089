//! The engine on simulated devices: what is committed comes back, from every layout, after any cut.

use crate::common::*;
use crate::sweep;
use larder_format::ByteLen;
use larder_pool::ROOT_DATASET;
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
        let report = pool.upkeep.check().unwrap();
        assert!(report.problems.is_empty(), "{word}: {:#?}", report.problems);
        drop(pool);
        let pool = import(&sim, 2).unwrap();
        verify(&pool, &model);
        let report = pool.upkeep.check().unwrap();
        assert!(report.problems.is_empty(), "{word}: {:#?}", report.problems);
        assert!(report.blocks > 90 && report.stripes > 0);
    }
}

#[test]
fn a_power_cut_at_any_write_loses_no_promise() {
    let stride = if std::env::var_os("LARDER_LARGE").is_some() { 1 } else { 3 };
    let mut cuts = 0;
    for (word, count) in LAYOUTS {
        let swept = sweep::run(word, count, 7 + count as u64, 25, stride);
        cuts += swept.unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{cuts} cuts");
}

#[test]
fn a_record_size_that_no_slot_holds_is_refused_in_plain_words() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let most = pool.store().max_record();
    assert_eq!(most, 256 << 10);
    pool.set_property(ROOT_DATASET, "recordsize", &most.to_string()).unwrap();
    let refused = pool.set_property(ROOT_DATASET, "recordsize", "1048576").unwrap_err().to_string();
    assert!(refused.contains("at most 256K"), "{refused}");
    let made = pool.create_dataset("tank/big", BTreeMap::from([("recordsize".into(), "1048576".into())]));
    assert!(made.is_err() && pool.dataset_by_name("tank/big").is_err());
}
