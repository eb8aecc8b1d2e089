//! Snapshots below `.zfs` and alone: as at the moment when they were taken, whatever becomes of the live tree.

use crate::bed::*;
use crate::damage;
use crate::lists::{self, ACCESS, DEFAULT};
use crate::quota::{dataset, show};
use larder_files::*;
use larder_format::items::{ENTRY, LAST_INODE, MAX_DATASET, ROOT_INODE};
use larder_format::{DatasetId, InodeId};
use larder_pool::{PoolError, ROOT_DATASET};
use larder_sim::{SimWorld, Survival};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const READ: OpenFlags = OpenFlags { write: false, ..READ_WRITE };

fn bed() -> Bed {
    Bed::new(&[("recordsize", "4096"), ("atime", "off")])
}

/// All that can be seen of an object, but for the dataset in its number.
#[derive(Debug, PartialEq)]
struct Seen {
    attr: Attr,
    content: Vec<u8>,
    data: Vec<(u64, u64)>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn inode(node: NodeId) -> InodeId {
    if node == NodeId::ROOT { ROOT_INODE } else { node.unpack().1 }
}

fn see(ops: &dyn Ops, node: NodeId) -> Seen {
    let attr = ops.getattr(node).unwrap();
    let (mut content, mut data, mut target) = (Vec::new(), Vec::new(), Vec::new());
    match attr.kind {
        FileKind::Regular => {
            let handle = ops.open(node, READ).unwrap();
            content = ops.read(node, handle, 0, u32::MAX).unwrap().to_vec();
            let mut at = 0;
            while let Ok(start) = ops.lseek(node, handle, at, Seek::Data) {
                at = ops.lseek(node, handle, start, Seek::Hole).unwrap();
                data.push((start, at));
            }
            ops.release(node, handle).unwrap();
        }
        FileKind::Symlink => target = ops.readlink(node).unwrap(),
        _ => {}
    }
    let listed = ops.listxattr(node).unwrap();
    let names = listed.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let xattrs = names.map(|name| (name.to_vec(), ops.getxattr(node, name).unwrap())).collect();
    // Numbers are the same in each, so that generations tell them apart.
    let attr = Attr { node: NodeId::from_raw(inode(attr.node).get()), generation: 0, ..attr };
    Seen { attr, content, data, target, xattrs }
}

/// A directory and all below it, by path.
fn image(ops: &dyn Ops, dir: NodeId) -> BTreeMap<String, Seen> {
    let mut all = BTreeMap::from([(String::new(), see(ops, dir))]);
    let handle = ops.opendir(dir).unwrap();
    let (mut found, mut cookie) = (Vec::new(), 0);
    loop {
        let (before, from) = (found.len(), cookie);
        let mut emit = |entry: DirEntry<'_>| {
            if found.len() == before + 40 {
                return false;
            }
            cookie = entry.next_cookie;
            found.push((String::from_utf8_lossy(entry.name).into_owned(), entry.node));
            true
        };
        ops.readdir(dir, handle, from, true, &mut emit).unwrap();
        if found.len() == before {
            break;
        }
    }
    ops.releasedir(dir, handle).unwrap();
    assert_eq!((&found[0].0[..], found[0].1, &found[1].0[..]), (".", dir, ".."));
    for (name, node) in found.into_iter().skip(2) {
        assert_eq!(ops.lookup(dir, name.as_bytes()).unwrap().node, node);
        if ops.getattr(node).unwrap().kind == FileKind::Directory {
            assert_eq!(ops.lookup(node, b"..").unwrap().node, dir);
            let below = image(ops, node);
            all.extend(below.into_iter().map(|(path, seen)| (format!("{name}/{path}"), seen)));
        } else {
            all.insert(name, see(ops, node));
        }
    }
    all
}

fn fill(bed: &Bed) {
    let dir = bed.dir(ROOT, "letters");
    bed.mount.setxattr(dir, DEFAULT, &lists::plain(0o640), XattrMode::Set).unwrap();
    let plain = bed.file(dir, "plain");
    bed.write(plain, 0, &[1; 3 * 4096 + 17]);
    bed.mount.link(plain, ROOT, b"twin").unwrap();
    bed.mount.setxattr(plain, b"user.small", b"value", XattrMode::Set).unwrap();
    bed.mount.setxattr(plain, b"user.large", &[7; 10_000], XattrMode::Set).unwrap();
    let list =
        lists::pack(&[(1, 6, u32::MAX), (2, 4, 7), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]);
    bed.mount.setxattr(plain, ACCESS, &list, XattrMode::Set).unwrap();
    let sparse = bed.file(dir, "sparse");
    bed.write(sparse, 0, b"begin");
    bed.write(sparse, 1 << 20, b"middle");
    bed.resize(sparse, 2 << 20);
    bed.mount.symlink(dir, b"link", b"../twin", &USER).unwrap();
    bed.mount.mknod(dir, b"pipe", FileKind::Fifo, 0o600, 0, &USER).unwrap();
    let many = bed.dir(dir, "many");
    for i in 0..300 {
        bed.file(many, &format!("file{i}"));
    }
}

