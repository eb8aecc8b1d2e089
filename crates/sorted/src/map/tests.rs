use super::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::BlockPtr;
use larder_format::Place;
use larder_format::run::{DESCRIPTOR_REFS, PAGE_MAX, REFS_PER_PAGE};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};

#[derive(Debug, PartialEq, Eq)]
enum Failure {
    Io,
    Refused(Corrupt),
}

/// Blocks in memory, in segments of 1 MiB.
#[derive(Default)]
struct Blocks {
    stored: HashMap<BlockId, (BlockPtr, Arc<[u8]>)>,
    bytes_written: u64,
    /// Writes that still succeed.
    writes_left: Option<usize>,
}

impl PageReader for Blocks {
    type Error = Failure;
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>, Failure> {
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
        assert!(payload.len() <= PAGE_MAX);
        if let Some(left) = &mut self.writes_left {
            *left = left.checked_sub(1).ok_or(Failure::Io)?;
        }
        let id = BlockId::new(1 << 40 | self.bytes_written);
        let stored = payload.len() as u32 + 144;
        self.bytes_written += u64::from(stored.next_multiple_of(8));
        let place =
            Place { segment: SegmentId::new(self.bytes_written >> 20), column: 0, offset: 4096, stored };
        let ptr = BlockPtr { id, place };
        self.stored.insert(id, (ptr, payload.into()));
        Ok(ptr)
    }
}

/// A map, its model, and what the pool's tables would hold.
#[derive(Default)]
struct Bench {
    blocks: Blocks,
    map: BlockMap,
    tables: BTreeMap<RunId, RunDescriptor>,
    targets: BTreeMap<BlockId, Location>,
    marks: BTreeMap<BlockId, Marks>,
    prints: BTreeMap<BlockId, Fingerprint>,
    /// Fingerprints that went and were not handed out yet.
    dropped: BTreeSet<(Fingerprint, BlockId)>,
    deleted: BTreeSet<BlockId>,
}

impl Bench {
    fn apply(&mut self, update: Update) {
        self.map.apply(update);
        let id = update.id();
        let marks = self.marks.entry(id).or_default();
        match update {
            Update::Put { places, .. } => drop(self.targets.insert(id, Location::Places(places))),
            Update::Alias { to, .. } => drop(self.targets.insert(id, Location::Alias(to))),
            Update::Mark { marks: set, .. } => *marks = marks.with(set),
            Update::Print { print, .. } => {
                *marks = marks.with(Marks::INDEXED);
                self.dropped.remove(&(print, id));
                self.prints.insert(id, print);
            }
            Update::Unmark { marks: clear, .. } => *marks = marks.without(clear),
            Update::Delete { .. } => {
                self.targets.remove(&id);
                self.marks.remove(&id);
                self.deleted.insert(id);
                self.dropped.extend(self.prints.remove(&id).map(|print| (print, id)));
            }
        }
    }

    fn expected(&self, id: BlockId) -> Option<Entry> {
        let marks = self.marks.get(&id).copied().unwrap_or_default();
        let print = self.prints.get(&id).copied();
        self.targets.get(&id).map(|location| Entry { location: *location, marks, print })
    }

    fn note(&mut self, changes: Changes) {
        for gone in &changes.forgotten {
            assert_ne!(self.prints.get(&gone.1), Some(&gone.0), "a fingerprint is there still");
            self.dropped.remove(gone);
        }
        for gone in changes.removed {
            assert_eq!(self.tables.remove(&gone.run), Some(gone));
        }
        for new in changes.added {
            let mut bytes = Vec::new();
            new.encode(&mut bytes);
            assert_eq!(RunDescriptor::decode(&bytes), Ok((new.clone(), bytes.len())));
            assert_eq!(self.tables.insert(new.run, new), None);
        }
        let in_map: BTreeMap<_, _> = self.map.descriptors().map(|d| (d.run, d.clone())).collect();
        assert_eq!(in_map, self.tables);
    }

    fn checkpoint(&mut self) {
        let changes = self.map.checkpoint(&mut self.blocks).unwrap();
        assert_eq!(self.map.memtable_len(), 0);
        self.note(changes);
    }

