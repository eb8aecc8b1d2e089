//! No label is left: the key is that of a commit record, and no file's content is taken for one.

use crate::bed::*;
use larder_files::NodeId;
use larder_format::segment::{SegmentKind, SegmentRecord, Slot};
use larder_format::{DeviceIndex, SlotIndex};
use larder_pool::ROOT_DATASET;
use larder_repair::{Options, RepairError, repair};
use larder_sim::{DeviceImage, SimWorld};

#[test]
fn a_pool_without_any_label_has_all_of_its_files() {
    for (word, count) in [("single", 1), ("mirror", 2), ("raidz1", 3), ("raid10", 4)] {
        let bed = Bed::new(word, count, 96);
        let now = bed.fill(NodeId::ROOT, 1, 3, 12);
        bed.pool.snapshot(ROOT_DATASET, "monday").unwrap();
        let (mut images, _) = bed.export();
        images.iter_mut().for_each(zero_labels);
        let found = repaired(&devices(images));
        assert_eq!(found.report.pool, "tank", "{word}");
        assert!(found.report.devices.iter().all(|device| device.unlabelled), "{word}: {:#?}", found.report);
        assert!(found.report.is_whole(), "{word}: {:#?}", found.report);
        assert!(read(&*mounted(&found.pool), NodeId::ROOT) == now, "{word}");
        assert!(found.pool.snapshot_named(ROOT_DATASET, "monday").is_ok(), "{word}");
    }
}

/// A pool without labels, one of whose files is a disk of another pool.
fn with_a_disk_as_a_file() -> (Vec<DeviceImage>, Vec<SegmentRecord>, Tree, u32) {
    let other = Bed::seeded(("single", 1, 64), 2);
    other.fill(NodeId::ROOT, 2, 2, 6);
    other.pool.snapshot(ROOT_DATASET, "theirs").unwrap();
    let (disks, _) = other.export();
    let disk = disks[0].read(larder_format::DeviceOffset::new(0), 64 << 20);
    let bed = Bed::new("single", 1, 192);
    // As it is: a codec would hide what is in it.
    bed.pool.set_property(ROOT_DATASET, "compression", "off").unwrap();
    let mut now = bed.fill(NodeId::ROOT, 3, 2, 6);
    bed.write(NodeId::ROOT, "disk", &disk);
    now.insert("disk".into(), disk.to_vec());
    let slot = bed.pool.store().groups()[0].slot_size;
    let (mut images, segments) = bed.export();
    images.iter_mut().for_each(zero_labels);
    (images, segments, now, slot)
}

#[test]
fn a_record_in_a_file_brings_no_key() {
    let (mut images, segments, now, slot) = with_a_disk_as_a_file();
    let found = repaired(&devices(images.clone()));
    assert!(read(&*mounted(&found.pool), NodeId::ROOT) == now, "{:#?}", found.report);
    // Not even where it is the only one: of slots without records their descriptors alone are left.
    let of_records = segments.iter().filter(|segment| segment.kind == SegmentKind::Data);
    let kept: Vec<_> = of_records.flat_map(|segment| segment.slots.clone()).collect();
    for index in 0..190 {
        let other = Slot { device: DeviceIndex::new(0), index: SlotIndex::new(index) };
        for sector in (1..u64::from(slot) / 4096).filter(|_| !kept.contains(&other)) {
            zero_sector(&mut images, other, slot, sector);
        }
    }
    let scratch = |size| Ok(SimWorld::new(&[size]).devices().remove(0));
    let options =
        Options { pool: None, commit: None, log: true, cut: false, scratch: &scratch, shown: &|_| {} };
    let refused = repair(world(7), &devices(images), &options);
    let told = refused.as_ref().map(|found| &found.report);
    assert!(matches!(refused, Err(RepairError::NoPool { .. })), "{told:#?}");
}

#[test]
fn of_disks_that_were_of_another_pool_before_somebody_says_which_is_meant() {
    let old = Bed::seeded(("single", 1, 96), 2);
    old.fill(NodeId::ROOT, 2, 6, 40);
    let (disks, _) = old.export();
    let bed = Bed::on(disks, 1);
    let now = bed.fill(NodeId::ROOT, 3, 1, 4);
    let (guid, (mut images, _)) = (bed.pool.store().sums.pool().get(), bed.export());
    images.iter_mut().for_each(zero_labels);
    let scratch = |size| Ok(SimWorld::new(&[size]).devices().remove(0));
    let number = guid.to_string();
    let of = |pool| {
        let options =
            Options { pool, commit: None, log: true, cut: false, scratch: &scratch, shown: &|_| {} };
        repair(world(7), &devices(images.clone()), &options)
    };
    let Err(RepairError::SeveralPools(there)) = of(None) else { panic!("one was taken") };
    assert_eq!(there.len(), 2, "{there:?}");
    let found = of(Some(&number)).unwrap();
    assert!(read(&*mounted(&found.pool), NodeId::ROOT) == now, "{:#?}", found.report);
}
