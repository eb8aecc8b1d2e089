//! `fs send` and `fs receive`.

mod plan;
mod receive;
mod send;
mod zfs;

pub use receive::{abort, receive, token};
pub use send::{send, send_of};

use super::Host;
use super::live::Live;
use crate::api::{ApiError, ErrorKind};
use larder_stream::StreamError;
use std::sync::Arc;

/// Whether a pool is still the one that it was: nobody is waited for who has to do with one that was exported.
fn is_here(host: &Host, live: &Arc<Live>) -> bool {
    host.pool(&live.pool.name()).is_ok_and(|now| Arc::ptr_eq(&now, live))
}

/// An error of a stream, as people are told.
fn told(error: StreamError) -> ApiError {
    match error {
        StreamError::Pool(error) => error.into(),
        StreamError::Read(_) | StreamError::Short(_) => {
            ApiError::new(ErrorKind::Corrupt, "failed to read from stream").hint(error.to_string())
        }
        StreamError::Bad { .. } => {
            ApiError::new(ErrorKind::Corrupt, format!("invalid stream ({error})")).hint("send it again")
        }
        StreamError::RecordTooLong { .. } => ApiError::new(ErrorKind::Unsupported, error.to_string())
            .hint("a pool on larger devices has larger slots"),
    }
}
