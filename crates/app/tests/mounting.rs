//! Where datasets are mounted and where not, and how mounts end that somebody keeps busy, as users meet it.

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

#[allow(dead_code, reason = "another test uses what this one does not")]
mod bed;
use bed::{Bed, wait_until};

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

/// One test at a time: a namespace that one makes has copies of the mounts of all.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn nothing_is_mounted_over_what_is_there() {
    let _alone = alone();
    let Some(bed) = Bed::new("nothing_is_mounted_over_what_is_there") else { return };
    let devices = bed.devices("disks", 1, 64);
    bed.create("tank", "", &devices);
    let etc = bed.path("etc");
    fs::create_dir(&etc).unwrap();
    fs::write(etc.join("passwd"), "root").unwrap();
    let error = bed.fails(1, "fs create -o mountpoint=DIR/etc tank/etc");
    for part in ["is not empty", "not lost: the dataset", "larder fs set overlay=on tank/etc"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    assert_eq!(bed.ok("fs get -H -o value mounted tank/etc"), "no\n");
    assert_eq!(fs::read_to_string(etc.join("passwd")).unwrap(), "root");
    bed.ok("fs set overlay=on tank/etc");
    bed.ok("fs mount tank/etc");
    assert!(is_mounted(&etc) && !etc.join("passwd").exists());
    bed.ok("fs destroy tank/etc");

    // Nor over a folder of the dataset above, and not where a link of somebody else's leads.
    fs::create_dir(bed.path("mnt/home")).unwrap();
    fs::write(bed.path("mnt/home/letter"), "x").unwrap();
    let error = bed.fails(1, "fs create tank/home");
    assert!(error.contains("is not empty"), "{error}");
    assert!(bed.path("mnt/home/letter").exists());
    let link = bed.path("link");
    symlink(bed.path("etc"), &link).unwrap();
    lchown(&link, Some(65534), None).unwrap();
    let error = bed.fails(1, "fs create -o mountpoint=DIR/link/new tank/link");
    assert!(error.contains("a symbolic link that is not followed"), "{error}");
    assert!(!etc.join("new").exists());

    // Import says so, and brings in the rest.
    bed.ok("pool export tank");
    fs::write(bed.path("mnt/mine"), "x").unwrap();
    let note = bed.ok("pool import -d DIR/disks tank");
    assert!(note.contains("is not empty"), "{note}");
    assert!(bed.path("mnt/mine").exists() && !is_mounted(&bed.path("mnt")));
    bed.ok("pool export tank");

    // Below another root everything is.
    bed.ok("pool import -R DIR/alt -d DIR/disks tank");
    let below = bed.path(&format!("alt{}", bed.path("mnt").display()));
    assert!(is_mounted(&below) && below.join("home/letter").exists());
    assert_eq!(bed.ok("pool get -H -o value altroot tank"), format!("{}\n", bed.path("alt").display()));
    assert_eq!(bed.ok("fs get -H -o value mountpoint tank"), format!("{}\n", below.display()));
    symlink(bed.path("etc"), bed.path("alt/out")).unwrap();
    let error = bed.fails(1, "fs create -o mountpoint=/out/new tank/out");
    assert!(error.contains("a symbolic link that is not followed"), "{error}");
    bed.ok("pool export tank");
    assert!(!is_mounted(&below));
}

/// Those of these datasets that are mounted.
fn mounted(bed: &Bed, names: &[&str]) -> Vec<String> {
    let is = |name: &&&str| bed.ok(&format!("fs get -H -o value mounted {name}")) == "yes\n";
    names.iter().filter(is).map(|&name| name.to_owned()).collect()
}

