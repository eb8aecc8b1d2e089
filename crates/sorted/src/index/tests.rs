use super::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::{BlockPtr, Corrupt, Place};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::HashMap;

#[derive(Debug, PartialEq, Eq)]
enum Failure {
    Io,
    Refused(Corrupt),
}

/// Blocks in memory, in segments of 256 KiB.
#[derive(Default)]
struct Blocks {
    stored: HashMap<BlockId, (BlockPtr, Arc<[u8]>)>,
    bytes_written: u64,
    reads: Cell<u64>,
    /// Writes that still succeed.
    writes_left: Option<usize>,
    /// No page can be read.
    away: bool,
}

impl PageReader for Blocks {
    type Error = Failure;
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>, Failure> {
        self.reads.set(self.reads.get() + 1);
        if self.away {
            return Err(Failure::Io);
        }
        let (at, bytes) = self.stored.get(&ptr.id).expect("only live pages are read");
        assert_eq!(*at, ptr);
        Ok(Arc::clone(bytes))
    }
    fn refused(&self, _: BlockPtr, why: Corrupt) -> Failure {
        Failure::Refused(why)
    }
}

impl PageWriter for Blocks {
    fn write_page(&mut self, payload: &[u8]) -> Result<BlockPtr, Failure> {
        if let Some(left) = &mut self.writes_left {
            *left = left.checked_sub(1).ok_or(Failure::Io)?;
        }
        let id = BlockId::new(1 << 40 | self.bytes_written);
        let stored = payload.len() as u32 + 144;
        self.bytes_written += u64::from(stored.next_multiple_of(8));
        let segment = SegmentId::new(self.bytes_written >> 18);
        let place = Place { segment, column: 0, offset: 4096, stored };
        let ptr = BlockPtr { id, place };
        self.stored.insert(id, (ptr, payload.into()));
        Ok(ptr)
    }
}

/// The fingerprint of content number `n`. The check's low bits are those of `n`.
fn print(n: u64) -> Fingerprint {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&SeededEntropy::new(n).next_u64().to_be_bytes());
    bytes[8..].copy_from_slice(&n.to_be_bytes());
    Fingerprint::new(bytes)
}

/// The part that a page is of.
fn part_of(page: &[u8]) -> RunId {
    RunId::new(u64::from_le_bytes(page[..8].try_into().unwrap()))
}

const LIMITS: Limits = Limits { filters: usize::MAX, memtable: usize::MAX };

/// An index, what it has to know, and what the pool's tables would hold.
struct Bench {
    blocks: Blocks,
    index: Index,
    limits: Limits,
    tables: BTreeMap<RunId, Vec<u8>>,
    next: u64,
    live: BTreeMap<u64, BlockId>,
    /// The id that each content had when it was removed, if the index has not forgotten that.
    gone: BTreeMap<u64, BlockId>,
    /// Every id that a content had.
    had: BTreeMap<u64, Vec<BlockId>>,
}

impl Bench {
    fn new(limits: Limits) -> Self {
        Self {
            blocks: Blocks::default(),
            index: Index::new(limits),
            limits,
            tables: BTreeMap::new(),
            next: 1,
            live: BTreeMap::new(),
            gone: BTreeMap::new(),
            had: BTreeMap::new(),
        }
    }

    fn insert(&mut self, n: u64) {
        let id = BlockId::new(self.next);
        self.next += 1;
        self.index.insert(print(n), id);
        self.live.insert(n, id);
        self.gone.remove(&n);
        self.had.entry(n).or_default().push(id);
    }

    fn remove(&mut self, n: u64) {
        if let Some(id) = self.live.remove(&n) {
            self.index.remove(print(n), id);
            self.gone.insert(n, id);
        }
    }

    fn flush(&mut self) -> bool {
        self.index.flush(BlockId::new(self.next))
    }

    fn note(&mut self, changes: Changes) {
        for part in changes.removed {
            let was = self.tables.remove(&part.run.run).expect("a part leaves that was there");
            assert_eq!(PartDescriptor::decode(&was), Ok((part.clone(), was.len())));
            self.blocks.stored.retain(|_, (_, bytes)| part_of(bytes) != part.run.run);
        }
        for part in changes.added {
            let mut bytes = Vec::new();
            part.encode(&mut bytes);
            assert!(self.tables.insert(part.run.run, bytes).is_none(), "run numbers are not used again");
        }
    }

