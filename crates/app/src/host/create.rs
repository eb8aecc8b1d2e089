//! Making and destroying pools. Nothing is written before everything has been looked at.

use super::devices::{self, Scope, beneath, file_of, identity};

use super::datasets::keeps_trash;
use super::import::Force;
use super::labels::{belongs, is_destroyed, open_to_wipe, wipe};
use super::{Host, Live, mounts, roster};
use crate::api::pool::{Create, Created, Destroy, Group, PoolDestroyed, Role};
use crate::api::{ApiError, ErrorKind, Properties, Result};
use larder_device::{Device, OpenMode};
use larder_pool::foreign;
use larder_pool::open::{Scan, scan};
use larder_pool::property::format_size;
use larder_pool::roles::is_vital;
use larder_pool::{GroupSpec, Pool, PoolSpec, ROOT_DATASET};
use larder_upkeep::Upkeep;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Alignment of stripes when none is asked for, log2.
const ASHIFT: u8 = larder_pool::create::DEFAULT_ASHIFT;

impl Host {
    /// Makes a pool, imports it and mounts its top dataset.
    pub(super) fn create(&self, request: Create) -> Result<Created> {
        let doing = format!("cannot create '{}'", request.name);
        let _coming = self.coming(&request.name).map_err(|error| error.within(&doing))?;
        self.prepare(request).map_err(|error| error.within(doing))
    }

    pub(super) fn prepare(&self, request: Create) -> Result<Created> {
        let survives = redundancy(&request.groups)?;
        let single = || request.spares.iter().chain(&request.caches);
        no_device_twice(&request.groups, single())?;
        let paths = request.groups.iter().flat_map(|group| &group.devices).chain(single());
        self.none_is_ours(paths.map(String::as_str))?;
        let mountpoint = match request.fs_properties.get("mountpoint").map(String::as_str) {
            Some("none" | "legacy") => None,
            Some(path) => Some(path.to_owned()),
            None => Some(format!("/{}", request.name)),
        };
        let root = request.altroot.as_deref().map(Path::new);
        let mountpoint =
            mountpoint.map(|path| mounts::below(root, path.into()).to_string_lossy().into_owned());
        if let Some(path) = &mountpoint {
            check_mountpoint(Path::new(path))?;
        }
        let mode = if request.dry_run { OpenMode::Probe } else { OpenMode::Exclusive };
        let (spec, others) = plan(&request, mode)?;
        let record_size =
            request.fs_properties.get("recordsize").and_then(|text| text.parse().ok()).unwrap_or(128 << 10);
        let usable = spec.available(record_size);
        check_limits(&request.fs_properties, usable)?;
        let of_size = spec.groups.iter().filter(|group| is_vital(group.role));
        let sizes = of_size.flat_map(|group| &group.devices).map(|device| device.size().get());
        let mut created = Created {
            name: request.name.clone(),
            size: sizes.sum(),
            usable,
            groups: request.groups.clone(),
            spares: request.spares.clone(),
            caches: request.caches.clone(),
            survives,
            mountpoint,
            notes: Vec::new(),
        };
        if request.dry_run {
            return Ok(created);
        }
        let in_groups = spec.groups.iter().flat_map(|group| &group.devices);
        let all: Vec<_> = in_groups.chain(&others.spares).chain(&others.caches).map(Arc::clone).collect();
        let made = self.make(spec, others, &request).and_then(|live| {
            let flaws = self.bring_in(&live, true)?;
            Ok((live, flaws))
        });
        let (live, flaws) = made.map_err(|error| unlabelled(&all, &created.name, error))?;
        if mounts::can_mount(&live.pool, &live.pool.dataset(ROOT_DATASET).expect("it was just made")) != "on"
        {
            created.mountpoint = None;
        }
        created.notes.extend(flaws.uncommitted.map(|error| error.to_string()));
        match flaws.unmounted.into_iter().next() {
            Some(error) => Err(error.safe("the pool: it was made and is imported, only not mounted")),
            None => Ok(created),
        }
    }

