//! Resilver and scrub beside fio, and a resilver beside readers and writers.

use crate::bed::{Bed, Shape, Written};
use larder_benches::device::Ground;
use larder_benches::process::{children_cpu_time, cpu_time};
use larder_benches::tape::{Entry, Kind, bytes, bytes_by_file, replay, rest};
use larder_benches::{MIB, timed};
use larder_device::{Counts, Entropy, Histogram, SeededEntropy};
use larder_files::{Handle, Ops};
use larder_format::DeviceIndex;
use larder_upkeep::ScrubSince;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The device that is lost: of raid14 one of a pair.
const LOST: DeviceIndex = DeviceIndex::new(1);
/// Bytes of a step at full speed, about what the daemon takes while nobody else uses the pool.
const STEP: u64 = 256 << 20;

/// The same requests by the pool and by fio, a pair a round.
#[derive(Debug, Clone, Default)]
pub struct Rounds {
    /// Bytes read and written.
    pub bytes: u64,
    /// Seconds of the pool.
    pub ours: Vec<f64>,
    /// Seconds of fio.
    pub fio: Vec<f64>,
    /// Processor seconds of each, user and kernel.
    pub cpu: (Vec<f64>, Vec<f64>),
}

/// Figures of resilvers.
#[derive(Debug, Clone)]
pub struct Resilver {
    pub shape: Shape,
    pub ground: Ground,
    pub rounds: Rounds,
    /// Bytes of a device, of segments on it, and of what is alive in them.
    pub size: u64,
    pub held: u64,
    pub alive: u64,
    /// Bytes written to the new device.
    pub written: u64,
    /// Bytes read, by device, greatest first.
    pub read: Vec<u64>,
    /// Bytes of a read and of a write, on the average.
    pub request: (u64, u64),
}

/// Figures of scrubs.
#[derive(Debug, Clone)]
pub struct Scrub {
    pub shape: Shape,
    pub rounds: Rounds,
}

/// Figures of a reader and writer beside a resilver.
#[derive(Debug, Clone)]
pub struct Beside {
    pub what: &'static str,
    pub seconds: f64,
    pub bytes: u64,
    pub reads: Counts,
    pub writes: Counts,
    /// Bytes a second of the new device.
    pub rebuilt: f64,
}

/// The pool first in even rounds, fio first in odd ones, so that what the first leaves in caches helps both alike.
/// fio makes the requests of the pool's first round, which comes before all others.
fn rounds(
    bed: &Bed,
    ground: Ground,
    count: usize,
    mut ours: impl FnMut(usize, &dyn Fn() -> f64) -> (Duration, Vec<Entry>, f64),
) -> (Rounds, Vec<Entry>) {
    let mut rounds = Rounds::default();
    let own = || cpu_time(std::process::id()).expect("this process").as_secs_f64();
    let mut pool = |rounds: &mut Rounds, round| {
        let (time, entries, cpu) = ours(round, &own);
        rounds.ours.push(time.as_secs_f64());
        rounds.cpu.0.push(cpu);
        entries
    };
    let entries = pool(&mut rounds, 0);
    rounds.bytes = bytes(&entries, Kind::Read) + bytes(&entries, Kind::Write);
    let fio = |rounds: &mut Rounds| {
        let before = children_cpu_time();
        rounds.fio.push(replay(&entries, ground, bed.size, &bed.folder).as_secs_f64());
        rounds.cpu.1.push((children_cpu_time() - before).as_secs_f64());
    };
    fio(&mut rounds);
    for round in 1..count {
        if round % 2 == 1 {
            fio(&mut rounds);
        }
        pool(&mut rounds, round);
        if round % 2 == 0 {
            fio(&mut rounds);
        }
    }
    (rounds, entries)
}

