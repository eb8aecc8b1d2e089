//! Figures that must hold together.

use larder_plan::{Assumptions, Candidate, Disk, Kind, Plan, plan};
use proptest::prelude::*;

const TERA: u64 = 1_000_000_000_000;

fn disks(sizes: &[u64]) -> Vec<Disk> {
    sizes.iter().enumerate().map(|(at, &size)| Disk::of_size(format!("d{at}"), size * TERA)).collect()
}

fn planned(sizes: &[u64]) -> Plan {
    plan(disks(sizes), 0, 0, Assumptions::default())
}

fn find<'a>(plan: &'a Plan, name: &str) -> &'a Candidate {
    let named = plan
        .candidates
        .iter()
        .find(|candidate| candidate.name == name && candidate.shape.left_out.is_empty());
    named.unwrap_or_else(|| {
        panic!("{name} is not among {:?}", plan.candidates.iter().map(|c| &c.name).collect::<Vec<_>>())
    })
}

#[test]
fn raid6_raid10_and_raid14_differ_as_people_argue() {
    let plan = planned(&[16; 7]);
    let (raid6, raid14) = (find(&plan, "raidz2 of 7"), find(&plan, "raid14 of 7"));
    let raid10 = find(&plan, "raid10 of 6 + spare");
    assert!(raid6.usable > raid10.usable && raid10.usable > raid14.usable * 99 / 100);
    assert_eq!((raid6.survival.any, raid10.survival.any, raid14.survival.any), (2, 1, 2));
    assert_eq!((raid6.survival.triples.survived, raid14.survival.triples.survived), (0, 32));
    // The twin alone is read, not all that are left.
    let (six, fourteen) = (raid6.rebuild.unwrap(), raid14.rebuild.unwrap());
    assert_eq!((six.disks, fourteen.disks), (5, 1));
    assert_eq!(six.read, 5 * fourteen.read);
    assert!(raid14.risk.pool_lost < raid6.risk.pool_lost && raid6.risk.pool_lost < raid10.risk.pool_lost);
    assert!(raid10.risk.block_lost > 10.0 * raid14.risk.block_lost);
    assert_eq!(raid14.growth.words[..3], ["attach", "tank", "raid14-0"]);
    assert_eq!((raid14.growth.disks, raid6.growth.disks), (2, 1));
}

#[test]
fn what_is_recommended_has_most_space_of_what_is_safe() {
    for (sizes, name) in
        [(&[16; 6][..], "raidz2 of 6"), (&[4, 4], "mirror of 2"), (&[16; 12], "raidz2 of 12")]
    {
        let plan = planned(sizes);
        let best = &plan.candidates[plan.recommended.unwrap()];
        assert_eq!(best.name, name);
    }
    // With nothing that is safe enough, the safest.
    let one = planned(&[16]);
    assert_eq!(one.candidates.len(), 1);
    assert!(!one.candidates[0].safe && one.recommended == Some(0));
    assert!(plan(Vec::new(), 0, 0, Assumptions::default()).recommended.is_none());
}

#[test]
fn growth_is_what_a_pool_with_more_disks_has() {
    let (six, seven) = (planned(&[8; 6]), planned(&[8; 7]));
    for (less, more) in
        [("raidz1 of 6", "raidz1 of 7"), ("raidz3 of 6", "raidz3 of 7"), ("stripe of 6", "stripe of 7")]
    {
        let (less, more) = (find(&six, less), find(&seven, more));
        assert_eq!(less.usable + less.growth.gain, more.usable, "{}", less.name);
    }
    let eight = planned(&[8; 8]);
    for (less, more) in [("raid10 of 6", "raid10 of 8"), ("3 x mirror of 2", "4 x mirror of 2")] {
        assert_eq!(find(&six, less).usable + find(&six, less).growth.gain, find(&eight, more).usable);
    }
}

#[test]
fn prices_and_the_criterion_for_bulk_stores_are_arithmetic() {
    let mut disks = disks(&[4; 4]);
    disks.iter_mut().for_each(|disk| disk.price = Some(100.0));
    let assume = Assumptions { interleaved: 60e6, ..Assumptions::default() };
    let plan = plan(disks, 0, 0, assume);
    let raid10 = find(&plan, "raid10 of 4");
    let price = raid10.price.unwrap();
    assert!((price.total - 400.0).abs() < 1e-9);
    assert!((price.per_tib * raid10.usable as f64 / (1u64 << 40) as f64 - 400.0).abs() < 1e-6);
    // Of each byte that is written both of a pair take one, of each that is read one of them does.
    assert!((raid10.bulk.rate - 2.0 * 2.0 * 60e6 / 1.5).abs() < 1.0);
    assert!((raid10.bulk.needed - 18e6 * raid10.usable as f64 / 1e12).abs() < 1.0);
    assert_eq!(raid10.bulk.passes, raid10.bulk.rate >= raid10.bulk.needed);
}

