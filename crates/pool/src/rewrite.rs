//! Rewriting: records are stored anew as their dataset's properties now say, under the ids that they have.
//!
//! It is the cleaner's move with another codec or checksum on the way: no tree changes, so what snapshots and clones
//! hold is rewritten as well, and nothing is there twice for longer than two commits. The segment that a record leaves
//! is *emptying* from then on, as by the cleaner: a hint into it does not tell its place any more, and reads what is
//! there until the segment is gone. Files go on being charged for what was written at first.
//!
//! A record in a segment that still gets stripes keeps its codec: it has just been written. Records and nodes get as
//! many places as `copies` says, or keep the first so many, unless somebody else may name them, who may have asked for
//! more. Those that are kept are read before: no other is given up for one that is bad. Aliases have nothing of their
//! own: their targets, which may be another dataset's, get further places and stay as they are otherwise.
//!
//! A crash leaves a record at its old place or the new one, whole.

use crate::dataset::{Settings, settings_from};
use crate::dedup::{Known, is_dead, is_shared};
use crate::pool::Pool;
use crate::tally::Tally;
use bytes::Bytes;
use larder_format::block::{BlockInfo, BlockKind, CheckedHeader, CodecKind, Stamp};
use larder_format::checksum::ChecksumKind;
use larder_format::label::Features;
use larder_format::run::{Delta, MAX_PLACES, Places};
use larder_format::segment::SegmentState;
use larder_format::{BlockId, BlockPtr, DatasetId, Place};
use larder_sorted::map::{Entry, Location, LostPages, Update};
use larder_store::codec::Codec;
use larder_store::stripe::Encoded;
use larder_store::{Appender, Bin, PoolError, Result, RunIo, Unplaced, draft, frame, heat, plain_of};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Times that blocks are looked for again which the cleaner moved meanwhile.
const TRIES: usize = 4;
/// Stored bytes of the blocks that are read and stored anew at once, but for one that has more.
const MOST_BYTES: u64 = 16 << 20;

/// Kind of the blocks that are rewritten.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Records,
    /// They keep their codec.
    Nodes,
}

/// A block as it is to be stored.
struct Anew {
    ptr: BlockPtr,
    block: Encoded,
    /// It is not so stored yet. Else only the number of its places changes.
    is_changed: bool,
    is_framed: bool,
}

/// Number of places that records should have.
#[derive(Clone, Copy)]
struct Wanted {
    least: u8,
    /// More where clones may name them that ask for more.
    most: u8,
}

/// Sizes of a change.
struct Sizes {
    /// Footprints of the record as it is, and as it will be.
    before: u64,
    after: u64,
    /// Room that it takes until what the record leaves is free.
    room: u64,
}

/// A change of a record's places.
enum Change {
    /// It gets others, so many.
    Anew(u8),
    /// It gets more until there are so many.
    More(u8),
    /// It keeps the first so many.
    Fewer(u8),
}

impl Change {
    /// `None` where a record at `places` is as it should be. One that is shared keeps as many as it has: whoever else
    /// names it may have asked for them.
    fn of(is_changed: bool, places: &Places, is_shared: bool, wanted: Wanted) -> Option<Self> {
        let had = places.len() as u8;
        let copies = if is_shared { had.max(wanted.least) } else { had.clamp(wanted.least, wanted.most) };
        match had.cmp(&copies) {
            _ if is_changed => Some(Self::Anew(copies)),
            Ordering::Less => Some(Self::More(copies)),
            Ordering::Greater => Some(Self::Fewer(copies)),
            Ordering::Equal => None,
        }
    }

    /// Its sizes, if each new place takes so much.
    fn bytes(&self, places: &Places, each: u64) -> Sizes {
        let footprints =
            |places: &[Place]| places.iter().map(|place| u64::from(place.footprint())).sum::<u64>();
        let before = footprints(places);
        let after = match *self {
            Self::Anew(copies) => each * u64::from(copies),
            Self::More(copies) => before + each * (u64::from(copies) - places.len() as u64),
            Self::Fewer(copies) => footprints(&places[..copies.into()]),
        };
        let is_anew = matches!(self, Self::Anew(_));
        Sizes { before, after, room: if is_anew { after } else { after.saturating_sub(before) } }
    }
}

