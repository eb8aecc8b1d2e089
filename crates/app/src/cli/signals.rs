//! Signals for commands that work long and by themselves.

use crate::api::{ApiError, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a run that was stopped by a signal.
pub const STOPPED: u8 = 3;
/// Exit code of one that left out some files.
pub const IN_PART: u8 = 4;

static STOP: AtomicBool = AtomicBool::new(false);

/// Whether SIGINT or SIGTERM came since [`watch`].
pub fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// At the first signal what is under way ends, and is reported; at the second it all ends.
///
/// # Errors
/// When signals cannot be watched.
#[expect(clippy::disallowed_methods, reason = "a thread of the command's own")]
pub fn watch() -> Result<()> {
    let unable =
        |error: std::io::Error| ApiError::new(ErrorKind::Internal, format!("cannot watch signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(unable)?;
    let guard = runtime.enter();
    let both = signal(SignalKind::interrupt()).and_then(|int| Ok((int, signal(SignalKind::terminate())?)));
    let (mut int, mut term) = both.map_err(unable)?;
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                std::future::poll_fn(|context| match int.poll_recv(context) {
                    Poll::Pending => term.poll_recv(context),
                    came => came,
                })
                .await;
                if STOP.swap(true, Ordering::Relaxed) {
                    std::process::exit(STOPPED.into());
                }
            }
        });
    });
    Ok(())
}
