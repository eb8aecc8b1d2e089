//! Files without a name.

use crate::bed::{Bed, READ_WRITE, ROOT, USER};
use larder_files::*;
use larder_pool::ROOT_DATASET;

fn tmpfile(bed: &Bed) -> NodeId {
    let (attr, _) = bed.mount.tmpfile(ROOT, 0o600, READ_WRITE, &USER).unwrap();
    assert_eq!(attr.nlink, 0);
    attr.node
}

fn stored(bed: &Bed) -> u64 {
    bed.pool.dataset(ROOT_DATASET).unwrap().usage().logical
}

#[test]
fn it_goes_with_its_last_descriptor() {
    let bed = Bed::new(&[]);
    let before = bed.mount.getattr(ROOT).unwrap();
    bed.tick();
    let node = tmpfile(&bed);
    assert_eq!(bed.mount.getattr(ROOT).unwrap(), before, "its directory does not change");
    bed.mount.open(node, READ_WRITE).unwrap();
    bed.write(node, 0, b"for a while");
    bed.pool.commit().unwrap();
    bed.mount.release(node, Handle(0)).unwrap();
    assert_eq!((bed.content(node), stored(&bed)), (b"for a while".to_vec(), 11));
    bed.mount.release(node, Handle(0)).unwrap();
    assert_eq!((bed.mount.getattr(node), stored(&bed)), (Err(FsError::NotFound), 0));
    let bed = bed.reopen(2);
    assert!(!bed.mount.reap_step(1).unwrap(), "no mark is left");
    bed.check();
    bed.check_tree();
}

#[test]
fn a_crash_removes_it_wherever_it_was() {
    for committed in [false, true] {
        let bed = Bed::new(&[]);
        let node = tmpfile(&bed);
        bed.write(node, 0, b"nobody will miss it");
        bed.fsync(node);
        if committed {
            bed.pool.commit().unwrap();
        }
        let bed = bed.crash(2);
        while bed.mount.reap_step(10).unwrap() {}
        assert_eq!((bed.mount.getattr(node), stored(&bed)), (Err(FsError::NotFound), 0));
        bed.pool.commit().unwrap();
        bed.check();
        bed.check_tree();
    }
}

#[test]
fn its_first_name_is_as_good_as_any() {
    for (fsync_first, committed) in [(true, false), (false, false), (true, true), (false, true)] {
        let bed = Bed::new(&[]);
        let node = tmpfile(&bed);
        bed.write(node, 0, b"report");
        if fsync_first {
            bed.fsync(node);
        }
        if committed {
            bed.pool.commit().unwrap();
        }
        let linked = bed.mount.link(node, ROOT, b"report").unwrap();
        assert_eq!((linked.node, linked.nlink), (node, 1));
        if fsync_first {
            bed.mount.fsyncdir(ROOT, Handle(0), false).unwrap();
        } else {
            bed.fsync(node);
        }
        let bed = bed.crash(2);
        while bed.mount.reap_step(10).unwrap() {}
        let found = bed.find("report").unwrap();
        assert_eq!((found.node, found.nlink), (node, 1));
        assert_eq!(bed.content(node), b"report");
        bed.check();
        bed.check_tree();
    }
}

#[test]
fn only_the_first_name_comes_from_nowhere() {
    let bed = Bed::new(&[]);
    let node = tmpfile(&bed);
    bed.mount.link(node, ROOT, b"a").unwrap();
    bed.mount.link(node, ROOT, b"b").unwrap();
    bed.mount.unlink(ROOT, b"a").unwrap();
    bed.mount.unlink(ROOT, b"b").unwrap();
    assert_eq!(bed.mount.link(node, ROOT, b"c"), Err(FsError::NotFound));
    let flags = OpenFlags { exclusive: true, ..READ_WRITE };
    let (attr, _) = bed.mount.tmpfile(ROOT, 0o600, flags, &USER).unwrap();
    assert_eq!(bed.mount.link(attr.node, ROOT, b"c"), Err(FsError::NotFound));
    let node = tmpfile(&bed);
    bed.mount.release(node, Handle(0)).unwrap();
    assert_eq!(bed.mount.link(node, ROOT, b"c"), Err(FsError::NotFound));
}

#[test]
fn it_takes_a_directory_that_is_there() {
    let bed = Bed::new(&[]);
    let file = bed.file(ROOT, "f");
    assert_eq!(bed.mount.tmpfile(file, 0o600, READ_WRITE, &USER), Err(FsError::NotDirectory));
    let dir = bed.dir(ROOT, "d");
    bed.mount.rmdir(ROOT, b"d").unwrap();
    assert_eq!(bed.mount.tmpfile(dir, 0o600, READ_WRITE, &USER), Err(FsError::NotFound));
}
