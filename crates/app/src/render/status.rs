//! `status`, `check` and the list of what can be imported: views of one struct.

use super::scan::{self, duration};
use super::{date_to_second, short_path};
use crate::api::dedup::DedupStatus;
use crate::api::pass::{PassState, PassStatus, Task};
use crate::api::pool::{
    PoolStatus, ReadCache, RebalanceState, RebalanceStatus, State, Trim, TrimState, Vdev,
};
use crate::api::trace::{TraceState, TraceStatus};
use larder_pool::property::{format_count, format_size};
use std::borrow::Cow;
use std::fmt::Write;

/// Part of the pool's size from which on the gain of a rebalance is told.
const GAIN_PARTS: u64 = 100;

/// Form of the output of `status`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Form {
    /// Name damaged files.
    pub damaged: bool,
    /// Full paths of devices.
    pub paths: bool,
    /// Guids of devices instead of their names.
    pub guids: bool,
    /// Exact counts.
    pub exact: bool,
    /// Say how trims stand.
    pub trim: bool,
}

/// A pool's health; as a number, the exit code of `pool check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// All is well.
    Healthy = 0,
    /// It works, with less redundancy or with damaged files.
    Degraded = 1,
    /// It does not work.
    Faulted = 2,
    /// Nobody knows.
    Unknown = 3,
}

/// A pool's health.
pub fn health(pool: &PoolStatus) -> Health {
    match pool.root.state {
        State::Online if pool.damaged.is_empty() => Health::Healthy,
        State::Online | State::Degraded => Health::Degraded,
        _ => Health::Faulted,
    }
}

/// Whether `status -x` shows it.
pub fn needs_attention(pool: &PoolStatus) -> bool {
    pool.status.is_some() || health(pool) != Health::Healthy
}

/// The line of `check`.
pub fn check_line(pool: &PoolStatus) -> String {
    let word = health_word(health(pool));
    let why = match &pool.status {
        _ if health(pool) == Health::Healthy => String::new(),
        Some(status) => format!(": {status}"),
        None => format!(": {}", errors_line(pool)),
    };
    format!("{}: {word}{why}\n", pool.root.name)
}

/// The word of `check`.
pub fn health_word(health: Health) -> &'static str {
    match health {
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Faulted => "faulted",
        Health::Unknown => "unknown",
    }
}

