//! Sharing what is stored already: a record that has the content of another becomes an alias of it.
//!
//! Nothing is written anew and no tree changes, so it reaches what snapshots hold as well. The map alone says that a
//! block is an alias; its own place is free with the commit that keeps that.
//!
//! # What is believed
//! Nothing but bytes. The index and the map's fingerprints say what may be the same; both records are read, and
//! compared, before one of two good copies is given up.
//!
//! # Order
//! Reading holds nobody up. What came of it is decided in the end under the commit lock, under which no block moves, is
//! freed or becomes an alias: both blocks must still be there, with places, the target with the fingerprint that it
//! had. It gets the marks `SHARED`, as by a hit, and `ALIASED` in the same moment, under the map's lock. One that has
//! `ALIASED` never becomes an alias: the other one does, unless it has that mark too. An alias never becomes a target,
//! since it has no fingerprint.
//!
//! # A crash
//! leaves both with places, or an alias and its target with its mark: one commit keeps all of it.

use crate::dataset::Dataset;
use crate::pool::Pool;
use crate::remains::Alone;
use crate::tally::Tally;
use bytes::Bytes;
use larder_format::block::BlockKind;
use larder_format::label::Features;
use larder_format::node::Key;
use larder_format::run::{Delta, Marks, Places};
use larder_format::{BlockId, BlockPtr, DatasetId, Fingerprint, Place};
use larder_mutants::{Mutant, mutated};
use larder_sorted::map::{Entry, Location, LostPages, Update};
use larder_sorted::tree::Remains as Walk;
use larder_store::{PoolError, Result, RunIo};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pages of the index that are read and written while it catches up, about.
const PAGES: usize = 64;

/// One of a dataset's trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeOf {
    /// The head, as it is committed.
    Head,
    /// The snapshot with this high id, without what the tree after it has as well.
    Snapshot(BlockId),
}

/// Whether others may name a block as well.
pub(crate) fn is_shared(entry: &Entry) -> bool {
    [Marks::SHARED, Marks::ALIASED].iter().any(|mark| entry.marks.contains(*mark))
}

/// Whether somebody gave a block up.
fn is_given_up(entry: &Entry) -> bool {
    entry.marks.contains(Marks::DEAD)
}

/// Whether nobody names a block any more, by its marks: a shared one that was given up may be another's still.
pub(crate) fn is_dead(entry: &Entry) -> bool {
    entry.marks.contains(Marks::DEAD) && !entry.marks.contains(Marks::SHARED)
}

/// Part of a tree's records; see [`Pool::tree_records`].
#[derive(Debug, Default)]
pub struct TreeRecords {
    /// The records.
    pub records: Vec<BlockPtr>,
    /// The nodes that end there.
    pub nodes: Vec<BlockPtr>,
    /// A node among them cannot be read: what is below it was left out.
    pub is_partial: bool,
    /// Where to go on, if there is more.
    pub next: Option<Key>,
}

/// A record that has places.
pub(crate) struct Known {
    /// With its first place.
    pub(crate) ptr: BlockPtr,
    /// As the runs of the map have it.
    in_runs: Delta,
    /// As the map has it.
    print: Option<Fingerprint>,
    /// An alias may name it.
    is_target: bool,
    /// All of its places.
    pub(crate) places: Places,
    /// Others may name it as well.
    pub(crate) is_shared: bool,
    /// It was not asked for, but an alias of it.
    pub(crate) is_of_others: bool,
}

/// Records as the map knows them.
#[derive(Default)]
struct Found {
    known: Vec<Known>,
    /// Targets of those that are aliases.
    targets: Vec<BlockId>,
    /// Number of those on lost pages.
    lost: u64,
}

/// A record that may be given up for another.
struct Pair {
    from: BlockPtr,
    to: BlockPtr,
    print: Fingerprint,
}

