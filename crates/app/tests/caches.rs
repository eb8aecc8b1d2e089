//! Cache devices on real mounts: they come and go, are told of, and nothing rests on them.

use crate::bed::{Bed, MIB, noise, wait_until};
use std::fs::{self, File};

#[allow(dead_code, reason = "other tests need the rest")]
mod bed;

const FILES: u64 = 60;
/// A record each, for which somebody waits.
const LEN: usize = 100 << 10;

fn fill(bed: &Bed) {
    for file in 0..FILES {
        fs::write(bed.path(&format!("mnt/{file}")), noise(file, LEN)).unwrap();
    }
    bed.ok("pool sync tank");
}

/// Reads all of it, and compares.
fn whole(bed: &Bed) {
    for file in 0..FILES {
        let found = fs::read(bed.path(&format!("mnt/{file}"))).unwrap();
        assert!(found == noise(file, LEN), "file {file} has other content");
    }
}

fn status(bed: &Bed) -> serde_json::Value {
    let whole: serde_json::Value = serde_json::from_str(&bed.ok("pool status -j tank")).unwrap();
    whole["pools"]["tank"].clone()
}

/// Copies of before are known: until then none are made.
fn restored(bed: &Bed) {
    wait_until("found again", || status(bed)["read_cache"]["restoring"] == 0);
}

fn again(bed: &Bed) {
    bed.ok("pool export tank");
    bed.ok("pool import -d DIR/disks -d DIR/fast tank");
    restored(bed);
}

fn hits(bed: &Bed) -> u64 {
    status(bed)["read_cache"]["hits"].as_u64().unwrap()
}

/// Reads until nearly all comes from copies.
fn warm(bed: &Bed) {
    wait_until("read from copies", || {
        again(bed);
        whole(bed);
        hits(bed) >= FILES
    });
}

