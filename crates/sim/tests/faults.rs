//! Behaviour of a device in trouble.

use larder_device::{AlignedBuf, Device, DeviceError, Outcome, Request};
use larder_format::{ByteLen, DeviceOffset};
use larder_sim::{Counters, Fault, SimDevice, SimWorld, Survival};
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 4096;
const EIO: DeviceError = DeviceError::Io { errno: 5 };

fn device() -> (SimWorld, SimDevice) {
    let world = SimWorld::new(&[ByteLen::new(16 * PAGE)]);
    let device = world.device(0);
    (world, device)
}

fn write_request(page: u64, fill: u8) -> Request {
    let mut data = AlignedBuf::zeroed(PAGE as usize);
    data.fill(fill);
    Request::Write { offset: DeviceOffset::new(page * PAGE), data: Arc::new(data) }
}

fn write(device: &SimDevice, page: u64, fill: u8) -> Outcome {
    device.submit(write_request(page, fill)).wait()
}

fn read(device: &SimDevice, page: u64) -> Result<u8, DeviceError> {
    let request = Request::Read { offset: DeviceOffset::new(page * PAGE), len: ByteLen::new(PAGE) };
    device.submit(request).wait().map(|bytes| bytes[0])
}

fn flush(device: &SimDevice) -> Outcome {
    device.submit(Request::Flush).wait()
}

#[test]
fn a_sound_device_reads_what_was_written_before_any_flush() {
    let (_, device) = device();
    write(&device, 3, 7).unwrap();
    assert_eq!(read(&device, 3), Ok(7));
}

#[test]
fn requests_beyond_the_end_are_range_errors() {
    let (world, device) = device();
    assert_eq!(write(&device, 16, 1).unwrap_err(), DeviceError::Range);
    assert_eq!(read(&device, 16), Err(DeviceError::Range));
    let far = Request::Read { offset: DeviceOffset::new(u64::MAX - 4095), len: ByteLen::new(PAGE) };
    assert_eq!(device.submit(far).wait().unwrap_err(), DeviceError::Range);
    assert!(world.trace().is_empty());
}

#[test]
fn bad_sectors_fail_the_reads_that_touch_them() {
    let (_, device) = device();
    device.inject(Fault::FailReads(2 * PAGE + 512..2 * PAGE + 1024));
    assert_eq!(read(&device, 2), Err(EIO));
    assert_eq!((read(&device, 1), read(&device, 3)), (Ok(0), Ok(0)));
    device.clear_faults();
    assert_eq!(read(&device, 2), Ok(0));
}

#[test]
fn a_failed_write_changes_nothing() {
    let (world, device) = device();
    device.inject(Fault::FailWrites(0..u64::MAX));
    assert_eq!(write(&device, 0, 1).unwrap_err(), EIO);
    assert_eq!(read(&device, 0), Ok(0));
    assert!(world.trace().is_empty());
}

#[test]
fn a_failed_flush_is_final_and_what_it_lost_no_later_one_brings() {
    let lost = (0..64).filter(|seed| {
        let (world, device) = device();
        (0..*seed).for_each(|mark| world.mark(mark));
        write(&device, 0, 1).unwrap();
        device.inject_window(Fault::FailFlushes, 0, 1);
        assert_eq!(flush(&device).unwrap_err(), EIO);
        assert_eq!(flush(&device).unwrap_err(), EIO, "a flush that failed is final");
        device.forgive();
        flush(&device).unwrap();
        write(&device, 1, 2).unwrap();
        flush(&device).unwrap();
        let images = world.trace().crash_images(world.trace().len(), Survival::KeepAll);
        assert_eq!(images[0].read(DeviceOffset::new(4096), 1)[0], 2);
        images[0].read(DeviceOffset::new(0), 1)[0] == 0
    });
    let lost = lost.count();
    assert!((8..56).contains(&lost), "{lost} of 64");
}

#[test]
fn a_device_that_is_gone_refuses_everything() {
    let (_, device) = device();
    device.inject(Fault::Gone);
    assert_eq!(read(&device, 0), Err(DeviceError::Gone));
    assert_eq!(write(&device, 0, 1).unwrap_err(), DeviceError::Gone);
    assert_eq!(flush(&device).unwrap_err(), DeviceError::Gone);
}

#[test]
fn a_hung_device_answers_late_and_in_order_when_it_resumes() {
    let (world, device) = device();
    device.inject(Fault::Hang);
    let first = device.submit(write_request(0, 1));
    let second = device.submit(write_request(0, 2));
    let Err(first) = first.wait_for(Duration::from_millis(1)) else { panic!("it hangs") };
    assert!(world.trace().is_empty());
    device.resume();
    first.wait().unwrap();
    second.wait().unwrap();
    assert_eq!(read(&device, 0), Ok(2));
}

#[test]
fn lost_writes_are_acknowledged_and_forgotten() {
    let (_, device) = device();
    device.inject(Fault::LoseWrites(PAGE..2 * PAGE));
    write(&device, 0, 1).unwrap();
    write(&device, 1, 1).unwrap();
    assert_eq!((read(&device, 0), read(&device, 1)), (Ok(1), Ok(0)));
}

