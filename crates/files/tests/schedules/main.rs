//! Schedules: writers, fsyncs, copies, duplicates, deletes, commits and all upkeep beside each other, in interleavings
//! that a seed decides; the power is cut, or a task panics, at any moment of any of them.
#![cfg(debug_assertions)]

#[path = "../volume/bed.rs"]
#[allow(dead_code)]
mod bed;
mod cuts;
mod order;
mod whole;
mod worker;

use bed::{Bed, READ_WRITE};
use larder_device::{Device, Entropy, SeededEntropy};
use larder_files::{Handle, Ops};
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::open::{Scan, scan};
use larder_pool::planted::Bug;
use larder_pool::{Pool, PoolError, ROOT_DATASET, ScrubSince};
use larder_sim::{DeviceImage, SimClock, SimWorld, Survival, Trace};
use larder_sync::schedule::{self, Plan, Switching, Task};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use worker::{Diary, Worker, found};

/// Layouts, with numbers of devices.
const LAYOUTS: [(&str, usize); 4] = [("single", 1), ("mirror", 2), ("raidz1", 3), ("raid14", 5)];
/// Workers at most.
const WORKERS: u64 = 3;
/// Power cuts of one schedule.
const CUTS: u64 = 3;

/// What a pool's devices hold before a schedule: made once for each kind.
fn prepared(layout: usize, large: bool) -> Vec<DeviceImage> {
    type Images = OnceLock<Vec<DeviceImage>>;
    static MADE: [Images; 2 * LAYOUTS.len()] = [const { OnceLock::new() }; 2 * LAYOUTS.len()];
    let make = || {
        let (word, count) = LAYOUTS[layout];
        let record_size = if large { "131072" } else { "4096" };
        let properties = [("recordsize", record_size), ("compression", "off"), ("dedup", "on")];
        let bed = Bed::with_layout(word, &vec![ByteLen::new(64 << 20); count], &properties);
        bed.pool.set_pool_property("memory", "4194304").unwrap();
        Worker::prepare(&bed, WORKERS);
        bed.pool.commit().unwrap();
        bed.sim.images()
    };
    MADE[2 * layout + usize::from(large)].get_or_init(make).clone()
}

/// A schedule by its seed.
struct Schedule {
    seed: u64,
    entropy: SeededEntropy,
    panics: bool,
}

impl Schedule {
    fn new(seed: u64, panics: bool) -> Self {
        Self { seed, entropy: SeededEntropy::new(seed), panics }
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

    /// What upkeep says; nothing may go wrong unless something was made to.
    fn expect<T>(&self, what: &str, done: Result<T, impl std::fmt::Display>) -> Option<T> {
        match done {
            Ok(value) => Some(value),
            Err(_) if self.panics => None,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// Rests for a while.
    fn rest(&self, entropy: &SeededEntropy) {
        (0..entropy.next_u64() % 400).for_each(|_| schedule::step());
    }

    /// Tasks of upkeep; some of them run.
    fn upkeep<'a>(&'a self, bed: &'a Bed, index: usize) -> Task<'a> {
        let entropy = SeededEntropy::new(self.seed ^ (index as u64) << 40);
        let pool: &'a Pool = &bed.pool;
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
                self.expect("trace", pool.trace_start());
                again("trace", 60, &|| pool.trace_step(4));
                again("free", 4, &|| pool.free_step(2).map(|_| true));
            }),
            3 => Box::new(move || {
                self.expect("scrub", pool.scrub_start(ScrubSince::All));
                again("scrub", 30, &|| pool.scrub_step(256 << 10));
            }),
            4 => Box::new(move || {
                again("reap", 12, &|| {
                    bed.mount.reap_step(50)?;
                    pool.heal_step()?;
                    pool.tend()?;
                    Ok(true)
                })
            }),
            5 => Box::new(move || {
                again("snapshot", 1, &|| pool.snapshot(ROOT_DATASET, "now").map(|_| true));
                again("commit", 1, &|| pool.commit().map(|_| true));
                again("destroy", 1, &|| pool.destroy_snapshot(ROOT_DATASET, "now").map(|()| true));
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
            _ => Box::new(move || {
                let index = DeviceIndex::new(0);
                again("offline", 1, &|| pool.offline(index, false).map(|()| true));
                again("online", 1, &|| {
                    let device: Arc<dyn Device> = Arc::new(bed.sim.device(0));
                    let Scan::Member(found) = scan(&device) else { return Ok(false) };
                    pool.online(index, Some(*found)).map(|()| true)
                });
                again("resilver", 60, &|| pool.resilver_step(1 << 20));
            }),
        };
        (["commit", "clean", "trace", "scrub", "reap", "snapshot", "read", "outage"][index].into(), body)
    }
}

/// Tasks are threads, and bugs are planted by thread.
#[cfg(feature = "planted")]
fn in_task<'a>(bug: Option<Bug>, body: Box<dyn FnOnce() + Send + 'a>) -> Box<dyn FnOnce() + Send + 'a> {
    Box::new(move || {
        larder_pool::planted::plant(bug);
        body();
    })
}
#[cfg(not(feature = "planted"))]
fn in_task<'a>(_: Option<Bug>, body: Box<dyn FnOnce() + Send + 'a>) -> Box<dyn FnOnce() + Send + 'a> {
    body
}

