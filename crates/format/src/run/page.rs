//! Entry pages: the encoding that the module above describes.

use super::{
    Delta, MAX_PLACES, Marks, PAGE_MAX, PageHead, PageKind, Places, RunId, Target, WHAT, check_head,
};
use crate::error::ensure;
use crate::field::Field;
use crate::segment::{MAX_COLUMNS, MAX_SLOT};
use crate::{BLOCK_STEP, BlockId, Corrupt, Fingerprint, Place, Reason, SegmentId};
use std::sync::Arc;

/// Entries between two points where decoding can begin.
pub const RESTART_EVERY: usize = 64;

const KEEP: u8 = 0;
const ALIAS: u8 = 1;
const DELETED: u8 = 2;
const PLACES: u8 = 3; // and 4 and 5: one, two, three places
/// One place and a fingerprint: what a record is that was stored with dedup on.
const PRINTED: u8 = PLACES + MAX_PLACES as u8;
const KIND_BITS: u8 = 0b111;
const HAS_MARKS: u8 = 1 << 3;
const NEXT_ID: u8 = 1 << 4;
const SAME_SEGMENT: u8 = 1 << 5;
const SAME_COLUMN: u8 = 1 << 6;
const CONTIGUOUS: u8 = 1 << 7;
const PLACE_BITS: u8 = SAME_SEGMENT | SAME_COLUMN | CONTIGUOUS;
/// No entry takes more: tag, id, marks, fingerprint and three places of tag, segment, column, offset and length.
const ENTRY_MAX: usize = 1 + 10 + 2 + Fingerprint::SIZE + MAX_PLACES * (1 + 10 + 1 + 5 + 5);

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads from a page's body; running past its end is an error.
struct Source<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Source<'_> {
    fn byte(&mut self) -> Result<u8, Corrupt> {
        let byte = *self.bytes.get(self.at).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, Corrupt> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            ensure(shift < 63 || bits <= 1, WHAT, Reason::Range)?;
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Corrupt::new(WHAT, Reason::Range))
    }

    fn print(&mut self) -> Result<Fingerprint, Corrupt> {
        let end = self.at + Fingerprint::SIZE;
        let bytes = self.bytes.get(self.at..end).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        self.at = end;
        Ok(Fingerprint::load(bytes))
    }

    fn near(&mut self, expected: u64) -> Result<u64, Corrupt> {
        Ok(expected.wrapping_add_signed(unzigzag(self.varint()?)))
    }
}

/// Prediction of the next place; one lane for each place that a block may have.
#[derive(Debug, Clone)]
struct Lane {
    segment: u64,
    column: u8,
    stored: u32,
    /// Where the last block ended in each column, in [`BLOCK_STEP`]s.
    ends: [u32; MAX_COLUMNS],
}

impl Lane {
    const START: Self = Self { segment: 0, column: 0, stored: 0, ends: [0; MAX_COLUMNS] };

    fn enter(&mut self, segment: u64) {
        if segment != self.segment {
            self.segment = segment;
            self.ends = [0; MAX_COLUMNS];
        }
    }

    fn saw(&mut self, place: &Place) {
        self.column = place.column;
        self.stored = place.stored;
        self.ends[usize::from(place.column)] = (place.offset + place.footprint()) / BLOCK_STEP;
    }
}

/// Expectations, the same while encoding and decoding.
#[derive(Debug, Clone)]
struct Coder {
    id: u64,
    lanes: [Lane; MAX_PLACES],
}

impl Coder {
    fn restart(first: BlockId) -> Self {
        Self { id: first.get(), lanes: [Lane::START; MAX_PLACES] }
    }

