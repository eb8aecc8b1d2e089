//! Groups that grow, shrink and change their layout; groups that leave; rebalancing.

use crate::common::*;
use larder_device::{Device, Entropy, SeededEntropy};
use larder_format::{ByteLen, DeviceIndex, DeviceOffset, GroupIndex, PoolGuid};
use larder_pool::create::rule_for;
use larder_pool::open::{Importable, Scan, assemble, scan};
use larder_pool::{GroupSpec, ImportOptions, PoolError, PoolSpec, ROOT_DATASET, Refusal};
use larder_sim::{Fault, SimClock, SimWorld, Survival};
use larder_upkeep::{Expanded, RebalanceState};
use std::sync::Arc;
use std::time::Duration;

const RECORD: u32 = 128 << 10;
/// Of a device; larger ones have as large slots, and more of them.
const SIZE: ByteLen = ByteLen::new(96 << 20);
const GROUP: GroupIndex = GroupIndex::new(0);

fn device(index: u16) -> DeviceIndex {
    DeviceIndex::new(index)
}

fn new_devices(sim: &SimWorld, count: usize) -> Vec<Arc<dyn Device>> {
    (0..count).map(|_| Arc::new(sim.add_device(SIZE)) as Arc<dyn Device>).collect()
}

fn available(pool: &Kept) -> u64 {
    pool.store().space(RECORD).available
}

/// Commits after which freed slots are there.
fn commit_thrice(pool: &Kept) {
    for _ in 0..3 {
        pool.commit().unwrap();
    }
}

/// Everything that does not fit its group is moved, and who is to leave has left.
fn reshape(pool: &Kept) {
    for steps in 0.. {
        assert!(
            steps < 5_000,
            "{} bytes are left: {:?}",
            pool.upkeep.reshape.left(),
            pool.upkeep.reshape.stuck()
        );
        if !pool.upkeep.reshape.step(256 << 10).unwrap() && !pool.upkeep.reshape.is_due() {
            break;
        }
    }
    assert_eq!((pool.upkeep.reshape.left(), pool.upkeep.reshape.stuck()), (0, None));
}

/// Runs a rebalance to its end; the bytes moved.
fn rebalance(pool: &Kept) -> u64 {
    pool.upkeep.rebalance.start(0).unwrap();
    go_on(pool)
}

fn go_on(pool: &Kept) -> u64 {
    for steps in 0.. {
        assert!(steps < 5_000, "it does not end: {:?}", pool.upkeep.rebalance.progress());
        if pool.upkeep.rebalance.step(256 << 10).unwrap().is_none() {
            break;
        }
    }
    let ended = pool.upkeep.rebalance.progress().unwrap();
    assert_eq!((ended.state, ended.left), (RebalanceState::Done, 0), "{ended:?}");
    commit_thrice(pool);
    ended.moved
}

/// Files that no codec shrinks until so much of AVAIL is taken; the next number.
fn fill(pool: &Kept, model: &mut Model, mut inode: u64, percent: u64) -> u64 {
    let goal = available(pool) * (100 - percent) / 100;
    while available(pool) > goal {
        // Every third is stored as it is.
        let files: Vec<_> = (inode..inode + 16).map(|inode| (inode * 3, 1, 90_000)).collect();
        if pool.check_space(16 * 90_000, RECORD).is_err() {
            break;
        }
        put(pool, &pool.dataset(ROOT_DATASET).unwrap(), &files);
        model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
        inode += 16;
        if inode.is_multiple_of(256) {
            pool.commit().unwrap();
        }
    }
    commit_thrice(pool);
    inode
}

/// The pool is imported without so many of its devices, whichever they are, and has everything.
fn assert_survives(sim: &SimWorld, devices: &[usize], losses: usize, model: &Model, case: &str) {
    for (at, &first) in devices.iter().enumerate() {
        let lost: Vec<usize> =
            (0..losses).map(|more| devices[(at + more * (1 + at % 2)) % devices.len()]).collect();
        let lost = if losses > 0 { lost } else { vec![first; 0] };
        let after = SimWorld::from_images(sim.images());
        let left = devices.iter().filter(|index| !lost.contains(index));
        let left = left.map(|&index| Arc::new(after.device(index)) as Arc<dyn Device>).collect();
        let pool = import_from(left, 77).unwrap_or_else(|error| panic!("{case}, without {lost:?}: {error}"));
        replay(&pool);
        verify(&pool, model);
        if losses == 0 {
            break;
        }
    }
}

/// AVAIL of a pool made of so many devices with the files of a model.
fn made_new(word: &str, count: usize, model: &Model) -> u64 {
    let sim = SimWorld::new(&vec![SIZE; count]);
    let pool = create(&sim, word);
    let files: Vec<_> = model.iter().map(|(&inode, &(version, len))| (inode, version, len)).collect();
    for files in files.chunks(256) {
        put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), files);
        pool.commit().unwrap();
    }
    commit_thrice(&pool);
    available(&pool)
}

/// Bytes of records that a segment takes.
fn a_segment(pool: &Kept) -> u64 {
    pool.store().core.lock().groups[&GROUP].per_segment(RECORD)
}

/// AVAIL is that of a pool made new with these devices and files, but for open segments: what is moved has up to six
/// lifetimes, and such a device has some fifty slots.
fn assert_as_new(pool: &Kept, model: &Model, case: &str) {
    let rule = pool.store().groups()[0].rule;
    let (now, new) = (available(pool), made_new(&rule.name(), rule.layout.columns(), model));
    let open = 6 * a_segment(pool);
    assert!(now.abs_diff(new) <= new / 50 + open, "{case}: AVAIL {now}, of a new pool {new}");
}

