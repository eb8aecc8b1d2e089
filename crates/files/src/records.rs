//! Live files whose records are cut otherwise than their dataset says now are cut anew.
//!
//! A file goes in steps of some MiB, each one operation: the extents of a stretch go, and records with the same bytes
//! take their places. What was written to the file and not stored yet stays dirty above. A file that one step takes
//! whole is cut as it should be at once. Any other has its records *back to back* meanwhile, as a file that is cut by
//! content has them, so that it is a valid file between any two steps, and the last step says how it is cut. A crash,
//! or a stop, leaves it like that, for the next pass to finish.
//!
//! While it lies back to back its inode says that it is half cut, so that no pass takes it for done, and its
//! `record_size` is the larger of the old and the new one: by it writers reckon how much of what is stored a write
//! takes along. They cut what they store as the pass does ([`crate::inode::Progress`]), so that what was done stays
//! done, and whoever writes all the time does not lead the pass on for ever.
//!
//! A stretch ends where an old extent does, and the next one begins with the last new record, which may go on: no
//! extent is divided.
//!
//! An extent that cannot be read stays as it is, and records end before it and begin behind it. At multiples of a size
//! that is no way for a file to be cut: it stays half cut until a pass can read it, or finds it written anew; a pass
//! that comes by until then leaves all else as it is.
//!
//! # What else goes by the cut
//! A *tail* begins where the cut says, so it is dropped first. Dirty data is kept by records, and moves to others
//! ([`crate::inode::DirtyData::rekey`]). Readers look extents up in the tree that the inode which they saw belongs to.
//!
//! # Locks
//! As a flush: the inode's turn from the look at the extents on; its state while the tree changes.

use crate::cut::{Cuts, Cutter};
use crate::error::{FsError, Result};
use crate::extents::{Cut, extent_end, extents, extents_over};
use crate::inode::{Progress, State, UnderWay};
use crate::renew::Exchange;
use crate::volume::{Volume, inode_key};
use larder_format::items::{self, EXTENT, Extent, FileKind, Inode};
use larder_format::node::Key;
use larder_format::{BlockId, InodeId, is_zero};
use larder_pool::cache::Record;
use larder_pool::codec::Codec;
use larder_pool::{Look, NewRecord, Renewal, Renewed, Settings, record_claim};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

/// Plain bytes that a step cuts anew, about.
const BYTES: u64 = 16 << 20;
/// Extents that a step looks at, and inodes.
const EXTENTS: usize = 4096;
const INODES: usize = 4096;
/// Records that a step makes, about.
const RECORDS: u64 = 1024;
/// Neighbouring keys of one file that lie in a node, at least.
const KEYS: u64 = 32;
/// Dirty bytes of a file that are brought into other records at once; more are stored first.
const REKEYED: u64 = 8 << 20;
/// Records that may have been written to, while a step looked for room, in a file that somebody writes to all the time.
const SLACK: u64 = 64;
/// Times that a step looks at a file that somebody changes meanwhile, before it takes it as it is.
const TRIES: usize = 8;

/// A part of a file, which is to be cut anew.
#[derive(Default, PartialEq, Eq)]
struct Stretch {
    /// The extents that go.
    olds: Vec<(u64, Extent)>,
    /// Bytes of those that can stay, as they are stored.
    passed: u64,
    /// Where the first extent behind it begins.
    next: Option<u64>,
    /// No record may begin before this: an extent that could not be read ends here.
    from: u64,
}

/// A stretch as it will be.
struct Anew {
    olds: Vec<(u64, Extent)>,
    news: Vec<NewRecord>,
    /// Where the last new record begins.
    last: u64,
    /// Some of it cannot be read, and stays.
    is_odd: bool,
}

impl Volume {
    /// The cut that these settings say.
    pub(crate) fn cut_by(&self, settings: &Settings) -> Cut {
        Cut::by(settings, self.record_limit())
    }

    fn cuts_of(&self, cut: Cut) -> Cuts {
        match cut.by_content {
            true => Cuts::ByContent(Cutter::new(cut.record_size, self.record_limit())),
            false => Cuts::Even(cut.record_size),
        }
    }

