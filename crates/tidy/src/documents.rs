//! ARCHITECTURE.md and the Cargo.toml files say the same: who imports whom, and what each dependency is for.

use crate::Tree;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = "ARCHITECTURE.md";
/// Prefix of the names of the workspace's crates.
const OWN: &str = "larder-";

type Names = BTreeSet<String>;

/// Violations, a sentence each.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut amiss = Vec::new();
    let page = tree.get(PAGE).map_or("", String::as_str);
    let crates: BTreeMap<String, &str> = tree
        .iter()
        .filter_map(|(path, text)| {
            Some((path.strip_suffix("/Cargo.toml")?.rsplit('/').next()?.to_owned(), &**text))
        })
        .collect();

    // Imports between crates.
    let mut told: BTreeMap<String, Names> = BTreeMap::new();
    let mut at_most = Names::new();
    for cells in rows(page, "| crate | what | may import |") {
        let [name] = &named(cells[0])[..] else { continue };
        let mut may: Names = named(cells[2]).into_iter().collect();
        if cells[2].contains("all but") {
            may = told.keys().filter(|above| !may.contains(*above)).cloned().collect();
            at_most.insert(name.clone());
        }
        told.insert(name.clone(), may);
    }
    for (name, manifest) in crates.iter().filter(|(name, _)| *name != "fuzz") {
        let imports: Names = dependencies(manifest, "dependencies").into_iter().filter_map(own).collect();
        let Some(may) = told.remove(name) else {
            amiss.push(format!("{PAGE}: the crate {name} has no line"));
            continue;
        };
        for other in imports.difference(&may) {
            amiss.push(format!("{name} imports {other}, which {PAGE} does not say that it may"));
        }
        for other in may.difference(&imports).filter(|_| !at_most.contains(name)) {
            amiss.push(format!("{PAGE}: {name} may import {other}, and does not"));
        }
    }
    amiss.extend(told.keys().map(|name| format!("{PAGE}: there is no crate {name}")));

    // Every dependency has a line on its purpose. Tools and tests may use those of the product.
    let (tables, shipped) = (tables(page), product(&crates));
    let [product, tools] = [0, 1].map(|table| tables.get(table).cloned().unwrap_or_default());
    let (mut of_product, mut of_all) = (Names::new(), Names::new());
    for (name, manifest) in &crates {
        let foreign =
            |section| dependencies(manifest, section).into_iter().filter(|name| own(name.clone()).is_none());
        let of_tests: Names = foreign("dev-dependencies").chain(foreign("build-dependencies")).collect();
        let normal: Names = foreign("dependencies").collect();
        if shipped.contains(name) {
            of_product.extend(normal.iter().cloned());
        }
        of_all.extend(normal.into_iter().chain(of_tests));
    }
    let mut missing = |names: &Names, lines: &Names, what: &str| {
        amiss.extend(
            names.difference(lines).map(|name| format!("{PAGE}: {name} has no line among the {what}")),
        );
    };
    missing(&of_product, &product, "dependencies");
    missing(&of_all, &product.union(&tools).cloned().collect(), "dependencies");
    amiss.extend(
        product.difference(&of_product).map(|name| format!("{PAGE}: nothing of the product uses {name}")),
    );
    amiss.extend(tools.difference(&of_all).map(|name| format!("{PAGE}: nothing uses {name}")));
    amiss
}

/// The crate that is shipped, and all that it imports.
fn product(crates: &BTreeMap<String, &str>) -> Names {
    let (mut all, mut queue) = (Names::new(), vec!["app".to_owned()]);
    while let Some(name) = queue.pop().filter(|name| crates.contains_key(name)) {
        queue.extend(dependencies(crates[&name], "dependencies").into_iter().filter_map(own));
        all.insert(name);
    }
    all
}

fn own(name: String) -> Option<String> {
    name.strip_prefix(OWN).map(str::to_owned)
}

/// The cells of the rows of the table that begins with this line.
fn rows<'a>(page: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let table =
        page.lines().skip_while(|line| *line != head).skip(2).take_while(|line| line.starts_with('|'));
    table.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// The dependencies of each table of them, in the order of the page.
fn tables(page: &str) -> Vec<Names> {
    let head = "| crate | for | not taken |";
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find(head) {
        found.push(rows(&rest[at..], head).iter().flat_map(|cells| named(cells[0])).collect());
        rest = &rest[at + head.len()..];
    }
    found
}

/// Words between backticks.
fn named(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The names in a section of a Cargo.toml, and in those of the same kind for some targets.
fn dependencies(manifest: &str, section: &str) -> Vec<String> {
    let (mut found, mut inside) = (Vec::new(), false);
    for line in manifest.lines().map(str::trim) {
        if let Some(head) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside =
                head == section || (head.starts_with("target.") && head.ends_with(&format!(".{section}")));
        } else if inside && !line.starts_with('#') && line.contains('=') {
            found.extend(line.split([' ', '.', '=']).next().map(str::to_owned));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    const TOLD: &str = "| crate | what | may import |\n|---|---|---|\n| `format` | bytes | – |\n| `sim` | s | – |\n\
        | `app` | all | all but `sim` |\n| `real` | r | – |\n\n| crate | for | not taken |\n|---|---|---|\n| `a`, `b` | x | – |\n\n\
        | crate | for | not taken |\n|---|---|---|\n| `t` | x | – |\n";

    fn of(page: &str, app: &str) -> Vec<String> {
        check(&tree(&[
            (PAGE, page),
            (
                "crates/format/Cargo.toml",
                "[dependencies]\na.workspace = true\n[dev-dependencies]\nt = \"1\"\n",
            ),
            ("crates/sim/Cargo.toml", "[package]\nname = \"larder-sim\"\n"),
            ("tests/real/Cargo.toml", "[dependencies]\n"),
            ("crates/app/Cargo.toml", app),
        ]))
    }

    #[test]
    fn what_agrees_is_well() {
        let app = "[dependencies]\nlarder-format.workspace = true\nb = { version = \"1\" }\n[dev-dependencies]\na = \"1\"";
        assert_eq!(of(TOLD, app), [""; 0]);
    }

    #[test]
    fn each_difference_is_told() {
        let app = "[dependencies]\nlarder-sim.workspace = true\nt.workspace = true\n[target.'cfg(unix)'.dependencies]\nn = \"1\"\n";
        let page =
            TOLD.replace("| `sim` | s | – |", "| `gone` | g | – |").replace("| r | – |", "| r | `format` |");
        let amiss = of(&page, app).join("\n");
        for told in [
            "the crate sim has no line",
            "there is no crate gone",
            "app imports sim, which",
            "real may import format, and does not",
            "n has no line",
            "t has no line among",
            "nothing of the product uses b",
        ] {
            assert!(amiss.contains(told), "{told:?} is not in:\n{amiss}");
        }
        assert!(of(&TOLD.replace("`t`", "`t`, `u`"), app).contains(&format!("{PAGE}: nothing uses u")));
    }
}