    fn merge(&mut self, max_pages: usize) -> bool {
        let progress = self.map.merge_step(&mut self.blocks, max_pages).unwrap();
        assert!(progress.pages <= 2 * max_pages);
        self.note(progress.changes);
        progress.pending
    }

    fn reopen(&mut self) {
        let descriptors = self.tables.values().cloned().collect();
        self.map = BlockMap::open(descriptors, &self.blocks).unwrap();
    }

    /// Pages are owned by exactly one run, and descriptors say truly what they take; pages of neither
    /// live nor unfinished runs are thrown away here, as a segment's reuse would.
    fn check_space(&mut self) {
        let run_of = |bytes: &[u8]| RunId::new(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
        let mut found: BTreeMap<(RunId, SegmentId), (u32, u64)> = BTreeMap::new();
        for (ptr, bytes) in self.blocks.stored.values() {
            let sum = found.entry((run_of(bytes), ptr.place.segment)).or_default();
            *sum = (sum.0 + 1, sum.1 + u64::from(ptr.place.footprint()));
        }
        for run in self.tables.values() {
            for footprint in &run.footprints {
                let there = found.remove(&(run.run, footprint.segment));
                assert_eq!(there, Some((footprint.blocks, footprint.bytes)));
            }
        }
        let live: BTreeSet<_> = self.tables.keys().copied().collect();
        assert!(found.keys().all(|(run, _)| !live.contains(run)), "a run's pages are in its footprints");
        let unfinished = self.map.unfinished();
        let merging = |run: &RunId| self.map.merges.iter().any(|merge| merge.run() == *run);
        let pages: u32 = found.iter().filter(|((run, _), _)| merging(run)).map(|(_, sum)| sum.0).sum();
        assert_eq!(pages, unfinished.iter().map(|footprint| footprint.blocks).sum::<u32>());
        self.blocks.stored.retain(|_, (_, bytes)| {
            let run = run_of(bytes);
            live.contains(&run) || merging(&run)
        });
    }

    fn check(&mut self, ids: impl Iterator<Item = u64>, from: u64) {
        for id in ids.map(BlockId::new) {
            let expected = self.expected(id);
            assert_eq!(self.map.get(id, &self.blocks).unwrap(), expected, "block {id}");
            let location = self.map.look_up(id).location(&self.blocks).unwrap();
            assert_eq!(location, expected.map(|entry| entry.location), "block {id}");
        }
        let from = BlockId::new(from);
        let mut found = Vec::new();
        // In windows that end with the memtable's updates, and by a break.
        let mut next = Some(from);
        while let Some(from) = next {
            let window = self.map.window(from, 5);
            let mut left = 7;
            next = window
                .visit(&self.blocks, |id, entry| {
                    found.push((id, entry));
                    left -= 1;
                    Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                })
                .unwrap();
        }
        let expected = self.targets.range(from..).map(|(id, _)| (*id, self.expected(*id).unwrap()));
        assert!(found.into_iter().eq(expected), "a window differs from the model");
    }

    /// A walk in steps sees every id of the runs; a finder, asked for some of them in order, says the same of each
    /// and reads each page once.
    fn check_cursors(&mut self, from: BlockId) {
        let (mut at, mut walked) = (from, Vec::new());
        'walk: loop {
            let mut walk = self.map.walk(at, 20);
            loop {
                match walk.next(&self.blocks).unwrap() {
                    super::Step::Entry(id, delta) => {
                        walked.push((id, delta));
                        at = id.next();
                    }
                    super::Step::Paused => continue 'walk,
                    super::Step::End => break 'walk,
                }
            }
        }
        let mut finder = self.map.finder();
        for &(id, delta) in walked.iter().step_by(3) {
            assert_eq!(finder.find(id, &self.blocks).unwrap(), delta, "block {id}");
        }
        assert!(finder.pages() <= self.map.descriptors().map(|run| run.pages as usize).sum());
        let mut known: BTreeMap<BlockId, Delta> = walked.into_iter().collect();
        known.extend(
            self.map
                .memtable
                .range(from..)
                .map(|(id, _)| (*id, known.get(id).copied().unwrap_or(Delta::NONE)))
                .collect::<Vec<_>>(),
        );
        let now = known.into_iter().filter_map(|(id, runs)| Some((id, Entry::of(&self.map.now(id, runs))?)));
        let expected = self.targets.range(from..).map(|(id, _)| (*id, self.expected(*id).unwrap()));
        assert!(now.eq(expected), "the cursors differ from the model");
    }
}

