//! The verbs about a pool's devices, scrubs, resilvers and trims: what is asked is looked at, then the pool does it.
//!
//! New devices are opened and looked at as those of a new pool are. Nothing is written before everything has been
//! looked at; a dry run ends there.

use super::create::{free_device, no_device_twice};
use super::devices::{self, file_of, identity};
use super::live::Live;
use super::{Host, chronicle, error, healer, roster};
use crate::api::pool::{Group, Word};
use crate::api::repair::{
    Change, Clear, Offline, Online, Reshape, Reshaped, Resilver, Scrub, ScrubAction, Shape, Told, Trim,
    TrimAction,
};
use crate::api::{ApiError, Done, ErrorKind, Result};
use larder_device::{Device, OpenMode};
use larder_format::label::{GroupRule, LABEL_AREA};
use larder_format::{DeviceIndex, GroupIndex};
use larder_pool::member::{Member, MemberState};
use larder_pool::open::{Found, Scan, scan};
use larder_pool::property::format_size;
use larder_pool::{GroupSpec, Pool, PoolError, PoolSpec, ScrubSince, TrimState};
use std::fs;
use std::sync::Arc;

const NOTHING_CHANGED: &str = "everything: nothing was changed";
/// Records that free space is told in.
const RECORD: u32 = 128 << 10;

/// What the pool refuses.
fn refused(error: PoolError) -> ApiError {
    let error = ApiError::from(error);
    match error.safe {
        None => error.safe(NOTHING_CHANGED),
        Some(_) => error,
    }
}

impl Host {
    /// A pool whose devices can be changed.
    fn writable(&self, name: &str) -> Result<Arc<Live>> {
        let live = self.pool(name)?;
        if live.pool.is_read_only() {
            return Err(ApiError::from(PoolError::ReadOnly).of_pool(name));
        }
        Ok(live)
    }

