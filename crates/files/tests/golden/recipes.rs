//! Recipes of the images. The same steps make the same bytes, until a change of the code alters them.

use crate::bed::{Bed, READ_WRITE, ROOT, USER};
use crate::manifest::{self, attach_all, root_of};
use larder_device::{Entropy, Inline, SeededEntropy};
use larder_files::*;
use larder_format::node::Key;
use larder_format::root::GroupRole;
use larder_format::{ByteLen, DeviceIndex, DeviceOffset, HostId, Timestamp};
use larder_pool::create::rule_for;
use larder_pool::property::parse_dataset;
use larder_pool::{BookmarkSource, GroupSpec, Pool, PoolSpec, ROOT_DATASET, World};
use larder_sim::{DeviceImage, Event, Fault, SimClock, SimWorld, Survival};
use std::sync::Arc;

const SIZE: ByteLen = ByteLen::new(64 << 20);
/// A label area lies at both ends of a device.
const AREA: u64 = 1 << 20;

/// Result of a recipe: the devices, and the manifest of their content.
pub struct Made {
    pub images: Vec<DeviceImage>,
    pub holds: Vec<String>,
}

/// A pool to be made: its name, the layout and what is done to it.
pub struct Recipe {
    pub name: &'static str,
    word: &'static str,
    devices: usize,
    ashift: u8,
    properties: &'static [(&'static str, &'static str)],
    work: fn(Bed) -> Made,
}

const fn recipe(name: &'static str, word: &'static str, devices: usize, work: fn(Bed) -> Made) -> Recipe {
    Recipe { name, word, devices, ashift: 12, properties: &[], work }
}

pub const RECIPES: &[Recipe] = &[
    // Layouts.
    recipe("single", "single", 1, all_kinds),
    recipe("mirror", "mirror", 2, all_kinds),
    recipe("raidz1", "raidz1", 3, all_kinds),
    recipe("raidz2", "raidz2", 6, all_kinds),
    recipe("raidz3", "raidz3", 7, all_kinds),
    recipe("raid10", "raid10", 4, all_kinds),
    recipe("raid14", "raid14", 5, all_kinds),
    recipe("groups", "mirror", 2, two_groups),
    Recipe { ashift: 14, ..recipe("ashift14", "raidz1", 3, all_kinds) },
    Recipe { properties: &[("recordsize", "4K")], ..recipe("many", "single", 1, many) },
    // Properties.
    recipe("codecs", "single", 1, codecs),
    recipe("dedup", "mirror", 2, dedup),
    Recipe {
        properties: &[("chunking", "content"), ("dedup", "on")],
        ..recipe("content", "single", 1, content)
    },
    Recipe {
        properties: &[("recordsize", "256K"), ("compression", "off")],
        ..recipe("frames", "mirror", 2, frames)
    },
    recipe("clones", "single", 1, clones),
    recipe("snapshots", "single", 1, snapshots),
    recipe("lineages", "single", 1, lineages),
    recipe("bookmarks", "single", 1, bookmarks),
    recipe("placed", "single", 1, placed),
    recipe("aliases", "mirror", 2, aliases),
    recipe("trash", "single", 1, trash),
    Recipe { properties: &[("copies", "2")], ..recipe("copies", "single", 1, all_kinds) },
    recipe("datasets", "mirror", 2, datasets),
    recipe("received", "single", 1, received),
    // Work that an import has to go on with.
    recipe("log", "raidz1", 3, log),
    recipe("roles", "mirror", 2, roles),
    recipe("orphans", "single", 1, orphans),
    recipe("retired", "raidz1", 3, retired),
    recipe("replaced", "mirror", 2, replaced),
    recipe("degraded", "raidz1", 3, degraded),
    recipe("trace", "single", 1, trace),
    Recipe {
        properties: &[("recordsize", "4K"), ("compression", "off")],
        ..recipe("damage", "mirror", 2, damage)
    },
];

impl Recipe {
    /// Makes the pool, and does to it what is to be done.
    pub fn make(&self) -> Made {
        (self.work)(self.bed(None))
    }

