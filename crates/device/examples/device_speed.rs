//! How fast a file or block device is through this crate: `device_speed PATH [MIB]`.
//!
//! Writes MIB (default 1024) mebibytes in order, 1 MiB a request, 16 in flight, then flushes; then reads 4 KiB at random
//! places, 32 in flight. **Overwrites what PATH holds.** A regular file is grown to that size first.

use larder_device::{
    AlignedBuf, Clock, Device, Entropy, FileDevice, OpenMode, Pending, Request, SeededEntropy, SystemClock,
};
use larder_format::{ByteLen, DeviceOffset};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

const READS: u64 = 20_000;

/// Runs requests with `depth` of them in flight; the seconds that took.
fn timed(
    device: &FileDevice,
    depth: usize,
    requests: impl Iterator<Item = Request>,
) -> Result<f64, Box<dyn Error>> {
    let clock = SystemClock::new();
    let mut flying: VecDeque<Pending<_>> = VecDeque::new();
    for request in requests {
        if flying.len() == depth {
            flying.pop_front().expect("full").wait()?;
        }
        flying.push_back(device.submit(request));
    }
    for pending in flying {
        pending.wait()?;
    }
    Ok(clock.monotonic().as_secs_f64())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: device_speed PATH [MIB]")?;
    let mib: u64 = args.next().map_or(Ok(1024), |mib| mib.parse())?;
    if !std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        let file = std::fs::File::options().create(true).write(true).truncate(false).open(&path)?;
        file.set_len(mib << 20)?;
    }
    let dice = SeededEntropy::new(1);
    let mut data = AlignedBuf::zeroed(1 << 20);
    data.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&dice.next_u64().to_le_bytes()));
    let data = Arc::new(data);

    for threads in [1, 4] {
        let device = FileDevice::open_with_threads(&path, OpenMode::Exclusive, threads)?;
        let end = mib.min(device.size().get() >> 20);
        let writes = (0..end)
            .map(|i| Request::Write { offset: DeviceOffset::new(i << 20), data: Arc::clone(&data) })
            .chain([Request::Flush]);
        let write_secs = timed(&device, 16, writes)?;
        let reads = (0..READS).map(|_| Request::Read {
            offset: DeviceOffset::new(dice.next_u64() % (end << 8) * 4096),
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
    Ok(())
}
