//! Advice, as people read it.

use super::table::{Column, Table};
use crate::api::name::printable;
use larder_advise::{DedupReport, Estimate, FolderReport, KNOWN, Report, percent};
use larder_pool::property::{format_size, parse_size};
use serde::Serialize;
use std::path::Path;

/// That which a pool knows of a dataset.
#[derive(Debug, Clone, Serialize)]
pub struct Known {
    /// Its name.
    pub dataset: String,
    /// `compression`.
    pub compression: String,
    /// `recordsize`, bytes.
    pub recordsize: u64,
    /// `chunking=content`.
    pub by_content: bool,
    /// `dedup`.
    pub dedup: String,
    /// Part that compression saves, of all that is stored.
    pub compression_saves: f64,
    /// Part that sharing saves; nothing before a trace.
    pub sharing_saves: Option<f64>,
}

/// A prediction beside what was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Properties as they are now.
    pub what: String,
    /// Part that they were to save; nothing when that was not predicted.
    pub predicted: Option<Estimate>,
    /// Part that they save.
    pub measured: Option<f64>,
}

/// All of them.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// That which the pool knows.
    #[serde(flatten)]
    pub known: Known,
    /// Of compression.
    pub compression: Line,
    /// Of deduplication.
    #[serde(rename = "deduplication")]
    pub dedup: Line,
}

/// Rows of folders at most.
const MOST_ROWS: usize = 20;
/// Part of whole copies from which on it is told how they are shared.
const WORTH: f64 = 0.05;
/// Folders whose lines to paste are told.
const MOST_LINES: usize = 6;

fn bytes(number: u64, exact: bool) -> String {
    if exact { number.to_string() } else { format_size(number) }
}

/// The most likely value, or the range where that says little.
fn part(estimate: Estimate) -> String {
    match () {
        () if estimate.is_known() => percent(estimate.value),
        () if estimate.high - estimate.low > 0.95 => "?".to_owned(),
        () => format!("{:.0}-{:.0} %?", 100.0 * estimate.low, 100.0 * estimate.high),
    }
}

/// The name of a folder in the report.
pub fn name(report: &Report, folder: &FolderReport) -> String {
    let top = &report.folders[0].path;
    if folder.path.as_os_str().is_empty() {
        return "all".to_owned();
    }
    let short = folder.path.strip_prefix(top).unwrap_or(&folder.path);
    let whole = short.as_os_str().is_empty() || top.as_os_str().is_empty();
    let shown: &Path = if whole { &folder.path } else { short };
    printable(&shown.to_string_lossy())
}

/// Whole verdict first, then codecs, record sizes, folders, and lines to paste.
pub fn text(report: &Report, known: Option<&Known>, exact: bool) -> String {
    let Some(whole) = report.folders.first() else { return "nothing to look at\n".to_owned() };
    let mut text = format!("{}\n\n", whole.verdict.text);
    text += &about(report, whole, exact);
    if let Some(known) = known {
        text += &known_line(known);
    }
    if whole.data == 0 {
        return text;
    }
    text.push('\n');
    let mut codecs = Table::new(vec![
        Column::left("COMPRESSION"),
        Column::right("SAVES", 5),
        Column::right("RANGE", 7),
        Column::right("AT 16K", 5),
        Column::right("AT 4K", 5),
        Column::right("CPU", 8),
    ]);
    for codec in &whole.codecs {
        let cost = format!("{:.1}s/GiB", codec.seconds_per_gib);
        codecs.row(vec![
            codec.codec.clone(),
            part(codec.gain),
            range(codec.gain),
            part(codec.gain_16k),
            part(codec.gain_4k),
            cost,
        ]);
    }
    text += &codecs.render(false);
    text.push('\n');
    let mut sizes = Table::new(vec![
        Column::left("DEDUP"),
        Column::right("SAVES", 5),
        Column::right("RANGE", 7),
        Column::right("BEYOND COPIES", 5),
        Column::right("INDEX RAM", 5),
        Column::right("INDEX DISK", 5),
        Column::right("ZFS RAM", 5),
    ]);
    for dedup in &whole.dedup {
        sizes.row(row(dedup, exact));
    }
    text += &sizes.render(false);
    text += &format!(
        "whole copies of files, which clones or hard links would save: {}",
        part(whole.whole_copies)
    );
    text += if whole.whole_copies.value >= WORTH {
        "; larder dedupe shares them on XFS and btrfs\n"
    } else {
        "\n"
    };
    if report.folders.len() > 1 {
        text.push('\n');
        text += &folders(report, exact);
    }
    text.push('\n');
    text += &match known {
        Some(known) => lines_of(known, whole),
        None => lines(report),
    };
    text
}

