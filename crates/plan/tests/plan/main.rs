//! Figures of plans held against what pools have, against published ones, and against a simulation.

mod figures;
mod published;
mod simulated;
mod space;
