//! Programs cannot tell a mount from a local disk: seeded steps of all kinds are done in a folder on a mount and
//! in one on a disk, and everything that can be seen is compared after each.
//!
//! ```text
//! differential MOUNT DISK SEED STEPS
//! ```
//!
//! DIFFERENTIAL_REMOUNT is a command that exports and imports the pool; DIFFERENTIAL_SYNC one that commits it, run in
//! the background all the time. When something differs, steps are left out as long as it still does
//! (DIFFERENTIAL_PATIENCE seconds at most, 60), and what is left is printed with the seed. What differs on purpose is
//! in `known.rs`.

#![expect(clippy::disallowed_methods, reason = "a program of its own, on a real machine's clock")]
#![allow(missing_docs, reason = "nobody imports it")]

mod known;
mod look;
mod op;
mod pair;
mod side;
mod sys;

use op::{Maker, Op, Step};
use pair::Pair;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Held while the pool is away, so that nothing commits it meanwhile.
static POOL: Mutex<()> = Mutex::new(());
static DONE: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    let [mount, disk, seed, steps] = &args[..] else { panic!("differential MOUNT DISK SEED STEPS") };
    let run = Run {
        mount: PathBuf::from(mount),
        disk: PathBuf::from(disk),
        remount: std::env::var("DIFFERENTIAL_REMOUNT").ok(),
        number: 0.into(),
    };
    let (seed, steps) = (seed.parse().expect("a seed"), steps.parse().expect("a number of steps"));
    std::thread::scope(|scope| {
        if let Ok(command) = std::env::var("DIFFERENTIAL_SYNC") {
            scope.spawn(move || sync_on(&command));
        }
        let code = run.seed(seed, steps);
        DONE.store(true, Ordering::Relaxed);
        code
    })
}

/// Commits the pool again and again.
fn sync_on(command: &str) {
    while !DONE.load(Ordering::Relaxed) {
        let pool = POOL.lock().expect("nobody panics with it");
        shell(command);
        drop(pool);
        std::thread::sleep(Duration::from_millis(150));
    }
}

fn shell(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().expect("a shell");
    assert!(status.success(), "{command}: {status}");
}

struct Run {
    mount: PathBuf,
    disk: PathBuf,
    remount: Option<String>,
    number: std::cell::Cell<usize>,
}

/// Steps of a trace.
const TRACE: usize = 1000;

/// Steps of a failure that are shown.
const SHOWN: usize = 40;

/// Known differences that were met, with counts.
type Met = BTreeMap<&'static str, usize>;

/// Where a trace came to, and what differed there.
type Stop = (usize, String);

impl Run {
    /// Traces of some steps each, in fresh folders: what is long in use has lost its permissions and names.
    fn seed(&self, seed: u64, count: usize) -> ExitCode {
        let (begun, mut total) = (Instant::now(), Met::new());
        let (mut succeeded, mut remounts) = (0, 0);
        for (trace, from) in (0..count).step_by(TRACE).enumerate() {
            let mut maker = Maker::new(seed.wrapping_mul(1 << 20) + trace as u64, self.remount.is_some());
            let steps = (0..TRACE.min(count - from)).map(|_| maker.step()).collect::<Vec<_>>();
            let (met, done, stop) = self.trace(&steps);
            if let Some((at, what)) = stop {
                println!("seed {seed}, step {}: {:?}\n  differs: {what}", from + at, steps[at]);
                let (steps, what) = self.shorten(&steps[..=at], what);
                println!("{} steps are enough ({} tries): {what}", steps.len(), self.number.get());
                for (number, step) in steps.iter().enumerate().skip(steps.len().saturating_sub(SHOWN)) {
                    println!("  {number:3} as {} umask {:03o}: {:?}", step.who.uid, step.umask, step.op);
                }
                return ExitCode::FAILURE;
            }
            succeeded += done;
            remounts += steps.iter().filter(|step| matches!(step.op, Op::Remount)).count();
            met.into_iter().for_each(|(name, times)| *total.entry(name).or_default() += times);
        }
        let met = total.iter().map(|(name, times)| format!("{name} {times}")).collect::<Vec<_>>().join(", ");
        let took = begun.elapsed();
        println!(
            "seed {seed}: {count} steps alike, {succeeded} of them not refused, {remounts} remounts, in {took:.0?}"
        );
        println!("  known: {met}");
        ExitCode::SUCCESS
    }

    /// Does steps in fresh folders, up to the first difference. Gives the known differences that were met, how
    /// many steps were not refused, and where it stopped.
    fn trace(&self, steps: &[Step]) -> (Met, usize, Option<Stop>) {
        self.number.set(self.number.get() + 1);
        let remount = || {
            let _pool = POOL.lock().expect("nobody panics with it");
            self.remount.iter().for_each(|command| shell(command));
        };
        let name = format!("pair{}.{}", std::process::id(), self.number.get());
        let mut pair = Pair::new(&self.mount, &self.disk, &name, &remount);
        let mut stop = steps.iter().enumerate().find_map(|(at, step)| Some((at, pair.step(step).err()?)));
        if stop.is_none() {
            stop = pair.compare_trees().err().map(|what| (steps.len() - 1, what));
        }
        let (met, succeeded) = (std::mem::take(&mut pair.met), pair.succeeded);
        pair.remove();
        (met, succeeded, stop)
    }

    /// Leaves out what is not needed for a difference of the same kind, the last step kept.
    fn shorten(&self, steps: &[Step], what: String) -> (Vec<Step>, String) {
        let patience = std::env::var("DIFFERENTIAL_PATIENCE").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
        let end = Instant::now() + Duration::from_secs(patience);
        let kind = |what: &str| what.lines().next().map(str::to_owned);
        let (mut best, mut words) = (steps.to_vec(), what);
        let mut piece = best.len() / 2;
        while piece > 0 && Instant::now() < end {
            let mut from = 0;
            while from < best.len() && Instant::now() < end {
                let to = (from + piece).min(best.len());
                let fewer = [&best[..from], &best[to..]].concat();
                match self.trace(&fewer).2 {
                    Some((at, what)) if kind(&what) == kind(&words) => {
                        best = fewer[..=at].to_vec();
                        words = what;
                    }
                    _ => from = to,
                }
            }
            piece /= 2;
        }
        (best, words)
    }
}
