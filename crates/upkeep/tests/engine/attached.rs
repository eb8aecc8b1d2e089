//! Holds and properties of snapshots: they come, stay and go with their snapshot, whatever is cut short.

use crate::common::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::tables::SnapshotRecord;
use larder_format::{ByteLen, DatasetId};
use larder_pool::{Pool, PoolError, ROOT_DATASET};
use larder_sim::{Fault, SimWorld, Survival};
use std::collections::{BTreeMap, BTreeSet};

/// Properties and holds of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Has {
    properties: BTreeMap<String, String>,
    holds: BTreeSet<String>,
    deferred: bool,
}

/// All snapshots, by name.
type State = BTreeMap<String, Has>;

fn state_of(pool: &Pool) -> State {
    let has = |record: SnapshotRecord| {
        let properties = pool.snapshot_properties(&record).unwrap();
        let holds = pool.snapshot_holds(&record).unwrap().into_keys().collect();
        (record.name, Has { properties, holds, deferred: record.deferred })
    };
    pool.snapshots(ROOT_DATASET).into_iter().map(has).collect()
}

fn record(pool: &Pool, name: &str) -> SnapshotRecord {
    pool.snapshots(ROOT_DATASET).into_iter().find(|record| record.name == name).unwrap()
}

fn own(names: &[String]) -> Vec<(DatasetId, String)> {
    names.iter().map(|name| (ROOT_DATASET, name.clone())).collect()
}

struct Run {
    sim: SimWorld,
    pool: Kept,
    entropy: SeededEntropy,
    now: State,
    /// As the last two commits left it, with the number of events before and after them.
    committed: Vec<(usize, usize, State)>,
    taken: u64,
    imports: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let pool = create(&sim, "single");
        let entropy = SeededEntropy::new(seed.wrapping_mul(0x9e37_79b9) + 1);
        let mut run =
            Self { sim, pool, entropy, now: State::new(), committed: Vec::new(), taken: 0, imports: 1 };
        run.commit();
        run
    }

    fn next(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    fn word(&self) -> String {
        ["a", "b", "c", "d"][self.next(4) as usize].to_owned()
    }

    fn properties(&self) -> BTreeMap<String, String> {
        let one = |_| (format!("{}:note", self.word()), "x".repeat(self.next(2000) as usize));
        (0..self.next(3)).map(one).collect()
    }

    /// Some of the snapshots; perhaps none.
    fn some(&self) -> Vec<String> {
        let odds = 1 + self.next(4);
        self.now.keys().filter(|_| self.next(odds) == 0).cloned().collect()
    }

    fn commit(&mut self) {
        let before = self.sim.trace().len();
        self.pool.commit().unwrap();
        self.noted(before);
    }

    fn noted(&mut self, before: usize) {
        self.committed.push((before, self.sim.trace().len(), self.now.clone()));
        let old = self.committed.len().saturating_sub(2);
        self.committed.drain(..old);
    }

    fn take(&mut self) {
        let sets: Vec<_> = (0..1 + self.next(2))
            .map(|more| (format!("s{}", self.taken + more + 1), self.properties()))
            .collect();
        self.taken += sets.len() as u64;
        let before = self.sim.trace().len();
        let new = sets.iter().map(|(name, of)| (own(std::slice::from_ref(name)), of.clone())).collect();
        let records = self.pool.snapshot_sets(new).unwrap();
        assert!(records.iter().all(|record| record.commit == records[0].commit), "of one moment");
        self.now
            .extend(sets.into_iter().map(|(name, properties)| (name, Has { properties, ..Has::default() })));
        self.noted(before);
        let marked = self.pool.marked_snapshots(ROOT_DATASET, "a:note").into_iter();
        let marked: BTreeMap<_, _> = marked.map(|one| (one.record.name, (one.value, one.held_by))).collect();
        let expected = self.now.iter().filter_map(|(name, has)| {
            let value = has.properties.get("a:note")?.clone();
            Some((name.clone(), (value, has.holds.first().cloned())))
        });
        assert_eq!(marked, expected.collect());
    }

    fn hold(&mut self) {
        let (names, tag) = (self.some(), self.word());
        let has = names.iter().any(|name| self.now[name].holds.contains(&tag));
        let held = self.pool.hold_snapshots(&own(&names), &tag);
        assert_eq!(matches!(held, Err(PoolError::Exists(_))), has, "{held:?}");
        if !has {
            names.iter().for_each(|name| _ = self.now.get_mut(name).unwrap().holds.insert(tag.clone()));
        }
    }

    fn release(&mut self) {
        let (names, tag) = (self.some(), self.word());
        let lacks = names.iter().any(|name| !self.now[name].holds.contains(&tag));
        let released = self.pool.release_snapshots(&own(&names), &tag);
        assert_eq!(matches!(released, Err(PoolError::NotFound(_))), lacks, "{released:?}");
        if !lacks {
            names.iter().for_each(|name| _ = self.now.get_mut(name).unwrap().holds.remove(&tag));
        }
    }

    fn set(&mut self) {
        for name in self.some() {
            let record = record(&self.pool, &name);
            let of = &mut self.now.get_mut(&name).unwrap().properties;
            let property = format!("{}:note", ["a", "b", "c"][self.entropy.next_u64() as usize % 3]);
            let value = self.entropy.next_u64() % 2000;
            if value < 700 {
                self.pool.set_snapshot_property(&record, &property, None).unwrap();
                of.remove(&property);
            } else {
                let value = "y".repeat(value as usize);
                self.pool.set_snapshot_property(&record, &property, Some(&value)).unwrap();
                of.insert(property, value);
            }
        }
    }

    fn destroy(&mut self) {
        let names = self.some();
        let held = names.iter().any(|name| !self.now[name].holds.is_empty());
        match self.next(3) {
            0 if !names.is_empty() => {
                self.pool.set_deferred(&own(&names), true).unwrap();
                names.iter().for_each(|name| self.now.get_mut(name).unwrap().deferred = true);
            }
            1 => {
                for record in self.pool.deferred() {
                    self.pool.destroy_snapshot(record.dataset, &record.name).unwrap();
                }
                self.now.retain(|_, has| !has.deferred || !has.holds.is_empty());
            }
            _ => {
                let gone = self.pool.destroy_snapshots(&own(&names));
                assert_eq!(matches!(gone, Err(PoolError::Busy(_))), held, "{gone:?}");
                if !held {
                    self.now.retain(|name, _| !names.contains(name));
                }
            }
        }
    }

    fn step(&mut self) {
        match self.next(12) {
            0..3 => self.take(),
            3..5 => self.hold(),
            5..7 => self.release(),
            7..9 => self.set(),
            9..11 => self.destroy(),
            _ => self.commit(),
        }
        assert_eq!(state_of(&self.pool), self.now);
    }

    /// The power fails at some event since the last commit but one began.
    fn cut(&mut self) {
        let trace = self.sim.trace();
        let first = self.committed[0].1;
        let at = first + self.next((trace.len() - first) as u64 + 1) as usize;
        let survival = Survival::Random { seed: self.next(1 << 40) };
        self.sim = SimWorld::from_images(trace.crash_images(at, survival));
        self.imports += 1;
        self.pool = import(&self.sim, self.imports).unwrap();
        self.pool.replayed();
        let found = state_of(&self.pool);
        let newest = self.committed.last().expect("there was one");
        // The one before is what is found while the newest is not over.
        let can_be = |(before, after, state): &(usize, usize, State)| {
            let in_time = if *after == newest.1 { at > *before } else { at < newest.1 };
            in_time && *state == found
        };
        assert!(self.committed.iter().any(can_be), "cut at {at}: {found:?}\n{:?}", self.committed);
        self.now = found;
        self.committed.clear();
        self.commit();
        assert_whole(&self.pool, "after a cut");
    }
}

