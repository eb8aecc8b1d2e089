//! Speeds of disks. [`measure`] only reads; [`in_turn`] writes files without names in a folder that somebody gave for
//! that.

use crate::api::{ApiError, ErrorKind, Result};
use larder_device::{
    AlignedBuf, Clock, Device, Entropy, FileDevice, OpenMode, Request, SystemClock, SystemEntropy, TIMEOUT,
};
use larder_format::{ByteLen, DeviceOffset};
use larder_plan::Measured;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

/// Bytes of a read of a stream, and reads that are under way together.
const PIECE: u64 = 1 << 20;
const DEPTH: usize = 4;
/// Bytes of a stream at most, and its time.
const STREAM: u64 = 1 << 30;
const STREAM_TIME: Duration = Duration::from_millis(1500);
/// The time of reads at random.
const RANDOM_TIME: Duration = Duration::from_millis(1500);
/// Bytes of each of the two files that are read and written in turn, and the time.
const SCRATCH: u64 = 512 << 20;
const TURNS_TIME: Duration = Duration::from_secs(8);

/// Reads a disk: streams at both ends, small parts at random. Takes six seconds.
///
/// # Errors
/// When it cannot be opened or read.
pub fn measure(path: &str) -> Result<Measured> {
    let device = FileDevice::open_with_threads(path, OpenMode::Probe, DEPTH)?;
    let size = device.size().get() / PIECE * PIECE;
    let clock = SystemClock::new();
    let stream = |from: u64| {
        let began = clock.monotonic();
        let (mut asked, mut read, mut under_way) = (0, 0, VecDeque::new());
        let most = STREAM.min(size - from);
        while read < most && clock.monotonic() - began < STREAM_TIME || !under_way.is_empty() {
            let more = asked < most && clock.monotonic() - began < STREAM_TIME;
            if more && under_way.len() < DEPTH {
                let offset = DeviceOffset::new(from + asked);
                under_way.push_back(device.submit(Request::Read { offset, len: ByteLen::new(PIECE) }));
                asked += PIECE;
            } else if let Some(first) = under_way.pop_front() {
                first.within(TIMEOUT).map_err(|error| failed(path, &error))?;
                read += PIECE;
            }
        }
        Ok::<_, ApiError>(read as f64 / (clock.monotonic() - began).as_secs_f64().max(1e-9))
    };
    let random = |len: u64| {
        let (began, mut count) = (clock.monotonic(), 0.0);
        while clock.monotonic() - began < RANDOM_TIME {
            let offset = DeviceOffset::new(SystemEntropy.next_u64() % (size / len) * len);
            let read = device.submit(Request::Read { offset, len: ByteLen::new(len) });
            read.within(TIMEOUT).map_err(|error| failed(path, &error))?;
            count += 1.0;
        }
        Ok::<_, ApiError>(count / (clock.monotonic() - began).as_secs_f64())
    };
    Ok(Measured {
        stream_first: stream(0)?,
        stream_last: stream(size.saturating_sub(STREAM) / PIECE * PIECE)?,
        reads_4k: random(4 << 10)?,
        reads_128k: random(128 << 10)?,
    })
}

fn failed(path: &str, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorKind::Device, format!("cannot measure {path}: {error}"))
}

/// Bytes a second, both together, of a stream that is read and one that is written in turn, a MiB each, of two files
/// without names in `folder`, past the page cache. Takes 1 GiB there, and some ten seconds.
///
/// # Errors
/// When there is no such folder, or its file system cannot do that.
pub fn in_turn(folder: &Path) -> Result<f64> {
    let shown = folder.display().to_string();
    let unable = |errno: Errno| {
        let error = failed(&shown, &errno);
        match errno {
            Errno::NOTSUP | Errno::INVAL => {
                error.hint("its file system has no direct I/O: name a folder on the disk itself")
            }
            Errno::NOSPC => error.hint("1 GiB is needed there"),
            _ => error,
        }
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let open = || rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).map_err(unable);
    let (source, target) = (open()?, open()?);
    let mut bytes = AlignedBuf::zeroed(PIECE as usize);
    // Zeros, or one word again and again, might be stored as less.
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&SystemEntropy.next_u64().to_le_bytes()));
    for at in (0..SCRATCH).step_by(PIECE as usize) {
        write(&source, at, &bytes).map_err(unable)?;
    }
    rustix::fs::fdatasync(&source).map_err(unable)?;
    let clock = SystemClock::new();
    let mut read = AlignedBuf::zeroed(PIECE as usize);
    let (began, mut moved) = (clock.monotonic(), 0);
    for at in (0..SCRATCH).step_by(PIECE as usize) {
        let got = retry_on_intr(|| rustix::io::pread(&source, &mut read[..], at)).map_err(unable)?;
        write(&target, at, &bytes).map_err(unable)?;
        moved += got as u64 + PIECE;
        if clock.monotonic() - began > TURNS_TIME {
            break;
        }
    }
    rustix::fs::fdatasync(&target).map_err(unable)?;
    Ok(moved as f64 / (clock.monotonic() - began).as_secs_f64())
}

fn write(file: &impl rustix::fd::AsFd, at: u64, bytes: &[u8]) -> std::result::Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match retry_on_intr(|| rustix::io::pwrite(file, &bytes[done..], at + done as u64))? {
            0 => return Err(Errno::IO),
            put => done += put,
        }
    }
    Ok(())
}
