//! Streams of newer versions than any program here makes: built by hand, in both byte orders.

mod build;

use build::{Build, DIRECTORY, File, PLAIN, SA, ZNODE, packed_list};
use larder_zfs_stream::{
    Line, Memory, MemoryError, Order, ReceiveError, Received, Refusal, StreamError, Streams, Value, receive,
};

const SA_OBJECTS: [u64; 3] = [900, 901, 902];
const ROOT: u64 = 34;
const SPILL: u64 = 1 << 2;
const EMBED: u64 = 1 << 16;
const LARGE: u64 = 1 << 19;
const COMPRESSED: u64 = 1 << 22;
const TELLS_SPILL: u32 = 1 << 3;

type Outcome = Result<Received, ReceiveError<MemoryError>>;

fn take(sink: &mut Memory, bytes: &[u8]) -> Outcome {
    let mut streams = Streams::new(bytes);
    let begin = streams.next_stream()?.expect("there is one");
    let received = receive(&mut streams, &begin, sink)?;
    assert_eq!(streams.next_stream()?, None);
    Ok(received)
}

fn lines(sink: &Memory) -> Vec<Line> {
    sink.lines(&|content| content.to_vec())
}

#[track_caller]
fn line(sink: &Memory, path: &str) -> Line {
    let found = lines(sink).into_iter().find(|line| line.path == path.as_bytes());
    found.unwrap_or_else(|| {
        panic!("no {path} among {:?}", lines(sink).iter().map(|l| l.to_string()).collect::<Vec<_>>())
    })
}

fn in_both_orders(test: impl Fn(Order)) {
    test(Order::Little);
    test(Order::Big);
}

/// A stream that begins, with a master node of version 5 and a root directory.
fn begun(order: Order, features: u64, from: u64, to: u64, names: &[(&str, u64)]) -> Build {
    let mut build = Build::new(order);
    build.begin(features | SPILL, TELLS_SPILL, from, to, "tank/home@now");
    if from == 0 {
        build.master(5, ROOT, Some(SA_OBJECTS));
    }
    root(&mut build, names);
    build
}

fn root(build: &mut Build, names: &[(&str, u64)]) {
    let dir = File { mode: 0o040_755, size: names.len() as u64 + 2, parent: ROOT, ..File::default() };
    let (bonus, block) = (build.sa(2, &dir, &[]), build.micro(names));
    build.object(ROOT, DIRECTORY, SA, block.len() as u32, &bonus).write(ROOT, 0, &block);
}

fn file(build: &mut Build, object: u64, size: u64, block: u32) {
    let bonus = build.sa(2, &File { size, ..File::default() }, &[]);
    build.object(object, PLAIN, SA, block, &bonus);
}

/// The attributes come last, as in a file system that was upgraded.
fn ended(mut build: Build) -> Vec<u8> {
    build.attributes(SA_OBJECTS).end();
    build.bytes()
}

