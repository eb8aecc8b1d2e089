//! `fs receive`.

use super::super::Host;
use super::super::error::NOTHING_CHANGED;
use super::super::live::Live;
use super::super::mounts::{Target, can_mount, target};
use super::{is_here, told, zfs};
use crate::api::fs::Set;
use crate::api::name::{check_dataset, check_snapshot, pool_of};
use crate::api::stream::{Abort, Below, Receive as Request, Received, ReceivedSnapshot};
use crate::api::{ApiError, Done, ErrorKind, Properties, Result};
use crate::replicate::REPLICATED;
use larder_format::DatasetId;
use larder_format::tables::SnapshotRecord;
use larder_pool::{Dataset, Incoming, Limits, PoolError, ReceiveAs};
use larder_stream::wire::{
    BEGIN_CLONE, BEGIN_RESUMED, Begin, DatasetFrame, Decoder, Frame, STREAM_REPLICATES, Start,
};
use larder_stream::{Receive, StreamError, Token};
use larder_zfs_stream::Streams;
use std::collections::BTreeSet;
use std::io::{ErrorKind as IoKind, Read};
use std::sync::Arc;

/// Properties that say where a dataset is seen, which is the receiver's to say.
const PLACES: [&str; 1] = ["mountpoint"];

/// The most properties of a dataset that are taken from a stream.
const PROPERTIES_MAX: usize = 4096;

/// Receives all snapshots of a stream.
///
/// # Errors
/// When the stream is bad or does not fit here: those that came whole stay.
pub fn receive(host: &Host, request: &Request, input: &mut dyn Read) -> Result<Received> {
    let live = host
        .pool(pool_of(&request.target))
        .map_err(|_| ApiError::no_such_dataset(request.target.split('@').next().unwrap_or_default()))?;
    let input = &mut Waiting { input, waits: || is_here(host, &live) };
    let mut first = [0; 1];
    if let Err(error) = input.read_exact(&mut first) {
        return Err(told(StreamError::Read(error)).within("cannot receive"));
    }
    let whole = (&first[..]).chain(input);
    let start = Start { flags: 0, name: String::new() };
    let (dataset, received) = (None, Vec::new());
    let mut coming =
        Coming { live: &live, request, start, dataset, received, properties: None, is_zfs: false };
    match first[0] {
        zfs::FIRST => coming.all_of_zfs(whole)?,
        _ => coming.all(&mut Decoder::new(whole))?,
    }
    Ok(Received { received: coming.received })
}

/// A stream that comes when it comes, as long as its pool is there.
struct Waiting<'a, W> {
    input: &'a mut dyn Read,
    waits: W,
}

impl<W: Fn() -> bool> Read for Waiting<'_, W> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.input.read(into) {
                Err(error) if error.kind() == IoKind::TimedOut => {
                    if !(self.waits)() {
                        return Err(std::io::Error::other("the pool is gone meanwhile"));
                    }
                }
                read => return read,
            }
        }
    }
}

/// Drops what came of a stream that broke off.
pub fn abort(host: &Host, request: &Abort) -> Result<Done> {
    check_dataset(&request.name)?;
    let (live, dataset) = host.dataset(&request.name)?;
    let none = || {
        let name = &request.name;
        ApiError::new(
            ErrorKind::NotFound,
            format!("'{name}' does not have any resumable receive state to abort"),
        )
    };
    let record = live.pool.received(dataset.id()).ok_or_else(none)?;
    if !live.pool.abort_receive(dataset.id()).map_err(ApiError::from)? {
        return Err(none());
    }
    let is_untouched = live.pool.is_untouched(dataset.id())?;
    if record.made && is_untouched && live.table.path(dataset.id()).is_none() {
        live.pool.destroy_dataset(dataset.id())?;
    }
    live.pool.commit()?;
    Ok(Done {})
}

