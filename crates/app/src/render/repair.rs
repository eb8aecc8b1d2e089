//! Findings of a repair, for people and as JSON.

use super::date_to_second;
use super::table::{Column, Table};
use crate::salvage::{Copied, Sent};
use larder_format::{CommitId, Timestamp};
use larder_pool::property::format_size;
use larder_repair::{LogReport, Report, TreeReport};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Files that are told unless all are asked for.
const FIRST: usize = 20;

/// Paths of files in datasets, by their inodes.
type PathOf<'a> = &'a dyn Fn(&str, u64) -> Option<String>;

/// Fate of the findings.
pub enum Saved {
    /// It was told.
    Nothing,
    /// It would be copied to a folder.
    WouldCopy(PathBuf),
    /// It was, dataset by dataset.
    Copied(PathBuf, Vec<(String, Copied)>),
    /// It was sent to a pool, or would be.
    Sent(Sent),
}

impl Saved {
    /// Whether nothing was lost on the way.
    pub fn is_whole(&self) -> bool {
        let Self::Copied(_, copied) = self else { return true };
        copied.iter().all(|(_, copied)| copied.in_part.is_empty() && copied.failed.is_empty())
    }
}

/// The report as text, followed by what became of it unless that is told as an error.
pub fn text(report: &Report, saved: &Saved, is_long: bool, is_failed: bool, path: PathOf<'_>) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "{what:>10}: {value}");
    };
    line("pool", format!("{} ({})", report.pool, report.guid));
    let there = report.devices.iter().filter(|device| device.name.is_some()).count();
    let missing = report.devices.iter().filter(|device| device.name.is_none());
    let missing: Vec<_> = missing.map(|device| device.index.to_string()).collect();
    line(
        "devices",
        match (there, missing.len()) {
            (1, 0) => "its only one is there".into(),
            (_, 0) => format!("all {there} are there"),
            (1, _) => format!("1 is there, missing: number {}", missing.join(", ")),
            (_, _) => format!("{there} are there, missing: number {}", missing.join(", ")),
        },
    );
    line("state", state(report));
    line("read", read(report));
    if let Some(newer) = report.newer {
        let newer = newer.get();
        line(
            "note",
            format!("blocks of commit {newer} are there, too: it was under way, or its root is lost"),
        );
    }
    for remark in &report.remarks {
        line("note", remark.clone());
    }
    if report.unknown_tables > 0 {
        line(
            "note",
            "parts of the tables are lost: datasets or snapshots may be missing, or go by numbers".into(),
        );
    }
    match report.log {
        LogReport::Again(0) => {}
        LogReport::Again(ops) => {
            line("log", format!("{ops} operations that fsync made durable since are in it"))
        }
        LogReport::InPart(ops) => {
            line(
                "log",
                format!("{ops} operations that fsync made durable since are in it; the rest cannot be read"),
            );
        }
        LogReport::LeftOut => line("log", "left out: what fsync made durable since is not in it".into()),
    }
    text.push('\n');
    text.push_str(&table(report).render(false));
    let heads = report.trees.iter().filter(|tree| tree.snapshot.is_none());
    let partial = heads.flat_map(|tree| tree.files.told.iter().map(move |file| (tree, file)));
    for (told, (tree, file)) in partial.enumerate() {
        if told == FIRST && !is_long {
            text.push_str("  ... -v lists all of them\n");
            break;
        }
        if told == 0 {
            text.push_str("\nfiles of which something is lost:\n");
        }
        let path = path(&tree.dataset, file.inode).unwrap_or_else(|| format!("/inode {}", file.inode));
        let (lost, size) = (format_size(file.lost), format_size(file.size));
        let _ = writeln!(text, "  {}{path}: {lost} of {size}", tree.dataset);
    }
    if !is_failed {
        text.push('\n');
        let is_partial = report.trees.iter().any(|tree| tree.files.partial > 0);
        text.push_str(&end(saved, is_partial));
    }
    text
}