    /// Takes devices out of use.
    pub(super) fn offline(&self, request: &Offline) -> Result<Done> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        for text in &request.devices {
            let refuse =
                |error: ApiError| error.within(format!("cannot offline {text}")).of_pool(&request.name);
            let member = roster::find(&live.pool, text).map_err(refuse)?;
            can_go(&live.pool, &member).map_err(refuse)?;
            live.pool.offline(member.index, request.temporary).map_err(|error| refuse(refused(error)))?;
        }
        Ok(Done {})
    }

    /// Brings devices back into use.
    pub(super) fn online(&self, request: &Online) -> Result<Told> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let mut told = Told::default();
        for text in &request.devices {
            let note = self
                .online_one(&live, text)
                .map_err(|error| error.within(format!("cannot online {text}")).of_pool(&request.name))?;
            told.notes.extend(note);
        }
        Ok(told)
    }

    fn online_one(&self, live: &Live, text: &str) -> Result<Option<String>> {
        let pool = &live.pool;
        // A path where a missing device is now says by its label which one it is.
        let by_label = || {
            let path = text.contains('/').then_some(text)?;
            let device = devices::open(path, OpenMode::Probe).ok()?;
            let Scan::Member(found) = scan(&device) else { return None };
            pool.members().by_guid(found.label.device).filter(|_| found.label.is_of(pool.sums()))
        };
        let member = match roster::find(pool, text) {
            Ok(member) => member,
            Err(error) => by_label().ok_or(error)?,
        };
        if member.state() == MemberState::Online {
            return Ok(Some(format!("{text} is in use already")));
        }
        if member.state() == MemberState::Waiting {
            let how = format!("larder pool resilver {} tries again", pool.name());
            return Ok(Some(format!(
                "{text} waits for what could not be read of the device that it is to replace: {how}"
            )));
        }
        let named = text.contains('/') && fs::metadata(file_of(text)).is_ok();
        // Where a missing device was last may be where the originals of these copies are.
        let known = |path: &String| member.size().is_some() || live.scope.holds(path);
        let path = if named { Some(text.to_owned()) } else { roster::path(pool, &member).filter(known) };
        let found = match path.as_deref().map(|path| open_again(pool, &member, path)) {
            Some(Ok(found)) => found,
            // Who is not there cannot be done without.
            Some(Err(error)) if member.size().is_none() || member.is_given_up() => return Err(error),
            None if member.size().is_none() => {
                let message = format!("where device {} is now, is not known", member.guid);
                return Err(ApiError::new(ErrorKind::NotFound, message)
                    .safe(NOTHING_CHANGED)
                    .hint("larder pool online POOL PATH, with the path where it is now"));
            }
            _ => None,
        };
        pool.online(member.index, found).map_err(refused)?;
        self.note_path(live, member.index)?;
        Ok(None)
    }

    /// Sets error counts to zero.
    pub(super) fn clear(&self, request: &Clear) -> Result<Done> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let doing = match &request.device {
            Some(device) => format!("cannot clear errors for {device}"),
            None => format!("cannot clear errors for '{}'", request.name),
        };
        let refuse = |error: ApiError| error.within(&doing).of_pool(&request.name);
        let member = request.device.as_deref().map(|text| roster::find(&live.pool, text));
        let index = member.transpose().map_err(refuse)?.map(|member| member.index);
        // One that cannot come back keeps no other from it.
        let mut outcome = live.pool.clear(index).map_err(|error| refuse(refused(error)));
        for member in live.pool.members().iter().chain(live.pool.members().spares()) {
            if member.is_given_up() && index.is_none_or(|index| index == member.index) {
                outcome = outcome.and(self.online_one(&live, &member.name()).map(drop).map_err(refuse));
            }
        }
        outcome.map(|()| Done {})
    }

    /// Changes which devices a pool is made of.
    pub(super) fn reshape(&self, request: &Reshape) -> Result<Reshaped> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let doing = match &request.change {
            Change::Replace { old, new: Some(new) } => format!("cannot replace {old} with {new}"),
            Change::Replace { old, new: None } => format!("cannot replace {old}"),
            Change::Attach { to, new } => format!("cannot attach {new} to {to}"),
            Change::Detach { device, .. } => format!("cannot detach {device}"),
            Change::Add { .. } => format!("cannot add to '{}'", request.name),
            Change::Remove { devices } => format!("cannot remove {}", devices.join(", ")),
        };
        self.change(&live, request).map_err(|error| error.within(doing).of_pool(&request.name))
    }

    fn change(&self, live: &Live, request: &Reshape) -> Result<Reshaped> {
        let pool = &live.pool;
        let mode = if request.dry_run { OpenMode::Probe } else { OpenMode::Exclusive };
        let before = Plan::of(pool);
        let mut after = before.clone();
        let mut notes = Vec::new();
        // What is to be done, once everything has been looked at.
        let act: Box<dyn FnOnce() -> Result<Vec<DeviceIndex>> + '_> = match &request.change {
            Change::Replace { old, new } => {
                let member = roster::find(pool, old)?;
                let path = match new {
                    Some(path) => path.clone(),
                    None => roster::path(pool, &member).ok_or_else(|| {
                        ApiError::usage(format!("where {old} was is not known: name the new device as well"))
                    })?,
                };
                if pool.members().spares().iter().any(|spare| spare.index == member.index) {
                    return Err(ApiError::usage("it is a spare")
                        .safe(NOTHING_CHANGED)
                        .hint(format!("larder pool remove POOL {old}; larder pool add POOL spare {path}")));
                }
                if pool.members().stand_in(member.index).is_some() || member.stands_for.is_some() {
                    return Err(ApiError::new(ErrorKind::Busy, "it is being replaced already")
                        .safe(NOTHING_CHANGED)
                        .hint(format!(
                            "larder pool wait -t resilver POOL, or larder pool detach POOL {old}"
                        )));
                }
                let device = self.new_device(live, &path, mode)?;
                large_enough(&*device, &member, &path)?;
                after.put(member.index, &path);
                notes.push(format!("{path} is being resilvered; {old} stays in use until it has everything"));
                if !member.is_online() {
                    notes = vec![format!("{path} is being resilvered from the other devices")];
                }
                Box::new(move || Ok(vec![pool.replace(member.index, device).map_err(refused)?]))
            }
            Change::Attach { to, new } => {
                let member = roster::find(pool, to)?;
                let group = after.group_of(member.index).ok_or_else(|| no_place(to))?;
                if !matches!(group.word, Word::Single | Word::Mirror) {
                    let message = format!(
                        "{to} is in a {}: only mirrors and single devices can get one device more",
                        group.word
                    );
                    return Err(ApiError::usage(message)
                        .safe(NOTHING_CHANGED)
                        .hint("to replace it: larder pool replace; for more room: larder pool add"));
                }
                let device = self.new_device(live, new, mode)?;
                let smallest = pool.members().of_group(member.group).min_by_key(|member| member.slot_count);
                large_enough(&*device, smallest.as_ref().unwrap_or(&member), new)?;
                group.columns.push(Column { index: None, path: new.clone(), lost: false });
                group.reword()?;
                notes.push(format!("what is stored is being copied to {new}"));
                Box::new(move || Ok(vec![pool.attach(member.index, device).map_err(refused)?]))
            }
            Change::Detach { device, accept_loss: true } => {
                let member = roster::find(pool, device)?;
                let new = pool.members().stand_in(member.index);
                let new = new.ok_or_else(|| {
                    ApiError::usage("nothing replaces it, so there is no loss to accept")
                        .safe(NOTHING_CHANGED)
                })?;
                let called = roster::called(pool, &new);
                if new.state() != MemberState::Waiting {
                    let message = format!("{called}, which is to replace it, is still being resilvered");
                    return Err(ApiError::new(ErrorKind::Busy, message)
                        .safe(NOTHING_CHANGED)
                        .hint("larder pool wait -t resilver POOL; what is lost is known then"));
                }
                after.put(member.index, &called);
                let lost = lost_text(pool);
                notes.push(format!(
                    "{called} takes the place of {device} without {lost}: {} data errors are known \
                     (larder pool status -v {} names the files)",
                    chronicle::damaged(live).len(),
                    request.name
                ));
                notes.push(format!(
                    "{device} is left as it is: larder pool labelclear frees it for other uses"
                ));
                Box::new(move || pool.accept_loss(member.index).map_err(refused).map(|()| Vec::new()))
            }
            Change::Detach { device, accept_loss: false } => {
                let member = roster::find(pool, device)?;
                if let Some(new) = pool.members().stand_in(member.index) {
                    let waits = new.state() == MemberState::Waiting;
                    let new = roster::called(pool, &new);
                    if waits {
                        let message =
                            format!("{new}, which is to replace it, has all of it but {}", lost_text(pool));
                        return Err(ApiError::new(ErrorKind::Device, message).safe(NOTHING_CHANGED).hint(
                            format!(
                                "larder pool status -v POOL names the files; larder pool resilver POOL tries again; to \
                                 go on without what is lost: larder pool detach --accept-loss POOL {device}"
                            ),
                        ));
                    }
                    let message =
                        format!("it is being replaced by {new}, and leaves when that has everything");
                    return Err(ApiError::new(ErrorKind::Busy, message)
                        .safe(NOTHING_CHANGED)
                        .hint(format!("larder pool detach POOL {new} calls it off")));
                }
                if member.stands_for.is_none() {
                    let group = after.group_of(member.index).ok_or_else(|| no_place(device))?;
                    if group.word != Word::Mirror {
                        let message = "only devices of mirrors, and those of a replacing, can be detached";
                        return Err(ApiError::usage(message)
                            .safe(NOTHING_CHANGED)
                            .hint(format!("larder pool offline POOL {device}, or larder pool replace")));
                    }
                    can_go(pool, &member)?;
                    group.columns.retain(|column| column.index != Some(member.index));
                    group.reword()?;
                    notes.push(format!("{device} leaves when what it holds is moved"));
                }
                Box::new(move || pool.detach(member.index).map_err(refused).map(|()| Vec::new()))
            }
            Change::Add { groups, spares } => {
                no_device_twice(groups, spares)?;
                let weakest =
                    before.groups.iter().map(|group| group.rule().map(|rule| rule.layout.tolerance()));
                let weakest = weakest.flatten().min().unwrap_or(0);
                let mut specs = Vec::new();
                for group in groups {
                    let rule = group.word.rule(group.devices.len()).expect("requests are checked");
                    as_safe(&group.word, &rule, weakest)?;
                    let open = |path: &String| self.new_device(live, path, mode);
                    specs.push(GroupSpec {
                        rule,
                        devices: group.devices.iter().map(open).collect::<Result<_>>()?,
                    });
                    let column = |path: &String| Column { index: None, path: path.clone(), lost: false };
                    let columns = group.devices.iter().map(column).collect();
                    after.groups.push(Part { index: None, word: group.word, columns });
                }
                if !specs.is_empty() {
                    let spec = PoolSpec { name: pool.name(), groups: specs.clone(), ashift: pool.ashift() };
                    after.usable += spec.available(RECORD);
                }
                let mut waiting = Vec::new();
                for path in spares {
                    let device = self.new_device(live, path, mode)?;
                    notes.extend(cannot_stand_for(pool, &*device, path));
                    waiting.push(device);
                    after.spares.push(path.clone());
                }
                Box::new(move || {
                    specs.into_iter().try_for_each(|spec| pool.add_group(spec)).map_err(refused)?;
                    let add = |device| pool.add_spare(device).map_err(refused);
                    waiting.into_iter().map(add).collect()
                })
            }
            Change::Remove { devices } => {
                let mut going = Vec::new();
                for text in devices {
                    let member = roster::find(pool, text)?;
                    if !pool.members().spares().iter().any(|spare| spare.index == member.index) {
                        let message = format!("{text} is no spare: what it holds cannot be moved away");
                        return Err(ApiError::new(ErrorKind::Unsupported, message)
                            .safe(NOTHING_CHANGED)
                            .hint(format!(
                                "larder pool replace POOL {text} NEW, or larder pool detach POOL {text}"
                            )));
                    }
                    let name = roster::called(pool, &member);
                    after.spares.retain(|spare| *spare != name);
                    going.push(member.index);
                }
                Box::new(move || {
                    going.into_iter().try_for_each(|index| pool.remove(index)).map_err(refused)?;
                    Ok(Vec::new())
                })
            }
        };
        let (before, after) = (before.shape(), after.shape());
        if after.survives < before.survives {
            let less = before.survives - after.survives;
            let losses =
                if less == 1 { "1 loss less is".to_owned() } else { format!("{less} losses less are") };
            notes.push(format!("{losses} survived"));
        }
        if !request.dry_run {
            for index in act()? {
                self.note_path(live, index)?;
            }
            self.note_group_paths(live)?;
        } else {
            drop(act);
        }
        Ok(Reshaped { name: request.name.clone(), done: !request.dry_run, before, after, notes })
    }

    /// A device that nobody has a claim on, this pool included.
    fn new_device(&self, live: &Live, path: &str, mode: OpenMode) -> Result<Arc<dyn Device>> {
        self.none_is_ours(std::iter::once(path))?;
        if let Ok(device) = devices::open(path, OpenMode::Probe)
            && let Scan::Member(found) = scan(&device)
            && found.label.is_of(live.pool.sums())
            && live.pool.members().by_guid(found.label.device).is_some()
        {
            let message = format!("{path} holds the label of this pool: it is one of its devices");
            return Err(ApiError::new(ErrorKind::Exists, message)
                .at(path)
                .safe(NOTHING_CHANGED)
                .hint(format!("to bring it back into use: larder pool online POOL {path}")));
        }
        free_device(path, mode)
    }

    /// Notes where a device is, with the pool and in the run folder.
    fn note_path(&self, live: &Live, index: DeviceIndex) -> Result<()> {
        let Some(member) = live.pool.members().find(index).filter(|member| member.size().is_some()) else {
            return Ok(());
        };
        if live.pool.members().spares().iter().any(|spare| spare.index == index) {
            roster::note_spare(&live.pool, member.guid)?;
        }
        self.remembered.lock().note(&self.run_dir, live.pool.guid(), [(member.guid, member.name())]);
        roster::note_path(&live.pool, &member)?;
        Ok(())
    }

    /// The same of all.
    fn note_group_paths(&self, live: &Live) -> Result<()> {
        live.pool.members().iter().try_for_each(|member| self.note_path(live, member.index))
    }

    /// Starts, pauses or stops scrubs.
    pub(super) fn scrub(&self, request: &Scrub) -> Result<Done> {
        for name in &request.names {
            let live = self.writable(name)?;
            let doing = match request.action {
                ScrubAction::Start => format!("cannot scrub {name}"),
                ScrubAction::Pause => format!("cannot pause scrubbing {name}"),
                ScrubAction::Stop => format!("cannot cancel scrubbing {name}"),
            };
            scrub_one(&live, request).map_err(|error| error.within(doing).of_pool(name))?;
        }
        Ok(Done {})
    }

    /// Starts, suspends or cancels trims.
    pub(super) fn trim(&self, request: &Trim) -> Result<Done> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let doing = match request.action {
            TrimAction::Start => "cannot trim",
            TrimAction::Suspend => "cannot suspend trimming",
            TrimAction::Cancel => "cannot cancel trimming",
        };
        let what = match request.devices.is_empty() {
            true => request.name.clone(),
            false => request.devices.join(", "),
        };
        trim_some(&live.pool, request)
            .map_err(|error| error.within(format!("{doing} {what}")).of_pool(&request.name))?;
        Ok(Done {})
    }

    /// Starts resilvers from the beginning.
    pub(super) fn resilver(&self, request: &Resilver) -> Result<Done> {
        for name in &request.names {
            let live = self.writable(name)?;
            let doing = format!("cannot restart resilver of {name}");
            let waits = live.pool.members().iter().any(|member| member.state() == MemberState::Waiting);
            if live.pool.resilver_progress().is_none() && !waits {
                let error =
                    ApiError::new(ErrorKind::NotFound, "no device lacks anything").safe(NOTHING_CHANGED);
                return Err(error
                    .within(doing)
                    .hint(format!("larder pool scrub {name} verifies everything")));
            }
            live.pool.resilver_restart().map_err(|error| refused(error).within(doing).of_pool(name))?;
        }
        Ok(Done {})
    }
}

