//! Real mounts of a tree in memory, used through the kernel, over each transport.
//!
//! They need root and /dev/fuse, and those of io_uring a kernel that has it switched on; elsewhere each says on
//! stderr that it was skipped. With LARDER_NO_SKIP set, io_uring that root could switch on is a failure.

mod memory;

use super::server::Server;
use super::*;
use larder_files::NodeId;
use larder_fuse::{Operation, Request, Response, Service};
use memory::Memory;
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Makes a test of each for both transports.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        mod classic {
            $(#[test] fn $name() { super::$name(super::Transport::Classic) })*
        }
        mod io_uring {
            $(#[test] fn $name() { super::$name(super::Transport::IoUring) })*
        }
    };
}

over_both! {
    a_file_reads_back_as_written_renamed_truncated_and_appended_to,
    direct_and_sparse_access_and_copies_agree_with_cached_reads,
    a_directory_of_thousands_lists_every_name_once_with_its_attributes,
    listings_spare_lookups,
    links_nodes_and_flagged_renames_do_what_posix_and_linux_say,
    attributes_come_back_as_set_and_times_before_1970_too,
    writing_by_another_user_takes_set_user_id_away_and_permissions_are_checked,
    bits_of_what_a_stranger_changes_are_gone_for_the_kernel_too,
    small_writes_do_not_ask_for_capabilities_each_time,
    what_was_read_once_is_read_from_memory_and_reading_flushes_nothing,
    a_new_file_is_written_around_the_pages,
    nobody_maps_what_is_written_around_the_pages,
    who_reads_a_file_while_it_is_made_sees_what_is_written,
    what_the_kernel_does_beside_writing_is_done_for_new_files_too,
    attributes_extended_are_set_listed_and_measured,
    requests_are_served_at_once,
    changes_from_below_show_once_they_are_announced,
    a_panic_stops_the_engine_and_not_the_mount,
    a_mount_in_use_stays_and_one_that_is_not_goes,
    unmounting_from_outside_ends_the_session,
    what_is_in_the_way_of_mounting_is_said_in_plain_words,
    files_without_a_name_and_birth_times,
    the_umask_is_left_to_the_engine,
    acls_are_enforced_by_the_kernel,
    many_threads_at_once_get_what_is_theirs,
    a_connection_that_is_aborted_ends_every_thread,
}

/// A mount under a directory of its own; unmounted when dropped, also by a panic.
struct Mounted {
    handle: Option<MountHandle>,
    ops: Arc<Memory>,
    dir: tempfile::TempDir,
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn handle(&self) -> &MountHandle {
        self.handle.as_ref().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.handle.take());
    }
}

/// Tries again while a mount is in use: a file in it may stay open for a moment, in a child of another test's between
/// its fork and its exec.
fn once_free<T, E: std::fmt::Debug>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    for _ in 0..10_000 {
        if let Ok(done) = attempt() {
            return done;
        }
        #[expect(clippy::disallowed_methods, reason = "a test of real mounts waits for others")]
        std::thread::sleep(Duration::from_millis(1));
    }
    attempt().unwrap()
}

/// Unmounts as the system does.
fn unmount_outside(path: &Path) {
    once_free(|| rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()));
}

/// Unmounts as the daemon does.
fn unmount(handle: MountHandle) {
    let mut handle = Some(handle);
    once_free(|| {
        let refused = handle.take().expect("it was given back").unmount();
        refused.map_err(|refused| {
            let why = refused.to_string();
            handle = Some(*refused.handle);
            why
        })
    });
}

fn can_mount(test: &str) -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("SKIPPED {test}: needs root and /dev/fuse");
    }
    can
}

/// Whether the kernel offers io_uring.
fn has_io_uring(test: &str) -> bool {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    let switch = fs::read_to_string(SWITCH).ok();
    let forbidden =
        fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|word| word.trim() == "2");
    let why = match switch.as_deref().map(str::trim) {
        _ if forbidden => "io_uring is forbidden (kernel.io_uring_disabled)",
        Some("Y") => return true,
        Some(_) => "it is switched off",
        None => "needs Linux 6.14",
    };
    eprintln!("SKIPPED {test} over io_uring: {why}");
    let switchable = switch.is_some() && !forbidden;
    assert!(!switchable || std::env::var_os("LARDER_NO_SKIP").is_none(), "write Y to {SWITCH}");
    false
}

