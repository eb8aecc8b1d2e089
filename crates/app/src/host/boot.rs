//! Pools that come back: the daemon imports at its start what was imported when the one before it ended, however that
//! was, and tells what it could not.
//!
//! Devices are looked for where they were last, which opens no other disk; where that is not all of a pool, everywhere
//! an import looks. Pools come beside each other, since after a crash of the machine each waits for a heart to beat.
//! Those that lack devices are tried again for a while, also where they could do without: disks come late at boot, and
//! what they missed would have to be brought to them. A pool whose devices all are of an older state than it was seen
//! in is left to people: half of a mirror that was away for long would go on alone.

use super::import::{absent_devices, is_whole};
use super::live::Live;
use super::remembered::Was;
use super::{Host, LOOK, devices, pause};
use crate::api::pool::{Absent, Exported, Import, Imported};
use crate::api::{ApiError, ErrorKind, Result};
use larder_format::PoolGuid;
use larder_pool::open::Importable;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tracing::{info, warn};

/// From one try to the next while devices are missing.
const RETRY: Duration = Duration::from_secs(1);
/// Words for a pool that is not there.
const NOT_NOW: &str = "it was imported when the daemon stopped, and is not now";

impl Host {
    /// See [`crate::engine::Engine::import_again`].
    pub(super) fn import_again(&self, patience: Duration, tell: &(dyn Fn(&str) + Sync)) {
        let clock = &self.world.clock;
        let end = clock.monotonic() + patience;
        let mut wanted = self.remembered.lock().expected();
        let mut told = 0;
        while !wanted.is_empty() {
            let is_last = clock.monotonic() + RETRY > end;
            if told != wanted.len() {
                told = wanted.len();
                let names: Vec<_> = wanted.iter().map(|(_, was)| was.name.as_str()).collect();
                tell(&format!("importing {}", names.join(", ")));
            }
            std::thread::scope(|scope| {
                for (guid, was) in &wanted {
                    scope.spawn(move || self.import_expected(*guid, was, is_last));
                }
            });
            wanted.retain(|(guid, _)| {
                let lacks = |error: &ApiError| matches!(error.kind, ErrorKind::Device | ErrorKind::NotFound);
                self.left.lock().get(guid).is_some_and(lacks)
            });
            if is_last {
                break;
            }
            let next = clock.monotonic() + RETRY;
            while !wanted.is_empty() && clock.monotonic() < next && self.coming.lock().closed == 0 {
                pause(LOOK);
            }
            if self.coming.lock().closed > 0 {
                break;
            }
        }
        for absent in self.absent() {
            let action = absent.action.map(|action| format!("; {action}")).unwrap_or_default();
            warn!("pool {}: {NOT_NOW}: {}{action}", absent.name, absent.reason);
        }
        let (here, left) = (self.live.read().len(), self.left.lock().len());
        let count = |count: usize| format!("{count} {}", if count == 1 { "pool" } else { "pools" });
        tell(&match left {
            0 => format!("{} imported", count(here)),
            _ => format!("{} imported; {left} could not be: larder pool status", count(here)),
        });
    }

    fn import_expected(&self, guid: PoolGuid, was: &Was, is_last: bool) {
        match self.import_as_it_was(guid, was, is_last) {
            Ok(imported) => {
                self.left.lock().remove(&guid);
                imported.names.iter().for_each(|name| info!("pool {name}: imported, as it was before"));
                imported.notes.iter().for_each(|note| warn!("{note}"));
            }
            Err(error) => drop(self.left.lock().insert(guid, error.of_pool(&was.name))),
        }
    }

