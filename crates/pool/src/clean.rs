//! The cleaner: moves what lives in thin segments, so that whole segments become free.
//!
//! A block's id stays; only the block map learns another place. Trees and snapshots are not touched: their hints go
//! on being good while the old segment is in the table, and lead to the map afterwards. What lives in a segment is
//! found by walking its stripes and asking the map whether a block is still here; nothing dead is copied, but for what
//! was dropped since the last commit, which dies at its new place. Blocks that cannot be read stay, and only they
//! ([`crate::column`]); so do those on a lost page of the map, since nobody knows whether they live. Their segment
//! stays as well, and is left alone.
//!
//! # Steps
//! A step moves some stripes' worth of blocks of one segment, with the commit lock held and for a bounded number of
//! bytes, or to the first loss that it meets; it goes on with the same segment until that is empty. From its first step
//! on the segment is [`SegmentState::Emptying`]: hints into it no longer tell where a block is, after a crash neither.
//! The commit after a step makes the map's updates durable; a crash before leaves the old places, which are still
//! there. The slots can be written again [`COMMITS_TO_FREE`] commits after the last block left.
//!
//! # When
//! In the background ([`Pool::tick`]) while fewer segments are free or about to be than
//! [`larder_store::space::GroupSpace::enough`], the faster the fewer. Below
//! [`larder_store::space::GroupSpace::tight`] each write pays with a step, so that writing gets as slow as cleaning is,
//! and nobody meets a wall. Nothing is cleaned before it has to be: what is left alone dies by itself. Which segment:
//! [`larder_store::heat`].

use crate::cleaner::Cleaning;
use crate::dedup::IndexFootprints;
use crate::pool::Pool;
use larder_format::node::NODE_MAX;
use larder_format::run::Footprint;
use larder_format::segment::{SegmentKind, SegmentState};
use larder_format::{Corrupt, GroupIndex, Reason, SegmentId};
use larder_store::core::Core;
use larder_store::segments::{Listed, SegmentEntry};
use larder_store::space::{GroupSpace, STRIPE_TARGET};
use larder_store::{PoolError, Readahead, Result, Watermark};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that a step moves, about: a stripe of full height at least; less of a small segment, that emptying it takes
/// several.
const STEP: u64 = 4 << 20;
const STEPS: u64 = 4;
/// Times as many bytes that it looks at, at most: where little lives, or little is known, others wait for it too.
const LOOKS: u64 = 4;
/// Bytes that [`Pool::tick`] moves in one call, at least and at most.
const TICK_BYTES: (u64, u64) = (4 << 20, 64 << 20);
/// For how long a commit that lacks room cleans before it looks whether it has enough.
const ROUND: Duration = Duration::from_secs(1);
/// Bytes of one read of a segment that is emptied, and of all that is read ahead.
const CHUNK: u32 = 512 << 10;
const AHEAD: u64 = 4 << 20;
/// Commits that it takes until the slots of a segment that was emptied can be written again: the one
/// that frees it, and the two that root ring and readers are owed.
const COMMITS_TO_FREE: usize = 3;

/// Runs are written anew for what is dead in the segments that they keep when they have at most so many times as much.
const WORTH_REWRITING: u64 = 4;

/// A group of metadata is cleaned when so many segments of it are dead.
const WORTH_METADATA: u64 = 4;
/// The same for small records beside it, when this part of all is dead: moving them costs no more than seven times what
/// comes back.
const WORTH_SMALL: u64 = 8;

/// Pages of the dedup index that [`Pool::tick`] reads and writes in one call, about.
const INDEX_PAGES: usize = 64;

/// Pages of the block map that the free queue may read in one go while a writer waits for space.
const REMOVING_PAGES: usize = 1024;

/// Bytes of blocks written since import, before replication and parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Writes {
    /// Records stored.
    pub stored: u64,
    /// Records and nodes that the cleaner moved.
    pub moved: u64,
}

