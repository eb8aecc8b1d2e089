//! Streams from one pool to the other and back: whole ones, increments from snapshots, bookmarks and origins of clones,
//! cut anywhere and gone on with later, whatever became of either end meanwhile.

use super::model::{Shown, Taken};
use super::side::{Change, Dice, Side};
use super::tree::{self, Tree};
use larder_format::bookmark::BookmarkRecord;
use larder_format::tables::{ReceivingRecord, SnapshotRecord};
use larder_format::{BlockId, DatasetId};
use larder_pool::{Incoming, PoolError, ReceiveAs, SnapshotView};
use larder_stream::wire::{Begin, Decoder, Encoder, Frame, STREAM_CLEARS, Start};
use larder_stream::{Base, Receive, Send, StreamError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Datasets with a name that may be for another to be received.
const DATASETS: usize = 8;

/// The base of an increment, at the sender.
enum From {
    Nothing,
    Snapshot(Box<SnapshotView>),
    Bookmark(BookmarkRecord),
}

impl From {
    fn base(&self) -> Base<'_> {
        match self {
            Self::Nothing => Base::Nothing,
            Self::Snapshot(view) => Base::Snapshot(view),
            Self::Bookmark(mark) => Base::Bookmark(mark),
        }
    }
}

impl Side {
    /// Datasets that came before a snapshot of one, each with the newest high id of its that did.
    fn line(&self, id: DatasetId, high: BlockId) -> Vec<(DatasetId, BlockId)> {
        let mut line = vec![(id, BlockId::new(high.get() - 1))];
        while let Some((of, high)) = line.last().and_then(|(id, _)| self.now.0.get(id)?.origin) {
            line.push((of, high));
        }
        line
    }

    /// GUIDs of named snapshots and bookmarks that an increment to a snapshot may build upon.
    fn bases(&self, id: DatasetId, to: &SnapshotRecord) -> Vec<u64> {
        let mut all = Vec::new();
        for (of, up_to) in self.line(id, to.high) {
            let Some(set) = self.now.0.get(&of) else { continue };
            let named = set.named().filter(|(high, _)| **high <= up_to).map(|(_, one)| one.guid);
            all.extend(named.filter(|_| !set.is_trash));
            let marks = self.pool().bookmarks(of).into_iter();
            let came = marks.filter(|one| self.pool().came_of(of, one, to) && self.pool().is_traced(one));
            all.extend(came.map(|mark| mark.guid));
        }
        all
    }

    fn from(&self, id: DatasetId, to: &SnapshotRecord, guid: u64, by_bookmark: bool) -> Option<From> {
        if guid == 0 {
            return Some(From::Nothing);
        }
        let mut found = None;
        for (of, up_to) in self.line(id, to.high) {
            let Some(set) = self.now.0.get(&of) else { continue };
            let named = set.named().find(|(high, one)| **high <= up_to && one.guid == guid && !set.is_trash);
            if let Some((_, one)) = named {
                let view = self.pool().snapshot_view(of, &one.name).expect("it is named");
                found = Some(From::Snapshot(Box::new(view)));
            }
            let mut marks = self.pool().bookmarks(of).into_iter();
            let is_good = |one: &BookmarkRecord| {
                one.guid == guid && self.pool().came_of(of, one, to) && self.pool().is_traced(one)
            };
            if let Some(mark) = marks.find(is_good).filter(|_| found.is_none() || by_bookmark) {
                found = Some(From::Bookmark(mark));
            }
        }
        found
    }

    /// The snapshot of a GUID that can be sent.
    fn to_send(&self, guid: u64) -> Option<(DatasetId, SnapshotRecord)> {
        let mut all = self.now.named().flat_map(|(id, set)| set.named().map(move |(_, one)| (id, one)));
        let (id, one) = all.find(|(_, one)| one.guid == guid)?;
        Some((id, self.pool().snapshot_named(id, &one.name).expect("it is named")))
    }

    fn tree_of(&self, guid: u64) -> Option<Arc<Tree>> {
        let mut all = self.now.0.values().flat_map(|set| set.snapshots.values());
        all.find(|one| one.guid == guid).map(|one| Arc::clone(&one.tree))
    }

