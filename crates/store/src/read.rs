//! The way up: a block from the device that has it, else from a replica, else rebuilt from parity.

use crate::cache::Record;
use crate::cluster::{self, Reach, Wanted};
use crate::decode::{decode_node, is_of_history, plain_of, stored};
use crate::error::{PoolError, Result};
use crate::hedge::HedgedRead;
use crate::segments::{Segment, SegmentEntry};
use crate::store::Store;
use bytes::Bytes;
use larder_cache::Kind;
use larder_device::{ALIGN, DeviceError, Outcome, Pending};
use larder_format::block::{self, BlockKind, CheckedHeader};
use larder_format::node::{NODE_MAX, Node};
use larder_format::segment::SegmentRecord;
use larder_format::{BlockId, BlockPtr, Corrupt, DeviceIndex, DeviceOffset, Place, Reason};
use larder_mutants::{Mutant, mutated};
use larder_sorted::tree::NodeStore;
use larder_sync::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Nodes that are read together for a change: so few that a reader behind them does not wait for long.
const TOGETHER: usize = 32;
/// Attempts at reading a node of the tables.
const TABLE_TRIES: usize = 3;

/// Reads of blocks that are under way. Their segments stay pinned until their bytes were taken.
pub struct Fetch(Vec<Span>);

/// Stored bytes of a block, not verified.
pub struct Fetched {
    /// The block.
    pub id: BlockId,
    /// The block whose name they should bear: another where this is an alias.
    pub stored_as: BlockId,
    /// As they came.
    pub bytes: Bytes,
}

/// One read, of one block or of neighbours.
struct Span {
    wanted: Vec<Wanted>,
    whole: Place,
    pending: Pending<Outcome>,
    /// Where in the answer they begin.
    from: usize,
}

impl Store {
    /// All segments, as the tables or the root will have them.
    pub fn segments(&self) -> Vec<SegmentRecord> {
        self.core.lock().entries.values().map(SegmentEntry::to_record).collect()
    }

    /// Where a block is: as its hint says unless it was moved.
    ///
    /// # Errors
    /// When the block map cannot be read.
    pub fn place_of(&self, ptr: BlockPtr) -> Result<Place> {
        if self.core.lock().hint_is_stale(ptr.place.segment) {
            return Ok(self.places_of(ptr.id)?.first().copied().unwrap_or(ptr.place));
        }
        Ok(ptr.place)
    }

    /// The plain content of a record, from the cache or the devices.
    ///
    /// # Errors
    /// [`PoolError::Unreadable`] when no copy can be read and nothing can be rebuilt.
    pub fn read(&self, ptr: BlockPtr) -> Result<Record> {
        if let Some(record) = self.cache.record(ptr.id) {
            return Ok(record);
        }
        self.read_whole(ptr)
    }

    /// The plain content of a record that the cache lacks, from now on in the cache.
    pub fn read_whole(&self, ptr: BlockPtr) -> Result<Record> {
        let (_, record) = self.read_missed(ptr, BlockKind::Record)?;
        self.cache.keep_record(ptr.id, record.clone());
        Ok(record)
    }

    /// Brings records into the cache that are not there, all at once. What fails is left to [`Store::read`].
    pub fn prefetch(&self, ptrs: &[BlockPtr]) {
        let missing = ptrs.iter().filter(|ptr| !self.cache.record_ahead(ptr.id));
        let found = if self.read_cache.is_there() {
            self.fetch_with_copies(missing.copied().collect())
        } else {
            self.fetch_plain(missing.copied())
        };
        for (id, plain) in found {
            self.cache.keep_record(id, plain);
        }
    }

