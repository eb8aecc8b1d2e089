//! Every way to lose one, two or three devices, of every layout in every width: what the layout allows is survived, all
//! else is refused, and both are exactly as many as theory says.

use crate::common::*;
use crate::seeds::{full, on_two_threads, setting};
use crate::shape::{self, Shape, is_lost, numbers, without};
use larder_device::{Device, Entropy, SeededEntropy};
use larder_format::DeviceIndex;
use larder_pool::{Pool, PoolError, ROOT_DATASET};
use larder_sim::{DeviceImage, Fault, SimWorld, Survival};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pool that was committed, went on in its log, and was cut off: its devices' bytes and what must be in them.
struct Written {
    shape: Shape,
    images: Vec<DeviceImage>,
    model: Model,
}

impl Written {
    fn new(shape: Shape) -> Self {
        let sim = shape.world();
        let pool = shape.create(&sim);
        let mut model = Model::new();
        for version in 1..3 {
            let files: Vec<_> =
                (0..8).map(|i| (10 + i, version, 1 + (i as usize * 9_176) % 70_000)).collect();
            commit(&pool, &mut model, &files);
        }
        sync(&pool, &mut model, &[(11, 3, 5_000), (30, 3, 300)]);
        drop(pool);
        Self { shape, images: sim.images(), model }
    }
}

/// Of the subsets of a size: how many were survived, how many there were.
type Shares = BTreeMap<usize, (usize, usize)>;

/// Results by shape.
#[derive(Default)]
struct Tally(BTreeMap<String, Shares>);

impl Tally {
    fn count(&mut self, shape: Shape, lost: u32, survived: bool) {
        let shares = self.0.entry(shape.to_string()).or_default();
        let share = shares.entry(lost.count_ones() as usize).or_default();
        share.0 += usize::from(survived);
        share.1 += 1;
    }

    fn add(&mut self, other: Self) {
        for (shape, shares) in other.0 {
            for (losses, (survived, all)) in shares {
                let share = self.0.entry(shape.clone()).or_default().entry(losses).or_default();
                *share = (share.0 + survived, share.1 + all);
            }
        }
    }

    /// Survived and all.
    fn sums(&self) -> (usize, usize) {
        let shares = self.0.values().flat_map(BTreeMap::values);
        shares.fold((0, 0), |sum, share| (sum.0 + share.0, sum.1 + share.1))
    }

    /// When all were tried, what happened is what theory says, to the last subset.
    fn assert_theory(&self) {
        let all: usize = shape::all().into_iter().map(|shape| shape.losses().len()).sum();
        if self.sums().1 < all {
            return;
        }
        for shape in shape::all() {
            let seen = &self.0[&shape.to_string()];
            for losses in 1..=3.min(shape.devices()) {
                assert_eq!(seen[&losses], shape.theory(losses), "{shape}, {losses} losses");
            }
        }
    }
}

/// Runs `case` for every subset of every shape, or every `stride`-th one; it tells whether the losses were survived, as
/// it must be when `should` says so. With all of them, what happened must be what theory says.
fn enumerate(
    name: &str,
    stride: usize,
    should: impl Fn(Shape, u32) -> bool + Sync,
    case: impl Fn(&Written, u32, usize) -> bool + Sync,
) -> Tally {
    let pools: Vec<Written> = shape::all().into_iter().map(Written::new).collect();
    let subsets = pools.iter().flat_map(|pool| pool.shape.losses().into_iter().map(move |lost| (pool, lost)));
    let mut cases: Vec<_> = subsets.enumerate().collect();
    match setting("LARDER_CASE", u64::MAX) {
        u64::MAX => cases.retain(|(number, _)| number.is_multiple_of(stride)),
        one => cases.retain(|(number, _)| *number as u64 == one),
    }
    let tally = on_two_threads(
        cases.len(),
        |i, tally: &mut Tally| {
            let (number, (pool, lost)) = cases[i];
            let survived = case(pool, lost, number);
            assert_eq!(survived, should(pool.shape, lost), "{} without {:?}", pool.shape, numbers(lost));
            tally.count(pool.shape, lost, survived);
        },
        Tally::add,
        |i| {
            let (number, (pool, lost)) = cases[i];
            let (shape, lost) = (pool.shape, numbers(lost));
            format!(
                "LARDER_CASE={number} cargo test -p larder-upkeep --test torture {name} ({shape} without {lost:?})"
            )
        },
    );
    let (survived, all) = tally.sums();
    println!(
        "{name}: {all} subsets of {} pools, {survived} survived, {} refused",
        pools.len(),
        all - survived
    );
    tally
}

