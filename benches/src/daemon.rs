//! A daemon of the benchmark's own, with one pool.

use crate::device::sparse_file;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The pool's name.
pub const POOL: &str = "bench";

/// A pool's layout, and the devices it takes.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The layout word; empty for a single device.
    pub word: &'static str,
    /// Files it lies on.
    pub devices: usize,
    /// Data columns of them.
    pub data: usize,
}

impl Layout {
    /// Its name in tables.
    pub fn name(&self) -> &'static str {
        if self.word.is_empty() { "single" } else { self.word }
    }

    /// Makes its devices in `folder`: sparse files of `bytes` each.
    pub fn files(&self, folder: &Path, bytes: u64) -> Vec<PathBuf> {
        let paths: Vec<_> = (0..self.devices).map(|i| folder.join(format!("device{i}"))).collect();
        paths.iter().for_each(|path| sparse_file(path, bytes));
        paths
    }
}

/// A running daemon; dropping it ends it.
pub struct Daemon {
    larder: PathBuf,
    folder: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts `larder` as a daemon whose run folder lies in `folder`.
    pub fn start(larder: &Path, folder: &Path) -> Self {
        let log = File::create(folder.join("daemon.log")).expect("the folder can be written");
        let child = Command::new(larder)
            .args(["daemon", "--no-import"])
            .env("LARDER_RUN_DIR", folder.join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", larder.display()));
        let daemon = Self { larder: larder.to_owned(), folder: folder.to_owned(), child };
        for _ in 0..200 {
            if daemon.command(&["daemon", "status"]).output().is_ok_and(|output| output.status.success()) {
                return daemon;
            }
            pause(Duration::from_millis(50));
        }
        panic!("the daemon does not answer; see {}", folder.join("daemon.log").display());
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A command of this daemon's.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.larder);
        command.env("LARDER_RUN_DIR", self.folder.join("run")).args(arguments);
        command
    }

    /// Runs a command, which must succeed; gives what it prints.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("larder runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "larder {}: {told}", arguments.join(" "));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A property of the pool, in its exact form, as a number.
    pub fn figure(&self, property: &str) -> u64 {
        let told = self.run(&["pool", "get", "-Hp", "-o", "value", property, POOL]);
        told.parse().unwrap_or_else(|_| panic!("{property} is '{told}'"))
    }

    /// Makes the pool on `devices` and mounts it at `mountpoint`.
    pub fn create(&self, layout: Layout, devices: &[PathBuf], properties: &[String], mountpoint: &Path) {
        let mut arguments = vec!["pool", "create", "-m", text(mountpoint)];
        properties.iter().for_each(|property| arguments.extend(["-O", property]));
        arguments.push(POOL);
        if !layout.word.is_empty() {
            arguments.push(layout.word);
        }
        arguments.extend(devices.iter().map(|path| text(path)));
        self.run(&arguments);
        assert_mounted(mountpoint);
    }

    /// Exports and imports the pool: nothing stays in any cache.
    pub fn import_again(&self, mountpoint: &Path) {
        self.run(&["pool", "export", POOL]);
        self.run(&["pool", "import", "-d", text(&self.folder), POOL]);
        assert_mounted(mountpoint);
    }

    /// Sets a property of the pool's top dataset.
    pub fn set(&self, name: &str, value: &str) {
        self.run(&["fs", "set", &format!("{name}={value}"), POOL]);
    }

    /// Commits: what was written before survives a crash.
    pub fn sync(&self) {
        self.run(&["pool", "sync", POOL]);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let stopped = self.command(&["daemon", "stop"]).output().is_ok_and(|output| output.status.success());
        if !stopped {
            // A benchmark that failed half-way; what the daemon held is thrown away anyhow.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Nothing may be written into a mountpoint on which nothing is mounted.
fn assert_mounted(mountpoint: &Path) {
    assert!(is_mounted(mountpoint), "nothing is mounted at {}", mountpoint.display());
}

/// Whether something is mounted at this path, which must be absolute.
pub fn is_mounted(mountpoint: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("Linux tells what is mounted");
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(text(mountpoint)))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this benchmark's own")
}

/// Waits.
#[allow(clippy::disallowed_methods, reason = "waits for another process")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
