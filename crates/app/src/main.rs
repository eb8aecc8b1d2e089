//! The larder binary: FUSE mounts, the daemon and the command line.
//!
//! Layers: [`cli`] turns arguments into requests of [`api`] and replies into text by [`render`];
//! [`client`] carries them to [`daemon`], which has an [`engine::Engine`] answer; [`host`] is that engine. [`policy`]
//! says which snapshots are to be taken and destroyed, [`salvage`] what is left of a pool that nobody can import,
//! [`service`] and [`watchdog`] tell systemd of the daemon.

mod api;
mod cli;
mod client;
mod daemon;
mod disks;
mod engine;
mod host;
mod log;
#[cfg(test)]
mod memory_engine;
mod policy;
mod render;
mod replicate;
mod run_dir;
mod salvage;
mod service;
mod watchdog;

fn main() -> std::process::ExitCode {
    cli::main(std::env::args_os().collect())
}
