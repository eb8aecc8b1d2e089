//! Bytes of a stream to checked values and back; no pools.

use crate::error::{StreamError, Wrong};
use bytes::Bytes;
use larder_format::Timestamp;
use larder_format::block::CodecKind;
use larder_format::items::{EXTENT, MAX_FILE, MAX_RECORD, MAX_VALUE, NAME_SALT_LEN};
use larder_format::node::Key;
use std::io::Read;
use twox_hash::XxHash3_64;

/// Start of a stream.
pub const STREAM_MAGIC: [u8; 8] = *b"LARDERST";
/// Version of the whole.
pub const STREAM_VERSION: u16 = 1;
/// Bytes in front of a frame's payload.
pub const FRAME_HEAD: usize = 8;
/// Bytes behind it.
pub const FRAME_SUM: usize = 8;
/// The most bytes of a frame's payload.
pub const FRAME_MAX: u32 = 16 << 20;
/// The most items of a chunk.
pub const ITEMS_MAX: u32 = 8192;
/// Bytes of an item at most, but for values and records.
const ITEM_BYTES: usize = 54;
/// The most plain bytes of the records of a chunk.
pub const PLAIN_MAX: u64 = 32 << 20;
/// The most bytes of a text.
pub const TEXT_MAX: usize = 8192;
/// The most entries of a list.
pub const LIST_MAX: u32 = 1 << 20;

/// Kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The stream begins.
    Start = 1,
    /// A dataset of a package begins.
    Dataset = 2,
    /// A snapshot begins.
    Begin = 3,
    /// Some of its items.
    Chunk = 4,
    /// It is whole.
    End = 5,
    /// The stream is whole.
    Close = 6,
}

/// Flag of a stream: it has all snapshots of the datasets in it that the sender had.
pub const STREAM_REPLICATES: u32 = 1;
/// Flag of a stream: there may be [`Item::Clear`] and [`Item::Keep`] in it.
pub const STREAM_CLEARS: u32 = 2;
/// Flag of a snapshot: its stream goes on where one broke off.
pub const BEGIN_RESUMED: u32 = 1;
/// Flag of a snapshot: what it builds upon is a snapshot of another dataset, whose clone this one is.
pub const BEGIN_CLONE: u32 = 2;

/// Names and values.
pub type Pairs = Vec<(String, String)>;

/// The beginning of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Set of `STREAM_*`.
    pub flags: u32,
    /// The dataset that was sent, by its full name.
    pub name: String,
}

/// A dataset of a package.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatasetFrame {
    /// Its name below the dataset that was sent, empty for that one.
    pub path: String,
    /// Properties set on it.
    pub properties: Pairs,
    /// GUIDs and names of its snapshots, oldest first.
    pub snapshots: Vec<(u64, String)>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// Its GUID.
    pub to: u64,
    /// GUID of the snapshot that it builds upon; 0 without.
    pub from: u64,
    /// When it was taken.
    pub created: Timestamp,
    /// Set of `BEGIN_*`.
    pub flags: u32,
    /// The next inode id to be given out.
    pub next_inode: u64,
    /// Salt that names are hashed with.
    pub salt: [u8; NAME_SALT_LEN],
    /// With `BEGIN_RESUMED`, the key behind which it goes on.
    pub position: Key,
    /// Its full name.
    pub name: String,
    /// Properties of the dataset.
    pub properties: Pairs,
    /// Its own properties.
    pub own: Pairs,
    /// Tags of holds.
    pub holds: Vec<String>,
}

/// Change of one entry of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// It goes.
    Remove(Key),
    /// It comes, or gets another value; never an extent.
    Put(Key, Bytes),
    /// An extent whose record is here.
    Data(Key, Cover, Stored),
    /// An extent whose record is what another extent has.
    Same(Key, Cover, Place),
    /// From this key on nothing stays of what it builds upon but what is told, up to [`Item::Keep`].
    Clear(Key),
    /// From this key on all that it builds upon stays, but for what is told.
    Keep(Key),
}

impl Item {
    /// The entry's key, or the one where something begins.
    pub fn key(&self) -> Key {
        match self {
            Self::Remove(key) | Self::Put(key, _) | Self::Data(key, ..) | Self::Same(key, ..) => *key,
            Self::Clear(key) | Self::Keep(key) => *key,
        }
    }

