//! The cleaner: moves what lives in thin segments, so that whole segments become free.
//!
//! A block's id stays; only the block map learns another place. Trees and snapshots are not touched:
//! their hints go on being good while the old segment is in the table, and lead to the map afterwards.
//! A step empties one segment between two commits; the commit that follows frees it, together with
//! the map's update. A crash before that commit leaves the old places, which are still there.
//!
//! What lives in a segment is found by walking its rows and asking the map whether a block is still
//! here; blocks that were dropped since the last commit are moved too, and die at their new place.

use crate::core::Core;
use crate::error::{PoolError, Result};
use crate::map::Update;
use crate::pool::Pool;
use crate::row::Encoded;
use crate::segments::Segment;
use crate::write::Appender;
use larder_device::ALIGN;
use larder_format::block::CheckedHeader;
use larder_format::checksum::fast128;
use larder_format::run::Places;
use larder_format::segment::{DESCRIPTOR_LEN, RowHeader, SegmentKind, SegmentState, row_header_len};
use larder_format::{BlockPtr, Place, SegmentId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Cleaning starts when less than this part of a group is free above the reserve.
const START_AT: u64 = 8;
/// Segments with more than this many percent alive are not worth moving.
const WORTHWHILE_PERCENT: u64 = 85;
/// Bytes that the steps after one commit move, at most.
const BYTES_PER_COMMIT: u64 = 64 << 20;
/// Commits that it takes until the slots of a segment that was emptied can be written again: the one
/// that frees it, and the two that root ring and readers are owed.
const COMMITS_TO_FREE: usize = 3;

/// A segment worth emptying.
struct Victim {
    segment: Arc<Segment>,
    height: u32,
    live_bytes: u64,
}

impl Core {
    /// The segment that gives most space for what must be moved; none when nothing is worth it.
    fn victim(&self) -> Option<Victim> {
        let candidates = self.entries.values().filter(|entry| {
            let movable =
                matches!(entry.segment.kind, SegmentKind::Data | SegmentKind::Small | SegmentKind::Node);
            movable && entry.state == SegmentState::Closed && entry.live_blocks > 0
        });
        let thin = |live: u64, entry: &crate::segments::SegmentEntry| {
            let capacity = u64::from(entry.height) * entry.segment.layout.k() as u64;
            live * 100 / capacity.max(1)
        };
        let best = candidates.min_by_key(|entry| (thin(entry.live_bytes, entry), entry.segment.id))?;
        (thin(best.live_bytes, best) <= WORTHWHILE_PERCENT).then(|| Victim {
            segment: Arc::clone(&best.segment),
            height: best.height,
            live_bytes: best.live_bytes,
        })
    }

    /// Whether some group runs low.
    fn runs_low(&self) -> bool {
        self.groups
            .values()
            .any(|group| group.free_segments() < group.reserve() + group.total_segments() / START_AT)
    }

    /// Whether the cleaner may open a segment and still leave room to `dirty` bytes that were accepted: a
    /// commit that cannot store them would fail, and nothing be freed ever after.
    fn can_spare(&self, dirty: u64) -> bool {
        let room = self.groups.values().map(|group| {
            let segments = group.free_segments().saturating_sub(group.reserve() / 2 + 1);
            segments * u64::from(group.slot_size) * group.rule.layout.k() as u64
        });
        room.sum::<u64>() > dirty
    }

    /// Segments that are free as soon as enough commits are durable.
    pub(crate) fn waiting_to_be_free(&self) -> bool {
        let dead = |entry: &crate::segments::SegmentEntry| match entry.state {
            SegmentState::Freed => true,
            SegmentState::Closed => entry.live_blocks == 0 && entry.segment.kind != SegmentKind::Run,
            SegmentState::Open => false,
        };
        self.entries.values().any(|entry| dead(entry) && !entry.segment.kind.is_rooted())
    }
}

impl Pool {
    /// Empties thin segments when a group runs low; at most some 64 MiB at a time. The commit lock is held.
    pub(crate) fn clean_if_low(&self) -> Result<()> {
        self.clean(Core::runs_low)
    }

    /// Empties segments while `go_on` says so, something is worth it, there is room to move to, and not
    /// much has been moved since the last commit.
    fn clean(&self, go_on: impl Fn(&Core) -> bool) -> Result<()> {
        let mut moved = 0;
        let go_on = |core: &Core| go_on(core) && core.can_spare(self.dirty.needed());
        while moved < BYTES_PER_COMMIT && go_on(&self.core.lock()) {
            match self.clean_one() {
                Ok(Some(bytes)) => moved += bytes.max(1),
                Ok(None) | Err(PoolError::NoSpace) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Wins back dead space until `bytes` can be written, or nothing more can be won. Must not be called
    /// while an [`crate::Op`] is held.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] when it cannot.
    pub(crate) fn reclaim(&self, bytes: u64, record_size: u32) -> Result<()> {
        let _one_at_a_time = self.reclaiming.lock();
        let enough = || self.space(record_size).available >= bytes;
        loop {
            if enough() {
                return Ok(());
            }
            // Nothing changed since the last attempt failed: it would fail again.
            if self.exhausted.load(Ordering::Acquire) == self.durable_commit().get() {
                return Err(PoolError::NoSpace);
            }
            let before = self.core.lock().groups.values().map(|group| group.free_segments()).sum::<u64>();
            self.free_what_can_be()?;
            let after = self.core.lock().groups.values().map(|group| group.free_segments()).sum::<u64>();
            if after <= before && !enough() {
                self.exhausted.store(self.durable_commit().get(), Ordering::Release);
                return Err(PoolError::NoSpace);
            }
        }
    }

    /// Stores and commits what was accepted, as much of it as fits, so that what it replaces gets free; then cleans.
    fn free_what_can_be(&self) -> Result<()> {
        self.free_deleted();
        self.commit_what_fits()?;
        {
            let _commits_wait = self.commit_lock.lock();
            self.clean(|_| true)?;
        }
        for _ in 0..COMMITS_TO_FREE {
            self.commit_what_fits()?;
        }
        Ok(())
    }

    /// Goes on with a commit that had no room for all that was accepted: storing a part of it frees what that
    /// replaces. Gives up when a round brings nothing.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] then.
    pub(crate) fn make_commit_fit(&self) -> Result<()> {
        let free = || self.core.lock().groups.values().map(|group| group.free_segments()).sum::<u64>();
        let (needed_before, free_before) = (self.dirty.needed(), free());
        self.free_what_can_be()?;
        // Others may write meanwhile: either is progress.
        let brought = self.dirty.needed() < needed_before || free() > free_before;
        if brought { Ok(()) } else { Err(PoolError::NoSpace) }
    }

    /// Empties the thinnest segment; returns the bytes moved, or none when no segment is worth it.
    fn clean_one(&self) -> Result<Option<u64>> {
        let Some(victim) = self.core.lock().victim() else { return Ok(None) };
        let op = self.enter()?;
        let mut blocks: Vec<(BlockPtr, Encoded)> = Vec::new();
        for column in 0..victim.segment.layout.k() {
            self.live_in_column(&victim, column, &mut blocks)?;
        }
        let places = if victim.segment.kind == SegmentKind::Node {
            let mut nodes = Appender::new(self, SegmentKind::Node);
            let places: Result<Vec<Place>> =
                blocks.iter().map(|(_, block)| nodes.push(block.clone())).collect();
            nodes.submit()?;
            places?
        } else {
            let raw: Vec<Encoded> = blocks.iter().map(|(_, block)| block.clone()).collect();
            self.append_whole(&raw)?
        };
        for ((ptr, _), place) in blocks.iter().zip(places) {
            let places = Places::new(&[place]).expect("places that were just given out are in range");
            self.map.lock().apply(Update::Put { id: ptr.id, places });
            self.core.lock().release(ptr.place);
        }
        drop(op);
        self.cleaned.fetch_add(victim.live_bytes, Ordering::Relaxed);
        let left = self.core.lock().entries.get(&victim.segment.id).map_or(0, |entry| entry.live_blocks);
        if left > 0 {
            let id = victim.segment.id;
            return Err(
                self.suspend(format!("segment {id} counts {left} live blocks that cannot be found in it"))
            );
        }
        Ok(Some(victim.live_bytes))
    }

    /// The blocks of one data column that the map places there, verified.
    fn live_in_column(
        &self,
        victim: &Victim,
        column: usize,
        live: &mut Vec<(BlockPtr, Encoded)>,
    ) -> Result<()> {
        let segment = &victim.segment;
        let mut offset = DESCRIPTOR_LEN;
        while offset < victim.height {
            let row = self.any_row_header(segment, offset)?;
            let start = row_header_len(segment.layout.columns());
            // The column as it is, or computed: its own header may be lost, so blocks end where none follows.
            let whole = Place {
                segment: segment.id,
                column: column as u8,
                offset: offset + start,
                stored: row.height - start,
            };
            let sum = row.sums.get(segment.layout.replica(column, 0));
            let bytes = self.read_range(segment, whole, |bytes| sum == Some(&fast128(self.guid, bytes)));
            let mut at = 0usize;
            while let Some(header) =
                bytes.get(at..).and_then(|rest| CheckedHeader::check(self.guid, rest).ok())
            {
                let place = Place {
                    segment: segment.id,
                    column: column as u8,
                    offset: offset + start + at as u32,
                    stored: header.stored(),
                };
                let ptr = BlockPtr { id: header.id, place };
                if Core::look_up(self, header.id)? == Some(place) {
                    let (_, block) = self.read_stored(segment, ptr)?;
                    live.push((ptr, Encoded::Whole(block)));
                }
                at += header.footprint() as usize;
            }
            offset += row.height;
        }
        Ok(())
    }

    /// The header of the row at `offset`, from whichever column has it.
    fn any_row_header(&self, segment: &Segment, offset: u32) -> Result<RowHeader> {
        (0..segment.layout.columns())
            .find_map(|column| {
                let slot = segment.slots[column];
                let member = self.members.get(slot.device);
                let bytes = member.read(member.slot_offset(slot.index, offset), ALIGN)?.wait().ok()?;
                let row = RowHeader::check(self.guid, &bytes).ok()?;
                (row.segment == segment.id && row.offset == offset && row.height > 0).then_some(row)
            })
            .ok_or_else(|| larder_format::Corrupt::new("row header", larder_format::Reason::Short).into())
    }

    /// Bytes that the cleaner moved since import.
    pub fn cleaned_bytes(&self) -> u64 {
        self.cleaned.load(Ordering::Relaxed)
    }
}

/// Segments whose hints do not tell a block's place any more: emptied ones, and those gone.
pub(crate) fn hint_is_stale(core: &Core, segment: SegmentId) -> bool {
    core.entries.get(&segment).is_none_or(|entry| entry.live_blocks == 0)
}