/// Loses a device and puts a new one in its place: what is to be rebuilt, bytes, and the file that is of no more use.
/// As long as that has a name, nobody waits for its removal.
fn lose(bed: &Bed, ground: Ground, round: usize) -> (u64, PathBuf) {
    let old = bed.path_of(LOST);
    bed.upkeep.devices.offline(LOST, false).expect("the layout survives it");
    let member = bed.pool.store().members().get(LOST);
    let slots = bed.pool.store().segments().into_iter().flat_map(|segment| segment.slots);
    let last = slots.filter(|slot| slot.device == LOST).map(|slot| slot.index).max();
    let end = last.map_or(0, |slot| member.slot_offset(slot, member.slot_size).get());
    let (_, new) = bed.fresh(&format!("new-{round}-{ground:?}"), ground, end);
    bed.upkeep.devices.replace(LOST, new).expect("it can be replaced");
    // Room that removed files had is given back now, not while something is measured.
    rustix::fs::sync();
    (bed.upkeep.resilver.progress().map_or(0, |progress| progress.total), old)
}

/// Rebuilds a device `count` times.
pub fn resilver(bed: &Bed, shape: Shape, ground: Ground, count: usize, kept: &[Written]) -> Resilver {
    let mut held = 0;
    let mut old = PathBuf::new();
    let (rounds, entries) = rounds(bed, ground, count, |round, cpu| {
        (held, old) = lose(bed, ground, round);
        rest();
        bed.tape.start();
        let before = cpu();
        let time = timed(|| while bed.upkeep.resilver.step(STEP).expect("it is rebuilt") {});
        let used = cpu() - before;
        fs::remove_file(&old).expect("our own file");
        let lost = bed.upkeep.resilver.result().expect("it ended").lost;
        assert!(lost == 0, "{lost} ranges were lost");
        (time, bed.tape.stop(), used)
    });
    let most = |kind| bytes_by_file(&entries, kind).into_values().max().unwrap_or(0);
    let mut read: Vec<u64> = bytes_by_file(&entries, Kind::Read).into_values().collect();
    read.sort_unstable_by(|a, b| b.cmp(a));
    let mean = |kind| {
        let of = entries.iter().filter(|entry| entry.kind == kind).count() as u64;
        bytes(&entries, kind) / of.max(1)
    };
    Resilver {
        shape,
        ground,
        rounds,
        size: bed.size,
        held,
        alive: kept.iter().map(|file| file.bytes).sum::<u64>() / shape.k as u64,
        written: most(Kind::Write),
        read,
        request: (mean(Kind::Read), mean(Kind::Write)),
    }
}

/// Scrubs everything `count` times.
pub fn scrub(bed: &Bed, shape: Shape, count: usize) -> Scrub {
    let (rounds, _) = rounds(bed, Ground::Holes, count, |_, cpu| {
        bed.upkeep.scrub.start(ScrubSince::All).expect("none is under way");
        rest();
        bed.tape.start();
        let before = cpu();
        let time = timed(|| while bed.upkeep.scrub.step(STEP).expect("it goes on") {});
        let used = cpu() - before;
        let result = bed.upkeep.scrub.result().expect("it ended");
        assert!(result.repaired == 0 && result.lost == 0, "{result:?}");
        (time, bed.tape.stop(), used)
    });
    Scrub { shape, rounds }
}

/// Pace of a resilver beside other work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// It waits.
    Waits,
    /// Half of the time in steps of 40 ms, as the daemon's while others use the pool.
    Shares,
    /// One step after the other.
    Full,
}

const SHARE_STEP: Duration = Duration::from_millis(40);

