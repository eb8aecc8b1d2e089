//! A pool's records of itself: events, commands, and parts of it that cannot be read. Values of three of the
//! [tables](crate::tables); all are bounded in number, and the pool can do without any of them.

use crate::error::ensure;
use crate::ids::ensure_countable;
use crate::{BlockId, Corrupt, DatasetId, DeviceGuid, Reason, Timestamp, layout};

/// The most bytes of each text of an event or a command; longer ones are cut.
pub const MAX_TEXT: usize = 1024;

/// `text`, cut to what a record takes.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Splits what follows a head into texts of these lengths, which must be all of it.
fn texts<const N: usize>(
    mut rest: &[u8],
    lens: [u16; N],
    what: &'static str,
) -> Result<[String; N], Corrupt> {
    let mut found = [const { String::new() }; N];
    for (text, len) in found.iter_mut().zip(lens) {
        ensure(usize::from(len) <= MAX_TEXT, what, Reason::Range)?;
        let (bytes, behind) = rest.split_at_checked(len.into()).ok_or(Corrupt::new(what, Reason::Short))?;
        *text = str::from_utf8(bytes).map_err(|_| Corrupt::new(what, Reason::Range))?.to_owned();
        rest = behind;
    }
    ensure(rest.is_empty(), what, Reason::Range)?;
    Ok(found)
}

fn ensure_times(times: &[Timestamp], what: &'static str) -> Result<(), Corrupt> {
    ensure(times.iter().all(|time| time.nanos < 1_000_000_000), what, Reason::Range)
}

layout! {
    /// The fixed part of an [`EventRecord`]; class, device and text follow.
    pub struct EventHead[72] {
        /// When it happened first.
        first: Timestamp = 0,
        /// When it happened last.
        last: Timestamp = 16,
        /// Number of occurrences.
        count: u64 = 32,
        /// The device that it is about; 0 for none.
        device: DeviceGuid = 40,
        /// The dataset of the file that it is about; 0 for none.
        dataset: DatasetId = 48,
        /// That file's inode.
        inode: u64 = 56,
        /// Bytes of the class.
        class_len: u16 = 64,
        /// Bytes of the device's name.
        name_len: u16 = 66,
        /// Bytes of the text.
        text_len: u16 = 68,
    }
}

/// Something that happened to a pool, or the same thing several times within a short while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// When it happened first.
    pub first: Timestamp,
    /// When it happened last.
    pub last: Timestamp,
    /// Number of occurrences, at least 1.
    pub count: u64,
    /// The device that it is about.
    pub device: Option<DeviceGuid>,
    /// The dataset and inode of the file that it is about.
    pub file: Option<(DatasetId, u64)>,
    /// One word: `checksum`, `statechange`, ….
    pub class: String,
    /// The device's name then, for people; empty without one.
    pub device_name: String,
    /// Details, free text.
    pub text: String,
}

impl EventRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let texts = [cut(&self.class), cut(&self.device_name), cut(&self.text)];
        let mut out = vec![0; EventHead::SIZE];
        EventHead {
            first: self.first,
            last: self.last,
            count: self.count,
            device: self.device.unwrap_or(DeviceGuid::new(0)),
            dataset: self.file.map_or(DatasetId::new(0), |(dataset, _)| dataset),
            inode: self.file.map_or(0, |(_, inode)| inode),
            class_len: texts[0].len() as u16,
            name_len: texts[1].len() as u16,
            text_len: texts[2].len() as u16,
        }
        .put(&mut out);
        texts.iter().for_each(|text| out.extend_from_slice(text.as_bytes()));
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "event record";
        let head = EventHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure_times(&[head.first, head.last], WHAT)?;
        ensure_countable(&[head.count, head.dataset.get(), head.inode], WHAT)?;
        ensure(head.count > 0, WHAT, Reason::Range)?;
        let lens = [head.class_len, head.name_len, head.text_len];
        let [class, device_name, text] = texts(&bytes[EventHead::SIZE..], lens, WHAT)?;
        Ok(Self {
            first: head.first,
            last: head.last,
            count: head.count,
            device: (head.device.get() != 0).then_some(head.device),
            file: (head.dataset.get() != 0).then_some((head.dataset, head.inode)),
            class,
            device_name,
            text,
        })
    }
}

