//! Blocks that only destroyed snapshots and rolled back heads had are freed, all of them and no others, whatever
//! happens meanwhile: garbage collection finds nothing that was left.

use crate::common::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::ByteLen;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_pool::{Look, PoolError, ROOT_DATASET};
use larder_sim::{SimWorld, Survival};
use larder_upkeep::gc::{Findings, Outcome};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The file that says which state the head is in.
const STAMP: u64 = 5;

/// Number and contents of the head, and of the snapshots, oldest first.
#[derive(Clone, Default)]
struct State {
    head: Model,
    snapshots: Vec<(String, Model)>,
}

struct Run {
    sim: SimWorld,
    pool: Kept,
    entropy: SeededEntropy,
    now: State,
    /// By number: as the last commits left it, the newest last.
    committed: Vec<(u64, State)>,
    /// Events when the newest commit but one was over.
    since: usize,
    names: u64,
    imports: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let pool = create(&sim, "single");
        let entropy = SeededEntropy::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(5));
        let mut run = Self {
            sim,
            pool,
            entropy,
            now: State::default(),
            committed: Vec::new(),
            since: 0,
            names: 0,
            imports: 1,
        };
        run.write(400);
        run.commit_anew();
        run
    }

    fn next(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    fn put(&mut self, files: &[(u64, u64, usize)]) {
        put(&self.pool, &self.pool.dataset(ROOT_DATASET).unwrap(), files);
        self.now.head.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
    }

    /// Writes files, near each other or anywhere.
    fn write(&mut self, count: u64) {
        let (near, version) = (self.next(2) == 0, 2 + self.next(1 << 20));
        let first = 10 + self.next(900);
        let inode = |i| if near { first + i } else { 10 + self.next(900) };
        let files: Vec<_> = (0..count).map(|i| (inode(i), version, 20 + self.next(900) as usize)).collect();
        self.put(&files);
    }

    fn remove(&mut self) {
        let from = 10 + self.next(900);
        let gone: Vec<_> =
            self.now.head.keys().copied().filter(|inode| (from..from + 80).contains(inode)).collect();
        let dataset = self.pool.dataset(ROOT_DATASET).unwrap();
        let op = self.pool.enter().unwrap();
        let removed = dataset.update(&op, |tree| {
            for inode in &gone {
                let key = Key::new(*inode, EXTENT, 0);
                let old = Extent::decode(&tree.get(&key)?.expect("the file is there"))?;
                tree.remove(&key)?;
                tree.drop_block(&old);
            }
            Ok::<_, PoolError>(())
        });
        removed.unwrap();
        drop(op);
        gone.iter().for_each(|inode| _ = self.now.head.remove(inode));
    }

    /// The state gets a number.
    fn stamp(&mut self) -> u64 {
        let number = self.committed.last().map_or(1, |(number, _)| number + 1);
        self.put(&[(STAMP, number, 100)]);
        number
    }

    fn noted(&mut self, number: u64) {
        self.committed.push((number, self.now.clone()));
        let old = self.committed.len().saturating_sub(2);
        self.committed.drain(..old);
    }

    fn commit(&mut self) {
        let number = self.stamp();
        self.since = self.sim.trace().len();
        self.pool.commit().unwrap();
        self.noted(number);
    }

    fn snapshot(&mut self) {
        self.names += 1;
        let (name, number) = (format!("s{}", self.names), self.stamp());
        self.since = self.sim.trace().len();
        self.pool.snapshot(ROOT_DATASET, &name).unwrap();
        self.now.snapshots.push((name, self.now.head.clone()));
        self.noted(number);
    }

    /// Some of the snapshots.
    fn some(&self) -> Vec<String> {
        let odds = 1 + self.next(4);
        let all = self.now.snapshots.iter().map(|(name, _)| name.clone());
        all.filter(|_| self.next(odds) == 0).collect()
    }

    fn destroy(&mut self, names: &[String]) {
        self.destroy_uncommitted(names);
        self.commit();
    }

    fn destroy_uncommitted(&mut self, names: &[String]) {
        let going: Vec<_> = names.iter().map(|name| (ROOT_DATASET, name.clone())).collect();
        self.pool.destroy_snapshots(&going).unwrap();
        self.now.snapshots.retain(|(name, _)| !names.contains(name));
    }

    fn roll_back(&mut self) {
        let Some((name, model)) = self.now.snapshots.last().cloned() else { return };
        if self.now.snapshots.len() > 1 {
            let older = self.now.snapshots[0].0.clone();
            assert!(matches!(self.pool.rollback(ROOT_DATASET, &older, false), Err(PoolError::Busy(_))));
        }
        self.commit();
        self.since = self.sim.trace().len();
        self.pool.rollback(ROOT_DATASET, &name, false).unwrap();
        self.now.head = model;
        // It has the number of another state: no cut before the next.
        self.committed.clear();
        self.commit_anew();
    }

    /// A commit of which the number is higher than all before it.
    fn commit_anew(&mut self) {
        self.names += 1;
        let number = self.names << 32;
        self.put(&[(STAMP, number, 100)]);
        self.pool.commit().unwrap();
        self.since = self.sim.trace().len();
        self.noted(number);
    }

    /// The power fails at some event since the last commit but one was over.
    fn cut(&mut self) {
        let trace = self.sim.trace();
        let at = self.since + self.next((trace.len() - self.since) as u64 + 1) as usize;
        let survival = match self.next(3) {
            0 => Survival::DropAll,
            1 => Survival::KeepAll,
            _ => Survival::Random { seed: self.next(1 << 40) },
        };
        self.sim = SimWorld::from_images(trace.crash_images(at, survival));
        self.imports += 1;
        self.pool = import(&self.sim, self.imports).unwrap();
        self.pool.replayed();
        let found = {
            let dataset = self.pool.dataset(ROOT_DATASET).unwrap();
            let value = dataset.view().unwrap().get(&Key::new(STAMP, EXTENT, 0)).unwrap().unwrap();
            version_of(&self.pool.store().read(Extent::decode(&value).unwrap().ptr).unwrap())
        };
        let (_, state) =
            self.committed.iter().find(|(number, _)| *number == found).expect("one of the last two");
        self.now = state.clone();
        self.verify();
        self.committed.clear();
        self.commit_anew();
    }

    fn verify(&self) {
        let dataset = self.pool.dataset(ROOT_DATASET).unwrap();
        assert!(versions(&dataset.view().unwrap(), &self.pool) == self.now.head, "the head");
        let names: Vec<_> = self.pool.snapshots(ROOT_DATASET).into_iter().map(|one| one.name).collect();
        assert_eq!(names, self.now.snapshots.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
        for (name, model) in &self.now.snapshots {
            let view = self.pool.snapshot_view(ROOT_DATASET, name).unwrap();
            assert!(versions(&view, &self.pool) == *model, "snapshot {name}");
        }
    }

    /// Everything is freed that is to be. No power cut may come after.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 100, "{} trees stay", self.pool.remaining());
            while self.pool.destroy_step(64).unwrap() {}
            self.pool.commit().unwrap();
            while self.pool.free_step(64).unwrap() {}
            self.pool.commit().unwrap();
            if self.pool.remaining() == 0 && !self.pool.freeing().has_queued() {
                break;
            }
        }
    }

    /// Footprints of all blocks.
    fn bytes(&self) -> u64 {
        let of = |entry: &larder_sorted::map::Entry| match entry.location {
            larder_sorted::map::Location::Places(places) => {
                places.iter().map(|place| u64::from(place.footprint())).sum()
            }
            _ => 0,
        };
        self.pool.blocks().unwrap().iter().map(|(_, entry)| of(entry)).sum()
    }

    /// Nothing is left that nobody refers to: garbage collection frees no block.
    fn assert_exact(&mut self) {
        // One under way holds nodes.
        while self.pool.upkeep.gc.progress().is_some() {
            self.pool.upkeep.gc.step(64).unwrap();
        }
        self.settle();
        self.verify();
        assert_whole(&self.pool, "settled");
        let ids = |pool: &Kept| pool.blocks().unwrap().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        let before = ids(&self.pool);
        for _ in 0..2 {
            let found = trace(&self.pool);
            assert_eq!((found.missing, found.lost, found.unreachable.blocks), (0, 0, 0), "{found:?}");
        }
        while self.pool.free_step(64).unwrap() {}
        let after = ids(&self.pool);
        let left: Vec<_> = before.iter().filter(|id| !after.contains(id)).collect();
        let new = after.iter().filter(|id| !before.contains(id)).count();
        assert!((left.len(), new) == (0, 0), "left to garbage collection: {left:?}; {new} new");
    }

    fn step(&mut self) {
        match self.next(20) {
            0..=3 => {
                let count = [1, 5, 60][self.next(3) as usize];
                self.write(count);
            }
            4 => self.remove(),
            5..=6 => self.commit(),
            7..=10 => self.snapshot(),
            11..=12 => {
                let names = self.some();
                self.destroy(&names);
            }
            13 => self.roll_back(),
            14..=15 => drop(self.pool.destroy_step(1).unwrap()),
            16 => drop(self.pool.free_step(1).unwrap()),
            17 => drop(self.pool.clean_step(true).unwrap()),
            18 => {
                if self.pool.upkeep.gc.progress().is_none() {
                    self.commit();
                    self.pool.upkeep.gc.start().unwrap();
                    self.commit();
                }
                for _ in 0..self.next(8) {
                    self.pool.upkeep.gc.step(2).unwrap();
                }
            }
            _ => self.cut(),
        }
    }
}

