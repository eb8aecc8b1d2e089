//! The tree: its folders, and the files in them. Symbolic links are not followed, other file systems are left out
//! unless asked for, a file with several names counts once.

use crate::kind::Kind;
use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folders that are told apart at most; deeper ones count to the one above.
const MOST_FOLDERS: usize = 20_000;
/// Files with several names that are remembered at most; names beyond count as files of their own.
const MOST_LINKS: usize = 1 << 20;
/// Failures that are told by name.
const MOST_FAILURES: usize = 20;

/// A folder, with all below it once [`Folders::sum_up`] was called.
#[derive(Debug, Clone, Default)]
pub struct Folder {
    /// Its path.
    pub path: PathBuf,
    /// The one that it lies in; the first is its own.
    pub above: u32,
    /// Steps from the top.
    pub depth: u32,
    /// Number of files.
    pub files: u64,
    /// Lengths of files, bytes.
    pub size: u64,
    /// Bytes that are no holes.
    pub data: u64,
    /// Of those, by kind of file.
    pub kinds: [u64; Kind::COUNT],
    /// Those below it have numbers from its own to this one, which is not among them.
    pub end: u32,
}

/// All folders: numbered in the order of the walk, so those below one follow it.
#[derive(Debug, Default)]
pub struct Folders {
    /// By number.
    pub all: Vec<Folder>,
    numbers: HashMap<PathBuf, u32>,
}

impl Folders {
    fn enter(&mut self, path: &Path, above: u32) -> u32 {
        if let Some(&number) = self.numbers.get(path) {
            return number;
        }
        if self.all.len() >= MOST_FOLDERS {
            return above;
        }
        let number = self.all.len() as u32;
        let depth = self.all.get(above as usize).map_or(0, |folder| folder.depth + 1);
        self.all.push(Folder { path: path.to_owned(), above, depth, ..Folder::default() });
        self.numbers.insert(path.to_owned(), number);
        number
    }

    /// Adds what is in each folder to those above it.
    pub fn sum_up(&mut self) {
        for at in (0..self.all.len()).rev() {
            let folder = self.all[at].clone();
            self.all[at].end = folder.end.max(at as u32 + 1);
            if at > 0 {
                let end = self.all[at].end;
                let above = &mut self.all[folder.above as usize];
                above.files += folder.files;
                above.size += folder.size;
                above.data += folder.data;
                above.kinds.iter_mut().zip(folder.kinds).for_each(|(sum, one)| *sum += one);
                above.end = above.end.max(end);
            }
        }
    }
}

/// A regular file.
#[derive(Debug)]
pub struct Found<'a> {
    /// Its path.
    pub path: &'a Path,
    /// Its folder.
    pub folder: u32,
    /// Its length, bytes.
    pub size: u64,
    /// Whether it may have holes.
    pub sparse: bool,
}

/// Things that were left out, and why.
#[derive(Debug, Clone, Default)]
pub struct Left {
    /// Number of files and folders that could not be read.
    pub unreadable: u64,
    /// The first of them, with the reason.
    pub failures: Vec<(PathBuf, String)>,
    /// Further names of files that were counted already.
    pub hard_links: u64,
    /// Sockets, devices and the like.
    pub special: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Folders on other file systems.
    pub mounts: u64,
}

impl Left {
    /// Notes what could not be read.
    pub fn fail(&mut self, path: &Path, error: &io::Error) {
        // One that went away since it was listed is no failure.
        if error.kind() == io::ErrorKind::NotFound {
            return;
        }
        self.unreadable += 1;
        if self.failures.len() < MOST_FAILURES {
            self.failures.push((path.to_owned(), error.to_string()));
        }
    }
}

/// Walks all below `roots`, which are canonical and not inside one another, in the order of names. `visit` says
/// whether to go on.
pub fn walk(
    roots: &[PathBuf],
    cross: bool,
    folders: &mut Folders,
    left: &mut Left,
    visit: &mut dyn FnMut(&mut Folders, &mut Left, &Found<'_>) -> bool,
) {
    let top = if let [root] = roots { root.clone() } else { PathBuf::new() };
    let top = folders.enter(&top, 0);
    let mut links = HashSet::new();
    for root in roots {
        let meta = match fs::symlink_metadata(root) {
            Ok(meta) => meta,
            Err(error) => {
                left.fail(root, &error);
                continue;
            }
        };
        let device = meta.dev();
        // What is still to be looked at, the next at the end.
        let mut todo = vec![(root.clone(), meta, top)];
        while let Some((path, meta, above)) = todo.pop() {
            let kind = meta.file_type();
            if kind.is_dir() {
                if meta.dev() != device && !cross {
                    left.mounts += 1;
                    continue;
                }
                let folder = folders.enter(&path, above);
                let from = todo.len();
                list(&path, folder, left, &mut todo);
                todo[from..].sort_by(|a, b| b.0.cmp(&a.0));
            } else if kind.is_file() {
                if meta.nlink() > 1 && links.len() < MOST_LINKS && !links.insert((meta.dev(), meta.ino())) {
                    left.hard_links += 1;
                    continue;
                }
                let sparse = meta.blocks() * 512 < meta.len() && meta.len() >= 1 << 20;
                let found = Found { path: &path, folder: above, size: meta.len(), sparse };
                if !visit(folders, left, &found) {
                    return;
                }
            } else if kind.is_symlink() {
                left.symlinks += 1;
            } else {
                left.special += 1;
            }
        }
    }
}

fn list(path: &Path, folder: u32, left: &mut Left, todo: &mut Vec<(PathBuf, Metadata, u32)>) {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => return left.fail(path, &error),
    };
    for entry in entries {
        let looked = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)));
        match looked {
            Ok((path, meta)) => todo.push((path, meta, folder)),
            Err(error) => left.fail(path, &error),
        }
    }
}
