//! A block: a header that says what it is, and a payload after codec (and, later, cipher).

use crate::checksum::{self, ChecksumKind, SUM_LEN, Sums};
use crate::error::ensure;
use crate::{BLOCK_STEP, BlockId, CommitId, Corrupt, DatasetId, Incarnation, Reason, layout};

/// `LBLK`.
pub const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"LBLK");
/// Bytes of a block that are not payload.
pub const BLOCK_OVERHEAD: u32 = BlockHeader::SIZE as u32;

layout! {
    /// The header in front of every stored block.
    pub struct BlockHeader[144] {
        /// [`BLOCK_MAGIC`].
        magic: u32 = 0,
        /// A [`BlockKind`].
        kind: u8 = 4,
        /// A [`CodecKind`]: how the payload is encoded.
        codec: u8 = 5,
        /// A [`ChecksumKind`].
        checksum: u8 = 6,
        /// A node's height above the leaves; 0 for everything else.
        level: u8 = 7,
        /// The block's id.
        id: BlockId = 8,
        /// The import under which it was written.
        incarnation: Incarnation = 16,
        /// The commit it was written for.
        birth: CommitId = 24,
        /// Bytes of the plain content.
        logical: u32 = 32,
        /// Bytes of payload stored behind this header.
        payload: u32 = 36,
        /// Checksum of the stored payload.
        payload_sum: [u8; SUM_LEN] = 40,
        /// Owner hint for repair: the dataset (0: the pool).
        owner_dataset: DatasetId = 72,
        /// Owner hint: the inode of a record; the first key's object of a node.
        owner_object: u64 = 80,
        /// Owner hint: the record's offset in its file; the first key's offset of a node.
        owner_offset: u64 = 88,
        /// Owner hint: the first key's kind of a node.
        owner_kind: u8 = 96,
        /// log2 of the bytes of content that are summed, and sealed, by themselves; 0 when all is one piece. Reserved.
        frame: u8 = 97,
        /// Cipher: key that sealed the payload; 0 is none. Reserved.
        key: u32 = 100,
        /// Cipher: nonce. Reserved.
        nonce: [u8; 12] = 104,
        /// Cipher: authentication tag. Reserved.
        tag: [u8; 16] = 116,
        /// XXH3-64 of the header before this field.
        header_sum: u64 = 136,
    }
}

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockKind {
    /// A piece of a file.
    Record = 1,
    /// A node of a dataset's tree.
    Node = 2,
    /// A node of the pool's tables; never in the block map.
    Table = 3,
    /// A page of a block map or dedup index run; never in the block map.
    Run = 4,
    /// Operations of the intent log; never in the block map.
    Log = 5,
    /// A commit record, for repair: datasets and their roots, in clear.
    CommitRecord = 6,
}

/// How a payload is encoded. The level is the writer's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CodecKind {
    /// Stored as it is.
    Off = 0,
    /// An LZ4 block.
    Lz4 = 1,
    /// A raw deflate stream.
    Gzip = 2,
    /// A Zstandard frame.
    Zstd = 3,
}

impl BlockKind {
    /// The kind that a stored number names.
    pub fn from_byte(byte: u8) -> Result<Self, Corrupt> {
        Ok(match byte {
            1 => Self::Record,
            2 => Self::Node,
            3 => Self::Table,
            4 => Self::Run,
            5 => Self::Log,
            6 => Self::CommitRecord,
            _ => return Err(Corrupt::new("block header", Reason::Kind)),
        })
    }
}

impl CodecKind {
    /// The codec that a stored number names.
    pub fn from_byte(byte: u8) -> Result<Self, Corrupt> {
        Ok(match byte {
            0 => Self::Off,
            1 => Self::Lz4,
            2 => Self::Gzip,
            3 => Self::Zstd,
            _ => return Err(Corrupt::new("block header", Reason::Kind)),
        })
    }
}

/// What a block's writer says of it; ids and sums are added by [`encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// What it holds.
    pub kind: BlockKind,
    /// How the payload is encoded.
    pub codec: CodecKind,
    /// How the payload is summed.
    pub checksum: ChecksumKind,
    /// A node's height above the leaves.
    pub level: u8,
    /// Bytes of the plain content.
    pub logical: u32,
    /// Owner hint: dataset.
    pub dataset: DatasetId,
    /// Owner hint: inode, or first key's object.
    pub object: u64,
    /// Owner hint: offset, or first key's offset.
    pub offset: u64,
    /// Owner hint: first key's kind.
    pub key_kind: u8,
}

/// What makes a block unmistakable in its pool: its id, and when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The block's id.
    pub id: BlockId,
    /// The import under which it is written.
    pub incarnation: Incarnation,
    /// The commit it is written for.
    pub birth: CommitId,
}

