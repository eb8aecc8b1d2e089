//! Snapshots, bookmarks, clones and the trash.

use super::*;

fn snapshots(names: &[&str], recursive: bool) -> Snapshot {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    Snapshot { names, recursive, properties: BTreeMap::new() }
}

/// The request to destroy snapshots.
fn gone(name: &str, recursive: bool) -> DestroySnapshots {
    DestroySnapshots {
        name: name.to_owned(),
        recursive,
        dry_run: false,
        measure: true,
        deferred: false,
        clones: false,
        now: true,
    }
}

impl Bed {
    /// The pool `tank` with `tank/a` and `tank/a/x`, and of all three the snapshots `1` to `4`.
    fn tank_with_snapshots(&self) -> Arc<Live> {
        let live = self.tank(&["tank/a", "tank/a/x"]);
        for name in ["tank@1", "tank@2", "tank@3", "tank@4"] {
            self.host.fs_snapshot(snapshots(&[name], true)).unwrap();
        }
        live
    }

    /// All snapshots, with properties of theirs, as `list` has them.
    fn listed(&self, names: &[&str], depth: Option<u32>, properties: &[&str]) -> Vec<String> {
        let all = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let kinds = vec![ItemKind::Snapshot];
        let request = fs::Get { names: all(names), depth, kinds, properties: all(properties) };
        let value = |value: &PropertyValue| format!(" {}={}", value.name, value.value);
        let items = self.host.fs_get(request).unwrap().items.into_iter();
        items.map(|item| item.name + &item.properties.iter().map(value).collect::<String>()).collect()
    }
}

#[test]
fn snapshots_of_one_request_are_all_taken_in_one_commit_or_none_is() {
    let bed = Bed::new();
    bed.tank(&["tank/a", "tank/b"]);
    let taken = bed.host.fs_snapshot(snapshots(&["tank@x"], true)).unwrap().taken;
    assert_eq!(taken, ["tank@x", "tank/a@x", "tank/b@x"]);
    let commits = bed.listed(&[], None, &["createtxg"]);
    let commit = commits[0].strip_prefix("tank@x ").unwrap();
    assert_eq!(commits, ["tank@x", "tank/a@x", "tank/b@x"].map(|name| format!("{name} {commit}")));

    // One name that is taken stands for all.
    bed.host.fs_snapshot(snapshots(&["tank/b@y", "tank/a@y", "tank/b@y"], false)).unwrap();
    let error = bed.host.fs_snapshot(snapshots(&["tank@y"], true)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Exists);
    let line = |name| format!("cannot create snapshot '{name}': dataset already exists");
    assert_eq!(error.message, ["tank/a@y", "tank/b@y"].map(line).join("\n"));
    let error = bed.host.fs_snapshot(snapshots(&["tank@z", "tank/c@z"], false)).unwrap_err();
    assert_eq!(error, ApiError::no_such_dataset("tank/c"));
    assert_eq!(bed.listed(&[], None, &["guid"]).len(), 5, "tank@x, tank/a@x, @y, tank/b@x, @y");
    let error = bed.host.fs_snapshot(snapshots(&["nothing@z"], false)).unwrap_err();
    assert_eq!(error.message, ApiError::no_such_dataset("nothing").message);
    assert!(error.hint.unwrap().starts_with("imported here: tank; "));
}

