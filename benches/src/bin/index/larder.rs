//! Larder's index, and what the block map has of fingerprints.

use crate::row::{Against, Figures, print};
use crate::store::Store;
use larder_benches::{process, timing};
use larder_device::{Entropy, SeededEntropy};
use larder_format::run::Places;
use larder_format::{BlockId, Fingerprint, Place, SegmentId};
use larder_pool::index_limits;
use larder_sorted::index::{Changes, Index, Limits};
use larder_sorted::map::{BlockMap, Update};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// Fingerprints that are looked up together.
const BATCH: u64 = 64;
/// Entries between steps of merging, and the pages of a step.
const STEP_ENTRIES: u64 = 1024;
const STEP_PAGES: usize = 32;
/// Blocks between checkpoints of the map: a commit every few seconds.
const COMMIT: u64 = 8192;
/// Pages of the map's merges for each commit.
const MAP_PAGES: usize = 512;
/// Records of a stream that was written together.
const STREAM: u64 = 1 << 16;
/// A measurement ends after this long.
const LONG: Duration = Duration::from_secs(5);
/// Turns of a comparison.
const TURNS: usize = 9;
/// Fingerprints between two looks at the disk, and such stretches between two lines that tell how far it is.
const STRETCH: u64 = 1_000_000;
const STRETCHES_TOLD: u64 = 25;
/// Ids that the pool gave out before.
const FIRST_ID: u64 = 1_000_000;
/// Fingerprints from here on are in no index.
const NEW: u64 = 1 << 40;

impl Against {
    fn in_turns(one: &mut Larder, other: &mut Larder, rate: impl Fn(&mut Larder) -> f64) -> Self {
        let median = |mut ratios: Vec<f64>| {
            ratios.sort_by(f64::total_cmp);
            ratios[ratios.len() / 2]
        };
        // Looks up about as many each time: the times of both are of the same work.
        let timed = |larder: &mut Larder| {
            let (processor, waited) = (process::own_cpu_time(), larder.store.waited.get());
            let (rate, took) = timing(|| rate(larder));
            let processor = process::own_cpu_time() - processor;
            let awake = took.saturating_sub(larder.store.waited.get() - waited);
            [1.0 / rate, processor.as_secs_f64(), awake.as_secs_f64()]
        };
        let mut ratios = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            let (times, of_other) = (timed(one), timed(other));
            for (ratios, (time, of_other)) in ratios.iter_mut().zip(times.into_iter().zip(of_other)) {
                ratios.push(of_other / time.max(1e-9));
            }
        }
        let [wall, processor, without_reads] = ratios.map(median);
        Self { wall, processor, without_reads }
    }
}

/// An index and a map under load.
pub struct Larder {
    store: Store,
    index: Index,
    map: Option<BlockMap>,
    count: u64,
    /// Look-ups of a measurement, at most.
    pub most: u64,
    /// The disk has no room for more.
    pub is_cut_short: bool,
    /// The next fingerprint that is in no index.
    fresh: u64,
    rng: SeededEntropy,
    before: u64,
}

fn limits(memory: u64) -> Limits {
    let limits = index_limits(memory);
    // Between two steps there has to be room.
    Limits { memtable: limits.memtable.max(1 << 20), ..limits }
}

fn id(n: u64) -> BlockId {
    BlockId::new(FIRST_ID + n)
}

impl Larder {
    /// Empty, with pages in `dir`, for at most `most` fingerprints.
    pub fn new(dir: &Path, most: u64, with_map: bool) -> Self {
        let before = process::resident_memory();
        // The index, the map, the room of merges.
        let store = Store::new(dir, (1 << 30) + most * 80);
        let map = with_map.then(BlockMap::new);
        let index = Index::new(limits(0));
        Self {
            store,
            index,
            map,
            count: 0,
            most: 5_000_000,
            is_cut_short: false,
            fresh: NEW,
            rng: SeededEntropy::new(1),
            before,
        }
    }

    fn note(&mut self, changes: Changes) {
        let of = |parts: &[larder_format::index::PartDescriptor]| {
            parts.iter().flat_map(|part| part.run.footprints.clone()).collect::<Vec<_>>()
        };
        self.store.keep(&of(&changes.added));
        self.store.release(&of(&changes.removed));
    }

