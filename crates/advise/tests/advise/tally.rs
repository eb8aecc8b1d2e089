//! Sampled estimates held against exact ones.

use crate::corpora::{KINDS, folder, write};
use larder_advise::{CODECS, Estimate, KNOWN, Options, Report, Unwatched, advise, stored};
use larder_device::{Inline, SystemClock};
use std::fs;
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

/// Bytes below a folder, and what they take in records of 128 KiB, by codec.
fn compressed(path: &Path) -> (u64, [u64; CODECS.len()]) {
    let (mut plain, mut taken) = (0, [0; CODECS.len()]);
    for entry in fs::read_dir(path).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            let below = compressed(&entry.path());
            plain += below.0;
            taken.iter_mut().zip(below.1).for_each(|(sum, one)| *sum += one);
            continue;
        }
        let bytes = fs::read(entry.path()).unwrap();
        plain += bytes.len() as u64;
        for record in bytes.chunks(128 << 10) {
            taken.iter_mut().zip(CODECS).for_each(|(sum, codec)| *sum += stored(codec, record));
        }
    }
    (plain, taken)
}

/// Figures of runs, and what became of them.
#[derive(Default, Debug)]
pub struct Tally {
    pub runs: u32,
    /// In which all that was told was right.
    pub good_runs: u32,
    pub right: u32,
    pub wrong: u32,
    pub unknown: u32,
    /// Of what is not known: the range holds the truth.
    pub unknown_held: u32,
    /// In which a figure that decides was not known: of records from 4K to cells' length.
    pub silent_runs: u32,
}

/// Runs over corpora of all kinds in turn, of `size` bytes, with seeds from `first` on; each is told to `line`.
pub fn sampled(first: u64, runs: u64, size: usize, line: &mut dyn FnMut(String)) -> Tally {
    let only = std::env::var("LARDER_KIND").ok();
    let all: Vec<&str> =
        KINDS.into_iter().filter(|kind| only.as_ref().is_none_or(|one| one == kind)).collect();
    assert!(!all.is_empty(), "LARDER_KIND is one of {KINDS:?}");
    let kinds = all.len() as u64;
    let mut tally = Tally::default();
    for seed in first..first + runs {
        let kind = all[(seed % kinds) as usize];
        let dir = folder();
        write(kind, seed, size, dir.path());
        // Cells are shorter than what codecs are tried on.
        let in_cells = ["images", "tars", "mixed"].contains(&kind);
        let draws = if in_cells { 1 } else { Options::default().draws };
        let exact = look(dir.path(), true, 1, seed, size as u64);
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
        if !in_cells {
            // Exactly, records are drawn, too: the truth is what all of them take. What would grow gains nothing.
            let (plain, taken) = compressed(dir.path());
            for (said, taken) in other.codecs.iter().zip(taken) {
                hold(said.codec.clone(), (1.0 - taken as f64 / plain as f64).max(0.0), said.gain);
            }
        }
        tally.runs += 1;
        tally.good_runs += u32::from(worst <= KNOWN);
        tally.silent_runs += u32::from(silent);
        line(format!("{seed:3} {kind:9} worst {:.1}: {}", worst * 100.0, told.join(" ")));
    }
    tally
}
