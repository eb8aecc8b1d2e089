//! `pool dedup --folders`: where sharing pays, and where deduplication does not.

use super::diff::write_name;
use super::table::{Column, Table};
use crate::api::trace::{FolderSharing, PoolFolders, SharingByFolder};
use larder_pool::property::format_size;

/// Folders that are told, those first that save most.
const SHOWN: usize = 20;
/// Deduplication does not pay where it saves less than so many percent.
const PAYS_PERCENT: u64 = 1;
/// It is told of folders that have so many percent of all.
const SIZE_PERCENT: u64 = 1;
/// Of these, so many at most.
const UNPAID: usize = 10;
/// Name of what is in no folder.
const ELSEWHERE: &str = "(elsewhere)";

/// All of it.
pub fn text(pool: &PoolFolders, exact: bool) -> String {
    let Some(found) = &pool.found else {
        return format!(
            "\nfolders: not known; they are counted by a trace since import: larder pool dedup --folders {}\n",
            pool.name
        );
    };
    let size = |bytes: u64| if exact { bytes.to_string() } else { format_size(bytes) };
    format!("\n{}{}{}", table(found, size), unpaid(found, size), gaps(found, &pool.name))
}

fn saved(of: &FolderSharing) -> u64 {
    of.allocated.saturating_sub(of.share)
}

/// The folders that save something.
fn table(found: &SharingByFolder, size: impl Fn(u64) -> String) -> String {
    let mut saving: Vec<&FolderSharing> = found.folders.iter().filter(|of| saved(of) > 0).collect();
    if saving.is_empty() {
        return "no folder saves anything by sharing\n".to_owned();
    }
    saving.sort_by_key(|of| (std::cmp::Reverse(saved(of)), &of.dataset, shown(of)));
    let heads = ["LSIZE", "DSIZE", "SHARE", "SAVED"].map(|head| Column::right(head, 0));
    let names = ["DATASET", "FOLDER"].map(Column::left);
    let mut table = Table::new(names.into_iter().chain(heads).collect());
    for of in saving.iter().take(SHOWN) {
        let numbers = [of.logical, of.allocated, of.share, saved(of)].map(&size);
        table.row([of.dataset.clone(), shown(of)].into_iter().chain(numbers).collect());
    }
    let mut out = table.render(false);
    let more = saving.get(SHOWN..).unwrap_or_default();
    if !more.is_empty() {
        let saved = size(more.iter().map(|of| saved(of)).sum());
        out += &format!("{} more save {saved} together; -j tells all\n", more.len());
    }
    out
}

fn shown(of: &FolderSharing) -> String {
    let Some(path) = &of.path else { return ELSEWHERE.to_owned() };
    let mut name = Vec::new();
    write_name(&mut name, path.bytes(), false);
    String::from_utf8_lossy(&name).into_owned()
}

