//! Attributes and lengths.
//!
//! A file is made longer by a number only; it is made shorter by cutting its dirty data and its extents,
//! which, when they are many, become a tail that is dropped later (see [`crate::orphan`]).
//! An extent that the new end falls into is shortened and keeps its block, so that what a later growth
//! shows there is zero. No range of a file is ever named by two extents, and a block by a second one only when
//! [`crate::share`] says so: to zero a part of a record is to write zeros.

use crate::error::{FsError, Result};
use crate::extents::{Cut, extent_end, extents, extents_over};
use crate::inode::{Inode, State};
use crate::origin::Origin;
use crate::orphan::{meets_tail, records_end};
use crate::posix::{Allocate, Attr, SetAttr, SetTime};
use crate::volume::{Volume, inode_key, orphan_key, reaching};
use larder_format::InodeId;
use larder_format::items::{self, EXTENT, Extent, FileKind, MAX_FILE};
use larder_format::node::Key;
use larder_format::ops::{self, LogOp, Resize, Zero};
use larder_pool::{Ahead, Look, Op, Update};
use std::ops::Range;

/// Extents that are dropped in one operation.
const CUT_STEP: usize = 1024;

/// Nanoseconds of a second.
const NANOS: u32 = 1_000_000_000;
const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// Permissions without what a stranger's write takes away.
pub(crate) fn killed(perm: u16) -> u16 {
    let executable = perm & GROUP_EXECUTE != 0;
    perm & !(SETUID | if executable { SETGID } else { 0 })
}

/// Refuses what has no content that can be written.
pub(crate) fn check_regular(state: &State) -> Result<()> {
    match state.live.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid),
    }
}

impl Volume {
    /// Attributes.
    pub fn getattr(&self, id: InodeId) -> Result<Attr> {
        let inode = match self.inode(id) {
            // Somebody looked it up, perhaps to remove it.
            Err(damaged @ FsError::Damaged(_)) => {
                let lost = self.lost.lock().get(&id).copied().ok_or(damaged)?;
                Inode::new(id, lost)
            }
            found => found?,
        };
        let mut state = inode.lock()?;
        state.used = true;
        Ok(self.attr(id, &state))
    }

    /// Changes attributes and gives the new ones. A new owner or group takes set-user-id and set-group-id
    /// of anything but a directory away, unless the permissions are set, too.
    pub fn setattr(&self, id: InodeId, set: &SetAttr) -> Result<Attr> {
        let given = [set.atime, set.mtime].into_iter().flatten().filter_map(|time| match time {
            SetTime::Now => None,
            SetTime::To(time) => Some(time),
        });
        if given.chain(set.ctime).chain(set.btime).any(|time| time.nanos >= NANOS) {
            return Err(FsError::Invalid);
        }
        if set.size.is_some_and(|size| size > MAX_FILE) {
            return Err(FsError::TooBig);
        }
        let (removing, op) = match set.size {
            Some(_) => self.enter_removing().map(|(removing, op)| (Some(removing), op))?,
            None => (None, self.enter()?),
        };
        let inode = self.inode(id)?;
        let now = self.now();
        let time = |set: Option<SetTime>| {
            set.map(|time| match time {
                SetTime::Now => now,
                SetTime::To(time) => time,
            })
        };
        // The turn comes first, so that the length cannot change between the choice and the cut.
        let _turn = set.size.map(|_| inode.turn.lock());
        let mut state = inode.lock()?;
        if set.size.is_some() {
            check_regular(&state)?;
        }
        if set.size.is_some_and(|size| meets_tail(&state, size)) {
            drop((state, _turn, op, removing));
            self.drop_tail(&inode)?;
            return self.setattr(id, set);
        }
        let length = state.live.size;
        let mut change = ops::SetAttr {
            inode: id,
            perm: set.perm.map(|perm| (perm & 0o7777) as u16),
            uid: set.uid,
            gid: set.gid,
            resize: set
                .size
                .filter(|&size| size != length)
                .map(|size| if size < length { Resize::Cut(size) } else { Resize::Grow(size) }),
            atime: time(set.atime),
            mtime: time(set.mtime).or(set.size.map(|_| now)),
            btime: set.btime,
            ctime: set.ctime.unwrap_or(now),
        };
        let moves = set.perm.is_none()
            && (set.uid.is_some() || set.gid.is_some())
            && state.live.kind != FileKind::Directory;
        if set.kill_suidgid || moves {
            let before = change.perm.unwrap_or(state.live.perm);
            let setgid = if set.kill_suidgid && set.kill_setgid { SETGID } else { 0 };
            change.perm = Some(killed(before) & !setgid).filter(|&perm| perm != before).or(change.perm);
        }
        self.apply_to(&op, &inode, &mut state, change, Origin::Live)?;
        Ok(self.attr(id, &state))
    }