#[test]
fn system_attributes_are_read_wherever_they_lie() {
    in_both_orders(|order| {
        let names = [("plain", 40), ("link", 41), ("with", 42), ("spilt", 43), ("device", 44), ("acl", 45)];
        let mut build = begun(order, 0, 0, 7, &names);
        let times = [(5, 6), (u64::MAX, 999_999_999), (7, 0), (1 << 33, 8)];
        let plain = File { mode: 0o104_711, size: 5, uid: 7, gid: 1 << 20, times, ..File::default() };
        let bonus = build.sa(2, &plain, &[]);
        build.object(40, PLAIN, SA, 512, &bonus).write(40, 0, &[b'x'; 512]);
        let bonus = build.sa(3, &File { mode: 0o120_777, size: 9, ..File::default() }, &[b"somewhere"]);
        build.object(41, PLAIN, SA, 512, &bonus);
        let among = packed_list(&[("user.a", b"1"), ("security.selinux", b"label\0")]);
        let bonus = build.sa(4, &File::default(), &[&among]);
        build.object(42, PLAIN, SA, 512, &bonus);
        let large = [b'v'; 3000];
        let bonus = build.sa(2, &File::default(), &[]);
        let spill = build.sa_spill(&packed_list(&[("user.large", &large), ("trusted.t", b"")]));
        build.object_flagged(43, PLAIN, SA, 512, &bonus, 4).spill(43, &spill);
        let rdev = 8 << 20 | 1 << 8 | 3;
        let bonus = build.sa(2, &File { mode: 0o060_660, rdev, ..File::default() }, &[]);
        build.object(44, PLAIN, SA, 512, &bonus);
        let acl = File { flags: 0, uid: 3 << 32 | 1000, ..File::default() };
        let bonus = build.sa(6, &acl, &[&[9; 40], &among]);
        build.object(45, PLAIN, SA, 512, &bonus);
        let mut sink = Memory::default();
        let received = take(&mut sink, &ended(build)).unwrap();
        assert_eq!((received.access_lists, received.domain_owners, received.miscounted), (1, 1, 0));

        let plain = line(&sink, "plain");
        assert_eq!((plain.attr.perm, plain.attr.uid, plain.attr.gid), (0o4711, 7, 1 << 20));
        assert_eq!((plain.attr.mtime.secs, plain.attr.mtime.nanos), (-1, 999_999_999));
        assert_eq!((plain.attr.btime.secs, plain.attr.btime.nanos), (1 << 33, 8));
        assert_eq!((plain.content, plain.size), (b"xxxxx".to_vec(), 5));
        let link = line(&sink, "link");
        assert_eq!((link.kind, link.content), ('l', b"somewhere".to_vec()));
        let some =
            vec![(b"security.selinux".to_vec(), b"label\0".to_vec()), (b"user.a".to_vec(), b"1".to_vec())];
        assert_eq!(line(&sink, "with").xattrs, some);
        let spilt = vec![(b"trusted.t".to_vec(), Vec::new()), (b"user.large".to_vec(), large.to_vec())];
        assert_eq!(line(&sink, "spilt").xattrs, spilt);
        let device = line(&sink, "device");
        assert_eq!((device.kind, device.device), ('b', (8, 259)));
        let acl = line(&sink, "acl");
        assert_eq!((acl.attr.uid, acl.xattrs), (65534, some));
    });
}

#[test]
fn attributes_of_an_unchanged_spill_block_stay_and_go() {
    let order = Order::Little;
    let mut build = begun(order, 0, 0, 7, &[("spilt", 43)]);
    let bonus = build.sa(2, &File::default(), &[]);
    let spill = build.sa_spill(&packed_list(&[("user.kept", b"here")]));
    build.object_flagged(43, PLAIN, SA, 512, &bonus, 4).spill(43, &spill);
    let mut sink = Memory::default();
    take(&mut sink, &ended(build)).unwrap();
    // Older senders leave an unchanged one out.
    let mut build = Build::new(order);
    build.begin(SPILL, 0, 7, 8, "tank/home@now");
    let chmod = build.sa(2, &File { mode: 0o100_600, ..File::default() }, &[]);
    build.object(43, PLAIN, SA, 512, &chmod).free(43, 512, u64::MAX).end();
    take(&mut sink, &build.bytes()).unwrap();
    let spilt = line(&sink, "spilt");
    assert_eq!((spilt.attr.perm, spilt.xattrs), (0o600, vec![(b"user.kept".to_vec(), b"here".to_vec())]));
    let mut build = Build::new(order);
    build.begin(SPILL, TELLS_SPILL, 8, 9, "tank/home@now");
    build.object(43, PLAIN, SA, 512, &chmod).end();
    take(&mut sink, &build.bytes()).unwrap();
    assert_eq!(line(&sink, "spilt").xattrs, []);
}

