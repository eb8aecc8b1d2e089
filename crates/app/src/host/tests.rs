//! The engine where verbs, exports and failures meet, on pools in files that are mounted nowhere.

use super::*;
use crate::api::pool::{Create, Group, Word};
use crate::api::snapshots::Newer;
use crate::api::{ItemKind, Properties, PropertyValue};
use larder_device::{Clock, Device, FaultDevice, OpenMode};
use larder_format::label::{HEARTBEAT_OFFSET, Heartbeat};
use larder_format::{HostId, Incarnation};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::{ScopedJoinHandle, scope};

/// A moment in which threads that were just started come to the lock that they wait for.
const MOMENT: Duration = Duration::from_millis(300);

/// An engine in a folder.
pub(super) struct Bed {
    pub(super) host: Host,
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { host: Host::new(dir.path()).unwrap(), dir }
    }

    /// The same by another clock.
    pub(super) fn by(clock: Arc<dyn Clock>) -> Self {
        let mut bed = Self::new();
        bed.host.world.clock = clock;
        bed
    }

    /// The path of a file in the folder.
    pub(super) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A device that takes no space.
    fn device(&self, name: &str) -> String {
        let path = self.dir.path().join(name);
        File::create(&path).unwrap().set_len(64 << 20).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A request for a pool of one device of the same name.
    fn request(&self, name: &str) -> Create {
        Create {
            name: name.to_owned(),
            groups: vec![Group { word: Word::Single, devices: vec![self.device(name)] }],
            spares: Vec::new(),
            properties: BTreeMap::new(),
            fs_properties: [("mountpoint".to_owned(), "none".to_owned())].into(),
            altroot: None,
            dry_run: false,
        }
    }

    /// A copy of the device of `tank`, as it is now.
    fn copy_of_tank(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::copy(self.dir.path().join("tank"), &path).unwrap();
        path
    }

    /// The pool `tank` with these datasets.
    pub(super) fn tank(&self, datasets: &[&str]) -> Arc<Live> {
        self.host.pool_create(self.request("tank")).unwrap();
        for name in datasets {
            self.host.fs_create(dataset(name)).unwrap();
        }
        self.host.pool("tank").unwrap()
    }
}

pub(super) fn dataset(name: &str) -> fs::Create {
    fs::Create { name: name.to_owned(), parents: false, properties: BTreeMap::new(), dry_run: false }
}

fn names(live: &Live) -> Vec<String> {
    let mut names: Vec<_> =
        live.pool.datasets().iter().map(|dataset| live.pool.full_name(dataset.id())).collect();
    names.sort();
    names
}

fn ended<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap()
}

#[test]
fn what_is_renamed_away_is_not_destroyed_with_where_it_was() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a", "tank/a/x", "tank/a/y"]);
    let request = fs::Destroy {
        name: "tank/a".into(),
        recursive: true,
        dry_run: false,
        measure: false,
        clones: false,
        now: true,
    };
    let destroyed = scope(|scope| {
        let mounts = live.mounts.lock();
        let destroy = scope.spawn(|| bed.host.fs_destroy(request));
        pause(MOMENT);
        let x = live.pool.dataset_by_name("tank/a/x").unwrap();
        live.pool.rename_dataset(x.id(), "tank/x").unwrap();
        drop(mounts);
        ended(destroy).unwrap().destroyed
    });
    assert_eq!(destroyed, ["tank/a/y", "tank/a"]);
    assert_eq!(names(&live), ["tank", "tank/x"]);
}

#[test]
fn what_took_a_name_meanwhile_is_what_is_renamed() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a", "tank/b"]);
    let request = fs::Rename { from: "tank/a".into(), to: "tank/c".into(), parents: false };
    let (a, b) = ["tank/a", "tank/b"].map(|name| live.pool.dataset_by_name(name).unwrap().id()).into();
    scope(|scope| {
        let mounts = live.mounts.lock();
        let rename = scope.spawn(|| bed.host.fs_rename(request));
        pause(MOMENT);
        live.pool.rename_dataset(a, "tank/old").unwrap();
        live.pool.rename_dataset(b, "tank/a").unwrap();
        drop(mounts);
        ended(rename).unwrap();
    });
    assert_eq!(live.pool.full_name(a), "tank/old");
    assert_eq!(live.pool.full_name(b), "tank/c");
}

