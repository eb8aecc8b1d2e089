//! Pages in one file with direct I/O, in segments as a pool has them: each begins on a multiple of 4 KiB.

use larder_benches::device::sparse_file;
use larder_benches::timing;
use larder_device::{AlignedBuf, Device, FileDevice, OpenMode, Outcome, Pending, Request, TIMEOUT};
use larder_format::run::Footprint;
use larder_format::{BlockId, BlockPtr, ByteLen, Corrupt, DeviceOffset, Place, SegmentId};
use larder_sorted::{PageReader, PageWriter};
use rustix::fs::statvfs;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a segment: few, since there is no cleaner, and one is free only when nothing is left in it.
const SEGMENT: u64 = 4 << 20;
/// Where pages begin.
const STEP: u64 = 4096;
/// Bytes of the header that a pool puts in front of a page.
const HEADER: usize = larder_format::block::BLOCK_OVERHEAD as usize;
/// Bytes of a write.
const CHUNK: usize = 1 << 20;
/// Writes in flight.
const DEPTH: usize = 8;
/// Bytes that others are left on the disk.
const KEPT_FREE: u64 = 2 << 30;
/// Requests that the device performs at once.
const THREADS: usize = 8;

/// See the module's text.
pub struct Store {
    device: FileDevice,
    path: PathBuf,
    next_id: u64,
    next_segment: u64,
    /// The segment being filled.
    open: SegmentId,
    filled: u64,
    /// Where segments are, in segments from the start of the file.
    places: HashMap<SegmentId, u64>,
    free: BTreeSet<u64>,
    /// Segments that the file has had at once, at most: what it takes.
    used: u64,
    live: BTreeMap<SegmentId, u64>,
    chunk: Vec<u8>,
    chunk_at: u64,
    writing: RefCell<Vec<(std::ops::Range<u64>, Pending<Outcome>)>>,
    /// Pages read, how long they were waited for, and bytes written.
    pub reads: Cell<u64>,
    pub waited: Cell<Duration>,
    pub written: u64,
}

impl Store {
    /// A store in a new sparse file of `dir`, for at most so many bytes.
    pub fn new(dir: &Path, bytes: u64) -> Self {
        let file = tempfile::Builder::new().prefix("index-pages").tempfile_in(dir);
        // Kept to be opened exclusively below; removed with the store.
        let path = file.and_then(|file| Ok(file.keep()?.1)).expect("a file can be made there");
        let slots = bytes.div_ceil(SEGMENT) + 4;
        sparse_file(&path, slots * SEGMENT);
        let device = FileDevice::open_with_threads(&path, OpenMode::Exclusive, THREADS);
        let device = device.expect("the file can be used");
        if !device.is_direct() {
            eprintln!("no direct I/O in {}: reads come from the page cache", dir.display());
        }
        let mut store = Self {
            device,
            path,
            next_id: 1,
            next_segment: 0,
            open: SegmentId::new(0),
            filled: SEGMENT,
            places: HashMap::new(),
            free: (0..slots).collect(),
            used: 0,
            live: BTreeMap::new(),
            chunk: Vec::with_capacity(CHUNK),
            chunk_at: 0,
            writing: RefCell::default(),
            reads: Cell::new(0),
            waited: Cell::default(),
            written: 0,
        };
        store.open_segment();
        store
    }