    /// All bytes of a stream.
    fn send(
        &self,
        id: DatasetId,
        to: &SnapshotRecord,
        from: &From,
        record: Option<&ReceivingRecord>,
    ) -> Vec<u8> {
        let view = self.pool().snapshot_view(id, &to.name).expect("it is named");
        let position = record.and_then(|record| record.position);
        let mut send = Send::new(self.pool(), from.base(), &view, position);
        let flags = if matches!(from, From::Bookmark(_)) { STREAM_CLEARS } else { 0 };
        let mut encoder = Encoder::default();
        let name = self.pool().full_name(id);
        let mut bytes = encoder.frame(&Frame::Start(Start { flags, name: name.clone() }));
        let begin = send.begin(&format!("{name}@{}", to.name)).expect("it is there");
        bytes.extend(encoder.frame(&Frame::Begin(begin)));
        while let Some(items) = send.chunk().unwrap_or_else(|error| panic!("{}: send: {error}", self.label)) {
            let parts = items.chunks(60).map(|part| Frame::Chunk(part.to_vec()));
            parts.for_each(|part| bytes.extend(encoder.frame(&part)));
        }
        bytes.extend(encoder.frame(&Frame::End(send.sent().end)));
        bytes.extend(encoder.frame(&Frame::Close));
        bytes
    }
}

/// A refusal that the receiving side may give to a stream that is right.
fn is_refusal(error: &PoolError) -> bool {
    Side::is_want(error)
        || matches!(error, PoolError::Busy(_) | PoolError::NotFound(_) | PoolError::Exists(_))
}

/// A stream on its way.
struct Stream {
    bytes: Vec<u8>,
    begin: Begin,
    /// The tree that it brings, and the one that it builds upon, if that is known still.
    tree: Arc<Tree>,
    base: Option<Arc<Tree>>,
}

impl Stream {
    fn new(from: &Side, to: &Side, bytes: Vec<u8>) -> Self {
        let begin = begin_of(&mut Decoder::new(&bytes[..]));
        let tree = from.tree_of(begin.to).expect("it was just sent");
        let base = from.tree_of(begin.from).or_else(|| to.tree_of(begin.from));
        Self { bytes, begin, tree, base }
    }
}

fn begin_of<R: std::io::Read>(stream: &mut Decoder<R>) -> Begin {
    let (Ok(Frame::Start(_)), Ok(Frame::Begin(begin))) = (stream.frame(), stream.frame()) else {
        panic!("a stream has another beginning");
    };
    begin
}

/// Sends something, or goes on with what broke off.
pub fn stream(from: &mut Side, to: &mut Side, dice: &Dice) -> &'static str {
    let broken = to.now.named().filter_map(|(id, _)| Some((id, to.pool().received(id)?)));
    match dice.one(broken.collect::<Vec<_>>()).filter(|_| dice.below(4) > 0) {
        Some((target, record)) => go_on(from, to, dice, target, &record),
        None => begin(from, to, dice),
    }
}

fn go_on(
    from: &mut Side,
    to: &mut Side,
    dice: &Dice,
    target: DatasetId,
    record: &ReceivingRecord,
) -> &'static str {
    let found = from.to_send(record.to);
    let base = found.as_ref().and_then(|(id, one)| from.from(*id, one, record.from, dice.one_in(2)));
    let (Some((id, one)), Some(base)) = (found, base) else {
        // It comes from nowhere, or from the other side.
        if dice.one_in(3) {
            to.begin();
            to.pool().abort_receive(target).unwrap();
            to.done_uncommitted(Change::Whole, "abort");
        }
        return "abort stream";
    };
    let bytes = from.send(id, &one, &base, Some(record));
    drop(base);
    let stream = Stream::new(from, to, bytes);
    let incoming = match to.pool().resume_receive(target) {
        Ok(incoming) => incoming,
        Err(error) if is_refusal(&error) => return "refused stream",
        Err(error) => panic!("resume: {error}"),
    };
    deliver(to, dice, target, incoming, stream, "resumed stream")
}