    /// See [`larder_pool::Renew::Records`].
    pub(crate) fn cut_anew(&self, renewal: &Renewal, settings: &Settings) -> Result<Renewed> {
        if !renewal.dry_run {
            self.leave_others(renewal.from.object);
            self.check_writable()?;
        }
        let renewed = self.cut_some(renewal, settings)?;
        if !renewal.dry_run {
            self.leave_others(renewed.next.map_or(0, |next| next.object));
        }
        Ok(renewed)
    }

    /// A file under way that is not the one where the pass goes on stays between its cuts for now: those who write to
    /// it go by what its inode says.
    fn leave_others(&self, object: u64) {
        let other = self.under_way.lock().take_if(|at| at.id.get() != object);
        if let Some(Ok(inode)) = other.map(|at| self.inode(at.id)) {
            let _turn = inode.turn.lock();
            inode.state.lock().recut = None;
        }
    }

    /// A step through files.
    fn cut_some(&self, renewal: &Renewal, settings: &Settings) -> Result<Renewed> {
        let (wanted, bytes) = (self.cut_by(settings), renewal.bytes.min(BYTES));
        let (mut renewed, mut at) = (Renewed::default(), renewal.from);
        for _ in 0..INODES {
            let Some((id, item)) = self.file_from(&at, &mut renewed)? else {
                return Ok(renewed);
            };
            let from = if at.object == id.get() { at.offset } else { 0 };
            let begin = Key::new(id.get(), EXTENT, from);
            at = Key::new(id.get().saturating_add(1), 0, 0);
            // One without a name is of no use to anybody soon.
            let is_file = item.kind == FileKind::Regular && item.record_size > 0 && item.nlink > 0;
            if !is_file || Cut::of(&item) == wanted {
                renewed.skipped += item.stored;
                continue;
            }
            let step = Step { id, from, wanted, settings, bytes };
            let next = match renewal.dry_run {
                true => self.tell_step(&step, &item, &mut renewed),
                false => self.cut_step(&step, &mut renewed),
            };
            match next {
                Ok(Some(next)) => at = Key::new(id.get(), EXTENT, next),
                Ok(None) => {}
                // A node above its extents cannot be read.
                Err(FsError::Damaged(_)) => {
                    self.check_silence()?;
                    renewed.tally.unread += 1;
                }
                Err(FsError::NotFound) => {}
                Err(error) if renewed.tally.changed == 0 => return Err(error),
                // It is met again, with what was done before told.
                Err(_) => {
                    renewed.next = Some(begin);
                    return Ok(renewed);
                }
            }
            if renewed.tally.read >= bytes {
                break;
            }
        }
        renewed.next = Some(at);
        Ok(renewed)
    }

    /// The first inode from a key on.
    fn file_from(&self, at: &Key, renewed: &mut Renewed) -> Result<Option<(InodeId, Inode)>> {
        let view = self.dataset.view()?;
        let mut from = Key { object: at.object.max(1), ..*at };
        loop {
            let mut found = None;
            let lost = view.scan_past(Key::new(from.object, 0, 0)..=Key::MAX, &mut |key, _| {
                found = Some(key.object);
                ControlFlow::Break(())
            });
            if lost {
                self.check_silence()?;
                renewed.tally.unread += 1;
            }
            let Some(object) = found.filter(|object| *object <= items::MAX_INODE) else { return Ok(None) };
            let id = InodeId::new(object);
            let value = view.get(&inode_key(id)).ok().flatten();
            if let Some(item) = value.and_then(|value| Inode::decode(&value).ok()) {
                return Ok(Some((id, item)));
            }
            self.check_silence()?;
            renewed.tally.unread += 1;
            from = Key::new(object + 1, 0, 0);
        }
    }

