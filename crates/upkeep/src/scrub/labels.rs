//! Labels, heartbeats and rings of roots: proven on every device.
//!
//! A label that is wrong is written anew from the one in memory. A place of the ring holds the root of one commit in
//! fourteen, the same bytes on every device: what is damaged comes from any intact copy. Where there is none, an old
//! root is blanked, since nobody needs it, but a damaged place might pass for a newer root that was lost; the newest is
//! followed by another, which a commit writes.
//!
//! Reading goes on beside traffic. Only when something looks wrong, commits wait while it is looked at again and
//! rewritten: a root under way looks torn. First areas are flushed before second ones are written, so a crash leaves
//! each device at least as good as it was.

use super::Scrub;
use larder_device::AlignedBuf;
use larder_format::label::{
    HEARTBEAT_OFFSET, Heartbeat, LABEL_AREA, LABEL_LEN, RING_OFFSET, RING_SLOT, RING_SLOTS,
};
use larder_format::root::Root;
use larder_format::{ByteLen, CommitId};
use larder_pool::FenceCheck;
use larder_pool::open::RingPlace;
use larder_store::Result;
use larder_store::member::{Member, Written};
use larder_store::{Class, Event};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Contents of a device's label area; none if it cannot be read.
type Area = Option<AlignedBuf>;

/// Bytes of an area that are to be others.
struct Fix {
    member: Arc<Member>,
    area: usize,
    /// From the start of the area.
    at: u64,
    data: Arc<AlignedBuf>,
}

/// The bytes of place `place` of the ring in an area.
fn ring(place: u64) -> Range<usize> {
    let start = RING_OFFSET as usize + place as usize * RING_SLOT;
    start..start + RING_SLOT
}

impl Scrub {
    /// Looks at all labels and roots, and reconstructs them; the bytes looked at and rewritten.
    ///
    /// # Errors
    /// When a commit fails, or too many devices refuse.
    pub(super) fn scrub_labels(&self) -> Result<(u64, u64)> {
        let areas = self.read_areas();
        let examined = areas.iter().flat_map(|(_, areas)| areas).flatten().count() as u64 * LABEL_AREA;
        let beats = self.repair_heartbeats(&areas)?;
        if self.wrong_labels(&areas).is_empty() && !self.has_damaged_roots(&areas) {
            return Ok((examined, beats));
        }
        let (mut repaired, newest_is_lost) = self.repair_areas()?;
        repaired += beats;
        if newest_is_lost {
            // Its place is an old root's then.
            self.pool.commit()?;
            repaired += self.repair_areas()?.0;
        }
        Ok((examined, repaired))
    }

    fn read_areas(&self) -> Vec<(Arc<Member>, [Area; 2])> {
        let start = |member: Arc<Member>| {
            let reads = member.label_areas().map(|area| member.read(area, LABEL_AREA as usize));
            reads.iter().any(Option::is_some).then_some((member, reads))
        };
        let reads: Vec<_> = self.store.members.iter().filter_map(start).collect();
        let finish = |(member, reads): (Arc<Member>, [Option<_>; 2])| {
            let areas = reads.map(|read: Option<larder_device::Pending<_>>| match member.wait(read?) {
                Ok(bytes) => Some(bytes),
                Err(_) => {
                    member.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                    None
                }
            });
            (member, areas)
        };
        reads.into_iter().map(finish).collect()
    }

    /// Heartbeats come by themselves; where one is damaged, now.
    fn repair_heartbeats(&self, areas: &[(Arc<Member>, [Area; 2])]) -> Result<u64> {
        let damaged = |area: &Area| {
            let at = HEARTBEAT_OFFSET as usize..HEARTBEAT_OFFSET as usize + LABEL_LEN;
            let beat = area.as_ref().map(|bytes| &bytes[at]);
            // None has been written yet where all is zero.
            beat.is_some_and(|beat| Heartbeat::check(beat).is_err() && beat.iter().any(|byte| *byte != 0))
        };
        let rotten: Vec<_> = areas.iter().filter(|(_, areas)| damaged(&areas[0])).collect();
        if rotten.is_empty() {
            return Ok(0);
        }
        for (member, _) in &rotten {
            member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
            let event = Event::new(Class::Checksum).device(member.guid, member.name());
            self.store.event(event.text("heartbeat"));
        }
        self.pool.beat()?;
        Ok((rotten.len() * LABEL_LEN) as u64)
    }

