//! A segment's blocks on their way elsewhere: what lives in its stripes is read, proven, and appended to streams. No
//! tree changes: the block map is told.

use crate::column::{Column, FailedReads};
use crate::pool::Pool;
use bytes::Bytes;
use larder_device::ALIGN;
use larder_format::checksum::fast128;
use larder_format::run::Places;
use larder_format::segment::{SegmentKind, StripeHeader, stripe_header_len};
use larder_format::{BlockId, BlockPtr, Corrupt, Place, Reason};
use larder_mutants::{Mutant, mutated};
use larder_sorted::map::{Entry, Location, LostPages, Update};
use larder_store::heat;
use larder_store::parity;
use larder_store::segments::Segment;
use larder_store::stripe::Encoded;
use larder_store::{Appender, Bin, PoolError, Readahead, Result, RunIo, Unplaced, Watermark};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A block on its way.
pub(crate) struct Moved {
    pub(crate) ptr: BlockPtr,
    /// All its places, of which this one changes.
    places: Places,
    block: Bytes,
}

impl Moved {
    /// Its other places.
    fn beside(&self) -> Option<Places> {
        let others: Vec<Place> =
            self.places.iter().copied().filter(|place| *place != self.ptr.place).collect();
        Places::new(&others).ok()
    }
}

/// Contents of a stripe.
pub(crate) struct StripeContents {
    pub(crate) live: Vec<Moved>,
    /// Number of blocks that are on a lost page of the map.
    pub(crate) unknown: u32,
    /// Some of it, or a block in it, cannot be read.
    pub(crate) unread: bool,
    /// Something could not be read that was tried: it may have taken a dying disk seconds.
    pub(crate) met_loss: bool,
}

impl Pool {
    /// Columns to read of a segment that is emptied: a copy of each data column, and all parity where a device is out
    /// or slow: its columns, and wrong bytes of others beside it, are computed then.
    pub(crate) fn columns_to_empty(&self, segment: &Segment) -> Vec<usize> {
        let layout = segment.layout;
        let member = |column: usize| self.shared.store.members.get(segment.slots[column].device);
        let is_there = |&column: &usize| member(column).is_online();
        let data = (0..layout.k()).map(|i| {
            let any = || (0..layout.r()).map(|j| layout.replica(i, j)).find(is_there);
            self.shared
                .store
                .prompt_replica(segment, i, 0)
                .or_else(any)
                .unwrap_or_else(|| layout.replica(i, 0))
        });
        let mut columns: Vec<usize> = data.collect();
        if (0..layout.columns()).any(|column| !is_there(&column) || member(column).is_slow()) {
            columns.extend((0..layout.m()).map(|p| layout.parity(p)).filter(is_there));
        }
        columns
    }

    /// The data columns of a stripe as they were read, or computed from what was, as far as their sums prove them.
    fn read_stripe(
        &self,
        segment: &Segment,
        stripe: &StripeHeader,
        body: Range<u32>,
        readahead: &mut Readahead,
    ) -> Vec<Option<Bytes>> {
        let layout = segment.layout;
        let (k, m) = (layout.k(), layout.m());
        let right = |column: usize, bytes: &[u8]| {
            stripe.sums.get(column) == Some(&fast128(&self.shared.store.sums, bytes))
        };
        let mut columns = vec![None; k + m];
        for lane in 0..readahead.lanes() {
            let column = readahead.column(lane);
            let parity = (0..m).find(|&p| layout.parity(p) == column).map(|p| k + p);
            let bytes = readahead.get(&self.shared.store, lane, body.clone());
            columns[parity.unwrap_or(lane)] = bytes.filter(|bytes| right(column, bytes));
        }
        let lacking: Vec<usize> = (0..k).filter(|&i| columns[i].is_none()).collect();
        if m > 0 && !lacking.is_empty() {
            let present: Vec<_> = columns.iter().map(Option::as_deref).collect();
            let mut computed = vec![vec![0; body.len()]; lacking.len()];
            let mut out: Vec<&mut [u8]> = computed.iter_mut().map(Vec::as_mut_slice).collect();
            if parity::reconstruct(k, m, &present, &lacking, &mut out).is_ok() {
                for (i, bytes) in lacking.into_iter().zip(computed) {
                    columns[i] = Some(Bytes::from(bytes)).filter(|bytes| right(layout.replica(i, 0), bytes));
                }
            }
        }
        columns.truncate(k);
        columns
    }

