//! Import where the intent log cannot be read.

use crate::common::*;
use larder_format::segment::SegmentKind;
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::{ImportOptions, Pool, PoolError, Refusal};
use larder_sim::{Fault, SimWorld};
use std::ops::Range;

/// Slots of the log: device, and bytes there.
fn log_of(pool: &Pool) -> Vec<(DeviceIndex, Range<u64>)> {
    let segments = pool.store().segments().into_iter().filter(|segment| segment.kind == SegmentKind::Log);
    let slots = segments.flat_map(|segment| segment.slots.to_vec());
    let range = |slot: larder_format::segment::Slot| {
        let member = pool.store().members().get(slot.device);
        let start = member.slot_offset(slot.index, 0).get();
        (slot.device, start..start + u64::from(member.slot_size))
    };
    slots.map(range).collect()
}

/// Reads of the log's slots fail on these devices.
fn log_unread(sim: &SimWorld, log: &[(DeviceIndex, Range<u64>)], devices: &[usize]) {
    for (device, range) in log.iter().filter(|(device, _)| devices.contains(&device.get().into())) {
        sim.device(device.get().into()).inject(Fault::FailReads(range.clone()));
    }
}

#[test]
fn a_place_of_the_log_that_cannot_be_read_is_not_taken_for_its_end() {
    for (word, count) in [("single", 1), ("mirror", 2), ("raidz1", 3), ("raid14", 5)] {
        let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 5, 1));
        let committed = model.clone();
        for inode in 20..23 {
            sync(&pool, &mut model, &[(inode, 1, 3_000)]);
        }
        let (log, images) = (log_of(&pool), sim.images());
        drop(pool);
        let copies: Vec<usize> = log.iter().map(|(device, _)| device.get().into()).collect();
        // One copy of each record is enough.
        for lost in (0..count).filter(|_| count > 1) {
            let sim = SimWorld::from_images(images.clone());
            log_unread(&sim, &log, &[lost]);
            let pool = import(&sim, 3).unwrap();
            assert_eq!(replay(&pool), 3, "{word}, without {lost}");
        }
        let sim = SimWorld::from_images(images.clone());
        log_unread(&sim, &log, &copies);
        let refused = import(&sim, 3).err().expect("a refusal");
        assert!(matches!(refused, PoolError::Refused(Refusal::LogUnread { .. })), "{word}: {refused}");
        assert!(sim.images() == images, "{word}: a refused import wrote");
        let read_only = ImportOptions { read_only: true, ..ImportOptions::default() };
        let pool = Kept::import(world(4), plan(sim.devices()), &read_only).unwrap();
        assert_eq!(contents(&pool), Ok(committed.clone()), "{word}");
        assert_eq!(pool.log_left(), Some(refused.to_string()), "{word}: it is told");
        drop(pool);
        // When they answer again, nothing was lost by the try.
        (0..count).for_each(|device| sim.device(device).clear_faults());
        let pool = Kept::import(world(4), plan(sim.devices()), &read_only).unwrap();
        assert_eq!(pool.log_left(), None, "{word}");
        drop(pool);
        let pool = import(&sim, 5).unwrap();
        assert_eq!(replay(&pool), 3, "{word}");
        drop(pool);
        let sim = SimWorld::from_images(images.clone());
        log_unread(&sim, &log, &copies);
        let accept = ImportOptions { accept_loss: true, ..ImportOptions::default() };
        let pool = Kept::import(world(6), plan(sim.devices()), &accept).unwrap();
        assert_eq!(replay(&pool), 0, "{word}");
        assert_eq!(contents(&pool), Ok(committed), "{word}");
        assert!(pool.events(0).iter().any(|(_, event)| event.class == "data"), "{word}: it is told");
    }
}

#[test]
fn a_log_that_was_ended_by_an_export_need_not_be_readable() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    sync(&pool, &mut model, &[(20, 1, 3_000)]);
    commit(&pool, &mut model, &files(10, 5, 1));
    let log = log_of(&pool);
    pool.commit_export().unwrap();
    drop(pool);
    log_unread(&sim, &log, &[0]);
    verify(&open(&sim, 2), &model);
}