    /// The plain content of records from copies, or from where they lie: all at once.
    fn fetch_with_copies(&self, ptrs: Vec<BlockPtr>) -> Vec<(BlockId, Record)> {
        let (mut copies, mut others) = (Vec::new(), Vec::new());
        for ptr in ptrs {
            match self.read_cache.find(ptr.id).and_then(|copy| self.start_copy(copy)) {
                Some(read) => copies.push((read, ptr)),
                None => others.push(ptr),
            }
        }
        let fetch = self.start_fetch(others.into_iter());
        let plain = |header: &CheckedHeader, bytes: &Bytes| plain_of(header, bytes, BlockKind::Record).ok();
        let mut missed: BTreeMap<BlockId, BlockPtr> = copies.iter().map(|(_, ptr)| (ptr.id, *ptr)).collect();
        let whence = self.fetched(fetch);
        let arrived = self.copies_arrived(copies.into_iter().map(|(read, _)| read).collect());
        let arrived: Vec<_> = arrived.into_iter().map(|one| Mutex::new(Some(one))).collect();
        let mut found = self.world.workers.map(arrived.len(), |i| {
            let (copy, outcome) = arrived[i].lock().take()?;
            let (header, bytes) = self.take_copy(&copy, outcome, Kind::Demand)?;
            Some((copy.id, plain(&header, &bytes)?))
        });
        for (id, _) in found.iter().flatten() {
            missed.remove(id);
        }
        // Those that were not what they should be, or late.
        let again = self.fetch(missed.into_values());
        let now = self.world.clock.monotonic();
        for arrived in [whence, again] {
            found.extend(self.world.workers.map(arrived.len(), |i| {
                let Fetched { id, stored_as, bytes } = &arrived[i];
                let header = self.prove(*stored_as, bytes)?;
                self.read_cache.missed(&header, bytes, Kind::Demand, now);
                Some((*id, plain(&header, bytes)?))
            }));
        }
        found.into_iter().flatten().collect()
    }

    /// The plain content of records as the groups have it, where it matters that they do: copies count for nothing.
    /// Those that cannot be read are left out.
    pub fn read_from_groups(&self, ptrs: &[BlockPtr]) -> HashMap<BlockId, Record> {
        if !self.read_cache.is_there() {
            self.prefetch(ptrs);
            let read = |ptr: &BlockPtr| Some((ptr.id, self.read(*ptr).ok()?));
            return ptrs.iter().filter_map(read).collect();
        }
        let mut found: HashMap<BlockId, Record> =
            self.fetch_plain(ptrs.iter().copied()).into_iter().collect();
        for ptr in ptrs {
            if let Entry::Vacant(vacant) = found.entry(ptr.id)
                && let Ok((_, plain)) = self.read_plain(*ptr, BlockKind::Record)
            {
                vacant.insert(plain);
            }
        }
        found
    }

    /// The plain content of records that are about to be replaced, all at once and past the cache, where they would
    /// only be in the way. What fails is left out, and to [`Store::read`].
    pub fn read_all(&self, ptrs: &[BlockPtr]) -> HashMap<BlockId, Record> {
        let cached = |ptr: &BlockPtr| self.cache.record(ptr.id).map(|plain| (ptr.id, plain));
        let mut found: HashMap<BlockId, Record> = ptrs.iter().filter_map(cached).collect();
        let missing = ptrs.iter().filter(|ptr| !found.contains_key(&ptr.id)).copied();
        let read = self.fetch_plain(missing);
        found.extend(read);
        found
    }

    /// The plain content of records as the devices have it, whatever is cached: their reads are in flight together,
    /// their checksums and codecs run on all workers. What fails, or is on its way to a device, is left out.
    pub fn fetch_plain(&self, ptrs: impl Iterator<Item = BlockPtr>) -> Vec<(BlockId, Record)> {
        if mutated(Mutant::CopyCounted) {
            return self.fetch_with_copies(ptrs.collect());
        }
        let arrived = self.fetch(ptrs);
        let plain = |i: usize| {
            let Fetched { id, stored_as, bytes } = &arrived[i];
            let header = self.prove(*stored_as, bytes)?;
            Some((*id, plain_of(&header, bytes, BlockKind::Record).ok()?))
        };
        self.world.workers.map(arrived.len(), plain).into_iter().flatten().collect()
    }

    /// Stored bytes of blocks, not verified: all reads are in flight together, in the order of places and
    /// neighbours by one. What cannot be had this way is left out.
    pub fn fetch(&self, ptrs: impl Iterator<Item = BlockPtr>) -> Vec<Fetched> {
        self.fetched(self.start_fetch(ptrs))
    }