#[test]
fn two_datasets_are_made_at_once_with_the_parent_that_both_lack() {
    let bed = Bed::new();
    let live = bed.tank(&[]);
    let requests = ["tank/x/1", "tank/x/2"].map(|name| fs::Create { parents: true, ..dataset(name) });
    scope(|scope| {
        let mounts = live.mounts.lock();
        let host = &bed.host;
        let create = requests.map(|request| scope.spawn(|| host.fs_create(request)));
        pause(MOMENT);
        drop(mounts);
        create.into_iter().for_each(|create| drop(ended(create).unwrap()));
    });
    assert_eq!(names(&live), ["tank", "tank/x", "tank/x/1", "tank/x/2"]);
}

pub(super) fn set(names: &[&str], properties: &[(&str, &str)]) -> fs::Set {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    fs::Set {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        properties: properties.iter().map(own).collect(),
    }
}

pub(super) fn import(name: &str, search: Vec<String>) -> pool::Import {
    pool::Import {
        destroyed: false,
        search,
        pool: Some(name.to_owned()),
        new_name: None,
        no_mount: false,
        readonly: false,
        accept_loss: false,
        take_over: false,
        altroot: None,
        properties: BTreeMap::new(),
    }
}

fn importable(bed: &Bed, path: &str, destroyed: bool) -> Vec<pool::PoolStatus> {
    bed.host.importable(&pool::Importable { search: vec![path.to_owned()], destroyed }).unwrap().pools
}

/// The properties set on a dataset, as `name=value`.
fn local(live: &Live, name: &str) -> Vec<String> {
    let local = live.pool.dataset_by_name(name).unwrap().local_properties();
    local.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

#[test]
fn all_properties_are_set_or_none() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a", "tank/b"]);
    bed.host.pool_create(bed.request("other")).unwrap();
    let other = bed.host.pool("other").unwrap();
    bed.host.fs_set(set(&["tank/a"], &[("checksum", "blake3")])).unwrap();

    let much = (64u64 << 40).to_string();
    for moving in [("mountpoint", "legacy"), ("compression", "off")] {
        let request = set(&["tank/a"], &[("checksum", "sha256"), moving, ("reservation", &much)]);
        let error = bed.host.fs_set(request).unwrap_err();
        assert!(error.message.starts_with("cannot set properties of 'tank/a': reservation="), "{error}");
        assert_eq!(local(&live, "tank/a"), ["checksum=blake3"]);
    }

    // There is room for one of them.
    let half = (live.pool.store().space(128 << 10).available / 8 * 5).to_string();
    let request = set(&["tank/a", "tank/b"], &[("checksum", "sha256"), ("reservation", &half)]);
    let error = bed.host.fs_set(request).unwrap_err();
    assert!(error.message.starts_with("cannot set properties of 'tank/b': reservation="), "{error}");
    assert_eq!(local(&live, "tank/a"), ["checksum=blake3"]);
    assert_eq!(local(&live, "tank/b"), [""; 0]);

    // Nor in another pool.
    bed.host.fs_set(set(&["tank/b"], &[("reservation", &half)])).unwrap();
    let request = set(&["other", "tank/a"], &[("checksum", "sha256"), ("reservation", &half)]);
    bed.host.fs_set(request).unwrap_err();
    assert_eq!(local(&other, "other"), ["mountpoint=none"]);
    assert_eq!(local(&live, "tank/a"), ["checksum=blake3"]);

    // Properties outlive an export.
    bed.host.fs_set(set(&["tank/a", "tank/b"], &[("compression", "off"), ("atime", "off")])).unwrap();
    assert_eq!(local(&live, "tank/a"), ["atime=off", "checksum=blake3", "compression=off"]);
    drop(live);
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false }).unwrap();
    let search = vec![bed.dir.path().join("tank").to_str().unwrap().to_owned()];
    bed.host.pool_import(import("tank", search)).unwrap();
    let live = bed.host.pool("tank").unwrap();
    assert_eq!(local(&live, "tank/a"), ["atime=off", "checksum=blake3", "compression=off"]);
}

pub(super) fn inherit(property: &str, names: &[&str]) -> fs::Inherit {
    fs::Inherit {
        property: property.to_owned(),
        names: names.iter().map(|&name| name.to_owned()).collect(),
        recursive: true,
        received: false,
    }
}

