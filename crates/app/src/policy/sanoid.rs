//! Policies from a `sanoid.conf`, as far as they have a counterpart here.
//!
//! Sections name datasets or templates; a dataset's settings are sanoid's defaults, those of the section above that is
//! `recursive`, its templates in their order, and its own, the later before the earlier. From these the policy follows
//! that each dataset is to have, and then the properties that have to be set, since here policies are inherited.

use super::Period;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A line that has no counterpart here.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Note {
    /// Its number, from 1.
    pub line: usize,
    /// Its section.
    pub section: String,
    /// `key = value`; empty where it is about the section.
    pub setting: String,
    /// The reason, and what is done instead.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: [{}] ", self.line, self.section)?;
        match self.setting.as_str() {
            "" => f.write_str(&self.why),
            setting => write!(f, "{setting}: {}", self.why),
        }
    }
}

/// A line that no configuration can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Its number, from 1.
    pub line: usize,
    /// The reason.
    pub why: String,
}

/// A value, and the line that it is on; 0 for sanoid's defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    value: String,
    line: usize,
}

type Settings = BTreeMap<String, Setting>;

/// A section of the file.
#[derive(Debug, Clone)]
struct Section {
    name: String,
    line: usize,
    settings: Settings,
}

/// A file that was read.
#[derive(Debug, Clone)]
pub struct Config {
    sections: Vec<Section>,
    notes: Vec<Note>,
}

/// Values of a dataset's properties.
type Values = BTreeMap<&'static str, String>;

/// Properties to set, and lines that have no counterpart.
#[derive(Debug, Clone, Default)]
pub struct Import {
    /// By dataset, parents first.
    pub set: Vec<(String, BTreeMap<String, String>)>,
    /// In the order of their lines.
    pub notes: Vec<Note>,
}

/// Sanoid's defaults.
const DEFAULTS: [(&str, &str); 8] = [
    ("frequently", "0"),
    ("hourly", "48"),
    ("daily", "90"),
    ("weekly", "0"),
    ("monthly", "6"),
    ("yearly", "0"),
    ("autosnap", "yes"),
    ("autoprune", "yes"),
];
/// Settings that count in the section itself alone, not in its templates.
const OWN: [&str; 3] = ["use_template", "recursive", "path"];
/// One that datasets below do not take over.
const CHILDREN_ONLY: &str = "process_children_only";

fn is_template(section: &str) -> bool {
    section.starts_with("template_")
}

fn is_true(value: &str) -> bool {
    ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str())
}

fn is_recursive(value: &str) -> bool {
    is_true(value) || value == "zfs"
}

