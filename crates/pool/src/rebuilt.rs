//! Progress of devices being rebuilt: in memory, until a commit makes it durable.
//!
//! A commit flushes all devices before its root records the progress made before the flush.

use larder_format::{DeviceIndex, SegmentId};
use larder_store::Store;
use larder_store::member::{Member, MemberState};
use larder_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module's text.
#[derive(Default)]
pub struct Rebuilt {
    /// The last segment done on each device: all of its writes are complete.
    done: Mutex<BTreeMap<DeviceIndex, SegmentId>>,
}

/// The members that are being rebuilt. Of one that is just joining, stripes of the commit at the boundary may be
/// under way, and would be taken for later ones: it waits until that is durable.
pub fn rebuilding(store: &Store) -> Vec<Arc<Member>> {
    let durable = store.durable_commit();
    let joined =
        |member: &Arc<Member>| member.state() == MemberState::Rebuilding && member.since() <= durable;
    store.members.iter().filter(joined).collect()
}

impl Rebuilt {
    /// The last segment that is done on a device in this import.
    pub fn done(&self, device: DeviceIndex) -> Option<SegmentId> {
        self.done.lock().get(&device).copied()
    }

    /// A segment is done on these devices.
    pub fn note(&self, devices: impl Iterator<Item = DeviceIndex>, segment: SegmentId) {
        self.done.lock().extend(devices.map(|device| (device, segment)));
    }

    /// A device is begun anew, or another has its number.
    pub fn forget(&self, device: DeviceIndex) {
        self.done.lock().remove(&device);
    }

    /// All are begun anew, or none is rebuilt any more.
    pub fn clear(&self) {
        self.done.lock().clear();
    }

    /// Progress of devices being rebuilt: durable as soon as they are flushed, to be passed to [`Rebuilt::keep`] then.
    pub(crate) fn so_far(&self, store: &Store) -> Vec<(Arc<Member>, SegmentId)> {
        let done = self.done.lock();
        let of = |member: Arc<Member>| done.get(&member.index).map(|&done| (member, done));
        rebuilding(store).into_iter().filter_map(of).collect()
    }

    /// Roots tell of it from now on, but of devices that were begun anew meanwhile.
    pub(crate) fn keep(&self, rebuilt: Vec<(Arc<Member>, SegmentId)>) {
        let done = self.done.lock();
        for (member, through) in rebuilt {
            if let Some(&now) = done.get(&member.index) {
                member.rebuilt_to(through.min(now));
            }
        }
    }
}
