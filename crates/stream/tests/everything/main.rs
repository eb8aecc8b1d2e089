//! Everything at once: two pools whose datasets, snapshots, clones, trash, bookmarks and streams live through whatever
//! a seed chooses, beside a model of plain maps.
//!
//! # Why
//! Each of these has a model of its own. What they leave each other (ids, floors, marks, notes in the tables) is seen
//! only where all of them meet: a stream builds upon a snapshot whose dataset branches, is promoted, trashed and
//! brought back, between two power cuts, while garbage is collected.
//!
//! # Parts
//! - [`tree`]: what a dataset holds, read in two ways;
//! - [`model`]: what operations make of plain maps, and which they refuse;
//! - [`side`]: a pool beside its model, its history, and power cuts;
//! - [`files`], [`datasets`], [`streams`], [`keeping`]: the steps.
//!
//! # What must hold
//! After each step names, holds, limits and trees are as in the model; contents of all snapshots, also those in the
//! trash and those kept for clones, are read anew now and then, after each cut and at the end. A cut leaves a moment
//! that had begun, none older than what was promised. At the end nothing is left that nobody refers to, and figures are
//! what trees add up to; then all is destroyed, and nothing is left at all.

mod datasets;
mod files;
mod keeping;
mod model;
mod side;
mod streams;
mod tree;

use side::{Dice, Side};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of times that each step ran.
type Coverage = BTreeMap<&'static str, u64>;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Layouts of the two pools, with numbers of devices.
const LAYOUTS: [[(&str, usize); 2]; 4] = [
    [("raidz1", 3), ("mirror", 2)],
    [("single", 1), ("raidz1", 3)],
    [("mirror", 2), ("single", 1)],
    [("single", 1), ("single", 1)],
];

struct Run {
    seed: u64,
    sides: [Side; 2],
    dice: Dice,
    coverage: Coverage,
    told: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let layouts = LAYOUTS[seed as usize % LAYOUTS.len()];
        let side = |label, at: usize| {
            let (word, count) = layouts[at];
            let size = ["4096", "16384", "16384", "131072"][dice.below(4) as usize];
            let shares = at == 1 || !seed.is_multiple_of(3);
            let dedup = if shares { ["off", "off", "on", "verify"][dice.below(4) as usize] } else { "off" };
            let properties = [("recordsize", size), ("dedup", dedup)];
            let mut side = Side::new(label, word, count, seed * 2 + at as u64 + 1, &properties);
            side.shares = shares;
            side.has_copies = !(seed / 4 + at as u64).is_multiple_of(2);
            if side.has_copies && !seed.is_multiple_of(3) {
                side.pool().set_property(larder_pool::ROOT_DATASET, "copies", "2").unwrap();
            }
            side.pool().set_pool_property("autotrim", ["on", "off"][dice.below(2) as usize]).unwrap();
            side.commit();
            side
        };
        let sides = [side('a', 0), side('b', 1)];
        let mut run =
            Self { seed, sides, dice, coverage: Coverage::new(), told: setting("LARDER_TELL").is_some() };
        if seed % 8 == 5 {
            run.fill(seed as usize / 8 % 2);
        }
        run
    }

    /// Little room is left.
    fn fill(&mut self, at: usize) {
        let side = &mut self.sides[at];
        side.is_short = true;
        let mut seed = self.seed;
        while side.pool().store().space(128 << 10).available > 3 << 20 {
            seed += 1;
            if !side.fill(larder_pool::ROOT_DATASET, seed, 1 << 20) {
                break;
            }
        }
        side.commit();
    }

    fn step(&mut self, number: u64) {
        let dice = &self.dice;
        let at = dice.below(3) as usize % 2;
        let [a, b] = &mut self.sides;
        let (side, other) = if at == 0 { (a, b) } else { (b, a) };
        let what = match dice.below(100) {
            0..48 => {
                let id = side.some_named(dice);
                for _ in 0..dice.below(4) {
                    side.work(dice, id);
                }
                side.work(dice, id)
            }
            48..76 => side.administer(dice),
            76..86 => streams::stream(side, other, dice),
            86..97 => side.keep(dice),
            _ => {
                let cuts = side.cuts(dice);
                let at = *cuts.start() + dice.below((cuts.end() - cuts.start() + 1) as u64) as usize;
                let cut = side.cut(at, dice.survival());
                let fits = cut.unwrap_or_else(|why| panic!("{}: {why}", side.label));
                side.tell(|| format!("came to {fits}"));
                "power cut"
            }
        };
        if self.told {
            println!("{number}: {what}");
        }
        *self.coverage.entry(what).or_default() += 1;
        let deep = self.dice.one_in(12);
        self.sides.iter_mut().for_each(|side| side.verify(deep));
    }

    fn end(&mut self) {
        self.sides.iter_mut().for_each(Side::assert_exact);
        for side in &mut self.sides {
            *self.coverage.entry("pools short of space").or_default() += u64::from(side.is_short);
            side.assert_empty();
        }
    }
}