    /// The same for who has something else to do until they are here: sends the reads.
    pub fn start_fetch(&self, ptrs: impl Iterator<Item = BlockPtr>) -> Fetch {
        self.start_fetch_within(ptrs, Reach::NEAR)
    }

    fn start_fetch_within(&self, ptrs: impl Iterator<Item = BlockPtr>, reach: Reach) -> Fetch {
        let start = |ptr: BlockPtr| {
            let (segment, BlockPtr { id: stored_as, place }) = self.locate(ptr).ok()?;
            let layout = segment.layout;
            if usize::from(place.column) >= layout.k() {
                return None;
            }
            // Blocks that only slow devices have are left to single reads, which go round them.
            let replica = self.prompt_replica(&segment, place.column.into(), ptr.id.get() as usize)?;
            if segment.is_in_flight(replica, place.offset, place.stored as usize) {
                return None;
            }
            Some(Wanted { id: ptr.id, stored_as, segment, replica, place })
        };
        let spans = cluster::gather(ptrs.filter_map(start).collect(), reach);
        let start = |wanted: Vec<Wanted>| {
            let (first, whole) = (&wanted[0], cluster::span(&wanted));
            let (pending, from) = self.start_read(&first.segment, first.replica, whole)?;
            Some(Span { wanted, whole, pending, from })
        };
        Fetch(spans.into_iter().filter_map(start).collect())
    }

    /// Waits for reads that were sent.
    pub fn fetched(&self, fetch: Fetch) -> Vec<Fetched> {
        let mut arrived = Vec::new();
        for Span { wanted, whole, pending, from } in fetch.0 {
            let member = self.members.get(wanted[0].segment.slots[wanted[0].replica].device);
            let Ok(bytes) = member.wait_in_bulk(pending) else { continue };
            if let [one] = wanted.as_slice() {
                let Wanted { id, stored_as, place, .. } = *one;
                arrived.push(Fetched { id, stored_as, bytes: stored(bytes, from, place) });
                continue;
            }
            for Wanted { id, stored_as, place, .. } in wanted {
                let at = from + (place.offset - whole.offset) as usize;
                let bytes = Bytes::copy_from_slice(&bytes[at..at + place.stored as usize]);
                arrived.push(Fetched { id, stored_as, bytes });
            }
        }
        arrived
    }

    /// The plain content of a record that the cache lacks and of which a copy is to be made, from now on in the cache.
    pub(crate) fn read_admitted(&self, ptr: BlockPtr) -> Result<Record> {
        let (header, bytes) = self.read_any_place(ptr)?;
        self.read_cache.admitted(&header, &bytes);
        let plain = plain_of(&header, &bytes, BlockKind::Record)?;
        self.cache.keep_record(ptr.id, plain.clone());
        Ok(plain)
    }

    /// A block's header and plain content, from a copy or with whatever is worth keeping around it put into the cache.
    fn read_missed(&self, ptr: BlockPtr, kind: BlockKind) -> Result<(CheckedHeader, Bytes)> {
        let why = if kind == BlockKind::Record { Kind::Demand } else { Kind::Metadata };
        let (header, bytes) = self.read_where_it_is(ptr, |segment, ptr| {
            self.read_by_copy(ptr.id, why, || {
                self.read_cluster(segment, ptr).map_or_else(|| self.read_stored(segment, ptr), Ok)
            })
        })?;
        let plain = plain_of(&header, &bytes, kind)?;
        Ok((header, plain))
    }

    /// A block's header and stored bytes from a copy; else from its place, and a copy may be made.
    fn read_by_copy(
        &self,
        id: BlockId,
        why: Kind,
        from_place: impl FnOnce() -> Result<(CheckedHeader, Bytes)>,
    ) -> Result<(CheckedHeader, Bytes)> {
        if let Some(copy) = self.read_copy(id, why) {
            return Ok(copy);
        }
        let (header, bytes) = from_place()?;
        self.read_cache.missed(&header, &bytes, why, self.world.clock.monotonic());
        Ok((header, bytes))
    }