#[test]
fn what_is_refused_half_way_leaves_all_mounted() {
    let _alone = alone();
    let Some(bed) = Bed::new("what_is_refused_half_way_leaves_all_mounted") else { return };
    let devices = bed.devices("disks", 1, 64);
    bed.create("tank", "", &devices);
    bed.ok("fs create tank/a");
    bed.ok("fs create -o mountpoint=DIR/x tank/a/x");
    bed.ok("fs create -o mountpoint=DIR/mnt/a/b tank/b");
    let all = ["tank", "tank/a", "tank/a/x", "tank/b"];
    assert_eq!(mounted(&bed, &all), all);

    let held = File::create(bed.path("x/held")).unwrap();
    for line in ["fs rename tank/a tank/c", "fs set canmount=noauto tank/a"] {
        let error = bed.fails(1, line);
        assert!(error.contains("cannot unmount 'tank/a/x'"), "{error}");
        assert_eq!(mounted(&bed, &all), all, "{line}");
    }
    drop(held);
    let held = File::create(bed.path("mnt/a/held")).unwrap();
    let error = bed.fails(1, "fs destroy -r tank/a");
    assert!(error.contains("cannot unmount 'tank/a'"), "{error}");
    assert_eq!(mounted(&bed, &all), all);
    drop(held);

    // A dataset that hangs on the mount of another is mounted again with it, and when that has gone.
    bed.ok("fs set canmount=on tank/a");
    assert_eq!(mounted(&bed, &all), all);
    bed.ok("fs destroy -r tank/a");
    assert_eq!(mounted(&bed, &["tank", "tank/b"]), ["tank", "tank/b"]);
}

#[test]
fn a_pool_that_hangs_holds_up_no_command_about_another() {
    let _alone = alone();
    let Some(bed) = Bed::new("a_pool_that_hangs_holds_up_no_command_about_another") else { return };
    let devices = bed.devices("disks", 2, 64);
    bed.ok(&format!("pool create -o device_timeout=600 -m DIR/mnt tank fault:{}", devices[0]));
    bed.ok(&format!("pool create -m DIR/second second {}", devices[1]));
    fs::write(bed.path("mnt/file"), "x").unwrap();
    fs::write(format!("{}.faults", devices[0]), "hang\n").unwrap();
    let mut sync = bed.command("pool sync tank").spawn().unwrap();
    for line in LOOKS.into_iter().chain(OF_ANOTHER) {
        let (done, text) = answered(&bed, line);
        assert!(done, "{line}: {text}");
    }
    assert!(sync.try_wait().unwrap().is_none(), "it hangs");
    let mut export = bed.command("pool export tank").spawn().unwrap();
    wait_until("unmounted", || !is_mounted(&bed.path("mnt")));
    bed.ok("pool export second");
    bed.ok(&format!("pool import -d {} second", devices[1]));
    bed.ok("fs create second/more");
    for line in LOOKS.into_iter().chain(OF_ANOTHER) {
        let (done, text) = answered(&bed, line);
        assert!(done, "{line}: {text}");
    }
    bed.ok("fs unmount second");
    assert!(export.try_wait().unwrap().is_none(), "it hangs");
    fs::remove_file(format!("{}.faults", devices[0])).unwrap();
    assert!(export.wait().unwrap().success());
    sync.wait().unwrap();
}

/// Verbs that only look, at the pool `tank` above all.
const LOOKS: [&str; 13] = [
    "pool status",
    "pool list",
    "pool list -v",
    "pool get all tank",
    "pool iostat",
    "pool events tank",
    "pool history tank",
    "fs list",
    "fs get all",
    "fs get all tank",
    "fs get -o value used tank",
    "daemon status",
    "cachestat",
];
/// Verbs that work on the pool `second` meanwhile.
const OF_ANOTHER: [&str; 5] = [
    "pool check second",
    "pool sync second",
    "pool scrub -w second",
    "fs create second/a",
    "fs destroy second/a",
];
/// Verbs that change the pool `tank`, or need it whole.
const CHANGES: [&str; 10] = [
    "pool check tank",
    "pool sync tank",
    "pool scrub tank",
    "pool set comment=x tank",
    "pool clear tank",
    "pool trace tank",
    "fs set quota=10M tank",
    "fs create tank/more",
    "pool export tank",
    "daemon stop",
];

/// Runs a command that must end, one way or the other; whether it succeeded, and what it printed.
fn answered(bed: &Bed, line: &str) -> (bool, String) {
    let mut child = bed.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(&format!("answered: {line}"), || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.success(), text)
}

