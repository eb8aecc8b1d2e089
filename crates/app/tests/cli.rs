//! The whole of Larder as its users meet it: the command, the daemon it starts, a kernel mount, files as
//! devices. Takes root and `/dev/fuse`; elsewhere each test says that it is skipped.
//!
//! Every test has a run folder of its own, and so a daemon of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

mod bed;
use bed::{Bed, MIB, noise, pause, wait_until};

/// A tree of folders, files of all sizes and links.
fn plant(root: &Path) {
    for folder in 0..12u64 {
        let at = root.join(format!("folder {folder}/inner"));
        fs::create_dir_all(&at).unwrap();
        for file in 0..30u64 {
            let seed = folder * 100 + file;
            let len = match file % 5 {
                0 => 0,
                1 => 100 + seed as usize,
                2 => 4096,
                3 => 150_000 + seed as usize,
                _ => 1_000_000 + seed as usize,
            };
            let content = if file % 2 == 0 { noise(seed, len) } else { vec![b'x'; len] };
            fs::write(at.join(format!("file-{file}")), content).unwrap();
        }
        symlink("inner/file-1", at.join("../link")).unwrap();
        fs::hard_link(at.join("file-3"), at.join("same")).unwrap();
    }
}

/// Content of a tree, by path: kind and mode; of files also links, mtime and a hash; of links the target.
fn survey(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let what = if meta.is_dir() {
                folders.push(path.clone());
                format!("folder {:o}", meta.mode())
            } else if meta.is_symlink() {
                format!("link to {}", fs::read_link(&path).unwrap().display())
            } else {
                let content = fs::read(&path).unwrap();
                format!("file {:o} {} {} {}", meta.mode(), meta.nlink(), meta.mtime(), blake3::hash(&content))
            };
            all.insert(path.strip_prefix(root).unwrap().to_owned(), what);
        }
    }
    all
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_pool_survives_export_renamed_devices_and_kill_9() {
    let Some(bed) = Bed::new("a_pool_survives_export_renamed_devices_and_kill_9") else { return };
    let devices = bed.devices("disks", 6, 256);
    bed.create("tank", "raidz2", &devices);
    plant(&bed.path("source"));
    let planted = survey(&bed.path("source"));
    copy(&bed.path("source"), &bed.path("mnt/tree"));
    assert_eq!(survey(&bed.path("mnt/tree")), planted);

    bed.ok("pool export tank");
    assert!(fs::read_dir(bed.path("mnt")).unwrap().next().is_none(), "unmounted");
    fs::create_dir(bed.path("moved")).unwrap();
    for (number, device) in devices.iter().enumerate() {
        fs::rename(device, bed.path(&format!("moved/other{}", 5 - number))).unwrap();
    }
    let listed = bed.ok("pool import -d DIR/moved");
    assert!(listed.contains("pool: tank") && listed.contains("state: ONLINE"), "{listed}");
    bed.ok("pool import -d DIR/moved tank");
    assert_eq!(survey(&bed.path("mnt/tree")), planted);

    // The daemon dies in the middle of a copy; what was synced before is there, whole.
    let synced = noise(7, 3_000_000);
    let mut file = File::create(bed.path("mnt/synced")).unwrap();
    file.write_all(&synced).unwrap();
    file.sync_all().unwrap();
    let mut copying = Command::new("cp")
        .arg("-a")
        .args([bed.path("source"), bed.path("mnt/half")])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    pause(Duration::from_millis(300));
    bed.kill_daemon();
    copying.wait().unwrap();
    drop(file);
    assert!(fs::read_dir(bed.path("mnt")).is_err(), "a dead mount is left");

    bed.ok("pool import -d DIR/moved tank");
    assert_eq!(survey(&bed.path("mnt/tree")), planted);
    assert_eq!(fs::read(bed.path("mnt/synced")).unwrap(), synced);
    let status = bed.ok("pool status tank");
    assert!(status.contains("errors: No known data errors"), "{status}");
    assert_eq!(bed.ok("pool check tank"), "tank: healthy\n");

    // A daemon that is stopped exports; the next one remembers where the devices were.
    bed.ok("daemon stop");
    bed.ok("pool import tank");
    assert_eq!(survey(&bed.path("mnt/tree")), planted);
}

