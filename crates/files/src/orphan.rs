//! Removing what has no name left, and what lay beyond an end that moved.
//!
//! The update that takes an inode's last name away marks it as an orphan. It is removed once no handle is open and
//! the kernel has forgotten it: a small one at once, a big one in steps, each of them an operation of its own, so
//! that `rm` returns at once. The mark goes with the inode itself, in the last step; after a crash the marks that are
//! left say what to go on with.
//!
//! A file that is cut by more than a few extents gets the same mark, and a flag that says that it *has a
//! tail*: extents from the end of its last record on that are of no file any more. Nobody can see them,
//! for they lie beyond the length; whoever makes the file longer drops them first ([`Volume::drop_tail`]).

use crate::error::{FsError, Result};
use crate::extents::extents;
use crate::inode::{Inode, State};
use crate::volume::{Volume, inode_key, orphan_key, reaching};
use larder_format::InodeId;
use larder_format::items::{self, ORPHAN};
use larder_format::node::Key;
use larder_pool::{Ahead, Look, Op, Update};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

/// Extents that the remover of a last name drops itself.
const AT_ONCE: usize = 64;
/// Values of an inode, besides its extents, that are removed in one step.
const VALUES: usize = 512;
/// Extents of a tail that one operation drops of those who wait for it.
pub(crate) const TAIL_STEP: usize = 1024;

/// Where the last record of a file would end if it had `size` bytes.
pub(crate) fn records_end(item: &items::Inode, size: u64) -> u64 {
    match item.record_size {
        0 => 0,
        _ if item.by_content() => size,
        record_size => size.next_multiple_of(u64::from(record_size)),
    }
}

/// Where a file's tail begins: at the end of its last record.
pub(crate) fn tail(item: &items::Inode) -> u64 {
    records_end(item, item.size)
}

/// Whether a file must lose its tail before it may reach up to `end`.
pub(crate) fn meets_tail(state: &State, end: u64) -> bool {
    state.live.flags & items::Inode::HAS_TAIL != 0 && end > tail(&state.live)
}

/// Keys of what belongs to an inode, the inode first: as many as one operation removes.
fn values_of(tree: &impl Look, id: InodeId) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    tree.scan(&Key::new(id.get(), 0, 0), &mut |key, _| {
        if key.object != id.get() || keys.len() == VALUES {
            return ControlFlow::Break(());
        }
        keys.push(*key);
        ControlFlow::Continue(())
    })?;
    Ok(keys)
}

impl Volume {
    /// Reads the marks of orphans; called before anything is open.
    pub(crate) fn find_orphans(&self) -> Result<()> {
        let mut found = Vec::new();
        let view = self.dataset.view()?;
        let key = |offset| Key::new(0, ORPHAN, offset);
        let marks = (Bound::Included(key(0)), Bound::Included(key(u64::MAX)));
        let scanned = view.scan_within(marks, &mut |key, _| {
            found.push(InodeId::new(key.offset));
            ControlFlow::Continue(())
        });
        match scanned.map_err(FsError::from) {
            // Orphans whose marks cannot be read take space; the rest is served.
            Err(FsError::Damaged(_)) => {}
            scanned => scanned?,
        }
        for id in found {
            // An unreadable inode is counted as nothing; its removal will tell.
            let item =
                view.get(&inode_key(id)).ok().flatten().and_then(|value| items::Inode::decode(&value).ok());
            let bytes = item.filter(|item| item.nlink == 0).map_or(0, |item| item.stored);
            self.orphans.lock().insert(id, bytes);
        }
        Ok(())
    }

    /// Whether an inode is needed no more, and is being removed.
    pub(crate) fn is_leaving(&self, id: InodeId) -> bool {
        if !self.orphans.lock().contains_key(&id) {
            return false;
        }
        match self.inode(id) {
            Ok(inode) => inode.lock().map_or(true, |state| !self.is_needed(id, &state)),
            Err(error) => matches!(error, FsError::NotFound),
        }
    }

    /// Stored bytes of files that are being removed.
    pub fn freeing_bytes(&self) -> u64 {
        self.orphans.lock().values().sum()
    }

    /// Orphans of a dataset that was detached are found by their marks when it is attached again.
    fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// Nobody needs an inode any more: removes it, or as much of it as can be done at once.
    pub(crate) fn bury(&self, id: InodeId) {
        if self.is_retired() {
            return;
        }
        self.orphans.lock().insert(id, 0);
        // Its name is gone, which is what was asked for; the rest can be tried again.
        drop(self.reap(id, AT_ONCE, false));
    }

    /// Goes on with removing orphans: one of them, at most `max_extents` extents of it. True while there
    /// is more to do.
    ///
    /// # Errors
    /// When the tree cannot be read or written. An orphan that is [`FsError::Damaged`] is tried again after a restart,
    /// any other the next time.
    pub fn reap_step(&self, max_extents: usize) -> Result<bool> {
        if self.is_retired() {
            return Ok(false);
        }
        let Some(id) = self.orphans.lock().first_key_value().map(|(&id, _)| id) else { return Ok(false) };
        if let Err(error) = self.reap(id, max_extents, true) {
            if matches!(error, FsError::Damaged(_)) {
                self.orphans.lock().remove(&id);
            }
            return Err(error);
        }
        Ok(!self.orphans.lock().is_empty())
    }

