//! Attributes, names and numbers at their limits.

use crate::bed::{Bed, ROOT, USER};
use larder_files::*;
use larder_format::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

fn setattr(bed: &Bed, node: NodeId, set: SetAttr) -> Attr {
    bed.mount.setattr(node, &set, &USER).unwrap()
}

#[test]
fn a_new_owner_takes_set_user_id_away_except_from_directories() {
    let bed = Bed::new(&[]);
    let (file, dir) = (bed.file(ROOT, "f"), bed.dir(ROOT, "d"));
    let chown = SetAttr { uid: Some(7), ..SetAttr::default() };
    for (node, perm, left) in
        [(file, 0o6755, 0o755), (file, 0o6745, 0o2745), (file, 0o1644, 0o1644), (dir, 0o6755, 0o6755)]
    {
        setattr(&bed, node, SetAttr { perm: Some(perm), ..SetAttr::default() });
        assert_eq!(setattr(&bed, node, chown).perm, left, "{perm:o}");
    }
    setattr(&bed, file, SetAttr { perm: Some(0o6755), ..SetAttr::default() });
    assert_eq!(setattr(&bed, file, SetAttr { gid: Some(7), ..SetAttr::default() }).perm, 0o755);
    let both = SetAttr { perm: Some(0o4755), ..chown };
    assert_eq!(setattr(&bed, file, both).perm, 0o4755);
}

#[test]
fn any_time_that_linux_can_name_is_kept() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "f");
    let times = [i64::MIN, -62_135_596_800, -1, 0, 1 << 31, 1 << 33, i64::MAX];
    for secs in times {
        for nanos in [0, 1, 999_999_999] {
            let time = Timestamp { secs, nanos };
            let to = Some(SetTime::To(time));
            let set =
                SetAttr { atime: to, mtime: to, btime: Some(time), ctime: Some(time), ..SetAttr::default() };
            let attr = setattr(&bed, node, set);
            assert_eq!([attr.atime, attr.mtime, attr.ctime, attr.btime], [time; 4]);
            bed.content(node);
        }
    }
    let time = Timestamp { secs: 5, nanos: 1_000_000_000 };
    let set = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    assert_eq!(bed.mount.setattr(node, &set, &USER), Err(FsError::Invalid));
    bed.fsync(node);
    let bed = bed.crash(2);
    assert_eq!(bed.mount.getattr(node).unwrap().mtime.secs, i64::MAX);
    bed.check();
}

#[test]
fn an_access_time_survives_a_clean_export_though_nothing_else_changed() {
    for atime in ["on", "relatime"] {
        let bed = Bed::new(&[("atime", atime)]);
        let (file, dir) = (bed.file(ROOT, "f"), bed.dir(ROOT, "d"));
        let link = bed.mount.symlink(ROOT, b"l", b"f", &USER).unwrap().node;
        bed.write(file, 0, b"text");
        bed.pool.commit().unwrap();
        bed.tick();
        bed.content(file);
        bed.names(dir);
        bed.mount.readlink(link).unwrap();
        let nodes = [file, dir, link];
        let read = nodes.map(|node| bed.mount.getattr(node).unwrap());
        assert!(read.iter().all(|attr| attr.atime > attr.ctime), "{read:?}");
        bed.pool.commit_export().unwrap();
        let bed = bed.crash(2);
        assert_eq!(nodes.map(|node| bed.mount.getattr(node).unwrap()), read);
    }
}

