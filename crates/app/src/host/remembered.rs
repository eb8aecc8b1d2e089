//! Memory of the daemon beside the pools: where their devices were last seen, and which of them were imported.
//!
//! One file in the state folder, written anew and renamed at each change, so that a crash leaves the one before or the
//! one after. Pools do not rest on it: when it is lost, nothing is imported by itself, and devices are looked for
//! everywhere. A pool is among the imported ones from its import to its export: how the daemon ends does not matter.

use larder_format::{DeviceGuid, Incarnation, PoolGuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use tracing::warn;

const FILE: &str = "pools.json";

/// See the module's text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// The state folder; none where there is no such.
    #[serde(skip)]
    dir: Option<PathBuf>,
    /// Paths by pool and device, as they were last seen.
    pools: BTreeMap<u64, BTreeMap<u64, String>>,
    /// The last import of each pool by a daemon of this folder.
    #[serde(default)]
    held: BTreeMap<u64, Held>,
    /// Pools that are imported, or were when the daemon ended.
    #[serde(default)]
    imported: BTreeMap<u64, Was>,
}

/// An import, and the boot of this machine in which it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    incarnation: u64,
    boot: String,
}

/// Options of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Was {
    /// Its name.
    pub name: String,
    /// The folder that its mount points are below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altroot: Option<PathBuf>,
    /// For reading only.
    #[serde(default)]
    pub readonly: bool,
    /// The only places where its devices were looked for; empty for everywhere.
    #[serde(default)]
    pub search: Vec<PathBuf>,
    /// A commit that it has had: devices whose newest is an older one are what the others have left behind.
    #[serde(default)]
    pub commit: u64,
}

/// Id of this boot of the machine.
fn boot() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
}