impl Pool {
    /// Stores these records of a dataset as its properties say, where that changes anything. The tally, which has none
    /// yet, tells what was done before an error, too.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] when there is no room to write them, however much is cleaned; when nothing may be
    /// written, or the map cannot be read for now.
    pub fn rewrite_records(
        &self,
        dataset: DatasetId,
        records: Vec<BlockPtr>,
        tally: &mut Tally,
    ) -> Result<()> {
        self.rewrite(dataset, records, Of::Records, tally)
    }

    /// Gives these nodes of a dataset as many places as its properties say.
    ///
    /// # Errors
    /// As [`Pool::rewrite_records`].
    pub fn rewrite_nodes(&self, dataset: DatasetId, nodes: Vec<BlockPtr>, tally: &mut Tally) -> Result<()> {
        self.rewrite(dataset, nodes, Of::Nodes, tally)
    }

    fn rewrite(
        &self,
        dataset: DatasetId,
        mut blocks: Vec<BlockPtr>,
        of: Of,
        tally: &mut Tally,
    ) -> Result<()> {
        self.shared.store.check_writable()?;
        let Some(dataset) = self.dataset(dataset) else { return Ok(()) };
        let settings = dataset.settings();
        let mut others = HashSet::new();
        for _ in 0..TRIES {
            let (mut known, found) = self.known_and_targets(blocks)?;
            (tally.records, tally.unread) = (tally.records.max(found.records), tally.unread + found.unread);
            let wanted = self.wanted_copies(settings.copies);
            known.retain_mut(|one| {
                // One that moved is asked for by its own id, and stays another's.
                one.is_of_others |= others.contains(&one.ptr.id);
                others.extend(one.is_of_others.then_some(one.ptr.id));
                let may_change = of == Of::Records && !one.is_of_others;
                may_change || Change::of(false, &one.places, one.is_shared, wanted).is_some()
            });
            blocks = Vec::new();
            // Targets may be far larger than the aliases by which a batch was measured.
            while !known.is_empty() {
                let mut bytes = 0;
                let mut fits = |one: &Known| {
                    bytes += u64::from(one.ptr.place.stored);
                    bytes <= MOST_BYTES
                };
                let count = known.iter().take_while(|one| fits(one)).count().max(1);
                let rest = known.split_off(count);
                blocks.extend(self.rewrite_part(&known, &settings, of, tally)?);
                known = rest;
            }
            if blocks.is_empty() {
                return Ok(());
            }
        }
        tally.unread += blocks.len() as u64;
        Ok(())
    }

    /// Tries it; those that moved meanwhile.
    fn rewrite_part(
        &self,
        known: &[Known],
        settings: &Settings,
        of: Of,
        tally: &mut Tally,
    ) -> Result<Vec<BlockPtr>> {
        let anew = self.encode_anew(known, settings, of, tally);
        if anew.is_empty() {
            return Ok(Vec::new());
        }
        let store = &self.shared.store;
        let mut bytes = anew.iter().map(|(_, bytes)| bytes.room).sum();
        if of == Of::Nodes {
            bytes = store.core.lock().footprint_of_nodes(bytes);
        }
        // Nothing in the trash is given up for it.
        if store.space(settings.record_size).available < bytes {
            return Err(PoolError::NoSpace);
        }
        self.make_space(bytes, settings.record_size)?;
        let anew = anew.into_iter().map(|(one, _)| one).collect::<Vec<_>>();
        let (wanted, unread) = (self.wanted_copies(settings.copies), tally.unread);
        match self.put_anew(&anew, wanted, of, tally) {
            // Room in segments of records is not theirs, and each copy has segments of its own.
            Err(PoolError::NoSpace) if of == Of::Nodes => {
                let slot_size = store.members().smallest_slot().map_or(bytes, u64::from).max(1);
                self.make_segments(MAX_PLACES as u64 + bytes / slot_size)?;
                tally.unread = unread;
                self.put_anew(&anew, wanted, of, tally)
            }
            put => put,
        }
    }

