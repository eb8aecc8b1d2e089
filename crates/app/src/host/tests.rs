//! The engine where verbs, exports and failures meet, on pools in files that are mounted nowhere.

mod panics;
mod received;
mod snapshots;

use super::*;
use crate::api::pool::{Create, Group, Word};
use crate::api::snapshots::Newer;
use crate::api::{ItemKind, Properties, PropertyValue};
use larder_device::{Clock, Device, FaultDevice, OpenMode};
use larder_format::label::{HEARTBEAT_OFFSET, Heartbeat};
use larder_format::{HostId, Incarnation};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
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
        Self { host: Host::new(Some(dir.path())).unwrap(), dir }
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
            groups: vec![Group {
                role: pool::Role::Data,
                word: Word::Single,
                devices: vec![self.device(name)],
            }],
            spares: Vec::new(),
            caches: Vec::new(),
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
        without_log: false,
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
    let local = live.pool.dataset_by_name(name).unwrap().own_properties().local().clone();
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
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false, forget: false }).unwrap();
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
    bed.host.pool_export(pool::Export { name: "other".into(), force: false, forget: false }).unwrap();
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
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false, forget: false }).unwrap();
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
    let (spec, others) = create::plan(&request, larder_device::OpenMode::Exclusive).unwrap();
    let live = bed.host.make(spec, others, &request).unwrap();
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
    let exported =
        bed.host.pool_export(pool::Export { name: "tank".into(), force: false, forget: false }).unwrap();
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
    let bed = Bed::new();
    let path = bed.tank_that_cannot_be_marked();
    assert!(!bed.host.pool_destroy(pool::Destroy { name: "tank".into(), now: true }).unwrap().kept);
    assert!(importable(&bed, &path, false).is_empty() && importable(&bed, &path, true).is_empty());
}

#[test]
fn a_pool_that_cannot_be_marked_as_destroyed_keeps_its_labels() {
    let bed = Bed::new();
    let path = bed.tank_that_cannot_be_marked();
    let error = bed.host.pool_destroy(pool::Destroy { name: "tank".into(), now: false }).unwrap_err();
    assert!(error.message.starts_with("'tank' is closed, but not marked as destroyed: "), "{error}");
    assert!(error.hint.unwrap().contains("larder pool destroy --now tank"));
    assert_eq!(importable(&bed, &path, false).len(), 1);
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
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false, forget: false }).unwrap();
    assert_eq!(importable(&bed, &path, true).len(), 1, "it was only read");
    bed.host.pool_import(revive()).unwrap();
    assert_eq!(names(&bed.host.pool("tank").unwrap()), ["tank", "tank/a"]);
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false, forget: false }).unwrap();
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
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false, forget: false }).unwrap();
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
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false, forget: false }).unwrap();
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