#[test]
fn a_property_is_inherited_by_all_or_none() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a", "tank/a/x"]);
    let own = [("checksum", "sha256"), ("mountpoint", "none")];
    bed.host.fs_set(set(&["tank/a", "tank/a/x"], &own)).unwrap();
    let request = bed.request("other");
    let search = request.groups[0].devices.clone();
    bed.host.pool_create(request).unwrap();
    bed.host.pool_export(pool::Export { name: "other".into(), force: false }).unwrap();
    bed.host.pool_import(pool::Import { readonly: true, ..import("other", search) }).unwrap();

    for property in ["checksum", "mountpoint"] {
        let error = bed.host.fs_inherit(inherit(property, &["tank/a", "other"])).unwrap_err();
        let message = format!("cannot inherit '{property}' for 'other': ");
        assert!(error.message.starts_with(&message), "{error}");
        for name in ["tank/a", "tank/a/x"] {
            assert_eq!(local(&live, name), ["checksum=sha256", "mountpoint=none"]);
        }
        bed.host.fs_inherit(inherit(property, &["tank/a"])).unwrap();
        assert!(!local(&live, "tank/a/x").iter().any(|own| own.starts_with(property)));
        bed.host.fs_set(set(&["tank/a", "tank/a/x"], &own)).unwrap();
    }
}

#[test]
fn what_took_a_name_meanwhile_is_what_inherits() {
    for property in ["checksum", "canmount"] {
        let bed = Bed::new();
        let live = bed.tank(&["tank/a", "tank/b"]);
        bed.host.fs_set(set(&["tank/a", "tank/b"], &[("checksum", "sha256"), ("canmount", "off")])).unwrap();
        let [a, b] = ["tank/a", "tank/b"].map(|name| live.pool.dataset_by_name(name).unwrap().id());
        scope(|scope| {
            let mounts = live.mounts.lock();
            let inherits = scope.spawn(|| bed.host.fs_inherit(inherit(property, &["tank/a"])));
            pause(MOMENT);
            live.pool.rename_dataset(a, "tank/old").unwrap();
            live.pool.rename_dataset(b, "tank/a").unwrap();
            drop(mounts);
            ended(inherits).unwrap();
        });
        assert_eq!(local(&live, "tank/old"), ["canmount=off", "checksum=sha256"]);
        assert_eq!(local(&live, "tank/a").len(), 1);
    }
}

#[test]
fn what_is_renamed_away_is_not_unmounted() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a"]);
    let a = live.pool.dataset_by_name("tank/a").unwrap().id();
    let error = scope(|scope| {
        let mounts = live.mounts.lock();
        let request = fs::Unmount { target: Some("tank/a".into()) };
        let unmount = scope.spawn(|| bed.host.fs_unmount(request));
        pause(MOMENT);
        live.pool.rename_dataset(a, "tank/old").unwrap();
        drop(mounts);
        ended(unmount).unwrap_err()
    });
    assert_eq!(error, ApiError::no_such_dataset("tank/a"));
}

#[test]
fn a_pool_on_its_way_in_is_exported_before_the_daemon_stops_and_none_comes_after() {
    let bed = Bed::new();
    let coming = bed.host.coming("tank").unwrap();
    scope(|scope| {
        let stop = scope.spawn(|| bed.host.export_all(false));
        while bed.host.coming("late").is_ok() {
            assert!(!stop.is_finished(), "it waits for the one that is coming");
            pause(LOOK);
        }
        assert_eq!(bed.host.coming("late").map(drop).unwrap_err().message, "the daemon is stopping");
        bed.host.prepare(bed.request("tank")).unwrap();
        pause(MOMENT);
        assert!(!stop.is_finished() && bed.host.pools() == ["tank"], "nor is it exported half-way");
        drop(coming);
        ended(stop).unwrap();
    });
    assert!(bed.host.pools().is_empty());
    assert!(bed.host.coming("late").is_err());
}

#[test]
fn pools_come_in_again_after_a_stop_that_failed() {
    let bed = Bed::new();
    let coming = bed.host.coming("tank").unwrap();
    let error = bed.host.export_every(false, MOMENT).unwrap_err();
    assert_eq!(error.message, "'tank' is still being imported");
    drop(coming);
    bed.host.coming("late").unwrap();
}

#[test]
fn nobody_waits_for_space_of_a_pool_that_was_exported() {
    let bed = Bed::new();
    let live = bed.tank(&[]);
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false }).unwrap();
    let commit = live.pool.store().durable_commit();
    live.wait_for_free_space().unwrap();
    assert_eq!(live.pool.store().durable_commit(), commit, "others may have it by now");
}

