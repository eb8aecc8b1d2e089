//! Bugs on purpose: the test of the tests.
//!
//! With the feature `mutants`, a test can switch on one of these mistakes in its own thread; the
//! simulation must find each. Without the feature every question is answered no at compile time.
//!
//! It can also have a thread panic at the n-th [`point`] that it comes to: they stand between the steps of whatever
//! changes the pool.

/// A mistake that loses data, or would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The root is written without flushing what it refers to.
    DataNotFlushed,
    /// The root is written before what it refers to.
    RootBeforeData,
    /// A commit is acknowledged before its root is flushed.
    RootNotFlushed,
    /// Blocks die and slots are given back before the commit that frees them.
    EarlyReuse,
    /// Import takes the oldest root in the ring.
    StaleRoot,
    /// An fsync is acknowledged before the log is flushed.
    LogNotFlushed,
    /// Replay stops one operation early.
    ReplayStopsShort,
    /// The root says that the log starts a stripe later than it does.
    LogStartsLate,
    /// Ids start again after a crash.
    IdsComeBack,
    /// Dropped blocks are not freed.
    Leak,
    /// Parity is left as zeros.
    NoParity,
    /// The block map is not told of new blocks.
    MapNotTold,
    /// The segment table is not told of new stripes.
    HeightNotTold,
    /// Payloads are not verified when read.
    UncheckedPayload,
    /// Frames are not verified when a part of a record is read.
    UncheckedFrames,
    /// A copy on a device for copies is taken for the block that was looked for.
    CopyUnchecked,
    /// A copy is believed whoever wrote it.
    CopyOfStranger,
    /// A copy is taken for what lies in a group.
    CopyCounted,
    /// A block that a snapshot may hold is freed when its head drops it.
    ProtectionIgnored,
    /// A second reference does not set the mark.
    SharedNotMarked,
    /// Import does not look for what waits in the free queue.
    QueueLost,
    /// A shared block that was dropped stays marked as dead.
    DeadNotCleared,
    /// A destroyed dataset's record goes before its tree is down.
    TreeForgotten,
    /// Hints into a segment that is being emptied are believed.
    HintBelieved,
    /// The map is not told where the cleaner put a block.
    MoveNotTold,
    /// A duplicate is shared without the mark.
    HitNotMarked,
    /// Garbage collection takes no account of aliases.
    AliasOverlooked,
    /// A block becomes an alias of one that is not marked as shared.
    AliasNotMarked,
    /// A block that becomes an alias keeps its place as well.
    AliasNotReleased,
    /// Freed blocks stay among those that duplicates are found in.
    LocalityRemembers,
    /// Records get the fingerprint of another.
    WrongPrint,
    /// Parity that is wrong is left as it is.
    ParityNotScrubbed,
    /// Reconstruction believes headers and does not look at the sums of what is behind them.
    ReconstructsUnproven,
    /// A device that missed commits is read before it has what it missed.
    NotResilvered,
    /// Writes of the commit at which a device comes back are not brought to it.
    BoundaryMissed,
    /// A device that comes back is taken to hold what it held when it left, though it is an older image.
    OldImageTrusted,
    /// Of two headers of a stripe the one that a power cut undid is believed.
    OldStripeBelieved,
    /// Blocks that get another reference during a collection are not retained.
    TouchedForgotten,
    /// A member gets another place while stripes are on their way to it.
    InFlightForgotten,
    /// An fsync is acknowledged though a device missed it that no root tells of.
    LogCopyMissed,
    /// An fsync is acknowledged that none of the log's own devices took.
    LogLossIgnored,
    /// Bytes that look like a block in a window that was read go into the cache, wherever they lie.
    LooksBelieved,
    /// Slots are discarded before they are free.
    TrimTooEarly,
    /// Slots are given to others before the flush after their discard.
    TrimNotFlushed,
    /// The root does not name segments of which a column lies elsewhere since the tables were written.
    SlotMoveNotTold,
    /// The log goes on in segments that no durable root names.
    LogNotNamed,
    /// A removal is logged without what was written before it.
    RemovalNotCovered,
    /// A commit has a removal, and not all that was written before it.
    RestNotStored,
    /// Operations noted while a commit was being written are taken to be in it.
    WindowForgotten,
    /// Data that is stored and not logged is taken to be durable.
    StoredNotTold,
    /// A commit is told to be durable before its root is.
    DurableTooSoon,
    /// Two locks are taken in two orders.
    LocksCrossed,
    /// Operations do not keep a commit out.
    GateOpen,
    /// Slots are given to others while they are being discarded.
    TrimNotHeld,
    /// A node of the tree gets the keys of one that goes, and does not become dirty.
    FenceGrows,
    /// A record that is put where it was not does not get the commit's number.
    PutNotStamped,
    /// All places of a block are in one segment.
    CopiesTogether,
    /// A duplicate is shared that has fewer places than its dataset asks for.
    FewCopiesShared,
    /// A place that cannot be read is left as it is.
    CopyNotHealed,
    /// Bookmarks that are not on a dataset's line any more stay when a stream is taken over.
    BookmarkKept,
}