    fn encode(&mut self, restart: bool, id: BlockId, delta: &Delta, out: &mut Vec<u8>) {
        let tag_at = out.len();
        let mut tag = match delta.target {
            Target::Keep => KEEP,
            Target::Alias(_) => ALIAS,
            Target::Deleted => DELETED,
            Target::Places(places) if places.len() == 1 && delta.print.is_some() => PRINTED,
            Target::Places(places) => PLACES + places.len() as u8 - 1,
        };
        let implied = implied_marks(tag);
        out.push(0);
        let distance = id.get() - self.id;
        if distance == 1 && !restart {
            tag |= NEXT_ID;
        } else {
            put_varint(out, distance);
        }
        self.id = id.get();
        if (delta.set, delta.clear) != implied {
            tag |= HAS_MARKS;
            out.extend([delta.set.0, delta.clear.0]);
        }
        if let Some(print) = delta.print {
            let at = out.len();
            out.resize(at + Fingerprint::SIZE, 0);
            print.store(&mut out[at..]);
        }
        match delta.target {
            Target::Alias(other) => put_varint(out, other.get()),
            Target::Places(places) => {
                for (i, place) in places.iter().enumerate() {
                    if i == 0 {
                        tag |= self.encode_place(0, place, out);
                    } else {
                        let at = out.len();
                        out.push(0);
                        // Copies of one block are equally long, unless recompressed.
                        self.lanes[i].stored = self.lanes[0].stored;
                        out[at] = self.encode_place(i, place, out);
                    }
                }
            }
            Target::Keep | Target::Deleted => {}
        }
        out[tag_at] = tag;
    }

    fn encode_place(&mut self, lane: usize, place: &Place, out: &mut Vec<u8>) -> u8 {
        let lane = &mut self.lanes[lane];
        let mut tag = 0;
        let segment = place.segment.get();
        if segment == lane.segment {
            tag |= SAME_SEGMENT;
        } else {
            put_varint(out, zigzag(segment.wrapping_sub(lane.segment) as i64));
        }
        lane.enter(segment);
        if place.column == lane.column {
            tag |= SAME_COLUMN;
        } else {
            out.push(place.column);
        }
        let (steps, expected) = (place.offset / BLOCK_STEP, lane.ends[usize::from(place.column)]);
        if steps == expected {
            tag |= CONTIGUOUS;
        } else {
            put_varint(out, zigzag(i64::from(steps) - i64::from(expected)));
        }
        put_varint(out, zigzag(i64::from(place.stored) - i64::from(lane.stored)));
        lane.saw(place);
        tag
    }

    fn decode(&mut self, restart: bool, from: &mut Source<'_>) -> Result<(BlockId, Delta), Corrupt> {
        let tag = from.byte()?;
        let kind = tag & KIND_BITS;
        ensure(kind <= PRINTED, WHAT, Reason::Kind)?;
        ensure(kind >= PLACES || tag & PLACE_BITS == 0, WHAT, Reason::Range)?;
        ensure(!(restart && tag & NEXT_ID != 0), WHAT, Reason::Range)?;
        let distance = if tag & NEXT_ID != 0 { 1 } else { from.varint()? };
        ensure(restart || distance > 0, WHAT, Reason::Order)?;
        self.id = self.id.checked_add(distance).ok_or(Corrupt::new(WHAT, Reason::Range))?;
        let mut delta = if kind == DELETED { Delta::DELETE } else { Delta::NONE };
        (delta.set, delta.clear) = implied_marks(kind);
        if tag & HAS_MARKS != 0 {
            (delta.set, delta.clear) = (Marks(from.byte()?), Marks(from.byte()?));
            ensure(delta.set.0 & delta.clear.0 == 0, WHAT, Reason::Range)?;
            ensure(kind != DELETED || delta.set.with(delta.clear) == Marks::ALL, WHAT, Reason::Range)?;
        }
        let printed = delta.set.contains(Marks::INDEXED);
        // A place with a fingerprint has a kind of its own.
        ensure(if printed { kind != PLACES } else { kind != PRINTED }, WHAT, Reason::Range)?;
        delta.print = printed.then(|| from.print()).transpose()?;
        if kind == ALIAS {
            let other = from.varint()?;
            ensure(other != self.id, WHAT, Reason::Range)?;
            delta.target = Target::Alias(BlockId::new(other));
        } else if kind >= PLACES {
            let mut places = [self.decode_place(0, tag, from)?; MAX_PLACES];
            let len = if kind == PRINTED { 1 } else { usize::from(kind - PLACES) + 1 };
            for (i, place) in places.iter_mut().enumerate().take(len).skip(1) {
                let tag = from.byte()?;
                ensure(tag & !PLACE_BITS == 0, WHAT, Reason::Range)?;
                self.lanes[i].stored = self.lanes[0].stored;
                *place = self.decode_place(i, tag, from)?;
            }
            delta.target = Target::Places(Places { len: len as u8, at: pad(places, len) });
        } else {
            ensure(delta != Delta::NONE, WHAT, Reason::Range)?;
        }
        Ok((BlockId::new(self.id), delta))
    }

