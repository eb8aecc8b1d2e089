//! Access lists and the properties that switch them and other attributes off.

use crate::bed::{Bed, ROOT, USER};
use crate::lists::{ACCESS, DEFAULT, pack, plain};
use larder_files::*;
use larder_pool::ROOT_DATASET;

/// Owner rwx, user 7 rw, group r-x, mask rwx, other none: mode 0770.
fn named() -> Vec<u8> {
    let nobody = u32::MAX;
    pack(&[(1, 7, nobody), (2, 6, 7), (4, 5, nobody), (16, 7, nobody), (32, 0, nobody)])
}

fn perm(bed: &Bed, node: NodeId) -> u32 {
    bed.mount.getattr(node).unwrap().perm
}

fn set(bed: &Bed, node: NodeId, name: &[u8], list: &[u8]) -> Result<()> {
    bed.mount.setxattr(node, name, list, XattrMode::Set)
}

#[test]
fn list_and_mode_stay_in_step() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "f");
    assert_eq!(bed.mount.getxattr(node, ACCESS), Err(FsError::NoAttr));
    let before = bed.mount.getattr(node).unwrap();
    bed.tick();
    set(&bed, node, ACCESS, &named()).unwrap();
    let after = bed.mount.getattr(node).unwrap();
    assert_eq!((after.perm, after.mtime), (0o770, before.mtime));
    assert!(after.ctime > before.ctime);
    assert_eq!(bed.mount.listxattr(node).unwrap(), [ACCESS, b"\0"].concat());

    let chmod = SetAttr { perm: Some(0o4641), ..SetAttr::default() };
    bed.mount.setattr(node, &chmod, &USER).unwrap();
    let nobody = u32::MAX;
    let changed = pack(&[(1, 6, nobody), (2, 6, 7), (4, 5, nobody), (16, 4, nobody), (32, 1, nobody)]);
    assert_eq!(bed.mount.getxattr(node, ACCESS).unwrap(), changed);

    // A list that nine bits can express is not kept; the bits above them stay.
    set(&bed, node, ACCESS, &plain(0o640)).unwrap();
    assert_eq!((perm(&bed, node), bed.mount.getxattr(node, ACCESS)), (0o4640, Err(FsError::NoAttr)));
    set(&bed, node, ACCESS, &named()).unwrap();
    bed.fsync(node);
    let bed = bed.crash(2);
    assert_eq!((perm(&bed, node), bed.mount.getxattr(node, ACCESS).unwrap()), (0o4770, named()));
    bed.mount.removexattr(node, ACCESS).unwrap();
    bed.mount.removexattr(node, ACCESS).unwrap();
    assert_eq!((perm(&bed, node), bed.mount.listxattr(node).unwrap()), (0o4770, Vec::new()));
}

#[test]
fn a_default_list_is_inherited_in_place_of_the_umask() {
    let bed = Bed::new(&[]);
    let dir = bed.dir(ROOT, "dir");
    set(&bed, dir, DEFAULT, &named()).unwrap();
    assert_eq!(perm(&bed, dir), 0o755, "a default list says nothing of the directory itself");
    let caller = Caller { umask: 0o077, ..USER };
    let file = bed.mount.mknod(dir, b"file", FileKind::Regular, 0o664, 0, &caller).unwrap();
    assert_eq!(file.perm, 0o660);
    let nobody = u32::MAX;
    let access = pack(&[(1, 6, nobody), (2, 6, 7), (4, 5, nobody), (16, 6, nobody), (32, 0, nobody)]);
    assert_eq!(bed.mount.getxattr(file.node, ACCESS).unwrap(), access);
    assert_eq!(bed.mount.getxattr(file.node, DEFAULT), Err(FsError::NoAttr));
    let below = bed.mount.mkdir(dir, b"below", 0o777, &caller).unwrap();
    assert_eq!(below.perm, 0o770);
    assert_eq!(bed.mount.getxattr(below.node, DEFAULT).unwrap(), named());
    let link = bed.mount.symlink(dir, b"link", b"file", &caller).unwrap();
    assert_eq!((link.perm, bed.mount.listxattr(link.node).unwrap()), (0o777, Vec::new()));
    let (nameless, _) = bed.mount.tmpfile(dir, 0o600, crate::bed::READ_WRITE, &caller).unwrap();
    assert_eq!(nameless.perm, 0o600);
    bed.mount.removexattr(dir, DEFAULT).unwrap();
    let file = bed.mount.mknod(dir, b"other", FileKind::Regular, 0o664, 0, &caller).unwrap();
    assert_eq!((file.perm, bed.mount.listxattr(file.node).unwrap()), (0o600, Vec::new()));
    bed.mount.fsyncdir(dir, Handle(0), false).unwrap();
    let bed = bed.crash(2);
    assert_eq!(bed.mount.getxattr(bed.find("dir/file").unwrap().node, ACCESS).unwrap(), access);
    assert_eq!(bed.mount.getxattr(bed.find("dir/below").unwrap().node, DEFAULT).unwrap(), named());
}

