//! Records: 312 bytes each (`dmu_replay_record`, OpenZFS `zfs_ioctl.h`), some with a payload behind them.

use crate::bytes::Order;
use crate::codec::MAX_BLOCK;
use crate::error::{Refusal, Result, corrupt};

/// Bytes of a record.
pub(crate) const LEN: usize = 312;
/// Bytes before its own checksum.
pub(crate) const SUMMED: usize = LEN - 32;
const MAGIC: u64 = 0x2_F5BA_CBAC;
/// Largest payload of a `BEGIN`, bytes: the list of a package.
const MAX_LIST: u32 = 64 << 20;

const COMPOUND: u64 = 2;
const FEATURES: [(u32, Option<Refusal>); 13] = [
    (0, Some(Refusal::Deduplicated)),
    (1, Some(Refusal::Deduplicated)),
    (2, None),  // SA_SPILL
    (16, None), // EMBED_DATA
    (17, None), // LZ4
    (19, None), // LARGE_BLOCKS
    (20, Some(Refusal::Resuming)),
    (21, Some(Refusal::Redacted)),
    (22, None), // COMPRESSED
    (23, None), // LARGE_DNODE
    (24, Some(Refusal::Raw)),
    (25, None), // ZSTD
    (26, None), // HOLDS
];
/// SWITCH_TO_LARGE_BLOCKS, LONGNAME, LARGE_MICROZAP: no record looks different for them.
const HARMLESS: u64 = 1 << 27 | 1 << 28 | 1 << 29;

/// Begins a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// The list of a package follows, and then its streams; else a stream of one snapshot.
    pub(crate) compound: bool,
    /// Feature bits.
    pub features: u64,
    /// When the snapshot was taken, seconds since 1970.
    pub creation: u64,
    /// Kind of the dataset: 2 has files, 3 is a volume.
    pub(crate) kind: u32,
    /// The base is a snapshot of another dataset: this one is its clone.
    pub is_clone: bool,
    /// Objects tell whether they have a spill block.
    pub(crate) tells_spill: bool,
    /// The guid of the snapshot.
    pub to_guid: u64,
    /// The guid of the snapshot that it is an increment upon; 0 for a whole one.
    pub from_guid: u64,
    /// Its name at the sender: `pool/dataset@snapshot`.
    pub to_name: Vec<u8>,
}

impl Begin {
    /// The name of the dataset at the sender, before the `@`.
    pub fn dataset(&self) -> &[u8] {
        self.to_name.split(|&byte| byte == b'@').next().unwrap_or_default()
    }

    /// The name of the snapshot alone, behind the `@`.
    pub fn snapshot(&self) -> &[u8] {
        self.to_name.splitn(2, |&byte| byte == b'@').nth(1).unwrap_or_default()
    }

    /// Refuses streams that are not taken.
    ///
    /// # Errors
    /// [`Refusal`], by its kind.
    pub fn check(&self) -> std::result::Result<(), Refusal> {
        let mut unknown = self.features & !HARMLESS;
        for (bit, refusal) in FEATURES {
            match refusal {
                Some(refusal) if unknown >> bit & 1 == 1 => return Err(refusal),
                _ => unknown &= !(1 << bit),
            }
        }
        match (unknown, self.kind) {
            (0, 2) => Ok(()),
            (0, _) => Err(Refusal::NotFiles),
            (bits, _) => Err(Refusal::Features(bits)),
        }
    }
}

/// An object: its attributes are the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Its number.
    pub object: u64,
    /// Kind of its content: `DMU_OT_*`.
    pub kind: u32,
    /// Kind of its bonus.
    pub bonus_kind: u32,
    /// Bytes of a block.
    pub block: u32,
    /// Bytes of the bonus.
    pub bonus_len: u32,
    /// Slots of 512 bytes that it takes; the numbers of the others are free.
    pub slots: u8,
    /// It has a spill block, where the stream tells.
    pub has_spill: bool,
}

/// A record without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Head {
    Begin(Box<Begin>),
    Object(Object),
    FreeObjects { first: u64, count: u64 },
    Write { object: u64, offset: u64, len: u64, codec: u8, packed: u64 },
    Free { object: u64, offset: u64, len: u64 },
    End { sum: [u64; 4] },
    Spill { object: u64, len: u64, codec: u8, packed: u64 },
    Embedded { object: u64, offset: u64, len: u64, codec: u8, plain: u32, packed: u32 },
}

