//! The way up: a block from the device that has it, else from a replica, else rebuilt from parity.

use crate::around::{self, Wanted};
use crate::cache::Record;
use crate::codec;
use crate::core::Core;
use crate::error::{PoolError, Result};
use crate::parity;
use crate::planted::{Bug, planted};
use crate::pool::Pool;
use crate::segments::Segment;
use crate::tree::NodeStore;
use bytes::Bytes;
use larder_device::{ALIGN, AlignedBuf, Outcome, Pending};
use larder_format::block::{self, BLOCK_OVERHEAD, BlockKind, CheckedHeader, CodecKind};
use larder_format::node::Node;
use larder_format::segment::Layout;
use larder_format::{BlockId, BlockPtr, Corrupt, DeviceIndex, DeviceOffset, Place, Reason};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// The most plain bytes that a block can hold; headers that claim more are refused.
const MAX_LOGICAL: usize = 16 << 20;

/// The node that a verified block holds.
pub(crate) fn decode_node(header: &CheckedHeader, plain: &[u8]) -> Result<Arc<Node>> {
    let node = Node::decode(plain)?;
    if node.level() != header.info.level {
        return Err(Corrupt::new("tree node", Reason::Identity).into());
    }
    Ok(Arc::new(node))
}

/// From this many bytes on a block stays in the buffer that it was read into, which is at most a quarter
/// larger; smaller ones are copied out of it.
const SHARE_FROM: usize = 48 << 10;

/// The stored bytes of `place`, which begin at `from` of what was read.
fn stored(bytes: AlignedBuf, from: usize, place: Place) -> Bytes {
    let range = from..from + place.stored as usize;
    if range.len() < SHARE_FROM {
        Bytes::copy_from_slice(&bytes[range])
    } else {
        Bytes::from_owner(bytes).slice(range)
    }
}

/// The plain content of a verified block that must be of `kind`.
pub(crate) fn plain_of(header: &CheckedHeader, bytes: &Bytes, kind: BlockKind) -> Result<Bytes> {
    let wrong = |reason| PoolError::Corrupt(Corrupt::new("block", reason));
    if header.info.kind != kind {
        return Err(wrong(Reason::Identity));
    }
    let logical = header.info.logical as usize;
    if logical > MAX_LOGICAL {
        return Err(wrong(Reason::Range));
    }
    let payload = bytes.slice(BLOCK_OVERHEAD as usize..);
    if header.info.codec == CodecKind::Off && payload.len() == logical {
        return Ok(payload);
    }
    Ok(codec::decompress(header.info.codec, &payload, logical)?.into())
}

/// Columns that a rebuild mistrusts at once: more than parity can replace is of no use.
const MAX_SUSPECTS: usize = 3;

