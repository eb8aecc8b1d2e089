//! Sharing by folder, as a trace counts it.

use crate::bed::{Bed, ROOT};
use crate::quota::dataset;
use crate::share::file;
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{BlockId, ByteLen, DatasetId, InodeId};
use larder_pool::pins::Phase;
use larder_pool::{Look, ROOT_DATASET, Split};
use larder_upkeep::gc::{Findings, Outcome, Sharing};
use larder_upkeep::{PassState, Task};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

const RECORD: usize = 4096;
/// The second name of a file.
const SECOND: &str = "one too";

fn noise(seed: u64, records: usize) -> Vec<u8> {
    SeededEntropy::new(seed).bytes(records * RECORD)
}

fn bed_with(dedup: &str) -> Bed {
    Bed::new(&[("recordsize", "4096"), ("dedup", dedup)])
}

/// Findings of a trace by folder.
struct Found {
    folders: Arc<Folders>,
    findings: Findings,
    parts: Vec<Sharing>,
}

impl Found {
    /// Figures of a folder, or of what is elsewhere.
    fn of(&self, dataset: DatasetId, path: Option<&str>) -> Option<Sharing> {
        let is_it = |(part, of): &(usize, &Sharing)| {
            of.dataset == dataset && self.folders.path(*part as u32).as_deref() == path.map(str::as_bytes)
        };
        self.parts.iter().enumerate().find(is_it).map(|(_, of)| *of)
    }

    /// References by folder of the root dataset, where there are any.
    fn references(&self) -> BTreeMap<String, u64> {
        let of =
            self.parts.iter().enumerate().filter(|(_, of)| of.dataset == ROOT_DATASET && of.references > 0);
        let name = |part| {
            self.folders.path(part).map_or("elsewhere".into(), |path| String::from_utf8(path).unwrap())
        };
        of.map(|(part, of)| (name(part as u32), of.references)).collect()
    }

    /// The sums of the parts of each dataset that saves something.
    fn sums(&self) -> Vec<Sharing> {
        let mut sums: BTreeMap<DatasetId, Sharing> = BTreeMap::new();
        for of in &self.parts {
            let sum = sums.entry(of.dataset).or_insert(Sharing { dataset: of.dataset, ..Sharing::default() });
            sum.references += of.references;
            sum.logical += of.logical;
            sum.allocated += of.allocated;
            sum.share += of.share;
        }
        sums.into_values().filter(|of| of.saved() > 0).collect()
    }

    /// Folders add up to datasets, as this trace tells them and one that does not know of folders.
    fn check_sums(&self, bed: &Bed) {
        let by_id = |findings: &Findings| {
            let mut sharing = findings.sharing.clone();
            sharing.sort_by_key(|of| of.dataset);
            sharing
        };
        assert_eq!(self.sums(), by_id(&self.findings));
        assert!(bed.upkeep.gc.start().unwrap());
        while bed.upkeep.gc.step(8).unwrap() {}
        assert!(bed.upkeep.gc.parts().is_none(), "that was another trace");
        let plain = bed.upkeep.gc.findings().unwrap();
        assert_eq!(self.sums(), by_id(&plain));
        assert_eq!(self.findings.histogram, plain.histogram);
        assert_eq!((plain.dead.blocks, plain.unshared), (0, 0), "one that counts by folder frees all");
        while bed.pool.free_step(64).unwrap() {}
        bed.pool.commit().unwrap();
        bed.check();
    }
}

/// Traces to the end; `between` comes before each step.
fn traced_with(bed: &Bed, depth: u32, effort: usize, mut between: impl FnMut()) -> Found {
    bed.pool.commit().unwrap();
    let folders = Folders::new(depth);
    assert!(bed.upkeep.gc.start_split(Arc::clone(&folders) as _).unwrap());
    assert!(!bed.upkeep.gc.start_split(Folders::new(depth)).unwrap(), "there is one at a time");
    loop {
        between();
        if !bed.upkeep.gc.step(effort).unwrap() {
            break;
        }
    }
    let findings = bed.upkeep.gc.findings().unwrap();
    assert_eq!(findings.outcome, Outcome::Done);
    while bed.pool.free_step(64).unwrap() {}
    bed.pool.commit().unwrap();
    let parts = bed.upkeep.gc.parts().unwrap();
    let split: Arc<dyn Any + Send + Sync> = Arc::clone(&parts.split) as _;
    assert!(Arc::ptr_eq(&split.downcast::<Folders>().unwrap(), &folders));
    Found { folders, findings, parts: parts.sharing.clone() }
}

