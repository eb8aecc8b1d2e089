//! Power cuts: what was promised is there, and what was not is there whole or not at all.

use crate::bed::{Bed, ROOT, USER};
use crate::model::{Model, Run, compare, free_all};
use larder_device::Inline;
use larder_files::*;
use larder_format::root::GroupRole;
use larder_format::{ByteLen, Timestamp};
use larder_sim::{SimWorld, Survival};
use larder_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Layouts under the simulation, with numbers of devices.
const LAYOUTS: [(&str, usize); 8] = [
    ("single", 1),
    ("mirror", 2),
    ("mirror", 3),
    ("raidz1", 3),
    ("raidz2", 6),
    ("raidz3", 7),
    ("raid10", 4),
    ("raid14", 5),
];
/// Operations of one seed.
const STEPS: usize = 250;

/// Runs of each operation, by layout.
type Coverage = BTreeMap<&'static str, BTreeMap<String, u64>>;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// One seed on one layout: a workload, then power cut at every event; returns the number of cuts, and of those that
/// were between two records of one fsync.
fn run_seed((word, count): (&str, usize), seed: u64, coverage: &Mutex<Coverage>) -> (u64, u64) {
    let replay =
        format!("LARDER_SEED={seed} LARDER_CUTS=1 cargo test -p larder-files --test volume simulation");
    let sizes = vec![ByteLen::new(64 << 20); count];
    // Half of them have a device beside that for the log, metadata and small records.
    let is_fast = (seed + seed / LAYOUTS.len() as u64) % 2 == 1;
    let mut groups = vec![(GroupRole::Data, word, &sizes[..])];
    groups.extend(is_fast.then_some((GroupRole::Fast, "single", &sizes[..1])));
    let chunking = if seed % 3 == 2 { "content" } else { "fixed" };
    let dedup = ["off", "on", "verify"][seed as usize / LAYOUTS.len() % 3];
    let properties =
        [("recordsize", "4096"), ("chunking", chunking), ("dedup", dedup), ("special_small_blocks", "2048")];
    let mut run = Run::on(Bed::with_groups(Arc::new(Inline), &groups, &properties), seed);
    run.bed.pool.set_pool_property("memory", "2097152").unwrap();
    run.bed.pool.commit().unwrap();
    let start = run.bed.sim.trace().len();
    // Each state is taken when something makes it durable; the mark says that it is.
    let mut states = vec![Model::new()];
    // States since the last of them, and for each of them the number of events before it was made durable.
    let (mut since, mut between) = (Vec::new(), vec![(start, Vec::new())]);
    for _ in 0..STEPS {
        let (before, began) = (run.synced, run.bed.sim.trace().len());
        let op = run.step();
        *coverage.lock().entry(op).or_default().entry(format!("{word}/{count}")).or_default() += 1;
        if run.synced > before {
            states.push(run.durable.clone());
            between.push((began, std::mem::take(&mut since)));
            run.bed.sim.mark(states.len() as u64 - 1);
        } else {
            since.push(run.model.clone());
        }
    }
    let (sim, clock) = (run.bed.sim.clone(), Arc::clone(&run.bed.clock));
    drop(run);
    let trace = sim.trace();
    let (mut sweep, mut halfway) = (trace.sweep(), 0);
    for cut in start..=trace.len() {
        sweep.advance_to(cut);
        let promised = trace.marks_before(cut).last().unwrap_or(0) as usize;
        let survival = match cut % 3 {
            0 => Survival::DropAll,
            1 => Survival::KeepAll,
            _ => Survival::Random { seed: seed ^ cut as u64 },
        };
        let mut images = sweep.images(survival);
        // Now and then a device does not come back either; every layout here but one survives that.
        if count > 1 && cut % 5 == 0 {
            images.remove(cut / 5 % count);
        }
        let bed = Bed::import(SimWorld::from_images(images), Arc::clone(&clock), 1000 + cut as u64);
        bed.check();
        let is_like = |model: &Model| {
            let mut model = model.clone();
            model.close_all();
            compare(&bed, &model).map(drop)
        };
        let found: Vec<_> = states[promised..].iter().map(is_like).collect();
        // An fsync of much writes one record of the log after the other: the power may be cut between them.
        let within = between.get(promised + 1).filter(|(began, _)| cut > *began);
        let is_between = || within.is_some_and(|(_, since)| since.iter().any(|model| is_like(model).is_ok()));
        let is_one = found.contains(&Ok(()));
        halfway += u64::from(!is_one);
        assert!(
            is_one || is_between(),
            "{word} of {count}, seed {seed}, cut {cut} ({survival:?}), promise {promised}: {found:#?}\nreplay: {replay}"
        );
        free_all(&bed);
        bed.check();
        bed.check_tree();
    }
    ((trace.len() + 1 - start) as u64, halfway)
}

/// Power is cut at every write and flush of seeded workloads, over every operation and layout. How many
/// cuts at least: `LARDER_CUTS`; where to start: `LARDER_SEED`.
#[test]
fn simulation_of_power_cuts_loses_no_promise_and_leaves_no_half() {
    let (target, first) = (setting("LARDER_CUTS", 2_000), setting("LARDER_SEED", 0));
    let (next, cuts, halfway) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let coverage = Mutex::new(Coverage::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while cuts.load(Ordering::Relaxed) < target {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let layout = LAYOUTS[seed as usize % LAYOUTS.len()];
                    let (done, between) = run_seed(layout, seed, &coverage);
                    halfway.fetch_add(between, Ordering::Relaxed);
                    let before = cuts.fetch_add(done, Ordering::Relaxed);
                    if before / 50_000 != (before + done) / 50_000 {
                        println!("{} cuts, seed {seed}", before + done);
                    }
                }
            });
        }
    });
    let (cuts, halfway, last) = (cuts.into_inner(), halfway.into_inner(), next.into_inner() - 1);
    println!(
        "simulation: {cuts} power cuts, seeds {first} to {last}; {halfway} between records of one fsync"
    );
    assert!(halfway <= 50 + cuts / 1000, "an fsync is more than a record far too often");
    for (op, layouts) in coverage.into_inner() {
        let counts: Vec<_> = layouts.iter().map(|(layout, count)| format!("{layout} {count}")).collect();
        println!("  {op:<11} {}", counts.join(", "));
    }
}

