//! A pool lives for long with 85 to 100 % of it in use: what is refused has no effect at all, what frees space is never
//! refused, no commit fails, no cut of the power loses a promise, and at the end all of it comes back.

use crate::bed::{Bed, ROOT, USER};
use crate::full::{LAYOUTS, setting, settle};
use crate::model::{Id, Model, Run, compare};
use larder_files::*;
use larder_format::ByteLen;
use larder_pool::ROOT_DATASET;
use larder_sim::{SimWorld, Survival};
use larder_upkeep::Upkeep;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const KIB: u64 = 1 << 10;
/// Of AVAIL of the empty pool, hundredths: what is kept in use at least.
const IN_USE: u64 = 85;
/// States that are kept for cuts of the power; the oldest go.
const STATES: usize = 24;

struct Life {
    run: Run,
    /// Bytes of a record at first.
    record: u32,
    /// AVAIL of the empty pool.
    empty: u64,
    /// States that a cut may find: those since the first that is promised, which has the number `first`.
    states: VecDeque<Model>,
    first: u64,
    /// Events of the world when `states` began.
    since: usize,
    steps: u64,
    made: u64,
    snapshots: u64,
    seed: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl Life {
    fn new((word, count): (&str, usize), record: u32, seed: u64) -> Self {
        let sizes = vec![ByteLen::new(64 << 20); count];
        let bed = Bed::with_layout(word, &sizes, &[("recordsize", &record.to_string()), ("atime", "off")]);
        let memory = [2u64, 8, 64][seed as usize % 3] << 20;
        bed.pool.set_pool_property("memory", &memory.to_string()).unwrap();
        settle(&bed);
        let empty = bed.pool.store().space(record).available;
        let mut run = Run::on(bed, seed);
        run.refusals = Some(0);
        let mut life = Self {
            run,
            record,
            empty,
            states: Default::default(),
            first: 0,
            since: 0,
            steps: 0,
            made: 0,
            snapshots: 0,
            seed,
            counts: BTreeMap::new(),
        };
        life.start_states();
        life
    }

    fn available(&self) -> u64 {
        self.run.bed.pool.store().space(self.record).available
    }

    fn below(&self, n: u64) -> u64 {
        self.run.below(n)
    }

    fn noise(&self, len: u64) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.below(u64::MAX).to_le_bytes());
        words.take(len as usize).collect()
    }

    /// The durable state is the model's, and no other.
    fn start_states(&mut self) {
        self.states = [self.run.model.clone()].into();
        self.first = 0;
        self.run.bed.sim.mark(0);
        self.since = self.run.bed.sim.trace().len();
    }

    /// After a step: the states that a cut may find. A commit in the step, to win space, keeps the names of before or
    /// after the step, and the data that had room.
    fn keep_state(&mut self, before: Model, synced: bool, committed: bool) {
        if committed {
            self.states.push_back(before);
        }
        if synced || committed {
            self.states.push_back(self.run.model.clone());
        } else {
            return;
        }
        while self.states.len() > STATES {
            self.states.pop_front();
            self.first += 1;
        }
        let promised = self.first + self.states.len() as u64 - if synced { 1 } else { 2 };
        self.run.bed.sim.mark(promised);
    }

    /// Fills it to the least that is to be in use; not in one go, that later parts of it lie among others.
    fn fill(&mut self) {
        if self.available() <= self.empty / 100 * (100 - IN_USE) {
            return;
        }
        while self.available() > self.empty / 100 * (100 - IN_USE) {
            self.grow();
            if self.below(20) == 0 {
                self.tick();
            }
        }
        self.run.commit();
        self.start_states();
    }

    /// One step.
    fn step(&mut self) {
        let before = self.run.model.clone();
        let (synced, durable) = (self.run.synced, self.run.bed.pool.store().durable_commit());
        let refusals = self.run.refusals;
        // Tides: it fills until all is refused, stays full for a while, then falls.
        self.steps += 1;
        let flood = self.steps % 160 < 120;
        let name = match self.below(100) {
            0..25 if flood => self.grow(),
            25..28 if !flood => self.shrink(),
            28..34 => self.overwrite(),
            34 => self.shrink(),
            35..38 => self.manage(),
            38 => self.snapshot(),
            39..41 => self.tick(),
            _ => self.run.step(),
        };
        *self.counts.entry(name).or_default() += 1;
        if self.run.refusals > refusals {
            *self.counts.entry("refused").or_default() += 1;
            if self.below(6) == 0 {
                self.run.verify();
            }
        }
        assert_eq!(self.run.bed.pool.store().suspended(), None);
        let committed = self.run.bed.pool.store().durable_commit() > durable;
        self.keep_state(before, self.run.synced > synced, committed);
    }

    /// Files that are large enough to fill a pool.
    fn ballast(&self) -> Option<Id> {
        self.run.pick(|object| object.kind == FileKind::Regular && object.content.len() > 64 << 10)
    }

    fn grow(&mut self) -> &'static str {
        let most = self.empty as usize / 14;
        let file =
            |object: &crate::model::Object| object.kind == FileKind::Regular && object.content.len() < most;
        let id = match self.run.pick(file) {
            Some(id) if self.below(4) > 0 => id,
            _ => {
                self.made += 1;
                let name = format!("ballast-{}", self.made).into_bytes();
                let made = self.run.bed.mount.mknod(ROOT, &name, FileKind::Regular, 0o644, 0, &USER);
                let Some(made) = self.run.allowed(made) else { return "grow" };
                self.run.adopt(name, made.node)
            }
        };
        let len = 1 + self.below(if self.below(4) == 0 { 4 * KIB } else { self.empty / 50 });
        for piece in self.noise(len).chunks(128 << 10) {
            let end = self.run.model.objects[&id].content.len() as u64;
            if !self.run.write_at(id, end, piece) {
                break;
            }
        }
        "grow"
    }

    fn overwrite(&mut self) -> &'static str {
        let Some(id) = self.ballast() else { return "overwrite" };
        let size = self.run.model.objects[&id].content.len() as u64;
        let at = self.below(size);
        let len = (1 + self.below(200 * KIB)).min(size - at);
        let data = self.noise(len);
        self.run.write_at(id, at, &data);
        "overwrite"
    }

    /// A step that frees space, which is never refused.
    fn shrink(&mut self) -> &'static str {
        let Some(id) = self.ballast() else { return "shrink" };
        let (node, size) = (self.run.node(id), self.run.model.objects[&id].content.len() as u64);
        let at = self.below(size);
        match self.below(3) {
            0 => {
                self.run.bed.resize(node, at);
                self.run.change(id, |content| content.truncate(at as usize));
            }
            1 => {
                let len = 1 + self.below(300 * KIB);
                self.run.bed.mount.fallocate(node, Handle(0), at, len, Allocate::Punch).unwrap();
                self.run.change(id, |content| content[at as usize..(at + len).min(size) as usize].fill(0));
            }
            _ => self.run.unlink(id),
        }
        "shrink"
    }

    /// Properties of the pool and of datasets are set however full it is.
    fn manage(&mut self) -> &'static str {
        let pool = Arc::clone(&self.run.bed.pool);
        match self.below(6) {
            0 => pool.set_property(ROOT_DATASET, "test:note", &self.made.to_string()).unwrap(),
            1 => {
                let codec = ["off", "lz4", "zstd-3"][self.below(3) as usize];
                pool.set_property(ROOT_DATASET, "compression", codec).unwrap();
            }
            2 => {
                let record = ["4096", "16384", "131072"][self.below(3) as usize];
                pool.set_property(ROOT_DATASET, "recordsize", record).unwrap();
            }
            3 => {
                pool.set_property(ROOT_DATASET, "quota", &(1u64 << 40).to_string()).unwrap();
                pool.set_property(ROOT_DATASET, "quota", "0").unwrap();
            }
            4 => {
                let memory = [2u64, 8, 64][self.below(3) as usize] << 20;
                pool.set_pool_property("memory", &memory.to_string()).unwrap();
            }
            _ => self.run.commit(),
        }
        "manage"
    }

    /// Snapshots hold what is removed; so there is never more than one, and it goes soon.
    fn snapshot(&mut self) -> &'static str {
        let pool = Arc::clone(&self.run.bed.pool);
        if let Some(old) = pool.snapshots(ROOT_DATASET).pop() {
            pool.destroy_snapshot(ROOT_DATASET, &old.name).unwrap();
            trace(&self.run.bed.upkeep);
            return "snapshot destroyed";
        }
        self.snapshots += 1;
        let name = format!("s{}", self.snapshots);
        pool.snapshot(ROOT_DATASET, &name).unwrap();
        self.run.committed();
        "snapshot"
    }

    /// A step of the daemon's threads.
    fn tick(&mut self) -> &'static str {
        let bed = &self.run.bed;
        bed.mount.reap_step(1000).unwrap();
        bed.pool.destroy_step(1000).unwrap();
        bed.pool.free_step(100).unwrap();
        bed.pool.tick().unwrap();
        "tick"
    }

    /// The power fails, now or some events ago.
    fn cut(mut self) -> Self {
        let trace = self.run.bed.sim.trace();
        let back = if self.below(2) == 0 { 0 } else { self.below(400) as usize };
        let cut = trace.len().saturating_sub(back).max(self.since);
        let promised = trace.marks_before(cut).last().unwrap_or(0);
        // The state promised then may be forgotten by now: so much happened since.
        let (cut, promised) = if promised < self.first {
            (trace.len(), trace.marks_before(trace.len()).last().unwrap())
        } else {
            (cut, promised)
        };
        let survival = match self.below(3) {
            0 => Survival::DropAll,
            1 => Survival::KeepAll,
            _ => Survival::Random { seed: self.seed ^ cut as u64 },
        };
        let images = trace.crash_images(cut, survival);
        drop(trace);
        let clock = Arc::clone(&self.run.bed.clock);
        let bed = Bed::import(SimWorld::from_images(images), clock, self.seed + cut as u64);
        bed.check();
        let mut found = Vec::new();
        let states = std::mem::take(&mut self.states);
        for mut model in states.into_iter().skip((promised - self.first) as usize) {
            model.close_all();
            match compare(&bed, &model) {
                Ok(nodes) => {
                    self.run.bed = bed;
                    self.run.go_on_from(model, nodes);
                    self.start_states();
                    return self;
                }
                Err(differs) => found.push(differs),
            }
        }
        panic!("seed {}, cut {cut} ({survival:?}), promise {promised}: {found:#?}", self.seed);
    }

    fn again(mut self) -> Self {
        self.run = self.run.reopen(self.seed + self.made);
        self.start_states();
        self
    }

    /// All is removed, and as much can be written as at first.
    fn end(mut self) {
        self.run.verify();
        let pool = Arc::clone(&self.run.bed.pool);
        for snapshot in pool.snapshots(ROOT_DATASET) {
            pool.destroy_snapshot(ROOT_DATASET, &snapshot.name).unwrap();
        }
        drop(pool);
        self.run.commit();
        self.run.bed.check();
        let mut bed = self.run.bed.reopen(self.seed);
        remove_all(&bed, ROOT);
        if self.seed % 2 == 1 {
            bed = bed.reopen(self.seed + 1);
        }
        if let Ok(other) = bed.pool.dataset_by_name("tank/other") {
            bed.pool.destroy_dataset(other.id()).unwrap();
        }
        settle(&bed);
        trace(&bed.upkeep);
        settle(&bed);
        bed.check();
        bed.check_tree();
        let now = bed.pool.store().space(self.record).available;
        let lost = self.empty.saturating_sub(now);
        // Segments that are open, or kept by little, are a part of such a small pool.
        let group = &bed.pool.store().groups()[0];
        let segments = 4 * u64::from(group.slot_size) * group.rule.layout.k() as u64;
        assert!(lost < self.empty / 50 + segments, "AVAIL was {} and is {now}", self.empty);
    }
}