fn begin(from: &mut Side, to: &mut Side, dice: &Dice) -> &'static str {
    let next = dice.one(next_ones(from, to)).filter(|_| dice.below(4) > 0);
    let Some((id, high)) = next.or_else(|| from.some_snapshot(dice)) else { return "nothing" };
    let one = from.pool().snapshot_named(id, &from.now.get(id).snapshots[&high].name).expect("it is named");
    let bases = from.bases(id, &one);
    // Something of it is there already.
    let replicas = to.now.named().flat_map(|(target, set)| {
        let named = set.named().filter(|(_, of)| bases.contains(&of.guid));
        named.map(move |(high, of)| (target, *high, of.guid)).collect::<Vec<_>>()
    });
    let replicas: Vec<_> = replicas.collect();
    let newest: Vec<_> =
        replicas.iter().copied().filter(|(id, high, _)| to.now.get(*id).newest() == Some(*high)).collect();
    let replica = dice.one(if dice.below(4) > 0 && !newest.is_empty() { newest } else { replicas });
    let has_room = to.now.named().count() < DATASETS;
    let origin =
        from.now.get(id).origin.and_then(|at| Some(from.now.0.get(&at.0)?.snapshots.get(&at.1)?.guid));
    let (target, base, guid, made) = match replica {
        // A clone of its own begins as the clone at the sender did.
        Some((of, high, guid)) if Some(guid) == origin && has_room && dice.one_in(2) => {
            let (name, new) = (to.now.get(of).snapshots[&high].name.clone(), to.name("tank/c"));
            let Some(clone) = clone_for(to, of, high, &name, &new) else { return "refused stream" };
            (clone, Some(high), guid, true)
        }
        Some((target, high, guid)) if dice.below(6) > 0 || !has_room => (target, Some(high), guid, false),
        _ if has_room => {
            let name = to.name("tank/r");
            to.begin();
            let made = match to.pool().create_dataset(&name, BTreeMap::new()) {
                Ok(made) => made.id(),
                Err(error) if Side::is_want(&error) => return "refused stream",
                Err(error) => panic!("create: {error}"),
            };
            to.now.add(made, super::model::Set { name, ..Default::default() });
            to.done_uncommitted(Change::Whole, format!("create {made} for a stream"));
            (made, None, 0, true)
        }
        _ => return "nothing",
    };
    if to.pool().received(target).is_some() || to.now.get(target).find(&one.name).is_some() {
        // The daemon refuses it.
        if made {
            to.attach(target);
        }
        return "refused stream";
    }
    let Some(base_there) = from.from(id, &one, guid, dice.one_in(2)) else { panic!("a base is gone") };
    let kind = match (&base_there, made, guid) {
        (_, _, 0) => "whole stream",
        (From::Bookmark(_), ..) => "stream from a bookmark",
        (_, true, _) => "stream of a clone",
        _ => "increment",
    };
    let bytes = from.send(id, &one, &base_there, None);
    drop(base_there);
    let stream = Stream::new(from, to, bytes);
    let record = Receive::record(&stream.begin, &one.name, base, dice.below(1 << 40), true, made);
    to.begin();
    let incoming = match to.pool().receive(target, record, stream.begin.salt) {
        Ok(incoming) => incoming,
        Err(error) if is_refusal(&error) => {
            if made {
                to.attach(target);
            }
            return "refused stream";
        }
        Err(error) => panic!("receive: {error}"),
    };
    deliver(to, dice, target, incoming, stream, kind)
}

/// Snapshots that may follow on the newest one of a dataset of the other side.
fn next_ones(from: &Side, to: &Side) -> Vec<(DatasetId, BlockId)> {
    let newest = to.now.named().filter_map(|(_, set)| Some((set, set.snapshots[&set.newest()?].guid)));
    let newest: Vec<_> = newest.collect();
    let all = from.now.named().flat_map(|(id, set)| set.named().map(move |(high, one)| (id, *high, one)));
    let may_follow = |(id, _, one): &(DatasetId, BlockId, &Taken)| {
        let record = from.pool().snapshot_named(*id, &one.name).expect("it is named");
        let bases = from.bases(*id, &record);
        newest.iter().any(|(set, guid)| bases.contains(guid) && set.find(&one.name).is_none())
    };
    all.filter(may_follow).map(|(id, high, _)| (id, high)).collect()
}

fn clone_for(to: &mut Side, of: DatasetId, high: BlockId, name: &str, new: &str) -> Option<DatasetId> {
    to.begin();
    let made = match to.pool().clone_snapshot(of, name, new, BTreeMap::new()) {
        Ok(made) => made.id(),
        Err(error) if Side::is_want(&error) => return None,
        Err(error) => panic!("clone: {error}"),
    };
    let head = Arc::clone(&to.now.get(of).snapshots[&high].tree);
    let set =
        super::model::Set { name: new.to_owned(), head, origin: Some((of, high)), ..Default::default() };
    to.now.add(made, set);
    to.done_uncommitted(Change::Whole, format!("clone {made} for a stream"));
    Some(made)
}

