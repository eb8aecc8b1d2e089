//! Requests and replies of `larder pool`: one file a family of verbs.

mod create;
mod group;
mod import;
mod properties;
mod status;
mod wait;

pub use create::*;
pub use group::*;
pub use import::*;
pub use properties::{Get, Set};
pub use status::*;
pub use wait::*;

use properties::exact;
