//! Operations for both sides, made from a seed.
//!
//! An operation carries all of its arguments, and none depends on what an earlier one answered: so any of them
//! can be left out of a trace that is made shorter.

use libc::*;

/// Descriptors that a trace works with.
pub const SLOTS: usize = 6;
/// Memory maps that a trace works with.
pub const MAPS: usize = 3;
/// Directories that are there at the beginning: path, mode, group.
pub const FOLDERS: [(&[u8], u32, u32); 4] =
    [(b"d", 0o777, 0), (b"d/e", 0o755, 1001), (b"g", 0o2777, 2000), (b"s", 0o1777, 0)];

/// A seeded source of numbers: SplitMix64.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Identity under which a step is done: user, group, more groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'static [u32],
}

pub const ROOT: Who = Who { uid: 0, gid: 0, groups: &[] };
const USERS: [Who; 3] = [
    Who { uid: 1001, gid: 1001, groups: &[] },
    Who { uid: 1002, gid: 1002, groups: &[1001, 2000] },
    Who { uid: 1003, gid: 2000, groups: &[] },
];
const IDS: [u32; 7] = [0, 1001, 1002, 1003, 2000, 3000, u32::MAX];

/// Bytes that are shown in short.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl std::ops::Deref for Bytes {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.len() {
            0..60 => write!(f, "{}", self.escape_ascii()),
            len => write!(f, "{}…({len} bytes)", self[..20].escape_ascii()),
        }
    }
}

/// A path, below the top folder or below the directory that a slot has open.
#[derive(Clone, PartialEq, Eq)]
pub struct At {
    pub slot: Option<usize>,
    pub path: Bytes,
}

impl std::fmt::Debug for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slot = self.slot.map_or(String::new(), |slot| format!("[{slot}]/"));
        write!(f, "{slot}{:?}", self.path)
    }
}

/// One step of a trace.
#[derive(Debug, Clone)]
pub struct Step {
    pub who: Who,
    pub umask: u32,
    pub op: Op,
}

