//! Plans, as people read them.

use super::table::{Column, Table};
use crate::api::name::printable;
use larder_plan::{Bulk, Candidate, Disk, Kind, Plan, Share};
use larder_pool::property::format_size;

/// Characters of a line of text.
const WIDTH: usize = 118;

/// The amount that is told.
#[derive(Debug, Clone, Copy, Default)]
pub struct Depth {
    /// All candidates.
    pub all: bool,
    /// All figures of each.
    pub verbose: bool,
    /// Bytes, and chances as numbers.
    pub exact: bool,
}

fn bytes(number: u64, exact: bool) -> String {
    if exact { number.to_string() } else { format_size(number) }
}

/// A number in decimal units with two or three digits: `950`, `12k`, `3.4M`.
fn short(number: f64) -> String {
    let (mut number, mut unit) = (number, 0);
    while number >= 999.5 && unit < 6 {
        number /= 1000.0;
        unit += 1;
    }
    let letter = ["", "k", "M", "G", "T", "P", "E"][unit];
    let tenths = format!("{number:.1}");
    match tenths.strip_suffix(".0") {
        None if number < 9.95 && unit > 0 => tenths + letter,
        Some(whole) if number < 9.95 => whole.to_owned() + letter,
        _ => format!("{number:.0}{letter}"),
    }
}

/// A chance: `1 in 12k`; `23 %` where it is large.
pub fn odds(chance: f64) -> String {
    match chance {
        _ if chance >= 0.095 => format!("{:.0} %", chance * 100.0),
        _ if chance < 1e-18 => "< 1 in 1E".to_owned(),
        _ => format!("1 in {}", short(1.0 / chance)),
    }
}

fn chance(chance: f64, exact: bool) -> String {
    if exact { format!("{chance:.3e}") } else { odds(chance) }
}

fn share(share: Share) -> String {
    match share {
        Share { of: 0, .. } => "-".to_owned(),
        Share { survived, of } if survived == of => "all".to_owned(),
        Share { survived: 0, .. } => "none".to_owned(),
        // Almost all is not all.
        share => format!("{:.0} %", (share.part() * 100.0).clamp(1.0, 99.0)),
    }
}

/// Years: `10,000`, and where they are more `2.4M`.
fn years(number: f64) -> String {
    match number {
        _ if number < 10.0 => format!("{number:.1}"),
        _ if number < 999.5 => format!("{number:.0}"),
        _ if number < 99_999.5 => {
            let whole = number.round() as u64;
            format!("{},{:03}", whole / 1000, whole % 1000)
        }
        _ => short(number),
    }
}

/// Bytes a second, decimal, as disks are sold.
fn rate(rate: f64) -> String {
    format!("{:.0}", rate / 1e6)
}

/// Disks as they are sold: `6 x 16 TB`.
fn sizes(disks: &[Disk]) -> String {
    let mut kinds: Vec<((u64, Kind), usize)> = Vec::new();
    for disk in disks {
        match kinds.iter_mut().find(|(kind, _)| *kind == (disk.size, disk.kind)) {
            Some((_, count)) => *count += 1,
            None => kinds.push(((disk.size, disk.kind), 1)),
        }
    }
    let each = |((size, kind), count): &((u64, Kind), usize)| {
        let (number, unit) = match size.ilog10() {
            ..9 => (1e6, "MB"),
            9..12 => (1e9, "GB"),
            _ => (1e12, "TB"),
        };
        let number = format!("{:.2}", *size as f64 / number);
        let number = number.trim_end_matches('0').trim_end_matches('.');
        let kind = if *kind == Kind::Ssd { " SSD" } else { "" };
        format!("{count} x {number} {unit}{kind}")
    };
    kinds.iter().map(each).collect::<Vec<_>>().join(", ")
}

fn hours(hours: f64) -> String {
    match hours {
        _ if hours < 1.0 => format!("{:.0} min", (hours * 60.0).ceil()),
        _ if hours < 100.0 => format!("{hours:.0} h"),
        _ => format!("{:.0} days", hours / 24.0),
    }
}

/// All of it.
pub fn text(plan: &Plan, depth: Depth) -> String {
    let mut text = disks(plan, depth);
    let Some(best) = plan.recommended.map(|at| &plan.candidates[at]) else {
        return text + "no layout can be made of these disks: each has 64M or more\n";
    };
    text += &format!("\n{}\n", wrapped(&advice(plan, best)));
    text += &table(plan, depth);
    text += &legend(plan);
    if depth.verbose {
        for &at in &told(plan, depth) {
            text += &format!("\n{}", details(plan, &plan.candidates[at]));
        }
    } else {
        text += &format!("\n{}", details(plan, best));
    }
    for warning in &plan.warnings {
        text += &wrapped(&format!("warning: {}", printable(&warning.text)));
    }
    text += &assumptions(plan);
    text
}