/// Groups and what they get: word, devices, further ones, losses survived.
const GROWTH: [(&str, usize, usize, usize); 6] = [
    ("raidz1", 3, 1, 1),
    ("raidz1", 5, 1, 1),
    ("raidz2", 4, 2, 2),
    ("raidz3", 5, 1, 3),
    ("raid10", 4, 2, 1),
    ("raid14", 5, 2, 2),
];

#[test]
fn a_group_gets_devices_and_a_rebalance_gives_what_a_new_pool_would_have() {
    for (word, count, more, losses) in GROWTH {
        let case = format!("{word} of {count} and {more}");
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        let next = fill(&pool, &mut model, 16, 60);
        let before = available(&pool);
        pool.upkeep.reshape.attach(device(0), new_devices(&sim, more)).unwrap();
        let at_once = available(&pool);
        assert!(at_once > before, "{case}: {before} before, {at_once} after");
        assert_eq!(pool.store().losses_survived(), losses, "{case}");
        let all: Vec<usize> = (0..count + more).collect();
        assert_survives(&sim, &all, losses, &model, &case);
        // Room that it tells of is there at once.
        reshape(&pool);
        let (said, gain) = (available(&pool), pool.store().gain(RECORD));
        fill(&pool, &mut model, next, 30);
        let moved = rebalance(&pool);
        assert_whole(&pool, &case);
        verify(&pool, &model);
        assert_survives(&sim, &all, losses, &model, &case);
        let (now, new) = (available(&pool), made_new(word, count + more, &model));
        println!(
            "{case}: AVAIL {before}, {said} at once, {gain} to gain; {moved} moved; {now}, {new} if new"
        );
        assert_as_new(&pool, &model, &case);
        let gain = pool.store().gain(RECORD);
        assert!(gain <= 2 * a_segment(&pool), "{case}: {gain} more to gain");
        assert_eq!(rebalance(&pool), 0, "{case}: nothing gains");
    }
}

#[test]
fn a_full_group_gets_a_device_and_has_its_room_after_a_rebalance() {
    for (word, count, more, losses) in GROWTH {
        let case = format!("{word} of {count} and {more}");
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        let next = fill(&pool, &mut model, 16, 100);
        pool.upkeep.reshape.attach(device(0), new_devices(&sim, more)).unwrap();
        reshape(&pool);
        let gain = pool.store().gain(RECORD);
        let (before, moved) = (available(&pool), rebalance(&pool));
        let now = available(&pool);
        println!("{case}: AVAIL {before} and {gain} to gain; {moved} moved; {now}");
        assert_as_new(&pool, &model, &case);
        // With so few slots, what is open is much of it.
        assert!(before + gain >= now && gain <= 2 * now, "{case}: {gain} was promised");
        fill(&pool, &mut model, next, 100);
        assert_whole(&pool, &case);
        verify(&pool, &model);
        assert_survives(&sim, &(0..count + more).collect::<Vec<_>>(), losses, &model, &case);
    }
}

#[test]
fn a_device_leaves_a_group_with_parity_and_comes_out_blank() {
    for (word, count, losses) in [("raidz1", 4, 1), ("raidz2", 5, 2), ("raidz3", 6, 3)] {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        fill(&pool, &mut model, 16, 45);
        pool.upkeep.reshape.remove(device(1)).unwrap();
        assert!(pool.upkeep.reshape.remove(device(1)).is_err(), "twice");
        assert!(pool.upkeep.reshape.remove(device(2)).is_err(), "{word}: two at a time");
        assert!(pool.upkeep.reshape.attach(device(0), new_devices(&sim, 1)).is_err(), "{word}: one leaves");
        let all: Vec<usize> = (0..count).collect();
        assert_survives(&sim, &all, losses, &model, word);
        pool.upkeep.reshape.step(1 << 20).unwrap();
        pool.commit_export().unwrap();
        drop(pool);
        let pool = open(&sim, 4);
        reshape(&pool);
        assert_eq!(pool.store().members().iter().len(), count - 1, "{word}: it left");
        assert!(matches!(scan(&(Arc::new(sim.device(1)) as Arc<dyn Device>)), Scan::NotOurs));
        assert_whole(&pool, word);
        verify(&pool, &model);
        let left: Vec<usize> = (0..count).filter(|index| *index != 1).collect();
        assert_survives(&sim, &left, losses, &model, word);
        assert_as_new(&pool, &model, word);
    }
}

#[test]
fn a_dead_device_leaves_a_group_with_parity() {
    let sim = SimWorld::new(&[SIZE; 4]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 40);
    pool.commit_export().unwrap();
    drop(pool);
    let left = [0, 1, 3].map(|index| Arc::new(sim.device(index)) as Arc<dyn Device>);
    let pool = import_from(left.to_vec(), 4).unwrap();
    assert_eq!(pool.store().losses_survived(), 0);
    pool.upkeep.reshape.remove(device(2)).unwrap();
    assert_eq!(pool.store().losses_survived(), 0, "what is stored lacks it");
    reshape(&pool);
    assert_eq!((pool.store().losses_survived(), pool.store().members().iter().len()), (1, 3));
    assert_whole(&pool, "without the dead one");
    assert_survives(&sim, &[0, 1, 3], 1, &model, "without the dead one");
}

