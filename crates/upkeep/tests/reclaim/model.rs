//! Expected contents of a pool: every extent of every dataset and snapshot, and so exactly which blocks are live.

use larder_format::{BlockId, BlockPtr};
use std::collections::{BTreeMap, BTreeSet};

/// A block by number, in the order in which blocks were stored.
pub type Version = usize;

/// Content of an extent: the part of a block that it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub version: Version,
    pub from: u32,
    pub len: u32,
    /// Places that the extent is charged for.
    pub copies: u8,
}

/// Extents by inode and offset.
pub type Files = BTreeMap<(u64, u64), Piece>;

/// A dataset's head and its snapshots, oldest first, with their high ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    pub head: Files,
    pub snapshots: Vec<(String, BlockId, Files)>,
}

impl Tree {
    fn all(&self) -> impl Iterator<Item = &Files> {
        std::iter::once(&self.head).chain(self.snapshots.iter().map(|snapshot| &snapshot.2))
    }
}

/// Datasets by name.
pub type Trees = BTreeMap<String, Tree>;

/// Every block that was ever stored: the order of versions is the order of ids.
#[derive(Debug, Default)]
pub struct Blocks {
    pub all: Vec<(BlockPtr, u32)>,
    /// The letter that each repeats.
    pub letters: Vec<u64>,
    pub by_id: BTreeMap<BlockId, Version>,
}

impl Blocks {
    pub fn add(&mut self, ptr: BlockPtr, logical: u32, letter: u64) -> Version {
        self.by_id.insert(ptr.id, self.all.len());
        self.letters.push(letter);
        self.all.push((ptr, logical));
        self.all.len() - 1
    }

    /// The first `count`.
    pub fn until(&self, count: usize) -> Self {
        let all: Vec<_> = self.all[..count].to_vec();
        let by_id = all.iter().enumerate().map(|(version, (ptr, _))| (ptr.id, version)).collect();
        Self { all, letters: self.letters[..count].to_vec(), by_id }
    }
}

/// A state that a pool goes through.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub trees: Trees,
    /// Blocks stored so far. Ids given to later ones come again when a cut undoes them.
    pub born: usize,
    /// Blocks that were dropped where another reference was possible: the map may know them until a trace.
    pub left: BTreeSet<Version>,
    /// Blocks that had a second reference.
    pub shared: BTreeSet<Version>,
    /// Blocks may have had the same content and a fingerprint: when one goes the index may lose the other.
    pub twice: bool,
    /// It came of the one before by a rollback, which commits what is dirty first: a cut may leave that one under
    /// this one's number.
    pub is_rolled_back: bool,
    /// Places were spoiled. What lies where nothing lives any more stays so.
    pub is_rotten: bool,
}

impl State {
    /// The head of `name` stops naming what is under `key`.
    pub fn drop_piece(&mut self, name: &str, key: (u64, u64)) -> Option<Piece> {
        let tree = self.trees.get_mut(name).expect("a dataset");
        let piece = tree.head.remove(&key)?;
        self.leave([piece.version]);
        Some(piece)
    }

    /// References went, perhaps the last: of what was shared the trace decides.
    pub fn leave(&mut self, versions: impl IntoIterator<Item = Version>) {
        self.left.extend(versions.into_iter().filter(|version| self.shared.contains(version)));
    }

    /// Blocks that some tree names.
    pub fn live(&self) -> BTreeSet<Version> {
        let files = self.trees.values().flat_map(Tree::all);
        files.flat_map(|files| files.values().map(|piece| piece.version)).collect()
    }

    /// A trace found everything that nothing names.
    pub fn traced(&mut self) {
        let live = self.live();
        self.left.retain(|version| live.contains(version));
    }
}