/// The text of `status`, in the order of zpool's.
pub fn text(pool: &PoolStatus, form: Form) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: &str| writeln!(out, "{label:>6}: {text}").expect("strings take all");
    line("pool", &pool.root.name);
    line("state", &pool.root.state.to_string());
    if let Some(status) = &pool.status {
        line("status", &wrap(status));
    }
    if let Some(action) = &pool.action {
        line("action", action);
    }
    if let Some(see) = &pool.see {
        line("see", see);
    }
    // All that are under way; else the newest that is over.
    let running = pool.scans.iter().filter(|scan| scan.finished.is_none()).count();
    for scan in pool.scans.iter().take(running.max(1)) {
        line("scan", &scan::text(scan));
    }
    if pool.scans.is_empty() {
        line("scan", "none requested");
    }
    if pool.reshaping > 0 {
        let what = format!("{} of what was stored before the devices changed", format_size(pool.reshaping));
        let why = pool.reshaping_stuck.iter().map(|why| format!("; {why}; it is tried again and again"));
        line("moving", &wrap(&(what + &why.collect::<String>())));
    }
    if let Some(of) = &pool.rebalance {
        line("rebalance", &wrap(&rebalance_line(of)));
    }
    let is_moving = pool.rebalance.is_some_and(|of| of.state == RebalanceState::Active);
    if pool.to_gain > 0 && !is_moving && pool.to_gain * GAIN_PARTS > pool.root.size {
        let gain = format_size(pool.to_gain);
        let text = format!("files can take {gain} more after: larder pool rebalance {}", pool.root.name);
        line("growth", &wrap(&text));
    }
    if pool.expand_gain * GAIN_PARTS > pool.root.size {
        let (gain, devices) = (format_size(pool.expand_gain), pool.to_expand.join(" "));
        let text =
            format!("files can take {gain} more after: larder pool online -e {} {devices}", pool.root.name);
        line("growth", &wrap(&text));
    }
    if let Some(trace) = &pool.trace {
        line("trace", &trace_line(trace));
    }
    if let Some(dedup) = pool.dedup {
        line("dedup", &dedup_line(&dedup));
    }
    if let Some(cache) = &pool.read_cache {
        line("cache", &wrap(&cache_line(cache)));
    }
    if let Some(pass) = &pool.pass {
        line("pass", &wrap(&pass_line(pass)));
    }
    if pool.freeing > 0 {
        line("freeing", &format!("{} of what was deleted", format_size(pool.freeing)));
    }
    if pool.trash > 0 {
        let held = format_size(pool.trash);
        line("trash", &format!("{held} that was destroyed and can come back; it counts as available"));
    }
    if pool.cleaned > 0 {
        let (moved, times) = (format_size(pool.cleaned), pool.write_amplification as f64 / 100.0);
        line("clean", &format!("{moved} moved since import, {times:.2} bytes written for each byte stored"));
    }
    line("risk", &wrap(&(risk(pool.survives) + &log_risk(pool))));
    out += "config:\n\n";
    out += &config(pool, form);
    out += "\n";
    if pool.damaged.is_empty() || !form.damaged {
        writeln!(out, "errors: {}", errors_line(pool)).expect("strings take all");
    } else {
        out += "errors: Permanent errors have been detected in the following files:\n\n";
        for file in &pool.damaged {
            writeln!(out, "        {file}").expect("strings take all");
        }
    }
    out
}

fn errors_line(pool: &PoolStatus) -> String {
    match pool.damaged.len() {
        0 => "No known data errors".to_owned(),
        count => format!("{count} data errors, use '-v' for a list"),
    }
}

/// Number of further losses survived, as a clause.
pub fn risk(survives: u32) -> String {
    match survives {
        0 => "no loss of a device is survived".to_owned(),
        1 => "1 more loss is survived, whichever device it is".to_owned(),
        count => format!("{count} more losses are survived, whichever devices they are"),
    }
}

/// The risk of losing the log's devices, if it survives fewer losses than the data.
fn log_risk(pool: &PoolStatus) -> String {
    let weaker = pool.log_survives.filter(|&survives| survives < pool.survives || survives == 0);
    let losses = match weaker {
        None => return String::new(),
        Some(0) => "the log's device is lost".to_owned(),
        Some(survives) => format!("{} devices of the log are lost", survives + 1),
    };
    format!("; if {losses} and the power at once, what was synced since the last commit is lost")
}

/// Wraps prose at 80 columns, the next lines behind a tab as zpool does.
fn wrap(text: &str) -> String {
    let mut out = String::new();
    let mut column = 8;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > 8 && column + 1 + width > 80 {
            out += "\n\t";
            column = 8;
        } else if column > 8 {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += width;
    }
    out
}

/// Progress of a pass over what is stored.
/// `12.3G moved at 120M/s, 30G left, 00:04:10 to go, since …`.
pub fn rebalance_line(of: &RebalanceStatus) -> String {
    let (moved, left) = (format_size(of.moved), format_size(of.left));
    let ended = of.finished.map(super::date_to_second).unwrap_or_default();
    match of.state {
        RebalanceState::Active => {
            let rate = of.rate.map_or_else(String::new, |rate| format!(" at {}/s", format_size(rate)));
            let to_go = of.rate.map_or_else(String::new, |rate| {
                let seconds = i64::try_from(of.left / rate.max(1)).unwrap_or(i64::MAX);
                format!(", {} to go", scan::duration(seconds))
            });
            format!("{moved} moved{rate}, {left} left{to_go}, since {}", super::date_to_second(of.started))
        }
        RebalanceState::Done => format!("done on {ended}, {moved} moved"),
        RebalanceState::NoRoom => {
            format!("ended on {ended}, {moved} moved: there was no room to move more to")
        }
        RebalanceState::Stopped => format!("stopped on {ended}, {moved} moved"),
    }
}

