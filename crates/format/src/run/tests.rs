use super::*;
use crate::segment::MAX_COLUMNS;
use proptest::prelude::*;
use std::sync::Arc;

const RUN: RunId = RunId::new(7);

fn place(segment: u64, column: u8, offset: u32, stored: u32) -> Place {
    Place { segment: SegmentId::new(segment), column, offset, stored }
}

fn any_place() -> impl Strategy<Value = Place> {
    let segment = prop_oneof![0..4u64, any::<u64>()];
    let slot = MAX_SLOT / BLOCK_STEP;
    (segment, 0..MAX_COLUMNS as u8, 0..slot, 1..300_000u32).prop_map(|(segment, column, steps, stored)| {
        place(segment, column, steps * BLOCK_STEP, stored.min(MAX_SLOT - steps * BLOCK_STEP))
    })
}

fn any_delta() -> impl Strategy<Value = Delta> {
    let marks = (any::<u8>(), any::<u8>()).prop_map(|(set, clear)| (Marks(set), Marks(clear & !set)));
    let target = prop_oneof![
        Just(Target::Keep),
        proptest::collection::vec(any_place(), 1..=3)
            .prop_map(|places| Target::Places(Places::new(&places).unwrap())),
        (1..u64::MAX).prop_map(|id| Target::Alias(BlockId::new(id))),
        Just(Target::Deleted),
    ];
    let marks = prop_oneof![Just((Marks::NONE, Marks::NONE)), Just((Marks::INDEXED, Marks::NONE)), marks];
    (target, marks, any::<[u8; 16]>()).prop_map(|(target, (set, clear), print)| {
        let print = set.contains(Marks::INDEXED).then(|| Fingerprint::load(&print));
        match target {
            Target::Deleted => Delta { target, set, clear: Marks::ALL.without(set), print },
            Target::Keep if set == Marks::NONE && clear == Marks::NONE => Delta::DELETE,
            _ => Delta { target, set, clear, print },
        }
    })
}

/// Entries with ids that ascend by small and large steps, never reaching an aliased id by construction
/// of the alias alone: an alias of itself is replaced.
fn any_entries() -> impl Strategy<Value = Vec<(BlockId, Delta)>> {
    let step = prop_oneof![4 => Just(1u64), 1 => 1..1u64 << 50];
    proptest::collection::vec((step, any_delta()), 1..400).prop_map(|steps| {
        let mut id = 0;
        let entry = |(step, delta): (u64, Delta)| {
            id += step;
            let id = BlockId::new(id);
            (id, if delta.target == Target::Alias(id) { Delta::DELETE } else { delta })
        };
        steps.into_iter().map(entry).collect()
    })
}

fn build(entries: &[(BlockId, Delta)]) -> Vec<Vec<u8>> {
    let mut builder = PageBuilder::new(RUN);
    let mut pages = Vec::new();
    for (id, delta) in entries {
        if builder.is_full() {
            pages.push(builder.finish());
        }
        builder.push(*id, delta);
    }
    pages.push(builder.finish());
    pages
}

