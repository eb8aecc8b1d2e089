//! Files and block devices.
//!
//! Requests wait in one queue for a few threads, which perform them with `pread`, `pwrite` and
//! `fdatasync`: with direct I/O where the file system has it, through the page cache where not. A flush
//! is a request like the others. It syncs the whole file, and whatever completed before it was
//! submitted had been handed to the kernel by then, so it covers that, whichever thread takes it. It promises nothing
//! about what still waits, so it does not wait behind it.
//!
//! **A failed flush is final.** The kernel tells of a failed writeback once and then takes the pages for
//! clean; a flush tried again would succeed, and nothing would be on the disk. So flushes run one at a
//! time, and after one failed, all later ones fail until somebody who writes all of it again says so
//! ([`Device::forgive`]), or the device is opened anew.
//!
//! **One daemon a device.** A regular file is locked with `flock`. A block device is claimed with
//! `O_EXCL`, as file systems, LVM and RAID do, so that none of them has it at the same time; there the
//! `flock` is only shared (udev takes such locks when it looks at a disk, and must go on doing so) and
//! tells another daemon why the claim failed.
//!
//! A request that its caller's thread waits for, a single read or a copy of the intent log, goes by a ring of
//! that thread ([`ring`]) instead.
//!
//! **A hung device** keeps its threads in the kernel; nothing can take them back. [`Device::abandon`]
//! lets go of them.

use crate::open_file::{OpenFile, size_of};
use crate::ring;
use crate::{ALIGN, AlignedBuf, Completion, Device, DeviceError, Outcome, Pending, Request};
use larder_format::ByteLen;
use larder_format::label::MIN_DEVICE;
use larder_sync::{Condvar, Mutex};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// Purpose of opening a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// To look whether it belongs to a pool: reads only, takes no lock, disturbs no one.
    Probe,
    /// To use it: reads and writes, and nobody else may.
    Exclusive,
}

/// Why a path could not be opened as a device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the fields are the path, sizes in bytes and the errno")]
pub enum OpenError {
    /// Nothing is at this path.
    #[error("{}: no such file or device", .path.display())]
    NotFound { path: PathBuf },
    /// Another process, most likely a Larder daemon, has it open.
    #[error("{}: in use by another Larder process", .path.display())]
    Busy { path: PathBuf },
    /// A block device that the system has claimed.
    #[error("{}: mounted, or claimed by LVM, RAID, swap or another program", .path.display())]
    InUse { path: PathBuf },
    /// Below the size from which a device can hold a part of a pool.
    #[error("{}: too small: it has {size} bytes and {min} are needed", .path.display())]
    TooSmall { path: PathBuf, size: u64, min: u64 },
    /// A folder, a pipe, a terminal or the like.
    #[error("{}: neither a regular file nor a block device", .path.display())]
    NotADevice { path: PathBuf },
    /// The user may not open it, or it is read-only.
    #[error("{}: permission denied, or read-only", .path.display())]
    Permission { path: PathBuf },
    /// Anything else.
    #[error("{}: cannot be opened: {}", .path.display(), Errno::from_raw_os_error(*.errno))]
    Io { path: PathBuf, errno: i32 },
}

impl OpenError {
    fn new(path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::NOENT => Self::NotFound { path },
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Permission { path },
            _ => Self::Io { path, errno: errno.raw_os_error() },
        }
    }
}

/// A regular file or a block device.
pub struct FileDevice {
    shared: Arc<FileState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State shared by the threads and their owner.
struct FileState {
    file: Arc<OpenFile>,
    queue: Mutex<Queue>,
    ready: Condvar,
}

struct Queue {
    /// Flushes, and writes that somebody waits for at once ([`Device::start`]): done before the others. There are few,
    /// since their callers do nothing else meanwhile.
    urgent: VecDeque<(Request, Completion<Outcome>)>,
    waiting: VecDeque<(Request, Completion<Outcome>)>,
    /// Whether more may come.
    open: bool,
}

impl Queue {
    fn next(&mut self) -> Option<(Request, Completion<Outcome>)> {
        self.urgent.pop_front().or_else(|| self.waiting.pop_front())
    }
}

impl FileDevice {
    /// Requests performed at once, by default.
    pub const THREADS: usize = 4;