fn told(plan: &Plan, depth: Depth) -> Vec<usize> {
    if depth.all { (0..plan.candidates.len()).collect() } else { plan.shown.clone() }
}

/// The disks: one line, or a table where something is known of them.
fn disks(plan: &Plan, depth: Depth) -> String {
    let raw: u64 = plan.disks.iter().map(|disk| disk.size).sum();
    let mut text = format!(
        "{}: {} in all, in binary units as all that follows\n",
        sizes(&plan.disks),
        bytes(raw, depth.exact)
    );
    let is_known = |disk: &Disk| disk.model.is_some() || disk.taken.is_some() || disk.measured.is_some();
    if !plan.disks.iter().any(is_known) {
        return text;
    }
    let mut table = Table::new(vec![
        Column::left("DISK"),
        Column::right("SIZE", 5),
        Column::left("KIND"),
        Column::left("MODEL"),
        Column::left("SERIAL"),
        Column::right("SECTORS", 7),
        Column::right("YEARS", 4),
        Column::right("WRITTEN", 5),
        Column::right("WEAR", 4),
        Column::right("MB/S", 7),
        Column::right("READS/S", 4),
        Column::right("IN TURN", 4),
    ]);
    let or = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for (disk, bulk) in plan.disks.iter().zip(&plan.bulk) {
        let kind = match disk.kind {
            Kind::Hdd => "hdd",
            Kind::Ssd if disk.nvme => "nvme",
            Kind::Ssd => "ssd",
        };
        let measured = disk.measured;
        table.row(vec![
            printable(&disk.short),
            bytes(disk.size, depth.exact),
            kind.to_owned() + if disk.usb { ", usb" } else { "" },
            or(disk.model.as_deref().map(printable)),
            or(disk.serial.as_deref().map(printable)),
            if disk.sectors.1 > 0 { format!("{}/{}", disk.sectors.0, disk.sectors.1) } else { "-".into() },
            or(disk.hours.map(|hours| format!("{:.1}", hours as f64 / 8766.0))),
            or(disk.written.map(|written| bytes(written, depth.exact))),
            or(disk.wear.map(|wear| format!("{wear}%"))),
            or(measured.map(|of| format!("{}-{}", rate(of.stream_last), rate(of.stream_first)))),
            or(measured.map(|of| format!("{:.0}", of.reads_4k))),
            format!("{} {}", rate(bulk.rate), verdict(bulk)),
        ]);
    }
    text.push('\n');
    text += &table.render(false);
    text
}

fn verdict(bulk: &Bulk) -> String {
    if bulk.passes { "pass".into() } else { format!("of {}", rate(bulk.needed)) }
}

/// The recommendation, in words.
fn advice(plan: &Plan, best: &Candidate) -> String {
    let (pool, block) = (plan.assumptions.accept_pool, plan.assumptions.accept_block);
    let losses = match best.survival.any {
        0 => "no disk may be lost".to_owned(),
        1 => "any one disk may be lost".to_owned(),
        count => format!("any {count} disks may be lost"),
    };
    let within = format!(
        "the pool less than once in {} years and any block once in {}, and is rebuilt as fast as a disk is written",
        years(1.0 / pool),
        years(1.0 / block)
    );
    let why = if best.safe {
        format!("the most space of what loses {within}")
    } else {
        format!("the safest of these; nothing here loses {within}")
    };
    let left = match best.shape.left_out.len() {
        0 => String::new(),
        count => format!(", with {count} of the disks left out"),
    };
    format!("take {}{left}: files get {}, {losses}; {why}", best.name, format_size(best.usable))
}

fn table(plan: &Plan, depth: Depth) -> String {
    let has_prices = plan.candidates.iter().any(|candidate| candidate.price.is_some());
    let mut columns = vec![
        Column::left("LAYOUT"),
        Column::right("USABLE", 5),
        Column::right("ANY", 1),
        Column::right("PAIRS", 4),
        Column::right("TRIPLES", 4),
        Column::right("POOL LOST/Y", 8),
        Column::right("BLOCK LOST/Y", 8),
        Column::right("REBUILD", 4),
        Column::right("READING", 5),
        Column::right("MB/S", 4),
        Column::right("READS/S", 4),
        Column::right("IN TURN", 4),
    ];
    if has_prices {
        columns.push(Column::right("PER TIB", 4));
    }
    let mut table = Table::new(columns);
    for at in told(plan, depth) {
        let candidate = &plan.candidates[at];
        let mark = if plan.recommended == Some(at) { "* " } else { "  " };
        let left = match candidate.shape.left_out.len() {
            0 => String::new(),
            count => format!(", without {count}"),
        };
        let rebuild = candidate.rebuild;
        let mut row = vec![
            format!("{mark}{}{left}", candidate.name),
            bytes(candidate.usable, depth.exact),
            candidate.survival.any.to_string(),
            share(candidate.survival.pairs),
            share(candidate.survival.triples),
            chance(candidate.risk.pool_lost, depth.exact),
            chance(candidate.risk.block_lost, depth.exact),
            rebuild.map_or("-".to_owned(), |rebuild| hours(rebuild.hours)),
            rebuild.map_or("-".to_owned(), |rebuild| bytes(rebuild.read, depth.exact)),
            rate(candidate.speed.read),
            format!("{:.0}", candidate.speed.reads),
            format!("{} {}", rate(candidate.bulk.rate), verdict(&candidate.bulk)),
        ];
        if has_prices {
            row.push(candidate.price.map_or("-".to_owned(), |price| format!("{:.2}", price.per_tib)));
        }
        table.row(row);
    }
    table.render(false)
}