/// Traces to the end; what was found.
fn trace(pool: &Kept) -> Findings {
    assert!(pool.upkeep.gc.start().unwrap());
    while pool.upkeep.gc.step(64).unwrap() {}
    let findings = pool.upkeep.gc.findings().unwrap();
    assert_eq!(findings.outcome, Outcome::Done);
    pool.commit().unwrap();
    findings
}

/// So many seeds, or the one of `LARDER_SEED`.
fn seeds(quick: u64, full: u64) -> std::ops::Range<u64> {
    let only: Option<u64> = std::env::var("LARDER_SEED").ok().and_then(|seed| seed.parse().ok());
    only.map_or(0..repeats(quick, full), |only| only..only + 1)
}

#[test]
fn what_only_destroyed_snapshots_and_rolled_back_heads_held_is_freed_and_nothing_else() {
    for seed in seeds(24, 400) {
        let mut run = Run::new(seed);
        for _ in 0..40 + seed % 5 * 10 {
            run.step();
        }
        run.verify();
        run.assert_exact();
        let all: Vec<_> = run.now.snapshots.iter().map(|(name, _)| name.clone()).collect();
        run.destroy(&all);
        run.assert_exact();
        let usage = run.pool.dataset(ROOT_DATASET).unwrap().usage();
        assert_eq!((run.pool.remaining(), run.pool.freeing().left_bytes()), (0, 0), "seed {seed}: {usage:?}");
    }
}

