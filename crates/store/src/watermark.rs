//! Watermarks: free segments of a group left alone, by what one more is wanted for.

/// Segments of each group that are free for nobody below a mark, from the highest mark down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watermark {
    /// The limit that is reported as available, and refused beyond: the whole reserve, for open streams, commits and
    /// `rm`.
    Available,
    /// For writes into reserved room, and for those that replace as much as they take. What lies between is for what
    /// packs worse than AVAIL supposes, and for what is dead and not worth moving.
    Reserved,
    /// Data is accepted, besides what waits to be stored itself.
    Accept,
    /// Accepted data is stored, which may pack worse than expected.
    Store,
    /// All that changed of the trees is stored, before the block map is merged.
    Changes,
    /// The cleaner moves what lives, and frees more than it takes. What is left is for a commit, which opens one
    /// segment each for runs, tables and the log at most, after the nodes.
    Clean,
    /// Down to the last slot: for what a commit must store and what the log holds.
    Promised,
}

/// The reserve is at least this many segments a group: what open streams, a commit and `rm` need.
pub const RESERVE_SEGMENTS: u64 = 16;
/// The reserve is never more than this many bytes a group.
const RESERVE_BYTES_MAX: u64 = 128 << 30;
/// Segments that commits may need besides those of nodes, however large the pool is.
const LEFT_TO_COMMITS: u64 = 8;

impl Watermark {
    /// Segments left alone in a group of `total` of them, each with room for `segment` bytes.
    pub fn left(self, total: u64, segment: u64) -> u64 {
        let reserve = (total / 32).min(RESERVE_BYTES_MAX / segment).max(RESERVE_SEGMENTS);
        let accept = reserve / 2;
        let clean = (accept * 3 / 8).min(LEFT_TO_COMMITS);
        match self {
            Self::Available => reserve,
            Self::Reserved => reserve - reserve / 8,
            Self::Accept => accept,
            Self::Store => accept / 2,
            Self::Changes => clean + 1,
            Self::Clean => clean,
            Self::Promised => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Watermark::*;

    #[test]
    fn who_may_go_further_down_leaves_less() {
        let marks = [Available, Reserved, Accept, Store, Changes, Clean, Promised];
        for total in [0, 100, 512, 1 << 12, 1 << 20, 1 << 40] {
            for segment in [1 << 20, 1 << 28] {
                let left = marks.map(|mark| mark.left(total, segment));
                assert!(left.is_sorted_by(|more, less| more >= less), "{total} of {segment}: {left:?}");
                assert!(left[3] > left[5], "what is accepted may not take what the cleaner works with");
            }
        }
    }
}