    /// A block's header and plain content, past the cache.
    pub fn read_plain(&self, ptr: BlockPtr, kind: BlockKind) -> Result<(CheckedHeader, Bytes)> {
        let (header, bytes) = self.read_any_place(ptr)?;
        let plain = plain_of(&header, &bytes, kind)?;
        Ok((header, plain))
    }

    /// The plain content of a page of a run. The block map knows no such blocks, and may be held: it is not asked.
    pub(crate) fn read_page(&self, ptr: BlockPtr) -> Result<Bytes> {
        let gone = || PoolError::Unreadable { id: ptr.id, cause: "its segment is not in the table".into() };
        let segment = self.readable.get(ptr.place.segment).ok_or_else(gone)?;
        let (header, bytes) =
            self.read_by_copy(ptr.id, Kind::Metadata, || self.read_stored(&segment, ptr))?;
        plain_of(&header, &bytes, BlockKind::Run)
    }

    /// Reads a block by its hint, else where the block map has it. A hint may name a segment that was emptied and
    /// waits for the commit that frees it: nobody resilvers that, so it can be unreadable while the block is not.
    fn read_where_it_is<T>(
        &self,
        ptr: BlockPtr,
        read: impl Fn(&Arc<Segment>, BlockPtr) -> Result<T>,
    ) -> Result<T> {
        let (segment, found) = self.locate(ptr)?;
        let failed = match read(&segment, found) {
            Err(failed @ PoolError::Unreadable { .. }) => failed,
            read => return read,
        };
        // Where the map cannot be read either, the first error is told, not this one.
        let (id, known) = self.content_of(ptr.id).unwrap_or((ptr.id, Vec::new()));
        for &place in known.iter().filter(|&&other| other != found.place) {
            let Some(other) = self.readable.get(place.segment) else { continue };
            match read(&other, BlockPtr { id, place }) {
                Err(PoolError::Unreadable { .. }) => {}
                read => {
                    // A place on a device that is out comes back with it.
                    let is_wrong = || {
                        segment
                            .devices_of(found.place.column.into())
                            .any(|device| self.members.get(device).is_online())
                    };
                    if read.is_ok() && known.contains(&found.place) && is_wrong() {
                        self.suspects.note(segment.id, found.place.offset, 0);
                    }
                    return read;
                }
            }
        }
        Err(failed)
    }

    /// The stored bytes of a block from whichever of its places has them, that of `ptr` first.
    pub fn read_any_place(&self, ptr: BlockPtr) -> Result<(CheckedHeader, Bytes)> {
        self.read_where_it_is(ptr, |segment, ptr| self.read_stored(segment, ptr))
    }

    /// The stored bytes of a block from this place alone.
    ///
    /// # Errors
    /// [`PoolError::Unreadable`] when it cannot be read there.
    pub fn read_at(&self, ptr: BlockPtr) -> Result<(CheckedHeader, Bytes)> {
        let gone = || PoolError::Unreadable { id: ptr.id, cause: "its segment is not in the table".into() };
        self.read_stored(&*self.readable.get(ptr.place.segment).ok_or_else(gone)?, ptr)
    }

    /// The segment a block is in, pinned, and its place: the hint while its segment is alive, else what
    /// the block map says; of an alias with the id of the block that has its content.
    pub fn locate(&self, ptr: BlockPtr) -> Result<(Arc<Segment>, BlockPtr)> {
        if let Some(segment) = self.readable.get(ptr.place.segment) {
            return Ok((segment, ptr));
        }
        let unreadable = |cause: &str| PoolError::Unreadable { id: ptr.id, cause: cause.into() };
        let (id, places) = self.content_of(ptr.id)?;
        if places.is_empty() {
            return Err(unreadable("the block map does not know it"));
        }
        let segment = |place: Place| Some((self.readable.get(place.segment)?, BlockPtr { id, place }));
        let found = places.into_iter().find_map(segment);
        found.ok_or_else(|| unreadable("its segment is not in the table"))
    }