/// A stream that comes.
struct Coming<'a> {
    live: &'a Arc<Live>,
    request: &'a Request,
    start: Start,
    /// The dataset of a package that is at hand: by its name below.
    dataset: Option<DatasetFrame>,
    received: Vec<ReceivedSnapshot>,
    /// Properties of a dataset that are set with its first snapshot.
    properties: Option<Properties>,
    /// It is one of ZFS, which cannot go on where it broke off.
    is_zfs: bool,
}

impl Coming<'_> {
    fn all_of_zfs(&mut self, input: impl Read) -> Result<()> {
        self.is_zfs = true;
        let mut streams = Streams::new(input);
        let doing = "cannot receive stream of ZFS";
        while let Some(begin) =
            streams.next_stream().map_err(|error| zfs::told_of_stream(error).within("cannot receive"))?
        {
            let ours = zfs::told_by(&self.live.pool, &begin).map_err(|error| error.within(doing))?;
            let sender = ours.name.split('@').next().unwrap_or_default();
            if self.start.name.is_empty() {
                self.start.name = sender.to_owned();
            }
            let path =
                sender.strip_prefix(&self.start.name).unwrap_or_default().trim_start_matches('/').to_owned();
            self.dataset = Some(DatasetFrame { path, ..DatasetFrame::default() });
            let (full, own) = self.names(&ours)?;
            let (began, at) = (self.live.pool.store().clock().monotonic(), streams.position());
            if self.request.dry_run {
                self.check(&full, &own, &ours).map_err(|error| within(error, doing))?;
                while streams
                    .next_record()
                    .map_err(|error| zfs::told_of_stream(error).within(doing))?
                    .is_some()
                {}
            } else {
                let incoming = self.target(&full, &own, &ours).map_err(|error| within(error, doing))?;
                let (target, made) = (incoming.target(), incoming.record().is_some_and(|record| record.made));
                let outcome = zfs::fill(self.live, &mut streams, &begin, &incoming);
                let outcome = outcome.and_then(|received| {
                    if let Some(left) = zfs::left_out(&received) {
                        tracing::warn!("{full}@{own}: left out of a stream of ZFS: {left}");
                    }
                    self.take_over(&incoming, &full, &ours)
                });
                drop(incoming);
                outcome
                    .inspect_err(|_| self.drop_rest(target, made, &full))
                    .map_err(|error| within(error, doing))?;
            }
            let bytes = streams.position() - at;
            self.note(format!("{full}@{own}"), &ours, began, bytes);
        }
        Ok(())
    }

    fn note(&mut self, name: String, begin: &Begin, began: std::time::Duration, bytes: u64) {
        let took = self.live.pool.store().clock().monotonic().saturating_sub(began);
        self.received.push(ReceivedSnapshot {
            name,
            sender: begin.name.clone(),
            incremental: begin.from != 0,
            bytes,
            millis: took.as_millis() as u64,
        });
    }

    /// Nothing is kept of a stream, nor the dataset that was made for it.
    fn drop_rest(&self, target: DatasetId, made: bool, full: &str) {
        let pool = &self.live.pool;
        let dropped = pool.abort_receive(target).and_then(|_| {
            let goes = made && self.live.table.path(target).is_none() && pool.is_untouched(target)?;
            if goes { pool.destroy_dataset(target) } else { Ok(()) }
        });
        if let Err(error) = dropped.and_then(|()| pool.commit().map(drop)) {
            tracing::warn!("{full}: what came of a stream is still there: {error}");
        }
    }

    fn all<R: Read>(&mut self, stream: &mut Decoder<R>) -> Result<()> {
        match stream.frame().map_err(|error| told(error).within("cannot receive"))? {
            Frame::Start(start) => self.start = start,
            _ => return Err(told(stream.refuse(larder_stream::Wrong::Order)).within("cannot receive")),
        }
        loop {
            match stream.frame().map_err(|error| told(error).within("cannot receive"))? {
                Frame::Close => return Ok(()),
                Frame::Dataset(dataset) => {
                    self.properties = Some(dataset.properties.iter().cloned().collect());
                    self.prune(&dataset)?;
                    self.dataset = Some(dataset);
                }
                Frame::Begin(begin) => self.snapshot(stream, begin)?,
                _ => return Err(told(stream.refuse(larder_stream::Wrong::Order)).within("cannot receive")),
            }
        }
    }

    /// The dataset that a snapshot goes to, and its own name.
    fn names(&self, begin: &Begin) -> Result<(String, String)> {
        let own = begin.name.rsplit_once('@').map_or("", |(_, own)| own);
        let (target, given) = match self.request.target.split_once('@') {
            Some((target, given)) => (target.to_owned(), given),
            None => (self.request.target.clone(), own),
        };
        let target = self.placed(&target)?;
        check_snapshot(&format!("{target}@{given}"))?;
        Ok((target, given.to_owned()))
    }

    /// The full name of the dataset at hand, below `target`.
    fn placed(&self, target: &str) -> Result<String> {
        let sender = &self.start.name;
        let below = match self.request.below {
            Below::Nothing => None,
            Below::AllButPool => sender.split_once('/').map(|(_, rest)| rest),
            Below::Last => Some(sender.rsplit('/').next().unwrap_or(sender)),
        };
        let path = self.dataset.as_ref().map_or("", |dataset| &dataset.path);
        let parts = [Some(target), below, Some(path)];
        let full: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        let full = full.join("/");
        check_dataset(&full)?;
        Ok(full)
    }

    /// Of a package that replicates, and replaces: what the sender has not any more goes.
    fn prune(&mut self, dataset: &DatasetFrame) -> Result<()> {
        if !self.request.force || self.start.flags & STREAM_REPLICATES == 0 || self.request.dry_run {
            return Ok(());
        }
        self.dataset = Some(dataset.clone());
        let target = self.request.target.split('@').next().unwrap_or_default();
        let full = self.placed(target)?;
        let pool = &self.live.pool;
        let Ok(here) = pool.dataset_by_name(&full) else { return Ok(()) };
        let is_known = |one: &SnapshotRecord| dataset.snapshots.iter().any(|(guid, _)| *guid == one.guid);
        let going = pool.snapshots(here.id()).into_iter().filter(|one| !is_known(one));
        let going: Vec<_> = going.map(|one| (here.id(), one.name)).collect();
        if going.is_empty() {
            return Ok(());
        }
        let mounts = self.live.mounts.lock();
        pool.destroy_snapshots(&going)
            .map_err(|error| ApiError::from(error).within(format!("cannot receive into '{full}'")))?;
        going.iter().for_each(|(dataset, name)| mounts.tell_of_snapshot(*dataset, name));
        Ok(())
    }

    fn snapshot<R: Read>(&mut self, stream: &mut Decoder<R>, begin: Begin) -> Result<()> {
        let (full, own) = self.names(&begin)?;
        let kind = if begin.from == 0 { "new filesystem" } else { "incremental" };
        let doing = format!("cannot receive {kind} stream");
        let began = self.live.pool.store().clock().monotonic();
        let at = stream.at();
        if self.request.dry_run {
            self.check(&full, &own, &begin).map_err(|error| within(error, &doing))?;
            loop {
                match stream.frame().map_err(|error| told(error).within(&doing))? {
                    Frame::End(_) => break,
                    Frame::Chunk(_) => {}
                    _ => return Err(told(stream.refuse(larder_stream::Wrong::Order)).within(&doing)),
                }
            }
        } else {
            let into = self.target(&full, &own, &begin).map_err(|error| within(error, &doing))?;
            self.run(stream, into, &full, &begin).map_err(|error| within(error, &doing))?;
        }
        self.note(format!("{full}@{own}"), &begin, began, stream.at() - at);
        Ok(())
    }

    /// Refuses what cannot be received here; the dataset, if it is there, and the snapshot that the stream builds upon.
    fn check(
        &self,
        full: &str,
        own: &str,
        begin: &Begin,
    ) -> Result<Option<(Arc<Dataset>, Option<SnapshotRecord>)>> {
        let (pool, force) = (&self.live.pool, self.request.force);
        let Ok(dataset) = pool.dataset_by_name(full) else {
            let is_clone = begin.flags & BEGIN_CLONE != 0;
            if begin.from != 0 && !is_clone {
                let message = format!("destination '{full}' does not exist");
                return Err(ApiError::new(ErrorKind::NotFound, message));
            }
            return Ok(None);
        };
        let id = dataset.id();
        if pool.snapshot_named(id, own).is_ok() {
            let message = format!("cannot restore to {full}@{own}: destination already exists");
            return Err(ApiError::new(ErrorKind::Exists, message).safe(NOTHING_CHANGED));
        }
        let goes_on = begin.flags & BEGIN_RESUMED != 0 || self.begins_anew(id, begin);
        if let Some(record) = pool.received(id).filter(|_| !goes_on) {
            if !record.resumable {
                return Err(ApiError::new(
                    ErrorKind::Busy,
                    format!("a stream is being received into {full}"),
                ));
            }
            let message =
                format!("destination {full} contains partially-complete state from \"zfs receive -s\".");
            return Err(ApiError::new(ErrorKind::Busy, message).hint(format!(
                "to go on: larder fs send -t {}\n  to drop it: larder fs receive -A {full}",
                token(&record)
            )));
        }
        if begin.from == 0 {
            if goes_on {
                return Ok(Some((dataset, None)));
            }
            let snapshots = pool.snapshots(id);
            if let Some(one) = snapshots.first() {
                let message = format!(
                    "destination has snapshots (eg. {full}@{})\nmust destroy them to overwrite it",
                    one.name
                );
                return Err(ApiError::new(ErrorKind::Exists, message).safe(NOTHING_CHANGED));
            }
            if !force {
                let message = format!("destination '{full}' exists\nmust specify -F to overwrite it");
                return Err(ApiError::new(ErrorKind::Exists, message).safe(NOTHING_CHANGED));
            }
            return Ok(Some((dataset, None)));
        }
        let all = pool.snapshots(id);
        let origin = pool.origin(id).filter(|origin| origin.guid == begin.from && all.is_empty());
        let found = all.iter().rposition(|one| one.guid == begin.from);
        let base = found.map(|at| all[at].clone()).or(origin);
        let Some(base) = base.filter(|_| force || found.is_none_or(|at| at + 1 == all.len())) else {
            let message = format!("most recent snapshot of {full} does not\nmatch incremental source");
            let hint = match found {
                Some(_) => "-F drops what is newer here; larder fs clone keeps it",
                None => "send from a snapshot that is here as well, or all of it to another name",
            };
            return Err(ApiError::new(ErrorKind::NotFound, message).safe(NOTHING_CHANGED).hint(hint));
        };
        if !force && pool.is_modified_since(id, Some(base.high))? {
            return Err(modified(full));
        }
        Ok(Some((dataset, Some(base))))
    }

    /// The dataset that the snapshot arrives in.
    fn target(&self, full: &str, own: &str, begin: &Begin) -> Result<Incoming> {
        let pool = &self.live.pool;
        let found = self.check(full, own, begin)?;
        let is_resumed = begin.flags & BEGIN_RESUMED != 0;
        if let Some((dataset, _)) = &found
            && self.begins_anew(dataset.id(), begin)
        {
            return Ok(pool.resume_receive(dataset.id())?);
        }
        if is_resumed {
            let none = || {
                let message = format!("'{full}' has no stream that could go on");
                ApiError::new(ErrorKind::NotFound, message).safe(NOTHING_CHANGED)
            };
            let (dataset, _) = found.ok_or_else(none)?;
            let record = pool.received(dataset.id()).ok_or_else(none)?;
            if (record.to, record.position) != (begin.to, Some(begin.position)) {
                let message = format!("it does not go on where the stream into '{full}' broke off");
                let hint = format!("larder fs send -t {}", token(&record));
                return Err(ApiError::new(ErrorKind::NotFound, message).safe(NOTHING_CHANGED).hint(hint));
            }
            return Ok(pool.resume_receive(dataset.id())?);
        }
        let made = found.is_none();
        let (dataset, base) = match found {
            Some(found) => found,
            None => {
                let _mounts = self.live.mounts.lock();
                let clone_of =
                    (begin.flags & BEGIN_CLONE != 0).then(|| self.origin(full, begin)).transpose()?;
                let properties = self.request.properties.clone();
                let made = match &clone_of {
                    Some(origin) => pool.clone_snapshot(origin.dataset, &origin.name, full, properties),
                    None => pool.create_dataset(full, properties),
                };
                (made?, clone_of)
            }
        };
        let seed = pool.store().world.entropy.next_u64();
        let base = base.map(|base| base.high);
        let record = Receive::record(begin, own, base, seed, self.request.resumable && !self.is_zfs, made);
        let incoming = pool.receive(dataset.id(), record, begin.salt);
        Ok(incoming.inspect_err(|_| self.drop_rest(dataset.id(), made, full))?)
    }

    /// Whether a stream is one that broke off before anything came: its rest is all of it.
    fn begins_anew(&self, target: DatasetId, begin: &Begin) -> bool {
        let record = self.live.pool.received(target).filter(|record| record.resumable && !self.is_zfs);
        record.is_some_and(|record| {
            begin.flags & BEGIN_RESUMED == 0
                && (record.to, record.from, record.position) == (begin.to, begin.from, None)
        })
    }

    /// The snapshot that the clone `full` began as: where several datasets have it, that of the nearest.
    fn origin(&self, full: &str, begin: &Begin) -> Result<SnapshotRecord> {
        let pool = &self.live.pool;
        let near = |one: &Dataset| common(&pool.full_name(one.id()), full);
        let having =
            |one: &Arc<Dataset>| pool.snapshots(one.id()).into_iter().find(|one| one.guid == begin.from);
        let found = pool.datasets().into_iter().filter_map(|one| Some((near(&one), having(&one)?)));
        found.max_by_key(|(near, _)| *near).map(|(_, snapshot)| snapshot).ok_or_else(|| {
            ApiError::new(ErrorKind::NotFound, "the snapshot that the clone began as is not here")
                .hint("send its dataset first, or both with -R")
        })
    }

    fn run<R: Read>(
        &mut self,
        stream: &mut Decoder<R>,
        incoming: Incoming,
        full: &str,
        begin: &Begin,
    ) -> Result<()> {
        let (pool, target) = (&self.live.pool, incoming.target());
        let made = incoming.record().is_some_and(|record| record.made);
        let outcome = Receive::new(pool, incoming, begin).and_then(|mut receive| {
            receive.run(stream)?;
            Ok(receive.into_incoming())
        });
        let (why, error) = match outcome {
            // The engine knows datasets by number alone.
            Err(StreamError::Pool(PoolError::Quota(of))) => {
                let why = format!("the quota of {} is used up", pool.full_name(of));
                (Some(why.clone()), ApiError { message: why, ..PoolError::Quota(of).into() })
            }
            Err(error) => (saved_because(&error), told(error)),
            Ok(incoming) => match self.take_over(&incoming, full, begin) {
                Ok(()) => return Ok(()),
                // All came: it may fit when what stands in its way is gone.
                Err(error) => ((error.kind == ErrorKind::Busy).then(|| error.message.clone()), error),
            },
        };
        let record = pool.received(target).filter(|record| record.resumable);
        if let (Some(record), Some(why)) = (record, why) {
            // A stream that goes on by a token brings none. A limit could stop the rest.
            if made {
                self.receive_properties(target, begin, false)?;
            }
            pool.commit()?;
            let message = format!(
                "{why}.\nPartially received snapshot is saved.\n\
                 A resuming stream can be generated on the sending system by running:\n    zfs send -t {}",
                token(&record)
            );
            return Err(ApiError { message, hint: error.hint, ..ApiError::new(error.kind, "") });
        }
        self.drop_rest(target, made, full);
        Err(error)
    }

    /// It is whole: the dataset becomes it, and is mounted again.
    fn take_over(&mut self, incoming: &Incoming, full: &str, begin: &Begin) -> Result<()> {
        let live = self.live;
        let pool = &live.pool;
        let with = if self.request.force { ReceiveAs::Replacement } else { ReceiveAs::Next };
        let target = incoming.target();
        let mut mounts = live.mounts.lock();
        let shown = mounts.unmount_snapshots_of(target)?;
        let gone = mounts.unmount(target);
        let finished = gone.and_then(|gone| {
            let finished = mounts
                .wait_until_gone(target)
                .and_then(|()| incoming.finish(with).map_err(|error| refused(error, full)));
            if finished.is_err() {
                mounts.mount_again(&gone);
            }
            finished.map(|record| (record, gone))
        });
        mounts.mount_snapshots_again(shown);
        let (record, gone) = finished?;
        mounts.tell_of_snapshot(target, &record.name);
        let set = self.set_properties(target, begin, &record).and_then(|()| Ok(pool.commit().map(drop)?));
        // A dataset that is new is mounted as any other that is made.
        let is_first = pool.snapshots(target).len() == 1;
        if let Some(dataset) = pool.dataset(target) {
            let by_itself = can_mount(pool, &dataset) == "on" && is_first && !self.request.unmounted;
            let has_place = matches!(self::target(pool, &dataset), Target::Path(_));
            if has_place && (by_itself || gone.contains(&target)) && mounts.path(target).is_none() {
                // That it cannot be mounted takes nothing from what came.
                if let Err(error) = mounts.mount(&dataset) {
                    tracing::warn!("{full}: received, and not mounted: {}", error.message);
                }
            }
        }
        let others: Vec<_> = gone.iter().filter(|id| **id != target).copied().collect();
        mounts.mount_again(&others);
        set
    }

    /// Properties of the dataset that came are in place of those that came before; those of nobody's business here are
    /// noted, and have no effect.
    fn receive_properties(&mut self, target: DatasetId, begin: &Begin, with_limits: bool) -> Result<()> {
        let pool = &self.live.pool;
        let full = pool.full_name(target);
        let of_begin: Properties = begin.properties.iter().cloned().collect();
        let carried = self.properties.take().or(Some(of_begin).filter(|carried| !carried.is_empty()));
        let Some(carried) = carried else { return Ok(()) };
        if carried.len() > PROPERTIES_MAX {
            let beyond = format!("{} of them are too many", carried.len());
            passed_over(&full, "what comes after the first properties", &beyond);
        }
        let mut brought = Properties::new();
        // Where the sender replicates to is nothing that this dataset does.
        let wanted =
            |name: &str| !name.starts_with(REPLICATED) && (with_limits || !Limits::NAMES.contains(&name));
        for (name, value) in carried.into_iter().take(PROPERTIES_MAX).filter(|(name, _)| wanted(name)) {
            let one = Properties::from([(name.clone(), value)]);
            match (Set { names: vec![full.clone()], properties: one }.checked()) {
                Ok(set) => brought.extend(set.properties),
                Err(error) => passed_over(&full, &name, &error),
            }
        }
        let dataset = pool.dataset(target).ok_or_else(|| ApiError::no_such_dataset(&full))?;
        let mut masked: BTreeSet<_> = self.request.without.iter().cloned().collect();
        // A place that somebody let have effect was that one alone.
        let known = dataset.own_properties();
        let places = PLACES.into_iter().filter(|name| known.received().get(*name) != brought.get(*name));
        masked.extend(places.map(str::to_owned));
        let refused = pool.receive_properties(target, &brought, &masked)?;
        refused.iter().for_each(|(name, error)| passed_over(&full, name, error));
        Ok(())
    }

    /// Properties and holds that came with a snapshot, and properties that were asked for.
    fn set_properties(&mut self, target: DatasetId, begin: &Begin, record: &SnapshotRecord) -> Result<()> {
        self.receive_properties(target, begin, true)?;
        let pool = &self.live.pool;
        let full = pool.full_name(target);
        for (name, value) in &self.request.properties {
            pool.set_property(target, name, value)?;
        }
        for (name, value) in &begin.own {
            let one = Properties::from([(name.clone(), value.clone())]);
            let names = vec![format!("{full}@{}", record.name)];
            let set = Set { names, properties: one }
                .checked()
                .and_then(|_| Ok(pool.set_snapshot_property(record, name, Some(value))?));
            let _ = set.inspect_err(|error| passed_over(&full, name, error));
        }
        for tag in &begin.holds {
            let held = pool.hold_snapshots(&[(target, record.name.clone())], tag);
            let _ = held.inspect_err(|error| passed_over(&full, tag, error));
        }
        Ok(())
    }
}

