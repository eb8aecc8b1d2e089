//! Names, at the end of a stream: directories get theirs.
//!
//! A block of a directory that changed came whole, and its names before are noted; a name that moved from one block to
//! another is in both. So the names that went and that came are differences of lists. All that went are taken first,
//! and all that came are given after that: directories may have changed places, and names their files.

use super::state::{Changed, Receiver, Result, broken, parked};
use crate::error::{ReceiveError, Refusal, StreamError};
use crate::notes::{Kind, NameBlock, Names};
use crate::sink::{Node, Sink};
use std::collections::{BTreeMap, BTreeSet};

impl<S: Sink> Receiver<'_, S> {
    pub fn apply_names(&mut self) -> Result<(), S::Error> {
        let changed = std::mem::take(&mut self.changed);
        for (&dir, changed) in &changed {
            self.take_names(dir, changed)?;
        }
        for (&dir, changed) in &changed {
            self.give_names(dir, changed)?;
        }
        let staging = self.staging;
        for node in std::mem::take(&mut self.dead) {
            self.sink().remove(staging, &dead(node), true).map_err(ReceiveError::Sink)?;
        }
        Ok(())
    }

    /// The names before and after, of the blocks that changed.
    fn differences(&mut self, dir: u64, changed: &Changed) -> Result<(Names, Names), S::Error> {
        let (mut old, mut new) = (Names::new(), Names::new());
        for &offset in &changed.blocks {
            let block = self.notes.names(dir, offset)?;
            old.extend(block.old.unwrap_or_default());
            new.extend(block.new);
        }
        Ok((old, new))
    }

    /// Whether a directory is there and was before this stream.
    fn stays(&mut self, dir: u64) -> Result<bool, S::Error> {
        Ok(self.notes.known(dir)?.is_some_and(|known| known.kind.has_names() && !known.fresh))
    }

    fn is_fresh(&mut self, object: u64) -> Result<bool, S::Error> {
        Ok(self.notes.known(object)?.is_none_or(|known| known.fresh))
    }

    fn take_names(&mut self, dir: u64, changed: &Changed) -> Result<(), S::Error> {
        if changed.old_node == 0 {
            return Ok(());
        }
        let (old, new) = self.differences(dir, changed)?;
        let stays: BTreeMap<_, _> =
            if self.stays(dir)? { new.into_iter().collect() } else { BTreeMap::new() };
        for (name, object) in old {
            if stays.get(&name) == Some(&object) && !self.is_fresh(object)? {
                continue;
            }
            self.take_name(changed.old_node, &name, object)?;
        }
        Ok(())
    }

    fn take_name(&mut self, dir: Node, name: &[u8], object: u64) -> Result<(), S::Error> {
        let staging = self.staging;
        let found = self.sink().lookup(dir, name).map_err(ReceiveError::Sink)?;
        // Of a kind that was left out.
        let Some(node) = found else { return Ok(()) };
        let known = self.notes.change(object)?.filter(|known| known.kind.is_file() && known.node == node);
        let to = match known {
            Some(known) if !known.parked => {
                known.parked = true;
                Some(parked(object))
            }
            Some(_) => None,
            None => self.dead.contains(&node).then(|| dead(node)),
        };
        let done = match to {
            Some(to) => self.sink().rename((dir, name), (staging, &to)),
            None => self.sink().remove(dir, name, false),
        };
        done.map_err(ReceiveError::Sink)
    }

    fn give_names(&mut self, dir: u64, changed: &Changed) -> Result<(), S::Error> {
        let (old, new) = self.differences(dir, changed)?;
        let stays = self.stays(dir)?;
        let (before, after) = (if stays { old.len() as u64 } else { 0 }, new.len() as u64);
        let known = self.notes.known(dir)?.filter(|known| known.kind == Kind::Directory);
        if let Some(node) = known.map(|known| known.node) {
            let was: BTreeSet<_> = if stays { old.into_iter().collect() } else { BTreeSet::new() };
            for entry in new {
                if !was.contains(&entry) || self.is_fresh(entry.1)? {
                    self.give_name(node, &entry.0, entry.1)?;
                }
            }
        }
        for &offset in &changed.blocks {
            let block = NameBlock { old: None, ..self.notes.names(dir, offset)? };
            self.notes.set_names(dir, offset, &block)?;
        }
        if let Some(known) = self.notes.change(dir)?.filter(|known| known.kind.has_names()) {
            known.names = (known.names + after).saturating_sub(before);
            if changed.told.is_some_and(|told| told != known.names) {
                return broken("a directory that has not as many names as it says");
            }
        }
        Ok(())
    }

    fn give_name(&mut self, dir: Node, name: &[u8], object: u64) -> Result<(), S::Error> {
        let staging = self.staging;
        let known = self.existing(object, "a name that leads nowhere")?;
        match known.kind {
            Kind::Other => {
                self.received.left_names += 1;
                return Ok(());
            }
            Kind::Nameless => return Err(StreamError::from(Refusal::Revived).into()),
            kind if !kind.is_file() => return broken("a name that leads to no file"),
            _ => {}
        }
        let (node, is_parked, is_dir) = (known.node, known.parked, known.kind == Kind::Directory);
        known.parked = false;
        let done = match is_parked {
            true => self.sink().rename((staging, &parked(object)), (dir, name)),
            false if is_dir => return broken("a directory with two names"),
            false => self.sink().link(node, dir, name),
        };
        done.map_err(ReceiveError::Sink)
    }
}

/// The name of a directory that goes, in the staging directory.
fn dead(node: Node) -> Vec<u8> {
    format!("d{node:x}").into_bytes()
}