fn places(n: u64) -> Places {
    let place = |segment| Place {
        segment: SegmentId::new(segment),
        column: (n % 3) as u8,
        offset: 4096 + (n as u32 % 1000) * 136,
        stored: 130,
    };
    Places::new(&[place(n / 1000), place(90_000 + n / 1000)][..1 + (n.is_multiple_of(17)) as usize]).unwrap()
}

fn print(n: u64) -> Fingerprint {
    Fingerprint::new(u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes())
}

#[derive(Debug, Clone)]
enum Step {
    Update(u8, u64, u64),
    Burst(u64),
    Checkpoint,
    FailedCheckpoint(usize),
    Merge(usize),
    FailedMerge(usize),
    Reopen,
    Evacuate,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        60 => (0..8u8, 0..300u64, any::<u64>()).prop_map(|(kind, id, n)| Step::Update(kind, id, n)),
        4 => (1..2000u64).prop_map(Step::Burst),
        12 => Just(Step::Checkpoint),
        2 => (0..3usize).prop_map(Step::FailedCheckpoint),
        4 => (1..4usize).prop_map(Step::Merge),
        1 => (0..2usize).prop_map(Step::FailedMerge),
        2 => Just(Step::Reopen),
        1 => Just(Step::Evacuate),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("LARDER_LARGE").is_some() { 200 } else { 20 }))]

    #[test]
    fn the_map_agrees_with_a_sorted_tree(
        steps in proptest::collection::vec(any_step(), 1..400),
        resident in prop_oneof![Just(0), Just(20_000), Just(RESIDENT_BYTES)],
    ) {
        let mut bench = Bench::default();
        let mut newest = 300;
        for step in steps {
            match step {
                Step::Update(kind, id, n) => {
                    // Some ids are old and scattered, some near the newest.
                    let id = BlockId::new(if n % 3 == 0 { newest - id } else { id * 7 % newest });
                    bench.apply(match kind {
                        0 | 1 => Update::Put { id, places: places(n % 1_000_000) },
                        2 => Update::Alias { id, to: BlockId::new(newest + 1) },
                        3 => Update::Mark { id, marks: Marks::SHARED },
                        // A block has one content ever: once deleted, its id gets no fingerprint again.
                        4 if bench.deleted.contains(&id) => continue,
                        4 => Update::Print { id, print: print(id.get()) },
                        5 => Update::Unmark { id, marks: Marks::SHARED },
                        _ => Update::Delete { id },
                    });
                }
                Step::Burst(count) => {
                    for _ in 0..count {
                        newest += 1;
                        let id = BlockId::new(newest);
                        bench.apply(Update::Put { id, places: places(newest) });
                        bench.apply(Update::Print { id, print: print(newest) });
                    }
                }
                Step::Checkpoint => bench.checkpoint(),
                Step::FailedCheckpoint(writes) => {
                    bench.blocks.writes_left = Some(writes);
                    if let Ok(changes) = bench.map.checkpoint(&mut bench.blocks) {
                        bench.note(changes);
                    }
                    bench.blocks.writes_left = None;
                }
                Step::Merge(pages) => drop(bench.merge(pages)),
                Step::FailedMerge(writes) => {
                    bench.blocks.writes_left = Some(writes);
                    if let Ok(progress) = bench.map.merge_step(&mut bench.blocks, 4) {
                        bench.note(progress.changes);
                    }
                    bench.blocks.writes_left = None;
                }
                Step::Reopen => {
                    bench.checkpoint();
                    bench.reopen();
                }
                Step::Evacuate => drop(bench.map.evacuate(|segment| segment.get() % 2 == 0)),
            }
            bench.map.set_resident_limit(resident);
        }
        let some = |from| (from..newest + 10).step_by(newest as usize / 150);
        bench.check(some(0), newest / 2);
        bench.check_cursors(BlockId::new(newest / 3));
        bench.checkpoint();
        bench.check_space();
        bench.check(some(1), 0);
        bench.reopen();
        bench.check(some(2), 17);
        bench.check_cursors(BlockId::new(0));
    }
}

