//! Storing data written to files that are cut by content.
//!
//! The records of such a file lie back to back between its holes, each as long as the [`Cutter`] says. Written data
//! is kept in memory by multiples of the record size, as in every file; only here is it looked at as
//! stretches of bytes. A stretch begins with the record that the first written byte lies in, or that ends shortly
//! before it; it is cut anew from there, over old and written bytes alike, until a record ends where an old one did
//! and nothing more was written there: what follows would be cut as it is. When that does not come about within the
//! longest record, the stretch ends at the last old end that does. Holes that are shorter than the shortest record
//! are filled with zeros, so that scattered writes do not make a record each.
//!
//! Records that come out as they were, and were not written to, stay. Those that are all zero become holes, if
//! the dataset compresses.
//!
//! A batch may end within a stretch, because its room is used up or since more follows that was not taken. Then
//! records whose cuts are certain are stored, and the rest is written again ([`Rest`]); an old record that the
//! last cut divides is left with its end, which is read and cut again with the rest. A record that ends at a hole
//! or at the end of the file is stored as it is; a later append begins with it. So is the last record of a batch,
//! where the last cut would divide one write(2).
//!
//! An unreadable extent ends a stretch as a hole does. Data written to a part of it is lost, as in other files.
//!
//! A file that is being cut anew at multiples of a size lies back to back as well until all of it is: what is written
//! to it meanwhile is cut there ([`Cuts::Even`]), each record from its beginning on.

use crate::cut::{Cuts, Cutter};
use crate::error::{FsError, Result};
use crate::extents::{extent_end, extents_over};
use crate::ranges::{Pieces, Spans};
use crate::volume::Volume;
use larder_format::items::{self, Extent};
use larder_format::{BlockId, BlockPtr, InodeId};
use larder_pool::cache::Record;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of old records that are read at once, for what was written in part.
pub(crate) const BASES: usize = 4 << 20;

/// Old extents that are looked up at once.
const AHEAD: usize = 16;

/// Data taken from a file to be stored.
pub(crate) struct Written<'a> {
    pub id: InodeId,
    /// As its writers see it.
    pub item: items::Inode,
    /// Data written to each record's place, by number; at least one.
    pub records: &'a [(u64, Arc<Pieces>)],
    /// Ranges that are stored together.
    pub spans: &'a Spans,
    /// More was written from here on, and was not taken.
    pub more: Option<u64>,
    /// When so many bytes have been cut, the rest is left.
    pub room: u64,
    /// Where its records end, while it is being cut anew.
    pub cuts: Option<Cuts>,
}

/// Change of the extent at some offset.
#[derive(Default)]
pub(crate) struct Change {
    /// It goes.
    pub old: Option<Extent>,
    /// It comes.
    pub new: Option<Record>,
    /// The block whose place in the file the new one takes.
    pub replaces: Option<BlockId>,
}

/// Changes of a file's extents, to be stored.
#[derive(Default)]
pub(crate) struct Recut {
    /// By offset.
    pub changes: BTreeMap<u64, Change>,
    pub rest: Option<Rest>,
    /// The error by which some written data is lost.
    pub lost: Option<FsError>,
}

/// The part that is not stored.
pub(crate) struct Rest {
    /// All that was written from here on.
    pub from: u64,
    pub divided: Option<Divided>,
}

/// An extent of which only the end remains, at another offset.
pub(crate) struct Divided {
    pub was_at: u64,
    pub offset: u64,
    pub extent: Extent,
}

/// The next piece of a stretch.
enum Source {
    /// Bytes that were written.
    Written(Range<u64>),
    /// A short hole, up to there.
    Hole(u64),
    /// An old extent; whether a part of it was written to.
    Old(u64, Extent, bool),
    /// Bytes that were written and not taken.
    More,
    /// Nothing.
    End,
}

/// Why no more bytes of a stretch come.
enum End {
    /// Nothing is there, or nothing that has to be cut.
    Reached,
    /// An extent that cannot be read; it reaches so far.
    Unreadable(u64),
    /// Written bytes that were not taken.
    More,
}