#[test]
fn compressed_embedded_and_large_blocks_are_content() {
    in_both_orders(|order| {
        let names =
            [("lz4", 40), ("gzip", 41), ("zstd", 42), ("zle", 43), ("lzjb", 44), ("tiny", 45), ("large", 46)];
        let mut build = begun(order, COMPRESSED | EMBED | LARGE | 1 << 17 | 1 << 25, 0, 7, &names);
        let text = b"again and ".repeat(13108)[..131_072].to_vec();
        let size = 131_000;
        let lz4 = lz4_flex::block::compress(&text);
        file(&mut build, 40, size, 131_072);
        build.packed(40, 0, 131_072, 15, &[&(lz4.len() as u32).to_be_bytes()[..], &lz4].concat());
        file(&mut build, 41, size, 131_072);
        let mut zlib = vec![0; 131_072];
        let mut compressor = libdeflater::Compressor::new(libdeflater::CompressionLvl::default());
        let len = compressor.zlib_compress(&text, &mut zlib).unwrap();
        build.packed(41, 0, 131_072, 11, &zlib[..len]);
        file(&mut build, 42, size, 131_072);
        let frame = &zstd::bulk::compress(&text, 3).unwrap()[4..];
        build.packed(
            42,
            0,
            131_072,
            16,
            &[&(frame.len() as u32).to_be_bytes()[..], &[1, 4, 5, 3], frame].concat(),
        );
        // 64 bytes as they are, and 448 zeros.
        file(&mut build, 43, 500, 512);
        let zle = [&[63][..], &text[..64], &[255, 255, 127]].concat();
        build.packed(43, 0, 512, 14, &zle);
        // A letter, and matches of 66 bytes one back.
        file(&mut build, 44, 512, 512);
        let lzjb =
            [&[0b1111_1110, b'a'][..], &[0b1111_1100, 1].repeat(7), &[0xff], &[0b1111_1100, 1].repeat(8)]
                .concat();
        build.packed(44, 0, 512, 3, &lzjb);
        file(&mut build, 45, 80, 512);
        let tiny = lz4_flex::block::compress(&text[..80]);
        build.embedded(45, 512, 15, 80, &[&(tiny.len() as u32).to_be_bytes()[..], &tiny].concat());
        file(&mut build, 46, 3 << 20, 1 << 20);
        let block = text.repeat(8);
        build.write(46, 0, &block).write(46, 2 << 20, &block).free(46, 3 << 20, u64::MAX);
        let mut sink = Memory::default();
        take(&mut sink, &ended(build)).unwrap();
        for name in ["lz4", "gzip", "zstd"] {
            assert_eq!(line(&sink, name).content, text[..size as usize], "{name}");
        }
        assert_eq!(line(&sink, "zle").content, [&text[..64], &[0; 436]].concat());
        assert_eq!(line(&sink, "lzjb").content, [b'a'; 512]);
        assert_eq!(line(&sink, "tiny").content, text[..80]);
        let large = line(&sink, "large").content;
        assert_eq!((&large[..1 << 20], &large[2 << 20..]), (&block[..], &block[..]));
        assert!(large[1 << 20..2 << 20].iter().all(|&byte| byte == 0));
        assert_eq!(sink.stored(b"large"), Some(2 << 20), "a hole is one here");
    });
}

#[test]
fn a_sender_that_begins_to_send_large_blocks_takes_nothing_away() {
    let order = Order::Little;
    let mut build = begun(order, 0, 0, 7, &[("large", 46), ("small", 47)]);
    file(&mut build, 46, 2 << 20, 128 << 10);
    for number in 0..16 {
        build.write(46, number << 17, &[number as u8 + 1; 128 << 10]);
    }
    file(&mut build, 47, 500, 512);
    build.write(47, 0, &[7; 512]);
    let mut sink = Memory::default();
    take(&mut sink, &ended(build)).unwrap();
    let mut build = Build::new(order);
    build.begin(SPILL | LARGE | 1 << 27, TELLS_SPILL, 7, 8, "tank/home@now");
    file(&mut build, 46, 2 << 20, 1 << 20);
    build.write(46, 1 << 20, &[99; 1 << 20]);
    // One block that has another size is sent again, unless all of it is a hole now.
    file(&mut build, 47, 1000, 1024);
    build.end();
    take(&mut sink, &build.bytes()).unwrap();
    let large = line(&sink, "large").content;
    assert!(
        large[..1 << 20].chunks(128 << 10).zip(1..).all(|(chunk, number)| chunk.iter().all(|&b| b == number))
    );
    assert!(large[1 << 20..].iter().all(|&byte| byte == 99));
    assert_eq!(line(&sink, "small").content, [0; 1000]);
}

