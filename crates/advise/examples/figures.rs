//! Figures of `docs/advise.md`: how fast `larder advise --exact` is beside reading and hashing the same files alone,
//! how soon a sample says that nothing pays, what memory a thousand million records take, how close samples come.
//! `cargo run --release -p larder-advise --example figures`; with `--out docs/advise.md` they go there. A count of 0
//! leaves a part out.

#[path = "../tests/advise/corpora.rs"]
mod corpora;
#[path = "../tests/advise/tally.rs"]
mod tally;

use clap::Parser;
use larder_advise::{Options, Report, Sample, Seen, Unwatched, advise, table_memory};
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
    #[arg(long, default_value_t = 8192)]
    mib: usize,
    /// Size of the films, MiB: more than what is read whole
    #[arg(long, default_value_t = 12_288)]
    films: usize,
    /// Rounds, of which the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Records whose fingerprints are given to a table of the default size
    #[arg(long, default_value_t = 1_000_000_000)]
    records: u64,
    /// Corpora of 64 MiB that are sampled
    #[arg(long, default_value_t = 100)]
    corpora: u64,
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

fn look(path: &Path, exact: bool, workers: &dyn Workers) -> Report {
    let options = Options { paths: vec![path.to_owned()], exact, ..Options::default() };
    advise(&options, &SystemClock::new(), workers, &Unwatched).unwrap()
}

/// Has the page cache forget files.
fn drop_cached(files: &[PathBuf]) {
    for file in files {
        let file = File::open(file).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// Seconds that processors spent on this process, by proc(5), in hundredths.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let after = stat.rsplit(')').next().unwrap();
    after.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let args = Args::parse();
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::tempdir_in(dir).unwrap();
    let workers = SystemWorkers::new().unwrap();
    let mut text = format!(
        "{MARK}Made by `cargo run --release -p larder-advise --example figures -- --out docs/advise.md` on a machine with {} \
         processors that others used, too.\n",
        std::thread::available_parallelism().map_or(1, usize::from)
    );
    if args.mib > 0 {
        text += &speed(&args, &dir.path().join("files"), &workers);
    }
    if args.films > 0 {
        let films = dir.path().join("films");
        write_films(&films, args.films);
        let report = look(&films, false, &workers);
        text += &format!(
            "\n{} MiB of noise in files of 512 MiB: \"{}\" after {:.1} s and {} MiB read, {:.1} % of it.\n",
            report.data >> 20,
            report.folders[0].verdict.text,
            report.seconds,
            report.read >> 20,
            100.0 * report.read as f64 / report.data as f64
        );
        fs::remove_dir_all(&films).unwrap();
    }
    if args.records > 0 {
        text += &records(args.records);
    }
    if args.corpora > 0 {
        let size = 64 * corpora::MIB;
        let sum = tally::sampled(0, args.corpora, size, &mut |line| eprintln!("{line}"));
        text += &format!(
            "\n{} samples of corpora of {}, a quarter read: in {} all that was told is within three points of what \
             `--exact` says (of codecs: of what all records take). Of {} figures {} were told and within \
             that, {} told and off by more; {} were told to be unknown, and the range held the truth in {} of those.\n",
            sum.runs,
            corpora::KINDS.join(", "),
            sum.good_runs,
            sum.right + sum.wrong + sum.unknown,
            sum.right,
            sum.wrong,
            sum.unknown,
            sum.unknown_held
        );
    }
    print!("{text}");
    if let Some(page) = &args.out {
        let before = fs::read_to_string(page).unwrap();
        let head = before.split(MARK).next().unwrap();
        fs::write(page, format!("{head}{text}")).unwrap();
    }
}

/// A table of records of 4 KiB of which every second one repeats another.
fn records(count: u64) -> String {
    let memory = table_memory(Options::default().memory);
    let (clock, random) = (SystemClock::new(), SeededEntropy::new(11));
    let began = clock.monotonic();
    let (mut sample, mut first) = (Sample::new(memory), 0);
    for number in 0..count {
        if number % 2 == 0 {
            first = random.next_u64();
        }
        sample.add(Seen::once(first, 4096, 0, (number % 2) as u32));
    }
    let taken = sample.memory();
    let (seen, threshold) = sample.into_sorted();
    let mut prints: Vec<(u64, u64)> =
        seen.iter().map(|one| (one.print, one.bytes().max(threshold))).collect();
    prints.dedup();
    let distinct: u64 = prints.iter().map(|(_, bytes)| bytes).sum();
    format!(
        "\n{count} records of 4 KiB, half of which repeat another, in a table of {:.1} MiB of its {:.1} (one of those that \
         share {} MiB): {:.1} s; it says that {:.2} % repeat, from {} that it kept.\n",
        taken as f64 / MIB as f64,
        memory as f64 / MIB as f64,
        Options::default().memory >> 20,
        (clock.monotonic() - began).as_secs_f64(),
        100.0 - 100.0 * distinct as f64 / (count * 4096) as f64,
        prints.len()
    )
}

/// Exactly, beside reading and hashing alone.
fn speed(args: &Args, folder: &Path, workers: &dyn Workers) -> String {
    let files = write_files(folder, args.mib);
    let clock = SystemClock::new();
    let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    let blake3 = |part: &[u8]| u64::from(blake3::hash(part).as_bytes()[0]);
    let xxh3 = |part: &[u8]| twox_hash::XxHash3_64::oneshot(part);
    let time = |run: &dyn Fn()| {
        let (began, busy) = (clock.monotonic(), processor_seconds());
        run();
        ((clock.monotonic() - began).as_secs_f64(), processor_seconds() - busy)
    };
    let exact = || assert!(look(folder, true, workers).exact);
    let runs: [(&str, &dyn Fn()); 4] = [
        ("reading, BLAKE3 of records of 128 KiB", &|| read_and_hash(&files, workers, 128 << 10, &blake3)),
        ("reading, BLAKE3 of records of 4 KiB", &|| read_and_hash(&files, workers, 4 << 10, &blake3)),
        ("reading, XXH3 of records of 4 KiB", &|| read_and_hash(&files, workers, 4 << 10, &xxh3)),
        ("`larder advise --exact`", &exact),
    ];
    let mut text = String::new();
    for from in ["disk", "page cache"] {
        let mut times: [Vec<(f64, f64)>; 4] = Default::default();
        runs[2].1();
        for _ in 0..args.rounds {
            for ((_, run), times) in runs.iter().zip(&mut times) {
                if from == "disk" {
                    drop_cached(&files);
                }
                times.push(time(run));
            }
        }
        let medians = times.map(|times| {
            let (walls, busies): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
            (median(walls), median(busies))
        });
        text += &format!(
            "\nMedians of {} rounds over {} files, {} MiB of text, noise and copies, from the {from}:\n\n\
             | | MiB/s | `--exact` beside it | processor s/GiB | `--exact` beside it |\n|---|--:|--:|--:|--:|\n",
            args.rounds,
            files.len(),
            bytes >> 20,
        );
        for ((name, _), (wall, busy)) in runs.iter().zip(medians) {
            let (rate, cost) = (bytes as f64 / MIB as f64 / wall, busy / (bytes as f64 / (1 << 30) as f64));
            let (faster, cheaper) = (wall / medians[3].0, busy / medians[3].1);
            text += &format!("| {name} | {rate:.0} | {faster:.2}x | {cost:.2} | {cheaper:.2}x |\n");
        }
    }
    fs::remove_dir_all(folder).unwrap();
    text
}