    /// A new pool whose first device refuses writes to some bytes.
    fn bed(&self, bad: Option<u64>) -> Bed {
        let sim = SimWorld::new(&vec![SIZE; self.devices]);
        let clock = Arc::new(SimClock::new());
        let rule = rule_for(self.word, self.devices).unwrap();
        let groups = vec![GroupSpec::data(rule, sim.devices())];
        // Each is another pool.
        let seed = self.name.bytes().fold(1, |seed: u64, byte| seed * 31 + u64::from(byte));
        let world = World {
            clock: Arc::clone(&clock) as _,
            entropy: Arc::new(SeededEntropy::new(seed)),
            workers: Arc::new(Inline),
            host: HostId::new(1),
            host_name: "sim".into(),
        };
        let pool =
            Pool::create(world, PoolSpec { name: "tank".into(), groups, ashift: self.ashift }).unwrap();
        for (name, value) in [("atime", "off")].iter().chain(self.properties) {
            let (name, value) = parse_dataset(name, value, true).unwrap();
            pool.set_property(ROOT_DATASET, &name, &value).unwrap();
        }
        pool.commit_export().unwrap();
        drop(pool);
        if let Some(bad) = bad {
            sim.device(0).inject(Fault::FailWrites(bad..bad + 512));
        }
        Bed::import(sim, clock, seed + 1)
    }
}

/// The pool is exported.
fn exported(bed: Bed) -> Made {
    bed.pool.commit().unwrap();
    let holds = manifest::tell(&bed);
    bed.pool.commit_export().unwrap();
    drop((bed.mount, bed.pool));
    Made { images: bed.sim.images(), holds }
}

/// The power fails; what no flush covers is lost.
fn power_cut(bed: Bed) -> Made {
    let cut = bed.sim.trace();
    let holds = manifest::tell(&bed);
    Made { images: cut.crash_images(cut.len(), Survival::DropAll), holds }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    SeededEntropy::new(seed).bytes(len)
}

/// Lines that every codec makes smaller.
fn text(seed: u64, len: usize) -> Vec<u8> {
    const WORDS: [&str; 8] = ["flour", "salt", "beans", "honey", "rye", "oats", "jam", "tea"];
    let entropy = SeededEntropy::new(seed);
    let word = |_| WORDS[entropy.next_u64() as usize % WORDS.len()];
    let lines = (0..).flat_map(|line| format!("{line} {}\n", [0; 6].map(word).join(" ")).into_bytes());
    lines.take(len).collect()
}

fn file(bed: &Bed, dir: NodeId, name: &str, content: &[u8]) -> NodeId {
    bed.tick();
    let node = bed.file(dir, name);
    bed.write(node, 0, content);
    node
}

/// A dataset, shown by itself; gives its root directory.
fn dataset(bed: &Bed, name: &str, properties: &[(&str, &str)]) -> NodeId {
    let exact = |&(name, value): &(&str, &str)| parse_dataset(name, value, true).unwrap();
    let made = bed.pool.create_dataset(name, properties.iter().map(exact).collect()).unwrap();
    bed.pool.commit().unwrap();
    let id = made.id();
    bed.mount.attach(made, None).unwrap();
    root_of(id)
}

/// An access list of Linux: tag, permissions and id of each entry.
fn access_list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 4, 1001), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    out
}