    /// Takes the last blocks out that would leave columns of a stripe short, by lifetime; about `most` bytes.
    pub(crate) fn without_row(&self, live: &mut Vec<Moved>, most: u64) -> Vec<(BlockPtr, Bytes)> {
        let (clock, now, records, columns) = {
            let core = self.shared.store.core.lock();
            let columns = core.record_groups().map(|group| group.rule.layout.k()).max().unwrap_or(1);
            (Arc::clone(&core.clock), core.next_block, core.entries.records(), columns)
        };
        let class = |moved: &Moved| heat::class_of(clock.age(moved.ptr.id, now), records);
        let mut counts: HashMap<u8, usize> = HashMap::new();
        live.iter().for_each(|moved| *counts.entry(class(moved)).or_default() += 1);
        let (mut carried, mut bytes) = (Vec::new(), 0);
        let mut at = live.len();
        while at > 0 && bytes < most {
            at -= 1;
            let count = counts.entry(class(&live[at])).or_default();
            if !count.is_multiple_of(columns) {
                *count -= 1;
                let Moved { ptr, block, .. } = live.remove(at);
                bytes += u64::from(ptr.place.footprint());
                // Else all that it was read with would be kept.
                carried.push((ptr, Bytes::copy_from_slice(&block)));
            }
        }
        carried
    }

    /// Moves what lives in some stripes; the bytes moved.
    pub(crate) fn move_all(&self, segment: &Segment, live: &[Moved], mark: Watermark) -> Result<u64> {
        let copy = segment.copy;
        let places = if segment.kind == SegmentKind::Node {
            let mut nodes = Appender::of_old_nodes(&self.shared.store, copy, mark);
            let mut places = Vec::with_capacity(live.len());
            let pushed = live.iter().try_for_each(|moved| {
                let beside = moved.beside();
                let beside = beside.as_deref().unwrap_or_default();
                nodes.push_beside(Encoded::Whole(moved.block.clone()), beside).map(|place| places.push(place))
            });
            if let Err(error) = pushed.and_then(|()| nodes.submit()) {
                let mut core = self.shared.store.core.lock();
                places.into_iter().for_each(|place| core.release(place));
                return Err(error);
            }
            places
        } else {
            let (clock, now, records, small) = {
                let core = self.shared.store.core.lock();
                let small = core.is_with_metadata(segment.id);
                (Arc::clone(&core.clock), core.next_block, core.entries.records(), small)
            };
            let age = |moved: &Moved| clock.age(moved.ptr.id, now);
            let unplaced = |moved: &Moved| {
                let bin = Bin { class: heat::class_of(age(moved), records), copy, small };
                Unplaced { bin, beside: moved.beside(), block: Encoded::Whole(moved.block.clone()) }
            };
            let unplaced: Vec<Unplaced> = live.iter().map(unplaced).collect();
            self.shared.store.append_by_class(&unplaced, mark)?
        };
        let mut bytes = 0;
        // Two places of one block may have been moved together.
        let mut told: HashMap<BlockId, Places> = HashMap::new();
        for (Moved { ptr, places: of, .. }, place) in live.iter().zip(places) {
            let of = told.get(&ptr.id).unwrap_or(of);
            let all: Vec<_> = of.iter().map(|&at| if at == ptr.place { place } else { at }).collect();
            let places = Places::new(&all).expect("places that were just given out are in range");
            if all.len() > 1 {
                told.insert(ptr.id, places);
            }
            if !mutated(Mutant::MoveNotTold) {
                self.shared.store.map.lock().apply(Update::Put { id: ptr.id, places });
            }
            self.shared.store.core.lock().release(ptr.place);
            bytes += u64::from(place.footprint());
        }
        Ok(bytes)
    }

