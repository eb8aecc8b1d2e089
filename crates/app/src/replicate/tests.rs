use super::*;

fn marks(all: &[(&str, u64)]) -> Vec<Mark> {
    let mark =
        |&(name, guid): &(&str, u64)| Mark { name: name.into(), guid, commit: guid, ..Mark::default() };
    all.iter().map(mark).collect()
}

fn dataset(snapshots: &[(&str, u64)], bookmarks: &[(&str, u64)]) -> Dataset {
    Dataset { snapshots: marks(snapshots), bookmarks: marks(bookmarks), ..Dataset::default() }
}

fn mark(name: &str, guid: u64) -> Mark {
    marks(&[(name, guid)]).remove(0)
}

#[test]
fn what_is_not_there_is_sent_whole() {
    let source = dataset(&[("a", 1), ("b", 2)], &[]);
    assert_eq!(choose(&source, None, false), Choice::From(Base::Nothing, Beyond::Stays));
    assert_eq!(missing(&source, &Base::Nothing).len(), 2);
}

#[test]
fn it_goes_on_from_the_newest_of_the_target_by_guid_and_not_by_name() {
    let source = dataset(&[("a", 1), ("renamed", 2), ("c", 3)], &[("b", 2)]);
    let target = dataset(&[("a", 1), ("b", 2)], &[]);
    let base = Base::Snapshot(mark("renamed", 2));
    assert_eq!(choose(&source, Some(&target), false), Choice::From(base.clone(), Beyond::Stays));
    assert_eq!(missing(&source, &base), marks(&[("c", 3)]));
    // The same name is not the same snapshot.
    let other = dataset(&[("a", 1), ("renamed", 9)], &[]);
    let diverged = Choice::Diverged { common: mark("a", 1), newest: mark("renamed", 9) };
    assert_eq!(choose(&source, Some(&other), false), diverged);
}

#[test]
fn a_bookmark_serves_where_it_is_of_the_newest_of_the_target_and_no_older_one() {
    let source = dataset(&[("a", 1), ("c", 3), ("d", 4)], &[("b", 2), ("a", 1)]);
    let target = dataset(&[("a", 1), ("b", 2)], &[]);
    let base = Base::Bookmark(mark("b", 2));
    assert_eq!(choose(&source, Some(&target), false), Choice::From(base.clone(), Beyond::Stays));
    assert_eq!(missing(&source, &base), marks(&[("c", 3), ("d", 4)]));
    let strange = dataset(&[("b", 2), ("x", 9)], &[]);
    assert_eq!(choose(&source, Some(&strange), false), Choice::Strange);
    assert_eq!(choose(&source, Some(&strange), true), Choice::Strange);
}

#[test]
fn what_diverged_is_refused_unless_it_may_go() {
    let source = dataset(&[("a", 1), ("b", 2), ("c", 3)], &[]);
    let target = dataset(&[("a", 1), ("b", 2), ("x", 9), ("y", 10)], &[]);
    let refused = Choice::Diverged { common: mark("b", 2), newest: mark("y", 10) };
    assert_eq!(choose(&source, Some(&target), false), refused);
    let forced = Choice::From(Base::Snapshot(mark("b", 2)), Beyond::Goes);
    assert_eq!(choose(&source, Some(&target), true), forced);
}

#[test]
fn what_is_there_without_a_snapshot_is_not_overwritten_unasked() {
    let (source, empty) = (dataset(&[("a", 1)], &[]), Dataset::default());
    assert_eq!(choose(&source, Some(&empty), false), Choice::Occupied);
    assert_eq!(choose(&source, Some(&empty), true), Choice::From(Base::Nothing, Beyond::Goes));
    assert_eq!(choose(&empty, Some(&source), true), Choice::Strange);
}

#[test]
fn all_between_come_in_as_few_streams_as_it_takes() {
    let told = |base: &Base, missing: &[Mark], newest_only| -> Vec<String> {
        let words = |step: Step| match step.from {
            Some((flag, from)) => format!("{flag} {from} {} ({})", step.to, step.count),
            None => format!("{} ({})", step.to, step.count),
        };
        steps(base, missing, newest_only).into_iter().map(words).collect()
    };
    let all = marks(&[("b", 2), ("c", 3), ("d", 4)]);
    let (snapshot, bookmark) = (Base::Snapshot(mark("a", 1)), Base::Bookmark(mark("a", 1)));
    assert_eq!(told(&Base::Nothing, &all, false), ["b (1)", "-I @b d (2)"]);
    assert_eq!(told(&Base::Nothing, &all, true), ["d (1)"]);
    assert_eq!(told(&Base::Nothing, &all[..1], false), ["b (1)"]);
    assert_eq!(told(&snapshot, &all, false), ["-I @a d (3)"]);
    assert_eq!(told(&snapshot, &all, true), ["-i @a d (1)"]);
    assert_eq!(told(&bookmark, &all, false), ["-i #a b (1)", "-I @b d (2)"]);
    assert_eq!(told(&bookmark, &all[..1], false), ["-i #a b (1)"]);
    assert_eq!(told(&snapshot, &[], false), [""; 0]);
}

