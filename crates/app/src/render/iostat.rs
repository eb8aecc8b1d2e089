//! `iostat`: counters into rates, histograms into waits.

use super::json::{class_key, envelope};
use super::short_path;
use crate::api::figures::{Wait, Waits};
use crate::api::pool::{Io, PoolStatus, Vdev};
use larder_device::{Counts, OCTAVES};
use larder_pool::property::{format_count, format_size};
use serde_json::{Map, Value, json};

/// Form of the output.
#[derive(Debug, Clone, Copy, Default)]
pub struct Form {
    /// Groups and devices too.
    pub verbose: bool,
    /// Full paths of devices.
    pub paths: bool,
    /// Exact numbers.
    pub exact: bool,
    /// Averages and percentiles of waits.
    pub latency: bool,
    /// Tabs between columns.
    pub scripted: bool,
}

/// A head over columns.
type Heads = [(&'static str, &'static [&'static str])];

const TRAFFIC: &Heads = &[
    ("capacity", &["alloc", "free"]),
    ("operations", &["read", "write"]),
    ("bandwidth", &["read", "write"]),
];
const WAITS: &Heads = &[
    ("total_wait", &["read", "write"]),
    ("disk_wait", &["read", "write"]),
    ("flush_wait", &["total", "disk"]),
];
const PERCENTILES: &[&str] = &["p50", "p99", "p99.9"];
const LATENCY: &Heads =
    &[("read_latency", PERCENTILES), ("write_latency", PERCENTILES), ("flush_latency", PERCENTILES)];
/// [`PERCENTILES`] as parts of a thousand.
const PER_MILLE: [u64; 3] = [500, 990, 999];

/// Counters a second between two samples of a pool; since import when there is no earlier one.
/// A pool that was imported anew in between has lower counters: then also since import.
pub fn rate(earlier: Option<(&Io, u64)>, now: &Io, uptime_ns: u64) -> Io {
    let (before, since) = match earlier {
        Some((before, since)) if since < uptime_ns => (*before, since),
        _ => (Io::default(), 0),
    };
    let elapsed = u128::from(uptime_ns - since).max(1);
    let per_second = |now: u64, before: u64| {
        let rate = u128::from(now.saturating_sub(before)) * 1_000_000_000 / elapsed;
        u64::try_from(rate).unwrap_or(u64::MAX)
    };
    Io {
        reads: per_second(now.reads, before.reads),
        writes: per_second(now.writes, before.writes),
        read_bytes: per_second(now.read_bytes, before.read_bytes),
        written_bytes: per_second(now.written_bytes, before.written_bytes),
    }
}

/// Waits after the earlier sample, taken as by [`rate`].
pub fn waits(earlier: Option<(&Waits, u64)>, now: &Waits, uptime_ns: u64) -> Waits {
    match earlier {
        Some((before, since)) if since < uptime_ns => now.since(before),
        _ => now.clone(),
    }
}

/// Averages of [`WAITS`]: total waits of reads and writes, their waits at the device, both of flushes.
fn by_wait(waits: &Waits) -> [&Counts; 6] {
    let Waits { read, write, flush } = waits;
    [&read.total, &write.total, &read.disk, &write.disk, &flush.total, &flush.disk]
}

/// A duration's whole part and its unit, and what is left in tenths.
fn split(ns: u64) -> (u64, u64, &'static str) {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")];
    match units.iter().find(|(size, _)| ns >= *size) {
        Some((size, name)) => (ns / size, ns % size * 10 / size, name),
        None => (ns, 0, "ns"),
    }
}

/// A duration in five characters: `870ns`, `1.8ms`, `18ms`.
fn format_wait(ns: u64) -> String {
    match split(ns) {
        (whole, tenths, unit) if whole < 10 && unit != "ns" => format!("{whole}.{tenths}{unit}"),
        (whole, _, unit) => format!("{whole}{unit}"),
    }
}

/// The sample of the same pool or device that was taken before.
pub fn counterpart<'a>(earlier: Option<&'a Vdev>, now: &Vdev) -> Option<&'a Vdev> {
    earlier?.children.iter().find(|vdev| vdev.name == now.name)
}

/// That of one in a class.
pub fn class_before<'a>(earlier: Option<&'a PoolStatus>, now: &Vdev) -> Option<&'a Vdev> {
    earlier?.classes.iter().flat_map(|class| &class.vdevs).find(|vdev| vdev.name == now.name)
}