    /// Whether it may come behind `before`, by their keys.
    pub fn may_follow(&self, before: (Key, bool)) -> bool {
        let (last, clears) = before;
        let key = self.key();
        key > last || clears && key == last && !matches!(self, Self::Keep(_))
    }

    /// Its key, and whether the next one may have the same.
    pub fn as_before(&self) -> (Key, bool) {
        (self.key(), matches!(self, Self::Clear(_)))
    }
}

/// Part of a record that an extent covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cover {
    /// Plain bytes covered.
    pub len: u32,
    /// Where they begin in the record.
    pub block_offset: u32,
    /// Plain bytes of the record.
    pub logical: u32,
}

/// A record as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its codec.
    pub codec: CodecKind,
    /// The record as that codec made it.
    pub payload: Bytes,
}

/// An extent of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// GUID of the snapshot: the one at hand, or the one that it builds upon.
    pub snapshot: u64,
    /// Inode.
    pub object: u64,
    /// Offset in the file.
    pub offset: u64,
}

/// Totals of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// Items.
    pub items: u64,
    /// Records among them.
    pub records: u64,
    /// Their stored bytes.
    pub bytes: u64,
}

/// A part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// See [`FrameKind::Start`].
    Start(Start),
    /// See [`FrameKind::Dataset`].
    Dataset(DatasetFrame),
    /// See [`FrameKind::Begin`].
    Begin(Begin),
    /// See [`FrameKind::Chunk`].
    Chunk(Vec<Item>),
    /// See [`FrameKind::End`].
    End(End),
    /// See [`FrameKind::Close`].
    Close,
}

/// The sum behind a frame's head and payload that follow a frame with the sum `before`.
pub fn sum_after(before: u64, frame: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(before, frame)
}

/// Makes the sums of all whole frames in `bytes` right.
pub fn repair_sums(mut bytes: &mut [u8]) {
    let mut sum = 0;
    while let Some(head) = bytes.get(4..FRAME_HEAD) {
        let len = u32::from_le_bytes(head.try_into().expect("four bytes")) as usize;
        let Some((frame, rest)) = bytes.split_at_mut_checked(FRAME_HEAD + len) else { return };
        let Some((old, rest)) = rest.split_at_mut_checked(FRAME_SUM) else { return };
        sum = sum_after(sum, frame);
        old.copy_from_slice(&sum.to_le_bytes());
        bytes = rest;
    }
}

/// Makes frames, each summed over the one before it.
#[derive(Default)]
pub struct Encoder {
    sum: u64,
}

impl Encoder {
    /// The bytes of a frame.
    pub fn frame(&mut self, frame: &Frame) -> Vec<u8> {
        let mut out = Vec::with_capacity(FRAME_HEAD + frame.len_about() + FRAME_SUM);
        out.resize(FRAME_HEAD, 0);
        out[0] = frame.kind() as u8;
        frame.put(&mut out);
        let len = (out.len() - FRAME_HEAD) as u32;
        out[4..8].copy_from_slice(&len.to_le_bytes());
        self.sum = sum_after(self.sum, &out);
        out.extend_from_slice(&self.sum.to_le_bytes());
        out
    }
}

/// Reads frames.
pub struct Decoder<R> {
    input: R,
    sum: u64,
    /// Bytes read.
    at: u64,
    /// The stream says that it clears.
    clears: bool,
}

impl<R: Read> Decoder<R> {
    /// Of a stream from its start.
    pub fn new(input: R) -> Self {
        Self { input, sum: 0, at: 0, clears: false }
    }

    /// Bytes read so far.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The error of refusing what was read last.
    pub fn refuse(&self, wrong: Wrong) -> StreamError {
        StreamError::Bad { at: self.at, wrong }
    }

