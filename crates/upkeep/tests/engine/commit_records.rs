//! Commit records tell what the tables say, whatever becomes of the pool meanwhile, and cost little.

use crate::common::recorded::{assert_told, rows, told};
use crate::common::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::commit_record::{CommitRecordEntry, RECORDED};
use larder_format::tables::Table;
use larder_format::trash::TrashKey;
use larder_format::{BlockId, ByteLen, CommitId, DatasetId, Timestamp};
use larder_pool::{BookmarkSource, ImportOptions, Pool, PoolError, ROOT_DATASET};
use larder_sim::{SimWorld, Survival};
use larder_upkeep::ScrubSince;
use larder_upkeep::gc::{Findings, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

const SIZE: ByteLen = ByteLen::new(64 << 20);
const UNTIL: Timestamp = Timestamp { secs: 4_000_000_000, nanos: 0 };

fn newest(pool: &Pool) -> CommitRecordEntry {
    *pool.commit_records().last().expect("a pool has one from the first commit on")
}

/// Commits; whether that wrote records.
fn records(pool: &Pool) -> bool {
    let before = newest(pool);
    let commit = pool.commit().unwrap();
    let now = newest(pool);
    assert!(now == before || now.commit == commit && now.ptr.id > before.ptr.id);
    now != before
}

/// Commits, and that is told to the byte.
fn assert_recorded(pool: &Pool, what: &str) {
    assert!(records(pool), "{what}");
    assert_exact(pool, what);
}

fn assert_exact(pool: &Pool, what: &str) {
    let (newest, told) = told(pool).unwrap();
    assert_eq!(newest.label.key, pool.store().sums().key());
    assert_eq!((newest.label.name, newest.incarnation), (pool.name(), pool.incarnation()));
    assert!(told == rows(pool), "{what}");
}

fn trace(pool: &Kept) -> Findings {
    assert!(pool.upkeep.gc.start().unwrap());
    while pool.upkeep.gc.step(64).unwrap() {}
    let findings = pool.upkeep.gc.findings().unwrap();
    assert_eq!(findings.outcome, Outcome::Done);
    pool.commit().unwrap();
    while pool.free_step(64).unwrap() {}
    pool.commit().unwrap();
    findings
}

#[test]
fn whatever_changes_of_datasets_and_snapshots_is_told_with_the_commit_that_has_it() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    assert_exact(&pool, "a new pool");
    let mut version = 0;
    let mut write = |dataset: DatasetId| {
        version += 1;
        put(&pool, &pool.dataset(dataset).unwrap(), &[(10, version, 3000)]);
    };
    let a = pool.create_dataset("tank/a", BTreeMap::from([("atime".into(), "off".into())])).unwrap().id();
    assert_recorded(&pool, "create");
    write(a);
    assert!(!records(&pool), "a write");
    assert_told(&pool, "a write");
    let of = |name: &str| vec![(a, name.to_owned())];
    let step = |what: &str, change: &mut dyn FnMut()| {
        let before = newest(&pool).commit;
        change();
        // Some commit by themselves, and not all of them at the end.
        if newest(&pool).commit == before {
            pool.commit().unwrap();
        }
        assert!(newest(&pool).commit > before, "{what}");
        assert_told(&pool, what);
    };
    step("snapshot", &mut || drop(pool.snapshot(a, "s").unwrap()));
    assert_exact(&pool, "snapshot");
    step("rename a dataset", &mut || pool.rename_dataset(a, "tank/b").unwrap());
    step("set", &mut || pool.set_property(a, "compression", "zstd").unwrap());
    step("inherit", &mut || pool.inherit_property(a, "compression").unwrap());
    step("set on the pool", &mut || pool.set_pool_property("comment", "ours").unwrap());
    step("receive properties", &mut || {
        let brought = BTreeMap::from([("atime".into(), "on".into())]);
        assert!(pool.receive_properties(a, &brought, &BTreeSet::new()).unwrap().is_empty());
    });
    step("hold", &mut || pool.hold_snapshots(&of("s"), "tag").unwrap());
    step("release", &mut || pool.release_snapshots(&of("s"), "tag").unwrap());
    step("defer", &mut || pool.set_deferred(&of("s"), true).unwrap());
    let s = pool.snapshot_named(a, "s").unwrap();
    step("snapshot property", &mut || pool.set_snapshot_property(&s, "x:y", Some("z")).unwrap());
    step("bookmark", &mut || drop(pool.make_bookmark(a, BookmarkSource::Snapshot("s"), "m").unwrap()));
    step("no bookmark", &mut || pool.destroy_bookmark(a, "m").unwrap());
    step("rename a snapshot", &mut || pool.rename_snapshots(&[(a, "s".to_owned(), "t".to_owned())]).unwrap());
    write(a);
    assert!(!records(&pool));
    step("roll back", &mut || pool.rollback(a, "t", true).unwrap());
    assert_exact(&pool, "roll back");
    let mut clone = DatasetId::new(0);
    step("clone", &mut || {
        clone = pool.clone_snapshot(a, "t", "tank/clone", BTreeMap::new()).unwrap().id();
    });
    step("promote", &mut || pool.promote(clone).unwrap());
    step("branch", &mut || pool.branch(clone, "t", "tank/branch", &BTreeMap::new()).unwrap());
    let t = pool.snapshot(a, "u").unwrap();
    step("trash a snapshot", &mut || pool.trash_snapshots(&of("u"), UNTIL).unwrap());
    step("restore it", &mut || drop(pool.restore_snapshot(t.high, Some("v")).unwrap()));
    step("destroy it", &mut || pool.destroy_snapshot(a, "v").unwrap());
    step("trash a dataset", &mut || pool.trash_dataset(a, UNTIL).unwrap());
    step("restore", &mut || drop(pool.restore_dataset(a, "tank/again").unwrap()));
    step("trash it again", &mut || pool.trash_dataset(a, UNTIL).unwrap());
    step("let it go", &mut || pool.let_go(TrashKey::Dataset(a)).unwrap());
    for _ in 0..3 {
        while pool.destroy_step(64).unwrap() {}
        pool.commit().unwrap();
    }
    assert_told(&pool, "it is gone");
    assert!(pool.destroyed().is_empty() && !rows(&pool).contains_key(&Table::dataset_key(a)));
    // Notes of the pool's own wait for something else.
    pool.set_note("note", "x").unwrap();
    assert!(!records(&pool) && !records(&pool));
    write(ROOT_DATASET);
    assert!(!records(&pool));
    assert_whole(&pool, "before the export");
    let before = newest(&pool).commit;
    pool.commit_export().unwrap();
    assert!(newest(&pool).commit > before);
    assert_exact(&pool, "export");
    drop(pool);
    let pool = open(&sim, 2);
    assert_exact_rows(&pool);
    assert!(!records(&pool), "nothing changed");
    put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &[(10, 7, 300)]);
    assert!(records(&pool), "the first commit of an import that changes a row");
    assert_exact(&pool, "import");
    assert_whole(&pool, "import");
    pool.commit_export().unwrap();
    let newest = newest(&pool);
    drop(pool);
    // Nothing has changed since.
    let options = ImportOptions { read_only: true, ..ImportOptions::default() };
    let pool = Kept::import(world(3), plan(sim.devices()), &options).unwrap();
    assert_eq!(pool.commit_records().last(), Some(&newest));
    assert_exact_rows(&pool);
}

