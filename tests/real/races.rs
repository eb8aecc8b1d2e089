//! Races between processes on a mount: `races WHAT FOLDER`. Prints failures, and fails then.
//!
//! Each does a fixed number of steps and asks for what holds at every moment, so that no outcome depends on time.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{env, io, thread};

const O_PATH: i32 = 0o10000000;
const TIMES: usize = 3000;

/// Failures of one kind, and how often it was tried.
#[derive(Default)]
struct Count {
    tries: AtomicU64,
    failures: AtomicU64,
}

impl Count {
    fn note<T>(&self, what: &str, outcome: io::Result<T>) -> Option<T> {
        self.tries.fetch_add(1, Ordering::Relaxed);
        outcome
            .inspect_err(|error| {
                if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                    println!("{what}: {error}");
                }
            })
            .ok()
    }

    fn told(&self, what: &str) -> bool {
        let (tries, failures) = (self.tries.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed));
        println!("{what}: {failures} of {tries} failed");
        failures == 0
    }
}

/// Somebody opens, asks about and changes what others replace and remove.
fn replaced(dir: &Path) -> bool {
    let (file, lock) = (dir.join("file"), dir.join("lock"));
    fs::write(&file, "whole").unwrap();
    let done = AtomicBool::new(false);
    let (opens, stats, modes, locks) =
        (Count::default(), Count::default(), Count::default(), Count::default());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if let Some(file) = opens.note("open", File::open(&file)) {
                        let mut content = [0; 5];
                        opens.note("read", file.read_exact_at(&mut content, 0));
                    }
                    stats.note("stat", fs::metadata(&file));
                    modes.note("chmod", fs::set_permissions(&file, PermissionsExt::from_mode(0o600)));
                    locks.note(
                        "create",
                        OpenOptions::new().write(true).create(true).truncate(false).open(&lock),
                    );
                }
            });
        }
        for step in 0..TIMES {
            let new = dir.join("new");
            fs::write(&new, "whole").unwrap();
            fs::rename(&new, &file).unwrap();
            if step % 2 == 0 {
                let _ = fs::remove_file(&lock);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    [(opens, "open"), (stats, "stat"), (modes, "chmod"), (locks, "open(O_CREAT)")]
        .into_iter()
        .fold(true, |good, (count, what)| count.told(what) && good)
}

/// A removed file or folder stays there for its holder, without a descriptor to read or write.
fn held(dir: &Path) -> bool {
    let count = Count::default();
    let (file, folder) = (dir.join("held"), dir.join("folder"));
    fs::write(&file, "still there").unwrap();
    let path = OpenOptions::new().read(true).custom_flags(O_PATH).open(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let again = PathBuf::from(format!("/proc/self/fd/{}", path.as_raw_fd()));
    for _ in 0..2 {
        let content = fs::read_to_string(&again);
        let wrong = || io::Error::other("it reads otherwise");
        count
            .note("O_PATH", content.and_then(|read| (read == "still there").then_some(()).ok_or_else(wrong)));
    }
    count.note(
        "fstat of O_PATH",
        path.metadata()
            .and_then(|it| (it.nlink() == 0).then_some(()).ok_or_else(|| io::Error::other("links"))),
    );
    fs::create_dir(&folder).unwrap();
    env::set_current_dir(&folder).unwrap();
    fs::remove_dir(&folder).unwrap();
    count.note("a removed working folder", fs::metadata("."));
    count.note("opening it", File::open("."));
    let made = fs::write("new", "").err().and_then(|error| error.raw_os_error());
    count.note(
        "making something in it",
        (made == Some(2)).then_some(()).ok_or_else(|| io::Error::other("not ENOENT")),
    );
    env::set_current_dir("/").unwrap();
    count.told("what is held")
}

unsafe extern "C" {
    fn mmap(addr: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn munmap(addr: *mut u8, len: usize) -> i32;
}

/// One writes bytes of a page of a new file by pwrite(2), another changes other bytes of it in a shared mapping, unless
/// that is refused because the file is being made; once it is closed, it is not.
fn mapped(dir: &Path) -> bool {
    const ENODEV: i32 = 19;
    let (count, lost) = (Count::default(), Count::default());
    let mut refused = 0;
    for round in 0..20 {
        let name = dir.join(format!("mapped{round}"));
        let mut writer = OpenOptions::new().write(true).create_new(true).open(&name).unwrap();
        writer.write_all_at(&[0; 4096], 0).unwrap();
        let is_made = round % 2 == 0;
        if is_made {
            drop(writer);
            writer = OpenOptions::new().write(true).open(&name).unwrap();
        }
        let both = OpenOptions::new().read(true).write(true).open(&name).unwrap();
        // SAFETY: a fresh mapping of a page of a file that nobody makes shorter.
        let page = unsafe { mmap(std::ptr::null_mut(), 4096, 3, 1, both.as_raw_fd(), 0) };
        if page as isize == -1 {
            let error = io::Error::last_os_error();
            if !is_made && error.raw_os_error() == Some(ENODEV) {
                refused += 1;
                continue;
            }
            count.note::<()>("mmap", Err(error));
            continue;
        }
        count.note("mmap", Ok(()));
        let address = page as usize;
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0u8;
                while !done.load(Ordering::Relaxed) {
                    value = value.wrapping_add(1);
                    // SAFETY: it is mapped until this thread has ended, and no reference into it is made.
                    unsafe { (address as *mut u8).add(4000).write_volatile(value) };
                }
            });
            for step in 0..2000u32 {
                let (at, value) = (u64::from(step % 500) * 4, step + 1);
                writer.write_all_at(&value.to_le_bytes(), at).unwrap();
                let mut now = [0; 4];
                both.read_exact_at(&mut now, at).unwrap();
                let kept = u32::from_le_bytes(now) == value;
                lost.note(
                    "pwrite",
                    kept.then_some(()).ok_or_else(|| io::Error::other("what was written is gone")),
                );
            }
            done.store(true, Ordering::Relaxed);
        });
        // SAFETY: as above.
        unsafe { munmap(page, 4096) };
    }
    println!("{refused} mappings of files that were being made were refused");
    let lost = lost.told("pwrite beside a mapping");
    count.told("shared mappings") && lost
}

