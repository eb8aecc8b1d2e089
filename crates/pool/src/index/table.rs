//! What is not written yet.

use larder_format::{BlockId, Fingerprint};
use std::collections::HashMap;

/// The newest entries.
#[derive(Debug, Default)]
pub(super) struct Table(HashMap<Fingerprint, BlockId>);

impl Table {
    pub(super) fn insert(&mut self, print: Fingerprint, id: BlockId) {
        self.0.insert(print, id);
    }
    pub(super) fn remove(&mut self, print: Fingerprint, id: BlockId) {
        if self.0.get(&print) == Some(&id) {
            self.0.remove(&print);
        }
    }
    pub(super) fn get(&self, print: Fingerprint) -> Option<BlockId> {
        self.0.get(&print).copied()
    }
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.capacity() * 48
    }
}