fn trim_some(pool: &Pool, request: &Trim) -> Result<()> {
    let devices: Vec<DeviceIndex> = match request.devices.is_empty() {
        true => {
            // Those to which it applies.
            let state = |member: &Member| pool.trim_of(member).map(|trim| trim.state);
            let applies = |member: &Arc<Member>| match request.action {
                TrimAction::Start => member.discards() && state(member) != Some(TrimState::Active),
                TrimAction::Suspend => state(member) == Some(TrimState::Active),
                TrimAction::Cancel => {
                    matches!(state(member), Some(TrimState::Active | TrimState::Suspended))
                }
            };
            let members = pool.members().iter().filter(|member| member.is_written() && applies(member));
            members.map(|member| member.index).collect()
        }
        false => {
            let found = request.devices.iter().map(|text| Ok(roster::find(pool, text)?.index));
            found.collect::<Result<_>>()?
        }
    };
    if devices.is_empty() {
        return Err(match request.action {
            TrimAction::Start if pool.is_trimming() => ApiError::new(ErrorKind::Busy, "currently trimming")
                .hint("larder pool wait -t trim POOL waits for it, larder pool trim -c POOL cancels it"),
            TrimAction::Start => ApiError::new(ErrorKind::Unsupported, "no device in use supports trim"),
            _ => ApiError::new(ErrorKind::NotFound, "there is no active trim"),
        }
        .safe(NOTHING_CHANGED));
    }
    match request.action {
        TrimAction::Start => pool.trim_start(&devices, request.rate),
        TrimAction::Suspend => pool.trim_suspend(&devices),
        TrimAction::Cancel => pool.trim_cancel(&devices),
    }
    .map_err(refused)
}

