//! The repository is as it holds itself to be.

use larder_tidy::cycles::Known;
use larder_tidy::{Tree, cycles, documents, read, text};
use std::path::Path;

/// Cycles of modules that are known and wait to be cut, crate by crate, each with exactly its modules. One that grows
/// fails, and so does one that is smaller than it is told to be here. Nothing is added.
#[rustfmt::skip]
const KNOWN: &[Known<'_>] = &[];

#[test]
fn the_repository_is_as_it_holds_itself_to_be() {
    let tree = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    assert!(tree.contains_key("ARCHITECTURE.md") && tree.len() > 100, "{} files", tree.len());
    let rules: [fn(&Tree) -> Vec<String>; 7] = [
        |tree| cycles::check(tree, KNOWN),
        documents::check,
        text::long_files,
        text::wide_comments,
        text::roundabout_comments,
        text::empty_names,
        text::places,
    ];
    let amiss: Vec<String> = rules.iter().flat_map(|rule| rule(&tree)).collect();
    assert!(amiss.is_empty(), "{} things are amiss:\n{}", amiss.len(), amiss.join("\n"));
}