impl Pool {
    /// Has the index be in use although no dataset has `dedup` on, or not any more. It begins with all fingerprints
    /// that the map has: see [`Pool::catch_up`].
    pub fn use_index(&self, wanted: bool) {
        let before = self.shared.duplicates.in_use.swap(wanted, Ordering::Relaxed);
        self.wake_or_lay_down();
        let mut indexed = self.shared.duplicates.indexed.lock();
        if wanted && !before && indexed.index.is_some() {
            // Of older blocks that got one since, it may know nothing.
            indexed.refill = Some(BlockId::new(0));
        }
    }

    /// Has the index take up some of what only the map knows; from which block on there is more.
    ///
    /// # Errors
    /// When nothing may be written.
    pub fn catch_up(&self) -> Result<Option<BlockId>> {
        let _turn = self.commit_turn();
        self.tick_index(PAGES)?;
        Ok(self.shared.duplicates.indexed.lock().refill)
    }

    /// The trees of a dataset, its head first, then its snapshots from the newest to the oldest, hidden ones too.
    pub fn trees_of(&self, dataset: DatasetId) -> Vec<TreeOf> {
        let snapshots = self.snapshots.lock();
        let taken = snapshots.of(dataset).rev().map(|one| TreeOf::Snapshot(one.record.high));
        std::iter::once(TreeOf::Head).chain(taken).collect()
    }

    /// Some records that a tree names, from `from` on; none when it is gone. What cannot be read is passed over.
    ///
    /// # Errors
    /// When nothing can be read now.
    pub fn tree_records(&self, dataset: DatasetId, tree: TreeOf, from: Key) -> Result<TreeRecords> {
        // No commit comes between: the nodes of committed trees stay where they are.
        let _turn = self.commit_turn();
        let head = self.tree_of(dataset);
        let (root, after) = match tree {
            TreeOf::Head => {
                let root = |head: &Arc<Dataset>| head.state.read().tree.committed_root();
                (head.as_ref().and_then(root), None)
            }
            TreeOf::Snapshot(high) => {
                let of = |snapshots: &crate::snapshots::Snapshots| {
                    snapshots.of(dataset).find(|one| one.record.high == high).and_then(|one| one.record.root)
                };
                let root = of(&self.snapshots.lock());
                (root, self.after(dataset, head.as_deref(), high))
            }
        };
        let Some(root) = root else { return Ok(TreeRecords::default()) };
        let mut walk = Walk::new(Some(root), after, BlockId::new(0), from);
        let mut found = Alone::default();
        let more = self.find_alone(&mut walk, BlockId::new(0), &mut found)?;
        let Alone { records, nodes, unread, .. } = found;
        Ok(TreeRecords { records, nodes, is_partial: unread > 0, next: more.then(|| walk.cursor()) })
    }

    /// Looks for each of these records whether the pool has its content elsewhere, and makes it an alias then. What has
    /// no fingerprint is read for it. The index must be in use: see [`Pool::use_index`].
    ///
    /// # Errors
    /// When nothing may be written, or the map cannot be read for now.
    pub fn share_records(&self, records: Vec<BlockPtr>) -> Result<Tally> {
        self.shared.store.check_writable()?;
        let (known, mut outcome) = self.each_known(records)?;
        // Nobody waits for these reads.
        let prints = self.prints_of(&known, &mut outcome);
        let pairs = self.find_pairs(known, &prints)?;
        self.make_aliases(&self.compare(pairs, &mut outcome), &mut outcome)?;
        Ok(outcome)
    }

    /// The fingerprints of records; those that have none are read for it. Which of them were there, and what was read.
    ///
    /// # Errors
    /// When the map cannot be read for now.
    pub fn fingerprints(&self, records: Vec<BlockPtr>) -> Result<(Vec<(BlockPtr, Fingerprint)>, Tally)> {
        let (known, mut tally) = self.each_known(records)?;
        let prints = self.prints_of(&known, &mut tally);
        let printed = known.into_iter().filter_map(|one| Some((one.ptr, *prints.get(&one.ptr.id)?)));
        Ok((printed.collect(), tally))
    }

