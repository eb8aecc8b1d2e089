//! Pools that lost what they cannot do without, on simulated devices.

mod bed;
mod holes;
mod keys;
mod mutated;
mod roots;
mod segments;
