//! Advice over folders of files.

mod bounds;
mod corpora;
mod sampled;
mod tally;
