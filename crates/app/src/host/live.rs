//! An imported pool: its mount and the threads that keep it going.
//!
//! Six threads, and nothing else: the *committer* makes a commit every few seconds when anything has changed, stores
//! data meanwhile when a quarter of the dirty memory is used, and cleans when little is free; the *heart* shows other
//! hosts that the pool is in use; the *reaper* removes what was unlinked while it was open or was too big to go at
//! once, and takes destroyed datasets down, as long as there is any of it; the *collector* walks everything now and
//! then ([`super::collection`]); the *maintainer* repairs, resilvers, scrubs ([`super::maintenance`]), and takes and
//! destroys snapshots by policy ([`super::policies`]); the *copier* finds what the read cache has, where there is
//! one, and fills it. They end at export. A pool imported for reading only has the last one alone.

use super::devices::Scope;
use super::maintenance::{self, Pace};
use super::mounts::{self, Mounts};
use super::policies::{Policies, Rounds};
use crate::api::{ApiError, ErrorKind, Result};
use larder_files::{FsError, Mount};
use larder_format::DeviceGuid;
use larder_pool::Store;
use larder_pool::member::Member;
use larder_pool::{FrontEnd, Pool, PoolError};
use larder_sync::{Condvar, Mutex};
use larder_upkeep::Upkeep;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::error;

/// A crash loses at most this much of what nobody synced.
pub const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of a live pool's heartbeats; twice this without one means that its host is gone.
pub const HEARTBEAT: Duration = Duration::from_secs(5);
/// Interval at which the committer looks for dirty data, and the reaper for orphans.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Turns of the reaper until what is in the trash and could not go is tried again.
const TRASH_RESTS: u32 = 600;
/// Bytes of noted operations that make a commit come early: they wait in memory.
const NOTES_AT_MOST: usize = 16 << 20;
/// Inodes that were only read since the last commit; more take one, so that they can leave memory.
const ATIMES_AT_MOST: usize = 16 << 10;
/// Extents of an orphan that are dropped in one operation; nobody looks into its dataset meanwhile.
const REAP_EXTENTS: usize = 256;
/// Entries of a destroyed dataset that are taken out in one operation; only commits wait for that.
const DESTROY_ENTRIES: usize = 2048;
/// Dropped blocks that make a commit come early: with its gate closed it tells the map of each of them.
const DROPPED_AT_MOST: usize = 64 << 10;
/// From one commit to the next after the reaper has freed a lot: space comes back with the third of them.
const SOON: Duration = Duration::from_millis(500);
const SOON_COMMITS: u32 = 3;
/// A wait of the copier, at most: few blocks that wait to be copied go together.
const COPIES_REST: Duration = Duration::from_millis(200);
/// Commits that are waited for though they do not bring more space than was free before.
const PATIENCE: u32 = 8;

/// An imported pool.
pub struct Live {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Its upkeep: scrub, resilver, trim, GC and the like.
    pub upkeep: Arc<Upkeep>,
    /// Its files.
    pub mount: Arc<Mount>,
    /// Where they can be reached.
    pub mounts: Arc<Mutex<Mounts>>,
    /// The same for whoever only looks, and does not wait for changes.
    pub table: Arc<mounts::Table>,
    /// The folder that all mount points are below; none for where they say.
    pub altroot: Option<PathBuf>,
    /// One change of the pool, or of its devices, at a time, its export included: outermost of its locks.
    pub admin: Mutex<()>,
    /// When it was imported, by its clock.
    pub since: Duration,
    /// Speed of its scans.
    pub pace: Arc<Pace>,
    /// Where its devices were looked for.
    pub scope: Arc<Scope>,
    stop: Arc<Stop>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Tells a pool's threads that they are to end, or have something to do.
#[derive(Default)]
pub struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
    /// Wakes the committer alone.
    dirty: Condvar,
    /// Commits that are to come soon.
    soon: AtomicU32,
}

impl Stop {
    /// Whether it is time to end.
    pub fn is_asked(&self) -> bool {
        *self.asked.lock()
    }

    /// Waits; false when it is time to end.
    pub fn pause(&self, duration: Duration) -> bool {
        self.wait(&self.changed, duration)
    }

    fn wait(&self, reason: &Condvar, duration: Duration) -> bool {
        let mut asked = self.asked.lock();
        if !*asked {
            reason.wait_for(&mut asked, duration);
        }
        !*asked
    }
}

/// Why a pool that was found is not brought to life. Nobody can delete anything in it.
fn unreplayed(error: FsError) -> ApiError {
    if !matches!(error, FsError::NoSpace) {
        return error.into();
    }
    let message = "what was synced after the last commit finds no room in the pool";
    ApiError::new(ErrorKind::NoSpace, message)
        .safe("all of it: the devices are as they were")
        .hint("what was committed can be read: larder pool import -o readonly=on POOL")
}