#[test]
fn a_replaced_file_has_its_old_or_new_content_though_nobody_synced() {
    let bed = Bed::new(&[]);
    let old = bed.file(ROOT, "settings");
    bed.write(old, 0, b"old");
    bed.pool.commit().unwrap();
    let new = bed.file(ROOT, "settings.tmp");
    bed.write(new, 0, b"new and longer");
    bed.mount.rename(ROOT, b"settings.tmp", ROOT, b"settings", RenameFlags::default()).unwrap();
    let other = bed.file(ROOT, "other");
    bed.fsync(other);
    let bed = bed.crash(2);
    assert_eq!(bed.content(bed.find("settings").unwrap().node), b"new and longer");
}

#[test]
fn a_replaced_file_never_loses_data_that_was_stored_or_shared_and_not_logged() {
    for shared in [false, true] {
        let bed = Bed::new(&[]);
        let content = vec![7; 3 << 20];
        let source = bed.file(ROOT, "source");
        bed.write(source, 0, &content);
        let old = bed.file(ROOT, "settings");
        bed.write(old, 0, b"old");
        bed.pool.commit().unwrap();
        let new = bed.file(ROOT, "settings.tmp");
        if shared {
            bed.mount.copy_range((source, 0), (new, 0), u64::MAX).unwrap();
        } else {
            bed.write(new, 0, &content);
        }
        bed.mount.rename(ROOT, b"settings.tmp", ROOT, b"settings", RenameFlags::default()).unwrap();
        let other = bed.file(ROOT, "other");
        bed.fsync(other);
        let bed = bed.crash(2);
        assert!(bed.find("other").is_ok());
        let found = bed.content(bed.find("settings").unwrap().node);
        assert!(found == b"old" || found == content, "{} bytes, shared: {shared}", found.len());
    }
}

#[test]
fn replayed_writes_leave_the_time_of_the_last_change_alone() {
    let bed = Bed::new(&[]);
    let set = |node, secs| {
        let mtime = Some(SetTime::To(Timestamp { secs, nanos: 5 }));
        bed.mount.setattr(node, &SetAttr { mtime, ..SetAttr::default() }, &USER).unwrap();
    };
    let chmod = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let nodes = ["restored", "future", "written", "changed", "again"].map(|name| bed.file(ROOT, name));
    let [restored, future, written, changed, again] = nodes;
    bed.pool.commit().unwrap();
    for node in nodes {
        bed.tick();
        bed.write(node, 0, b"some data");
        bed.tick();
    }
    set(restored, 1000);
    set(future, i64::from(u32::MAX));
    bed.mount.setattr(changed, &chmod, &USER).unwrap();
    set(again, 1000);
    bed.tick();
    bed.write(again, 100_000, b"in another place");
    nodes.iter().for_each(|node| bed.fsync(*node));
    let times = |bed: &Bed, node| {
        let attr = bed.mount.getattr(node).unwrap();
        (attr.mtime, attr.ctime)
    };
    let before = nodes.map(|node| times(&bed, node));
    assert_eq!(before[2].0, before[2].1, "{written:?}");
    let bed = bed.crash(2);
    assert_eq!(nodes.map(|node| times(&bed, node)), before);
    let bed = bed.reopen(3);
    assert_eq!(nodes.map(|node| times(&bed, node)), before);
}

#[test]
fn nothing_is_committed_before_the_log_is_replayed() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, b"synced");
    bed.fsync(node);
    let Bed { sim, clock, pool, upkeep, mount } = bed;
    drop((mount, upkeep, pool));
    for taken in [false, true] {
        let pool = Bed::import_pool(Arc::new(Inline), &sim, &clock, 2);
        if taken {
            assert!(!pool.take_replay().is_empty());
        }
        assert!(pool.commit().is_err(), "the log would be dropped");
    }
    let bed = Bed::import(sim, clock, 3);
    assert_eq!(bed.content(bed.find("file").unwrap().node), b"synced");
}

#[test]
fn an_orphan_is_removed_after_a_crash() {
    let bed = Bed::new(&[("recordsize", "4096"), ("compression", "off")]);
    let node = bed.file(ROOT, "big");
    bed.mount.open(node, crate::bed::READ_WRITE).unwrap();
    for i in 0..300 {
        bed.write(node, i * 4096, &[i as u8; 4096]);
    }
    bed.mount.unlink(ROOT, b"big").unwrap();
    assert_eq!(bed.read(node, 299 * 4096, 1), [299u32 as u8]);
    bed.pool.commit().unwrap();
    let bed = bed.crash(2);
    let usage = || bed.pool.dataset(larder_pool::ROOT_DATASET).unwrap().usage().logical;
    assert_eq!(usage(), 300 * 4096);
    let mut steps = 0;
    while bed.mount.reap_step(100).unwrap() {
        steps += 1;
    }
    assert!(steps >= 2, "a big file goes in steps");
    assert_eq!(usage(), 0);
    bed.pool.commit().unwrap();
    bed.check();
}
