//! The problem of a pool, in a sentence, and a command to paste that does something about it.

use super::live::Live;
use super::{repair, roster};
use crate::api::pool::{Class, Role, State, Vdev};
use crate::api::trace::TraceStatus;
use larder_format::GroupIndex;
use larder_pool::Pool;
use larder_pool::member::{Member, MemberState};
use larder_upkeep::Upkeep;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where to read on.
const SEE: &str = "docs/operations.md, Losing a disk";
/// Bytes of a record for which there is no room in a pool that is called full.
const FULL_FOR: u32 = 128 << 10;

/// Problem and remedy of a pool.
#[derive(Debug, Default)]
pub struct Advice {
    /// The problem.
    pub status: Option<String>,
    /// The remedy.
    pub action: Option<String>,
    /// Where to read on.
    pub see: Option<String>,
}

impl Advice {
    fn new(status: String, action: String) -> Self {
        Self { status: Some(status), action: Some(action), see: None }
    }

    fn see(mut self) -> Self {
        self.see = Some(SEE.to_owned());
        self
    }
}

/// Troubles of a device, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ailing {
    Resilvering,
    Waiting,
    Offline,
    Faulted,
    Missing,
}

/// The problem of an imported pool and its remedy: of several, the worst.
pub fn advice(
    live: &Live,
    (root, classes): (&Vdev, &[Class]),
    trace: Option<&TraceStatus>,
    damaged: usize,
) -> Advice {
    let pool = &live.pool;
    let name = &root.name;
    if let Some(reason) = pool.store().suspended() {
        let action = match pool.store().may_resume() {
            true => format!("see to the cause, then: larder pool clear {name}"),
            false => format!("larder pool export -f {name} && larder pool import {name}"),
        };
        return Advice::new(
            format!(
                "The pool has stopped writing: {reason}. What was committed or synced before is not lost; what can be \
                 read is read."
            ),
            action,
        )
        .see();
    }
    if let Some(advice) = about_devices(&live.upkeep, root, damaged) {
        return advice.see();
    }
    if damaged > 0 {
        return Advice::new(
            "Some data could be neither read nor made good. Whoever reads it is told (EIO); all else can be read."
                .to_owned(),
            format!("larder pool status -v {name} names the files: restore them, then: larder pool clear {name}"),
        );
    }
    let classed = || classes.iter().filter(|class| class.is_vital()).flat_map(|class| &class.vdevs);
    let all = || std::iter::once(root).chain(classed()).flat_map(leaves);
    let count = |kind: fn(&Vdev) -> u64| all().map(kind).sum::<u64>();
    if live.upkeep.read_repair.advises_scrub() {
        return Advice::new(
            "Devices gave errors. Everything was read from the others; so much was wrong that only a scrub finds all \
             of it again, to write it anew."
                .to_owned(),
            format!("larder pool scrub -w {name}; look at the disk with smartctl -a DEVICE"),
        );
    }
    if count(|device| device.read_errors + device.write_errors) > 0 {
        return Advice::new(
            "Devices gave errors. Everything was read from the others, and what could not be read was written \
             anew."
                .to_owned(),
            format!("look at the disk with smartctl -a DEVICE; larder pool clear {name} sets the counts to zero"),
        );
    }
    if count(|device| device.checksum_errors) > 0 {
        return Advice::new(
            "Devices gave wrong data. It was made good from the others, and written anew.".to_owned(),
            format!("larder pool scrub -w {name} && larder pool clear {name}"),
        );
    }
    if let Some(slow) = pool.store().members().iter().find(|member| member.is_online() && member.is_slow()) {
        let (device, named) = (roster::called(pool, &slow), repair::sentence_name(pool, &slow));
        let why = slow.reason().unwrap_or_else(|| "slow".to_owned());
        return Advice::new(
            format!("{named}: {why}. What it holds is read from the others where that is faster."),
            format!("larder pool iostat -vl {name} 5 compares it; larder pool replace {name} {device} NEW"),
        );
    }
    if trace.is_some_and(TraceStatus::is_loss) {
        return Advice::new(
            "The newest trace found that files refer to data which is not there. What cannot be read is told to \
             whoever reads it; nothing else is touched."
                .to_owned(),
            format!("larder pool trace -j {name}; restore what cannot be read from a backup"),
        );
    }
    if pool.store().space(FULL_FOR).available < u64::from(FULL_FOR) && !pool.store().is_read_only() {
        return Advice::new(
            "The pool is full: writes are refused. Deleting and changing properties work.".to_owned(),
            format!(
                "delete what is not needed; `larder pool get freeing {name}` tells what is about to come back"
            ),
        );
    }
    about_metadata(pool, name)
        .or_else(|| about_small(pool, name))
        .or_else(|| about_caches(&live.upkeep, name))
        .unwrap_or_default()
}

