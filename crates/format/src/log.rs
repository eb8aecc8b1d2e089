//! Records of the intent log: a head that chains them, and operations as length-prefixed byte strings
//! whose meaning is the files layer's (see [`crate::ops`]).

use crate::error::ensure;
use crate::field::Field;
use crate::ids::ensure_countable;
use crate::{CommitId, Corrupt, DatasetId, Incarnation, OpSeq, Reason, layout};

layout! {
    /// The head of a log record: the payload of a block of kind `Log`. The operations follow, each
    /// with a u32 length in front.
    pub struct LogHead[48] {
        /// The import under which it was written.
        incarnation: Incarnation = 0,
        /// The newest durable commit when it was written.
        base: CommitId = 8,
        /// Position in the chain; one more than the predecessor's.
        sequence: u64 = 16,
        /// XXH3-64 of the predecessor's payload; 0 for the first of an import.
        previous: u64 = 24,
        /// Number of operations.
        count: u32 = 32,
    }
}

layout! {
    /// Head of an operation in a log record.
    pub struct OpHead[24] {
        /// Its place in the pool's order.
        number: OpSeq = 0,
        /// The dataset it changes.
        dataset: DatasetId = 8,
        /// Cipher: key that sealed the operation; 0 is none. Reserved.
        key: u32 = 16,
    }
}

/// An operation with its head, as it stands in a log record.
pub fn encode_op(number: OpSeq, dataset: DatasetId, op: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(OpHead::SIZE + op.len());
    out.resize(OpHead::SIZE, 0);
    OpHead { number, dataset, key: 0 }.put(&mut out);
    out.extend_from_slice(op);
    out
}

/// The inverse of [`encode_op`].
///
/// # Errors
/// When there is no head, or the operation is sealed with a key.
pub fn decode_op(bytes: &[u8]) -> Result<(OpSeq, DatasetId, &[u8]), Corrupt> {
    let short = Corrupt::new("logged operation", Reason::Short);
    let head = OpHead::get(bytes).ok_or(short)?;
    ensure(head.key == 0, "sealed operations in the log", Reason::Feature)?;
    ensure_countable(&[head.number.get()], "logged operation")?;
    Ok((head.number, head.dataset, &bytes[OpHead::SIZE..]))
}

/// A log record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The import under which it was written.
    pub incarnation: Incarnation,
    /// The newest durable commit when it was written.
    pub base: CommitId,
    /// Position in the chain.
    pub sequence: u64,
    /// XXH3-64 of the predecessor's payload.
    pub previous: u64,
    /// Operations, encoded.
    pub ops: Vec<Vec<u8>>,
}

impl LogRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let len = self.ops.iter().map(|op| 4 + op.len()).sum::<usize>();
        let mut out = Vec::with_capacity(LogHead::SIZE + len);
        out.resize(LogHead::SIZE, 0);
        LogHead {
            incarnation: self.incarnation,
            base: self.base,
            sequence: self.sequence,
            previous: self.previous,
            count: self.ops.len() as u32,
        }
        .put(&mut out);
        for op in &self.ops {
            out.extend_from_slice(&(op.len() as u32).to_le_bytes());
            out.extend_from_slice(op);
        }
        out
    }

    /// Reads a record; the block around it has been verified.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "log record";
        let short = Corrupt::new(WHAT, Reason::Short);
        let head = LogHead::get(bytes).ok_or(short)?;
        let mut rest = &bytes[LogHead::SIZE..];
        let mut ops = Vec::new();
        for _ in 0..head.count {
            let (len, left) = rest.split_at_checked(4).ok_or(short)?;
            let (op, left) = left.split_at_checked(u32::load(len) as usize).ok_or(short)?;
            ops.push(op.to_vec());
            rest = left;
        }
        ensure(rest.is_empty(), WHAT, Reason::Range)?;
        Ok(Self {
            incarnation: head.incarnation,
            base: head.base,
            sequence: head.sequence,
            previous: head.previous,
            ops,
        })
    }
}