fn scrub_one(live: &Live, request: &Scrub) -> Result<()> {
    let pool = &live.pool;
    let progress = pool.scrub_progress();
    let idle = || ApiError::new(ErrorKind::NotFound, "there is no active scrub").safe(NOTHING_CHANGED);
    match request.action {
        ScrubAction::Start => {
            if progress.is_some_and(|progress| !progress.paused) {
                return Err(ApiError::new(ErrorKind::Busy, "currently scrubbing").hint(
                    "larder pool wait -t scrub POOL waits for it, larder pool scrub -s POOL stops it",
                ));
            }
            let what = request.since.map_or(ScrubSince::All, ScrubSince::Before);
            pool.scrub_start(what).map_err(refused)?;
            healer::asked_for(pool)?;
        }
        ScrubAction::Pause => {
            if progress.ok_or_else(idle)?.paused {
                return Err(idle().hint("it is paused: larder pool scrub POOL goes on with it"));
            }
            pool.scrub_pause().map_err(refused)?;
            healer::paused(pool)?;
        }
        ScrubAction::Stop => {
            progress.ok_or_else(idle)?;
            pool.scrub_stop().map_err(refused)?;
        }
    }
    Ok(())
}

/// Opens the device of a member anew, if it is at `path`; nothing when we have it open already.
fn open_again(pool: &Pool, member: &Member, path: &str) -> Result<Option<Found>> {
    if member.size().is_some() && !member.is_given_up() && same_file(path, &member.name()) {
        return Ok(None);
    }
    let device = devices::open_when_free(path, OpenMode::Exclusive)?;
    match scan(&device) {
        Scan::Member(found) if found.label.is_of(pool.sums()) && found.label.device == member.guid => {
            Ok(Some(*found))
        }
        Scan::Failed(error) => {
            Err(ApiError::new(ErrorKind::Device, format!("{path} cannot be read: {error}")))
        }
        _ => {
            let message = format!("{path} is not device {}: it has another label, or none", member.guid);
            Err(ApiError::new(ErrorKind::NotFound, message)
                .at(path)
                .safe(NOTHING_CHANGED)
                .hint(format!("if a new disk is there: larder pool replace POOL {} {path}", member.guid)))
        }
    }
}