/// Nothing stays as it was.
fn change(bed: &Bed) {
    bed.tick();
    let node = |path: &str| bed.find(path).unwrap().node;
    let (dir, plain, many) = (node("letters"), node("letters/plain"), node("letters/many"));
    bed.write(plain, 4096, &[2; 100]);
    bed.resize(node("letters/sparse"), 100);
    bed.mount.removexattr(plain, b"user.small").unwrap();
    bed.mount.setxattr(plain, b"user.large", b"small now", XattrMode::Set).unwrap();
    bed.mount
        .setattr(plain, &SetAttr { perm: Some(0o400), uid: Some(5), ..SetAttr::default() }, &USER)
        .unwrap();
    bed.mount.unlink(ROOT, b"twin").unwrap();
    bed.mount.rename(dir, b"link", ROOT, b"moved", RenameFlags::default()).unwrap();
    (0..200).for_each(|i| bed.mount.unlink(many, format!("file{i}").as_bytes()).unwrap());
    bed.write(bed.file(many, "new"), 0, b"new");
    bed.mount.rename(ROOT, b"letters", ROOT, b"post", RenameFlags::default()).unwrap();
}

fn remove_all(bed: &Bed) {
    let (post, many) = (bed.find("post").unwrap().node, bed.find("post/many").unwrap().node);
    (200..300).for_each(|i| bed.mount.unlink(many, format!("file{i}").as_bytes()).unwrap());
    bed.mount.unlink(many, b"new").unwrap();
    bed.mount.rmdir(post, b"many").unwrap();
    [&b"plain"[..], b"sparse", b"pipe"].iter().for_each(|name| bed.mount.unlink(post, name).unwrap());
    bed.mount.rmdir(ROOT, b"post").unwrap();
    bed.mount.unlink(ROOT, b"moved").unwrap();
    while bed.mount.reap_step(1000).unwrap() {}
}

fn snapshot(bed: &Bed, name: &str) {
    bed.pool.snapshot(ROOT_DATASET, name).unwrap();
}

/// The root of a snapshot below `.zfs`.
fn root(bed: &Bed, name: &str) -> NodeId {
    bed.find(&format!(".zfs/snapshot/{name}")).unwrap().node
}

fn alone(bed: &Bed, name: &str) -> View {
    View::of_snapshot(Arc::clone(&bed.mount), ROOT_DATASET, name).unwrap()
}

fn let_go(bed: &Bed, name: &str) -> Result<()> {
    let all = bed.pool.snapshots(ROOT_DATASET);
    let high = all.iter().find(|snapshot| snapshot.name == name).unwrap().high;
    bed.mount.let_go_of_snapshot(ROOT_DATASET, high)
}

/// Whether nobody has a snapshot open; one that is not is destroyed.
fn is_closed(bed: &Bed, name: &str) -> bool {
    match bed.pool.destroy_snapshot(ROOT_DATASET, name) {
        Err(PoolError::Busy(_)) => false,
        destroyed => destroyed.is_ok(),
    }
}

#[test]
fn a_snapshot_shows_the_moment_when_it_was_taken_whatever_becomes_of_the_tree() {
    let bed = bed();
    fill(&bed);
    snapshot(&bed, "one");
    let one = image(&*bed.mount, ROOT);
    assert!(one.len() > 300 && one["letters/sparse"].data.len() == 2);
    assert_eq!((one["letters/plain"].xattrs.len(), one["twin"].attr.nlink), (3, 2));
    let check = |bed: &Bed, name: &str, wanted: &BTreeMap<String, Seen>| {
        let root = root(bed, name);
        assert!(image(&*bed.mount, root) == *wanted, "{name} below .zfs");
        assert!(image(&alone(bed, name), ROOT) == *wanted, "{name} alone");
        let zfs = View::new(Arc::clone(&bed.mount), ROOT_DATASET);
        assert!(image(&zfs, root) == *wanted, "{name} below .zfs of a view");
    };
    check(&bed, "one", &one);
    change(&bed);
    check(&bed, "one", &one);
    snapshot(&bed, "two");
    let two = image(&*bed.mount, ROOT);
    assert_ne!(one, two);
    remove_all(&bed);
    for _ in 0..4 {
        bed.pool.commit().unwrap();
        while bed.pool.free_step(1000).unwrap() {}
    }
    assert_eq!(image(&*bed.mount, ROOT).len(), 1);
    // Nothing is in memory any more.
    bed.pool.store().drop_caches();
    check(&bed, "one", &one);
    check(&bed, "two", &two);
    bed.check();
    // The power is cut now, or the process ends.
    let images = bed.sim.trace().crash_images(bed.sim.trace().len(), Survival::DropAll);
    let cut = Bed::import(SimWorld::from_images(images), Arc::clone(&bed.clock), 7);
    for bed in [cut, bed.crash(8)] {
        check(&bed, "one", &one);
        check(&bed, "two", &two);
        bed.check();
    }
}