/// The header of a block with `payload` bytes of payload that sum to `sum`.
pub fn encode_header(
    sums: &Sums,
    stamp: &Stamp,
    info: &BlockInfo,
    sum: [u8; SUM_LEN],
    payload: u32,
) -> [u8; BLOCK_OVERHEAD as usize] {
    let mut header = BlockHeader {
        magic: BLOCK_MAGIC,
        kind: info.kind as u8,
        codec: info.codec as u8,
        checksum: info.checksum as u8,
        level: info.level,
        id: stamp.id,
        incarnation: stamp.incarnation,
        birth: stamp.birth,
        logical: info.logical,
        payload,
        payload_sum: sum,
        owner_dataset: info.dataset,
        owner_object: info.object,
        owner_offset: info.offset,
        owner_kind: info.key_kind,
        frame: 0,
        key: 0,
        nonce: [0; 12],
        tag: [0; 16],
        header_sum: 0,
    };
    let mut out = [0; BLOCK_OVERHEAD as usize];
    header.put(&mut out);
    header.header_sum = checksum::fast64(sums, &out[..BlockHeader::SIZE - 8]);
    header.put(&mut out);
    out
}

/// Writes header and payload at the start of `out` and returns the stored length.
///
/// # Panics
/// When `out` is shorter than header and payload.
pub fn encode(
    sums: &Sums,
    stamp: &Stamp,
    info: &BlockInfo,
    sum: [u8; SUM_LEN],
    payload: &[u8],
    out: &mut [u8],
) -> u32 {
    let header = encode_header(sums, stamp, info, sum, payload.len() as u32);
    out[..header.len()].copy_from_slice(&header);
    out[header.len()..header.len() + payload.len()].copy_from_slice(payload);
    BLOCK_OVERHEAD + payload.len() as u32
}

/// A block whose header has been verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedHeader {
    /// The block's id.
    pub id: BlockId,
    /// The import under which it was written.
    pub incarnation: Incarnation,
    /// The commit it was written for.
    pub birth: CommitId,
    /// What its writer said of it.
    pub info: BlockInfo,
    /// Bytes of payload behind the header.
    pub payload: u32,
    payload_sum: [u8; SUM_LEN],
}

impl CheckedHeader {
    /// Verifies the header at the start of `bytes`; the payload need not be there.
    pub fn check(sums: &Sums, bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "block header";
        let header = BlockHeader::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(header.magic == BLOCK_MAGIC, WHAT, Reason::Magic)?;
        let sum = checksum::fast64(sums, &bytes[..BlockHeader::SIZE - 8]);
        ensure(sum == header.header_sum, WHAT, Reason::Checksum)?;
        ensure(header.key == 0, "a cipher of blocks", Reason::Feature)?;
        ensure(header.frame == 0, "frames in blocks", Reason::Feature)?;
        Ok(Self {
            id: header.id,
            incarnation: header.incarnation,
            birth: header.birth,
            info: BlockInfo {
                kind: BlockKind::from_byte(header.kind)?,
                codec: CodecKind::from_byte(header.codec)?,
                checksum: ChecksumKind::from_byte(header.checksum)?,
                level: header.level,
                logical: header.logical,
                dataset: header.owner_dataset,
                object: header.owner_object,
                offset: header.owner_offset,
                key_kind: header.owner_kind,
            },
            payload: header.payload,
            payload_sum: header.payload_sum,
        })
    }

    /// Bytes stored, header included.
    pub fn stored(&self) -> u32 {
        BLOCK_OVERHEAD.saturating_add(self.payload)
    }

    /// Bytes the block takes in its column.
    pub fn footprint(&self) -> u64 {
        u64::from(self.stored()).next_multiple_of(u64::from(BLOCK_STEP))
    }
}

/// Verifies the whole block at the start of `bytes` and that it is block `id`; returns its header and
/// its payload, still encoded.
pub fn check<'a>(sums: &Sums, id: BlockId, bytes: &'a [u8]) -> Result<(CheckedHeader, &'a [u8]), Corrupt> {
    let (header, payload) = check_any(sums, bytes)?;
    ensure(header.id == id, "block", Reason::Identity)?;
    Ok((header, payload))
}

/// Verifies the whole block at the start of `bytes`, whichever it is.
pub fn check_any<'a>(sums: &Sums, bytes: &'a [u8]) -> Result<(CheckedHeader, &'a [u8]), Corrupt> {
    let header = CheckedHeader::check(sums, bytes)?;
    let payload =
        bytes.get(BlockHeader::SIZE..header.stored() as usize).ok_or(Corrupt::new("block", Reason::Short))?;
    let sum = checksum::payload_sum(header.info.checksum, sums, payload);
    ensure(sum == header.payload_sum, "block payload", Reason::Checksum)?;
    Ok((header, payload))
}