/// Reason why a setting has no counterpart.
fn why_not(key: &str, value: &str) -> Option<&'static str> {
    let known = |keys: &[&str]| keys.contains(&key);
    if DEFAULTS.iter().any(|(name, _)| *name == key)
        || OWN.contains(&key)
        || key == CHILDREN_ONLY
        || value.is_empty()
    {
        return None;
    }
    if known(&["hourly_min", "daily_hour", "daily_min", "weekly_wday", "weekly_hour", "weekly_min"])
        || known(&["monthly_mday", "monthly_hour", "monthly_min", "yearly_mon", "yearly_mday"])
        || known(&["yearly_hour", "yearly_min"])
    {
        return Some("not honoured: a snapshot is taken at the beginning of each period, in UTC");
    }
    if key == "frequent_period" {
        return (value != "15").then_some("not honoured: snapshots_frequently are taken every 15 minutes");
    }
    if key.ends_with("_warn") || key.ends_with("_crit") || key.starts_with("monitor") {
        return Some("not honoured: nothing is monitored here; larder policy show tells what there is");
    }
    if key.ends_with("_script")
        || known(&["script_timeout", "no_inconsistent_snapshot", "force_post_snapshot_script"])
    {
        return Some("not honoured: no scripts are run");
    }
    if known(&["min_percent_free", "prune_defer"]) {
        return Some("not honoured: snapshots are destroyed by their number, however much space is free");
    }
    if key == "skip_children" {
        return Some("not honoured: datasets below inherit");
    }
    Some("not known")
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The first line that is neither a section, nor a setting in one, nor a comment.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut config = Self { sections: Vec::new(), notes: Vec::new() };
        for (at, text) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let (line, text) = (at + 1, text.trim());
            if text.is_empty() || text.starts_with(['#', ';']) {
                continue;
            }
            let malformed = |why: &str| Malformed { line, why: why.to_owned() };
            if let Some(rest) = text.strip_prefix('[') {
                let name = rest.strip_suffix(']').map(str::trim).filter(|name| !name.is_empty());
                let name = name.ok_or_else(|| malformed("a section is [NAME]"))?.to_owned();
                if !config.sections.iter().any(|section| section.name == name) {
                    config.sections.push(Section { name, line, settings: Settings::new() });
                    continue;
                }
                // A section that goes on: the last one is where settings go.
                let at = config.sections.iter().position(|section| section.name == name);
                let again = config.sections.remove(at.expect("it was just found"));
                config.sections.push(again);
                continue;
            }
            let Some((key, value)) = text.split_once('=') else {
                return Err(malformed("neither [SECTION] nor KEY = VALUE"));
            };
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            let section = config.sections.last_mut();
            let section = section.ok_or_else(|| malformed("it stands before the first [SECTION]"))?;
            if section.name == "version" {
                continue;
            }
            if let Some(why) = why_not(&key, &value) {
                let (setting, why) = (format!("{key} = {value}"), why.to_owned());
                config.notes.push(Note { line, section: section.name.clone(), setting, why });
            }
            section.settings.insert(key, Setting { value, line });
        }
        Ok(config)
    }

    fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Settings of a section on top of those that it begins with.
    fn settle(&self, base: Settings, section: &Section, notes: &mut Vec<Note>) -> Settings {
        let mut all = base;
        let mut add = |of: &Section| {
            let given = of.settings.iter().filter(|(key, _)| !OWN.contains(&key.as_str()));
            all.extend(given.map(|(key, setting)| (key.clone(), setting.clone())));
        };
        if let Some(used) = section.settings.get("use_template") {
            for name in used.value.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                match self.section(&format!("template_{name}")) {
                    Some(template) => {
                        if template.settings.get("recursive").is_some_and(|one| is_recursive(&one.value)) {
                            let why =
                                "has no effect in a template, nor has it in sanoid; put it into the section";
                            notes.push(template.note("recursive", why));
                        }
                        add(template);
                    }
                    None if name == "default" => {}
                    None => {
                        notes.push(section.note("use_template", &format!("there is no [template_{name}]")))
                    }
                }
            }
        }
        add(section);
        all
    }

    /// Properties that give `datasets` (all of them, with the values of their own) the policies of the file.
    pub fn import(&self, datasets: &BTreeMap<String, BTreeMap<String, String>>) -> Import {
        let mut notes = self.notes.clone();
        let mut names: Vec<&String> = datasets.keys().collect();
        names.sort_by(|a, b| a.split('/').cmp(b.split('/')));
        let mut sections = BTreeMap::new();
        for section in self.sections.iter().filter(|one| !is_template(&one.name) && one.name != "version") {
            let path = section.settings.get("path").map_or("", |path| path.value.as_str());
            let path = if path.is_empty() { &section.name } else { path };
            match datasets.contains_key(path) {
                true => drop(sections.insert(path.to_owned(), section)),
                false => {
                    let why = format!("there is no dataset '{path}' in an imported pool; nothing is set");
                    notes.push(section.about(&why));
                }
            }
        }
        let mut default: Settings = DEFAULTS
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Setting { value: (*value).to_owned(), line: 0 }))
            .collect();
        if let Some(template) = self.section("template_default") {
            default = self.settle(default, template, &mut notes);
        }
        // Of each dataset: what those below take over, and the policy; none where sanoid left it alone.
        let mut passed: BTreeMap<&str, Settings> = BTreeMap::new();
        let mut wanted: BTreeMap<&str, Option<Values>> = BTreeMap::new();
        for name in &names {
            let above = name.rsplit_once('/').map_or("", |(above, _)| above);
            let base = passed.get(above).cloned();
            let from_above = base.clone();
            let (settings, is_recursive, is_skipped) = match sections.get(*name) {
                None => (base.clone(), base.is_some(), false),
                Some(section) => {
                    let own = section.settings.get("recursive");
                    let is_recursive = own.is_some_and(|one| is_recursive(&one.value)) || base.is_some();
                    let settled = self.settle(base.unwrap_or_else(|| default.clone()), section, &mut notes);
                    let is_skipped = settled.get(CHILDREN_ONLY).is_some_and(|one| is_true(&one.value));
                    (Some(settled), is_recursive, is_skipped)
                }
            };
            let Some(mut settings) = settings else { continue };
            let values = match sections.get(*name) {
                Some(section) => section.values(&settings, &mut notes),
                None => values(&settings).unwrap_or(None),
            };
            if let (Some(section), true) = (sections.get(*name), values.is_some()) {
                if is_skipped {
                    let why =
                        "datasets that are made below it later do not get the policy: larder policy set";
                    notes.push(section.noted(&settings, CHILDREN_ONLY, why));
                } else if !is_recursive && names.iter().any(|other| is_below(other, name)) {
                    let why = "datasets that are made below it later inherit the policy; those that are there do not";
                    notes.push(section.about(why));
                }
            }
            wanted.insert(name, if is_skipped { None } else { values });
            // A section that is not recursive is about its dataset alone.
            let own = sections.get(*name).and_then(|section| section.settings.get("recursive"));
            if own.is_some_and(|one| self::is_recursive(&one.value)) {
                settings.remove(CHILDREN_ONLY);
                passed.insert(name, settings);
            } else if let Some(above) = from_above {
                passed.insert(name, above);
            }
        }
        let set = to_set(&names, datasets, &wanted);
        notes.sort_by_key(|note| note.line);
        notes.dedup();
        Import { set, notes }
    }
}