#[test]
fn what_does_not_fit_into_the_rest_does_not_begin_to_leave() {
    let sim = SimWorld::new(&[SIZE; 4]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 95);
    let refused = pool.upkeep.reshape.remove(device(1)).unwrap_err();
    assert!(matches!(refused, PoolError::Refused(Refusal::NoRoomFor { .. })), "{refused}");
    let refused = pool.upkeep.reshape.change_layout(GROUP, "raidz2", Vec::new()).unwrap_err();
    assert!(matches!(refused, PoolError::Refused(Refusal::NoRoomFor { .. })), "{refused}");
    assert!(!pool.upkeep.reshape.is_due());
    let spec = GroupSpec::data(rule_for("mirror", 2).unwrap(), new_devices(&sim, 2));
    pool.upkeep.reshape.add_group(spec).unwrap();
    let refused = pool.upkeep.reshape.remove_group(GROUP).unwrap_err();
    assert!(matches!(refused, PoolError::Refused(Refusal::NoRoomFor { .. })), "{refused}");
    pool.upkeep.reshape.remove_group(GroupIndex::new(1)).unwrap();
    let refused = pool.upkeep.reshape.remove_group(GROUP).unwrap_err();
    assert!(matches!(refused, PoolError::Refused(Refusal::LastGroup(_))), "{refused}");
    reshape(&pool);
    assert_eq!(pool.store().groups().len(), 1);
    assert_whole(&pool, "as before");
    verify(&pool, &model);
}

#[test]
fn what_moves_has_its_room_however_much_is_written_beside_it() {
    let sim = SimWorld::new(&[SIZE; 5]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    let next = fill(&pool, &mut model, 16, 55);
    pool.upkeep.reshape.remove(device(4)).unwrap();
    // Everything that is available is taken while it leaves.
    fill(&pool, &mut model, next, 100);
    reshape(&pool);
    assert_eq!(pool.store().members().iter().len(), 4);
    assert_whole(&pool, "full");
    verify(&pool, &model);
}

#[test]
fn a_group_leaves_when_all_of_it_is_elsewhere_and_can_be_told_to_stay() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    let next = fill(&pool, &mut model, 16, 50);
    let spec = GroupSpec::data(rule_for("raidz1", 3).unwrap(), new_devices(&sim, 3));
    pool.upkeep.reshape.add_group(spec).unwrap();
    let next = fill(&pool, &mut model, next, 20);
    let before = available(&pool);
    pool.upkeep.reshape.remove_group(GROUP).unwrap();
    assert!(available(&pool) < before, "nothing is put there any more");
    pool.upkeep.reshape.step(1 << 20).unwrap();
    pool.upkeep.reshape.keep_group(GROUP).unwrap();
    assert!(pool.upkeep.reshape.keep_group(GROUP).is_err(), "it stays already");
    reshape(&pool);
    assert_whole(&pool, "both stay");
    assert_survives(&sim, &[0, 1, 2, 3, 4], 1, &model, "both stay");
    pool.upkeep.reshape.remove_group(GROUP).unwrap();
    pool.upkeep.reshape.step(1 << 20).unwrap();
    pool.commit_export().unwrap();
    drop(pool);
    let pool = open(&sim, 6);
    assert!(matches!(pool.upkeep.reshape.remove_group(GROUP), Err(PoolError::Refused(Refusal::GroupLeaves))));
    fill(&pool, &mut model, next, 30);
    reshape(&pool);
    assert_eq!((pool.store().groups().len(), pool.store().members().iter().len()), (1, 3));
    for index in [0, 1] {
        assert!(matches!(scan(&(Arc::new(sim.device(index)) as Arc<dyn Device>)), Scan::NotOurs));
    }
    assert_whole(&pool, "one group");
    verify(&pool, &model);
    assert_survives(&sim, &[2, 3, 4], 1, &model, "one group");
}

#[test]
fn a_device_that_was_to_leave_can_be_told_to_stay() {
    let sim = SimWorld::new(&[SIZE; 4]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    let next = fill(&pool, &mut model, 16, 40);
    pool.upkeep.reshape.remove(device(2)).unwrap();
    pool.upkeep.reshape.step(2 << 20).unwrap();
    pool.upkeep.reshape.keep(device(2)).unwrap();
    assert!(pool.upkeep.reshape.keep(device(2)).is_err(), "it stays already");
    reshape(&pool);
    assert_whole(&pool, "it stays");
    fill(&pool, &mut model, next, 30);
    rebalance(&pool);
    assert_as_new(&pool, &model, "it stays");
    assert_whole(&pool, "it stays");
    verify(&pool, &model);
    assert_survives(&sim, &[0, 1, 2, 3], 1, &model, "it stays");
}

/// Layouts that become others: word and devices, the new word and further devices, losses survived before and after.
const OTHERS: [(&str, usize, &str, usize, [usize; 2]); 9] = [
    ("raidz1", 4, "raidz2", 0, [1, 2]),
    ("raidz2", 4, "raidz1", 0, [2, 1]),
    ("raidz1", 3, "raidz2", 1, [1, 2]),
    ("mirror", 2, "raidz1", 1, [1, 1]),
    ("raidz1", 3, "mirror", 0, [1, 2]),
    ("raid10", 4, "raid14", 1, [1, 2]),
    ("raid14", 5, "raidz2", 0, [2, 2]),
    ("single", 1, "raidz1", 2, [0, 1]),
    ("raid10", 4, "raidz2", 0, [1, 2]),
];

#[test]
fn a_group_becomes_one_of_another_layout() {
    for (from, count, to, more, [before, after]) in OTHERS {
        let case = format!("{from} of {count} to {to} of {}", count + more);
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, from);
        let mut model = Model::new();
        let next = fill(&pool, &mut model, 16, 30);
        pool.upkeep.reshape.change_layout(GROUP, to, new_devices(&sim, more)).unwrap();
        assert_eq!(pool.store().losses_survived(), before.min(after), "{case}: what is stored counts");
        let all: Vec<usize> = (0..count + more).collect();
        assert_survives(&sim, &all, before.min(after), &model, &case);
        fill(&pool, &mut model, next, 10);
        pool.upkeep.reshape.step(1 << 20).unwrap();
        drop(pool);
        let pool = open(&sim, 3);
        reshape(&pool);
        assert_eq!(pool.store().losses_survived(), after, "{case}");
        assert_whole(&pool, &case);
        verify(&pool, &model);
        assert_survives(&sim, &all, after, &model, &case);
    }
}

