//! A block: a header that says what it is, and a payload after codec (and, later, cipher).

use crate::checksum::{self, ChecksumKind, SUM_LEN, Sums};
use crate::error::ensure;
use crate::{BLOCK_STEP, BlockId, CommitId, Corrupt, DatasetId, Incarnation, Reason, layout};

/// `LBLK`.
pub const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"LBLK");
/// Bytes of a block that are not payload.
pub const BLOCK_OVERHEAD: u32 = BlockHeader::SIZE as u32;
/// log2 of [`FRAME`].
pub const FRAME_SHIFT: u8 = 12;
/// Bytes of content that are summed by themselves where a block has frames.
pub const FRAME: u32 = 1 << FRAME_SHIFT;
/// Bytes of a frame's sum.
pub const FRAME_SUM: u32 = 8;

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
        /// Checksum of the stored payload; where there are frames, of their sums alone.
        payload_sum: [u8; SUM_LEN] = 40,
        /// Owner hint for repair: the dataset (0: the pool).
        owner_dataset: DatasetId = 72,
        /// Owner hint: the inode of a record; the first key's object of a node.
        owner_object: u64 = 80,
        /// Owner hint: the record's offset in its file; the first key's offset of a node.
        owner_offset: u64 = 88,
        /// Owner hint: the first key's kind of a node.
        owner_kind: u8 = 96,
        /// log2 of the bytes of content that are summed by themselves: [`FRAME_SHIFT`], or 0 when all is one piece.
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

/// Kind of a block's content.
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
    /// A [commit record](crate::commit_record), for repair: datasets and their roots, in clear.
    CommitRecord = 6,
}

/// Codec of a payload. The level is the writer's choice.
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

/// Header fields that the block's writer sets; [`encode`] adds ids and sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// Kind of content.
    pub kind: BlockKind,
    /// Codec of the payload.
    pub codec: CodecKind,
    /// Algorithm of the payload's checksum.
    pub checksum: ChecksumKind,
    /// Whether the payload begins with sums of the content's frames.
    pub framed: bool,
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

/// Identity of a block in its pool: its id, and when it was written.
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
        frame: if info.framed { FRAME_SHIFT } else { 0 },
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

/// Bytes of the sums of frames of `logical` bytes of content.
pub fn frame_sums_len(logical: u32) -> u32 {
    logical.div_ceil(FRAME) * FRAME_SUM
}

/// Bytes of the content of a record as it is stored, of a block of `stored` bytes and `logical` plain ones: without
/// header, and without sums of frames.
pub fn content_len(stored: u32, logical: u32) -> u32 {
    let rest = stored.saturating_sub(BLOCK_OVERHEAD);
    if rest == frame_sums_len(logical) + logical { logical } else { rest }
}

/// The sums of the frames of `content`, as they are stored.
pub fn frame_sums(sums: &Sums, content: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(content.len().div_ceil(FRAME as usize) * FRAME_SUM as usize);
    for frame in content.chunks(FRAME as usize) {
        stored.extend_from_slice(&checksum::fast64(sums, frame).to_le_bytes());
    }
    stored
}

/// Verifies the frames that `content` is, against as many of their sums.
pub fn check_frames(sums: &Sums, stored: &[u8], content: &[u8]) -> Result<(), Corrupt> {
    let count = content.len().div_ceil(FRAME as usize);
    let mut each = stored.chunks_exact(FRAME_SUM as usize).zip(content.chunks(FRAME as usize));
    let is_right = |(sum, frame): (&[u8], &[u8])| checksum::fast64(sums, frame).to_le_bytes() == sum;
    ensure(stored.len() == count * FRAME_SUM as usize, "frames of a block", Reason::Range)?;
    ensure(each.all(is_right), "block payload", Reason::Checksum)
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
    /// Fields that its writer set.
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
        let framed = header.frame != 0;
        if framed {
            let is_known = header.frame == FRAME_SHIFT
                && header.kind == BlockKind::Record as u8
                && header.codec == CodecKind::Off as u8
                && header.checksum == ChecksumKind::Fast as u8;
            ensure(is_known, "such frames in blocks", Reason::Feature)?;
            let whole = header.logical.checked_add(frame_sums_len(header.logical));
            ensure(header.logical > 0 && whole == Some(header.payload), WHAT, Reason::Range)?;
        }
        Ok(Self {
            id: header.id,
            incarnation: header.incarnation,
            birth: header.birth,
            info: BlockInfo {
                kind: BlockKind::from_byte(header.kind)?,
                codec: CodecKind::from_byte(header.codec)?,
                checksum: ChecksumKind::from_byte(header.checksum)?,
                framed,
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

    /// Bytes before the content: the header, and the sums of frames.
    pub fn before_content(&self) -> u32 {
        BLOCK_OVERHEAD + if self.info.framed { frame_sums_len(self.info.logical) } else { 0 }
    }

    /// The sums of the frames of the block that begins with `bytes`, verified; none when it has none.
    pub fn frame_sums<'a>(&self, sums: &Sums, bytes: &'a [u8]) -> Result<&'a [u8], Corrupt> {
        let stored = bytes.get(BlockHeader::SIZE..self.before_content() as usize);
        let stored = stored.ok_or(Corrupt::new("block", Reason::Short))?;
        if self.info.framed {
            self.check_sum(sums, stored)?;
        }
        Ok(stored)
    }

    fn check_sum(&self, sums: &Sums, summed: &[u8]) -> Result<(), Corrupt> {
        let sum = checksum::payload_sum(self.info.checksum, sums, summed);
        ensure(sum == self.payload_sum, "block payload", Reason::Checksum)
    }

    /// Bytes the block takes in its column.
    pub fn footprint(&self) -> u64 {
        u64::from(self.stored()).next_multiple_of(u64::from(BLOCK_STEP))
    }
}

/// Verifies the whole block at the start of `bytes` and that it is block `id`; returns its header and
/// its content, still encoded.
pub fn check<'a>(sums: &Sums, id: BlockId, bytes: &'a [u8]) -> Result<(CheckedHeader, &'a [u8]), Corrupt> {
    let (header, content) = check_any(sums, bytes)?;
    ensure(header.id == id, "block", Reason::Identity)?;
    Ok((header, content))
}

/// Verifies the whole block at the start of `bytes`, whichever it is; returns its header and its content, still
/// encoded.
pub fn check_any<'a>(sums: &Sums, bytes: &'a [u8]) -> Result<(CheckedHeader, &'a [u8]), Corrupt> {
    let header = CheckedHeader::check(sums, bytes)?;
    let stored = header.frame_sums(sums, bytes)?;
    let content = bytes.get(header.before_content() as usize..header.stored() as usize);
    let content = content.ok_or(Corrupt::new("block", Reason::Short))?;
    if header.info.framed {
        check_frames(sums, stored, content)?;
    } else {
        header.check_sum(sums, content)?;
    }
    Ok((header, content))
}
