//! `larder advise --exact` beside reading and hashing the same files alone, both from the page cache and with the same
//! workers; and how soon a sample says that nothing pays. `cargo run --release -p larder-advise --example speed`; with
//! `--out docs/advise.md` the figures go there.

use clap::Parser;
use larder_advise::{Options, Report, Unwatched, advise};
use larder_device::{Clock, Entropy, SeededEntropy, SystemClock, SystemWorkers, Workers};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: usize = 1 << 20;
/// Above this line of the page nothing is changed.
const MARK: &str = "## Figures\n";

#[derive(Parser)]
struct Args {
    /// Size of the files, MiB
    #[arg(long, default_value_t = 2048)]
    mib: usize,
    /// Size of the films, MiB: more than what is read whole
    #[arg(long, default_value_t = 12_288)]
    films: usize,
    /// Rounds, of which the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Records that are compressed
    #[arg(long, default_value_t = Options::default().draws)]
    draws: u64,
    /// Folder for the files
    #[arg(long, env = "DIR")]
    dir: Option<PathBuf>,
    /// Page that the figures go to
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Text and noise in files of up to 4 MiB, a third of them copies.
fn write_files(to: &Path, mib: usize) -> Vec<PathBuf> {
    let random = SeededEntropy::new(7);
    let (mut files, mut sum, mut last) = (Vec::new(), 0, Vec::new());
    while sum < mib * MIB {
        let len = 4096 + random.next_u64() as usize % (4 * MIB);
        if files.len() % 3 != 2 {
            last = random.bytes(len);
            if files.len() % 3 == 1 {
                last.iter_mut().for_each(|byte| *byte = b"etaoin shrdlu ,.\n"[usize::from(*byte) % 17]);
            }
        }
        let folder = to.join(format!("{}", files.len() % 20));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(files.len().to_string());
        fs::write(&path, &last).unwrap();
        sum += last.len();
        files.push(path);
    }
    files
}

/// Files of 512 MiB of noise.
fn write_films(to: &Path, mib: usize) {
    let random = SeededEntropy::new(9);
    fs::create_dir_all(to).unwrap();
    for number in 0..mib / 512 {
        let mut file = File::create(to.join(format!("{number}.mkv"))).unwrap();
        for _ in 0..128 {
            file.write_all(&random.bytes(4 * MIB)).unwrap();
        }
    }
}

/// Reads all files by parts of 1 MiB and hashes them by records.
fn read_and_hash(
    files: &[PathBuf],
    workers: &dyn Workers,
    record: usize,
    hash: &(dyn Fn(&[u8]) -> u64 + Sync),
) {
    let sum = AtomicU64::new(0);
    workers.for_each(files.len(), &|at| {
        let mut buffer = vec![0; MIB];
        let mut file = File::open(&files[at]).unwrap();
        loop {
            let mut filled = 0;
            while filled < MIB {
                match file.read(&mut buffer[filled..]).unwrap() {
                    0 => break,
                    read => filled += read,
                }
            }
            buffer[..filled].chunks(record).for_each(|part| {
                sum.fetch_add(hash(part), Ordering::Relaxed);
            });
            if filled < MIB {
                break;
            }
        }
    });
    std::hint::black_box(sum.into_inner());
}

fn look(path: &Path, exact: bool, draws: u64, workers: &dyn Workers) -> Report {
    let options = Options { paths: vec![path.to_owned()], exact, draws, ..Options::default() };
    advise(&options, &SystemClock::new(), workers, &Unwatched).unwrap()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let args = Args::parse();
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::tempdir_in(dir).unwrap();
    let (clock, workers) = (SystemClock::new(), SystemWorkers::new().unwrap());
    let folder = dir.path().join("files");
    let files = write_files(&folder, args.mib);
    let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    let blake3 = |part: &[u8]| u64::from(blake3::hash(part).as_bytes()[0]);
    let xxh3 = |part: &[u8]| twox_hash::XxHash3_64::oneshot(part);
    // All of it is in the page cache from here on.
    read_and_hash(&files, &workers, 128 << 10, &xxh3);
    let time = |run: &dyn Fn()| {
        let began = clock.monotonic();
        run();
        (clock.monotonic() - began).as_secs_f64()
    };
    let mut rows = [const { Vec::new() }; 4];
    for _ in 0..args.rounds {
        rows[0].push(time(&|| read_and_hash(&files, &workers, 128 << 10, &blake3)));
        rows[1].push(time(&|| read_and_hash(&files, &workers, 4 << 10, &blake3)));
        rows[2].push(time(&|| read_and_hash(&files, &workers, 4 << 10, &xxh3)));
        rows[3].push(time(&|| assert!(look(&folder, true, args.draws, &workers).exact)));
    }
    let times = rows.map(|mut row| median(&mut row));
    let names = [
        "reading, BLAKE3 of records of 128 KiB",
        "reading, BLAKE3 of records of 4 KiB",
        "reading, XXH3 of records of 4 KiB",
        "`larder advise --exact`",
    ];
    let mut text = format!(
        "{MARK}Made by `cargo run --release -p larder-advise --example speed -- --out docs/advise.md`: the median of {} rounds over \
         {} files, {} MiB, from the page cache, {} workers.\n\n| | MiB/s | `--exact` beside it |\n|---|--:|--:|\n",
        args.rounds,
        files.len(),
        bytes >> 20,
        std::thread::available_parallelism().map_or(1, usize::from),
    );
    for (name, time) in names.iter().zip(times) {
        let rate = bytes as f64 / MIB as f64 / time;
        text += &format!("| {name} | {rate:.0} | {:.2}x |\n", time / times[3]);
    }
    drop(files);
    fs::remove_dir_all(&folder).unwrap();
    if args.films > 0 {
        let films = dir.path().join("films");
        write_films(&films, args.films);
        let report = look(&films, false, args.draws, &workers);
        text += &format!(
            "\n{} MiB of noise in files of 512 MiB: \"{}\" after {:.1} s and {} MiB read, {:.1} % of it.\n",
            report.data >> 20,
            report.folders[0].verdict.text,
            report.seconds,
            report.read >> 20,
            100.0 * report.read as f64 / report.data as f64
        );
    }
    print!("{text}");
    if let Some(page) = &args.out {
        let before = fs::read_to_string(page).unwrap();
        let head = before.split(MARK).next().unwrap();
        fs::write(page, format!("{head}{text}")).unwrap();
    }
}