    /// The part of a file that a step takes, from `from` on.
    fn stretch(
        &self,
        tree: &impl Look,
        id: InodeId,
        item: &Inode,
        from: u64,
        (cuts, bytes): (&Cuts, u64),
    ) -> Result<Stretch> {
        // Beyond the end lies at most what is being dropped.
        let found = extents(tree, id, from..item.size.max(from), EXTENTS + 1)?;
        // Only one that could not be read lies across.
        let before = if from == 0 { None } else { extents_over(tree, id, item, from - 1..from, 1)?.pop() };
        let from = before.map_or(from, |(offset, extent)| extent_end(offset, &extent).max(from));
        let (mut stretch, mut load, mut end) =
            (Stretch { from, ..Stretch::default() }, Load::default(), from);
        for (i, (offset, extent)) in found.iter().enumerate() {
            if *offset < end {
                return Err(FsError::Damaged("extents lie over each other".into()));
            }
            let next = found.get(i + 1).map(|(next, _)| *next);
            // Where the last record does not go on, nothing is stored twice.
            let is_whole = match cuts {
                Cuts::Even(size) => end.next_multiple_of(u64::from(*size)) <= *offset,
                Cuts::ByContent(_) => false,
            };
            let is_full = load.bytes >= bytes || load.records >= RECORDS;
            // More than a record, or the next step would come to the same.
            let is_overfull = load.bytes >= bytes + 2 * cuts.max() as u64 || load.records >= 2 * RECORDS;
            if is_full && is_whole || is_overfull && stretch.olds.len() > 1 || i == EXTENTS {
                stretch.next = Some(*offset);
                return Ok(stretch);
            }
            if is_in_place(*offset, extent, next, cuts) {
                stretch.passed += u64::from(extent.ptr.place.stored);
            } else {
                stretch.olds.push((*offset, *extent));
                load.add(*offset, extent, end, cuts);
            }
            end = extent_end(*offset, extent);
        }
        Ok(stretch)
    }

    /// One step through a file; where to go on in it.
    fn cut_step(&self, step: &Step<'_>, renewed: &mut Renewed) -> Result<Option<u64>> {
        let Step { id, wanted, settings, .. } = *step;
        let cuts = self.cuts_of(wanted);
        let inode = self.inode(id)?;
        for attempt in 1.. {
            let (item, progress, dirty) = {
                let state = inode.lock()?;
                (state.tree, state.recut, state.data.bytes)
            };
            if item.flags & Inode::HAS_TAIL != 0 {
                self.drop_tail(&inode)?;
                continue;
            }
            let largest = item.record_size.max(wanted.record_size);
            // In larger records what was accepted takes more room than was there for it.
            let is_growing = largest > item.record_size;
            if attempt < TRIES && (dirty > REKEYED || is_growing && dirty > 0) {
                self.flush_one(id)?;
            }
            // Somebody writes all the time.
            let slack = if attempt >= TRIES && is_growing { SLACK * u64::from(largest) } else { 0 };
            let growth = |state: &State| if is_growing { state.growth_in(largest) } else { 0 };
            let more = slack + growth(&*inode.lock()?);
            let from = begin(progress, &cuts);
            let stretch = self.stretch(&self.dataset.view()?, id, &item, from, (&cuts, step.bytes))?;
            // Nothing is read under the turn, for which a commit may wait.
            let wanted_blocks: Vec<_> = stretch.olds.iter().map(|(_, old)| old.ptr).collect();
            let blocks = self.pool.store().read_all(&wanted_blocks);
            let others = self.held_by_others(&stretch.olds)?;
            let room: u64 = lens(&stretch.olds, &cuts).into_iter().map(record_claim).sum();
            let own = stretch.olds.iter().filter(|(_, old)| !self.dataset.is_inherited(old.ptr.id));
            let given: u64 = own.map(|(_, old)| old.charged()).sum();
            self.within_quota(|| {
                Ok(self.pool.check_quota(self.id(), (room * self.copies()).saturating_sub(given))?)
            })?;
            self.pool.check_room(&self.dataset, room + more, || false)?;

            let op = self.enter()?;
            let turn = inode.turn.lock();
            let (item, progress, now_more) = {
                let state = inode.lock()?;
                (state.tree, state.recut, growth(&state))
            };
            if item.record_size == 0 || item.nlink == 0 {
                return Ok(None);
            }
            let from = begin(progress, &cuts);
            let now = self.stretch(&self.dataset.view()?, id, &item, from, (&cuts, step.bytes))?;
            let is_other = now != stretch && attempt < TRIES;
            if is_other || now_more > more || item.flags & Inode::HAS_TAIL != 0 {
                continue;
            }
            let keys = now.olds.len() as u64 + lens(&now.olds, &cuts).len() as u64;
            if self.pool.nodes_storable(op.watermark()) < 2 + keys / KEYS {
                drop(turn);
                drop(op);
                if attempt >= TRIES {
                    return Err(FsError::NoSpace);
                }
                self.pool.commit()?;
                continue;
            }
            renewed.tally.records += now.olds.len() as u64;
            renewed.examined += now.olds.iter().map(|(_, old)| u64::from(old.ptr.place.stored)).sum::<u64>();
            renewed.skipped += now.passed;
            renewed.tally.read += now.olds.iter().map(|(_, old)| u64::from(old.len)).sum::<u64>();
            let (next, is_contiguous) =
                (now.next, now.olds.last().is_some_and(|(at, old)| Some(extent_end(*at, old)) == now.next));
            let until = next.unwrap_or(0);
            let before = *self.under_way.lock();
            let before = before.filter(|at| at.id == id);
            let told = before.map_or(0, |at| at.told);
            let stretch = Stretch { next: None, ..now };
            let anew = self.anew(id, stretch, &blocks, (&cuts, settings, told), renewed)?;
            let was_odd = progress.is_some_and(|progress| progress.cuts == cuts && progress.is_odd);
            let is_odd = !wanted.by_content && (was_odd || anew.is_odd);
            if is_odd && next.is_none() && anew.olds.is_empty() && !Cut::of(&item).is_half {
                // Nothing was cut.
                return Ok(None);
            }
            let next = next.map(|next| match cuts {
                // Extents that cannot be read are not put together: the next step must get further all the same.
                Cuts::Even(size) => match next / u64::from(size) * u64::from(size) {
                    aligned if anew.is_odd && aligned <= from => next,
                    aligned => aligned,
                },
                Cuts::ByContent(_) if is_contiguous => anew.last.max(from),
                Cuts::ByContent(_) => next,
            });
            let half = Cut {
                record_size: item.record_size.max(wanted.record_size),
                by_content: true,
                is_half: true,
            };
            let (cut, progress) = match next {
                None if is_odd => (half, None),
                None => (wanted, None),
                Some(done) => (half, Some(Progress { cuts, done, is_odd })),
            };
            let held = bytes_among(&anew.olds, others);
            // The record with which the step before ended was told of then.
            let again = before.and_then(|at| at.again);
            let first = anew.olds.iter().find(|(at, _)| again == Some(*at));
            let is_again = first.is_some();
            let again = first.map_or(0, |(_, old)| old.charged());
            renewed.tally.records -= u64::from(is_again);
            let last = anew.news.last().map(|new| new.offset);
            let exchange = Exchange { olds: anew.olds, news: anew.news, cut: Some((cut, progress)) };
            self.exchange(&op, &inode, exchange, &mut renewed.tally)?;
            renewed.tally.kept += held;
            if is_again {
                let tally = &mut renewed.tally;
                tally.changed -= 1;
                (tally.before, tally.after) = (tally.before - again, tally.after.saturating_sub(again));
            }
            *self.under_way.lock() = next.map(|next| UnderWay {
                id,
                again: last.filter(|last| *last >= next),
                told: told.max(until),
            });
            return Ok(next);
        }
        unreachable!("the last attempt takes the file as it is")
    }

