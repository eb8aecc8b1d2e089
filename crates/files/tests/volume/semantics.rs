//! Semantics of single operations, by POSIX and Linux.

use crate::bed::{Bed, READ_WRITE, ROOT, USER};
use crate::quota::dataset;
use larder_files::*;
use larder_format::InodeId;
use larder_format::items::{LAST_INODE, MAX_DATASET};
use larder_pool::{PoolError, ROOT_DATASET, Refusal};
use std::collections::BTreeMap;

#[test]
fn a_file_can_end_at_the_largest_offset() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "sparse");
    let last = i64::MAX as u64 - 5;
    bed.write(node, last, b"tail!");
    bed.write(node, 1 << 40, b"middle");
    assert_eq!(bed.mount.write(node, Handle(0), last, b"tail!!", false), Err(FsError::TooBig));
    for _ in 0..2 {
        assert_eq!(bed.mount.getattr(node).unwrap().size, i64::MAX as u64);
        assert_eq!(bed.read(node, last - 2, 100), b"\0\0tail!");
        assert_eq!(bed.read(node, (1 << 40) + 2, 6), b"ddle\0\0");
        bed.pool.commit().unwrap();
    }
    let seek = |offset, what| bed.mount.lseek(node, Handle(0), offset, what);
    let data = seek(0, Seek::Data).unwrap();
    assert!(data <= 1 << 40 && data + (128 << 10) > 1 << 40);
    assert_eq!(seek(1 << 40, Seek::Hole), Ok((1 << 40) + 6));
    assert_eq!(seek(0, Seek::Hole), Ok(0));
    assert_eq!(seek(last, Seek::Hole), Ok(i64::MAX as u64));
    assert_eq!(seek(i64::MAX as u64, Seek::Data), Err(FsError::NoExtent));
    let bed = bed.reopen(2);
    bed.resize(bed.find("sparse").unwrap().node, 0);
    bed.pool.commit().unwrap();
    bed.check();
}

#[test]
fn unwritten_bytes_are_found_as_holes_before_they_are_stored() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    let node = bed.file(ROOT, "f");
    bed.write(node, 100, b"abc");
    bed.resize(node, 20_000);
    let seek = |offset, what| bed.mount.lseek(node, Handle(0), offset, what);
    assert_eq!(seek(0, Seek::Data), Ok(100));
    assert_eq!(seek(100, Seek::Hole), Ok(103));
    assert_eq!(seek(103, Seek::Data), Err(FsError::NoExtent));
}

#[test]
fn zeros_take_no_space_unless_compression_is_off() {
    for (compression, logical) in [("lz4", 0), ("off", 1 << 20)] {
        let bed = Bed::new(&[("compression", compression)]);
        let node = bed.file(ROOT, "zeros");
        bed.write(node, 0, &vec![0; 1 << 20]);
        bed.pool.commit().unwrap();
        assert_eq!(bed.pool.dataset(ROOT_DATASET).unwrap().usage().logical, logical);
        assert_eq!(bed.mount.getattr(node).unwrap().blocks == 0, logical == 0);
        assert_eq!(bed.content(node), vec![0; 1 << 20]);
    }
}

#[test]
fn a_set_group_id_directory_passes_its_group_on() {
    let bed = Bed::new(&[]);
    let dir = bed.dir(ROOT, "shared");
    let set = SetAttr { perm: Some(0o2775), gid: Some(7), ..SetAttr::default() };
    bed.mount.setattr(dir, &set, &USER).unwrap();
    let below = bed.mount.mkdir(dir, b"dir", 0o755, &USER).unwrap();
    assert_eq!((below.gid, below.perm), (7, 0o2755));
    let file = bed.mount.mknod(dir, b"file", FileKind::Regular, 0o2775, 0, &USER).unwrap();
    // The kernel has taken the bit away already from who is in none of the group.
    assert_eq!((file.gid, file.perm), (7, 0o2775));
    let caller = Caller { umask: 0o022, ..USER };
    let plain = bed.mount.mknod(ROOT, b"file", FileKind::Regular, 0o666, 0, &caller).unwrap();
    assert_eq!((plain.gid, plain.perm), (100, 0o644));
}

