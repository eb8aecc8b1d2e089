//! Contents after a power cut, against a model that is too simple to be wrong.

use larder_device::{AlignedBuf, Device, Outcome, Pending, Request};
use larder_format::{ByteLen, DeviceOffset};
use larder_sim::{DeviceImage, Event, SimDevice, SimWorld, Survival};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

const PAGE: u64 = 4096;
const SECTOR: usize = 512;

fn write(device: &SimDevice, page: u64, pages: u64, fill: u8) {
    let mut data = AlignedBuf::zeroed((pages * PAGE) as usize);
    // Every sector of a write differs from its neighbours, so that torn writes show.
    for (i, sector) in data.chunks_mut(SECTOR).enumerate() {
        sector.fill(fill);
        sector[0] = i as u8;
    }
    let request = Request::Write { offset: DeviceOffset::new(page * PAGE), data: Arc::new(data) };
    device.submit(request).wait().unwrap();
}

fn flush(device: &SimDevice) {
    device.submit(Request::Flush).wait().unwrap();
}

fn world(devices: usize, pages: u64) -> SimWorld {
    SimWorld::new(&vec![ByteLen::new(pages * PAGE); devices])
}

fn bytes(image: &DeviceImage) -> Vec<u8> {
    image.read(DeviceOffset::new(0), image.size().get() as usize).to_vec()
}

/// The byte that `write` filled a page with; panics when the page is torn.
fn fill(image: &DeviceImage, page: u64) -> u8 {
    let bytes = image.read(DeviceOffset::new(page * PAGE), PAGE as usize);
    assert!(bytes.chunks(SECTOR).all(|sector| sector[1] == bytes[1]), "page {page} is torn");
    bytes[1]
}

fn seeds(range: std::ops::Range<u64>) -> impl Iterator<Item = Survival> {
    range.map(|seed| Survival::Random { seed })
}

#[test]
fn a_flushed_write_survives_every_cut() {
    let world = world(1, 4);
    write(&world.device(0), 1, 2, 9);
    flush(&world.device(0));
    let trace = world.trace();
    for survival in seeds(0..100).chain([Survival::DropAll, Survival::KeepAll]) {
        assert_eq!(trace.crash_images(2, survival), world.images());
    }
}

#[test]
fn a_flush_covers_its_own_device_only() {
    let world = world(2, 1);
    write(&world.device(0), 0, 1, 1);
    write(&world.device(1), 0, 1, 2);
    flush(&world.device(1));
    let images = world.trace().crash_images(3, Survival::DropAll);
    assert_eq!((fill(&images[0], 0), fill(&images[1], 0)), (0, 2));
}

#[test]
fn a_flush_does_not_cover_later_writes() {
    let world = world(1, 2);
    flush(&world.device(0));
    write(&world.device(0), 0, 1, 1);
    assert_eq!(fill(&world.trace().crash_images(2, Survival::DropAll)[0], 0), 0);
}

fn unawaited_write(device: &SimDevice, page: u64, fill: u8) -> Pending<Outcome> {
    let mut data = AlignedBuf::zeroed(PAGE as usize);
    data.fill(fill);
    device.submit(Request::Write { offset: DeviceOffset::new(page * PAGE), data: Arc::new(data) })
}

#[test]
fn a_flush_does_not_cover_a_write_that_nobody_waited_for() {
    let world = world(1, 3);
    let device = world.device(0);
    unawaited_write(&device, 0, 1).wait().unwrap();
    let in_flight = unawaited_write(&device, 1, 1);
    drop(unawaited_write(&device, 2, 1));
    flush(&device);
    let durable = |world: &SimWorld| {
        let images = world.trace().crash_images(world.trace().len(), Survival::DropAll);
        [0, 1, 2].map(|page| fill(&images[0], page))
    };
    assert_eq!(durable(&world), [1, 0, 0]);
    in_flight.wait().unwrap();
    assert_eq!(durable(&world), [1, 0, 0], "it completed too late for that flush");
    flush(&device);
    assert_eq!(durable(&world), [1, 1, 0], "the next one covers it; the third is never known to be done");
}

