//! Labels that are taken away. A device with one is a pool's, and that pool may be wanted, or in use on another host:
//! whoever clears it says so, and a host that writes to it meanwhile keeps it.

use super::live::HEARTBEAT;
use super::{internal, pause};
use crate::api::{ApiError, ErrorKind, Result};
use larder_device::{AlignedBuf, Device, FileDevice, OpenMode, Request, TIMEOUT};
use larder_format::label::{HEARTBEAT_OFFSET, LABEL_AREA, LABEL_LEN, label_areas};
use larder_format::{ByteLen, DeviceOffset, is_zero};
use larder_pool::foreign;
use larder_pool::open::{Found, Scan, scan};
use std::collections::BTreeSet;
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
    // No daemon of this host has it, nor gets it meanwhile.
    let cleared = open_to_wipe(device).and_then(|opened| clear_opened(&opened, device, force, tell));
    cleared.map_err(|error| error.within(format!("cannot clear the label of {}", device.display())))
}

/// As [`clear_label`], of a device that is opened.
pub(super) fn clear_opened(
    opened: &Arc<dyn Device>,
    path: &Path,
    force: bool,
    tell: &dyn Fn(&str),
) -> Result<()> {
    let path = path.display();
    let (labelled, whose, free, is_mute) = match scan(opened) {
        Scan::Member(found) => {
            (Some(found.label.device_size), belongs(&found), is_free(&found), is_mute(&found))
        }
        Scan::Damaged(corrupt) => {
            (None, format!("has the damaged label of a pool ({corrupt})"), false, false)
        }
        Scan::Unsupported(other) => (None, format!("belongs to a pool: {}", other.why), false, false),
        Scan::Failed(error) => {
            return Err(ApiError::new(ErrorKind::Device, format!("it cannot be read: {error}")));
        }
        Scan::NotOurs => {
            let error = ApiError::new(ErrorKind::NotFound, "it has no label of a Larder pool");
            return Err(match foreign::identify(&**opened) {
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
    if !free {
        let watched = 2 * HEARTBEAT;
        tell(&format!("{path} {whose}: watching for {} s whether a host writes to it", watched.as_secs()));
        let before = Look::at(opened, labelled);
        pause(watched);
        match before.changed(&Look::at(opened, labelled)) {
            Some(false) if !is_mute => {}
            Some(true) => {
                return Err(kept(ErrorKind::Busy, format!("it {whose}, and a host is using it right now"))
                    .hint("export the pool on that host; larder pool offline, detach or remove lets a device go"));
            }
            None | Some(false) => {
                let message = format!(
                    "it {whose}, and whether a host is using it right now cannot be told: the place of the heartbeat \
                     cannot be read, or takes none"
                );
                return Err(kept(ErrorKind::Device, message).hint(format!(
                    "when it is certain that no host uses it: dd if=/dev/zero bs=1M count=1 conv=notrunc of={path} writes that place \
                     anew; then larder pool labelclear -f {path}"
                )));
            }
        }
    }
    wipe(&**opened, labelled)
}

/// Whether nobody can have a device: its pool was exported, and not imported since. A host that is importing it shows
/// its heartbeat before its first root.
fn is_free(found: &Found) -> bool {
    let Some(root) = found.root.as_ref().filter(|root| root.exported) else { return false };
    match &found.heartbeat {
        Some(beat) => beat.incarnation == root.incarnation,
        None => read_heartbeat(&found.device).is_some_and(|bytes| is_zero(&bytes)),
    }
}

/// Whether a device's pool was destroyed, and not brought back since.
pub(super) fn is_destroyed(found: &Found) -> bool {
    is_free(found) && found.root.as_ref().is_some_and(|root| root.destroyed)
}

/// The pool that has, or had, a device; after the device's name.
pub(super) fn belongs(found: &Found) -> String {
    let name = &found.label.name;
    let Some(root) = &found.root else {
        return format!("belongs to the pool '{name}', of which it has no state that can be read");
    };
    if root.destroyed {
        return format!("belongs to the destroyed pool '{name}'");
    }
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

/// Whether it has a root of an import of which it has no heartbeat: it refuses those, and an idle host writes nothing
/// else.
fn is_mute(found: &Found) -> bool {
    let Some(root) = found.root.as_ref().filter(|root| !root.exported) else { return false };
    found.heartbeat.as_ref().is_none_or(|beat| beat.incarnation != root.incarnation)
}

fn read(device: &Arc<dyn Device>, at: u64, len: u64) -> Option<AlignedBuf> {
    let (offset, len) = (DeviceOffset::new(at), ByteLen::new(len));
    device.submit(Request::Read { offset, len }).within(TIMEOUT).ok()
}

fn read_heartbeat(device: &Arc<dyn Device>) -> Option<AlignedBuf> {
    read(device, label_areas(device.size())[0].get() + HEARTBEAT_OFFSET, LABEL_LEN as u64)
}

/// Bytes that a host writes to while it has a pool, as far as they can be read.
struct Look {
    heartbeat: Option<AlignedBuf>,
    /// Pieces of all label areas: a device that takes no heartbeat may take its roots in the second one alone.
    pieces: Vec<Option<AlignedBuf>>,
}

impl Look {
    fn at(device: &Arc<dyn Device>, labelled: Option<ByteLen>) -> Self {
        let areas = areas(&**device, labelled).into_iter().map(DeviceOffset::get);
        let starts = areas.flat_map(|area| (area..area + LABEL_AREA).step_by(PIECE as usize));
        let pieces = starts.map(|start| read(device, start, PIECE)).collect();
        Self { heartbeat: read_heartbeat(device), pieces }
    }

    /// Whether somebody wrote between two looks; none where that cannot be told, since every host writes its heartbeat.
    fn changed(&self, after: &Self) -> Option<bool> {
        let differ = |before: &Option<AlignedBuf>, after: &Option<AlignedBuf>| {
            Some(before.as_ref()?[..] != after.as_ref()?[..])
        };
        let pieces = self.pieces.iter().zip(&after.pieces);
        let written = pieces.filter_map(|(before, after)| differ(before, after)).any(|differs| differs);
        if written { Some(true) } else { differ(&self.heartbeat, &after.heartbeat) }
    }
}

/// The label areas of a device, also those of the size that it was labelled with, unless it was cut short since.
fn areas(device: &dyn Device, labelled: Option<ByteLen>) -> BTreeSet<DeviceOffset> {
    let areas = [device.size()].into_iter().chain(labelled).flat_map(label_areas);
    areas.filter(|area| area.get() + LABEL_AREA <= device.size().get()).collect()
}

pub(super) fn open_to_wipe(path: &Path) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(FileDevice::open_with_threads(path, OpenMode::Exclusive, 1)?))
}

/// Overwrites the label areas.
pub(super) fn wipe(device: &dyn Device, labelled: Option<ByteLen>) -> Result<()> {
    let failed = |error: larder_device::DeviceError| internal("write", &std::io::Error::other(error));
    let nothing = Arc::new(AlignedBuf::zeroed(LABEL_AREA as usize));
    for offset in areas(device, labelled) {
        device
            .submit(Request::Write { offset, data: Arc::clone(&nothing) })
            .within(TIMEOUT)
            .map_err(failed)?;
    }
    device.submit(Request::Flush).within(TIMEOUT).map_err(failed)?;
    Ok(())
}