/// The pool's sample that was taken before.
pub fn pool_before<'a>(earlier: &'a [PoolStatus], now: &PoolStatus) -> Option<&'a PoolStatus> {
    earlier.iter().find(|pool| pool.root.name == now.root.name && pool.root.guid == now.root.guid)
}

/// Uptimes at the sample before and at this one.
pub fn clock(before: Option<&PoolStatus>, now: &PoolStatus) -> (u64, u64) {
    (before.map_or(0, |pool| pool.uptime_ns), now.uptime_ns)
}

/// The lines of one sample.
pub fn text(earlier: &[PoolStatus], now: &[PoolStatus], form: Form, header: bool) -> String {
    let mut rows = Vec::new();
    let mut ends = Vec::new();
    for pool in now {
        let before = pool_before(earlier, pool);
        let clock = clock(before, pool);
        collect(&mut rows, before.map(|pool| &pool.root), &pool.root, clock, 0, form);
        for class in pool.classes.iter().filter(|_| form.verbose) {
            if !form.scripted {
                let cells = rows.last().map_or(0, |(_, cells)| cells.len());
                rows.push((class.head.clone(), vec!["-".to_owned(); cells]));
            }
            for vdev in &class.vdevs {
                collect(&mut rows, class_before(before, vdev), vdev, clock, 1, form);
            }
        }
        ends.push(rows.len());
    }
    if form.scripted {
        return rows.iter().map(|(name, cells)| format!("{name}\t{}\n", cells.join("\t"))).collect();
    }
    let heads: Vec<_> = match form.latency {
        true => [TRAFFIC, WAITS, LATENCY].concat(),
        false => TRAFFIC.to_vec(),
    };
    let sheet = Sheet::new("pool", &heads, &rows);
    let mut out = if header { sheet.header("") } else { String::new() };
    for (at, row) in rows.iter().enumerate() {
        out += &sheet.line(row);
        let end = ends.contains(&(at + 1));
        if (form.verbose && end) || (now.len() > 1 && at + 1 == rows.len()) {
            out += &sheet.rule();
        }
    }
    out
}

/// A name and its cells.
type Row = (String, Vec<String>);

/// Columns of numbers under shared heads, beside names.
struct Sheet<'a> {
    first: &'a str,
    heads: &'a Heads,
    width: usize,
    widths: Vec<usize>,
}

impl<'a> Sheet<'a> {
    fn new(first: &'a str, heads: &'a Heads, rows: &[Row]) -> Self {
        let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(10);
        let columns: usize = heads.iter().map(|(_, names)| names.len()).sum();
        let widest = |at: usize| rows.iter().map(|(_, cells)| cells[at].len()).max().unwrap_or(0).max(5);
        Self { first, heads, width, widths: (0..columns).map(widest).collect() }
    }

    fn line(&self, (name, cells): &Row) -> String {
        let cells = cells.iter().zip(&self.widths).map(|(cell, &w)| format!("  {cell:>w$}"));
        format!("{name:<width$}{}\n", cells.collect::<String>(), width = self.width)
    }

    fn rule(&self) -> String {
        let cells = self.widths.iter().map(|&w| format!("  {:-<w$}", ""));
        format!("{}{}\n", "-".repeat(self.width), cells.collect::<String>())
    }

    /// Two lines of heads, the first beginning with `corner`, and a rule.
    fn header(&self, corner: &str) -> String {
        let mut at = 0;
        let heads = self.heads.iter().map(|(head, names)| {
            let widths = &self.widths[at..at + names.len()];
            at += names.len();
            let space = widths.iter().sum::<usize>() + 2 * (names.len() - 1);
            let left = space.saturating_sub(head.len()).div_ceil(2);
            format!("  {:left$}{head:<1$}", "", space - left)
        });
        let heads: String = heads.collect();
        let names = self.heads.iter().flat_map(|(_, names)| *names).map(|name| (*name).to_owned()).collect();
        let names = self.line(&(self.first.to_owned(), names));
        format!("{corner:<width$}{heads}\n{names}{}", self.rule(), width = self.width)
    }
}

