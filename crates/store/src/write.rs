//! The way down: blocks get ids, are packed into stripes, and the stripes are submitted.
//!
//! Places are handed out under the core's lock; encoding, copying, summing and parity run without it.
//! A stripe that was submitted is served from memory until its writes are confirmed. A commit waits for
//! all of them; between commits the bytes in flight are bounded.
//!
//! Data that does not fill a stripe goes wherever it costs less: into a lower stripe, padded, or as copies into a
//! replicated segment. Nodes, runs, tables and the log are always replicated.

use crate::bad_slot_table::Retired;
use crate::cache::Record;
use crate::codec::{self, Codec};
use crate::core::Core;
use crate::error::{PoolError, Result};
use crate::heat;
use crate::in_flight::{InFlight, StripeWrite};
use crate::member::MemberState;
use crate::roles::Purpose;
use crate::segments::{Segment, SegmentEntry, StripeImage};
use crate::space::STRIPE_TARGET;
use crate::store::Store;
use crate::stripe::{self, Encoded, FRAMED_FROM, StripePlan};
use crate::watermark::Watermark;
use bytes::Bytes;
use larder_device::AlignedBuf;
use larder_format::block::{self, BlockInfo, BlockKind, Stamp};
use larder_format::checksum::{ChecksumKind, SUM_LEN, Sums, payload_sum};
use larder_format::label::Features;
use larder_format::run::Places;
use larder_format::segment::{
    DESCRIPTOR_LEN, SegmentKind, SegmentRecord, SegmentState, encode_descriptor, stripe_header_len,
};
use larder_format::{
    BlockId, BlockPtr, CommitId, DatasetId, DeviceIndex, Fingerprint, GroupIndex, Incarnation, Place,
    SegmentId,
};
use larder_mutants::{Mutant, mutated, point};
use larder_sorted::map::Update;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A piece of a file to be stored.
pub struct NewRecord {
    /// Its dataset.
    pub dataset: DatasetId,
    /// Its inode.
    pub inode: u64,
    /// Its offset in the file.
    pub offset: u64,
    /// Its content.
    pub plain: Record,
    /// Codec to encode it with.
    pub codec: Codec,
    /// Its content as some codec made it, which is stored as it is.
    pub encoded: Option<(block::CodecKind, Bytes)>,
    /// Checksum to use.
    pub checksum: ChecksumKind,
    /// Whether it is stored when its content is there already.
    pub dedup: Dedup,
    /// Places that it is stored at, 1 to [`larder_format::run::MAX_PLACES`].
    pub copies: u8,
    /// The block that it takes the place of: how long that lived is how long it is expected to live.
    pub replaces: Option<BlockId>,
}

/// Whether records that are there already are stored again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dedup {
    /// They are; no fingerprint is computed.
    #[default]
    Off,
    /// They are shared when the fingerprint is the same.
    On,
    /// They are shared when every byte is the same.
    Verify,
}

impl std::str::FromStr for Dedup {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "off" | "later" => Ok(Self::Off),
            "on" => Ok(Self::On),
            "verify" => Ok(Self::Verify),
            _ => Err(()),
        }
    }
}

/// The stream that a stripe is for.
#[derive(Debug, Clone, Copy)]
struct Stream {
    kind: SegmentKind,
    bin: Bin,
    mark: Watermark,
    /// Tails may not go elsewhere as copies.
    pad: bool,
}

/// The segments that a block goes to: how long it is expected to live, and which of its places that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bin {
    /// See [`crate::heat`].
    pub class: u8,
    /// 0 for the first place. No segment has blocks of two: so no two places of a block are in one.
    pub copy: u8,
    /// A record that goes where metadata does, if that has room ([`crate::roles`]).
    pub small: bool,
}

/// A block that is to be stored.
#[derive(Clone)]
pub struct Unplaced {
    /// Where.
    pub bin: Bin,
    /// The places that it has besides, on other groups or devices if that can be.
    pub beside: Option<Places>,
    /// Header and payload.
    pub block: Encoded,
}

/// A block's parts before it has an id.
pub struct Draft {
    info: BlockInfo,
    /// Sums of frames.
    frames: Bytes,
    payload: Bytes,
    sum: [u8; SUM_LEN],
}

impl Draft {
    /// Whether it has sums of frames: the root must tell of [`Features::FRAMES`] then.
    pub fn is_framed(&self) -> bool {
        self.info.framed
    }