    fn import_as_it_was(&self, guid: PoolGuid, was: &Was, is_last: bool) -> Result<Imported> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let request = Import {
            search: was.search.iter().map(|path| text(path)).collect(),
            altroot: was.altroot.as_deref().map(text),
            readonly: was.readonly,
            ..Import::default()
        };
        let mut imported = Imported::default();
        let plan = self.find_again(guid, was)?;
        if plan.root.destroyed {
            self.remembered.lock().expect(guid, None);
            let error = ApiError::new(ErrorKind::Exists, "it was destroyed meanwhile");
            return Err(error.hint("larder pool import -D POOL brings it back"));
        }
        if plan.root.commit.get() < was.commit {
            let message = format!(
                "the devices that are there are of commit {}, and it has had commit {}",
                plan.root.commit, was.commit
            );
            let first = if is_whole(&plan) { "" } else { "attach the others; " };
            return Err(ApiError::new(ErrorKind::Device, message)
                .hint(format!("{first}to go on with the older state: larder pool import POOL")));
        }
        if !is_last && plan.complete && plan.refusal.is_none() && !is_whole(&plan) {
            let error = ApiError::new(ErrorKind::Device, "not all of its devices are there");
            return Err(error.hint("attach them"));
        }
        self.import_one(plan, &request, &mut imported)?;
        Ok(imported)
    }

    /// The pool on its devices: those where they were last, if that is all of them; else wherever they are.
    fn find_again(&self, guid: PoolGuid, was: &Was) -> Result<Importable> {
        let last: Vec<_> = self.remembered.lock().paths_of(guid).cloned().collect();
        let there = |path: &String| fs::metadata(devices::file_of(path)).is_ok();
        let near: Vec<String> = last.iter().filter(|path| there(path)).cloned().collect();
        let pick = |given: &[String]| -> Result<Option<Importable>> {
            Ok(self.find(given)?.0.into_iter().find(|plan| plan.guid == guid))
        };
        let here = if near.is_empty() { None } else { pick(&near)? };
        if here.as_ref().is_some_and(is_whole) {
            return Ok(here.expect("it was just looked at"));
        }
        // Places that were named leave others out on purpose.
        let given = was.search.iter().map(|path| path.to_string_lossy().into_owned()).filter(there);
        let given: Vec<_> = if was.search.is_empty() { Vec::new() } else { given.chain(near).collect() };
        let everywhere = match given.is_empty() && !was.search.is_empty() {
            true => None,
            false => pick(&given)?,
        };
        let can_go = |plan: &Importable| plan.complete && plan.refusal.is_none();
        match (here, everywhere) {
            (_, Some(plan)) if can_go(&plan) => Ok(plan),
            (Some(plan), _) | (None, Some(plan)) => Ok(plan),
            (None, None) => Err(ApiError::new(ErrorKind::NotFound, absent_devices(&last, &was.search))
                .hint("attach its devices, then: larder pool import POOL; if they are elsewhere: larder pool import -d DIR POOL")),
        }
    }

    /// Notes whether a pool that is here is to be here again when the daemon starts.
    pub(super) fn expect(&self, live: &Live) {
        let kept = live.pool.pool_properties().get("cachefile").map(String::as_str) != Some("none");
        let was = kept.then(|| Was {
            name: live.pool.name(),
            altroot: live.altroot.clone(),
            readonly: live.pool.store().is_read_only(),
            search: live.scope.only(),
            commit: live.pool.store().durable_commit().get(),
        });
        self.remembered.lock().expect(live.pool.store().identity(), was);
        self.left.lock().remove(&live.pool.store().identity());
    }

    /// No longer expects a pool that is not imported.
    pub(super) fn forget(&self, name: &str) -> Result<Exported> {
        if self.live.read().contains_key(name) {
            return Err(ApiError::new(ErrorKind::Busy, format!("cannot forget '{name}': it is imported"))
                .hint(format!("larder pool export {name}")));
        }
        let expected = self.remembered.lock().expected();
        let mut named =
            expected.into_iter().filter(|(guid, was)| was.name == name || guid.to_string() == name);
        let Some((guid, _)) = named.next() else {
            let message = format!("cannot forget '{name}': no such pool is waited for");
            return Err(ApiError::new(ErrorKind::NotFound, message).hint("larder pool status"));
        };
        self.remembered.lock().expect(guid, None);
        self.left.lock().remove(&guid);
        Ok(Exported::default())
    }

    /// The pools that were imported when the last daemon ended, and are not.
    pub(super) fn absent(&self) -> Vec<Absent> {
        let here: Vec<_> = self.live.read().values().map(|live| live.pool.store().identity()).collect();
        let mut expected = self.remembered.lock().expected();
        expected.retain(|(guid, _)| !here.contains(guid));
        let left = self.left.lock().clone();
        let coming = self.coming.lock().names.clone();
        let absent = expected.into_iter().map(|(guid, was)| {
            let import = format!("larder pool import {}", was.name);
            let (reason, action) = match left.get(&guid) {
                _ if coming.contains(&was.name) => ("it is being imported".to_owned(), None),
                Some(error) => {
                    let hint = error.hint.clone().filter(|hint| hint.contains("larder pool import"));
                    let first = error.hint.as_ref().map(|hint| format!("{hint}: {import}"));
                    (error.message.clone(), Some(hint.or(first).unwrap_or(import)))
                }
                None => (
                    "this daemon was started by a command, and imports nothing by itself".to_owned(),
                    Some(import),
                ),
            };
            Absent { name: was.name, guid: guid.get(), reason, action }
        });
        absent.collect()
    }

    /// Why there is no pool of this name among the imported ones.
    pub(super) fn not_imported(&self, name: &str) -> ApiError {
        let error = ApiError::no_such_pool(name);
        if let Some(absent) = self.absent().into_iter().find(|absent| absent.name == name) {
            let mut message = format!("{}; {NOT_NOW}", error.message);
            if self.left.lock().contains_key(&PoolGuid::new(absent.guid)) {
                message = format!("{message}: {}", absent.reason);
            }
            let hint =
                absent.action.unwrap_or_else(|| "it is being imported: try again in a moment".to_owned());
            return ApiError { message, hint: Some(hint), ..error };
        }
        let names: Vec<_> = self.live.read().keys().cloned().collect();
        let here = if names.is_empty() { "none is".to_owned() } else { names.join(", ") };
        error.hint(format!("imported here: {here}; larder pool import shows the pools that can be imported"))
    }
}