/// The text of status on one line.
fn told(bed: &Bed) -> String {
    bed.ok("pool status tank").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn caches_come_and_go_and_nothing_is_lost_with_them() {
    let Some(bed) = Bed::new("caches_come_and_go_and_nothing_is_lost_with_them") else { return };
    let disks = bed.devices("disks", 3, 128);
    let fast = bed.devices("fast", 2, 128);
    let shape = bed.ok(&format!("pool create -n -m DIR/mnt tank {} cache {}", disks[0], fast[0]));
    assert!(shape.contains(&format!("\tcache\n\t  {}\n", fast[0])), "{shape}");
    bed.ok(&format!("pool create -m DIR/mnt tank {} cache {}", disks[0], fast[0]));
    let text = bed.ok("pool status tank");
    assert!(text.contains("\tcache\n\t  ") && text.contains("\n cache: "), "{text}");
    assert!(text.contains("risk: no loss of a device is survived"), "{text}");
    let error = bed.fails(1, &format!("pool add tank cache {}", fast[0]));
    assert!(error.contains("is imported"), "{error}");
    fill(&bed);
    warm(&bed);
    assert!(status(&bed)["l2cache"][&fast[0]]["alloc_space"].as_u64() > Some(0));
    assert!(bed.ok("pool iostat -v tank").contains("\ncache  "));
    assert!(bed.ok("pool list -v tank").contains("\ncache  "));

    // Nonsense is refused with the way out.
    for (line, way) in [
        (format!("pool replace tank {} {}", fast[0], fast[1]), "larder pool remove tank"),
        (format!("pool attach tank {} {}", fast[0], fast[1]), "larder pool add tank cache"),
        (format!("pool detach tank {}", fast[0]), "larder pool remove tank"),
        (format!("pool offline tank {}", fast[0]), "larder pool add tank cache"),
        (format!("pool trim tank {}", fast[0]), "written anew"),
    ] {
        let error = bed.run(&line);
        let text = String::from_utf8(error.stderr).unwrap();
        assert!(
            !error.status.success() && text.contains("is a cache") && text.contains(way),
            "{line}: {text}"
        );
    }
    let shape = bed.ok(&format!("pool add -n tank cache {}", fast[1]));
    let (now, then) = shape.split_once("then:").unwrap();
    assert!(!now.contains(&fast[1]) && then.contains(&fast[1]), "{shape}");
    bed.ok(&format!("pool add tank cache {}", fast[1]));
    bed.ok("pool clear tank");
    let told = bed.ok(&format!("pool online tank {}", fast[1]));
    assert!(told.contains("in use already"), "{told}");
    bed.ok(&format!("pool remove tank {}", fast[1]));
    assert_eq!(status(&bed)["l2cache"].as_object().unwrap().len(), 1);

    // Read only.
    bed.ok("pool export tank");
    bed.ok("pool import -o readonly=on -d DIR/disks -d DIR/fast tank");
    restored(&bed);
    whole(&bed);
    let figures = status(&bed)["read_cache"].clone();
    assert!(figures["hits"].as_u64() > Some(0) && figures["written_bytes"] == 0, "{figures}");
    again(&bed);

    // One is not there at an import, and comes back.
    bed.ok("pool export tank");
    fs::rename(&fast[0], bed.path("away")).unwrap();
    let listed = bed.ok("pool import -d DIR/disks");
    assert!(listed.contains("state: ONLINE") && !listed.contains("status:"), "{listed}");
    assert!(listed.contains("\tcache\n\t  ") && listed.contains("UNAVAIL"), "{listed}");
    let told = bed.ok("pool import -d DIR/disks -d DIR/fast tank");
    assert!(told.contains("nothing is lost with it"), "{told}");
    whole(&bed);
    let told = self::told(&bed);
    assert!(told.contains("Nothing is lost: it had copies only"), "{told}");
    let text = bed.ok("pool status tank");
    assert!(text.contains("state: ONLINE"), "{text}");
    assert!(text.contains("larder pool remove tank"), "{text}");
    assert!(text.contains("UNAVAIL") && !text.contains("\n cache: "), "{text}");
    assert!(bed.ok("pool check tank").contains("tank: healthy"));
    fs::rename(bed.path("away"), &fast[0]).unwrap();
    wait_until("back", || status(&bed)["l2cache"][&fast[0]]["state"] == "ONLINE");
    restored(&bed);
    assert!(status(&bed)["read_cache"]["blocks"].as_u64() >= Some(FILES));

    // Gone for good, and another in its place.
    bed.ok("pool export tank");
    fs::remove_file(&fast[0]).unwrap();
    bed.ok("pool import -d DIR/disks -d DIR/fast tank");
    let guid = status(&bed)["l2cache"].as_object().unwrap().keys().next().unwrap().clone();
    assert!(bed.ok("pool status tank").contains(&format!("larder pool remove tank {}", fast[0])));
    File::create(&fast[0]).unwrap().set_len(128 * MIB).unwrap();
    bed.ok(&format!("pool add tank cache {}", fast[0]));
    // Its path is now another's.
    assert!(bed.ok("pool status tank").contains(&format!("larder pool remove tank {guid}")));
    bed.ok(&format!("pool remove tank {guid}"));
    let left = status(&bed);
    assert!(left["status"].is_null() && left["l2cache"][&fast[0]]["state"] == "ONLINE", "{left}");
    warm(&bed);
    bed.ok("pool destroy --now tank");
    bed.ok(&format!("pool create -m DIR/mnt tank mirror {} {} cache {}", disks[1], disks[2], fast[0]));
}

#[test]
fn properties_say_what_is_copied_and_how_much() {
    let Some(bed) = Bed::new("properties_say_what_is_copied_and_how_much") else { return };
    let disks = bed.devices("disks", 1, 128);
    let fast = bed.devices("fast", 1, 128);
    bed.ok(&format!(
        "pool create -o cache_writes=0 -O secondarycache=metadata -m DIR/mnt tank {} cache {}",
        disks[0], fast[0]
    ));
    assert!(bed.fails(2, "pool set cache_writes=much tank").contains("0 to 100"));
    let filled = || status(&bed)["read_cache"]["blocks"].as_u64().unwrap();
    bed.ok("fs create tank/a");
    for (at, dataset) in ["mnt", "mnt/a"].into_iter().enumerate() {
        for file in 0..FILES {
            let path = bed.path(&format!("{dataset}/{file}"));
            fs::write(path, noise(file + 1000 * at as u64, LEN)).unwrap();
        }
    }
    let read = || {
        for dataset in ["mnt", "mnt/a"] {
            (0..FILES).for_each(|file| drop(fs::read(bed.path(&format!("{dataset}/{file}"))).unwrap()));
        }
    };
    again(&bed);
    read();
    again(&bed);
    assert_eq!(filled(), 0, "nothing may be written");
    bed.ok("pool set cache_writes=30% tank");
    assert!(bed.ok("pool get cache_writes tank").contains("0.30"));
    wait_until("metadata copied", || {
        again(&bed);
        read();
        again(&bed);
        filled() > 0
    });
    let nodes = filled();
    assert!(nodes < FILES, "{nodes} blocks, of metadata alone");
    bed.ok("fs set secondarycache=all tank/a");
    assert!(bed.ok("fs get -r secondarycache tank").contains("metadata"));
    wait_until("copied", || {
        read();
        again(&bed);
        filled() >= nodes + FILES
    });
    assert!(filled() < 3 * FILES, "{} blocks: those of the one dataset, not of the other", filled());
}
