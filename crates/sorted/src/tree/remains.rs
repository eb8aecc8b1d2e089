//! Remains of a tree: what it holds and another, which came of it, does not.
//!
//! Both are walked side by side as for a [`Difference`](super::Difference), but nothing is said of the newer one, and
//! as little of it is read as can be. Subtrees below a *floor*, an id, are not asked for, and passed over unread.
//!
//! A walk can be taken up again at its [`Remains::cursor`], with another newer tree as well: nodes that end, and
//! entries that are, before it have been told, and no others. A node is told when the walk is past its end.
//!
//! A node that both have is met by both: whoever goes into it first is still within when the other comes to it, since
//! of two that overlap the higher one is gone into first.

use super::difference::{Course, Frame, Next, Side, first};
use super::{NodeStore, load_checked};
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr};

/// A thing that remains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Remain<'a> {
    /// An entry, with its value, which the newer tree has not, or has another value there, which comes with it.
    Entry(Key, &'a [u8], Option<&'a [u8]>),
    /// A node.
    Node(BlockPtr),
}

/// A walk under way; see the module's text.
pub struct Remains {
    old: Course,
    new: Course,
    floor: BlockId,
    from: Key,
    /// A subtree of the old tree that could not be loaded, and is next.
    unread: Option<BlockPtr>,
}

impl Remains {
    /// Of the tree with the committed root `old`, without what `new` has, or is of `floor` or below; from `from` on.
    pub fn new(old: Option<BlockPtr>, new: Option<BlockPtr>, floor: BlockId, from: Key) -> Self {
        Self { old: Course::new(old), new: Course::new(new), floor, from, unread: None }
    }

    /// Where another walk can go on.
    pub fn cursor(&self) -> Key {
        self.old.next().low().max(self.from)
    }

    /// Shows what comes next, and returns when `max` nodes were read: whether there is more. When a node cannot be
    /// loaded, nothing was passed over, and the step can be tried again; or see [`Remains::pass_unread`].
    ///
    /// # Errors
    /// Those of `store`.
    pub fn step<S: NodeStore + ?Sized>(
        &mut self,
        store: &S,
        max: usize,
        mut visit: impl FnMut(Remain<'_>),
    ) -> Result<bool, S::Error> {
        self.unread = None;
        let mut read = 0;
        loop {
            let (old, new) = (self.old.next(), self.new.next());
            match (&old, &new) {
                (Next::Nothing, _) => return Ok(false),
                (Next::Subtree { ptr: a, .. }, Next::Subtree { ptr: b, .. }) if a.id == b.id => {
                    self.old.pass(ended(&mut visit));
                    self.new.pass(|_| ());
                    continue;
                }
                (Next::Entry(key), Next::Entry(other)) if key == other => {
                    let (old, new) = (self.old.value(), self.new.value());
                    if old != new {
                        visit(Remain::Entry(*key, old, Some(new)));
                    }
                    self.new.pass(|_| ());
                    self.old.pass(ended(&mut visit));
                    continue;
                }
                _ => {}
            }
            match (first(&old, &new), old, new) {
                (Side::Old, Next::Entry(key), _) => {
                    visit(Remain::Entry(key, self.old.value(), None));
                    self.old.pass(ended(&mut visit));
                }
                (Side::Old, Next::Subtree { ptr, .. }, _) if ptr.id <= self.floor => {
                    self.old.pass(ended(&mut visit));
                }
                // The old tree has nothing there.
                (Side::New, old, new) if new.is_before(&old) => self.new.pass(|_| ()),
                _ if read >= max => return Ok(true),
                (Side::Old, Next::Subtree { ptr, fence }, _) => {
                    let node = load_checked(store, ptr, &fence).inspect_err(|_| self.unread = Some(ptr))?;
                    read += 1;
                    let is_shared = self.new.way.iter().any(|frame| frame.ptr.id == ptr.id);
                    let mut frame = Frame::new(ptr, node, fence);
                    frame.is_shared = is_shared;
                    self.old.enter(frame, &self.from, ended(&mut visit));
                }
                (Side::New, _, Next::Subtree { ptr, fence }) => {
                    let node = load_checked(store, ptr, &fence)?;
                    read += 1;
                    if let Some(frame) = self.old.way.iter_mut().find(|frame| frame.ptr.id == ptr.id) {
                        frame.is_shared = true;
                    }
                    self.new.enter(Frame::new(ptr, node, fence), &self.from, |_| ());
                }
                (Side::New, _, Next::Entry(_)) => self.new.pass(|_| ()),
                (_, _, Next::Nothing) | (Side::Old, Next::Nothing, _) => {
                    unreachable!("what has ended is not before what has not")
                }
            }
        }
    }

    /// Passes over the subtree of the old tree of which the last step could not load the root, and gives that; none
    /// when it was the newer tree's: then nothing can be told.
    pub fn pass_unread(&mut self, mut visit: impl FnMut(Remain<'_>)) -> Option<BlockPtr> {
        let ptr = self.unread.take()?;
        self.old.pass(ended(&mut visit));
        Some(ptr)
    }
}

/// Tells of nodes that the walk is past.
fn ended(visit: &mut impl FnMut(Remain<'_>)) -> impl FnMut(&Frame) {
    |frame| {
        if !frame.is_shared {
            visit(Remain::Node(frame.ptr));
        }
    }
}