    /// Footprints that descriptors name from now on.
    pub fn keep<'a>(&mut self, footprints: impl IntoIterator<Item = &'a Footprint>) {
        footprints.into_iter().for_each(|f| *self.live.entry(f.segment).or_default() += f.bytes);
    }

    /// Footprints that no descriptor names any more.
    pub fn release<'a>(&mut self, footprints: impl IntoIterator<Item = &'a Footprint>) {
        for footprint in footprints {
            *self.live.get_mut(&footprint.segment).expect("it was kept") -= footprint.bytes;
        }
    }

    /// Frees segments that nothing is in; `unfinished` are in no descriptor yet.
    pub fn collect(&mut self, unfinished: impl IntoIterator<Item = Footprint>) {
        let busy: BTreeSet<_> = unfinished.into_iter().map(|footprint| footprint.segment).collect();
        let (live, open) = (&self.live, self.open);
        let lives =
            |id: &SegmentId| *id == open || busy.contains(id) || live.get(id).is_some_and(|bytes| *bytes > 0);
        let empty: Vec<_> = self.places.extract_if(|id, _| !lives(id)).collect();
        for (id, slot) in empty {
            self.live.remove(&id);
            self.free.insert(slot);
        }
    }

    /// Bytes that the file takes on its disk: it grows and never shrinks.
    pub fn file_bytes(&self) -> u64 {
        self.used * SEGMENT
    }

    /// Whether its disk has less free than others are to be left.
    pub fn is_disk_short(&self) -> bool {
        let disk = statvfs(&self.path).expect("its disk can be asked");
        disk.f_bavail * disk.f_frsize < KEPT_FREE
    }

    fn open_segment(&mut self) {
        self.submit();
        self.open = SegmentId::new(self.next_segment);
        self.next_segment += 1;
        let slot = self.free.pop_first().expect("the file is large enough");
        self.used = self.used.max(slot + 1);
        self.places.insert(self.open, slot);
        (self.filled, self.chunk_at) = (0, slot * SEGMENT);
    }

    /// Writes the chunk at hand.
    fn submit(&mut self) {
        if self.chunk.is_empty() {
            return;
        }
        let range = self.chunk_at..self.chunk_at + self.chunk.len() as u64;
        let data = Arc::new(AlignedBuf::padded(&self.chunk));
        let pending = self.device.submit(Request::Write { offset: DeviceOffset::new(range.start), data });
        self.chunk_at = range.end;
        self.written += self.chunk.len() as u64;
        self.chunk.clear();
        let mut writing = self.writing.borrow_mut();
        writing.push((range, pending));
        if writing.len() > DEPTH {
            writing.remove(0).1.wait().expect("the device works");
        }
    }

    fn range(&self, ptr: BlockPtr) -> std::ops::Range<u64> {
        let at = self.places[&ptr.place.segment] * SEGMENT + u64::from(ptr.place.offset);
        at..at + (u64::from(ptr.place.stored) - HEADER as u64).next_multiple_of(STEP)
    }

    /// The page if it is in memory still; else it is on the device.
    fn in_chunk(&self, ptr: BlockPtr) -> Option<Arc<[u8]>> {
        let range = self.range(ptr);
        let len = ptr.place.stored as usize - HEADER;
        let within = range.start >= self.chunk_at && range.end <= self.chunk_at + self.chunk.len() as u64;
        if within {
            let at = (range.start - self.chunk_at) as usize;
            return Some(self.chunk[at..at + len].into());
        }
        let mut writing = self.writing.borrow_mut();
        while let Some(at) = writing.iter().position(|(w, _)| w.start < range.end && range.start < w.end) {
            writing.remove(at).1.wait().expect("the device works");
        }
        None
    }

    fn submit_read(&self, ptr: BlockPtr) -> Pending<Outcome> {
        self.reads.set(self.reads.get() + 1);
        let range = self.range(ptr);
        let len = ByteLen::new(range.end - range.start);
        self.device.submit(Request::Read { offset: DeviceOffset::new(range.start), len })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.submit();
        self.writing.take().into_iter().for_each(|(_, pending)| drop(pending.wait()));
        let _ = std::fs::remove_file(&self.path);
    }
}

impl PageReader for Store {
    type Error = Corrupt;
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>, Corrupt> {
        self.read_pages(&[ptr]).remove(0)
    }
    fn read_pages(&self, ptrs: &[BlockPtr]) -> Vec<Result<Arc<[u8]>, Corrupt>> {
        let (pages, took) = timing(|| self.read(ptrs));
        self.waited.set(self.waited.get() + took);
        pages
    }
    fn refused(&self, _: BlockPtr, why: Corrupt) -> Corrupt {
        why
    }
}

impl Store {
    fn read(&self, ptrs: &[BlockPtr]) -> Vec<Result<Arc<[u8]>, Corrupt>> {
        if let [ptr] = ptrs
            && self.in_chunk(*ptr).is_none()
        {
            // Alone there is nobody to wait for.
            self.reads.set(self.reads.get() + 1);
            let range = self.range(*ptr);
            let len = ByteLen::new(range.end - range.start);
            let offset = DeviceOffset::new(range.start);
            let outcome = self.device.perform(Request::Read { offset, len }, TIMEOUT);
            let Ok(Ok(bytes)) = outcome else { panic!("the device works") };
            return vec![Ok(bytes[..ptr.place.stored as usize - HEADER].into())];
        }
        let started: Vec<_> =
            ptrs.iter().map(|ptr| self.in_chunk(*ptr).ok_or_else(|| self.submit_read(*ptr))).collect();
        let finish = |(ptr, started): (&BlockPtr, Result<Arc<[u8]>, Pending<Outcome>>)| {
            Ok(started.unwrap_or_else(|pending| {
                let bytes = pending.wait().expect("the device works");
                bytes[..ptr.place.stored as usize - HEADER].into()
            }))
        };
        ptrs.iter().zip(started).map(finish).collect()
    }
}

impl PageWriter for Store {
    fn write_page(&mut self, payload: &[u8]) -> Result<BlockPtr, Corrupt> {
        let space = (payload.len() as u64).next_multiple_of(STEP);
        if self.filled + space > SEGMENT {
            self.open_segment();
        }
        let place = Place {
            segment: self.open,
            column: 0,
            offset: self.filled as u32,
            stored: (payload.len() + HEADER) as u32,
        };
        self.chunk.extend_from_slice(payload);
        self.chunk.resize(self.chunk.len().next_multiple_of(STEP as usize), 0);
        self.filled += space;
        if self.chunk.len() >= CHUNK {
            self.submit();
        }
        self.next_id += 1;
        Ok(BlockPtr { id: BlockId::new(self.next_id), place })
    }
}
