//! Devices that are taken out, come back, are replaced, rot and fail, as users of the command meet it.

use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

#[allow(dead_code, reason = "another test uses what this one does not")]
mod bed;
use bed::{Bed, MIB, noise, pause};

/// Files of `count` MiB together, named by their contents' seeds.
fn fill(bed: &Bed, seeds: std::ops::Range<u64>) {
    seeds.for_each(|seed| fs::write(bed.path(&format!("mnt/{seed}")), noise(seed, MIB as usize)).unwrap());
    bed.ok("pool sync tank");
}

/// All of these files are what they were, read from the devices.
fn whole(bed: &Bed, seeds: std::ops::Range<u64>) {
    bed.ok("pool export tank");
    bed.ok("pool import -d DIR/disks tank");
    for seed in seeds {
        assert!(fs::read(bed.path(&format!("mnt/{seed}"))).unwrap() == noise(seed, MIB as usize), "{seed}");
    }
}

fn json(bed: &Bed) -> Value {
    let all: Value = serde_json::from_str(&bed.ok("pool status -j tank")).unwrap();
    all["pools"]["tank"].clone()
}

/// The newest scan of this kind that is told.
fn scan(bed: &Bed, kind: &str) -> Value {
    let pool = json(bed);
    let scans = pool["scans"].as_array().unwrap();
    scans.iter().find(|scan| scan["kind"] == kind).unwrap_or_else(|| panic!("no {kind}: {pool:#}")).clone()
}

/// Waits until `status` says so.
fn until(bed: &Bed, what: &str, holds: impl Fn(&str) -> bool) -> String {
    for _ in 0..1200 {
        let status = bed.ok("pool status -v tank");
        if holds(&status) {
            return status;
        }
        pause(Duration::from_millis(50));
    }
    panic!("never {what}: {}", bed.ok("pool status -v tank"));
}

/// Overwrites what is written on a device beyond its labels, but for every fourth 4 KiB.
fn rot(path: &str) -> u64 {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (mut piece, mut rotten) = (vec![0; 4096], 0);
    let end = file.metadata().unwrap().len() - MIB;
    for (at, offset) in (MIB..end).step_by(4096).enumerate() {
        file.read_exact_at(&mut piece, offset).unwrap();
        if at % 4 != 0 && piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(&noise(offset, 4096), offset).unwrap();
            rotten += 4096;
        }
    }
    rotten
}

#[test]
fn a_device_that_was_taken_out_gets_only_what_it_missed() {
    let Some(bed) = Bed::new("a_device_that_was_taken_out_gets_only_what_it_missed") else { return };
    let devices = bed.devices("disks", 2, 128);
    bed.create("tank", "mirror", &devices);
    fill(&bed, 0..16);
    bed.ok("pool offline tank disk1");
    let status = bed.ok("pool status tank").replace("\n\t", " ");
    for part in [
        "state: DEGRADED",
        "  OFFLINE ",
        "disk1 was taken offline. All data can be read and written.",
        "action: larder pool online tank ",
        "see: docs/operations.md",
        "risk: no loss of a device is survived",
    ] {
        assert!(status.contains(part), "{part} is not in {status}");
    }
    assert_eq!(bed.run("pool check tank").status.code(), Some(1));
    let error = bed.fails(1, &format!("pool offline tank {}", devices[0]));
    for part in ["cannot offline", "no valid replicas", "not lost: ", "what to do: "] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    let error = bed.fails(1, "pool online tank nosuch");
    assert!(
        error.contains("no such device in pool") && error.contains("larder pool status -P tank"),
        "{error}"
    );

    // It is out of use after an import too, and comes back by its guid.
    fill(&bed, 16..20);
    whole(&bed, 0..20);
    let pool = json(&bed);
    let disk = &pool["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"][&devices[1]];
    assert_eq!((&disk["state"], &disk["index"]), (&"OFFLINE".into(), &1.into()), "{pool:#}");
    bed.ok(&format!("pool online tank {}", disk["guid"]));
    bed.ok("pool wait -t resilver tank");
    let status = bed.ok("pool status tank");
    assert!(status.contains("state: ONLINE") && status.contains("scan: resilvered "), "{status}");
    let resilver = scan(&bed, "resilver");
    let written = resilver["repaired"].as_u64().unwrap();
    assert!((4 * MIB..12 * MIB).contains(&written), "{resilver:#}");
    assert_eq!((&resilver["errors"], &resilver["canceled"]), (&0.into(), &false.into()));
    bed.ok("pool offline -t tank disk0");
    whole(&bed, 0..20);
    until(&bed, "back after an import", |status| status.contains("state: ONLINE"));
    assert_eq!(bed.ok("pool check tank"), "tank: healthy\n");
    let error = bed.fails(1, "pool resilver tank");
    assert!(error.contains("no device lacks anything"), "{error}");
}