#[test]
fn snapshots_are_shown_behind_their_dataset_as_they_were_taken() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a"]);
    for name in ["tank@z", "tank@b", "tank/a@c", "tank@a"] {
        bed.host.fs_snapshot(snapshots(&[name], false)).unwrap();
    }
    let kinds = vec![ItemKind::Filesystem, ItemKind::Snapshot];
    let all = fs::Get { kinds: kinds.clone(), properties: vec!["type".into()], ..fs::Get::default() };
    let items = bed.host.fs_get(all).unwrap().items;
    let names: Vec<_> = items.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(names, ["tank", "tank@z", "tank@b", "tank@a", "tank/a", "tank/a@c"]);
    assert_eq!(items[1].get("type").unwrap().value, "snapshot");
    assert_eq!(
        bed.listed(&["tank"], Some(1), &["clones"]),
        ["tank@z clones=", "tank@b clones=", "tank@a clones="]
    );
    assert_eq!(bed.listed(&["tank/a@c"], Some(0), &["userrefs"]), ["tank/a@c userrefs=0"]);
    assert_eq!(bed.listed(&["tank/a@c"], Some(0), &["available", "mountpoint", "mounted"]), ["tank/a@c"]);

    let missing = fs::Get { names: vec!["tank@b".into(), "tank@q".into()], ..fs::Get::default() };
    assert_eq!(bed.host.fs_get(missing).unwrap_err(), ApiError::no_such_dataset("tank@q"));

    bed.host.fs_set(set(&["tank"], &[("org.example:keep", "yes")])).unwrap();
    let own = fs::Get { names: vec!["tank/a@c".into()], ..fs::Get::default() };
    let item = bed.host.fs_get(own).unwrap().items.remove(0);
    let record = &live.pool.snapshots(live.pool.dataset_by_name("tank/a").unwrap().id())[0];
    for (name, value) in [
        ("type", "snapshot".to_owned()),
        ("guid", record.guid.to_string()),
        ("creation", record.created.secs.to_string()),
        ("createtxg", record.commit.to_string()),
        ("referenced", record.referenced.to_string()),
        ("compressratio", "1.00".to_owned()),
        ("defer_destroy", "off".to_owned()),
        ("org.example:keep", "yes".to_owned()),
    ] {
        assert_eq!(item.get(name).map(|property| &property.value), Some(&value), "{name}");
    }
    let from = &item.get("org.example:keep").unwrap().source;
    assert_eq!(*from, crate::api::Source::Inherited("tank".into()));
}

#[test]
fn lists_and_ranges_of_snapshots_are_destroyed_and_what_is_not_there_is_passed_over() {
    let bed = Bed::new();
    bed.tank_with_snapshots();
    let rehearsal = DestroySnapshots { dry_run: true, ..gone("tank/a@2%3,none", true) };
    let told = bed.host.fs_destroy_snapshots(rehearsal).unwrap().destroyed;
    assert_eq!(told, ["tank/a@2", "tank/a@3", "tank/a/x@2", "tank/a/x@3"]);
    assert_eq!(bed.listed(&[], None, &["guid"]).len(), 12);
    assert_eq!(bed.host.fs_destroy_snapshots(gone("tank/a@2%3,none", true)).unwrap().destroyed, told);
    assert_eq!(
        bed.host.fs_destroy_snapshots(gone("tank@4,1", false)).unwrap().destroyed,
        ["tank@1", "tank@4"]
    );
    let left = bed.listed(&[], None, &["mounted"]);
    assert_eq!(left, ["tank@2", "tank@3", "tank/a@1", "tank/a@4", "tank/a/x@1", "tank/a/x@4"]);

    let error = bed.host.fs_destroy_snapshots(gone("tank@none,4%", false)).unwrap_err();
    assert_eq!(error.message, "could not find any snapshots to destroy; check snapshot names.");
    let error = bed.host.fs_destroy_snapshots(gone("tank/q@a", false)).unwrap_err();
    assert_eq!(error, ApiError::no_such_dataset("tank/q"));
}