fn same_file(a: &str, b: &str) -> bool {
    let of = |path: &str| fs::metadata(file_of(path)).ok().map(|meta| identity(&meta));
    a == b && of(a).is_some() || of(a).is_some() && of(a) == of(b)
}

fn no_place(text: &str) -> ApiError {
    ApiError::usage(format!("{text} has no place in a group: it is a spare, or replaces another device"))
        .safe(NOTHING_CHANGED)
}

/// What could not be read of a device that is being replaced.
pub fn lost_text(pool: &Pool) -> String {
    match pool.resilver_result().filter(|result| result.lost > 0) {
        Some(result) => format!("{} that could not be read", format_size(result.lost_bytes)),
        None => "what could not be read".to_owned(),
    }
}

/// Refuses to do without a device that others need.
fn can_go(pool: &Pool, member: &Member) -> Result<()> {
    let Some(group) = pool.groups().into_iter().find(|group| group.index == member.group) else {
        return Ok(());
    };
    if member.stands_for.is_some() || !member.is_online() {
        return Ok(());
    }
    let columns: Vec<_> = pool.members().of_group(group.index).collect();
    let lost = |column: usize| !columns[column].is_online() || columns[column].index == member.index;
    if group.rule.layout.survives(lost) {
        return Ok(());
    }
    Err(ApiError::new(ErrorKind::Device, "no valid replicas: what it holds could not be read without it")
        .safe(NOTHING_CHANGED)
        .hint("larder pool status POOL shows what else is missing; resilver or replace that first"))
}