    /// Opens the file or block device at `path`.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self, OpenError> {
        Self::open_with_threads(path, mode, Self::THREADS)
    }

    /// Like [`FileDevice::open`], with at most `threads` requests performed at once.
    pub fn open_with_threads(
        path: impl AsRef<Path>,
        mode: OpenMode,
        threads: usize,
    ) -> Result<Self, OpenError> {
        assert!(threads > 0, "someone must do the work");
        let shared = Arc::new(open(path.as_ref(), mode)?);
        let device = Self { shared, threads: Mutex::default() };
        for _ in 0..threads {
            let shared = Arc::clone(&device.shared);
            let thread = std::thread::Builder::new()
                .name("larder-device".to_owned())
                .spawn(move || shared.work())
                .map_err(|error| OpenError::Io {
                    path: device.shared.file.path.clone(),
                    errno: error.raw_os_error().unwrap_or(Errno::AGAIN.raw_os_error()),
                })?;
            device.threads.lock().push(thread);
        }
        Ok(device)
    }

    /// Whether requests go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.shared.file.direct
    }

    /// The unit in bytes in which the disk says it writes; 4096 for files. Disks have lied about it.
    pub fn sector_size(&self) -> u32 {
        self.shared.file.sector_size
    }
}

impl Device for FileDevice {
    fn name(&self) -> String {
        self.shared.file.path.display().to_string()
    }

    fn size(&self) -> ByteLen {
        self.shared.file.size()
    }

    fn grow(&self) -> ByteLen {
        self.shared.file.grow()
    }

    fn submit(&self, request: Request) -> Pending<Outcome> {
        let urgent = matches!(request, Request::Flush);
        self.enqueue(request, urgent)
    }

    fn perform(&self, request: Request, limit: Duration) -> Result<Outcome, Pending<Outcome>> {
        let Some(mut transfer) = self.prepare(&request) else { return self.submit(request).wait_for(limit) };
        match transfer.complete(Some(limit)) {
            Some(outcome) => Ok(outcome),
            None if transfer.is_under_way() => Err(ring::Own::pending(transfer).left()),
            None => ring::Own::pending(transfer).left().wait_for(limit),
        }
    }

    fn start(&self, request: Request) -> Pending<Outcome> {
        let Some(mut transfer) = self.prepare(&request) else { return self.enqueue(request, true) };
        if let Some(outcome) = transfer.submit() {
            return Pending::done(outcome);
        }
        if transfer.is_under_way() {
            return ring::Own::pending(transfer);
        }
        transfer.cancel();
        self.enqueue(request, true)
    }

    fn forgive(&self) {
        self.shared.file.forgive();
    }

    /// Queued requests fail as well, and dropping the device will not wait for requests that are stuck in the
    /// kernel. The lock stays until those come back; then the device can be opened anew.
    fn abandon(&self) {
        let waiting = self.shared.close();
        self.shared.file.fd.lock().take();
        for (_, completion) in waiting {
            completion.complete(Err(DeviceError::Gone));
        }
        self.threads.lock().clear();
    }
}

impl FileDevice {
    fn enqueue(&self, request: Request, urgent: bool) -> Pending<Outcome> {
        if let Err(refused) = self.check(&request) {
            return Pending::done(Err(refused));
        }
        let mut queue = self.shared.queue.lock();
        if !queue.open {
            return Pending::done(Err(DeviceError::Gone));
        }
        let (completion, pending) = Pending::new();
        let line = if urgent { &mut queue.urgent } else { &mut queue.waiting };
        line.push_back((request, completion));
        drop(queue);
        self.shared.ready.notify_one();
        pending
    }

    /// Performs a request in this thread, however long that takes.
    pub(crate) fn now(&self, request: Request) -> Outcome {
        self.check(&request)?;
        self.shared.perform(request)
    }

