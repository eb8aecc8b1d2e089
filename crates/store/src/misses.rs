//! Recent cache misses of small blocks; see [`crate::cluster`].

use larder_format::{Place, SegmentId};
use larder_sync::Mutex;
use std::collections::VecDeque;

/// Bytes of a column that are read at once; a multiple of [`larder_device::ALIGN`].
pub(crate) const WINDOW: u32 = 64 << 10;
/// Misses in one column that are no further apart than this belong together.
pub(crate) const NEAR: u32 = 128 << 10;
/// Misses that are remembered: so many readers may go on side by side.
pub(crate) const MISSES: usize = 16;

/// Recent cache misses of small blocks.
#[derive(Default)]
pub struct Misses(Mutex<VecDeque<(SegmentId, u8, u32)>>);

impl Misses {
    /// Notes a miss. If there was one near it, tells where blocks begin that are worth reading along: at the first
    /// of the two, if one window has both.
    pub(crate) fn note(&self, place: Place) -> Option<u32> {
        let mut misses = self.0.lock();
        let near = misses.iter().position(|&(segment, column, offset)| {
            (segment, column) == (place.segment, place.column) && offset.abs_diff(place.offset) <= NEAR
        });
        let earlier = match near {
            Some(at) => misses.remove(at).map(|(.., offset)| offset),
            None => {
                misses.truncate(MISSES - 1);
                None
            }
        };
        let one_window = |offset: &u32| offset / WINDOW == place.offset / WINDOW;
        let from = earlier.filter(one_window).map_or(place.offset, |offset| offset.min(place.offset));
        let kept = if earlier.is_some_and(|offset| one_window(&offset)) { from } else { place.offset };
        misses.push_front((place.segment, place.column, kept));
        earlier.map(|_| from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u64, column: u8, offset: u32) -> Place {
        Place { segment: SegmentId::new(segment), column, offset, stored: 4096 }
    }

    #[test]
    fn a_miss_near_an_earlier_one_is_told_and_others_are_not() {
        let misses = Misses::default();
        assert_eq!(misses.note(place(1, 0, 5 << 20)), None);
        assert_eq!(misses.note(place(1, 1, 5 << 20)), None);
        assert_eq!(misses.note(place(2, 0, 5 << 20)), None);
        assert_eq!(misses.note(place(1, 0, (5 << 20) - NEAR)), Some((5 << 20) - NEAR), "in another window");
        assert_eq!(
            misses.note(place(1, 0, (5 << 20) + 1)),
            None,
            "its neighbour is remembered where it was last"
        );
        assert_eq!(misses.note(place(1, 0, (5 << 20) + 4096)), Some((5 << 20) + 1), "from the first on");
        assert_eq!(misses.note(place(1, 0, (5 << 20) + 800)), Some((5 << 20) + 1), "which stays the first");
        (0..MISSES as u64).for_each(|segment| assert_eq!(misses.note(place(100 + segment, 0, 0)), None));
        assert_eq!(misses.note(place(1, 1, 5 << 20)), None, "forgotten");
    }
}
