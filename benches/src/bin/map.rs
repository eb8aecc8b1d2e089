//! The block map alone: bytes an entry, write amplification, look-ups. Pages live in memory, so that what
//! is measured is the map. `cargo run --release -p larder-benches --bin map`

use larder_device::{Entropy, SeededEntropy};
use larder_format::run::{Places, RunDescriptor};
use larder_format::{BlockId, BlockPtr, Corrupt, Place, SegmentId};
use larder_sorted::map::{BlockMap, Changes, Update};
use larder_sorted::{PageReader, PageWriter};
use std::collections::BTreeMap;
use std::sync::Arc;

const PUTS: u64 = 1_000_000;

/// Pages in memory.
#[derive(Default)]
struct Pages {
    stored: BTreeMap<BlockId, Arc<[u8]>>,
    next: u64,
    written: u64,
}

impl PageReader for Pages {
    type Error = Corrupt;
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>, Corrupt> {
        Ok(Arc::clone(&self.stored[&ptr.id]))
    }
    fn refused(&self, _: BlockPtr, why: Corrupt) -> Corrupt {
        why
    }
}

impl PageWriter for Pages {
    fn write_page(&mut self, payload: &[u8]) -> Result<BlockPtr, Corrupt> {
        self.next += 1;
        self.written += payload.len() as u64;
        let id = BlockId::new(self.next);
        self.stored.insert(id, payload.into());
        let place = Place {
            segment: SegmentId::new(1 + self.next / 1000),
            column: 0,
            offset: 4096 + (self.next % 1000) as u32 * 32_768,
            stored: payload.len() as u32,
        };
        Ok(BlockPtr { id, place })
    }
}

/// A map, its pages and its runs.
struct Bench {
    map: BlockMap,
    pages: Pages,
    runs: BTreeMap<u64, RunDescriptor>,
}

impl Bench {
    fn new() -> Self {
        Self { map: BlockMap::new(), pages: Pages::default(), runs: BTreeMap::new() }
    }

    fn note(&mut self, changes: Changes) {
        changes.removed.iter().for_each(|run| drop(self.runs.remove(&run.run.get())));
        self.runs.extend(changes.added.into_iter().map(|run| (run.run.get(), run)));
    }

    /// A commit's part in the map: a checkpoint and a merge step.
    fn commit(&mut self) {
        let changes = self.map.checkpoint(&mut self.pages).expect("memory does not fail");
        self.note(changes);
        self.merge();
    }

    fn merge(&mut self) -> bool {
        let progress = self.map.merge_step(&mut self.pages, 256).expect("memory does not fail");
        self.note(progress.changes);
        progress.pending
    }

    fn bytes(&self) -> u64 {
        self.map.descriptors().map(|run| run.bytes).sum()
    }

    /// Puts [`PUTS`] blocks as a stream of 128 KiB records leaves them over `k` columns.
    fn fill(&mut self, every: u64, k: u8, stored: impl Fn(u64) -> u32) {
        for (n, (id, places)) in (1..).zip(stream(k, stored)) {
            self.map.apply(Update::Put { id, places });
            if n % every == 0 {
                self.commit();
            }
        }
        self.commit();
        while self.merge() {}
    }
}

fn noise(n: u64) -> u64 {
    SeededEntropy::new(n).next_u64()
}

fn full(_: u64) -> u32 {
    131_216
}

fn compressed(n: u64) -> u32 {
    60_000 + (noise(n) % 70_000) as u32
}

/// Ids and places that ascend: stripes of 1 MiB over `k` columns in slots of 32 MiB.
fn stream(k: u8, stored: impl Fn(u64) -> u32) -> impl Iterator<Item = (BlockId, Places)> {
    const HEADER: u32 = 64 + 16 * 6;
    let (mut segment, mut stripe, mut ends) = (100, 4096, vec![4096 + HEADER; usize::from(k)]);
    (0..PUTS).map(move |n| {
        let stored = stored(n);
        let mut column = (0..ends.len()).min_by_key(|column| ends[*column]).unwrap_or(0);
        if ends[column] + stored > stripe + (1 << 20) {
            stripe += 1 << 20;
            if stripe + (1 << 20) > 32 << 20 {
                (segment, stripe) = (segment + 1, 4096);
            }
            ends.fill(stripe + HEADER);
            column = 0;
        }
        let place =
            Place { segment: SegmentId::new(segment), column: column as u8, offset: ends[column], stored };
        ends[column] += place.footprint();
        (BlockId::new(PUTS + n), Places::new(&[place]).expect("it lies in a slot"))
    })
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
fn main() {
    println!(
        "{:>2} {:>14} {:>13} {:>8} {:>6} {:>9}",
        "k", "records", "puts/commit", "B/entry", "runs", "written"
    );
    for (k, what, stored) in [
        (1, "incompressible", full as fn(u64) -> u32),
        (1, "compressed", compressed),
        (4, "incompressible", full),
        (4, "compressed", compressed),
    ] {
        for every in [100, 1_000, 10_000] {
            let mut bench = Bench::new();
            bench.fill(every, k, stored);
            let amplification = bench.pages.written as f64 / bench.bytes() as f64;
            println!(
                "{k:>2} {what:>14} {every:>13} {:>8.2} {:>6} {amplification:>8.2}x",
                bench.bytes() as f64 / PUTS as f64,
                bench.runs.len()
            );
        }
    }
    for (what, resident) in [("all resident", u64::MAX), ("pages from a cache", 0)] {
        let mut bench = Bench::new();
        bench.map.set_resident_limit(resident);
        bench.fill(10_000, 4, compressed);
        let start = std::time::Instant::now();
        for n in 0..PUTS {
            let found = bench.map.get(BlockId::new(PUTS + noise(n) % PUTS), &bench.pages);
            assert!(found.expect("memory does not fail").is_some());
        }
        println!("random get, {what}: {} ns", start.elapsed().as_nanos() / u128::from(PUTS));
    }
}