#[test]
fn files_are_copied_back_by_reference() {
    let bed = bed();
    fill(&bed);
    snapshot(&bed, "one");
    let wanted = bed.content(bed.find("twin").unwrap().node);
    bed.resize(bed.find("twin").unwrap().node, 0);
    let from = bed.find(".zfs/snapshot/one/twin").unwrap().node;
    let to = bed.file(ROOT, "restored");
    let copied = bed.mount.copy_range((from, 0), (to, 0), u64::MAX).unwrap();
    assert_eq!((copied.bytes, copied.shared), (wanted.len() as u64, wanted.len() as u64));
    // To the live file whose number is the same but for the dataset.
    let live = bed.find("twin").unwrap().node;
    assert_eq!(inode(live), inode(from));
    let len = wanted.len() as u64;
    let view = View::new(Arc::clone(&bed.mount), ROOT_DATASET);
    let copied = view.copy_file_range((from, Handle(0), 0), (live, Handle(0), 0), len);
    assert_eq!(copied, Ok(len));
    assert_eq!((bed.content(to), bed.content(live)), (wanted.clone(), wanted));
    bed.pool.commit().unwrap();
    bed.check();
    assert_eq!(bed.mount.link(from, ROOT, b"linked").unwrap_err(), FsError::CrossDevice);
}

/// Changes that are asked of a file and of a directory, which both cannot be changed; `free` can.
fn changes(ops: &dyn Ops, file: NodeId, dir: NodeId, free: Option<NodeId>) -> Vec<Result<()>> {
    let no_flags = RenameFlags::default();
    let set = |set: SetAttr| ops.setattr(file, &set, &USER).map(drop);
    let mut done = vec![
        ops.mknod(dir, b"new", FileKind::Regular, 0o644, 0, &USER).map(drop),
        ops.mkdir(dir, b"new", 0o755, &USER).map(drop),
        ops.symlink(dir, b"new", b"target", &USER).map(drop),
        ops.create(dir, b"new", 0o644, READ_WRITE, &USER).map(drop),
        ops.create(dir, b"plain", 0o644, READ, &USER).map(drop),
        ops.tmpfile(dir, 0o644, READ_WRITE, &USER).map(drop),
        ops.link(file, dir, b"new").map(drop),
        ops.unlink(dir, b"plain"),
        ops.rmdir(dir, b"many"),
        ops.rmdir(dir, b"snapshot"),
        ops.rename(dir, b"plain", dir, b"new", no_flags),
        set(SetAttr { size: Some(1), ..SetAttr::default() }),
        set(SetAttr { perm: Some(0o777), ..SetAttr::default() }),
        set(SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }),
        ops.write(file, Handle(0), 0, b"data", false).map(drop),
        ops.fallocate(file, Handle(0), 0, 10, Allocate::Extend),
        ops.fallocate(file, Handle(0), 0, 10, Allocate::Punch),
        ops.setxattr(file, b"user.small", b"v", XattrMode::Set),
        ops.setxattr(file, ACCESS, &lists::plain(0o777), XattrMode::Set),
        ops.removexattr(file, b"user.small"),
        ops.setattr(dir, &SetAttr { perm: Some(0o777), ..SetAttr::default() }, &USER).map(drop),
        ops.setxattr(dir, b"user.small", b"v", XattrMode::Set),
    ];
    if let Some(free) = free {
        done.push(ops.rename(free, b"free", dir, b"new", no_flags));
        done.push(ops.rename(dir, b"plain", free, b"new", no_flags));
        let free = ops.lookup(free, b"free").unwrap().node;
        done.push(ops.link(free, dir, b"new").map(drop));
        done.push(ops.copy_file_range((free, Handle(0), 0), (file, Handle(0), 0), 1).map(drop));
    }
    done
}