/// A file's extents, in ascending order.
#[derive(Clone)]
struct Olds<'a> {
    volume: &'a Volume,
    id: InodeId,
    item: items::Inode,
    ahead: VecDeque<(u64, Extent)>,
    /// Where those ahead end.
    looked_at: u64,
    all: bool,
}

impl Olds<'_> {
    /// Begins anew, at or after `at`.
    fn go_back_to(&mut self, at: u64) {
        self.ahead.clear();
        (self.looked_at, self.all) = (at, false);
    }

    /// The first extent that ends after `at`, which must not descend.
    fn at(&mut self, at: u64) -> Result<Option<(u64, Extent)>> {
        loop {
            while self.ahead.front().is_some_and(|(offset, extent)| extent_end(*offset, extent) <= at) {
                self.ahead.pop_front();
            }
            if !self.ahead.is_empty() || self.all {
                return Ok(self.ahead.front().copied());
            }
            let range = at.max(self.looked_at)..self.item.size;
            let found = extents_over(&self.volume.dataset.view()?, self.id, &self.item, range, AHEAD)?;
            self.all = found.len() < AHEAD;
            self.looked_at = found.last().map_or(u64::MAX, |(offset, extent)| extent_end(*offset, extent));
            self.ahead = found.into();
        }
    }
}

struct Cutting<'a> {
    written: &'a Written<'a>,
    /// Ranges that were written, ascending; they do not touch.
    ranges: Vec<Range<u64>>,
    cuts: Cuts,
    olds: Olds<'a>,
    /// Old blocks at hand.
    bases: HashMap<BlockId, Record>,
    /// Bytes of the stretch that are not cut yet.
    staged: Vec<u8>,
    /// Old extents that the bytes lie in, from the last cut on.
    met: VecDeque<(u64, Extent)>,
    /// Where the old extents began behind what was written last.
    calm_from: Option<u64>,
    /// Bytes cut.
    used: u64,
    recut: Recut,
}

impl Volume {
    /// Cuts anew what was written, with as much of what is stored around it as needed.
    pub(crate) fn recut(&self, written: &Written<'_>) -> Result<Recut> {
        let step = u64::from(written.item.record_size);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (record, pieces) in written.records {
            for part in pieces.parts(0..u32::MAX) {
                let base = record * step;
                let part = base + u64::from(part.start)..base + u64::from(part.end);
                match ranges.last_mut().filter(|last| last.end == part.start) {
                    Some(last) => last.end = part.end,
                    None => ranges.push(part),
                }
            }
        }
        let by_content = || Cuts::ByContent(Cutter::new(written.item.record_size, self.record_limit()));
        let cutting = Cutting {
            written,
            ranges,
            cuts: written.cuts.unwrap_or_else(by_content),
            olds: Olds {
                volume: self,
                id: written.id,
                item: written.item,
                ahead: VecDeque::new(),
                looked_at: 0,
                all: false,
            },
            bases: HashMap::new(),
            staged: Vec::new(),
            met: VecDeque::new(),
            calm_from: None,
            used: 0,
            recut: Recut::default(),
        };
        cutting.run()
    }
}