fn traced(bed: &Bed, depth: u32) -> Found {
    traced_with(bed, depth, 8, || {})
}

fn rename(bed: &Bed, from: (NodeId, &str), to: (NodeId, &str)) {
    bed.mount.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), RenameFlags::default()).unwrap();
}

/// Folders inside each other, one of which is older than the one that it was moved into, and twins of some files.
fn sample(bed: &Bed) {
    file(bed, ROOT, "top", &noise(1, 3));
    let a = bed.dir(ROOT, "a");
    let one = file(bed, a, "one", &noise(2, 10));
    let b = bed.dir(a, "b");
    file(bed, b, "two", &noise(2, 10));
    file(bed, bed.dir(b, "c"), "three", &noise(3, 5));
    let x = bed.dir(ROOT, "x");
    file(bed, x, "five", &noise(4, 7));
    let d = bed.dir(ROOT, "d");
    file(bed, d, "four", &noise(3, 5));
    file(bed, d, "gone", &noise(5, 4));
    rename(bed, (ROOT, "x"), (bed.dir(ROOT, "new"), "x"));
    bed.mount.link(one, d, SECOND.as_bytes()).unwrap();
    let (_, node) = dataset(bed, "tank/twin", &[]);
    file(bed, bed.dir(node, "a"), "twin", &noise(2, 10));
    bed.pool.commit().unwrap();
    bed.pool.snapshot(ROOT_DATASET, "before").unwrap();
    bed.mount.unlink(d, b"gone").unwrap();
    while bed.mount.reap_step(1000).unwrap() {}
    bed.pool.commit().unwrap();
}