#[test]
fn no_snapshot_is_destroyed_while_one_of_them_is_in_use() {
    let bed = Bed::new();
    let live = bed.tank_with_snapshots();
    let x = live.pool.dataset_by_name("tank/a/x").unwrap().id();
    let view = live.pool.snapshot_view(x, "3").unwrap();
    let error = bed.host.fs_destroy_snapshots(gone("tank@2%", true)).unwrap_err();
    assert_eq!(error.message, "cannot destroy snapshot tank/a/x@3: dataset is busy");
    assert_eq!(error.kind, ErrorKind::Busy);
    let request = fs::Destroy {
        name: "tank/a".into(),
        recursive: true,
        dry_run: false,
        measure: false,
        clones: false,
        now: true,
    };
    let error = bed.host.fs_destroy(request.clone()).unwrap_err();
    assert!(error.message.ends_with("cannot destroy snapshot tank/a/x@3: dataset is busy"), "{error}");
    assert_eq!(bed.listed(&[], None, &["guid"]).len(), 12);

    drop(view);
    let error =
        bed.host.fs_destroy(fs::Destroy { recursive: false, name: "tank/a/x".into(), ..request.clone() });
    let error = error.unwrap_err();
    assert!(error.message.contains("it has snapshots: tank/a/x@1, tank/a/x@2, "), "{error}");
    assert_eq!(error.hint.as_deref(), Some("larder fs destroy -r tank/a/x destroys them too"));
    let destroyed = bed.host.fs_destroy(request).unwrap().destroyed;
    assert_eq!(destroyed.len(), 10);
    assert_eq!((&*destroyed[0], &*destroyed[4], &*destroyed[9]), ("tank/a/x@1", "tank/a/x", "tank/a"));
    assert_eq!(names(&live), ["tank"]);
}

#[test]
fn bookmarks_are_shown_among_the_snapshots_they_were_made_of_and_outlive_them() {
    let bed = Bed::new();
    bed.tank_with_snapshots();
    let mark = |from: &str, name: &str| {
        let request = Bookmark { from: from.into(), name: name.into() }.checked()?;
        bed.host.fs_bookmark(request)
    };
    mark("tank/a@2", "tank/a#two").unwrap();
    mark("#two", "tank/a#also").unwrap();
    mark("tank/a@4", "#four").unwrap();
    let listed = |names: &[&str], kinds: &[ItemKind], properties: &[&str]| {
        let all = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let (depth, kinds) = (Some(1), kinds.to_vec());
        let request = fs::Get { names: all(names), depth, kinds, properties: all(properties) };
        let items = bed.host.fs_get(request).unwrap().items.into_iter();
        let value = |value: &PropertyValue| format!(" {}={}", value.name, value.value);
        let lines = items.map(|item| item.name + &item.properties.iter().map(value).collect::<String>());
        lines.collect::<Vec<_>>()
    };
    let both = [ItemKind::Snapshot, ItemKind::Bookmark];
    let all = ["tank/a@1", "tank/a@2", "tank/a#also", "tank/a#two", "tank/a@3", "tank/a@4", "tank/a#four"];
    assert_eq!(
        listed(&["tank/a"], &both, &["userrefs"]),
        all.map(|name| match name.contains('@') {
            true => format!("{name} userrefs=0"),
            false => name.to_owned(),
        })
    );
    let told = ["guid", "createtxg", "creation"];
    let of = |name: &str| listed(&[name], &[], &told).remove(0).split_once(' ').unwrap().1.to_owned();
    let two = of("tank/a@2");
    assert_eq!((of("tank/a#two"), of("tank/a#also")), (two.clone(), two.clone()));
    assert_eq!(listed(&["tank/a#two"], &[], &["type"]), ["tank/a#two type=bookmark"]);

    let message = |error: ApiError| error.message;
    let taken = message(mark("tank/a@1", "tank/a#two").unwrap_err());
    assert_eq!(taken, "cannot create bookmark 'tank/a#two': bookmark exists");
    assert_eq!(
        mark("tank/a@9", "tank/a#new").unwrap_err().message,
        "cannot open 'tank/a@9': dataset does not exist"
    );
    let other = message(mark("tank@1", "tank/a#new").unwrap_err());
    assert!(other.starts_with("cannot create bookmark 'tank/a#new': a bookmark is of"), "{other}");
    let rollback = |newer| Rollback { name: "tank/a@3".into(), newer };
    let refused = bed.host.fs_rollback(rollback(Newer::Refuse)).unwrap_err();
    assert!(refused.message.ends_with(":\ntank/a@4\ntank/a#four"), "{refused}");

    bed.host.fs_destroy_snapshots(gone("tank/a@2,4", false)).unwrap();
    assert_eq!(of("tank/a#two"), two);
    let kept = bed.host.fs_rollback(rollback(Newer::Keep)).unwrap().kept.unwrap();
    assert_eq!(listed(&[&kept], &both, &["name"]), [format!("{kept}#four name={kept}#four")]);
    let drop = |name: &str| bed.host.fs_destroy_bookmark(DestroyBookmark { name: name.into() });
    drop("tank/a#two").unwrap();
    for name in ["tank/a#two", "tank/none#x"] {
        assert_eq!(message(drop(name).unwrap_err()), format!("bookmark '{name}' does not exist."));
    }
    let request = fs::Rename { from: "tank/a".into(), to: "tank/b".into(), parents: false };
    bed.host.fs_rename(request).unwrap();
    assert_eq!(listed(&["tank/b"], &both[1..], &["guid"])[0].split(' ').next().unwrap(), "tank/b#also");
}

