//! Differences between two committed trees.
//!
//! Both are walked side by side in the order of their keys. A node that both name is passed over unread, with all
//! below it: the cost depends on what changed since one grew out of the other, not on what they hold. The age of a
//! block says nothing here: a copy that names blocks older than both trees is in the difference as any other entry.
//!
//! # Nodes
//! A node is reported when one of the trees reaches it and the other does not. Nodes at the same height are met in the
//! same order on both sides, and so is one that both have; but where one tree grew or lost a level, one side may have
//! gone into a node before the other meets it. So nodes that were gone into wait until the other side is past them.

use super::{Fence, NodeStore, load_checked};
use larder_format::BlockPtr;
use larder_format::node::{Key, Leaf, Node};
use std::sync::Arc;

/// A tree of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one that was first.
    Old,
    /// The one that came of it.
    New,
}

/// One difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Differs<'a> {
    /// An entry that one of the trees has not, or that has another value there: never equal, never both none.
    Entry {
        /// Its key.
        key: Key,
        /// The value in the old tree.
        old: Option<&'a [u8]>,
        /// The value in the new tree.
        new: Option<&'a [u8]>,
    },
    /// A node that one tree reaches and the other does not.
    Node(Side, BlockPtr),
}

/// A comparison under way; see the module's text.
pub struct Difference {
    old: Course,
    new: Course,
    /// Nodes of either side that the other side may still meet.
    unmet: Vec<Unmet>,
}

struct Unmet {
    side: Side,
    ptr: BlockPtr,
    /// Every key in it is smaller; none at the tree's end.
    high: Option<Key>,
}

/// Position of one side.
pub(super) struct Course {
    /// The way down from the root, with the place in each node: what is there, is next.
    pub(super) way: Vec<Frame>,
    /// A root that was not gone into yet.
    root: Option<BlockPtr>,
}

pub(super) struct Frame {
    pub(super) ptr: BlockPtr,
    /// The other side has it too.
    pub(super) is_shared: bool,
    node: Arc<Node>,
    fence: Fence,
    at: usize,
}

/// Next item of one side.
pub(super) enum Next {
    Subtree { ptr: BlockPtr, fence: Fence },
    Entry(Key),
    Nothing,
}

impl Next {
    /// Every key of it is smaller; none at the tree's end.
    fn high(&self) -> Option<Key> {
        match self {
            Next::Subtree { fence, .. } => fence.high,
            Next::Entry(key) => key.successor(),
            Next::Nothing => None,
        }
    }

    /// No key of it, or of what follows it, is smaller.
    pub(super) fn low(&self) -> Key {
        match self {
            Next::Subtree { fence, .. } => fence.low.unwrap_or(Key::MIN),
            Next::Entry(key) => *key,
            Next::Nothing => Key::MAX,
        }
    }

    /// Whether it ends before `other` begins.
    pub(super) fn is_before(&self, other: &Next) -> bool {
        matches!(other, Next::Nothing) || self.high().is_some_and(|high| high <= other.low())
    }

    /// Height of a subtree above entries; a root's is not known before it is read, so that it goes first.
    fn height(&self) -> u32 {
        match self {
            Next::Subtree { fence, .. } => fence.level.map_or(u32::MAX, |level| u32::from(level) + 1),
            _ => 0,
        }
    }
}

impl Course {
    pub(super) fn new(root: Option<BlockPtr>) -> Self {
        Self { way: Vec::new(), root }
    }

    pub(super) fn next(&self) -> Next {
        if let Some(ptr) = self.root {
            return Next::Subtree { ptr, fence: Fence::default() };
        }
        let Some(frame) = self.way.last() else { return Next::Nothing };
        match &*frame.node {
            Node::Leaf(leaf) => Next::Entry(leaf.keys()[frame.at]),
            Node::Inner(inner) => Next::Subtree {
                ptr: inner.children()[frame.at],
                fence: frame.fence.below(inner.level(), inner.keys(), frame.at),
            },
        }
    }

    /// The value of the entry that is next.
    pub(super) fn value(&self) -> &[u8] {
        self.way.last().and_then(Frame::leaf).map_or(&[], |(leaf, at)| leaf.value(at))
    }

    /// Steps past the next item, and shows the nodes that end with it, the lowest first.
    pub(super) fn pass(&mut self, left: impl FnMut(&Frame)) {
        if self.root.take().is_none() {
            self.go_on(left);
        }
    }

    fn go_on(&mut self, mut left: impl FnMut(&Frame)) {
        while let Some(frame) = self.way.last_mut() {
            frame.at += 1;
            if frame.at < frame.node.keys().len() {
                return;
            }
            left(frame);
            self.way.pop();
        }
    }

