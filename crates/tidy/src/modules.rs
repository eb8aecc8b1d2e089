//! The modules of a crate, and which of them names which: by paths that begin with `crate`, `super` or `self`, in code,
//! macros and `use` trees, also by names that the root re-exports. What is compiled for tests alone is left out.
//!
//! A module is a top-level one, with all that lies in its folder; the root itself is none.

use crate::Tree;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// Keywords in front of an item's name.
const ITEMS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];

/// References between modules, from and to, and where first: a file and a line.
pub type Edges = BTreeMap<(String, String), String>;

/// Roots of crates: their names, and the files.
pub fn roots(tree: &Tree) -> Vec<(String, String)> {
    let root = |path: &String| {
        let (folder, rest) = path.split_once("/src/")?;
        let name = folder.rsplit('/').next()?;
        match rest {
            "lib.rs" => Some((name.to_owned(), path.clone())),
            "main.rs" => Some((format!("{name}, main"), path.clone())),
            _ if rest.starts_with("bin/")
                && (rest.matches('/').count() == 1 || rest.ends_with("/main.rs")) =>
            {
                Some((format!("{name}, {rest}"), path.clone()))
            }
            _ => None,
        }
    };
    tree.keys().filter_map(root).collect()
}

/// References between the modules of the crate with this root.
pub fn edges(tree: &Tree, root: &str) -> Edges {
    let mut reader =
        Reader { tree, paths: vec![], uses: vec![], modules: BTreeSet::new(), items: BTreeMap::new() };
    reader.file(root, &mut Vec::new(), true);
    let Reader { paths, uses, modules, items, .. } = reader;
    // Names that the root has from one of its modules.
    let mut exports = BTreeMap::new();
    for path in uses {
        let segments: Vec<_> =
            path.iter().filter(|segment| !["crate", "self"].contains(&segment.as_str())).collect();
        let ([first, .., last] | [first @ last]) = segments[..] else { continue };
        if last == "*" {
            let all = items.get(first).into_iter().flatten();
            exports.extend(all.map(|item| (item.clone(), first.clone())));
        } else if modules.contains(first) {
            exports.insert(last.clone(), first.clone());
        }
    }
    let mut edges = Edges::new();
    for Named { from, to, place } in paths {
        let (Some(from), Some(first)) = (from.first(), to.first()) else { continue };
        let target = if modules.contains(first) { Some(first) } else { exports.get(first) };
        if let Some(target) = target.filter(|target| *target != from) {
            edges.entry((from.clone(), target.clone())).or_insert(place);
        }
    }
    edges
}

struct Named {
    from: Vec<String>,
    to: Vec<String>,
    place: String,
}

struct Reader<'a> {
    tree: &'a Tree,
    paths: Vec<Named>,
    /// Paths that the root uses, each to the name that it gets.
    uses: Vec<Vec<String>>,
    modules: BTreeSet<String>,
    /// Names of items that each module may define.
    items: BTreeMap<String, BTreeSet<String>>,
}

