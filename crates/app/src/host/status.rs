//! How pools are: imported ones, and those on devices that could be imported.

use super::devices::Remembered;
use super::live::Live;
use super::{Host, chronicle, error, tracer};
use crate::api::dedup::{DedupStatus, Rebuild};
use crate::api::figures::Waits;
use crate::api::pool::{Io, PoolStatus, State, Vdev};
use crate::api::trace::TraceStatus;
use larder_format::label::GroupRule;
use larder_format::{DeviceGuid, GroupIndex, HostId};
use larder_pool::GroupUse;
use larder_pool::Pool;
use larder_pool::dedup::RebuildProgress;
use larder_pool::member::{Member, MemberState};
use larder_pool::open::{Candidate, Importable, Standing};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a device that is out of use means in this version, said wherever one is.
const NO_RESILVER: &str = "This version cannot rebuild a device yet: it stays out until a later one does.";

impl Host {
    /// The state of an imported pool.
    pub(super) fn status(&self, live: &Live) -> PoolStatus {
        let pool = &live.pool;
        let name = pool.name();
        let suspended = pool.suspended();
        let remembered = self.remembered.lock().clone();
        let was = |guid: DeviceGuid| {
            let noted = pool.note(&format!("device:{guid}"));
            noted.or_else(|| remembered.path(pool.guid(), guid).map(str::to_owned))
        };
        let mut survives = u32::MAX;
        let mut children = Vec::new();
        let mut out_of_use = Vec::new();
        for group in pool.groups() {
            let members: Vec<_> = pool.members().of_group(group.index).collect();
            let left = group.rule.layout.losses_survived(|column| !members[column].is_online());
            survives = survives.min(left.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX)));
            let devices: Vec<_> = members.iter().map(|member| device(member, &group, &was)).collect();
            out_of_use.extend(members.iter().zip(&devices).filter_map(|(member, device)| {
                let why = match member.state() {
                    MemberState::Online => return None,
                    MemberState::Missing => "missing",
                    MemberState::Stale => "out of date",
                    MemberState::Faulted => "failing",
                    MemberState::Offline => "offline",
                    MemberState::Rebuilding => "being rebuilt",
                };
                Some(format!("{} is {why}", device.path.as_deref().map_or(device.name.clone(), error::named)))
            }));
            let state = group_state(&group.rule, &devices);
            children.push(group_vdev(group.index, &group.rule, state, devices));
        }
        let state = if suspended.is_some() {
            State::Suspended
        } else {
            worst(children.iter().map(|child| child.state))
        };
        let (allocated, size) = pool.raw_space();
        let mut root = sum(&name, "root", state, children);
        (root.guid, root.size, root.allocated) = (pool.guid().get(), size, allocated);
        root.fragmentation = fragmentation(pool.dead_space(), size.saturating_sub(allocated));
        let trace = tracer::status(pool);
        let (status, action) = match suspended {
            Some(reason) => (
                Some(format!(
                    "The pool has stopped writing: {reason}. What was committed or synced before is not lost."
                )),
                Some(format!(
                    "attach the devices, then: larder pool export {name} && larder pool import {name}"
                )),
            ),
            None => match advice(&name, &root, &out_of_use, survives, pool.is_read_only()) {
                (None, None) if trace.as_ref().is_some_and(TraceStatus::is_loss) => (
                    Some(
                        "The newest trace found that files refer to data which is not there. What cannot be read is \
                         told to whoever reads it; nothing else is touched."
                            .to_owned(),
                    ),
                    Some(format!("larder pool trace -j {name}; restore what cannot be read from a backup")),
                ),
                (None, None) if pool.space(FULL_FOR).available < u64::from(FULL_FOR) && !pool.is_read_only() => (
                    Some("The pool is full: writes are refused. Deleting and changing properties work.".to_owned()),
                    Some(format!(
                        "delete what is not needed; `larder pool get freeing {name}` tells what is about to come back"
                    )),
                ),
                advice => advice,
            },
        };
        PoolStatus {
            root,
            commit: pool.durable_commit().get(),
            status,
            action,
            see: None,
            scan: None,
            freeing: pool.freeing_bytes(),
            cleaned: pool.cleaned_bytes(),
            write_amplification: pool.writes().amplification_percent(),
            trace,
            dedup: dedup(pool),
            survives,
            damaged: chronicle::damaged(live),
            uptime_ns: live.uptime_ns(),
        }
    }
}

