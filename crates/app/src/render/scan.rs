//! Scrubs and resilvers in zpool's words.

use super::date_to_second;
use crate::api::pool::{Scan, ScanKind};
use larder_pool::property::format_size;

/// Part of a scan that is done, percent.
fn percent(scan: &Scan) -> f64 {
    scan.examined.min(scan.total) as f64 * 100.0 / scan.total.max(1) as f64
}

fn kind(scan: &Scan) -> &'static str {
    match scan.kind {
        ScanKind::Scrub => "scrub",
        ScanKind::Resilver => "resilver",
    }
}

/// `12M repaired`.
fn healed(scan: &Scan) -> String {
    let done = match scan.kind {
        ScanKind::Scrub => "repaired",
        ScanKind::Resilver => "resilvered",
    };
    format!("{} {done}", format_size(scan.repaired))
}

/// The text behind `scan:`, over several lines while it runs.
pub fn text(scan: &Scan) -> String {
    if let Some(finished) = scan.finished {
        return over(scan, finished);
    }
    let kind = kind(scan);
    let head = match scan.paused {
        Some(paused) => {
            let (paused, started) = (date_to_second(paused), date_to_second(scan.started));
            format!("{kind} paused since {paused}\n\t{kind} started on {started}")
        }
        None => format!("{kind} in progress since {}", date_to_second(scan.started)),
    };
    // Data is looked at and read in the same step: scanned and issued are one for us, and two columns for scripts.
    let part = format!("{} / {}", format_size(scan.examined), format_size(scan.total));
    let rate = scan.rate.map_or_else(String::new, |rate| format!(" at {}/s", format_size(rate)));
    let mut text = format!(
        "{head}\n\t{part} scanned{rate}, {part} issued{rate}\n\t{}, {:.2}% done",
        healed(scan),
        percent(scan)
    );
    if scan.errors > 0 {
        text += &format!(", {} errors", scan.errors);
    }
    match (&scan.waits_for, scan.left) {
        _ if scan.paused.is_some() => {}
        (Some(reason), _) => text += &format!(", waiting for {reason}"),
        (None, Some(left)) => text += &format!(", {} to go", duration(left as i64)),
        (None, None) => text += ", no estimated completion time",
    }
    text
}

fn over(scan: &Scan, finished: i64) -> String {
    let when = date_to_second(finished);
    if scan.canceled {
        return format!("{} canceled on {when}", kind(scan));
    }
    let repaired = format_size(scan.repaired);
    let head = match scan.kind {
        ScanKind::Scrub => format!("scrub repaired {repaired}"),
        ScanKind::Resilver => format!("resilvered {repaired}"),
    };
    let took = finished.saturating_sub(scan.started).max(0);
    format!("{head} in {} with {} errors on {when}", duration(took), scan.errors)
}

/// One line for a terminal: `45.67% done, 12.3G of 27.0G, 0B repaired, 1.2G/s, 00:12:34 to go`.
pub fn progress_line(scan: &Scan) -> String {
    let (examined, total) = (format_size(scan.examined), format_size(scan.total));
    let mut line = format!("{:.2}% done, {examined} of {total}, {}", percent(scan), healed(scan));
    if let Some(rate) = scan.rate {
        line += &format!(", {}/s", format_size(rate));
    }
    if let Some(left) = scan.left {
        line += &format!(", {} to go", duration(left as i64));
    }
    if let Some(reason) = &scan.waits_for {
        line += &format!(", waiting for {reason}");
    }
    line
}

/// `01:02:03`, days in front where there are any.
pub fn duration(seconds: i64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days} days {clock}") } else { clock }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done() -> Scan {
        Scan {
            kind: ScanKind::Scrub,
            started: 0,
            finished: Some(90_061),
            paused: None,
            canceled: false,
            total: 1 << 30,
            examined: 1 << 30,
            repaired: 4096,
            errors: 0,
            rate: None,
            left: None,
            waits_for: None,
        }
    }

    #[test]
    fn scans_tell_their_end() {
        assert!(text(&done()).starts_with("scrub repaired 4K in 1 days 01:01:01 with 0 errors on "));
        let resilver = Scan { kind: ScanKind::Resilver, errors: 3, ..done() };
        assert!(text(&resilver).starts_with("resilvered 4K in 1 days 01:01:01 with 3 errors on "));
        assert!(text(&Scan { canceled: true, ..done() }).starts_with("scrub canceled on "));
    }

    #[test]
    fn a_running_scan_tells_an_end_only_when_a_rate_does() {
        let running = Scan { finished: None, examined: 1 << 29, repaired: 0, ..done() };
        let shown = text(&running);
        assert!(shown.starts_with("scrub in progress since "), "{shown}");
        assert!(
            shown.ends_with(
                "\n\t512M / 1G scanned, 512M / 1G issued\n\t0B repaired, 50.00% done, no estimated completion time"
            ),
            "{shown}"
        );
        let known = Scan { rate: Some(64 << 20), left: Some(8), errors: 2, ..running.clone() };
        let shown = text(&known);
        assert!(
            shown.ends_with(
                "\n\t512M / 1G scanned at 64M/s, 512M / 1G issued at 64M/s\n\t0B repaired, 50.00% done, 2 errors, \
                 00:00:08 to go"
            ),
            "{shown}"
        );
        assert_eq!(progress_line(&known), "50.00% done, 512M of 1G, 0B repaired, 64M/s, 00:00:08 to go");
        let waiting = Scan { waits_for: Some("the resilver".into()), ..running };
        assert!(text(&waiting).ends_with("50.00% done, waiting for the resilver"));
    }

    #[test]
    fn a_paused_scan_tells_since_when() {
        let paused = Scan { finished: None, paused: Some(60), ..done() };
        let shown = text(&paused);
        assert!(
            shown.starts_with("scrub paused since ") && shown.contains("\n\tscrub started on "),
            "{shown}"
        );
        assert!(shown.ends_with("% done"), "{shown}");
    }
}
