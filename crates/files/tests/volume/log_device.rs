//! Groups with a role: the log on devices of its own, which may be lost, and metadata on others, which may not.

use crate::bed::{Bed, ROOT};
use larder_device::Inline;
use larder_files::{NodeId, Ops};
use larder_format::root::{GroupRole, NO_GROUP};
use larder_format::segment::SegmentKind;
use larder_format::{ByteLen, DeviceIndex, GroupIndex};
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, ImportOptions, PoolError, Refusal};
use larder_sim::{DeviceImage, Fault, SimWorld, Survival};
use std::collections::BTreeSet;
use std::sync::Arc;

const SIZE: ByteLen = ByteLen::new(64 << 20);
/// The log's group, and the first of its devices, behind two of data.
const LOG: GroupIndex = GroupIndex::new(1);
const LOG_DEVICE: usize = 2;

/// A mirror of two, and a group of this role behind it.
fn bed_with(role: GroupRole, devices: usize) -> Bed {
    let sizes = vec![SIZE; devices];
    let word = if devices == 1 { "single" } else { "mirror" };
    let groups: [(GroupRole, &str, &[ByteLen]); 2] =
        [(GroupRole::Data, "mirror", &[SIZE; 2]), (role, word, &sizes)];
    Bed::with_groups(Arc::new(Inline), &groups, &[("compression", "off")])
}

/// Groups that have segments of a kind which are not freed.
fn groups_of(bed: &Bed, kind: SegmentKind) -> BTreeSet<GroupIndex> {
    let core = bed.pool.store().core.lock();
    let of = core.entries.values().filter(|entry| entry.segment.kind == kind && entry.freed.get() == 0);
    of.map(|entry| entry.segment.group).collect()
}

/// The devices after a power cut now; those of `lost` are not there.
fn cut(bed: Bed, lost: &[usize]) -> SimWorld {
    let trace = bed.sim.trace();
    let images = trace.crash_images(trace.len(), Survival::DropAll);
    drop(bed);
    let there = |(index, image): (usize, DeviceImage)| (!lost.contains(&index)).then_some(image);
    SimWorld::from_images(images.into_iter().enumerate().filter_map(there).collect())
}

/// The pool that is imported from that, and asks nothing.
fn after_cut(bed: Bed, lost: &[usize]) -> Bed {
    let clock = Arc::clone(&bed.clock);
    Bed::import(cut(bed, lost), clock, 2)
}

/// Whether the file holds a version whole.
fn holds(bed: &Bed, version: u8) -> bool {
    bed.content(bed.find("file").unwrap().node) == [version; 5_000]
}

fn accepting_loss() -> ImportOptions {
    ImportOptions { accept_loss: true, ..ImportOptions::default() }
}

#[test]
fn an_fsync_asks_the_log_devices_alone_and_is_found_there_after_a_cut() {
    for devices in [1, 2] {
        let bed = bed_with(GroupRole::Log, devices);
        let node = bed.file(ROOT, "file");
        bed.write(node, 0, &[1; 5_000]);
        bed.pool.commit().unwrap();
        (0..2 + devices).for_each(|device| bed.sim.device(device).reset_counters());
        bed.write(node, 0, &[2; 5_000]);
        bed.fsync(node);
        let asked = |device: usize| bed.sim.device(device).counters();
        for data in 0..2 {
            assert_eq!((asked(data).writes, asked(data).flushes), (0, 0), "device {data} of data was asked");
        }
        for log in 2..2 + devices {
            assert!(asked(log).writes > 0 && asked(log).flushes > 0, "device {log} of the log was not asked");
        }
        assert_eq!(groups_of(&bed, SegmentKind::Log), [LOG].into());
        for kind in [SegmentKind::Data, SegmentKind::Small, SegmentKind::Node, SegmentKind::Run] {
            assert!(!groups_of(&bed, kind).contains(&LOG), "{kind:?}");
        }
        let bed = after_cut(bed, &[]);
        assert!(holds(&bed, 2));
        bed.check();
    }
}

