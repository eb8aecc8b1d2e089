//! Streams of ZFS: files that are written into the staging dataset, and taken over with it.

use super::super::live::Live;
use crate::api::{ApiError, ErrorKind, Result};
use larder_files::FsError;
use larder_format::Timestamp;
use larder_format::items::NAME_SALT_LEN;
use larder_format::node::Key;
use larder_pool::{Incoming, Pool};
use larder_stream::wire::{BEGIN_CLONE, Begin};
use larder_zfs_receive::receive;
use larder_zfs_stream::{Begin as ZfsBegin, ReceiveError, Received, StreamError, Streams};
use std::io::Read;

/// Settings of the staging dataset: as long as it is nobody's, all that comes is taken.
const OPEN: [(&str, &str); 3] = [("readonly", "off"), ("xattr", "on"), ("acltype", "posix")];

/// First byte of all streams of ZFS, in either order of bytes; ours begin with another.
pub const FIRST: u8 = 0;

/// The snapshot that a stream of ZFS brings, as one of ours would say it.
pub fn told_by(pool: &Pool, begin: &ZfsBegin) -> Result<Begin> {
    let unclear = || ApiError::new(ErrorKind::Unsupported, "the snapshot's name is no text that can be kept");
    let name = String::from_utf8(begin.to_name.clone()).map_err(|_| unclear())?;
    let mut salt = [0; NAME_SALT_LEN];
    for part in salt.chunks_exact_mut(8) {
        part.copy_from_slice(&pool.store().world.entropy.next_u64().to_le_bytes());
    }
    Ok(Begin {
        to: begin.to_guid,
        from: begin.from_guid,
        created: Timestamp { secs: i64::try_from(begin.creation).unwrap_or(i64::MAX), nanos: 0 },
        flags: if begin.is_clone { BEGIN_CLONE } else { 0 },
        next_inode: 2,
        salt,
        position: Key::MIN,
        name,
        properties: Vec::new(),
        own: Vec::new(),
        holds: Vec::new(),
    })
}

/// Writes the files of a snapshot into the staging dataset; all is committed at the end.
pub fn fill<R: Read>(
    live: &Live,
    streams: &mut Streams<R>,
    begin: &ZfsBegin,
    incoming: &Incoming,
) -> Result<Received> {
    let staging = incoming.staging();
    for (name, value) in OPEN {
        live.pool.set_property(staging.id(), name, value)?;
    }
    let volume = live.mounts.lock().attach_unseen(staging)?;
    let received = receive(streams, begin, &volume).map_err(told);
    let stored = received.and_then(|received| live.pool.commit().map(|_| received).map_err(Into::into));
    drop(volume);
    live.mounts.lock().detach_unseen(staging.id())?;
    stored
}

/// Words for what was left out; none when nothing was.
pub fn left_out(received: &Received) -> Option<String> {
    let all = [
        (received.access_lists, "access lists (the modes are kept)"),
        (received.domain_owners, "owners of a domain"),
        (received.left_xattrs, "extended attributes"),
        (received.left_names, "names of what no file can be"),
    ];
    let left = all.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let left: Vec<_> = left.collect();
    (!left.is_empty()).then(|| left.join(", "))
}

/// An error of reading a stream, as people are told.
pub fn told_of_stream(error: StreamError) -> ApiError {
    match error {
        StreamError::Io(_) | StreamError::Truncated(_) => {
            ApiError::new(ErrorKind::Usage, "failed to read from stream").hint(error.to_string())
        }
        StreamError::Refused(refusal) => ApiError::new(ErrorKind::Unsupported, refusal.to_string()),
        error => ApiError::new(ErrorKind::Corrupt, format!("invalid stream ({error})")).hint("send it again"),
    }
}

fn told(error: ReceiveError<FsError>) -> ApiError {
    match error {
        ReceiveError::Stream(error) => told_of_stream(error),
        ReceiveError::Sink(error) => error.into(),
        ReceiveError::WrongBase { .. } => ApiError::new(
            ErrorKind::NotFound,
            "its base was not received from ZFS, or is not the one that was",
        )
        .hint("a whole stream, without -i, into another dataset"),
        error => ApiError::new(ErrorKind::Corrupt, error.to_string()),
    }
}
