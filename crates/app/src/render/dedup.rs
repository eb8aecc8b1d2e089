//! `pool dedup`: the histogram of references as zdb(8) and `zpool status -D` print it, and what it comes to.

use super::table::{Column, Table};
use crate::api::pool::PoolStatus;
use crate::api::trace::{References, TraceStatus};
use larder_pool::property::{format_count, format_size};

/// Bytes that a fingerprint adds to an entry of the block map.
const BYTES_IN_MAP: u64 = 17;

/// All of it, as `larder pool dedup` prints it.
pub fn text(pool: &PoolStatus, exact: bool) -> String {
    let name = &pool.root.name;
    let mut out = format!("  pool: {name}\n");
    let Some(trace) = known(pool) else {
        return format!(
            "{out}nothing is known of references before a first trace: larder pool trace -w {name}\n"
        );
    };
    let (once, more) = trace.fingerprinted;
    match pool.dedup {
        None if once + more == 0 => out += " index: none: nothing has a fingerprint\n",
        index => {
            let index = index.unwrap_or_default();
            let entries = (once + more).max(1) as f64;
            let disk = cost(pool, trace) as f64 / entries;
            let memory = index.memory as f64 / entries;
            out += &format!(
                " index: {more} duplicate and {once} unique entries, {disk:.1} bytes on disk, {memory:.1} in memory each\n"
            );
            if index.sampling > 1 {
                let sampling = index.sampling;
                out += &format!(
                    "        memory is short: one in {sampling} fingerprints is kept, the rest is found beside them\n"
                );
            }
        }
    }
    out += &histogram(trace, exact);
    out += &format!("\n{}", ratios(&trace.total_references()));
    out += &net(pool, trace, exact);
    out + &datasets(trace, exact)
}

/// As `zdb -D` prints it: with one D only the closing line, from two on the histogram before it.
pub fn zdb(pool: &PoolStatus, depth: u8) -> String {
    let Some(trace) = known(pool) else { return String::new() };
    let (once, more) = trace.fingerprinted;
    let index = pool.dedup.unwrap_or_default();
    let each = |bytes: u64| bytes / (once + more).max(1);
    let mut out = String::new();
    if once + more == 0 {
        out += "All DDTs are empty\n";
    }
    for (class, entries) in [("duplicate", more), ("unique", once)].into_iter().filter(|(_, n)| *n > 0) {
        let (disk, memory) = (each(cost(pool, trace)), each(index.memory));
        out += &format!("DDT-blake3-run-{class}: {entries} entries, size {disk} on disk, {memory} in core\n");
    }
    if depth > 1 {
        out += &format!("\nDDT histogram (aggregated over all DDTs):\n{}", histogram(trace, false));
    }
    format!("{out}\n{}\n", ratios(&trace.total_references()))
}

/// Lines that `zpool status -D` adds.
pub fn status(pool: &PoolStatus) -> String {
    let index = pool.dedup.unwrap_or_default();
    let Some(trace) = known(pool).filter(|trace| trace.fingerprinted != (0, 0)) else {
        return match index.entries {
            0 => " dedup: no DDT entries\n".to_owned(),
            _ => format!(" dedup: not counted yet: larder pool dedup {}\n", pool.root.name),
        };
    };
    let entries = trace.fingerprinted.0 + trace.fingerprinted.1;
    let (disk, memory) = (format_size(cost(pool, trace)), format_size(index.memory));
    format!(
        " dedup: DDT entries {entries}, size {disk} on disk, {memory} in core\n{}",
        histogram(trace, false)
    )
}

/// The trace, if it ended well.
fn known(pool: &PoolStatus) -> Option<&TraceStatus> {
    pool.trace.as_ref().filter(|trace| trace.has_counts())
}

fn histogram(trace: &TraceStatus, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { format_size(bytes) };
    let count = |blocks: u64| if exact { blocks.to_string() } else { format_count(blocks) };
    let mut out = "\nbucket              allocated                       referenced          \n".to_owned();
    let rule = |n: usize| "_".repeat(n);
    out += &format!("{}   {}   {}\n", rule(6), rule(30), rule(30));
    let mut row = |first: &str, cells: [String; 8]| {
        let [a, b, c, d, e, f, g, h] = cells;
        out +=
            &format!("{first:>6}   {a:>6}   {b:>5}   {c:>5}   {d:>5}   {e:>6}   {f:>5}   {g:>5}   {h:>5}\n");
    };
    let heads = ["blocks", "LSIZE", "PSIZE", "DSIZE"];
    row("refcnt", std::array::from_fn(|i| heads[i % 4].to_owned()));
    row("------", std::array::from_fn(|i| "-".repeat(heads[i % 4].len())));
    let mut line = |first: &str, of: &References| {
        row(
            first,
            [
                count(of.blocks),
                size(of.logical),
                size(of.stored),
                size(of.allocated),
                count(of.referenced_blocks),
                size(of.referenced_logical),
                size(of.referenced_stored),
                size(of.referenced_allocated),
            ],
        );
    };
    for of in &trace.references {
        line(&count(of.references), of);
    }
    line("Total", &trace.total_references());
    out
}