#[test]
fn groups_are_filled_alike_by_a_rebalance() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 80);
    let spec = GroupSpec::data(rule_for("mirror", 2).unwrap(), new_devices(&sim, 2));
    pool.upkeep.reshape.add_group(spec).unwrap();
    let moved = rebalance(&pool);
    let used = |pool: &Kept| pool.store().accounts().iter().map(|of| of.slots - of.free).collect::<Vec<_>>();
    let now = used(&pool);
    assert!(moved > 0 && now[0].abs_diff(now[1]) * 100 <= 6 * (now[0] + now[1]), "{now:?}");
    assert_whole(&pool, "two groups");
    verify(&pool, &model);
}

#[test]
fn a_rebalance_keeps_to_its_rate_is_stopped_and_goes_on_after_an_export() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 50);
    pool.upkeep.reshape.attach(device(0), new_devices(&sim, 1)).unwrap();
    assert!(pool.upkeep.rebalance.progress().is_none());
    assert!(pool.upkeep.rebalance.stop().is_err());
    let rate = 1 << 20;
    pool.upkeep.rebalance.start(rate).unwrap();
    assert!(matches!(pool.upkeep.rebalance.start(0), Err(PoolError::Busy(_))));
    let moved = pool.upkeep.rebalance.step(256 << 10).unwrap().unwrap();
    assert!(moved > 0 && !pool.upkeep.rebalance.is_due(), "the next step comes later");
    assert_eq!(pool.upkeep.rebalance.step(256 << 10).unwrap(), None);
    pool.upkeep.rebalance.stop().unwrap();
    assert_eq!(pool.upkeep.rebalance.progress().unwrap().state, RebalanceState::Stopped);
    pool.upkeep.rebalance.start(0).unwrap();
    pool.upkeep.rebalance.step(256 << 10).unwrap();
    let began = pool.upkeep.rebalance.progress().unwrap().began;
    pool.commit_export().unwrap();
    drop(pool);
    let pool = open(&sim, 5);
    assert!(pool.upkeep.rebalance.is_active());
    assert_eq!(pool.upkeep.rebalance.progress().unwrap().began, began);
    go_on(&pool);
    assert_whole(&pool, "wide");
    verify(&pool, &model);
}

#[test]
fn a_rebalance_begins_by_itself_where_that_is_wanted_and_pays() {
    let (sim, clock) = (SimWorld::new(&[SIZE; 3]), Arc::new(SimClock::new()));
    let pool = create_by(&clock, sim.devices(), "raidz1");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 50);
    let begins = || {
        pool.upkeep.rebalance.begin_by_itself().unwrap();
        pool.upkeep.rebalance.is_active()
    };
    pool.set_pool_property("autorebalance", "on").unwrap();
    assert!(!begins(), "nothing would move");
    pool.upkeep.reshape.attach(device(0), new_devices(&sim, 1)).unwrap();
    pool.set_pool_property("autorebalance", "off").unwrap();
    assert!(!begins(), "nobody wants it");
    pool.set_pool_property("autorebalance", "on").unwrap();
    assert!(begins());
    go_on(&pool);
    pool.upkeep.reshape.attach(device(0), new_devices(&sim, 1)).unwrap();
    assert!(!begins(), "there was one just now");
    clock.advance(Duration::from_secs(7 * 3600));
    assert!(begins());
}

#[test]
fn devices_of_different_sizes_are_full_when_the_pool_says_so() {
    let rng = SeededEntropy::new(17);
    for mix in 0..repeats(4, 100) {
        let (word, least) = [("raidz1", 2), ("raidz2", 3), ("mirror", 2)][(mix % 3) as usize];
        let count = if word == "mirror" { 2 } else { least + 1 + rng.next_u64() as usize % 4 };
        let sizes: Vec<ByteLen> =
            (0..count).map(|_| ByteLen::new((64 + rng.next_u64() % 128) << 20)).collect();
        let case = format!(
            "mix {mix}: {word} of {:?}",
            sizes.iter().map(|size| size.get() >> 20).collect::<Vec<_>>()
        );
        let sim = SimWorld::new(&sizes);
        let pool = create(&sim, word);
        let (said, mut model) = (available(&pool), Model::new());
        fill(&pool, &mut model, 16, 100);
        let stored: u64 = pool.store().accounts().iter().map(|of| of.data_bytes).sum();
        let (used, size) = pool.store().raw_space();
        println!("{case}: AVAIL {said}, stored {stored}, {used} of {size} in use");
        assert!(stored * 100 >= said * 96, "{case}: AVAIL said {said}, {stored} bytes are stored");
        // The reserve is as large as sixteen segments here.
        assert_whole(&pool, &case);
        verify(&pool, &model);
    }
}

