//! Recorded streams into a pool on a simulated device, looked at through a mount.

#[path = "../../zfs-stream/tests/build/mod.rs"]
mod build;

use build::lies::{Random, changed, varied};
use build::{Build, DIRECTORY, File, PLAIN, SA, serialize};
use larder_device::{Inline, SeededEntropy};
use larder_files::{Diff, DiffItem, FileKind, FsError, Handle, Mount, NodeId, Ops, Volume};
use larder_format::{ByteLen, HostId};
use larder_pool::create::rule_for;
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::{GroupSpec, ImportOptions, Pool, PoolSpec, ROOT_DATASET, World};
use larder_sim::{SimClock, SimWorld};
use larder_upkeep::Upkeep;
use larder_zfs_receive::{receive, received_guid};
use larder_zfs_stream::{Line, Order, Received, SinkAttr, Streams};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

struct Bed {
    sim: SimWorld,
    clock: Arc<SimClock>,
    pool: Arc<Pool>,
    mount: Arc<Mount>,
}

fn world(clock: &Arc<SimClock>, seed: u64) -> World {
    World {
        clock: Arc::clone(clock) as _,
        entropy: Arc::new(SeededEntropy::new(seed)),
        workers: Arc::new(Inline),
        host: HostId::new(1),
        host_name: "sim".into(),
    }
}

fn mount(pool: &Arc<Pool>) -> Arc<Mount> {
    let mount = Mount::new(Arc::clone(pool), (0, 0)).unwrap();
    mount.attach(pool.dataset(ROOT_DATASET).unwrap(), None).unwrap();
    mount
}

impl Bed {
    fn new(len: u64) -> Self {
        let sim = SimWorld::new(&[ByteLen::new(len)]);
        let clock = Arc::new(SimClock::new());
        let groups = vec![GroupSpec::data(rule_for("single", 1).unwrap(), sim.devices())];
        let spec = PoolSpec { name: "tank".into(), groups, ashift: 12 };
        let pool = Pool::create(world(&clock, 1), spec).unwrap();
        // The tests read files, and compare times.
        pool.set_property(ROOT_DATASET, "atime", "off").unwrap();
        let mount = mount(&pool);
        Self { sim, clock, pool, mount }
    }

    /// All in memory is forgotten, and the pool imported again.
    fn crash(self, seed: u64) -> Self {
        let Self { sim, clock, pool, mount } = self;
        drop((mount, pool));
        let found = sim.devices().into_iter().filter_map(|device| match scan(&device) {
            Scan::Member(found) => Some(*found),
            _ => None,
        });
        let plan = assemble(found.collect()).pop().expect("a pool is there");
        let pool = Pool::import(world(&clock, seed), plan, &ImportOptions::default()).unwrap();
        let mount = self::mount(&pool);
        Self { sim, clock, pool, mount }
    }

    fn volume(&self) -> Arc<Volume> {
        self.mount.volume(ROOT_DATASET).unwrap()
    }

    fn receive(&self, stream: impl Read) -> Received {
        let mut streams = Streams::new(stream);
        let begin = streams.next_stream().unwrap().expect("there is one");
        let received = receive(&mut streams, &begin, &self.volume()).unwrap();
        assert_eq!(received_guid(&self.volume()), Ok(begin.to_guid));
        assert_eq!(streams.next_stream(), Ok(None));
        received
    }