    /// A step that nobody takes: what it would come to.
    fn tell_step(&self, step: &Step<'_>, item: &Inode, renewed: &mut Renewed) -> Result<Option<u64>> {
        let cuts = self.cuts_of(step.wanted);
        let mut stretch =
            self.stretch(&self.dataset.view()?, step.id, item, step.from, (&cuts, step.bytes))?;
        // Those before have been told.
        stretch.olds.retain(|(offset, _)| *offset >= step.from);
        let olds = &stretch.olds;
        let tally = &mut renewed.tally;
        let sum = |of: &dyn Fn(&Extent) -> u64| olds.iter().map(|(_, old)| of(old)).sum::<u64>();
        let plain = sum(&|old| old.len.into());
        let stored = sum(&|old| old.ptr.place.footprint().into());
        let after: u64 = lens(olds, &cuts).into_iter().map(u64::from).sum();
        tally.records += olds.len() as u64;
        tally.changed += olds.len() as u64;
        tally.read += plain;
        tally.before += sum(&Extent::charged);
        // Zeros between them take room where nothing is compressed.
        let is_filled = step.settings.codec == Codec::Off && after > plain;
        let once = if is_filled { stored + (after - plain) } else { stored };
        tally.after += once * u64::from(step.settings.copies);
        tally.kept += sum(&|old| self.kept(old)) + bytes_among(olds, self.held_by_others(olds)?);
        renewed.examined += sum(&|old| old.ptr.place.stored.into());
        renewed.skipped += stretch.passed;
        Ok(stretch.next)
    }

