//! Looks into trees that commits have left behind.
//!
//! Who looks into a tree holds no lock, and goes on with the nodes that it had when the look began. Those that are
//! dropped meanwhile die with the next commit; they can still be read by their hints while their segments can. So
//! segments that were freed by that commit or later wait for the look.

use larder_format::CommitId;
use larder_sync::Mutex;
use std::sync::{Arc, Weak};

/// See the module's text.
#[derive(Default)]
pub struct Behind(Mutex<Vec<(CommitId, Weak<()>)>>);

impl Behind {
    /// A tree becomes that of a commit: looks that hold `era` are behind from now on, and those that begin hold
    /// another.
    pub fn end_era(&self, era: &mut Arc<()>, commit: CommitId) {
        let old = std::mem::take(era);
        if Arc::strong_count(&old) > 1 {
            self.0.lock().push((commit, Arc::downgrade(&old)));
        }
    }

    /// The first commit that left a look behind which goes on.
    pub fn oldest(&self) -> Option<CommitId> {
        let mut eras = self.0.lock();
        eras.retain(|(_, era)| era.strong_count() > 0);
        eras.iter().map(|(commit, _)| *commit).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_that_of_the_first_look_that_goes_on() {
        let (behind, mut era) = (Behind::default(), Arc::default());
        behind.end_era(&mut era, CommitId::new(1));
        assert_eq!(behind.oldest(), None, "nobody looked");
        let first = Arc::clone(&era);
        behind.end_era(&mut era, CommitId::new(2));
        let second = Arc::clone(&era);
        behind.end_era(&mut era, CommitId::new(3));
        assert_eq!(behind.oldest(), Some(CommitId::new(2)));
        drop(first);
        assert_eq!(behind.oldest(), Some(CommitId::new(3)));
        drop(second);
        assert_eq!(behind.oldest(), None);
    }
}