/// They tell all rows, though this import has written none.
fn assert_exact_rows(pool: &Pool) {
    let (_, told) = told(pool).unwrap();
    assert!(told == rows(pool));
}

#[test]
fn where_trees_are_is_told_now_and_then() {
    const EVERY: usize = 256;
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let (mut model, mut told) = (Model::new(), Vec::new());
    for version in 1..=2 * EVERY as u64 + 10 {
        let before = newest(&pool);
        commit(&pool, &mut model, &[(10, version, 300)]);
        if newest(&pool) != before {
            told.push(version as usize);
            assert_exact(&pool, "a root");
        }
        assert!(pool.commit_records().len() <= 3);
    }
    assert_eq!(told, [EVERY, 2 * EVERY]);
    assert_whole(&pool, "after many commits");
}

/// Takes so many snapshots more of datasets that have nothing in them.
fn take_many(pool: &Pool, datasets: &[DatasetId], from: usize, count: usize) {
    let of = |n: usize| (datasets[n % datasets.len()], format!("snapshot number {n}"));
    pool.snapshot_all((from..from + count).map(of).collect(), BTreeMap::new()).unwrap();
}

#[test]
fn after_each_turn_thousands_of_snapshots_are_told_by_the_records_that_are_left() {
    let sim = SimWorld::new(&[ByteLen::new(128 << 20)]);
    let mut pool = create(&sim, "single");
    let make = |n: usize| pool.create_dataset(&format!("tank/d{n}"), BTreeMap::new()).unwrap().id();
    let datasets: Vec<_> = (0..20).map(make).collect();
    let mut taken = 0;
    for count in [400, 2000, 1, 1, 700] {
        take_many(&pool, &datasets, taken, count);
        taken += count;
        let (newest, _) = told(&pool).unwrap();
        assert_eq!(newest.part + 1, newest.parts);
        assert!(count < 500 || newest.parts > 1, "{count} rows need more than one");
        assert_exact(&pool, "snapshots");
    }
    let bytes: usize = rows(&pool).values().map(|value| value.len() + 19).sum();
    assert!(bytes > 600 << 10, "{bytes}");
    let entropy = SeededEntropy::new(4);
    let (mut turns, mut most) = (BTreeSet::new(), 0);
    let mut commits = 0;
    while turns.len() < 3 {
        commits += 1;
        assert!(commits < 100, "turns do not end");
        // Some change, some go, some come, while slices go round.
        let n = entropy.next_u64() as usize % taken;
        let (dataset, name) = (datasets[n % datasets.len()], format!("snapshot number {n}"));
        match (entropy.next_u64() % 4, pool.snapshot_named(dataset, &name)) {
            (0, Ok(_)) => pool.destroy_snapshot(dataset, &name).unwrap(),
            (1, Ok(one)) => pool.set_snapshot_property(&one, "x:y", Some("z")).unwrap(),
            (2, Ok(_)) => pool.rename_snapshots(&[(dataset, name, format!("renamed {n}"))]).unwrap(),
            _ => {
                take_many(&pool, &datasets, taken, 1);
                taken += 1;
                continue;
            }
        }
        put(&pool, &pool.dataset(dataset).unwrap(), &[(10, commits, 30)]);
        assert_recorded(&pool, "a change");
        turns.insert(newest(&pool).slices.turn);
        most = most.max(pool.commit_records().len());
        // All that is told is told by what is needed, which may be older than the last two.
        let turn = newest(&pool).slices.turn;
        let needed = pool.commit_records().into_iter().filter(|one| one.commit >= turn).count();
        assert!(needed > 8, "{needed} records have {bytes} bytes");
    }
    // A turn that is done, one under way, what was to go before, and the parts of the first.
    assert!(most <= 3 * (bytes >> 16) + 10, "{most} records of {bytes} bytes");
    assert_whole(&pool, "turns");
    // Turns are done, however short imports are, and whether they end with an export.
    let before = newest(&pool).slices;
    let mut imports = 0;
    while newest(&pool).slices.turn == before.turn {
        imports += 1;
        assert!(imports < 40, "turns do not end");
        if imports % 2 == 0 {
            pool.commit_export().unwrap();
        }
        drop(pool);
        pool = open(&sim, 1 + imports);
        pool.set_property(ROOT_DATASET, "x:y", &imports.to_string()).unwrap();
        assert_recorded(&pool, "after an import");
    }
    assert!(imports > 2 && newest(&pool).slices.next != before.next, "{imports}");
    // And a pool of a few rows, again.
    for dataset in &datasets {
        let all: Vec<_> = pool.snapshots(*dataset).into_iter().map(|one| (*dataset, one.name)).collect();
        pool.destroy_snapshots(&all).unwrap();
    }
    assert_recorded(&pool, "all gone");
    for value in 0..20 {
        pool.set_property(ROOT_DATASET, "x:y", &value.to_string()).unwrap();
        assert_recorded(&pool, "few rows");
    }
    assert_eq!(pool.commit_records().len(), 3, "two, and one that goes with the next");
    trace(&pool);
    assert_whole(&pool, "few rows");
}

