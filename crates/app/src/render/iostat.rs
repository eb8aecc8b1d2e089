//! `iostat`: counters into rates.

use super::short_path;
use crate::api::pool::{Io, PoolStatus, Vdev};
use larder_pool::property::{format_count, format_size};

/// How it is shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Form {
    /// Groups and devices too.
    pub verbose: bool,
    /// Full paths of devices.
    pub paths: bool,
    /// Exact numbers.
    pub exact: bool,
}

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

/// The sample of the same pool or device that was taken before.
pub fn counterpart<'a>(earlier: Option<&'a Vdev>, now: &Vdev) -> Option<&'a Vdev> {
    earlier?.children.iter().find(|vdev| vdev.name == now.name)
}

/// The pool's sample that was taken before.
pub fn pool_before<'a>(earlier: &'a [PoolStatus], now: &PoolStatus) -> Option<&'a PoolStatus> {
    earlier.iter().find(|pool| pool.root.name == now.root.name && pool.root.guid == now.root.guid)
}

/// The lines of one sample.
pub fn text(earlier: &[PoolStatus], now: &[PoolStatus], form: Form, header: bool, scripted: bool) -> String {
    let mut rows = Vec::new();
    let mut ends = Vec::new();
    for pool in now {
        let before = pool_before(earlier, pool);
        let clock = (before.map_or(0, |pool| pool.uptime_ns), pool.uptime_ns);
        collect(&mut rows, before.map(|pool| &pool.root), &pool.root, clock, 0, form);
        ends.push(rows.len());
    }
    if scripted {
        return rows.iter().map(|(name, cells)| format!("{name}\t{}\n", cells.join("\t"))).collect();
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(10);
    let widths: Vec<usize> =
        (0..6).map(|at| rows.iter().map(|(_, cells)| cells[at].len()).max().unwrap_or(0).max(5)).collect();
    let rule = format!(
        "{}{}\n",
        "-".repeat(width),
        widths.iter().map(|&w| format!("  {:-<w$}", "")).collect::<String>()
    );
    let mut out = String::new();
    if header {
        let heads = ["capacity", "operations", "bandwidth"].iter().zip(widths.chunks(2));
        let heads = heads.map(|(head, pair)| {
            let space = pair[0] + 2 + pair[1];
            let left = (space - head.len()).div_ceil(2);
            format!("  {:left$}{head:<1$}", "", space - left)
        });
        out += &format!("{:width$}{}\n", "", heads.collect::<String>());
        let names = ["alloc", "free", "read", "write", "read", "write"];
        let names = names.iter().zip(&widths).map(|(name, &w)| format!("  {name:>w$}"));
        out += &format!("{:<width$}{}\n{rule}", "pool", names.collect::<String>());
    }
    for (at, (name, cells)) in rows.iter().enumerate() {
        let cells = cells.iter().zip(&widths).map(|(cell, &w)| format!("  {cell:>w$}"));
        out += &format!("{name:<width$}{}\n", cells.collect::<String>());
        let end = ends.contains(&(at + 1));
        if (form.verbose && end) || (now.len() > 1 && at + 1 == rows.len()) {
            out += &rule;
        }
    }
    out
}

type Row = (String, [String; 6]);

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
    let name = if form.paths { vdev.name.as_str() } else { short_path(&vdev.name) };
    let cells = [
        space(vdev.allocated),
        space(vdev.size.saturating_sub(vdev.allocated)),
        count(io.reads),
        count(io.writes),
        size(io.read_bytes),
        size(io.written_bytes),
    ];
    rows.push((format!("{:1$}{name}", "", depth * 2), cells));
    if form.verbose {
        for child in &vdev.children {
            collect(rows, counterpart(before, child), child, clock, depth + 1, form);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::status::tests::pool;

    #[test]
    fn the_first_sample_is_the_average_since_import() {
        assert_eq!(
            text(&[], &[pool()], Form::default(), true, false),
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
        let form = Form { exact: true, ..Form::default() };
        assert_eq!(
            text(&[pool()], &[later], form, false, true),
            "tank\t536870912\t9663676416\t0\t3\t0\t524288\n"
        );
    }

    #[test]
    fn counters_of_a_new_import_are_not_compared_with_the_old_ones() {
        let mut before = pool();
        before.uptime_ns *= 5;
        let form = Form { exact: true, ..Form::default() };
        assert!(text(&[before], &[pool()], form, false, true).contains("\t10\t200\t"));
    }

    #[test]
    fn devices_are_shown_below_their_groups() {
        let form = Form { verbose: true, ..Form::default() };
        let shown = text(&[], &[pool()], form, false, false);
        let names: Vec<&str> =
            shown.lines().map(|line| line.split("  -").next().unwrap().trim_end()).collect();
        assert!(names[1].starts_with("  mirror-0"));
        assert_eq!(names[2].trim_end(), "    sda");
        assert!(shown.ends_with("-----\n"));
    }
}