impl Mutant {
    /// All that one thread is enough for.
    pub const ALL: [Mutant; 47] = [
        Mutant::CopyUnchecked,
        Mutant::CopyOfStranger,
        Mutant::CopyCounted,
        Mutant::CopiesTogether,
        Mutant::FewCopiesShared,
        Mutant::CopyNotHealed,
        Mutant::DataNotFlushed,
        Mutant::RootBeforeData,
        Mutant::RootNotFlushed,
        Mutant::EarlyReuse,
        Mutant::StaleRoot,
        Mutant::LogNotFlushed,
        Mutant::ReplayStopsShort,
        Mutant::LogStartsLate,
        Mutant::IdsComeBack,
        Mutant::Leak,
        Mutant::NoParity,
        Mutant::MapNotTold,
        Mutant::HeightNotTold,
        Mutant::UncheckedPayload,
        Mutant::UncheckedFrames,
        Mutant::ProtectionIgnored,
        Mutant::SharedNotMarked,
        Mutant::QueueLost,
        Mutant::DeadNotCleared,
        Mutant::TreeForgotten,
        Mutant::HintBelieved,
        Mutant::MoveNotTold,
        Mutant::HitNotMarked,
        Mutant::AliasOverlooked,
        Mutant::AliasNotMarked,
        Mutant::AliasNotReleased,
        Mutant::LocalityRemembers,
        Mutant::WrongPrint,
        Mutant::ParityNotScrubbed,
        Mutant::ReconstructsUnproven,
        Mutant::NotResilvered,
        Mutant::BoundaryMissed,
        Mutant::OldImageTrusted,
        Mutant::OldStripeBelieved,
        Mutant::TouchedForgotten,
        Mutant::InFlightForgotten,
        Mutant::LogCopyMissed,
        Mutant::LooksBelieved,
        Mutant::SlotMoveNotTold,
        Mutant::TrimTooEarly,
        Mutant::TrimNotFlushed,
    ];

    /// Those that take several threads.
    pub const OF_SCHEDULES: [Mutant; 9] = [
        Mutant::LogNotNamed,
        Mutant::RemovalNotCovered,
        Mutant::RestNotStored,
        Mutant::WindowForgotten,
        Mutant::StoredNotTold,
        Mutant::DurableTooSoon,
        Mutant::LocksCrossed,
        Mutant::GateOpen,
        Mutant::TrimNotHeld,
    ];

    /// Those that make an increment from a bookmark say too little.
    pub const OF_BOOKMARKS: [Mutant; 3] = [Mutant::FenceGrows, Mutant::PutNotStamped, Mutant::BookmarkKept];
}

#[cfg(feature = "mutants")]
mod switch {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static MUTATED: Cell<Option<Mutant>> = const { Cell::new(None) };
        static PANIC: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Switches one mutant on, or none, in this thread.
    pub fn mutate(mutant: Option<Mutant>) {
        MUTATED.set(mutant);
    }

    /// Whether this mutant is on.
    pub fn mutated(mutant: Mutant) -> bool {
        MUTATED.get() == Some(mutant)
    }

    /// Has this thread panic at the `n`-th [`point`] from now, the first being 0; at none, and tells how many were
    /// left to pass before.
    pub fn panic_at(n: Option<u64>) -> Option<u64> {
        PANIC.replace(n)
    }

    /// A point between two steps of a change; a test may have the thread panic here. It does not while another panic
    /// unwinds.
    #[track_caller]
    pub fn point(step: &'static str) {
        match PANIC.get() {
            None => {}
            Some(_) if std::thread::panicking() => {}
            Some(0) => {
                PANIC.set(None);
                panic!("mutated: {step}");
            }
            Some(left) => PANIC.set(Some(left - 1)),
        }
    }
}

#[cfg(feature = "mutants")]
pub use switch::{mutate, mutated, panic_at, point};

/// Whether this mutant is on.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn mutated(_: Mutant) -> bool {
    false
}

/// A point between two steps of a change.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn point(_: &'static str) {}