    /// The codec that it was made with: none where none was worth it.
    pub fn codec(&self) -> block::CodecKind {
        self.info.codec
    }
}

/// Compresses `plain`, sums that and says what became of it.
pub fn draft(sums: &Sums, mut info: BlockInfo, codec: Codec, plain: Bytes) -> Draft {
    info.logical = plain.len() as u32;
    let (kind, payload) = match codec::compress(codec, &plain) {
        Some(payload) => (codec.kind(), payload.into()),
        None => (block::CodecKind::Off, plain),
    };
    draft_of(sums, info, kind, payload)
}

/// Says what became of a content of `info.logical` bytes that some codec made this of.
fn draft_of(sums: &Sums, mut info: BlockInfo, kind: block::CodecKind, payload: Bytes) -> Draft {
    info.codec = kind;
    info.framed = info.kind == BlockKind::Record
        && kind == block::CodecKind::Off
        && info.checksum == ChecksumKind::Fast
        && info.logical >= FRAMED_FROM;
    let frames = if info.framed { block::frame_sums(sums, &payload).into() } else { Bytes::new() };
    let sum = payload_sum(info.checksum, sums, if info.framed { &frames } else { &payload });
    Draft { info, frames, payload, sum }
}

/// Frames a draft as block `stamp.id`.
pub fn frame(sums: &Sums, stamp: &Stamp, draft: Draft) -> Encoded {
    let Draft { info, frames, payload, sum } = draft;
    let len = (frames.len() + payload.len()) as u32;
    Encoded::Parts(block::encode_header(sums, stamp, &info, sum, len), frames, payload)
}

/// A stripe that has its place and waits to be built.
pub(crate) struct Placed {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u32,
    pub(crate) plan: StripePlan,
    /// The segment was opened for this stripe: its descriptors must be written too.
    pub(crate) fresh: Option<SegmentRecord>,
}

/// Where the next stripe of a stream goes.
pub(crate) struct Tail {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u32,
    /// Bytes up to the end of the slot, and of blocks that a stripe of one column takes there.
    pub(crate) room: u32,
    pub(crate) limit: u32,
    pub(crate) step: u32,
    /// The segment was opened for this stripe.
    pub(crate) fresh: Option<SegmentRecord>,
}

impl Core {
    /// Opens a segment of `kind` and `class` on `group`; `None` when there are no slots for it.
    fn open_segment(&mut self, kind: SegmentKind, bin: Bin, group: GroupIndex) -> Option<SegmentRecord> {
        let Bin { class, copy, .. } = bin;
        let space = self.groups.change(group).expect("streams name groups that exist");
        let id = self.next_segment;
        let (layout, slots) = space.allocate(kind != SegmentKind::Data, id)?;
        self.next_segment = id.next();
        assert!(id < self.segment_lease, "segment ids are leased far ahead of their use");
        let record = SegmentRecord {
            id,
            kind,
            state: SegmentState::Open,
            group,
            layout,
            height: DESCRIPTOR_LEN,
            live_blocks: 0,
            live_bytes: 0,
            birth: self.open_commit,
            freed: CommitId::new(0),
            incarnation: self.incarnation,
            placed: 0,
            closed_at: BlockId::new(0),
            class,
            copy,
            unnamed: false,
            filled: self.open_commit,
            verified: 0,
            slots,
        };
        let mut entry = SegmentEntry::from_record(&record);
        entry.dirty = true;
        self.entries.insert(entry);
        Some(record)
    }

    /// Closes an open segment: it gets no more stripes.
    pub fn close_segment(&mut self, id: SegmentId) {
        let now = self.next_block;
        let closed = self.entries.change(id, |entry| {
            entry.state = SegmentState::Closed;
            entry.closed_at = now;
            entry.dirty = true;
        });
        closed.expect("open segments have entries");
        self.streams.retain(|_, open| *open != id);
    }

    /// Closes all open segments of `group` but the log's, which commits see to.
    pub fn close_streams(&mut self, group: GroupIndex) {
        let open: Vec<SegmentId> =
            self.streams.iter().filter(|((.., at), _)| *at == group).map(|(_, id)| *id).collect();
        open.into_iter().for_each(|id| self.close_segment(id));
    }

    /// Whether records may open a segment on `group`.
    fn may_open(&self, mark: Watermark, group: GroupIndex) -> bool {
        let space = &self.groups[&group];
        // Copies fit where a full-width segment does not: whether they do is seen when one is opened.
        mark == Watermark::Promised || space.free_above(mark).segments > 0
    }