/// A stranger changes the content of files with set-user-id and set-group-id bits, which then are gone.
fn bits(dir: &Path) -> bool {
    let count = Count::default();
    fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).unwrap();
    let myself = env::current_exe().unwrap();
    // Mode, group, bits left: the stranger is in the file's group only in the last case.
    for (mode, group, left) in [
        (0o6777, 0, 0o777),
        (0o4766, 0, 0o766),
        (0o2767, 0, 0o767),
        (0o2777, 0, 0o777),
        (0o2767, 2000, 0o2767),
    ] {
        for way in ["write", "direct", "append", "truncate", "allocate", "punch", "zero", "copy"] {
            let name = dir.join(format!("bits-{mode:o}-{group}-{way}"));
            fs::write(&name, vec![1; 8192]).unwrap();
            std::os::unix::fs::chown(&name, Some(0), Some(group)).unwrap();
            fs::set_permissions(&name, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(fs::metadata(&name).unwrap().mode() & 0o7777, mode);
            let mut stranger = Command::new(&myself);
            stranger.arg("stranger").arg(&name).arg(way).uid(1000).gid(2000);
            let changed = stranger.output().unwrap();
            if !changed.status.success() {
                println!("{way}: {}", String::from_utf8_lossy(&changed.stderr));
                count.note::<()>(way, Err(io::Error::other("could not be tried")));
                continue;
            }
            let now = mode_as_known(&name);
            let wrong = || io::Error::other(format!("{mode:o} became {now:o}"));
            count.note(way, (now == left).then_some(()).ok_or_else(wrong));
        }
    }
    count.told("bits of files that a stranger changed")
}

/// The mode alone, which the kernel may know without asking.
fn mode_as_known(name: &Path) -> u32 {
    const AT_FDCWD: i32 = -100;
    const STATX_MODE: u32 = 2;
    let path = std::ffi::CString::new(name.as_os_str().as_encoded_bytes()).unwrap();
    let mut shown = [0u16; 128];
    // SAFETY: the path ends with NUL, and a `struct statx` has 256 bytes.
    let done = unsafe { statx(AT_FDCWD, path.as_ptr(), 0, STATX_MODE, shown.as_mut_ptr()) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    // `stx_mode` is at byte 28.
    u32::from(shown[14]) & 0o7777
}

unsafe extern "C" {
    fn statx(dir: i32, path: *const std::ffi::c_char, flags: i32, mask: u32, out: *mut u16) -> i32;
    fn fallocate(fd: i32, mode: i32, offset: i64, len: i64) -> i32;
    fn copy_file_range(from: i32, at: *mut i64, to: i32, to_at: *mut i64, len: usize, flags: u32) -> isize;
}

fn stranger(name: &Path, way: &str) {
    const O_DIRECT: i32 = 0o40000;
    let told = |done: i64| {
        if done < 0 {
            panic!("{way}: {}", io::Error::last_os_error())
        }
    };
    let open = || OpenOptions::new().write(true).open(name).unwrap();
    // SAFETY: descriptors and lengths only, and no pointers but null ones.
    let allocate = |mode| told(unsafe { fallocate(open().as_raw_fd(), mode, 0, 4096) }.into());
    match way {
        "write" => open().write_all_at(b"x", 0).unwrap(),
        "direct" => {
            let file = OpenOptions::new().write(true).custom_flags(O_DIRECT).open(name).unwrap();
            let bytes = vec![2u8; 3 * 4096];
            let skip = bytes.as_ptr().align_offset(4096);
            file.write_all_at(&bytes[skip..skip + 4096], 0).unwrap();
        }
        "append" => OpenOptions::new().append(true).open(name).unwrap().write_all(b"x").unwrap(),
        "truncate" => open().set_len(5000).unwrap(),
        "allocate" => allocate(0),
        "punch" => allocate(3),
        "zero" => allocate(16),
        "copy" => {
            let source = name.with_extension("source");
            fs::write(&source, vec![3; 4096]).unwrap();
            let (from, to) = (File::open(&source).unwrap(), open());
            let null = std::ptr::null_mut();
            // SAFETY: as above.
            told(unsafe { copy_file_range(from.as_raw_fd(), null, to.as_raw_fd(), null, 4096, 0) } as i64);
        }
        _ => panic!("{way}"),
    }
}

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let dir = Path::new(&args[1]);
    let good = match args[0].as_str() {
        "replaced" => replaced(dir),
        "held" => held(dir),
        "mapped" => mapped(dir),
        "bits" => bits(dir),
        "stranger" => {
            stranger(dir, &args[2]);
            true
        }
        what => panic!("{what}"),
    };
    io::stdout().flush().unwrap();
    exit(i32::from(!good));
}
