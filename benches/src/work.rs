//! Work in a mounted folder: streams, random reads, appends, small files, copies of trees.

use crate::{Latencies, MIB, timed};
use larder_device::{AlignedBuf, Entropy, SeededEntropy};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Writes `mib` mebibytes of `content` in 1 MiB blocks, then calls fsync; the time of both.
pub fn write(file: &Path, content: &[u8], mib: usize) -> Duration {
    timed(|| {
        let mut file = File::create(file).expect("a file can be made");
        for block in content.chunks_exact(MIB).cycle().take(mib) {
            file.write_all(block).expect("it can be written");
        }
        file.sync_all().expect("it can be synced");
    })
}

/// Reads a file in 1 MiB blocks.
pub fn read(file: &Path) -> Duration {
    let mut block = vec![0; MIB];
    timed(|| {
        let mut file = File::open(file).expect("the file is there");
        while file.read(&mut block).expect("it can be read") > 0 {}
    })
}

/// Reads the first `mib` mebibytes past the kernel's cache, so that each request reaches the daemon.
pub fn read_direct(file: &Path, mib: usize) -> Duration {
    let file = direct(file);
    let mut block = AlignedBuf::zeroed(MIB);
    timed(|| (0..mib).for_each(|i| file.read_exact_at(&mut block, (i * MIB) as u64).expect("it can be read")))
}

/// Reads 4 KiB at random places within `mib` mebibytes, past the kernel's cache.
pub fn read_randomly(file: &Path, mib: usize, count: usize) -> Latencies {
    let file = direct(file);
    let rng = SeededEntropy::new(5);
    let mut page = AlignedBuf::zeroed(4096);
    Latencies::of(count, |_| {
        let at = rng.next_u64() % (mib * MIB / 4096) as u64 * 4096;
        file.read_exact_at(&mut page, at).expect("it can be read");
    })
}

fn direct(file: &Path) -> File {
    let flags = OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(file).expect("the file is there")
}

/// Appends 4 KiB and calls fsync, over and over.
pub fn append(file: &Path, content: &[u8], count: usize) -> Latencies {
    let mut file = File::create(file).expect("a file can be made");
    Latencies::of(count, |i| {
        file.write_all(&content[i * 4096 % (content.len() - 4096)..][..4096]).expect("it can be written");
        file.sync_data().expect("it can be synced");
    })
}

/// Times of many small files.
pub struct SmallFiles {
    /// Making them, 1 KiB each, one after another.
    pub create: Duration,
    /// Asking for the attributes of each.
    pub stat: Duration,
    /// Removing them.
    pub unlink: Duration,
}

/// Makes, looks at and removes `count` files. `forget` is called in between, to empty caches.
pub fn small_files(folder: &Path, content: &[u8], count: usize, forget: impl FnOnce()) -> SmallFiles {
    let paths = small_paths(folder, count);
    let create = timed(|| create(&paths, content));
    forget();
    let stat = timed(|| stat(&paths));
    let unlink = timed(|| unlink(&paths));
    SmallFiles { create, stat, unlink }
}

/// Names for `count` small files in one folder.
pub fn small_paths(folder: &Path, count: usize) -> Vec<PathBuf> {
    (0..count).map(|i| folder.join(format!("file{i:06}"))).collect()
}

/// Makes files of 1 KiB, one after another.
pub fn create(paths: &[PathBuf], content: &[u8]) {
    paths.iter().for_each(|path| fs::write(path, &content[..1024]).expect("it can be made"));
}

/// Asks for the attributes of each.
pub fn stat(paths: &[PathBuf]) {
    assert!(paths.iter().all(|path| fs::metadata(path).is_ok()), "a file is gone");
}

/// Removes them.
pub fn unlink(paths: &[PathBuf]) {
    paths.iter().for_each(|path| fs::remove_file(path).expect("it is there"));
}

/// Copies a tree's files by `threads` at once, as backup programs read them: contents, modes and times.
pub fn copy_tree(from: &Path, to: &Path, threads: usize) {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        fs::create_dir_all(to.join(&folder)).expect("a folder can be made");
        for entry in fs::read_dir(from.join(&folder)).expect("the source can be read").flatten() {
            let (path, kind) = (folder.join(entry.file_name()), entry.file_type().expect("its entries too"));
            if kind.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort_unstable();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut block = vec![0; MIB];
                while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    copy_file(&from.join(path), &to.join(path), &mut block);
                }
            });
        }
    });
}

fn copy_file(from: &Path, to: &Path, block: &mut [u8]) {
    let mut source = File::open(from).expect("the source can be read");
    let mut target = File::create(to).expect("a file can be made");
    loop {
        match source.read(block).expect("the source can be read") {
            0 => break,
            read => target.write_all(&block[..read]).expect("it can be written"),
        }
    }
    let meta = source.metadata().expect("an open file has them");
    target.set_permissions(meta.permissions()).expect("our own file");
    target.set_modified(meta.modified().expect("Linux has it")).expect("our own file");
}
