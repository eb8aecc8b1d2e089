//! Events, history of commands and damaged files of a pool, as its users meet them.
#[allow(dead_code, reason = "other tests need the rest")]
mod bed;

use bed::Bed;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// The last words of lines.
fn last_words(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.split_whitespace().last()).collect()
}

#[test]
fn commands_that_changed_a_pool_and_what_happened_to_it_are_kept_with_it() {
    let Some(bed) = Bed::new("chronicle") else { return };
    let devices = bed.devices("a", 2, 128);
    bed.create("tank", "mirror", &devices);
    bed.ok("fs create -o compression=lz4 tank/home");
    bed.ok("fs create -n tank/never");
    bed.ok("fs set quota=1G tank/home");
    bed.fails(1, "fs set quota=1G tank/nowhere");
    bed.ok("fs list");
    bed.ok("pool export tank");
    bed.ok("pool import -d DIR/a tank");
    let history = bed.ok("pool history tank");
    let lines: Vec<_> = history.lines().collect();
    assert_eq!(lines[0], "History for 'tank':");
    let commands: Vec<_> =
        lines[1..].iter().filter_map(|line| line.split_once(' ')).map(|(_, command)| command).collect();
    assert_eq!(commands.len(), 5, "{history}");
    assert!(commands[0].starts_with("larder pool create -m "), "{history}");
    assert_eq!(
        commands[1..4],
        [
            "larder fs create -o compression=lz4 tank/home",
            "larder fs set quota=1G tank/home",
            "larder pool export tank",
        ]
    );
    assert!(commands[4].starts_with("larder pool import -d "), "{history}");
    assert!(bed.ok("pool history -l tank").lines().nth(1).unwrap().contains("[user 0 (root) on "));
    assert!(bed.ok("pool history -i tank").contains("[internal pool_import]"));
    let json: serde_json::Value = serde_json::from_str(&bed.ok("pool history -j")).unwrap();
    assert_eq!(json["pools"][0]["commands"].as_array().unwrap().len(), 5);

    let events = bed.ok("pool events tank");
    assert_eq!(last_words(&events), ["CLASS", "pool_create", "pool_export", "pool_import"]);
    assert_eq!(bed.ok("pool events -H tank").lines().next().unwrap().split('\t').count(), 2);
    assert!(bed.ok("pool events -v").contains("pool = \"tank\""));
    bed.ok("pool events -c tank");
    assert_eq!(last_words(&bed.ok("pool events tank")), ["CLASS"]);
    // A crash loses what came after the last commit, and nothing else.
    bed.ok("pool sync tank");
    bed.kill_daemon();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mnt = bed.path("mnt");
    if mounts.contains(mnt.to_str().unwrap()) {
        let _ = rustix::mount::unmount(&mnt, rustix::mount::UnmountFlags::DETACH);
    }
    bed.ok("pool import -d DIR/a tank");
    assert_eq!(last_words(&bed.ok("pool events tank")), ["CLASS", "pool_import"]);
    assert!(bed.ok("pool history tank").contains("larder pool create"));
    bed.fails(1, "pool history nowhere");
}

#[test]
fn a_rotten_record_is_named_gives_eio_alone_and_is_forgotten_when_it_is_overwritten() {
    let Some(bed) = Bed::new("damage") else { return };
    let devices = bed.devices("a", 1, 128);
    bed.ok(&format!("pool create -m DIR/mnt -O compression=off -O recordsize=4096 tank {}", devices[0]));
    let marker: Vec<u8> =
        b"what rots is this very record of all\n".iter().copied().cycle().take(4096).collect();
    let content = [vec![1; 4096], marker.clone(), vec![3; 4096]].concat();
    fs::create_dir(bed.path("mnt/letters")).unwrap();
    fs::write(bed.path("mnt/letters/a"), &content).unwrap();
    fs::write(bed.path("mnt/letters/b"), &content[8192..]).unwrap();
    bed.ok("pool export tank");
    let device = File::options().read(true).write(true).open(&devices[0]).unwrap();
    let bytes = fs::read(&devices[0]).unwrap();
    let at = bytes.windows(64).position(|window| window == &marker[..64]).unwrap();
    device.write_all_at(&[0xff; 100], at as u64 + 5).unwrap();
    bed.ok("pool import -d DIR/a tank");
    assert!(bed.ok("pool status -v tank").contains("errors: No known data errors"));

    let file = File::options().read(true).write(true).open(bed.path("mnt/letters/a")).unwrap();
    let read = |offset: u64| {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, offset).map(|()| bytes)
    };
    assert_eq!(read(4096).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(read(0).unwrap(), content[..4096]);
    assert_eq!(read(8192).unwrap(), content[8192..]);
    assert_eq!(fs::read(bed.path("mnt/letters/b")).unwrap(), content[8192..]);
    let named = bed.ok("pool status -v tank");
    let path = bed.path("mnt/letters/a");
    let path = path.to_str().unwrap();
    assert!(named.contains("errors: Permanent errors have been detected in the following files:"), "{named}");
    assert!(named.contains(&format!("\n        {path}\n")), "{named}");
    assert!(bed.ok("pool status tank").contains("errors: 1 data errors, use '-v' for a list"));
    let events = bed.ok("pool events -v tank");
    assert!(events.contains("checksum") && events.contains(&format!("path = \"{path}\"")), "{events}");

    assert_eq!(file.write_at(b"part", 4100).unwrap_err().raw_os_error(), Some(5));
    file.write_all_at(&content[..4096], 4096).unwrap();
    file.sync_all().unwrap();
    assert_eq!(read(4096).unwrap(), content[..4096]);
    bed.ok("pool sync tank");
    assert!(bed.ok("pool status -v tank").contains("errors: No known data errors"));
}