#[test]
fn a_pool_whose_first_commit_fails_is_imported_and_that_is_told() {
    let bed = Bed::new();
    let mut request = bed.request("tank");
    let path = request.groups[0].devices[0].clone();
    request.groups[0].devices = vec![format!("fault:{path}")];
    let (spec, spares) = create::plan(&request, larder_device::OpenMode::Exclusive).unwrap();
    let live = bed.host.make(spec, spares, &request).unwrap();
    std::fs::write(format!("{path}.faults"), "error write\n").unwrap();
    let flaws = bed.host.bring_in(&live, true).unwrap();
    let note = flaws.uncommitted.unwrap().to_string();
    assert!(note.starts_with("'tank' is imported, but its first commit failed: "), "{note}");
    assert_eq!(bed.host.pools(), ["tank"]);
}

impl Bed {
    /// The pool `tank` on a device that takes no write any more once its threads are told to end: what was written is
    /// stored by then, and the root that says it was exported is not. Gives the path of the device.
    fn tank_that_cannot_be_marked(&self) -> String {
        let mut request = self.request("tank");
        let path = request.groups[0].devices[0].clone();
        request.groups[0].devices = vec![format!("fault:{path}")];
        self.host.pool_create(request).unwrap();
        let live = self.host.pool("tank").unwrap();
        let (ending, control) = (Arc::clone(&live), format!("{path}.faults"));
        let fail = move || {
            while !ending.is_ending() {
                pause(LOOK);
            }
            std::fs::write(control, "error write\n").unwrap();
        };
        live.thread("larder-test", fail).unwrap();
        path
    }
}

#[test]
fn an_export_that_the_devices_do_not_tell_of_is_told() {
    let bed = Bed::new();
    let path = bed.tank_that_cannot_be_marked();
    bed.host.fs_create(dataset("tank/a")).unwrap();
    let exported = bed.host.pool_export(pool::Export { name: "tank".into(), force: false }).unwrap();
    let error = exported.unmarked.expect("the root that says so was not written").to_string();
    for part in [
        "'tank' is closed, but not marked as exported: ",
        "not lost: everything that was written",
        "--take-over tank",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(bed.host.pools().is_empty());

    std::fs::remove_file(format!("{path}.faults")).unwrap();
    bed.host.pool_import(import("tank", vec![path])).unwrap();
    assert_eq!(names(&bed.host.pool("tank").unwrap()), ["tank", "tank/a"]);
}

#[test]
fn a_stop_tells_of_pools_that_are_not_marked_as_exported() {
    let bed = Bed::new();
    bed.tank_that_cannot_be_marked();
    let error = bed.host.export_all(false).unwrap_err();
    assert!(error.message.starts_with("'tank' is closed, but not marked as exported: "), "{error}");
    bed.host.export_all(false).unwrap();
}

#[test]
fn a_pool_that_is_destroyed_need_not_be_marked_as_exported() {
    for now in [false, true] {
        let bed = Bed::new();
        let path = bed.tank_that_cannot_be_marked();
        assert!(!bed.host.pool_destroy(pool::Destroy { name: "tank".into(), now }).unwrap().kept);
        assert!(importable(&bed, &path, false).is_empty() && importable(&bed, &path, true).is_empty());
    }
}

#[test]
fn a_destroyed_pool_comes_back_until_its_devices_are_used() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a"]);
    let (_, path) = live.device_paths().into_iter().next().unwrap();
    drop(live);
    let destroy = |now| bed.host.pool_destroy(pool::Destroy { name: "tank".into(), now }).unwrap();
    let revive = || pool::Import { destroyed: true, ..import("tank", vec![path.clone()]) };
    assert!(destroy(false).kept);
    assert!(importable(&bed, &path, false).is_empty());
    let found = importable(&bed, &path, true);
    assert_eq!(found[0].status.as_deref(), Some("it was destroyed."));
    let error = bed.host.pool_import(import("tank", vec![path.clone()])).unwrap_err();
    assert!(error.to_string().contains("larder pool import -D tank"), "{error}");
    let all = pool::Import { pool: None, ..import("tank", vec![path.clone()]) };
    assert!(bed.host.pool_import(all).unwrap().names.is_empty());
    bed.host.pool_import(pool::Import { readonly: true, ..revive() }).unwrap();
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false }).unwrap();
    assert_eq!(importable(&bed, &path, true).len(), 1, "it was only read");
    bed.host.pool_import(revive()).unwrap();
    assert_eq!(names(&bed.host.pool("tank").unwrap()), ["tank", "tank/a"]);
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false }).unwrap();
    let error = bed.host.pool_import(revive()).unwrap_err();
    assert!(error.to_string().contains("was not destroyed"), "{error}");
    bed.host.pool_import(import("tank", vec![path.clone()])).unwrap();

    destroy(false);
    let mut other = bed.request("other");
    other.groups[0].devices = vec![path.clone()];
    bed.host.pool_create(other).unwrap();
    assert!(importable(&bed, &path, true).is_empty());
    assert_eq!(names(&bed.host.pool("other").unwrap()), ["other"]);
    assert!(!bed.host.pool_destroy(pool::Destroy { name: "other".into(), now: true }).unwrap().kept);
    assert!(importable(&bed, &path, true).is_empty());
}

