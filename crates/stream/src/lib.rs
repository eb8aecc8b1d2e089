#![doc = include_str!("../STREAM.md")]

mod agreement;
mod error;
mod receive;
mod send;
mod token;
pub mod wire;

pub use error::{StreamError, Wrong};
pub use receive::Receive;
pub use send::{Base, Send, Sent};
pub use token::Token;