/// A record and the payload's length, bytes.
pub(crate) struct Parsed {
    pub head: Head,
    pub payload: usize,
}

/// The byte order of a stream that begins with this record.
pub(crate) fn order_of(bytes: &[u8; LEN]) -> Option<Order> {
    [Order::Little, Order::Big]
        .into_iter()
        .find(|order| order.u64(bytes, 8) == Some(MAGIC) && order.u32(bytes, 0) == Some(0))
}

/// The checksum that a record may carry of all before it.
pub(crate) fn own_sum(bytes: &[u8; LEN], order: Order) -> [u64; 4] {
    sum_at(bytes, order, SUMMED)
}

fn sum_at(bytes: &[u8; LEN], order: Order, at: usize) -> [u64; 4] {
    [0, 8, 16, 24].map(|word| order.u64(bytes, at + word).unwrap_or_default())
}

fn block_len(len: u64) -> Result<usize> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len == 0 || len > MAX_BLOCK { Err(corrupt("a block's length")) } else { Ok(len) }
}

pub(crate) fn parse(bytes: &[u8; LEN], order: Order) -> Result<Parsed> {
    // Within the record all of these are there.
    let u64 = |at| order.u64(bytes, at).unwrap_or_default();
    let u32 = |at| order.u32(bytes, at).unwrap_or_default();
    let mut payload = 0;
    let head = match u32(0) {
        0 => {
            if u64(8) != MAGIC {
                return Err(corrupt("the magic number of a stream"));
            }
            let len = u32(4);
            if len > MAX_LIST {
                return Err(corrupt("the length of a list"));
            }
            payload = len as usize;
            let (version, flags) = (u64(16), u32(36));
            let name = &bytes[56..];
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            Head::Begin(Box::new(Begin {
                compound: version & 3 == COMPOUND,
                features: version >> 2 & ((1 << 30) - 1),
                creation: u64(24),
                kind: u32(32),
                is_clone: flags & 1 != 0,
                tells_spill: flags & 8 != 0,
                to_guid: u64(40),
                from_guid: u64(48),
                to_name: name[..end].to_vec(),
            }))
        }
        1 => {
            let (block, bonus_len) = (u32(24), u32(28));
            if bonus_len > 16384 {
                return Err(corrupt("the length of a bonus"));
            }
            block_len(u64::from(block))?;
            payload = (bonus_len as usize).next_multiple_of(8);
            Head::Object(Object {
                object: u64(8),
                kind: u32(16),
                bonus_kind: u32(20),
                block,
                bonus_len,
                slots: bytes[34].max(1),
                has_spill: bytes[35] & 4 != 0,
            })
        }
        2 => Head::FreeObjects { first: u64(8), count: u64(16) },
        3 => {
            let (len, codec, packed) = (u64(32), bytes[50], u64(96));
            payload = block_len(if codec == 0 { len } else { packed })?;
            block_len(len)?;
            Head::Write { object: u64(8), offset: u64(24), len, codec, packed }
        }
        4 => Head::Free { object: u64(8), offset: u64(16), len: u64(24) },
        5 => Head::End { sum: sum_at(bytes, order, 8) },
        6 => return Err(Refusal::Deduplicated.into()),
        7 => {
            let (len, codec, packed) = (u64(16), bytes[33], u64(40));
            payload = block_len(if packed == 0 { len } else { packed })?;
            block_len(len)?;
            Head::Spill { object: u64(8), len, codec, packed }
        }
        8 => {
            let (len, plain, packed) = (u64(24), u32(48), u32(52));
            // BPE_PAYLOAD_SIZE: all that a block pointer has room for.
            if packed > 112 || bytes[41] != 0 || u64::from(plain) > len {
                return Err(corrupt("an embedded block"));
            }
            block_len(len)?;
            payload = (packed as usize).next_multiple_of(8);
            Head::Embedded { object: u64(8), offset: u64(16), len, codec: bytes[40], plain, packed }
        }
        9 => return Err(Refusal::Raw.into()),
        10 => return Err(Refusal::Redacted.into()),
        _ => return Err(corrupt("a record of an unknown kind")),
    };
    Ok(Parsed { head, payload })
}
