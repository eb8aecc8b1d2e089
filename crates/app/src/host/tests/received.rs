//! Properties that streams bring.

use super::*;
use crate::api::Source;
use crate::api::snapshots::{MakeClone, Snapshot};
use crate::api::stream::{Part, Receive, Send};
use crate::engine::Engine;

impl Bed {
    /// Sends a snapshot into another dataset.
    fn bring(&self, send: Send, receive: Receive) {
        let stream = self.stream(send);
        self.host.fs_receive(receive.checked().unwrap(), &mut &stream[..]).unwrap();
    }

    fn stream(&self, send: Send) -> Vec<u8> {
        let mut stream = Vec::new();
        let mut emit = |part: Part, _: &dyn Fn() -> bool| {
            if let Part::Data(bytes) = part {
                stream.extend(bytes);
            }
            true
        };
        self.host.fs_send(send.checked().unwrap(), &mut emit).unwrap();
        stream
    }

    fn snap(&self, name: &str) {
        let request = Snapshot { names: vec![name.into()], recursive: false, properties: BTreeMap::new() };
        self.host.fs_snapshot(request).unwrap();
    }

    /// Value, received value and source of a property.
    fn told(&self, name: &str, property: &str) -> (String, Option<String>, Source) {
        let request = fs::Get {
            names: vec![name.to_owned()],
            depth: None,
            kinds: vec![ItemKind::Filesystem],
            properties: vec![property.to_owned()],
        };
        let found = self.host.fs_get(request).unwrap().items.remove(0).properties;
        let found =
            found.into_iter().next().unwrap_or_else(|| PropertyValue::new(property, "-", Source::None));
        (found.value, found.received, found.source)
    }
}

fn sent(snapshot: &str, from: Option<&str>) -> Send {
    Send { snapshot: snapshot.into(), from: from.map(str::to_owned), properties: true, ..Send::default() }
}

fn into(target: &str) -> Receive {
    Receive { target: target.into(), unmounted: true, ..Receive::default() }
}

fn is(value: &str, received: Option<&str>, source: Source) -> (String, Option<String>, Source) {
    (value.to_owned(), received.map(str::to_owned), source)
}

#[test]
fn what_a_stream_brings_is_received_and_gives_way_to_what_is_set_here() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a"]);
    let properties =
        [("compression", "zstd"), ("atime", "off"), ("org.example:a", "1"), ("mountpoint", "/srv/a")];
    bed.host.fs_set(set(&["tank/a"], &properties)).unwrap();
    bed.snap("tank/a@1");
    let atime = Properties::from([("atime".to_owned(), "on".to_owned())]);
    let receive = Receive { properties: atime, without: vec!["compression".into()], ..into("tank/b") };
    bed.bring(sent("tank/a@1", None), receive);
    assert_eq!(bed.told("tank/b", "atime"), is("on", Some("off"), Source::Local));
    assert_eq!(bed.told("tank/b", "compression"), is("lz4", Some("zstd"), Source::Default));
    assert_eq!(bed.told("tank/b", "org.example:a"), is("1", Some("1"), Source::Received));
    // Where the sender has it mounted is nothing that the receiver does.
    let inherited = Source::Inherited("tank".into());
    assert_eq!(bed.told("tank/b", "mountpoint"), is("none", Some("/srv/a"), inherited.clone()));

    let back = |property| fs::Inherit { received: true, ..inherit(property, &["tank/b"]) }.checked().unwrap();
    for property in ["compression", "atime", "mountpoint"] {
        let _ = bed.host.fs_inherit(back(property));
    }
    assert_eq!(bed.told("tank/b", "compression"), is("zstd", Some("zstd"), Source::Received));
    assert_eq!(bed.told("tank/b", "atime"), is("off", Some("off"), Source::Received));
    assert_eq!(bed.told("tank/b", "mountpoint"), is("/srv/a", Some("/srv/a"), Source::Received));
    bed.host.fs_inherit(inherit("org.example:a", &["tank/b"])).unwrap();
    assert_eq!(bed.told("tank/b", "org.example:a"), is("-", Some("1"), Source::None));

    // A later stream is in place of the one before; one without properties changes none.
    bed.host.fs_set(set(&["tank/a"], &[("compression", "gzip"), ("mountpoint", "/srv/elsewhere")])).unwrap();
    bed.host.fs_inherit(inherit("atime", &["tank/a"])).unwrap();
    bed.host.fs_set(set(&["tank/b"], &[("xattr", "off")])).unwrap();
    bed.snap("tank/a@2");
    bed.bring(Send { properties: false, ..sent("tank/a@2", Some("@1")) }, into("tank/b"));
    assert_eq!(bed.told("tank/b", "compression"), is("zstd", Some("zstd"), Source::Received));
    bed.snap("tank/a@3");
    bed.bring(sent("tank/a@3", Some("@2")), into("tank/b"));
    assert_eq!(bed.told("tank/b", "compression"), is("gzip", Some("gzip"), Source::Received));
    assert_eq!(bed.told("tank/b", "atime"), is("on", None, Source::Default));
    assert_eq!(bed.told("tank/b", "xattr"), is("off", None, Source::Local));
    assert_eq!(bed.told("tank/b", "org.example:a"), is("-", Some("1"), Source::None));
    // Another mount point is another question.
    assert_eq!(bed.told("tank/b", "mountpoint"), is("none", Some("/srv/elsewhere"), inherited));

    // Even one that has none any more says so.
    for property in ["compression", "org.example:a", "mountpoint"] {
        bed.host.fs_inherit(inherit(property, &["tank/a"])).unwrap();
    }
    bed.snap("tank/a@4");
    bed.bring(sent("tank/a@4", Some("@3")), into("tank/b"));
    assert!(live.pool.dataset_by_name("tank/b").unwrap().own_properties().received().is_empty());
}

