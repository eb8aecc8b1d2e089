//! Latency of requests, counted where they complete.
//!
//! A [`Meter`] belongs to a device in use. Its [`Stopwatch`] rides along with a request, in the state that
//! promise and caller share, so every kind of device is measured alike: *total wait* runs from submission
//! to completion, *disk wait* from the moment the device takes the request up. A device that never says so
//! takes it up at once. Failed requests count too: a disk that answers late with an error was slow. Requests that
//! never complete are in no histogram; a meter tells instead how many answers are *owed* to callers that went
//! other ways meanwhile, and when the device answered last.
//!
//! Times go into histograms of fixed buckets, eight to each power of two, as HdrHistogram has them (Gil
//! Tene): an index is a few shifts, recording is two relaxed additions, nothing is ever locked or
//! allocated, and the difference of two readings is again a histogram. What they tell is at most an
//! eighth too high, and never too low.

use crate::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// log2 of the buckets in an octave.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// Octaves: the last one ends at 2^37 ns (137 s) and takes all that lasts longer, as in zpool-iostat(8).
pub const OCTAVES: usize = 37;
/// Faster reads than this are not told apart: steps of an eighth need something to be an eighth of.
const LEAST_READ_NS: u64 = 1000;
const BUCKETS: usize = (OCTAVES - SUB_BITS as usize + 1) * SUB;

fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << OCTAVES) - 1);
    let octave = ns.checked_ilog2().unwrap_or(0);
    if octave < SUB_BITS {
        return ns as usize;
    }
    let shift = octave - SUB_BITS;
    (shift as usize) * SUB + (ns >> shift) as usize
}

/// The first value of a bucket.
fn least(bucket: usize) -> u64 {
    if bucket < 2 * SUB {
        return bucket as u64;
    }
    let shift = bucket / SUB - 1;
    ((bucket % SUB + SUB) as u64) << shift
}

/// The last value of a bucket.
fn most(bucket: usize) -> u64 {
    least(bucket + 1) - 1
}

/// Durations in nanoseconds, counted by many threads at once.
pub struct Histogram {
    sum_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { sum_ns: AtomicU64::new(0), buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    /// The counts so far. Durations recorded meanwhile may be in the sum and not in the buckets.
    pub fn read(&self) -> Counts {
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        Counts::new(self.sum_ns.load(Relaxed), buckets)
    }
}

/// A reading of a [`Histogram`], or the difference or sum of such.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    sum_ns: u64,
    buckets: Vec<u64>,
}

impl Counts {
    /// From the [`Counts::sum_ns`] and [`Counts::buckets`] of another. Buckets that no histogram has are left out.
    pub fn new(sum_ns: u64, mut buckets: Vec<u64>) -> Self {
        buckets.truncate(BUCKETS);
        buckets.truncate(buckets.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
        Self { sum_ns, buckets }
    }

    /// All durations together.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Counts by bucket, up to the last that is not empty.
    pub fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    /// Number of durations.
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The mean, ns; exact. Nothing of nothing.
    pub fn mean(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.total())
    }

    /// Duration that `per_mille` of 1000 do not exceed, ns: 500 is the median. At most an eighth too high.
    pub fn percentile(&self, per_mille: u64) -> Option<u64> {
        let rank = u128::from(self.total()) * u128::from(per_mille);
        let rank = u64::try_from(rank.div_ceil(1000)).unwrap_or(u64::MAX).max(1);
        let mut seen = 0;
        self.buckets
            .iter()
            .position(|count| {
                seen += count;
                seen >= rank
            })
            .map(most)
    }

