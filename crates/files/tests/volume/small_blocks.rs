//! Small records on the devices of metadata: as long as these have room, and promised nothing there.

use crate::bed::{Bed, ROOT, USER};
use larder_device::Inline;
use larder_files::{FileKind, FsError, Handle, Ops};
use larder_format::root::GroupRole;
use larder_format::segment::{SegmentKind, SegmentState};
use larder_format::{ByteLen, GroupIndex};
use larder_sim::{SimWorld, Survival};
use std::collections::BTreeSet;
use std::sync::Arc;

const SIZE: ByteLen = ByteLen::new(64 << 20);
const DATA: GroupIndex = GroupIndex::new(0);
/// Group for metadata, behind two devices of data.
const SPECIAL: GroupIndex = GroupIndex::new(1);
const RECORD: usize = 16 << 10;
const SMALL: usize = 4096;

fn bed(role: GroupRole, copies: &str) -> Bed {
    let groups: [(GroupRole, &str, &[ByteLen]); 2] =
        [(GroupRole::Data, "mirror", &[SIZE; 2]), (role, "mirror", &[SIZE; 2])];
    let properties = [
        ("compression", "off"),
        ("recordsize", "16384"),
        ("special_small_blocks", "4096"),
        ("copies", copies),
    ];
    Bed::with_groups(Arc::new(Inline), &groups, &properties)
}

/// Bytes of records that live on a group.
fn records_on(bed: &Bed, group: GroupIndex) -> u64 {
    let core = bed.pool.store().core.lock();
    let is_of_records = |kind| matches!(kind, SegmentKind::Data | SegmentKind::Small);
    let there = core.entries.values().filter(|entry| entry.segment.group == group);
    there.filter(|entry| is_of_records(entry.segment.kind)).map(|entry| entry.live_bytes).sum()
}

fn available(bed: &Bed) -> u64 {
    bed.pool.store().space(RECORD as u32).available
}

fn is_short_of_room(bed: &Bed) -> bool {
    bed.pool.store().core.lock().full_of_small() == Some(SPECIAL)
}

/// A file of `len` bytes, by number.
fn store(bed: &Bed, number: usize, version: u8, len: usize) -> Result<(), FsError> {
    let name = format!("file{number}");
    let node = match bed.find(&name) {
        Ok(found) => found.node,
        Err(_) => bed.mount.mknod(ROOT, name.as_bytes(), FileKind::Regular, 0o644, 0, &USER)?.node,
    };
    bed.mount.write(node, Handle(0), 0, &vec![version; len], false).map(drop)
}

fn holds(bed: &Bed, number: usize, version: u8, len: usize) -> bool {
    bed.find(&format!("file{number}")).is_ok_and(|found| bed.content(found.node) == vec![version; len])
}

#[test]
fn small_records_lie_with_metadata_and_others_with_data() {
    for role in [GroupRole::Special, GroupRole::Fast] {
        let bed = bed(role, "1");
        let before = available(&bed);
        (0..500).for_each(|i| store(&bed, i, i as u8, SMALL).unwrap());
        bed.pool.commit().unwrap();
        let small = records_on(&bed, SPECIAL);
        assert!((500 * SMALL as u64..500 * (SMALL as u64 + 200)).contains(&small), "{role:?}: {small}");
        assert_eq!(records_on(&bed, DATA), 0, "{role:?}");
        assert_eq!(available(&bed), before, "{role:?}: they take nothing of what data has");
        (500..600).for_each(|i| store(&bed, i, i as u8, RECORD).unwrap());
        bed.pool.commit().unwrap();
        assert_eq!(records_on(&bed, SPECIAL), small, "{role:?}");
        assert!(records_on(&bed, DATA) > 100 * RECORD as u64, "{role:?}");
        assert!(!is_short_of_room(&bed));
        // Switched off they go to data; what is there stays.
        bed.pool.set_property(larder_pool::ROOT_DATASET, "special_small_blocks", "0").unwrap();
        (600..700).for_each(|i| store(&bed, i, i as u8, SMALL).unwrap());
        bed.pool.commit().unwrap();
        assert_eq!(records_on(&bed, SPECIAL), small, "{role:?}");
        bed.check();
        let bed = bed.crash(2);
        (0..700).for_each(|i| {
            let len = if (500..600).contains(&i) { RECORD } else { SMALL };
            assert!(holds(&bed, i, i as u8, len), "{role:?}: {i}");
        });
        bed.check();
    }
}