#[test]
fn large_merges_go_on_in_bounded_steps_while_the_map_answers() {
    let mut bench = Bench::default();
    let entropy = SeededEntropy::new(3);
    let mut unfinished = 0;
    for round in 0..120u64 {
        for _ in 0..2_000 {
            let id = BlockId::new(entropy.next_u64() % 100_000);
            let n = entropy.next_u64();
            bench.apply(match n % 10 {
                0 => Update::Delete { id },
                1 => Update::Mark { id, marks: Marks::SHARED },
                _ => Update::Put { id, places: places(n % 1_000_000) },
            });
        }
        bench.checkpoint();
        bench.merge(8);
        unfinished += usize::from(!bench.map.unfinished().is_empty());
        if round % 20 == 19 {
            bench.check_space();
            bench.check((0..100_000).step_by(997), 99_000);
        }
        if round == 70 {
            bench.reopen();
        }
    }
    assert!(unfinished > 0, "some merge took several steps");
    while bench.merge(8) {}
    assert!(bench.tables.len() <= 30, "{} runs", bench.tables.len());
    bench.check_space();
    bench.check((0..100_000).step_by(97), 0);
    assert!(bench.map.unfinished().is_empty());
}

#[test]
fn what_is_born_and_dies_leaves_nothing_behind() {
    let mut bench = Bench::default();
    let (blocks, window) = (100_000u64, 3_000);
    for n in 1..=blocks {
        bench.map.apply(Update::Put { id: BlockId::new(n), places: places(n) });
        if n > window {
            bench.map.apply(Update::Delete { id: BlockId::new(n - window) });
        }
        if n % 1_000 == 0 {
            bench.checkpoint();
            bench.merge(16);
        }
    }
    let entries: u64 = bench.map.descriptors().map(|d| d.entries).sum();
    assert!(entries < 20 * window, "{entries} entries for {window} blocks");
    // Blocks that died long after they were written go too.
    for n in blocks - window + 1..=blocks {
        bench.map.apply(Update::Delete { id: BlockId::new(n) });
    }
    bench.checkpoint();
    while bench.merge(64) {}
    bench.check(1..blocks, 0);
    let entries: u64 = bench.map.descriptors().map(|d| d.entries).sum();
    assert!(entries < 20 * window, "{entries} entries for no block");
}

#[test]
fn deleting_everything_empties_the_map() {
    let mut bench = Bench::default();
    let ids = |from: u64| (from * 10_000..(from + 1) * 10_000).map(BlockId::new);
    for part in 0..5 {
        ids(part).for_each(|id| bench.map.apply(Update::Put { id, places: places(id.get()) }));
        bench.checkpoint();
    }
    for part in 0..5 {
        ids(part).for_each(|id| bench.map.apply(Update::Delete { id }));
        bench.checkpoint();
        while bench.merge(1) {}
    }
    let entries: u64 = bench.map.descriptors().map(|d| d.entries).sum();
    assert!(entries <= 2 * MIN_SHADOWS, "{entries} entries are left");
    bench.check_space();
    bench.check((0..50_000).step_by(111), 0);
}

#[test]
fn evacuation_leaves_nothing_in_the_segments_named() {
    let mut bench = Bench::default();
    for n in 1..=300_000 {
        bench.map.apply(Update::Put { id: BlockId::new(n * 3), places: places(n) });
        if n % 50_000 == 0 {
            bench.checkpoint();
        }
    }
    let leaves = |segment: SegmentId| segment.get() == 0;
    let there = bench.map.evacuate(leaves);
    assert!(there > 0);
    let mut before = bench.map.rewriting(leaves);
    assert_eq!(
        (before.len(), before.values().sum()),
        (there, 0u64),
        "each is planned, and nothing is written"
    );
    while bench.merge(7) {
        // Each goes on, until it is gone.
        let now = bench.map.rewriting(leaves);
        assert!(now.iter().all(|(run, written)| written >= &before[run]));
        assert!(now.len() < before.len() || now.values().sum::<u64>() > before.values().sum());
        before = now;
    }
    assert_eq!(bench.map.evacuate(leaves), 0);
    bench.check_space();
    assert!(bench.blocks.stored.values().all(|(ptr, _)| ptr.place.segment.get() != 0));
}