    /// Bytes of an extent's block that a snapshot will hold when the file has it no more.
    pub(crate) fn kept(&self, extent: &Extent) -> u64 {
        if self.dataset.is_protected(extent.ptr.id) { extent.charged() } else { 0 }
    }

    /// Those blocks that go from a file and that others may hold, but for snapshots of it.
    fn held_by_others(&self, olds: &[(u64, Extent)]) -> Result<HashSet<BlockId>> {
        let ids = olds.iter().map(|(_, old)| old.ptr.id).filter(|id| !self.dataset.is_protected(*id));
        Ok(self.pool.shared_among(ids.collect(), true)?.0)
    }

    /// The records that take the place of extents. One that cannot be read stays, and parts what lies before it from
    /// what lies behind.
    fn anew(
        &self,
        id: InodeId,
        Stretch { olds, from, .. }: Stretch,
        blocks: &HashMap<BlockId, Record>,
        (cuts, settings, told): (&Cuts, &Settings, u64),
        renewed: &mut Renewed,
    ) -> Result<Anew> {
        let mut is_odd = false;
        let mut cutting = Recutting {
            cuts,
            from,
            staged: Vec::new(),
            at: 0,
            first: None,
            made: Vec::new(),
            last: olds.last().map_or(0, |(at, _)| *at),
        };
        let mut gone = Vec::with_capacity(olds.len());
        for (offset, old) in olds {
            match self.plain_among(&old, blocks) {
                Ok(plain) => cutting.take(offset, &plain, old.ptr.id),
                Err(_) => {
                    self.check_silence()?;
                    self.note_damage(id, &(offset, old));
                    match offset < told {
                        true => renewed.tally.records -= 1,
                        false => renewed.tally.unread += 1,
                    }
                    is_odd = true;
                    cutting.end();
                    cutting.from = extent_end(offset, &old);
                    cutting.last = cutting.from;
                    continue;
                }
            }
            gone.push((offset, old));
        }
        cutting.end();
        let Recutting { mut made, last, .. } = cutting;
        // Those that come out as they are stay.
        let is_whole = |old: &Extent| matches!(cuts, Cuts::ByContent(_)) || old.len == old.logical;
        let may_stay = gone.iter().filter(|(_, old)| is_whole(old));
        let before: HashMap<u64, u32> = may_stay.map(|(at, old)| (*at, old.len)).collect();
        let mut stay = Vec::new();
        made.retain(|(at, plain, _)| {
            let is_same = before.get(at).is_some_and(|len| *len as usize == plain.len());
            stay.extend(is_same.then_some(*at));
            !is_same
        });
        gone.retain(|(at, _)| stay.binary_search(at).is_err());
        let is_hole = |plain: &[u8]| settings.codec != Codec::Off && is_zero(plain);
        let news = made.into_iter().filter(|(_, plain, _)| !is_hole(plain));
        let news = news.map(|(offset, plain, replaces)| NewRecord {
            dataset: self.id(),
            inode: id.get(),
            offset,
            plain: plain.into(),
            codec: settings.codec,
            encoded: None,
            checksum: settings.checksum,
            dedup: settings.dedup,
            copies: settings.copies,
            replaces: Some(replaces),
        });
        Ok(Anew { olds: gone, news: news.collect(), last, is_odd })
    }
}

/// Needs of a stretch that is cut anew.
#[derive(Default)]
struct Load {
    /// Plain bytes in memory: of whole blocks, and zeros before what is read.
    bytes: u64,
    /// Records that are made, about.
    records: u64,
}

impl Load {
    /// An extent is taken, behind `end`.
    fn add(&mut self, offset: u64, extent: &Extent, end: u64, cuts: &Cuts) {
        self.bytes += u64::from(extent.len.max(extent.logical));
        match cuts {
            Cuts::Even(size) => {
                let size = u64::from(*size);
                self.bytes += offset - end.max(offset / size * size).min(offset);
                let first = end.div_ceil(size).max(offset / size);
                self.records += extent_end(offset, extent).div_ceil(size).saturating_sub(first);
            }
            Cuts::ByContent(_) => self.records += 1 + u64::from(extent.len) / cuts.min() as u64,
        }
    }
}

/// A step through a file.
struct Step<'a> {
    id: InodeId,
    from: u64,
    wanted: Cut,
    settings: &'a Settings,
    bytes: u64,
}

