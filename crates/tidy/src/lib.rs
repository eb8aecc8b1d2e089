//! Rules of the repository that no compiler checks. `cargo test -p larder-tidy` reads the sources and names violations;
//! each rule is a function from a [`Tree`] to sentences, with a tree beside it on which it fails.

pub mod cycles;
pub mod documents;
pub mod modules;
pub mod text;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Files by their paths from the top of the repository: those that are text.
pub type Tree = BTreeMap<String, String>;

/// Folders and endings of what is not written by hand.
const SKIPPED: [&str; 6] = [".git", "target", "corpus", "artifacts", "golden", "proptest-regressions"];
const ENDINGS: [&str; 8] = ["rs", "md", "toml", "sh", "py", "txt", "Makefile", "run"];

/// Reads the repository whose top is `folder`.
///
/// # Panics
/// When it cannot be read.
pub fn read(folder: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).unwrap_or_else(|error| panic!("{}: {error}", at.display())) {
            let path = entry.expect("a folder that can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_source = ENDINGS.contains(&name.rsplit('.').next().unwrap_or_default());
            let skipped = SKIPPED.contains(&name.as_str()) && !at.ends_with("crates/files/tests");
            if path.is_dir() && !skipped {
                folders.push(path);
            } else if is_source && path.is_file() {
                let text =
                    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let relative = path.strip_prefix(folder).expect("it lies below");
                tree.insert(relative.to_string_lossy().into_owned(), text);
            }
        }
    }
    tree
}

/// A tree made up for a test.
#[cfg(test)]
fn tree(files: &[(&str, &str)]) -> Tree {
    files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect()
}
