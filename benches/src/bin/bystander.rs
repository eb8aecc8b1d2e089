//! Latency of fsync beside other work: a 4 KiB append with fsync every 20 ms, alone, beside a stream that writes as
//! fast as it can, and beside that and an unlink every 6 ms.
//!
//! `cargo run --release -p larder-benches --bin bystander -- FOLDER` (see benches/README.md). Needs root. FOLDER holds
//! the devices, and is left as it was.

use clap::Parser;
use larder_benches::content::Content;
use larder_benches::daemon::pause;
use larder_benches::litter::{self, Item};
use larder_benches::peer::{Bed, Peer, Site};
use larder_benches::{MIB, timed};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Measures what a bystander's fsync costs.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// The binary [default: $LARDER, else beside this one]
    #[arg(long, env = "LARDER")]
    larder: Option<PathBuf>,
}

/// The devices, bytes: sparse.
const DEVICE: u64 = 8 << 30;
/// The stream goes round a file of so many mebibytes.
const STREAM_MIB: u64 = 1024;
const APPEND_EVERY: Duration = Duration::from_millis(20);
const UNLINK_EVERY: Duration = Duration::from_millis(6);

/// The other work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Stream,
    StreamAndUnlinks,
}

fn main() {
    let args = Args::parse();
    litter::clean_up_on_signals();
    let beside = || std::env::current_exe().expect("we run").with_file_name("larder");
    let larder = args.larder.clone().unwrap_or_else(beside);
    let folder = tempfile::tempdir_in(&args.folder).expect("the folder can be written");
    litter::add(Item::Folder(folder.path().to_owned()));
    let site = Site { folder: folder.path().to_owned(), larder, bytes: DEVICE, metered: false };
    println!("4 KiB appends with fsync, one every {} ms, for {} s\n", APPEND_EVERY.as_millis(), args.seconds);
    println!(
        "{:<14} {:<22} {:>8} {:>8} {:>8} {:>8}  stream",
        "", "beside", "fsyncs", "p50 ms", "p99 ms", "most ms"
    );
    let kinds = [
        ("nothing", Beside::Nothing),
        ("stream", Beside::Stream),
        ("stream, unlinks", Beside::StreamAndUnlinks),
    ];
    for peer in [Peer::LarderOff, Peer::Ext4] {
        if let Some(obstacle) = site.obstacle(peer) {
            println!("{}: {obstacle}", peer.name());
            continue;
        }
        for (name, beside) in kinds {
            let bed = Bed::new(peer, &site);
            let (mut waits, streamed) = measure(bed.path(), beside, Duration::from_secs(args.seconds));
            waits.sort_unstable();
            let at = |percent: usize| waits[(waits.len() - 1) * percent / 100].as_secs_f64() * 1e3;
            println!(
                "{:<14} {name:<22} {:>8} {:>8.2} {:>8.2} {:>8.2}  {} MiB/s",
                peer.name(),
                waits.len(),
                at(50),
                at(99),
                at(100),
                streamed / args.seconds
            );
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// The time of each append with its fsync, and the mebibytes that were streamed meanwhile.
fn measure(folder: &Path, beside: Beside, time: Duration) -> (Vec<Duration>, u64) {
    let doomed = folder.join("doomed");
    let count = (time.as_millis() / UNLINK_EVERY.as_millis()) as usize + 1;
    fs::create_dir(&doomed).expect("a folder can be made");
    if beside == Beside::StreamAndUnlinks {
        (0..count)
            .for_each(|i| fs::write(doomed.join(i.to_string()), [7; 1000]).expect("a file can be made"));
    }
    let mut log = File::create(folder.join("log")).expect("a file can be made");
    log.sync_all().expect("it can be synced");
    let (done, streamed) = (AtomicBool::new(false), AtomicU64::new(0));
    let goes_on = || !done.load(Ordering::Relaxed);
    let mut waits = Vec::new();
    std::thread::scope(|scope| {
        if beside != Beside::Nothing {
            scope.spawn(|| {
                let data = Content::Random.bytes(MIB);
                let file = File::create(folder.join("stream")).expect("a file can be made");
                for at in (0..STREAM_MIB).cycle().take_while(|_| goes_on()) {
                    file.write_all_at(&data, at * MIB as u64).expect("it can be written");
                    streamed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        if beside == Beside::StreamAndUnlinks {
            scope.spawn(|| {
                for i in (0..count).take_while(|_| goes_on()) {
                    fs::remove_file(doomed.join(i.to_string())).expect("it can be removed");
                    pause(UNLINK_EVERY);
                }
            });
        }
        let start = now();
        while start.elapsed() < time {
            let wait = timed(|| {
                log.write_all(&[3; 4096]).expect("it can be written");
                log.sync_data().expect("it can be synced");
            });
            waits.push(wait);
            pause(APPEND_EVERY.saturating_sub(wait));
        }
        done.store(true, Ordering::Relaxed);
    });
    (waits, streamed.into_inner())
}
