//! A pool that was put together, sent to another one: a stream like any other, of all datasets, their snapshots and
//! clones, which the daemon receives.

use super::{Place, Salvaged};
use crate::api::snapshots::DestroySnapshots;
use crate::api::stream::{Part, Planned, Receive, ReceivedSnapshot, Send};
use crate::api::{ApiError, ErrorKind, Result};
use crate::client::Client;
use crate::host::send_of;
use larder_pool::ROOT_DATASET;
use larder_pool::property::format_size;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Pieces of a stream that wait for the daemon.
const WAITING: usize = 8;

/// Outcome of sending.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Sent {
    /// The dataset that the pool became.
    pub target: String,
    /// Bytes of the stream, about.
    pub bytes: u64,
    /// Datasets.
    pub datasets: u64,
    /// Snapshots of these, by their names there.
    pub snapshots: Vec<String>,
    /// Nothing was sent: so it would be.
    pub dry_run: bool,
}

impl Salvaged {
    /// Sends everything to a dataset that is not there yet. `shown` is told of the bytes that went, of about how many.
    ///
    /// # Errors
    /// When there is no room for it, and nothing is sent then; when it cannot be read or received: what came whole is
    /// there.
    pub fn send_to(
        &self,
        (client, place): (&Client, &Place),
        dry_run: bool,
        shown: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Sent> {
        let now = self.take_snapshots()?;
        let snapshot = format!("{}@{now}", self.pool.full_name(ROOT_DATASET));
        let request = Send { snapshot, replicate: true, properties: true, holds: true, ..Send::default() };
        let planned = self.plan(&request)?;
        let bytes = planned.iter().map(|one| one.bytes).sum();
        let (parent, available) = &place.parent;
        if bytes > *available {
            let (bytes, available) = (format_size(bytes), format_size(*available));
            let message = format!(
                "'{}' would take about {bytes}, and '{parent}' has {available} available: nothing was sent",
                place.name
            );
            return Err(ApiError::new(ErrorKind::NoSpace, message));
        }
        let of_pool = self.pool.full_name(ROOT_DATASET);
        let is_ours = |name: &str| name.rsplit_once('@').is_some_and(|(_, own)| own == now);
        let (heads, snapshots): (Vec<_>, Vec<_>) = planned.iter().partition(|one| is_ours(&one.to));
        let there = |one: &&Planned| format!("{}{}", place.name, &one.to[of_pool.len()..]);
        let sent = Sent {
            target: place.name.clone(),
            bytes,
            datasets: heads.len() as u64,
            snapshots: snapshots.iter().map(there).collect(),
            dry_run,
        };
        if dry_run {
            return Ok(sent);
        }
        self.transfer((client, place), request, &|moved| shown(moved, bytes))?;
        // The newest state needs no name: nothing is to be there that was not.
        let own = DestroySnapshots {
            name: format!("{}@{now}", place.name),
            recursive: true,
            dry_run: false,
            measure: false,
            deferred: false,
            clones: false,
            now: true,
        };
        client.call(own)?;
        Ok(sent)
    }

    /// Takes a snapshot of each dataset; their name, which none had.
    fn take_snapshots(&self) -> Result<String> {
        let datasets: Vec<_> = self.pool.datasets().into_iter().filter(|one| !one.is_staging()).collect();
        let is_free = |name: &String| {
            datasets.iter().all(|dataset| self.pool.snapshot_named(dataset.id(), name).is_err())
        };
        let names = std::iter::once("repaired".to_owned()).chain((1..).map(|n: u32| format!("repaired-{n}")));
        let name = names.into_iter().find(is_free).unwrap_or_default();
        let all = datasets.iter().map(|dataset| (dataset.id(), name.clone())).collect();
        self.pool.snapshot_all(all, BTreeMap::new())?;
        Ok(name)
    }

    fn plan(&self, request: &Send) -> Result<Vec<Planned>> {
        let request = Send { dry_run: true, measured: true, ..request.clone() };
        let mut planned = Vec::new();
        send_of(&self.pool, &request, &|| true, &mut |part, _| {
            if let Part::Plan(plan) = part {
                planned = plan;
            }
            true
        })?;
        Ok(planned)
    }

    fn transfer(
        &self,
        (client, place): (&Client, &Place),
        request: Send,
        shown: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<ReceivedSnapshot>> {
        let receive = Receive { target: place.name.clone(), ..Receive::default() };
        let (pieces, coming) = sync_channel(WAITING);
        let (sent, received) = std::thread::scope(|scope| {
            let sending = scope.spawn(move || self.send(&request, &pieces, shown));
            let received = client.receive(&receive, Pieces { coming, piece: Vec::new(), at: 0 });
            (sending.join(), received)
        });
        let sent = sent.unwrap_or_else(|_| Err(ApiError::new(ErrorKind::Internal, "sending panicked")));
        // Of a stream that broke off the other side knows no more than that.
        let received = sent.and(received).map_err(|error| {
            // A daemon that died is not started to be asked.
            if error.kind == ErrorKind::Daemon || !place.is_there(client) {
                return error;
            }
            let again = format!("larder fs destroy -r {} before it is tried again", place.name);
            ApiError { hint: Some(error.hint.clone().unwrap_or(again)), ..error }
                .safe(format!("what came whole, which is in '{}'", place.name))
        })?;
        Ok(received.received)
    }

    fn send(&self, request: &Send, pieces: &SyncSender<Vec<u8>>, shown: &dyn Fn(u64)) -> Result<()> {
        let mut moved = 0;
        send_of(&self.pool, request, &|| true, &mut |part, _| {
            let Part::Data(bytes) = part else { return true };
            moved += bytes.len() as u64;
            shown(moved);
            pieces.send(bytes).is_ok()
        })
    }
}

/// A stream that comes in pieces.
struct Pieces {
    coming: Receiver<Vec<u8>>,
    piece: Vec<u8>,
    /// Bytes of the piece that were read.
    at: usize,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            // The end, or a failure that the sender tells.
            let Ok(piece) = self.coming.recv() else { return Ok(0) };
            (self.piece, self.at) = (piece, 0);
        }
        let len = into.len().min(self.piece.len() - self.at);
        into[..len].copy_from_slice(&self.piece[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}
