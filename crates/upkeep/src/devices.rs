//! Devices come and go: taken out of use and back, replaced, added, kept as spares.
//!
//! Membership changes at the boundary between two commits, with the gate closed: stripes stamped with the commit before
//! are not on a device that joins, stripes stamped with the next are. The root of the commit at the boundary records
//! the change, so that a crash leaves either the one or the other.
//!
//! A device that joins is *rebuilding*: it gets every write, and [`crate::resilver`] brings what it lacks. That is
//! one mechanism for all: a device that was away lacks the stripes of the commits that it missed, a new one all of
//! them. A new device *stands for* the one that it is to replace, be that missing, failing or healthy; when it is
//! rebuilt, it takes its number, in the root first. So segment records, which name devices by number, never change. A
//! spare that takes over does the same, without being asked.
//!
//! When something can be read from no device, and the old one is in use, the new one *waits*: both get every write,
//! the old one is read, and nothing is wiped, since what cannot be read today may be read tomorrow
//! ([`crate::Resilver::restart`]). Somebody accepts the loss ([`Devices::accept_loss`]), or the old one goes; then the
//! new one takes its place as it is. That it waits, and that it is partial while it is rebuilt, is in the root.

use larder_device::{AlignedBuf, Device, DeviceError, Request};
use larder_format::label::{GroupRule, LABEL_AREA, LABEL_LEN, Label, LayoutKind, MIN_ASHIFT, MIN_DEVICE};
use larder_format::root::{DeviceState, NO_GROUP, Root};
use larder_format::segment::{Layout, MIN_SLOT, SegmentState};
use larder_format::{ByteLen, CommitId, DeviceGuid, DeviceIndex, GroupIndex, Incarnation, SegmentId};
use larder_mutants::{Mutant, mutated};
use larder_pool::Pool;
use larder_pool::create::{MAX_WITH_OTHERS, data_start, slot_count, slot_size, write_label_areas};
use larder_pool::open::{Found, holds, is_branch, lacks_slots};
use larder_store::Refusal;
use larder_store::Store;
use larder_store::member::{Member, MemberState};
use larder_store::space::GroupSpace;
use larder_store::{Class, Event};
use larder_store::{PoolError, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A device that was missing when the pool was imported, or went away, is waited for before a spare takes its place.
const PATIENCE: Duration = Duration::from_secs(300);

/// A device that leaves is waited for so long, each time.
const WIPING: Duration = Duration::from_secs(5);

/// Slots of a device with copies, at least: one is being filled, one is emptied.
const LEAST_CACHE_SLOTS: u32 = 8;

/// Requirements on a new device.
pub(crate) struct Place {
    pub index: DeviceIndex,
    pub group: GroupIndex,
    pub rule: GroupRule,
    pub slot_size: u32,
    pub slot_count: u32,
    pub ashift: u8,
}

/// See the module's text.
pub struct Devices {
    pub(crate) pool: Arc<Pool>,
    pub(crate) store: Arc<Store>,
}

impl Devices {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Self { pool: Arc::clone(pool), store: Arc::clone(pool.store()) }
    }

    /// Whether the group of `device` could do without it too, what does not fit its shape yet included.
    fn can_do_without(&self, device: &Member) -> bool {
        // The log goes on elsewhere.
        if device.stands_for.is_some() || !self.store.is_vital(device.group) {
            return true;
        }
        let lost = |index: DeviceIndex| {
            index == device.index || self.store.members.find(index).is_none_or(|member| !member.is_online())
        };
        let columns: Vec<_> = self.store.members.of_group(device.group).map(|member| member.index).collect();
        let core = self.store.core.lock();
        let Some(group) = core.groups.get(&device.group) else { return false };
        let mut misfits =
            core.entries.values().map(|entry| (entry.state, &entry.segment)).filter(|(state, of)| {
                *state != SegmentState::Freed && of.group == device.group && !group.fits(of)
            });
        group.rule.layout.survives(|column| columns.get(column).is_none_or(|&device| lost(device)))
            && misfits.all(|(_, of)| of.layout.survives(|column| lost(of.slots[column].device)))
    }

    /// Takes a device out of use until [`Devices::online`], or until the next import when that is `temporary`.
    ///
    /// # Errors
    /// When its group cannot do without it; when it is a spare.
    pub fn offline(&self, device: DeviceIndex, temporary: bool) -> Result<()> {
        let _mine = self.pool.change_turn();
        let member = self.pool.known(device)?;
        if member.group == NO_GROUP {
            return Err(Refusal::Spare(member.name()).into());
        }
        let refuse_if_needed = || match self.can_do_without(&member) {
            true => Ok(()),
            false => Err(PoolError::from(Refusal::Needed(member.name()))),
        };
        refuse_if_needed()?;
        // It holds everything up to this commit; later writes go without it.
        self.pool.commit()?;
        // The commit may have found another one dead.
        refuse_if_needed()?;
        member.take_offline(temporary);
        self.pool.commit().map(drop)
    }

    /// Takes a device back into use: what it missed is resilvered. `found` is its device, opened anew; without, the one
    /// that it had is used again.
    ///
    /// # Errors
    /// When the device is not there, is another's, or was written apart from the pool; when it fails again.
    pub fn online(&self, device: DeviceIndex, found: Option<Found>) -> Result<()> {
        let _mine = self.pool.change_turn();
        // A suspended pool goes on by `clear`; a flush that failed here would take that away.
        self.store.check_writable()?;
        let member = self.pool.known(device)?;
        if member.is_written() && found.is_none() {
            return Ok(());
        }
        let name = member.name();
        if member.is_given_up() && found.is_none() {
            return Err(Refusal::Hung(name).into());
        }
        let mut known = member.to_root(self.store.durable_commit(), self.pool.incarnation());
        let (device, label) = match found {
            Some(found) => {
                if found.label.device != member.guid || !found.label.is_of(&self.store.sums) {
                    return Err(Refusal::OtherDevice { found: found.device.name(), wanted: name }.into());
                }
                let identity = self.store.core.lock().identity;
                // Of a pool that was this one; one that missed the change missed nothing before it.
                let is_anothers = |root: &Root| {
                    let missed_it =
                        root.identity.guid == identity.former && root.commit.next() >= known.good_through;
                    root.identity.guid != identity.guid && !missed_it
                };
                let branches =
                    |root: &Root| is_branch(&self.store.history.lock(), &known, root) || is_anothers(root);
                let is_apart = found.root.as_ref().is_some_and(branches);
                if let Some(root) =
                    found.root.as_ref().filter(|_| is_apart && self.store.is_vital(member.group))
                {
                    let (device, since) = (found.device.name(), root.commit);
                    return Err(Refusal::Branched { device, since }.into());
                }
                if found.device.size() < found.label.device_size {
                    let (had, has) = (found.label.device_size.get(), found.device.size().get());
                    return Err(Refusal::CutShort { device: found.device.name(), had, has }.into());
                }
                let slot_size = if member.is_cache { found.label.slot_size } else { member.slot_size };
                if let Some(text) = lacks_slots(&found.label, slot_size, member.slot_count()) {
                    return Err(Refusal::LacksSlots { device: found.device.name(), text }.into());
                }
                // Its state may be older than the one that the pool gave it.
                let root = found.root.as_ref().filter(|_| !is_apart);
                let held = root.map(|root| holds(&self.store.history.lock(), root));
                let held = held.unwrap_or((CommitId::new(0), Incarnation::new(0)));
                if held.0 < known.good_through && !mutated(Mutant::OldImageTrusted) {
                    (known.good_through, known.incarnation) = held;
                }
                (found.device, found.label)
            }
            None => {
                if let Some(held) = member.holds() {
                    (known.good_through, known.incarnation) = held;
                }
                member.device().zip(member.label()).ok_or(Refusal::NotThere(name))?
            }
        };
        // A discard that no flush followed could spoil what is written before the next one. Where a flush fails now,
        // nobody may use the device as it is ([`Member::is_unharmed`]): its error is told once.
        device.forgive();
        if device.submit(Request::Flush).within(member.timeout()).is_err() {
            member.note_missed();
        }
        if member.group == NO_GROUP {
            // Its label may be for a place that it did not get: a cut came before the boundary.
            let slot_size = if member.is_cache { label.slot_size } else { member.slot_size };
            let (present, state) = (Some((device, label)), MemberState::Online);
            let spare = Member::new(&known, slot_size, present, state, &self.store.world.clock);
            spare.set_timeout(member.timeout());
            let other = Arc::new(spare);
            self.store.members.put_other(Arc::clone(&other));
            if other.is_cache {
                self.store.detach_cache(other.index);
                self.attach_cache(&other);
            }
            return Ok(());
        }
        let (clock, slot_size) = (Arc::clone(&self.store.world.clock), member.slot_size);
        let index = known.index;
        self.pool.change_members(move |pool, commit| {
            known.state = DeviceState::Rebuilding;
            // A column may have moved with this commit.
            known.good_through = known.good_through.min(member.good_through());
            (known.since, known.cursor, known.partial) = (commit, SegmentId::new(0), false);
            if mutated(Mutant::BoundaryMissed) {
                known.since = CommitId::new(commit.get() - 1);
            }
            pool.rebuilt().forget(known.index);
            if known.leaving {
                // Its data can be read again: it leaves as one that was never gone.
                let retire = |space: &mut GroupSpace| space.retire(known.index, false);
                pool.store().core.lock().change_shape(known.group, retire);
            }
            let state =
                if mutated(Mutant::NotResilvered) { MemberState::Online } else { MemberState::Rebuilding };
            let again = Member::new(&known, slot_size, Some((device, label)), state, &clock);
            again.doubt(member.doubtful());
            pool.store().members.put(Arc::new(again));
        })?;
        let member = self.pool.known(index)?;
        if member.state() == MemberState::Faulted {
            let (device, why) =
                (member.name(), member.reason().unwrap_or_else(|| "it takes no writes".into()));
            return Err(Refusal::FailedAgain { device, why }.into());
        }
        Ok(())
    }

    /// Puts a new device into the place of `old`, which goes on being used, if it can, until the new one is rebuilt.
    /// Whatever the new device holds is overwritten.
    ///
    /// # Errors
    /// When the new device is too small, or fails; when `old` is being replaced already.
    pub fn replace(&self, old: DeviceIndex, new: Arc<dyn Device>) -> Result<DeviceIndex> {
        let _mine = self.pool.change_turn();
        let member = self.replaceable(old)?;
        let place = self.place_of_member(&member, 1, MAX_WITH_OTHERS)?;
        let label = self.label_for(&*new, &place, None)?;
        let index = place.index;
        self.stand_in(old, new, label, None)?;
        Ok(index)
    }

    /// The member `old`, when a device may take its place.
    pub(crate) fn replaceable(&self, old: DeviceIndex) -> Result<Arc<Member>> {
        let member = self.pool.known(old)?;
        if member.stands_for.is_some() || member.group == NO_GROUP {
            return Err(Refusal::NoPlace(member.name()).into());
        }
        if member.is_leaving() {
            return Err(Refusal::Leaving(member.name()).into());
        }
        if let Some(other) = self.store.members.stand_in(old) {
            return Err(Refusal::BeingReplaced { old: member.name(), new: other.name() }.into());
        }
        Ok(member)
    }

    /// Requirements on a device that is to take the place of `member`, when that is `more` than there are, of `most`.
    pub(crate) fn place_of_member(&self, member: &Member, more: usize, most: usize) -> Result<Place> {
        let (rule, ashift) = {
            let group = &self.store.core.lock().groups[&member.group];
            (group.rule, group.ashift)
        };
        Ok(Place {
            index: self.store.members.next_index(more, most)?,
            group: member.group,
            rule,
            slot_size: member.slot_size,
            slot_count: member.slot_count(),
            ashift,
        })
    }

    /// Labels a device for a place; it keeps `guid` if it has one.
    pub(crate) fn label_for(
        &self,
        device: &dyn Device,
        place: &Place,
        guid: Option<DeviceGuid>,
    ) -> Result<Label> {
        let size = device.size();
        let slots = u64::from(place.slot_count) * u64::from(place.slot_size);
        // The second label area starts at a multiple of its size.
        let needed = (data_start(place.ashift).get() + slots).next_multiple_of(LABEL_AREA) + LABEL_AREA;
        if size.get() < needed.max(MIN_DEVICE) {
            let (device, has, needed) = (device.name(), size.get(), needed.max(MIN_DEVICE));
            return Err(Refusal::TooSmall { device, has, needed }.into());
        }
        let label = Label {
            sequence: 1,
            pool: self.store.guid(),
            name: self.pool.name(),
            device: guid.unwrap_or_else(|| DeviceGuid::new(self.store.world.entropy.next_u64())),
            index: place.index,
            group: place.group,
            rule: place.rule,
            slot_size: place.slot_size,
            slot_count: place.slot_count,
            data_start: data_start(place.ashift),
            device_size: size,
            created: self.pool.created(),
            ashift: place.ashift,
            features: self.store.core.lock().features,
            key: self.store.sums.key(),
        };
        write_label_areas(device, &label)?;
        Ok(label)
    }

    /// The labels of a group tell its rule; the root does as well, and is believed.
    pub(crate) fn relabel_group(&self, group: GroupIndex, rule: GroupRule) {
        for member in self.store.members.of_group(group).filter(|member| member.is_written()) {
            drop(member.relabel(|label| label.rule = rule));
        }
    }

    /// From the next boundary on, `device`, which may be a spare's, stands for `old`.
    fn stand_in(
        &self,
        old: DeviceIndex,
        device: Arc<dyn Device>,
        label: Label,
        spare: Option<DeviceIndex>,
    ) -> Result<()> {
        let clock = Arc::clone(&self.store.world.clock);
        self.pool.change_members(move |pool, commit| {
            let class = if spare.is_some() { Class::SpareUsed } else { Class::DeviceAdd };
            pool.store().event(Event::new(class).device(label.device, device.name()));
            spare.and_then(|spare| pool.store().members.take(spare));
            pool.rebuilt().forget(label.index);
            let state = MemberState::Rebuilding;
            let member = Member::labelled(device, label, state, Some(old), &clock);
            member.joined_after(commit);
            pool.store().members.put(Arc::new(member));
        })
    }

    /// Rebuilt members count from the next commit on; one that stood for another takes its place. One that could not be
    /// given all waits, as long as the device that it stands for is in use, since that one may still give it.
    pub(crate) fn complete(&self, mut rebuilt: Vec<Arc<Member>>) -> Result<()> {
        for member in rebuilt.extract_if(.., |member| member.is_partial() && !self.is_bereft(member)) {
            member.set_state(MemberState::Waiting);
        }
        self.take_places(rebuilt)
    }

    /// Whether nobody is in use any more in whose place `member` is to be.
    pub(crate) fn is_bereft(&self, member: &Member) -> bool {
        member
            .stands_for
            .is_some_and(|place| self.store.members.find(place).is_none_or(|old| !old.is_online()))
    }

    /// Members take their places at the next boundary.
    pub(crate) fn take_places(&self, rebuilt: Vec<Arc<Member>>) -> Result<()> {
        let leaving: Vec<_> = rebuilt
            .iter()
            .filter_map(|member| Some((self.store.members.find(member.stands_for?)?, member.is_partial())))
            .collect();
        let (clock, named) = (Arc::clone(&self.store.world.clock), rebuilt.clone());
        self.pool.change_members(move |pool, commit| {
            let stays = |member: &Arc<Member>| member.is_written() && !member.is_online();
            for member in named.into_iter().filter(stays) {
                let Some(place) = member.stands_for else {
                    member.set_state(MemberState::Online);
                    pool.store().look_at_repairs(member.take_doubtful());
                    continue;
                };
                let Some(present) = member.device().zip(member.label()) else { continue };
                let mut known = member.to_root(commit, pool.incarnation());
                let text = if known.partial { "without what could not be read of the old one" } else { "" };
                (known.index, known.stands_for, known.partial) = (place, None, false);
                let state = MemberState::Online;
                let placed = Member::new(&known, member.slot_size, Some(present), state, &clock);
                pool.store()
                    .event(Event::new(Class::DeviceReplace).device(placed.guid, placed.name()).text(text));
                pool.store().members.take(member.index);
                pool.store().members.put(Arc::new(placed));
            }
        })?;
        for (old, partial) in leaving.iter().filter(|(old, _)| self.store.members.by_guid(old.guid).is_none())
        {
            let taken = self.store.members.find(old.index);
            // Its copy may be the only one of something.
            if !partial && taken.as_ref().is_some_and(|new| new.is_online()) {
                wipe(old);
            }
            // Its label's number is for people; the root has it by its GUID.
            let _ = taken.map(|member| member.relabel(|label| label.index = member.index));
        }
        Ok(())
    }

    /// The device that waits to take the place of `old` takes it: what could not be had of `old` is lost. That one is
    /// left as it is, and is no member any more.
    ///
    /// # Errors
    /// When nobody waits to take its place.
    pub fn accept_loss(&self, old: DeviceIndex) -> Result<()> {
        let _mine = self.pool.change_turn();
        let member = self.pool.known(old)?;
        let waiting = self.store.members.stand_in(old).filter(|new| new.state() == MemberState::Waiting);
        let Some(new) = waiting else {
            return Err(Refusal::NobodyWaits(member.name()).into());
        };
        self.take_places(vec![new])?;
        // Its losses are to be named by what can be read now.
        self.pool.damage().recheck();
        Ok(())
    }

    /// Adds a spare: it takes the place of a device that fails. Whatever it holds is overwritten.
    ///
    /// # Errors
    /// When the device is too small for a pool, or fails.
    pub fn add_spare(&self, new: Arc<dyn Device>) -> Result<DeviceIndex> {
        let _mine = self.pool.change_turn();
        let index = self.store.members.next_index(1, MAX_WITH_OTHERS)?;
        let rule = GroupRule {
            word: LayoutKind::Single,
            layout: Layout::new(1, 1, 0).expect("one column is a layout"),
        };
        let place =
            Place { index, group: NO_GROUP, rule, slot_size: MIN_SLOT, slot_count: 0, ashift: MIN_ASHIFT };
        let label = self.label_for(&*new, &place, None)?;
        let clock = Arc::clone(&self.store.world.clock);
        self.store.event(Event::new(Class::DeviceAdd).device(label.device, new.name()).text("a spare"));
        self.pool.change_members(move |pool, _| {
            let spare = Member::labelled(new, label, MemberState::Online, None, &clock);
            pool.store().members.put_other(Arc::new(spare));
        })?;
        Ok(index)
    }

    /// Adds a device for copies of blocks: reads find there what was read before. Whatever it holds is overwritten.
    ///
    /// # Errors
    /// When the device is too small, or fails.
    pub fn add_cache(&self, new: Arc<dyn Device>) -> Result<DeviceIndex> {
        let _mine = self.pool.change_turn();
        let index = self.store.members.next_index(1, MAX_WITH_OTHERS)?;
        let rule = GroupRule {
            word: LayoutKind::Single,
            layout: Layout::new(1, 1, 0).expect("one column is a layout"),
        };
        let ashift = MIN_ASHIFT;
        let (slot_size, slot_count) = self.cache_slots(&*new, None)?;
        let place = Place { index, group: NO_GROUP, rule, slot_size, slot_count, ashift };
        let label = self.label_for(&*new, &place, None)?;
        let clock = Arc::clone(&self.store.world.clock);
        self.store.event(Event::new(Class::DeviceAdd).device(label.device, new.name()).text("a cache"));
        let member = Arc::new(Member::labelled(new, label, MemberState::Online, None, &clock).for_cache());
        let added = Arc::clone(&member);
        self.pool.change_members(move |pool, _| drop(pool.store().members.put_other(added)))?;
        self.attach_cache(&member);
        Ok(index)
    }

    fn attach_cache(&self, member: &Arc<Member>) {
        if !self.store.attach_cache(member) {
            let text = "its slots are not as large as those of the other caches, or too many: it is not used";
            self.store.event(Event::new(Class::DeviceAdd).device(member.guid, member.name()).text(text));
        }
    }

    /// Whether [`Devices::add_cache`] has use for these devices, one after the other.
    ///
    /// # Errors
    /// When one is too small, and which.
    pub fn check_caches(&self, devices: &[Arc<dyn Device>]) -> Result<(), (usize, PoolError)> {
        let mut slots = None;
        for (at, device) in devices.iter().enumerate() {
            let (slot_size, _) = self.cache_slots(&**device, slots).map_err(|error| (at, error))?;
            slots = Some(slot_size);
        }
        Ok(())
    }

    /// Size and number of the slots that a device for copies gets.
    fn cache_slots(&self, device: &dyn Device, others: Option<u32>) -> Result<(u32, u32)> {
        let size = device.size();
        // Slots of one size on all of them.
        let known = self.store.members.caches().iter().find_map(|cache| Some(cache.label()?.slot_size));
        let slot_size = known.or(others).unwrap_or_else(|| slot_size(size.get()));
        let slot_count = slot_count(size, slot_size, MIN_ASHIFT);
        if slot_count < LEAST_CACHE_SLOTS {
            let (device, has) = (device.name(), size.get());
            let slots = u64::from(LEAST_CACHE_SLOTS) * u64::from(slot_size);
            let needed = slots + 2 * LABEL_AREA + (1 << MIN_ASHIFT);
            return Err(Refusal::TooSmall { device, has, needed }.into());
        }
        Ok((slot_size, slot_count))
    }

    /// Counts errors anew, of one device or of all; a pool that is suspended for what devices refused goes on if it can
    /// ([`Pool::resume`]); a device that failed is taken back into use, unless it hung and
    /// must be opened anew ([`Member::is_given_up`], [`Devices::online`]).
    ///
    /// # Errors
    /// When a device that failed is not there any more; when the pool has to stay suspended.
    pub fn clear(&self, device: Option<DeviceIndex>) -> Result<()> {
        let _mine = self.pool.change_turn();
        self.pool.resume()?;
        if device.is_none() {
            self.pool.damage().clear();
        }
        let all = match device {
            Some(device) => vec![self.pool.known(device)?],
            None => self.store.members.all().collect(),
        };
        // One that cannot be taken back keeps no other out.
        let mut outcome = Ok(());
        for member in all {
            let counters = &member.counters;
            for counter in [&counters.read_errors, &counters.write_errors, &counters.checksum_errors] {
                counter.store(0, Ordering::Relaxed);
            }
            member.forget_refusals();
            if member.state() == MemberState::Faulted && !member.is_given_up() {
                outcome = outcome.and(self.online(member.index, None));
            }
        }
        outcome
    }

    /// Looks whether spares answer, and are still spares of this pool; one that is not is faulted.
    pub fn probe_spares(&self) {
        for spare in self.store.members.spares() {
            self.is_ready(&spare);
        }
    }

    /// Whether a spare answers and still has its label, in either area.
    fn is_ready(&self, spare: &Member) -> bool {
        let mut failure = None;
        for area in spare.label_areas() {
            let Some(read) = spare.read(area, LABEL_LEN) else { return false };
            match spare.wait(read) {
                Ok(bytes) => {
                    let ours = |label: Label| label.pool == self.store.guid() && label.device == spare.guid;
                    if Label::check(&bytes).is_ok_and(ours) {
                        return true;
                    }
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match &failure {
            Some(error) => spare.fail(error),
            None => spare.fail(&"it does not hold the label of this pool's spare any more"),
        }
        if failure == Some(DeviceError::Overdue) {
            spare.abandon();
        }
        false
    }

    /// A spare takes the place of a device that failed, or has been missing for five minutes. One that cannot be
    /// labelled is faulted, and the next is tried.
    ///
    /// # Errors
    /// When a spare could not be labelled, after all else was done; when a commit fails.
    pub fn take_spares(&self) -> Result<()> {
        let _mine = self.pool.change_turn();
        let since = self.store.world.clock.monotonic().saturating_sub(self.pool.began());
        // The pool goes on without the log's: no data waits for one. What leaves would take it along.
        let leaving: Vec<_> = {
            let core = self.store.core.lock();
            core.groups.values().filter(|group| group.leaving).map(|group| group.index).collect()
        };
        let has_place = |member: &Arc<Member>| {
            member.stands_for.is_none()
                && !member.is_leaving()
                && !leaving.contains(&member.group)
                && self.store.is_vital(member.group)
        };
        let mut outcome = Ok(());
        for member in self.store.members.iter().filter(has_place) {
            let gone = match member.state() {
                MemberState::Faulted => true,
                MemberState::Missing => since >= PATIENCE,
                _ => false,
            };
            if !gone || self.store.members.stand_in(member.index).is_some() {
                continue;
            }
            let place = self.place_of_member(&member, 0, usize::MAX)?;
            let fits = |spare: &Arc<Member>| {
                let room =
                    |size: ByteLen| slot_count(size, place.slot_size, place.ashift) >= place.slot_count;
                spare.is_online() && spare.size().is_some_and(room)
            };
            let mut spares = self.store.members.spares();
            spares.retain(fits);
            // The smallest that is large enough.
            spares.sort_by_key(|spare| spare.size());
            for spare in spares {
                let Some(device) = spare.device().filter(|_| self.is_ready(&spare)) else { continue };
                // It goes on being a spare in the root until the boundary, whatever its label says.
                match self.label_for(&*device, &place, Some(spare.guid)) {
                    Ok(label) => {
                        self.stand_in(member.index, device, label, Some(spare.index))?;
                        break;
                    }
                    Err(error) => {
                        spare.fail(&error);
                        if matches!(error, PoolError::Device { error: DeviceError::Overdue, .. }) {
                            spare.abandon();
                        }
                        outcome = outcome.and(Err(error));
                    }
                }
            }
        }
        outcome
    }
}

/// Takes the labels from a device that is no member any more, if it answers: it is free for other uses.
pub(crate) fn wipe(member: &Member) {
    let Some(device) = member.device().filter(|_| member.state() != MemberState::Faulted) else { return };
    let blank = Arc::new(AlignedBuf::zeroed(LABEL_AREA as usize));
    for offset in member.label_areas() {
        let write = device.submit(Request::Write { offset, data: Arc::clone(&blank) });
        drop(write.wait_for(WIPING));
    }
}
