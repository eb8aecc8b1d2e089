//! The edge of Larder: where the engine meets the kernel and people.

pub mod fuse;
pub mod heap;