#[test]
fn holds_and_properties_come_and_go_with_their_snapshots_whatever_is_cut() {
    for seed in 0..repeats(25, 200) {
        let mut run = Run::new(seed);
        for _ in 0..3 {
            (0..15).for_each(|_| run.step());
            run.cut();
        }
    }
}

#[test]
fn a_change_that_cannot_read_the_tables_is_done_whole_or_not_at_all() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    // Entries of all lie on several nodes.
    fn kept() -> String {
        "k".repeat(250)
    }
    let names: Vec<String> = (0..160).map(|i| format!("{i}{}", "-".repeat(200))).collect();
    for name in &names {
        let properties = ["a:x", "b:x", "c:x"].map(|property| (property.to_owned(), "v".repeat(900)));
        pool.snapshot_all(own(std::slice::from_ref(name)), properties.into()).unwrap();
    }
    pool.hold_snapshots(&own(&names[..80]), &kept()).unwrap();
    pool.commit().unwrap();
    drop(pool);
    let images = sim.images();
    type Change = fn(&Pool, &[String]) -> Result<(), PoolError>;
    const ROLL_BACK: &str = "roll back";
    let changes: [(&str, Change); 6] = [
        (ROLL_BACK, |pool, names| pool.rollback(ROOT_DATASET, &names[100], true)),
        ("hold", |pool, names| pool.hold_snapshots(&own(&names[..120]), "more")),
        ("release", |pool, names| pool.release_snapshots(&own(&names[..80]), &kept())),
        ("destroy", |pool, names| pool.destroy_snapshots(&own(&names[80..]))),
        ("set", |pool, names| pool.set_snapshot_property(&record(pool, &names[120]), "d:x", Some("value"))),
        ("defer", |pool, names| pool.set_deferred(&own(&names[..80]), true)),
    ];
    for (what, change) in changes {
        let mut failures = 0;
        for spare in 0.. {
            let case = format!("{what}, {spare} reads to spare");
            let sim = SimWorld::from_images(images.clone());
            let pool = open(&sim, 2);
            let before = state_of(&pool);
            pool.commit().unwrap();
            pool.store().drop_caches();
            sim.device(0).inject_window(Fault::FailReads(0..u64::MAX), spare, 400);
            let changed = change(&pool, &names);
            sim.device(0).clear_faults();
            let is_done = changed.is_ok();
            let is_as_before = state_of(&pool) == before;
            // Its own commit, which makes it durable, may fail after it and go on later.
            assert!(is_as_before != is_done || what == ROLL_BACK && !is_done, "{case}: {changed:?}");
            failures += u32::from(!is_done);
            if pool.store().suspended().is_some() && !pool.store().may_resume() {
                // It could not be taken back: the last commit is what counts.
                drop(pool);
                let pool = open(&SimWorld::from_images(sim.images()), 3);
                assert_eq!(state_of(&pool), before, "{case}");
                assert_whole(&pool, &case);
                continue;
            }
            if pool.store().suspended().is_some() {
                pool.upkeep.devices.clear(None).unwrap_or_else(|error| panic!("{case}: {error}"));
            }
            let state = state_of(&pool);
            pool.commit().unwrap();
            assert_whole(&pool, &case);
            drop(pool);
            let pool = open(&SimWorld::from_images(sim.images()), 3);
            assert_eq!(state_of(&pool), state, "{case}: as the tables have it");
            assert_whole(&pool, &case);
            if is_done {
                break;
            }
        }
        assert!(failures > 0, "{what}: no read failed");
    }
}
