#![doc = include_str!("../SPEC.md")]

pub mod acl;
pub mod block;
pub mod bookmark;
pub mod cached;
pub mod checksum;
pub mod commit_record;
pub mod error;
pub mod field;
pub mod ids;
pub mod index;
pub mod items;
pub mod label;
pub mod ledger;
pub mod log;
pub mod node;
pub mod ops;
pub mod property;
pub mod root;
pub mod run;
pub mod segment;
pub mod tables;
pub mod trash;

pub use error::{Corrupt, Reason};
pub use ids::*;

/// Whether all bytes are zero; most that are not say so in their first word.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (pieces, rest) = bytes.as_chunks::<1024>();
    pieces.iter().all(|piece| *piece == [0; 1024]) && rest.iter().all(|&byte| byte == 0)
}