    fn decode_place(&mut self, lane: usize, tag: u8, from: &mut Source<'_>) -> Result<Place, Corrupt> {
        let lane = &mut self.lanes[lane];
        let segment = if tag & SAME_SEGMENT != 0 { lane.segment } else { from.near(lane.segment)? };
        lane.enter(segment);
        let column = if tag & SAME_COLUMN != 0 { lane.column } else { from.byte()? };
        ensure(usize::from(column) < MAX_COLUMNS, WHAT, Reason::Range)?;
        let expected = u64::from(lane.ends[usize::from(column)]);
        let steps = if tag & CONTIGUOUS != 0 { expected } else { from.near(expected)? };
        let stored = from.near(u64::from(lane.stored))?;
        let slot = u64::from(MAX_SLOT);
        ensure(steps <= slot && stored > 0 && stored <= slot, WHAT, Reason::Range)?;
        ensure(steps * u64::from(BLOCK_STEP) + stored <= slot, WHAT, Reason::Range)?;
        let place = Place {
            segment: SegmentId::new(segment),
            column,
            offset: steps as u32 * BLOCK_STEP,
            stored: stored as u32,
        };
        lane.saw(&place);
        Ok(place)
    }
}

/// The marks that an entry of this kind sets and clears when it does not say.
fn implied_marks(kind: u8) -> (Marks, Marks) {
    match kind {
        DELETED => (Marks::NONE, Marks::ALL),
        PRINTED => (Marks::INDEXED, Marks::NONE),
        _ => (Marks::NONE, Marks::NONE),
    }
}

/// Unused places are all zero, so that equal places compare equal.
fn pad(mut places: [Place; MAX_PLACES], len: usize) -> [Place; MAX_PLACES] {
    places[len..].fill(Place { segment: SegmentId::new(0), column: 0, offset: 0, stored: 0 });
    places
}

/// Collects entries into the payload of one page after the other.
#[derive(Debug)]
pub struct PageBuilder {
    run: RunId,
    number: u32,
    count: u16,
    first: BlockId,
    restarts: Vec<u16>,
    body: Vec<u8>,
    coder: Coder,
}

impl PageBuilder {
    /// A builder of run `run`'s pages, from number 0.
    pub fn new(run: RunId) -> Self {
        let first = BlockId::new(0);
        Self {
            run,
            number: 0,
            count: 0,
            first,
            restarts: Vec::new(),
            body: Vec::new(),
            coder: Coder::restart(first),
        }
    }

    /// Whether the page has no entry yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the next entry might not fit.
    pub fn is_full(&self) -> bool {
        let len = PageHead::SIZE + 2 * (self.restarts.len() + 1) + self.body.len();
        len + ENTRY_MAX > PAGE_MAX || self.count == u16::MAX
    }

    /// Adds an entry.
    ///
    /// # Panics
    /// When the page is full, when ids do not ascend, when the delta changes nothing, or when it has a fingerprint
    /// without its mark or the mark alone.
    pub fn push(&mut self, id: BlockId, delta: &Delta) {
        assert!(!self.is_full(), "a full page takes no entry");
        assert!(self.is_empty() || id.get() > self.coder.id, "ids ascend");
        assert!(*delta != Delta::NONE, "an entry says something");
        assert_eq!(delta.print.is_some(), delta.set.contains(Marks::INDEXED), "a fingerprint has its mark");
        if self.is_empty() {
            self.first = id;
        }
        let restart = usize::from(self.count).is_multiple_of(RESTART_EVERY);
        if restart {
            self.restarts.push(self.body.len() as u16);
            self.coder = Coder::restart(self.first);
        }
        self.coder.encode(restart, id, delta, &mut self.body);
        self.count += 1;
    }

