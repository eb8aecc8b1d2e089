//! Removing what has no name left.
//!
//! The update that takes an inode's last name away marks it as an orphan. It is removed once no handle
//! is open: a small one at once, a big one in steps, each of them an operation of its own, so that `rm`
//! returns at once. The mark goes with the inode itself, in the last step; after a crash the marks that
//! are left say what to go on with.

use crate::attr::extents;
use crate::error::{FsError, Result};
use crate::volume::{Volume, orphan_key};
use larder_format::InodeId;
use larder_format::items::ORPHAN;
use larder_format::node::Key;
use larder_pool::Look;
use std::ops::ControlFlow;

/// Extents that the remover of a last name drops itself.
const AT_ONCE: usize = 64;
/// Values of an inode, besides its extents, that are removed in one step.
const VALUES: usize = 512;

impl Volume {
    /// Reads the marks of orphans; called before anything is open.
    pub(crate) fn find_orphans(&self) -> Result<()> {
        let mut orphans = self.orphans.lock();
        self.dataset.view()?.scan(&Key::new(0, ORPHAN, 0), &mut |key, _| {
            if (key.object, key.kind) != (0, ORPHAN) {
                return ControlFlow::Break(());
            }
            orphans.insert(InodeId::new(key.offset));
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    /// An inode has neither name nor handle: removes it, or as much of it as can be done at once.
    pub(crate) fn bury(&self, id: InodeId) {
        self.orphans.lock().insert(id);
        // Its name is gone, which is what was asked for; the rest can be tried again.
        drop(self.reap(id, AT_ONCE));
    }

    /// Goes on with removing orphans: one of them, at most `max_extents` extents of it. True while there
    /// is more to do.
    ///
    /// # Errors
    /// When the tree cannot be read or written; the orphan is tried again after a restart.
    pub fn reap_step(&self, max_extents: usize) -> Result<bool> {
        let Some(id) = self.orphans.lock().first().copied() else { return Ok(false) };
        if let Err(error) = self.reap(id, max_extents) {
            self.orphans.lock().remove(&id);
            return Err(error);
        }
        Ok(!self.orphans.lock().is_empty())
    }

    fn reap(&self, id: InodeId, max_extents: usize) -> Result<()> {
        let op = self.pool.enter()?;
        let inode = match self.inode(id) {
            Err(FsError::NotFound) => {
                self.dataset.update(&op, |tree| tree.remove(&orphan_key(id)).map(drop))?;
                self.orphans.lock().remove(&id);
                return Ok(());
            }
            found => found?,
        };
        let _turn = inode.turn.lock();
        let Ok(mut state) = inode.lock() else { return Ok(()) };
        if state.live.nlink > 0 || state.open > 0 {
            self.orphans.lock().remove(&id);
            return Ok(());
        }
        self.discard(id, &mut state);
        let more = extents(&self.dataset.view()?, id, 0..u64::MAX, 1)?.len() == 1
            && self.drop_some_extents(&op, id, &mut state, 0..u64::MAX, max_extents)?;
        if more {
            return Ok(());
        }
        let done = self.dataset.update(&op, |tree| {
            let mut keys = Vec::new();
            tree.scan(&Key::new(id.get(), 0, 0), &mut |key, _| {
                if key.object != id.get() || keys.len() == VALUES {
                    return ControlFlow::Break(());
                }
                keys.push(*key);
                ControlFlow::Continue(())
            })?;
            // The inode is the first of them; it must be the last to go.
            let done = keys.len() < VALUES;
            for key in keys.iter().skip(usize::from(!done)) {
                tree.remove(key)?;
            }
            if done {
                tree.remove(&orphan_key(id))?;
            }
            Ok::<_, FsError>(done)
        })?;
        if done {
            state.gone = true;
            drop(state);
            self.disown(id);
            self.orphans.lock().remove(&id);
        }
        Ok(())
    }
}