impl Cutting<'_> {
    fn run(mut self) -> Result<Recut> {
        let mut done = 0;
        while let Some(next) = self.written_after(done) {
            let next = next.start.max(done);
            self.met.clear();
            if self.used >= self.written.room && self.may_stop(next) {
                self.stop(next);
                break;
            }
            let start = self.start(next, done)?;
            match self.stretch(start)? {
                Some(end) => {
                    debug_assert!(end > start, "a stretch has bytes that were written");
                    done = end;
                }
                None => break,
            }
        }
        Ok(self.recut)
    }

    /// The first range of what was written that ends after `at`.
    fn written_after(&self, at: u64) -> Option<Range<u64>> {
        self.ranges.get(self.ranges.partition_point(|range| range.end <= at)).cloned()
    }

    /// Where the stretch begins that has `written` as its first written byte; all before `done` is done.
    fn start(&mut self, written: u64, done: u64) -> Result<u64> {
        let mut near = match self.cuts {
            Cuts::ByContent(cutter) => written.saturating_sub(cutter.min() as u64 - 1),
            Cuts::Even(_) => self.record_of(written),
        };
        near = near.max(done);
        // More was looked at than was cut.
        self.olds.go_back_to(near);
        if let Cuts::Even(_) = self.cuts {
            let across = self.olds.at(near)?.filter(|(offset, _)| *offset < near);
            return Ok(across.map_or(near, |(offset, _)| offset.max(done)));
        }
        while let Some((offset, extent)) = self.olds.at(near)?.filter(|(offset, _)| *offset < written) {
            // Behind a longest record a new one begins in any case.
            if extent_end(offset, &extent) > written || (extent.len as usize) < self.cuts.max() {
                return Ok(offset.max(done));
            }
            near = extent_end(offset, &extent);
        }
        Ok(written)
    }

    /// Cuts a stretch; tells where what was done ends, or nothing when there is a rest.
    fn stretch(&mut self, start: u64) -> Result<Option<u64>> {
        let (first, max) = (self.ranges[0].start, self.cuts.max());
        let full = 4 * max;
        let (mut at, mut from, mut end) = (start, 0, None);
        self.staged.clear();
        self.calm_from = None;
        loop {
            // As much as one record needs; more where it costs nothing, as what is left is moved each time.
            let mut filling = end.is_none() && self.staged.len() - from < max;
            if filling {
                self.staged.drain(..from);
                from = 0;
            }
            let mut known = None;
            while filling {
                let fed = at + self.staged.len() as u64;
                let enough = self.staged.len() >= max;
                match self.source(fed)? {
                    Source::Written(range) if self.staged.len() < full => self.stage_written(range, full),
                    _ if enough => filling = false,
                    Source::Written(_) => unreachable!("what is full is enough"),
                    Source::Hole(to) => self.staged.resize(self.staged.len() + (to - fed) as usize, 0),
                    Source::Old(offset, extent, busy) => {
                        // Nothing is read for nothing.
                        known = if busy { None } else { self.cuts.next(at, &self.staged, false) };
                        filling = known.is_none();
                        if filling && !self.stage_old(fed, (offset, extent), busy)? {
                            end = Some(End::Unreadable(extent_end(offset, &extent)));
                        }
                    }
                    Source::More => end = Some(End::More),
                    Source::End => end = Some(End::Reached),
                }
                filling &= end.is_none();
            }
            let staged = &self.staged[from..];
            let last = matches!(end, Some(End::Reached | End::Unreadable(_)));
            let mut len = known.or_else(|| self.cuts.next(at, staged, last));
            if len.is_none() && matches!(end, Some(End::More)) {
                if at > first && self.may_stop(at) {
                    self.stop(at);
                    return Ok(None);
                }
                // So little was taken that none of it would be stored, or a part of what belongs together.
                len = self.cuts.next(at, staged, true);
            }
            let Some(len) = len else {
                return Ok(Some(if let Some(End::Unreadable(to)) = end { to } else { at }));
            };
            let next = at + len as u64;
            self.cut(at..next, from);
            (at, from) = (next, from + len);
            let here = self.written_after(at).is_some_and(|range| range.start <= at);
            if !here && self.written.more != Some(at) && self.divided(at).is_none() {
                return Ok(Some(at));
            }
            let is_full = self.used >= self.written.room && at > first;
            if is_full && self.may_stop(at) && self.written_after(at).is_some() {
                self.stop(at);
                return Ok(None);
            }
        }
    }

    /// The next piece, from `at` on.
    fn source(&mut self, at: u64) -> Result<Source> {
        let (min, max) = (self.cuts.min() as u64, self.cuts.max() as u64);
        let old = self.olds.at(at)?;
        let written = self.written_after(at);
        let here = written.as_ref().is_some_and(|range| range.start <= at);
        if !here && self.written.more == Some(at) {
            return Ok(Source::More);
        }
        let calm_from = self.calm_from.take();
        if let Some((offset, extent)) = old.filter(|(offset, _)| *offset <= at) {
            let end = extent_end(offset, &extent);
            let taken = self.written.more.filter(|&more| more > at).unwrap_or(u64::MAX).min(end);
            return Ok(match written {
                Some(range) if here && range.end >= taken => {
                    self.meet(offset, extent);
                    Source::Written(at..taken)
                }
                // All that lies before it in its record goes along.
                Some(range) if self.record_of(range.start) < end => Source::Old(offset, extent, true),
                _ => {
                    let calm_from = *self.calm_from.insert(calm_from.unwrap_or(at));
                    if end > calm_from + max { Source::End } else { Source::Old(offset, extent, false) }
                }
            });
        }
        let next = old.map_or(u64::MAX, |(offset, _)| offset);
        let is_near = |to: u64| match self.cuts {
            Cuts::ByContent(_) => to - at < min,
            Cuts::Even(_) => self.record_of(to) == self.record_of(at),
        };
        let next_end = old.map_or(u64::MAX, |(offset, extent)| extent_end(offset, &extent));
        Ok(match written {
            Some(range) if here => Source::Written(at..range.end.min(next)),
            Some(range) if range.start <= next && is_near(range.start) => Source::Hole(range.start),
            Some(range) if self.record_of(range.start) < next_end && is_near(next) => Source::Hole(next),
            _ => Source::End,
        })
    }

    /// The last place up to `at` where a record begins, if content does not tell.
    fn record_of(&self, at: u64) -> u64 {
        match self.cuts {
            Cuts::ByContent(_) => at,
            Cuts::Even(size) => at / u64::from(size) * u64::from(size),
        }
    }

    /// The bytes lie in an old extent.
    fn meet(&mut self, offset: u64, extent: Extent) {
        if self.met.back().is_none_or(|(last, _)| *last < offset) {
            self.met.push_back((offset, extent));
        }
    }

    /// Stages bytes that were written, until `full` are staged.
    fn stage_written(&mut self, range: Range<u64>, full: usize) {
        let step = u64::from(self.written.item.record_size);
        let end = range.end.min(range.start + (full - self.staged.len()) as u64);
        let mut at = range.start;
        let mut index = self.written.records.partition_point(|(record, _)| *record < at / step);
        while at < end {
            let (record, pieces) = &self.written.records[index];
            let base = record * step;
            let next = end.min(base + step);
            pieces.append_to((at - base) as u32..(next - base) as u32, &mut self.staged);
            (at, index) = (next, index + 1);
        }
    }

    /// Stages an old extent from `at` on, with what was written over it; false when it cannot be read.
    fn stage_old(&mut self, at: u64, (offset, extent): (u64, Extent), busy: bool) -> Result<bool> {
        if busy && !self.bases.contains_key(&extent.ptr.id) {
            let wanted = self.wanted(offset, extent)?;
            self.bases = self.olds.volume.pool.store().read_all(&wanted);
        }
        let base = match self.olds.volume.plain_among(&extent, &self.bases) {
            Ok(base) => base,
            Err(error) => {
                self.olds.volume.check_silence()?;
                self.olds.volume.note_damage(self.written.id, &(offset, extent));
                // Not what was written behind it, to the same record.
                if busy
                    && self.written_after(at).is_some_and(|range| range.start < extent_end(offset, &extent))
                {
                    self.recut.lost = Some(error);
                }
                return Ok(false);
            }
        };
        self.meet(offset, extent);
        let start = self.staged.len();
        self.staged.extend_from_slice(&base[(at - offset) as usize..]);
        let step = u64::from(self.written.item.record_size);
        let end = extent_end(offset, &extent);
        let first = self.written.records.partition_point(|(record, _)| *record < at / step);
        for (record, pieces) in &self.written.records[first..] {
            let base = record * step;
            if base >= end {
                break;
            }
            let (from, to) = (at.max(base), end.min(base + step));
            let out = &mut self.staged[start..][(from - at) as usize..(to - at) as usize];
            pieces.copy_onto((from - base) as u32..(to - base) as u32, out);
        }
        Ok(true)
    }

    /// The blocks that will be read from this one on, as many as are read at once: of extents that were
    /// written to in part, and of those right behind what was written.
    fn wanted(&self, offset: u64, extent: Extent) -> Result<Vec<BlockPtr>> {
        let (mut wanted, mut bytes) = (vec![extent.ptr], extent.logical as usize);
        let (mut at, mut behind) = (extent_end(offset, &extent), true);
        let mut olds = self.olds.clone();
        while bytes < BASES
            && let Some((offset, extent)) = olds.at(at)?
        {
            let end = extent_end(offset, &extent);
            let written = self.written_after(offset);
            let busy = written.as_ref().is_some_and(|range| range.start < end);
            let covered = written.as_ref().is_some_and(|range| range.start <= offset && range.end >= end);
            if !covered && (busy || behind && offset == at) {
                wanted.push(extent.ptr);
                bytes += extent.logical as usize;
            }
            at = match written {
                Some(range) if !busy => end.max(range.start.saturating_sub(self.cuts.min() as u64 - 1)),
                Some(_) => end,
                None => break,
            };
            behind = busy;
        }
        Ok(wanted)
    }

    /// A record ends: it takes the place of the extents that end in it, unless it is what one of them was. Its
    /// bytes are staged from `from` on.
    fn cut(&mut self, range: Range<u64>, from: usize) {
        let old = self.met.front().copied();
        let as_it_was = old.is_some_and(|(offset, extent)| (offset..extent_end(offset, &extent)) == range);
        let untouched = self.written_after(range.start).is_none_or(|written| written.start >= range.end);
        if as_it_was && untouched {
            self.met.pop_front();
            return;
        }
        while let Some(&(offset, extent)) = self.met.front()
            && extent_end(offset, &extent) <= range.end
        {
            self.recut.changes.entry(offset).or_default().old = Some(extent);
            self.met.pop_front();
        }
        let len = (range.end - range.start) as usize;
        let change = self.recut.changes.entry(range.start).or_default();
        change.new = Some(Record::copy_from_slice(&self.staged[from..from + len]));
        change.replaces = old.filter(|(offset, _)| *offset < range.end).map(|(_, extent)| extent.ptr.id);
        self.used += len as u64;
    }

    /// The old extent that a cut at `at` divides.
    fn divided(&self, at: u64) -> Option<(u64, Extent)> {
        self.met.front().copied().filter(|(offset, extent)| *offset < at && extent_end(*offset, extent) > at)
    }

    /// Whether what was written from `at` on can be left.
    fn may_stop(&self, at: u64) -> bool {
        self.written.spans.across(at).is_none()
    }

    /// Leaves what was written from `at` on.
    fn stop(&mut self, at: u64) {
        let divided = self.divided(at).map(|(was_at, extent)| {
            let gone = (at - was_at) as u32;
            let extent =
                Extent { block_offset: extent.block_offset + gone, len: extent.len - gone, ..extent };
            Divided { was_at, offset: at, extent }
        });
        let from = self.written_after(at).map(|range| range.start.max(at)).or(self.written.more);
        self.recut.rest = from.map(|from| Rest { from, divided });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::flush::Todo;
    use crate::names::NewInode;
    use crate::posix::Caller;
    use crate::volume::Volume;
    use larder_device::{Inline, SeededEntropy};
    use larder_format::items::{FileKind, ROOT_INODE};
    use larder_format::{ByteLen, HostId};
    use larder_pool::create::rule_for;
    use larder_pool::{GroupSpec, Pool, PoolSpec, ROOT_DATASET, World};
    use larder_sim::{SimClock, SimWorld};
    use std::sync::Arc;

    /// Nobody else's files are stored by the pool's commits, so a commit comes wherever it is called.
    pub fn volume(properties: &[(&str, &str)]) -> Arc<Volume> {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let world = World {
            clock: Arc::new(SimClock::new()),
            entropy: Arc::new(SeededEntropy::new(1)),
            workers: Arc::new(Inline),
            host: HostId::new(1),
            host_name: "sim".into(),
        };
        let groups = vec![GroupSpec::data(rule_for("single", 1).unwrap(), sim.devices())];
        let pool = Pool::create(world, PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        for (name, value) in properties {
            pool.set_property(ROOT_DATASET, name, value).unwrap();
        }
        pool.set_pool_property("memory", "4194304").unwrap();
        let dataset = pool.dataset(ROOT_DATASET).unwrap();
        Volume::open(pool, dataset, (0, 0)).unwrap()
    }

    #[test]
    fn a_batch_that_ends_within_a_stream_ends_where_a_write_does() {
        for len in [777, 3_001, 9_001] {
            let properties = [("recordsize", "16384"), ("chunking", "content"), ("compression", "off")];
            let volume = volume(&properties);
            let new = NewInode::plain(FileKind::Regular, 0o644);
            let caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
            let id = volume.make(ROOT_INODE, b"file", new, &caller).unwrap().node.unpack().1;
            let rng = SeededEntropy::new(len);
            for at in (0..400_000).step_by(len as usize) {
                let bytes = rng.bytes(len as usize);
                volume.write(id, Some(at), &bytes, false).unwrap();
            }
            let mut todo = Todo::from([(id, 0..u64::MAX)]);
            let mut batches = 0;
            while !todo.is_empty() {
                volume.flush_batch(&volume.pool.enter().unwrap(), &mut todo).unwrap();
                let size = volume.inode(id).unwrap().lock().unwrap().tree.size;
                assert_eq!(size % len, 0, "the last write of {len} bytes is torn at {size}");
                batches += 1;
            }
            assert!(batches > 1);
        }
    }

    #[test]
    fn what_is_left_of_a_divided_record_outlives_the_snapshot_that_had_it_whole() {
        let mut divided = 0;
        for len in [777, 3_001, 9_001] {
            let properties = [("recordsize", "16384"), ("chunking", "content"), ("compression", "off")];
            let volume = volume(&properties);
            let pool = Arc::clone(&volume.pool);
            let new = NewInode::plain(FileKind::Regular, 0o644);
            let caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
            let id = volume.make(ROOT_INODE, b"file", new, &caller).unwrap().node.unpack().1;
            let rng = SeededEntropy::new(len);
            let write = || {
                let bytes = rng.bytes(300_000);
                for (at, part) in (0..).step_by(len as usize).zip(bytes.chunks(len as usize)) {
                    volume.write(id, Some(at), part, false).unwrap();
                }
                bytes
            };
            let old = write();
            volume.flush_all().unwrap();
            pool.snapshot(ROOT_DATASET, "whole").unwrap();
            let now = write();
            let mut todo = Todo::from([(id, 0..u64::MAX)]);
            for batch in 0.. {
                if todo.is_empty() {
                    break;
                }
                volume.flush_batch(&pool.enter().unwrap(), &mut todo).unwrap();
                let found =
                    crate::extents::extents(&volume.dataset.view().unwrap(), id, 0..u64::MAX, usize::MAX)
                        .unwrap();
                let is_divided = found.iter().any(|(_, extent)| extent.block_offset > 0);
                divided += usize::from(is_divided);
                let name = format!("{batch}");
                pool.snapshot(ROOT_DATASET, &name).unwrap();
                let older =
                    pool.snapshots(ROOT_DATASET).into_iter().filter(|one| is_divided && one.name != name);
                let older: Vec<_> = older.map(|one| (ROOT_DATASET, one.name)).collect();
                pool.destroy_snapshots(&older).unwrap();
                for _ in 0..3 {
                    while pool.destroy_step(1).unwrap() {}
                    pool.commit().unwrap();
                    while pool.free_step(8).unwrap() {}
                }
                for (_, extent) in &found {
                    assert!(!pool.store().places_of(extent.ptr.id).unwrap().is_empty(), "batch {batch}");
                }
                pool.store().drop_caches();
                let part = pool.snapshot_dataset(ROOT_DATASET, &name).unwrap();
                let part = Volume::open(Arc::clone(&pool), part, (0, 0)).unwrap();
                let read = part.read(id, 0, u32::MAX).unwrap().to_vec();
                let end = read.iter().zip(&now).take_while(|(a, b)| a == b).count();
                assert!(read[end..] == old[end..], "batch {batch}");
            }
        }
        assert!(divided > 0);
    }
}