    /// The header of block `id`, when `bytes` are that block, whole and undamaged, as this pool wrote it. Whoever
    /// took the pool apart has two that give out the same ids: what the other one wrote is told by its import.
    pub fn prove(&self, id: BlockId, bytes: &[u8]) -> Option<CheckedHeader> {
        let header = match block::check(&self.sums, id, bytes) {
            Ok((header, _)) => header,
            Err(_) if mutated(Mutant::UncheckedPayload) => CheckedHeader::check(&self.sums, bytes).ok()?,
            Err(_) => return None,
        };
        let stored = u32::try_from(bytes.len()).ok()?;
        self.is_ours(&header, stored).then_some(header)
    }

    /// Whether a verified header is that of a block of `stored` bytes that this pool wrote.
    pub fn is_ours(&self, header: &CheckedHeader, stored: u32) -> bool {
        header.stored() == stored && is_of_history(&self.history.lock(), header.birth, header.incarnation)
    }

    /// Blocks with their headers, as they are stored, verified: those whose reads gave them.
    pub fn proved(&self, fetch: Fetch) -> HashMap<BlockId, (CheckedHeader, Bytes)> {
        let arrived = self.fetched(fetch);
        let proved =
            self.world.workers.map(arrived.len(), |i| self.prove(arrived[i].stored_as, &arrived[i].bytes));
        let whole = arrived.into_iter().zip(proved);
        whole.filter_map(|(one, header)| Some((one.id, (header?, one.bytes)))).collect()
    }

    /// The same of all that can be read, wherever; the others are left out.
    pub fn read_all_stored(&self, ptrs: &[BlockPtr]) -> HashMap<BlockId, (CheckedHeader, Bytes)> {
        let mut read = self.proved(self.start_fetch(ptrs.iter().copied()));
        for ptr in ptrs {
            if let Entry::Vacant(vacant) = read.entry(ptr.id)
                && let Ok(found) = self.read_any_place(*ptr)
            {
                vacant.insert(found);
            }
        }
        read
    }

    /// A block's header and stored bytes, verified, from whatever can give them.
    pub fn read_stored(&self, segment: &Segment, ptr: BlockPtr) -> Result<(CheckedHeader, Bytes)> {
        let layout = segment.layout;
        let place = ptr.place;
        let column = usize::from(place.column);
        let slot_size = self.members.get(segment.slots[0].device).slot_size;
        if column >= layout.k() || u64::from(place.offset) + u64::from(place.stored) > u64::from(slot_size) {
            return Err(Corrupt::new("place", Reason::Range).into());
        }
        let verify = |bytes: Bytes| self.prove(ptr.id, &bytes).map(|header| (header, bytes));
        let in_flight = segment.peek(layout.replica(column, 0), place.offset, place.stored as usize);
        if let Some(found) = in_flight.map(Bytes::from).and_then(verify) {
            return Ok(found);
        }
        let mut hedged = HedgedRead::new(self, segment, place);
        if let Some(replica) = self.prompt_replica(segment, column, ptr.id.get() as usize) {
            hedged = match self.read_soon(segment, replica, place) {
                Some(Soon::Here(bytes)) => {
                    if let Some(found) = verify(bytes) {
                        return Ok(found);
                    }
                    hedged.with_wrong(replica)
                }
                Some(Soon::Late(pending, from)) => hedged.with_late(replica, pending, from),
                None => hedged.without(replica),
            };
        }
        let owner = |(header, _): &(CheckedHeader, Bytes)| {
            (header.info.kind == BlockKind::Record).then_some((header.info.dataset, header.info.object))
        };
        hedged.run(verify, owner).map_err(|lost| {
            let causes = ["no copy matches its checksum", "too many devices are unavailable"];
            PoolError::Unreadable { id: ptr.id, cause: causes[usize::from(lost.short)].into() }
        })
    }

    /// The replica of data column `column` to read first: of those on devices that are prompt, from number `turn` on.
    pub fn prompt_replica(&self, segment: &Segment, column: usize, turn: usize) -> Option<usize> {
        let layout = segment.layout;
        let mut replicas = (0..layout.r()).map(|j| layout.replica(column, (turn + j) % layout.r()));
        replicas.find(|&replica| self.is_prompt(segment, replica))
    }