#[test]
fn a_page_in_the_place_of_another_is_refused() {
    let mut bench = Bench::default();
    for n in 1..=60_000 {
        bench.map.apply(Update::Put { id: BlockId::new(n * 300), places: places(n * 7 % 999_999) });
    }
    bench.checkpoint();
    bench.map.set_resident_limit(0);
    let (a, b) = (BlockId::new(300), BlockId::new(60_000 * 300));
    let blocks: BTreeMap<_, _> = bench.blocks.stored.iter().map(|(id, (_, p))| (*id, p.clone())).collect();
    let (first, second) = (blocks.keys().next().unwrap(), blocks.keys().nth(1).unwrap());
    bench.blocks.stored.get_mut(first).unwrap().1 = blocks[second].clone();
    let why = Corrupt::new("run page", Reason::Identity);
    assert_eq!(bench.map.get(a, &bench.blocks), Err(Failure::Refused(why)));
    assert!(bench.map.get(b, &bench.blocks).unwrap().is_some());
}

#[test]
fn a_checkpoint_needs_no_old_page() {
    let mut bench = Bench::default();
    bench.map.set_resident_limit(0);
    for n in 1..=RATIO as u64 - 1 {
        bench.apply(Update::Put { id: BlockId::new(n), places: places(n) });
        bench.checkpoint();
    }
    let intact = bench.blocks.stored.clone();
    bench.blocks.stored.values_mut().for_each(|(_, bytes)| *bytes = [0; 50].into());
    for n in 10..=20 {
        bench.apply(Update::Put { id: BlockId::new(n), places: places(n) });
        bench.checkpoint();
    }
    let step = bench.map.merge_step(&mut bench.blocks, 100);
    assert!(matches!(step, Err(Failure::Refused(_))), "merges report what checkpoints get around");
    bench.blocks.stored.extend(intact);
    bench.check(0..30, 0);
    bench.merge(100);
    bench.check_space();
    bench.check(0..30, 0);
}

#[test]
fn a_look_up_sees_the_map_as_it_was() {
    let mut bench = Bench::default();
    let id = BlockId::new(5);
    bench.apply(Update::Put { id, places: places(1) });
    bench.checkpoint();
    let before = bench.expected(id);
    let look_up = bench.map.look_up(id);
    for n in 0..20 {
        bench.apply(Update::Put { id, places: places(n) });
        bench.apply(Update::Mark { id, marks: Marks::SHARED });
        bench.checkpoint();
    }
    assert_eq!(look_up.entry(&bench.blocks).unwrap(), before);
    bench.check(0..10, 0);
}

#[test]
fn an_index_of_two_levels_is_read_back() {
    let mut blocks = Blocks::default();
    let mut writer = run::RunWriter::new(RunId::new(9), 0);
    let entropy = SeededEntropy::new(1);
    // Places that nobody expects, so that few fit a page.
    let (mut id, mut pages) = (BlockId::new(0), 0);
    while pages <= DESCRIPTOR_REFS * REFS_PER_PAGE {
        let place = || Place {
            segment: SegmentId::new(entropy.next_u64()),
            column: 3,
            offset: 8 << 20,
            stored: 1 << 20,
        };
        let target = Target::Places(Places::new(&[place(), place(), place()]).unwrap());
        if writer.page_is_full() {
            writer.write_page(&mut blocks).unwrap();
            // Only index pages are needed again.
            blocks.stored.clear();
            pages += 1;
        }
        id = id.next();
        writer.push(id, &Delta { target, ..Delta::NONE }, false);
    }
    let written = writer.finish(RunId::new(9), RunId::new(9), &mut blocks).unwrap().unwrap();
    assert_eq!(written.descriptor.height, 2);
    let read = SortedRun::open(written.descriptor.clone(), false, &blocks).unwrap();
    assert_eq!(read.index(), written.index());
}

