//! Answers to requests.

use super::abi::{self, fopen, opcode};
use larder_posix::{StatFs, Timestamp};
use rustix::io::Errno;
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// Attributes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attr {
    /// Its number, which stat(2) shows.
    pub node: u64,
    /// Bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the kernel's encoding.
    pub rdev: u32,
    /// Bytes that it is best read and written by.
    pub blksize: u32,
}

/// A node that was found or made. The kernel counts it as a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// Its attributes, with its number.
    pub attr: Attr,
    /// Tells a number that is used again from what it was before.
    pub generation: u64,
    /// Time for which the kernel may use the name without asking.
    pub ttl: Duration,
    /// The same for the attributes.
    pub attr_ttl: Duration,
}

/// A file or directory that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    /// File handle, which later requests carry.
    pub handle: u64,
    /// Pages of it that are in memory stay valid.
    pub keep_cache: bool,
    /// Do not ask when a descriptor is closed.
    pub no_flush: bool,
    /// Reads and writes go around the kernel's pages, and what a write does beside is left to the server: that it is
    /// durable where it has to be, that `security.capability` goes. See [`crate::keeps_pages_true`].
    pub direct: bool,
    /// With `direct`: writes within the file's length come beside one another (Linux 6.2 and later).
    pub parallel_writes: bool,
}

/// Bytes that go out in pieces, as they lie.
pub trait Data {
    /// Bytes in all.
    fn len(&self) -> usize;
    /// The pieces in their order; they make up [`Data::len`].
    fn slices(&self) -> impl Iterator<Item = &[u8]>;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Data for Vec<u8> {
    fn len(&self) -> usize {
        self.len()
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.as_slice())
    }
}

/// An answer. [`Operation`](super::Operation) says which request takes which.
#[derive(Debug)]
pub enum Response<D = Vec<u8>> {
    /// Done, and nothing to say.
    Done,
    /// Refused.
    Error(Errno),
    /// Something of this name.
    Entry(Entry),
    /// Nothing of this name, for as long.
    NoEntry(Duration),
    /// Attributes, valid for as long.
    Attr(Attr, Duration),
    /// Attributes with birth time: to [`Statx`](super::Operation::Statx).
    Statx(Attr, Duration),
    /// Open.
    Opened(Opened),
    /// Made and open.
    Created(Entry, Opened),
    /// So many bytes were written.
    Written(u32),
    /// So many bytes were copied: to [`CopyFileRange`](super::Operation::CopyFileRange).
    Copied(u64),
    /// Data or a hole begins here.
    Found(u64),
    /// Space.
    Space(StatFs),
    /// So long is the value.
    Size(u32),
    /// A value, or a link's target.
    Bytes(Vec<u8>),
    /// Names of a directory.
    Listing(Listing),
    /// Data of a read.
    Data(D),
}

/// Room for the longest structure.
const CAPACITY: usize = size_of::<abi::StatxOut>();