    /// The next frame; none behind the last one.
    ///
    /// # Errors
    /// When the stream ends early, is not whole, or says what cannot be.
    pub fn frame(&mut self) -> Result<Frame, StreamError> {
        let at = self.at;
        let bad = |wrong| StreamError::Bad { at, wrong };
        let mut bytes = vec![0; FRAME_HEAD];
        self.fill(&mut bytes)?;
        let len = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
        // A stream of something else is told by its first bytes.
        let is_known = FrameKind::of(bytes[0]).is_some() && bytes[1..4] == [0; 3] && len <= FRAME_MAX;
        if !is_known {
            return Err(bad(if at == 0 { Wrong::Magic } else { Wrong::Range }));
        }
        let kind = FrameKind::of(bytes[0]).ok_or_else(|| bad(Wrong::Range))?;
        bytes.resize(FRAME_HEAD + len as usize, 0);
        self.fill(&mut bytes[FRAME_HEAD..])?;
        let mut sum = [0; FRAME_SUM];
        self.fill(&mut sum)?;
        let bytes = Bytes::from(bytes);
        let payload = bytes.slice(FRAME_HEAD..);
        if at == 0 && (kind != FrameKind::Start || !payload.starts_with(&STREAM_MAGIC)) {
            return Err(bad(Wrong::Magic));
        }
        self.sum = sum_after(self.sum, &bytes);
        if sum != self.sum.to_le_bytes() {
            return Err(bad(Wrong::Sum));
        }
        let frame = Frame::get(kind, payload).map_err(bad)?;
        match &frame {
            Frame::Start(start) => self.clears = start.flags & STREAM_CLEARS != 0,
            Frame::Chunk(items) if !self.clears => {
                let is_known = |item: &Item| !matches!(item, Item::Clear(_) | Item::Keep(_));
                items.iter().all(is_known).then_some(()).ok_or_else(|| bad(Wrong::Feature))?;
            }
            _ => {}
        }
        Ok(frame)
    }

    fn fill(&mut self, mut bytes: &mut [u8]) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            match self.input.read(bytes) {
                Ok(0) => return Err(StreamError::Short(self.at)),
                Ok(read) => {
                    self.at += read as u64;
                    bytes = &mut bytes[read..];
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(StreamError::Read(error)),
            }
        }
        Ok(())
    }
}

impl FrameKind {
    fn of(byte: u8) -> Option<Self> {
        let all = [Self::Start, Self::Dataset, Self::Begin, Self::Chunk, Self::End, Self::Close];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Kinds of items, as texts name them.
#[doc(hidden)]
pub const ITEM_KINDS: [(&str, &str); 6] =
    [("0", "Remove"), ("1", "Put"), ("2", "Data"), ("3", "Same"), ("4", "Clear"), ("5", "Keep")];

/// Operations of items.
const REMOVE: u8 = 0;
const PUT: u8 = 1;
const DATA: u8 = 2;
const SAME: u8 = 3;
const CLEAR: u8 = 4;
const KEEP: u8 = 5;

impl Frame {
    fn kind(&self) -> FrameKind {
        match self {
            Self::Start(_) => FrameKind::Start,
            Self::Dataset(_) => FrameKind::Dataset,
            Self::Begin(_) => FrameKind::Begin,
            Self::Chunk(_) => FrameKind::Chunk,
            Self::End(_) => FrameKind::End,
            Self::Close => FrameKind::Close,
        }
    }

    /// Bytes of its payload, or some more: what is long is not copied while it grows.
    fn len_about(&self) -> usize {
        let Self::Chunk(items) = self else { return 0 };
        let len = |item: &Item| match item {
            Item::Put(_, value) => value.len(),
            Item::Data(_, _, stored) => stored.payload.len(),
            _ => 0,
        };
        items.iter().map(|item| ITEM_BYTES + len(item)).sum::<usize>() + 4
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Start(start) => {
                out.extend_from_slice(&STREAM_MAGIC);
                out.extend_from_slice(&STREAM_VERSION.to_le_bytes());
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&start.flags.to_le_bytes());
                out.extend_from_slice(&[0; 8]);
                put_text(out, &start.name);
            }
            Self::Dataset(dataset) => {
                put_text(out, &dataset.path);
                put_pairs(out, &dataset.properties);
                out.extend_from_slice(&(dataset.snapshots.len() as u32).to_le_bytes());
                for (guid, name) in &dataset.snapshots {
                    out.extend_from_slice(&guid.to_le_bytes());
                    put_text(out, name);
                }
            }
            Self::Begin(begin) => {
                out.extend_from_slice(&begin.to.to_le_bytes());
                out.extend_from_slice(&begin.from.to_le_bytes());
                out.extend_from_slice(&begin.created.secs.to_le_bytes());
                out.extend_from_slice(&begin.created.nanos.to_le_bytes());
                out.extend_from_slice(&begin.flags.to_le_bytes());
                out.extend_from_slice(&begin.next_inode.to_le_bytes());
                out.extend_from_slice(&begin.salt);
                put_key(out, &begin.position);
                put_text(out, &begin.name);
                put_pairs(out, &begin.properties);
                put_pairs(out, &begin.own);
                out.extend_from_slice(&(begin.holds.len() as u32).to_le_bytes());
                begin.holds.iter().for_each(|tag| put_text(out, tag));
            }
            Self::Chunk(items) => put_items(out, items),
            Self::End(end) => {
                for number in [end.items, end.records, end.bytes] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            }
            Self::Close => {}
        }
    }

