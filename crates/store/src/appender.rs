//! The pool's own blocks (nodes, runs, tables), which are replicated: appended one by one, while their stripe fills.

use crate::codec::Codec;
use crate::error::{PoolError, Result};
use crate::heat;
use crate::space::STRIPE_TARGET;
use crate::store::Store;
use crate::stripe::{self, Encoded, StripePlan};
use crate::watermark::Watermark;
use crate::write::{Bin, Placed, Tail, draft, frame, only, with};
use bytes::Bytes;
use larder_format::block::{BlockInfo, Stamp};
use larder_format::segment::{SegmentKind, stripe_header_len};
use larder_format::{BlockPtr, GroupIndex, Place};

/// Appends the pool's own blocks (nodes, runs, tables) to their stream. Each gets its place at once;
/// the stripe they share is submitted when it is full or when asked. One appender a stream at a time.
pub struct Appender<'a> {
    store: &'a Store,
    kind: SegmentKind,
    bin: Bin,
    /// Down to where segments may be opened.
    mark: Watermark,
    /// Groups that have the next block already: others are taken, if one has room.
    beside: Vec<GroupIndex>,
    stripe: Option<OpenStripe>,
}

/// A stripe that still takes blocks.
struct OpenStripe {
    tail: Tail,
    used: u32,
    blocks: Vec<Encoded>,
    spots: Vec<(usize, u32)>,
}

impl<'a> Appender<'a> {
    /// For blocks of one kind, whatever is free.
    pub fn new(store: &'a Store, kind: SegmentKind) -> Self {
        Self::of(store, kind, Bin { class: 0, copy: 0, small: false }, Watermark::Promised)
    }

    /// For further places of nodes; they leave what writers may fill.
    pub fn of_further_nodes(store: &'a Store, copy: u8) -> Self {
        Self::of(store, SegmentKind::Node, Bin { class: 0, copy, small: false }, Watermark::Accept)
    }

    /// For such places of nodes that outlived their neighbours, down to `mark`.
    pub fn of_old_nodes(store: &'a Store, copy: u8, mark: Watermark) -> Self {
        Self::of(store, SegmentKind::Node, Bin { class: heat::COLDEST, copy, small: false }, mark)
    }

    /// For further places of those, which leave what writers may fill.
    pub fn of_further_old_nodes(store: &'a Store, copy: u8) -> Self {
        Self::of(
            store,
            SegmentKind::Node,
            Bin { class: heat::COLDEST, copy, small: false },
            Watermark::Accept,
        )
    }

    fn of(store: &'a Store, kind: SegmentKind, bin: Bin, mark: Watermark) -> Self {
        Self { store, kind, bin, mark, beside: Vec::new(), stripe: None }
    }

    /// Frames and appends a block. Nodes of datasets are noted in the block map; everything else is
    /// named by place and is not.
    pub fn store(&mut self, info: BlockInfo, codec: Codec, plain: &[u8]) -> Result<BlockPtr> {
        self.store_copies(info, codec, plain, &mut [])
    }

    /// As [`Appender::store`], at a place of each of the `further` ones too, as far as these have room.
    pub fn store_copies(
        &mut self,
        info: BlockInfo,
        codec: Codec,
        plain: &[u8],
        further: &mut [Appender<'_>],
    ) -> Result<BlockPtr> {
        let draft = draft(&self.store.sums, info, codec, Bytes::copy_from_slice(plain));
        let (id, incarnation, birth) = {
            let mut core = self.store.core.lock();
            (core.take_ids(1), core.incarnation, core.open_commit)
        };
        let block = frame(&self.store.sums, &Stamp { id, incarnation, birth }, draft);
        let place = self.push(block.clone())?;
        let (mut places, mut failed) = (only(place), Ok(()));
        for other in further {
            match other.push_beside(block.clone(), &places) {
                Ok(further) => places = with(&places, further),
                Err(PoolError::NoSpace) => break,
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
        }
        if self.kind == SegmentKind::Node {
            self.store.note_born(id, places);
        }
        failed.map(|()| BlockPtr { id, place })
    }

    /// Appends a framed block that has these places besides: on another group, if one has room.
    pub fn push_beside(&mut self, block: Encoded, places: &[Place]) -> Result<Place> {
        let is_there = {
            let core = self.store.core.lock();
            self.beside = core.groups_of(places);
            let at = self.stripe.as_ref().map(|stripe| stripe.tail.segment.group);
            core.has_choice(self.kind) && at.is_some_and(|at| self.beside.contains(&at))
        };
        if is_there {
            self.submit()?;
        }
        self.push(block)
    }

    /// Appends a framed block.
    pub fn push(&mut self, block: Encoded) -> Result<Place> {
        let size = stripe::footprint(block.len());
        if self
            .stripe
            .as_ref()
            .is_some_and(|stripe| stripe.used >= STRIPE_TARGET || size > stripe.tail.limit - stripe.used)
        {
            self.submit()?;
        }
        if self.stripe.is_none() {
            self.stripe = Some(self.begin(size)?);
        }
        let stripe = self.stripe.as_mut().expect("it was just begun");
        let segment = &stripe.tail.segment;
        let at = stripe_header_len(segment.layout.columns()) + stripe.used;
        let (segment, offset) = (segment.id, stripe.tail.offset + at);
        let place = Place { segment, column: 0, offset, stored: block.len() as u32 };
        stripe.used += size;
        stripe.spots.push((0, at));
        stripe.blocks.push(block);
        // Pages of runs are counted when their run is part of the map.
        if self.kind != SegmentKind::Run {
            self.store.core.lock().count_live(segment, 1, u64::from(size));
        }
        Ok(place)
    }

    /// A stripe for a block of `size` bytes at the end of the stream's segment, or of a new one.
    fn begin(&self, size: u32) -> Result<OpenStripe> {
        let (kind, bin) = (self.kind, self.bin);
        let mut core = self.store.core.lock();
        // The root names all rooted ones: one is open at a time, not one in each group.
        let is_open = |group| {
            let mut open = core.streams.iter().filter(|((of, .., at), _)| (*of, *at) == (kind, group));
            open.any(|(_, id)| core.has_room(*id, size))
        };
        let last = |group| self.beside.contains(&group) || kind.is_rooted() && !is_open(group);
        let groups = core.groups_for(kind.into(), self.mark, last);
        let tail = groups.into_iter().find_map(|(group, mark)| core.tail_of(kind, bin, group, mark, size));
        let tail = tail.ok_or(PoolError::NoSpace)?;
        Ok(OpenStripe { tail, used: 0, blocks: Vec::new(), spots: Vec::new() })
    }

    /// Submits the stripe that is being filled.
    pub fn submit(&mut self) -> Result<()> {
        let Some(stripe) = self.stripe.take() else { return Ok(()) };
        let Tail { segment, offset, step, fresh, .. } = stripe.tail;
        let height = (stripe_header_len(segment.layout.columns()) + stripe.used).next_multiple_of(step);
        self.store.core.lock().grow(segment.id, height);
        let plan = StripePlan { spots: stripe.spots, used: vec![stripe.used], height };
        let placed = Placed { segment, offset, plan, fresh };
        self.store.submit_stripe(placed, &stripe.blocks)
    }
}