impl Live {
    /// Brings a pool to life that was just made or imported: replays its log, starts its threads. Nothing
    /// is mounted yet. `scope` is where its devices were looked for; with `altroot`,
    /// everything will be mounted below it.
    ///
    /// # Errors
    /// When the log cannot be replayed, or threads not be made.
    pub fn start(pool: Arc<Pool>, scope: Scope, altroot: Option<PathBuf>) -> Result<Arc<Self>> {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mount = Mount::new(Arc::clone(&pool), owner).map_err(unreplayed)?;
        let mounts = Mounts::new(Arc::clone(&pool), Arc::clone(&mount), altroot.clone());
        let (table, mounts, admin) = (mounts.table(), Arc::new(Mutex::new(mounts)), Mutex::default());
        let since = pool.store().clock().monotonic();
        let pace = Arc::default();
        let (stop, threads) = (Arc::default(), Mutex::default());
        let scope = Arc::new(scope);
        let upkeep = Upkeep::new(&pool);
        let live =
            Self { pool, upkeep, mount, mounts, table, altroot, admin, since, pace, scope, stop, threads };
        if !live.pool.store().is_read_only() {
            let (mount, stop) = (Arc::clone(&live.mount), Arc::clone(&live.stop));
            let waker = Arc::clone(&stop);
            live.pool.on_dirty(Box::new(move || {
                let _ = waker.dirty.notify_one();
            }));
            let pool = Arc::clone(&live.pool);
            live.thread("larder-commit", move || commit_now_and_then(&pool, &mount, &stop))?;
            let (pool, stop) = (Arc::clone(&live.pool), Arc::clone(&live.stop));
            live.thread("larder-heart", move || {
                let mut told = false;
                while stop.pause(HEARTBEAT) {
                    // A device that fails here fails commits too, and they tell; another host that has the pool does
                    // not.
                    if let Err(error) = pool.beat()
                        && !std::mem::replace(&mut told, true)
                    {
                        error!("pool {}: {error}", pool.name());
                    }
                }
            })?;
            let (pool, mount, stop) =
                (Arc::clone(&live.pool), Arc::clone(&live.mount), Arc::clone(&live.stop));
            live.thread("larder-reaper", move || {
                let mut rests = 0u32;
                while stop.pause(POLL_INTERVAL) {
                    // A damaged orphan is tried again at the next import, any other failure at the next turn.
                    // Marks of dead blocks wait in memory for a commit.
                    let goes_on = || !*stop.asked.lock() && !pool.is_map_large();
                    while goes_on() && free_some(&pool, &mount).unwrap_or(false) {
                        stop.soon.store(SOON_COMMITS, Ordering::Relaxed);
                    }
                    rests = rests.saturating_sub(1);
                    if rests == 0
                        && goes_on()
                        && pool.store().check_writable().is_ok()
                        && let Err(error) = pool.trash_step()
                    {
                        error!("pool {}: what is in the trash does not go: {error}", pool.name());
                        rests = TRASH_RESTS;
                    }
                }
            })?;
            let (upkeep, stop) = (Arc::clone(&live.upkeep), Arc::clone(&live.stop));
            live.thread("larder-gc", move || super::collection::collect_now_and_then(&upkeep, &stop))?;
            let (upkeep, stop) = (Arc::clone(&live.upkeep), Arc::clone(&live.stop));
            let (pace, scope) = (Arc::clone(&live.pace), Arc::clone(&live.scope));
            let rounds = Rounds::new(live.policies());
            live.thread("larder-upkeep", move || {
                maintenance::maintain(&upkeep, &stop, &pace, &scope, rounds)
            })?;
        }
        let (pool, stop) = (Arc::clone(&live.pool), Arc::clone(&live.stop));
        live.thread("larder-copies", move || {
            let store = pool.store();
            while !stop.is_asked() {
                while store.fill_read_cache() && !stop.is_asked() {}
                if !stop.is_asked() {
                    store.read_cache.wait(COPIES_REST);
                }
            }
        })?;
        Ok(Arc::new(live))
    }

    /// Its parts that snapshots are taken and destroyed with by policy.
    pub fn policies(&self) -> Policies {
        let (pool, mount) = (Arc::clone(&self.pool), Arc::clone(&self.mount));
        Policies { pool, mount, mounts: Arc::clone(&self.mounts), table: Arc::clone(&self.table) }
    }