/// Files of every kind, over several commits.
fn fill(bed: &Bed, top: NodeId) {
    let mount = &bed.mount;
    let dir = bed.dir(top, "letters");
    file(bed, dir, "text", &text(1, 140_000));
    file(bed, dir, "noise", &noise(2, 40_000));
    file(bed, dir, "empty", b"");
    bed.pool.commit().unwrap();
    let small = bed.dir(top, "small");
    for i in 0..60 {
        file(bed, small, &format!("file {i}"), &text(i, i as usize * 37));
    }
    let sparse = file(bed, top, "sparse", b"start");
    bed.write(sparse, 900_000, b"end");
    bed.resize(sparse, 1_000_000);
    bed.write(sparse, 300_000, &text(3, 20_000));
    mount.fallocate(sparse, Handle(0), 305_000, 8192, Allocate::Punch).unwrap();
    bed.pool.commit().unwrap();
    // Names and kinds.
    mount.symlink(top, b"link", b"letters/text", &USER).unwrap();
    mount.symlink(top, b"long link", "a/".repeat(2000).as_bytes(), &USER).unwrap();
    mount.link(sparse, dir, b"again").unwrap();
    mount.mknod(top, b"pipe", FileKind::Fifo, 0o600, 0, &USER).unwrap();
    mount.mknod(top, b"socket", FileKind::Socket, 0o755, 0, &USER).unwrap();
    mount.mknod(top, b"null", FileKind::CharDevice, 0o666, 0x103, &Caller::default()).unwrap();
    mount.mknod(top, b"disk", FileKind::BlockDevice, 0o660, 0x801, &Caller::default()).unwrap();
    mount.mknod(top, b"\xff not UTF-8 \n", FileKind::Regular, 0o640, 0, &USER).unwrap();
    mount.mknod(top, "n".repeat(255).as_bytes(), FileKind::Regular, 0o640, 0, &USER).unwrap();
    let deep = (0..12).fold(top, |at, level| bed.dir(at, &format!("level {level}")));
    file(bed, deep, "deep", &text(4, 5000));
    // Attributes.
    let odd = file(bed, top, "attributes", b"of all kinds");
    let before_1970 = SetTime::To(Timestamp { secs: -1_000_000, nanos: 999_999_999 });
    let late = SetTime::To(Timestamp { secs: 1 << 33, nanos: 1 });
    let set = SetAttr {
        perm: Some(0o6751),
        uid: Some(70_000),
        gid: Some(u32::MAX - 1),
        atime: Some(before_1970),
        mtime: Some(late),
        ..SetAttr::default()
    };
    mount.setattr(odd, &set, &Caller::default()).unwrap();
    for (name, value) in
        [("user.small", noise(5, 20)), ("user.large", text(6, 40_000)), ("security.x", vec![])]
    {
        mount.setxattr(odd, name.as_bytes(), &value, XattrMode::Set).unwrap();
    }
    mount.setxattr(dir, b"system.posix_acl_default", &access_list(), XattrMode::Set).unwrap();
    file(bed, dir, "inherits", b"a list");
    mount.setxattr(sparse, b"system.posix_acl_access", &access_list(), XattrMode::Set).unwrap();
    bed.pool.commit().unwrap();
    // Files overwritten, cut, renamed and removed.
    let changed = file(bed, top, "changed", &text(7, 150_000));
    bed.pool.commit().unwrap();
    bed.write(changed, 100_001, b"new in the middle");
    bed.resize(changed, 120_000);
    bed.pool.commit().unwrap();
    mount.rename(small, b"file 7", top, b"moved", RenameFlags::default()).unwrap();
    for i in 20..40 {
        mount.unlink(small, format!("file {i}").as_bytes()).unwrap();
    }
    while mount.reap_step(100).unwrap() {}
    bed.pool.commit().unwrap();
}

fn all_kinds(bed: Bed) -> Made {
    fill(&bed, ROOT);
    exported(bed)
}

/// Trees of several levels, and entries whose nodes were split, merged and written again.
fn many(bed: Bed) -> Made {
    let dir = bed.dir(ROOT, "names");
    for round in 0..3 {
        for i in 0..250 {
            let name = format!("{round} {}", noise(i * 3 + round, 40 + i as usize % 60).escape_ascii());
            let name = name.replace('/', "_");
            let name = &name.as_bytes()[..name.len().min(255)];
            bed.mount.mknod(dir, name, FileKind::Regular, 0o644, 0, &USER).unwrap();
        }
        bed.pool.commit().unwrap();
        for (name, _) in manifest::entries(&bed, dir).into_iter().step_by(3) {
            bed.mount.unlink(dir, &name).unwrap();
        }
        bed.pool.commit().unwrap();
    }
    let records = file(&bed, ROOT, "records", &text(1, 320_000));
    bed.pool.commit().unwrap();
    for at in (0..300_000).step_by(50_000) {
        bed.write(records, at, &text(at, 3000));
    }
    exported(bed)
}

/// A second group of another layout comes to the first.
fn two_groups(bed: Bed) -> Made {
    file(&bed, ROOT, "before", &text(1, 200_000));
    bed.pool.commit().unwrap();
    let devices = (0..3).map(|_| Arc::new(bed.sim.add_device(SIZE)) as _).collect();
    bed.upkeep.reshape.add_group(GroupSpec::data(rule_for("raidz1", 3).unwrap(), devices)).unwrap();
    fill(&bed, ROOT);
    exported(bed)
}

