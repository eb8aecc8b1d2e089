//! The handshake with the kernel, and the threads.

use crate::notify::Notifier;
use crate::service::{Served, Service};
use crate::wire::Init;
use crate::wire::abi::{self, init};
use crate::{classic, ring};
use rustix::io::Errno;
use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use zerocopy::IntoBytes;

/// Transport of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Read from `/dev/fuse`.
    Classic,
    /// By io_uring.
    IoUring,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classic => "classic",
            Self::IoUring => "io_uring",
        })
    }
}

/// Options for serving a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// This transport or none; without one, io_uring where it is to be had and descriptors allow it.
    pub transport: Option<Transport>,
    /// Requests served at once: in all by the classic transport, by each processor's queue with io_uring; with many
    /// processors less.
    pub threads: usize,
    /// Largest read or write request in bytes.
    pub max_write: u32,
    /// Bytes that the kernel reads ahead at most, as far as it offers.
    pub max_readahead: u32,
    /// Requests under way without a process that waits for each: read-ahead, asynchronous direct I/O.
    pub max_background: u16,
}

/// Capabilities we ask for; older kernels lack some.
const WISHES: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::MAX_PAGES
    | init::INIT_EXT
    | init::SETXATTR_EXT
    // Many look-ups and listings of one directory at once.
    | init::PARALLEL_DIROPS
    // Listings bring attributes along when the kernel sees that they will be asked for.
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    // A new mtime (every write makes one) is no reason to drop cached pages.
    | init::EXPLICIT_INVAL_DATA
    // The server clears set-user-id bits. Otherwise each write(2) asks for `security.capability` first.
    | init::HANDLE_KILLPRIV_V2
    // A link's target never changes.
    | init::CACHE_SYMLINKS
    // Pieces of a large direct read or write at once.
    | init::ASYNC_DIO
    // The kernel enforces access ACLs; the server applies umask or default ACL.
    | init::POSIX_ACL
    | init::DONT_MASK
    // Look-up of `.` and `..` by number: file handles, so NFS.
    | init::EXPORT_SUPPORT;

const PAGE: u32 = 4096;

/// A mount that is being served. Dropping it leaves the threads to their work until the mount goes.
pub struct Session {
    device: Arc<OwnedFd>,
    transport: Transport,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Session {
    /// The transport in use.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether the mount is gone and no request is under way.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// A notifier, to tell the kernel of changes.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.device))
    }

    /// Returns when the mount is gone and no request is under way.
    ///
    /// # Errors
    /// The error that ended a thread, if it was not the mount's end; a panic of the [`Service`] is returned as one.
    pub fn join(self) -> io::Result<()> {
        let ends = self
            .threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| Err(panicked(&*panic))));
        ends.fold(Ok(()), io::Result::and)
    }
}

/// Shakes hands with the kernel over the device of a new mount and serves it.
///
/// # Errors
/// When the kernel is too old, does not offer the transport that is asked for, or threads cannot be made. The
/// mount is then of no use.
pub fn serve<S: Service>(device: OwnedFd, service: Arc<S>, options: &Options) -> io::Result<Session> {
    let device = Arc::new(device);
    let max_write = options.max_write.clamp(PAGE, u32::from(u16::MAX) * PAGE).next_multiple_of(PAGE);
    let init = receive_init(&device)?;
    let offered = init.flags & init::OVER_IO_URING != 0;
    let rings = match options.transport {
        Some(Transport::Classic) => None,
        None if !offered || !ring::is_advisable(options.threads) => None,
        Some(Transport::IoUring) if !offered => return Err(no_io_uring()),
        // They are made first: once the kernel has heard of io_uring it holds all requests until they are ready.
        wish => match ring::prepare(&device, &service, options.threads, max_write) {
            Ok(rings) => Some(rings),
            Err(_) if wish.is_none() => None,
            Err(error) => return Err(error),
        },
    };
    let uring = if rings.is_some() { init::OVER_IO_URING } else { 0 };
    answer_init(&device, &init, (WISHES | uring) & init.flags, max_write, options)?;

    let (transport, mut threads, count) = match rings {
        Some(rings) => (Transport::IoUring, rings.start(), ring::CLASSIC_THREADS),
        None => (Transport::Classic, Vec::new(), options.threads.max(1)),
    };
    for number in 0..count {
        let (device, service) = (Arc::clone(&device), Arc::clone(&service));
        let thread = Builder::new().name(format!("fuse-{number}"));
        threads.push(thread.spawn(move || {
            let served = Served(&*service);
            let outcome = classic::run(&device, served.0, max_write);
            served.end(outcome)
        })?);
    }
    Ok(Session { device, transport, threads })
}

/// Whether a write by a handle that is [`direct`](crate::Opened::direct) leaves no old page behind, whoever reads the
/// file meanwhile: from Linux 6.18.3 on the kernel drops its pages after such a write, and not only before. One case is
/// left, as with O_DIRECT: what an asynchronous write changes within the file's length.
pub fn keeps_pages_true() -> bool {
    rustix::system::uname().release().to_str().is_ok_and(drops_pages_after_writes)
}