    pub(crate) fn apply_setattr(&self, op: &Op<'_>, change: ops::SetAttr, origin: Origin) -> Result<()> {
        let inode = self.inode(change.inode)?;
        let _turn = inode.turn.lock();
        let mut state = inode.lock()?;
        if change.resize.is_some() {
            check_regular(&state)?;
        }
        self.apply_to(op, &inode, &mut state, change, origin)
    }

    /// With the turn held, if the length changes.
    fn apply_to(
        &self,
        op: &Op<'_>,
        inode: &Inode,
        state: &mut State,
        change: ops::SetAttr,
        origin: Origin,
    ) -> Result<()> {
        let cut = match change.resize {
            Some(Resize::Cut(size)) if size < state.live.size => Some(size),
            _ => None,
        };
        if let Some(size) = cut {
            self.cut(op, inode.id, state, size)?;
        }
        self.dataset.update_after(op, reaching([inode_key(inode.id)]), |tree| {
            if let Some(Resize::Grow(size)) = change.resize {
                state.change(|item| item.size = item.size.max(size));
            }
            state.change(|item| {
                item.perm = change.perm.unwrap_or(item.perm);
                item.uid = change.uid.unwrap_or(item.uid);
                item.gid = change.gid.unwrap_or(item.gid);
                item.atime = change.atime.unwrap_or(item.atime);
                item.mtime = change.mtime.unwrap_or(item.mtime);
                item.btime = change.btime.unwrap_or(item.btime);
                item.ctime = change.ctime;
            });
            tree.insert(inode_key(inode.id), &state.tree.encode())?;
            match origin {
                Origin::Live if cut.is_some() => tree.log_removal(LogOp::SetAttr(change).encode()),
                Origin::Live => tree.log(LogOp::SetAttr(change).encode()),
                Origin::Replay => {}
            }
            Ok(())
        })
    }

    /// Cuts a file to `size`; the caller has the turn and writes the inode. What cannot be read is noticed before
    /// anything is changed.
    fn cut(&self, op: &Op<'_>, id: InodeId, state: &mut State, size: u64) -> Result<()> {
        let across = {
            let view = self.dataset.view()?;
            view.reach(&inode_key(id))?;
            view.reach(&orphan_key(id))?;
            extent_across(&view, id, &state.live, size)?
        };
        if state.live.record_size > 0 {
            let more =
                self.drop_some_extents(op, id, state, records_end(&state.live, size)..u64::MAX, CUT_STEP)?;
            let dirty = state.data.bytes;
            state.data.cut(state.live.record_size, size);
            self.meter(dirty, state);
            if more {
                self.note_tail(op, id)?;
                state.change(|item| item.flags |= items::Inode::HAS_TAIL);
            }
            if let Some((offset, extent)) = across {
                let extent = Extent { len: (size - offset) as u32, ..extent };
                let key = Key::new(id.get(), EXTENT, offset);
                let put = |tree: &mut Update<'_>| Ok::<_, FsError>(tree.insert(key, &extent.encode())?);
                self.dataset.update_after(op, reaching([key]), put)?;
            }
        }
        state.change(|item| {
            item.size = item.size.min(size);
            if size == 0 {
                // Nothing is cut any more: the next write chooses anew.
                item.record_size = 0;
                item.flags &= !Cut::FLAGS;
            }
        });
        if size == 0 {
            state.recut = None;
        }
        Ok(())
    }

    /// Drops all extents that begin in `range`; the caller writes the inode in the same operation.
    fn drop_extents(&self, op: &Op<'_>, id: InodeId, state: &mut State, range: Range<u64>) -> Result<()> {
        while self.drop_some_extents(op, id, state, range.clone(), CUT_STEP)? {}
        Ok(())
    }

