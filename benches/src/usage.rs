//! Time that a piece of work used.

use crate::{process, timing};
use std::collections::HashMap;
use std::time::Duration;

/// Wall time and processor time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// From beginning to end.
    pub wall: Duration,
    /// Of this process and its children: user and system, so also what a kernel file system does in the
    /// caller's name.
    pub client: Duration,
    /// Of the file system's daemon.
    pub daemon: Duration,
    /// Of all threads of the kernel: write-back, journals, compression, loop devices.
    pub kernel: Duration,
    /// Of everybody else on this machine.
    pub others: Duration,
}

impl Usage {
    /// All that is charged to the file system.
    pub fn cpu(&self) -> Duration {
        self.client + self.daemon + self.kernel
    }
}

struct Clocks {
    client: Duration,
    daemon: Duration,
    machine: Duration,
    kernel: HashMap<u32, Duration>,
}

impl Clocks {
    fn read(daemon: Option<u32>) -> Self {
        let daemon = daemon.map(|pid| process::cpu_time(pid).expect("the daemon runs"));
        Self {
            client: process::own_cpu_time() + process::children_cpu_time(),
            daemon: daemon.unwrap_or_default(),
            machine: process::machine_cpu_time(),
            kernel: process::kernel_threads(),
        }
    }
}

/// Does `work` and tells what it used. `daemon` is the process that serves the file system.
pub fn of<T>(daemon: Option<u32>, work: impl FnOnce() -> T) -> (T, Usage) {
    let before = Clocks::read(daemon);
    let (result, wall) = timing(work);
    let after = Clocks::read(daemon);
    let client = after.client - before.client;
    let daemon = after.daemon - before.daemon;
    // A thread that has ended since is not counted, one that is new is.
    let of_thread = |(pid, time): (&u32, &Duration)| {
        time.saturating_sub(before.kernel.get(pid).copied().unwrap_or_default())
    };
    let kernel = after.kernel.iter().map(of_thread).sum();
    let others = (after.machine - before.machine).saturating_sub(client + daemon + kernel);
    (result, Usage { wall, client, daemon, kernel, others })
}