/// Where a step begins: what nobody in memory knows to be done is gone through again.
fn begin(progress: Option<Progress>, cuts: &Cuts) -> u64 {
    progress.filter(|progress| progress.cuts == *cuts).map_or(0, |progress| progress.done)
}

/// Bytes of the extents' blocks that are among these, each once.
fn bytes_among(olds: &[(u64, Extent)], mut blocks: HashSet<BlockId>) -> u64 {
    let among = olds.iter().filter(|(_, old)| blocks.remove(&old.ptr.id));
    among.map(|(_, old)| old.charged()).sum()
}

/// Whether an extent, with the next at `next`, is a record as it would be cut now.
fn is_in_place(offset: u64, extent: &Extent, next: Option<u64>, cuts: &Cuts) -> bool {
    let Cuts::Even(size) = cuts else { return false };
    let fits = offset.is_multiple_of((*size).into()) && extent.len.max(extent.logical) <= *size;
    fits && extent.block_offset == 0 && next.is_none_or(|next| next >= offset + u64::from(*size))
}

/// Lengths of the records that would take the places of extents; the least that they may be where content tells.
fn lens(olds: &[(u64, Extent)], cuts: &Cuts) -> Vec<u32> {
    let mut lens = Vec::new();
    match cuts {
        Cuts::Even(size) => {
            let size = u64::from(*size);
            let mut last = None;
            for (offset, old) in olds {
                let end = extent_end(*offset, old);
                for record in offset / size..end.div_ceil(size) {
                    let len = (end - record * size).min(size) as u32;
                    match lens.last_mut().filter(|_| last == Some(record)) {
                        Some(before) => *before = len,
                        None => lens.push(len),
                    }
                    last = Some(record);
                }
            }
        }
        Cuts::ByContent(_) => {
            let min = cuts.min() as u32;
            for (_, old) in olds {
                lens.extend(std::iter::repeat_n(min, (old.len / min) as usize));
                lens.push(old.len % min);
            }
        }
    }
    lens
}

/// Cuts bytes as they come.
struct Recutting<'a> {
    cuts: &'a Cuts,
    /// No record begins before this.
    from: u64,
    /// Bytes that are not cut yet, from `at` on; the block that the first came from.
    staged: Vec<u8>,
    at: u64,
    first: Option<BlockId>,
    made: Vec<(u64, Vec<u8>, BlockId)>,
    /// Where the last record begins.
    last: u64,
}

