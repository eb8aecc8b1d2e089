//! Sampled estimates against exact ones, over varied corpora. What is told with a narrow range must be right; how often
//! nothing can be told is counted, and bounded.

mod corpora;

use larder_advise::{Estimate, KNOWN, Options, Report, Unwatched, advise};
use larder_device::{Inline, SystemClock};
use std::path::Path;

fn look(path: &Path, exact: bool, draws: u64, seed: u64, size: u64) -> Report {
    let options = Options {
        paths: vec![path.to_owned()],
        exact,
        // As of corpora of many gibibytes: a quarter is read, in cells that are as many.
        whole_below: size / 4,
        rate: 0.25,
        cell: 8 << 10,
        draws,
        seed,
        ..Options::default()
    };
    advise(&options, &SystemClock::new(), &Inline, &Unwatched).unwrap()
}

/// Figures of runs, and what became of them.
#[derive(Default, Debug)]
struct Tally {
    runs: u32,
    /// In which all that was told was right.
    good_runs: u32,
    right: u32,
    wrong: u32,
    unknown: u32,
    /// Of what is not known: the range holds the truth.
    unknown_held: u32,
    /// In which a figure that decides was not known: of records from 4K to cells' length.
    silent_runs: u32,
}

/// `LARDER_FULL`: a hundred runs of 64 MiB; else one of each kind. `LARDER_SEED` begins elsewhere.
#[test]
fn what_is_told_of_a_sample_lies_within_three_points_of_all() {
    let kinds = corpora::KINDS.len() as u64;
    let (runs, size) = match std::env::var_os("LARDER_FULL") {
        Some(_) => (100, 64 * corpora::MIB),
        None => (kinds, 24 * corpora::MIB),
    };
    let first: u64 = std::env::var("LARDER_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mut tally = Tally::default();
    for seed in first..first + runs {
        let kind = corpora::KINDS[(seed % kinds) as usize];
        let dir = tempfile::tempdir().unwrap();
        corpora::write(kind, seed, size, dir.path());
        // Cells are shorter than what codecs are tried on.
        let in_cells = ["images", "tars", "mixed"].contains(&kind);
        let draws = if in_cells { 1 } else { 400 };
        let exact = look(dir.path(), true, draws, seed, size as u64);
        let sampled = look(dir.path(), false, draws, seed, size as u64);
        assert!(exact.exact && !sampled.exact);
        assert_eq!(exact.folders[0].files, sampled.folders[0].files);
        let more = (sampled.data as f64 / size as f64).max(1.0).sqrt();
        assert!(sampled.read <= (size as f64 / 4.0 * more) as u64, "no more than it may is read");
        let (mut worst, mut silent): (f64, bool) = (0.0, false);
        let mut told = Vec::new();
        let mut hold = |what: String, truth: f64, said: Estimate| {
            let off = (said.value - truth).abs();
            let holds = said.low - 0.005 <= truth && truth <= said.high + 0.005;
            let mark = match () {
                () if !said.is_known() => {
                    tally.unknown += 1;
                    tally.unknown_held += u32::from(holds);
                    "?"
                }
                () if off <= KNOWN => {
                    tally.right += 1;
                    ""
                }
                () => {
                    tally.wrong += 1;
                    "!"
                }
            };
            worst = if said.is_known() { worst.max(off) } else { worst };
            let [value, low, high, truth] = [said.value, said.low, said.high, truth].map(|part| 100.0 * part);
            told.push(format!("{what}{mark} {value:.1} ({low:.1}-{high:.1}) / {truth:.1}"));
        };
        let (one, other) = (&exact.folders[0], &sampled.folders[0]);
        for (one, other) in one.dedup.iter().zip(&other.dedup) {
            hold(one.name(), one.gain.value, other.gain);
            silent |= !other.gain.is_known() && one.record <= 8 << 10;
        }
        hold("copies".to_owned(), one.whole_copies.value, other.whole_copies);
        for (one, other) in one.codecs.iter().zip(&other.codecs).filter(|_| !in_cells) {
            hold(one.codec.clone(), one.gain.value, other.gain);
        }
        tally.runs += 1;
        tally.good_runs += u32::from(worst <= KNOWN);
        tally.silent_runs += u32::from(silent);
        eprintln!("{seed:3} {kind:9} worst {:.1}: {}", worst * 100.0, told.join(" "));
    }
    eprintln!("{tally:?}");
    assert!(tally.good_runs * 100 >= tally.runs * 95 || tally.good_runs + 1 >= tally.runs, "{tally:?}");
    assert!(tally.unknown_held * 20 >= tally.unknown * 19, "ranges hold the truth: {tally:?}");
    // Of little data little is known: clusters are few.
    let silent = if runs < 100 { 2 } else { 3 };
    assert!(tally.silent_runs * silent <= tally.runs, "mostly something is told: {tally:?}");
}