fn legend(plan: &Plan) -> String {
    let more = plan.candidates.len() - plan.shown.len();
    let all = if more > 0 { format!(" --all shows {more} more.") } else { String::new() };
    wrapped(&format!(
        "ANY: losses survived whichever they are; PAIRS, TRIPLES: how many of all. LOST/Y: chance within a year. REBUILD: \
         of one disk, READING so much. MB/S: a stream, read or written. IN TURN: MB/s of streams read and written in turn, \
         of {} for each usable TB.{all}",
        rate(plan.assumptions.bulk)
    ))
}

/// Details of one candidate, beside its row.
fn details(plan: &Plan, candidate: &Candidate) -> String {
    let mut text = format!("{}:\n", candidate.name);
    let left: Vec<Disk> = candidate.shape.left_out.iter().map(|&at| plan.disks[at].clone()).collect();
    if !left.is_empty() {
        text += &format!("  left out: {}\n", sizes(&left));
    }
    if let Some(rebuild) = candidate.rebuild {
        let from = match rebuild.disks {
            1 => "its twin alone".to_owned(),
            count => format!("{count} others"),
        };
        text += &format!(
            "  a lost disk: {} are written, read from {from}, in {}\n",
            format_size(rebuild.written),
            hours(rebuild.hours)
        );
    }
    let (risk, survival) = (candidate.risk, candidate.survival);
    let of = |share: Share| format!("{} of {}", share.survived, share.of);
    let survived = match survival.any {
        0 => "none of its disks may be lost".to_owned(),
        _ if survival.pairs.survived == 0 => "any one of its disks may be lost".to_owned(),
        _ => format!("{} pairs and {} triples are survived", of(survival.pairs), of(survival.triples)),
    };
    text += &format!(
        "  {survived}; mean time to a lost pool {} years, to a lost block {}\n",
        years(risk.years_to_pool_lost),
        years(risk.years_to_block_lost)
    );
    let bulk = candidate.bulk;
    text += &format!(
        "  as a bulk store: {} MB/s in turn of {} asked: {}\n",
        rate(bulk.rate),
        rate(bulk.needed),
        if bulk.passes { "passes" } else { "too slow for so much space" }
    );
    if let Some(price) = candidate.price {
        text += &format!("  price: {:.2}, {:.2} for each usable TiB\n", price.total, price.per_tib);
    }
    let growth = &candidate.growth;
    text += &format!(
        "  grows next: {} more {}, {} for files: larder pool {}\n",
        growth.disks,
        if growth.disks == 1 { "disk" } else { "disks" },
        format_size(growth.gain),
        growth.words.join(" ")
    );
    let used = candidate.shape.groups.iter().flat_map(|group| &group.disks).chain(&candidate.shape.spares);
    let taken: Vec<&str> =
        used.filter(|&&at| plan.disks[at].taken.is_some()).map(|&at| plan.disks[at].short.as_str()).collect();
    if taken.is_empty() {
        text += &format!("  {}\n", create(plan, candidate));
    } else {
        text += &format!(
            "  not to be created before nobody wants what is on {}: see the warnings\n",
            printable(&taken.join(", "))
        );
    }
    text
}

/// The line to paste.
pub fn create(plan: &Plan, candidate: &Candidate) -> String {
    let ashift = if plan.ashift > 12 { format!(" -o ashift={}", plan.ashift) } else { String::new() };
    let words = candidate.create.iter().map(String::as_str);
    let words = shlex::try_join(words).unwrap_or_else(|_| candidate.create.join(" "));
    format!("larder pool create{ashift} tank {words}")
}