    fn wrong_labels(&self, areas: &[(Arc<Member>, [Area; 2])]) -> Vec<Fix> {
        let mut wrong = Vec::new();
        for (member, areas) in areas {
            let Some(label) = member.label() else { continue };
            let data = Arc::new(AlignedBuf::padded(&label.encode()));
            for (area, found) in areas.iter().enumerate() {
                if found.as_ref().is_none_or(|found| found[..LABEL_LEN] != data[..LABEL_LEN]) {
                    wrong.push(Fix { member: Arc::clone(member), area, at: 0, data: Arc::clone(&data) });
                }
            }
        }
        wrong
    }

    /// Whether a place of a ring holds no root, or an old one where the newest belongs.
    fn has_damaged_roots(&self, areas: &[(Arc<Member>, [Area; 2])]) -> bool {
        let newest = self.store.durable_commit();
        let mut all = areas.iter().flat_map(|(_, areas)| areas);
        all.any(|area| (0..RING_SLOTS).any(|place| self.is_wrong_root(area, place, newest)))
    }

    fn is_wrong_root(&self, area: &Area, place: u64, newest: CommitId) -> bool {
        let Some(bytes) = area else { return true };
        match RingPlace::of(&self.store.sums, &bytes[ring(place)]) {
            RingPlace::Damaged | RingPlace::Unread => true,
            RingPlace::Blank => newest.get() % RING_SLOTS == place,
            RingPlace::Root(commit) => newest.get() % RING_SLOTS == place && commit < newest,
        }
    }

    /// With commits held back: the bytes rewritten, and whether no copy of the newest root is left.
    fn repair_areas(&self) -> Result<(u64, bool)> {
        let _commits_wait = self.pool.commit_turn();
        let newest = self.store.durable_commit();
        self.pool.still_ours(FenceCheck::Closely)?;
        let areas = self.read_areas();
        let mut fixes = self.wrong_labels(&areas);
        let mut newest_is_lost = false;
        for place in 0..RING_SLOTS {
            let copies = areas.iter().flat_map(|(_, areas)| areas).flatten();
            let roots = copies.filter_map(|area| Root::check(&self.store.sums, &area[ring(place)]).ok());
            let belongs = |root: &Root| root.commit <= newest && root.commit.get() % RING_SLOTS == place;
            let best = roots.filter(belongs).max_by_key(|root| root.commit);
            let is_newest = newest.get() % RING_SLOTS == place;
            if is_newest && best.as_ref().is_none_or(|best| best.commit != newest) {
                newest_is_lost = true;
                continue;
            }
            let bytes =
                best.and_then(|best| best.encode(&self.store.sums)).unwrap_or_else(|| vec![0; RING_SLOT]);
            let data = Arc::new(AlignedBuf::padded(&bytes));
            for (member, areas) in &areas {
                for (area, found) in areas.iter().enumerate() {
                    if self.is_wrong_root(found, place, newest) {
                        let (member, data) = (Arc::clone(member), Arc::clone(&data));
                        fixes.push(Fix { member, area, at: ring(place).start as u64, data });
                    }
                }
            }
        }
        let mut repaired = 0;
        for area in 0..2 {
            for fix in fixes.iter().filter(|fix| fix.area == area) {
                let at = fix.member.label_areas()[area] + ByteLen::new(fix.at);
                fix.member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
                let about = |class| Event::new(class).device(fix.member.guid, fix.member.name());
                self.store.event(about(Class::Checksum).text("label or root"));
                let write = fix.member.write(at, Arc::clone(&fix.data));
                if write.is_some() && fix.member.complete_write(write) == Written::Done {
                    let proof = fix.member.read(at, fix.data.len()).map(|read| fix.member.wait(read));
                    if matches!(proof, Some(Ok(found)) if found[..] == fix.data[..]) {
                        repaired += fix.data.len() as u64;
                        self.store.event(about(Class::Healed));
                    }
                }
            }
            self.store.members.flush_all();
        }
        self.store.check_tolerance()?;
        Ok((repaired, newest_is_lost))
    }
}