fn run(seed: u64) -> Coverage {
    let mut run = Run::new(seed);
    let steps = 60 + self::Dice::new(seed ^ 0xabcd).below(140);
    (0..steps).for_each(|number| run.step(number));
    run.end();
    run.coverage
}

/// Seeds: `few`, more where `LARDER_FULL` is set, and `all` where `LARDER_LARGE` is; or `LARDER_SEEDS` from
/// `LARDER_SEED` on.
fn seeds(few: u64, all: u64) -> std::ops::Range<u64> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let count = match (is_set("LARDER_LARGE"), is_set("LARDER_FULL")) {
        (true, _) => all,
        (_, true) => 3 * few,
        _ => few,
    };
    let first = setting("LARDER_SEED");
    let count = setting("LARDER_EVERYTHING").or(first.map(|_| 1)).unwrap_or(count);
    let first = first.unwrap_or(0);
    first..first + count
}

/// Runs seeds side by side.
fn each(seeds: std::ops::Range<u64>, name: &str, run: impl Fn(u64) -> Coverage + Sync) {
    let (next, all) = (AtomicU64::new(seeds.start), Mutex::new(Coverage::new()));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !seeds.contains(&seed) {
                        break;
                    }
                    let coverage = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
                    if seed > seeds.start && (seed - seeds.start).is_multiple_of(250) {
                        println!("seed {seed}");
                    }
                    let Ok(coverage) = coverage else {
                        println!("seed {seed}: failed; LARDER_TELL=1 tells its steps");
                        failed.lock().unwrap().push(seed);
                        continue;
                    };
                    let mut all = all.lock().unwrap();
                    coverage.into_iter().for_each(|(step, times)| *all.entry(step).or_default() += times);
                }
            });
        }
    });
    println!("seeds {seeds:?}: {:?}", all.into_inner().unwrap());
    let failed = failed.into_inner().unwrap();
    let replay = failed
        .first()
        .map(|seed| format!("LARDER_SEED={seed} cargo test -p larder-stream --test everything {name}"));
    assert!(
        failed.is_empty(),
        "{} seeds failed: {failed:?}\nreplay: {}",
        failed.len(),
        replay.unwrap_or_default()
    );
}

#[test]
fn pools_keep_what_they_have_and_free_the_rest_whatever_meets() {
    each(seeds(6, 4000), "meets", run);
}

/// The power is cut before every event of short runs, or of some of them.
#[test]
fn each_power_cut_leaves_a_moment_that_was() {
    let is_large = std::env::var_os("LARDER_LARGE").is_some();
    each(seeds(2, 200), "moment", |seed| {
        let mut run = Run::new(seed + 1_000_000);
        (0..20 + run.dice.below(40)).for_each(|number| run.step(number));
        let stride = if is_large { 1 } else { 11 };
        for side in &mut run.sides {
            let trace = side.sim.trace();
            let (mut cuts, mut sweep) = (0, trace.sweep());
            let first = Side::promises(&trace)[0] + seed as usize % stride;
            for at in (first..=trace.len()).step_by(stride) {
                cuts += 1;
                sweep.advance_to(at);
                let survival = run.dice.survival();
                let found = side.look_after(&sweep, &trace, survival);
                found.unwrap_or_else(|why| panic!("{}, {survival:?}: {why}", side.label));
            }
            *run.coverage.entry("every cut").or_default() += cuts;
        }
        std::mem::take(&mut run.coverage)
    });
}

/// Bugs on purpose in what frees, what protects and what streams leave; `LARDER_BUG` names one to look for alone.
#[cfg(feature = "mutants")]
#[test]
fn mutants_of_what_snapshots_and_streams_leave_are_found() {
    use larder_mutants::{Mutant, mutate};
    const SEEDS: u64 = 60;
    let all = [
        Mutant::ProtectionIgnored,
        Mutant::SharedNotMarked,
        Mutant::TreeForgotten,
        Mutant::QueueLost,
        Mutant::BookmarkKept,
    ];
    let wanted = std::env::var("LARDER_BUG");
    let is_wanted =
        |mutant: &Mutant| wanted.as_ref().is_ok_and(|name| *name == format!("{mutant:?}")) || wanted.is_err();
    std::panic::set_hook(Box::new(|_| ()));
    let hunt = |mutant| {
        (0..SEEDS).find(|seed| {
            mutate(Some(mutant));
            let outcome = std::panic::catch_unwind(|| run(*seed));
            mutate(None);
            outcome.is_err()
        })
    };
    let found: Vec<_> = all.into_iter().filter(is_wanted).map(|mutant| (mutant, hunt(mutant))).collect();
    drop(std::panic::take_hook());
    println!("found at seeds {found:?}");
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