    /// Makes a pool and brings it to life; nobody knows it yet.
    pub(super) fn make(&self, spec: PoolSpec, others: Others, request: &Create) -> Result<Arc<Live>> {
        let pool = Pool::create(self.world.clone(), spec)?;
        for (name, value) in &request.properties {
            pool.set_pool_property(name, value)?;
        }
        for (name, value) in &request.fs_properties {
            pool.set_property(ROOT_DATASET, name, value)?;
        }
        pool.commit()?;
        let upkeep = Upkeep::new(&pool);
        for spare in others.spares {
            let index = upkeep.devices.add_spare(spare)?;
            if let Some(member) = pool.store().members().find(index) {
                roster::note_spare(&pool, member.guid)?;
            }
        }
        others.caches.into_iter().try_for_each(|cache| upkeep.devices.add_cache(cache).map(drop))?;
        drop(upkeep);
        // All of its devices are there.
        Live::start(pool, Scope::default(), request.altroot.clone().map(PathBuf::from))
    }

    /// Refuses devices of imported pools, which their locks would refuse with less to say.
    pub(super) fn none_is_ours<'a>(&self, paths: impl Iterator<Item = &'a str>) -> Result<()> {
        let (mut ours, mut pools) = (HashMap::new(), HashMap::new());
        // Not under the lock: a path may lie where nothing answers.
        for live in self.pools_named(&[])? {
            pools.insert(live.pool.store().identity(), live.pool.name());
            for (_, path) in live.device_paths() {
                if let Ok(meta) = fs::metadata(file_of(&path)) {
                    ours.insert(beneath(&meta), live.pool.name());
                }
            }
        }
        for path in paths {
            if let Ok(meta) = fs::metadata(file_of(path))
                && let Some(name) = ours.get(&beneath(&meta))
            {
                let message = format!("{path} belongs to the pool '{name}', which is imported");
                return Err(ApiError::new(ErrorKind::Busy, message).at(path));
            }
            // It was away when its pool was brought back, and does not know.
            if let Ok(device) = devices::open(path, OpenMode::Probe)
                && let Scan::Member(found) = scan(&device)
                && is_destroyed(&found)
                && let Some(name) = found.root.as_ref().and_then(|root| pools.get(&root.identity.guid))
            {
                let message = format!("{path} belongs to the pool '{name}', which was destroyed and is back");
                return Err(ApiError::new(ErrorKind::Exists, message)
                    .at(path)
                    .safe("everything on it; nothing was written")
                    .hint(format!("to bring it back into use: larder pool online {name} {path}")));
            }
        }
        Ok(())
    }

    /// Puts a pool among the imported ones, notes where its devices are, mounts what mounts by itself.
    ///
    /// # Errors
    /// Only when it is not among them.
    pub(super) fn bring_in(&self, live: &Arc<Live>, mount: bool) -> Result<Flaws> {
        let paths = live.device_paths();
        self.remembered.lock().note(live.pool.store().identity(), paths);
        if !live.pool.store().is_read_only() {
            self.remembered.lock().hold(live.pool.store().identity(), live.pool.incarnation());
            live.present().try_for_each(|member| roster::note_path(&live.pool, &member))?;
        }
        self.live.write().insert(live.pool.name(), Arc::clone(live));
        // A daemon that is killed while it mounts had it imported.
        self.expect(live);
        let mut flaws = Flaws::default();
        if mount {
            flaws.unmounted = live.mounts.lock().mount_all().1;
        }
        if !live.pool.store().is_read_only()
            && let Err(error) = live.pool.commit()
        {
            let name = live.pool.name();
            let but = format!("'{name}' is imported, but its first commit failed");
            flaws.uncommitted = Some(ApiError::from(error).within(but).of_pool(&name));
        }
        // With the commit by now.
        self.expect(live);
        Ok(flaws)
    }

    /// Destroys an imported pool: exports it, with a root that says so. Without a trash its labels are wiped.
    pub(super) fn destroy(&self, request: &Destroy) -> Result<PoolDestroyed> {
        let name = request.name.as_str();
        let live = self.pool(name)?;
        if live.pool.store().is_read_only() {
            return Err(ApiError::from(larder_pool::PoolError::ReadOnly)
                .within(format!("cannot destroy '{name}'"))
                .of_pool(name));
        }
        let (guid, known_as) = (live.pool.store().guid(), live.pool.store().identity());
        let paths = live.device_paths();
        let keeps = !request.now && keeps_trash(&live.pool);
        drop(live);
        let exported = self.leave(name, Force { mounts: false, suspended: true }, keeps)?;
        self.remembered.lock().expect(known_as, None);
        if keeps {
            return match exported.unmarked {
                None => Ok(PoolDestroyed { kept: true }),
                Some(error) => Err(ApiError { hint: None, ..error }.hint(format!(
                    "larder pool import {name} brings it back, and larder pool destroy --now {name} takes its labels away"
                ))),
            };
        }
        let mut outcome = Ok(());
        for (its, path) in paths {
            let wiped = open_to_wipe(file_of(&path)).and_then(|device| match scan(&device) {
                Scan::Member(found) if (found.label.pool, found.label.device) == (guid, its) => {
                    wipe(&*device, Some(found.label.device_size))
                }
                // Somebody has put another device there meanwhile.
                _ => Ok(()),
            });
            outcome = outcome.and(wiped);
        }
        self.remembered.lock().forget(known_as);
        outcome.map_err(|error| {
            error.within(format!("'{name}' is closed, but not all of its labels could be wiped"))
        })?;
        Ok(PoolDestroyed { kept: false })
    }
}