    /// The range of `place` from one column; `None` when its device does not give it, or would be late.
    pub fn read_promptly(&self, segment: &Segment, column: usize, place: Place) -> Option<Bytes> {
        match self.read_soon(segment, column, place)? {
            Soon::Here(bytes) => Some(bytes),
            Soon::Late(..) => None,
        }
    }

    /// Reads the range of `place` from one column until it is late; until it is overdue, where there is no other way.
    fn read_soon(&self, segment: &Segment, column: usize, place: Place) -> Option<Soon> {
        let member = self.members.get(segment.slots[column].device);
        let elsewhere = segment.layout.r() > 1 || segment.layout.m() > 0;
        let limit = if elsewhere { member.latency.late() } else { member.patience() };
        let read = self.read_within(segment, column, place, limit);
        if let Some(Soon::Late(..)) = read {
            member.latency.spend();
        }
        read
    }

    /// Reads the range of `place` from one column, in this thread where the device allows that. `None` when the device
    /// does not give it.
    fn read_within(&self, segment: &Segment, column: usize, place: Place, limit: Duration) -> Option<Soon> {
        let (device, offset, len, from) = self.span_of(segment, column, place)?;
        let member = self.members.get(device);
        match member.read_now(offset, len, limit)? {
            Ok(Ok(bytes)) => Some(Soon::Here(stored(bytes, from, place))),
            Ok(Err(_)) => {
                member.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                // A sector that is written anew may be read again.
                self.suspects.note(segment.id, place.offset, 0);
                None
            }
            Err(late) => {
                late.note_late();
                Some(Soon::Late(late, from))
            }
        }
    }

    /// The range of `place` from one column, for who reconstructs the stripe and has time, or why the device does not
    /// give it; `None` when it is not online.
    pub fn read_part(
        &self,
        segment: &Segment,
        column: usize,
        place: Place,
    ) -> Option<Result<Bytes, DeviceError>> {
        let (device, offset, len, from) = self.span_of(segment, column, place)?;
        let member = self.members.get(device);
        let read = member.wait(member.read(offset, len)?);
        if read.is_err() {
            member.counters.read_errors.fetch_add(1, Ordering::Relaxed);
        }
        Some(read.map(|bytes| stored(bytes, from, place)))
    }

    /// Starts reading the range of `place` from one column; says where in the buffer it will begin.
    pub fn start_read(
        &self,
        segment: &Segment,
        column: usize,
        place: Place,
    ) -> Option<(Pending<Outcome>, usize)> {
        let (device, offset, len, from) = self.span_of(segment, column, place)?;
        Some((self.members.get(device).read(offset, len)?, from))
    }

    /// Device and request for the range of `place` from one column, and where in the answer that
    /// will begin; `None` beyond the slot's end.
    fn span_of(
        &self,
        segment: &Segment,
        column: usize,
        place: Place,
    ) -> Option<(DeviceIndex, DeviceOffset, usize, usize)> {
        let slot = segment.slots[column].get();
        let member = self.members.get(slot.device);
        let start = place.offset as usize / ALIGN * ALIGN;
        let end = (place.offset as usize + place.stored as usize).next_multiple_of(ALIGN);
        if end > member.slot_size as usize {
            return None;
        }
        let offset = member.slot_offset(slot.index, start as u32);
        Some((slot.device, offset, end - start, place.offset as usize - start))
    }

    /// The range of `place`, from a replica or computed, whichever `accept` takes; else from the first
    /// replica that is there. Empty when nothing gives it.
    pub fn read_range(&self, segment: &Segment, place: Place, accept: impl Fn(&[u8]) -> bool) -> Bytes {
        let hedged = HedgedRead::new(self, segment, place);
        let found = hedged.run(|bytes| accept(&bytes).then_some(bytes), |_| None);
        found.or_else(|lost| lost.first.ok_or(())).unwrap_or_default()
    }