#[test]
fn a_strangers_write_takes_set_user_id_away() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "program");
    let set = SetAttr { perm: Some(0o6755), ..SetAttr::default() };
    bed.mount.setattr(node, &set, &USER).unwrap();
    bed.write(node, 0, b"1");
    assert_eq!(bed.mount.getattr(node).unwrap().perm, 0o6755);
    bed.mount.write(node, Handle(0), 1, b"2", true).unwrap();
    assert_eq!(bed.mount.getattr(node).unwrap().perm, 0o755);
}

#[test]
fn times_move_with_what_they_are_of() {
    let bed = Bed::new(&[("atime", "relatime")]);
    let dir = bed.dir(ROOT, "dir");
    bed.tick();
    let node = bed.file(dir, "f");
    let made = bed.mount.getattr(node).unwrap();
    assert_eq!(bed.mount.getattr(dir).unwrap().mtime, made.btime);
    bed.tick();
    bed.write(node, 0, b"data");
    let written = bed.mount.getattr(node).unwrap();
    assert!(written.mtime > made.mtime && written.ctime == written.mtime && written.atime == made.atime);
    bed.tick();
    bed.content(node);
    let read = bed.mount.getattr(node).unwrap();
    assert!(read.atime > written.mtime && read.mtime == written.mtime);
    bed.tick();
    bed.content(node);
    assert_eq!(bed.mount.getattr(node).unwrap().atime, read.atime, "once is enough for relatime");
    bed.tick();
    bed.mount.link(node, ROOT, b"link").unwrap();
    let linked = bed.mount.getattr(node).unwrap();
    assert!(linked.ctime > read.ctime && linked.mtime == read.mtime && linked.nlink == 2);
    let time = larder_format::Timestamp { secs: -1, nanos: 5 };
    let set = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    bed.mount.setattr(node, &set, &USER).unwrap();
    let before = bed.mount.getattr(node).unwrap();
    assert_eq!(before.mtime, time);
    let bed = bed.reopen(2);
    assert_eq!(bed.mount.getattr(node).unwrap(), Attr { blocks: 1, ..before });
}

#[test]
fn fallocate_moves_times_even_where_nothing_else_changes() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "f");
    bed.write(node, 0, &[1; 5000]);
    let modes = [
        Allocate::Extend,
        Allocate::KeepSize,
        Allocate::Punch,
        Allocate::Zero { keep_size: true },
        Allocate::Zero { keep_size: false },
    ];
    for mode in modes {
        let before = bed.mount.getattr(node).unwrap();
        bed.tick();
        bed.mount.fallocate(node, Handle(0), 100, 200, mode).unwrap();
        let after = bed.mount.getattr(node).unwrap();
        assert!(after.mtime > before.mtime && after.ctime == after.mtime, "{mode:?}");
        assert_eq!(after.size, 5000, "{mode:?}");
    }
    bed.mount.fallocate(node, Handle(0), 0, 6000, Allocate::Extend).unwrap();
    assert_eq!(bed.mount.getattr(node).unwrap().size, 6000);
    let bed = bed.reopen(2);
    assert_eq!(bed.mount.getattr(node).unwrap().size, 6000);
}

#[test]
fn listing_a_directory_moves_its_access_time() {
    let bed = Bed::new(&[]);
    let dir = bed.dir(ROOT, "dir");
    bed.file(dir, "f");
    let made = bed.mount.getattr(dir).unwrap();
    bed.tick();
    bed.names(dir);
    let listed = bed.mount.getattr(dir).unwrap();
    assert!(listed.atime > made.atime && (listed.mtime, listed.ctime) == (made.mtime, made.ctime));
    let bed = bed.reopen(2);
    assert_eq!(bed.mount.getattr(dir).unwrap().atime, listed.atime);
}

