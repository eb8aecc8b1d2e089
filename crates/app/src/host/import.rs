//! Importing and exporting: which pools there are, what their devices are, whether another host has them.

use super::devices::{self, Scope, Search};
use super::live::{HEARTBEAT, Live};
use super::remembered::Remembered;
use super::{Host, error};
use crate::api::pool::{Exported, Import, Importable as ImportableRequest, ImportablePools, Imported};
use crate::api::{ApiError, ErrorKind, Result};
use larder_device::OpenMode;
use larder_format::PoolGuid;
use larder_format::root::RootDevice;
use larder_pool::open::{Candidate, Importable, Scan, Standing, assemble, scan};
use larder_pool::roles::is_vital;
use larder_pool::{ImportOptions, Pool, PoolError};
use std::path::PathBuf;
use std::time::Duration;
use tracing::{error, warn};

const NOTHING_CHANGED: &str = "everything: nothing was written";
/// Number and length of the pauses in which export waits for requests that still hold the pool.
const LAST_REQUESTS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(10);

impl Host {
    /// Pools that can be imported.
    pub(super) fn importable(&self, request: &ImportableRequest) -> Result<ImportablePools> {
        let given = &request.search;
        let (mut plans, _) = self.find(given)?;
        plans.retain(|plan| plan.root.destroyed == request.destroyed);
        let remembered = self.remembered.lock();
        let mut looking: String = given.iter().map(|path| format!("-d {path} ")).collect();
        if request.destroyed {
            looking += "-D ";
        }
        let pools = plans.iter().map(|plan| {
            super::status::of_importable(
                plan,
                &remembered,
                self.world.host,
                &format!("larder pool import {looking}"),
            )
        });
        Ok(ImportablePools { pools: pools.collect() })
    }

    /// The pools on devices that are not imported here, and what is wrong with other devices.
    pub(super) fn find(&self, given: &[String]) -> Result<(Vec<Importable>, Vec<String>)> {
        // Not under the lock: devices may hang.
        let remembered = self.remembered.lock().clone();
        let Search { found, unsupported, remarks } = devices::search(given, &remembered)?;
        let live: Vec<_> = self.live.read().values().map(|live| live.pool.store().identity()).collect();
        let mut plans = assemble(found);
        plans.retain(|plan| !live.contains(&plan.guid));
        plans.iter_mut().for_each(|plan| plan.heed(&unsupported));
        plans.sort_by(|a, b| a.name.cmp(&b.name));
        // Which pool a damaged label was of is not known: it may be what is missing.
        let lacks_some = |plan: &&mut Importable| {
            let mut all = plan.root.devices.iter().zip(&plan.devices);
            all.any(|(known, device)| !known.is_cache && device.found.is_none())
        };
        for plan in plans.iter_mut().filter(lacks_some) {
            plan.remarks.extend(remarks.iter().cloned());
        }
        Ok((plans, remarks))
    }

    /// Imports one pool or all.
    pub(super) fn import(&self, request: Import) -> Result<Imported> {
        let (plans, remarks) = self.find(&request.search)?;
        let mut imported = Imported::default();
        let Some(wanted) = &request.pool else {
            let (wanted, _): (Vec<_>, Vec<_>) =
                plans.into_iter().partition(|plan| plan.root.destroyed == request.destroyed);
            let names: Vec<_> = wanted.iter().map(|plan| (plan.name.clone(), plan.guid)).collect();
            for plan in wanted {
                let name = plan.name.clone();
                let of_name: Vec<_> = names.iter().filter(|(other, _)| *other == name).collect();
                let one = match of_name.len() {
                    1 => self.import_one(plan, &request, &mut imported),
                    // Nobody said which.
                    _ => Err(several(of_name.iter().map(|(_, guid)| *guid))),
                };
                if let Err(error) = one {
                    imported.failed.push(error.within(format!("cannot import '{name}'")).of_pool(&name));
                }
            }
            return Ok(imported);
        };
        let doing = format!("cannot import '{wanted}'");
        let named = |plan: &Importable| plan.name == *wanted || plan.guid.to_string() == *wanted;
        let (mut matching, others): (Vec<_>, Vec<_>) =
            plans.into_iter().filter(named).partition(|plan| plan.root.destroyed == request.destroyed);
        let plan = match matching.len() {
            0 if !others.is_empty() => return Err(otherwise(wanted, request.destroyed).within(doing)),
            0 => return Err(self.nowhere(wanted, &request.search, remarks).within(doing)),
            1 => matching.remove(0),
            _ => return Err(several(matching.iter().map(|plan| plan.guid)).within(doing)),
        };
        let name = plan.name.clone();
        self.import_one(plan, &request, &mut imported).map_err(|error| error.within(doing).of_pool(&name))?;
        Ok(imported)
    }