    /// The page's payload; the builder goes on with the next page.
    ///
    /// # Panics
    /// When the page is empty.
    pub fn finish(&mut self) -> Vec<u8> {
        assert!(!self.is_empty(), "an empty page is not written");
        let mut out = vec![0; PageHead::SIZE];
        PageHead {
            run: self.run,
            number: self.number,
            kind: PageKind::MapEntries as u8,
            height: 0,
            count: self.count,
            first: self.first,
            restarts: self.restarts.len() as u16,
            body: self.body.len() as u16,
        }
        .put(&mut out);
        self.restarts.iter().for_each(|at| out.extend(at.to_le_bytes()));
        out.append(&mut self.body);
        self.restarts.clear();
        self.count = 0;
        self.number += 1;
        out
    }
}

/// An entry page whose head has been verified; its entries are verified as they are read. For look-ups,
/// which read a few of the thousands.
#[derive(Debug, Clone, Copy)]
pub struct LazyPage<'a> {
    restarts: &'a [u8],
    body: &'a [u8],
    count: usize,
    first: BlockId,
}

impl<'a> LazyPage<'a> {
    /// Verifies that `bytes` are entry page `number` of run `run`.
    pub fn open(bytes: &'a [u8], run: RunId, number: u32) -> Result<Self, Corrupt> {
        let head = check_head(bytes, PageKind::MapEntries, run, 0, number)?;
        let (count, restarts) = (usize::from(head.count), usize::from(head.restarts));
        ensure(restarts == count.div_ceil(RESTART_EVERY), WHAT, Reason::Range)?;
        let body_at = PageHead::SIZE + 2 * restarts;
        let len = body_at + usize::from(head.body);
        ensure(bytes.len() >= len, WHAT, Reason::Short)?;
        ensure(bytes.len() == len && len <= PAGE_MAX, WHAT, Reason::Range)?;
        let (restarts, body) = (&bytes[PageHead::SIZE..body_at], &bytes[body_at..]);
        Ok(Self { restarts, body, count, first: head.first })
    }

    /// Its first id, as the head has it.
    pub fn first(&self) -> BlockId {
        self.first
    }

    /// The page's entry for `id`.
    pub fn find(&self, id: BlockId) -> Result<Option<Delta>, Corrupt> {
        if id < self.first {
            return Ok(None);
        }
        let mut cursor = PageCursor::restart_before(self, id)?;
        while let Some((found, delta)) = cursor.step(self)? {
            if found >= id {
                return Ok((found == id).then_some(delta));
            }
        }
        Ok(None)
    }

    fn restart(&self, i: usize) -> usize {
        usize::from(u16::from_le_bytes([self.restarts[2 * i], self.restarts[2 * i + 1]]))
    }

    /// The id of the entry at restart `i`.
    fn restart_id(&self, i: usize) -> Result<BlockId, Corrupt> {
        // Such an entry has its id right behind the tag.
        let distance = Source { bytes: self.body, at: self.restart(i) + 1 }.varint()?;
        let id = self.first.get().checked_add(distance).ok_or(Corrupt::new(WHAT, Reason::Range))?;
        Ok(BlockId::new(id))
    }
}

/// An entry page that has been verified whole, kept as its bytes.
#[derive(Debug, Clone)]
pub struct RunPage {
    bytes: Arc<[u8]>,
    count: usize,
    first: BlockId,
    last: BlockId,
    /// Where the body starts.
    body_at: usize,
}