    fn entries(&self, dir: NodeId) -> Vec<(Vec<u8>, NodeId)> {
        let mut entries = Vec::new();
        let mut add = |entry: larder_files::DirEntry<'_>| {
            if !matches!(entry.name, b"." | b"..") {
                entries.push((entry.name.to_vec(), entry.node));
            }
            true
        };
        self.mount.readdir(dir, Handle(0), 0, false, &mut add).unwrap();
        entries
    }

    fn content(&self, node: NodeId, size: u64) -> Vec<u8> {
        let mut hash = Sha256::new();
        let mut at = 0;
        while at < size {
            let data = self.mount.read(node, Handle(0), at, 1 << 20).unwrap();
            data.slices().for_each(|slice| hash.update(slice));
            at += data.len() as u64;
        }
        hash.finalize().iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
    }

    fn xattrs(&self, node: NodeId) -> Vec<(Vec<u8>, Vec<u8>)> {
        let names = self.mount.listxattr(node).unwrap();
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        let mut xattrs: Vec<_> =
            names.map(|name| (name.to_vec(), self.mount.getxattr(node, name).unwrap())).collect();
        xattrs.sort();
        xattrs
    }

    /// The tree as text; zfs-fuse shows times to the second.
    fn text(&self, root: NodeId) -> Vec<String> {
        let (mut lines, mut firsts) = (Vec::new(), BTreeMap::<NodeId, Vec<u8>>::new());
        let mut todo = vec![(Vec::new(), self.mount.getattr(root).unwrap().node)];
        while let Some((path, node)) = todo.pop() {
            let attr = self.mount.getattr(node).unwrap();
            let first = firsts.entry(attr.node).or_insert_with(|| path.clone());
            if path < *first {
                first.clone_from(&path);
            }
            let second = |time: larder_format::Timestamp| larder_format::Timestamp { nanos: 0, ..time };
            let mut line = Line {
                path: path.clone(),
                attr: SinkAttr {
                    perm: attr.perm,
                    uid: attr.uid,
                    gid: attr.gid,
                    atime: second(attr.atime),
                    mtime: second(attr.mtime),
                    ctime: second(attr.ctime),
                    btime: attr.btime,
                },
                links: attr.nlink,
                size: attr.size,
                xattrs: self.xattrs(node),
                ..Line::default()
            };
            line.device = (attr.rdev >> 8 & 0xfff, attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00);
            line.kind = match attr.kind {
                FileKind::Directory => 'd',
                FileKind::Regular => 'f',
                FileKind::Symlink => 'l',
                FileKind::Fifo => 'p',
                FileKind::Socket => 's',
                FileKind::CharDevice => 'c',
                FileKind::BlockDevice => 'b',
            };
            match line.kind {
                'd' => {
                    line.links = 1;
                    for (name, node) in self.entries(node) {
                        let path = if path.is_empty() { name } else { [&path, &b"/"[..], &name].concat() };
                        todo.push((path, node));
                    }
                }
                'f' => line.content = self.content(node, attr.size),
                'l' => line.content = self.mount.readlink(node).unwrap(),
                _ => {}
            }
            lines.push((attr.node, line));
        }
        lines.sort_by(|a, b| a.1.path.cmp(&b.1.path));
        let first = |node: NodeId| firsts[&node].clone();
        lines.into_iter().map(|(node, line)| Line { first: first(node), ..line }.to_string()).collect()
    }

    #[track_caller]
    fn check(&self, told: &str, of: &str) {
        self.check_at(NodeId::ROOT, told, of);
    }

    #[track_caller]
    fn check_at(&self, root: NodeId, told: &str, of: &str) {
        let (here, told): (Vec<_>, Vec<_>) = (self.text(root), told.lines().collect());
        for (here, told) in here.iter().zip(&told) {
            assert_eq!(here, told, "{of}");
        }
        assert_eq!(here.len(), told.len(), "{of}");
    }
}

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
    zstd::decode_all(&*std::fs::read(&path).expect("it is committed")).unwrap()
}