fn shown_name(vdev: &Vdev, form: Form) -> &str {
    if form.paths { vdev.name.as_str() } else { short_path(&vdev.name) }
}

fn collect(
    rows: &mut Vec<Row>,
    before: Option<&Vdev>,
    vdev: &Vdev,
    clock: (u64, u64),
    depth: usize,
    form: Form,
) {
    let (since, uptime) = clock;
    let io = rate(before.map(|vdev| (&vdev.io, since)), &vdev.io, uptime);
    let size = |bytes: u64| if form.exact { bytes.to_string() } else { format_size(bytes) };
    let count = |count: u64| if form.exact { count.to_string() } else { format_count(count) };
    let space = |bytes: u64| if vdev.size > 0 { size(bytes) } else { "-".to_owned() };
    let mut cells = vec![
        space(vdev.allocated),
        space(vdev.size.saturating_sub(vdev.allocated)),
        count(io.reads),
        count(io.writes),
        size(io.read_bytes),
        size(io.written_bytes),
    ];
    if form.latency {
        let waits = waits(before.map(|vdev| (&vdev.waits, since)), &vdev.waits, uptime);
        let wait = |ns: Option<u64>| match ns {
            Some(ns) if form.exact => ns.to_string(),
            Some(ns) => format_wait(ns),
            None => "-".to_owned(),
        };
        cells.extend(by_wait(&waits).map(|counts| wait(counts.mean())));
        for Wait { total, .. } in [&waits.read, &waits.write, &waits.flush] {
            cells.extend(PER_MILLE.map(|per_mille| wait(total.percentile(per_mille))));
        }
    }
    rows.push((format!("{:1$}{2}", "", depth * 2, shown_name(vdev, form)), cells));
    if form.verbose {
        for child in &vdev.children {
            collect(rows, counterpart(before, child), child, clock, depth + 1, form);
        }
    }
}

/// The histograms of one sample: a sheet a pool, and with `verbose` one a group and device. Rows are
/// powers of two, named by the last nanosecond that is in them; requests are counted, not their rate.
pub fn histograms(earlier: &[PoolStatus], now: &[PoolStatus], form: Form) -> String {
    let mut out = String::new();
    for pool in now {
        let before = pool_before(earlier, pool);
        histogram(&mut out, before.map(|pool| &pool.root), &pool.root, clock(before, pool), form);
        for vdev in pool.classes.iter().flat_map(|class| &class.vdevs).filter(|_| form.verbose) {
            histogram(&mut out, class_before(before, vdev), vdev, clock(before, pool), form);
        }
    }
    out
}

fn histogram(out: &mut String, before: Option<&Vdev>, vdev: &Vdev, clock: (u64, u64), form: Form) {
    let (since, uptime) = clock;
    let waits = waits(before.map(|vdev| (&vdev.waits, since)), &vdev.waits, uptime);
    let columns = by_wait(&waits).map(Counts::octaves);
    let name = shown_name(vdev, form);
    let rows = (0..OCTAVES).map(|octave| {
        let last = (2u64 << octave) - 1;
        let (whole, _, unit) = split(last);
        let label = if form.exact { last.to_string() } else { format!("{whole}{unit}") };
        let cell = |column: &[u64; OCTAVES]| match form.exact {
            true => column[octave].to_string(),
            false => format_count(column[octave]),
        };
        (label, columns.iter().map(cell).collect())
    });
    let rows: Vec<Row> = rows.collect();
    if form.scripted {
        for (label, cells) in &rows {
            *out += &format!("{name}\t{label}\t{}\n", cells.join("\t"));
        }
    } else {
        let sheet = Sheet::new("latency", WAITS, &rows);
        *out += &format!("\n{}", sheet.header(name));
        rows.iter().for_each(|row| *out += &sheet.line(row));
        *out += &sheet.rule();
    }
    if form.verbose {
        for child in &vdev.children {
            histogram(out, counterpart(before, child), child, clock, form);
        }
    }
}

