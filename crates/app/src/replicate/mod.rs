//! Choice of streams that make a dataset a copy of another, from the snapshots and bookmarks of both.
//!
//! Snapshots are the same where their GUIDs are. What is sent builds upon the newest snapshot of the target, which the
//! source must have, or a bookmark of it. Where the target has newer ones than the last that both have, it *diverged*:
//! somebody has to say that these go.
//!
//! The source remembers what a target has, in a property of the dataset whose name has the target's ([`property_of`])
//! and whose value begins with the commit of the last snapshot that both have: policies destroy no newer one. A hold of
//! the same name keeps that snapshot, so that there is always something to go on from.

use crate::api::name::check_dataset;
use std::collections::BTreeMap;

/// Beginning of the properties and holds that remember what was replicated.
pub const REPLICATED: &str = "larder:replicated:";
/// The property of snapshots that were taken for a target: its part of [`property_of`].
pub const TAKEN_FOR: &str = "larder:taken-for";
/// Beginning of the names of such snapshots; the time follows.
const OWN: &str = "replicate_";
/// The shape of that time; `0` stands for a digit.
const OWN_TIME: &str = "0000-00-00_00:00:00.000";

/// Columns of `larder fs list` that [`parse`] reads.
pub const COLUMNS: &str = "name,type,guid,createtxg,userrefs,receive_resume_token";

/// A snapshot, or a bookmark of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mark {
    /// Its name behind `@` or `#`.
    pub name: String,
    /// The same wherever it was sent.
    pub guid: u64,
    /// The commit that took the snapshot, on this side.
    pub commit: u64,
    /// Somebody holds it.
    pub is_held: bool,
    /// The value of [`TAKEN_FOR`].
    pub taken_for: String,
}

/// A dataset as one side lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dataset {
    /// Its snapshots, oldest first.
    pub snapshots: Vec<Mark>,
    /// Its bookmarks, oldest first.
    pub bookmarks: Vec<Mark>,
    /// The token of a stream that broke off.
    pub token: Option<String>,
    /// The value of the property that remembers what was replicated to the target.
    pub replicated: String,
}

/// Datasets by their path below the first; parents come first.
pub type Datasets = BTreeMap<String, Dataset>;

/// Foundation of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// Nothing: all of it is sent.
    Nothing,
    /// A snapshot of both.
    Snapshot(Mark),
    /// A snapshot that the source has no more but for its bookmark.
    Bookmark(Mark),
}

/// Relation of a target to its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// It can go on from here; what the target has beyond that goes.
    From(Base, Beyond),
    /// It has snapshots that the source lacks, newer than the last that both have.
    Diverged {
        /// That one.
        common: Mark,
        /// The newest of its own.
        newest: Mark,
    },
    /// It has snapshots, and none of them in common.
    Strange,
    /// It is there without a snapshot, and may hold something.
    Occupied,
}

/// Whether what a target has beyond the base may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// There is nothing that may.
    Stays,
    /// It goes.
    Goes,
}

/// A stream of one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// `-i` or `-I` and what it builds upon, by its name with `@` or `#`.
    pub from: Option<(&'static str, String)>,
    /// The last snapshot in it.
    pub to: String,
    /// Snapshots in it.
    pub count: usize,
}

/// The property, and the hold, that remember what was replicated to a target. No two have the same: what a property's
/// name cannot hold is written as two hexadecimal digits behind a colon.
pub fn property_of(target: &str) -> String {
    format!("{REPLICATED}{}", label_of(target))
}

/// The part of it that names the target.
pub fn label_of(target: &str) -> String {
    let part = |byte: u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(byte).to_string(),
        b'/' => "::".to_owned(),
        _ => format!(":{byte:02x}"),
    };
    target.bytes().map(part).collect()
}