impl Reader<'_> {
    /// `module` is where its content is; children of a root or `mod.rs` lie beside it.
    fn file(&mut self, path: &str, module: &mut Vec<String>, beside: bool) {
        let text = &self.tree[path];
        let folder = if beside {
            path.rsplit_once('/').map_or("", |(folder, _)| folder)
        } else {
            &path[..path.len() - 3]
        };
        self.scan(&tokens(text), path, folder, module);
    }

    fn scan(&mut self, tokens: &[TokenTree], path: &str, folder: &str, module: &mut Vec<String>) {
        let mut at = 0;
        while at < tokens.len() {
            if is_of_tests(&tokens[at..]) {
                at += item_len(&tokens[at..]);
                continue;
            }
            match &tokens[at] {
                TokenTree::Group(group) => {
                    self.scan(&inner(group.stream()), path, folder, module);
                }
                TokenTree::Ident(ident) if ident == "mod" => {
                    self.module(&tokens[at + 1..], path, folder, module)
                }
                TokenTree::Ident(ident) if ident == "use" && module.is_empty() => {
                    flatten(&tokens[at + 1..], &[], &mut self.uses);
                }
                TokenTree::Ident(ident)
                    if ["crate", "super", "self"].iter().any(|word| ident == word)
                        && is_colons(&tokens[at + 1..])
                        && !(at >= 2 && is_colons(&tokens[at - 2..])) =>
                {
                    let mut all = Vec::new();
                    flatten(&tokens[at..], &[], &mut all);
                    let place = format!("{path}:{}", ident.span().start().line);
                    for to in all {
                        let (from, to) = (module.clone(), absolute(module, &to));
                        self.paths.push(Named { from, to, place: place.clone() });
                    }
                }
                TokenTree::Ident(ident) if ITEMS.iter().any(|word| ident == word) => {
                    if let ([module], Some(TokenTree::Ident(name))) = (&module[..], tokens.get(at + 1)) {
                        self.items.entry(module.clone()).or_default().insert(name.to_string());
                    }
                }
                _ => {}
            }
            // The content of `mod name { … }` has been read as that module's.
            let is_inline = matches!(&tokens[at..], [TokenTree::Ident(word), TokenTree::Ident(_), TokenTree::Group(_), ..] if word == "mod");
            at += if is_inline { 3 } else { 1 };
        }
    }

    fn module(&mut self, after: &[TokenTree], path: &str, folder: &str, module: &mut Vec<String>) {
        let [TokenTree::Ident(name), next, ..] = after else { return };
        let name = name.to_string();
        if module.is_empty() {
            self.modules.insert(name.clone());
        }
        let below = format!("{folder}/{name}");
        module.push(name);
        match next {
            TokenTree::Group(group) => self.scan(&inner(group.stream()), path, &below, module),
            _ if self.tree.contains_key(&format!("{below}.rs")) => {
                self.file(&format!("{below}.rs"), module, false)
            }
            _ if self.tree.contains_key(&format!("{below}/mod.rs")) => {
                self.file(&format!("{below}/mod.rs"), module, true)
            }
            _ => {}
        }
        module.pop();
    }
}

fn tokens(text: &str) -> Vec<TokenTree> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    inner(text.parse().unwrap_or_else(|error| panic!("no Rust: {error}: {text:.200}")))
}

fn inner(stream: TokenStream) -> Vec<TokenTree> {
    stream.into_iter().collect()
}

fn is_colons(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [TokenTree::Punct(a), TokenTree::Punct(b), ..] if a.as_char() == ':' && b.as_char() == ':')
}

/// An attribute `#[cfg(test)]` or `#[cfg(all(test, …))]`, or `#[test]`.
fn is_of_tests(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(attribute), ..] = tokens else { return false };
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    hash.as_char() == '#'
        && (["cfg(test)", "test"].contains(&text.as_str()) || text.starts_with("cfg(all(test,"))
}

/// Number of tokens of an item, with its attributes.
fn item_len(tokens: &[TokenTree]) -> usize {
    let mut at = 0;
    while matches!(&tokens[at..], [TokenTree::Punct(hash), TokenTree::Group(_), ..] if hash.as_char() == '#')
    {
        at += 2;
    }
    let is_use =
        tokens[at..].iter().take(3).any(|token| matches!(token, TokenTree::Ident(word) if word == "use"));
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !is_use,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    };
    tokens[at..].iter().position(ends).map_or(tokens.len(), |end| at + end + 1)
}

/// A path, or a tree of them, as lists of segments; an alias stands for the name that it hides.
fn flatten(tokens: &[TokenTree], before: &[String], out: &mut Vec<Vec<String>>) {
    let mut path = before.to_vec();
    let mut rest = tokens;
    loop {
        match rest {
            [TokenTree::Ident(name), after @ ..] => {
                path.push(name.to_string());
                rest = after;
                if let [TokenTree::Ident(alias), TokenTree::Ident(name), ..] = after
                    && alias == "as"
                {
                    path.push(name.to_string());
                    break;
                }
            }
            [TokenTree::Group(group), ..] if group.delimiter() == Delimiter::Brace => {
                let inside = inner(group.stream());
                let is_comma =
                    |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
                inside
                    .split(is_comma)
                    .filter(|part| !part.is_empty())
                    .for_each(|part| flatten(part, &path, out));
                return;
            }
            [TokenTree::Punct(star), ..] if star.as_char() == '*' => {
                path.push("*".to_owned());
                break;
            }
            _ => break,
        }
        if !is_colons(rest) {
            break;
        }
        rest = &rest[2..];
    }
    out.push(path);
}

/// A path as the root sees it.
fn absolute(module: &[String], path: &[String]) -> Vec<String> {
    let mut base = module.to_vec();
    let mut rest = path;
    if path[0] == "crate" {
        (base, rest) = (Vec::new(), &path[1..]);
    }
    while let [word, after @ ..] = rest
        && ["self", "super"].contains(&word.as_str())
    {
        if word == "super" {
            base.pop();
        }
        rest = after;
    }
    base.extend_from_slice(rest);
    base
}
