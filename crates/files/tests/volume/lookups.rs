//! An inode that a kernel has looked up stays until the kernel has forgotten it, with or without a name.

use crate::bed::*;
use larder_files::*;
use larder_pool::ROOT_DATASET;
use std::sync::Arc;

fn view(bed: &Bed) -> View {
    View::new(Arc::clone(&bed.mount), ROOT_DATASET)
}

fn stored(bed: &Bed) -> u64 {
    bed.pool.dataset(ROOT_DATASET).unwrap().usage().logical
}

/// A file with some content, which the kernel has looked up once.
fn made(view: &View, name: &[u8]) -> NodeId {
    let made = view.create(ROOT, name, 0o644, READ_WRITE, &USER).unwrap();
    view.write(made.attr.node, made.handle, 0, name, false).unwrap();
    view.release(made.attr.node, made.handle).unwrap();
    made.attr.node
}

fn is_gone(view: &View, node: NodeId) -> bool {
    view.getattr(node) == Err(FsError::NotFound)
}

/// Nothing of what has no name is left.
fn check(bed: Bed) {
    while bed.mount.reap_step(100).unwrap() {}
    bed.pool.commit().unwrap();
    bed.check_tree();
    bed.check();
    let bed = bed.reopen(9);
    assert!(!bed.mount.reap_step(1).unwrap(), "no mark is left");
}

#[test]
fn what_was_found_can_be_opened_though_its_name_was_removed_or_replaced() {
    for replaced in [false, true] {
        let bed = Bed::new(&[]);
        let view = view(&bed);
        let old = made(&view, b"old");
        made(&view, b"new");
        bed.pool.commit().unwrap();
        // A path walk ends, and before it goes on somebody else is faster.
        assert_eq!(view.lookup(ROOT, b"old").unwrap().node, old);
        match replaced {
            true => view.rename(ROOT, b"new", ROOT, b"old", RenameFlags::default()).unwrap(),
            false => view.unlink(ROOT, b"old").unwrap(),
        }
        assert_eq!(view.getattr(old).unwrap().nlink, 0);
        let perm = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        assert_eq!(view.setattr(old, &perm, &USER).unwrap().perm, 0o600);
        view.forget(old, 1);
        for _ in 0..2 {
            let handle = view.open(old, READ_WRITE).unwrap();
            assert_eq!(view.read(old, handle, 0, 10).unwrap().to_vec(), b"old");
            view.write(old, handle, 3, b"er", false).unwrap();
            bed.pool.commit().unwrap();
            assert_eq!(view.read(old, handle, 0, 10).unwrap().to_vec(), b"older");
            view.write(old, handle, 0, b"old", false).unwrap();
            view.setattr(old, &SetAttr { size: Some(3), ..SetAttr::default() }, &USER).unwrap();
            view.release(old, handle).unwrap();
        }
        view.forget(old, 1);
        assert!(is_gone(&view, old));
        assert_eq!(view.open(old, READ_WRITE), Err(FsError::NotFound));
        assert_eq!(stored(&bed), 3, "what is left is the other file");
        drop(view);
        check(bed);
    }
}

#[test]
fn a_descriptor_outlives_the_last_look_up_and_the_other_way_round() {
    let bed = Bed::new(&[]);
    let view = view(&bed);
    let node = made(&view, b"file");
    let handle = view.open(node, READ_WRITE).unwrap();
    view.unlink(ROOT, b"file").unwrap();
    view.forget(node, 1);
    assert_eq!(view.read(node, handle, 0, 4).unwrap().to_vec(), b"file");
    view.release(node, handle).unwrap();
    assert!(is_gone(&view, node));
    // A file made without a name is known to the kernel as well.
    let (attr, handle) = view.tmpfile(ROOT, 0o600, READ_WRITE, &USER).unwrap();
    view.release(attr.node, handle).unwrap();
    assert_eq!(view.getattr(attr.node).unwrap().nlink, 0);
    view.forget(attr.node, 1);
    assert!(is_gone(&view, attr.node));
    drop(view);
    check(bed);
}