#[test]
fn a_backup_is_brought_back_with_what_it_was_received_with() {
    let bed = Bed::new();
    bed.tank(&["tank/a"]);
    bed.host.fs_set(set(&["tank/a"], &[("compression", "zstd"), ("org.example:a", "1")])).unwrap();
    bed.snap("tank/a@1");
    bed.bring(sent("tank/a@1", None), into("tank/b"));
    bed.host.fs_set(set(&["tank/b"], &[("compression", "gzip"), ("readonly", "on")])).unwrap();
    bed.bring(Send { backup: true, ..sent("tank/b@1", None) }, into("tank/c"));
    // A dataset that never received any has none to bring back.
    bed.bring(Send { backup: true, ..sent("tank/a@1", None) }, into("tank/e"));
    assert_eq!(bed.told("tank/e", "compression"), is("lz4", None, Source::Default));
    assert_eq!(bed.told("tank/c", "compression"), is("zstd", Some("zstd"), Source::Received));
    assert_eq!(bed.told("tank/c", "readonly"), is("off", None, Source::Default));
    // Without -b it goes as it is here.
    bed.bring(sent("tank/b@1", None), into("tank/d"));
    assert_eq!(bed.told("tank/d", "compression"), is("gzip", Some("gzip"), Source::Received));
    assert_eq!(bed.told("tank/d", "org.example:a"), is("1", Some("1"), Source::Received));
    assert_eq!(bed.told("tank/d", "readonly"), is("on", Some("on"), Source::Received));
}

#[test]
fn a_new_dataset_whose_stream_goes_on_by_a_token_keeps_what_the_first_part_said() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a"]);
    let properties =
        [("compression", "zstd"), ("org.example:a", "1"), ("quota", "16777216"), ("readonly", "on")];
    bed.host.fs_set(set(&["tank/a"], &properties)).unwrap();
    bed.snap("tank/a@1");
    let stream = bed.stream(sent("tank/a@1", None));
    let without = vec!["readonly".to_owned()];
    let receive = || Receive { resumable: true, without: without.clone(), ..into("tank/b") };
    // Behind what says which snapshot it is, and before all of it is here.
    let is_saved = |cut: usize| {
        let came = bed.host.fs_receive(receive().checked().unwrap(), &mut &stream[..cut]);
        came.unwrap_err().message.contains("Partially received snapshot is saved")
    };
    assert!((1..stream.len()).any(is_saved), "{} bytes", stream.len());
    assert_eq!(bed.told("tank/b", "compression"), is("zstd", Some("zstd"), Source::Received));
    let token = bed.told("tank/b", "receive_resume_token").0;
    bed.bring(Send { token: Some(token), ..Send::default() }, receive());
    assert!(live.pool.snapshot_named(live.pool.dataset_by_name("tank/b").unwrap().id(), "1").is_ok());
    assert_eq!(bed.told("tank/b", "compression"), is("zstd", Some("zstd"), Source::Received));
    assert_eq!(bed.told("tank/b", "org.example:a"), is("1", Some("1"), Source::Received));
    assert_eq!(bed.told("tank/b", "readonly"), is("off", Some("on"), Source::Default));
    assert_eq!(bed.told("tank/b", "quota").1, None, "it could have stopped the rest");
}

#[test]
fn a_package_has_clones_after_what_they_began_as_and_what_is_below_them_after_them() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/s", "tank/s/z", "tank/s/z/y"]);
    bed.snap("tank/s/z/y@first");
    let clone = |snapshot: &str, name: &str| MakeClone {
        snapshot: snapshot.into(),
        name: name.into(),
        parents: false,
        properties: BTreeMap::new(),
    };
    bed.host.fs_clone(clone("tank/s/z/y@first", "tank/s/a")).unwrap();
    bed.host.fs_create(dataset("tank/s/a/c")).unwrap();
    let all = Snapshot { names: vec!["tank/s@all".into()], recursive: true, properties: BTreeMap::new() };
    bed.host.fs_snapshot(all).unwrap();
    bed.bring(Send { replicate: true, ..sent("tank/s@all", None) }, into("tank/t"));
    let origin = |name: &str| {
        let dataset = live.pool.dataset_by_name(name).unwrap();
        live.pool.origin(dataset.id()).map(|origin| live.pool.full_name(origin.dataset))
    };
    assert_eq!(origin("tank/t/a").as_deref(), Some("tank/t/z/y"));
    assert_eq!(origin("tank/t/a/c"), None);
}
