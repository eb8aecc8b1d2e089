//! Attributes of files: as a `znode` (version 4 of the file system and before), and as system attributes (version 5),
//! whose numbers and layouts the file system has in two objects of its own (OpenZFS `zfs_znode.h`, `sa_impl.h`).

use crate::bytes::Order;
use crate::error::{Result, corrupt};
use crate::list::{self, Value};
use larder_posix::Timestamp;
use std::collections::BTreeMap;

/// Kind of a bonus that is a znode.
pub(crate) const ZNODE: u32 = 17;
/// Kind of a bonus that has system attributes.
pub(crate) const SA: u32 = 44;
const SA_MAGIC: u32 = 0x2F_505A;
const ZNODE_LEN: usize = 264;

/// Flag: it is an extended attribute, or the directory of such.
const XATTR: u64 = 1;
/// Flag: its access list says what the mode says.
const ACL_TRIVIAL: u64 = 4;
/// Types in a mode.
const TYPE: u64 = 0o170_000;

/// Attributes that are at fixed places in any layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Early {
    /// Type and permissions.
    pub mode: u64,
    /// Bytes; of a directory its entries and two.
    pub size: u64,
    /// The transaction group of its birth: tells an object from the one before that had its number.
    pub birth: u64,
    /// The directory that it is in, or was first; of an attribute its owner.
    pub parent: u64,
    /// Flags.
    pub flags: u64,
}

impl Early {
    /// It is part of the extended attributes of something.
    pub fn is_xattr(&self) -> bool {
        self.flags & XATTR != 0
    }

    /// The type of the file, as in a mode.
    pub fn file_type(&self) -> u64 {
        self.mode & TYPE
    }

    /// Reads them from a bonus; none when it has none, which is no file.
    pub fn read(kind: u32, bonus: &[u8], order: Order) -> Result<Option<Self>> {
        let at = |offset| order.u64(bonus, offset).ok_or_else(|| corrupt("the attributes of a file"));
        Ok(match kind {
            ZNODE => {
                Some(Self { mode: at(72)?, size: at(80)?, birth: at(64)?, parent: at(88)?, flags: at(120)? })
            }
            // Their places are fixed for the accounting of space (zfs_sa.h, SA_MODE_OFFSET and the others).
            SA => {
                let head = SaHead::read(bonus, order)?;
                Some(Self {
                    mode: at(head.len)?,
                    size: at(head.len + 8)?,
                    birth: at(head.len + 16)?,
                    parent: at(head.len + 40)?,
                    flags: at(head.len + 48)?,
                })
            }
            _ => None,
        })
    }
}

/// All attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attrs {
    /// Those at fixed places.
    pub early: Early,
    /// Owner; above 32 bits the number of a domain.
    pub uid: u64,
    /// Group, likewise.
    pub gid: u64,
    /// Names that it has.
    pub links: u64,
    /// Device number, in the encoding of the sender.
    pub rdev: u64,
    /// The object that is the directory of its extended attributes; 0 for none.
    pub xattr: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// Where a symbolic link leads, if it is told here.
    pub target: Option<Vec<u8>>,
    /// Extended attributes that are kept among the others.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attrs {
    /// It has an access list that says more than the mode.
    pub fn has_acl(&self) -> bool {
        self.early.flags & ACL_TRIVIAL == 0
    }
}

fn time(bytes: &[u8], order: Order, at: usize) -> Option<Timestamp> {
    let nanos = order.u64(bytes, at + 8)?.min(999_999_999);
    Some(Timestamp { secs: order.u64(bytes, at)?.cast_signed(), nanos: nanos as u32 })
}

fn read_znode(bonus: &[u8], order: Order) -> Option<Attrs> {
    let at = |offset| order.u64(bonus, offset);
    let early = Early::read(ZNODE, bonus, order).ok()??;
    // A short target is behind the rest, a long one is content.
    let end = usize::try_from(early.size).ok()?.checked_add(ZNODE_LEN);
    let target = end.and_then(|end| bonus.get(ZNODE_LEN..end)).filter(|_| early.file_type() == 0o120_000);
    Some(Attrs {
        early,
        uid: at(128)?,
        gid: at(136)?,
        links: at(96)?,
        rdev: at(112)?,
        xattr: at(104)?,
        atime: time(bonus, order, 0)?,
        mtime: time(bonus, order, 16)?,
        ctime: time(bonus, order, 32)?,
        btime: time(bonus, order, 48)?,
        target: target.map(<[u8]>::to_vec),
        xattrs: Vec::new(),
    })
}

/// The byte order of system attributes in a stream of `order`; see `zap`.
pub(crate) fn sa_order(bytes: &[u8], order: Order) -> Order {
    if order.other().u32(bytes, 0) == Some(SA_MAGIC) { order.other() } else { order }
}

struct SaHead {
    layout: u16,
    len: usize,
}

impl SaHead {
    fn read(bytes: &[u8], order: Order) -> Result<Self> {
        let info = order.u16(bytes, 4).filter(|_| order.u32(bytes, 0) == Some(SA_MAGIC));
        let info = info.ok_or_else(|| corrupt("the head of system attributes"))?;
        Ok(Self { layout: info & 0x3ff, len: usize::from(info >> 10) * 8 })
    }
}

