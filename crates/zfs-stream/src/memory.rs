//! A sink in memory, for tests and for a look at a stream without a place for it.

use crate::sink::{New, Node, Sink, SinkAttr};
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

const ROOT: Node = 1;
const STAGING: Node = 2;
/// Bytes of a piece of a file; pieces that nobody wrote are holes.
const PIECE: u64 = 128 << 10;
/// Largest file, bytes.
const MAX_FILE: u64 = 1 << 50;

/// Why something cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the tree does not allow to {0}")]
pub struct MemoryError(&'static str);

#[derive(Debug, Clone, Default)]
struct File {
    kind: char,
    device: (u32, u32),
    links: u32,
    size: u64,
    pieces: BTreeMap<u64, Vec<u8>>,
    target: Vec<u8>,
    names: BTreeMap<Vec<u8>, Node>,
    attr: SinkAttr,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A tree of files in memory.
#[derive(Debug, Clone)]
pub struct Memory {
    files: BTreeMap<Node, File>,
    next: Node,
    notes: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Default for Memory {
    fn default() -> Self {
        let dir = || File { kind: 'd', links: 1, ..File::default() };
        Self { files: [(ROOT, dir()), (STAGING, dir())].into(), next: 3, notes: BTreeMap::new() }
    }
}

/// A file as a line of text: to compare trees by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line {
    /// Path below the root; empty for the root.
    pub path: Vec<u8>,
    /// `d`, `f`, `l`, `c`, `b`, `p` or `s`.
    pub kind: char,
    /// Attributes.
    pub attr: SinkAttr,
    /// Names that it has; 1 for directories.
    pub links: u32,
    /// Its first path in order.
    pub first: Vec<u8>,
    /// Bytes of a file.
    pub size: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// A digest of its content, or a link's target.
    pub content: Vec<u8>,
    /// Extended attributes by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|&byte| match byte {
            b'!'..=b'~' if byte != b'\\' => write!(f, "{}", char::from(byte)),
            _ => write!(f, "\\x{byte:02x}"),
        })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SinkAttr { perm, uid, gid, atime, mtime, ctime, .. } = self.attr;
        write!(f, "/{} {} {perm:o} {uid}:{gid}", Escaped(&self.path), self.kind)?;
        for time in [atime, mtime, ctime] {
            write!(f, " {}.{:09}", time.secs, time.nanos)?;
        }
        write!(f, " {} /{}", self.links, Escaped(&self.first))?;
        match self.kind {
            'f' => write!(f, " {} {}", self.size, Escaped(&self.content))?,
            'l' => write!(f, " {}", Escaped(&self.content))?,
            'b' | 'c' => write!(f, " {},{}", self.device.0, self.device.1)?,
            _ => {}
        }
        for (name, value) in &self.xattrs {
            write!(f, " {}=", Escaped(name))?;
            value.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

impl Memory {
    fn file(&mut self, node: Node) -> Result<&mut File, MemoryError> {
        self.files.get_mut(&node).ok_or(MemoryError("find that"))
    }

    fn dir(&mut self, node: Node) -> Result<&mut File, MemoryError> {
        let file = self.file(node)?;
        if file.kind == 'd' { Ok(file) } else { Err(MemoryError("name something in a file")) }
    }

    fn add(&mut self, dir: Node, name: &[u8], node: Node) -> Result<(), MemoryError> {
        match self.dir(dir)?.names.insert(name.to_vec(), node) {
            None => Ok(()),
            Some(_) => Err(MemoryError("take a name twice")),
        }
    }

    fn take(&mut self, dir: Node, name: &[u8]) -> Result<Node, MemoryError> {
        self.dir(dir)?.names.remove(name).ok_or(MemoryError("take a name that is not there"))
    }

    /// The content of a file.
    fn content(file: &File) -> Vec<u8> {
        let mut content = vec![0; file.size as usize];
        for (number, piece) in &file.pieces {
            let start = ((number * PIECE) as usize).min(content.len());
            let end = (start + piece.len()).min(content.len());
            content[start..end].copy_from_slice(&piece[..end - start]);
        }
        content
    }

    /// All files by path, the content of each as `digest` makes it.
    pub fn lines(&self, digest: &dyn Fn(&[u8]) -> Vec<u8>) -> Vec<Line> {
        let (mut lines, mut firsts) = (Vec::new(), BTreeMap::new());
        let mut todo = vec![(Vec::new(), ROOT)];
        while let Some((path, node)) = todo.pop() {
            let Some(file) = self.files.get(&node) else { continue };
            let first: &mut Vec<u8> = firsts.entry(node).or_insert_with(|| path.clone());
            if path < *first {
                first.clone_from(&path);
            }
            for (name, &node) in &file.names {
                let path = if path.is_empty() { name.clone() } else { [&path, &b"/"[..], name].concat() };
                todo.push((path, node));
            }
            let content = if file.kind == 'f' { digest(&Self::content(file)) } else { file.target.clone() };
            let line = Line {
                path,
                kind: file.kind,
                attr: file.attr,
                links: file.links,
                first: Vec::new(),
                size: file.size,
                device: file.device,
                content,
                xattrs: file.xattrs.clone(),
            };
            lines.push((node, line));
        }
        let mut lines: Vec<_> = lines
            .into_iter()
            .map(|(node, line)| Line { first: firsts.get(&node).cloned().unwrap_or_default(), ..line })
            .collect();
        lines.sort_by(|a, b| a.path.cmp(&b.path));
        lines
    }

    /// Bytes of pieces of a file that somebody wrote: more than a hole.
    pub fn stored(&self, path: &[u8]) -> Option<u64> {
        let mut node = ROOT;
        for name in path.split(|&byte| byte == b'/') {
            node = *self.files.get(&node)?.names.get(name)?;
        }
        Some(self.files.get(&node)?.pieces.len() as u64 * PIECE)
    }

    /// Bytes of all notes.
    pub fn noted(&self) -> usize {
        self.notes.iter().map(|(key, value)| key.len() + value.len()).sum()
    }
}

impl Sink for Memory {
    type Error = MemoryError;

    fn root(&mut self) -> Node {
        ROOT
    }

    fn staging(&mut self) -> Result<Node, MemoryError> {
        Ok(STAGING)
    }

    fn drop_staging(&mut self) -> Result<(), MemoryError> {
        let left = !self.dir(STAGING)?.names.is_empty();
        if left { Err(MemoryError("leave something without a name")) } else { Ok(()) }
    }

    fn make(&mut self, dir: Node, name: &[u8], new: New<'_>) -> Result<Node, MemoryError> {
        let mut file = File { links: 1, ..File::default() };
        file.kind = match new {
            New::File => 'f',
            New::Directory => 'd',
            New::Symlink(target) => {
                file.target = target.to_vec();
                'l'
            }
            New::Fifo => 'p',
            New::Socket => 's',
            New::CharDevice(major, minor) => {
                file.device = (major, minor);
                'c'
            }
            New::BlockDevice(major, minor) => {
                file.device = (major, minor);
                'b'
            }
        };
        let node = self.next;
        self.add(dir, name, node)?;
        self.next += 1;
        self.files.insert(node, file);
        Ok(node)
    }

    fn lookup(&mut self, dir: Node, name: &[u8]) -> Result<Option<Node>, MemoryError> {
        Ok(self.dir(dir)?.names.get(name).copied())
    }

    fn write(&mut self, file: Node, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let end = offset.saturating_add(data.len() as u64);
        if end > MAX_FILE {
            return Err(MemoryError("make a file so large"));
        }
        let file = self.file(file)?;
        let mut at = offset;
        while at < end {
            let (number, skip) = (at / PIECE, (at % PIECE) as usize);
            let len = (PIECE - at % PIECE).min(end - at) as usize;
            let piece = file.pieces.entry(number).or_default();
            if piece.len() < skip + len {
                piece.resize(skip + len, 0);
            }
            let from = (at - offset) as usize;
            piece[skip..skip + len].copy_from_slice(&data[from..from + len]);
            at += len as u64;
        }
        file.size = file.size.max(end);
        Ok(())
    }

    fn zero(&mut self, file: Node, offset: u64, len: u64) -> Result<(), MemoryError> {
        let end = offset.saturating_add(len);
        let file = self.file(file)?;
        file.pieces.retain(|number, piece| {
            let start = number * PIECE;
            let from = offset.saturating_sub(start).min(piece.len() as u64) as usize;
            let to = end.saturating_sub(start).min(piece.len() as u64) as usize;
            piece[from..to.max(from)].fill(0);
            from > 0 || to < piece.len()
        });
        Ok(())
    }

    fn set_size(&mut self, file: Node, size: u64) -> Result<(), MemoryError> {
        if size > MAX_FILE {
            return Err(MemoryError("make a file so large"));
        }
        if self.file(file)?.size > size {
            self.zero(file, size, u64::MAX)?;
        }
        self.file(file)?.size = size;
        Ok(())
    }

    fn link(&mut self, node: Node, dir: Node, name: &[u8]) -> Result<(), MemoryError> {
        if self.file(node)?.kind == 'd' {
            return Err(MemoryError("link a directory"));
        }
        self.add(dir, name, node)?;
        self.file(node)?.links += 1;
        Ok(())
    }

    fn rename(&mut self, from: (Node, &[u8]), to: (Node, &[u8])) -> Result<(), MemoryError> {
        let node = self.take(from.0, from.1)?;
        self.add(to.0, to.1, node)
    }

    fn remove(&mut self, dir: Node, name: &[u8], directory: bool) -> Result<(), MemoryError> {
        let node = self.take(dir, name)?;
        let file = self.file(node)?;
        if (file.kind == 'd') != directory || !file.names.is_empty() {
            return Err(MemoryError("remove that"));
        }
        file.links -= 1;
        if file.links == 0 {
            self.files.remove(&node);
        }
        Ok(())
    }

    fn links(&mut self, node: Node) -> Result<u32, MemoryError> {
        Ok(self.file(node)?.links)
    }

    fn set_attr(&mut self, node: Node, attr: &SinkAttr) -> Result<(), MemoryError> {
        self.file(node)?.attr = *attr;
        Ok(())
    }

    fn set_xattrs(&mut self, node: Node, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<usize, MemoryError> {
        self.file(node)?.xattrs = xattrs.to_vec();
        Ok(0)
    }

    fn note(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, MemoryError> {
        Ok(self.notes.get(key).cloned())
    }

    fn set_note(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), MemoryError> {
        match value {
            Some(value) => drop(self.notes.insert(key.to_vec(), value.to_vec())),
            None => drop(self.notes.remove(key)),
        }
        Ok(())
    }
}