    fn step(&mut self, pages: usize) -> bool {
        let progress = self.index.merge_step(&mut self.blocks, pages).expect("memory does not fail");
        self.note(progress.changes);
        progress.pending
    }

    fn settle(&mut self) {
        while self.step(1000) {}
    }

    /// Opens what the tables have, and walks the map from `covered` on.
    fn reopen(&mut self) {
        let descriptors =
            self.tables.values().map(|bytes| PartDescriptor::decode(bytes).unwrap().0).collect();
        let (index, lost) = Index::open(descriptors, self.limits, &self.blocks);
        assert!(lost.is_empty());
        self.index = index;
        self.gone.clear();
        let covered = self.index.covered();
        for (n, id) in self.live.iter().filter(|(_, id)| **id >= covered) {
            self.index.insert(print(*n), *id);
        }
        self.blocks.stored.retain(|_, (_, bytes)| self.tables.contains_key(&part_of(bytes)));
    }

    fn find(&self, contents: &[u64]) -> Vec<Option<BlockId>> {
        let prints: Vec<_> = contents.iter().map(|n| print(*n)).collect();
        self.index.probe(&prints).finish(&self.blocks, &mut u64::MAX.clone())
    }

    fn kept(&self, n: u64) -> bool {
        n.is_multiple_of(self.index.sampling())
    }

    fn check(&self, contents: impl Iterator<Item = u64>) {
        let contents: Vec<_> = contents.collect();
        // Parts whose filter has no room are not asked before they are rewritten.
        let all_asked = self.index.runs.parts().all(|part| part.filter.is_some());
        for (n, found) in contents.iter().zip(self.find(&contents)) {
            if !all_asked {
                assert!(found.is_none_or(|id| self.had[n].contains(&id)), "content {n} never was {found:?}");
                continue;
            }
            match self.live.get(n).filter(|_| self.kept(*n)) {
                Some(id) => assert_eq!(found, Some(*id), "content {n}"),
                None if !self.kept(*n) => assert_eq!(found, None, "content {n} is not in the sample"),
                None => {
                    assert!(
                        found.is_none_or(|id| self.had[n].contains(&id)),
                        "content {n} never was {found:?}"
                    );
                    assert!(found.is_none() || found != self.gone.get(n).copied(), "content {n} is gone");
                }
            }
        }
    }

    /// Descriptors say truly what their parts take, once nothing is under way. A part that a single step wrote and
    /// merged is in none and nobody heard of it: its pages are no one's, and go with their segments.
    fn check_space(&self) {
        assert_eq!(self.index.unfinished(), []);
        let sum = |all: &mut dyn Iterator<Item = Footprint>| {
            let mut sums: BTreeMap<_, (u32, u64)> = BTreeMap::new();
            for footprint in all {
                let sum = sums.entry(footprint.segment).or_default();
                *sum = (sum.0 + footprint.blocks, sum.1 + footprint.bytes);
            }
            sums
        };
        let stored = self.blocks.stored.values();
        let stored = stored.filter(|(_, bytes)| self.tables.contains_key(&part_of(bytes)));
        let stored = stored.map(|(ptr, _)| Footprint {
            segment: ptr.place.segment,
            blocks: 1,
            bytes: ptr.place.footprint().into(),
        });
        let named = self.index.descriptors().flat_map(|part| part.run.footprints.iter().copied());
        assert_eq!(sum(&mut stored.into_iter()), sum(&mut named.into_iter()));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u64),
    Remove(u64),
    Burst(u64, u64),
    Clear(u64, u64),
    Flush,
    Merge(usize),
    FailedMerge(usize),
    Reopen,
    Evacuate,
}

fn any_step() -> impl Strategy<Value = Step> {
    const CONTENTS: u64 = 20_000;
    prop_oneof![
        20 => (0..CONTENTS).prop_map(Step::Insert),
        10 => (0..CONTENTS).prop_map(Step::Remove),
        8 => (0..CONTENTS, 1..3000u64).prop_map(|(from, len)| Step::Burst(from, len)),
        4 => (0..CONTENTS, 1..3000u64).prop_map(|(from, len)| Step::Clear(from, len)),
        16 => Just(Step::Flush),
        16 => (1..4usize).prop_map(Step::Merge),
        6 => (10..200usize).prop_map(Step::Merge),
        2 => (0..20usize).prop_map(Step::FailedMerge),
        2 => Just(Step::Reopen),
        1 => Just(Step::Evacuate),
    ]
}