    fn get(kind: FrameKind, payload: Bytes) -> Result<Self, Wrong> {
        let mut rest = Rest(payload);
        let frame = match kind {
            FrameKind::Start => {
                rest.take(STREAM_MAGIC.len())?;
                if u16::from_le_bytes(rest.array()?) != STREAM_VERSION {
                    return Err(Wrong::Version);
                }
                rest.take(2)?;
                let (flags, features) = (rest.u32()?, rest.u64()?);
                if features != 0 || flags & !(STREAM_REPLICATES | STREAM_CLEARS) != 0 {
                    return Err(Wrong::Feature);
                }
                Self::Start(Start { flags, name: rest.text()? })
            }
            FrameKind::Dataset => {
                let (path, properties) = (rest.text()?, rest.pairs()?);
                let count = rest.count(10)?;
                let one = |rest: &mut Rest| Ok((rest.u64()?, rest.text()?));
                let snapshots = (0..count).map(|_| one(&mut rest)).collect::<Result<_, Wrong>>()?;
                Self::Dataset(DatasetFrame { path, properties, snapshots })
            }
            FrameKind::Begin => {
                let (to, from) = (rest.u64()?, rest.u64()?);
                let created = Timestamp { secs: rest.u64()? as i64, nanos: rest.u32()? };
                let flags = rest.u32()?;
                if flags & !(BEGIN_RESUMED | BEGIN_CLONE) != 0 {
                    return Err(Wrong::Feature);
                }
                if created.nanos >= 1_000_000_000 || to == 0 {
                    return Err(Wrong::Range);
                }
                let (next_inode, salt, position) = (rest.u64()?, rest.array()?, rest.key()?);
                let name = rest.text()?;
                let (properties, own) = (rest.pairs()?, rest.pairs()?);
                let count = rest.count(2)?;
                let holds = (0..count).map(|_| rest.text()).collect::<Result<_, _>>()?;
                Self::Begin(Begin {
                    to,
                    from,
                    created,
                    flags,
                    next_inode,
                    salt,
                    position,
                    name,
                    properties,
                    own,
                    holds,
                })
            }
            FrameKind::Chunk => Self::Chunk(get_items(&mut rest)?),
            FrameKind::End => Self::End(End { items: rest.u64()?, records: rest.u64()?, bytes: rest.u64()? }),
            FrameKind::Close => Self::Close,
        };
        if rest.0.is_empty() { Ok(frame) } else { Err(Wrong::Range) }
    }
}

fn put_items(out: &mut Vec<u8>, items: &[Item]) {
    out.extend_from_slice(&(items.len() as u32).to_le_bytes());
    let put_cover = |out: &mut Vec<u8>, cover: &Cover| {
        for number in [cover.len, cover.block_offset, cover.logical] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    };
    for item in items {
        out.push(match item {
            Item::Remove(_) => REMOVE,
            Item::Put(..) => PUT,
            Item::Data(..) => DATA,
            Item::Same(..) => SAME,
            Item::Clear(_) => CLEAR,
            Item::Keep(_) => KEEP,
        });
        put_key(out, &item.key());
        match item {
            Item::Remove(_) | Item::Clear(_) | Item::Keep(_) => {}
            Item::Put(_, value) => {
                out.extend_from_slice(&(value.len() as u16).to_le_bytes());
                out.extend_from_slice(value);
            }
            Item::Data(_, cover, stored) => {
                put_cover(out, cover);
                out.push(stored.codec as u8);
                out.extend_from_slice(&(stored.payload.len() as u32).to_le_bytes());
            }
            Item::Same(_, cover, place) => {
                put_cover(out, cover);
                for number in [place.snapshot, place.object, place.offset] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            }
        }
    }
    for item in items {
        if let Item::Data(_, _, stored) = item {
            out.extend_from_slice(&stored.payload);
        }
    }
}