#[test]
fn a_flush_that_nobody_waited_for_promises_nothing() {
    let world = world(1, 2);
    let device = world.device(0);
    write(&device, 0, 1, 1);
    let flushing = device.submit(Request::Flush);
    write(&device, 1, 1, 2);
    let durable = |world: &SimWorld| {
        let images = world.trace().crash_images(world.trace().len(), Survival::DropAll);
        [0, 1].map(|page| fill(&images[0], page))
    };
    assert_eq!(durable(&world), [0, 0]);
    flushing.wait().unwrap();
    assert_eq!(durable(&world), [1, 0], "it does not cover what was submitted after it");
}

#[test]
fn a_cut_shows_nothing_of_what_happens_after_it() {
    let world = world(1, 1);
    write(&world.device(0), 0, 1, 1);
    write(&world.device(0), 0, 1, 2);
    flush(&world.device(0));
    let trace = world.trace();
    assert_eq!(fill(&trace.crash_images(0, Survival::KeepAll)[0], 0), 0);
    assert_eq!(fill(&trace.crash_images(1, Survival::KeepAll)[0], 0), 1);
    assert_eq!(fill(&trace.crash_images(2, Survival::KeepAll)[0], 0), 2);
}

#[test]
fn unflushed_writes_are_reordered_across_places_and_devices() {
    let world = world(2, 2);
    write(&world.device(0), 0, 1, 1);
    write(&world.device(0), 1, 1, 1);
    write(&world.device(1), 0, 1, 1);
    let trace = world.trace();
    let mut sweep = trace.sweep();
    sweep.advance_to(3);
    let mut seen = HashSet::new();
    for survival in seeds(0..300) {
        let images = sweep.images(survival);
        let there = |image: &DeviceImage, page: u64| {
            image.read(DeviceOffset::new(page * PAGE), PAGE as usize).iter().any(|byte| *byte != 0)
        };
        seen.insert([there(&images[0], 0), there(&images[0], 1), there(&images[1], 0)]);
    }
    assert_eq!(seen.len(), 8, "all combinations of three writes: {seen:?}");
}

#[test]
fn torn_writes_may_leave_a_first_a_middle_or_a_last_part() {
    let world = world(1, 1);
    write(&world.device(0), 0, 1, 1);
    let trace = world.trace();
    let (mut first, mut middle, mut last) = (0, 0, 0);
    for survival in seeds(0..500) {
        let bytes = bytes(&trace.crash_images(1, survival)[0]);
        let there = |sector: usize| bytes[sector * SECTOR + 1] == 1;
        let inside = (1..7).any(there);
        match (there(0), inside, there(7)) {
            (true, _, false) => first += 1,
            (false, true, false) => middle += 1,
            (false, _, true) => last += 1,
            _ => {}
        }
    }
    assert!(first > 10 && middle > 10 && last > 10, "{first} {middle} {last}");
}

#[test]
fn rot_survives_every_cut_and_only_flushed_rewrites_heal_it() {
    let world = world(1, 1);
    let device = world.device(0);
    write(&device, 0, 1, 7);
    flush(&device);
    let sound = world.images();
    device.flip_bits(DeviceOffset::new(100), 50, 3);
    let rotten = world.images();
    assert_ne!(sound, rotten);
    let trace = world.trace();
    for survival in seeds(0..50).chain([Survival::DropAll, Survival::KeepAll]) {
        assert_eq!(trace.crash_images(3, survival), rotten);
    }
    write(&device, 0, 1, 7);
    flush(&device);
    assert_eq!(world.trace().crash_images(5, Survival::DropAll), sound);
}

#[test]
fn a_world_from_images_goes_on_and_is_cut_again() {
    let before = world(1, 2);
    write(&before.device(0), 0, 1, 1);
    let after = SimWorld::from_images(before.trace().crash_images(1, Survival::KeepAll));
    write(&after.device(0), 1, 1, 2);
    let images = after.trace().crash_images(1, Survival::DropAll);
    assert_eq!((fill(&images[0], 0), fill(&images[0], 1)), (1, 0));
    assert_eq!(fill(&before.images()[0], 1), 0);
}

