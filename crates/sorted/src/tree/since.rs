//! Parts of a tree that an older one, of which only the last id is known, may not have had.
//!
//! A node whose id is not above that one was there as it is, and the keys that it has now are those that it had then
//! (see the invariants of [`super::Tree`]): what the older tree had there is what is there now. So it is passed over
//! unread, with all below it, and its keys are *kept*. All else is told whole, between [`Told::Clear`] and
//! [`Told::Keep`]: what the older tree had there, and is not told, went.
//!
//! That the one tree came of the other is for the caller to know.

use super::difference::{Course, Frame, Next};
use super::{NodeStore, load_checked};
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr};

/// A part of what is told, in the order of keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Told<'a> {
    /// From this key on entries are told, and there are no others.
    Clear(Key),
    /// From this key on all is as it was.
    Keep(Key),
    /// An entry.
    Entry(Key, &'a [u8]),
}

/// A walk under way; see the module's text.
pub struct Since {
    course: Course,
    high: BlockId,
    /// Below this key all is told; none behind the end.
    told_to: Option<Key>,
    is_clearing: bool,
}

impl Since {
    /// Of the tree with this committed root, none being one of nothing, since an older one that had ids up to `high`.
    pub fn new(root: Option<BlockPtr>, high: BlockId) -> Self {
        Self { course: Course::new(root), high, told_to: Some(Key::MIN), is_clearing: false }
    }

    /// Shows what comes next, and returns when `max` nodes were read: whether there is more. When a node cannot be
    /// loaded, nothing was passed over, and the step can be tried again.
    ///
    /// # Errors
    /// Those of `store`.
    pub fn step<S: NodeStore + ?Sized>(
        &mut self,
        store: &S,
        max: usize,
        mut visit: impl FnMut(Told<'_>),
    ) -> Result<bool, S::Error> {
        let mut read = 0;
        loop {
            match self.course.next() {
                Next::Nothing => {
                    if self.told_to.is_some() {
                        self.clear(&mut visit);
                        visit(Told::Keep(Key::MAX));
                        (self.told_to, self.is_clearing) = (None, false);
                    }
                    return Ok(false);
                }
                Next::Subtree { ptr, fence } if ptr.id <= self.high => {
                    let low = fence.low.unwrap_or(Key::MIN);
                    if self.told_to.is_some_and(|to| to < low) {
                        self.clear(&mut visit);
                    }
                    if std::mem::take(&mut self.is_clearing) {
                        visit(Told::Keep(low));
                    }
                    self.told_to = fence.high;
                    self.course.pass(|_| ());
                }
                Next::Subtree { .. } if read >= max => return Ok(true),
                Next::Subtree { ptr, fence } => {
                    let node = load_checked(store, ptr, &fence)?;
                    read += 1;
                    self.course.enter(Frame::new(ptr, node, fence), &Key::MIN, |_| ());
                }
                Next::Entry(key) => {
                    self.clear(&mut visit);
                    visit(Told::Entry(key, self.course.value()));
                    self.course.pass(|_| ());
                }
            }
        }
    }

    /// Entries are told from here on, if they were not before.
    fn clear(&mut self, visit: &mut impl FnMut(Told<'_>)) {
        if !std::mem::replace(&mut self.is_clearing, true) {
            visit(Told::Clear(self.told_to.unwrap_or(Key::MAX)));
        }
    }
}