/// One sample of `iostat`, with whole histograms where these are asked for.
pub fn json(command: &str, earlier: &[PoolStatus], now: &[PoolStatus], histograms: bool) -> Value {
    let one = |pool: &PoolStatus| {
        let before = pool_before(earlier, pool);
        let clock = clock(before, pool);
        let mut value = traffic(before.map(|pool| &pool.root), &pool.root, clock, histograms);
        value["l2cache"] = json!({});
        for class in &pool.classes {
            let vdevs = class.vdevs.iter().map(|vdev| {
                (vdev.name.clone(), traffic(class_before(before, vdev), vdev, clock, histograms))
            });
            value[class_key(class)] = vdevs.collect::<Map<_, _>>().into();
        }
        (pool.root.name.clone(), value)
    };
    envelope(command, "pools", now.iter().map(one).collect())
}

fn traffic(before: Option<&Vdev>, vdev: &Vdev, clock: (u64, u64), histograms: bool) -> Value {
    let (since, uptime) = clock;
    let io = rate(before.map(|vdev| (&vdev.io, since)), &vdev.io, uptime);
    let waits = waits(before.map(|vdev| (&vdev.waits, since)), &vdev.waits, uptime);
    let mut value = json!({
        "name": vdev.name,
        "alloc_space": vdev.allocated,
        "free_space": vdev.size.saturating_sub(vdev.allocated),
        "read_ops": io.reads,
        "write_ops": io.writes,
        "read_bytes": io.read_bytes,
        "write_bytes": io.written_bytes,
        "latency": {
            "read": latency(&waits.read, histograms),
            "write": latency(&waits.write, histograms),
            "flush": latency(&waits.flush, histograms),
        },
    });
    if !vdev.children.is_empty() {
        let children = vdev.children.iter();
        let one = |child: &Vdev| traffic(counterpart(before, child), child, clock, histograms);
        let children = children.map(|child| (child.name.clone(), one(child)));
        value["vdevs"] = children.collect::<Map<_, _>>().into();
    }
    value
}

