//! Replay: doing again what the intent log says, on the state of the commit before it.
//!
//! Each operation was checked and carried out once, on this very state, so it fits; one that does not
//! says that log or tree are damaged, and is an error.

use crate::error::{FsError, Result};
use crate::origin::Origin::Replay;
use crate::volume::Volume;
use larder_format::ops::{LogOp, Resize, Write};

impl Volume {
    /// Does a logged operation again, with so many left after it.
    ///
    /// # Errors
    /// When it does not decode or does not fit the tree; nothing of it is done then. [`FsError::Damaged`] when what
    /// it is about cannot be read any more.
    pub fn replay(&self, bytes: &[u8], left: usize) -> Result<()> {
        let logged = LogOp::decode(bytes)?;
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
        }
        .map_err(|error| match error {
            damaged @ FsError::Damaged(_) => damaged,
            error => FsError::Io(format!("a logged operation does not fit: {error}")),
        })?;
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