    /// Nodes from the devices, from now on in the cache: in few large reads, all in flight together. Those that do not
    /// arrive, or arrive damaged, are left out.
    fn fetch_nodes(
        &self,
        ptrs: impl Iterator<Item = BlockPtr>,
        kind: BlockKind,
    ) -> HashMap<BlockId, Arc<Node>> {
        let arrived = self.fetched(self.start_fetch_within(ptrs, Reach::FAR));
        let decoded = self.world.workers.map(arrived.len(), |i| {
            let Fetched { id, stored_as, bytes } = &arrived[i];
            let header = self.prove(*stored_as, bytes)?;
            let plain = plain_of(&header, bytes, kind).ok()?;
            Some((*id, decode_node(&header, &plain).ok()?))
        });
        let nodes: HashMap<_, _> = decoded.into_iter().flatten().collect();
        nodes.iter().for_each(|(id, node)| self.cache.keep_node(*id, node));
        nodes
    }

    /// A node, from the cache or the devices.
    pub fn load_node(&self, ptr: BlockPtr, kind: BlockKind) -> Result<Arc<Node>> {
        if let Some(node) = self.cache.node(ptr.id) {
            return Ok(node);
        }
        let (header, plain) = self.read_missed(ptr, kind)?;
        let node = decode_node(&header, &plain)?;
        self.cache.keep_node(ptr.id, &node);
        Ok(node)
    }
}

/// Result of a read of a column before it is late.
enum Soon {
    Here(Bytes),
    /// It is still in flight; the range will begin there in what it brings.
    Late(Pending<Outcome>, usize),
}

/// Nodes of a dataset's tree.
pub struct DatasetNodes<'a>(pub &'a Store);

impl NodeStore for DatasetNodes<'_> {
    type Error = PoolError;
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>> {
        self.0.load_node(ptr, BlockKind::Node)
    }
}

/// Nodes that a change of a tree needs, read before the tree is held, and kept for it whatever the cache does.
#[derive(Default)]
pub struct KeptNodes {
    /// Those that could not be read, too.
    nodes: RefCell<HashMap<BlockId, Result<Arc<Node>>>>,
    /// Some are neither here nor in the cache.
    lacks: Cell<bool>,
}

impl KeptNodes {
    /// Whether, since it was asked last, one was asked for that is not in memory.
    pub fn take_lacks(&self) -> bool {
        self.lacks.take()
    }

    fn kept(&self, ptr: BlockPtr) -> Option<Result<Arc<Node>>> {
        let nodes = self.nodes.borrow();
        if nodes.is_empty() { None } else { nodes.get(&ptr.id).cloned() }
    }
}

/// Nodes of a dataset's tree, for whoever looks into it.
#[derive(Clone, Copy)]
pub enum LookNodes<'a> {
    /// They are read from the devices where the cache lacks them.
    Read(&'a Store),
    /// The same, and they are kept.
    Keep(&'a Store, &'a KeptNodes),
    /// In memory: the tree is held. What is not there is no answer.
    AtHand(&'a Store, &'a KeptNodes),
    /// The tree is being changed: all that was asked for before is in memory, and half a change is worse than a wait.
    Change(&'a Store, &'a KeptNodes),
}

impl LookNodes<'_> {
    /// Whether they are read where they are not in memory, with nobody waiting.
    pub fn reads(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Keep(..))
    }

    /// Whether some were asked for that are not in memory: what was found is not what is there.
    pub fn lacks(&self) -> bool {
        matches!(self, Self::AtHand(_, kept) if kept.lacks.get())
    }

    /// Reads those that are not in memory, all at once, as far as the cache can be expected to keep them; what fails is
    /// left to who needs it.
    pub fn bring(&self, ptrs: &[BlockPtr]) {
        let (Self::Read(store) | Self::Keep(store, _)) = self else { return };
        let most = store.cache.stats().node_limit / 4 / NODE_MAX as u64;
        let missing = ptrs.iter().copied().filter(|ptr| store.cache.lacks_node(ptr.id));
        let missing: Vec<_> = missing.take(most as usize).collect();
        for some in missing.chunks(TOGETHER).filter(|_| missing.len() > 1) {
            let fetched = store.fetch_nodes(some.iter().copied(), BlockKind::Node);
            if let Self::Keep(_, kept) = self {
                kept.nodes.borrow_mut().extend(fetched.into_iter().map(|(id, node)| (id, Ok(node))));
            }
        }
    }
}