/// The log and metadata have devices of their own, and the log has something.
fn roles(bed: Bed) -> Made {
    for (role, word, count) in [(GroupRole::Special, "mirror", 2), (GroupRole::Log, "single", 1)] {
        let devices = (0..count).map(|_| Arc::new(bed.sim.add_device(SIZE)) as _).collect();
        let rule = rule_for(word, count).unwrap();
        bed.upkeep.reshape.add_group(GroupSpec { rule, role, devices }).unwrap();
    }
    log(bed)
}

fn codecs(bed: Bed) -> Made {
    for codec in ["off", "lz4", "gzip-1", "gzip-9", "zstd", "zstd-19"] {
        let top = dataset(&bed, &format!("tank/{codec}"), &[("compression", codec), ("recordsize", "16K")]);
        file(&bed, top, "text", &text(1, 50_000));
        file(&bed, top, "noise", &noise(2, 9000));
        file(&bed, top, "zeros", &[0; 40_000]);
    }
    for checksum in ["on", "blake3", "sha256"] {
        let top = dataset(&bed, &format!("tank/{checksum}"), &[("checksum", checksum)]);
        file(&bed, top, "text", &text(3, 150_000));
    }
    exported(bed)
}

fn dedup(bed: Bed) -> Made {
    for (name, dedup, seed) in
        [("a", "on", 1), ("b", "on", 1), ("c", "verify", 1), ("d", "off", 1), ("e", "on", 2)]
    {
        let top = dataset(&bed, &format!("tank/{name}"), &[("dedup", dedup), ("recordsize", "8K")]);
        for (part, at) in [("whole", 0), ("part", 64 << 10)] {
            let mut content = text(seed, 120_000);
            content.extend(noise(seed, 16 << 10));
            file(&bed, top, part, &content[at..]);
            bed.pool.commit().unwrap();
        }
    }
    exported(bed)
}

/// Files cut where their bytes say; the second has something put before it.
fn content(bed: Bed) -> Made {
    let mut bytes = text(1, 500_000);
    bytes.extend(noise(2, 100_000));
    file(&bed, ROOT, "first", &bytes);
    bed.pool.commit().unwrap();
    file(&bed, ROOT, "second", &[&text(3, 777), &bytes[..]].concat());
    let fixed = dataset(&bed, "tank/fixed", &[("chunking", "fixed")]);
    file(&bed, fixed, "third", &bytes);
    bed.pool.commit().unwrap();
    let first = bed.find("first").unwrap().node;
    bed.write(first, 200_000, &text(4, 3000));
    exported(bed)
}

/// Large records that nothing makes smaller, with sums over their parts.
fn frames(bed: Bed) -> Made {
    let large = file(&bed, ROOT, "large", &noise(1, 270_000));
    bed.pool.commit().unwrap();
    bed.write(large, 200_000, &text(2, 5000));
    let mail = dataset(&bed, "tank/mail", &[("checksum", "blake3"), ("recordsize", "128K")]);
    file(&bed, mail, "mail", &noise(3, 140_000));
    exported(bed)
}

fn clones(bed: Bed) -> Made {
    let original = file(&bed, ROOT, "original", &[text(1, 300_000), noise(2, 40_000)].concat());
    let gone = file(&bed, ROOT, "gone", &text(3, 140_000));
    bed.pool.commit().unwrap();
    let clone = |from: NodeId, name: &str, at: u64, to: u64| {
        bed.tick();
        let node = bed.file(ROOT, name);
        let copied = bed.mount.copy_range((from, at), (node, to), u64::MAX).unwrap();
        assert!(copied.shared > 0, "{copied:?}");
        node
    };
    clone(original, "clone", 0, 0);
    clone(original, "part", 128 << 10, 256 << 10);
    let changed = clone(original, "changed", 0, 0);
    clone(gone, "left", 0, 0);
    bed.pool.commit().unwrap();
    bed.write(changed, 140_000, b"of its own");
    bed.mount.unlink(ROOT, b"gone").unwrap();
    while bed.mount.reap_step(100).unwrap() {}
    exported(bed)
}

