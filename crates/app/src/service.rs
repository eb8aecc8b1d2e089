//! Words between systemd and the daemon: that it is ready, alive, ending; the socket that systemd bound. And
//! how a daemon that a command started makes room for systemd's. Without systemd nobody hears any of it.

use crate::api::{ApiError, ErrorKind, Result};
use crate::run_dir::RunDir;
use listenfd::ListenFd;
use rustix::process::{Signal, pidfd_send_signal};
use sd_notify::NotifyState;
use std::fs::File;
use std::os::unix::net::UnixListener;
use std::time::Duration;
use tracing::{info, warn};

/// Time limit for leaving all pools when a signal ends the daemon. What is not left then is as after a power cut.
pub const LEAVE_LIMIT: Duration = Duration::from_secs(120);
/// More time for a daemon that is not ready yet, each time it asks.
pub const EXTENSION: Duration = Duration::from_secs(30);
/// From one look at a daemon that is to end to the next.
const LOOK: Duration = Duration::from_millis(20);
/// Looks until it is told again that it is waited for.
const LOOKS: u32 = 250;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!("systemd cannot be told: {error}");
    }
}

/// The daemon serves, and what was to be imported is.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The daemon is about to end.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("committing and unmounting")]);
}

/// A line of `systemctl status`.
pub fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// It answers requests; to be told as often as systemd asks for.
pub fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// Asks for more time, before it is ready.
pub fn extend() {
    let more = u32::try_from(EXTENSION.as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::ExtendTimeoutUsec(more)]);
}

/// The socket that systemd bound for this daemon; none where it bound none.
///
/// # Errors
/// When what systemd gave is no such socket.
pub fn given_listener() -> std::io::Result<Option<UnixListener>> {
    let listener = ListenFd::from_env().take_unix_listener(0)?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    Ok(listener)
}

/// Has the daemon of a run folder end as by SIGTERM, which leaves pools committed and unmounted, and takes its lock.
///
/// # Errors
/// When it does not end in time.
pub fn take_over(run_dir: &RunDir) -> Result<File> {
    let looks = LEAVE_LIMIT.as_millis() / LOOK.as_millis() * 3 / 2;
    for turn in 0..u32::try_from(looks).unwrap_or(u32::MAX) {
        if let Some(lock) = run_dir.try_lock()? {
            return Ok(lock);
        }
        if turn % LOOKS == 0 {
            extend();
            // Another may have begun meanwhile. A daemon that is ending takes no notice of a second signal.
            if let Some(daemon) = run_dir.holder() {
                info!("another daemon has the run folder: it is asked to end");
                let _ = pidfd_send_signal(daemon, Signal::TERM);
            }
        }
        pause(LOOK);
    }
    let message = format!("the daemon in {} does not end", run_dir.path().display());
    Err(ApiError::new(ErrorKind::Daemon, message)
        .safe("everything that was committed or synced")
        .hint("larder daemon status tells its pid, and daemon.log in the run folder what it does"))
}

#[expect(clippy::disallowed_methods, reason = "the daemon's only thread yet, waiting for another process")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
