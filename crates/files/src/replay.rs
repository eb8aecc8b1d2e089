//! Replay: doing again what the intent log says, on the state of the commit before it.
//!
//! Each operation was checked and carried out once, on this very state, so it fits; one that does not
//! says that log or tree are damaged, and is an error. Only where what it is about cannot be read any more is it
//! lost, and with it what follows on it.

use crate::error::{FsError, Result};
use crate::origin::Origin::Replay;
use crate::volume::Volume;
use larder_format::InodeId;
use larder_format::ops::{LogOp, Resize, Write};
use std::collections::BTreeSet;

/// Objects and names of a dataset that a logged operation is about.
#[derive(Debug, Default)]
struct Subjects {
    inodes: Vec<InodeId>,
    /// Names with their directories.
    names: Vec<(InodeId, Vec<u8>)>,
}

impl Subjects {
    fn of(logged: &LogOp) -> Self {
        let inode = |inode| Self { inodes: vec![inode], names: Vec::new() };
        let name = |parent, name: &[u8]| Self { inodes: Vec::new(), names: vec![(parent, name.to_vec())] };
        match logged {
            LogOp::Create(create) => Self { inodes: vec![create.inode], ..name(create.parent, &create.name) },
            LogOp::Link(link) => Self { inodes: vec![link.inode], ..name(link.parent, &link.name) },
            LogOp::Unlink(unlink) => name(unlink.parent, &unlink.name),
            LogOp::Rename(rename) => {
                let names = [(rename.parent, &rename.name), (rename.new_parent, &rename.new_name)];
                let names = names.map(|(parent, name)| (parent, name.clone()));
                Self { inodes: Vec::new(), names: names.into() }
            }
            LogOp::SetAttr(change) => inode(change.inode),
            LogOp::SetXattr(change) => inode(change.inode),
            LogOp::Write(write) => inode(write.inode),
            LogOp::Zero(zero) => inode(zero.inode),
        }
    }
}

/// Objects and names of a dataset that logged operations were about which are lost: later ones need not fit there.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    inodes: BTreeSet<InodeId>,
    names: BTreeSet<(InodeId, Vec<u8>)>,
    /// Directories in which a name may be, or may be missing, for that.
    dirs: BTreeSet<InodeId>,
}

impl Lost {
    fn note(&mut self, subjects: Subjects) {
        self.dirs.extend(subjects.names.iter().map(|(dir, _)| *dir));
        self.inodes.extend(subjects.inodes);
        self.names.extend(subjects.names);
    }

    /// Whether something that is lost has to do with these: an object, a name, its directory, or what is in the
    /// directory that it names.
    fn touches(&self, volume: &Volume, subjects: &Subjects) -> bool {
        let named = |(dir, name): &(InodeId, Vec<u8>)| {
            let found = volume.find(*dir, name).ok().flatten();
            found.is_some_and(|found| self.inodes.contains(&found.inode) || self.dirs.contains(&found.inode))
        };
        subjects.inodes.iter().any(|inode| self.inodes.contains(inode))
            || subjects.names.iter().any(|name| self.names.contains(name) || self.inodes.contains(&name.0))
            || subjects.names.iter().any(named)
    }
}

/// Whether an operation was refused for what is there, or is not there; else the pool failed.
fn does_not_fit(error: &FsError) -> bool {
    use FsError::*;
    matches!(
        error,
        NotFound
            | Exists
            | NotDirectory
            | IsDirectory
            | NotEmpty
            | Invalid
            | Permission
            | TooManyLinks
            | NoAttr
            | TooBig
    )
}

impl Volume {
    /// Does a logged operation again, with so many left after it; `lost` remembers which could not be done.
    ///
    /// # Errors
    /// When it does not decode or does not fit the tree; nothing of it is done then. [`FsError::Damaged`] when what
    /// it is about cannot be read any more, or was lost with an operation before.
    pub(crate) fn replay(&self, bytes: &[u8], left: usize, lost: &mut Lost) -> Result<()> {
        let logged = LogOp::decode(bytes)?;
        let subjects = Subjects::of(&logged);
        let done = self.redo(logged, left).map_err(|error| match error {
            error if !does_not_fit(&error) => error,
            error if lost.touches(self, &subjects) => {
                FsError::Damaged(format!("it follows on one that is lost: {error}"))
            }
            error => FsError::Io(format!("a logged operation does not fit: {error}")),
        });
        if matches!(done, Err(FsError::Damaged(_))) {
            lost.note(subjects);
        }
        done
    }

    fn redo(&self, logged: LogOp, left: usize) -> Result<()> {
        let grows = match &logged {
            LogOp::Write(write) => {
                self.make_room_in_replay(write.data.len() as u64, left)?;
                Some(write.inode)
            }
            LogOp::SetAttr(change) if matches!(change.resize, Some(Resize::Grow(_))) => Some(change.inode),
            _ => None,
        };
        // The tail beyond the end had been dropped before the file grew, but perhaps not in the commit.
        if let Some(inode) = grows.and_then(|id| self.inode(id).ok()) {
            self.drop_tail(&inode)?;
        }
        let op = self.pool.enter()?;
        let _names = self.names.lock();
        let orphan = match logged {
            LogOp::Create(create) => {
                // Without a name it is an orphan, unless a later operation links it.
                let orphan = create.name.is_empty().then_some(create.inode);
                let key = match orphan {
                    Some(_) => Ok(None),
                    None => self.free_key(create.parent, &create.name).map(Some),
                };
                key.and_then(|key| self.apply_create(&op, create, key, false, Replay)).map(|_| orphan)
            }
            LogOp::Link(link) => self.apply_link(&op, link, Replay).map(|_| None),
            LogOp::Unlink(unlink) => self.apply_unlink(&op, unlink, Replay),
            LogOp::Rename(rename) => self.apply_rename(&op, rename, Replay),
            LogOp::SetAttr(change) => self.apply_setattr(&op, change, Replay).map(|()| None),
            LogOp::SetXattr(change) => self.apply_setxattr(&op, change, Replay).map(|()| None),
            LogOp::Write(write) => self.apply_write(&write).map(|()| None),
            LogOp::Zero(zero) => self.apply_zero(&op, zero, Replay).map(|()| None),
        }?;
        let Some(id) = orphan else { return Ok(()) };
        // Later operations may still write to it; it is removed when all are done. What it held when it lost its last
        // name is nobody's, and need not be stored.
        self.orphans.lock().insert(id, 0);
        let inode = self.inode(id)?;
        let mut state = inode.lock()?;
        self.discard(id, &mut state);
        Ok(())
    }

    fn apply_write(&self, write: &Write) -> Result<()> {
        let inode = self.inode(write.inode)?;
        let mut state = inode.lock()?;
        let (mtime, ctime) = (state.live.mtime, state.live.ctime);
        self.accept(write.inode, &mut state, write.offset, &write.data, write.mtime, Replay)?;
        state.live.size = state.live.size.max(write.size);
        // The log has no ctime. A write sets both times; where the mtime is what it was, it is not the write's but has
        // been set, and the ctime is that of the setting.
        state.live.ctime = if write.mtime == mtime { ctime } else { ctime.max(write.mtime) };
        // It is in a log, which the commit after replay drops: so that stores it, even if it stores nothing else.
        state.data.unlogged.remove(write.offset..write.offset + write.data.len() as u64);
        self.logged.lock().insert(write.inode);
        Ok(())
    }
}