#[test]
fn destroying_any_set_of_snapshots_frees_what_was_said() {
    for seed in seeds(10, 60) {
        let mut run = Run::new(1000 + seed);
        for _ in 0..12 {
            for _ in 0..run.next(4) {
                let count = [1, 5, 60][run.next(3) as usize];
                run.write(count);
            }
            if run.next(4) == 0 {
                run.remove();
            }
            run.snapshot();
        }
        run.write(30);
        run.settle();
        while !run.now.snapshots.is_empty() {
            let names = run.some();
            let said = run.pool.snapshot_space(ROOT_DATASET, &names).unwrap();
            let before = run.bytes();
            run.destroy_uncommitted(&names);
            run.settle();
            assert_eq!(before - run.bytes(), said, "seed {seed}: {names:?} of {}", run.now.snapshots.len());
        }
        run.assert_exact();
    }
}

#[test]
fn what_snapshots_hold_is_measured_beside_commits_that_free_what_is_read() {
    let mut run = Run::new(7);
    run.snapshot();
    run.write(200);
    run.snapshot();
    let (pool, is_over, measured) = (run.pool.clone(), AtomicBool::new(false), AtomicU64::new(0));
    let names: Vec<_> = run.now.snapshots.iter().map(|(name, _)| name.clone()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert!(pool.snapshot_space(ROOT_DATASET, &names).unwrap() > 0);
                pool.written(ROOT_DATASET, None, None).unwrap();
                measured.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut commits = 0;
        while commits < 150 || measured.load(Ordering::Relaxed) < 20 {
            run.write(20);
            run.commit();
            run.pool.store().drop_caches();
            run.pool.clean_step(true).unwrap();
            commits += 1;
            assert!(commits < 10_000, "nothing is measured");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    run.verify();
}