/// What one schedule came to.
#[derive(Default)]
struct Done {
    steps: u64,
    cuts: u64,
}

/// As [`run`]; what cannot be imported or read panics, which is a finding as any.
fn attempt(seed: u64, panics: bool, bug: Option<Bug>) -> Result<Done, String> {
    std::panic::catch_unwind(|| run(seed, panics, bug)).unwrap_or_else(|payload| {
        let said = payload.downcast_ref::<String>().cloned().unwrap_or_default();
        Err(format!("seed {seed}: {said}"))
    })
}

/// Runs one schedule, cuts its power some times, and compares.
fn run(seed: u64, panics: bool, bug: Option<Bug>) -> Result<Done, String> {
    let schedule = Schedule::new(seed, panics);
    let layout = schedule.below(LAYOUTS.len() as u64) as usize;
    let large = schedule.below(3) == 0;
    let eager = large && schedule.below(2) == 0;
    let (steps, len) = if large { (10, 300_000) } else { (12, 9_000) };
    let clock = Arc::new(SimClock::new());
    let sim = SimWorld::from_images(prepared(layout, large));
    let bed = Bed::import(sim, Arc::clone(&clock), seed);
    let start = bed.sim.trace().len();
    let diaries: Vec<_> = (0..WORKERS).map(|_| Mutex::new(Diary::default())).collect();
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (number, diary) in diaries.iter().enumerate() {
        let mut worker = Worker::new(&bed, number as u64, diary, seed, len);
        worker.eager = eager;
        let schedule = &schedule;
        tasks.push((
            format!("worker {number}"),
            Box::new(move || {
                schedule.expect("work", worker.work(steps));
            }),
        ));
    }
    let redundant = LAYOUTS[layout].1 > 1;
    for index in 0..7 + usize::from(redundant) {
        if schedule.below(2) == 0 {
            tasks.push(schedule.upkeep(&bed, index));
        }
    }
    let tasks = tasks.into_iter().map(|(name, body)| (name, in_task(bug, body))).collect();
    let outcome = schedule::run(&schedule.plan(), tasks);
    let told = |what: &str| {
        Err(format!("seed {seed}, {:?}{}: {what}", LAYOUTS[layout], if large { ", large" } else { "" }))
    };
    if let Some(stuck) = &outcome.stuck {
        return told(stuck);
    }
    if let Some((task, said)) = outcome.failed.first() {
        return told(&format!("{task} failed: {said}"));
    }
    if outcome.panicked.is_none() {
        for (number, diary) in diaries.iter().enumerate() {
            let (last, found) = (diary.lock().unwrap().last(), found(&bed, number as u64));
            if last != found {
                return told(&format!("worker {number}: a live file is not as it was written"));
            }
        }
        let checked = bed.pool.trace_stop().and_then(|()| bed.pool.commit()).and_then(|_| bed.pool.check());
        match checked {
            Ok(report) if report.problems.is_empty() => {}
            Ok(report) => return told(&format!("live: {}", report.problems[0])),
            Err(error) => return told(&format!("live: {error}")),
        }
    }
    let trace = bed.sim.trace();
    drop(bed);
    let mut done = Done { steps: outcome.steps, cuts: 0 };
    let mut cuts: Vec<usize> = (0..CUTS).map(|_| cut_of(&schedule, &trace, start)).collect();
    cuts.sort_unstable();
    let mut sweep = trace.sweep();
    for cut in cuts {
        sweep.advance_to(cut);
        let survival = match schedule.below(3) {
            0 => Survival::DropAll,
            1 => Survival::KeepAll,
            _ => Survival::Random { seed: seed ^ cut as u64 },
        };
        let bed =
            Bed::import(SimWorld::from_images(sweep.images(survival)), Arc::clone(&clock), 1_000 + seed);
        done.cuts += 1;
        let problems = bed.pool.check().map_err(|error| error.to_string())?.problems;
        if let Some(problem) = problems.first() {
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

/// A moment to cut the power: any, or soon after something was promised.
fn cut_of(schedule: &Schedule, trace: &Trace, start: usize) -> usize {
    let any = start + schedule.below((trace.len() - start) as u64 + 1) as usize;
    if schedule.below(3) == 0 {
        return any;
    }
    let is_mark = |event: &larder_sim::Event| matches!(event, larder_sim::Event::Mark(_));
    let mark = trace.events()[any..].iter().position(is_mark).map_or(trace.len(), |at| any + at + 1);
    (mark + schedule.below(3) as usize).min(trace.len())
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// How many: `LARDER_SCHEDULES`; the first: `LARDER_SEED`.
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
#[cfg(feature = "planted")]
#[test]
fn planted_bugs_of_schedules_are_found() {
    let missed: Vec<_> = (Bug::OF_SCHEDULES.into_iter())
        .filter(|&bug| {
            let only = std::env::var("LARDER_BUG").ok();
            if only.is_some_and(|only| only != format!("{bug:?}")) {
                return false;
            }
            let found =
                (0..20_000).find_map(|seed| attempt(seed, false, Some(bug)).err().map(|why| (seed, why)));
            if let Some((seed, why)) = &found {
                println!("{bug:?}: found by schedule {seed}: {}", why.lines().next().unwrap_or_default());
            }
            found.is_none()
        })
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
