//! Pools in this process on files that answer as disks with one arm would, and devices for copies beside them.

use crate::daemon::pause;
use crate::world;
use larder_device::{Device, FaultDevice, OpenMode, SystemWorkers};
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::{ImportOptions, Pool};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A file as a device, whose control file may make a disk of it; what that has to tell is printed, how many requests
/// were later than on the disk among it.
///
/// # Panics
/// If the file cannot be used.
pub fn open(path: &Path) -> Arc<dyn Device> {
    let report = |line: String| println!("  {line}");
    Arc::new(FaultDevice::open(path, OpenMode::Exclusive, report).expect("the file can be used"))
}

/// Has files answer like that disk, a line of a control file, or as they are. It is looked for within a second.
///
/// # Panics
/// If there can be no control file.
pub fn pace(paths: &[PathBuf], disk: Option<&str>) {
    for path in paths {
        let control = PathBuf::from(format!("{}.faults", path.display()));
        match disk {
            Some(line) => fs::write(control, format!("{line}\n")).expect("a control file"),
            None => drop(fs::remove_file(control)),
        }
    }
    pause(Duration::from_secs(2));
}

/// The pool on these devices; what its log holds is dropped.
///
/// # Panics
/// If there is none.
pub fn import<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Arc<Pool> {
    let found = paths.into_iter().map(|path| match scan(&open(path)) {
        Scan::Member(found) => *found,
        _ => panic!("{} is a pool's", path.display()),
    });
    let plan = assemble(found.collect()).pop().expect("the files are a pool");
    let world = world(Arc::new(SystemWorkers::new().expect("threads")));
    let pool = Pool::import(world, plan, &ImportOptions::default()).expect("it can be imported");
    pool.take_replay();
    pool.replayed();
    pool
}

/// Does something while copies are made, as the daemon makes them.
pub fn filling<T>(pool: &Pool, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                pool.store().read_cache.wait(Duration::from_millis(100));
                while pool.store().fill_read_cache() {}
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}
