//! Reading and writing the block map's runs: pages are blocks of kind `Run` in segments of their own.

use crate::appender::Appender;
use crate::codec::Codec;
use crate::decode::plain_of;
use crate::error::{PoolError, Result};
use crate::store::Store;
use bytes::Bytes;
use larder_format::block::{BlockInfo, BlockKind, CodecKind};
use larder_format::checksum::ChecksumKind;
use larder_format::segment::SegmentKind;
use larder_format::{BlockId, BlockPtr, Corrupt, DatasetId, Place};
use larder_sorted::map::{Location, LookUp};
use larder_sorted::{PageReader, PageWriter};
use larder_sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The pool as the block map sees it.
pub struct RunIo<'a> {
    store: &'a Store,
    pages: Mutex<Appender<'a>>,
}

impl<'a> RunIo<'a> {
    /// Pages that are written go into stripes of their own.
    pub fn new(store: &'a Store) -> Self {
        Self { store, pages: Mutex::new(Appender::new(store, SegmentKind::Run)) }
    }

    /// Submits the pages that wait for their stripe to fill: from now on everybody can read them.
    pub fn submit(&self) -> Result<()> {
        self.pages.lock().submit()
    }

    /// The same, at the end.
    pub fn finish(self) -> Result<()> {
        self.pages.into_inner().submit()
    }
}

impl PageReader for RunIo<'_> {
    type Error = PoolError;
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>> {
        // It may be a page that was written a moment ago.
        self.pages.lock().submit()?;
        self.store.read_page(ptr).map(|plain| plain.as_ref().into())
    }
    fn read_pages(&self, ptrs: &[BlockPtr]) -> Vec<Result<Arc<[u8]>>> {
        let together = if ptrs.len() > 1 && self.pages.lock().submit().is_ok() {
            let there = |ptr: &&BlockPtr| self.store.readable.get(ptr.place.segment).is_some();
            self.store.fetch(ptrs.iter().filter(there).copied())
        } else {
            Vec::new()
        };
        let mut arrived: HashMap<BlockId, Bytes> =
            together.into_iter().map(|one| (one.id, one.bytes)).collect();
        let as_it_came = |ptr: &BlockPtr, bytes: Bytes| {
            let header = self.store.prove(ptr.id, &bytes)?;
            let plain = plain_of(&header, &bytes, BlockKind::Run).ok()?;
            (header.stored() as usize == bytes.len()).then(|| plain.as_ref().into())
        };
        // Pages that did not arrive, or arrived damaged, are read as any block is.
        let page = |ptr: &BlockPtr| {
            let bytes = arrived.remove(&ptr.id);
            bytes.and_then(|bytes| as_it_came(ptr, bytes)).map_or_else(|| self.read_page(*ptr), Ok)
        };
        ptrs.iter().map(page).collect()
    }
    fn refused(&self, _: BlockPtr, why: Corrupt) -> PoolError {
        why.into()
    }
}

impl PageWriter for RunIo<'_> {
    fn write_page(&mut self, payload: &[u8]) -> Result<BlockPtr> {
        let info = own_info(BlockKind::Run, DatasetId::new(0));
        self.pages.get_mut().store(info, Codec::Lz4, payload)
    }
}

impl Store {
    /// Looks a block up in the map. Who does so holds neither the map nor a commit back: runs that it reads may be
    /// merged meanwhile and their slots be given back, so what fails is tried once more with the runs as they are
    /// then.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn look_up<T>(&self, id: BlockId, read: impl Fn(&LookUp, &RunIo<'_>) -> Result<T>) -> Result<T> {
        let begun = self.map.lock().look_up(id);
        self.finish_look_up(begun, id, read)
    }

    /// As [`Store::look_up`], of a look-up that was begun.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn finish_look_up<T>(
        &self,
        mut begun: LookUp,
        id: BlockId,
        read: impl Fn(&LookUp, &RunIo<'_>) -> Result<T>,
    ) -> Result<T> {
        let io = RunIo::new(self);
        loop {
            let failed = match read(&begun, &io) {
                Err(failed) => failed,
                found => return found,
            };
            let fresh = self.map.lock().look_up(id);
            if fresh.sees_runs_of(&begun) {
                return Err(failed);
            }
            begun = fresh;
        }
    }

    /// Where the block map says that a block's content is: at each of these places, or nowhere.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn places_of(&self, id: BlockId) -> Result<Vec<Place>> {
        self.content_of(id).map(|(_, places)| places)
    }

    /// The block that has the content of `id`, itself unless it is an alias, and where the map says that it is.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn content_of(&self, id: BlockId) -> Result<(BlockId, Vec<Place>)> {
        let location = |id| self.look_up(id, |look_up, io| look_up.location(io));
        let (id, found) = match location(id)? {
            Some(Location::Alias(to)) => (to, location(to)?),
            found => (id, found),
        };
        Ok(match found {
            Some(Location::Places(places)) => (id, places.to_vec()),
            // One alias names another only on a damaged disk.
            _ => (id, Vec::new()),
        })
    }
}

/// Header fields of a block that is not a record.
pub fn own_info(kind: BlockKind, dataset: DatasetId) -> BlockInfo {
    BlockInfo {
        framed: false,
        kind,
        codec: CodecKind::Off,
        checksum: ChecksumKind::Fast,
        level: 0,
        logical: 0,
        dataset,
        object: 0,
        offset: 0,
        key_kind: 0,
    }
}
