//! Sorted structures over pages that are written once: they know neither devices nor datasets.
//!
//! - [`tree`]: the copy-on-write B+tree that datasets and the pool's tables are kept in;
//! - [`map`]: from a block's id to its places, as runs that are merged;
//! - [`index`]: from a fingerprint to a block's id, in bounded memory.
//!
//! Where their pages live is the business of whoever uses them: [`tree::NodeStore`] and [`tree::NodeSink`],
//! [`PageReader`] and [`PageWriter`].

pub mod index;
pub mod map;
mod pages;
pub mod tree;

pub use pages::{PageReader, PageWriter};
