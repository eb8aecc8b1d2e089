//! Blocks with more than one place, as the property `copies` asks for.
//!
//! Each place of a block is in a segment of another *copy*: 0 for the first. So no two are in one segment, whoever
//! moves them. They go to other groups, or to other devices, as far as there are some with room.
//!
//! A hint names one of the places; the block map has all. Whatever cannot be read at one is read at the next, and the
//! place is healed soon after ([`Pool::heal_blocks`]). The cleaner moves them one by one. Freeing asks the map from the
//! first such block on ([`crate::free`]), since the hint does not tell of the others; the root says so by
//! [`COPIES`](larder_format::label::Features::COPIES). Extents say how many they are charged for, so that dropping one
//! reads nothing.

use crate::op::Op;
use crate::pool::Pool;
use bytes::Bytes;
use larder_format::block::{BlockKind, CheckedHeader};
use larder_format::run::{MAX_PLACES, Places};
use larder_format::segment::SegmentState;
use larder_format::{BlockId, BlockPtr, Place, SegmentId};
use larder_sorted::map::{Location, Update};
use larder_store::core::Core;
use larder_store::heat;
use larder_store::stripe::Encoded;
use larder_store::{Appender, Bin, Class, Event, PoolError, Result, Unplaced, Watermark};

/// A block that cannot be read at one of its places.
struct Unsound {
    id: BlockId,
    places: Places,
    old: Place,
    /// Of the segment that it is in.
    copy: u8,
    /// That lies with metadata.
    small: bool,
    /// As another place gives it.
    header: CheckedHeader,
    bytes: Bytes,
    /// The places that it keeps.
    beside: Vec<Place>,
}

/// Outcome for a block that could not be read at some places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Healed {
    /// So many bytes were stored for it, in place of those that nobody can read.
    Stored(u64),
    /// No other place gives it.
    Lost,
    /// There was no room for all.
    NoRoom,
}

/// A block that is to be healed.
enum ToHeal {
    /// It is gone, or as it should be.
    Nothing,
    /// No place gives it.
    Lost,
    One(Box<Unsound>),
}

impl Pool {
    /// Stores blocks anew that cannot be read at some of their places, in place of those; the segments that they leave
    /// are emptying from then on.
    ///
    /// # Errors
    /// When nothing may be written, or the map cannot be read for now.
    pub fn heal_blocks(&self, blocks: &[(BlockId, Vec<Place>)]) -> Result<Vec<Healed>> {
        // Nothing moves or dies.
        let _commits_wait = self.commit_turn();
        let store = &self.shared.store;
        store.check_writable()?;
        let _op = self.enter()?;
        let mut healed = vec![Healed::Stored(0); blocks.len()];
        // One place of each at a time: so the next one is stored beside it.
        for _ in 0..MAX_PLACES {
            let mut due = Vec::new();
            for (i, (id, bad)) in blocks.iter().enumerate() {
                if !matches!(healed[i], Healed::Stored(_)) {
                    continue;
                }
                match self.place_to_heal(*id, bad)? {
                    ToHeal::Nothing => {}
                    ToHeal::Lost => healed[i] = Healed::Lost,
                    ToHeal::One(one) => due.push((i, one)),
                }
            }
            // Or a commit record, which lies among nodes.
            let is_node = |one: &Unsound| one.header.info.kind != BlockKind::Record;
            let (nodes, records): (Vec<_>, Vec<_>) = due.into_iter().partition(|(_, one)| is_node(one));
            if nodes.is_empty() && records.is_empty() {
                break;
            }
            for (i, one) in nodes {
                let mut to = Appender::of_old_nodes(store, one.copy, Watermark::Clean);
                let new = to.push_beside(Encoded::Whole(one.bytes.clone()), &one.beside);
                match new.and_then(|new| to.submit().map(|()| new)) {
                    Err(PoolError::NoSpace) => healed[i] = Healed::NoRoom,
                    new => self.put_healed(&one, new?, &mut healed[i])?,
                }
            }
            let unplaced = |(_, one): &(usize, Box<Unsound>)| Unplaced {
                bin: Bin { class: heat::COLDEST, copy: one.copy, small: one.small },
                beside: Places::new(&one.beside).ok(),
                block: Encoded::Whole(one.bytes.clone()),
            };
            let unplaced: Vec<_> = records.iter().map(unplaced).collect();
            match store.append_by_class(&unplaced, Watermark::Store) {
                Err(PoolError::NoSpace) => records.iter().for_each(|(i, _)| healed[*i] = Healed::NoRoom),
                news => {
                    for ((i, one), new) in records.iter().zip(news?) {
                        self.put_healed(one, new, &mut healed[*i])?;
                    }
                }
            }
        }
        Ok(healed)
    }