fn drops_pages_after_writes(release: &str) -> bool {
    let end = release.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(release.len());
    let mut numbers = release[..end].split('.').map(|number| number.parse().unwrap_or(0u32));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next()) >= (6, 18, 3)
}

fn panicked(panic: &(dyn Any + Send)) -> io::Error {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    io::Error::other(format!("a thread of FUSE has panicked: {}", text.unwrap_or("it does not say why")))
}

fn no_io_uring() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the kernel does not offer FUSE over io_uring (Linux 6.14 or later, with \
         /sys/module/fuse/parameters/enable_uring set to Y)",
    )
}

/// Reads the kernel's first request. A kernel of a later major version asks again when it hears of ours.
fn receive_init(device: &OwnedFd) -> io::Result<Init> {
    let mut buffer = vec![0; abi::MIN_READ_BUFFER];
    loop {
        let len = match rustix::io::read(device, &mut buffer[..]) {
            Ok(len) => len,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let Some(init) = Init::decode(&buffer[..len]) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the kernel does not begin with FUSE_INIT",
            ));
        };
        if init.major > abi::MAJOR {
            let out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
            send_init(device, init.unique, &out)?;
            continue;
        }
        if init.major < abi::MAJOR || init.minor < abi::OLDEST_MINOR {
            let said =
                format!("the kernel's FUSE is too old ({}.{}): Linux 5.12 is needed", init.major, init.minor);
            return Err(io::Error::new(io::ErrorKind::Unsupported, said));
        }
        return Ok(init);
    }
}

fn answer_init(
    device: &OwnedFd,
    init: &Init,
    flags: u64,
    max_write: u32,
    options: &Options,
) -> io::Result<()> {
    let out = abi::InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: options.max_readahead.min(init.max_readahead),
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: options.max_background,
        // From here on the kernel holds back who would add more.
        congestion_threshold: options.max_background / 4 * 3,
        max_write,
        time_gran: 1,
        max_pages: (max_write / PAGE) as u16,
        ..Default::default()
    };
    send_init(device, init.unique, &out)
}

fn send_init(device: &OwnedFd, unique: u64, out: &abi::InitOut) -> io::Result<()> {
    let len = (size_of::<abi::OutHeader>() + size_of::<abi::InitOut>()) as u32;
    let header = abi::OutHeader { len, error: 0, unique };
    rustix::io::write(device, &[header.as_bytes(), out.as_bytes()].concat())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Request, Response};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::sync::Mutex;

    #[derive(Default)]
    struct Listener(Mutex<Vec<String>>);

    impl Service for Listener {
        type Data = Vec<u8>;
        fn serve(&self, _: &Request<'_>) -> Response<Vec<u8>> {
            panic!("as it was planted")
        }
        fn panicked(&self) {
            self.0.lock().unwrap().push("a panic".to_owned());
        }
        fn ended(&self, error: &io::Error) {
            self.0.lock().unwrap().push(error.to_string());
        }
        fn refused(&self, _: u64, _: &Response<Vec<u8>>) {}
    }

    fn request(opcode: u32, nodeid: u64, body: &[u8]) -> Vec<u8> {
        let len = (size_of::<abi::InHeader>() + body.len()) as u32;
        let header = abi::InHeader { len, opcode, unique: 1, nodeid, ..Default::default() };
        [header.as_bytes(), body].concat()
    }

    /// A session with one thread, and the kernel's end of its device.
    fn served(listener: &Arc<Listener>) -> (Session, OwnedFd) {
        let (ours, kernels) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let begun = abi::InitIn { major: abi::MAJOR, minor: 40, max_readahead: 4096, flags: 0 };
        rustix::io::write(&kernels, &request(26, 0, begun.as_bytes())).unwrap();
        let options = Options {
            transport: Some(Transport::Classic),
            threads: 1,
            max_write: PAGE,
            max_readahead: PAGE,
            max_background: 16,
        };
        (serve(ours, Arc::clone(listener), &options).unwrap(), kernels)
    }

    #[test]
    fn a_thread_that_the_device_gives_an_error_tells_the_service_before_it_ends() {
        let listener = Arc::new(Listener::default());
        let (session, kernels) = served(&listener);
        // With the answer unread in it, the other end is told that the connection was reset.
        drop(kernels);
        assert!(session.join().is_err());
        assert_eq!(listener.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_panic_of_the_service_is_an_error_of_who_joins() {
        let listener = Arc::new(Listener::default());
        let (session, kernels) = served(&listener);
        // STATFS has no body.
        rustix::io::write(&kernels, &request(17, 1, &[])).unwrap();
        let error = session.join().unwrap_err().to_string();
        assert!(error.ends_with("as it was planted"), "{error}");
        assert_eq!(*listener.0.lock().unwrap(), ["a panic"]);
    }

    #[test]
    fn kernels_are_told_apart_by_their_release() {
        for (release, does) in [
            ("6.18.3", true),
            ("6.18.44-fc-v669", true),
            ("6.19-rc1", true),
            ("7.0.0-arch1-1", true),
            ("6.18.2", false),
            ("6.18", false),
            ("6.12.63+deb13-amd64", false),
            ("", false),
            ("unknown", false),
        ] {
            assert_eq!(drops_pages_after_writes(release), does, "{release}");
        }
    }
}