/// Devices whose slots are of 16 MiB: a record of the log takes 4 MiB, and an eighth of the log is 6.
const LARGE: ByteLen = ByteLen::new(16 << 30);

/// A mirror of two such, and a group of this role behind it.
fn large_bed(role: Option<GroupRole>) -> Bed {
    let log: (GroupRole, &str, &[ByteLen]) = (role.unwrap_or(GroupRole::Log), "mirror", &[LARGE; 2]);
    let mut groups = vec![(GroupRole::Data, "mirror", &[LARGE; 2][..])];
    groups.extend(role.map(|_| log));
    Bed::with_groups(Arc::new(Inline), &groups, &[("compression", "off")])
}

/// Two writes of half of that each, and an fsync; whether that took a commit.
fn commits(bed: &Bed, node: NodeId, version: u8, len: usize) -> bool {
    let before = bed.pool.store().durable_commit();
    let half = vec![version; len / 2];
    bed.write(node, 0, &half);
    bed.write(node, half.len() as u64, &half);
    bed.fsync(node);
    bed.pool.store().durable_commit() > before
}

#[test]
fn much_data_is_synced_by_a_log_on_devices_of_its_own() {
    const MIB: usize = 1 << 20;
    for (role, len, by_commit) in [
        (None, MIB, false),
        (None, MIB + 2, true),
        (Some(GroupRole::Log), 3 * MIB, false),
        (Some(GroupRole::Fast), 3 * MIB, false),
        (Some(GroupRole::Log), 4 * MIB, true),
    ] {
        let case = format!("{role:?}, {len} bytes");
        let bed = large_bed(role);
        let node = bed.file(ROOT, "file");
        bed.write(node, 0, &vec![1; len]);
        bed.pool.commit().unwrap();
        assert_eq!(commits(&bed, node, 2, len), by_commit, "{case}");
        // Once more, and behind it what goes by the log in any case.
        assert_eq!(commits(&bed, node, 3, len), by_commit, "{case}");
        let other = bed.file(ROOT, "other");
        bed.write(other, 0, &[7; 100]);
        bed.fsync(other);
        let bed = after_cut(bed, &[]);
        let content = bed.content(bed.find("file").unwrap().node);
        assert!(content == vec![3; len], "{case}");
        assert_eq!(bed.content(bed.find("other").unwrap().node), [7; 100], "{case}");
        bed.check();
    }
}

#[test]
fn much_data_that_is_being_synced_is_there_after_a_cut_whole_or_not_at_all() {
    const LEN: usize = 3 << 20;
    let bed = large_bed(Some(GroupRole::Log));
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &vec![1; LEN]);
    bed.pool.commit().unwrap();
    let before = bed.sim.trace().len();
    assert!(!commits(&bed, node, 2, LEN));
    let trace = bed.sim.trace();
    let after = trace.len();
    assert!(after > before);
    let mut found = BTreeSet::new();
    for at in before..=after {
        for survival in [Survival::DropAll, Survival::KeepAll, Survival::Random { seed: at as u64 }] {
            let world = SimWorld::from_images(trace.crash_images(at, survival));
            let bed = Bed::import(world, Arc::clone(&bed.clock), 2);
            let content = bed.content(bed.find("file").unwrap().node);
            assert!(content.len() == LEN && content.iter().all(|byte| *byte == content[0]), "torn at {at}");
            assert!(at < after || content[0] == 2, "an fsync that returned is lost");
            found.insert(content[0]);
        }
    }
    assert_eq!(found, [1, 2].into());
}

#[test]
fn a_full_log_makes_large_syncs_commits_and_loses_nothing() {
    const LEN: usize = 3 << 20;
    let bed = large_bed(Some(GroupRole::Log));
    let node = bed.file(ROOT, "file");
    let mut taken = 0;
    // 48 MiB of log, 15 of these.
    for version in 1..40 {
        taken += usize::from(commits(&bed, node, version, LEN));
    }
    assert!((2..6).contains(&taken), "{taken} of 39 fsyncs were commits");
    let bed = after_cut(bed, &[]);
    assert!(bed.content(bed.find("file").unwrap().node) == vec![39; LEN]);
    bed.check();
}

