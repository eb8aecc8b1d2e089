//! A mount with one file, answered as a disk would.

use larder_device::{DiskShape, DiskWork, Kept, Paced, Pending};
use larder_files::StatFs;
use larder_fuse::mount::{Mount, open_device};
use larder_fuse::{
    Attr, Entry, Listing, Opened, Operation, Options, Request, Response, Service, Session, Transport,
};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

/// Nothing changes but the bytes: the kernel need not ask again.
const TTL: Duration = Duration::from_secs(3600);
const ROOT: u64 = 1;
const DISK: u64 = 2;
const FOLDER_MODE: u32 = 0o040_755;
const DISK_MODE: u32 = 0o100_600;
/// Largest request, bytes.
const MAX_REQUEST: u32 = 1 << 20;
/// Of the modes of fallocate(2): ranges that are to be zeros.
const ZEROES: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::ZERO_RANGE);

/// The file, and the disk that it is.
pub struct DiskFile {
    bytes: File,
    name: Vec<u8>,
    size: u64,
    queued: usize,
    paced: Paced<()>,
}

impl DiskFile {
    /// Opens the file that has the bytes, or makes it.
    ///
    /// # Errors
    /// If it has another size already, or more bytes than the disk; those of the file. In words.
    pub fn open(path: &Path, name: &str, size: Option<u64>, shape: DiskShape) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let mut options = OpenOptions::new();
        let bytes = options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let there = bytes.metadata().map_err(failed)?.len();
        let size = match (there, size) {
            (0, None) => return Err("a new disk needs a size (--gib)".to_owned()),
            (0, Some(size)) => size,
            (there, size) if size.is_none_or(|size| size == there) => there,
            _ => return Err(format!("{} has {there} bytes already", path.display())),
        };
        if size > shape.span {
            return Err(format!("the whole disk has {} bytes (--disk span=...)", shape.span));
        }
        bytes.set_len(size).map_err(failed)?;
        let paced = Paced::default();
        paced.set(Some(shape));
        Ok(Self { bytes, name: name.as_bytes().to_vec(), size, queued: shape.ncq, paced })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Nobody is held back any more; how well the disk was kept to, if anybody asked it for anything.
    pub fn close(&self) -> Option<Kept> {
        self.paced.close()
    }

    /// Performs a request, and returns when the disk would have done its work.
    fn paced<T>(&self, work: DiskWork, perform: impl FnOnce() -> T) -> T {
        let number = self.paced.ask(work);
        let value = perform();
        if let Some(number) = number {
            let (completion, pending) = Pending::new();
            self.paced.done(number, completion, ());
            pending.wait();
        }
        value
    }

    fn attr(&self, node: u64) -> Attr {
        match node {
            DISK => Attr {
                node,
                size: self.size,
                blocks: self.size.div_ceil(512),
                mode: DISK_MODE,
                nlink: 1,
                blksize: 4096,
                ..Attr::default()
            },
            _ => Attr { node, mode: FOLDER_MODE, nlink: 2, blksize: 4096, ..Attr::default() },
        }
    }

    fn entry(&self) -> Entry {
        Entry { attr: self.attr(DISK), generation: 0, ttl: TTL, attr_ttl: TTL }
    }

    /// Bytes of `len` that are there from `offset` on.
    fn within(&self, offset: u64, len: u64) -> u64 {
        len.min(self.size.saturating_sub(offset))
    }

