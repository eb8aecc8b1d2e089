//! Names and sizes of files, and text that must not be in them.

use crate::Tree;

/// Lines of a source without its tests.
const MOST_LINES: usize = 900;
/// Columns of a comment.
const MOST_COLUMNS: usize = 120;
/// Names that say nothing.
const NAMES: [&str; 7] = ["utils", "util", "common", "manager", "helper", "helpers", "misc"];
/// First words of clauses.
const CLAUSES: [&str; 4] = ["What", "How", "Who", "Whoever"];
/// Beginnings of paths of a machine on which somebody builds; not written out, so that this file may be read too.
const PLACES: [&str; 2] = [concat!("/", "work/"), concat!("/", "home/")];

fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part == "tests") || path.ends_with("/tests.rs")
}

/// Sources that are too long.
pub fn long_files(tree: &Tree) -> Vec<String> {
    let long = |(path, text): (&String, &String)| {
        let lines: Vec<_> = text.lines().collect();
        let is_tests = |pair: &[&str]| {
            pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
        };
        let code = lines.windows(2).position(is_tests).unwrap_or(lines.len());
        let is_long = path.ends_with(".rs") && path.contains("/src/") && !is_test(path) && code > MOST_LINES;
        is_long.then(|| format!("{path} has {code} lines without its tests; {MOST_LINES} at most"))
    };
    tree.iter().filter_map(long).collect()
}

/// Comments that are too wide.
pub fn wide_comments(tree: &Tree) -> Vec<String> {
    let is_wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > MOST_COLUMNS;
    lines(tree, |path| path.ends_with(".rs"), is_wide, "a comment is wider than 120 columns")
}

/// Comments that describe a thing by a clause ("What is read.") where a noun says it. Help texts of commands may.
pub fn roundabout_comments(tree: &Tree) -> Vec<String> {
    let is_roundabout = |line: &str| {
        let comment = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']));
        let first = comment.and_then(|comment| comment.split_whitespace().next());
        first.is_some_and(|word| CLAUSES.contains(&word))
    };
    let mut amiss = Vec::new();
    for (path, text) in tree.iter().filter(|(path, text)| path.ends_with(".rs") && !text.contains("clap")) {
        let of = Tree::from([(path.clone(), text.clone())]);
        amiss.extend(lines(&of, |_| true, is_roundabout, "a comment begins with a clause: name the thing"));
    }
    amiss
}

/// Modules and folders of sources whose name says nothing.
pub fn empty_names(tree: &Tree) -> Vec<String> {
    let is_empty = |path: &&String| {
        let inner = path.split_once("/src/").map_or("", |(_, inner)| inner);
        let mut parts = inner.strip_suffix(".rs").unwrap_or("").split('/');
        !is_test(path) && parts.any(|part| NAMES.contains(&part))
    };
    tree.keys().filter(is_empty).map(|path| format!("{path}: its name says nothing")).collect()
}

/// Paths of a machine on which somebody builds.
pub fn places(tree: &Tree) -> Vec<String> {
    let is_absolute = |line: &str, at: usize| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && !"_-.~}/$".contains(before))
    };
    let has = |line: &str| {
        PLACES.iter().any(|place| line.match_indices(place).any(|(at, _)| is_absolute(line, at)))
    };
    lines(tree, |_| true, has, "a path of somebody's machine")
}

fn lines(tree: &Tree, of: impl Fn(&str) -> bool, is_amiss: impl Fn(&str) -> bool, what: &str) -> Vec<String> {
    let mut amiss = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| of(path)) {
        let found = text.lines().enumerate().filter(|(_, line)| is_amiss(line));
        amiss.extend(found.map(|(number, _)| format!("{path}:{}: {what}", number + 1)));
    }
    amiss
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    #[test]
    fn a_source_is_long_without_its_tests() {
        let code = "fn f() {}\n".repeat(880);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(100));
        let short = code.clone() + &tests;
        let long = code + &"\n".repeat(21) + &tests;
        let found = long_files(&tree(&[
            ("crates/x/src/short.rs", &short),
            ("crates/x/src/long.rs", &long),
            ("crates/x/tests/long.rs", &long),
        ]));
        assert_eq!(found, ["crates/x/src/long.rs has 901 lines without its tests; 900 at most"]);
    }

    #[test]
    fn comments_are_counted_in_characters() {
        let of = |count: usize| format!("fn f() {{}}\n    // {}", "é".repeat(count - 7));
        assert_eq!(wide_comments(&tree(&[("a.rs", &of(120))])), [""; 0]);
        assert_eq!(wide_comments(&tree(&[("a.rs", &of(121))])).len(), 1);
    }

    #[test]
    fn comments_that_begin_with_a_clause_are_found() {
        let text = |of: &str| format!("struct Row {{\n    {of}\n    x: u8,\n}}\n");
        let found = |of: &str| roundabout_comments(&tree(&[("a.rs", &text(of))])).len();
        assert_eq!(["/// What is read.", "// How far it is.", "//! Whoever waits."].map(found), [1; 3]);
        assert_eq!(["/// Bytes read.", "/// Whether it is.", "let what = 1; // What"].map(found), [0; 3]);
        let help = text("#[derive(clap::Args)]\n/// What to list");
        assert_eq!(roundabout_comments(&tree(&[("a.rs", &help)])), [""; 0]);
    }

    #[test]
    fn names_that_say_nothing_are_for_tests() {
        let found = empty_names(&tree(&[
            ("crates/x/src/utils.rs", ""),
            ("crates/x/src/a/manager/mod.rs", ""),
            ("crates/x/src/commons.rs", ""),
            ("crates/x/tests/common/mod.rs", ""),
        ]));
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn absolute_paths_of_a_machine_are_found() {
        let [_, home] = PLACES;
        let found = |line: String| places(&tree(&[("a.md", &line)])).len();
        assert_eq!(found(format!("see `{home}me/x`")), 1);
        assert_eq!(found(format!("{home}me")), 1);
        assert_eq!(found(format!("tank{home}ann")), 0);
    }
}
