//! Rules of a control file: one fault a line.
//!
//! ```text
//! KIND [read|write|flush] [KEY=VALUE ...]     # and why
//! ```
//! A line hits the requests that its kind is about, those of the one sort that it names, those that touch the bytes
//! `at=FROM..TO`. Of these it lets the first `after=N` pass, strikes a share `rate=0.01` of the others, chosen by
//! `seed=N`, and ends after `count=N` strikes. Where several lines strike a request, delays add up, and of the rest
//! the first counts; rot and old data come on top. Discards count as writes. Sizes are bytes, or have a K, M, G or T
//! behind them.

use crate::DiskShape;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::time::Duration;

/// Characters of a control file that are read.
pub(super) const MOST_TEXT: usize = 64 << 10;
/// Lines that are obeyed.
const MOST_RULES: usize = 1000;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Requests fail with an I/O error and change nothing.
    Error,
    /// Requests do not complete as long as the line is there.
    Hang,
    /// Requests take longer.
    Delay,
    /// Reads show flipped bits, one in each page that is hit, until the page is written again. A page is rotten or
    /// not, by seed: `rate` is the share of pages.
    Rot,
    /// Writes are acknowledged and forgotten.
    Lose,
    /// Writes are acknowledged and land at `to`.
    Misdirect,
    /// Flushes are acknowledged and not done.
    Lie,
    /// Reads show what was there when the line came.
    Stale,
    /// The device is not there any more.
    Gone,
    /// The device ends at `to`.
    Shrink,
    /// Requests are answered when a disk with one arm would have.
    Disk,
}

/// Sort of a request, for faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Read,
    Write,
    Flush,
}

/// Kinds by name, the sorts of requests they are about, and the keys they take beside `at`, `rate`, `seed`, `after`
/// and `count`; those of which there is no choice take none.
#[rustfmt::skip]
const KINDS: &[(&str, Kind, &[Sort], &[&str])] = {
    use Sort::{Flush, Read, Write};
    &[
        ("error", Kind::Error, &[Read, Write, Flush], &["at", "rate", "seed", "after", "count"]),
        ("hang", Kind::Hang, &[Read, Write, Flush], &["at", "rate", "seed", "after", "count"]),
        ("delay", Kind::Delay, &[Read, Write, Flush], &["ms", "jitter", "at", "rate", "seed", "after", "count"]),
        ("rot", Kind::Rot, &[Read], &["at", "rate", "seed"]),
        ("lose", Kind::Lose, &[Write], &["at", "rate", "seed", "after", "count"]),
        ("misdirect", Kind::Misdirect, &[Write], &["to", "at", "rate", "seed", "after", "count"]),
        ("lie", Kind::Lie, &[Flush], &["rate", "seed", "after", "count"]),
        ("stale", Kind::Stale, &[Read], &["at"]),
        ("gone", Kind::Gone, &[Read, Write, Flush], &[]),
        ("shrink", Kind::Shrink, &[Read, Write, Flush], &["to"]),
        ("disk", Kind::Disk, &[], &["rpm", "seek", "rate", "span", "ncq", "wcache"]),
    ]
};

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    /// The line as it was written: what a rule is known by when the file is read again.
    pub text: String,
    pub kind: Kind,
    pub sorts: Vec<Sort>,
    /// Bytes of the device.
    pub at: Option<Range<u64>>,
    /// Of 2^32.
    pub rate: u64,
    pub seed: u64,
    pub after: u64,
    pub count: u64,
    pub delay: Duration,
    pub jitter: Duration,
    /// A place on the device.
    pub to: u64,
    /// The disk that it is.
    pub disk: DiskShape,
}

/// `rate` of what always strikes.
pub(super) const ALWAYS: u64 = 1 << 32;

/// A line that says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Complaint {
    pub line: usize,
    pub why: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// The faults of a control file, and what is wrong with the other lines.
pub(super) fn parse(text: &str) -> (Vec<Rule>, Vec<Complaint>) {
    let mut rules = Vec::new();
    let mut complaints = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let room = if rules.len() < MOST_RULES { Ok(()) } else { Err("there are too many lines".to_owned()) };
        match room.and_then(|()| parse_line(line)) {
            Ok(rule) => rules.push(rule),
            Err(why) => complaints.push(Complaint { line: i + 1, why }),
        }
    }
    (rules, complaints)
}