    fn read(&self, offset: u64, size: u32) -> Response {
        let len = self.within(offset, size.into());
        if len == 0 {
            return Response::Data(Vec::new());
        }
        let mut data = vec![0; len as usize];
        let read = self.paced(DiskWork::Read { offset, len }, || self.bytes.read_exact_at(&mut data, offset));
        read.map_or_else(failed, |()| Response::Data(data))
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Response {
        let len = self.within(offset, data.len() as u64);
        if len == 0 {
            return Response::Error(Errno::NOSPC);
        }
        let work = DiskWork::Write { offset, len };
        if let Err(error) = self.paced(work, || self.bytes.write_all_at(&data[..len as usize], offset)) {
            return failed(error);
        }
        if durable {
            self.paced(DiskWork::Flush, || ());
        }
        Response::Written(len as u32)
    }

    /// Discarding, and making zeros, takes a disk no time here, as in a fault device.
    fn allocate(&self, offset: u64, len: u64, mode: u32) -> Response {
        let Some(mode) = FallocateFlags::from_bits(mode) else { return Response::Error(Errno::OPNOTSUPP) };
        let len = self.within(offset, len);
        if !ZEROES.union(FallocateFlags::KEEP_SIZE).contains(mode) {
            return Response::Error(Errno::OPNOTSUPP);
        }
        if len > 0 && mode.intersects(ZEROES) {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if let Err(errno) = rustix::fs::fallocate(&self.bytes, punch, offset, len) {
                return Response::Error(errno);
            }
        }
        Response::Done
    }

    fn list(&self, cookie: u64, size: u32, plus: bool) -> Response {
        let entry = self.entry();
        let names: [(u64, u32, &[u8]); 3] =
            [(ROOT, FOLDER_MODE, b"."), (ROOT, FOLDER_MODE, b".."), (DISK, DISK_MODE, &self.name)];
        let mut listing = Listing::new(size);
        for (at, (node, mode, name)) in names.into_iter().enumerate().skip(cookie as usize) {
            let next = at as u64 + 1;
            let fits = match plus {
                true => listing.add_plus((node == DISK).then_some(&entry), node, mode, name, next),
                false => listing.add(node, mode, name, next),
            };
            if !fits {
                break;
            }
        }
        Response::Listing(listing)
    }

    fn space(&self) -> StatFs {
        let block_size = 4096;
        StatFs { block_size, blocks: self.size / u64::from(block_size), name_max: 255, ..StatFs::default() }
    }
}

fn failed(error: io::Error) -> Response {
    Response::Error(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}

impl Service for DiskFile {
    type Data = Vec<u8>;

    fn serve(&self, request: &Request<'_>) -> Response {
        match request.operation {
            Operation::Lookup { name } if request.node == ROOT && name == self.name => {
                Response::Entry(self.entry())
            }
            Operation::Lookup { .. } => Response::NoEntry(TTL),
            // Its size stays, as that of a disk does that is opened with O_TRUNC.
            Operation::GetAttr { .. } | Operation::SetAttr(_) => Response::Attr(self.attr(request.node), TTL),
            Operation::Statx { .. } => Response::Statx(self.attr(request.node), TTL),
            Operation::Open { .. } => Response::Opened(Opened {
                direct: true,
                parallel_writes: true,
                no_flush: true,
                ..Opened::default()
            }),
            Operation::OpenDir { .. } => Response::Opened(Opened::default()),
            Operation::Read { offset, size, .. } => self.read(offset, size),
            Operation::Write { offset, data, durable, .. } => self.write(offset, data, durable),
            Operation::Fsync { .. } => {
                self.paced(DiskWork::Flush, || ());
                Response::Done
            }
            Operation::Fallocate { offset, length, mode, .. } => self.allocate(offset, length, mode),
            Operation::ReadDir { cookie, size, plus, .. } => self.list(cookie, size, plus),
            Operation::StatFs => Response::Space(self.space()),
            Operation::Flush { .. }
            | Operation::Release { .. }
            | Operation::ReleaseDir { .. }
            | Operation::FsyncDir { .. }
            | Operation::Forget { .. }
            | Operation::BatchForget(_) => Response::Done,
            Operation::Create { .. } | Operation::MkNod { .. } | Operation::MkDir { .. } => {
                Response::Error(Errno::NOSPC)
            }
            Operation::Unlink { .. } | Operation::Rename { .. } => Response::Error(Errno::PERM),
            _ => Response::Error(Errno::NOSYS),
        }
    }

    /// Nothing is counted.
    fn refused(&self, _: u64, _: &Response) {}
}

/// Mounts a folder with the file in it, and serves it.
///
/// # Errors
/// Those of mount(2), and of the transport, in words.
pub fn mount(file: &Arc<DiskFile>, folder: &Path) -> Result<Session, String> {
    let failed = |doing: &str, error: io::Error| format!("{doing} {}: {error}", folder.display());
    let what = Mount {
        mountpoint: folder,
        source: "spindle",
        subtype: "spindle",
        read_only: false,
        allow_other: true,
        dev: false,
        suid: false,
        exec: false,
        atime: false,
    };
    let device = open_device().map_err(|errno| failed("opening /dev/fuse for", errno.into()))?;
    what.directly(&device).map_err(|errno| failed("mounting at", errno.into()))?;
    // A thread waits with each request: all that the disk chooses among are to be there, and as many behind them.
    let threads = (2 * file.queued).clamp(16, 256);
    let options = Options {
        transport: Some(Transport::Classic),
        threads,
        max_write: MAX_REQUEST,
        max_readahead: MAX_REQUEST,
        max_background: threads as u16,
    };
    // Threads have the priority of the thread that makes them; the caller's stays.
    let started = std::thread::scope(|scope| {
        let start = scope.spawn(|| {
            hurry();
            let answering = Arc::clone(file);
            Builder::new().name("spindle-arm".to_owned()).spawn(move || answering.paced.answer())?;
            larder_fuse::serve(device, Arc::clone(file), &options)
        });
        start.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
    });
    started.map_err(|error| {
        unmount(folder);
        failed("serving", error)
    })
}

/// Puts this thread before all that have no priority in real time: a disk does not wait for who else uses the
/// processors. Where this is refused nothing is lost, since what waits is counted.
fn hurry() {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    drop(Command::new("chrt").args(["-f", "-p", "1", &thread]).output());
}

/// Unmounts. False if it is in use: then it is gone from its place, and served until it is left.
pub fn unmount(folder: &Path) -> bool {
    if rustix::mount::unmount(folder, UnmountFlags::empty()).is_ok() {
        return true;
    }
    // Somebody else may have done so.
    rustix::mount::unmount(folder, UnmountFlags::DETACH).is_err()
}