#[test]
fn attributes_that_are_objects_change_with_them() {
    in_both_orders(|order| {
        let mut build = begun(order, 0, 0, 7, &[("f", 40)]);
        let owner = File { xattr: 41, ..File::default() };
        let bonus = build.sa(5, &owner, &[]);
        build.object(40, PLAIN, SA, 512, &bonus);
        let dir = File { mode: 0o040_777, size: 4, parent: 40, flags: 5, ..File::default() };
        let (bonus, block) =
            (build.sa(2, &dir, &[]), build.micro(&[("user.one", 42), ("two", 43), ("SUNWattr_ro", 44)]));
        build.object(41, DIRECTORY, SA, block.len() as u32, &bonus).write(41, 0, &block);
        for (object, value) in [(42, &b"1"[..]), (43, b"22"), (44, b"no")] {
            let of = File { parent: 41, size: value.len() as u64, flags: 5, ..File::default() };
            let bonus = build.sa(2, &of, &[]);
            build.object(object, PLAIN, SA, 512, &bonus).write(
                object,
                0,
                &[value, &[0; 512]].concat()[..512],
            );
        }
        let mut sink = Memory::default();
        let received = take(&mut sink, &ended(build)).unwrap();
        assert_eq!(received.left_xattrs, 1);
        let pair = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        assert_eq!(line(&sink, "f").xattrs, [pair("user.one", "1"), pair("user.two", "22")]);
        // The value of one alone is sent: neither its owner nor the directory changed.
        let mut build = Build::new(order);
        build.begin(SPILL, TELLS_SPILL, 7, 8, "tank/home@now");
        let bonus = build.sa(2, &File { parent: 41, size: 3, flags: 5, ..File::default() }, &[]);
        build.object(43, PLAIN, SA, 512, &bonus).write(43, 0, &[b'3'; 512]).end();
        take(&mut sink, &build.bytes()).unwrap();
        assert_eq!(line(&sink, "f").xattrs, [pair("user.one", "1"), pair("user.two", "333")]);
        // One goes.
        let mut build = Build::new(order);
        build.begin(SPILL, TELLS_SPILL, 8, 9, "tank/home@now");
        let (bonus, block) = (build.sa(2, &File { size: 3, ..dir }, &[]), build.micro(&[("two", 43)]));
        build
            .object(41, DIRECTORY, SA, block.len() as u32, &bonus)
            .write(41, 0, &block)
            .free_objects(42, 1)
            .end();
        take(&mut sink, &build.bytes()).unwrap();
        assert_eq!(line(&sink, "f").xattrs, [pair("user.two", "333")]);
    });
}

#[test]
fn a_file_that_has_no_name_is_left_out_and_cannot_come_back_by_an_increment() {
    let order = Order::Little;
    let mut build = begun(order, 0, 0, 7, &[("named", 40)]);
    file(&mut build, 40, 0, 512);
    let bonus = build.sa(2, &File { size: 3, links: 0, ..File::default() }, &[]);
    build.object(41, PLAIN, SA, 512, &bonus).write(41, 0, &[1; 512]);
    let mut sink = Memory::default();
    take(&mut sink, &ended(build)).unwrap();
    assert_eq!(lines(&sink).len(), 2);
    let build = begun(order, 0, 7, 8, &[("named", 40), ("revived", 41)]);
    let mut revived = build.clone();
    let bonus = revived.sa(2, &File { size: 3, ..File::default() }, &[]);
    revived.object(41, PLAIN, SA, 512, &bonus).end();
    let refused = take(&mut sink.clone(), &revived.bytes());
    assert_eq!(refused, Err(ReceiveError::Stream(Refusal::Revived.into())));
    // Its number goes to another file, which is a whole one.
    let mut build = build;
    let bonus = build.sa(2, &File { size: 3, birth: 20, ..File::default() }, &[]);
    build.object(41, PLAIN, SA, 512, &bonus).write(41, 0, &[2; 512]).end();
    take(&mut sink, &build.bytes()).unwrap();
    assert_eq!(line(&sink, "revived").content, [2; 3]);
}