#[test]
fn a_removal_that_much_synced_data_came_before_waits_for_a_commit() {
    const LEN: usize = 3 << 20;
    let bed = large_bed(Some(GroupRole::Log));
    let (old, new, other) = (bed.file(ROOT, "old"), bed.file(ROOT, "new"), bed.file(ROOT, "other"));
    bed.write(old, 0, &[1; 5_000]);
    bed.pool.commit().unwrap();
    // Written anew without a sync, the old one removed, and somebody else syncs much.
    bed.write(new, 0, &vec![2; 2 << 20]);
    bed.mount.unlink(ROOT, b"old").unwrap();
    bed.write(other, 0, &vec![3; LEN]);
    bed.fsync(other);
    let bed = after_cut(bed, &[]);
    assert!(bed.content(bed.find("other").unwrap().node) == vec![3; LEN]);
    let there = |name, content: &[u8]| bed.find(name).is_ok_and(|at| bed.content(at.node) == content);
    assert!(there("old", &[1; 5_000]) || there("new", &vec![2; 2 << 20]));
    bed.check();
}

#[test]
fn a_pool_goes_on_without_its_log() {
    for fault in [Fault::Gone, Fault::FailWrites(0..u64::MAX), Fault::FailFlushes, Fault::Hang] {
        let case = format!("{fault:?}");
        let bed = bed_with(GroupRole::Log, 1);
        let node = bed.file(ROOT, "file");
        bed.write(node, 0, &[1; 5_000]);
        bed.fsync(node);
        bed.sim.device(LOG_DEVICE).inject(fault);
        for version in 2..6 {
            bed.write(node, 0, &[version; 5_000]);
            bed.fsync(node);
            assert!(bed.pool.store().suspended().is_none(), "{case}");
        }
        assert_eq!(bed.pool.store().losses_survived(), 1, "{case}: that of the mirror");
        bed.pool.commit().unwrap();
        bed.write(node, 0, &[6; 5_000]);
        bed.fsync(node);
        assert_eq!(groups_of(&bed, SegmentKind::Log), [GroupIndex::new(0)].into(), "{case}");
        // Nobody asks: the newest root says that the log lies elsewhere.
        let bed = after_cut(bed, &[LOG_DEVICE]);
        assert!(holds(&bed, 6), "{case}");
        bed.check();
    }
}

#[test]
fn a_log_device_that_is_there_again_is_used_again() {
    let bed = bed_with(GroupRole::Log, 1);
    let node = bed.file(ROOT, "file");
    let device = bed.sim.device(LOG_DEVICE);
    for round in 0..3 {
        device.inject(Fault::Gone);
        bed.write(node, 0, &[round; 5_000]);
        bed.fsync(node);
        device.clear_faults();
        let found = larder_pool::open::scan(&(Arc::new(bed.sim.device(LOG_DEVICE)) as _));
        let larder_pool::open::Scan::Member(found) = found else { panic!("its label is not found") };
        bed.upkeep.devices.online(DeviceIndex::new(LOG_DEVICE as u16), Some(*found)).unwrap();
        while bed.upkeep.resilver.step(u64::MAX).unwrap() {}
        for _ in 0..4 {
            bed.write(node, 0, &[100 + round; 5_000]);
            bed.pool.commit().unwrap();
        }
        assert_eq!(groups_of(&bed, SegmentKind::Log), [LOG].into(), "round {round}");
        bed.write(node, 0, &[200 + round; 5_000]);
        bed.fsync(node);
    }
    let bed = after_cut(bed, &[]);
    assert!(holds(&bed, 202));
    bed.check();
}

