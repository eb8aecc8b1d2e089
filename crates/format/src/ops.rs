//! Operations of the intent log: what the files layer changed, so that it can be done again.
//!
//! An operation says what was done to names and attributes, or carries the bytes that an `fsync` had to
//! make durable. Replay does each of them once, in order, on the state of the commit before; all times
//! and numbers are in the operation, so replay gives what was there.
//!
//! Encoding: a tag byte, then the fields in the order of their declaration; integers little-endian,
//! names with a u8 length, other byte strings with a u32 length, absent options as a 0 byte and present
//! ones as 1 and the value. Nothing may follow.

use crate::acl::Acl;
use crate::error::ensure;
use crate::field::Field;
use crate::items::{FileKind, MAX_FILE, MAX_INODE, MAX_TARGET, MAX_XATTR, valid_name, valid_xattr_name};
use crate::{Corrupt, InodeId, Reason, Timestamp};

/// A logged operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogOp {
    /// An inode was made, and named unless it is an orphan yet.
    Create(Create),
    /// An inode got a name: another one, or the first.
    Link(Link),
    /// A name was taken away; `directory` tells `rmdir` from `unlink`.
    Unlink(Unlink),
    /// A name was moved.
    Rename(Rename),
    /// Attributes were changed.
    SetAttr(SetAttr),
    /// An extended attribute was set, or (without a value) taken away.
    SetXattr(SetXattr),
    /// Bytes were written.
    Write(Write),
    /// A range became zero.
    Zero(Zero),
}

/// See [`LogOp::Create`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// The new inode.
    pub inode: InodeId,
    /// The directory it is named in.
    pub parent: InodeId,
    /// Its name; empty for a file that has none yet.
    pub name: Vec<u8>,
    /// Its kind.
    pub kind: FileKind,
    /// Permissions, 12 bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// A symbolic link's target; empty for all else.
    pub target: Vec<u8>,
    /// The directory's default access list, which it inherits; `perm` has the rest of what that gives.
    pub acl: Option<Acl>,
    /// When.
    pub time: Timestamp,
}

/// See [`LogOp::Link`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The inode.
    pub inode: InodeId,
    /// The directory of its new name.
    pub parent: InodeId,
    /// The new name.
    pub name: Vec<u8>,
    /// When.
    pub time: Timestamp,
}

/// See [`LogOp::Unlink`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlink {
    /// The directory.
    pub parent: InodeId,
    /// The name.
    pub name: Vec<u8>,
    /// It names a directory.
    pub directory: bool,
    /// When.
    pub time: Timestamp,
}

/// See [`LogOp::Rename`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// The directory of the old name.
    pub parent: InodeId,
    /// The old name.
    pub name: Vec<u8>,
    /// The directory of the new name.
    pub new_parent: InodeId,
    /// The new name.
    pub new_name: Vec<u8>,
    /// The two names were swapped.
    pub exchange: bool,
    /// When.
    pub time: Timestamp,
}

/// A change of a file's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    /// Cut to this length if it is longer.
    Cut(u64),
    /// Grown to this length if it is shorter.
    Grow(u64),
}

/// See [`LogOp::SetAttr`]. `None` leaves a field alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAttr {
    /// The inode.
    pub inode: InodeId,
    /// Permissions, 12 bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length.
    pub resize: Option<Resize>,
    /// Last read.
    pub atime: Option<Timestamp>,
    /// Last change of the content.
    pub mtime: Option<Timestamp>,
    /// Birth.
    pub btime: Option<Timestamp>,
    /// Last change of anything.
    pub ctime: Timestamp,
}

/// See [`LogOp::SetXattr`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetXattr {
    /// The inode.
    pub inode: InodeId,
    /// The attribute's name.
    pub name: Vec<u8>,
    /// Its value; `None` takes it away.
    pub value: Option<Vec<u8>>,
    /// Permissions, 12 bits, that an access list sets. With them, there may be nothing to take away.
    pub perm: Option<u16>,
    /// When.
    pub time: Timestamp,
}

/// See [`LogOp::Write`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The file.
    pub inode: InodeId,
    /// Where, in bytes.
    pub offset: u64,
    /// The data.
    pub data: Vec<u8>,
    /// The file's length afterwards.
    pub size: u64,
    /// Its last change of content.
    pub mtime: Timestamp,
}

