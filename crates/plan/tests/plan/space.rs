//! Space that plans tell is what pools have.

use larder_device::{Device, Inline, SeededEntropy};
use larder_format::{ByteLen, HostId};
use larder_plan::{Assumptions, Candidate, Disk, plan};
use larder_pool::{GroupSpec, Pool, PoolSpec, World};
use larder_sim::{SimClock, SimWorld};
use std::sync::Arc;

const RECORD: u32 = 128 << 10;

fn plans(sizes: &[u64]) -> Vec<Candidate> {
    let disks = sizes.iter().enumerate().map(|(at, &size)| Disk::of_size(format!("d{at}"), size)).collect();
    plan(disks, 0, 0, Assumptions::default()).candidates
}

fn spec(candidate: &Candidate, devices: &[Arc<dyn Device>]) -> PoolSpec {
    let group = |group: &larder_plan::Group| {
        GroupSpec::data(group.rule(), group.disks.iter().map(|&at| Arc::clone(&devices[at])).collect())
    };
    PoolSpec { name: "tank".into(), groups: candidate.shape.groups.iter().map(group).collect(), ashift: 12 }
}

/// Sizes of the devices of pools that are made: equal, mixed, odd.
fn worlds() -> Vec<Vec<u64>> {
    let mib = |sizes: &[u64]| sizes.iter().map(|size| size << 20).collect();
    vec![
        mib(&[1024; 6]),
        mib(&[2048; 7]),
        mib(&[1024, 1024, 2048, 2048]),
        mib(&[4096, 4096, 4096, 4096, 4096, 4096, 1024, 1024]),
        mib(&[3000, 1111, 2222, 1500, 7001]),
        mib(&[512; 12]),
        vec![1_000_001_536, 1_234_567_168, 2_000_003_072, 4_000_002_048]
            .into_iter()
            .map(|size: u64| size & !4095)
            .collect(),
    ]
}

#[test]
fn a_plan_tells_what_create_shows_and_what_the_pool_then_has() {
    let (mut made, mut least) = (0, f64::INFINITY);
    for sizes in worlds() {
        for candidate in plans(&sizes) {
            let lens: Vec<ByteLen> = sizes.iter().map(|&size| ByteLen::new(size)).collect();
            let sim = SimWorld::new(&lens);
            let devices = sim.devices();
            let shown = spec(&candidate, &devices).available(RECORD);
            assert_eq!(candidate.usable, shown, "{} of {sizes:?}", candidate.name);
            let world = World {
                clock: Arc::new(SimClock::new()),
                entropy: Arc::new(SeededEntropy::new(1)),
                workers: Arc::new(Inline),
                host: HostId::new(1),
                host_name: "sim".into(),
            };
            let pool = Pool::create(world, spec(&candidate, &devices)).unwrap();
            let has = pool.store().space(RECORD).available;
            let part = has as f64 / shown as f64;
            least = least.min(part);
            // The first commits took some segments.
            assert!(has <= shown && part > 0.98, "{} of {sizes:?}: {has} of {shown}", candidate.name);
            made += 1;
        }
    }
    println!("{made} pools; AVAIL of a new one is {least:.4} of what the plan told, at least");
    assert!(made > 100, "{made}");
}

#[test]
fn disks_of_a_hundred_terabytes_are_planned_like_any() {
    let candidates = plans(&[100_000_000_000_000; 24]);
    assert!(candidates.len() > 24, "{}", candidates.len());
    for candidate in candidates {
        let part = candidate.usable as f64 / candidate.raw as f64;
        let layouts = || candidate.shape.groups.iter().map(larder_plan::Group::layout);
        let columns: usize = layouts().map(|layout| layout.columns()).sum();
        let data = layouts().map(|layout| layout.k()).sum::<usize>() as f64 / columns as f64;
        assert!(part < data && part > data * 0.95, "{}: {part} of {data}", candidate.name);
    }
}
