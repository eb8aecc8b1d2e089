//! That which is read, remembered and claimed has bounds.

use crate::corpora;
use larder_advise::{Options, Report, Unwatched, Watch, advise};
use larder_device::{Inline, SystemClock};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

fn look(options: Options, path: &Path, watch: &dyn Watch) -> Report {
    let options = Options { paths: vec![path.to_owned()], ..options };
    advise(&options, &SystemClock::new(), &Inline, watch).unwrap()
}

/// Interrupts after so many bytes.
struct Until {
    most: u64,
    read: AtomicU64,
}

impl Until {
    fn bytes(most: u64) -> Self {
        Self { most, read: AtomicU64::new(0) }
    }
}

impl Watch for Until {
    fn counted(&self, _: u64, _: u64) {}
    fn planned(&self, _: u64, _: bool) {}
    fn read(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }
    fn stopped(&self) -> bool {
        self.read.load(Ordering::Relaxed) >= self.most
    }
}

/// Interrupts while files are counted.
struct AtOnce;

impl Watch for AtOnce {
    fn counted(&self, _: u64, _: u64) {}
    fn planned(&self, _: u64, _: bool) {}
    fn read(&self, _: u64) {}
    fn stopped(&self) -> bool {
        true
    }
}

#[test]
fn no_sample_is_larger_than_it_may_be() {
    for seed in 0..12 {
        let kind = ["images", "mixed", "tars", "duplicate"][seed as usize % 4];
        let dir = corpora::folder();
        let size = 16 * corpora::MIB as u64;
        corpora::write(kind, seed, size as usize, dir.path());
        // A twentieth of all: what is promised for 100 GiB and more.
        let most = size / 20;
        let options = Options { whole_below: most, rate: 0.05, cell: 8 << 10, seed, ..Options::default() };
        let report = look(options, dir.path(), &Unwatched);
        assert!(report.read <= (report.data as f64 * 0.05 * 1.1) as u64 + 1);
        let bound = (most as f64 * (report.data as f64 / size as f64).max(1.0).sqrt()) as u64;
        assert!(report.read <= bound, "{kind}: {} of {bound} bytes", report.read);
        assert!(report.read > bound / 2, "{kind}: it reads most of what it may: {} of {bound}", report.read);
    }
}

/// That which is known when the first half was read: the other may be anything.
#[test]
fn what_an_interrupted_scan_says_holds_for_all_of_it() {
    let dir = corpora::folder();
    corpora::write("unique", 3, 16 * corpora::MIB, &dir.path().join("a"));
    corpora::write("duplicate", 4, 16 * corpora::MIB, &dir.path().join("b"));
    let all = look(Options { exact: true, ..Options::default() }, dir.path(), &Unwatched);
    for most in [1, 8, 20, 31] {
        let options = Options { exact: true, memory: 64 << 20, ..Options::default() };
        let report = look(options, dir.path(), &Until::bytes(most << 20));
        assert!(!report.complete);
        let whole = &report.folders[0];
        assert!(whole.seen < 1.0 && whole.seen > 0.0, "{}", whole.seen);
        for (said, truth) in whole.dedup.iter().zip(&all.folders[0].dedup) {
            let (name, said, truth) = (said.name(), said.gain, truth.gain.value);
            assert!(
                said.low <= truth + 1e-6 && truth <= said.high + 1e-6,
                "{most} MiB, {}: {said:?}, {truth}",
                name
            );
        }
        let (said, truth) = (whole.whole_copies, all.folders[0].whole_copies.value);
        assert!(said.low <= truth + 1e-6 && truth <= said.high + 1e-6, "{most} MiB: {said:?}, {truth}");
        if most < 20 {
            assert_eq!(whole.verdict.dedup, None, "{}", whole.verdict.text);
            assert!(whole.verdict.text.contains("interrupted"), "{}", whole.verdict.text);
        }
    }
    // Of a folder that was read to its end all is known.
    let report = look(Options { exact: true, ..Options::default() }, dir.path(), &Until::bytes(24 << 20));
    let first = report.folders.iter().find(|folder| folder.path.ends_with("a")).unwrap();
    assert_eq!((first.seen, first.verdict.dedup), (1.0, Some(false)), "{}", first.verdict.text);
}

