//! Pools that come back: what a daemon imports at its start, what it tells of others, how one hands over to another.

#[allow(dead_code, reason = "each test takes what it needs")]
mod bed;

use bed::{Bed, wait_until};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};

/// A daemon as a unit starts it, and the socket by which systemd would hear of it.
struct Service {
    child: Child,
    notify: UnixDatagram,
}

impl Service {
    fn start(bed: &Bed, line: &str) -> Self {
        let socket = bed.path("notify");
        let _ = fs::remove_file(&socket);
        let notify = UnixDatagram::bind(&socket).unwrap();
        let mut command = bed.command(line);
        command.env("NOTIFY_SOCKET", socket).env("WATCHDOG_USEC", "300000");
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, notify }
    }

    /// Reads what it says until it says this; gives all of it.
    fn hear(&self, wanted: &str) -> String {
        self.notify.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let (mut all, mut piece) = (String::new(), [0; 4096]);
        while !all.lines().any(|line| line == wanted) {
            let len = self.notify.recv(&mut piece).unwrap_or_else(|_| panic!("never {wanted}, only: {all}"));
            all += std::str::from_utf8(&piece[..len]).unwrap();
            all += "\n";
        }
        all
    }

    fn signal(&mut self, signal: rustix::process::Signal) -> bool {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
        self.child.wait().unwrap().success()
    }
}

#[test]
fn what_was_imported_is_imported_again_after_a_kill_a_stop_and_a_boot() {
    let Some(bed) = Bed::new("what_was_imported_is_imported_again_after_a_kill_a_stop_and_a_boot") else {
        return;
    };
    let devices = bed.devices("disks", 3, 64);
    bed.create("tank", "raidz1", &devices);
    bed.ok("fs create tank/home");
    fs::write(bed.path("mnt/home/letter"), "as it was").unwrap();
    bed.ok("pool sync tank");
    bed.kill_daemon();
    // A command's daemon imports nothing, and says what is missing.
    let status = bed.ok("pool status");
    assert!(
        status.contains("was imported when the daemon stopped") && status.contains("larder pool import tank"),
        "{status}"
    );
    assert!(bed.ok("pool status -x").contains("UNAVAIL"));
    let json = bed.ok("pool status -j");
    assert!(
        json.contains("\"absent\"") && json.contains("\"action\": \"larder pool import tank\""),
        "{json}"
    );
    let error = bed.fails(1, "pool sync tank");
    assert!(error.contains("no such pool; it was imported when the daemon stopped"), "{error}");
    // The unit's takes its place.
    let mut service = Service::start(&bed, "daemon --take-over");
    let heard = service.hear("READY=1");
    assert!(heard.contains("STATUS=importing tank") && heard.contains("STATUS=1 pool imported"), "{heard}");
    let letter = || fs::read_to_string(bed.path("mnt/home/letter")).unwrap();
    assert_eq!(letter(), "as it was");
    service.hear("WATCHDOG=1");
    // Open files hold up nobody.
    let open = fs::File::open(bed.path("mnt/home/letter")).unwrap();
    assert!(service.signal(rustix::process::Signal::TERM));
    service.hear("STOPPING=1");
    drop(open);
    assert!(!bed.path("mnt/home").exists());
    // The run folder is gone with a boot, and with it whatever a daemon of this boot knew.
    fs::remove_dir_all(bed.path("run")).unwrap();
    let mut service = Service::start(&bed, "daemon --take-over");
    service.hear("READY=1");
    assert_eq!(letter(), "as it was");
    assert!(!service.signal(rustix::process::Signal::KILL));
    let _ = fs::remove_dir_all(bed.path("run"));
    let mut service = Service::start(&bed, "daemon --take-over");
    service.hear("READY=1");
    assert_eq!(letter(), "as it was");
    // An exported pool stays so; so does one that is not kept.
    bed.ok("pool export tank");
    assert!(service.signal(rustix::process::Signal::TERM));
    let mut service = Service::start(&bed, "daemon --take-over");
    assert!(service.hear("READY=1").contains("STATUS=0 pools imported"));
    assert_eq!(bed.ok("pool status"), "no pools available\n");
    bed.ok("pool import -d DIR/disks -o cachefile=none tank");
    assert!(service.signal(rustix::process::Signal::TERM));
    let mut service = Service::start(&bed, "daemon --take-over");
    service.hear("READY=1");
    assert_eq!(bed.ok("pool status"), "no pools available\n");
    assert!(service.signal(rustix::process::Signal::TERM));
}