impl Writes {
    /// Bytes written for each byte of records stored, in hundredths: 100 when nothing was moved.
    pub fn amplification_percent(&self) -> u64 {
        let all = u128::from(self.stored) + u128::from(self.moved);
        if self.stored == 0 { 100 } else { (all * 100 / u128::from(self.stored)) as u64 }
    }
}

/// Free segments of the group that lacks most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shortage {
    /// Number that are free or about to be.
    free: u64,
    /// Number that should be.
    enough: u64,
    /// The group, if it is one of metadata; what is won on one of data serves all of them.
    of_metadata: Option<GroupIndex>,
}

/// The segment that is most worth emptying: the one that gives most at once when it is `urgent`.
fn victim(core: &Core, urgent: bool) -> Option<SegmentId> {
    let best = |groups: &mut dyn Iterator<Item = GroupIndex>| match urgent {
        true => core.thinnest(groups),
        false => core.worthiest(groups),
    };
    let lacking = shortage(core, !urgent).of_metadata;
    let of_metadata = lacking.and_then(|lacking| best(&mut std::iter::once(lacking)));
    // Where merges alone bring back what is dead of metadata, it is the turn of data, if that lacks something as well.
    let lacks = |group: &GroupSpace| group.free_segments() < group.enough();
    let is_turn_of_data = || lacking.is_none() || urgent || core.record_groups().any(lacks);
    let of_data = || best(&mut core.record_groups().map(|of| of.index)).filter(|_| is_turn_of_data());
    of_metadata.or_else(of_data)
}

/// A segment that has to go because its group has another shape by now.
fn misfit(core: &Core) -> Option<SegmentId> {
    let movable = |entry: &&SegmentEntry| {
        entry.is_complete() && entry.is_movable() && !entry.damaged && entry.live_blocks > 0
    };
    core.misfits().find(movable).map(|entry| entry.segment.id)
}

/// The group that lacks most. One of metadata lacks what its reserve lacks, and a segment for what goes elsewhere
/// meanwhile, where that much is dead; in the background also one segment at a time where small records go elsewhere,
/// so that data comes first and no writer waits for it.
fn shortage(core: &Core, in_background: bool) -> Shortage {
    let of = |group: &GroupSpace| {
        let layout = group.rule.layout;
        let dead = core.entries.dead(group.index);
        let free = group.free_segments() + dead.waiting_in(layout).segments;
        let capacity = group.total_segments() * group.capacity_of_one();
        let small = group.kept_from_small() + group.enough();
        let wants_small = in_background
            && core.small_went_elsewhere
            && free <= small
            && dead.bytes_in(layout) >= capacity / WORTH_SMALL;
        let enough = match group.has_records() {
            true => group.enough(),
            false if wants_small && free > group.enough() => free + 1,
            false if dead.bytes_in(layout) >= WORTH_METADATA * group.capacity_of_one() => group.enough() + 1,
            false => 0,
        };
        let of_metadata = (!group.has_records()).then_some(group.index);
        Shortage { free, enough, of_metadata }
    };
    let all = core.staying_groups().map(of);
    let lacks = |shortage: &Shortage| shortage.enough.saturating_sub(shortage.free);
    all.max_by_key(|shortage| (lacks(shortage), shortage.of_metadata.is_none())).expect("a pool has a group")
}

impl Pool {
    /// The background's share of winning space back, to be called ten times a second: empties segments as long as
    /// too few are free or about to be, the more the fewer, and commits when that brings slots that are needed.
    ///
    /// # Errors
    /// When the pool is suspended, or a commit fails.
    pub fn tick(&self) -> Result<()> {
        self.observe_devices();
        if self.shared.intent.is_astray() {
            // Only memory has what was synced since the last commit.
            match self.commit_what_fits() {
                Err(PoolError::NoSpace) => {}
                committed => drop(committed?),
            }
        }
        self.reap_held();
        let mut allowance = None;
        loop {
            let Shortage { free, enough, .. } = shortage(&self.shared.store.core.lock(), true);
            if free >= enough {
                break;
            }
            let left = allowance
                .get_or_insert(TICK_BYTES.0 + (TICK_BYTES.1 - TICK_BYTES.0) * (enough - free) / enough);
            if *left == 0 {
                break;
            }
            match self.clean_step(false)? {
                Some(moved) => *left = left.saturating_sub(moved.max(1)),
                None => break,
            }
        }
        if allowance.is_some() {
            self.evacuate_thin();
        }
        self.tick_index_beside(INDEX_PAGES)?;
        if self.wants_commit() {
            self.commit_what_fits()?;
        }
        Ok(())
    }