fn trace(upkeep: &Upkeep) {
    upkeep.gc.start().unwrap();
    while upkeep.gc.step(64).unwrap() {}
}

/// Removes all that is below a directory.
fn remove_all(bed: &Bed, dir: NodeId) {
    for (name, node, kind) in bed.names(dir).into_iter().skip(2) {
        if kind == FileKind::Directory {
            remove_all(bed, node);
            bed.mount.rmdir(dir, name.as_bytes()).unwrap();
        } else {
            bed.mount.unlink(dir, name.as_bytes()).unwrap();
        }
    }
}

fn live(layout: (&str, usize), record: u32, seed: u64, steps: u64) {
    println!("{layout:?}, records of {record}, seed {seed}");
    let mut life = Life::new(layout, record, seed);
    for _ in 0..steps {
        life.fill();
        life.step();
        match life.below(150) {
            0 => life = life.again(),
            1 | 2 => life = life.cut(),
            3..5 => life.run.verify(),
            _ => {}
        }
    }
    println!("  {:?}", life.counts);
    life.end();
}

/// Number of lives: `LARDER_LIVES`; the first: `LARDER_SEED`.
#[test]
fn a_pool_that_stays_nearly_full_refuses_whole_operations_and_nothing_else() {
    let first = setting("LARDER_SEED", 0);
    for seed in first..first + setting("LARDER_LIVES", 2) {
        let record = [4096, 16_384, 131_072][seed as usize % 3];
        live(LAYOUTS[seed as usize % 4], record, seed, setting("LARDER_STEPS", 700));
    }
}