fn snapshots(bed: Bed) -> Made {
    let docs = dataset(&bed, "tank/docs", &[("recordsize", "16K")]);
    let id = docs.unpack().0;
    let dir = bed.dir(docs, "dir");
    let kept = file(&bed, dir, "kept", &text(1, 90_000));
    file(&bed, dir, "removed", &text(2, 90_000));
    bed.mount.symlink(dir, b"link", b"kept", &USER).unwrap();
    bed.pool.snapshot(id, "monday").unwrap();
    bed.tick();
    bed.write(kept, 20_000, b"tuesday");
    bed.mount.unlink(dir, b"removed").unwrap();
    bed.pool.snapshot(id, "tuesday").unwrap();
    bed.write(kept, 40_000, &text(3, 30_000));
    bed.mount.rename(docs, b"dir", docs, b"renamed", RenameFlags::default()).unwrap();
    bed.pool.snapshot(id, "wednesday").unwrap();
    bed.pool.snapshot(ROOT_DATASET, "empty").unwrap();
    bed.pool.destroy_snapshot(id, "tuesday").unwrap();
    file(&bed, docs, "new", &text(4, 20_000));
    exported(bed)
}

/// Clones, of a snapshot that is hidden too; a dataset that branched; holds and properties of snapshots; remains of a
/// clone that was destroyed.
fn lineages(bed: Bed) -> Made {
    let docs = dataset(&bed, "tank/docs", &[]);
    let id = docs.unpack().0;
    let kept = file(&bed, docs, "kept", &text(1, 90_000));
    file(&bed, docs, "removed", &text(2, 90_000));
    let note = [("org.example:why".to_owned(), "two words".to_owned())];
    bed.pool.snapshot_all(vec![(id, "monday".into())], note.into()).unwrap();
    let clone = |snapshot: &str, name: &str| {
        let clone = bed.pool.clone_snapshot(id, snapshot, name, Default::default()).unwrap();
        let top = root_of(clone.id());
        bed.mount.attach(clone, None).unwrap();
        top
    };
    let (first, gone) = (clone("monday", "tank/first"), clone("monday", "tank/gone"));
    bed.tick();
    bed.mount.unlink(first, b"removed").unwrap();
    file(&bed, first, "of the clone", &text(3, 30_000));
    file(&bed, gone, "goes", &text(4, 200_000));
    bed.write(kept, 20_000, b"tuesday");
    bed.pool.snapshot(id, "tuesday").unwrap();
    let second = clone("tuesday", "tank/second");
    file(&bed, second, "of the second", b"short");
    bed.pool.snapshot(second.unpack().0, "its own").unwrap();
    bed.write(kept, 40_000, &text(5, 30_000));
    bed.pool.snapshot(id, "wednesday").unwrap();
    bed.pool.destroy_snapshots(&[(id, "monday".into())]).unwrap();
    bed.pool.hold_snapshots(&[(id, "tuesday".into())], "kept for good").unwrap();
    bed.pool.set_deferred(&[(id, "tuesday".into())], true).unwrap();
    bed.pool.promote(second.unpack().0).unwrap();
    bed.pool.snapshot(first.unpack().0, "before").unwrap();
    file(&bed, first, "afterwards", &text(6, 20_000));
    bed.pool.snapshot(first.unpack().0, "after").unwrap();
    bed.pool.commit().unwrap();
    for top in [first, gone] {
        bed.mount.detach(top.unpack().0).unwrap();
    }
    bed.pool.branch(first.unpack().0, "before", "tank/branch", &Default::default()).unwrap();
    bed.pool.destroy_dataset(gone.unpack().0).unwrap();
    for name in ["tank/first", "tank/branch"] {
        bed.mount.attach(bed.pool.dataset_by_name(name).unwrap(), None).unwrap();
    }
    exported(bed)
}

/// Bookmarks of snapshots, some of which are gone, in a dataset that had more of them before it branched.
fn bookmarks(bed: Bed) -> Made {
    let docs = dataset(&bed, "tank/docs", &[]);
    let id = docs.unpack().0;
    let mark = |from, name: &str| bed.pool.make_bookmark(id, from, name).unwrap();
    let kept = file(&bed, docs, "kept", &text(1, 90_000));
    for (at, day) in (0..).zip(["monday", "tuesday", "wednesday"]) {
        bed.write(kept, at * 10_000, day.as_bytes());
        bed.pool.snapshot(id, day).unwrap();
        bed.tick();
        mark(BookmarkSource::Snapshot(day), day);
    }
    mark(BookmarkSource::Bookmark("monday"), "the first");
    mark(BookmarkSource::Bookmark("monday"), "goes");
    bed.pool.destroy_bookmark(id, "goes").unwrap();
    bed.pool.destroy_snapshots(&[(id, "monday".into())]).unwrap();
    bed.mount.detach(id).unwrap();
    bed.pool.branch(id, "tuesday", "tank/branch", &Default::default()).unwrap();
    for name in ["tank/docs", "tank/branch"] {
        bed.mount.attach(bed.pool.dataset_by_name(name).unwrap(), None).unwrap();
    }
    exported(bed)
}

