//! The file systems that are compared: made anew for each piece of work, on sparse files of one size.

use crate::daemon::{Daemon, Layout, is_mounted, pause};
use crate::litter::{self, Item};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A file system with its settings; [`Peer::about`] says which.
#[expect(missing_docs, reason = "each says what it is, in words for the report")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    LarderOff,
    Larder16k,
    LarderZstd,
    LarderRaidz2,
    Passthrough,
    Ext4,
    Xfs,
    Btrfs,
    BtrfsOff,
    ZfsFuse,
    ZfsFuseRaidz2,
}

/// Where libfuse's examples are on Debian.
const PASSTHROUGH_SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
/// The pool's name with zfs-fuse.
const ZFS_POOL: &str = "larder-peers";

impl Peer {
    /// Those that do the same work in `peers`, Larder beside what it is compared with.
    pub const ALL: [Self; 10] = [
        Self::LarderOff,
        Self::Passthrough,
        Self::Larder16k,
        Self::Ext4,
        Self::Xfs,
        Self::LarderZstd,
        Self::Btrfs,
        Self::ZfsFuse,
        Self::LarderRaidz2,
        Self::ZfsFuseRaidz2,
    ];

    /// Its name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::LarderOff => "larder-off",
            Self::Larder16k => "larder-16k",
            Self::LarderZstd => "larder-zstd",
            Self::LarderRaidz2 => "larder-raidz2",
            Self::Passthrough => "passthrough",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::BtrfsOff => "btrfs-off",
            Self::ZfsFuse => "zfs-fuse-one",
            Self::ZfsFuseRaidz2 => "zfs-fuse-raidz2",
        }
    }

    /// Its exact configuration, for the report.
    pub fn about(self) -> &'static str {
        match self {
            Self::LarderOff => {
                "Larder on one file; compression=off, recordsize=128K (default), memory=512M (default)"
            }
            Self::Larder16k => "the same with recordsize=16K",
            Self::LarderZstd => "Larder on one file; compression=zstd-3",
            Self::LarderRaidz2 => "Larder, raidz2 over six files; compression=off",
            Self::Passthrough => {
                "libfuse's example `passthrough_ll`, gcc -O2, `-f -o source=FOLDER,cache=auto`, \
                 multi-threaded (default), over the ext4 below; with the highest limit of open files, as it keeps one a file"
            }
            Self::Ext4 => "the folder below itself, on the machine's ext4: the ceiling",
            Self::Xfs => "mkfs.xfs' defaults, on a loop device with direct I/O",
            Self::Btrfs => {
                "mkfs.btrfs' defaults, mounted with compress=zstd:3, on a loop device with direct I/O"
            }
            Self::BtrfsOff => {
                "mkfs.btrfs' defaults, mounted with its defaults, on a loop device with direct I/O"
            }
            Self::ZfsFuse => {
                "Debian's zfs-fuse with its zfsrc, a pool on one file; compression off (default)"
            }
            Self::ZfsFuseRaidz2 => "the same, raidz2 over six files",
        }
    }

    /// Whether it is a configuration of Larder.
    pub fn is_larder(self) -> bool {
        matches!(self, Self::LarderOff | Self::Larder16k | Self::LarderZstd | Self::LarderRaidz2)
    }

    fn layout(self) -> Layout {
        match self {
            Self::LarderRaidz2 | Self::ZfsFuseRaidz2 => Layout { word: "raidz2", devices: 6, data: 4 },
            _ => Layout { word: "", devices: 1, data: 1 },
        }
    }
}

/// Where peers are made, and of what.
pub struct Site {
    /// The folder that everything lies in.
    pub folder: PathBuf,
    /// The binary under test.
    pub larder: PathBuf,
    /// Bytes that a peer has room for.
    pub bytes: u64,
    /// Lay all of them on loop devices with direct I/O, whose traffic the kernel counts ([`Bed::written`]).
    pub metered: bool,
}