/// An answer as bytes.
#[allow(clippy::large_enum_variant, reason = "it is looked at once, where it is made")]
pub(crate) enum Body<'a, D> {
    Structure(Structure),
    Bytes(&'a [u8]),
    Data(&'a D),
}

/// A structure, by value.
pub(crate) struct Structure {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Structure {
    fn new(value: &(impl IntoBytes + Immutable)) -> Self {
        let mut bytes = [0; CAPACITY];
        let value = value.as_bytes();
        bytes[..value.len()].copy_from_slice(value);
        Self { bytes, len: value.len() }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<D> Response<D> {
    /// The bytes behind the header, or the error in it. `code` is the request's kind.
    pub(crate) fn body(&self, code: u32) -> Result<Body<'_, D>, Errno> {
        let structure = match self {
            Self::Error(errno) => return Err(*errno),
            Self::Done => return Ok(Body::Bytes(&[])),
            Self::Bytes(bytes) => return Ok(Body::Bytes(bytes)),
            Self::Listing(listing) => return Ok(Body::Bytes(&listing.bytes)),
            Self::Data(data) => return Ok(Body::Data(data)),
            Self::Entry(entry) => Structure::new(&entry.out()),
            Self::NoEntry(ttl) => {
                let (entry_valid, entry_valid_nsec) = (ttl.as_secs(), ttl.subsec_nanos());
                Structure::new(&abi::EntryOut { entry_valid, entry_valid_nsec, ..Default::default() })
            }
            Self::Attr(attr, ttl) => Structure::new(&abi::AttrOut {
                attr_valid: ttl.as_secs(),
                attr_valid_nsec: ttl.subsec_nanos(),
                attr: attr.out(),
                ..Default::default()
            }),
            Self::Statx(attr, ttl) => Structure::new(&abi::StatxOut {
                attr_valid: ttl.as_secs(),
                attr_valid_nsec: ttl.subsec_nanos(),
                stat: attr.statx(),
                ..Default::default()
            }),
            Self::Opened(opened) => Structure::new(&opened.out()),
            Self::Created(entry, opened) => {
                Structure::new(&abi::CreateOut { entry: entry.out(), open: opened.out() })
            }
            Self::Written(size) => Structure::new(&abi::WriteOut { size: *size, padding: 0 }),
            Self::Copied(bytes) if code == opcode::COPY_FILE_RANGE => {
                let size = u32::try_from(*bytes).expect("no more is copied than asked for");
                Structure::new(&abi::WriteOut { size, padding: 0 })
            }
            Self::Copied(bytes) => Structure::new(&abi::CopyFileRangeOut { bytes_copied: *bytes }),
            Self::Found(offset) => Structure::new(&abi::LseekOut { offset: *offset }),
            Self::Space(of) => Structure::new(&space(of)),
            Self::Size(size) => Structure::new(&abi::GetxattrOut { size: *size, padding: 0 }),
        };
        Ok(Body::Structure(structure))
    }
}

impl Attr {
    fn out(&self) -> abi::Attr {
        abi::Attr {
            ino: self.node,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.secs.cast_unsigned(),
            mtime: self.mtime.secs.cast_unsigned(),
            ctime: self.ctime.secs.cast_unsigned(),
            atimensec: self.atime.nanos,
            mtimensec: self.mtime.nanos,
            ctimensec: self.ctime.nanos,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }

    fn statx(&self) -> abi::Statx {
        let time = |time: Timestamp| abi::SxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 };
        let rdev = u64::from(self.rdev);
        abi::Statx {
            mask: abi::STATX_BASIC_STATS | abi::STATX_BTIME,
            blksize: self.blksize,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            mode: self.mode as u16,
            ino: self.node,
            size: self.size,
            blocks: self.blocks,
            atime: time(self.atime),
            btime: time(self.btime),
            ctime: time(self.ctime),
            mtime: time(self.mtime),
            // The 32-bit encoding is that of stat(2) with what is beyond 32 bits left out.
            rdev_major: rustix::fs::major(rdev),
            rdev_minor: rustix::fs::minor(rdev),
            ..Default::default()
        }
    }
}

impl Entry {
    fn out(&self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.attr.node,
            generation: self.generation,
            entry_valid: self.ttl.as_secs(),
            attr_valid: self.attr_ttl.as_secs(),
            entry_valid_nsec: self.ttl.subsec_nanos(),
            attr_valid_nsec: self.attr_ttl.subsec_nanos(),
            attr: self.attr.out(),
        }
    }
}

impl Opened {
    fn out(&self) -> abi::OpenOut {
        let flag = |on, flag| if on { flag } else { 0 };
        let open_flags = flag(self.keep_cache, fopen::KEEP_CACHE)
            | flag(self.no_flush, fopen::NOFLUSH)
            | flag(self.direct, fopen::DIRECT_IO)
            | flag(self.parallel_writes, fopen::PARALLEL_DIRECT_WRITES);
        abi::OpenOut { fh: self.handle, open_flags, padding: 0 }
    }
}

fn space(of: &StatFs) -> abi::StatfsOut {
    abi::StatfsOut {
        blocks: of.blocks,
        bfree: of.free,
        bavail: of.available,
        files: of.files,
        ffree: of.files_free,
        bsize: of.block_size,
        namelen: of.name_max,
        frsize: of.block_size,
        ..Default::default()
    }
}

/// Names of a directory, as many as the kernel has room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

impl Listing {
    /// An empty one of at most `room` bytes.
    pub fn new(room: u32) -> Self {
        let room = room as usize;
        Self { bytes: Vec::with_capacity(room.min(64 << 10)), room }
    }

    /// Adds a name; false if there is no room for it. Reading on from `next_cookie` gives what comes after it. Of
    /// `mode` the type counts.
    pub fn add(&mut self, node: u64, mode: u32, name: &[u8], next_cookie: u64) -> bool {
        self.push(None, node, mode, name, next_cookie)
    }

    /// The same to a request that asks for attributes as well, which counts as a look-up. Without them (`.` and
    /// `..` never have any) the kernel looks the name up when somebody wants it.
    pub fn add_plus(
        &mut self,
        known: Option<&Entry>,
        node: u64,
        mode: u32,
        name: &[u8],
        next_cookie: u64,
    ) -> bool {
        let dots = matches!(name, b"." | b"..");
        let out = known.filter(|_| !dots).map_or_else(abi::EntryOut::default, Entry::out);
        self.push(Some(out), node, mode, name, next_cookie)
    }

    fn push(&mut self, entry: Option<abi::EntryOut>, node: u64, mode: u32, name: &[u8], next: u64) -> bool {
        let head = if entry.is_some() { size_of::<abi::EntryOut>() } else { 0 };
        let end = (self.bytes.len() + head + size_of::<abi::Dirent>() + name.len()).next_multiple_of(8);
        if end > self.room {
            return false;
        }
        if let Some(entry) = entry {
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        // The kernel's d_type is the type in the mode.
        let r#type = (mode >> 12) & 0xf;
        let dirent = abi::Dirent { ino: node, off: next, namelen: name.len() as u32, r#type };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    fn structure(response: Response, code: u32) -> Vec<u8> {
        match response.body(code) {
            Ok(Body::Structure(structure)) => structure.as_bytes().to_vec(),
            _ => panic!("a structure"),
        }
    }

    #[test]
    fn times_before_1970_and_device_numbers_go_out_as_they_are() {
        let time = Timestamp { secs: -2, nanos: 800_000_000 };
        let rdev = rustix::fs::makedev(300, 70_000) as u32;
        let attr = Attr { node: 5, mtime: time, btime: time, mode: 0o020_640, rdev, ..Attr::default() };
        let ttl = Duration::from_millis(10_500);
        let out =
            abi::AttrOut::read_from_bytes(&structure(Response::Attr(attr, ttl), opcode::GETATTR)).unwrap();
        assert_eq!((out.attr_valid, out.attr_valid_nsec), (10, 500_000_000));
        assert_eq!((out.attr.mtime as i64, out.attr.mtimensec, out.attr.rdev), (-2, 800_000_000, rdev));
        let out =
            abi::StatxOut::read_from_bytes(&structure(Response::Statx(attr, ttl), opcode::STATX)).unwrap();
        assert_eq!((out.stat.btime.tv_sec, out.stat.btime.tv_nsec), (-2, 800_000_000));
        assert_eq!((out.stat.rdev_major, out.stat.rdev_minor), (300, 70_000));
        assert_eq!(out.stat.mask, abi::STATX_BASIC_STATS | abi::STATX_BTIME);
    }

    #[test]
    fn a_copy_is_counted_as_the_request_wants_it() {
        assert_eq!(structure(Response::Copied(7), opcode::COPY_FILE_RANGE), [7, 0, 0, 0, 0, 0, 0, 0]);
        let long = structure(Response::Copied(1 << 40), opcode::COPY_FILE_RANGE_64);
        assert_eq!(long, (1u64 << 40).to_ne_bytes());
    }

    #[test]
    fn a_listing_takes_what_fits_and_no_more() {
        let mut listing = Listing::new(64);
        assert!(listing.add(2, 0o040_755, b"twelve bytes", 1), "24 and 12 make 40");
        assert!(listing.bytes.len() == 40 && !listing.add(3, 0o100_644, b"x", 2), "32 more do not fit");
        let (dirent, name) = abi::Dirent::read_from_prefix(&listing.bytes).unwrap();
        assert_eq!(dirent, abi::Dirent { ino: 2, off: 1, namelen: 12, r#type: 4 });
        assert_eq!(name, b"twelve bytes\0\0\0\0");

        let mut plus = Listing::new(4096);
        let entry = Entry { attr: Attr { node: 9, mode: 0o040_755, ..Attr::default() }, ..Entry::default() };
        let known = Some(&entry);
        assert!(
            plus.add_plus(known, 9, 0o040_755, b"..", 1) && plus.add_plus(known, 9, 0o040_755, b"name", 2)
        );
        let (dots, rest) = abi::EntryOut::read_from_prefix(&plus.bytes).unwrap();
        assert_eq!(dots.nodeid, 0, "not a look-up");
        let (dirent, rest) = abi::Dirent::read_from_prefix(rest).unwrap();
        assert_eq!((dirent.ino, dirent.r#type), (9, 4));
        let (named, _) = abi::EntryOut::read_from_prefix(&rest[8..]).unwrap();
        assert_eq!(named.nodeid, 9);

        let mut removed = Listing::new(4096);
        assert!(removed.add_plus(None, 7, 0o100_000, b"gone", 3));
        assert_eq!(abi::EntryOut::read_from_prefix(&removed.bytes).unwrap().0.nodeid, 0);
    }
}