#[test]
fn everything_that_would_change_a_snapshot_is_refused() {
    let bed = bed();
    fill(&bed);
    bed.write(bed.file(ROOT, "free"), 0, b"content");
    snapshot(&bed, "one");
    let wanted = image(&*bed.mount, ROOT);
    let view = View::new(Arc::clone(&bed.mount), ROOT_DATASET);
    let own = alone(&bed, "one");
    let zfs = view.lookup(ROOT, b".zfs").unwrap().node;
    let snapshots = view.lookup(zfs, b"snapshot").unwrap().node;
    let letters = bed.find(".zfs/snapshot/one/letters").unwrap().node;
    let plain = view.lookup(letters, b"plain").unwrap().node;
    let own_letters = own.lookup(ROOT, b"letters").unwrap().node;
    let own_plain = own.lookup(own_letters, b"plain").unwrap().node;
    for (ops, file, dir, free) in [
        (&view as &dyn Ops, plain, letters, Some(ROOT)),
        (&view, plain, root(&bed, "one"), Some(ROOT)),
        (&view, plain, snapshots, Some(ROOT)),
        (&view, zfs, zfs, Some(ROOT)),
        (&view, snapshots, zfs, Some(ROOT)),
        (&own, own_plain, own_letters, None),
    ] {
        for (number, done) in changes(ops, file, dir, free).into_iter().enumerate() {
            assert_eq!(done, Err(FsError::ReadOnly), "change {number} of {file:?} in {dir:?}");
        }
    }
    for (ops, file) in [(&view as &dyn Ops, plain), (&own, own_plain)] {
        let truncate = OpenFlags { truncate: true, ..READ };
        assert_eq!(ops.open(file, READ_WRITE), Err(FsError::ReadOnly));
        assert_eq!(ops.open(file, truncate), Err(FsError::ReadOnly));
        // Reading works.
        let handle = ops.open(file, READ).unwrap();
        ops.flush(file, handle).unwrap();
        ops.fsync(file, handle, false).unwrap();
        ops.release(file, handle).unwrap();
    }
    // Nor is `.zfs` itself made, replaced or removed.
    assert_eq!(view.mkdir(ROOT, b".zfs", 0o755, &USER).unwrap_err(), FsError::Exists);
    assert_eq!(view.create(ROOT, b".zfs", 0o644, READ_WRITE, &USER).unwrap_err(), FsError::Exists);
    let free = bed.find("free").unwrap().node;
    assert_eq!(view.link(free, ROOT, b".zfs").unwrap_err(), FsError::Exists);
    assert_eq!(view.rmdir(ROOT, b".zfs"), Err(FsError::ReadOnly));
    assert_eq!(view.rename(ROOT, b"free", ROOT, b".zfs", RenameFlags::default()), Err(FsError::ReadOnly));
    assert_eq!(view.rename(ROOT, b".zfs", ROOT, b"x", RenameFlags::default()), Err(FsError::ReadOnly));
    assert_eq!((bed.mount.unstored(), image(&*bed.mount, ROOT) == wanted), (0, true));
    assert!(!bed.pool.dataset(ROOT_DATASET).unwrap().has_uncommitted());
    assert!(image(&own, ROOT) == wanted);
    bed.check();
}

#[test]
fn control_directories_are_directories() {
    let bed = bed();
    // Made by something that did not know of them.
    bed.file(ROOT, "x");
    let volume = bed.mount.volume(ROOT_DATASET).unwrap();
    volume.rename(ROOT_INODE, b"x", ROOT_INODE, b".zfs", RenameFlags::default()).unwrap();
    bed.dir(ROOT, "dir");
    let names = |node| bed.names(node).into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
    assert_eq!(names(ROOT), [".", "..", "dir"]);
    let zfs = bed.find(".zfs").unwrap();
    assert_eq!((zfs.kind, zfs.perm, zfs.uid, zfs.gid), (FileKind::Directory, 0o555, 0, 0));
    bed.pool.set_property(ROOT_DATASET, "snapdir", "visible").unwrap();
    assert_eq!(names(ROOT), [".", "..", ".zfs", "dir"]);
    bed.pool.set_property(ROOT_DATASET, "snapdir", "hidden").unwrap();
    assert_eq!(names(ROOT), [".", "..", "dir"]);
    let below = bed.names(zfs.node);
    assert_eq!(below.iter().map(|(name, ..)| &name[..]).collect::<Vec<_>>(), [".", "..", "snapshot"]);
    let snapshots = bed.find(".zfs/snapshot").unwrap().node;
    assert_eq!((below[0].1, below[1].1, below[2].1), (zfs.node, ROOT, snapshots));
    assert_eq!(snapshots, NodeId::of_snapshots(ROOT_DATASET));
    assert_eq!(names(snapshots), [".", ".."]);
    for node in [zfs.node, snapshots] {
        assert_eq!(bed.mount.lookup(node, b".").unwrap().node, node);
        assert_eq!(bed.mount.lookup(node, b"nothing").unwrap_err(), FsError::NotFound);
        assert_eq!(bed.mount.lookup(node, &[b'x'; 256]).unwrap_err(), FsError::NameTooLong);
        assert_eq!(bed.mount.getxattr(node, ACCESS), Err(FsError::NoAttr));
        assert_eq!(bed.mount.listxattr(node), Ok(Vec::new()));
        assert_eq!(bed.mount.statfs(node), bed.mount.statfs(ROOT));
        assert_eq!(bed.mount.open(node, READ), Err(FsError::IsDirectory));
        let handle = bed.mount.opendir(node).unwrap();
        bed.mount.fsyncdir(node, handle, false).unwrap();
        bed.mount.releasedir(node, handle).unwrap();
    }
    assert_eq!(bed.mount.lookup(snapshots, b"\xff").unwrap_err(), FsError::NotFound);
    assert_eq!(bed.mount.lookup(bed.find("dir").unwrap().node, b".zfs").unwrap_err(), FsError::NotFound);
    // Many are listed without one being opened; the oldest come first.
    let wanted: Vec<_> = (0..1500).map(|i| format!("s{i}")).collect();
    bed.tick();
    let wanted_all = wanted.iter().map(|name| (ROOT_DATASET, name.clone())).collect();
    bed.pool.snapshot_all(wanted_all, BTreeMap::new()).unwrap();
    assert!(bed.mount.getattr(snapshots).unwrap().mtime > zfs.mtime, "it changed");
    assert_eq!(names(snapshots)[2..], wanted);
    let first = root(&bed, "s0");
    let listed = bed.names(snapshots);
    assert_eq!((listed[1].1, listed[2].1), (zfs.node, first));
    assert_eq!(bed.mount.lookup(first, b"..").unwrap().node, snapshots);
    assert_eq!(bed.names(first)[1].1, snapshots);
    assert!(names(first).contains(&".zfs".into()), "there it is the file that it was");
    assert_eq!(bed.mount.lookup(first, b".zfs").unwrap().kind, FileKind::Regular);
    assert!(is_closed(&bed, "s1") && !is_closed(&bed, "s0"));
    assert_eq!(names(snapshots)[2..4], ["s0", "s2"]);
    // As in ZFS there is as much room as in the dataset.
    let (live, old) = (bed.mount.statfs(ROOT).unwrap(), bed.mount.statfs(first).unwrap());
    let used = bed.pool.snapshots(ROOT_DATASET)[0].referenced / u64::from(old.block_size);
    assert_eq!((old.available, old.free), (live.available, live.free));
    assert!((used..=used + 1).contains(&(old.blocks - old.free)));
    volume.rename(ROOT_INODE, b".zfs", ROOT_INODE, b"x", RenameFlags::default()).unwrap();
    assert!(names(ROOT).contains(&"x".into()));
}

