//! Which names pools and datasets may have: zfs's rules, so that names can move between the two.

use super::{ApiError, Result};

/// The longest name of a pool or dataset, bytes.
pub const MAX_NAME: usize = 255;

/// Words that `pool create` reads as something else.
const RESERVED: &[&str] = &["mirror", "raidz", "raid10", "raid14", "spare", "log", "cache", "draid"];

fn refuse<T>(name: &str, why: &str) -> Result<T> {
    Err(ApiError::usage(format!("'{name}' cannot be a name: {why}")))
}

/// Checks a pool's name.
///
/// # Errors
/// Usage, with the reason.
pub fn check_pool(name: &str) -> Result<()> {
    check_part(name, name)?;
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return refuse(name, "a pool's name starts with a letter");
    }
    if RESERVED.iter().any(|word| name == *word || (*word == "raidz" && name.starts_with(word))) {
        return refuse(name, "the word is reserved");
    }
    Ok(())
}

/// Checks a dataset's name, pool included: `tank/home`.
///
/// # Errors
/// Usage, with the reason.
pub fn check_dataset(name: &str) -> Result<()> {
    if name.len() > MAX_NAME {
        return refuse(name, "it has more than 255 bytes");
    }
    if name.contains('@') {
        return refuse(name, "'@' belongs to snapshots");
    }
    if name.contains('#') {
        return refuse(name, "'#' belongs to bookmarks");
    }
    let mut parts = name.split('/');
    check_pool(parts.next().unwrap_or_default())?;
    parts.try_for_each(|part| check_part(name, part))
}

/// Checks a snapshot's name in full, `tank/home@monday`, and gives its two parts.
///
/// # Errors
/// Usage, with the reason.
pub fn check_snapshot(name: &str) -> Result<(&str, &str)> {
    let Some((dataset, own)) = name.split_once('@') else {
        return refuse(name, "a snapshot's is DATASET@NAME");
    };
    if name.len() > MAX_NAME {
        return refuse(name, "it has more than 255 bytes");
    }
    check_dataset(dataset)?;
    check_part(name, own)?;
    Ok((dataset, own))
}

/// Checks a bookmark's name in full, `tank/home#monday`, and gives its two parts.
///
/// # Errors
/// Usage, with the reason.
pub fn check_bookmark(name: &str) -> Result<(&str, &str)> {
    let Some((dataset, own)) = name.split_once('#') else {
        return refuse(name, "a bookmark's is DATASET#NAME");
    };
    if name.len() > MAX_NAME {
        return refuse(name, "it has more than 255 bytes");
    }
    check_dataset(dataset)?;
    check_part(name, own)?;
    Ok((dataset, own))
}

/// A text of somebody else's as it can stand in a line: control characters, and what turns its direction, are escaped.
pub fn printable(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || turns(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// The pool that a dataset is in.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

fn check_part(name: &str, part: &str) -> Result<()> {
    if part.is_empty() {
        return refuse(name, "a part of it is empty");
    }
    if part == "." || part == ".." {
        return refuse(name, "'.' and '..' mean something else");
    }
    if part.len() > MAX_NAME {
        return refuse(name, "it has more than 255 bytes");
    }
    match part.chars().find(|&c| !c.is_ascii_alphanumeric() && !"-_.: ".contains(c)) {
        Some(c) => refuse(name, &format!("it holds {c:?}; letters, digits and - _ . : are fine")),
        None if part.starts_with(' ') || part.ends_with(' ') => refuse(name, "a part of it ends in a space"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_wrote_stays_in_its_line() {
        assert_eq!(
            printable("a b\tc\nlarder: \u{1b}[2Jd\u{202e}e é"),
            "a b\\tc\\nlarder: \\u{1b}[2Jd\\u{202e}e é"
        );
    }

    #[test]
    fn names_follow_zfs() {
        for good in ["tank", "t", "Tank-2.old:x_y", "mirrored"] {
            check_pool(good).unwrap();
        }
        for bad in ["", "2tank", "-x", "mirror", "raidz2", "log", "a/b", "tänk", "a@b", "."] {
            assert!(check_pool(bad).is_err(), "{bad}");
        }
        for good in ["tank", "tank/a", "tank/a/2024", "tank/with space", "tank/mirror"] {
            check_dataset(good).unwrap();
        }
        for bad in ["/tank", "tank/", "tank//a", "tank/a@b", "tank/..", "tank/ a", "9/a"] {
            assert!(check_dataset(bad).is_err(), "{bad}");
        }
        assert_eq!(pool_of("tank/a@b"), "tank");
        assert_eq!(
            check_snapshot("tank/a@2026-11-24_17:59:01 x").unwrap(),
            ("tank/a", "2026-11-24_17:59:01 x")
        );
        for bad in ["tank/a", "tank/a@", "@b", "tank/a@b@c", "tank/a@b/c", "tank@b,c", "tank@b%c", "tank@ä"]
        {
            assert!(check_snapshot(bad).is_err(), "{bad}");
        }
        assert!(check_snapshot(&format!("tank@{}", "x".repeat(250))).is_ok());
        assert!(check_snapshot(&format!("tank@{}", "x".repeat(251))).is_err());
    }
}