/// A bookmark whose snapshot is gone, and records of before that came elsewhere since: by reference, and found again.
fn placed(bed: Bed) -> Made {
    let top = dataset(&bed, "tank/top", &[("dedup", "on"), ("recordsize", "8K")]);
    let id = top.unpack().0;
    let (old, other) = (file(&bed, top, "old", &text(1, 60_000)), file(&bed, top, "other", &text(2, 60_000)));
    bed.pool.snapshot(id, "monday").unwrap();
    bed.pool.make_bookmark(id, BookmarkSource::Snapshot("monday"), "monday").unwrap();
    bed.tick();
    bed.mount.copy_range((old, 0), (other, 16 << 10), 16 << 10).unwrap();
    file(&bed, top, "found", &text(1, 30_000));
    bed.pool.snapshot(id, "tuesday").unwrap();
    bed.pool.destroy_snapshot(id, "monday").unwrap();
    exported(bed)
}

/// Records that are aliases of others: in a head, in a snapshot alone, in a clone, and one whose target nobody else
/// names.
fn aliases(bed: Bed) -> Made {
    let [first, second] = ["tank/first", "tank/second"].map(|name| dataset(&bed, name, &[]));
    let [of_first, of_second] = [first, second].map(|top| {
        file(&bed, top, "kept", &text(1, 150_000));
        file(&bed, top, "removed", &text(2, 90_000));
        file(&bed, top, "changed", &text(3, 90_000))
    });
    for top in [first, second] {
        bed.pool.snapshot(top.unpack().0, "monday").unwrap();
    }
    bed.mount.unlink(second, b"removed").unwrap();
    bed.write(of_second, 0, &text(4, 90_000));
    bed.pool.commit().unwrap();
    bed.pool.use_index(true);
    let mut shared = 0;
    for top in [first, second] {
        let id = top.unpack().0;
        for tree in bed.pool.trees_of(id) {
            let found = bed.pool.tree_records(id, tree, Key::MIN).unwrap();
            shared += bed.pool.share_records(found.records).unwrap().changed;
        }
    }
    assert!(shared > 3, "{shared} aliases");
    bed.pool.use_index(false);
    let clone =
        bed.pool.clone_snapshot(second.unpack().0, "monday", "tank/clone", Default::default()).unwrap();
    bed.mount.attach(clone, None).unwrap();
    bed.mount.unlink(first, b"removed").unwrap();
    bed.write(of_first, 0, &text(5, 90_000));
    bed.pool.destroy_snapshot(first.unpack().0, "monday").unwrap();
    exported(bed)
}

/// Snapshots and datasets in the trash: one with a clone, one with what was below it, one that has its name again.
fn trash(bed: Bed) -> Made {
    let until = Timestamp { secs: 4_000_000_000, nanos: 0 };
    let docs = dataset(&bed, "tank/docs", &[]);
    let id = docs.unpack().0;
    let kept = file(&bed, docs, "kept", &text(1, 90_000));
    for (at, day) in (0..).zip(["monday", "tuesday", "wednesday"]) {
        bed.write(kept, at * 10_000, day.as_bytes());
        bed.pool.snapshot(id, day).unwrap();
        bed.tick();
    }
    bed.pool.clone_snapshot(id, "monday", "tank/clone", Default::default()).unwrap();
    let both = ["monday", "tuesday"].map(|day| (id, day.to_owned()));
    bed.pool.trash_snapshots(&both, until).unwrap();
    let old = dataset(&bed, "tank/old", &[("compression", "zstd-5")]);
    file(&bed, old, "of old", &text(2, 50_000));
    let inner = dataset(&bed, "tank/old/inner", &[]);
    file(&bed, inner, "deep", &text(3, 20_000));
    bed.pool.snapshot(old.unpack().0, "last").unwrap();
    for gone in [inner, old] {
        bed.mount.detach(gone.unpack().0).unwrap();
        bed.tick();
        bed.pool.trash_dataset(gone.unpack().0, until).unwrap();
    }
    file(&bed, dataset(&bed, "tank/old", &[]), "of new", &text(4, 10_000));
    bed.mount.attach(bed.pool.dataset_by_name("tank/clone").unwrap(), None).unwrap();
    exported(bed)
}

