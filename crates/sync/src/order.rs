//! The order in which locks are taken, held by all of them together.
//!
//! Locks of one type that were made at one place of the source are of one kind. A thread that waits for a lock while it
//! has others says that theirs come before it; who says the opposite of what was said before, whichever thread said it
//! and however long ago, panics, though this time nobody had to wait. So one run of a path is enough, not the run in
//! which two threads meet. (As lockdep of the Linux kernel does it.) Of locks of one kind nothing is said.
//!
//! A thread that has a lock which is [`brief`](crate::brief) waits for no device.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

/// Locks of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Kind {
    /// Where they are made.
    pub made: &'static Location<'static>,
    /// Their type; a derived `Default` makes several at one place.
    pub of: &'static str,
    /// Nobody may wait for a device with one.
    pub brief: bool,
}

impl Kind {
    /// Where its parts lie: compared faster than what they say.
    fn address(self) -> Address {
        (std::ptr::from_ref(self.made).addr(), self.of.as_ptr().addr(), self.of.len())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.made.fmt(f)
    }
}

type Address = (usize, usize, usize);

/// Hashes addresses by multiplication: each time a lock is taken with others held, one is looked up.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize((*byte).into()));
    }
    fn write_usize(&mut self, word: usize) {
        // 2^64 divided by the golden ratio.
        self.0 = (self.0.rotate_left(23) ^ word as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

type At = &'static Location<'static>;

/// A kind that was waited for with another one held: where that one was taken, and where this one was.
type After = BTreeMap<Kind, (At, At)>;

/// All that was said.
static BEFORE: Mutex<BTreeMap<Kind, After>> = Mutex::new(BTreeMap::new());

/// Locks that a thread has. It may have thousands of one kind, and each is looked up when it takes the next.
#[derive(Default)]
struct Held {
    /// Each by its place in memory, and the times that it was taken.
    locks: HashMap<usize, (u32, Kind), BuildHasherDefault<AddressHasher>>,
    /// Their number by kind, and where the last was taken.
    kinds: Vec<(Kind, u32, At)>,
}

thread_local! {
    static PATIENCE: Cell<u32> = const { Cell::new(0) };
    static HELD: RefCell<Held> = RefCell::default();
    /// Pairs that this thread has entered already, by their addresses.
    static SAID: RefCell<HashSet<(Address, Address), BuildHasherDefault<AddressHasher>>> = RefCell::default();
}

/// The calling thread may wait for a device, whatever it holds, while there is one of these.
pub(crate) struct Patience;

impl Patience {
    pub fn new() -> Self {
        PATIENCE.with(|count| count.set(count.get() + 1));
        Self
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        PATIENCE.with(|count| count.set(count.get() - 1));
    }
}

/// The calling thread is about to wait for a device.
///
/// # Panics
/// When it has a lock that is brief.
pub(crate) fn waits() {
    if std::thread::panicking() || PATIENCE.with(Cell::get) > 0 {
        return;
    }
    let held = HELD.with_borrow(|held| held.kinds.iter().find(|(kind, ..)| kind.brief).copied());
    if let Some((kind, _, taken)) = held {
        panic!("a device is read with the lock of {kind}, taken at {taken}");
    }
}

/// The calling thread is about to wait for a lock.
///
/// # Panics
/// When locks that it has are taken after this one elsewhere.
pub(crate) fn wait(key: usize, kind: Kind, at: At) {
    if std::thread::panicking() {
        return;
    }
    let crossed = HELD.with_borrow(|held| {
        // A thread that has it already takes it once more, where that is allowed.
        if held.locks.contains_key(&key) {
            return None;
        }
        let others = held.kinds.iter().filter(|(other, ..)| *other != kind);
        others.copied().find_map(|(other, _, taken)| say(other, taken, kind, at))
    });
    assert!(crossed.is_none(), "{}", crossed.unwrap_or_default());
}

/// Enters that `before` comes before `kind`; what was said to the contrary.
fn say(before: Kind, taken: At, kind: Kind, at: At) -> Option<String> {
    let pair = (before.address(), kind.address());
    if SAID.with_borrow(|said| said.contains(&pair)) {
        return None;
    }
    let mut all = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(chain) = chain(&all, kind, before) {
        let mut told =
            format!("locks cross: {at} waits for the one of {kind} with that of {before} (from {taken})");
        for (one, other, (taken, at)) in chain {
            told.push_str(&format!("; {at} waited for the one of {other} with that of {one} (from {taken})"));
        }
        return Some(told);
    }
    all.entry(before).or_default().entry(kind).or_insert((taken, at));
    drop(all);
    SAID.with_borrow_mut(|said| said.insert(pair));
    None
}

/// That one kind was waited for with another one held.
type Link = (Kind, Kind, (At, At));

/// Links that lead from one kind to another.
fn chain(all: &BTreeMap<Kind, After>, from: Kind, to: Kind) -> Option<Vec<Link>> {
    let mut reached = BTreeMap::from([(from, None)]);
    let mut next = vec![from];
    while let Some(one) = next.pop() {
        for (&other, &places) in all.get(&one).into_iter().flatten() {
            if reached.contains_key(&other) {
                continue;
            }
            reached.insert(other, Some((one, places)));
            next.push(other);
        }
    }
    let mut chain = Vec::new();
    let mut last = to;
    while let Some((one, places)) = *reached.get(&last)? {
        chain.push((one, last, places));
        last = one;
    }
    chain.reverse();
    Some(chain)
}

/// The calling thread has a lock.
pub(crate) fn taken(key: usize, kind: Kind, at: At) {
    HELD.with_borrow_mut(|held| {
        held.locks.entry(key).or_insert((0, kind)).0 += 1;
        match held.kinds.iter_mut().find(|(of, ..)| *of == kind) {
            Some((_, count, last)) => (*count, *last) = (*count + 1, at),
            None => held.kinds.push((kind, 1, at)),
        }
    });
}

/// The calling thread has it no more.
pub(crate) fn given_back(key: usize) {
    // A thread that ends may give back after what it held is forgotten.
    let _gone = HELD.try_with(|held| {
        let held = &mut *held.borrow_mut();
        let Some((count, kind)) = held.locks.get_mut(&key) else { return };
        let kind = *kind;
        *count -= 1;
        if *count == 0 {
            held.locks.remove(&key);
        }
        if let Some(at) = held.kinds.iter().position(|(of, ..)| *of == kind) {
            held.kinds[at].1 -= 1;
            if held.kinds[at].1 == 0 {
                held.kinds.remove(at);
            }
        }
    });
}