/// Takes every other file away; those that are left.
fn thin_out(pool: &Kept, model: &mut Model) {
    let gone: Vec<u64> = model.keys().copied().step_by(2).collect();
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for gone in gone.chunks(64) {
        try_remove(pool, &dataset, gone).unwrap();
        pool.commit().unwrap();
    }
    model.retain(|inode, _| !gone.contains(inode));
    while pool.freeing_bytes() > 0 {
        pool.tick().unwrap();
        pool.commit().unwrap();
    }
}

#[test]
fn room_that_is_dead_in_narrow_segments_is_won_back_for_writers() {
    type Made = fn(&SimWorld) -> Kept;
    let sizes = [64, 64, 64, 200, 200].map(|mib: u64| ByteLen::new(mib << 20));
    let cases: [(&str, Vec<ByteLen>, Made); 2] = [
        ("unequal devices", sizes.to_vec(), |sim| create(sim, "raidz1")),
        ("two devices more", vec![SIZE; 3], |sim| {
            let pool = create(sim, "raidz1");
            fill(&pool, &mut Model::new(), 100_000, 90);
            pool.upkeep.reshape.attach(device(0), new_devices(sim, 2)).unwrap();
            pool
        }),
    ];
    for (case, sizes, make) in cases {
        let sim = SimWorld::new(&sizes);
        let (pool, mut model) = (make(&sim), Model::new());
        fill(&pool, &mut model, 16, 100);
        thin_out(&pool, &mut model);
        let said = available(&pool);
        let mut written = 0;
        // As writers do.
        while available(&pool) > 4 * 1_440_000 {
            let inode = 200_000 + written / 90_000;
            let files: Vec<_> = (inode..inode + 16).map(|inode| (inode * 3, 1, 90_000)).collect();
            let got = pool.check_space(16 * 90_000, RECORD);
            assert!(got.is_ok(), "{case}: AVAIL {} of {said}, {written} written: {got:?}", available(&pool));
            put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &files);
            model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
            written += 16 * 90_000;
        }
        println!("{case}: AVAIL {said} once half of each segment was dead, {written} written");
        assert!(written * 100 >= said * 85, "{case}: AVAIL said {said}, {written} were written");
        commit_thrice(&pool);
        assert_whole(&pool, case);
        verify(&pool, &model);
    }
}

#[test]
fn a_layout_that_would_not_survive_who_is_out_is_refused_and_the_pool_goes_on() {
    for (from, count, out, to) in [("raidz2", 5, [0, 3], "raidz1"), ("raid10", 4, [0, 2], "raidz1")] {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, from);
        let mut model = Model::new();
        let next = fill(&pool, &mut model, 16, 20);
        out.iter().for_each(|&index| pool.upkeep.devices.offline(device(index), true).unwrap());
        let refused = pool.upkeep.reshape.change_layout(GROUP, to, Vec::new()).unwrap_err();
        assert!(
            matches!(refused, PoolError::Refused(Refusal::TooManyOut { .. })),
            "{from} to {to}: {refused}"
        );
        fill(&pool, &mut model, next, 5);
        assert!(pool.store().suspended().is_none());
        verify(&pool, &model);
    }
}

#[test]
fn half_of_a_mirror_that_is_on_its_way_out_cannot_be_told_to_stay() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 30);
    pool.upkeep.devices.offline(device(1), true).unwrap();
    pool.upkeep.reshape.detach(device(1)).unwrap();
    reshape(&pool);
    let refused = pool.upkeep.reshape.keep(device(1)).unwrap_err();
    assert!(matches!(refused, PoolError::NotFound(_)), "{refused}");
    assert_eq!(pool.store().losses_survived(), 0);
    verify(&pool, &model);
}

/// Layouts whose devices grow: word, devices, losses survived.
const GROWN: [(&str, usize, usize); 4] =
    [("mirror", 2, 1), ("raidz1", 3, 1), ("raid14", 5, 2), ("stripe", 2, 0)];

/// One device after the other grows to twice its size.
fn grow(pool: &Kept, sim: &SimWorld, count: usize) {
    for index in 0..count {
        sim.device(index).grow_to(ByteLen::new(2 * SIZE.get()));
    }
    assert_eq!(pool.upkeep.devices.expandable(RECORD).devices.len(), count);
    for index in 0..count {
        let expanded = pool.upkeep.devices.expand(device(index as u16)).unwrap();
        assert_eq!(expanded.bytes, SIZE.get());
        assert_eq!(pool.upkeep.devices.expand(device(index as u16)).unwrap().bytes, 0, "it is known");
    }
    assert_eq!(pool.upkeep.devices.expandable(RECORD).bytes, 0);
}

