//! The test of the tests: every mutant is found by the simulation within 10,000 cuts.
#![cfg(feature = "mutants")]

#[path = "reclaim/check.rs"]
mod check;
mod common;
#[path = "sweep/elsewhere.rs"]
mod elsewhere;
#[path = "engine/trim/exact.rs"]
mod exact;
mod forge;
#[path = "reclaim/model.rs"]
mod model;
#[path = "engine/read_cache/seeds.rs"]
mod seeds;
mod sweep;
#[path = "reclaim/work.rs"]
mod work;

use crate::common::Kept;
use larder_format::{ByteLen, DeviceIndex};
use larder_mutants::{Mutant, mutate};
use larder_pool::ROOT_DATASET;
use larder_pool::open::{Scan, scan};
use larder_sim::{Fault, SimWorld};
use larder_upkeep::ScrubSince;
use larder_upkeep::gc::Findings;
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs one seed of the simulation that has to find this bug; returns the number of cuts that did not.
fn run(mutant: Mutant, seed: u64) -> Result<usize, String> {
    match mutant {
        Mutant::ProtectionIgnored
        | Mutant::SharedNotMarked
        | Mutant::QueueLost
        | Mutant::DeadNotCleared
        | Mutant::HintBelieved
        | Mutant::MoveNotTold
        | Mutant::HitNotMarked
        | Mutant::AliasOverlooked
        | Mutant::AliasNotMarked
        | Mutant::AliasNotReleased
        | Mutant::LocalityRemembers
        | Mutant::WrongPrint
        | Mutant::CopiesTogether
        | Mutant::FewCopiesShared
        | Mutant::TouchedForgotten => {
            const CUTS: usize = 4;
            work::run(seed, 60, CUTS, &mut work::Coverage::new()).map(|()| CUTS)
        }
        Mutant::NotResilvered | Mutant::BoundaryMissed | Mutant::OldImageTrusted => brought_back(seed),
        Mutant::OldStripeBelieved => undone(seed),
        Mutant::InFlightForgotten => stood_in(seed),
        Mutant::LogCopyMissed => apart(seed),
        Mutant::LooksBelieved => forge::attack(seed),
        Mutant::SlotMoveNotTold => {
            let (word, count) = [("single", 1), ("mirror", 2), ("raidz1", 3)][seed as usize % 3];
            // A stripe of one of the first slots.
            let sector = (1 << 20) * (1 + seed % 12) + 4096 * (1 + seed % 3);
            elsewhere::run(word, count, sector, 3)
        }
        Mutant::CopyUnchecked | Mutant::CopyOfStranger => seeds::run(seed),
        Mutant::CopyCounted => seeds::counted(seed),
        Mutant::CopyNotHealed => healed(seed),
        Mutant::ParityNotScrubbed | Mutant::ReconstructsUnproven => scrubbed(seed),
        Mutant::TrimTooEarly | Mutant::TrimNotFlushed => exact::run(seed),
        _ => {
            let (word, count) = common::LAYOUTS[seed as usize % common::LAYOUTS.len()];
            sweep::run(word, count, seed, 120, 7)
        }
    }
}

/// A device misses commits, comes back as it was some time before, and is resilvered beside traffic.
fn brought_back(seed: u64) -> Result<usize, String> {
    let (word, count) = [("mirror", 2), ("raidz1", 3), ("raidz2", 6), ("raid14", 5)][seed as usize % 4];
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let pool = common::create(&sim, word);
    let files = |round: u64| -> Vec<_> {
        (10..30).map(|inode| (inode, round, 1 + (inode as usize * 9_176) % 90_000)).collect()
    };
    let mut model = common::Model::new();
    common::commit(&pool, &mut model, &files(1));
    let (index, device) = (DeviceIndex::new(0), sim.device(0));
    let old = device.image();
    common::commit(&pool, &mut model, &files(2));
    pool.upkeep.devices.offline(index, false).unwrap();
    common::commit(&pool, &mut model, &files(3));
    common::put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &files(4));
    if seed.is_multiple_of(2) {
        device.swap_media(old);
    }
    let device: std::sync::Arc<dyn larder_device::Device> = std::sync::Arc::new(device);
    let Scan::Member(found) = scan(&device) else { return Err("its label is not found".into()) };
    pool.upkeep.devices.online(index, Some(*found)).unwrap();
    while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
    pool.commit().unwrap();
    let problems = pool.upkeep.check().unwrap().problems;
    problems.first().map_or(Ok(1), |problem| Err(format!("seed {seed}, {word} of {count}: {problem}")))
}

