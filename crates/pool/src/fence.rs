//! Whether this import still has the pool.
//!
//! A host may stand still, asleep or paused, and go on after another one took its pool over. So whoever imports shows
//! its heartbeat before its first root, and every import looks at the heartbeats before it writes its own, at the
//! beginning of each commit and before each root. One of an import that is not in the pool's history says that the
//! pool is another's; so does such an import's root, as new as the next one, which is looked for before heartbeats.
//! Then this import suspends, and each later try finds the same. A host that sees that it stood still, by either
//! clock, looks before it takes or acknowledges anything.
//!
//! A heartbeat has one place on each device. One that does not take it there stays in use, and in its stead both
//! imports look at the roots each time: at the place of the next, and whether that of the newest is still this
//! import's; in both label areas, for what takes no heartbeat may take no root beside it either.
//!
//! A device's heartbeat counts only where this import has put its own before: one that was away comes with an old one.
//! Of older imports of this history it is no sign either: a device may lose writes. What cannot be read says nothing.
//!
//! Between a look and what is written after it no device decides: a host that is stopped right there still does one
//! write too many.

use larder_device::AlignedBuf;
use larder_format::label::{HEARTBEAT_OFFSET, Heartbeat, LABEL_LEN, RING_SLOT};
use larder_format::root::{Root, ring_slot};
use larder_format::{ByteLen, CommitId, Incarnation};
use larder_store::member::Written;
use larder_store::{Class, Event, Result, Store};
use larder_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Twice what lies between two heartbeats.
const STOOD_STILL: Duration = Duration::from_secs(10);

/// Thoroughness of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceCheck {
    /// Heartbeats.
    Briefly,
    /// And the places of the next root and the newest.
    Closely,
}

/// Heartbeats, and when this import last looked for those of others.
pub(crate) struct Fence {
    store: Arc<Store>,
    /// Heartbeats shown so far.
    beats: AtomicU64,
    /// When it last looked: milliseconds of the clock that never goes back,
    monotonic: AtomicU64,
    /// and seconds since 1970, of the clock that goes on while the host sleeps.
    wall: AtomicU64,
    /// One looks, the others wait for what that says.
    turn: Mutex<()>,
}

impl Fence {
    /// Of an import that has shown and looked for nothing.
    pub(crate) fn new(store: &Arc<Store>) -> Self {
        Self {
            store: Arc::clone(store),
            beats: AtomicU64::new(0),
            monotonic: AtomicU64::new(0),
            wall: AtomicU64::new(0),
            turn: Mutex::new(()),
        }
    }

    /// This import.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.store.core.lock().incarnation
    }

    /// Shows other hosts that the pool is in use here.
    ///
    /// # Errors
    /// When another import has it: then this one is suspended, and nothing is written.
    pub(crate) fn beat(&self) -> Result<()> {
        self.still_ours(FenceCheck::Closely)?;
        let heartbeat = Heartbeat {
            pool: self.store.guid(),
            host: self.store.world.host,
            host_name: self.store.world.host_name.clone(),
            incarnation: self.incarnation(),
            beats: self.beats.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let data = Arc::new(AlignedBuf::padded(&heartbeat.encode()));
        let writes: Vec<_> = self
            .store
            .members
            .iter()
            .map(|member| {
                let at = member.label_areas()[0] + ByteLen::new(HEARTBEAT_OFFSET);
                (member.write(at, Arc::clone(&data)), member)
            })
            .collect();
        for (write, member) in writes.into_iter().filter(|(write, _)| write.is_some()) {
            match member.complete_write(write) {
                Written::Done => member.claim(),
                Written::Refused(error) if member.is_mute_now() => {
                    let text = format!("does not take the pool's heartbeat: {error}");
                    self.store.event(Event::new(Class::Io).device(member.guid, member.name()).text(text));
                }
                Written::Refused(_) | Written::Lost => {}
            }
        }
        Ok(())
    }

    /// Suspends the pool when another import has it.
    pub fn still_ours(&self, look: FenceCheck) -> Result<()> {
        let next = self.store.open_commit();
        let reads: Vec<_> = self
            .store
            .members
            .iter()
            .map(|member| {
                let areas = member.label_areas();
                let beat = || member.read(areas[0] + ByteLen::new(HEARTBEAT_OFFSET), LABEL_LEN);
                let root = |(commit, area)| Some((commit, member.read(ring_slot(area, commit), RING_SLOT)?));
                let closely = look == FenceCheck::Closely || member.is_mute();
                let newest = CommitId::new(next.get().saturating_sub(1));
                let places = [next, newest].into_iter().flat_map(|commit| areas.map(|area| (commit, area)));
                let roots: Vec<_> = places.filter(|_| closely).filter_map(root).collect();
                (member.is_claimed().then(beat).flatten(), roots, member)
            })
            .collect();
        // Before the history is locked: a commit that is sealed has the core's lock then.
        let own = self.incarnation();
        let ours: Vec<Incarnation> = {
            let history = self.store.history.lock();
            std::iter::once(own).chain(history.iter().map(|import| import.incarnation)).collect()
        };
        let mut other = None;
        for (beat, roots, member) in reads {
            // Failed reads are ignored: writes to the device find out.
            let bytes = |read: Option<_>| read.and_then(|read| member.wait(read).ok());
            let beat = bytes(beat).and_then(|bytes| Heartbeat::check(&bytes).ok());
            if let Some(beat) =
                beat.filter(|beat| beat.pool == self.store.guid() && !ours.contains(&beat.incarnation))
            {
                other = Some(format!("the host {}", beat.host_name));
            }
            for (commit, root) in roots {
                let root = bytes(Some(root)).and_then(|bytes| Root::check(&self.store.sums, &bytes).ok());
                if root.is_some_and(|root| root.commit >= commit && !ours.contains(&root.incarnation)) {
                    other.get_or_insert_with(|| "another host".into());
                }
            }
        }
        self.note_look();
        match other {
            Some(host) => Err(self.store.suspend(format!(
                "{host} has imported the pool. Nothing more is written from here; what was not committed is lost"
            ))),
            None => Ok(()),
        }
    }

    /// Looks as [`Fence::still_ours`] does, when nobody has for longer than a host that runs lets pass.
    pub(crate) fn look_after_a_pause(&self) -> Result<()> {
        if !self.is_long_ago() {
            return Ok(());
        }
        // Nobody goes on before it is known.
        let _turn = self.turn.lock();
        if self.is_long_ago() { self.still_ours(FenceCheck::Closely) } else { self.store.check_writable() }
    }

    fn now(&self) -> (u64, u64) {
        let clock = &self.store.world.clock;
        let monotonic = u64::try_from(clock.monotonic().as_millis()).unwrap_or(u64::MAX);
        (monotonic, u64::try_from(clock.now().secs).unwrap_or(0))
    }

    fn note_look(&self) {
        let (monotonic, wall) = self.now();
        self.monotonic.store(monotonic, Ordering::Relaxed);
        self.wall.store(wall, Ordering::Relaxed);
    }

    fn is_long_ago(&self) -> bool {
        let (monotonic, wall) = self.now();
        let silent = monotonic.saturating_sub(self.monotonic.load(Ordering::Relaxed));
        let apart = wall.abs_diff(self.wall.load(Ordering::Relaxed));
        silent > STOOD_STILL.as_millis() as u64 || apart > STOOD_STILL.as_secs()
    }
}