#[test]
fn names_change_the_times_of_directory_and_inode_and_no_others() {
    let bed = Bed::new(&[]);
    let (from, to) = (bed.dir(ROOT, "from"), bed.dir(ROOT, "to"));
    let (file, other) = (bed.file(from, "f"), bed.file(from, "g"));
    let sub = bed.dir(from, "sub");
    type Step<'a> = (&'a dyn Fn(&Bed) -> Result<()>, &'a [NodeId], &'a [NodeId]);
    let rename = |bed: &Bed, a: NodeId, from: &[u8], b: NodeId, to: &[u8], exchange| {
        bed.mount.rename(a, from, b, to, RenameFlags { noreplace: false, exchange })
    };
    // The step, the nodes whose content it changes, and all nodes that it changes.
    let steps: [Step<'_>; 7] = [
        (&|bed| bed.mount.link(file, to, b"l").map(drop), &[to], &[to, file]),
        (&|bed| bed.mount.unlink(to, b"l"), &[to], &[to, file]),
        (&|bed| rename(bed, from, b"f", to, b"f", false), &[from, to], &[from, to, file]),
        (&|bed| rename(bed, from, b"g", to, b"f", true), &[from, to], &[from, to, file, other]),
        (&|bed| rename(bed, from, b"sub", to, b"sub", false), &[from, to], &[from, to, sub]),
        (&|bed| bed.mount.setxattr(file, b"user.a", b"1", XattrMode::Set), &[], &[file]),
        (&|bed| bed.mount.removexattr(file, b"user.a"), &[], &[file]),
    ];
    for (at, (step, content, anything)) in steps.into_iter().enumerate() {
        let nodes = [ROOT, from, to, file, other, sub];
        let before = nodes.map(|node| bed.mount.getattr(node).unwrap());
        bed.tick();
        step(&bed).unwrap();
        for (node, before) in nodes.into_iter().zip(before) {
            let after = bed.mount.getattr(node).unwrap();
            assert_eq!(after.mtime > before.mtime, content.contains(&node), "step {at}, {node:?}: mtime");
            assert_eq!(after.ctime > before.ctime, anything.contains(&node), "step {at}, {node:?}: ctime");
        }
    }
    let nlink = |node| bed.mount.getattr(node).unwrap().nlink;
    assert_eq!((nlink(ROOT), nlink(from), nlink(to)), (4, 2, 3));
    rename(&bed, to, b"sub", from, b"g", true).unwrap();
    assert_eq!((nlink(from), nlink(to)), (3, 2), "a directory swapped with a file");
    assert_eq!(bed.mount.lookup(from, b"g").unwrap().node, sub);
    assert_eq!(bed.mount.lookup(sub, b"..").unwrap().node, from);
    assert_eq!(rename(&bed, from, b"g", sub, b"x", false), Err(FsError::Invalid));
    assert_eq!(rename(&bed, ROOT, b"from", sub, b"x", true), Err(FsError::NotFound));
    bed.file(sub, "x");
    assert_eq!(rename(&bed, ROOT, b"from", sub, b"x", true), Err(FsError::Invalid));
}

#[test]
fn names_are_bytes_and_targets_are_text_that_nobody_reads() {
    let bed = Bed::new(&[]);
    let mut names: Vec<Vec<u8>> =
        (1..=255u8).filter(|byte| *byte != b'/').map(|byte| vec![byte; 255]).collect();
    names.extend([b"\xc3".to_vec(), "\u{e9}".into(), "e\u{301}".into(), b"...".to_vec(), b" ".to_vec()]);
    for name in &names {
        bed.mount.mknod(ROOT, name, FileKind::Regular, 0o644, 0, &USER).unwrap();
    }
    let target: Vec<u8> = (0..4095).map(|i| (i % 255 + 1) as u8).collect();
    let link = bed.mount.symlink(ROOT, b"link", &target, &USER).unwrap().node;
    bed.mount.fsyncdir(ROOT, Handle(0), false).unwrap();
    let bed = bed.crash(2);
    assert_eq!(bed.mount.readlink(link).unwrap(), target);
    assert_eq!(bed.mount.getattr(link).unwrap().size, 4095);
    for name in &names {
        bed.mount.lookup(ROOT, name).unwrap();
    }
    assert_eq!(bed.mount.getattr(ROOT).unwrap().size, names.len() as u64 + 1);
}