    /// A place of a block that is one of the bad ones.
    fn place_to_heal(&self, id: BlockId, bad: &[Place]) -> Result<ToHeal> {
        let store = &self.shared.store;
        let Some(entry) = store.look_up(id, |look_up, io| look_up.entry(io))? else {
            return Ok(ToHeal::Nothing);
        };
        let Location::Places(places) = entry.location else { return Ok(ToHeal::Nothing) };
        let found = {
            let core = store.core.lock();
            let copy = |old: Place| {
                let copy = core.entries.get(&old.segment)?.segment.copy;
                Some((old, copy, core.is_with_metadata(old.segment)))
            };
            places.iter().copied().filter(|place| bad.contains(place)).find_map(copy)
        };
        let Some((old, copy, small)) = found else { return Ok(ToHeal::Nothing) };
        let mut good = places.iter().filter(|place| !bad.contains(place));
        let sound = good.find_map(|&place| store.read_at(BlockPtr { id, place }).ok());
        let Some((header, bytes)) = sound else { return Ok(ToHeal::Lost) };
        let beside = places.iter().copied().filter(|place| *place != old).collect();
        Ok(ToHeal::One(Box::new(Unsound { id, places, old, copy, small, header, bytes, beside })))
    }

    /// A block has another place instead of one that was bad.
    fn put_healed(&self, one: &Unsound, new: Place, healed: &mut Healed) -> Result<()> {
        let (store, old) = (&self.shared.store, one.old);
        let all: Vec<Place> =
            one.places.iter().map(|&place| if place == old { new } else { place }).collect();
        store.map.lock().apply(Update::Put { id: one.id, places: Places::new(&all)? });
        let mut core = store.core.lock();
        if core.entries.get(&old.segment).is_some_and(|entry| entry.state == SegmentState::Open) {
            core.close_segment(old.segment);
        }
        // A hint may name it.
        core.entries.change(old.segment, |entry| {
            (entry.state, entry.dirty) = (SegmentState::Emptying, true);
        });
        core.release(old);
        drop(core);
        self.tell_healed(old);
        if let Healed::Stored(bytes) = healed {
            *bytes += u64::from(new.footprint());
        }
        Ok(())
    }

    /// Tells whose bytes were not what they should be.
    fn tell_healed(&self, place: Place) {
        let store = &self.shared.store;
        let Some(segment) = store.readable.get(place.segment) else { return };
        // The map says so, which may be damaged.
        if usize::from(place.column) >= segment.layout.k() {
            return;
        }
        let device = segment.devices_of(place.column.into()).next();
        if let Some(member) = device.and_then(|device| store.members.find(device)) {
            store.event(Event::new(Class::Healed).device(member.guid, member.name()));
        }
    }

    /// A step towards emptying a segment: false when it is empty, or cannot be emptied, or not now.
    ///
    /// # Errors
    /// When the pool is suspended, or a commit fails.
    pub fn empty_segment(&self, id: SegmentId) -> Result<bool> {
        let is_left = |core: &Core| {
            core.entries
                .get(&id)
                .is_some_and(|entry| entry.is_complete() && entry.live_blocks > 0 && !entry.damaged)
        };
        if !is_left(&self.shared.store.core.lock()) {
            return Ok(false);
        }
        Ok(self.clean_as(|core| is_left(core).then_some(id), Watermark::Clean)?.is_some())
    }

    /// Whether a block has so many places, which it keeps then: one that may be shared is not rewritten to fewer. What
    /// an extent is charged for does not tell.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn keep_places(&self, _op: &Op<'_>, id: BlockId, copies: u8) -> Result<bool> {
        let has_all = || Ok(self.shared.store.places_of(id)?.len() >= copies.into());
        if copies < 2 {
            return Ok(true);
        }
        if !has_all()? {
            return Ok(false);
        }
        self.shared.freeing.note_shared(id);
        has_all()
    }
}
