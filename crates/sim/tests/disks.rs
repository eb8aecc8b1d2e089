//! Devices that are disks: when they answer, in virtual time, and that nothing else is different.

use larder_device::{
    AlignedBuf, Device, DeviceError, Disk, DiskShape, DiskWork, Entropy, Outcome, Pending, Request,
    SeededEntropy, wait_any,
};
use larder_format::{ByteLen, DeviceOffset};
use larder_sim::{Fault, SimClock, SimDevice, SimWorld, Survival};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);
const PAGE: u64 = 4096;

/// Devices of the whole span of such a disk: images are sparse.
fn disks(count: usize, shape: DiskShape) -> (SimWorld, Arc<SimClock>) {
    let size = ByteLen::new(shape.span / PAGE * PAGE);
    let (world, clock) = (SimWorld::new(&vec![size; count]), Arc::new(SimClock::new()));
    world.spin(shape, &clock);
    (world, clock)
}

fn read(offset: u64, len: u64) -> Request {
    Request::Read { offset: DeviceOffset::new(offset), len: ByteLen::new(len) }
}

fn write(offset: u64, len: usize, fill: u8) -> Request {
    let mut data = AlignedBuf::zeroed(len);
    data.fill(fill);
    Request::Write { offset: DeviceOffset::new(offset), data: Arc::new(data) }
}

fn random_page(rng: &SeededEntropy, span: u64) -> u64 {
    rng.next_u64() % (span / PAGE) * PAGE
}

/// Time that passes while `work` is done.
fn time(clock: &SimClock, work: impl FnOnce()) -> Duration {
    let before = clock.elapsed();
    work();
    clock.elapsed() - before
}

/// The time of so many reads, so many at once, the oldest waited for.
fn random_reads(depth: usize, count: usize, seed: u64) -> Duration {
    let shape = DiskShape::default();
    let (world, clock) = disks(1, shape);
    let (device, rng) = (world.device(0), SeededEntropy::new(seed));
    let mut under_way = VecDeque::new();
    time(&clock, || {
        for _ in 0..count {
            under_way.push_back(device.submit(read(random_page(&rng, shape.span), PAGE)));
            if under_way.len() == depth {
                under_way.pop_front().unwrap().wait().unwrap();
            }
        }
        under_way.drain(..).for_each(|pending| drop(pending.wait().unwrap()));
    })
}

#[test]
fn a_random_read_takes_a_move_and_half_a_turn_on_the_average_as_the_model_alone_has_it() {
    const COUNT: usize = 2000;
    let shape = DiskShape::default();
    let each = random_reads(1, COUNT, 7).as_secs_f64() / COUNT as f64;
    assert!((0.014..0.019).contains(&each), "{each}");
    let (mut disk, mut now) = (Disk::new(shape), Duration::ZERO);
    let rng = SeededEntropy::new(7);
    for id in 0..COUNT as u64 {
        disk.ask(now, id, DiskWork::Read { offset: random_page(&rng, shape.span), len: PAGE });
        while disk.answered(now).is_empty() {
            now = disk.next().unwrap();
        }
    }
    let own = now.as_secs_f64() / COUNT as f64;
    assert!((each - own).abs() < 1e-9, "{each} and {own}");
    let many = random_reads(32, COUNT, 7).as_secs_f64() / COUNT as f64;
    assert!(many < each * 0.6, "{many} of 32 at once");
}

#[test]
fn two_runs_of_a_seed_take_the_same_time_to_the_nanosecond() {
    for depth in [1, 5, 32] {
        assert_eq!(random_reads(depth, 500, 3), random_reads(depth, 500, 3));
        assert_ne!(random_reads(depth, 500, 3), random_reads(depth, 500, 4));
    }
}

#[test]
fn reads_in_a_row_come_at_the_rate_of_the_outer_edge() {
    let shape = DiskShape::default();
    let (world, clock) = disks(1, shape);
    let device = world.device(0);
    let took =
        time(&clock, || (0..1024).for_each(|i| drop(device.submit(read(i << 20, 1 << 20)).wait().unwrap())));
    let rate = f64::from(1 << 30) / took.as_secs_f64();
    assert!((0.95..1.01).contains(&(rate / shape.rate.0 as f64)), "{rate}");
}

#[test]
fn writes_are_answered_by_the_cache_and_a_flush_when_all_of_them_are_in_their_places() {
    let shape = DiskShape::default();
    let (world, clock) = disks(1, shape);
    let (device, rng) = (world.device(0), SeededEntropy::new(5));
    let took = time(&clock, || {
        for _ in 0..100 {
            device.submit(write(random_page(&rng, shape.span), PAGE as usize, 1)).wait().unwrap();
        }
    });
    assert!(took < Duration::from_millis(5), "{took:?}");
    let took = time(&clock, || drop(device.submit(Request::Flush).wait().unwrap()));
    assert!((0.2..1.5).contains(&took.as_secs_f64()), "{took:?}");
    assert_eq!(time(&clock, || drop(device.submit(Request::Flush).wait().unwrap())).as_micros(), 0);
    // An idle disk writes by itself.
    device.submit(write(1 << 40, PAGE as usize, 2)).wait().unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(time(&clock, || drop(device.submit(Request::Flush).wait().unwrap())).as_micros(), 0);
}