/// That which the pool knows, in a line.
fn known_line(known: &Known) -> String {
    let Known { dataset, compression, dedup, .. } = known;
    let record = format_size(known.recordsize);
    let cut = if known.by_content { " chunking=content" } else { "" };
    let sharing = match known.sharing_saves {
        Some(saves) => format!("sharing {}", percent(saves)),
        None => "what sharing saves is known after larder pool trace".to_owned(),
    };
    let saves = percent(known.compression_saves);
    format!(
        "in the pool: {dataset} has compression={compression} recordsize={record}{cut} dedup={dedup}; compression saves {saves}, {sharing}\n"
    )
}

/// Lines for a dataset that is there: what to set, and how what is stored follows.
fn lines_of(known: &Known, whole: &FolderReport) -> String {
    let dataset = &known.dataset;
    let same = |setting: &String| match setting.split_once('=') {
        Some(("compression", codec)) => codec == known.compression,
        Some(("dedup", _)) => known.dedup != "off",
        Some(("recordsize", size)) => parse_size(size) == Some(known.recordsize),
        _ => known.by_content,
    };
    let new: Vec<&String> = whole.verdict.settings.iter().filter(|setting| !same(setting)).collect();
    if new.is_empty() {
        return format!("nothing to change: {dataset} is as advised\n");
    }
    let all = new.iter().map(|setting| setting.as_str()).collect::<Vec<_>>().join(" ");
    let mut text = format!(
        "for what is written from now on, and for what is stored already:\n  larder fs set {all} {dataset}\n"
    );
    if new.iter().any(|setting| setting.starts_with("compression=")) {
        text += &format!("  larder fs rewrite -w {dataset}\n");
    }
    if new.iter().any(|setting| setting.starts_with("dedup=")) {
        text += &format!("  larder fs dedup -w {dataset}\n");
    }
    text
}

/// Predictions beside what became of them.
pub fn compared(compared: &Compared) -> String {
    let mut table = Table::new(vec![
        Column::left("PROPERTIES"),
        Column::right("PREDICTED", 5),
        Column::right("RANGE", 7),
        Column::right("MEASURED", 5),
        Column::left("VERDICT"),
    ]);
    for line in [&compared.compression, &compared.dedup] {
        let verdict = match (line.predicted, line.measured) {
            (Some(said), Some(is)) if is >= said.low - KNOWN && is <= said.high + KNOWN => "as predicted",
            (Some(said), Some(is)) if is < said.low => "less than predicted",
            (Some(_), Some(_)) => "more than predicted",
            (None, _) => "nothing was predicted",
            (_, None) => "not measured yet",
        };
        table.row(vec![
            line.what.clone(),
            line.predicted.map_or("-".to_owned(), part),
            line.predicted.map_or("-".to_owned(), range),
            line.measured.map_or("-".to_owned(), percent),
            verdict.to_owned(),
        ]);
    }
    format!("{}\n{}", compared.known.dataset, table.render(false))
}