fn cases() -> u32 {
    if std::env::var_os("LARDER_LARGE").is_some() { 400 } else { 40 }
}

/// Takes the steps, and looks for everything.
fn go_through(steps: impl IntoIterator<Item = Step>, filters: usize) {
    let mut bench = Bench::new(Limits { filters, ..LIMITS });
    for step in steps {
        match step {
            Step::Insert(n) => bench.insert(n),
            Step::Remove(n) => bench.remove(n),
            Step::Burst(from, len) => (from..from + len).for_each(|n| bench.insert(n)),
            Step::Clear(from, len) => (from..from + len).for_each(|n| bench.remove(n)),
            Step::Flush => drop(bench.flush()),
            Step::Merge(pages) => drop(bench.step(pages)),
            Step::FailedMerge(writes) => {
                bench.blocks.writes_left = Some(writes);
                if let Ok(progress) = bench.index.merge_step(&mut bench.blocks, 50) {
                    bench.note(progress.changes);
                }
                bench.blocks.writes_left = None;
            }
            Step::Reopen => bench.reopen(),
            Step::Evacuate => drop(bench.index.evacuate(|segment| segment.get() % 2 == 0)),
        }
    }
    bench.check((0..23_000).step_by(7));
    bench.settle();
    bench.check(0..23_000);
    bench.reopen();
    bench.check((0..23_000).step_by(3));
    bench.settle();
    bench.check_space();
    assert_eq!(bench.index.figures().damaged, 0);
    assert!(bench.index.figures().filter_bytes <= filters as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn every_fingerprint_is_found_that_should_be(
        steps in proptest::collection::vec(any_step(), 1..150),
        filters in prop_oneof![3 => Just(usize::MAX), 1 => Just(4_000)],
    ) {
        go_through(steps, filters);
    }
}

#[test]
fn a_fold_goes_on_behind_what_is_left_when_the_last_part_is_gone() {
    use Step::{Burst, Clear, FailedMerge, Flush, Insert, Merge};
    // Found by the test above: the sampling doubled while the base was folded, and nothing of its last part was kept.
    let steps = [
        Insert(762),
        Insert(17262),
        Burst(12683, 1024),
        Flush,
        Clear(10881, 2824),
        FailedMerge(4),
        Flush,
        Merge(31),
        Burst(0, 1161),
        Burst(1157, 2646),
        Flush,
        Insert(0),
    ];
    go_through(steps, 4000);
}

/// An index of `count` contents, a memtable for each `every`.
fn filled(limits: Limits, count: u64, every: u64) -> Bench {
    let mut bench = Bench::new(limits);
    for n in 0..count {
        bench.insert(n);
        if n % every == every - 1 {
            while !bench.flush() {
                bench.step(10);
            }
        }
        bench.step(usize::from(n % 50 == 0));
    }
    bench.flush();
    bench
}

#[test]
fn what_was_never_used_costs_nothing() {
    let mut bench = Bench::new(LIMITS);
    bench.index.remove(print(1), BlockId::new(1));
    assert!(bench.flush());
    assert!(!bench.step(100));
    bench.check(0..100);
    let figures = bench.index.figures();
    assert_eq!(figures, Figures { sampling: 1, ..Figures::default() });
    assert_eq!((bench.blocks.reads.get(), bench.blocks.bytes_written), (0, 0));
    assert_eq!(bench.index.covered(), BlockId::new(1));
}

#[test]
fn runs_stay_few_and_entries_are_written_a_dozen_times() {
    let count = 200 * PART_PRINTS as u64;
    let mut bench = filled(LIMITS, count, PART_PRINTS as u64);
    let figures = bench.index.figures();
    assert!(figures.runs <= 2 * UPPER_RUNS + 1, "{figures:?}");
    bench.settle();
    let figures = bench.index.figures();
    assert!(figures.runs <= UPPER_RUNS + 1, "{figures:?}");
    let written = bench.blocks.bytes_written as f64 / figures.disk_bytes as f64;
    assert!(written < 16.0, "{written} times");
    let of = |bytes: u64| bytes as f64 / count as f64;
    assert!(of(figures.disk_bytes) < 20.0 && of(figures.filter_bytes) < 1.7, "{figures:?}");
    let parts = bench.index.descriptors().count();
    assert!(parts <= 350, "{parts} parts");
    bench.check((0..count).step_by(97));
}

#[test]
fn a_look_up_reads_one_page_and_a_new_fingerprint_few() {
    let count = 50 * PART_PRINTS as u64;
    let mut bench = filled(LIMITS, count, PART_PRINTS as u64);
    bench.settle();
    let reads = |from: u64| {
        let before = bench.blocks.reads.get();
        bench.check(from..from + 10_000);
        bench.blocks.reads.get() - before
    };
    assert!(reads(0) <= 10_100, "hits: {}", reads(0));
    assert!(reads(count) <= 60, "misses: {}", reads(count));
    assert_eq!(bench.index.figures().refused, 0);
}

#[test]
fn a_new_fingerprint_asks_no_run_above_the_base_however_many_there_are() {
    let count = 100 * PART_PRINTS as u64;
    let mut bench = Bench::new(Limits { filters: 1 << 20, ..LIMITS });
    let mut most_runs = 0;
    for n in 0..count {
        bench.insert(n);
        if n % 500 == 499 {
            while !bench.flush() {
                bench.step(10);
            }
        }
        bench.step(usize::from(n % 50 == 0));
        if n % 5000 == 0 {
            most_runs = most_runs.max(bench.index.figures().runs);
            let prints: Vec<_> = (count..count + 1000).map(print).collect();
            let probe = bench.index.probe(&prints);
            let recent = probe.asks.iter().filter(|ask| ask.recent).count();
            assert!(recent < 60, "{recent} of 1000 with {n}");
            bench.check((0..=n).step_by(37));
        }
    }
    assert!(most_runs > 3, "{most_runs}");
    let recent = bench.index.recent.memory_bytes();
    assert!(recent <= count as usize / 2, "{recent}");
    // Runs of an earlier import are asked themselves.
    bench.reopen();
    bench.insert(count);
    bench.check((0..=count).step_by(37));
}

#[test]
fn what_is_young_takes_what_parts_leave_and_finds_everything_even_so() {
    let mut bench = filled(LIMITS, 20_000, 10_000);
    for n in 0..20 {
        bench.limits.filters = 40_000 - 1_000 * n;
        bench.index.set_limits(bench.limits);
        bench.step(30);
        let figures = bench.index.figures();
        let of_parts = bench.index.part_filters();
        assert!(figures.filter_bytes <= bench.limits.filters as u64 || figures.filter_bytes == of_parts);
        bench.check(0..20_000 + n as u64);
        bench.insert(20_000 + n as u64);
    }
}

#[test]
fn what_is_folded_is_not_hidden_by_what_an_older_run_still_has() {
    const PART: u64 = PART_PRINTS as u64;
    let mut bench = filled(LIMITS, 40 * PART, PART);
    bench.settle();
    let put = |bench: &mut Bench| {
        assert!(bench.flush());
        while bench.index.frozen.is_some() {
            bench.step(1);
        }
    };
    // The newest run has more parts, which end before those of the older ones.
    (0..4 * PART).step_by(2).for_each(|n| bench.insert(n));
    put(&mut bench);
    (0..4 * PART).step_by(3).for_each(|n| bench.remove(n));
    put(&mut bench);
    (0..4 * PART).for_each(|n| bench.insert(n));
    put(&mut bench);
    assert_eq!(bench.index.runs.uppers.len(), 3);
    let mut steps = 0;
    while bench.step(5) {
        bench.check((0..40 * PART).step_by(13));
        steps += 1;
        (0..4 * PART).skip(steps).step_by(97).for_each(|n| bench.remove(n));
    }
    assert!(steps > 10 && bench.index.runs.uppers.is_empty(), "{steps} steps");
}

#[test]
fn tokens_bound_the_pages_that_are_read() {
    let mut bench = filled(LIMITS, 10_000, 5_000);
    bench.settle();
    let prints: Vec<_> = (0..1000).map(print).collect();
    let before = bench.blocks.reads.get();
    let mut tokens = 5;
    let found = bench.index.probe(&prints).finish(&bench.blocks, &mut tokens);
    assert_eq!((tokens, bench.blocks.reads.get() - before), (0, 5));
    let hits = found.iter().filter(|id| id.is_some()).count() as u64;
    assert!(hits > 0);
    assert_eq!(bench.index.figures().refused, 1000 - hits);
}

#[test]
fn a_sample_remains_when_filters_take_too_much() {
    let limits = Limits { filters: 20_000, ..LIMITS };
    let mut bench = filled(limits, 100_000, 2_000);
    bench.settle();
    let figures = bench.index.figures();
    assert!(figures.filter_bytes <= limits.filters as u64, "{figures:?}");
    assert!((8..=32).contains(&figures.sampling), "{figures:?}");
    bench.check(0..100_000);
    let reads = bench.blocks.reads.get();
    assert_eq!(bench.find(&[1, 3, 5]), [None; 3]);
    assert_eq!(bench.blocks.reads.get(), reads, "what is not in the sample is not looked for");
    bench.reopen();
    assert_eq!(bench.index.sampling(), figures.sampling);
    bench.check((0..100_000).step_by(3));
}

#[test]
fn an_index_that_is_opened_with_less_memory_shrinks_to_it() {
    let mut bench = filled(LIMITS, 100_000, 20_000);
    bench.settle();
    bench.limits.filters = 10_000;
    bench.reopen();
    assert!(bench.index.figures().filter_bytes <= 20_000);
    assert!(bench.find(&(0..1000).collect::<Vec<_>>()).iter().any(Option::is_some));
    bench.settle();
    assert!(bench.index.figures().filter_bytes <= 10_000);
    bench.check(0..100_000);
}

#[test]
fn a_full_table_takes_nothing_while_the_one_before_waits() {
    let mut bench = Bench::new(Limits { memtable: 400_000, ..LIMITS });
    let mut n = 0;
    for _ in 0..2 {
        while !bench.index.is_full() {
            bench.insert(n);
            n += 1;
        }
        bench.flush();
    }
    assert!(!bench.flush(), "the first is not written");
    assert!(bench.index.figures().memtable_bytes <= 500_000);
    let (taken, id) = (n, BlockId::new(bench.next));
    for n in taken..taken + 100 {
        bench.index.insert(print(n), id);
    }
    assert_eq!(bench.index.figures().dropped, 100);
    bench.check(0..taken);
    bench.settle();
    assert!(bench.flush());
    bench.settle();
    bench.check(0..taken);
}

#[test]
fn a_look_up_sees_the_index_as_it_was_while_work_goes_on() {
    let mut bench = filled(LIMITS, 20_000, 4_000);
    let prints: Vec<_> = (0..500).map(print).collect();
    let mut work = bench.index.begin().expect("there is something to do");
    assert!(bench.index.begin().is_none(), "one at a time");
    work.run(&mut bench.blocks, 3).unwrap();
    let probe = bench.index.probe(&prints);
    bench.insert(77);
    bench.index.end(work);
    bench.check(0..500);
    // Pages of parts removed since are still there when the look-up ends.
    let pages: Vec<_> = bench.blocks.stored.iter().map(|(id, page)| (*id, page.clone())).collect();
    bench.settle();
    bench.blocks.stored.extend(pages);
    let found = probe.finish(&bench.blocks, &mut u64::MAX.clone());
    assert!(found.into_iter().zip(1..).all(|(found, id)| found == Some(BlockId::new(id))));
}

#[test]
fn damage_costs_answers_and_nothing_else() {
    let mut bench = filled(LIMITS, 40_000, 4_000);
    bench.settle();
    // One page in ten, whatever it holds: entries, a filter, references.
    let mut at = 0;
    for (_, bytes) in bench.blocks.stored.values_mut() {
        at += 1;
        if at % 10 == 0 {
            *bytes = bytes.iter().map(|byte| byte ^ 0x55).collect();
        }
    }
    let right = |bench: &Bench| {
        let contents: Vec<_> = (0..40_000).collect();
        let found = bench.find(&contents);
        let wrong = |(n, found): &(&u64, &Option<BlockId>)| found.is_some_and(|id| bench.live[n] != id);
        assert_eq!(contents.iter().zip(&found).find(wrong), None);
        found.iter().filter(|id| id.is_some()).count()
    };
    let there = right(&bench);
    assert!((30_000..40_000).contains(&there), "{there}");
    assert!(bench.index.figures().damaged > 0);
    // Parts without their filter or references are left out; the others go on through every merge.
    let descriptors = bench.tables.values().map(|bytes| PartDescriptor::decode(bytes).unwrap().0).collect();
    let (index, lost) = Index::open(descriptors, bench.limits, &bench.blocks);
    bench.index = index;
    assert!(bench.index.figures().damaged >= lost.len() as u64);
    lost.iter().for_each(|part| drop(bench.tables.remove(&part.run.run)));
    for n in 40_000..60_000 {
        bench.insert(n);
    }
    // A part of which nothing can be read is met twice before it goes.
    let settle = |bench: &mut Bench| {
        while bench.index.merge_step(&mut bench.blocks, 1000).map_or(true, |progress| {
            bench.note(progress.changes);
            progress.pending
        }) {}
    };
    bench.flush();
    settle(&mut bench);
    assert!(right(&bench) > 15_000);
    bench.check(40_000..60_000);
    bench.index.evacuate(|_| true);
    settle(&mut bench);
    bench.reopen();
    let damaged = bench.index.figures().damaged;
    assert!(right(&bench) > 15_000);
    assert_eq!(bench.index.figures().damaged, damaged, "what was rewritten is intact");
}

#[test]
fn a_device_that_is_away_empties_nothing() {
    let mut bench = filled(LIMITS, 3 * PART_PRINTS as u64, 1000);
    bench.settle();
    bench.index.evacuate(|_| true);
    bench.blocks.away = true;
    assert!(bench.index.merge_step(&mut bench.blocks, 1000).is_err());
    bench.blocks.away = false;
    bench.settle();
    bench.check(0..3 * PART_PRINTS as u64);
}

#[test]
fn evacuation_leaves_nothing_in_the_segments_named() {
    let mut bench = filled(LIMITS, 60_000, 4_000);
    let newest = bench.blocks.bytes_written >> 18;
    let leaves = |segment: SegmentId| segment.get() <= newest && segment.get().is_multiple_of(2);
    // Parts that a merge under way has written there are found when it is complete.
    let mut rounds = 0;
    while bench.index.evacuate(leaves) > 0 {
        bench.settle();
        rounds += 1;
    }
    assert!((1..4).contains(&rounds), "{rounds} rounds");
    bench.reopen();
    bench.check_space();
    bench.check(0..60_000);
}

#[test]
fn what_is_removed_leaves_the_base_in_the_end() {
    let mut bench = filled(LIMITS, 20_000, 4_000);
    bench.settle();
    (0..20_000).for_each(|n| bench.remove(n));
    bench.flush();
    bench.settle();
    bench.check(0..20_000);
    assert_eq!(bench.index.figures().entries, 0);
    assert!(bench.tables.is_empty());
}

#[test]
fn a_block_that_is_gone_hides_no_other() {
    let (a, b) = (BlockId::new(5), BlockId::new(6));
    for flushes in 0..8u8 {
        let mut bench = Bench::new(LIMITS);
        let flush_if = |bench: &mut Bench, bit: u8| {
            if flushes & bit != 0 {
                bench.flush();
                bench.step(100);
            }
        };
        bench.index.insert(print(1), a);
        flush_if(&mut bench, 1);
        bench.index.insert(print(1), b);
        flush_if(&mut bench, 2);
        bench.index.remove(print(1), a);
        flush_if(&mut bench, 4);
        assert_eq!(bench.find(&[1]), [Some(b)], "flushes {flushes:03b}");
    }
}

#[test]
fn parts_that_claim_the_same_place_are_left_out() {
    let mut bench = filled(LIMITS, 5_000, 5_000);
    bench.settle();
    let one: Vec<_> = bench.index.descriptors().cloned().collect();
    let (index, lost) = Index::open(one.iter().chain(&one).cloned().collect(), LIMITS, &bench.blocks);
    assert_eq!(lost.len(), one.len());
    bench.index = index;
    bench.check(0..5_000);
}