fn end(saved: &Saved, is_partial: bool) -> String {
    match saved {
        Saved::Nothing => {
            "Nothing was written. --to FOLDER copies what can be saved, --to POOL sends it to an \
                           imported pool.\n"
                .into()
        }
        Saved::WouldCopy(folder) => {
            format!("Nothing was written. It would be copied to {}\n", folder.display())
        }
        Saved::Copied(folder, copied) => copies(copied, folder),
        Saved::Sent(sent) => {
            let Sent { target, bytes, datasets, snapshots, dry_run } = sent;
            let count = |count: u64, what: &str| match count {
                1 => format!("1 {what}"),
                _ => format!("{count} {what}s"),
            };
            let (datasets, snapshots) =
                (count(*datasets, "dataset"), count(snapshots.len() as u64, "snapshot"));
            let bytes = format_size(*bytes);
            match dry_run {
                true => {
                    format!(
                        "Nothing was written. {datasets} and {snapshots}, {bytes}, would be in {target}\n"
                    )
                }
                false => {
                    let holes = if is_partial { "; what files lost are holes in them" } else { "" };
                    format!("{datasets} and {snapshots}, {bytes}, are in {target}{holes}\n")
                }
            }
        }
    }
}

fn at((commit, time): (CommitId, Timestamp)) -> String {
    format!("commit {}, {}", commit.get(), date_to_second(time.secs))
}

fn state(report: &Report) -> String {
    match (report.root, report.newest_root) {
        (Some(root), Some(newest)) if root.0 == newest.0 => format!("{}, the newest", at(root)),
        (Some(root), Some(newest)) => {
            format!("{}; of the newest, {}, tables are lost", at(root), at(newest))
        }
        (None, Some(newest)) => format!("put together of what was found; of {} tables are lost", at(newest)),
        (_, None) => "put together of what was found: no root is left".into(),
    }
}

fn read(report: &Report) -> String {
    let mut text = format!(
        "{} slots, {} segments, {} blocks, {}",
        report.slots,
        report.segments,
        report.blocks,
        format_size(report.bytes)
    );
    if report.rebuilt_columns > 0 {
        let _ = write!(text, "; {} columns were wrong and rebuilt by others", report.rebuilt_columns);
    }
    if report.lost_columns > 0 {
        let _ = write!(text, "; {} columns are damaged beyond that", report.lost_columns);
    }
    if report.unread > 0 {
        let _ = write!(text, "; {} could not be read", format_size(report.unread));
    }
    text
}

fn table(report: &Report) -> Table {
    let mut table = Table::new(vec![
        Column::left("NAME"),
        Column::right("WHOLE", 5),
        Column::right("IN PART", 5),
        Column::right("LOST+FOUND", 5),
        Column::right("SIZE", 5),
        Column::right("LOST", 5),
        Column::left("REMARKS"),
    ]);
    for tree in &report.trees {
        table.row(vec![
            tree.snapshot
                .as_ref()
                .map_or_else(|| tree.dataset.clone(), |name| format!("{}@{name}", tree.dataset)),
            tree.files.whole.to_string(),
            tree.files.partial.to_string(),
            tree.in_lost_and_found.to_string(),
            format_size(tree.files.bytes),
            format_size(tree.files.lost),
            remarks(tree),
        ]);
    }
    table
}

fn remarks(tree: &TreeReport) -> String {
    let mut remarks = Vec::new();
    if tree.nameless {
        remarks.push("its name is lost".to_owned());
    }
    if tree.guessed {
        remarks.push("the newest state found".to_owned());
    }
    if !tree.older.is_empty() {
        remarks.push(format!("{} ranges may be older states", tree.older.len()));
    }
    if tree.unknown > 0 {
        remarks.push(format!("{} ranges of metadata are lost", tree.unknown));
    }
    if tree.only_names > 0 {
        remarks.push(format!("of {} files only the names are left", tree.only_names));
    }
    if tree.folders > 0 {
        remarks.push(format!("{} folders were made again", tree.folders));
    }
    if let Some(why) = &tree.unread {
        remarks.push(why.clone());
    }
    if remarks.is_empty() { "-".into() } else { remarks.join(", ") }
}

