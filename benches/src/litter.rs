//! A list of the run's processes, mounts, loop devices and folders, for Ctrl-C and SIGTERM to clean up.
//!
//! Each is added when it is made, and taken off the list when it is gone. On a signal those still listed
//! are ended, unmounted, detached and removed, by their id or path; nothing else is touched. The lock
//! stays held meanwhile, so the run makes nothing new.

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One thing to take away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A process that we started and have not waited for.
    Process(u32),
    /// A mount of ours.
    Mount(PathBuf),
    /// A loop device that we attached.
    Loop(String),
    /// A folder of ours with all that is in it.
    Folder(PathBuf),
}

static LITTER: Mutex<Vec<Item>> = Mutex::new(Vec::new());

/// Remembers an item.
pub fn add(item: Item) {
    LITTER.lock().push(item);
}

/// Forgets an item, which is gone.
pub fn gone(item: &Item) {
    LITTER.lock().retain(|known| known != item);
}

/// From now on, SIGINT and SIGTERM clean up and end this process.
#[allow(clippy::disallowed_methods, reason = "a thread that waits for signals")]
pub fn clean_up_on_signals() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .expect("a signal handler");
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = term.recv() => {}
            }
        });
        let mut litter = LITTER.lock();
        eprintln!("\nstopped: cleaning up");
        litter.drain(..).rev().for_each(take_away);
        std::process::exit(130);
    });
}

fn take_away(item: Item) {
    let quietly = |command: &mut Command| drop(command.output());
    match item {
        Item::Process(pid) => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        Item::Mount(path) => quietly(Command::new("umount").arg("-l").arg(path)),
        Item::Loop(device) => quietly(Command::new("losetup").args(["-d", &device])),
        Item::Folder(path) => remove(&path),
    }
}

/// Removes a folder of ours, but nothing that is mounted in it.
pub fn remove(path: &Path) {
    drop(Command::new("rm").args(["-rf", "--one-file-system"]).arg(path).output());
}