#[derive(Debug, Clone)]
pub enum Op {
    Open {
        slot: usize,
        at: At,
        flags: i32,
        mode: u32,
    },
    Tmpfile {
        slot: usize,
        at: At,
        flags: i32,
        mode: u32,
    },
    /// Gives what a slot has open a (further) name.
    LinkOpen {
        slot: usize,
        to: At,
    },
    Close {
        slot: usize,
    },
    Dup {
        from: usize,
        to: usize,
    },
    SetFlags {
        slot: usize,
        flags: i32,
    },
    Write {
        slot: usize,
        offset: Option<i64>,
        len: usize,
        fill: u64,
        pieces: usize,
        how: i32,
    },
    Read {
        slot: usize,
        offset: Option<i64>,
        len: usize,
        pieces: usize,
    },
    Seek {
        slot: usize,
        offset: i64,
        whence: i32,
    },
    Truncate {
        at: At,
        len: i64,
    },
    TruncateOpen {
        slot: usize,
        len: i64,
    },
    Allocate {
        slot: usize,
        mode: i32,
        offset: i64,
        len: i64,
    },
    Sync {
        slot: usize,
        how: Sync,
    },
    Forget {
        slot: usize,
    },
    Mkdir {
        at: At,
        mode: u32,
    },
    Rmdir {
        at: At,
    },
    Mknod {
        at: At,
        mode: u32,
        device: u64,
    },
    BindSocket {
        at: At,
    },
    Symlink {
        at: At,
        target: Bytes,
    },
    Link {
        from: At,
        to: At,
        flags: i32,
    },
    Unlink {
        at: At,
    },
    Rename {
        from: At,
        to: At,
        flags: u32,
    },
    Readlink {
        at: At,
        room: usize,
    },
    Chmod {
        at: At,
        mode: u32,
    },
    ChmodOpen {
        slot: usize,
        mode: u32,
    },
    Chown {
        at: At,
        uid: u32,
        gid: u32,
        flags: i32,
    },
    Utimes {
        at: At,
        times: [[i64; 2]; 2],
        flags: i32,
    },
    UtimesOpen {
        slot: usize,
        times: [[i64; 2]; 2],
    },
    Access {
        at: At,
        mode: i32,
    },
    Stat {
        at: At,
        flags: i32,
    },
    SetXattr {
        at: At,
        name: Bytes,
        value: Bytes,
        flags: i32,
    },
    SetXattrOpen {
        slot: usize,
        name: Bytes,
        value: Bytes,
        flags: i32,
    },
    GetXattr {
        at: At,
        name: Bytes,
        room: usize,
    },
    ListXattr {
        at: At,
        room: usize,
    },
    RemoveXattr {
        at: At,
        name: Bytes,
    },
    /// Reads a whole directory with a buffer of `room` bytes.
    List {
        at: At,
        room: usize,
    },
    /// Reads a directory, goes back to where `index` entries were read, reads again.
    SeekDir {
        at: At,
        index: usize,
        room: usize,
    },
    /// Makes and removes names while a directory is being read.
    Churn {
        at: At,
        count: usize,
        room: usize,
    },
    CopyRange {
        from: usize,
        from_at: Option<i64>,
        to: usize,
        to_at: Option<i64>,
        len: usize,
    },
    SendFile {
        from: usize,
        from_at: Option<i64>,
        to: usize,
        len: usize,
    },
    /// File to pipe to file.
    Splice {
        from: usize,
        from_at: i64,
        to: usize,
        to_at: i64,
        len: usize,
    },
    Map {
        map: usize,
        slot: usize,
        offset: i64,
        len: usize,
        shared: bool,
        writable: bool,
    },
    Unmap {
        map: usize,
    },
    MapRead {
        map: usize,
        offset: usize,
        len: usize,
    },
    MapWrite {
        map: usize,
        offset: usize,
        len: usize,
        fill: u64,
    },
    Msync {
        map: usize,
        wait: bool,
    },
    Flock {
        slot: usize,
        how: i32,
    },
    /// A lock of the open file description.
    FileLock {
        slot: usize,
        kind: i32,
        start: i64,
        len: i64,
        test: bool,
    },
    /// A lock of this process, held against by what another does.
    ProcessLock {
        at: At,
        slot: usize,
        mine: (i32, i64, i64),
        theirs: (i32, i64, i64),
    },
    Ioctl {
        slot: usize,
        request: u64,
    },
    StatFs {
        slot: usize,
    },
    /// A path of `len` bytes through folders inside each other, all made and removed.
    Deep {
        len: usize,
    },
    /// All is closed, and the pool exported and imported.
    Remount,
}

#[derive(Debug, Clone, Copy)]
pub enum Sync {
    File,
    Data,
    System,
    Range,
}

