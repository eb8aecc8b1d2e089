//! The chain beside a simulation of single devices, which fail, are rebuilt, and ask [`Layout::survives`].

use larder_device::{Entropy, SeededEntropy};
use larder_format::segment::Layout;
use larder_plan::{Rates, chances};
use larder_pool::create::rule_for;

/// Time that a rebuild takes.
#[derive(Clone, Copy, PartialEq)]
enum Rebuilds {
    /// As the chain has it.
    Random,
    /// Always as long.
    Fixed,
}

struct Dice(SeededEntropy);

impl Dice {
    fn unit(&self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
    fn waits(&self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// Whether the group is lost within a year, and whether a block is.
fn a_year(layout: Layout, rates: &Rates, how: Rebuilds, dice: &Dice) -> (bool, bool) {
    let count = layout.columns();
    // When each lost device is whole again.
    let mut lost: Vec<Option<f64>> = vec![None; count];
    let (mut now, mut block) = (0.0, false);
    loop {
        let gone = lost.iter().flatten().count();
        let rate = rates.failures * rates.correlation.powi(gone as i32);
        let fails = now + dice.waits(1.0 / (rate * (count - gone) as f64));
        let whole = lost.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        now = fails.min(whole);
        if now > 1.0 {
            return (false, block);
        }
        if whole < fails {
            lost.iter_mut().filter(|until| **until == Some(whole)).for_each(|until| *until = None);
            continue;
        }
        let left: Vec<usize> = (0..count).filter(|&at| lost[at].is_none()).collect();
        let hit = left[(dice.unit() * left.len() as f64) as usize];
        let takes = if how == Rebuilds::Fixed { rates.rebuild } else { dice.waits(rates.rebuild) };
        lost[hit] = Some(now + takes);
        if !layout.survives(|at| lost[at].is_some()) {
            return (true, true);
        }
        let is_fatal =
            |&at: &usize| lost[at].is_none() && !layout.survives(|of| lost[of].is_some() || of == at);
        let critical = (0..count).filter(is_fatal).count() as f64;
        block |= dice.unit() < 1.0 - (-critical * rates.bad_sectors).exp();
    }
}

/// Parts of so many years in which the group, and in which a block, is lost.
fn simulated(layout: Layout, rates: &Rates, how: Rebuilds, years: u32) -> (f64, f64) {
    let dice = Dice(SeededEntropy::new(7));
    let mut sums = (0u32, 0u32);
    for _ in 0..years {
        let (group, block) = a_year(layout, rates, how, &dice);
        sums = (sums.0 + u32::from(group), sums.1 + u32::from(block));
    }
    (f64::from(sums.0) / f64::from(years), f64::from(sums.1) / f64::from(years))
}

fn worn(together: bool) -> Rates {
    // Disks that fail often and are rebuilt slowly: so many losses that they can be counted.
    Rates { failures: 1.2, correlation: 1.0, rebuild: 0.08, together, bad_sectors: 0.02, scrubs: 0.0 }
}

#[test]
fn the_chain_agrees_with_single_devices_within_a_tenth_for_every_word() {
    for (word, count) in [
        ("mirror", 2),
        ("mirror", 3),
        ("raidz1", 4),
        ("raidz2", 6),
        ("raidz3", 9),
        ("raid10", 6),
        ("raid14", 5),
        ("raid14", 7),
    ] {
        for correlation in [1.0, 4.0] {
            let layout = rule_for(word, count).unwrap().layout;
            let rates = Rates { correlation, ..worn(true) };
            let (group, block) = simulated(layout, &rates, Rebuilds::Random, 120_000);
            let chain = chances(layout, &rates);
            for (what, ours, counted) in [("group", chain.group, group), ("block", chain.block, block)] {
                // Three standard deviations of what was counted, beside the tenth.
                let noise = 3.0 * (counted / 120_000.0).sqrt() / counted;
                assert!(noise < 0.1, "{word} of {count}: {counted} is too rare to be counted");
                let off = ours / counted - 1.0;
                println!(
                    "{word} of {count} x{correlation} {what}: {ours:.5} {counted:.5} {:+.1} %",
                    off * 100.0
                );
                assert!(off.abs() < 0.1, "{word} of {count}, {what}: {ours} beside {counted}");
            }
        }
    }
}

/// Rebuilds take about as long each time, which the chain does not know: by how much that matters.
#[test]
fn rebuilds_that_always_take_as_long_change_little() {
    for (word, count) in [("raidz1", 4), ("raidz2", 6), ("raid10", 6), ("raid14", 7)] {
        let layout = rule_for(word, count).unwrap().layout;
        let rates = Rates { failures: 0.3, rebuild: 0.05, ..worn(true) };
        let (counted, _) = simulated(layout, &rates, Rebuilds::Fixed, 400_000);
        let off = chances(layout, &rates).group / counted - 1.0;
        println!("{word} of {count}: {:+.1} % beside rebuilds of fixed length", off * 100.0);
        assert!(off.abs() < 0.15, "{word} of {count}: {off}");
    }
}