#[test]
fn what_was_destroyed_is_brought_back_with_all_that_was_below_and_may_get_another_name() {
    let bed = Bed::new();
    let live = bed.tank_with_snapshots();
    let trash = |name: Option<&str>| {
        let list = bed.host.fs_trash(Trash { name: name.map(str::to_owned) }).unwrap();
        list.items.into_iter().map(|one| one.name).collect::<Vec<_>>()
    };
    let back = |name: &str, to: Option<&str>, recursive| {
        let to = to.map(str::to_owned);
        bed.host.fs_undestroy(Undestroy { name: name.into(), to, recursive }.checked()?)
    };
    bed.host.fs_set(set(&["tank/a"], &[("org.example:note", "kept"), ("quota", "16777216")])).unwrap();
    let guids = bed.listed(&["tank/a"], None, &["guid"]);
    let request = fs::Destroy {
        name: "tank/a".into(),
        recursive: true,
        dry_run: true,
        measure: false,
        clones: false,
        now: false,
    };
    let told = bed.host.fs_destroy(request.clone()).unwrap();
    assert!(told.until.is_some() && trash(None).is_empty());
    let request = fs::Destroy { dry_run: false, ..request };
    assert_eq!(bed.host.fs_destroy(request.clone()).unwrap().destroyed, told.destroyed);
    assert_eq!(names(&live), ["tank"]);
    assert_eq!(trash(Some("tank")), ["tank/a/x", "tank/a"]);
    // The name is free, and stays that of who has it.
    let (parents, properties) = (false, Properties::new());
    bed.host.fs_create(fs::Create { name: "tank/a".into(), parents, properties, dry_run: false }).unwrap();
    let error = back("tank/a", None, true).unwrap_err();
    assert_eq!(error.message, "cannot bring 'tank/a' back: there is another tank/a by now");
    assert_eq!(back("tank/a", Some("tank/old"), true).unwrap().restored, ["tank/old", "tank/old/x"]);
    let renamed: Vec<_> = guids.iter().map(|line| line.replace("tank/a", "tank/old")).collect();
    assert_eq!(bed.listed(&["tank/old"], None, &["guid"]), renamed);
    let old = live.pool.dataset_by_name("tank/old").unwrap();
    assert_eq!(old.own_properties().local()["org.example:note"], "kept");
    assert!(trash(None).is_empty());

    // Snapshots.
    let keep = |name: &str| DestroySnapshots { now: false, ..gone(name, false) };
    bed.host.fs_destroy_snapshots(keep("tank/old@2,3")).unwrap();
    assert_eq!(trash(Some("tank/old")), ["tank/old@2", "tank/old@3"]);
    assert_eq!(bed.listed(&["tank/old"], Some(1), &["name"]).len(), 2);
    bed.host.fs_snapshot(snapshots(&["tank/old@2"], false)).unwrap();
    assert_eq!(back("tank/old@2", None, false).unwrap_err().kind, ErrorKind::Exists);
    assert_eq!(back("tank/old@2", Some("@two"), false).unwrap().restored, ["tank/old@two"]);
    assert_eq!(back("tank/old@2", None, false).unwrap_err().kind, ErrorKind::NotFound);
    let order = ["tank/old@1", "tank/old@two", "tank/old@4", "tank/old@2"];
    assert_eq!(bed.listed(&["tank/old"], Some(1), &["mounted"]), order);
    bed.host.fs_empty_trash(EmptyTrash { name: "tank/old@3".into() }).unwrap();
    assert!(trash(None).is_empty());

    // Without a trash, as before.
    let properties = Properties::from([("trash".to_owned(), "0".to_owned())]);
    bed.host.pool_set(pool::Set { name: "tank".into(), properties }).unwrap();
    let told = bed.host.fs_destroy(fs::Destroy { name: "tank/old".into(), ..request }).unwrap();
    assert!(told.until.is_none() && trash(None).is_empty());
}