    /// Has runs and parts of the dedup index written anew that keep segments most of which is dead, where that costs
    /// less than four times what comes back; commits go on with it, and AVAIL counts it from now on. Nobody cleans
    /// those: what lives there is pages, which runs name by place. Pages of a merge under way are dead to nobody but
    /// the counts.
    pub(crate) fn evacuate_thin(&self) {
        let _commits_wait = self.commit_lock.lock();
        let named = self.unnamed_pages();
        let mut thin: BTreeMap<SegmentId, (u64, u64)> = {
            let core = self.shared.store.core.lock();
            let runs = core.entries.listed(Listed::Run);
            let thin = runs.filter(|entry| !named.contains(&entry.segment.id));
            thin.filter_map(|entry| Some((entry.segment.id, (entry.thin()?, 0)))).collect()
        };
        let count = |thin: &mut BTreeMap<SegmentId, (u64, u64)>, footprints: &[Footprint]| {
            let bytes: u64 = footprints.iter().map(|footprint| footprint.bytes).sum();
            for footprint in footprints {
                thin.entry(footprint.segment).and_modify(|(_, cost)| *cost += bytes);
            }
        };
        if !thin.is_empty() {
            match self.index_footprints() {
                IndexFootprints::Awake(parts) => parts.iter().for_each(|part| count(&mut thin, part)),
                // To write parts anew would wake it; to forget them would cost duplicates.
                IndexFootprints::Asleep(parts) => {
                    for footprint in parts.iter().flatten() {
                        thin.remove(&footprint.segment);
                    }
                }
            }
            let mut map = self.shared.store.map.lock();
            map.descriptors().for_each(|run| count(&mut thin, &run.footprints));
            thin.retain(|_, (dead, cost)| *cost <= WORTH_REWRITING * *dead);
            map.evacuate(|id| thin.contains_key(&id));
        }
        if !thin.is_empty() {
            self.evacuate_index(|id| thin.contains_key(&id));
        }
        let mut core = self.shared.store.core.lock();
        let is_changed = |entry: &&SegmentEntry| entry.leaving != thin.contains_key(&entry.segment.id);
        let changed = core.entries.listed(Listed::Run).filter(is_changed).map(|entry| entry.segment.id);
        let changed: Vec<_> = changed.collect();
        for id in changed {
            core.entries.change(id, |entry| entry.leaving = !entry.leaving);
        }
    }

    /// Whether a commit would make slots writable that are needed soon.
    fn wants_commit(&self) -> bool {
        let core = self.shared.store.core.lock();
        core.waiting_to_be_free() && core.record_groups().any(|group| group.free_segments() < group.enough())
    }

    /// A step of cleaning: the bytes moved, or none when no segment is worth it or there is no room to move to.
    ///
    /// # Errors
    /// When the pool is suspended, or a commit fails.
    pub fn clean_step(&self, urgent: bool) -> Result<Option<u64>> {
        // Not even the rest of one: what moves for another reason than room takes none of this.
        self.set_movers_aside(&mut self.cleaner.cleaning.lock());
        self.clean_as(|core| victim(core, urgent), Watermark::Clean)
    }

    /// The segment that [`Pool::clean_step`] would choose.
    pub fn next_victim(&self, urgent: bool) -> Option<SegmentId> {
        victim(&self.shared.store.core.lock(), urgent)
    }

    /// As [`Pool::clean_step`], of segments that do not fit their group any more.
    pub fn clean_misfits(&self) -> Result<Option<u64>> {
        self.clean_as(misfit, Watermark::Accept)
    }