/// Faults of a pool that is imported all the same.
#[derive(Default)]
pub(super) struct Flaws {
    /// Datasets that could not be mounted.
    pub unmounted: Vec<ApiError>,
    /// Its first commit failed.
    pub uncommitted: Option<ApiError>,
}

/// Devices of no group.
pub(super) struct Others {
    spares: Vec<Arc<dyn Device>>,
    caches: Vec<Arc<dyn Device>>,
}

/// The pool that is asked for, and its devices of no group: devices that nobody has a claim on, opened.
pub(super) fn plan(request: &Create, mode: OpenMode) -> Result<(PoolSpec, Others)> {
    let mut groups = Vec::new();
    for group in &request.groups {
        let rule = group.word.rule(group.devices.len()).expect("requests are checked before they come here");
        let devices = group.devices.iter().map(|path| free_device(path, mode)).collect::<Result<_>>()?;
        groups.push(GroupSpec { rule, role: group.role.stored(), devices });
    }
    let open = |paths: &[String]| paths.iter().map(|path| free_device(path, mode)).collect::<Result<_>>();
    let others = Others { spares: open(&request.spares)?, caches: open(&request.caches)? };
    let ashift = request.properties.get("ashift").and_then(|text| text.parse().ok()).unwrap_or(ASHIFT);
    let spec = PoolSpec { name: request.name.clone(), groups, ashift };
    spec.slot_sizes()?;
    request.fs_properties.iter().try_for_each(|(name, value)| spec.check_property(name, value))?;
    Ok((spec, others))
}