    /// Goes into the subtree that is next, to where `from` is or would be.
    pub(super) fn enter(&mut self, frame: Frame, from: &Key, left: impl FnMut(&Frame)) {
        self.root = None;
        let keys = frame.node.keys();
        let at = match &*frame.node {
            Node::Leaf(_) => keys.partition_point(|key| key < from),
            Node::Inner(_) => keys.partition_point(|key| key <= from).saturating_sub(1),
        };
        let is_past = at >= keys.len();
        self.way.push(Frame { at, ..frame });
        if is_past {
            // A leaf that ends before; or a root, which alone can be empty.
            self.go_on(left);
        }
    }
}

impl Frame {
    pub(super) fn new(ptr: BlockPtr, node: Arc<Node>, fence: Fence) -> Self {
        Self { ptr, is_shared: false, node, fence, at: 0 }
    }

    fn leaf(&self) -> Option<(&Leaf, usize)> {
        match &*self.node {
            Node::Leaf(leaf) => Some((leaf, self.at)),
            Node::Inner(_) => None,
        }
    }
}

impl Difference {
    /// Of the trees with these committed roots; none is a tree of nothing.
    pub fn new(old: Option<BlockPtr>, new: Option<BlockPtr>) -> Self {
        Self { old: Course::new(old), new: Course::new(new), unmet: Vec::new() }
    }

    /// Shows what comes next, entries in the order of their keys, and returns when `max` nodes were read: whether
    /// there is more. When a node cannot be loaded, nothing was passed over, and the step can be tried again.
    ///
    /// # Errors
    /// Those of `store`.
    pub fn step<S: NodeStore + ?Sized>(
        &mut self,
        store: &S,
        max: usize,
        mut visit: impl FnMut(Differs<'_>),
    ) -> Result<bool, S::Error> {
        let mut read = 0;
        loop {
            let (old, new) = (self.old.next(), self.new.next());
            self.settle(&old, &new, &mut visit);
            match (&old, &new) {
                (Next::Nothing, Next::Nothing) => return Ok(false),
                (Next::Subtree { ptr: a, .. }, Next::Subtree { ptr: b, .. }) if a.id == b.id => {
                    self.old.pass(|_| ());
                    self.new.pass(|_| ());
                    continue;
                }
                (Next::Entry(key), Next::Entry(other)) if key == other => {
                    let (old, new) = (self.old.value(), self.new.value());
                    if old != new {
                        visit(Differs::Entry { key: *key, old: Some(old), new: Some(new) });
                    }
                    self.old.pass(|_| ());
                    self.new.pass(|_| ());
                    continue;
                }
                _ => {}
            }
            let side = first(&old, &new);
            let (course, next) = match side {
                Side::Old => (&mut self.old, old),
                Side::New => (&mut self.new, new),
            };
            match next {
                Next::Nothing => unreachable!("what has ended is not before what has not"),
                Next::Entry(key) => {
                    let value = Some(course.value());
                    visit(match side {
                        Side::Old => Differs::Entry { key, old: value, new: None },
                        Side::New => Differs::Entry { key, old: None, new: value },
                    });
                    course.pass(|_| ());
                }
                Next::Subtree { .. } if read >= max => return Ok(true),
                Next::Subtree { ptr, fence } => {
                    let node = load_checked(store, ptr, &fence)?;
                    read += 1;
                    course.enter(Frame::new(ptr, node, fence), &Key::MIN, |_| ());
                    self.met(side, ptr, fence.high);
                }
            }
        }
    }

    /// One side goes into a node: the other has it too if it went into it before.
    fn met(&mut self, side: Side, ptr: BlockPtr, high: Option<Key>) {
        let same = |unmet: &Unmet| unmet.side != side && unmet.ptr.id == ptr.id;
        match self.unmet.iter().position(same) {
            Some(at) => drop(self.unmet.swap_remove(at)),
            None => self.unmet.push(Unmet { side, ptr, high }),
        }
    }

    /// Tells of nodes that the other side is past.
    fn settle(&mut self, old: &Next, new: &Next, visit: &mut impl FnMut(Differs<'_>)) {
        self.unmet.retain(|unmet| {
            let other = if unmet.side == Side::Old { new } else { old };
            let is_past =
                matches!(other, Next::Nothing) || unmet.high.is_some_and(|high| high <= other.low());
            if is_past {
                visit(Differs::Node(unmet.side, unmet.ptr));
            }
            !is_past
        });
    }
}

/// The side to go on with: the one that is behind, or, where they overlap, the higher one.
pub(super) fn first(old: &Next, new: &Next) -> Side {
    if old.is_before(new) {
        return Side::Old;
    }
    if new.is_before(old) {
        return Side::New;
    }
    if new.height() > old.height() { Side::New } else { Side::Old }
}