#[test]
fn held_snapshots_stay_until_they_are_released() {
    let bed = Bed::new();
    bed.tank_with_snapshots();
    let all = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let hold = |names: &[&str], tag: &str, recursive| {
        bed.host.fs_hold(Hold { names: all(names), tag: tag.into(), recursive }.checked().unwrap())
    };
    let release = |names: &[&str], tag: &str, recursive| {
        bed.host.fs_release(Release { names: all(names), tag: tag.into(), recursive }.checked().unwrap())
    };
    let holds = |names: &[&str], recursive| {
        let held = bed.host.fs_holds(Holds { names: all(names), recursive }).unwrap().holds;
        held.into_iter().map(|hold| format!("{} {}", hold.name, hold.tag)).collect::<Vec<_>>()
    };
    hold(&["tank/a@1"], "keep", true).unwrap();
    hold(&["tank/a@1", "tank/a@2"], "also", false).unwrap();
    assert_eq!(holds(&["tank/a@1"], true), ["tank/a@1 also", "tank/a@1 keep", "tank/a/x@1 keep"]);
    let error = hold(&["tank@1"], "keep", true).unwrap_err();
    let line = |name| format!("cannot hold snapshot '{name}': tag already exists on this dataset");
    assert_eq!(error.message, ["tank/a@1", "tank/a/x@1"].map(line).join("\n"));
    assert_eq!(holds(&["tank@1"], false), [""; 0], "none was placed");
    assert_eq!(hold(&["tank@none"], "keep", true).unwrap_err(), ApiError::no_such_dataset("tank@none"));
    let error = release(&["tank/a@2"], "keep", false).unwrap_err();
    assert_eq!(error.message, "cannot release hold from snapshot 'tank/a@2': no such tag on this dataset");

    // Nothing destroys them.
    let error = bed.host.fs_destroy_snapshots(gone("tank/a@3,1", false)).unwrap_err();
    assert_eq!(error.message, "cannot destroy snapshot tank/a@1: dataset is busy");
    assert!(
        error.hint.as_deref().is_some_and(|hint| hint.contains("larder fs release 'also' tank/a@1")),
        "{error:?}"
    );
    let request = fs::Destroy {
        name: "tank/a".into(),
        recursive: true,
        dry_run: false,
        measure: false,
        clones: false,
        now: true,
    };
    assert_eq!(bed.host.fs_destroy(request).unwrap_err().kind, ErrorKind::Busy);
    let back = Rollback { name: "tank/a@1".into(), newer: Newer::Drop };
    let error = bed.host.fs_rollback(back).unwrap_err();
    assert!(error.message.ends_with("cannot destroy snapshot tank/a@2: dataset is busy"), "{error}");
    assert_eq!(bed.listed(&[], None, &["guid"]).len(), 12);

    // With its last hold, one goes that was to.
    let deferred = DestroySnapshots { deferred: true, ..gone("tank/a@1,3", false) };
    assert_eq!(bed.host.fs_destroy_snapshots(deferred).unwrap().destroyed, ["tank/a@3"]);
    let properties = ["userrefs", "defer_destroy"];
    let told = |name, count, deferred| format!("{name} userrefs={count} defer_destroy={deferred}");
    let left = bed.listed(&["tank/a"], Some(1), &properties);
    assert_eq!(left, [told("tank/a@1", 2, "on"), told("tank/a@2", 1, "off"), told("tank/a@4", 0, "off")]);
    release(&["tank/a@1"], "keep", true).unwrap();
    assert_eq!(holds(&["tank/a@1"], true), ["tank/a@1 also"]);
    release(&["tank/a@1", "tank/a@2"], "also", false).unwrap();
    assert_eq!(bed.listed(&["tank/a"], Some(1), &["mounted"]), ["tank/a@2", "tank/a@4"]);
    bed.host.fs_destroy_snapshots(gone("tank/a@2", false)).unwrap();
}