fn assumptions(plan: &Plan) -> String {
    let of = &plan.assumptions;
    let correlated = match of.correlated {
        1.0 => "independently of one another".to_owned(),
        factor => format!("each next one {factor} times as soon"),
    };
    let rebuild = match of.rebuild_rate {
        0.0 => "half of a disk's stream".to_owned(),
        given => format!("{} MB/s", rate(given)),
    };
    let measured = plan.disks.iter().any(|disk| disk.measured.is_some());
    let interleaved = match of.interleaved {
        0.0 => "a column of 1 MiB and a move of the arm in turn".to_owned(),
        given => format!("{} MB/s of a disk in turn, as measured", rate(given)),
    };
    let speed = if measured { "where not measured, " } else { "" };
    let (turns, solid) = (Kind::Hdd, Kind::Ssd);
    let has = |kind: Kind| plan.disks.iter().any(|disk| disk.kind == kind);
    let mut parts = Vec::new();
    if has(turns) {
        parts.push(format!("{:.2} % of disks fail in a year (Backblaze, 2024)", of.afr_hdd * 100.0));
    }
    if has(solid) {
        parts.push(format!("{:.2} % of SSDs fail in a year (Backblaze, 2022)", of.afr_ssd * 100.0));
    }
    parts.extend([
        correlated,
        format!("a bad sector in {:.0e} bits read", of.ure),
        format!("a new disk is there after {} h, a spare at once", of.replace_hours),
        format!("{:.0} % of the space in use", of.full * 100.0),
        format!("rebuilds at {rebuild}"),
        format!("{:.0} scrubs a year", of.scrubs),
        format!("a machine that moves {} MB/s", rate(of.host)),
    ]);
    if has(turns) {
        parts.push(format!(
            "{speed}{} MB/s and {:.0} reads a second of a disk",
            rate(of.hdd_stream),
            of.hdd_reads
        ));
    }
    if has(solid) {
        let (sata, nvme) = (rate(of.ssd_stream), rate(of.nvme_stream));
        parts.push(format!(
            "{speed}{sata} MB/s ({nvme} by NVMe) and {:.0} reads a second of an SSD",
            of.ssd_reads
        ));
    }
    parts.push(interleaved);
    wrapped(&format!("assumed, each set by an option: {}", parts.join("; ")))
}

/// A paragraph, its further lines indented.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is one");
        if last.chars().count() + word.chars().count() > WIDTH {
            lines.push(format!("  {word}"));
        } else {
            *last += if last.is_empty() { "" } else { " " };
            *last += word;
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_plan::{Assumptions, plan};

    fn planned(sizes: &[u64]) -> Plan {
        let disks = sizes
            .iter()
            .enumerate()
            .map(|(at, &tera)| Disk::of_size(format!("DISK{}", at + 1), tera * 1_000_000_000_000));
        plan(disks.collect(), 0, 0, Assumptions::default())
    }

    #[test]
    fn chances_and_shares_say_no_more_than_is_so() {
        assert_eq!(
            [0.5, 0.0951, 0.01, 1.0 / 12_345.0, 1e-7, 0.0].map(odds),
            ["50 %", "10 %", "1 in 100", "1 in 12k", "1 in 10M", "< 1 in 1E"]
        );
        assert_eq!(
            [1.0, 9.4, 999.6, 1049.0, 1051.0, 99_960.0].map(short),
            ["1", "9", "1k", "1k", "1.1k", "100k"]
        );
        let of = |survived, of| share(Share { survived, of });
        assert_eq!(
            [of(0, 5), of(5, 5), of(999, 1000), of(1, 1000), of(0, 0)],
            ["none", "all", "99 %", "1 %", "-"]
        );
    }

    #[test]
    fn a_plan_says_what_to_take_why_and_how() {
        let plan = planned(&[16, 16, 16, 16, 16, 16, 4, 4]);
        let text = text(&plan, Depth::default());
        assert!(
            text.starts_with("6 x 16 TB, 2 x 4 TB: 94.6T in all, in binary units as all that follows\n"),
            "{text}"
        );
        for part in [
            "take raidz2 of ",
            "LAYOUT ",
            "* raidz2 of ",
            "grows next: 1 more disk",
            "larder pool create tank raidz2 DISK1",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(text.lines().all(|line| line.len() < 150), "{text}");
        let exact = super::text(&plan, Depth { exact: true, all: true, verbose: true });
        assert!(exact.contains("e-") && exact.len() > 3 * text.len());
    }

    #[test]
    fn no_line_is_offered_over_what_somebody_may_want() {
        let mut disks: Vec<Disk> = planned(&[4, 4]).disks;
        disks[1].taken = Some("is mounted at /".into());
        disks[0].sectors = (512, 16_384);
        let plan = plan(disks, 0, 0, Assumptions::default());
        let text = text(&plan, Depth::default());
        assert!(!text.contains("larder pool create"), "{text}");
        assert!(text.contains("not to be created before nobody wants what is on DISK2"), "{text}");
        assert!(text.contains("warning: DISK2 is mounted at /"), "{text}");
        assert!(create(&plan, &plan.candidates[0]).starts_with("larder pool create -o ashift=14 tank "));
    }
}
