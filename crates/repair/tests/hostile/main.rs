//! Hostile images: somebody who knows the pool's key changes what it is made of, and makes every sum right again. What
//! is then done with it ends with a value or an error, never with a panic, without an end, or in memory that no pool of
//! this size takes.
//!
//! The pools are the golden images. `LARDER_HOSTILE=n` is the number of cases, `LARDER_SEED=n` the first one;
//! `LARDER_HOSTILE_GOES_ON` counts what is found by its place instead of failing at the first. A case that does not end
//! ends the process, with its seed.

mod alloc;
mod cases;
mod forge;
#[path = "../../../files/tests/golden/image.rs"]
#[allow(dead_code, reason = "images are read here, and made elsewhere")]
mod image;
mod life;
mod survey;

use forge::{Dice, Forge};
use larder_sim::DeviceImage;
use larder_stream::wire::repair_sums;
use life::{Life, RunPart};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use survey::Survey;

/// Seconds after which a part of a life counts as endless: most take milliseconds.
const PATIENCE: u64 = 40;

thread_local! {
    /// Panics of this thread, caught or not, with where they happened.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// A part runs in this thread.
    static IS_TESTED: Cell<bool> = const { Cell::new(false) };
}

/// Seconds that the part of a life that runs has taken, and its name.
static TAKES: AtomicU64 = AtomicU64::new(0);
static DOES: Mutex<String> = Mutex::new(String::new());

/// Panics are noted instead of shown, and who takes forever ends the process.
fn watch() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_TESTED.get() {
                return before(info);
            }
            let trace = Backtrace::force_capture().to_string();
            let ours = trace.lines().filter(|line| line.contains("/crates/") && !line.contains("/hostile/"));
            let trace: Vec<&str> =
                ours.map(|line| line.rsplit("/crates/").next().unwrap_or(line)).take(9).collect();
            let at = info.location().map(ToString::to_string).unwrap_or_default();
            let payload = info.payload();
            let words = payload.downcast_ref::<&str>().map(|words| (*words).to_owned());
            let words = words.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
            PANICS.with_borrow_mut(|all| all.push(format!("{at}: {words}\n    {}", trace.join(", "))));
        }));
        #[allow(clippy::disallowed_methods, reason = "it watches from outside of what is tested")]
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                if TAKES.fetch_add(1, Ordering::Relaxed) > PATIENCE {
                    eprintln!("no end: {}", DOES.lock().unwrap());
                    std::process::abort();
                }
            }
        });
    });
}

/// Outcome of a case.
struct Outcome {
    told: Vec<String>,
    /// Parts that ended well, and those that were refused.
    done: BTreeMap<String, (u64, u64)>,
    /// Refusals by their part.
    refused: Vec<(String, String)>,
    found: Vec<String>,
}

/// Lives the life of a pool on these devices.
fn live(images: &[DeviceImage], dice: &Dice, case: &str) -> Outcome {
    watched(case, |part| {
        Life { dice, part }.live(images);
    })
}

/// Runs parts within limits.
fn watched(case: &str, run: impl FnOnce(RunPart<'_>)) -> Outcome {
    // Limits are the process's: one case at a time.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    watch();
    let mut done: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    let mut part = |name: &str, run: &mut dyn FnMut() -> Result<(), String>| {
        TAKES.store(0, Ordering::Relaxed);
        *DOES.lock().unwrap() = format!("{case}: {name}");
        PANICS.with_borrow_mut(Vec::clear);
        alloc::begin();
        IS_TESTED.set(true);
        let ended = catch_unwind(AssertUnwindSafe(run));
        IS_TESTED.set(false);
        let excess = alloc::end();
        let panics = PANICS.take();
        let count = done.entry(name.to_owned()).or_default();
        match &ended {
            Ok(Ok(())) => count.0 += 1,
            Ok(Err(why)) => {
                count.1 += 1;
                refused.push((name.to_owned(), why.clone()));
            }
            Err(_) => {}
        }
        let is_sound = panics.is_empty() && excess.is_none();
        found.extend(panics.into_iter().map(|panic| format!("{name}: {panic}")));
        found.extend(excess.map(|excess| format!("{name}: memory: {excess}")));
        ended.is_ok() && is_sound
    };
    run(&mut part);
    TAKES.store(0, Ordering::Relaxed);
    Outcome { told: Vec::new(), done, refused, found }
}

/// The sound images, each looked through once.
fn surveys() -> &'static [OnceLock<Survey>] {
    static ALL: OnceLock<Vec<OnceLock<Survey>>> = OnceLock::new();
    ALL.get_or_init(|| image::names().iter().map(|_| OnceLock::new()).collect())
}

fn survey(at: usize) -> &'static Survey {
    surveys()[at].get_or_init(|| Survey::new(image::load(&image::names()[at]).0))
}

