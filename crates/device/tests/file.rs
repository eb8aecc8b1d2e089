//! Files and block devices as the operating system gives them.

use larder_device::{
    ALIGN, AlignedBuf, Device, DeviceError, Entropy, FileDevice, OpenError, OpenMode, Request, SeededEntropy,
};
use larder_format::{ByteLen, DeviceOffset};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const SIZE: u64 = 64 << 20;
const LONG: Duration = Duration::from_secs(600);

fn sparse(folder: &TempDir, name: &str, size: u64) -> PathBuf {
    let path = folder.path().join(name);
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn open(path: &Path) -> Result<FileDevice, OpenError> {
    FileDevice::open(path, OpenMode::Exclusive)
}

/// Tries what is refused for a moment only: a lock may outlive its holder, with a read that was left or in a child of
/// another test's between its fork and its exec.
fn eventually<T, E: std::fmt::Debug>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    for _ in 0..10_000 {
        if let Ok(value) = attempt() {
            return value;
        }
        #[expect(clippy::disallowed_methods, reason = "a test of real files waits for others")]
        std::thread::sleep(Duration::from_millis(1));
    }
    attempt().unwrap()
}

fn refusal(path: &Path, mode: OpenMode) -> OpenError {
    match FileDevice::open(path, mode) {
        Ok(_) => panic!("{} opened", path.display()),
        Err(error) => {
            assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
            error
        }
    }
}

fn read(offset: u64, len: u64) -> Request {
    Request::Read { offset: DeviceOffset::new(offset), len: ByteLen::new(len) }
}

fn write(offset: u64, bytes: &[u8]) -> Request {
    Request::Write { offset: DeviceOffset::new(offset), data: Arc::new(AlignedBuf::padded(bytes)) }
}

/// Overwrites random ranges, then compares the whole device with a copy in memory.
fn exercise(device: &FileDevice, seed: u64) {
    let rng = SeededEntropy::new(seed);
    let below = |count: u64| rng.next_u64() % count;
    let span = 4 << 20;
    let mut copy = vec![0; span as usize];
    device.submit(write(0, &copy)).wait().unwrap();
    for _ in 0..50 {
        let pages = 1 + below(64);
        let (offset, len) = (below(span / 4096 - pages + 1) * 4096, pages * 4096);
        let bytes = rng.bytes(len as usize);
        copy[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
        assert!(device.submit(write(offset, &bytes)).wait().unwrap().is_empty());
    }
    device.submit(Request::Flush).wait().unwrap();
    for _ in 0..50 {
        let pages = 1 + below(64);
        let offset = below(span / 4096 - pages + 1) * 4096;
        let bytes = device.submit(read(offset, pages * 4096)).wait().unwrap();
        assert_eq!(bytes[..], copy[offset as usize..][..bytes.len()], "seed {seed}");
    }
}

#[test]
fn what_was_written_reads_back_before_and_after_reopening() {
    let folder = TempDir::new().unwrap();
    let path = sparse(&folder, "disk", SIZE);
    let device = open(&path).unwrap();
    assert_eq!((device.size(), device.sector_size()), (ByteLen::new(SIZE), 4096));
    assert_eq!(device.name(), path.display().to_string());
    exercise(&device, 1);
    let before = device.submit(read(0, 1 << 20)).wait().unwrap();
    drop(device);
    let after = FileDevice::open(&path, OpenMode::Probe).unwrap().submit(read(0, 1 << 20)).wait().unwrap();
    assert_eq!(before[..], after[..]);
}

#[test]
fn a_file_system_without_direct_io_is_used_through_the_page_cache() {
    let Ok(folder) = TempDir::new_in("/dev/shm") else {
        eprintln!("SKIPPED a_file_system_without_direct_io_is_used_through_the_page_cache: no /dev/shm");
        return;
    };
    // Whether tmpfs takes O_DIRECT depends on the kernel; either way it has to work.
    let device = open(&sparse(&folder, "disk", SIZE)).unwrap();
    eprintln!("tmpfs: direct I/O is {}", device.is_direct());
    exercise(&device, 2);
}

#[test]
fn many_requests_in_flight_each_get_their_own_answer() {
    let folder = TempDir::new().unwrap();
    let device = open(&sparse(&folder, "disk", SIZE)).unwrap();
    std::thread::scope(|scope| {
        for part in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                let at = |i: u64| (part * 64 + i) * 4096;
                let fill = |i: u64| [(part * 64 + i) as u8; 4096];
                let writes: Vec<_> = (0..64).map(|i| device.submit(write(at(i), &fill(i)))).collect();
                writes.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
                device.submit(Request::Flush).wait().unwrap();
                let reads: Vec<_> = (0..64).map(|i| device.submit(read(at(i), 4096))).collect();
                for (i, pending) in reads.into_iter().enumerate() {
                    assert_eq!(pending.wait().unwrap()[..], fill(i as u64));
                }
            });
        }
    });
}

