//! Columns that move to another slot beside writers, and beside devices that come and go.

use crate::common::hooked::{Hook, hooked};
use crate::common::*;
use larder_device::{Device, Request};
use larder_format::label::LABEL_AREA;
use larder_format::segment::{SegmentKind, SegmentState};
use larder_format::{DeviceIndex, DeviceOffset, SegmentId};
use larder_sim::{Event, Fault, SimWorld, Trace};
use larder_sync::schedule::{self, Plan, Switching, Task};
use larder_upkeep::ScrubSince;
use std::cell::Cell;
use std::sync::Arc;

const SCHEDULES: u64 = 40;
/// Marks in the trace: a device is asked for something by who moves a column.
const MOVES: u64 = 0;
/// Somebody else is about to do something that a move must not come between.
const BEGINS: u64 = 1;
/// It is done.
const DONE: u64 = 2;

thread_local! {
    static SCRUBS: Cell<bool> = const { Cell::new(false) };
}

/// Scrubs; of segment `id`, each request of a move of a column takes `steps`.
fn scrub_slowly(sim: &SimWorld, pool: &Kept, id: SegmentId, hook: &Hook, steps: u64) {
    let (sim, segment) = (sim.clone(), pool.store().readable.get(id).unwrap());
    hook.set(move |_| {
        if SCRUBS.get() && !segment.moves().is_multiple_of(2) {
            sim.mark(MOVES);
            rest(steps);
        }
    });
    SCRUBS.set(true);
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
}

fn rest(steps: u64) {
    (0..steps).for_each(|_| schedule::step());
}

/// Runs a scrub and somebody else beside each other.
fn run<'a>(seed: u64, scrub: impl FnOnce() + Send + 'a, other: impl FnOnce() + Send + 'a) {
    let tasks: Vec<Task<'a>> = vec![("scrub".into(), Box::new(scrub)), ("other".into(), Box::new(other))];
    let switching = Switching::Random { one_in: [2, 10, 50][(seed % 3) as usize] };
    let outcome = schedule::run(&Plan { seed, switching, panic_at: None }, tasks);
    assert!(outcome.stuck.is_none() && outcome.failed.is_empty(), "seed {seed}: {outcome:?}");
}

/// Where the marks of a kind are in a trace.
fn marks(trace: &Trace, kind: u64) -> Vec<usize> {
    let is = |event: &Event| matches!(event, Event::Mark(mark) if *mark == kind);
    (0..trace.len()).filter(|&at| is(&trace.events()[at])).collect()
}

/// The segment that data goes to now, and the sector of its first stripe on `device`.
fn where_data_goes(pool: &Kept, device: u16) -> (SegmentId, u64) {
    let records = pool.store().segments();
    let open = records.iter().rfind(|record| record.kind == SegmentKind::Data).unwrap();
    assert_eq!(open.state, SegmentState::Open);
    let slot = open.slots.iter().find(|slot| slot.device.get() == device).unwrap();
    (open.id, pool.store().members().get(slot.device).slot_offset(slot.index, 4096).get())
}

/// A sector is wrong, and cannot be written: a scrub that meets it has its column moved.
fn spoil(sim: &SimWorld, device: usize, sector: u64) {
    let (page, disk) = (DeviceOffset::new(sector), sim.device(device));
    let mut bytes = disk.image().read(page, 4096);
    bytes[600] ^= 1;
    disk.submit(Request::Write { offset: page, data: Arc::new(bytes) }).wait().unwrap();
    disk.inject(Fault::FailWrites(sector..sector + 512));
}

#[test]
fn a_stripe_that_lands_while_its_column_moves_is_where_the_column_is() {
    let mut met = 0;
    for seed in 0..SCHEDULES {
        let sim = SimWorld::new(&[SIZE; 2]);
        let (device, hook) = hooked(Arc::new(sim.device(0)));
        let pool = create_on(vec![device, Arc::new(sim.device(1))], "mirror");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 8, 1));
        let (segment, sector) = where_data_goes(&pool, 0);
        spoil(&sim, 0, sector);
        let write = || {
            rest(20 * (seed % 20));
            for round in 0..6 {
                sim.mark(BEGINS);
                commit(&pool, &mut model, &files(100 + 10 * round, 2, seed));
                rest(seed % 7);
            }
        };
        run(seed, || scrub_slowly(&sim, &pool, segment, &hook, 30 * (seed % 20)), write);
        assert_eq!(pool.store().bad_slots().len(), 1, "seed {seed}: a column moved");
        let trace = sim.trace();
        let (moves, begins) = (marks(&trace, MOVES), marks(&trace, BEGINS));
        met += u64::from(begins.iter().any(|at| (moves[0]..moves[moves.len() - 1]).contains(at)));
        assert_whole(&pool, &format!("seed {seed}"));
        sim.device(1).inject(Fault::FailReads(LABEL_AREA..SIZE.get() - LABEL_AREA));
        verify(&pool, &model);
    }
    assert!(met > 5, "{met} times data was stored while a column moved");
}

#[test]
fn a_device_that_was_let_go_gets_nothing_of_a_column_that_moves() {
    let mut met = 0;
    for seed in 0..SCHEDULES {
        let sim = SimWorld::new(&[SIZE; 3]);
        let pool = create_on(sim.devices()[..2].to_vec(), "mirror");
        commit(&pool, &mut Model::new(), &files(10, 8, 1));
        let (device, hook) = hooked(Arc::new(sim.device(2)));
        let stand_in = pool.upkeep.devices.replace(DeviceIndex::new(0), device).unwrap();
        let (segment, sector) = where_data_goes(&pool, 0);
        spoil(&sim, 0, sector);
        let detach = || {
            rest(seed * 10);
            sim.mark(BEGINS);
            pool.upkeep.reshape.detach(stand_in).unwrap();
            sim.mark(DONE);
        };
        run(seed, || scrub_slowly(&sim, &pool, segment, &hook, 300), detach);
        assert_eq!(pool.store().bad_slots().len(), 1, "seed {seed}: a column moved");
        let trace = sim.trace();
        let [moves, begins, done] = [MOVES, BEGINS, DONE].map(|kind| marks(&trace, kind));
        // Such a move is not waited for before the commit.
        met += u64::from(moves.first().is_some_and(|at| (begins[0]..done[0]).contains(at)));
        let is_write = |event: &&Event| matches!(event, Event::Write { device: 2, .. });
        let late = trace.events()[done[0]..].iter().filter(is_write).count();
        assert_eq!(late, 0, "seed {seed}: it was written after it was let go");
        assert_whole(&pool, &format!("seed {seed}"));
    }
    assert!(met > 2, "{met} moves began on the way to the boundary");
}