#[test]
fn a_device_that_missed_that_its_pool_is_back_is_not_free() {
    let bed = Bed::new();
    let mut request = bed.request("tank");
    let other = bed.dir.path().join("other");
    std::fs::File::create(&other).unwrap().set_len(128 << 20).unwrap();
    let other = other.to_str().unwrap().to_owned();
    request.groups[0].word = pool::Word::Mirror;
    request.groups[0].devices.push(other.clone());
    let first = request.groups[0].devices[0].clone();
    bed.host.pool_create(request).unwrap();
    assert!(bed.host.pool_destroy(pool::Destroy { name: "tank".into(), now: false }).unwrap().kept);
    bed.host.pool_import(pool::Import { destroyed: true, ..import("tank", vec![first]) }).unwrap();
    let mut taken = bed.request("mine");
    taken.groups[0].devices = vec![other];
    let error = bed.host.pool_create(taken).unwrap_err();
    assert!(error.message.contains("which was destroyed and is back"), "{error}");
}

#[test]
fn a_label_is_cleared_by_force_alone_and_not_under_a_host_that_writes() {
    let bed = Bed::new();
    let live = bed.tank(&[]);
    let tank = bed.dir.path().join("tank");
    let copy = |name| bed.copy_of_tank(name);
    let said = Mutex::new(Vec::new());
    let clear = |path: &Path, force| clear_label(path, force, &|text| said.lock().push(text.to_owned()));
    let error = clear(&tank, true).unwrap_err();
    assert!(error.message.contains("in use"), "{error}");

    // As of a host that runs, and of one that died.
    let (beating, left) = (copy("beating"), copy("left"));
    let error = clear(&left, false).unwrap_err().to_string();
    let host = bed.host.world.host_name.clone();
    for part in
        ["the pool 'tank', which may be in use", &host, "larder pool labelclear -f /", "nothing was written"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert!(said.lock().is_empty(), "nothing is waited for");
    let before = std::fs::read(&beating).unwrap();
    scope(|scope| {
        let beats = scope.spawn(|| {
            pause(MOMENT);
            live.pool.beat().unwrap();
            let area = &std::fs::read(&tank).unwrap()[..larder_format::label::LABEL_AREA as usize];
            File::options().write(true).open(&beating).unwrap().write_all_at(area, 0).unwrap();
        });
        let cleared = scope.spawn(|| clear(&beating, true));
        clear(&left, true).unwrap();
        let error = ended(cleared).unwrap_err();
        assert!(error.message.contains("a host is using it right now"), "{error}");
        ended(beats);
    });
    assert!(said.lock().iter().all(|text| text.contains("watching for 10 s")), "{said:?}");
    assert_eq!(said.lock().len(), 2);
    let now = std::fs::read(&beating).unwrap();
    let slots = larder_format::label::LABEL_AREA as usize..;
    assert!(now[slots.clone()] == before[slots], "all but the heartbeat is as it was");
    assert_eq!(clear(&left, true).unwrap_err().kind, ErrorKind::NotFound, "it has no label any more");

    drop(live);
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false }).unwrap();
    let error = clear(&tank, false).unwrap_err();
    assert!(error.message.contains("the exported pool 'tank'"), "{error}");
    clear(&tank, true).unwrap();
    assert_eq!(said.lock().len(), 2, "nor is an exported pool watched");
}