    /// Drops up to `max` extents that begin in `range`; tells whether there may be more.
    pub(crate) fn drop_some_extents(
        &self,
        op: &Op<'_>,
        id: InodeId,
        state: &mut State,
        range: Range<u64>,
        max: usize,
    ) -> Result<bool> {
        let key = |offset| Key::new(id.get(), EXTENT, offset);
        let end = if range.end == u64::MAX { inode_key(id) } else { key(range.end) };
        let reads = |tree: &Ahead<'_>| match extents(tree, id, range.clone(), max) {
            Err(FsError::Damaged(_)) => {
                tree.reach_lost(&key(range.start), &end);
                Ok(())
            }
            found => {
                let keys: Vec<_> = found?.iter().map(|(offset, _)| key(*offset)).collect();
                Ok(tree.reach_removal(&keys)?)
            }
        };
        let dropped = self.dataset.update_after(op, reads, |tree| {
            let extents = match extents(tree, id, range.clone(), max) {
                // An unreadable node is dropped unread, if it can hold nothing outside the range; then the rest.
                Err(FsError::Damaged(why)) => {
                    return match tree.excise_lost(&key(range.start), &end)? {
                        true => Ok(None),
                        false => Err(FsError::Damaged(why)),
                    };
                }
                found => found?,
            };
            let (Some((first, _)), Some((last, _))) = (extents.first(), extents.last()) else {
                return Ok(Some(extents));
            };
            tree.remove_range(key(*first)..=key(*last), extents.len(), |_, _| {})?;
            for (_, extent) in &extents {
                tree.drop_block(extent);
            }
            Ok::<_, FsError>(Some(extents))
        })?;
        let Some(dropped) = dropped else { return Ok(true) };
        state.change(|item| dropped.iter().for_each(|(_, extent)| item.forget_extent(extent)));
        Ok(dropped.len() == max)
    }

    /// Changes what a range of a file occupies.
    pub fn allocate(&self, id: InodeId, offset: u64, len: u64, mode: Allocate) -> Result<()> {
        let end = offset.checked_add(len).filter(|&end| end <= MAX_FILE).ok_or(FsError::TooBig)?;
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let inode = self.inode(id)?;
        check_regular(&*inode.lock()?)?;
        let grow = match mode {
            Allocate::Extend | Allocate::Zero { keep_size: false } => true,
            Allocate::KeepSize | Allocate::Punch | Allocate::Zero { keep_size: true } => false,
        };
        if matches!(mode, Allocate::Extend | Allocate::KeepSize) {
            self.within_quota(|| Ok(self.pool.check_quota(self.id(), len)?))?;
            self.pool.check_room(&self.dataset, len, || false)?;
        }
        if matches!(mode, Allocate::Punch | Allocate::Zero { .. }) {
            let mut at = offset;
            while at < end {
                // As many extents as one operation should drop, then the next.
                let rest = extents(&self.dataset.view()?, id, at..end, CUT_STEP + 1)?;
                let next = rest.get(CUT_STEP).map_or(end, |(offset, _)| *offset);
                let (_removing, op) = self.enter_removing()?;
                let zero = Zero { inode: id, offset: at, len: next - at, time: self.now() };
                self.apply_zero(&op, zero, Origin::Live)?;
                at = next;
            }
        }
        let op = self.enter()?;
        let _turn = inode.turn.lock();
        let mut state = inode.lock()?;
        if grow && meets_tail(&state, end) {
            drop((state, _turn, op));
            self.drop_tail(&inode)?;
            return self.allocate(id, offset, len, mode);
        }
        let now = self.now();
        let change = ops::SetAttr {
            inode: id,
            perm: None,
            uid: None,
            gid: None,
            // Somebody may have written beyond the range meanwhile: nothing may be cut.
            resize: (grow && state.live.size < end).then_some(Resize::Grow(end)),
            atime: None,
            mtime: Some(now),
            btime: None,
            ctime: now,
        };
        self.apply_to(&op, &inode, &mut state, change, Origin::Live)
    }

    /// Makes a range zero without changing the file's length.
    pub(crate) fn apply_zero(&self, op: &Op<'_>, zero: Zero, origin: Origin) -> Result<()> {
        let inode = self.inode(zero.inode)?;
        let _turn = inode.turn.lock();
        let mut state = inode.lock()?;
        let (id, time) = (zero.inode, zero.time);
        let record_size = state.live.record_size;
        let size = state.live.size;
        let range = zero.offset.min(size)..zero.offset.saturating_add(zero.len).min(size);
        let dirty = state.data.bytes;
        if record_size > 0 && !range.is_empty() {
            let step = u64::from(record_size);
            // Up to the end of the file is up to the end of its last record.
            let end = if range.end == size { size.next_multiple_of(step) } else { range.end };
            let whole = range.start.next_multiple_of(step)..end / step * step;
            let parts = if whole.start < whole.end {
                [range.start..whole.start, whole.end.min(range.end)..range.end]
            } else {
                [range.clone(), range.end..range.end]
            };
            // Unreadable nodes are noticed before anything is changed.
            self.dataset.view()?.reach(&inode_key(id))?;
            let written = if state.live.by_content() {
                self.drop_within(op, id, &mut state, range.clone())?
            } else {
                let stored = parts.iter().map(|part| self.stored_within(id, &state, part.clone()));
                let written = stored.collect::<Result<Vec<_>>>()?.concat();
                if whole.start < whole.end {
                    self.drop_extents(op, id, &mut state, whole.clone())?;
                }
                written
            };
            if whole.start < whole.end {
                let records = state.data.records.range(whole.start / step..whole.end / step);
                let records = records.map(|(&record, _)| record).collect::<Vec<_>>();
                records.into_iter().for_each(|record| state.data.forget(record));
            }
            if state.live.by_content() {
                parts.into_iter().for_each(|part| zero_written(&mut state, part));
            }
            for part in written {
                let zeros = vec![0; (part.end - part.start) as usize];
                state.data.write(record_size, part.start, &zeros);
            }
            // The operation below says all this to the log.
            state.data.unlogged.remove(range);
        }
        self.meter(dirty, &mut state);
        if !state.data.is_empty() {
            self.queue(id, &mut state);
            self.logged.lock().insert(id);
        }
        self.dataset.update_after(op, reaching([inode_key(id)]), |tree| {
            state.change(|item| (item.mtime, item.ctime) = (time, time));
            tree.insert(inode_key(id), &state.tree.encode())?;
            if origin == Origin::Live {
                tree.log_removal(LogOp::Zero(zero).encode());
            }
            Ok(())
        })
    }

    /// Drops what is stored within a range, in a file that is cut by content; gives the parts that extents reach
    /// into from outside it, which zeros have to be written over.
    fn drop_within(
        &self,
        op: &Op<'_>,
        id: InodeId,
        state: &mut State,
        range: Range<u64>,
    ) -> Result<Vec<Range<u64>>> {
        let reaching_over = |state: &State, at: u64| {
            let found = extents_over(&self.dataset.view()?, id, &state.live, at..at.saturating_add(1), 1)?;
            let found = found.into_iter().find(|(offset, _)| *offset < at);
            Ok::<_, FsError>(found.map(|(offset, extent)| offset..extent_end(offset, &extent)))
        };
        let first = reaching_over(state, range.start)?.map_or(range.start, |extent| extent.end);
        let last = reaching_over(state, range.end)?.map_or(range.end, |extent| extent.start);
        if range.start < last {
            self.drop_extents(op, id, state, range.start..last)?;
        }
        Ok(vec![range.start..first.min(range.end), last.max(first).min(range.end)..range.end])
    }

    /// The parts, by record, of a part of one record, or of two, where there is anything that is not zero.
    fn stored_within(&self, id: InodeId, state: &State, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let record_size = u64::from(state.live.record_size);
        let (mut parts, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let record = at / record_size;
            let end = range.end.min((record + 1) * record_size);
            let stored = self.dataset.view()?.get(&Key::new(id.get(), EXTENT, record * record_size))?;
            if stored.is_some() || state.data.records.contains_key(&record) {
                parts.push(at..end);
            }
            at = end;
        }
        Ok(parts)
    }
}