fn pass_line(pass: &PassStatus) -> String {
    let percent = pass.examined.saturating_mul(100).checked_div(pass.total).unwrap_or(100).min(100);
    let (doing, verb) = match pass.task {
        Task::Dedup => ("duplicates are looked for", "dedup"),
        Task::Rewrite => ("records are rewritten", "rewrite"),
        Task::Undedup => ("files get blocks of their own", "undedup"),
        Task::Records => ("files are cut anew", "rewrite --records"),
    };
    let of = pass.datasets.join(" ");
    match pass.state {
        PassState::Stopped => {
            format!("{percent} % of {of} done, stopped; larder fs {verb} {of} goes on with it")
        }
        PassState::Full => {
            format!(
                "{percent} % of {of} done, no room is left; free some, then larder fs {verb} {of} goes on with it"
            )
        }
        _ => format!("{doing} in {of}, {percent} % done"),
    }
}

/// Progress or findings of a trace.
pub fn trace_line(trace: &TraceStatus) -> String {
    let took = trace.finished.map_or(0, |finished| finished.saturating_sub(trace.started).max(0));
    let when = date_to_second(trace.finished.unwrap_or(trace.started));
    match trace.state {
        TraceState::Running => {
            let percent = trace.examined as f64 * 100.0 / trace.total.max(1) as f64;
            let (examined, total) = (trace.examined, trace.total);
            format!("in progress since {when}\n\t{examined} of {total} blocks looked at, {percent:.2}% done")
        }
        TraceState::Stopped => format!("stopped on {when}"),
        TraceState::Failed => {
            format!("failed on {when}: {}", trace.failure.as_deref().unwrap_or("nobody knows why"))
        }
        TraceState::Done => {
            let (live, errors) = (trace.live.blocks, trace.errors());
            let dead = match trace.dead.blocks {
                0 => String::new(),
                blocks => format!(" and {} dead ones ({})", blocks, format_size(trace.dead.bytes)),
            };
            let mut text =
                format!("found {live} blocks{dead} in {} with {errors} errors on {when}", duration(took));
            let unreachable = match trace.lost {
                0 => "had leaked and are freed",
                _ => "are referred to by nothing that can be read",
            };
            for (count, what) in [
                (trace.unreachable.blocks, unreachable),
                (trace.missing, "are referred to and missing"),
                (trace.lost, "are nodes that cannot be read, so that nothing was freed"),
            ] {
                if count > 0 {
                    text += &format!("\n\t{count} {what}");
                }
            }
            if trace.from > 0 {
                text += "\n\tit took up where one was cut short: the errors are those from there on; the next one looks at \
                         everything";
            }
            text
        }
    }
}