    /// The blocks of a stripe, and those carried here, that the map has where they were; verified. Those that are known
    /// to be dead are freed.
    pub(crate) fn live_in_stripe(
        &self,
        segment: &Arc<Segment>,
        offset: u32,
        (stripe, carried): (&StripeHeader, Vec<(BlockPtr, Bytes)>),
        readahead: &mut Readahead,
        lost: &mut LostPages,
        failed: &mut FailedReads,
    ) -> Result<StripeContents> {
        let start = stripe_header_len(segment.layout.columns());
        let carried = carried.into_iter().map(|(ptr, bytes)| (ptr, Some(bytes)));
        let (mut found, mut unread): (Vec<(BlockPtr, Option<Bytes>)>, _) = (carried.collect(), false);
        let read = self.read_stripe(segment, stripe, offset + start..offset + stripe.height, readahead);
        for (i, read) in read.into_iter().enumerate() {
            let (offset, stored) = (offset + start, stripe.height - start);
            let whole = Place { segment: segment.id, column: i as u8, offset, stored };
            let sum = stripe.sums.get(segment.layout.replica(i, 0));
            let column = match read {
                Some(bytes) => Column::of(whole, bytes),
                None => Column::read(&self.shared.store, segment, whole, sum, failed),
            };
            let candidates = column.candidates(&self.shared.store.sums);
            found.extend(candidates.blocks);
            unread |= candidates.unread;
        }
        let io = RunIo::new(&self.shared.store);
        found.sort_unstable_by_key(|(ptr, _)| (ptr.id, ptr.place.column, ptr.place.offset));
        // One that moved twice would be released twice.
        found.dedup_by_key(|(ptr, _)| (ptr.id, ptr.place));
        let mut finder = self.shared.store.map.lock().finder();
        let known_lost = lost.count();
        let (mut live, mut unknown) = (Vec::new(), 0);
        for (ptr, bytes) in found {
            let Some(in_runs) = finder.find_past(ptr.id, lost, PoolError::is_loss, &io)? else {
                unknown += 1;
                continue;
            };
            let known = Entry::of(&self.shared.store.map.lock().now(ptr.id, in_runs));
            let Some(entry) = known else { continue };
            let Location::Places(places) = entry.location else { continue };
            if !places.contains(&ptr.place) {
                continue;
            }
            if self.shared.freeing.free_dead(ptr.id, entry) {
                continue;
            }
            let is_cut = bytes.is_none();
            let block = match bytes.filter(|bytes| self.shared.store.prove(ptr.id, bytes).is_some()) {
                Some(block) => block,
                // Whatever has it was asked for it. It stays, and the segment's end tells of it.
                None if is_cut && places.len() == 1 => {
                    unread = true;
                    continue;
                }
                None => match self.shared.store.read_any_place(ptr) {
                    Ok((_, block)) => block,
                    // It stays as well.
                    Err(error) if error.is_loss() => {
                        unread = true;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            live.push(Moved { ptr, places, block });
        }
        // As they lay: what was written together stays together.
        live.sort_unstable_by_key(|moved| (moved.ptr.place.offset, moved.ptr.place.column));
        Ok(StripeContents { live, unknown, unread, met_loss: unread || lost.count() > known_lost })
    }

    /// The header of the stripe at `offset`, from whichever column has it.
    pub(crate) fn stripe_header(
        &self,
        segment: &Segment,
        offset: u32,
        readahead: &mut Readahead,
    ) -> Result<StripeHeader> {
        let check = |bytes: &[u8]| {
            let stripe = StripeHeader::check(&self.shared.store.sums, bytes).ok()?;
            (stripe.segment == segment.id && stripe.offset == offset && stripe.height > 0).then_some(stripe)
        };
        let range = offset..offset + ALIGN as u32;
        let mut wrong = false;
        let read = (0..readahead.lanes()).find_map(|lane| {
            let found = check(&readahead.get(&self.shared.store, lane, range.clone())?);
            wrong |= found.is_none();
            found
        });
        let elsewhere = || {
            (0..segment.layout.columns()).find_map(|column| {
                let slot = segment.slots[column].get();
                let member = self.shared.store.members.get(slot.device);
                let pending = member.read(member.slot_offset(slot.index, offset), ALIGN)?;
                check(&member.wait(pending).ok()?)
            })
        };
        let found = read.or_else(elsewhere);
        // Wrong headers are reconstructed; those missing because a device is out are not.
        if wrong && found.is_some() {
            self.shared.store.suspects.note(segment.id, offset, 0);
        }
        found.ok_or_else(|| Corrupt::new("row header", Reason::Short).into())
    }
}
