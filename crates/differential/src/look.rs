//! Visible state of a file, and of a whole tree.

use crate::sys;
use libc::*;
use std::collections::{BTreeMap, BTreeSet};

/// Seconds and nanoseconds.
pub type Time = (i64, u32);

/// Attributes from statx.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    pub device: (u32, u32),
    pub ino: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Where the file system has one.
    pub btime: Option<Time>,
}

impl Look {
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    /// Attributes that must be equal on both sides. The size of a directory is each file system's own.
    pub fn plain(&self) -> String {
        let size = if self.kind() == S_IFDIR { 0 } else { self.size };
        let device = if [S_IFCHR, S_IFBLK].contains(&self.kind()) { self.device } else { (0, 0) };
        let Self { mode, uid, gid, nlink, .. } = self;
        format!("mode {mode:o} uid {uid} gid {gid} nlink {nlink} size {size} device {device:?}")
    }
}

/// Looks at `path` below `dir`.
pub fn at(dir: i32, path: &[u8], flags: i32) -> Result<Look, i32> {
    let mut raw = [0; 256];
    sys::statx(dir, path, flags, &mut raw)?;
    let u32_at = |at: usize| u32::from_ne_bytes(raw[at..at + 4].try_into().expect("four"));
    let u64_at = |at: usize| u64::from_ne_bytes(raw[at..at + 8].try_into().expect("eight"));
    let time = |at: usize| (u64_at(at) as i64, u32_at(at + 8));
    let mode = u32::from(u16::from_ne_bytes([raw[28], raw[29]]));
    Ok(Look {
        mode,
        uid: u32_at(20),
        gid: u32_at(24),
        nlink: u32_at(16),
        size: u64_at(40),
        device: (u32_at(128), u32_at(132)),
        ino: u64_at(32),
        atime: time(64),
        mtime: time(112),
        ctime: time(96),
        btime: (u32_at(0) & STATX_BTIME != 0).then(|| time(80)),
    })
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub kind: u8,
    pub cookie: i64,
}

/// Entries from one getdents call with a buffer of `room` bytes.
pub fn some_entries(fd: i32, room: usize) -> Result<Vec<Entry>, i32> {
    let mut raw = vec![0; room];
    let got = sys::getdents(fd, &mut raw)? as usize;
    let (mut entries, mut at) = (Vec::new(), 0);
    while at < got {
        let cookie = i64::from_ne_bytes(raw[at + 8..at + 16].try_into().expect("eight"));
        let len = usize::from(u16::from_ne_bytes([raw[at + 16], raw[at + 17]]));
        let name = raw[at + 19..at + len].split(|&byte| byte == 0).next().expect("one").to_vec();
        entries.push(Entry { name, kind: raw[at + 18], cookie });
        at += len;
    }
    Ok(entries)
}

/// All entries from where the directory is at.
pub fn entries(fd: i32, room: usize) -> Result<Vec<Entry>, i32> {
    let mut all = Vec::new();
    loop {
        let some = some_entries(fd, room)?;
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some);
    }
}

/// Names and kinds.
pub fn list(fd: i32, room: usize) -> Result<BTreeSet<(Vec<u8>, u8)>, i32> {
    Ok(entries(fd, room)?.into_iter().map(|entry| (entry.name, entry.kind)).collect())
}

pub fn readable(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

/// Everything below a folder, by path.
pub type Tree = BTreeMap<Vec<u8>, Seen>;

/// The file at a path, as seen.
#[derive(Debug, Clone)]
pub struct Seen {
    pub look: Look,
    /// Attributes, the extended ones included, the content in short, and the first path of the same inode.
    pub plain: String,
}

/// Looks at everything below the directory `top`, whose path is `root`.
///
/// With `contents`, files are read, which moves their access times.
pub fn tree(top: i32, root: &[u8], contents: bool) -> Tree {
    let mut tree = Tree::new();
    let mut walk = Walk { root, contents, tree: &mut tree, first: BTreeMap::new() };
    walk.folder(top, Vec::new());
    tree
}

struct Walk<'a> {
    root: &'a [u8],
    contents: bool,
    tree: &'a mut Tree,
    first: BTreeMap<u64, Vec<u8>>,
}