fn get_items(rest: &mut Rest) -> Result<Vec<Item>, Wrong> {
    let count = rest.u32()?;
    if count > ITEMS_MAX || count == 0 {
        return Err(Wrong::Range);
    }
    let (mut items, mut payloads, mut last) = (Vec::new(), Vec::new(), None);
    let mut plain = 0u64;
    for at in 0..count as usize {
        let (op, key) = (rest.array::<1>()?[0], rest.key()?);
        let item = match op {
            REMOVE => Item::Remove(key),
            PUT => {
                let len = usize::from(u16::from_le_bytes(rest.array()?));
                if len > MAX_VALUE || key.kind == EXTENT {
                    return Err(Wrong::Range);
                }
                Item::Put(key, rest.take(len)?)
            }
            DATA => {
                let cover = rest.cover(&key)?;
                let codec = CodecKind::from_byte(rest.array::<1>()?[0])?;
                let len = rest.u32()?;
                let fits = if codec == CodecKind::Off { len == cover.logical } else { len < cover.logical };
                plain += u64::from(cover.logical);
                if !fits || plain > PLAIN_MAX {
                    return Err(Wrong::Range);
                }
                payloads.push((at, len));
                Item::Data(key, cover, Stored { codec, payload: Bytes::new() })
            }
            SAME => {
                let cover = rest.cover(&key)?;
                let place = Place { snapshot: rest.u64()?, object: rest.u64()?, offset: rest.u64()? };
                Item::Same(key, cover, place)
            }
            CLEAR => Item::Clear(key),
            KEEP => Item::Keep(key),
            _ => return Err(Wrong::Feature),
        };
        if last.is_some_and(|last| !item.may_follow(last)) {
            return Err(Wrong::Order);
        }
        last = Some(item.as_before());
        items.push(item);
    }
    for (at, len) in payloads {
        let bytes = rest.take(len as usize)?;
        if let Item::Data(_, _, stored) = &mut items[at] {
            stored.payload = bytes;
        }
    }
    Ok(items)
}

fn put_key(out: &mut Vec<u8>, key: &Key) {
    out.extend_from_slice(&key.object.to_le_bytes());
    out.push(key.kind);
    out.extend_from_slice(&key.offset.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    out.extend_from_slice(&(end as u16).to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
}

fn put_pairs(out: &mut Vec<u8>, pairs: &Pairs) {
    out.extend_from_slice(&(pairs.len() as u32).to_le_bytes());
    for (name, value) in pairs {
        put_text(out, name);
        put_text(out, value);
    }
}

/// Bytes that were not looked at yet.
struct Rest(Bytes);

impl Rest {
    fn take(&mut self, len: usize) -> Result<Bytes, Wrong> {
        if self.0.len() < len { Err(Wrong::Range) } else { Ok(self.0.split_to(len)) }
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let bytes = self.take(N)?;
        <[u8; N]>::try_from(&bytes[..]).map_err(|_| Wrong::Range)
    }
    fn u32(&mut self) -> Result<u32, Wrong> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, Wrong> {
        self.array().map(u64::from_le_bytes)
    }
    fn key(&mut self) -> Result<Key, Wrong> {
        Ok(Key { object: self.u64()?, kind: self.array::<1>()?[0], offset: self.u64()? })
    }
    fn text(&mut self) -> Result<String, Wrong> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        if len > TEXT_MAX {
            return Err(Wrong::Range);
        }
        let bytes = self.take(len)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| Wrong::Range)
    }
    /// A number of entries of at least `least` bytes each, which are there.
    fn count(&mut self, least: usize) -> Result<u32, Wrong> {
        let count = self.u32()?;
        let fits = count <= LIST_MAX && count as usize <= self.0.len() / least;
        if fits { Ok(count) } else { Err(Wrong::Range) }
    }
    fn pairs(&mut self) -> Result<Pairs, Wrong> {
        let count = self.count(4)?;
        (0..count).map(|_| Ok((self.text()?, self.text()?))).collect()
    }
    fn cover(&mut self, key: &Key) -> Result<Cover, Wrong> {
        let cover = Cover { len: self.u32()?, block_offset: self.u32()?, logical: self.u32()? };
        let end = cover.block_offset.checked_add(cover.len);
        let is_within = end.is_some_and(|end| end <= cover.logical) && cover.logical <= MAX_RECORD;
        let ends = key.offset.checked_add(u64::from(cover.len)).is_some_and(|end| end <= MAX_FILE);
        if key.kind != EXTENT || cover.len == 0 || !is_within || !ends {
            return Err(Wrong::Range);
        }
        Ok(cover)
    }
}
