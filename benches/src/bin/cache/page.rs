//! The figures as a page.

use crate::{RAM_PARTS, Row, references};
use std::fmt::Write;

/// Writes docs/cache.md.
pub fn page(
    rows: &[Row],
    scan: &[(f64, f64)],
    curves: &[(String, (f64, usize))],
    memory: &[(u64, f64)],
) -> String {
    let mut page = String::from(INTRODUCTION);
    summary(&mut page, rows, scan, curves, memory).expect("a string can be written to");
    table(&mut page, rows).expect("a string can be written to");
    page
}

const INTRODUCTION: &str = "\
# The read cache's policy, simulated

Written by `cargo run --release -p larder-benches --bin cache -- --traces FOLDER --out docs`: the policy of
`larder-cache` on traces, without devices. RAM in front is LRU here. The references have RAM and SSD as one cache of as
many bytes, all as fast; they have the sizes and rules of their papers. Hits are counted from the first read on, of an
empty cache. OLTP, P3 and P12 are traces of N. Megiddo and D. Modha (ARC, FAST '03), in blocks of their unit; the others
are independent reads of 200,000 ids by Zipf's law, 2,000,000 each. Sizes are parts of the blocks that a trace reads. Of
the six references the best at each size is what Larder is held against.

";

fn summary(
    page: &mut String,
    rows: &[Row],
    scan: &[(f64, f64)],
    curves: &[(String, (f64, usize))],
    memory: &[(u64, f64)],
) -> std::fmt::Result {
    let figures = || rows.iter().flat_map(|row| row.larder.map(|larder| (row, larder)));
    let count = figures().count() as f64;
    let mean = figures().map(|(row, larder)| larder.hit_ratio / row.best()).sum::<f64>() / count;
    let writes = (figures().map(|(_, larder)| larder.writes.ln()).sum::<f64>() / count).exp();
    let least = |rows: &mut dyn Iterator<Item = f64>| rows.fold(f64::INFINITY, f64::min);
    let from_5 = least(
        &mut figures().filter(|(row, _)| row.size >= 0.05).map(|(row, larder)| larder.hit_ratio / row.best()),
    );
    let zipf = || figures().filter(|(row, _)| row.trace.starts_with("zipf"));
    let belady =
        zipf().map(|(row, larder)| larder.hit_ratio / row.belady).sum::<f64>() / zipf().count() as f64;
    let least_belady = least(&mut zipf().map(|(row, larder)| larder.hit_ratio / row.belady));
    let fall = scan.iter().map(|(_, fall)| fall * 100.0).fold(f64::NEG_INFINITY, f64::max);
    let error = curves.iter().map(|(_, (error, _))| *error).fold(0.0, f64::max);
    let bytes = curves.iter().map(|(_, (_, bytes))| *bytes).max().unwrap_or(0);
    let each = memory.iter().map(|(_, each)| *each).fold(0.0, f64::max);
    writeln!(page, "| what | figure | target | |\n|---|---|---|---|")?;
    let mut line = |what: &str, figure: String, target: &str, reached: bool| {
        writeln!(page, "| {what} | {figure} | {target} | {} |", if reached { "reached" } else { "missed" })
    };
    line("hit ratio / best reference, mean", format!("{mean:.3}"), "≥ 0.95", mean >= 0.95)?;
    line("the least of those from 5 % on", format!("{from_5:.3}"), "≥ 0.85", from_5 >= 0.85)?;
    line(
        "hit ratio / Belady, Zipf; the least",
        format!("{belady:.3}; {least_belady:.3}"),
        "≥ 0.95",
        least_belady >= 0.95,
    )?;
    line("points lost by a scan of 10 times the cache", format!("{fall:.2}"), "≤ 1", fall <= 1.0)?;
    line("SSD bytes written / a ring's, geometric mean", format!("{writes:.3}"), "≤ 0.3", writes <= 0.3)?;
    line("bytes of RAM a cached block, ghost included", format!("{each:.2}"), "≤ 14", each <= 14.0)?;
    line("error of the curve", format!("{error:.4}"), "≤ 0.015", error <= 0.015)?;
    line("bytes of its miniatures", format!("{bytes}"), "≤ 2 MiB", bytes <= 2 << 20)?;
    let list = |of: Vec<String>| of.join(", ");
    let scans = list(scan.iter().map(|(alpha, fall)| format!("Zipf {alpha}: {:.2}", fall * 100.0)).collect());
    let curves = list(curves.iter().map(|(name, (error, _))| format!("{name} {error:.4}")).collect());
    let memory = list(memory.iter().map(|(blocks, each)| format!("{blocks} blocks: {each:.2}")).collect());
    writeln!(
        page,
        "\nScans: {scans}. Error of the curve at ½, 1, 2 and 4 times a tenth: {curves}. RAM: {memory}.\n"
    )
}

fn table(page: &mut String, rows: &[Row]) -> std::fmt::Result {
    let names: Vec<_> = references::REFERENCES.iter().map(|(name, _)| *name).collect();
    let [first, second] = RAM_PARTS;
    writeln!(
        page,
        "## Hit ratios\nLarder with RAM of 1/{first} and 1/{second} of the SSD: hit ratio (of the best reference; of \
         Belady; writes of a ring's).\n"
    )?;
    writeln!(
        page,
        "| trace, size | {} | Belady | Larder, 1/{first} | Larder, 1/{second} |",
        names.join(" | ")
    )?;
    writeln!(page, "|---|{}", "---|".repeat(names.len() + 3))?;
    for row in rows {
        let references: Vec<_> = row.references.iter().map(|ratio| format!("{ratio:.3}")).collect();
        let larder = row.larder.map(|of| {
            let (best, belady) = (of.hit_ratio / row.best(), of.hit_ratio / row.belady);
            format!("{:.3} ({best:.3}; {belady:.3}; {:.2})", of.hit_ratio, of.writes)
        });
        writeln!(
            page,
            "| {}, {} % | {} | {:.3} | {} |",
            row.trace,
            (row.size * 100.0).round(),
            references.join(" | "),
            row.belady,
            larder.join(" | ")
        )?;
    }
    Ok(())
}