    fn step(&mut self) {
        if self.index.is_full() {
            self.index.flush(id(self.count));
        }
        let progress = self.index.merge_step(&mut self.store, STEP_PAGES).expect("the device works");
        self.note(progress.changes);
    }

    fn commit(&mut self) {
        if let Some(map) = &mut self.map {
            let mut changes = vec![map.checkpoint(&mut self.store).expect("the device works")];
            changes.push(map.merge_step(&mut self.store, MAP_PAGES).expect("the device works").changes);
            for changes in changes {
                self.store.keep(changes.added.iter().flat_map(|run| &run.footprints));
                self.store.release(changes.removed.iter().flat_map(|run| &run.footprints));
            }
        }
        let unfinished = self.index.unfinished().into_iter();
        let of_map = self.map.iter().flat_map(BlockMap::unfinished).collect::<Vec<_>>();
        self.store.collect(unfinished.chain(of_map));
    }

    /// One more record of 128 KiB, incompressible.
    fn insert_next(&mut self) {
        const STORED: u32 = 131_216;
        const RECORDS: u64 = 255;
        let (n, print) = (self.count, print(self.count));
        self.index.insert(print, id(n));
        if let Some(map) = &mut self.map {
            let place = Place {
                segment: SegmentId::new(1 + n / RECORDS),
                column: 0,
                offset: 4096 + (n % RECORDS) as u32 * STORED,
                stored: STORED,
            };
            map.apply(Update::Put { id: id(n), places: Places::new(&[place]).expect("it lies in a slot") });
            map.apply(Update::Print { id: id(n), print });
        }
        self.count += 1;
        if self.count.is_multiple_of(STEP_ENTRIES) {
            self.step();
        }
        if self.count.is_multiple_of(COMMIT) {
            self.commit();
        }
    }

    fn probe(&self, prints: &[Fingerprint]) -> Vec<Option<BlockId>> {
        self.index.probe(prints).finish(&self.store, &mut u64::MAX.clone())
    }

    /// Calls `batch` until it was long enough, or has done `most`; what it did a second. It says how much that was.
    fn rate(&mut self, most: u64, mut batch: impl FnMut(&mut Self) -> u64) -> f64 {
        let (mut done, mut time) = (0, Duration::ZERO);
        while done < most && time < LONG {
            let (more, took) = timing(|| batch(self));
            done += more;
            time += took;
        }
        done as f64 / time.as_secs_f64()
    }

