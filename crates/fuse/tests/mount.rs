//! A mount of one file in many pieces, made both ways and served over both transports.
//!
//! Needs root and /dev/fuse, and what the name of each test says; elsewhere it says on stderr that it was skipped.

use larder_fuse::mount::{Mount, open_device};
use larder_fuse::{
    Attr, Data, Entry, Opened, Operation, Options, Request, Response, Service, Session, Transport, serve,
};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(1);
const FILE: u64 = 2;

/// Gives the content in pieces of a few bytes.
struct Pieces(Vec<u8>);

impl Data for Pieces {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.0.chunks(7)
    }
}

/// A folder with the file `f`, and one whose look-up is answered with what the kernel cannot take.
struct OneFile {
    content: Vec<u8>,
    refused: AtomicU64,
}

impl OneFile {
    fn attr(&self, node: u64) -> Attr {
        match node {
            FILE => {
                Attr { node, size: self.content.len() as u64, mode: 0o100_444, nlink: 1, ..Attr::default() }
            }
            _ => Attr { node, mode: 0o040_755, nlink: 2, ..Attr::default() },
        }
    }
}

impl Service for OneFile {
    type Data = Pieces;

    fn serve(&self, request: &Request<'_>) -> Response<Pieces> {
        match request.operation {
            Operation::Lookup { name: b"f" } => {
                Response::Entry(Entry { attr: self.attr(FILE), generation: 0, ttl: TTL, attr_ttl: TTL })
            }
            Operation::Lookup { name: b"odd" } => Response::Bytes(vec![0; 1000]),
            Operation::Lookup { .. } => Response::NoEntry(TTL),
            Operation::GetAttr { .. } => Response::Attr(self.attr(request.node), TTL),
            Operation::Open { .. } => Response::Opened(Opened::default()),
            Operation::Read { offset, size, .. } => {
                let from = self.content.len().min(offset as usize);
                let to = self.content.len().min(from + size as usize);
                Response::Data(Pieces(self.content[from..to].to_vec()))
            }
            Operation::Flush { .. } | Operation::Release { .. } => Response::Done,
            _ => Response::Error(Errno::NOSYS),
        }
    }

    fn refused(&self, node: u64, response: &Response<Pieces>) {
        assert!(node == 1 && matches!(response, Response::Bytes(_)), "{node}");
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

fn options(transport: Transport) -> Options {
    let max = 1 << 20;
    let transport = Some(transport);
    Options { transport, threads: 4, max_write: max, max_readahead: max, max_background: 16 }
}

fn what(mountpoint: &Path) -> Mount<'_> {
    Mount {
        mountpoint,
        source: "one, file",
        subtype: "test",
        read_only: true,
        allow_other: false,
        dev: false,
        suid: false,
        exec: false,
        atime: true,
    }
}

/// Unmounts. A file there may stay open for a moment: in a child of another test's between its fork and its exec.
fn unmount_soon(folder: &Path) {
    for _ in 0..10_000 {
        match unmount(folder, UnmountFlags::empty()) {
            Err(Errno::BUSY) => {
                #[expect(clippy::disallowed_methods, reason = "a test of real mounts waits for others")]
                std::thread::sleep(Duration::from_millis(1));
            }
            unmounted => return unmounted.unwrap(),
        }
    }
    panic!("{} stays busy", folder.display())
}

/// Mounts, reads, unmounts.
fn go(test: &str, transport: Transport, make: impl Fn(&Mount<'_>) -> OwnedFd) {
    let enabled = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let offered = transport == Transport::Classic || enabled.is_ok_and(|word| word.trim() == "Y");
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() || !offered {
        eprintln!("SKIPPED {test}: needs root, /dev/fuse, and what its name says");
        return;
    }
    let folder = std::env::temp_dir().join(format!("larder-fuse-{test}-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    // 30,000 bytes are more pieces than one writev(2) takes, 3,000 are not.
    for len in [30_000, 3_000] {
        let content: Vec<u8> = (0..len as u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let device = make(&what(&folder));
        let service = Arc::new(OneFile { content: content.clone(), refused: AtomicU64::new(0) });
        let session: Session = serve(device, Arc::clone(&service), &options(transport)).unwrap();
        assert_eq!(session.transport(), transport);
        let table = fs::read_to_string("/proc/mounts").unwrap();
        let line = table.lines().find(|line| line.contains(folder.to_str().unwrap())).unwrap();
        assert!(line.starts_with("one,\\040file ") && line.contains("fuse.test ro,nosuid,nodev"), "{line}");
        assert_eq!(fs::read(folder.join("f")).unwrap(), content);
        assert!(!folder.join("g").exists() && !session.is_finished());
        // Over io_uring the kernel tells nobody of an answer that it cannot take, not even who asked.
        let tells = transport == Transport::Classic;
        if tells {
            assert!(fs::metadata(folder.join("odd")).is_err());
        }
        unmount_soon(&folder);
        session.join().unwrap();
        assert_eq!(service.refused.load(Ordering::Relaxed), u64::from(tells));
    }
    fs::remove_dir(&folder).unwrap();
}

fn directly(what: &Mount<'_>) -> OwnedFd {
    let device = open_device().unwrap();
    what.directly(&device).unwrap();
    device
}

#[test]
fn a_mount_by_system_call_is_served_classically() {
    go("classic", Transport::Classic, directly);
}

#[test]
fn a_mount_by_system_call_is_served_over_io_uring() {
    go("io_uring", Transport::IoUring, directly);
}

#[test]
fn a_mount_by_fusermount3_is_served_as_any_other() {
    if Command::new("fusermount3").arg("-V").output().is_err() {
        eprintln!("SKIPPED fusermount3: there is none");
        return;
    }
    go("fusermount3", Transport::Classic, |what| what.by_fusermount().unwrap());
}

#[test]
fn what_fusermount3_says_is_passed_on() {
    if Command::new("fusermount3").arg("-V").output().is_err() {
        eprintln!("SKIPPED fusermount3: there is none");
        return;
    }
    let refused = what(Path::new("/nowhere/at/all")).by_fusermount().unwrap_err();
    assert!(refused.to_string().contains("/nowhere/at/all"), "{refused}");
}