/// Which system attributes there are, and how they lie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registry {
    /// By number: name and bytes, 0 where each says how many.
    attributes: BTreeMap<u16, (Vec<u8>, usize)>,
    /// By number: attributes in their order.
    layouts: BTreeMap<u16, Vec<u16>>,
}

/// Attributes of znodes have these numbers, registered or not.
const LEGACY: [(&str, usize); 16] = [
    ("ZPL_ATIME", 16),
    ("ZPL_MTIME", 16),
    ("ZPL_CTIME", 16),
    ("ZPL_CRTIME", 16),
    ("ZPL_GEN", 8),
    ("ZPL_MODE", 8),
    ("ZPL_SIZE", 8),
    ("ZPL_PARENT", 8),
    ("ZPL_LINKS", 8),
    ("ZPL_XATTR", 8),
    ("ZPL_RDEV", 8),
    ("ZPL_FLAGS", 8),
    ("ZPL_UID", 8),
    ("ZPL_GID", 8),
    ("ZPL_PAD", 32),
    ("ZPL_ZNODE_ACL", 88),
];

impl Registry {
    /// One of nothing but the fixed attributes.
    pub fn new() -> Self {
        let numbered = (0..).zip(LEGACY);
        let attributes = numbered.map(|(number, (name, len))| (number, (name.as_bytes().to_vec(), len)));
        Self { attributes: attributes.collect(), layouts: BTreeMap::new() }
    }

    /// Takes an entry of the registry along: length, byte order class and number in one integer.
    pub fn register(&mut self, name: &[u8], value: u64) {
        let (number, len) = (value as u16, usize::from((value >> 24) as u16));
        self.attributes.insert(number, (name.to_vec(), len));
    }

    /// Takes a layout along: its name is its number.
    pub fn lay_out(&mut self, name: &[u8], attributes: &[u64]) -> Result<()> {
        let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
        let number = number.ok_or_else(|| corrupt("the number of a layout of attributes"))?;
        self.layouts.insert(number, attributes.iter().map(|&number| number as u16).collect());
        Ok(())
    }

    /// The attributes of a file.
    ///
    /// # Errors
    /// When they are damaged, or their layout is not known.
    pub fn read(&self, kind: u32, bonus: &[u8], spill: &[u8], order: Order) -> Result<Attrs> {
        let mut attrs = match kind {
            ZNODE => read_znode(bonus, order).ok_or_else(|| corrupt("the attributes of a file"))?,
            SA => {
                let mut attrs = Attrs::default();
                self.read_into(&mut attrs, bonus, order)?;
                attrs
            }
            _ => return Err(corrupt("a file without attributes")),
        };
        if !spill.is_empty() {
            self.read_into(&mut attrs, spill, order)?;
        }
        Ok(attrs)
    }

    fn read_into(&self, attrs: &mut Attrs, bytes: &[u8], order: Order) -> Result<()> {
        let head = SaHead::read(bytes, order)?;
        let unknown = || corrupt("attributes of a layout that the stream does not tell");
        let layout = self.layouts.get(&head.layout.max(1)).ok_or_else(unknown)?;
        let (mut at, mut varied) = (head.len, 0);
        for number in layout {
            let (name, fixed) = self.attributes.get(number).ok_or_else(unknown)?;
            let mut len = *fixed;
            if len == 0 {
                let told = order.u16(bytes, 6 + 2 * varied).filter(|_| 8 + 2 * varied <= head.len);
                len = usize::from(told.ok_or_else(|| corrupt("the length of an attribute"))?);
                varied += 1;
            }
            let value = bytes.get(at..at + len).ok_or_else(|| corrupt("an attribute's place"))?;
            attrs.take(name, value, order)?;
            at = (at + len).next_multiple_of(8);
        }
        Ok(())
    }
}

impl Attrs {
    fn take(&mut self, name: &[u8], value: &[u8], order: Order) -> Result<()> {
        let short = || corrupt("an attribute's length");
        let number = || order.u64(value, 0).ok_or_else(short);
        let when = || time(value, order, 0).ok_or_else(short);
        match name {
            b"ZPL_MODE" => self.early.mode = number()?,
            b"ZPL_SIZE" => self.early.size = number()?,
            b"ZPL_GEN" => self.early.birth = number()?,
            b"ZPL_PARENT" => self.early.parent = number()?,
            b"ZPL_FLAGS" => self.early.flags = number()?,
            b"ZPL_UID" => self.uid = number()?,
            b"ZPL_GID" => self.gid = number()?,
            b"ZPL_LINKS" => self.links = number()?,
            b"ZPL_RDEV" => self.rdev = number()?,
            b"ZPL_XATTR" => self.xattr = number()?,
            b"ZPL_ATIME" => self.atime = when()?,
            b"ZPL_MTIME" => self.mtime = when()?,
            b"ZPL_CTIME" => self.ctime = when()?,
            b"ZPL_CRTIME" => self.btime = when()?,
            b"ZPL_SYMLINK" => self.target = Some(value.to_vec()),
            b"ZPL_DXATTR" if !value.is_empty() => {
                let list = list::decode(value)?.ok_or_else(|| corrupt("extended attributes"))?;
                self.xattrs = list
                    .iter()
                    .map(|(name, value)| match value {
                        Value::Bytes(value) => Ok((name.to_vec(), value.clone())),
                        _ => Err(corrupt("an extended attribute")),
                    })
                    .collect::<Result<_>>()?;
            }
            _ => {}
        }
        Ok(())
    }
}
