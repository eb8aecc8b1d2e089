//! A cell: a new file system, filled, and overwritten until enough was written or time is over.

use crate::cell::{Cell, Unit};
use larder_benches::MIB;
use larder_benches::daemon::pause;
use larder_benches::pattern::Picker;
use larder_benches::peer::{Bed, Peer, Site};
use larder_benches::usage;
use larder_device::{Clock, Counts, Histogram, SystemClock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

/// Sizes and limits of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Amounts {
    /// Bytes of each pool.
    pub pool: u64,
    /// Bytes overwritten, as a multiple of that.
    pub times: f64,
    /// The same, for Larder in the cell that has targets.
    pub target_times: f64,
    /// The longest that overwriting may take, except in that cell.
    pub cap: Duration,
    /// Overwritten between two fsyncs, bytes.
    pub sync: usize,
    /// Of the random numbers.
    pub seed: u64,
}

/// Size of a pool with room, as a multiple of the full pool's.
const ROOM: u64 = 8;
/// Bytes overwritten in it at most, as a part of the full pool's size: pages take whole records.
const ROOM_TIMES: [(Unit, f64); 3] = [(Unit::Page, 0.25), (Unit::Record, 0.5), (Unit::File, 0.5)];
/// The length of a sample.
const WINDOW: Duration = Duration::from_millis(500);
/// Refusals in a row that end a cell.
const REFUSALS: u64 = 200;

/// Waits of one kind of call, microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Waits {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// A window of time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    /// Its end, seconds since overwriting began.
    pub seconds: f64,
    /// Overwritten until then, bytes.
    pub written: u64,
    /// Written to the device until then, bytes.
    pub device: u64,
    /// Single overwrites in it.
    pub write: Waits,
    /// fsyncs in it.
    pub sync: Waits,
}

/// Figures of a cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Filling, bytes a second.
    pub fill_rate: f64,
    /// The pool's size, bytes.
    pub pool: u64,
    /// Windows; the last ends with a commit.
    pub samples: Vec<Sample>,
    /// All overwrites.
    pub write: Waits,
    /// All fsyncs.
    pub sync: Waits,
    /// Processor seconds for them, of the program, the daemon and the kernel.
    pub processor: f64,
    /// The part of the machine that others took meanwhile.
    pub others: f64,
    /// Overwrites that were refused with ENOSPC.
    pub refused: u64,
    /// Why it ended early, if it did.
    pub cut: Option<String>,
}

impl Outcome {
    /// Bytes overwritten.
    pub fn written(&self) -> u64 {
        self.samples.last().map_or(0, |sample| sample.written)
    }

    /// Bytes a second in the second half of what was overwritten: by then the pool is as old as it gets.
    pub fn rate(&self) -> f64 {
        // After that everything was refused.
        let Some(last) = self.samples.iter().find(|sample| sample.written == self.written()) else {
            return 0.0;
        };
        let half = self.samples.iter().rfind(|sample| sample.written <= last.written / 2);
        let (seconds, written) = half.map_or((0.0, 0), |half| (half.seconds, half.written));
        (last.written - written) as f64 / (last.seconds - seconds)
    }

    /// Processor seconds, a GiB that was overwritten.
    pub fn processor_per_gib(&self) -> f64 {
        self.processor * (1 << 30) as f64 / self.written() as f64
    }

    /// Write amplification: bytes written to the device, a byte that was overwritten.
    pub fn amplification(&self) -> f64 {
        self.samples.last().map_or(f64::NAN, |last| last.device as f64 / last.written as f64)
    }
}

/// Calls and their waits, in windows.
struct Watch {
    clock: SystemClock,
    waits: Histogram,
    counted: Counts,
    longest: u64,
    longest_ever: u64,
}

impl Watch {
    fn new() -> Self {
        Self {
            clock: SystemClock::new(),
            waits: Histogram::default(),
            counted: Counts::default(),
            longest: 0,
            longest_ever: 0,
        }
    }

    fn time<T>(&mut self, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let begin = self.clock.monotonic();
        let done = call();
        let ns = (self.clock.monotonic() - begin).as_nanos() as u64;
        self.waits.record(ns);
        self.longest = self.longest.max(ns);
        done
    }

    fn window(&mut self) -> Waits {
        let counts = self.waits.read();
        let waits = told(&counts.since(&self.counted), self.longest);
        self.counted = counts;
        self.longest_ever = self.longest_ever.max(self.longest);
        self.longest = 0;
        waits
    }

    fn all(&self) -> Waits {
        told(&self.waits.read(), self.longest_ever.max(self.longest))
    }
}

fn told(counts: &Counts, longest: u64) -> Waits {
    let us = |per_mille| counts.percentile(per_mille).unwrap_or(0) / 1000;
    Waits { p50: us(500), p99: us(990).min(longest / 1000), max: longest / 1000 }
}

/// The data that is overwritten: one file, or many.
struct Data {
    unit: Unit,
    file: Option<File>,
    folder: PathBuf,
    pieces: usize,
}

impl Data {
    /// Writes `bytes` of it.
    fn fill(bed: &Bed, unit: Unit, bytes: u64, content: &[u8]) -> Self {
        let folder = bed.path().to_owned();
        let mib = (bytes / MIB as u64) as usize;
        let block = |n: usize| &content[n * 8 % (content.len() - MIB)..][..MIB];
        let mut data = Self { unit, file: None, folder, pieces: mib * MIB / unit.bytes() };
        if unit == Unit::File {
            for n in 0..mib {
                fs::write(data.path(n), block(n)).expect("a file fits");
            }
        } else {
            let file = File::create(data.folder.join("data")).expect("a file can be made");
            for n in 0..mib {
                file.write_all_at(block(n), (n * MIB) as u64).expect("it fits");
            }
            file.sync_all().expect("it can be synced");
            data.file = Some(file);
        }
        data
    }