#[test]
fn a_label_is_cleared_only_where_it_can_be_told_that_nobody_writes() {
    let bed = Bed::new();
    let live = bed.tank(&[]);
    let copy = |name| bed.copy_of_tank(name);
    let (second, unread) = (copy("second"), copy("unread"));
    let guid = live.pool.store().guid();
    drop(live);
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false }).unwrap();
    let (coming, came) = (copy("coming"), copy("came"));
    let write = |path: &Path, at: u64, bytes: &[u8]| {
        File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
    };
    // A host that is importing the pool has shown its heartbeat, and no root.
    let beat = |path: &Path, beats: u64| {
        let incarnation = Incarnation::new(77);
        let (host, host_name) = (HostId::new(7), "other".to_owned());
        let heartbeat = Heartbeat { pool: guid, host, host_name, incarnation, beats };
        write(path, HEARTBEAT_OFFSET, &heartbeat.encode());
    };
    beat(&coming, 1);
    beat(&came, 1);
    let faults = |text: String| std::fs::write(format!("{}.faults", unread.display()), text).unwrap();
    faults(format!("error read at={HEARTBEAT_OFFSET}..{}\n", HEARTBEAT_OFFSET + 4096));
    let device: Arc<dyn Device> = Arc::new(FaultDevice::open(&unread, OpenMode::Exclusive, |_| {}).unwrap());
    let clear = |path: &Path| clear_label(path, true, &|_| ());
    scope(|scope| {
        let writes = scope.spawn(|| {
            pause(MOMENT);
            beat(&coming, 2);
            // A device that takes no heartbeat got a root in its second area.
            write(&second, (64 << 20) - 4096, &[1; 512]);
        });
        let cleared = [&second, &coming, &came].map(|path| scope.spawn(move || clear(path)));
        let untold = labels::clear_opened(&device, &unread, true, &|_| ()).unwrap_err();
        assert_eq!(untold.kind, ErrorKind::Device, "{untold}");
        assert!(untold.message.contains("the place of the heartbeat cannot be read"), "{untold}");
        let [second, coming, came] = cleared.map(ended);
        for error in [second.unwrap_err(), coming.unwrap_err()] {
            assert!(error.message.contains("a host is using it right now"), "{error}");
        }
        came.unwrap();
        ended(writes);
    });
    assert!(std::fs::read(&unread).unwrap()[..8].iter().any(|byte| *byte != 0), "its label is there");
}

#[test]
fn what_cannot_be_reserved_is_refused_before_anything_is_written() {
    let bed = Bed::new();
    let request = bed.request("tank");
    let path = request.groups[0].devices[0].clone();
    let refused = |limits: &[(&str, u64)], dry_run| {
        let own = limits.iter().map(|(name, value)| ((*name).to_owned(), value.to_string()));
        let fs_properties = request.fs_properties.clone().into_iter().chain(own).collect();
        bed.host.pool_create(Create { fs_properties, dry_run, ..request.clone() }).unwrap_err().message
    };
    for dry_run in [true, false] {
        for (limits, why) in [
            (&[("reservation", 10 << 40)][..], "reservation=10T is more than the "),
            (&[("refreservation", 10 << 40)], "refreservation=10T is more than the "),
            (&[("quota", 1 << 20), ("reservation", 2 << 20)], "reservation=2M is more than the quota of 1M"),
            (
                &[("refquota", 1 << 20), ("refreservation", 2 << 20)],
                "refreservation=2M is more than the refquota of 1M",
            ),
            (
                &[("quota", 1 << 20), ("refreservation", 2 << 20)],
                "refreservation=2M is more than the quota of 1M",
            ),
        ] {
            let message = refused(limits, dry_run);
            assert!(message.starts_with(&format!("cannot create 'tank': {why}")), "{message}");
            assert!(std::fs::read(&path).unwrap().iter().all(|&byte| byte == 0));
        }
    }
    bed.host.pool_create(request).unwrap();
}

#[test]
fn a_pool_that_could_not_be_made_leaves_no_labels() {
    let bed = Bed::new();
    let spare = bed.device("spare");
    let request = Create { spares: vec![format!("fault:{spare}")], ..bed.request("tank") };
    std::fs::write(format!("{spare}.faults"), "error write\n").unwrap();
    bed.host.pool_create(request.clone()).unwrap_err();
    std::fs::remove_file(format!("{spare}.faults")).unwrap();
    let search = bed.dir.path().to_str().unwrap().to_owned();
    assert!(importable(&bed, &search, false).is_empty());
    bed.host.pool_create(request).unwrap();
}

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
    assert_eq!(error, ApiError::no_such_dataset("nothing"));
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
    assert_eq!(old.local_properties()["org.example:note"], "kept");
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