#[test]
fn a_scrub_makes_good_what_rotted_and_says_so() {
    let Some(bed) = Bed::new("a_scrub_makes_good_what_rotted_and_says_so") else { return };
    let devices = bed.devices("disks", 4, 128);
    bed.create("tank", "raidz2", &devices);
    fill(&bed, 0..24);
    assert!(rot(&devices[1]) > 8 * MIB);
    assert!(rot(&devices[3]) > 8 * MIB);
    let told = bed.ok("pool scrub -w tank");
    assert!(told.starts_with("tank: scrub repaired ") && told.contains(" with 0 errors on "), "{told}");
    let scrub = scan(&bed, "scrub");
    assert!(scrub["repaired"].as_u64().unwrap() > 16 * MIB, "{scrub:#}");
    assert!(scrub["finished"].is_i64() && scrub["errors"] == 0 && scrub["paused"].is_null(), "{scrub:#}");
    let status = bed.ok("pool status -p tank");
    for part in
        ["scan: scrub repaired ", "Devices gave wrong data. It was made good", "errors: No known data errors"]
    {
        assert!(status.contains(part), "{part} is not in {status}");
    }
    let line = status.lines().find(|line| line.contains("disk1")).unwrap();
    let counts: Vec<u64> = line.split_whitespace().skip(2).map(|count| count.parse().unwrap()).collect();
    assert!(counts[0] == 0 && counts[1] == 0 && counts[2] > 0, "{line}");
    bed.ok("pool clear tank disk1");
    bed.ok("pool clear tank");
    assert!(!bed.ok("pool status tank").contains("gave wrong data"));
    let told = bed.ok("pool scrub -wj tank");
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["pools"]["tank"]["scans"][0]["repaired"], 0, "{told:#}");

    // Repaired data can be read with two devices less, whichever these are.
    bed.ok("pool offline tank disk0");
    bed.ok("pool offline tank disk2");
    whole(&bed, 0..24);
}