impl NodeStore for LookNodes<'_> {
    type Error = PoolError;
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>> {
        let (store, kept) = match *self {
            Self::Read(store) => return store.load_node(ptr, BlockKind::Node),
            Self::Keep(store, kept) | Self::AtHand(store, kept) | Self::Change(store, kept) => (store, kept),
        };
        if let Some(found) = kept.kept(ptr) {
            return found;
        }
        if matches!(self, Self::AtHand(..)) {
            return store.cache.node(ptr.id).ok_or_else(|| {
                kept.lacks.set(true);
                PoolError::NotAtHand
            });
        }
        let found = store.load_node(ptr, BlockKind::Node);
        if matches!(self, Self::Keep(..)) {
            kept.nodes.borrow_mut().insert(ptr.id, found.clone());
        }
        found
    }
    fn load_beside(&self, ptr: BlockPtr) -> Option<Arc<Node>> {
        match self {
            Self::Read(_) | Self::Keep(..) => self.load(ptr).ok(),
            Self::AtHand(store, kept) | Self::Change(store, kept) => {
                kept.kept(ptr).and_then(Result::ok).or_else(|| store.cache.peek_node(ptr.id))
            }
        }
    }
}

/// Nodes of a dataset's tree past the cache: what is there is used, and those above the leaves are kept.
pub struct PassingNodes<'a>(pub &'a Store);

impl NodeStore for PassingNodes<'_> {
    type Error = PoolError;
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>> {
        if let Some(node) = self.0.cache.peek_node(ptr.id) {
            return Ok(node);
        }
        let (header, plain) = self.0.read_plain(ptr, BlockKind::Node)?;
        let node = decode_node(&header, &plain)?;
        if node.level() > 0 {
            self.0.cache.keep_node(ptr.id, &node);
        }
        Ok(node)
    }
}

/// Nodes of the pool's tables.
pub struct TableNodes<'a>(pub &'a Store);

impl TableNodes<'_> {
    /// Brings those that are not in memory there, all at once; what fails is left to who needs it.
    pub fn bring(&self, ptrs: &[BlockPtr]) -> HashSet<BlockId> {
        let (missing, mut there): (Vec<_>, Vec<_>) =
            ptrs.iter().copied().partition(|ptr| self.0.cache.lacks_node(ptr.id));
        let fetched = self.0.fetch_nodes(missing.iter().copied(), BlockKind::Table);
        there.extend(missing.into_iter().filter(|ptr| fetched.contains_key(&ptr.id)));
        there.into_iter().map(|ptr| ptr.id).collect()
    }
}

impl NodeStore for TableNodes<'_> {
    type Error = PoolError;
    /// No commit can do without the tables, so an error that goes away is not told.
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>> {
        let mut loaded = self.0.load_node(ptr, BlockKind::Table);
        for _ in 1..TABLE_TRIES {
            if !matches!(loaded, Err(PoolError::Unreadable { .. })) {
                break;
            }
            loaded = self.0.load_node(ptr, BlockKind::Table);
        }
        loaded
    }
    fn load_all(&self, ptrs: &[BlockPtr]) -> Vec<Result<Arc<Node>>> {
        let cached: Vec<_> = ptrs.iter().map(|ptr| self.0.cache.node(ptr.id)).collect();
        let missing = ptrs.iter().zip(&cached).filter(|(_, cached)| cached.is_none()).map(|(ptr, _)| *ptr);
        let mut fetched = self.0.fetch_nodes(missing, BlockKind::Table);
        let node = |(cached, ptr): (Option<Arc<Node>>, &BlockPtr)| {
            cached.or_else(|| fetched.remove(&ptr.id)).map_or_else(|| self.load(*ptr), Ok)
        };
        cached.into_iter().zip(ptrs).map(node).collect()
    }
}
