//! The report of a run of `larder dedupe`, for people and for scripts.

use larder_dedupe::{Case, Fixed, Reason, Report};
use larder_pool::property::format_size;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::PathBuf;

fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Changed => "changed meanwhile, and left alone",
        Reason::Busy => "in use, as a running program or swap file",
        Reason::Denied => "not allowed: files of others, which root may",
        Reason::ReadOnly => "in a read-only snapshot, or on a read-only mount",
        Reason::NoSpace => "no space for the metadata",
        Reason::Refused => "refused by the file system for these files",
        Reason::Failed => "not readable or writable: the device failed",
    }
}

fn fixed(fixed: Fixed) -> &'static str {
    match fixed {
        Fixed::Immutable => "immutable (chattr +i); others share theirs",
        Fixed::AppendOnly => "append-only (chattr +a); others share theirs",
        Fixed::NoCow => "without copy-on-write (chattr +C)",
        Fixed::Swap => "swap files",
        Fixed::Inline => "so small that they have no blocks",
    }
}

fn name(path: &[u8]) -> String {
    String::from_utf8_lossy(path)
        .chars()
        .flat_map(|c| if c.is_control() { vec!['?'] } else { vec![c] })
        .collect()
}

/// The report for people; with the command that would share, where nothing was.
pub fn text(report: &Report, applying: Option<&str>, exact: bool) -> String {
    let applied = applying.is_none();
    let size = |bytes: u64| if exact { bytes.to_string() } else { format_size(bytes) };
    let mut text = String::new();
    let mut line = |label: &str, what: String| {
        let _ = writeln!(text, "{label:>12}: {what}");
    };
    let gained = report.shared + report.zeros;
    if applied {
        let freed = i128::from(report.free_after) - i128::from(report.free_before);
        let much = size(u64::try_from(freed.unsigned_abs()).unwrap_or(u64::MAX));
        let outcome =
            if freed < 0 { format!("{much} less, since others write, too") } else { format!("{much} freed") };
        let (before, after) = (size(report.free_before), size(report.free_after));
        line("free space", format!("{before} before, {after} after: {outcome}"));
    } else {
        let files = report.shared_files;
        line("could share", format!("{} in {files} files; nothing was changed", size(gained)));
    }
    let read = format!("{} new or changed, {} read", report.read_files, size(report.read));
    line("files", format!("{} of {}; {read}", report.files, size(report.bytes)));
    let would = if applied { "shared now" } else { "to be shared" };
    let zeros = if report.zeros > 0 {
        format!(" ({} of zeros, as holes)", size(report.zeros))
    } else {
        String::new()
    };
    let already = size(report.already);
    line(
        "duplicates",
        format!("{}: {} {would}{zeros}, {already} shared already", size(report.found), size(gained)),
    );
    for (why, case) in &report.unshared {
        line("not shared", format!("{}: {} ({})", size(case.amount), reason(*why), name(&case.first)));
    }
    if report.short > 0 {
        line("not shared", format!("{}: in pieces shorter than --least", size(report.short)));
    }
    let mut left = |case: &Case, why: &str| {
        if case.amount > 0 {
            line("left alone", format!("{} files: {why} ({})", case.amount, name(&case.first)));
        }
    };
    report.fixed.iter().for_each(|(why, case)| left(case, fixed(*why)));
    left(&report.read_only, "in a read-only snapshot, or on a read-only mount; others share theirs");
    if report.holes > 0 {
        line("left alone", format!("{}: holes, and space that is reserved", size(report.holes)));
    }
    let restless = "files that changed while they were read; the next run reads them";
    let counts = [
        (report.snapshots, "read-only snapshots, which are not gone into unless named"),
        (
            report.mounts,
            "mounts below, which are not gone into; --cross-mounts does, where it is the same file system",
        ),
        (report.restless, restless),
    ];
    for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
        line("passed over", format!("{count} {what}"));
    }
    if let Some((path, error)) = &report.first_unreadable {
        let error = std::io::Error::from(*error);
        line("not read", format!("{} files or folders: {} ({error})", report.unreadable, name(path)));
    }
    let forgotten =
        if report.forgotten > 0 { format!(", {} files forgotten", report.forgotten) } else { String::new() };
    let hash_file = size(report.hash_file_bytes);
    line("hash file", format!("{}, {hash_file}{forgotten}", report.hash_file.display()));
    if report.is_stopped {
        line("stopped", "what was done holds; the same command goes on".into());
    } else if let Some(command) = applying.filter(|_| gained > 0) {
        line("what to do", command.to_owned());
    }
    text
}

/// The report for scripts.
pub fn json(report: &Report, paths: &[PathBuf], applied: bool) -> Value {
    let case =
        |case: &Case, unit: &str| json!({ unit: case.amount, "first": String::from_utf8_lossy(&case.first) });
    let unshared: Map<_, _> =
        report.unshared.iter().map(|(why, its)| (why.word().to_owned(), case(its, "bytes"))).collect();
    let mut left: Map<_, _> =
        report.fixed.iter().map(|(why, its)| (why.word().to_owned(), case(its, "files"))).collect();
    if report.read_only.amount > 0 {
        left.insert("read_only".into(), case(&report.read_only, "files"));
    }
    let unreadable = report.first_unreadable.as_ref().map(|(path, _)| String::from_utf8_lossy(path));
    json!({
        "paths": paths.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
        "applied": applied,
        "stopped": report.is_stopped,
        "free_before": report.free_before,
        "free_after": report.free_after,
        "freed": report.free_after as i64 - report.free_before as i64,
        "files": report.files,
        "bytes": report.bytes,
        "links": report.links,
        "files_read": report.read_files,
        "bytes_read": report.read,
        "files_forgotten": report.forgotten,
        "files_restless": report.restless,
        "blocks": report.blocks,
        "duplicates": report.found,
        "shared_already": report.already,
        "shared": report.shared,
        "zeros": report.zeros,
        "files_shared": report.shared_files,
        "not_shared": unshared,
        "too_short": report.short,
        "left_alone": left,
        "holes": report.holes,
        "mounts_passed": report.mounts,
        "snapshots_passed": report.snapshots,
        "unreadable": report.unreadable,
        "first_unreadable": unreadable,
        "hash_file": report.hash_file.to_string_lossy(),
        "hash_file_bytes": report.hash_file_bytes,
    })
}
