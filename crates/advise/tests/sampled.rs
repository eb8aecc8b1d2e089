//! Sampled estimates against exact ones, over varied corpora.

mod corpora;

use larder_advise::{Estimate, KNOWN, Options, Report, Unwatched, advise};
use larder_device::{Inline, SystemClock};
use std::path::Path;

fn look(path: &Path, exact: bool, seed: u64, size: u64) -> Report {
    let options = Options {
        paths: vec![path.to_owned()],
        exact,
        // As of corpora of many gibibytes: a quarter is read, in cells that are as many.
        whole_below: size / 4,
        rate: 0.25,
        cell: 8 << 10,
        draws: 1000,
        seed,
        ..Options::default()
    };
    advise(&options, &SystemClock::new(), &Inline, &Unwatched).unwrap()
}

/// Runs, and of the figures told in them: right, wrong, not known.
#[derive(Default, Debug)]
struct Tally {
    runs: u32,
    good_runs: u32,
    right: u32,
    wrong: u32,
    unknown: u32,
    read: f64,
}

#[test]
fn what_is_told_of_a_sample_lies_within_three_points_of_all() {
    let (runs, size) = match () {
        () if std::env::var_os("LARDER_FULL").is_some() => (100, 64 * corpora::MIB),
        () => (corpora::KINDS.len() as u64, 32 * corpora::MIB),
    };
    let mut tally = Tally::default();
    for seed in 0..runs {
        let kind = corpora::KINDS[seed as usize % corpora::KINDS.len()];
        let dir = tempfile::tempdir().unwrap();
        corpora::write(kind, seed, size, dir.path());
        let exact = look(dir.path(), true, seed, size as u64);
        let sampled = look(dir.path(), false, seed, size as u64);
        assert!(exact.exact && !sampled.exact);
        assert_eq!(exact.folders[0].files, sampled.folders[0].files);
        let mut worst: f64 = 0.0;
        let mut told = Vec::new();
        let mut hold = |what: String, truth: f64, said: Option<Estimate>| {
            let Some(said) = said else {
                tally.unknown += 1;
                return;
            };
            let off = (said.value - truth).abs();
            let mark = match () {
                () if !said.is_known() => {
                    tally.unknown += 1;
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
        for (one, other) in exact.folders[0].dedup.iter().zip(&sampled.folders[0].dedup) {
            let truth = one.gain.unwrap().value;
            hold(format!("{}K", one.record >> 10), truth, other.gain);
        }
        // Cells are shorter than what codecs are tried on.
        let in_cells = ["images", "tars", "mixed"].contains(&kind);
        for (one, other) in exact.folders[0].codecs.iter().zip(&sampled.folders[0].codecs).filter(|_| !in_cells) {
            hold(one.codec.clone(), one.gain.value, Some(other.gain));
        }
        let part = sampled.read as f64 / sampled.data as f64;
        tally.read += part;
        tally.runs += 1;
        tally.good_runs += u32::from(worst <= KNOWN);
        eprintln!("{seed:3} {kind:9} read {part:.2} worst {:.1}: {}", worst * 100.0, told.join(" "));
    }
    eprintln!("{tally:?}");
    assert!(tally.good_runs * 100 >= tally.runs * 95 || tally.runs < 20 && tally.good_runs + 1 >= tally.runs, "{tally:?}");
    assert!(tally.right > 4 * tally.unknown / 10, "something is told: {tally:?}");
}