/// Datasets below each other with properties; one that is not destroyed to its end.
fn datasets(bed: Bed) -> Made {
    bed.pool.set_pool_property("comment", "a golden pool").unwrap();
    bed.pool.set_pool_property("scrub_window", "22:00-06:00").unwrap();
    let home = [
        ("quota", "20M"),
        ("reservation", "4M"),
        ("org.example:owner", "two words"),
        ("compression", "zstd-5"),
    ];
    file(&bed, dataset(&bed, "tank/home", &home), "file", &text(1, 20_000));
    let ann = [("refquota", "8M"), ("refreservation", "1M"), ("mountpoint", "/srv/ann")];
    let ann = dataset(&bed, "tank/home/ann", &ann);
    fill(&bed, ann);
    bed.pool.set_property(ann.unpack().0, "acltype", "off").unwrap();
    let bob =
        dataset(&bed, "tank/home/bob", &[("canmount", "noauto"), ("xattr", "off"), ("recordsize", "4K")]);
    file(&bed, bob, "file", &text(2, 60_000));
    let name = dataset(&bed, "tank/name", &[("overlay", "on")]);
    file(&bed, name, "file", b"short");
    bed.pool.rename_dataset(name.unpack().0, "tank/home/renamed").unwrap();
    let gone = dataset(&bed, "tank/gone", &[("recordsize", "4K")]);
    file(&bed, gone, "file", &text(3, 400_000));
    bed.pool.commit().unwrap();
    bed.mount.detach(gone.unpack().0).unwrap();
    bed.pool.destroy_dataset(gone.unpack().0).unwrap();
    bed.pool.destroy_step(1).unwrap();
    let read_only = dataset(&bed, "tank/old", &[]);
    file(&bed, read_only, "file", b"stays");
    bed.pool.set_property(read_only.unpack().0, "readonly", "on").unwrap();
    exported(bed)
}

/// Properties that a stream brought: with effect, below one that was set, and masked; a quota among them.
fn received(bed: Bed) -> Made {
    let top = dataset(&bed, "tank/top", &[("xattr", "on")]);
    let brought = [
        ("compression", "gzip-6"),
        ("mountpoint", "/srv/top"),
        ("xattr", "off"),
        ("org.example:owner", "two words"),
        ("quota", "16777216"),
    ];
    let brought = brought.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let refused = bed.pool.receive_properties(top.unpack().0, &brought, &["mountpoint".to_owned()].into());
    assert!(refused.unwrap().is_empty());
    file(&bed, top, "file", &text(1, 60_000));
    file(&bed, dataset(&bed, "tank/top/below", &[]), "file", &text(2, 60_000));
    exported(bed)
}

/// Changes synced since the last commit are in the intent log alone.
fn log(bed: Bed) -> Made {
    fill(&bed, ROOT);
    let before = bed.pool.store().durable_commit();
    let top = bed.dir(ROOT, "logged");
    let large = file(&bed, top, "large", &noise(1, 50_000));
    bed.fsync(large);
    bed.write(large, 1000, b"a few bytes");
    bed.fsync(large);
    let other = file(&bed, top, "other", &text(2, 3000));
    bed.mount.setxattr(other, b"user.note", b"logged", XattrMode::Set).unwrap();
    bed.mount.link(other, ROOT, b"linked").unwrap();
    bed.fsync(other);
    let moved = bed.find("moved").unwrap().node;
    bed.resize(moved, 100);
    bed.mount.rename(ROOT, b"moved", top, b"moved", RenameFlags::default()).unwrap();
    bed.mount.unlink(ROOT, b"pipe").unwrap();
    bed.mount.symlink(top, b"link", b"large", &USER).unwrap();
    bed.fsync(moved);
    bed.mount.fsyncdir(ROOT, Handle(0), false).unwrap();
    bed.mount.fsyncdir(top, Handle(0), false).unwrap();
    assert_eq!(bed.pool.store().durable_commit(), before);
    power_cut(bed)
}

