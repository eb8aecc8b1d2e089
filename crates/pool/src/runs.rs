//! How the block map's runs reach the devices: pages are blocks of kind `Run` in segments of their own.

use crate::codec::Codec;
use crate::error::{PoolError, Result};
use crate::map::{PageReader, PageWriter};
use crate::pool::Pool;
use crate::write::Appender;
use larder_format::block::{BlockInfo, BlockKind, CodecKind};
use larder_format::checksum::ChecksumKind;
use larder_format::segment::SegmentKind;
use larder_format::{BlockPtr, Corrupt, DatasetId};
use parking_lot::Mutex;
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