/// A power cut undoes a stripe; a device loses the one that is written in its place, and keeps the old one.
fn undone(seed: u64) -> Result<usize, String> {
    let (word, count) = [("mirror", 2), ("raidz1", 3), ("raidz2", 6), ("raid14", 5)][seed as usize % 4];
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let pool = common::create(&sim, word);
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let mut model = common::Model::new();
    common::commit(&pool, &mut model, &[(10, 1, 40_000), (11, 1, 300)]);
    common::put(&pool, &dataset, &[(12, 2, 50_000), (13, 2, 90_000), (14, 2, 200)]);
    drop((dataset, pool));
    let sim = SimWorld::from_images(sim.images());
    let pool = common::open(&sim, 2);
    let device = sim.device(seed as usize % count);
    device.inject(Fault::LoseWrites(0..u64::MAX));
    common::commit(&pool, &mut model, &[(15, 3, 9_000), (16, 3, 120_000), (17, 3, 70_000)]);
    device.clear_faults();
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    let problems = pool.upkeep.check().unwrap().problems;
    problems.first().map_or(Ok(1), |problem| Err(format!("seed {seed}, {word} of {count}: {problem}")))
}

/// A device takes the place of another by a commit that has stripes on their way to it.
fn stood_in(seed: u64) -> Result<usize, String> {
    let (word, count) = [("single", 1), ("mirror", 2)][seed as usize % 2];
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let pool = common::create(&sim, word);
    common::commit(&pool, &mut common::Model::new(), &common::files(10, 6, 1));
    let new = sim.add_device(ByteLen::new(64 << 20));
    pool.upkeep.devices.replace(DeviceIndex::new(0), std::sync::Arc::new(new)).unwrap();
    pool.commit().unwrap();
    common::put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &common::files(30, 3, seed));
    while pool.upkeep.resilver.step(u64::MAX).map_err(|error| error.to_string())? {}
    let failed = pool.store().members().iter().find(|member| !member.is_online());
    failed.map_or(Ok(1), |member| Err(format!("seed {seed}, {word}: {} lacks stripes", member.name())))
}

/// A copy misses an fsync, and is brought to life without the other.
fn apart(seed: u64) -> Result<usize, String> {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20); 2]);
    let pool = common::create(&sim, "mirror");
    let mut model = common::Model::new();
    common::commit(&pool, &mut model, &common::files(10, 3, 1));
    // Refused writes are recorded by a commit in any case; failed flushes are not.
    sim.device(1).inject(Fault::FailFlushes);
    common::sync(&pool, &mut model, &common::files(10, 3, 2));
    drop(pool);
    let images = sim.images();
    let alone = SimWorld::from_images(vec![images[1].clone()]);
    common::commit(&common::open(&alone, 2), &mut common::Model::new(), &common::files(20, 3, seed));
    let both = SimWorld::from_images(vec![images[0].clone(), alone.images().remove(0)]);
    let told = common::plan(both.devices()).refusal.is_some();
    if told { Ok(1) } else { Err(format!("seed {seed}: an fsync is undone in silence")) }
}

/// A disk that has all records twice loses some, and is scrubbed.
fn healed(seed: u64) -> Result<usize, String> {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = common::create(&sim, "single");
    pool.set_property(ROOT_DATASET, "copies", "2").unwrap();
    common::commit(&pool, &mut common::Model::new(), &common::files(10, 20, seed));
    for (id, _) in pool.blocks().unwrap() {
        let copies = pool.store().whereabouts(id).unwrap().unwrap().copies;
        sim.device(0).flip_bits(copies[seed as usize % copies.len()].1, 4, seed);
    }
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    let problems = pool.upkeep.check().unwrap().problems;
    problems.first().map_or(Ok(1), |problem| Err(format!("seed {seed}: {problem}")))
}

