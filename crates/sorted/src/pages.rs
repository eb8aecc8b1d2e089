//! Common to runs of the block map and parts of the dedup index: the places of their pages, and the pages that name
//! pages.

use larder_format::run::{
    DESCRIPTOR_REFS, Footprint, PageRef, REFS_PER_PAGE, RunDescriptor, RunId, decode_index_page,
    encode_index_page,
};
use larder_format::{BlockPtr, Corrupt, Reason, SegmentId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads the pages of runs.
pub trait PageReader {
    /// The error type.
    type Error;
    /// The payload of the block at `ptr`.
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>, Self::Error>;
    /// The payloads of several blocks, each as [`PageReader::read_page`] gives it: for a reader that can have them
    /// in flight together.
    fn read_pages(&self, ptrs: &[BlockPtr]) -> Vec<Result<Arc<[u8]>, Self::Error>> {
        ptrs.iter().map(|ptr| self.read_page(*ptr)).collect()
    }
    /// The error for a block that arrived intact and is not the page that was asked for.
    fn refused(&self, ptr: BlockPtr, why: Corrupt) -> Self::Error;
}

/// Writes the pages of runs, as blocks of kind `Run`.
pub trait PageWriter: PageReader {
    /// Stores `payload` as a new block. It need not be durable before the commit.
    fn write_page(&mut self, payload: &[u8]) -> Result<BlockPtr, Self::Error>;
}

/// Reads the index pages of a run: what names its entry pages.
pub(crate) fn read_refs<R: PageReader>(
    descriptor: &RunDescriptor,
    reader: &R,
) -> Result<Vec<PageRef>, R::Error> {
    let refuse = |ptr, reason| Err(reader.refused(ptr, Corrupt::new("run page", reason)));
    let mut index = descriptor.refs.clone();
    for height in (1..=descriptor.height).rev() {
        let mut below = Vec::new();
        for (number, page) in index.iter().enumerate() {
            let bytes = reader.read_page(page.ptr)?;
            let refs = decode_index_page(&bytes, descriptor.run, height, number as u32)
                .map_err(|why| reader.refused(page.ptr, why))?;
            let ascends = below.last().is_none_or(|last: &PageRef| last.first < refs[0].first);
            if refs[0].first != page.first || !ascends {
                return refuse(page.ptr, Reason::Order);
            }
            below.extend(refs);
        }
        index = below;
    }
    let last = index.last().is_some_and(|last| last.first <= descriptor.last);
    if !last || index.len() != descriptor.pages as usize {
        return refuse(descriptor.refs[0].ptr, Reason::Range);
    }
    Ok(index)
}

/// The pages of a run that is being written, and what they take.
#[derive(Debug)]
pub(crate) struct PagesOut {
    pub(crate) run: RunId,
    footprints: BTreeMap<SegmentId, Footprint>,
}

impl PagesOut {
    pub(crate) fn new(run: RunId) -> Self {
        Self { run, footprints: BTreeMap::new() }
    }

    pub(crate) fn write<W: PageWriter>(&mut self, payload: &[u8], io: &mut W) -> Result<BlockPtr, W::Error> {
        let ptr = io.write_page(payload)?;
        let segment = ptr.place.segment;
        let footprint = self.footprints.entry(segment).or_insert(Footprint { segment, blocks: 0, bytes: 0 });
        footprint.blocks += 1;
        footprint.bytes += u64::from(ptr.place.footprint());
        Ok(ptr)
    }

    /// Writes the index pages above the entry pages `refs`; gives their levels and the topmost references.
    pub(crate) fn write_refs<W: PageWriter>(
        &mut self,
        mut refs: Vec<PageRef>,
        io: &mut W,
    ) -> Result<(u8, Vec<PageRef>), W::Error> {
        let mut height = 0;
        while refs.len() > DESCRIPTOR_REFS {
            height += 1;
            let mut above = Vec::new();
            for (number, chunk) in refs.chunks(REFS_PER_PAGE).enumerate() {
                let payload = encode_index_page(self.run, height, number as u32, chunk);
                above.push(PageRef { first: chunk[0].first, ptr: self.write(&payload, io)? });
            }
            refs = above;
        }
        Ok((height, refs))
    }

    /// In order of segment.
    pub(crate) fn footprints(&self) -> impl Iterator<Item = Footprint> {
        self.footprints.values().copied()
    }
}
