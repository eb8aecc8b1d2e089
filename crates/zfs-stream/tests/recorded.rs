//! Streams that zfs-fuse made, of a tree whose text was taken from its mount.

use larder_zfs_stream::{
    Memory, MemoryError, ReceiveError, Received, StreamError, Streams, Value, receive, received_guid,
};
use sha2::{Digest, Sha256};
use std::path::Path;

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
    zstd::decode_all(&*std::fs::read(&path).expect("it is committed")).unwrap()
}

fn digest(content: &[u8]) -> Vec<u8> {
    Sha256::digest(content).iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// The tree as text; zfs-fuse shows times to the second, though streams have them whole.
fn text(sink: &Memory) -> Vec<String> {
    let mut lines = sink.lines(&digest);
    for line in &mut lines {
        let attr = &mut line.attr;
        [&mut attr.atime, &mut attr.mtime, &mut attr.ctime].into_iter().for_each(|time| time.nanos = 0);
    }
    lines.iter().map(ToString::to_string).collect()
}

fn take(sink: &mut Memory, stream: &[u8]) -> Result<Received, ReceiveError<MemoryError>> {
    let mut streams = Streams::new(stream);
    let begin = streams.next_stream()?.expect("there is one");
    let received = receive(&mut streams, &begin, sink)?;
    assert_eq!(streams.next_stream()?, None);
    Ok(received)
}

#[track_caller]
fn check(sink: &Memory, name: &str) {
    let told = String::from_utf8(golden(name)).unwrap();
    let (here, told): (Vec<_>, Vec<_>) = (text(sink), told.lines().map(str::to_owned).collect());
    for (here, told) in here.iter().zip(&told) {
        assert_eq!(here, told, "{name}");
    }
    assert_eq!(here.len(), told.len(), "{name}");
}

#[test]
fn a_whole_stream_and_increments_become_what_the_sender_shows() {
    let mut sink = Memory::default();
    for number in 0..4 {
        take(&mut sink, &golden(&format!("zfs-fuse-{number}.stream.zst"))).unwrap();
        check(&sink, &format!("zfs-fuse-{number}.txt.zst"));
    }
    // Nanoseconds come from the stream alone: no mount of zfs-fuse shows them.
    assert!(sink.lines(&digest).iter().filter(|line| line.attr.mtime.nanos > 0).count() > 100);
}

#[test]
fn blocks_that_openzfs_packed_are_what_they_were() {
    let numbers = (0..4000).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
    for codec in ["lz4", "zstd", "gzip", "lzjb", "zle"] {
        let mut sink = Memory::default();
        take(&mut sink, &golden(&format!("openzfs-{codec}.stream.zst"))).unwrap();
        let lines = sink.lines(&|content| content.to_vec());
        let content = |path: &str| &lines.iter().find(|line| line.path == path.as_bytes()).unwrap().content;
        assert_eq!(content("numbers"), numbers.as_bytes(), "{codec}");
        assert_eq!(content("text"), &b"again and ".repeat(20_000), "{codec}");
        assert_eq!(content("zeros"), &[&b"begin"[..], &[0; 100_000], b"end"].concat(), "{codec}");
        assert_eq!(content("noise").len(), 3000, "{codec}");
    }
}

#[test]
fn an_increment_needs_its_base() {
    let mut sink = Memory::default();
    let wrong = take(&mut sink, &golden("zfs-fuse-1.stream.zst")).unwrap_err();
    assert!(matches!(wrong, ReceiveError::WrongBase { here: 0, .. }), "{wrong:?}");
    take(&mut sink, &golden("zfs-fuse-0.stream.zst")).unwrap();
    let base = received_guid(&mut sink).unwrap();
    let wrong = take(&mut sink.clone(), &golden("zfs-fuse-2.stream.zst")).unwrap_err();
    assert!(matches!(wrong, ReceiveError::WrongBase { here, .. } if here == base), "{wrong:?}");
    assert_eq!(take(&mut sink, &golden("zfs-fuse-0.stream.zst")), Err(ReceiveError::NotEmpty));
}

#[test]
fn a_changed_byte_is_noticed_wherever_it_is() {
    let stream = golden("zfs-fuse-0.stream.zst");
    // But not in the padding of the last record.
    for at in (0..stream.len() - 280).step_by(stream.len() / 40) {
        let mut damaged = stream.clone();
        damaged[at] ^= 0x10;
        let result = take(&mut Memory::default(), &damaged);
        assert!(matches!(result, Err(ReceiveError::Stream(_))), "byte {at}: {result:?}");
    }
    for at in [0, 1, 311, 312, 1000, stream.len() - 1] {
        let mut sink = Memory::default();
        let result = (|| {
            let mut streams = Streams::new(&stream[..at]);
            let begin = streams.next_stream()?.ok_or(StreamError::NotAStream)?;
            receive(&mut streams, &begin, &mut sink).map_err(|error| match error {
                ReceiveError::Stream(error) => error,
                other => panic!("{other}"),
            })
        })();
        assert!(
            matches!(result, Err(StreamError::Truncated(_) | StreamError::NotAStream)),
            "{at}: {result:?}"
        );
    }
}

/// Contents by path, of all datasets that were received.
type Trees = std::collections::BTreeMap<u64, Memory>;

/// Each stream goes upon what its base became, as into a clone of it.
fn take_all(trees: &mut Trees, stream: &[u8]) -> Vec<(String, u64)> {
    let mut streams = Streams::new(stream);
    let mut names = Vec::new();
    while let Some(begin) = streams.next_stream().unwrap() {
        let mut sink = if begin.from_guid == 0 { Memory::default() } else { trees[&begin.from_guid].clone() };
        receive(&mut streams, &begin, &mut sink).unwrap();
        trees.insert(begin.to_guid, sink);
        names.push((String::from_utf8(begin.to_name).unwrap(), begin.to_guid));
    }
    names
}

#[test]
fn a_package_has_datasets_and_their_snapshots_and_a_clone_goes_upon_one() {
    let mut trees = Trees::new();
    let names = take_all(&mut trees, &golden("zfs-fuse-package.stream.zst"));
    let told: Vec<_> = names.iter().map(|(name, _)| name.as_str()).collect();
    let all = ["pkg@a", "pkg@b", "pkg@c", "pkg/child@a", "pkg/child@b", "pkg/child@c"];
    assert_eq!(told, all.map(|name| format!("lpool/{name}")));
    let clone = take_all(&mut trees, &golden("zfs-fuse-clone.stream.zst"));
    let files = |guid: u64| {
        let lines =
            trees[&guid].lines(&|content| content.to_vec()).into_iter().filter(|line| line.kind == 'f');
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        lines
            .map(|line| format!("{}={}", text(&line.path), text(&line.content).trim_end()))
            .collect::<Vec<_>>()
    };
    assert_eq!(files(names[0].1), ["d/f1=1", "d/f2=2", "d/f3=3", "hard=1"]);
    assert_eq!(files(names[1].1), ["d/f1=1", "d/f3=3", "d/moved=2"]);
    assert_eq!(files(names[2].1), ["new=x"]);
    assert_eq!(files(names[3].1), ["c=child"]);
    assert_eq!(files(names[4].1), ["c=child\nmore"]);
    assert_eq!(files(clone[0].1), ["clone=clone", "d/f1=1", "d/f3=3", "d/moved=2"]);
}

#[test]
fn the_list_of_a_package_names_its_datasets() {
    let stream = golden("zfs-fuse-package.stream.zst");
    let mut streams = Streams::new(&stream[..]);
    streams.next_stream().unwrap();
    let Some(Value::List(datasets)) = streams.package().and_then(|list| list.get("fss")) else { panic!() };
    let name = |value: &Value| match value {
        Value::List(dataset) => dataset.get("name").cloned(),
        _ => None,
    };
    let mut names: Vec<_> = datasets.iter().filter_map(|(_, value)| name(value)).collect();
    names.sort_by_key(|name| if let Value::Text(name) = name { name.clone() } else { Vec::new() });
    // A clone is told of, though it has no snapshot of this name to be sent.
    let all = ["lpool/pkg", "lpool/pkg/child", "lpool/pkg/clone"];
    assert_eq!(names, all.map(|name| Value::Text(name.as_bytes().to_vec())));
}
