//! Schedules: writers, fsyncs, copies, duplicates, deletes, commits and all upkeep beside each other, in interleavings
//! that a seed decides; the power is cut, or a task panics, at any moment of any of them.
#![cfg(debug_assertions)]

#[path = "../volume/bed.rs"]
#[allow(dead_code)]
mod bed;
mod cuts;
mod logs;
mod members;
mod order;
mod recut;
mod rollback;
mod whole;
mod worker;

use bed::{Bed, READ_WRITE};
use larder_device::{Device, Entropy, SeededEntropy};
use larder_files::{Handle, NodeId, Ops};
use larder_format::items::ROOT_INODE;
use larder_format::label::{LABEL_AREA, RING_OFFSET};
use larder_format::{ByteLen, DeviceIndex};
use larder_mutants::Mutant;
use larder_pool::open::{Scan, scan};
use larder_pool::{Pool, PoolError, ROOT_DATASET};
use larder_sim::{DeviceImage, Event, SimClock, SimWorld, Survival, Trace};
use larder_sync::schedule::{self, Plan, Switching, Task};
use larder_upkeep::{ScrubSince, Task as PassTask, Upkeep};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use worker::{Diary, Worker, World, content, found};

/// Layouts, with numbers of devices.
const LAYOUTS: [(&str, usize); 4] = [("single", 1), ("mirror", 2), ("raidz1", 3), ("raid14", 5)];
/// Workers at most.
const WORKERS: u64 = 3;
/// Times that the caches are emptied in one schedule.
const EVICTIONS: usize = 300;
/// Power cuts of one schedule, unless `LARDER_SCHEDULE_CUTS` says otherwise.
const CUTS: u64 = 3;

/// Device images of a pool before a schedule: made once for each world.
fn prepared(world: World) -> Vec<DeviceImage> {
    static MADE: Mutex<BTreeMap<World, Vec<DeviceImage>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    made.entry(world).or_insert_with(|| make(world)).clone()
}

fn make(world: World) -> Vec<DeviceImage> {
    let (word, count) = LAYOUTS[world.layout];
    let record_size = if world.large { "131072" } else { "4096" };
    let chunking = if world.by_content { "content" } else { "fixed" };
    let properties =
        [("recordsize", record_size), ("compression", "off"), ("dedup", "on"), ("chunking", chunking)];
    let bed = Bed::with_layout(word, &vec![ByteLen::new(64 << 20); count], &properties);
    // Of what was stored for want of memory an fsync is a commit, after which the log has room.
    let memory = if world.fills_log { "67108864" } else { "4194304" };
    bed.pool.set_pool_property("memory", memory).unwrap();
    world.prepare(&bed, WORKERS);
    if world.full {
        age(&bed);
    }
    bed.pool.commit().unwrap();
    bed.sim.images()
}

/// Fills a pool but for a little, and overwrites some of it, so that what is free lies here and there.
fn age(bed: &Bed) {
    const RECORD: u64 = 128 << 10;
    let properties = [("recordsize".into(), RECORD.to_string())];
    let dataset = bed.pool.create_dataset("tank/ballast", properties.into()).unwrap();
    let shown = bed.mount.attach(dataset, Some((ROOT_DATASET, b"ballast".into()))).unwrap();
    let ballast = bed.file(NodeId::pack(shown.id(), ROOT_INODE), "ballast");
    // False when it is full.
    let write = |at: u64, letter: u64| {
        let record = content(letter, RECORD as usize);
        bed.mount.write(ballast, Handle(0), at * RECORD, &record, false).is_ok()
    };
    let mut records = 0;
    while bed.pool.store().space(RECORD as u32).available > 12 * RECORD && write(records, 1_000_000 + records)
    {
        records += 1;
        if records.is_multiple_of(8) {
            bed.pool.commit().unwrap();
        }
    }
    for (round, at) in (0..records).step_by(7).enumerate() {
        if write(at, 2_000_000 + at) && round.is_multiple_of(4) {
            bed.pool.commit().unwrap();
        }
    }
    bed.pool.commit().unwrap();
}

/// A schedule by its seed.
struct Schedule {
    seed: u64,
    entropy: SeededEntropy,
    panics: bool,
    world: World,
}

