//! Torture: a pool on files is lived with by seed, through a real daemon and a real mount, beside a model of what it
//! must hold, while the daemon is killed and devices are damaged within what the layout tolerates.
//!
//! [`plan`] says what happens, as data and by the seed alone; [`layout`] how much harm is tolerated. [`model`] and
//! [`content`] say what must be there, and after a crash what may be. [`stage`] and [`lane`] do it: by the command line
//! of the program, by system calls, and by writing into the files that are devices. [`beyond`] goes further than is
//! tolerated. Only the folder that was made for it is ever touched, and only a daemon that lives in there.
//!
//! Which steps are taken, and which harm is done, a seed says; when exactly within a call a kill comes, it does not.

mod beyond;
mod command;
mod content;
mod devices;
mod failure;
mod lane;
mod layout;
mod model;
mod plan;
mod random;
mod run;
mod sight;
mod stage;
mod tally;

pub use failure::Failure;
pub use layout::Layout;
pub use run::{Lost, Options, Ran, most_bytes, run};
pub use stage::Watch;
pub use tally::Tally;