/// None (and a word about it) where mounting is not possible.
fn mounted_with(over: Transport, test: &str, change: impl FnOnce(&mut MountOptions)) -> Option<Mounted> {
    if !can_mount(test) || (over == Transport::IoUring && !has_io_uring(test)) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let ops = Arc::new(Memory::new());
    let mut options = MountOptions { transport: Some(over), ..MountOptions::new(dir.path(), "tank/home") };
    change(&mut options);
    let handle = mount(ops.clone(), options).unwrap();
    assert_eq!(handle.transport(), over);
    Some(Mounted { handle: Some(handle), ops, dir })
}

fn mounted(over: Transport, test: &str) -> Option<Mounted> {
    mounted_with(over, test, |_| ())
}

fn options(over: Transport, m: &Mounted) -> MountOptions {
    MountOptions { transport: Some(over), ..MountOptions::new(m.dir.path(), "tank/home") }
}

fn mount_line(path: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().find(|line| line.contains(path.to_str().unwrap())).map(str::to_owned)
}

/// Errno of a failed system call.
fn errno_of<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

/// The kernel's view of a pattern that no two places share by chance.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn a_file_reads_back_as_written_renamed_truncated_and_appended_to(over: Transport) {
    let Some(m) = mounted(over, "a_file_reads_back") else { return };
    let data = pattern(5 << 20);
    fs::write(m.path("a"), &data).unwrap();
    assert_eq!(m.ops.largest_write.load(Relaxed), 1 << 20, "writes arrive in requests of a megabyte");
    assert_eq!(fs::read(m.path("a")).unwrap(), data);

    fs::create_dir(m.path("dir")).unwrap();
    fs::rename(m.path("a"), m.path("dir/b")).unwrap();
    assert_eq!(errno_of(fs::metadata(m.path("a"))), Errno::NOENT);
    let mut file = OpenOptions::new().read(true).append(true).open(m.path("dir/b")).unwrap();
    file.set_len(3).unwrap();
    file.write_all(b"end").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 6);
    file.rewind().unwrap();
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert_eq!(back, [&data[..3], b"end"].concat());

    drop(File::create(m.path("dir/b")).unwrap());
    assert_eq!(fs::read(m.path("dir/b")).unwrap(), b"", "O_TRUNC");
    assert_eq!(errno_of(file.sync_all()), Errno::IO, "what fsync meets reaches the caller");
    assert_eq!(errno_of(fs::remove_dir(m.path("dir"))), Errno::NOTEMPTY);
    fs::remove_file(m.path("dir/b")).unwrap();
    file.write_all(b"unlinked").unwrap();
    fs::remove_dir(m.path("dir")).unwrap();
    assert_eq!(errno_of(fs::write(m.path(&"n".repeat(256)), b"")), Errno::NAMETOOLONG);
}

fn direct_and_sparse_access_and_copies_agree_with_cached_reads(over: Transport) {
    let Some(m) = mounted(over, "direct_and_sparse_access") else { return };
    let data = pattern(64 << 10);
    fs::write(m.path("f"), &data).unwrap();
    let dd = |args: &[&str]| {
        let status = Command::new("dd").args(args).stderr(Stdio::null()).status().unwrap();
        assert!(status.success(), "dd {args:?}");
    };
    let (from, to) = (format!("if={}", m.path("f").display()), format!("of={}", m.path("g").display()));
    dd(&[&from, &to, "bs=16k", "iflag=direct", "oflag=direct"]);
    assert_eq!(fs::read(m.path("g")).unwrap(), data);

    let file = OpenOptions::new().read(true).write(true).open(m.path("g")).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 128 << 10).unwrap();
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(4096)), Ok(4096));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(64 << 10)), Err(Errno::NXIO));
    let mut expected = data.clone();
    expected[4096..12288].fill(0);
    expected.resize(128 << 10, 0);
    assert_eq!(fs::read(m.path("g")).unwrap(), expected);

    let copy = File::create(m.path("copy")).unwrap();
    let (mut off_in, mut off_out) = (4u64, 0u64);
    let copied =
        rustix::fs::copy_file_range(&file, Some(&mut off_in), &copy, Some(&mut off_out), 1000).unwrap();
    assert_eq!(copied, 1000);
    assert_eq!(fs::read(m.path("copy")).unwrap(), &expected[4..1004]);

    // Cached pages give way to a write that goes around them.
    let head = [7u8; 4096];
    fs::write(m.path("head"), head).unwrap();
    dd(&[
        &format!("if={}", m.path("head").display()),
        &to,
        "bs=4k",
        "count=1",
        "oflag=direct",
        "conv=notrunc",
    ]);
    let mut seen = [0u8; 4096];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(seen, head);
}