#[test]
fn one_pool_that_cannot_come_back_holds_up_no_other_and_is_told_of() {
    let Some(bed) = Bed::new("one_pool_that_cannot_come_back_holds_up_no_other_and_is_told_of") else {
        return;
    };
    let (ours, theirs) = (bed.devices("disks", 2, 64), bed.devices("others", 2, 64));
    bed.create("tank", "mirror", &ours);
    bed.ok(&format!("pool create -m DIR/other attic {}", theirs.join(" ")));
    bed.kill_daemon();
    // One of the two that both are needed lies elsewhere, where nobody looks.
    let hidden = bed.path("hidden");
    fs::rename(&theirs[1], &hidden).unwrap();
    let mut service = Service::start(&bed, "daemon --take-over --wait 0");
    let heard = service.hear("READY=1");
    assert!(heard.contains("STATUS=1 pool imported; 1 could not be: larder pool status"), "{heard}");
    let status = bed.ok("pool status");
    assert!(
        status.contains("1 of 2 devices cannot be used") && status.contains(": larder pool import attic"),
        "{status}"
    );
    bed.ok("pool check tank");
    assert!(bed.fails(1, "fs list attic").contains("larder pool import attic"));
    // It is still expected by the next one; late devices are waited for.
    assert!(service.signal(rustix::process::Signal::TERM));
    let mut service = Service::start(&bed, "daemon --take-over --wait 60");
    wait_until("tank is there", || bed.run("pool check tank").status.success());
    // As another disk's name, in the folder where its sibling is.
    fs::rename(&hidden, bed.path("others/moved")).unwrap();
    assert!(service.hear("READY=1").contains("STATUS=2 pools imported"));
    assert!(service.signal(rustix::process::Signal::TERM));
    // Nobody waits for what is forgotten.
    fs::rename(bed.path("others/moved"), &hidden).unwrap();
    let mut service = Service::start(&bed, "daemon --take-over --wait 0");
    service.hear("READY=1");
    assert!(bed.fails(1, "pool export --forget tank").contains("it is imported"));
    bed.ok("pool export --forget attic");
    assert!(!bed.ok("pool status").contains("attic"));
    assert!(service.signal(rustix::process::Signal::TERM));
}

#[test]
fn half_of_a_mirror_that_is_of_an_older_state_does_not_go_on_alone() {
    let Some(bed) = Bed::new("half_of_a_mirror_that_is_of_an_older_state_does_not_go_on_alone") else {
        return;
    };
    let devices = bed.devices("disks", 2, 64);
    bed.create("tank", "mirror", &devices);
    bed.ok("pool sync tank");
    bed.ok("daemon stop");
    let old = bed.path("old");
    fs::copy(&devices[0], &old).unwrap();
    let start = |wait: u32| Service::start(&bed, &format!("daemon --take-over --wait {wait}"));
    let mut service = start(0);
    service.hear("READY=1");
    fs::write(bed.path("mnt/letter"), "of today").unwrap();
    assert!(service.signal(rustix::process::Signal::TERM));
    // Only the half is there, as it was before.
    let hidden = bed.path("hidden");
    fs::rename(&devices[1], &hidden).unwrap();
    fs::copy(&old, &devices[0]).unwrap();
    let mut service = start(0);
    assert!(service.hear("READY=1").contains("STATUS=0 pools imported; 1 could not be"));
    let status = bed.ok("pool status");
    assert!(
        status.contains("and it has had commit") && status.contains("larder pool import tank"),
        "{status}"
    );
    assert!(service.signal(rustix::process::Signal::TERM));
    // With the other it is what it was.
    let mut service = start(60);
    fs::rename(&hidden, &devices[1]).unwrap();
    let heard = service.hear("READY=1");
    assert!(heard.contains("STATUS=1 pool imported"), "{heard}{}", bed.ok("pool status"));
    assert_eq!(fs::read_to_string(bed.path("mnt/letter")).unwrap(), "of today");
    // The half that has everything goes on alone when the other does not come.
    assert!(service.signal(rustix::process::Signal::TERM));
    fs::rename(&devices[0], &hidden).unwrap();
    let mut service = start(2);
    let heard = service.hear("READY=1");
    assert!(heard.contains("STATUS=1 pool imported"), "{heard}{}", bed.ok("pool status"));
    assert!(bed.ok("pool status").contains("DEGRADED"));
    assert!(service.signal(rustix::process::Signal::TERM));
}

