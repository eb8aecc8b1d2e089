//! A file that is as slow as a disk with one arm, for whatever else is to be measured on such disks: other file
//! systems, databases, programs of the kernel through a loop device.
//!
//! `cargo run --release -p larder-benches --bin spindle -- FILE FOLDER --gib 50` (see benches/README.md). Needs root.
//! Mounts FOLDER with one file in it, whose bytes are those of the sparse FILE. Requests are performed at once, in the
//! page cache of FILE, and answered when the disk of `larder_device::Disk` would have: the one that a `disk` line of a
//! fault device plays, by the same machinery. The kernel's page cache above is gone around, so no read is answered by
//! it; what is written there is written from pages, or by direct I/O, as programs do.
//!
//! ```sh
//! spindle /var/tmp/one.img /mnt/one --gib 4000 --disk 'rpm=7200 seek=0.5..16 rate=250M..110M span=4T' &
//! losetup --find --show --direct-io=on /mnt/one/disk     # without direct I/O a loop device asks one at a time
//! ```
//!
//! At the end, by SIGINT, SIGTERM or umount(8), it tells how many requests were answered later than by the disk; above
//! 1 % the run is void, and the exit code 1. What is written is safe from the end of programs, not from that of the
//! machine: nothing is flushed below.

mod compare;
mod file;

use clap::Parser;
use file::DiskFile;
use larder_device::DiskShape;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Serves a file that is as slow as a disk with one arm, until it is unmounted or stopped.
#[derive(Debug, Parser)]
struct Args {
    /// The sparse file that has its bytes: made if it is missing, and kept
    #[arg(required_unless_present = "compare")]
    file: Option<PathBuf>,
    /// The empty folder that it is mounted over
    #[arg(required_unless_present = "compare")]
    folder: Option<PathBuf>,
    /// Compares what fio measures on such files with what the disk would give, instead
    #[arg(long, conflicts_with_all = ["file", "folder", "gib", "name"])]
    compare: bool,
    /// Its size in gibibytes [default: that of FILE]
    #[arg(long)]
    gib: Option<u64>,
    /// The disk, as a `disk` line of a fault device has it; what is left out is as in 'rpm=5400 seek=2.2..22
    /// rate=180M..85M span=4T ncq=32 wcache=64M'
    #[arg(long, default_value = "", hide_default_value = true)]
    disk: DiskShape,
    /// Its name in FOLDER
    #[arg(long, default_value = "disk")]
    name: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match serve(args) {
        Ok(is_void) => ExitCode::from(u8::from(is_void)),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Serves it to the end; whether too many requests were late.
fn serve(args: Args) -> Result<bool, String> {
    let (Some(bytes), Some(folder)) = (args.file, args.folder) else {
        return compare::compare(args.disk).map(|agrees| !agrees);
    };
    let file = Arc::new(DiskFile::open(&bytes, &args.name, args.gib.map(|gib| gib << 30), args.disk)?);
    let served = file::mount(&file, &folder)?;
    stop_on_signals(&folder, &file);
    println!("{}: {} GiB", folder.join(&args.name).display(), file.size() >> 30);
    served.join().map_err(|error| error.to_string())?;
    Ok(tell(&file))
}

/// Tells how well the disk was kept to; whether too badly.
fn tell(file: &DiskFile) -> bool {
    let kept = file.close();
    println!("{}", kept.map_or_else(|| "of no requests none was late".to_owned(), |kept| kept.to_string()));
    kept.is_some_and(|kept| kept.is_void())
}

/// From now on, SIGINT and SIGTERM unmount: a mount in use when it is left, or with the next signal.
#[allow(clippy::disallowed_methods, reason = "a thread that waits for signals")]
fn stop_on_signals(folder: &std::path::Path, file: &Arc<DiskFile>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (folder, file) = (folder.to_owned(), Arc::clone(file));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let [mut int, mut term] = [SignalKind::interrupt(), SignalKind::terminate()]
                .map(|kind| signal(kind).expect("a signal handler"));
            let mut next = async || {
                tokio::select! {
                    _ = int.recv() => {}
                    _ = term.recv() => {}
                }
            };
            next().await;
            if !file::unmount(&folder) {
                eprintln!(
                    "{} is in use: it ends when it is closed, or with another signal",
                    folder.display()
                );
                next().await;
                tell(&file);
                std::process::exit(1);
            }
        });
    });
}