/// A reader and writer beside a resilver that waits, that shares, and that does not.
pub fn beside(bed: &Bed, kept: &[Written], seconds: f64) -> Vec<Beside> {
    let scratch = bed.write(64, 128);
    let paces = [
        ("no resilver", Pace::Waits),
        ("resilver under its budget", Pace::Shares),
        ("resilver at full speed", Pace::Full),
    ];
    let all = paces.map(|(what, pace)| {
        while bed.upkeep.resilver.step(STEP).expect("it is rebuilt") {}
        let (_, old) = lose(bed, Ground::Holes, 90 + pace as usize);
        fs::remove_file(old).expect("our own file");
        let before = bed.upkeep.resilver.progress().map_or(0, |progress| progress.examined);
        let stop = AtomicBool::new(false);
        let (mut traffic, mut rebuilding) = (None, 0.0);
        let clock = bed.pool.store().clock();
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    self::traffic(bed, kept, scratch, seconds, &stop)
                }));
                stop.store(true, Ordering::Release);
                result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            let begin = clock.monotonic();
            let mut bytes = 16 << 20;
            while pace != Pace::Waits && !stop.load(Ordering::Acquire) {
                let mut more = true;
                let took = timed(|| more = bed.upkeep.resilver.step(bytes).expect("it goes on"));
                if !more {
                    // The resilver is done: later traffic would not be beside one.
                    stop.store(true, Ordering::Release);
                }
                let wanted = (bytes as f64 * SHARE_STEP.as_secs_f64() / took.as_secs_f64().max(1e-6)) as u64;
                bytes = wanted.clamp(bytes / 2, bytes * 2).clamp(1 << 20, STEP);
                if pace == Pace::Shares {
                    #[allow(clippy::disallowed_methods, reason = "the budget is time")]
                    std::thread::sleep(took);
                }
            }
            rebuilding = (clock.monotonic() - begin).as_secs_f64();
            traffic = Some(others.join().expect("it told why"));
        });
        let (took, moved, reads, writes) = traffic.expect("it ran");
        let whole = || bed.upkeep.resilver.result().map_or(0, |result| result.examined);
        let after = bed.upkeep.resilver.progress().map_or_else(whole, |progress| progress.examined);
        let rebuilt = after.saturating_sub(before) as f64 / rebuilding.max(1e-3);
        Beside { what, seconds: took.as_secs_f64(), bytes: moved, reads, writes, rebuilt }
    });
    while bed.upkeep.resilver.step(STEP).expect("it is rebuilt") {}
    all.into()
}

/// Reads 128 KiB at random, three times, then writes so much; every 16th write ends with an fsync.
fn traffic(
    bed: &Bed,
    kept: &[Written],
    scratch: Written,
    seconds: f64,
    stop: &AtomicBool,
) -> (Duration, u64, Counts, Counts) {
    const UNIT: u64 = 128 << 10;
    let (reads, writes) = (Histogram::default(), Histogram::default());
    let rng = SeededEntropy::new(11);
    let clock = bed.pool.store().clock();
    let begin = clock.monotonic();
    let (mut bytes, mut n) = (0, 0_u64);
    while (clock.monotonic() - begin).as_secs_f64() < seconds && !stop.load(Ordering::Acquire) {
        n += 1;
        bytes += UNIT;
        if !n.is_multiple_of(4) {
            let file = kept[rng.next_u64() as usize % kept.len()];
            let at = rng.next_u64() % (file.bytes / UNIT) * UNIT;
            let time =
                timed(|| drop(bed.mount.read(file.node, Handle(0), at, UNIT as u32).expect("it is read")));
            reads.record(time.as_nanos() as u64);
            continue;
        }
        let at = rng.next_u64() % (scratch.bytes / UNIT) * UNIT;
        let data = bed.piece(n as usize, UNIT as usize);
        let time = timed(|| {
            bed.mount.write(scratch.node, Handle(0), at, data, false).expect("it fits");
            if n.is_multiple_of(64) {
                bed.mount.fsync(scratch.node, Handle(0), false).expect("it is synced");
            }
        });
        writes.record(time.as_nanos() as u64);
    }
    (clock.monotonic() - begin, bytes, reads.read(), writes.read())
}

/// Mebibytes a second, over all rounds.
pub fn mib_per_s(bytes: u64, seconds: &[f64]) -> f64 {
    bytes as f64 / MIB as f64 / median(seconds)
}

/// The median.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::NAN } else { (values[(n - 1) / 2] + values[n / 2]) / 2.0 }
}