/// All that one device holds of stripes rots, and a scrub has reconstructed it.
fn scrubbed(seed: u64) -> Result<usize, String> {
    let (word, count) = [("mirror", 2), ("raidz1", 3), ("raidz2", 6), ("raid14", 5)][seed as usize % 4];
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let pool = common::create(&sim, word);
    let files: Vec<_> = (10..40).map(|inode| (inode, seed, 1 + (inode as usize * 9_176) % 90_000)).collect();
    common::commit(&pool, &mut common::Model::new(), &files);
    let rotten = pool.store().members().get(DeviceIndex::new((seed / 4) as u16 % count as u16));
    for record in pool.store().segments() {
        for slot in record.slots.iter().filter(|slot| slot.device == rotten.index) {
            for page in 0..record.height / 4096 {
                let at = rotten.slot_offset(slot.index, page * 4096);
                sim.device(rotten.index.get().into()).flip_bits(at, 4096, seed + u64::from(page));
            }
        }
    }
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    let problems = pool.upkeep.check().unwrap().problems;
    problems.first().map_or(Ok(1), |problem| Err(format!("seed {seed}, {word} of {count}: {problem}")))
}

thread_local! {
    /// Panics of this thread are wanted, and their messages would hide those that are not.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Looks for a mutant; what found it, or how many cuts did not.
fn hunt(mutant: Mutant) -> Result<String, String> {
    let mut cuts = 0;
    for seed in 0.. {
        mutate(Some(mutant));
        let result = std::panic::catch_unwind(|| run(mutant, seed));
        mutate(None);
        let found = match result {
            Ok(Ok(clean)) => {
                cuts += clean;
                None
            }
            Ok(Err(failure)) => Some(failure),
            Err(_) => Some(format!("seed {seed}: an invariant was violated")),
        };
        match found {
            Some(failure) => return Ok(format!("{mutant:?}: after {cuts} clean cuts: {failure:.160}")),
            None if cuts >= 10_000 => break,
            None => {}
        }
    }
    Err(format!("{mutant:?} was not found in {cuts} cuts"))
}

/// `LARDER_BUG` names one to look for alone.
#[test]
fn every_mutant_is_found() {
    let wanted = std::env::var("LARDER_BUG");
    let is_wanted =
        |mutant: &Mutant| wanted.as_ref().is_ok_and(|name| *name == format!("{mutant:?}")) || wanted.is_err();
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !IS_QUIET.get() {
            told(info);
        }
    }));
    let mutants: Vec<Mutant> = Mutant::ALL.into_iter().filter(is_wanted).collect();
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let hunter = || {
        IS_QUIET.set(true);
        while let Some(&mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            match hunt(mutant) {
                Ok(found) => println!("{found}"),
                Err(clean) => missed.lock().unwrap().push(clean),
            }
        }
    };
    // Which mutant is switched on is each thread's own.
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(hunter))));
    drop(std::panic::take_hook());
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "{missed:?}");
}

/// Findings of a trace after `files` were put and committed with a mutant.
fn traced(mutant: Mutant, pool: &Kept, files: &[(u64, u64, usize)]) -> Findings {
    mutate(Some(mutant));
    common::put(pool, &pool.dataset(ROOT_DATASET).unwrap(), files);
    pool.commit().unwrap();
    mutate(None);
    pool.upkeep.gc.start().unwrap();
    while pool.upkeep.gc.step(64).unwrap() {}
    pool.upkeep.gc.findings().unwrap()
}

#[test]
fn a_trace_finds_what_leaked_and_frees_it() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = common::create(&sim, "single");
    let files = |version| (10..50).map(|inode| (inode, version, 5000)).collect::<Vec<_>>();
    common::commit(&pool, &mut common::Model::new(), &files(1));
    let found = traced(Mutant::Leak, &pool, &files(2));
    assert_eq!(found.unreachable.blocks, 40 + 1, "the records and the leaf: {found:?}");
    assert!(found.is_bad());
    while pool.free_step(64).unwrap() {}
    pool.commit().unwrap();
    common::assert_whole(&pool, "when they were freed");
}

#[test]
fn a_trace_finds_what_the_map_does_not_know() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = common::create(&sim, "single");
    let files: Vec<_> = (10..50).map(|inode| (inode, 1, 5000)).collect();
    let found = traced(Mutant::MapNotTold, &pool, &files);
    assert_eq!((found.missing, found.missing_sample.len()), (40 + 1, 16), "{found:?}");
    while pool.upkeep.damage.step(64).unwrap() {}
    let damaged = pool.upkeep.damage.known();
    assert!(damaged.len() >= 40 && damaged.iter().all(|of| of.dataset == ROOT_DATASET), "{damaged:?}");
    assert!(found.is_bad());
}
