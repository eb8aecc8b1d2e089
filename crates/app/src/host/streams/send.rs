//! `fs send`.

use super::super::Host;
use super::plan::{Part as Of, Plan, Source, Step, pool_asked};
use super::{is_here, told};
use crate::api::name::pool_of;
use crate::api::stream::{Emit, Part, Planned, Send as Request};
use crate::api::{ApiError, ErrorKind, Result};
use larder_format::tables::SnapshotRecord;
use larder_pool::{Pool, SnapshotView};
use larder_stream::wire::{
    BEGIN_CLONE, DatasetFrame, Encoder, Frame, STREAM_CLEARS, STREAM_REPLICATES, Start,
};
use larder_stream::{Base, Send};

/// Sends until nobody listens any more.
///
/// # Errors
/// When there are no such snapshots, or they cannot be read: the stream is not whole.
pub fn send(host: &Host, request: &Request, emit: &mut Emit<'_>) -> Result<()> {
    let live = pool_asked(host, request)?;
    send_of(&live.pool, request, &|| is_here(host, &live), emit)
}

/// Sends of a pool, as long as `waits` says that it is there.
///
/// # Errors
/// As [`send`].
pub fn send_of(pool: &Pool, request: &Request, waits: &dyn Fn() -> bool, emit: &mut Emit<'_>) -> Result<()> {
    let doing = || match request.token {
        Some(_) => "cannot resume send".to_owned(),
        None => format!("cannot send '{}'", request.snapshot),
    };
    let plan = Plan::of(pool, request)?;
    let failed = |error| told(error).within(doing()).of_pool(pool_of(&pool.name()));
    let mut planned = Vec::new();
    for step in plan.parts.iter().flat_map(|part| &part.steps) {
        let views = Views::of(pool, step)?;
        let mut send = Send::new(pool, views.base(step), &views.to, position(&plan));
        while request.measured && send.measure().map_err(failed)? {}
        planned.push(Planned {
            to: format!("{}@{}", step.dataset, step.to.name),
            from: step.from.as_ref().map(|from| from.name(pool)),
            bytes: send.sent().bytes,
            at_most: Some(send.sent()).filter(|sent| sent.unsure > 0).map(|sent| sent.bytes + sent.unsure),
        });
    }
    if !emit(Part::Plan(planned), waits) || request.dry_run {
        return Ok(());
    }
    let mut encoder = Encoder::default();
    let mut put = |frame: &Frame| emit(Part::Data(encoder.frame(frame)), waits);
    let name = plan.parts.first().map(|part| pool.full_name(part.dataset.id())).unwrap_or_default();
    let mut flags = if request.replicate { STREAM_REPLICATES } else { 0 };
    let mut steps = plan.parts.iter().flat_map(|part| &part.steps);
    if steps.any(|step| matches!(step.from, Some(Source::Bookmark(..)))) {
        flags |= STREAM_CLEARS;
    }
    let mut listens = put(&Frame::Start(Start { flags, name }));
    for part in &plan.parts {
        // Also where there are none, which is then known.
        if request.replicate || request.properties {
            listens = listens && put(&Frame::Dataset(told_of(pool, part, request)));
        }
        for step in &part.steps {
            let views = Views::of(pool, step)?;
            let mut send = Send::new(pool, views.base(step), &views.to, position(&plan));
            let mut begin = send.begin(&format!("{}@{}", step.dataset, step.to.name)).map_err(failed)?;
            if step.from.as_ref().is_some_and(|from| from.dataset() != step.to.dataset) {
                begin.flags |= BEGIN_CLONE;
            }
            if request.replicate || request.properties {
                begin.own = pool.snapshot_properties(&step.to).unwrap_or_default().into_iter().collect();
            }
            if request.holds {
                begin.holds = pool.snapshot_holds(&step.to).unwrap_or_default().into_keys().collect();
            }
            listens = listens && put(&Frame::Begin(begin));
            while listens && let Some(items) = send.chunk().map_err(failed)? {
                listens = put(&Frame::Chunk(items));
            }
            listens = listens && put(&Frame::End(send.sent().end));
            if !listens {
                break;
            }
        }
    }
    // A reader that is gone misses nothing; one that is there is to know.
    if (listens && put(&Frame::Close)) || waits() {
        return Ok(());
    }
    Err(ApiError::new(ErrorKind::NotFound, "the pool is gone meanwhile").within(doing()))
}

fn position(plan: &Plan) -> Option<larder_format::node::Key> {
    plan.token.as_ref().and_then(|token| token.position)
}

/// Snapshots that are looked into: they cannot be destroyed meanwhile.
struct Views {
    from: Option<SnapshotView>,
    to: SnapshotView,
}

impl Views {
    fn of(pool: &Pool, step: &Step) -> Result<Self> {
        let view = |record: &SnapshotRecord| {
            let gone = || ApiError::no_such_dataset(&format!("{}@{}", step.dataset, record.name));
            pool.snapshot_view_of(record.dataset, record.high).ok_or_else(gone)
        };
        let from = match &step.from {
            Some(Source::Snapshot(from)) => Some(view(from)?),
            _ => None,
        };
        Ok(Self { from, to: view(&step.to)? })
    }

    fn base<'a>(&'a self, step: &'a Step) -> Base<'a> {
        match &step.from {
            Some(Source::Bookmark(_, mark)) => Base::Bookmark(mark),
            _ => self.from.as_ref().into(),
        }
    }
}

fn told_of(pool: &Pool, part: &Of, request: &Request) -> DatasetFrame {
    let id = part.dataset.id();
    let own = part.dataset.own_properties();
    let properties = match request.backup {
        true => own.received().clone(),
        false => own.effective(),
    };
    DatasetFrame {
        path: part.path.clone(),
        properties: properties.into_iter().collect(),
        snapshots: pool.snapshots(id).into_iter().map(|one| (one.guid, one.name)).collect(),
    }
}