    fn path(&self, n: usize) -> PathBuf {
        self.folder.join(format!("file{n:05}"))
    }

    /// Overwrites a piece; gives the file that it is in.
    fn overwrite(&self, piece: usize, bytes: &[u8]) -> io::Result<Option<File>> {
        match &self.file {
            Some(file) => file.write_all_at(bytes, (piece * self.unit.bytes()) as u64).map(|()| None),
            None => {
                let file = OpenOptions::new().write(true).truncate(true).open(self.path(piece))?;
                file.write_all_at(bytes, 0)?;
                Ok(Some(file))
            }
        }
    }
}

/// Measures one cell of one peer.
pub fn measure(cell: Cell, peer: Peer, site: &Site, amounts: &Amounts, content: &[u8]) -> Outcome {
    let room = if cell.fill.is_none() { ROOM } else { 1 };
    let site = Site {
        folder: site.folder.clone(),
        larder: site.larder.clone(),
        bytes: amounts.pool * room,
        metered: true,
    };
    let bed = Bed::new(peer, &site);
    bed.set("recordsize", cell.unit.record_size());
    let available =
        rustix::fs::statvfs(bed.path()).map(|stat| stat.f_bavail * stat.f_frsize).expect("it is mounted");
    let bytes = available / room * u64::from(cell.fill.unwrap_or(80)) / 100;
    let clock = SystemClock::new();
    let data = Data::fill(&bed, cell.unit, bytes, content);
    bed.settle();
    let fill_rate = bytes as f64 / clock.monotonic().as_secs_f64();

    let with_room = ROOM_TIMES.iter().find(|(unit, _)| *unit == cell.unit).expect("all are there").1;
    let long = cell == Cell::TARGET && peer.is_larder();
    let times = match cell.fill {
        None => with_room.min(amounts.times),
        Some(_) if long => amounts.target_times,
        Some(_) => amounts.times,
    };
    let total = (amounts.pool as f64 * times) as u64;
    let cap =
        if long { amounts.cap.mul_f64((amounts.target_times / amounts.times).max(1.0)) } else { amounts.cap };
    let picker = Picker::new(cell.pattern(), data.pieces, amounts.seed);
    let ((samples, writes, syncs, end), usage) =
        usage::of(bed.daemon(), || overwrite(&bed, &data, &picker, content, (total, cap, amounts.sync)));
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    Outcome {
        fill_rate,
        pool: amounts.pool,
        samples,
        write: writes.all(),
        sync: syncs.all(),
        processor: usage.cpu().as_secs_f64(),
        others: usage.others.as_secs_f64() / usage.wall.as_secs_f64() / cores,
        refused: end.refused,
        cut: end.cut,
    }
}

/// Overwrites refused with ENOSPC, and why overwriting ended early, if it did.
#[derive(Default)]
struct End {
    refused: u64,
    cut: Option<String>,
}

/// Overwrites until `total` bytes were, or for `cap`, with an fsync every `sync` bytes.
fn overwrite(
    bed: &Bed,
    data: &Data,
    picker: &Picker,
    content: &[u8],
    (total, cap, sync): (u64, Duration, usize),
) -> (Vec<Sample>, Watch, Watch, End) {
    let (mut writes, mut syncs, mut end) = (Watch::new(), Watch::new(), End::default());
    let (mut samples, mut last) = (Vec::new(), Duration::ZERO);
    let (mut written, mut unsynced, mut refused_in_a_row) = (0, 0, 0);
    let clock = SystemClock::new();
    let before = bed.written();
    let mut sample = |writes: &mut Watch, syncs: &mut Watch, written| {
        let (seconds, device) = (clock.monotonic().as_secs_f64(), bed.written() - before);
        samples.push(Sample { seconds, written, device, write: writes.window(), sync: syncs.window() });
    };
    for n in 0_usize.. {
        if written >= total || end.cut.is_some() {
            break;
        }
        let bytes = &content[n * 4096 % (content.len() - MIB)..][..data.unit.bytes()];
        let piece = picker.pick();
        let mut outcome = writes.time(|| data.overwrite(piece, bytes));
        if let Ok(file) = &outcome {
            written += bytes.len() as u64;
            unsynced += bytes.len();
            if unsynced >= sync {
                unsynced = 0;
                let file =
                    file.as_ref().or(data.file.as_ref()).expect("either there is one, or there are many");
                if let Err(error) = syncs.time(|| file.sync_data()) {
                    outcome = Err(error);
                }
            }
        }
        match outcome {
            Ok(_) => refused_in_a_row = 0,
            Err(error) if error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) => {
                (end.refused, refused_in_a_row) = (end.refused + 1, refused_in_a_row + 1);
                if refused_in_a_row >= REFUSALS {
                    end.cut = Some("for lack of space".to_owned());
                }
                // Leaves time to free space in the background.
                pause(Duration::from_millis(20));
            }
            Err(error) => end.cut = Some(error.to_string()),
        }
        let now = clock.monotonic();
        if now - last >= WINDOW {
            sample(&mut writes, &mut syncs, written);
            last = now;
        }
        if now >= cap && written < total && end.cut.is_none() {
            end.cut = Some(format!("after {} s", cap.as_secs()));
        }
    }
    bed.settle();
    sample(&mut writes, &mut syncs, written);
    (samples, writes, syncs, end)
}