    /// Those of the records that have places, each once, and a tally of all.
    pub(crate) fn each_known(&self, mut records: Vec<BlockPtr>) -> Result<(Vec<Known>, Tally)> {
        records.sort_unstable_by_key(|ptr| ptr.id);
        records.dedup_by_key(|ptr| ptr.id);
        let tally = Tally { records: records.len() as u64, ..Tally::default() };
        let _no_checkpoint = self.commit_turn();
        Ok((self.still_there(records.iter().map(|ptr| ptr.id), is_given_up)?.known, tally))
    }

    /// The same, and the targets of those that are aliases; unread are those that the map cannot tell of.
    pub(crate) fn known_and_targets(&self, mut records: Vec<BlockPtr>) -> Result<(Vec<Known>, Tally)> {
        records.sort_unstable_by_key(|ptr| ptr.id);
        records.dedup_by_key(|ptr| ptr.id);
        let _no_checkpoint = self.commit_turn();
        let Found { mut known, mut targets, lost } =
            self.still_there(records.iter().map(|ptr| ptr.id), is_dead)?;
        targets.sort_unstable();
        targets.dedup();
        targets.retain(|id| known.binary_search_by_key(id, |one| one.ptr.id).is_err());
        let of_targets = self.still_there(targets.into_iter(), is_dead)?;
        known.extend(of_targets.known.into_iter().map(|one| Known { is_of_others: true, ..one }));
        // The map is asked for one after the other, upwards.
        known.sort_unstable_by_key(|one| one.ptr.id);
        let unread = lost + of_targets.lost;
        Ok((known, Tally { records: records.len() as u64, unread, ..Tally::default() }))
    }

    /// The blocks that these records are aliases of.
    ///
    /// # Errors
    /// When the map cannot be read for now.
    pub fn targets_of(&self, records: &[BlockPtr]) -> Result<Vec<BlockId>> {
        let mut ids: Vec<BlockId> = records.iter().map(|ptr| ptr.id).collect();
        ids.sort_unstable();
        let _no_checkpoint = self.commit_turn();
        Ok(self.still_there(ids.into_iter(), is_dead)?.targets)
    }

    /// Those of the blocks that have places, and the number of those that the map cannot tell of.
    pub(crate) fn known_by_id(&self, mut ids: Vec<BlockId>) -> Result<(Vec<Known>, u64)> {
        ids.sort_unstable();
        let _no_checkpoint = self.commit_turn();
        let Found { known, lost, .. } = self.still_there(ids.into_iter(), is_dead)?;
        Ok((known, lost))
    }

    /// Fingerprints of records, which are read where the map has none.
    fn prints_of(&self, known: &[Known], tally: &mut Tally) -> HashMap<BlockId, Fingerprint> {
        let unprinted: Vec<BlockPtr> =
            known.iter().filter(|one| one.print.is_none()).map(|one| one.ptr).collect();
        let plain = self.shared.store.read_all(&unprinted);
        tally.unread += (unprinted.len() - plain.len()) as u64;
        tally.read += plain.values().map(|plain| plain.len() as u64).sum::<u64>();
        let hashed = self.shared.store.world.workers.map(unprinted.len(), |i| {
            let id = unprinted[i].id;
            plain.get(&id).map(|plain| (id, self.fingerprint(plain)))
        });
        let had = known.iter().filter_map(|one| Some((one.ptr.id, one.print?)));
        had.chain(hashed.into_iter().flatten()).collect()
    }