    /// Counts since `earlier`; all of them, when that is no earlier reading of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |at: usize| earlier.buckets.get(at).copied().unwrap_or(0);
        let grown = earlier.buckets.len() <= self.buckets.len()
            && self.buckets.iter().enumerate().all(|(at, &count)| count >= before(at));
        if !grown {
            return self.clone();
        }
        let buckets = self.buckets.iter().enumerate().map(|(at, count)| count - before(at)).collect();
        Self::new(self.sum_ns.saturating_sub(earlier.sum_ns), buckets)
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let len = self.buckets.len().max(other.buckets.len());
        let count = |of: &Self, at: usize| of.buckets.get(at).copied().unwrap_or(0);
        let buckets = (0..len).map(|at| count(self, at) + count(other, at)).collect();
        Self::new(self.sum_ns.saturating_add(other.sum_ns), buckets)
    }

    /// Buckets that are not empty: their last value in ns, and how many.
    pub fn occupied(&self) -> impl Iterator<Item = (u64, u64)> {
        let occupied = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        occupied.map(|(at, &count)| (most(at), count))
    }

    /// Counts by power of two: the first holds 0 and 1 ns, the one at `n` what is below `2^(n+1)` ns.
    pub fn octaves(&self) -> [u64; OCTAVES] {
        let mut octaves = [0; OCTAVES];
        for (at, count) in self.buckets.iter().enumerate() {
            octaves[least(at).checked_ilog2().unwrap_or(0) as usize] += count;
        }
        octaves
    }
}

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making durable.
    Flush,
}

/// Latencies of requests of one kind.
#[derive(Default)]
pub struct Waits {
    /// From submission to completion.
    pub total: Histogram,
    /// From when the device took the request up to completion.
    pub disk: Histogram,
}

/// Latencies of the requests to one device.
pub struct Meter {
    clock: Arc<dyn Clock>,
    read: Waits,
    write: Waits,
    flush: Waits,
    /// Requests whose callers went other ways and that have not completed.
    owed: AtomicU32,
    /// When the first of those was submitted: monotonic time, ns. Means something while something is owed.
    owed_since_ns: AtomicU64,
    /// Monotonic time of the last completion, ns; 0 before the first.
    answered_ns: AtomicU64,
    /// Typical disk wait of a read, ns; 0 before the first.
    typical_ns: AtomicU64,
}

