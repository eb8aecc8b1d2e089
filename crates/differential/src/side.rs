//! One of the two sides: a folder, what is open in it, and what an operation answers there.

use crate::look::{self, Look};
use crate::op::{At, FOLDERS, MAPS, Op, ROOT, SLOTS, Step, Sync, Who, content};
use crate::sys::{self, Aligned, Answer};
use libc::*;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Result of an operation, besides times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub answer: Answer,
    /// Bytes that it gave back, or words for them.
    pub shown: Vec<u8>,
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        Self { answer, shown: Vec::new() }
    }
}

/// A memory map.
#[derive(Clone, Copy)]
struct Map {
    address: i64,
    len: usize,
    /// The slot's descriptor, kept open: it tells the size.
    fd: i32,
    offset: i64,
}

/// A folder and what is open in it.
pub struct Side {
    root: PathBuf,
    top: i32,
    slots: [Option<i32>; SLOTS],
    maps: [Option<Map>; MAPS],
    memory: i32,
}

impl Side {
    /// Makes the folder `root` and what a trace begins with.
    pub fn new(root: PathBuf) -> Self {
        std::fs::create_dir(&root).expect("a fresh folder");
        let mut side =
            Self { root, top: -1, slots: [None; SLOTS], maps: [None; MAPS], memory: sys::memory_file() };
        side.open_top();
        for (path, mode, gid) in FOLDERS {
            sys::mkdirat(side.top, path, 0o700).expect("a fresh folder");
            sys::chownat(side.top, path, 0, gid, 0).expect("a fresh folder");
            sys::chmodat(side.top, path, mode).expect("a fresh folder");
        }
        sys::chmodat(side.top, b".", 0o777).expect("a fresh folder");
        side
    }