    /// Why there is no such pool.
    fn nowhere(&self, wanted: &str, search: &[String], remarks: Vec<String>) -> ApiError {
        if self.live.read().contains_key(wanted) {
            return ApiError::new(ErrorKind::Exists, "it is imported already");
        }
        let looked = devices::looked(search, &self.remembered.lock());
        let mut message = format!("no such pool on the devices that were looked at: {looked}");
        for remark in remarks {
            message += "; ";
            message += &remark;
        }
        ApiError::new(ErrorKind::NotFound, message)
            .hint("name the folder or the devices with -d; larder pool import shows what there is")
    }

    pub(super) fn import_one(
        &self,
        mut plan: Importable,
        request: &Import,
        imported: &mut Imported,
    ) -> Result<()> {
        let name = request.new_name.clone().unwrap_or_else(|| plan.name.clone());
        let another = |error: ApiError| match error.hint {
            None => error.hint(format!("give it another: larder pool import {} NEWNAME", plan.guid)),
            Some(_) => error,
        };
        let _coming = self.coming(&name).map_err(another)?;
        let is_foreign = plan.root.host != self.world.host;
        if request.readonly && request.new_name.is_some() {
            return Err(ApiError::usage("a pool that is imported for reading only keeps its name"));
        }
        let accept_loss = |plan: &mut Importable| request.accept_loss.then(|| plan.accept_loss());
        accept_loss(&mut plan);
        check(&plan, &self.remembered.lock())?;
        let mut notes = plan.remarks.clone();
        let host_is_gone = self.make_sure_that_nobody_has(&plan, request.take_over)?;
        let mut plan = reopen(plan, request.readonly)?;
        accept_loss(&mut plan);
        check(&plan, &self.remembered.lock())?;
        let remembered = self.remembered.lock().clone();
        let scope = Scope::of(&request.search, &remembered);
        notes.extend(self.lacking(&plan, &name, request.readonly, &scope));
        let options = ImportOptions {
            read_only: request.readonly,
            host_is_gone,
            accept_loss: request.accept_loss,
            without_log: request.without_log,
            rename: request.new_name.clone(),
        };
        let pool = Pool::import(self.world.clone(), plan, &options).map_err(ApiError::from)?;
        if pool.store().is_read_only() {
            // Nothing is written, so nothing can be done again.
            let unread = pool.log_left().map(|why| format!("{name}: the intent log is not shown: {why}"));
            notes.extend(unread);
            let skipped = pool.take_replay().len();
            if skipped > 0 {
                notes.push(format!(
                    "{name}: {skipped} operations that were synced after the last commit are not shown; they come \
                     with an import that may write"
                ));
            }
        } else {
            for (property, value) in &request.properties {
                pool.set_pool_property(property, value)?;
            }
        }
        let live = Live::start(pool, scope, request.altroot.clone().map(Into::into))?;
        // Its mount points were chosen for another machine.
        let held_back = is_foreign && request.altroot.is_none() && !request.no_mount;
        let flaws = self.bring_in(&live, !request.no_mount && !held_back)?;
        notes.extend(flaws.unmounted.iter().chain(&flaws.uncommitted).map(ApiError::to_string));
        if held_back {
            notes.push(format!(
                "{name}: it comes from another host, so nothing is mounted yet. larder fs mount -a mounts it where it \
                 says (larder fs list -o name,mountpoint); to have all of it below a folder, export it, and: larder \
                 pool import -R DIR {name}"
            ));
        }
        imported.names.push(name);
        imported.notes.append(&mut notes);
        Ok(())
    }

