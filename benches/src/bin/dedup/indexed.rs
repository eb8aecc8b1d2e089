//! A pool whose index has far more fingerprints than its memory has room for.

use crate::corpus::Corpus;
use crate::report::{Asked, Report, Unit};
use crate::runs::{Bed, RAIDZ2, Site, copy, find, storing, warm, write_unique};
use larder_benches::MIB;
use larder_benches::content::Content;
use larder_benches::daemon::{POOL, pause};
use larder_device::{Device, Entropy, FileDevice, OpenMode, SeededEntropy, SystemWorkers};
use larder_format::Fingerprint;
use larder_pool::ImportOptions;
use larder_pool::Pool;
use larder_pool::open::{Scan, assemble, scan};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Fingerprints between two commits.
const COMMIT: u64 = 1 << 20;
/// Polls within which the index must have caught up after an import.
const PATIENCE: usize = 1200;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longer than it takes to discard a stream.
const DISCARDS: Duration = Duration::from_secs(2);
/// Bytes of a record.
const RECORD: usize = 128 << 10;

/// The word for a pool with `mib` of memory.
fn memory(mib: u64) -> String {
    format!("memory={mib}M")
}

/// Puts `count` fingerprints that no record has into the index of a pool that nobody has imported.
fn load(files: &[PathBuf], count: u64) {
    let found = files.iter().map(|path| {
        let device = FileDevice::open(path, OpenMode::Exclusive).expect("the file can be used");
        let device: Arc<dyn Device> = Arc::new(device);
        match scan(&device) {
            Scan::Member(found) => *found,
            _ => panic!("{} belongs to the pool", path.display()),
        }
    });
    let plan = assemble(found.collect()).pop().expect("the files are a pool");
    let world = larder_benches::world(Arc::new(SystemWorkers::new().expect("threads can be made")));
    let pool = Pool::import(world, plan, &ImportOptions::default()).expect("it can be imported");
    assert!(pool.dedup_figures().awake, "a dataset has dedup on");
    let rng = SeededEntropy::new(1);
    let print = || {
        let halves = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
        Fingerprint::new(halves.to_be_bytes())
    };
    let mut left = count;
    while left > 0 {
        let prints: Vec<_> = (0..left.min(COMMIT)).map(|_| print()).collect();
        pool.index_absent(&prints).expect("there is room");
        pool.commit().expect("a commit");
        pool.tick().expect("it is cleaned");
        left -= prints.len() as u64;
        if left.is_multiple_of(16 * COMMIT) || left == 0 {
            let figures = pool.dedup_figures();
            eprintln!("{} fingerprints to go: {} entries, 1 of {}", left, figures.entries, figures.sampling);
        }
    }
    // Merges left by so many fingerprints are no part of what a stream costs.
    pool.drain_index().expect("there is room");
    assert_eq!(pool.dedup_figures().dropped, 0);
    pool.commit_export().expect("a commit");
}

/// A figure of the index.
fn index(bed: &Bed, name: &str) -> f64 {
    status(bed)[name].as_f64().expect("a number")
}