    /// As [`Pool::clean_step`], of segments opened before `below` that would gain from being written anew.
    pub fn clean_poor(&self, below: SegmentId) -> Result<Option<u64>> {
        self.clean_as(|core| core.poor(below), Watermark::Accept)
    }

    /// Closes open segments of records that are narrower than new ones would be.
    pub fn close_narrow(&self) {
        let mut core = self.shared.store.core.lock();
        let narrow = |id: &SegmentId| {
            let segment = &core.entries[id].segment;
            let group = &core.groups[&segment.group];
            segment.kind == SegmentKind::Data && segment.layout.k() < group.rule.layout.k()
        };
        let narrow: Vec<_> = core.streams.values().copied().filter(narrow).collect();
        narrow.into_iter().for_each(|id| core.close_segment(id));
    }

    /// A step of emptying `victim`, or what is being emptied already; down to `mark`: what frees no more than it takes
    /// leaves the cleaner what that works with.
    pub(crate) fn clean_as(
        &self,
        victim: impl FnOnce(&Core) -> Option<SegmentId>,
        mark: Watermark,
    ) -> Result<Option<u64>> {
        let _commits_wait = self.commit_turn();
        self.shared.store.check_writable()?;
        let mut cleaning = self.cleaner.cleaning.lock();
        let cleaned = self.clean_some(victim, mark, &mut cleaning);
        match cleaned {
            Err(PoolError::NoSpace) => {
                self.set_movers_aside(&mut cleaning);
                // Small records have nowhere to go but among metadata: others may have.
                let core = self.shared.store.core.lock();
                cleaning.take_if(|of| core.is_with_metadata(of.segment));
                Ok(None)
            }
            // Part of it cannot be read. It stays as it is; what was moved so far can be read where it is now.
            Err(error) if !matches!(error, PoolError::Suspended(_) | PoolError::HostFull(_)) => {
                if let Some(Cleaning { segment, .. }) = cleaning.take() {
                    self.shared.store.core.lock().entries.change(segment, |entry| entry.damaged = true);
                    self.shared.store.suspects.note_segment(segment);
                }
                Ok(Some(0))
            }
            cleaned => cleaned,
        }
    }

    /// A segment that is being emptied is left as it is, unless that wins room.
    fn set_movers_aside(&self, cleaning: &mut Option<Cleaning>) {
        let core = self.shared.store.core.lock();
        cleaning.take_if(|of| !core.entries.get(&of.segment).is_some_and(SegmentEntry::is_worth_cleaning));
    }