    /// A sentence for each device that is not used as it should be, and how to go on.
    fn lacking(&self, plan: &Importable, name: &str, read_only: bool, scope: &Scope) -> Vec<String> {
        let remembered = self.remembered.lock().clone();
        let mut notes = Vec::new();
        let mut behind = false;
        let is_log = |known: &RootDevice| {
            let mut groups = plan.root.groups.iter();
            groups.any(|group| group.index == known.group && !is_vital(group.role))
        };
        let of = plan.devices.iter().zip(&plan.root.devices);
        for (device, known) in
            of.filter(|(device, known)| device.found.is_some() || !plan.root.is_bygone(known))
        {
            let guid = known.guid;
            match (&device.standing, &device.found) {
                (Standing::Missing, _) if known.is_cache => notes.push(format!(
                    "{name}: the cache {} is not there; nothing is lost with it. larder pool status {name} tells more",
                    remembered.path(plan.guid, guid).map_or_else(|| guid.to_string(), str::to_owned)
                )),
                (Standing::Missing, _) if is_log(known) => notes.push(format!(
                    "{name}: the log's device {} is not there; the log goes on elsewhere. larder pool status {name} \
                     tells more",
                    remembered.path(plan.guid, guid).map_or_else(|| guid.to_string(), str::to_owned)
                )),
                (Standing::Missing, _) => {
                    let path = remembered.path(plan.guid, guid);
                    let was = path.map_or_else(String::new, |path| format!(" (was {path})"));
                    let back = match path {
                        Some(path) if !scope.holds(path) => {
                            format!("To take it back: larder pool online {name} PATH")
                        }
                        _ => "Connected again, it comes back by itself".to_owned(),
                    };
                    notes.push(format!(
                        "{name}: device {guid}{was} is missing; the pool goes on without it. {back}; if it is gone \
                         for good: larder pool replace {name} {guid} NEW"
                    ));
                }
                (Standing::Offline(_), Some(found)) => {
                    let path = found.device.name();
                    notes.push(format!(
                        "{name}: {} was taken offline; larder pool online {name} {path}",
                        error::named(&path)
                    ));
                }
                (Standing::Stale(_) | Standing::Rebuilding, _) => behind = true,
                (Standing::Waiting, Some(found)) => notes.push(format!(
                    "{name}: {} waits to replace a device that could not be read whole; larder pool status {name}",
                    error::named(&found.device.name())
                )),
                _ => {}
            }
        }
        if behind && !read_only {
            notes.push(format!(
                "{name}: what devices lack is being resilvered; larder pool wait -t resilver {name} waits for it"
            ));
        }
        notes
    }

    /// Makes sure that nobody else has the pool, and gives whether another host had. Nobody is asked when it was a
    /// daemon of this run folder, which is dead. Who has this host's id may be this host before it was booted, or a
    /// clone of it that lives: its heart is looked for. From any other host it is only taken when that is asked for,
    /// and its heart does not beat.
    fn make_sure_that_nobody_has(&self, plan: &Importable, take_over: bool) -> Result<bool> {
        let Some(holder) = &plan.held_by else { return Ok(false) };
        if self.remembered.lock().was_ours(plan.guid, plan.root.incarnation) {
            return Ok(false);
        }
        let (host, theirs) = (&holder.host_name, holder.host != self.world.host);
        if theirs && !take_over {
            return Err(ApiError::new(
                ErrorKind::Busy,
                format!("it was last used by the host {host}, and not exported there"),
            )
            .safe(NOTHING_CHANGED)
            .hint(format!(
                "on {host}: larder pool export {name}; if that host is dead, or cut off from the devices for good: \
                 larder pool import --take-over {name}",
                name = plan.name
            )));
        }
        super::pause(2 * HEARTBEAT);
        let lives = plan.devices.iter().filter_map(|device| device.found.as_ref()).any(|before| {
            matches!(scan(&before.device), Scan::Member(now)
                if now.heartbeat != before.heartbeat || now.ring != before.ring)
        });
        if lives {
            return Err(ApiError::new(ErrorKind::Busy, format!("the host {host} is using it right now"))
                .safe(NOTHING_CHANGED)
                .hint(format!("on {host}: larder pool export {}", plan.name)));
        }
        Ok(theirs)
    }

    /// Unmounts a pool, commits, lets go of its devices. Its threads have ended before the root that says so is
    /// written: when that fails, the pool is gone nevertheless, and the reply tells.
    pub(super) fn export(&self, name: &str, force: Force) -> Result<Exported> {
        self.leave(name, force, false)
    }