#[test]
fn misdirected_writes_land_elsewhere_as_far_as_they_fit() {
    let (_, device) = device();
    let to = DeviceOffset::new(9 * PAGE);
    device.inject_window(Fault::MisdirectWrites { from: 0..PAGE, to }, 0, 1);
    let beyond = DeviceOffset::new(16 * PAGE);
    device.inject(Fault::MisdirectWrites { from: PAGE..2 * PAGE, to: beyond });
    write(&device, 0, 1).unwrap();
    write(&device, 1, 2).unwrap();
    assert_eq!((read(&device, 0), read(&device, 9), read(&device, 1)), (Ok(0), Ok(1), Ok(0)));
    write(&device, 0, 3).unwrap();
    assert_eq!(read(&device, 0), Ok(3));
}

#[test]
fn a_lying_flush_makes_nothing_durable_and_one_flush_can_be_picked() {
    let (world, device) = device();
    device.inject_window(Fault::LieOnFlush, 1, 1);
    for page in 0..3 {
        write(&device, page, 1).unwrap();
        flush(&device).unwrap();
    }
    let trace = world.trace();
    assert_eq!(trace.len(), 5, "the second flush left no event");
    let after_second = trace.crash_images(3, Survival::DropAll);
    let there = |page: u64| after_second[0].read(DeviceOffset::new(page * PAGE), 1)[0] == 1;
    assert!(there(0) && !there(1));
}

#[test]
fn stale_reads_give_what_was_there_when_the_fault_began() {
    let (_, device) = device();
    write(&device, 0, 1).unwrap();
    device.inject(Fault::StaleReads(0..PAGE));
    write(&device, 0, 2).unwrap();
    write(&device, 1, 2).unwrap();
    assert_eq!((read(&device, 0), read(&device, 1)), (Ok(1), Ok(2)));
    device.clear_faults();
    assert_eq!(read(&device, 0), Ok(2));
}

#[test]
fn the_same_seed_rots_the_same_bits() {
    let ((_, a), (_, b)) = (device(), device());
    a.flip_bits(DeviceOffset::new(10), 5000, 4);
    b.flip_bits(DeviceOffset::new(10), 5000, 4);
    assert_eq!(a.image(), b.image());
    b.flip_bits(DeviceOffset::new(10), 5000, 5);
    assert_ne!(a.image(), b.image());
}

#[test]
fn counters_count_requests_and_bytes() {
    let (_, device) = device();
    write(&device, 0, 1).unwrap();
    read(&device, 0).unwrap();
    read(&device, 99).unwrap_err();
    flush(&device).unwrap();
    let expected = Counters {
        reads: 2,
        writes: 1,
        flushes: 1,
        bytes_read: 2 * PAGE,
        bytes_written: PAGE,
        bytes_discarded: 0,
    };
    assert_eq!(device.counters(), expected);
    device.reset_counters();
    assert_eq!(device.counters(), Counters::default());
}

#[test]
#[should_panic(expected = "unaligned")]
fn unaligned_requests_are_bugs() {
    let (_, device) = device();
    drop(device.submit(Request::Read { offset: DeviceOffset::new(512), len: ByteLen::new(PAGE) }));
}

#[test]
fn a_torn_write_is_acknowledged_and_lands_in_part() {
    for (seed, pages) in (0..50).flat_map(|seed| [1, 3].map(|pages| (seed, pages))) {
        let (_, device) = device();
        device.inject(Fault::TearWrites { range: 0..u64::MAX, seed });
        let mut data = AlignedBuf::zeroed(pages * PAGE as usize);
        data.fill(9);
        let request = Request::Write { offset: DeviceOffset::new(PAGE), data: Arc::new(data) };
        device.submit(request).wait().unwrap();
        let bytes = device.image().read(DeviceOffset::new(PAGE), pages * PAGE as usize);
        let landed = bytes.chunks(512).filter(|sector| sector.iter().all(|byte| *byte == 9)).count();
        let lost = bytes.chunks(512).filter(|sector| sector.iter().all(|byte| *byte == 0)).count();
        assert!(landed > 0 && lost > 0 && landed + lost == pages * 8, "seed {seed}");
    }
}

#[test]
fn swapped_media_show_what_they_held_and_no_cut_brings_back_what_was_there() {
    let (world, device) = device();
    write(&device, 1, 1).unwrap();
    flush(&device).unwrap();
    let old = device.image();
    write(&device, 1, 2).unwrap();
    flush(&device).unwrap();
    write(&device, 2, 2).unwrap();
    device.swap_media(old.clone());
    assert_eq!((read(&device, 1), read(&device, 2)), (Ok(1), Ok(0)));
    let trace = world.trace();
    for survival in [Survival::KeepAll, Survival::DropAll, Survival::Random { seed: 3 }] {
        assert_eq!(trace.crash_images(trace.len(), survival), std::slice::from_ref(&old));
    }
    device.swap_media(old.resized(ByteLen::new(2 * PAGE)));
    assert_eq!(read(&device, 2), Err(DeviceError::Range));
}