#[test]
fn a_scrub_can_be_paused_gone_on_with_and_stopped() {
    let Some(bed) = Bed::new("a_scrub_can_be_paused_gone_on_with_and_stopped") else { return };
    bed.create("tank", "mirror", &bed.devices("disks", 2, 128));
    fill(&bed, 0..16);
    for (flag, what) in [("-p", "pause"), ("-s", "cancel")] {
        let error = bed.fails(1, &format!("pool scrub {flag} tank"));
        assert!(
            error.contains(&format!("cannot {what} scrubbing tank: there is no active scrub")),
            "{error}"
        );
    }
    bed.fails(1, "pool scrub nosuch");
    bed.fails(2, "pool scrub");
    bed.fails(2, "pool scrub -s -p tank");
    bed.fails(2, "pool scrub --since yesterday tank");
    bed.fails(2, "pool set scrub_window=noon tank");

    bed.ok("pool set scan_rate=256K tank");
    bed.ok("pool scrub tank");
    let error = bed.fails(1, "pool scrub tank");
    assert!(error.contains("cannot scrub tank: currently scrubbing"), "{error}");
    let status = until(&bed, "under way", |status| status.contains("scan: scrub in progress since "));
    assert!(status.contains(" scanned") && status.contains("% done, "), "{status}");
    bed.ok("pool scrub -p tank");
    bed.ok("pool wait -t scrub tank");
    let status = bed.ok("pool status tank");
    assert!(status.contains("scan: scrub paused since ") && status.contains("scrub started on "), "{status}");
    assert!(scan(&bed, "scrub")["paused"].is_i64());

    // It keeps its place over an import, and the rate is looked at anew while it runs.
    whole(&bed, 0..16);
    assert!(bed.ok("pool status tank").contains("scan: scrub paused since "));
    bed.ok("pool scrub tank");
    bed.ok("pool scrub -s tank");
    assert!(bed.ok("pool status tank").contains("scan: scrub canceled on "));
    bed.ok("pool scrub tank");
    bed.ok("pool set scan_rate=none tank");
    bed.ok("pool wait -t scrub tank");
    assert!(bed.ok("pool status tank").contains("scan: scrub repaired 0B in "));

    // Data that was just verified is not verified again.
    let all = scan(&bed, "scrub")["examined"].as_u64().unwrap();
    bed.ok("pool scrub -w --since 1d tank");
    let since = scan(&bed, "scrub")["examined"].as_u64().unwrap();
    assert!(since < all / 2, "{since} of {all}");
    bed.ok("pool set scrub=weekly tank");
    assert_eq!(bed.ok("pool set scrub_window=22:00-6:00 tank"), "");
    assert_eq!(bed.ok("pool get -Hp -o value scrub,scrub_window,scan_rate tank"), "weekly\n22:00-06:00\n0\n");
}