#[test]
fn devices_that_have_grown_are_used_whole_and_can_be_lost_like_others() {
    for (word, count, losses) in GROWN {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let groups = if word == "stripe" { count } else { 1 };
        let rule = rule_for(if groups > 1 { "single" } else { word }, count / groups).unwrap();
        let groups =
            sim.devices().chunks(count / groups).map(|of| GroupSpec::data(rule, of.to_vec())).collect();
        let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        let mut model = Model::new();
        let next = fill(&pool, &mut model, 16, 100);
        let (full, empty) = (available(&pool), pool.store().size_with(RECORD, GroupIndex::new(99), None));
        grow(&pool, &sim, count);
        let (now, size) = (available(&pool), pool.store().size_with(RECORD, GroupIndex::new(99), None));
        println!("{word}: AVAIL {full}, {now} of {size} after, {empty} before");
        assert!(
            size > 2 * empty && now > full + empty,
            "{word}: AVAIL {now} of {size}, {full} of {empty} before"
        );
        fill(&pool, &mut model, next, 100);
        assert!(available(&pool) < size / 20, "{word}: {} of {size} are left", available(&pool));
        rebalance(&pool);
        assert_whole(&pool, word);
        verify(&pool, &model);
        assert_survives(&sim, &(0..count).collect::<Vec<_>>(), losses, &model, word);
        drop(pool);
        let pool = import(&SimWorld::from_images(sim.images()), 5).unwrap();
        replay(&pool);
        verify(&pool, &model);
        assert_eq!(pool.store().size_with(RECORD, GroupIndex::new(99), None), size, "{word}");
        assert_whole(&pool, word);
    }
}

#[test]
fn a_larger_device_that_took_anothers_place_is_used_whole() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    let next = fill(&pool, &mut model, 16, 90);
    let before = available(&pool);
    pool.set_pool_property("autoexpand", "on").unwrap();
    for index in 0..3 {
        let new = Arc::new(sim.add_device(ByteLen::new(2 * SIZE.get())));
        pool.upkeep.devices.replace(device(index), new).unwrap();
        pool.upkeep.devices.expand_by_itself().unwrap();
        while pool.upkeep.resilver.step(1 << 20).unwrap() {}
        pool.upkeep.devices.expand_by_itself().unwrap();
        let gained = available(&pool) > before + SIZE.get();
        assert_eq!(gained, index == 2, "after {index}: AVAIL {}", available(&pool));
    }
    fill(&pool, &mut model, next, 95);
    assert_whole(&pool, "replaced");
    verify(&pool, &model);
    assert_survives(&sim, &[3, 4, 5], 1, &model, "replaced");
}

#[test]
fn only_devices_that_are_in_use_as_a_whole_are_expanded() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 20);
    let refused = |index| {
        let error = pool.upkeep.devices.expand(device(index)).unwrap_err();
        assert!(matches!(error, PoolError::Refused(_)), "{error}");
    };
    (0..3).for_each(|index| sim.device(index).grow_to(ByteLen::new(2 * SIZE.get())));
    pool.upkeep.devices.offline(device(1), false).unwrap();
    refused(1);
    pool.upkeep.devices.online(device(1), None).unwrap();
    refused(1);
    while pool.upkeep.resilver.step(1 << 20).unwrap() {}
    let new = Arc::new(sim.add_device(SIZE));
    let stand_in = pool.upkeep.devices.replace(device(1), new).unwrap();
    refused(1);
    refused(stand_in.get());
    // Its new end cannot be written: it is used as before.
    let end = 2 * SIZE.get() - (1 << 20);
    sim.device(0).inject(Fault::FailWrites(end..end + (1 << 20)));
    let failed = pool.upkeep.devices.expand(device(0)).unwrap_err();
    assert!(matches!(failed, PoolError::Device { .. }), "{failed}");
    sim.device(0).clear_faults();
    assert_eq!(
        pool.upkeep.devices.expand(device(0)).unwrap(),
        Expanded { bytes: SIZE.get(), is_of_use: false }
    );
    pool.upkeep.reshape.detach(stand_in).unwrap();
    // Two that are larger make segments with one another.
    assert!(pool.upkeep.devices.expand(device(1)).unwrap().is_of_use);
    assert!(pool.upkeep.devices.expand(device(2)).unwrap().is_of_use);
    fill(&pool, &mut model, 4_000, 50);
    assert_whole(&pool, "refused and done");
    verify(&pool, &model);
    assert_survives(&sim, &[0, 1, 2], 1, &model, "refused and done");
}

#[test]
fn what_a_device_has_grown_by_may_have_been_anothers() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 50);
    drop(pool);
    // A pool's second label area at the new end, of a disk that was as large.
    let other = SimWorld::new(&[ByteLen::new(3 * SIZE.get())]);
    let theirs = create(&other, "single");
    // Written more often than ours.
    (0..3).for_each(|number| theirs.rename(&format!("other{number}")).unwrap());
    drop(theirs);
    let mut image = other.images().remove(0);
    let own = sim.images().remove(0);
    let bytes = own.read(DeviceOffset::new(0), SIZE.get() as usize);
    image.write(DeviceOffset::new(0), &bytes);
    let sim = SimWorld::from_images(vec![image]);
    let pool = import(&sim, 3).unwrap();
    replay(&pool);
    verify(&pool, &model);
    assert_eq!(pool.upkeep.devices.expand(device(0)).unwrap().bytes, 2 * SIZE.get());
    fill(&pool, &mut model, 4_000, 90);
    drop(pool);
    let pool = import(&SimWorld::from_images(sim.images()), 4).unwrap();
    replay(&pool);
    verify(&pool, &model);
    assert_whole(&pool, "grown over another pool's end");
}

