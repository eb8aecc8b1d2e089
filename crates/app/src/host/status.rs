//! State of pools: imported ones, and those on devices that could be imported.

use super::advice::{Advice, advice};
use super::devices::file_of;
use super::error::way_out;
use super::live::Live;
use super::remembered::Remembered;
use super::{Host, chronicle, collection, figures, maintenance, roster};
use crate::api::dedup::{DedupStatus, Rebuild};
use crate::api::figures::Waits;
use crate::api::pool::{Class, Io, PoolStatus, Role, State, Trim, TrimState, Vdev};
use larder_format::label::GroupRule;
use larder_format::root::{GroupRole, NO_GROUP, RootDevice};
use larder_format::{DeviceGuid, GroupIndex, HostId};
use larder_pool::GroupUse;
use larder_pool::Pool;
use larder_pool::RebuildProgress;
use larder_pool::member::{Member, MemberState};
use larder_pool::open::{Candidate, Importable, Standing};
use larder_pool::roles::is_vital;
use larder_upkeep::Upkeep;
use std::sync::atomic::{AtomicU64, Ordering};

impl Host {
    /// The state of an imported pool.
    pub(super) fn status(&self, live: &Live) -> PoolStatus {
        let (pool, upkeep) = (&live.pool, &live.upkeep);
        let mut classes = Sorted::default();
        for group in pool.store().groups() {
            let members: Vec<_> = pool.store().members().of_group(group.index).collect();
            // One may have left since.
            let lost = |column: usize| members.get(column).is_none_or(|member| !member.is_online());
            let state = state_of(&group.rule, members.len(), lost);
            let places =
                members.iter().enumerate().map(|(column, member)| place(upkeep, member, column, &group));
            // One that is gone is only a number in what was written before.
            let leaving =
                pool.store().members().iter().filter(|member| {
                    member.group == group.index && member.is_leaving() && member.is_online()
                });
            let leaving = leaving.map(|member| device(upkeep, &member, Some(&group)));
            let copies = group.rule.layout.r() as u64;
            let bytes = |slots: u64| slots * u64::from(group.slot_size) / copies;
            let space = Some((bytes(group.slots.0), bytes(group.slots.1)));
            let mut vdev =
                group_vdev(group.index, &group.rule, state, space, places.chain(leaving).collect());
            if group.leaving {
                vdev.note = Some("(leaving)".to_owned());
            }
            classes.put(group.role, vdev);
        }
        let Sorted { data: children, mut classes, state } = classes;
        let caches = pool.store().members().caches();
        if !caches.is_empty() {
            let vdevs = caches.iter().map(|cache| device(upkeep, cache, None)).collect();
            classes.push(Class { head: "cache".to_owned(), vdevs });
        }
        let state = match pool.store().suspended() {
            Some(_) => State::Suspended,
            None => state,
        };
        let (allocated, size) = pool.store().raw_space();
        let mut root = sum(&pool.name(), "root", state, children);
        (root.guid, root.size, root.allocated) = (pool.store().identity().get(), size, allocated);
        let others = classes.iter().filter(|class| class.is_vital()).flat_map(|class| &class.vdevs);
        root.io = others.fold(root.io, |sum, vdev| sum.plus(vdev.io));
        root.fragmentation = fragmentation(pool.store().dead_space(), size.saturating_sub(allocated));
        let trace = collection::status(upkeep);
        let expandable = upkeep.devices.expandable(super::repair::RECORD);
        let damaged = chronicle::damaged(live);
        let Advice { status, action, see } = advice(live, (&root, &classes), trace.as_ref(), damaged.len());
        PoolStatus {
            root,
            commit: pool.store().durable_commit().get(),
            status,
            action,
            see,
            scans: maintenance::scans(live),
            spares: spares(upkeep),
            classes,
            log_survives: pool.store().log_survives().map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            read_cache: figures::read_cache(pool),
            freeing: pool.freeing_bytes(),
            trash: pool.trash_bytes(),
            cleaned: pool.cleaned_bytes(),
            write_amplification: pool.writes().amplification_percent(),
            trace,
            dedup: dedup(pool),
            reshaping: upkeep.reshape.left(),
            reshaping_stuck: upkeep.reshape.stuck(),
            rebalance: maintenance::rebalance(live),
            to_gain: pool.store().gain(super::repair::RECORD),
            to_expand: expandable.devices.iter().map(|member| roster::called(pool, member)).collect(),
            expand_gain: expandable.gain,
            pass: super::passes::unfinished(live),
            survives: u32::try_from(pool.store().losses_survived()).unwrap_or(u32::MAX),
            damaged,
            uptime_ns: live.uptime_ns(),
        }
    }
}