impl Recutting<'_> {
    /// Bytes at `offset`, of a block.
    fn take(&mut self, offset: u64, plain: &[u8], block: BlockId) {
        let end = self.at + self.staged.len() as u64;
        match self.cuts {
            // The record that ends before goes on, over a hole.
            Cuts::Even(size)
                if self.first.is_some() && offset / u64::from(*size) == self.at / u64::from(*size) =>
            {
                self.staged.resize((offset - self.at) as usize, 0);
            }
            _ if self.first.is_some() && offset == end => {}
            _ => {
                self.end();
                self.at = match self.cuts {
                    Cuts::Even(size) => (offset / u64::from(*size) * u64::from(*size)).max(self.from),
                    Cuts::ByContent(_) => offset,
                };
                self.staged.resize((offset - self.at) as usize, 0);
            }
        }
        self.first.get_or_insert(block);
        self.staged.extend_from_slice(plain);
        self.cut(false);
        if !self.staged.is_empty() {
            self.first.get_or_insert(block);
        }
    }

    /// Nothing follows.
    fn end(&mut self) {
        self.cut(true);
    }

    fn cut(&mut self, end_known: bool) {
        let mut from = 0;
        while let Some(len) = self.cuts.next(self.at, &self.staged[from..], end_known) {
            let block = self.first.expect("bytes came of a block");
            self.made.push((self.at, self.staged[from..from + len].to_vec(), block));
            self.last = self.at;
            (self.at, from) = (self.at + len as u64, from + len);
        }
        self.staged.drain(..from);
        if self.staged.is_empty() {
            self.first = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flush::Todo;
    use crate::names::NewInode;
    use crate::posix::Caller;
    use crate::recut::tests::volume;
    use larder_format::items::ROOT_INODE;
    use larder_pool::{ROOT_DATASET, Renew};
    use std::sync::Arc;

    const FILE: u64 = 1 << 20;

    fn file(volume: &Volume) -> InodeId {
        let caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
        let new = NewInode::plain(FileKind::Regular, 0o644);
        let id = volume.make(ROOT_INODE, b"file", new, &caller).unwrap().node.unpack().1;
        volume.write(id, Some(0), &vec![200; FILE as usize], false).unwrap();
        volume.flush_all().unwrap();
        id
    }

    /// Cuts everything anew at once, while somebody flushes batch by batch.
    fn recut(volume: &Volume, size: &str) {
        volume.pool.set_property(ROOT_DATASET, "recordsize", size).unwrap();
        let what = Renew::Records(volume.dataset.settings());
        let renewal = Renewal { what, dataset: volume.id(), from: Key::MIN, bytes: BYTES, dry_run: false };
        let Renew::Records(settings) = &what else { unreachable!() };
        assert_eq!(volume.cut_anew(&renewal, settings).unwrap().next, None);
    }

    /// Puts extents that name a part of the file's first block in the place of its own; what it counts is not theirs.
    fn put(volume: &Volume, id: InodeId, all: impl Iterator<Item = (u64, u32)>) {
        let view = volume.dataset.view().unwrap();
        let old = extents(&view, id, 0..u64::MAX >> 1, usize::MAX).unwrap();
        drop(view);
        let one = old[0].1;
        let op = volume.pool.enter().unwrap();
        let key = |offset| Key::new(id.get(), EXTENT, offset);
        volume
            .dataset
            .update(&op, |tree| {
                for (offset, _) in &old {
                    tree.remove(&key(*offset))?;
                }
                for (offset, len) in all {
                    tree.put_extent(key(offset), Extent { len, ..one })?;
                }
                Ok::<_, FsError>(())
            })
            .unwrap();
    }

    fn stretch(volume: &Volume, id: InodeId, cuts: &Cuts) -> Result<Stretch> {
        let item = Inode { size: u64::MAX >> 1, ..volume.inode(id).unwrap().lock().unwrap().tree };
        volume.stretch(&volume.dataset.view().unwrap(), id, &item, 0, (cuts, BYTES))
    }

    #[test]
    fn a_step_takes_no_more_than_goes_into_memory() {
        let volume = volume(&[("recordsize", "262144"), ("compression", "off")]);
        let id = file(&volume);
        let large = Cuts::Even(256 << 10);
        let most = BYTES + (1 << 20);
        // Each at the end of a large record, which is zeros before.
        put(&volume, id, (1..4000).map(|i| (i * (256 << 10) - 4096, 4096)));
        let olds = stretch(&volume, id, &large).unwrap().olds;
        let made: u64 = lens(&olds, &large).into_iter().map(u64::from).sum();
        assert!(made > BYTES / 2 && made < most, "{made} bytes are made");
        // A byte each of large blocks.
        for cuts in [
            large,
            Cuts::Even(4096),
            volume.cuts_of(Cut { record_size: 4096, by_content: true, is_half: false }),
        ] {
            put(&volume, id, (0..4000).map(|i| (i, 1)));
            let olds = stretch(&volume, id, &cuts).unwrap().olds;
            let read: u64 = olds.iter().map(|(_, old)| u64::from(old.logical)).sum();
            assert!(read > BYTES / 2 && read < most, "{read} bytes are read");
        }
        put(&volume, id, [(0, 4096), (1000, 4096)].into_iter());
        assert!(matches!(stretch(&volume, id, &large), Err(FsError::Damaged(_))));
        // Many from a few.
        let small = Cuts::Even(512);
        put(&volume, id, (0..4000).map(|i| (i * (128 << 10), 128 << 10)));
        let made = lens(&stretch(&volume, id, &small).unwrap().olds, &small).len() as u64;
        assert!((RECORDS..2 * RECORDS).contains(&made), "{made} records");
    }

    #[test]
    fn a_file_is_cut_as_its_inode_says_when_the_pass_leaves_it() {
        let volume = volume(&[("recordsize", "4096"), ("compression", "off")]);
        let id = file(&volume);
        volume.pool.set_property(ROOT_DATASET, "recordsize", "65536").unwrap();
        let settings = volume.dataset.settings();
        let (what, dataset) = (Renew::Records(settings), volume.id());
        let step = |from| {
            let renewal = Renewal { what, dataset, from, bytes: 1, dry_run: false };
            volume.cut_anew(&renewal, &settings).unwrap().next
        };
        let is_under_way = || volume.inode(id).unwrap().lock().unwrap().recut.is_some();
        let mut next = step(Key::MIN);
        while !is_under_way() {
            next = step(next.unwrap());
        }
        assert_eq!(step(Key::MAX), None);
        assert!(!is_under_way());
        // It is finished all the same.
        while let Some(from) = next {
            next = step(from);
        }
        let item = volume.inode(id).unwrap().lock().unwrap().tree;
        assert_eq!(Cut::of(&item), volume.cut_by(&settings));
        assert!(!is_under_way());
    }

    #[test]
    fn a_file_that_is_half_cut_is_finished_though_its_settings_become_what_it_says() {
        let volume = volume(&[("recordsize", "4096"), ("compression", "off")]);
        let id = file(&volume);
        volume.pool.set_property(ROOT_DATASET, "recordsize", "65536").unwrap();
        let step = |from| {
            let settings = volume.dataset.settings();
            let what = Renew::Records(settings);
            let renewal = Renewal { what, dataset: volume.id(), from, bytes: 1, dry_run: false };
            volume.cut_anew(&renewal, &settings).unwrap()
        };
        let cut = || Cut::of(&volume.inode(id).unwrap().lock().unwrap().tree);
        let mut next = Key::MIN;
        while !cut().is_half {
            next = step(next).next.unwrap();
        }
        assert_eq!(step(Key::MAX).next, None);
        volume.pool.set_property(ROOT_DATASET, "chunking", "content").unwrap();
        let wanted = volume.cut_by(&volume.dataset.settings());
        assert_eq!(cut(), Cut { is_half: true, ..wanted });
        let (mut from, mut changed) = (Some(Key::MIN), 0);
        while let Some(at) = from {
            let renewed = step(at);
            (from, changed) = (renewed.next, changed + renewed.tally.changed);
        }
        assert_eq!(cut(), wanted);
        assert!(changed > 0);
    }

    #[test]
    fn a_flush_stores_all_that_was_dirty_though_records_are_others_for_its_next_batch() {
        for (old, new) in [("512", "65536"), ("65536", "512")] {
            let volume = volume(&[("recordsize", old), ("compression", "off")]);
            let id = file(&volume);
            for at in (0..FILE).step_by(1024) {
                volume.write(id, Some(at), &[7; 100], false).unwrap();
            }
            let mut todo = Todo::from([(id, 0..u64::MAX)]);
            volume.flush_batch(&volume.pool.enter().unwrap(), &mut todo).unwrap();
            assert!(!todo.is_empty(), "there is a rest, of which the batch knows the place");
            recut(&volume, new);
            while !todo.is_empty() {
                volume.flush_batch(&volume.pool.enter().unwrap(), &mut todo).unwrap();
            }
            let left = volume.inode(id).unwrap().lock().unwrap().data.bytes;
            assert_eq!(left, 0, "{old} to {new}");
        }
    }

    #[test]
    fn what_was_one_write_within_a_record_is_stored_as_one_in_many() {
        let volume = volume(&[("recordsize", "65536"), ("compression", "off")]);
        let id = file(&volume);
        // Each within a record, whose end none crosses.
        for (number, at) in (0..FILE).step_by(64 << 10).enumerate() {
            volume.write(id, Some(at + 1000), &[number as u8; 60_000], false).unwrap();
        }
        recut(&volume, "512");
        let mut todo = Todo::from([(id, 0..u64::MAX)]);
        let mut batches = 0;
        while !todo.is_empty() {
            volume.flush_batch(&volume.pool.enter().unwrap(), &mut todo).unwrap();
            let name = format!("{batches}");
            volume.pool.snapshot(ROOT_DATASET, &name).unwrap();
            let part = volume.pool.snapshot_dataset(ROOT_DATASET, &name).unwrap();
            let part = Volume::open(Arc::clone(&volume.pool), part, (0, 0)).unwrap();
            let found = part.read(id, 0, u32::MAX).unwrap().to_vec();
            for (number, record) in found.chunks(64 << 10).enumerate() {
                let there = record.iter().filter(|&&byte| byte == number as u8).count();
                assert!(
                    [0, 60_000].contains(&there),
                    "{there} bytes of write {number} are in batch {batches}"
                );
            }
            batches += 1;
        }
        assert!(batches > 1);
    }
}
