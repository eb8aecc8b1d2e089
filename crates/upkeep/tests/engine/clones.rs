//! Clones, promotes, branches, rollbacks and destroys of datasets that have a past in common, interleaved with all that
//! frees and with power cuts: every tree keeps what it had, and all that nobody has any more is freed.

use crate::common::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{ByteLen, DatasetId};
use larder_pool::{Dataset, Look, PoolError, ROOT_DATASET};
use larder_sim::{SimWorld, Survival};
use larder_upkeep::gc::{Findings, Outcome};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The file of the pool's root dataset that says which state the pool is in.
const STAMP: u64 = 5;
/// Files of a dataset.
const FILES: u64 = 300;

/// A dataset: its head, and its snapshots, oldest first.
#[derive(Clone, Default)]
struct Line {
    head: Model,
    snapshots: Vec<(String, Model)>,
}

/// Datasets by their full names.
type State = BTreeMap<String, Line>;

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
    /// Whether blocks get further references, which are left to garbage collection.
    shares: bool,
}

impl Run {
    fn new(seed: u64, shares: bool) -> Self {
        let sim = SimWorld::new(&[ByteLen::new(96 << 20)]);
        let pool = create(&sim, "single");
        let entropy = SeededEntropy::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(11));
        let now = State::new();
        let committed = Vec::new();
        let mut run = Self { sim, pool, entropy, now, committed, since: 0, names: 0, imports: 1, shares };
        run.make();
        let name = run.any().unwrap();
        run.write(&name, 150);
        run.commit_anew();
        run
    }

    fn next(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    fn new_name(&mut self, of: &str) -> String {
        self.names += 1;
        format!("{of}{}", self.names)
    }

    fn any(&self) -> Option<String> {
        let count = self.now.len() as u64;
        (count > 0).then(|| self.now.keys().nth(self.next(count) as usize).unwrap().clone())
    }

    /// A dataset, and the place of one of its snapshots.
    fn any_snapshot(&self) -> Option<(String, usize)> {
        let all = self.now.iter().flat_map(|(name, line)| (0..line.snapshots.len()).map(move |i| (name, i)));
        let all: Vec<_> = all.collect();
        let count = all.len() as u64;
        (count > 0).then(|| all[self.next(count) as usize]).map(|(name, at)| (name.clone(), at))
    }

    fn dataset(&self, name: &str) -> Arc<Dataset> {
        self.pool.dataset_by_name(name).unwrap()
    }

    fn id(&self, name: &str) -> DatasetId {
        self.dataset(name).id()
    }

    fn line(&mut self, name: &str) -> &mut Line {
        self.now.get_mut(name).unwrap()
    }

    fn make(&mut self) {
        let name = self.new_name("tank/d");
        self.pool.create_dataset(&name, BTreeMap::new()).unwrap();
        self.now.insert(name, Line::default());
    }

    fn put(&mut self, name: &str, files: &[(u64, u64, usize)]) {
        put(&self.pool, &self.dataset(name), files);
        let head = &mut self.line(name).head;
        head.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
    }

    /// Writes files, near each other or anywhere.
    fn write(&mut self, name: &str, count: u64) {
        let (near, version) = (self.next(2) == 0, 2 + self.next(1 << 20));
        let first = 10 + self.next(FILES);
        let inode = |i| if near { first + i } else { 10 + self.next(FILES) };
        let files: Vec<_> = (0..count).map(|i| (inode(i), version, 20 + self.next(900) as usize)).collect();
        self.put(name, &files);
    }

    fn remove(&mut self, name: &str) {
        let from = 10 + self.next(FILES);
        let head = &mut self.line(name).head;
        let gone: Vec<_> = head.keys().copied().filter(|inode| (from..from + 40).contains(inode)).collect();
        gone.iter().for_each(|inode| _ = head.remove(inode));
        try_remove(&self.pool, &self.dataset(name), &gone).unwrap();
    }

    /// A file of one dataset becomes what a file of another, or of a snapshot, is: both name one block.
    fn share(&mut self) {
        let (Some(from), Some(to)) = (self.any(), self.any()) else { return };
        let line = &self.now[&from];
        let at = self.next(line.snapshots.len() as u64 + 1) as usize;
        let (name, model) = match line.snapshots.get(at) {
            Some((name, model)) => (Some(name.clone()), model),
            None => (None, &line.head),
        };
        if model.is_empty() {
            return;
        }
        let (&inode, &was) = model.iter().nth(self.next(model.len() as u64) as usize).unwrap();
        let key = Key::new(inode, EXTENT, 0);
        let value = match name {
            Some(name) => self.pool.snapshot_view(self.id(&from), &name).unwrap().get(&key),
            None => self.dataset(&from).view().unwrap().get(&key),
        };
        let extent = Extent::decode(&value.unwrap().unwrap()).unwrap();
        // One that only the head has may be dropped by that meanwhile; nobody else is here.
        let target = 10 + self.next(FILES);
        let dataset = self.dataset(&to);
        let op = self.pool.enter().unwrap();
        let shared = dataset.update(&op, |tree| {
            let key = Key::new(target, EXTENT, 0);
            tree.share_block(&extent);
            if let Some(old) = tree.get(&key)? {
                let old = Extent::decode(&old)?;
                tree.drop_block(&old);
            }
            tree.insert(key, &extent.encode())
        });
        shared.unwrap();
        drop(op);
        self.line(&to).head.insert(target, was);
    }

    fn stamp(&mut self) -> u64 {
        self.names += 1;
        put(&self.pool, &self.pool.dataset(ROOT_DATASET).unwrap(), &[(STAMP, self.names, 100)]);
        self.since = self.sim.trace().len();
        self.names
    }

    fn noted(&mut self, number: u64) {
        self.committed.push((number, self.now.clone()));
        let old = self.committed.len().saturating_sub(2);
        self.committed.drain(..old);
    }

    fn commit(&mut self) {
        let number = self.stamp();
        self.pool.commit().unwrap();
        self.noted(number);
    }

    /// Commits of which it is not known which a cut leaves are over.
    fn commit_anew(&mut self) {
        self.committed.clear();
        self.commit();
        self.since = self.sim.trace().len();
    }

    fn snapshot(&mut self, name: &str) {
        let own = self.new_name("s");
        let number = self.stamp();
        self.pool.snapshot(self.id(name), &own).unwrap();
        let line = self.line(name);
        line.snapshots.push((own, line.head.clone()));
        self.noted(number);
    }

    fn clone_one(&mut self) {
        let Some((name, at)) = self.any_snapshot() else { return };
        let (own, head) = self.now[&name].snapshots[at].clone();
        let clone = self.new_name("tank/c");
        self.pool.clone_snapshot(self.id(&name), &own, &clone, BTreeMap::new()).unwrap();
        self.now.insert(clone, Line { head, snapshots: Vec::new() });
    }

    /// A dataset that is a clone.
    fn any_clone(&self) -> Option<String> {
        let clones = self.now.keys().filter(|name| self.pool.origin(self.id(name)).is_some());
        let clones: Vec<_> = clones.cloned().collect();
        let count = clones.len() as u64;
        (count > 0).then(|| clones[self.next(count) as usize].clone())
    }

    fn promote(&mut self) {
        let Some(clone) = self.any_clone() else { return };
        self.commit();
        let origin = self.pool.origin(self.id(&clone)).unwrap();
        let from = self.pool.full_name(origin.dataset);
        self.promoted(&from, &clone, origin.high.get());
        self.pool.promote(self.id(&clone)).unwrap();
        self.commit_anew();
    }

    fn promoted(&mut self, from: &str, clone: &str, high: u64) {
        let all = self.pool.snapshots(self.id(from));
        let count = all.iter().filter(|one| one.high.get() <= high).count();
        let moved: Vec<_> = self.line(from).snapshots.drain(..count).collect();
        self.line(clone).snapshots.splice(0..0, moved);
    }

    fn destroy(&mut self, name: &str, own: &[String]) {
        let id = self.id(name);
        let going: Vec<_> = own.iter().map(|own| (id, own.clone())).collect();
        self.pool.destroy_snapshots(&going).unwrap();
        self.line(name).snapshots.retain(|(one, _)| !own.contains(one));
    }

    fn some(&self, name: &str) -> Vec<String> {
        let odds = 1 + self.next(4);
        let all = self.now[name].snapshots.iter().map(|(own, _)| own.clone());
        all.filter(|_| self.next(odds) == 0).collect()
    }

    fn destroy_dataset(&mut self, name: &str) {
        let all: Vec<_> = self.now[name].snapshots.iter().map(|(own, _)| own.clone()).collect();
        if !all.is_empty() {
            assert!(matches!(self.pool.destroy_dataset(self.id(name)), Err(PoolError::Busy(_))));
            self.destroy(name, &all);
        }
        self.commit();
        self.pool.destroy_dataset(self.id(name)).unwrap();
        self.now.remove(name);
        // It may have taken commits of its own.
        self.commit_anew();
    }

    fn roll_back(&mut self) {
        let Some((name, at)) = self.any_snapshot() else { return };
        let id = self.id(&name);
        let (own, model) = self.now[&name].snapshots[at].clone();
        let newer = self.now[&name].snapshots.len() - at - 1;
        if newer > 0 {
            assert!(matches!(self.pool.rollback(id, &own, false), Err(PoolError::Busy(_))));
        }
        let records = self.pool.snapshots(id);
        let hidden = self.pool.hidden_snapshots(id);
        let later = records[at + 1..].iter().chain(hidden.iter().filter(|one| one.high > records[at].high));
        let is_origin = later.clone().any(|one| !self.pool.clones(one).is_empty());
        self.commit();
        match self.pool.rollback(id, &own, true) {
            Ok(()) => {
                assert!(!is_origin, "{name}@{own}");
                let line = self.line(&name);
                line.snapshots.truncate(at + 1);
                line.head = model;
            }
            Err(PoolError::Busy(text)) => assert!(is_origin && text.contains("is the origin of"), "{text}"),
            Err(error) => panic!("{error}"),
        }
        self.commit_anew();
    }

    fn branch(&mut self) {
        let Some((name, at)) = self.any_snapshot() else { return };
        let (own, model) = self.now[&name].snapshots[at].clone();
        let branch = self.new_name("tank/b");
        self.commit();
        self.pool.branch(self.id(&name), &own, &branch, &BTreeMap::new()).unwrap();
        let line = self.line(&name);
        let head = std::mem::replace(&mut line.head, model);
        let snapshots = line.snapshots.split_off(at + 1);
        self.now.insert(branch, Line { head, snapshots });
        self.commit_anew();
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
        let value = {
            let dataset = self.pool.dataset(ROOT_DATASET).unwrap();
            dataset.view().unwrap().get(&Key::new(STAMP, EXTENT, 0)).unwrap().unwrap()
        };
        let found = version_of(&self.pool.store().read(Extent::decode(&value).unwrap().ptr).unwrap());
        let state = self.committed.iter().find(|(number, _)| *number == found);
        self.now = state.unwrap_or_else(|| panic!("{found} is not one of the last two")).1.clone();
        self.verify();
        self.commit_anew();
    }

    fn verify(&self) {
        let names: Vec<_> = self.pool.children(ROOT_DATASET).iter().map(|one| one.id()).collect();
        let mut names: Vec<_> = names.into_iter().map(|id| self.pool.full_name(id)).collect();
        names.sort();
        assert_eq!(names, self.now.keys().cloned().collect::<Vec<_>>());
        for (name, line) in &self.now {
            let dataset = self.dataset(name);
            assert!(versions(&dataset.view().unwrap(), &self.pool) == line.head, "the head of {name}");
            let id = dataset.id();
            let found: Vec<_> = self.pool.snapshots(id).into_iter().map(|one| one.name).collect();
            assert_eq!(
                found,
                line.snapshots.iter().map(|(own, _)| own.clone()).collect::<Vec<_>>(),
                "{name}"
            );
            for (own, model) in &line.snapshots {
                let view = self.pool.snapshot_view(id, own).unwrap();
                assert!(versions(&view, &self.pool) == *model, "{name}@{own}");
            }
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
        let of = |entry: &larder_sorted::map::Entry| -> u64 {
            entry.places().iter().map(|place| u64::from(place.footprint())).sum()
        };
        self.pool.blocks().unwrap().iter().map(|(_, entry)| of(entry)).sum()
    }

    /// Nothing is left that nobody refers to: garbage collection frees no block, but shared ones.
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
        self.verify();
        let after = ids(&self.pool);
        let left: Vec<_> = before.iter().filter(|id| !after.contains(id)).collect();
        let new = after.iter().filter(|id| !before.contains(id)).count();
        assert!(self.shares || left.is_empty(), "left to garbage collection: {left:?}");
        assert_eq!(new, 0);
    }

    fn step(&mut self) {
        let Some(name) = self.any() else { return self.make() };
        match self.next(32) {
            0..=4 => {
                let count = [1, 5, 60][self.next(3) as usize];
                self.write(&name, count);
            }
            5 => self.remove(&name),
            6 if self.now.len() < 5 => self.make(),
            7..=8 => self.commit(),
            9..=12 => self.snapshot(&name),
            13..=14 => {
                let own = self.some(&name);
                self.destroy(&name, &own);
                self.commit();
            }
            15..=17 if self.now.len() < 8 => self.clone_one(),
            18..=19 => self.promote(),
            20 => self.roll_back(),
            21 if self.now.len() < 8 => self.branch(),
            22..=23 => self.destroy_dataset(&name),
            24..=25 => drop(self.pool.destroy_step(1).unwrap()),
            26 => drop(self.pool.free_step(1).unwrap()),
            27 => drop(self.pool.clean_step(true).unwrap()),
            28..=29 => {
                if self.pool.upkeep.gc.progress().is_none() {
                    self.commit();
                    self.pool.upkeep.gc.start().unwrap();
                    self.commit();
                }
                for _ in 0..self.next(8) {
                    self.pool.upkeep.gc.step(2).unwrap();
                }
            }
            30 if self.shares => self.share(),
            _ => self.cut(),
        }
    }

    fn destroy_all(&mut self) {
        while let Some(name) = self.any() {
            self.destroy_dataset(&name);
            assert_whole(&self.pool, &name);
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

fn run_all(seed: u64, shares: bool) {
    let mut run = Run::new(seed, shares);
    for _ in 0..60 + seed % 5 * 20 {
        run.step();
    }
    run.verify();
    run.assert_exact();
    run.destroy_all();
    run.assert_exact();
    // Of the root dataset: the stamp, and the node that names it.
    assert!(run.pool.blocks().unwrap().len() <= 2, "seed {seed}: {:?}", run.pool.blocks().unwrap());
    assert_eq!((run.pool.remaining(), run.pool.hidden_snapshots(ROOT_DATASET).len()), (0, 0), "seed {seed}");
}

#[test]
fn datasets_with_a_past_in_common_keep_what_they_have_and_free_the_rest() {
    seeds(24, 2000).for_each(|seed| run_all(seed, false));
}

#[test]
fn clones_of_shared_blocks_lose_nothing() {
    seeds(16, 1000).for_each(|seed| run_all(7000 + seed, true));
}

#[test]
fn destroying_snapshots_that_have_clones_frees_what_was_said() {
    for seed in seeds(6, 200) {
        let mut run = Run::new(20_000 + seed, false);
        for _ in 0..30 {
            let name = run.any().unwrap();
            let count = [1, 5, 60][run.next(3) as usize];
            run.write(&name, count);
            match run.next(4) {
                0 if run.now.len() < 5 => run.clone_one(),
                1 => run.promote(),
                _ => run.snapshot(&name),
            }
        }
        run.commit();
        run.settle();
        while run.now.values().any(|line| !line.snapshots.is_empty()) {
            let name = run.any().unwrap();
            let own = run.some(&name);
            let said = run.pool.snapshot_space(run.id(&name), &own).unwrap();
            let before = run.bytes();
            run.destroy(&name, &own);
            run.settle();
            assert_eq!(before - run.bytes(), said, "seed {seed}: {name}@{own:?}");
        }
        run.assert_exact();
    }
}

#[test]
fn datasets_that_change_places_again_and_again_are_there_after_each_import() {
    let mut run = Run::new(1, false);
    let name = run.any().unwrap();
    run.snapshot(&name);
    run.clone_one();
    let clone = run.any_clone().unwrap();
    for _ in 0..3 {
        // Held by the snapshot.
        run.write(&name, 60);
        run.write(&clone, 60);
        run.commit();
    }
    for _ in 0..100 {
        run.promote();
    }
    run.pool.commit().unwrap();
    run.sim = SimWorld::from_images(run.sim.images());
    run.pool = import(&run.sim, 9).unwrap();
    run.verify();
    assert_whole(&run.pool, "a hundred promotes");
    run.destroy_all();
    run.assert_exact();
}

#[test]
fn the_roots_snapshots_have_clones_below_it() {
    let mut run = Run::new(2, false);
    let root = "tank".to_owned();
    let head = versions(&run.dataset(&root).view().unwrap(), &run.pool);
    run.now.insert(root.clone(), Line { head, snapshots: Vec::new() });
    run.write(&root, 50);
    for name in ["tank/a", "tank/b"] {
        run.snapshot(&root);
        // The stamp is a file of its.
        let head = versions(&run.dataset(&root).view().unwrap(), &run.pool);
        run.line(&root).head = head.clone();
        run.line(&root).snapshots.last_mut().unwrap().1 = head;
        let (own, head) = run.now[&root].snapshots.last().cloned().unwrap();
        run.pool.clone_snapshot(ROOT_DATASET, &own, name, BTreeMap::new()).unwrap();
        run.now.insert(name.into(), Line { head, snapshots: Vec::new() });
        run.write(&root, 20);
    }
    run.pool.commit().unwrap();
    let oldest = run.now[&root].snapshots[0].0.clone();
    let error = run.pool.rollback(ROOT_DATASET, &oldest, true).unwrap_err();
    assert!(error.to_string().contains("is the origin of tank/b"), "{error}");
    run.pool.branch(ROOT_DATASET, &oldest, "tank/newer", &BTreeMap::new()).unwrap();
    let line = run.line(&root);
    let model = line.snapshots[0].1.clone();
    let head = std::mem::replace(&mut line.head, model);
    let snapshots = line.snapshots.split_off(1);
    run.now.insert("tank/newer".into(), Line { head, snapshots });
    let found = versions(&run.dataset(&root).view().unwrap(), &run.pool);
    assert!(found == run.now[&root].head);
    run.now.remove(&root);
    run.verify();
    assert_whole(&run.pool, "the root branched");
}

#[test]
fn a_clone_that_is_written_to_all_the_time_takes_over_what_it_was_made_of() {
    for destroys in [false, true] {
        let mut run = Run::new(3, false);
        let name = run.any().unwrap();
        run.snapshot(&name);
        run.clone_one();
        let clone = run.any_clone().unwrap();
        run.commit();
        let own: Vec<_> = run.now[&name].snapshots.iter().map(|(own, _)| own.clone()).collect();
        let (of, to) = (run.id(&name), run.id(&clone));
        if destroys {
            run.destroy(&name, &own);
        }
        let (is_over, began) = (AtomicBool::new(false), AtomicBool::new(false));
        let dataset = run.dataset(&clone);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in 1.. {
                    put(&run.pool, &dataset, &[(10, version, 100)]);
                    began.store(true, Ordering::Relaxed);
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            while !began.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let done = if destroys { run.pool.destroy_dataset(of) } else { run.pool.promote(to) };
            is_over.store(true, Ordering::Relaxed);
            done.unwrap();
        });
        run.pool.commit().unwrap();
        assert!(run.pool.origin(to).is_none());
        assert_whole(&run.pool, "written to");
    }
}

#[test]
fn a_hidden_snapshot_that_somebody_looks_into_stays_until_that_is_over() {
    let mut run = Run::new(4, false);
    let name = run.any().unwrap();
    run.snapshot(&name);
    run.clone_one();
    let clone = run.any_clone().unwrap();
    // So that the snapshot has what nobody else has, once the clone is gone.
    run.write(&name, 200);
    run.commit();
    let (own, model) = run.now[&name].snapshots[0].clone();
    run.destroy(&name, &[own]);
    let high = run.pool.hidden_snapshots(run.id(&name))[0].high;
    let view = run.pool.snapshot_view_of(run.id(&name), high).unwrap();
    run.destroy_dataset(&clone);
    while run.pool.destroy_step(64).unwrap() {}
    run.pool.commit().unwrap();
    while run.pool.free_step(64).unwrap() {}
    run.pool.store().drop_caches();
    assert_eq!(run.pool.hidden_snapshots(run.id(&name)).len(), 1);
    assert!(versions(&view, &run.pool) == model);
    drop(view);
    run.assert_exact();
    assert!(run.pool.hidden_snapshots(run.id(&name)).is_empty());
}