#[test]
fn fingerprints_that_go_are_handed_out_in_the_end() {
    let mut bench = Bench::default();
    for n in 1..=30_000u64 {
        let id = BlockId::new(n);
        bench.apply(Update::Put { id, places: places(n) });
        bench.apply(Update::Print { id, print: print(n) });
        // Some die at once, some much later.
        if n.is_multiple_of(3) {
            bench.apply(Update::Delete { id });
        }
        if n > 9_000 {
            bench.apply(Update::Delete { id: BlockId::new(n - 9_000) });
        }
        if n.is_multiple_of(1_000) {
            bench.checkpoint();
            bench.merge(8);
        }
    }
    while bench.merge(64) {}
    bench.map.start_merge(0..bench.map.runs.len());
    while bench.merge(64) {}
    bench.check((0..30_010).step_by(37), 0);
    let left = bench.dropped.len();
    assert_eq!(left, 0, "{left} fingerprints went unheard");
}

#[test]
fn a_fingerprint_takes_its_sixteen_bytes_and_no_more() {
    let size = |printed: bool| {
        let mut bench = Bench::default();
        for n in 1..=20_000 {
            let id = BlockId::new(n);
            bench.apply(Update::Put { id, places: places(n * 17 + 1) });
            if printed {
                bench.apply(Update::Print { id, print: print(n) });
            }
        }
        bench.checkpoint();
        bench.map.descriptors().map(|run| run.bytes).sum::<u64>()
    };
    let more = size(true) - size(false);
    assert!((20_000 * 16..20_000 * 16 + 2_000).contains(&more), "{more} bytes for 20,000 fingerprints");
}

#[test]
fn runs_that_claim_the_same_checkpoints_are_refused() {
    let mut bench = Bench::default();
    bench.map.apply(Update::Put { id: BlockId::new(1), places: places(1) });
    bench.checkpoint();
    let one = bench.tables.values().next().unwrap().clone();
    let twice = vec![one.clone(), one];
    assert!(matches!(BlockMap::open(twice, &bench.blocks), Err(Failure::Refused(_))));
}

/// As docs/engine.md has it, "Memory beside the shares", bytes: an update since the last commit, and what is kept of a
/// page that is on disk.
const AN_UPDATE: u64 = 225;
const A_PAGE: u64 = 40;

#[test]
fn updates_and_pages_take_the_memory_that_is_documented() {
    let place = |id: u64| Place {
        segment: SegmentId::new(id / 500),
        column: 0,
        offset: (id % 500) as u32 * 131_216,
        stored: 131_216,
    };
    let put = |id: u64| Update::Put { id: BlockId::new(id), places: Places::new(&[place(id)]).unwrap() };
    const COUNT: u64 = 1 << 20;
    for ascending in [true, false] {
        let mut map = BlockMap::default();
        let of = |n: u64| if ascending { n } else { n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 };
        let info = allocation_counter::measure(|| (0..COUNT).for_each(|n| map.apply(put(of(n)))));
        let each = info.bytes_current as u64 / map.memtable_len() as u64;
        println!("{} updates, ascending {ascending}: {each} B each", map.memtable_len());
        assert!((AN_UPDATE / 3..=AN_UPDATE).contains(&each), "{each} B, {AN_UPDATE} are documented");
        assert!(map.memtable_bytes() * 21 / 20 >= info.bytes_current as u64, "the share counts hardly less");
    }

    // One run that is too large to be kept with its pages.
    let (mut map, mut blocks) = (BlockMap::default(), Blocks::default());
    (0..4 * COUNT).for_each(|id| map.apply(put(id)));
    let runs = map.checkpoint(&mut blocks).unwrap().added;
    let pages: u64 = runs.iter().map(|run| u64::from(run.pages)).sum();
    let mut opened = None;
    let info = allocation_counter::measure(|| opened = Some(BlockMap::open(runs, &blocks).unwrap()));
    let each = info.bytes_current as u64 / pages;
    println!("{pages} pages: {each} B each");
    assert!((A_PAGE * 9 / 10..=A_PAGE * 11 / 10).contains(&each), "{each} B, {A_PAGE} are documented");
    drop(opened);
}