    pub(super) fn thread(&self, name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let pool = Arc::clone(&self.pool);
        let watched = move || {
            let _watch = pool.store().watch(name);
            work();
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(watched)
            .map_err(|error| super::internal("start the pool's threads", &error))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Ends the threads.
    pub fn stop(&self) {
        *self.stop.asked.lock() = true;
        self.stop.changed.notify_all();
        self.stop.dirty.notify_all();
        self.pool.store().read_cache.wake();
        for thread in self.threads.lock().drain(..) {
            // One that panicked has suspended the pool.
            let _ = thread.join();
        }
    }

    /// Whether it was exported, or is about to be.
    pub fn is_ending(&self) -> bool {
        self.stop.is_asked()
    }

    /// A weak reference to its store: gone once its devices are let go of.
    pub fn weak(&self) -> Weak<Store> {
        Arc::downgrade(self.pool.store())
    }

    /// Nanoseconds since it was imported, by a clock that never goes back.
    pub fn uptime_ns(&self) -> u64 {
        let uptime = self.pool.store().clock().monotonic().saturating_sub(self.since);
        u64::try_from(uptime.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns when freed space can be written again, or the pool is exported.
    ///
    /// # Errors
    /// When a commit fails.
    pub fn wait_for_free_space(&self) -> Result<()> {
        match self.free_all() {
            // Nothing is written any more, which is no failure of those who wait.
            Err(_) if self.is_ending() => Ok(()),
            freed => freed,
        }
    }

    fn free_all(&self) -> Result<()> {
        let (mut least, mut in_vain) = (u64::MAX, 0);
        while in_vain < PATIENCE {
            // Again each time: what somebody held when its turn came was left.
            while !self.is_ending() && free_some(&self.pool, &self.mount)? {}
            if self.is_ending() {
                break;
            }
            self.pool.commit()?;
            let left = self.pool.freeing_bytes();
            if left == 0 && !self.pool.is_freeing() {
                break;
            }
            in_vain = if left < least { 0 } else { in_vain + 1 };
            least = least.min(left);
        }
        Ok(())
    }

    /// The devices that are there, spares included.
    pub fn present(&self) -> impl Iterator<Item = Arc<Member>> {
        let members = self.pool.store().members();
        members.all().filter(|member| member.size().is_some())
    }

    /// Their paths.
    pub fn device_paths(&self) -> Vec<(DeviceGuid, String)> {
        self.present().map(|member| (member.guid, member.name())).collect()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A step of what can be freed, of unlinked files and of destroyed datasets; true while there is more.
fn free_some(pool: &Pool, mount: &Mount) -> Result<bool> {
    let more = mount.reap_step(REAP_EXTENTS)?;
    Ok(pool.destroy_step(DESTROY_ENTRIES)? || more)
}

/// The committer's life. A pool that cannot commit suspends itself and says why in its status.
fn commit_now_and_then(pool: &Pool, mount: &Mount, stop: &Stop) {
    let mut last = pool.store().clock().monotonic();
    while stop.wait(&stop.dirty, POLL_INTERVAL) {
        if pool.store().suspended().is_some() {
            continue;
        }
        let soon = stop.soon.load(Ordering::Relaxed);
        let interval = if soon > 0 { SOON } else { COMMIT_INTERVAL };
        let due = pool.store().clock().monotonic().saturating_sub(last) >= interval;
        let early = pool.noted_bytes() > NOTES_AT_MOST
            || pool.freeing().dropped_blocks() > DROPPED_AT_MOST
            || pool.is_map_large();
        let result = if due || early {
            last = pool.store().clock().monotonic();
            stop.soon.store(soon.saturating_sub(1), Ordering::Relaxed);
            let wanted = pool.is_dirty() || pool.is_freeing() || mount.unstored() > ATIMES_AT_MOST;
            if wanted { pool.commit().map(drop) } else { Ok(()) }
        } else {
            stream(pool, mount, last, stop)
        };
        let result = result.and_then(|()| pool.tick());
        if let Err(error) = result {
            error!("pool {}: {error}", pool.name());
        }
    }
}

/// Full stripes stream out before the commit that refers to them, so that storing goes on beside writing.
fn stream(pool: &Pool, mount: &Mount, last: Duration, stop: &Stop) -> Result<(), PoolError> {
    while pool.store().dirty().get() >= pool.stream_from() && !*stop.asked.lock() {
        let before = pool.store().dirty().get();
        let flushed = match mount.flush_stripes() {
            // Many datasets with a little dirty data each: together it is much.
            Ok(()) if pool.store().dirty().get() >= before => FrontEnd::flush(mount),
            flushed => flushed,
        };
        match flushed {
            // Stored blocks free those they replace once they are committed.
            Err(PoolError::NoSpace) => drop(pool.commit()?),
            flushed => flushed?,
        }
        if pool.store().clock().monotonic().saturating_sub(last) >= COMMIT_INTERVAL {
            break;
        }
    }
    Ok(())
}