#[test]
fn a_new_file_keeps_its_bits_though_it_is_opened_to_be_cut() {
    let bed = Bed::new(&[]);
    let flags = OpenFlags { truncate: true, kill_suidgid: true, ..READ_WRITE };
    let first = bed.mount.create(ROOT, b"program", 0o6755, flags, &USER).unwrap();
    assert_eq!((first.attr.perm, first.made), (0o6755, true));
    let again = bed.mount.create(ROOT, b"program", 0o644, flags, &USER).unwrap();
    assert_eq!((again.attr.node, again.attr.perm, again.made), (first.attr.node, 0o755, false));
    // Both are open.
    bed.mount.unlink(ROOT, b"program").unwrap();
    for opened in [first, again] {
        assert_eq!(bed.mount.getattr(opened.attr.node).map(|attr| attr.nlink), Ok(0));
        bed.mount.release(opened.attr.node, opened.handle).unwrap();
    }
    while bed.mount.reap_step(1).unwrap() {}
    assert_eq!(bed.mount.getattr(first.attr.node), Err(FsError::NotFound));
}

#[test]
fn attributes_have_the_namespaces_that_linux_has() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "f");
    let set = |name: &[u8]| bed.mount.setxattr(node, name, b"v", XattrMode::Set);
    for name in [&b"user.a"[..], b"trusted.a", b"security.a"] {
        assert_eq!(set(name), Ok(()));
    }
    for name in [&b"nodot"[..], b"other.a", b"system.a", b"user"] {
        assert_eq!(set(name), Err(FsError::NotSupported));
        assert_eq!(bed.mount.getxattr(node, name), Err(FsError::NotSupported));
        assert_eq!(bed.mount.removexattr(node, name), Err(FsError::NotSupported));
    }
    assert_eq!(set(b"user."), Err(FsError::Invalid));
}

#[test]
fn a_small_fsync_needs_no_commit_and_a_large_one_gets_one() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "f");
    let before = bed.pool.store().durable_commit();
    for i in 0..10 {
        bed.write(node, i * 1000, &[i as u8; 1000]);
        bed.fsync(node);
    }
    assert_eq!(bed.pool.store().durable_commit(), before);
    bed.write(node, 10_000, &vec![7; 2 << 20]);
    bed.fsync(node);
    assert!(bed.pool.store().durable_commit() > before);
    let bed = bed.crash(2);
    assert_eq!(bed.content(node)[9999..10_001], [9, 7]);
    assert_eq!(bed.mount.getattr(node).unwrap().size, 10_000 + (2 << 20));
}

#[test]
fn a_read_only_dataset_refuses_changes() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "f");
    bed.write(node, 0, b"x");
    bed.pool.commit().unwrap();
    bed.pool.set_property(ROOT_DATASET, "readonly", "on").unwrap();
    assert_eq!(bed.mount.write(node, Handle(0), 0, b"y", false), Err(FsError::ReadOnly));
    assert_eq!(bed.mount.unlink(ROOT, b"f"), Err(FsError::ReadOnly));
    assert_eq!(bed.mount.setxattr(node, b"user.a", b"", XattrMode::Set), Err(FsError::ReadOnly));
    assert_eq!(bed.content(node), b"x");
    bed.fsync(node);
}

#[test]
fn names_and_values_have_limits() {
    let bed = Bed::new(&[]);
    let long = [b'x'; 256];
    let mknod = |name: &[u8]| bed.mount.mknod(ROOT, name, FileKind::Regular, 0o644, 0, &USER);
    mknod(&long[..255]).unwrap();
    assert_eq!(mknod(&long), Err(FsError::NameTooLong));
    assert_eq!(mknod(b"a/b"), Err(FsError::Invalid));
    assert_eq!(bed.mount.lookup(ROOT, &long), Err(FsError::NameTooLong));
    assert_eq!(bed.mount.symlink(ROOT, b"l", &[b'x'; 4096], &USER), Err(FsError::NameTooLong));
    bed.mount.symlink(ROOT, b"l", &[b'x'; 4095], &USER).unwrap();
    let node = mknod(b"f").unwrap().node;
    let name = [&b"user."[..], &long[..250]].concat();
    let set = |len| bed.mount.setxattr(node, &name, &vec![1; len], XattrMode::Set);
    assert_eq!(set((64 << 10) + 1), Err(FsError::AttrTooBig));
    for len in [64 << 10, 3839, 3840, 0] {
        set(len).unwrap();
        assert_eq!(bed.mount.getxattr(node, &name).unwrap(), vec![1; len]);
    }
    for (name, refused) in [
        ([&b"user."[..], &long[..251]].concat(), FsError::Range),
        (b"user.".to_vec(), FsError::Invalid),
        (b"user.a\0b".to_vec(), FsError::Invalid),
        (b"system.nfs4_acl".to_vec(), FsError::NotSupported),
        (b"name".to_vec(), FsError::NotSupported),
        (Vec::new(), FsError::NotSupported),
    ] {
        assert_eq!(bed.mount.setxattr(node, &name, b"", XattrMode::Set), Err(refused.clone()));
        assert_eq!(bed.mount.getxattr(node, &name), Err(refused.clone()));
        assert_eq!(bed.mount.removexattr(node, &name), Err(refused));
    }
}