impl Schedule {
    fn new(seed: u64, panics: bool) -> Self {
        let entropy = SeededEntropy::new(seed);
        let one_in = |n: u64| entropy.next_u64().is_multiple_of(n);
        let mut world = World {
            layout: (entropy.next_u64() % LAYOUTS.len() as u64) as usize,
            large: one_in(3),
            by_content: one_in(4),
            datasets: one_in(4),
            full: one_in(16),
            fills_log: one_in(6),
        };
        world.large |= world.fills_log;
        world.full &= !world.fills_log;
        // The images of a full pool are large, and kept for the next schedule.
        world.by_content &= !world.full;
        world.datasets &= !world.full;
        Self { seed, entropy, panics, world }
    }

    fn below(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    fn plan(&self) -> Plan {
        let switching = match self.below(5) {
            0 => Switching::Random { one_in: 2 },
            1 => Switching::Random { one_in: 20 },
            2 => Switching::Random { one_in: 200 },
            3 => Switching::Priorities { changes: 3, length: 20_000 },
            _ => Switching::Priorities { changes: 20, length: 20_000 },
        };
        let panic_at = self.panics.then(|| 1 + self.below(20_000));
        Plan { seed: self.seed, switching, panic_at }
    }

    /// Result of an upkeep call; `None` for a failure that this schedule allows.
    fn expect<T, E: std::fmt::Display>(&self, what: &str, done: Result<T, E>) -> Option<T> {
        match done {
            Ok(value) => Some(value),
            Err(_) if self.panics => None,
            // A full pool refuses, and goes on.
            Err(error) if self.world.full && error.to_string() == PoolError::NoSpace.to_string() => None,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// Checks a pool whole, one in four: that takes longer than all the rest.
    fn check(&self, bed: &Bed) -> Result<(), String> {
        if self.below(4) > 0 {
            return Ok(());
        }
        let problems = bed.upkeep.check().map_err(|error| error.to_string())?.problems;
        problems.into_iter().next().map_or(Ok(()), Err)
    }

    /// Rests for a while.
    fn rest(&self, entropy: &SeededEntropy) {
        (0..entropy.next_u64() % 400).for_each(|_| schedule::step());
    }

    /// Tasks of upkeep; some of them run.
    fn upkeep<'a>(&'a self, bed: &'a Bed, index: usize) -> Task<'a> {
        let entropy = SeededEntropy::new(self.seed ^ (index as u64) << 40);
        let (pool, upkeep): (&'a Pool, &'a Upkeep) = (&bed.pool, &bed.upkeep);
        let again = move |what: &'static str, times: usize, step: &dyn Fn() -> Result<bool, PoolError>| {
            for _ in 0..times {
                self.rest(&entropy);
                if self.expect(what, step()) != Some(true) {
                    break;
                }
            }
        };
        let body: Box<dyn FnOnce() + Send + 'a> = match index {
            0 => Box::new(move || again("commit", 4, &|| pool.commit().map(|_| true))),
            1 => Box::new(move || {
                again("clean", 8, &|| match pool.clean_step(true) {
                    Err(PoolError::NoSpace) => Ok(false),
                    done => done.map(|_| true),
                })
            }),
            2 => Box::new(move || {
                self.expect("trace", upkeep.gc.start());
                again("trace", 60, &|| upkeep.gc.step(4));
                again("free", 4, &|| pool.free_step(2).map(|_| true));
            }),
            3 => Box::new(move || {
                self.expect("scrub", upkeep.scrub.start(ScrubSince::All));
                again("scrub", 30, &|| upkeep.scrub.step(256 << 10));
            }),
            4 => Box::new(move || {
                again("reap", 12, &|| {
                    bed.mount.reap_step(50)?;
                    upkeep.read_repair.step()?;
                    pool.tick()?;
                    Ok(true)
                })
            }),
            5 => Box::new(move || {
                // It may be destroyed at any moment.
                let some = match pool.dataset_by_name("tank/b0") {
                    Ok(dataset) if self.seed.is_multiple_of(2) => dataset.id(),
                    _ => ROOT_DATASET,
                };
                let gone = |done: Result<_, PoolError>| match done {
                    Err(PoolError::NotFound(_)) if some != ROOT_DATASET => Ok(false),
                    done => done,
                };
                again("snapshot", 1, &|| gone(pool.snapshot(some, "now").map(|_| true)));
                again("commit", 1, &|| pool.commit().map(|_| true));
                again("destroy", 1, &|| gone(pool.destroy_snapshot(some, "now").map(|()| true)));
            }),
            6 => Box::new(move || {
                again("read", 6, &|| {
                    for worker in 0..WORKERS {
                        let folder = bed.find(&format!("worker-{worker}-a"))?;
                        let mut nodes = Vec::new();
                        bed.mount.readdir(folder.node, Handle(0), 0, false, &mut |entry| {
                            nodes.push(entry.node);
                            true
                        })?;
                        for node in nodes {
                            // It may be gone by now.
                            if bed.mount.open(node, READ_WRITE).is_ok() {
                                bed.mount.read(node, Handle(0), 0, 1 << 20)?;
                                bed.mount.release(node, Handle(0))?;
                            }
                        }
                    }
                    Ok(true)
                })
            }),
            7 => Box::new(move || {
                self.expect("autotrim", pool.set_pool_property("autotrim", "on"));
                let all: Vec<_> = pool.store().members().iter().map(|member| member.index).collect();
                // One may be out of use.
                match upkeep.trim.start(&all, 0) {
                    Err(PoolError::Invalid(_)) => {}
                    begun => drop(self.expect("trim", begun)),
                }
                again("trim", 30, &|| upkeep.trim.step().map(|_| true));
            }),
            8 => Box::new(move || {
                let all = || pool.datasets().iter().map(|dataset| dataset.id()).collect::<Vec<_>>();
                let pass = |task: PassTask| {
                    // It goes through committed trees.
                    again("commit", 1, &|| pool.commit().map(|_| true));
                    self.expect("begin a pass", upkeep.passes.start(task, all(), 0));
                    again("pass", 20, &|| upkeep.passes.step(64 << 10).map(|step| step.is_some()));
                    // Over by itself, or in the middle.
                    drop(upkeep.passes.stop());
                };
                pass(PassTask::Dedup);
                if self.seed % 3 == 1 {
                    pass(PassTask::Undedup);
                }
                if self.seed % 3 == 2 {
                    for turn in [self.seed, self.seed / 5] {
                        let size = ["512", "4096", "65536"][turn as usize % 3];
                        let chunking = if turn.is_multiple_of(4) { "content" } else { "fixed" };
                        for (name, value) in [("recordsize", size), ("chunking", chunking)] {
                            self.expect("set", pool.set_property(ROOT_DATASET, name, value));
                        }
                        pass(PassTask::Records);
                    }
                }
                if self.seed.is_multiple_of(2) {
                    self.expect("set", pool.set_property(ROOT_DATASET, "compression", "zstd-1"));
                    pass(PassTask::Rewrite);
                }
                pass(PassTask::Dedup);
            }),
            _ => Box::new(move || {
                let index = DeviceIndex::new(0);
                again("offline", 1, &|| upkeep.devices.offline(index, false).map(|()| true));
                again("online", 1, &|| {
                    let device: Arc<dyn Device> = Arc::new(bed.sim.device(0));
                    let Scan::Member(found) = scan(&device) else { return Ok(false) };
                    upkeep.devices.online(index, Some(*found)).map(|()| true)
                });
                again("resilver", 60, &|| upkeep.resilver.step(1 << 20));
            }),
        };
        let names =
            ["commit", "clean", "trace", "scrub", "reap", "snapshot", "read", "trim", "pass", "outage"];
        (names[index].into(), body)
    }
}

/// Tasks are threads, and mutants are switched on by thread.
#[cfg(feature = "mutants")]
fn in_task<'a>(mutant: Option<Mutant>, body: Box<dyn FnOnce() + Send + 'a>) -> Box<dyn FnOnce() + Send + 'a> {
    Box::new(move || {
        larder_mutants::mutate(mutant);
        body();
    })
}
#[cfg(not(feature = "mutants"))]
fn in_task<'a>(_: Option<Mutant>, body: Box<dyn FnOnce() + Send + 'a>) -> Box<dyn FnOnce() + Send + 'a> {
    body
}