#[test]
fn a_log_that_is_lost_with_the_power_is_asked_about_by_name() {
    let bed = bed_with(GroupRole::Log, 1);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &[1; 5_000]);
    bed.pool.commit().unwrap();
    bed.write(node, 0, &[2; 5_000]);
    bed.fsync(node);
    let clock = Arc::clone(&bed.clock);
    let left = cut(bed, &[LOG_DEVICE]);
    let refused = Bed::try_import(left, Arc::clone(&clock), 2, &ImportOptions::default());
    let Err(PoolError::Refused(Refusal::LogUnread { .. })) = &refused else {
        panic!("{:?}", refused.map(drop));
    };
    drop(refused);
}

#[test]
fn a_lost_log_may_be_given_up_and_costs_what_came_after_the_last_commit() {
    let bed = bed_with(GroupRole::Log, 1);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &[1; 5_000]);
    bed.pool.commit().unwrap();
    bed.write(node, 0, &[2; 5_000]);
    bed.fsync(node);
    let clock = Arc::clone(&bed.clock);
    let bed = Bed::try_import(cut(bed, &[LOG_DEVICE]), Arc::clone(&clock), 2, &accepting_loss()).unwrap();
    let node = bed.find("file").unwrap().node;
    assert!(bed.content(node) == [1; 5_000]);
    bed.write(node, 0, &[3; 5_000]);
    bed.fsync(node);
    bed.check();
    // From then on nobody asks.
    let bed = Bed::import(cut(bed, &[]), clock, 3);
    assert!(holds(&bed, 3));
    bed.check();
}

#[test]
fn a_pool_that_was_exported_is_imported_without_its_log() {
    let bed = bed_with(GroupRole::Log, 1);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &[1; 5_000]);
    bed.fsync(node);
    bed.pool.commit_export().unwrap();
    let bed = after_cut(bed, &[LOG_DEVICE]);
    assert!(holds(&bed, 1));
    let node = bed.find("file").unwrap().node;
    bed.write(node, 0, &[2; 5_000]);
    bed.fsync(node);
    bed.check();
}

#[test]
fn a_commit_that_was_kept_is_finished_without_the_log() {
    let bed = bed_with(GroupRole::Log, 1);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &[1; 5_000]);
    bed.pool.commit().unwrap();
    bed.write(node, 0, &[2; 5_000]);
    (0..2).for_each(|device| bed.sim.device(device).inject(Fault::Full));
    assert!(bed.pool.commit().is_err());
    assert!(bed.pool.store().suspended().is_some());
    bed.sim.device(LOG_DEVICE).inject(Fault::Gone);
    (0..2).for_each(|device| bed.sim.device(device).clear_faults());
    // It tells of the log's device, which is still gone.
    drop(bed.upkeep.devices.clear(None));
    assert_eq!(bed.pool.store().suspended(), None);
    bed.write(node, 0, &[3; 5_000]);
    bed.fsync(node);
    bed.check();
    let bed = after_cut(bed, &[LOG_DEVICE]);
    assert!(holds(&bed, 3));
    bed.check();
}

#[test]
fn a_half_of_the_log_that_missed_only_a_root_is_not_believed_about_what_came_after() {
    let bed = bed_with(GroupRole::Log, 2);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &[1; 5_000]);
    bed.pool.commit().unwrap();
    // The flush of the data goes through, that of the root does not.
    bed.sim.device(LOG_DEVICE).inject_window(Fault::FailFlushes, 1, u64::MAX);
    bed.write(node, 0, &[2; 5_000]);
    bed.pool.commit().unwrap();
    bed.write(node, 0, &[3; 5_000]);
    bed.fsync(node);
    let clock = Arc::clone(&bed.clock);
    let left = cut(bed, &[LOG_DEVICE + 1]);
    let images = left.images();
    let bed = match Bed::try_import(left, Arc::clone(&clock), 2, &ImportOptions::default()) {
        Err(PoolError::Refused(Refusal::LogUnread { is_alone: true, .. })) => {
            let options = ImportOptions { without_log: true, ..ImportOptions::default() };
            Bed::try_import(SimWorld::from_images(images), clock, 2, &options).unwrap()
        }
        imported => imported.unwrap(),
    };
    assert!(holds(&bed, 3));
    bed.check();
}