    /// One step of what an inode's mark asks for. Whoever does not `wait` leaves an inode that is being
    /// stored to the next who comes.
    fn reap(&self, id: InodeId, max_extents: usize, wait: bool) -> Result<()> {
        if wait {
            // Leaves are read before the operation, on which a commit may wait. What fails is met again.
            let _ = extents(&self.dataset.view()?, id, 0..u64::MAX, max_extents);
            self.pool.make_changes_fit_unless_busy()?;
        }
        let op = self.pool.enter()?;
        let inode = match self.inode(id) {
            Err(FsError::NotFound) => {
                let reads = |tree: &Ahead<'_>| tree.reach_removal(&[orphan_key(id)]);
                self.dataset.update_after(&op, reads, |tree| tree.remove(&orphan_key(id)))?;
                self.orphans.lock().remove(&id);
                return Ok(());
            }
            found => found?,
        };
        let _turn = match wait {
            true => inode.turn.lock(),
            false => match inode.turn.try_lock() {
                Some(turn) => turn,
                None => {
                    let stored = inode.state.lock().live.stored;
                    self.orphans.lock().insert(id, stored);
                    return Ok(());
                }
            },
        };
        let Ok(mut state) = inode.lock() else { return Ok(()) };
        if self.is_needed(id, &state) {
            if !self.cut_tail(&op, id, &mut state, max_extents)? {
                self.orphans.lock().remove(&id);
            }
            return Ok(());
        }
        self.discard(id, &mut state);
        if self.drop_some_extents(&op, id, &mut state, 0..u64::MAX, max_extents)? {
            self.orphans.lock().insert(id, state.live.stored);
            let put = |tree: &mut Update<'_>| Ok(tree.insert(inode_key(id), &state.tree.encode())?);
            return self.dataset.update_after(&op, reaching([inode_key(id)]), put);
        }
        self.orphans.lock().insert(id, 0);
        let reads = |tree: &Ahead<'_>| {
            tree.reach_removal(&[orphan_key(id)])?;
            Ok(tree.reach_removal(&values_of(tree, id)?)?)
        };
        let done = self.dataset.update_after(&op, reads, |tree| {
            let keys = values_of(tree, id)?;
            // The inode is the first of them; it must be the last to go.
            let done = keys.len() < VALUES;
            for key in keys.iter().skip(usize::from(!done)) {
                tree.remove(key)?;
            }
            if done {
                tree.remove(&orphan_key(id))?;
                // Bytes still counted were named in nodes that could not be read.
                let (stored, data) = (state.tree.stored, state.tree.data);
                if (stored, data) != (0, 0) {
                    tree.forget_lost(stored, data);
                }
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

    /// Drops up to `max` extents of a tail; true while it has one. The last step takes the flag away, and
    /// the mark of what has a name.
    fn cut_tail(&self, op: &Op<'_>, id: InodeId, state: &mut State, max: usize) -> Result<bool> {
        if state.live.flags & items::Inode::HAS_TAIL == 0 {
            return Ok(false);
        }
        let more = self.drop_some_extents(op, id, state, tail(&state.live)..u64::MAX, max)?;
        let reads = |tree: &Ahead<'_>| {
            tree.reach(&inode_key(id))?;
            Ok::<_, FsError>(tree.reach_removal(&[orphan_key(id)])?)
        };
        self.dataset.update_after(op, reads, |tree| {
            if !more {
                state.change(|item| item.flags &= !items::Inode::HAS_TAIL);
                if state.live.nlink > 0 {
                    tree.remove(&orphan_key(id))?;
                }
            }
            Ok::<_, FsError>(tree.insert(inode_key(id), &state.tree.encode())?)
        })?;
        Ok(more)
    }

    /// Drops the whole tail of a file that is to grow. Not under an operation: each step is one.
    pub(crate) fn drop_tail(&self, inode: &Inode) -> Result<()> {
        loop {
            self.pool.make_changes_fit_unless_busy()?;
            let op = self.pool.enter()?;
            let _turn = inode.turn.lock();
            let mut state = inode.lock()?;
            if !self.cut_tail(&op, inode.id, &mut state, TAIL_STEP)? {
                return Ok(());
            }
        }
    }

    /// An operation left a tail: marks the inode. The flag is set by the caller, who writes the inode.
    pub(crate) fn note_tail(&self, op: &Op<'_>, id: InodeId) -> Result<()> {
        self.dataset.update_after(op, reaching([orphan_key(id)]), |tree| {
            tree.insert(orphan_key(id), &[])?;
            Ok::<_, FsError>(())
        })?;
        self.orphans.lock().entry(id).or_insert(0);
        Ok(())
    }
}
