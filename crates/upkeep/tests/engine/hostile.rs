//! Devices whose owner made them up: the sums are right, and what they count is not.

use crate::common::*;
use larder_format::checksum::Sums;
use larder_format::label::{Label, RING_SLOT, label_areas};
use larder_format::root::{GroupRole, Root, ring_slot};
use larder_format::{ByteLen, SegmentId};
use larder_pool::open::Standing;
use larder_pool::{ImportOptions, PoolError};
use larder_sim::{DeviceImage, SimWorld};

const SIZE: ByteLen = ByteLen::new(64 << 20);

/// A mirror of some commits.
fn mirror() -> (SimWorld, Model) {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    (1..4).for_each(|version| commit(&pool, &mut model, &[(10, version, 50_000)]));
    drop(pool);
    (sim, model)
}

/// Changes the newest root wherever it lies on a device.
fn forge(image: &mut DeviceImage, change: impl Fn(&mut Root)) {
    let areas = label_areas(image.size());
    let label = Label::check(&image.read(areas[0], 4096)).unwrap();
    let sums = Sums::new(label.pool, label.key);
    let roots = areas.iter().flat_map(|&area| (0..15).map(move |commit| (area, commit)));
    let read = |(area, commit)| {
        let at = ring_slot(area, larder_format::CommitId::new(commit));
        Root::check(&sums, &image.read(at, RING_SLOT)).ok()
    };
    let mut root = roots.filter_map(read).max_by_key(|root| root.commit).unwrap();
    change(&mut root);
    let mut bytes = root.encode(&sums).unwrap();
    bytes.resize(RING_SLOT, 0);
    areas.iter().for_each(|&area| image.write(ring_slot(area, root.commit), &bytes));
}

fn forged(images: Vec<DeviceImage>, change: impl Fn(&mut Root)) -> SimWorld {
    let forged = images.into_iter().map(|mut image| {
        forge(&mut image, &change);
        image
    });
    SimWorld::from_images(forged.collect())
}

#[test]
fn slots_that_a_root_makes_up_for_a_missing_device_take_no_memory() {
    let (sim, model) = mirror();
    let sim = forged(vec![sim.images().remove(0)], |root| root.devices[1].slot_count = u32::MAX);
    let plan = plan(sim.devices());
    assert_eq!(plan.devices[1].standing, Standing::Missing);
    let pool = Kept::import(world(2), plan, &ImportOptions::default()).unwrap();
    verify(&pool, &model);
    pool.commit().unwrap();
    // Nor time: they are not gone through one by one.
    pool.upkeep.check().unwrap();
}

#[test]
fn a_root_without_a_group_for_records_is_none() {
    let (sim, _) = mirror();
    let sim = forged(sim.images(), |root| root.groups[0].role = GroupRole::Log);
    let refused: Result<Kept, PoolError> = import(&sim, 2);
    let text = refused.err().expect("a refusal").to_string();
    assert!(text.contains("root"), "{text}");
}

#[test]
fn a_device_with_more_slots_in_the_root_than_it_has_is_set_aside_by_name() {
    let (sim, model) = mirror();
    let sim = forged(sim.images(), |root| root.devices[1].slot_count = u32::MAX);
    let plan = plan(sim.devices());
    assert_eq!(plan.devices[1].standing, Standing::Missing);
    let told =
        plan.remarks.iter().any(|remark| remark.contains("sim1") && remark.contains("4294967295 slots"));
    assert!(told, "{:?}", plan.remarks);
    let pool = Kept::import(world(2), plan, &ImportOptions::default()).unwrap();
    verify(&pool, &model);
    pool.commit().unwrap();
    // Nor does it come back by being brought back.
    let scanned = larder_pool::open::scan(&sim.devices()[1]);
    let larder_pool::open::Scan::Member(found) = scanned else { panic!("a pool's device") };
    let refused = pool.upkeep.devices.online(larder_format::DeviceIndex::new(1), Some(*found)).unwrap_err();
    assert!(refused.to_string().contains("slots"), "{refused}");
}

#[test]
fn segments_beyond_the_lease_are_refused() {
    let (sim, _) = mirror();
    let sim = forged(sim.images(), |root| root.segment_lease = SegmentId::new(1));
    let refused: Result<Kept, PoolError> = import(&sim, 2);
    let text = refused.err().expect("a refusal").to_string();
    assert!(text.contains("corrupt segment record"), "{text}");
}
