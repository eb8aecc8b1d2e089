//! Warnings about disks, before a layout is chosen.

use crate::disk::{Disk, Kind};
use larder_pool::property::format_size;
use serde::Serialize;

/// A remark about some disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Its matter, a word for scripts.
    pub about: &'static str,
    /// A sentence.
    pub text: String,
    /// The disks, by number; none when it is about the machine.
    pub disks: Vec<usize>,
}

/// Hours by which disks may differ in age and be as old.
const SAME_AGE: u64 = 30 * 24;
/// Serial numbers by which disks may differ and come from one batch.
const SAME_BATCH: u64 = 2000;
/// Per cent of its writes from which on a disk is worn.
const WORN: u64 = 80;
/// Hours of five years.
const OLD: u64 = 5 * 8766;
/// Memory of a pool by itself, and of what else runs beside.
const LITTLE_MEMORY: u64 = 2 << 30;

/// All remarks; `memory` is that of the machine, 0 where it is not known.
pub fn warnings(disks: &[Disk], memory: u64) -> Vec<Warning> {
    let mut all = Vec::new();
    let mut warn = |about, disks: Vec<usize>, text: String| all.push(Warning { about, text, disks });
    let such = |is: &dyn Fn(&Disk) -> bool| -> Vec<usize> {
        disks.iter().enumerate().filter(|(_, disk)| is(disk)).map(|(at, _)| at).collect()
    };
    let named = |which: &[usize]| {
        let names: Vec<&str> = which.iter().take(6).map(|&at| disks[at].short.as_str()).collect();
        let more = which.len().saturating_sub(names.len());
        names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
    };
    for (at, disk) in disks.iter().enumerate() {
        if let Some(what) = &disk.taken {
            warn("taken", vec![at], format!("{} {what}: no pool is made over it", disk.short));
        }
        if disk.healthy == Some(false) {
            warn(
                "failing",
                vec![at],
                format!("{} says of itself that it fails: replace it first", disk.short),
            );
        }
        if let Some(who) = &disk.shingled {
            let text = format!(
                "{} is shingled (SMR; {who}): random writes and rebuilds take many times as long, days to weeks",
                disk.short
            );
            warn("shingled", vec![at], text);
        }
        if let Some(wear) = disk.wear.filter(|&wear| wear >= WORN) {
            let text = format!("{} has used up {wear} % of the writes that it is made for", disk.short);
            warn("worn", vec![at], text);
        }
    }
    let hidden = such(&|disk| disk.hidden);
    if !hidden.is_empty() {
        let text = format!("what is on {} could not be looked at, which root can", named(&hidden));
        warn("hidden", hidden, text);
    }
    let usb = such(&|disk| disk.usb);
    if !usb.is_empty() {
        let text = format!(
            "behind a USB bridge: {}; bridges lose disks under load, some lie about flushes, and a hub that resets takes \
             all of its disks at once",
            named(&usb)
        );
        warn("usb", usb, text);
    }
    for group in alike(disks) {
        let model = disks[group[0]].model.clone().unwrap_or_default();
        let text = format!(
            "same model and batch or age ({model}): {}; such disks fail together more often than the figures suppose \
             (--correlated 10 tells what that does)",
            named(&group)
        );
        warn("batch", group, text);
    }
    let old = such(&|disk| disk.kind == Kind::Hdd && disk.hours.is_some_and(|hours| hours > OLD));
    if !old.is_empty() {
        warn("old", old.clone(), format!("more than five years under power: {}", named(&old)));
    }
    let known = |of: &dyn Fn(&Disk) -> u32| {
        let mut sizes: Vec<u32> = disks.iter().map(of).filter(|&size| size > 0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    };
    let (logical, physical) = (known(&|disk| disk.sectors.0), known(&|disk| disk.sectors.1));
    if logical.len() > 1 || physical.len() > 1 {
        let list = |sizes: &[u32]| sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let text = format!(
            "sectors differ: {} bytes as addressed, {} as written; Larder writes multiples of 4096, which suits both, \
             but a disk of 4096 as addressed cannot be replaced by tools that assume 512",
            list(&logical),
            list(&physical)
        );
        warn("sectors", Vec::new(), text);
    }
    if let Some(&large) = physical.last().filter(|&&size| size > 4096) {
        let text = format!("sectors of {large} bytes: create the pool with -o ashift={}", large.ilog2());
        warn("sectors", such(&|disk| disk.sectors.1 > 4096), text);
    }
    let (ssd, hdd) = (such(&|disk| disk.kind == Kind::Ssd), such(&|disk| disk.kind == Kind::Hdd));
    if !ssd.is_empty() && !hdd.is_empty() {
        let text = format!(
            "SSDs beside disks that turn: a group is as fast as its slowest; the SSDs ({}) may do more behind `fast \
             mirror` or `cache` (larder pool create --help)",
            named(&ssd)
        );
        warn("mixed", ssd, text);
    }
    if (1..LITTLE_MEMORY).contains(&memory) {
        let text = format!(
            "this machine has {} of memory; a pool takes 512M unless -o memory= says otherwise",
            format_size(memory)
        );
        warn("memory", Vec::new(), text);
    }
    all
}

/// Sets of disks of one model that come from one batch, by their serial numbers, or are as old.
fn alike(disks: &[Disk]) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for (at, disk) in disks.iter().enumerate() {
        let near = |&other: &usize| {
            let other = &disks[other];
            let aged = match (disk.hours, other.hours) {
                (Some(one), Some(two)) => one.abs_diff(two) <= SAME_AGE,
                _ => false,
            };
            disk.model.is_some() && disk.model == other.model && (aged || is_one_batch(disk, other))
        };
        match sets.iter_mut().find(|set| set.iter().any(near)) {
            Some(set) => set.push(at),
            None => sets.push(vec![at]),
        }
    }
    sets.retain(|set| set.len() > 1);
    sets
}