#[test]
fn a_scan_that_was_interrupted_while_it_counted_claims_nothing() {
    let dir = corpora::folder();
    corpora::write("sources", 1, corpora::MIB, dir.path());
    let report = look(Options::default(), dir.path(), &AtOnce);
    let whole = &report.folders[0];
    assert!(!report.complete && !report.counted);
    assert_eq!((whole.verdict.dedup, whole.verdict.compression.as_deref()), (None, None));
    assert!(whole.dedup.iter().all(|dedup| !dedup.gain.is_known()) && !whole.whole_copies.is_known());
    assert!(
        !whole.verdict.text.contains("neither") && whole.verdict.commands.is_empty(),
        "{:?}",
        whole.verdict
    );
}

/// Large files with much room in them, beside files without: holes weigh nothing.
#[test]
fn holes_have_no_weight() {
    let dir = corpora::folder();
    corpora::write("unique", 5, 8 * corpora::MIB, &dir.path().join("plain"));
    // Two images with the same 8 MiB, spread over 4 GiB.
    let mut data = Vec::new();
    let from = corpora::folder();
    corpora::write("unique", 6, 8 * corpora::MIB, from.path());
    let mut todo = vec![from.path().to_owned()];
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => todo.push(entry.path()),
                false => data.extend(fs::read(entry.path()).unwrap()),
            }
        }
    }
    for name in ["one.img", "two.img"] {
        let file = File::create(dir.path().join(name)).unwrap();
        file.set_len(4 << 30).unwrap();
        for (at, part) in data.chunks(64 << 10).enumerate() {
            file.write_all_at(part, at as u64 * (29 << 20) / (64 << 10) * (64 << 10)).unwrap();
        }
    }
    let all = look(Options { exact: true, ..Options::default() }, dir.path(), &Unwatched);
    let truth = all.folders[0].dedup[0].gain.value;
    assert!(
        (truth - 0.333).abs() < 0.02 && all.folders[0].data < 26 << 20,
        "{truth} of {}",
        all.folders[0].data
    );
    let mut known = 0;
    for seed in 0..10 {
        let options = Options { whole_below: 6 << 20, rate: 0.25, cell: 8 << 10, seed, ..Options::default() };
        let report = look(options, dir.path(), &Unwatched);
        let said = report.folders[0].dedup[0].gain;
        assert!(said.low <= truth && truth <= said.high, "{said:?}, {truth}");
        known += u32::from(said.is_known());
        assert!((said.value - truth).abs() < 0.06, "{said:?}, {truth}");
    }
    assert!(known >= 5, "{known} of 10 are known");
}

/// Folders that do not fit into memory count to those above them, those beside them stay.
#[test]
fn more_folders_than_memory_holds_are_told_with_those_above() {
    let dir = corpora::folder();
    for number in 0..9000 {
        let below = dir.path().join(format!("many/{number:04}"));
        fs::create_dir_all(&below).unwrap();
    }
    fs::write(dir.path().join("many/0007/file"), vec![1; 10_000]).unwrap();
    corpora::write("sources", 1, 2 * corpora::MIB, &dir.path().join("zz"));
    let options = Options { exact: true, depth: 2, memory: 64 << 20, ..Options::default() };
    let report = look(options, dir.path(), &Unwatched);
    assert!(report.merged);
    let last = report.folders.iter().find(|folder| folder.path.ends_with("zz")).expect("it is told apart");
    assert_eq!((last.depth, last.seen), (1, 1.0));
    assert_eq!(report.folders[0].files, last.files + 1);
    let sum: u64 = report.folders[0].data;
    assert_eq!(sum, last.data + 10_000);
}

/// A long folder is gone through in parts: every file is met once.
#[test]
fn every_file_of_a_long_folder_is_counted_once() {
    let dir = corpora::folder();
    for number in 0..12_000 {
        fs::write(dir.path().join(format!("{number}-{}", "x".repeat(200))), [1]).unwrap();
    }
    // Names of 12,000 files take more than there is for them.
    let report =
        look(Options { exact: true, memory: 64 << 20, ..Options::default() }, dir.path(), &Unwatched);
    assert_eq!((report.folders[0].files, report.data), (12_000, 12_000));
}