/// Note of a device that waits for data that nobody can give it.
const WAITING: &str = "(waiting: the old device could not be read whole)";

/// The devices that wait to take the place of others, and those that are doing so.
fn spares(upkeep: &Upkeep) -> Vec<Vdev> {
    let pool = upkeep.pool();
    let waiting = pool.store().members().spares().into_iter().map(|spare| {
        let mut vdev = device(upkeep, &spare, None);
        if vdev.state == State::Online {
            vdev.state = State::Avail;
        }
        vdev
    });
    let in_use =
        pool.store().members().iter().filter(|member| is_spare_in_use(pool, member)).map(|member| Vdev {
            state: State::InUse,
            note: Some("currently in use".to_owned()),
            ..device(upkeep, &member, None)
        });
    waiting.chain(in_use).collect()
}

fn is_spare_in_use(pool: &Pool, member: &Member) -> bool {
    member.stands_for.is_some() && roster::came_as_spare(pool, member.guid)
}

/// A place in a group: a device, or two while one takes the place of the other.
fn place(upkeep: &Upkeep, member: &Member, column: usize, group: &GroupUse) -> Vdev {
    let pool = upkeep.pool();
    let old = device(upkeep, member, Some(group));
    let Some(new) = pool.store().members().stand_in(member.index) else { return old };
    let kind = if is_spare_in_use(pool, &new) { "spare" } else { "replacing" };
    let state = if member.is_online() { State::Online } else { State::Degraded };
    let (size, allocated) = (old.size, old.allocated);
    let both = vec![old, device(upkeep, &new, Some(group))];
    Vdev { size, allocated, ..sum(&format!("{kind}-{column}"), kind, state, both) }
}

/// State of the dedup index, when there is one.
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
        near_hits: figures.locality_hits,
        refused: figures.refused,
        stale: figures.stale,
        refuted: figures.refuted,
        damaged: figures.damaged,
        dropped: figures.dropped,
        saved: figures.saved_bytes,
    })
}

/// An imported pool's state.
pub fn health(live: &Live) -> State {
    if live.pool.store().suspended().is_some() {
        return State::Suspended;
    }
    let groups = live.pool.store().groups();
    let members = |group: &GroupUse| live.pool.store().members().of_group(group.index).collect::<Vec<_>>();
    let states = groups.iter().map(|group| {
        let members = members(group);
        let lost = |column: usize| members.get(column).is_none_or(|member| !member.is_online());
        let state = state_of(&group.rule, members.len(), lost);
        counted(group.role, state)
    });
    worst(states)
}