#[test]
fn a_power_cut_at_any_event_of_a_commit_with_records_leaves_those_that_tell_all() {
    for (word, count) in [("single", 1), ("mirror", 2), ("raidz1", 3)] {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let dataset = pool.create_dataset("tank/a", BTreeMap::new()).unwrap().id();
        pool.commit().unwrap();
        pool.set_property(dataset, "atime", "off").unwrap();
        put(&pool, &pool.dataset(dataset).unwrap(), &[(10, 1, 3000)]);
        pool.commit().unwrap();
        let from = sim.trace().len();
        // The second drops a record that the first has outlived.
        pool.snapshot(dataset, "s").unwrap();
        pool.rename_dataset(dataset, "tank/b").unwrap();
        pool.commit().unwrap();
        drop(pool);
        let trace = sim.trace();
        let (mut sweep, mut met) = (trace.sweep(), BTreeSet::new());
        for cut in from..=trace.len() {
            sweep.advance_to(cut);
            for survival in [Survival::KeepAll, Survival::DropAll, Survival::Random { seed: cut as u64 }] {
                let cut_off = SimWorld::from_images(sweep.images(survival));
                let pool = open(&cut_off, 9);
                assert_whole(&pool, &format!("{word}, cut {cut}, {survival:?}"));
                let all = pool.commit_records();
                assert!(all.len() >= 2, "the last two stay");
                met.insert(all.iter().map(|one| one.commit).collect::<Vec<_>>());
                if cut % 7 == 0 {
                    for value in ["1", "2"] {
                        pool.set_property(dataset, "x:y", value).unwrap();
                        assert_recorded(&pool, "commits of the import");
                    }
                    assert_whole(&pool, &format!("{word}, after cut {cut}, {survival:?}"));
                }
            }
        }
        assert!(met.len() >= 3, "{met:?}");
    }
}