/// The target that such a part names; the part itself, where it names none.
pub fn target_of(label: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = label.as_bytes();
    loop {
        match rest {
            [] => return String::from_utf8(bytes).unwrap_or_else(|_| label.to_owned()),
            [b':', b':', more @ ..] => {
                bytes.push(b'/');
                rest = more;
            }
            [b':', high, low, more @ ..] => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let (Some(high), Some(low)) = (digit(high), digit(low)) else { return label.to_owned() };
                bytes.push((high * 16 + low) as u8);
                rest = more;
            }
            [plain, more @ ..] => {
                bytes.push(*plain);
                rest = more;
            }
        }
    }
}

/// The commit through which a dataset was replicated, by a value of that property; nothing was, where it is none.
pub fn replicated_through(value: &str) -> u64 {
    value.split(' ').next().and_then(|commit| commit.parse().ok()).unwrap_or(0)
}

/// The name of a snapshot that is taken at `now`.
pub fn own_name(now: jiff::Timestamp) -> String {
    let time = now.to_zoned(jiff::tz::TimeZone::UTC);
    format!("{OWN}{}", time.strftime("%Y-%m-%d_%H:%M:%S.%3f"))
}

/// Whether a snapshot was taken for some target, by its name.
pub fn is_own_name(name: &str) -> bool {
    let fits = |(c, shape): (char, char)| if shape == '0' { c.is_ascii_digit() } else { c == shape };
    let time = name.strip_prefix(OWN);
    time.is_some_and(|time| time.len() == OWN_TIME.len() && time.chars().zip(OWN_TIME.chars()).all(fits))
}

/// Datasets from the table that `larder fs list -Hp` gives of [`COLUMNS`], [`TAKEN_FOR`] and that property.
pub fn parse(table: &str, top: &str) -> Datasets {
    let mut datasets = Datasets::new();
    for line in table.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [full, kind, guid, commit, holds, token, taken_for, replicated] = columns[..] else { continue };
        let dataset = full.split(['@', '#']).next().unwrap_or(full);
        let Some(path) = dataset.strip_prefix(top) else { continue };
        let entry = datasets.entry(path.trim_start_matches('/').to_owned()).or_default();
        let mark = Mark {
            name: full[dataset.len()..].chars().skip(1).collect(),
            guid: guid.parse().unwrap_or(0),
            commit: commit.parse().unwrap_or(0),
            is_held: holds.parse::<u64>().is_ok_and(|holds| holds > 0),
            taken_for: taken_for.to_owned(),
        };
        match kind {
            "snapshot" => entry.snapshots.push(mark),
            "bookmark" => entry.bookmarks.push(mark),
            _ => {
                entry.token = Some(token.to_owned()).filter(|token| token != "-" && !token.is_empty());
                entry.replicated = replicated.to_owned();
            }
        }
    }
    datasets
}