/// See [`LogOp::Zero`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zero {
    /// The file.
    pub inode: InodeId,
    /// Where, in bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// When.
    pub time: Timestamp,
}

const WHAT: &str = "logged operation";
/// Most operations take no more, bytes.
const USUAL: usize = 128;

struct Writer(Vec<u8>);

impl Writer {
    fn put<F: Field>(&mut self, value: F) -> &mut Self {
        let at = self.0.len();
        self.0.resize(at + F::SIZE, 0);
        value.store(&mut self.0[at..]);
        self
    }
    fn option<F: Field>(&mut self, value: Option<F>) -> &mut Self {
        match value {
            None => self.put(0u8),
            Some(value) => self.put(1u8).put(value),
        }
    }
    fn name(&mut self, name: &[u8]) -> &mut Self {
        self.put(name.len() as u8);
        self.0.extend_from_slice(name);
        self
    }
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.put(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        self.0 = rest;
        Ok(head)
    }
    fn get<F: Field>(&mut self) -> Result<F, Corrupt> {
        Ok(F::load(self.take(F::SIZE)?))
    }
    fn flag(&mut self) -> Result<bool, Corrupt> {
        match self.get::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Corrupt::new(WHAT, Reason::Kind)),
        }
    }
    fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Corrupt>,
    ) -> Result<Option<T>, Corrupt> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }
    fn raw_name(&mut self) -> Result<Vec<u8>, Corrupt> {
        let len = self.get::<u8>()?;
        Ok(self.take(usize::from(len))?.to_vec())
    }
    fn name(&mut self) -> Result<Vec<u8>, Corrupt> {
        let name = self.raw_name()?;
        ensure(valid_name(&name), WHAT, Reason::Range)?;
        Ok(name)
    }
    fn bytes(&mut self) -> Result<Vec<u8>, Corrupt> {
        let len = self.get::<u32>()?;
        Ok(self.take(len as usize)?.to_vec())
    }
    fn acl(&mut self) -> Result<Acl, Corrupt> {
        let bytes = self.bytes()?;
        let acl = Acl::decode(&bytes)?;
        ensure(acl.encode() == bytes, WHAT, Reason::Range)?;
        Ok(acl)
    }
    fn inode(&mut self) -> Result<InodeId, Corrupt> {
        let inode: InodeId = self.get()?;
        ensure(inode.get() <= MAX_INODE, WHAT, Reason::Range)?;
        Ok(inode)
    }
    fn time(&mut self) -> Result<Timestamp, Corrupt> {
        let time: Timestamp = self.get()?;
        ensure(time.nanos < 1_000_000_000, WHAT, Reason::Range)?;
        Ok(time)
    }
    fn perm(&mut self) -> Result<u16, Corrupt> {
        let perm = self.get()?;
        ensure(perm < 1 << 12, WHAT, Reason::Range)?;
        Ok(perm)
    }
    fn size(&mut self) -> Result<u64, Corrupt> {
        let size = self.get()?;
        ensure(size <= MAX_FILE, WHAT, Reason::Range)?;
        Ok(size)
    }
}

