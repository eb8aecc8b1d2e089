use super::*;

/// A request in one piece: structure and the rest.
fn whole(opcode: u32, structure: &[u8], rest: &[u8]) -> Vec<u8> {
    let len = (size_of::<abi::InHeader>() + structure.len() + rest.len()) as u32;
    let (unique, nodeid, uid, gid, pid) = (77, 5, 1, 2, 3);
    let header = abi::InHeader { len, opcode, unique, nodeid, uid, gid, pid, ..Default::default() };
    [header.as_bytes(), structure, rest].concat()
}

fn structure(value: &(impl IntoBytes + zerocopy::Immutable)) -> Vec<u8> {
    value.as_bytes().to_vec()
}

/// Every request as the kernel sends it, and what is read.
fn all() -> Vec<(u32, Vec<u8>, &'static [u8], Operation<'static>)> {
    use Operation as Op;
    let kill = abi::OPEN_KILL_SUIDGID;
    let create = abi::CreateIn { flags: 0o101, mode: 0o100_644, umask: 0o22, open_flags: kill };
    let read = abi::ReadIn { fh: 6, offset: 4096, size: 512, ..Default::default() };
    let release = structure(&abi::ReleaseIn { fh: 6, ..Default::default() });
    let fsync = structure(&abi::FsyncIn { fh: 6, fsync_flags: abi::FSYNC_FDATASYNC, padding: 0 });
    let copy = abi::CopyFileRangeIn {
        fh_in: 1,
        off_in: 2,
        nodeid_out: 3,
        fh_out: 4,
        off_out: 5,
        len: u64::MAX,
        flags: 0,
    };
    let copied = |length| Op::CopyFileRange { from: (1, 2), to: (3, 4, 5), length, flags: 0 };
    let set = abi::SetattrIn {
        valid: fattr::MODE
            | fattr::SIZE
            | fattr::ATIME
            | fattr::ATIME_NOW
            | fattr::MTIME
            | fattr::KILL_SUIDGID,
        mode: 0o100_600,
        size: 9,
        mtime: (-2i64).cast_unsigned(),
        mtimensec: 800_000_000,
        uid: 4711,
        ..Default::default()
    };
    let set_attr = SetAttr {
        perm: Some(0o600),
        size: Some(9),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::To(Timestamp { secs: -2, nanos: 800_000_000 })),
        kill_suidgid: true,
        ..SetAttr::default()
    };
    let two_forgets = [1u64, 2, 3, 4].map(u64::to_ne_bytes).concat().leak();
    let two_forgets: &[u8] = two_forgets;
    vec![
        (opcode::LOOKUP, vec![], b"name\0", Op::Lookup { name: b"name" }),
        (opcode::FORGET, structure(&abi::ForgetIn { nlookup: 3 }), b"", Op::Forget { lookups: 3 }),
        (
            opcode::BATCH_FORGET,
            structure(&abi::BatchForgetIn { count: 2, dummy: 0 }),
            two_forgets,
            Op::BatchForget(Forgets(two_forgets)),
        ),
        (
            opcode::GETATTR,
            structure(&abi::GetattrIn { getattr_flags: abi::GETATTR_FH, dummy: 0, fh: 6 }),
            b"",
            Op::GetAttr { handle: Some(6) },
        ),
        (opcode::SETATTR, structure(&set), b"", Op::SetAttr(set_attr)),
        (
            opcode::STATX,
            structure(&abi::StatxIn { sx_mask: 0xfff, ..Default::default() }),
            b"",
            Op::Statx { handle: None, mask: 0xfff },
        ),
        (opcode::READLINK, vec![], b"", Op::ReadLink),
        (opcode::SYMLINK, vec![], b"name\0to/there\0", Op::Symlink { name: b"name", target: b"to/there" }),
        (
            opcode::MKNOD,
            structure(&abi::MknodIn { mode: 0o010_666, rdev: 7, umask: 0o22, padding: 0 }),
            b"name\0",
            Op::MkNod { name: b"name", mode: 0o010_666, rdev: 7, umask: 0o22 },
        ),
        (
            opcode::MKDIR,
            structure(&abi::MkdirIn { mode: 0o755, umask: 0o27 }),
            b"name\0",
            Op::MkDir { name: b"name", mode: 0o755, umask: 0o27 },
        ),
        (opcode::UNLINK, vec![], b"name\0", Op::Unlink { name: b"name" }),
        (opcode::RMDIR, vec![], b"name\0", Op::RmDir { name: b"name" }),
        (
            opcode::RENAME,
            structure(&abi::RenameIn { newdir: 8 }),
            b"old\0new\0",
            Op::Rename { name: b"old", new_parent: 8, new_name: b"new", flags: 0 },
        ),
        (
            opcode::RENAME2,
            structure(&abi::Rename2In { newdir: 8, flags: 2, padding: 0 }),
            b"old\0new\0",
            Op::Rename { name: b"old", new_parent: 8, new_name: b"new", flags: 2 },
        ),
        (
            opcode::LINK,
            structure(&abi::LinkIn { oldnodeid: 8 }),
            b"name\0",
            Op::Link { from: 8, name: b"name" },
        ),
        (
            opcode::OPEN,
            structure(&abi::OpenIn { flags: 2, open_flags: kill }),
            b"",
            Op::Open { flags: 2, kill_suidgid: true },
        ),
        (
            opcode::CREATE,
            structure(&create),
            b"name\0",
            Op::Create { name: b"name", flags: 0o101, mode: 0o100_644, umask: 0o22, kill_suidgid: true },
        ),
        (
            opcode::TMPFILE,
            structure(&create),
            b"",
            Op::TmpFile { flags: 0o101, mode: 0o100_644, umask: 0o22 },
        ),
        (opcode::READ, structure(&read), b"", Op::Read { handle: 6, offset: 4096, size: 512 }),
        (
            opcode::WRITE,
            structure(&abi::WriteIn {
                fh: 6,
                offset: 9,
                size: 4,
                write_flags: 4,
                flags: 0o010_001,
                ..Default::default()
            }),
            b"data",
            Op::Write { handle: 6, offset: 9, data: b"data", kill_suidgid: true, durable: true },
        ),
        (opcode::STATFS, vec![], b"", Op::StatFs),
        (
            opcode::FLUSH,
            structure(&abi::FlushIn { fh: 6, ..Default::default() }),
            b"",
            Op::Flush { handle: 6 },
        ),
        (opcode::RELEASE, release.clone(), b"", Op::Release { handle: 6 }),
        (opcode::FSYNC, fsync.clone(), b"", Op::Fsync { handle: 6, datasync: true }),
        (
            opcode::SETXATTR,
            structure(&abi::SetxattrIn { size: 3, flags: 1, setxattr_flags: 1, padding: 0 }),
            b"user.a\0\0\x01\x02",
            Op::SetXattr { name: b"user.a", value: b"\0\x01\x02", flags: 1, acl_kill_sgid: true },
        ),
        (
            opcode::GETXATTR,
            structure(&abi::GetxattrIn { size: 10, padding: 0 }),
            b"user.a\0",
            Op::GetXattr { name: b"user.a", size: 10 },
        ),
        (
            opcode::LISTXATTR,
            structure(&abi::GetxattrIn { size: 10, padding: 0 }),
            b"",
            Op::ListXattr { size: 10 },
        ),
        (opcode::REMOVEXATTR, vec![], b"user.a\0", Op::RemoveXattr { name: b"user.a" }),
        (opcode::OPENDIR, structure(&abi::OpenIn { flags: 7, open_flags: 0 }), b"", Op::OpenDir { flags: 7 }),
        (
            opcode::READDIR,
            structure(&read),
            b"",
            Op::ReadDir { handle: 6, cookie: 4096, size: 512, plus: false },
        ),
        (
            opcode::READDIRPLUS,
            structure(&read),
            b"",
            Op::ReadDir { handle: 6, cookie: 4096, size: 512, plus: true },
        ),
        (opcode::RELEASEDIR, release, b"", Op::ReleaseDir { handle: 6 }),
        (opcode::FSYNCDIR, fsync, b"", Op::FsyncDir { handle: 6, datasync: true }),
        (
            opcode::FALLOCATE,
            structure(&abi::FallocateIn { fh: 6, offset: 1, length: 2, mode: 3, padding: 0 }),
            b"",
            Op::Fallocate { handle: 6, offset: 1, length: 2, mode: 3 },
        ),
        (
            opcode::LSEEK,
            structure(&abi::LseekIn { fh: 6, offset: 1, whence: 4, padding: 0 }),
            b"",
            Op::Lseek { handle: 6, offset: 1, whence: 4 },
        ),
        (opcode::COPY_FILE_RANGE, structure(&copy), b"", copied(MAX_NARROW_COPY)),
        (opcode::COPY_FILE_RANGE_64, structure(&copy), b"", copied(u64::MAX)),
        (opcode::SYNCFS, vec![0; 8], b"", Op::SyncFs),
        (opcode::INTERRUPT, structure(&abi::InterruptIn { unique: 70 }), b"", Op::Interrupt { unique: 70 }),
        (opcode::DESTROY, vec![], b"", Op::Destroy),
        (4711, vec![], b"anything", Op::Unknown),
    ]
}