#[test]
fn a_device_is_replaced_healthy_or_missing() {
    let Some(bed) = Bed::new("a_device_is_replaced_healthy_or_missing") else { return };
    let devices = bed.devices("disks", 3, 128);
    let other = bed.devices("other", 3, 128);
    bed.create("tank", "raidz1", &devices);
    fill(&bed, 0..12);

    // Impossible requests: everything is told before anything is written.
    let small = bed.path("disks/small");
    File::create(&small).unwrap().set_len(80 * MIB).unwrap();
    let error = bed.fails(2, "pool replace tank disk0 DIR/disks/small");
    for part in ["cannot replace disk0 with ", "is too small: it has 83886080 bytes, 1", "not lost: "] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    fs::remove_file(small).unwrap();
    fs::write(bed.path("foreign"), [b"XFSB".to_vec(), vec![0; 128 * MIB as usize]].concat()).unwrap();
    let error = bed.fails(1, "pool replace tank disk0 DIR/foreign");
    assert!(error.contains("holds an XFS file system") && error.contains("wipefs -a"), "{error}");
    let error = bed.fails(1, &format!("pool replace tank disk0 {}", devices[1]));
    assert!(error.contains("belongs to the pool 'tank', which is imported"), "{error}");
    let error = bed.fails(1, "pool replace tank nosuch DIR/other/disk0");
    assert!(error.contains("no such device in pool"), "{error}");
    bed.fails(1, "pool replace tank disk0 DIR/nowhere");
    bed.fails(1, "pool replace tank disk0");
    let plan = bed.ok("pool replace -n tank disk0 DIR/other/disk0");
    for part in ["now:", "then:", &other[0], "stays in use until it has everything"] {
        assert!(plan.contains(part), "{part} is not in {plan}");
    }
    assert!(bed.ok("pool status tank").contains("scan: none requested"), "a dry run does nothing");

    bed.ok("pool set scan_rate=64K tank");
    bed.ok(&format!("pool replace tank {} {}", devices[0], other[0]));
    let status = bed.ok("pool status tank");
    for part in
        ["replacing-0 ", "(resilvering)", "scan: resilver in progress since ", "larder pool wait -t resilver"]
    {
        assert!(status.contains(part), "{part} is not in {status}");
    }
    let error = bed.fails(1, "pool replace tank disk1 DIR/other/disk0");
    assert!(error.contains("is imported"), "{error}");
    let error = bed.fails(1, &format!("pool replace tank {} {}", devices[0], other[1]));
    assert!(error.contains("being replaced already"), "{error}");

    // Called off, and done.
    until(&bed, "begun", |_| scan(&bed, "resilver")["repaired"].as_u64() > Some(0));
    bed.ok(&format!("pool detach tank {}", other[0]));
    let status = bed.ok("pool status tank");
    assert!(status.contains("state: ONLINE") && !status.contains("replacing"), "{status}");
    until(&bed, "canceled", |status| status.contains("resilver canceled on "));
    bed.ok("pool set scan_rate=none tank");
    bed.ok(&format!("pool replace -w tank {} {}", devices[0], other[0]));
    let status = bed.ok("pool status -P tank");
    assert!(status.contains(&other[0]) && !status.contains(&devices[0]), "{status}");
    assert!(status.contains("state: ONLINE") && status.contains("scan: resilvered "), "{status}");
    assert_eq!(bed.ok("pool import -d DIR/disks"), "no pools available to import\n", "the old one is free");

    // A disk that is gone, and another at its path.
    bed.ok("pool export tank");
    fs::rename(&other[0], &devices[0]).unwrap();
    fs::remove_file(&devices[1]).unwrap();
    let note = bed.ok("pool import -d DIR/disks tank");
    assert!(note.contains("is missing") && note.contains("larder pool replace tank "), "{note}");
    let status = bed.ok("pool status tank");
    assert!(status.contains("UNAVAIL") && status.contains("larder pool replace tank "), "{status}");
    let error = bed.fails(1, "pool replace tank disk1");
    assert!(error.contains("cannot replace disk1"), "{error}");
    File::create(&devices[1]).unwrap().set_len(128 * MIB).unwrap();
    bed.ok("pool replace -w tank disk1");
    assert!(bed.ok("pool status tank").contains("state: ONLINE"));
    bed.ok("pool offline tank disk2");
    whole(&bed, 0..12);
}

#[test]
fn a_device_that_returns_is_taken_back_by_itself() {
    let Some(bed) = Bed::new("a_device_that_returns_is_taken_back_by_itself") else { return };
    let devices = bed.devices("disks", 2, 128);
    bed.create("tank", "mirror", &devices);
    fill(&bed, 0..4);
    bed.ok("pool export tank");
    let away = bed.path("away");
    fs::rename(&devices[1], &away).unwrap();
    bed.ok("pool import -d DIR/disks tank");
    fill(&bed, 4..8);
    assert!(bed.ok("pool status tank").contains("it comes back by itself"));

    // Something else at its place is left alone.
    File::create(&devices[1]).unwrap().set_len(128 * MIB).unwrap();
    pause(Duration::from_secs(4));
    assert!(bed.ok("pool status tank").contains("state: DEGRADED"));
    let error = bed.fails(1, &format!("pool online tank {}", devices[1]));
    assert!(
        error.contains("it has another label, or none") && error.contains("larder pool replace tank"),
        "{error}"
    );
    fs::rename(&away, &devices[1]).unwrap();
    until(&bed, "back", |status| status.contains("state: ONLINE"));
    bed.ok("pool offline tank disk0");
    whole(&bed, 0..8);

    // One that lies elsewhere now says by its label which one it is.
    bed.ok("pool export tank");
    let bed_disk = bed.path("elsewhere");
    bed.ok("pool import -d DIR/disks tank");
    bed.ok("pool online tank disk0");
    bed.ok("pool wait -t resilver tank");
    bed.ok("pool export tank");
    fs::rename(&devices[0], &bed_disk).unwrap();
    bed.ok("pool import -d DIR/disks tank");
    bed.ok("pool online tank DIR/elsewhere");
    bed.ok("pool wait -t resilver tank");
    let status = bed.ok("pool status -P tank");
    assert!(status.contains("state: ONLINE") && status.contains("/elsewhere"), "{status}");
}