/// State of the dedup index, and the duplicates that it misses.
fn dedup_line(dedup: &DedupStatus) -> String {
    let (disk, memory) = (format_size(dedup.disk), format_size(dedup.memory));
    let mut text =
        format!("{} fingerprints, {disk} on disk, {memory} in memory", format_count(dedup.entries));
    if !dedup.awake {
        return text + "; not in use: no dataset has dedup on";
    }
    if dedup.looked_up > 0 {
        let percent = dedup.hits as f64 * 100.0 / dedup.looked_up as f64;
        let (hits, saved) = (format_count(dedup.hits), format_size(dedup.saved));
        text += &format!(
            "\n\t{hits} records ({percent:.1}%) were there already, {saved} not written since import"
        );
    }
    if dedup.sampling > 1 {
        let (of, first) = (dedup.sampling, dedup.sampling - 1);
        text += &format!(
            "\n\tsampled, as memory is short: 1 fingerprint in {of} is kept; about the first {first} records of\n\teach stretch of duplicates are stored again, the rest is found beside those that are kept"
        );
    }
    if let Some(rebuild) = dedup.rebuild {
        let (extents, records) = (rebuild.extents, rebuild.records);
        text += &format!("\n\tbeing rebuilt: {extents} extents looked at, {records} records read");
    } else if dedup.catching_up {
        text += "\n\ttaking up what was stored before the import; duplicates of that may be stored again";
    }
    for (count, what) in [
        (dedup.refused, "look-ups were left out, as reading for them would have taken too long"),
        (dedup.dropped, "fingerprints found no room"),
        (dedup.damaged, "pages of it cannot be read: what they told is stored again; see pool rebuild-index"),
    ] {
        if count > 0 {
            text += &format!("\n\t{count} {what}");
        }
    }
    text
}

/// Use of the devices with copies, in a line; without what is not known yet.
fn cache_line(cache: &ReadCache) -> String {
    let mut parts = Vec::new();
    if let Some(permille) = (cache.hits * 1000).checked_div(cache.hits + cache.misses) {
        parts.push(format!("{:.2} of the reads that memory missed", permille as f64 / 1000.0));
    }
    parts.push(format!("{} of {}", format_size(cache.filled), format_size(cache.size)));
    if let Some([_, twice, _]) = cache.elsewhere {
        parts.push(format!("twice the size: {:.2}", twice as f64 / 1000.0));
    }
    if cache.restoring > 0 {
        parts.push("still finding what earlier imports copied".to_owned());
    }
    parts.join(", ")
}

fn config(pool: &PoolStatus, form: Form) -> String {
    let classed = pool.classes.iter().flat_map(|class| &class.vdevs);
    let others = pool.spares.iter().chain(classed).map(|other| width(other, form, 1)).max();
    let width = width(&pool.root, form, 0).max(others.unwrap_or(0)).max("NAME".len());
    let mut out =
        format!("\t{:<width$}  {:<8} {:>5} {:>5} {:>5}\n", "NAME", "STATE", "READ", "WRITE", "CKSUM");
    let row = |out: &mut String, vdev: &Vdev, depth: usize| {
        let name = format!("{:1$}{2}", "", depth * 2, name(vdev, form));
        let count = |count: u64| if form.exact { count.to_string() } else { format_count(count) };
        write!(
            out,
            "\t{name:<width$}  {:<8} {:>5} {:>5} {:>5}",
            vdev.state,
            count(vdev.read_errors),
            count(vdev.write_errors),
            count(vdev.checksum_errors),
        )
        .expect("strings take all");
        if let Some(note) = &vdev.note {
            write!(out, "  {note}").expect("strings take all");
        }
        if let Some(trim) = vdev.trim.as_ref().and_then(|trim| trim_note(trim, form.trim)) {
            write!(out, "  {trim}").expect("strings take all");
        }
        out.push('\n');
    };
    walk(&pool.root, 0, &mut |vdev, depth| row(&mut out, vdev, depth));
    for class in &pool.classes {
        writeln!(out, "\t{}", class.head).expect("strings take all");
        class.vdevs.iter().for_each(|vdev| walk(vdev, 1, &mut |vdev, depth| row(&mut out, vdev, depth)));
    }
    if !pool.spares.is_empty() {
        out += "\tspares\n";
    }
    for spare in &pool.spares {
        let name = format!("  {}", name(spare, form));
        let note = spare.note.as_ref().map_or_else(String::new, |note| format!("  {note}"));
        writeln!(out, "\t{name:<width$}  {}{note}", spare.state).expect("strings take all");
    }
    out
}