impl Walk<'_> {
    fn folder(&mut self, dir: i32, below: Vec<u8>) {
        let open =
            |dir, name: &[u8], flags| sys::openat(dir, name, flags | O_CLOEXEC, 0).expect("root may") as i32;
        let fd = open(dir, b".", O_RDONLY | O_DIRECTORY);
        for (name, _) in list(fd, 32 << 10).expect("a directory can be listed") {
            if name == b"." || name == b".." {
                continue;
            }
            let path = [&below[..], b"/", &name[..]].concat();
            let look = at(fd, &name, AT_SYMLINK_NOFOLLOW).expect("what is listed is there");
            let group = self.first.entry(look.ino).or_insert_with(|| path.clone()).clone();
            let xattrs = xattrs(&[self.root, &path[..]].concat());
            let mut plain = format!("{} same as {} {xattrs}", look.plain(), readable(&group));
            match look.kind() {
                S_IFDIR => {
                    let inner = open(fd, &name, O_PATH | O_DIRECTORY);
                    self.folder(inner, path.clone());
                    sys::close(inner).ok();
                }
                S_IFLNK => {
                    let mut target = vec![0; 5000];
                    let len = sys::readlinkat(fd, &name, &mut target).expect("a link") as usize;
                    plain += &format!("target {}", readable(&target[..len]));
                }
                S_IFREG if self.contents => {
                    let file = open(fd, &name, O_RDONLY | O_NONBLOCK);
                    flush_maps(file);
                    plain += &format!("content {:016x}", digest(file));
                    sys::close(file).ok();
                }
                _ => {}
            }
            self.tree.insert(path, Seen { look, plain });
        }
        sys::close(fd).ok();
    }
}

/// Writes what was changed by a map. Until then a FUSE file system does not know of it, and may call it a hole:
/// for lseek(2) the kernel does not write it first.
pub fn flush_maps(file: i32) {
    sys::sync_range(file, 0, 0).ok();
}

/// Names and values of extended attributes.
pub fn xattrs(path: &[u8]) -> String {
    let mut names = vec![0; 70_000];
    let len = sys::llistxattr(path, &mut names).unwrap_or(0) as usize;
    let mut shown = BTreeMap::new();
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 70_000];
        let got = sys::lgetxattr(path, name, &mut value);
        let value = &value[..got.unwrap_or(0) as usize];
        shown.insert(readable(name), (got, hash(0, 0, value)));
    }
    format!("{shown:?} ")
}

/// A hash that zeros do not change, so that holes need not be read.
fn hash(sum: u64, offset: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).enumerate().map(|(index, chunk)| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let (word, at) = (u64::from_le_bytes(word), offset + 8 * index as u64);
        if word == 0 {
            0
        } else {
            (word ^ at.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ at
        }
    });
    words.fold(sum, u64::wrapping_add)
}

/// Hash of a file's data, holes left out.
fn digest(file: i32) -> u64 {
    let (mut sum, mut from, mut at) = (0, 0, 0);
    let mut buffer = vec![0; 1 << 18];
    while let Ok(data) = sys::lseek(file, from, SEEK_DATA) {
        let hole = sys::lseek(file, data, SEEK_HOLE).expect("a hole follows");
        // Words are counted from multiples of eight, each once.
        at = at.max(data & !7);
        while at < hole {
            let len = ((hole - at) as usize).next_multiple_of(8).min(buffer.len());
            let got = sys::pread(file, &mut buffer[..len], at).expect("data can be read");
            if got == 0 {
                break;
            }
            sum = hash(sum, at as u64, &buffer[..got as usize]);
            at += len as i64;
        }
        from = hole;
    }
    sum
}

/// Where two files differ first, and what each has there.
pub fn first_difference(tops: [i32; 2], path: &[u8]) -> Option<String> {
    let open =
        |top| sys::openat(top, &path[1..], O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0).ok().map(|fd| fd as i32);
    let files = [open(tops[0])?, open(tops[1])?];
    let mut at = 0;
    let mut words = None;
    while words.is_none() {
        let data = files.map(|file| sys::lseek(file, at, SEEK_DATA).ok());
        let Some(start) = data.into_iter().flatten().min() else { break };
        let [a, b] = files.map(|file| {
            let mut bytes = vec![0; 1 << 16];
            let got = sys::pread(file, &mut bytes, start).unwrap_or(0);
            bytes[..got as usize].to_vec()
        });
        let differs = a
            .iter()
            .zip(&b)
            .position(|(a, b)| a != b)
            .or((a.len() != b.len()).then_some(a.len().min(b.len())));
        words = differs.map(|at| {
            let show = |bytes: &[u8]| format!("{:?}", bytes.get(at..).map(|b| &b[..b.len().min(16)]));
            format!(", at {}: {} on the mount, {} on the disk", start + at as i64, show(&a), show(&b))
        });
        if a.is_empty() && b.is_empty() {
            break;
        }
        at = start + a.len().max(b.len()) as i64;
    }
    for file in files {
        sys::close(file).ok();
    }
    words
}