fn device(upkeep: &Upkeep, member: &Member, group: Option<&GroupUse>) -> Vdev {
    let pool = upkeep.pool();
    let present = member.size().is_some();
    let path = roster::path(pool, member);
    let (state, note) = match member.state() {
        // It may be slow.
        MemberState::Online if member.is_leaving() => (State::Online, Some("(leaving)".to_owned())),
        MemberState::Online => (State::Online, member.reason().or_else(|| retired(pool, member))),
        MemberState::Rebuilding => (State::Online, Some("(resilvering)".to_owned())),
        MemberState::Waiting => (State::Online, Some(WAITING.to_owned())),
        MemberState::Missing => (State::Unavail, path.as_ref().map(|path| format!("was {path}"))),
        MemberState::Stale => (
            State::Unavail,
            Some(format!("out of date: it holds all up to commit {}", member.good_through())),
        ),
        MemberState::Offline => (State::Offline, None),
        MemberState::Faulted if roster::is_gone(member) => (State::Removed, None),
        MemberState::Faulted => {
            (State::Faulted, Some(member.reason().unwrap_or_else(|| "too many errors".to_owned())))
        }
    };
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &member.counters;
    let used = group.and_then(|group| {
        let (_, used, all) = group.devices.iter().find(|(index, ..)| *index == member.index)?;
        let unit = u64::from(group.slot_size);
        Some((used * unit, all * unit))
    });
    let (allocated, size) = match used {
        Some(used) => used,
        None if member.is_cache && present => {
            let size = u64::from(member.slot_count()) * u64::from(member.slot_size);
            (pool.store().read_cache.filled(member.index), size)
        }
        None => (0, member.size().map_or(0, |size| size.get())),
    };
    Vdev {
        name: match &path {
            Some(path) if present => path.clone(),
            _ => member.guid.to_string(),
        },
        kind: path.as_deref().map_or("disk", kind).to_owned(),
        guid: member.guid.get(),
        index: Some(u32::from(member.index.get())),
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
        trim: group.and_then(|_| trim(upkeep, member)),
        children: Vec::new(),
    }
}

/// State of the trim of a device in use.
fn trim(upkeep: &Upkeep, member: &Member) -> Option<Trim> {
    let known = upkeep.trim.of(member);
    let state = match known.map(|trim| trim.state) {
        _ if !member.is_written() => return None,
        _ if !member.discards() => TrimState::Unsupported,
        None => TrimState::Untrimmed,
        Some(larder_upkeep::TrimState::Active) => TrimState::Active,
        Some(larder_upkeep::TrimState::Suspended) => TrimState::Suspended,
        Some(larder_upkeep::TrimState::Done) => TrimState::Complete,
    };
    Some(Trim {
        state,
        time: known.map(|trim| trim.time.secs),
        trimmed: known.map_or(0, |trim| trim.trimmed),
        total: known.map_or(0, |trim| trim.total),
    })
}

/// Note on a device's slots that are out of use.
fn retired(pool: &Pool, member: &Member) -> Option<String> {
    match pool.store().count_bad_slots(member.guid) {
        0 => None,
        1 => Some("(1 slot retired)".to_owned()),
        count => Some(format!("({count} slots retired)")),
    }
}

/// `file` or `disk`, by path. A device that is not there is called a disk when it was one of `/dev`.
fn kind(path: &str) -> &'static str {
    let path = file_of(path);
    let file = match std::fs::metadata(path) {
        Ok(meta) => meta.is_file(),
        Err(_) => !path.starts_with("/dev"),
    };
    if file { "file" } else { "disk" }
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

/// Groups by their roles, and the worst of their states as the pool's.
struct Sorted {
    data: Vec<Vdev>,
    classes: Vec<Class>,
    state: State,
}

impl Default for Sorted {
    fn default() -> Self {
        Self { data: Vec::new(), classes: Vec::new(), state: State::Online }
    }
}

impl Sorted {
    fn put(&mut self, role: GroupRole, vdev: Vdev) {
        let role = Role::of(role);
        self.state = worst([self.state, counted(role.stored(), vdev.state)]);
        let Some(head) = role.head() else {
            self.data.push(vdev);
            return;
        };
        match self.classes.iter_mut().find(|class| class.head == head) {
            Some(class) => class.vdevs.push(vdev),
            None => self.classes.push(Class { head: head.to_owned(), vdevs: vec![vdev] }),
        }
        // As zpool has them.
        self.classes.sort_by_key(|class| class.head == "logs");
    }
}