#[test]
fn numbers_are_others_than_of_live_files_and_last_though_volumes_are_closed() {
    let bed = bed();
    fill(&bed);
    for i in 0..80 {
        snapshot(&bed, &format!("s{i}"));
    }
    let live = bed.find("twin").unwrap().node;
    let twin = |i: usize| bed.find(&format!(".zfs/snapshot/s{i}/twin")).unwrap().node;
    let (first, second) = (twin(0), twin(1));
    assert!(live != first && first != second && inode(live) == inode(first));
    assert_eq!((first.unpack().0.get(), second.unpack().0.get()), (MAX_DATASET, MAX_DATASET - 1));
    let handle = bed.mount.open(second, READ).unwrap();
    for i in 2..80 {
        twin(i);
    }
    assert!(!is_closed(&bed, "s1"), "it is open");
    assert!(!is_closed(&bed, "s79"), "it was used a moment ago");
    assert_eq!(bed.mount.open_count(ROOT_DATASET), 1);
    assert!(is_closed(&bed, "s2"));
    // The number of the first is as good as ever.
    assert_eq!(bed.read(first, 0, 3), [1; 3]);
    assert!(!is_closed(&bed, "s0"), "it was opened again");
    assert_eq!(twin(0), first);
    bed.mount.release(second, handle).unwrap();
    assert_eq!(bed.mount.open_count(ROOT_DATASET), 0);
    // Alone a snapshot has the numbers of the live files.
    let (zero, one) = (alone(&bed, "s0"), alone(&bed, "s1"));
    let numbers = [&zero as &dyn Ops, &one].map(|ops| ops.lookup(ROOT, b"twin").unwrap().node);
    assert_eq!(numbers, [live; 2]);
    assert_eq!(zero.getattr(ROOT).unwrap().node, ROOT);
    assert_eq!(zero.lookup(ROOT, b"..").unwrap().node, ROOT);
    assert_eq!(zero.lookup(ROOT, b".zfs").unwrap_err(), FsError::NotFound);
    // None is left for another when the pool's datasets have taken all below.
    let lowest = MAX_DATASET - 80;
    bed.pool.set_note("last_dataset", &(lowest - 1).to_string()).unwrap();
    snapshot(&bed, "last");
    root(&bed, "last");
    snapshot(&bed, "none");
    assert_eq!(bed.find(".zfs/snapshot/none").unwrap_err(), FsError::NoSpace);
    let made = bed.pool.create_dataset("tank/more", Default::default()).unwrap();
    let attached = bed.mount.attach(made, Some((ROOT_DATASET, b"more".to_vec())));
    assert_eq!(attached.map(drop), Err(FsError::NoSpace));
}