#[test]
fn a_whole_stream_and_increments_become_what_the_sender_shows() {
    let mut bed = Bed::new(512 << 20);
    assert_eq!(received_guid(&bed.volume()), Ok(0));
    for number in 0..4 {
        bed.receive(&*golden(&format!("zfs-fuse-{number}.stream.zst")));
        let told = String::from_utf8(golden(&format!("zfs-fuse-{number}.txt.zst"))).unwrap();
        bed.check(&told, &format!("stream {number}"));
        // The notes are in the dataset, and come back with it.
        bed.pool.commit().unwrap();
        bed = bed.crash(number + 2);
        bed.check(&told, &format!("stream {number}, after a crash"));
    }
    let report = Upkeep::new(&bed.pool).check().unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn notes_are_seen_by_nobody() {
    let bed = Bed::new(512 << 20);
    bed.receive(&*golden("zfs-fuse-0.stream.zst"));
    bed.pool.snapshot(ROOT_DATASET, "before").unwrap();
    bed.receive(&*golden("zfs-fuse-1.stream.zst"));
    bed.pool.snapshot(ROOT_DATASET, "after").unwrap();
    let control = bed.mount.lookup(NodeId::ROOT, b".zfs").unwrap();
    assert_eq!(control.kind, FileKind::Directory);
    let snapshots = bed.mount.lookup(control.node, b"snapshot").unwrap().node;
    let snapshot = bed.mount.lookup(snapshots, b"before").unwrap().node;
    assert_eq!(bed.mount.lookup(snapshot, b".zfs"), Err(FsError::NotFound));
    for dir in [NodeId::ROOT, snapshot] {
        assert!(bed.entries(dir).iter().all(|(name, _)| !name.starts_with(b".zfs")));
    }
    let view = |name| bed.pool.snapshot_view(ROOT_DATASET, name).unwrap();
    let (old, new) = (view("before"), view("after"));
    let (mut diff, mut paths) = (Diff::new(&old, &new), Vec::new());
    let mut take = |item| match item {
        DiffItem::Change(change) => paths.extend(change.old.into_iter().chain(change.new)),
        DiffItem::Unknown { why, .. } => panic!("{why}"),
    };
    while diff.step(&mut take).unwrap() {}
    assert!(paths.len() > 100 && paths.iter().all(|path| !path.starts_with(b"/.zfs")), "{paths:?}");
}

#[test]
fn a_dataset_that_takes_no_extended_attributes_takes_the_rest() {
    let bed = Bed::new(512 << 20);
    bed.pool.set_property(ROOT_DATASET, "xattr", "off").unwrap();
    let received = bed.receive(&*golden("zfs-fuse-0.stream.zst"));
    assert!(received.left_xattrs > 20, "{received:?}");
    bed.receive(&*golden("zfs-fuse-1.stream.zst"));
    let lines = bed.text(NodeId::ROOT).len();
    assert_eq!(lines, String::from_utf8(golden("zfs-fuse-1.txt.zst")).unwrap().lines().count());
}

#[test]
fn a_receive_that_breaks_off_costs_the_clone_that_it_went_into() {
    let bed = Bed::new(512 << 20);
    bed.receive(&*golden("zfs-fuse-0.stream.zst"));
    bed.pool.snapshot(ROOT_DATASET, "base").unwrap();
    let told = |number: u64| String::from_utf8(golden(&format!("zfs-fuse-{number}.txt.zst"))).unwrap();
    let increment = golden("zfs-fuse-1.stream.zst");
    let mut bed = bed;
    let len = increment.len();
    for (round, part) in [len / 8, len / 3, len - 1].into_iter().enumerate() {
        let name = format!("tank/try{round}");
        let properties = [("atime".to_owned(), "off".to_owned())].into();
        let clone = bed.pool.clone_snapshot(ROOT_DATASET, "base", &name, properties).unwrap();
        let volume = bed.mount.attach(Arc::clone(&clone), None).unwrap();
        let mut streams = Streams::new(&increment[..part]);
        let begin = streams.next_stream().unwrap().expect("there is one");
        assert_eq!(received_guid(&volume), Ok(begin.from_guid));
        assert!(receive(&mut streams, &begin, &volume).is_err());
        bed.pool.commit().unwrap();
        drop((volume, clone));
        bed = bed.crash(round as u64 + 2);
        bed.check(&told(0), "the base");
    }
    let clone = bed.pool.clone_snapshot(ROOT_DATASET, "base", "tank/whole", BTreeMap::new()).unwrap();
    let volume = bed.mount.attach(clone, None).unwrap();
    let mut streams = Streams::new(&increment[..]);
    let begin = streams.next_stream().unwrap().expect("there is one");
    receive(&mut streams, &begin, &volume).unwrap();
    bed.check(&told(0), "the base");
    bed.check_at(volume.getattr(larder_format::items::ROOT_INODE).unwrap().node, &told(1), "the clone");
    bed.pool.commit().unwrap();
    let report = Upkeep::new(&bed.pool).check().unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_root_directory_that_the_stream_does_not_tell_of_keeps_its_times() {
    const SA_OBJECTS: [u64; 3] = [900, 901, 902];
    let bed = Bed::new(512 << 20);
    let mut whole = Build::new(Order::Little);
    whole.begin(0, 0, 0, 7, "tank@a").master(5, 34, Some(SA_OBJECTS));
    let dir = File { mode: 0o040_755, size: 3, ..File::default() };
    let (bonus, block) = (whole.sa(2, &dir, &[]), whole.micro(&[("f", 40)]));
    whole.object(34, DIRECTORY, SA, 512, &bonus).write(34, 0, &block);
    let bonus = whole.sa(2, &File { size: 5, ..File::default() }, &[]);
    whole.object(40, PLAIN, SA, 512, &bonus).write(40, 0, &[1; 512]).attributes(SA_OBJECTS).end();
    bed.receive(&*whole.bytes());
    let before = bed.mount.getattr(NodeId::ROOT).unwrap();
    assert_eq!((before.mtime.nanos, before.ctime.nanos, before.btime.nanos), (1, 2, 999_999_999));
    bed.clock.advance(std::time::Duration::from_secs(9));
    let mut increment = Build::new(Order::Big);
    increment.begin(0, 0, 7, 8, "tank@b");
    let bonus = increment.sa(2, &File { size: 6, ..File::default() }, &[]);
    increment.object(40, PLAIN, SA, 512, &bonus).write(40, 0, &[2; 512]).end();
    bed.receive(&*increment.bytes());
    assert_eq!(bed.mount.getattr(NodeId::ROOT).unwrap(), before);
    let file = bed.mount.lookup(NodeId::ROOT, b"f").unwrap();
    assert_eq!(bed.mount.read(file.node, Handle(0), 0, 99).unwrap().to_vec(), [2; 6]);
}

#[test]
fn posix_access_lists_come_along() {
    const SA_OBJECTS: [u64; 3] = [900, 901, 902];
    let entries =
        [(1_u16, 7_u16, u32::MAX), (2, 6, 7), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        list.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let bed = Bed::new(512 << 20);
    let mut build = Build::new(Order::Little);
    build.begin(0, 0, 0, 7, "tank@a").master(5, 34, Some(SA_OBJECTS));
    let (dir, names) = (File { mode: 0o040_755, size: 3, ..File::default() }, build.micro(&[("f", 40)]));
    let bonus = build.sa(2, &dir, &[]);
    build.object(34, DIRECTORY, SA, 512, &bonus).write(34, 0, &names);
    let among =
        build::packed_list(&[("system.posix_acl_access", &list), ("system.nfs4_acl", b"none of ours")]);
    let bonus = build.sa(4, &File { mode: 0o104_770, ..File::default() }, &[&among]);
    build.object(40, PLAIN, SA, 512, &bonus).attributes(SA_OBJECTS).end();
    assert_eq!(bed.receive(&*build.bytes()).left_xattrs, 1);
    let file = bed.mount.lookup(NodeId::ROOT, b"f").unwrap();
    assert_eq!((file.perm, file.ctime.nanos), (0o4770, 2));
    assert_eq!(bed.xattrs(file.node), [(b"system.posix_acl_access".to_vec(), list)]);
}

#[test]
fn holes_are_holes_here() {
    let bed = Bed::new(512 << 20);
    bed.receive(&*golden("zfs-fuse-0.stream.zst"));
    let sparse = bed.mount.lookup(NodeId::ROOT, b"sparse").unwrap().node;
    for (name, most) in [(&b"0"[..], 0), (b"3", 768 << 10)] {
        let attr = bed.mount.lookup(sparse, name).unwrap();
        assert!(attr.size >= 3 << 20 && attr.blocks * 512 <= most, "{attr:?}");
    }
}

#[test]
fn streams_that_lie_harm_nothing_but_where_they_go() {
    let bed = Bed::new(1 << 30);
    let whole = varied();
    let mut taken = 0;
    for seed in 0..300 {
        let dataset = bed.pool.create_dataset(&format!("tank/{seed}"), BTreeMap::new()).unwrap();
        let volume = bed.mount.attach(dataset, None).unwrap();
        let lie = if seed == 0 { whole.clone() } else { changed(&whole, &mut Random(seed)) };
        for pieces in [&whole, &lie] {
            let bytes = serialize(pieces, Order::Little, true);
            let mut streams = Streams::new(&bytes[..]);
            // The second is refused as a whole one where the first was taken, or is an increment that lies.
            let result =
                streams.next_stream().ok().flatten().map(|begin| receive(&mut streams, &begin, &volume));
            taken += u64::from(matches!(result, Some(Ok(_))));
        }
        let mut lie = lie;
        lie[0].0[48] = 7;
        let bytes = serialize(&lie, Order::Little, true);
        let mut streams = Streams::new(&bytes[..]);
        let _ = streams.next_stream().ok().flatten().map(|begin| receive(&mut streams, &begin, &volume));
    }
    assert!(taken >= 300, "{taken}");
    bed.pool.commit().unwrap();
    let report = Upkeep::new(&bed.pool).check().unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// A folder of `N.stream` and `N.live`, the text of the tree that it was sent from: `tests/real/zfs_streams.sh`.
#[test]
fn streams_of_a_folder() {
    let Some(folder) = std::env::var_os("LARDER_ZFS_STREAMS") else { return };
    let bed = Bed::new(6 << 30);
    for number in 0.. {
        let path = |end| Path::new(&folder).join(format!("s{number}.{end}"));
        let Ok(stream) = std::fs::File::open(path("stream")) else { break };
        let received = bed.receive(BufReader::with_capacity(1 << 20, stream));
        bed.pool.commit().unwrap();
        println!("stream {number} received");
        let told = std::fs::read_to_string(path("live")).unwrap();
        bed.check(&told, &format!("stream {number}"));
        println!("stream {number}: {} lines equal; {received:?}", told.lines().count());
    }
}