#[test]
fn every_request_is_read_alike_from_one_piece_and_from_a_ring() {
    for (code, structure, rest, wanted) in all() {
        let bytes = whole(code, &structure, rest);
        let request = Request::decode(&bytes).unwrap();
        assert_eq!(request.operation, wanted);
        assert_eq!((request.unique, request.node, request.opcode), (77, 5, code));
        assert_eq!((request.uid, request.gid, request.pid), (1, 2, 3));

        // Bytes behind the parts are left from earlier requests.
        let mut header = bytes[..40].to_vec();
        header.resize(128, 0xee);
        let mut place = structure.clone();
        place.resize(128, 0xee);
        let split = Layout::Split { header: &header, structure: &place, rest };
        assert_eq!(Request::from_layout(split), Ok(request), "{wanted:?}");
    }
}

#[test]
fn a_request_that_ends_too_early_is_refused_with_its_number() {
    for (code, structure, rest, wanted) in all() {
        let bytes = whole(code, &structure, rest);
        for len in 0..bytes.len() {
            let cut = Request::decode(&bytes[..len]);
            let needed = !matches!(wanted, Operation::SyncFs | Operation::Unknown);
            match cut {
                Err(Malformed { unique }) => {
                    assert_eq!(unique, (len >= 40).then_some(77), "{wanted:?} at {len}")
                }
                Ok(_) => assert!(len >= 40 && !needed, "{wanted:?} is read from {len} bytes"),
            }
        }
    }
}