#[test]
fn a_log_that_comes_back_with_a_root_of_its_own_keeps_nobody_out() {
    let bed = bed_with(GroupRole::Log, 1);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &[1; 5_000]);
    bed.pool.commit().unwrap();
    bed.write(node, 0, &[2; 5_000]);
    bed.fsync(node);
    // Its next root reaches the log alone.
    let before = (0..2).map(|device| bed.sim.device(device).image()).collect::<Vec<_>>();
    bed.pool.commit().unwrap();
    let log = bed.sim.device(LOG_DEVICE).image();
    let clock = Arc::clone(&bed.clock);
    drop(bed);
    let options = ImportOptions { without_log: true, ..ImportOptions::default() };
    // Cut before its first commit, and in use.
    for commits in [0, 3] {
        let sim = SimWorld::from_images(before.clone());
        let pool = Bed::try_import_pool(Arc::new(Inline), &sim, &clock, 3, &options).unwrap();
        pool.take_replay();
        pool.replayed();
        for _ in 0..commits {
            pool.commit().unwrap();
        }
        drop(pool);
        let mut images = sim.images();
        images.push(log.clone());
        let bed = Bed::try_import(SimWorld::from_images(images), Arc::clone(&clock), 4, &options).unwrap();
        // The fsync that was given up is found again, unless a commit came between.
        let version = if commits == 0 { 2 } else { 1 };
        assert!(holds(&bed, version), "{commits}");
        let found = larder_pool::open::scan(&(Arc::new(bed.sim.device(LOG_DEVICE)) as _));
        let larder_pool::open::Scan::Member(found) = found else { panic!("its label is not found") };
        bed.upkeep.devices.online(DeviceIndex::new(LOG_DEVICE as u16), Some(*found)).unwrap();
        while bed.upkeep.resilver.step(u64::MAX).unwrap() {}
        for _ in 0..3 {
            bed.pool.commit().unwrap();
        }
        assert_eq!(groups_of(&bed, SegmentKind::Log), [LOG].into(), "{commits}");
        bed.check();
    }
}

#[test]
fn a_lost_log_device_is_replaced() {
    let bed = bed_with(GroupRole::Log, 1);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &[1; 5_000]);
    bed.fsync(node);
    bed.sim.device(LOG_DEVICE).inject(Fault::Gone);
    bed.write(node, 0, &[2; 5_000]);
    bed.fsync(node);
    let new = Arc::new(bed.sim.add_device(SIZE));
    bed.upkeep.devices.replace(DeviceIndex::new(LOG_DEVICE as u16), new).unwrap();
    for _ in 0..4 {
        while bed.upkeep.resilver.step(u64::MAX).unwrap() {}
        bed.write(node, 0, &[3; 5_000]);
        bed.pool.commit().unwrap();
    }
    assert_eq!(groups_of(&bed, SegmentKind::Log), [LOG].into());
    bed.write(node, 0, &[4; 5_000]);
    bed.fsync(node);
    bed.check();
    let bed = after_cut(bed, &[LOG_DEVICE]);
    assert!(holds(&bed, 4));
    bed.check();
}

#[test]
fn a_log_is_taken_out_of_the_pool() {
    for lost in [false, true] {
        let bed = bed_with(GroupRole::Log, 2);
        let node = bed.file(ROOT, "file");
        bed.write(node, 0, &[1; 5_000]);
        bed.fsync(node);
        if lost {
            (2..4).for_each(|device| bed.sim.device(device).inject(Fault::Gone));
        }
        bed.upkeep.reshape.remove_group(LOG).unwrap();
        assert!(bed.pool.store().core.lock().groups.get(&LOG).is_none());
        assert_eq!(bed.pool.store().members().iter().count(), 2);
        bed.write(node, 0, &[2; 5_000]);
        bed.fsync(node);
        bed.check();
        let bed = after_cut(bed, &[2, 3]);
        assert!(holds(&bed, 2));
        bed.check();
        // The next group has a number of its own.
        let devices = vec![Arc::new(bed.sim.add_device(SIZE)) as _];
        let spec = GroupSpec { rule: rule_for("single", 1).unwrap(), role: GroupRole::Log, devices };
        bed.upkeep.reshape.add_group(spec).unwrap();
        bed.pool.commit().unwrap();
        assert_eq!(groups_of(&bed, SegmentKind::Log), [GroupIndex::new(2)].into());
        bed.check();
    }
}

