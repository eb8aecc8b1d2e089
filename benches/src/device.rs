//! Speed of a plain file in a folder: the measure of everything that is stored in that folder.

use crate::content::Content;
use crate::{Latencies, MIB, mb_per_s, timed};
use larder_device::{
    AlignedBuf, Device, Entropy, FileDevice, OpenMode, Outcome, Pending, Request, SeededEntropy,
};
use larder_format::{ByteLen, DeviceOffset};
use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Requests in flight.
const DEPTH: usize = 16;

/// A device's speed.
#[derive(Debug, Clone)]
pub struct DeviceSpeed {
    /// Writing in order, MB/s, a flush at the end.
    pub write: f64,
    /// Reading in order, MB/s.
    pub read: f64,
    /// Reading 4 KiB at random places, one after another.
    pub random: Latencies,
    /// Writing 4 KiB and flushing.
    pub sync: Latencies,
}

/// Makes a sparse file.
pub fn sparse_file(path: &Path, bytes: u64) {
    fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("a file of this size can be made");
}

/// State of a new file's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// Holes: the file system finds room for each write, one after the other.
    Holes,
    /// Written before, as far as it will be written: as on a disk, nothing has to be found.
    Written,
}

impl Ground {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holes => "sparse",
            Self::Written => "written before",
        }
    }

    /// Makes a file of `bytes`, of which the first `end` will be written.
    pub fn make(self, path: &Path, bytes: u64, end: u64) {
        sparse_file(path, bytes);
        if self == Self::Written {
            let device = FileDevice::open(path, OpenMode::Exclusive).expect("the file can be used");
            // Not zeros: a layer below may turn those into holes.
            write_all(&device, &Content::Random.bytes(MIB), end.min(bytes).div_ceil(MIB as u64) as usize);
        }
    }
}

/// Performs requests with [`DEPTH`] of them in flight.
pub fn perform(device: &FileDevice, requests: impl Iterator<Item = Request>) {
    let done = |pending: Pending<Outcome>| drop(pending.wait().expect("the device works"));
    let mut in_flight: VecDeque<Pending<Outcome>> = VecDeque::new();
    for request in requests {
        if in_flight.len() == DEPTH {
            done(in_flight.pop_front().expect("full"));
        }
        in_flight.push_back(device.submit(request));
    }
    in_flight.into_iter().for_each(done);
}

/// Writes `content` over and over in 1 MiB requests until `mib` are written, and flushes.
pub fn write_all(device: &FileDevice, content: &[u8], mib: usize) {
    let blocks: Vec<_> = content.chunks_exact(MIB).map(|block| Arc::new(AlignedBuf::padded(block))).collect();
    let writes = (0..mib).zip(blocks.iter().cycle()).map(|(i, data)| Request::Write {
        offset: DeviceOffset::new((i * MIB) as u64),
        data: Arc::clone(data),
    });
    perform(device, writes);
    perform(device, [Request::Flush].into_iter());
}

/// Measures a new file in `folder`, of `mib` mebibytes, which is removed again.
pub fn measure(folder: &Path, content: &[u8], mib: usize, operations: usize) -> DeviceSpeed {
    let path = folder.join("device-speed");
    sparse_file(&path, (mib * MIB) as u64);
    let device = FileDevice::open(&path, OpenMode::Exclusive).expect("the file can be used");
    let one = |request| drop(device.submit(request).wait().expect("the device works"));
    let rng = SeededEntropy::new(3);
    let place = || DeviceOffset::new(rng.next_u64() % (mib * MIB / 4096) as u64 * 4096);
    let page = Arc::new(AlignedBuf::padded(&content[..4096]));
    let write = timed(|| write_all(&device, content, mib));
    let reads = (0..mib).map(|i| Request::Read {
        offset: DeviceOffset::new((i * MIB) as u64),
        len: ByteLen::new(MIB as u64),
    });
    let read = timed(|| perform(&device, reads));
    let random =
        Latencies::of(operations, |_| one(Request::Read { offset: place(), len: ByteLen::new(4096) }));
    let sync = Latencies::of(operations, |i| {
        one(Request::Write { offset: DeviceOffset::new(i as u64 * 4096), data: Arc::clone(&page) });
        one(Request::Flush);
    });
    drop(device);
    fs::remove_file(&path).expect("our own file");
    DeviceSpeed { write: mb_per_s(mib * MIB, write), read: mb_per_s(mib * MIB, read), random, sync }
}