/// State of a pool because of a group in this state: it goes on without its log.
fn counted(role: GroupRole, state: State) -> State {
    match state {
        State::Online => State::Online,
        _ if !is_vital(role) => State::Degraded,
        state => state,
    }
}

/// Name of a group of several devices.
pub fn group_name(index: GroupIndex, rule: &GroupRule) -> String {
    format!("{}-{index}", group_kind(rule))
}

/// Its layout: a single device and one that joins or leaves are a mirror to whoever looks.
fn group_kind(rule: &GroupRule) -> String {
    if rule.layout.columns() == 1 { "mirror".to_owned() } else { rule.name() }
}

/// A group of several devices, with bytes in use and in all, or the one device of a group of one.
fn group_vdev(
    index: GroupIndex,
    rule: &GroupRule,
    state: State,
    space: Option<(u64, u64)>,
    mut devices: Vec<Vdev>,
) -> Vdev {
    if devices.len() == 1 {
        return devices.remove(0);
    }
    let mut group = sum(&group_name(index, rule), &group_kind(rule), state, devices);
    let copies = rule.layout.r() as u64;
    (group.allocated, group.size) = space.unwrap_or((group.allocated / copies, group.size / copies));
    // Errors are the devices': above them zpool counts only what could not be made good.
    (group.read_errors, group.write_errors, group.checksum_errors) = (0, 0, 0);
    group
}

/// A vdev made of `children`, with the sum of their space and traffic.
fn sum(name: &str, kind: &str, state: State, children: Vec<Vdev>) -> Vdev {
    let total = |field: fn(&Vdev) -> u64| children.iter().map(field).sum();
    Vdev {
        name: name.to_owned(),
        kind: kind.to_owned(),
        guid: 0,
        index: None,
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
        trim: None,
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
    let mut classes = Sorted::default();
    let mut log_survives = None;
    let mut remarks = plan.remarks.clone();
    let stand_in = |place| {
        let all = plan.root.devices.iter().zip(&plan.devices);
        all.clone().find(|(known, _)| known.stands_for == Some(place))
    };
    for group in &plan.root.groups {
        let all = plan.root.devices.iter().zip(&plan.devices);
        let is_column =
            |known: &RootDevice| known.group == group.index && known.stands_for.is_none() && !known.leaving;
        let here: Vec<_> = all.filter(|(known, _)| is_column(known)).collect();
        let vdev = |(known, candidate): (&RootDevice, &Candidate)| {
            importable_device(candidate, remembered.path(plan.guid, known.guid), known.guid)
        };
        let lost =
            |column: usize| here.get(column).is_none_or(|(_, device)| device.standing != Standing::Current);
        let left = group.rule.layout.losses_survived(lost);
        let can_go_on = left.is_some();
        let left = left.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX));
        match is_vital(group.role) {
            true => survives = survives.min(left),
            false if can_go_on => {
                log_survives = Some(log_survives.map_or(left, |least: u32| least.min(left)))
            }
            false => {}
        }
        let state = state_of(&group.rule, here.len(), lost);
        let places = here.iter().enumerate().map(|(column, &one)| match stand_in(one.0.index) {
            None => vdev(one),
            Some(new) => {
                let state = if lost(column) { State::Degraded } else { State::Online };
                sum(&format!("replacing-{column}"), "replacing", state, vec![vdev(one), vdev(new)])
            }
        });
        classes.put(group.role, group_vdev(group.index, &group.rule, state, None, places.collect()));
    }
    let Sorted { data: children, mut classes, state } = classes;
    let state = match (plan.complete, plan.refusal.is_some()) {
        (true, false) => state,
        _ => State::Unavail,
    };
    if plan.root.destroyed {
        remarks.insert(0, "it was destroyed".to_owned());
    }
    // Nothing rests on devices with copies.
    let counts = |known: &RootDevice| !known.is_cache && !plan.root.is_bygone(known);
    let counting = || plan.root.devices.iter().zip(&plan.devices).filter(|(known, _)| counts(known));
    let missing = counting().filter(|(_, device)| device.found.is_none()).count();
    if missing > 0 {
        remarks.insert(0, format!("{missing} of {} devices are missing", counting().count()));
    }
    let mut action = Some(format!("{command}{}", plan.name));
    if let Some(refusal) = &plan.refusal {
        remarks = vec![refusal.to_string()];
        let hint = way_out(refusal).map(|hint| format!(": {}", hint.replace("POOL", &plan.name)));
        action = Some(format!("the pool cannot be imported as it is{}", hint.unwrap_or_default()));
    } else if !plan.complete {
        action = Some(format!("attach the missing devices, then: {command}{}", plan.name));
        if !plan.bereft().is_empty() {
            let text = "to go on without what could not be read of the one that is missing";
            action = action.map(|action| format!("{action}; {text}: {command}--accept-loss {}", plan.name));
        }
    } else if let Some(holder) = plan.held_by.as_ref().filter(|holder| holder.host != host) {
        remarks.push(format!("it was last used by the host {}, and not exported there", holder.host_name));
        action = Some(format!(
            "on {host}: larder pool export {name}. If that host is dead: {command}--take-over {name}",
            host = holder.host_name,
            name = plan.name
        ));
    }
    let others = |is_cache: bool| -> Vec<Vdev> {
        let all = plan.root.devices.iter().zip(&plan.devices);
        let others = all.filter(|(known, _)| known.group == NO_GROUP && known.is_cache == is_cache);
        let others = others.map(|(known, candidate)| {
            importable_device(candidate, remembered.path(plan.guid, known.guid), known.guid)
        });
        others.collect()
    };
    let (spares, caches) = (others(false), others(true));
    if !caches.is_empty() {
        classes.push(Class { head: "cache".to_owned(), vdevs: caches });
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
        scans: Vec::new(),
        spares,
        classes,
        log_survives,
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
        survives,
        damaged: Vec::new(),
        uptime_ns: 0,
    }
}

