//! Rewriting: records are stored anew as their dataset's properties now say, under the ids that they have.
//!
//! It is the cleaner's move with another codec or checksum on the way: no tree changes, so what snapshots and clones
//! hold is rewritten as well, and nothing is there twice for longer than two commits. The segment that a record leaves
//! is *emptying* from then on, as by the cleaner: a hint into it does not tell its place any more, and reads what is
//! there until the segment is gone. Files go on being charged for what was written at first.
//!
//! A record in a segment that still gets stripes stays: it has just been written. Aliases have nothing of their own.
//!
//! A crash leaves a record at its old place or the new one, whole.

use crate::dataset::settings_from;
use crate::dedup::Known;
use crate::pool::Pool;
use crate::tally::Tally;
use bytes::Bytes;
use larder_format::block::{BlockInfo, BlockKind, CheckedHeader, CodecKind, Stamp};
use larder_format::checksum::ChecksumKind;
use larder_format::label::Features;
use larder_format::run::{Marks, Places};
use larder_format::segment::SegmentState;
use larder_format::{BlockPtr, DatasetId};
use larder_sorted::map::{Entry, Location, LostPages, Update};
use larder_store::codec::Codec;
use larder_store::stripe::Encoded;
use larder_store::{PoolError, Result, RunIo, draft, frame, heat, plain_of};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A record as it is to be stored.
struct Anew {
    ptr: BlockPtr,
    block: Encoded,
    is_framed: bool,
}

impl Pool {
    /// Stores these records of a dataset as its properties say, where that changes anything.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] when there is no room to write them; when nothing may be written, or the map cannot be
    /// read for now.
    pub fn rewrite_records(&self, dataset: DatasetId, records: Vec<BlockPtr>) -> Result<Tally> {
        self.shared.store.check_writable()?;
        let Some(dataset) = self.dataset(dataset) else { return Ok(Tally::default()) };
        let settings = dataset.settings();
        let (known, mut tally) = self.each_known(records)?;
        let anew = self.encode_anew(&known, settings.codec, settings.checksum, &mut tally);
        if anew.is_empty() {
            return Ok(tally);
        }
        let bytes = anew.iter().map(|one| one.block.len() as u64).sum();
        // Nothing in the trash is given up for it.
        if self.shared.store.space(settings.record_size).available < bytes {
            return Err(PoolError::NoSpace);
        }
        self.make_space(bytes, settings.record_size)?;
        self.put_anew(&anew, &mut tally)?;
        Ok(tally)
    }

    /// Tells what [`Pool::rewrite_records`] would do if these properties were set.
    ///
    /// # Errors
    /// When the map cannot be read for now.
    pub fn try_rewrite(
        &self,
        dataset: DatasetId,
        records: Vec<BlockPtr>,
        properties: &BTreeMap<String, String>,
    ) -> Result<Tally> {
        let Some(dataset) = self.dataset(dataset) else { return Ok(Tally::default()) };
        let settings = settings_from(dataset.settings(), properties);
        let (known, mut tally) = self.each_known(records)?;
        for one in self.encode_anew(&known, settings.codec, settings.checksum, &mut tally) {
            tally.changed += 1;
            tally.before += u64::from(one.ptr.place.footprint());
            tally.after += u64::from(larder_store::stripe::footprint(one.block.len()));
        }
        Ok(tally)
    }

    /// Those of the records that are stored otherwise than with this codec and checksum, as they would be with them.
    fn encode_anew(
        &self,
        known: &[Known],
        codec: Codec,
        checksum: ChecksumKind,
        tally: &mut Tally,
    ) -> Vec<Anew> {
        let store = &self.shared.store;
        let wanted: Vec<BlockPtr> = known.iter().map(|one| one.ptr).collect();
        let arrived = store.read_all_stored(&wanted);
        let encode = |i: usize| {
            let ptr = known[i].ptr;
            let (header, bytes) = arrived.get(&ptr.id)?;
            Some((u64::from(header.info.logical), encode(store, ptr, header, bytes, codec, checksum)))
        };
        let encoded = store.world.workers.map(known.len(), encode);
        let mut anew = Vec::new();
        for found in encoded {
            match found {
                None => tally.unread += 1,
                Some((logical, block)) => {
                    tally.read += logical;
                    anew.extend(block);
                }
            }
        }
        anew
    }