/// Whether serial numbers begin alike and count on: the digits at their end are near.
fn is_one_batch(one: &Disk, two: &Disk) -> bool {
    let (Some(one), Some(two)) = (&one.serial, &two.serial) else { return false };
    let split = |serial: &str| {
        let digits = serial.bytes().rev().take(9).take_while(u8::is_ascii_digit).count();
        let (head, tail) = serial.split_at(serial.len() - digits);
        Some((head.to_owned(), digits, tail.parse::<u64>().ok()?))
    };
    match (split(one), split(two)) {
        (Some(one), Some(two)) => {
            one.0 == two.0 && one.1 == two.1 && one.1 >= 3 && one.2.abs_diff(two.2) <= SAME_BATCH
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::known_shingled;

    fn disk(model: &str, serial: &str) -> Disk {
        Disk {
            model: Some(model.to_owned()),
            serial: Some(serial.to_owned()),
            ..Disk::of_size(serial, 16_000_000_000_000)
        }
    }

    fn about(disks: &[Disk], memory: u64) -> Vec<&'static str> {
        warnings(disks, memory).iter().map(|warning| warning.about).collect()
    }

    #[test]
    fn each_fault_is_told_and_sound_disks_get_no_remark() {
        let sound = [disk("A", "X100001"), disk("A", "Y900001"), disk("B", "X100002")];
        assert_eq!(about(&sound, 16 << 30), [""; 0]);
        assert_eq!(about(&sound, 0), [""; 0], "the machine is not known");
        assert_eq!(about(&sound, 1 << 30), ["memory"]);
        let one = |change: &dyn Fn(&mut Disk)| {
            let mut disks = sound.clone();
            change(&mut disks[1]);
            about(&disks, 0)
        };
        assert_eq!(one(&|disk| disk.usb = true), ["usb"]);
        assert_eq!(one(&|disk| disk.hidden = true), ["hidden"]);
        assert_eq!(one(&|disk| disk.wear = Some(80)), ["worn"]);
        assert_eq!(one(&|disk| disk.wear = Some(79)), [""; 0]);
        assert_eq!(one(&|disk| disk.healthy = Some(false)), ["failing"]);
        assert_eq!(one(&|disk| disk.taken = Some("is mounted at /".into())), ["taken"]);
        assert_eq!(one(&|disk| disk.hours = Some(50_000)), ["old"]);
        assert_eq!(one(&|disk| disk.kind = Kind::Ssd), ["mixed"]);
        assert_eq!(one(&|disk| disk.shingled = Some("x".into())), ["shingled"]);
        assert_eq!(one(&|disk| disk.serial = Some("X100777".into())), ["batch"]);
        let mut disks = sound.clone();
        disks[0].sectors = (512, 4096);
        disks[1].sectors = (4096, 4096);
        assert_eq!(about(&disks, 0), ["sectors"]);
        disks[1].sectors = (512, 4096);
        assert_eq!(about(&disks, 0), [""; 0]);
    }

    #[test]
    fn a_batch_is_of_one_model_with_serials_that_count_on_or_of_one_age() {
        let mut disks = [disk("A", "ZL2001AB"), disk("A", "ZL9999XY"), disk("B", "ZL2001AC")];
        assert_eq!(alike(&disks), [[0; 0]; 0]);
        disks[0].hours = Some(10_000);
        disks[1].hours = Some(10_300);
        assert_eq!(alike(&disks), [[0, 1]]);
        disks[1].hours = Some(11_000);
        assert_eq!(alike(&disks), [[0; 0]; 0]);
    }

    #[test]
    fn shingled_models_are_known_and_their_neighbours_are_not() {
        for model in ["WDC WD40EFAX-68JH4N0", "WD60EFAX", "TOSHIBA DT02ABA600", "ST2000LM015-2E8174"] {
            assert!(known_shingled(model).is_some(), "{model}");
        }
        for model in
            ["WDC WD40EFRX-68N32N0", "WD40EFZX", "WD80EFAX-68KNBN0", "ST16000NM001G", "TOSHIBA MG08ACA16TE"]
        {
            assert!(known_shingled(model).is_none(), "{model}");
        }
    }
}
