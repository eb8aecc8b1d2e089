//! Blocks of ZAP objects: names and integers (OpenZFS `zap_impl.h`, `zap_leaf.h`).
//!
//! A small one is one block of entries (micro). A large one (fat) has a header, a pointer table and leaves, by prefix
//! of a hash; each entry is in one leaf, so that the leaves alone, in any order, are all entries.

use crate::bytes::Order;
use crate::error::{Result, corrupt};

const LEAF: u64 = 1 << 63;
const HEADER: u64 = LEAF + 1;
const MICRO: u64 = LEAF + 3;
const MAGIC: u64 = 0x2_F52A_B2AB;
const LEAF_MAGIC: u32 = 0x2AB_1EAF;
const MICRO_ENTRY: usize = 64;
const CHUNK: usize = 24;
const CHUNK_BYTES: usize = CHUNK - 3;
const LEAF_HEAD: usize = 2 * CHUNK;
const ENTRY: u8 = 252;
const ARRAY: u8 = 251;
/// Most bytes of a name or a value: `ZAP_MAXNAMELEN`, `ZAP_MAXVALUELEN`.
const MAX_BYTES: usize = 8192;

/// A name and its integers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name without its NUL.
    pub name: Vec<u8>,
    /// The integers, of whatever width.
    pub values: Vec<u64>,
}

/// A block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Some or all entries.
    Entries(Vec<Entry>),
    /// The header of a large one, with the number of entries in all.
    Header(u64),
    /// Part of a pointer table.
    Table,
}

/// The byte order of a block in a stream of `order`: OpenZFS passes blocks on that another machine wrote as they are.
fn order_of(bytes: &[u8], order: Order) -> Order {
    let fits = |order: &Order| match order.u64(bytes, 0) {
        Some(MICRO) => true,
        // A pointer table may look like one, swapped.
        Some(LEAF) => order.u32(bytes, 24) == Some(LEAF_MAGIC),
        Some(HEADER) => order.u64(bytes, 8) == Some(MAGIC),
        _ => false,
    };
    [order, order.other()].into_iter().find(fits).unwrap_or(order)
}

/// Reads a block of a stream of this byte order.
///
/// # Errors
/// When it is damaged.
pub fn parse(bytes: &[u8], order: Order) -> Result<Block> {
    let order = order_of(bytes, order);
    match order.u64(bytes, 0) {
        Some(MICRO) => Ok(Block::Entries(micro(bytes, order))),
        Some(LEAF) => leaf(bytes, order).ok_or_else(|| corrupt("a leaf of names")).map(Block::Entries),
        Some(HEADER) if order.u64(bytes, 8) == Some(MAGIC) => {
            order.u64(bytes, 72).map(Block::Header).ok_or_else(|| corrupt("a header of names"))
        }
        Some(HEADER) | None => Err(corrupt("a header of names")),
        Some(_) => Ok(Block::Table),
    }
}

fn micro(bytes: &[u8], order: Order) -> Vec<Entry> {
    let entries = bytes[MICRO_ENTRY.min(bytes.len())..].chunks_exact(MICRO_ENTRY);
    let entry = |entry: &[u8]| {
        let name = entry[14..].split(|&byte| byte == 0).next()?;
        let value = order.u64(entry, 0)?;
        (!name.is_empty()).then(|| Entry { name: name.to_vec(), values: vec![value] })
    };
    entries.filter_map(entry).collect()
}

fn leaf(bytes: &[u8], order: Order) -> Option<Vec<Entry>> {
    if !bytes.len().is_power_of_two() || bytes.len() < 512 || order.u32(bytes, 24)? != LEAF_MAGIC {
        return None;
    }
    // A hash table of 16 bits for each 32 bytes of the block is between the head and the chunks.
    let chunks = &bytes[LEAF_HEAD + bytes.len() / 16..];
    let count = usize::from(order.u16(bytes, 30)?);
    let mut entries = Vec::new();
    for chunk in chunks.chunks_exact(CHUNK).filter(|chunk| chunk[0] == ENTRY) {
        let field = |at| order.u16(chunk, at).map(usize::from);
        let name = array(chunks, order, field(4)?, field(6)?)?;
        let width = usize::from(chunk[1]);
        if !matches!(width, 1 | 2 | 4 | 8) {
            return None;
        }
        // Integers are big-endian there, whoever wrote them.
        let values = array(chunks, order, field(8)?, width * field(10)?)?;
        let value = |bytes: &[u8]| bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
        let values = values.chunks_exact(width).map(value).collect();
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        entries.push(Entry { name: name[..end].to_vec(), values });
    }
    (entries.len() == count).then_some(entries)
}

/// Bytes that lie in a chain of chunks.
fn array(chunks: &[u8], order: Order, mut chunk: usize, len: usize) -> Option<Vec<u8>> {
    if len > MAX_BYTES {
        return None;
    }
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let chunk_bytes = chunks.get(chunk * CHUNK..(chunk + 1) * CHUNK)?;
        if chunk_bytes[0] != ARRAY {
            return None;
        }
        let want = CHUNK_BYTES.min(len - bytes.len());
        bytes.extend(&chunk_bytes[1..=want]);
        chunk = usize::from(order.u16(chunk_bytes, CHUNK - 2)?);
    }
    Some(bytes)
}
