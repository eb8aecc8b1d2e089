//! A pool on disks with one arm, in virtual time: how long calls take there.

use crate::bed::*;
use larder_device::{DiskShape, Entropy, SeededEntropy};
use larder_format::ByteLen;
use larder_sim::{SimWorld, Survival};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const FILE: u64 = 64 * MIB;
const SPAN: u64 = 1 << 30;
/// Time of a processor between two calls.
const THINKING: Duration = Duration::from_micros(200);

/// The device is the whole disk: moves are as long as those of a large one that is full.
fn shape() -> DiskShape {
    DiskShape { span: SPAN, ..DiskShape::default() }
}

fn pool(word: &str, devices: usize) -> Bed {
    let bed = Bed::with_layout(word, &vec![ByteLen::new(SPAN); devices], &[("compression", "off")]);
    bed.sim.spin(shape(), &bed.clock);
    bed
}

fn time(bed: &Bed, work: impl FnOnce(&Bed)) -> Duration {
    let before = bed.clock.elapsed();
    work(bed);
    bed.clock.elapsed() - before
}

/// Writing a file, reading it cold, reading parts of it cold, and small fsyncs, in seconds: the last two of one each.
fn measure(word: &str, devices: usize) -> [f64; 4] {
    let bed = pool(word, devices);
    let data = SeededEntropy::new(1).bytes(FILE as usize);
    let file = bed.file(ROOT, "file");
    let written = time(&bed, |bed| {
        (0..FILE / MIB).for_each(|i| bed.write(file, i * MIB, &data[(i * MIB) as usize..][..MIB as usize]));
        bed.fsync(file);
    });
    let bed = bed.reopen(2);
    let file = bed.find("file").unwrap().node;
    let read = time(&bed, |bed| {
        for i in 0..FILE / MIB {
            assert!(bed.read(file, i * MIB, MIB as u32) == data[(i * MIB) as usize..][..MIB as usize]);
        }
    });
    let bed = bed.reopen(3);
    let file = bed.find("file").unwrap().node;
    let rng = SeededEntropy::new(4);
    let parts = time(&bed, |bed| {
        (0..200).for_each(|_| drop(bed.read(file, rng.next_u64() % (FILE / 4096) * 4096, 4096)));
    });
    let log = bed.file(ROOT, "log");
    bed.fsync(log);
    let synced = time(&bed, |bed| {
        for i in 0..50 {
            // A caller that takes no time at all finds the place that comes next still under the head.
            bed.clock.advance(THINKING);
            bed.write(log, i * 4096, &data[..4096]);
            bed.fsync(log);
        }
    });
    [written, read, parts / 200, synced / 50].map(|span| span.as_secs_f64())
}

#[test]
fn a_pool_takes_on_disks_what_their_arms_take() {
    for (word, devices) in [("single", 1), ("mirror", 2)] {
        let all = measure(word, devices);
        let [written, read, part, synced] = all;
        // 64 MiB at the rate of the outer edge; on the way down, moves to tables, and to both ends for a root.
        let streamed = FILE as f64 / shape().rate.0 as f64;
        assert!((streamed..streamed + 0.4).contains(&written), "{word} {written}");
        assert!((streamed..streamed * 1.5).contains(&read), "{word} {read}");
        // Half a turn takes 5.6 ms, and a move over a third of the disk 11.
        assert!((0.010..0.020).contains(&part), "{word} {part}");
        // The log's next place has just passed by: a turn.
        assert!((0.011..0.012).contains(&synced), "{word} {synced}");
        assert_eq!(all, measure(word, devices), "the same seeds, the same times");
    }
}

#[test]
fn what_was_synced_on_disks_is_there_after_a_cut() {
    let bed = pool("mirror", 2);
    let file = bed.file(ROOT, "file");
    for i in 0..20_u8 {
        bed.write(file, u64::from(i) * 4096, &[i; 4096]);
        bed.fsync(file);
        bed.sim.mark(u64::from(i));
    }
    let trace = bed.sim.trace();
    let mut sweep = trace.sweep();
    for cut in (0..=trace.len()).filter(|cut| trace.marks_before(*cut).count() > 0).step_by(7) {
        sweep.advance_to(cut);
        let sim = SimWorld::from_images(sweep.images(Survival::Random { seed: 5 }));
        let clock = std::sync::Arc::clone(&bed.clock);
        sim.spin(shape(), &clock);
        let after = Bed::import(sim, clock, cut as u64);
        let file = after.find("file").unwrap().node;
        for i in trace.marks_before(cut) {
            assert_eq!(after.read(file, i * 4096, 4096), [i as u8; 4096], "cut {cut}");
        }
    }
}