/// The pools on these devices.
fn pools_on(devices: Vec<Arc<dyn Device>>) -> Vec<Importable> {
    let found = devices.iter().filter_map(|device| match scan(device) {
        Scan::Member(found) => Some(*found),
        _ => None,
    });
    assemble(found.collect())
}

/// Imports what was split off.
fn import_half(devices: Vec<Arc<dyn Device>>, seed: u64) -> Kept {
    let mut plans = pools_on(devices);
    assert_eq!(plans.len(), 1, "one pool is there");
    let mut plan = plans.remove(0);
    plan.split_off(PoolGuid::new(4242));
    let options = ImportOptions { rename: Some("half".into()), ..ImportOptions::default() };
    let half = Kept::import(world(seed), plan, &options).unwrap();
    replay(&half);
    half.commit().unwrap();
    half
}

#[test]
fn mirrors_are_split_into_two_pools_that_go_on_side_by_side() {
    for copies in [2, 3] {
        let sim = SimWorld::new(&vec![SIZE; 2 * copies]);
        let rule = rule_for("mirror", copies).unwrap();
        let groups = sim.devices().chunks(copies).map(|of| GroupSpec::data(rule, of.to_vec())).collect();
        let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        let mut model = Model::new();
        let next = fill(&pool, &mut model, 16, 40);
        sync(&pool, &mut model, &files(90_000, 3, 2));
        let named = [device(0)];
        assert!(pool.upkeep.devices.choose_half(&[device(0), device(1)]).is_err(), "two of one");
        let devices = pool.upkeep.devices.let_half_go(&named).unwrap();
        let names: Vec<_> = devices.iter().map(|device| device.name()).collect();
        assert_eq!(names, ["sim0".to_owned(), format!("sim{}", 2 * copies - 1)]);
        assert_eq!(pool.store().losses_survived(), copies - 2);
        assert!(!pool.upkeep.reshape.is_due(), "nothing is to be moved");
        let half = import_half(devices, 9);
        let mut other = model.clone();
        verify(&half, &other);
        assert!(!half.upkeep.reshape.is_due(), "nothing is to be moved");
        // Both go on.
        fill(&pool, &mut model, next, 40);
        fill(&half, &mut other, next + 7, 40);
        thin_out(&half, &mut other);
        for (pool, model, case) in [(&pool, &model, "what stayed"), (&half, &other, "the half")] {
            verify(pool, model);
            assert_whole(pool, case);
        }
        assert!(matches!(
            half.upkeep.devices.let_half_go(&[]),
            Err(PoolError::Refused(Refusal::NoMirror(_)))
        ));
        drop((pool, half));
        // Side by side they are two pools, each complete.
        let after = SimWorld::from_images(sim.images());
        let plans = pools_on(after.devices());
        assert_eq!(plans.len(), 2);
        for plan in plans {
            assert!(plan.complete && plan.refusal.is_none(), "{}: {:?}", plan.name, plan.remarks);
            let (name, is_half) = (plan.name.clone(), plan.guid == PoolGuid::new(4242));
            assert_eq!(name, if is_half { "half" } else { "tank" });
            let pool = Kept::import(world(11), plan, &ImportOptions::default()).unwrap();
            replay(&pool);
            verify(&pool, if is_half { &other } else { &model });
            pool.commit().unwrap();
            assert_whole(&pool, &name);
            // A new copy, and what named the other half is let go of when nothing lies there any more.
            if copies == 2 {
                let new = new_devices(&after, 1);
                pool.upkeep.reshape.attach(device(if is_half { 0 } else { 1 }), new).unwrap();
                while pool.upkeep.resilver.step(1 << 20).unwrap() {}
                reshape(&pool);
                verify(&pool, if is_half { &other } else { &model });
                assert_whole(&pool, &name);
            }
        }
    }
}

#[test]
fn a_mirror_is_not_split_before_both_halves_have_everything() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 40);
    pool.upkeep.reshape.attach(device(0), new_devices(&sim, 1)).unwrap();
    for named in [device(0), device(1)] {
        let refused = pool.upkeep.devices.let_half_go(&[named]).err().expect("a refusal");
        assert!(matches!(refused, PoolError::Refused(Refusal::NotCopied)), "{refused}");
    }
    reshape(&pool);
    // One that dies in the commit at whose end they would part.
    sim.device(0).inject(Fault::FailFlushes);
    let refused = pool.upkeep.devices.let_half_go(&[device(1)]).err().expect("a refusal");
    assert!(matches!(refused, PoolError::Refused(Refusal::NotWhole(_))), "{refused}");
    sim.device(0).clear_faults();
    assert!(pool.store().suspended().is_none());
    verify(&pool, &model);
    pool.upkeep.devices.clear(None).unwrap();
    while pool.upkeep.resilver.step(1 << 20).unwrap() {}
    drop(import_half(pool.upkeep.devices.let_half_go(&[device(0)]).unwrap(), 5));
    verify(&pool, &model);
    assert_whole(&pool, "what stayed");
}

