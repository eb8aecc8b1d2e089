//! Which files are written around the kernel's pages.
//!
//! Most files are written from end to end by a program that has just made them and does not read them (`cp`, `tar`,
//! `dd`), and to keep in pages what it writes costs more than the way to us. So a new file that can only be written
//! goes around them. What is read by another handle fills pages as ever.
//!
//! A page that somebody has mapped *writable and shared* would undo such writes: he faults in what was there before
//! one of them, changes another byte, and the page is written back over it. Such a mapping takes a handle that reads
//! and writes, so the two kinds never exist at once: while a handle goes around the pages, one that reads and writes
//! does so too, for which the kernel refuses shared mappings (ENODEV), and while one that may map is open, nothing
//! goes around. The kernel tells of the last close(2) after it has returned, so who opens a file to map it waits for
//! that a moment.

use larder_sync::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

/// Time limit for a handle that may map to wait for those that go around the pages to be closed ...
const PATIENCE: Duration = Duration::from_millis(50);
/// ... and the number of requests that may wait at once.
const WAITING_AT_MOST: usize = 4;
/// Set in the number by which the kernel knows a handle whose reads and writes go around its pages.
const DIRECT: u64 = 1 << 63;
/// Set in that of a handle by which the file can be mapped.
const MAPPABLE: u64 = 1 << 62;

/// Access that a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub reads: bool,
    pub writes: bool,
    /// Others follow what is written at the end of a file, a log say: it is left to pages.
    pub appends: bool,
}

/// Open handles of a node.
#[derive(Default)]
struct Handles {
    direct: u32,
    mappable: u32,
    /// Somebody has waited in vain for the direct ones to be closed: so they are in use, and nobody waits again.
    stays: bool,
}

#[derive(Default)]
struct State {
    nodes: HashMap<u64, Handles>,
    waiting: usize,
}

impl State {
    fn is_direct(&self, node: u64) -> bool {
        self.nodes.get(&node).is_some_and(|handles| handles.direct > 0)
    }

    /// Whether the handles that go around the pages may be closed, and the kernel has not said so yet.
    fn is_being_closed(&self, node: u64) -> bool {
        self.nodes.get(&node).is_some_and(|handles| handles.direct > 0 && !handles.stays)
    }

    fn is_mappable(&self, node: u64) -> bool {
        self.nodes.get(&node).is_some_and(|handles| handles.mappable > 0)
    }

    /// Counts a handle in; gives what is set in its number.
    fn count(&mut self, node: u64, way: u64) -> u64 {
        let handles = self.nodes.entry(node).or_default();
        match way {
            DIRECT => handles.direct += 1,
            _ => handles.mappable += 1,
        }
        way
    }
}

/// The handles of a mount that go around its pages, and those that may map.
#[derive(Default)]
pub(super) struct Around {
    state: Mutex<State>,
    released: Condvar,
}

/// A handle as the kernel knows it goes around its pages.
pub(super) fn is_direct(handle: u64) -> bool {
    handle & DIRECT != 0
}

/// A handle as the engine knows it.
pub(super) fn own(handle: u64) -> u64 {
    handle & !(DIRECT | MAPPABLE)
}

fn is_allowed() -> bool {
    static ALLOWED: LazyLock<bool> = LazyLock::new(larder_fuse::keeps_pages_true);
    *ALLOWED
}

impl Around {
    /// A file was opened that was there: gives what is to be set in the handle.
    pub fn opened(&self, node: u64, access: Access) -> u64 {
        if !is_allowed() || !access.reads || !access.writes {
            return 0;
        }
        let mut state = self.state.lock();
        if state.is_being_closed(node) && state.waiting < WAITING_AT_MOST {
            state.waiting += 1;
            self.released.wait_while_for(&mut state, |state| state.is_being_closed(node), PATIENCE);
            state.waiting -= 1;
            state.nodes.entry(node).and_modify(|handles| handles.stays = true);
        }
        let way = if state.is_direct(node) { DIRECT } else { MAPPABLE };
        state.count(node, way)
    }

    /// A file was made and opened. Others may have opened it already.
    pub fn made(&self, node: u64, access: Access) -> u64 {
        if access.reads || !access.writes || access.appends || !is_allowed() {
            return self.opened(node, access);
        }
        let mut state = self.state.lock();
        if state.is_mappable(node) { 0 } else { state.count(node, DIRECT) }
    }

    /// A handle is closed, or the kernel never took it.
    pub fn released(&self, node: u64, handle: u64) {
        if handle & (DIRECT | MAPPABLE) == 0 {
            return;
        }
        let mut state = self.state.lock();
        let Some(handles) = state.nodes.get_mut(&node) else { return };
        match is_direct(handle) {
            true => handles.direct = handles.direct.saturating_sub(1),
            false => handles.mappable = handles.mappable.saturating_sub(1),
        }
        if handles.direct == 0 && handles.mappable == 0 {
            state.nodes.remove(&node);
        }
        drop(state);
        self.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Access = Access { reads: true, writes: true, appends: false };
    const WRITES: Access = Access { reads: false, ..BOTH };
    const READS: Access = Access { writes: false, ..BOTH };

    #[test]
    fn no_handle_may_map_what_another_writes_around_the_pages() {
        if !is_allowed() {
            eprintln!("SKIPPED: this kernel does not keep its pages true");
            return;
        }
        let around = Around::default();
        let writer = around.made(7, WRITES);
        assert_eq!(writer, DIRECT);
        assert_eq!((around.opened(7, READS), around.opened(7, WRITES)), (0, 0));
        let reader = around.opened(7, BOTH);
        assert_eq!(reader, DIRECT, "which cannot map it");
        around.released(7, writer);
        assert_eq!(around.opened(7, BOTH), DIRECT, "the other writes so, too");
        around.released(7, reader);
        around.released(7, DIRECT);
        let mapper = around.opened(7, BOTH);
        assert_eq!(mapper, MAPPABLE);
        assert_eq!(around.made(7, WRITES), 0, "somebody was faster than the answer");
        around.released(7, mapper);
        assert!(around.state.lock().nodes.is_empty());
        let log = Access { appends: true, ..WRITES };
        assert_eq!((around.made(7, log), around.made(8, BOTH)), (0, MAPPABLE));
    }

    #[test]
    fn who_may_map_waits_for_what_is_being_closed() {
        if !is_allowed() {
            return;
        }
        let around = Around::default();
        let writer = around.made(7, WRITES);
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                loop {
                    // As often as it takes: how long the other thread is kept from running is nobody's to say.
                    match around.opened(7, BOTH) {
                        DIRECT => around.released(7, DIRECT),
                        way => return way,
                    }
                }
            });
            around.released(7, writer);
            assert_eq!(opening.join().unwrap(), MAPPABLE);
        });
    }
}
