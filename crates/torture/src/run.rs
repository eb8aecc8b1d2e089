//! A run: one pool after the other, until the time is over or something is lost.

use crate::beyond::go_beyond;
use crate::failure::{Failure, Outcome};
use crate::layout::Layout;
use crate::plan::{DEVICE_MIB, Life};
use crate::stage::{Stage, Watch};
use crate::tally::Tally;
use larder_device::{Clock, SystemClock};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that is put to it.
    pub program: PathBuf,
    /// Where folders are made.
    pub dir: PathBuf,
    /// Of the first pool; the next ones have the next seeds.
    pub seed: u64,
    /// Of all pools; without it, one after the other.
    pub layout: Option<Layout>,
    /// No round begins later.
    pub time: Duration,
    /// Most pools.
    pub pools: Option<u64>,
    /// More is harmed in the end than is tolerated.
    pub beyond: bool,
}

/// Where it ended.
#[derive(Debug)]
pub struct Lost {
    /// The reason.
    pub failure: Failure,
    /// Of the pool.
    pub seed: u64,
    /// Of the pool.
    pub layout: Layout,
    /// Whether it was beyond tolerance.
    pub beyond: bool,
    /// The evidence.
    pub folder: PathBuf,
}

impl Lost {
    /// The command that replays it.
    pub fn command(&self) -> String {
        let beyond = if self.beyond { " --beyond" } else { "" };
        format!("larder torture --seed {} --layout {} --pools 1{beyond}", self.seed, self.layout)
    }
}

/// Outcome of a run.
#[derive(Debug)]
pub struct Ran {
    /// Counts.
    pub tally: Tally,
    /// Its length.
    pub took: Duration,
    /// It was told to end.
    pub is_stopped: bool,
    /// None if nothing was lost.
    pub lost: Option<Lost>,
}

/// Most bytes that a pool of the layout takes: its devices, one that is kept aside, and those that come.
pub fn most_bytes(layout: Option<Layout>, beyond: bool) -> u64 {
    let of = |layout: Layout| {
        // A group that comes, a device that is replaced, one kept; or what repair saves.
        let devices = 2 * layout.devices() as u64 + 2;
        ((devices + if beyond { layout.devices() as u64 } else { 0 }) * DEVICE_MIB) << 20
    };
    layout.map_or_else(|| Layout::ALL.into_iter().map(of).max().unwrap_or(0), of)
}

/// Whether pools can be mounted here.
///
/// # Errors
/// The part that is missing.
pub fn check_host() -> Outcome<()> {
    let fuse = Path::new("/dev/fuse");
    if !fs::metadata(fuse).is_ok_and(|meta| meta.file_type().is_char_device()) {
        return Err(Failure::new(
            "there is no /dev/fuse: load the module (modprobe fuse), or give the container the device",
        ));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let open = File::options().read(true).write(true).open(fuse);
    if let Err(error) = open {
        return Err(Failure::new(format!("/dev/fuse cannot be opened: {error}; run it as root")));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists()) {
        return Err(Failure::new(
            "there is no fusermount3, which mounts for users: install fuse3, or run it as root",
        ));
    }
    Ok(())
}

/// Runs it.
///
/// # Errors
/// When it cannot begin; what is lost is no error.
pub fn run(options: &Options, watch: &dyn Watch) -> Outcome<Ran> {
    check_host()?;
    let clock = SystemClock::new();
    let began = clock.monotonic();
    let mut tally = Tally::default();
    let is_over = || watch.is_stopped() || clock.monotonic() - began >= options.time;
    let mut lost = None;
    let mut nth = 0;
    while !is_over() && lost.is_none() && options.pools.is_none_or(|pools| nth < pools) {
        let seed = options.seed.wrapping_add(nth);
        let layout = options.layout.unwrap_or(Layout::ALL[(seed % Layout::ALL.len() as u64) as usize]);
        let folder = options.dir.join(format!("larder-torture-{seed}-{layout}"));
        let life = Life::new(seed, layout, options.beyond);
        make_folder(&folder)?;
        let (done, failure) = live(options, &folder, &life, watch, &is_over);
        tally += &done;
        match failure {
            None => remove(&folder)?,
            Some(failure) => {
                let beyond = options.beyond;
                lost = Some(Lost { failure, seed, layout, beyond, folder });
            }
        }
        nth += 1;
    }
    Ok(Ran { tally, took: clock.monotonic() - began, is_stopped: watch.is_stopped(), lost })
}

/// One pool, from its making to its end: what was done, and what was wrong.
fn live(
    options: &Options,
    folder: &Path,
    life: &Life,
    watch: &dyn Watch,
    is_over: &dyn Fn() -> bool,
) -> (Tally, Option<Failure>) {
    let mut stage = match Stage::make(&options.program, folder, life.layout, watch) {
        Ok(stage) => stage,
        Err(failure) => {
            let_go(&folder.join("mnt"));
            return (Tally::default(), Some(failure.when("making the pool")));
        }
    };
    let lived = stage.live(life, is_over).and_then(|all| {
        if all && life.beyond {
            return go_beyond(&mut stage, life).map_err(|failure| failure.when("beyond tolerance"));
        }
        Ok(())
    });
    let tally = stage.tallied();
    match lived {
        Ok(()) => (tally, stage.end().and_then(|()| no_panics(&stage)).err()),
        Err(failure) => {
            stage.larder.note(&format!("FAILED: {failure}"));
            stage.evidence();
            // Nothing more is written to the devices.
            stage.larder.kill();
            let_go(stage.mount());
            (tally, Some(failure))
        }
    }
}

/// Takes a dead mount away, as far as that goes.
fn let_go(mount: &Path) {
    if unmount(mount, UnmountFlags::DETACH).is_err() {
        let _ = Command::new("fusermount3").arg("-uzq").arg(mount).status();
    }
}

fn no_panics(stage: &Stage<'_>) -> Outcome<()> {
    match stage.larder.panics() {
        None => Ok(()),
        Some(panic) => Err(Failure::new(format!("the daemon panicked: {panic}"))),
    }
}

/// A folder that was not there, for its owner alone.
fn make_folder(folder: &Path) -> Outcome<()> {
    if let Some(above) = folder.parent() {
        fs::create_dir_all(above).map_err(|error| Failure::new(format!("{}: {error}", above.display())))?;
    }
    DirBuilder::new().mode(0o700).create(folder).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::new(format!(
            "{} is there already, maybe of an earlier run: look into it and remove it",
            folder.display()
        )),
        _ => Failure::new(format!("{} cannot be made: {error}", folder.display())),
    })?;
    // Of a socket's path the kernel takes 107 bytes.
    let socket = folder.join("run/daemon.sock");
    if socket.as_os_str().len() > 107 {
        let _ = fs::remove_dir(folder);
        return Err(Failure::new(format!(
            "the path {} is too long for a socket: take a shorter --dir",
            socket.display()
        )));
    }
    Ok(())
}

/// Removes what is ours. Not what is mounted there: that would be the files of somebody.
fn remove(folder: &Path) -> Outcome<()> {
    let failed =
        |error: std::io::Error| Failure::new(format!("{} cannot be removed: {error}", folder.display()));
    let mount = folder.join("mnt");
    match fs::remove_dir(&mount) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    fs::remove_dir_all(folder).map_err(failed)
}