#[test]
fn names_that_are_empty_and_times_that_are_none_are_refused() {
    assert!(Request::decode(&whole(opcode::LOOKUP, &[], b"\0")).is_err());
    assert!(Request::decode(&whole(opcode::SYMLINK, &[], b"\0target\0")).is_err());
    let set = abi::SetattrIn { valid: fattr::CTIME, ctimensec: 1_000_000_000, ..Default::default() };
    assert!(Request::decode(&whole(opcode::SETATTR, set.as_bytes(), b"")).is_err());
    let many = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
    assert!(Request::decode(&whole(opcode::BATCH_FORGET, many.as_bytes(), &[0; 64])).is_err());
    let long = abi::WriteIn { size: u32::MAX, ..Default::default() };
    assert!(Request::decode(&whole(opcode::WRITE, long.as_bytes(), b"data")).is_err());
}

#[test]
fn forgets_come_one_by_one_and_want_no_answer() {
    let one = |node: u64, lookups: u64| [node.to_ne_bytes(), lookups.to_ne_bytes()].concat();
    let head = abi::BatchForgetIn { count: 2, dummy: 0 };
    let bytes = whole(opcode::BATCH_FORGET, head.as_bytes(), &[one(1, 2), one(3, 4)].concat());
    let request = Request::decode(&bytes).unwrap();
    let Operation::BatchForget(forgets) = request.operation else { panic!("{request:?}") };
    let wanted = [Forget { node: 1, lookups: 2 }, Forget { node: 3, lookups: 4 }];
    assert_eq!(forgets.iter().collect::<Vec<_>>(), wanted);
    assert!(!request.wants_answer());
    assert!(Request::decode(&whole(opcode::STATFS, &[], b"")).unwrap().wants_answer());
}

#[test]
fn the_first_request_shows_what_the_kernel_can_do() {
    let init = abi::InitIn { major: 7, minor: 45, max_readahead: 9, flags: abi::init::INIT_EXT as u32 };
    let ext = abi::InitInExt { flags2: 1 << 9, ..Default::default() };
    let bytes = whole(opcode::INIT, init.as_bytes(), ext.as_bytes());
    let read = Init::decode(&bytes).unwrap();
    assert_eq!((read.unique, read.major, read.minor, read.max_readahead), (77, 7, 45, 9));
    assert_eq!(read.flags, abi::init::INIT_EXT | abi::init::OVER_IO_URING);
    // Kernels before 5.17 send no more than the first half.
    let short = abi::InitIn { flags: 1, ..init };
    assert_eq!(Init::decode(&whole(opcode::INIT, short.as_bytes(), b"")).unwrap().flags, 1);
    assert_eq!(Init::decode(&whole(opcode::LOOKUP, init.as_bytes(), b"")), None);
    assert_eq!(Init::decode(&bytes[..50]), None);
}
