//! The way up: a block from the device that has it, else from a replica, else rebuilt from parity.

use crate::codec;
use crate::core::Core;
use crate::error::{PoolError, Result};
use crate::parity;
use crate::planted::{Bug, planted};
use crate::pool::Pool;
use crate::segments::Segment;
use crate::tree::NodeStore;
use larder_device::ALIGN;
use larder_format::block::{self, BLOCK_OVERHEAD, BlockKind, CheckedHeader};
use larder_format::node::Node;
use larder_format::{BlockPtr, Corrupt, Place, Reason};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most plain bytes that a block can hold; headers that claim more are refused.
const MAX_LOGICAL: usize = 16 << 20;

impl Pool {
    /// The plain content of a record, from the cache or the devices.
    ///
    /// # Errors
    /// [`PoolError::Unreadable`] when no copy can be read and nothing can be rebuilt.
    pub fn read(&self, ptr: BlockPtr) -> Result<Arc<[u8]>> {
        if let Some(record) = self.cache.record(ptr.id) {
            return Ok(record);
        }
        let (_, plain) = self.read_plain(ptr, BlockKind::Record)?;
        let record: Arc<[u8]> = plain.into();
        self.cache.keep_record(ptr.id, &record);
        Ok(record)
    }

    /// A block's header and plain content, past the cache.
    pub(crate) fn read_plain(&self, ptr: BlockPtr, kind: BlockKind) -> Result<(CheckedHeader, Vec<u8>)> {
        let (segment, place) = self.locate(ptr)?;
        let ptr = BlockPtr { id: ptr.id, place };
        let (header, bytes) = self.read_stored(&segment, ptr)?;
        let payload = &bytes[BLOCK_OVERHEAD as usize..];
        let wrong = |reason| PoolError::Corrupt(Corrupt::new("block", reason));
        if header.info.kind != kind {
            return Err(wrong(Reason::Identity));
        }
        let logical = header.info.logical as usize;
        if logical > MAX_LOGICAL {
            return Err(wrong(Reason::Range));
        }
        let plain = codec::decompress(header.info.codec, payload, logical)?;
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
    fn read_stored(&self, segment: &Segment, ptr: BlockPtr) -> Result<(CheckedHeader, Vec<u8>)> {
        let layout = segment.layout;
        let place = ptr.place;
        let column = usize::from(place.column);
        let slot_size = self.members.get(segment.slots[0].device).slot_size;
        if column >= layout.k() || u64::from(place.offset) + u64::from(place.stored) > u64::from(slot_size) {
            return Err(Corrupt::new("place", Reason::Range).into());
        }
        let verify = |bytes: Vec<u8>| {
            let header = match block::check(self.guid, ptr.id, &bytes) {
                Ok((header, _)) => header,
                Err(_) if planted(Bug::UncheckedPayload) => CheckedHeader::check(self.guid, &bytes).ok()?,
                Err(_) => return None,
            };
            (header.stored() as usize == bytes.len()).then_some((header, bytes))
        };
        let in_flight = segment.peek(layout.replica(column, 0), place.offset, place.stored as usize);
        if let Some(found) = in_flight.and_then(verify) {
            return Ok(found);
        }
        for turn in 0..layout.r() {
            let replica = layout.replica(column, (turn + ptr.id.get() as usize) % layout.r());
            if let Some(bytes) = self.read_column(segment, replica, place) {
                if let Some(found) = verify(bytes) {
                    return Ok(found);
                }
                let member = self.members.get(segment.slots[replica].device);
                member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        let unreadable = |cause: &str| PoolError::Unreadable { id: ptr.id, cause: cause.into() };
        let rebuilt =
            self.rebuild(segment, place).ok_or_else(|| unreadable("too many devices are unavailable"))?;
        verify(rebuilt).ok_or_else(|| unreadable("no copy matches its checksum"))
    }

    /// The range of `place` from one column; `None` when the device does not give it.
    fn read_column(&self, segment: &Segment, column: usize, place: Place) -> Option<Vec<u8>> {
        let slot = segment.slots[column];
        let member = self.members.get(slot.device);
        let start = place.offset as usize / ALIGN * ALIGN;
        let end = (place.offset as usize + place.stored as usize).next_multiple_of(ALIGN);
        let pending = member.read(member.slot_offset(slot.index, start as u32), end - start)?;
        match pending.wait() {
            Ok(bytes) => {
                let from = place.offset as usize - start;
                Some(bytes[from..from + place.stored as usize].to_vec())
            }
            Err(_) => {
                member.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// The range of `place` computed from the other columns of its rows.
    fn rebuild(&self, segment: &Segment, place: Place) -> Option<Vec<u8>> {
        let layout = segment.layout;
        if layout.m() == 0 {
            return None;
        }
        // Parity works on multiples of its step; blocks start on one.
        let wide = Place { stored: place.stored.next_multiple_of(parity::STEP as u32), ..place };
        let data = (0..layout.k()).map(|i| {
            let lost = i == usize::from(place.column);
            let mut copies = (0..layout.r()).filter(|_| !lost);
            copies.find_map(|j| self.read_column(segment, layout.replica(i, j), wide))
        });
        let parities = (0..layout.m()).map(|p| self.read_column(segment, layout.parity(p), wide));
        let columns: Vec<Option<Vec<u8>>> = data.chain(parities).collect();
        let present: Vec<Option<&[u8]>> = columns.iter().map(Option::as_deref).collect();
        let mut out = vec![0; wide.stored as usize];
        parity::reconstruct(layout.k(), layout.m(), &present, &[place.column.into()], &mut [&mut out])
            .ok()?;
        out.truncate(place.stored as usize);
        Some(out)
    }

    /// A node, from the cache or the devices.
    pub(crate) fn load_node(&self, ptr: BlockPtr, kind: BlockKind) -> Result<Arc<Node>> {
        if let Some(node) = self.cache.node(ptr.id) {
            return Ok(node);
        }
        let (header, plain) = self.read_plain(ptr, kind)?;
        let node = Node::decode(&plain)?;
        if node.level() != header.info.level {
            return Err(Corrupt::new("tree node", Reason::Identity).into());
        }
        let node = Arc::new(node);
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