    /// Records that others seem to be the same as. Those of which none is known go into the index.
    fn find_pairs(&self, known: Vec<Known>, prints: &HashMap<BlockId, Fingerprint>) -> Result<Vec<Pair>> {
        // No checkpoint comes between the look at the runs and that at the map.
        let _op = self.enter()?;
        let io = RunIo::new(&self.shared.store);
        let mut known = self.still_there(known.into_iter().map(|one| one.ptr.id), is_given_up)?.known;
        known.retain(|one| prints.contains_key(&one.ptr.id));
        let asked: Vec<Fingerprint> = known.iter().map(|one| prints[&one.ptr.id]).collect();
        let probe = self.shared.duplicates.indexed.lock().index.as_ref().map(|index| index.probe(&asked));
        let Some(probe) = probe else { return Ok(Vec::new()) };
        let named = probe.finish(&io, &mut { u64::MAX });
        let mut firsts: HashMap<Fingerprint, BlockPtr> = HashMap::new();
        let (mut pairs, mut fresh) = (Vec::new(), Vec::new());
        for ((one, print), named) in known.into_iter().zip(asked).zip(named) {
            let earlier = firsts.get(&print).copied();
            let named = named.filter(|id| *id != one.ptr.id);
            match earlier.or_else(|| named.and_then(|id| self.has_print(id, print))) {
                // One that has aliases becomes none: the other may.
                Some(other) if one.is_target => pairs.push(Pair { from: other, to: one.ptr, print }),
                Some(other) => pairs.push(Pair { from: one.ptr, to: other, print }),
                None => {
                    firsts.insert(print, one.ptr);
                    fresh.push((one, print));
                }
            }
        }
        let mut taken = Vec::new();
        {
            let mut map = self.shared.store.map.lock();
            for (Known { ptr, in_runs, print: had, .. }, print) in fresh {
                let now = Entry::of(&map.now(ptr.id, in_runs));
                let is_there = now.is_some_and(|now| !now.places().is_empty());
                if is_there && had.is_none() {
                    map.apply(Update::Print { id: ptr.id, print });
                }
                taken.extend(is_there.then_some((print, ptr.id)));
            }
        }
        if let Some(index) = &mut self.shared.duplicates.indexed.lock().index {
            taken.into_iter().for_each(|(print, id)| index.insert(print, id));
        }
        Ok(pairs)
    }

    /// Those of the records that have places, but for those that are gone. No checkpoint may come before they are
    /// looked at again.
    fn still_there(
        &self,
        ids: impl Iterator<Item = BlockId>,
        is_gone: impl Fn(&Entry) -> bool,
    ) -> Result<Found> {
        let io = RunIo::new(&self.shared.store);
        let (mut finder, mut lost) = (self.shared.store.map.lock().finder(), LostPages::default());
        let mut found = Found::default();
        for id in ids {
            let Some(in_runs) = finder.find_past(id, &mut lost, PoolError::is_loss, &io)? else {
                found.lost += 1;
                continue;
            };
            let now = Entry::of(&self.shared.store.map.lock().now(id, in_runs));
            let Some(entry) = now.filter(|entry| !is_gone(entry)) else { continue };
            match entry.location {
                Location::Places(places) => found.known.push(Known {
                    ptr: BlockPtr { id, place: places[0] },
                    in_runs,
                    print: entry.print,
                    is_target: entry.marks.contains(Marks::ALIASED),
                    places,
                    is_shared: is_shared(&entry),
                    is_of_others: false,
                }),
                Location::Alias(target) => found.targets.push(target),
            }
        }
        Ok(found)
    }

    /// The block with this id, when the map has it with this fingerprint and places.
    fn has_print(&self, id: BlockId, print: Fingerprint) -> Option<BlockPtr> {
        if self.shared.damage.is_block_lost(id) {
            return None;
        }
        let entry = self.shared.store.look_up(id, |look_up, io| look_up.entry(io)).ok().flatten()?;
        let place = *entry.places().first()?;
        (entry.print == Some(print)).then_some(BlockPtr { id, place })
    }