impl Remembered {
    /// Reads the state folder. A file that cannot be understood is put aside.
    pub fn load(dir: Option<&Path>) -> Self {
        let Some(dir) = dir else { return Self::default() };
        let file = dir.join(FILE);
        let read = match fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.to_string()),
            Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
        };
        let mut remembered = read.unwrap_or_else(|error: String| {
            let aside = dir.join(format!("{FILE}.damaged"));
            let kept = match fs::rename(&file, &aside) {
                Ok(()) => format!("it is kept as {}", aside.display()),
                Err(error) => format!("nor can it be put aside: {error}"),
            };
            warn!("{} cannot be read, so no pool is imported by itself: {error}; {kept}", file.display());
            Self::default()
        });
        remembered.dir = Some(dir.to_owned());
        remembered
    }

    /// Changes it and keeps that, if anything is another.
    fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.clone();
        let outcome = change(self);
        if let Some(dir) = self.dir.as_deref().filter(|_| *self != before)
            && let Err(error) = self.save(dir)
        {
            warn!("{} cannot be written: pools may not be imported by themselves: {error}", dir.display());
        }
        outcome
    }

    fn save(&self, dir: &Path) -> std::io::Result<()> {
        let new = dir.join(format!("{FILE}.new"));
        let bytes = serde_json::to_vec_pretty(self).expect("maps of numbers and text");
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(new, dir.join(FILE))?;
        File::open(dir)?.sync_all()
    }

    /// Notes where the devices of a pool are.
    pub fn note(&mut self, pool: PoolGuid, devices: impl IntoIterator<Item = (DeviceGuid, String)>) {
        self.change(|all| {
            let known = all.pools.entry(pool.get()).or_default();
            known.extend(devices.into_iter().map(|(guid, path)| (guid.get(), path)));
        });
    }

    /// Notes that this daemon has a pool imported.
    pub fn hold(&mut self, pool: PoolGuid, incarnation: Incarnation) {
        let Some(boot) = boot() else { return };
        self.change(|all| all.held.insert(pool.get(), Held { incarnation: incarnation.get(), boot }));
    }

    /// Whether this import of a pool was by a daemon of this folder since the machine was booted. There is one at a
    /// time, so where the caller does not have the pool imported, that one is dead.
    pub fn was_ours(&self, pool: PoolGuid, incarnation: Incarnation) -> bool {
        let held = self.held.get(&pool.get());
        held.is_some_and(|held| held.incarnation == incarnation.get() && boot().as_ref() == Some(&held.boot))
    }

    /// Notes that a pool is to be imported when the daemon starts; with none, that it is not.
    pub fn expect(&mut self, pool: PoolGuid, was: Option<Was>) {
        self.change(|all| match was {
            Some(was) => all.imported.insert(pool.get(), was),
            None => all.imported.remove(&pool.get()),
        });
    }

    /// The pools that are to be imported when the daemon starts, by name.
    pub fn expected(&self) -> Vec<(PoolGuid, Was)> {
        let all = self.imported.iter().map(|(&guid, was)| (PoolGuid::new(guid), was.clone()));
        let mut all: Vec<_> = all.collect();
        all.sort_by(|a, b| a.1.name.cmp(&b.1.name));
        all
    }

    /// Forgets a pool that is no more.
    pub fn forget(&mut self, pool: PoolGuid) {
        self.change(|all| {
            all.pools.remove(&pool.get());
            all.held.remove(&pool.get());
            all.imported.remove(&pool.get());
        });
    }

    /// Where a device was.
    pub fn path(&self, pool: PoolGuid, device: DeviceGuid) -> Option<&str> {
        self.pools.get(&pool.get())?.get(&device.get()).map(String::as_str)
    }

    /// Where the devices of a pool were.
    pub fn paths_of(&self, pool: PoolGuid) -> impl Iterator<Item = &String> {
        self.pools.get(&pool.get()).into_iter().flat_map(BTreeMap::values)
    }

    /// Where devices were.
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        self.pools.values().flat_map(BTreeMap::values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn was(name: &str) -> Was {
        Was {
            name: name.into(),
            altroot: None,
            readonly: false,
            search: vec!["/srv/images".into()],
            commit: 3,
        }
    }

    #[test]
    fn what_was_noted_is_there_for_the_next_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let load = || Remembered::load(Some(dir.path()));
        let mut remembered = load();
        let (pool, device) = (PoolGuid::new(7), DeviceGuid::new(9));
        remembered.note(pool, [(device, "/srv/images/a".into())]);
        assert_eq!(load(), remembered);
        assert_eq!(load().path(pool, device), Some("/srv/images/a"));
        remembered.hold(pool, Incarnation::new(3));
        let again = load();
        assert!(again.was_ours(pool, Incarnation::new(3)) && !again.was_ours(pool, Incarnation::new(4)));
        let earlier = Held { incarnation: 3, boot: "another".into() };
        remembered.held.insert(pool.get(), earlier);
        assert!(!remembered.was_ours(pool, Incarnation::new(3)), "another machine may have this one's id");
        remembered.expect(pool, Some(was("tank")));
        remembered.expect(PoolGuid::new(8), Some(was("attic")));
        let names: Vec<_> = load().expected().into_iter().map(|(_, was)| was.name).collect();
        assert_eq!(names, ["attic", "tank"]);
        remembered.expect(PoolGuid::new(8), None);
        assert_eq!(load().expected(), [(pool, was("tank"))]);
        remembered.forget(pool);
        assert_eq!(Remembered { dir: None, ..load() }, Remembered::default());
    }

    #[test]
    fn a_file_that_is_damaged_is_put_aside_and_another_begun() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{\"pools\":").unwrap();
        let mut remembered = Remembered::load(Some(dir.path()));
        assert!(remembered.expected().is_empty());
        assert_eq!(fs::read(dir.path().join("pools.json.damaged")).unwrap(), b"{\"pools\":");
        remembered.expect(PoolGuid::new(1), Some(was("tank")));
        assert_eq!(Remembered::load(Some(dir.path())).expected().len(), 1);
    }
}