fn about(report: &Report, whole: &FolderReport, exact: bool) -> String {
    let how = match (report.exact, report.complete) {
        (true, true) => "all of it read".to_owned(),
        (_, false) if !report.counted => "INTERRUPTED while they were counted; nothing was read".to_owned(),
        (_, false) => format!(
            "INTERRUPTED: {:.0} % of it was looked at, {} read; ranges allow for the rest",
            100.0 * whole.seen,
            bytes(report.read, exact)
        ),
        (false, true) => format!(
            "{} of it read ({:.1} %); --exact reads all",
            bytes(report.read, exact),
            100.0 * report.read as f64 / report.data.max(1) as f64
        ),
    };
    let mut line = format!(
        "{}: {} files, {} of data; {how}\n",
        name(report, whole),
        whole.files,
        bytes(whole.data, exact)
    );
    let left: Vec<String> = [
        (report.unreadable, "could not be read"),
        (report.hard_links, "further names of files (hard links)"),
        (report.symlinks, "symbolic links"),
        (report.special, "special files"),
        (report.mounts, "other file systems"),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if !left.is_empty() {
        line += &format!("left out: {}\n", left.join(", "));
    }
    if report.unsure_links > 0 {
        let count = report.unsure_links;
        line += &format!(
            "{count} names of files with several (hard links) may count twice: --memory more remembers all\n"
        );
    }
    if report.merged {
        line += "there are more folders than memory holds: the deepest are told with those above them\n";
    }
    line
}

fn range(estimate: Estimate) -> String {
    format!("{:.0}-{:.0} %", 100.0 * estimate.low.max(0.0), 100.0 * estimate.high.max(0.0))
}

fn row(dedup: &DedupReport, exact: bool) -> Vec<String> {
    vec![
        dedup.name(),
        part(dedup.gain),
        range(dedup.gain),
        part(dedup.beyond),
        bytes(dedup.index_memory, exact),
        bytes(dedup.index_disk, exact),
        bytes(dedup.zfs_memory, exact),
    ]
}

/// The gain beyond copies of the record size that gains most.
fn best(folder: &FolderReport) -> Option<Estimate> {
    let known = folder.dedup.iter().filter_map(DedupReport::known);
    known.max_by(|a, b| a.value.total_cmp(&b.value))
}

/// The folders that are told: the largest, in the order of the walk.
fn told(report: &Report) -> Vec<&FolderReport> {
    let mut told: Vec<&FolderReport> = report.folders.iter().skip(1).collect();
    told.sort_by_key(|folder| std::cmp::Reverse(folder.data));
    told.truncate(MOST_ROWS);
    let order = |folder: &&FolderReport| report.folders.iter().position(|one| one.path == folder.path);
    told.sort_by_key(order);
    told
}

fn folders(report: &Report, exact: bool) -> String {
    let mut table = Table::new(vec![
        Column::left("FOLDER"),
        Column::right("SIZE", 5),
        Column::right("FILES", 5),
        Column::right("LZ4", 4),
        Column::right("ZSTD", 4),
        Column::right("COPIES", 4),
        Column::right("DEDUP", 4),
        Column::left("VERDICT"),
    ]);
    let told = told(report);
    for folder in &told {
        table.row(vec![
            name(report, folder),
            bytes(folder.data, exact),
            folder.files.to_string(),
            part(folder.codecs[0].gain),
            part(folder.codecs[1].gain),
            part(folder.whole_copies),
            best(folder).map_or("?".to_owned(), part),
            folder.verdict.text.clone(),
        ]);
    }
    let mut text = table.render(false);
    let more = report.folders.len() - 1 - told.len();
    if more > 0 {
        text += &format!("{more} smaller folders: -j has them\n");
    }
    text
}

/// Lines to paste, for folders whose verdict is not that of the one above.
fn lines(report: &Report) -> String {
    let mut text = String::new();
    let mut seen: Vec<&[String]> = Vec::new();
    let options = |folder: &FolderReport| folder.verdict.commands.first().cloned().unwrap_or_default();
    for folder in std::iter::once(&report.folders[0]).chain(told(report)) {
        let cut = |line: &str| line.rsplit_once(' ').map(|(head, _)| head.to_owned());
        let known = seen.iter().any(|lines| cut(&lines[0]) == cut(&options(folder)));
        if !known && seen.len() < MOST_LINES && !folder.verdict.commands.is_empty() {
            seen.push(&folder.verdict.commands);
            let there = if folder.verdict.commands.len() > 1 { ", or one that is there" } else { "" };
            text += &format!("for {}, a new dataset{there}:\n", name(report, folder));
            folder.verdict.commands.iter().for_each(|line| text += &format!("  {line}\n"));
        }
    }
    text
}
