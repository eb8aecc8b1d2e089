//! How the block map's runs reach the devices: pages are blocks of kind `Run` in segments of their own.

use crate::codec::Codec;
use crate::error::{PoolError, Result};
use crate::map::{PageReader, PageWriter};
use crate::pool::Pool;
use crate::read::plain_of;
use crate::write::Appender;
use bytes::Bytes;
use larder_format::block::{BlockInfo, BlockKind, CodecKind};
use larder_format::checksum::ChecksumKind;
use larder_format::segment::SegmentKind;
use larder_format::{BlockId, BlockPtr, Corrupt, DatasetId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The pool as the block map sees it.
pub(crate) struct RunIo<'a> {
    pool: &'a Pool,
    pages: Mutex<Appender<'a>>,
}

impl<'a> RunIo<'a> {
    pub(crate) fn new(pool: &'a Pool) -> Self {
        Self { pool, pages: Mutex::new(Appender::new(pool, SegmentKind::Run)) }
    }

    /// Submits the pages that wait for their row to fill.
    pub(crate) fn finish(self) -> Result<()> {
        self.pages.into_inner().submit()
    }
}

impl PageReader for RunIo<'_> {
    type Error = PoolError;
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>> {
        // It may be a page that was written a moment ago.
        self.pages.lock().submit()?;
        self.pool.read_plain(ptr, BlockKind::Run).map(|(_, plain)| plain.as_ref().into())
    }
    fn read_pages(&self, ptrs: &[BlockPtr]) -> Vec<Result<Arc<[u8]>>> {
        let together = if ptrs.len() > 1 && self.pages.lock().submit().is_ok() {
            self.pool.fetch(ptrs.iter().copied())
        } else {
            Vec::new()
        };
        let mut arrived: HashMap<BlockId, Bytes> = together.into_iter().collect();
        let as_it_came = |ptr: &BlockPtr, bytes: Bytes| {
            let header = self.pool.prove(ptr.id, &bytes)?;
            let plain = plain_of(&header, &bytes, BlockKind::Run).ok()?;
            (header.stored() as usize == bytes.len()).then(|| plain.as_ref().into())
        };
        // What did not come, or came damaged, is read as any block is.
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

/// What the header says of a block that is no record.
pub(crate) fn own_info(kind: BlockKind, dataset: DatasetId) -> BlockInfo {
    BlockInfo {
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