    fn clean_some(
        &self,
        victim: impl FnOnce(&Core) -> Option<SegmentId>,
        mark: Watermark,
        cleaning: &mut Option<Cleaning>,
    ) -> Result<Option<u64>> {
        if cleaning.is_none() {
            *cleaning = victim(&self.shared.store.core.lock()).map(Cleaning::of);
        }
        let Some(Cleaning { segment: id, offset, readahead, carried, lost, unknown, unread, failed }) =
            cleaning
        else {
            return Ok(None);
        };
        failed.begin_step();
        let entry = self.shared.store.core.lock().entries.change(*id, |entry| {
            (entry.is_complete() && entry.live_blocks > 0).then(|| {
                entry.state = SegmentState::Emptying;
                entry.dirty = true;
                let stripe = entry.segment.layout.k() as u64 * u64::from(STRIPE_TARGET);
                (Arc::clone(&entry.segment), entry.height, STEP.max(stripe).min(entry.placed / STEPS + 1))
            })
        });
        // It died meanwhile.
        let Some((segment, height, step)) = entry.flatten() else {
            *cleaning = None;
            return Ok(Some(0));
        };
        let readahead = readahead.get_or_insert_with(|| {
            let columns = self.columns_to_empty(&segment);
            Readahead::new(Arc::clone(&segment), columns, *offset..height, CHUNK, AHEAD)
        });
        let op = self.enter()?;
        // Stripes are gathered: together they pack better than each by itself.
        let (mut live, mut at, mut bytes, mut looked, mut met_loss) = (Vec::new(), *offset, 0, Ok(()), false);
        let (mut unknown_now, mut unread_now) = (0, false);
        let far = |at: u32| u64::from(at - *offset) * segment.layout.k() as u64 >= LOOKS * step;
        while at < height && bytes < step && !far(at) && looked.is_ok() && !met_loss {
            let stripe = self.stripe_header(&segment, at, readahead);
            looked = stripe.and_then(|stripe| {
                let before = if at == *offset { carried.clone() } else { Vec::new() };
                let found = self.live_in_stripe(&segment, at, (&stripe, before), readahead, lost, failed)?;
                met_loss = found.met_loss;
                let footprints = found.live.iter().map(|moved| u64::from(moved.ptr.place.footprint()));
                bytes += footprints.sum::<u64>();
                live.extend(found.live);
                // Else the next step has the rest of this stripe.
                if !failed.has_postponed() {
                    unknown_now += found.unknown;
                    unread_now |= found.unread;
                    at += stripe.height;
                }
                Ok(())
            });
        }
        let is_last = at >= height || looked.is_err() || failed.has_postponed();
        let left = match is_last || segment.kind == SegmentKind::Node {
            true => Vec::new(),
            false => self.without_row(&mut live, STEP),
        };
        // Where there is no room, all of it comes again.
        let moved = self.move_all(&segment, &live, mark)?;
        if at != *offset {
            (*offset, *carried) = (at, left);
        }
        *unknown += unknown_now;
        *unread |= unread_now;
        drop(op);
        self.cleaner.moved.fetch_add(moved, Ordering::Relaxed);
        looked?;
        if *offset >= height {
            let left = self.shared.store.core.lock().entries.get(id).map_or(0, |entry| entry.live_blocks);
            // Of the unknown some may be dead.
            if left > *unknown || left > 0 && *unread {
                return Err(Corrupt::new("segment", Reason::Short).into());
            }
            if left > 0 {
                // To reconstruct it would change nothing.
                self.shared.store.core.lock().entries.change(*id, |entry| entry.damaged = true);
            }
            *cleaning = None;
        }
        Ok(Some(moved))
    }

    /// Gives back the slots of segments that somebody read when their commits were durable; whether some came back.
    pub fn reap_held(&self) -> bool {
        if self.shared.store.core.lock().held_segments() == 0 {
            return false;
        }
        self.let_go_of_freed();
        let behind = self.shared.store.behind.oldest();
        let mut core = self.shared.store.core.lock();
        let before = core.held_segments();
        core.reap_segments(&self.shared.store.readable, self.shared.store.durable_commit(), behind);
        core.held_segments() < before
    }

    /// Has everybody who rests in the middle of a segment let go of it when it has been freed.
    pub fn let_go_of_freed(&self) {
        let is_freed = |id: SegmentId| {
            let core = self.shared.store.core.lock();
            core.entries.get(&id).is_none_or(|entry| entry.state == SegmentState::Freed)
        };
        self.resting.let_go(&is_freed);
        self.cleaner_lets_go(is_freed);
    }

    /// Lets go of a segment that died while it was being emptied, unless a step is being taken.
    pub(crate) fn cleaner_lets_go(&self, is_freed: impl Fn(SegmentId) -> bool) {
        if let Some(mut cleaning) = self.cleaner.cleaning.try_lock() {
            cleaning.take_if(|cleaning| is_freed(cleaning.segment));
        }
    }

    /// Sees to it that `bytes` of records of `record_size` can be written now: pays with a step of cleaning when
    /// little is free, wins space back when there is none. Must not be called while an [`crate::Op`] is held.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] when there is not enough, however much is cleaned.
    pub(crate) fn make_space(&self, bytes: u64, record_size: u32) -> Result<()> {
        self.make_fit(|core| self.shared.store.writable_now(core, record_size) >= bytes)
    }

    /// The same for so many free segments, besides those that are left to writers.
    ///
    /// # Errors
    /// As [`Pool::make_space`].
    pub(crate) fn make_segments(&self, count: u64) -> Result<()> {
        let free = |core: &Core| {
            core.record_groups().map(|group| group.free_above(Watermark::Accept).segments).sum()
        };
        self.make_fit(|core| count <= free(core))
    }