    /// Those pairs of which both can be read and are the same. The one that stays may be in the cache and gone from its
    /// device: it is read from there.
    fn compare(&self, mut pairs: Vec<Pair>, outcome: &mut Tally) -> Vec<Pair> {
        let store = &self.shared.store;
        let each = |of: fn(&Pair) -> BlockPtr| {
            let mut all: Vec<BlockPtr> = pairs.iter().map(of).collect();
            // Many may have one target.
            all.sort_unstable_by_key(|ptr| ptr.id);
            all.dedup_by_key(|ptr| ptr.id);
            all
        };
        let given_up = store.read_all(&each(|pair| pair.from));
        let kept: HashMap<BlockId, Bytes> =
            store.fetch_plain(each(|pair| pair.to).into_iter()).into_iter().collect();
        outcome.read += given_up.values().chain(kept.values()).map(|plain| plain.len() as u64).sum::<u64>();
        pairs.retain(|pair| {
            let from = given_up.get(&pair.from.id).cloned().or_else(|| store.read(pair.from).ok());
            let on_device = || store.read_plain(pair.to, BlockKind::Record).ok().map(|(_, plain)| plain);
            let to = kept.get(&pair.to.id).cloned().or_else(on_device);
            let is_same = from.zip(to).is_some_and(|(from, to)| from == to);
            outcome.unread += u64::from(!is_same);
            is_same
        });
        pairs
    }

    /// Makes the first of each pair an alias of the second.
    fn make_aliases(&self, pairs: &[Pair], outcome: &mut Tally) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let _turn = self.commit_turn();
        self.shared.store.check_writable()?;
        // A collection that ends and finds nothing shared keeps everybody out.
        let _op = self.enter()?;
        let mut ids: Vec<BlockId> = pairs.iter().flat_map(|pair| [pair.from.id, pair.to.id]).collect();
        ids.sort_unstable();
        ids.dedup();
        let io = RunIo::new(&self.shared.store);
        let (mut finder, mut lost) = (self.shared.store.map.lock().finder(), LostPages::default());
        let mut in_runs = HashMap::with_capacity(ids.len());
        for id in ids {
            let found = finder.find_past(id, &mut lost, PoolError::is_loss, &io)?;
            in_runs.extend(found.map(|delta| (id, delta)));
        }
        // Before the map has one: from now on nothing is freed but by those who know of aliases.
        self.shared.store.core.lock().features.incompatible |= Features::ALIASES;
        let (mut given_up, mut named): (Vec<Place>, Vec<(Fingerprint, BlockId)>) = Default::default();
        for pair in pairs {
            let [from, to] = [pair.from.id, pair.to.id];
            let (Some(of_from), Some(of_to)) = (in_runs.get(&from), in_runs.get(&to)) else { continue };
            let mut map = self.shared.store.map.lock();
            let now = |id, in_runs: &Delta| Entry::of(&map.now(id, *in_runs));
            let (Some(of_from), Some(of_to)) = (now(from, of_from), now(to, of_to)) else { continue };
            let Location::Places(places) = of_from.location else { continue };
            let is_same =
                of_from.print.is_none_or(|print| print == pair.print) && of_to.print == Some(pair.print);
            // Nor is one given up that has more copies.
            let is_as_safe = of_to.places().len() >= places.len();
            let is_free = !of_from.marks.contains(Marks::ALIASED) && !of_from.marks.contains(Marks::DEAD);
            if !(is_same && is_as_safe && is_free) {
                continue;
            }
            if !mutated(Mutant::AliasNotMarked) {
                self.shared.freeing.mark_shared(&mut map, to);
            }
            map.apply(Update::Mark { id: to, marks: Marks::ALIASED });
            map.apply(Update::Alias { id: from, to });
            map.apply(Update::Unmark { id: from, marks: Marks::INDEXED });
            self.shared.duplicates.forget(from);
            drop(map);
            named.push((pair.print, to));
            outcome.changed += 1;
            outcome.before += places.iter().map(|place| u64::from(place.footprint())).sum::<u64>();
            given_up.extend(places.iter());
        }
        if let Some(index) = &mut self.shared.duplicates.indexed.lock().index {
            named.into_iter().for_each(|(print, id)| index.insert(print, id));
        }
        if !mutated(Mutant::AliasNotReleased) {
            let mut core = self.shared.store.core.lock();
            given_up.into_iter().for_each(|place| core.release(place));
        }
        Ok(())
    }
}