#[test]
fn every_command_is_answered_and_files_are_read_while_a_pool_is_suspended() {
    let _alone = alone();
    let name = "every_command_is_answered_and_files_are_read_while_a_pool_is_suspended";
    let Some(bed) = Bed::new(name) else { return };
    let devices = bed.devices("disks", 2, 64);
    let faults = format!("{}.faults", devices[0]);
    bed.ok(&format!("pool create -m DIR/mnt tank fault:{}", devices[0]));
    bed.ok(&format!("pool create -m DIR/second second {}", devices[1]));
    let file = |number: u64| bed.path(&format!("mnt/{number}"));
    for number in 0..32 {
        fs::write(file(number), bed::noise(number, 300_000)).unwrap();
    }
    let import = format!("pool import -d fault:{} tank", devices[0]);
    bed.ok("pool export tank");
    bed.ok(&import);
    fs::write(file(100), "never stored").unwrap();
    fs::write(&faults, "error write\n").unwrap();
    let (done, error) = answered(&bed, "pool sync tank");
    assert!(!done && error.contains("suspended"), "{error}");

    // Somebody reads all the time, from the device too.
    let (ended, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                for number in 0..32 {
                    assert!(fs::read(file(number)).unwrap() == bed::noise(number, 300_000), "{number}");
                }
                rounds.fetch_add(1, Relaxed);
            }
        });
        let _ended = End(&ended);
        let status = answered(&bed, "pool status");
        assert!(status.0 && status.1.contains("SUSPENDED"), "{}", status.1);
        for line in LOOKS.into_iter().chain(OF_ANOTHER).chain(["pool export second"]) {
            let (done, text) = answered(&bed, line);
            assert!(done, "{line}: {text}");
        }
        let import = format!("pool import -d {} second", devices[1]);
        assert!(answered(&bed, &import).0);
        // Verbs that change the pool, or need it whole, are refused.
        for line in CHANGES {
            let (done, text) = answered(&bed, line);
            assert!(!done, "{line}: {text}");
        }
        let before = rounds.load(Relaxed);
        wait_until("read once more", || rounds.load(Relaxed) > before + 1);
    });

    let (done, text) = answered(&bed, "pool export -f tank");
    assert!(done, "{text}");
    fs::remove_file(&faults).unwrap();
    bed.ok(&import);
    assert!(!file(100).exists() && fs::read(file(31)).unwrap() == bed::noise(31, 300_000));
    assert!(answered(&bed, "daemon stop").0);
    assert!(!is_mounted(&bed.path("mnt")) && !is_mounted(&bed.path("second")));
}