#[test]
fn a_record_that_the_cleaner_moves_is_found_and_dropped_as_any_other() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let (pool, mut model) = (create(&sim, "mirror"), Model::new());
    commit(&pool, &mut model, &files(10, 40, 1));
    pool.set_property(ROOT_DATASET, "atime", "off").unwrap();
    assert_recorded(&pool, "a change");
    let (old, entry) = (pool.commit_records()[0], newest(&pool));
    let groups: Vec<_> = pool.store().core.lock().groups.keys().copied().collect();
    groups.into_iter().for_each(|group| pool.store().core.lock().close_streams(group));
    for segment in [old, entry].map(|one| one.ptr.place.segment) {
        while pool.empty_segment(segment).unwrap() {}
    }
    for round in 0..6 {
        commit(&pool, &mut model, &[(10, round, 500)]);
        assert_told(&pool, "moved");
        assert_whole(&pool, "moved");
    }
    assert!(pool.store().segments().iter().all(|segment| segment.id != entry.ptr.place.segment));
    assert_eq!(newest(&pool), entry, "its place is a hint");
    drop(pool);
    let pool = open(&sim, 2);
    assert_told(&pool, "moved");
    assert_whole(&pool, "imported");
    for value in ["on", "off", "on"] {
        pool.set_property(ROOT_DATASET, "atime", value).unwrap();
        assert_recorded(&pool, "dropped where it is now");
    }
    assert!(!pool.commit_records().contains(&entry));
    while pool.free_step(64).unwrap() {}
    pool.commit().unwrap();
    assert_whole(&pool, "dropped");
    assert!(pool.store().look_up(entry.ptr.id, |look_up, io| look_up.entry(io)).unwrap().is_none());
}