/// State of a trim, in zpool's words; one that goes on is shown unasked, too.
fn trim_note(trim: &Trim, asked: bool) -> Option<String> {
    // All of nothing is all.
    let percent = (trim.trimmed * 100).checked_div(trim.total).unwrap_or(100);
    let at = || trim.time.map(date_to_second).unwrap_or_default();
    Some(match trim.state {
        TrimState::Active if !asked => "(trimming)".to_owned(),
        _ if !asked => return None,
        TrimState::Untrimmed => "(untrimmed)".to_owned(),
        TrimState::Active => format!("({percent}% trimmed, started at {})", at()),
        TrimState::Suspended => format!("({percent}% trimmed, suspended, started at {})", at()),
        TrimState::Complete => format!("(100% trimmed, completed at {})", at()),
        TrimState::Unsupported => "(trim unsupported)".to_owned(),
    })
}

fn name(vdev: &Vdev, form: Form) -> Cow<'_, str> {
    match form {
        Form { guids: true, .. } if vdev.index.is_some() => vdev.guid.to_string().into(),
        Form { paths: true, .. } => vdev.name.as_str().into(),
        _ => short_path(&vdev.name).into(),
    }
}

fn width(vdev: &Vdev, form: Form, depth: usize) -> usize {
    let own = depth * 2 + name(vdev, form).chars().count();
    vdev.children.iter().map(|child| width(child, form, depth + 1)).fold(own, usize::max)
}

fn walk<'a>(vdev: &'a Vdev, depth: usize, visit: &mut impl FnMut(&'a Vdev, usize)) {
    visit(vdev, depth);
    for child in &vdev.children {
        walk(child, depth + 1, visit);
    }
}