    fn make_fit(&self, fits: impl Fn(&Core) -> bool) -> Result<()> {
        let (at_once, tight) = {
            let core = self.shared.store.core.lock();
            (fits(&core), core.is_tight())
        };
        if at_once {
            if tight && let Some(_mine) = self.cleaner.reclaiming.try_lock() {
                match self.win_some(false) {
                    // This write has the room it needs.
                    Err(PoolError::NoSpace) => {}
                    won => drop(won?),
                }
            }
            return Ok(());
        }
        let _one_at_a_time = self.cleaner.reclaiming.lock();
        let _nothing_is_held = self.trim_turn();
        loop {
            if fits(&self.shared.store.core.lock()) {
                return Ok(());
            }
            if self.is_vain(&self.cleaner.exhausted) {
                return Err(PoolError::NoSpace);
            }
            if self.win_some(true)? {
                continue;
            }
            // Enough is free, or nothing is left to be cleaned. What was accepted takes it, or may replace what
            // lives, and leaves something to be cleaned then.
            self.evacuate_thin();
            let (free, stored) = (self.free_segments(), self.shared.store.stored.load(Ordering::Relaxed));
            for _ in 0..=COMMITS_TO_FREE {
                self.commit_what_fits()?;
            }
            let vain =
                self.free_segments() <= free && self.shared.store.stored.load(Ordering::Relaxed) == stored;
            if vain && !fits(&self.shared.store.core.lock()) {
                self.cleaner.exhausted.store(self.shared.store.durable_commit().get(), Ordering::Release);
                return Err(PoolError::NoSpace);
            }
        }
    }

    /// Space that is not there may come back by what was accepted, which replaces what lives, and by what was removed:
    /// stores and removes until it does, or nothing is left to do.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] then.
    pub(crate) fn reclaim_space(&self, bytes: u64, record_size: u32) -> Result<()> {
        let _one_at_a_time = self.cleaner.reclaiming.lock();
        loop {
            let available = self.shared.store.space(record_size).available;
            if available >= bytes {
                return Ok(());
            }
            let removed = self.free_some_deleted()?;
            if !removed && self.is_vain(&self.cleaner.reclaimed_in_vain) {
                return Err(PoolError::NoSpace);
            }
            self.evacuate_thin();
            self.commit_what_fits()?;
            let more = self.free_step(REMOVING_PAGES)?;
            if !removed && !more && self.shared.store.space(record_size).available <= available {
                self.cleaner
                    .reclaimed_in_vain
                    .store(self.shared.store.durable_commit().get(), Ordering::Release);
                return Err(PoolError::NoSpace);
            }
        }
    }

    /// Stores what waits in memory, as far as it fits.
    pub(crate) fn store_waiting(&self) -> Result<()> {
        let _one_at_a_time = self.cleaner.reclaiming.lock();
        self.commit_what_fits().map(drop)
    }

    /// Whether a commit has room for all that changed of the trees, and as much again.
    pub(crate) fn changes_fit(&self) -> bool {
        let twice = 2 * self.shared.store.unsealed();
        self.shared.store.headroom.holds_nodes(twice)
            || twice < self.shared.store.core.lock().room_for_nodes()
    }

    /// Number of further nodes that can change before a commit has no room for all changed ones; each change of a tree
    /// may be in another node. `mark` is that of the operation, or the pool's.
    pub fn nodes_storable(&self, mark: Watermark) -> u64 {
        if mark == Watermark::Promised {
            return u64::MAX;
        }
        (self.shared.store.core.lock().room_for_nodes() / 2).saturating_sub(self.shared.store.unsealed())
            / NODE_MAX as u64
    }

    /// Sees to it that changes of the trees can be committed, those that free space as well, which take some before
    /// they give any: commits before what has changed gets too much for what is free, and cleans. Must not be called
    /// while an [`crate::Op`] is held.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] when the reserve is used up and nothing of it can be won back.
    pub fn make_changes_fit(&self) -> Result<()> {
        if self.changes_fit() || self.watermark() == Watermark::Promised {
            return Ok(());
        }
        let _one_at_a_time = self.cleaner.reclaiming.lock();
        self.win_for_changes()
    }

