//! Segments in memory: who reads them, what is on its way to them, and what of them is alive.
//!
//! A reader holds an `Arc<Segment>`: as long as it does, the segment's slots are not given to another
//! segment. Rows that were submitted but are not yet confirmed are served from memory.

use larder_device::AlignedBuf;
use larder_format::segment::{Layout, SegmentKind, SegmentRecord, SegmentState, Slot};
use larder_format::{CommitId, GroupIndex, Incarnation, SegmentId};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What never changes of a segment.
pub struct Segment {
    /// Its id.
    pub id: SegmentId,
    /// What it holds.
    pub kind: SegmentKind,
    /// The group it lies on.
    pub group: GroupIndex,
    /// Its layout.
    pub layout: Layout,
    /// One slot a column.
    pub slots: Vec<Slot>,
    /// The commit that opened it.
    pub birth: CommitId,
    /// The import under which it was opened.
    pub incarnation: Incarnation,
    in_flight: Mutex<Vec<Arc<RowImage>>>,
}

/// A row's columns in memory while they are written.
pub struct RowImage {
    /// Bytes from the start of the slot.
    pub offset: u32,
    /// One buffer a column.
    pub columns: Vec<Arc<AlignedBuf>>,
}

impl RowImage {
    fn part(&self, column: usize, offset: u32, len: usize) -> Option<&[u8]> {
        let start = offset.checked_sub(self.offset)? as usize;
        self.columns[column].get(start..start + len)
    }
}

impl Segment {
    /// Notes a row that is being written.
    pub fn launch(&self, row: Arc<RowImage>) {
        self.in_flight.lock().push(row);
    }

    /// Forgets a row that has been written.
    pub fn land(&self, row: &Arc<RowImage>) {
        self.in_flight.lock().retain(|other| !Arc::ptr_eq(other, row));
    }

    /// Bytes of a data column that are still on their way, when the whole range is.
    pub fn peek(&self, column: usize, offset: u32, len: usize) -> Option<Vec<u8>> {
        let rows = self.in_flight.lock();
        rows.iter().find_map(|row| row.part(column, offset, len).map(<[u8]>::to_vec))
    }

    /// Whether [`Segment::peek`] would have them.
    pub fn is_in_flight(&self, column: usize, offset: u32, len: usize) -> bool {
        self.in_flight.lock().iter().any(|row| row.part(column, offset, len).is_some())
    }
}

/// A segment with what changes of it.
pub struct SegmentEntry {
    /// What never changes.
    pub segment: Arc<Segment>,
    /// Where it stands in its life.
    pub state: SegmentState,
    /// Bytes of every column that hold descriptor and rows.
    pub height: u32,
    /// Blocks not freed.
    pub live_blocks: u32,
    /// Their footprints.
    pub live_bytes: u64,
    /// The commit that freed it.
    pub freed: CommitId,
    /// Changed since it was last written to the tables.
    pub dirty: bool,
}

impl SegmentEntry {
    /// The entry that a record tells of.
    pub fn from_record(record: &SegmentRecord) -> Self {
        Self {
            segment: Arc::new(Segment {
                id: record.id,
                kind: record.kind,
                group: record.group,
                layout: record.layout,
                slots: record.slots.clone(),
                birth: record.birth,
                incarnation: record.incarnation,
                in_flight: Mutex::new(Vec::new()),
            }),
            state: record.state,
            height: record.height,
            live_blocks: record.live_blocks,
            live_bytes: record.live_bytes,
            freed: record.freed,
            dirty: false,
        }
    }

    /// The record for the tables or the root.
    pub fn to_record(&self) -> SegmentRecord {
        SegmentRecord {
            id: self.segment.id,
            kind: self.segment.kind,
            state: self.state,
            group: self.segment.group,
            layout: self.segment.layout,
            height: self.height,
            live_blocks: self.live_blocks,
            live_bytes: self.live_bytes,
            birth: self.segment.birth,
            freed: self.freed,
            incarnation: self.segment.incarnation,
            slots: self.segment.slots.clone(),
        }
    }
}

/// The segments that readers may use; the entries behind are under the core's lock.
#[derive(Default)]
pub struct Readable(RwLock<HashMap<SegmentId, Arc<Segment>>>);

impl Readable {
    /// The segment, pinned, when it is alive.
    pub fn get(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.0.read().get(&id).cloned()
    }
    /// Lets readers see a segment.
    pub fn insert(&self, segment: &Arc<Segment>) {
        self.0.write().insert(segment.id, Arc::clone(segment));
    }
    /// Hides a segment from new readers.
    pub fn remove(&self, id: SegmentId) {
        self.0.write().remove(&id);
    }
}

/// All entries, in the order of their ids.
pub type Entries = BTreeMap<SegmentId, SegmentEntry>;