fn counts(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
    of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn folders_share_what_is_in_them_and_add_up_to_datasets() {
    let bed = bed_with("on");
    sample(&bed);
    let twin = bed.pool.datasets().iter().find(|of| of.last_name() == "twin").unwrap().id();
    for (depth, expected) in [
        (0, counts(&[("/", 40), ("elsewhere", 4)])),
        (1, counts(&[("/", 3), ("/a", 25), ("/d", 5), ("/new", 7), ("elsewhere", 4)])),
        (2, counts(&[("/", 3), ("/a", 10), ("/a/b", 15), ("/d", 5), ("/new/x", 7), ("elsewhere", 4)])),
        (
            9,
            counts(&[
                ("/", 3),
                ("/a", 10),
                ("/a/b", 10),
                ("/a/b/c", 5),
                ("/d", 5),
                ("/new/x", 7),
                ("elsewhere", 4),
            ]),
        ),
    ] {
        let found = traced(&bed, depth);
        assert_eq!(found.references(), expected, "depth {depth}");
        assert_eq!(found.folders.gaps(), Gaps::default());
        found.check_sums(&bed);
        let Some(a) = found.of(twin, Some("/a")) else { continue };
        // Three have each of its records.
        assert!(a.references == 10 && a.share.abs_diff(a.allocated / 3) <= 10, "{a:?}");
        let unique = found.of(ROOT_DATASET, Some("/")).unwrap();
        assert_eq!((unique.saved(), unique.logical), (0, 3 * RECORD as u64));
    }
}

#[test]
fn what_goes_or_moves_while_a_trace_runs_is_where_it_was() {
    let bed = bed_with("on");
    sample(&bed);
    let many: Vec<_> = (0..10).map(|i| bed.dir(ROOT, &format!("many{i}"))).collect();
    for i in 0..800 {
        file(&bed, many[i % 10], &format!("{i}"), &noise(i as u64 / 2, 1));
    }
    bed.pool.commit().unwrap();
    let before = expected(&bed, 2);
    assert_eq!((before["/a/b"], before["/d"], before["/many9"]), (15, 5, 80));
    let mut steps = 0;
    let found = traced_with(&bed, 2, 1, || {
        let b = bed.find("a/b").unwrap().node;
        if steps == 0 {
            bed.mount.unlink(b, b"two").unwrap();
            rename(&bed, (ROOT, "d"), (b, "d"));
        }
        for i in (0..800).skip(steps * 40).take(40) {
            match i % 3 {
                0 => bed.mount.unlink(many[i % 10], format!("{i}").as_bytes()).unwrap(),
                _ => rename(&bed, (many[i % 10], &format!("{i}")), (b, &format!("{i}"))),
            }
        }
        if bed.upkeep.gc.progress().is_some_and(|of| of.phase == Phase::Mark) {
            assert!(
                bed.pool.pins().holds(BlockId::new(1)),
                "nodes that may still be read stay, step {steps}"
            );
        }
        steps += 1;
        while bed.mount.reap_step(1000).unwrap() {}
        bed.pool.commit().unwrap();
        while bed.pool.free_step(64).unwrap() {}
        // Nodes come from the devices.
        bed.pool.store().drop_caches();
    });
    assert!(steps > 20, "{steps} steps");
    assert_eq!((found.references(), found.folders.gaps()), (before, Gaps::default()));
    let after = traced(&bed, 2);
    assert_eq!(after.references(), expected(&bed, 2));
    after.check_sums(&bed);
}

/// References that a trace should count, by names alone.
fn expected(bed: &Bed, depth: usize) -> BTreeMap<String, u64> {
    let (mut part_of, mut waiting) = (BTreeMap::new(), vec![(ROOT, String::new(), 0)]);
    while let Some((dir, path, level)) = waiting.pop() {
        let shown = if path.is_empty() { "/".to_owned() } else { path.clone() };
        for (name, node, kind) in bed.names(dir) {
            // A second name changes nothing.
            if [".", "..", SECOND].contains(&&*name) || node.unpack().0 != ROOT_DATASET {
                continue;
            }
            part_of.insert(node.unpack().1, shown.clone());
            if kind == FileKind::Directory {
                let below = if level < depth { format!("{path}/{name}") } else { path.clone() };
                waiting.push((node, below, level + 1));
            }
        }
    }
    let mut all = BTreeSet::new();
    let mut collect = |key: &Key, value: &[u8]| {
        if key.kind == EXTENT {
            all.insert((key.object, key.offset, Extent::decode(value).unwrap().ptr.id));
        }
        ControlFlow::Continue(())
    };
    bed.pool.dataset(ROOT_DATASET).unwrap().view().unwrap().scan(&Key::MIN, &mut collect).unwrap();
    for snapshot in bed.pool.snapshots(ROOT_DATASET) {
        let view = bed.pool.snapshot_view(ROOT_DATASET, &snapshot.name).unwrap();
        view.scan(&Key::MIN, &mut collect).unwrap();
    }
    let mut counts = BTreeMap::new();
    for (inode, ..) in all {
        let part = part_of.get(&InodeId::new(inode)).cloned();
        *counts.entry(part.unwrap_or("elsewhere".into())).or_insert(0) += 1;
    }
    counts
}

#[test]
fn whatever_was_made_moved_and_removed_counts_where_its_names_say() {
    for seed in 1..=6 {
        let bed = bed_with("on");
        let entropy = SeededEntropy::new(seed);
        let any = |below: usize| (entropy.next_u64() % below as u64) as usize;
        // Folders and files with the folders that they are in.
        let mut dirs = vec![(ROOT, ROOT, String::new())];
        let mut files: Vec<(NodeId, NodeId, String)> = Vec::new();
        for turn in 0..400 {
            let (dir, name) = (dirs[any(dirs.len())].0, format!("n{turn}"));
            match any(20) {
                0..3 => dirs.push((bed.dir(dir, &name), dir, name)),
                3..12 => files.push((file(&bed, dir, &name, &noise(entropy.next_u64() % 40, 2)), dir, name)),
                12..14 if dirs.len() > 1 => {
                    let at = 1 + any(dirs.len() - 1);
                    let (_, from, old) = dirs[at].clone();
                    // Into itself it does not go.
                    let flags = RenameFlags::default();
                    if bed.mount.rename(from, old.as_bytes(), dir, name.as_bytes(), flags).is_ok() {
                        (dirs[at].1, dirs[at].2) = (dir, name);
                    }
                }
                14..16 if !files.is_empty() => {
                    let at = any(files.len());
                    let (_, from, old) = files[at].clone();
                    rename(&bed, (from, &old), (dir, &name));
                    (files[at].1, files[at].2) = (dir, name);
                }
                16..19 if !files.is_empty() => {
                    let (_, from, old) = files.swap_remove(any(files.len()));
                    bed.mount.unlink(from, old.as_bytes()).unwrap();
                }
                19 if turn % 3 == 0 => {
                    bed.pool.commit().unwrap();
                    bed.pool.snapshot(ROOT_DATASET, &name).unwrap();
                }
                _ => {}
            }
        }
        while bed.mount.reap_step(1000).unwrap() {}
        bed.pool.commit().unwrap();
        for depth in [1, 2, 4] {
            let found = traced(&bed, depth);
            assert_eq!(found.references(), expected(&bed, depth as usize), "seed {seed}, depth {depth}");
            found.check_sums(&bed);
        }
    }
}

#[test]
fn when_memory_is_full_the_rest_is_elsewhere_and_that_is_told() {
    let bed = bed_with("on");
    let dirs = [bed.dir(ROOT, "a"), bed.dir(ROOT, "b")];
    for i in 0..600 {
        file(&bed, dirs[i % 2], &format!("{i}"), &noise(i as u64 / 3, 1));
    }
    bed.pool.commit().unwrap();
    bed.pool.set_pool_property("memory", "800000").unwrap();
    let found = traced(&bed, 2);
    let limit = 800_000 * 5 / 100 / 8;
    let counted = found.references();
    println!("{counted:?}, {} B of {limit}", found.folders.most_bytes());
    assert_eq!(found.folders.gaps(), Gaps { full: true, ..Gaps::default() });
    assert!(found.folders.most_bytes() <= limit, "{} B", found.folders.most_bytes());
    assert_eq!(counted.values().sum::<u64>(), 600);
    assert!(counted["elsewhere"] > 0 && counted["/a"] > 50 && counted["/b"] > 50);
    found.check_sums(&bed);
    // In folders one after another the same files are two runs.
    let bed = bed_with("on");
    for name in ["a", "b"] {
        let dir = bed.dir(ROOT, name);
        for i in 0..300 {
            file(&bed, dir, &format!("{i}"), &noise(i / 3, 1));
        }
    }
    bed.pool.set_pool_property("memory", "800000").unwrap();
    let found = traced(&bed, 2);
    assert_eq!(found.folders.gaps(), Gaps::default());
    assert_eq!(found.references(), counts(&[("/a", 300), ("/b", 300)]));
}

#[test]
fn folders_that_no_number_is_left_for_are_part_of_those_above() {
    let bed = bed_with("on");
    let top = bed.dir(ROOT, "top");
    for i in 0..2100 {
        file(&bed, bed.dir(top, &format!("{i}")), "file", &noise(i % 700, 1));
    }
    let found = traced(&bed, 1);
    assert_eq!(found.references(), counts(&[("/top", 2100)]));
    assert_eq!(found.folders.gaps(), Gaps::default());
    let found = traced(&bed, 2);
    assert_eq!(found.folders.gaps(), Gaps { unnumbered: true, ..Gaps::default() });
    let counted = found.references();
    // Numbers are 2047: one for elsewhere, one for the root, one for the folder itself.
    assert_eq!((counted.len(), counted["/top"]), (2044 + 1, 2100 - 2044));
    found.check_sums(&bed);
}

#[test]
fn references_by_aliases_count_for_the_folders_of_the_aliases() {
    let bed = bed_with("off");
    let dirs = ["a", "b", "c"].map(|name| bed.dir(ROOT, name));
    let twins = [file(&bed, dirs[0], "twin", &noise(1, 1)), file(&bed, dirs[1], "twin", &noise(1, 1))];
    bed.pool.commit().unwrap();
    // More than an alias is known to have.
    for (from, name) in twins.iter().zip(["x", "y"]) {
        for i in 0..20 {
            for dir in dirs {
                let to = bed.file(dir, &format!("{name}{i}"));
                let copied = bed.mount.copy_range((*from, 0), (to, 0), u64::MAX).unwrap();
                assert_eq!(copied.shared, RECORD as u64);
            }
        }
    }
    bed.pool.commit().unwrap();
    bed.upkeep.passes.start(Task::Dedup, vec![ROOT_DATASET], 0).unwrap();
    while bed.upkeep.passes.step(64 << 10).unwrap().is_some() {}
    assert_eq!(bed.upkeep.passes.last().unwrap().state, PassState::Done);
    let found = traced(&bed, 1);
    let counted = found.references();
    // Twice 61 references, of which those by the alias are told as 16.
    assert_eq!(counted.values().sum::<u64>(), 61 + 16, "{counted:?}");
    assert!(counted.len() >= 3, "{counted:?}");
    found.check_sums(&bed);
}

#[test]
fn a_trace_that_was_cut_short_goes_on_without_folders_and_one_by_folder_sees_everything() {
    let bed = bed_with("on");
    for name in ["a", "b"] {
        let dir = bed.dir(ROOT, name);
        for i in 0..300 {
            file(&bed, dir, &format!("{i}"), &noise(i, 1));
        }
    }
    bed.pool.commit().unwrap();
    let cut = |bed: &Bed| {
        assert!(bed.upkeep.gc.start_split(Folders::new(1)).unwrap());
        let mut swept = 0;
        while swept < 4 && bed.upkeep.gc.step(1).unwrap() {
            swept += usize::from(bed.upkeep.gc.progress().is_some_and(|of| of.phase == Phase::Sweep));
        }
        bed.pool.commit().unwrap();
    };
    cut(&bed);
    let bed = bed.crash(2);
    assert!(bed.upkeep.gc.was_cut());
    assert!(bed.upkeep.gc.start().unwrap());
    while bed.upkeep.gc.step(8).unwrap() {}
    assert!(bed.upkeep.gc.findings().unwrap().from.get() > 0, "it takes up from where the other was");
    assert!(bed.upkeep.gc.parts().is_none());
    bed.pool.commit().unwrap();
    cut(&bed);
    let bed = bed.crash(3);
    let found = traced(&bed, 1);
    assert_eq!((found.findings.from.get(), found.references()), (0, counts(&[("/a", 300), ("/b", 300)])));
    found.check_sums(&bed);
    // One that was stopped is not known.
    assert!(bed.upkeep.gc.start_split(Folders::new(1)).unwrap());
    bed.upkeep.gc.stop().unwrap();
    assert!(bed.upkeep.gc.parts().is_none());
}

#[test]
fn leaves_that_hold_no_inode_are_passed_over() {
    let bed = Bed::new(&[("recordsize", "512")]);
    let a = bed.dir(ROOT, "a");
    for i in 0..10 {
        file(&bed, a, &format!("{i}"), &noise(i, 1000 * 512 / RECORD));
    }
    bed.pool.commit().unwrap();
    let folders = Folders::new(1);
    let pinned = bed.pool.pin(&bed.pool.keep_out(), bed.pool.store().durable_commit());
    folders.begin(&pinned.members, pinned.origins.len(), 2047, 1 << 20);
    let leaves = std::iter::from_fn(|| folders.learn(&bed.pool, 1).then_some(())).count();
    assert!(leaves < 25, "{leaves} of 10,000 extents' leaves");
    let in_a = folders.part(0, InodeId::new(10).get());
    assert_eq!(folders.path(in_a).as_deref(), Some(&b"/a"[..]));
}

/// With `LARDER_LARGE`, of a million files.
#[test]
fn folders_inside_a_numbered_one_take_no_memory() {
    let tops = if std::env::var_os("LARDER_LARGE").is_some() { 1000 } else { 3 };
    let bed = Bed::with_layout("single", &[ByteLen::new(16 << 30)], &[]);
    for top in 0..tops {
        let dir = bed.dir(ROOT, &format!("{top}"));
        for i in 0..100 {
            let dir = bed.dir(dir, &format!("{i}"));
            (0..10).for_each(|j| _ = bed.file(dir, &format!("{j}")));
        }
        bed.pool.commit().unwrap();
    }
    let folders = Folders::new(1);
    let pinned = bed.pool.pin(&bed.pool.keep_out(), bed.pool.store().durable_commit());
    folders.begin(&pinned.members, pinned.origins.len(), 2047, 6 << 20);
    bed.pool.store().drop_caches();
    while folders.learn(&bed.pool, 64) {}
    println!("{} files: {} B", tops * 1000, folders.most_bytes());
    assert!(folders.most_bytes() <= 200 * tops + (2 << 10), "{} B", folders.most_bytes());
}