#[test]
fn garbage_collection_keeps_records_and_finds_none_that_leaked_or_is_missing() {
    let sim = SimWorld::new(&[SIZE]);
    let (pool, mut model) = (create(&sim, "single"), Model::new());
    commit(&pool, &mut model, &files(10, 60, 1));
    // A second reference, so that it frees whatever it takes for dead.
    let known = |pool: &Pool| pool.commit_records();
    for value in ["on", "off", "on", "off"] {
        pool.set_property(ROOT_DATASET, "atime", value).unwrap();
        pool.commit().unwrap();
    }
    let before = known(&pool);
    let found = trace(&pool);
    assert_eq!((found.missing, found.lost, found.unreachable.blocks), (0, 0, 0));
    assert_eq!(known(&pool), before);
    assert_whole(&pool, "traced");
    // Records come and go beside it.
    assert!(pool.upkeep.gc.start().unwrap());
    for round in 0..1000 {
        if round % 3 == 0 {
            pool.set_property(ROOT_DATASET, "atime", if round % 2 == 0 { "on" } else { "off" }).unwrap();
            pool.commit().unwrap();
        }
        if !pool.upkeep.gc.step(1).unwrap() {
            break;
        }
    }
    let found = pool.upkeep.gc.findings().unwrap();
    assert_eq!((found.outcome, found.missing, found.lost), (Outcome::Done, 0, 0));
    assert_eq!(found.unreachable.blocks, 0);
    for _ in 0..3 {
        pool.commit().unwrap();
        while pool.free_step(64).unwrap() {}
    }
    assert!(known(&pool).iter().all(|one| !before.contains(one)));
    for one in &before {
        let there = pool.store().look_up(one.ptr.id, |look_up, io| look_up.entry(io)).unwrap();
        assert!(there.is_none(), "{one:?} is not free");
    }
    assert_whole(&pool, "beside records");
}

/// Spoils all copies of a record.
fn spoil(sim: &SimWorld, pool: &Pool, entry: &CommitRecordEntry) {
    for (device, offset) in pool.store().whereabouts(entry.ptr.id).unwrap().unwrap().copies {
        sim.device(device.get().into()).flip_bits(offset, entry.ptr.place.stored as usize, 7);
    }
    pool.store().drop_caches();
}

#[test]
fn a_record_that_is_lost_is_told_and_the_next_ones_do_without_it() {
    for by_scrub in [false, true] {
        let sim = SimWorld::new(&[SIZE; 2]);
        let (pool, mut model) = (create(&sim, "mirror"), Model::new());
        commit(&pool, &mut model, &files(10, 40, 1));
        pool.set_property(ROOT_DATASET, "atime", "off").unwrap();
        assert_recorded(&pool, "a change");
        let entry = newest(&pool);
        spoil(&sim, &pool, &entry);
        assert!(pool.read_commit_record(&entry).is_err());
        let problems = pool.upkeep.check().unwrap().problems;
        let named = format!("commit record {}", entry.ptr.id);
        assert!(problems.iter().any(|what| what.starts_with(&named)), "{problems:?}");
        let told = || {
            let events = pool.events(0);
            events.iter().filter(|(_, event)| event.text.contains("commit record is lost")).count()
        };
        assert_eq!(told(), 0);
        if by_scrub {
            pool.upkeep.scrub.start(ScrubSince::All).unwrap();
            while pool.upkeep.scrub.step(64 << 20).unwrap() {}
            while pool.upkeep.damage.step(64).unwrap() {}
            assert!(pool.upkeep.damage.known().is_empty(), "no file is damaged");
        } else {
            let found = trace(&pool);
            assert_eq!((found.missing, found.lost, found.unreachable.blocks), (0, 0, 0), "{found:?}");
        }
        assert_eq!(told(), 1);
        for version in 2..4 {
            commit(&pool, &mut model, &[(10, version, 500)]);
        }
        assert!(newest(&pool).commit > entry.commit, "the next commit wrote one");
        for value in ["on", "off", "on"] {
            pool.set_property(ROOT_DATASET, "atime", value).unwrap();
            pool.commit().unwrap();
        }
        assert!(!pool.commit_records().contains(&entry));
        assert_exact(&pool, "without it");
        assert_eq!(told(), 1);
        // Nobody knows any more what lay there; its segment goes.
        while pool.free_step(64).unwrap() {}
        pool.commit().unwrap();
        trace(&pool);
        let problems = pool.upkeep.check().unwrap().problems;
        assert!(problems.iter().all(|what| what.contains("row at")), "{problems:?}");
        verify(&pool, &model);
    }
}