/// How the dedup index stands, when there is one.
fn dedup(pool: &Pool) -> Option<DedupStatus> {
    let figures = pool.dedup_figures();
    let rebuild = |of: RebuildProgress| Rebuild { extents: of.extents, records: of.records };
    (figures.awake || figures.entries > 0).then(|| DedupStatus {
        awake: figures.awake,
        catching_up: figures.catching_up,
        rebuild: pool.rebuild_progress().map(rebuild),
        entries: figures.entries,
        disk: figures.disk_bytes,
        memory: figures.memory_bytes,
        sampling: figures.sampling,
        looked_up: figures.looked_up,
        hits: figures.hits,
        near_hits: figures.near_hits,
        refused: figures.refused,
        stale: figures.stale,
        refuted: figures.refuted,
        damaged: figures.damaged,
        dropped: figures.dropped,
        saved: figures.saved_bytes,
    })
}

/// Bytes of a record for which there is no room in a pool that is called full.
const FULL_FOR: u32 = 128 << 10;

/// An imported pool's state.
pub fn health(live: &Live) -> State {
    if live.pool.suspended().is_some() {
        return State::Suspended;
    }
    let groups = live.pool.groups();
    let members = |group: &GroupUse| live.pool.members().of_group(group.index).collect::<Vec<_>>();
    let states = groups.iter().map(|group| {
        let members = members(group);
        state_of(&group.rule, members.len(), |column| !members[column].is_online())
    });
    worst(states)
}

/// What is wrong, and what to do about it.
fn advice(
    name: &str,
    root: &Vdev,
    out_of_use: &[String],
    survives: u32,
    read_only: bool,
) -> (Option<String>, Option<String>) {
    let errors: u64 = devices(root).map(|d| d.read_errors + d.write_errors + d.checksum_errors).sum();
    if !out_of_use.is_empty() {
        let can = if read_only { "read" } else { "read and written" };
        let status = format!("{}. All data can be {can}. {NO_RESILVER}", out_of_use.join("; "));
        let action = match survives {
            0 => "copy what matters to another pool now: no further loss is survived",
            _ => "copy what matters to another pool before more devices fail",
        };
        return (Some(status), Some(action.to_owned()));
    }
    if errors > 0 {
        let status = "Devices gave errors or wrong data. Everything was read from copies or rebuilt, unless a \
                      program was told otherwise.";
        let action = format!("larder pool status -v {name}; look at the disk with: smartctl -a DEVICE");
        return (Some(status.to_owned()), Some(action));
    }
    (None, None)
}

/// All devices below.
fn devices(vdev: &Vdev) -> impl Iterator<Item = &Vdev> {
    vdev.children.iter().flat_map(|group| {
        let single = group.children.is_empty().then_some(group);
        group.children.iter().chain(single)
    })
}

fn device(member: &Member, group: &GroupUse, was: &impl Fn(DeviceGuid) -> Option<String>) -> Vdev {
    let present = member.size().is_some();
    let path = if present { Some(member.name()) } else { was(member.guid) };
    let (state, note) = match member.state() {
        // It may be slow.
        MemberState::Online => (State::Online, member.reason()),
        MemberState::Missing => (State::Unavail, path.as_ref().map(|path| format!("was {path}"))),
        MemberState::Stale => (
            State::Unavail,
            Some(format!("out of date: it holds all up to commit {}", member.good_through())),
        ),
        MemberState::Faulted => {
            (State::Faulted, Some(member.reason().unwrap_or_else(|| "too many errors".to_owned())))
        }
        MemberState::Offline => (State::Unavail, Some("taken offline".to_owned())),
        MemberState::Rebuilding => (State::Unavail, Some("resilvering".to_owned())),
    };
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &member.counters;
    let unit = u64::from(group.slot_size);
    let used = group.devices.iter().find(|(index, ..)| *index == member.index);
    let (allocated, size) = used.map_or((0, 0), |&(_, used, all)| (used * unit, all * unit));
    Vdev {
        name: match &path {
            Some(path) if present => path.clone(),
            _ => member.guid.to_string(),
        },
        kind: path.as_deref().map_or("disk", kind).to_owned(),
        guid: member.guid.get(),
        path,
        state,
        note,
        read_errors: load(&counters.read_errors),
        write_errors: load(&counters.write_errors),
        checksum_errors: load(&counters.checksum_errors),
        size,
        allocated,
        fragmentation: 0,
        io: Io {
            reads: load(&counters.reads),
            writes: load(&counters.writes),
            read_bytes: load(&counters.read_bytes),
            written_bytes: load(&counters.written_bytes),
        },
        waits: Waits::default(),
        children: Vec::new(),
    }
}

