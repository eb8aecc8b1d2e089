//! Decoding a block's bytes: its plain content, a node; and whether it is of this history.

use crate::codec;
use crate::error::{PoolError, Result};
use bytes::Bytes;
use larder_device::AlignedBuf;
use larder_format::block::{BlockKind, CheckedHeader, CodecKind};
use larder_format::commit_record::COMMIT_RECORD_MAX;
use larder_format::items::MAX_RECORD;
use larder_format::node::{NODE_MAX, Node};
use larder_format::root::RootImport;
use larder_format::run::PAGE_MAX;
use larder_format::{CommitId, Corrupt, Incarnation, Place, Reason};
use std::ops::Range;
use std::sync::Arc;

/// The most plain bytes that a block of a kind can hold; headers that claim more are refused, before room is made for
/// it.
fn max_logical(kind: BlockKind) -> usize {
    match kind {
        BlockKind::Record => MAX_RECORD as usize,
        BlockKind::Node | BlockKind::Table => NODE_MAX,
        BlockKind::Run => PAGE_MAX,
        BlockKind::CommitRecord => COMMIT_RECORD_MAX,
        BlockKind::Log => 16 << 20,
    }
}

/// The node that a verified block holds.
pub fn decode_node(header: &CheckedHeader, plain: &[u8]) -> Result<Arc<Node>> {
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
pub fn stored(bytes: AlignedBuf, from: usize, place: Place) -> Bytes {
    part(bytes, from..from + place.stored as usize)
}

/// A part of what was read: a block.
pub fn part(bytes: AlignedBuf, range: Range<usize>) -> Bytes {
    if range.len() < SHARE_FROM {
        Bytes::copy_from_slice(&bytes[range])
    } else {
        Bytes::from_owner(bytes).slice(range)
    }
}

/// The plain content of a verified block that must be of `kind`.
pub fn plain_of(header: &CheckedHeader, bytes: &Bytes, kind: BlockKind) -> Result<Bytes> {
    let wrong = |reason| PoolError::Corrupt(Corrupt::new("block", reason));
    if header.info.kind != kind {
        return Err(wrong(Reason::Identity));
    }
    let logical = header.info.logical as usize;
    if logical > max_logical(kind) {
        return Err(wrong(Reason::Range));
    }
    let payload = bytes.slice(header.before_content() as usize..);
    if header.info.codec == CodecKind::Off && payload.len() == logical {
        return Ok(payload);
    }
    Ok(codec::decompress(header.info.codec, &payload, logical)?.into())
}

/// Whether what was written for `commit` under `incarnation` belongs to this history of imports, the latest first: it
/// does when that commit was that import's. What is older than the history reaches is believed.
pub fn is_of_history(history: &[RootImport], commit: CommitId, incarnation: Incarnation) -> bool {
    let import = history.iter().find(|import| import.first <= commit);
    import.is_none_or(|import| import.incarnation == incarnation)
}