#[test]
fn lists_are_refused_as_linux_refuses_them() {
    let bed = Bed::new(&[]);
    let (file, dir) = (bed.file(ROOT, "f"), bed.dir(ROOT, "d"));
    let link = bed.mount.symlink(ROOT, b"l", b"f", &USER).unwrap().node;
    assert_eq!(set(&bed, file, DEFAULT, &named()), Err(FsError::Access));
    assert_eq!(bed.mount.removexattr(file, DEFAULT), Ok(()));
    assert_eq!(set(&bed, link, ACCESS, &named()), Err(FsError::NotSupported));
    let empty = &named()[..4];
    assert_eq!(set(&bed, dir, DEFAULT, empty), Ok(()), "no entries: taken away");
    let mut version = named();
    version[0] = 3;
    let nobody = u32::MAX;
    let unmasked = pack(&[(1, 7, nobody), (2, 6, 7), (4, 5, nobody), (32, 0, nobody)]);
    let mut many = vec![(1, 7, nobody)];
    many.extend((0..505).map(|id| (2, 7, id)));
    many.extend([(4, 7, nobody), (16, 7, nobody)]);
    many.push((32, 7, nobody));
    let most = pack(&[&many[..1], &many[2..]].concat());
    for (list, refused) in [
        (version, FsError::NotSupported),
        (named()[..9].to_vec(), FsError::Invalid),
        (named()[..12].to_vec(), FsError::Invalid),
        (Vec::new(), FsError::Invalid),
        (unmasked, FsError::Invalid),
        (pack(&many), FsError::AttrTooBig),
    ] {
        for name in [ACCESS, DEFAULT] {
            assert_eq!(set(&bed, dir, name, &list), Err(refused.clone()));
        }
    }
    assert_eq!((perm(&bed, dir), bed.mount.listxattr(dir).unwrap()), (0o755, Vec::new()));
    set(&bed, dir, DEFAULT, &most).unwrap();
    assert_eq!(bed.mount.getxattr(dir, DEFAULT).unwrap(), most);
}

#[test]
fn who_may_not_keep_set_group_id_loses_it_with_a_list() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "f");
    let chmod = SetAttr { perm: Some(0o2750), ..SetAttr::default() };
    bed.mount.setattr(node, &chmod, &USER).unwrap();
    set(&bed, node, ACCESS, &named()).unwrap();
    assert_eq!(perm(&bed, node), 0o2770);
    bed.mount.setxattr(node, ACCESS, &plain(0o750), XattrMode::KillSetgid).unwrap();
    assert_eq!(perm(&bed, node), 0o750);
}

#[test]
fn without_acltype_lists_have_no_effect_and_stay() {
    let bed = Bed::new(&[]);
    let dir = bed.dir(ROOT, "dir");
    set(&bed, dir, DEFAULT, &named()).unwrap();
    set(&bed, dir, ACCESS, &named()).unwrap();
    bed.pool.set_property(ROOT_DATASET, "acltype", "off").unwrap();
    assert_eq!(bed.mount.getxattr(dir, ACCESS), Err(FsError::NoAttr));
    assert_eq!(set(&bed, dir, ACCESS, &named()), Err(FsError::NotSupported));
    assert_eq!(bed.mount.removexattr(dir, DEFAULT), Err(FsError::NotSupported));
    assert_eq!(bed.mount.listxattr(dir).unwrap(), b"");
    let caller = Caller { umask: 0o077, ..USER };
    let file = bed.mount.mknod(dir, b"file", FileKind::Regular, 0o664, 0, &caller).unwrap();
    assert_eq!(file.perm, 0o600);
    bed.pool.set_property(ROOT_DATASET, "acltype", "posixacl").unwrap();
    assert_eq!(bed.mount.getxattr(file.node, ACCESS), Err(FsError::NoAttr));
    assert_eq!(bed.mount.getxattr(dir, ACCESS).unwrap(), named());
}

#[test]
fn without_xattr_attributes_can_be_read_and_removed_only() {
    let bed = Bed::new(&[]);
    let node = bed.file(ROOT, "f");
    bed.mount.setxattr(node, b"user.a", b"1", XattrMode::Set).unwrap();
    bed.pool.set_property(ROOT_DATASET, "xattr", "off").unwrap();
    for name in [&b"user.a"[..], b"trusted.a", b"security.selinux"] {
        assert_eq!(bed.mount.setxattr(node, name, b"2", XattrMode::Set), Err(FsError::NotSupported));
    }
    set(&bed, node, ACCESS, &named()).unwrap();
    assert_eq!(bed.mount.getxattr(node, b"user.a").unwrap(), b"1");
    bed.mount.removexattr(node, b"user.a").unwrap();
    bed.pool.set_property(ROOT_DATASET, "xattr", "sa").unwrap();
    bed.mount.setxattr(node, b"user.a", b"2", XattrMode::Set).unwrap();
}
