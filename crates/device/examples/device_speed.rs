//! Speed of a file or block device through this crate: `device_speed PATH [MIB]`.
//!
//! Writes MIB (default 1024) mebibytes in order, 1 MiB a request, 16 in flight, then flushes; then reads 4 KiB at
//! random places, 32 in flight. Then it reads one request at a time, three ways side by side: by `pread`, which
//! cannot be limited; by [`Device::perform`], which can; and by the queue's threads. At last it makes small writes
//! durable, one after the other, the same three ways. **Overwrites what PATH holds.** A regular file is grown to that
//! size first.

use larder_device::{
    AlignedBuf, Clock, Device, Entropy, FileDevice, OpenMode, Pending, Request, SeededEntropy, SystemClock,
    TIMEOUT,
};
use larder_format::{ByteLen, DeviceOffset};
use rustix::fs::{Mode, OFlags};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

const READS: u64 = 20_000;
/// Single reads go one way after the other, this often.
const ROUNDS: usize = 10;

/// Runs requests with `depth` of them in flight; the seconds that took.
fn timed(
    device: &FileDevice,
    depth: usize,
    requests: impl Iterator<Item = Request>,
) -> Result<f64, Box<dyn Error>> {
    let clock = SystemClock::new();
    let mut in_flight: VecDeque<Pending<_>> = VecDeque::new();
    for request in requests {
        if in_flight.len() == depth {
            in_flight.pop_front().expect("full").wait()?;
        }
        in_flight.push_back(device.submit(request));
    }
    for pending in in_flight {
        pending.wait()?;
    }
    Ok(clock.monotonic().as_secs_f64())
}

/// Reads a second, one at a time, of `len` bytes: by `pread`, by `perform`, by the queue.
fn single(
    path: &str,
    device: &FileDevice,
    count: usize,
    len: usize,
    place: impl Fn() -> DeviceOffset,
) -> Result<[f64; 3], Box<dyn Error>> {
    let flags = if device.is_direct() { OFlags::DIRECT } else { OFlags::empty() };
    let fd = rustix::fs::open(path, flags | OFlags::RDONLY, Mode::empty())?;
    let mut seconds = [0.0; 3];
    for _ in 0..ROUNDS {
        for (way, seconds) in seconds.iter_mut().enumerate() {
            let clock = SystemClock::new();
            for _ in 0..count / ROUNDS {
                let offset = place();
                let request = Request::Read { offset, len: ByteLen::new(len as u64) };
                match way {
                    0 => {
                        let mut bytes = AlignedBuf::stale(len);
                        assert_eq!(rustix::io::pread(&fd, &mut bytes[..], offset.get())?, len);
                    }
                    1 => match device.perform(request, TIMEOUT) {
                        Ok(outcome) => drop(outcome?),
                        Err(_) => return Err("a read took too long".into()),
                    },
                    _ => drop(device.submit(request).wait()?),
                }
            }
            *seconds += clock.monotonic().as_secs_f64();
        }
    }
    Ok(seconds.map(|seconds| count as f64 / seconds))
}

/// Writes of 8 KiB with a flush a second, one at a time: by `pwrite` and `fdatasync`, by [`Device::start`], by the
/// queue.
fn durable(
    path: &str,
    device: &FileDevice,
    count: usize,
    place: impl Fn() -> DeviceOffset,
) -> Result<[f64; 3], Box<dyn Error>> {
    let flags = if device.is_direct() { OFlags::DIRECT } else { OFlags::empty() };
    let fd = rustix::fs::open(path, flags | OFlags::RDWR, Mode::empty())?;
    let data = Arc::new(AlignedBuf::zeroed(8 << 10));
    let mut seconds = [0.0; 3];
    for _ in 0..ROUNDS {
        for (way, seconds) in seconds.iter_mut().enumerate() {
            let clock = SystemClock::new();
            for _ in 0..count / ROUNDS {
                let offset = place();
                let write = Request::Write { offset, data: Arc::clone(&data) };
                match way {
                    0 => {
                        assert_eq!(rustix::io::pwrite(&fd, &data, offset.get())?, data.len());
                        rustix::fs::fdatasync(&fd)?;
                    }
                    1 => {
                        device.start(write).wait()?;
                        device.start(Request::Flush).wait()?;
                    }
                    _ => {
                        device.submit(write).wait()?;
                        device.submit(Request::Flush).wait()?;
                    }
                }
            }
            *seconds += clock.monotonic().as_secs_f64();
        }
    }
    Ok(seconds.map(|seconds| count as f64 / seconds))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: device_speed PATH [MIB]")?;
    let mib: u64 = args.next().map_or(Ok(1024), |mib| mib.parse())?;
    if !std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        let file = std::fs::File::options().create(true).write(true).truncate(false).open(&path)?;
        file.set_len(mib << 20)?;
    }
    let rng = SeededEntropy::new(1);
    let data = Arc::new(AlignedBuf::padded(&rng.bytes(1 << 20)));

    for threads in [1, 4] {
        let device = FileDevice::open_with_threads(&path, OpenMode::Exclusive, threads)?;
        let end = mib.min(device.size().get() >> 20);
        let writes = (0..end)
            .map(|i| Request::Write { offset: DeviceOffset::new(i << 20), data: Arc::clone(&data) })
            .chain([Request::Flush]);
        let write_secs = timed(&device, 16, writes)?;
        let reads = (0..READS).map(|_| Request::Read {
            offset: DeviceOffset::new(rng.next_u64() % (end << 8) * 4096),
            len: ByteLen::new(4096),
        });
        let read_secs = timed(&device, 32, reads)?;
        println!(
            "{threads} threads, direct {}: 1 MiB writes {:.0} MiB/s, random 4 KiB reads {:.0} a second",
            device.is_direct(),
            end as f64 / write_secs,
            READS as f64 / read_secs,
        );
    }

    let device = FileDevice::open(&path, OpenMode::Exclusive)?;
    let end = mib.min(device.size().get() >> 20);
    println!("one at a time, a second   by pread     perform              queue");
    for (name, count, len) in [("read 4 KiB", 40_000, 4 << 10), ("read 128 KiB", 10_000, 128 << 10)] {
        let random = || DeviceOffset::new(rng.next_u64() % ((end << 20) / len) * len);
        let [pread, perform, queue] = single(&path, &device, count, len as usize, random)?;
        let (by_perform, by_queue) = (perform / pread, queue / pread);
        println!("{name:22} {pread:11.0} {perform:11.0} {by_perform:.2}x {queue:12.0} {by_queue:.2}x");
    }
    let random = || DeviceOffset::new(rng.next_u64() % (end << 7) * (8 << 10));
    let [own, start, queue] = durable(&path, &device, 4000, random)?;
    let (by_start, by_queue) = (start / own, queue / own);
    println!(
        "{:22} {own:11.0} {start:11.0} {by_start:.2}x {queue:12.0} {by_queue:.2}x",
        "write 8 KiB and flush"
    );
    Ok(())
}