/// Whether a path is another one or below it.
fn is_within(path: &[u8], above: &[u8]) -> bool {
    above == b"/" || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// The topmost folders of size for which deduplication does next to nothing, with all that is in them.
fn unpaid(found: &SharingByFolder, size: impl Fn(u64) -> String) -> String {
    let all: u64 = found.folders.iter().map(|of| of.allocated).sum();
    let path = |of: &FolderSharing| of.path.as_ref().map(|path| path.bytes().to_vec());
    let named: Vec<_> =
        found.folders.iter().filter(|of| of.dedup).filter_map(|of| Some((of, path(of)?))).collect();
    let mut told: Vec<(&str, &[u8], String, u64, u64)> = Vec::new();
    // Folders come after those above them.
    for (of, path) in &named {
        let is_mine = |dataset: &str, above: &[u8]| dataset == of.dataset && is_within(path, above);
        if told.iter().any(|(dataset, above, ..)| is_mine(dataset, above)) {
            continue;
        }
        let within = named.iter().filter(|(one, at)| one.dataset == of.dataset && is_within(at, path));
        let (allocated, saves) =
            within.fold((0, 0), |sum, (one, _)| (sum.0 + one.allocated, sum.1 + saved(one)));
        if allocated * 100 >= all * SIZE_PERCENT && saves * 100 < allocated * PAYS_PERCENT {
            told.push((&of.dataset, path, shown(of), allocated, saves));
        }
    }
    if told.is_empty() {
        return String::new();
    }
    told.sort_by_key(|(.., allocated, _)| std::cmp::Reverse(*allocated));
    let mut out = "\n".to_owned();
    for (dataset, _, name, allocated, saves) in told.iter().take(UNPAID) {
        let percent = *saves as f64 * 100.0 / (*allocated).max(1) as f64;
        out += &format!("dedup pays nothing here: {dataset} {name} {}, {percent:.1} %\n", size(*allocated));
    }
    let (dataset, path, ..) = told[0];
    out += &match path {
        b"/" => format!("without it, writing costs less: larder fs set dedup=off {dataset}\n"),
        _ => format!(
            "in a dataset of its own it does without: larder fs create -o dedup=off {dataset}/NAME, and move it there\n"
        ),
    };
    out
}

/// Reasons why not everything is told.
fn gaps(found: &SharingByFolder, pool: &str) -> String {
    let mut out = String::new();
    if found.unnumbered {
        out += "not all folders were counted apart, they are too many: the others are part of those above them; -d takes fewer levels\n";
    }
    if found.full {
        out += &format!(
            "memory for folders was full: the files that were left are {ELSEWHERE}; more is given by larder pool set memory=SIZE {pool}\n"
        );
    }
    if found.unread {
        out += &format!("some folders cannot be read: what is in them may be {ELSEWHERE}\n");
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::diff::Path;

    fn of(dataset: &str, path: Option<&[u8]>, allocated: u64, share: u64) -> FolderSharing {
        FolderSharing {
            dataset: dataset.into(),
            path: path.map(|path| Path::from(path.to_vec())),
            dedup: true,
            references: 1,
            logical: 2 * allocated,
            allocated,
            share,
        }
    }

    fn found(folders: Vec<FolderSharing>) -> PoolFolders {
        let found = SharingByFolder { depth: 2, folders, ..SharingByFolder::default() };
        PoolFolders { name: "tank".into(), found: Some(found) }
    }

    #[test]
    fn folders_that_save_come_first_and_below_those_where_it_does_not_pay() {
        let off = FolderSharing { dedup: false, ..of("tank/off", Some(b"/"), 900 << 30, 900 << 30) };
        let pool = found(vec![
            of("tank", None, 1 << 30, 1 << 30),
            of("tank", Some(b"/"), 10 << 30, 9 << 30),
            of("tank", Some(b"/films"), 700 << 30, 700 << 30),
            of("tank", Some(b"/films/new ones"), 500 << 30, 499 << 30),
            of("tank", Some(b"/films2"), 1 << 20, 1 << 20),
            of("tank", Some(b"/vm"), 800 << 30, 100 << 30),
            off,
        ]);
        let wanted = "
DATASET  FOLDER               LSIZE  DSIZE  SHARE  SAVED
tank     /vm                  1.56T   800G   100G   700G
tank     /                      20G    10G     9G     1G
tank     /films/new\\0040ones  1000G   500G   499G     1G

dedup pays nothing here: tank /films 1.17T, 0.1 %
in a dataset of its own it does without: larder fs create -o dedup=off tank/NAME, and move it there
";
        assert_eq!(text(&pool, false), wanted);
        assert!(text(&pool, true).contains(&format!("tank /films {}, 0.1 %", 1200u64 << 30)));
    }

    #[test]
    fn a_dataset_in_which_nothing_pays_is_one_line() {
        let folders = (0..30).map(|i| of("tank/a", Some(format!("/{i}").as_bytes()), 1 << 30, 1 << 30));
        let root = of("tank/a", Some(b"/"), 0, 0);
        let pool = found(std::iter::once(root).chain(folders).collect());
        let wanted = "
no folder saves anything by sharing

dedup pays nothing here: tank/a / 30G, 0.0 %
without it, writing costs less: larder fs set dedup=off tank/a
";
        assert_eq!(text(&pool, false), wanted);
    }

    #[test]
    fn many_folders_are_summed_up_and_what_is_not_known_is_told() {
        let folders = (0..25).map(|i| of("tank", Some(format!("/{i:02}").as_bytes()), 2 << 20, 1 << 20));
        let mut pool = found(folders.collect());
        let said = text(&pool, false);
        assert!(said.ends_with("\n5 more save 5M together; -j tells all\n"), "{said}");
        assert!(said.contains("\ntank     /19 ") && !said.contains("/20"), "{said}");
        let found = pool.found.as_mut().unwrap();
        (found.unnumbered, found.full) = (true, true);
        let said = text(&pool, false);
        assert!(
            said.contains("-d takes fewer levels\n") && said.contains("larder pool set memory=SIZE tank\n")
        );
        pool.found = None;
        assert!(text(&pool, false).ends_with(": larder pool dedup --folders tank\n"));
    }

    #[test]
    fn a_path_is_within_another_by_whole_names() {
        for (path, above, is) in [
            ("/ab", "/a", false),
            ("/a/b", "/a", true),
            ("/a", "/a", true),
            ("/", "/a", false),
            ("/a", "/", true),
        ] {
            assert_eq!(is_within(path.as_bytes(), above.as_bytes()), is, "{path} {above}");
        }
    }
}
