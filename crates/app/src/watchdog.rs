//! The watch that systemd's watchdog is fed by.

use crate::api::{ApiError, ErrorKind, Result};
use crate::client::{Client, pause};
use crate::run_dir::RunDir;
use crate::service;
use tracing::warn;

/// Tells systemd that the daemon lives, as often as it wants to hear it, and only while requests are answered: they are
/// sent to the socket, as a command does. A daemon that hangs, or that nobody can reach, is silent, and is ended.
///
/// # Errors
/// When the thread cannot be made.
pub fn start(run_dir: &RunDir) -> Result<()> {
    let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let client = Client::new(run_dir.clone());
    let work = move || {
        loop {
            pause(limit / 3);
            match client.status() {
                Ok(Some(_)) => service::alive(),
                Ok(None) => warn!("nobody listens at the daemon's socket"),
                Err(error) => warn!("the daemon does not answer itself: {error}"),
            }
        }
    };
    let thread = std::thread::Builder::new().name("larder-watchdog".to_owned()).spawn(work);
    thread.map(drop).map_err(|error| {
        ApiError::new(ErrorKind::Internal, format!("cannot start the daemon's threads: {error}"))
    })
}
