//! Records of a stream, one after the other: objects, their content, and what is free.
//!
//! Files and directories are made when their object comes, without a name, in the staging directory; content goes
//! straight there. Blocks of directories become lists of names. All else waits for the end of the stream: the objects
//! that say how attributes lie may come last.

use super::state::{Receiver, Result, broken, parked};
use crate::attrs::{Early, sa_order};
use crate::error::{ReceiveError, Refusal, StreamError, corrupt};
use crate::notes::{Kind, Known, Names};
use crate::record::Object;
use crate::sink::{New, Sink};
use crate::stream::Record;
use crate::zap::{self, Block};

const PLAIN_FILE: u32 = 19;
const DIRECTORY: u32 = 20;
/// The master node, and the objects of system attributes.
const META: [u32; 4] = [21, 45, 46, 47];
/// Objects have numbers of 48 bits: `DN_MAX_OBJECT`.
const MAX_OBJECT: u64 = 1 << 48;
/// Largest block that a file can have without the feature of large blocks, bytes.
const SMALL_BLOCK: u32 = 128 << 10;
/// Largest value of an extended attribute on Linux, bytes.
const MAX_VALUE: usize = 64 << 10;
/// Longest target of a symbolic link, bytes; Linux has 4095.
const MAX_TARGET: usize = 8 << 10;
/// Most attributes of a file beside those in its bonus, bytes: `SPA_OLD_MAXBLOCKSIZE`.
const MAX_SPILL: usize = 128 << 10;
/// Most blocks of the objects that say how attributes lie: there are 1024 layouts at most.
const MAX_META: usize = 1024;
const MAX_NAME: usize = 255;
/// The bits of an entry's value that are the object.
const OBJECT_BITS: u64 = (1 << 48) - 1;

fn kind_of(object: &Object, early: Option<Early>) -> std::result::Result<Kind, StreamError> {
    let early = match (object.kind, early) {
        (kind, _) if META.contains(&kind) => return Ok(Kind::Meta),
        (PLAIN_FILE | DIRECTORY, Some(early)) => early,
        _ => return Ok(Kind::Other),
    };
    let kind = match early.file_type() {
        0o040_000 if early.is_xattr() => Kind::XattrDir,
        0o040_000 => Kind::Directory,
        0o100_000 if early.is_xattr() => Kind::XattrFile,
        0o100_000 => Kind::File,
        0o120_000 => Kind::Symlink,
        0o010_000 | 0o020_000 | 0o060_000 | 0o140_000 => Kind::Special,
        _ => Kind::Other,
    };
    if kind.has_names() != (object.kind == DIRECTORY) {
        return Err(corrupt("the kind of an object"));
    }
    Ok(kind)
}