/// Whether a dataset is another one, or below it.
pub fn is_within(name: &str, top: &str) -> bool {
    name.strip_prefix(top).is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// Datasets that were replicated as part of `top`, and were renamed to elsewhere since: each as it is called now, and
/// its path below `top` when it was. From the table that `larder fs get -Hp -s local -o name,value` gives of the
/// property that remembers the target.
pub fn moved_out(table: &str, top: &str) -> Vec<(String, String)> {
    let one = |line: &str| {
        let (name, value) = line.split_once('\t')?;
        let (_, of) = value.split_once(' ')?;
        let of = of.split('@').next().unwrap_or(of);
        let is_out = is_within(of, top) && !is_within(name, top) && check_dataset(name).is_ok();
        is_out.then(|| (name.to_owned(), of[top.len()..].trim_start_matches('/').to_owned()))
    };
    table.lines().filter_map(one).collect()
}

/// The base that a target can be sent upon; with `force`, what it has beyond that may go.
pub fn choose(source: &Dataset, target: Option<&Dataset>, force: bool) -> Choice {
    let Some(target) = target else { return Choice::From(Base::Nothing, Beyond::Stays) };
    let Some(newest) = target.snapshots.last() else {
        return if force { Choice::From(Base::Nothing, Beyond::Goes) } else { Choice::Occupied };
    };
    // As the source calls it, which may have renamed it.
    let has = |marks: &[Mark], guid: u64| marks.iter().find(|mark| mark.guid == guid).cloned();
    let beyond = if force { Beyond::Goes } else { Beyond::Stays };
    if let Some(mark) = has(&source.snapshots, newest.guid) {
        return Choice::From(Base::Snapshot(mark), beyond);
    }
    if let Some(mark) = has(&source.bookmarks, newest.guid) {
        return Choice::From(Base::Bookmark(mark), beyond);
    }
    match last_common(source, target) {
        Some(common) if force => Choice::From(Base::Snapshot(common), Beyond::Goes),
        Some(common) => Choice::Diverged { common, newest: newest.clone() },
        None => Choice::Strange,
    }
}

/// The newest snapshot that both have, as the source calls it.
pub fn last_common(source: &Dataset, target: &Dataset) -> Option<Mark> {
    let is_there = |mark: &&Mark| target.snapshots.iter().any(|other| other.guid == mark.guid);
    source.snapshots.iter().rev().find(is_there).cloned()
}

/// Snapshots of a source that are newer than a base.
pub fn missing<'a>(source: &'a Dataset, base: &Base) -> &'a [Mark] {
    let from = match base {
        Base::Nothing => 0,
        Base::Snapshot(mark) => {
            source.snapshots.iter().position(|one| one.guid == mark.guid).map_or(0, |at| at + 1)
        }
        Base::Bookmark(mark) => source.snapshots.partition_point(|one| one.commit <= mark.commit),
    };
    &source.snapshots[from..]
}

/// Streams that bring all that is missing, in their order, or only its newest.
pub fn steps(base: &Base, missing: &[Mark], newest_only: bool) -> Vec<Step> {
    let Some((newest, before)) = missing.split_last() else { return Vec::new() };
    let to = |mark: &Mark, from, count| Step { from, to: mark.name.clone(), count };
    let named = match base {
        Base::Nothing => None,
        Base::Snapshot(mark) => Some(format!("@{}", mark.name)),
        Base::Bookmark(mark) => Some(format!("#{}", mark.name)),
    };
    if before.is_empty() || newest_only {
        return vec![to(newest, named.map(|from| ("-i", from)), 1)];
    }
    if matches!(base, Base::Snapshot(_)) {
        return vec![to(newest, named.map(|from| ("-I", from)), missing.len())];
    }
    // There are snapshots between only where it begins with one.
    let first = &before[0];
    let rest = Some(("-I", format!("@{}", first.name)));
    vec![to(first, named.map(|from| ("-i", from)), 1), to(newest, rest, missing.len() - 1)]
}

/// Snapshots of a source that were taken for a target, but for the newest `keep` and what is not replicated.
pub fn old_at_source(source: &Dataset, label: &str, common: &Mark, keep: usize) -> Vec<String> {
    let own = source.snapshots.iter().filter(|mark| mark.taken_for == label && is_own_name(&mark.name));
    let mut own: Vec<&Mark> = own.filter(|mark| mark.commit <= common.commit).collect();
    own.truncate(own.len().saturating_sub(keep));
    own.iter().filter(|mark| mark.guid != common.guid).map(|mark| mark.name.clone()).collect()
}

/// Snapshots of a target that were taken for some target at its source, which has them no more.
pub fn old_at_target(source: &Dataset, target: &Dataset, common: &Mark) -> Vec<String> {
    let end = target.snapshots.iter().position(|mark| mark.guid == common.guid).unwrap_or(0);
    let is_gone = |mark: &&Mark| source.snapshots.iter().all(|one| one.guid != mark.guid);
    let own = target.snapshots[..end].iter().filter(|mark| is_own_name(&mark.name));
    own.filter(is_gone).map(|mark| mark.name.clone()).collect()
}

#[cfg(test)]
mod tests;