/// The line that zdb closes with. Copies are what alignment and headers add: parity and mirrors do not count.
fn ratios(all: &References) -> String {
    let ratio = |a: u64, b: u64| if b == 0 { 1.0 } else { a as f64 / b as f64 };
    let dedup = ratio(all.referenced_allocated, all.allocated);
    let compress = ratio(all.referenced_logical, all.referenced_stored);
    let copies = ratio(all.referenced_allocated, all.referenced_stored);
    let product = dedup * compress / copies;
    format!(
        "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, dedup * compress / copies = {product:.2}\n"
    )
}

/// Bytes that the index and the fingerprints in the block map take on the devices, one copy of them.
fn cost(pool: &PoolStatus, trace: &TraceStatus) -> u64 {
    let (once, more) = trace.fingerprinted;
    pool.dedup.map_or(0, |index| index.disk) + (once + more) * BYTES_IN_MAP
}

/// Savings less the index's own cost.
fn net(pool: &PoolStatus, trace: &TraceStatus, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { format_size(bytes) };
    let all = trace.total_references();
    let saved = all.referenced_allocated.saturating_sub(all.allocated);
    let cost = cost(pool, trace);
    let (word, net) = if saved >= cost { ("saved", saved - cost) } else { ("lost", cost - saved) };
    format!("net = {} {word} ({} shared, less {} of index)\n", size(net), size(saved), size(cost))
}

fn datasets(trace: &TraceStatus, exact: bool) -> String {
    if trace.sharing.is_empty() {
        return String::new();
    }
    let size = |bytes: u64| if exact { bytes.to_string() } else { format_size(bytes) };
    let heads = ["LSIZE", "DSIZE", "SHARE", "SAVED"].map(|head| Column::right(head, 0));
    let mut table = Table::new([Column::left("DATASET")].into_iter().chain(heads).collect());
    for of in &trace.sharing {
        let saved = of.allocated.saturating_sub(of.share);
        table.row(vec![
            of.dataset.clone(),
            size(of.logical),
            size(of.allocated),
            size(of.share),
            size(saved),
        ]);
    }
    format!("\n{}", table.render(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::dedup::DedupStatus;
    use crate::api::trace::Sharing;
    use crate::render::status::tests::pool;

    fn shared() -> PoolStatus {
        let of = |references, blocks: u64, each: u64| References {
            references,
            blocks,
            logical: blocks * (128 << 10),
            stored: blocks * (64 << 10),
            allocated: blocks * (64 << 10),
            referenced_blocks: blocks * each,
            referenced_logical: blocks * each * (128 << 10),
            referenced_stored: blocks * each * (64 << 10),
            referenced_allocated: blocks * each * (64 << 10),
        };
        let sharing = Sharing {
            dataset: "tank/copies".into(),
            references: 1600,
            logical: 200 << 20,
            allocated: 100 << 20,
            share: 40 << 20,
        };
        let trace = TraceStatus {
            state: crate::api::trace::TraceState::Done,
            finished: Some(1),
            references: vec![of(1, 1000, 1), of(2, 500, 3)],
            fingerprinted: (1000, 500),
            sharing: vec![sharing],
            ..TraceStatus::default()
        };
        let dedup = DedupStatus { entries: 1500, disk: 24_000, memory: 3_000, ..DedupStatus::default() };
        PoolStatus { trace: Some(trace), dedup: Some(dedup), ..pool() }
    }

    #[test]
    fn the_histogram_is_the_one_that_people_know() {
        let wanted = "  pool: tank
 index: 500 duplicate and 1000 unique entries, 33.0 bytes on disk, 2.0 in memory each

bucket              allocated                       referenced          
______   ______________________________   ______________________________
refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE
------   ------   -----   -----   -----   ------   -----   -----   -----
     1     1000    125M   62.5M   62.5M     1000    125M   62.5M   62.5M
     2      500   62.5M   31.2M   31.2M    1.46K    188M   93.8M   93.8M
 Total    1.46K    188M   93.8M   93.8M    2.44K    312M    156M    156M

dedup = 1.67, compress = 2.00, copies = 1.00, dedup * compress / copies = 3.33
net = 62.5M saved (62.5M shared, less 48.3K of index)

DATASET      LSIZE  DSIZE  SHARE  SAVED
tank/copies   200M   100M    40M    60M
";
        assert_eq!(text(&shared(), false), wanted);
    }

    #[test]
    fn zdb_says_what_an_entry_takes() {
        let said = zdb(&shared(), 2);
        assert!(
            said.starts_with("DDT-blake3-run-duplicate: 500 entries, size 33 on disk, 2 in core\n"),
            "{said}"
        );
        assert!(said.contains("\nDDT histogram (aggregated over all DDTs):\n\nbucket "), "{said}");
        assert!(said.ends_with("dedup * compress / copies = 3.33\n\n"), "{said}");
        assert!(!zdb(&shared(), 1).contains("bucket"));
    }

    #[test]
    fn a_pool_without_fingerprints_says_so() {
        let none = PoolStatus {
            trace: Some(TraceStatus {
                finished: Some(1),
                state: crate::api::trace::TraceState::Done,
                ..TraceStatus::default()
            }),
            dedup: None,
            ..pool()
        };
        assert!(text(&none, false).contains("nothing has a fingerprint"));
        assert!(zdb(&none, 2).starts_with("All DDTs are empty\n"));
        assert_eq!(status(&none), " dedup: no DDT entries\n");
        let later = PoolStatus { dedup: Some(DedupStatus { entries: 7, ..DedupStatus::default() }), ..none };
        assert_eq!(status(&later), " dedup: not counted yet: larder pool dedup tank\n");
    }
}