fn a_directory_of_thousands_lists_every_name_once_with_its_attributes(over: Transport) {
    let Some(m) = mounted(over, "a_directory_of_thousands") else { return };
    let names: BTreeSet<String> = (0..3000).map(|i| format!("file number {i}")).collect();
    for name in &names {
        fs::write(m.path(name), name).unwrap();
    }
    let list = || -> Vec<String> {
        fs::read_dir(m.dir.path())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                assert!(entry.file_type().unwrap().is_file());
                assert_eq!(entry.metadata().unwrap().len() as usize, entry.file_name().len());
                assert_eq!(entry.metadata().unwrap().ino(), std::os::unix::fs::DirEntryExt::ino(&entry));
                entry.file_name().into_string().unwrap()
            })
            .collect()
    };
    let seen = list();
    assert_eq!(seen.len(), 3000);
    assert_eq!(BTreeSet::from_iter(seen), names);

    // Names taken away while reading: the rest still comes once.
    for (removed, entry) in fs::read_dir(m.dir.path()).unwrap().enumerate() {
        let entry = entry.unwrap();
        if removed % 2 == 0 {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert_eq!(list().len(), 1500);
}

fn listings_spare_lookups(over: Transport) {
    let Some(m) = mounted(over, "listings_spare_lookups") else { return };
    for i in 0..100u32 {
        m.ops
            .mknod(
                NodeId::ROOT,
                format!("{i}").as_bytes(),
                larder_files::FileKind::Regular,
                0o644,
                0,
                &Default::default(),
            )
            .unwrap();
    }
    for entry in fs::read_dir(m.dir.path()).unwrap() {
        entry.unwrap().metadata().unwrap();
    }
    assert!(m.ops.lookups.load(Relaxed) < 10, "readdirplus brings attributes along");
    let before = m.ops.lookups.load(Relaxed);
    for _ in 0..100 {
        assert!(!m.path("absent").exists());
    }
    assert!(m.ops.lookups.load(Relaxed) < before + 10, "names that do not exist are remembered");
}

fn links_nodes_and_flagged_renames_do_what_posix_and_linux_say(over: Transport) {
    let Some(m) = mounted(over, "links_nodes_and_flagged_renames") else { return };
    fs::write(m.path("a"), b"a").unwrap();
    fs::write(m.path("b"), b"b").unwrap();
    symlink("a", m.path("soft")).unwrap();
    assert_eq!(fs::read_link(m.path("soft")).unwrap(), Path::new("a"));
    assert_eq!(fs::read(m.path("soft")).unwrap(), b"a");
    fs::hard_link(m.path("a"), m.path("hard")).unwrap();
    let (one, other) = (fs::metadata(m.path("a")).unwrap(), fs::metadata(m.path("hard")).unwrap());
    assert_eq!((one.ino(), one.nlink(), other.nlink()), (other.ino(), 2, 2));

    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(CWD, m.path("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(fs::metadata(m.path("pipe")).unwrap().file_type().is_fifo());
    let (kind, number) = (rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(300, 70_000));
    rustix::fs::mknodat(CWD, m.path("dev"), kind, mode, number).unwrap();
    assert_eq!(fs::metadata(m.path("dev")).unwrap().rdev(), number);
    assert_eq!(errno_of(File::open(m.path("dev"))), Errno::ACCESS, "devices do not work unless asked for");

    use rustix::fs::RenameFlags;
    let rename = |flags| rustix::fs::renameat_with(CWD, m.path("a"), CWD, m.path("b"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(m.path("a")).unwrap(), b"b");
    assert_eq!(rename(RenameFlags::WHITEOUT), Err(Errno::INVAL));
    let space = rustix::fs::statvfs(m.dir.path()).unwrap();
    assert_eq!((space.f_blocks, space.f_bavail, space.f_frsize), (1000, 500, 4096));
}

fn attributes_come_back_as_set_and_times_before_1970_too(over: Transport) {
    let Some(m) = mounted(over, "attributes_come_back_as_set") else { return };
    fs::write(m.path("f"), b"x").unwrap();
    fs::set_permissions(m.path("f"), fs::Permissions::from_mode(0o6751)).unwrap();
    chown(m.path("f"), Some(12), Some(34)).unwrap();
    let meta = fs::metadata(m.path("f")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (12, 34));
    assert_eq!(meta.mode() & 0o7777, 0o0751, "a new owner does not inherit set-user-id");
    for (tv_sec, tv_nsec) in [(1_700_000_000, 123_456_789), (-1, 0), (-2, 800_000_000), (-77, 1)] {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, m.path("f"), &times, AtFlags::empty()).unwrap();
        let meta = fs::metadata(m.path("f")).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (tv_sec, tv_nsec));
        assert_eq!((meta.atime(), meta.atime_nsec()), (tv_sec, tv_nsec));
    }
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = Timestamps { last_access: omit, last_modification: now };
    rustix::fs::utimensat(CWD, m.path("f"), &times, AtFlags::empty()).unwrap();
    let meta = fs::metadata(m.path("f")).unwrap();
    assert_eq!(meta.atime(), -77, "left alone");
    assert!((1_000_000_000..1_000_001_000).contains(&meta.mtime()), "the engine's clock, not the kernel's");
}

fn writing_by_another_user_takes_set_user_id_away_and_permissions_are_checked(over: Transport) {
    let Some(m) = mounted(over, "writing_by_another_user") else { return };
    fs::set_permissions(m.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("written", 0o4777), ("truncated", 0o4777), ("kept", 0o4755)] {
        fs::write(m.path(name), b"program").unwrap();
        fs::set_permissions(m.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let as_nobody = |script: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).current_dir(m.dir.path()).uid(65534).gid(65534).stderr(Stdio::null());
        shell.status().unwrap().success()
    };
    assert!(as_nobody("echo more >> written && : > truncated"));
    assert!(!as_nobody("echo more >> kept"), "permissions hold");
    assert!(!as_nobody("echo more > new"), "of directories too");
    let mode = |name: &str| fs::metadata(m.path(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("written"), mode("truncated"), mode("kept")), (0o777, 0o777, 0o4755));
    fs::write(m.path("kept"), b"by root").unwrap();
    assert_eq!(mode("kept"), 0o4755, "root keeps it");
}

/// The mode alone, which the kernel may know without asking.
fn mode_as_known(path: &Path) -> u32 {
    let shown = rustix::fs::statx(CWD, path, AtFlags::empty(), rustix::fs::StatxFlags::MODE).unwrap();
    u32::from(shown.stx_mode) & 0o7777
}

fn bits_of_what_a_stranger_changes_are_gone_for_the_kernel_too(over: Transport) {
    let Some(m) = mounted(over, "bits_of_what_a_stranger_changes") else { return };
    fs::set_permissions(m.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Mode, what a stranger's write leaves, and what one of the group's does.
    for (mode, by_stranger, by_member) in
        [(0o6777, 0o777, 0o777), (0o4766, 0o766, 0o766), (0o2767, 0o767, 0o2767), (0o2777, 0o777, 0o777)]
    {
        for (way, script) in [
            ("write", "printf x | dd of=f bs=1 conv=notrunc"),
            ("direct", "dd if=/dev/zero of=f bs=4096 count=1 oflag=direct conv=notrunc"),
            ("truncate", "truncate -s 100 f"),
            // These sync what they did, which fails here.
            ("allocate", "fallocate -l 9000 f; true"),
            ("punch", "fallocate -p -l 100 f; true"),
        ] {
            for (groups, left) in [(&[65534][..], by_stranger), (&[65534, 777][..], by_member)] {
                fs::write(m.path("f"), pattern(8192)).unwrap();
                chown(m.path("f"), None, Some(777)).unwrap();
                fs::set_permissions(m.path("f"), fs::Permissions::from_mode(mode)).unwrap();
                assert_eq!(mode_as_known(&m.path("f")), mode);
                let ids = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                let status = Command::new("setpriv")
                    .args(["--reuid=65534", "--regid=65534", &format!("--groups={ids}"), "sh", "-c", script])
                    .current_dir(m.dir.path())
                    .stderr(Stdio::null())
                    .status();
                assert!(status.unwrap().success(), "{way}");
                assert_eq!(mode_as_known(&m.path("f")), left, "{way} of {mode:o} by {groups:?}");
            }
            fs::set_permissions(m.path("f"), fs::Permissions::from_mode(mode)).unwrap();
            let root = Command::new("sh")
                .args(["-c", script])
                .current_dir(m.dir.path())
                .stderr(Stdio::null())
                .status();
            assert!(root.unwrap().success(), "{way}");
            assert_eq!(mode_as_known(&m.path("f")), mode, "{way} of {mode:o} by root");
        }
    }
}

fn small_writes_do_not_ask_for_capabilities_each_time(over: Transport) {
    let Some(m) = mounted(over, "small_writes") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(m.path("log")).unwrap();
    for _ in 0..200 {
        file.write_all(b"a line\n").unwrap();
    }
    assert!(m.ops.xattr_reads.load(Relaxed) <= 2, "{} questions", m.ops.xattr_reads.load(Relaxed));
}

fn what_was_read_once_is_read_from_memory_and_reading_flushes_nothing(over: Transport) {
    let Some(m) = mounted(over, "what_was_read_once") else { return };
    fs::write(m.path("f"), pattern(1 << 20)).unwrap();
    fs::read(m.path("f")).unwrap();
    let (reads, flushes) = (m.ops.reads.load(Relaxed), m.ops.flushes.load(Relaxed));
    assert_eq!(fs::read(m.path("f")).unwrap(), pattern(1 << 20));
    assert_eq!(m.ops.reads.load(Relaxed), reads, "pages stay between opens");
    assert_eq!((flushes, m.ops.flushes.load(Relaxed)), (0, 0), "closing asks nothing");
}

fn a_new_file_is_written_around_the_pages(over: Transport) {
    let Some(m) = mounted(over, "a_new_file_is_written_around_the_pages") else { return };
    let data = pattern(3 << 20);
    fs::write(m.path("f"), &data).unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), data);
    let reads = m.ops.reads.load(Relaxed);
    assert_eq!(reads > 0, larder_fuse::keeps_pages_true(), "{reads} reads");
}

/// A handle that may not map does not read from pages either.
fn nobody_maps_what_is_written_around_the_pages(over: Transport) {
    let Some(m) = mounted(over, "nobody_maps_what_is_written_around_the_pages") else { return };
    let reads_twice = || {
        let both = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
        let mut back = [0; 100];
        both.read_exact_at(&mut back, 0).unwrap();
        let before = m.ops.reads.load(Relaxed);
        both.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(back, [7; 100]);
        m.ops.reads.load(Relaxed) > before
    };
    let writer = File::create(m.path("f")).unwrap();
    writer.write_all_at(&[7; 100], 0).unwrap();
    assert_eq!(reads_twice(), larder_fuse::keeps_pages_true());
    drop(writer);
    // Only the kernel knows when it tells of a close.
    once_free(|| if reads_twice() { Err("it still goes around them") } else { Ok(()) });
    let again = OpenOptions::new().write(true).open(m.path("f")).unwrap();
    again.write_all_at(&[7; 100], 0).unwrap();
    assert!(!reads_twice(), "only new files are written so");
}

fn who_reads_a_file_while_it_is_made_sees_what_is_written(over: Transport) {
    let Some(m) = mounted(over, "who_reads_a_file_while_it_is_made") else { return };
    const PIECE: usize = 1000;
    let data = pattern(PIECE * 50);
    m.ops.write_delay.store(2, Relaxed);
    let sent = |file: &File, len: usize| {
        let mut out = tempfile::tempfile().unwrap();
        let mut from = 0;
        while (from as usize) < len && rustix::fs::sendfile(&out, file, Some(&mut from), len).unwrap() > 0 {}
        let mut bytes = Vec::new();
        out.rewind().unwrap();
        out.read_to_end(&mut bytes).unwrap();
        bytes
    };
    let mut writer = File::create(m.path("f")).unwrap();
    writer.write_all(&data[..PIECE]).unwrap();
    let reader = File::open(m.path("f")).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Fills pages all the while.
        let sender = scope.spawn(|| {
            while !done.load(Relaxed) {
                sent(&reader, data.len());
            }
        });
        for piece in data.chunks(PIECE).skip(1) {
            writer.write_all(piece).unwrap();
            let mut back = vec![0; PIECE];
            let at = writer.stream_position().unwrap() - PIECE as u64;
            reader.read_exact_at(&mut back, at).unwrap();
            assert!(back == piece, "at {at}");
        }
        done.store(true, Relaxed);
        sender.join().unwrap();
    });
    assert!(sent(&reader, data.len()) == data && fs::read(m.path("f")).unwrap() == data);
}

