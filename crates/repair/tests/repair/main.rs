//! Pools that lost what they cannot do without, on simulated devices.

mod bed;
mod roots;
mod segments;