    /// Gives records new places.
    fn put_anew(&self, anew: &[Anew], tally: &mut Tally) -> Result<()> {
        let store = &self.shared.store;
        // Nothing moves or dies, and what was looked up stays true.
        let _commits_wait = self.commit_turn();
        store.check_writable()?;
        let op = self.enter()?;
        let io = RunIo::new(store);
        let (mut finder, mut lost) = (store.map.lock().finder(), LostPages::default());
        let mut moving = Vec::new();
        for one in anew {
            let found = finder.find_past(one.ptr.id, &mut lost, PoolError::is_loss, &io)?;
            let now = found.and_then(|in_runs| Entry::of(&store.map.lock().now(one.ptr.id, in_runs)));
            let Some(Entry { location: Location::Places(places), marks, .. }) = now else { continue };
            if !marks.contains(Marks::DEAD) && places.contains(&one.ptr.place) && self.may_leave(&places) {
                moving.push((one, places));
            }
        }
        let (clock, now, records) = {
            let mut core = store.core.lock();
            if moving.iter().any(|(one, _)| one.is_framed) {
                core.features.incompatible |= Features::FRAMES;
            }
            (Arc::clone(&core.clock), core.next_block, core.entries.records())
        };
        let class = |id| heat::class_of(clock.age(id, now), records);
        let classes: Vec<u8> = moving.iter().map(|(one, _)| class(one.ptr.id)).collect();
        let blocks: Vec<Encoded> = moving.iter().map(|(one, _)| one.block.clone()).collect();
        let given = store.append_by_class(&classes, &blocks, op.watermark())?;
        for ((one, old), place) in moving.iter().zip(given) {
            let places = Places::new(&[place]).expect("places that were just given out are in range");
            store.map.lock().apply(Update::Put { id: one.ptr.id, places });
            let mut core = store.core.lock();
            for &left in old.iter() {
                core.entries.change(left.segment, |entry| {
                    (entry.state, entry.dirty) = (SegmentState::Emptying, true);
                });
                core.release(left);
                tally.before += u64::from(left.footprint());
            }
            tally.changed += 1;
            tally.after += u64::from(place.footprint());
        }
        Ok(())
    }

    /// Whether the segments of these places get no more stripes.
    fn may_leave(&self, places: &Places) -> bool {
        let core = self.shared.store.core.lock();
        let is_complete = |segment| core.entries.get(&segment).is_some_and(|entry| entry.is_complete());
        places.len() == 1 && places.iter().all(|place| is_complete(place.segment))
    }
}

/// A record as it would be with this codec and checksum; nothing where it is so, or would only be larger.
fn encode(
    store: &larder_store::Store,
    ptr: BlockPtr,
    header: &CheckedHeader,
    stored: &Bytes,
    codec: Codec,
    checksum: ChecksumKind,
) -> Option<Anew> {
    let (kind, wanted) = (header.info.codec, codec.kind());
    let is_summed_so = header.info.checksum == checksum;
    let has_levels = matches!(codec, Codec::Gzip(_) | Codec::Zstd(_));
    if kind == wanted && is_summed_so && (!has_levels || kind == CodecKind::Off) {
        return None;
    }
    let plain = plain_of(header, stored, BlockKind::Record).ok()?;
    let info = BlockInfo { checksum, codec: CodecKind::Off, framed: false, ..header.info };
    let draft = draft(&store.sums, info, codec, plain);
    let (id, birth, incarnation) = (header.id, header.birth, header.incarnation);
    let (made, is_framed) = (draft.codec(), draft.is_framed());
    let block = frame(&store.sums, &Stamp { id, incarnation, birth }, draft);
    // Of the same kind it may have been made with more effort than is asked for now.
    let is_same = made == kind && is_summed_so;
    (!is_same || block.len() < stored.len()).then_some(Anew { ptr, block, is_framed })
}
