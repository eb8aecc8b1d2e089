#![doc = include_str!("../SPEC.md")]

pub mod acl;
pub mod block;
pub mod checksum;
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
pub mod root;
pub mod run;
pub mod segment;
pub mod tables;

pub use error::{Corrupt, Reason};
pub use ids::*;