#[test]
fn time_passes_to_the_limit_of_who_waits_and_no_further() {
    let (world, clock) = disks(1, DiskShape::default());
    let device = world.device(0);
    let mut pending = device.submit(read(3 << 40, PAGE));
    assert!(pending.has_begun() && !pending.is_done());
    let ms = Duration::from_millis(1);
    let mut waited = Duration::ZERO;
    let took = time(&clock, || {
        loop {
            pending = match pending.wait_for(ms) {
                Ok(outcome) => break drop(outcome.unwrap()),
                Err(late) => late,
            };
            waited += ms;
            assert_eq!(clock.elapsed(), waited);
        }
    });
    assert!((15..40).contains(&waited.as_millis()), "{waited:?}");
    assert!(waited < took && took <= waited + ms);
    // By hand it passes as well.
    let pending = device.submit(read(0, PAGE));
    clock.advance(Duration::from_secs(1));
    assert!(pending.is_done());
    assert_eq!(time(&clock, || drop(pending.wait().unwrap())), Duration::ZERO);
    assert_eq!(device.submit(read(3 << 40, PAGE)).within(ms).unwrap_err(), DeviceError::Overdue);
}

#[test]
fn of_requests_to_several_disks_the_one_that_comes_first_is_told_and_those_that_hang_are_left() {
    let (world, clock) = disks(3, DiskShape::default());
    let [a, b, c] = [0, 1, 2].map(|index| world.device(index));
    c.inject(Fault::Hang);
    let far = a.submit(read(2 << 40, PAGE));
    let near = b.submit(read(1 << 30, PAGE));
    let hung = c.submit(read(0, PAGE));
    let begun = clock.elapsed();
    assert_eq!(wait_any(&[&hung, &far, &near], LONG), Some(2));
    let first = clock.elapsed();
    assert_eq!(wait_any(&[&hung, &far], Duration::from_micros(1)), None, "not yet");
    assert_eq!(clock.elapsed(), first + Duration::from_micros(1));
    assert_eq!(wait_any(&[&hung, &far], LONG), Some(1));
    assert!(begun < first && first < clock.elapsed() && clock.elapsed() < begun + Duration::from_millis(40));
    let told = time(&clock, || {
        assert_eq!(wait_any(&[&hung], LONG), None, "nobody waits out a limit for it");
        let Err(hung) = hung.wait_for(LONG) else { panic!("it hangs") };
        c.resume();
        hung.wait().unwrap();
    });
    assert_eq!(told, Duration::ZERO);
    drop((far, near));
}

#[test]
fn who_waits_beside_others_in_a_thread_of_his_own_gets_his_answer() {
    let shape = DiskShape::default();
    let (world, clock) = disks(2, shape);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (device, rng) = (world.device(thread % 2), SeededEntropy::new(thread as u64));
            scope.spawn(move || {
                for _ in 0..100 {
                    let page = random_page(&rng, shape.span);
                    device.submit(write(page, PAGE as usize, 9)).wait().unwrap();
                    assert_eq!(device.submit(read(page, PAGE)).wait().unwrap()[0], 9);
                }
            });
        }
    });
    assert!(clock.elapsed() > Duration::from_secs(1));
}

/// Some work with everything under way at once, and what each request gave.
fn work(device: &SimDevice) -> Vec<Outcome> {
    let page = PAGE as usize;
    let mut under_way: Vec<Pending<Outcome>> = Vec::new();
    let mut outcomes = Vec::new();
    for i in 0..40_u8 {
        under_way.push(device.submit(write(u64::from(i % 7) * (100 << 20), page, i)));
        match i % 8 {
            3 => under_way.push(device.submit(Request::Flush)),
            5 => outcomes.extend(under_way.drain(..).map(Pending::wait)),
            6 => under_way.push(device.submit(read(u64::from(i % 7) * (100 << 20), PAGE))),
            _ => {}
        }
    }
    outcomes.extend(under_way.into_iter().map(Pending::wait));
    outcomes
}

#[test]
fn bytes_and_cuts_are_the_same_as_of_a_device_that_takes_no_time() {
    let shape = DiskShape { span: 1 << 30, ..DiskShape::default() };
    let (disk, clock) = disks(1, shape);
    let plain = SimWorld::new(&[ByteLen::new(1 << 30)]);
    for world in [&disk, &plain] {
        // Faults take the disk's time, too.
        world.device(0).inject_window(Fault::FailReads(0..1 << 30), 2, 1);
    }
    let bytes = |outcomes: Vec<Outcome>| outcomes.into_iter().map(|one| one.map(|buf| buf.to_vec()));
    let (on_disk, on_plain) = (work(&disk.device(0)), work(&plain.device(0)));
    assert!(bytes(on_disk).eq(bytes(on_plain)));
    assert!(clock.elapsed() > Duration::from_millis(50), "{:?}", clock.elapsed());
    let (of_disk, of_plain) = (disk.trace(), plain.trace());
    assert_eq!(of_disk.len(), of_plain.len());
    for cut in 0..=of_disk.len() {
        for survival in [Survival::KeepAll, Survival::DropAll, Survival::Random { seed: 3 }] {
            assert!(of_disk.crash_images(cut, survival) == of_plain.crash_images(cut, survival), "cut {cut}");
        }
    }
}

#[test]
fn a_flush_that_the_disk_has_not_answered_promises_nothing() {
    let (world, clock) = disks(1, DiskShape::default());
    let device = world.device(0);
    device.submit(write(1 << 40, PAGE as usize, 7)).wait().unwrap();
    let flush = device.submit(Request::Flush);
    let there = |world: &SimWorld| {
        let trace = world.trace();
        let images = trace.crash_images(trace.len(), Survival::DropAll);
        images[0].read(DeviceOffset::new(1 << 40), 1)[0] == 7
    };
    assert!(!flush.is_done() && !there(&world));
    let Err(flush) = flush.wait_for(Duration::from_micros(10)) else { panic!("the arm moves") };
    assert!(!there(&world));
    flush.wait().unwrap();
    assert!(there(&world) && clock.elapsed() > Duration::from_millis(5));
}