#[test]
fn dropping_a_device_performs_what_waits() {
    let folder = TempDir::new().unwrap();
    let path = sparse(&folder, "disk", SIZE);
    let device = FileDevice::open_with_threads(&path, OpenMode::Exclusive, 1).unwrap();
    let waiting: Vec<_> = (0..200).map(|i| device.submit(write(i * 4096, &[7; 4096]))).collect();
    drop(device);
    waiting.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
    assert!(fs::read(&path).unwrap()[..200 * 4096].iter().all(|byte| *byte == 7));
}

#[test]
fn an_abandoned_device_is_gone() {
    let folder = TempDir::new().unwrap();
    let device = open(&sparse(&folder, "disk", SIZE)).unwrap();
    device.abandon();
    assert_eq!(device.submit(Request::Flush).wait().unwrap_err(), DeviceError::Gone);
}

#[test]
fn requests_beyond_the_end_are_range_errors() {
    let folder = TempDir::new().unwrap();
    // A size that no request can end at is rounded down.
    let path = sparse(&folder, "disk", SIZE + 100);
    let device = open(&path).unwrap();
    assert_eq!(device.size(), ByteLen::new(SIZE));
    for offset in [SIZE, SIZE - 4096, u64::MAX - 4095] {
        assert_eq!(device.submit(read(offset, 8192)).wait().unwrap_err(), DeviceError::Range);
        assert_eq!(device.submit(write(offset, &[1; 8192])).wait().unwrap_err(), DeviceError::Range);
    }
    assert_eq!(fs::metadata(path).unwrap().len(), SIZE + 100);
}

#[test]
fn a_file_cut_short_under_us_is_an_error_and_never_zeros() {
    let folder = TempDir::new().unwrap();
    let path = sparse(&folder, "disk", SIZE);
    let device = open(&path).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert!(device.submit(read(0, 4096)).wait().is_ok());
    for (offset, len) in [(0, 8192), (4096, 4096), (8192, 4096)] {
        assert_eq!(device.submit(read(offset, len)).wait().unwrap_err(), DeviceError::Range);
    }
}

#[test]
fn a_second_opener_is_refused_but_may_probe() {
    let folder = TempDir::new().unwrap();
    let path = sparse(&folder, "disk", SIZE);
    let first = open(&path).unwrap();
    assert_eq!(refusal(&path, OpenMode::Exclusive), OpenError::Busy { path: path.clone() });
    let probe = FileDevice::open(&path, OpenMode::Probe).unwrap();
    assert!(probe.submit(read(0, 4096)).wait().is_ok());
    drop(first);
    // The lock ends with its holder, and probing takes none.
    drop(eventually(|| open(&path)));
}

#[test]
fn a_probe_cannot_write() {
    let folder = TempDir::new().unwrap();
    let device = FileDevice::open(sparse(&folder, "disk", SIZE), OpenMode::Probe).unwrap();
    let outcome = device.submit(write(0, &[1; ALIGN])).wait();
    assert!(matches!(outcome, Err(DeviceError::Io { .. })), "{outcome:?}");
}

#[test]
fn what_is_no_device_is_refused_with_its_reason() {
    let folder = TempDir::new().unwrap();
    for mode in [OpenMode::Probe, OpenMode::Exclusive] {
        let small = sparse(&folder, "small", SIZE - 1);
        let expected = OpenError::TooSmall { path: small.clone(), size: SIZE - 1, min: SIZE };
        assert_eq!(refusal(&small, mode), expected);
        for path in [folder.path(), Path::new("/dev/null")] {
            assert_eq!(refusal(path, mode), OpenError::NotADevice { path: path.to_owned() });
        }
        let missing = folder.path().join("missing");
        assert_eq!(refusal(&missing, mode), OpenError::NotFound { path: missing });
    }
}

#[test]
fn a_pipe_is_refused_without_waiting_for_its_other_end() {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED a_pipe_is_refused_without_waiting_for_its_other_end: mkfifo does not work");
        return;
    }
    assert_eq!(refusal(&pipe, OpenMode::Probe), OpenError::NotADevice { path: pipe });
}

