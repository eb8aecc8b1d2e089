//! The tree: its folders, and the files in them. Symbolic links are not followed, other file systems are left out
//! unless asked for, a file with several names counts once.

use crate::kind::Kind;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, ReadDir};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Failures that are told by name.
const MOST_FAILURES: usize = 20;
/// Entries of a folder that are held at once at least, however little memory there is.
const FEWEST_HELD: usize = 64;
/// Bytes that a folder takes beside its path: with its figures, and its number by hash.
const FOLDER_BYTES: usize = size_of::<Folder>() + 768;
/// Bytes that an entry which is held takes beside its name.
const ENTRY_BYTES: usize = 48;
/// Bytes for a file with several names, while the set of them grows.
const LINK_BYTES: usize = 48;

/// Room of a walk, bytes.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// For folders that are told apart.
    pub folders: usize,
    /// For files with several names.
    pub links: usize,
    /// For entries of folders that are being gone through.
    pub entries: usize,
}

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

impl Folder {
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.size += other.size;
        self.data += other.data;
        self.kinds.iter_mut().zip(other.kinds).for_each(|(sum, one)| *sum += one);
    }
}

/// All folders: numbered in the order of the walk, so those below one follow it. Folders below `depth`, and those that
/// came since the count, are not told apart: what is in them counts to the one above.
#[derive(Debug)]
pub struct Folders {
    /// By number.
    pub all: Vec<Folder>,
    /// By hash of the path.
    numbers: HashMap<u64, u32>,
    room: usize,
    taken: usize,
    depth: u32,
    closed: bool,
}

impl Folders {
    /// With room for so many bytes, down to a depth.
    pub fn new(room: usize, depth: u32) -> Self {
        Self { all: Vec::new(), numbers: HashMap::new(), room, taken: 0, depth, closed: false }
    }

    /// From here on folders are found, and none is added.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Steps down to which folders are told apart.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The number of a folder, at `depth` steps from the top.
    fn enter(&mut self, path: &Path, above: u32, depth: u32) -> u32 {
        let hash = twox_hash::XxHash3_64::oneshot(path.as_os_str().as_encoded_bytes());
        if let Some(&number) = self.numbers.get(&hash) {
            return number;
        }
        if self.closed || depth > self.depth {
            return above;
        }
        let number = self.all.len() as u32;
        self.all.push(Folder { path: path.to_owned(), above, depth, ..Folder::default() });
        self.numbers.insert(hash, number);
        self.taken += FOLDER_BYTES + path.as_os_str().len();
        number
    }

    /// Leaves the deepest level out when there is no room; the new numbers by the old ones, if so.
    fn shrink(&mut self) -> Option<Vec<u32>> {
        if self.taken <= self.room || self.depth == 0 {
            return None;
        }
        self.depth = self.all.iter().map(|folder| folder.depth).max().unwrap_or(0).saturating_sub(1);
        let mut numbers: Vec<u32> = Vec::with_capacity(self.all.len());
        let mut kept: Vec<Folder> = Vec::new();
        self.taken = 0;
        for mut folder in std::mem::take(&mut self.all) {
            let above = numbers.get(folder.above as usize).copied().unwrap_or(0);
            if folder.depth <= self.depth {
                self.taken += FOLDER_BYTES + folder.path.as_os_str().len();
                folder.above = above;
                numbers.push(kept.len() as u32);
                kept.push(folder);
            } else {
                kept[above as usize].add(&folder);
                numbers.push(above);
            }
        }
        self.all = kept;
        self.all.shrink_to_fit();
        let depth = self.depth;
        let hash =
            |folder: &Folder| twox_hash::XxHash3_64::oneshot(folder.path.as_os_str().as_encoded_bytes());
        debug_assert!(self.all.iter().all(|folder| folder.depth <= depth));
        self.numbers = self.all.iter().enumerate().map(|(at, folder)| (hash(folder), at as u32)).collect();
        Some(numbers)
    }

