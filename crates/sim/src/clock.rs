//! Time that moves when a test says so, and while somebody waits for a disk.

use larder_device::Clock;
use larder_format::Timestamp;
use larder_sync::Mutex;
use std::time::Duration;

const NANOS_PER_SEC: i128 = 1_000_000_000;

/// Time that a reading of the clock takes, so that no two stamps are equal.
const TICK: Duration = Duration::from_micros(1);

/// A clock that is advanced by hand; each reading moves it on by a microsecond. Where devices are disks
/// ([`crate::SimWorld::spin`]), it also moves on to what is waited for.
#[derive(Debug)]
pub struct SimClock(Mutex<Time>);

#[derive(Debug)]
struct Time {
    /// Since the clock was made.
    elapsed: Duration,
    /// Wall time at `elapsed` zero, in nanoseconds since 1970.
    wall_origin: i128,
}

impl SimClock {
    /// A clock that shows 2020-01-01 00:00:00 UTC.
    pub fn new() -> Self {
        Self(Mutex::new(Time { elapsed: Duration::ZERO, wall_origin: 1_577_836_800 * NANOS_PER_SEC }))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.0.lock().elapsed += by;
    }

    /// Time since it was made. This is no reading: it does not move on.
    pub fn elapsed(&self) -> Duration {
        self.0.lock().elapsed
    }

    /// Lets time pass up to there, if that is to come.
    pub(crate) fn advance_to(&self, elapsed: Duration) {
        let mut time = self.0.lock();
        time.elapsed = time.elapsed.max(elapsed);
    }

    /// Sets the wall clock, forwards or back, as an administrator may; monotonic time is unmoved.
    pub fn set_wall(&self, to: Timestamp) {
        let mut time = self.0.lock();
        time.wall_origin = i128::from(to.secs) * NANOS_PER_SEC + i128::from(to.nanos)
            - i128::try_from(time.elapsed.as_nanos()).expect("a simulation is not that long");
    }
}

impl Default for SimClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Time {
    fn tick(&mut self) -> Duration {
        self.elapsed += TICK;
        self.elapsed
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let mut time = self.0.lock();
        let elapsed = i128::try_from(time.tick().as_nanos()).expect("a simulation is not that long");
        let wall = time.wall_origin + elapsed;
        Timestamp {
            secs: i64::try_from(wall.div_euclid(NANOS_PER_SEC)).expect("a simulation is not that long"),
            nanos: u32::try_from(wall.rem_euclid(NANOS_PER_SEC)).expect("a remainder below 10^9"),
        }
    }

    fn monotonic(&self) -> Duration {
        self.0.lock().tick()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_readings_differ() {
        let clock = SimClock::new();
        assert!(clock.now() < clock.now());
        assert!(clock.monotonic() < clock.monotonic());
    }

    #[test]
    fn advancing_moves_both_times_alike() {
        let clock = SimClock::new();
        let (wall, mono) = (clock.now(), clock.monotonic());
        clock.advance(Duration::from_secs(90));
        assert_eq!(clock.now().secs, wall.secs + 90);
        assert!(clock.monotonic() >= mono + Duration::from_secs(90));
    }

    #[test]
    fn the_wall_clock_can_be_set_before_1970_while_monotonic_time_goes_on() {
        let clock = SimClock::new();
        let mono = clock.monotonic();
        clock.set_wall(Timestamp { secs: -10, nanos: 999_999_500 });
        assert_eq!(clock.now(), Timestamp { secs: -9, nanos: 500 });
        assert!(clock.monotonic() > mono);
    }
}