impl RunPage {
    /// Verifies that `bytes` are entry page `number` of run `run` and that every entry decodes.
    pub fn decode(bytes: Arc<[u8]>, run: RunId, number: u32) -> Result<Self, Corrupt> {
        let page = LazyPage::open(&bytes, run, number)?;
        let mut cursor = PageCursor::start(page.first);
        let mut last = None;
        loop {
            if cursor.index < page.count && cursor.index.is_multiple_of(RESTART_EVERY) {
                ensure(page.restart(cursor.index / RESTART_EVERY) == cursor.at, WHAT, Reason::Range)?;
            }
            let Some((id, _)) = cursor.step(&page)? else { break };
            let in_order = last.map_or(id == page.first, |last| id > last);
            ensure(in_order, WHAT, Reason::Order)?;
            last = Some(id);
        }
        ensure(cursor.at == page.body.len(), WHAT, Reason::Range)?;
        let (count, first, body_at) = (page.count, page.first, bytes.len() - page.body.len());
        Ok(Self { count, first, last: last.unwrap_or(first), body_at, bytes })
    }

    /// An entry page of whichever run it says: for who looks for pages that nothing names any more.
    pub fn of_any_run(bytes: Arc<[u8]>) -> Result<(RunId, Self), Corrupt> {
        let head = PageHead::get(&bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        Ok((head.run, Self::decode(bytes, head.run, head.number)?))
    }

    /// Entries in it.
    #[expect(clippy::len_without_is_empty, reason = "no page is empty")]
    pub fn len(&self) -> usize {
        self.count
    }
    /// Its first id.
    pub fn first(&self) -> BlockId {
        self.first
    }
    /// Its last id.
    pub fn last(&self) -> BlockId {
        self.last
    }
    /// Its payload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The page's entry for `id`.
    pub fn find(&self, id: BlockId) -> Option<Delta> {
        self.verified().find(id).expect("the page was verified")
    }

    fn verified(&self) -> LazyPage<'_> {
        LazyPage {
            restarts: &self.bytes[PageHead::SIZE..self.body_at],
            body: &self.bytes[self.body_at..],
            count: self.count,
            first: self.first,
        }
    }
}

/// A position between two entries of a page. The page is handed in at each step.
#[derive(Debug, Clone)]
pub struct PageCursor {
    index: usize,
    at: usize,
    coder: Coder,
}

impl PageCursor {
    fn start(first: BlockId) -> Self {
        Self { index: 0, at: 0, coder: Coder::restart(first) }
    }

    /// At the last restart whose entry is not behind `id`, or at the first.
    fn restart_before(page: &LazyPage<'_>, id: BlockId) -> Result<Self, Corrupt> {
        let (mut low, mut high) = (0, page.count.div_ceil(RESTART_EVERY));
        while high - low > 1 {
            let middle = low.midpoint(high);
            if page.restart_id(middle)? <= id {
                low = middle;
            } else {
                high = middle;
            }
        }
        let (index, at) = (low * RESTART_EVERY, page.restart(low));
        Ok(Self { index, at, coder: Coder::restart(page.first) })
    }

    /// Before the first entry whose id is `id` or more.
    pub fn seek(page: &RunPage, id: BlockId) -> Self {
        if id <= page.first {
            return Self::start(page.first);
        }
        let mut cursor = Self::restart_before(&page.verified(), id).expect("the page was verified");
        loop {
            let before = cursor.clone();
            if cursor.next(page).is_none_or(|(found, _)| found >= id) {
                return before;
            }
        }
    }

    /// The next entry of `page`, which must be the page that the cursor was made for.
    pub fn next(&mut self, page: &RunPage) -> Option<(BlockId, Delta)> {
        self.step(&page.verified()).expect("the page was verified")
    }

    fn step(&mut self, page: &LazyPage<'_>) -> Result<Option<(BlockId, Delta)>, Corrupt> {
        if self.index == page.count {
            return Ok(None);
        }
        let restart = self.index.is_multiple_of(RESTART_EVERY);
        if restart {
            self.coder = Coder::restart(page.first);
        }
        let mut source = Source { bytes: page.body, at: self.at };
        let entry = self.coder.decode(restart, &mut source)?;
        self.at = source.at;
        self.index += 1;
        Ok(Some(entry))
    }
}