/// A case by its seed.
fn case(seed: u64) -> Outcome {
    let at = seed as usize % surveys().len();
    let survey = survey(at);
    let dice = Dice::new(seed);
    let mut forge = Forge::new(survey, &dice);
    for _ in 0..[1, 1, 1, 2, 3][dice.below(5)] {
        forge.strike();
    }
    let (images, told) = (std::mem::take(&mut forge.devices), forge.told);
    let name = &image::names()[at];
    let mut outcome = live(&images, &dice, &format!("seed {seed}, {name}, {told:?}"));
    outcome.told = [vec![name.clone()], told].concat();
    outcome
}

/// Changes bytes of a stream, numbers most often, and makes the sums of its frames right.
fn forged_stream(sound: &[u8], dice: &Dice) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len());
        let len = [1, 1, 2, 4, 8][dice.below(5)].min(bytes.len() - at);
        match dice.below(6) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes[at..at + len].fill(0xff),
            2 => bytes[at..at + len].fill(0),
            3 => bytes[at] = bytes[at].wrapping_add(1),
            4 => {
                let from = at.saturating_sub(dice.below(200));
                let to = dice.below(bytes.len() - (at - from));
                bytes.copy_within(from..at, to);
            }
            _ => bytes[at..at + len].fill(b"/.\0\x7f"[dice.below(4)]),
        }
    }
    repair_sums(&mut bytes);
    bytes
}

fn number(name: &str, unless: u64) -> u64 {
    std::env::var(name).map_or(unless, |value| value.parse().unwrap())
}

#[test]
fn hostile_images_end_with_values_or_errors() {
    let (first, count) = (number("LARDER_SEED", 1), number("LARDER_HOSTILE", 150));
    let goes_on = std::env::var_os("LARDER_HOSTILE_GOES_ON").is_some();
    let mut done: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut found: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
    let (mut reasons, mut struck) =
        (BTreeMap::<(String, String), u64>::new(), BTreeMap::<String, u64>::new());
    for seed in first..first + count {
        let outcome = case(seed);
        for (part, why) in outcome.refused {
            let words = why.split(|of: char| of.is_ascii_digit()).next().unwrap_or_default().to_owned();
            *reasons.entry((part, words)).or_default() += 1;
        }
        let words =
            |told: &String| told.split(|of: char| of.is_ascii_digit()).next().unwrap_or_default().to_owned();
        outcome.told.iter().skip(1).for_each(|told| *struck.entry(words(told)).or_default() += 1);
        for (name, (well, refused)) in outcome.done {
            let count = done.entry(name).or_default();
            *count = (count.0 + well, count.1 + refused);
        }
        for what in outcome.found {
            assert!(
                goes_on,
                "LARDER_SEED={seed} LARDER_HOSTILE=1 cargo test -p larder-repair --test hostile: {:?}\n{what}",
                outcome.told
            );
            let place = what.lines().next().unwrap_or_default().to_owned();
            let all = found.entry(place).or_default();
            if all.is_empty() {
                println!("seed {seed}: {:?}\n{what}", outcome.told);
            }
            all.push((seed, what));
        }
    }
    println!("struck: {struck:?}");
    println!("parts, done and refused: {done:?}");
    reasons.iter().for_each(|((part, why), count)| println!("{count} times {part}: {why}"));
    for (place, all) in &found {
        let seeds: Vec<u64> = all.iter().map(|(seed, _)| *seed).take(8).collect();
        println!("{} times {place}: seeds {seeds:?}", all.len());
    }
    assert!(found.is_empty(), "{} kinds of findings", found.len());
    let refused = done.get("import for writing").map_or(0, |count| count.1);
    let well = done.get("export").map_or(0, |count| count.0);
    assert!(count < 100 || refused > 0 && well > 0, "the test shows nothing: {done:#?}");
}

#[test]
fn hostile_streams_end_with_values_or_errors() {
    let (first, count) = (number("LARDER_SEED", 1), number("LARDER_HOSTILE", 150));
    let names = ["v9-snapshots", "v9-lineages", "v9-datasets"];
    let sound: Vec<_> = names.iter().flat_map(|name| life::streams(&image::load(name).0)).collect();
    let (mut taken, mut refused) = (0_u64, 0_u64);
    for seed in first..first + count {
        let dice = Dice::new(seed);
        let (bytes, begin) = &sound[seed as usize % sound.len()];
        let forged = forged_stream(bytes, &dice);
        let outcome = watched(&format!("stream of seed {seed}"), |part| {
            part("receive", &mut || {
                *if life::receive(&forged, begin) { &mut taken } else { &mut refused } += 1;
                Ok(())
            });
        });
        assert!(
            outcome.found.is_empty(),
            "LARDER_SEED={seed} LARDER_HOSTILE=1 cargo test -p larder-repair --test hostile streams: {:#?}",
            outcome.found
        );
    }
    println!("{taken} streams taken, {refused} refused");
    assert!(count < 100 || taken > 0 && refused > 0, "the test shows nothing");
}
