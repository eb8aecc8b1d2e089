//! Events and histories, in the forms of zpool events and zpool history.

use super::date;
use crate::api::events::{Event, PoolEvents, PoolHistory};
use std::fmt::Write;

/// Form in which events are shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Form {
    /// With all that is known of each.
    pub verbose: bool,
    /// Tabs between the columns, no heads.
    pub scripted: bool,
}

/// The width of a time.
const TIME: usize = 30;

/// All events of these pools by time, under heads.
pub fn text(pools: &[PoolEvents], form: Form) -> String {
    let heads = if form.scripted { String::new() } else { format!("{:<TIME$} CLASS\n", "TIME") };
    heads + &lines(pools, form)
}

/// All events of these pools by time.
pub fn lines(pools: &[PoolEvents], form: Form) -> String {
    let mut all: Vec<(&str, &Event)> =
        pools.iter().flat_map(|pool| pool.events.iter().map(|event| (pool.name.as_str(), event))).collect();
    all.sort_by_key(|(_, event)| (event.time, event.time_ns));
    let mut out = String::new();
    for (pool, event) in all {
        let time = format!("{}.{:09}", date(event.time, "%b %e %Y %H:%M:%S"), event.time_ns);
        let line = match form.scripted {
            true => writeln!(out, "{time}\t{}", event.class),
            false => writeln!(out, "{time:<TIME$} {}", event.class),
        };
        line.expect("strings take all");
        if form.verbose {
            details(&mut out, pool, event);
        }
    }
    out
}

fn details(out: &mut String, pool: &str, event: &Event) {
    let mut line = |name: &str, value: &str| {
        writeln!(out, "        {name} = {value}").expect("strings take all");
    };
    let quoted = |text: &str| format!("{text:?}");
    line("pool", &quoted(pool));
    line("eid", &event.number.to_string());
    if let Some(device) = &event.device {
        line("vdev_path", &quoted(device));
    }
    if let Some(guid) = event.device_guid {
        line("vdev_guid", &guid.to_string());
    }
    if let Some(dataset) = &event.dataset {
        line("dataset", &quoted(dataset));
    }
    if let Some(inode) = event.inode {
        line("inode", &format!("{inode:#x}"));
    }
    if let Some(path) = &event.path {
        line("path", &quoted(path));
    }
    if event.count > 1 {
        line("count", &event.count.to_string());
        line("last", &quoted(&date(event.last, "%b %e %Y %H:%M:%S")));
    }
    if !event.text.is_empty() {
        line("text", &quoted(&event.text));
    }
    out.push('\n');
}

/// Commands that changed a pool, with its `internal` events, if any.
pub fn history(pool: &PoolHistory, internal: &[Event], long: bool) -> String {
    let time = |seconds: i64| date(seconds, "%Y-%m-%d.%H:%M:%S");
    let mut all: Vec<(i64, String)> = Vec::new();
    for command in &pool.commands {
        let mut line = format!("{} {}", time(command.time), command.text);
        if long {
            let user = if command.user.is_empty() { "?" } else { &command.user };
            write!(line, " [user {} ({user}) on {}]", command.uid, command.host).expect("strings take all");
        }
        all.push((command.time, line));
    }
    for event in internal {
        let mut line = format!("{} [internal {}]", time(event.time), event.class);
        for part in [event.device.as_deref(), event.path.as_deref(), Some(event.text.as_str())] {
            if let Some(part) = part.filter(|part| !part.is_empty()) {
                write!(line, " {part}").expect("strings take all");
            }
        }
        all.push((event.time, line));
    }
    all.sort_by_key(|(time, _)| *time);
    let lines: String = all.into_iter().map(|(_, line)| line + "\n").collect();
    format!("History for '{}':\n{lines}\n", pool.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::events::Command;

    fn event(time: i64, class: &str) -> Event {
        Event { number: 1, time, time_ns: 7, last: time, count: 1, class: class.into(), ..Event::default() }
    }

    #[test]
    fn events_of_several_pools_come_by_time() {
        let pools = [
            PoolEvents { name: "a".into(), events: vec![event(100, "pool_import"), event(300, "io")] },
            PoolEvents { name: "b".into(), events: vec![event(200, "checksum")] },
        ];
        let shown = text(&pools, Form::default());
        let classes: Vec<_> = shown.lines().map(|line| line.split_whitespace().last().unwrap()).collect();
        assert_eq!(classes, ["CLASS", "pool_import", "checksum", "io"]);
        let scripted = text(&pools, Form { scripted: true, ..Form::default() });
        assert!(scripted.lines().all(|line| line.split('\t').count() == 2), "{scripted}");
        assert!(scripted.contains(".000000007\tio"), "{scripted}");
    }

    #[test]
    fn details_name_device_and_file() {
        let known = Event {
            count: 3,
            device: Some("/dev/sda".into()),
            dataset: Some("tank/home".into()),
            inode: Some(31),
            path: Some("/tank/home/a \"b\"".into()),
            ..event(100, "checksum")
        };
        let pools = [PoolEvents { name: "tank".into(), events: vec![known] }];
        let shown = text(&pools, Form { verbose: true, ..Form::default() });
        for line in
            ["vdev_path = \"/dev/sda\"", "inode = 0x1f", "path = \"/tank/home/a \\\"b\\\"\"", "count = 3"]
        {
            assert!(shown.contains(&format!("        {line}\n")), "{line}: {shown}");
        }
    }

    #[test]
    fn a_history_reads_as_zpools() {
        let command = |time, text: &str| Command {
            time,
            uid: 0,
            user: "root".into(),
            host: "nas".into(),
            text: text.into(),
        };
        let pool = PoolHistory {
            name: "tank".into(),
            commands: vec![command(0, "larder pool create tank a"), command(90, "larder fs create tank/b")],
        };
        let plain = history(&pool, &[], false);
        let lines: Vec<_> = plain.lines().collect();
        assert_eq!(lines[0], "History for 'tank':");
        assert!(
            lines[1].ends_with(" larder pool create tank a") && lines[1].as_bytes()[10] == b'.',
            "{plain}"
        );
        assert_eq!((lines.len(), lines[3]), (4, ""));
        let long = history(&pool, &[event(50, "scrub_finish")], true);
        assert!(long.lines().nth(1).unwrap().ends_with("[user 0 (root) on nas]"), "{long}");
        assert!(long.lines().nth(2).unwrap().contains("[internal scrub_finish]"), "{long}");
    }
}
