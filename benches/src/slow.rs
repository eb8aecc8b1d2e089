//! A file that answers reads as a disk with one arm: one after another, each in so many milliseconds and the time that
//! its bytes take.

use crate::daemon::pause;
use larder_device::{Completion, Device, FileDevice, Outcome, Pending, Request};
use larder_format::ByteLen;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Bytes a second that come by under the arm.
const RATE: u64 = 150 << 20;

/// See the module's text.
pub struct SlowReads {
    file: Arc<FileDevice>,
    queue: Mutex<Sender<(Request, Completion<Outcome>)>>,
    /// Reads so far.
    pub reads: Arc<AtomicU64>,
}

impl SlowReads {
    /// A file each of whose reads takes `wait`; none: it is as it is.
    #[allow(clippy::disallowed_methods, reason = "a disk has an arm of its own")]
    pub fn new(file: FileDevice, wait: Duration) -> Self {
        let (queue, waiting) = channel::<(Request, Completion<Outcome>)>();
        let (file, reads) = (Arc::new(file), Arc::new(AtomicU64::new(0)));
        let of = (Arc::clone(&file), Arc::clone(&reads));
        std::thread::spawn(move || {
            let (file, reads) = of;
            for (request, completion) in waiting {
                if let Request::Read { len, .. } = &request {
                    reads.fetch_add(1, Ordering::Relaxed);
                    if !wait.is_zero() {
                        pause(wait + Duration::from_secs_f64(len.get() as f64 / RATE as f64));
                    }
                }
                completion.complete(file.submit(request).wait());
            }
        });
        Self { file, queue: Mutex::new(queue), reads }
    }
}

impl Device for SlowReads {
    fn name(&self) -> String {
        self.file.name()
    }
    fn size(&self) -> ByteLen {
        self.file.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        if !matches!(request, Request::Read { .. }) {
            return self.file.submit(request);
        }
        let (completion, pending) = Pending::new();
        self.queue.lock().send((request, completion)).expect("its thread lives as long as this");
        pending
    }
}