#[test]
fn a_spare_takes_the_place_of_a_device_that_fails() {
    let Some(bed) = Bed::new("a_spare_takes_the_place_of_a_device_that_fails") else { return };
    let mut devices = bed.devices("disks", 4, 128);
    // A device on a file system that is too small for it fails when that is full.
    fs::create_dir(bed.path("narrow")).unwrap();
    let narrow = bed.path("narrow");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &narrow, "tmpfs", flags, Some(c"size=12m")).unwrap();
    let failing = narrow.join("disk").to_str().unwrap().to_owned();
    File::create(&failing).unwrap().set_len(128 * MIB).unwrap();
    let spare = devices.pop().unwrap();
    let three = devices[..2].join(" ");
    bed.ok(&format!("pool create -m DIR/mnt tank raidz1 {three} {failing} spare {spare}"));
    let status = bed.ok("pool status tank");
    assert!(status.contains("\tspares\n") && status.contains("  AVAIL"), "{status}");
    assert_eq!(json(&bed)["spares"][&spare]["state"], "AVAIL");

    // Spares come and go.
    let plan = bed.ok(&format!("pool remove -n tank {spare}"));
    assert!(plan.contains("spares"), "{plan}");
    bed.ok(&format!("pool remove tank {spare}"));
    assert!(!bed.ok("pool status tank").contains("spares"));
    let plan = bed.ok("pool remove -n tank disk0");
    assert!(plan.contains("disk0 leaves when what it holds is elsewhere"), "{plan}");
    bed.ok(&format!("pool add tank spare {spare}"));
    let error = bed.fails(1, &format!("pool add tank spare {spare}"));
    assert!(error.contains("is imported"), "{error}");

    fill(&bed, 0..40);
    let status =
        until(&bed, "replaced", |status| status.contains("state: ONLINE") && status.contains("resilvered"));
    assert!(!status.contains("AVAIL") && status.contains(&spare), "{status}");
    bed.ok("pool export tank");
    bed.ok("pool import -d DIR/disks tank");
    bed.ok("pool offline tank disk0");
    whole(&bed, 0..40);
}

#[test]
fn mirrors_get_a_device_more_or_less_and_pools_a_group() {
    let Some(bed) = Bed::new("mirrors_get_a_device_more_or_less_and_pools_a_group") else { return };
    let devices = bed.devices("disks", 5, 128);
    bed.create("tank", "", &devices[..1]);
    fill(&bed, 0..12);
    let error = bed.fails(2, "pool detach tank disk0");
    assert!(error.contains("cannot detach disk0") && error.contains("what to do: "), "{error}");
    let plan = bed.ok(&format!("pool attach -n tank disk0 {}", devices[1]));
    assert!(plan.contains("risk: no loss") && plan.contains("risk: 1 loss is survived"), "{plan}");
    bed.ok(&format!("pool attach -w tank disk0 {}", devices[1]));
    let status = bed.ok("pool status tank");
    for part in ["mirror-0", "state: ONLINE", "risk: 1 more loss is survived"] {
        assert!(status.contains(part), "{part} is not in {status}");
    }
    bed.ok(&format!("pool attach -w tank disk0 {}", devices[2]));
    assert_eq!(json(&bed)["survives"], 2);
    bed.ok("pool offline tank disk0");
    bed.ok("pool offline tank disk1");
    whole(&bed, 0..12);
    bed.ok("pool online tank disk0 disk1");
    bed.ok("pool wait -t resilver tank");

    let plan = bed.ok("pool detach -n tank disk0");
    assert!(plan.contains("1 loss less is survived"), "{plan}");
    bed.ok("pool detach tank disk0");
    bed.ok("pool wait -t resilver tank");
    assert!(!bed.ok("pool status -P tank").contains(&devices[0]));

    // A group must be as safe as what is there.
    let error = bed.fails(2, &format!("pool add tank {}", devices[3]));
    assert!(error.contains("the single survives 0 losses, the pool's groups 1"), "{error}");
    let line = format!("pool add -n tank mirror {} {}", devices[3], devices[4]);
    let plan = bed.ok(&line);
    assert!(plan.contains("now:") && plan.contains("then:") && !plan.contains("less"), "{plan}");
    let size = || bed.ok("pool get -Hp -o value size tank").trim().parse::<u64>().unwrap();
    let before = size();
    bed.ok(&line.replace(" -n", ""));
    assert!(size() > before * 3 / 2, "{before}, then {}", size());
    assert!(bed.ok("pool status tank").contains("mirror-1"));
    fill(&bed, 12..60);
    let error = bed.fails(1, &format!("pool attach tank disk9 {}", devices[0]));
    assert!(error.contains("disk9"), "{error}");
    bed.ok("pool offline tank disk1");
    bed.ok("pool offline tank disk4");
    whole(&bed, 0..60);
    let history = bed.ok("pool history tank");
    for part in ["pool attach -w tank disk0", "pool detach tank disk0", "pool add tank mirror"] {
        assert!(history.contains(part), "{part} is not in {history}");
    }
}