/// A pool that can be imported, in zpool's form.
pub fn importable(pool: &PoolStatus) -> String {
    let root = &pool.root;
    let mut out = String::new();
    let mut line = |label: &str, text: &str| writeln!(out, "{label:>7}: {text}").expect("strings take all");
    line("pool", &root.name);
    line("id", &root.guid.to_string());
    line("state", &root.state.to_string());
    if let Some(status) = &pool.status {
        line("status", &wrap(status));
    }
    let action = pool.action.clone().unwrap_or_else(|| format!("larder pool import {}", root.name));
    line("action", &action);
    if let Some(see) = &pool.see {
        line("see", see);
    }
    out += " config:\n\n";
    let form = Form { paths: true, ..Form::default() };
    let classes = pool.classes.iter().map(|class| (class.head.as_str(), &class.vdevs));
    let others: Vec<_> = classes.chain([("spares", &pool.spares)]).collect();
    let widest = others.iter().flat_map(|(_, devices)| *devices).map(|device| width(device, form, 1)).max();
    let width = width(root, form, 0).max(widest.unwrap_or(0));
    let row = |out: &mut String, vdev: &Vdev, depth: usize| {
        let name = format!("{:1$}{2}", "", depth * 2, vdev.name);
        let note = vdev.note.as_ref().map_or_else(String::new, |note| format!("  {note}"));
        writeln!(out, "\t{name:<width$}  {}{note}", vdev.state).expect("strings take all");
    };
    walk(root, 0, &mut |vdev, depth| row(&mut out, vdev, depth));
    for (head, devices) in others.into_iter().filter(|(_, devices)| !devices.is_empty()) {
        writeln!(out, "\t{head}").expect("strings take all");
        devices.iter().for_each(|device| walk(device, 1, &mut |vdev, depth| row(&mut out, vdev, depth)));
    }
    out
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::api::figures::Waits;
    use crate::api::pool::{Class, Io};

    fn vdev(name: &str, kind: &str, state: State, children: Vec<Vdev>) -> Vdev {
        Vdev {
            name: name.into(),
            kind: kind.into(),
            guid: 42,
            index: None,
            path: None,
            state,
            note: None,
            read_errors: 0,
            write_errors: 0,
            checksum_errors: 0,
            size: 0,
            allocated: 0,
            fragmentation: 0,
            io: Io::default(),
            waits: Waits::default(),
            trim: None,
            children,
        }
    }

    #[test]
    fn a_trim_is_told_when_it_is_asked_for_and_while_it_goes_on() {
        let trim = |state, trimmed, total| Trim { state, time: Some(1_800_000_000), trimmed, total };
        let asked = |trim: Trim| trim_note(&trim, true).unwrap();
        let active = trim(TrimState::Active, 42, 100);
        assert!(asked(active).starts_with("(42% trimmed, started at "), "{}", asked(active));
        assert_eq!(trim_note(&active, false).as_deref(), Some("(trimming)"));
        let suspended = asked(trim(TrimState::Suspended, 1, 3));
        assert!(suspended.starts_with("(33% trimmed, suspended, started at "), "{suspended}");
        let done = trim(TrimState::Complete, 0, 0);
        assert!(asked(done).starts_with("(100% trimmed, completed at "), "{}", asked(done));
        assert_eq!(trim_note(&done, false), None);
        assert_eq!(asked(trim(TrimState::Untrimmed, 0, 0)), "(untrimmed)");
        assert_eq!(asked(trim(TrimState::Unsupported, 0, 0)), "(trim unsupported)");
    }

    /// A mirror of which one device is missing.
    pub fn pool() -> PoolStatus {
        let mut missing = vdev("/srv/b", "file", State::Unavail, vec![]);
        missing.note = Some("not found where it was last seen".into());
        missing.read_errors = 1240;
        let disk = vdev("/dev/disk/by-id/sda", "disk", State::Online, vec![]);
        let mut group = vdev("mirror-0", "mirror", State::Degraded, vec![disk, missing]);
        (group.size, group.allocated, group.fragmentation) = (10_200_547_328, 512 << 20, 3);
        let mut root = vdev("tank", "root", State::Degraded, vec![group]);
        (root.size, root.allocated) = (10_200_547_328, 512 << 20);
        root.io = Io { reads: 100, writes: 2000, read_bytes: 10 << 20, written_bytes: 30 << 20 };
        PoolStatus {
            root,
            commit: 7,
            status: Some(
                "One device could not be opened. All data is there: the other device of mirror-0 has it, and the \
                 pool goes on with less redundancy."
                    .into(),
            ),
            action: Some("larder pool online tank /srv/b".into()),
            see: None,
            scans: vec![],
            spares: vec![],
            classes: vec![],
            log_survives: None,
            read_cache: None,
            freeing: 0,
            trash: 0,
            cleaned: 0,
            write_amplification: 100,
            trace: None,
            dedup: None,
            reshaping: 0,
            reshaping_stuck: None,
            rebalance: None,
            to_gain: 0,
            to_expand: Vec::new(),
            expand_gain: 0,
            pass: None,
            survives: 0,
            damaged: vec![],
            uptime_ns: 10_000_000_000,
        }
    }

    /// The same with a device for copies, which is well, and another, which is missing.
    pub fn with_caches() -> PoolStatus {
        let mut well = vdev("/dev/disk/by-id/nvme-a", "disk", State::Online, vec![]);
        (well.size, well.allocated) = (64 << 30, 3 << 30);
        well.checksum_errors = 2;
        well.io = Io { reads: 500, writes: 20, read_bytes: 50 << 20, written_bytes: 20 << 20 };
        let mut missing = vdev("4711", "disk", State::Unavail, vec![]);
        missing.note = Some("was /dev/nvme1n1".into());
        let figures = ReadCache { size: 64 << 30, filled: 3 << 30, ..ReadCache::default() };
        let cache = Class { head: "cache".into(), vdevs: vec![well, missing] };
        PoolStatus { classes: vec![cache], read_cache: Some(figures), ..pool() }
    }

    #[test]
    fn devices_with_copies_have_a_section_and_a_line_of_figures() {
        let pool = with_caches();
        let shown = text(&pool, Form::default());
        let section = "\t    /srv/b  UNAVAIL  1.21K     0     0  not found where it was last seen\n\tcache\n\
             \t  nvme-a    ONLINE       0     0     2\n\
             \t  4711      UNAVAIL      0     0     0  was /dev/nvme1n1\n\nerrors: ";
        assert!(shown.contains(section), "{shown}");
        assert!(shown.contains("\n cache: 3G of 64G\n"), "{shown}");
        let listed = importable(&pool);
        let end = "\tcache\n\t  /dev/disk/by-id/nvme-a  ONLINE\n\t  4711                    UNAVAIL  was \
             /dev/nvme1n1\n";
        assert!(listed.ends_with(end), "{listed}");
        let known = ReadCache {
            hits: 710,
            misses: 290,
            elsewhere: Some([600, 800, 850]),
            restoring: 3,
            ..pool.read_cache.unwrap()
        };
        assert_eq!(
            cache_line(&known),
            "0.71 of the reads that memory missed, 3G of 64G, twice the size: 0.80, still finding what earlier imports \
             copied"
        );
    }

    #[test]
    fn an_index_says_what_it_misses() {
        let dedup = DedupStatus {
            awake: true,
            entries: 3 << 20,
            disk: 40 << 20,
            memory: 5 << 20,
            sampling: 4,
            looked_up: 200,
            hits: 50,
            saved: 6 << 20,
            damaged: 2,
            ..DedupStatus::default()
        };
        let line = dedup_line(&dedup);
        assert!(
            line.starts_with("3M fingerprints, 40M on disk, 5M in memory\n\t50 records (25.0%)"),
            "{line}"
        );
        assert!(line.contains("1 fingerprint in 4 is kept; about the first 3 records"), "{line}");
        assert!(
            line.ends_with(
                "\n\t2 pages of it cannot be read: what they told is stored again; see pool rebuild-index"
            ),
            "{line}"
        );
        assert!(dedup_line(&DedupStatus::default()).ends_with("not in use: no dataset has dedup on"));
    }

    #[test]
    fn status_reads_as_zpools_with_the_risk() {
        assert_eq!(
            text(&pool(), Form::default()),
            "  pool: tank\n \
             state: DEGRADED\n\
             status: One device could not be opened. All data is there: the other device of\n\
             \tmirror-0 has it, and the pool goes on with less redundancy.\n\
             action: larder pool online tank /srv/b\n  \
             scan: none requested\n  \
             risk: no loss of a device is survived\n\
             config:\n\n\
             \tNAME        STATE     READ WRITE CKSUM\n\
             \ttank        DEGRADED     0     0     0\n\
             \t  mirror-0  DEGRADED     0     0     0\n\
             \t    sda     ONLINE       0     0     0\n\
             \t    /srv/b  UNAVAIL  1.21K     0     0  not found where it was last seen\n\n\
             errors: No known data errors\n"
        );
    }

    #[test]
    fn what_still_moves_is_told_with_the_reason_when_it_does_not() {
        let mut status = PoolStatus { reshaping: 3 << 20, ..pool() };
        let told = "moving: 3M of what was stored before the devices changed";
        assert!(text(&status, Form::default()).contains(&format!("{told}\n")));
        status.reshaping_stuck = Some("2 segments cannot be emptied: there is no room".into());
        let text = text(&status, Form::default()).replace("\n\t", " ");
        assert!(
            text.contains(&format!(
                "{told}; 2 segments cannot be emptied: there is no room; it is tried again and again\n"
            )),
            "{text}"
        );
    }

    #[test]
    fn what_the_cleaner_cost_is_told_once_it_moved_something() {
        assert!(!text(&pool(), Form::default()).contains("clean:"));
        let cleaned = PoolStatus { cleaned: 3 << 30, write_amplification: 157, ..pool() };
        let told = " clean: 3G moved since import, 1.57 bytes written for each byte stored\n";
        assert!(text(&cleaned, Form::default()).contains(told));
    }

    #[test]
    fn what_is_being_freed_is_told_while_there_is_any() {
        assert!(!text(&pool(), Form::default()).contains("freeing"));
        let freeing = PoolStatus { freeing: 3 << 30, ..pool() };
        assert!(text(&freeing, Form::default()).contains("freeing: 3G of what was deleted\n"));
    }

    #[test]
    fn traces_tell_how_far_they_are_and_what_they_found() {
        let mut trace = TraceStatus { examined: 25, total: 100, ..TraceStatus::default() };
        assert!(trace_line(&trace).ends_with("\n\t25 of 100 blocks looked at, 25.00% done"));
        (trace.state, trace.finished, trace.live.blocks) = (TraceState::Done, Some(61), 7);
        assert!(trace_line(&trace).starts_with("found 7 blocks in 00:01:01 with 0 errors on "));
        assert!(!trace_line(&trace).contains("cut short"));
        let rest = trace_line(&TraceStatus { from: 9, ..trace.clone() });
        assert!(
            rest.contains(" with 0 errors on ") && rest.contains("\n\tit took up where one was cut short")
        );
        (trace.dead.blocks, trace.dead.bytes, trace.missing) = (2, 8192, 3);
        let text = trace_line(&trace);
        assert!(
            text.starts_with("found 7 blocks and 2 dead ones (8K) in 00:01:01 with 3 errors on "),
            "{text}"
        );
        assert!(text.ends_with("\n\t3 are referred to and missing"), "{text}");
        trace.unreachable.blocks = 9;
        let text = trace_line(&trace);
        assert!(
            text.contains(" with 12 errors on ") && text.contains("\n\t9 had leaked and are freed\n"),
            "{text}"
        );
        trace.lost = 1;
        let text = trace_line(&trace);
        assert!(
            text.contains(" with 4 errors on ")
                && text.contains("\n\t9 are referred to by nothing that can be read\n")
        );
        let shown = text_of(&PoolStatus { trace: Some(trace), ..pool() });
        assert!(shown.contains("\n trace: found 7 blocks"), "{shown}");
    }

    fn text_of(pool: &PoolStatus) -> String {
        text(pool, Form::default())
    }

    #[test]
    fn damaged_files_are_counted_and_named_on_request() {
        let mut pool = pool();
        pool.damaged = vec!["tank/home:/a".into()];
        assert!(text(&pool, Form::default()).ends_with("errors: 1 data errors, use '-v' for a list\n"));
        let named = text(&pool, Form { damaged: true, ..Form::default() });
        assert!(named.ends_with("following files:\n\n        tank/home:/a\n"));
    }

    #[test]
    fn health_is_the_exit_code_of_check() {
        let mut pool = pool();
        assert_eq!(health(&pool) as u8, 1);
        assert!(check_line(&pool).starts_with("tank: degraded: One device could not be opened."));
        pool.root.state = State::Suspended;
        assert_eq!(health(&pool) as u8, 2);
        pool.root.state = State::Online;
        pool.status = None;
        assert_eq!((health(&pool) as u8, check_line(&pool).as_str()), (0, "tank: healthy\n"));
        assert!(!needs_attention(&pool));
    }

    #[test]
    fn what_can_be_imported_reads_as_zpools() {
        let mut pool = pool();
        (pool.status, pool.action) = (None, None);
        assert_eq!(
            importable(&pool),
            "   pool: tank\n     id: 42\n  state: DEGRADED\n action: larder pool import tank\n config:\n\n\
             \ttank                     DEGRADED\n\
             \t  mirror-0               DEGRADED\n\
             \t    /dev/disk/by-id/sda  ONLINE\n\
             \t    /srv/b               UNAVAIL  not found where it was last seen\n"
        );
    }
}