#[test]
fn a_cookie_stays_good_while_entries_come_and_go() {
    let bed = Bed::new(&[]);
    let dir = bed.dir(ROOT, "dir");
    for i in 0..1000 {
        bed.file(dir, &format!("{i}"));
    }
    let (mut cookie, mut seen) = (0, BTreeMap::new());
    for round in 0.. {
        let before = seen.len();
        bed.mount
            .readdir(dir, Handle(0), cookie, false, &mut |entry| {
                cookie = entry.next_cookie;
                *seen.entry(entry.name.to_vec()).or_insert(0) += 1;
                seen.len() < before + 50
            })
            .unwrap();
        if seen.len() == before {
            break;
        }
        bed.file(dir, &format!("new{round}"));
        // The entry that was refused comes again; those seen may go.
        let gone: Vec<_> = seen.keys().filter(|name| name.len() <= 3).take(20).cloned().collect();
        gone.iter().for_each(|name| drop(bed.mount.unlink(dir, name)));
    }
    assert!((0..1000).all(|i| seen.contains_key(format!("{i}").as_bytes())), "an entry was skipped");
}

#[test]
fn appending_goes_to_the_end() {
    let bed = Bed::new(&[]);
    let flags = OpenFlags { append: true, ..READ_WRITE };
    let Created { attr, handle, .. } = bed.mount.create(ROOT, b"log", 0o600, flags, &USER).unwrap();
    bed.mount.write(attr.node, handle, 0, b"one ", false).unwrap();
    bed.mount.write(attr.node, handle, 0, b"two", false).unwrap();
    assert_eq!(bed.content(attr.node), b"one two");
    let flags = OpenFlags { exclusive: true, ..READ_WRITE };
    let again = bed.mount.create(ROOT, b"log", 0o600, flags, &USER);
    assert_eq!(again, Err(FsError::Exists));
    let flags = OpenFlags { truncate: true, ..READ_WRITE };
    let cut = bed.mount.create(ROOT, b"log", 0o600, flags, &USER).unwrap();
    assert_eq!(cut.attr.size, 0);
}

