//! No two modules of a crate import each other in a cycle, but those that are known to.

use crate::Tree;
use crate::modules::{Edges, edges, roots};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Cycles of a crate that are known: each with exactly these modules.
pub type Known<'a> = (&'a str, &'a [&'a [&'a str]]);

type Cycle = BTreeSet<String>;

/// Violations: cycles that are not known, and known ones that differ from the table.
pub fn check(tree: &Tree, known: &[Known<'_>]) -> Vec<String> {
    let mut amiss = Vec::new();
    for (name, root) in roots(tree) {
        let edges = edges(tree, &root);
        let known =
            known.iter().filter(|(crate_name, _)| *crate_name == name).flat_map(|(_, cycles)| *cycles);
        let known: Vec<Cycle> =
            known.map(|cycle| cycle.iter().map(|name| (*name).to_owned()).collect()).collect();
        let found = cycles(&edges);
        for cycle in found.iter().filter(|cycle| !known.contains(cycle)) {
            let told = known.iter().find(|told| !told.is_disjoint(cycle));
            let new: Vec<_> =
                cycle.iter().filter(|module| told.is_none_or(|told| !told.contains(*module))).collect();
            amiss.push(match told {
                Some(_) if new.is_empty() => {
                    let cycle: Vec<_> = cycle.iter().collect();
                    format!("{name}: a known cycle has shrunk; tighten the table to &{cycle:?}")
                }
                _ => {
                    let shortest = new.iter().map(|module| shortest_way(&edges, module)).min_by_key(Vec::len);
                    let way = shortest.unwrap_or_default().join(" -> ");
                    format!("{name}: modules import each other in a cycle, with {new:?} in it: {way}")
                }
            });
        }
        for told in known.iter().filter(|told| found.iter().all(|cycle| cycle.is_disjoint(told))) {
            amiss.push(format!("{name}: a known cycle is gone; take it out of the table: {told:?}"));
        }
    }
    amiss
}

/// Sets of modules of which each leads to each.
pub fn cycles(edges: &Edges) -> Vec<Cycle> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    edges.keys().for_each(|(from, to)| next.entry(from).or_default().push(to));
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|&module| (module, reach(&next, module))).collect();
    let leads = |from: &str, to: &str| reached.get(from).is_some_and(|met| met.contains(to));
    let mut found: Vec<Cycle> = Vec::new();
    for &module in reached.keys().filter(|module| leads(module, module)) {
        if found.iter().all(|cycle| !cycle.contains(module)) {
            let others = reached.keys().filter(|other| leads(module, other) && leads(other, module));
            found.push(others.map(|other| (*other).to_owned()).collect());
        }
    }
    found
}

fn reach<'a>(next: &BTreeMap<&str, Vec<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut met, mut queue) = (BTreeSet::new(), vec![from]);
    while let Some(at) = queue.pop() {
        queue.extend(next.get(at).into_iter().flatten().copied().filter(|&to| met.insert(to)));
    }
    met
}

/// A shortest way from a module back to itself: the places that name the next.
fn shortest_way(edges: &Edges, module: &str) -> Vec<String> {
    let mut came: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut queue = VecDeque::from([module]);
    while let Some(at) = queue.pop_front().filter(|_| !came.contains_key(module)) {
        for ((_, to), place) in edges.iter().filter(|((from, _), _)| from == at) {
            came.entry(to).or_insert_with(|| {
                queue.push_back(to);
                (at, place)
            });
        }
    }
    let (mut way, mut at) = (Vec::new(), module);
    while let Some(&(from, place)) = came.get(at) {
        way.insert(0, format!("{place} ({from} names {at})"));
        at = from;
        if at == module {
            break;
        }
    }
    way
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    const ROOT: (&str, &str) = (
        "crates/x/src/lib.rs",
        "mod a;\npub mod b;\nmod c;\n#[cfg(test)]\nmod bed;\npub use c::Named as Known;\npub use b::*;\n",
    );

    fn of(files: &[(&str, &str)], known: &[Known<'_>]) -> Vec<String> {
        let all: Vec<_> = [ROOT].iter().chain(files).map(|&(path, text)| (path, text)).collect();
        check(&tree(&all), known)
    }

    #[test]
    fn a_cycle_is_told_with_its_places() {
        let files = [
            ("crates/x/src/a.rs", "//! Of a.\nuse crate::{b::Thing, other};\n"),
            ("crates/x/src/b.rs", "mod deep;\n"),
            ("crates/x/src/b/deep.rs", "fn f() {\n    print!(\"{}\", super::super::Known::new());\n}\n"),
            ("crates/x/src/c/mod.rs", "fn g() -> super::a::Thing { todo!() }\n"),
        ];
        let [amiss] = &of(&files, &[])[..] else { panic!("one cycle") };
        let way = "crates/x/src/a.rs:2 (a names b) -> crates/x/src/b/deep.rs:2 (b names c) -> \
                   crates/x/src/c/mod.rs:1 (c names a)";
        assert!(amiss.ends_with(way), "{amiss}");
        assert_eq!(of(&files, &[("x", &[&["a", "b", "c"]])]), [""; 0]);
        let grown = of(&files, &[("x", &[&["a", "b"]])]);
        assert!(grown[0].contains("[\"c\"] in it"), "{grown:?}");
        let of_another = of(&files, &[("y", &[&["a", "b", "c"]])]);
        assert_eq!(of_another.len(), 1);
    }

    #[test]
    fn a_known_cycle_that_shrank_or_went_is_told() {
        let mut files = vec![
            ("crates/x/src/a.rs", "use crate::Thing;"),
            ("crates/x/src/b.rs", "use super::a;\npub struct Thing;"),
        ];
        let known: [Known<'_>; 1] = [("x", &[&["a", "b", "c"]])];
        assert!(of(&files, &known)[0].contains("shrunk"));
        files.pop();
        assert!(of(&files, &known)[0].contains("gone"));
    }

    #[test]
    fn tests_and_what_lies_below_one_module_make_no_cycle() {
        let files = [
            (
                "crates/x/src/a.rs",
                "use crate::b;\nuse self::inner::X;\nmod inner { use super::Y; use crate::a::Z; }",
            ),
            (
                "crates/x/src/b.rs",
                "#[cfg(test)]\nuse crate::a::{A, B};\n#[cfg(test)]\nmod tests { use crate::a; }",
            ),
            ("crates/x/src/bed.rs", "use crate::a; use crate::b;"),
            (
                "crates/x/src/c.rs",
                "/// [`crate::a`]\n#[cfg(all(test, unix))]\nfn f() { crate::b::g() }\nuse crate::a;",
            ),
        ];
        assert_eq!(of(&files, &[]), [""; 0]);
    }
}