/// Puts files until nothing more can be stored, far beyond what a pool takes that is asked before.
fn fill(pool: &Pool, model: &mut Model) {
    let (dataset, len) = (pool.dataset(ROOT_DATASET).unwrap(), 60_000);
    let first = model.keys().next_back().map_or(1000, |last| last + 1);
    for inode in first.. {
        match try_put(pool, &dataset, &[(inode, 1, len)]) {
            Err(error) => return assert!(matches!(error, PoolError::NoSpace), "{error}"),
            Ok(()) => drop(model.insert(inode, (1, len))),
        }
        if inode % 64 == 0 {
            pool.commit().unwrap();
        }
    }
}

#[test]
fn a_full_pool_takes_changes_and_frees_and_tells_of_it_when_there_is_room() {
    let sim = SimWorld::new(&[SIZE]);
    let (pool, mut model) = (create(&sim, "single"), Model::new());
    let datasets: Vec<_> =
        (0..8).map(|n| pool.create_dataset(&format!("tank/d{n}"), BTreeMap::new()).unwrap().id()).collect();
    take_many(&pool, &datasets, 0, 600);
    let (mut skipped, mut written) = (0, 0);
    for round in 0..60 {
        fill(&pool, &mut model);
        let before = newest(&pool).commit;
        match round % 3 {
            0 => drop(pool.snapshot(datasets[0], &format!("more {round}")).unwrap()),
            1 => pool.rename_dataset(datasets[2], &format!("tank/e{round}")).unwrap(),
            _ => pool.set_property(datasets[1], "x:y", &round.to_string()).unwrap(),
        }
        pool.commit().unwrap();
        let is_written = newest(&pool).commit > before;
        *(if is_written { &mut written } else { &mut skipped }) += 1;
        assert_told(&pool, "full");
        if round % 10 == 9 {
            // Some of it goes.
            let gone: Vec<u64> = model.keys().copied().skip(round).take(400).collect();
            try_remove(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &gone).unwrap();
            model.retain(|inode, _| !gone.contains(inode));
            for _ in 0..4 {
                pool.commit().unwrap();
                while pool.free_step(64).unwrap() {}
            }
            pool.set_property(datasets[1], "x:y", &round.to_string()).unwrap();
            written += u64::from(records(&pool));
        }
    }
    println!("{skipped} commits of a full pool told nothing, {written} did");
    assert!(skipped > 20 && written > 3, "{skipped}, {written}");
    assert_whole(&pool, "full");
    verify(&pool, &model);
    drop(pool);
    let pool = open(&sim, 2);
    verify(&pool, &model);
    // All that was there can go.
    let gone: Vec<u64> = model.keys().copied().collect();
    for gone in gone.chunks(50) {
        try_remove(&pool, &pool.dataset(ROOT_DATASET).unwrap(), gone).unwrap();
        pool.commit().unwrap();
        while pool.free_step(64).unwrap() {}
    }
    (0..4).for_each(|_| _ = pool.commit().unwrap());
    let bytes: usize = rows(&pool).values().map(|value| value.len() + 19).sum();
    for value in 0..2 * (bytes >> 16) + 2 {
        pool.set_property(datasets[1], "x:y", &value.to_string()).unwrap();
        assert!(records(&pool));
    }
    assert_exact(&pool, "there is room again");
    assert_whole(&pool, "empty");
}

/// Bytes written to all devices.
fn written_bytes(pool: &Pool) -> u64 {
    let of = |member: std::sync::Arc<larder_pool::member::Member>| {
        member.counters.written_bytes.load(Ordering::Relaxed)
    };
    pool.store().members().iter().map(of).sum()
}