/// Refuses groups that are not as safe as those that are there.
fn as_safe(word: &Word, rule: &GroupRule, weakest: usize) -> Result<()> {
    let survives = rule.layout.tolerance();
    if survives == weakest {
        return Ok(());
    }
    let message = format!(
        "the {word} survives {survives} losses, the pool's groups {weakest}: files lie on all of them, so the \
         weakest would count"
    );
    Err(ApiError::usage(message).safe(NOTHING_CHANGED).hint(
        "give it the same word and number of devices as the groups that are there, or make another pool",
    ))
}

/// The least bytes of a device that can take the place of `member`.
fn needed(member: &Member) -> u64 {
    let start = member.label().map_or(LABEL_AREA, |label| label.data_start.get());
    start + u64::from(member.slot_count) * u64::from(member.slot_size) + LABEL_AREA
}

fn large_enough(device: &dyn Device, old: &Member, path: &str) -> Result<()> {
    let (size, needed) = (device.size().get(), needed(old));
    if size >= needed {
        return Ok(());
    }
    let message = format!("{path} is too small: it has {size} bytes, {needed} are needed");
    Err(ApiError::usage(message)
        .at(path)
        .safe(NOTHING_CHANGED)
        .hint("take a device that is at least as large"))
}

/// For which groups a spare is too small.
fn cannot_stand_for(pool: &Pool, device: &dyn Device, path: &str) -> Option<String> {
    let size = device.size().get();
    let most = pool.members().iter().map(|member| needed(&member)).max()?;
    (size < most).then(|| {
        format!(
            "{path} is too small to take the place of every device: it has {size} bytes, {most} are needed"
        )
    })
}

