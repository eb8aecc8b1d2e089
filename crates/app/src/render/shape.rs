//! Shape of a pool, as it is and as it would be, with size and risk: for dry runs.

use super::status::risk;
use crate::api::pool::{Created, Group, Role};
use crate::api::repair::{Reshaped, Shape};
use larder_pool::property::format_size;
use std::fmt::Write;

/// Groups and devices below the pool's name, then the others.
fn layout(name: &str, groups: &[Group], caches: &[String], spares: &[String]) -> String {
    let mut out = format!("\t{name}\n");
    let mut line = |text: std::fmt::Arguments<'_>| writeln!(out, "\t{text}").expect("strings take all");
    let mut of_role = |role: Role| {
        let mut head = role.head();
        for group in groups.iter().filter(|group| group.role == role) {
            head.take().into_iter().for_each(|head| line(format_args!("{head}")));
            let single = group.devices.len() == 1;
            if !single {
                line(format_args!("  {}", group.word));
            }
            for device in &group.devices {
                line(format_args!("{}{device}", if single { "  " } else { "    " }));
            }
        }
    };
    [Role::Data, Role::Special, Role::Fast, Role::Log].into_iter().for_each(&mut of_role);
    for (word, devices) in [("cache", caches), ("spares", spares)] {
        if !devices.is_empty() {
            line(format_args!("{word}"));
        }
        devices.iter().for_each(|device| line(format_args!("  {device}")));
    }
    out
}

/// Output of `create -n`.
pub fn created(created: &Created) -> String {
    let mut out = format!("would create '{}' with the following layout:\n\n", created.name);
    out += &layout(&created.name, &created.groups, &created.caches, &created.spares);
    let mountpoint = created.mountpoint.as_deref().unwrap_or("nowhere");
    let (size, usable) = (format_size(created.size), format_size(created.usable));
    let risk = risk(created.survives).replace("more ", "");
    write!(
        out,
        "\n  size: {size}, of which files can take {usable}\n  risk: {risk}\nmounted: {mountpoint}\n"
    )
    .expect("strings take all");
    out
}

/// Output of `-n` of a verb that changes a pool's devices.
pub fn plan(reshaped: &Reshaped) -> String {
    let side = |label: &str, shape: &Shape| {
        let (usable, risk) = (format_size(shape.usable), risk(shape.survives).replace("more ", ""));
        let layout = layout(&reshaped.name, &shape.groups, &shape.caches, &shape.spares);
        format!("{label}:\n\n{layout}\n  size: files can take {usable}\n  risk: {risk}\n\n")
    };
    let mut out = side("now", &reshaped.before) + &side("then", &reshaped.after);
    for note in &reshaped.notes {
        out += note;
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pool::Word;

    fn mirror(devices: &[&str]) -> Group {
        Group {
            role: Role::Data,
            word: Word::Mirror,
            devices: devices.iter().map(|&path| path.to_owned()).collect(),
        }
    }

    #[test]
    fn a_plan_shows_layout_size_and_risk() {
        let planned = Created {
            name: "tank".into(),
            groups: vec![mirror(&["/a", "/b"])],
            spares: vec!["/c".into()],
            caches: vec!["/d".into()],
            size: 2 << 30,
            usable: 1 << 30,
            survives: 1,
            mountpoint: Some("/tank".into()),
            notes: vec![],
        };
        assert_eq!(
            created(&planned),
            "would create 'tank' with the following layout:\n\n\ttank\n\t  mirror\n\t    /a\n\t    /b\n\tcache\n\t  /d\n\
             \tspares\n\t  /c\n\n  size: 2G, of which files can take 1G\n  risk: 1 loss is survived, whichever device it is\n\
             mounted: /tank\n"
        );
    }

    #[test]
    fn a_change_shows_what_was_what_would_be_and_what_is_lost() {
        let shape = |devices: &[&str], survives| Shape {
            groups: vec![mirror(devices)],
            spares: vec![],
            caches: vec![],
            usable: 1 << 30,
            survives,
        };
        let reshaped = Reshaped {
            name: "tank".into(),
            done: false,
            before: shape(&["/a", "/b", "/c"], 2),
            after: shape(&["/a", "/b"], 1),
            notes: vec!["1 loss less is survived".into()],
        };
        assert_eq!(
            plan(&reshaped),
            "now:\n\n\ttank\n\t  mirror\n\t    /a\n\t    /b\n\t    /c\n\n  size: files can take 1G\n  risk: 2 losses \
             are survived, whichever devices they are\n\nthen:\n\n\ttank\n\t  mirror\n\t    /a\n\t    /b\n\n  size: \
             files can take 1G\n  risk: 1 loss is survived, whichever device it is\n\n1 loss less is survived\n"
        );
    }
}