#[test]
fn missing_old_and_copied_devices_are_told_apart() {
    let Some(bed) = Bed::new("missing_old_and_copied_devices_are_told_apart") else { return };
    let devices = bed.devices("disks", 3, 64);
    bed.create("tank", "raidz1", &devices);
    fs::write(bed.path("mnt/file"), noise(1, 2_000_000)).unwrap();
    bed.ok("pool export tank");

    // One is missing: the pool goes on, and says so.
    fs::create_dir(bed.path("away")).unwrap();
    fs::rename(&devices[0], bed.path("away/disk")).unwrap();
    let note = bed.ok("pool import tank");
    assert!(note.contains(&format!("(was {}) is missing", devices[0])), "{note}");
    assert_eq!(fs::read(bed.path("mnt/file")).unwrap(), noise(1, 2_000_000));
    fs::write(bed.path("mnt/file"), noise(2, 2_000_000)).unwrap();
    let status = bed.ok("pool status tank");
    for part in ["state: DEGRADED", "UNAVAIL", "is missing", "action: ", "no loss of a device is survived"] {
        assert!(status.contains(part), "{part} is not in {status}");
    }
    assert_eq!(bed.run("pool check tank").status.code(), Some(1));
    bed.ok("pool export tank");

    // It comes back and is out of date: it gets what it missed, and does not count before it has that.
    fs::rename(bed.path("away/disk"), &devices[0]).unwrap();
    let note = bed.ok("pool import -o scan_rate=16K tank");
    assert!(note.contains("disk0 is out of date: it holds all up to commit"), "{note}");
    assert!(note.contains("what devices lack is being resilvered"), "{note}");
    assert_eq!(fs::read(bed.path("mnt/file")).unwrap(), noise(2, 2_000_000));
    wait_until("under way", || bed.ok("pool status tank").contains("(resilvering)"));
    bed.ok("pool export tank");

    // With another one missing there are too few.
    fs::rename(&devices[1], bed.path("away/disk")).unwrap();
    let error = bed.fails(1, "pool import tank");
    for part in
        ["2 of 3 devices cannot be used", "is not rebuilt yet", "is missing", "not lost: ", "what to do: "]
    {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    assert!(bed.ok("pool import").contains("state: UNAVAIL"));
    fs::rename(bed.path("away/disk"), &devices[1]).unwrap();
    bed.ok("pool import tank");
    bed.ok("pool set scan_rate=none tank");
    bed.ok("pool wait -t resilver tank");
    assert!(bed.ok("pool status tank").contains("state: ONLINE"));
    bed.ok("pool export tank");

    // Two devices that claim to be one.
    fs::copy(&devices[2], bed.path("disks/copy")).unwrap();
    let error = bed.fails(1, "pool import tank");
    assert!(error.contains("are copies of one device"), "{error}");
    bed.ok("pool import -d DIR/disks/disk1 -d DIR/disks/disk2 tank");
    bed.ok("pool export tank");
    let note = bed.ok("pool import tank");
    assert!(note.contains("disks/copy is an older copy of"), "{note}");
    assert_eq!(fs::read(bed.path("mnt/file")).unwrap(), noise(2, 2_000_000));

    // A label that was overwritten at both ends.
    bed.ok("pool export tank");
    fs::remove_file(&devices[0]).unwrap();
    let damaged = File::options().write(true).open(&devices[1]).unwrap();
    for at in [0, 63 * MIB] {
        damaged.write_all_at(b"scratched", at + 100).unwrap();
    }
    let error = bed.fails(1, "pool import tank");
    assert!(error.contains("disk1 has a damaged label"), "{error}");

    let error = bed.fails(1, "pool import -d DIR/nowhere tank2");
    assert!(error.contains("there is no folder or device"), "{error}");
    let error = bed.fails(1, "pool import -d DIR/disks tank2");
    assert!(error.contains("no such pool"), "{error}");
}

#[test]
fn parts_that_were_written_apart_are_refused() {
    let Some(bed) = Bed::new("parts_that_were_written_apart_are_refused") else { return };
    let devices = bed.devices("disks", 2, 64);
    bed.create("tank", "mirror", &devices);
    bed.ok("pool export tank");
    for (number, device) in devices.iter().enumerate() {
        // The other one is where it was, and nobody said that it may be used.
        bed.ok(&format!("pool import -d {device} tank"));
        fs::write(bed.path(&format!("mnt/{number}")), "x").unwrap();
        bed.ok("pool export tank");
    }
    let error = bed.fails(1, "pool import -d DIR/disks tank");
    assert!(error.contains("was written apart from the other devices"), "{error}");
    bed.ok(&format!("pool import -d {} tank", devices[0]));
    assert!(bed.path("mnt/0").exists() && !bed.path("mnt/1").exists());
}

#[test]
fn devices_that_hold_something_are_not_overwritten() {
    let Some(bed) = Bed::new("devices_that_hold_something_are_not_overwritten") else { return };
    let devices = bed.devices("disks", 4, 64);
    let [a, b, c, d] = &devices[..] else { unreachable!() };
    let mut image = File::options().write(true).open(c).unwrap();
    image.write_all(b"XFSB").unwrap();
    drop(image);
    let error = bed.fails(1, &format!("pool create -m none tank mirror {a} {c}"));
    assert!(error.contains("holds an XFS file system") && error.contains("wipefs -a"), "{error}");
    fs::hard_link(a, bed.path("again")).unwrap();
    let error = bed.fails(2, &format!("pool create -m none tank mirror {a} DIR/again"));
    assert!(error.contains("are the same device"), "{error}");

    let error = bed.fails(2, &format!("pool create -m none tank {a} mirror {b} {d}"));
    assert!(error.contains("not equally safe"), "{error}");
    let error = bed.fails(1, &format!("pool create -m / tank {a}"));
    assert!(error.contains("is not empty"), "{error}");
    let planned = bed.ok(&format!("pool create -n -m DIR/mnt tank mirror {a} {b}"));
    assert!(planned.contains("would create 'tank'") && planned.contains("files can take"), "{planned}");
    assert_eq!(
        bed.ok("pool import -d DIR/disks"),
        "no pools available to import\n",
        "a dry run writes nothing"
    );

    bed.create("tank", "mirror", &[a.clone(), b.clone()]);
    let error = bed.fails(1, &format!("pool create -m none other {b}"));
    assert!(error.contains("belongs to the pool 'tank', which is imported"), "{error}");
    let error = bed.fails(1, &format!("pool labelclear -f {b}"));
    assert!(error.contains("in use"), "{error}");
    File::create(bed.path("mnt/inside")).unwrap().set_len(64 * MIB).unwrap();
    let error = bed.fails(1, "pool create -m none other DIR/mnt/inside");
    assert!(error.contains("lies on a Larder pool itself"), "{error}");
    bed.ok("pool export tank");
    let error = bed.fails(1, &format!("pool create -m none other {b}"));
    assert!(error.contains("exported pool 'tank'") && error.contains("larder pool labelclear"), "{error}");
    let error = bed.fails(1, &format!("pool labelclear {b}"));
    assert!(
        error.contains("exported pool 'tank'") && error.contains(&format!("labelclear -f {b}")),
        "{error}"
    );
    bed.ok(&format!("pool labelclear -f {b}"));
    bed.ok(&format!("pool create -m none other {b}"));
    bed.ok("pool destroy other");
    bed.ok("pool import tank");
    bed.ok("pool destroy --yes tank");
    assert_eq!(bed.ok("pool import -d DIR/disks"), "no pools available to import\n");
    bed.create("tank", "mirror", &[a.clone(), b.clone()]);
}

#[test]
fn datasets_are_where_their_properties_say() {
    let Some(bed) = Bed::new("datasets_are_where_their_properties_say") else { return };
    bed.create("tank", "", &bed.devices("disks", 1, 128));
    bed.ok("fs create -p tank/a/b");
    bed.ok("fs create -o mountpoint=DIR/apart -o compression=zstd tank/c");
    bed.ok("fs create tank/c/below");
    bed.ok("fs create -o canmount=noauto tank/quiet");
    fs::write(bed.path("mnt/a/b/file"), "deep").unwrap();
    fs::write(bed.path("apart/below/file"), "apart").unwrap();
    let mounted =
        bed.ok("fs list -H -o name,mounted,mountpoint").replace(bed.dir.path().to_str().unwrap(), "");
    assert_eq!(
        mounted,
        "tank\tyes\t/mnt\ntank/a\tyes\t/mnt/a\ntank/a/b\tyes\t/mnt/a/b\ntank/c\tyes\t/apart\n\
         tank/c/below\tyes\t/apart/below\ntank/quiet\tno\t/mnt/quiet\n"
    );
    assert!(fs::rename(bed.path("mnt/a/b/file"), bed.path("mnt/file")).is_err(), "another dataset");
    assert!(fs::remove_dir(bed.path("mnt/a")).is_err(), "a mount point");

    bed.ok("fs rename tank/a tank/z");
    assert_eq!(fs::read(bed.path("mnt/z/b/file")).unwrap(), b"deep");
    assert!(!bed.path("mnt/a").exists());
    bed.ok("fs set mountpoint=DIR/else tank/z");
    assert_eq!(fs::read(bed.path("else/b/file")).unwrap(), b"deep");
    bed.ok("fs inherit mountpoint tank/z");
    assert_eq!(fs::read(bed.path("mnt/z/b/file")).unwrap(), b"deep");
    bed.ok("fs mount tank/quiet");
    assert_eq!(bed.ok("fs get -H -o value,source mounted tank/quiet"), "yes\t-\n");
    assert_eq!(
        bed.ok("fs get -Hp -o value,source compression tank/c/below"),
        "zstd\tinherited from tank/c\n"
    );

    bed.ok("fs set readonly=on tank/z");
    let refused = fs::write(bed.path("mnt/z/b/file"), "no").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    bed.ok("fs set readonly=off tank/z");
    fs::write(bed.path("mnt/z/b/file"), "yes").unwrap();

    let mut open = File::open(bed.path("mnt/z/b/file")).unwrap();
    for line in ["fs unmount tank/z/b", "fs destroy -r tank/z", "pool export tank"] {
        let error = bed.fails(1, line);
        assert!(error.contains("in use by"), "{error}");
    }
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "yes", "what was refused went on as it was");
    drop(open);
    bed.ok("fs unmount tank/z/b");
    assert!(!bed.path("mnt/z/b/file").exists());
    bed.ok("fs mount -a");
    assert!(bed.path("mnt/z/b/file").exists());
    let error = bed.fails(1, "fs destroy tank/z");
    assert!(error.contains("it has children: tank/z/b"), "{error}");
    bed.ok("fs destroy -r tank/z");
    assert!(!bed.path("mnt/z").exists());

    bed.ok("pool export tank");
    bed.ok("pool import tank rock");
    assert_eq!(fs::read(bed.path("apart/below/file")).unwrap(), b"apart");
    assert!(bed.ok("fs list").contains("rock/c/below"));
    let error = bed.fails(1, "fs create tank/x");
    assert!(error.contains("no such pool"), "{error}");
}