    /// Tells what [`Pool::rewrite_records`] would do if these properties were set, to the records themselves: for
    /// targets of aliases there is [`Pool::try_copies`].
    ///
    /// # Errors
    /// When the map cannot be read for now.
    pub fn try_rewrite(
        &self,
        dataset: DatasetId,
        records: Vec<BlockPtr>,
        properties: &BTreeMap<String, String>,
    ) -> Result<Tally> {
        let Some(dataset) = self.dataset(dataset) else { return Ok(Tally::default()) };
        let settings = settings_from(dataset.settings(), properties);
        let (known, mut tally) = self.each_known(records)?;
        for (_, bytes) in self.encode_anew(&known, &settings, Of::Records, &mut tally) {
            tally.changed += 1;
            tally.before += bytes.before;
            tally.after += bytes.after;
        }
        Ok(tally)
    }

    /// Tells what it would take if blocks that stay as they are otherwise, nodes and targets of aliases, got as many
    /// places as these properties say. None is read.
    ///
    /// # Errors
    /// When the map cannot be read for now.
    pub fn try_copies(
        &self,
        dataset: DatasetId,
        blocks: Vec<BlockId>,
        properties: &BTreeMap<String, String>,
    ) -> Result<Tally> {
        let Some(dataset) = self.dataset(dataset) else { return Ok(Tally::default()) };
        let wanted = self.wanted_copies(settings_from(dataset.settings(), properties).copies);
        let (known, unread) = self.known_by_id(blocks)?;
        let mut tally = Tally { unread, ..Tally::default() };
        for one in known {
            let Some(change) = Change::of(false, &one.places, one.is_shared, wanted) else { continue };
            let bytes = change.bytes(&one.places, one.ptr.place.footprint().into());
            tally.changed += 1;
            tally.before += bytes.before;
            tally.after += bytes.after;
        }
        Ok(tally)
    }

    /// Those of the blocks that are stored otherwise than as these settings say, as they would be.
    fn encode_anew(
        &self,
        known: &[Known],
        settings: &Settings,
        of: Of,
        tally: &mut Tally,
    ) -> Vec<(Anew, Sizes)> {
        let store = &self.shared.store;
        let ptrs: Vec<BlockPtr> = known.iter().map(|one| one.ptr).collect();
        let arrived = store.read_all_stored(&ptrs);
        let wanted = self.wanted_copies(settings.copies);
        let encode = |i: usize| {
            let Known { ptr, places, is_shared, is_of_others, .. } = &known[i];
            let (header, bytes) = arrived.get(&ptr.id)?;
            let anew = match of {
                Of::Records if !is_of_others && self.may_leave(places) => {
                    encode(store, *ptr, header, bytes, settings.codec, settings.checksum)
                }
                _ => Anew::unchanged(*ptr, bytes),
            };
            let change = Change::of(anew.is_changed, places, *is_shared, wanted);
            let anew = change.map(|change| {
                let each = larder_store::stripe::footprint(anew.block.len());
                let bytes = change.bytes(places, each.into());
                (anew, bytes)
            });
            Some((u64::from(header.info.logical), anew))
        };
        let encoded = store.world.workers.map(known.len(), encode);
        let mut anew = Vec::new();
        for found in encoded {
            match found {
                None => tally.unread += 1,
                Some((logical, block)) => {
                    tally.read += logical;
                    anew.extend(block);
                }
            }
        }
        anew
    }

    /// Number of places for blocks of a dataset that asks for so many.
    fn wanted_copies(&self, least: u8) -> Wanted {
        let all = self.trees();
        let has_clones = all.iter().any(|dataset| dataset.state.read().record.origin.is_some());
        let others = all.iter().filter(|_| has_clones).map(|dataset| dataset.settings().copies);
        Wanted { least, most: others.max().unwrap_or(least).max(least) }
    }