#[test]
fn a_dataset_shows_as_a_directory_of_its_parent() {
    let bed = Bed::new(&[]);
    let child = bed.pool.create_dataset("tank/child", BTreeMap::new()).unwrap();
    bed.pool.commit().unwrap();
    let id = child.id();
    bed.file(ROOT, "plain");
    bed.mount.attach(child, Some((ROOT_DATASET, b"child".to_vec()))).unwrap();
    let junction = bed.find("child").unwrap();
    assert_eq!(
        (junction.kind, junction.node),
        (FileKind::Directory, NodeId::pack(id, larder_format::items::ROOT_INODE))
    );
    let names: Vec<_> = bed.names(ROOT).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, [".", "..", "child", "plain"]);
    assert_eq!(bed.mount.lookup(junction.node, b"..").unwrap().node, ROOT);
    assert_eq!(
        bed.names(junction.node),
        [(".".into(), junction.node, FileKind::Directory), ("..".into(), ROOT, FileKind::Directory)]
    );
    let inside = bed.file(junction.node, "plain");
    assert_ne!(inside, bed.find("plain").unwrap().node);
    bed.write(inside, 0, b"inside");
    let flags = RenameFlags::default();
    assert_eq!(bed.mount.rename(ROOT, b"plain", junction.node, b"x", flags), Err(FsError::CrossDevice));
    assert_eq!(bed.mount.link(inside, ROOT, b"x"), Err(FsError::CrossDevice));
    assert_eq!(bed.mount.rmdir(ROOT, b"child"), Err(FsError::Busy));
    assert_eq!(bed.mount.rename(ROOT, b"plain", ROOT, b"child", flags), Err(FsError::Busy));
    assert_eq!(bed.mount.mkdir(ROOT, b"child", 0o755, &USER), Err(FsError::Exists));
    bed.mount.detach(id).unwrap();
    assert_eq!(bed.mount.getattr(inside), Err(FsError::Stale));
    assert_eq!(bed.find("child"), Err(FsError::NotFound));
    let child = bed.pool.dataset(id).unwrap();
    bed.mount.attach(child, Some((ROOT_DATASET, b"renamed".to_vec()))).unwrap();
    assert_eq!(bed.content(bed.find("renamed/plain").unwrap().node), b"inside");
}

#[test]
fn a_new_record_size_holds_for_what_is_written_from_nothing() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    let node = bed.file(ROOT, "f");
    bed.write(node, 0, &[1; 10_000]);
    bed.pool.set_property(ROOT_DATASET, "recordsize", "16384").unwrap();
    bed.write(node, 5000, &[2; 10_000]);
    assert_eq!(bed.mount.getattr(node).unwrap().blksize, 4096);
    bed.resize(node, 0);
    bed.write(node, 0, &[3; 10_000]);
    assert_eq!(bed.mount.getattr(node).unwrap().blksize, 16384);
    assert_eq!(bed.content(node), [3; 10_000]);
}

#[test]
fn a_full_pool_refuses_data_and_still_removes_files() {
    let bed = Bed::new(&[("compression", "off")]);
    bed.pool.set_pool_property("memory", "33554432").unwrap();
    let node = bed.file(ROOT, "f");
    let data = vec![1; 1 << 20];
    let full = (0..).find_map(|i| bed.mount.write(node, Handle(0), i << 20, &data, false).err());
    assert_eq!(full, Some(FsError::NoSpace));
    bed.fsync(node);
    bed.mount.unlink(ROOT, b"f").unwrap();
    while bed.mount.reap_step(1000).unwrap() {}
    // Slots are given back two commits after the one that freed them.
    for _ in 0..4 {
        bed.pool.commit().unwrap();
    }
    let node = bed.file(ROOT, "g");
    bed.write(node, 0, &data);
    bed.fsync(node);
    bed.pool.commit().unwrap();
    bed.check();
}

#[test]
fn a_record_that_rotted_beyond_repair_costs_its_bytes_alone_and_is_named() {
    use larder_format::{ByteLen, DeviceOffset};
    let size = ByteLen::new(64 << 20);
    let bed = Bed::with_layout("single", &[size], &[("recordsize", "4096"), ("compression", "off")]);
    let dir = bed.dir(ROOT, "letters");
    let node = bed.file(dir, "to a friend");
    let marker = b"this record is the one that rots";
    bed.write(node, 0, &[1; 4096]);
    bed.write(node, 4096, &marker.repeat(128));
    bed.write(node, 8192, &[3; 4096]);
    let bed = bed.reopen(2);
    let device = bed.sim.device(0);
    let bytes = device.image().read(DeviceOffset::new(0), size.get() as usize);
    let at = bytes.windows(marker.len()).position(|window| window == marker).unwrap();
    device.flip_bits(DeviceOffset::new(at as u64), marker.len(), 5);
    assert_eq!(bed.mount.damaged(&bed.upkeep.damage.known()), []);
    let node = bed.find("letters/to a friend").unwrap().node;
    assert!(matches!(bed.mount.read(node, Handle(0), 4096, 4096), Err(FsError::Damaged(_))));
    assert_eq!(bed.read(node, 0, 4096), [1; 4096]);
    assert_eq!(bed.read(node, 8192, 4096), [3; 4096]);
    let damaged = bed.mount.damaged(&bed.upkeep.damage.known());
    assert_eq!(damaged[0].path.as_deref(), Some("/letters/to a friend"));
    assert_eq!((damaged.len(), damaged[0].ranges.len(), &damaged[0].ranges[0]), (1, 1, &(4096..8192)));
}