#[test]
fn a_snapshot_in_use_is_not_let_go_and_one_that_was_is_stale() {
    let bed = bed();
    fill(&bed);
    snapshot(&bed, "one");
    assert_eq!(let_go(&bed, "one"), Ok(()), "nobody has looked at it");
    let (top, twin) = (root(&bed, "one"), bed.find(".zfs/snapshot/one/twin").unwrap().node);
    let handle = bed.mount.open(twin, READ).unwrap();
    assert_eq!(let_go(&bed, "one"), Err(FsError::Busy));
    bed.mount.release(twin, handle).unwrap();
    let handle = bed.mount.opendir(top).unwrap();
    assert_eq!(let_go(&bed, "one"), Err(FsError::Busy));
    bed.mount.releasedir(top, handle).unwrap();
    let view = alone(&bed, "one");
    assert_eq!(let_go(&bed, "one"), Err(FsError::Busy));
    drop(view);
    assert!(!is_closed(&bed, "one"));
    assert_eq!(let_go(&bed, "one"), Ok(()));
    for node in [top, twin] {
        assert_eq!(bed.mount.getattr(node).unwrap_err(), FsError::Stale);
        assert_eq!(bed.mount.lookup(node, b".").unwrap_err(), FsError::Stale);
        assert_eq!(bed.mount.open(node, READ).unwrap_err(), FsError::Stale);
    }
    // Its name leads to it until it is destroyed.
    assert_eq!(root(&bed, "one"), top);
    assert_eq!(bed.read(twin, 0, 1), [1]);
    assert_eq!(let_go(&bed, "one"), Ok(()));
    assert!(is_closed(&bed, "one"));
    assert_eq!(bed.find(".zfs/snapshot/one").unwrap_err(), FsError::NotFound);
    assert_eq!(bed.mount.getattr(twin).unwrap_err(), FsError::Stale);
    bed.write(bed.find("twin").unwrap().node, 0, &[9; 10]);
    snapshot(&bed, "one");
    let again = bed.find(".zfs/snapshot/one/twin").unwrap().node;
    assert_eq!(bed.read(again, 0, 1), [9]);
    assert_eq!(bed.mount.getattr(twin).unwrap_err(), FsError::Stale);
    assert!(root(&bed, "one") != top && inode(again) == inode(twin));
    // One that is renamed is the same under another name, open or not.
    let rename = |from: &str, to: &str| {
        bed.pool.rename_snapshots(&[(ROOT_DATASET, from.into(), to.into())]).unwrap();
    };
    rename("one", "two");
    assert_eq!(bed.find(".zfs/snapshot/two/twin").unwrap().node, again);
    assert_eq!(bed.find(".zfs/snapshot/one").unwrap_err(), FsError::NotFound);
    (0..70).for_each(|i| snapshot(&bed, &format!("s{i}")));
    let open_others = || {
        for i in 0..70 {
            root(&bed, &format!("s{i}"));
        }
    };
    open_others();
    rename("two", "three");
    assert_eq!(bed.read(again, 0, 1), [9]);
    // One destroyed without being let go, since nobody had it open, is gone as well.
    open_others();
    assert!(is_closed(&bed, "three"));
    assert_eq!(bed.mount.getattr(again).unwrap_err(), FsError::Stale);
}

#[test]
fn a_view_reaches_snapshots_of_its_datasets_alone() {
    let bed = bed();
    let make = |name: &str| bed.pool.create_dataset(name, BTreeMap::new()).unwrap();
    let (a, b) = (make("tank/a"), make("tank/a/b"));
    let empty = bed.pool.snapshot(a.id(), "empty").unwrap();
    bed.mount.attach(Arc::clone(&a), None).unwrap();
    bed.mount.attach(Arc::clone(&b), Some((a.id(), b"b".to_vec()))).unwrap();
    let (c, _) = dataset(&bed, "tank/c", &[]);
    let all = [a.id(), b.id(), c.id()];
    let top = |id: DatasetId| NodeId::pack(id, ROOT_INODE);
    for id in all {
        bed.write(bed.file(top(id), "file"), 0, b"content");
        bed.pool.snapshot(id, "one").unwrap();
    }
    let control = |id: DatasetId| [LAST_INODE + 1, LAST_INODE + 2].map(|i| NodeId::pack(id, InodeId::new(i)));
    let file = |ops: &dyn Ops, dir: NodeId| {
        let names = [&b".zfs"[..], b"snapshot", b"one", b"file"];
        names.iter().fold(dir, |at, name| ops.lookup(at, name).unwrap().node)
    };
    let [in_a, in_b, in_c] = all.map(|id| file(&*bed.mount, top(id)));
    let view = View::new(Arc::clone(&bed.mount), a.id());
    assert_eq!(file(&view, ROOT), in_a);
    assert_eq!(file(&view, view.lookup(ROOT, b"b").unwrap().node), in_b);
    for node in [in_a, in_b].into_iter().chain(control(a.id())).chain(control(b.id())) {
        assert_eq!(view.getattr(node).unwrap().node, node);
    }
    let own = View::of_snapshot(Arc::clone(&bed.mount), a.id(), "one").unwrap();
    let live = view.lookup(ROOT, b"file").unwrap().node;
    assert_eq!(own.getattr(live).unwrap().node, live);
    let is_stale = |ops: &dyn Ops, node: NodeId| {
        assert_eq!(ops.getattr(node).unwrap_err(), FsError::Stale, "{node:?}");
        assert_eq!(ops.lookup(node, b".").unwrap_err(), FsError::Stale);
        assert_eq!(ops.open(node, READ).unwrap_err(), FsError::Stale);
        assert_eq!(ops.copy_file_range((node, Handle(0), 0), (live, Handle(0), 0), 1), Err(FsError::Stale));
    };
    let foreign = || control(c.id()).into_iter().chain([in_c, top(c.id())]);
    foreign().for_each(|node| is_stale(&view, node));
    foreign().chain([in_a, in_b, top(b.id())]).for_each(|node| is_stale(&own, node));
    control(a.id()).iter().for_each(|node| assert_eq!(own.getattr(*node).unwrap_err(), FsError::NotFound));
    // One that had no root directory yet has nothing to show.
    assert_eq!(empty.name, "empty");
    let snapshots = NodeId::of_snapshots(a.id());
    assert_eq!(view.lookup(snapshots, b"empty").unwrap_err(), FsError::NotFound);
    let refused = View::of_snapshot(Arc::clone(&bed.mount), a.id(), "empty");
    assert_eq!(refused.map(drop), Err(FsError::NotFound));
    // A dataset that is not shown any more takes its snapshots along; who shows one alone keeps it.
    bed.mount.detach(b.id()).unwrap();
    bed.mount.detach(a.id()).unwrap();
    for node in [in_a, in_b].into_iter().chain(control(a.id())) {
        assert_eq!(bed.mount.getattr(node).unwrap_err(), FsError::Stale);
    }
    bed.pool.destroy_snapshot(b.id(), "one").unwrap();
    assert_eq!(own.read(live, Handle(0), 0, 10).unwrap().to_vec(), b"content");
    assert!(matches!(bed.pool.destroy_snapshot(a.id(), "one"), Err(PoolError::Busy(_))));
    drop(own);
    bed.pool.destroy_snapshot(a.id(), "one").unwrap();
}