#[test]
fn the_directory_of_shares_is_left_out_with_all_in_it() {
    let order = Order::Little;
    let mut build = Build::new(order);
    build.begin(SPILL, TELLS_SPILL, 0, 7, "tank@now").master(5, ROOT, Some(SA_OBJECTS));
    let dir = File { mode: 0o040_555, size: 3, parent: 4, ..File::default() };
    let (bonus, block) = (build.sa(2, &dir, &[]), build.micro(&[("share", 40)]));
    build.object(4, DIRECTORY, SA, 512, &bonus).write(4, 0, &block);
    root(&mut build, &[]);
    file(&mut build, 40, 0, 512);
    let mut sink = Memory::default();
    take(&mut sink, &ended(build)).unwrap();
    assert_eq!(lines(&sink).len(), 1);
}

#[test]
fn blocks_that_a_machine_of_the_other_kind_wrote_are_read() {
    in_both_orders(|order| {
        let other = Build::new(order.other());
        let mut build = begun(order, 0, 0, 7, &[("d", 39), ("m", 38)]);
        let dir = File { mode: 0o040_755, size: 3, ..File::default() };
        let bonus = build.sa(2, &dir, &[]);
        build.object(38, DIRECTORY, SA, 512, &bonus).write(38, 0, &other.micro(&[("in m", 41)]));
        let (header, leaf) = (other.zap_header(1), other.zap_leaf(&[("in d", 8, vec![40])]));
        // A pointer table that looks like a leaf of the other kind at its start.
        let mut table = vec![0; 4096];
        table[..8].copy_from_slice(&build::u64s(order, 128));
        build.object(39, DIRECTORY, SA, 4096, &bonus).write(39, 0, &header).write(39, 4096, &leaf);
        build.write(39, 8192, &table);
        let bonus = build.sa(2, &File::default(), &[]);
        let spill = other.sa_spill(&packed_list(&[("user.a", b"value")]));
        build.object_flagged(40, PLAIN, SA, 512, &bonus, 4).spill(40, &spill);
        file(&mut build, 41, 0, 512);
        let mut sink = Memory::default();
        take(&mut sink, &ended(build)).unwrap();
        assert_eq!(line(&sink, "d/in d").xattrs, [(b"user.a".to_vec(), b"value".to_vec())]);
        line(&sink, "m/in m");
        let mut build = begun(order, 0, 0, 7, &[]);
        build.object(39, DIRECTORY, SA, 4096, &bonus_of(order)).write(39, 0, &table);
        assert!(matches!(take(&mut Memory::default(), &ended(build)), Err(ReceiveError::Stream(_))));
    });
}

fn bonus_of(order: Order) -> Vec<u8> {
    Build::new(order).sa(2, &File { mode: 0o040_755, size: 3, ..File::default() }, &[])
}

#[test]
fn of_two_names_one_goes_and_the_file_stays_itself() {
    let order = Order::Little;
    let mut build = begun(order, 0, 0, 7, &[("one", 40), ("other", 40)]);
    let bonus = build.sa(2, &File { size: 3, links: 2, ..File::default() }, &[]);
    build.object(40, PLAIN, SA, 512, &bonus).write(40, 0, &[1; 512]);
    let mut sink = Memory::default();
    take(&mut sink, &ended(build)).unwrap();
    assert_eq!(line(&sink, "other").links, 2);
    for (from, mode) in [(7, 0o100_600), (8, 0o100_640)] {
        let mut build = begun(order, 0, from, from + 1, &[("other", 40)]);
        let bonus = build.sa(2, &File { size: 3, mode, ..File::default() }, &[]);
        build.object(40, PLAIN, SA, 512, &bonus).end();
        take(&mut sink, &build.bytes()).unwrap();
        let other = line(&sink, "other");
        assert_eq!((other.links, other.attr.perm, other.content), (1, mode as u32 & 0o777, vec![1; 3]));
    }
}