    /// A flush that fails, as it would on the device.
    pub(crate) fn fail_flush(&self) -> Outcome {
        self.shared.file.fail_flush(self.shared.file.error(Errno::IO))
    }

    /// The request in a ring of this thread, if it can be done there.
    fn prepare(&self, request: &Request) -> Option<ring::Transfer> {
        let open = self.check(request).is_ok() && self.shared.queue.lock().open;
        open.then(|| ring::prepare(&self.shared.file, request)).flatten()
    }

    /// Refuses what lies beyond the end.
    fn check(&self, request: &Request) -> Result<(), DeviceError> {
        let span = match request {
            Request::Read { offset, len } | Request::Discard { offset, len } => {
                Some((offset.get(), len.get()))
            }
            Request::Write { offset, data } => Some((offset.get(), data.len() as u64)),
            Request::Flush => None,
        };
        if let Some((offset, len)) = span {
            let align = ALIGN as u64;
            assert!(len > 0, "an empty request at {offset}");
            assert!(
                offset.is_multiple_of(align) && len.is_multiple_of(align),
                "unaligned: {len} bytes at {offset}"
            );
            if offset.checked_add(len).is_none_or(|end| end > self.shared.file.size().get()) {
                return Err(DeviceError::Range);
            }
        }
        Ok(())
    }
}

impl Drop for FileDevice {
    /// Performs what still waits, then ends the threads.
    fn drop(&mut self) {
        let waiting = self.shared.close();
        for (request, completion) in waiting {
            completion.complete(self.shared.perform(request));
        }
        for thread in self.threads.get_mut().drain(..) {
            // A thread that panicked has said so, and the promise it held is lost either way.
            drop(thread.join());
        }
    }
}

impl FileState {
    /// Takes no more requests and gives back those that no thread has begun.
    fn close(&self) -> VecDeque<(Request, Completion<Outcome>)> {
        let mut queue = self.queue.lock();
        queue.open = false;
        let mut waiting = std::mem::take(&mut queue.urgent);
        waiting.append(&mut queue.waiting);
        drop(queue);
        self.ready.notify_all();
        waiting
    }

    /// A thread's life.
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            let (request, completion) = loop {
                match queue.next() {
                    Some(next) => break next,
                    None if queue.open => self.ready.wait(&mut queue),
                    None => return,
                }
            };
            drop(queue);
            completion.begin();
            // After a panic the caller gets an error, and the thread stays.
            let performed = catch_unwind(AssertUnwindSafe(|| self.perform(request)));
            completion.complete(performed.unwrap_or(Err(DeviceError::Gone)));
        }
    }

    fn perform(&self, request: Request) -> Outcome {
        match request {
            Request::Read { offset, len } => {
                self.file.read(offset.get(), usize::try_from(len.get()).expect("a request fits memory"))
            }
            Request::Write { offset, data } => self.file.write(offset.get(), &data),
            Request::Discard { offset, len } => self.file.discard(offset.get(), len.get()),
            Request::Flush => self.file.flush(),
        }
    }
}

fn open(path: &Path, mode: OpenMode) -> Result<FileState, OpenError> {
    let fail = |errno| OpenError::new(path, errno);
    // Before it is opened: opening alone makes a pipe wait and a tape wind.
    let kind = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
        kind @ (FileType::RegularFile | FileType::BlockDevice) => Ok(kind),
        _ => Err(OpenError::NotADevice { path: path.to_owned() }),
    };
    let block = kind(&rustix::fs::stat(path).map_err(fail)?)? == FileType::BlockDevice;

    let (fd, direct) = match open_fd(path, mode, block) {
        Err(Errno::BUSY) if block => return Err(claimed(path)),
        opened => opened.map_err(fail)?,
    };
    if mode == OpenMode::Exclusive {
        let how = if block {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        match retry_on_intr(|| rustix::fs::flock(&fd, how)) {
            Err(Errno::WOULDBLOCK) => return Err(OpenError::Busy { path: path.to_owned() }),
            locked => locked.map_err(fail)?,
        }
    }

    let stat = rustix::fs::fstat(&fd).map_err(fail)?;
    let block = kind(&stat)? == FileType::BlockDevice;
    let size = size_of(&fd, block).map_err(fail)?;
    let sector_size = if block { rustix::fs::ioctl_blksszget(&fd).map_err(fail)? } else { ALIGN as u32 };
    if size < MIN_DEVICE {
        return Err(OpenError::TooSmall { path: path.to_owned(), size, min: MIN_DEVICE });
    }
    let file = OpenFile {
        fd: Mutex::new(Some(Arc::new(fd))),
        path: path.to_owned(),
        size: AtomicU64::new(size - size % ALIGN as u64),
        sector_size,
        direct,
        block,
        discards: !block || block_discards(&stat),
        flush_failed: Mutex::new(None),
        stale: AtomicBool::new(false),
    };
    let queue = Mutex::new(Queue { urgent: VecDeque::new(), waiting: VecDeque::new(), open: true });
    Ok(FileState { file: Arc::new(file), queue, ready: Condvar::new() })
}