#[test]
fn numbers_of_datasets_and_inodes_end_with_a_refusal() {
    let bed = Bed::new(&[]);
    for last in [(1 << 20) - 1, MAX_DATASET - 1] {
        bed.pool.set_note("last_dataset", &last.to_string()).unwrap();
        let (made, root) = dataset(&bed, &format!("tank/after{last}"), &[]);
        assert_eq!(made.id().get(), last + 1);
        bed.write(bed.file(root, "file"), 0, b"content");
    }
    for last in [MAX_DATASET, u64::MAX] {
        bed.pool.set_note("last_dataset", &last.to_string()).unwrap();
        let refused = bed.pool.create_dataset("tank/more", Default::default());
        assert!(matches!(refused, Err(PoolError::Refused(Refusal::NoDatasetNumbers(_)))), "after {last}");
    }
    let (op, root) = (bed.pool.enter().unwrap(), bed.pool.dataset(ROOT_DATASET).unwrap());
    root.update(&op, |tree| {
        tree.note_inode(InodeId::new(LAST_INODE - 1));
        Ok::<_, PoolError>(())
    })
    .unwrap();
    drop(op);
    bed.pool.commit().unwrap();
    let last = bed.file(ROOT, "last");
    bed.write(last, 0, b"content");
    let more = bed.mount.mknod(ROOT, b"more", FileKind::Regular, 0o644, 0, &crate::bed::USER);
    assert_eq!(more.unwrap_err(), FsError::NoSpace);
    bed.pool.commit().unwrap();
    bed.check();
    let bed = bed.reopen(3);
    assert_eq!(bed.find("last").unwrap().size, 7);
}

#[test]
fn only_a_file_is_opened_instead_of_being_made() {
    let bed = Bed::new(&[]);
    bed.mount.mknod(ROOT, b"pipe", FileKind::Fifo, 0o644, 0, &USER).unwrap();
    bed.mount.symlink(ROOT, b"link", b"elsewhere", &USER).unwrap();
    bed.dir(ROOT, "dir");
    for (name, refusal) in [("pipe", FsError::Stale), ("link", FsError::Stale), ("dir", FsError::IsDirectory)]
    {
        for flags in [READ_WRITE, OpenFlags { truncate: true, ..READ_WRITE }] {
            let opened = bed.mount.create(ROOT, name.as_bytes(), 0o644, flags, &USER);
            assert_eq!(opened, Err(refusal.clone()));
        }
    }
    assert_eq!(bed.mount.volume(ROOT_DATASET).unwrap().open_count(), 0);
    let file = bed.file(ROOT, "file");
    let opened = bed.mount.create(ROOT, b"file", 0o600, READ_WRITE, &USER).unwrap();
    assert_eq!((opened.made, opened.attr.node, opened.attr.perm), (false, file, 0o644));
}