#[test]
fn copies_share_their_blocks_and_extents_show_it() {
    let Some(bed) = Bed::new("copies_share_their_blocks_and_extents_show_it") else { return };
    bed.create("tank", "mirror", &bed.devices("disks", 2, 256));
    bed.ok("fs create tank/below");
    bed.ok("fs create -o mountpoint=DIR/apart tank/apart");
    let content = noise(1, 20 << 20);
    fs::write(bed.path("mnt/file"), &content).unwrap();
    bed.ok("pool sync tank");
    let written = || -> u64 {
        let status = bed.ok("fs list -Hp -o avail tank");
        status.trim().parse().unwrap()
    };
    let before = written();
    let shared = |path: &str| -> (u64, u64) {
        let text = bed.ok(&format!("extents -j {path}"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let file = &json["files"][path.replace("DIR", bed.dir.path().to_str().unwrap())];
        (file["shared"].as_u64().unwrap(), file["data"].as_u64().unwrap())
    };
    let all = content.len() as u64;
    assert_eq!(shared("DIR/mnt/file"), (0, all));
    bed.ok("clone DIR/mnt/file DIR/mnt/twin");
    bed.ok("clone DIR/mnt/file DIR/mnt/below");
    // Another mount, which copy_file_range(2) does not reach; the kernel knows the target already.
    fs::write(bed.path("apart/file"), b"something else").unwrap();
    assert_eq!(fs::read(bed.path("apart/file")).unwrap(), b"something else");
    let refused = bed.fails(1, "clone DIR/mnt/file DIR/apart/file");
    assert!(refused.contains("file exists") && refused.contains("--overwrite"), "{refused}");
    bed.ok("clone --overwrite DIR/mnt/file DIR/apart/file");
    let copied = Command::new("cp").arg(bed.path("mnt/file")).arg(bed.path("mnt/copy")).status().unwrap();
    assert!(copied.success());
    bed.ok("pool sync tank");
    let taken = before.saturating_sub(written());
    assert!(taken < 2 * MIB, "{taken} bytes less are available");
    for path in ["mnt/file", "mnt/twin", "mnt/below/file", "apart/file", "mnt/copy"] {
        assert!(fs::read(bed.path(path)).unwrap() == content, "{path}");
        assert_eq!(shared(&format!("DIR/{path}")), (all, all), "{path}");
    }
    fs::remove_file(bed.path("mnt/file")).unwrap();
    fs::OpenOptions::new().write(true).open(bed.path("mnt/twin")).unwrap().write_all(b"mine").unwrap();
    bed.ok("pool trace -w tank");
    assert!(fs::read(bed.path("apart/file")).unwrap() == content);
    assert_eq!(shared("DIR/mnt/twin"), (all - 131_072, all));
    let text = bed.ok("extents DIR/mnt/twin");
    assert!(text.contains(" in tank, records of 128K\n") && text.contains("/disks/disk"), "{text}");
    assert!(text.ends_with("twin: 160 extents found, 20M of data; 159 shared, 19.9M\n"), "{text}");

    fs::write(bed.path("outside"), "not on a pool").unwrap();
    for (line, why) in [
        ("extents DIR/outside", "is not on a mount of larder"),
        ("extents DIR/mnt/nothing", "cannot open '"),
        ("clone DIR/outside DIR/mnt/new", "is not on a mount of larder"),
        ("clone DIR/mnt/copy DIR/new", "is not on a mount of larder"),
        ("clone DIR/mnt/nothing DIR/mnt/new", "no such file or directory"),
    ] {
        let error = bed.fails(1, line);
        assert!(error.contains(why), "{line}: {error}");
    }
    assert!(!bed.path("new").exists() && !bed.path("mnt/new").exists(), "nothing is left of it");
    for (line, why) in [
        ("clone DIR/mnt DIR/mnt/new", "is a directory"),
        ("clone --overwrite DIR/mnt/copy DIR/mnt/copy", "are the same file"),
    ] {
        let error = bed.fails(2, line);
        assert!(error.contains(why), "{line}: {error}");
    }
    assert!(bed.fails(1, "extents DIR/mnt").contains("is a directory"));
    assert!(fs::read(bed.path("mnt/copy")).unwrap() == content);
}

#[test]
fn a_destroyed_dataset_makes_room_for_its_name_at_once_and_freeing_counts_down() {
    let Some(bed) = Bed::new("a_destroyed_dataset_makes_room_for_its_name_at_once_and_freeing_counts_down")
    else {
        return;
    };
    bed.create("tank", "mirror", &bed.devices("disks", 2, 96));
    for (round, byte) in [(0, b'a'), (1, b'b')] {
        bed.ok("fs create -o compression=off -o recordsize=4K tank/set");
        fs::write(bed.path("mnt/set/file"), vec![byte; 20 << 20]).unwrap();
        bed.ok("pool sync tank");
        if round == 0 {
            bed.ok("fs destroy --now --yes tank/set");
            let left = bed.ok("pool list -Hp -o freeing tank").trim().parse::<u64>().unwrap();
            assert!(left <= 24 << 20, "{left}");
            assert!(!bed.path("mnt/set/file").exists());
        }
    }
    assert_eq!(fs::read(bed.path("mnt/set/file")).unwrap(), vec![b'b'; 20 << 20]);
    fs::write(bed.path("mnt/large"), noise(5, 20 << 20)).unwrap();
    bed.ok("pool sync tank");
    bed.ok("fs destroy --now --yes tank/set");
    fs::remove_file(bed.path("mnt/large")).unwrap();
    bed.kill_daemon();
    bed.ok("pool import -d DIR/disks tank");
    assert!(!bed.path("mnt/set").exists(), "what was told as destroyed is");
    // The last five seconds may be lost.
    drop(fs::remove_file(bed.path("mnt/large")));
    bed.ok("pool wait -t free tank");
    let told =
        |what: &str| -> u64 { bed.ok(&format!("pool get -Hp -o value {what} tank")).trim().parse().unwrap() };
    // Commits go on, and each frees what it has replaced.
    wait_until("all is free", || told("freeing") == 0 && told("allocated") < 20 << 20);
    wait_until("nothing is told", || !bed.ok("pool status tank").contains("freeing"));
}

#[test]
fn what_deduplication_found_is_told_to_people_and_to_programs() {
    let Some(bed) = Bed::new("what_deduplication_found_is_told_to_people_and_to_programs") else { return };
    bed.create("tank", "", &bed.devices("disks", 1, 256));
    let dedup = || {
        let told: serde_json::Value = serde_json::from_str(&bed.ok("pool status -j tank")).unwrap();
        told["pools"]["tank"]["dedup"].clone()
    };
    assert!(dedup().is_null() && !bed.ok("pool status tank").contains("\n dedup: "));
    bed.ok("fs set dedup=on tank");
    let content = noise(7, 10 * (128 << 10));
    for name in ["one", "two", "three"] {
        fs::write(bed.path("mnt").join(name), &content).unwrap();
        bed.ok("pool sync tank");
    }
    let told = dedup();
    assert_eq!((&told["looked_up"], &told["hits"], &told["sampling"]), (&30.into(), &20.into(), &1.into()));
    assert!(bed.ok("pool status tank").contains("\n dedup: 10 fingerprints, "));
    bed.ok("pool trace -w tank");
    let histogram = bed.ok("pool dedup tank");
    assert!(histogram.contains(" index: 10 duplicate and 0 unique entries, "), "{histogram}");
    assert!(histogram.contains("\ndedup = 3.00, "), "{histogram}");
    // By folder: all of it is in the root's, and in the dataset.
    let by_folder = |command: &str| {
        let told: serde_json::Value = serde_json::from_str(&bed.ok(command)).unwrap();
        told["pools"]["tank"].clone()
    };
    assert!(by_folder("pool dedup -n --folders -j tank")["folders"].is_null(), "no trace counted by folder");
    let told = by_folder("pool dedup --folders -j tank");
    let [folder] = &told["folders"]["folders"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!((&folder["path"], &folder["references"]), (&"/".into(), &30.into()));
    for figure in ["references", "logical", "allocated", "share"] {
        assert_eq!(folder[figure], told["trace"]["sharing"][0][figure], "{figure}");
    }
    assert!(told["folders"]["memory"].as_u64().unwrap() < 4096);
    bed.ok("pool export tank");
    bed.ok("pool import -d DIR/disks tank");
    assert!(by_folder("pool dedup -n --folders -j tank")["folders"].is_null(), "an import knows nothing");
    assert!(bed.ok("pool dedup -n --folders tank").ends_with(": larder pool dedup --folders tank\n"));
    bed.ok("daemon stop");
}

#[test]
fn a_trace_tells_what_it_found_and_goes_on_after_a_crash() {
    let Some(bed) = Bed::new("a_trace_tells_what_it_found_and_goes_on_after_a_crash") else { return };
    bed.create("tank", "", &bed.devices("disks", 1, 256));
    for number in 0..300 {
        fs::write(bed.path("mnt").join(format!("file{number}")), noise(number, 5000)).unwrap();
    }
    assert!(!bed.ok("pool status tank").contains("trace:"));
    let told = bed.ok("pool trace -w tank");
    assert!(told.starts_with("tank: trace found ") && told.contains(" with 0 errors on "), "{told}");
    assert!(bed.ok("pool status tank").contains("\n trace: found "));
    let json: serde_json::Value = serde_json::from_str(&bed.ok("pool status -j tank")).unwrap();
    let trace = &json["pools"]["tank"]["trace"];
    assert_eq!((&trace["state"], &trace["missing"]), (&"done".into(), &0.into()));
    assert_eq!(trace["references"][0]["blocks"], 300);
    assert!(trace["live"]["blocks"].as_u64().unwrap() > 300);
    // One that was begun and cut off by a crash is begun again by itself.
    bed.ok("pool trace tank");
    bed.kill_daemon();
    bed.ok("pool import -d DIR/disks tank");
    bed.ok("pool wait -t trace tank");
    let shown = bed.ok("pool trace -j -w tank");
    let json: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(json["pools"]["tank"]["trace"]["state"], "done");
    bed.ok("pool trace -s tank");
    assert_eq!(bed.ok("pool get -Hp -o value trace tank"), "monthly\n");
    bed.ok("pool set trace=off tank");
    bed.fails(2, "pool set trace=daily tank");
    bed.fails(2, "pool trace");
    bed.fails(1, "pool trace nosuch");
    bed.ok("daemon stop");
}

#[test]
fn space_that_was_freed_can_be_written_again() {
    let Some(bed) = Bed::new("space_that_was_freed_can_be_written_again") else { return };
    bed.create("tank", "mirror", &bed.devices("disks", 2, 96));
    let piece = noise(3, 1 << 20);
    let fill = |round: u64| {
        let mut written = 0;
        let mut file = File::create(bed.path(&format!("mnt/{round}"))).unwrap();
        while file.write_all(&piece).is_ok() {
            written += piece.len();
        }
        written
    };
    let first = fill(1);
    assert!(first > 40 << 20, "{first} bytes");
    for round in 2..5 {
        fs::remove_file(bed.path(&format!("mnt/{}", round - 1))).unwrap();
        bed.ok("pool wait -t free tank");
        let again = fill(round);
        assert!(again * 10 >= first * 9, "{again} bytes in round {round}, {first} in the first");
    }
    bed.ok("pool export tank");
}

/// Fields of the one line that a command prints, by tabs, as numbers.
fn numbers(line: &str) -> Vec<u64> {
    line.trim_end().split('\t').filter_map(|cell| cell.parse().ok()).collect()
}

#[test]
fn memory_and_its_shares_change_live_and_the_figures_show_it() {
    let Some(bed) = Bed::new("memory_and_its_shares_change_live_and_the_figures_show_it") else { return };
    bed.create("tank", "mirror", &bed.devices("disks", 2, 256));
    let cache = || numbers(&bed.ok("cachestat -Hp -f size,c,datatg,metatg tank"))[..4].try_into().unwrap();
    let [_, c, data, metadata]: [u64; 4] = cache();
    assert!((c / MIB, data) == (230, c - metadata) && metadata.abs_diff(c / 2) < 1024, "{metadata} of {c}");
    (0..60).for_each(|n| fs::write(bed.path(&format!("mnt/{n}")), noise(n, MIB as usize)).unwrap());
    bed.ok("pool sync tank");
    let [before, ..] = cache();
    assert!(before > 40 * MIB, "{before}");
    bed.ok("pool set memory=64M tank");
    let [size, c, ..] = cache();
    assert!((c / MIB, size <= c) == (28, true), "{size} of {c}");
    bed.ok("pool set metadata_share=20 tank");
    let [_, c, data, metadata] = cache();
    assert!(metadata.abs_diff(c / 5) < 1024 && data == c - metadata, "{data} and {metadata} of {c}");
    bed.ok("pool set memory=1G tank");
    let [after, c, ..] = cache();
    assert!(after < before / 2 && c / MIB == 460, "{after} of {c}: what went does not come back by itself");
    assert_eq!(bed.ok("pool get -Hp -o value memory tank"), "1073741824\n");

    // Evicted data is read anew, once the kernel lets go of its copies, and both figures show it.
    for n in 0..60 {
        let mut file = File::open(bed.path(&format!("mnt/{n}"))).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert!(bytes == noise(n, MIB as usize));
    }
    let [misses, hits] = numbers(&bed.ok("cachestat -Hp -f miss,hits tank"))[..] else {
        panic!("two fields")
    };
    assert!(misses > 100 && hits > misses, "{hits} hits, {misses} misses");
    let shown = bed.ok("pool iostat -Hplv tank");
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [22; 4], "{shown}");
    for row in &rows {
        let [p50, p99, p999] = [13, 14, 15].map(|at| row[at].parse::<u64>().unwrap());
        assert!(0 < p50 && p50 <= p99 && p99 <= p999, "{row:?}");
        let [total, disk] = [7, 9].map(|at| row[at].parse::<u64>().unwrap());
        assert!(0 < disk && disk <= total, "{row:?}");
    }
}

#[test]
fn figures_have_the_forms_of_zpool_iostat_and_arcstat() {
    let Some(bed) = Bed::new("figures_have_the_forms_of_zpool_iostat_and_arcstat") else { return };
    assert_eq!(bed.ok("cachestat"), "no pools available\n");
    bed.create("tank", "mirror", &bed.devices("disks", 2, 64));
    fs::write(bed.path("mnt/file"), noise(1, 100_000)).unwrap();
    bed.ok("pool sync tank");

    let shown = bed.ok("pool iostat -wv tank");
    let sheets: Vec<&str> = shown.lines().filter(|line| line.contains("total_wait")).collect();
    assert_eq!(sheets.len(), 4, "the pool, its group, two devices: {shown}");
    let counted = |line: &str| line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap();
    let rows = shown.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    assert!(rows.map(counted).sum::<u64>() > 0, "writes are counted: {shown}");

    // The first sample is left out, the second begins with heads, the third does not.
    let shown = bed.ok("pool iostat -y -T u tank 0.05 2");
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 7, "{shown}");
    assert!(lines[0].parse::<u64>().is_ok() && lines[5].parse::<u64>().is_ok(), "{shown}");

    let shown: serde_json::Value = serde_json::from_str(&bed.ok("pool iostat -wj tank")).unwrap();
    let disk = &shown["pools"]["tank"]["vdevs"]["mirror-0"]["vdevs"];
    let disk = disk.as_object().unwrap().values().next().unwrap();
    let waits = &disk["latency"]["write"]["total_wait"];
    assert!(waits["p99_ns"].as_u64() >= waits["p50_ns"].as_u64() && waits["p50_ns"].is_u64(), "{waits}");
    assert!(!waits["histogram"].as_array().unwrap().is_empty());
    let shown: serde_json::Value = serde_json::from_str(&bed.ok("cachestat -j tank")).unwrap();
    assert!(shown["pools"]["tank"]["demand_metadata"]["hits"].is_u64(), "{shown}");

    bed.ok("personalities DIR/bin");
    let arcstat = |args: &[&str]| {
        let mut command = Command::new(bed.path("bin/arcstat"));
        let output = command.args(args).env("LARDER_RUN_DIR", bed.path("run")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = arcstat(&["0.05", "2"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "    time  read  ddread  ddh%  dmread  dmh%  pread  ph%   size      c  avail");
    assert_eq!((lines.len(), lines[1].len(), lines[2].len()), (3, lines[0].len(), lines[0].len()));
    assert_eq!(arcstat(&["-p", "-s", ",", "-f", "c,hit%"]).lines().next(), Some("c,hit%"));
}

#[test]
fn quotas_refuse_and_reservations_keep() {
    let Some(bed) = Bed::new("quotas_refuse_and_reservations_keep") else { return };
    bed.create("tank", "mirror", &bed.devices("disks", 2, 160));
    bed.ok("fs create -o quota=10M tank/home");
    let piece = noise(5, 1 << 20);
    let fill = |name: &str| {
        let mut file = File::create(bed.path(name)).unwrap();
        let mut written = 0;
        let refusal = loop {
            match file.write_all(&piece) {
                Ok(()) => written += MIB,
                Err(refusal) => break refusal.raw_os_error(),
            }
        };
        file.sync_all().unwrap();
        (written, refusal.map(rustix::io::Errno::from_raw_os_error))
    };
    let (no_space, quota) = (Some(rustix::io::Errno::NOSPC), Some(rustix::io::Errno::DQUOT));
    assert_eq!(fill("mnt/home/file"), (9 * MIB, quota));
    let df = rustix::fs::statvfs(bed.path("mnt/home")).unwrap();
    assert_eq!(df.f_blocks * df.f_frsize, 10 * MIB, "df shows the quota");
    assert!(df.f_bavail * df.f_frsize < MIB);
    let error = bed.fails(2, "fs set quota=5M tank/home");
    assert!(error.contains("quota=5M is less than the 9.") && error.contains("used or reserved"), "{error}");
    let error = bed.fails(2, "fs set reservation=1T tank/home");
    assert!(error.contains("reservation=1T is more than the quota of 10M"), "{error}");

    fs::remove_file(bed.path("mnt/home/file")).unwrap();
    bed.ok("pool wait -t free tank");
    assert_eq!(fill("mnt/home/again"), (9 * MIB, quota));

    // In the words of zfs: what is set, where, and what it comes to.
    symlink(bed.larder(), bed.path("zfs")).unwrap();
    let zfs = |line: &str| {
        let mut command = Command::new(bed.path("zfs"));
        command.args(line.split_whitespace()).env("LARDER_RUN_DIR", bed.path("run"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "zfs {line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    zfs("set refreservation=12M quota=none tank/home");
    zfs("create -o reservation=20M tank/safe");
    assert_eq!(
        zfs("get -H -o property,value,source quota,refquota,reservation,refreservation tank/home"),
        "quota\tnone\tdefault\nrefquota\tnone\tdefault\nreservation\tnone\tdefault\n\
         refreservation\t12M\tlocal\n"
    );
    let sizes = zfs("list -Hp -o used,usedbydataset,usedbychildren,usedbyrefreservation,usedbysnapshots");
    let sizes: Vec<Vec<u64>> =
        (sizes.lines()).map(|line| line.split('\t').map(|size| size.parse().unwrap()).collect()).collect();
    assert_eq!(sizes[0][0], 32 * MIB, "what is reserved below is used: {sizes:?}");
    assert_eq!((sizes[1][0], sizes[1][1] + sizes[1][3], sizes[2][0]), (12 * MIB, 12 * MIB, 0), "{sizes:?}");
    let error = bed.fails(2, "fs set reservation=1T tank/safe");
    assert!(error.contains("reservation=1T is more than the") && error.contains("available"), "{error}");

    // Everybody else meets a full pool early; what was kept can be written.
    let (others, refusal) = fill("mnt/filler");
    assert_eq!(refusal, no_space);
    assert_eq!(fill("mnt/safe/file").1, no_space);
    let used: u64 = zfs("get -Hp -o value usedbydataset tank/safe").trim().parse().unwrap();
    assert!(used >= 19 * MIB, "{used} of 20M, after {others} by others");
    bed.ok("pool export tank");
    bed.ok("pool import -d DIR/disks tank");
    assert_eq!(zfs("get -H -o value,source reservation tank/safe"), "20M\tlocal\n");
    assert_eq!(bed.ok("pool check tank"), "tank: healthy\n");
}

#[test]
fn a_read_only_import_writes_nothing() {
    let Some(bed) = Bed::new("a_read_only_import_writes_nothing") else { return };
    let devices = bed.devices("disks", 2, 64);
    bed.create("tank", "mirror", &devices);
    fs::write(bed.path("mnt/file"), "kept").unwrap();
    bed.ok("pool sync");
    bed.kill_daemon();
    let hashes = || devices.iter().map(|path| blake3::hash(&fs::read(path).unwrap())).collect::<Vec<_>>();
    let before = hashes();
    bed.ok("pool import -d DIR/disks -o readonly=on tank");
    assert_eq!(fs::read(bed.path("mnt/file")).unwrap(), b"kept");
    assert!(fs::write(bed.path("mnt/file"), "lost").is_err());
    let error = bed.fails(1, "fs create tank/a");
    assert!(error.contains("for reading only"), "{error}");
    bed.ok("pool export tank");
    assert_eq!(hashes(), before);
}

#[test]
fn what_makes_no_sense_is_bad_usage() {
    let Some(bed) = Bed::new("what_makes_no_sense_is_bad_usage") else { return };
    for line in [
        "pool create",
        "pool create tank mirror DIR/a",
        "pool create -o ashift=9 tank DIR/a",
        "pool create -O checksum=off tank DIR/a",
        "pool create -f tank DIR/a",
        "pool create mirror DIR/a",
        "fs create tank",
        "fs set nonsense=1 tank",
        "frobnicate",
    ] {
        bed.fails(2, line);
    }
    for line in
        ["pool status tank", "pool export tank", "fs list tank/a", "pool sync tank", "pool import tank"]
    {
        let error = bed.fails(1, line);
        assert!(error.contains("tank"), "{error}");
    }
    assert_eq!(bed.ok("pool status"), "no pools available\n");
}

#[test]
fn a_started_daemon_keeps_no_pipe_of_the_script_that_called() {
    let Some(bed) = Bed::new("a_started_daemon_keeps_no_pipe_of_the_script_that_called") else { return };
    // The pipe of the substitution is also descriptor 9 of the command; it ends when the last copy is closed.
    let script = format!(
        "x=$({} daemon status 9>&1 >/dev/null; {} pool list 9>&1); echo done",
        bed.larder(),
        bed.larder()
    );
    let output = Command::new("timeout")
        .args(["120", "sh", "-c", &script])
        .env("LARDER_RUN_DIR", bed.path("run"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{output:?}");
    assert!(bed.daemon().is_some(), "a daemon was started");
}

/// Space in a plan, in a dry run and in the pool: of every shape that these files can have.
#[test]
fn a_plan_tells_the_space_that_create_shows_and_the_pool_has() {
    let Some(bed) = Bed::new("a_plan_tells_the_space_that_create_shows_and_the_pool_has") else { return };
    let mut devices = bed.devices("disks", 4, 1024);
    devices.extend(bed.devices("more", 3, 640));
    let number = |text: &str| -> u64 {
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("{text}"))
    };
    let planned: serde_json::Value =
        serde_json::from_str(&bed.ok(&format!("plan -j {}", devices.join(" ")))).unwrap();
    let mut made = 0;
    for candidate in planned["candidates"].as_array().unwrap() {
        let words: Vec<&str> =
            candidate["create"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let create = format!("-m DIR/mnt tank {}", words.join(" "));
        let dry: serde_json::Value =
            serde_json::from_str(&bed.ok(&format!("pool create -n -j {create}"))).unwrap();
        assert_eq!(candidate["usable"], dry["usable"], "{}", candidate["name"]);
        // A few of them for real.
        if made < 4 && candidate["word"] != "single" {
            bed.ok(&format!("pool create {create}"));
            let usable = candidate["usable"].as_u64().unwrap();
            let has = number(&bed.ok("fs list -Hp -o available tank"));
            assert!(
                has <= usable && has as f64 > usable as f64 * 0.98,
                "{}: {has} of {usable}",
                candidate["name"]
            );
            bed.ok("pool destroy --now --yes tank");
            made += 1;
        }
    }
    assert_eq!(made, 4);
}
