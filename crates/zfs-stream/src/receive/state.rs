//! State in memory while a stream is received.

use crate::attrs::Registry;
use crate::bytes::Order;
use crate::error::{ReceiveError, StreamError, corrupt};
use crate::notes::{Head, Known, Notes};
use crate::sink::{Node, Sink};
use std::collections::{BTreeMap, BTreeSet};

pub(super) type Result<T, E> = std::result::Result<T, ReceiveError<E>>;

/// The object that names the others: `MASTER_NODE_OBJ`.
const MASTER: u64 = 1;

/// Something that was received, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// Objects that the stream told of.
    pub objects: u64,
    /// Bytes of files that were written.
    pub bytes: u64,
    /// Files whose access list says more than their mode; the mode is kept, the list is not.
    pub access_lists: u64,
    /// Owners that are names of a domain, not numbers; such a file belongs to 65534.
    pub domain_owners: u64,
    /// Extended attributes that were not taken: of a namespace that is none of Linux's, or too large.
    pub left_xattrs: u64,
    /// Names of things that no Linux file can be (doors, event ports).
    pub left_names: u64,
    /// Directories whose entries are not as many as their size says.
    pub miscounted: u64,
}

/// A directory of which names changed.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// Its node before this stream; 0 for none.
    pub old_node: Node,
    /// Offsets of blocks.
    pub blocks: BTreeSet<u64>,
    /// Names in all, where a header says so.
    pub told: Option<u64>,
}

/// Receives one stream.
pub(super) struct Receiver<'s, S> {
    pub notes: Notes<'s, S>,
    pub head: Head,
    pub order: Order,
    pub tells_spill: bool,
    pub root: Node,
    pub staging: Node,
    /// Objects that the stream told of, ascending.
    pub touched: Vec<u64>,
    pub changed: BTreeMap<u64, Changed>,
    /// Nodes of directories that are there no more.
    pub dead: BTreeSet<Node>,
    /// Objects whose extended attributes changed, but perhaps nothing else.
    pub owners: BTreeSet<u64>,
    /// The end of a fresh file's content, by object.
    pub filled: (u64, u64),
    pub received: Received,
}

/// The name of an object in the staging directory.
pub(super) fn parked(object: u64) -> Vec<u8> {
    format!("o{object:x}").into_bytes()
}

pub(super) fn broken<T, E>(what: &'static str) -> Result<T, E> {
    Err(ReceiveError::Stream(corrupt(what)))
}

impl<'s, S: Sink> Receiver<'s, S> {
    pub fn sink(&mut self) -> &mut S {
        self.notes.sink
    }

    /// An integer that the master node has by this name.
    pub fn master(&self, name: &[u8]) -> Option<u64> {
        self.entry(MASTER, name)
    }

    fn entries(&self, object: u64) -> impl Iterator<Item = &crate::zap::Entry> {
        self.head.meta.range((object, 0)..=(object, u64::MAX)).flat_map(|(_, entries)| entries)
    }

    fn entry(&self, object: u64, name: &[u8]) -> Option<u64> {
        self.entries(object).find(|entry| entry.name == name)?.values.first().copied()
    }

    /// The attributes and layouts that are known by now.
    pub fn registry(&self) -> std::result::Result<Registry, StreamError> {
        let mut registry = Registry::new();
        let Some(master) = self.master(b"SA_ATTRS") else { return Ok(registry) };
        if let Some(object) = self.entry(master, b"REGISTRY") {
            for entry in self.entries(object) {
                registry.register(&entry.name, entry.values.first().copied().unwrap_or_default());
            }
        }
        if let Some(object) = self.entry(master, b"LAYOUTS") {
            for entry in self.entries(object) {
                registry.lay_out(&entry.name, &entry.values)?;
            }
        }
        Ok(registry)
    }

    /// An object whose number is in use.
    pub fn existing(&mut self, object: u64, what: &'static str) -> Result<&mut Known, S::Error> {
        match self.notes.change(object)? {
            Some(known) => Ok(known),
            None => broken(what),
        }
    }

    /// Notes that a block of a directory changes, as whose it was before.
    pub fn change_names(&mut self, dir: u64, node: Node, offset: u64) -> &mut Changed {
        let changed =
            self.changed.entry(dir).or_insert_with(|| Changed { old_node: node, ..Changed::default() });
        changed.blocks.insert(offset);
        changed
    }
}