impl Site {
    /// Why a peer cannot take part here, if so. Compiles the passthrough.
    pub fn obstacle(&self, peer: Peer) -> Option<String> {
        let root = rustix::process::geteuid().is_root();
        let lacks = |command: &str| {
            let found = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
                .iter()
                .any(|dir| Path::new(dir).join(command).exists());
            (!found).then(|| format!("{command} is not installed"))
        };
        let kernel = |name: &str| {
            drop(Command::new("modprobe").arg(name).output());
            let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
            (!known.split_whitespace().any(|word| word == name)).then(|| format!("the kernel has no {name}"))
        };
        if !root && peer != Peer::Ext4 {
            return Some("needs root".into());
        }
        match peer {
            Peer::Ext4 => None,
            Peer::Xfs => lacks("mkfs.xfs").or_else(|| kernel("xfs")),
            Peer::Btrfs | Peer::BtrfsOff => lacks("mkfs.btrfs").or_else(|| kernel("btrfs")),
            Peer::ZfsFuse | Peer::ZfsFuseRaidz2 => lacks("zfs-fuse").or_else(|| {
                // It has one socket for the whole machine.
                let running =
                    Command::new("pidof").arg("zfs-fuse").output().is_ok_and(|out| out.status.success());
                running.then(|| "another zfs-fuse is running".into())
            }),
            Peer::Passthrough => self.compile_passthrough().err(),
            _ => (!self.larder.exists()).then(|| format!("there is no {}", self.larder.display())),
        }
    }

    fn passthrough(&self) -> PathBuf {
        self.folder.join("passthrough_ll")
    }

    fn compile_passthrough(&self) -> Result<(), String> {
        let line = format!(
            "gcc -O2 -o '{}' {PASSTHROUGH_SOURCE} $(pkg-config fuse3 --cflags --libs)",
            self.passthrough().display()
        );
        let output = Command::new("sh").args(["-c", &line]).output().map_err(|error| error.to_string())?;
        let told = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("").to_owned();
        output.status.success().then_some(()).ok_or(format!("passthrough_ll does not compile: {told}"))
    }
}

/// Limit of open files for the passthrough, which keeps one open for each that the kernel knows.
pub fn open_files() -> u64 {
    const MOST: u64 = 1 << 20;
    let raised = Command::new("prlimit").arg(format!("--nofile={MOST}")).arg("true").output();
    if raised.is_ok_and(|output| output.status.success()) {
        return MOST;
    }
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(MOST)
}