/// Status of the index, from `pool dedup -j`.
fn status(bed: &Bed) -> serde_json::Value {
    let told = bed.daemon().run(&["pool", "dedup", "-n", "-j", POOL]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("it tells JSON");
    find(&told, "index").cloned().expect("it tells of the index")
}

/// Exports and imports the pool: no neighbourhood is in memory any more, the index alone leads to what is there. Waits
/// until it has taken up what was stored last.
fn forget(bed: &Bed) {
    bed.daemon().import_again(&bed.mountpoint);
    let is_behind = || status(bed)["catching_up"].as_bool().expect("a yes or no");
    for _ in 0..PATIENCE {
        if !is_behind() {
            return;
        }
        pause(POLL_INTERVAL);
    }
    panic!("the index still takes up what was stored before");
}

/// Waits until removed files are freed and their space is discarded, before anything else is measured.
fn await_discards(bed: &Bed) {
    while bed.daemon().figure("freeing") > 0 {
        pause(POLL_INTERVAL);
    }
    pause(DISCARDS);
}

/// Streams into datasets with and without `dedup` of one pool with `count` fingerprints and `mib` of memory, and the
/// corpus into it and into one that has none.
pub fn indexed(
    site: &Site,
    (count, mib): (u64, u64),
    stream_mib: usize,
    corpus: &Corpus,
    report: &mut Report,
) {
    let bytes = stream_mib * MIB;
    // An entry of the index is in three replicated segments, and may be in some that are rewritten; of records nothing
    // stays but the corpus.
    let room = 2 * corpus.bytes + 8 * bytes as u64 + (4 << 30) + 60 * count;
    // Counted since import: by the first copy, and by the second.
    let saved = |bed: &Bed| {
        ["corpus", "corpus-again"].map(|name| {
            forget(bed);
            warm(&corpus.path);
            copy(&corpus.path, &bed.mountpoint.join(name));
            bed.daemon().sync();
            index(bed, "saved")
        })
    };
    let properties = ["compression=lz4", "dedup=on"];
    let all = {
        let bed = Bed::new(site, RAIDZ2, 4 * corpus.bytes + (2 << 30), &properties);
        bed.daemon().run(&["pool", "set", &memory(mib), POOL]);
        saved(&bed)
    };
    let bed = Bed::new(site, RAIDZ2, room, &properties);
    bed.daemon().run(&["pool", "set", &memory(mib), POOL]);
    bed.daemon().run(&["fs", "create", "-o", "dedup=off", &format!("{POOL}/off")]);
    bed.daemon().run(&["pool", "export", POOL]);
    load(&bed.devices, count);
    bed.daemon().run(&["pool", "import", "-d", bed.folder.to_str().expect("our own path"), POOL]);
    report.add("fingerprints of which the index keeps one", Unit::Times, index(&bed, "sampling"));
    report.add("memory of the index", Unit::Bytes, index(&bed, "memory"));
    report.add("disk of the index", Unit::Bytes, index(&bed, "disk"));
    let base = Content::Random.bytes(64 * MIB);
    for round in 0..site.rounds {
        let store = |name: &str| {
            storing(bytes, Some(bed.daemon().pid()), || {
                write_unique(&bed.mountpoint.join(name), &base, stream_mib, 1 + round as u64);
                bed.daemon().sync();
            })
        };
        let mut order = [("off/first", "indexed: random, off"), ("first", "indexed: random, on")];
        if round % 2 == 1 {
            order.reverse();
        }
        for (name, figure) in order {
            report.rate(figure, bytes, store(name));
        }
        forget(&bed);
        report.rate("indexed: random again, on", bytes, store("again"));
        let found = index(&bed, "hits") * RECORD as f64 / bytes as f64;
        report.add("indexed: duplicates of a stream found", Unit::Part, found);
        for name in ["off/first", "first", "again"] {
            std::fs::remove_file(bed.mountpoint.join(name)).expect("it is there");
        }
        bed.daemon().sync();
        await_discards(&bed);
    }
    let [first, again] = saved(&bed);
    report.add("indexed: of the savings within the corpus", Unit::Part, first / all[0]);
    report.add("indexed: of the savings in its second copy", Unit::Part, again / all[1]);
    report.add("look-ups left out", Unit::Times, index(&bed, "refused"));
    use Asked::Least;
    report.compare("large index: on / off", "indexed: random, on", "indexed: random, off", Least(0.9));
    report.compare(
        "large index: second copy / first",
        "indexed: random again, on",
        "indexed: random, on",
        Least(2.0),
    );
    report.ask("large index: duplicates found", "indexed: duplicates of a stream found", Least(0.95));
    report.ask(
        "large index: savings within the corpus",
        "indexed: of the savings within the corpus",
        Least(0.95),
    );
    report.ask(
        "large index: savings in its second copy",
        "indexed: of the savings in its second copy",
        Least(0.95),
    );
}