#[test]
fn snapshots_have_properties_of_their_own() {
    let bed = Bed::new();
    bed.tank(&["tank/a"]);
    let note = "org.example:note";
    bed.host.fs_set(set(&["tank"], &[(note, "of all")])).unwrap();
    let properties = BTreeMap::from([(note.to_owned(), "own".to_owned())]);
    bed.host.fs_snapshot(Snapshot { properties, ..snapshots(&["tank@1"], true) }).unwrap();
    bed.host.fs_snapshot(snapshots(&["tank/a@2"], false)).unwrap();
    let notes = || bed.listed(&[], None, &[note]);
    let told = |name: &str, value: &str| format!("{name} {note}={value}");
    assert_eq!(notes(), [told("tank@1", "own"), told("tank/a@1", "own"), told("tank/a@2", "of all")]);
    bed.host.fs_set(set(&["tank/a@2", "tank@1"], &[(note, "new"), ("b:c", "d")])).unwrap();
    let one = fs::Get { names: vec!["tank/a@2".into()], ..fs::Get::default() };
    let item = bed.host.fs_get(one).unwrap().items.remove(0);
    assert_eq!(item.get("b:c").map(|one| one.source.clone()), Some(crate::api::Source::Local));
    let inherit = |names: &[&str]| fs::Inherit {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        property: note.into(),
        recursive: false,
        received: false,
    };
    bed.host.fs_inherit(inherit(&["tank/a@1", "tank/a@2"]).checked().unwrap()).unwrap();
    assert_eq!(notes(), [told("tank@1", "new"), told("tank/a@1", "of all"), told("tank/a@2", "of all")]);
    let error = bed.host.fs_set(set(&["tank@1", "tank/a@none"], &[(note, "x")])).unwrap_err();
    assert_eq!(error, ApiError::no_such_dataset("tank/a@none"));
    assert_eq!(notes()[0], told("tank@1", "new"), "none is set where one is refused");
    assert!(set(&["tank@1", "tank"], &[(note, "x")]).checked().is_err());
    assert!(set(&["tank@1"], &[("atime", "off")]).checked().is_err());
}

#[test]
fn snapshots_are_renamed_with_those_below_or_none_is() {
    let bed = Bed::new();
    bed.tank_with_snapshots();
    let rename = |from: &str, to: &str, recursive| {
        let request = RenameSnapshot { from: from.into(), to: to.into(), recursive };
        bed.host.fs_rename_snapshot(request.checked().unwrap())
    };
    bed.host.fs_destroy_snapshots(gone("tank/a@1", false)).unwrap();
    rename("tank@1", "@one", true).unwrap();
    assert_eq!(
        bed.listed(&["tank@one", "tank/a/x@one"], Some(0), &["mounted"]),
        ["tank@one", "tank/a/x@one"]
    );
    let error = rename("tank/a@2", "@3", true).unwrap_err();
    assert_eq!(error.message, "cannot rename to 'tank/a@3': dataset already exists");
    rename("tank/a/x@4", "@five", false).unwrap();
    let error = rename("tank@3", "@five", true).unwrap_err();
    assert_eq!(error.message, "cannot rename to 'tank/a/x@five': dataset already exists");
    assert_eq!(rename("tank@none", "@x", true).unwrap_err(), ApiError::no_such_dataset("tank@none"));
    let left = bed.listed(&["tank/a"], None, &["mounted"]);
    assert_eq!(
        left,
        ["tank/a@2", "tank/a@3", "tank/a@4", "tank/a/x@one", "tank/a/x@2", "tank/a/x@3", "tank/a/x@five"]
    );
}