#[test]
fn no_two_targets_are_remembered_by_one_name() {
    let targets =
        ["nas:tank/x", "nas:tank-x", "nas:tank:x", "NAS:tank/x", "me@nas:tank/x", "nas:tank//x", "nas::tank"];
    let mut names: Vec<_> = targets.iter().map(|target| property_of(target)).collect();
    for name in &names {
        assert!(larder_pool::property::check_user(name, "").is_ok(), "{name}");
    }
    targets.iter().for_each(|target| assert_eq!(target_of(&label_of(target)), *target));
    assert_eq!(target_of("a:zz"), "a:zz");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), targets.len());
    assert_eq!(replicated_through("4711 tank/home@a b"), 4711);
    assert_eq!(replicated_through(""), 0);
    assert_eq!(replicated_through("-"), 0);
}

#[test]
fn own_snapshots_are_known_by_their_names() {
    let name = own_name(jiff::Timestamp::from_millisecond(1_795_000_000_123).unwrap());
    assert!(is_own_name(&name), "{name}");
    for other in
        ["replicate_mine", "replicate_2026-11-25_19:30:00", "replicate_2026-11-25_19:30:00.123x", "x"]
    {
        assert!(!is_own_name(other), "{other}");
    }
}

#[test]
fn only_old_snapshots_of_this_target_go() {
    let own = |second: u64, taken_for: &str| Mark {
        name: format!("replicate_2026-11-25_19:30:0{second}.000"),
        guid: second,
        commit: second,
        taken_for: taken_for.into(),
        ..Mark::default()
    };
    let all = [own(1, "nas"), own(2, "other"), own(3, "nas"), own(4, "nas"), own(5, "nas")];
    let mut source = Dataset { snapshots: all.to_vec(), ..Dataset::default() };
    source.snapshots.insert(1, mark("mine", 9));
    let names = |marks: &[&Mark]| marks.iter().map(|mark| mark.name.clone()).collect::<Vec<_>>();
    // The last one is not replicated yet.
    assert_eq!(old_at_source(&source, "nas", &all[3], 1), names(&[&all[0], &all[2]]));
    assert_eq!(old_at_source(&source, "nas", &all[3], 2), names(&[&all[0]]));
    assert_eq!(old_at_source(&source, "nas", &all[3], 9), names(&[]));
    assert_eq!(old_at_source(&source, "nas", &all[3], 0), names(&[&all[0], &all[2]]), "never the common one");

    let target = source.clone();
    source.snapshots.retain(|mark| mark.guid == 3 || mark.guid == 4);
    assert_eq!(old_at_target(&source, &target, &all[3]), names(&[&all[0], &all[1]]));
    assert_eq!(old_at_target(&source, &target, &mark("none", 77)), names(&[]));
}

#[test]
fn a_table_becomes_datasets_by_their_paths() {
    let table = "tank/a\tfilesystem\t7\t1\t-\t-\t-\t5 tank/a@x\n\
                 tank/a@x\tsnapshot\t8\t5\t1\t-\t-\t5 tank/a@x\n\
                 tank/a@replicate y\tsnapshot\t9\t6\t0\t-\tnas\t-\n\
                 tank/a#x\tbookmark\t8\t5\t-\t-\t-\t-\n\
                 tank/a/b c\tfilesystem\t10\t2\t-\t1-ab-cd\t-\t-\n\
                 odd line\n";
    let datasets = parse(table, "tank/a");
    assert_eq!(datasets.keys().collect::<Vec<_>>(), ["", "b c"]);
    let top = &datasets[""];
    assert_eq!((top.snapshots.len(), top.bookmarks.len(), top.token.as_deref()), (2, 1, None));
    assert_eq!((top.snapshots[0].is_held, top.snapshots[1].is_held), (true, false));
    assert_eq!((top.snapshots[1].name.as_str(), top.snapshots[1].taken_for.as_str()), ("replicate y", "nas"));
    assert_eq!(replicated_through(&top.replicated), 5);
    assert_eq!(datasets["b c"].token.as_deref(), Some("1-ab-cd"));
}

#[test]
fn what_was_renamed_out_of_a_tree_is_known_by_what_it_remembers() {
    let table = "tank/home\t9 tank/home@b\ntank/home/x\t9 tank/home/x@b\ntank/home/renamed\t9 tank/home/before@b\n\
                 tank/old\t9 tank/home/y@b\ntank/older\t0 tank/home/y/a b\ntank/homes\t9 tank/homes@b\n\
                 tank/home2\t9 tank/home@b\ntank/other\t9 tank/others/z@b\ntank/odd\tnonsense\n\
                 tank/$(x)\t9 tank/home/z@b\n";
    let found = moved_out(table, "tank/home");
    let found: Vec<_> = found.iter().map(|(name, path)| (name.as_str(), path.as_str())).collect();
    assert_eq!(found, [("tank/old", "y"), ("tank/older", "y/a b"), ("tank/home2", "")]);
}