/// Refuses limits of the top dataset that the pool would refuse when it is made, with `available` bytes.
///
/// # Errors
/// Usage, naming the limit and what bounds it.
fn check_limits(properties: &Properties, available: u64) -> Result<()> {
    let limit = |name: &str| properties.get(name).and_then(|text| text.parse::<u64>().ok());
    for (name, bounds) in [("reservation", &["quota"][..]), ("refreservation", &["refquota", "quota"])] {
        let Some(value) = limit(name) else { continue };
        let refuse = |why: String| {
            let error = ApiError::usage(format!("{name}={} is more than the {why}", format_size(value)));
            Err(error.safe("everything on the devices; nothing was written"))
        };
        for &bound in bounds {
            if let Some(most) = limit(bound).filter(|&most| most > 0 && value > most) {
                return refuse(format!("{bound} of {}", format_size(most)));
            }
        }
        if value > available {
            return refuse(format!("{} that are available", format_size(available)));
        }
    }
    Ok(())
}

/// Wipes the labels of the pool `name`, which could not be made, off its devices, which had none before; gives the
/// error, which tells of those where that failed.
fn unlabelled(devices: &[Arc<dyn Device>], name: &str, mut error: ApiError) -> ApiError {
    for device in devices {
        let wiped = match scan(device) {
            Scan::NotOurs | Scan::Failed(_) => Ok(()),
            Scan::Member(found) if found.label.name == name => wipe(&**device, Some(found.label.device_size)),
            // Another host was there at the same time.
            Scan::Member(_) | Scan::Unsupported(_) => Ok(()),
            Scan::Damaged(_) => wipe(&**device, None),
        };
        if let Err(also) = wiped {
            let path = device.name();
            error.message += &format!("; the label that {path} was given is still there: {}", also.message);
            error = error.hint(format!("larder pool labelclear -f {path} takes it away"));
        }
    }
    error
}

/// Device losses that every group of data survives.
///
/// # Errors
/// Usage, when groups survive different numbers: data would be only as safe as in the weakest. Metadata may be safer.
fn redundancy(groups: &[Group]) -> Result<u32> {
    let survives =
        |group: &Group| group.word.rule(group.devices.len()).map_or(0, |rule| rule.layout.tolerance());
    let of_data = || groups.iter().filter(|group| group.role == Role::Data);
    let least = of_data().map(survives).min().unwrap_or(0);
    for group in groups.iter().filter(|group| matches!(group.role, Role::Special | Role::Fast)) {
        safe_enough(group, survives(group), least)?;
    }
    let (Some(weakest), Some(strongest)) =
        (of_data().min_by_key(|group| survives(group)), of_data().max_by_key(|group| survives(group)))
    else {
        return Ok(0);
    };
    if survives(weakest) != survives(strongest) {
        let tell = |group: &Group| {
            format!("the {} of {} devices survives {}", group.word, group.devices.len(), survives(group))
        };
        return Err(ApiError::usage(format!(
            "its groups are not equally safe: {}, {}; files lie on all of them, so the weakest would count",
            tell(strongest),
            tell(weakest),
        ))
        .hint("give all groups the same word and number of devices, or make two pools"));
    }
    Ok(u32::try_from(survives(weakest)).unwrap_or(u32::MAX))
}

/// Refuses a group of metadata that is not as safe as the data.
///
/// # Errors
/// Usage, with what it survives and has to.
pub fn safe_enough(group: &Group, survives: usize, least: usize) -> Result<()> {
    if survives >= least {
        return Ok(());
    }
    let head = group.role.head().unwrap_or_default();
    let message = format!(
        "the {head} devices survive {survives} losses, the data {least}: without metadata nothing can be read, so the \
         weakest would count"
    );
    Err(ApiError::usage(message)
        .safe("everything: nothing was changed")
        .hint(format!("give it {} devices, as in: {head} mirror DEVICE ...", least + 1)))
}

/// Refuses two paths of one device, also where one is a loop device over the other, or both are over one file.
///
/// # Errors
/// Usage, naming the two.
pub fn no_device_twice<'a>(groups: &'a [Group], single: impl IntoIterator<Item = &'a String>) -> Result<()> {
    let mut seen = HashMap::new();
    for path in groups.iter().flat_map(|group| &group.devices).chain(single) {
        // A missing device is reported when it is opened.
        let Ok(meta) = fs::metadata(file_of(path)) else { continue };
        if let Some((other, its)) = seen.insert(beneath(&meta), (path.as_str(), identity(&meta))) {
            let how = if its == identity(&meta) { "are the same device" } else { "lie in the same file" };
            return Err(ApiError::usage(format!("{other} and {path} {how}")));
        }
    }
    Ok(())
}