#[test]
fn what_a_read_finds_wrong_is_written_anew_and_a_device_that_fails_is_told_about() {
    let name = "what_a_read_finds_wrong_is_written_anew_and_a_device_that_fails_is_told_about";
    let Some(bed) = Bed::new(name) else { return };
    let devices = bed.devices("disks", 2, 128);
    bed.ok(&format!("pool create -m DIR/mnt tank mirror {} fault:{}", devices[0], devices[1]));
    fill(&bed, 0..12);
    bed.ok("pool export tank");
    assert!(rot(&devices[0]) > 6 * MIB);
    bed.ok(&format!("pool import -d DIR/disks/disk0 -d fault:{} tank", devices[1]));
    let read = || {
        for seed in 0..12 {
            let bytes = fs::read(bed.path(&format!("mnt/{seed}"))).unwrap();
            assert!(bytes == noise(seed, MIB as usize), "{seed}");
        }
    };
    read();
    let status = until(&bed, "found out", |status| status.contains("Devices gave wrong data"));
    assert!(status.contains("action: larder pool scrub -w tank && larder pool clear tank"), "{status}");

    // Writes that fail put a device out of use; once it is well again it is taken back.
    bed.ok("pool scrub -w tank");
    bed.ok("pool clear tank");
    fs::write(format!("{}.faults", devices[1]), "error write\n").unwrap();
    pause(Duration::from_millis(300));
    fill(&bed, 12..16);
    let status = bed.ok("pool status tank");
    for part in ["FAULTED", "state: DEGRADED", "larder pool replace tank ", "larder pool clear tank "] {
        assert!(status.contains(part), "{part} is not in {status}");
    }
    bed.ok("pool sync tank");
    let events = bed.ok("pool events tank");
    for part in ["checksum", "healed", "scrub_finish", "statechange"] {
        assert!(events.contains(part), "{part} is not in {events}");
    }
    fs::write(format!("{}.faults", devices[1]), "").unwrap();
    pause(Duration::from_millis(300));
    bed.ok(&format!("pool clear tank fault:{}", devices[1]));
    bed.ok("pool wait -t resilver tank");
    assert!(bed.ok("pool status tank").contains("state: ONLINE"));
    bed.ok("pool offline tank disk0");
    bed.ok("pool export tank");
    bed.ok("pool import -d DIR/disks tank");
    read();
}

/// Where 4 KiB that a file holds lie on a device: the sector that they are in.
fn sector_of(device: &str, bytes: &[u8]) -> u64 {
    let image = fs::read(device).unwrap();
    let at = image.windows(4096).position(|window| window == bytes).expect("they are there");
    at as u64 / 4096 * 4096
}

