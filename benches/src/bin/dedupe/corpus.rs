//! The corpus: a tree, copies of it with edits, versions of a large file, and a disk image with the tree once more.

use larder_benches::MIB;
use larder_device::{Entropy, SeededEntropy};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BLOCK: usize = 4096;

/// Writes about `mib` MiB below `at`; how many bytes.
pub fn write(at: &Path, mib: usize, seed: u64) -> u64 {
    let random = SeededEntropy::new(seed);
    let below = |most: u64| random.next_u64() % most;
    let part = mib * MIB / 4;
    fs::create_dir_all(at.join("versions")).expect("the corpus can be written");
    let mut image = File::create(at.join("disk.img")).expect("the corpus can be written");
    let (mut tree, mut number) = (0, 0);
    while tree < part {
        // Most files are small, most bytes are in large ones.
        let most = match below(10) {
            0..6 => 64 << 10,
            6..9 => 1 << 20,
            _ => 16 << 20,
        };
        let mut bytes = random.bytes(1 + below(most) as usize);
        tree += bytes.len();
        let path = |folder: &str| {
            let folder = at.join(format!("{folder}/{:03}", number / 100));
            fs::create_dir_all(&folder).expect("the corpus can be written");
            folder.join(format!("{number}"))
        };
        fs::write(path("tree"), &bytes).expect("the corpus can be written");
        // As a file system lays files out: each begins at a block.
        image.write_all(&bytes).expect("the corpus can be written");
        let rest = bytes.len().next_multiple_of(BLOCK) - bytes.len();
        image.write_all(&vec![0; rest]).expect("the corpus can be written");
        // One in four copies has been edited in one place.
        if below(4) == 0 {
            let from = below(bytes.len() as u64) as usize;
            let until = (from + 1 + below(8000) as usize).min(bytes.len());
            bytes[from..until].copy_from_slice(&random.bytes(until - from));
        }
        fs::write(path("copy"), &bytes).expect("the corpus can be written");
        number += 1;
    }
    image.write_all(&vec![0; 64 * MIB]).expect("the corpus can be written");
    let mut version = random.bytes(part / 4);
    for number in 0..4 {
        fs::write(at.join(format!("versions/{number}")), &version).expect("the corpus can be written");
        for _ in 0..40 {
            let at = below((version.len() - BLOCK) as u64) as usize;
            version[at..at + BLOCK].copy_from_slice(&random.bytes(BLOCK));
        }
    }
    length(at)
}

/// Changes files that have one in a hundred of all bytes: every other one is copied anew, the others are edited in one
/// place; how many bytes these files have.
pub fn change(at: &Path, total: u64, seed: u64) -> u64 {
    let random = SeededEntropy::new(seed);
    let mut files = Vec::new();
    find(&at.join("tree"), &mut files);
    let (mut changed, mut number) = (0, 0);
    while changed < total / 100 {
        let path = &files[(random.next_u64() % files.len() as u64) as usize];
        let size = path.metadata().map_or(0, |found| found.len());
        // The image and the versions are read whole when anything in them changes: they stay as they are.
        if size > total / 200 {
            continue;
        }
        if number % 2 == 0 {
            let bytes = fs::read(path).expect("it was written");
            fs::write(at.join(format!("new{number}")), bytes).expect("the corpus can be written");
        } else {
            let file = File::options().write(true).open(path).expect("it was written");
            file.write_all_at(&random.bytes(100), size / 2).expect("the corpus can be written");
        }
        changed += size;
        number += 1;
    }
    changed
}

fn find(at: &Path, files: &mut Vec<PathBuf>) {
    let mut names: Vec<PathBuf> =
        fs::read_dir(at).expect("it is a folder").map(|entry| entry.expect("it is read").path()).collect();
    names.sort();
    for path in names {
        if path.is_dir() {
            find(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn length(at: &Path) -> u64 {
    let mut files = Vec::new();
    find(at, &mut files);
    files.iter().map(|path| path.metadata().map_or(0, |found| found.len())).sum()
}