/// Commits, and adds up what its records take, over all devices.
struct Cost {
    seen: BTreeSet<BlockId>,
    records: u64,
    bytes: u64,
}

impl Cost {
    fn new(pool: &Pool) -> Self {
        let seen = pool.commit_records().into_iter().map(|one| one.ptr.id).collect();
        Self { seen, records: 0, bytes: 0 }
    }

    fn add(&mut self, pool: &Pool) {
        for one in pool.commit_records() {
            if self.seen.insert(one.ptr.id) {
                let columns = pool.store().whereabouts(one.ptr.id).unwrap().unwrap().copies.len() as u64;
                self.records += 1;
                // With the stripe that it makes larger, or has alone.
                self.bytes += columns * u64::from(one.ptr.place.footprint()).next_multiple_of(4096);
            }
        }
    }
}

#[test]
fn records_cost_little_beside_what_is_written() {
    let sim = SimWorld::new(&[ByteLen::new(256 << 20); 2]);
    let pool = create(&sim, "mirror");
    let datasets: Vec<_> =
        (0..10).map(|n| pool.create_dataset(&format!("tank/d{n}"), BTreeMap::new()).unwrap().id()).collect();
    take_many(&pool, &datasets, 0, 500);
    let entropy = SeededEntropy::new(8);
    // Commits of little data, and a snapshot every 60 of them: each five minutes, where one is made in five seconds.
    let (mut cost, before) = (Cost::new(&pool), written_bytes(&pool));
    for round in 0..600u64 {
        let dataset = pool.dataset(datasets[entropy.next_u64() as usize % datasets.len()]).unwrap();
        let file = |_| (10 + entropy.next_u64() % 60, round, 1 + entropy.next_u64() as usize % 90_000);
        put(&pool, &dataset, &(0..24).map(file).collect::<Vec<_>>());
        pool.commit().unwrap();
        cost.add(&pool);
        pool.clean_step(false).unwrap();
        if round % 60 == 59 {
            pool.snapshot(dataset.id(), &format!("at {round}")).unwrap();
            cost.add(&pool);
            pool.destroy_snapshot(dataset.id(), &format!("at {round}")).unwrap();
            while pool.destroy_step(64).unwrap() {}
        }
    }
    let all = written_bytes(&pool) - before;
    println!("busy: {} records, {} of {all} bytes: {:.3} %", cost.records, cost.bytes, percent(&cost, all));
    assert!(percent(&cost, all) < 0.1);
    // Space: what is alive, of what the pool has.
    let alive: u64 = pool.commit_records().iter().map(|one| u64::from(one.ptr.place.footprint())).sum();
    println!("space: {alive} bytes");
    assert!(alive < 256 << 10, "{alive}");
    // Nothing but one small file a commit.
    pool.commit().unwrap();
    let (mut cost, before) = (Cost::new(&pool), written_bytes(&pool));
    for round in 0..600 {
        put(&pool, &pool.dataset(datasets[0]).unwrap(), &[(10, round, 100)]);
        pool.commit().unwrap();
        cost.add(&pool);
    }
    let all = written_bytes(&pool) - before;
    println!("idle: {} records, {} of {all} bytes: {:.3} %", cost.records, cost.bytes, percent(&cost, all));
    assert!(cost.records == 2 && percent(&cost, all) < 0.1);
    assert_whole(&pool, "at the end");
}

fn percent(cost: &Cost, all: u64) -> f64 {
    100.0 * cost.bytes as f64 / all as f64
}

#[test]
fn records_have_none_but_the_tables_that_tell_of_datasets() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let record = pool.read_commit_record(&newest(&pool)).unwrap();
    assert_eq!((record.commit, record.turn), (CommitId::new(1), CommitId::new(1)));
    assert_eq!((record.devices.len(), record.groups.len(), record.history.len()), (1, 1, 1));
    assert!(record.rows.iter().all(|row| RECORDED.contains(&Table::of(&row.key).unwrap().0)));
}