/// Whether the layout allows losing all of these at once.
fn at_once(shape: Shape, lost: u32) -> bool {
    shape.survives(|device| is_lost(lost, device))
}

/// Whether the layout allows losing them one after the other.
fn one_by_one(shape: Shape, lost: u32) -> bool {
    numbers(lost).into_iter().all(|one| shape.survives(|device| device == one))
}

/// Every subset with `LARDER_SUBSETS=all`; else every `share`-th, and a fourth of that where nobody asked for full
/// counts.
fn stride(share: usize) -> usize {
    match std::env::var("LARDER_SUBSETS") {
        Ok(all) if all == "all" => 1,
        _ if full() => share,
        _ => share * 4 + 1,
    }
}

/// Overwrites some files.
fn go_on(pool: &Pool, model: &mut Model, version: u64) {
    let files: Vec<_> = (0..4).map(|i| (14 + i, version, 1 + (i as usize * 7_919) % 60_000)).collect();
    commit(pool, model, &files);
}

#[test]
fn every_loss_that_a_layout_allows_is_survived_at_import_and_every_other_is_refused() {
    let tally = enumerate("every_loss_that_a_layout_allows", stride(1), at_once, |written, lost, number| {
        let sim = SimWorld::from_images(written.images.clone());
        let left = without(&sim, lost);
        if left.is_empty() {
            return false;
        }
        let pool = match import_from(left.clone(), 3) {
            Ok(pool) => pool,
            Err(PoolError::Refused(refusal)) => {
                assert!(refusal.to_string().contains("missing"), "{refusal}");
                assert!(sim.trace().is_empty(), "a refused import wrote");
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(replay(&pool) > 0);
        let mut model = written.model.clone();
        verify(&pool, &model);
        go_on(&pool, &mut model, 5);
        if number.is_multiple_of(7) {
            assert_whole(&pool, "degraded");
        }
        pool.store().drop_caches();
        verify(&pool, &model);
        drop(pool);
        verify(&import_from(left, 4).unwrap(), &model);
        true
    });
    tally.assert_theory();
}

/// Puts, syncs and commits until the end or a refusal; returns whether all went well. What was promised is in
/// `promised`.
fn work(pool: &Pool, model: &mut Model, promised: &mut Model, mut before: impl FnMut(u64)) -> bool {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for step in 0..6 {
        before(step);
        let files: Vec<_> = (0..1 + step % 4)
            .map(|i| (10 + (step + i) % 9, 100 + step, 1 + (step as usize * 17_001) % 50_000))
            .collect();
        if try_put(pool, &dataset, &files).is_err() {
            return false;
        }
        let Ok(op) = pool.enter() else { return false };
        let note = dataset.update(&op, |tree| {
            files.iter().for_each(|file| tree.log(logged(*file)));
            Ok::<_, PoolError>(())
        });
        drop(op);
        if note.is_err() {
            return false;
        }
        model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
        let promise = if step % 3 == 2 { pool.commit().map(drop) } else { pool.log_sync() };
        if promise.is_err() {
            return false;
        }
        promised.clone_from(model);
    }
    true
}

/// Every file holds what was promised, or something that was written to it later.
fn assert_promised(pool: &Pool, promised: &Model, case: &str) {
    let found = contents(pool).unwrap_or_else(|error| panic!("{case}: {error}"));
    for (inode, (version, len)) in promised {
        let (is, is_len) = found.get(inode).unwrap_or_else(|| panic!("{case}: file {inode} is lost"));
        // Shorter ones have no room for their version.
        assert!(is > version || (is, is_len) == (version, len) || *is_len < 8, "{case}: file {inode}");
    }
}

#[test]
fn devices_that_vanish_while_the_pool_works_cost_what_the_layout_says() {
    let tally = enumerate("devices_that_vanish", stride(5), at_once, |written, lost, number| {
        let entropy = SeededEntropy::new(number as u64);
        let next = |n: u64| entropy.next_u64() % n;
        let sim = SimWorld::from_images(written.images.clone());
        let pool = open(&sim, 3);
        replay(&pool);
        pool.commit().unwrap();
        let (mut model, mut promised) = (written.model.clone(), written.model.clone());
        // All at one moment, or each at its own; between operations or somewhere in the requests of one.
        let (together, at) = (next(2) == 0, next(5));
        let plan: Vec<(usize, u64, u64)> = numbers(lost)
            .into_iter()
            .map(|device| (device, if together { at } else { next(5) }, next(3).min(1) * next(12)))
            .collect();
        let went_on = work(&pool, &mut model, &mut promised, |step| {
            for &(device, _, spare) in plan.iter().filter(|(_, when, _)| *when == step) {
                sim.device(device).inject_window(Fault::Gone, spare, u64::MAX);
            }
        });
        // Devices that have not had enough requests to vanish do now.
        numbers(lost).into_iter().for_each(|device| sim.device(device).inject(Fault::Gone));
        let went_on = went_on && pool.commit().is_ok();
        let case = format!("{} without {:?}", written.shape, numbers(lost));
        assert_eq!(pool.store().suspended().is_none(), went_on, "{case}");
        if went_on {
            pool.store().drop_caches();
            verify(&pool, &model);
        }
        drop(pool);
        let trace = sim.trace();
        let after = trace.crash_images(trace.len(), Survival::Random { seed: number as u64 });
        let gone = if went_on { lost } else { 0 };
        for lost in [gone, 0] {
            let after = SimWorld::from_images(after.clone());
            let pool =
                import_from(without(&after, lost), 5).unwrap_or_else(|error| panic!("{case}: {error}"));
            replay(&pool);
            assert_promised(&pool, &promised, &case);
        }
        went_on
    });
    tally.assert_theory();
}

/// Brings device `seat` back into the pool, as it is or as a blank one, and resilvers it.
fn bring_back(pool: &Kept, sim: &SimWorld, seats: &mut [usize], seat: usize, next: &impl Fn(u64) -> u64) {
    let index = DeviceIndex::new(seat as u16);
    if next(2) == 0 {
        sim.device(seats[seat]).clear_faults();
        pool.upkeep.devices.online(index, None).unwrap();
    } else {
        let new = sim.add_device(sim.device(seats[seat]).image().size());
        seats[seat] = new.index();
        pool.upkeep.devices.replace(index, Arc::new(new)).unwrap();
    }
    let bytes = [20_000, 500_000, u64::MAX][next(3) as usize];
    while pool.upkeep.resilver.step(bytes).unwrap() {}
    assert!(pool.store().members().get(index).is_online(), "device {seat} was not rebuilt");
}

#[test]
fn devices_lost_one_after_the_other_with_resilvers_between_cost_nothing() {
    enumerate("devices_lost_one_after_the_other", stride(9), one_by_one, |written, lost, number| {
        let entropy = SeededEntropy::new(number as u64);
        let next = |n: u64| entropy.next_u64() % n;
        let sim = SimWorld::from_images(written.images.clone());
        let pool = open(&sim, 3);
        replay(&pool);
        pool.commit().unwrap();
        let mut model = written.model.clone();
        let mut seats: Vec<usize> = (0..written.shape.devices()).collect();
        let mut order = numbers(lost);
        let turn = next(order.len() as u64) as usize;
        order.rotate_left(turn);
        for (round, &seat) in order.iter().enumerate() {
            // Between operations, or somewhere in the requests of a commit.
            sim.device(seats[seat]).inject_window(Fault::Gone, next(3).min(1) * next(12), u64::MAX);
            let dataset = pool.dataset(ROOT_DATASET).unwrap();
            let files: Vec<_> =
                (0..4).map(|i| (11 + i, 10 + round as u64, 1 + (i as usize * 13_331) % 60_000)).collect();
            let stored = try_put(&pool, &dataset, &files).and_then(|()| pool.commit());
            sim.device(seats[seat]).inject(Fault::Gone);
            if stored.and_then(|_| pool.commit()).is_err() {
                return false;
            }
            model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
            pool.store().drop_caches();
            verify(&pool, &model);
            bring_back(&pool, &sim, &mut seats, seat, &next);
        }
        if number.is_multiple_of(5) {
            assert_whole(&pool, "after the last resilver");
        }
        drop(pool);
        // The whole tolerance is there again: what was never lost may go now, as far as the layout allows.
        let devices = written.shape.devices();
        let mut gone = 0u32;
        let first = next(devices as u64) as usize;
        for seat in (0..devices).map(|i| (first + i) % devices).filter(|seat| !order.contains(seat)) {
            let more = gone | 1 << seat;
            if at_once(written.shape, more) {
                gone = more;
            }
        }
        let seats = seats.iter().enumerate().filter(|(seat, _)| !is_lost(gone, *seat));
        let left = seats.map(|(_, &device)| Arc::new(sim.device(device)) as Arc<dyn Device>).collect();
        verify(&import_from(left, 9).unwrap(), &model);
        true
    });
}