impl Meter {
    /// A meter that has seen no request.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (read, write, flush) = (Waits::default(), Waits::default(), Waits::default());
        let [owed_since_ns, answered_ns, typical_ns] = [const { AtomicU64::new(0) }; 3];
        Self { clock, read, write, flush, owed: AtomicU32::new(0), owed_since_ns, answered_ns, typical_ns }
    }

    /// Latencies of requests of this kind.
    pub fn waits(&self, kind: RequestKind) -> &Waits {
        match kind {
            RequestKind::Read => &self.read,
            RequestKind::Write => &self.write,
            RequestKind::Flush => &self.flush,
        }
    }

    /// A request is about to be submitted. Hand the stopwatch to [`crate::Pending::timed`].
    pub fn start(self: &Arc<Self>, kind: RequestKind) -> Stopwatch {
        let submitted = self.clock.monotonic();
        Stopwatch { meter: Arc::clone(self), kind, submitted, begun: None, late: false }
    }

    /// Number of requests in flight whose callers gave up waiting ([`crate::Pending::note_late`]).
    pub fn owed(&self) -> u32 {
        self.owed.load(Relaxed)
    }

    /// When a request of any kind completed last, by the monotonic clock; zero before the first.
    pub fn answered(&self) -> Duration {
        Duration::from_nanos(self.answered_ns.load(Relaxed))
    }

    /// For how long the device has answered nothing while it owes something; zero when it owes nothing.
    pub fn silence(&self) -> Duration {
        if self.owed() == 0 {
            return Duration::ZERO;
        }
        let since = self.owed_since_ns.load(Relaxed).max(self.answered_ns.load(Relaxed));
        self.clock.monotonic().saturating_sub(Duration::from_nanos(since))
    }

    /// Typical disk wait of recent reads: about the median of some dozen. None before the first read.
    pub fn typical_read(&self) -> Option<Duration> {
        let ns = self.typical_ns.load(Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// A read takes at least that long, and is not over: no reason to think that reads take less.
    fn lean_up(&self, ns: u64) {
        if ns > self.typical_ns.load(Relaxed) {
            self.lean(ns);
        }
    }

    /// A read took that long: the estimate takes a step of an eighth towards it. A few
    /// outliers move it little, and twenty reads that are ten times slower move it all the way (after Ma,
    /// Muthukrishnan and Sandler, "Frugal Streaming for Estimating Quantiles", 2013). Of two steps at the same
    /// time one may be lost.
    fn lean(&self, ns: u64) {
        let typical = self.typical_ns.load(Relaxed);
        let step = typical / 8;
        let towards = match ns.cmp(&typical) {
            _ if typical == 0 => ns,
            std::cmp::Ordering::Greater => ns.min(typical + step),
            _ => ns.max(typical - step),
        };
        self.typical_ns.store(towards.max(LEAST_READ_NS), Relaxed);
    }
}

/// Times one request.
pub struct Stopwatch {
    meter: Arc<Meter>,
    kind: RequestKind,
    submitted: Duration,
    begun: Option<Duration>,
    late: bool,
}

impl Stopwatch {
    /// The device takes the request up, or has done so: only the first time counts.
    pub fn begin(&mut self) {
        self.begun.get_or_insert_with(|| self.meter.clock.monotonic());
    }

    fn begun(&self) -> Duration {
        self.begun.unwrap_or(self.submitted)
    }

    /// Its caller does not wait any more.
    pub(crate) fn note_late(&mut self) {
        if !std::mem::replace(&mut self.late, true) {
            let now = self.meter.clock.monotonic();
            let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
            if self.kind == RequestKind::Read {
                self.meter.lean_up(ns(now.saturating_sub(self.begun())));
            }
            if self.meter.owed.fetch_add(1, Relaxed) == 0 {
                self.meter.owed_since_ns.store(ns(self.submitted), Relaxed);
            }
        }
    }

    /// The request is completed.
    pub fn done(self) {
        let now = self.meter.clock.monotonic();
        let ns = |since: Duration| u64::try_from(now.saturating_sub(since).as_nanos()).unwrap_or(u64::MAX);
        let waits = self.meter.waits(self.kind);
        waits.total.record(ns(self.submitted));
        waits.disk.record(ns(self.begun()));
        if self.kind == RequestKind::Read {
            self.meter.lean(ns(self.begun()));
        }
        self.meter.answered_ns.fetch_max(ns(Duration::ZERO), Relaxed);
        if self.late {
            self.meter.owed.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pending;
    use larder_format::Timestamp;

    fn of(durations: impl IntoIterator<Item = u64>) -> Counts {
        let histogram = Histogram::default();
        durations.into_iter().for_each(|ns| histogram.record(ns));
        histogram.read()
    }

    #[test]
    fn buckets_follow_each_other_without_gaps_and_are_an_eighth_wide_at_most() {
        assert_eq!((bucket(0), bucket(u64::MAX), bucket((1 << OCTAVES) - 1)), (0, BUCKETS - 1, BUCKETS - 1));
        for at in 0..BUCKETS {
            assert_eq!((bucket(least(at)), bucket(most(at))), (at, at));
            assert!((most(at) - least(at)) * 8 <= least(at), "bucket {at}");
        }
    }

    #[test]
    fn percentiles_are_never_too_low_and_at_most_an_eighth_too_high() {
        let counts = of((1..=1000).map(|n| n * 1000));
        assert_eq!((counts.total(), counts.mean()), (1000, Some(500_500)));
        for (per_mille, exact) in [(1, 1_000), (500, 500_000), (990, 990_000), (999, 999_000)] {
            let told = counts.percentile(per_mille).unwrap();
            assert!((exact..=exact * 9 / 8).contains(&told), "{per_mille}: {told}");
        }
        assert_eq!(of([]).percentile(500), None);
        assert_eq!(of([7]).percentile(0), Some(7));
    }

    #[test]
    fn octaves_end_below_powers_of_two() {
        let octaves = of([0, 1, 2, 3, 4, 1023, 1024, u64::MAX]).octaves();
        assert_eq!((octaves[0], octaves[1], octaves[2]), (2, 2, 1));
        assert_eq!((octaves[9], octaves[10], octaves[OCTAVES - 1]), (1, 1, 1));
    }

    #[test]
    fn the_difference_of_two_readings_is_what_came_between() {
        let histogram = Histogram::default();
        histogram.record(5);
        let before = histogram.read();
        [5, 900, 900].iter().for_each(|&ns| histogram.record(ns));
        let now = histogram.read();
        assert_eq!(now.since(&before), of([5, 900, 900]));
        assert_eq!(now.since(&now), Counts::default());
        // A reading of another import is not compared with.
        assert_eq!(now.since(&of([5, 5, 5])), now);
        assert_eq!(before.plus(&now.since(&before)), now);
    }

    /// A clock that shows what a test sets, in nanoseconds.
    struct Set(AtomicU64);

    impl Clock for Set {
        fn now(&self) -> Timestamp {
            unreachable!("waits are measured by monotonic time")
        }
        fn monotonic(&self) -> Duration {
            Duration::from_nanos(self.0.load(Relaxed))
        }
    }

    #[test]
    fn waiting_in_a_queue_is_in_the_total_wait_and_not_in_the_disk_wait() {
        let clock = Arc::new(Set(AtomicU64::new(0)));
        let meter = Arc::new(Meter::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let at = |ns| clock.0.store(ns, Relaxed);
        let means = |kind| [&meter.waits(kind).total, &meter.waits(kind).disk].map(|of| of.read().mean());

        let watch = meter.start(RequestKind::Write);
        let (completion, pending) = Pending::new();
        let pending = pending.timed(watch);
        at(5);
        completion.begin();
        at(12);
        assert_eq!(means(RequestKind::Write), [None, None]);
        completion.complete(());
        pending.wait();
        assert_eq!(means(RequestKind::Write), [Some(12), Some(7)]);

        // The device may be faster than its caller.
        let watch = meter.start(RequestKind::Read);
        let (completion, pending) = Pending::new();
        completion.begin();
        at(20);
        let pending = pending.timed(watch);
        at(21);
        completion.complete(());
        pending.wait();
        assert_eq!(means(RequestKind::Read), [Some(9), Some(1)]);
        assert_eq!(meter.answered(), Duration::from_nanos(21));
        Pending::done(()).timed(meter.start(RequestKind::Flush)).wait();
        assert_eq!(means(RequestKind::Flush), [Some(0), Some(0)]);
    }

    #[test]
    fn what_is_owed_is_owed_until_it_comes_and_silence_begins_with_the_last_answer() {
        let clock = Arc::new(Set(AtomicU64::new(0)));
        let meter = Arc::new(Meter::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let at = |ns| clock.0.store(ns, Relaxed);
        at(100);
        let (first, a) = Pending::new();
        let (second, b) = Pending::new();
        let (a, b) = (a.timed(meter.start(RequestKind::Read)), b.timed(meter.start(RequestKind::Read)));
        at(400);
        assert_eq!((meter.owed(), meter.silence()), (0, Duration::ZERO));
        [&a, &a, &b].into_iter().for_each(Pending::note_late);
        assert_eq!((meter.owed(), meter.silence()), (2, Duration::from_nanos(300)));
        drop(a);
        at(500);
        first.complete(());
        at(700);
        assert_eq!((meter.owed(), meter.silence()), (1, Duration::from_nanos(200)));
        second.complete(());
        assert_eq!((meter.owed(), meter.silence()), (0, Duration::ZERO));
    }

    #[test]
    fn the_typical_read_follows_most_reads_and_not_the_rare_ones() {
        let meter = Meter::new(Arc::new(Set(AtomicU64::new(0))));
        let typical = || meter.typical_read().map_or(0, |span| span.as_nanos());
        assert_eq!(meter.typical_read(), None);
        for i in 0..100 {
            meter.lean(if i % 5 == 4 { 900_000 } else { 100_000 });
        }
        assert!((90_000..130_000).contains(&typical()), "{}", typical());
        (0..20).for_each(|_| meter.lean(1_000_000));
        assert!(typical() > 900_000);
        (0..20).for_each(|_| meter.lean(1_000));
        assert!(typical() < 100_000);
        // Late reads are given up at 16 ms, and end at 30.
        for _ in 0..40 {
            meter.lean_up(16_000_000);
            meter.lean(30_000_000);
        }
        assert!(typical() > 25_000_000, "{}", typical());
        (0..200).for_each(|_| meter.lean(0));
        assert_eq!(typical(), u128::from(LEAST_READ_NS));
    }
}