#[test]
fn metadata_lies_on_its_own_group_and_on_data_when_that_is_full() {
    for role in [GroupRole::Special, GroupRole::Fast] {
        let bed = bed_with(role, 2);
        let empty = bed.pool.store().space(128 << 10).size;
        let alone = Bed::with_layout("mirror", &[SIZE; 2], &[]).pool.store().space(128 << 10).size;
        assert_eq!(empty, alone, "{role:?}: what files can take is that of data");
        for i in 0..300 {
            let node = bed.file(ROOT, &format!("file{i}"));
            bed.write(node, 0, &vec![i as u8; 20_000]);
            if i % 10 == 0 {
                bed.fsync(node);
                bed.pool.commit().unwrap();
            }
        }
        bed.pool.commit().unwrap();
        for kind in [SegmentKind::Node, SegmentKind::Run, SegmentKind::Table] {
            assert_eq!(groups_of(&bed, kind), [LOG].into(), "{role:?}: {kind:?}");
        }
        for kind in [SegmentKind::Data, SegmentKind::Small] {
            assert!(!groups_of(&bed, kind).contains(&LOG), "{role:?}: {kind:?}");
        }
        let logs = if role == GroupRole::Fast { LOG } else { GroupIndex::new(0) };
        assert_eq!(groups_of(&bed, SegmentKind::Log), [logs].into(), "{role:?}");
        bed.check();
        // It is as vital as data.
        let clock = Arc::clone(&bed.clock);
        let world = cut(bed, &[2, 3]);
        let refused = Bed::try_import(world, Arc::clone(&clock), 2, &accepting_loss()).map(drop);
        let Err(PoolError::Refused(Refusal::TooFewDevices { .. })) = refused else { panic!("{refused:?}") };
    }
}

#[test]
fn a_full_group_of_metadata_keeps_its_reserve_and_the_rest_goes_to_data() {
    let bed = bed_with(GroupRole::Special, 1);
    let reserve = {
        let mut core = bed.pool.store().core.lock();
        let space = core.groups.change(LOG).unwrap();
        let reserve = space.enough();
        // Somebody has all the rest.
        while space.free_segments() > reserve {
            space.take_any(DeviceIndex::new(LOG_DEVICE as u16)).unwrap();
        }
        core.close_streams(LOG);
        assert_eq!(core.full_of_metadata(), Some(LOG));
        reserve
    };
    for i in 0..200 {
        let node = bed.file(ROOT, &format!("file{i}"));
        bed.write(node, 0, &vec![i as u8; 2_000]);
        if i % 4 == 0 {
            bed.pool.commit().unwrap();
        }
    }
    bed.pool.commit().unwrap();
    assert!(groups_of(&bed, SegmentKind::Node).contains(&GroupIndex::new(0)));
    let core = bed.pool.store().core.lock();
    assert!(core.groups[&LOG].free_segments() >= reserve);
    assert!(!core.is_tight(), "writers need not pay for it");
}

#[test]
fn a_device_too_small_for_a_role_is_refused() {
    let bed = Bed::with_layout("single", &[ByteLen::new(16 << 30)], &[]);
    let devices = vec![Arc::new(bed.sim.add_device(ByteLen::new(256 << 20))) as _];
    let spec = GroupSpec { rule: rule_for("single", 1).unwrap(), role: GroupRole::Log, devices };
    let refused = bed.upkeep.reshape.add_group(spec);
    let Err(PoolError::Refused(Refusal::TooSmall { needed, .. })) = &refused else { panic!("{refused:?}") };
    assert!((384 << 20..400 << 20).contains(needed), "{needed}");
    assert!(bed.pool.store().members().iter().all(|member| member.group != NO_GROUP));
}