    /// Adds what is in each folder to those above it.
    pub fn sum_up(&mut self) {
        for at in (0..self.all.len()).rev() {
            let folder = self.all[at].clone();
            self.all[at].end = folder.end.max(at as u32 + 1);
            if at > 0 {
                let end = self.all[at].end;
                let above = &mut self.all[folder.above as usize];
                above.add(&folder);
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
    /// Names of files that may have been counted before: there was no room to remember all with several names.
    pub unsure_links: u64,
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

/// A folder that is being gone through.
struct Level {
    path: PathBuf,
    folder: u32,
    depth: u32,
    /// More of its entries, when it is long.
    more: Option<ReadDir>,
    /// Names, the next at the end.
    names: Vec<OsString>,
}

/// Walks all below `roots`, which are canonical and not inside one another: in the order of names, but for folders so
/// long that they are taken in parts. `visit` says whether to go on.
pub fn walk(
    roots: &[PathBuf],
    cross: bool,
    room: Room,
    folders: &mut Folders,
    left: &mut Left,
    visit: &mut dyn FnMut(&mut Folders, &mut Left, &Found<'_>) -> bool,
) {
    let top = if let [root] = roots { root.clone() } else { PathBuf::new() };
    let top = folders.enter(&top, 0, 0);
    let mut links: HashSet<(u64, u64)> = HashSet::new();
    let mut held = 0;
    for root in roots {
        let mut stack: Vec<Level> = Vec::new();
        let mut device = None;
        let mut next = Some(root.clone());
        loop {
            let path = match next.take() {
                Some(root) => root,
                None => {
                    let Some(level) = stack.last_mut() else { break };
                    let Some(name) = level.names.pop() else {
                        if level.more.is_none() {
                            stack.pop();
                        } else {
                            fill(level, room.entries, &mut held, left);
                        }
                        continue;
                    };
                    held -= name.len() + ENTRY_BYTES;
                    level.path.join(name)
                }
            };
            let meta = match fs::symlink_metadata(&path) {
                Ok(meta) => meta,
                Err(error) => {
                    left.fail(&path, &error);
                    continue;
                }
            };
            let device = *device.get_or_insert(meta.dev());
            let (above, depth) = stack.last().map_or((top, 0), |level| (level.folder, level.depth + 1));
            // Of several roots each is one step below what has them all.
            let depth = if roots.len() > 1 && stack.is_empty() { 1 } else { depth };
            let kind = meta.file_type();
            if kind.is_dir() {
                if meta.dev() != device && !cross {
                    left.mounts += 1;
                    continue;
                }
                let more = match fs::read_dir(&path) {
                    Ok(more) => Some(more),
                    Err(error) => {
                        left.fail(&path, &error);
                        None
                    }
                };
                let folder = folders.enter(&path, above, depth);
                stack.push(Level { path, folder, depth, more, names: Vec::new() });
                if let Some(numbers) = folders.shrink() {
                    stack.iter_mut().for_each(|level| level.folder = numbers[level.folder as usize]);
                }
            } else if kind.is_file() {
                if meta.nlink() > 1 {
                    if links.len() * LINK_BYTES < room.links {
                        if !links.insert((meta.dev(), meta.ino())) {
                            left.hard_links += 1;
                            continue;
                        }
                    } else if links.contains(&(meta.dev(), meta.ino())) {
                        left.hard_links += 1;
                        continue;
                    } else {
                        left.unsure_links += 1;
                    }
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

/// Takes more entries, as many as there is room for.
fn fill(level: &mut Level, room: usize, held: &mut usize, left: &mut Left) {
    let Some(more) = &mut level.more else { return };
    while level.names.len() < FEWEST_HELD || *held < room {
        match more.next() {
            Some(Ok(entry)) => {
                let name = entry.file_name();
                *held += name.len() + ENTRY_BYTES;
                level.names.push(name);
            }
            Some(Err(error)) => {
                left.fail(&level.path, &error);
                level.more = None;
                break;
            }
            None => {
                level.more = None;
                break;
            }
        }
    }
    level.names.sort_unstable_by(|a, b| b.cmp(a));
}