    /// Gives blocks new places, or some more, or takes some away. Those that are elsewhere than when they were read.
    fn put_anew(&self, anew: &[Anew], wanted: Wanted, of: Of, tally: &mut Tally) -> Result<Vec<BlockPtr>> {
        let store = &self.shared.store;
        // Nothing moves or dies, and what was looked up stays true.
        let _commits_wait = self.commit_turn();
        store.check_writable()?;
        let op = self.enter()?;
        let io = RunIo::new(store);
        let (mut finder, mut lost) = (store.map.lock().finder(), LostPages::default());
        let (mut moving, mut moved) = (Vec::new(), Vec::new());
        for one in anew {
            let found = finder.find_past(one.ptr.id, &mut lost, PoolError::is_loss, &io)?;
            let Some(in_runs) = found else {
                tally.unread += 1;
                continue;
            };
            let now = Entry::of(&store.map.lock().now(one.ptr.id, in_runs));
            let Some(entry @ Entry { location: Location::Places(places), .. }) = now else { continue };
            if is_dead(&entry) {
                continue;
            }
            if !places.contains(&one.ptr.place) {
                moved.push(one.ptr);
                continue;
            }
            let change = Change::of(one.is_changed, &places, is_shared(&entry), wanted);
            if let Some(change) = change {
                moving.push((one, in_runs, places, change));
            }
        }
        self.prove_kept(&mut moving, tally);
        moving.retain(|(one, _, places, change)| {
            let stays = matches!(change, Change::Anew(_)) && !self.may_leave(places);
            // One that has a bad place to give up keeps them all.
            moved.extend((stays && one.is_changed).then_some(one.ptr));
            !stays
        });
        // Records that lay with metadata stay there.
        let small: Vec<bool> = {
            let core = store.core.lock();
            moving.iter().map(|(one, ..)| core.is_with_metadata(one.ptr.place.segment)).collect()
        };
        let (clock, now, records) = {
            let mut core = store.core.lock();
            if moving.iter().any(|(one, ..)| one.is_framed) {
                core.features.incompatible |= Features::FRAMES;
            }
            (Arc::clone(&core.clock), core.next_block, core.entries.records())
        };
        let unplaced = |((one, _, places, change), small): (&(&Anew, Delta, Places, Change), bool)| {
            let (copies, had) = match *change {
                Change::Anew(copies) => (copies, None),
                Change::More(copies) => (copies, Some(*places)),
                Change::Fewer(_) => return None,
            };
            let class = heat::class_of(clock.age(one.ptr.id, now), records);
            let bin = Bin { class, copy: had.map_or(0, |had| had.len() as u8), small };
            Some((Unplaced { bin, beside: had, block: one.block.clone() }, copies))
        };
        let unplaced = moving.iter().zip(small).filter_map(unplaced).collect();
        let given = match of {
            Of::Records => store.append_copies(unplaced, op.watermark())?,
            Of::Nodes => self.append_nodes(unplaced)?,
        };
        let mut given = given.into_iter();
        for (one, in_runs, old, change) in &moving {
            let (places, left) = match *change {
                Change::Anew(_) => (given.next(), &old[..]),
                Change::More(_) => (given.next(), &[][..]),
                Change::Fewer(copies) => (Places::new(&old[..copies.into()]).ok(), &old[copies.into()..]),
            };
            let places = places.expect("each that was to get some has got them, and keeps one at least");
            let mut map = store.map.lock();
            // Somebody may have got another reference since, and counts on all places that were there.
            let is_now_shared = Entry::of(&map.now(one.ptr.id, *in_runs)).is_some_and(|now| is_shared(&now));
            let is_taken_back = is_now_shared && places.len() < old.len();
            if !is_taken_back {
                map.apply(Update::Put { id: one.ptr.id, places });
            }
            drop(map);
            let mut core = store.core.lock();
            if is_taken_back {
                let gained = places.iter().filter(|place| !old.contains(place));
                gained.for_each(|&place| core.release(place));
                continue;
            }
            for &place in left {
                if matches!(change, Change::Anew(_)) {
                    // A hint may name it.
                    core.entries.change(place.segment, |entry| {
                        (entry.state, entry.dirty) = (SegmentState::Emptying, true);
                    });
                }
                core.release(place);
            }
            let bytes = change.bytes(old, places[places.len() - 1].footprint().into());
            tally.changed += 1;
            tally.before += bytes.before;
            tally.after += bytes.after;
        }
        Ok(moved)
    }