/// A place in a group.
#[derive(Clone)]
struct Column {
    index: Option<DeviceIndex>,
    path: String,
    lost: bool,
}

/// A group as it is or would be.
#[derive(Clone)]
struct Part {
    index: Option<GroupIndex>,
    word: Word,
    columns: Vec<Column>,
}

impl Part {
    fn rule(&self) -> Option<GroupRule> {
        self.word.rule(self.columns.len())
    }

    /// Gives a mirror that became narrower or wider the word that it has now.
    fn reword(&mut self) -> Result<()> {
        self.word = if self.columns.len() == 1 { Word::Single } else { Word::Mirror };
        Group { word: self.word, devices: self.columns.iter().map(|column| column.path.clone()).collect() }
            .check()
    }
}

/// A pool as it is or would be.
#[derive(Clone)]
struct Plan {
    groups: Vec<Part>,
    spares: Vec<String>,
    usable: u64,
}

impl Plan {
    fn of(pool: &Pool) -> Self {
        let groups = pool.groups().into_iter().map(|group| Part {
            index: Some(group.index),
            word: Word::parse(&group.rule.name()).unwrap_or(Word::Single),
            columns: pool
                .members()
                .of_group(group.index)
                .map(|member| Column {
                    index: Some(member.index),
                    path: roster::called(pool, &member),
                    lost: !member.is_online(),
                })
                .collect(),
        });
        let spares = pool.members().spares();
        Self {
            groups: groups.collect(),
            spares: spares.iter().map(|spare| roster::called(pool, spare)).collect(),
            usable: pool.space(RECORD).size,
        }
    }

    /// The group in which a device has a place.
    fn group_of(&mut self, device: DeviceIndex) -> Option<&mut Part> {
        self.groups
            .iter_mut()
            .filter(|group| group.index.is_some())
            .find(|group| group.columns.iter().any(|column| column.index == Some(device)))
    }

    /// Has another device take a place.
    fn put(&mut self, device: DeviceIndex, path: &str) {
        let columns = self.groups.iter_mut().flat_map(|group| &mut group.columns);
        for column in columns.filter(|column| column.index == Some(device)) {
            path.clone_into(&mut column.path);
            column.lost = false;
        }
    }

    fn shape(&self) -> Shape {
        let survives = self.groups.iter().filter_map(|group| {
            let left = group.rule()?.layout.losses_survived(|column| group.columns[column].lost);
            Some(left.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX)))
        });
        let devices = |group: &Part| group.columns.iter().map(|column| column.path.clone()).collect();
        Shape {
            survives: survives.min().unwrap_or(0),
            groups: self
                .groups
                .iter()
                .map(|group| Group { word: group.word, devices: devices(group) })
                .collect(),
            spares: self.spares.clone(),
            usable: self.usable,
        }
    }
}

/// A device with its serial number where the system knows it, for sentences.
pub fn sentence_name(pool: &Pool, member: &Member) -> String {
    roster::path(pool, member).map_or_else(|| format!("device {}", member.guid), |path| error::named(&path))
}