impl<S: Sink> Receiver<'_, S> {
    pub fn apply(&mut self, record: Record<'_>) -> Result<(), S::Error> {
        match record {
            Record::Object(object, bonus) => self.object(&object, bonus),
            Record::FreeObjects { first, count } => self.free_objects(first, count),
            Record::Write { object, offset, data } => self.write(object, offset, data),
            Record::Free { object, offset, len } => self.free(object, offset, len),
            Record::Spill { data, .. } if data.len() > MAX_SPILL => broken("the attributes of a file"),
            Record::Spill { object, data } => {
                let order = self.order;
                let known = self.existing(object, "attributes of an object that is not there")?;
                known.spill = data.to_vec();
                known.spill_order = sa_order(data, order);
                Ok(())
            }
        }
    }

    fn object(&mut self, object: &Object, bonus: &[u8]) -> Result<(), S::Error> {
        let number = object.object;
        if number == 0 || number >= MAX_OBJECT || self.touched.last().is_some_and(|&last| last >= number) {
            return broken("the order of objects");
        }
        self.finish_content()?;
        self.received.objects += 1;
        self.head.end = self.head.end.max(number + 1);
        self.free_objects(number + 1, u64::from(object.slots) - 1)?;
        let early = Early::read(object.bonus_kind, bonus, self.order)?;
        // Access lists of shares by SMB, which no name leads to.
        let is_of_shares = self.master(b"SHARES") == Some(number);
        let kind = if is_of_shares { Kind::Other } else { kind_of(object, early)? };
        let early = early.unwrap_or_default();
        let old = match self.notes.known(number)? {
            // Its content was dropped: see `Refusal::Revived`.
            Some(old) if old.kind == Kind::Nameless && old.birth == early.birth && kind == Kind::File => {
                return Ok(());
            }
            Some(old) if old.kind == kind && old.birth == early.birth => Some(old.clone()),
            Some(_) => {
                self.bury(number)?;
                None
            }
            None => None,
        };
        self.touched.push(number);
        let mut known = match old {
            Some(old) => self.changed_object(number, old, object, early)?,
            None => self.new_object(number, kind, early)?,
        };
        known.block = object.block;
        known.parent = early.parent;
        if matches!(kind, Kind::Symlink | Kind::XattrFile) {
            known.size = early.size;
        }
        known.bonus_kind = object.bonus_kind;
        known.bonus = bonus.to_vec();
        known.bonus_order = self.order;
        if self.tells_spill && !object.has_spill {
            known.spill.clear();
        }
        self.notes.put(number, known)
    }

    fn new_object(&mut self, number: u64, kind: Kind, early: Early) -> Result<Known, S::Error> {
        let mut known = Known { kind, birth: early.birth, fresh: true, ..Known::default() };
        let new = match kind {
            Kind::File => New::File,
            Kind::Directory => New::Directory,
            _ => return Ok(known),
        };
        if kind == Kind::File {
            known.size = early.size;
            self.filled = (number, 0);
        }
        if kind == Kind::Directory && self.master(b"ROOT") == Some(number) {
            known.node = self.root;
            return Ok(known);
        }
        let staging = self.staging;
        let made = self.sink().make(staging, &parked(number), new);
        known.node = made.map_err(ReceiveError::Sink)?;
        known.parked = true;
        Ok(known)
    }

    fn changed_object(
        &mut self,
        number: u64,
        mut known: Known,
        object: &Object,
        early: Early,
    ) -> Result<Known, S::Error> {
        let resized = known.block != object.block;
        match known.kind {
            Kind::File => {
                // One block of another size is sent again, or is a hole now. More of them stay: the sender may split
                // large blocks, or do so no more.
                if resized && known.size <= u64::from(known.block.min(SMALL_BLOCK)) && known.size > 0 {
                    self.zero(&known, 0, known.size)?;
                }
                if known.size != early.size {
                    let done = self.sink().set_size(known.node, early.size);
                    done.map_err(ReceiveError::Sink)?;
                    known.size = early.size;
                }
            }
            Kind::Directory | Kind::XattrDir if resized => {
                self.empty_blocks(number, &known, 0, u64::MAX)?;
                known.has_blocks = false;
            }
            Kind::Meta if resized => self.forget_meta(number, 0, u64::MAX),
            Kind::Symlink => known.data.clear(),
            _ => {}
        }
        Ok(known)
    }

    /// A fresh file ends in a hole, if it does.
    pub fn finish_content(&mut self) -> Result<(), S::Error> {
        let (object, end) = std::mem::take(&mut self.filled);
        if object == 0 {
            return Ok(());
        }
        let Some(known) = self.notes.known(object)? else { return Ok(()) };
        let (node, size) = (known.node, known.size);
        if end < size {
            self.sink().set_size(node, size).map_err(ReceiveError::Sink)?;
        }
        Ok(())
    }

    fn zero(&mut self, known: &Known, offset: u64, len: u64) -> Result<(), S::Error> {
        self.sink().zero(known.node, offset, len).map_err(ReceiveError::Sink)
    }

    fn free_objects(&mut self, first: u64, count: u64) -> Result<(), S::Error> {
        let end = first.saturating_add(count).min(self.head.end);
        let mut at = first;
        while let Some(object) = self.notes.next(at, end)? {
            self.bury(object)?;
            at = object + 1;
        }
        Ok(())
    }

    /// An object is there no more. Its names are in blocks that change, too.
    fn bury(&mut self, object: u64) -> Result<(), S::Error> {
        let Some(known) = self.notes.take(object)? else { return Ok(()) };
        match known.kind {
            Kind::Directory | Kind::XattrDir => {
                self.empty_blocks(object, &known, 0, u64::MAX)?;
                if known.kind == Kind::Directory {
                    if known.node == self.root {
                        return broken("a stream that removes the root directory");
                    }
                    self.dead.insert(known.node);
                } else {
                    self.owners.insert(known.parent);
                }
            }
            Kind::XattrFile => {
                self.notes.set_value(object, None)?;
                if let Some(owner) = self.notes.known(known.parent)?.map(|dir| dir.parent) {
                    self.owners.insert(owner);
                }
            }
            Kind::Meta => self.forget_meta(object, 0, u64::MAX),
            _ => {}
        }
        if known.parked {
            return broken("an object that is sent and freed again");
        }
        Ok(())
    }

    fn forget_meta(&mut self, object: u64, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        self.head.meta.retain(|&(here, at), _| here != object || at < offset || at >= end);
    }

    /// Blocks of a directory in a range hold no names any more.
    fn empty_blocks(&mut self, dir: u64, known: &Known, offset: u64, len: u64) -> Result<(), S::Error> {
        let range = offset..offset.saturating_add(len);
        let blocks = self.notes.blocks(dir, known)?;
        let emptied: Vec<u64> = blocks.range(range).copied().collect();
        for at in emptied {
            self.notes.blocks(dir, known)?.remove(&at);
            self.put_names(dir, known, at, Names::new(), None)?;
        }
        Ok(())
    }

    fn put_names(
        &mut self,
        dir: u64,
        known: &Known,
        offset: u64,
        names: Names,
        told: Option<u64>,
    ) -> Result<(), S::Error> {
        let mut block = self.notes.names(dir, offset)?;
        let old = std::mem::replace(&mut block.new, names);
        block.old.get_or_insert(old);
        self.notes.set_names(dir, offset, &block)?;
        let changed = self.change_names(dir, if known.fresh { 0 } else { known.node }, offset);
        changed.told = told.or(changed.told);
        Ok(())
    }

    fn write(&mut self, object: u64, offset: u64, data: &[u8]) -> Result<(), S::Error> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return broken("content beyond all ends");
        }
        let Some(known) = self.notes.known(object)? else {
            return broken("content of an object that is not there");
        };
        match known.kind {
            Kind::File => {
                let (node, size) = (known.node, known.size);
                let len = size.saturating_sub(offset).min(data.len() as u64) as usize;
                if len == 0 {
                    return Ok(());
                }
                if self.filled.0 == object {
                    self.filled.1 = self.filled.1.max(offset + len as u64);
                }
                self.received.bytes += len as u64;
                self.sink().write(node, offset, &data[..len]).map_err(ReceiveError::Sink)
            }
            Kind::Directory | Kind::XattrDir => self.write_names(object, offset, data),
            Kind::Symlink => {
                let known = self.existing(object, "a link")?;
                patch(&mut known.data, offset, data, MAX_TARGET);
                Ok(())
            }
            Kind::XattrFile => {
                let mut value = self.notes.value(object)?;
                patch(&mut value, offset, data, 2 * MAX_VALUE);
                self.notes.set_value(object, Some(&value))
            }
            Kind::Meta if self.head.meta.len() > MAX_META => broken("so many layouts of attributes"),
            Kind::Meta => {
                match zap::parse(data, self.order)? {
                    Block::Entries(entries) => self.head.meta.insert((object, offset), entries),
                    Block::Header(_) | Block::Table => self.head.meta.remove(&(object, offset)),
                };
                Ok(())
            }
            Kind::Other | Kind::Nameless | Kind::Special => Ok(()),
        }
    }

    fn write_names(&mut self, dir: u64, offset: u64, data: &[u8]) -> Result<(), S::Error> {
        let (mut names, mut told) = (Names::new(), None);
        match zap::parse(data, self.order)? {
            Block::Entries(entries) => {
                for entry in entries {
                    if entry.name.len() > MAX_NAME {
                        return Err(StreamError::from(Refusal::LongName).into());
                    }
                    let object = entry.values.first().copied().unwrap_or_default() & OBJECT_BITS;
                    if entry.name.contains(&b'/')
                        || matches!(&entry.name[..], b"" | b"." | b"..")
                        || object == 0
                    {
                        return broken("a name");
                    }
                    names.push((entry.name, object));
                }
            }
            Block::Header(count) => told = Some(count),
            Block::Table if offset == 0 => return broken("a directory that begins with something else"),
            Block::Table => {}
        }
        let known = self.existing(dir, "names of a directory that is not there")?;
        let before = known.clone();
        known.has_blocks = true;
        let known = before;
        if data.len() < known.block as usize || !offset.is_multiple_of(u64::from(known.block.max(512))) {
            return broken("a block of names that is none");
        }
        self.notes.blocks(dir, &known)?.insert(offset);
        self.put_names(dir, &known, offset, names, told)
    }

    fn free(&mut self, object: u64, offset: u64, len: u64) -> Result<(), S::Error> {
        let Some(known) = self.notes.known(object)? else { return Ok(()) };
        match known.kind {
            Kind::File => {
                let len = known.size.saturating_sub(offset).min(len);
                if len == 0 || known.fresh {
                    return Ok(());
                }
                let known = known.clone();
                self.zero(&known, offset, len)
            }
            Kind::Directory | Kind::XattrDir => {
                let known = known.clone();
                self.empty_blocks(object, &known, offset, len)
            }
            Kind::XattrFile => {
                let mut value = self.notes.value(object)?;
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
                let end = offset.saturating_add(len).min(value.len() as u64) as usize;
                value[start..end.max(start)].fill(0);
                self.notes.set_value(object, Some(&value))
            }
            Kind::Meta => {
                self.forget_meta(object, offset, len);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Puts bytes into others, which grow, to `most` at most.
fn patch(bytes: &mut Vec<u8>, offset: u64, data: &[u8], most: usize) {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(most);
    let end = start.saturating_add(data.len()).min(most);
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(&data[..end - start]);
}