layout! {
    /// The fixed part of a [`CommandRecord`]; user, host and text follow.
    pub struct CommandHead[24] {
        /// When it was done.
        time: Timestamp = 0,
        /// The user's number.
        uid: u32 = 12,
        /// Bytes of the user's name.
        user_len: u16 = 16,
        /// Bytes of the host's name.
        host_len: u16 = 18,
        /// Bytes of the text.
        text_len: u16 = 20,
    }
}

/// A command that changed a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRecord {
    /// When it was done.
    pub time: Timestamp,
    /// The user's number.
    pub uid: u32,
    /// The user's name; empty when there is none.
    pub user: String,
    /// The host's name.
    pub host: String,
    /// The command as it was typed.
    pub text: String,
}

impl CommandRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let texts = [cut(&self.user), cut(&self.host), cut(&self.text)];
        let mut out = vec![0; CommandHead::SIZE];
        CommandHead {
            time: self.time,
            uid: self.uid,
            user_len: texts[0].len() as u16,
            host_len: texts[1].len() as u16,
            text_len: texts[2].len() as u16,
        }
        .put(&mut out);
        texts.iter().for_each(|text| out.extend_from_slice(text.as_bytes()));
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "command record";
        let head = CommandHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure_times(&[head.time], WHAT)?;
        let lens = [head.user_len, head.host_len, head.text_len];
        let [user, host, text] = texts(&bytes[CommandHead::SIZE..], lens, WHAT)?;
        Ok(Self { time: head.time, uid: head.uid, user, host, text })
    }
}

/// Kind of a [`DamageRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DamageKind {
    /// A range of a file, whose record cannot be read.
    Data = 1,
    /// A file or directory of which something other than data cannot be read: attributes, names, places.
    Object = 2,
    /// A node of a dataset's tree, with all objects from `inode` to `last` or parts of them.
    Node = 3,
}

layout! {
    /// Something of a dataset that can neither be read nor rebuilt.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct DamageRecord[104] {
        /// The dataset.
        dataset: DatasetId = 0,
        /// `high` of the snapshot that it is in; 0 for the dataset's head.
        snapshot: BlockId = 8,
        /// The inode, or the lowest object of a node.
        inode: u64 = 16,
        /// Where in the file the damage begins, bytes; of a node the offset of its lowest key.
        offset: u64 = 24,
        /// Length of the damage in the file, bytes.
        len: u64 = 32,
        /// The highest object of a node; else the inode.
        last: u64 = 40,
        /// The block that cannot be read; 0 when only what leads to it is known.
        block: BlockId = 48,
        /// A directory that names the inode, when that had to be looked for; else 0.
        parent: u64 = 56,
        /// The key of that name in the directory.
        cookie: u64 = 64,
        /// When it was found.
        found: Timestamp = 72,
        /// A number of [`DamageKind`].
        kind: u8 = 88,
        /// The kind of a node's lowest key; its object is `inode`, its offset `offset`.
        key_kind: u8 = 89,
    }
}

impl DamageKind {
    fn from_number(number: u8) -> Result<Self, Corrupt> {
        [Self::Data, Self::Object, Self::Node]
            .into_iter()
            .find(|kind| *kind as u8 == number)
            .ok_or(Corrupt::new("damage record", Reason::Kind))
    }
}

impl DamageRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; Self::SIZE];
        self.put(&mut out);
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "damage record";
        let record = Self::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(bytes.len() == Self::SIZE, WHAT, Reason::Range)?;
        DamageKind::from_number(record.kind)?;
        ensure_times(&[record.found], WHAT)?;
        ensure_countable(&[record.dataset.get(), record.snapshot.get(), record.block.get()], WHAT)?;
        ensure(record.inode <= record.last, WHAT, Reason::Order)?;
        ensure(record.offset.checked_add(record.len).is_some(), WHAT, Reason::Range)?;
        Ok(record)
    }

    /// Its kind.
    ///
    /// # Panics
    /// When it was neither decoded nor made with one of the kinds.
    pub fn what(&self) -> DamageKind {
        DamageKind::from_number(self.kind).expect("records are checked when they are read")
    }
}