/// Devices for metadata that have no room but their reserve.
fn about_metadata(pool: &Pool, name: &str) -> Option<Advice> {
    let full = pool.store().core.lock().full_of_metadata()?;
    let head = head_of(pool, full)?;
    let status = format!(
        "The {head} devices are full but for their reserve: new metadata goes to those of the data, as if there were none."
    );
    Some(Advice::new(
        status,
        format!("larder pool add {name} {head} ..., as safe as the data, if that is too slow"),
    ))
}

/// Devices for metadata that take no small records any more.
fn about_small(pool: &Pool, name: &str) -> Option<Advice> {
    let full = pool.store().core.lock().full_of_small()?;
    let head = head_of(pool, full)?;
    let status = format!(
        "The {head} devices are three quarters full, and leave the rest to metadata: new small records \
         (special_small_blocks) go to those of the data."
    );
    Some(Advice::new(
        status,
        format!("larder pool add {name} {head} ..., as safe as the data, or a smaller special_small_blocks"),
    ))
}

/// The word in tables for a group.
fn head_of(pool: &Pool, index: GroupIndex) -> Option<&'static str> {
    let group = pool.store().groups().into_iter().find(|group| group.index == index)?;
    Role::of(group.role).head()
}

/// Trouble with devices with copies: nothing is lost with them.
fn about_caches(upkeep: &Upkeep, name: &str) -> Option<Advice> {
    let pool = upkeep.pool();
    let caches = pool.store().members().caches();
    if let Some(cache) = caches.iter().find(|cache| !cache.is_online()) {
        let (named, mut device) = (repair::sentence_name(pool, cache), roster::called(pool, cache));
        // Another may be where it was.
        let is_there = |other: Arc<Member>| other.index != cache.index && other.size().is_some();
        let mut others = pool.store().members().all();
        if others.any(|other| other.name() == device && is_there(other)) {
            device = cache.guid.to_string();
        }
        let (what, back) = match cache.state() {
            MemberState::Faulted if !roster::is_gone(cache) => (
                "failed and is not used",
                format!("larder pool clear {name} {device}, when the cause is gone"),
            ),
            _ => (
                "is missing",
                format!("connect it: it comes back by itself (or: larder pool online {name} PATH)"),
            ),
        };
        let status = format!(
            "{named}, a cache, {what}. Nothing is lost: it had copies only, and what it had is read from the other \
             devices."
        );
        return Some(Advice::new(
            status,
            format!("larder pool remove {name} {device} does without it; or {back}"),
        ));
    }
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let errors = |cache: &&Arc<Member>| {
        let counters = &cache.counters;
        load(&counters.read_errors) + load(&counters.write_errors) + load(&counters.checksum_errors) > 0
    };
    let cache = caches.iter().find(errors)?;
    let (named, device) = (repair::sentence_name(pool, cache), roster::called(pool, cache));
    let status = format!(
        "{named}, a cache, gave errors or wrong data. None of it was believed: it was read from the other devices."
    );
    let action = format!(
        "look at it with smartctl -a DEVICE; larder pool clear {name} sets the counts to zero; larder pool remove \
         {name} {device} does without it"
    );
    Some(Advice::new(status, action))
}

