use super::*;
use crate::run::{Footprint, PageRef};
use crate::{Place, SegmentId};
use proptest::prelude::*;

fn any_entries() -> impl Strategy<Value = Vec<PrintEntry>> {
    let high = prop_oneof![any::<u64>(), 0..1000u64, Just(u64::MAX)];
    let id = prop_oneof![0..100u64, 1 << 40..1u64 << 41, Just(MAX_COUNT)];
    let entry = (high, any::<u32>(), id, proptest::bool::weighted(0.1));
    proptest::collection::vec(entry, 1..300).prop_map(|mut entries| {
        entries.sort_by_key(|entry| entry.0);
        entries.dedup_by_key(|entry| entry.0);
        let entry = |(high, check, id, gone)| PrintEntry { high, check, id: BlockId::new(id), gone };
        entries.into_iter().map(entry).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pages_say_what_was_put_in(entries in any_entries()) {
        let run = RunId::new(7);
        let mut builder = PrintsBuilder::new(run);
        let mut pages = Vec::new();
        for entry in &entries {
            if !builder.has_room(entry) {
                pages.push(builder.finish());
            }
            builder.push(*entry);
        }
        pages.push(builder.finish());
        let mut read = Vec::new();
        for (number, (first, bytes)) in pages.iter().enumerate() {
            assert!(bytes.len() <= PRINTS_PAGE);
            let page = PrintsPage::open(bytes, run, number as u32).unwrap();
            assert_eq!(page.first(), *first);
            let from = read.len();
            page.append_to(&mut read).unwrap();
            assert_eq!(read.len() - from, page.len());
            for entry in &read[from..] {
                assert_eq!(page.find(entry.high), Ok(Some(*entry)));
                for beside in [entry.high.wrapping_sub(1), entry.high.wrapping_add(1)] {
                    let there = read[from..].iter().find(|entry| entry.high == beside);
                    assert_eq!(page.find(beside), Ok(there.copied()));
                }
            }
        }
        assert_eq!(read, entries);
    }
}

#[test]
fn an_entry_among_a_hundred_million_takes_fourteen_bytes() {
    let mut builder = PrintsBuilder::new(RunId::new(1));
    let entry = |n: u64| PrintEntry {
        high: n.wrapping_mul(u64::MAX / 100_000_000),
        check: n as u32,
        id: BlockId::new(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37),
        gone: false,
    };
    let mut n = 5_000_000;
    while builder.has_room(&entry(n)) {
        builder.push(entry(n));
        n += 1;
    }
    let (_, bytes) = builder.finish();
    assert!(bytes.len() > PRINTS_PAGE - 200);
    assert_eq!((bytes.len() - HEADS) as u64, 14 * (n - 5_000_000));
}

fn some_page() -> Vec<u8> {
    let mut builder = PrintsBuilder::new(RunId::new(1));
    for n in 0..20u64 {
        builder.push(PrintEntry { high: n << 50, check: 1, id: BlockId::new(n), gone: n % 5 == 0 });
    }
    builder.finish().1
}

#[test]
fn another_page_and_damage_are_refused() {
    let page = some_page();
    let refused = |bytes: &[u8], run, number| {
        let mut out = Vec::new();
        PrintsPage::open(bytes, RunId::new(run), number)
            .and_then(|page| page.append_to(&mut out))
            .unwrap_err()
            .reason
    };
    assert_eq!(refused(&page, 2, 0), Reason::Identity);
    assert_eq!(refused(&page, 1, 1), Reason::Identity);
    assert_eq!(refused(&page[..page.len() - 1], 1, 0), Reason::Short);
    assert_eq!(refused(&page[..HEADS - 1], 1, 0), Reason::Short);
    let broken = |at: usize, byte: u8| {
        let mut page = page.clone();
        page[at] = byte;
        refused(&page, 1, 0)
    };
    assert_eq!(broken(12, PageKind::MapEntries as u8), Reason::Kind);
    assert_eq!(broken(PageHead::SIZE + 8, 9), Reason::Range);
    assert_eq!(broken(PageHead::SIZE + 10, 5), Reason::Range, "the bits are not as many as the head says");
    assert_eq!(broken(PageHead::SIZE + 7, 0xff), Reason::Range, "an id that is none");
    assert_eq!(broken(HEADS, 1), Reason::Identity, "the first key is 0");
    assert_eq!(broken(HEADS + 2 * 7 + 6, 0), Reason::Order);
}

fn descriptor() -> PartDescriptor {
    let place = Place { segment: SegmentId::new(3), column: 0, offset: 4096, stored: 900 };
    let ptr = BlockPtr { id: BlockId::new(5), place };
    PartDescriptor {
        run: RunDescriptor {
            run: RunId::new(9),
            oldest: RunId::new(1),
            newest: RunId::new(8),
            entries: 20_000,
            shadows: 0,
            bytes: 16_000,
            first: BlockId::new(7),
            last: BlockId::new(u64::MAX),
            pages: 1,
            height: 0,
            refs: vec![PageRef { first: BlockId::new(7), ptr }],
            footprints: vec![Footprint { segment: place.segment, blocks: 3, bytes: 1000 }],
        },
        covered: BlockId::new(77),
        sampling: 3,
        base: true,
        filter: FilterShape::Ribbon { seed: 0, values: 45_056 },
        filter_pages: vec![ptr; 2],
    }
}

#[test]
fn descriptors_come_back() {
    let mut bytes = vec![1, 2, 3];
    descriptor().encode(&mut bytes);
    bytes.push(4);
    assert_eq!(PartDescriptor::decode(&bytes[3..]), Ok((descriptor(), bytes.len() - 4)));
    let upper = PartDescriptor { base: false, filter: FilterShape::Bloom { lines: 953 }, ..descriptor() };
    let mut bytes = Vec::new();
    upper.encode(&mut bytes);
    assert_eq!(PartDescriptor::decode(&bytes), Ok((upper, bytes.len())));
    for (at, value) in [(8, 1), (20, 0), (20, 3)] {
        let mut broken = bytes.clone();
        broken[at] = value;
        assert_eq!(PartDescriptor::decode(&broken).unwrap_err().reason, Reason::Range, "byte {at}");
    }
}

#[test]
fn descriptors_of_what_cannot_be_are_refused() {
    let refused = |change: fn(&mut PartDescriptor)| {
        let (mut descriptor, mut bytes) = (descriptor(), Vec::new());
        change(&mut descriptor);
        descriptor.encode(&mut bytes);
        PartDescriptor::decode(&bytes).unwrap_err().reason
    };
    assert_eq!(refused(|part| part.filter = FilterShape::Ribbon { seed: 0, values: 63 }), Reason::Range);
    assert_eq!(
        refused(|part| part.filter = FilterShape::Ribbon { seed: 0, values: u32::MAX }),
        Reason::Range
    );
    assert_eq!(refused(|part| part.filter = FilterShape::Bloom { lines: 0 }), Reason::Range);
    assert_eq!(refused(|part| part.filter = FilterShape::Bloom { lines: 2000 }), Reason::Range);
    assert_eq!(refused(|part| part.sampling = 33), Reason::Range);
    assert_eq!(refused(|part| part.covered = BlockId::new(u64::MAX)), Reason::Range);
    assert_eq!(refused(|part| part.filter_pages.truncate(part.filter_pages.len() - 1)), Reason::Short);
    assert_eq!(refused(|part| part.filter_pages[1].place.stored = 0), Reason::Range);
}

#[test]
fn filter_pages_come_back_and_others_are_refused() {
    let run = RunId::new(3);
    let bytes = encode_filter_page(run, 2, &[5; 100]);
    assert_eq!(decode_filter_page(&bytes, run, 2), Ok(&[5; 100][..]));
    assert_eq!(decode_filter_page(&bytes, run, 1).unwrap_err().reason, Reason::Identity);
    assert_eq!(decode_filter_page(&bytes[..50], run, 2).unwrap_err().reason, Reason::Range);
}