/// Steps and power cuts of one schedule.
#[derive(Default)]
struct Done {
    steps: u64,
    cuts: u64,
}

/// As [`run`]; what cannot be imported or read panics, which is a finding as any.
fn attempt(seed: u64, panics: bool, mutant: Option<Mutant>) -> Result<Done, String> {
    std::panic::catch_unwind(|| run(seed, panics, mutant)).unwrap_or_else(|payload| {
        let said = payload.downcast_ref::<String>().cloned().unwrap_or_default();
        Err(format!("seed {seed}: {said}"))
    })
}

/// Runs one schedule, cuts its power some times, and compares.
fn run(seed: u64, panics: bool, mutant: Option<Mutant>) -> Result<Done, String> {
    let schedule = Schedule::new(seed, panics);
    let world = schedule.world;
    let eager = world.fills_log || world.large && schedule.below(2) == 0;
    let steps = match world {
        World { fills_log: true, .. } => 16,
        World { large: true, .. } => 10,
        _ => 12,
    };
    let clock = Arc::new(SimClock::new());
    let import = |images, seed| {
        let bed = Bed::import(SimWorld::from_images(images), Arc::clone(&clock), seed);
        world.attach(&bed, WORKERS);
        bed
    };
    let bed = import(prepared(world), seed);
    let start = bed.sim.trace().len();
    let diaries: Vec<_> = (0..WORKERS).map(|_| Mutex::new(Diary::default())).collect();
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (number, diary) in diaries.iter().enumerate() {
        let mut worker = Worker::new(&bed, number as u64, diary, seed, world);
        worker.eager = eager;
        let schedule = &schedule;
        tasks.push((
            format!("worker {number}"),
            Box::new(move || {
                schedule.expect("work", worker.work(steps));
            }),
        ));
    }
    let redundant = LAYOUTS[world.layout].1 > 1;
    // Most of it commits, after which the log has room.
    let one_in = if world.fills_log { 8 } else { 2 };
    for index in 0..9 + usize::from(redundant) {
        if schedule.below(one_in) == 0 {
            tasks.push(schedule.upkeep(&bed, index));
        }
    }
    // Nodes leave memory at any moment.
    if seed % 4 == 3 {
        tasks.push((
            "evictor".into(),
            Box::new(|| {
                for _ in 0..EVICTIONS {
                    bed.pool.store().drop_caches();
                    // A lock, at which others go on.
                    bed.pool.store().next_block();
                }
            }),
        ));
    }
    let tasks = tasks.into_iter().map(|(name, body)| (name, in_task(mutant, body))).collect();
    let outcome = schedule::run(&schedule.plan(), tasks);
    let told = |what: &str| Err(format!("seed {seed}, {:?}, {world:?}: {what}", LAYOUTS[world.layout]));
    if let Some(stuck) = &outcome.stuck {
        return told(stuck);
    }
    if let Some((task, said)) = outcome.failed.first() {
        return told(&format!("{task} failed: {said}"));
    }
    if outcome.panicked.is_none() {
        world.attach(&bed, WORKERS);
        for (number, diary) in diaries.iter().enumerate() {
            let (last, found) = (diary.lock().unwrap().last(), found(&bed, number as u64));
            if last != found {
                return told(&format!("worker {number}: a live file is not as it was written"));
            }
        }
        if let Err(error) = bed.upkeep.gc.stop().and_then(|()| bed.pool.commit()) {
            return told(&format!("live: {error}"));
        }
        if let Err(problem) = schedule.check(&bed) {
            return told(&format!("live: {problem}"));
        }
    }
    let trace = bed.sim.trace();
    drop(bed);
    let mut done = Done { steps: outcome.steps, cuts: 0 };
    let mut cuts: Vec<usize> =
        (0..setting("LARDER_SCHEDULE_CUTS", CUTS)).map(|_| cut_of(&schedule, &trace, start)).collect();
    cuts.sort_unstable();
    let mut sweep = trace.sweep();
    for cut in cuts {
        sweep.advance_to(cut);
        let survival = match schedule.below(3) {
            0 => Survival::DropAll,
            1 => Survival::KeepAll,
            _ => Survival::Random { seed: seed ^ cut as u64 },
        };
        let bed = import(sweep.images(survival), 1_000 + seed);
        done.cuts += 1;
        if let Err(problem) = schedule.check(&bed) {
            return told(&format!("cut {cut} of {} ({survival:?}): {problem}", trace.len()));
        }
        for (number, diary) in diaries.iter().enumerate() {
            let promised = trace.marks_before(cut).filter(|mark| mark >> 32 == number as u64);
            let found = found(&bed, number as u64);
            let allowed =
                diary.lock().unwrap().allows(&found, promised.map(|mark| (mark & 0xffff_ffff) as usize));
            if let Err(why) = allowed {
                return told(&format!("cut {cut} of {} ({survival:?}), worker {number}: {why}", trace.len()));
            }
        }
    }
    Ok(done)
}