#[test]
fn a_quarter_is_left_to_metadata_and_the_rest_goes_to_data() {
    let bed = bed(GroupRole::Special, "1");
    let total = bed.pool.store().core.lock().groups[&SPECIAL].total_segments();
    let mut number = 0;
    while !is_short_of_room(&bed) {
        for _ in 0..200 {
            store(&bed, number, number as u8, SMALL).unwrap();
            number += 1;
        }
        bed.pool.commit().unwrap();
        assert!(number < 40_000);
    }
    let free = bed.pool.store().core.lock().groups[&SPECIAL].free_segments();
    assert!(free * 5 > total, "{free} of {total} are left");
    assert!(records_on(&bed, SPECIAL) > 30 << 20);
    let on_data = records_on(&bed, DATA);
    (0..500).for_each(|i| store(&bed, number + i, 1, SMALL).unwrap());
    bed.pool.commit().unwrap();
    assert!(records_on(&bed, DATA) >= on_data + 500 * SMALL as u64);
    bed.check();
    // Files that go make room for others.
    (0..number).step_by(2).for_each(|i| bed.mount.unlink(ROOT, format!("file{i}").as_bytes()).unwrap());
    for _ in 0..200 {
        bed.mount.reap_step(1000).unwrap();
        bed.pool.commit().unwrap();
        bed.pool.tick().unwrap();
    }
    assert!(!is_short_of_room(&bed), "the cleaner wins room back among metadata");
    let on_data = records_on(&bed, DATA);
    assert!(on_data < 8 << 20, "none came over to data: {on_data}");
    (1..number).step_by(2).for_each(|i| assert!(holds(&bed, i, i as u8, SMALL), "{i}"));
    bed.check();
}

#[test]
fn writes_are_refused_when_data_has_no_room_and_only_then() {
    let bed = bed(GroupRole::Special, "1");
    let mut number = 0;
    // Large ones, until there is no room for them.
    let full = loop {
        match store(&bed, number, 1, 4 * RECORD) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full, FsError::NoSpace);
    bed.pool.commit().unwrap();
    assert!(available(&bed) < 4 * RECORD as u64 + (1 << 20), "{}", available(&bed));
    // Small ones fit nowhere by right.
    let small = (0..50).filter(|i| store(&bed, 10_000 + i, 2, SMALL).is_ok()).count();
    bed.pool.commit().unwrap();
    assert!(small <= 40, "{small} were accepted");
    // After something went they are accepted, and change nothing of what data has.
    (0..40).for_each(|i| bed.mount.unlink(ROOT, format!("file{i}").as_bytes()).unwrap());
    for _ in 0..50 {
        bed.mount.reap_step(1000).unwrap();
        bed.pool.commit().unwrap();
        bed.pool.tick().unwrap();
    }
    let before = available(&bed);
    assert!(before > 1 << 20, "{before}");
    for i in 0..500 {
        store(&bed, 20_000 + i, 3, SMALL).unwrap();
    }
    bed.pool.commit().unwrap();
    assert!(available(&bed) + (128 << 10) > before, "{before}, then {}", available(&bed));
    (40..number).for_each(|i| assert!(holds(&bed, i, 1, 4 * RECORD), "{i}"));
    bed.check();
}

#[test]
fn small_records_written_over_and_over_on_nearly_full_devices_are_all_there() {
    for copies in ["1", "2"] {
        let bed = bed(GroupRole::Fast, copies);
        const FILES: usize = 6_000;
        for round in 0..12_u8 {
            for i in (0..FILES).filter(|i| round == 0 || !(i * 7 + usize::from(round)).is_multiple_of(3)) {
                store(&bed, i, round, SMALL - usize::from(round)).unwrap();
                if i % 1000 == 0 {
                    bed.pool.commit().unwrap();
                    bed.pool.tick().unwrap();
                }
            }
            bed.pool.commit().unwrap();
        }
        let version = |i: usize| {
            (0..12_u8).rev().find(|r| *r == 0 || !(i * 7 + usize::from(*r)).is_multiple_of(3)).unwrap()
        };
        bed.check();
        let bed = bed.crash(2);
        for i in 0..FILES {
            let content = bed.content(bed.find(&format!("file{i}")).unwrap().node);
            // A shorter one leaves the end of the one before.
            let version = version(i);
            assert!(
                content[..SMALL - usize::from(version)] == vec![version; SMALL - usize::from(version)],
                "{i}"
            );
        }
        bed.check();
    }
}