/// Tells of a part of a stream that cannot be here: a limit that does not fit, or a value that cannot be, is no reason
/// to refuse the data.
fn passed_over(full: &str, name: &str, error: &dyn std::fmt::Display) {
    tracing::warn!("{full}: {} of the stream is not set: {error}", name.escape_default());
}

/// Number of parts that two names of datasets have in common, from the pool on.
fn common(a: &str, b: &str) -> usize {
    a.split('/').zip(b.split('/')).take_while(|(a, b)| a == b).count()
}

/// Says what could not be done, where the error does not say it by itself.
fn within(error: ApiError, doing: &str) -> ApiError {
    if error.message.starts_with("cannot restore") { error } else { error.within(doing) }
}

/// The token by which a stream goes on.
pub fn token(record: &larder_format::tables::ReceivingRecord) -> String {
    let token = Token {
        to: record.to,
        from: record.from,
        position: record.position,
        bytes: record.bytes,
        name: record.sender.clone(),
    };
    token.encode()
}

/// Words for what ended a stream whose rest may be better; none when all of it is bad.
fn saved_because(error: &StreamError) -> Option<String> {
    let is_cut = |error: &StreamError| match error {
        StreamError::Short(_) | StreamError::Read(_) => true,
        StreamError::Bad { wrong, .. } => *wrong == larder_stream::Wrong::Sum,
        _ => false,
    };
    match error {
        StreamError::Pool(error @ (PoolError::NoSpace | PoolError::Suspended(_))) => Some(error.to_string()),
        error => is_cut(error).then(|| "checksum mismatch or incomplete stream".to_owned()),
    }
}

fn refused(error: PoolError, full: &str) -> ApiError {
    match error {
        PoolError::Busy(text) if text.contains("modified") => modified(full),
        PoolError::Busy(text) => ApiError::new(ErrorKind::Busy, text).safe(NOTHING_CHANGED),
        PoolError::Exists(name) => {
            let message = format!("cannot restore to {name}: destination already exists");
            ApiError::new(ErrorKind::Exists, message)
        }
        error => error.into(),
    }
}

fn modified(full: &str) -> ApiError {
    let message = format!("destination {full} has been modified\nsince most recent snapshot");
    ApiError::new(ErrorKind::Busy, message)
        .safe(NOTHING_CHANGED)
        .hint("-F drops what was changed here; larder fs diff tells what that is")
}