#[test]
fn a_pool_with_another_guid_is_one_beside_its_copy() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 30);
    pool.commit().unwrap();
    let copy = SimWorld::from_images(sim.images());
    pool.upkeep.devices.offline(device(1), true).unwrap();
    assert!(matches!(pool.upkeep.devices.reguid(), Err(PoolError::Refused(Refusal::NotWhole(_)))));
    pool.upkeep.devices.online(device(1), None).unwrap();
    while pool.upkeep.resilver.step(1 << 20).unwrap() {}
    let guid = pool.upkeep.devices.reguid().unwrap();
    assert_eq!(pool.store().identity(), guid);
    sync(&pool, &mut model, &files(90_000, 3, 2));
    drop(pool);
    let mut plans = pools_on(sim.devices().into_iter().chain(copy.devices()).collect());
    assert_eq!(plans.len(), 2);
    for plan in &plans {
        assert!(plan.complete && plan.refusal.is_none(), "{:?} {:?}", plan.remarks, plan.refusal);
    }
    plans.retain(|plan| plan.guid == guid);
    let pool = Kept::import(world(5), plans.remove(0), &ImportOptions::default()).unwrap();
    replay(&pool);
    pool.commit().unwrap();
    verify(&pool, &model);
    assert_whole(&pool, "known by another guid");
}

#[test]
fn power_cuts_while_a_pool_gets_another_guid_or_is_split_leave_whole_pools() {
    for (word, count, splits) in [("raidz1", 3, false), ("single", 1, false), ("mirror", 2, true)] {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 40, 1));
        sync(&pool, &mut model, &files(80, 3, 2));
        let start = sim.trace().len();
        let mut split_off = usize::MAX;
        if splits {
            let half = import_half(pool.upkeep.devices.let_half_go(&[]).unwrap(), 9);
            split_off = sim.trace().len();
            drop(half);
        } else {
            pool.upkeep.devices.reguid().unwrap();
        }
        pool.commit().unwrap();
        drop(pool);
        let trace = sim.trace();
        let mut sweep = trace.sweep();
        for cut in start..=trace.len() {
            sweep.advance_to(cut);
            let after = SimWorld::from_images(sweep.images(Survival::Random { seed: cut as u64 }));
            let case = format!("{word}: cut at {cut} of {}", trace.len());
            let plans = pools_on(after.devices());
            let usable = plans.into_iter().filter(|plan| plan.complete);
            let mut names = Vec::new();
            for plan in usable {
                names.push(plan.name.clone());
                assert!(plan.refusal.is_none(), "{case}: {:?}", plan.refusal);
                let pool = Kept::import(world(7), plan, &ImportOptions::default())
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
                replay(&pool);
                verify(&pool, &model);
                pool.commit().unwrap();
                assert_whole(&pool, &case);
            }
            names.sort();
            match splits && cut >= split_off {
                true => assert_eq!(names, ["half", "tank"], "{case}"),
                false => assert!(names.contains(&"tank".to_owned()), "{case}: {names:?}"),
            }
        }
    }
}

#[test]
fn power_cuts_while_groups_grow_shrink_and_leave_lose_nothing() {
    type Change = fn(&Kept, &SimWorld);
    let changes: [(&str, &str, usize, Change); 8] = [
        ("expand", "single", 1, |pool, sim| grow(pool, sim, 1)),
        ("expand all", "raidz1", 3, |pool, sim| grow(pool, sim, 3)),
        ("attach", "raidz1", 3, |pool, sim| {
            pool.upkeep.reshape.attach(device(0), new_devices(sim, 1)).unwrap();
            rebalance(pool);
        }),
        ("attach a pair", "raid14", 5, |pool, sim| {
            pool.upkeep.reshape.attach(device(0), new_devices(sim, 2)).unwrap();
            reshape(pool);
            rebalance(pool);
        }),
        ("remove", "raidz2", 5, |pool, _| {
            pool.upkeep.reshape.remove(device(1)).unwrap();
            reshape(pool);
        }),
        ("remove a group", "mirror", 2, |pool, sim| {
            let spec = GroupSpec::data(rule_for("raidz1", 3).unwrap(), new_devices(sim, 3));
            pool.upkeep.reshape.add_group(spec).unwrap();
            pool.upkeep.reshape.remove_group(GROUP).unwrap();
            reshape(pool);
        }),
        ("raidz1 to raidz2", "raidz1", 4, |pool, _| {
            pool.upkeep.reshape.change_layout(GROUP, "raidz2", Vec::new()).unwrap();
            reshape(pool);
        }),
        ("keep", "raidz1", 4, |pool, _| {
            pool.upkeep.reshape.remove(device(3)).unwrap();
            pool.upkeep.reshape.step(300 << 10).unwrap();
            pool.upkeep.reshape.keep(device(3)).unwrap();
            rebalance(pool);
        }),
    ];
    for (name, word, count, change) in changes {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 40, 1));
        let start = sim.trace().len();
        change(&pool, &sim);
        sync(&pool, &mut model, &files(60, 3, 2));
        let before: Model =
            model.iter().filter(|(inode, _)| **inode < 60).map(|(&inode, &file)| (inode, file)).collect();
        drop(pool);
        let trace = sim.trace();
        let mut sweep = trace.sweep();
        let cuts = repeats(40, 400) as usize;
        let step = ((trace.len() - start) / cuts).max(1);
        for cut in (start..=trace.len()).step_by(step) {
            sweep.advance_to(cut);
            let after = SimWorld::from_images(sweep.images(Survival::Random { seed: cut as u64 }));
            let case = format!("{name}: cut at {cut} of {}", trace.len());
            let pool = import(&after, 7).unwrap_or_else(|error| panic!("{case}: {error}"));
            replay(&pool);
            verify(&pool, &before);
            reshape(&pool);
            if pool.upkeep.rebalance.is_active() {
                go_on(&pool);
            }
            pool.commit().unwrap();
            assert_whole(&pool, &case);
            verify(&pool, &before);
        }
    }
}