/// A top dataset is not mounted over files, which would be hidden.
fn check_mountpoint(path: &Path) -> Result<()> {
    // A mount that a dead daemon left is taken away before the pool is mounted.
    let _ = larder_app::fuse::clear_stale(path);
    let Ok(meta) = fs::metadata(path) else { return Ok(()) };
    if !meta.is_dir() {
        return Err(ApiError::usage(format!("the mount point {} is not a folder", path.display())));
    }
    if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(ApiError::new(
            ErrorKind::Exists,
            format!("the mount point {} exists and is not empty", path.display()),
        )
        .hint("choose another with: -m DIR"));
    }
    Ok(())
}

/// A device that nobody else has a claim on: one of a destroyed pool is free.
///
/// # Errors
/// When it cannot be opened, or holds something; what, and what takes that away.
pub fn free_device(path: &str, mode: OpenMode) -> Result<Arc<dyn Device>> {
    let device = devices::open_when_free(path, mode)?;
    let taken = |what: String, hint: String| {
        Err(ApiError::new(ErrorKind::Exists, format!("{path} {what}"))
            .at(path)
            .safe("everything on it; nothing was written")
            .hint(hint))
    };
    let clear = format!("if nobody wants what is on it: larder pool labelclear -f {path}");
    match scan(&device) {
        Scan::Member(found) if is_destroyed(&found) => Ok(device),
        Scan::Member(found) => taken(belongs(&found), clear),
        Scan::Damaged(corrupt) => taken(format!("has the damaged label of a pool ({corrupt})"), clear),
        Scan::Unsupported(other) => taken(format!("belongs to a pool: {}", other.why), clear),
        Scan::Failed(error) => {
            Err(ApiError::new(ErrorKind::Device, format!("{path} cannot be read: {error}")))
        }
        Scan::NotOurs => match foreign::identify(&*device) {
            Ok(None) => Ok(device),
            Ok(Some(foreign)) => taken(
                format!("holds {}", foreign.what),
                format!("if nobody wants what is on it: wipefs -a {path}"),
            ),
            Err(error) => Err(ApiError::new(ErrorKind::Device, format!("{path} cannot be read: {error}"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pool::Word;

    fn group(word: Word, devices: &[&str]) -> Group {
        Group { role: Role::Data, word, devices: devices.iter().map(|&path| path.to_owned()).collect() }
    }

    #[test]
    fn groups_must_be_equally_safe() {
        let mirror = group(Word::Mirror, &["a", "b"]);
        assert_eq!(redundancy(&[mirror.clone(), group(Word::Raidz1, &["c", "d", "e"])]).unwrap(), 1);
        assert_eq!(redundancy(&[group(Word::Raid14, &["a", "b", "c", "d", "e"])]).unwrap(), 2);
        let error = redundancy(&[mirror, group(Word::Single, &["c"])]).unwrap_err();
        assert!(error.message.contains("the mirror of 2 devices survives 1"), "{error}");
    }

    #[test]
    fn two_paths_of_one_device_are_one_device() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "").unwrap();
        fs::hard_link(&a, &b).unwrap();
        let [a, b] = [&a, &b].map(|path| path.to_str().unwrap());
        let twice = |devices: &[&str], single: &[String]| {
            no_device_twice(&[group(Word::Mirror, devices)], single).is_err()
        };
        assert!(twice(&[a, b], &[]));
        assert!(!twice(&[a, "/nowhere"], &[]));
        assert!(twice(&[a, "/nowhere"], &[b.to_owned()]));
    }
}