    /// The open segment of another class that has room for a block of `size` bytes, the emptiest: where no segment
    /// can be opened, a wrong class is better than none.
    fn any_stream(&self, kind: SegmentKind, copy: u8, group: GroupIndex, size: u32) -> Option<SegmentId> {
        let wanted = (kind, copy, group);
        let open = self.streams.iter().filter(|((of, _, copy, at), _)| (*of, *copy, *at) == wanted);
        let open = open.filter(|(_, id)| self.has_room(**id, size)).map(|(_, id)| &self.entries[id]);
        open.min_by_key(|entry| (entry.height, entry.segment.id)).map(|entry| entry.segment.id)
    }

    /// Bytes of blocks that a stripe of one column takes behind the last one of a segment.
    fn room_behind(&self, entry: &SegmentEntry) -> u32 {
        let space = &self.groups[&entry.segment.group];
        let room = (space.slot_size - entry.height) / space.step() * space.step();
        room.saturating_sub(stripe_header_len(entry.segment.layout.columns()))
    }

    /// Whether an open segment has room for a block of `size` bytes.
    pub(crate) fn has_room(&self, id: SegmentId, size: u32) -> bool {
        self.room_behind(&self.entries[&id]) >= size
    }

    /// The groups that have a block already at one of these places.
    pub(crate) fn groups_of(&self, beside: &[Place]) -> Vec<GroupIndex> {
        let group = |place: &Place| self.entries.get(&place.segment).map(|entry| entry.segment.group);
        let mut groups: Vec<_> = beside.iter().filter_map(group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// The devices that have a block already at one of these places.
    fn devices_of(&self, beside: &[Place]) -> Vec<DeviceIndex> {
        let mut devices = Vec::new();
        for place in beside {
            if let Some(entry) = self.entries.get(&place.segment)
                && usize::from(place.column) < entry.segment.layout.k()
            {
                devices.extend(entry.segment.devices_of(place.column.into()));
            }
        }
        devices
    }

    /// Gives a stripe of the first blocks a place in the stream of `kind`; a stream of data whose tail is
    /// cheaper as copies is told so by `Ok(None)`, unless it may only `pad`. Blocks that have places already go to
    /// another group, if one has room, and to columns on other devices: all of them have them in the same groups.
    fn place_stripe(
        &mut self,
        stream: Stream,
        beside: &[Option<Places>],
        footprints: &[u32],
    ) -> Result<Option<Placed>> {
        let Stream { kind, mut bin, mark, pad } = stream;
        if mutated(Mutant::CopiesTogether) {
            bin.copy = 0;
        }
        let Some(&first) = footprints.first() else { return Err(PoolError::NoSpace) };
        let used = self.groups_of(slice(&beside[0]));
        let purpose = Purpose { kind, small: bin.small };
        for (group, mark) in self.groups_for(purpose, mark, |group| used.contains(&group)) {
            let Some(tail) = self.tail_of(kind, bin, group, mark, first) else { continue };
            let Tail { segment, offset, room, step, fresh, .. } = tail;
            let (id, layout) = (segment.id, segment.layout);
            let avoids = |block: usize, column: usize| {
                beside[block].as_deref().is_some_and(|beside| {
                    let taken = self.devices_of(beside);
                    segment.devices_of(column).any(|at| taken.contains(&at))
                })
            };
            let Some(plan) = stripe::plan(layout, step, room, STRIPE_TARGET, footprints, avoids) else {
                return Err(PoolError::Invalid("a block does not fit in a slot".into()));
            };
            let replicated = layout.replicated();
            // Where copies take every parity device, those are what gets short; who moves data takes no more of
            // them.
            let wins_space = matches!(mark, Watermark::Clean | Watermark::Accept);
            let pad = pad || wins_space && layout.r() > 1;
            if kind == SegmentKind::Data
                && !pad
                && replicated != layout
                && plan.spots.len() == footprints.len()
            {
                let sum: u32 = footprints.iter().sum();
                let copies = (sum + stripe_header_len(replicated.columns())).next_multiple_of(step);
                let as_copies = u64::from(copies) * replicated.columns() as u64;
                if as_copies < u64::from(plan.height) * layout.columns() as u64 {
                    if fresh.is_some() {
                        // Its descriptors are written with its first stripe, so it must not stay.
                        self.abandon(id);
                    }
                    return Ok(None);
                }
            }
            // Second places go there first.
            self.small_went_elsewhere |= bin.small && bin.copy == 0 && self.groups[&group].has_records();
            let bytes = footprints[..plan.spots.len()].iter().map(|&size| u64::from(size)).sum();
            self.count_live(id, plan.spots.len() as u32, bytes);
            self.grow(id, plan.height);
            if mutated(Mutant::HeightNotTold) {
                self.entries.change(id, |entry| entry.dirty = false);
            }
            return Ok(Some(Placed { segment, offset, plan, fresh }));
        }
        Err(PoolError::NoSpace)
    }

    /// Where the next stripe of a stream goes on a group: behind the last one of its open segment; in a new segment
    /// where that has no room for `size` bytes, or none is open; records behind those of another class where none can
    /// be opened.
    pub(crate) fn tail_of(
        &mut self,
        kind: SegmentKind,
        bin: Bin,
        group: GroupIndex,
        mark: Watermark,
        size: u32,
    ) -> Option<Tail> {
        let class = match kind {
            SegmentKind::Small => heat::COLDEST,
            _ => heat::fold(bin.class, self.groups[&group].total_segments()),
        };
        let (copy, bin) = (bin.copy, Bin { class, ..bin });
        if let Some(&id) = self.streams.get(&(kind, class, copy, group)) {
            let open = self.tail_behind(id, None);
            if open.limit >= size {
                return Some(open);
            }
            self.close_segment(id);
        }
        if self.may_open(mark, group)
            && let Some(record) = self.open_segment(kind, bin, group)
        {
            self.streams.insert((kind, class, copy, group), record.id);
            return Some(self.tail_behind(record.id, Some(record)));
        }
        let is_of_records = matches!(kind, SegmentKind::Data | SegmentKind::Small);
        let any = is_of_records.then(|| self.any_stream(kind, copy, group, size)).flatten()?;
        Some(self.tail_behind(any, None))
    }

    /// The place behind the last stripe of a segment.
    fn tail_behind(&self, id: SegmentId, fresh: Option<SegmentRecord>) -> Tail {
        let entry = &self.entries[&id];
        let space = &self.groups[&entry.segment.group];
        Tail {
            segment: Arc::clone(&entry.segment),
            offset: entry.height,
            room: space.slot_size - entry.height,
            limit: self.room_behind(entry),
            step: space.step(),
            fresh,
        }
    }

    /// A stripe of `height` bytes is behind the last one of an open segment.
    pub(crate) fn grow(&mut self, id: SegmentId, height: u32) {
        let commit = self.open_commit;
        let grown = self.entries.change(id, |entry| {
            entry.height += height;
            entry.filled = commit;
            entry.verified = 0;
        });
        grown.expect("open segments have entries");
    }

    /// Undoes the opening of a segment that got no stripe.
    fn abandon(&mut self, id: SegmentId) {
        self.streams.retain(|_, open| *open != id);
        self.give_slots_back(id);
    }
}

impl Store {
    /// A record's block before it has an id.
    pub fn draft_record(&self, record: &NewRecord) -> Draft {
        let info = BlockInfo {
            kind: BlockKind::Record,
            codec: block::CodecKind::Off,
            checksum: record.checksum,
            framed: false,
            level: 0,
            logical: 0,
            dataset: record.dataset,
            object: record.inode,
            offset: record.offset,
            key_kind: 0,
        };
        match &record.encoded {
            Some((kind, payload)) => {
                let info = BlockInfo { logical: record.plain.len() as u32, ..info };
                draft_of(&self.sums, info, *kind, payload.clone())
            }
            None => draft(&self.sums, info, record.codec, record.plain.clone()),
        }
    }

    /// Stores records, whatever is there already; of each record its draft and its fingerprint, where they are
    /// known. Fingerprints are kept with the blocks.
    pub fn store_new(
        &self,
        records: Vec<NewRecord>,
        drafts: Vec<Option<Draft>>,
        prints: &[Option<Fingerprint>],
        mark: Watermark,
    ) -> Result<Vec<BlockPtr>> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let ids = self.core.lock().take_ids(records.len());
        let (birth, incarnation) = self.stamp_now();
        let unknown: Vec<_> = records
            .iter()
            .zip(&drafts)
            .filter(|(_, draft)| draft.is_none())
            .map(|(record, _)| record)
            .collect();
        let made = self.world.workers.map(unknown.len(), |i| self.draft_record(unknown[i]));
        let mut made = made.into_iter();
        let known = drafts.into_iter().map(|draft| draft.or_else(|| made.next()));
        let drafts: Vec<Draft> =
            known.map(|draft| draft.expect("those that were unknown were made")).collect();
        if drafts.iter().any(|draft| draft.info.framed) {
            // The commit that has the first of them waits for this operation, and its root says so.
            self.core.lock().features.incompatible |= Features::FRAMES;
        }
        let small: Vec<bool> = {
            let core = self.core.lock();
            let is_small = |(draft, record): (&Draft, &NewRecord)| {
                let most = core.small.get(&record.dataset);
                most.is_some_and(|most| draft.payload.len() as u64 <= u64::from(*most))
            };
            drafts.iter().zip(&records).map(is_small).collect()
        };
        let framed = |(i, draft)| frame(&self.sums, &Stamp { id: nth(ids, i), incarnation, birth }, draft);
        let blocks: Vec<Encoded> = drafts.into_iter().enumerate().map(framed).collect();
        let classes = self.classes(records.iter().map(|record| record.replaces), ids);
        let unplaced = |(((block, class), record), small): (((Encoded, u8), &NewRecord), bool)| {
            (Unplaced { bin: Bin { class, copy: 0, small }, beside: None, block }, record.copies)
        };
        let unplaced = blocks.into_iter().zip(classes).zip(&records).zip(small).map(unplaced).collect();
        let places = self.append_copies(unplaced, mark)?;
        let stored =
            places.iter().flat_map(|places| places.iter()).map(|place| u64::from(place.stored)).sum();
        self.stored.fetch_add(stored, Ordering::Relaxed);
        let born: Vec<(BlockId, Places)> =
            places.into_iter().enumerate().map(|(i, places)| (nth(ids, i), places)).collect();
        self.note_born_records(&born, prints);
        let pointers: Vec<BlockPtr> =
            born.iter().map(|&(id, ref places)| BlockPtr { id, place: places[0] }).collect();
        for (ptr, record) in pointers.iter().zip(records) {
            self.cache.keep_record(ptr.id, record.plain);
        }
        Ok(pointers)
    }

    /// Appends framed records, all or none: each from the place that its bin names on, until it has so many. Gives all
    /// places of each, those that it had included.
    pub fn append_copies(&self, mut unplaced: Vec<(Unplaced, u8)>, mark: Watermark) -> Result<Vec<Places>> {
        let most = unplaced.iter().map(|(_, copies)| *copies).max().unwrap_or(0);
        if most > 1 {
            // Before the map has one; the commit that has it waits for this operation.
            self.core.lock().features.incompatible |= Features::COPIES;
        }
        let mut given = Vec::new();
        for copy in 0..most {
            let is_due = |(one, copies): &(Unplaced, u8)| one.bin.copy == copy && copy < *copies;
            let due: Vec<usize> = (0..unplaced.len()).filter(|&i| is_due(&unplaced[i])).collect();
            let now: Vec<Unplaced> = due.iter().map(|&i| unplaced[i].0.clone()).collect();
            let places = self.append_by_class(&now, mark).inspect_err(|_| {
                let mut core = self.core.lock();
                given.iter().for_each(|&place| core.release(place));
            })?;
            for (i, place) in due.into_iter().zip(places) {
                let one = &mut unplaced[i].0;
                one.beside = Some(one.beside.map_or_else(|| only(place), |places| with(&places, place)));
                one.bin.copy += 1;
                given.push(place);
            }
        }
        let all =
            unplaced.into_iter().map(|(one, _)| one.beside.expect("each is asked for at one place at least"));
        Ok(all.collect())
    }

    /// A block was stored and is referred to by its id: the map learns its places.
    pub(crate) fn note_born(&self, id: BlockId, places: Places) {
        if mutated(Mutant::MapNotTold) {
            return;
        }
        if places.len() > 1 {
            // Before the map has them; who frees by hints comes later in the commit.
            self.core.lock().features.incompatible |= Features::COPIES;
        }
        self.map.lock().apply(Update::Put { id, places });
    }

    /// Records were stored: the map learns their places and fingerprints.
    fn note_born_records(&self, born: &[(BlockId, Places)], prints: &[Option<Fingerprint>]) {
        if mutated(Mutant::MapNotTold) {
            return;
        }
        let mut map = self.map.lock();
        for (&(id, places), print) in born.iter().zip(prints) {
            map.apply(Update::Put { id, places });
            if let Some(print) = *print {
                map.apply(Update::Print { id, print });
            }
        }
    }

    /// The commit and the import that blocks written now belong to.
    fn stamp_now(&self) -> (CommitId, Incarnation) {
        let core = self.core.lock();
        (core.open_commit, core.incarnation)
    }

    /// The classes of records that take the places of others, at the time when `now` is the next id.
    fn classes(&self, replaced: impl Iterator<Item = Option<BlockId>>, now: BlockId) -> Vec<u8> {
        let (clock, records) = {
            let core = self.core.lock();
            (Arc::clone(&core.clock), core.entries.records())
        };
        let interval = |old: BlockId| clock.age(old, now);
        replaced.map(|old| old.map_or(heat::COLDEST, |old| heat::class_of(interval(old), records))).collect()
    }

    /// Appends framed records, each to the stream of its bin, all or none; the places come in the order of the
    /// blocks. A stripe has only such as are in the same groups already, or in none: so it goes to another one.
    pub fn append_by_class(&self, wanted: &[Unplaced], mark: Watermark) -> Result<Vec<Place>> {
        let runs: Vec<(Bin, Vec<GroupIndex>)> = {
            let core = self.core.lock();
            let has_others = core.groups.len() > 1;
            let used =
                |one: &Unplaced| if has_others { core.groups_of(slice(&one.beside)) } else { Vec::new() };
            wanted.iter().map(|one| (one.bin, used(one))).collect()
        };
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|&i| &runs[i]);
        let mut places = Vec::with_capacity(wanted.len());
        for same in order.chunk_by(|&a, &b| runs[a] == runs[b]) {
            let (beside, blocks): (Vec<_>, Vec<_>) =
                same.iter().map(|&i| (wanted[i].beside, wanted[i].block.clone())).unzip();
            if let Err(error) = self.append(wanted[same[0]].bin, (&beside, &blocks), mark, &mut places) {
                let mut core = self.core.lock();
                places.into_iter().for_each(|place| core.release(place));
                return Err(error);
            }
        }
        let mut in_order: Vec<(usize, Place)> = order.into_iter().zip(places).collect();
        in_order.sort_unstable_by_key(|&(i, _)| i);
        Ok(in_order.into_iter().map(|(_, place)| place).collect())
    }