fn parse_line(line: &str) -> Result<Rule, String> {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default();
    let Some((_, kind, sorts, keys)) = KINDS.iter().find(|(known, ..)| *known == name) else {
        let known: Vec<_> = KINDS.iter().map(|(known, ..)| *known).collect();
        return Err(format!("there is no fault {name:.20?}; there are {}", known.join(", ")));
    };
    let mut rule = Rule {
        text: line.to_owned(),
        kind: *kind,
        sorts: sorts.to_vec(),
        at: None,
        rate: ALWAYS,
        seed: 1,
        after: 0,
        count: u64::MAX,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        to: 0,
        disk: DiskShape::default(),
    };
    let mut given = Vec::new();
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            let sort = match word {
                "read" => Sort::Read,
                "write" => Sort::Write,
                "flush" => Sort::Flush,
                _ => return Err(format!("{word:.20?} is neither read, write or flush nor KEY=VALUE")),
            };
            if !sorts.contains(&sort) {
                return Err(format!("'{name}' is not about a {word}"));
            }
            if given.contains(&"sort") {
                return Err("one line has one of read, write and flush".to_owned());
            }
            given.push("sort");
            rule.sorts = vec![sort];
            continue;
        };
        let Some(key) = keys.iter().find(|known| **known == key) else {
            return Err(format!("'{name}' takes no {key:.20?}; it takes {}", keys.join(", ")));
        };
        if given.contains(key) {
            return Err(format!("'{key}' is given twice"));
        }
        given.push(key);
        let wrong = || format!("'{key}' cannot be {value:.20?}");
        let number = || value.parse::<u64>().map_err(|_| wrong());
        match *key {
            "at" => rule.at = Some(parse_range(value).ok_or_else(wrong)?),
            "to" => rule.to = parse_size(value).ok_or_else(wrong)?,
            "rpm" => rule.disk.rpm = parse_within(value, 60..=1_000_000).ok_or_else(wrong)? as u32,
            "ncq" => rule.disk.ncq = parse_within(value, 1..=1024).ok_or_else(wrong)? as usize,
            "span" => rule.disk.span = parse_within(value, 1 << 20..=1 << 50).ok_or_else(wrong)?,
            "wcache" => rule.disk.wcache = parse_within(value, 0..=1 << 40).ok_or_else(wrong)?,
            "seek" => rule.disk.seek = parse_pair(value, parse_millis).ok_or_else(wrong)?,
            "rate" if *kind == Kind::Disk => {
                let rate = |text: &str| parse_within(text, 1 << 10..=1 << 40);
                rule.disk.rate = parse_pair(value, rate).ok_or_else(wrong)?;
            }
            "rate" => rule.rate = parse_rate(value).ok_or_else(wrong)?,
            "seed" => rule.seed = number()?,
            "after" => rule.after = number()?,
            "count" => rule.count = number()?,
            "ms" => rule.delay = Duration::from_millis(number()?),
            _ => rule.jitter = Duration::from_millis(number()?),
        }
    }
    let needed = match kind {
        Kind::Delay => Some("ms"),
        Kind::Misdirect | Kind::Shrink => Some("to"),
        _ => None,
    };
    if let Some(key) = needed.filter(|key| !given.contains(key)) {
        return Err(format!("'{name}' needs {key}=..."));
    }
    Ok(rule)
}

impl FromStr for DiskShape {
    type Err = String;

    /// The words of a `disk` line after its first; what is left out is as in the default.
    fn from_str(text: &str) -> Result<Self, String> {
        parse_line(&format!("disk {text}")).map(|rule| rule.disk)
    }
}

/// `1M..2M`, `1M..` to the end, or `1M` for the byte there.
fn parse_range(text: &str) -> Option<Range<u64>> {
    let Some((from, to)) = text.split_once("..") else {
        let at = parse_size(text)?;
        return Some(at..at.checked_add(1)?);
    };
    let from = parse_size(from)?;
    let to = if to.is_empty() { u64::MAX } else { parse_size(to)? };
    (from < to).then_some(from..to)
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let power = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << power)
}

fn parse_within(text: &str, range: RangeInclusive<u64>) -> Option<u64> {
    parse_size(text).filter(|number| range.contains(number))
}

/// `A..B`.
fn parse_pair<T>(text: &str, part: impl Fn(&str) -> Option<T>) -> Option<(T, T)> {
    let (from, to) = text.split_once("..")?;
    Some((part(from)?, part(to)?))
}

/// Up to ten seconds.
fn parse_millis(text: &str) -> Option<Duration> {
    let millis: f64 = text.parse().ok()?;
    (0.0..=10_000.0).contains(&millis).then(|| Duration::from_secs_f64(millis / 1000.0))
}