#[test]
fn a_rollback_names_the_newer_snapshots_that_stand_in_its_way() {
    let bed = Bed::new();
    let live = bed.tank_with_snapshots();
    let rollback = |name: &str, newer| bed.host.fs_rollback(Rollback { name: name.into(), newer });
    let error = rollback("tank/a@2", Newer::Refuse).unwrap_err();
    let message = "cannot rollback to 'tank/a@2': more recent snapshots or bookmarks exist\nuse '-r' to force deletion \
                   of the following snapshots and bookmarks:\ntank/a@3\ntank/a@4";
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Busy, message));
    assert_eq!(rollback("tank/a@none", Newer::Drop).unwrap_err(), ApiError::no_such_dataset("tank/a@none"));

    let a = live.pool.dataset_by_name("tank/a").unwrap().id();
    let view = live.pool.snapshot_view(a, "4").unwrap();
    let error = rollback("tank/a@2", Newer::Drop).unwrap_err();
    assert!(error.message.ends_with("cannot destroy snapshot tank/a@4: dataset is busy"), "{error}");
    drop(view);
    assert_eq!(bed.listed(&["tank/a"], Some(1), &["guid"]).len(), 4);

    live.pool.clone_snapshot(a, "4", "tank/clone", BTreeMap::new()).unwrap();
    live.pool.create_dataset("tank/clone/below", BTreeMap::new()).unwrap();
    let error = rollback("tank/a@2", Newer::Drop).unwrap_err();
    assert!(error.message.ends_with("snapshot tank/a@4 is the origin of tank/clone"), "{error}");
    let gone = rollback("tank/a@2", Newer::DropClones).unwrap().destroyed;
    assert_eq!(gone, ["tank/a@3", "tank/a@4", "tank/clone/below", "tank/clone"]);
    assert!(live.pool.dataset_by_name("tank/clone").is_err());
    assert_eq!(bed.listed(&["tank/a"], Some(1), &["guid"]).len(), 2);
}

#[test]
fn files_that_snapshots_hold_are_named_the_largest_first() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a"]);
    let dataset = live.pool.dataset_by_name("tank/a").unwrap();
    let a = dataset.id();
    let volume = live.mount.attach(dataset, None).unwrap();
    let caller = larder_files::Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
    let make = |parent, name: &str, kind| {
        volume
            .make(parent, name.as_bytes(), larder_files::NewInode::plain(kind, 0o755), &caller)
            .unwrap()
            .node
            .unpack()
            .1
    };
    let root = larder_format::items::ROOT_INODE;
    let folder = make(root, "folder", larder_format::items::FileKind::Directory);
    let write = |name: &str, len: usize| {
        let inode = make(folder, name, larder_format::items::FileKind::Regular);
        let bytes: Vec<u8> = (0..len).map(|at| ((at * 7919) >> 3) as u8 ^ (at >> 11) as u8).collect();
        volume.write(inode, Some(0), &bytes, false).unwrap();
    };
    write("large", 900_000);
    write("small", 50_000);
    live.pool.snapshot(a, "one").unwrap();
    volume.unlink(folder, b"small", false).unwrap();
    live.pool.snapshot(a, "two").unwrap();
    volume.unlink(folder, b"large", false).unwrap();
    live.pool.snapshot(a, "three").unwrap();
    let space = |name: &str, files| {
        let found = bed.host.fs_space(Space { name: name.into(), files }.checked().unwrap()).unwrap();
        let text =
            |path: Option<crate::api::diff::Path>| String::from_utf8(path.unwrap().bytes().to_vec()).unwrap();
        let paths: Vec<_> = found.files.into_iter().map(|file| text(file.path)).collect();
        (paths, found.together, found.snapshots.len())
    };
    let (files, both, count) = space("tank/a@one,two", 20);
    assert_eq!((files, count), (vec!["/folder/large".to_owned(), "/folder/small".to_owned()], 2));
    assert_eq!(space("tank/a@one%two", 1).0, ["/folder/large"]);
    let (files, one, _) = space("tank/a@one", 20);
    assert_eq!(files, ["/folder/small"], "the other is in the next one too");
    assert!(one > 0 && both > one);
    assert_eq!(space("tank/a", 0).0, [""; 0]);
    let none = Space { name: "tank/a@none".into(), files: 1 };
    assert_eq!(bed.host.fs_space(none).unwrap_err().kind, ErrorKind::NotFound);
}