/// Runs a command that must succeed.
pub fn run<I: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = I>) -> String {
    let mut command = Command::new(program);
    let output =
        command.args(arguments).stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

enum Kind {
    Larder(Option<Daemon>),
    Passthrough { program: PathBuf, source: PathBuf, child: Option<Child> },
    Folder,
    Mounted { device: PathBuf, options: &'static str },
    Zfs(Child),
}

/// One peer, made, mounted and empty. Dropping it takes it away.
pub struct Bed {
    folder: PathBuf,
    mountpoint: PathBuf,
    kind: Kind,
    loops: Vec<String>,
}

impl Bed {
    /// Makes a peer.
    pub fn new(peer: Peer, site: &Site) -> Self {
        let folder = site.folder.join("bed");
        let mountpoint = site.folder.join("mnt");
        for path in [&folder, &mountpoint] {
            fs::create_dir_all(path).expect("the folder can be written");
        }
        litter::add(Item::Folder(folder.clone()));
        let mut bed = Self { folder, mountpoint, kind: Kind::Folder, loops: Vec::new() };
        let path = bed.mountpoint.clone();
        match peer {
            Peer::Ext4 => bed.mountpoint = bed.folder.clone(),
            Peer::Passthrough => {
                let source = bed.folder.join("source");
                fs::create_dir(&source).expect("our folder");
                bed.kind = Kind::Passthrough { program: site.passthrough(), source, child: None };
                bed.mount();
            }
            Peer::Xfs | Peer::Btrfs | Peer::BtrfsOff => {
                let (program, options) = match peer {
                    Peer::Xfs => ("mkfs.xfs", "defaults"),
                    Peer::Btrfs => ("mkfs.btrfs", "compress=zstd:3"),
                    _ => ("mkfs.btrfs", "defaults"),
                };
                let device = bed.devices(peer.layout(), site.bytes, true).remove(0);
                run(program, ["-q", text(&device)]);
                bed.kind = Kind::Mounted { device, options };
                bed.mount();
            }
            Peer::ZfsFuse | Peer::ZfsFuseRaidz2 => bed.start_zfs(peer.layout(), site),
            _ => {
                let daemon = Daemon::start(&site.larder, &bed.folder);
                litter::add(Item::Process(daemon.pid()));
                litter::add(Item::Mount(path.clone()));
                let layout = peer.layout();
                let codec = if peer == Peer::LarderZstd { "zstd-3" } else { "off" };
                let mut properties = vec![format!("compression={codec}")];
                if peer == Peer::Larder16k {
                    properties.push("recordsize=16K".into());
                }
                let devices = bed.devices(layout, site.bytes / layout.data as u64, site.metered);
                daemon.create(layout, &devices, &properties, &path);
                bed.kind = Kind::Larder(Some(daemon));
            }
        }
        bed
    }

    /// Makes devices of `bytes` each.
    fn devices(&mut self, layout: Layout, bytes: u64, metered: bool) -> Vec<PathBuf> {
        let files = layout.files(&self.folder, bytes);
        if !metered {
            return files;
        }
        let mut attach = |file: PathBuf| {
            let device = run("losetup", ["--direct-io=on", "--show", "-f", text(&file)]);
            litter::add(Item::Loop(device.clone()));
            self.loops.push(device.clone());
            PathBuf::from(device)
        };
        files.into_iter().map(&mut attach).collect()
    }

    fn start_zfs(&mut self, layout: Layout, site: &Site) {
        let child = Command::new("zfs-fuse")
            .args(["--no-daemon", "--pidfile", text(&self.folder.join("zfs.pid"))])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.folder.join("zfs.log")).expect("our folder"))
            .spawn()
            .expect("zfs-fuse starts");
        litter::add(Item::Process(child.id()));
        litter::add(Item::Mount(self.mountpoint.clone()));
        self.kind = Kind::Zfs(child);
        wait_for("zfs-fuse", || {
            Command::new("zpool").arg("list").output().is_ok_and(|out| out.status.success())
        });
        let mountpoint = self.mountpoint.clone();
        let mut arguments = vec!["create", "-o", "cachefile=none", "-m", text(&mountpoint), ZFS_POOL];
        arguments.extend((!layout.word.is_empty()).then_some(layout.word));
        let devices = self.devices(layout, site.bytes / layout.data as u64, site.metered);
        arguments.extend(devices.iter().map(|path| text(path)));
        run("zpool", arguments);
        wait_for("the mount", || is_mounted(&self.mountpoint));
    }

    /// Where work is done.
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// Sets a property that Larder and ZFS both know; does nothing to others.
    pub fn set(&self, name: &str, value: &str) {
        match &self.kind {
            Kind::Larder(daemon) => daemon.as_ref().expect("it runs").set(name, value),
            Kind::Zfs(_) => drop(run("zfs", ["set", &format!("{name}={value}"), ZFS_POOL])),
            Kind::Passthrough { .. } | Kind::Folder | Kind::Mounted { .. } => {}
        }
    }

    /// Bytes that its loop devices were given to write so far.
    pub fn written(&self) -> u64 {
        let sectors = self.loops.iter().map(|device| {
            let name = device.trim_start_matches("/dev/");
            let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).expect("it is attached");
            let field = stat.split_whitespace().nth(6).and_then(|field| field.parse::<u64>().ok());
            field.expect("the kernel's Documentation/block/stat.rst: sectors written")
        });
        sectors.sum::<u64>() * 512
    }

    /// The process that serves it.
    pub fn daemon(&self) -> Option<u32> {
        match &self.kind {
            Kind::Larder(daemon) => daemon.as_ref().map(Daemon::pid),
            Kind::Passthrough { child, .. } => child.as_ref().map(Child::id),
            Kind::Zfs(child) => Some(child.id()),
            Kind::Folder | Kind::Mounted { .. } => None,
        }
    }

    fn mount(&mut self) {
        match &mut self.kind {
            Kind::Passthrough { program, source, child } => {
                let options = format!("source={},cache=auto", source.display());
                // prlimit becomes the program that it starts.
                let started = Command::new("prlimit")
                    .arg(format!("--nofile={}", open_files()))
                    .arg(program)
                    .args(["-f", "-o", &options])
                    .arg(&self.mountpoint)
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .expect("the passthrough starts");
                litter::add(Item::Process(started.id()));
                *child = Some(started);
            }
            Kind::Mounted { device, options } => {
                run("mount", ["-o", options, text(device), text(&self.mountpoint)]);
            }
            Kind::Larder(_) | Kind::Folder | Kind::Zfs(_) => return,
        }
        litter::add(Item::Mount(self.mountpoint.clone()));
        wait_for("the mount", || is_mounted(&self.mountpoint));
    }

    fn unmount(&mut self) {
        if matches!(self.kind, Kind::Folder | Kind::Larder(_) | Kind::Zfs(_)) {
            return;
        }
        if is_mounted(&self.mountpoint) {
            wait_for("umount", || {
                Command::new("umount").arg(&self.mountpoint).output().is_ok_and(|out| out.status.success())
            });
        }
        litter::gone(&Item::Mount(self.mountpoint.clone()));
        if let Kind::Passthrough { child, .. } = &mut self.kind {
            child.take().into_iter().for_each(end);
        }
    }

    /// Empties every cache: exported and imported, or unmounted and mounted; then the kernel's caches.
    pub fn remount(&mut self) {
        self.settle();
        match &self.kind {
            Kind::Larder(daemon) => {
                daemon.as_ref().expect("it runs").import_again(&self.mountpoint);
            }
            Kind::Zfs(_) => {
                wait_for("zpool export", || {
                    Command::new("zpool")
                        .args(["export", ZFS_POOL])
                        .output()
                        .is_ok_and(|out| out.status.success())
                });
                run("zpool", ["import", "-o", "cachefile=none", "-d", text(&self.folder), ZFS_POOL]);
                wait_for("the mount", || is_mounted(&self.mountpoint));
            }
            _ => {
                self.unmount();
                self.mount();
            }
        }
        fs::write("/proc/sys/vm/drop_caches", "3").expect("root may do this");
    }

    /// The peer's commit: what was written before survives a crash.
    pub fn commit(&self) {
        match &self.kind {
            Kind::Larder(daemon) => daemon.as_ref().expect("it runs").sync(),
            // sync(2) does not reach zfs-fuse; a snapshot is a commit.
            Kind::Zfs(_) => {
                let name = format!("{ZFS_POOL}@commit");
                run("zfs", ["snapshot", &name]);
                run("zfs", ["destroy", &name]);
            }
            // FUSE does not pass syncfs(2) on, so the folder below is asked.
            Kind::Passthrough { source, .. } => sync_fs(source),
            Kind::Folder | Kind::Mounted { .. } => sync_fs(&self.mountpoint),
        }
    }

    /// Waits until nothing of ours is still being written.
    pub fn settle(&self) {
        self.commit();
        sync_fs(&self.folder);
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.unmount();
        let (folder, mount) = (Item::Folder(self.folder.clone()), Item::Mount(self.mountpoint.clone()));
        match &mut self.kind {
            Kind::Larder(daemon) => {
                let daemon = daemon.take().expect("it runs");
                let process = Item::Process(daemon.pid());
                drop(daemon);
                litter::gone(&process);
            }
            Kind::Zfs(_) => {
                for _ in 0..50 {
                    let destroyed = Command::new("zpool").args(["destroy", "-f", ZFS_POOL]).output();
                    if destroyed.is_ok_and(|out| out.status.success()) {
                        break;
                    }
                    pause(Duration::from_millis(100));
                }
                if let Kind::Zfs(child) = std::mem::replace(&mut self.kind, Kind::Folder) {
                    end(child);
                }
            }
            Kind::Passthrough { .. } | Kind::Folder | Kind::Mounted { .. } => {}
        }
        for device in self.loops.drain(..) {
            drop(Command::new("losetup").args(["-d", &device]).output());
            litter::gone(&Item::Loop(device));
        }
        litter::remove(&self.folder);
        litter::gone(&mount);
        litter::gone(&folder);
    }
}

/// Asks a daemon to end and waits for it; one that does not within ten seconds is killed.
fn end(mut child: Child) {
    let pid = child.id();
    let _ = i32::try_from(pid).ok().and_then(Pid::from_raw).map(|pid| kill_process(pid, Signal::TERM));
    for _ in 0..100 {
        if child.try_wait().is_ok_and(|status| status.is_some()) {
            break;
        }
        pause(Duration::from_millis(100));
    }
    drop(child.kill());
    drop(child.wait());
    litter::gone(&Item::Process(pid));
}

fn sync_fs(path: &Path) {
    rustix::fs::syncfs(File::open(path).expect("our folder")).expect("it can be synced");
}

/// Asks every 20 ms, for 20 seconds at most.
fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if ready() {
            return;
        }
        pause(Duration::from_millis(20));
    }
    panic!("{what}: not ready after 20 seconds");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this benchmark's own")
}