/// A moment to cut the power: any, or soon after something was promised, or just before a root is written, when all
/// that was promised beside its commit must be found from the root before.
fn cut_of(schedule: &Schedule, trace: &Trace, start: usize) -> usize {
    let any = start + schedule.below((trace.len() - start) as u64 + 1) as usize;
    let next = |is: fn(&Event) -> bool| trace.events()[any..].iter().position(is).map(|at| any + at);
    let is_mark = |event: &Event| matches!(event, Event::Mark(_));
    let is_root = |event: &Event| matches!(event, Event::Write { offset, .. } if (RING_OFFSET..LABEL_AREA).contains(&offset.get()));
    let cut = match schedule.below(4) {
        0 => any,
        1 => next(is_root).unwrap_or(trace.len()),
        _ => next(is_mark).map_or(trace.len(), |at| at + 1) + schedule.below(3) as usize,
    };
    cut.min(trace.len())
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Number of schedules: `LARDER_SCHEDULES`; the first: `LARDER_SEED`.
fn explore(panics: bool, default: u64) {
    let (count, first) = (setting("LARDER_SCHEDULES", default), setting("LARDER_SEED", 0));
    let (next, steps, cuts) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while failed.lock().unwrap().is_empty() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    match attempt(seed, panics, None) {
                        Ok(done) => {
                            steps.fetch_add(done.steps, Ordering::Relaxed);
                            cuts.fetch_add(done.cuts, Ordering::Relaxed);
                        }
                        Err(why) => failed.lock().unwrap().push(why),
                    }
                    if (seed + 1 - first).is_multiple_of(10_000) {
                        println!("{} schedules", seed + 1 - first);
                    }
                }
            });
        }
    });
    let test = if panics { "panic" } else { "power_cut" };
    for why in &*failed.lock().unwrap() {
        let seed = why.split([' ', ',', ':']).nth(1).unwrap_or("?");
        println!(
            "{why}\nreplay: LARDER_SEED={seed} LARDER_SCHEDULES=1 cargo test -p larder-files --test schedules {test}"
        );
    }
    assert!(failed.lock().unwrap().is_empty(), "{:#?}", failed.lock().unwrap());
    println!("{count} schedules, {} steps, {} power cuts", steps.into_inner(), cuts.into_inner());
}

#[test]
fn no_schedule_and_no_power_cut_in_it_loses_a_promise() {
    explore(false, 60);
}

#[test]
fn a_panic_at_any_step_of_any_schedule_leaves_the_last_commit_and_every_promise() {
    explore(true, 40);
}

/// The test of this test: each bug that takes several threads is found by its 20,000th schedule.
#[cfg(feature = "mutants")]
#[test]
fn mutants_of_schedules_are_found() {
    let missed: Vec<_> = (Mutant::OF_SCHEDULES.into_iter())
        .filter(|&mutant| {
            let only = std::env::var("LARDER_BUG").ok();
            if only.is_some_and(|only| only != format!("{mutant:?}")) {
                return false;
            }
            let found =
                (0..20_000).find_map(|seed| attempt(seed, false, Some(mutant)).err().map(|why| (seed, why)));
            if let Some((seed, why)) = &found {
                println!("{mutant:?}: found by schedule {seed}: {}", why.lines().next().unwrap_or_default());
            }
            found.is_none()
        })
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
