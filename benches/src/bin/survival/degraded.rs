//! Reading while devices are lost, and while one is slow.

use crate::bed::{Bed, Devices, Shape, Written};
use larder_benches::MIB;
use larder_benches::timed;
use larder_device::{Counts, Entropy, Histogram, SeededEntropy};
use larder_files::{Handle, Ops};
use larder_format::DeviceIndex;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A kind of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// 1 MiB after the other.
    Sequential,
    /// 128 KiB at random: a record.
    Large,
    /// 4 KiB at random: a record.
    Small,
}

impl Work {
    fn unit(self) -> u64 {
        match self {
            Self::Sequential => 1 << 20,
            Self::Large => 128 << 10,
            Self::Small => 4 << 10,
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Large => "128K random",
            Self::Small => "4K random",
        }
    }
}

/// A cell of a table: work, and how many threads do it.
pub type Cell = (Work, usize);

/// All cells.
pub const CELLS: [Cell; 6] = [
    (Work::Sequential, 1),
    (Work::Sequential, 4),
    (Work::Large, 1),
    (Work::Large, 4),
    (Work::Small, 1),
    (Work::Small, 4),
];

/// Speed and latencies of a cell, over all rounds.
#[derive(Debug, Clone, Default)]
pub struct Figure {
    /// MiB a second, each round.
    pub mib_per_s: Vec<f64>,
    /// Times of single reads.
    pub waits: Counts,
}

/// A table: by what is wrong with the pool, in the order of `states`.
#[derive(Debug, Clone)]
pub struct Table {
    pub shape: Shape,
    pub states: Vec<&'static str>,
    pub figures: BTreeMap<(usize, Cell), Figure>,
    /// Why the pool calls the slow device slow; `None` if it does not.
    pub told: Option<String>,
}

/// Files to read from: of large records, and of small ones.
#[derive(Debug, Clone)]
pub struct Files {
    pub large: Vec<Written>,
    pub small: Vec<Written>,
}

fn read(bed: &Bed, files: &Files, (work, threads): Cell, seconds: f64, seed: u64) -> (f64, Counts) {
    let files = if work == Work::Small { &files.small } else { &files.large };
    let waits = Histogram::default();
    let clock = bed.pool.store().clock();
    let begin = clock.monotonic();
    let unit = work.unit();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let waits = &waits;
            scope.spawn(move || {
                let rng = SeededEntropy::new(seed * 100 + thread as u64);
                let own = files[thread % files.len()];
                let mut next = rng.next_u64() % (own.bytes / unit);
                while (clock.monotonic() - begin).as_secs_f64() < seconds {
                    let (file, at) = if work == Work::Sequential {
                        next = (next + 1) % (own.bytes / unit);
                        (own, next)
                    } else {
                        let file = files[rng.next_u64() as usize % files.len()];
                        (file, rng.next_u64() % (file.bytes / unit))
                    };
                    let time = timed(|| {
                        let data = bed.mount.read(file.node, Handle(0), at * unit, unit as u32);
                        assert_eq!(data.expect("it is read").len() as u64, unit);
                    });
                    waits.record(time.as_nanos() as u64);
                }
            });
        }
    });
    let waits = waits.read();
    let took = (clock.monotonic() - begin).as_secs_f64();
    ((waits.total() * unit) as f64 / MIB as f64 / took, waits)
}

impl Table {
    fn new(shape: Shape, states: &[&'static str]) -> Self {
        Self { shape, states: states.to_vec(), figures: BTreeMap::new(), told: None }
    }

    fn measure(
        &mut self,
        bed: &Bed,
        files: &Files,
        state: usize,
        cells: &[Cell],
        seconds: f64,
        round: usize,
    ) {
        for &cell in cells {
            let (speed, waits) = read(bed, files, cell, seconds, (round * 10 + state) as u64 + 1);
            let figure = self.figures.entry((state, cell)).or_default();
            figure.mib_per_s.push(speed);
            figure.waits = figure.waits.plus(&waits);
        }
    }
}

/// With 0, 1 and 2 devices lost, in turns.
pub fn lost(bed: &Bed, shape: Shape, files: &Files, rounds: usize, seconds: f64) -> Table {
    let mut table = Table::new(shape, &["healthy", "one lost", "two lost"]);
    bed.pool.set_pool_property("memory", &(64 << 20).to_string()).expect("a property");
    for round in 0..rounds {
        // Two of raid14 that are a pair: nothing but parity has what they held.
        for lost in 0..3_u16 {
            if lost > 0 {
                bed.upkeep.devices.offline(DeviceIndex::new(lost - 1), true).expect("the layout survives it");
            }
            table.measure(bed, files, lost.into(), &CELLS, seconds, round);
        }
        bed.all_back((0..2).map(DeviceIndex::new));
    }
    table
}

/// On devices that take as long as disks do; one of them takes ten times as long, or is lost.
pub fn slow(folder: &Path, shape: Shape, mib: usize, size: u64, rounds: usize, seconds: f64) -> Table {
    const TYPICAL_MS: u64 = 2;
    // With what the disk itself takes, more than ten times as long.
    const SLOW_MS: u64 = 30;
    let mut table = Table::new(shape, &["all alike", "one ten times slower", "one lost"]);
    let bed = Bed::new(folder, shape, Devices::Faulty, size, 64 << 20);
    let files = Files { large: vec![bed.write(mib, 128)], small: vec![bed.write(mib / 8, 4)] };
    bed.settle();
    let delay = |device: usize, ms: u64| {
        let control = folder.join(format!("device-{device}.faults"));
        fs::write(control, format!("delay read ms={ms}\n")).expect("the folder can be written");
    };
    (0..shape.devices).for_each(|device| delay(device, TYPICAL_MS));
    // The pool must have seen how long reads take, before and after one gets slow.
    let warm = |seconds| drop(read(&bed, &files, (Work::Large, 4), seconds, 77));
    warm(0.5);
    // One that has what is read: the file may be small enough for the others to hold nothing but parity of it.
    let answered =
        |device: &u16| bed.pool.store().members().get(DeviceIndex::new(*device)).meter().answered();
    let slow = (0..shape.devices as u16).max_by_key(answered).expect("there are devices");
    for round in 0..rounds {
        warm(0.5);
        table.measure(&bed, &files, 0, &CELLS, seconds, round);
        delay(slow.into(), SLOW_MS);
        // One read of sixteen tries a device that owes an answer, and some dozen tell how long it takes.
        warm(4.0);
        let member = bed.pool.store().members().get(DeviceIndex::new(slow));
        table.told = member.reason().or(table.told);
        table.measure(&bed, &files, 1, &CELLS, seconds, round);
        delay(slow.into(), TYPICAL_MS);
        warm(0.5);
        bed.upkeep.devices.offline(DeviceIndex::new(slow), true).expect("the layout survives it");
        table.measure(&bed, &files, 2, &CELLS, seconds, round);
        bed.all_back(std::iter::once(DeviceIndex::new(slow)));
    }
    table
}

/// The time that so many of 1000 reads stayed below.
pub fn wait(waits: &Counts, per_mille: u64) -> Duration {
    Duration::from_nanos(waits.percentile(per_mille).unwrap_or(0))
}
