//! Events on the devices, in order.

use crate::image::DeviceImage;
use larder_device::AlignedBuf;
use larder_format::{ByteLen, DeviceOffset};
use std::fmt;
use std::sync::Arc;

/// One step of a world's history. Requests that a fault kept from the media leave no event, and a
/// misdirected write stands where it landed. A write stands where it was submitted, a flush where its
/// outcome was taken, a discard where it was done.
#[derive(Clone)]
pub enum Event {
    /// A device took a write; it is durable after the next [`Event::Flush`] that covers it.
    Write {
        /// The device's number in its world.
        device: usize,
        /// Where.
        offset: DeviceOffset,
        /// The bytes.
        data: Arc<AlignedBuf>,
    },
    /// A device forgot what it held, as late as it liked; durable after the next [`Event::Flush`] that covers it.
    Discard {
        /// The device's number in its world.
        device: usize,
        /// Where.
        offset: DeviceOffset,
        /// Length.
        len: ByteLen,
        /// Decides what is there now.
        seed: u64,
    },
    /// A device made writes durable, and its caller knows.
    Flush {
        /// The device's number in its world.
        device: usize,
        /// The number of events when the flush was submitted; later writes are not covered.
        before: usize,
        /// Earlier writes, by event number, that are not covered either: nobody had taken their outcome.
        in_flight: Arc<[usize]>,
    },
    /// A device failed to make writes durable: some are, and the rest will never be.
    FlushFailed {
        /// The device's number in its world.
        device: usize,
    },
    /// Bits flipped on the media; no cut undoes it.
    Rot {
        /// The device's number in its world.
        device: usize,
        /// Start of the range that rotted.
        offset: DeviceOffset,
        /// Its length in bytes.
        len: usize,
        /// Which of its bits flipped.
        seed: u64,
    },
    /// Other media stand under the device; no cut undoes it.
    Swap {
        /// The device's number in its world.
        device: usize,
        /// Its new contents.
        image: DeviceImage,
    },
    /// A device grew; no cut undoes it.
    Grow {
        /// The device's number in its world.
        device: usize,
        /// Its new size.
        size: ByteLen,
    },
    /// Something that the test wants to find again, for instance that an fsync returned.
    Mark(u64),
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { device, offset, data } => {
                write!(f, "write(device {device}, at {}, {} bytes)", offset.get(), data.len())
            }
            Self::Discard { device, offset, len, .. } => {
                write!(f, "discard(device {device}, at {}, {} bytes)", offset.get(), len.get())
            }
            Self::Flush { device, .. } => write!(f, "flush(device {device})"),
            Self::FlushFailed { device } => write!(f, "flush failed(device {device})"),
            Self::Rot { device, offset, len, seed } => {
                write!(f, "rot(device {device}, at {}, {len} bytes, seed {seed})", offset.get())
            }
            Self::Swap { device, image } => write!(f, "swap(device {device}, {image:?})"),
            Self::Grow { device, size } => write!(f, "grow(device {device}, {} bytes)", size.get()),
            Self::Mark(mark) => write!(f, "mark({mark})"),
        }
    }
}

/// The history of a world: what its devices held at first, and every event since.
///
/// A *cut* is named by the number of events that happened before the power failed: 0 is before the
/// first, [`Trace::len`] after the last.
#[derive(Debug, Clone)]
pub struct Trace {
    pub(crate) start: Vec<DeviceImage>,
    pub(crate) events: Vec<Event>,
}

impl Trace {
    /// The events in the order in which they happened, over all devices.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The number of events, which is also the last cut.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The marks that the test had set before `cut`.
    pub fn marks_before(&self, cut: usize) -> impl Iterator<Item = u64> {
        self.events[..cut].iter().filter_map(|event| match event {
            Event::Mark(mark) => Some(*mark),
            _ => None,
        })
    }
}
