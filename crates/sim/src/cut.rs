//! Power cuts, replayed from a trace.
//!
//! The rule: a write is there if a flush of its device covers it, that is, if its outcome was taken before
//! the flush was submitted, and the flush's outcome was taken before the cut. Of every other write, all,
//! nothing or any of its sectors is there, whatever became of the writes around it. Where such writes
//! overlap, either may have come last. A discard is a write of what the device likes.
//!
//! A sweep carries the durable state forward event by event, and beside it, for each device, the writes
//! that no flush covers yet. An image is then a copy-on-write clone of the durable state plus some of
//! those: its cost is that of the unflushed bytes, not of the history.

use crate::image::DeviceImage;
use crate::rng::Rng;
use crate::trace::{Event, Trace};
use larder_device::{ALIGN, AlignedBuf};
use larder_format::{ByteLen, DeviceOffset};

/// Fate of the writes that were not flushed when the power failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// All are there, in the order of submission.
    KeepAll,
    /// None is there.
    DropAll,
    /// Some are there, some are not, some are torn, and their order is shuffled.
    Random {
        /// Decides; the same seed at the same cut of the same trace gives the same images.
        seed: u64,
    },
}

/// A walk over the cuts of a trace.
#[derive(Debug, Clone)]
pub struct CrashSweep<'t> {
    trace: &'t Trace,
    cut: usize,
    durable: Vec<DeviceImage>,
    /// For each device, the writes and the rot that no flush covered yet, with their event numbers.
    unflushed: Vec<Vec<(usize, &'t Event)>>,
}

impl<'t> CrashSweep<'t> {
    pub(crate) fn new(trace: &'t Trace) -> Self {
        let unflushed = vec![Vec::new(); trace.start.len()];
        Self { trace, cut: 0, durable: trace.start.clone(), unflushed }
    }

    /// The number of events before the current cut.
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// Moves to a later cut; panics when it lies behind the current one or past the trace's end.
    pub fn advance_to(&mut self, cut: usize) {
        assert!(cut >= self.cut, "a sweep goes forward: from {} to {cut}", self.cut);
        for (number, event) in self.trace.events[..cut].iter().enumerate().skip(self.cut) {
            match event {
                Event::Write { device, .. } | Event::Discard { device, .. } | Event::Rot { device, .. } => {
                    self.unflushed[*device].push((number, event));
                }
                Event::Flush { device, before, in_flight } => {
                    let durable = &mut self.durable[*device];
                    self.unflushed[*device].retain(|(number, event)| {
                        let covered = number < before && !in_flight.contains(number);
                        if covered {
                            apply(event, durable);
                        }
                        !covered
                    });
                }
                Event::FlushFailed { device } => {
                    let unflushed: Vec<_> =
                        self.unflushed[*device].drain(..).map(|(_, event)| event).collect();
                    survive(&unflushed, &Rng::new(&[number as u64]), &mut self.durable[*device]);
                }
                Event::Swap { device, image } => {
                    self.durable[*device] = image.clone();
                    self.unflushed[*device].clear();
                }
                Event::Grow { device, size } => self.durable[*device].grow(*size),
                Event::Mark(_) => {}
            }
        }
        self.cut = cut;
    }

    /// The number of writes, over all devices, that nothing promises at the current cut. At zero, every
    /// [`Survival`] gives the same images.
    pub fn unflushed(&self) -> usize {
        let writes =
            |events: &Vec<(usize, &Event)>| events.iter().filter(|(_, event)| is_write(event)).count();
        self.unflushed.iter().map(writes).sum()
    }

    /// Contents of the devices if the power fails now.
    pub fn images(&self, survival: Survival) -> Vec<DeviceImage> {
        let devices = self.durable.iter().zip(&self.unflushed).enumerate();
        let images = devices.map(|(device, (durable, unflushed))| {
            let mut image = durable.clone();
            let unflushed: Vec<&Event> = unflushed.iter().map(|(_, event)| *event).collect();
            match survival {
                Survival::KeepAll => unflushed.iter().for_each(|event| apply(event, &mut image)),
                Survival::DropAll => {
                    unflushed.iter().filter(|e| !is_write(e)).for_each(|event| apply(event, &mut image));
                }
                Survival::Random { seed } => {
                    let rng = Rng::new(&[seed, self.cut as u64, device as u64]);
                    survive(&unflushed, &rng, &mut image);
                }
            }
            image
        });
        images.collect()
    }
}