fn is_below(name: &str, above: &str) -> bool {
    name.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// The setting that keeps a policy from being taken over, and why.
type Unlike = (&'static str, String);

/// The policy of settings; none where nothing is to be taken or destroyed.
fn values(settings: &Settings) -> Result<Option<Values>, Unlike> {
    let is = |key: &str| settings.get(key).is_some_and(|setting| is_true(&setting.value));
    match (is("autosnap"), is("autoprune")) {
        (false, false) => return Ok(None),
        (false, true) => {
            let why = "not honoured: only snapshots that are taken here are destroyed here; no policy is set";
            return Err(("autosnap", why.to_owned()));
        }
        (true, false) => {
            let why = "not honoured: a policy would destroy old snapshots; no policy is set";
            return Err(("autoprune", why.to_owned()));
        }
        (true, true) => {}
    }
    let mut values = Values::new();
    for period in Period::ALL {
        let Some(setting) = settings.get(period.word()) else { continue };
        let known = larder_pool::property::dataset(period.property()).expect("each period has its property");
        // Empty is none of them, for sanoid.
        let given = if setting.value.is_empty() { "0" } else { &setting.value };
        let exact = known.parse(given).ok().filter(|exact| exact != "none");
        let value = exact.ok_or_else(|| (period.word(), "not a number; no policy is set".to_owned()))?;
        values.insert(period.property(), value);
    }
    Ok(Some(values))
}

impl Section {
    /// About one of its settings.
    fn note(&self, key: &str, why: &str) -> Note {
        self.noted(&self.settings, key, why)
    }

    /// About one of those that apply to it.
    fn noted(&self, settings: &Settings, key: &str, why: &str) -> Note {
        let setting = settings.get(key);
        Note {
            line: setting.map_or(self.line, |setting| setting.line),
            section: self.name.clone(),
            setting: setting.map_or_else(String::new, |setting| format!("{key} = {}", setting.value)),
            why: why.to_owned(),
        }
    }

    /// About the whole of it.
    fn about(&self, why: &str) -> Note {
        Note { line: self.line, section: self.name.clone(), setting: String::new(), why: why.to_owned() }
    }

    /// The policy of its settings; tells of the one that keeps it from being taken over.
    fn values(&self, settings: &Settings, notes: &mut Vec<Note>) -> Option<Values> {
        values(settings).unwrap_or_else(|(key, why)| {
            notes.push(self.noted(settings, key, &why));
            None
        })
    }
}

/// Properties to set so that each dataset has what it is to have, by inheritance where that does it.
fn to_set(
    names: &[&String],
    datasets: &BTreeMap<String, BTreeMap<String, String>>,
    wanted: &BTreeMap<&str, Option<Values>>,
) -> Vec<(String, BTreeMap<String, String>)> {
    let properties: BTreeSet<_> = Period::ALL.map(Period::property).into();
    let mut have: BTreeMap<&str, Values> = BTreeMap::new();
    let mut set = Vec::new();
    for &name in names {
        let above = name.rsplit_once('/').map_or("", |(above, _)| above);
        let mut values = have.get(above).cloned().unwrap_or_default();
        let own = &datasets[name];
        values.extend(properties.iter().filter_map(|&property| Some((property, own.get(property)?.clone()))));
        let is_managed = |name: &str| matches!(wanted.get(name), Some(Some(_)));
        // A dataset that sanoid leaves alone is told to have none only where it would inherit one of the file.
        let target = match wanted.get(name.as_str()) {
            Some(Some(values)) => Some(values.clone()),
            _ if names.iter().any(|above| is_below(name, above) && is_managed(above)) => Some(Values::new()),
            Some(None) | None => None,
        };
        if let Some(target) = target {
            let mut changes = BTreeMap::new();
            for &property in &properties {
                let value = target.get(property).map_or("none", String::as_str);
                if values.get(property).map_or("none", String::as_str) != value {
                    changes.insert(property.to_owned(), value.to_owned());
                    values.insert(property, value.to_owned());
                }
            }
            if !changes.is_empty() {
                set.push((name.clone(), changes));
            }
        }
        have.insert(name, values);
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATES: &str = "
[template_production]
\tfrequently = 0
\thourly = 36
\tdaily = 30
\tmonthly = 3
\tyearly = 0
\tautosnap = yes
\tautoprune = yes
[template_demo]
daily = 60
[template_backup]
autoprune = yes
autosnap = no
[template_ignore]
autoprune = no
autosnap = no
monitor = no
";

    fn import(text: &str, datasets: &[&str]) -> Import {
        let datasets = datasets.iter().map(|name| ((*name).to_owned(), BTreeMap::new())).collect();
        Config::parse(&format!("{text}{TEMPLATES}")).unwrap().import(&datasets)
    }

    /// `DATASET hourly=36 daily=30`, without those that sanoid has as 0.
    fn shown(import: &Import) -> Vec<String> {
        let one = |(name, values): &(String, BTreeMap<String, String>)| {
            let of = |period: &Period| {
                let value = values.get(period.property()).filter(|value| *value != "0")?;
                Some(format!(" {period}={value}"))
            };
            format!("{name}{}", Period::ALL.iter().filter_map(of).collect::<String>())
        };
        import.set.iter().map(one).collect()
    }

    fn notes(import: &Import) -> Vec<String> {
        let here = import.notes.iter().filter(|note| !note.setting.starts_with("monitor"));
        here.map(ToString::to_string).collect()
    }

    #[test]
    fn templates_apply_in_order_and_the_section_has_the_last_word() {
        let text = "# a comment\n; another\n[tank/data]\n use_template = production,demo\n hourly = 12\n monthly = 1\n";
        let found = import(text, &["tank", "tank/data", "tank/other"]);
        assert_eq!(shown(&found), ["tank/data hourly=12 daily=60 monthly=1"]);
        assert_eq!(found.set[0].1["snapshots_yearly"], "0", "which prunes, as it does there");
        assert_eq!(notes(&found), [""; 0]);
        // Without a template, sanoid's defaults; a default template changes them.
        assert_eq!(shown(&import("[tank]\n", &["tank"])), ["tank hourly=48 daily=90 monthly=6"]);
        let found = import("[tank]\n[template_default]\nhourly = 7\n", &["tank"]);
        assert_eq!(shown(&found), ["tank hourly=7 daily=90 monthly=6"]);
    }

    #[test]
    fn recursion_is_inheritance_and_its_lack_is_told() {
        let datasets = ["tank", "tank/a", "tank/a/x", "tank/a/x/y", "tank/b"];
        for recursive in ["yes", "zfs"] {
            let text = format!(
                "[tank/a]\nuse_template = production\nrecursive = {recursive}\n[tank/a/x]\nuse_template = demo\n"
            );
            let found = import(&text, &datasets);
            // A section that is not recursive is about its dataset alone.
            assert_eq!(shown(&found)[..2], ["tank/a hourly=36 daily=30 monthly=3", "tank/a/x daily=60"]);
            assert!(shown(&found)[2].starts_with("tank/a/x/y daily=30"), "{found:?}");
            assert_eq!(notes(&found), [""; 0]);
        }
        let found = import("[tank/a]\nuse_template = production\n", &datasets);
        assert_eq!(shown(&found)[0], "tank/a hourly=36 daily=30 monthly=3");
        assert!(shown(&found)[1].starts_with("tank/a/x frequently=none hourly=none"), "{found:?}");
        assert_eq!(found.set.len(), 2, "tank/a/x/y inherits that");
        assert!(
            notes(&found)[0].starts_with("1: [tank/a] datasets that are made below it later"),
            "{found:?}"
        );

        let text = "[tank]\nuse_template = production\nrecursive = yes\nprocess_children_only = yes\n";
        let found = import(text, &datasets);
        let expected = ["tank/a hourly=36 daily=30 monthly=3", "tank/b hourly=36 daily=30 monthly=3"];
        assert_eq!(shown(&found), expected);
        assert!(notes(&found)[0].starts_with("4: [tank] process_children_only = yes: "), "{found:?}");
        // In a template the one counts and the other does not, as there.
        let text =
            "[tank]\nuse_template = odd\n[template_odd]\nrecursive = yes\nprocess_children_only = yes\n";
        let found = import(text, &datasets);
        assert!(found.set.is_empty(), "{found:?}");
        assert!(
            notes(&found)[0].starts_with("4: [template_odd] recursive = yes: has no effect"),
            "{found:?}"
        );
        let found = import(&text.replace("use_t", "recursive = yes\nuse_t"), &datasets);
        assert_eq!(
            shown(&found),
            ["tank/a hourly=48 daily=90 monthly=6", "tank/b hourly=48 daily=90 monthly=6"]
        );
    }

    #[test]
    fn each_line_without_a_counterpart_is_named_with_its_section() {
        let text = "[tank]\nuse_template = production, absent\ndaily_hour = 3\npre_snapshot_script = /bin/x\n\
                    hourly_warn = 90m\nmin_percent_free = 10\nfrequent_period = 5\nfoo = bar\npath =\n[gone/x]\n";
        let found = import(text, &["tank"]);
        let lines: Vec<_> = found.notes.iter().map(|note| (note.line, note.section.as_str())).collect();
        let expected = [2, 3, 4, 5, 6, 7, 8].map(|line| (line, "tank"));
        assert_eq!(lines[..7], expected);
        assert_eq!(lines[7], (10, "gone/x"));
        assert!(notes(&found)[6].ends_with("[tank] foo = bar: not known"), "{found:?}");
        assert_eq!(shown(&found), ["tank hourly=36 daily=30 monthly=3"]);
    }

    #[test]
    fn a_policy_that_would_destroy_more_or_less_than_sanoid_is_not_set() {
        let found = import("[tank]\nuse_template = backup\n", &["tank", "tank/a"]);
        assert!(found.set.is_empty());
        assert!(notes(&found)[0].contains("[tank] autosnap = no: not honoured"), "{found:?}");
        let found = import("[tank]\nautoprune = no\n", &["tank"]);
        assert!(found.set.is_empty());
        assert_eq!(found.notes[0].line, 2);
        let found = import("[tank]\nhourly = many\n", &["tank"]);
        assert!(
            found.set.is_empty() && notes(&found)[0].starts_with("2: [tank] hourly = many: "),
            "{found:?}"
        );
        // One that is to be left alone is, without a word.
        let text = "[tank]\nuse_template = production\nrecursive = yes\n[tank/swap]\nuse_template = ignore\n";
        let found = import(text, &["tank", "tank/a", "tank/swap"]);
        assert_eq!(found.set.len(), 2);
        assert!(shown(&found)[1].starts_with("tank/swap frequently=none"), "{found:?}");
        assert_eq!(notes(&found), [""; 0]);
    }

    #[test]
    fn values_that_are_there_are_not_set_again_and_do_not_stand_in_the_way() {
        let config = Config::parse("[tank]\nrecursive = yes\nfrequently = 0\n").unwrap();
        let own = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let mut datasets: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        datasets.insert("tank".into(), BTreeMap::new());
        datasets.insert("tank/a".into(), own(&[("snapshots_hourly", "5")]));
        let found = config.import(&datasets);
        assert_eq!(shown(&found), ["tank hourly=48 daily=90 monthly=6", "tank/a hourly=48"]);
        for (name, values) in found.set {
            datasets.get_mut(&name).unwrap().extend(values);
        }
        assert!(config.import(&datasets).set.is_empty());
    }

    #[test]
    fn a_section_may_come_in_parts_and_a_broken_line_is_told() {
        let found = import("[tank]\nhourly = 1\n[other]\n[tank]\ndaily = 2\n", &["tank"]);
        assert_eq!(shown(&found), ["tank hourly=1 daily=2 monthly=6"]);
        for (text, line) in [("[tank]\nhourly 1\n", 2), ("hourly = 1\n", 1), ("\n[tank\n", 2), ("[]\n", 1)] {
            assert_eq!(Config::parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