fn read_all(page: &RunPage) -> Vec<(BlockId, Delta)> {
    let mut cursor = PageCursor::seek(page, BlockId::new(0));
    std::iter::from_fn(|| cursor.next(page)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pages_give_back_what_was_put_in(entries in any_entries()) {
        let mut found = Vec::new();
        for (number, bytes) in build(&entries).into_iter().enumerate() {
            prop_assert!(bytes.len() <= PAGE_MAX);
            let page = RunPage::decode(bytes.into(), RUN, number as u32).unwrap();
            let inside = read_all(&page);
            for (id, delta) in &inside {
                prop_assert_eq!(page.find(*id), Some(*delta));
                let next = BlockId::new(id.get() + 1);
                let listed = inside.iter().find(|(other, _)| *other == next).map(|(_, delta)| *delta);
                prop_assert_eq!(page.find(next), listed);
                let mut cursor = PageCursor::seek(&page, next);
                let behind = inside.iter().find(|(other, _)| *other >= next).copied();
                prop_assert_eq!(cursor.next(&page), behind);
            }
            found.extend(inside);
        }
        prop_assert_eq!(found, entries);
    }

    #[test]
    fn a_damaged_page_is_refused_or_still_well_formed(
        entries in any_entries(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = build(&entries).remove(0);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(page) = LazyPage::open(&bytes, RUN, 0) {
            for (id, _) in &entries {
                let _ = page.find(*id);
            }
        }
        if let Ok(page) = RunPage::decode(bytes.into(), RUN, 0) {
            let inside = read_all(&page);
            prop_assert!(inside.is_sorted_by(|a, b| a.0 < b.0));
            prop_assert_eq!(inside.len(), page.len());
            for (id, delta) in inside {
                prop_assert_eq!(page.find(id), Some(delta));
            }
        }
    }

    #[test]
    fn noise_is_never_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = RunDescriptor::decode(&bytes);
        let _ = RunPage::decode(bytes.clone().into(), RUN, 0);
        // Noise behind a plausible head reaches the entries.
        let mut head = PageHead::get(&build(&[(BlockId::new(5), Delta::DELETE)])[0]).unwrap();
        head.body = (bytes.len() as u16).saturating_sub(34);
        head.count = 9;
        if bytes.len() >= 34 {
            head.put(&mut bytes);
            bytes[32..34].fill(0);
            let _ = RunPage::decode(bytes.clone().into(), RUN, 0);
            let _ = LazyPage::open(&bytes, RUN, 0).and_then(|page| page.find(BlockId::new(1 << 33)));
            let _ = decode_index_page(&bytes, RUN, 0, 0);
        }
    }

    #[test]
    fn deltas_compose_in_any_grouping(a in any_delta(), b in any_delta(), c in any_delta()) {
        prop_assert_eq!(a.over(b).over(c), a.over(b.over(c)));
        prop_assert_eq!(Delta::NONE.over(a), a);
        prop_assert_eq!(a.over(Delta::NONE), a);
        // Reducing the older one first makes no difference to what is left in the end.
        let reduced = b.on_nothing().unwrap_or(Delta::NONE);
        prop_assert_eq!(a.over(b).on_nothing(), a.over(reduced).on_nothing());
        if a.is_final() {
            prop_assert_eq!(a.over(b), a);
        }
    }
}

#[test]
fn a_put_keeps_marks_and_a_delete_takes_them() {
    let places = Places::new(&[place(1, 0, 4096, 100)]).unwrap();
    let put = Delta { target: Target::Places(places), ..Delta::NONE };
    let share = Delta { set: Marks::SHARED, ..Delta::NONE };
    assert_eq!(put.over(share.over(put)).set, Marks::SHARED);
    assert_eq!(share.over(put).over(Delta::DELETE).set, Marks::SHARED);
    assert_eq!(put.over(Delta::DELETE.over(share)).set, Marks::NONE);
    assert_eq!(Delta::DELETE.over(share.over(put)).on_nothing(), None);
}

#[test]
fn pages_of_another_run_or_number_are_refused() {
    let bytes: Arc<[u8]> = build(&[(BlockId::new(5), Delta::DELETE)]).remove(0).into();
    let refused = |run, number| RunPage::decode(bytes.clone(), run, number).unwrap_err().reason;
    assert_eq!(refused(RunId::new(8), 0), Reason::Identity);
    assert_eq!(refused(RUN, 1), Reason::Identity);
    assert_eq!(decode_index_page(&bytes, RUN, 1, 0).unwrap_err().reason, Reason::Kind);
}

#[test]
fn places_outside_every_slot_are_refused() {
    for bad in [
        place(1, 64, 0, 8),
        place(1, 0, 4, 8),
        place(1, 0, 0, 0),
        place(1, 0, MAX_SLOT, 8),
        place(1, 0, 8, MAX_SLOT),
    ] {
        assert!(Places::new(&[bad]).is_err());
    }
    assert!(Places::new(&[]).is_err());
    assert!(Places::new(&[place(1, 63, MAX_SLOT - 8, 8)]).is_ok());
}

#[test]
fn index_pages_and_descriptors_come_back_and_every_cut_is_refused() {
    let page = |i: u64| PageRef {
        first: BlockId::new(10 * i),
        ptr: BlockPtr { id: BlockId::new(900 + i), place: place(3, 1, 8 * i as u32, 32_000) },
    };
    let refs: Vec<_> = (0..REFS_PER_PAGE as u64).map(page).collect();
    let bytes = encode_index_page(RUN, 1, 4, &refs);
    assert!(bytes.len() <= PAGE_MAX);
    assert_eq!(decode_index_page(&bytes, RUN, 1, 4).unwrap(), refs);
    for cut in 0..bytes.len() {
        assert!(decode_index_page(&bytes[..cut], RUN, 1, 4).is_err());
    }

    let footprint = |i| Footprint { segment: SegmentId::new(i), blocks: 2, bytes: 64_000 };
    let descriptor = RunDescriptor {
        run: RUN,
        oldest: RunId::new(2),
        newest: RunId::new(6),
        entries: 5_000,
        shadows: 12,
        bytes: 60_000,
        first: BlockId::new(10),
        last: BlockId::new(77),
        pages: 2,
        height: 0,
        refs: vec![page(1), page(2)],
        footprints: vec![footprint(3), footprint(4)],
    };
    let mut bytes = Vec::new();
    descriptor.encode(&mut bytes);
    let len = bytes.len();
    bytes.extend([0xee; 9]);
    assert_eq!(RunDescriptor::decode(&bytes).unwrap(), (descriptor.clone(), len));
    for cut in 0..len {
        assert!(RunDescriptor::decode(&bytes[..cut]).is_err());
    }
    let swapped = RunDescriptor { footprints: vec![footprint(4), footprint(3)], ..descriptor };
    bytes.clear();
    swapped.encode(&mut bytes);
    assert_eq!(RunDescriptor::decode(&bytes).unwrap_err().reason, Reason::Order);
}
