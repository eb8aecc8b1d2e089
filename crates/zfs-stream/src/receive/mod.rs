//! Receiving: from the records of a stream to files in a [`Sink`].
//!
//! `objects` takes the records as they come, `names` and `finish` do what waits for the end. `state` has what they
//! share. Nothing is undone after an error: whoever asks for a receive gives it a place that can be thrown away.

mod finish;
mod names;
mod objects;
mod state;

pub use state::Received;

use crate::error::ReceiveError;
use crate::notes::Notes;
use crate::record::Begin;
use crate::sink::Sink;
use crate::stream::Streams;
use state::Receiver;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// The guid of the snapshot that a sink received last; 0 for none.
///
/// # Errors
/// When the sink fails, or its notes are damaged.
pub fn received_guid<S: Sink>(sink: &mut S) -> Result<u64, ReceiveError<S::Error>> {
    Ok(Notes::new(sink).head()?.guid)
}

/// Receives the stream that `begin` came from, to its end. A whole one needs a sink that is empty; an increment the one
/// that received the stream before, with nothing changed since. After an error the sink is half done.
///
/// Memory: 8 bytes an object of the stream, the names of the largest directory, and some MiB.
///
/// # Errors
/// [`ReceiveError`].
pub fn receive<R: Read, S: Sink>(
    streams: &mut Streams<R>,
    begin: &Begin,
    sink: &mut S,
) -> Result<Received, ReceiveError<S::Error>> {
    begin.check().map_err(crate::error::StreamError::from)?;
    let root = sink.root();
    let mut notes = Notes::new(sink);
    let head = notes.head()?;
    match begin.from_guid {
        0 if head.end != 0 => return Err(ReceiveError::NotEmpty),
        wanted if wanted != head.guid => return Err(ReceiveError::WrongBase { wanted, here: head.guid }),
        _ => {}
    }
    let staging = notes.sink.staging().map_err(ReceiveError::Sink)?;
    let mut receiver = Receiver {
        notes,
        head,
        order: streams.order(),
        tells_spill: begin.tells_spill,
        root,
        staging,
        touched: Vec::new(),
        changed: BTreeMap::new(),
        dead: BTreeSet::new(),
        owners: BTreeSet::new(),
        filled: (0, 0),
        received: Received::default(),
    };
    while let Some(record) = streams.next_record()? {
        receiver.apply(record)?;
    }
    receiver.finish(begin.to_guid)?;
    Ok(receiver.received)
}