fn is_write(event: &Event) -> bool {
    matches!(event, Event::Write { .. } | Event::Discard { .. })
}

fn apply(event: &Event, image: &mut DeviceImage) {
    match event {
        Event::Write { offset, data, .. } => image.write(*offset, data),
        Event::Discard { offset, len, seed, .. } => image.discard(*offset, *len, *seed),
        Event::Rot { offset, len, seed, .. } => image.flip_bits(*offset, *len, *seed),
        Event::Flush { .. }
        | Event::FlushFailed { .. }
        | Event::Swap { .. }
        | Event::Grow { .. }
        | Event::Mark(_) => {
            unreachable!("only writes, discards and rot wait for a flush")
        }
    }
}

/// Fate of a device as a whole. Independent choices alone would hardly ever give the cuts in which one
/// write of many is lost, or one disk's cache and not the other's, and those are the ones that hurt.
enum Mood {
    All,
    Nothing,
    AllButOne(usize),
    OnlyOne(usize),
    EachForItself,
}

fn survive(unflushed: &[&Event], rng: &Rng, image: &mut DeviceImage) {
    if unflushed.is_empty() {
        return;
    }
    let mood = match rng.below(8) {
        0 => Mood::All,
        1 => Mood::Nothing,
        2 | 3 => Mood::AllButOne(rng.below(unflushed.len())),
        4 | 5 => Mood::OnlyOne(rng.below(unflushed.len())),
        _ => Mood::EachForItself,
    };
    let mut order: Vec<usize> = (0..unflushed.len()).collect();
    rng.shuffle(&mut order);
    for i in order {
        if !is_write(unflushed[i]) {
            apply(unflushed[i], image);
            continue;
        }
        let (kept, torn) = match mood {
            Mood::All => (true, false),
            Mood::Nothing => (false, false),
            Mood::AllButOne(one) => (i != one, i == one && rng.below(2) == 0),
            Mood::OnlyOne(one) => (i == one, i == one && rng.below(2) == 0),
            Mood::EachForItself => (rng.below(2) == 0, rng.below(3) == 0),
        };
        match unflushed[i] {
            Event::Write { offset, data, .. } if torn => tear(*offset, data, rng, image),
            Event::Discard { offset, len, seed, .. } if torn => {
                let pages = len.get() / ALIGN as u64;
                let part = ByteLen::new(rng.below(pages as usize + 1) as u64 * ALIGN as u64);
                image.discard(*offset, part, *seed);
            }
            event if kept => apply(event, image),
            _ => {}
        }
    }
}

/// Applies some sectors of a write: a run of them anywhere in it, or each by a coin.
fn tear(offset: DeviceOffset, data: &AlignedBuf, rng: &Rng, image: &mut DeviceImage) {
    let sector = [512, 4096][rng.below(2)];
    let sectors = data.len() / sector;
    let run = (rng.below(2) == 0).then(|| {
        let start = rng.below(sectors);
        start..start + 1 + rng.below(sectors - start)
    });
    for i in 0..sectors {
        let there = match &run {
            Some(run) => run.contains(&i),
            None => rng.below(2) == 0,
        };
        if there {
            let start = i * sector;
            image.write(offset + ByteLen::new(start as u64), &data[start..start + sector]);
        }
    }
}

impl Trace {
    /// Contents of all devices after a power cut. For many cuts, [`Trace::sweep`] is faster.
    pub fn crash_images(&self, cut: usize, survival: Survival) -> Vec<DeviceImage> {
        let mut sweep = self.sweep();
        sweep.advance_to(cut);
        sweep.images(survival)
    }

    /// Goes through the cuts from the first on.
    pub fn sweep(&self) -> CrashSweep<'_> {
        CrashSweep::new(self)
    }
}