/// Told when this goes, by a panic too.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_pool_can_be_exported_where_few_files_may_be_open() {
    let _alone = alone();
    let Some(bed) = Bed::new("a_pool_can_be_exported_where_few_files_may_be_open") else { return };
    let devices = bed.devices("disks", 2, 64);
    let limited = |line: &str| {
        let script = format!("ulimit -n 24; exec {} {line}", bed.larder());
        let script = script.replace("DIR", bed.dir.path().to_str().unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("LARDER_RUN_DIR", bed.path("run"));
        command.current_dir(bed.dir.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    limited(&format!("pool create -m DIR/mnt tank mirror {}", devices.join(" ")));
    // Many threads read and sync at once, each of which would keep some.
    std::thread::scope(|scope| {
        for number in 0..32 {
            let path = bed.path(&format!("mnt/{number}"));
            scope.spawn(move || {
                let mut file = File::create(&path).unwrap();
                file.write_all(&bed::noise(number, 100_000)).unwrap();
                file.sync_all().unwrap();
                assert_eq!(fs::read(&path).unwrap().len(), 100_000);
            });
        }
    });
    limited("fs create -o mountpoint=DIR/home tank/home");
    limited("pool export tank");
    limited("pool import -d DIR/disks tank");
    limited("daemon stop");
    assert!(!is_mounted(&bed.path("mnt")));
}

#[test]
fn a_run_folder_of_somebody_else_is_not_used() {
    let _alone = alone();
    let Some(bed) = Bed::new("a_run_folder_of_somebody_else_is_not_used") else { return };
    let (victim, run) = (bed.path("victim"), bed.path("run"));
    fs::write(&victim, "mine").unwrap();
    fs::create_dir(&run).unwrap();
    symlink(&victim, run.join("daemon.log")).unwrap();
    lchown(&run, Some(65534), None).unwrap();
    let error = bed.fails(1, "pool list");
    assert!(error.contains("belongs to another user"), "{error}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    fs::remove_dir_all(&run).unwrap();
    bed.ok("pool list");
    assert_eq!(fs::metadata(run.join("daemon.log")).unwrap().permissions().mode() & 0o777, 0o600);
}

/// A command as another host would give it: with another id, and mounts of its own.
fn elsewhere(bed: &Bed, line: &str) -> bool {
    fs::write(bed.path("machine-id"), "0123456789abcdef0123456789abcdef\n").unwrap();
    let script = format!(
        "touch /etc/machine-id 2>/dev/null; mount --bind {} /etc/machine-id && exec {} {line}",
        bed.path("machine-id").display(),
        bed.larder()
    );
    let script = script.replace("DIR", bed.dir.path().to_str().unwrap());
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    command.env("LARDER_RUN_DIR", bed.path("other")).current_dir(bed.dir.path());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn what_another_host_had_is_taken_and_mounted_only_when_somebody_says_so() {
    let _alone = alone();
    let name = "what_another_host_had_is_taken_and_mounted_only_when_somebody_says_so";
    let Some(bed) = Bed::new(name) else { return };
    let devices = bed.devices("disks", 1, 64);
    if !elsewhere(&bed, &format!("pool create -m DIR/mnt tank {}", devices[0])) {
        eprintln!("SKIPPED {name}: it needs unshare and mount");
        return;
    }
    let there = || {
        let pid = fs::read_dir("/proc").unwrap().flatten().find(|entry| {
            let variables = fs::read(entry.path().join("environ")).unwrap_or_default();
            let wanted = format!("LARDER_RUN_DIR={}", bed.path("other").display());
            variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        });
        pid.and_then(|entry| rustix::process::Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
    };
    // Another host's devices are not locked here.
    rustix::process::kill_process(there().unwrap(), rustix::process::Signal::KILL).unwrap();
    wait_until("dead", || there().is_none());
    let error = bed.fails(1, "pool import -d DIR/disks tank");
    for part in ["it was last used by the host ", "not exported there", "larder pool import --take-over tank"]
    {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    let listed = bed.ok("pool import -d DIR/disks");
    assert!(listed.contains("--take-over tank"), "{listed}");

    // The daemon that comes after it on its own host asks nobody, and waits for nothing.
    assert!(elsewhere(&bed, "pool import -d DIR/disks tank"));
    assert!(elsewhere(&bed, "daemon stop"));
    let note = bed.ok("pool import -d DIR/disks tank");
    assert!(note.contains("comes from another host, so nothing is mounted yet"), "{note}");
    assert!(!is_mounted(&bed.path("mnt")));
    bed.ok("fs mount -a");
    assert!(is_mounted(&bed.path("mnt")));
    bed.ok("pool export tank");
    // Now it is ours.
    bed.ok("pool import -d DIR/disks tank");
    assert!(is_mounted(&bed.path("mnt")));
}

#[test]
fn a_mount_that_somebody_keeps_is_told_about_and_holds_up_nobody_else() {
    let _alone = alone();
    let name = "a_mount_that_somebody_keeps_is_told_about_and_holds_up_nobody_else";
    let Some(bed) = Bed::new(name) else { return };
    let devices = bed.devices("disks", 2, 64);
    bed.create("tank", "", &devices[..1]);
    let (mnt, copy) = (bed.path("mnt"), bed.path("copy"));
    fs::create_dir(&copy).unwrap();
    mount_bind(&mnt, &copy).unwrap();
    let error = bed.fails(1, "pool export tank");
    assert!(error.contains(&format!("it is also mounted at {}", copy.display())), "{error}");
    assert!(is_mounted(&mnt), "it stays as it was");
    unmount(&copy, UnmountFlags::empty()).unwrap();

    // Detached by somebody while a file is open.
    let mut file = File::create(mnt.join("file")).unwrap();
    file.write_all(b"before").unwrap();
    unmount(&mnt, UnmountFlags::DETACH).unwrap();
    let export = bed.command("pool export tank").stderr(std::process::Stdio::piped()).spawn().unwrap();
    // Others are served meanwhile, of this pool too.
    bed.ok(&format!("pool create -m DIR/second second {}", devices[1]));
    assert!(bed.ok("fs list").contains("tank"));
    let output = export.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(&format!("({})", std::process::id())), "who holds it is not named: {error}");
    assert!(error.contains("somebody still uses it"), "{error}");
    drop(file);
    bed.ok("pool export tank");
    bed.ok("pool import -d DIR/disks tank");
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"before");

    // A daemon that is told to end by a signal ends, and stores what it has.
    let mut file = File::create(mnt.join("file")).unwrap();
    file.write_all(b"after").unwrap();
    let pid = bed.daemon().unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_until("gone, and nothing is left of the mount", || !is_mounted(&mnt));
    assert!(file.write_all(b"!").is_err());
    let listed = bed.ok("pool import -d DIR/disks");
    assert!(!listed.contains("not exported"), "{listed}");
    bed.ok("pool import -d DIR/disks tank");
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"after");
}
