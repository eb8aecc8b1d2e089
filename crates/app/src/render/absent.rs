//! Pools that were imported when the last daemon ended, and are not, as `pool status` tells of them.

use crate::api::pool::Absent;
use std::fmt::Write;

/// In the form of a pool's status.
pub fn text(absent: &Absent) -> String {
    let mut text = format!("  pool: {}\n state: UNAVAIL\n", absent.name);
    let _ =
        writeln!(text, "status: It was imported when the daemon stopped, and is not now: {}.", absent.reason);
    if let Some(action) = &absent.action {
        let _ = writeln!(text, "action: {action}");
        let _ = writeln!(
            text,
            "        larder pool export --forget {} has it no longer waited for.",
            absent.name
        );
    }
    text
}