/// What is, or was, at a path. A device that is not there is called a disk when it was one of `/dev`.
fn kind(path: &str) -> &'static str {
    let path = super::devices::file_of(path);
    let file = match std::fs::metadata(path) {
        Ok(meta) => meta.is_file(),
        Err(_) => !path.starts_with("/dev"),
    };
    if file { "file" } else { "disk" }
}

fn group_state(rule: &GroupRule, devices: &[Vdev]) -> State {
    state_of(rule, devices.len(), |column| devices[column].state != State::Online)
}

fn state_of(rule: &GroupRule, devices: usize, lost: impl Fn(usize) -> bool) -> State {
    match (0..devices).any(&lost) {
        false => State::Online,
        true if rule.layout.survives(lost) => State::Degraded,
        true => State::Faulted,
    }
}

fn worst(states: impl IntoIterator<Item = State>) -> State {
    let rank = |state: State| match state {
        State::Online => 0,
        State::Degraded => 1,
        _ => 2,
    };
    states.into_iter().max_by_key(|&state| rank(state)).unwrap_or(State::Online)
}

/// A group of several devices, or the one device of a group of one.
fn group_vdev(index: GroupIndex, rule: &GroupRule, state: State, mut devices: Vec<Vdev>) -> Vdev {
    if devices.len() == 1 {
        return devices.remove(0);
    }
    let copies = rule.layout.r() as u64;
    let mut group = sum(&format!("{}-{index}", rule.name()), &rule.name(), state, devices);
    (group.size, group.allocated) = (group.size / copies, group.allocated / copies);
    // Errors are the devices': above them zpool counts only what could not be made good.
    (group.read_errors, group.write_errors, group.checksum_errors) = (0, 0, 0);
    group
}

/// What is made of `children`: space and traffic are theirs together.
fn sum(name: &str, kind: &str, state: State, children: Vec<Vdev>) -> Vdev {
    let total = |field: fn(&Vdev) -> u64| children.iter().map(field).sum();
    Vdev {
        name: name.to_owned(),
        kind: kind.to_owned(),
        guid: 0,
        path: None,
        state,
        note: None,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        size: total(|child| child.size),
        allocated: total(|child| child.allocated),
        fragmentation: 0,
        io: Io {
            reads: total(|child| child.io.reads),
            writes: total(|child| child.io.writes),
            read_bytes: total(|child| child.io.read_bytes),
            written_bytes: total(|child| child.io.written_bytes),
        },
        waits: Waits::default(),
        children,
    }
}

/// Per cent of the free space that is dead blocks in segments in use.
pub fn fragmentation(dead: u64, free: u64) -> u8 {
    let percent = u128::from(dead) * 100 / u128::from((dead + free).max(1));
    u8::try_from(percent).unwrap_or(100)
}