fn about_devices(upkeep: &Upkeep, root: &Vdev, damaged: usize) -> Option<Advice> {
    let (pool, name) = (upkeep.pool(), &root.name);
    let groups = pool.store().groups();
    let is_mirror = |of: &Member| {
        let group = groups.iter().find(|group| group.index == of.group);
        group.is_some_and(|group| group.rule.layout.is_mirror())
    };
    // A copy that left and is gone is only a number in what was written before.
    let is_bygone = |of: &Member| of.is_leaving() && !of.is_written() && is_mirror(of);
    let members = pool.store().members().iter().filter(|member| !is_bygone(member));
    let mut ailing: Vec<_> = members.filter_map(|member| Some((what(pool, &member)?, member))).collect();
    let is_vital = |member: &Member| pool.store().is_vital(member.group);
    ailing.sort_by_key(|(what, member)| std::cmp::Reverse((is_vital(member), *what)));
    let (worst, member) = ailing.first()?;
    let device = roster::called(pool, member);
    let is_log = !is_vital(member);
    let sentence = |(ailing, member): &(Ailing, Arc<Member>)| {
        let named = repair::sentence_name(pool, member);
        match ailing {
            Ailing::Missing => format!("{named} is missing"),
            Ailing::Faulted => format!("{named} failed and is not used"),
            Ailing::Offline => format!("{named} was taken offline"),
            Ailing::Resilvering => format!("{named} is being resilvered"),
            Ailing::Waiting => {
                format!("{named} has all of {} but {}", replaced(pool, member), repair::lost_text(upkeep))
            }
        }
    };
    let mut status = ailing.iter().map(sentence).collect::<Vec<_>>().join("; ");
    status += match (root.state, pool.store().is_read_only()) {
        (State::Faulted, _) => ". These are more than the layout survives: some data cannot be read.",
        (_, true) if damaged > 0 => ". All other data can be read.",
        (_, false) if damaged > 0 => ". All other data can be read and written.",
        (_, true) => ". All data can be read.",
        (_, false) => ". All data can be read and written.",
    };
    if is_log && !pool.store().is_read_only() {
        status += " Only the log has a device less: what is synced is kept on the others.";
    }
    let action = match worst {
        Ailing::Missing | Ailing::Faulted | Ailing::Offline if is_log && !pool.store().is_read_only() => {
            format!(
                "larder pool online {name} {device}, once it is there again; or do without it: larder pool remove {name} \
             {device} (of a mirror: larder pool detach)"
            )
        }
        _ if pool.store().is_read_only() => {
            format!("larder pool export {name} && larder pool import {name}, to have it rebuilt")
        }
        Ailing::Missing => format!(
            "connect it: it comes back by itself (or: larder pool online {name} PATH). If it is gone for good: \
             larder pool replace {name} {device} NEW"
        ),
        Ailing::Faulted => format!(
            "larder pool replace {name} {device} NEW; if the cause is gone (a cable): larder pool clear {name} \
             {device}"
        ),
        Ailing::Offline => format!("larder pool online {name} {device}"),
        Ailing::Resilvering => format!("larder pool wait -t resilver {name}"),
        Ailing::Waiting => format!(
            "larder pool status -v {name} names the files; larder pool resilver {name} tries again; to go on without \
             what is lost: larder pool detach --accept-loss {name} {}",
            replaced(pool, member)
        ),
    };
    Some(Advice::new(status, action))
}

/// The device that another is to replace.
fn replaced(pool: &Pool, new: &Member) -> String {
    let old = new.stands_for.and_then(|old| pool.store().members().find(old));
    old.map_or_else(|| "the old device".to_owned(), |old| roster::called(pool, &old))
}

/// Trouble of a device; nothing for one whose place another is about to take.
fn what(pool: &Pool, member: &Member) -> Option<Ailing> {
    if pool.store().members().stand_in(member.index).is_some() {
        return None;
    }
    match member.state() {
        MemberState::Online => None,
        MemberState::Missing => Some(Ailing::Missing),
        MemberState::Faulted => Some(Ailing::Faulted),
        MemberState::Offline => Some(Ailing::Offline),
        MemberState::Stale | MemberState::Rebuilding => Some(Ailing::Resilvering),
        MemberState::Waiting => Some(Ailing::Waiting),
    }
}

/// All devices below.
fn leaves(vdev: &Vdev) -> Box<dyn Iterator<Item = &Vdev> + '_> {
    if vdev.children.is_empty() {
        return Box::new(std::iter::once(vdev));
    }
    Box::new(vdev.children.iter().flat_map(leaves))
}
