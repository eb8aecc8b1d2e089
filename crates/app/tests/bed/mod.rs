//! Test bed of the end-to-end tests: a folder with devices, a run folder and a mount point, and the command. Takes root
//! and `/dev/fuse`; elsewhere each test says that it is skipped.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// A folder with everything in it, and a daemon when a command starts one.
pub struct Bed {
    pub dir: TempDir,
}

impl Bed {
    /// A bed for the test `name`; none where it cannot run.
    pub fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("SKIPPED {name}: it needs root and /dev/fuse");
            return None;
        }
        Some(Self { dir: tempfile::tempdir().unwrap() })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes empty devices `NAME0`, `NAME1`, … of `mib` MiB, without taking that space.
    pub fn devices(&self, folder: &str, count: usize, mib: u64) -> Vec<String> {
        fs::create_dir_all(self.path(folder)).unwrap();
        let make = |number: usize| {
            let path = self.path(folder).join(format!("disk{number}"));
            File::create(&path).unwrap().set_len(mib * MIB).unwrap();
            path.to_str().unwrap().to_owned()
        };
        (0..count).map(make).collect()
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        let dir = self.dir.path().to_str().unwrap();
        command
            .args(line.split_whitespace().map(|word| word.replace("DIR", dir)))
            .env("LARDER_RUN_DIR", self.path("run"))
            .current_dir(dir);
        command
    }

    pub fn larder(&self) -> &'static str {
        env!("CARGO_BIN_EXE_larder")
    }

    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs a command that must succeed; gives what it prints, errors and notes included.
    pub fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(output.status.success(), "larder {line}: {text}");
        text
    }

    /// Runs a command that must fail with this exit code; gives its error.
    pub fn fails(&self, code: i32, line: &str) -> String {
        let output = self.run(line);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "larder {line}: {text}");
        text
    }

    /// Makes a pool that is mounted at `mnt`.
    pub fn create(&self, name: &str, word: &str, devices: &[String]) {
        self.ok(&format!("pool create -m DIR/mnt {name} {word} {}", devices.join(" ")));
    }

    pub fn daemon(&self) -> Option<rustix::process::Pid> {
        let status = self.run("daemon status -j");
        let text = String::from_utf8(status.stdout).ok()?;
        let (_, rest) = text.split_once("\"pid\": ")?;
        rustix::process::Pid::from_raw(rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?)
    }

    /// Ends the daemon as a power cut would.
    pub fn kill_daemon(&self) {
        let pid = self.daemon().expect("a daemon runs");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        // Its files are closed when none of its threads is left but as a zombie.
        let lives = |task: fs::DirEntry| {
            fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| !stat.contains(") Z "))
        };
        while fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.flatten().any(lives)) {
            pause(Duration::from_millis(5));
        }
    }
}

impl Drop for Bed {
    /// Leaves neither a daemon nor a mount, whatever went wrong.
    fn drop(&mut self) {
        let stopped = self.run("daemon stop").status.success();
        if !stopped && let Some(pid) = self.daemon() {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let here = self.dir.path().to_str().unwrap_or_default().to_owned();
        for path in
            mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|path| path.starts_with(&here))
        {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Waits until this is so, and fails when it never is: for all that needs time, of which a busy machine has none.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1200 {
        if holds() {
            return;
        }
        pause(Duration::from_millis(50));
    }
    panic!("never {what}");
}

#[expect(clippy::disallowed_methods, reason = "a test that waits for another process")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Bytes that look random and do not compress.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