fn copies(copied: &[(String, Copied)], folder: &Path) -> String {
    let objects: u64 = copied.iter().map(|(_, copied)| copied.objects).sum();
    let bytes: u64 = copied.iter().map(|(_, copied)| copied.bytes).sum();
    let mut text =
        format!("{objects} files and folders, {}, are in {}\n", format_size(bytes), folder.display());
    if copied.iter().any(|(_, copied)| copied.is_owner_lost) {
        text.push_str("they are all yours: only root gives files to others\n");
    }
    for (_, copied) in copied {
        for file in &copied.in_part {
            let lost: u64 = file.lost.iter().map(|range| range.end - range.start).sum();
            let _ = writeln!(
                text,
                "  {}: {} of {} are holes",
                file.path,
                format_size(lost),
                format_size(file.size)
            );
        }
        for (path, reason) in &copied.failed {
            let _ = writeln!(text, "  {path}: {reason}");
        }
    }
    text
}

/// The report as JSON.
pub fn json(report: &Report, saved: &Saved, path: PathOf<'_>) -> Value {
    let root = |root: Option<(CommitId, Timestamp)>| {
        root.map(|(commit, time)| json!({ "commit": commit.get(), "time": time.secs }))
    };
    let trees: Vec<Value> = report.trees.iter().map(|tree| of_tree(tree, path)).collect();
    let devices = report.devices.iter().map(
        |device| json!({ "number": device.index, "path": device.name, "without_label": device.unlabelled }),
    );
    let (copied, sent) = match saved {
        Saved::Nothing | Saved::WouldCopy(_) => (&[][..], None),
        Saved::Copied(_, copied) => (&copied[..], None),
        Saved::Sent(sent) => (&[][..], Some(sent)),
    };
    let copied: Vec<Value> =
        copied.iter().map(|(name, copied)| json!({ "name": name, "copied": copied })).collect();
    json!({
        "pool": report.pool,
        "guid": report.guid.to_string(),
        "whole": report.is_whole(),
        "devices": devices.collect::<Vec<_>>(),
        "newest_root": root(report.newest_root),
        "root": root(report.root),
        "newer_commit": report.newer.map(CommitId::get),
        "slots": report.slots,
        "segments": report.segments,
        "blocks": report.blocks,
        "bytes": report.bytes,
        "rebuilt_columns": report.rebuilt_columns,
        "lost_columns": report.lost_columns,
        "unread_bytes": report.unread,
        "unknown_table_ranges": report.unknown_tables,
        "log": match report.log {
            LogReport::Again(ops) => json!({ "operations": ops, "whole": true }),
            LogReport::InPart(ops) => json!({ "operations": ops, "whole": false }),
            LogReport::LeftOut => Value::Null,
        },
        "remarks": report.remarks,
        "trees": trees,
        "copied": copied,
        "sent": sent,
    })
}

fn of_tree(tree: &TreeReport, path: PathOf<'_>) -> Value {
    let partial = tree.files.told.iter().map(|file| {
        let path = if tree.snapshot.is_none() { path(&tree.dataset, file.inode) } else { None };
        json!({
            "inode": file.inode, "path": path, "lost": file.lost, "size": file.size, "ranges": file.ranges,
        })
    });
    json!({
        "dataset": tree.dataset,
        "snapshot": tree.snapshot,
        "name_lost": tree.nameless,
        "guessed": tree.guessed,
        "lost_nodes": tree.lost_nodes,
        "unknown_ranges": tree.unknown,
        "older_inodes": tree.older,
        "in_lost_and_found": tree.in_lost_and_found,
        "only_names": tree.only_names,
        "folders_made_again": tree.folders,
        "unread": tree.unread,
        "files": {
            "whole": tree.files.whole,
            "partial": tree.files.partial,
            "others": tree.files.others,
            "bytes": tree.files.bytes,
            "lost": tree.files.lost,
        },
        "partial": partial.collect::<Vec<_>>(),
    })
}