/// Bytes that only `fill` gives: zeros, words that repeat, or noise.
pub fn content(fill: u64, out: &mut [u8]) {
    let mut numbers = Numbers::new(fill);
    let word = numbers.next();
    for (index, chunk) in out.chunks_mut(8).enumerate() {
        let word = match fill % 8 {
            0 => 0,
            1..5 => word ^ (index as u64 / 100),
            _ => numbers.next(),
        };
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

const MARKS: [i64; 6] = [4096, 8192, 128 << 10, 256 << 10, 1 << 20, 2 << 20];
const MODES: [u32; 14] =
    [0o644, 0o600, 0o666, 0o777, 0o755, 0o000, 0o4755, 0o2755, 0o6777, 0o2644, 0o1777, 0o444, 0o070, 0o4711];
const XATTRS: [&[u8]; 9] = [
    b"user.a",
    b"user.b",
    b"user.name\xff\xfe",
    b"trusted.t",
    b"security.s",
    b"user.",
    b"other.x",
    b"system.x",
    b"nodot",
];
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Makes the steps of a seed.
pub struct Maker {
    numbers: Numbers,
    /// Whether remounts are among them.
    remounts: bool,
}

impl Maker {
    pub fn new(seed: u64, remounts: bool) -> Self {
        Self { numbers: Numbers::new(seed), remounts }
    }

    fn offset(&mut self) -> i64 {
        let n = &mut self.numbers;
        match n.below(40) {
            0..18 => n.below(20_000) as i64,
            18..34 => (n.pick(&MARKS) + n.below(200) as i64 - 100).max(0),
            34..37 => n.below(3 << 20) as i64,
            37 => (1 << 40) + n.below(5000) as i64,
            38 => -1 - n.below(5000) as i64,
            _ => 0,
        }
    }

    fn len(&mut self) -> usize {
        let n = &mut self.numbers;
        match n.below(20) {
            0 => 0,
            1..12 => n.below(9000) + 1,
            12..17 => 4096 * (n.below(40) + 1),
            17 => n.below(1 << 20),
            _ => n.below(200_000),
        }
    }

    fn slot(&mut self) -> usize {
        self.numbers.below(SLOTS)
    }

    fn mode(&mut self) -> u32 {
        self.numbers.pick(&MODES)
    }

    fn name(&mut self) -> Vec<u8> {
        let n = &mut self.numbers;
        match n.below(48) {
            0 => vec![b'x'; 255],
            1 => vec![b'x'; 256],
            2 => b"\xff\xfe\x01 \n".to_vec(),
            3 => b".".to_vec(),
            4 => b"..".to_vec(),
            5 => b"nothing/there".to_vec(),
            6 => [b"f".to_vec(), vec![b'0' + n.below(6) as u8], b"/".to_vec()].concat(),
            7 => "ä".repeat(127).into_bytes(),
            8 => {
                let len = n.below(255) + 1;
                let ok = |byte: u64| if byte & 255 == 0 || byte & 255 == 47 { b'z' } else { byte as u8 };
                // Few seeds, so that such a name is met again.
                let mut few = Numbers::new(n.below(3) as u64);
                (0..len).map(|_| ok(few.next())).collect()
            }
            9..14 => FOLDERS[n.below(4)].0.to_vec(),
            _ => vec![b'f', b'0' + n.below(6) as u8],
        }
    }

    fn at(&mut self) -> At {
        let name = self.name();
        let n = &mut self.numbers;
        // Not up from anywhere: it would lead out of the folder.
        let slot = if n.one_in(10) && name != b".." { Some(n.below(SLOTS)) } else { None };
        let folder: &[u8] = match n.below(20) {
            0..8 => b"",
            8..16 => FOLDERS[n.below(4)].0,
            16 => b"f0",
            17 => b"f1",
            18 => b"./d/../d",
            _ => b"",
        };
        let path = if folder.is_empty() { name } else { [folder, b"/", &name[..]].concat() };
        At { slot, path: Bytes(path) }
    }

    /// A file that is likely there.
    fn file(&mut self) -> At {
        let n = &mut self.numbers;
        if n.one_in(3) {
            return self.at();
        }
        let folder: &[u8] = n.pick(&[&b""[..], b"", b"d/", b"g/", b"s/"]);
        At { slot: None, path: Bytes([folder, &[b'f', b'0' + n.below(6) as u8]].concat()) }
    }

    fn folder(&mut self) -> At {
        let n = &mut self.numbers;
        let slot = if n.one_in(6) { Some(n.below(SLOTS)) } else { None };
        let path = n.pick(&[&b"."[..], b".", b"d", b"d/e", b"g", b"s", b"f0"]).to_vec();
        At { slot, path: Bytes(path) }
    }

    fn times(&mut self) -> [[i64; 2]; 2] {
        let n = &mut self.numbers;
        std::array::from_fn(|_| match n.below(8) {
            0 => [0, UTIME_NOW],
            1 => [0, UTIME_OMIT],
            2 => [-(n.below(1 << 30) as i64), n.below(1_000_000_000) as i64],
            3 => [(1 << 32) + n.below(1 << 30) as i64, n.below(1_000_000_000) as i64],
            4 => [n.below(1 << 30) as i64, 0],
            5 => [0, 1_000_000_000 + n.below(2) as i64],
            _ => [n.below(1 << 30) as i64, n.below(1_000_000_000) as i64],
        })
    }

    fn open_flags(&mut self) -> i32 {
        let n = &mut self.numbers;
        let mut flags =
            n.pick(&[O_RDWR, O_RDWR, O_RDWR, O_RDWR, O_WRONLY, O_RDONLY]) | O_NONBLOCK | O_CLOEXEC;
        if !n.one_in(4) {
            flags |= O_CREAT;
        }
        for (rare, flag) in [
            (8, O_TRUNC),
            (14, O_EXCL),
            (8, O_APPEND),
            (12, O_NOFOLLOW),
            (12, O_SYNC),
            (12, O_DSYNC),
            (16, O_NOATIME),
            (24, O_DIRECTORY),
            (24, O_PATH),
        ] {
            if n.one_in(rare) {
                flags |= flag;
            }
        }
        // Appending goes to where the file ends, which direct writes on a disk may not.
        if flags & O_APPEND == 0 && n.one_in(6) {
            flags |= O_DIRECT;
        }
        flags
    }

    fn value(&mut self, most: usize) -> Vec<u8> {
        let n = &mut self.numbers;
        let len = match n.below(8) {
            0 => 0,
            1..6 => n.below(100),
            6 => n.below(3000.min(most)),
            _ => n.below(most),
        };
        let mut value = vec![0; len];
        content(n.next(), &mut value);
        value
    }

    fn xattr_name(&mut self) -> Bytes {
        let n = &mut self.numbers;
        Bytes(match n.below(20) {
            0 => [b"user.".to_vec(), vec![b'n'; 250]].concat(),
            1 => [b"user.".to_vec(), vec![b'n'; 251]].concat(),
            2..5 => n.pick(&XATTRS).to_vec(),
            5..8 => n.pick(&ACLS).to_vec(),
            _ => n.pick(&XATTRS[..2]).to_vec(),
        })
    }

    /// Entries of an ACL as the kernel takes them; now and then not valid ones.
    fn acl(&mut self) -> Vec<u8> {
        let n = &mut self.numbers;
        let mut acl = 2u32.to_le_bytes().to_vec();
        let mut entries = vec![(1u16, u32::MAX), (4, u32::MAX), (32, u32::MAX)];
        if n.one_in(2) {
            entries.insert(1, (2, n.pick(&IDS[1..6])));
        }
        if n.one_in(2) {
            let after_group = entries.len() - 1;
            entries.insert(after_group, (8, n.pick(&IDS[1..6])));
        }
        if entries.len() > 3 && !n.one_in(10) {
            let last = entries.len() - 1;
            entries.insert(last, (16, u32::MAX));
        }
        if n.one_in(12) {
            entries.pop();
        }
        for (tag, id) in entries {
            acl.extend(tag.to_le_bytes());
            acl.extend((n.below(8) as u16).to_le_bytes());
            acl.extend(id.to_le_bytes());
        }
        acl
    }

    fn xattr(&mut self) -> (Bytes, Bytes, i32) {
        let name = self.xattr_name();
        let value = if name.starts_with(b"system.posix") { self.acl() } else { self.value(20_000) };
        let flags = self.numbers.pick(&[0, 0, 0, 0, XATTR_CREATE, XATTR_REPLACE, 3]);
        (name, Bytes(value), flags)
    }

    fn lock(&mut self) -> (i32, i64, i64) {
        let n = &mut self.numbers;
        let kind = n.pick(&[F_RDLCK, F_WRLCK, F_WRLCK, F_UNLCK]);
        (kind, n.below(50) as i64, n.below(30) as i64)
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        let n = &mut self.numbers;
        let who = if n.one_in(4) { n.pick(&USERS) } else { ROOT };
        let umask = n.pick(&[0o022, 0o022, 0o022, 0o022, 0o022, 0o022, 0, 0o077, 0o777, 0o007]);
        Step { who, umask, op: self.op() }
    }

    fn op(&mut self) -> Op {
        let (slot, other) = (self.slot(), self.slot());
        let (offset, len) = (self.offset(), self.len());
        let here = |n: &mut Numbers, offset| if n.one_in(3) { None } else { Some(offset) };
        match self.numbers.below(1000) {
            0..110 => {
                let (at, flags, mode) = (self.file(), self.open_flags(), self.mode());
                Op::Open { slot, at, flags, mode }
            }
            110..118 => {
                let (at, flags, mode) = (self.folder(), self.open_flags(), self.mode());
                Op::Tmpfile { slot, at, flags: flags & !(O_CREAT | O_PATH | O_TRUNC), mode }
            }
            118..126 => Op::LinkOpen { slot, to: self.at() },
            126..140 => Op::Close { slot },
            140..146 => Op::Dup { from: slot, to: other },
            146..152 => {
                let flags = self.numbers.pick(&[0, O_APPEND, O_NOATIME]);
                // Pipes must not wait for anybody.
                Op::SetFlags { slot, flags: flags | O_NONBLOCK }
            }
            152..300 => {
                let n = &mut self.numbers;
                let (offset, fill) = (here(n, offset), n.next());
                let how = n.pick(&[0, 0, 0, 0, 0, 0, 0, RWF_APPEND, RWF_DSYNC, RWF_SYNC]);
                Op::Write { slot, offset, len, fill, pieces: n.below(4) + 1, how }
            }
            300..370 => {
                let n = &mut self.numbers;
                Op::Read { slot, offset: here(n, offset), len, pieces: n.below(4) + 1 }
            }
            370..405 => {
                let whence =
                    self.numbers.pick(&[SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE, SEEK_DATA]);
                Op::Seek { slot, offset, whence }
            }
            405..425 => Op::Truncate { at: self.file(), len: offset },
            425..455 => Op::TruncateOpen { slot, len: offset },
            455..510 => {
                let (keep, punch, zero) = (FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE);
                let n = &mut self.numbers;
                let mode =
                    n.pick(&[0, keep, punch | keep, punch | keep, punch | keep, zero, zero | keep, zero]);
                let odd =
                    [FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, punch, punch | zero | keep, 1 << 10];
                let mode = if n.one_in(12) { n.pick(&odd) } else { mode };
                // Space is not reserved here, and a terabyte of it is not on the other side.
                let offset = if offset > 1 << 39 { offset % (1 << 20) } else { offset };
                Op::Allocate { slot, mode, offset, len: len as i64 }
            }
            510..525 => {
                let how = self.numbers.pick(&[Sync::File, Sync::File, Sync::Data, Sync::System, Sync::Range]);
                Op::Sync { slot, how }
            }
            525..535 => Op::Forget { slot },
            535..555 => Op::Mkdir { at: self.at(), mode: self.mode() },
            555..565 => Op::Rmdir { at: self.at() },
            565..580 => {
                let n = &mut self.numbers;
                let mode =
                    n.pick(&[S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK, S_IFREG, 0, S_IFDIR]) | n.pick(&MODES);
                let device = n.pick(&[0, 0x103, 0xfff, 0xf_ff01, 0xfff0_0fff]);
                Op::Mknod { at: self.at(), mode, device }
            }
            580..584 => Op::BindSocket { at: self.at() },
            584..604 => {
                let n = &mut self.numbers;
                let target = match n.below(12) {
                    0 => vec![b't'; 4095],
                    1 => vec![b't'; 4096],
                    2 => Vec::new(),
                    3 => b"../d".to_vec(),
                    4 => b"d/e/".to_vec(),
                    _ => vec![b'f', b'0' + n.below(6) as u8],
                };
                Op::Symlink { at: self.at(), target: Bytes(target) }
            }
            604..622 => {
                let flags = self.numbers.pick(&[0, 0, AT_SYMLINK_FOLLOW, 1 << 20]);
                Op::Link { from: self.file(), to: self.at(), flags }
            }
            622..645 => Op::Unlink { at: self.file() },
            645..680 => {
                let n = &mut self.numbers;
                let flags = n.pick(&[0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_EXCHANGE, 3, 8]);
                Op::Rename { from: self.file(), to: self.at(), flags }
            }
            680..688 => Op::Readlink { at: self.file(), room: self.numbers.pick(&[1, 4, 5000]) },
            688..705 => Op::Chmod { at: self.file(), mode: self.mode() },
            705..713 => Op::ChmodOpen { slot, mode: self.mode() },
            713..738 => {
                let n = &mut self.numbers;
                let uid = n.pick(&IDS);
                // Not neither: that takes set-user-id away on a disk, and does not reach a FUSE file system.
                let gid = n.pick(if uid == u32::MAX { &IDS[..6] } else { &IDS });
                let flags = n.pick(&[0, 0, AT_SYMLINK_NOFOLLOW]);
                Op::Chown { at: self.file(), uid, gid, flags }
            }
            738..753 => {
                let flags = self.numbers.pick(&[0, 0, AT_SYMLINK_NOFOLLOW]);
                Op::Utimes { at: self.file(), times: self.times(), flags }
            }
            753..758 => Op::UtimesOpen { slot, times: self.times() },
            758..773 => Op::Access { at: self.file(), mode: self.numbers.below(8) as i32 },
            773..785 => {
                let flags = self.numbers.pick(&[0, AT_SYMLINK_NOFOLLOW]);
                Op::Stat { at: self.at(), flags }
            }
            785..805 => {
                let (name, value, flags) = self.xattr();
                Op::SetXattr { at: self.file(), name, value, flags }
            }
            805..815 => {
                let (name, value, flags) = self.xattr();
                Op::SetXattrOpen { slot, name, value, flags }
            }
            815..825 => {
                let room = self.numbers.pick(&[0, 10, 70_000]);
                Op::GetXattr { at: self.file(), name: self.xattr_name(), room }
            }
            825..832 => Op::ListXattr { at: self.file(), room: self.numbers.pick(&[0, 10, 70_000]) },
            832..842 => Op::RemoveXattr { at: self.file(), name: self.xattr_name() },
            842..852 => Op::List { at: self.folder(), room: self.numbers.pick(&[30, 280, 600, 32_768]) },
            852..858 => Op::SeekDir {
                at: self.folder(),
                index: self.numbers.below(12),
                room: self.numbers.pick(&[280, 400]),
            },
            858..861 => Op::Churn { at: self.folder(), count: self.numbers.below(60) + 20, room: 500 },
            861..885 => {
                let from_at = here(&mut self.numbers, offset);
                let to_at = self.offset();
                let to_at = here(&mut self.numbers, to_at);
                // Often at multiples of what records may be cut at, and to the end: what can be shared.
                let unit = self.numbers.pick(&[1, 1, 4096, 128 << 10, 1 << 20]);
                let cut = |at: Option<i64>| at.map(|at| at - at.rem_euclid(unit));
                let len = if self.numbers.one_in(6) { 1 << 24 } else { len };
                Op::CopyRange { from: slot, from_at: cut(from_at), to: other, to_at: cut(to_at), len }
            }
            885..895 => Op::SendFile { from: slot, from_at: here(&mut self.numbers, offset), to: other, len },
            895..905 => Op::Splice { from: slot, from_at: offset, to: other, to_at: self.offset(), len },
            905..920 => {
                let n = &mut self.numbers;
                let (map, pages) = (n.below(MAPS), n.below(80) + 1);
                let offset = n.pick(&[0, 0, 4096, 8192, 128 << 10, 100]);
                let (shared, writable) = (!n.one_in(4), !n.one_in(4));
                Op::Map { map, slot, offset, len: pages * 4096, shared, writable }
            }
            920..924 => Op::Unmap { map: self.numbers.below(MAPS) },
            924..939 => {
                Op::MapRead { map: self.numbers.below(MAPS), offset: self.numbers.below(300_000), len }
            }
            939..957 => {
                let n = &mut self.numbers;
                let (map, fill) = (n.below(MAPS), n.next());
                let offset = if n.one_in(2) { n.below(20_000) } else { n.below(300_000) };
                Op::MapWrite { map, offset, len, fill }
            }
            957..962 => Op::Msync { map: self.numbers.below(MAPS), wait: self.numbers.one_in(2) },
            962..970 => {
                let how = self.numbers.pick(&[LOCK_SH, LOCK_EX, LOCK_UN]) | LOCK_NB;
                Op::Flock { slot, how }
            }
            970..982 => {
                let ((kind, start, len), test) = (self.lock(), self.numbers.one_in(2));
                Op::FileLock { slot, kind, start, len, test }
            }
            982..986 => Op::ProcessLock { at: self.file(), slot, mine: self.lock(), theirs: self.lock() },
            986..991 => {
                // FIONREAD, FICLONE, FS_IOC_GETFLAGS, FS_IOC_GETVERSION, one that nobody knows.
                let request =
                    self.numbers.pick(&[0x541B, 0x4004_9409, 0x8008_6601, 0x8008_7601, 0x1234_5678]);
                Op::Ioctl { slot, request }
            }
            991..994 => Op::StatFs { slot },
            994..996 => Op::Deep { len: self.numbers.pick(&[1000, 4094, 4095, 4096]) },
            996..997 if self.remounts => Op::Remount,
            _ => Op::Stat { at: self.file(), flags: 0 },
        }
    }
}