    /// Packs records of one bin, with places in the same groups, into stripes and submits them; adds the places in the
    /// order of the blocks.
    fn append(
        &self,
        bin: Bin,
        (beside, blocks): (&[Option<Places>], &[Encoded]),
        mark: Watermark,
        places: &mut Vec<Place>,
    ) -> Result<()> {
        let footprints: Vec<u32> = blocks.iter().map(|block| stripe::footprint(block.len())).collect();
        let (mut kind, mut pad) = (SegmentKind::Data, false);
        let before = places.len();
        while places.len() - before < blocks.len() {
            let next = places.len() - before;
            let stream = Stream { kind, bin, mark, pad };
            let placed = self.core.lock().place_stripe(stream, &beside[next..], &footprints[next..]);
            let placed = match placed {
                Ok(Some(placed)) => placed,
                Ok(None) => {
                    kind = SegmentKind::Small;
                    continue;
                }
                // No room for copies at the very end: a padded stripe takes more, but perhaps fits.
                Err(PoolError::NoSpace) if kind == SegmentKind::Small => {
                    (kind, pad) = (SegmentKind::Data, true);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let taken = &blocks[next..next + placed.plan.spots.len()];
            places.extend(taken.iter().enumerate().map(|(i, block)| {
                stripe::place(&placed.segment, placed.offset, &placed.plan, i, block.len())
            }));
            self.submit_stripe(placed, taken)?;
        }
        Ok(())
    }

    /// Builds a placed stripe and submits it, with its segment's descriptors when it is the first; waits before that
    /// until no more bytes are in flight than the budget has for them. So the next stripes are made while this one is
    /// written.
    pub(crate) fn submit_stripe(&self, placed: Placed, blocks: &[Encoded]) -> Result<()> {
        let stamp = self.stamp_now();
        let Placed { segment, offset, plan, fresh } = placed;
        let columns = stripe::build(&self.sums, &segment, offset, stamp, &plan, blocks);
        // Stripes that nobody takes stay in memory, and the commit is told.
        let _ = self.complete_stripes(self.stripes_allowed());
        let bytes = columns.iter().map(|column| column.len() as u64).sum();
        let stripe = Arc::new(StripeImage { offset, columns });
        point("a stripe has its place and is not submitted");
        segment.submit(Arc::clone(&stripe));
        self.submit(segment, stripe, fresh.as_ref(), bytes);
        Ok(())
    }

    /// Sends the columns of a stripe to whoever is written, with the descriptors of a segment that was opened for it.
    fn submit(
        &self,
        segment: Arc<Segment>,
        stripe: Arc<StripeImage>,
        fresh: Option<&SegmentRecord>,
        bytes: u64,
    ) {
        self.readable.insert(&segment);
        let mut writes = Vec::new();
        for (column, slot) in segment.slots.iter().enumerate() {
            let index = slot.index();
            let descriptor = fresh.map(|record| encode_descriptor(&self.sums, record, column));
            let descriptor = descriptor.map(|bytes| Arc::new(AlignedBuf::padded(&bytes)));
            for member in self.members.writers(slot.device) {
                let parts = [
                    descriptor.as_ref().map(|bytes| (0, bytes)),
                    stripe.columns.get(column).map(|bytes| (stripe.offset, bytes)),
                ];
                for (offset, bytes) in parts.into_iter().flatten() {
                    writes.push(StripeWrite::start(
                        column,
                        Arc::clone(&member),
                        index,
                        offset,
                        Arc::clone(bytes),
                    ));
                }
            }
        }
        point("a stripe is submitted and nobody waits for it");
        let mut queue = self.in_flight.queue.lock();
        queue.0.push_back(InFlight { segment, stripe, writes, bytes });
        queue.1 += bytes;
    }

    /// Waits for the oldest stripes until at most `limit` bytes are in flight.
    pub fn complete_stripes(&self, limit: u64) -> Result<()> {
        if self.in_flight.queue.lock().1 <= limit {
            return Ok(());
        }
        let _completing = self.in_flight.completing.lock();
        loop {
            let submitted = {
                let mut queue = self.in_flight.queue.lock();
                if queue.1 <= limit {
                    break;
                }
                let Some(submitted) = queue.0.pop_front() else { break };
                queue.1 -= submitted.bytes;
                submitted
            };
            self.complete(submitted)?;
        }
        Ok(())
    }

    /// Bytes of stripes that were submitted and not waited for, over all columns.
    pub fn stripes_in_flight(&self) -> u64 {
        self.in_flight.queue.lock().1
    }

    /// Waits for every stripe submitted so far, and not for those that others submit meanwhile: a stream does so as
    /// fast as they land.
    pub fn complete_all_stripes(&self) -> Result<()> {
        // Only who has this takes stripes out, so those submitted so far are the first ones.
        let _completing = self.in_flight.completing.lock();
        let so_far = self.in_flight.queue.lock().0.len();
        for _ in 0..so_far {
            let submitted = {
                let mut queue = self.in_flight.queue.lock();
                let submitted = queue.0.pop_front().expect("nobody else takes stripes out");
                queue.1 -= submitted.bytes;
                submitted
            };
            self.complete(submitted)?;
        }
        Ok(())
    }

    /// Waits for one stripe. When more columns are lost than its layout survives, the stripe goes back into the queue
    /// and the pool is suspended.
    fn complete(&self, mut submitted: InFlight) -> Result<()> {
        point("a stripe is waited for");
        submitted.writes.iter_mut().for_each(StripeWrite::complete);
        self.bring_elsewhere(&submitted.segment, &mut submitted.writes);
        let columns = submitted.segment.slots.iter().map(|slot| self.members.get(slot.device));
        let columns: Vec<_> = columns.collect();
        let lost = |column: usize| submitted.is_lost(column, &columns[column]);
        let some_lost = (0..columns.len()).any(lost);
        let is_log_alone = || !self.is_vital(submitted.segment.group);
        let refused = if !submitted.segment.layout.survives(lost) && !is_log_alone() {
            Err(self.suspend_without(&columns, "more devices refuse writes than the layout survives"))
        } else if some_lost {
            // Where the group as a whole cannot go on, nobody is to lack a stripe for it.
            self.check_tolerance_of(submitted.segment.group)
        } else {
            Ok(())
        };
        if refused.is_err() {
            let mut queue = self.in_flight.queue.lock();
            queue.1 += submitted.bytes;
            queue.0.push_front(submitted);
            return refused;
        }
        // The stripe counts as stored from here on: members that lack their column of it go out of use.
        for member in (0..columns.len()).filter(|&column| lost(column)).map(|column| &columns[column]) {
            if matches!(member.state(), MemberState::Online | MemberState::Faulted) {
                member.note_missed();
                member.fault();
            }
        }
        submitted.segment.complete(&submitted.stripe);
        Ok(())
    }

    /// Moves columns whose slots refused a write elsewhere, and rewrites those that went to a column's old slot.
    fn bring_elsewhere(&self, segment: &Segment, writes: &mut [StripeWrite]) {
        loop {
            let is_refused = |write: &&mut StripeWrite| {
                write.refused.is_some() && write.slot == segment.slots[write.column].index()
            };
            if let Some(write) = writes.iter_mut().find(is_refused)
                && let Some(error) = write.refused.take()
            {
                match self.retire_slot(segment, write.column, write.slot, &write.member, &error) {
                    Retired::Moved => {}
                    // The log's descriptor, which nobody needs who knows the root.
                    Retired::Noted => write.done = true,
                    Retired::Failed => write.member.refuse(&error),
                }
                continue;
            }
            // The copy of a column that is moving may lack this stripe: only when it has moved is it seen.
            let still = (!segment.moves().is_multiple_of(2)).then(|| self.hold_columns());
            let mut again = false;
            for write in writes.iter_mut() {
                let slot = segment.slots[write.column].index();
                if write.slot != slot {
                    if write.within == 0 {
                        let descriptor = encode_descriptor(&self.sums, &segment.as_opened(), write.column);
                        write.data = Arc::new(AlignedBuf::padded(&descriptor));
                    }
                    write.start_again(slot);
                    again = true;
                }
            }
            drop(still);
            if !again {
                return;
            }
            writes.iter_mut().for_each(StripeWrite::complete);
        }
    }

    /// Uses members again that were faulted and are unharmed, and writes all stripes in flight once more. Nobody
    /// submits any meanwhile.
    pub fn write_stripes_again(&self) -> Result<()> {
        {
            let _completing = self.in_flight.completing.lock();
            let mut queue = self.in_flight.queue.lock();
            // Earlier writes are waited for first, so that their failures do not count against the members.
            queue.0.iter_mut().flat_map(|submitted| &mut submitted.writes).for_each(StripeWrite::complete);
            self.members.iter().filter(|member| member.is_unharmed()).for_each(|member| member.use_again());
        }
        // A discard that no flush followed could spoil what is written from here on.
        self.members.flush_all();
        {
            let _completing = self.in_flight.completing.lock();
            let mut queue = self.in_flight.queue.lock();
            for submitted in &mut queue.0 {
                let slots = &submitted.segment.slots;
                submitted.writes.iter_mut().for_each(|write| write.start_again(slots[write.column].index()));
            }
        }
        self.complete_all_stripes()
    }
}

impl Store {
    /// Opens a segment for the log and writes its descriptors; `None` when there are no slots.
    pub fn open_log_segment(&self) -> Result<Option<SegmentId>> {
        let record = {
            let mut groups =
                self.core.lock().groups_for(SegmentKind::Log.into(), Watermark::Promised, |_| false);
            groups.retain(|&(group, _)| self.takes_log(group));
            let bin = Bin { class: 0, copy: 0, small: false };
            let mut core = self.core.lock();
            groups.into_iter().find_map(|(group, _)| core.open_segment(SegmentKind::Log, bin, group))
        };
        let Some(record) = record else { return Ok(None) };
        let segment = Arc::clone(&self.core.lock().entries[&record.id].segment);
        let stripe = Arc::new(StripeImage { offset: 0, columns: Vec::new() });
        self.submit(segment, stripe, Some(&record), 0);
        Ok(Some(record.id))
    }
}

/// The places, if there are any.
fn slice(beside: &Option<Places>) -> &[Place] {
    beside.as_deref().unwrap_or_default()
}

/// This place alone.
pub(crate) fn only(place: Place) -> Places {
    Places::new(&[place]).expect("places that were just given out are in range")
}

/// One place more.
pub(crate) fn with(places: &Places, further: Place) -> Places {
    let all: Vec<Place> = places.iter().copied().chain([further]).collect();
    Places::new(&all).expect("places that were just given out are in range, and no more than there can be")
}

/// The `i`-th of consecutive ids.
fn nth(first: BlockId, i: usize) -> BlockId {
    BlockId::new(first.get() + i as u64)
}