#[test]
fn a_view_shows_what_is_below_its_dataset_and_nothing_else_by_number() {
    let bed = Bed::new(&[]);
    let create = |name: &str| bed.pool.create_dataset(name, BTreeMap::new()).unwrap();
    let [apart, below, beside] = ["tank/apart", "tank/apart/below", "tank/beside"].map(create);
    let attach = |of: &std::sync::Arc<larder_pool::Dataset>, place| {
        bed.mount.attach(std::sync::Arc::clone(of), place).unwrap();
        NodeId::pack(of.id(), larder_format::items::ROOT_INODE)
    };
    let apart_root = attach(&apart, None);
    let below_root = attach(&below, Some((apart.id(), b"below".to_vec())));
    let beside_root = attach(&beside, Some((ROOT_DATASET, b"beside".to_vec())));
    let top_root = NodeId::pack(ROOT_DATASET, larder_format::items::ROOT_INODE);
    let files = [top_root, apart_root, below_root, beside_root].map(|dir| bed.file(dir, "file"));
    let view = |dataset| View::new(std::sync::Arc::clone(&bed.mount), dataset);
    let stale = |view: &View, node: NodeId| {
        assert_eq!(view.getattr(node), Err(FsError::Stale));
        assert_eq!(view.lookup(node, b"."), Err(FsError::Stale));
        assert_eq!(view.open(node, READ_WRITE), Err(FsError::Stale));
        assert_eq!(view.read(node, Handle(0), 0, 1).err(), Some(FsError::Stale));
        assert_eq!(view.write(node, Handle(0), 0, b"x", false), Err(FsError::Stale));
        assert_eq!(view.link(node, ROOT, b"stolen"), Err(FsError::Stale));
        assert_eq!(view.copy_file_range((node, Handle(0), 0), (node, Handle(0), 0), 1), Err(FsError::Stale));
        view.forget(node, 1);
    };
    let (of_apart, of_top) = (view(apart.id()), view(ROOT_DATASET));
    for (node, is_apart) in files.into_iter().zip([false, true, true, false]) {
        let (shown_by, not_by) = if is_apart { (&of_apart, &of_top) } else { (&of_top, &of_apart) };
        assert_eq!(shown_by.getattr(node).unwrap().node, node);
        assert_eq!(shown_by.lookup(node, b".").unwrap().node, node);
        stale(not_by, node);
    }
    stale(&of_apart, top_root);
    stale(&of_top, below_root);
    assert_eq!(of_apart.lookup(ROOT, b"below").unwrap().node, below_root);
    assert_eq!(of_apart.lookup(below_root, b"file").unwrap().node, files[2]);
    stale(&of_apart, NodeId::from_raw(u64::MAX));
    stale(&of_apart, NodeId::from_raw(0));
}

/// Names whose XXH3-64 without a key agrees in its upper 56 bits: for 8 bytes the function can be undone.
fn names_of_one_hash() -> impl Iterator<Item = Vec<u8>> {
    // Bytes 8 to 23 of XXH3's own secret, as two numbers, one laid over the other.
    const FLIP: u64 = 0x1cad_21f7_2c81_017c ^ 0xdb97_9083_e96d_d4de;
    const FACTOR: u64 = 0x9fb2_1c65_1e98_df25;
    let inverse = (0..6).fold(FACTOR, |x, _| x.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(x))));
    let unhash = move |hash: u64| {
        let mixed = hash ^ hash >> 28 ^ hash >> 56;
        let mixed = mixed.wrapping_mul(inverse);
        let mixed = (mixed ^ ((mixed >> 35) + 8)).wrapping_mul(inverse);
        // 64 times this is nothing, so 63 times undoes it.
        (0..63).fold(mixed, |x, _| x ^ x.rotate_left(49) ^ x.rotate_left(24)) ^ FLIP
    };
    (0..256).map(move |low| unhash(0x1234_5678_9abc_de00 | low).rotate_left(32).to_le_bytes().to_vec())
}

#[test]
fn nobody_can_make_names_that_keep_others_out() {
    let bed = Bed::new(&[]);
    let names = names_of_one_hash().filter(|name| !name.iter().any(|byte| matches!(byte, 0 | b'/')));
    let names: Vec<_> = names.collect();
    assert!(names.len() > 140);
    for name in &names {
        bed.mount.mknod(ROOT, name, FileKind::Regular, 0o644, 0, &USER).unwrap();
    }
    let bed = bed.reopen(2);
    assert_eq!(bed.names(ROOT).len(), names.len() + 2);
    let cookies = |seed: &str| {
        let dataset = bed.pool.create_dataset(seed, BTreeMap::new()).unwrap();
        names.iter().map(|name| dataset.name_key().cookie(name)).collect::<std::collections::BTreeSet<_>>()
    };
    let (one, other) = (cookies("tank/one"), cookies("tank/other"));
    assert_eq!((one.len(), other.len()), (names.len(), names.len()), "they are apart");
    assert!(one.is_disjoint(&other), "each dataset has a key of its own");
}
