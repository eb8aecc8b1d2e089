//! A panic between any two steps of whatever changes the pool: it is suspended before anybody sees what was left half
//! done, nothing of that is ever committed, and the last commit and the log are there at the next import.

use crate::bed::{Bed, ROOT, USER};
use crate::model::{Run, compare, free_all};
use larder_files::*;
use larder_format::ByteLen;
use larder_mutants::panic_at;
use larder_pool::PoolError;
use larder_sim::{SimWorld, Survival};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const LAYOUTS: [(&str, usize); 4] = [("single", 1), ("mirror", 2), ("raidz1", 3), ("raid14", 5)];
/// Operations of a workload.
const STEPS: usize = 80;

fn bed(seed: u64) -> Bed {
    let (word, count) = LAYOUTS[seed as usize % LAYOUTS.len()];
    let dedup = ["off", "on"][seed as usize / LAYOUTS.len() % 2];
    let properties = [("recordsize", "4096"), ("dedup", dedup)];
    let bed = Bed::with_layout(word, &vec![ByteLen::new(64 << 20); count], &properties);
    bed.pool.set_pool_property("memory", "2097152").unwrap();
    bed.pool.commit().unwrap();
    bed
}

/// Panics at the `n`-th point of a workload; how many points were passed when there are fewer, or the step that died.
fn run(seed: u64, n: u64) -> Result<&'static str, u64> {
    let case = format!("seed {seed}, point {n}");
    let mut run = Run::on(bed(seed), seed);
    panic_at(Some(n));
    let died = (0..STEPS).find_map(|_| {
        let before = run.model.clone();
        catch_unwind(AssertUnwindSafe(|| run.step())).err().map(|words| (before, words))
    });
    let left = panic_at(None);
    let Some((before, words)) = died else { return Err(n - left.expect("it was not met")) };
    let step = words.downcast_ref::<&str>().copied().map(str::to_owned);
    let step = step.or_else(|| words.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(step.starts_with("mutated: "), "{case}: {step}");

    // Nothing is taken or promised any more.
    let case = format!("{case}, {step}");
    let pool = &run.bed.pool;
    let reason = pool.store().suspended().unwrap_or_else(|| panic!("{case}: not suspended"));
    assert!(reason.starts_with("a bug of Larder"), "{case}: {reason}");
    let told = pool.events(0).iter().any(|(_, event)| event.class == "pool_suspend" && event.text == reason);
    assert!(told, "{case}: no event");
    assert!(matches!(pool.commit(), Err(PoolError::Suspended(_))), "{case}");
    assert!(matches!(pool.log_sync(), Err(PoolError::Suspended(_))), "{case}");
    assert!(run.bed.mount.mkdir(ROOT, b"late", 0o755, &USER).is_err(), "{case}");
    for (id, object) in &run.model.objects {
        if object.kind == FileKind::Regular {
            assert!(run.bed.mount.write(run.node(*id), Handle(0), 0, b"late", false).is_err(), "{case}");
        }
    }

    let (sim, clock) = (run.bed.sim.clone(), Arc::clone(&run.bed.clock));
    let durable = run.durable.clone();
    drop(run);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    sweep.advance_to(trace.len());
    for survival in [Survival::DropAll, Survival::KeepAll] {
        let images = sweep.images(survival);
        let bed = Bed::import(SimWorld::from_images(images), Arc::clone(&clock), 1000 + n);
        bed.check();
        let found = [&durable, &before].map(|model| {
            let mut model = model.clone();
            model.close_all();
            compare(&bed, &model).map(drop)
        });
        assert!(found.contains(&Ok(())), "{case}, {survival:?}: {found:#?}");
        free_all(&bed);
        bed.check();
        bed.check_tree();
    }
    let words = step.strip_prefix("mutated: ").unwrap_or_default().to_owned();
    Ok(Box::leak(words.into_boxed_str()))
}

#[test]
fn a_panic_anywhere_suspends_the_pool_and_nothing_half_done_is_ever_committed() {
    let mut met = std::collections::BTreeMap::<&str, u64>::new();
    for seed in 0..8 {
        let Err(points) = run(seed, u64::MAX) else { panic!("nothing is planted") };
        for turn in 0..32 {
            let n = (turn * 2 + seed % 2) * points / 64;
            *met.entry(run(seed, n).expect("the same points as before")).or_default() += 1;
        }
    }
    println!("{met:#?}");
    assert!(met.len() > 8, "too few kinds of points: {met:?}");
}
