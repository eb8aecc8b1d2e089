//! Sending a snapshot: what its tree has and that of an earlier one has not, in the order of keys, with the records as
//! they are stored.
//!
//! **Sharing.** A record that an extent names which came before in the stream, or that the earlier snapshot has, is not
//! sent again: the extent says where the other one is. Of what was sent the last [`REMEMBERED`] records are known by
//! their ids; of others, and of those of the earlier snapshot, the block's header tells which file it was written for.
//! Where that has another one by now, all of the earlier snapshot is looked through for those that are still to come:
//! once, and its tree alone. What is not found even so is sent again.
//!
//! **From a bookmark.** The earlier snapshot is gone, and what it had is told by ids: nodes that it had stay, what is
//! not below one is told whole. An extent tells whether the earlier snapshot had its record at this place; if it had,
//! nothing is read. What it had elsewhere, and the later one has not where it was written for, is sent again.
//!
//! **Reading ahead.** While a chunk is checked and goes out the records of the next one are read.
//!
//! Memory: two chunks, and what is remembered.

use crate::error::StreamError;
use crate::wire::{Begin, Cover, End, Item, Place, Stored};
use bytes::Bytes;
use larder_format::block::{CheckedHeader, content_len};
use larder_format::bookmark::BookmarkRecord;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr};
use larder_pool::{Changes, ChangesSince, Differs, Look, Pool, PoolError, SnapshotView, Told};
use larder_store::Fetch;
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;

/// Records that are known by their ids.
const REMEMBERED: usize = 1 << 18;
/// Items of a chunk.
const ITEMS: usize = 2048;
/// Stored bytes of a chunk, from which on it ends.
const BYTES: u64 = 4 << 20;
/// Nodes that are read at a time.
const NODES: usize = 8;

/// Bytes of items, but for values and records.
const REMOVE: u64 = 18;
const PUT: u64 = 20;
const DATA: u64 = 35;
const SAME: u64 = 54;

/// A record that was sent: where to.
type Known = (u64, u64);

/// Snapshot that another one builds upon.
#[derive(Clone, Copy)]
pub enum Base<'a> {
    /// None: all of it is new.
    Nothing,
    /// One that is there.
    Snapshot(&'a SnapshotView),
    /// One that is gone, of which the other came ([`Pool::came_of`]).
    Bookmark(&'a BookmarkRecord),
}

impl<'a> From<Option<&'a SnapshotView>> for Base<'a> {
    fn from(view: Option<&'a SnapshotView>) -> Self {
        view.map_or(Self::Nothing, Self::Snapshot)
    }
}

impl<'a> Base<'a> {
    fn guid(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Snapshot(view) => view.record().guid,
            Self::Bookmark(mark) => mark.guid,
        }
    }

    /// Above this id it had nothing.
    fn high(&self) -> BlockId {
        match self {
            Self::Nothing => BlockId::new(0),
            Self::Snapshot(view) => view.record().high,
            Self::Bookmark(mark) => mark.high,
        }
    }

    fn view(&self) -> Option<&'a SnapshotView> {
        match self {
            Self::Snapshot(view) => Some(view),
            _ => None,
        }
    }
}

/// A walk over what changed.
enum Walk<'a> {
    Between(Changes<'a>),
    Since(ChangesSince<'a>, &'a BookmarkRecord),
}

/// A change of the tree, as it was found.
enum Found {
    Clear(Key),
    Keep(Key),
    Remove(Key),
    Put(Key, Vec<u8>),
    /// Also the record that was there before.
    Extent(Key, Extent, Option<BlockId>),
}

/// A chunk whose records are being read.
struct Coming {
    batch: Vec<Found>,
    /// Where each extent's record is, if it need not be read.
    places: Vec<Option<Place>>,
    wanted: Vec<BlockPtr>,
    fetch: Fetch,
}

impl Found {
    fn key(&self) -> Key {
        match self {
            Self::Clear(key) | Self::Keep(key) | Self::Remove(key) => *key,
            Self::Put(key, _) | Self::Extent(key, ..) => *key,
        }
    }
}

/// Totals of what was sent so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// As the stream says at its end.
    pub end: End,
    /// Bytes of the stream, without its frames.
    pub bytes: u64,
    /// Of a measure from a bookmark, bytes that may come as well: of records that are older than it and elsewhere now,
    /// whose place then only they themselves tell.
    pub unsure: u64,
}