    /// As [`Pool::make_changes_fit`], unless somebody is at it.
    pub fn make_changes_fit_unless_busy(&self) -> Result<()> {
        if self.changes_fit() || self.watermark() == Watermark::Promised {
            return Ok(());
        }
        match self.cleaner.reclaiming.try_lock() {
            Some(_mine) => self.win_for_changes(),
            None => Ok(()),
        }
    }

    fn win_for_changes(&self) -> Result<()> {
        while !self.changes_fit() {
            self.shared.store.check_writable()?;
            if self.win_some(true)? {
                continue;
            }
            for _ in 0..=COMMITS_TO_FREE {
                self.commit_what_fits()?;
            }
            let last = self
                .shared
                .store
                .core
                .lock()
                .staying_groups()
                .all(|group| group.free_segments() < group.left(Watermark::Clean));
            if last && !self.changes_fit() {
                return Err(PoolError::NoSpace);
            }
            return Ok(());
        }
        Ok(())
    }

    /// One step towards free slots: cleaning until enough of them wait to be free, then commits; each of these costs
    /// flushes, so many slots share them. False when there is nothing to do.
    fn win_some(&self, urgent: bool) -> Result<bool> {
        if 4 * self.shared.store.unsealed() > self.shared.store.core.lock().room_for_nodes() {
            self.commit_what_fits()?;
            return Ok(true);
        }
        if self.reap_held() {
            return Ok(true);
        }
        let Shortage { free, enough, .. } = shortage(&self.shared.store.core.lock(), false);
        if free < enough && self.clean_step(urgent)?.is_some() {
            return Ok(true);
        }
        let waiting = self.shared.store.core.lock().waiting_to_be_free();
        if waiting {
            self.commit_what_fits()?;
        }
        Ok(waiting)
    }

    /// Whether nothing changed since an attempt failed at commit `last`: another one would fail too.
    fn is_vain(&self, last: &AtomicU64) -> bool {
        last.load(Ordering::Acquire) == self.shared.store.durable_commit().get()
            && !self.shared.freeing.has_dropped()
    }

    fn free_segments(&self) -> u64 {
        self.shared.store.core.lock().record_groups().map(|group| group.free_segments()).sum()
    }

    /// Goes on with a commit that had no room for all that was accepted: storing a part of it frees what that
    /// replaces. Gives up when a round brings nothing.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] then.
    pub(crate) fn make_commit_fit(&self) -> Result<()> {
        let (needed_before, free_before) = (self.shared.store.dirty.needed(), self.free_segments());
        let sealed_before = self.sealing.node_bytes();
        self.commit_what_fits()?;
        let sealed = self.sealing.node_bytes() > sealed_before;
        let (mut moved, began) = (0, self.shared.store.world.clock.monotonic());
        // Where it goes slowly, the commit is tried again soon: perhaps little was lacking.
        let is_soon = || self.shared.store.world.clock.monotonic().saturating_sub(began) < ROUND;
        while moved < TICK_BYTES.1
            && (moved == 0 || is_soon())
            && let Some(bytes) = self.clean_step(true)?
        {
            moved += bytes.max(1);
        }
        for _ in 0..COMMITS_TO_FREE {
            self.commit_what_fits()?;
        }
        // Others may write meanwhile: either is progress.
        let brought = sealed
            || moved > 0
            || self.shared.store.dirty.needed() < needed_before
            || self.free_segments() > free_before;
        if brought { Ok(()) } else { Err(PoolError::NoSpace) }
    }

    /// Bytes written since import, and the cleaner's part of them.
    pub fn writes(&self) -> Writes {
        Writes {
            stored: self.shared.store.stored.load(Ordering::Relaxed),
            moved: self.cleaner.moved.load(Ordering::Relaxed),
        }
    }

    /// Bytes that the cleaner moved since import.
    pub fn cleaned_bytes(&self) -> u64 {
        self.writes().moved
    }
}
