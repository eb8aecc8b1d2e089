//! The real engine: pools on devices, datasets on mounts.

use crate::api::{ApiError, ErrorKind, Result};
use crate::engine::Engine;
use std::path::Path;
use std::sync::Arc;

/// The engine of a daemon that keeps its state in `run_dir`; it has nothing imported yet.
///
/// # Errors
/// When the engine cannot start.
pub fn start(run_dir: &Path) -> Result<Arc<dyn Engine>> {
    Err(ApiError::new(
        ErrorKind::Unsupported,
        format!("this build has no storage engine to run in {}", run_dir.display()),
    ))
}

/// Wipes the labels of a device that belongs to no imported pool. Needs no daemon.
///
/// # Errors
/// When the device is in use, cannot be written, or has no label.
pub fn clear_label(device: &Path) -> Result<()> {
    Err(ApiError::new(ErrorKind::Unsupported, "this build has no storage engine")
        .device(device.to_string_lossy()))
}