    /// The same; or the root says that the pool was destroyed.
    pub(super) fn leave(&self, name: &str, force: Force, destroyed: bool) -> Result<Exported> {
        let live = self.pool(name)?;
        let admin = live.admin.lock();
        self.still_here(&live)?;
        let doing = format!("cannot export '{name}'");
        if live.pool.store().may_resume() {
            // The cause of the suspension may be over. If not, that is reported below.
            let _ = live.pool.resume();
        }
        let refuse_to_drop = || match live.pool.at_stake().filter(|_| !force.suspended) {
            None => Ok(()),
            Some(bytes) => Err(would_drop(&live.pool, bytes).within(&doing).of_pool(name)),
        };
        refuse_to_drop()?;
        let unmounted = {
            let mut mounts = live.mounts.lock();
            let unmounted = mounts.unmount_all();
            if unmounted.is_ok() || force.mounts {
                mounts.close();
            }
            unmounted
        };
        let gone = match unmounted {
            Err(error) if force.mounts => {
                warn!("{error}");
                // Dirty data is stored before anybody is cut off.
                if let Err(error) = live.pool.commit() {
                    error!("pool {name}: {error}");
                }
                live.mounts.lock().abort_all();
                Vec::new()
            }
            unmounted => unmounted.map_err(|error| error.within(&doing))?,
        };
        let mut exported = Exported::default();
        if !live.pool.store().is_read_only() {
            let stored = live.pool.commit();
            let is_stored = stored.is_ok();
            if let Err(error) = stored {
                // Written data cannot be stored now, and perhaps can after files were deleted, or devices are back.
                let refused = match live.pool.store().suspended() {
                    None if force.mounts => Ok(()),
                    None => Err(ApiError::from(error).within(&doing).of_pool(name)),
                    Some(_) => refuse_to_drop(),
                };
                if let Err(error) = refused {
                    let mut mounts = live.mounts.lock();
                    mounts.open();
                    mounts.mount_again(&gone);
                    return Err(error);
                }
            }
            live.stop();
            // A suspended pool goes as it is: the next import starts at its last commit and its log.
            let last = if destroyed { live.pool.commit_destroy() } else { live.pool.commit_export() };
            if let Err(error) = last {
                error!("pool {name} was exported without a last commit: {error}");
                let how = if destroyed { "destroyed" } else { "exported" };
                exported.unmarked = Some(unmarked(name, how, error, is_stored));
            }
        }
        // Until somebody says that it is exported it is to come back, and not older than this.
        self.expect(&live);
        self.live.write().remove(name);
        drop(admin);
        let devices = live.weak();
        drop(live);
        // Requests that only look may hold it for a moment.
        for _ in 0..LAST_REQUESTS {
            if devices.strong_count() == 0 {
                break;
            }
            super::pause(PAUSE);
        }
        Ok(exported)
    }
}

/// Whether all of a pool's devices are there, and it can be imported.
pub(super) fn is_whole(plan: &Importable) -> bool {
    let mut all = plan.devices.iter().zip(&plan.root.devices);
    plan.complete
        && plan.refusal.is_none()
        && all.all(|(device, known)| device.found.is_some() || plan.root.is_bygone(known))
}

/// Nothing of a pool was found: where that was looked for.
pub(super) fn absent_devices(last: &[String], only: &[PathBuf]) -> String {
    let last = if last.is_empty() { "an unknown place".to_owned() } else { last.join(", ") };
    let rest = match only {
        [] => "all block devices, and the folders where pools were last seen".to_owned(),
        only => only.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
    };
    format!("none of its devices is there (last seen: {last}; looked at: {rest})")
}

/// There is a pool of this name, but it is a destroyed one, or is none.
fn otherwise(wanted: &str, destroyed: bool) -> ApiError {
    match destroyed {
        true => ApiError::new(ErrorKind::NotFound, "it was not destroyed")
            .hint(format!("larder pool import {wanted} imports it")),
        false => ApiError::new(ErrorKind::NotFound, "it was destroyed")
            .safe(NOTHING_CHANGED)
            .hint(format!("larder pool import -D {wanted} brings it back")),
    }
}

/// Obstacles to the export of a pool that are overridden.
#[derive(Debug, Clone, Copy)]
pub(super) struct Force {
    /// That somebody is in its mounts: they are ended.
    pub mounts: bool,
    /// That it is suspended: it loses what was neither committed nor synced.
    pub suspended: bool,
}

/// The pool is gone, and its newest root does not say how.
fn unmarked(name: &str, how: &str, error: PoolError, is_stored: bool) -> ApiError {
    let safe = if is_stored { "everything that was written" } else { "what was committed or synced before" };
    ApiError::from(error)
        .within(format!("'{name}' is closed, but not marked as {how}"))
        .safe(safe)
        .hint(format!(
            "here: larder pool import {name}; on another host it is taken with: larder pool import --take-over {name}"
        ))
}

/// Refusal to export a suspended pool: the data that would be lost.
fn would_drop(pool: &Pool, bytes: u64) -> ApiError {
    let reason = pool.store().suspended().unwrap_or_default();
    let message = format!(
        "it is suspended ({reason}), and what was written since commit {} and not synced would be dropped: up to {} MiB",
        pool.store().durable_commit(),
        bytes.max(1).div_ceil(1 << 20)
    );
    let hint = match pool.store().may_resume() {
        true => {
            "larder pool clear POOL goes on with all of it when the cause is gone; to drop it: larder pool export -f POOL"
        }
        false => "to drop it: larder pool export -f POOL",
    };
    ApiError::new(ErrorKind::Suspended, message).safe("what was committed or synced before").hint(hint)
}