#[test]
fn znodes_of_old_versions_are_read() {
    in_both_orders(|order| {
        let mut build = Build::new(order);
        build.sums_each = false;
        build.begin(0, 0, 0, 7, "tank@old").master(1, 3, None);
        // Entries had no type in version 1; the bits of it are not the object's.
        let names = build.micro(&[("f", 40), ("l", 41 | 10 << 60), ("long", 42), ("c", 43), ("sun", 44)]);
        let dir = build.znode(&File { mode: 0o040_755, size: 7, parent: 3, ..File::default() });
        build.object(3, DIRECTORY, ZNODE, names.len() as u32, &dir).write(3, 0, &names);
        let bonus = build.znode(&File { size: 2, uid: 9, ..File::default() });
        build.object(40, PLAIN, ZNODE, 512, &bonus).write(40, 0, &[b'y'; 512]);
        let bonus = build.znode(&File { mode: 0o120_777, size: 5, target: b"there", ..File::default() });
        build.object(41, PLAIN, ZNODE, 512, &bonus);
        let bonus = build.znode(&File { mode: 0o120_777, size: 400, ..File::default() });
        build.object(42, PLAIN, ZNODE, 512, &bonus).write(42, 0, &[b't'; 512]);
        let bonus = build.znode(&File { mode: 0o020_600, rdev: 0x10_052c, ..File::default() });
        build.object(43, PLAIN, ZNODE, 512, &bonus);
        let bonus = build.znode(&File { mode: 0o020_600, rdev: 13 << 32 | 70_000, ..File::default() });
        build.object(44, PLAIN, ZNODE, 512, &bonus).end();
        let mut sink = Memory::default();
        take(&mut sink, &build.bytes()).unwrap();
        let f = line(&sink, "f");
        assert_eq!((f.content, f.attr.uid, f.attr.atime.nanos), (b"yy".to_vec(), 9, 123_456_789));
        assert_eq!(line(&sink, "l").content, b"there");
        assert_eq!(line(&sink, "long").content, [b't'; 400]);
        assert_eq!((line(&sink, "c").device, line(&sink, "sun").device), ((5, 300), (13, 70_000)));
    });
}

#[test]
fn streams_that_are_not_taken_are_refused_by_name() {
    let features = [
        (1 << 24, Refusal::Raw),
        (1 << 21, Refusal::Redacted),
        (1, Refusal::Deduplicated),
        (2, Refusal::Deduplicated),
        (1 << 20, Refusal::Resuming),
        (1 << 5, Refusal::Features(1 << 5)),
    ];
    let refused = |build: &Build| match take(&mut Memory::default(), &build.bytes()) {
        Err(ReceiveError::Stream(StreamError::Refused(refusal))) => refusal,
        other => panic!("{other:?}"),
    };
    for (features, refusal) in features {
        assert_eq!(refused(&begun(Order::Little, features, 0, 7, &[])), refusal);
    }
    for (kind, refusal) in [(6, Refusal::Deduplicated), (9, Refusal::Raw), (10, Refusal::Redacted)] {
        let mut build = begun(Order::Big, 0, 0, 7, &[]);
        build.record(kind, &[], |_| {});
        assert_eq!(refused(&build), refusal);
    }
    let mut volume = Build::new(Order::Little);
    volume.begin(0, 0, 0, 7, "tank/volume@now").pieces[0].0[32] = 3;
    assert_eq!(refused(&volume), Refusal::NotFiles);
    let mut newer = Build::new(Order::Little);
    newer.begin(0, 0, 0, 7, "tank@now").master(6, ROOT, None).end();
    assert_eq!(refused(&newer), Refusal::Version(6));
    let mut build = begun(Order::Little, 0, 0, 7, &[]);
    let long = "n".repeat(300);
    let (header, leaf) = (build.zap_header(1), build.zap_leaf(&[(&long, 8, vec![40])]));
    let bonus = build.sa(2, &File { mode: 0o040_755, size: 3, ..File::default() }, &[]);
    build.object(39, DIRECTORY, SA, 4096, &bonus).write(39, 0, &header).write(39, 4096, &leaf);
    assert_eq!(refused(&build), Refusal::LongName);
}