/// A snapshot on its way out.
pub struct Send<'a> {
    pool: &'a Pool,
    from: Base<'a>,
    to: &'a SnapshotView,
    changes: Walk<'a>,
    more: bool,
    found: VecDeque<Found>,
    /// From here on nothing stays, and nobody was told.
    clears: Option<Key>,
    known: HashMap<BlockId, Known>,
    /// Those, oldest first.
    order: VecDeque<BlockId>,
    /// Places in the earlier snapshot of records that are not where they were written for.
    moved: Option<HashMap<BlockId, Known>>,
    /// Everything up to this key is there already.
    position: Option<Key>,
    /// The chunk after the one that was asked for last.
    ahead: Option<Coming>,
    sent: Sent,
}

impl<'a> Send<'a> {
    /// Of what `to` has and `from` has not; of that, what comes after `position`.
    pub fn new(
        pool: &'a Pool,
        from: impl Into<Base<'a>>,
        to: &'a SnapshotView,
        position: Option<Key>,
    ) -> Self {
        let from = from.into();
        let changes = match from {
            Base::Bookmark(mark) => Walk::Since(ChangesSince::new(mark.high, to), mark),
            _ => Walk::Between(Changes::between(from.view(), to)),
        };
        Self {
            pool,
            from,
            to,
            changes,
            more: true,
            found: VecDeque::new(),
            clears: None,
            known: HashMap::new(),
            order: VecDeque::new(),
            moved: None,
            position,
            ahead: None,
            sent: Sent::default(),
        }
    }

    /// The frame that a snapshot begins with.
    ///
    /// # Errors
    /// When its dataset is not there any more.
    pub fn begin(&self, name: &str) -> Result<Begin, StreamError> {
        let record = self.to.record();
        let gone = || PoolError::NotFound(format!("dataset {}", record.dataset));
        let dataset = self.pool.dataset(record.dataset).ok_or_else(gone)?;
        Ok(Begin {
            to: record.guid,
            from: self.from.guid(),
            created: record.created,
            flags: if self.position.is_some() { crate::wire::BEGIN_RESUMED } else { 0 },
            next_inode: record.next_inode,
            salt: dataset.name_salt(),
            position: self.position.unwrap_or(Key::MIN),
            name: name.to_owned(),
            properties: Vec::new(),
            own: Vec::new(),
            holds: Vec::new(),
        })
    }

    /// Totals so far.
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// The next items; none at the end.
    ///
    /// # Errors
    /// When a node or record cannot be read.
    pub fn chunk(&mut self) -> Result<Option<Vec<Item>>, StreamError> {
        let coming = match self.ahead.take() {
            Some(coming) => Some(coming),
            None => self.coming()?,
        };
        let Some(coming) = coming else { return Ok(None) };
        self.ahead = self.coming()?;
        let items = self.items(coming)?;
        self.sent.end.items += items.len() as u64;
        for item in &items {
            self.sent.bytes += size_of(item);
            if let Item::Data(_, _, stored) = item {
                self.sent.end.records += 1;
                self.sent.end.bytes += stored.payload.len() as u64;
            }
        }
        Ok(Some(items))
    }