    /// Grows to `count` fingerprints with `memory` bytes for the pool, or as far as the disk has room; measures what
    /// there is to be measured then.
    pub fn measure(&mut self, count: u64, memory: u64) -> Figures {
        self.index.set_limits(limits(memory));
        let (from, written) = (self.count, self.store.written);
        let mut grown = Duration::ZERO;
        while self.count < count {
            let to = count.min(self.count + STRETCH);
            let ((), took) = timing(|| (self.count..to).for_each(|_| self.insert_next()));
            grown += took;
            if (to - from) % (STRETCH * STRETCHES_TOLD) < STRETCH {
                let (seconds, file) = (grown.as_secs(), self.store.file_bytes() >> 20);
                eprintln!(
                    "{} million, {seconds} s from {from} on; the file takes {file} MiB",
                    to / 1_000_000
                );
            }
            if self.store.is_disk_short() {
                eprintln!("the disk is short: {to} instead of {count}");
                self.is_cut_short = true;
                break;
            }
        }
        let count = self.count;
        let inserts = (count - from) as f64 / grown.as_secs_f64();
        let written = (self.store.written - written) as f64 / (count - from) as f64;
        let file = self.store.file_bytes();
        let figures = self.index.figures();
        let resident = process::resident_memory().saturating_sub(self.before);
        let of_map = self.map.as_ref().map_or(0, BlockMap::memory_bytes) as u64;
        let ram =
            figures.filter_bytes + figures.memtable_bytes + figures.page_index_bytes + figures.merge_bytes;

        let sampling = self.index.sampling();
        let is_kept = |n: u64| print(n).low().is_multiple_of(sampling);
        let (reads, waited, fresh) = (self.store.reads.get(), self.store.waited.get(), self.fresh);
        let misses = self.misses(self.most);
        let missed = (self.fresh - fresh) as f64;
        let miss_reads = (self.store.reads.get() - reads) as f64 / missed;
        let miss_waits = (self.store.waited.get() - waited).as_secs_f64() * 1e9 / missed;
        let hits_random = self.rate(self.most / 5, |this| {
            let asked: Vec<u64> = (0..BATCH).map(|_| this.rng.next_u64() % count).collect();
            let prints: Vec<_> = asked.iter().map(|n| print(*n)).collect();
            for (n, found) in asked.into_iter().zip(this.probe(&prints)) {
                assert_eq!(found, is_kept(n).then(|| id(n)), "what was put in is found");
            }
            BATCH
        });
        let hits_in_order = self.map.is_some().then(|| self.in_order(self.most / 5));
        let mut fresh = 0;
        // Few enough for what is compared with others afterwards to be of this size still.
        let look_up_and_insert = self.rate((self.most / 5 * 2).min(count / 10), |this| {
            let prints: Vec<_> = (this.count..this.count + BATCH).map(print).collect();
            fresh += this.probe(&prints).iter().filter(|found| found.is_none()).count() as u64;
            (0..BATCH).for_each(|_| this.insert_next());
            BATCH
        });
        assert!(fresh > 0);
        let map_bytes = self.map.iter().flat_map(BlockMap::descriptors);
        let map_bytes: u64 = map_bytes.flat_map(|run| &run.footprints).map(|f| f.bytes).sum();
        let now = self.index.figures();
        assert_eq!((now.damaged, now.dropped), (0, 0), "{now:?}");
        Figures {
            who: "larder".into(),
            count,
            memory,
            sampling,
            runs: figures.runs,
            inserts,
            misses,
            miss_reads,
            miss_waits,
            hits_random,
            hits_in_order,
            look_up_and_insert,
            disk: figures.disk_bytes as f64 / count as f64,
            disk_with_map: self
                .map
                .as_ref()
                .map(|_| now.disk_bytes as f64 / self.count as f64 + map_bytes as f64 / self.count as f64),
            file: Some(file as f64 / count as f64),
            to_first: None,
            ram: ram as f64 / count as f64,
            resident: resident.saturating_sub(of_map) as f64 / count as f64,
            written,
        }
    }

    /// Look-ups a second of fingerprints that are not there; `most` of them.
    fn misses(&mut self, most: u64) -> f64 {
        self.rate(most, |this| {
            let prints: Vec<_> = (this.fresh..this.fresh + BATCH).map(print).collect();
            this.fresh += BATCH;
            assert!(this.probe(&prints).iter().all(Option::is_none), "new fingerprints are not there");
            BATCH
        })
    }

    /// Its speed over that of `other`, measured in turns, so that other load meets both: misses, and with a map hits
    /// in order of writing.
    pub fn against(&mut self, other: &mut Self) -> (Against, Option<Against>) {
        let misses = Against::in_turns(self, other, |this| this.misses(200_000));
        let with_map = self.map.is_some();
        let in_order = with_map.then(|| Against::in_turns(self, other, |this| this.in_order(100_000)));
        (misses, in_order)
    }

    /// Streams of duplicates, as a pool finds them: a record that no neighbourhood answers is looked up, and what the
    /// map has around it answers for those that follow.
    fn in_order(&mut self, most: u64) -> f64 {
        let count = self.count;
        let stream = STREAM.min(count / 2);
        self.rate(most, |this| {
            let start = this.rng.next_u64() % (count - stream);
            let mut near: HashMap<Fingerprint, BlockId> = HashMap::new();
            let mut found = 0;
            for n in start..start + stream {
                let print = print(n);
                let known = near.get(&print).copied().or_else(|| {
                    let id = this.probe(&[print]).remove(0)?;
                    this.learn(id, &mut near);
                    near.get(&print).copied()
                });
                assert!(known.is_none_or(|known| known == id(n)));
                found += u64::from(known.is_some());
            }
            found
        })
    }

    fn learn(&self, id: BlockId, near: &mut HashMap<Fingerprint, BlockId>) {
        let map = self.map.as_ref().expect("streams are measured with a map");
        let read = map.around(id).read(&self.store).expect("the device works");
        near.extend(map.neighbours(&read).filter_map(|(id, entry)| Some((entry.print?, id))));
    }
}