#[test]
fn marks_tell_what_had_returned_before_the_cut() {
    let world = world(1, 1);
    world.mark(1);
    write(&world.device(0), 0, 1, 1);
    world.mark(2);
    let trace = world.trace();
    assert_eq!(trace.marks_before(2).collect::<Vec<_>>(), [1]);
    assert_eq!(trace.marks_before(3).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_device_added_later_is_blank_in_earlier_cuts() {
    let world = world(1, 1);
    write(&world.device(0), 0, 1, 1);
    let added = world.add_device(ByteLen::new(2 * PAGE));
    write(&added, 1, 1, 2);
    let trace = world.trace();
    assert_eq!(fill(&trace.crash_images(1, Survival::KeepAll)[1], 1), 0);
    assert_eq!(fill(&trace.crash_images(2, Survival::KeepAll)[1], 1), 2);
}

/// Possible contents of a device after a cut, written down without any cleverness.
struct Model {
    durable: Vec<u8>,
    unflushed: Vec<(usize, Vec<u8>)>,
}

impl Model {
    fn at(events: &[Event], device: usize, size: usize) -> Self {
        let mut model = Self { durable: vec![0; size], unflushed: Vec::new() };
        for event in events {
            match event {
                Event::Write { device: d, offset, data } if *d == device => {
                    model.unflushed.push((offset.get() as usize, data.to_vec()));
                }
                Event::Flush { device: d, .. } if *d == device => model.durable = model.all_kept(),
                _ => continue,
            }
            if matches!(event, Event::Flush { .. }) {
                model.unflushed.clear();
            }
        }
        model
    }

    fn all_kept(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (offset, data) in &self.unflushed {
            bytes[*offset..offset + data.len()].copy_from_slice(data);
        }
        bytes
    }

    /// Every sector is the durable one or that of some unflushed write.
    fn allows(&self, bytes: &[u8]) -> bool {
        bytes.chunks(SECTOR).enumerate().all(|(i, sector)| {
            let at = i * SECTOR;
            let of_write = |(offset, data): &(usize, Vec<u8>)| {
                at.checked_sub(*offset).is_some_and(|from| data.get(from..from + SECTOR) == Some(sector))
            };
            sector == &self.durable[at..at + SECTOR] || self.unflushed.iter().any(of_write)
        })
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write { device: usize, page: u64, pages: u64, fill: u8 },
    Flush { device: usize },
    Mark,
}

const PAGES: u64 = 6;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..3usize, 0..PAGES, 1..=3u64, any::<u8>()).prop_map(|(device, page, pages, fill)| {
        Step::Write { device, page, pages: pages.min(PAGES - page), fill }
    });
    let step = prop_oneof![5 => write, 2 => (0..3usize).prop_map(|device| Step::Flush { device }),
                           1 => Just(Step::Mark)];
    prop::collection::vec(step, 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_sweep_gives_what_a_plain_replay_gives(steps in steps(), seed: u64, stride in 1..4usize) {
        let world = world(3, PAGES);
        for step in &steps {
            match *step {
                Step::Write { device, page, pages, fill } => write(&world.device(device), page, pages, fill),
                Step::Flush { device } => flush(&world.device(device)),
                Step::Mark => world.mark(0),
            }
        }
        let trace = world.trace();
        prop_assert_eq!(trace.len(), steps.len());
        let mut sweep = trace.sweep();
        for cut in (0..=trace.len()).step_by(stride) {
            sweep.advance_to(cut);
            let random = Survival::Random { seed };
            for survival in [Survival::KeepAll, Survival::DropAll, random] {
                prop_assert_eq!(sweep.images(survival), trace.crash_images(cut, survival));
            }
            let models: Vec<Model> =
                (0..3).map(|d| Model::at(&trace.events()[..cut], d, (PAGES * PAGE) as usize)).collect();
            prop_assert_eq!(sweep.unflushed(), models.iter().map(|m| m.unflushed.len()).sum::<usize>());
            for (device, model) in models.iter().enumerate() {
                prop_assert_eq!(bytes(&sweep.images(Survival::DropAll)[device]), model.durable.clone());
                prop_assert_eq!(bytes(&sweep.images(Survival::KeepAll)[device]), model.all_kept());
                prop_assert!(model.allows(&bytes(&sweep.images(random)[device])));
            }
        }
        prop_assert_eq!(trace.crash_images(trace.len(), Survival::KeepAll), world.images());
    }
}

/// Pages of a device that was full of 7, after a discard and a write of 9 to the first page discarded.
fn after_discard(flushed: bool, survival: Survival) -> Vec<u8> {
    let world = world(1, 8);
    let device = world.device(0);
    write(&device, 0, 8, 7);
    flush(&device);
    let discard = Request::Discard { offset: DeviceOffset::new(PAGE), len: ByteLen::new(4 * PAGE) };
    device.submit(discard).wait().unwrap();
    if flushed {
        flush(&device);
    }
    write(&device, 1, 1, 9);
    flush(&device);
    let trace = world.trace();
    let image = &trace.crash_images(trace.len(), survival)[0];
    assert_eq!(*image, world.images()[0]);
    (0..8).map(|page| image.read(DeviceOffset::new(page * PAGE + 1), 1)[0]).collect()
}

#[test]
fn a_discard_spoils_its_pages_alone_and_what_is_written_after_a_flush_stays() {
    for survival in seeds(0..20) {
        let pages = after_discard(true, survival);
        assert_eq!((pages[0], pages[1], &pages[5..]), (7, 9, &[7; 3][..]));
        let pages = after_discard(false, survival);
        assert_eq!((pages[0], &pages[5..]), (7, &[7; 3][..]));
    }
}

#[test]
fn a_discard_comes_as_late_as_the_next_flush_and_leaves_zeros_old_bytes_or_others() {
    let (mut late, mut seen) = (false, HashSet::new());
    for before in 0..200 {
        let world = world(1, 3);
        let device = world.device(0);
        write(&device, 0, 3, 7);
        // Each has another seed.
        (0..before).for_each(|_| drop(read(&device)));
        device
            .submit(Request::Discard { offset: DeviceOffset::new(0), len: ByteLen::new(2 * PAGE) })
            .wait()
            .unwrap();
        write(&device, 0, 1, 9);
        flush(&device);
        let image = &world.images()[0];
        let byte = |page: u64| image.read(DeviceOffset::new(page * PAGE + 1), 1)[0];
        late |= byte(0) != 9;
        seen.insert(match byte(1) {
            0 => "zeros",
            7 => "old",
            _ => "others",
        });
        assert_eq!(byte(2), 7);
    }
    assert!(late, "none came after the write");
    assert_eq!(seen.len(), 3, "{seen:?}");
}

fn read(device: &SimDevice) -> Outcome {
    device.submit(Request::Read { offset: DeviceOffset::new(0), len: ByteLen::new(PAGE) }).wait()
}

#[test]
fn a_power_cut_before_the_flush_leaves_a_discard_done_in_part_or_not_at_all() {
    let mut done = HashSet::new();
    for seed in 0..200 {
        let world = world(1, 4);
        let device = world.device(0);
        write(&device, 0, 4, 7);
        flush(&device);
        // Each has another seed.
        (0..seed).for_each(|_| drop(read(&device)));
        device
            .submit(Request::Discard { offset: DeviceOffset::new(0), len: ByteLen::new(4 * PAGE) })
            .wait()
            .unwrap();
        // It is done at some request.
        (0..40).for_each(|_| drop(read(&device)));
        let trace = world.trace();
        let image = &trace.crash_images(trace.len(), Survival::Random { seed })[0];
        let old = (0..4).filter(|page| image.read(DeviceOffset::new(page * PAGE + 1), 1)[0] == 7).count();
        done.insert(old);
    }
    let whole = [0, 4].iter().all(|old| done.contains(old));
    assert!(whole && done.len() > 2, "{done:?}");
}