/// Whether a block device says that it discards. One that does not may write zeros instead, at the speed of a disk.
fn block_discards(stat: &Stat) -> bool {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    // That of a partition is with its disk.
    ["queue", "../queue"].iter().any(|queue| {
        let limit =
            std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes"));
        limit.is_ok_and(|limit| limit.trim().parse::<u64>().is_ok_and(|bytes| bytes > 0))
    })
}

/// The open file, and whether it does direct I/O.
fn open_fd(path: &Path, mode: OpenMode, block: bool) -> Result<(OwnedFd, bool), Errno> {
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    flags |= match mode {
        OpenMode::Probe => OFlags::RDONLY,
        OpenMode::Exclusive => OFlags::RDWR,
    };
    if block && mode == OpenMode::Exclusive {
        flags |= OFlags::EXCL;
    }
    let open = |flags| retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()));
    let fd = match open(flags | OFlags::DIRECT) {
        Err(Errno::INVAL) => return Ok((open(flags)?, false)),
        opened => opened?,
    };
    // Some file systems accept the flag and refuse the first request.
    let mut first = AlignedBuf::zeroed(ALIGN);
    if retry_on_intr(|| rustix::io::pread(&fd, &mut first[..], 0)) == Err(Errno::INVAL) {
        rustix::fs::fcntl_setfl(&fd, rustix::fs::fcntl_getfl(&fd)? - OFlags::DIRECT)?;
        return Ok((fd, false));
    }
    Ok((fd, true))
}

/// Error for a claimed block device: `Busy` if a daemon of ours has it, which would have locked it too.
fn claimed(path: &Path) -> OpenError {
    let locked = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|fd| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive));
    let path = path.to_owned();
    match locked {
        Err(Errno::WOULDBLOCK) => OpenError::Busy { path },
        _ => OpenError::InUse { path },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::DeviceOffset;

    #[test]
    fn a_flush_and_what_is_waited_for_at_once_do_not_wait_behind_a_stream() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        std::fs::File::create(&path).unwrap().set_len(MIN_DEVICE).unwrap();
        // Without threads: what it is asked for stays where it was put.
        let shared = Arc::new(open(&path, OpenMode::Exclusive).unwrap());
        let device = FileDevice { shared: Arc::clone(&shared), threads: Mutex::default() };
        let write = |at: u64| Request::Write {
            offset: DeviceOffset::new(at * ALIGN as u64),
            data: Arc::new(AlignedBuf::zeroed(ALIGN)),
        };
        let mut pending: Vec<_> = (0..3).map(|at| device.submit(write(at))).collect();
        pending.push(device.submit(Request::Flush));
        pending.push(device.enqueue(write(3), true));
        let mut order = Vec::new();
        while let Some((request, completion)) = { shared.queue.lock().next() } {
            order.push(match &request {
                Request::Write { offset, .. } => Some(offset.get() / ALIGN as u64),
                _ => None,
            });
            completion.complete(shared.perform(request));
        }
        assert_eq!(order, [None, Some(3), Some(0), Some(1), Some(2)]);
        pending.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
    }
}