fn discard(offset: u64, len: u64) -> Request {
    Request::Discard { offset: DeviceOffset::new(offset), len: ByteLen::new(len) }
}

/// Bytes that a file takes of its file system.
fn taken(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// A discard on `device` frees that range of the file that it lies on, and nothing else.
fn gives_back(device: &FileDevice, path: &Path) {
    let bytes = vec![7; 16 << 20];
    device.submit(write(0, &bytes)).wait().unwrap();
    device.submit(Request::Flush).wait().unwrap();
    let before = taken(path);
    device.submit(discard(4 << 20, 8 << 20)).wait().unwrap();
    device.submit(Request::Flush).wait().unwrap();
    assert!(taken(path) + (8 << 20) <= before + (64 << 10), "{} of {before}", taken(path));
    for (at, is) in [(0, 7), ((4 << 20) - 4096, 7), (12 << 20, 7), (4 << 20, 0), ((12 << 20) - 4096, 0)] {
        let page = device.submit(read(at, 4096)).wait().unwrap();
        assert!(page.iter().all(|byte| *byte == is), "at {at}");
    }
    assert_eq!(device.submit(discard(SIZE - 4096, 8192)).wait().unwrap_err(), DeviceError::Range);
}

#[test]
fn what_is_discarded_is_given_back_to_the_file_system() {
    let folder = TempDir::new().unwrap();
    let path = sparse(&folder, "disk", SIZE);
    gives_back(&open(&path).unwrap(), &path);
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
}

#[test]
fn what_is_discarded_on_a_loop_device_goes_from_its_file() {
    let folder = TempDir::new().unwrap();
    let path = sparse(&folder, "disk", SIZE);
    let Some(device) = Loop::attach(&path) else {
        eprintln!("SKIPPED what_is_discarded_on_a_loop_device_goes_from_its_file: no root or no losetup");
        return;
    };
    gives_back(&eventually(|| open(Path::new(&device.0))), &path);
}

#[test]
fn a_disk_that_is_pulled_out_is_gone_and_not_full() {
    let folder = TempDir::new().unwrap();
    let path = sparse(&folder, "disk", SIZE);
    let Some(attached) = Loop::attach(&path) else {
        eprintln!("SKIPPED a_disk_that_is_pulled_out_is_gone_and_not_full: no root or no losetup");
        return;
    };
    let device = eventually(|| open(&attached.0));
    exercise(&device, 3);
    // As the kernel leaves a pulled disk to who has it open: with no bytes.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    let told = Command::new("losetup").arg("--set-capacity").arg(&attached.0).status();
    assert!(told.is_ok_and(|status| status.success()));
    for offset in [0, SIZE / 2] {
        for request in [|offset| read(offset, 4096), |offset| write(offset, &[7; 4096])] {
            assert_eq!(device.submit(request(offset)).wait().unwrap_err(), DeviceError::Gone);
            let performed = device.perform(request(offset), LONG).unwrap_or_else(|_| panic!("ten minutes"));
            assert_eq!(performed.unwrap_err(), DeviceError::Gone);
        }
    }
}

/// A loop device over a file, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    fn attach(file: &Path) -> Option<Self> {
        let out = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| Self(PathBuf::from(path.trim())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(detached.is_ok_and(|status| status.success()), "detach {}", self.0.display());
    }
}

#[test]
fn a_block_device_is_claimed_against_daemons_and_mounts() {
    let folder = TempDir::new().unwrap();
    let attached =
        rustix::process::geteuid().is_root().then(|| Loop::attach(&sparse(&folder, "disk", SIZE))).flatten();
    let Some(attached) = attached else {
        eprintln!("SKIPPED a_block_device_is_claimed_against_daemons_and_mounts: no root or no losetup");
        return;
    };
    let path = &attached.0;

    let device = open(path).unwrap();
    assert_eq!((device.size(), device.sector_size()), (ByteLen::new(SIZE), 512));
    exercise(&device, 3);
    assert_eq!(refusal(path, OpenMode::Exclusive), OpenError::Busy { path: path.clone() });
    drop(FileDevice::open(path, OpenMode::Probe).expect("probing disturbs no one"));
    drop(device);

    use rustix::fs::{Mode, OFlags};
    let claim = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    let mount = eventually(|| rustix::fs::open(path, claim, Mode::empty()));
    // udev may look at the disk for a moment, and its lock then passes for a daemon's.
    let in_use = OpenError::InUse { path: path.clone() };
    assert!((0..1000).any(|_| refusal(path, OpenMode::Exclusive) == in_use));
    drop(mount);
    drop(eventually(|| open(path)));
}