/// Refuses what cannot be imported, and says which devices are why.
fn check(plan: &Importable, remembered: &Remembered) -> Result<()> {
    if let Some(refusal) = &plan.refusal {
        let refused = ApiError::from(PoolError::from(refusal.clone()));
        return Err(ApiError { kind: ErrorKind::Device, ..refused }.of_pool(&plan.name));
    }
    if plan.complete {
        return Ok(());
    }
    let mut lacking: Vec<String> = plan
        .devices
        .iter()
        .zip(&plan.root.devices)
        .filter(|(device, _)| {
            !matches!(device.standing, Standing::Current | Standing::Spare | Standing::Cache)
        })
        .filter(|(_, known)| !known.is_cache)
        .map(|(device, known)| tell(plan, device, known, remembered))
        .collect();
    let count = lacking.len();
    // Stale devices are told already.
    lacking.extend(plan.remarks.iter().filter(|remark| !remark.contains(" is out of date")).cloned());
    let groups = plan.root.groups.iter().map(|group| {
        let tolerance = group.rule.layout.tolerance();
        format!("{} survives {tolerance} missing", group.rule.name())
    });
    let groups: Vec<_> = groups.collect();
    Err(ApiError::new(
        ErrorKind::Device,
        format!(
            "{} of {} devices cannot be used, and its {}: {}",
            count,
            plan.root.devices.iter().filter(|known| !known.is_cache).count(),
            groups.join(", its "),
            lacking.join("; "),
        ),
    )
    .safe("everything that the missing devices hold; nothing was written")
    .hint(match plan.bereft().is_empty() {
        true => "attach them, or name where they are with -d, and import again",
        false => {
            "attach them, or name where they are with -d, and import again; to go on without what could not be read \
             of the one that was being replaced: larder pool import --accept-loss POOL"
        }
    }))
}

/// One device that cannot be used, and why.
fn tell(plan: &Importable, device: &Candidate, known: &RootDevice, remembered: &Remembered) -> String {
    match (&device.standing, &device.found) {
        (Standing::Stale(through), Some(found)) => {
            format!(
                "{} is too old (it holds commit {through}, the pool is at {})",
                error::named(&found.device.name()),
                plan.root.commit
            )
        }
        (Standing::Rebuilding, Some(found)) => {
            format!("{} is not rebuilt yet", error::named(&found.device.name()))
        }
        (Standing::Waiting, Some(found)) => {
            format!(
                "{} waits to replace one that could not be read whole",
                error::named(&found.device.name())
            )
        }
        (Standing::Offline(_), Some(found)) => {
            format!("{} was taken offline", error::named(&found.device.name()))
        }
        _ => match remembered.path(plan.guid, known.guid) {
            Some(path) => format!("device {} (was {path}) is missing", known.guid),
            None => format!("device {} is missing", known.guid),
        },
    }
}

/// Refuses to choose among pools of one name.
fn several(guids: impl Iterator<Item = PoolGuid>) -> ApiError {
    let ids: Vec<_> = guids.map(|guid| guid.to_string()).collect();
    ApiError::usage(format!("{} pools have this name", ids.len()))
        .hint(format!("import one by its id: {}", ids.join(" or ")))
}

/// Opens the devices that a plan uses for use, and looks at them once more, now that nobody else can
/// change them.
fn reopen(plan: Importable, read_only: bool) -> Result<Importable> {
    let mut found = Vec::new();
    for candidate in plan.devices.iter().filter_map(|device| device.found.as_ref()) {
        let path = candidate.device.name();
        let opened = match read_only {
            true => devices::open_to_read(&path),
            false => devices::open(&path, OpenMode::Exclusive),
        };
        let guid = candidate.label.device;
        let is_cache = plan.root.devices.iter().any(|known| known.is_cache && known.guid == guid);
        let device = match opened {
            Ok(device) => device,
            // It is done without.
            Err(_) if is_cache => continue,
            Err(error) => return Err(error),
        };
        if let Scan::Member(member) = scan(&device)
            && (member.label.pool, member.label.key) == (plan.root.pool, plan.key)
        {
            found.push(*member);
        }
    }
    // Devices that are not opened may be the reason.
    let (only_reading, guid) = (plan.only_reading.clone(), plan.guid);
    drop(plan);
    // Of two that were one the other may be there as well.
    let mut again = assemble(found).into_iter().find(|again| again.guid == guid).ok_or_else(|| {
        ApiError::new(ErrorKind::NotFound, "its devices vanished while it was being imported")
    })?;
    again.only_reading = again.only_reading.or(only_reading);
    Ok(again)
}