#[test]
fn a_directory_that_lacks_names_is_noticed() {
    let large = |told: u64| {
        let mut build = begun(Order::Little, 0, 0, 7, &[("d", 39)]);
        let (header, leaf) = (build.zap_header(told), build.zap_leaf(&[("f", 8, vec![40 | 8 << 60])]));
        let bonus = build.sa(2, &File { mode: 0o040_755, size: 3, ..File::default() }, &[]);
        build.object(39, DIRECTORY, SA, 4096, &bonus).write(39, 0, &header).write(39, 4096, &leaf);
        file(&mut build, 40, 0, 512);
        take(&mut Memory::default(), &ended(build))
    };
    assert_eq!(large(1).unwrap().miscounted, 0);
    assert!(matches!(large(2), Err(ReceiveError::Stream(StreamError::Corrupt(_)))));
    let mut build = begun(Order::Little, 0, 0, 7, &[("f", 40)]);
    let bonus = build.sa(2, &File { mode: 0o040_755, size: 9, ..File::default() }, &[]);
    let root = build.pieces.len() - 2;
    build.pieces[root].1[..bonus.len()].copy_from_slice(&bonus);
    file(&mut build, 40, 0, 512);
    assert_eq!(take(&mut Memory::default(), &ended(build)).map(|received| received.miscounted), Ok(1));
}

#[test]
fn a_package_is_a_list_and_streams() {
    in_both_orders(|order| {
        let mut package = Build::new(order);
        let list = packed_list(&[("fromsnap", b"x")]);
        package.begin(0, 0, 0, 0, "tank@b");
        let len = list.len() as u32;
        let (record, payload) = &mut package.pieces[0];
        record[4..8].copy_from_slice(&build::u32s(order, len));
        record[16..24].copy_from_slice(&build::u64s(order, 2));
        *payload = list;
        package.end();
        let mut whole = begun(order, 0, 0, 7, &[("f", 40)]);
        file(&mut whole, 40, 0, 512);
        whole.attributes(SA_OBJECTS).end();
        let mut increment = begun(order, 0, 7, 8, &[("g", 40)]);
        file(&mut increment, 40, 0, 512);
        increment.end();
        package.pieces.extend(whole.pieces.into_iter().chain(increment.pieces));
        let mut bytes = package.bytes();
        let cut = bytes.clone();
        let mut streams = Streams::new(&cut[..]);
        let mut sink = Memory::default();
        let mut guids = Vec::new();
        bytes.extend([0; 312]);
        let end = bytes.len() - 312;
        bytes[end..end + 4].copy_from_slice(&build::u32s(order, 5));
        let mut streams_whole = Streams::new(&bytes[..]);
        while let Some(begin) = streams_whole.next_stream().unwrap() {
            receive(&mut streams_whole, &begin, &mut sink).unwrap();
            assert_eq!(begin.snapshot(), b"now");
            guids.push(begin.to_guid);
        }
        assert_eq!(guids, [7, 8]);
        assert_eq!(lines(&sink).len(), 2);
        line(&sink, "g");
        let list = streams_whole.package().expect("it has one");
        assert_eq!(list.get("fromsnap"), Some(&Value::Bytes(b"x".to_vec())));
        // Streams that nobody receives are passed over; one without the end of the package is cut off.
        streams.next_stream().unwrap();
        streams.next_stream().unwrap();
        assert!(matches!(streams.next_stream(), Err(StreamError::Truncated(_))));
    });
}
