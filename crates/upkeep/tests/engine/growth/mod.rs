//! Groups that grow, shrink and change their layout; groups that leave; rebalancing.

mod apart;
mod larger;

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

#[test]
fn power_cuts_while_groups_grow_shrink_and_leave_lose_nothing() {
    type Change = fn(&Kept, &SimWorld);
    let changes: [(&str, &str, usize, Change); 8] = [
        ("expand", "single", 1, |pool, sim| larger::grow(pool, sim, 1)),
        ("expand all", "raidz1", 3, |pool, sim| larger::grow(pool, sim, 3)),
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
