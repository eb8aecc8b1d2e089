//! Labels that are taken away. A device with one is a pool's, and that pool may be wanted, or in use on another host:
//! whoever clears it says so, and a host that writes to it meanwhile keeps it.

use super::live::HEARTBEAT;
use super::{internal, pause};
use crate::api::{ApiError, ErrorKind, Result};
use larder_device::{AlignedBuf, Device, FileDevice, OpenMode, Request, TIMEOUT};
use larder_format::label::{LABEL_AREA, label_areas};
use larder_format::{ByteLen, DeviceOffset};
use larder_pool::foreign;
use larder_pool::open::{Found, Scan, scan};
use std::path::Path;
use std::sync::Arc;

/// Bytes of a label area that are read at once: a bad sector hides no more.
const PIECE: u64 = 64 << 10;

/// Wipes the labels of a device that belongs to no imported pool. Needs no daemon. `tell` is told what is waited for.
///
/// # Errors
/// When the device is in use, here or on another host, cannot be written, or has no label; when it has one, unless that
/// is forced.
pub fn clear_label(device: &Path, force: bool, tell: &dyn Fn(&str)) -> Result<()> {
    let path = device.display();
    let clear = || {
        // No daemon of this host has it, nor gets it meanwhile.
        let opened = open_to_wipe(device)?;
        let (labelled, whose, exported) = match scan(&opened) {
            Scan::Member(found) => {
                (Some(found.label.device_size), belongs(&found), found.root.is_some_and(|root| root.exported))
            }
            Scan::Damaged(corrupt) => (None, format!("has the damaged label of a pool ({corrupt})"), false),
            Scan::Unsupported(other) => (None, format!("belongs to a pool: {}", other.why), false),
            Scan::Failed(error) => {
                return Err(ApiError::new(ErrorKind::Device, format!("it cannot be read: {error}")));
            }
            Scan::NotOurs => {
                let error = ApiError::new(ErrorKind::NotFound, "it has no label of a Larder pool");
                return Err(match foreign::identify(&*opened) {
                    Ok(Some(foreign)) => {
                        error.hint(format!("it holds {}; wipefs -a {path} takes that away", foreign.what))
                    }
                    _ => error,
                });
            }
        };
        let kept = |kind, message| ApiError::new(kind, message).safe("everything on it; nothing was written");
        if !force {
            return Err(kept(ErrorKind::Exists, format!("it {whose}")).hint(format!(
                "larder pool import -d {path} shows the pool, to be used or destroyed; if nobody wants what is on it: \
                 larder pool labelclear -f {path}"
            )));
        }
        // After an export nobody has it.
        if !exported {
            let watched = 2 * HEARTBEAT;
            tell(&format!(
                "{path} {whose}: watching for {} s whether a host writes to it",
                watched.as_secs()
            ));
            let before = first_area(&opened);
            pause(watched);
            if differ(&before, &first_area(&opened)) {
                return Err(kept(ErrorKind::Busy, format!("it {whose}, and a host is using it right now"))
                    .hint("export the pool on that host; larder pool offline, detach or remove lets a device go"));
            }
        }
        wipe(&*opened, labelled)
    };
    clear().map_err(|error| error.within(format!("cannot clear the label of {path}")))
}

/// The pool that has, or had, a device; after the device's name.
pub(super) fn belongs(found: &Found) -> String {
    let name = &found.label.name;
    let Some(root) = &found.root else {
        return format!("belongs to the pool '{name}', of which it has no state that can be read");
    };
    if root.exported {
        return format!("belongs to the exported pool '{name}'");
    }
    let host = match &found.heartbeat {
        Some(beat) => beat.host_name.clone(),
        None => format!("with id {}", root.host),
    };
    let time = jiff::Timestamp::from_second(root.time.secs).map(|time| {
        let local = time.to_zoned(jiff::tz::TimeZone::system());
        local.strftime(" (%Y-%m-%d %H:%M)").to_string()
    });
    format!(
        "belongs to the pool '{name}', which may be in use: last used by the host {host}{}, and not exported there",
        time.unwrap_or_default()
    )
}

/// Pieces of the area that takes heartbeats and the first copies of roots, as far as they can be read.
fn first_area(device: &Arc<dyn Device>) -> Vec<Option<AlignedBuf>> {
    let start = label_areas(device.size())[0].get();
    let read = |at: u64| {
        let (offset, len) = (DeviceOffset::new(start + at), ByteLen::new(PIECE));
        device.submit(Request::Read { offset, len }).within(TIMEOUT).ok()
    };
    (0..LABEL_AREA).step_by(PIECE as usize).map(read).collect()
}

/// Whether somebody wrote between two looks.
fn differ(before: &[Option<AlignedBuf>], after: &[Option<AlignedBuf>]) -> bool {
    let both =
        before.iter().zip(after).filter_map(|(before, after)| Some((before.as_ref()?, after.as_ref()?)));
    both.into_iter().any(|(before, after)| before[..] != after[..])
}

pub(super) fn open_to_wipe(path: &Path) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(FileDevice::open_with_threads(path, OpenMode::Exclusive, 1)?))
}

/// Overwrites both label areas, also those of the size that the device was labelled with.
pub(super) fn wipe(device: &dyn Device, labelled: Option<ByteLen>) -> Result<()> {
    let failed = |error: larder_device::DeviceError| internal("write", &std::io::Error::other(error));
    let mut areas: Vec<_> = label_areas(device.size()).into();
    areas.extend(labelled.into_iter().flat_map(label_areas));
    let nothing = Arc::new(AlignedBuf::zeroed(LABEL_AREA as usize));
    for offset in areas {
        device
            .submit(Request::Write { offset, data: Arc::clone(&nothing) })
            .within(TIMEOUT)
            .map_err(failed)?;
    }
    device.submit(Request::Flush).within(TIMEOUT).map_err(failed)?;
    Ok(())
}