impl LogOp {
    /// The operation's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(USUAL));
        match self {
            Self::Create(op) => {
                out.put(1u8).put(op.inode).put(op.parent).name(&op.name).put(op.kind as u8).put(op.perm);
                out.put(op.uid).put(op.gid).put(op.rdev).bytes(&op.target);
                match &op.acl {
                    None => out.put(0u8),
                    Some(acl) => out.put(1u8).bytes(&acl.encode()),
                };
                out.put(op.time);
            }
            Self::Link(op) => {
                out.put(2u8).put(op.inode).put(op.parent).name(&op.name).put(op.time);
            }
            Self::Unlink(op) => {
                out.put(3u8).put(op.parent).name(&op.name).put(u8::from(op.directory)).put(op.time);
            }
            Self::Rename(op) => {
                out.put(4u8).put(op.parent).name(&op.name).put(op.new_parent).name(&op.new_name);
                out.put(u8::from(op.exchange)).put(op.time);
            }
            Self::SetAttr(op) => {
                out.put(5u8).put(op.inode).option(op.perm).option(op.uid).option(op.gid);
                match op.resize {
                    None => out.put(0u8),
                    Some(Resize::Cut(size)) => out.put(1u8).put(size),
                    Some(Resize::Grow(size)) => out.put(2u8).put(size),
                };
                out.option(op.atime).option(op.mtime).option(op.btime).put(op.ctime);
            }
            Self::SetXattr(op) => {
                out.put(6u8).put(op.inode).name(&op.name);
                match &op.value {
                    None => out.put(0u8),
                    Some(value) => out.put(1u8).bytes(value),
                };
                out.option(op.perm).put(op.time);
            }
            Self::Write(op) => {
                out.put(7u8).put(op.inode).put(op.offset).bytes(&op.data).put(op.size).put(op.mtime);
            }
            Self::Zero(op) => {
                out.put(8u8).put(op.inode).put(op.offset).put(op.len).put(op.time);
            }
        }
        out.0
    }

    /// Reads an operation.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let mut from = Reader(bytes);
        let op = match from.get::<u8>()? {
            1 => Self::Create(Create {
                inode: from.inode()?,
                parent: from.inode()?,
                name: from.raw_name()?,
                kind: FileKind::from_byte(from.get()?)?,
                perm: from.perm()?,
                uid: from.get()?,
                gid: from.get()?,
                rdev: from.get()?,
                target: from.bytes()?,
                acl: from.option(Reader::acl)?,
                time: from.time()?,
            }),
            2 => Self::Link(Link {
                inode: from.inode()?,
                parent: from.inode()?,
                name: from.name()?,
                time: from.time()?,
            }),
            3 => Self::Unlink(Unlink {
                parent: from.inode()?,
                name: from.name()?,
                directory: from.flag()?,
                time: from.time()?,
            }),
            4 => Self::Rename(Rename {
                parent: from.inode()?,
                name: from.name()?,
                new_parent: from.inode()?,
                new_name: from.name()?,
                exchange: from.flag()?,
                time: from.time()?,
            }),
            5 => Self::SetAttr(SetAttr {
                inode: from.inode()?,
                perm: from.option(Reader::perm)?,
                uid: from.option(Reader::get)?,
                gid: from.option(Reader::get)?,
                resize: match from.get::<u8>()? {
                    0 => None,
                    1 => Some(Resize::Cut(from.size()?)),
                    2 => Some(Resize::Grow(from.size()?)),
                    _ => return Err(Corrupt::new(WHAT, Reason::Kind)),
                },
                atime: from.option(Reader::time)?,
                mtime: from.option(Reader::time)?,
                btime: from.option(Reader::time)?,
                ctime: from.time()?,
            }),
            6 => Self::SetXattr(SetXattr {
                inode: from.inode()?,
                name: from.raw_name()?,
                value: from.option(Reader::bytes)?,
                perm: from.option(Reader::perm)?,
                time: from.time()?,
            }),
            7 => Self::Write(Write {
                inode: from.inode()?,
                offset: from.size()?,
                data: from.bytes()?,
                size: from.size()?,
                mtime: from.time()?,
            }),
            8 => Self::Zero(Zero {
                inode: from.inode()?,
                offset: from.size()?,
                len: from.size()?,
                time: from.time()?,
            }),
            _ => return Err(Corrupt::new(WHAT, Reason::Kind)),
        };
        ensure(from.0.is_empty(), WHAT, Reason::Range)?;
        op.check()?;
        Ok(op)
    }

    /// Checks what the types of the fields leave open.
    fn check(&self) -> Result<(), Corrupt> {
        let ok = match self {
            Self::Create(op) => {
                let named = valid_name(&op.name);
                match op.kind {
                    FileKind::Symlink => {
                        named && op.acl.is_none() && (1..=MAX_TARGET).contains(&op.target.len())
                    }
                    FileKind::Regular => (named || op.name.is_empty()) && op.target.is_empty(),
                    _ => named && op.target.is_empty(),
                }
            }
            Self::SetXattr(op) => {
                valid_xattr_name(&op.name) && op.value.as_ref().is_none_or(|value| value.len() <= MAX_XATTR)
            }
            Self::Write(op) => op.offset.checked_add(op.data.len() as u64).is_some_and(|end| end <= op.size),
            Self::Zero(op) => op.offset.checked_add(op.len).is_some_and(|end| end <= MAX_FILE),
            Self::Link(_) | Self::Unlink(_) | Self::Rename(_) | Self::SetAttr(_) => true,
        };
        ensure(ok, WHAT, Reason::Range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{ACL_NO_ID, AclEntry, AclTag};
    use proptest::prelude::*;

    fn samples() -> Vec<LogOp> {
        let time = Timestamp { secs: -5, nanos: 17 };
        let (inode, parent, name) = (InodeId::new(12), InodeId::new(1), b"n\xffme".to_vec());
        let entry = |tag, perm| AclEntry { tag, perm, id: ACL_NO_ID };
        let entries = vec![entry(AclTag::Owner, 7), entry(AclTag::Group, 5), entry(AclTag::Other, 0)];
        let acl = Acl::new(entries).ok();
        let create = |kind, target: &[u8]| {
            LogOp::Create(Create {
                inode,
                parent,
                name: name.clone(),
                kind,
                perm: 0o7777,
                uid: 1,
                gid: 2,
                rdev: 3,
                target: target.to_vec(),
                acl: acl.clone().filter(|_| kind == FileKind::Directory),
                time,
            })
        };
        let set_attr = SetAttr {
            inode,
            perm: None,
            uid: Some(7),
            gid: None,
            resize: None,
            atime: None,
            mtime: Some(time),
            btime: None,
            ctime: time,
        };
        vec![
            create(FileKind::Regular, b""),
            create(FileKind::Symlink, b"../there"),
            create(FileKind::Directory, b""),
            LogOp::Link(Link { inode, parent, name: name.clone(), time }),
            LogOp::Unlink(Unlink { parent, name: name.clone(), directory: true, time }),
            LogOp::Rename(Rename {
                parent,
                name: name.clone(),
                new_parent: inode,
                new_name: vec![b'x'; 255],
                exchange: true,
                time,
            }),
            LogOp::SetAttr(set_attr.clone()),
            LogOp::SetAttr(SetAttr {
                resize: Some(Resize::Cut(9)),
                perm: Some(0o644),
                gid: Some(4),
                ..set_attr.clone()
            }),
            LogOp::SetAttr(SetAttr {
                resize: Some(Resize::Grow(MAX_FILE)),
                atime: Some(time),
                btime: Some(time),
                ..set_attr
            }),
            LogOp::SetXattr(SetXattr {
                inode,
                name: b"user.x".to_vec(),
                value: Some(vec![1; 5000]),
                perm: None,
                time,
            }),
            LogOp::SetXattr(SetXattr {
                inode,
                name: b"user.x".to_vec(),
                value: None,
                perm: Some(0o640),
                time,
            }),
            LogOp::Write(Write { inode, offset: 5, data: b"data".to_vec(), size: 9, mtime: time }),
            LogOp::Zero(Zero { inode, offset: 1 << 40, len: 4096, time }),
        ]
    }

    #[test]
    fn every_operation_survives_a_round_trip() {
        for op in samples() {
            assert_eq!(LogOp::decode(&op.encode()), Ok(op));
        }
    }

    #[test]
    fn an_operation_cut_short_or_continued_is_refused() {
        for op in samples() {
            let bytes = op.encode();
            for len in 0..bytes.len() {
                assert!(LogOp::decode(&bytes[..len]).is_err(), "{op:?} cut to {len}");
            }
            assert!(LogOp::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn a_write_past_its_own_size_is_refused() {
        let time = Timestamp::default();
        let op =
            LogOp::Write(Write { inode: InodeId::new(2), offset: 5, data: vec![0; 5], size: 9, mtime: time });
        assert_eq!(LogOp::decode(&op.encode()), Err(Corrupt::new(WHAT, Reason::Range)));
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_an_error_value(
            tag in 0u8..10,
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let bytes = [&[tag][..], &rest].concat();
            if let Ok(op) = LogOp::decode(&bytes) {
                prop_assert_eq!(op.encode(), bytes);
            }
        }

        #[test]
        fn damaged_operations_are_an_error_value(which in 0usize..12, at in any::<usize>(), with in any::<u8>()) {
            let mut bytes = samples()[which].encode();
            let at = at % bytes.len();
            bytes[at] ^= with;
            let _ = LogOp::decode(&bytes);
        }
    }
}