#[test]
fn a_removed_working_directory_is_still_one() {
    let bed = Bed::new(&[]);
    let view = view(&bed);
    let dir = view.mkdir(ROOT, b"dir", 0o755, &USER).unwrap().node;
    view.rmdir(ROOT, b"dir").unwrap();
    let attr = view.getattr(dir).unwrap();
    assert_eq!((attr.nlink, attr.kind), (0, FileKind::Directory));
    let handle = view.opendir(dir).unwrap();
    view.releasedir(dir, handle).unwrap();
    assert_eq!(view.mkdir(dir, b"below", 0o755, &USER).map(|attr| attr.node), Err(FsError::NotFound));
    assert!(view.statfs(dir).is_ok());
    view.forget(dir, 1);
    assert!(is_gone(&view, dir));
    drop(view);
    check(bed);
}

#[test]
fn entries_of_a_listing_count_where_they_are_taken_with_attributes() {
    let bed = Bed::new(&[]);
    let view = view(&bed);
    let nodes = [b"a", b"b", b"c"].map(|name| made(&view, name));
    nodes.iter().for_each(|node| view.forget(*node, 1));
    let handle = view.opendir(ROOT).unwrap();
    let (mut cookie, mut taken) = (0, Vec::new());
    for plus in [false, true] {
        let from = cookie;
        view.readdir(ROOT, handle, from, plus, &mut |entry| {
            // Room for two in each.
            let fits = entry.name == b"." || entry.name == b".." || taken.len() < 1 + 2 * usize::from(plus);
            if fits {
                cookie = entry.next_cookie;
                if !entry.name.starts_with(b".") {
                    taken.push((entry.node, plus));
                    assert_eq!(entry.attr.is_some(), plus);
                }
            }
            fits
        })
        .unwrap();
    }
    view.releasedir(ROOT, handle).unwrap();
    assert_eq!(taken.len(), 3);
    for name in [b"a", b"b", b"c"] {
        view.unlink(ROOT, name).unwrap();
    }
    for (node, held) in &taken {
        assert_eq!(is_gone(&view, *node), !held);
        view.forget(*node, 1);
        assert!(is_gone(&view, *node));
    }
    drop(view);
    check(bed);
}

#[test]
fn who_unmounts_need_not_forget() {
    let bed = Bed::new(&[]);
    let view = view(&bed);
    let node = made(&view, b"file");
    for _ in 0..10 {
        view.lookup(ROOT, b"file").unwrap();
    }
    view.unlink(ROOT, b"file").unwrap();
    assert!(!is_gone(&view, node));
    bed.mount.detach(ROOT_DATASET).unwrap();
    bed.pool.commit().unwrap();
    assert_eq!(stored(&bed), 0);
    bed.mount.attach(bed.pool.dataset(ROOT_DATASET).unwrap(), None).unwrap();
    // Late, or of a mount before: nothing to count down.
    view.forget(node, 11);
    view.forget(ROOT, u64::MAX);
    let again = made(&view, b"file");
    view.forget(again, 1000);
    view.forget(again, 1000);
    assert_eq!(view.lookup(ROOT, b"file").unwrap().node, again);
    drop(view);
    check(bed);
}

#[test]
fn a_crash_buries_what_only_a_kernel_knew() {
    let bed = Bed::new(&[]);
    let view = view(&bed);
    let node = made(&view, b"file");
    view.unlink(ROOT, b"file").unwrap();
    bed.pool.commit().unwrap();
    assert!(!is_gone(&view, node));
    drop(view);
    let bed = bed.crash(2);
    while bed.mount.reap_step(100).unwrap() {}
    assert_eq!((bed.mount.getattr(node), stored(&bed)), (Err(FsError::NotFound), 0));
    check(bed);
}