#[test]
fn small_records_go_to_data_when_their_devices_leave() {
    let bed = bed(GroupRole::Special, "1");
    (0..2_000).for_each(|i| store(&bed, i, i as u8, SMALL).unwrap());
    bed.pool.commit().unwrap();
    let (there, before) = (records_on(&bed, SPECIAL), available(&bed));
    assert!(there > 2_000 * SMALL as u64);
    bed.upkeep.reshape.remove_group(SPECIAL).unwrap();
    for _ in 0..200 {
        if bed.pool.store().core.lock().groups.get(&SPECIAL).is_none() {
            break;
        }
        bed.upkeep.reshape.step(1 << 20).unwrap();
        bed.pool.commit().unwrap();
    }
    assert!(bed.pool.store().core.lock().groups.get(&SPECIAL).is_none(), "it is still there");
    assert!(records_on(&bed, DATA) >= there);
    let now = available(&bed);
    assert!(now + there < before, "{before}, then {now}");
    bed.check();
    let images = bed.sim.images().into_iter().take(2).collect();
    let clock = Arc::clone(&bed.clock);
    drop(bed);
    let bed = Bed::import(SimWorld::from_images(images), clock, 2);
    (0..2_000).for_each(|i| assert!(holds(&bed, i, i as u8, SMALL), "{i}"));
    bed.check();
}

#[test]
fn power_cuts_while_small_records_come_move_and_go_leave_each_file_as_it_was() {
    let bed = bed(GroupRole::Special, "1");
    const FILES: usize = 300;
    (0..FILES).for_each(|i| store(&bed, i, 1, SMALL).unwrap());
    bed.pool.commit().unwrap();
    let start = bed.sim.trace().len();
    (0..FILES).step_by(2).for_each(|i| store(&bed, i, 2, SMALL).unwrap());
    bed.pool.commit().unwrap();
    bed.upkeep.reshape.remove_group(SPECIAL).unwrap();
    (0..20).for_each(|_| {
        bed.upkeep.reshape.step(1 << 20).unwrap();
        bed.pool.commit().unwrap();
    });
    let trace = bed.sim.trace();
    let mut found = BTreeSet::new();
    let mut sweep = trace.sweep();
    for cut in (start..=trace.len()).step_by(2) {
        sweep.advance_to(cut);
        let survival = match cut / 2 % 3 {
            0 => Survival::DropAll,
            1 => Survival::KeepAll,
            _ => Survival::Random { seed: cut as u64 },
        };
        let images = SimWorld::from_images(sweep.images(survival));
        let bed = Bed::import(images, Arc::clone(&bed.clock), 2);
        let second = holds(&bed, 0, 2, SMALL);
        for i in 0..FILES {
            assert!(holds(&bed, i, if second && i % 2 == 0 { 2 } else { 1 }, SMALL), "{i} at {cut}");
        }
        bed.check();
        let core = bed.pool.store().core.lock();
        let open = core.entries.values().filter(|entry| entry.state == SegmentState::Open);
        found.insert((second, core.groups.contains_key(&SPECIAL), open.count() > 0));
    }
    assert!(
        found.iter().any(|(second, ..)| !second) && found.iter().any(|(second, ..)| *second),
        "{found:?}"
    );
    assert!(found.iter().any(|(_, is_there, _)| !is_there), "{found:?}");
}

#[test]
fn what_was_overwritten_among_metadata_makes_room_for_new_small_records() {
    const LARGE: ByteLen = ByteLen::new(256 << 20);
    const LEN: usize = 64 << 10;
    let groups: [(GroupRole, &str, &[ByteLen]); 2] =
        [(GroupRole::Data, "single", &[LARGE]), (GroupRole::Special, "single", &[LARGE])];
    let properties = [("compression", "off"), ("recordsize", "65536"), ("special_small_blocks", "1048576")];
    let bed = Bed::with_groups(Arc::new(Inline), &groups, &properties);
    let rest = || {
        bed.pool.commit().unwrap();
        bed.pool.tick().unwrap();
    };
    let mut number = 0;
    while !is_short_of_room(&bed) {
        store(&bed, number, 1, LEN).unwrap();
        number += 1;
        if number % 100 == 0 {
            rest();
        }
    }
    assert!(number > 2_500, "{number}");
    rest();
    // Every third anew, which goes to data for lack of room: what it leaves is dead in nearly all segments.
    let on_data = records_on(&bed, DATA);
    (0..number).step_by(3).for_each(|i| store(&bed, i, 2, LEN).unwrap());
    rest();
    assert!(records_on(&bed, DATA) > on_data + 30 * (1 << 20));
    (0..300).for_each(|_| rest());
    assert!(!is_short_of_room(&bed), "the cleaner has won room back");
    let before = records_on(&bed, DATA);
    (0..100).for_each(|i| store(&bed, number + i, 3, LEN).unwrap());
    rest();
    assert_eq!(records_on(&bed, DATA), before, "new ones are with metadata again");
    bed.check();
    let bed = bed.crash(2);
    (0..number).for_each(|i| assert!(holds(&bed, i, if i % 3 == 0 { 2 } else { 1 }, LEN), "{i}"));
    bed.check();
}