fn what_the_kernel_does_beside_writing_is_done_for_new_files_too(over: Transport) {
    let Some(m) = mounted(over, "what_the_kernel_does_beside_writing") else { return };
    let durable = 0o010_000;
    let file = OpenOptions::new().write(true).create_new(true).custom_flags(durable).open(m.path("durable"));
    assert_eq!(errno_of(file.unwrap().write_all(b"x")), Errno::IO, "O_DSYNC: what fsync meets");

    let mut file = File::create(m.path("program")).unwrap();
    // `vfs_cap_data`, version 2: CAP_NET_BIND_SERVICE, permitted and effective.
    let mut capability = [0u8; 20];
    capability[..6].copy_from_slice(&[1, 0, 0, 2, 0, 4]);
    rustix::fs::setxattr(m.path("program"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    file.write_all(b"another program").unwrap();
    assert_eq!(rustix::fs::getxattr_query(m.path("program"), "security.capability"), Err(Errno::NODATA));
}

fn attributes_extended_are_set_listed_and_measured(over: Transport) {
    let Some(m) = mounted(over, "attributes_extended") else { return };
    use rustix::fs::{getxattr, listxattr, removexattr, setxattr};
    let f = m.path("f");
    fs::write(&f, b"").unwrap();
    setxattr(&f, "user.big", &[9; 65536], XattrFlags::CREATE).unwrap();
    setxattr(&f, "trusted.small", b"v", XattrFlags::empty()).unwrap();
    assert_eq!(setxattr(&f, "user.big", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(&f, "user.none", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(rustix::fs::getxattr_query(&f, "user.big"), Ok(65536));
    let mut room = vec![0; 65536];
    assert_eq!(getxattr(&f, "user.big", &mut room[..10]), Err(Errno::RANGE));
    assert_eq!(getxattr(&f, "user.big", &mut room[..]), Ok(65536));
    assert_eq!(listxattr(&f, &mut room[..4]), Err(Errno::RANGE));
    let len = listxattr(&f, &mut room[..]).unwrap();
    assert_eq!(&room[..len], b"trusted.small\0user.big\0");
    removexattr(&f, "user.big").unwrap();
    assert_eq!(getxattr(&f, "user.big", &mut room[..]), Err(Errno::NODATA));
    assert_eq!(removexattr(&f, "user.big"), Err(Errno::NODATA));
    let other = "system.nfs4_acl";
    assert_eq!(setxattr(&f, other, &room[..4], XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(getxattr(&f, other, &mut room[..]), Err(Errno::OPNOTSUPP));
}

fn requests_are_served_at_once(over: Transport) {
    let Some(m) = mounted(over, "requests_are_served_at_once") else { return };
    // Each look-up waits until the other has come in.
    let look = |name: &str| Command::new("test").arg("-e").arg(m.path(name)).spawn().unwrap();
    let mut both = [look("meet 1"), look("meet 2")];
    for child in &mut both {
        child.wait().unwrap();
    }
    assert_eq!(errno_of(fs::metadata(m.path("meet 3"))), Errno::NOENT);
    assert!(m.handle().is_alive());
}

fn changes_from_below_show_once_they_are_announced(over: Transport) {
    let Some(m) = mounted(over, "changes_from_below") else { return };
    fs::write(m.path("f"), b"old").unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"old");
    let node = NodeId::from_raw(fs::metadata(m.path("f")).unwrap().ino());
    let tell = m.handle().invalidator();
    m.ops.overwrite(node, b"newer");
    tell.node(node).unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"newer");

    assert!(!m.path("g").exists());
    m.ops.move_name(b"f", b"g");
    tell.entry(NodeId::ROOT, b"f").unwrap();
    tell.entry(NodeId::ROOT, b"g").unwrap();
    tell.attributes(node).unwrap();
    assert!(!m.path("f").exists());
    assert_eq!(fs::read(m.path("g")).unwrap(), b"newer");
    tell.entry(NodeId::from_raw(4711), b"unknown").unwrap();
}

fn a_panic_stops_the_engine_and_not_the_mount(over: Transport) {
    let Some(m) = mounted(over, "a_panic_stops_the_engine") else { return };
    assert!(!m.handle().is_broken());
    assert_eq!(errno_of(fs::metadata(m.path("panic"))), Errno::IO);
    assert!(m.handle().is_broken());
    assert_eq!(m.ops.panics.load(Relaxed), 1, "the engine is told");
    assert_eq!(errno_of(fs::metadata(m.path("anything"))), Errno::IO);
    assert!(m.handle().is_alive(), "what still asks gets an answer");
}

fn a_mount_in_use_stays_and_one_that_is_not_goes(over: Transport) {
    let Some(mut m) = mounted_with(over, "a_mount_in_use", |o| o.atime = false) else { return };
    let line = mount_line(m.dir.path()).unwrap();
    assert!(line.contains("- fuse.larder tank/home rw"), "{line}");
    assert!(line.contains("noatime") && line.contains("nosuid") && line.contains("nodev"), "{line}");
    let kept = File::create(m.path("open")).unwrap();
    let refused = m.handle.take().unwrap().unmount().unwrap_err();
    assert_eq!(Errno::from_io_error(&refused.error), Some(Errno::BUSY), "{refused}");
    assert!(refused.handle.is_alive());
    drop(kept);
    unmount(*refused.handle);
    assert_eq!(mount_line(m.dir.path()), None);

    // Dropped while in use: out of the tree, but served until the file is closed.
    let handle = mount(m.ops.clone(), options(over, &m)).unwrap();
    let mut kept = File::create(m.path("later")).unwrap();
    handle.detach();
    assert_eq!(mount_line(m.dir.path()), None);
    kept.write_all(b"still there").unwrap();
}

fn unmounting_from_outside_ends_the_session(over: Transport) {
    let Some(mut m) = mounted(over, "unmounting_from_outside") else { return };
    unmount_outside(m.dir.path());
    let handle = m.handle.take().unwrap();
    handle.wait().unwrap();
    let again = mount(m.ops.clone(), MountOptions { read_only: true, ..options(over, &m) }).unwrap();
    assert_eq!(errno_of(fs::write(m.path("f"), b"")), Errno::ROFS);
    unmount(again);
}

fn what_is_in_the_way_of_mounting_is_said_in_plain_words(over: Transport) {
    let Some(m) = mounted(over, "what_is_in_the_way") else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    let refused = |path: PathBuf| mount(m.ops.clone(), MountOptions::new(path, "t")).unwrap_err();
    let missing = refused(dir.path().join("missing"));
    assert!(matches!(missing, MountError::NoMountpoint(_)), "{missing:?}");
    assert!(missing.to_string().ends_with("missing does not exist"), "{missing}");
    assert!(matches!(refused(dir.path().join("file")), MountError::NotDirectory(_)));
    assert!(matches!(refused(dir.path().join("file/below")), MountError::NotDirectory(_)));
    assert!(matches!(refused(m.dir.path().to_owned()), MountError::AlreadyMounted(_)));
    assert!(!clear_stale(m.dir.path()).unwrap(), "a mount that is alive stays");
    assert!(m.handle().is_alive());
}

fn files_without_a_name_and_birth_times(over: Transport) {
    let Some(m) = mounted(over, "files_without_a_name") else { return };
    use rustix::fs::{Mode, OFlags, StatxFlags, statx};
    let born = |path: &str| {
        let found =
            statx(CWD, m.path(path), AtFlags::empty(), StatxFlags::BTIME | StatxFlags::BASIC_STATS).unwrap();
        assert!(found.stx_mask & StatxFlags::BTIME.bits() != 0);
        (found.stx_btime.tv_sec, found.stx_btime.tv_nsec, found.stx_size)
    };
    fs::write(m.path("f"), b"seven").unwrap();
    let birth = born("f");
    assert!(birth.0 > 1_000_000_000 && birth.1 == 5 && birth.2 == 5);
    fs::write(m.path("f"), b"more of it").unwrap();
    assert_eq!(born("f"), (birth.0, birth.1, 10), "writing is no birth");

    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let nameless = rustix::fs::open(m.dir.path(), flags, Mode::from_raw_mode(0o600)).unwrap();
    let mut nameless = File::from(nameless);
    nameless.write_all(b"found me").unwrap();
    assert_eq!(nameless.metadata().unwrap().nlink(), 0);
    let shown = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nameless));
    rustix::fs::linkat(CWD, shown, CWD, m.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(m.path("named")).unwrap(), b"found me");
}

fn the_umask_is_left_to_the_engine(over: Transport) {
    let Some(m) = mounted(over, "the_umask_is_left") else { return };
    let make = "umask 027; mkdir d; : > f; mkfifo p; ln -s f l";
    let made = Command::new("sh").arg("-c").arg(make).current_dir(m.dir.path()).status().unwrap();
    assert!(made.success());
    let mode = |name: &str| fs::symlink_metadata(m.path(name)).unwrap().mode() & 0o7777;
    assert_eq!([mode("d"), mode("f"), mode("p"), mode("l")], [0o750, 0o640, 0o640, 0o777]);
}

fn acls_are_enforced_by_the_kernel(over: Transport) {
    let Some(m) = mounted(over, "acls_are_enforced") else { return };
    fs::set_permissions(m.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(m.path("f"), b"secret").unwrap();
    fs::set_permissions(m.path("f"), fs::Permissions::from_mode(0o640)).unwrap();
    let can_read = || {
        let mut cat = Command::new("cat");
        cat.arg("f").current_dir(m.dir.path()).uid(65534).gid(65534);
        cat.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };
    assert!(!can_read());
    // acl(5) as linux/posix_acl_xattr.h has it: u:rw, u:65534:r, g:r, mask:r, o:none.
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 4, 65534), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        acl.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    let name = "system.posix_acl_access";
    rustix::fs::setxattr(m.path("f"), name, &acl, XattrFlags::empty()).unwrap();
    let mut back = [0; 64];
    assert_eq!(rustix::fs::getxattr(m.path("f"), name, &mut back[..]), Ok(acl.len()));
    assert!(can_read(), "the entry for this user counts");
    rustix::fs::removexattr(m.path("f"), name).unwrap();
    assert!(!can_read());
}

fn a_connection_that_is_aborted_ends_every_thread(over: Transport) {
    let Some(mut m) = mounted(over, "a_connection_that_is_aborted") else { return };
    let kept = File::create(m.path("open")).unwrap();
    let number = rustix::fs::minor(kept.metadata().unwrap().dev());
    let control = tempfile::tempdir().unwrap();
    let (none, no_flags) = (c"", rustix::mount::MountFlags::empty());
    rustix::mount::mount("none", control.path(), "fusectl", no_flags, none).unwrap();
    let aborted = fs::write(control.path().join(format!("{number}/abort")), b"1");
    unmount_outside(control.path());
    aborted.unwrap();
    m.handle.take().unwrap().wait().unwrap();
    assert!(kept.sync_all().is_err());
    assert!(clear_stale(m.dir.path()).unwrap());
}

fn many_threads_at_once_get_what_is_theirs(over: Transport) {
    let Some(m) = mounted(over, "many_threads_at_once") else { return };
    std::thread::scope(|scope| {
        for thread in 0..24u8 {
            let m = &m;
            scope.spawn(move || {
                for round in 0..20u8 {
                    let name = m.path(&format!("{thread}.{round}"));
                    let content = vec![thread ^ round; 1 + usize::from(round) * 9_973];
                    fs::write(&name, &content).unwrap();
                    assert_eq!(fs::metadata(&name).unwrap().len(), content.len() as u64);
                    assert_eq!(fs::read(&name).unwrap(), content);
                    fs::remove_file(&name).unwrap();
                }
            });
        }
    });
}

#[test]
fn what_a_dead_daemon_left_is_taken_away() {
    if !can_mount("what_a_dead_daemon_left") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(!clear_stale(dir.path()).unwrap());
    // A device that is closed while mounted is what a killed process leaves.
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&device);
    let data = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
    let data = std::ffi::CString::new(data).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tank", dir.path(), FS_TYPE, flags, data.as_c_str()).unwrap();
    drop(device);
    assert_eq!(errno_of(fs::metadata(dir.path())), Errno::NOTCONN);
    let refused = mount(Arc::new(Memory::new()), MountOptions::new(dir.path(), "t")).unwrap_err();
    assert!(matches!(refused, MountError::Dead(_)), "{refused:?}");
    assert!(clear_stale(dir.path()).unwrap());
    assert_eq!(mount_line(dir.path()), None);
}

#[test]
fn what_the_kernel_does_not_take_is_closed_and_forgotten() {
    let ops = Arc::new(Memory::new());
    let server = Server::new(Arc::clone(&ops) as Arc<dyn Ops>, Arc::default());
    let ask = |node, operation| {
        let response =
            server.serve(&Request { unique: 1, node, uid: 0, gid: 0, pid: 0, opcode: 0, operation });
        server.refused(node, &response);
        (response, ops.released.load(Relaxed), ops.forgotten.load(Relaxed))
    };
    let wrong = OFlags::WRONLY.bits();
    let create = Operation::Create { name: b"f", flags: wrong, mode: 0o644, umask: 0, kill_suidgid: false };
    let (made, released, forgotten) = ask(1, create);
    assert_eq!((released, forgotten), (1, 1));
    let Response::Created(made, _) = made else { panic!("{forgotten}") };
    // It does not count as written around the pages either: this would go around them, too.
    let open = Operation::Open { flags: OFlags::RDWR.bits(), kill_suidgid: false };
    let (opened, released, forgotten) = ask(made.attr.node, open);
    assert!(matches!(opened, Response::Opened(opened) if !opened.direct));
    assert_eq!((released, forgotten), (2, 1));
    let (_, released, forgotten) = ask(1, Operation::Lookup { name: b"f" });
    assert_eq!((released, forgotten), (2, 2));
    let (_, released, forgotten) = ask(1, Operation::Lookup { name: b"nothing" });
    assert_eq!((released, forgotten), (2, 2));
}