    /// Opens the top folder, after a mount came back.
    pub fn open_top(&mut self) {
        let path = self.root.to_str().expect("a path of ours").as_bytes();
        self.top = sys::openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0).expect("the top folder")
            as i32;
    }

    /// Closes all for good.
    pub fn end(&mut self) {
        self.close();
        sys::close(self.memory).ok();
    }

    /// The top folder's descriptor.
    pub fn top(&self) -> i32 {
        self.top
    }

    /// Closes all, so that a mount can go.
    pub fn close(&mut self) {
        for map in 0..MAPS {
            self.unmap(map).ok();
        }
        for fd in self.slots.iter_mut().filter_map(Option::take) {
            sys::close(fd).ok();
        }
        sys::close(self.top).ok();
    }

    pub fn slot(&self, slot: usize) -> Result<i32, i32> {
        self.slots[slot].ok_or(EBADF)
    }

    fn put(&mut self, slot: usize, opened: Answer) -> Outcome {
        if let Ok(fd) = opened
            && let Some(old) = self.slots[slot].replace(fd as i32)
        {
            // Its locks go before anything else is compared.
            sys::close(old).ok();
        }
        Outcome::from(opened.map(|_| 0))
    }

    fn start(&self, at: &At) -> Result<i32, i32> {
        at.slot.map_or(Ok(self.top), |slot| self.slot(slot))
    }

    /// A path for calls that take no directory's descriptor.
    fn full(&self, at: &At) -> Vec<u8> {
        let mut path = self.root.to_str().expect("a path of ours").as_bytes().to_vec();
        path.push(b'/');
        path.extend(at.path.iter());
        path
    }

    /// Attributes of the file at `at`.
    pub fn look(&self, at: &At, flags: i32) -> Result<Look, i32> {
        look::at(self.start(at)?, &at.path, flags)
    }

    /// Attributes of a slot's file.
    pub fn look_open(&self, slot: usize) -> Result<Look, i32> {
        look::at(self.slot(slot)?, b"", AT_EMPTY_PATH)
    }

    /// Opens again what a slot has open, for reading.
    pub fn again(&self, slot: usize, flags: i32) -> Answer {
        let path = format!("/proc/self/fd/{}", self.slot(slot)?);
        sys::openat(AT_FDCWD, path.as_bytes(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags, 0)
    }

    /// Does a step. Whoever calls is root before and after.
    pub fn perform(&mut self, step: &Step) -> Outcome {
        sys::umask(step.umask);
        become_who(step.who);
        let outcome = self.act(&step.op).unwrap_or_else(|errno| Outcome::from(Err(errno)));
        become_who(ROOT);
        sys::umask(0o022);
        outcome
    }

    /// Offset, length and unit that a descriptor takes: multiples of 4096 for direct I/O.
    fn aligned(&self, fd: i32, offset: Option<i64>, len: usize) -> Result<(Option<i64>, usize, usize), i32> {
        if sys::get_flags(fd)? as i32 & (O_DIRECT | O_PATH) != O_DIRECT {
            return Ok((offset, len, 1));
        }
        let offset = offset.unwrap_or(len as i64);
        Ok((Some(offset & !4095), len & !4095, 4096))
    }

    /// Refuses descriptors that copy by direct I/O, which takes no odd offsets.
    fn indirect(&self, slot: usize) -> Result<i32, i32> {
        let fd = self.slot(slot)?;
        if sys::get_flags(fd)? as i32 & O_DIRECT != 0 { Err(EBADF) } else { Ok(fd) }
    }

    fn act(&mut self, op: &Op) -> Result<Outcome, i32> {
        let plain = |answer: Answer| Ok(Outcome::from(answer));
        match *op {
            Op::Open { slot, ref at, flags, mode } => {
                let opened = sys::openat(self.start(at)?, &at.path, flags, mode);
                Ok(self.put(slot, opened))
            }
            Op::Tmpfile { slot, ref at, flags, mode } => {
                let opened = sys::openat(self.start(at)?, &at.path, flags | O_TMPFILE, mode);
                Ok(self.put(slot, opened))
            }
            Op::LinkOpen { slot, ref to } => {
                let from = format!("/proc/self/fd/{}", self.slot(slot)?);
                let to = (self.start(to)?, &to.path[..]);
                plain(sys::linkat((AT_FDCWD, from.as_bytes()), to, AT_SYMLINK_FOLLOW))
            }
            Op::Close { slot } => plain(self.slots[slot].take().map_or(Err(EBADF), sys::close)),
            Op::Dup { from, to } => {
                let copy = sys::dup(self.slot(from)?);
                Ok(self.put(to, copy))
            }
            Op::SetFlags { slot, flags } => plain(sys::set_flags(self.indirect(slot)?, flags)),
            Op::Write { slot, offset, len, fill, pieces, how } => {
                let fd = self.slot(slot)?;
                let (offset, len, unit) = self.aligned(fd, offset, len)?;
                let how = if unit > 1 { how & !RWF_APPEND } else { how };
                let mut data = Aligned::new(len);
                content(fill, data.get_mut());
                plain(sys::write(fd, &data, offset, pieces, unit, how))
            }
            Op::Read { slot, offset, len, pieces } => {
                let fd = self.slot(slot)?;
                let (offset, len, unit) = self.aligned(fd, offset, len)?;
                let mut data = Aligned::new(len);
                let answer = sys::read(fd, &mut data, offset, pieces, unit);
                let got = answer.unwrap_or(0) as usize;
                Ok(Outcome { answer, shown: data.get()[..got].to_vec() })
            }
            Op::Seek { slot, offset, whence } => {
                let fd = self.slot(slot)?;
                if matches!(whence, SEEK_DATA | SEEK_HOLE) {
                    look::flush_maps(fd);
                }
                plain(sys::lseek(fd, offset, whence))
            }
            Op::Truncate { ref at, len } => {
                self.start(at)?;
                plain(sys::truncate(&self.full(at), len))
            }
            Op::TruncateOpen { slot, len } => plain(sys::ftruncate(self.slot(slot)?, len)),
            Op::Allocate { slot, mode, offset, len } => {
                plain(sys::fallocate(self.slot(slot)?, mode, offset, len))
            }
            Op::Sync { slot, how } => {
                let fd = self.slot(slot)?;
                plain(match how {
                    Sync::File => sys::fsync(fd),
                    Sync::Data => sys::fdatasync(fd),
                    Sync::System => sys::syncfs(fd),
                    Sync::Range => sys::sync_range(fd, 0, 100_000),
                })
            }
            Op::Forget { slot } => plain(sys::fadvise(self.slot(slot)?, POSIX_FADV_DONTNEED)),
            Op::Mkdir { ref at, mode } => plain(sys::mkdirat(self.start(at)?, &at.path, mode)),
            Op::Rmdir { ref at } => plain(sys::unlinkat(self.start(at)?, &at.path, AT_REMOVEDIR)),
            Op::Mknod { ref at, mode, device } => {
                plain(sys::mknodat(self.start(at)?, &at.path, mode, device))
            }
            Op::BindSocket { ref at } => {
                self.start(at)?;
                let path = self.full(at);
                // The two folders' own paths are not of one length.
                plain(if at.path.len() > 40 || path.len() > 107 {
                    Err(ENAMETOOLONG)
                } else {
                    sys::bind_socket(&path)
                })
            }
            Op::Symlink { ref at, ref target } => plain(sys::symlinkat(target, self.start(at)?, &at.path)),
            Op::Link { ref from, ref to, flags } => {
                let (from, to) = ((self.start(from)?, &from.path[..]), (self.start(to)?, &to.path[..]));
                plain(sys::linkat(from, to, flags))
            }
            Op::Unlink { ref at } => plain(sys::unlinkat(self.start(at)?, &at.path, 0)),
            Op::Rename { ref from, ref to, flags } => {
                let (from, to) = ((self.start(from)?, &from.path[..]), (self.start(to)?, &to.path[..]));
                plain(sys::renameat(from, to, flags))
            }
            Op::Readlink { ref at, room } => {
                let mut target = vec![0; room];
                let answer = sys::readlinkat(self.start(at)?, &at.path, &mut target);
                target.truncate(answer.unwrap_or(0) as usize);
                Ok(Outcome { answer, shown: target })
            }
            Op::Chmod { ref at, mode } => plain(sys::chmodat(self.start(at)?, &at.path, mode)),
            Op::ChmodOpen { slot, mode } => plain(sys::fchmod(self.slot(slot)?, mode)),
            Op::Chown { ref at, uid, gid, flags } => {
                plain(sys::chownat(self.start(at)?, &at.path, uid, gid, flags))
            }
            Op::Utimes { ref at, ref times, flags } => {
                plain(sys::utimensat(self.start(at)?, Some(&at.path), times, flags))
            }
            Op::UtimesOpen { slot, ref times } => plain(sys::utimensat(self.slot(slot)?, None, times, 0)),
            Op::Access { ref at, mode } => plain(sys::accessat(self.start(at)?, &at.path, mode, AT_EACCESS)),
            Op::Stat { ref at, flags } => {
                let look = look::at(self.start(at)?, &at.path, flags)?;
                Ok(Outcome { answer: Ok(0), shown: look.plain().into_bytes() })
            }
            Op::SetXattr { ref at, ref name, ref value, flags } => {
                self.start(at)?;
                plain(sys::lsetxattr(&self.full(at), name, value, flags))
            }
            Op::SetXattrOpen { slot, ref name, ref value, flags } => {
                plain(sys::fsetxattr(self.slot(slot)?, name, value, flags))
            }
            Op::GetXattr { ref at, ref name, room } => {
                self.start(at)?;
                let mut value = vec![0; room];
                let answer = sys::lgetxattr(&self.full(at), name, &mut value);
                value.truncate(answer.unwrap_or(0) as usize);
                Ok(Outcome { answer, shown: value })
            }
            Op::ListXattr { ref at, room } => {
                self.start(at)?;
                let mut names = vec![0; room];
                let answer = sys::llistxattr(&self.full(at), &mut names);
                names.truncate(answer.unwrap_or(0) as usize);
                let names = names.split(|&byte| byte == 0).collect::<BTreeSet<_>>();
                Ok(Outcome { answer, shown: names.into_iter().collect::<Vec<_>>().join(&b'\n') })
            }
            Op::RemoveXattr { ref at, ref name } => {
                self.start(at)?;
                plain(sys::lremovexattr(&self.full(at), name))
            }
            Op::List { ref at, room } => {
                self.in_folder(at, |fd| Ok(Outcome::from(Ok(0)).showing(&look::list(fd, room)?)))
            }
            Op::SeekDir { ref at, index, room } => self.in_folder(at, |fd| {
                let entries = look::entries(fd, room)?;
                let index = index.min(entries.len());
                let cookie = if index == 0 { 0 } else { entries[index - 1].cookie };
                let sought = sys::lseek(fd, cookie, SEEK_SET)?;
                let again = look::entries(fd, room)?;
                let same = sought == cookie && again == entries[index..];
                Ok(Outcome::from(Ok(i64::from(same))))
            }),
            Op::Churn { ref at, count, room } => self.in_folder(at, |fd| churn(fd, count, room)),
            Op::CopyRange { from, from_at, to, to_at, len } => {
                let (from, to) = (self.indirect(from)?, self.indirect(to)?);
                plain(sys::copy_file_range((from, from_at), (to, to_at), len))
            }
            Op::SendFile { from, from_at, to, len } => {
                plain(sys::sendfile(self.indirect(to)?, self.indirect(from)?, from_at, len))
            }
            Op::Splice { from, from_at, to, to_at, len } => {
                let (from, to) = (self.indirect(from)?, self.indirect(to)?);
                let [reader, writer] = sys::pipe().ok_or(EMFILE)?;
                let into = sys::splice((from, Some(from_at)), (writer, None), len.min(30_000));
                let out = into.and_then(|len| sys::splice((reader, None), (to, Some(to_at)), len as usize));
                sys::close(reader).and(sys::close(writer)).ok();
                Ok(Outcome { answer: out, shown: format!("{into:?}").into_bytes() })
            }
            Op::Map { map, slot, offset, len, shared, writable } => {
                let fd = self.slot(slot)?;
                let protection = PROT_READ | if writable { PROT_WRITE } else { 0 };
                let flags = if shared { MAP_SHARED } else { MAP_PRIVATE };
                let address = sys::mmap(fd, offset, len, protection, flags)?;
                self.unmap(map).ok();
                self.maps[map] = Some(Map { address, len, fd: sys::dup(fd)? as i32, offset });
                plain(Ok(0))
            }
            Op::Unmap { map } => plain(self.unmap(map)),
            Op::MapRead { map, offset, len } => {
                let (address, len) = self.within(map, offset, len)?;
                let mut bytes = vec![0; len];
                let answer = sys::peek(self.memory, address, &mut bytes);
                bytes.truncate(answer.unwrap_or(0) as usize);
                Ok(Outcome { answer, shown: bytes })
            }
            Op::MapWrite { map, offset, len, fill } => {
                let (address, len) = self.within(map, offset, len)?;
                let mut bytes = vec![0; len];
                content(fill, &mut bytes);
                plain(sys::poke(self.memory, address, &bytes))
            }
            Op::Msync { map, wait } => {
                let map = self.maps[map].ok_or(EINVAL)?;
                plain(sys::msync(map.address, map.len, if wait { MS_SYNC } else { MS_ASYNC }))
            }
            Op::Flock { slot, how } => plain(sys::flock(self.slot(slot)?, how)),
            Op::FileLock { slot, kind, start, len, test } => {
                let command = if test { F_OFD_GETLK } else { F_OFD_SETLK };
                let left = sys::lock(self.slot(slot)?, command, kind, start, len)?;
                Ok(Outcome { answer: Ok(0), shown: format!("{left:?}").into_bytes() })
            }
            Op::ProcessLock { ref at, slot, mine, theirs } => {
                let fd = self.slot(slot)?;
                let start = self.start(at)?;
                let ours = sys::lock(fd, F_SETLK, mine.0, mine.1, mine.2);
                let other = std::thread::scope(|scope| {
                    let other = scope.spawn(|| {
                        sys::own_descriptors();
                        let opened = sys::openat(start, &at.path, O_RDWR | O_NONBLOCK | O_CLOEXEC, 0)? as i32;
                        let test = sys::lock(opened, F_GETLK, theirs.0, theirs.1, theirs.2);
                        let set = sys::lock(opened, F_SETLK, theirs.0, theirs.1, theirs.2);
                        sys::close(opened)?;
                        Ok::<_, i32>((test, set))
                    });
                    other.join().expect("a lock does not panic")
                });
                sys::lock(fd, F_SETLK, F_UNLCK, 0, 0).ok();
                Ok(Outcome { answer: Ok(0), shown: format!("{ours:?} {other:?}").into_bytes() })
            }
            Op::Ioctl { slot, request } => {
                let mut argument = [0; 64];
                plain(sys::ioctl(self.slot(slot)?, request, &mut argument).map(|_| 0))
            }
            Op::StatFs { slot } => {
                let mut shown = [0; 15];
                sys::fstatfs(self.slot(slot)?, &mut shown)?;
                // f_namelen; and that what is free fits into what there is.
                let sane = shown[3] <= shown[2] && shown[4] <= shown[3] && shown[6] <= shown[5];
                Ok(Outcome { answer: Ok(i64::from(sane)), shown: shown[8].to_le_bytes().to_vec() })
            }
            Op::Deep { len } => plain(self.deep(len)),
            Op::Remount => plain(Ok(0)),
        }
    }

    fn in_folder(&self, at: &At, f: impl FnOnce(i32) -> Result<Outcome, i32>) -> Result<Outcome, i32> {
        let fd = sys::openat(self.start(at)?, &at.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)? as i32;
        let outcome = f(fd);
        sys::close(fd)?;
        outcome
    }

    fn unmap(&mut self, map: usize) -> Answer {
        let map = self.maps[map].take().ok_or(EINVAL)?;
        sys::close(map.fd)?;
        sys::munmap(map.address, map.len)
    }

    /// The part of a map that lies in the map and in the file: what is written beyond a file's end is nobody's.
    fn within(&self, map: usize, offset: usize, len: usize) -> Result<(i64, usize), i32> {
        let map = self.maps[map].ok_or(EINVAL)?;
        let size = look::at(map.fd, b"", AT_EMPTY_PATH)?.size as i64 - map.offset;
        let end = map.len.min(size.max(0) as usize);
        if offset >= end { Err(EFAULT) } else { Ok((map.address + offset as i64, len.min(end - offset))) }
    }

    /// Attributes of the inode behind a map.
    pub fn mapped(&self, map: usize) -> Option<Look> {
        look::at(self.maps[map]?.fd, b"", AT_EMPTY_PATH).ok()
    }

    /// Makes folders inside each other, so that the path of the last, opened at once, has `len` bytes.
    fn deep(&self, len: usize) -> Answer {
        let mut path = Vec::new();
        let mut folders = vec![(sys::dup(self.top)? as i32, Vec::new())];
        let mut made = Ok(0);
        while path.len() < len && made.is_ok() {
            let name = vec![b'p'; (len - path.len()).saturating_sub(1).clamp(1, 254)];
            let dir = folders.last().expect("the top").0;
            made = sys::mkdirat(dir, &name, 0o755)
                .and_then(|_| sys::openat(dir, &name, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
            path.extend(&name);
            path.push(b'/');
            folders.extend(made.map(|fd| (fd as i32, name)));
        }
        path.truncate(len);
        let opened = made.and_then(|_| sys::openat(self.top, &path, O_PATH | O_CLOEXEC, 0));
        if let Ok(fd) = opened {
            sys::close(fd as i32)?;
        }
        while let Some((dir, name)) = folders.pop() {
            sys::close(dir)?;
            if let Some((above, _)) = folders.last() {
                sys::unlinkat(*above, &name, AT_REMOVEDIR)?;
            }
        }
        opened.map(|_| 0)
    }
}

impl Outcome {
    fn showing(mut self, names: &BTreeSet<(Vec<u8>, u8)>) -> Self {
        self.shown = format!(
            "{:?}",
            names.iter().map(|(name, kind)| (look::readable(name), kind)).collect::<Vec<_>>()
        )
        .into_bytes();
        self
    }
}

/// Reads a directory in pieces and makes and removes names between them. POSIX promises of such a listing that
/// a name that was there all the time comes exactly once.
fn churn(fd: i32, count: usize, room: usize) -> Result<Outcome, i32> {
    let before = look::list(fd, 32 << 10)?;
    sys::lseek(fd, 0, SEEK_SET)?;
    let name = |i: usize| format!("churn{i}").into_bytes();
    let (mut seen, mut made) = (Vec::new(), 0);
    loop {
        let read = look::some_entries(fd, room)?;
        if read.is_empty() {
            break;
        }
        seen.extend(read.into_iter().map(|entry| entry.name));
        for _ in 0..5 {
            if made < count {
                sys::mknodat(fd, &name(made), S_IFREG | 0o600, 0)?;
                made += 1;
            }
            if made > 3 && made < count {
                sys::unlinkat(fd, &name(made - 3), 0)?;
            }
        }
    }
    for i in 0..made {
        sys::unlinkat(fd, &name(i), 0).ok();
    }
    let once = before.iter().all(|(name, _)| seen.iter().filter(|other| *other == name).count() == 1);
    Ok(Outcome::from(Ok(i64::from(once))))
}

/// From now on this thread acts as `who`.
fn become_who(who: Who) {
    sys::become_user(who.uid, who.gid, who.groups);
}
