//! Cost of measuring a request: a request whose device does nothing, timed and not timed, and the parts
//! of the difference. `cargo run --release -p larder-benches --bin meter`

use larder_device::{Clock, Histogram, Meter, Pending, RequestKind, SystemClock};
use std::hint::black_box;
use std::sync::Arc;

const ROUNDS: u32 = 2_000_000;

/// Nanoseconds a round; the best of five.
fn cost(clock: &dyn Clock, mut round: impl FnMut(u64)) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = clock.monotonic();
        (0..u64::from(ROUNDS)).for_each(&mut round);
        let elapsed = clock.monotonic() - start;
        best = best.min(elapsed.as_nanos() as f64 / f64::from(ROUNDS));
    }
    best
}

fn main() {
    let clock = Arc::new(SystemClock::new());
    let meter = Arc::new(Meter::new(clock.clone()));
    let histogram = Histogram::default();
    let bare = cost(&*clock, |n| {
        let (completion, pending) = Pending::new();
        completion.complete(n);
        black_box(pending.wait());
    });
    let timed = cost(&*clock, |n| {
        let (completion, pending) = Pending::new();
        let pending = pending.timed(meter.start(RequestKind::Read));
        completion.begin();
        completion.complete(n);
        black_box(pending.wait());
    });
    let record = cost(&*clock, |n| histogram.record(black_box(n.wrapping_mul(0x9e37_79b9) & 0xff_ffff)));
    let look = cost(&*clock, |_| {
        black_box(clock.monotonic());
    });
    println!("a request that does nothing    {bare:7.1} ns");
    println!("the same, timed                {timed:7.1} ns");
    println!("  so timing adds               {:7.1} ns", timed - bare);
    println!("  of which three looks at the clock {:.1} ns, two records {:.1} ns", 3.0 * look, 2.0 * record);
}