#[test]
fn the_last_good_disk_is_replaced_but_for_what_cannot_be_read_and_somebody_accepts_that() {
    let name = "the_last_good_disk_is_replaced_but_for_what_cannot_be_read_and_somebody_accepts_that";
    let Some(bed) = Bed::new(name) else { return };
    let (old, new) = (bed.devices("disks", 1, 128).remove(0), bed.devices("other", 1, 128).remove(0));
    bed.ok(&format!("pool create -m DIR/mnt tank fault:{old}"));
    fill(&bed, 0..12);
    bed.ok("pool export tank");
    let bad = sector_of(&old, &noise(7, MIB as usize)[300 << 10..304 << 10]);
    fs::write(format!("{old}.faults"), format!("error read at={bad}..{}\n", bad + 4096)).unwrap();
    bed.ok(&format!("pool import -d fault:{old} tank"));
    // One record of one file.
    let read = || {
        for seed in 0..12 {
            let (file, held) =
                (File::open(bed.path(&format!("mnt/{seed}"))).unwrap(), noise(seed, MIB as usize));
            for at in (0..MIB).step_by(128 << 10) {
                let mut bytes = vec![0; 128 << 10];
                let (lost, read) = (seed == 7 && at == 256 << 10, file.read_exact_at(&mut bytes, at));
                assert_eq!(read.is_err(), lost, "file {seed} at {at}");
                assert!(lost || bytes == held[at as usize..][..128 << 10], "file {seed} at {at}");
            }
        }
    };
    let output = bed.run(&format!("pool replace -w tank {old} {new}"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    let way_out = format!("larder pool detach --accept-loss tank fault:{old}");
    assert!(told.contains("could not be read") && told.contains(&way_out), "{told}");
    let status = until(&bed, "named", |status| status.contains("/mnt/7\n"));
    for part in ["state: ONLINE", "replacing-0 ", "(waiting: ", "with 1 errors on ", &way_out] {
        assert!(status.contains(part), "{part} is not in {status}");
    }
    read();
    fill(&bed, 20..22);
    let error = bed.fails(1, &format!("pool detach tank {old}"));
    assert!(error.contains("has all of it but ") && error.contains("--accept-loss"), "{error}");
    let error = bed.fails(2, &format!("pool detach --accept-loss tank {new}"));
    assert!(error.contains("nothing replaces it"), "{error}");

    // It waits over an import, and is as good as the old one where that is gone.
    bed.ok("pool export tank");
    let error = bed.fails(1, &format!("pool import -d {new} tank"));
    assert!(
        error.contains("waits to replace") && error.contains("larder pool import --accept-loss tank"),
        "{error}"
    );
    assert!(bed.ok(&format!("pool import -d {new}")).contains("--accept-loss tank"));
    fs::copy(&new, bed.path("copy")).unwrap();
    bed.ok("pool import --accept-loss -d DIR/copy tank");
    read();
    bed.ok("pool export tank");
    fs::remove_file(bed.path("copy")).unwrap();

    let told = bed.ok(&format!("pool import -d fault:{old} -d {new} tank"));
    assert!(told.contains("waits to replace a device that could not be read whole"), "{told}");
    bed.ok("pool resilver tank");
    bed.ok("pool wait -t resilver tank");
    assert!(bed.ok("pool status tank").contains("(waiting: "), "tried again, in vain");
    let plan = bed.ok(&format!("pool detach -n --accept-loss tank {old}"));
    assert!(plan.contains("that could not be read") && plan.contains("is left as it is"), "{plan}");
    bed.ok(&format!("pool detach --accept-loss tank {old}"));
    let status = bed.ok("pool status -P tank");
    assert!(status.contains(&new) && !status.contains("replacing") && !status.contains(&old), "{status}");
    read();
    bed.ok("pool export tank");
    bed.ok(&format!("pool import -d {new} tank"));
    read();
    let told = bed.run("pool scrub -w tank");
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    fs::remove_file(bed.path("mnt/7")).unwrap();
    bed.ok("pool sync tank");
    // Damage that the scrub found is still looked for.
    until(&bed, "forgotten", |status| status.contains("errors: No known data errors"));
    let told = bed.ok(&format!("pool labelclear -f {old}"));
    assert!(told.contains("watching for 10 s"), "{told}");
}

/// Mounts a tmpfs of `mib` MiB in the bed, or gives the one that is there that size.
fn tight(bed: &Bed, mib: u64) {
    fs::create_dir_all(bed.path("tight")).unwrap();
    let is_there =
        fs::read_to_string("/proc/self/mounts").unwrap().contains(bed.path("tight").to_str().unwrap());
    let options = format!("size={mib}m{}", if is_there { ",remount" } else { "" });
    let mut mount = std::process::Command::new("mount");
    let status = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(bed.path("tight")).status();
    assert!(status.unwrap().success());
}

/// Writes files from number `from` on, each synced, until one is refused; gives its number and errno.
fn write_until_refused(bed: &Bed, from: u64) -> (u64, Option<i32>) {
    for seed in from..from + 500 {
        let written = File::create(bed.path(&format!("mnt/{seed}"))).and_then(|file| {
            file.write_all_at(&noise(seed, MIB as usize), 0)?;
            file.sync_all()
        });
        if let Err(error) = written {
            return (seed, error.raw_os_error());
        }
    }
    panic!("it never gets full");
}

#[test]
fn a_pool_whose_file_system_is_full_is_read_says_so_and_goes_on_when_there_is_room() {
    const ENOSPC: Option<i32> = Some(28);
    let Some(bed) = Bed::new("a_pool_whose_file_system_is_full_goes_on") else { return };
    tight(&bed, 40);
    let devices = bed.devices("tight", 1, 256);
    bed.create("tank", "", &devices);
    let (refused, errno) = write_until_refused(&bed, 0);
    assert_eq!(errno, ENOSPC);
    assert!(refused > 4);
    let mounted = bed.path("mnt");
    assert_eq!(fs::write(mounted.join("more"), b"more").unwrap_err().raw_os_error(), ENOSPC);
    let status = bed.ok("pool status tank");
    assert!(status.contains("SUSPENDED") && status.contains("disk0 is full"), "{status}");
    assert!(status.contains("larder pool clear tank"), "{status}");
    assert_eq!(bed.run("pool check tank").status.code(), Some(2));
    assert!(bed.ok("pool events tank").contains("pool_suspend"));
    for seed in 0..refused {
        assert!(fs::read(mounted.join(seed.to_string())).unwrap() == noise(seed, MIB as usize), "{seed}");
    }
    let error = bed.fails(1, "pool clear tank");
    assert!(error.contains("full") && error.contains("make room"), "{error}");
    let error = bed.fails(1, "pool export tank");
    assert!(error.contains("would be dropped") && error.contains("export -f tank"), "{error}");

    tight(&bed, 80);
    bed.ok("pool clear tank");
    assert!(bed.ok("pool status tank").contains("ONLINE"));
    let (again, errno) = write_until_refused(&bed, refused);
    assert_eq!(errno, ENOSPC);
    assert!(again > refused + 4);
    let told = bed.ok("pool export -f tank");
    assert!(told.contains("not marked as exported") && told.contains("--take-over tank"), "{told}");
    let error = bed.fails(1, "pool import -d DIR/tight tank");
    assert!(error.contains("full") && error.contains("tight/disk0"), "{error}");
    tight(&bed, 120);
    bed.ok("pool import -d DIR/tight tank");
    for seed in 0..again {
        assert!(fs::read(mounted.join(seed.to_string())).unwrap() == noise(seed, MIB as usize), "{seed}");
    }
    bed.ok("pool export tank");
}