#[test]
fn a_read_in_the_callers_thread_is_left_when_its_time_is_over_and_comes_late() {
    let folder = tempfile::tempdir().unwrap();
    let device = open(&sparse(&folder, "disk", SIZE)).unwrap();
    for page in 0..64 {
        device.submit(write(page * 4096, &[page as u8 + 1; 4096])).wait().unwrap();
    }
    let mut late = Vec::new();
    for page in 0..64 {
        // Sometimes it is there even so.
        match device.perform(read(page * 4096, 4096), Duration::ZERO) {
            Ok(outcome) => assert_eq!(outcome.unwrap()[0], page as u8 + 1),
            Err(pending) => late.push((page, pending)),
        }
        // The thread's next read is its own.
        let next =
            device.perform(read(0, 64 * 4096), LONG).unwrap_or_else(|_| panic!("ten minutes")).unwrap();
        assert_eq!(next[63 * 4096], 64);
    }
    // Buffers that nobody waits for any more are let go of when they come.
    late.truncate(late.len() / 2);
    for (page, pending) in late {
        assert_eq!(pending.wait().unwrap()[..], [page as u8 + 1; 4096]);
    }
    let beyond = device.perform(read(SIZE, 4096), LONG).unwrap_or_else(|_| panic!("at once"));
    assert_eq!(beyond.unwrap_err(), DeviceError::Range);
    device.abandon();
    let gone = device.perform(read(0, 4096), LONG).unwrap_or_else(|_| panic!("at once"));
    assert_eq!(gone.unwrap_err(), DeviceError::Gone);
    // Once the reads that were left have come, who holds the old one has nothing of it.
    let again = eventually(|| open(&folder.path().join("disk")));
    assert_eq!(again.submit(read(4096, 4096)).wait().unwrap()[0], 2);
    assert_eq!(device.submit(Request::Flush).wait().unwrap_err(), DeviceError::Gone);
}

#[test]
fn requests_started_on_several_devices_are_all_under_way_and_complete_where_they_are_waited_for() {
    let folder = TempDir::new().unwrap();
    let devices: Vec<_> =
        (0..6).map(|i| open(&sparse(&folder, &format!("disk{i}"), SIZE)).unwrap()).collect();
    let start = |request: &dyn Fn(usize) -> Request| -> Vec<_> {
        devices.iter().enumerate().map(|(i, device)| device.start(request(i))).collect()
    };
    for round in 0..20 {
        let value = |i: usize| (round * 10 + i + 1) as u8;
        for pending in start(&|i| write(round as u64 * 8192, &[value(i); 8192])) {
            pending.wait_for(LONG).unwrap_or_else(|_| panic!("ten minutes")).unwrap();
        }
        start(&|_| Request::Flush).into_iter().for_each(|flush| assert!(flush.wait().is_ok()));
        for (i, pending) in start(&|_| read(round as u64 * 8192, 8192)).into_iter().enumerate() {
            assert_eq!(pending.wait().unwrap()[..], [value(i); 8192]);
        }
    }
}

#[test]
fn writes_and_flushes_that_are_left_complete_all_the_same() {
    let folder = TempDir::new().unwrap();
    let path = sparse(&folder, "disk", SIZE);
    let device = open(&path).unwrap();
    let mut late = Vec::new();
    for page in 0..32 {
        late.push(device.start(write(page * 4096, &[page as u8 + 1; 4096])));
        late.push(device.start(Request::Flush));
        late.push(device.submit(Request::Flush));
        late = late.into_iter().filter_map(|pending| pending.wait_for(Duration::ZERO).err()).collect();
        drop(device.start(Request::Flush));
    }
    late.into_iter().for_each(|pending| assert!(pending.wait().is_ok()));
    let bytes = device.submit(read(0, 32 * 4096)).wait().unwrap();
    assert!((0..32).all(|page| bytes[page * 4096..][..4096] == [page as u8 + 1; 4096]));
    assert_eq!(device.start(read(SIZE, 4096)).wait().unwrap_err(), DeviceError::Range);
    device.abandon();
    assert_eq!(device.start(Request::Flush).wait().unwrap_err(), DeviceError::Gone);
    assert_eq!(device.start(write(0, &[1; 4096])).wait().unwrap_err(), DeviceError::Gone);
}
