//! The device traits in memory, seeded: faults, torn and reordered writes, power cuts, a clock, the time that disks
//! take.
//!
//! A [`SimWorld`] holds devices that share one ordered [`Trace`] of what reached their media. A test
//! runs its workload once; afterwards every power cut that could have happened is *replayed* from the
//! trace, without running the workload again:
//!
//! ```
//! use larder_device::{AlignedBuf, Device, Request};
//! use larder_format::{ByteLen, DeviceOffset};
//! use larder_sim::{Survival, SimWorld};
//! use std::sync::Arc;
//!
//! let world = SimWorld::new(&[ByteLen::new(1 << 20); 2]);
//! let data = Arc::new(AlignedBuf::zeroed(4096));
//! world.device(0).submit(Request::Write { offset: DeviceOffset::new(0), data }).wait().unwrap();
//! world.device(0).submit(Request::Flush).wait().unwrap();
//! world.mark(1); // "the first fsync returned here"
//!
//! let trace = world.trace();
//! let mut sweep = trace.sweep();
//! for cut in 0..=trace.len() {
//!     sweep.advance_to(cut);
//!     let after = SimWorld::from_images(sweep.images(Survival::Random { seed: 7 }));
//!     // Open the pool on `after`, check it, go on writing, cut it again.
//!     assert_eq!(after.trace().len(), 0);
//! }
//! ```
//!
//! Guarantees of the simulation, and their limits:
//! - A request is performed when it is submitted, but it *completes* when its outcome is taken from its
//!   `Pending`. A flush covers only writes whose outcome was taken before it was submitted, and promises
//!   nothing until its own outcome is taken: code that does not wait where it must is caught by a cut.
//! - A flush covers its own device only; the order of unflushed writes, on one device or across devices,
//!   means nothing after a cut.
//! - Answers take no time, unless devices are made disks ([`SimDevice::spin`]): then virtual time passes while somebody
//!   waits, as much as the disk of `larder_device` would have taken.
//! - The same calls with the same seeds give the same bytes, on every machine.

mod arm;
mod clock;
mod cut;
mod device;
mod image;
mod rng;
mod trace;

pub use clock::SimClock;
pub use cut::{CrashSweep, Survival};
pub use device::{Counters, Fault, SimDevice, SimWorld};
pub use image::DeviceImage;
pub use trace::{Event, Trace};