/// The state of a pool that is on devices and not imported. `command` imports it, with its name behind.
pub fn of_importable(plan: &Importable, remembered: &Remembered, host: HostId, command: &str) -> PoolStatus {
    let mut survives = u32::MAX;
    let mut children = Vec::new();
    let mut remarks = plan.remarks.clone();
    for group in &plan.root.groups {
        let known: Vec<_> = plan
            .root
            .devices
            .iter()
            .zip(&plan.devices)
            .filter(|(known, _)| known.group == group.index)
            .collect();
        let devices: Vec<_> = known
            .iter()
            .map(|(known, candidate)| {
                importable_device(candidate, remembered.path(plan.guid, known.guid), known.guid)
            })
            .collect();
        let lost = |column: usize| devices.get(column).is_none_or(|device| device.state != State::Online);
        let left = group.rule.layout.losses_survived(lost);
        survives = survives.min(left.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX)));
        let state = group_state(&group.rule, &devices);
        children.push(group_vdev(group.index, &group.rule, state, devices));
    }
    let state = match (plan.complete, plan.refusal.is_some()) {
        (true, false) => worst(children.iter().map(|child| child.state)),
        _ => State::Unavail,
    };
    let missing = plan.devices.iter().filter(|device| device.found.is_none()).count();
    if missing > 0 {
        remarks.insert(0, format!("{missing} of {} devices are missing", plan.devices.len()));
    }
    let mut action = Some(format!("{command}{}", plan.name));
    if let Some(refusal) = &plan.refusal {
        remarks = vec![refusal.clone()];
        action = Some("the pool cannot be imported as it is".to_owned());
    } else if !plan.complete {
        action = Some(format!("attach the missing devices, then: {command}{}", plan.name));
    } else if let Some(holder) = plan.held_by.as_ref().filter(|holder| holder.host != host) {
        remarks.push(format!("it was last used by the host {}, and not exported there", holder.host_name));
        action = Some(format!(
            "{command}{} (takes some seconds, to make sure that {} is not using it)",
            plan.name, holder.host_name
        ));
    }
    let mut root = sum(&plan.name, "root", state, children);
    root.guid = plan.guid.get();
    let sentences = remarks.join(". ");
    PoolStatus {
        root,
        commit: plan.root.commit.get(),
        status: (!sentences.is_empty()).then(|| format!("{}.", sentences.trim_end_matches('.'))),
        action,
        see: None,
        scan: None,
        freeing: 0,
        cleaned: 0,
        write_amplification: 100,
        trace: None,
        dedup: None,
        survives,
        damaged: Vec::new(),
        uptime_ns: 0,
    }
}

fn importable_device(candidate: &Candidate, was: Option<&str>, guid: DeviceGuid) -> Vdev {
    let found = candidate.found.as_ref();
    let path = found.map(|found| found.device.name());
    let (state, note) = match candidate.standing {
        Standing::Current | Standing::Spare => (State::Online, None),
        Standing::Rebuilding => (State::Unavail, Some("resilvering".to_owned())),
        Standing::Offline(_) => (State::Unavail, Some("taken offline".to_owned())),
        Standing::Stale(through) => {
            (State::Unavail, Some(format!("out of date: it holds all up to commit {through}")))
        }
        Standing::Missing => (State::Unavail, was.map(|was| format!("was {was}"))),
    };
    let size = found.map_or(0, |found| found.device.size().get());
    Vdev {
        kind: path.as_deref().or(was).map_or("disk", kind).to_owned(),
        guid: guid.get(),
        path: path.clone().or_else(|| was.map(str::to_owned)),
        note,
        size,
        ..sum(&path.unwrap_or_else(|| guid.to_string()), "", state, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::label::GroupWord;
    use larder_format::segment::Layout;

    fn some(states: &[State]) -> Vec<Vdev> {
        states.iter().map(|&state| sum("d", "file", state, Vec::new())).collect()
    }

    #[test]
    fn a_group_is_degraded_while_its_layout_survives() {
        let rule = GroupRule { word: GroupWord::Raidz, layout: Layout::new(2, 1, 1).unwrap() };
        let (on, off) = (State::Online, State::Unavail);
        assert_eq!(group_state(&rule, &some(&[on, on, on])), State::Online);
        assert_eq!(group_state(&rule, &some(&[on, off, on])), State::Degraded);
        assert_eq!(group_state(&rule, &some(&[on, off, off])), State::Faulted);
    }

    #[test]
    fn a_pool_is_as_bad_as_its_worst_group() {
        assert_eq!(worst([State::Online, State::Degraded]), State::Degraded);
        assert_eq!(worst([State::Faulted, State::Degraded]), State::Faulted);
        assert_eq!(worst([]), State::Online);
    }

    #[test]
    fn fragmentation_is_the_share_of_dead_space_in_what_is_free() {
        assert_eq!(fragmentation(0, 0), 0);
        assert_eq!(fragmentation(1, 3), 25);
        assert_eq!(fragmentation(u64::MAX / 2, 0), 100);
    }
}