/// Delivers a stream or the beginning of one; what came whole is taken over, perhaps after other things.
fn deliver(
    to: &mut Side,
    dice: &Dice,
    target: DatasetId,
    incoming: Incoming,
    stream: Stream,
    kind: &'static str,
) -> &'static str {
    // It shares as it did where it comes from.
    to.shares = true;
    let is_shown = |to: &Side| to.mount().volume(target).is_some();
    let len = stream.bytes.len();
    let upto = if dice.one_in(3) { dice.below(len as u64) as usize } else { len };
    let mut decoder = Decoder::new(&stream.bytes[..upto]);
    let mut receive = match Receive::new(to.pool(), incoming, &stream.begin) {
        Ok(receive) => receive,
        Err(error) => panic!("{}: {kind} does not begin: {error}", to.label),
    };
    let begun = matches!((decoder.frame(), decoder.frame()), (Ok(Frame::Start(_)), Ok(Frame::Begin(_))));
    let outcome = if begun { receive.run(&mut decoder) } else { Err(StreamError::Short(0)) };
    if let Err(error) = outcome {
        let is_known = match &error {
            StreamError::Short(_) | StreamError::Read(_) => upto < len,
            StreamError::Pool(error) => is_refusal(error),
            _ => false,
        };
        assert!(is_known, "{}: {kind} into {target}: {error}", to.label);
        drop(receive);
        if !is_shown(to) {
            to.attach(target);
        }
        return if upto < len { "broken stream" } else { "refused stream" };
    }
    let incoming = receive.into_incoming();
    if dice.one_in(3) {
        to.is_receiving = true;
        for _ in 0..1 + dice.below(3) {
            to.administer(dice);
        }
        to.is_receiving = false;
    }
    if dice.one_in(4) {
        to.leave_mark(target);
    }
    take_over(to, dice, target, incoming, &stream, kind)
}

fn take_over(
    to: &mut Side,
    dice: &Dice,
    target: DatasetId,
    incoming: Incoming,
    stream: &Stream,
    kind: &'static str,
) -> &'static str {
    let with = if dice.one_in(2) { ReceiveAs::Next } else { ReceiveAs::Replacement };
    if to.mount().volume(target).is_some() {
        to.detach(target);
    }
    let record = incoming.record();
    let base = record.as_ref().and_then(|record| record.base);
    to.begin_two();
    let finished = incoming.finish(with);
    drop(incoming);
    let told = format!("{kind} into {target} upon {base:?} as {with:?}");
    let outcome = match finished {
        Ok(new) => {
            arrived(to, target, base, &new, stream, with);
            to.done(Change::Parts, told);
            to.promise();
            kind
        }
        Err(error) => {
            assert!(is_refusal(&error), "{}: {told}: {error}", to.label);
            to.tell(|| format!("{told}: {error}"));
            rolled_back(to, target, base, with, &told);
            "refused stream"
        }
    };
    to.attach(target);
    outcome
}

/// The model has the snapshot as well; nothing was lost for it that was to stay.
fn arrived(
    to: &mut Side,
    target: DatasetId,
    base: Option<BlockId>,
    new: &SnapshotRecord,
    stream: &Stream,
    with: ReceiveAs,
) {
    let set = to.now.get(target);
    let newer = set.named().filter(|(high, _)| base.is_none_or(|base| **high > base)).count();
    if with == ReceiveAs::Next {
        assert_eq!(newer, 0, "{}: snapshots newer than the base", to.label);
        match (&stream.base, stream.begin.from) {
            (Some(base), _) => {
                let differs = tree::difference(&set.head, base);
                assert!(differs.is_none(), "{}: a change of {target} is lost: {differs:?}", to.label);
            }
            (None, 0) => assert!(set.head.len() <= 1, "{}: what {target} had is lost", to.label),
            _ => {}
        }
    } else if let Some(base) = base.filter(|base| set.snapshots.contains_key(base)) {
        to.now.rollback(target, base, true).expect("it went back to the base");
        to.done(Change::Parts, format!("{target} goes back to {base} for a stream"));
    } else {
        assert_eq!(newer, 0, "{}: snapshots newer than an origin", to.label);
    }
    assert_eq!(new.guid, stream.begin.to);
    let taken = Taken {
        name: new.name.clone(),
        shown: Shown::Named,
        guid: new.guid,
        holds: Default::default(),
        by_policy: false,
        tree: Arc::clone(&stream.tree),
    };
    to.now.receive(target, base, new.high, taken);
}

/// A refused replacement may have gone back to what it builds upon.
fn rolled_back(to: &mut Side, target: DatasetId, base: Option<BlockId>, with: ReceiveAs, told: &str) {
    let Some(base) = base.filter(|base| to.now.get(target).snapshots.contains_key(base)) else { return };
    if with != ReceiveAs::Replacement {
        return;
    }
    let mut back = to.now.clone();
    if back.rollback(target, base, true).is_err() {
        return;
    }
    let dataset = to.pool().dataset(target).expect("it has a name");
    let head = tree::of_view(to.pool(), &dataset.view().unwrap()).unwrap();
    let named: Vec<_> = to.pool().snapshots(target).into_iter().map(|one| one.high).collect();
    let is_like = |state: &super::model::State| {
        let set = state.get(target);
        *set.head == head && set.named().map(|(high, _)| *high).eq(named.iter().copied())
    };
    if !is_like(&to.now) && is_like(&back) {
        to.now = back;
        to.done_uncommitted(Change::Parts, format!("{told}, refused"));
    }
}
