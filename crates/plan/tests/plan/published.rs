//! The chain beside published figures, with their parameters: within 10 %, most of them within 3.

use larder_format::segment::Layout;
use larder_plan::{Chances, Rates, chances};
use larder_pool::create::rule_for;

/// Hours of a year, as the papers have them.
const HOURS: f64 = 8760.0;

fn layout(word: &str, count: usize) -> Layout {
    rule_for(word, count).unwrap().layout
}

fn near(what: &str, ours: f64, published: f64, within: f64) {
    let off = ours / published - 1.0;
    println!("{what}: {ours:.6} beside {published}, {:+.2} %", off * 100.0);
    assert!(off.abs() <= within, "{what}: {ours} beside {published}, {:+.2} %", off * 100.0);
}

/// Table 4 of Chen, Lee, Gibson, Katz and Patterson, "RAID: High-Performance, Reliable Secondary Storage", ACM
/// Computing Surveys 26 (2), June 1994: disks of 5 GB with 200,000 hours, ten times less for each that is lost, an
/// hour of repair, one bad sector of 512 bytes in 2.4·10¹⁰.
fn chen(correlation: f64, bad: bool) -> Rates {
    Rates {
        failures: HOURS / 200_000.0,
        correlation,
        rebuild: 1.0 / HOURS,
        together: false,
        bad_sectors: if bad { 5e9 / 512.0 / 2.4e10 } else { 0.0 },
        scrubs: 0.0,
    }
}

/// Years until one of so many groups is lost.
fn years(of: Chances, groups: f64) -> (f64, f64) {
    (of.years_to_group / groups, of.years_to_block / groups)
}

#[test]
fn chen_and_others_1994_in_their_text_and_tables_5_and_6() {
    let (raid5, raid6) = (layout("raidz1", 16), layout("raidz2", 16));
    // 100 disks in groups of 16, independent: "an astounding 3000 years", and for P + Q "38 million years", which is
    // that of 100 disks for data.
    near("3.4.1, parity", years(chances(raid5, &chen(1.0, false)), 100.0 / 16.0).0, 3000.0, 0.05);
    near("3.4.1, P + Q", years(chances(raid6, &chen(1.0, false)), 100.0 / 14.0).0, 38e6, 0.01);
    let groups = 100.0 / 15.0;
    let (double, _) = years(chances(raid5, &chen(10.0, false)), groups);
    near("table 5, double disk failure", double, 285.0, 0.01);
    near("table 5, the same in ten years", 1.0 - (-10.0 / double).exp(), 0.034, 0.02);
    let (_, both) = years(chances(raid5, &chen(10.0, true)), groups);
    near("table 5, hardware RAID", both, 32.0, 0.03);
    near("table 5, the same in ten years", 1.0 - (-10.0 / both).exp(), 0.268, 0.03);
    near("table 5, disk failure + bit error", 1.0 / (1.0 / both - 1.0 / double), 36.0, 0.03);
    let groups = 100.0 / 14.0;
    let (triple, _) = years(chances(raid6, &chen(10.0, false)), groups);
    near("table 6, triple disk failure", triple, 38_052.0, 0.03);
    let (_, both) = years(chances(raid6, &chen(10.0, true)), groups);
    near("table 6, hardware RAID", both, 21_166.0, 0.03);
    near("table 6, double disk failure + bit error", 1.0 / (1.0 / both - 1.0 / triple), 47_697.0, 0.03);
}

/// Markov chains solved by the model checker PRISM: github.com/saifalam/prism-probabilistic-model-checker, models 1 to
/// 4, per cent that survive a year with 0.05 failures a year of each disk and repairs of a week, a day, an hour.
#[test]
fn chains_that_a_model_checker_solved() {
    let models: [(&str, usize, [f64; 3]); 4] = [
        ("single", 1, [95.122_942_725_635_95; 3]),
        ("mirror", 2, [99.990_621_734_567_71, 99.998_634_459_042_4, 99.999_942_929_883_53]),
        ("raidz1", 4, [99.943_953_223_695_79, 99.991_811_504_947_46, 99.999_657_587_606_26]),
        ("raidz3", 20, [99.999_919_557_837_59, 99.999_999_753_030_86, 99.999_999_999_982]),
    ];
    for (word, count, survives) in models {
        for (times, survives) in [52.142_857_143, 365.0, 8760.0].into_iter().zip(survives) {
            let rates = Rates {
                failures: 0.05,
                correlation: 1.0,
                rebuild: 1.0 / times,
                together: true,
                bad_sectors: 0.0,
                scrubs: 0.0,
            };
            let lost = chances(layout(word, count), &rates).group;
            let published = 1.0 - survives / 100.0;
            // The last one has three digits.
            let within = if published < 1e-11 { 0.05 } else { 1e-4 };
            near(&format!("{word} of {count}, {times:.0} repairs a year"), lost, published, within);
        }
    }
}

/// github.com/Backblaze/erasure-coding-durability counts failures in fixed windows of the repair time, and misses those
/// that are near one another in two of them: a third of what the chain has, of two parity shards.
#[test]
fn a_calculator_that_counts_in_windows_tells_a_third() {
    let rates = Rates {
        failures: 0.1,
        correlation: 1.0,
        rebuild: 1.0 / 365.0,
        together: true,
        bad_sectors: 0.0,
        scrubs: 0.0,
    };
    near("4 + 2 shards", chances(layout("raidz2", 6), &rates).group, 3.0 * 1.5e-7, 0.02);
}

/// The closed forms: exact for one parity (Gibson, "Redundant Disk Arrays", 1992), and what is left of all when repairs
/// are fast (Elling, "ZFS data protection comparison", 2010).
#[test]
fn closed_forms_of_the_mean_time() {
    let (fails, repairs) = (0.03, 100.0);
    let rates = |rebuild: f64| Rates {
        failures: fails,
        correlation: 1.0,
        rebuild,
        together: false,
        bad_sectors: 0.0,
        scrubs: 0.0,
    };
    for count in [2, 5, 12, 60] {
        let n = count as f64;
        let exact = ((2.0 * n - 1.0) * fails + repairs) / (n * (n - 1.0) * fails * fails);
        let ours = chances(layout("raidz1", count), &rates(1.0 / repairs)).years_to_group;
        near(&format!("raidz1 of {count}"), ours, exact, 1e-9);
    }
    for (word, least, parity) in [("raidz1", 2, 1), ("raidz2", 3, 2), ("raidz3", 4, 3)] {
        for count in [least, 8, 16] {
            let rebuild: f64 = 1e-5;
            let n = count as f64;
            let falling: f64 = (0..=parity).map(|gone| n - f64::from(gone)).product();
            let short = 1.0 / (falling * fails.powi(parity + 1) * rebuild.powi(parity));
            let ours = chances(layout(word, count), &rates(rebuild)).years_to_group;
            near(&format!("{word} of {count}"), ours, short, 1e-3);
        }
    }
}