/// Latencies of requests of one kind, in nanoseconds; null where there was none. The pairs of a histogram are upper
/// bounds of buckets, and the requests in them.
fn latency(wait: &Wait, histograms: bool) -> Value {
    let mut value = json!({ "requests": wait.total.total() });
    for (name, counts) in [("total_wait", &wait.total), ("disk_wait", &wait.disk)] {
        value[name] = json!({
            "mean_ns": counts.mean(),
            "p50_ns": counts.percentile(500),
            "p99_ns": counts.percentile(990),
            "p99_9_ns": counts.percentile(999),
        });
        if histograms {
            value[name]["histogram"] = counts.occupied().map(|(ns, count)| json!([ns, count])).collect();
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::status::tests::{pool, with_caches};

    #[test]
    fn the_first_sample_is_the_average_since_import() {
        assert_eq!(
            text(&[], &[pool()], Form::default(), true),
            "              capacity     operations     bandwidth \n\
             pool        alloc   free   read  write   read  write\n\
             ----------  -----  -----  -----  -----  -----  -----\n\
             tank         512M     9G     10    200     1M     3M\n"
        );
    }

    #[test]
    fn later_samples_are_rates_over_the_interval() {
        let mut later = pool();
        later.uptime_ns += 2_000_000_000;
        later.root.io.writes += 6;
        later.root.io.written_bytes += 1 << 20;
        let form = Form { exact: true, scripted: true, ..Form::default() };
        assert_eq!(text(&[pool()], &[later], form, false), "tank\t536870912\t9663676416\t0\t3\t0\t524288\n");
    }

    #[test]
    fn counters_of_a_new_import_are_not_compared_with_the_old_ones() {
        let mut before = pool();
        before.uptime_ns *= 5;
        let form = Form { exact: true, scripted: true, ..Form::default() };
        assert!(text(&[before], &[pool()], form, false).contains("\t10\t200\t"));
    }

    #[test]
    fn devices_are_shown_below_their_groups() {
        let form = Form { verbose: true, ..Form::default() };
        let shown = text(&[], &[pool()], form, false);
        let names: Vec<&str> =
            shown.lines().map(|line| line.split("  -").next().unwrap().trim_end()).collect();
        assert!(names[1].starts_with("  mirror-0"));
        assert_eq!(names[2].trim_end(), "    sda");
        assert!(shown.ends_with("-----\n"));
    }

    #[test]
    fn devices_with_copies_come_after_the_groups() {
        let form = Form { verbose: true, ..Form::default() };
        let shown = text(&[], &[with_caches()], form, false);
        let end = "cache           -      -      -      -      -      -\n  nvme-a       3G    61G     50      2     5M     \
             2M\n  4711          -      -      0      0     0B     0B\n";
        assert!(shown.contains(end), "{shown}");
        let form = Form { scripted: true, ..form };
        assert!(!text(&[], &[with_caches()], form, false).contains("cache\t"));
        let shown = json("", &[], &[with_caches()], false);
        let cache = &shown["pools"]["tank"]["l2cache"]["/dev/disk/by-id/nvme-a"];
        assert_eq!((&cache["read_ops"], &cache["alloc_space"]), (&json!(50), &json!(3u64 << 30)));
    }

    fn times(durations_ns: &[u64]) -> Counts {
        let histogram = larder_device::Histogram::default();
        durations_ns.iter().for_each(|&ns| histogram.record(ns));
        histogram.read()
    }

    /// Nine fast reads and a slow one, flushes of 20 ms; nothing was written.
    fn slow() -> PoolStatus {
        let mut pool = pool();
        let reads = [&[250_000; 9][..], &[9_000_000]].concat();
        let waits = &mut pool.root.waits;
        waits.read = Wait { total: times(&reads), disk: times(&[200_000; 10]) };
        waits.flush = Wait { total: times(&[20_000_000; 3]), disk: times(&[19_000_000; 3]) };
        pool
    }

    #[test]
    fn latencies_come_behind_the_traffic() {
        let form = Form { latency: true, ..Form::default() };
        let shown = text(&[], &[slow()], form, true);
        let behind: Vec<&str> = shown.lines().map(|line| &line[54..]).collect();
        assert_eq!(
            behind,
            [
                " total_wait     disk_wait    flush_wait       read_latency        write_latency        flush_latency   ",
                " read  write   read  write  total   disk    p50    p99  p99.9    p50    p99  p99.9    p50    p99  p99.9",
                "-----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----",
                "1.1ms      -  200us      -   20ms   19ms  262us  9.4ms  9.4ms      -      -      -   20ms   20ms   20ms",
            ]
        );
    }

    #[test]
    fn histograms_count_requests_by_powers_of_two() {
        let shown = histograms(&[], &[slow()], Form::default());
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 1 + 3 + OCTAVES + 1);
        assert_eq!(lines[1], "tank         total_wait     disk_wait    flush_wait ");
        assert_eq!(lines[2], "latency      read  write   read  write  total   disk");
        assert_eq!(lines[4], "1ns             0      0      0      0      0      0");
        assert_eq!(lines[21], "262us           9      0     10      0      0      0");
        assert_eq!(lines[40], "137s            0      0      0      0      0      0");
        let form = Form { scripted: true, exact: true, ..Form::default() };
        let scripted = histograms(&[], &[slow()], form);
        assert!(scripted.contains("\ntank\t262143\t9\t0\t10\t0\t0\t0\n"), "{scripted}");
    }

    #[test]
    fn a_later_sample_has_only_the_waits_of_its_interval() {
        let mut later = slow();
        later.uptime_ns += 1_000_000_000;
        later.root.waits.read.total = later.root.waits.read.total.plus(&times(&[5_000; 2]));
        let form = Form { latency: true, exact: true, scripted: true, ..Form::default() };
        let shown = text(&[slow()], &[later], form, false);
        assert!(shown.ends_with("\t5000\t-\t-\t-\t-\t-\t5119\t5119\t5119\t-\t-\t-\t-\t-\t-\n"), "{shown}");
    }
}