    /// Goes through a chunk without reading records: what it would be, about; false at the end.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub fn measure(&mut self) -> Result<bool, StreamError> {
        let batch = self.batch()?;
        for found in &batch {
            self.sent.end.items += 1;
            let Found::Extent(key, extent, before) = found else {
                self.sent.bytes += match found {
                    Found::Put(_, value) => PUT + value.len() as u64,
                    _ => REMOVE,
                };
                continue;
            };
            if *before == Some(extent.ptr.id) || self.known.contains_key(&extent.ptr.id) {
                self.sent.bytes += SAME;
                continue;
            }
            self.remember(extent.ptr.id, *key);
            let payload = u64::from(content_len(extent.ptr.place.stored, extent.logical));
            if extent.ptr.id <= self.from.high() {
                self.sent.bytes += SAME;
                if matches!(self.from, Base::Bookmark(_)) {
                    self.sent.unsure += (DATA + payload).saturating_sub(SAME);
                }
                continue;
            }
            self.sent.bytes += DATA + payload;
            self.sent.end.records += 1;
            self.sent.end.bytes += payload;
        }
        Ok(!batch.is_empty())
    }

    /// As many changes as a chunk holds.
    fn batch(&mut self) -> Result<Vec<Found>, StreamError> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < ITEMS && bytes < BYTES {
            let Some(found) = self.found.pop_front() else {
                if !self.more {
                    break;
                }
                self.look_on()?;
                continue;
            };
            let key = found.key();
            if let Found::Clear(from) = found {
                self.clears = Some(from);
                continue;
            }
            if self.position.is_some_and(|position| key <= position) {
                match found {
                    // The receiver has it, and it may be referred to.
                    Found::Extent(key, extent, _) => self.remember(extent.ptr.id, key),
                    Found::Keep(_) => self.clears = None,
                    _ => {}
                }
                continue;
            }
            if let Some(from) = self.clears.take() {
                let rest = self.position.and_then(|position| position.successor());
                let from = rest.map_or(from, |rest| rest.max(from));
                if matches!(found, Found::Keep(to) if to <= from) {
                    continue;
                }
                batch.push(Found::Clear(from));
            }
            bytes += match &found {
                // The receiver has all of it in memory, decoded.
                Found::Extent(_, extent, _) => u64::from(extent.ptr.place.stored.max(extent.logical / 4)),
                Found::Put(_, value) => value.len() as u64,
                Found::Remove(_) | Found::Clear(_) | Found::Keep(_) => 0,
            };
            batch.push(found);
        }
        Ok(batch)
    }

    /// Finds more changes.
    fn look_on(&mut self) -> Result<(), StreamError> {
        let (found, mut bad) = (&mut self.found, None);
        let extent = |value: Option<&[u8]>| value.map(Extent::decode).transpose();
        let changes = match &mut self.changes {
            Walk::Between(changes) => changes,
            Walk::Since(changes, mark) => {
                self.more = changes.step(NODES, |told| match told {
                    Told::Clear(from) => found.push_back(Found::Clear(from)),
                    Told::Keep(to) => found.push_back(Found::Keep(to)),
                    Told::Entry(key, value) if key.kind == EXTENT => match Extent::decode(value) {
                        Ok(new) => {
                            let was_here = new.was_here(mark.high, mark.commit);
                            found.push_back(Found::Extent(key, new, was_here.then_some(new.ptr.id)));
                        }
                        Err(error) => bad = Some(error),
                    },
                    Told::Entry(key, value) => found.push_back(Found::Put(key, value.to_vec())),
                })?;
                return bad.map_or(Ok(()), |error| Err(PoolError::from(error).into()));
            }
        };
        self.more = changes.step(NODES, |differs| {
            let Differs::Entry { key, old, new } = differs else { return };
            match new {
                None => found.push_back(Found::Remove(key)),
                Some(_) if key.kind == EXTENT => match (extent(old), extent(new)) {
                    // The place is a hint alone.
                    (Ok(Some(old)), Ok(Some(new))) if old.is_same(&new) => {}
                    (Ok(old), Ok(Some(new))) => {
                        found.push_back(Found::Extent(key, new, old.map(|old| old.ptr.id)));
                    }
                    (Err(error), _) | (_, Err(error)) => bad = Some(error),
                    (Ok(_), Ok(None)) => {}
                },
                Some(new) => found.push_back(Found::Put(key, new.to_vec())),
            }
        })?;
        bad.map_or(Ok(()), |error| Err(PoolError::from(error).into()))
    }

    fn remember(&mut self, id: BlockId, key: Key) {
        if self.known.insert(id, (key.object, key.offset)).is_none() {
            self.order.push_back(id);
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
    }

    /// The next chunk, its records asked for; none at the end.
    fn coming(&mut self) -> Result<Option<Coming>, StreamError> {
        let batch = self.batch()?;
        if batch.is_empty() {
            return Ok(None);
        }
        let from_guid = self.from.guid();
        let to_guid = self.to.record().guid;
        let mut places: Vec<Option<Place>> = Vec::with_capacity(batch.len());
        let mut wanted: Vec<BlockPtr> = Vec::new();
        for found in &batch {
            let Found::Extent(key, extent, before) = found else {
                places.push(None);
                continue;
            };
            let id = extent.ptr.id;
            let place = if *before == Some(id) {
                Some(Place { snapshot: from_guid, object: key.object, offset: key.offset })
            } else {
                let known = self.known.get(&id);
                known.map(|&(object, offset)| Place { snapshot: to_guid, object, offset })
            };
            if place.is_none() {
                wanted.push(extent.ptr);
                self.remember(id, *key);
            }
            places.push(place);
        }
        let fetch = self.pool.store().start_fetch(wanted.iter().copied());
        Ok(Some(Coming { batch, places, wanted, fetch }))
    }

    /// The items of a chunk.
    fn items(&mut self, coming: Coming) -> Result<Vec<Item>, StreamError> {
        let Coming { batch, places, wanted, fetch } = coming;
        let mut read = self.read(&wanted, fetch)?;
        let mut items = Vec::with_capacity(batch.len());
        for (found, place) in batch.into_iter().zip(places) {
            items.push(match found {
                Found::Clear(key) => Item::Clear(key),
                Found::Keep(key) => Item::Keep(key),
                Found::Remove(key) => Item::Remove(key),
                Found::Put(key, value) => Item::Put(key, value.into()),
                Found::Extent(key, extent, _) => {
                    let Extent { len, block_offset, logical, ptr, .. } = extent;
                    let cover = Cover { len, block_offset, logical };
                    if let Some(place) = place {
                        items.push(Item::Same(key, cover, place));
                        continue;
                    }
                    let missing = || PoolError::Unreadable { id: ptr.id, cause: "it was not read".into() };
                    let (header, bytes) = read.remove(&ptr.id).ok_or_else(missing)?;
                    match self.written_for(key, ptr.id, &header)? {
                        Some(place) => Item::Same(key, cover, place),
                        None => {
                            let payload = bytes.slice(header.before_content() as usize..);
                            Item::Data(key, cover, Stored { codec: header.info.codec, payload })
                        }
                    }
                }
            });
        }
        Ok(items)
    }

    /// The extent that a record was written for, if that is not `key`, and whoever receives has it.
    fn written_for(
        &mut self,
        key: Key,
        id: BlockId,
        header: &CheckedHeader,
    ) -> Result<Option<Place>, StreamError> {
        let at = Key::new(header.info.object, EXTENT, header.info.offset);
        let found = |view: &SnapshotView| -> Result<Option<Extent>, StreamError> {
            let value = view.get(&at)?;
            let extent = value.and_then(|value| Extent::decode(&value).ok());
            Ok(extent.filter(|extent| extent.ptr.id == id))
        };
        let place = |snapshot| Some(Place { snapshot, object: at.object, offset: at.offset });
        let is_old = id <= self.from.high();
        let is_in_base = match self.from {
            Base::Snapshot(from) => is_old && found(from)?.is_some(),
            // The later one may still have it where it was.
            Base::Bookmark(mark) if is_old => {
                found(self.to)?.is_some_and(|extent| extent.was_here(mark.high, mark.commit))
            }
            _ => false,
        };
        if is_in_base {
            return Ok(place(self.from.guid()));
        }
        if at < key && found(self.to)?.is_some() {
            return Ok(place(self.to.record().guid));
        }
        let Some(from) = self.from.view().filter(|_| is_old) else { return Ok(None) };
        if self.moved.is_none() {
            self.moved = Some(self.find_moved(from)?);
        }
        let found = self.moved.as_ref().and_then(|moved| moved.get(&id));
        Ok(found.map(|&(object, offset)| Place { snapshot: from.record().guid, object, offset }))
    }

    /// Where the earlier snapshot has records that are named anew.
    fn find_moved(&self, from: &SnapshotView) -> Result<HashMap<BlockId, Known>, StreamError> {
        let (mut wanted, mut changes) = (HashSet::new(), Changes::between(Some(from), self.to));
        let high = from.record().high;
        let mut note = |differs: Differs<'_>| {
            let Differs::Entry { key, old, new: Some(new) } = differs else { return };
            let id = |value: &[u8]| Extent::decode(value).ok().map(|extent| extent.ptr.id);
            let is_new = key.kind == EXTENT && old.and_then(id) != id(new);
            let old = id(new).filter(|id| is_new && *id <= high && wanted.len() < REMEMBERED);
            wanted.extend(old);
        };
        while changes.step(NODES, &mut note)? {}
        let mut moved = HashMap::with_capacity(wanted.len());
        from.scan(&Key::MIN, &mut |key, value| {
            if key.kind == EXTENT
                && let Ok(extent) = Extent::decode(value)
                && wanted.remove(&extent.ptr.id)
            {
                moved.insert(extent.ptr.id, (key.object, key.offset));
            }
            if wanted.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(moved)
    }

    /// Blocks as they are stored, verified.
    fn read(
        &self,
        wanted: &[BlockPtr],
        fetch: Fetch,
    ) -> Result<HashMap<BlockId, (CheckedHeader, Bytes)>, StreamError> {
        let store = self.pool.store();
        let mut read = store.proved(fetch);
        for ptr in wanted {
            if let Entry::Vacant(vacant) = read.entry(ptr.id) {
                vacant.insert(store.read_any_place(*ptr)?);
            }
        }
        Ok(read)
    }
}

/// Bytes of an item in a chunk.
fn size_of(item: &Item) -> u64 {
    match item {
        Item::Remove(_) | Item::Clear(_) | Item::Keep(_) => REMOVE,
        Item::Put(_, value) => PUT + value.len() as u64,
        Item::Data(_, _, stored) => DATA + stored.payload.len() as u64,
        Item::Same(..) => SAME,
    }
}