#[test]
fn how_a_pool_was_imported_is_how_it_comes_back() {
    let Some(bed) = Bed::new("how_a_pool_was_imported_is_how_it_comes_back") else { return };
    let devices = bed.devices("disks", 2, 64);
    bed.create("tank", "mirror", &devices);
    bed.ok("pool export tank");
    // Copies, of which the originals are not to come instead.
    fs::create_dir(bed.path("copies")).unwrap();
    for name in ["disk0", "disk1"] {
        fs::copy(bed.path("disks").join(name), bed.path("copies").join(name)).unwrap();
    }
    bed.ok("pool import -d DIR/copies -R DIR/below -o readonly=on tank");
    bed.kill_daemon();
    let mut service = Service::start(&bed, "daemon --take-over");
    service.hear("READY=1");
    assert_eq!(bed.ok("pool get -Ho value readonly tank"), "on\n");
    assert!(bed.ok("pool get -Ho value altroot tank").ends_with("/below\n"));
    assert!(bed.ok("pool status -P tank").contains("/copies/disk1"));
    assert!(service.signal(rustix::process::Signal::TERM));
    fs::remove_file(bed.path("copies/disk0")).unwrap();
    fs::remove_file(bed.path("copies/disk1")).unwrap();
    let mut service = Service::start(&bed, "daemon --wait 0");
    service.hear("READY=1");
    let status = bed.ok("pool status");
    assert!(status.contains("none of its devices is there") && status.contains("/copies"), "{status}");
    assert!(service.signal(rustix::process::Signal::TERM));
}

#[test]
fn two_daemons_share_neither_a_run_folder_nor_a_state_folder() {
    let Some(bed) = Bed::new("two_daemons_share_neither_a_run_folder_nor_a_state_folder") else { return };
    bed.ok("pool list");
    let error = bed.fails(1, "daemon");
    assert!(error.contains("already running") && error.contains("--take-over"), "{error}");
    let other = bed
        .command("pool create -m DIR/mnt tank DIR/none")
        .env("LARDER_RUN_DIR", bed.path("second"))
        .env("LARDER_STATE_DIR", bed.path("run.state"))
        .output()
        .unwrap();
    assert!(!other.status.success());
    let log = fs::read_to_string(bed.path("second/daemon.log")).unwrap();
    assert!(log.contains("another daemon, of another run folder, keeps its state in"), "{log}");
    let stopped = bed.command("daemon stop").env("LARDER_RUN_DIR", bed.path("second")).status().unwrap();
    assert!(stopped.success());
}

#[test]
fn mount_puts_a_legacy_dataset_where_fstab_says() {
    let Some(bed) = Bed::new("mount_puts_a_legacy_dataset_where_fstab_says") else { return };
    bed.create("tank", "", &bed.devices("disks", 1, 64));
    bed.ok("fs create -o mountpoint=legacy tank/old");
    std::os::unix::fs::symlink(bed.larder(), bed.path("mount.larder")).unwrap();
    let mount = |line: &str| {
        let mut command = std::process::Command::new(bed.path("mount.larder"));
        let dir = bed.dir.path().to_str().unwrap();
        command.args(line.split_whitespace().map(|word| word.replace("DIR", dir)));
        let output = command.env("LARDER_RUN_DIR", bed.path("run")).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(bed.fails(2, "fs mount tank/old").contains("mount -t larder tank/old DIR"));
    assert_eq!(
        mount("tank/old DIR/there -o rw,nofail,x-systemd.requires=larderd.service"),
        (Some(0), String::new())
    );
    fs::write(bed.path("there/file"), "x").unwrap();
    assert_eq!(mount("tank/old DIR/there"), (Some(0), String::new()), "it is mounted there");
    assert_eq!(mount("tank/old DIR/elsewhere").0, Some(32));
    assert_eq!(mount("tank DIR/mnt -o defaults"), (Some(0), String::new()), "import has done it");
    let (code, said) = mount("tank DIR/elsewhere");
    assert!(code == Some(32) && said.contains("mountpoint=legacy tank"), "{said}");
    let (code, said) = mount("tank DIR/mnt -o ro");
    assert!(code == Some(1) && said.contains("larder fs set readonly=on tank"), "{said}");
    assert_eq!(mount("-f -s tank DIR/mnt -o what,ever").0, Some(0));
    assert_eq!(mount("lake DIR/mnt").0, Some(32));
    rustix::mount::unmount(bed.path("there"), rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(mount("tank/old DIR/elsewhere"), (Some(0), String::new()), "umount(8) has taken it away");
    assert_eq!(fs::read_to_string(bed.path("elsewhere/file")).unwrap(), "x");
}