#[test]
fn damage_that_is_read_in_a_snapshot_is_named_with_it() {
    let bed = damage::bed();
    let dir = bed.dir(ROOT, "letters");
    let (a, b) = (bed.file(dir, "a"), bed.file(dir, "b"));
    bed.write(a, 0, &damage::content(1, 8));
    bed.write(b, 0, &damage::content(2, 8));
    snapshot(&bed, "monday");
    bed.write(a, damage::RECORD, &damage::content(3, 1));
    bed.mount.unlink(dir, b"b").unwrap();
    bed.mount.rename(ROOT, b"letters", ROOT, b"post", RenameFlags::default()).unwrap();
    damage::settle(&bed);
    {
        let monday = bed.pool.snapshot_view(ROOT_DATASET, "monday").unwrap();
        damage::rot_record_in(&bed, &monday, a, damage::RECORD);
        damage::rot_record_in(&bed, &monday, b, 3 * damage::RECORD);
    }
    bed.pool.store().drop_caches();
    let node = |name: &str| bed.find(&format!(".zfs/snapshot/monday/letters/{name}")).unwrap().node;
    damage::assert_served(&bed, node("a"), &damage::content(1, 8), &[1]);
    assert_eq!(damage::named(&bed), damage::set(&["@monday:/letters/a"]));
    let (view, len) = (alone(&bed, "monday"), damage::RECORD as u32);
    assert!(damage::is_eio(view.read(b, Handle(0), 3 * damage::RECORD, len)));
    assert_eq!(damage::named(&bed), damage::set(&["@monday:/letters/a", "@monday:/letters/b"]));
    assert_eq!(bed.read(a, damage::RECORD, len), damage::content(3, 1));
    let told = bed.mount.damaged(&bed.upkeep.damage.known());
    let inodes: Vec<_> = told.iter().map(|of| (of.dataset, of.inode, of.ranges.len(), of.whole)).collect();
    let wanted = [a, b].map(|node| (ROOT_DATASET, Some(inode(node)), 1, false));
    assert_eq!(inodes, wanted);
}

#[test]
fn a_folder_of_a_snapshot_with_a_lost_leaf_lists_the_other_names_and_then_the_error() {
    let bed = damage::bed();
    let dir = bed.dir(ROOT, "names");
    let count = 1500;
    for i in 0..count {
        bed.file(dir, &format!("a name that is rather long, so that there are several leaves {i}"));
    }
    snapshot(&bed, "monday");
    let bed = bed.reopen(2);
    let leaves = damage::nodes(&bed, 0);
    let id = inode(dir).get();
    let of_dir: Vec<_> = leaves.iter().filter(|(key, _)| (key.object, key.kind) == (id, ENTRY)).collect();
    damage::rot(&bed, of_dir[1].1);
    let lost = of_dir[1].0.offset..of_dir[2].0.offset;
    let bed = bed.crash(3);
    let dir = bed.find(".zfs/snapshot/monday/names").unwrap().node;
    let (mut told, mut at) = (0, 0);
    let ended = loop {
        let mut any = false;
        let outcome = bed.mount.readdir(dir, Handle(0), at, false, &mut |entry| {
            assert!(!lost.contains(&entry.next_cookie));
            (told, at, any) = (told + 1, entry.next_cookie, true);
            true
        });
        if outcome.is_err() || !any {
            break outcome;
        }
    };
    assert!(damage::is_eio(ended) && told > count / 2 && told < count && at > lost.end, "{told} {at}");
    damage::name_lost(&bed);
    assert!(damage::named(&bed).contains("@monday:/names"), "{:?}", damage::named(&bed));
}