fn importable_device(candidate: &Candidate, was: Option<&str>, guid: DeviceGuid) -> Vdev {
    let found = candidate.found.as_ref();
    let path = found.map(|found| found.device.name());
    let (state, note) = match candidate.standing {
        Standing::Current | Standing::Cache => (State::Online, None),
        Standing::Spare => (State::Avail, None),
        Standing::Rebuilding => (State::Online, Some("(resilvering)".to_owned())),
        Standing::Waiting => (State::Online, Some(WAITING.to_owned())),
        Standing::Offline(_) => (State::Offline, None),
        Standing::Stale(through) => {
            (State::Unavail, Some(format!("out of date: it holds all up to commit {through}")))
        }
        Standing::Missing => (State::Unavail, was.map(|was| format!("was {was}"))),
    };
    let size = found.map_or(0, |found| found.device.size().get());
    Vdev {
        kind: path.as_deref().or(was).map_or("disk", kind).to_owned(),
        guid: guid.get(),
        index: Some(u32::from(candidate.index.get())),
        path: path.clone().or_else(|| was.map(str::to_owned)),
        note,
        size,
        ..sum(&path.unwrap_or_else(|| guid.to_string()), "", state, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::label::LayoutKind;
    use larder_format::segment::Layout;

    #[test]
    fn a_group_is_degraded_while_its_layout_survives() {
        let rule = GroupRule { word: LayoutKind::Raidz, layout: Layout::new(2, 1, 1).unwrap() };
        assert_eq!(state_of(&rule, 3, |_| false), State::Online);
        assert_eq!(state_of(&rule, 3, |column| column == 1), State::Degraded);
        assert_eq!(state_of(&rule, 3, |column| column > 0), State::Faulted);
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