    /// As [`larder_store::Store::append_copies`], of nodes; they leave what writers may fill.
    fn append_nodes(&self, unplaced: Vec<(Unplaced, u8)>) -> Result<Vec<Places>> {
        let store = &self.shared.store;
        if unplaced.iter().any(|(_, copies)| *copies > 1) {
            // Before the map has one, as for records.
            store.core.lock().features.incompatible |= Features::COPIES;
        }
        let to = |copy| Appender::of_further_old_nodes(store, copy);
        let mut to: Vec<Appender<'_>> = (0..MAX_PLACES as u8).map(to).collect();
        let (mut given, mut all) = (Vec::new(), Vec::with_capacity(unplaced.len()));
        let pushed = unplaced.into_iter().try_for_each(|(one, copies)| {
            let mut places = one.beside.map_or_else(Vec::new, |places| places.to_vec());
            for to in &mut to[one.bin.copy.into()..copies.into()] {
                let place = to.push_beside(one.block.clone(), &places)?;
                given.push(place);
                places.push(place);
            }
            all.push(Places::new(&places)?);
            Ok(())
        });
        if let Err(error) = pushed.and_then(|()| to.iter_mut().try_for_each(Appender::submit)) {
            // A new segment has its descriptors with its first stripe.
            to.iter_mut().for_each(|to| drop(to.submit()));
            let mut core = store.core.lock();
            given.into_iter().for_each(|place| core.release(place));
            return Err(error);
        }
        Ok(all)
    }

    /// Reads each place that is to be kept of a record that gives others up: the one that the record was read from may
    /// be among those. Where one has not the record any more, all are made anew.
    fn prove_kept(&self, moving: &mut Vec<(&Anew, Delta, Places, Change)>, tally: &mut Tally) {
        let store = &self.shared.store;
        let proven = store.world.workers.map(moving.len(), |i| {
            let (one, _, places, ref change) = moving[i];
            let Change::Fewer(copies) = *change else { return Ok(()) };
            let mut kept = places[..copies.into()].iter();
            kept.try_for_each(|&place| store.read_at(BlockPtr { id: one.ptr.id, place }).map(drop))
        });
        let mut proven = proven.into_iter();
        moving.retain_mut(|(.., change)| {
            let (proof, Change::Fewer(copies)) = (proven.next(), &*change) else { return true };
            match proof.expect("each was looked at") {
                Ok(()) => {}
                Err(error) if error.is_loss() && store.silence().is_none() => *change = Change::Anew(*copies),
                Err(_) => {
                    tally.unread += 1;
                    return false;
                }
            }
            true
        });
    }

    /// Whether the segments of these places get no more stripes.
    fn may_leave(&self, places: &Places) -> bool {
        let core = self.shared.store.core.lock();
        let is_complete = |segment| core.entries.get(&segment).is_some_and(|entry| entry.is_complete());
        places.iter().all(|place| is_complete(place.segment))
    }
}

impl Anew {
    /// As it is.
    fn unchanged(ptr: BlockPtr, stored: &Bytes) -> Self {
        Self { ptr, block: Encoded::Whole(stored.clone()), is_changed: false, is_framed: false }
    }
}

/// A record as it would be with this codec and checksum, or as it is where it is so, or would only be larger.
fn encode(
    store: &larder_store::Store,
    ptr: BlockPtr,
    header: &CheckedHeader,
    stored: &Bytes,
    codec: Codec,
    checksum: ChecksumKind,
) -> Anew {
    let unchanged = || Anew::unchanged(ptr, stored);
    let (kind, wanted) = (header.info.codec, codec.kind());
    let is_summed_so = header.info.checksum == checksum;
    let has_levels = matches!(codec, Codec::Gzip(_) | Codec::Zstd(_));
    if kind == wanted && is_summed_so && (!has_levels || kind == CodecKind::Off) {
        return unchanged();
    }
    let Ok(plain) = plain_of(header, stored, BlockKind::Record) else { return unchanged() };
    let info = BlockInfo { checksum, codec: CodecKind::Off, framed: false, ..header.info };
    let draft = draft(&store.sums, info, codec, plain);
    let (id, birth, incarnation) = (header.id, header.birth, header.incarnation);
    let (made, is_framed) = (draft.codec(), draft.is_framed());
    let block = frame(&store.sums, &Stamp { id, incarnation, birth }, draft);
    // Of the same kind it may have been made with more effort than is asked for now.
    let is_same = made == kind && is_summed_so;
    if is_same && block.len() >= stored.len() {
        return unchanged();
    }
    Anew { ptr, block, is_changed: true, is_framed }
}