/// Files without names that were open, and one whose removal had begun.
fn orphans(bed: Bed) -> Made {
    for i in 0..3 {
        let name = format!("open {i}");
        let node = file(&bed, ROOT, &name, &text(i, 30_000));
        bed.mount.open(node, READ_WRITE).unwrap();
        bed.pool.commit().unwrap();
        bed.mount.unlink(ROOT, name.as_bytes()).unwrap();
    }
    bed.mount.tmpfile(ROOT, 0o600, READ_WRITE, &USER).unwrap();
    file(&bed, ROOT, "stays", &text(4, 30_000));
    bed.pool.commit().unwrap();
    power_cut(bed)
}

/// A place of the first device takes no writes: its slot is out of use.
fn retired(bed: Bed) -> Made {
    let before = bed.sim.trace().len();
    file(&bed, ROOT, "probe", &text(1, 100_000));
    bed.pool.commit().unwrap();
    // The same again, where a write in the middle of that is refused.
    let trace = bed.sim.trace();
    let bad = trace.events()[before..].iter().find_map(|event| match event {
        Event::Write { device: 0, offset, .. } => {
            let at = offset.get();
            (at > AREA && at < SIZE.get() - AREA).then_some(at)
        }
        _ => None,
    });
    let recipe = RECIPES.iter().find(|recipe| recipe.name == "retired").unwrap();
    let bed = recipe.bed(bad);
    fill(&bed, ROOT);
    assert_eq!(bed.pool.store().bad_slots().len(), 1);
    exported(bed)
}

fn resilver(bed: &Bed, device: u16) {
    let new = Arc::new(bed.sim.add_device(SIZE));
    bed.upkeep.devices.replace(DeviceIndex::new(device), new).unwrap();
    bed.pool.commit().unwrap();
}

/// One device was replaced; the other is being.
fn replaced(bed: Bed) -> Made {
    fill(&bed, ROOT);
    resilver(&bed, 1);
    while bed.upkeep.resilver.step(1 << 20).unwrap() {}
    file(&bed, ROOT, "between", &text(8, 50_000));
    resilver(&bed, 0);
    assert!(bed.upkeep.resilver.step(1).unwrap());
    bed.pool.commit().unwrap();
    let made = power_cut(bed);
    // The one that was replaced is not there any more.
    let images = made.images.into_iter().enumerate().filter(|(index, _)| *index != 1);
    Made { images: images.map(|(_, image)| image).collect(), ..made }
}

/// A device missed some commits and is there again.
fn degraded(bed: Bed) -> Made {
    fill(&bed, ROOT);
    bed.sim.device(2).inject(Fault::Gone);
    file(&bed, ROOT, "without it", &text(8, 90_000));
    bed.pool.commit().unwrap();
    exported(bed)
}

/// A trace had begun.
fn trace(bed: Bed) -> Made {
    fill(&bed, ROOT);
    bed.pool.snapshot(ROOT_DATASET, "kept").unwrap();
    bed.pool.snapshot(ROOT_DATASET, "gone").unwrap();
    bed.mount.unlink(ROOT, b"changed").unwrap();
    while bed.mount.reap_step(100).unwrap() {}
    bed.pool.commit().unwrap();
    bed.pool.destroy_snapshot(ROOT_DATASET, "kept").unwrap();
    assert!(bed.upkeep.gc.start().unwrap());
    assert!(bed.upkeep.gc.step(1).unwrap());
    bed.pool.commit().unwrap();
    assert!(bed.upkeep.gc.progress().is_some());
    power_cut(bed)
}

/// A record is rotten on both devices, and somebody noticed.
fn damage(bed: Bed) -> Made {
    let dir = bed.dir(ROOT, "letters");
    let bytes = noise(1, 40 << 10);
    let rotten = file(&bed, dir, "rotten", &bytes);
    file(&bed, dir, "sound", &text(2, 40 << 10));
    bed.pool.commit().unwrap();
    bed.pool.store().drop_caches();
    for device in 0..2 {
        let image = bed.sim.device(device).image();
        let all = image.read(DeviceOffset::new(0), SIZE.get() as usize);
        let record = &bytes[3 * 4096..][..64];
        let at = all.windows(64).position(|window| window == record).expect("it is stored as it is");
        bed.sim.device(device).flip_bits(DeviceOffset::new(at as u64 + 100), 1000, 7);
    }
    let bed = bed.reopen(2);
    attach_all(&bed);
    assert!(bed.mount.read(rotten, Handle(0), 3 * 4096, 10).is_err());
    exported(bed)
}
