//! Tasks of a test's own in schedules by seed, with power cuts, and what must be found after each.

use crate::bed::Bed;
use crate::setting;
use larder_device::{Entropy, SeededEntropy};
use larder_pool::ROOT_DATASET;
use larder_sim::{DeviceImage, SimClock, SimWorld, Survival};
use larder_sync::schedule::{self, Plan, Switching, Task};
use std::sync::Arc;

/// The tasks of a schedule, by its seed; what they write down.
pub type Tasks<D> = for<'a> fn(u64, &'a Bed, &'a D) -> Vec<Task<'a>>;

/// Runs tasks on pools of `images` in schedules by seed; after each of some power cuts, and after the last of their
/// requests, `check` looks at what is left.
pub fn explore<D: Default>(
    images: &[Vec<DeviceImage>],
    tasks: Tasks<D>,
    check: fn(&Bed, &D) -> Result<(), String>,
) {
    let (count, first) = (setting("LARDER_SCHEDULES", 60) / 3, setting("LARDER_SEED", 0));
    for seed in first..first + count.max(1) {
        let entropy = SeededEntropy::new(seed);
        let below = |n: u64| entropy.next_u64() % n;
        let clock = Arc::new(SimClock::new());
        let image = images[(seed % images.len() as u64) as usize].clone();
        let bed = Bed::import(SimWorld::from_images(image), Arc::clone(&clock), seed);
        attach(&bed);
        let (start, diary) = (bed.sim.trace().len(), D::default());
        let switching = match below(4) {
            0 => Switching::Random { one_in: 2 },
            1 => Switching::Random { one_in: 50 },
            2 => Switching::Priorities { changes: 3, length: 10_000 },
            _ => Switching::Priorities { changes: 20, length: 10_000 },
        };
        let outcome = schedule::run(&Plan { seed, switching, panic_at: None }, tasks(seed, &bed, &diary));
        assert!(outcome.stuck.is_none() && outcome.failed.is_empty(), "seed {seed}: {outcome:?}");
        let trace = bed.sim.trace();
        drop(bed);
        let mut cuts: Vec<usize> =
            (0..4).map(|_| start + below((trace.len() - start) as u64 + 1) as usize).collect();
        cuts.push(trace.len());
        cuts.sort_unstable();
        let mut sweep = trace.sweep();
        for cut in cuts {
            sweep.advance_to(cut);
            let world = SimWorld::from_images(sweep.images(Survival::DropAll));
            let bed = Bed::import(world, Arc::clone(&clock), 5_000 + seed);
            attach(&bed);
            let found = check(&bed, &diary);
            assert!(found.is_ok(), "seed {seed}, cut {cut} of {}: {}", trace.len(), found.unwrap_err());
        }
    }
}

/// Attaches the dataset `d1`, if there is one.
pub fn attach(bed: &Bed) {
    if let Ok(d1) = bed.pool.dataset_by_name("tank/d1") {
        bed.mount.attach(d1, Some((ROOT_DATASET, b"d1".to_vec()))).unwrap();
        bed.pool.commit().unwrap();
    }
}

pub fn rest(steps: u64) {
    (0..steps).for_each(|_| schedule::step());
}

pub fn task<'a>(name: &str, body: impl FnOnce() + Send + 'a) -> Task<'a> {
    (name.into(), Box::new(body))
}

/// A committer, who rests after each of so many commits.
pub fn committing(bed: &Bed, commits: u64, steps: u64) -> Task<'_> {
    task("committer", move || {
        for _ in 0..commits {
            bed.pool.commit().unwrap();
            rest(steps);
        }
    })
}

/// Somebody who has all that is dirty stored now and then.
pub fn flushing(bed: &Bed, times: u64, steps: u64) -> Task<'_> {
    task("flusher", move || {
        for _ in 0..times {
            bed.pool.flush_front().unwrap();
            rest(steps);
        }
    })
}