/// Of 2^32.
fn parse_rate(text: &str) -> Option<u64> {
    let rate: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&rate).then_some((rate * ALWAYS as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entropy, SeededEntropy};

    #[test]
    fn lines_say_what_is_hit_when_and_how_often() {
        let (rules, complaints) = parse(
            "# a comment\n\n error read at=8K..1M rate=0.5 seed=7 # bad sectors\nhang\ndelay ms=50 jitter=20 write\n\
             error flush after=10 count=1\nmisdirect at=1M to=2G\nrot at=1T..\nshrink to=64M\n\
             disk rpm=7200 seek=0.5..16 rate=250M..110M span=8T wcache=0\n",
        );
        assert_eq!(complaints, []);
        assert_eq!(rules.len(), 8);
        let disk = DiskShape {
            rpm: 7200,
            seek: (Duration::from_micros(500), Duration::from_millis(16)),
            rate: (250 << 20, 110 << 20),
            span: 8 << 40,
            wcache: 0,
            ..DiskShape::default()
        };
        assert_eq!(rules[7].disk, disk);
        let words = "rpm=7200 seek=0.5..16 rate=250M..110M span=8T wcache=0";
        assert_eq!((words.parse(), "".parse()), (Ok(disk), Ok(DiskShape::default())));
        assert!("rpm=0".parse::<DiskShape>().unwrap_err().contains("'rpm' cannot be"));
        let read = &rules[0];
        assert_eq!(
            (read.kind, &*read.sorts, read.at.clone()),
            (Kind::Error, &[Sort::Read][..], Some(8192..1 << 20))
        );
        assert_eq!(
            (read.rate, read.seed, &*read.text),
            (ALWAYS / 2, 7, "error read at=8K..1M rate=0.5 seed=7")
        );
        assert_eq!((rules[1].kind, rules[1].sorts.len(), rules[1].rate), (Kind::Hang, 3, ALWAYS));
        assert_eq!(rules[2].delay + rules[2].jitter, Duration::from_millis(70));
        assert_eq!((rules[3].after, rules[3].count), (10, 1));
        assert_eq!((rules[4].at.clone(), rules[4].to), (Some((1 << 20)..(1 << 20) + 1), 2 << 30));
        assert_eq!(rules[5].at, Some((1 << 40)..u64::MAX));
    }

    #[test]
    fn a_malformed_line_is_told_by_its_number_and_the_others_are_obeyed() {
        for (line, why) in [
            ("eror read", "there is no fault \"eror\"; there are error, hang"),
            ("error reed", "\"reed\" is neither read, write or flush nor KEY=VALUE"),
            ("lie read", "'lie' is not about a read"),
            ("error read write", "one line has one of"),
            ("gone at=1M", "'gone' takes no \"at\""),
            ("error at=2M..1M", "'at' cannot be \"2M..1M\""),
            ("error at=1X", "'at' cannot be \"1X\""),
            ("error at=99999999999T", "'at' cannot be"),
            ("error rate=1.5", "'rate' cannot be \"1.5\""),
            ("error rate=NaN", "'rate' cannot be"),
            ("error seed=1 seed=2", "'seed' is given twice"),
            ("error count=-1", "'count' cannot be"),
            ("delay", "'delay' needs ms=..."),
            ("shrink", "'shrink' needs to=..."),
            ("disk read", "'disk' is not about a read"),
            ("disk at=1M..", "'disk' takes no \"at\"; it takes rpm, seek"),
            ("disk rpm=0", "'rpm' cannot be \"0\""),
            ("disk seek=5", "'seek' cannot be \"5\""),
            ("disk seek=NaN..1", "'seek' cannot be \"NaN..1\""),
            ("disk rate=0..1M", "'rate' cannot be"),
        ] {
            let (rules, complaints) = parse(&format!("hang\n{line}\ngone"));
            assert_eq!(rules.len(), 2, "{line}");
            let told = complaints.iter().map(Complaint::to_string).collect::<Vec<_>>();
            assert!(matches!(&told[..], [one] if one.starts_with(&format!("line 2: {why}"))), "{told:?}");
        }
    }

    #[test]
    fn hostile_text_is_complained_about_and_never_panics() {
        let rng = SeededEntropy::new(5);
        let pieces = [
            "error",
            "hang",
            "delay",
            "rot",
            "misdirect",
            "shrink",
            "disk",
            "seek=",
            "rpm=",
            "read",
            "flush",
            "at=",
            "to=",
            "rate=",
            "ms=",
            "..",
            "=",
            "#",
            "\n",
            "\r\n",
            " ",
            "\t",
            "\0",
            "1",
            "18446744073709551615",
            "T",
            "K",
            "-",
            ".",
            "é",
            "\u{1f5ff}",
            "1e308",
            "inf",
        ];
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..rng.next_u64() % 24 {
                text += pieces[rng.next_u64() as usize % pieces.len()];
            }
            let (rules, complaints) = parse(&text);
            assert!(rules.len() + complaints.len() <= text.lines().count());
        }
        let (rules, complaints) = parse(&"gone\n".repeat(MOST_RULES + 3));
        assert_eq!((rules.len(), complaints.len()), (MOST_RULES, 3));
    }
}