/// Shows `attempt` every choice of columns in which `suspects` of those from `from` on are not taken as
/// they first were: another version, or none. The first success is returned.
fn vary<'v, T>(
    versions: &'v [Vec<Bytes>],
    present: &mut Vec<Option<&'v [u8]>>,
    from: usize,
    suspects: usize,
    attempt: &mut impl FnMut(&[Option<&'v [u8]>]) -> Option<T>,
) -> Option<T> {
    if suspects == 0 {
        return attempt(present);
    }
    for column in from..versions.len() {
        let Some((first, others)) = versions[column].split_first() else { continue };
        for other in others.iter().map(|bytes| Some(bytes.as_ref())).chain([None]) {
            present[column] = other;
            if let Some(found) = vary(versions, present, column + 1, suspects - 1, attempt) {
                return Some(found);
            }
        }
        present[column] = Some(first);
    }
    None
}

/// What `accept` makes of data column `column` as computed from the others, of which there may be several `versions`,
/// by number as parity counts them. Some may be rotten: as long as nothing is accepted, other versions are taken and
/// up to [`MAX_SUSPECTS`] columns are left out. All are `len` bytes long, a multiple of [`parity::STEP`]. The error is
/// true when too few columns are there.
pub(crate) fn search<T>(
    layout: Layout,
    versions: &[Vec<Bytes>],
    column: usize,
    len: usize,
    mut accept: impl FnMut(&[u8]) -> Option<T>,
) -> Result<T, bool> {
    let mut present: Vec<Option<&[u8]>> =
        versions.iter().map(|versions| versions.first().map(Bytes::as_ref)).collect();
    let mut out = vec![0; len];
    let mut short = true;
    let mut attempt = |present: &[Option<&[u8]>]| {
        parity::reconstruct(layout.k(), layout.m(), present, &[column], &mut [&mut out]).ok()?;
        short = false;
        accept(&out)
    };
    let found =
        (0..=MAX_SUSPECTS).find_map(|suspects| vary(versions, &mut present, 0, suspects, &mut attempt));
    found.ok_or(short)
}

impl Pool {
    /// The plain content of a record, from the cache or the devices.
    ///
    /// # Errors
    /// [`PoolError::Unreadable`] when no copy can be read and nothing can be rebuilt.
    pub fn read(&self, ptr: BlockPtr) -> Result<Record> {
        if let Some(record) = self.cache.record(ptr.id) {
            return Ok(record);
        }
        let (_, record) = self.read_missed(ptr, BlockKind::Record)?;
        self.cache.keep_record(ptr.id, record.clone());
        Ok(record)
    }

    /// Brings records into the cache that are not there, all at once. What fails is left to [`Pool::read`].
    pub fn prefetch(&self, ptrs: &[BlockPtr]) {
        let missing = ptrs.iter().filter(|ptr| !self.cache.record_ahead(ptr.id));
        for (id, plain) in self.fetch_plain(missing.copied()) {
            self.cache.keep_record(id, plain);
        }
    }

    /// The plain content of records that are about to be replaced, all at once and past the cache, where they would
    /// only be in the way. What fails is left out, and to [`Pool::read`].
    pub fn read_all(&self, ptrs: &[BlockPtr]) -> HashMap<BlockId, Record> {
        let cached = |ptr: &BlockPtr| self.cache.record(ptr.id).map(|plain| (ptr.id, plain));
        let mut found: HashMap<BlockId, Record> = ptrs.iter().filter_map(cached).collect();
        let missing = ptrs.iter().filter(|ptr| !found.contains_key(&ptr.id)).copied();
        let read = self.fetch_plain(missing);
        found.extend(read);
        found
    }

    /// The plain content of records: their reads are in flight together, their checksums and codecs run on all
    /// workers. What fails is left out.
    fn fetch_plain(&self, ptrs: impl Iterator<Item = BlockPtr>) -> Vec<(BlockId, Record)> {
        let arrived = self.fetch(ptrs);
        let plain: Vec<OnceLock<Record>> = arrived.iter().map(|_| OnceLock::new()).collect();
        self.world.workers.for_each(arrived.len(), &|i| {
            let (id, bytes) = &arrived[i];
            let Ok((header, _)) = block::check(self.guid, *id, bytes) else { return };
            if let Ok(found) = plain_of(&header, bytes, BlockKind::Record) {
                // Each index comes once.
                let _ = plain[i].set(found);
            }
        });
        let each = arrived.into_iter().zip(plain);
        each.filter_map(|((id, _), plain)| Some((id, plain.into_inner()?))).collect()
    }

    /// Stored bytes of blocks, not verified: all reads are in flight together, in the order of places and
    /// neighbours by one. What cannot be had this way is left out.
    pub(crate) fn fetch(&self, ptrs: impl Iterator<Item = BlockPtr>) -> Vec<(BlockId, Bytes)> {
        let start = |ptr: BlockPtr| {
            let (segment, place) = self.locate(ptr).ok()?;
            let layout = segment.layout;
            if usize::from(place.column) >= layout.k() {
                return None;
            }
            let replica = layout.replica(place.column.into(), ptr.id.get() as usize % layout.r());
            if segment.is_in_flight(replica, place.offset, place.stored as usize) {
                return None;
            }
            Some(Wanted { id: ptr.id, segment, replica, place })
        };
        let spans = around::gather(ptrs.filter_map(start).collect());
        let start = |wanted: Vec<Wanted>| {
            let (first, whole) = (&wanted[0], around::span(&wanted));
            let (pending, from) = self.start_read(&first.segment, first.replica, whole)?;
            Some((wanted, whole, pending, from))
        };
        let in_flight: Vec<_> = spans.into_iter().filter_map(start).collect();
        let mut arrived = Vec::new();
        for (wanted, whole, pending, from) in in_flight {
            // The segments stay pinned until their bytes are here.
            let Ok(bytes) = pending.wait() else { continue };
            if let [one] = wanted.as_slice() {
                arrived.push((one.id, stored(bytes, from, one.place)));
                continue;
            }
            for Wanted { id, place, .. } in wanted {
                let at = from + (place.offset - whole.offset) as usize;
                arrived.push((id, Bytes::copy_from_slice(&bytes[at..at + place.stored as usize])));
            }
        }
        arrived
    }

    /// A block's header and plain content, with whatever is worth keeping around it put into the cache.
    fn read_missed(&self, ptr: BlockPtr, kind: BlockKind) -> Result<(CheckedHeader, Bytes)> {
        let (segment, place) = self.locate(ptr)?;
        let ptr = BlockPtr { id: ptr.id, place };
        let (header, bytes) = match self.read_around(&segment, ptr) {
            Some(found) => found,
            None => self.read_stored(&segment, ptr)?,
        };
        let plain = plain_of(&header, &bytes, kind)?;
        Ok((header, plain))
    }

    /// A block's header and plain content, past the cache.
    pub(crate) fn read_plain(&self, ptr: BlockPtr, kind: BlockKind) -> Result<(CheckedHeader, Bytes)> {
        let (segment, place) = self.locate(ptr)?;
        let ptr = BlockPtr { id: ptr.id, place };
        let (header, bytes) = self.read_stored(&segment, ptr)?;
        let plain = plain_of(&header, &bytes, kind)?;
        Ok((header, plain))
    }

    /// The segment a block is in, pinned, and its place: the hint while its segment is alive, else what
    /// the block map says.
    pub(crate) fn locate(&self, ptr: BlockPtr) -> Result<(Arc<Segment>, Place)> {
        if let Some(segment) = self.readable.get(ptr.place.segment) {
            return Ok((segment, ptr.place));
        }
        let unreadable = |cause: &str| PoolError::Unreadable { id: ptr.id, cause: cause.into() };
        let place =
            Core::look_up(self, ptr.id)?.ok_or_else(|| unreadable("the block map does not know it"))?;
        let segment =
            self.readable.get(place.segment).ok_or_else(|| unreadable("its segment is not in the table"))?;
        Ok((segment, place))
    }

    /// A block's header and stored bytes, verified, from whatever can give them.
    pub(crate) fn read_stored(&self, segment: &Segment, ptr: BlockPtr) -> Result<(CheckedHeader, Bytes)> {
        let layout = segment.layout;
        let place = ptr.place;
        let column = usize::from(place.column);
        let slot_size = self.members.get(segment.slots[0].device).slot_size;
        if column >= layout.k() || u64::from(place.offset) + u64::from(place.stored) > u64::from(slot_size) {
            return Err(Corrupt::new("place", Reason::Range).into());
        }
        let verify = |bytes: Bytes| {
            let header = match block::check(self.guid, ptr.id, &bytes) {
                Ok((header, _)) => header,
                Err(_) if planted(Bug::UncheckedPayload) => CheckedHeader::check(self.guid, &bytes).ok()?,
                Err(_) => return None,
            };
            (header.stored() as usize == bytes.len()).then_some((header, bytes))
        };
        let in_flight = segment.peek(layout.replica(column, 0), place.offset, place.stored as usize);
        if let Some(found) = in_flight.map(Bytes::from).and_then(verify) {
            return Ok(found);
        }
        let mut wrong = 0;
        for turn in 0..layout.r() {
            let replica = layout.replica(column, (turn + ptr.id.get() as usize) % layout.r());
            if let Some(bytes) = self.read_column(segment, replica, place) {
                if let Some(found) = verify(bytes) {
                    self.heal_wrong(segment, place, wrong);
                    return Ok(found);
                }
                self.count_wrong(segment, replica);
                wrong |= 1 << replica;
            }
        }
        let unreadable = |cause: &str| PoolError::Unreadable { id: ptr.id, cause: cause.into() };
        let rebuilt = self.rebuild(segment, place, |bytes| verify(Bytes::copy_from_slice(bytes)));
        if rebuilt.is_ok() {
            self.heal_wrong(segment, place, wrong);
        }
        rebuilt.map_err(|short| {
            let causes = ["no copy matches its checksum", "too many devices are unavailable"];
            unreadable(causes[usize::from(short)])
        })
    }

    /// Counts that a column's device gave something else than was written.
    fn count_wrong(&self, segment: &Segment, column: usize) {
        let member = self.members.get(segment.slots[column].device);
        member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the row of `place` mended when some of its columns, by bit, were `wrong` and counted.
    fn heal_wrong(&self, segment: &Segment, place: Place, wrong: u64) {
        if wrong != 0 {
            self.heal_later(segment.id, place.offset, wrong);
        }
    }

    /// The range of `place` from one column; `None` when the device does not give it. When it fails to, the row is
    /// mended later: a sector that is written anew may be read again.
    pub(crate) fn read_column(&self, segment: &Segment, column: usize, place: Place) -> Option<Bytes> {
        let found = self.read_part(segment, column, place);
        if found.is_none() && self.members.get(segment.slots[column].device).is_online() {
            self.heal_later(segment.id, place.offset, 0);
        }
        found
    }

    /// As [`Pool::read_column`], for who mends the row.
    pub(crate) fn read_part(&self, segment: &Segment, column: usize, place: Place) -> Option<Bytes> {
        let (device, offset, len, from) = self.span_of(segment, column, place)?;
        match self.members.get(device).read_now(offset, len)? {
            Ok(bytes) => Some(stored(bytes, from, place)),
            Err(_) => {
                self.members.get(device).counters.read_errors.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Starts reading the range of `place` from one column; says where in the buffer it will begin.
    pub(crate) fn start_read(
        &self,
        segment: &Segment,
        column: usize,
        place: Place,
    ) -> Option<(Pending<Outcome>, usize)> {
        let (device, offset, len, from) = self.span_of(segment, column, place)?;
        Some((self.members.get(device).read(offset, len)?, from))
    }

    /// What to ask of which device for the range of `place` from one column, and where in the answer that
    /// will begin; `None` beyond the slot's end.
    fn span_of(
        &self,
        segment: &Segment,
        column: usize,
        place: Place,
    ) -> Option<(DeviceIndex, DeviceOffset, usize, usize)> {
        let slot = segment.slots[column];
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
    pub(crate) fn read_range(
        &self,
        segment: &Segment,
        place: Place,
        accept: impl Fn(&[u8]) -> bool,
    ) -> Bytes {
        let layout = segment.layout;
        let replicas = (0..layout.r()).map(|j| layout.replica(place.column.into(), j));
        let mut first = None;
        let mut wrong = 0u64;
        // Unless nothing is right: then each block is read by itself, and counted there.
        let heal = |wrong: u64| {
            let columns = (0..layout.columns()).filter(|column| wrong & 1 << column != 0);
            columns.for_each(|column| self.count_wrong(segment, column));
            self.heal_wrong(segment, place, wrong);
        };
        for column in replicas {
            let Some(bytes) = self.read_column(segment, column, place) else { continue };
            if accept(&bytes) {
                heal(wrong);
                return bytes;
            }
            wrong |= 1 << column;
            first.get_or_insert(bytes);
        }
        let rebuilt =
            self.rebuild(segment, place, |bytes| accept(bytes).then(|| Bytes::copy_from_slice(bytes)));
        if rebuilt.is_ok() {
            heal(wrong);
        }
        rebuilt.ok().or(first).unwrap_or_default()
    }

    /// What `accept` makes of the range of `place` computed from the other columns of its rows. Those may
    /// be rotten themselves: as long as nothing is accepted, other replicas are taken and up to
    /// [`MAX_SUSPECTS`] columns are left out. The error is true when too few columns are there.
    fn rebuild<T>(
        &self,
        segment: &Segment,
        place: Place,
        accept: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, bool> {
        let layout = segment.layout;
        if layout.m() == 0 {
            return Err(true);
        }
        // Parity works on multiples of its step; blocks start on one.
        let wide = Place { stored: place.stored.next_multiple_of(parity::STEP as u32), ..place };
        let data = (0..layout.k()).map(|i| {
            let mut versions: Vec<Bytes> = Vec::new();
            let copies = (0..layout.r()).filter(|_| i != usize::from(place.column));
            for bytes in copies.filter_map(|j| self.read_column(segment, layout.replica(i, j), wide)) {
                if !versions.contains(&bytes) {
                    versions.push(bytes);
                }
            }
            versions
        });
        let parities =
            (0..layout.m()).map(|p| self.read_column(segment, layout.parity(p), wide).into_iter().collect());
        let versions: Vec<Vec<Bytes>> = data.chain(parities).collect();
        let len = place.stored as usize;
        search(layout, &versions, place.column.into(), wide.stored as usize, |bytes| accept(&bytes[..len]))
    }

    /// A node, from the cache or the devices.
    pub(crate) fn load_node(&self, ptr: BlockPtr, kind: BlockKind) -> Result<Arc<Node>> {
        if let Some(node) = self.cache.node(ptr.id) {
            return Ok(node);
        }
        let (header, plain) = self.read_missed(ptr, kind)?;
        let node = decode_node(&header, &plain)?;
        self.cache.keep_node(ptr.id, &node);
        Ok(node)
    }
}

/// Where a dataset's tree finds its nodes.
pub(crate) struct DatasetNodes<'a>(pub &'a Pool);

impl NodeStore for DatasetNodes<'_> {
    type Error = PoolError;
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>> {
        self.0.load_node(ptr, BlockKind::Node)
    }
}

/// Where the pool's tables find their nodes.
pub(crate) struct TableNodes<'a>(pub &'a Pool);

impl NodeStore for TableNodes<'_> {
    type Error = PoolError;
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>> {
        self.0.load_node(ptr, BlockKind::Table)
    }
}