#[test]
fn a_worse_world_is_never_a_safer_one() {
    let assume = Assumptions::default();
    let worse: [(&str, Assumptions); 6] = [
        ("afr", Assumptions { afr_hdd: 0.05, ..assume.clone() }),
        ("correlated", Assumptions { correlated: 10.0, ..assume.clone() }),
        ("replace", Assumptions { replace_hours: 400.0, ..assume.clone() }),
        ("full", Assumptions { full: 1.0, ..assume.clone() }),
        ("rate", Assumptions { rebuild_rate: 10e6, ..assume.clone() }),
        ("ure", Assumptions { ure: 1e14, ..assume.clone() }),
    ];
    let before = plan(disks(&[16; 7]), 0, 0, assume);
    for (what, assume) in worse {
        let after = plan(disks(&[16; 7]), 0, 0, assume);
        for candidate in &before.candidates {
            let then = after.candidates.iter().find(|other| other.shape == candidate.shape).unwrap();
            let of = |of: &Candidate| (of.risk.pool_lost, of.risk.block_lost);
            let (was, is) = (of(candidate), of(then));
            assert!(
                is.0 >= was.0 * 0.999_999 && is.1 >= was.1 * 0.999_999,
                "{what}: {} {was:?} {is:?}",
                candidate.name
            );
            // Without redundancy it does not matter what happens after the first loss.
            let waits = what != "replace" || candidate.shape.spares.is_empty();
            let matters = candidate.survival.any > 0 && waits || ["afr", "full", "ure"].contains(&what);
            assert_eq!(is.1 > was.1, matters, "{what}: {} {was:?} {is:?}", candidate.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the disks: shares are shares, a block is lost sooner than the pool, more parity survives more and holds
    /// less, and nobody gets more than there is.
    #[test]
    fn figures_hold_together(sizes in proptest::collection::vec(1u64..30, 1..14), spares in 0usize..2, ssd in any::<u16>()) {
        let mut disks = disks(&sizes);
        for (at, disk) in disks.iter_mut().enumerate() {
            disk.kind = if ssd >> at & 3 == 3 { Kind::Ssd } else { Kind::Hdd };
        }
        let plan = plan(disks.clone(), spares, 0, Assumptions::default());
        prop_assert_eq!(plan.recommended.is_some(), !plan.candidates.is_empty());
        for candidate in &plan.candidates {
            let (survival, risk) = (candidate.survival, candidate.risk);
            let name = &candidate.name;
            prop_assert!(candidate.usable < candidate.raw, "{}", name);
            for share in [survival.singles, survival.pairs, survival.triples] {
                prop_assert!(share.survived <= share.of, "{}", name);
            }
            let parts = [survival.singles, survival.pairs, survival.triples].map(|share| share.part());
            let there = [survival.singles, survival.pairs, survival.triples].map(|share| share.of > 0);
            for size in 0..3 {
                let all = survival.any > size as u64;
                prop_assert!(!there[size] || all == (parts[size] == 1.0), "{} {:?}", name, survival);
            }
            prop_assert!(risk.pool_lost >= 0.0 && risk.pool_lost <= risk.block_lost && risk.block_lost <= 1.0, "{} {:?}", name, risk);
            prop_assert!(risk.years_to_pool_lost >= risk.years_to_block_lost, "{}", name);
            prop_assert_eq!(candidate.rebuild.is_some(), survival.any > 0);
            prop_assert!(candidate.speed.read > 0.0 && candidate.growth.gain > 0, "{}: {:?}", name, candidate.growth);
        }
        let of = |word: &str| plan.candidates.iter().find(|of| {
            of.word == word && of.shape.groups.len() == 1 && of.shape.left_out.is_empty() && of.shape.spares.len() == spares
        });
        for (less, more) in [("raidz1", "raidz2"), ("raidz2", "raidz3")] {
            if let (Some(less), Some(more)) = (of(less), of(more)) {
                prop_assert!(more.usable <= less.usable && more.risk.pool_lost <= less.risk.pool_lost);
                prop_assert!(more.survival.triples.survived >= less.survival.triples.survived);
            }
        }
    }
}