#[test]
fn a_volume_that_somebody_still_has_after_it_was_detached_removes_nothing_of_the_head_that_was_rolled_back() {
    let bed = bed();
    let (made, top) = dataset(&bed, "tank/d", &[]);
    let file = bed.file(top, "large");
    let content: Vec<u8> = (0..400_000).map(|i| (i / 7) as u8).collect();
    bed.write(file, 0, &content);
    bed.pool.snapshot(made.id(), "whole").unwrap();
    bed.mount.unlink(top, b"large").unwrap();
    bed.pool.commit().unwrap();
    let held = bed.mount.volume(made.id()).unwrap();
    // Some of it goes at once, the rest by and by.
    assert!(held.reap_step(1).unwrap());
    bed.mount.detach(made.id()).unwrap();
    bed.pool.commit().unwrap();
    assert!(!bed.mount.is_gone(made.id()), "somebody has it");
    assert!(!held.reap_step(1000).unwrap());
    bed.pool.rollback(made.id(), "whole", false).unwrap();
    assert!(!held.reap_step(1000).unwrap());
    drop(held);
    assert!(bed.mount.is_gone(made.id()));
    let before = made.generation();
    let top = show(&bed, &made);
    let file = bed.mount.lookup(top, b"large").unwrap();
    assert!(before > 0 && file.generation == before, "the kernel takes it for another file");
    assert!(bed.content(file.node) == content);
    bed.check();
}

#[test]
fn on_a_full_pool_snapshots_are_destroyed_and_a_head_goes_back_and_that_makes_room() {
    for goes_back in [false, true] {
        let bed = Bed::new(&[("recordsize", "131072"), ("compression", "off"), ("atime", "off")]);
        let (made, top) = dataset(&bed, "tank/d", &[]);
        let (kept, large) = (bed.file(top, "kept"), bed.file(top, "large"));
        bed.write(kept, 0, &[7; 4 << 20]);
        let fill = |node, byte: u8| {
            let mut at = 0;
            loop {
                match bed.mount.write(node, Handle(0), at, &[byte; 1 << 20], false) {
                    Ok(written) => at += u64::from(written),
                    Err(FsError::NoSpace) => return at,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        if goes_back {
            bed.pool.snapshot(made.id(), "all").unwrap();
        }
        let size = fill(large, 1);
        assert!(size > 10 << 20, "{size}");
        if !goes_back {
            bed.pool.snapshot(made.id(), "all").unwrap();
        }
        // The snapshot has all of it: removing brings nothing where it was taken after, and works all the same.
        bed.mount.unlink(top, b"large").unwrap();
        bed.mount.forget(large, u64::MAX);
        if goes_back {
            bed.mount.detach(made.id()).unwrap();
            bed.pool.commit().unwrap();
            bed.pool.rollback(made.id(), "all", false).unwrap();
            show(&bed, &made);
        } else {
            let other = bed.file(top, "other");
            let more = fill(other, 2);
            assert!(more < size / 4, "{more} of {size}");
            bed.mount.unlink(top, b"other").unwrap();
            bed.pool.destroy_snapshot(made.id(), "all").unwrap();
            bed.pool.commit().unwrap();
        }
        // Nobody but the writer frees what came of it.
        let again = bed.file(top, "again");
        let room = fill(again, 3);
        assert!(room > size * 3 / 4, "{room} of {size}");
        assert!(bed.content(bed.mount.lookup(top, b"kept").unwrap().node) == [7; 4 << 20]);
        bed.check();
    }
}

#[test]
fn many_read_snapshots_that_are_closed_and_let_go_meanwhile() {
    const SNAPSHOTS: u64 = 100;
    let bed = bed();
    let file = bed.file(ROOT, "file");
    for i in 0..SNAPSHOTS {
        bed.write(file, 0, &i.to_le_bytes());
        snapshot(&bed, &format!("s{i}"));
    }
    let (read, stale) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = |caller: u64| {
        let view = View::new(Arc::clone(&bed.mount), ROOT_DATASET);
        for step in 0..3000 {
            let i = (step * 7 + caller * 31) % SNAPSHOTS;
            if step % 50 == 49 {
                match let_go(&bed, &format!("s{i}")) {
                    Ok(()) | Err(FsError::Busy) => continue,
                    Err(error) => panic!("{error}"),
                }
            }
            let names =
                [b".zfs".to_vec(), b"snapshot".to_vec(), format!("s{i}").into_bytes(), b"file".to_vec()];
            let found = names.iter().try_fold(ROOT, |at, name| Ok(view.lookup(at, name)?.node));
            let opened = found.and_then(|node| Ok((node, view.open(node, READ)?)));
            match opened {
                Ok((node, handle)) => {
                    let found = view.read(node, handle, 0, 8).unwrap().to_vec();
                    assert_eq!(found, i.to_le_bytes());
                    view.release(node, handle).unwrap();
                    read.fetch_add(1, Ordering::Relaxed);
                }
                // Let go between two steps.
                Err(FsError::Stale) => drop(stale.fetch_add(1, Ordering::Relaxed)),
                Err(error) => panic!("{error}"),
            }
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        (0..4).for_each(|caller| drop(scope.spawn(move || work(caller))));
    });
    let (read, stale) = (read.into_inner(), stale.into_inner());
    // Of 12,000 steps 240 let go, and each of these is in the way of three others at most.
    assert!(read + stale == 11_760 && stale <= 720, "{read} read, {stale} stale");
    assert_eq!(bed.mount.open_count(ROOT_DATASET), 0);
}