/// The extent that an end at `at` cuts. One that begins there is none: it is dropped, and need not be readable.
fn extent_across(
    tree: &impl Look,
    id: InodeId,
    item: &items::Inode,
    at: u64,
) -> Result<Option<(u64, Extent)>> {
    let step = u64::from(item.record_size);
    if at == 0 || step == 0 || !item.by_content() && at.is_multiple_of(step) {
        return Ok(None);
    }
    let begins = || tree.get(&Key::new(id.get(), EXTENT, at));
    if item.by_content() && matches!(begins(), Ok(Some(_))) {
        return Ok(None);
    }
    let before = extents_over(tree, id, item, at - 1..at, 1)?.pop();
    Ok(before.filter(|(offset, extent)| extent_end(*offset, extent) > at))
}

/// Makes zero what was written to a part of one record, or of two, and is not stored.
fn zero_written(state: &mut State, range: Range<u64>) {
    let step = u64::from(state.live.record_size);
    let records = state.data.records.range(range.start / step..range.end.div_ceil(step));
    let written = records.flat_map(|(record, pieces)| {
        let base = record * step;
        let within = range.start.saturating_sub(base) as u32..(range.end - base).min(step) as u32;
        pieces.parts(within).map(move |part| (base + u64::from(part.start), part.len()))
    });
    for (at, len) in written.collect::<Vec<_>>() {
        state.data.write(state.live.record_size, at, &vec![0; len]);
    }
}