#[test]
fn nothing_reaches_beyond_the_largest_file() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "f");
    let most = i64::MAX as u64;
    let size = |size| bed.mount.setattr(node, &SetAttr { size: Some(size), ..SetAttr::default() }, &USER);
    assert_eq!(size(most + 1), Err(FsError::TooBig));
    assert_eq!(size(most).unwrap().size, most);
    for mode in [Allocate::Extend, Allocate::KeepSize, Allocate::Punch, Allocate::Zero { keep_size: false }] {
        assert_eq!(bed.mount.fallocate(node, Handle(0), most, 1, mode), Err(FsError::TooBig));
        assert_eq!(bed.mount.fallocate(node, Handle(0), u64::MAX, 2, mode), Err(FsError::TooBig));
    }
    for offset in [most, u64::MAX] {
        assert_eq!(bed.mount.write(node, Handle(0), offset, b"x", false), Err(FsError::TooBig));
        assert_eq!(bed.read(node, offset, 10), b"");
    }
    let append = OpenFlags { append: true, ..crate::bed::READ_WRITE };
    let handle = bed.mount.open(node, append).unwrap();
    assert_eq!(bed.mount.write(node, handle, 0, b"x", false), Err(FsError::TooBig));
    bed.mount.fallocate(node, Handle(0), most - 5000, 5000, Allocate::Punch).unwrap();
    bed.write(node, most - 1, b"x");
    let seek = |offset, what| bed.mount.lseek(node, Handle(0), offset, what);
    assert_eq!((seek(0, Seek::Data), seek(most - 1, Seek::Hole)), (Ok(most - 1), Ok(most)));
    bed.pool.commit().unwrap();
    assert_eq!(seek(most - 1, Seek::Data), Ok(most - 1));
    assert_eq!((seek(most - 1, Seek::Hole), seek(most, Seek::Hole)), (Ok(most), Err(FsError::NoExtent)));
    let other = bed.file(ROOT, "g");
    let copied = bed.mount.copy_file_range((node, Handle(0), most - 1), (other, Handle(0), most), 1);
    assert_eq!(copied, Err(FsError::TooBig));
}

#[test]
fn numbers_stay_over_imports_and_never_come_back() {
    let mut bed = Bed::new(&[]);
    let (mut gone, mut kept): (BTreeSet<NodeId>, BTreeMap<String, NodeId>) = Default::default();
    for round in 0..6u64 {
        let dir = bed.dir(ROOT, &format!("dir-{round}"));
        kept.insert(format!("dir-{round}"), dir);
        for i in 0..50 {
            let node = bed.file(dir, &format!("{i}"));
            assert!(!gone.contains(&node) && !kept.values().any(|&kept| kept == node), "{node:?} came back");
            if i % 2 == 0 {
                bed.mount.unlink(dir, format!("{i}").as_bytes()).unwrap();
                gone.insert(node);
            } else {
                kept.insert(format!("dir-{round}/{i}"), node);
            }
        }
        bed.fsync(dir);
        // These have been seen, and are lost by the crash.
        gone.extend((0..50).map(|i| bed.file(dir, &format!("lost-{i}"))));
        bed = if round % 2 == 0 { bed.crash(round + 2) } else { bed.reopen(round + 2) };
        // Nothing but lost files from one crash to the next.
        for seed in 0..2 {
            let lost = bed.file(ROOT, "lost");
            assert!(gone.insert(lost), "{lost:?} came back");
            bed = bed.crash(10 * round + seed + 10);
        }
        while bed.mount.reap_step(100).unwrap() {}
        for (path, &node) in &kept {
            assert_eq!(bed.find(path).unwrap().node, node);
        }
    }
}

#[test]
fn a_new_root_directory_belongs_to_whom_the_mount_was_told() {
    let bed = Bed::new(&[]);
    let child = bed.pool.create_dataset("tank/child", BTreeMap::new()).unwrap();
    let mount = Mount::new(std::sync::Arc::clone(&bed.pool), (1000, 100)).unwrap();
    mount.attach(bed.pool.dataset(larder_pool::ROOT_DATASET).unwrap(), None).unwrap();
    let child = mount.attach(child, Some((larder_pool::ROOT_DATASET, b"child".to_vec()))).unwrap();
    let found = mount.lookup(ROOT, b"child").unwrap();
    assert_eq!((found.uid, found.gid, found.perm), (1000, 100, 0o755));
    assert_eq!(mount.getattr(ROOT).unwrap().uid, 0, "one that is there stays as it is");
    drop(child);
}

#[test]
fn a_commit_comes_before_more_numbers_than_import_passes_over() {
    let bed = Bed::new(&[]);
    let mut last = bed.pool.store().durable_commit();
    let (mut commits, mut seen) = (0, 0);
    for i in 0..140_000 {
        seen = bed.mount.tmpfile(ROOT, 0o600, crate::bed::READ_WRITE, &USER).unwrap().0.node.raw();
        bed.mount.release(NodeId::from_raw(seen), Handle(0)).unwrap();
        commits += u32::from(bed.pool.store().durable_commit() > last);
        last = bed.pool.store().durable_commit();
        assert!(commits >= i / 65_536, "{i} made, {commits} commits");
    }
    assert!(commits < 5, "{commits}");
    let bed = bed.crash(2);
    assert!(bed.file(ROOT, "f").raw() > seen);
}
